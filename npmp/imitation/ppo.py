"""PPO for imitation, as a yardstick: rsl_rl's learner on the environment, networks and module file
of the other algorithms.

rsl_rl's (the extra `ppo`) are storage, generalized advantages, clipping, mini-batches and the
learning rate by KL. Ours are the two networks behind its interface of models (`PPOActor`,
`PPOCritic`), the collection, and two deviations from its runner:

- rsl_rl's `time_outs` adds gamma V(s_t), the value of the state BEFORE the last step, to the reward
  of a truncated episode. Here the value of the true successor is added, which the environment shows
  before it resets.
- The KL of the encoder to the prior is a loss of its own, through the slot of rsl_rl's symmetry
  loss (`PriorPenalty`).

Its mini-batches are groups of robots over the whole unroll, the same groups in every epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from mocap_data.errors import InputError
from npmp import parallel, ranges
from npmp.checkpoint import not_finite, prefixed, under
from npmp.imitation.networks import OnPolicyConfig, new_networks
from npmp.imitation.policy import (
    CriticInput,
    ImitationCritic,
    ImitationPolicy,
    ImitationPolicyInput,
    ImitationPolicyState,
    critic_input,
)
from npmp.nets import NetConfig
from npmp.rl import NonFiniteGradient, gaussian
from npmp.rollout import Carried, Decision, Moment, rollout
from npmp.skill import SkillModule
from npmp.state import Numbers, Part, Resumable
from npmp.tasks.imitation import ImitationEnv
from npmp.training.trainer import Gathered

if TYPE_CHECKING:
    from rsl_rl.algorithms import PPO
    from tensordict import TensorDict


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """Settings of PPO in imitation; sources with the values in conf/algo/ppo.yaml. Raises
    ValueError out of range."""

    unroll: int = 24  # control steps per robot and iteration
    epochs: int = 3  # passes over an unroll
    mini_batches: int = 2  # groups of robots per pass, one gradient step each
    gamma: float = 0.95  # per control step
    gae_lambda: float = 0.95
    clip: float = 0.2  # of the ratio of densities, and of the values' change
    clip_values: bool = True
    value_weight: float = 1.0
    entropy_weight: float = 0.0
    learning_rate: float = 3e-4  # where it starts, with adapt_rate
    # by a factor 1.5 when the KL of an update leaves [1/2, 2] of desired_kl
    adapt_rate: bool = True
    desired_kl: float = 0.02  # nats
    max_gradient_norm: float = 1.0  # of actor and critic each
    reward_scale: float = 0.05  # of the rewards that the learner sees
    beta: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "unroll", "epochs", "mini_batches")
        ranges.above_zero(
            self, "clip", "learning_rate", "desired_kl", "max_gradient_norm", "reward_scale"
        )
        ranges.not_negative(self, "value_weight", "entropy_weight")
        ranges.share(self, "gamma", "gae_lambda")


class PPOActor(nn.Module):
    """`ImitationPolicy` as one of rsl_rl's recurrent models: it holds the robots' memories, and the
    last call's distribution.

    The latent's noise is part of the observation, so that the learner's re-run draws the same
    latents: the density of an action is one given the noise.
    """

    is_recurrent = True

    def __init__(self, policy: ImitationPolicy, robots: int, generator: torch.Generator):
        """generator: draws the actions."""
        super().__init__()
        self.policy = policy
        self.state = policy.initial_state(robots)
        self._generator = generator
        # (..., nu), (..., nu), (...): of the last call
        self.mean = self.std = self.divergence = torch.empty(0)

    def forward(
        self,
        obs: TensorDict,
        masks: Tensor | None = None,
        hidden_state: tuple[Tensor, ...] | None = None,
        stochastic_output: bool = False,
    ) -> Tensor:
        """The next action of every robot, or, with masks, a batch of stored stretches again.

        Args:
          obs: [B] now; [T, M], padded stretches between ends of episodes, in the re-run.
          masks: [T, M] bool, what is no padding. hidden_state: [1, M, ...] before each stretch.
          stochastic_output: draw the action around the mean; only where no masks are given.

        Returns: actions [B, nu], or their means [T, B, nu] in the re-run.
        """
        if masks is None:
            # `reset` has emptied the memories
            fresh = torch.zeros(1, len(self.state.z), dtype=torch.bool)
            mean, std, self.state, divergence = self.policy(
                _policy_input(obs.unsqueeze(0)), self.state, fresh
            )
            self.mean, self.std, self.divergence = mean[0], std[0], divergence[0]
            return (
                gaussian.sample(self.mean, self.std, self._generator)
                if stochastic_output
                else self.mean
            )
        # rsl_rl stores one with every recurrent model; for the type checker
        assert hidden_state is not None
        given, state, resets = _rejoined(obs, masks, hidden_state)
        self.mean, self.std, _, self.divergence = self.policy(_policy_input(given), state, resets)
        return self.mean

    def reset(self, dones: Tensor) -> None:
        """Empty the memories of the robots whose episodes are done [B] bool."""
        keep = (~dones).unsqueeze(-1).to(self.state.z.dtype)
        self.state = ImitationPolicyState(*(part * keep for part in self.state))

    def get_hidden_state(self) -> tuple[Tensor, ...]:
        """The memories as rsl_rl stores them: [1, B, ...] each."""
        return tuple(part.unsqueeze(0) for part in self.state)

    @property
    def output_distribution_params(self) -> tuple[Tensor, Tensor]:
        """Mean and std of the last call."""
        return self.mean, self.std

    @property
    def output_entropy(self) -> Tensor:
        """Nats, summed over joints."""
        return gaussian.entropy(self.std)

    def get_output_log_prob(self, outputs: Tensor) -> Tensor:
        """Log-density of actions under the last call's distribution."""
        return gaussian.log_prob(self.mean, self.std, outputs)

    def get_kl_divergence(
        self, old_params: tuple[Tensor, ...], new_params: tuple[Tensor, ...]
    ) -> Tensor:
        """KL(old || new) of (mean, std), nats, summed over joints."""
        (old_mean, old_std), (mean, std) = old_params, new_params
        # not validated, so that what is no number reaches the loss, where it is counted and passed
        # over
        old, new = (
            Normal(old_mean, old_std, validate_args=False),
            Normal(mean, std, validate_args=False),
        )
        return kl_divergence(old, new).sum(-1)

    def update_normalization(self, obs: TensorDict) -> None:
        """Nothing: the scales are fixed."""


