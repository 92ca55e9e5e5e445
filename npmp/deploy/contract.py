"""What a bundle says of its policy and its robot: the contract in bundle.json."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mocap_data.errors import InputError
from mocap_data.files import json_text
from npmp.core import ranges
from npmp.deploy.robot import FloatArray

GRAVITY = 9.81  # [m/s2] per g, as `npmp.envs.state` has it
# inputs of the graph that it gives back as NAME_next
MEMORY = ("z", "h_high", "c_high", "h_low", "c_low")
CLOCK = ["clock_sin", "clock_cos"]  # as `npmp.tasks.inputs` has them
# Bounds of every bundle, whatever robot it names [D].
# of control at least, of physics at most [Hz]
RATES_HZ = (10.0, 1e5)
# of a drive [Nm], [rad/s]; of a joint's angle, either way [rad]
MOST_TORQUE = 1000.0
MOST_VELOCITY = 100.0
MOST_ANGLE = 4.0 * math.pi
# error at which kp alone asks for the torque limit [rad]; shipped robots have 0.2 to 2.2
SATURATES_AT = (0.005, 50.0)
# kd / kp at most, a drive's time constant [s]; shipped robots have up to 0.064
LONGEST_DAMPING_S = 1.0
# of a velocity [m/s], [rad/s]; of other commands in their units
MOST_SPEED = 10.0
MOST_COMMAND = 100.0
# what a command's name ends with, and its unit
UNITS = {"mps": "m/s", "rps": "rad/s", "m": "m", "rad": "rad", "s": "s", "height": "1"}


def observation_layout(joints: int) -> list[tuple[str, int, str, str]]:
    """Name, width, unit and frame of the parts of `obs`, in order
    (`npmp.envs.features.proprioception`)."""
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
    """What the numbers of a bundle mean, in words: T is the control period, R(t) the rotation from
    the root frame to the world."""
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
    """A joint of the robot, as in the model that the policy was trained with.

    Raises:
      ValueError: for values out of range.
    """

    name: str
    # what it moves, and against what
    body: str
    parent: str
    axis: list[float]  # (3,) in the root frame in the zero pose
    anchor: list[float]  # (3,) a point on the axis, likewise [m]
    home: float  # [rad]
    range: list[float]  # [low, high] [rad]
    kp: float  # of the drive, as trained [Nm/rad]
    kd: float  # [Nm s/rad]
    torque_limit: float  # [Nm]
    velocity_limit: float  # of the drive; in training nothing limits the velocity [rad/s]
    joint_damping: float  # of the model, in addition to kd [Nm s/rad]
    joint_friction: float  # of the model, dry [Nm]
    armature: float  # of the model, inertia of the rotor at the joint [kg m2]

    def __post_init__(self) -> None:
        if len(self.range) != 2 or not self.range[0] <= self.home <= self.range[1]:
            raise ValueError(f"{self.name}: home {self.home:g} lies outside range {self.range}")
        if not (self.range[0] >= -MOST_ANGLE and self.range[1] <= MOST_ANGLE):
            raise ValueError(
                f"{self.name}: range={self.range}: must be within +-{MOST_ANGLE:.4g} [rad]"
            )

        most = {"torque_limit": MOST_TORQUE, "velocity_limit": MOST_VELOCITY}
        for name, high in most.items():
            if not 0.0 < (value := getattr(self, name)) <= high:
                raise ValueError(
                    f"{self.name}: {name}={value:g}: must be above 0 and at most {high:g}"
                )

        stiffest, softest = (self.torque_limit / error for error in SATURATES_AT)
        for name, low, high in (
            ("kp", softest, stiffest),
            ("kd", 0.0, LONGEST_DAMPING_S * self.kp),
        ):
            if not low <= (value := getattr(self, name)) <= high:
                raise ValueError(
                    f"{self.name}: {name}={value:g}: must be from {low:g} to {high:g} for a torque "
                    f"limit of {self.torque_limit:g} Nm"
                )


@dataclass(frozen=True)
class Command:
    """One of the numbers that the policy is commanded by. Raises ValueError for no range."""

    name: str
    unit: str
    range: list[float]  # [low, high] as trained
    meaning: str = ""  # frame and sign

    def __post_init__(self) -> None:
        if len(self.range) != 2 or not self.range[0] <= self.range[1]:
            raise ValueError(f"{self.name}: range needs [low, high], got {self.range}")
        if (unit := UNITS.get(self.name.rpartition("_")[2], "")) != self.unit:
            raise ValueError(f"{self.name}: unit={self.unit!r:.20}: must be {unit!r}")

        low, high = self.range
        most = MOST_SPEED if self.is_velocity else MOST_COMMAND
        if not (-most <= low and high <= most):
            raise ValueError(f"{self.name}: range={self.range}: must be within +-{most:g}")

    @property
    def is_velocity(self) -> bool:
        """Whether it changes gradually, and is 0 of a robot that stands; of an unknown unit it may
        be."""
        return self.unit.endswith("/s") or not self.unit


@dataclass(frozen=True)
class BundleContract:
    """What a robot must know to run a policy: bundle.json but for its schema and version.

    Raises:
      ValueError: for what cannot be.
    """

    robot: str
    model_sha256: str
    joints: list[JointSpec]  # in the order of all arrays
    control_rate_hz: float
    physics_rate_hz: float
    hold: str  # of targets between control steps: one of HOLDS
    accelerometer: str  # how it is read: one of ACCELEROMETERS
    imu_position: list[float]  # (3,) in the root frame [m]
    observation: list[tuple[str, int, str, str]]  # [name, width, unit, frame] in order
    commands: list[Command]
    memory: dict[str, int]  # widths of what goes from step to step
    task: str
    module_sha256: str
    policy_sha256: str
    licence: list[str]  # of the recordings that the module was trained on
    data: str  # which these are
    opset: int
    golden: dict[str, Any]  # how golden.npz was recorded
    versions: dict[str, str]
    conventions: dict[str, str]
    # inputs after the command: sine and cosine of a clock of period clock_s that begins with the
    # episode; ground_FOOT_X_Y_m, the height of the ground X forwards and Y to the left of a foot in
    # the heading frame, above the floor under a robot in its home pose [m]; depth_ROW_COLUMN_m,
    # along the optical axis of `camera`, from the top left, as old as it says [m]
    extra_inputs: list[str] = field(default_factory=list)
    clock_s: float | None = None
    # what these heights are on level ground, of a robot that walks as in training [m]
    level_m: float = 0.0
    camera: dict[str, Any] | None = None  # size, frame and faults: `npmp.envs.camera.CameraConfig`
    # the depths of level ground, from the home pose [m]
    level_depths_m: list[float] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)  # sha256 of those beside bundle.json

    def __post_init__(self) -> None:
        names = self.joint_names
        if not names or len(set(names)) < len(names):
            raise ValueError("joints must be at least one, each with a name of its own")
        ranges.one_of(self, "hold", HOLDS)
        ranges.one_of(self, "accelerometer", ACCELEROMETERS)
        slowest, fastest = RATES_HZ
        if not slowest <= self.control_rate_hz <= self.physics_rate_hz <= fastest:
            raise ValueError(
                f"{slowest:g} <= control_rate_hz <= physics_rate_hz <= {fastest:g} must hold"
            )
        if self.observation != observation_layout(len(names)) or set(self.memory) != set(MEMORY):
            raise ValueError("its observation or memory is not what this npmp can give")
        if len(self.imu_position) != 3:
            raise ValueError("imu_position needs three numbers")
        clock = [] if self.clock_s is None else CLOCK
        first = self.extra_inputs[: len(clock)]
        rest = self.extra_inputs[len(clock) :]
        heights = [name for name in rest if name.startswith("ground_")]
        depths = rest[len(heights) :]
        valid = first == clock and rest[: len(heights)] == heights
        valid &= all(name.startswith("depth_") for name in depths)
        valid &= len(depths) == len(self.level_depths_m) and bool(depths) == bool(self.camera)
        if not valid or not (self.clock_s is None or 0.0 < self.clock_s < math.inf):
            raise ValueError("its extra_inputs and clock_s are not what this npmp can give")

    @property
    def joint_names(self) -> list[str]:
        return [joint.name for joint in self.joints]

    @property
    def command_names(self) -> list[str]:
        return [command.name for command in self.commands]

    @property
    def command_width(self) -> int:
        """Of the graph's input `command`: the commands and the extra inputs."""
        return len(self.commands) + len(self.extra_inputs)

    @property
    def command_range(self) -> FloatArray:
        """(2, c) the least and the most of each."""
        return np.array([command.range for command in self.commands]).reshape(-1, 2).T

    @property
    def home_pose(self) -> FloatArray:
        """(nu,) [rad]."""
        return self.per_joint("home")

    @property
    def joint_range(self) -> FloatArray:
        """(2, nu) the least and the greatest angle of each joint [rad]."""
        return np.array([joint.range for joint in self.joints]).T

    def command_of(self, given: Sequence[float]) -> FloatArray:
        """(c,) a command in its units. Raises InputError for another number of them."""
        wanted = np.asarray(given, dtype=np.float64)
        if wanted.shape != (len(self.commands),) or not np.isfinite(wanted).all():
            raise InputError(
                f"command={list(given)}: {len(self.commands)} finite numbers are expected: "
                f"{', '.join(self.command_names)}"
            )
        return wanted

    def per_joint(self, name: str) -> FloatArray:
        """(nu,) a number of each joint."""
        return np.array([getattr(joint, name) for joint in self.joints], np.float64)

    def in_graph(self) -> str:
        """What policy.onnx repeats of it in its metadata, as JSON: all but the checksums."""
        return json_text({k: v for k, v in asdict(self).items() if k != "files"})
