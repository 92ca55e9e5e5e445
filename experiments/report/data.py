"""What a report is made of: the typed parts, and reading them from the files of a run.

Everything here is plain arrays and words; `page.py` turns it into HTML.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from mocap_data.errors import InputError

FloatArray = npt.NDArray[np.float64]
VERSIONED_PACKAGES = ("npmp", "numpy", "scipy", "mujoco", "dm_control", "torch", "h5py")


@dataclass(frozen=True)
class Walking:
    """One evaluation of the walking task. T control steps; velocity is (forward [m/s], lateral [m/s], yaw rate [rad/s])
    in the robot's heading frame.

    Attributes:
        time_s: (T,) seconds.
        command, achieved: (T, 3) what was asked and what the policy did.
        random_achieved: (T, 3) what random latents did under the same commands.
        errors: mean velocity error by name, in the order to show, for instance {"random latents": 0.9, "policy": 0.3};
          a caller's own definition, explained by `errors_caption`.
        qpos, random_qpos: (T, nq) for the replay.
        name: how the replay lists it.
    """

    time_s: npt.ArrayLike
    command: npt.ArrayLike
    achieved: npt.ArrayLike
    random_achieved: npt.ArrayLike | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    errors_caption: str = ""
    qpos: npt.ArrayLike | None = None
    random_qpos: npt.ArrayLike | None = None
    name: str = "walking on command"

    def __post_init__(self) -> None:
        time = np.asarray(self.time_s, dtype=np.float64)
        if time.ndim != 1 or len(time) == 0:
            raise InputError(f"walking: time_s has shape {time.shape}, expected (T,) with T >= 1")
        for key in ("command", "achieved", "random_achieved"):
            value = getattr(self, key)
            if value is not None and np.shape(value) != (len(time), 3):
                raise InputError(f"walking: {key} has shape {np.shape(value)}, expected ({len(time)}, 3)")
        for key in ("qpos", "random_qpos"):
            value = getattr(self, key)
            if value is not None and (np.ndim(value) != 2 or len(np.asarray(value)) != len(time)):
                raise InputError(f"walking: {key} has shape {np.shape(value)}, expected ({len(time)}, nq)")

    @property
    def rate_hz(self) -> float:
        """Steps per second, from the median step of `time_s` (50 for a single step)."""
        step = np.diff(np.asarray(self.time_s, dtype=np.float64))
        step = step[np.isfinite(step) & (step > 0)]
        return float(1.0 / np.median(step)) if step.size else 50.0


@dataclass(frozen=True)
class ReportData:
    """The parts of a report. Each is optional: a part that is not there leaves no trace on the page.

    Attributes:
        title, subtitle: the heading.
        headline: (label, value, caption) figures at the top; from `evaluation` when empty.
        retarget: a mapping per clip: `name`, `rms_marker_m`, `foot_slide_mps`, `penetration_m`, `limit_violations`,
          others.
        evaluation: the content of evaluation.json.
        evaluation_before: the same of an untrained policy, to compare with.
        rollouts: path of rollouts.h5.
        learning: (title, path of metrics.csv) per run.
        walking: one evaluation of the walking task.
        robot: the robot's name, for the replay; from the rollouts or the evaluation when None.
        notes: sentences shown under the heading.
        provenance: command, config, seeds, versions, machine: shown as they are, absolute paths cut to what follows the
            report's own folder (or to their last part).
    """

    title: str = "Report"
    subtitle: str = ""
    headline: Sequence[tuple[str, str, str]] = ()
    retarget: Sequence[Mapping[str, Any]] | None = None
    evaluation: Mapping[str, Any] | None = None
    evaluation_before: Mapping[str, Any] | None = None
    rollouts: Path | str | None = None
    learning: Sequence[tuple[str, Path | str]] = ()
    walking: Walking | None = None
    robot: str | None = None
    notes: Sequence[str] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rollout:
    """One clip of rollouts.h5: the robot beside its reference.

    Attributes:
        qpos, reference_qpos: (T, nq), MuJoCo's order: root position [m], root quaternion (w, x, y, z), joints [rad].
        foot_height, reference_foot_height: (T, F) metres, or None where the file has none.
        rate_hz: frames per second.
        tracked_frames: frames until the robot was lost (T when never), or None when not recorded.
    """

    name: str
    qpos: FloatArray
    reference_qpos: FloatArray
    rate_hz: float
    tracked_frames: int | None = None
    foot_height: FloatArray | None = None
    reference_foot_height: FloatArray | None = None

    @property
    def time_s(self) -> FloatArray:
        """(T,) seconds from the clip's start."""
        return np.arange(len(self.qpos)) / self.rate_hz

    @property
    def lost_after_s(self) -> float | None:
        """When the robot was lost, in seconds; None when it never was."""
        if self.tracked_frames is None or self.tracked_frames >= len(self.qpos):
            return None
        return self.tracked_frames / self.rate_hz

    def base_deviation_m(self) -> FloatArray:
        """(T,) distance of the base's position from the reference's [m]."""
        return np.asarray(np.linalg.norm(self.qpos[:, :3] - self.reference_qpos[:, :3], axis=1))

    def joint_difference_rad(self) -> FloatArray:
        """(T, J) joint angle minus the reference's [rad]."""
        return self.qpos[:, 7:] - self.reference_qpos[:, 7:]


