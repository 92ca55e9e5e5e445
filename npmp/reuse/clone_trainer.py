"""Training a policy to do what a task's teacher does (DAgger, Ross et al. 2011), in joint space.

Robots move as the policy has it, at first some as the teacher has it; at every step the teacher says what it would do
there, and the policy is fitted to that. So it learns from the states that it gets into itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp import ranges
from npmp.actors import SkillMemory, skill_memory
from npmp.envs.task_env import TaskEnv
from npmp.memory import require_batch, require_replay
from npmp.reuse.actor import PolicyMemory
from npmp.reuse.policy import HighLevelPolicy, PolicyInput
from npmp.rollout import Carried, Decision, Moment, rollout
from npmp.skill import SkillModule
from npmp.state import Numbers, Part, Resumable
from npmp.training.schedules import linear
from npmp.training.trainer import Gathered, mean_figures
from npmp.tree import Tree, cat_trees, map_tree, stack_trees
from npmp.world_model.averaging import follow
from npmp.world_model.fitting import descend


@dataclass(frozen=True)
class CloneTrainerConfig:
    """Settings of learning from a teacher; sources with the values in conf/algo/clone.yaml. Raises ValueError for
    values out of range."""

    unroll: int = 50  # control steps per robot and iteration
    kept: int = 10  # unrolls that updates are made from, the latest
    updates: int = 20  # per iteration
    batch: int = 64  # robots' unrolls per update
    taught: float = 0.3  # share of the run in which the teacher acts, too: at first of all robots, at its end of none
    action_noise: float = 0.05  # while collecting [rad]
    episode_s: float | None = 4.0  # of training, shorter than the task's; None: the task's own
    lr: tuple[float, float] = (1e-3, 5e-5)  # over the run
    outlier_rad: float | None = None  # larger differences count linearly (Huber 1964); None: all by their squares
    clip_grad: float = 1.0
    ema: float = 0.995  # averaged weights, which are judged and kept; over a ninth of the updates so far at most

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "unroll", "kept", "updates", "batch")
        ranges.share(self, "taught", "ema")
        ranges.not_negative(self, "action_noise")
        ranges.pairs(self, "lr")
        given = [name for name in ("episode_s", "outlier_rad") if getattr(self, name) is not None]
        ranges.above_zero(self, "lr", "clip_grad", *given)


class Lesson(NamedTuple):
    """T control steps of n robots, and what the teacher would have done."""

    given: PolicyInput  # (T, n, ...)
    shown: Tensor  # (T, n, nu) [rad], relative to the home pose as actions are
    first: Tensor  # (T, n) bool
    hidden: Tensor  # (n, h) of the policy's memory before the first step
    cell: Tensor  # (n, h)


class CloneMemory(NamedTuple):
    """What the policy, the teacher and who of them acts carry from step to step."""

    pupil: PolicyMemory
    teacher: Tree
    taught: Tensor  # (n,) bool: the teacher acts


class CloneTrainer(Resumable):
    """Owns environment, policy and the latest lessons; one `iteration` at a time."""

    of_all_collectors = joins = True  # lessons have a column per robot

    def __init__(
        self,
        env: TaskEnv[Any],
        skill: SkillModule,
        policy: HighLevelPolicy,
        config: CloneTrainerConfig | None = None,
        *,
        seed: int = 0,
    ):
        """Build everything on the environment's device; policy is trained in place.

        skill: a module in joint space (`SkillModule.in_joint_space`).

        Raises:
          InputError: for a task without a teacher, a module of another robot, or one with skills.
        """
        skill.check_robot(env.robot)
        self.env, self.config, self.teacher = env, config or CloneTrainerConfig(), env.task.teacher()
        if self.teacher is None:
            raise InputError(f"nobody shows how task '{env.task.name}' is done; use algo=world_model or algo=vmpo")
        if skill.contract.decoder != "joints":
            raise InputError("what a teacher does is in joint space: algo=clone takes joint_space=true")
        self.skill = copy.deepcopy(skill).requires_grad_(False).eval().to(env.device)
        self.online = policy.to(env.device)
        self.average = copy.deepcopy(policy).requires_grad_(False)
        self.generator = torch.Generator(env.device).manual_seed(seed + 1)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=self.config.lr[0])
        self.lessons = self._empty_lessons()  # a ring, each part with the lessons first
        self.share = 1.0  # of the robots that the teacher moves, of those whose episodes begin
        first = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        self.carried = Carried(self.initial_memory(env.num_envs), first)
        self.iteration_count = 0
        self.env_steps = 0

    @property
    def policy(self) -> HighLevelPolicy:
        """The averaged policy: what is evaluated and saved."""
        return self.average

    def _empty_lessons(self) -> Lesson:
        c, env = self.config, self.env
        steps, memory = (c.kept, c.unroll, env.num_envs), self.online.initial_state(env.num_envs).hidden
        given = (env.robots.sensing.width, env.task.observe().shape[-1], self.skill.latent_dim)
        size = {"state": sum(given) + env.num_actions}
        require_replay(c.kept * c.unroll, env.num_envs, size)
        widths = (self.online.net.config.hidden_width, 4 * self.online.net.config.lstm_width)
        require_batch(c.batch, c.unroll, widths, size["state"], key="algo.batch")
        told = PolicyInput(*(memory.new_zeros(*steps, width) for width in given))
        first = torch.zeros(steps, dtype=torch.bool, device=env.device)
        starts = (memory.new_zeros(c.kept, *memory.shape) for _ in range(2))
        return Lesson(told, memory.new_zeros(*steps, env.num_actions), first, *starts)

    # --- collection ---

    def initial_memory(self, n: int) -> CloneMemory:
        """As `npmp.rollout.Actor.initial_memory`."""
        pupil = PolicyMemory(self.online.initial_state(n), skill_memory(self.skill, n))
        return CloneMemory(pupil, self.teacher.initial_memory(n), torch.zeros(n, dtype=torch.bool))

    def act(self, env: TaskEnv[Any], memory: CloneMemory, first: Tensor) -> Decision:
        """As `npmp.rollout.Actor.act`: the teacher or the policy's mean, with noise."""
        drawn = torch.rand(env.num_envs, generator=self.generator, device=env.device)
        taught = torch.where(first, drawn < self.share, memory.taught.to(env.device))
        given = PolicyInput(env.observe(), env.task.observe(), memory.pupil.skill.z)
        latent, state = self.online.step(given, memory.pupil.policy)
        wanted, decoder = self.skill.decode(latent.mean, given.proprioception, memory.pupil.skill.decoder)
        shown = self.teacher.act(env, memory.teacher, first)
        action = torch.where(taught.unsqueeze(-1), shown.action, wanted)
        noise = torch.randn(action.shape, generator=self.generator, device=action.device)
        z = torch.where(taught.unsqueeze(-1), shown.action / self.skill.decoder.scale, latent.mean)
        pupil = PolicyMemory(state, SkillMemory(z, decoder))
        note = {"given": given, "shown": shown.action, "first": first}
        return Decision(action + self.config.action_noise * noise, CloneMemory(pupil, shown.memory, taught), note)

    def gather(self, progress: float) -> Gathered:
        """As `Distributable.gather`: a lesson."""
        self.share = max(0.0, 1.0 - progress / self.config.taught) if self.config.taught > 0.0 else 0.0
        env, start, rows, seen = self.env, self.carried, [], []

        def record(moment: Moment) -> None:
            rows.append(moment.decision.note)
            step = moment.step
            seen.append(torch.stack([step.rewards.nan_to_num().sum(-1).mean(), step.error.nan_to_num(1.0).mean()]))

        self.carried = rollout(self, env, self.config.unroll, record, carried=start)
        reward, error = torch.stack(seen).mean(0).tolist()
        lesson = Lesson(
            **stack_trees(rows), hidden=start.memory.pupil.policy.hidden, cell=start.memory.pupil.policy.cell
        )
        figures = {"reward": reward, env.task.error_name: error, "taught": self.share}
        return Gathered(lesson, figures | env.task.logged(), self.config.unroll * env.num_envs)

    def merge(self, parts: Sequence[Gathered]) -> Gathered:
        """As `Distributable.merge`: the collectors' robots side by side."""
        steps = cat_trees([(part.data.given, part.data.shown, part.data.first) for part in parts], 1)
        starts = cat_trees([(part.data.hidden, part.data.cell) for part in parts])
        return Gathered(Lesson(*steps, *starts), mean_figures(parts), sum(part.env_steps for part in parts))

    def acting_weights(self) -> dict[str, Tensor]:
        """As `Distributable.acting_weights`."""
        return self.online.state_dict()

    def act_as(self, weights: dict[str, Tensor]) -> None:
        """As `Distributable.act_as`."""
        self.online.load_state_dict(weights)

    # --- learning ---

    def iteration(self, progress: float, gathered: Gathered | None = None) -> dict[str, float]:
        """A lesson, and updates from the latest; progress in [0, 1] is the share of the run done. Returns metrics for
        the log: `clone_error` is by how much the policy misses the teacher's targets, root mean square [rad]."""
        gathered = gathered or self.gather(progress)
        c = self.config
        self.env_steps += gathered.env_steps
        slot = self.iteration_count % c.kept
        map_tree(lambda ring, lesson: ring[slot].copy_(lesson), self.lessons, gathered.data)
        for group in self.optimizer.param_groups:
            group["lr"] = linear(c.lr, progress)
        squares = []
        for update in range(c.updates):
            off = self._off()
            norm = descend(clone_loss(off, c.outlier_rad), self.online, c.clip_grad, self.optimizer)
            follow(self.average, self.online, c.ema, self.iteration_count * c.updates + update)
            squares.append(off.detach().square().mean().item())
        self.iteration_count += 1
        error = (sum(squares) / len(squares)) ** 0.5
        return gathered.figures | {"clone_error": error, "policy_grad_norm": norm}

    def _off(self) -> Tensor:
        """By how much the policy's targets miss the teacher's, over robots of one lesson, (T, batch, nu) [rad]."""
        kept = min(self.iteration_count + 1, self.config.kept)
        which = int(torch.randint(kept, (), generator=self.generator, device=self.env.device))
        lesson = map_tree(lambda ring: ring[which], self.lessons)
        ids = torch.randint(
            lesson.first.shape[1], (self.config.batch,), generator=self.generator, device=self.env.device
        )
        given, shown, first = map_tree(lambda part: part[:, ids], (lesson.given, lesson.shown, lesson.first))
        state = self.online.initial_state(len(ids))._replace(hidden=lesson.hidden[ids], cell=lesson.cell[ids])
        mean, _, _ = self.online(given, state, first)
        return self.skill.decoder.scale * mean - shown

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
    """The mean square of differences [rad2], those beyond `outlier_rad` counted as the tangent there: moments that are
    lost anyhow, a robot that falls, hold most of the squares."""
    if outlier_rad is None:
        return off.square().mean()
    return 2.0 * torch.nn.functional.huber_loss(off, torch.zeros_like(off), delta=outlier_rad)
