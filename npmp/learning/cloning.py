"""Behaviour cloning of a first policy from a module's demonstration, with goals in hindsight.

With recordings, the module tracks them, and the policy is fitted to the encoder's distribution.
Without recordings the module acts on latents of its prior, and the policy is fitted to these.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npmp.core.gaussian import Gaussian
from npmp.core.progress import counted, phase
from npmp.core.seeding import seeded
from npmp.core.tree import Tree, stack_trees
from npmp.envs.ground import Ground
from npmp.envs.policy import Observation, Policy
from npmp.envs.rollout import Transition, rollout
from npmp.envs.state import RobotState
from npmp.envs.task import Task
from npmp.envs.task_env import TaskEnv
from npmp.learning.exploration import ActionNoise
from npmp.learning.rl.muon import Muon
from npmp.learning.rl.optimization import descend
from npmp.learning.schedules import linear
from npmp.learning.world_model.behavior import BehaviorPrior
from npmp.skills.composition import Composition, TrackingPolicy, tracking, wandering
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.skill_module import SkillModule

SEQUENCE = 32  # control steps per sequence, from zero memory [D]
BATCH = 128  # sequences per update [D]
RATE = (1e-3, 1e-4)  # learning rate, first and last update [D]
GOAL_S = 0.5  # time over which the achieved goal of a step is averaged [s] [D]


class Demonstration(NamedTuple):
    """T control steps of n robots."""

    # (T, n, s) packed state before the step, heights above the ground (`Ground.local`)
    before: Tensor
    patch: Tensor  # (T, n, 2) `Ground.local_patch` before the step, (T, n, 0) on flat ground
    proprioception: Tensor  # (T, n, o) before the step
    z_before: Tensor  # (T, n, d)
    # (T, n, d) means of the encoder's distribution; for a module on its prior, the latents
    mean: Tensor
    std: Tensor  # (T, n, d) likewise; zero of a module on its prior
    is_first: Tensor  # (T, n) bool
    # (T, n, s) packed state after the step, heights above the ground (`Ground.local`)
    after: Tensor
    failed: Tensor  # (T, n) bool: the step ended its episode by failure
    ground: Ground


class _ResampledSensors:
    """A policy with other samples of the sensors' noise and delay than those recorded."""

    def __init__(self, policy: Policy, env: TaskEnv[Any]):
        self.policy = policy
        self.env = env
        self.initial_state = policy.initial_state

    def step(self, observation: Observation, state: Tree) -> tuple[Any, Tree]:
        return self.policy.step(observation._replace(proprioception=self.env.observe()), state)


def demonstrate(
    policy: Composition, env: TaskEnv[Any], steps: int, generator: torch.Generator, *, noise: float
) -> Demonstration:
    """Record a policy over a module for `steps` control steps. noise: of joint targets [rad]."""
    rows: list[dict[str, Tensor]] = []
    tracks = isinstance(policy.upper, TrackingPolicy)

    def record(t: Transition) -> None:
        z = t.next_state.z
        mean, std = t.output.info if tracks else (z, torch.zeros_like(z))
        rows.append(
            {
                **t.snapshot,
                "proprioception": t.observation.proprioception,
                "z_before": t.state.z,
                "mean": mean,
                "std": std,
                "is_first": t.observation.is_first,
                "after": env.ground.local(t.step.state).pack(),
                "failed": t.step.terminated,
            }
        )

    def before(*_: Any) -> dict[str, Tensor]:
        ground = env.ground
        return {"before": ground.local(env.state).pack(), "patch": ground.local_patch(env.state)}

    noisy = ActionNoise(_ResampledSensors(policy, env), generator, noise)
    rollout(noisy, env, steps, record, snapshot=before)
    return Demonstration(ground=env.ground, **stack_trees(rows))


