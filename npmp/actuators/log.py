"""What actuators did: one format for logs of every make.

A log is an .npz file without objects, or a CSV file. In the .npz, a recording R of n actuators at T
moments is

    R/time_s (T,)            seconds, or `rate_hz` () for the whole file
    R/command (T, n)         where the joint should be [rad], with R/position; or R/position_error
    (T, n) R/position (T, n)        [rad], positive as the command R/velocity (T, n)        [rad/s]
    R/torque (T, n)          of the actuator on the joint [Nm], positive where it speeds the joint
    up R/current, R/temperature, R/voltage (T, n)    [A, degrees Celsius, V], where they are known
    R/kp, R/kd, R/limit () or (n,)    of the drive's own loop while it was recorded, where they are
    known: it asked its
                             motor for kp error - kd velocity + feedforward, within the limit, in
                             any one unit of effort (Nm, V, a share of the supply) per rad and rad/s
    R/inertia, R/gravity () or (n,)   of a known pendulum that the joint moved, where it was one [kg
    m^2, Nm]: hanging
                             at position 0, it took inertia acceleration + gravity sin(position)
    R/feedforward (T, n)     open-loop effort, in that unit, where there was any
    R/actuators (n,)         names; or `actuators` (n,) for the whole file

besides `licence` and `source`. Arrays (T,) are of one actuator; a file of one recording may leave
R/ out. In a CSV a row is a moment of one actuator, and the columns have these names, with
`recording` and `actuator` where there are several.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mocap_data.errors import InputError, matching
from mocap_data.files import atomic_path
from mocap_data.outside import read_text, reading, regular_file, require_memory

Values = NDArray[np.float32]

NEEDED = ("position_error", "velocity", "torque")
CHANNELS = ("temperature", "voltage")  # that a model may take besides effort and velocity
OPTIONAL = ("position", "current", "feedforward", *CHANNELS)
CONSTANTS = ("kp", "kd", "limit", "inertia", "gravity")  # of a recording
LARGEST = 1e6  # of any value: beyond it a log is damaged
MAX_BYTES = 4 << 30
FASTEST = 1e5  # Hz
SHORTEST = 16  # samples that a trace has at least
# samples that may be missing between two moments; nobody knows what happened in longer ones [D]
LONGEST_GAP = 10.0


@dataclass(frozen=True)
class Trace:
    """One actuator in one recording, T moments at the log's rate."""

    recording: str
    actuator: str
    position_error: Values  # (T,) command minus position [rad]
    velocity: Values  # (T,) [rad/s]
    torque: Values  # (T,) [Nm]
    others: Mapping[str, Values] = field(default_factory=dict)  # (T,) each, of OPTIONAL
    kp: float = math.nan  # of the drive's own loop then, in any one unit of effort
    kd: float = math.nan
    limit: float = math.nan  # of the effort
    inertia: float = math.nan  # of a known pendulum that it moved [kg m^2]
    gravity: float = math.nan  # its torque where it is level [Nm]

    def __len__(self) -> int:
        return len(self.torque)

    def part(self, begin: int, end: int) -> Trace:
        """The moments from `begin` to before `end`."""
        cut = {name: getattr(self, name)[begin:end] for name in NEEDED}
        return replace(
            self, **cut, others={name: values[begin:end] for name, values in self.others.items()}
        )


@dataclass(frozen=True)
class HeldOut:
    """What of a log is kept aside to judge by. Raises ValueError for a share that is none."""

    share: float = 0.3  # of every other trace, its end in time
    recordings: list[str] = field(default_factory=list)  # names or patterns, "lift_*"
    actuators: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0.0 <= self.share < 1.0:
            raise ValueError(f"validation must be at least 0 and below 1, got {self.share:g}")


