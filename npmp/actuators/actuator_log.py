"""Logs of joints: one format for actuators on a bench, robots on a stand, and drives of every make.

A log is an .npz file without objects, or a CSV file. In the .npz, a recording R of T samples of n
joints is

    R/time_s (T,)            seconds; or `rate_hz` () for the whole file
    R/command (T, n)         target of the joint [rad]; it holds until the next
    R/position (T, n)        [rad], positive as the command; read just before the command was sent
    R/position_error (T, n)  command - position, where these two are not known
    R/velocity (T, n)        [rad/s]
    R/torque (T, n)          of the drive on the joint [Nm], positive where it speeds the joint up
    R/current, R/temperature, R/voltage (T, n)   [A, degrees Celsius, V], where known
    R/feedforward (T, n)     open-loop effort, in the unit of kp and kd
    R/kp, R/kd, R/limit () or (n,)   of the drive's own loop, where known: it asked its motor for
                             kp error - kd velocity + feedforward, within the limit, in any one unit
                             of effort (Nm, V, share of the supply) per rad and rad/s
    R/inertia, R/gravity () or (n,)  of a known pendulum on the joint, hanging at position 0, which
                             took inertia acceleration + gravity sin(position) [kg m^2, Nm]
    R/actuators (n,)         names of the joints; or `actuators` (n,) for the whole file

and `licence` and `source`. Arrays (T,) are of one joint; a file of one recording may leave R/ out.
In a CSV a row is a sample of one joint, and the columns have these names, with `recording` and
`actuator` where there are several.
"""

from __future__ import annotations

import csv
import hashlib
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mocap_data.errors import InputError, matching
from mocap_data.files import atomic_path
from mocap_data.input_files import MAX_TEXT_BYTES, reading, regular_file, require_memory
from mocap_data.npz import load_npz, names_in_npz

Float32s = NDArray[np.float32]
Floats = NDArray[np.float64]

NEEDED = ("position_error", "velocity", "torque")
# a model's possible inputs, with effort and velocity
CHANNELS = ("temperature", "voltage")
OPTIONAL = ("position", "current", "feedforward", *CHANNELS)
# numbers of a whole recording
CONSTANTS = ("kp", "kd", "limit", "inertia", "gravity")
NOTES = ("licence", "source")
PER_FILE = ("rate_hz", "actuators", *NOTES)
# of any absolute value: beyond it a log is damaged
LARGEST = 1e6
# rates of logs [Hz]
FASTEST = 1e5
SLOWEST = 20.0
# samples that a recording has at least
SHORTEST = 16
# periods between two samples, at most [D]
LONGEST_GAP = 10.0


@dataclass(frozen=True)
class Trace:
    """One actuator in one recording, T samples at the log's rate."""

    recording: str
    actuator: str
    position_error: Float32s  # (T,) command minus position [rad]
    velocity: Float32s  # (T,) [rad/s]
    torque: Float32s  # (T,) [Nm]
    others: Mapping[str, Float32s] = field(default_factory=dict)  # (T,) each, of OPTIONAL
    kp: float = math.nan  # of the drive's own loop, in any one unit of effort
    kd: float = math.nan
    limit: float = math.nan  # of the effort
    inertia: float = math.nan  # of a known pendulum on the joint [kg m^2]
    gravity: float = math.nan  # its torque where it is level [Nm]

    def __len__(self) -> int:
        return len(self.torque)

    @property
    def columns(self) -> dict[str, Float32s]:
        """All that was measured, (T,) each."""
        return {name: getattr(self, name) for name in NEEDED} | dict(self.others)

    @classmethod
    def of(
        cls, recording: str, actuator: str, columns: Mapping[str, NDArray[Any]], **constants: float
    ) -> Trace:
        """A trace of such measurements as `columns` gives."""
        # `ActuatorLog` refuses what is beyond `LARGEST`
        with np.errstate(over="ignore"):
            values = {name: column.astype(np.float32) for name, column in columns.items()}
        error, velocity, torque = (values.pop(name) for name in NEEDED)
        return cls(recording, actuator, error, velocity, torque, values, **constants)

    def with_columns(self, columns: Mapping[str, NDArray[Any]]) -> Trace:
        """The same with other measurements."""
        constants = {name: getattr(self, name) for name in CONSTANTS}
        return Trace.of(self.recording, self.actuator, columns, **constants)

    def part(self, begin: int, end: int) -> Trace:
        """The samples from `begin` to before `end`."""
        return self.with_columns({name: v[begin:end] for name, v in self.columns.items()})


