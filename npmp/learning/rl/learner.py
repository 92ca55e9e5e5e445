"""On-policy learners with one interface: V-MPO, MO-V-MPO and PPO."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mocap_data.errors import InputError
from npmp.core import ranges
from npmp.core.gaussian import Gaussian
from npmp.core.state import Counters, Resumable, StatePart
from npmp.core.tree import Tree, map_tree
from npmp.learning.critic import Critic
from npmp.learning.rl import popart, ppo, vmpo
from npmp.learning.rl.optimization import clip_gradients
from npmp.learning.rl.returns import lambda_returns
from npmp.learning.rl.rollout import Rollout, successor_values

# bound on the mean term of the KL between target and online policy [nats] [LSP]
EPSILON_MEAN = 0.1
GAE_LAMBDA = 0.95  # [legged_gym]
MAX_GRADIENT_NORM = 1.0  # of PPO's policy and critic each [legged_gym]


@dataclass(frozen=True, kw_only=True)
class VMPOConfig:
    """Settings of V-MPO. LSP: latent-space-priors' V-MPO on CMU imitation with 5 objectives."""

    # discount per control step [LSP]
    gamma: float = 0.95
    # bound on the KL of the weights, one for all objectives or one for each [LSP]
    epsilon_temperature: tuple[float, ...] = (0.1,)
    # bound on the covariance term of the policy's KL [nats]; 1e-5 in LSP, with 1000 x the copies
    epsilon_std: float = 1e-3
    # gradient steps between copies into the acting network; 100 in LSP
    target_period: int = 8
    # learning rate of Adam for policy and critic; 1e-4 in LSP
    learning_rate: float = 1e-3
    # learning rate of the duals, which settle within about ten iterations; 1e-4 in LSP
    dual_learning_rate: float = 3e-2
    # both multipliers of the KL at the start; 1 in V-MPO, where early steps stay below the bound
    initial_alpha: float = 0.1
    # step size of the returns' moments; 3e-4 in V-MPO
    popart_step_size: float = 3e-3

    def __post_init__(self) -> None:
        ranges.share(self, "gamma")
        ranges.at_least_one(self, "target_period")
        ranges.above_zero(self, "epsilon_temperature", "epsilon_std", "initial_alpha")
        ranges.above_zero(self, "learning_rate", "dual_learning_rate")
        if not 0.0 < self.popart_step_size < 1.0:
            raise ValueError(f"popart_step_size must lie in (0, 1), got {self.popart_step_size}")


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Settings of PPO."""

    # discount per control step, as V-MPO's; 0.99 in legged_gym
    gamma: float = 0.95
    # initial learning rate of Adam; 1e-3 in legged_gym
    learning_rate: float = 3e-4
    # KL of an update that the learning rate adapts to [nats]; 0.01 in legged_gym
    desired_kl: float = 0.02

    def __post_init__(self) -> None:
        ranges.share(self, "gamma")
        ranges.above_zero(self, "learning_rate", "desired_kl")


class Learner(Resumable, ABC):
    """Trains a policy and a critic on rollouts of the acting policy.

    The policy is stateless: (observations [T, B, ...], state [B, ...], resets [T, B]) -> mean and
    std of the actions [T, B, A], the state after the last step, and the KL of its latents to the
    prior [T, B]. The critic gives a value per objective [..., K].
    """

    optimizer: torch.optim.Optimizer
    acting: nn.Module  # the policy that collects

    def __init__(self, policy: nn.Module, critic: Critic):
        """policy, critic: trained in place, on their device."""
        self.policy = policy
        self.critic = critic
        weights = (*policy.parameters(), *critic.parameters())
        self._trainable = [weight for weight in weights if weight.requires_grad]
        self.steps = 0  # gradient steps so far

    @torch.no_grad()
    def act(
        self, observations: Tree, state: Tree, is_first: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tree]:
        """One step of the acting policy.

        Args:
          observations, state: trees [B, ...]. is_first: [B] bool, first step of an episode.

        Returns: actions [B, A], their log-density [B], the state after the step.
        """
        one_step = map_tree(lambda leaf: leaf[None], observations)
        mean, std, state, _ = self.acting(one_step, state, is_first[None])
        distribution = Gaussian(mean, std)
        actions = distribution.sample_detached(generator)
        return actions[0], distribution.log_prob(actions)[0], state

    def learn(
        self,
        rollout: Rollout,
        beta: float,
        *,
        passes: int,
        minibatches: int,
        generator: torch.Generator,
    ) -> dict[str, float]:
        """Make `passes` passes over a rollout, each in minibatches of whole sequences.

        beta: weight of the KL to the prior, per nat.

        Returns: the mean metrics of the updates.

        Raises:
          NonFiniteGradient: the weights are those before the failed update.
        """
        metrics: list[dict[str, float]] = []
        num = rollout.rewards.shape[1]
        precomputed = None
        for _ in range(passes):
            order = torch.randperm(num, generator=generator, device=rollout.rewards.device)
            for env_ids in order.tensor_split(minibatches):
                if precomputed is None or self.outdated():
                    with torch.no_grad():
                        precomputed = self.precompute(rollout)
                part = map_tree(lambda leaf, ids=env_ids: leaf[:, ids], precomputed)
                metrics.append(self.update(rollout.select(env_ids), part, beta))
        return {name: sum(m[name] for m in metrics) / len(metrics) for name in metrics[0]}

    @abstractmethod
    def precompute(self, rollout: Rollout) -> Tree:
        """Quantities that all updates on a rollout share, leaves [T, B, ...]."""

    @abstractmethod
    def outdated(self) -> bool:
        """Whether the last update invalidated `precompute`."""

    @abstractmethod
    def update(self, rollout: Rollout, precomputed: Tree, beta: float) -> dict[str, float]:
        """One gradient step; returns metrics.

        Raises:
          NonFiniteGradient: nothing has changed.
        """

    def _optimizer_step(self, loss: Tensor, max_norm: float = math.inf) -> dict[str, Tensor]:
        """One step of the optimizer; each network's gradient is clipped to `max_norm`."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clip_gradients(w for group in self.optimizer.param_groups for w in group["params"])
        policy = clip_gradients(self.policy.parameters(), max_norm)
        critic = clip_gradients(self.critic.parameters(), max_norm)
        self.optimizer.step()
        self.steps += 1
        return {"policy_grad_norm": policy, "critic_grad_norm": critic}

    def _parts(self) -> dict[str, StatePart]:
        return {
            "policy": self.policy,
            "critic": self.critic,
            "optimizer": self.optimizer,
            "steps": Counters(self, "steps"),
        }


