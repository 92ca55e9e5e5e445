"""Walking by velocity command on flat or rough ground (robot-NPMP, reuse tasks, eq. 16)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp.core import ranges
from npmp.core.settings import PART
from npmp.envs.camera import DepthCamera, camera_of, recorded
from npmp.envs.feet import SteppingConfig, stand_still, stepping
from npmp.envs.ground import GroundConfig
from npmp.envs.images import ImageCamera
from npmp.envs.starts import StartPoses
from npmp.envs.state import RobotState
from npmp.envs.task import (
    Figures,
    Inputs,
    Measure,
    Part,
    Parts,
    Sensor,
    StepResult,
    Task,
    TaskLoss,
    Term,
)
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.tasks.commands import CommandConfig, Commands, with_default_range, with_range
from npmp.tasks.inputs import SETTINGS, Clock, GroundMap, HeightMapErrors
from npmp.tasks.terminations import MAY_TOUCH, FloorContacts, Tilt
from npmp.tasks.velocity import (
    COMMAND_CHANNELS,
    COMMAND_NAMES,
    VelocityLossConfig,
    filtered,
    heading_velocity,
    must_stand,
    velocity_error,
    velocity_figures,
    velocity_loss,
    velocity_reward,
)

FALLS = ("falls_per_minute", "survived")


@dataclass(frozen=True)
class WalkConfig:
    """The walking task's settings. Raises ValueError for values out of range."""

    # process that samples commands
    command: CommandConfig = field(default_factory=CommandConfig, metadata=PART)
    # loss on velocity errors in imagination
    course: VelocityLossConfig = field(default_factory=VelocityLossConfig, metadata=PART)
    # loss on the feet in imagination
    stepping: SteppingConfig = field(default_factory=SteppingConfig, metadata=PART)
    ground: GroundConfig = field(default_factory=GroundConfig, metadata=PART)
    # errors of the height map that policies observe with `sees_ground`
    map: HeightMapErrors = field(default_factory=HeightMapErrors, metadata=PART)
    # width of eq. 16 [m^2/s^2]; 0.5 for ANYmal
    phi: float = 0.5
    # c of the low-pass v <- c v + (1 - c) v_new of the measured velocity; 0.95 for OP3 [P]
    velocity_filter: float = 0.0
    # largest tilt, beyond which an episode fails
    tilt_limit_deg: float = 45.0
    # links that may touch the ground: feet, legs (feet and the links that carry them), or limbs
    # (all between the root and the feet)
    may_touch: str = "feet"
    episode_s: float = 20.0
    # share of episodes that start from motions, if there are any; the others start in the home pose
    reference_starts: float = 0.5
    # largest random tilt of starts about each horizontal axis
    start_tilt_deg: float = 0.0
    # largest random velocity of starts along each horizontal axis
    start_speed_mps: float = 0.0
    # period of a clock that the policy observes, that of a stride; null: none
    clock_s: float | None = None
    # whether the policy observes heights of the ground around the feet
    sees_ground: bool = False
    # a depth camera: stereo, flight, a YAML file (`CameraConfig`), a depth network's folder; null:
    # none
    camera: Any = None
    # height of the root above level ground while walking, for `npmp deploy` without a map [m];
    # null: the home pose's
    root_height_m: float | None = None

    def __post_init__(self) -> None:
        ranges.above_zero(self, "phi", "episode_s", "tilt_limit_deg", "clock_s", "root_height_m")
        ranges.share(self, "reference_starts")
        ranges.not_negative(self, "start_tilt_deg", "start_speed_mps")
        if not 0.0 <= self.velocity_filter < 1.0:
            raise ValueError(f"velocity_filter must lie in [0, 1), got {self.velocity_filter}")
        if self.tilt_limit_deg >= 180.0:
            raise ValueError(f"tilt_limit_deg must be below 180, got {self.tilt_limit_deg}")
        ranges.one_of(self, "may_touch", MAY_TOUCH)
        if self.start_tilt_deg > self.tilt_limit_deg:
            raise ValueError(
                f"start_tilt_deg must be at most tilt_limit_deg, got {self.start_tilt_deg}"
            )


class FilteredVelocity(Part):
    """The exponentially filtered velocity of the reward, (n, 3)."""

    saved: ClassVar[Mapping[str, str]] = {"velocity": "value"}

    def __init__(self, constant: float):
        """constant: c of v <- c v + (1 - c) v_new."""
        self.constant = constant

    def bind(self, env: TaskEnv[Any]) -> None:
        super().bind(env)
        self.value = torch.zeros(env.num_envs, 3, device=env.device)

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        self.value = self.value.index_copy(0, ids, heading_velocity(self.env.state)[ids])

    def advance(self, result: StepResult, generator: torch.Generator) -> None:
        self.value = self(self.env.state)

    def __call__(self, state: RobotState) -> Tensor:
        """The filtered velocities after a step to these states, (n, 3)."""
        return filtered(self.value, heading_velocity(state), self.constant)


class WalkingLoss(Part):
    """`velocity_loss`, `stand_still` at command zero, rates of roll and pitch; `stepping`."""

    def __init__(self, config: WalkConfig):
        self.config = config

    def __call__(
        self, before: RobotState, after: RobotState, goals: Tensor, patch: Tensor
    ) -> TaskLoss:
        env = self.env
        c = self.config
        velocity = heading_velocity(after)
        off = velocity_loss(velocity, goals[-1], c.course, env.dt)

        def ground(at: Tensor) -> Tensor:
            return env.ground.above(at, patch)

        style = stepping(env.feet, after, c.stepping, env.dt, ground)
        if c.course.stand_still_weight and len(velocity) > 1:
            stands = must_stand(velocity[0].detach(), goals[-1], c.course, env.dt, len(velocity))
            moved = stand_still(env.feet, after, env.dt, ground)
            off = off + c.course.stand_still_weight * (moved * stands[1:]).mean(0)
        # the root frame's x and y axes
        rates = after.root_ang[..., :2].abs().sum(-1)
        off = off + c.course.roll_pitch_weight * rates.mean(0)
        return TaskLoss(off, style)