@dataclass(frozen=True)
class ActuatorLog:
    """Traces at one rate. Raises InputError for none, or values that no actuator has."""

    rate_hz: float
    traces: tuple[Trace, ...]
    licence: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        if not 0.0 < self.rate_hz < FASTEST:
            raise InputError(
                f"a log's rate must lie between 0 and {FASTEST:,.0f} Hz, got {self.rate_hz:g}"
            )
        if not self.traces:
            raise InputError("the log holds no recording")
        for trace in self.traces:
            where = f"{trace.recording}, {trace.actuator}"
            if len(trace) < SHORTEST:
                raise InputError(f"{where}: {len(trace)} moments, at least {SHORTEST} are needed")
            named = {name: getattr(trace, name) for name in NEEDED} | dict(trace.others)
            for name, values in named.items():
                if values.shape != trace.torque.shape:
                    raise InputError(
                        f"{where}: {name} has {len(values)} moments, torque {len(trace)}"
                    )
                if not bool(np.isfinite(values).all()) or float(np.abs(values).max()) > LARGEST:
                    raise InputError(
                        f"{where}: {name} holds what is no number, or one beyond {LARGEST:g}"
                    )
            for name in CONSTANTS:
                value = getattr(trace, name)
                if (
                    value < 0.0
                    or LARGEST < value < math.inf
                    or (name in ("limit", "inertia") and value == 0.0)
                ):
                    raise InputError(
                        f"{where}: {name} must be at least 0 (limit, inertia: above) and at most {LARGEST:g}"
                    )
            if not math.isnan(trace.inertia) and not (
                "position" in trace.others and math.isfinite(trace.gravity)
            ):
                raise InputError(
                    f"{where}: a pendulum of known inertia needs gravity (one number) and position, too"
                )

    @property
    def actuators(self) -> list[str]:
        """Names, in the order in which they first occur."""
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
        """Whether every trace says what its position loop's stiffness was."""
        return all(math.isfinite(trace.kp) for trace in self.traces)

    @property
    def has_pendulums(self) -> bool:
        """Whether every trace is of a joint that moved a known pendulum."""
        return all(math.isfinite(trace.inertia) for trace in self.traces)

    def digest(self) -> str:
        """SHA-256 of the traces' lengths, position errors, velocities and torques: whether another
        log is the same."""
        found = hashlib.sha256()
        for trace in self.traces:
            found.update(f"{len(trace)};".encode())
            for values in (trace.position_error, trace.velocity, trace.torque):
                found.update(values.tobytes())
        return found.hexdigest()

    def channels(self) -> list[str]:
        """Those of `CHANNELS` that every trace has."""
        return [name for name in CHANNELS if all(name in trace.others for trace in self.traces)]

    def split(self, held: HeldOut) -> tuple[Self, Self | None]:
        """What is to be fitted to, and what is kept aside: the last part in time of every trace, as
        neighbours in time tell of each other, and the recordings and actuators that are named, as a
        whole. None where nothing is.

        Raises:
          InputError: for names that fit nothing, or where too little is left.
        """
        named = (
            matching("recording", held.recordings, self.recordings),
            matching("actuator", held.actuators, self.actuators),
        )
        first: list[Trace] = []
        last: list[Trace] = []
        for trace in self.traces:
            if trace.recording in named[0] or trace.actuator in named[1]:
                last.append(trace)
                continue
            cut = round(len(trace) * (1.0 - held.share))
            first.append(trace.part(0, cut))
            if held.share:
                last.append(trace.part(cut, len(trace)))
        if not first:
            raise InputError(
                "every recording is kept aside, by validation_recordings= or validation_actuators="
            )
        return replace(self, traces=tuple(first)), replace(
            self, traces=tuple(last)
        ) if last else None


