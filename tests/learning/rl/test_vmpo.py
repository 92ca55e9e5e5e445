"""V-MPO's pieces against numbers derived by hand, for K = 1 and K = 3, and the pitfalls of public
code: log-sum-exp in the duals, log(N/2) and not log(N), one top half for weights and dual,
KL(target || online) in decoupled terms, a policy loss that is a sum, no gradient to what is fixed.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from npmp.core.gaussian import Gaussian
from npmp.learning.rl import vmpo

LN2, LN3, LN4, LN5 = (math.log(n) for n in (2, 3, 4, 5))


def _random_advantages(seed: int, shape: tuple[int, ...] = (8, 6, 3)) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# Three objectives, [T, B] = [4, 1]:
#   k = 0, eta 1:  ln 2, ln 3, 0, -5         -> steps 1, 0: weights 3/5, 2/5
#   k = 1, eta 2:  0, -1, 2 ln 4, 2 ln 5     -> steps 3, 2: weights 5/9, 4/9
#   k = 2, eta .5: -ln 2 / 2, -9, -8, 0      -> steps 3, 0: exp(A / eta) = 1, 1/2: weights 2/3, 1/3
A3 = torch.tensor(
    [[LN2, 0.0, -LN2 / 2], [LN3, -1.0, -9.0], [0.0, 2 * LN4, -8.0], [-5.0, 2 * LN5, 0.0]]
).unsqueeze(1)
ETA3 = torch.tensor([1.0, 2.0, 0.5])
PSI3 = torch.tensor([[2 / 5, 0, 1 / 3], [3 / 5, 0, 0], [0, 4 / 9, 0], [0, 5 / 9, 2 / 3]]).unsqueeze(
    1
)


def test_weights_three_objectives() -> None:
    weights = vmpo.policy_weights(A3, vmpo.top_half(A3), ETA3)
    torch.testing.assert_close(weights, PSI3)
    torch.testing.assert_close(weights.sum((0, 1)), torch.ones(3))


def test_temperature_loss_three_objectives() -> None:
    # 1 (.1 + log 5/2), 2 (.2 + log (4 + 5)/2), .5 (.3 + log (1 + 1/2)/2)
    loss = vmpo.temperature_loss(A3, vmpo.top_half(A3), ETA3, torch.tensor([0.1, 0.2, 0.3]))
    expected = [0.1 + math.log(2.5), 2 * (0.2 + math.log(4.5)), 0.5 * (0.3 + math.log(0.75))]
    torch.testing.assert_close(loss, torch.tensor(expected))


@pytest.mark.parametrize("seed", range(4))
def test_temperature_gradient_is_epsilon_minus_the_weights_kl(seed: int) -> None:
    # d/d eta [eta eps + eta log mean exp(A/eta)] = eps - KL(psi || uniform over the selected). It
    # holds only if the loss and the weights share one selection and the mean is over N/2.
    advantages = _random_advantages(seed).double()
    temperature = torch.tensor([0.3, 1.0, 4.0], dtype=torch.float64, requires_grad=True)
    epsilon = torch.tensor([0.01, 0.1, 1.0], dtype=torch.float64)
    selected = vmpo.top_half(advantages)
    vmpo.temperature_loss(advantages, selected, temperature, epsilon).sum().backward()
    psi = vmpo.policy_weights(advantages, selected, temperature)
    assert temperature.grad is not None
    torch.testing.assert_close(temperature.grad, epsilon - vmpo.weight_kl(psi, selected))
    by_hand = torch.stack(
        [(p := psi[..., k][selected[..., k]]).mul((p * 24).log()).sum() for k in range(3)]
    )
    torch.testing.assert_close(vmpo.weight_kl(psi, selected), by_hand)  # 24 = N/2 selected of 48


@pytest.mark.parametrize(("steps", "expected"), [(1, 1), (2, 1), (3, 1), (5, 2), (6, 3)])
def test_the_half_is_floored_and_never_empty(steps: int, expected: int) -> None:
    for advantages in (_random_advantages(6, (steps, 1, 2)), torch.zeros(steps, 1, 2)):
        # with ties, too, the number is exact
        assert vmpo.top_half(advantages).sum((0, 1)).tolist() == [expected, expected]


def test_extreme_temperatures_stay_finite() -> None:
    # A / eta = 1e11: the exponential overflows, the log-sum-exp does not; the weight goes to the
    # largest.
    advantages = torch.tensor([1000.0, 999.0, -1000.0, 0.0]).reshape(4, 1, 1)
    selected = vmpo.top_half(advantages)
    cold = torch.tensor([1e-8], requires_grad=True)
    loss = vmpo.temperature_loss(advantages, selected, cold, torch.tensor([0.1]))
    loss.sum().backward()
    assert loss.item() == pytest.approx(1000.0)  # eta log(exp(A/eta) / 2) -> the maximum
    assert cold.grad is not None and torch.isfinite(cold.grad).all()
    assert vmpo.policy_weights(advantages, selected, cold).flatten().tolist() == [1, 0, 0, 0]
    hot = vmpo.policy_weights(advantages, selected, torch.tensor([1e8]))
    torch.testing.assert_close(hot.flatten(), torch.tensor([0.5, 0.5, 0, 0]))


def test_no_gradient_reaches_what_is_held_fixed() -> None:
    advantages = A3.clone().requires_grad_(True)
    temperature = ETA3.clone().requires_grad_(True)
    selected = vmpo.top_half(advantages)
    assert not vmpo.policy_weights(advantages, selected, temperature).requires_grad
    loss = vmpo.temperature_loss(advantages, selected, temperature, torch.full((3,), 0.1)).sum()
    assert torch.autograd.grad(loss, [advantages, temperature], allow_unused=True)[0] is None


def test_duals_are_positive_with_a_floor_and_invertible() -> None:
    assert vmpo.dual(torch.tensor(-1e4)).item() == pytest.approx(1e-8)
    assert vmpo.dual(torch.tensor(0.0)).item() == pytest.approx(LN2)
    for value in (1e-6, 0.01, 1.0, 5.0, 300.0):
        expected = pytest.approx(value)
        assert vmpo.dual(torch.tensor(vmpo.raw_dual(value), dtype=torch.float64)).item() == expected
    with pytest.raises(ValueError, match="above"):
        vmpo.raw_dual(0.0)


def test_kl_constraint_by_hand_and_its_direction() -> None:
    # alpha 2, KL 0.3, eps 0.1: dual loss 2 (0.1 - 0.3) = -0.4, penalty 0.6.
    kl, alpha = torch.tensor(0.3, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    dual, penalty = vmpo.kl_constraint_loss(kl, alpha, 0.1)
    assert dual.item() == pytest.approx(-0.4) and penalty.item() == pytest.approx(0.6)
    for_kl, for_alpha = torch.autograd.grad(dual + penalty, [kl, alpha])
    assert for_kl.item() == pytest.approx(2.0)  # descending lowers the KL with force alpha
    # descending raises alpha while the bound is broken
    assert for_alpha.item() == pytest.approx(-0.2)


@pytest.mark.parametrize("seed", range(3))
def test_decoupled_kl_equals_torch_distributions(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    m0, m1 = (torch.randn(5, 4, 3, generator=g, dtype=torch.float64) for _ in range(2))
    s0, s1 = (torch.rand(5, 4, 3, generator=g, dtype=torch.float64) + 0.1 for _ in range(2))

    def kl(mean_p, std_p, mean_q, std_q):
        p = MultivariateNormal(mean_p, torch.diag_embed(std_p.square()))
        return kl_divergence(p, MultivariateNormal(mean_q, torch.diag_embed(std_q.square())))

    mean_term, std_term = Gaussian(m0, s0).decoupled_kl(Gaussian(m1, s1))
    torch.testing.assert_close(mean_term, kl(m0, s0, m1, s0))  # the target's variance on both sides
    torch.testing.assert_close(std_term, kl(m0, s0, m0, s1))  # the target's mean on both sides
    # The direction is KL(target || online), and the other one is another number.
    assert not torch.allclose(std_term, kl(m0, s1, m0, s0))
    # The full KL with the online variance in the mean term is no sum of the two: they are
    # decoupled.
    assert not torch.allclose(mean_term + std_term, kl(m0, s0, m1, s1))


def test_gaussian_density_and_entropy_equal_torch_distributions() -> None:
    g = torch.Generator().manual_seed(0)
    mean, actions = torch.randn(4, 3, generator=g), torch.randn(4, 3, generator=g)
    std = torch.rand(4, 3, generator=g) + 0.1
    reference = Normal(mean, std)
    ours = Gaussian(mean, std)
    torch.testing.assert_close(ours.log_prob(actions), reference.log_prob(actions).sum(-1))
    torch.testing.assert_close(ours.entropy(), reference.entropy().sum(-1))
    draws = Gaussian(mean.expand(20000, 4, 3), std).sample_detached(g)
    torch.testing.assert_close(draws.mean(0), mean, rtol=0, atol=0.04)
    torch.testing.assert_close(draws.std(0), std, rtol=0.05, atol=0)
