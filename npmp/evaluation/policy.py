"""How well a policy does its task: a long trial; of walking also trials by speed, push, ground."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp import tasks
from npmp.core import geometry, ranges
from npmp.core.tree import Tree
from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.envs.policy import Observation, Policy, PolicyOutput
from npmp.envs.task import Task, Trial
from npmp.evaluation import gait
from npmp.evaluation.terrains import on_terrains
from npmp.evaluation.trial import effort, run_trial
from npmp.robots import Robot
from npmp.sim.randomization import PushConfig
from npmp.skills.composition import Composition
from npmp.skills.high_level_policy import HighLevelPolicy, PolicyContract
from npmp.skills.skill_module import SkillModule
from npmp.tasks.commands import CommandRange
from npmp.tasks.teachers.dribbling import DribbleScriptConfig
from npmp.tasks.velocity import SETTLING_S

# a script commands at least so much either way [m/s, rad/s]
LEAST = 0.01
# how long a push lasts, as in the randomization of reuse
PUSH_S = 0.2
# under a random command first, so that trials at one speed differ on nominal robots, too
LEAD_S = 1.0
# after the start
PUSHED_AT_S = 3.0


@dataclass(frozen=True)
class PolicyEvaluationConfig:
    """How much a policy is tried."""

    # in every trial
    robots: int = 64
    # of the main trial; None: the task's own
    seconds: float | None = None
    # also trials that keep a command each, over a grid of the range: gait, error, falls
    grid: bool = False
    # [N], each exactly so strong, for 0.2 s, from all sides
    pushes: tuple[float, ...] = ()
    # also trials on slopes, stairs and Perlin noise of many sizes
    grounds: bool = False
    # of the trials on the grid, under pushes and on grounds
    short_s: float = 10.0

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "robots")
        ranges.above_zero(self, "short_s", "seconds")
        if not all(0.0 < force < math.inf for force in self.pushes):
            raise ValueError(f"pushes must be above 0 N, got {list(self.pushes)}")


class PolicyEvaluation(NamedTuple):
    """Figures, and the main trial that they are of."""

    # of the task, effort and gait, and rows of `grid`, `pushes` and `grounds`
    figures: dict[str, Any]
    trial: Trial
    task: Task


def teacher_of(contract: PolicyContract) -> str:
    """What showed a policy the task: another policy, or a script of ours; "" for neither."""
    if contract.training.get("algorithm") == "clone":
        return str(contract.training.get("teacher", f"scripted teacher of task={contract.task}"))
    return f"script of task={contract.task}" if contract.script else ""


def at_task(policy: HighLevelPolicy, robot: Robot, name: str, config: Any) -> HighLevelPolicy:
    """The policy; of a walking policy, at a task with a script that commands one, both together:
    what the script does alone, within the policy's commands. config: the task's settings."""
    kind: Any = tasks.find(name)
    has_script = isinstance(getattr(config, "teacher", None), DribbleScriptConfig)
    if policy.contract.task == name or not has_script:
        return policy
    # the script asks for what the policy was trained for
    low, high = zip(*policy.contract.command_range, strict=True)
    script = replace(
        config.teacher,
        lowest=tuple(min(max(pair), -LEAST) for pair in zip(config.teacher.lowest, low)),
        highest=tuple(max(min(pair), LEAST) for pair in zip(config.teacher.highest, high)),
    )
    return policy.for_other_task(kind(robot, replace(config, teacher=script)))


def task_for(
    policy: HighLevelPolicy,
    robot: Robot,
    name: str,
    config: Any = None,
    motions: MotionSet | None = None,
) -> Callable[[], Task]:
    """What makes a task for a policy, over the commands that it was trained for where `config`, the
    task's settings, names none. Raises InputError for a task that it was not trained for."""
    kind: Any = tasks.find(name)
    policy.check_task(kind)
    settings = kind.resolve(config, None, policy.contract.input_settings)
    return lambda: kind(robot, settings, motions)