def at_rate(log: ActuatorLog, rate_hz: float) -> ActuatorLog:
    """A log at another rate, straight lines between its moments.

    Raises:
      InputError: for a rate that no log has, or one that leaves too few moments.
    """
    if not 0.0 < rate_hz < FASTEST:
        raise InputError(f"rate_hz must lie between 0 and {FASTEST:,.0f}, got {rate_hz:g}")
    traces = []
    for trace in log.traces:
        columns = {name: getattr(trace, name) for name in NEEDED} | dict(trace.others)
        table = np.stack([values.astype(np.float64) for values in columns.values()], -1)
        time = np.arange(len(trace)) / log.rate_hz
        even = on_grid(time, table, rate_hz, f"{trace.recording}, {trace.actuator}").astype(
            np.float32
        )
        found = dict(zip(columns, even.T, strict=True))
        needed = {name: found.pop(name) for name in NEEDED}
        traces.append(replace(trace, **needed, others=found))
    return replace(log, rate_hz=rate_hz, traces=tuple(traces))


# --- files
# ------------------------------------------------------------------------------------------------------------


def write_log(path: str | Path, log: ActuatorLog) -> None:
    """Write an .npz file, whole or not at all."""
    arrays: dict[str, Any] = {
        "rate_hz": np.float64(log.rate_hz),
        "licence": log.licence,
        "source": log.source,
    }
    for recording in log.recordings:
        traces = [trace for trace in log.traces if trace.recording == recording]
        if len({len(trace) for trace in traces}) > 1:
            raise InputError(f"{recording}: its traces differ in length")
        arrays[f"{recording}/actuators"] = np.array([trace.actuator for trace in traces])
        for name in NEEDED:
            arrays[f"{recording}/{name}"] = np.stack([getattr(trace, name) for trace in traces], -1)
        for name in OPTIONAL:
            if all(name in trace.others for trace in traces):
                arrays[f"{recording}/{name}"] = np.stack(
                    [trace.others[name] for trace in traces], -1
                )
        for name in CONSTANTS:
            if all(math.isfinite(getattr(trace, name)) for trace in traces):
                arrays[f"{recording}/{name}"] = np.array([getattr(trace, name) for trace in traces])
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)


