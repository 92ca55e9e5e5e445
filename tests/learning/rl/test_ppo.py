"""PPO's pieces by hand, and a whole update beside rsl_rl's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from npmp.learning.critic import Critic
from npmp.learning.rl import PPO, PPOConfig, Rollout, ppo
from npmp.learning.rl.learner import GAE_LAMBDA


def test_the_surrogate_by_hand() -> None:
    """Ratios 1.5, 0.5, 1.1 with advantages 1, -1, 2: clipped to 1.2, 0.8, and not at all."""
    ratios, advantages = torch.tensor([1.5, 0.5, 1.1]), torch.tensor([1.0, -1.0, 2.0])
    loss = ppo.surrogate_loss(ratios.log(), torch.zeros(3), advantages)
    assert loss.item() == pytest.approx((-1.2 + 0.8 - 2.2) / 3)


def test_the_value_loss_by_hand() -> None:
    """Values 0.5 and 0.1 from old ones of 0, returns 1: the first is clipped to 0.2, which misses
    by 0.8; the second misses by 0.9."""
    loss = ppo.clipped_value_loss(torch.tensor([0.5, 0.1]), torch.zeros(2), torch.ones(2))
    assert loss.item() == pytest.approx((0.64 + 0.81) / 2)


def test_the_rate_adapts() -> None:
    assert ppo.adapted_rate(3e-3, 0.05, 0.02) == pytest.approx(2e-3)
    assert ppo.adapted_rate(2e-3, 0.005, 0.02) == pytest.approx(3e-3)
    assert ppo.adapted_rate(2e-3, 0.02, 0.02) == ppo.adapted_rate(2e-3, 0.0, 0.02) == 2e-3
    assert ppo.adapted_rate(1e-2, 0.001, 0.02) == 1e-2 and ppo.adapted_rate(1e-5, 9.0, 0.02) == 1e-5


class Policy(nn.Module):
    """Linear, without memory, its KL to a prior zero."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Linear(3, 2)
        self.log_std = nn.Parameter(torch.full((2,), -1.0))

    def initial_state(self, n: int) -> Tensor:
        return torch.zeros(n, 1)

    def forward(
        self, observations: Tensor, state: Tensor, resets: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mean = self.mean(observations)
        return mean, self.log_std.exp().expand_as(mean), state, torch.zeros_like(mean[..., 0])


class TheirActor(nn.Module):
    """The same behind rsl_rl's interface of models."""

    is_recurrent = False

    def __init__(self, policy: Policy):
        super().__init__()
        self.policy = policy

    def forward(self, obs: Any, **_: Any) -> Tensor:
        self.now = Normal(self.policy.mean(obs["policy"]), self.policy.log_std.exp())
        return self.now.mean

    @property
    def output_distribution_params(self) -> tuple[Tensor, Tensor]:
        return self.now.mean, self.now.stddev.expand_as(self.now.mean)

    @property
    def output_entropy(self) -> Tensor:
        return self.now.entropy().sum(-1)

    def get_output_log_prob(self, actions: Tensor) -> Tensor:
        return self.now.log_prob(actions).sum(-1)

    def get_kl_divergence(self, old: tuple[Tensor, ...], new: tuple[Tensor, ...]) -> Tensor:
        return kl_divergence(Normal(*old), Normal(*new)).sum(-1)

    def update_normalization(self, obs: Any) -> None: ...


class TheirCritic(nn.Module):
    is_recurrent = False

    def __init__(self, critic: Critic):
        super().__init__()
        self.critic = critic

    def forward(self, obs: Any, **_: Any) -> Tensor:
        return self.critic(obs["policy"])

    def update_normalization(self, obs: Any) -> None: ...


def rollout_of(policy: Policy, steps: int, num: int) -> Rollout:
    """Random numbers, an end of each kind among them."""
    g = torch.Generator().manual_seed(1)
    observations = torch.randn(steps, num, 3, generator=g)
    resets = torch.zeros(steps, num, dtype=torch.bool)
    terminated, truncated = resets.clone(), resets.clone()
    terminated[steps // 3, 0] = truncated[steps // 2, 1] = True
    resets[1:] = (terminated | truncated)[:-1]
    mean, std, state, _ = policy(observations, policy.initial_state(num), resets)
    actions = (mean + std * torch.randn(mean.shape, generator=g)).detach()
    return Rollout(
        observations=observations,
        actions=actions,
        behaviour_log_prob=Normal(mean, std).log_prob(actions).sum(-1).detach(),
        resets=resets,
        rewards=torch.randn(steps, num, 1, generator=g),
        terminated=terminated,
        truncated=truncated,
        critic_observations=observations,
        next_observations=torch.randn(steps, num, 3, generator=g),
        initial_state=state,
    )


def networks() -> tuple[Policy, Critic]:
    torch.manual_seed(0)
    policy, critic = Policy(), Critic(3, (16,), 1)
    nn.init.normal_(critic.value_head.weight)
    return policy, critic


def test_updates_are_those_of_rsl_rl() -> None:
    """Two passes over a rollout, one batch each, its storage filled with what ours makes of
    rewards, ends and successors: the same learning rate, losses and weights."""
    pytest.importorskip("rsl_rl", reason="rsl-rl-lib is not installed")
    from rsl_rl.algorithms import PPO as Theirs
    from rsl_rl.storage import RolloutStorage
    from tensordict import TensorDict

    steps, num, config = 6, 4, PPOConfig(gamma=0.9)
    policy, critic = networks()
    rollout = rollout_of(policy, steps, num)
    ours = PPO(policy, critic, config)
    other, their_critic = networks()
    actor, scorer = TheirActor(other), TheirCritic(their_critic)
    shape = TensorDict({"policy": rollout.observations[0]}, batch_size=[num])
    storage = RolloutStorage("rl", num, steps, shape, [2])
    theirs = Theirs(
        actor, scorer, storage, num_learning_epochs=2, num_mini_batches=1, clip_param=ppo.CLIP,
        gamma=0.9, lam=GAE_LAMBDA, entropy_coef=0.0, learning_rate=config.learning_rate,
        desired_kl=config.desired_kl,
    )  # fmt: skip
    with torch.no_grad():
        mean, std, values, returns, advantages = ours.precompute(rollout)
    stored = {"actions": rollout.actions, "values": values.unsqueeze(-1)}
    stored |= {"returns": returns.unsqueeze(-1), "advantages": advantages.unsqueeze(-1)}
    stored["actions_log_prob"] = rollout.behaviour_log_prob.unsqueeze(-1)
    storage.observations = TensorDict({"policy": rollout.observations}, batch_size=[steps, num])
    for name, value in stored.items():
        setattr(storage, name, value)
    storage.distribution_params = (mean, std)
    storage.step = steps
    expected = theirs.update()
    generator = torch.Generator().manual_seed(0)
    found = ours.learn(rollout, 0.0, passes=2, minibatches=1, generator=generator)
    assert found["loss_policy"] == pytest.approx(expected["surrogate"], rel=1e-4, abs=1e-6)
    assert found["loss_value"] == pytest.approx(expected["value"], rel=1e-4)
    assert ours.rate == pytest.approx(theirs.learning_rate)
    for one, two in ((policy, other), (critic, their_critic)):
        for mine, its in zip(one.parameters(), two.parameters(), strict=True):
            torch.testing.assert_close(mine, its, atol=1e-6, rtol=1e-4)


def test_advantages_where_episodes_go_on_fail_and_are_truncated() -> None:
    """Three steps of reward 1, gamma = 1/2, so that each counts 1/2; values of 0 everywhere but of
    the successor where it was truncated, 8.

    Going on, lambda = 0.95: 1/2, 1/2 (1 + 0.475), ... backwards. Failed or truncated at the second
    step it is cut there: 1/2, or 1/2 + 8/2.
    """
    policy, critic = networks()
    nn.init.zeros_(critic.value_head.weight)
    learner = PPO(policy, critic, PPOConfig(gamma=0.5))
    rollout = rollout_of(policy, 3, 3)._replace(rewards=torch.ones(3, 3, 1))
    nothing = torch.zeros(3, 3, dtype=torch.bool)
    terminated, truncated = nothing.clone(), nothing.clone()
    terminated[1, 1] = truncated[1, 2] = True
    rollout = rollout._replace(terminated=terminated, truncated=truncated)
    reached = torch.zeros(3, 3, 1)
    reached[1, 2] = 8.0

    def values(seen: Tensor) -> Tensor:
        same = (rollout.next_observations.unsqueeze(-2) == seen.flatten(0, -2)).all(-1)
        return (same * reached).sum((0, 1)).view(*seen.shape[:-1], 1)

    learner.critic = values  # type: ignore[assignment]
    returns = learner.precompute(rollout)[3]
    lam, last = 0.5 * GAE_LAMBDA, 0.5
    going = [last * (1 + lam + lam**2), last * (1 + lam), last]
    failed = [last * (1 + lam), last, last]
    cut = [last + lam * (last + 4.0), last + 4.0, last]
    torch.testing.assert_close(returns, torch.tensor([going, failed, cut]).T)


def test_gae_is_the_sum_of_discounted_errors() -> None:
    """A_t = sum (gamma lambda)^k delta_{t+k}, to the end of an unroll without ends."""
    policy, critic = networks()
    rollout = rollout_of(policy, 5, 2)
    nothing = torch.zeros(5, 2, dtype=torch.bool)
    rollout = rollout._replace(terminated=nothing, truncated=nothing)
    _, _, values, returns, _ = PPO(policy, critic, PPOConfig(gamma=0.9)).precompute(rollout)
    following = torch.cat((values[1:], critic(rollout.next_observations[-1]).T))
    delta = 0.1 * rollout.rewards.squeeze(-1) + 0.9 * following - values
    rate = 0.9 * GAE_LAMBDA
    expected = [sum(rate**k * delta[t + k] for k in range(5 - t)) for t in range(5)]
    torch.testing.assert_close(returns - values, torch.stack(expected))
