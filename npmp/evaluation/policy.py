"""How well a policy does its task: a long trial; of walking also trials by speed, push, ground."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp import geometry, ranges, tasks
from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.envs.task import Task, Trial
from npmp.evaluation.terrains import on_terrains
from npmp.evaluation.trial import effort, gait, run_trial
from npmp.policy import PolicyActor, PolicyContract
from npmp.rollout import Actor, Decision
from npmp.sim.randomization import PushConfig
from npmp.tasks.commands import CommandRange
from npmp.tasks.velocity import COMMAND_NAMES, SETTLING_S
from npmp.tree import Tree

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
    # per component of the command, over its range; 0: the main trial only
    speeds: int = 0
    # [N], each exactly so strong, for 0.2 s, from all sides
    pushes: tuple[float, ...] = ()
    # also trials on slopes, stairs and Perlin noise of many sizes
    grounds: bool = False
    # of the trials at speeds, under pushes and on grounds
    short_s: float = 10.0

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "robots")
        ranges.above_zero(self, "short_s", *(() if self.seconds is None else ("seconds",)))
        if self.speeds != 0 and not 2 <= self.speeds <= 1000:
            raise ValueError(f"speeds must be 0 or 2 to 1000, got {self.speeds}")
        if not all(0.0 < force < math.inf for force in self.pushes):
            raise ValueError(f"pushes must be above 0 N, got {list(self.pushes)}")


class PolicyEvaluation(NamedTuple):
    """Figures, and the main trial that they are of."""

    # of the task, effort and gait, and rows of `speeds`, `pushes` and `grounds`
    figures: dict[str, Any]
    trial: Trial
    task: Task


def teacher_of(contract: PolicyContract) -> str:
    """What showed a policy the task: another policy, or a script of ours; "" for neither."""
    if contract.training.get("algorithm") == "clone":
        scripted = f"scripted teacher of task={contract.task}"
        return str(contract.training.get("teacher", scripted))
    return f"scripted commander of task={contract.task}" if contract.commander else ""


def evaluate_policy(
    actor: PolicyActor,
    make_task: Callable[[], Task],
    config: PolicyEvaluationConfig,
    robots: RobotBatchConfig | None = None,
    *,
    seed: int = 0,
    **place: Any,
) -> PolicyEvaluation:
    """Measure a policy at a task.

    Args:
      make_task: the task; called for each trial.
      robots: drives, sensors, physics and pushes; by default ideal robots, driven as the policy's
        module was.
      place: sim, device and num_threads, as `TaskEnv` takes them.

    Raises:
      InputError: for a policy of another task, and for speeds, pushes or grounds of a task that
        takes no velocities.
    """
    task, robots = make_task(), robots or RobotBatchConfig().like(actor.skill)
    actor.policy.check_task(task)
    walks = task.name == "walk"
    place |= {"robots": robots, "seed": seed}
    if (config.speeds or config.pushes or config.grounds) and not walks:
        raise InputError(
            f"trials at speeds, under pushes and on grounds are for task=walk, not for {task.name}"
        )
    env = TaskEnv(task, config.robots, **place)
    trial = run_trial(actor, env, seconds=config.seconds or task.trial_s, seed=seed)
    figures = task.figures(trial) | effort(trial) | gait(trial)
    if config.speeds:
        commands = speeds_of(task.config.range, config.speeds)
        env = TaskEnv(make_task(), len(commands) * config.robots, **place)
        figures["speeds"] = at_speeds(actor, env, commands, seconds=config.short_s, seed=seed)
    if config.pushes:
        calm = place | {"robots": replace(robots, pushes=PushConfig())}
        env = TaskEnv(make_task(), len(config.pushes) * config.robots, **calm)
        figures["pushes"] = under_pushes(
            actor, env, config.pushes, seconds=config.short_s, seed=seed
        )
    if config.grounds:
        walk: Any = tasks.find("walk")

        def on(settings: Any) -> TaskEnv[Any]:
            return TaskEnv(walk(task.robot, settings), config.robots, **place)

        figures["grounds"] = on_terrains(actor, on, task.config, seconds=config.short_s, seed=seed)
    return PolicyEvaluation(figures, trial, task)


# --- speeds ---


def speeds_of(command_range: CommandRange, count: int) -> Tensor:
    """Commands (3 count, 3): each component over its range, the others as near to zero as theirs
    goes."""
    bounds = torch.tensor(command_range)
    rest = torch.zeros(3).clamp(bounds[:, 0], bounds[:, 1])
    found = rest.repeat(3 * count, 1)
    for i, (low, high) in enumerate(command_range):
        found[i * count : (i + 1) * count, i] = torch.linspace(low, high, count)
    return found


def led(env: TaskEnv[Any], commands: Tensor, seed: int) -> Tensor:
    """Commands (n, 3) to keep, after `LEAD_S` of others drawn as in training: (T, n, 3)."""
    generator = torch.Generator(env.device).manual_seed(seed)
    others = env.task.commands.draw(
        torch.zeros(env.num_envs, 3, device=env.device), generator, change=1.0
    )
    return torch.cat(
        (others.expand(max(1, round(LEAD_S / env.dt)), -1, -1), commands.to(others)[None])
    )


def at_speeds(
    actor: Actor, env: TaskEnv[Any], commands: Tensor, *, seconds: float, seed: int = 0
) -> list[dict[str, Any]]:
    """Robots that each keep one of the commands (3 k, 3) of `speeds_of` after a second of others.

    Returns: a row per command: the component it varies, its value, the share without a fall, and,
    from a second after the change until the first fall, the mean velocity of all components and
    the base's roll (RMS), pitch (mean) and height.
    """
    each = env.num_envs // len(commands)
    asked = led(env, commands.repeat_interleave(each, 0), seed)
    flat = env.task.config.terrain == "flat"
    trial = run_trial(
        actor, env, seconds=LEAD_S + seconds, seed=seed, commands=asked, headings=flat
    )
    up = trial.fell.cumsum(0) == 0  # (T, n)
    up[: round((LEAD_S + 2.0 * SETTLING_S) / trial.dt)] = False
    rows = []
    for i, command in enumerate(commands):
        mine = slice(i * each, (i + 1) * each)
        kept, k = up[:, mine], i // (len(commands) // 3)
        row: dict[str, Any] = {"component": COMMAND_NAMES[k], "command": command[k].item()}
        row["success"] = (~trial.fell[:, mine].any(0)).float().mean().item()
        if kept.any():
            achieved, base = (trial.seen[name][:, mine][kept] for name in ("achieved", "base"))
            row["achieved"] = achieved[:, k].mean().item()
            row |= dict(zip(COMMAND_NAMES, achieved.mean(0).tolist(), strict=True))
            row |= {
                "roll_rms_rad": base[:, 0].square().mean().sqrt().item(),
                "pitch_rad": base[:, 1].mean().item(),
                "height_m": base[:, 2].mean().item(),
                "height_std_m": base[:, 2].std(correction=0).item(),
            }
        rows.append(row)
    return rows


# --- pushes ---


class Pushed:
    """An actor whose robots are pushed on a schedule."""

    def __init__(self, actor: Actor, force: Tensor, *, turned: bool = False):
        """force: (T, n, 2) [N] on the root bodies in each control step, then none; in the world
        frame or, where `turned`, forwards and to the left in each robot's heading frame."""
        self.actor, self.force, self.turned, self._t = actor, force, turned, 0

    def initial_memory(self, n: int) -> Tree:
        """As `Actor.initial_memory`."""
        return self.actor.initial_memory(n)

    def act(self, env: TaskEnv[Any], memory: Tree, first: Tensor) -> Decision:
        """As `Actor.act`."""
        force = (
            self.force[self._t] if self._t < len(self.force) else torch.zeros_like(self.force[0])
        )
        if self.turned:
            yaw = geometry.yaw_matrix(geometry.yaw_of(env.state.root_rot))[:, :2, :2]
            force = geometry.to_world(yaw, force.to(yaw))
        root = env.sim.model.body(env.robot.body_names[0]).id
        env.sim.wrench(root)[:, :2] = force.to(env.sim.wrench(root))
        self._t += 1
        return self.actor.act(env, memory, first)


