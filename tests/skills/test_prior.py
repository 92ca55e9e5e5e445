"""The AR(1) prior: its KL against torch.distributions and Monte Carlo, its stationary distribution
by simulation."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from npmp.skills.prior import kl_of_deviation, kl_to_prior, prior_std, sample_posterior


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_papers_correlation_gives_the_papers_deviation() -> None:
    assert prior_std(0.95) == pytest.approx(0.3122, abs=1e-4)
    assert prior_std(0.0) == 1.0
    for alpha in (-0.1, 1.0, 2.0):
        with pytest.raises(ValueError, match=r"\[0, 1\)"):
            prior_std(alpha)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.95])
def test_kl_equals_torchs(alpha: float) -> None:
    g = generator()
    z_prev, mean = torch.randn(7, 5, 60, generator=g), torch.randn(7, 5, 60, generator=g)
    std = torch.rand(7, 5, 60, generator=g) + 0.1
    q = Independent(Normal(mean, std), 1)
    p = Independent(Normal(alpha * z_prev, torch.full_like(std, math.sqrt(1 - alpha**2))), 1)
    found = kl_to_prior(mean, std, z_prev, alpha)
    torch.testing.assert_close(found, kl_divergence(q, p), rtol=1e-5, atol=1e-4)


def test_kl_of_the_prior_is_zero_and_of_a_shift_is_quadratic() -> None:
    std = torch.full((3, 4), prior_std(0.95))
    found = kl_of_deviation(torch.zeros(3, 4), std, 0.95)
    torch.testing.assert_close(found, torch.zeros(3), atol=1e-6, rtol=0)
    # one dimension off by the prior's own deviation: 1/2 nat
    mu = torch.tensor([[prior_std(0.95), 0.0, 0.0, 0.0]])
    torch.testing.assert_close(kl_of_deviation(mu, std[:1], 0.95), torch.tensor([0.5]))


def test_the_sum_over_a_sequence_is_the_kl_of_the_whole_by_monte_carlo() -> None:
    """Eq. 6 sums per-step KLs at the sampled z_{t-1}; its expectation is the KL of the two
    processes' sequences."""
    alpha, steps, n, d = 0.9, 6, 200_000, 2
    g = generator()
    # an encoder that leans on the previous latent: mu = 0.2 - 0.1 z_{t-1}, sigma = 0.5
    z = torch.zeros(n, d)
    log_ratio, closed_form = torch.zeros(n), torch.zeros(n)
    for _ in range(steps):
        mu, std = 0.2 - 0.1 * z, torch.full((n, d), 0.5)
        q, p = Normal(alpha * z + mu, std), Normal(alpha * z, prior_std(alpha))
        closed_form += kl_to_prior(alpha * z + mu, std, z, alpha)
        z = alpha * z + mu + std * torch.randn(n, d, generator=g)
        log_ratio += (q.log_prob(z) - p.log_prob(z)).sum(-1)
    error = float(log_ratio.std()) / math.sqrt(n)
    assert abs(float(log_ratio.mean()) - float(closed_form.mean())) < 4 * error
    assert error < 0.02 * float(closed_form.mean())  # tight enough to mean something


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.95])
def test_the_stationary_variance_is_one(alpha: float) -> None:
    g = generator()

    def step(z: torch.Tensor) -> torch.Tensor:  # of the prior, eq. 5
        still = torch.zeros_like(z)
        return sample_posterior(
            z, still, still + prior_std(alpha), alpha, torch.randn(z.shape, generator=g)
        )

    z = torch.zeros(20_000, 3)  # far from stationary
    for _ in range(150):  # 0.95^300 of the start's variance is left
        z = step(z)
    assert abs(float(z.var()) - 1.0) < 0.02 and abs(float(z.mean())) < 0.02
    # and the correlation of successive latents is alpha
    assert abs(float((step(z) * z).mean()) - alpha) < 0.02
    start = torch.randn((20_000, 3), generator=g)
    assert abs(float(step(start).var()) - 1.0) < 0.02  # one step leaves N(0, I) alone
