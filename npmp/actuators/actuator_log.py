"""Logs of joints: one format for actuators on a bench and robots on a stand.

A log is an .npz file without objects, a CSV file, or one of ROS (`npmp.actuators.joint_states`). In
the .npz, a recording R of T samples of n joints is

    R/time_s (T,)            seconds; or `rate_hz` () for the whole file
    R/command (T, n)         target of the joint [rad]; it holds until the next
    R/position (T, n)        [rad], positive as the command; read just before the command was sent
    R/position_error (T, n)  command - position, in place of these two
    R/velocity (T, n)        [rad/s]
    R/torque (T, n)          of the drive on the joint [Nm], positive where it speeds the joint up
    R/current, R/temperature, R/voltage (T, n)   [A, degrees Celsius, V], optional
    R/feedforward (T, n)     open-loop effort, in the unit of kp and kd
    R/kp, R/kd, R/limit () or (n,)   of the drive's own loop, optional: its effort is kp error -
                             kd velocity + feedforward within the limit, in one unit (Nm, V, share
                             of the supply) per rad and rad/s
    R/inertia, R/gravity () or (n,)  of a known pendulum on the joint, hanging at position 0, with
                             torque inertia acceleration + gravity sin(position) [kg m^2, Nm]
    R/actuators (n,)         names of the joints; or `actuators` (n,) for the whole file

and `licence` and `source`. Arrays (T,) are of one joint; a file of one recording may omit R/. In a
CSV a row is a sample of one joint, and the columns have these names, with `recording` and
`actuator` if there are several.
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
from npmp.actuators.joint_states import is_joint_states, read_joint_states

Float32s = NDArray[np.float32]
Floats = NDArray[np.float64]

REQUIRED = ("position_error", "velocity", "torque")
# inputs of a model in addition to effort and velocity
CHANNELS = ("temperature", "voltage")
# channels that a log may have in addition to position error, velocity and torque
OPTIONAL = ("position", "current", "feedforward", *CHANNELS)
# one number per joint of a recording
CONSTANTS = ("kp", "kd", "limit", "inertia", "gravity")
TEXTS = ("licence", "source")
FILE_KEYS = ("rate_hz", "actuators", *TEXTS)
# largest absolute value of a log
MAX_VALUE = 1e6
# highest accepted rate of a log [Hz]
MAX_RATE_HZ = 1e5
# lowest accepted rate of a log [Hz]
MIN_RATE_HZ = 20.0
# least length of a recording [samples]
MIN_SAMPLES = 16
# longest gap between two samples [periods] [D]
MAX_GAP = 10.0


@dataclass(frozen=True)
class Trace:
    """One actuator in one recording, T samples at the log's rate."""

    recording: str
    actuator: str
    # (T,) command minus position [rad]
    position_error: Float32s
    # (T,) [rad/s]
    velocity: Float32s
    # (T,) [Nm]
    torque: Float32s
    # (T,) each, of OPTIONAL
    others: Mapping[str, Float32s] = field(default_factory=dict)
    # position gain of the drive's loop [effort / rad]
    kp: float = math.nan
    # velocity gain of the drive's loop [effort s / rad]
    kd: float = math.nan
    # largest effort of the drive's loop
    limit: float = math.nan
    # inertia of a known pendulum on the joint [kg m^2]
    inertia: float = math.nan
    # torque of the pendulum where it is level [Nm]
    gravity: float = math.nan

    def __len__(self) -> int:
        return len(self.torque)

    @property
    def columns(self) -> dict[str, Float32s]:
        """All measurements, (T,) each."""
        return {name: getattr(self, name) for name in REQUIRED} | dict(self.others)

    @classmethod
    def of(
        cls, recording: str, actuator: str, columns: Mapping[str, NDArray[Any]], **constants: float
    ) -> Trace:
        """A trace of measurements in the form of `columns`."""
        # `ActuatorLog` refuses values beyond `MAX_VALUE`
        with np.errstate(over="ignore"):
            values = {name: column.astype(np.float32) for name, column in columns.items()}
        error, velocity, torque = (values.pop(name) for name in REQUIRED)
        return cls(recording, actuator, error, velocity, torque, values, **constants)

    def with_columns(self, columns: Mapping[str, NDArray[Any]]) -> Trace:
        """A copy with other measurements."""
        constants = {name: getattr(self, name) for name in CONSTANTS}
        return Trace.of(self.recording, self.actuator, columns, **constants)

    def part(self, begin: int, end: int) -> Trace:
        """The samples from `begin` to before `end`."""
        return self.with_columns({name: v[begin:end] for name, v in self.columns.items()})