def evaluate_policy(
    policy: Composition,
    make_task: Callable[[], Task],
    config: PolicyEvaluationConfig,
    robots: RobotBatchConfig | None = None,
    *,
    motions: MotionSet | None = None,
    seed: int = 0,
    **place: Any,
) -> PolicyEvaluation:
    """Measure a policy at a task.

    Args:
      make_task: the task; called for each trial.
      robots: drives, sensors, physics and pushes; by default ideal robots, driven as the policy's
        module was.
      motions: recordings whose gait, and that of the module that tracks them, stands beside the
        policy's on the grid.
      place: sim, device and num_threads, as `TaskEnv` takes them.

    Raises:
      InputError: for a policy of another task, and for a grid, pushes or grounds of a task that
        takes no velocities.
    """
    task = make_task()
    robots = robots or RobotBatchConfig().like(policy.lower)
    policy.upper.check_task(task)
    place = {"seed": seed, **place, "robots": robots}
    if (config.grid or config.pushes or config.grounds) and not task.steerable:
        raise InputError(
            "trials on a grid of commands, under pushes and on grounds are for tasks that take "
            f"velocities, not for {task.name}"
        )
    env = TaskEnv(task, config.robots, **place)
    trial = run_trial(policy, env, seconds=config.seconds or task.trial_s, seed=seed)
    figures = task.figures(trial) | effort(trial) | gait.worst_foot(trial)
    if config.grid:
        commands = grid_of(task.config.range)
        env = TaskEnv(make_task(), len(commands) * config.robots, **place)
        figures["grid"] = by_command(policy, env, commands, seconds=config.short_s, seed=seed)
        if motions is not None:
            beside(figures["grid"], policy.lower, task.robot, motions, **place)
    if config.pushes:
        calm = place | {"robots": replace(robots, pushes=PushConfig())}
        env = TaskEnv(make_task(), len(config.pushes) * config.robots, **calm)
        figures["pushes"] = under_pushes(
            policy, env, config.pushes, seconds=config.short_s, seed=seed
        )
    if config.grounds:
        kind: Any = type(task)

        def on(settings: Any) -> TaskEnv[Any]:
            return TaskEnv(kind(task.robot, settings), config.robots, **place)

        figures["grounds"] = on_terrains(policy, on, task.config, seconds=config.short_s, seed=seed)
    return PolicyEvaluation(figures, trial, task)


# --- a grid of commands ---


def grid_of(command_range: CommandRange) -> Tensor:
    """Commands (k, 3): each component over its range in even steps, the others as near to zero as
    theirs goes, and standing. Steps of at most 0.25 m/s forward, half of the range sideways and in
    turns."""
    bounds = torch.tensor(command_range)
    rest = torch.zeros(3).clamp(bounds[:, 0], bounds[:, 1])
    rows = [rest]
    for i, ends in enumerate(command_range):
        for end in ends:
            steps = max(2, math.ceil(abs(end) / 0.25 - 1e-6)) if i == 0 else 2
            for k in range(1, steps + 1):
                row = rest.clone()
                row[i] = end * k / steps
                if bounds[i, 0] <= row[i] <= bounds[i, 1] and row[i] != rest[i]:
                    rows.append(row)
    return torch.stack(rows)


def led(env: TaskEnv[Any], commands: Tensor, seed: int) -> Tensor:
    """Commands (n, 3) to keep, after `LEAD_S` of others sampled as in training: (T, n, 3)."""
    generator = torch.Generator(env.device).manual_seed(seed)
    others = env.task.commands.draw(
        torch.zeros(env.num_envs, 3, device=env.device), generator, change=1.0
    )
    return torch.cat(
        (others.expand(max(1, round(LEAD_S / env.dt)), -1, -1), commands.to(others)[None])
    )


def by_command(
    policy: Policy, env: TaskEnv[Any], commands: Tensor, *, seconds: float, seed: int = 0
) -> list[dict[str, Any]]:
    """Robots that each keep one of the commands (k, 3) after a second of others.

    Returns: a row per command. `command`; `falls` of its robots and `success`, the share without
    one. From a second after the change until the first fall: `achieved`, the mean velocity (3,);
    `dead`, whether a commanded component brings less than half; the base's roll (RMS),
    pitch (mean) and height; `joint_speed_share` and `torque_share`, the 99.9th percentile of the
    fastest and the most loaded joint over its limit; `stepping_figures`; `faults` in words.
    """
    each = env.num_envs // len(commands)
    robot = env.robot
    schedule = led(env, commands.repeat_interleave(each, 0), seed)
    trial = run_trial(policy, env, seconds=LEAD_S + seconds, seed=seed, commands=schedule)
    up = trial.fell.cumsum(0) == 0  # (T, n)
    up[: round((LEAD_S + 2.0 * SETTLING_S) / trial.dt)] = False
    pairs = gait.opposite(robot)
    rows = []
    for i, command in enumerate(commands):
        mine = slice(i * each, (i + 1) * each)
        kept = up[:, mine]
        fell = trial.fell[:, mine]
        row: dict[str, Any] = {
            "command": [round(value, 6) for value in command.tolist()],
            "falls": int(fell.sum()),
            "success": (~fell.any(0)).float().mean().item(),
        }
        if kept.any():
            seen = {name: part[:, mine][kept] for name, part in trial.seen.items()}
            achieved = seen["achieved"].mean(0)
            base = seen["base"]
            row |= {
                "achieved": achieved.tolist(),
                "dead": bool((achieved * command.sign() < 0.5 * command.abs()).any()),
                "roll_rms_rad": base[:, 0].square().mean().sqrt().item(),
                "pitch_rad": base[:, 1].mean().item(),
                "height_m": base[:, 2].mean().item(),
                "height_std_m": base[:, 2].std(correction=0).item(),
                "joint_speed_share": _peak(seen["joint_vel"], robot.velocity_limit),
                "torque_share": _peak(seen["torque"], robot.torque_limit),
                **gait.stepping_figures(gait.stepping_of(trial, mine, kept), pairs),
            }
        row["faults"] = gait.faults(row, float(robot.home_qpos[2]))
        rows.append(row)
    return rows


