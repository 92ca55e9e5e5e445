"""Walking by velocity command on flat or rough ground (robot-NPMP, reuse tasks, eq. 16): each robot
has its command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import mujoco
import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp.core import ranges
from npmp.envs.camera import DepthCamera, camera_of, recorded
from npmp.envs.feet import SteppingConfig, stepping
from npmp.envs.ground import GroundConfig
from npmp.envs.images import PictureCamera
from npmp.envs.starts import StartPoses
from npmp.envs.state import RobotState
from npmp.envs.task import Start, StepResult, Task, TaskLoss, Trial
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.tasks.commands import (
    MODEST_RANGE,
    CommandConfig,
    Commands,
    command_range_from_motions,
    with_range,
)
from npmp.tasks.inputs import SETTINGS, Clock, GroundMap, MapConfig
from npmp.tasks.teachers.trotting import TrotConfig, TrotTeacher
from npmp.tasks.terminations import MAY_TOUCH, FloorContacts, diverged, tilted
from npmp.tasks.velocity import (
    COMMAND_CHANNELS,
    COMMAND_NAMES,
    CourseConfig,
    course_loss,
    filtered,
    heading_velocity,
    velocity_error,
    velocity_figures,
    velocity_reward,
)

FALLS = ("falls_per_minute", "survived")


@dataclass(frozen=True)
class WalkConfig(CommandConfig, CourseConfig, SteppingConfig, GroundConfig, MapConfig):
    """The walking task's settings. Raises ValueError for values out of range."""

    # width of eq. 16 [m^2/s^2]; 0.5 for ANYmal
    phi: float = 0.5
    # c of v <- c v + (1 - c) v_new, the velocity that is judged; 0.95 for OP3 [P]
    velocity_filter: float = 0.0
    # an episode fails beyond
    tilt_limit_deg: float = 45.0
    # what may touch the ground: feet; legs, the links that carry them, too
    may_touch: str = "feet"
    episode_s: float = 20.0
    # share of episodes that start on the reference, where there is one; else at home
    reference_starts: float = 0.5
    # starts lean by up to this about either horizontal axis
    start_tilt_deg: float = 0.0
    # and are up to this faster along either
    start_speed_mps: float = 0.0
    # period of a clock that the policy observes, too: a stride's; null: none
    clock_s: float | None = None
    # whether it observes heights of the ground around its feet
    sees_ground: bool = False
    # a depth camera: stereo, flight, a YAML file of one (`CameraConfig`), a folder of eyes; null:
    # none
    camera: Any = None
    # the scripted trot that shows how it is walked
    teacher: TrotConfig = field(default_factory=TrotConfig)

    def __post_init__(self) -> None:
        for part in (CommandConfig, CourseConfig, SteppingConfig, GroundConfig, MapConfig):
            part.__post_init__(self)
        ranges.above_zero(self, "phi", "episode_s", "tilt_limit_deg", "clock_s")
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


