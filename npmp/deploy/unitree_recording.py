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
        self.line, self.local, self.put, self.others = line, line.local, line.put, line.others
        self.wire = MessageLayout(f"{package}.LowState").wire
        self.came = list[tuple[float, bytes]]()

    def take(self) -> list[tuple[Any, ...] | None]:
        came, now = self.line.take(), time.monotonic()
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
        shape = None if messages is None else messages.shape
        if due is None or local is None or shape != (len(due), self.wire.size):
            raise InputError(
                f"'{path}' is no recording of a {package}: {', '.join(KEYS)} are expected, and "
                f"messages of {self.wire.size} bytes, not {shape}"
            )
        self.due, self.messages, self.local = due, messages.astype(np.uint8), bool(local)
        self.given, self.began = 0, 0.0

    def take(self) -> list[tuple[Any, ...] | None]:
        now = time.monotonic()
        self.began = self.began or now
        first, self.given = self.given, int(np.searchsorted(self.due, now - self.began, "right"))
        return [self.wire.unpack(row.tobytes()) for row in self.messages[first : self.given]]

    def put(self, values: list[Any]) -> None:
        """As `UnitreeLine.put`."""

    def others(self) -> int:
        return 0
