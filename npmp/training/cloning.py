"""A first guess of a policy: what a module does of itself, labelled with the goal that came of it.

Where there are recordings, the module tracks them, and the policy is fitted to its encoder's
Gaussian; where there are none, the module wanders on latents of its prior, and the policy is fitted
to these.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from npmp.actors import Latents, PriorActor, SkillMemory, TrackingActor
from npmp.envs.state import RobotState
from npmp.envs.task import Task
from npmp.envs.task_env import TaskEnv
from npmp.policy import HighLevelPolicy, PolicyInput
from npmp.rl.optimization import descend
from npmp.rollout import Decision, Moment, rollout
from npmp.training.schedules import linear
from npmp.tree import stack_trees

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
        self.actor, self.generator, self.noise = actor, generator, noise
        self.initial_memory = actor.initial_memory

    def act(self, env: TaskEnv[Any], memory: SkillMemory, first: Tensor) -> Decision:
        """As `Actor.act`."""
        note = {"before": env.state.pack(), "seen": env.observe(), "z_prev": memory.z}
        action, after, latents = self.actor.act(env, memory, first)
        noise = torch.randn(action.shape, generator=self.generator, device=action.device)
        mean, std = after.z, torch.zeros_like(after.z)
        if isinstance(latents, Latents):
            mean, std = self.actor.skill.alpha * memory.z + latents.mu, latents.sigma
        note |= {"mean": mean, "std": std, "first": first}
        return Decision(action + self.noise * noise, after, note)


def demonstrate(actor: Demonstrator, env: TaskEnv[Any], steps: int) -> Demonstration:
    """Record all robots of an environment for so many control steps."""
    rows: list[dict[str, Any]] = []

    def record(moment: Moment) -> None:
        after = env.ground.local(moment.step.state).pack()
        rows.append(moment.decision.note | {"after": after, "failed": moment.step.terminated})

    rollout(actor, env, steps, record)
    return Demonstration(**stack_trees(rows))


def goal_steps(dt: float) -> int:
    """Control steps over which a goal is what was achieved in the mean."""
    return max(1, round(GOAL_S / dt))


def labelled(shown: Demonstration, task: Task, window: int) -> tuple[Tensor, Tensor]:
    """What each step led to: the goal that the next `window` steps fulfilled in the mean, (T -
    window + 1, n, g), and where (T - window + 1, n) bool these steps are of one episode that did
    not fail in them."""
    if task.achieved is None:
        raise ValueError(f"task '{task.name}' does not say what a step has achieved")
    goal = task.achieved(RobotState.unpack(shown.after)).unfold(0, window, 1).mean(-1)
    here = shown.first[: len(goal)]
    starts, failures = (
        flag.float().unfold(0, window, 1).sum(-1) for flag in (shown.first, shown.failed)
    )
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
    (steps, robots), device = sound.shape, goal.device
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = linear(RATE, update / updates)
        begin = torch.randint(steps - SEQUENCE + 1, (BATCH,), generator=generator, device=device)
        robot = torch.randint(robots, (BATCH,), generator=generator, device=device)
        t = begin + torch.arange(SEQUENCE, device=device).unsqueeze(-1)
        asked = task.see(RobotState.unpack(shown.before[t, robot]), goal[t, robot])
        given = PolicyInput(shown.seen[t, robot], asked, shown.z_prev[t, robot])
        mean, std, _, _ = policy(given, policy.initial_state(BATCH), shown.first[t, robot])
        weight = sound[t, robot].float()
        square = shown.std[t, robot].square() + (shown.mean[t, robot] - mean).square()
        entropy = (square / (2.0 * std.square()) + std.log()).sum(-1)
        loss = (entropy * weight).sum() / weight.sum().clamp(min=1.0)
        descend(loss, optimizer, 1.0)
        losses[1:] = [loss.detach()]  # behind the first the last
    return losses[0].item(), losses[-1].item()