class VMPO(Learner):
    """V-MPO; MO-V-MPO with several objectives. Losses: `npmp.learning.rl.vmpo`.

    The target network acts; it is copied from the online network every `target_period` gradient
    steps. Values and advantages are normalized by PopArt, so the temperature does not depend on the
    scale of the rewards.
    """

    def __init__(
        self, policy: nn.Module, critic: Critic, config: VMPOConfig, objectives: tuple[str, ...]
    ):
        """objectives: names of the K columns of the rewards.

        Raises:
          InputError: if `epsilon_temperature` has neither one value nor one per objective.
        """
        super().__init__(policy, critic)
        self.config = config
        self.objectives = objectives
        device = next(policy.parameters()).device
        epsilons = config.epsilon_temperature
        if len(epsilons) not in (1, len(objectives)):
            raise InputError(
                f"epsilon_temperature has {len(epsilons)} values, expected 1 or {len(objectives)} "
                f"({', '.join(objectives)})"
            )
        self.target = self.acting = copy.deepcopy(policy).requires_grad_(False)
        self._epsilon = torch.tensor(epsilons, device=device).expand(len(objectives))
        self.duals = nn.ParameterDict(
            {
                "temperature": torch.full((len(objectives),), vmpo.raw_dual(1.0)),
                "mean": torch.tensor(vmpo.raw_dual(config.initial_alpha)),
                "std": torch.tensor(vmpo.raw_dual(config.initial_alpha)),
            }
        ).to(device)
        self.popart_stats = popart.initial_stats(len(objectives), device)
        self.optimizer = torch.optim.Adam(
            [
                {"params": self._trainable, "lr": config.learning_rate},
                {"params": list(self.duals.values()), "lr": config.dual_learning_rate},
            ]
        )

    def precompute(self, rollout: Rollout) -> Tree:
        """As `Learner.precompute`: mean and std of the target network, [T, B, A] each."""
        return self.target(rollout.observations, rollout.initial_state, rollout.resets)[:2]

    def outdated(self) -> bool:
        """As `Learner.outdated`: after a copy into the target network."""
        return self.steps % self.config.target_period == 0

    def values(self, observations: Tree) -> Tensor:
        """The critic's values in reward units: tree [..., D] -> [..., K]."""
        return popart.unnormalize(self.popart_stats, self.critic(observations))

    @torch.no_grad()
    def returns(self, rollout: Rollout, values: Tensor) -> Tensor:
        """Returns to the unroll's end [T, B, K], bootstrapped with the online critic's values."""
        following = successor_values(rollout, values, self.values)
        ends = rollout.terminated, rollout.truncated
        return lambda_returns(rollout.rewards, following, *ends, self.config.gamma)

    def update(self, rollout: Rollout, precomputed: Tree, beta: float) -> dict[str, float]:
        """As `Learner.update`; metrics of objectives are named `temperature_NAME` and so on."""
        outputs = self.critic(rollout.critic_observations)
        values = popart.unnormalize(self.popart_stats, outputs.detach())
        returns = self.returns(rollout, values)
        advantages = (returns - values) / popart.std(self.popart_stats)
        mean, std, _, prior_kl = self.policy(
            rollout.observations, rollout.initial_state, rollout.resets
        )
        old = Gaussian(*precomputed)
        new = Gaussian(mean, std)
        kl_mean, kl_std = (kl.mean() for kl in old.decoupled_kl(new))
        eta, alpha_mean, alpha_std = (
            vmpo.dual(self.duals[name]) for name in ("temperature", "mean", "std")
        )
        selected = vmpo.top_half(advantages)
        weights = vmpo.policy_weights(advantages, selected, eta)
        dual_mean, bound_mean = vmpo.kl_constraint_loss(kl_mean, alpha_mean, EPSILON_MEAN)
        dual_std, bound_std = vmpo.kl_constraint_loss(kl_std, alpha_std, self.config.epsilon_std)
        losses = {
            "policy": vmpo.policy_loss(weights, new.log_prob(rollout.actions)),
            "temperature": vmpo.temperature_loss(advantages, selected, eta, self._epsilon).sum(),
            "alpha": dual_mean + dual_std,
            "bound": bound_mean + bound_std,
            "value": vmpo.value_loss(outputs, popart.normalize(self.popart_stats, returns)),
        }
        norms = self._optimizer_step(sum(losses.values()) + beta * prior_kl.mean())
        self._update_popart(returns)
        if self.outdated():
            self.target.load_state_dict(self.policy.state_dict())
        target_log_prob = old.log_prob(rollout.actions)
        metrics = {f"loss_{name}": loss for name, loss in losses.items()} | norms
        metrics |= {
            "kl": prior_kl.mean(),
            "entropy": new.entropy().mean(),
            "kl_mean": kl_mean,
            "kl_std": kl_std,
            "alpha_mean": alpha_mean,
            "alpha_std": alpha_std,
            "off_policy": (rollout.behaviour_log_prob - target_log_prob).mean(),
        }
        by_objective = {
            "temperature": eta,
            "weight_kl": vmpo.weight_kl(weights, selected),
            "value_std": popart.std(self.popart_stats),
            **value_metrics(values, returns),
        }
        for metric, entries in by_objective.items():
            metrics |= {f"{metric}_{name}": entries[k] for k, name in enumerate(self.objectives)}
        return to_floats(metrics)

    @torch.no_grad()
    def _update_popart(self, returns: Tensor) -> None:
        """Update the statistics and rescale the head, after the step of the optimizer."""
        stats = popart.update_stats(self.popart_stats, returns, self.config.popart_step_size)
        head = self.critic.value_head
        weight, bias = popart.rescale_head(head.weight, head.bias, self.popart_stats, stats)
        head.weight.copy_(weight)
        head.bias.copy_(bias)
        for old_value, new_value in zip(self.popart_stats, stats, strict=True):
            old_value.copy_(new_value)

    def _parts(self) -> dict[str, StatePart]:
        return super()._parts() | {
            "target": self.target,
            "duals": self.duals,
            "units": self.popart_stats,
        }


