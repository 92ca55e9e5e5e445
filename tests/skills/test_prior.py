"""Priors: the AR(1) prior's KL against torch.distributions and Monte Carlo, its stationary
distribution by simulation; a prior conditioned on the robot's state, in training."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp.core.gaussian import Gaussian
from npmp.envs.state import RobotState
from npmp.evaluation.analysis import wander
from npmp.learning.imitation import ImitationModelBasedConfig, ImitationSettings, train_module
from npmp.robots import Robot
from npmp.skills.nets import NetConfig
from npmp.skills.prior import AR1, Prior, prior_std
from npmp.skills.priors import make
from npmp.skills.priors.control_vae import ControlVAEConfig, ControlVAEPrior
from npmp.skills.priors.fsq import FSQPrior
from npmp.skills.skill_module import SkillModule

NOTHING = torch.zeros(0)


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
    z_before, mean = torch.randn(7, 5, 60, generator=g), torch.randn(7, 5, 60, generator=g)
    std = torch.rand(7, 5, 60, generator=g) + 0.1
    q = Independent(Normal(mean, std), 1)
    p = Independent(Normal(alpha * z_before, torch.full_like(std, math.sqrt(1 - alpha**2))), 1)
    kl = AR1(60, alpha).kl(Gaussian(mean, std), z_before, NOTHING)
    torch.testing.assert_close(kl, kl_divergence(q, p), rtol=1e-5, atol=1e-4)


def test_kl_of_the_prior_is_zero_and_of_a_shift_is_quadratic() -> None:
    prior = AR1(4, 0.95)
    std = torch.full((3, 4), prior.std)
    z = torch.randn(3, 4, generator=generator())
    kl = prior.kl_of_deviation(Gaussian(torch.zeros(3, 4), std), z, NOTHING)
    torch.testing.assert_close(kl, torch.zeros(3, 4), atol=1e-6, rtol=0)
    # one dimension off by the prior's own deviation: 1/2 nat
    shifted = Gaussian(torch.tensor([[prior.std, 0.0, 0.0, 0.0]]), std[:1])
    kl = prior.kl_of_deviation(shifted, z[:1], NOTHING)
    torch.testing.assert_close(kl, torch.tensor([[0.5, 0.0, 0.0, 0.0]]), atol=1e-6, rtol=1e-6)


def test_the_sum_over_a_sequence_is_the_kl_of_the_whole_by_monte_carlo() -> None:
    """Eq. 6 sums per-step KLs at the sampled z_{t-1}; its expectation is the KL of the two
    processes' sequences."""
    alpha, steps, n, d = 0.9, 6, 200_000, 2
    prior = AR1(d, alpha)
    g = generator()
    # an encoder that leans on the previous latent: mu = 0.2 - 0.1 z_{t-1}, sigma = 0.5
    z = torch.zeros(n, d)
    log_ratio = torch.zeros(n)
    closed_form = torch.zeros(n)
    for _ in range(steps):
        p = prior.step(z, NOTHING)
        q = Gaussian(p.mean + 0.2 - 0.1 * z, torch.full((n, d), 0.5))
        closed_form += prior.kl(q, z, NOTHING)
        z = q.sample(torch.randn(n, d, generator=g))
        log_ratio += q.log_prob(z) - p.log_prob(z)
    error = float(log_ratio.std()) / math.sqrt(n)
    assert abs(float(log_ratio.mean()) - float(closed_form.mean())) < 4 * error
    assert error < 0.02 * float(closed_form.mean())  # tight enough to mean something


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.95])
def test_the_stationary_variance_is_one(alpha: float) -> None:
    g = generator()
    prior = AR1(3, alpha)

    def step(z: torch.Tensor) -> torch.Tensor:  # of the prior, eq. 5
        return prior.step(z, NOTHING).sample(torch.randn(z.shape, generator=g))

    z = prior.initial(20_000)  # far from stationary
    for _ in range(150):  # 0.95^300 of the start's variance is left
        z = step(z)
    assert abs(float(z.var()) - 1.0) < 0.02 and abs(float(z.mean())) < 0.02
    # and the correlation of successive latents is alpha
    assert abs(float((step(z) * z).mean()) - alpha) < 0.02
    start = prior.first(z, NOTHING).sample(torch.randn((20_000, 3), generator=g))
    assert abs(float(step(start).var()) - 1.0) < 0.02  # one step keeps N(0, I)


def test_a_prior_conditioned_on_the_state() -> None:
    """Its mean follows from the state and not from z_{t-1}, height and place do not count; the KL
    is torch's."""
    torch.manual_seed(0)
    prior = ControlVAEPrior(4, ControlVAEConfig(hidden=16), torch.zeros(12))
    low, high, bent = (
        RobotState.still(torch.tensor([[x, 0.0, z]]), torch.eye(3)[None], joints)
        for x, z, joints in (
            (0.0, 0.5, torch.zeros(1, 12)),
            (3.0, 0.9, torch.zeros(1, 12)),
            (0.0, 0.5, torch.ones(1, 12)),
        )
    )
    observed = [prior.observe(state, NOTHING) for state in (low, high, bent)]
    assert torch.equal(observed[0], observed[1]) and observed[0].shape == (1, 48)
    z = torch.randn(1, 4, generator=generator())
    step = prior.step(z, observed[0])
    assert torch.equal(step.mean, prior.step(0 * z, observed[0]).mean)
    assert not torch.equal(step.mean, prior.step(z, observed[2]).mean)
    q = Gaussian(step.mean + 0.3, 0.5 * step.std)
    expected = kl_divergence(Normal(*q), Normal(*step)).sum(-1)
    torch.testing.assert_close(prior.kl(q, z, observed[0]), expected)


@pytest.mark.parametrize("kind", [ControlVAEPrior, FSQPrior])
def test_it_is_learned_with_the_encoder_and_kept_with_the_module(
    kind: type[Prior], robot: Robot, motions: MotionSet, tmp_path: Path
) -> None:
    net = NetConfig(
        latent_dim=4, encoder_width=16, decoder_width=16, lstm_width=16,
        prior=kind.name, prior_settings={"std": 0.4, "hidden": 16},
    )  # fmt: skip
    algo = ImitationModelBasedConfig(
        model_hidden=(16,), model_batch=16, policy_batch=8, horizon=(4, 4), warmup_updates=2
    )
    settings = ImitationSettings(
        algo=algo, num_envs=8, net=net, steps=160, evaluation_starts=2, num_threads=1
    )
    train_module(motions, robot, tmp_path, settings, seed=0)
    skill = SkillModule.load(tmp_path / "module")
    assert isinstance(skill.prior, kind) and skill.prior.std == 0.4
    torch.manual_seed(0)
    untrained = make(net.prior, net.settings_of_prior, 4, torch.zeros(12))
    trained = dict(skill.prior.named_parameters())
    assert all(not torch.equal(p, trained[name]) for name, p in untrained.named_parameters())
    wandering = wander(skill, motions, robot=robot, num_robots=2, seconds=0.1)
    assert torch.isfinite(wandering.travelled_m).all()


def test_an_unknown_prior_or_setting_is_refused() -> None:
    with pytest.raises(InputError, match="prior 'ar2'"):
        NetConfig(prior="ar2")
    with pytest.raises(InputError, match="sigma"):
        NetConfig(prior="control_vae", prior_settings={"sigma": 0.2})
    with pytest.raises(ValueError, match="prior_settings"):
        NetConfig(prior_settings={"alpha": 0.5})
    with pytest.raises(ValueError, match="alpha"):
        NetConfig(prior="control_vae", alpha=0.5)
