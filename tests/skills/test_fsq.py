"""The prior over discrete codes: levels, gradients, probabilities and KL by hand and by torch's
distributions; the decoder observes nothing but the code."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from mocap_data.errors import InputError
from npmp.core.gaussian import Gaussian
from npmp.robots import Robot
from npmp.skills.composition import over
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.nets import NetConfig
from npmp.skills.nets.high_level import HighLevelConfig
from npmp.skills.priors.fsq import FSQConfig, FSQPrior, edges, log_probabilities, quantized
from npmp.skills.skill_module import SkillContract, SkillModule
from npmp.tasks.walk import Walk


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_latents(*shape: int, seed: int = 0) -> Gaussian:
    g = generator(seed)
    return Gaussian(torch.randn(shape, generator=g), 0.05 + torch.rand(shape, generator=g))


def make_prior() -> FSQPrior:
    """Of 4 latents and 12 joints, with a state and a previous code that count."""
    torch.manual_seed(0)
    prior = FSQPrior(4, FSQConfig(hidden=16), torch.zeros(12))
    torch.nn.init.normal_(prior.net[-1].weight, std=0.2)
    return prior.requires_grad_(False)


def test_levels_of_five() -> None:
    """2 tanh z is rounded, so the edges are atanh(1/4) = 0.2554 and atanh(3/4) = 0.9730."""
    z = torch.tensor([-9.0, -0.98, -0.97, -0.26, -0.25, 0.0, 0.25, 0.26, 0.97, 0.98, 9.0])
    expected = [-1.0, -1.0, -0.5, -0.5, 0.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    assert quantized(z, 5).tolist() == expected
    assert edges(5) == pytest.approx([-0.97296, -0.25541, 0.25541, 0.97296], abs=1e-5)


@pytest.mark.parametrize("levels", [3, 5, 9])
def test_codes_are_the_levels_and_change_at_the_edges(levels: int) -> None:
    around = torch.tensor([[edge - 1e-3, edge + 1e-3] for edge in edges(levels)])
    below, above = quantized(around, levels).unbind(-1)
    steps = torch.linspace(-1.0, 1.0, levels)
    torch.testing.assert_close(below, steps[:-1])
    torch.testing.assert_close(above, steps[1:])


def test_the_gradient_passes_the_rounding() -> None:
    """d tanh z / dz = 1 - tanh^2 z: 1 at 0, 0.7864 at 0.5, nothing far from the edges."""
    z = torch.tensor([0.0, 0.5, 9.0], requires_grad=True)
    quantized(z, 5).sum().backward()
    assert z.grad is not None
    assert z.grad.tolist() == pytest.approx([1.0, 0.7864, 0.0], abs=1e-4)


def test_probabilities_of_three_codes() -> None:
    """The edges are +-atanh(1/2) = +-0.5493. Phi(0.5493) = 0.7086: under N(0, 1) the middle code
    has 0.4172, each other 0.2914. Under N(0.5493, 0.1^2) half of the mass is beyond the edge."""
    latents = Gaussian(torch.tensor([0.0, math.atanh(0.5)]), torch.tensor([1.0, 0.1]))
    probabilities = log_probabilities(latents, 3).exp()
    assert probabilities[0].tolist() == pytest.approx([0.2914, 0.4172, 0.2914], abs=1e-3)
    assert probabilities[1].tolist() == pytest.approx([0.0, 0.5, 0.5], abs=1e-6)


@pytest.mark.parametrize("levels", [3, 5, 9])
def test_probabilities_are_those_of_quantized_samples(levels: int) -> None:
    latents = random_latents(6)
    probabilities = log_probabilities(latents, levels).exp()
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(6))
    n = 100_000
    codes = quantized(latents.sample(torch.randn(n, 6, generator=generator(1))), levels)
    index = ((codes + 1.0) * 0.5 * (levels - 1)).round().long()
    share = torch.nn.functional.one_hot(index, levels).float().mean(0)
    # four standard errors of a share of one half
    torch.testing.assert_close(share, probabilities, atol=4 * 0.5 / n**0.5, rtol=0)


def test_probabilities_far_in_the_tail() -> None:
    """40 standard deviations away a float32 has no probability, but a logarithm and a gradient: of
    -x^2 / 2 about x."""
    edge = edges(3)[1]
    x = 40.0
    mean = torch.tensor([edge - 0.1 * x], requires_grad=True)
    log_probability = log_probabilities(Gaussian(mean, torch.tensor([0.1])), 3)[0, -1]
    expected = -0.5 * x**2 - math.log(x * math.sqrt(2.0 * math.pi))
    assert log_probability.item() == pytest.approx(expected, rel=1e-3)
    log_probability.backward()
    assert mean.grad is not None and mean.grad.item() == pytest.approx(x / 0.1, rel=1e-2)


@pytest.mark.parametrize("std", [0.01, 10.0])
@pytest.mark.parametrize("mean", [-50.0, 0.0, 0.26, 50.0])
def test_logarithms_and_gradients_are_finite(mean: float, std: float) -> None:
    latents = Gaussian(*(torch.tensor([value], requires_grad=True) for value in (mean, std)))
    values = log_probabilities(latents, 5)
    values.sum().backward()
    assert torch.isfinite(values).all()
    assert all(part.grad is not None and torch.isfinite(part.grad).all() for part in latents)


def test_kl_is_that_of_the_codes() -> None:
    """Of categorical distributions, at most that of the latents (data processing), and zero of the
    prior itself."""
    prior = make_prior()
    observed = torch.randn(64, 48, generator=generator(2))
    before = torch.randn(64, 4, generator=generator(3))
    latents = random_latents(64, 4, seed=4)
    step = prior.step(before, observed)

    kl = prior.kl(latents, before, observed)
    q, p = (Categorical(logits=log_probabilities(part, 5)) for part in (latents, step))
    torch.testing.assert_close(kl, kl_divergence(q, p).sum(-1), atol=1e-5, rtol=1e-4)
    assert (kl <= latents.kl(step) + 1e-4).all() and (kl > 0.0).all()
    deviation = Gaussian(latents.mean - step.mean, latents.std)
    of_deviation = prior.kl_of_deviation(deviation, before, observed)
    torch.testing.assert_close(of_deviation.sum(-1), kl, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(prior.kl(step, before, observed), torch.zeros(64))


def test_it_is_conditioned_on_the_code_and_the_state() -> None:
    prior = make_prior()
    observed = torch.randn(1, 48, generator=generator(2))
    before = torch.tensor([[0.0, 0.5, -0.5, 2.0]])
    step = prior.step(before, observed)
    assert (step.std > 0.0).all()
    within_cells = before + torch.tensor([[0.2, 0.3, -0.3, 5.0]])
    assert torch.equal(prior.step(within_cells, observed).mean, step.mean)
    assert not torch.allclose(prior.step(-before, observed).mean, step.mean)
    assert not torch.allclose(prior.step(before, -observed).mean, step.mean)


@pytest.fixture(scope="module")
def skill(robot: Robot) -> SkillModule:
    torch.manual_seed(0)
    net = NetConfig(
        latent_dim=4, encoder_width=8, decoder_width=16, lstm_width=8, prior=FSQPrior.name
    )
    contract = SkillContract.for_robot(robot, net, context_size=20, context_horizon=5)
    module = SkillModule(contract)
    torch.nn.init.normal_(module.decoder.head.weight, std=0.5)
    return module.requires_grad_(False)


def test_the_decoder_observes_only_the_code(skill: SkillModule, tmp_path: Path) -> None:
    senses = torch.randn(2, 33, generator=generator(1))
    state = skill.initial_state(2)

    def decode(module: SkillModule, z: Tensor) -> Tensor:
        return module.decode(z, senses, state)[0]

    z = torch.tensor([[0.0, 0.5, -0.5, 2.0], [0.3, -0.9, 0.1, -2.0]])
    same_code = z + torch.tensor([0.1, 0.1, -0.1, 0.0])
    action = decode(skill, z)
    assert torch.equal(decode(skill, same_code), action)
    assert not torch.allclose(decode(skill, z + 1.0), action)
    skill.save(tmp_path)
    assert torch.equal(decode(SkillModule.load(tmp_path), z), action)
    never = torch.zeros(1, 2, dtype=torch.bool)
    unrolled, _ = skill.unroll(z[None], senses[None], state, never)
    torch.testing.assert_close(unrolled[0], action)


def test_a_walker_as_a_module_has_the_codes(robot: Robot, skill: SkillModule) -> None:
    """Its decoder of commands contains that of the skills."""
    torch.manual_seed(1)
    net = HighLevelConfig(input_width=16, hidden_width=16, lstm_width=8)
    policy = HighLevelPolicy.for_task(skill, Walk(robot), net=net)
    torch.nn.init.normal_(policy.net.head.weight, std=0.5)
    decoder = over(policy, skill).as_module().decoder.decoder
    z = torch.tensor([[0.0, 0.5, -0.5, 2.0]])
    same_code = z + torch.tensor([[0.1, 0.1, -0.1, 5.0]])
    senses = torch.randn(1, 33, generator=generator(1))
    state = skill.initial_state(1)
    expected = skill.decoder(z, senses, state)[0]
    assert torch.equal(decoder(same_code, senses, state)[0], expected)


def test_settings_out_of_range() -> None:
    for levels in (1, 4):
        with pytest.raises(ValueError, match="levels"):
            NetConfig(prior="fsq", prior_settings={"levels": levels})
    with pytest.raises(InputError, match="bins"):
        NetConfig(prior="fsq", prior_settings={"bins": 5})
