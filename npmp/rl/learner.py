"""The one stateful piece of reinforcement learning: (MO-)V-MPO on rollouts.

Knows shapes only. The policy that acts is the TARGET network; it is replaced by the online network
every `target_period` updates. One update is one Adam step on weights and duals from one rollout.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from mocap_data.errors import InputError
from npmp import parallel
from npmp.rl import gaussian, popart, returns, vmpo
from npmp.rl.gradients import clip_gradients
from npmp.rl.popart import PopArtStats
from npmp.rl.rollout import Rollout
from npmp.tree import Tree, map_tree


class Policy(Protocol):
    """What the learner calls on a policy, beyond what every nn.Module has.

    Calling it unrolls over time: (observations [T, B, ...], state [B, ...], resets [T, B]) -> mean
    [T, B, A], std [T, B, A] (positive), state after the last step, and, where it has one, a penalty
    per step [T, B] of its own, such as the KL of its latents to their prior. It holds no hidden
    state of its own.
    """

    def initial_state(self, n: int) -> Tree:
        """The recurrent state of n fresh episodes, a tree [n, ...]."""

    def __call__(
        self, observations: Tree, state: Tree, resets: Tensor
    ) -> tuple[Tensor, Tensor, Tree] | tuple[Tensor, Tensor, Tree, Tensor]:
        """mean, std, state, or mean, std, state, penalty."""


class Critic(Protocol):
    """What the learner calls on a critic, beyond what every nn.Module has.

    No recurrence, any leading shape: observations [..., D] -> one value per objective [..., K].
    With PopArt its attribute `value_head` is the nn.Linear that gives them.
    """

    def __call__(self, observations: Tree) -> Tensor:
        """Values [..., K], normalized if PopArt is used."""


Regularizer = Callable[[Rollout, Tensor, Tensor], Tensor]
"""(rollout, mean [T, B, A], std [T, B, A]) -> a penalty per step [T, B], such as the KL to a latent prior."""


@dataclasses.dataclass(frozen=True)
class VMPOConfig:
    """Values of V-MPO. Sources: [LSP] latent-space-priors' V-MPO on CMU imitation with 5
    objectives; [V] V-MPO paper; [N] robot-NPMP, Bohez et al. 2022; [D] our choice.

    Raises:
      InputError: for values that contradict each other or lie out of range.
    """

    # names of the K objectives, in the order of the rewards
    objectives: tuple[str, ...] = ("reward",)
    epsilon_temperature: tuple[float, ...] = (0.1,)  # eps_eta, one or K of them [LSP]
    epsilon_mean: float = 0.1  # bound on the mean term of the KL, nats [LSP]
    epsilon_std: float = 1e-5  # bound on the covariance term, nats [LSP]
    gamma: float = 0.95  # per control step [LSP]
    n_step: int | None = None  # steps before the bootstrap; None: to the end of the unroll [V]
    target_period: int = 100  # updates between copies of the online network into the target [LSP]
    learning_rate: float = 1e-4  # Adam, weights of policy and critic [LSP]
    dual_learning_rate: float = 1e-4  # Adam, duals [LSP]
    initial_temperature: float = 1.0  # [V]
    initial_alpha_mean: float = 1.0  # [V]
    initial_alpha_std: float = 1.0  # [V]
    # factor of the extra penalty; 0.01 for the KL to the latent prior in reuse [N]
    regularizer_weight: float = 0.0
    # factor of the value loss, which shares no weights with the policy [D]
    value_weight: float = 1.0
    # normalized values; advantages are divided by the std of the returns too [V]
    popart: bool = True
    popart_step_size: float = 3e-4  # [V]
    max_gradient_norm: float | None = None  # by network, None: no clipping [D]

    def __post_init__(self) -> None:
        if not self.objectives or len(set(self.objectives)) != len(self.objectives):
            raise InputError(
                f"objectives must be distinct names, at least one, got {list(self.objectives)}"
            )
        if len(self.epsilon_temperature) not in (1, len(self.objectives)):
            raise InputError(
                f"epsilon_temperature needs 1 or {len(self.objectives)} values (one per objective "
                f"{list(self.objectives)}), got {len(self.epsilon_temperature)}"
            )
        bounds = (*self.epsilon_temperature, self.epsilon_mean, self.epsilon_std)
        if not all(value > 0 for value in bounds):
            raise InputError(f"the epsilons must be positive, got {list(bounds)}")
        duals = (self.initial_temperature, self.initial_alpha_mean, self.initial_alpha_std)
        if not all(value > vmpo.DUAL_FLOOR for value in duals):
            raise InputError(
                f"initial temperature and alphas must exceed {vmpo.DUAL_FLOOR}, got {list(duals)}"
            )
        if not 0.0 <= self.gamma <= 1.0:
            raise InputError(f"gamma must lie in [0, 1], got {self.gamma}")
        if self.n_step is not None and self.n_step < 1:
            raise InputError(
                f"n_step must be at least 1 (or none: to the end of the unroll), got {self.n_step}"
            )
        if self.target_period < 1:
            raise InputError(f"target_period must be at least 1, got {self.target_period}")
        if not (self.learning_rate > 0 and self.dual_learning_rate > 0):
            raise InputError(
                f"learning rates must be positive, got {self.learning_rate} and {self.dual_learning_rate}"
            )
        if not 0.0 < self.popart_step_size < 1.0:
            raise InputError(f"popart_step_size must lie in (0, 1), got {self.popart_step_size}")
        if self.max_gradient_norm is not None and not self.max_gradient_norm > 0:
            raise InputError(
                f"max_gradient_norm must be positive or none, got {self.max_gradient_norm}"
            )


class Duals(nn.Module):
    """The Lagrange multipliers: temperature [K], alpha_mean and alpha_std, scalars. All at least
    1e-8."""

    def __init__(self, config: VMPOConfig) -> None:
        super().__init__()
        num = len(config.objectives)
        self.raw_temperature = nn.Parameter(
            torch.full((num,), vmpo.raw_dual(config.initial_temperature))
        )
        self.raw_alpha_mean = nn.Parameter(torch.tensor(vmpo.raw_dual(config.initial_alpha_mean)))
        self.raw_alpha_std = nn.Parameter(torch.tensor(vmpo.raw_dual(config.initial_alpha_std)))

    @property
    def temperature(self) -> Tensor:
        return vmpo.dual(self.raw_temperature)

    @property
    def alpha_mean(self) -> Tensor:
        return vmpo.dual(self.raw_alpha_mean)

    @property
    def alpha_std(self) -> Tensor:
        return vmpo.dual(self.raw_alpha_std)


class VMPOLearner:
    """Online and target policy, critic, duals, PopArt statistics and their optimizer.

    `policy` and `critic` follow the protocols above; both are trained in place, on the device they
    are on. `regularizer_weight`, at first the configuration's, times the mean penalty is added to
    the policy's loss: that of `regularizer`, or else the policy's own.
    """

    def __init__(
        self,
        policy: nn.Module,
        critic: nn.Module,
        config: VMPOConfig,
        regularizer: Regularizer | None = None,
    ) -> None:
        device = next(policy.parameters()).device
        num = len(config.objectives)
        if config.popart:
            head = getattr(critic, "value_head", None)
            if not (
                isinstance(head, nn.Linear) and head.out_features == num and head.bias is not None
            ):
                raise ValueError(
                    f"PopArt rescales the critic's last layer: critic.value_head must be an nn.Linear with "
                    f"bias and {num} outputs, got {head}"
                )
        self.config = config
        self.policy = policy
        self.target_policy = copy.deepcopy(policy).requires_grad_(False)
        self.critic = critic
        self.regularizer = regularizer
        self.regularizer_weight = config.regularizer_weight
        self.duals = Duals(config).to(device)
        self.steps = 0  # updates done
        self._popart = PopArtStats(*(stat.to(device) for stat in popart.initial_stats(num)))
        epsilons = config.epsilon_temperature
        self._epsilon_temperature = torch.tensor(
            epsilons if len(epsilons) == num else epsilons * num, device=device
        )
        weights = [p for p in (*policy.parameters(), *critic.parameters()) if p.requires_grad]
        self._optimizer = torch.optim.Adam(
            [
                {"params": weights, "lr": config.learning_rate},
                {"params": list(self.duals.parameters()), "lr": config.dual_learning_rate},
            ]
        )

    def values(self, observations: Tree) -> Tensor:
        """The critic's values in reward units: tree [..., D] -> [..., K]."""
        return popart.unnormalize(self._popart, self.critic(observations))

    @torch.no_grad()
    def act(
        self,
        observations: Tree,
        state: Tree,
        resets: Tensor,
        *,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor, Tree]:
        """One step of the behaviour policy (the target network).

        Args:
            observations: tree [B, ...]. state: tree [B, ...]. resets: [B] bool, the step is the
                first of an episode.
        Returns:
            actions [B, A], their log-density [B], the state after the step.
        """
        mean, std, state = self.target_policy(
            map_tree(lambda leaf: leaf[None], observations), state, resets[None]
        )[:3]
        actions = gaussian.sample(mean, std, generator)
        return actions[0], gaussian.log_prob(mean, std, actions)[0], state

    def learn(
        self,
        rollout: Rollout,
        *,
        passes: int = 1,
        minibatches: int = 1,
        generator: torch.Generator | None = None,
    ) -> dict[str, float]:
        """So many passes over a rollout, each in minibatches of whole sequences, one `update` each.

        Every pass divides the B sequences anew, by `generator` on its device. The top half of the
        advantages is taken within each minibatch, not over the whole rollout. The target network is
        re-run once for all updates between two copies into it. Returns the mean figures of
        `update`. Raises ValueError for less than one pass or minibatch, or more minibatches than
        sequences; and what `update` raises.
        """
        num, device = rollout.rewards.shape[1], rollout.rewards.device
        if passes < 1 or not 1 <= minibatches <= num:
            raise ValueError(
                f"passes must be at least 1 and minibatches in 1..{num} (the rollout's sequences), "
                f"got {passes} and {minibatches}"
            )
        figures: list[dict[str, float]] = []
        target: tuple[Tensor, Tensor] | None = None
        for _ in range(passes):
            if minibatches > 1:
                order = torch.randperm(num, generator=generator, device=device)
            else:  # nothing to deal, nothing drawn
                order = torch.arange(num, device=device)
            for chosen in order.tensor_split(minibatches):
                if target is None:
                    target = self._target_outputs(rollout)
                part = rollout if minibatches == 1 else rollout.sequences(chosen)
                figures.append(self._update(part, target[0][:, chosen], target[1][:, chosen]))
                if self.steps % self.config.target_period == 0:
                    target = None
        return {name: sum(f[name] for f in figures) / len(figures) for name in figures[0]}

    def update(self, rollout: Rollout) -> dict[str, float]:
        """One gradient step on a rollout. Returns the figures that tell how it went.

        Keys: loss/{total, policy, value, temperature, alpha, kl, regularizer}, kl/{mean, std},
        alpha/{mean, std}, entropy, off_policy (mean of log behaviour - log target density: near 0
        if the target acted), gradient_norm/{policy, critic}, and per objective NAME:
        temperature/NAME, weight_kl/NAME (against epsilon_temperature), return/NAME,
        value_error/NAME (RMS), explained_variance/NAME, and value_std/NAME.

        Raises:
          ValueError: if the rollout has another number of objectives.
          NonFiniteGradient: with nothing changed.
        """
        return self._update(rollout, *self._target_outputs(rollout))

    @torch.no_grad()
    def _target_outputs(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Mean and std of the target network on a rollout, [T, B, A] each; the rollout is checked
        first."""
        num = len(self.config.objectives)
        if rollout.rewards.shape[-1] != num:
            raise ValueError(
                f"the rollout has {rollout.rewards.shape[-1]} objectives, the learner {num}: "
                f"{list(self.config.objectives)}"
            )
        mean, std = self.target_policy(rollout.observations, rollout.initial_state, rollout.resets)[
            :2
        ]
        return mean, std

    def _update(
        self, rollout: Rollout, target_mean: Tensor, target_std: Tensor
    ) -> dict[str, float]:
        """`update`, given the target network's outputs."""
        cfg, valid = self.config, rollout.valid
        if valid is None:
            valid = torch.ones_like(rollout.resets)
        outputs = self.critic(
            rollout.observations
            if rollout.critic_observations is None
            else rollout.critic_observations
        )
        values = popart.unnormalize(self._popart, outputs.detach())
        targets = self._targets(rollout, values, valid)
        # In units of the returns' spread (1 without PopArt), so that one temperature fits rewards
        # of any size.
        advantages = (targets - values) / popart.std(self._popart)

        losses, figures, by_objective = self._policy_losses(
            rollout, advantages, valid, target_mean, target_std
        )
        losses["value"] = vmpo.value_loss(outputs, popart.normalize(self._popart, targets), valid)
        losses["total"] = (
            losses["policy"]
            + cfg.value_weight * losses["value"]
            + losses["temperature"]
            + losses["alpha"]
            + losses["kl"]
            + self.regularizer_weight * losses["regularizer"]
        )
        figures["gradient_norm/policy"], figures["gradient_norm/critic"] = self._descend(
            losses["total"]
        )

        with torch.no_grad():
            if cfg.popart:
                self._update_popart(targets, valid)
            self.steps += 1
            if self.steps % cfg.target_period == 0:
                self.target_policy.load_state_dict(self.policy.state_dict())
            figures |= {"alpha/mean": self.duals.alpha_mean, "alpha/std": self.duals.alpha_std}
            by_objective["value_std"] = popart.std(self._popart)
            by_objective |= _value_figures(values, targets, valid)
        return self._named(
            {f"loss/{name}": loss for name, loss in losses.items()} | figures, by_objective
        )

    def _policy_losses(
        self,
        rollout: Rollout,
        advantages: Tensor,
        valid: Tensor,
        target_mean: Tensor,
        target_std: Tensor,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """What moves policy and duals, from advantages [T, B, K].

        Returns: the losses by name, scalars, the regularizer's not weighted yet; figures for the
        log, scalars, and by objective, [K].
        """
        cfg, temperature = self.config, self.duals.temperature
        mean, std, _, *own_penalty = self.policy(
            rollout.observations, rollout.initial_state, rollout.resets
        )
        selected = vmpo.top_half(advantages, valid)
        weights = vmpo.policy_weights(advantages, selected, temperature)
        kl_mean, kl_std = (
            vmpo.masked_mean(kl, valid)
            for kl in gaussian.decoupled_kl(target_mean, target_std, mean, std)
        )
        dual_mean, penalty_mean = vmpo.kl_constraint_loss(
            kl_mean, self.duals.alpha_mean, cfg.epsilon_mean
        )
        dual_std, penalty_std = vmpo.kl_constraint_loss(
            kl_std, self.duals.alpha_std, cfg.epsilon_std
        )
        regularizer = torch.zeros((), device=mean.device)
        if self.regularizer is not None:
            regularizer = vmpo.masked_mean(self.regularizer(rollout, mean, std), valid)
        elif own_penalty:
            regularizer = vmpo.masked_mean(own_penalty[0], valid)
        losses = {
            "policy": vmpo.policy_loss(weights, gaussian.log_prob(mean, std, rollout.actions)),
            "temperature": vmpo.temperature_loss(
                advantages, selected, temperature, self._epsilon_temperature
            ).sum(),
            "alpha": dual_mean + dual_std,
            "kl": penalty_mean + penalty_std,
            "regularizer": regularizer,
        }
        with torch.no_grad():
            acted = gaussian.log_prob(target_mean, target_std, rollout.actions)
            figures = {
                "kl/mean": kl_mean,
                "kl/std": kl_std,
                "entropy": vmpo.masked_mean(gaussian.entropy(std), valid),
                "off_policy": vmpo.masked_mean(rollout.behaviour_log_prob - acted, valid),
            }
        return (
            losses,
            figures,
            {"temperature": temperature, "weight_kl": vmpo.weight_kl(weights, selected)},
        )

    def _descend(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        """One step of Adam. Returns the norms of the policy's and the critic's gradient."""
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        parallel.average_gradients(
            weight for group in self._optimizer.param_groups for weight in group["params"]
        )
        # A gradient that is no number stops here, before it reaches the weights. The duals' is not
        # clipped.
        clip_gradients(self.duals.parameters())
        limit = self.config.max_gradient_norm
        policy, critic = (
            clip_gradients(network.parameters(), limit) for network in (self.policy, self.critic)
        )
        self._optimizer.step()
        return policy, critic

    @torch.no_grad()
    def _named(
        self, figures: dict[str, Tensor], by_objective: dict[str, Tensor]
    ) -> dict[str, float]:
        """Scalars, and [K] under the objectives' names, as numbers: one transfer for all of them."""
        for figure, by_name in by_objective.items():
            figures |= {
                f"{figure}/{name}": by_name[k] for k, name in enumerate(self.config.objectives)
            }
        numbers = torch.stack([figure.detach().float() for figure in figures.values()]).tolist()
        return dict(zip(figures, numbers, strict=True))

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that the next update depends on, as a flat dict of tensors that alias nothing."""
        state: dict[str, Tensor] = {}
        for name, module in self._modules().items():
            state |= {f"{name}.{key}": tensor for key, tensor in module.state_dict().items()}
        state |= {f"popart.{key}": tensor for key, tensor in self._popart._asdict().items()}
        for index, entries in self._optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{index}.{key}": tensor for key, tensor in entries.items()}
        state["steps"] = torch.tensor(self.steps)
        return {key: tensor.detach().clone().contiguous() for key, tensor in state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over the state of a learner of the same networks and objectives.

        Raises:
          InputError: before anything is changed, if names or shapes do not fit.
        """
        expected = {
            key: tensor
            for key, tensor in self.state_dict().items()
            if not key.startswith("optimizer.")
        }
        given = {key: tensor for key, tensor in state.items() if not key.startswith("optimizer.")}
        for problem, keys in (
            ("lacks", expected.keys() - given.keys()),
            ("has unknown", given.keys() - expected.keys()),
        ):
            if keys:
                raise InputError(
                    f"the learner's checkpoint {problem} {', '.join(sorted(keys)[:3])} ({len(keys)} in all)"
                )
        for key, tensor in expected.items():
            if given[key].shape != tensor.shape:
                raise InputError(
                    f"checkpoint entry {key} has shape {list(given[key].shape)}, "
                    f"this learner needs {list(tensor.shape)}"
                )
        moments: dict[int, dict[str, Tensor]] = {}
        sizes = [p.shape for group in self._optimizer.param_groups for p in group["params"]]
        for key, tensor in state.items():
            if key.startswith("optimizer."):
                _, index, name = key.split(".", 2)
                if (
                    not index.isdecimal()
                    or int(index) >= len(sizes)
                    or tensor.shape not in (sizes[int(index)], ())
                ):
                    raise InputError(
                        f"checkpoint entry {key} {list(tensor.shape)} fits no parameter of this learner"
                    )
                moments.setdefault(int(index), {})[name] = tensor.clone()

        for name, module in self._modules().items():
            module.load_state_dict({key: given[f"{name}.{key}"] for key in module.state_dict()})
        device = self._popart.mean.device
        self._popart = PopArtStats(
            *(given[f"popart.{key}"].to(device).clone() for key in PopArtStats._fields)
        )
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.steps = int(given["steps"])

    def _modules(self) -> dict[str, nn.Module]:
        return {
            "policy": self.policy,
            "target": self.target_policy,
            "critic": self.critic,
            "duals": self.duals,
        }

    @torch.no_grad()
    def _targets(self, rollout: Rollout, values: Tensor, valid: Tensor) -> Tensor:
        """n-step returns [T, B, K] in reward units, bootstrapped with the online critic."""
        # A step before an invalid one is cut as a time-out is, so that nothing invalid flows into a
        # return.
        truncated = rollout.truncated.clone()
        truncated[:-1] |= ~valid[1:]
        # Row t + 1 is the successor of row t, except at a cut and in the last row: only those are
        # evaluated anew.
        cut = truncated & ~rollout.terminated
        cut[-1] = True
        next_values = torch.cat([values[1:], values[-1:]])
        next_values[cut] = self.values(map_tree(lambda leaf: leaf[cut], rollout.next_observations))
        return returns.n_step_returns(
            rollout.rewards,
            next_values,
            rollout.terminated,
            truncated,
            self.config.gamma,
            self.config.n_step,
        )

    def _update_popart(self, targets: Tensor, valid: Tensor) -> None:
        """After the optimizer's step: the gradient belongs to the head as it was before the
        rescaling."""
        new = popart.update_stats(self._popart, targets, valid, self.config.popart_step_size)
        own = new.mean.clone()
        parallel.average_([new.mean])
        new.variance.add_((own - new.mean).square())  # about the mean of all learners' returns
        parallel.average_([new.variance])
        head = self.critic.value_head
        assert isinstance(head, nn.Linear)  # checked in the constructor; for the type checker
        weight, bias = popart.rescale_head(head.weight, head.bias, self._popart, new)
        head.weight.copy_(weight)
        head.bias.copy_(bias)
        self._popart = new


def _value_figures(values: Tensor, targets: Tensor, valid: Tensor) -> dict[str, Tensor]:
    """Per objective [K], over valid ones: mean return, RMS error, explained part of the returns'
    variance."""
    weight = (valid / valid.sum().clamp_min(1)).unsqueeze(-1)
    error = torch.where(valid.unsqueeze(-1), targets - values, torch.zeros_like(values))
    kept = torch.where(valid.unsqueeze(-1), targets, torch.zeros_like(targets))

    def mean(x: Tensor) -> Tensor:
        return (x * weight).sum((0, 1))

    mean_return, mean_error = mean(kept), mean(error)
    variance = mean((kept - mean_return).square())
    unexplained = mean((error - mean_error).square())
    explained = torch.where(
        variance > 0, 1.0 - unexplained / variance.clamp_min(1e-30), torch.zeros_like(variance)
    )
    return {
        "return": mean_return,
        "value_error": mean(error.square()).sqrt(),
        "explained_variance": explained,
    }