def command_of(state: RobotState, goal: Tensor) -> Tensor:
    """The goal of walking is the command, (..., 3)."""
    return goal


def achieved_of(state: RobotState, goal: Tensor) -> Tensor:
    """The velocity over the last control step, (..., 3)."""
    return heading_velocity(state).nan_to_num(0.0)


def walking(robot: Robot, config: WalkConfig, motions: MotionSet | None = None) -> Parts:
    """The parts of walking at commanded velocities.

    A step is evaluated with the command before it; commands change after the evaluation.

    An episode fails by tilt or by contact of anything but the feet (`may_touch`) with the floor.
    robot-NPMP also ends it on self-collision, which is not simulated: the robot's geoms collide
    with the floor only.

    Args:
      config: by default the range of commands is that of the motions, or `MODEST_RANGE`.
      motions: start poses, and commands with `commands="recorded"`; None: all episodes start in the
        home pose.

    Raises:
      InputError: for an empty dataset, one at another rate than the robot's control rate, or
        `commands="recorded"` without motions.
    """
    c = config
    command = with_default_range(c.command, motions)
    velocity = FilteredVelocity(c.velocity_filter)
    sensors: list[Sensor] = [] if c.clock_s is None else [Clock(c.clock_s)]
    if c.sees_ground:
        sensors.append(GroundMap(robot, c.map))
    if c.camera is not None:
        sensors.append(_camera(robot, c))

    def reward(state: RobotState, goal: Tensor) -> Tensor:
        """Eq. 16."""
        return velocity_reward(velocity(state), goal, c.phi)

    def error(state: RobotState, goal: Tensor) -> Tensor:
        return velocity_error(velocity(state), goal)

    return Parts(
        commands=Commands(command, motions),
        starts=StartPoses(
            robot,
            motions,
            share=c.reference_starts,
            tilt_deg=c.start_tilt_deg,
            speed_mps=c.start_speed_mps,
        ),
        observations=[
            Inputs(command_of, dict(zip(COMMAND_NAMES, command.range, strict=True))),
            *sensors,
        ],
        rewards=[Term(reward, name="velocity")],
        terminations=[Tilt(c.tilt_limit_deg), FloorContacts(robot, c.may_touch)],
        loss=WalkingLoss(c),
        error=error,
        error_name="velocity_error",
        metrics={"command": command_of, "achieved": achieved_of},
        figures=Figures(
            velocity_figures, ("velocity_error", "velocity_error_1s", *FALLS), COMMAND_CHANNELS
        ),
        memory=[velocity],
        ground=c.ground,
        privileged=[lambda: velocity.value] if c.velocity_filter > 0.0 else [],
        episode_s=c.episode_s,
    )


def _camera(robot: Robot, config: WalkConfig) -> DepthCamera:
    camera = camera_of(config.camera)
    if not camera.network:
        return DepthCamera(camera)
    ground = config.ground
    rooms = (ground.terrain, ground.terrain_level) == ("rooms", 1.0)
    if ground.terrain_curriculum or not rooms:
        raise InputError(
            "task.camera: a depth network needs task.terrain=rooms task.terrain_level=1"
        )
    return ImageCamera(camera, float(robot.home_qpos[2]))


def by_commands(measure: Measure, commands: Commands) -> Measure:
    """A measure relative to the commands, for a task with other goals."""
    return lambda state, goal: measure(state, commands.current)


def resolve_walking(
    config: WalkConfig,
    motions: MotionSet | None,
    training: Mapping[str, Any],
    default: WalkConfig | None = None,
) -> WalkConfig:
    """As `Task.resolve`: set the range of commands (`with_range`), and for a policy's record
    (`PolicyContract.input_settings`) the sensors that the policy was trained with.

    default: settings whose sensors the policy's replace.

    Raises:
      InputError: for an unknown range of commands, or other sensors than the policy's.
    """
    trained = {name: training[name] for name in SETTINGS if name in training}
    for name, value in trained.items():
        configured = getattr(config, name)
        usual = getattr(default or WalkConfig, name)
        if name == "camera" and configured not in (None, usual):
            configured = recorded(camera_of(configured))
            trained[name] = getattr(config, name) if configured == value else value
        if configured not in (usual, value):
            raise InputError(
                f"task.{name}={configured}: expected {value}, as in the policy's training"
            )
    command = with_range(config.command, motions, training)
    return replace(config, command=command, **trained)


class Walk(Task):
    """`walking`: the commands are `commands.current` (n, 3)."""

    name = "walk"
    config_type = WalkConfig
    main_figure = "velocity_error"

    def __init__(
        self, robot: Robot, config: WalkConfig | None = None, motions: MotionSet | None = None
    ):
        """As `walking`."""
        config = config or WalkConfig()
        super().__init__(robot, config, walking(robot, config, motions))

    @classmethod
    def resolve(
        cls, config: WalkConfig, motions: MotionSet | None, training: Mapping[str, Any]
    ) -> WalkConfig:
        """As `resolve_walking`."""
        return resolve_walking(config, motions, training)


def first_step(happens: Tensor) -> Tensor:
    """The first true step of (T, n) bool, (n,); T if there is none."""
    return torch.where(happens.any(0), happens.float().argmax(0), len(happens))


WalkEnv = TaskEnv[Walk]