@dataclass(frozen=True)
class HeldOut:
    """The part of a log for evaluation. Raises ValueError for a share out of range."""

    # share of every other trace, at its end
    share: float = 0.3
    # names or patterns of recordings, "lift_*"
    recordings: list[str] = field(default_factory=list)
    # names or patterns of actuators
    actuators: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0.0 <= self.share < 1.0:
            raise ValueError(f"share={self.share:g}: must be at least 0 and below 1")


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
            _check_trace(trace)

    @property
    def actuators(self) -> list[str]:
        """Names, in order of first occurrence."""
        return list(dict.fromkeys(trace.actuator for trace in self.traces))

    @property
    def recordings(self) -> list[str]:
        """Names, in order of first occurrence."""
        return list(dict.fromkeys(trace.recording for trace in self.traces))

    @property
    def seconds(self) -> float:
        """The length of all traces."""
        return sum(len(trace) for trace in self.traces) / self.rate_hz

    @property
    def has_gains(self) -> bool:
        """Whether every trace has the kp of its drive's loop."""
        return all(math.isfinite(trace.kp) for trace in self.traces)

    @property
    def has_pendulums(self) -> bool:
        """Whether every trace is of a known pendulum."""
        return all(math.isfinite(trace.inertia) for trace in self.traces)

    def digest(self) -> str:
        """SHA-256 of lengths, position errors, velocities and torques: the log's identity."""
        sha256 = hashlib.sha256()
        for trace in self.traces:
            sha256.update(f"{len(trace)};".encode())
            for values in (trace.position_error, trace.velocity, trace.torque):
                sha256.update(values.tobytes())
        return sha256.hexdigest()

    def split(self, held_out: HeldOut) -> tuple[Self, Self | None]:
        """The training part, and the part that is held out, or None.

        Named recordings and actuators are held out completely, and the end of every other trace, as
        neighbouring samples are correlated.

        Raises:
          InputError: for names without a match, or an empty training part.
        """
        recordings = matching("recording", held_out.recordings, self.recordings)
        actuators = matching("actuator", held_out.actuators, self.actuators)
        training: list[Trace] = []
        validation: list[Trace] = []
        for trace in self.traces:
            if trace.recording in recordings or trace.actuator in actuators:
                validation.append(trace)
                continue
            cut = round(len(trace) * (1.0 - held_out.share))
            training.append(trace.part(0, cut))
            if held_out.share:
                validation.append(trace.part(cut, len(trace)))
        if not training:
            raise InputError("validation: every recording is held out; expected one to fit to")
        rest = replace(self, traces=tuple(validation)) if validation else None
        return replace(self, traces=tuple(training)), rest


@dataclass(frozen=True)
class JointRecording:
    """T samples of n joints of a robot on a stand."""

    name: str
    # (T, n) [rad]
    command: Floats
    # (T, n) [rad]
    position: Floats
    # (T, n) [rad/s]; only the first sample is used
    velocity: Floats | None = None
    # (T, n) of the drives on the joints [Nm]
    torque: Floats | None = None


@dataclass(frozen=True)
class StandLog:
    """Recordings of the same joints at one rate."""

    rate_hz: float
    joints: tuple[str, ...]
    recordings: tuple[JointRecording, ...]

    @property
    def seconds(self) -> float:
        """The length of all recordings."""
        return sum(len(recording.command) for recording in self.recordings) / self.rate_hz


def check_rate(rate_hz: float, where: str = "the log") -> float:
    """The rate. Raises InputError for one out of range."""
    if not 0.0 < rate_hz < MAX_RATE_HZ:
        raise InputError(
            f"{where}: rate_hz={rate_hz:g}: must be between 0 and {MAX_RATE_HZ:,.0f} Hz"
        )
    return rate_hz


def _check_trace(trace: Trace) -> None:
    """Raise InputError for a trace with impossible values."""
    where = f"{trace.recording}, {trace.actuator}"
    if len(trace) < MIN_SAMPLES:
        raise InputError(f"{where}: {len(trace)} samples, expected at least {MIN_SAMPLES}")
    for name, values in trace.columns.items():
        if values.shape != trace.torque.shape:
            raise InputError(f"{where}: {name} has {len(values)} samples, torque {len(trace)}")
        _check_finite(values, f"{where}: {name}")
    for name in CONSTANTS:
        value = getattr(trace, name)
        positive = name in ("limit", "inertia")
        if value < 0.0 or MAX_VALUE < value < math.inf or (positive and value == 0.0):
            least = "above 0" if positive else "at least 0"
            raise InputError(f"{where}: {name}={value:g}: must be {least}, at most {MAX_VALUE:g}")
    has_pendulum = "position" in trace.others and math.isfinite(trace.gravity)
    if not math.isnan(trace.inertia) and not has_pendulum:
        raise InputError(f"{where}: inertia needs gravity and position")