def collect_demonstration(
    skill: SkillModule,
    env: TaskEnv[Any],
    recordings: Task | None,
    *,
    steps: int,
    noise: float,
    generator: torch.Generator,
    seed: int,
) -> Demonstration:
    """Record a module for `steps` control steps.

    Args:
      recordings: an imitation task that the module tracks, in an environment like `env`; None: it
        acts on latents of its prior, in `env`.
      noise: of actions [rad].
    """
    if recordings is None:
        with phase("warm-up: the module moves robots by its prior"):
            return demonstrate(wandering(skill, generator), env, steps, generator, noise=noise)
    with phase("warm-up: the module tracks recordings"):
        other = env.for_task(recordings, seed=seed)
        return demonstrate(tracking(skill, generator), other, steps, generator, noise=noise)


def make_behavior(
    skill: SkillModule, env: TaskEnv[Any], alpha: float, share: float, *, seed: int
) -> BehaviorPrior:
    """An untrained behaviour prior of a module for the environment's task; alpha and share as
    `BehaviorPrior`."""
    goals = [] if env.task.achieved is None else list(env.task.inputs.values())
    with seeded(seed):
        prior = BehaviorPrior(env.home, goals, skill.latent_dim, alpha, share)
    return prior.to(env.device)


def goal_steps(dt: float) -> int:
    """Control steps over which achieved goals are averaged."""
    return max(1, round(GOAL_S / dt))


def labelled(demonstration: Demonstration, task: Task, window: int) -> tuple[Tensor, Tensor]:
    """Label each step with the goal that the next `window` steps achieved in the mean.

    Returns: goals (T - window + 1, n, g), g = 0 for a task without `achieved`; whether these steps
      are of one episode without a failure (T - window + 1, n) bool.
    """
    after = RobotState.unpack(demonstration.after)
    goal = after.root_pos[..., :0] if task.achieved is None else task.achieved(after)
    goal = goal.unfold(0, window, 1).mean(-1)
    here = demonstration.is_first[: len(goal)]
    flags = (demonstration.is_first, demonstration.failed)
    starts, failures = (flag.float().unfold(0, window, 1).sum(-1) for flag in flags)
    # an episode may begin with the window, not within it
    valid = (starts - here.float() + failures) == 0
    # the first latent of a module on its prior is from `Prior.first`, not from a step
    return goal, valid & ~(here & (demonstration.std[: len(goal)] == 0).all(-1))