class PPO(Learner):
    """PPO on the sum of the objectives. Losses: `npmp.learning.rl.ppo`.

    Rewards are scaled by 1 - gamma, so that values have about the size of rewards, which the
    clipping of values assumes. Minibatches are sequences, re-run from their stored states.
    """

    def __init__(self, policy: nn.Module, critic: Critic, config: PPOConfig):
        """critic: with one value."""
        super().__init__(policy, critic)
        self.acting = policy
        self.config = config
        self.rate = config.learning_rate
        self.optimizer = torch.optim.Adam(self._trainable, lr=config.learning_rate)

    def outdated(self) -> bool:
        """As `Learner.outdated`: never."""
        return False

    def precompute(self, rollout: Rollout) -> Tree:
        """As `Learner.precompute`: mean and std of the policy, values, returns, advantages."""
        rewards = (1.0 - self.config.gamma) * rollout.rewards.sum(-1, keepdim=True)
        mean, std = self.policy(rollout.observations, rollout.initial_state, rollout.resets)[:2]
        values = self.critic(rollout.critic_observations)
        following = successor_values(rollout, values, self.critic)
        ends = rollout.terminated, rollout.truncated
        returns = lambda_returns(rewards, following, *ends, self.config.gamma, GAE_LAMBDA)
        advantages = returns - values
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        return mean, std, *(part.squeeze(-1) for part in (values, returns, advantages))

    def update(self, rollout: Rollout, precomputed: Tree, beta: float) -> dict[str, float]:
        old_mean, old_std, old_values, returns, advantages = precomputed
        mean, std, _, prior_kl = self.policy(
            rollout.observations, rollout.initial_state, rollout.resets
        )
        new = Gaussian(mean, std)
        kl_update = Gaussian(old_mean, old_std).kl(new).mean()
        self.rate = ppo.adapted_rate(self.rate, kl_update.item(), self.config.desired_kl)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        values = self.critic(rollout.critic_observations).squeeze(-1)
        log_prob = new.log_prob(rollout.actions)
        surrogate = ppo.surrogate_loss(log_prob, rollout.behaviour_log_prob, advantages)
        value = ppo.clipped_value_loss(values, old_values, returns)
        norms = self._optimizer_step(surrogate + value + beta * prior_kl.mean(), MAX_GRADIENT_NORM)
        metrics = {
            "loss_policy": surrogate,
            "loss_value": value,
            "kl": prior_kl.mean(),
            "entropy": new.entropy().mean(),
            "kl_update": kl_update,
        }
        return to_floats(metrics | norms) | {"learning_rate": self.rate}

    def _parts(self) -> dict[str, StatePart]:
        return super()._parts() | {"rate": Counters(self, "rate")}


def to_floats(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    """Scalars as floats, with one transfer."""
    values: Any = torch.stack([metric.detach().float() for metric in metrics.values()]).tolist()
    return dict(zip(metrics, values, strict=True))


def value_metrics(values: Tensor, returns: Tensor) -> dict[str, Tensor]:
    """Per objective [K]: mean return, RMS error of the values, explained variance."""
    error = (returns - values).flatten(0, -2)
    flat = returns.flatten(0, -2)
    variance = flat.var(0, correction=0)
    explained = torch.where(variance > 1e-12, 1.0 - error.var(0, correction=0) / variance, 0.0)
    return {
        "return": flat.mean(0),
        "value_error": error.square().mean(0).sqrt(),
        "explained_variance": explained,
    }
