"""The contract of a bundle: the description of its policy and its robot in bundle.json."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mocap_data.errors import InputError
from mocap_data.files import json_text
from npmp.core import ranges
from npmp.deploy.robot import FloatArray

GRAVITY = 9.81  # [m/s2] per g, as `npmp.envs.state` has it
# recurrent inputs of the graph; the outputs are NAME_next
MEMORY = ("z", "h_high", "c_high", "h_low", "c_low")
CLOCK = ["clock_sin", "clock_cos"]  # as `npmp.tasks.inputs` has them
# lowest and highest height of the ground in training [m], as `npmp.tasks.inputs` has it
HEIGHT_RANGE = (-0.5, 0.5)
# ground_FOOT_X_Y_m: X ahead and Y left of a foot [m]
HEIGHT_NAME = re.compile(r"ground_.+_([+-]\d+\.\d+)_([+-]\d+\.\d+)_m")
# Bounds for every robot [D]
# lowest control rate and highest physics rate [Hz]
RATES_HZ = (10.0, 1e5)
# largest torque limit of a joint [Nm]
MAX_TORQUE = 1000.0
# largest velocity limit of a joint [rad/s]
MAX_VELOCITY = 100.0
# largest absolute angle of a joint [rad]
MAX_ANGLE = 4.0 * math.pi
# position error at which kp reaches the torque limit [rad]; shipped robots: 0.2 to 2.2
SATURATION_RAD = (0.005, 50.0)
# kd / kp, a drive's time constant [s]; shipped robots: up to 0.064
MAX_DAMPING_S = 1.0
# largest absolute velocity command [m/s, rad/s]
MAX_SPEED = 10.0
# largest absolute value of other commands, in their units
MAX_COMMAND = 100.0
# largest absolute number of a camera, in its units
MAX_CAMERA = 1000.0
# units by the last part of a command's name
UNITS = {"mps": "m/s", "rps": "rad/s", "m": "m", "rad": "rad", "s": "s", "height": "1"}
# shapes of the numbers of a camera, as `npmp.envs.camera.CameraConfig` has them
CAMERA: dict[str, tuple[int, ...]] = {
    "size": (2,),
    "range_m": (2,),
    "fov_deg": (2,),
    "place_m": (3,),
    "pitch_deg": (),
    "rate_hz": (),
    "delay_s": (),
}


def observation_layout(joints: int) -> list[tuple[str, int, str, str]]:
    """Name, width, unit and frame of the parts of `obs` in order, as
    `npmp.envs.features.proprioception` has them."""
    return [
        ("joint_pos_minus_home", joints, "rad", "joint"),
        ("setpoint_minus_home", joints, "rad", "joint"),
        ("gyro", 3, "rad/s", "root"),
        ("accelerometer_g", 3, "g", "root"),
        ("up", 3, "1", "root"),
    ]


HOLDS = {
    "zero_order": "the target of a control step is held until the next one",
    "first_order": "within a control step of length T the drive's setpoint goes linearly from the "
    "last target to the new one",
}
ACCELEROMETERS = {
    "imu": "R(t)^T (v(t) - v(t - T)) / T + 9.81 up, v the velocity of imu_position in the world: "
    "the mean over the last control step of what an IMU there measures",
    "root": "R(t)^T (p(t) - 2 p(t - T) + p(t - 2 T)) / T^2 + 9.81 up, p the position of the root's "
    "origin in the world",
}


def conventions(hold: str, accelerometer: str) -> dict[str, str]:
    """The definitions of a bundle's numbers. T is the control period, R(t) the rotation from the
    root frame to the world."""
    return {
        "units": "home and range rad; velocity_limit rad/s; torque_limit and joint_friction Nm; "
        "kp Nm/rad; kd and joint_damping Nm s/rad; armature kg m2; anchor and imu_position m",
        "root frame": "X forward, Y left, Z up, at the origin of the root body; right-handed",
        "heading frame": "at the root's origin, Z vertical, X along the root's X axis projected on "
        "the ground, Y left",
        "joints": "an angle turns `body` against `parent` about `axis` by the right-hand rule; "
        "axis and anchor are given in the root frame in the zero pose, all angles 0",
        "action": "target = home + action [rad]; neither is clipped or filtered in the graph",
        "setpoint_minus_home": "the policy's own action of the step before, unclipped, whatever "
        "the drives made of it; 0 at an episode's first step",
        "hold": HOLDS[hold],
        "drive": "torque = kp (setpoint - angle) - kd velocity, within torque_limit; "
        "joint_damping, joint_friction and armature are the model's own, in addition to kd",
        "gyro": "angular velocity in the root frame [rad/s], mean over the last control step: "
        "log(R(t - T)^T R(t)) / T; positive about an axis by the right-hand rule",
        "accelerometer_g": f"specific force in the root frame [m/s2] over 9.81: "
        f"{ACCELEROMETERS[accelerometer]}; (0, 0, 1) at rest and upright",
        "up": "the world's vertical in the root frame: R(t)^T (0, 0, 1)",
        "command": "in the units of `commands`, then `extra_inputs`; not normalized, not clipped",
        "memory": "0 at an episode's first step; NAME_next of a step is NAME of the next",
        "golden.npz": "T control steps in a row: joint_pos (T, nu) rad, gyro (T, 3) rad/s, "
        "accelerometer (T, 3) m/s2, up (T, 3), command (T, c), reset (T,) true at an episode's "
        "first step, target (T, nu) rad that the policy answered, memory (T, m) before each step, "
        "its parts in the order of `memory`; readings and first memory of the last episodes are "
        "random",
    }


@dataclass(frozen=True)
class JointSpec:
    """A joint of the robot model that the policy was trained with.

    Raises:
      ValueError: for values out of range.
    """

    name: str
    # the body that the joint moves
    body: str
    # parent of this body
    parent: str
    # (3,) axis in the root frame in the zero pose
    axis: list[float]
    # (3,) a point on the axis, in the root frame in the zero pose [m]
    anchor: list[float]
    # [rad]
    home: float
    # [low, high] [rad]
    range: list[float]
    # stiffness of the drive in training [Nm/rad]
    kp: float
    # damping of the drive in training [Nm s/rad]
    kd: float
    # [Nm]
    torque_limit: float
    # limit of the drive; not enforced in training [rad/s]
    velocity_limit: float
    # damping of the model, in addition to kd [Nm s/rad]
    joint_damping: float
    # dry friction of the model [Nm]
    joint_friction: float
    # rotor inertia of the model at the joint [kg m2]
    armature: float

    def __post_init__(self) -> None:
        if len(self.range) != 2 or not self.range[0] <= self.home <= self.range[1]:
            raise ValueError(
                f"{self.name}: home={self.home:g}: must be within its range {self.range} [rad]"
            )
        if not (self.range[0] >= -MAX_ANGLE and self.range[1] <= MAX_ANGLE):
            raise ValueError(
                f"{self.name}: range={self.range}: must be within +-{MAX_ANGLE:.4g} [rad]"
            )

        limits = {"torque_limit": MAX_TORQUE, "velocity_limit": MAX_VELOCITY}
        for name, high in limits.items():
            if not 0.0 < (value := getattr(self, name)) <= high:
                raise ValueError(
                    f"{self.name}: {name}={value:g}: must be above 0 and at most {high:g}"
                )

        max_kp, min_kp = (self.torque_limit / error for error in SATURATION_RAD)
        for name, low, high in (("kp", min_kp, max_kp), ("kd", 0.0, MAX_DAMPING_S * self.kp)):
            if not low <= (value := getattr(self, name)) <= high:
                raise ValueError(
                    f"{self.name}: {name}={value:g}: must be from {low:g} to {high:g} for a torque "
                    f"limit of {self.torque_limit:g} Nm"
                )


@dataclass(frozen=True)
class Command:
    """One component of the policy's command.

    Raises:
      ValueError: for a wrong unit or range.
    """

    name: str
    unit: str
    # range [low, high] in training
    range: list[float]
    # frame and sign
    meaning: str = ""

    def __post_init__(self) -> None:
        if len(self.range) != 2 or not self.range[0] <= self.range[1]:
            raise ValueError(f"{self.name}: range={self.range}: expected [low, high]")
        if (unit := UNITS.get(self.name.rpartition("_")[2], "")) != self.unit:
            raise ValueError(f"{self.name}: unit={self.unit!r:.20}: must be {unit!r}")

        low, high = self.range
        limit = MAX_SPEED if self.is_velocity else MAX_COMMAND
        if not (-limit <= low and high <= limit):
            raise ValueError(f"{self.name}: range={self.range}: must be within +-{limit:g}")

    @property
    def is_velocity(self) -> bool:
        """Whether it is a velocity, which is ramped and 0 at rest. An unknown unit counts as
        one."""
        return self.unit.endswith("/s") or not self.unit


@dataclass(frozen=True)
class BundleContract:
    """All of bundle.json except schema and version.

    Raises:
      ValueError: for invalid values.
    """

    robot: str
    model_sha256: str
    # joints in the order of all arrays
    joints: list[JointSpec]
    control_rate_hz: float
    physics_rate_hz: float
    # interpolation of targets between control steps, one of HOLDS
    hold: str
    # definition of the accelerometer, one of ACCELEROMETERS
    accelerometer: str
    # (3,) the IMU's position in the root frame [m]
    imu_position: list[float]
    # inputs of the policy in order, each [name, width, unit, frame]
    observation: list[tuple[str, int, str, str]]
    commands: list[Command]
    # widths of the recurrent state by name
    memory: dict[str, int]
    task: str
    module_sha256: str
    policy_sha256: str
    # licences of the recordings that the module was trained on
    licence: list[str]
    # file name of these recordings
    data: str
    opset: int
    # conditions of the recording in golden.npz
    golden: dict[str, Any]
    versions: dict[str, str]
    conventions: dict[str, str]
    # inputs after the command:
    # - sine and cosine of a clock of period clock_s, which starts with the episode
    # - ground_FOOT_X_Y_m: height of the ground X ahead and Y left of a foot in the heading frame.
    #   It is relative to the floor under a robot in its home pose [m].
    # - depth_ROW_COLUMN_m: depth along the optical axis of `camera`, from the top left [m].
    #   The delay is that of `camera`.
    extra_inputs: list[str] = field(default_factory=list)
    clock_s: float | None = None
    # these heights on level ground for a robot that walks as in training [m]
    level_m: float = 0.0
    # size, frame and noise: `npmp.envs.camera.CameraConfig`
    camera: dict[str, Any] | None = None
    # depths of level ground from the home pose [m]
    level_depths_m: list[float] = field(default_factory=list)
    # sha256 of the files beside bundle.json
    files: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = self.joint_names
        if not names or len(set(names)) < len(names):
            raise ValueError(f"joints={names}: expected one or more, with different names")
        ranges.one_of(self, "hold", HOLDS)
        ranges.one_of(self, "accelerometer", ACCELEROMETERS)
        slowest, fastest = RATES_HZ
        if not slowest <= self.control_rate_hz <= self.physics_rate_hz <= fastest:
            raise ValueError(
                f"{slowest:g} <= control_rate_hz <= physics_rate_hz <= {fastest:g} must hold"
            )
        if self.observation != observation_layout(len(names)) or set(self.memory) != set(MEMORY):
            raise ValueError("observation or memory: not supported by this version of npmp")
        if len(self.imu_position) != 3:
            raise ValueError(f"imu_position={self.imu_position}: expected three numbers")
        clock = [] if self.clock_s is None else CLOCK
        valid = self.extra_inputs == [*clock, *self.height_names, *self.depth_names]
        valid &= all(HEIGHT_NAME.fullmatch(name) for name in self.height_names)
        if not valid or not (self.clock_s is None or 0.0 < self.clock_s < math.inf):
            raise ValueError("extra_inputs or clock_s: not supported by this version of npmp")
        low, high = HEIGHT_RANGE
        if not low <= self.level_m <= high:
            raise ValueError(f"level_m={self.level_m:g}: must be from {low:g} to {high:g} [m]")
        self._check_camera()

    def _check_camera(self) -> None:
        """Raises ValueError for a camera that does not fit the depths that the policy observes."""
        depths = self.depth_names
        if not depths and self.camera is None and not self.level_depths_m:
            return
        for name, width in CAMERA.items():
            values = np.asarray((self.camera or {}).get(name))
            if values.shape != width or values.dtype.kind not in ("i" if name == "size" else "if"):
                raise ValueError(f"camera.{name}={values!s:.40}: expected numbers {width}")
            if not (np.abs(values) <= MAX_CAMERA).all():
                raise ValueError(f"camera.{name}={values}: must be within +-{MAX_CAMERA:g}")

        camera = self.camera or {}
        columns, rows = camera["size"]
        near, far = camera["range_m"]
        expected = [f"depth_{row}_{column}_m" for row in range(rows) for column in range(columns)]
        if depths != expected or not depths or len(depths) != len(self.level_depths_m):
            raise ValueError(
                f"extra_inputs: {len(depths)} depths and {len(self.level_depths_m)} "
                f"level_depths_m, expected {columns} x {rows} as of camera.size"
            )
        if not 0.0 < near < far:
            raise ValueError(f"camera.range_m={[near, far]}: expected [nearest, farthest], above 0")
        if not (camera["rate_hz"] > 0.0 and camera["delay_s"] >= 0.0):
            raise ValueError("camera: rate_hz must be above 0, delay_s at least 0")
        if not all(near - 1e-3 <= depth <= far + 1e-3 for depth in self.level_depths_m):
            raise ValueError(f"level_depths_m: must be within camera.range_m={[near, far]}")

    @property
    def joint_names(self) -> list[str]:
        return [joint.name for joint in self.joints]

    @property
    def command_names(self) -> list[str]:
        return [command.name for command in self.commands]

    @property
    def height_names(self) -> list[str]:
        """The heights of the ground among the extra inputs."""
        return [name for name in self.extra_inputs if name.startswith("ground_")]

    @property
    def depth_names(self) -> list[str]:
        """The depths of the camera among the extra inputs."""
        return [name for name in self.extra_inputs if name.startswith("depth_")]

    @property
    def command_width(self) -> int:
        """Width of the graph's input `command`: the commands and the extra inputs."""
        return len(self.commands) + len(self.extra_inputs)

    @property
    def command_range(self) -> FloatArray:
        """Lowest and highest value of each command, (2, c)."""
        return np.array([command.range for command in self.commands]).reshape(-1, 2).T

    @property
    def home_pose(self) -> FloatArray:
        """Joint angles of the home pose, (nu,) [rad]."""
        return self.per_joint("home")

    @property
    def joint_range(self) -> FloatArray:
        """(2, nu) lowest and highest angle of each joint [rad]."""
        return np.array([joint.range for joint in self.joints]).T

    def command_of(self, values: Sequence[float]) -> FloatArray:
        """(c,) a command in its units.

        Raises:
          InputError: for a wrong number of values, or one that is not finite.
        """
        command = np.asarray(values, dtype=np.float64)
        if command.shape != (len(self.commands),) or not np.isfinite(command).all():
            raise InputError(
                f"command={list(values)}: expected {len(self.commands)} finite numbers: "
                f"{', '.join(self.command_names)}"
            )
        return command

    def per_joint(self, name: str) -> FloatArray:
        """A field of all joints, (nu,)."""
        return np.array([getattr(joint, name) for joint in self.joints], np.float64)

    def in_graph(self) -> str:
        """The copy in the metadata of policy.onnx: JSON without the checksums."""
        return json_text({k: v for k, v in asdict(self).items() if k != "files"})