class PPOCritic(nn.Module):
    """`ImitationCritic` with one value as one of rsl_rl's models without memory."""

    is_recurrent = False

    def __init__(self, critic: ImitationCritic):
        super().__init__()
        self.critic = critic

    def forward(
        self, obs: TensorDict, masks: Tensor | None = None, hidden_state: None = None
    ) -> Tensor:
        """Values [B, 1], or of padded stretches [T, M] with masks [T, B, 1]."""
        from rsl_rl.utils import unpad_trajectories

        given = obs if masks is None else unpad_trajectories(obs, masks)
        return self.critic(
            CriticInput(given["context"], given["z"], given["clip"], given["physics"])
        )

    def reset(self, dones: Tensor | None = None, hidden_state: None = None) -> None:
        """Nothing: there is no memory."""

    def get_hidden_state(self) -> None:
        """None: there is no memory."""

    def update_normalization(self, obs: TensorDict) -> None:
        """Nothing: the scales are fixed."""


class PriorPenalty:
    """The KL of the encoder to the prior as a loss in rsl_rl's update, which has one slot for a
    further loss: its symmetry's."""

    use_mirror_loss = True

    def __init__(self) -> None:
        self.mirror_loss_coeff = 0.0  # beta

    def augment_batch(self, batch: Any, original_batch_size: int) -> None:
        """Nothing is added to the batch."""

    def compute_loss(self, actor: PPOActor, batch: Any, original_batch_size: int) -> Tensor:
        """The mean KL of the actor's last call, nats per step."""
        return actor.divergence.mean()


