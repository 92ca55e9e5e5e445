"""Learning from a teacher (DAgger, Ross et al. 2011): the student acts, the teacher says at every
step what it would do there, and the student is fitted to that. So it learns from the states that it
gets into itself."""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from npmp import ranges
from npmp.envs.task_env import TaskEnv
from npmp.memory import require_replay
from npmp.rl.averaging import follow
from npmp.rl.gradients import descend
from npmp.rollout import Carried, Decision, Moment, rollout
from npmp.state import Numbers, Part, Resumable
from npmp.training.schedules import linear
from npmp.training.trainer import Gathered, mean_figures
from npmp.tree import Tree, cat_trees, leaves, map_tree, stack_trees


@dataclass(frozen=True, kw_only=True)
class LessonConfig:
    """What learning from a teacher has in common. Raises ValueError for values out of range."""

    unroll: int = 50  # control steps per robot and iteration
    kept: int = 10  # unrolls that updates are made from, the latest
    updates: int = 20  # per iteration
    batch: int = 64  # robots' unrolls per update
    action_noise: float = 0.05  # while collecting [rad]
    # of training, where the task's own are longer; None: the task's own
    episode_s: float | None = 4.0
    lr: tuple[float, float] = (1e-3, 5e-5)  # over the run
    # larger differences count linearly (Huber 1964); None: all by their squares
    outlier_rad: float | None = None
    clip_grad: float = 1.0
    # averaged weights, which are judged and kept; over a ninth of the updates so far at most
    ema: float = 0.995

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "unroll", "kept", "updates", "batch")
        ranges.share(self, "ema")
        ranges.not_negative(self, "action_noise")
        ranges.pairs(self, "lr")
        given = [name for name in ("episode_s", "outlier_rad") if getattr(self, name) is not None]
        ranges.above_zero(self, "lr", "clip_grad", *given)


class Lesson(NamedTuple):
    """Control steps of n robots, and what the teacher would have done."""

    # given: what the student takes (T, n, w); shown: the teacher's action (T, n, a) [rad] or
    # latent; first: (T, n) bool
    steps: Tree
    start: Tree  # (n, ...) the student's memory before the first step


