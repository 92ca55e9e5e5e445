"""On-policy learners, V-MPO, MO-V-MPO and PPO, behind one interface. They know shapes only."""

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
    """V-MPO's settings. LSP: latent-space-priors' V-MPO on CMU imitation with 5 objectives."""

    # discount per control step [LSP]
    gamma: float = 0.95
    # bound on the KL of the weights, one for all objectives or one for each [LSP]
    epsilon_temperature: tuple[float, ...] = (0.1,)
    # bound on the covariance term of the policy's KL [nats]; 1e-5 in LSP, with 1000 x the copies
    epsilon_std: float = 1e-3
    # gradient steps between copies into the acting network; 100 in LSP
    target_period: int = 8
    # of Adam, of policy and critic; 1e-4 in LSP
    learning_rate: float = 1e-3
    # of the duals: in place within some ten iterations; 1e-4 in LSP
    dual_learning_rate: float = 3e-2
    # both multipliers of the KL at the start; 1 in V-MPO, at which early steps stay below the bound
    initial_alpha: float = 0.1
    # of the returns' moments; 3e-4 in V-MPO
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
    """PPO's settings."""

    # discount per control step, as V-MPO's; 0.99 in legged_gym
    gamma: float = 0.95
    # of Adam at the start; 1e-3 in legged_gym
    learning_rate: float = 3e-4
    # KL of an update that the learning rate adapts to [nats]; 0.01 in legged_gym
    desired_kl: float = 0.02

    def __post_init__(self) -> None:
        ranges.share(self, "gamma")
        ranges.above_zero(self, "learning_rate", "desired_kl")


