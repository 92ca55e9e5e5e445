"""Eq. 7: starts as the prior, mixes as written, keeps its gradients to itself."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from npmp.skills.nets.high_level import HighLevelConfig, HighLevelNet
from npmp.skills.prior import prior_std

SMALL = HighLevelConfig(input_width=16, hidden_width=16, lstm_width=8)


def net(bound: float = 3.0, std: float = 0.5) -> HighLevelNet:
    torch.manual_seed(0)
    return HighLevelNet(5, 3, 0.95, dataclasses.replace(SMALL, initial_std=std), bound=bound)


def test_starts_at_the_prior() -> None:
    policy = net(std=prior_std(0.95))
    observation, z = torch.randn(64, 5), torch.randn(64, 3)
    latent, _ = policy(observation, z, policy.initial_state(64))
    # theta = alpha, m = 0, up to the small random head
    torch.testing.assert_close(latent.mean, 0.95 * z, atol=1e-2, rtol=0)
    torch.testing.assert_close(latent.std, torch.full((64, 3), 0.31225), atol=1e-2, rtol=0)


def test_mixes_previous_latent_and_target_as_in_the_equation() -> None:
    policy = net(bound=2.0)
    with torch.no_grad():
        policy.head.weight.zero_()
        # m = 2 tanh(20 0.05 / 2) = 0.924234; std = 0.5 exp(3 tanh(0.3 / 3));
        # theta = sigmoid(log(0.95 / 0.05) - log(19)) = 1/2
        policy.head.bias.copy_(torch.tensor([0.05] * 3 + [0.3] * 3 + [-2.9444390]))
    z = torch.tensor([[1.0, -1.0, 0.0]])
    latent, _ = policy(torch.zeros(1, 5), z, policy.initial_state(1))
    torch.testing.assert_close(latent.mean, 0.5 * z + 0.5 * 0.9242343)
    torch.testing.assert_close(latent.std, torch.full((1, 3), 0.5 * 2.718281828 ** (3 * 0.0996680)))


def test_the_target_stays_in_the_range_of_imitated_latents() -> None:
    policy = HighLevelNet(5, 3, 0.95, SMALL, bound=[0.5, 1.0, 4.0])
    with torch.no_grad():
        # theta 0: the mean is m
        policy.head.bias.copy_(torch.tensor([1e3] * 3 + [0.0] * 3 + [-1e3]))
    latent, _ = policy(torch.zeros(1, 5), torch.zeros(1, 3), policy.initial_state(1))
    torch.testing.assert_close(latent.mean, torch.tensor([[0.5, 1.0, 4.0]]))
    with pytest.raises(ValueError, match="3 positive numbers"):
        HighLevelNet(5, 3, 0.95, SMALL, bound=[1.0, -1.0, 1.0])


def test_of_a_white_prior_nothing_of_the_previous_latent_is_kept() -> None:
    policy = HighLevelNet(5, 3, 0.0, SMALL, bound=2.0)
    with torch.no_grad():
        policy.head.weight.zero_()
        policy.head.bias.copy_(torch.tensor([0.5] * 3 + [0.0] * 3 + [7.0]))
    z = torch.tensor([[1.0, -1.0, 0.0]], requires_grad=True)
    latent, _ = policy(torch.zeros(1, 5), z, policy.initial_state(1))
    # no gain: m = 2 tanh(0.5 / 2) = 0.489837
    torch.testing.assert_close(latent.mean, torch.full((1, 3), 0.4898373))
    latent.mean.sum().backward()
    grad = policy.head.weight.grad
    assert grad is not None and bool(torch.isfinite(grad).all()) and bool((grad[-1] == 0).all())
    for alpha in (-0.1, 1.0):
        with pytest.raises(ValueError, match="alpha must lie in"):
            HighLevelNet(5, 3, alpha, SMALL)
        with pytest.raises(ValueError, match="alpha must lie in"):
            HighLevelConfig(alpha=alpha)


def test_a_gradient_passes_through_the_previous_latent() -> None:
    policy = net()
    z = torch.randn(4, 3, requires_grad=True)
    observation = torch.randn(4, 5, requires_grad=True)
    latent, _ = policy(observation, z, policy.initial_state(4))
    (latent.mean.sum() + latent.std.sum()).backward()
    # the mean's own part is theta, about 0.95; what the network makes of z_{t-1} is small at first
    assert z.grad is not None and bool(((z.grad > 0.9) & (z.grad < 1.0)).all())
    assert observation.grad is not None and policy.head.weight.grad is not None