def _policy_input(obs: TensorDict) -> ImitationPolicyInput:
    return ImitationPolicyInput(obs["context"], obs["proprioception"], obs["noise"])


def _rejoined(
    obs: TensorDict, masks: Tensor, hidden_state: tuple[Tensor, ...]
) -> tuple[TensorDict, ImitationPolicyState, Tensor]:
    """rsl_rl's padded stretches back into sequences over the whole unroll, which cost no padding.

    Returns: observations [T, B], the state before the first step [B, ...], and resets [T, B]: where
    a stretch starts later, from the empty state.
    """
    from rsl_rl.utils import unpad_trajectories

    starts = torch.zeros_like(masks)
    starts[0] = True
    resets = unpad_trajectories(starts, masks).clone()
    resets[0] = False  # the stored state holds, which is empty where an episode began
    lengths = masks.sum(0)
    # stretches follow each other robot by robot
    first = (lengths.cumsum(0) - lengths) % len(masks) == 0
    return (
        unpad_trajectories(obs, masks),
        ImitationPolicyState(*(part[0, first] for part in hidden_state)),
        resets,
    )


def _refuse_non_finite(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """What the optimizer does before a step: rsl_rl would apply whatever the gradient is.

    Raises:
      NonFiniteGradient: if a gradient is not finite.
    """
    weights = [
        weight
        for group in optimizer.param_groups
        for weight in group["params"]
        if weight.grad is not None
    ]
    if not_finite({str(i): weight.grad for i, weight in enumerate(weights)}):
        raise NonFiniteGradient("a gradient is not finite")


def _learner(
    actor: PPOActor,
    critic: PPOCritic,
    penalty: PriorPenalty,
    obs: TensorDict,
    actions: int,
    config: PPOConfig,
) -> PPO:
    """rsl_rl's PPO with its storage, for observations [B] like these, and the penalty among its
    losses."""
    from rsl_rl.algorithms import PPO
    from rsl_rl.storage import RolloutStorage

    class PPOWithPrior(PPO):
        """Its further loss is the penalty: the constructor's own, symmetry, is for networks without
        memory."""

        def __init__(self, *networks: Any, **settings: Any):
            super().__init__(*networks, **settings)
            self.symmetry = penalty
            self.optimizer.register_step_pre_hook(_refuse_non_finite)

    return PPOWithPrior(
        actor,
        critic,
        RolloutStorage("rl", len(obs), config.unroll, obs, [actions]),
        num_learning_epochs=config.epochs,
        num_mini_batches=config.mini_batches,
        clip_param=config.clip,
        gamma=config.gamma,
        lam=config.gae_lambda,
        value_loss_coef=config.value_weight,
        entropy_coef=config.entropy_weight,
        learning_rate=config.learning_rate,
        max_grad_norm=config.max_gradient_norm,
        use_clipped_value_loss=config.clip_values,
        schedule="adaptive" if config.adapt_rate else "fixed",
        desired_kl=config.desired_kl,
    )


# what of rsl_rl's storage an update is made from
STORED = (
    "observations", "actions", "rewards", "dones", "values", "actions_log_prob", "distribution_params", "returns",
    "advantages", "saved_hidden_state_a", "saved_hidden_state_c",
)  # fmt: skip


class PPOTrainer(Resumable):
    """Owns environment, learner and the collection's state; one `iteration` at a time.

    An iteration is one unroll of all robots and the epochs of updates from it. Episodes go on
    across unrolls. The reward is the sum of the environment's objectives.
    """

    of_all_collectors = joins = False  # rsl_rl's storage is of one size

    def __init__(self, env: ImitationEnv, net: NetConfig, config: PPOConfig, *, seed: int = 0):
        """Build everything on the CPU.

        Args:
          env: the robots to collect with.

        Raises:
          InputError: where rsl_rl is not installed, or the robots cannot be divided into the
            mini-batches, two at least to each.
        """
        try:
            import rsl_rl.algorithms  # noqa: F401
        except ImportError as error:
            raise InputError(
                f"algo=ppo needs the package rsl-rl-lib ({error}); install it with: pip install 'npmp[ppo]'"
            ) from error
        if env.num_envs % config.mini_batches:
            raise InputError(
                f"{env.num_envs} robots (num_envs) cannot be divided into {config.mini_batches} mini_batches"
            )
        if env.num_envs < 2 * config.mini_batches:  # of one robot, rsl_rl drops the axis of robots
            raise InputError(
                f"{env.num_envs} robots (num_envs) are too few for {config.mini_batches} mini_batches: "
                "each needs at least 2"
            )
        self.env, self.config = env, config
        policy, critic = new_networks(env, net, config, seed=seed, objectives=1)
        self.generator = torch.Generator().manual_seed(seed + 1)
        self.policy = policy
        self.actor = PPOActor(policy, env.num_envs, self.generator)
        self.critic = PPOCritic(critic)
        self.penalty = PriorPenalty()
        first = torch.ones(env.num_envs, dtype=torch.bool)
        self.carried = Carried(policy.initial_state(env.num_envs), first)
        given = self._observation(self.carried.memory.z)
        self.learner = _learner(
            self.actor, self.critic, self.penalty, given, env.num_actions, config
        )
        self.range = torch.full((net.latent_dim,), 0.1)  # of the latents lately seen
        self._own_observations: dict[str, Tensor] = {}  # of the last collection, as it was stored
        self.iteration_count = 0
        self.env_steps = 0

    def module(self) -> SkillModule:
        """A copy of the module, with the range of the latents that imitation has used lately."""
        return self.policy.module(self.range)

    # --- collection ---

    def _known(self, z: Tensor) -> dict[str, Tensor]:
        """What the critic sees of the present state; z (n, d) the latent of the step before."""
        return critic_input(self.env, z)._asdict()

    def _tensordict(self, content: dict[str, Tensor]) -> TensorDict:
        from tensordict import TensorDict

        return TensorDict(content, batch_size=[self.env.num_envs])

    def _observation(self, z: Tensor) -> TensorDict:
        """What the critic sees, and what the policy is given besides: new noise for the latent, and
        what the robots sense now."""
        noise = torch.randn(z.shape, generator=self.generator)
        return self._tensordict(
            {**self._known(z), "proprioception": self.env.observe(), "noise": noise}
        )

    def initial_memory(self, n: int) -> ImitationPolicyState:
        """As `npmp.rollout.Actor.initial_memory`."""
        return self.policy.initial_state(n)

    def act(self, env: ImitationEnv, memory: ImitationPolicyState, first: Tensor) -> Decision:
        """As `npmp.rollout.Actor.act`: rsl_rl's learner draws the actions, and stores the memories
        that it finds."""
        self.actor.state = memory
        observation = self._observation(memory.z)
        action = self.learner.act(observation)
        return Decision(action, self.actor.state, observation)

    def collect(self) -> dict[str, float]:
        """One unroll of all robots, into the learner's storage, with returns and advantages.

        Returns: means over its steps: `error` (eq. 2), `failures_per_s`, `reward`.
        """
        env, config = self.env, self.config
        latents: list[Tensor] = []
        figures: list[Tensor] = []

        def record(moment: Moment) -> None:
            step, z = moment.step, moment.decision.memory.z
            gained = step.rewards.nan_to_num().sum(-1)
            successor = self.critic(self._tensordict(self._known(z))).squeeze(-1)
            paid = config.reward_scale * gained + config.gamma * torch.where(
                step.truncated, successor, 0.0
            )
            self.learner.process_env_step(
                moment.decision.note, paid, step.terminated | step.truncated, {}
            )
            latents.append(z)
            error = step.error.nan_to_num(1.0).clamp(max=1.0)
            figures.append(
                torch.stack((error.mean(), step.terminated.float().mean() / env.dt, gained.mean()))
            )

        self.carried = rollout(self, env, config.unroll, record, carried=self.carried)
        self.learner.compute_returns(self._tensordict(self._known(self.carried.memory.z)))
        self.range = torch.quantile(torch.cat(latents).abs(), 0.99, dim=0).clamp(min=0.1)
        means = torch.stack(figures).mean(0).tolist()
        return dict(zip(("error", "failures_per_s", "reward"), means, strict=True))

    def iteration(self, progress: float, gathered: Gathered | None = None) -> dict[str, float]:
        """One unroll and its updates; progress in [0, 1] is the share of the run done. Returns
        metrics for the log.

        Raises:
          NonFiniteGradient: with the weights as they were before that mini-batch.
        """
        gathered = gathered or self.gather(progress)
        self.env_steps += gathered.env_steps
        self.penalty.mirror_loss_coeff = beta = self.config.beta_at(progress)
        stored, self.range = gathered.data
        for name, value in stored.items():
            if name != "observations":
                setattr(self.learner.storage, name, value)
            elif value is not self._own_observations:  # of another process
                self.learner.storage.observations.update_(value)
        ppo = self.learner
        ppo.is_multi_gpu, ppo.gpu_world_size, ppo.gpu_global_rank = (
            parallel.count() > 1,
            parallel.count(),
            parallel.rank(),
        )
        learned = ppo.update()
        self.iteration_count += 1
        return gathered.figures | {
            "loss_surrogate": learned["surrogate"],
            "loss_value": learned["value"],
            "entropy": learned["entropy"],
            "kl": learned["symmetry"],  # to the latent prior [nats per step]
            "beta": beta,
            "learning_rate": self.learner.learning_rate,
            "action_std": self.policy.log_std.exp().mean().item(),
        }

    def gather(self, progress: float) -> Gathered:
        """As `Distributable.gather`: what rsl_rl has stored, and the range of the latents."""
        del progress
        figures, storage = self.collect(), self.learner.storage
        storage.clear()  # its cursor: the next unroll takes the same place
        stored = {name: getattr(storage, name) for name in STORED}
        stored["observations"] = self._own_observations = dict(storage.observations.items())
        return Gathered((stored, self.range), figures, self.config.unroll * self.env.num_envs)

    def merge(self, parts: Sequence[Gathered]) -> Gathered:
        """As `Distributable.merge`: the part of one collector."""
        (part,) = parts
        return part

    def acting_weights(self) -> dict[str, Tensor]:
        """As `Distributable.acting_weights`: the critic's, too, as advantages are part of a
        collection."""
        return prefixed("policy", self.policy.state_dict()) | prefixed(
            "critic", self.critic.critic.state_dict()
        )

    def act_as(self, weights: dict[str, Tensor]) -> None:
        """As `Distributable.act_as`."""
        self.policy.load_state_dict(under("policy", weights))
        self.critic.critic.load_state_dict(under("critic", weights))

    # --- checkpoints ---

    def _parts(self) -> dict[str, Part]:
        return {
            "policy": self.policy,
            "critic": self.critic.critic,
            "optimizer": self.learner.optimizer,
            "env": self.env,
            "carried": self.carried,
            "learning_rate": Numbers(self.learner, "learning_rate"),
            "generator": self.generator,
            "range": self.range,
            "counts": Numbers(self, "iteration_count", "env_steps"),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """As `Resumable.load_state_dict`. rsl_rl's storage is no part: nothing of it is used after
        an iteration."""
        super().load_state_dict(state)
        for group in self.learner.optimizer.param_groups:
            group["lr"] = self.learner.learning_rate
