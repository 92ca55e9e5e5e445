"""Dribbling (robot-NPMP, reuse tasks): bring a ball to a target that jumps.

A policy observes ball and target as horizontal positions in the heading frame (x forward, y left),
without velocities. Radius, mass and drag of the ball are sampled per episode; a policy may observe
the radius.

The ball collides with the floor and with all collision geoms of the robot. Contacts between robot
and floor are unchanged, as robots' geoms collide only with those of contype 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import mujoco
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.core import geometry, ranges
from npmp.core.settings import PART
from npmp.envs.feet import Feet, SteppingConfig, stepping
from npmp.envs.starts import StartPoses
from npmp.envs.state import RobotState, pose_from_qpos
from npmp.envs.task import (
    Figures,
    Goals,
    Inputs,
    Part,
    Parts,
    Start,
    StepResult,
    Task,
    TaskLoss,
    Term,
    Trial,
)
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.tasks.ball import Ball, Legs, rolled
from npmp.tasks.teachers.dribbling import DribbleScript, DribbleScriptConfig, dribble_command
from npmp.tasks.terminations import FloorContacts, Tilt
from npmp.tasks.velocity import VelocityLossConfig, heading_velocity, velocity_loss

BALL = "ball"
INPUTS = ("ball_forward_m", "ball_left_m", "target_forward_m", "target_left_m")
# range for scaling [m]
RADIUS_INPUT = {"ball_radius_m": (0.05, 0.2)}

# friction of the ball's contacts: sliding, torsional [m], rolling [m]; without rolling friction
# a ball never stops
FRICTION = (0.7, 0.05, 0.04)  # [R: dm_control's soccer]
SOLREF_S = 0.02  # time constant of its contacts [R: dm_control's soccer]

# --- starts of episodes [D] ---
AT_FEET_M = (0.05, 0.30)  # gap between a fore foot and the ball ahead of it
AROUND_M = (1.0, 2.5)  # from the robot to a ball in a random direction
TARGET_M = (0.0, 2.0)  # from the ball to the first target

# an episode fails when the ball is farther from the robot or from the target [D]
FAR_M = 5.0


@dataclass(frozen=True)
class DribbleConfig:
    """The dribbling task's settings. Raises ValueError for values out of range."""

    # the loss of imagined robots on their feet
    stepping: SteppingConfig = field(
        default_factory=lambda: SteppingConfig(lift_weight=0.0), metadata=PART
    )
    # width of the reward [m^2]; 1 for ANYmal
    phi: float = 1.0
    # length of the jumps of the target, in random directions [m]
    jump_m: float = 2.0
    # time between jumps
    jump_period_s: float = 5.0
    # range of the ball's radius
    radius_m: tuple[float, float] = (0.105, 0.129)
    # whether a policy observes it
    observes_radius: bool = False
    mass_kg: tuple[float, float] = (0.36, 0.54)
    # c of the force c |v| v [N s^2/m^2]
    drag: tuple[float, float] = (0.1, 0.8)
    # damping ratio of the ball's contacts: the lower, the more it bounces [R: dm_control's soccer]
    damping: float = 0.4
    # slope of the ground along x for the ball; robots walk on level ground
    slope_deg: float = 0.0
    # delay [s] of the observed ball, in whole control steps, and standard deviation of its noise
    # [m]
    seen: tuple[float, float] = (0.0, 0.0)
    # largest tilt, beyond which an episode fails
    tilt_limit_deg: float = 45.0
    episode_s: float = 60.0
    # share of episodes that start from motions, if there are any; the others start in the home pose
    reference_starts: float = 0.5
    # share of episodes with the ball in front of a fore foot; otherwise it is in a random direction
    at_feet: float = 0.5
    # weight of the distance of ball and target in the loss [1/m]
    distance_weight: float = 3.0
    # weight of the velocity error relative to the script's commands in the loss
    teacher_weight: float = 1.0
    # the script that commands a walking policy
    teacher: DribbleScriptConfig = field(default_factory=DribbleScriptConfig)

    def __post_init__(self) -> None:
        ranges.above_zero(self, "phi", "jump_period_s", "episode_s", "damping")
        ranges.not_negative(self, "jump_m", "distance_weight", "teacher_weight")
        ranges.not_negative(self, "seen", "slope_deg")
        ranges.share(self, "reference_starts", "at_feet")
        for name in ("radius_m", "mass_kg", "drag"):
            pair = getattr(self, name)
            low = 0.0 if name == "drag" else math.nextafter(0.0, 1.0)
            if not low <= pair[0] <= pair[1] < math.inf:
                raise ValueError(
                    f"{name} must be two numbers, 0 < low <= high (drag may be 0), got {list(pair)}"
                )
        if self.slope_deg >= 90.0:
            raise ValueError(f"slope_deg={self.slope_deg}: must be below 90 [degrees]")
        if not 0.0 < self.tilt_limit_deg < 180.0:
            raise ValueError(
                f"tilt_limit_deg must lie between 0 and 180, got {self.tilt_limit_deg}"
            )