@dataclass(frozen=True)
class HeldOut:
    """The part of a log that is evaluated on. Raises ValueError for a share out of range."""

    # of every other trace, its end in time
    share: float = 0.3
    # names or patterns, "lift_*"
    recordings: list[str] = field(default_factory=list)
    actuators: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0.0 <= self.share < 1.0:
            raise ValueError(f"validation must be at least 0 and below 1, got {self.share:g}")


@dataclass(frozen=True)
class ActuatorLog:
    """Traces at one rate. Raises InputError for no trace, or impossible values."""

    rate_hz: float
    traces: tuple[Trace, ...]
    licence: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        check_rate(self.rate_hz)
        if not self.traces:
            raise InputError("the log holds no recording")
        for trace in self.traces:
            _check(trace, f"{trace.recording}, {trace.actuator}")

    @property
    def actuators(self) -> list[str]:
        """Names, in order of first occurrence."""
        return list(dict.fromkeys(trace.actuator for trace in self.traces))

    @property
    def recordings(self) -> list[str]:
        """Names, likewise."""
        return list(dict.fromkeys(trace.recording for trace in self.traces))

    @property
    def seconds(self) -> float:
        """Of all traces."""
        return sum(len(trace) for trace in self.traces) / self.rate_hz

    @property
    def has_gains(self) -> bool:
        """Whether every trace has the stiffness of its position loop."""
        return all(math.isfinite(trace.kp) for trace in self.traces)

    @property
    def has_pendulums(self) -> bool:
        """Whether every trace is of a joint that moved a known pendulum."""
        return all(math.isfinite(trace.inertia) for trace in self.traces)

    def digest(self) -> str:
        """SHA-256 of lengths, position errors, velocities and torques: the log's identity."""
        sha256 = hashlib.sha256()
        for trace in self.traces:
            sha256.update(f"{len(trace)};".encode())
            for values in (trace.position_error, trace.velocity, trace.torque):
                sha256.update(values.tobytes())
        return sha256.hexdigest()

    def split(self, held: HeldOut) -> tuple[Self, Self | None]:
        """The part to fit to, and the part that is held out, None where nothing is.

        Held out are the named recordings and actuators as a whole, and the end of every other
        trace: neighbours in time resemble each other.

        Raises:
          InputError: for names that fit nothing, or where nothing is left to fit to.
        """
        recordings = matching("recording", held.recordings, self.recordings)
        actuators = matching("actuator", held.actuators, self.actuators)
        first: list[Trace] = []
        last: list[Trace] = []
        for trace in self.traces:
            if trace.recording in recordings or trace.actuator in actuators:
                last.append(trace)
                continue
            cut = round(len(trace) * (1.0 - held.share))
            first.append(trace.part(0, cut))
            if held.share:
                last.append(trace.part(cut, len(trace)))
        if not first:
            raise InputError(
                "validation_recordings=, validation_actuators=: every recording is held out"
            )
        held_out = replace(self, traces=tuple(last)) if last else None
        return replace(self, traces=tuple(first)), held_out


@dataclass(frozen=True)
class JointRecording:
    """T samples of n joints of a robot on a stand."""

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
    recordings: tuple[JointRecording, ...]

    @property
    def seconds(self) -> float:
        """Of all recordings."""
        return sum(len(recording.command) for recording in self.recordings) / self.rate_hz


def check_rate(rate_hz: float, where: str = "the log") -> float:
    """The rate. Raises InputError for one out of range."""
    if not 0.0 < rate_hz < FASTEST:
        raise InputError(f"{where}: rate_hz={rate_hz:g}, expected between 0 and {FASTEST:,.0f} Hz")
    return rate_hz


def _check(trace: Trace, where: str) -> None:
    """Raise InputError for a trace with impossible values."""
    if len(trace) < SHORTEST:
        raise InputError(f"{where}: {len(trace)} samples, at least {SHORTEST} are needed")
    for name, values in trace.columns.items():
        if values.shape != trace.torque.shape:
            raise InputError(f"{where}: {name} has {len(values)} samples, torque {len(trace)}")
        _check_finite(values, f"{where}: {name}")
    for name in CONSTANTS:
        value = getattr(trace, name)
        positive = name in ("limit", "inertia")
        if value < 0.0 or LARGEST < value < math.inf or (positive and value == 0.0):
            least = "above 0" if positive else "at least 0"
            raise InputError(f"{where}: {name}={value:g} must be {least} and at most {LARGEST:g}")
    pendulum = "position" in trace.others and math.isfinite(trace.gravity)
    if not math.isnan(trace.inertia) and not pendulum:
        raise InputError(f"{where}: a pendulum of known inertia needs gravity and position, too")


