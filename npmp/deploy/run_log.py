"""The log of a run: states and targets of each control step, in one HDF5 file.

Layout (schema "npmp-deploy-log", version 1), T control steps, nu joints, c commands, all float64:

    /   attributes schema, version, robot, joint_names, command_names, rate_hz, source, about (JSON)
    /time_s (T, 1)                              begin of the step, on the controller's clock
    /mode (T, 1)                                `ControlMode`: passive, stand, policy, damping
    /late_s, /work_s, /state_age_s (T, 1)
    /joint_pos, /joint_vel, /joint_torque, /temperature (T, nu)
    /gyro, /accelerometer, /up (T, 3)
    /proposed, /target (T, nu)                  before and after the safety limits
    /asked, /command (T, c)                     within the ranges, and ramped

Missing values, such as a temperature that is not measured, are NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data import hdf5
from mocap_data.errors import InputError
from mocap_data.files import json_text, new_hdf5
from mocap_data.input_files import parse_json, reading, regular_file, require_memory
from npmp.deploy.contract import BundleContract
from npmp.deploy.controller import Controller, ControlMode, ControlStep, missed_deadlines
from npmp.deploy.robot import FloatArray, State

SCHEMA = "npmp-deploy-log"
VERSION = 1
# name of the log in a run's folder
FILE = "log.h5"
# file of a run in progress: the attributes as a line of JSON, then a row of float64 per step
JOURNAL = "log.part"
READINGS = State._fields[1:]


def layout(joints: int, commands: int) -> dict[str, int]:
    """The arrays of a log and their widths."""
    scalars = dict.fromkeys(("time_s", "mode", "late_s", "work_s", "state_age_s"), 1)
    readings = dict(zip(READINGS, (joints, joints, joints, 3, 3, 3, joints)))
    targets = dict.fromkeys(("proposed", "target"), joints)
    return scalars | readings | targets | dict.fromkeys(("asked", "command"), commands)


@dataclass(frozen=True, eq=False)
class DeployLog:
    """A run of the controller."""

    robot: str
    joint_names: tuple[str, ...]
    command_names: tuple[str, ...]
    rate_hz: float
    # "sim", a driver's class, or a simulator
    source: str
    # channels (T, width) by name, as in `layout`
    columns: Mapping[str, FloatArray]
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def attributes(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "robot": self.robot,
            "source": self.source,
            "rate_hz": self.rate_hz,
            "joint_names": list(self.joint_names),
            "command_names": list(self.command_names),
            "about": json_text(dict(self.about), sort_keys=True),
        }

    @property
    def acting(self) -> np.ndarray:
        """(T,) bool, whether the policy acts."""
        return np.asarray(self.columns["mode"][:, 0] == ControlMode.POLICY)


class DeployLogger:
    """Collects control steps, and writes a journal that survives a kill of the process."""

    def __init__(
        self,
        contract: BundleContract,
        source: str,
        about: Mapping[str, Any],
        journal: Path | None = None,
    ):
        """Raises OSError if the journal cannot be written."""
        self.contract = contract
        self.source = source
        self.about = about
        self.widths = layout(len(contract.joints), len(contract.commands))
        self.rows: list[FloatArray] = []
        self.journal = journal
        self.file: FileIO | None = None
        if journal is not None:
            journal.write_text(json_text(self.log().attributes) + "\n")
            self.file = open(journal, "ab", buffering=0)  # noqa: SIM115

    def record(self, step: ControlStep) -> None:
        """Add a control step. Values of a wrong width become NaN."""
        state = step.state
        output = step.output
        age = step.now - state.time_s if state is not None else np.nan
        readings = state[1:] if state is not None else (None,) * len(READINGS)
        scalars = ([step.now], [output.mode], [step.late], [step.work], [age])
        values = (
            *scalars,
            *readings,
            output.proposed,
            output.target,
            step.requested,
            output.command,
        )
        row = [
            value if np.shape(value) == (width,) else np.full(width, np.nan)
            for value, width in zip(values, self.widths.values())
        ]
        self.rows.append(np.concatenate(row))
        if self.file is not None:
            # a full disk ends the journal, not the run
            with suppress(OSError):
                if self.file.write(data := self.rows[-1].tobytes()) == len(data):
                    return
            self.file.close()
            self.file = None

    def log(self) -> DeployLog:
        contract = self.contract
        return DeployLog(
            robot=contract.robot,
            joint_names=tuple(contract.joint_names),
            command_names=tuple(contract.command_names),
            rate_hz=contract.control_rate_hz,
            source=self.source,
            columns=_columns(np.array(self.rows), self.widths),
            about=self.about,
        )

    def write(self, path: Path) -> DeployLog:
        """Write the log and remove the journal. Raises OSError if it cannot be written."""
        log = self.log()
        write_log(path, log)
        if self.file is not None:
            self.file.close()
        if self.journal is not None:
            self.journal.unlink()
        return log


def _columns(rows: FloatArray, widths: Mapping[str, int]) -> dict[str, FloatArray]:
    table = rows.reshape(-1, sum(widths.values()))
    parts = np.split(table, np.cumsum(list(widths.values()))[:-1], axis=1)
    return dict(zip(widths, parts))


def write_log(path: Path, log: DeployLog) -> None:
    """Write a log atomically. Raises OSError if it cannot be written."""
    with new_hdf5(path) as file:
        file.attrs.update(log.attributes)
        for name, values in log.columns.items():
            packed = hdf5.COMPRESSION if values.size else {}
            file.create_dataset(name, data=values, track_times=False, **packed)


def read_log(path: Path | str) -> DeployLog:
    """Read a log, or that of a run's folder, or the journal of a run that was killed.

    Raises:
      InputError: for a log that is missing, damaged, of another kind, or of another version.
    """
    path = Path(path)
    if path.is_dir():
        killed = (path / JOURNAL).is_file() and not (path / FILE).exists()
        path /= JOURNAL if killed else FILE
    if path.name == JOURNAL:
        with reading(path):
            line, _, body = regular_file(path).read_bytes().partition(b"\n")
        empty = _from_attributes(path, parse_json(line.decode(errors="replace"), str(path)))
        widths = layout(len(empty.joint_names), len(empty.command_names))
        complete = len(body) // (8 * sum(widths.values())) * sum(widths.values())
        log = replace(empty, columns=_columns(np.frombuffer(body, "<f8", complete), widths))
    else:
        with hdf5.open_hdf5(path) as file:
            empty = _from_attributes(path, hdf5.attributes(file))
            widths = layout(len(empty.joint_names), len(empty.command_names))
            arrays = {name: hdf5.member(file, name) for name in widths}
            sizes = [hdf5.array_bytes(array, f"{path}: {name}") for name, array in arrays.items()]
            require_memory(sum(sizes), str(path))
            read = {n: hdf5.read_array(array, f"{path}: {n}") for n, array in arrays.items()}
        log = replace(empty, columns={name: array.astype(float) for name, array in read.items()})

    steps = len(log.columns["time_s"])
    if not steps:
        raise InputError(f"{path}: no control steps")
    for name, values in log.columns.items():
        if values.shape != (steps, widths[name]):
            raise InputError(f"{path}: {name} is {values.shape}, expected {(steps, widths[name])}")
    return log


def _from_attributes(path: Path, attributes: Any) -> DeployLog:
    """A log without steps. Raises InputError for attributes of another file."""
    if not isinstance(attributes, dict) or attributes.get("schema") != SCHEMA:
        raise InputError(f"{path}: expected schema={SCHEMA!r}; is it a log of npmp deploy?")
    if (version := attributes.get("version")) != VERSION:
        raise InputError(f"{path}: version={version!r:.20}, expected {VERSION}")
    try:
        about = parse_json(str(attributes["about"]), str(path))
        return DeployLog(
            robot=str(attributes["robot"]),
            joint_names=tuple(str(name) for name in attributes["joint_names"]),
            command_names=tuple(str(name) for name in attributes["command_names"]),
            rate_hz=float(attributes["rate_hz"]),
            source=str(attributes["source"]),
            columns={},
            about=about if isinstance(about, dict) else {},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: an attribute is missing or of another type ({error})") from error


def check_same_joints(first: DeployLog, second: DeployLog) -> None:
    """Raises InputError for logs of robots with different joints."""
    if sorted(first.joint_names) != sorted(second.joint_names):
        sides = (f"'{side.robot}' with {len(side.joint_names)} joints" for side in (first, second))
        raise InputError(f"the logs' joints differ: {' and '.join(sides)}")


# --- metrics ---


def summary(log: DeployLog, controller: Controller) -> dict[str, Any]:
    """The metrics of a run: its end, deadlines, limits."""
    columns = log.columns
    acting = log.acting
    late = columns["late_s"][:, 0]
    work = columns["work_s"][:, 0]
    limited = np.abs(columns["proposed"] - columns["target"])[acting].max(1, initial=0.0) > 1e-9
    start = controller.history[0][0]
    return {
        "robot_name": log.robot,
        "source": log.source,
        "ended": controller.reason,
        "modes": [[at - start, mode.name.lower(), why] for at, mode, why in controller.history],
        "terrain": [[at - start, message] for at, message in controller.messages],
        "policy_s": float(acting.sum() / log.rate_hz),
        "steps": len(late),
        "deadlines": {
            "missed": int(missed_deadlines(late, 1.0 / log.rate_hz).sum()),
            "late_ms": spread(1e3 * late),
        },
        "work_us": spread(1e6 * work),
        "state_age_ms": spread(1e3 * columns["state_age_s"][acting]),
        "limited_share": float(limited.mean()) if acting.any() else 0.0,
        "fastest_joint": fastest_joint(log, controller.contract),
    }


def spread(values: FloatArray) -> dict[str, float]:
    """Median, 99th percentile and maximum of the finite values; {} without any."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return {}
    return {
        "p50": float(np.median(finite)),
        "p99": float(np.quantile(finite, 0.99)),
        "max": float(finite.max()),
    }


def fastest_joint(log: DeployLog, contract: BundleContract) -> dict[str, Any]:
    """The joint that comes closest to its velocity limit while the policy acts: its name, limit and
    speed [rad/s], and the share of steps in which any joint exceeds its limit."""
    limit = contract.per_joint("velocity_limit")
    speed = np.abs(log.columns["joint_vel"][log.acting])
    speed = speed[np.isfinite(speed).all(1)]
    if not len(speed):
        return {}
    worst = int((speed.max(0) / limit).argmax())
    return {
        "name": log.joint_names[worst],
        "limit": float(limit[worst]),
        "p99": float(np.quantile(speed[:, worst], 0.99)),
        "max": float(speed[:, worst].max()),
        "steps_above": float((speed > limit).any(1).mean()),
    }
