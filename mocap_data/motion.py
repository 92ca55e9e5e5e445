"""A motion carried over to a robot: what imitation tracks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mocap_data import rotations
from mocap_data.arrays import Array, read_only
from mocap_data.errors import InputError, stretch
from mocap_data.sanity import require_moderate, require_rate

Bools = NDArray[np.bool_]

# Of a weight that is not 0: beyond these, sums and shares of weights overflow or vanish in 32 bits.
WEIGHTS = (1e-9, 1e9)

# Quaternions further than this from length 1 are not rounding but a mistake upstream.
_UNIT_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class ReferenceMotion:
    """Poses of a free-floating robot over time; arrays are read-only.

    Everything is in MuJoCo's order and conventions; the world is Z up, in metres.

    name: what to call the motion; unique in a file.
    qpos: (T, nq): root position (3) [m], root quaternion (4; w, x, y, z), joints [rad]; nq = 7 +
    joints. rate_hz: frames per second.
    source, licence: of the recording this was made from.
    quality: figures about the motion, such as rms_marker_m, foot_slide_mps, penetration_m,
    limit_violations. contacts: (T, F) when each of the robot's feet stands, in the order of its
    foot_bodies; None when not known. frame_quality: figures frame by frame, each (T,), such as
    marker_rms_m.
    recording: key of the recording it was made from; chunks and mirrors of one share it. "" when
    not known. start_s: where in the recording the first frame lies [s].
    mirror: the mirrors it went through, joined by "+", such as "left_right+front_back"; "" for
    none. split: "train", "validation", or "" when there is no such split.
    weight: how often to sample it, per second of motion and relative to the others.

    Velocities (`qvel`) follow from the poses. So do the bodies' poses, with the robot's model: see
    `retarget.kinematics.body_states`.

    Raises:
      InputError: for wrong shapes, differing frame counts, values that are not finite, quaternions
        not of length 1, or coordinates, a rate or a weight that no motion has.
    """

    name: str
    qpos: Array
    rate_hz: float
    source: str = "unknown"
    licence: str = "unknown"
    quality: Mapping[str, float] = field(default_factory=dict)
    contacts: Bools | None = None
    frame_quality: Mapping[str, Array] = field(default_factory=dict)
    recording: str = ""
    start_s: float = 0.0
    mirror: str = ""
    split: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the way to normalise fields of a frozen dataclass
        where = f"motion {self.name!r}:"
        set_field(self, "qpos", read_only(self.qpos, shape="(T, nq)", what=f"{where} qpos"))
        set_field(
            self,
            "frame_quality",
            {
                str(key): read_only(values, shape="(T,)", what=f"{where} frame_quality {key!r}")
                for key, values in self.frame_quality.items()
            },
        )
        frames = {"qpos": len(self.qpos)}
        frames |= {
            f"frame_quality {key!r}": len(values) for key, values in self.frame_quality.items()
        }
        if self.contacts is not None:
            set_field(self, "contacts", _read_only_bools(self.contacts, f"{where} contacts"))
            frames["contacts"] = len(self.contacts)
        if len(set(frames.values())) > 1:
            listed = ", ".join(f"{key} {count}" for key, count in frames.items())
            raise InputError(f"{where} arrays differ in frames: {listed}")
        if self.qpos.shape[1] < 7:
            raise InputError(
                f"{where} qpos has {self.qpos.shape[1]} columns; a free root makes them 7 + joints"
            )
        require_moderate(self.qpos, f"{where} qpos")
        off = np.abs(np.linalg.norm(self.qpos[:, 3:7], axis=-1) - 1.0)
        if off.max(initial=0.0) > _UNIT_TOLERANCE:
            frame = int(np.argmax(off > _UNIT_TOLERANCE))
            raise InputError(f"{where} root quaternion is not of length 1 at frame {frame}")
        set_field(self, "rate_hz", require_rate(self.rate_hz, where))
        set_field(self, "start_s", float(self.start_s))
        if not math.isfinite(self.start_s):
            raise InputError(f"{where} start_s {self.start_s} is not finite")
        set_field(self, "weight", float(self.weight))
        if self.weight != 0.0 and not WEIGHTS[0] <= self.weight <= WEIGHTS[1]:
            raise InputError(
                f"{where} weight {self.weight} must be 0, or from {WEIGHTS[0]:g} to {WEIGHTS[1]:g}"
            )
        set_field(self, "quality", {str(key): float(value) for key, value in self.quality.items()})

    @property
    def num_frames(self) -> int:
        """T."""
        return int(self.qpos.shape[0])

    @property
    def duration_s(self) -> float:
        """T / rate [s]: every frame lasts one period."""
        return self.num_frames / self.rate_hz

    @cached_property
    def qvel(self) -> Array:
        """(T, nv): root linear velocity (3) [m/s] in the world frame, root angular velocity (3)
        [rad/s] in the root's own frame, joint velocities [rad/s]; nv = 6 + joints. See
        `velocities`."""
        return velocities(self.qpos, self.rate_hz)

    def crop(self, start: int, stop: int | None = None) -> ReferenceMotion:
        """Frames [start, stop), stop by default the end; the `quality` figures stay those of the
        whole.

        Raises:
          InputError: unless 0 <= start < stop <= T.
        """
        part = stretch(f"motion {self.name!r}", start, stop, self.num_frames)
        return dataclasses.replace(
            self,
            qpos=self.qpos[part],
            contacts=None if self.contacts is None else self.contacts[part],
            frame_quality={key: values[part] for key, values in self.frame_quality.items()},
            start_s=self.start_s + start / self.rate_hz,
        )


class BodyStates(NamedTuple):
    """Every body of a robot but the world itself, in the model's order, over time; world frame."""

    position: Array  # (T, nbody, 3) [m] of the bodies' origins
    quaternion: Array  # (T, nbody, 4) body to world
    linear: Array  # (T, nbody, 3) [m/s] of the bodies' origins
    angular: Array  # (T, nbody, 3) [rad/s]