def _check_finite(values: NDArray[Any], what: str) -> None:
    if not np.isfinite(values).all() or float(np.abs(values).max(initial=0.0)) > LARGEST:
        raise InputError(f"{what} holds a value that is not finite or beyond {LARGEST:g}")


def doubts(log: ActuatorLog) -> list[str]:
    """What looks like another unit or sign, a sentence each; empty for a log that looks sound."""
    lines = []
    largest = max(float(np.abs(trace.position_error).max()) for trace in log.traces)
    if largest > math.pi:
        lines.append(f"position errors reach {largest:.3g} rad, beyond pi; are they in degrees?")
    if log.rate_hz < SLOWEST:
        lines.append(f"the rate is {log.rate_hz:g} Hz, below {SLOWEST:g}; is time_s in ms?")
    return lines


def at_rate(log: ActuatorLog, rate_hz: float) -> ActuatorLog:
    """A log at another rate, linearly interpolated.

    Raises:
      InputError: for a rate out of range, or one that leaves too few samples.
    """
    check_rate(rate_hz)
    traces = []
    for trace in log.traces:
        table = np.stack([v.astype(np.float64) for v in trace.columns.values()], -1)
        time = np.arange(len(trace)) / log.rate_hz
        even = on_grid(time, table, rate_hz, f"{trace.recording}, {trace.actuator}")
        traces.append(trace.with_columns(dict(zip(trace.columns, even.T, strict=True))))
    return replace(log, rate_hz=rate_hz, traces=tuple(traces))


# --- files


def write_log(path: str | Path, log: ActuatorLog) -> None:
    """Write an .npz file, whole or not at all."""
    arrays: dict[str, Any] = {"licence": log.licence, "source": log.source}
    for recording in log.recordings:
        traces = [trace for trace in log.traces if trace.recording == recording]
        if len({len(trace) for trace in traces}) > 1:
            raise InputError(f"{recording}: its traces differ in length")
        arrays[f"{recording}/actuators"] = np.array([trace.actuator for trace in traces])
        for name in (*NEEDED, *OPTIONAL):
            if all(name in trace.columns for trace in traces):
                columns = [trace.columns[name] for trace in traces]
                arrays[f"{recording}/{name}"] = np.stack(columns, -1)
        for name in CONSTANTS:
            if all(math.isfinite(getattr(trace, name)) for trace in traces):
                arrays[f"{recording}/{name}"] = np.array([getattr(trace, name) for trace in traces])
    _write(path, log.rate_hz, arrays)


def write_stand_log(path: str | Path, log: StandLog, **notes: str) -> None:
    """Write an .npz file, whole or not at all. notes: licence, source."""
    arrays: dict[str, Any] = {"actuators": np.array(log.joints), **notes}
    for recording in log.recordings:
        for name in ("command", "position", "velocity", "torque"):
            if (values := getattr(recording, name)) is not None:
                arrays[f"{recording.name}/{name}"] = values.astype(np.float32)
    _write(path, log.rate_hz, arrays)


def _write(path: str | Path, rate_hz: float, arrays: Mapping[str, Any]) -> None:
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, rate_hz=np.float64(rate_hz), **arrays)


def read_log(path: str | Path) -> ActuatorLog:
    """A log of actuators, .npz or .csv; uneven samples are interpolated to an even rate.

    Raises:
      InputError: for a file that is absent, damaged, or lacks something.
    """
    rate, parts, shared = _read(Path(path), ("velocity", "torque"))
    traces: list[Trace] = []
    for part in parts:
        if "position_error" not in part.columns:
            if not {"command", "position"} <= part.columns.keys():
                there = ", ".join(part.columns)
                raise InputError(
                    f"{part.where} has no position_error, nor command and position; has: {there}"
                )
            part.columns["position_error"] = part.columns["command"] - part.columns["position"]
        part.columns.pop("command", None)
        for i, joint in enumerate(part.joints):
            columns = {key: values[:, i] for key, values in part.columns.items()}
            constants = {key: float(values[i]) for key, values in part.constants.items()}
            traces.append(Trace.of(part.name, joint, columns, **constants))
    return ActuatorLog(rate, tuple(traces), *(str(shared.get(key, "")) for key in NOTES))


