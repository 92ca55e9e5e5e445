"""The motion of a robot as others store it, and the joint orders of formats that name no joints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array, read_only
from mocap_data.errors import InputError, unknown
from mocap_data.readers.common import MissingOptions
from mocap_data.sanity import require_moderate, require_rate

# Joint angles beyond this are degrees, or not angles: two full turns.
_LARGEST_ANGLE = 4.0 * math.pi  # [rad]
# Robots of this world stay near its floor: a root this high, most of the time, is in centimetres.
_HIGHEST_ROOT = 20.0  # [m]
# Files print quaternions with five digits and solvers leave them a little off; more than this is no
# quaternion.
_UNIT_TOLERANCE = 0.02


@dataclass(frozen=True, eq=False)
class RobotMotion:
    """A robot's motion made by someone else, in one convention whatever the file's was; arrays are
    read-only.

    World right-handed, Z up, metres, radians; quaternions (w, x, y, z), of length 1. T frames, J
    joints, B bodies.

    name: of the clip (the file's name without suffix).
    qpos: (T, 7 + J): root position, root quaternion, joints in the order of joint_names.
    rate_hz: frames per second.
    joint_names: J unique names, as the file or the documented layout calls them.
    robot: what the file's maker calls the robot; "" where nobody said.
    body_names: B unique names of the bodies, None where the file has no body poses or does not name
    them. body_pos, body_quat: body poses in the world, None where the file has none.
    qvel: (T, 6 + J): root linear velocity (world), root angular velocity (root's frame), joints;
    None where the file
      has none.
    source, licence: of the motion.
    conventions: what the file's own conventions were and how they were turned into these, in words
    by topic.

    Raises:
      InputError: for wrong shapes, values that are not finite, quaternions not of length 1, angles
        that must be degrees, heights that cannot be metres, repeated names, or a rate or positions
        that no motion has.
    """

    name: str
    qpos: Array
    rate_hz: float
    joint_names: tuple[str, ...]
    robot: str = ""
    body_names: tuple[str, ...] | None = None
    body_pos: Array | None = None
    body_quat: Array | None = None
    qvel: Array | None = None
    source: str = "unknown"
    licence: str = "unknown"
    conventions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the way to normalise fields of a frozen dataclass
        where = f"motion {self.name!r}:"
        set_field(self, "joint_names", unique(self.joint_names, f"{where} joint"))
        joints = len(self.joint_names)
        qpos = np.array(read_only(self.qpos, shape=f"(T, {7 + joints})", what=f"{where} qpos"))
        qpos[:, 3:7] = unit(qpos[:, None, 3:7], f"{where} root quaternion")[:, 0]
        largest = np.abs(qpos[:, 7:]).max(initial=0.0)
        if largest > _LARGEST_ANGLE:
            joint = self.joint_names[int(np.abs(qpos[:, 7:]).max(axis=0).argmax())]
            raise InputError(
                f"{where} joint {joint!r} reaches {largest:.4g} rad; expected radians, these look like degrees"
            )
        require_moderate(qpos, f"{where} qpos")
        height = float(np.median(np.abs(qpos[:, 2])))
        if height > _HIGHEST_ROOT:
            raise InputError(
                f"{where} the root is {height:.4g} m above the floor; expected metres, Z up"
            )
        set_field(self, "qpos", read_only(qpos, shape=f"(T, {7 + joints})", what=f"{where} qpos"))
        frames = len(qpos)
        if self.qvel is not None:
            set_field(
                self,
                "qvel",
                read_only(self.qvel, shape=f"({frames}, {6 + joints})", what=f"{where} qvel"),
            )
        if (self.body_pos is None) != (self.body_quat is None):
            raise InputError(f"{where} body positions and body quaternions belong together")
        if self.body_pos is not None and self.body_quat is not None:
            count = self.body_pos.shape[1] if np.ndim(self.body_pos) == 3 else 0
            position = read_only(
                self.body_pos, shape=f"({frames}, {count}, 3)", what=f"{where} body_pos"
            )
            require_moderate(position, f"{where} body_pos")
            quaternion = read_only(
                self.body_quat, shape=f"({frames}, {count}, 4)", what=f"{where} body_quat"
            )
            set_field(self, "body_pos", position)
            quaternion = unit(quaternion, f"{where} body_quat")
            set_field(self, "body_quat", read_only(quaternion, shape="(T, B, 4)", what="body_quat"))
            if self.body_names is not None:
                set_field(self, "body_names", unique(self.body_names, f"{where} body"))
                if len(self.body_names) != count:
                    raise InputError(
                        f"{where} {count} body poses, but {len(self.body_names)} body names"
                    )
        set_field(self, "rate_hz", require_rate(self.rate_hz, where))
        set_field(
            self,
            "conventions",
            MappingProxyType({str(k): str(v) for k, v in self.conventions.items()}),
        )

    @property
    def num_frames(self) -> int:
        """T."""
        return int(self.qpos.shape[0])

    @property
    def duration_s(self) -> float:
        """T / rate [s]: every frame lasts one period."""
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
        raise InputError(
            f"{what} has length {worst:.4g} at frame {frame}, expected 1 (is it where the format has it?)"
        )
    return quaternions / length[..., None]


@dataclass(frozen=True)
class Layout:
    """The joint order that a robot's motion files are documented to have.

    robot: as `robot=` names it. source: who documents it.
    upright: (w, x, y, z) the root's quaternion in the file when the robot stands upright and faces
    +X; identity for
        the usual root frame, X forward and Z up.
    """

    robot: str
    joint_names: tuple[str, ...]
    source: str
    upright: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)


def _sided(sides: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{side}{name}" for side in sides for name in names)


_LEFT_RIGHT = ("left_", "right_")
_LAFAN1 = "README of Unitree's LAFAN1 retargeting dataset"
_G1_LEG = (
    "hip_pitch_joint",
    "hip_roll_joint",
    "hip_yaw_joint",
    "knee_joint",
    "ankle_pitch_joint",
    "ankle_roll_joint",
)
_H1_2_LEG = (
    "hip_yaw_joint",
    "hip_pitch_joint",
    "hip_roll_joint",
    "knee_joint",
    "ankle_pitch_joint",
    "ankle_roll_joint",
)
_H1_LEG = ("hip_yaw_joint", "hip_roll_joint", "hip_pitch_joint", "knee_joint", "ankle_joint")
_SHOULDER = ("shoulder_pitch_joint", "shoulder_roll_joint", "shoulder_yaw_joint", "elbow_joint")
_WRIST = ("wrist_roll_joint", "wrist_pitch_joint", "wrist_yaw_joint")
_LAIKAGO_LEG = (
    "hip_motor_2_chassis_joint",
    "upper_leg_2_hip_motor_joint",
    "lower_leg_2_upper_leg_joint",
)

# By what `robot=` calls them. The three of LAFAN1 differ in their number of joints, so a file says
# which it is.
LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        layout.robot: layout
        for layout in (
            Layout(
                "unitree_g1",  # 29 joints
                (
                    *_sided(_LEFT_RIGHT, _G1_LEG),
                    *("waist_yaw_joint", "waist_roll_joint", "waist_pitch_joint"),
                    *_sided(_LEFT_RIGHT, (*_SHOULDER, *_WRIST)),
                ),
                _LAFAN1,
            ),
            Layout(
                "unitree_h1_2",  # 27 joints
                (
                    *_sided(_LEFT_RIGHT, _H1_2_LEG),
                    "torso_joint",
                    *_sided(_LEFT_RIGHT, (*_SHOULDER, *_WRIST)),
                ),
                _LAFAN1,
            ),
            Layout(
                "unitree_h1",  # 19 joints
                (*_sided(_LEFT_RIGHT, _H1_LEG), "torso_joint", *_sided(_LEFT_RIGHT, _SHOULDER)),
                _LAFAN1,
            ),
            Layout(
                "laikago",  # 12 joints
                _sided(("FR_", "FL_", "RR_", "RL_"), _LAIKAGO_LEG),
                "motion_imitation (Peng et al. 2020), joints of laikago_toes.urdf",
                upright=(0.5, 0.5, 0.5, 0.5),  # the URDF's base has Y up and Z forward
            ),
        )
    }
)


def layout_of(robot: str) -> Layout:
    """The documented layout of `robot`.

    Raises:
      InputError: naming those there are.
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

    in_file: the names that the file gives, None for none. joint_names, robot: the options of the
    reader. documented: robots whose layout a file of this format and number of joints is documented
    to have.

    Raises:
      InputError: where options and file contradict each other or the count, and MissingOptions
        where nothing says the names: an order is never guessed.
    """
    given = None if joint_names is None else unique(joint_names, f"{path}: joint")
    if in_file is not None:
        found = unique(in_file, f"{path}: joint")
        for option, names in (
            ("joint_names=", given),
            (f"robot={robot}", robot and layout_of(robot).joint_names),
        ):
            if names and tuple(names) != found:
                place = next(
                    (i for i, (a, b) in enumerate(zip(names, found)) if a != b),
                    min(len(names), len(found)),
                )
                ours, theirs = (
                    (names[place] if place < len(names) else "none"),
                    (found[place] if place < len(found) else "none"),
                )
                raise InputError(
                    f"{path}: joint {place} is {theirs!r} in the file, but {ours!r} by {option}"
                )
        if len(found) != count:
            raise InputError(
                f"{path}: {count} joint columns, but {len(found)} joint names in the file"
            )
        return found, robot or ""
    if given is not None:
        if len(given) != count:
            raise InputError(f"{path}: {count} joint columns, but joint_names= has {len(given)}")
        return given, robot or ""
    if robot is not None:
        layout = layout_of(robot)
        if len(layout.joint_names) != count:
            raise InputError(
                f"{path}: {count} joint columns, but robot {robot!r} has {len(layout.joint_names)} joints"
            )
        return layout.joint_names, robot
    fitting = [name for name in documented if len(layout_of(name).joint_names) == count]
    if len(fitting) == 1:
        return LAYOUTS[fitting[0]].joint_names, fitting[0]
    known = ", ".join(f"{name} ({len(layout.joint_names)})" for name, layout in LAYOUTS.items())
    raise MissingOptions(
        f"{path} does not name its {count} joints; give joint_names=[...], or robot= of: {known}",
        ("joint_names", "robot"),
    )


def to_upright(root_quat: Array, layout: Layout) -> Array:
    """Root quaternions (T, 4) of a file in the usual root frame (X forward, Z up) instead of the
    layout's own."""
    return rotations.multiply(root_quat, rotations.conjugate(np.array(layout.upright)))