def read_log(path: str | Path) -> ActuatorLog:
    """A log of the documented format, .npz or .csv, on its own rate or, where its moments are
    uneven, on a regular one in between.

    Raises:
      InputError: for a file that is absent, damaged, or lacks something.
    """
    path = Path(path)
    if path.suffix == ".csv":
        return _resolved(path, _columns(path), {})
    arrays = read_arrays(path)
    recordings: dict[str, dict[str, Any]] = {}
    shared: dict[str, Any] = {}
    for name, values in arrays.items():
        recording, slash, key = name.rpartition("/")
        (recordings.setdefault(recording, {}) if slash else shared)[key] = values
    if "torque" in shared:
        per_file = ("rate_hz", "licence", "source", "actuators")
        recordings[path.stem] = {
            key: shared.pop(key) for key in list(shared) if key not in per_file
        }
    return _resolved(path, recordings, shared)


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file, none of objects.

    Raises:
      InputError: for a file that is absent, damaged, or too large.
    """
    regular_file(path, at_most=MAX_BYTES)
    with reading(path):
        try:
            with zipfile.ZipFile(path) as archive:
                require_memory(
                    2 * sum(entry.file_size for entry in archive.infolist()), f"reading {path}"
                )
            with np.load(path, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except (zipfile.BadZipFile, ValueError, EOFError, KeyError) as error:
            raise InputError(
                f"{path}: no .npz file of plain arrays ({str(error).splitlines()[0]})"
            ) from error


def _columns(path: Path) -> dict[str, dict[str, Any]]:
    """The recordings of a CSV file, arrays (T, n) each."""
    text = read_text(path).removeprefix("\ufeff")  # spreadsheets begin files with it
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    reader.fieldnames = names = [name.strip() for name in reader.fieldnames or ()]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{path}: two columns are called {', '.join(twice)}")
    if missing := [name for name in ("time_s", "velocity", "torque") if name not in names]:
        there = ", ".join(names) or "none"
        raise InputError(
            f"{path} has no column {', '.join(missing)}; there are, between commas: {there}"
        )
    rows = list(reader)
    if not rows:
        raise InputError(f"{path}: no rows")
    numbers = [name for name in names if name not in ("recording", "actuator")]
    traces: dict[tuple[str, str], list[list[float]]] = {}
    for i, row in enumerate(rows):
        try:
            values = [float(row[name]) for name in numbers]
        except (TypeError, ValueError) as error:
            raise InputError(f"{path}, row {i + 2}: {error}") from error
        traces.setdefault(
            (row.get("recording") or path.stem, row.get("actuator") or "actuator"), []
        ).append(values)
    recordings: dict[str, dict[str, Any]] = {}
    for (recording, actuator), listed in traces.items():
        table = dict(zip(numbers, np.array(listed).T, strict=True))
        # actuators of a recording need not have been read at the same moments: each is a recording
        # to the reader
        name = f"{recording}/{actuator}"
        recordings[name] = table | {"actuators": np.array([actuator]), "recording": recording}
        for gain in CONSTANTS:
            if gain in table:
                if len(np.unique(table[gain])) > 1:
                    raise InputError(
                        f"{path}: {gain} of {name} changes; give each value a recording of its own"
                    )
                recordings[name][gain] = table[gain][0]
    return recordings


def _resolved(
    path: Path, recordings: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any]
) -> ActuatorLog:
    """The log of arrays as they stand in a file."""
    rate = rate_of(path, recordings, shared)
    traces: list[Trace] = []
    for name, entry in recordings.items():
        traces += _traces(path, name, entry, shared.get("actuators"), rate)
    return ActuatorLog(
        rate, tuple(traces), str(shared.get("licence", "")), str(shared.get("source", ""))
    )


def rate_of(
    path: Path, recordings: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any]
) -> float:
    """A file's rate [Hz]: `rate_hz`, or the middle one of its moments' distances.

    Raises:
      InputError: for neither, or one that no log has.
    """
    if "rate_hz" in shared:
        values = np.asarray(shared["rate_hz"])
        if values.dtype.kind not in "fiu" or values.size != 1:
            raise InputError(
                f"{path}: rate_hz must be one number, got {values.dtype} {values.shape}"
            )
        rate = float(values.item())
    else:
        if not all("time_s" in entry for entry in recordings.values()):
            raise InputError(f"{path}: a recording has neither time_s nor the file rate_hz")
        moments = [
            moments_of(entry["time_s"], f"{path}: {name}") for name, entry in recordings.items()
        ]
        rate = (
            float(np.round(1.0 / np.median([np.median(np.diff(each)) for each in moments]), 3))
            if moments
            else 0.0
        )
    if not 0.0 < rate < FASTEST:
        raise InputError(f"{path}: rate_hz must lie between 0 and {FASTEST:,.0f}, got {rate:g}")
    return rate


def moments_of(values: Any, where: str) -> NDArray[np.float64]:
    """Moments (T,) [s] as they stand in a file. Raises InputError unless they rise."""
    values = np.asarray(values)
    if values.dtype.kind not in "fiu" or values.ndim != 1 or len(values) < SHORTEST:
        raise InputError(
            f"{where}: time_s must be {SHORTEST} numbers or more, got {values.dtype} {values.shape}"
        )
    time = values.astype(np.float64)
    if not bool(np.isfinite(time).all()) or bool((np.diff(time) <= 0).any()):
        raise InputError(f"{where}: time_s does not rise all the time")
    return time


def names_of(values: Any, where: str) -> list[str]:
    """Names (n,) of actuators. Raises InputError."""
    if np.ndim(values) != 1:
        raise InputError(f"{where}: `actuators` must be a row of names")
    return [str(name) for name in values]


def _traces(
    path: Path, name: str, entry: Mapping[str, Any], names: Any, rate_hz: float
) -> list[Trace]:
    """The actuators of one recording, at the rate."""
    if "position_error" not in entry and not {"command", "position"} <= entry.keys():
        there = ", ".join(entry)
        raise InputError(
            f"{path}: {name} has neither position_error nor command and position; there are: {there}"
        )
    if missing := [key for key in ("velocity", "torque") if key not in entry]:
        raise InputError(
            f"{path}: {name} has no {' and no '.join(missing)}; there are: {', '.join(entry)}"
        )
    found = {
        key: _two(path, name, key, entry[key])
        for key in (*NEEDED, *OPTIONAL, "command")
        if key in entry
    }
    moments, number = found["torque"].shape
    for key, values in found.items():
        if values.shape != (moments, number):
            raise InputError(
                f"{path}: {name}/{key} is {list(values.shape)}, torque {[moments, number]}"
            )
    command = found.pop("command", None)
    if command is not None and "position_error" not in found:
        found["position_error"] = command - found["position"]
    if "time_s" in entry:
        time = moments_of(entry["time_s"], f"{path}: {name}")
        found = {
            key: on_grid(time, values, rate_hz, f"{path}: {name}") for key, values in found.items()
        }
    called = entry.get("actuators", names)
    listed = (
        names_of(called, f"{path}: {name}")
        if called is not None
        else [f"actuator_{i}" for i in range(number)]
    )
    if len(listed) != number:
        raise InputError(f"{path}: {name} has {number} actuators, but {len(listed)} names")
    gains = {key: np.asarray(entry.get(key, math.nan)) for key in CONSTANTS}
    if wrong := [
        k for k, v in gains.items() if v.dtype.kind not in "fiu" or v.shape not in ((), (number,))
    ]:
        raise InputError(f"{path}: {name}/{wrong[0]} must be a number or one per actuator")
    gains = {key: np.broadcast_to(values, (number,)) for key, values in gains.items()}
    traces = []
    for i, actuator in enumerate(listed):
        with np.errstate(over="ignore"):  # `ActuatorLog` refuses what is beyond `LARGEST`
            own = {key: values[:, i].astype(np.float32) for key, values in found.items()}
        error, velocity, torque = (own.pop(key) for key in NEEDED)
        told = {key: float(values[i]) for key, values in gains.items()}
        traces.append(
            Trace(
                str(entry.get("recording", name)),
                actuator,
                error,
                velocity,
                torque,
                others=own,
                **told,
            )
        )
    return traces


def _two(path: Path, name: str, key: str, values: Any) -> NDArray[np.float64]:
    values = np.asarray(values)
    if values.dtype.kind not in "fiu" or values.ndim not in (1, 2):
        raise InputError(
            f"{path}: {name}/{key} must be numbers, (T,) or (T, n); got {values.dtype} {values.shape}"
        )
    return (values if values.ndim == 2 else values[:, None]).astype(np.float64)


def on_grid(
    time_s: NDArray[np.float64], values: NDArray[np.float64], rate_hz: float, where: str
) -> NDArray[np.float64]:
    """Values (T, n) at moments time_s (T,), at even moments of a rate instead, between the first
    and the last.

    Raises:
      InputError: for moments that do not rise, more than `LONGEST_GAP` samples between two of them,
        or more values than there is memory for.
    """
    time_s = moments_of(time_s, where)
    if time_s.shape != values.shape[:1]:
        raise InputError(f"{where}: {len(time_s)} moments, but {len(values)} values")
    steps = np.diff(time_s)
    longest = int(steps.argmax())
    if steps[longest] > LONGEST_GAP * max(1.0 / rate_hz, float(np.median(steps))):
        pause = f"a pause of {steps[longest]:g} s after {time_s[longest]:g} s"
        raise InputError(f"{where}: {pause}; make two recordings of it")
    require_memory(
        8.0 * values.shape[1] * (time_s[-1] - time_s[0]) * rate_hz, f"{where} at {rate_hz:g} Hz"
    )
    even = np.arange(time_s[0], time_s[-1] + 1e-9, 1.0 / rate_hz)
    return np.stack([np.interp(even, time_s, column) for column in values.T], -1)
