"""What the controller saw and did, step by step, in one HDF5 file.

Layout (schema "npmp-deploy-log", version 1), T control steps, nu joints, c commands, all float64:

    /                attributes schema, version, robot, joint_names, command_names, rate_hz, source,
    about (JSON) /time_s (T, 1)          when the step began, on the controller's clock /mode (T, 1)
    0 passive, 1 stand, 2 policy, 3 damping /late_s, /work_s, /state_age_s (T, 1) /joint_pos,
    /joint_vel, /joint_torque, /temperature (T, nu) /gyro, /accelerometer, /up (T, 3) /proposed,
    /target (T, nu)   before and after the guard's limits /asked, /command (T, c)      within the
    ranges, and ramped

NaN stands for what was not there: a state before the first, a temperature that is not measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.errors import InputError
from mocap_data.files import new_hdf5
from mocap_data.hdf5 import array_bytes, attributes, member, open_hdf5, read_array
from mocap_data.outside import parse_json, require_memory
from npmp.deploy.bundle import BundleContract
from npmp.deploy.controller import Mode, Step
from npmp.deploy.robot import FloatArray

SCHEMA = "npmp-deploy-log"
VERSION = 1
SENSED = ("joint_pos", "joint_vel", "joint_torque", "gyro", "accelerometer", "up", "temperature")


def layout(joints: int, commands: int) -> dict[str, int]:
    """The arrays of a recording and their widths."""
    once = dict.fromkeys(("time_s", "mode", "late_s", "work_s", "state_age_s"), 1)
    sensed = dict(zip(SENSED, (joints, joints, joints, 3, 3, 3, joints)))
    return (
        once
        | sensed
        | {"proposed": joints, "target": joints, "asked": commands, "command": commands}
    )


@dataclass(frozen=True, eq=False)
class Recording:
    """A run of the controller."""

    robot: str
    joint_names: tuple[str, ...]
    command_names: tuple[str, ...]
    rate_hz: float
    source: str  # what was driven: "sim", "playback", a module of one's own
    columns: Mapping[str, FloatArray]  # (T, width) as `layout` says
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def acting(self) -> np.ndarray:
        """(T,) bool, where the policy acted."""
        return np.asarray(self.columns["mode"][:, 0] == Mode.POLICY)


class Recorder:
    """Collects control steps."""

    def __init__(self, contract: BundleContract, source: str):
        self.contract, self.source = contract, source
        self.widths = layout(len(contract.joint_names), len(contract.command))
        self.rows: list[FloatArray] = []

    def note(self, step: Step) -> None:
        """Add a control step. Values of another width than they should have become NaN."""
        state, order = step.state, step.order
        age = step.now - state.time_s if state is not None else np.nan
        sensed = state[1:] if state is not None else (None,) * len(SENSED)
        numbers = ([step.now], [order.mode], [step.late], [step.work], [age])
        values = (*numbers, *sensed, order.proposed, order.target, step.asked, order.command)
        row = [
            v if np.shape(v) == (w,) else np.full(w, np.nan)
            for v, w in zip(values, self.widths.values())
        ]
        self.rows.append(np.concatenate(row))

    def recording(self, about: Mapping[str, Any]) -> Recording:
        """All of it."""
        table = np.array(self.rows).reshape(-1, sum(self.widths.values()))
        parts = np.split(table, np.cumsum(list(self.widths.values()))[:-1], axis=1)
        agreed = self.contract
        return Recording(
            agreed.robot, tuple(agreed.joint_names), tuple(agreed.command), agreed.control_rate_hz, self.source,
            dict(zip(self.widths, parts)), about,
        )  # fmt: skip


def write_recording(path: Path, recording: Recording) -> None:
    """Write a recording, whole or not at all. Raises OSError when it cannot be written."""
    with new_hdf5(path) as file:
        file.attrs["schema"], file.attrs["version"] = SCHEMA, VERSION
        file.attrs["robot"], file.attrs["source"] = recording.robot, recording.source
        file.attrs["rate_hz"] = recording.rate_hz
        file.attrs["joint_names"] = list(recording.joint_names)
        file.attrs["command_names"] = list(recording.command_names)
        file.attrs["about"] = json.dumps(dict(recording.about), sort_keys=True)
        packed = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "fletcher32": True}
        for name, values in recording.columns.items():
            file.create_dataset(
                name, data=values, track_times=False, **(packed if values.size else {})
            )


def read_recording(path: Path | str) -> Recording:
    """Read a recording, or the one in a run folder.

    Raises:
      InputError: for one that is missing, damaged, of another kind, or newer than this npmp.
    """
    path = Path(path)
    path = path / "recording.h5" if path.is_dir() else path
    with open_hdf5(path) as file:
        known = attributes(file)
        if known.get("schema") != SCHEMA:
            raise InputError(f"{path} is no recording of npmp deploy (schema {SCHEMA!r})")
        if known.get("version") != VERSION:
            raise InputError(
                f"{path} has version {known.get('version')!r:.20}; this npmp reads version {VERSION}"
            )
        try:
            joints = tuple(str(name) for name in known["joint_names"])
            commands = tuple(str(name) for name in known["command_names"])
            rate_hz, robot, source = (
                float(known["rate_hz"]),
                str(known["robot"]),
                str(known["source"]),
            )
            about = parse_json(str(known["about"]), str(path))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{path}: an attribute is missing or of a strange type ({error})"
            ) from error
        widths = layout(len(joints), len(commands))
        arrays = {name: member(file, name) for name in widths}
        require_memory(
            sum(array_bytes(array, f"{path}: {name}") for name, array in arrays.items()), str(path)
        )
        columns = {
            name: read_array(array, f"{path}: {name}").astype(float)
            for name, array in arrays.items()
        }
    if not len(columns["time_s"]):
        raise InputError(f"{path} holds no control step")
    for name, values in columns.items():
        if values.shape != (len(columns["time_s"]), widths[name]):
            raise InputError(
                f"{path}: {name} is {values.shape}, expected {(len(columns['time_s']), widths[name])}"
            )
    return Recording(
        robot, joints, commands, rate_hz, source, columns, about if isinstance(about, dict) else {}
    )