def _check_finite(values: NDArray[Any], where: str) -> None:
    if not np.isfinite(values).all() or float(np.abs(values).max(initial=0.0)) > MAX_VALUE:
        raise InputError(f"{where}: must be finite and at most {MAX_VALUE:g}")


def unit_warnings(log: ActuatorLog) -> list[str]:
    """Sentences on values that look like another unit."""
    lines = []
    largest = max(float(np.abs(trace.position_error).max()) for trace in log.traces)
    if largest > math.pi:
        lines.append(f"position errors reach {largest:.3g} rad, beyond pi; are they in degrees?")
    if log.rate_hz < MIN_RATE_HZ:
        lines.append(f"the rate is {log.rate_hz:g} Hz, below {MIN_RATE_HZ:g}; is time_s in ms?")
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
        even = resample(time, table, rate_hz, f"{trace.recording}, {trace.actuator}")
        traces.append(trace.with_columns(dict(zip(trace.columns, even.T, strict=True))))
    return replace(log, rate_hz=rate_hz, traces=tuple(traces))


# --- files


def write_log(path: str | Path, log: ActuatorLog) -> None:
    """Write an .npz file atomically."""
    arrays: dict[str, Any] = {"licence": log.licence, "source": log.source}
    for recording in log.recordings:
        traces = [trace for trace in log.traces if trace.recording == recording]
        if len({len(trace) for trace in traces}) > 1:
            raise InputError(f"{recording}: its traces differ in length")
        arrays[f"{recording}/actuators"] = np.array([trace.actuator for trace in traces])
        for name in (*REQUIRED, *OPTIONAL):
            if all(name in trace.columns for trace in traces):
                columns = [trace.columns[name] for trace in traces]
                arrays[f"{recording}/{name}"] = np.stack(columns, -1)
        for name in CONSTANTS:
            if all(math.isfinite(getattr(trace, name)) for trace in traces):
                arrays[f"{recording}/{name}"] = np.array([getattr(trace, name) for trace in traces])
    _write(path, log.rate_hz, arrays)


def write_stand_log(path: str | Path, log: StandLog, **texts: str) -> None:
    """Write an .npz file atomically. texts: licence, source."""
    arrays: dict[str, Any] = {"actuators": np.array(log.joints), **texts}
    for recording in log.recordings:
        for name in ("command", "position", "velocity", "torque"):
            if (values := getattr(recording, name)) is not None:
                arrays[f"{recording.name}/{name}"] = values.astype(np.float32)
    _write(path, log.rate_hz, arrays)


def _write(path: str | Path, rate_hz: float, arrays: Mapping[str, Any]) -> None:
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, rate_hz=np.float64(rate_hz), **arrays)


def read_log(path: str | Path) -> ActuatorLog:
    """A log of actuators, .npz, .csv or of ROS; uneven samples are interpolated to an even rate.

    Raises:
      InputError: for a file that is absent, damaged or incomplete.
    """
    rate, recordings, shared = _read(Path(path), ("velocity", "torque"))
    traces: list[Trace] = []
    for recording in recordings:
        table = recording.columns
        if "position_error" not in table:
            if not {"command", "position"} <= table.keys():
                raise InputError(
                    f"{recording.where}: columns {', '.join(table)}; expected position_error, or"
                    " command and position"
                )
            table["position_error"] = table["command"] - table["position"]
        table.pop("command", None)
        for i, joint in enumerate(recording.joints):
            columns = {key: values[:, i] for key, values in table.items()}
            constants = {key: float(values[i]) for key, values in recording.constants.items()}
            traces.append(Trace.of(recording.name, joint, columns, **constants))
    return ActuatorLog(rate, tuple(traces), *(str(shared.get(key, "")) for key in TEXTS))


