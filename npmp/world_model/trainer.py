"""The fast path's loop: collect with the current policy, fit the world model, improve the policy
through it."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp import ranges
from npmp.actors import skill_memory
from npmp.memory import require_batch, require_replay
from npmp.nets import NetConfig
from npmp.nets.init import seeded
from npmp.rl.averaging import follow
from npmp.rl.gradients import descend
from npmp.robots import Robot
from npmp.rollout import Carried, rollout
from npmp.skill import SkillModule
from npmp.state import Numbers, Part, Resumable
from npmp.tasks.imitation import ImitationEnv
from npmp.tasks.rewards import TrackingWeights
from npmp.training.schedules import linear
from npmp.training.trainer import Gathered, mean_figures
from npmp.tree import cat_trees
from npmp.world_model.collection import Explorer, TrackedMeans, robot_sizes
from npmp.world_model.fitting import ModelFit, ThroughModelConfig
from npmp.world_model.imagination import Imagination
from npmp.world_model.model import WorldModel
from npmp.world_model.posture import PostureRange, SlicedWasserstein
from npmp.world_model.replay import Replay, Start

OPTIMIZERS = ("adam", "muon")


@dataclass(frozen=True)
class WorldModelConfig(ThroughModelConfig):
    """Settings of the fast path. Raises ValueError for values out of range."""

    horizon: tuple[int, int] = (16, 24)
    fresh_starts: float = 0.0  # share of the imagined robots that begin where an episode did
    # control steps before imagination over which the decoder's memory is computed anew
    burn_in: int = 0
    optimizer: str = "adam"  # of the policy; muon: Muon for hidden matrices, Adam for the rest
    discount: float = 0.97
    action_noise: tuple[float, float] = (0.1, 0.05)  # [rad], in collection only
    # weight of the KL to the prior, summed over latent dimensions [1/nat]
    beta: tuple[float, float] = (1e-3, 2e-2)
    beta_ramp: float = 0.4  # share of the run over which beta rises
    # of the collection: stretches of latents drawn from the prior, untracked, then rejoined
    prior_share: float = 0.15
    prior_steps: int = 25  # mean length of such a stretch
    prior_posture: float = (
        # weight of the distance from the recordings' postures of robots that imagine such a
        # stretch; 0: none
        0.0
    )
    # of the distance of these robots' states, as a crowd, from the recordings'; 0: none
    prior_wasserstein: float = 0.0
    # rate at which a robot is sent to track another frame from where it stands [1/s]
    rejoin_rate: float = 0.2
    overlap: bool = (
        # collect and fit the model on a second thread, for the policy's updates to use an iteration
        # later
        False
    )
    weights: TrackingWeights = field(default_factory=TrackingWeights)

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "horizon", "prior_steps")
        ranges.pairs(self, "horizon", "action_noise", "beta")
        ranges.above_zero(self, "beta_ramp")
        ranges.not_negative(
            self,
            "action_noise",
            "beta",
            "rejoin_rate",
            "prior_posture",
            "prior_wasserstein",
            "burn_in",
        )
        ranges.share(self, "discount", "fresh_starts")
        if self.fresh_starts and self.burn_in:
            raise ValueError(
                "fresh_starts needs burn_in=0: where an episode begins, nothing lies before"
            )
        if not self.burn_in < min(self.warmup_steps, self.replay_steps):
            raise ValueError(
                f"burn_in ({self.burn_in}) must be below warmup_steps and replay_steps"
            )
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(
                f"optimizer must be one of {', '.join(OPTIMIZERS)}; got {self.optimizer!r}"
            )
        if not 0.0 <= self.prior_share < 1.0:
            raise ValueError(f"prior_share must lie in [0, 1), got {self.prior_share}")


class WorldModelTrainer(Resumable):
    """Owns networks, optimizers, replay and the collection's state; one `iteration` at a time."""

    of_all_collectors = joins = True  # the replay has a column per robot

    def __init__(
        self,
        env: ImitationEnv,
        net: NetConfig,
        config: WorldModelConfig,
        *,
        skill: SkillModule | None = None,
        seed: int = 0,
    ):
        """Build everything on the environment's device.

        Args:
          env: the robots to collect with.
          skill: a module that is trained on, in place, with its own input scales; None: a new one.

        Raises:
          InputError: for a module of another robot, other networks or other references.
        """
        self.env, self.config = env, config
        self.generator = torch.Generator(env.device).manual_seed(seed + 1)
        # what is drawn on two threads comes from two generators, so that no result depends on which
        # is faster
        self.acting = (
            torch.Generator(env.device).manual_seed(seed + 2) if config.overlap else self.generator
        )
        self.reference, self.features = (
            env.task.reference,
            env.task.features(env.task.config.future_frames),
        )
        self.physics_size = env.robots.physics_size if config.model_physics else 0
        self.learned_before = skill is not None
        with seeded(seed):
            if skill is None:
                skill = SkillModule.for_reference(env.robot, net, self.reference, self.features)
            else:
                _check_fit(skill, net, self.features.horizon, env.robot)
            self.skill = skill.train().to(env.device)
            self.model = WorldModel(
                env.home,
                env.dt,
                env.feet,
                config.model_hidden,
                self.physics_size,
                env.robots.imu_cross,
            ).to(env.device)
        self.average = copy.deepcopy(self.skill).requires_grad_(False)
        self.fit = ModelFit(self.model, config)
        self.imagination = Imagination(
            self.skill, self.fit.frozen, config.sensing(env), self.features, self.reference.at, config.discount,
            config.weights,
            PostureRange(self.reference.frames) if config.prior_posture else None,
            SlicedWasserstein(self.reference) if config.prior_wasserstein else None,
            compile=config.compile,
        )  # fmt: skip
        self.policy_optimizers = policy_optimizers(self.skill, config)
        n, lstm = env.num_envs, net.lstm_width
        memory = {"z": net.latent_dim, "hidden": lstm, "cell": lstm}
        sizes = robot_sizes(env, self.physics_size) | memory
        require_replay(config.replay_steps, n, sizes)
        require_batch(config.model_batch, config.window, config.model_hidden, sizes["state"])
        require_batch(
            config.policy_batch,
            max(config.horizon),
            config.model_hidden,
            sizes["state"],
            key="algo.policy_batch",
        )
        self.replay = Replay(
            config.replay_steps, n, sizes, env.device, frames=self.reference.num_frames
        )
        first = torch.ones(n, dtype=torch.bool, device=env.device)
        self.carried = Carried(skill_memory(self.skill, n), first)
        self.iteration_count = 0
        self.env_steps = 0
        self.skipped = 0  # updates of the policy not made in the last iteration
        self._first_here = True  # no iteration made yet in this process

    # --- collection ---

    def collect(self, steps: int, noise: float) -> dict[str, float]:
        """Run all robots for some control steps with action noise [rad], into the replay.

        Returns: means over the tracked steps: `error` (eq. 2), `failures_per_s`, `reward`.
        """
        return self._keep(*self._act(self._actor(), steps, noise))

    def _actor(self) -> SkillModule:
        return self.average if self.iteration_count % 2 else self.skill

    def _keep(self, taken: list[dict[str, Tensor]], figures: dict[str, float]) -> dict[str, float]:
        """Put the steps taken into the replay; the figures come back as they are."""
        for step in taken:
            self.replay.add(**step)
        self.env_steps += len(taken) * self.env.num_envs
        return figures

    def _act(
        self, actor: SkillModule, steps: int, noise: float
    ) -> tuple[list[dict[str, Tensor]], dict[str, float]]:
        """Run all robots for some control steps. Returns what `Replay.add` takes of each, and
        `collect`'s figures.

        It touches nothing but the robots and their own state, so that the learner may work at the
        same time.
        """
        c, record = self.config, TrackedMeans(self.env)
        explorer = Explorer(
            actor,
            self.acting,
            noise=noise,
            prior_share=c.prior_share,
            prior_steps=c.prior_steps,
            rejoin_rate=c.rejoin_rate,
            physics_size=self.physics_size,
        )
        self.carried = rollout(explorer, self.env, steps, record, carried=self.carried)
        return record.taken, record.figures()

    def warm_up(self) -> None:
        """Fill the start of the replay, and take the model's scales from it unless they are known
        from a checkpoint. For a module that has learned before the model is fitted to it first: an
        untrained one would spoil what it can."""
        self.collect(self.config.warmup_steps, self.config.action_noise[0])
        if self.iteration_count == 0:
            self.fit.take_scales(self.replay, self.generator)
            if self.learned_before:
                self.fit.warm_up(self.replay, self.generator, self.config.warmup_updates)
            self.fit.freeze()

    # --- learning ---

    def iteration(self, progress: float, gathered: Gathered | None = None) -> dict[str, float]:
        """One round of collection and updates; progress in [0, 1] is the share of the run done.
        Returns metrics for the log."""
        c = self.config
        for optimizer in self.policy_optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = linear(c.policy_lr, progress)
        beta = linear(c.beta, progress / c.beta_ramp)
        noise, horizon = linear(c.action_noise, progress), round(linear(c.horizon, progress))
        self.skipped = 0
        if c.overlap and gathered is None:
            self.fit.freeze()
            # as it is now, whatever the updates make of it meanwhile
            actor = copy.deepcopy(self._actor())
            with ThreadPoolExecutor(1) as beside:
                apart = beside.submit(self._act_and_fit, actor, noise, progress)
                if c.compile and self._first_here:
                    apart.result()  # torch.compile is not made for two threads at once
                improved = self._improve(horizon, beta)
            taken, figures, fitted = apart.result()
            metrics = self._keep(taken, figures) | fitted | improved
        else:
            gathered = gathered or self.gather(progress)
            metrics = self._keep(gathered.data, gathered.figures) | self.fit(
                self.replay, progress, self.generator
            )
            self.fit.freeze()
            metrics |= self._improve(horizon, beta)
        self._first_here = False
        self.iteration_count += 1
        return metrics | {"beta": beta, "skipped_updates": float(self.skipped + self.fit.skipped)}

    def gather(self, progress: float) -> Gathered:
        """As `Distributable.gather`: what `Replay.add` takes of each control step."""
        taken, figures = self._act(
            self._actor(), self.config.collect_steps, linear(self.config.action_noise, progress)
        )
        return Gathered(taken, figures, len(taken) * self.env.num_envs)

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
        return self._actor().state_dict()

    def act_as(self, weights: dict[str, Tensor]) -> None:
        """As `Distributable.act_as`."""
        self.skill.load_state_dict(weights)

    def _act_and_fit(
        self, actor: SkillModule, noise: float, progress: float
    ) -> tuple[list[dict[str, Tensor]], dict[str, float], dict[str, float]]:
        """What the second thread does of an iteration: no random number, weight or buffer of it is
        touched by the first."""
        taken, figures = self._act(actor, self.config.collect_steps, noise)
        return taken, figures, self.fit(self.replay, progress, self.acting)

    def _improve(self, horizon: int, beta: float) -> dict[str, float]:
        """An iteration's updates of the policy. Returns metrics of the last."""
        metrics: dict[str, float] = {}
        for _ in range(self.config.policy_updates):
            metrics = self.improve_policy(horizon, beta)
        return metrics

    def improve_policy(self, horizon: int, beta: float) -> dict[str, float]:
        """One gradient step of encoder and decoder through the frozen world model."""
        c = self.config
        start = self._starts()
        # pushes come from outside: the model is told of them to keep their effect apart,
        # imagination does without
        if self.config.model_physics:
            start = start._replace(physics=self.env.robots.without_push(start.physics))
        imagined = self.imagination(start, horizon, self.generator)
        loss = (
            imagined.tracking
            + beta * imagined.kl
            + c.prior_posture * imagined.posture
            + c.prior_wasserstein * imagined.wasserstein
        )
        norm = descend(loss, self.skill, c.clip_grad, *self.policy_optimizers.values())
        if math.isfinite(norm):
            follow(self.average, self.skill, c.ema, self.iteration_count * c.policy_updates)
        else:
            self.skipped += 1
        return {
            "tracking_loss": imagined.tracking.item(),
            "kl": imagined.kl.item(),
            "posture_loss": imagined.posture.item(),
            "wasserstein": imagined.wasserstein.item(),
            "sigma": imagined.sigma.item(),
            "policy_grad_norm": norm,
        }

    def _starts(self) -> Start:
        """Moments to imagine from, with the memory of the decoder as it is now where that is
        wanted."""
        c = self.config
        tracking = not (
            c.prior_posture or c.prior_wasserstein
        )  # what acted from the prior is then nothing to learn from
        if not c.burn_in:
            fresh = round(c.fresh_starts * c.policy_batch)
            return self.replay.starts(
                c.policy_batch, self.generator, tracking=tracking, fresh=fresh
            )
        stretch, first = self.replay.stretches(
            c.policy_batch, c.burn_in, self.generator, tracking=tracking
        )
        return self.imagination.burn_in(stretch, first, self.generator)

    def module(self) -> SkillModule:
        """The averaged skill module, with the range of the latents that imitation has used lately."""
        z = self.replay.floats["z"][: self.replay.filled]
        tracked = (self.replay.last_frame > self.replay.frame)[
            : self.replay.filled
        ] & ~self.replay.first[: self.replay.filled]
        if tracked.any():
            self.average.latent_range.copy_(
                torch.quantile(z[tracked][:100_000].abs(), 0.99, dim=0).clamp(min=0.1)
            )
        return self.average

    # --- checkpoints ---

    def _parts(self) -> dict[str, Part]:
        return {
            "skill": self.skill,
            "average": self.average,
            "model": self.model,
            "model_optimizer": self.fit.optimizer,
            **self.policy_optimizers,
            "env": self.env,
            "replay": self.replay,
            "generator": self.generator,
            **({"acting": self.acting} if self.config.overlap else {}),
            "carried": self.carried,
            "counts": Numbers(self, "iteration_count", "env_steps"),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """As `Resumable.load_state_dict`. A run that was not overlapped so far may go on so."""
        kept = (
            {}
            if "acting" in state or not self.config.overlap
            else {"acting": self.acting.get_state()}
        )
        super().load_state_dict({**state, **kept})


def policy_optimizers(
    skill: SkillModule, config: WorldModelConfig
) -> dict[str, torch.optim.Optimizer]:
    """The policy's optimizers by their names in checkpoints; together they have every parameter
    once."""
    rate = config.policy_lr[0]
    if config.optimizer == "adam":
        return {"policy_optimizer": torch.optim.Adam(skill.parameters(), lr=rate)}
    # Muon is for matrices between hidden layers: first layers and heads stay with Adam
    outer = {
        "encoder.body.0.weight",
        "encoder.head.weight",
        "decoder.norm.0.weight",
        "decoder.head.weight",
    }
    hidden = [p for name, p in skill.named_parameters() if p.dim() == 2 and name not in outer]
    rest = [p for name, p in skill.named_parameters() if p.dim() != 2 or name in outer]
    return {
        "policy_optimizer": torch.optim.Adam(rest, lr=rate),
        # steps of the size of Adam's, so that one learning rate serves both
        "policy_muon": torch.optim.Muon(
            hidden, lr=rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
        ),
    }


def _check_fit(skill: SkillModule, net: NetConfig, frames_ahead: int, robot: Robot) -> None:
    """Raises InputError for a module that a run with these networks and references cannot go on
    from."""
    skill.check_robot(robot)
    skill.check_encoder(robot)
    for what, own, wanted in (
        ("net", skill.net, net),
        ("context_horizon", skill.contract.context_horizon, frames_ahead),
    ):
        if own != wanted:
            raise InputError(
                f"the module's {what} is {own}, this run's {wanted}; both must be the same"
            )
