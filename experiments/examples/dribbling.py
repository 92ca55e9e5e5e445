"""A planning teacher for task=dribble: MPPI over the commands of a walking policy.

    npmp reuse task=dribble algo=clone module=anymal_b_dog \
      teacher=experiments/examples/dribbling.py:DribblePlanner

With walker=POLICY and +teacher_settings.policy=POLICY a student learns its commands, in place of
joint targets.

Five times a second it samples sequences of commands around the script and the last plan, predicts
robot and ball with a model, and averages the sequences with weights exp(-cost / temperature)
(Williams et al. 2017). It observes true states, and the ball's velocity and radius. Points of the
plane are complex numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npmp.core import geometry, ranges
from npmp.core.tree import Tree, map_tree
from npmp.envs.policy import Observation, PolicyOutput
from npmp.envs.state import RobotState
from npmp.envs.task_env import TaskEnv
from npmp.evaluation.policy import at_task
from npmp.skills import policies
from npmp.skills.high_level_policy import load_policy
from npmp.tasks.teachers.dribbling import DribbleScriptConfig, dribble_command
from npmp.tasks.teachers.scripts import Script
from npmp.tasks.velocity import heading_velocity

STEP_S = 0.1  # step of the model
SUBSTEPS = 2  # of a step, for contacts


@dataclass(frozen=True)
class PlannerConfig:
    """Settings of planner and model, for ANYmal B [D: the model's by random search on rollouts,
    experiments/results/2026-11-30-ball-planner.md]. Raises ValueError for values out of range."""

    # a shipped policy, whose commands are planned
    policy: str = "anymal_b_dribble"
    # steps of the model in a sequence
    horizon: int = 30
    # sequences; half are near the script's commands, half near the previous plan
    samples: int = 64
    # steps of the model during which noise is constant
    noise_steps: int = 4
    # standard deviation of the noise, forward, lateral, yaw rate [m/s, m/s, rad/s]
    noise: tuple[float, float, float] = (0.35, 0.2, 0.8)
    # of the weights exp(-cost / temperature) of sequences
    temperature: float = 0.05
    # weight of the way from the end of a sequence to the position behind the ball
    place_weight: float = 0.25
    # time constant of the body's velocity, and of its yaw rate [s]
    lag_s: tuple[float, float] = (0.099, 0.076)
    # achieved share of commands (forward, lateral, yaw rate)
    gain: tuple[float, float, float] = (0.957, 0.927, 0.843)
    # distance of the legs from the root, forward and lateral [m]
    legs_m: tuple[float, float] = (0.408, 0.275)
    # radius of a leg with its swing [m]
    leg_m: float = 0.090
    # speed of a ball after contact, relative to the leg's
    kick: float = 1.43
    # deceleration of the ball [m/s^2]
    rolling: float = 2.18
    # of the noise
    seed: int = 0

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "samples", "noise_steps")
        if self.horizon < 2:
            raise ValueError(f"horizon={self.horizon}: must be at least 2 [steps]")
        ranges.above_zero(self, "temperature", "lag_s", "legs_m", "leg_m", "kick", "rolling")
        ranges.not_negative(self, "noise", "place_weight")


class Scene(NamedTuple):
    """Robot and ball in the plane, each (...)."""

    root: Tensor  # complex [m]
    heading: Tensor  # complex, a unit vector
    velocity: Tensor  # complex, in the heading frame [m/s]
    yaw_rate: Tensor  # [rad/s]
    ball: Tensor  # complex [m]
    ball_velocity: Tensor  # complex [m/s]

    def to_heading(self, point: Tensor) -> Tensor:
        """A complex point in the heading frame, (..., 2) [m]."""
        return torch.view_as_real((point - self.root) * self.heading.conj())


def predict(scene: Scene, command: Tensor, radius: Tensor, config: PlannerConfig) -> Scene:
    """Robot and ball after `STEP_S`. command: (..., 3). radius: (...) of the ball [m].

    Legs are discs fixed to the body. A disc that overlaps the ball moves it out, and the ball takes
    on the normal part of its velocity, times `kick`.
    """
    c = config
    dt = STEP_S / SUBSTEPS
    gain = command.new_tensor(c.gain)
    forward, lateral, turn = (command * gain).unbind(-1)
    wanted = torch.complex(forward, lateral)
    follow, follow_turn = (1.0 - math.exp(-dt / lag) for lag in c.lag_s)
    x, y = c.legs_m
    legs = torch.tensor([complex(i * x, j * y) for i in (1, -1) for j in (1, -1)])
    legs = legs.to(scene.root)
    reach = (radius + c.leg_m).unsqueeze(-1)
    root, heading, velocity, yaw_rate, ball, rolling = scene
    for _ in range(SUBSTEPS):
        velocity = velocity + follow * (wanted - velocity)
        yaw_rate = yaw_rate + follow_turn * (turn - yaw_rate)
        heading = heading * torch.polar(torch.ones_like(yaw_rate), yaw_rate * dt)
        root = root + heading * velocity * dt
        # contacts in the heading frame
        away = ((ball - root) * heading.conj()).unsqueeze(-1) - legs
        distance = away.abs().clamp(min=1e-4)
        normal = away / distance
        depth = (reach - distance).clamp(min=0.0)
        kick = c.kick * (velocity.unsqueeze(-1) + 1j * yaw_rate.unsqueeze(-1) * legs)
        slower = kick - (rolling * heading.conj()).unsqueeze(-1)
        push = (slower * normal.conj()).real.clamp(min=0.0) * (depth > 0.0)
        rolling = rolling + heading * (push * normal).sum(-1)
        ball = ball + heading * (depth * normal).sum(-1)
        speed = rolling.abs().clamp(min=1e-4)
        rolling = rolling * (1.0 - c.rolling * dt / speed).clamp(min=0.0)
        ball = ball + rolling * dt
    return Scene(root, heading, velocity, yaw_rate, ball, rolling)


def plan(
    scene: Scene,
    target: Tensor,
    radius: Tensor,
    before: Tensor,
    script: DribbleScriptConfig,
    config: PlannerConfig,
    generator: torch.Generator,
) -> Tensor:
    """Commands (n, H, 3) of the next H steps of the model.

    Args:
      scene: (n,). target: (n,) complex [m]. radius: (n,) of the ball [m].
      before: (n, H, 3) the previous plan for the same steps.
      script: its commands are the centre of half the samples, its limits those of all.
    """
    c = config
    n = len(target)
    half = c.samples // 2
    noise = _noise(n, c, generator).to(before)
    lowest, highest = (before.new_tensor(limits) for limits in (script.lowest, script.highest))
    target = target.unsqueeze(-1)
    radius = radius.unsqueeze(-1)
    sampled = Scene(*(part.unsqueeze(-1).expand(n, c.samples) for part in scene))
    cost = radius.new_zeros(n, c.samples)
    commands = []
    for t in range(c.horizon):
        first = Scene(*(part[:, :half] for part in sampled))
        ball, goal = (first.to_heading(point).flatten(0, 1) for point in (first.ball, target))
        scripted = dribble_command(ball, goal, script).unflatten(0, (n, half))
        planned = before[:, None, t].expand(n, c.samples - half, 3)
        command = torch.cat((scripted, planned), 1) + noise[:, :, t]
        commands.append(command.clamp(lowest, highest))
        sampled = predict(sampled, commands[-1], radius, c)
        cost = cost + STEP_S * (0.5 + t / c.horizon) * (sampled.ball - target).abs()
    cost = cost + cost_to_go(sampled, target, radius, script, c)
    weight = torch.softmax(-cost / c.temperature, -1)
    return torch.einsum("nk,nktc->ntc", weight, torch.stack(commands, 2))


def _noise(n: int, c: PlannerConfig, generator: torch.Generator) -> Tensor:
    """(n, K, H, 3): constant over `noise_steps`, of a random size for each k; 0 for the first of
    each half."""
    knots = -(-c.horizon // c.noise_steps)
    device = generator.device
    noise = torch.randn(n, c.samples, knots, 3, generator=generator, device=device)
    size = 1.2 * torch.rand(c.samples, 1, 1, generator=generator, device=device)
    size[0] = size[c.samples // 2] = 0.0
    noise = noise * size * noise.new_tensor(c.noise)
    return noise.repeat_interleave(c.noise_steps, 2)[:, :, : c.horizon]


def cost_to_go(
    scene: Scene, target: Tensor, radius: Tensor, script: DribbleScriptConfig, config: PlannerConfig
) -> Tensor:
    """Distance from where the ball stops to its target, and the robot's way to the position behind
    it, (...) [m]."""
    c = config
    rolling = scene.ball_velocity
    stop = scene.ball + rolling * rolling.abs() / (2.0 * c.rolling)
    distance = (stop - target).abs()
    along = (target - stop) / distance.clamp(min=1e-3)
    root = (scene.root - stop) * along.conj()  # with the target in direction 1
    lateral = root.imag.abs() - script.side
    # the script's reach is that of a ball of 0.117 m
    ahead = root.real + script.reach + radius - 0.117
    front = ahead.clamp(min=0.0)
    # from in front of the ball the way leads around it
    way = torch.sqrt(front.square() + lateral.square()) + 0.5 * front + 0.3 * (front - ahead)
    turn = (scene.heading * along.conj()).angle().abs()
    share = (distance / script.done - 1.0).clamp(0.0, 1.0)
    return distance + c.place_weight * share * (way + 0.3 * turn)


class PlannerState(NamedTuple):
    """The state of the planner."""

    plan: Tensor  # (n, H, 3)
    age: Tensor  # (n,) control steps since it was made
    walker: Tree


class _Commands:
    """The script of a policy, replaced by commands that are set before each step."""

    def __init__(self, script: Script):
        self.features = script.features
        self.current: Tensor

    def step(self, observation: Observation, state: Tree) -> tuple[Tensor, Tree]:
        return self.current, state


class DribblePlanner:
    """The planner and its walking policy as a policy of task `dribble`."""

    config_type = PlannerConfig

    def __init__(self, env: TaskEnv[Any], config: PlannerConfig | None = None):
        """Raises InputError for an unknown policy, and one of another robot or without velocity
        commands."""
        c = self.config = config or PlannerConfig()
        self.env = env
        self.walker = load_policy(policies.find(c.policy), env.robot, device=env.device)
        upper: Any = at_task(self.walker.upper, env.robot, "dribble", env.task.config)
        self.script: DribbleScriptConfig = upper.script.config
        self.commands = upper.script = _Commands(upper.script)
        self.walker.upper = upper
        self.generator = torch.Generator(env.device).manual_seed(c.seed)
        self.steps = round(STEP_S / env.dt)  # control steps per step of the model

    def initial_state(self, n: int) -> PlannerState:
        plan = torch.zeros(n, self.config.horizon, 3, device=self.env.device)
        age = torch.full((n,), 2 * self.steps, device=self.env.device)
        return PlannerState(plan, age, self.walker.initial_state(n))

    def step(
        self, observation: Observation, state: PlannerState
    ) -> tuple[PolicyOutput, PlannerState]:
        """As `Policy.step`. `PolicyOutput.info` is the command (n, 3) [m/s, m/s, rad/s]."""
        plans, age, walker = state
        ids = torch.nonzero(age >= 2 * self.steps).squeeze(-1)
        if len(ids):
            before = plans[ids]
            before = torch.cat((before[:, 2:], before[:, -1:], before[:, -1:]), 1)
            plans = plans.index_copy(0, ids, self._plan(ids, before))
            age = age.index_fill(0, ids, 0)
        command = plans.gather(1, (age // self.steps)[:, None, None].expand(-1, 1, 3)).squeeze(1)
        balls = self.env.task.parts.commands
        off = torch.linalg.vector_norm(balls.ball[:, :2] - balls.target, dim=-1, keepdim=True)
        self.commands.current = torch.where(off < self.script.done, 0.0, command)
        output, walker = self.walker.step(observation, walker)
        commanded = PolicyOutput(output.action, self.commands.current)
        return commanded, PlannerState(plans, age + 1, walker)

    def _plan(self, ids: Tensor, before: Tensor) -> Tensor:
        """New plans (k, H, 3) of robots ids (k,)."""
        robot: RobotState = map_tree(lambda part: part[ids], self.env.state)
        balls = self.env.task.parts.commands
        velocity = heading_velocity(robot)
        yaw = geometry.yaw_of(robot.root_rot).nan_to_num(0.0)
        origin = robot.root_pos[:, :2]
        scene = Scene(
            _complex(torch.zeros_like(origin)),
            torch.polar(torch.ones_like(yaw), yaw),
            _complex(velocity[:, :2]),
            velocity[:, 2].nan_to_num(0.0),
            _complex(balls.ball[ids, :2] - origin),
            _complex(balls.ball_velocity[ids, :2]),
        )
        target = _complex(balls.target[ids] - origin)
        radius = balls.radius[ids]
        return plan(scene, target, radius, before, self.script, self.config, self.generator)


def _complex(point: Tensor) -> Tensor:
    """(..., 2) as complex numbers."""
    return torch.view_as_complex(point.nan_to_num(0.0).contiguous())