def _peak(values: Tensor, limit: Any) -> float:
    """The largest over joints of the 99.9th percentile of magnitudes (N, nu), in limits (nu,)."""
    share = values.abs() / values.new_tensor(limit)
    return share.topk(max(1, round(0.001 * len(share))), dim=0).values[-1].max().item()


def beside(
    rows: Sequence[dict[str, Any]],
    skill: SkillModule,
    robot: Robot,
    motions: MotionSet,
    *,
    seed: int = 0,
    **place: Any,
) -> None:
    """Add to each row of `by_command` how the module steps while it tracks recordings at about that
    velocity, `module`, and how these do, `recorded`; None where there are too few."""
    pairs = gait.opposite(robot)
    sources = {"recorded": gait.recorded_stepping(robot, motions)}
    if skill.contract.decoder == "lstm":
        skill.check_encoder(robot)
        sources["module"] = gait.module_stepping(skill, robot, motions, seed=seed, **place)
    for row in rows:
        for name, (seen, velocity) in sources.items():
            row[name] = gait.at_command(seen, velocity, row["command"], pairs)


# --- pushes ---


class Pushed:
    """A policy whose robots are pushed on a schedule."""

    def __init__(self, policy: Policy, env: TaskEnv[Any], force: Tensor, *, turned: bool = False):
        """force: (T, n, 2) [N] on the root bodies in each control step, then none; in the world
        frame or, where `turned`, forwards and to the left in each robot's heading frame."""
        self.policy = policy
        self.env = env
        self.force = force
        self.turned = turned
        self._t = 0
        self.initial_state = policy.initial_state

    def step(self, observation: Observation, state: Tree) -> tuple[PolicyOutput, Tree]:
        env = self.env
        force = (
            self.force[self._t] if self._t < len(self.force) else torch.zeros_like(self.force[0])
        )
        if self.turned:
            yaw = geometry.yaw_matrix(geometry.yaw_of(env.state.root_rot))[:, :2, :2]
            force = geometry.to_world(yaw, force.to(yaw))
        env.robots.push(force)
        self._t += 1
        output: PolicyOutput
        output, state = self.policy.step(observation, state)
        return output, state


def under_pushes(
    policy: Policy, env: TaskEnv[Any], forces: Sequence[float], *, seconds: float, seed: int = 0
) -> list[dict[str, float]]:
    """Robots that walk straight on, at the middle of their range, each pushed once, from evenly
    spread directions.

    Args:
      env: as many robots for each of the forces [N], without random pushes.

    Returns: a row per force: `upright`, the share of the robots that were up when pushed (`robots`)
    and did not fall until the end.
    """
    each = env.num_envs // len(forces)
    dt = env.dt
    angle = 2.0 * math.pi * torch.arange(each) / each
    direction = torch.stack((torch.cos(angle), torch.sin(angle)), -1)
    force = torch.cat([size * direction for size in forces]).to(env.device)
    middle = torch.tensor(env.task.config.range).mean(-1)
    command = led(env, torch.tensor([float(middle[0]), 0.0, 0.0]).expand(env.num_envs, 3), seed)
    start = round(PUSHED_AT_S / dt)
    schedule = force.new_zeros(start + max(1, round(PUSH_S / dt)), *force.shape)
    schedule[start:] = force
    pushed = Pushed(policy, env, schedule)
    trial = run_trial(pushed, env, seconds=PUSHED_AT_S + seconds, seed=seed, commands=command)
    rows = []
    for i, size in enumerate(forces):
        fell = trial.fell[:, i * each : (i + 1) * each]
        there = ~fell[:start].any(0)
        rows.append(
            {
                "force_n": float(size),
                "duration_s": PUSH_S,
                "upright": (there & ~fell.any(0)).sum().item() / max(int(there.sum()), 1),
                "robots": int(there.sum()),
            }
        )
    return rows