def under_pushes(
    actor: Actor, env: TaskEnv[Any], forces: Sequence[float], *, seconds: float, seed: int = 0
) -> list[dict[str, float]]:
    """Robots that walk straight on, at the middle of their range, each pushed once, from evenly
    spread directions.

    Args:
      env: as many robots for each of the forces [N], without random pushes.

    Returns: a row per force: `upright`, the share of the robots that were up when pushed (`robots`)
    and did not fall until the end.
    """
    each, dt = env.num_envs // len(forces), env.dt
    angle = 2.0 * math.pi * torch.arange(each) / each
    direction = torch.stack((torch.cos(angle), torch.sin(angle)), -1)
    force = torch.cat([size * direction for size in forces]).to(env.device)
    middle = torch.tensor(env.task.config.range).mean(-1)
    command = led(env, torch.tensor([float(middle[0]), 0.0, 0.0]).expand(env.num_envs, 3), seed)
    start = round(PUSHED_AT_S / dt)
    schedule = force.new_zeros(start + max(1, round(PUSH_S / dt)), *force.shape)
    schedule[start:] = force
    pushed = Pushed(actor, schedule)
    flat = env.task.config.terrain == "flat"
    trial = run_trial(
        pushed, env, seconds=PUSHED_AT_S + seconds, seed=seed, commands=command, headings=flat
    )
    rows = []
    for i, size in enumerate(forces):
        fell = trial.fell[:, i * each : (i + 1) * each]
        there = ~fell[:start].any(0)
        upright = (there & ~fell.any(0)).sum().item() / max(int(there.sum()), 1)
        rows.append(
            {
                "force_n": float(size),
                "duration_s": PUSH_S,
                "upright": upright,
                "robots": int(there.sum()),
            }
        )
    return rows