class Walk(Task):
    """Robots, each asked to move at a velocity.

    A step is judged by the command in force before it; where a change is due it comes after, so
    that `commands.current` (n, 3) is what the next decision sees.

    An episode fails by tilt or by contact of anything but the feet (`may_touch`) with the floor.
    robot-NPMP also ends it on self-collision, which is not seen here: the robot's geoms collide
    with the floor only.
    """

    name = "walk"
    config_type = WalkConfig
    objectives = ("velocity",)
    error_name = main_figure = "velocity_error"
    inputs: Mapping[str, tuple[float, float]] = dict.fromkeys(COMMAND_NAMES, (-1.0, 1.0))
    kept: tuple[str, ...] = ("commands.current", "commands.left", "velocity", "clock.phase")
    described: ClassVar[Mapping[str, str]] = {"command": "commands.current"}
    channels = COMMAND_CHANNELS
    judged: ClassVar[tuple[str, ...]] = ("velocity_error", "velocity_error_1s", *FALLS)
    achieved = staticmethod(heading_velocity)
    teacher = TrotTeacher
    steerable = True

    def __init__(
        self, robot: Robot, config: WalkConfig | None = None, motions: MotionSet | None = None
    ):
        """motions: reference motions to start from, whose velocities are commands with
        `commands="recorded"`; without them every episode starts from the home pose.

        Where the config names no range of commands, it is that of the motions' velocities, or,
        without motions, a modest one.

        Raises:
          InputError: for an empty dataset, one at another rate than the robot's control rate, or
            none where commands are drawn from it.
        """
        config = config or WalkConfig()
        if config.command_range is None:
            command_range = MODEST_RANGE if motions is None else command_range_from_motions(motions)
            config = replace(config, command_range=command_range)
        self.robot = robot
        self.config = config
        self.episode_s = config.episode_s
        self.inputs = dict(zip(COMMAND_NAMES, config.range, strict=True))
        self.commands = Commands(config, motions)
        self.clock = Clock(config.clock_s or config.teacher.period_s)
        clock = () if config.clock_s is None else (self.clock,)
        self.map = GroundMap(robot, config)
        self.extras = (*clock, *((self.map,) if config.sees_ground else ()))
        self.kept = (*self.kept, *(("map.drift", "map.past") if config.sees_ground else ()))
        self.sights: tuple[GroundMap | DepthCamera, ...] = (self.map,)
        if config.camera is not None:
            camera = camera_of(config.camera)
            self.eye = (
                PictureCamera(camera, float(robot.home_qpos[2]))
                if camera.eyes
                else DepthCamera(camera)
            )
            self.camera, self.sights = recorded(camera), (self.map, self.eye)
            self.extras, self.kept = (*self.extras, self.eye), (*self.kept, *self.eye.kept)
            rooms = (config.terrain, config.terrain_level) == ("rooms", 1.0)
            if camera.eyes and (config.terrain_curriculum or not rooms):
                raise InputError("eyes know rooms alone: task.terrain=rooms task.terrain_level=1")
        self.hidden = ("velocity",) if config.velocity_filter > 0.0 else ()
        self.starts = StartPoses(
            robot,
            motions,
            share=config.reference_starts,
            tilt_deg=config.start_tilt_deg,
            speed_mps=config.start_speed_mps,
        )

    @classmethod
    def resolve(
        cls, config: WalkConfig, motions: MotionSet | None, training: Mapping[str, Any]
    ) -> WalkConfig:
        """As `Task.resolve`: the range of commands (`with_range`). Where the record is a policy's
        (`PolicyContract.input_settings`), it observes what that policy was trained to observe.

        Raises:
          InputError: where nothing says a range of commands, or the settings let a policy observe
            something else.
        """
        trained = {name: training[name] for name in SETTINGS if name in training}
        for name, value in trained.items():
            configured = getattr(config, name)
            usual = getattr(cls.config_type, name)
            if name == "camera" and configured not in (None, usual):
                configured = recorded(camera_of(configured))
                trained[name] = getattr(config, name) if configured == value else value
            if configured not in (usual, value):
                raise InputError(f"task.{name}={configured}: the policy learned with {value}")
        return with_range(replace(config, **trained), motions, training)

    def add_to_scene(self, spec: mujoco.MjSpec) -> None:
        """As `Task.add_to_scene`: sensors of contacts with the floor."""
        self.contacts = FloorContacts(spec, self.robot, self.config.may_touch)

    def bind(self, env: TaskEnv[Any]) -> None:
        super().bind(env)
        self.starts = self.starts.to(env.device)
        self.commands.bind(env.num_envs, env.dt, env.device)
        self.clock.bind(env.num_envs, env.device)
        for sight in self.sights:
            sight.bind(env.num_envs, env.dt, env.device)
        # filtered: the velocity that is judged
        self.velocity = torch.zeros(env.num_envs, 3, device=env.device)

    # --- episodes ---

    def start(self, ids: Tensor, generator: torch.Generator, **where: Tensor) -> Start:
        """From the home pose or on the reference, feet on the floor. where: `yaw`, as
        `StartPoses.draw` takes it."""
        return self.starts.draw(len(ids), generator, **where)

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        self.commands.begin(ids, generator)
        self.velocity = self.velocity.index_copy(0, ids, heading_velocity(self.env.state)[ids])
        self.clock.begin(ids)
        for sight in self.sights:
            sight.begin(self.env, ids, generator)

    def _filtered(self) -> Tensor:
        """The velocities that are judged of the step just made, (n, 3)."""
        velocity = heading_velocity(self.env.state)
        return filtered(self.velocity, velocity, self.config.velocity_filter)

    def judge(self) -> StepResult:
        """Eq. 16, by the command in force. Seen: `command` and `achieved`, the velocity over the
        step, (n, 3) each."""
        env = self.env
        c = self.config
        command = self.commands.current
        velocity = self._filtered()
        reward = velocity_reward(velocity, command, c.phi).nan_to_num(0.0)
        failed = tilted(env.state, c.tilt_limit_deg) | self.contacts.touching(env) | diverged(env)
        seen = {"command": command, "achieved": heading_velocity(env.state).nan_to_num(0.0)}
        error = velocity_error(velocity, command)
        return StepResult(reward.unsqueeze(-1), failed, torch.zeros_like(failed), error, seen)

    def advance(self, outcome: StepResult, generator: torch.Generator) -> None:
        """A new command where one is due."""
        self.velocity = self._filtered()
        self.clock.advance(self.env.dt)
        for sight in self.sights:
            sight.advance(self.env)
        self.commands.advance(generator)

    def schedule(self, steps: int, generator: torch.Generator | None) -> None:
        """As `Task.schedule`: commands that change at whole periods for all robots."""
        self.commands.schedule(steps, generator)

    def figures(self, trial: Trial) -> dict[str, Any]:
        """As `Task.figures`, and `velocity_figures`."""
        return super().figures(trial) | velocity_figures(trial)

    # --- for simulated and imagined robots ---

    def goal(self) -> Tensor:
        """The command, (n, 3)."""
        return self.commands.current

    def see(self, state: RobotState, goal: Tensor) -> Tensor:
        """The command, (B, 3)."""
        return goal

    def new_goals(self, goal: Tensor, generator: torch.Generator) -> Tensor:
        """New commands (B, 3), drawn as at an episode's start."""
        return self.commands.draw(goal, generator, change=1.0)

    def imagined_loss(
        self, before: RobotState, after: RobotState, goals: Tensor, patch: Tensor
    ) -> TaskLoss:
        """As `Task.imagined_loss`: `course_loss` of the velocities; `stepping`."""
        env = self.env
        c = self.config
        off = course_loss(heading_velocity(after), goals[-1], c, env.dt)
        style = stepping(env.feet, after, c, env.dt, lambda at: env.ground.above(at, patch))
        return TaskLoss(off, style)


def first_step(happens: Tensor) -> Tensor:
    """The first of T steps (T, n) in which something happens, (n,); T where it never does."""
    return torch.where(happens.any(0), happens.float().argmax(0), len(happens))


WalkEnv = TaskEnv[Walk]
