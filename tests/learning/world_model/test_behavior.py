"""The behaviour prior: its divergence by closed form, and what it says without examples."""

from __future__ import annotations

import torch
from torch.distributions import Normal, kl_divergence

from npmp.core.gaussian import Gaussian
from npmp.envs.state import RobotState
from npmp.learning.world_model.behavior import EXAMPLES, NEAR, NEIGHBOURS, BehaviorPrior
from npmp.skills.prior import AR1, prior_std

ALPHA = 0.95


def prior_with_goals(goals: torch.Tensor) -> BehaviorPrior:
    """One whose examples have goals (N, 1) and nothing else that varies."""
    prior = BehaviorPrior(torch.zeros(12), [(-1.0, 1.0)], 4, ALPHA)
    features = torch.zeros(len(goals), prior.scale.mean.numel())
    features[:, -1:] = goals
    prior.set_examples(features, torch.Generator().manual_seed(0))
    return prior


def test_kl_between_gaussians_is_torchs() -> None:
    generator = torch.Generator().manual_seed(1)
    m1, m2 = torch.randn(2, 5, 4, generator=generator)
    s1, s2 = torch.rand(2, 5, 4, generator=generator) + 0.1
    expected = kl_divergence(Normal(m1, s1), Normal(m2, s2)).sum(-1)
    torch.testing.assert_close(Gaussian(m1, s1).kl(Gaussian(m2, s2)), expected)
    ar1 = AR1(4, ALPHA)
    expected = ar1.kl(Gaussian(m1, s1), m2, m2)
    torch.testing.assert_close(Gaussian(m1, s1).kl(ar1.step(m2, m2)), expected)


def test_an_unfitted_one_is_about_the_ar1_prior() -> None:
    prior = BehaviorPrior(torch.zeros(12), [(-1.0, 1.0)], 4, ALPHA)
    z = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
    mean, std = prior(torch.zeros(3, prior.scale.mean.numel()), z)
    torch.testing.assert_close(mean, ALPHA * z, atol=0.05, rtol=0.0)
    torch.testing.assert_close(std, torch.full_like(std, prior_std(ALPHA)), atol=0.02, rtol=0.0)


def test_support_ends_where_examples_do() -> None:
    """All goals lie at -1 and 1, the ends of what is asked for: near is within 0.15 of 2."""
    assert NEAR == 0.15 and NEIGHBOURS < EXAMPLES / 4
    prior = prior_with_goals(torch.tensor([[-1.0], [1.0]]).repeat(50, 1))
    features = torch.zeros(5, prior.scale.mean.numel())
    features[:, -1] = 1.0 + 0.3 * torch.tensor([0.0, 0.8, 1.5, 2.0, 6.0])
    expected = torch.tensor([1.0, 1.0, 0.5, 0.0, 0.0])
    torch.testing.assert_close(prior.support(features), expected, atol=1e-3, rtol=0.0)


def test_near_is_a_share_of_the_range_of_commands() -> None:
    """0.15 of 2 and of 1; a goal that is never asked for counts as the widest."""
    ranges = [(-0.5, 1.5), (-0.5, 0.5), (0.0, 0.0)]
    prior = BehaviorPrior(torch.zeros(12), ranges, 4, ALPHA)
    torch.testing.assert_close(prior.near, torch.tensor([0.3, 0.15, 0.3]))
    goals = torch.tensor(
        [[1.79, -0.64, 0.29], [1.81, 0.0, 0.0], [0.0, 0.66, 0.0], [0.0, 0.0, 0.31]]
    )
    assert prior.commanded(goals).tolist() == [True, False, False, False]


def test_a_task_may_ask_for_one_goal_only() -> None:
    """Near is 0.05 then, in place of nothing."""
    prior = BehaviorPrior(torch.zeros(12), [(0.5, 0.5), (0.0, 0.0)], 4, ALPHA)
    assert prior.commanded(torch.tensor([[0.54, 0.0], [0.56, 0.0]])).tolist() == [True, False]
    features = torch.zeros(2, prior.scale.mean.numel())
    features[:, -2] = torch.tensor([0.0, 0.5])
    assert prior.support(features).tolist() == [1.0, 0.0]  # its examples are zero yet


def test_without_examples_the_ar1_prior_counts() -> None:
    prior = prior_with_goals(torch.tensor([[-1.0], [1.0]]).repeat(50, 1))
    features = torch.zeros(2, prior.scale.mean.numel())
    features[:, -1] = torch.tensor([1.0, 9.0])
    generator = torch.Generator().manual_seed(3)
    z, mean = torch.randn(2, 2, 4, generator=generator)
    latents = Gaussian(mean, torch.full_like(mean, 0.2))
    weight = 0.75 * prior.support(features)
    torch.testing.assert_close(weight, torch.tensor([0.75, 0.0]))
    kl = prior.kl(latents, z, torch.cat((features, weight.unsqueeze(-1)), -1))
    general = AR1(4, ALPHA).kl(latents, z, features)
    own = latents.kl(prior(features, z))
    torch.testing.assert_close(kl, torch.stack((0.75 * own[0] + 0.25 * general[0], general[1])))


def test_height_and_place_are_no_inputs() -> None:
    prior = BehaviorPrior(torch.zeros(12), [], 4, ALPHA)
    low, high = (
        RobotState.still(torch.tensor([[x, 0.0, z]]), torch.eye(3)[None], torch.zeros(1, 12))
        for x, z in ((0.0, 0.5), (3.0, 0.9))
    )
    goal = torch.ones(1, 3)
    assert torch.equal(prior.observe(low, goal), prior.observe(high, goal))
    assert prior.features(low, goal).shape == (1, 48)
    assert torch.equal(prior.observe(low, goal)[:, -1], torch.ones(1))
