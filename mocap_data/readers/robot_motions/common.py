"""A robot's motion as others store it, and the joint orders of formats that name no joints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array, read_only, require_moderate, require_rate, set_fields
from mocap_data.errors import InputError, unknown
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
    # (T, 6 + J): root linear (world) and angular velocity (root's frame), joints; None: not there
    qvel: Array | None = None
    source: str = "unknown"
    licence: str = "unknown"
    # the file's own conventions in words, by topic
    conventions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"motion {self.name!r}:"
        joint_names = unique(self.joint_names, f"{where} joint")
        joints = len(joint_names)
        shape, what = f"(T, {7 + joints})", f"{where} qpos"
        qpos = np.array(read_only(self.qpos, shape=shape, what=what))
        qpos[:, 3:7] = unit(qpos[:, None, 3:7], f"{where} root quaternion")[:, 0]
        largest = np.abs(qpos[:, 7:]).max(axis=0)
        if largest.max(initial=0.0) > _LARGEST_ANGLE:
            joint, angle = joint_names[int(largest.argmax())], largest.max()
            degrees = "expected radians, these look like degrees"
            raise InputError(f"{where} joint {joint!r} reaches {angle:.4g} rad; {degrees}")
        require_moderate(qpos, what)
        height = float(np.median(np.abs(qpos[:, 2])))
        if height > _HIGHEST_ROOT:
            above = f"{height:.4g} m above the floor"
            raise InputError(f"{where} the root is {above}; expected metres, Z up")
        qpos = read_only(qpos, shape=shape, what=what)
        frames = len(qpos)
        if self.qvel is not None:
            shape = f"({frames}, {6 + joints})"
            set_fields(self, qvel=read_only(self.qvel, shape=shape, what=f"{where} qvel"))
        self._check_bodies(where, frames)
        conventions = {str(key): str(value) for key, value in self.conventions.items()}
        set_fields(
            self,
            joint_names=joint_names,
            qpos=qpos,
            rate_hz=require_rate(self.rate_hz, where),
            conventions=MappingProxyType(conventions),
        )

    def _check_bodies(self, where: str, frames: int) -> None:
        if (self.body_pos is None) != (self.body_quat is None):
            raise InputError(f"{where} body positions and body quaternions belong together")
        if self.body_pos is None or self.body_quat is None:
            return
        count = self.body_pos.shape[1] if np.ndim(self.body_pos) == 3 else 0
        shape, what = f"({frames}, {count}", f"{where} body_"
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


def unique(names: Sequence[str], what: str) -> tuple[str, ...]:
    """`names` as a tuple of texts.

    Raises:
      InputError: for one that appears twice.
    """
    found = tuple(str(name) for name in names)
    repeated = sorted({name for name in found if found.count(name) > 1})
    if repeated:
        raise InputError(f"{what} name {repeated[0]!r} appears more than once")
    return found


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


@dataclass(frozen=True)
class JointLayout:
    """The joint order that a robot's motion files are documented to have."""

    # as `robot=` names it
    robot: str
    joint_names: tuple[str, ...]
    # of the documentation
    source: str
    # (w, x, y, z) of the root in the file when the robot stands upright and faces +X
    upright: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)


