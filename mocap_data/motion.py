"""ReferenceMotion: poses of a robot over time, the reference of imitation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array, Bools, read_only, require_moderate, require_rate, set_fields
from mocap_data.errors import InputError, frame_range
from mocap_data.ground_profile import GroundProfile

# range of a weight other than 0: beyond it sums of weights overflow or vanish in 32 bits
WEIGHTS = (1e-9, 1e9)
# tolerance of a quaternion's length, for rounding
_UNIT_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class ReferenceMotion:
    """Poses of a free-floating robot over time, in MuJoCo's order; world Z up; read-only arrays.

    Velocities (`qvel`) follow from the poses; so do the bodies' poses, with the robot's model
    (`retarget.kinematics.body_states`).

    Raises:
      InputError: wrong shapes, differing frame counts, values that are not finite, quaternions not
        of length 1, or an impossible coordinate, rate or weight.
    """

    # name, unique in a file
    name: str
    # (T, 7 + J): root position [m], root quaternion (w, x, y, z), joints [rad]
    qpos: Array
    # frames per second
    rate_hz: float
    # source of the recording
    source: str = "unknown"
    # licence of the recording
    licence: str = "unknown"
    # figures of the motion, such as rms_marker_m; see `retarget.quality`
    quality: Mapping[str, float] = field(default_factory=dict)
    # (T, F) when each foot stands, in the order of the robot's foot_bodies; None: unknown
    contacts: Bools | None = None
    # figures of each frame, (T,), such as marker_rms_m
    frame_quality: Mapping[str, Array] = field(default_factory=dict)
    # name of the recording; chunks and mirrors of one share it; "": unknown
    recording: str = ""
    # time of the first frame in the recording [s]
    start_s: float = 0.0
    # the applied mirrors, joined by "+"; "": none
    mirror: str = ""
    # "train", "validation", or "": not split
    split: str = ""
    # sampling weight per second of motion
    weight: float = 1.0
    # the ground under the motion; None: flat, at 0
    ground: GroundProfile | None = None

    def __post_init__(self) -> None:
        motion = f"motion {self.name!r}:"
        qpos = read_only(self.qpos, shape="(T, nq)", label=f"{motion} qpos")
        figures = {
            str(key): read_only(values, shape="(T,)", label=f"{motion} frame_quality {key!r}")
            for key, values in self.frame_quality.items()
        }
        frames = {"qpos": len(qpos)}
        frames |= {f"frame_quality {key!r}": len(values) for key, values in figures.items()}
        if self.contacts is not None:
            set_fields(self, contacts=_read_only_bools(self.contacts, f"{motion} contacts"))
            frames["contacts"] = len(self.contacts)
        if len(set(frames.values())) > 1:
            listed = ", ".join(f"{key} {count}" for key, count in frames.items())
            raise InputError(f"{motion} arrays differ in frames: {listed}")
        if qpos.shape[1] < 7:
            raise InputError(
                f"{motion} qpos has {qpos.shape[1]} columns, expected 7 (free root) + joints"
            )
        require_moderate(qpos, f"{motion} qpos")
        length = np.linalg.norm(qpos[:, 3:7], axis=-1)
        off = np.abs(length - 1.0) > _UNIT_TOLERANCE
        if off.any():
            frame = int(np.argmax(off))
            raise InputError(
                f"{motion} root quaternion qpos[{frame}, 3:7] has length {length[frame]:.4g},"
                " expected 1 (w, x, y, z)"
            )
        if not math.isfinite(self.start_s):
            raise InputError(f"{motion} start_s={self.start_s}: expected a finite number")
        if self.weight != 0.0 and not WEIGHTS[0] <= self.weight <= WEIGHTS[1]:
            low, high = WEIGHTS
            raise InputError(
                f"{motion} weight {self.weight} must be 0, or from {low:g} to {high:g}"
            )
        set_fields(
            self,
            qpos=qpos,
            frame_quality=figures,
            rate_hz=require_rate(self.rate_hz, motion),
            start_s=float(self.start_s),
            weight=float(self.weight),
            quality={str(key): float(value) for key, value in self.quality.items()},
        )

    @property
    def num_frames(self) -> int:
        """T."""
        return int(self.qpos.shape[0])

    @property
    def duration_s(self) -> float:
        """T / rate [s]."""
        return self.num_frames / self.rate_hz

    @cached_property
    def qvel(self) -> Array:
        """Velocities of the poses (T, 6 + J), see `velocities`."""
        return velocities(self.qpos, self.rate_hz)

    def ground_at(self, x: Array, radius: float = 0.0) -> Array:
        """Height of the ground (...) [m] at x (...) [m]; arguments as `GroundProfile.height_at`."""
        return np.zeros(x.shape) if self.ground is None else self.ground.height_at(x, radius)

    def crop(self, start: int, stop: int | None = None) -> ReferenceMotion:
        """Frames [start, stop), stop by default the end; `quality` does not change.

        Raises:
          InputError: unless 0 <= start < stop <= T.
        """
        part = frame_range(f"motion {self.name!r}", start, stop, self.num_frames)
        return dataclasses.replace(
            self,
            qpos=self.qpos[part],
            contacts=None if self.contacts is None else self.contacts[part],
            frame_quality={key: values[part] for key, values in self.frame_quality.items()},
            start_s=self.start_s + start / self.rate_hz,
        )


class BodyStates(NamedTuple):
    """Every body of a robot but the world, in the model's order, over time; world frame."""

    # (T, B, 3) [m] of the bodies' origins
    position: Array
    # (T, B, 4) body to world
    quaternion: Array
    # (T, B, 3) [m/s] of the bodies' origins
    linear: Array
    # (T, B, 3) [rad/s]
    angular: Array