class Learner(Resumable, ABC):
    """A policy and a critic that learn from rollouts of the policy that acts.

    The policy unrolls over time: (observations [T, B, ...], state [B, ...], resets [T, B]) -> mean
    and std of the actions [T, B, A], the state after the last step, and the KL of its latents to
    their prior [T, B]. It holds no hidden state. The critic gives a value per objective [..., K].
    """

    optimizer: torch.optim.Optimizer
    acting: nn.Module  # the policy that collects

    def __init__(self, policy: nn.Module, critic: Critic):
        """Both are trained in place, on the device they are on."""
        self.policy = policy
        self.critic = critic
        weights = (*policy.parameters(), *critic.parameters())
        self._learned = [weight for weight in weights if weight.requires_grad]
        self.steps = 0  # gradient steps made

    @torch.no_grad()
    def act(
        self, observations: Tree, state: Tree, is_first: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tree]:
        """One step of the acting policy.

        Args:
          observations, state: trees [B, ...]. is_first: [B] bool, the step is an episode's first.

        Returns: actions [B, A], their log-density [B], the state after the step.
        """
        one = map_tree(lambda leaf: leaf[None], observations)
        mean, std, state, _ = self.acting(one, state, is_first[None])
        distribution = Gaussian(mean, std)
        actions = distribution.draw(generator)
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
        """Make so many passes over a rollout, each in minibatches of whole sequences.

        beta: weight of the KL to the prior, per nat.

        Returns: the mean figures of the updates.

        Raises:
          NonFiniteGradient: with the weights as they were before that update.
        """
        figures: list[dict[str, float]] = []
        num = rollout.rewards.shape[1]
        precomputed = None
        for _ in range(passes):
            order = torch.randperm(num, generator=generator, device=rollout.rewards.device)
            for chosen in order.tensor_split(minibatches):
                if precomputed is None or self.outdated():
                    with torch.no_grad():
                        precomputed = self.precompute(rollout)
                part = map_tree(lambda leaf, ids=chosen: leaf[:, ids], precomputed)
                figures.append(self.update(rollout.sequences(chosen), part, beta))
        return {name: sum(f[name] for f in figures) / len(figures) for name in figures[0]}

    @abstractmethod
    def precompute(self, rollout: Rollout) -> Tree:
        """What updates from a rollout have in common, leaves [T, B, ...]."""

    @abstractmethod
    def outdated(self) -> bool:
        """Whether the last update has changed what `precompute` gives."""

    @abstractmethod
    def update(self, rollout: Rollout, precomputed: Tree, beta: float) -> dict[str, float]:
        """One gradient step; figures that say how it went.

        Raises:
          NonFiniteGradient: with nothing changed.
        """

    def _descend(self, loss: Tensor, limit: float = math.inf) -> dict[str, Tensor]:
        """One step of the optimizer, each network's gradient no longer than the limit."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clip_gradients(w for group in self.optimizer.param_groups for w in group["params"])
        policy = clip_gradients(self.policy.parameters(), limit)
        critic = clip_gradients(self.critic.parameters(), limit)
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
    """V-MPO, with several objectives MO-V-MPO: see `npmp.learning.rl.vmpo`.

    The policy that acts is the target network, replaced by the online one every `target_period`
    gradient steps. Values and advantages are in PopArt's units, so that one temperature fits
    rewards of any size.
    """

    def __init__(
        self, policy: nn.Module, critic: Critic, config: VMPOConfig, objectives: tuple[str, ...]
    ):
        """objectives: names of the K columns of the rewards.

        Raises:
          InputError: for bounds that are neither one nor as many as the objectives.
        """
        super().__init__(policy, critic)
        self.config = config
        self.objectives = objectives
        device = next(policy.parameters()).device
        epsilons = config.epsilon_temperature
        if len(epsilons) not in (1, len(objectives)):
            raise InputError(
                f"epsilon_temperature needs 1 or {len(objectives)} values (one for each of "
                f"{', '.join(objectives)}), got {len(epsilons)}"
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
        self.units = popart.initial_stats(len(objectives), device)
        self.optimizer = torch.optim.Adam(
            [
                {"params": self._learned, "lr": config.learning_rate},
                {"params": list(self.duals.values()), "lr": config.dual_learning_rate},
            ]
        )

    def precompute(self, rollout: Rollout) -> Tree:
        """As `Learner.precompute`: mean and std of the target network, [T, B, A] each."""
        return self.target(rollout.observations, rollout.initial_state, rollout.resets)[:2]

    def outdated(self) -> bool:
        """As `Learner.outdated`: a new target."""
        return self.steps % self.config.target_period == 0

    def values(self, observations: Tree) -> Tensor:
        """The critic's values in reward units: tree [..., D] -> [..., K]."""
        return popart.unnormalize(self.units, self.critic(observations))

    @torch.no_grad()
    def returns(self, rollout: Rollout, values: Tensor) -> Tensor:
        """Returns to the unroll's end [T, B, K], bootstrapped with the online critic's values."""
        following = successor_values(rollout, values, self.values)
        ends = rollout.terminated, rollout.truncated
        return lambda_returns(rollout.rewards, following, *ends, self.config.gamma)

    def update(self, rollout: Rollout, precomputed: Tree, beta: float) -> dict[str, float]:
        """As `Learner.update`; several figures are by objective, `temperature_NAME` and so on."""
        outputs = self.critic(rollout.critic_observations)
        values = popart.unnormalize(self.units, outputs.detach())
        returns = self.returns(rollout, values)
        advantages = (returns - values) / popart.std(self.units)
        mean, std, _, to_prior = self.policy(
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
            "value": vmpo.value_loss(outputs, popart.normalize(self.units, returns)),
        }
        norms = self._descend(sum(losses.values()) + beta * to_prior.mean())
        self._move_units(returns)
        if self.outdated():
            self.target.load_state_dict(self.policy.state_dict())
        acted = old.log_prob(rollout.actions)
        figures = {f"loss_{name}": loss for name, loss in losses.items()} | norms
        figures |= {"kl": to_prior.mean(), "entropy": new.entropy().mean()}
        figures |= {"kl_mean": kl_mean, "kl_std": kl_std}
        figures |= {"alpha_mean": alpha_mean, "alpha_std": alpha_std}
        figures["off_policy"] = (rollout.behaviour_log_prob - acted).mean()
        each = {"temperature": eta, "weight_kl": vmpo.weight_kl(weights, selected)}
        each |= {"value_std": popart.std(self.units)} | value_figures(values, returns)
        for figure, by_objective in each.items():
            figures |= {
                f"{figure}_{name}": by_objective[k] for k, name in enumerate(self.objectives)
            }
        return as_numbers(figures)

    @torch.no_grad()
    def _move_units(self, returns: Tensor) -> None:
        """PopArt, after the step: the gradient belongs to the head before the rescaling."""
        new = popart.update_stats(self.units, returns, self.config.popart_step_size)
        head = self.critic.value_head
        weight, bias = popart.rescale_head(head.weight, head.bias, self.units, new)
        head.weight.copy_(weight)
        head.bias.copy_(bias)
        for kept, moved in zip(self.units, new, strict=True):
            kept.copy_(moved)

    def _parts(self) -> dict[str, StatePart]:
        return super()._parts() | {"target": self.target, "duals": self.duals, "units": self.units}


