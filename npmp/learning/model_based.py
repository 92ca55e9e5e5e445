"""Learning through a model: collect with the policy, fit a model of the simulator to that, improve
the policy by backpropagation through the model (SuperTrack 2021, ControlVAE 2022). One trainer for
any task that can be imagined.

A gradient goes from `Task.imagined_loss` through `npmp.learning.world_model.imagination` into the
policy. In imitation the policy is a module's encoder, learned together with the decoder; in reuse a
high-level policy over a frozen decoder.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp.core import ranges
from npmp.core.memory_checks import require_batch, require_demonstration, require_replay
from npmp.core.progress import phase
from npmp.core.seeding import seeded
from npmp.core.state import Counters, StatePart
from npmp.core.tree import cat_trees, leaves
from npmp.envs.policy import Observation
from npmp.envs.reference import Reference
from npmp.envs.rollout import RolloutState, Transition, rollout
from npmp.envs.sensing import Sensing, SensorConfig
from npmp.envs.task import Task
from npmp.envs.task_env import TaskEnv
from npmp.learning import cloning
from npmp.learning.agents import latent_range
from npmp.learning.exploration import ActionNoise, Redirection, step_of
from npmp.learning.rl.optimization import descend, move_average
from npmp.learning.schedules import linear
from npmp.learning.trainer import Experience, StepMeans, Trainer
from npmp.learning.world_model.behavior import BehaviorPrior
from npmp.learning.world_model.imagination import Imagination
from npmp.learning.world_model.model import WorldModel
from npmp.learning.world_model.model_fit import WINDOW, ModelFit
from npmp.learning.world_model.posture import PostureRange, SlicedWasserstein
from npmp.learning.world_model.replay import ReplayBuffer, Step
from npmp.skills.composition import Composition, TrackingPolicy, over
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.skill_module import SkillModule

# iterations until a high-level policy's learning rate is reached: Adam's first steps are large, and
# the model is hardly fitted
RAMP = 25
CLIP_GRAD = 1.0  # norm
# seconds after which a robot on the prior that has not failed counts as having been sound
SOUND_S = 1.0


@dataclass(frozen=True, kw_only=True)
class ModelBasedConfig:
    """Settings of learning through a model; pairs are [start, end] of a schedule over the run. What
    only tracking references or only commands have is a constant here, and a setting of their own
    classes [D where no source is named]. Raises ValueError out of range."""

    prior_share = 0.0
    prior_steps = 1
    rejoin_rate = 0.0
    wasserstein = 0.0
    new_goals = 0.0
    effort = 0.0
    smoothness = 0.0
    style_ramp = (0.0, 1.0)
    clone_steps = 0
    clone_updates = 0
    behavior = 0.0

    # units of the dynamics model
    model_hidden: tuple[int, ...] = (256, 256, 256)
    # per iteration
    model_updates: int = 4
    # windows of 8 control steps per update
    model_batch: int = 512
    # learning rate of the model
    model_lr: tuple[float, float] = (1e-3, 2e-4)
    # the model gets the random physics and pushes
    model_physics: bool = True
    # control steps per robot and iteration
    collect_steps: int = 2
    # control steps kept per robot: nearly on-policy
    replay_steps: int = 128
    # control steps before the first update; the model's scales are taken from them
    warmup_steps: int = 16
    # of the model alone, before the first of what has learned: a new model spoils what it can do
    warmup_updates: int = 600
    # of training, where the task's own episodes are longer; null: the task's own
    episode_s: float | None = None
    # of the policy, per iteration
    policy_updates: int = 4
    # imagined robots per update
    policy_batch: int = 128
    # learning rate of the policy
    policy_lr: tuple[float, float] = (5e-4, 5e-5)
    # imagined control steps
    horizon: tuple[int, int] = (16, 24)
    # averaged weights, for evaluation and half of the collection; over a ninth of the updates so
    # far at most
    ema: float = 0.995
    # imagined robots have the sensors' noise and delay
    imagine_sensors: bool = True
    # a push that there is where imagination starts goes on
    imagine_pushes: bool = False
    # share of the imagined robots that begin where an episode did, memories empty
    fresh_starts: float = 0.0
    # while collecting [rad]
    action_noise: tuple[float, float] = (0.1, 0.05)
    # weight of the KL to the prior, summed over latent dimensions [1/nat]
    beta: tuple[float, float] = (1e-3, 2e-2)
    # share of the run over which beta rises
    beta_ramp: float = 0.4
    # weight of the distance from the postures that hold; in imitation of the robots
    # that imagine a stretch on the prior
    posture: float = 0.0
    # collect and fit the model on a second thread, for the policy's updates of the next iteration
    overlap: bool = False
    # torch.compile the inner steps: a minute or two at first, then faster
    compile: bool = False

    def __post_init__(self) -> None:
        ranges.at_least_one(
            self, "model_hidden", "model_updates", "model_batch", "collect_steps", "replay_steps",
            "warmup_steps", "policy_updates", "policy_batch", "horizon",
        )  # fmt: skip
        ranges.at_most(self, ranges.MAX_WIDTH, "model_hidden")
        ranges.pairs(self, "model_lr", "policy_lr", "horizon", "action_noise", "beta")
        ranges.above_zero(self, "model_lr", "policy_lr", "beta_ramp", "episode_s")
        ranges.not_negative(self, "warmup_updates", "action_noise", "beta", "posture")
        ranges.share(self, "ema", "fresh_starts")
        if min(self.replay_steps - 1, self.warmup_steps) <= WINDOW:
            raise ValueError(
                f"replay_steps ({self.replay_steps}) and warmup_steps ({self.warmup_steps}) must "
                f"exceed {WINDOW + 1} and {WINDOW}, the model's window"
            )


class ModelBasedTrainer(Trainer):
    """Owns policy, model, optimizers, replay and the collection's state; one `iteration` at a time,
    after `warm_up`."""

    # the replay has a column per robot
    needs_all_collectors = True
    learning_rate_keys = "algo.policy_lr=, algo.model_lr="

    def __init__(
        self,
        env: TaskEnv[Any],
        policy: TrackingPolicy | HighLevelPolicy,
        skill: SkillModule,
        config: ModelBasedConfig,
        *,
        recordings: Task | None = None,
        new: bool = True,
        seed: int = 0,
    ):
        """Build everything on the environment's device.

        Args:
          policy: trained in place; a `TrackingPolicy` of the module learns with its decoder.
          skill: of any other policy a copy of it is used, frozen.
          recordings: an imitation task of motions that the module tracks, to clone a new policy
            from and to keep to the postures of; without one what the module does on latents of its
            prior serves for both.
          new: whether the policy has learned nothing yet.

        Raises:
          InputError: for a module of another robot, a task that cannot be imagined, or too few
            steps to clone from.
        """
        _check(env, skill, config)
        self.env = env
        self.config = config
        self.new = new
        self.seed = seed
        c = config
        device = env.device
        if isinstance(policy, HighLevelPolicy):
            skill = copy.deepcopy(skill).requires_grad_(False).eval()
            policy.regularize_towards(skill)
        policy.weights.to(device)
        self.learned = over(policy, skill.to(device))
        self.average = copy.deepcopy(self.learned)
        self.average.upper.weights.requires_grad_(False)
        self.generator = torch.Generator(device).manual_seed(seed + 1)
        # two threads sample from two generators, so that no result depends on which is faster
        self.acting = torch.Generator(device).manual_seed(seed + 2) if c.overlap else self.generator
        self._plan_cloning(recordings)
        self.physics_size = env.robots.physics_size if c.model_physics else 0
        with seeded(seed):
            self.model = WorldModel(
                env.home, env.dt, env.feet, c.model_hidden, self.physics_size, env.robots.imu_cross,
                rough=env.ground.rough, currents=env.task.current_weight > 0.0,
            ).to(device)  # fmt: skip
        updates = c.model_updates
        batch = c.model_batch
        self.fit = ModelFit(self.model, updates=updates, batch=batch, compile=c.compile)
        self.imagination = self._imagination(recordings)
        self.optimizer = torch.optim.Adam(policy.weights.parameters())
        is_first = torch.ones(env.num_envs, dtype=torch.bool, device=device)
        state = self.learned.initial_state(env.num_envs)
        self.carried = RolloutState(state, is_first)
        still = torch.zeros(env.num_envs, env.num_actions, device=device)
        nothing = still[:, :0]
        observation = Observation(nothing, nothing, is_first)
        example = step_of(env, observation, state, still, physics_size=self.physics_size)
        self._require_memory(sum(leaf.shape[-1] for leaf in leaves(example) if leaf.dim() > 1))
        self.replay = ReplayBuffer(c.replay_steps, example)
        self.iteration_count = self.env_steps = 0
        self.skipped = 0  # updates of the policy not made in the last iteration
        self._first_here = True  # no iteration made yet in this process

    def _plan_cloning(self, recordings: Task | None) -> None:
        """Settle what the module demonstrates before the first iteration."""
        c = self.config
        policy = self.learned.upper
        skill = self.learned.lower
        self.recordings = recordings
        self.guided = isinstance(policy, TrackingPolicy)
        # without skills there is nothing to clone, without `achieved` no goal that it was for
        has_skills = c.clone_updates > 0 and skill.contract.decoder == "lstm" and not self.guided
        self.clones = self.new and has_skills and self.env.task.achieved is not None
        if self.clones and recordings is None and self.env.task.extras:
            raise InputError(
                "what sees the ground is cloned from recordings: data=, or algo.clone_updates=0"
            )
        self.behavior: BehaviorPrior | None = None
        if has_skills and c.behavior:
            alpha = policy.prior.alpha
            self.behavior = cloning.behavior_of(skill, self.env, alpha, c.behavior, seed=self.seed)
            policy.regularize(self.behavior)
        self.demonstrates = not self.guided and (
            self.clones or recordings is None or self.behavior is not None
        )
        if recordings is not None and self.demonstrates:
            skill.check_encoder(self.env.robot)
        # a goal is what is achieved over some steps, where a task says so
        self.window = 1 if self.env.task.achieved is None else cloning.goal_steps(self.env.dt)
        least = self.window + cloning.SEQUENCE * self.clones
        self.clone_steps = c.clone_steps or max(least, 128 if recordings is not None else 320)
        if self.demonstrates and self.clone_steps < least:
            raise InputError(
                f"algo.clone_steps={self.clone_steps}: sequences and what follows them take {least}"
            )

    def _imagination(self, recordings: Task | None) -> Imagination:
        c = self.config
        env = self.env
        tracking = getattr(recordings, "tracking", None)
        reference: Reference | None = None if tracking is None else tracking.reference
        if self.guided:
            reference = env.task.tracking.reference
        # without recordings set by `warm_up`
        postures = PostureRange(env.state if reference is None else reference.frames)
        self.postures = postures.to(env.device)
        crowd = SlicedWasserstein(reference) if c.wasserstein and reference is not None else None
        exact = Sensing(SensorConfig(), env.home, env.dt)
        sensing = env.robots.sensing if c.imagine_sensors else exact
        self.frees = self.guided and bool(c.posture or c.wasserstein)
        return Imagination(
            self.learned, self.fit.frozen, sensing, env.task, env.ground, self.postures, crowd,
            frees=self.frees, compile=c.compile,
        )  # fmt: skip

    def _require_memory(self, width: int) -> None:
        c = self.config
        n = self.env.num_envs
        state = self.env.state.pack().shape[-1]
        require_replay(c.replay_steps, n, width)
        require_batch(c.model_batch, WINDOW, c.model_hidden, state)
        key = "algo.policy_batch"
        require_batch(c.policy_batch, max(c.horizon), c.model_hidden, state, key=key)
        if self.demonstrates:
            step_width = (
                2 * state + self.env.robots.sensing.width + 3 * self.learned.lower.latent_dim
            )
            require_demonstration(self.clone_steps, n, step_width)

    @property
    def policy(self) -> HighLevelPolicy:
        """The averaged high-level policy: what is evaluated and saved in reuse."""
        assert isinstance(self.average.upper, HighLevelPolicy)  # of the constructor
        return self.average.upper

    def module(self) -> SkillModule:
        """The averaged module, with the range of latents that tracking has used lately: what is
        evaluated and saved in imitation."""
        recent = self.replay.recent()
        tracked = ~recent.free & ~recent.is_first
        if tracked.any():
            self.average.lower.latent_range.copy_(latent_range(recent.z[tracked]))
        skill: SkillModule = self.average.lower
        return skill

    @property
    def env_steps_before(self) -> int:  # type: ignore[override]
        clone_steps = self.clone_steps if self.demonstrates else 0
        return (clone_steps + self.config.warmup_steps) * self.env.num_envs

    @property
    def env_steps_per_iteration(self) -> int:
        return self.env.num_envs * self.config.collect_steps

    # --- before the first iteration ---

    def warm_up(self, learned: Path | None = None) -> dict[str, float]:
        """Clone, fill the start of the replay, and fit the model to it. Returns figures of these.

        learned: the folder of what is learned on, whose world model is gone on with.
        """
        c = self.config
        self.fit.load_pretrained(learned)
        figures = self._clone()
        if self.demonstrates:
            self.env.restart()
        with phase("warm-up: collecting"):
            self._keep(self._collect(self.learned, c.warmup_steps, 0.0))
        self.fit.fit_scales(self.replay, self.generator)
        # a new module is as untrained as its model; both learn from the first iteration on
        if not (self.guided and self.new):
            with phase("warm-up: fitting the world model"):
                figures |= self.fit(self.replay, c.model_lr[0], self.generator, c.warmup_updates)
        self.fit.freeze()
        return figures | {"model_goes_on": float(self.fit.pretrained)}

    def _clone(self) -> dict[str, float]:
        """Fit the policy to what the module does of itself, and take the range of postures from it
        where there are no recordings. Returns the cross entropy before and after."""
        if not self.demonstrates:
            return {}
        c = self.config
        recordings = self.recordings
        policy = self.learned.upper
        demonstration = cloning.demonstration_of(
            self.learned.lower, self.env, recordings, steps=self.clone_steps,
            noise=c.action_noise[0], generator=self.generator, seed=self.seed + 1,
        )  # fmt: skip
        self.env_steps += self.clone_steps * self.env.num_envs
        if recordings is None:
            held = PostureRange(cloning.held_up(demonstration, round(SOUND_S / self.env.dt)))
            self.postures.load_state_dict(held.state_dict())
        window = self.window
        figures = {}
        if self.behavior is not None:
            with phase("warm-up: fitting the behaviour prior"):
                figures = cloning.fit_behavior(
                    self.behavior, demonstration, self.env.task, self.generator, window=window,
                    updates=5 * c.clone_updates,
                )  # fmt: skip
            self.behavior.requires_grad_(False)
        if not self.clones:
            return figures
        with phase("warm-up: cloning the policy from the module"):
            first, last = cloning.fit_policy(
                policy, demonstration, self.env.task, self.generator, window=window,
                updates=c.clone_updates,
            )  # fmt: skip
        self.average.upper.weights.load_state_dict(policy.weights.state_dict())
        return figures | {"clone_loss_before": first, "clone_loss": last}

    # --- collection ---

    def _collecting(self) -> Composition:
        """What collects: every other iteration the averaged policy."""
        return self.average if self.iteration_count % 2 else self.learned

    def _collect(self, policy: Composition, steps: int, progress: float) -> Experience:
        """Run all robots for some control steps: what `ReplayBuffer.add` takes of each, and means
        over those that track or are commanded.

        It touches only the robots and their own state, so that the learner may work at the same
        time.
        """
        c = self.config
        taken = []
        means = StepMeans(self.env)

        def record(transition: Transition) -> None:
            taken.append(transition.snapshot)
            means.add(transition.step, ~transition.snapshot.free)

        redirect = None
        if hasattr(self.env.task, "tracking"):
            redirect = Redirection(
                self.env,
                self.acting,
                prior_share=c.prior_share,
                prior_steps=c.prior_steps,
                rejoin_rate=c.rejoin_rate,
            )
        sampled = over(policy.upper, policy.lower, self.acting)
        self.carried = rollout(
            ActionNoise(sampled, self.acting, linear(c.action_noise, progress)),
            self.env,
            steps,
            record,
            carried=self.carried,
            redirect=redirect,
            snapshot=partial(step_of, self.env, physics_size=self.physics_size),
        )
        return Experience(taken, means.metrics(), steps * self.env.num_envs)

    def _keep(self, experience: Experience) -> dict[str, float]:
        """Put the steps taken into the replay. Returns the collection's figures."""
        for step in experience.data:
            self.replay.add(step)
        self.env_steps += experience.env_steps
        return experience.metrics

    def collect_experience(self, progress: float) -> Experience:
        """As `Trainer.collect_experience`: what `ReplayBuffer.add` takes of each control step."""
        return self._collect(self._collecting(), self.config.collect_steps, progress)

    def merge_data(self, data: list[list[Step]]) -> list[Step]:
        steps: list[Step] = cat_trees(data)
        return steps

    def acting_weights(self) -> dict[str, Tensor]:
        """As `Trainer.acting_weights`: those of the policy or of its average."""
        return self._collecting().upper.weights.state_dict()

    def load_acting_weights(self, weights: dict[str, Tensor]) -> None:
        self.learned.upper.weights.load_state_dict(weights)

    # --- learning ---

    def iteration(self, progress: float, experience: Experience | None = None) -> dict[str, float]:
        """As `Trainer.iteration`: collect, fit the model, improve the policy."""
        c = self.config
        rate = linear(self.config.model_lr, progress)
        if c.overlap and experience is None:
            metrics = self._overlapped(progress, rate)
        else:
            metrics = self._keep(experience or self.collect_experience(progress))
            metrics |= self.fit(self.replay, rate, self.generator)
            self.fit.freeze()
            metrics |= self._improve(progress)
        self._first_here = False
        self.iteration_count += 1
        return metrics | {"skipped_updates": float(self.skipped + self.fit.skipped)}

    def _overlapped(self, progress: float, rate: float) -> dict[str, float]:
        """An iteration whose policy learns through the model of the one before, while a second
        thread collects and fits the next: neither touches what the other changes."""
        self.fit.freeze()
        actor = copy.deepcopy(self._collecting())  # as it is now, whatever the updates make of it

        def apart() -> tuple[Experience, dict[str, float]]:
            experience = self._collect(actor, self.config.collect_steps, progress)
            return experience, self.fit(self.replay, rate, self.acting)

        with ThreadPoolExecutor(1) as beside:
            task = beside.submit(apart)
            if self.config.compile and self._first_here:
                task.result()  # torch.compile is not made for two threads at once
            improved = self._improve(progress)
        experience, fitted = task.result()
        return self._keep(experience) | fitted | improved

    def _improve(self, progress: float) -> dict[str, float]:
        """An iteration's updates of the policy. Returns figures of the last."""
        c = self.config
        self.skipped = 0
        ramp = 1.0 if self.guided else min(1.0, (self.iteration_count + 1) / RAMP)
        self.optimizer.param_groups[0]["lr"] = linear(c.policy_lr, progress) * ramp
        for update in range(c.policy_updates):
            metrics = self.improve_policy(progress, update)
        return metrics

    def improve_policy(self, progress: float, update: int = 0) -> dict[str, float]:
        """One gradient step of the policy through decoder and model. Returns figures."""
        c = self.config
        robots = self.env.robots
        fresh = round(c.fresh_starts * c.policy_batch)
        free = self.frees or not self.guided
        start = self.replay.starts(c.policy_batch, self.generator, free=free, fresh=fresh)
        if c.new_goals:  # so that changes are learned
            draw = torch.rand(len(start.z), 1, generator=self.generator, device=start.z.device)
            other = self.env.task.new_goals(start.goal, self.generator)
            start = start._replace(goal=torch.where(draw < c.new_goals, other, start.goal))
        if c.model_physics and not c.imagine_pushes:
            start = start._replace(physics=robots.without_push(start.physics))
        imagined = self.imagination(start, round(linear(c.horizon, progress)), self.generator)
        begins, full = c.style_ramp
        style = linear((0.0, 1.0), (progress - begins) / max(full - begins, 1e-9))
        beta = linear(c.beta, progress / c.beta_ramp)
        loss = (
            imagined.task
            + (style if self.new else 1.0) * imagined.style
            + c.effort * imagined.effort
            + c.smoothness * imagined.smoothness
            + beta * imagined.kl
            + c.posture * imagined.posture
            + c.wasserstein * imagined.wasserstein
            + self.env.task.current_weight * imagined.current
        )
        norm = descend(loss, self.optimizer, CLIP_GRAD)
        if math.isfinite(norm):
            done = self.iteration_count * c.policy_updates + update
            move_average(self.average.upper.weights, self.learned.upper.weights, c.ema, done)
        self.skipped += not math.isfinite(norm)
        named = {f"imagined_{name}": value.item() for name, value in imagined._asdict().items()}
        kl = named.pop("imagined_kl")
        return {"kl": kl, "beta": beta, **named, "policy_grad_norm": norm}

    # --- checkpoints ---

    def _parts(self) -> dict[str, StatePart]:
        return {
            "policy": self.learned.upper.weights,
            "average": self.average.upper.weights,
            "optimizer": self.optimizer,
            "model": self.model,
            "model_optimizer": self.fit.optimizer,
            "postures": self.postures,
            **({} if self.behavior is None else {"behavior": self.behavior}),
            "env": self.env,
            "replay": self.replay,
            "carried": self.carried,
            "generator": self.generator,
            **({"acting": self.acting} if self.config.overlap else {}),
            "counts": Counters(self, "iteration_count", "env_steps"),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """As `Resumable.load_state_dict`. A run without `overlap` may go on with it."""
        own = {"acting": self.acting.get_state()} if self.config.overlap else {}
        super().load_state_dict(own | dict(state))


def _check(env: TaskEnv[Any], skill: SkillModule, config: ModelBasedConfig) -> None:
    """Raise InputError where a module cannot learn the environment's task through a model."""
    skill.check_robot(env.robot)
    for name in ("prior_share", "rejoin_rate", "wasserstein"):
        if (value := getattr(config, name)) and not hasattr(env.task, "tracking"):
            raise InputError(
                f"algo.{name}={value:g}: task '{env.task.name}' tracks no reference; use 0"
            )
    if not env.task.imaginable:
        raise InputError(f"task '{env.task.name}' cannot be learned through a model; use algo=vmpo")
    env.task.next_goal(env.task.goal(), env.state)  # it may not serve every robot
    if not all(extra.imaginable for extra in env.task.extras):
        raise InputError(
            "not all that policies observe can be imagined: task.clock_s takes algo=clone or vmpo"
        )