def read_stand_log(path: str | Path) -> StandLog:
    """A log of a robot's joints, with command and position of the same joints in every recording.

    Raises:
      InputError: for a file that is absent, damaged or incomplete.
    """
    rate, entries, _ = _read(Path(path), ("command", "position"))
    joints = {entry.joints for entry in entries}
    if len(joints) != 1 or not all(entry.has_names for entry in entries):
        raise InputError(f"{path}: `actuators` must name the joints, the same in every recording")
    recordings = []
    for entry in entries:
        columns = {
            k: entry.columns[k] for k in JointRecording.__annotations__ if k in entry.columns
        }
        for key, values in columns.items():
            _check_finite(values, f"{entry.where}/{key}")
        recordings.append(JointRecording(entry.name, **columns))
    return StandLog(rate, joints.pop(), tuple(recordings))


@dataclass(frozen=True)
class _Recording:
    """A recording in a file: columns (T, n) at the file's rate, constants (n,)."""

    name: str
    where: str
    joints: tuple[str, ...]
    has_names: bool
    columns: dict[str, Floats]
    constants: dict[str, Floats]


def _read(path: Path, required: Sequence[str]) -> tuple[float, list[_Recording], dict[str, Any]]:
    """A file's rate [Hz], its recordings, which must have these columns, and its shared values."""
    shared: dict[str, Any] = {}
    entries: dict[str, dict[str, Any]] = {}
    if is_joint_states(path):
        entries[path.stem] = read_joint_states(path)
    elif path.suffix == ".csv":
        entries = _read_csv(path, required)
    else:
        for name, values in load_npz(path, names_in_npz(path)).items():
            recording, slash, key = name.rpartition("/")
            (entries.setdefault(recording, {}) if slash else shared)[key] = values
        single = {key: shared.pop(key) for key in list(shared) if key not in FILE_KEYS}
        if single and (not entries or required[0] in single):
            entries[path.stem] = single
    if not entries:
        raise InputError(f"{path}: no recording; expected {', '.join(required)}")
    for name, entry in entries.items():
        if missing := [key for key in required if key not in entry]:
            raise InputError(f"{path}: {name} lacks {', '.join(missing)}; has {', '.join(entry)}")
    rate = _rate(path, entries, shared)
    recordings = [_recording(path, name, entry, shared, rate) for name, entry in entries.items()]
    return rate, recordings, shared


