"""Evaluation of a policy: a trial of its task; for walking also by command, push and terrain."""

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
from npmp.envs.policy import Observation, Policy, PolicyOutput, bind
from npmp.envs.task import Task, Trial
from npmp.evaluation import gait
from npmp.evaluation.terrains import evaluate_terrains
from npmp.evaluation.transitions import evaluate_transitions
from npmp.evaluation.trial import effort, part_of, run_trial
from npmp.robots import Robot
from npmp.sim.randomization import PushConfig
from npmp.skills.composition import Composition
from npmp.skills.footsteps import FootstepPolicy
from npmp.skills.high_level_policy import HighLevelPolicy, PolicyContract
from npmp.skills.skill_module import SkillModule
from npmp.tasks.commands import CommandRange
from npmp.tasks.teachers.dribbling import DribbleScriptConfig
from npmp.tasks.velocity import SETTLING_S

# least range of a script's commands [m/s, rad/s]
MIN_COMMAND = 0.01
# duration of a push, as in the randomization of reuse
PUSH_S = 0.2
# time under a random command before a constant one, so that trials of nominal robots differ
LEAD_S = 1.0
# time of the push
PUSHED_AT_S = 3.0


@dataclass(frozen=True)
class PolicyEvaluationConfig:
    """Extent of an evaluation."""

    # per trial, or per command, force and terrain
    robots: int = 64
    # duration of the main trial; None: the task's
    seconds: float | None = None
    # whether to add trials with constant commands, over a grid of the range (gait, error, falls),
    # and one that stands, walks, stops, turns about and stops
    grid: bool = False
    # also trials with pushes of these forces [N], for 0.2 s, from all directions
    pushes: tuple[float, ...] = ()
    # also trials on stairs, slopes, gaps and other ground of many sizes; task.terrain restricts the
    # kinds
    grounds: bool = False
    # duration of those trials [s]
    short_s: float = 10.0

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "robots")
        ranges.above_zero(self, "short_s", "seconds")
        if not all(0.0 < force < math.inf for force in self.pushes):
            raise ValueError(f"pushes must be above 0 N, got {list(self.pushes)}")


class PolicyEvaluation(NamedTuple):
    """Metrics of a policy, and the main trial."""

    # figures of the task, effort and gait, and the rows of `grid`, `transitions`, `pushes` and
    # `grounds`
    figures: dict[str, Any]
    trial: Trial
    task: Task


def teacher_of(contract: PolicyContract) -> str:
    """The teacher of a policy, a policy or a script; "" if it had none."""
    if contract.training.get("algorithm") == "clone":
        return str(contract.training.get("teacher", f"scripted teacher of task={contract.task}"))
    return f"script of task={contract.task}" if contract.script else ""


def at_task(policy: HighLevelPolicy, robot: Robot, name: str, settings: Any) -> HighLevelPolicy:
    """The policy; a walking policy at a task with a script is driven by the script,
    within the policy's range of commands. settings: of the task."""
    kind: Any = tasks.find(name)
    has_script = isinstance(getattr(settings, "teacher", None), DribbleScriptConfig)
    if policy.contract.task == name or not has_script:
        return policy
    low, high = zip(*policy.contract.command_range, strict=True)
    script = replace(
        settings.teacher,
        lowest=tuple(min(max(pair), -MIN_COMMAND) for pair in zip(settings.teacher.lowest, low)),
        highest=tuple(max(min(pair), MIN_COMMAND) for pair in zip(settings.teacher.highest, high)),
    )
    return policy.for_other_task(kind(robot, replace(settings, teacher=script)))


def task_factory(
    policy: HighLevelPolicy | FootstepPolicy,
    robot: Robot,
    name: str,
    settings: Any = None,
    motions: MotionSet | None = None,
) -> Callable[[], Task]:
    """A function that creates a policy's task; its range of commands is by default the policy's.

    Raises:
      InputError: if the policy was not trained for the task.
    """
    kind: Any = tasks.find(name)
    policy.check_task(kind)
    resolved = kind.resolve(settings, None, policy.contract.input_settings)
    return lambda: kind(robot, resolved, motions)