# --- the task as pure functions ---


def in_heading(state: RobotState, points: Tensor) -> Tensor:
    """Horizontal points of the world (..., k, 2) [m] in the heading frames of robots (n, ...)."""
    turn = geometry.yaw_matrix(geometry.yaw_of(state.root_rot))[..., :2, :2]
    return (points - state.root_pos[..., None, :2]) @ turn  # rows times R: world to heading frame


def drag_force(velocity: Tensor, drag: Tensor, mass: Tensor, dt: float) -> Tensor:
    """The constant force that, over dt [s], has the effect of the drag c |v| v.

    dv/dt = -(c/m) v^2 has the solution v / (1 + (c/m) v dt), so a step of any length does not
    reverse the velocity.

    Args:
      velocity: (n, 3) [m/s]. drag: (n, 1) c [N s^2/m^2]. mass: (n, 1) [kg].

    Returns: (n, 3) [N].
    """
    speed = torch.linalg.vector_norm(velocity, dim=-1, keepdim=True)
    return -drag * speed * velocity / (1.0 + drag * speed * dt / mass)


def jumped(target: Tensor, uniform: Tensor, distance: float) -> Tensor:
    """Targets (n, 2) moved by a distance. uniform: (n,) in [0, 1), the direction."""
    return target + _polar(torch.full_like(uniform, distance), 2.0 * math.pi * uniform)


def _polar(radius: Tensor, angle: Tensor) -> Tensor:
    return radius.unsqueeze(-1) * torch.stack((torch.cos(angle), torch.sin(angle)), -1)


def _between(pair: tuple[float, float], uniform: Tensor) -> Tensor:
    return pair[0] + (pair[1] - pair[0]) * uniform


class BallGoal(NamedTuple):
    """The columns of a goal (..., 11): a ball and its target, in the world."""

    ball: Tensor  # (..., 2) [m]
    velocity: Tensor  # (..., 2) of the ball [m/s]
    target: Tensor  # (..., 2) [m]
    radius: Tensor  # (...,) of the ball [m]
    mass: Tensor  # (...,) [kg]
    drag: Tensor  # (...,) c of the force c |v| v [N s^2/m^2]
    offset: Tensor  # (..., 2) from the ball to its observed position [m]

    @staticmethod
    def of(goal: Tensor) -> BallGoal:
        """The columns by name."""
        ball, velocity, target, physics, offset = goal.split((2, 2, 2, 3, 2), -1)
        radius, mass, drag = physics.unbind(-1)
        return BallGoal(ball, velocity, target, radius, mass, drag, offset)

    def pack(self) -> Tensor:
        """All fields in one tensor, (..., 11)."""
        physics = torch.stack((self.radius, self.mass, self.drag), -1)
        return torch.cat((self.ball, self.velocity, self.target, physics, self.offset), -1)