def read_stand_log(path: str | Path) -> StandLog:
    """A log of a robot's joints, with command and position of the same joints in every recording.

    Raises:
      InputError: for a file that is absent, damaged or lacks something.
    """
    rate, parts, _ = _read(Path(path), ("command", "position"))
    joints = {part.joints for part in parts}
    if len(joints) != 1 or not all(part.named for part in parts):
        raise InputError(f"{path}: `actuators` must name the joints, the same in every recording")
    recordings = []
    for part in parts:
        kept = {k: part.columns[k] for k in JointRecording.__annotations__ if k in part.columns}
        for key, values in kept.items():
            _check_finite(values, f"{part.where}/{key}")
        recordings.append(JointRecording(part.name, **kept))
    return StandLog(rate, joints.pop(), tuple(recordings))


@dataclass(frozen=True)
class _Part:
    """A recording as read: columns (T, n) at the file's rate, constants (n,)."""

    name: str
    where: str
    joints: tuple[str, ...]
    named: bool
    columns: dict[str, Floats]
    constants: dict[str, Floats]


def _read(path: Path, needed: Sequence[str]) -> tuple[float, list[_Part], dict[str, Any]]:
    """A file's rate [Hz], its recordings, which need these columns, and what it says of all."""
    shared: dict[str, Any] = {}
    entries: dict[str, dict[str, Any]] = {}
    if path.suffix == ".csv":
        entries = _read_csv(path, needed)
    else:
        for name, values in load_npz(path, names_in_npz(path)).items():
            recording, slash, key = name.rpartition("/")
            (entries.setdefault(recording, {}) if slash else shared)[key] = values
        single = {key: shared.pop(key) for key in list(shared) if key not in PER_FILE}
        if single and (not entries or needed[0] in single):
            entries[path.stem] = single
    if not entries:
        raise InputError(f"{path}: no recording; needed are {', '.join(needed)}")
    for name, entry in entries.items():
        if missing := [key for key in needed if key not in entry]:
            there = ", ".join(entry)
            raise InputError(f"{path}: {name} has no {' and no '.join(missing)}; it has: {there}")
    rate = _rate(path, entries, shared)
    return rate, [_part(path, name, entry, shared, rate) for name, entry in entries.items()], shared


