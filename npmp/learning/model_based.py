"""Model-based learning: collect with the policy, fit a world model, improve the policy by
backpropagation through the model (SuperTrack 2021, ControlVAE 2022), for any imaginable task.

The gradient of `Task.imagined_loss` passes through `npmp.learning.world_model.imagination` to the
policy. In imitation the policy is a module's encoder, trained with the decoder; in reuse it is a
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
from npmp.core.host_waits import may_have_any
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
from npmp.learning.rl.muon import Muon
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

# iterations of the learning rate's warm-up for a high-level policy: Adam's first steps are large,
# and the model is hardly fitted
RAMP = 25
CLIP_GRAD = 1.0  # norm
# a posture counts as upright if the robot does not fail for this time after it [s]
UPRIGHT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class ModelBasedConfig:
    """Settings of model-based learning; pairs are [start, end] of a schedule over the run. Settings
    of imitation only or reuse only are constants here, and fields in subclasses [D where no source
    is named]. Raises ValueError out of range."""

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
    # the model observes randomized physics and pushes
    model_physics: bool = True
    # control steps per robot and iteration
    collect_steps: int = 2
    # control steps per robot in the replay buffer: nearly on-policy
    replay_steps: int = 128
    # control steps before the first update; the model's scales are fitted to them
    warmup_steps: int = 16
    # updates of the model before the first of a pretrained policy, which a new model would degrade;
    # a quarter for a pretrained model
    warmup_updates: int = 200
    # upper limit on episodes in training [s]; null: the task's episodes
    episode_s: float | None = None
    # updates of the policy per iteration
    policy_updates: int = 4
    # imagined robots per update
    policy_batch: int = 128
    # learning rate of the policy
    policy_lr: tuple[float, float] = (5e-4, 5e-5)
    # imagined control steps
    horizon: tuple[int, int] = (16, 24)
    # decay of averaged weights, for evaluation and half of the collection; at most over a ninth of
    # the updates so far
    ema: float = 0.995
    # imagined robots have the sensors' noise and delay
    imagine_sensors: bool = True
    # a push at the start of imagination continues
    imagine_pushes: bool = False
    # share of imagined robots that start at an episode's start, with zero memory
    fresh_starts: float = 0.0
    # while collecting [rad]
    action_noise: tuple[float, float] = (0.1, 0.05)
    # weight of the KL to the prior, summed over latent dimensions [1/nat]
    beta: tuple[float, float] = (1e-3, 2e-2)
    # share of the run over which beta rises
    beta_ramp: float = 0.4
    # weight of the distance from upright postures; in imitation of robots on the prior only
    posture: float = 0.0
    # collect and fit the model on a second thread, for the next iteration's policy updates
    overlap: bool = True
    # torch.compile the inner steps: takes a minute or two at first, then faster
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
    """Policy, model, optimizers, replay buffer and the state of collection; `warm_up`, then
    `iteration` repeatedly."""

    # the replay buffer has a column per robot
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
          policy: trained in place; a `TrackingPolicy` is trained with its decoder.
          skill: copied and frozen for a high-level policy.
          recordings: an imitation task that the module tracks, for cloning and the range of
            postures; None: the module acts on latents of its prior for both.
          new: whether the policy is untrained.

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
        # one generator per thread, so that results do not depend on timing
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
        self.optimizer = Muon(policy.weights)
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
        # policy updates skipped in the last iteration, ()
        self.skipped = torch.zeros((), dtype=torch.long)
        self._first_here = True  # no iteration yet in this process

    def _plan_cloning(self, recordings: Task | None) -> None:
        """Determine whether the module demonstrates before the first iteration, and for which
        fits."""
        c = self.config
        policy = self.learned.upper
        skill = self.learned.lower
        self.recordings = recordings
        self.guided = isinstance(policy, TrackingPolicy)
        # cloning needs a module with skills, and a task with `achieved` to label goals
        has_skills = c.clone_updates > 0 and skill.contract.decoder == "lstm" and not self.guided
        self.clones = self.new and has_skills and self.env.task.achieved is not None
        self.behavior: BehaviorPrior | None = None
        if has_skills and c.behavior:
            alpha = policy.prior.alpha
            self.behavior = cloning.make_behavior(
                skill, self.env, alpha, c.behavior, seed=self.seed
            )
            policy.regularize(self.behavior)
        self.demonstrates = not self.guided and (
            self.clones or recordings is None or self.behavior is not None
        )
        if recordings is not None and self.demonstrates:
            skill.check_encoder(self.env.robot)
        # control steps over which achieved goals are averaged
        self.window = 1 if self.env.task.achieved is None else cloning.goal_steps(self.env.dt)
        least = self.window + cloning.SEQUENCE * self.clones
        self.clone_steps = c.clone_steps or max(least, 128 if recordings is not None else 320)
        if self.demonstrates and self.clone_steps < least:
            raise InputError(
                f"algo.clone_steps={self.clone_steps}: must be at least {least}, a sequence and the"
                " time of a goal"
            )

    def _imagination(self, recordings: Task | None) -> Imagination:
        c = self.config
        env = self.env
        tracking = getattr(recordings, "tracking", None)
        reference: Reference | None = None if tracking is None else tracking.reference
        if self.guided:
            reference = env.task.tracking.reference
        # without recordings, set by `warm_up`
        postures = PostureRange(env.state if reference is None else reference.above_ground)
        self.postures = postures.to(env.device)
        wasserstein = None
        if c.wasserstein and reference is not None:
            wasserstein = SlicedWasserstein(reference)
        exact = Sensing(SensorConfig(), env.home, env.dt)
        sensing = env.robots.sensing if c.imagine_sensors else exact
        self.frees = self.guided and bool(c.posture or c.wasserstein)
        return Imagination(
            self.learned, self.fit.frozen, sensing, env.task, env.ground, self.postures,
            wasserstein, frees=self.frees, compile=c.compile,
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
        """The averaged high-level policy, evaluated and saved in reuse."""
        # for the type checker
        assert isinstance(self.average.upper, HighLevelPolicy)
        return self.average.upper

    def module(self) -> SkillModule:
        """The averaged module, evaluated and saved in imitation, with the range of latents that
        tracking used recently."""
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
        """Clone the policy, collect first steps, and fit the model to them. Returns metrics.

        learned: the folder of a module or policy to continue from, with its world model.
        """
        c = self.config
        self.fit.load_pretrained(learned)
        figures = self._clone()
        if self.demonstrates:
            self.env.restart()
        with phase("warm-up: collecting"):
            self._keep(self._collect(self.learned, c.warmup_steps, 0.0))
        self.fit.fit_scales(self.replay, self.generator)
        # a new module and its model both learn from the first iteration on
        if not (self.guided and self.new):
            with phase("warm-up: fitting the world model"):
                updates = c.warmup_updates
                if self.fit.pretrained:
                    updates = math.ceil(updates / 4)
                figures |= self.fit(self.replay, c.model_lr[0], self.generator, updates)
        self.fit.freeze()
        return figures | {"model_goes_on": float(self.fit.pretrained)}

    def _clone(self) -> dict[str, float]:
        """Fit the policy to a demonstration by the module, and without recordings the range of
        postures. Returns the cross entropy before and after."""
        if not self.demonstrates:
            return {}
        c = self.config
        recordings = self.recordings
        policy = self.learned.upper
        demonstration = cloning.collect_demonstration(
            self.learned.lower,
            self.env,
            recordings,
            steps=self.clone_steps,
            noise=c.action_noise[0],
            generator=self.generator,
            seed=self.seed + 1,
        )
        self.env_steps += self.clone_steps * self.env.num_envs
        if recordings is None:
            states = cloning.upright_states(demonstration, round(UPRIGHT_S / self.env.dt))
            self.postures.load_state_dict(PostureRange(states).state_dict())
        window = self.window
        figures = {}
        if self.behavior is not None:
            with phase("warm-up: fitting the behaviour prior"):
                figures = cloning.fit_behavior(
                    self.behavior,
                    demonstration,
                    self.env.task,
                    self.generator,
                    window=window,
                    updates=min(12 * c.clone_updates, cloning.PRIOR_UPDATES),
                )
            self.behavior.requires_grad_(False)
        if not self.clones:
            return figures
        with phase("warm-up: cloning the policy from the module"):
            first, last = cloning.fit_policy(
                policy,
                demonstration,
                self.env.task,
                self.generator,
                window=window,
                updates=c.clone_updates,
            )
        self.average.upper.weights.load_state_dict(policy.weights.state_dict())
        return figures | {"clone_loss_before": first, "clone_loss": last}

    # --- collection ---

    def _behavior_policy(self) -> Composition:
        """The policy that collects, in every other iteration the averaged one."""
        return self.average if self.iteration_count % 2 else self.learned

    def _collect(self, policy: Composition, steps: int, progress: float) -> Experience:
        """Run all robots for `steps` control steps: arguments of `ReplayBuffer.add`, and means over
        robots that track or are commanded.

        It changes only the environment and the policy's state, so that the learner may run
        concurrently.
        """
        c = self.config
        recorded = []
        means = StepMeans(self.env)

        def record(transition: Transition) -> None:
            recorded.append(transition.snapshot)
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
        return Experience(recorded, means.metrics(), steps * self.env.num_envs)

    def _keep(self, experience: Experience) -> dict[str, float]:
        """Add steps to the replay buffer. Returns the collection's metrics."""
        for step in experience.data:
            self.replay.add(step)
        self.env_steps += experience.env_steps
        return experience.metrics

    def collect_experience(self, progress: float) -> Experience:
        """As `Trainer.collect_experience`: arguments of `ReplayBuffer.add`."""
        return self._collect(self._behavior_policy(), self.config.collect_steps, progress)

    def merge_data(self, data: list[list[Step]]) -> list[Step]:
        steps: list[Step] = cat_trees(data)
        return steps

    def acting_weights(self) -> dict[str, Tensor]:
        """As `Trainer.acting_weights`: of the policy or of its average."""
        return self._behavior_policy().upper.weights.state_dict()

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
        """An iteration that improves the policy through the last iteration's model, while a second
        thread collects and fits the next model. The threads share no state that either changes."""
        self.fit.freeze()
        # a copy, as the updates change the policy
        actor = copy.deepcopy(self._behavior_policy())

        def collect_and_fit() -> tuple[Experience, dict[str, float]]:
            experience = self._collect(actor, self.config.collect_steps, progress)
            return experience, self.fit(self.replay, rate, self.acting)

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(collect_and_fit)
            if self.config.compile and self._first_here:
                future.result()  # torch.compile is not thread-safe
            improved = self._improve(progress)
        experience, fitted = future.result()
        return self._keep(experience) | fitted | improved

    def _improve(self, progress: float) -> dict[str, float]:
        """Update the policy `policy_updates` times. Returns metrics of the last update."""
        c = self.config
        self.skipped = torch.zeros_like(self.skipped)
        ramp = 1.0 if self.guided else min(1.0, (self.iteration_count + 1) / RAMP)
        self.optimizer.param_groups[0]["lr"] = linear(c.policy_lr, progress) * ramp
        for update in range(c.policy_updates):
            metrics = self.improve_policy(progress, update)
        return {name: float(value) for name, value in metrics.items()}

    def improve_policy(self, progress: float, update: int = 0) -> dict[str, float | Tensor]:
        """One gradient step of the policy through decoder and model. Returns metrics."""
        c = self.config
        robots = self.env.robots
        fresh = round(c.fresh_starts * c.policy_batch)
        free = self.frees or not self.guided
        start = self.replay.starts(c.policy_batch, self.generator, free=free, fresh=fresh)
        if c.new_goals:  # to learn changes of goal
            uniform = torch.rand(len(start.z), 1, generator=self.generator, device=start.z.device)
            other = self.env.task.new_goals(start.goal, self.generator)
            start = start._replace(goal=torch.where(uniform < c.new_goals, other, start.goal))
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
        # where the update was skipped, the weights are finite: averaging them does no harm
        if may_have_any(norm.isfinite()):
            done = self.iteration_count * c.policy_updates + update
            move_average(self.average.upper.weights, self.learned.upper.weights, c.ema, done)
        self.skipped = self.skipped + ~norm.isfinite()
        named = {f"imagined_{name}": value.detach() for name, value in imagined._asdict().items()}
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
        """As `Resumable.load_state_dict`. A run without `overlap` may continue with it."""
        default = {"acting": self.acting.get_state()} if self.config.overlap else {}
        super().load_state_dict(default | dict(state))


def _check(env: TaskEnv[Any], skill: SkillModule, config: ModelBasedConfig) -> None:
    """Raise InputError for a module or task that model-based learning does not support."""
    skill.check_robot(env.robot)
    for name in ("prior_share", "rejoin_rate", "wasserstein"):
        if (value := getattr(config, name)) and not hasattr(env.task, "tracking"):
            raise InputError(
                f"algo.{name}={value:g}: must be 0 for task '{env.task.name}' without a reference"
            )
    if not env.task.imaginable:
        raise InputError(f"task '{env.task.name}' cannot be learned through a model; use algo=vmpo")
    for name in env.task.ignored_weights:
        raise InputError(
            f"task.rewards.{name}.weight changes nothing with algo=world_model, which minimizes "
            f"the loss of task '{env.task.name}'; use another algo="
        )
    # raises InputError for robots that it does not support
    env.task.next_goal(env.task.goal(), env.state)
    if not all(extra.imaginable for extra in env.task.extras):
        raise InputError(
            f"task '{env.task.name}' has sensors that cannot be imagined (task.clock_s);"
            " use algo=clone or algo=vmpo"
        )