def _read_csv(path: Path, required: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The recordings of a CSV file, one joint each, columns (T,)."""
    regular_file(path, at_most=MAX_TEXT_BYTES)
    tables: dict[tuple[str, str], array[float]] = {}
    # utf-8-sig: spreadsheets write a byte order mark
    with reading(path), path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, skipinitialspace=True)
        names = [name.strip() for name in next(rows, [])]
        missing = [name for name in ("time_s", *required) if name not in names]
        if missing or len(set(names)) < len(names):
            raise InputError(
                f"{path}: columns {', '.join(names) or 'none'}; expected"
                f" {', '.join(('time_s', *required))}, separated by commas, each once"
            )
        columns = [name for name in names if name not in ("recording", "actuator")]
        for cells in rows:
            if not cells:
                continue
            where = f"{path}, line {rows.line_num}"
            if len(cells) != len(names):
                raise InputError(f"{where}: {len(cells)} columns, expected {len(names)}")
            row = dict(zip(names, cells, strict=True))
            key = (row.get("recording") or path.stem, row.get("actuator") or "actuator")
            table = tables.setdefault(key, array("d"))
            table.extend(_number(row[name], f"{where}: {name}") for name in columns)
    if not tables:
        raise InputError(f"{path}: no rows")
    return {
        # the joints of a recording may have different times
        f"{recording}/{joint}": {
            **dict(zip(columns, np.array(table).reshape(-1, len(columns)).T, strict=True)),
            "actuators": np.array([joint]),
            "recording": recording,
        }
        for (recording, joint), table in tables.items()
    }


def _number(text: str, where: str) -> float:
    try:
        # Python's numbers may contain underscores
        return float(text if "_" not in text else "")
    except ValueError as error:
        raise InputError(f"{where}={text[:40]!r}: must be a number") from error


def _rate(path: Path, entries: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any]) -> float:
    """A file's rate [Hz]: `rate_hz`, or that of the median period."""
    if "rate_hz" in shared:
        values = _numbers(shared["rate_hz"], f"{path}: rate_hz")
        if values.size != 1:
            raise InputError(f"{path}: rate_hz is {values.shape}, expected one number")
        return check_rate(float(values.item()), str(path))
    if not all("time_s" in entry for entry in entries.values()):
        raise InputError(f"{path}: expected rate_hz, or time_s in every recording")
    times = [_times(entry["time_s"], f"{path}: {name}") for name, entry in entries.items()]
    steps = [np.median(np.diff(time)) for time in times]
    return check_rate(float(np.round(1.0 / np.median(steps), 3)), str(path))


def _recording(
    path: Path, name: str, entry: Mapping[str, Any], shared: Mapping[str, Any], rate_hz: float
) -> _Recording:
    """One recording, interpolated to the rate."""
    where = f"{path}: {name}"
    channels = (*REQUIRED, *OPTIONAL, "command")
    columns = {key: _table(entry[key], f"{where}/{key}") for key in channels if key in entry}
    first, shape = next((key, values.shape) for key, values in columns.items())
    for key, values in columns.items():
        if values.shape != shape:
            raise InputError(
                f"{where}/{key} is {list(values.shape)}, expected {list(shape)} as {first}"
            )
    samples, count = shape
    if samples < MIN_SAMPLES or not count:
        raise InputError(f"{where} is {list(shape)}, expected at least ({MIN_SAMPLES}, 1) values")
    if "time_s" in entry:
        time = _times(entry["time_s"], where)
        columns = {key: resample(time, values, rate_hz, where) for key, values in columns.items()}

    names = entry.get("actuators", shared.get("actuators"))
    has_names = names is not None
    if names is None:
        names = [f"actuator_{i}" for i in range(count)]
    if np.shape(names) != (count,):
        raise InputError(f"{where}: `actuators` is {np.shape(names)}, expected {count} names")
    constants = {
        key: _constant(entry[key], samples, count, f"{where}/{key}")
        for key in CONSTANTS
        if key in entry
    }
    return _Recording(
        str(entry.get("recording", name)),
        where,
        tuple(map(str, names)),
        has_names,
        columns,
        constants,
    )


def _numbers(values: Any, where: str) -> Floats:
    values = np.asarray(values)
    if values.dtype.kind not in "fiu":
        raise InputError(f"{where}: must be numbers, got {values.dtype}")
    return values.astype(np.float64)


def _table(values: Any, where: str) -> Floats:
    """A channel (T,) or (T, n) as a table (T, n)."""
    numbers = _numbers(values, where)
    if numbers.ndim not in (1, 2):
        raise InputError(f"{where} is {numbers.shape}, expected (T,) or (T, n)")
    return numbers if numbers.ndim == 2 else numbers[:, None]


def _constant(values: Any, samples: int, count: int, where: str) -> Floats:
    """One value per actuator (n,), from (), (n,) or, of a CSV file, a constant column (T,)."""
    numbers = _numbers(values, where)
    if numbers.shape not in ((), (count,), (samples,)):
        raise InputError(f"{where} is {numbers.shape}, expected a number or one per actuator")
    if numbers.shape == (samples,) and samples != count:
        if (numbers != numbers[0]).any():
            raise InputError(f"{where} changes; make a recording for each value")
        numbers = numbers[0]
    return np.broadcast_to(numbers, (count,))


def _times(values: Any, where: str) -> Floats:
    """Times (T,) [s] of a file. Raises InputError unless they rise."""
    time = _numbers(values, f"{where}: time_s")
    if time.ndim != 1 or len(time) < MIN_SAMPLES:
        raise InputError(f"{where}: time_s is {time.shape}, expected (T,), T >= {MIN_SAMPLES}")
    if not np.isfinite(time).all() or (np.diff(time) <= 0).any():
        raise InputError(f"{where}: time_s must rise")
    return time


def resample(time_s: Floats, values: Floats, rate_hz: float, where: str) -> Floats:
    """Values (T, n) at times time_s (T,), linearly interpolated to an even rate.

    Raises:
      InputError: for times that do not rise, a gap of more than `MAX_GAP` periods, or more values
        than memory holds.
    """
    time_s = _times(time_s, where)
    if time_s.shape != values.shape[:1]:
        raise InputError(f"{where}: {len(time_s)} times, but {len(values)} values")
    steps = np.diff(time_s)
    longest = int(steps.argmax())
    if steps[longest] > MAX_GAP * max(1.0 / rate_hz, float(np.median(steps))):
        raise InputError(
            f"{where}: a gap of {steps[longest]:g} s after {time_s[longest]:g} s; split it into"
            " two recordings"
        )
    samples = (time_s[-1] - time_s[0]) * rate_hz
    require_memory(8.0 * values.shape[1] * samples, f"{where} at {rate_hz:g} Hz")
    even = np.arange(time_s[0], time_s[-1] + 1e-9, 1.0 / rate_hz)
    return np.stack([np.interp(even, time_s, column) for column in values.T], -1)