class LessonTrainer(Resumable):
    """Owns environment, student and the latest lessons; one `iteration` at a time."""

    of_all_collectors = joins = True  # lessons have a column per robot
    cost_weights: Mapping[str, float] = MappingProxyType({})  # of what costs besides, by its name
    most_error = math.inf  # of a step, in the log

    def __init__(
        self,
        env: TaskEnv[Any],
        student: nn.Module,
        config: LessonConfig,
        *,
        given: Tree,
        shown: int,
        seed: int,
    ):
        """student: what learns, in place, on the environment's device. given: what it is given at a
        step, (n, w) each; of these the sizes count. shown: how many numbers the teacher answers."""
        widths = sum(part.shape[-1] for part in leaves(given))
        require_replay(config.kept * config.unroll, env.num_envs, {"state": widths + shown})
        self.env, self.config, self.online = env, config, student
        self.average = copy.deepcopy(student).requires_grad_(False)
        self.generator = torch.Generator(env.device).manual_seed(seed + 1)
        learned = [weight for weight in student.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.Adam(learned, lr=config.lr[0])
        first = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        self.carried = Carried(self.initial_memory(env.num_envs), first)
        steps = {
            "given": given,
            "shown": torch.zeros(env.num_envs, shown, device=env.device),
            "first": first,
        }
        kept, start = (config.kept, config.unroll), self.students(self.carried.memory)
        # a ring, each part with the lessons first
        self.lessons = Lesson(
            map_tree(lambda part: part.new_zeros(*kept, *part.shape), steps),
            map_tree(lambda part: part.new_zeros(config.kept, *part.shape), start),
        )
        self.iteration_count = 0
        self.env_steps = 0

    @abstractmethod
    def initial_memory(self, n: int) -> Tree:
        """As `npmp.rollout.Actor.initial_memory`."""

    @abstractmethod
    def act(self, env: TaskEnv[Any], memory: Tree, first: Tensor) -> Decision:
        """As `npmp.rollout.Actor.act`; the notes are `given`, `shown` and `first` of a `Lesson`."""

    @abstractmethod
    def students(self, memory: Tree) -> Tree:
        """What of an actor's memory is the student's, which a lesson starts from."""

    @abstractmethod
    def fit(self, steps: Tree, start: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        """Of steps (T, batch, ...): by how much the student's answers miss the teacher's, (T,
        batch, a); and what else costs, by names of `cost_weights`."""

    def stepped(self, lr: float) -> None:
        """Called after each update that was made; lr: its learning rate."""

    # --- collection ---

    def gather(self, progress: float) -> Gathered:
        """As `Distributable.gather`: a lesson."""
        del progress
        env, start, rows, seen = self.env, self.carried, [], []

        def record(moment: Moment) -> None:
            rows.append(moment.decision.note)
            step = moment.step
            error = step.error.nan_to_num(1.0).clamp(max=self.most_error)
            seen.append(torch.stack([step.rewards.nan_to_num().sum(-1).mean(), error.mean()]))

        self.carried = rollout(self, env, self.config.unroll, record, carried=start)
        reward, error = torch.stack(seen).mean(0).tolist()
        figures = {"reward": reward, env.task.error_name: error} | env.ground.figures()
        lesson = Lesson(stack_trees(rows), self.students(start.memory))
        return Gathered(lesson, figures, self.config.unroll * env.num_envs)

    def merge(self, parts: Sequence[Gathered]) -> Gathered:
        """As `Distributable.merge`: the collectors' robots side by side."""
        lesson = Lesson(
            cat_trees([part.data.steps for part in parts], 1),
            cat_trees([part.data.start for part in parts]),
        )
        return Gathered(lesson, mean_figures(parts), sum(part.env_steps for part in parts))

    def acting_weights(self) -> dict[str, Tensor]:
        """As `Distributable.acting_weights`."""
        return self.online.state_dict()

    def act_as(self, weights: dict[str, Tensor]) -> None:
        """As `Distributable.act_as`."""
        self.online.load_state_dict(weights)

    # --- learning ---

    def iteration(self, progress: float, gathered: Gathered | None = None) -> dict[str, float]:
        """A lesson, and updates from the latest; progress in [0, 1] is the share of the run done.
        Returns metrics for the log: `clone_error` is by how much the student misses the teacher's
        answers, root mean square."""
        gathered = gathered or self.gather(progress)
        c = self.config
        self.env_steps += gathered.env_steps
        slot = self.iteration_count % c.kept
        map_tree(lambda ring, lesson: ring[slot].copy_(lesson), self.lessons, gathered.data)
        lr = linear(c.lr, progress)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        sums: dict[str, float] = {}
        skipped = 0
        for update in range(c.updates):
            off, costs = self.fit(*self._drawn())
            loss = clone_loss(off, c.outlier_rad) + sum(
                self.cost_weights[name] * cost for name, cost in costs.items()
            )
            norm = descend(loss, self.online, c.clip_grad, self.optimizer)
            if math.isfinite(norm):
                self.stepped(lr)
                follow(self.average, self.online, c.ema, self.iteration_count * c.updates + update)
            else:
                skipped += 1
            for name, cost in {"clone_error": off.detach().square().mean(), **costs}.items():
                sums[name] = sums.get(name, 0.0) + cost.item() / c.updates
        self.iteration_count += 1
        sums["clone_error"] **= 0.5
        return (
            gathered.figures | sums | {"policy_grad_norm": norm, "skipped_updates": float(skipped)}
        )

    def _drawn(self) -> Lesson:
        """Robots of one of the lessons that are kept."""
        kept, device = min(self.iteration_count + 1, self.config.kept), self.env.device
        which = int(torch.randint(kept, (), generator=self.generator, device=device))
        lesson = map_tree(lambda ring: ring[which], self.lessons)
        robots = lesson.steps["first"].shape[1]
        ids = torch.randint(robots, (self.config.batch,), generator=self.generator, device=device)
        steps = map_tree(lambda part: part[:, ids], lesson.steps)
        return Lesson(steps, map_tree(lambda part: part[ids], lesson.start))

    # --- checkpoints ---

    def _parts(self) -> dict[str, Part]:
        return {
            "policy": self.online,
            "average": self.average,
            "optimizer": self.optimizer,
            "lessons": self.lessons,
            "env": self.env,
            "carried": self.carried,
            "generator": self.generator,
            "counts": Numbers(self, "iteration_count", "env_steps"),
        }


def clone_loss(off: Tensor, outlier_rad: float | None) -> Tensor:
    """The mean square of differences [rad2], those beyond `outlier_rad` counted as the tangent
    there: moments that are lost anyhow, a robot that falls, hold most of the squares."""
    if outlier_rad is None:
        return off.square().mean()
    return 2.0 * nn.functional.huber_loss(off, torch.zeros_like(off), delta=outlier_rad)