def evaluate_policy(
    policy: Composition,
    make_task: Callable[[], Task],
    config: PolicyEvaluationConfig,
    robots: RobotBatchConfig | None = None,
    *,
    motions: MotionSet | None = None,
    seed: int = 0,
    **device_options: Any,
) -> PolicyEvaluation:
    """Evaluate a policy at a task.

    Args:
      make_task: called for each trial.
      robots: drives, sensors, physics and pushes; by default ideal robots, with the hold of the
        module's training.
      motions: recordings; their gait and that of the module tracking them are added to the grid.
      device_options: engine, device and num_threads, as of `TaskEnv`.

    Raises:
      InputError: for a policy of another task, and for a grid, pushes or grounds of a task without
        velocity commands.
    """
    task = make_task()
    robots = robots or RobotBatchConfig().like(policy.lower)
    policy.upper.check_task(task)
    env_options = {"seed": seed, **device_options, "robots": robots}
    if (config.grid or config.pushes or config.grounds) and not task.steerable:
        raise InputError(
            f"grid, pushes and grounds need a task with velocity commands; '{task.name}' has none"
        )
    env = TaskEnv(task, config.robots, **env_options)
    trial = run_trial(policy, env, seconds=config.seconds or task.trial_s, seed=seed)
    figures = task.figures(trial) | effort(trial) | gait.worst_foot(trial)
    if config.grid:
        commands = command_grid(task.commands.config.range)
        env = TaskEnv(make_task(), len(commands) * config.robots, **env_options)
        figures["grid"] = evaluate_commands(
            policy, env, commands, seconds=config.short_s, seed=seed
        )
        env = TaskEnv(make_task(), config.robots, **env_options)
        figures["transitions"] = evaluate_transitions(policy, env, seed=seed)
        if motions is not None:
            add_references(figures["grid"], policy.lower, task.robot, motions, **env_options)
    if config.pushes:
        calm = env_options | {"robots": replace(robots, pushes=PushConfig())}
        env = TaskEnv(make_task(), len(config.pushes) * config.robots, **calm)
        figures["pushes"] = evaluate_pushes(
            policy, env, config.pushes, seconds=config.short_s, seed=seed
        )
    if config.grounds:
        kind: Any = type(task)

        def make_env(settings: Any) -> TaskEnv[Any]:
            return TaskEnv(kind(task.robot, settings), config.robots, **env_options)

        figures["grounds"] = evaluate_terrains(
            policy, make_env, task.config, seconds=config.short_s, seed=seed
        )
    return PolicyEvaluation(figures, trial, task)


# --- a grid of commands ---


def command_grid(command_range: CommandRange) -> Tensor:
    """Commands (k, 3): standing, and each component over its range with the others at zero (clamped
    to their range). Steps of at most 0.25 m/s forward, half of the range lateral and yaw."""
    bounds = torch.tensor(command_range)
    rest = torch.zeros(3).clamp(bounds[:, 0], bounds[:, 1])
    rows = [rest]
    for i, ends in enumerate(command_range):
        for end in ends:
            num_steps = max(2, math.ceil(abs(end) / 0.25 - 1e-6)) if i == 0 else 2
            for k in range(1, num_steps + 1):
                row = rest.clone()
                row[i] = end * k / num_steps
                if bounds[i, 0] <= row[i] <= bounds[i, 1] and row[i] != rest[i]:
                    rows.append(row)
    return torch.stack(rows)


def lead_in(env: TaskEnv[Any], commands: Tensor, seed: int) -> Tensor:
    """`LEAD_S` of random commands, then constant commands (n, 3): (T, n, 3)."""
    generator = torch.Generator(env.device).manual_seed(seed)
    others = env.task.commands.sample_trial(
        torch.zeros(env.num_envs, 3, device=env.device), generator, change=1.0
    )
    return torch.cat(
        (others.expand(max(1, round(LEAD_S / env.dt)), -1, -1), commands.to(others)[None])
    )


def evaluate_commands(
    policy: Policy, env: TaskEnv[Any], commands: Tensor, *, seconds: float, seed: int = 0
) -> list[dict[str, Any]]:
    """A trial with constant commands (k, 3), an equal number of robots each.

    Returns: a row per command: `command`; `falls`; `success`, the share of robots without a fall.
    Over the time from a second after the change of command to the first fall: `achieved`, the mean
    velocity (3,); `dead`, whether less than half of a component is achieved; the base's roll (RMS),
    pitch (mean) and height; `joint_speed_share` and `torque_share`, the 99.9th percentile of the
    fastest and the most loaded joint over its limit; `gait.gait_metrics`. At command zero
    `gait.standing_metrics` from the change of command on. `faults`, messages.
    """
    per_command = env.num_envs // len(commands)
    robot = env.robot
    schedule = lead_in(env, commands.repeat_interleave(per_command, 0), seed)
    trial = run_trial(policy, env, seconds=LEAD_S + seconds, seed=seed, commands=schedule)
    up = trial.fell.cumsum(0) == 0  # (T, n)
    up[: round((LEAD_S + 2.0 * SETTLING_S) / trial.dt)] = False
    constant = slice(len(schedule) - 1, None)
    pairs = gait.opposite_feet(robot)
    rows = []
    for i, command in enumerate(commands):
        robots = slice(i * per_command, (i + 1) * per_command)
        valid = up[:, robots]
        fell = trial.fell[:, robots]
        row: dict[str, Any] = {
            "command": [round(value, 6) for value in command.tolist()],
            "falls": int(fell.sum()),
            "success": (~fell.any(0)).float().mean().item(),
        }
        if valid.any():
            metrics = {name: part[:, robots][valid] for name, part in trial.metrics.items()}
            achieved = metrics["achieved"].mean(0)
            base = metrics["base"]
            row |= {
                "achieved": achieved.tolist(),
                "dead": bool((achieved * command.sign() < 0.5 * command.abs()).any()),
                "roll_rms_rad": base[:, 0].square().mean().sqrt().item(),
                "pitch_rad": base[:, 1].mean().item(),
                "height_m": base[:, 2].mean().item(),
                "height_std_m": base[:, 2].std(correction=0).item(),
                "joint_speed_share": _peak(metrics["joint_vel"], robot.velocity_limit),
                "torque_share": _peak(metrics["torque"], robot.torque_limit),
                **gait.gait_metrics(gait.foot_motion(trial, robots, valid), pairs),
            }
        if not command.any():
            row |= gait.standing_metrics(part_of(trial, constant, robots))
        row["faults"] = gait.faults(row, float(robot.home_qpos[2]))
        rows.append(row)
    return rows


