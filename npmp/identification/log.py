"""Logs of robots on stands: what was commanded of all joints, and what their encoders read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp.actuators.log import (
    LARGEST,
    SHORTEST,
    moments_of,
    names_of,
    on_grid,
    rate_of,
    read_arrays,
)
from npmp.identification.stand import Floats


@dataclass(frozen=True)
class Recording:
    """T moments of n joints. A command holds until the next; a position is what was read just
    before it was given."""

    name: str
    command: Floats  # (T, n) [rad]
    position: Floats  # (T, n) [rad]
    velocity: Floats | None = None  # (T, n) [rad/s]; only its first moment is used
    torque: Floats | None = None  # (T, n) of the drives on the joints [Nm]


@dataclass(frozen=True)
class StandLog:
    """Recordings of the same joints at one rate."""

    rate_hz: float
    joints: tuple[str, ...]
    recordings: tuple[Recording, ...]

    @property
    def seconds(self) -> float:
        """Of all recordings."""
        return sum(len(recording.command) for recording in self.recordings) / self.rate_hz


def write_stand_log(path: str | Path, log: StandLog, **notes: str) -> None:
    """Write an .npz file in the format of `npmp.actuators.log`, whole or not at all. notes:
    licence, source."""
    arrays: dict[str, Any] = {
        "rate_hz": np.float64(log.rate_hz),
        "actuators": np.array(log.joints),
        **notes,
    }
    for recording in log.recordings:
        for name in ("command", "position", "velocity", "torque"):
            if (values := getattr(recording, name)) is not None:
                arrays[f"{recording.name}/{name}"] = values.astype(np.float32)
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)


def read_stand_log(path: str | Path) -> StandLog:
    """An .npz file in the format of `npmp.actuators.log`, where velocity and torque may be absent
    and command and position may not; every recording has the same joints, by the names of
    `actuators`.

    Raises:
      InputError: for a file that is absent, damaged or lacks something.
    """
    path = Path(path)
    recordings: dict[str, dict[str, Any]] = {}
    shared: dict[str, Any] = {}
    for name, values in read_arrays(path).items():
        recording, slash, key = name.rpartition("/")
        (recordings.setdefault(recording, {}) if slash else shared)[key] = values
    if "position" in shared:
        recordings[path.stem] = shared
    if not recordings:
        raise InputError(f"{path}: no recording; command and position are needed")
    names = {
        tuple(names_of(entry.get("actuators", shared.get("actuators", ())), f"{path}: {name}"))
        for name, entry in recordings.items()
    }
    if len(names) != 1 or not (joints := names.pop()):
        raise InputError(f"{path}: `actuators` must name the joints, the same in every recording")
    rate = rate_of(path, recordings, shared)
    found = tuple(
        _recording(path, name, entry, len(joints), rate) for name, entry in recordings.items()
    )
    return StandLog(rate, joints, found)


def _recording(
    path: Path, name: str, entry: Mapping[str, Any], number: int, rate_hz: float
) -> Recording:
    if missing := [key for key in ("command", "position") if key not in entry]:
        raise InputError(f"{path}: {name} has no {' and no '.join(missing)}")
    columns: dict[str, Floats] = {}
    for key in ("command", "position", "velocity", "torque"):
        if key not in entry:
            continue
        values = np.asarray(entry[key])
        if values.dtype.kind not in "fiu" or values.shape != (
            *np.shape(entry["position"])[:1],
            number,
        ):
            raise InputError(
                f"{path}: {name}/{key} is {list(values.shape)}, expected (T, {number}) numbers"
            )
        if (
            len(values) < SHORTEST
            or not np.isfinite(values).all()
            or float(np.abs(values).max()) > LARGEST
        ):
            raise InputError(
                f"{path}: {name}/{key} holds no number, one beyond {LARGEST:g}, or fewer than {SHORTEST}"
            )
        columns[key] = values.astype(np.float64)
    if "time_s" in entry:
        time = moments_of(entry["time_s"], f"{path}: {name}")
        columns = {
            key: on_grid(time, values, rate_hz, f"{path}: {name}")
            for key, values in columns.items()
        }
    return Recording(name, **columns)
