"""A first guess of a policy: what a module does of itself, labelled with the goal that came of it.

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
from npmp.core.tree import stack_trees
from npmp.envs.rollout import PolicyOutput, Transition, rollout
from npmp.envs.state import RobotState
from npmp.envs.task import Task
from npmp.envs.task_env import TaskEnv
from npmp.learning.rl.optimization import descend
from npmp.learning.schedules import linear
from npmp.learning.world_model.behavior import BehaviorPrior
from npmp.skills.actors import Latents, PriorActor, SkillMemory, TrackingActor
from npmp.skills.high_level_policy import HighLevelPolicy, PolicyInput
from npmp.skills.skill_module import SkillModule

SEQUENCE = 32  # control steps, the memory empty before each [D]
BATCH = 128  # sequences per update [D]
RATE = (1e-3, 1e-4)  # of Adam, from the first to the last update [D]
GOAL_S = 0.5  # a step is labelled with what was achieved in this time after it, in the mean [D]


class Demonstration(NamedTuple):
    """T control steps of n robots."""

    before: Tensor  # (T, n, s) packed state before the step
    seen: Tensor  # (T, n, o) what the robots sensed there
    z_prev: Tensor  # (T, n, d)
    # (T, n, d) of the latents that were drawn; of a wandering module the latents themselves
    mean: Tensor
    std: Tensor  # (T, n, d) zero of a wandering module
    first: Tensor  # (T, n) bool
    # (T, n, s) packed state after the step, heights above the ground (`Ground.local`)
    after: Tensor
    failed: Tensor  # (T, n) bool: the step ended its episode by failure


class Demonstrator:
    """An actor with noise on its actions. Its notes are the first fields of `Demonstration`."""

    def __init__(self, actor: TrackingActor | PriorActor, generator: torch.Generator, noise: float):
        """noise: of the actions [rad]."""
        self.actor = actor
        self.generator = generator
        self.noise = noise
        self.initial_memory = actor.initial_memory

    def act(self, env: TaskEnv[Any], memory: SkillMemory, first: Tensor) -> PolicyOutput:
        note = {"before": env.state.pack(), "seen": env.observe(), "z_prev": memory.z}
        action, after, latents = self.actor.act(env, memory, first)
        noise = torch.randn(action.shape, generator=self.generator, device=action.device)
        mean, std = after.z, torch.zeros_like(after.z)
        if isinstance(latents, Latents):
            mean, std = latents.distribution
        note |= {"mean": mean, "std": std, "first": first}
        return PolicyOutput(action + self.noise * noise, after, note)


def demonstrate(actor: Demonstrator, env: TaskEnv[Any], steps: int) -> Demonstration:
    """Record all robots of an environment for so many control steps."""
    rows: list[dict[str, Any]] = []

    def record(moment: Transition) -> None:
        after = env.ground.local(moment.step.state).pack()
        rows.append(moment.decision.note | {"after": after, "failed": moment.step.terminated})

    rollout(actor, env, steps, record)
    return Demonstration(**stack_trees(rows))


def shown_by(
    skill: SkillModule,
    env: TaskEnv[Any],
    recordings: Task | None,
    *,
    steps: int,
    noise: float,
    generator: torch.Generator,
    seed: int,
) -> Demonstration:
    """What a module does of itself for so many control steps: it tracks recordings, an imitation
    task, in an environment like the given one, or wanders in that one. noise: of actions [rad]."""
    if recordings is None:
        actor = Demonstrator(PriorActor(skill, generator), generator, noise)
        with phase("warm-up: the module moves robots by its prior"):
            return demonstrate(actor, env, steps)
    actor = Demonstrator(TrackingActor(skill, generator), generator, noise)
    with phase("warm-up: the module tracks recordings"):
        return demonstrate(actor, env.beside(recordings, seed=seed), steps)


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


def labelled(shown: Demonstration, task: Task, window: int) -> tuple[Tensor, Tensor]:
    """What each step led to: the goal that the next `window` steps fulfilled in the mean, (T -
    window + 1, n, g), and where (T - window + 1, n) bool these steps are of one episode that did
    not fail in them. A task that does not say what a step has achieved has goals of no width."""
    after = RobotState.unpack(shown.after)
    goal = after.root_pos[..., :0] if task.achieved is None else task.achieved(after)
    goal = goal.unfold(0, window, 1).mean(-1)
    here = shown.first[: len(goal)]
    flags = (shown.first, shown.failed)
    starts, failures = (flag.float().unfold(0, window, 1).sum(-1) for flag in flags)
    # an episode may begin with the window, not in it
    sound = (starts - here.float() + failures) == 0
    # the prior's first latent is drawn from its stationary distribution, which no step makes
    return goal, sound & ~(here & (shown.std[: len(goal)] == 0).all(-1))


def held_up(shown: Demonstration, steps: int, *, at_most: int = 1_000_000) -> RobotState:
    """The states after which no robot failed for so many steps, (k, ...); all of them where every
    robot did. Of more than `at_most` evenly spread ones: torch's quantiles take 16 million."""
    soon = shown.failed.float().unfold(0, min(steps, len(shown.failed)), 1).sum(-1) > 0
    soon = soon & ~soon.all()
    held = shown.after[: len(soon)][~soon]
    return RobotState.unpack(held[:: -(-len(held) // at_most)])


def fit_policy(
    policy: HighLevelPolicy,
    shown: Demonstration,
    task: Task,
    generator: torch.Generator,
    *,
    window: int,
    updates: int,
) -> tuple[float, float]:
    """Fit a policy to what was shown, each step with the goal that it led to, by sequences.

    window: control steps over which a goal is what was achieved in the mean.

    Returns: the first and the last update's loss, the cross entropy of the policy relative to what
      was shown, per step [nats].
    """
    goal, sound = labelled(shown, task, window)
    optimizer = torch.optim.Adam(policy.parameters(), lr=RATE[0])
    losses: list[Tensor] = []
    steps, robots = sound.shape
    device = goal.device
    extra = len(task.extra_inputs)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    for update in counted(updates):
        optimizer.param_groups[0]["lr"] = linear(RATE, update / updates)
        begin = torch.randint(steps - SEQUENCE + 1, (BATCH,), generator=generator, device=device)
        robot = torch.randint(robots, (BATCH,), generator=generator, device=device)
        t = begin + torch.arange(SEQUENCE, device=device).unsqueeze(-1)
        before = RobotState.unpack(shown.before[t, robot])
        draws = drawn(SEQUENCE, BATCH, 2, extra)
        drift = drawn(BATCH, 3 * (extra > 0)).expand(SEQUENCE, -1, -1)
        task_inputs = task.imagine(before, goal[t, robot], goal.new_zeros(BATCH, 0), drift, draws)
        inputs = PolicyInput(shown.seen[t, robot], task_inputs, shown.z_prev[t, robot])
        latents, _ = policy.unroll(inputs, policy.initial_state(BATCH), shown.first[t, robot])
        weight = sound[t, robot].float()
        there = Gaussian(shown.mean[t, robot], shown.std[t, robot])
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
    shown: Demonstration,
    task: Task,
    generator: torch.Generator,
    *,
    window: int,
    updates: int,
) -> dict[str, float]:
    """Fit a behaviour prior to what was shown, each step with the goal that it led to.

    Returns: the cross entropy per step [nats], relative to that of the AR(1) prior, of the moments
    that it was fitted to and of robots kept aside: below 0 where it knows more.
    """
    goal, sound = labelled(shown, task, window)
    before = RobotState.unpack(shown.before[: len(goal)])
    observed_goal = task.see(before, goal) if prior.goal_width else goal
    features = prior.features(before, observed_goal)
    sound = sound & prior.commanded(observed_goal[..., : prior.goal_width])
    count = len(goal)
    rest = max(1, round((1.0 - HELD_OUT) * goal.shape[1]))

    def moments(robots: slice) -> tuple[Tensor, ...]:
        kept = sound[:, robots]
        parts = (features, shown.mean[:count], shown.std[:count], shown.z_prev[:count])
        return tuple(part[:, robots][kept] for part in parts)

    def gain(part: tuple[Tensor, ...]) -> Tensor:
        """What the prior's cross entropy exceeds the AR(1) prior's by."""
        seen, mean, std, z_prev = part
        general = prior.general.step(z_prev, seen)
        there = Gaussian(mean, std)
        return there.cross_entropy(prior(seen, z_prev)) - there.cross_entropy(general)

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