def _peak(values: Tensor, limit: Any) -> float:
    """Largest 99.9th percentile over joints, of magnitudes (N, nu) over limits (nu,)."""
    share = values.abs() / values.new_tensor(limit)
    return share.topk(max(1, round(0.001 * len(share))), dim=0).values[-1].max().item()


def add_references(
    rows: Sequence[dict[str, Any]],
    skill: SkillModule,
    robot: Robot,
    motions: MotionSet,
    *,
    seed: int = 0,
    **device_options: Any,
) -> None:
    """Add gait metrics at about each row's command to the rows of `evaluate_commands`: `module`, of
    the module tracking recordings, and `recorded`; None if too few steps have that velocity."""
    pairs = gait.opposite_feet(robot)
    sources = {"recorded": gait.recorded_foot_motion(robot, motions)}
    if skill.contract.decoder == "lstm":
        skill.check_encoder(robot)
        sources["module"] = gait.module_foot_motion(
            skill, robot, motions, seed=seed, **device_options
        )
    for row in rows:
        for name, (motion, velocity) in sources.items():
            row[name] = gait.metrics_at_command(motion, velocity, row["command"], pairs)


# --- pushes ---


class Pushed:
    """A policy with a schedule of pushes on its robots."""

    def __init__(self, policy: Policy, env: TaskEnv[Any], force: Tensor, *, turned: bool = False):
        """force: (T, n, 2) [N] on the root bodies per control step, then zero; in the world frame,
        or if `turned` in each robot's heading frame."""
        self.policy = policy
        self.env = env
        self.force = force
        self.turned = turned
        self._t = 0
        self.initial_state = policy.initial_state

    def bind(self, env: TaskEnv[Any]) -> None:
        """As `Policy`: bind the pushed policy."""
        bind(self.policy, env)

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


def evaluate_pushes(
    policy: Policy, env: TaskEnv[Any], forces: Sequence[float], *, seconds: float, seed: int = 0
) -> list[dict[str, float]]:
    """A trial of robots that walk straight ahead, at the middle of their range, each pushed once,
    from evenly spread directions.

    Args:
      env: without random pushes; an equal number of robots per force.
      forces: [N].

    Returns: a row per force: `upright`, the share of robots without a fall, of those upright when
    pushed (`robots`).
    """
    per_force = env.num_envs // len(forces)
    dt = env.dt
    angle = 2.0 * math.pi * torch.arange(per_force) / per_force
    direction = torch.stack((torch.cos(angle), torch.sin(angle)), -1)
    force = torch.cat([magnitude * direction for magnitude in forces]).to(env.device)
    middle = torch.tensor(env.task.commands.config.range).mean(-1)
    command = lead_in(env, torch.tensor([float(middle[0]), 0.0, 0.0]).expand(env.num_envs, 3), seed)
    start = round(PUSHED_AT_S / dt)
    schedule = force.new_zeros(start + max(1, round(PUSH_S / dt)), *force.shape)
    schedule[start:] = force
    pushed = Pushed(policy, env, schedule)
    trial = run_trial(pushed, env, seconds=PUSHED_AT_S + seconds, seed=seed, commands=command)
    rows = []
    for i, magnitude in enumerate(forces):
        fell = trial.fell[:, i * per_force : (i + 1) * per_force]
        upright = ~fell[:start].any(0)
        rows.append(
            {
                "force_n": float(magnitude),
                "duration_s": PUSH_S,
                "upright": (upright & ~fell.any(0)).sum().item() / max(int(upright.sum()), 1),
                "robots": int(upright.sum()),
            }
        )
    return rows
