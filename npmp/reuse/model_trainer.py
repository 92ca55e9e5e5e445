"""Training a high-level policy by backpropagation through a world model that is fitted on the
robots it moves.

The module's decoder is frozen; policy, decoder and model are one differentiable rollout
(`npmp.reuse.imagination`). The loop is imitation's (`npmp.world_model.trainer`): collect with the
policy, fit the model, improve the policy.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp import ranges
from npmp.actors import PriorActor, SkillMemory, TrackingActor, skill_memory
from npmp.envs.task import Task
from npmp.envs.task_env import TaskEnv
from npmp.memory import require_batch, require_demonstration, require_replay
from npmp.nets.high_level import HighLevelState
from npmp.nets.init import seeded
from npmp.reuse.actor import PolicyMemory
from npmp.reuse.cloning import Demonstrator, demonstrate, fit_policy, held_up
from npmp.reuse.imagination import PolicyImagination
from npmp.reuse.policy import HighLevelPolicy, PolicyInput
from npmp.rl.averaging import follow
from npmp.rl.gradients import descend
from npmp.rollout import Carried, Decision, Moment, rollout
from npmp.skill import SkillModule
from npmp.state import Numbers, Part, Resumable
from npmp.tasks.imitation import Imitation
from npmp.training.schedules import linear
from npmp.training.trainer import Gathered, mean_figures
from npmp.tree import cat_trees
from npmp.world_model.collection import robot_note, robot_sizes
from npmp.world_model.fitting import ModelFit, ThroughModelConfig
from npmp.world_model.model import WorldModel
from npmp.world_model.posture import PostureRange
from npmp.world_model.replay import Replay, Start

# iterations until the learning rate is reached: Adam's first steps are large, the model is hardly
# fitted
_RAMP = 25
# second after which a robot of the prior that has not failed counts as having been sound
_WHOLE = 1.0


@dataclass(frozen=True)
class ModelTrainerConfig(ThroughModelConfig):
    """Settings of learning through a model in reuse; sources with the values in
    conf/algo/in_reuse/world_model.yaml. Raises ValueError for values out of range."""

    model_updates: int = 8  # per iteration
    policy_updates: int = 2  # per iteration
    replay_steps: int = 192
    policy_lr: tuple[float, float] = (5e-4, 1e-5)
    ema: float = 0.998
    warmup_steps: int = 32
    # of training, where the task's are longer: robots start often; None: the task's
    episode_s: float | None = 10.0
    action_noise: float = 0.03  # [rad], while collecting
    horizon: int = 36  # imagined control steps
    new_goals: float = 0.5  # share of imagined robots that are asked something new at the start
    beta: float = 0.01  # weight of the KL to the prior, summed over latent dimensions [1/nat]
    # shares of the run from which on the task's style counts, and counts in full: of a new policy,
    # one that has learned before has to keep it
    style_ramp: tuple[float, float] = (0.2, 0.5)
    posture: float = 5.0  # weight of the distance from the postures that are known to hold
    # weight of the setpoints' distance from the joints, summed over them [1/rad]
    effort: float = 0.02
    smoothness: float = 0.02  # weight of the setpoints' change per step, summed over joints [1/rad]
    # k_0 and k_d of Hwangbo's curriculum: effort and smoothness count k times, k <- k ** k_d with
    # every iteration
    cost_curriculum: tuple[float, float] = (1.0, 0.997)
    imagine_pushes: bool = True  # a push that there is where imagination starts goes on
    # control steps per robot of what the policy is first fitted to; None: 128 of tracking
    # recordings, which begin anywhere, or 320 of wandering, which begins standing; more where a
    # sequence and its window take them
    clone_steps: int | None = None
    # 0: it starts as the prior, as where a task does not say what a step has achieved
    clone_updates: int = 600
    clone_batch: int = 128  # sequences per update
    clone_sequence: int = 32  # control steps of each
    clone_lr: tuple[float, float] = (1e-3, 1e-4)
    # a step is labelled with what the module achieved in this time after it, in the mean
    clone_window_s: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "horizon", "clone_batch", "clone_sequence")
        if self.clone_steps is not None:
            ranges.at_least_one(self, "clone_steps")
        ranges.pairs(self, "clone_lr", "cost_curriculum")
        ranges.above_zero(self, "clone_lr", "clone_window_s")
        ranges.not_negative(
            self,
            "warmup_updates",
            "action_noise",
            "beta",
            "posture",
            "effort",
            "smoothness",
            "clone_updates",
        )
        ranges.share(self, "new_goals")
        if not 0.0 <= self.style_ramp[0] < self.style_ramp[1]:
            raise ValueError(
                f"style_ramp must be two shares of a run, 0 <= begin < full; got {list(self.style_ramp)}"
            )
        if not (0.0 < self.cost_curriculum[0] <= 1.0 and 0.0 < self.cost_curriculum[1] < 1.0):
            raise ValueError(
                f"cost_curriculum must be 0 < k_0 <= 1, 0 < k_d < 1; got {list(self.cost_curriculum)}"
            )
        if self.episode_s is not None:
            ranges.above_zero(self, "episode_s")


class ModelTrainer(Resumable):
    """Owns policy, model, optimizers, replay and the collection's state; one `iteration` at a time,
    after `warm_up`."""

    of_all_collectors = joins = True  # the replay has a column per robot

    def __init__(
        self,
        env: TaskEnv[Any],
        skill: SkillModule,
        policy: HighLevelPolicy,
        config: ModelTrainerConfig | None = None,
        *,
        recordings: Imitation | None = None,
        new: bool = True,
        seed: int = 0,
    ):
        """Build everything on the environment's device; policy is moved there.

        Args:
          env: the robots to collect with.
          skill: a copy of it is used, frozen.
          policy: is trained in place.
          recordings: motions that the module tracks, to clone from and to keep to the postures of;
            without them what the module does on latents of its prior serves for both.
          new: whether the policy is first fitted to what the module does; not where it has learned
            before.

        Raises:
          InputError: for a module of another robot, a task that cannot be learned through a model,
            or too few steps to clone from.
        """
        self.env, self.config, self.recordings, self.seed = (
            env,
            config or ModelTrainerConfig(),
            recordings,
            seed,
        )
        c = self.config
        self.task = _checked(env, skill)
        self.new = new
        # without skills there is nothing to clone, without a word on what a step has achieved no
        # goal that it was for
        says = skill.contract.decoder != "joints" and self.task.achieved is not None
        self.clones = new and c.clone_updates > 0 and says
        self.demonstrates = self.clones or recordings is None
        if recordings is not None and self.clones:
            skill.check_encoder(env.robot)
        least = self.clone_window + c.clone_sequence
        self.clone_steps = c.clone_steps or max(least, 128 if recordings is not None else 320)
        if self.clones and self.clone_steps < least:
            raise InputError(
                f"algo.clone_steps={self.clone_steps}: sequences and what follows them take {least}"
            )
        self.skill = copy.deepcopy(skill).requires_grad_(False).eval().to(env.device)
        self.online = policy.to(env.device)
        self.average = copy.deepcopy(policy).requires_grad_(False)
        self.generator = torch.Generator(env.device).manual_seed(seed + 1)
        self.physics_size = env.robots.physics_size if c.model_physics else 0
        with seeded(seed):
            self.model = WorldModel(
                env.home, env.dt, env.feet, c.model_hidden, self.physics_size, env.robots.imu_cross,
                rough=env.ground.rough,
            ).to(env.device)  # fmt: skip
        self.fit = ModelFit(self.model, c)
        known = env.state if recordings is None else recordings.reference.frames
        self.postures = PostureRange(known).to(env.device)  # without recordings set by `warm_up`
        self.imagination = PolicyImagination(
            self.online,
            self.skill,
            self.fit.frozen,
            c.sensing(env),
            self.task,
            self.postures,
            compile=c.compile,
        )
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=c.policy_lr[0])
        self.replay = self._empty_replay()
        first = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        self.carried = Carried(self.initial_memory(env.num_envs), first)
        self.iteration_count = 0
        self.env_steps = 0
        self.skipped = 0  # updates of the policy not made in the last iteration

    @property
    def policy(self) -> HighLevelPolicy:
        """The averaged policy: what is evaluated and saved."""
        return self.average

    @property
    def cost_share(self) -> float:
        """k_j: how much of their weights effort and smoothness have in this iteration (Hwangbo et
        al. 2019)."""
        first, power = self.config.cost_curriculum
        return float(first ** (power**self.iteration_count))

    @property
    def clone_window(self) -> int:
        """Control steps over which a goal is what was achieved in the mean."""
        return max(1, round(self.config.clone_window_s / self.env.dt))

    @property
    def steps_before(self) -> int:
        """Environment steps before the first iteration."""
        shown = self.clone_steps if self.demonstrates else 0
        return (shown + self.config.warmup_steps) * self.env.num_envs

    def _empty_replay(self) -> Replay:
        c, env, lstm = self.config, self.env, self.skill.net.lstm_width
        memory = self.online.initial_state(1).hidden.shape[-1]
        sizes = robot_sizes(env, self.physics_size) | {
            "z": self.skill.latent_dim,
            "hidden": lstm,
            "cell": lstm,
            "policy_hidden": memory,
            "policy_cell": memory,
            "goal": self.task.goal().shape[-1],
        }
        if env.ground.rough:
            sizes |= {"patch": 2, "ground": len(env.robot.foot_bodies)}
        require_replay(c.replay_steps, env.num_envs, sizes)
        require_batch(c.model_batch, c.window, c.model_hidden, sizes["state"])
        require_batch(
            c.policy_batch, c.horizon, c.model_hidden, sizes["state"], key="algo.policy_batch"
        )
        if self.demonstrates:
            width, net = (
                2 * sizes["state"] + env.robots.sensing.width + 3 * sizes["z"],
                self.online.net.config,
            )
            require_demonstration(self.clone_steps, env.num_envs, width)
            units = (net.input_width, net.hidden_width, net.hidden_width, 4 * net.lstm_width)
            require_batch(c.clone_batch, c.clone_sequence, units, width, key="algo.clone_batch")
        return Replay(c.replay_steps, env.num_envs, sizes, env.device, frames=1)

    # --- before the first iteration ---

    def warm_up(self) -> dict[str, float]:
        """Clone, then fill the replay and fit the model to it. Returns figures of both."""
        figures = self._clone()
        self.env.restart()
        self._collect(self.config.warmup_steps)
        self.fit.take_scales(self.replay, self.generator)
        figures |= self.fit.warm_up(self.replay, self.generator, self.config.warmup_updates)
        self.fit.freeze()
        return figures | {"model_goes_on": float(self.fit.goes_on)}

    def _clone(self) -> dict[str, float]:
        """Fit the policy to what the module does of itself, and take the range of postures from it
        where there are no recordings. Returns the cross entropy before and after."""
        c, recordings = self.config, self.recordings
        if not self.demonstrates:
            return {}
        actor = (
            PriorActor(self.skill, self.generator)
            if recordings is None
            else TrackingActor(self.skill, self.generator)
        )
        env = self.env if recordings is None else self.env.beside(recordings, seed=self.seed + 1)
        shown = demonstrate(
            Demonstrator(actor, self.generator, c.action_noise), env, self.clone_steps
        )
        self.env_steps += self.clone_steps * env.num_envs
        if recordings is None:
            held = PostureRange(held_up(shown, round(_WHOLE / env.dt)))
            self.postures.low.copy_(held.low)
            self.postures.high.copy_(held.high)
        if not self.clones:
            return {}
        first, last = fit_policy(
            self.online,
            shown,
            self.task,
            self.generator,
            window=self.clone_window,
            sequence=c.clone_sequence,
            batch=c.clone_batch,
            updates=c.clone_updates,
            rate=c.clone_lr,
        )
        self.average.load_state_dict(self.online.state_dict())
        return {"clone_loss_before": first, "clone_loss": last}

    # --- collection ---

    def initial_memory(self, n: int) -> PolicyMemory:
        """As `npmp.rollout.Actor.initial_memory`."""
        return PolicyMemory(self.online.initial_state(n), skill_memory(self.skill, n))

    def act(self, env: TaskEnv[Any], memory: PolicyMemory, first: Tensor) -> Decision:
        """As `npmp.rollout.Actor.act`: sampled latents, and noise on the decoder's mean; every
        other iteration the averaged policy acts."""
        policy = self.average if self.iteration_count % 2 else self.online
        seen, goal, before = env.observe(), self.task.goal(), memory.skill
        known = PolicyInput(seen, self.task.see(env.state, goal), before.z)
        latent, state = policy.step(known, memory.policy)
        z = latent.mean + latent.std * self._randn(latent.mean)
        action, decoder = self.skill.decode(z, seen, before.decoder)
        action = action + self.config.action_noise * self._randn(action)
        note = {
            "first": first,
            "z": before.z,
            "hidden": before.decoder.hidden,
            "cell": before.decoder.cell,
            "policy_hidden": memory.policy.hidden,
            "policy_cell": memory.policy.cell,
            "goal": goal,
            **robot_note(env, action, self.physics_size),
            "state": env.ground.integrated(env.state).pack(),
        }
        if env.ground.rough:
            patch = env.ground.patch(env.state)
            under = env.ground.under_feet(env.ground.integrated(env.state), patch)
            note |= {"patch": patch, "ground": under + patch[:, :1]}
        return Decision(action, PolicyMemory(state, SkillMemory(z, decoder)), note)

    def _randn(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator, device=like.device)

    def _collect(self, steps: int) -> dict[str, float]:
        """Run all robots for some control steps, into the replay. Returns the collection's figures."""
        return self._keep(self._gather(steps))

    def _keep(self, gathered: Gathered) -> dict[str, float]:
        """Put the steps taken into the replay. Returns the collection's figures."""
        # there is no reference
        nowhere = torch.zeros(self.env.num_envs, dtype=torch.long, device=self.env.device)
        for note in gathered.data:
            self.replay.add(nowhere, nowhere, **note)
        self.env_steps += gathered.env_steps
        return gathered.figures

    def _gather(self, steps: int) -> Gathered:
        """Run all robots for some control steps.

        Returns: what `Replay.add` takes of each; means over the steps: `reward`, the task's error
        by its name, `falls_per_s` (per robot).
        """
        env, taken, rows = self.env, [], []

        def record(moment: Moment) -> None:
            taken.append(moment.decision.note)
            step = moment.step
            parts = (
                step.rewards.nan_to_num().sum(-1),
                step.error.nan_to_num(),
                step.terminated.float(),
            )
            rows.append(torch.stack([part.mean() for part in parts]))

        self.carried = rollout(self, env, steps, record, carried=self.carried)
        reward, error, falls = torch.stack(rows).mean(0).tolist()
        figures = {"reward": reward, env.task.error_name: error, "falls_per_s": falls / env.dt}
        return Gathered(taken, figures | env.ground.figures(), steps * env.num_envs)

    # --- learning ---

    def iteration(self, progress: float, gathered: Gathered | None = None) -> dict[str, float]:
        """Collect, fit the model, improve the policy; progress in [0, 1] is the share of the run
        done. Returns metrics for the log."""
        gathered = gathered or self.gather(progress)
        c = self.config
        for group in self.optimizer.param_groups:
            group["lr"] = linear(c.policy_lr, progress) * min(
                1.0, (self.iteration_count + 1) / _RAMP
            )
        self.skipped = 0
        metrics = self._keep(gathered) | self.fit(self.replay, progress, self.generator)
        self.fit.freeze()
        for _ in range(c.policy_updates):
            learned = self.improve_policy(progress)
        self.iteration_count += 1
        return metrics | learned | {"skipped_updates": float(self.skipped + self.fit.skipped)}

    def gather(self, progress: float) -> Gathered:
        """As `Distributable.gather`: what `Replay.add` takes of each control step."""
        del progress
        return self._gather(self.config.collect_steps)

    def merge(self, parts: Sequence[Gathered]) -> Gathered:
        """As `Distributable.merge`: the collectors' robots side by side."""
        return Gathered(
            cat_trees([part.data for part in parts]),
            mean_figures(parts),
            sum(p.env_steps for p in parts),
        )

    def acting_weights(self) -> dict[str, Tensor]:
        """As `Distributable.acting_weights`: those of the policy or, every other iteration, of its
        average."""
        return (self.average if self.iteration_count % 2 else self.online).state_dict()

    def act_as(self, weights: dict[str, Tensor]) -> None:
        """As `Distributable.act_as`."""
        self.online.load_state_dict(weights)

    def improve_policy(self, progress: float = 1.0) -> dict[str, float]:
        """One gradient step of the policy through decoder and model. Returns metrics."""
        c = self.config
        moments = self.replay.moments(c.policy_batch, self.generator)
        memory = HighLevelState(moments.pop("policy_hidden"), moments.pop("policy_cell"))
        goal = self._asked(moments.pop("goal"))
        patch = moments.pop("patch", goal[:, :0])
        moments.pop("ground", None)  # imagination looks it up
        drawn = moments.pop("physics")
        if c.model_physics and not c.imagine_pushes:
            drawn = self.env.robots.without_push(drawn)
        start = Start(**moments, physics=drawn)
        imagined = self.imagination(start, memory, goal, patch, c.horizon, self.generator)
        begins, full = c.style_ramp
        ramp = min(max((progress - begins) / (full - begins), 0.0), 1.0) if self.new else 1.0
        loss = (
            imagined.task
            + ramp * imagined.style
            + c.posture * imagined.posture
            + c.beta * imagined.kl
        )
        k = self.cost_share
        loss = loss + k * (c.effort * imagined.effort + c.smoothness * imagined.smoothness)
        norm = descend(loss, self.online, c.clip_grad, self.optimizer)
        if math.isfinite(norm):
            follow(self.average, self.online, c.ema, self.iteration_count * c.policy_updates)
        else:
            self.skipped += 1
        named = {f"imagined_{name}": value.item() for name, value in imagined._asdict().items()}
        return {"kl": named.pop("imagined_kl"), **named, "policy_grad_norm": norm, "cost_share": k}

    def _asked(self, goal: Tensor) -> Tensor:
        """What imagined robots are asked: what they were, or something new, so that changes are
        learned."""
        draw = torch.rand(len(goal), 1, generator=self.generator, device=goal.device)
        return torch.where(
            draw < self.config.new_goals, self.task.new_goals(goal, self.generator), goal
        )

    # --- checkpoints ---

    def _parts(self) -> dict[str, Part]:
        return {
            "policy": self.online,
            "average": self.average,
            "optimizer": self.optimizer,
            "model": self.model,
            "model_optimizer": self.fit.optimizer,
            "postures": {"low": self.postures.low, "high": self.postures.high},
            "env": self.env,
            "replay": self.replay,
            "carried": self.carried,
            "generator": self.generator,
            "counts": Numbers(self, "iteration_count", "env_steps"),
        }


def _checked(env: TaskEnv[Any], skill: SkillModule) -> Task:
    """The environment's task, where a module can learn it through a model.

    Raises:
      InputError: where it cannot.
    """
    skill.check_robot(env.robot)
    if not (env.task.imaginable and env.task.inputs):
        raise InputError(f"task '{env.task.name}' cannot be learned through a model; use algo=vmpo")
    env.task.next_goal(env.task.goal(), env.state)  # it may not serve every robot
    if env.task.extras:
        raise InputError(
            "imagined robots have no clock and see no ground: task.clock_s and task.sees_ground take algo=clone or vmpo"
        )
    return env.task
