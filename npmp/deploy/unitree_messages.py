"""Unitree's messages over DDS: `rt/lowcmd`, `rt/lowstate`, and requests to the robot's services.

A message is a table of fields in the format characters of `struct`, arrays with their length. It
determines the DDS type and the two packings: on the wire each number is aligned to its size (CDR);
the checksum covers the C struct, whose nested structs are aligned too. [R: the IDL of unitree_sdk2
and its CRC-32 of 32-bit words]
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

_HEADER = b"\0\1\0\0"  # CDR, little-endian
_CMD = "mode:B q:f dq:f tau:f kp:f kd:f "
_STATE = "mode:B q:f dq:f ddq:f tau_est:f "
_IMU = "quaternion:4f gyroscope:3f accelerometer:3f rpy:3f "
_LOW = "head:2B level_flag:B frame_reserve:B sn:2I version:2I bandwidth:H "
FIELDS = {
    "unitree_go.MotorCmd": _CMD + "reserve:3I",
    "unitree_go.BmsCmd": "off:B reserve:3B",
    "unitree_go.LowCmd": _LOW + "motor_cmd:20*MotorCmd bms_cmd:*BmsCmd wireless_remote:40B led:12B "
    "fan:2B gpio:B reserve:I crc:I",
    "unitree_go.IMUState": _IMU + "temperature:B",
    "unitree_go.MotorState": _STATE + "q_raw:f dq_raw:f ddq_raw:f temperature:B lost:I reserve:2I",
    "unitree_go.BmsState": "version_high:B version_low:B status:B soc:B current:i cycle:H "
    "bq_ntc:2B mcu_ntc:2B cell_vol:15H",
    "unitree_go.LowState": _LOW + "imu_state:*IMUState motor_state:20*MotorState "
    "bms_state:*BmsState foot_force:4h foot_force_est:4h tick:I wireless_remote:40B bit_flag:B "
    "adc_reel:f temperature_ntc1:B temperature_ntc2:B power_v:f power_a:f fan_frequency:4H "
    "reserve:I crc:I",
    "unitree_hg.MotorCmd": _CMD + "reserve:I",
    "unitree_hg.LowCmd": "mode_pr:B mode_machine:B motor_cmd:35*MotorCmd reserve:4I crc:I",
    "unitree_hg.IMUState": _IMU + "temperature:h",
    "unitree_hg.MotorState": _STATE + "temperature:2h vol:f sensor:2I motorstate:I reserve:4I",
    "unitree_hg.LowState": "version:2I mode_pr:B mode_machine:B tick:I imu_state:*IMUState "
    "motor_state:35*MotorState wireless_remote:40B reserve:4I crc:I",
    "unitree_api.RequestIdentity": "id:q api_id:q",
    "unitree_api.RequestLease": "id:q",
    "unitree_api.RequestPolicy": "priority:i noreply:?",
    "unitree_api.RequestHeader": "identity:*RequestIdentity lease:*RequestLease "
    "policy:*RequestPolicy",
    "unitree_api.Request": "header:*RequestHeader parameter:s binary:p",
    "unitree_api.ResponseStatus": "code:i",
    "unitree_api.ResponseHeader": "identity:*RequestIdentity status:*ResponseStatus",
    "unitree_api.Response": "header:*ResponseHeader data:s binary:p",
}


def fields(name: str) -> Iterator[tuple[str, int, str]]:
    """Name, count and kind of each field; the kind is a format character or a message's name."""
    for field in FIELDS[name].split():
        label, count, nested, kind = re.fullmatch(r"(\w+):(\d*)(\*?)(\w+|\?)", field).groups()  # type: ignore[union-attr]
        yield label, int(count or 1), f"{name.split('.')[0]}.{kind}" if nested else kind


def packing(name: str, *, aligned: bool) -> str:
    """The format for `struct`; aligned: of the C struct, else of the wire."""
    parts = []
    for _, count, kind in fields(name):
        parts.append(count * packing(kind, aligned=aligned) if "." in kind else f"{count}{kind}")
    if not aligned:
        return "".join(parts)
    widest = "0" + max(re.sub(r"\d", "", "".join(parts)), key=struct.calcsize)
    return "".join([widest, *parts, widest])


def width(kind: str) -> int:
    """The count of numbers of a kind."""
    return sum(n * width(inner) for _, n, inner in fields(kind)) if "." in kind else 1


def checksum(memory: bytes) -> int:
    """CRC-32/MPEG-2 of all 32-bit words but the last, big-endian."""
    words = np.frombuffer(memory[:-4], "<u4").astype(">u4").tobytes()
    reflected = zlib.crc32(words.translate(_REFLECTED)) ^ 0xFFFFFFFF
    return int(f"{reflected:032b}"[::-1], 2)


_REFLECTED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


class MessageLayout:
    """The positions of a message's fields in its flat list of numbers, and its packings."""

    def __init__(self, name: str):
        self.name = name
        self.wire = struct.Struct("@" + packing(name, aligned=False))
        self.memory = struct.Struct("@" + packing(name, aligned=True))
        # by field; a field of several motors is a slice with a step
        self.at: dict[str, slice] = {}
        start = 0
        for label, count, kind in fields(name):
            stop = start + count * width(kind)
            inner = start
            self.at[label] = slice(start, stop)
            for part, length, _ in fields(kind) if "." in kind else ():
                strided = slice(inner, stop, width(kind))
                self.at[f"{label}.{part}"] = strided if count > 1 else slice(inner, inner + length)
                inner += length
            start = stop
        self.width = start

    def crc(self, values: tuple[Any, ...] | list[Any]) -> int:
        return checksum(self.memory.pack(*values))


@cache
def dds_type(name: str) -> type[Any]:
    """The CycloneDDS class of a message. LowCmd and LowState have their numbers as a flat list
    `values`, None if malformed; others have attributes."""
    from cyclonedds import idl
    from cyclonedds.idl import annotations, make_idl_struct

    types: Any = idl.types
    letters = {
        "B": types.uint8,
        "h": types.int16,
        "H": types.uint16,
        "i": types.int32,
        "I": types.uint32,
        "q": types.int64,
        "f": types.float32,
        "?": bool,
        "s": str,
        "p": types.sequence[types.uint8],
    }
    field_types = {}
    for label, count, kind in fields(name):
        one = dds_type(kind) if "." in kind else letters[kind]
        field_types[label] = one if count == 1 else types.array[one, count]
    package, plain = name.split(".")
    struct_ = make_idl_struct(f"{plain}_", f"{package}.msg.dds_.{plain}_", field_types)
    annotations.autoid("sequential")(annotations.final(struct_))
    return _packed(struct_, MessageLayout(name)) if plain.startswith("Low") else struct_


def with_values(kind: type[Any], values: tuple[Any, ...] | list[Any] | None) -> Any:
    """A LowCmd or LowState of these numbers."""
    result = object.__new__(kind)
    result.values = values
    return result


def _packed(struct_: type[Any], layout: MessageLayout) -> type[Any]:
    """The class with a fast serialization: CycloneDDS's takes a millisecond in Python."""

    def serialize(self: Any, *_: Any, **__: Any) -> bytes:
        return _HEADER + layout.wire.pack(*self.values)

    def deserialize(cls: type[Any], data: bytes, *_: Any, **__: Any) -> Any:
        complete = data[:4] == _HEADER and len(data) >= layout.wire.size + 4
        return with_values(cls, layout.wire.unpack_from(data, 4) if complete else None)

    struct_.serialize = serialize
    struct_.deserialize = classmethod(deserialize)
    return struct_