class BallTargets(Goals):
    """The ball of each robot, resampled in each episode, and its jumping target; `BallGoal`."""

    saved: ClassVar[Mapping[str, str]] = {
        "target": "target",
        "left": "left",
        "balls": "balls",
        "before": "before",
        "astray": "offset",
    }

    def __init__(self, robot: Robot, config: DribbleConfig):
        self.robot = robot
        self.config = config
        self._schedule: Tensor | None = None  # (J, n) directions of jumps [turns]
        self._step = 0  # step of the schedule

    def add_to_scene(self, spec: mujoco.MjSpec) -> None:
        """Add the ball at its largest radius, so that the compiled bounding volumes contain all
        balls."""
        radius = self.config.radius_m[1]
        mass = sum(self.config.mass_kg) / 2
        ball = spec.worldbody.add_body(name=BALL, pos=[0.0, 0.0, radius])
        ball.add_freejoint(name=BALL)
        ball.add_geom(
            name=BALL,
            type=mujoco.mjtGeom.mjGEOM_SPHERE,
            size=[radius, 0, 0],
            mass=mass,
            rgba=[0.95, 0.55, 0.15, 1],
            contype=1,
            conaffinity=1,
            condim=6,
            friction=list(FRICTION),
            solref=[SOLREF_S, self.config.damping],
        )

    def bind(self, env: TaskEnv[Any]) -> None:
        super().bind(env)
        n = env.num_envs
        device = env.device
        self._period = max(1, round(self.config.jump_period_s / env.dt))
        self.target = torch.zeros(n, 2, device=device)
        # control steps until the jump
        self.left = torch.full((n,), self._period, dtype=torch.long, device=device)
        # radius, mass and drag in [0, 1] of their ranges
        self.unit = torch.zeros(n, 3, device=device)
        self.body = env.robots.free_body(BALL)
        self._legs: Legs | None = None
        # recent positions of the ball, the current one last
        late = round(self.config.seen[0] / env.dt)
        self.before = torch.zeros(n, late + 1, 2, device=device)
        self.offset = torch.zeros(n, 2, device=device)

    # --- the ball ---

    @property
    def ball(self) -> Tensor:
        """The balls' centres, (n, 3) [m], world."""
        return self.body.position

    @property
    def ball_velocity(self) -> Tensor:
        """Velocities of the balls in the world, (n, 3) [m/s]."""
        return self.body.velocity

    @property
    def ball_speed(self) -> Tensor:
        """Speeds of the balls, (n,) [m/s]."""
        return torch.linalg.vector_norm(self.ball_velocity, dim=-1).nan_to_num(0.0)

    @property
    def radius(self) -> Tensor:
        """Radii of the balls, (n,) [m]."""
        return _between(self.config.radius_m, self.unit[:, 0])

    @property
    def mass(self) -> Tensor:
        """Masses of the balls, (n,) [kg]."""
        return _between(self.config.mass_kg, self.unit[:, 1])

    @property
    def drag(self) -> Tensor:
        """Coefficients c (n,) of the force c |v| v [N s^2/m^2]."""
        return _between(self.config.drag, self.unit[:, 2])

    @property
    def balls(self) -> Tensor:
        """`unit`; setting it resizes all balls."""
        return self.unit

    @balls.setter
    def balls(self, unit: Tensor) -> None:
        self.unit = unit
        self._make_balls(torch.arange(len(unit), device=unit.device))

    def _make_balls(self, ids: Tensor) -> None:
        self.body.make(ids, self.radius[ids], self.mass[ids])

    def privileged(self) -> Tensor:
        """Height, velocity in the heading frame and physics of the ball, and the time until the
        jump relative to the period, (n, 8)."""
        turn = geometry.yaw_matrix(geometry.yaw_of(self.env.state.root_rot))
        velocity = geometry.to_local(turn, self.ball_velocity)
        share = (self.left / self._period).unsqueeze(-1)
        return torch.cat((self.ball[:, 2:], velocity, self.unit, share), -1).nan_to_num(0.0)

    def _apply_forces(self) -> None:
        """Apply the drag of the next control step, and the slope's force."""
        mass = self.mass.unsqueeze(-1)
        force = drag_force(self.ball_velocity, self.drag.unsqueeze(-1), mass, self.env.dt)
        if self.config.slope_deg:
            pull = 9.81 * math.sin(math.radians(self.config.slope_deg))
            force = force + pull * mass * force.new_tensor([1.0, 0.0, 0.0])
        self.body.apply(torch.where(torch.isfinite(force), force, 0.0))

    # --- episodes ---

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """Sample a target near the ball, and the time of its first jump."""
        self._make_balls(ids)
        uniform = torch.rand((2, len(ids)), generator=generator, device=self.env.device)
        target = self.ball[ids, :2] + _polar(
            _between(TARGET_M, uniform[0]), 2.0 * math.pi * uniform[1]
        )
        left = torch.randint(
            1, self._period + 1, (len(ids),), generator=generator, device=self.env.device
        )
        if self._schedule is not None:  # all targets jump at the same times
            left = torch.full_like(left, self._period - self._step % self._period)
        self.target = self.target.index_copy(0, ids, target)
        self.left = self.left.index_copy(0, ids, left)
        here = self.ball[ids, None, :2].expand(-1, self.before.shape[1], -1)
        self.before = self.before.index_copy(0, ids, here)
        self.offset = self.offset.index_fill(0, ids, 0.0)

    def advance(self, result: StepResult, generator: torch.Generator) -> None:
        """Move due targets, and update observed positions and forces."""
        left = self.left - 1
        due = left <= 0
        uniform = torch.rand(len(left), generator=generator, device=left.device)
        if self._schedule is not None:
            uniform = self._schedule[min(self._step // self._period, len(self._schedule) - 1)]
            self._step += 1
        target = jumped(self.target, uniform, self.config.jump_m)
        self.target = torch.where(due.unsqueeze(-1), target, self.target)
        self.left = torch.where(due, self._period, left)
        self.before = torch.cat((self.before[:, 1:], self.ball[:, None, :2]), 1)
        self.offset = self.before[:, 0] - self.ball[:, :2]
        if spread := self.config.seen[1]:
            noise = torch.randn(self.offset.shape, generator=generator, device=left.device)
            self.offset = self.offset + spread * noise
        self._apply_forces()

    def schedule(self, steps: int, generator: torch.Generator | None) -> None:
        """As `Part.schedule`: sample the directions of all jumps, which are simultaneous."""
        if generator is None:
            self._schedule = None
            return
        size = (max(1, -(-steps // self._period)), self.env.num_envs)
        device = self.env.device
        self._schedule = torch.rand(size, generator=generator, device=device)
        self._step = 0

    def describe(self, i: int) -> dict[str, Any]:
        return {"target": self.target[i], "ball": self.ball[i]}

    # --- goals ---

    def goal(self) -> Tensor:
        """`BallGoal`, packed."""
        columns = BallGoal(
            self.ball[:, :2],
            self.ball_velocity[:, :2],
            self.target,
            self.radius,
            self.mass,
            self.drag,
            self.offset,
        )
        return columns.pack().nan_to_num(0.0)

    def new_goals(self, goal: Tensor, generator: torch.Generator) -> Tensor:
        """Sample targets within a jump's length of the ball."""
        uniform = torch.rand((2, len(goal)), generator=generator, device=goal.device)
        away = _polar(self.config.jump_m * uniform[0], 2.0 * math.pi * uniform[1])
        columns = BallGoal.of(goal)
        return columns._replace(target=columns.ball + away).pack()

    def next_goal(self, goal: Tensor, after: RobotState) -> Tensor:
        """As `Goals.next_goal`: the ball rolls and is pushed by the legs (`npmp.tasks.ball`).
        Raises InputError as `Legs`."""
        # created here, as trials and other algorithms also support legs of other shapes
        if self._legs is None:
            self._legs = Legs(self.robot).to(goal.device)
        legs = self._legs(after.root_pos, after.root_rot, after.joint_pos)
        c = BallGoal.of(goal)
        ball = rolled(Ball(c.ball, c.velocity, c.radius, c.mass, c.drag), legs, self.env.dt)
        return c._replace(ball=ball.position, velocity=ball.velocity).pack()


class BallStarts(Part):
    """Robots in the home pose or on a motion, with the ball in front of a fore foot or in a random
    direction."""

    def __init__(
        self,
        robot: Robot,
        config: DribbleConfig,
        balls: BallTargets,
        motions: MotionSet | None = None,
    ):
        """motions: as `StartPoses`."""
        self.robot = robot
        self.config = config
        self.balls = balls
        self.poses = StartPoses(robot, motions, share=config.reference_starts)
        # (2, 2) [m] the two foremost feet of the home pose, in the heading frame
        root, rotation, joints = pose_from_qpos(torch.tensor(robot.home_qpos))
        feet = Feet(robot)(root, rotation, joints).mean(-2)[:, :2] - root[:2]
        self._feet = feet[feet[:, 0].argsort(descending=True, stable=True)[:2]]

    def bind(self, env: TaskEnv[Any]) -> None:
        super().bind(env)
        self.poses.bind(env)

    def start(self, ids: Tensor, generator: torch.Generator, **where: Tensor) -> Start:
        """As `Starts`. where: `ball` (k, 2), position in the robot's heading frame [m]; `yaw`, as
        of `StartPoses.sample`."""
        begun = self.poses.sample(len(ids), generator, where.get("yaw"))
        device = self.env.device
        balls = self.balls
        uniform = torch.rand((8, len(ids)), generator=generator, device=device)
        balls.unit = balls.unit.index_copy(0, ids, uniform[:3].T)
        radius = balls.radius[ids]
        foot = self._feet.to(device)[(uniform[3] < 0.5).long()]
        ahead = foot[:, 0] + radius + self.robot.foot_radius + _between(AT_FEET_M, uniform[4])
        near = torch.stack((ahead, foot[:, 1]), -1)
        around = _polar(_between(AROUND_M, uniform[5]), 2.0 * math.pi * uniform[6])
        position = torch.where((uniform[7] < self.config.at_feet).unsqueeze(-1), near, around)
        position = where.get("ball", position).to(position)
        turn = geometry.yaw_matrix(geometry.yaw_of(begun.state.root_rot))[:, :2, :2]
        position = begun.state.root_pos[:, :2] + geometry.to_world(turn, position)
        scenes = balls.body.scenes(torch.cat((position, radius.unsqueeze(-1)), -1))
        return begun._replace(others=scenes)


class DribblingLoss(Part):
    """Distance of ball and target, with linearly increasing weights of steps; velocity errors
    relative to the script's commands; `stepping`."""

    def __init__(self, config: DribbleConfig):
        self.config = config

    def __call__(
        self, before: RobotState, after: RobotState, goals: Tensor, patch: Tensor
    ) -> TaskLoss:
        c = self.config
        env = self.env
        style = stepping(
            env.feet, after, c.stepping, env.dt, lambda at: env.ground.above(at, patch)
        )
        late = torch.arange(1, len(goals) + 1, device=goals.device).unsqueeze(-1) / (
            0.5 * len(goals) * (len(goals) + 1)
        )
        columns = BallGoal.of(goals)
        distance = torch.sqrt((columns.ball - columns.target).square().sum(-1) + 1e-4)
        loss = c.distance_weight * (late * distance).sum(0)
        if c.teacher_weight == 0.0:
            return TaskLoss(loss, style)
        with torch.no_grad():
            ball, target = ball_and_target(after, goals).split(2, -1)
            command = dribble_command(ball, target, c.teacher)
        off = velocity_loss(heading_velocity(after), command, VelocityLossConfig(), env.dt)
        return TaskLoss(loss + c.teacher_weight * off, style)


def ball_and_target(state: RobotState, goal: Tensor) -> Tensor:
    """Observed ball and target in the heading frame, (..., 4) [m]."""
    columns = BallGoal.of(goal)
    points = torch.stack((columns.ball + columns.offset, columns.target), -2)
    return in_heading(state, points).flatten(-2).nan_to_num(0.0)


def ball_radius(state: RobotState, goal: Tensor) -> Tensor:
    """The ball's radius, (..., 1) [m]."""
    return BallGoal.of(goal).radius.unsqueeze(-1).nan_to_num(0.0)


def distance(state: RobotState, goal: Tensor) -> Tensor:
    """Horizontal distance of ball and target, (...) [m]."""
    columns = BallGoal.of(goal)
    return torch.linalg.vector_norm(columns.ball - columns.target, dim=-1)


def lost(state: RobotState, goal: Tensor) -> Tensor:
    """Whether the ball is too far from its target or from the robot, (...) bool."""
    away = torch.linalg.vector_norm(BallGoal.of(goal).ball - state.root_pos[..., :2], dim=-1)
    return (distance(state, goal) > FAR_M) | (away > FAR_M)


class BallReward:
    """exp(-d^2 / phi), d the distance of ball and target."""

    def __init__(self, phi: float):
        """phi: [m^2]."""
        self.phi = phi

    def __call__(self, state: RobotState, goal: Tensor) -> Tensor:
        return torch.exp(-distance(state, goal).square() / self.phi)


def dribbling_figures(trial: Trial) -> dict[str, Any]:
    """Median distance of ball and target, over all steps and over the last second before each jump
    (without jumps, over the last step); mean speed of the ball; lost balls per minute."""
    metrics = trial.metrics
    late = trial.error[before_jump(trial)]
    late = late if len(late) else trial.error[-1]
    minutes = trial.fell.numel() * trial.dt / 60.0
    return {
        "ball_target_median_m": trial.error.median().item(),
        "ball_target_before_jump_median_m": late.median().item(),
        "ball_speed_mps": metrics["ball_speed"].mean().item(),
        "lost_per_minute": (metrics["lost"] & trial.fell).sum().item() / minutes,
    }


class Dribble(Task):
    """Bring a ball to a target and keep it there, on flat ground.

    An episode fails by tilt, by a floor contact of anything but the feet, or if the ball is too far
    from the robot or the target. A step is evaluated with the target before it; jumps follow the
    evaluation.
    """

    name = "dribble"
    config_type = DribbleConfig
    main_figure = "ball_target_before_jump_median_m"

    def __init__(
        self, robot: Robot, config: DribbleConfig | None = None, motions: MotionSet | None = None
    ):
        """motions: start poses; None: all episodes start in the home pose.

        Raises:
          InputError: for an empty dataset or one at another rate than the robot's control rate.
        """
        c = config or DribbleConfig()
        balls = BallTargets(robot, c)
        near = (-FAR_M, FAR_M)
        far = (-2 * FAR_M, 2 * FAR_M)
        parts = Parts(
            commands=balls,
            starts=BallStarts(robot, c, balls, motions),
            observations=[
                Inputs(
                    ball_and_target,
                    dict(zip(INPUTS, (near, near, far, far), strict=True)),
                    # the ball is usually within 1 m
                    scales=dict.fromkeys(INPUTS, (-1.0, 1.0)),
                ),
                *([Inputs(ball_radius, RADIUS_INPUT)] if c.observes_radius else []),
            ],
            rewards=[Term(BallReward(c.phi), name="ball")],
            terminations=[
                Tilt(c.tilt_limit_deg),
                FloorContacts(robot),
                lost,
                lambda state, goal: ~torch.isfinite(balls.ball).all(-1),
            ],
            loss=DribblingLoss(c),
            error=distance,
            error_name="ball_target_m",
            metrics={
                "ball": lambda state, goal: BallGoal.of(goal).ball,
                "target": lambda state, goal: BallGoal.of(goal).target,
                "robot": lambda state, goal: state.root_pos[..., :2].nan_to_num(0.0),
                "ball_speed": lambda state, goal: balls.ball_speed,
                "to_jump_s": lambda state, goal: balls.left * balls.env.dt,
                "lost": lost,
            },
            figures=Figures(
                dribbling_figures,
                logged=(
                    "ball_target_median_m",
                    "ball_target_before_jump_median_m",
                    "falls_per_minute",
                    "survived",
                ),
                channels=(("Ball, x", "m"), ("Ball, y", "m")),
                traced=("target", "ball"),
            ),
            privileged=[balls.privileged],
            episode_s=c.episode_s,
            script=DribbleScript(c.teacher),
        )
        super().__init__(robot, c, parts)

    @classmethod
    def resolve(
        cls, config: DribbleConfig, motions: MotionSet | None, training: Mapping[str, Any]
    ) -> DribbleConfig:
        """As `Task.resolve`: a policy observes the radius as in its training."""
        if "command" not in training:
            return config
        observes = set(RADIUS_INPUT) <= set(training["command"])
        return replace(config, observes_radius=observes)


DribbleEnv = TaskEnv[Dribble]


def before_jump(trial: Trial) -> Tensor:
    """Whether a step is in the last second before a jump of the target, (T, n) bool."""
    return trial.metrics["to_jump_s"] <= 1.0 + 0.5 * trial.dt
