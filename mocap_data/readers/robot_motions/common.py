"""A robot's motion as others store it."""

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
# [m] a root this high, most of the time, is in centimetres
_HIGHEST_ROOT = 20.0
# files print quaternions with five digits, and solvers leave them a little off
_UNIT_TOLERANCE = 0.02


@dataclass(frozen=True, eq=False)
class RobotMotion:
    """A robot's motion made by others, in one convention whatever the file's; read-only arrays.

    World Z up, metres, radians; quaternions (w, x, y, z). T frames, J joints, B bodies.

    Raises:
      InputError: for wrong shapes, values that are not finite, quaternions not of length 1, angles
        that must be degrees, heights that cannot be metres, repeated names, or a rate or positions
        that no motion has.
    """

    name: str
    # (T, 7 + J): root position, root quaternion, joints in the order of joint_names
    qpos: Array
    # frames per second
    rate_hz: float
    # J unique names, by the file or the documented layout
    joint_names: tuple[str, ...]
    # as the file's maker calls it; "": not known
    robot: str = ""
    # B unique names; None: no body poses, or unnamed
    body_names: tuple[str, ...] | None = None
    # (T, B, 3) world; None: not in the file
    body_pos: Array | None = None
    # (T, B, 4) body to world; None: not in the file
    body_quat: Array | None = None
    source: str = "unknown"
    licence: str = "unknown"
    # what the file does not say and its reader assumed: "rate_hz", "joint_names", "quaternion"
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"motion {self.name!r}:"
        joint_names = unique(self.joint_names, f"{where} joint")
        shape = f"(T, {7 + len(joint_names)})"
        what = f"{where} qpos"
        qpos = np.array(read_only(self.qpos, shape=shape, what=what))
        qpos[:, 3:7] = unit(qpos[:, None, 3:7], f"{where} root quaternion")[:, 0]
        largest = np.abs(qpos[:, 7:]).max(axis=0)
        if largest.max(initial=0.0) > _LARGEST_ANGLE:
            joint = joint_names[int(largest.argmax())]
            angle = largest.max()
            degrees = "expected radians, these look like degrees"
            raise InputError(f"{where} joint {joint!r} reaches {angle:.4g} rad; {degrees}")
        require_moderate(qpos, what)
        height = float(np.median(np.abs(qpos[:, 2])))
        if height > _HIGHEST_ROOT:
            above = f"{height:.4g} m above the floor"
            raise InputError(f"{where} the root is {above}; expected metres, Z up")
        self._check_bodies(where, len(qpos))
        set_fields(
            self,
            joint_names=joint_names,
            qpos=read_only(qpos, shape=shape, what=what),
            rate_hz=require_rate(self.rate_hz, where),
        )

    def _check_bodies(self, where: str, frames: int) -> None:
        if (self.body_pos is None) != (self.body_quat is None):
            raise InputError(f"{where} body positions and body quaternions belong together")
        if self.body_pos is None or self.body_quat is None:
            return
        count = self.body_pos.shape[1] if np.ndim(self.body_pos) == 3 else 0
        shape = f"({frames}, {count}"
        what = f"{where} body_"
        position = read_only(self.body_pos, shape=f"{shape}, 3)", what=f"{what}pos")
        require_moderate(position, f"{what}pos")
        quaternion = read_only(self.body_quat, shape=f"{shape}, 4)", what=f"{what}quat")
        quaternion = unit(quaternion, f"{what}quat")
        quaternion = read_only(quaternion, shape="(T, B, 4)", what="body_quat")
        set_fields(self, body_pos=position, body_quat=quaternion)
        if self.body_names is not None:
            names = unique(self.body_names, f"{where} body")
            set_fields(self, body_names=names)
            if len(names) != count:
                raise InputError(f"{where} {count} body poses, but {len(names)} body names")

    @property
    def num_frames(self) -> int:
        """T."""
        return int(self.qpos.shape[0])

    @property
    def duration_s(self) -> float:
        """T / rate [s]."""
        return self.num_frames / self.rate_hz


def unit(quaternions: Array, what: str) -> Array:
    """Quaternions (T, B, 4) scaled to length 1.

    Raises:
      InputError: with the frame, for what is no rotation.
    """
    with np.errstate(over="ignore"):
        length = np.linalg.norm(quaternions, axis=-1)
    off = np.abs(length - 1.0).max(axis=1, initial=0.0)
    if off.max(initial=0.0) > _UNIT_TOLERANCE:
        frame = int(np.argmax(off > _UNIT_TOLERANCE))
        worst = float(length[frame][np.argmax(np.abs(length[frame] - 1.0))])
        expected = "expected 1 (is it where the format has it?)"
        raise InputError(f"{what} has length {worst:.4g} at frame {frame}, {expected}")
    return quaternions / length[..., None]


def names_of_joints(
    path: Any,
    count: int,
    in_file: Sequence[str] | None,
    joint_names: Sequence[str] | None,
    documented: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """The names of `count` joint columns.

    in_file: the names in the file, None for none. joint_names: the reader's option. documented: of
    a robot whose files of this format name no joints.

    Raises:
      InputError: where option and file contradict each other or the count; MissingOptions where
        nothing says the names: an order is never guessed.
    """
    from_option = None if joint_names is None else unique(joint_names, f"{path}: joint")
    from_file = None if in_file is None else unique(in_file, f"{path}: joint")
    if from_option and from_file and from_option != from_file:
        pairs = enumerate(zip_longest(from_option, from_file, fillvalue="none"))
        place, (ours, theirs) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        differs = f"is {theirs!r} in the file, but {ours!r} by joint_names="
        raise InputError(f"{path}: joint {place} {differs}")
    names = from_file or from_option or (None if documented is None else tuple(documented))
    if names is None:
        message = f"{path} does not name its {count} joints; give joint_names=[...]"
        raise MissingOptions(message, ("joint_names",))
    if len(names) != count:
        raise InputError(f"{path}: {count} joint columns, but {len(names)} joint names")
    return names
