"""LowStates of a Unitree robot in a file, byte by byte as they came, and their replay."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from mocap_data.npz import load_npz
from npmp.deploy.unitree_messages import MessageLayout

SUFFIX = ".npz"
FILE = f"lowstate{SUFFIX}"
KEYS = ("arrived_s", "messages", "local")  # (n,) from the first on, (n, bytes), a simulator's


class Recorder:
    """A `UnitreeLine` that keeps the LowStates that come through another."""

    def __init__(self, line: Any, package: str):
        self.line = line
        self.local = line.local
        self.put = line.put
        self.others = line.others
        self.robots = line.robots
        self.wire = MessageLayout(f"{package}.LowState").wire
        self.came = list[tuple[float, bytes]]()

    def take(self) -> list[tuple[Any, ...] | None]:
        came = self.line.take()
        now = time.monotonic()
        self.came += [(now, self.wire.pack(*values)) for values in came if values is not None]
        return came  # type: ignore[no-any-return]

    def write(self, path: Path) -> None:
        """For `RecordedLine`. Raises OSError."""
        arrived = np.array([at for at, _ in self.came])
        rows = np.frombuffer(b"".join(row for _, row in self.came), np.uint8)
        arrays = arrived - arrived[:1], rows.reshape(-1, self.wire.size), np.array(self.local)
        with atomic_path(path) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, allow_pickle=False, **dict(zip(KEYS, arrays)))


class RecordedLine:
    """A `UnitreeLine` of what a `Recorder` wrote, at the pace at which it came; what is sent goes
    nowhere. Raises InputError for a file that is none, or of another robot."""

    def __init__(self, path: Path, package: str):
        self.wire = MessageLayout(f"{package}.LowState").wire
        due, messages, local = load_npz(path, KEYS).values()
        if due is None or messages is None or local is None:
            raise InputError(
                f"'{path}' is no recording of a robot: must hold {', '.join(KEYS)}, which "
                "dry=true writes"
            )
        if messages.dtype != np.uint8 or messages.shape[1:] != (self.wire.size,):
            raise InputError(
                f"'{path}' is no recording of a {package}: messages must be (n, {self.wire.size}) "
                f"bytes, not {messages.shape} {messages.dtype}"
            )
        if due.shape != messages.shape[:1] or due.dtype.kind != "f" or not _in_order(due):
            raise InputError(
                f"'{path}': arrived_s must be ({len(messages)},) finite and increasing [s]"
            )
        if local.shape != () or local.dtype != bool:
            raise InputError(f"'{path}': local must be true or false")
        self.due = due
        self.messages = messages
        self.local = bool(local)
        self.given = 0
        self.began = 0.0

    def take(self) -> list[tuple[Any, ...] | None]:
        now = time.monotonic()
        self.began = self.began or now
        first, self.given = self.given, int(np.searchsorted(self.due, now - self.began, "right"))
        return [self.wire.unpack(row.tobytes()) for row in self.messages[first : self.given]]

    def put(self, values: list[Any]) -> None:
        """As `UnitreeLine.put`."""

    def others(self) -> int:
        return 0

    def robots(self) -> int:
        return 1


def _in_order(times: np.ndarray) -> bool:
    return bool(np.isfinite(times).all() and (np.diff(times) >= 0.0).all())
