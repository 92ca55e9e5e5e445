"""Datagrams between the controller and a robot in another process, and the controller's end of
them.

A datagram is little-endian (docs/controller.md has the table):

    magic "NPMR" | version u16 | kind u16 | joints u16 | flags u16 | robot 8 bytes |
    sequence u64 | time f64 | body: f64 each | crc32 of all before, u32

`robot` is `identity` of the bundle's robot: its name and its model. `sequence` begins at the
sender's wall clock [ns] and grows with each datagram, so that a sender that was started again goes
on above its last one, also after a reboot. `time` is the sender's time.monotonic [s]. Bodies:

    1 state    joint_pos nu | joint_vel nu | joint_torque nu | gyro 3 | accelerometer 3 | up 3 |
               temperature nu
    2 command  target nu | kp nu | kd nu | duration_s 1
    3 stop     nothing

Flags of a state: 1 the temperature is measured (else zeros), 2 the robot has stopped by itself.
What is not exactly such a datagram is counted and ignored. The checksum finds damage, not malice:
keep robots on a network of their own.
"""

from __future__ import annotations

import hashlib
import math
import socket
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np

from npmp.deploy.robot import FloatArray, RobotStopped, State

MAGIC = b"NPMR"
VERSION = 1
HEADER = struct.Struct("<4sHHHH8sQd")
CHECKSUM = struct.Struct("<I")
MEASURED_TEMPERATURE, STOPPED = 1, 2  # flags of a state
STALE_S = 0.2  # an older datagram is ignored [D]
AHEAD_S = 0.05  # and one from the future [D]
# after so long without a datagram another sender may begin, whatever its wall clock says [D]
SILENT_S = 1.0
MAX_BYTES = 1 << 16  # of a datagram
MAX_WAITING = 200  # datagrams that are looked at in one go


class Kind(IntEnum):
    STATE = 1
    COMMAND = 2
    STOP = 3


class Message(NamedTuple):
    """A datagram that is well formed, new, and of this robot."""

    kind: Kind
    flags: int
    time_s: float
    body: FloatArray  # finite, of the kind's width


def identity(robot: str, model_sha256: str) -> bytes:
    """8 bytes that tell robots apart: of the name and of the model's checksum."""
    return hashlib.sha256(f"{robot}\n{model_sha256}".encode()).digest()[:8]


def widths(joints: int) -> dict[Kind, int]:
    """Numbers in the body of each kind."""
    return {Kind.STATE: 4 * joints + 9, Kind.COMMAND: 3 * joints + 1, Kind.STOP: 0}


class Outbox:
    """Makes the datagrams of one sender."""

    def __init__(self, robot: bytes, joints: int):
        self.robot, self.joints = robot, joints
        self.sequence = time.time_ns()

    def pack(self, kind: Kind, body: FloatArray, time_s: float, flags: int = 0) -> bytes:
        self.sequence += 1
        head = HEADER.pack(
            MAGIC, VERSION, kind, self.joints, flags, self.robot, self.sequence, time_s
        )
        datagram = head + body.astype("<f8").tobytes()
        return datagram + CHECKSUM.pack(zlib.crc32(datagram))

    def state(self, state: State, *, stopped: bool = False) -> bytes:
        flags = STOPPED * stopped + MEASURED_TEMPERATURE * (state.temperature is not None)
        temperature = np.zeros(self.joints) if state.temperature is None else state.temperature
        return self.pack(
            Kind.STATE, np.concatenate((*state[1:7], temperature)), state.time_s, flags
        )