@dataclass(frozen=True)
class Rollouts:
    """The content of rollouts.h5."""

    robot: str | None
    joint_names: tuple[str, ...]
    foot_names: tuple[str, ...]
    clips: tuple[Rollout, ...]


def _words(value: Any) -> tuple[str, ...]:
    """The strings of an HDF5 attribute, however they are stored."""
    if value is None:
        return ()
    return tuple(
        v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in np.atleast_1d(value).tolist()
    )


def _frames(group: h5py.Group, key: str, name: str, like: tuple[int, ...] | None = None) -> FloatArray:
    """A dataset (T, n) of a clip; `like` is the (T, n) that it must have, n < 0 for any."""
    if key not in group:
        raise InputError(f"rollouts, clip {name!r}: no dataset {key!r}; there are: {', '.join(group) or 'none'}")
    dataset = group[key]
    if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind not in "fiu":
        raise InputError(f"rollouts, clip {name!r}: {key!r} is not an array of numbers")
    value = np.asarray(dataset[()], dtype=np.float64)
    if value.ndim != 2 or len(value) == 0:
        raise InputError(f"rollouts, clip {name!r}: {key!r} has shape {value.shape}, expected (T, n) with T >= 1")
    if like is not None and (value.shape[0] != like[0] or (like[1] >= 0 and value.shape[1] != like[1])):
        raise InputError(f"rollouts, clip {name!r}: {key!r} has shape {value.shape}, expected {like}")
    return value


def _read_clip(group: h5py.Group, name: str) -> Rollout:
    """One clip's group."""
    qpos = _frames(group, "qpos", name)
    if qpos.shape[1] < 7:
        raise InputError(
            f"rollouts, clip {name!r}: 'qpos' has {qpos.shape[1]} columns, expected 7 or more (a free root)"
        )
    feet = _frames(group, "foot_height", name, (len(qpos), -1)) if "foot_height" in group else None
    reference_feet = None
    if feet is not None and "reference_foot_height" in group:
        reference_feet = _frames(group, "reference_foot_height", name, feet.shape)
    rate = float(group.attrs.get("rate_hz", 50.0))
    if not (np.isfinite(rate) and rate > 0):
        raise InputError(f"rollouts, clip {name!r}: rate_hz is {rate}, expected a positive number")
    tracked = group.attrs.get("tracked_frames")
    return Rollout(
        name=name,
        qpos=qpos,
        reference_qpos=_frames(group, "reference_qpos", name, qpos.shape),
        rate_hz=rate,
        tracked_frames=None if tracked is None else int(tracked),
        foot_height=feet,
        reference_foot_height=reference_feet,
    )


def read_rollouts(path: Path | str) -> Rollouts:
    """Read rollouts.h5: a group per clip with `qpos`, `reference_qpos`, `foot_height`, `reference_foot_height` and
    attributes `rate_hz`, `tracked_frames`; root attributes `robot`, `joint_names`, `foot_names`.

    Raises:
      InputError: when the file is missing, is not HDF5, or lacks or misshapes a part.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no rollouts file {path}")
    try:
        with h5py.File(path, "r") as file:
            robot = _words(file.attrs.get("robot"))
            clips = [_read_clip(group, name) for name, group in file.items() if isinstance(group, h5py.Group)]
            return Rollouts(
                robot=robot[0] if robot else None,
                joint_names=_words(file.attrs.get("joint_names")),
                foot_names=_words(file.attrs.get("foot_names")),
                clips=tuple(clips),
            )
    except (OSError, KeyError) as error:
        raise InputError(f"{path} is not a readable rollouts file: {str(error).splitlines()[0]}") from error


def retarget_rows(motions: Sequence[Any]) -> list[dict[str, Any]]:
    """The retarget table of a sequence of ReferenceMotion: name, frames, duration and every quality figure."""
    return [
        {"name": m.name, "duration_s": len(m.qpos) / m.rate_hz, **{k: float(v) for k, v in m.quality.items()}}
        for m in motions
    ]


def versions() -> dict[str, str]:
    """Versions of the packages that decide the numbers; those that are not installed are left out."""
    found = {"python": platform.python_version()}
    for name in VERSIONED_PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def command_line() -> str:
    """This process's command, without what Hydra was told behind the scenes."""
    return " ".join(a for a in sys.argv if not a.startswith("hydra"))


def machine_summary() -> dict[str, Any]:
    """What may be said of the machine: cores and system; no host name, user or path."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cores": cores, "system": f"{platform.system()} {platform.machine()}"}


_ABSOLUTE = re.compile(r"(?<![\w.:/~-])(?:~?/|[A-Za-z]:\\)(?:[^\s/\\'\"=,;:<>|()\[\]{}]+[/\\])+")


def scrub(text: str, folder: Path | None = None) -> str:
    """Text without absolute paths: those inside `folder` become relative to it, the rest keep their last part.

    >>> scrub("module=/home/ada/runs/demo/module data=x.h5")
    'module=…/module data=x.h5'
    """
    if folder is not None:
        inside = str(folder.resolve())
        if inside != os.path.sep:
            text = text.replace(inside + os.path.sep, "").replace(inside, ".")
    return _ABSOLUTE.sub("…/", text)