def velocities(qpos: Array, rate_hz: float) -> Array:
    """Velocities (T, 6 + J) of poses (T, 7 + J) by BACKWARD differences; the first row repeats the
    second.

    qvel[t] leads from pose t - 1 to pose t, on the manifold, as MuJoCo's mj_differentiatePos: root
    linear velocity in the world, root angular velocity in the root's frame, joint velocities. So
    integrating qvel[t] from pose t - 1 for one period gives pose t. A single pose is at rest.
    """
    if len(qpos) < 2:
        return np.zeros((len(qpos), qpos.shape[1] - 1))
    step = np.empty((len(qpos) - 1, qpos.shape[1] - 1))
    step[:, :3] = np.diff(qpos[:, :3], axis=0)
    step[:, 3:6] = rotations.difference(qpos[:-1, 3:7], qpos[1:, 3:7])
    step[:, 6:] = np.diff(qpos[:, 7:], axis=0)
    return np.concatenate((step[:1], step)) * rate_hz


def _read_only_bools(values: Any, what: str) -> Bools:
    """`values` as a read-only (T, F) array of truth values.

    Raises:
      InputError: for anything but those, 0 and 1.
    """
    array = np.asarray(values)
    if array.ndim != 2:
        raise InputError(f"{what} has shape {array.shape}, expected (T, F)")
    if array.dtype.kind not in "biu" or not np.isin(array, (0, 1)).all():
        raise InputError(f"{what} must be truth values, or 0 and 1")
    if array.dtype != np.bool_ or array.flags.writeable or array.base is not None:
        array = array.astype(np.bool_, order="C")  # a copy of our own, as `read_only` makes
        array.flags.writeable = False
    return array


def speeds(motion: ReferenceMotion) -> Array:
    """Horizontal speeds (T,) [m/s] of the root, averaged over half a second: a trunk that sways
    does not travel."""
    return smooth_speed(motion.qvel[:, :2], motion.rate_hz)


def smooth_speed(velocity: Array, rate_hz: float) -> Array:
    """Speeds (T,) of horizontal velocities (T, 2), which are averaged over half a second first."""
    width = max(1, round(rate_hz / 2)) | 1
    padded = np.pad(velocity, ((width // 2, width // 2), (0, 0)), mode="edge")
    total = np.cumsum(np.concatenate([np.zeros((1, 2)), padded]), axis=0)
    mean: Array = np.linalg.norm((total[width:] - total[:-width]) / width, axis=-1)
    return mean
