"""A robot's motion in another project's format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from mocap_data.arrays import Array, read_only, require_moderate, require_rate, set_fields, unique
from mocap_data.errors import InputError
from mocap_data.readers.common import MissingOptions

# [rad] two full turns; joint angles beyond this are degrees
_LARGEST_ANGLE = 4.0 * math.pi
# [m] a higher median root is in centimetres
_HIGHEST_ROOT = 20.0
# files round quaternions to five digits, and solvers do not normalize them exactly
_UNIT_TOLERANCE = 0.02


@dataclass(frozen=True, eq=False)
class RobotMotion:
    """A robot's motion of another project, in our conventions; read-only arrays.

    World Z up, metres, radians; quaternions (w, x, y, z). T frames, J joints, B bodies.

    Raises:
      InputError: wrong shapes, values that are not finite, quaternions not of length 1, angles in
        degrees, heights that are not metres, repeated names, or an implausible rate or position.
    """

    name: str
    # (T, 7 + J): root position, root quaternion, joints in the order of joint_names
    qpos: Array
    # frames per second
    rate_hz: float
    # J unique names, of the file or the documented layout
    joint_names: tuple[str, ...]
    # name of the robot in the file; "": unknown
    robot: str = ""
    # B unique names; None: no body poses, or unnamed
    body_names: tuple[str, ...] | None = None
    # (T, B, 3) world; None: not in the file
    body_pos: Array | None = None
    # (T, B, 4) body to world; None: not in the file
    body_quat: Array | None = None
    source: str = "unknown"
    licence: str = "unknown"
    # values that the file lacks and its reader assumed: "rate_hz", "joint_names", "quaternion"
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        label = f"motion {self.name!r}:"
        joint_names = unique(self.joint_names, f"{label} joint")
        shape = f"(T, {7 + len(joint_names)})"
        qpos = np.array(read_only(self.qpos, shape=shape, label=f"{label} qpos"))
        qpos[:, 3:7] = unit(qpos[:, None, 3:7], f"{label} root quaternion")[:, 0]
        largest = np.abs(qpos[:, 7:]).max(axis=0)
        if largest.max(initial=0.0) > _LARGEST_ANGLE:
            joint = joint_names[int(largest.argmax())]
            degrees = "expected radians; are these degrees?"
            raise InputError(f"{label} joint {joint!r} reaches {largest.max():.4g} rad, {degrees}")
        require_moderate(qpos, f"{label} qpos")
        height = float(np.median(np.abs(qpos[:, 2])))
        if height > _HIGHEST_ROOT:
            raise InputError(f"{label} the root's height is {height:.4g}, expected metres, Z up")
        self._check_bodies(label, len(qpos))
        set_fields(
            self,
            joint_names=joint_names,
            qpos=read_only(qpos, shape=shape, label=f"{label} qpos"),
            rate_hz=require_rate(self.rate_hz, label),
        )

    def _check_bodies(self, label: str, frames: int) -> None:
        if self.body_pos is None or self.body_quat is None:
            return
        count = self.body_pos.shape[1] if np.ndim(self.body_pos) == 3 else 0
        position = read_only(
            self.body_pos, shape=f"({frames}, {count}, 3)", label=f"{label} body_pos"
        )
        require_moderate(position, f"{label} body_pos")
        shape = f"({frames}, {count}, 4)"
        quaternion = read_only(self.body_quat, shape=shape, label=f"{label} body_quat")
        quaternion = unit(quaternion, f"{label} body_quat")
        quaternion = read_only(quaternion, shape=shape, label="body_quat")
        set_fields(self, body_pos=position, body_quat=quaternion)
        if self.body_names is not None:
            names = unique(self.body_names, f"{label} body")
            set_fields(self, body_names=names)
            if len(names) != count:
                raise InputError(f"{label} {len(names)} body names, expected {count} (body poses)")

    @property
    def num_frames(self) -> int:
        """T."""
        return int(self.qpos.shape[0])

    @property
    def duration_s(self) -> float:
        """T / rate [s]."""
        return self.num_frames / self.rate_hz


def unit(quaternions: Array, label: str) -> Array:
    """Quaternions (T, B, 4) scaled to length 1.

    Raises:
      InputError: with the frame, another length.
    """
    with np.errstate(over="ignore"):
        length = np.linalg.norm(quaternions, axis=-1)
    off = np.abs(length - 1.0).max(axis=1, initial=0.0)
    if off.max(initial=0.0) > _UNIT_TOLERANCE:
        frame = int(np.argmax(off > _UNIT_TOLERANCE))
        worst = float(length[frame][np.argmax(np.abs(length[frame] - 1.0))])
        expected = "expected 1 (other columns?)"
        raise InputError(f"{label} has length {worst:.4g} at frame {frame}, {expected}")
    return quaternions / length[..., None]


def joint_names_of(
    path: Any,
    count: int,
    in_file: Sequence[str] | None,
    joint_names: Sequence[str] | None,
    documented: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """The names of `count` joint columns: the file's, the option's, or the documented ones.

    in_file: the names in the file, None for none. joint_names: the reader's option. documented: of
    a robot whose files of this format name no joints.

    Raises:
      InputError: where option and file contradict each other or the count; MissingOptions without
        names: the order is never guessed.
    """
    from_option = None if joint_names is None else unique(joint_names, f"{path}: joint")
    from_file = None if in_file is None else unique(in_file, f"{path}: joint")
    if from_option and from_file and from_option != from_file:
        pairs = enumerate(zip_longest(from_option, from_file, fillvalue="none"))
        i, (option, name) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        raise InputError(f"{path}: joint {i} is {name!r}, expected {option!r} (joint_names=)")
    names = from_file or from_option or (None if documented is None else tuple(documented))
    if names is None:
        message = f"{path} does not name its {count} joints; set joint_names=[...]"
        raise MissingOptions(message, ("joint_names",))
    if len(names) != count:
        raise InputError(f"{path}: {len(names)} joint names, expected {count} (columns)")
    return names