def upright_states(
    demonstration: Demonstration, steps: int, *, at_most: int = 1_000_000
) -> RobotState:
    """The states (k, ...) after which no robot failed for `steps` steps; all states, where every
    robot failed. Subsampled to `at_most`, as torch's quantiles take at most 16 million values."""
    soon = (
        demonstration.failed.float().unfold(0, min(steps, len(demonstration.failed)), 1).sum(-1) > 0
    )
    soon = soon & ~soon.all()
    upright = demonstration.after[: len(soon)][~soon]
    return RobotState.unpack(upright[:: -(-len(upright) // at_most)])


def fit_policy(
    policy: HighLevelPolicy,
    demonstration: Demonstration,
    task: Task,
    generator: torch.Generator,
    *,
    window: int,
    updates: int,
) -> tuple[float, float]:
    """Fit a policy to sequences of a demonstration, labelled with achieved goals.

    window: control steps over which achieved goals are averaged.

    Returns: the loss of the first and the last update: cross entropy of the demonstration's latents
      under the policy, per step [nats].
    """
    goal, valid = labelled(demonstration, task, window)
    optimizer = Muon(policy)
    losses: list[Tensor] = []
    count, robots = valid.shape
    device = goal.device
    extra = len(task.extra_inputs)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    for update in counted(updates):
        optimizer.param_groups[0]["lr"] = linear(RATE, update / updates)
        begin = torch.randint(count - SEQUENCE + 1, (BATCH,), generator=generator, device=device)
        robot = torch.randint(robots, (BATCH,), generator=generator, device=device)
        t = begin + torch.arange(SEQUENCE, device=device).unsqueeze(-1)
        drift = normal(BATCH, 3 * (extra > 0))
        noise = normal(SEQUENCE, BATCH, 2, extra)
        # all steps in one call, but for a camera, whose images would not fit
        together = SEQUENCE if task.camera is None else 1
        task_inputs = torch.cat(
            [
                task.imagine(
                    RobotState.unpack(demonstration.before[rows, robot].flatten(0, 1)),
                    goal[rows, robot].flatten(0, 1),
                    partial(
                        demonstration.ground.above,
                        patch=demonstration.patch[rows, robot].flatten(0, 1),
                    ),
                    drift.repeat(together, 1),
                    noise_of_rows.flatten(0, 1),
                ).unflatten(0, (together, BATCH))
                for rows, noise_of_rows in zip(t.split(together), noise.split(together))
            ]
        )
        inputs = Observation(
            demonstration.proprioception[t, robot],
            task_inputs,
            z_before=demonstration.z_before[t, robot],
        )
        latents, _ = policy.latents(
            inputs, policy.initial_state(BATCH), demonstration.is_first[t, robot]
        )
        weight = valid[t, robot].float()
        target = Gaussian(demonstration.mean[t, robot], demonstration.std[t, robot])
        entropy = target.cross_entropy(latents)
        loss = (entropy * weight).sum() / weight.sum().clamp(min=1.0)
        descend(loss, optimizer, 1.0)
        losses[1:] = [loss.detach()]  # the first and the last
    return losses[0].item(), losses[-1].item()


# most updates in the fit of a behaviour prior, which overfits with 3,000
# [D: experiments/results/2026-11-30-muon.md]
PRIOR_UPDATES = 960
# samples per update in this fit [D]
PRIOR_BATCH = 1024
# share of held-out robots in this fit [D]
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
    """Fit a behaviour prior to a demonstration, labelled with achieved goals.

    Returns: the cross entropy per step minus that of the AR(1) prior [nats], of training samples
      and held-out robots; negative if better than AR(1).
    """
    goal, valid = labelled(demonstration, task, window)
    before = RobotState.unpack(demonstration.before[: len(goal)])
    observed_goal = task.inputs_of(before, goal) if prior.goal_width else goal
    features = prior.features(before, observed_goal)
    valid = valid & prior.commanded(observed_goal[..., : prior.goal_width])
    count = len(goal)
    trained_on = max(1, round((1.0 - HELD_OUT) * goal.shape[1]))

    def samples(robots: slice) -> tuple[Tensor, ...]:
        kept = valid[:, robots]
        parts = (
            features,
            demonstration.mean[:count],
            demonstration.std[:count],
            demonstration.z_before[:count],
        )
        return tuple(part[:, robots][kept] for part in parts)

    def excess(part: tuple[Tensor, ...]) -> Tensor:
        """Cross entropy minus that of the AR(1) prior."""
        observed, mean, std, z_before = part
        general = prior.general.step(z_before, observed)
        target = Gaussian(mean, std)
        return target.cross_entropy(prior(observed, z_before)) - target.cross_entropy(general)

    train = samples(slice(trained_on))
    held_out = samples(slice(trained_on, None))
    if not len(train[0]):  # all episodes are shorter than the window: it stays the AR(1) prior
        return {}
    prior.set_examples(train[0], generator)
    # with Muon it overfits
    optimizer = torch.optim.Adam(prior.parameters(), lr=RATE[0])
    for update in counted(updates):
        optimizer.param_groups[0]["lr"] = linear(RATE, update / updates)
        count = len(train[0])
        device = goal.device
        rows = torch.randint(count, (PRIOR_BATCH,), generator=generator, device=device)
        loss = excess(tuple(part[rows] for part in train)).mean()
        descend(loss, optimizer, 1.0)
    figures = {"behavior_loss": loss.item()}
    if len(held_out[0]):
        with torch.no_grad():
            figures["behavior_loss_held_out"] = excess(held_out).mean().item()
    return figures