class PPO(Learner):
    """PPO with one reward, the sum of the objectives, by the losses of `npmp.learning.rl.ppo`.

    Rewards are scaled by 1 - gamma, which makes values about as large as rewards: of the size that
    clipping is for. Minibatches are sequences, re-run from their stored states.
    """

    def __init__(self, policy: nn.Module, critic: Critic, config: PPOConfig):
        """critic: of one value."""
        super().__init__(policy, critic)
        self.acting = policy
        self.config = config
        self.rate = config.learning_rate
        self.optimizer = torch.optim.Adam(self._learned, lr=config.learning_rate)

    def outdated(self) -> bool:
        """As `Learner.outdated`: never, all of it is of the policy and critic that collected."""
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
        mean, std, _, to_prior = self.policy(
            rollout.observations, rollout.initial_state, rollout.resets
        )
        new = Gaussian(mean, std)
        change = Gaussian(old_mean, old_std).kl(new).mean()
        self.rate = ppo.adapted_rate(self.rate, change.item(), self.config.desired_kl)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        values = self.critic(rollout.critic_observations).squeeze(-1)
        log_prob = new.log_prob(rollout.actions)
        surrogate = ppo.surrogate_loss(log_prob, rollout.behaviour_log_prob, advantages)
        value = ppo.clipped_value_loss(values, old_values, returns)
        norms = self._descend(surrogate + value + beta * to_prior.mean(), MAX_GRADIENT_NORM)
        figures = {"loss_policy": surrogate, "loss_value": value, "kl": to_prior.mean()}
        figures |= {"entropy": new.entropy().mean(), "kl_update": change}
        return as_numbers(figures | norms) | {"learning_rate": self.rate}

    def _parts(self) -> dict[str, StatePart]:
        return super()._parts() | {"rate": Counters(self, "rate")}


def as_numbers(figures: Mapping[str, Tensor]) -> dict[str, float]:
    """Scalars as numbers, by one transfer for all of them."""
    values: Any = torch.stack([figure.detach().float() for figure in figures.values()]).tolist()
    return dict(zip(figures, values, strict=True))


def value_figures(values: Tensor, returns: Tensor) -> dict[str, Tensor]:
    """Per objective [K]: mean return, RMS error of the values, explained part of the variance."""
    error = (returns - values).flatten(0, -2)
    flat = returns.flatten(0, -2)
    variance = flat.var(0, correction=0)
    explained = torch.where(variance > 1e-12, 1.0 - error.var(0, correction=0) / variance, 0.0)
    return {
        "return": flat.mean(0),
        "value_error": error.square().mean(0).sqrt(),
        "explained_variance": explained,
    }