def _read_csv(path: Path, needed: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The recordings of a CSV file, a joint each, columns (T,); read row by row."""
    regular_file(path, at_most=MAX_TEXT_BYTES)
    tables: dict[tuple[str, str], array[float]] = {}
    # utf-8-sig: spreadsheets begin files with a byte order mark
    with reading(path), path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, skipinitialspace=True)
        names = [name.strip() for name in next(rows, [])]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InputError(f"{path}: two columns are called {', '.join(twice)}")
        if missing := [name for name in ("time_s", *needed) if name not in names]:
            there = ", ".join(names) or "none"
            raise InputError(
                f"{path} has no column {', '.join(missing)}; there are, between commas: {there}"
            )
        numbers = [i for i, name in enumerate(names) if name not in ("recording", "actuator")]
        keys = [names.index(k) if k in names else None for k in ("recording", "actuator")]
        for row in rows:
            if not row:
                continue
            if len(row) != len(names):
                raise InputError(
                    f"{path}, line {rows.line_num}: {len(row)} columns, expected {len(names)}"
                )
            recording, joint = ("" if at is None else row[at] for at in keys)
            table = tables.setdefault((recording or path.stem, joint or "actuator"), array("d"))
            for i in numbers:
                table.append(_number(row[i], f"{path}, line {rows.line_num}: {names[i]}"))
    if not tables:
        raise InputError(f"{path}: no rows")
    return {
        # each joint of a recording may have times of its own
        f"{recording}/{joint}": {
            **dict(zip([names[i] for i in numbers], np.array(table).reshape(-1, len(numbers)).T)),
            "actuators": np.array([joint]),
            "recording": recording,
        }
        for (recording, joint), table in tables.items()
    }


def _number(text: str, where: str) -> float:
    try:
        # Python's own numbers may hold underscores, a file's may not
        return float(text if "_" not in text else "")
    except ValueError as error:
        raise InputError(f"{where}={text[:40]!r} is not a number") from error


def _rate(path: Path, entries: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any]) -> float:
    """A file's rate [Hz]: `rate_hz`, or that of the median period."""
    if "rate_hz" in shared:
        values = np.asarray(shared["rate_hz"])
        if values.dtype.kind not in "fiu" or values.size != 1:
            raise InputError(
                f"{path}: rate_hz must be one number, got {values.dtype} {values.shape}"
            )
        return check_rate(float(values.item()), str(path))
    if not all("time_s" in entry for entry in entries.values()):
        raise InputError(f"{path}: a recording has neither time_s nor the file rate_hz")
    times = [_times(entry["time_s"], f"{path}: {name}") for name, entry in entries.items()]
    steps = [np.median(np.diff(time)) for time in times]
    return check_rate(float(np.round(1.0 / np.median(steps), 3)), str(path))


def _part(
    path: Path, name: str, entry: Mapping[str, Any], shared: Mapping[str, Any], rate_hz: float
) -> _Part:
    """One recording at the rate."""
    where = f"{path}: {name}"
    channels = (*NEEDED, *OPTIONAL, "command")
    columns = {key: _table(entry[key], f"{where}/{key}") for key in channels if key in entry}
    first, shape = next((key, values.shape) for key, values in columns.items())
    for key, values in columns.items():
        if values.shape != shape:
            raise InputError(
                f"{where}/{key} is {list(values.shape)}, {first} {list(shape)}; expected the same"
            )
    if shape[0] < SHORTEST or not shape[1]:
        raise InputError(f"{where}: {list(shape)} values, at least ({SHORTEST}, 1) are needed")
    if "time_s" in entry:
        time = _times(entry["time_s"], where)
        columns = {key: on_grid(time, values, rate_hz, where) for key, values in columns.items()}
    names = entry.get("actuators", shared.get("actuators"))
    if names is not None and np.ndim(names) != 1:
        raise InputError(f"{where}: `actuators` must be a row of names")
    unnamed = [f"actuator_{i}" for i in range(shape[1])]
    joints = tuple(map(str, unnamed if names is None else names))
    if len(joints) != shape[1]:
        raise InputError(f"{where}: {shape[1]} actuators, but {len(joints)} names")
    present = [key for key in CONSTANTS if key in entry]
    constants = {key: _constant(entry[key], shape, f"{where}/{key}") for key in present}
    called = str(entry.get("recording", name))
    return _Part(called, where, joints, names is not None, columns, constants)


def _table(values: Any, what: str) -> Floats:
    values = np.asarray(values)
    if values.dtype.kind not in "fiu" or values.ndim not in (1, 2):
        raise InputError(
            f"{what} must be numbers, (T,) or (T, n); got {values.dtype} {values.shape}"
        )
    return np.asarray(values if values.ndim == 2 else values[:, None], dtype=np.float64)


def _constant(values: Any, shape: tuple[int, ...], what: str) -> Floats:
    """A number per joint (n,); a column of a CSV file is (T,) and must not change."""
    values = np.asarray(values)
    if values.dtype.kind not in "fiu" or values.shape not in ((), (shape[1],), (shape[0],)):
        raise InputError(f"{what} must be a number or one per actuator")
    if values.shape == (shape[0],) and shape[0] != shape[1]:
        if (values != values[0]).any():
            raise InputError(f"{what} changes; give each value a recording of its own")
        values = values[0]
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (shape[1],))


def _times(values: Any, where: str) -> Floats:
    """Times (T,) [s] of a file. Raises InputError unless they rise."""
    values = np.asarray(values)
    if values.dtype.kind not in "fiu" or values.ndim != 1 or len(values) < SHORTEST:
        raise InputError(
            f"{where}: time_s must be {SHORTEST} numbers or more, got {values.dtype} {values.shape}"
        )
    time = values.astype(np.float64)
    if not np.isfinite(time).all() or (np.diff(time) <= 0).any():
        raise InputError(f"{where}: time_s does not rise all the time")
    return time


def on_grid(time_s: Floats, values: Floats, rate_hz: float, where: str) -> Floats:
    """Values (T, n) at times time_s (T,), linearly interpolated to an even rate.

    Raises:
      InputError: for times that do not rise, more than `LONGEST_GAP` periods between two of them,
        or more values than there is memory for.
    """
    time_s = _times(time_s, where)
    if time_s.shape != values.shape[:1]:
        raise InputError(f"{where}: {len(time_s)} times, but {len(values)} values")
    steps = np.diff(time_s)
    longest = int(steps.argmax())
    if steps[longest] > LONGEST_GAP * max(1.0 / rate_hz, float(np.median(steps))):
        pause = f"a pause of {steps[longest]:g} s after {time_s[longest]:g} s"
        raise InputError(f"{where}: {pause}; make two recordings of it")
    samples = (time_s[-1] - time_s[0]) * rate_hz
    require_memory(8.0 * values.shape[1] * samples, f"{where} at {rate_hz:g} Hz")
    even = np.arange(time_s[0], time_s[-1] + 1e-9, 1.0 / rate_hz)
    return np.stack([np.interp(even, time_s, column) for column in values.T], -1)