class Inbox:
    """Lets through what is well formed, newer than all before, and of this robot; counts the rest
    by reason. A sender whose wall clock went back is heard once the one before is silent."""

    def __init__(self, robot: bytes, joints: int, kinds: tuple[Kind, ...]):
        self.robot, self.joints, self.kinds = robot, joints, kinds
        self.widths = widths(joints)
        self.sequence, self.heard = 0, -math.inf  # of the newest, and when it came [s]
        self.refused: Counter[str] = Counter()

    def take(self, datagram: bytes, now: float) -> Message | None:
        """The message of a datagram that came at time now [s], None for one that is refused."""
        message = self._read(datagram, now)
        if isinstance(message, str):
            self.refused[message] += 1
            return None
        return message

    def _read(self, datagram: bytes, now: float) -> Message | str:
        """The message, or in a word why not."""
        if len(datagram) < HEADER.size + CHECKSUM.size:
            return "too short"
        magic, version, kind, joints, flags, robot, sequence, time_s = HEADER.unpack_from(datagram)
        content, checksum = datagram[: -CHECKSUM.size], datagram[-CHECKSUM.size :]
        if magic != MAGIC or version != VERSION:
            return "another format"
        if checksum != CHECKSUM.pack(zlib.crc32(content)):
            return "damaged"
        if robot != self.robot or joints != self.joints:
            return "another robot"
        if kind not in self.kinds:
            return "another kind"
        if len(content) != HEADER.size + 8 * self.widths[Kind(kind)]:
            return "another width"
        body = np.frombuffer(content, "<f8", offset=HEADER.size).astype(np.float64)
        if not (np.isfinite(body).all() and np.isfinite(time_s)):
            return "not finite"
        if sequence <= self.sequence and now - self.heard < SILENT_S:
            return "out of order"
        if not -AHEAD_S <= now - time_s <= STALE_S:
            return "stale"
        self.sequence, self.heard = sequence, now
        return Message(Kind(kind), flags, time_s, body)


def split_state(message: Message, joints: int) -> State:
    """The state in a message."""
    cuts = np.cumsum((joints, joints, joints, 3, 3, 3))
    pos, vel, torque, gyro, accelerometer, up, temperature = np.split(message.body, cuts)
    measured = temperature if message.flags & MEASURED_TEMPERATURE else None
    return State(message.time_s, pos, vel, torque, gyro, accelerometer, up, measured)


class Transport(Protocol):
    """Carries datagrams to one robot and back; it may lose them, and never waits."""

    def receive(self) -> Iterable[bytes]: ...

    def send(self, datagram: bytes) -> None: ...


class RemoteRobot:
    """A robot in another process, as the controller sees it; a `RobotInterface`."""

    def __init__(
        self,
        robot: bytes,
        joints: int,
        transport: Transport,
        now: Callable[[], float] = time.monotonic,
    ):
        self.joints, self.transport, self.now = joints, transport, now
        self.inbox, self.outbox = Inbox(robot, joints, (Kind.STATE,)), Outbox(robot, joints)

    def read(self) -> State | None:
        now, newest = self.now(), None
        for datagram in self.transport.receive():
            newest = self.inbox.take(datagram, now) or newest
        if newest is None:
            return None
        if newest.flags & STOPPED:
            raise RobotStopped("the robot has stopped by itself")
        return split_state(newest, self.joints)

    def write(self, target: FloatArray, kp: FloatArray, kd: FloatArray, duration_s: float) -> None:
        body = np.concatenate((target, kp, kd, [duration_s]))
        self.transport.send(self.outbox.pack(Kind.COMMAND, body, self.now()))

    def stop(self) -> None:
        self.transport.send(self.outbox.pack(Kind.STOP, np.zeros(0), self.now()))


class Udp:
    """A transport over UDP on the loopback. The robot sends to `address`; the first that sends a
    state of it there is the robot."""

    def __init__(self, robot: bytes, joints: int):
        self.socket = open_socket()
        self.first = Inbox(robot, joints, (Kind.STATE,))
        self.peer: tuple[str, int] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Where states are awaited: host and port."""
        host, port = self.socket.getsockname()
        return str(host), int(port)

    def receive(self) -> Iterator[bytes]:
        for datagram, sender in waiting(self.socket):
            if self.peer is None and self.first.take(datagram, time.monotonic()):
                self.peer = sender
            if sender == self.peer:
                yield datagram

    def send(self, datagram: bytes) -> None:
        if self.peer is not None:
            send(self.socket, datagram, self.peer)

    def close(self) -> None:
        self.socket.close()


def open_socket() -> socket.socket:
    """A UDP socket on the loopback, at a free port, that never waits."""
    end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.bind(("127.0.0.1", 0))
    end.setblocking(False)
    return end


def waiting(end: socket.socket) -> Iterator[tuple[bytes, tuple[str, int]]]:
    """The datagrams that have come, and the sender of each; at most so many that a flood does not
    hold up the loop."""
    for _ in range(MAX_WAITING):
        try:
            yield end.recvfrom(MAX_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:  # of an earlier datagram to a process that is gone
            continue


def send(end: socket.socket, datagram: bytes, to: tuple[str, int]) -> None:
    """Send, or lose it: the other end has a watchdog."""
    with suppress(OSError):
        end.sendto(datagram, to)