def _sided(sides: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{side}{name}" for side in sides for name in names)


def _unitree(robot: str, leg: str, waist: str, arm: str) -> JointLayout:
    """A layout of the LAFAN1 set, its joints given without their ending "_joint"."""
    sides = ("left_", "right_")
    names = (*_sided(sides, leg.split()), *waist.split(), *_sided(sides, arm.split()))
    source = "README of Unitree's LAFAN1 retargeting dataset"
    return JointLayout(robot, tuple(f"{name}_joint" for name in names), source)


_SHOULDER = "shoulder_pitch shoulder_roll shoulder_yaw elbow"
_WRIST = "wrist_roll wrist_pitch wrist_yaw"
_ANKLE = "knee ankle_pitch ankle_roll"
_LAIKAGO_LEG = (
    "hip_motor_2_chassis_joint",
    "upper_leg_2_hip_motor_joint",
    "lower_leg_2_upper_leg_joint",
)
_LAYOUTS = (
    # 29, 27 and 19 joints: their number tells a file of LAFAN1 which robot it is of
    _unitree(
        "unitree_g1",
        f"hip_pitch hip_roll hip_yaw {_ANKLE}",
        "waist_yaw waist_roll waist_pitch",
        f"{_SHOULDER} {_WRIST}",
    ),
    _unitree(
        "unitree_h1_2", f"hip_yaw hip_pitch hip_roll {_ANKLE}", "torso", f"{_SHOULDER} {_WRIST}"
    ),
    _unitree("unitree_h1", "hip_yaw hip_roll hip_pitch knee ankle", "torso", _SHOULDER),
    JointLayout(
        "laikago",
        _sided(("FR_", "FL_", "RR_", "RL_"), _LAIKAGO_LEG),
        "motion_imitation (Peng et al. 2020), joints of laikago_toes.urdf",
        # the URDF's base has Y up and Z forward
        upright=(0.5, 0.5, 0.5, 0.5),
    ),
)
# by what `robot=` calls them
LAYOUTS: Mapping[str, JointLayout] = MappingProxyType({layout.robot: layout for layout in _LAYOUTS})


def layout_of(robot: str) -> JointLayout:
    """The documented layout of `robot`.

    Raises:
      InputError: for an unknown robot.
    """
    if robot not in LAYOUTS:
        raise unknown("documented joint order for robot", robot, LAYOUTS)
    return LAYOUTS[robot]


def names_of_joints(
    path: Any,
    count: int,
    *,
    in_file: Sequence[str] | None,
    joint_names: Sequence[str] | None,
    robot: str | None,
    documented: Sequence[str] = (),
) -> tuple[tuple[str, ...], str]:
    """The names of `count` joint columns, and the robot they are of ("" unless known).

    in_file: the names in the file, None for none. joint_names, robot: the options of the reader.
    documented: robots whose layout a file of this format and number of joints has.

    Raises:
      InputError: where options and file contradict each other or the count; MissingOptions where
        nothing says the names: an order is never guessed.
    """
    columns = f"{path}: {count} joint columns"
    given = None if joint_names is None else unique(joint_names, f"{path}: joint")
    if in_file is not None:
        found = unique(in_file, f"{path}: joint")
        of_robot = None if robot is None else layout_of(robot).joint_names
        for option, names in (("joint_names=", given), (f"robot={robot}", of_robot)):
            if names and tuple(names) != found:
                place, ours, theirs = _first_difference(names, found)
                differs = f"is {theirs!r} in the file, but {ours!r} by {option}"
                raise InputError(f"{path}: joint {place} {differs}")
        if len(found) != count:
            raise InputError(f"{columns}, but {len(found)} joint names in the file")
        return found, robot or ""
    if given is not None:
        if len(given) != count:
            raise InputError(f"{columns}, but joint_names= has {len(given)}")
        return given, robot or ""
    if robot is not None:
        names = layout_of(robot).joint_names
        if len(names) != count:
            raise InputError(f"{columns}, but robot {robot!r} has {len(names)} joints")
        return names, robot
    fitting = [name for name in documented if len(layout_of(name).joint_names) == count]
    if len(fitting) == 1:
        return LAYOUTS[fitting[0]].joint_names, fitting[0]
    known = ", ".join(f"{name} ({len(layout.joint_names)})" for name, layout in LAYOUTS.items())
    give = f"give joint_names=[...], or robot= of: {known}"
    message = f"{path} does not name its {count} joints; {give}"
    raise MissingOptions(message, ("joint_names", "robot"))


def _first_difference(a: Sequence[str], b: Sequence[str]) -> tuple[int, str, str]:
    """The first place where two lists differ, and both entries there ("none" beyond the end)."""
    shorter = min(len(a), len(b))
    place = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    first, second = (names[place] if place < len(names) else "none" for names in (a, b))
    return place, first, second


def to_upright(root_quat: Array, layout: JointLayout) -> Array:
    """Root quaternions (T, 4) in the usual root frame (X forward, Z up), not the layout's own."""
    return rotations.multiply(root_quat, rotations.conjugate(np.array(layout.upright)))