def velocities(qpos: Array, rate_hz: float) -> Array:
    """Velocities (T, 6 + J) of poses (T, 7 + J) by BACKWARD differences; the first repeats.

    As MuJoCo's mj_differentiatePos from pose t - 1 to pose t: root linear velocity in the world
    [m/s], root angular velocity in the root's frame [rad/s], joints [rad/s]. Integrating qvel[t]
    from pose t - 1 for one period gives pose t. A single pose is at rest.
    """
    if len(qpos) < 2:
        return np.zeros((len(qpos), qpos.shape[1] - 1))
    step = np.empty((len(qpos) - 1, qpos.shape[1] - 1))
    step[:, :3] = np.diff(qpos[:, :3], axis=0)
    step[:, 3:6] = rotations.difference(qpos[:-1, 3:7], qpos[1:, 3:7])
    step[:, 6:] = np.diff(qpos[:, 7:], axis=0)
    return np.concatenate((step[:1], step)) * rate_hz


def _read_only_bools(values: Any, label: str) -> Bools:
    """`values` as a read-only (T, F) array of truth values."""
    array = np.asarray(values)
    if array.ndim != 2:
        raise InputError(f"{label} has shape {array.shape}, expected (T, F)")
    if array.dtype.kind not in "biu" or not np.isin(array, (0, 1)).all():
        raise InputError(f"{label} must be truth values, or 0 and 1")
    if array.dtype != np.bool_ or array.flags.writeable or array.base is not None:
        array = array.astype(np.bool_, order="C")
        array.flags.writeable = False
    return array


def mean_speed(motion: ReferenceMotion) -> float:
    """Mean speed [m/s] along the root's horizontal path."""
    path = np.linalg.norm(np.diff(motion.qpos[:, :2], axis=0), axis=1).sum()
    return float(path * motion.rate_hz / max(motion.num_frames - 1, 1))


def speeds(motion: ReferenceMotion) -> Array:
    """Horizontal speeds (T,) [m/s] of the root, see `smooth_speed`."""
    return smooth_speed(motion.qvel[:, :2], motion.rate_hz)


def smooth_speed(velocity: Array, rate_hz: float) -> Array:
    """Speeds (T,) of horizontal velocities (T, 2), averaged over half a second."""
    return np.asarray(np.linalg.norm(smoothed(velocity, rate_hz), axis=-1))


def smoothed(values: Array, rate_hz: float) -> Array:
    """`values` (T, ...) averaged over half a second."""
    from scipy.ndimage import uniform_filter1d  # slow to import

    width = max(1, round(rate_hz / 2)) | 1
    return np.asarray(uniform_filter1d(values, width, axis=0, mode="nearest"))
