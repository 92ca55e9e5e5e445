"""A first guess of a policy: what a module does by itself, labelled with the goal that came of it.

Where there are recordings, the module tracks them, and the policy is fitted to its encoder's
Gaussian; where there are none, the module wanders on latents of its prior, and the policy is fitted
to these.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from npmp.core.gaussian import Gaussian
from npmp.core.progress import counted, phase
from npmp.core.seeding import seeded
from npmp.core.tree import Tree, stack_trees
from npmp.envs.policy import Observation, Policy
from npmp.envs.rollout import Transition, rollout
from npmp.envs.state import RobotState
from npmp.envs.task import Task
from npmp.envs.task_env import TaskEnv
from npmp.learning.exploration import ActionNoise
from npmp.learning.rl.optimization import descend
from npmp.learning.schedules import linear
from npmp.learning.world_model.behavior import BehaviorPrior
from npmp.skills.composition import Composition, TrackingPolicy, tracking, wandering
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.skill_module import SkillModule

SEQUENCE = 32  # control steps, the memory empty before each [D]
BATCH = 128  # sequences per update [D]
RATE = (1e-3, 1e-4)  # of Adam, from the first to the last update [D]
GOAL_S = 0.5  # a step is labelled with what was achieved in this time after it, in the mean [D]


class Demonstration(NamedTuple):
    """T control steps of n robots."""

    before: Tensor  # (T, n, s) packed state before the step
    proprioception: Tensor  # (T, n, o) there
    z_before: Tensor  # (T, n, d)
    # (T, n, d) the latents were sampled from; of a wandering module the latents themselves
    mean: Tensor
    std: Tensor  # (T, n, d) zero of a wandering module
    is_first: Tensor  # (T, n) bool
    # (T, n, s) packed state after the step, heights above the ground (`Ground.local`)
    after: Tensor
    failed: Tensor  # (T, n) bool: the step ended its episode by failure


class _SecondReading:
    """A policy that acts on another reading of the sensors than is recorded."""

    def __init__(self, policy: Policy, env: TaskEnv[Any]):
        self.policy = policy
        self.env = env
        self.initial_state = policy.initial_state

    def step(self, observation: Observation, state: Tree) -> tuple[Any, Tree]:
        return self.policy.step(observation._replace(proprioception=self.env.observe()), state)


def demonstrate(
    policy: Composition, env: TaskEnv[Any], steps: int, generator: torch.Generator, *, noise: float
) -> Demonstration:
    """Record a policy of latents for so many control steps. noise: of its joint targets [rad]."""
    rows: list[dict[str, Tensor]] = []
    tracks = isinstance(policy.upper, TrackingPolicy)

    def record(t: Transition) -> None:
        z = t.next_state.z
        mean, std = t.output.info if tracks else (z, torch.zeros_like(z))
        rows.append(
            {
                "before": t.snapshot,
                "proprioception": t.observation.proprioception,
                "z_before": t.state.z,
                "mean": mean,
                "std": std,
                "is_first": t.observation.is_first,
                "after": env.ground.local(t.step.state).pack(),
                "failed": t.step.terminated,
            }
        )

    noisy = ActionNoise(_SecondReading(policy, env), generator, noise)
    rollout(noisy, env, steps, record, snapshot=lambda *_: env.state.pack())
    return Demonstration(**stack_trees(rows))


def demonstration_of(
    skill: SkillModule,
    env: TaskEnv[Any],
    recordings: Task | None,
    *,
    steps: int,
    noise: float,
    generator: torch.Generator,
    seed: int,
) -> Demonstration:
    """What a module does by itself for so many control steps: it tracks recordings, an imitation
    task, in an environment like this one, or wanders in this one. noise: of actions [rad]."""
    if recordings is None:
        with phase("warm-up: the module moves robots by its prior"):
            return demonstrate(wandering(skill, generator), env, steps, generator, noise=noise)
    with phase("warm-up: the module tracks recordings"):
        other = env.for_task(recordings, seed=seed)
        return demonstrate(tracking(skill, generator), other, steps, generator, noise=noise)


def behavior_of(
    skill: SkillModule, env: TaskEnv[Any], alpha: float, share: float, *, seed: int
) -> BehaviorPrior:
    """A behaviour prior of a module for the environment's task, yet to be fitted; alpha and share
    as `BehaviorPrior` takes them."""
    goals = [] if env.task.achieved is None else list(env.task.inputs.values())
    with seeded(seed):
        prior = BehaviorPrior(env.home, goals, skill.latent_dim, alpha, share)
    return prior.to(env.device)


def goal_steps(dt: float) -> int:
    """Control steps over which a goal is what was achieved in the mean."""
    return max(1, round(GOAL_S / dt))


def labelled(demonstration: Demonstration, task: Task, window: int) -> tuple[Tensor, Tensor]:
    """What each step led to: the goal that the next `window` steps fulfilled in the mean, (T -
    window + 1, n, g), and where (T - window + 1, n) bool these steps are of one episode that did
    not fail in them. A task that does not say what a step has achieved has goals of no width."""
    after = RobotState.unpack(demonstration.after)
    goal = after.root_pos[..., :0] if task.achieved is None else task.achieved(after)
    goal = goal.unfold(0, window, 1).mean(-1)
    here = demonstration.is_first[: len(goal)]
    flags = (demonstration.is_first, demonstration.failed)
    starts, failures = (flag.float().unfold(0, window, 1).sum(-1) for flag in flags)
    # an episode may begin with the window, not in it
    sound = (starts - here.float() + failures) == 0
    # the prior's first latent is sampled from its stationary distribution, which no step makes
    return goal, sound & ~(here & (demonstration.std[: len(goal)] == 0).all(-1))


def held_up(demonstration: Demonstration, steps: int, *, at_most: int = 1_000_000) -> RobotState:
    """The states after which no robot failed for so many steps, (k, ...); all of them where every
    robot did. Of more than `at_most` evenly spread ones: torch's quantiles take 16 million."""
    soon = (
        demonstration.failed.float().unfold(0, min(steps, len(demonstration.failed)), 1).sum(-1) > 0
    )
    soon = soon & ~soon.all()
    held = demonstration.after[: len(soon)][~soon]
    return RobotState.unpack(held[:: -(-len(held) // at_most)])


def fit_policy(
    policy: HighLevelPolicy,
    demonstration: Demonstration,
    task: Task,
    generator: torch.Generator,
    *,
    window: int,
    updates: int,
) -> tuple[float, float]:
    """Fit a policy to a demonstration, each step with the goal that it led to, by sequences.

    window: control steps over which a goal is what was achieved in the mean.

    Returns: the first and the last update's loss, the cross entropy of the policy relative to what
      the demonstration, per step [nats].
    """
    goal, sound = labelled(demonstration, task, window)
    optimizer = torch.optim.Adam(policy.parameters(), lr=RATE[0])
    losses: list[Tensor] = []
    steps, robots = sound.shape
    device = goal.device
    extra = len(task.extra_inputs)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    for update in counted(updates):
        optimizer.param_groups[0]["lr"] = linear(RATE, update / updates)
        begin = torch.randint(steps - SEQUENCE + 1, (BATCH,), generator=generator, device=device)
        robot = torch.randint(robots, (BATCH,), generator=generator, device=device)
        t = begin + torch.arange(SEQUENCE, device=device).unsqueeze(-1)
        before = RobotState.unpack(demonstration.before[t, robot])
        noise = normal(SEQUENCE, BATCH, 2, extra)
        drift = normal(BATCH, 3 * (extra > 0)).expand(SEQUENCE, -1, -1)
        task_inputs = task.imagine(before, goal[t, robot], goal.new_zeros(BATCH, 0), drift, noise)
        inputs = Observation(
            demonstration.proprioception[t, robot],
            task_inputs,
            z_before=demonstration.z_before[t, robot],
        )
        latents, _ = policy.latents(
            inputs, policy.initial_state(BATCH), demonstration.is_first[t, robot]
        )
        weight = sound[t, robot].float()
        there = Gaussian(demonstration.mean[t, robot], demonstration.std[t, robot])
        entropy = there.cross_entropy(latents)
        loss = (entropy * weight).sum() / weight.sum().clamp(min=1.0)
        descend(loss, optimizer, 1.0)
        losses[1:] = [loss.detach()]  # behind the first the last
    return losses[0].item(), losses[-1].item()


# of a behaviour prior: moments per update, share of the robots kept aside [D]
PRIOR_BATCH = 1024
HELD_OUT = 0.1


def fit_behavior(
    prior: BehaviorPrior,
    demonstration: Demonstration,
    task: Task,
    generator: torch.Generator,
    *,
    window: int,
    updates: int,
) -> dict[str, float]:
    """Fit a behaviour prior to a demonstration, each step with the goal that it led to.

    Returns: the cross entropy per step [nats], relative to that of the AR(1) prior, of the moments
    that it was fitted to and of robots kept aside: below 0 where it knows more.
    """
    goal, sound = labelled(demonstration, task, window)
    before = RobotState.unpack(demonstration.before[: len(goal)])
    observed_goal = task.inputs_of(before, goal) if prior.goal_width else goal
    features = prior.features(before, observed_goal)
    sound = sound & prior.commanded(observed_goal[..., : prior.goal_width])
    count = len(goal)
    rest = max(1, round((1.0 - HELD_OUT) * goal.shape[1]))

    def moments(robots: slice) -> tuple[Tensor, ...]:
        kept = sound[:, robots]
        parts = (
            features,
            demonstration.mean[:count],
            demonstration.std[:count],
            demonstration.z_before[:count],
        )
        return tuple(part[:, robots][kept] for part in parts)

    def gain(part: tuple[Tensor, ...]) -> Tensor:
        """What the prior's cross entropy exceeds the AR(1) prior's by."""
        observed, mean, std, z_before = part
        general = prior.general.step(z_before, observed)
        there = Gaussian(mean, std)
        return there.cross_entropy(prior(observed, z_before)) - there.cross_entropy(general)

    learned = moments(slice(rest))
    aside = moments(slice(rest, None))
    if not len(learned[0]):  # every episode is shorter than a goal takes: it stays the AR(1) prior
        return {}
    prior.set_examples(learned[0], generator)
    optimizer = torch.optim.Adam(prior.parameters(), lr=RATE[0])
    for update in counted(updates):
        optimizer.param_groups[0]["lr"] = linear(RATE, update / updates)
        count = len(learned[0])
        device = goal.device
        rows = torch.randint(count, (PRIOR_BATCH,), generator=generator, device=device)
        loss = gain(tuple(part[rows] for part in learned)).mean()
        descend(loss, optimizer, 1.0)
    figures = {"behavior_loss": loss.item()}
    if len(aside[0]):
        with torch.no_grad():
            figures["behavior_loss_held_out"] = gain(aside).mean().item()
    return figures
