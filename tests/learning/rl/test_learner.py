"""The learners: updates against formulas, exact resuming, and learning of toys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from npmp.learning.critic import Critic
from npmp.learning.rl import PPO, VMPO, Learner, NonFiniteGradient, PPOConfig, Rollout, VMPOConfig
from tests.learning.rl import toys
from tests.refusals import refusal


@pytest.fixture
def double_precision() -> Iterator[None]:
    """float64, for comparisons without rounding errors."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def vmpo(seed: int = 0, num_objectives: int = 1, **values: Any) -> VMPO:
    torch.manual_seed(seed)
    # far faster than the paper's figures: the toys take a hundred updates, not a million
    defaults: dict[str, Any] = {"learning_rate": 3e-3, "dual_learning_rate": 2e-2}
    defaults |= {"target_period": 5, "epsilon_std": 1e-3, "popart_step_size": 0.03}
    names = ("track", "effort", "other")[:num_objectives]
    critic = Critic(4, (64, 64), num_objectives)
    return VMPO(toys.GaussianLSTM(5, 2), critic, VMPOConfig(**(defaults | values)), names)


def ppo(seed: int = 0) -> PPO:
    torch.manual_seed(seed)
    return PPO(toys.GaussianLSTM(5, 2), Critic(4, (64, 64), 1), PPOConfig(learning_rate=3e-3))


def rollout_of(learner: Learner, seed: int = 0, num: int = 8, steps: int = 12) -> Rollout:
    objectives = len(getattr(learner, "objectives", ("track",)))
    world = toys.PointMass(num, seed, num_objectives=objectives)
    rollout, _ = toys.collect(world, learner, learner.policy.initial_state(num), steps)
    return rollout


def updated(learner: Learner, rollout: Rollout, beta: float = 0.0) -> dict[str, float]:
    """One gradient step on a whole rollout, in its order."""
    with torch.no_grad():
        precomputed = learner.precompute(rollout)
    return learner.update(rollout, precomputed, beta)


def train(
    learner: Learner, updates: int, seed: int = 0, blind: bool = False, passes: int = 1
) -> tuple[list[float], list[float]]:
    """Mean rewards [K] per step of the first and of the last rollout."""
    objectives = len(getattr(learner, "objectives", ("track",)))
    world = toys.PointMass(64, seed, blind=blind, num_objectives=objectives)
    state, generator = learner.policy.initial_state(64), torch.Generator().manual_seed(seed)
    history = []
    for _ in range(updates):
        rollout, state = toys.collect(world, learner, state, 16)
        learner.learn(rollout, 0.0, passes=passes, minibatches=1, generator=generator)
        history.append(rollout.rewards.mean((0, 1)))
    return history[0].tolist(), history[-1].tolist()


@pytest.mark.parametrize(
    ("make", "passes"), [(vmpo, 1), pytest.param(ppo, 4, marks=pytest.mark.slow)]
)
def test_it_learns_to_follow_a_remembered_command(make: Any, passes: int) -> None:
    # The command is seen once, the velocity never, and one step changes it by 0.3 at most. Without
    # memory the best is to go 0.3 of the way and stay: exp(-0.7^2 / 0.5) = 0.375. Random actions
    # reach 0.16.
    first, last = train(make(seed=0), updates=150, blind=True, passes=passes)
    assert first[0] < 0.2
    assert last[0] > 0.5


@pytest.mark.parametrize("ending", ["termination", "truncation"])
def test_the_critic_recovers_known_values(ending: str) -> None:
    # Reward 1 a step (and noise), gamma 0.8, episodes of 4 steps. Ended by failure, the value of
    # phase p is the discounted number of steps left, (1 - 0.8^(4 - p)) / 0.2 = 2.952, 2.44, 1.8, 1.
    # Ended by a clock that the critic does not see, it is 1 / 0.2 = 5 always; a learner that takes
    # a time-out for a failure finds less.
    steps, num = 6, 8
    phase = (torch.arange(steps)[:, None] + torch.arange(num)) % 4
    last = phase == 3
    if ending == "termination":
        seen, following, failed = phase, (phase + 1).clamp_max(3), last
        expected = torch.tensor([2.952, 2.44, 1.8, 1.0])
    else:
        seen, following = torch.zeros_like(phase), torch.zeros_like(phase)
        failed, expected = torch.zeros_like(last), torch.tensor([5.0])
    torch.manual_seed(0)
    config = VMPOConfig(gamma=0.8, learning_rate=1e-2, popart_step_size=0.05, target_period=100)
    learner = VMPO(toys.GaussianLSTM(4, 1, hidden=4), Critic(4, (16, 16), 1), config, ("one",))
    values = []
    for _ in range(250):
        rollout = Rollout(
            observations=nn.functional.one_hot(seen, 4).float(),
            actions=torch.randn(steps, num, 1),
            behaviour_log_prob=torch.zeros(steps, num),
            resets=phase == 0,
            rewards=1 + 0.3 * torch.randn(steps, num, 1),
            terminated=failed,
            truncated=last & ~failed,
            critic_observations=nn.functional.one_hot(seen, 4).float(),
            next_observations=nn.functional.one_hot(following, 4).float(),
            initial_state=learner.policy.initial_state(num),
        )
        updated(learner, rollout)
        with torch.no_grad():
            values.append(learner.values(torch.eye(4)[: len(expected)])[:, 0])
    torch.testing.assert_close(torch.stack(values[-50:]).mean(0), expected, rtol=0.03, atol=0.06)


def test_after_a_copy_the_target_is_the_policy() -> None:
    learner = vmpo(target_period=3)
    start = {k: v.clone() for k, v in learner.policy.state_dict().items()}

    def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
        return all(torch.equal(a[key], b[key]) for key in a)

    for step in range(1, 7):
        metrics = updated(learner, rollout_of(learner, seed=step))
        if step in (1, 2):
            assert equal(learner.target.state_dict(), start)
        assert equal(learner.target.state_dict(), learner.policy.state_dict()) == (step % 3 == 0)
    assert metrics["kl_mean"] > 0
    rollout = rollout_of(learner, seed=7)
    assert rollout.resets[1:].any()
    # the densities of single steps are those of the unroll, from the stored state across resets
    mean, std, _, _ = learner.acting(rollout.observations, rollout.initial_state, rollout.resets)
    expected = Normal(mean, std).log_prob(rollout.actions).sum(-1)
    torch.testing.assert_close(rollout.behaviour_log_prob, expected, rtol=1e-4, atol=1e-5)
    metrics = updated(learner, rollout)
    assert metrics["kl_mean"] == 0 and metrics["kl_std"] == 0
    assert metrics["off_policy"] == pytest.approx(0, abs=1e-5)
    # Entropy of std 0.5 in two dimensions: 2 (ln 0.5 + ln(2 pi e) / 2) = 1.4516
    assert updated(vmpo(), rollout)["entropy"] == pytest.approx(1.4516, abs=1e-4)


def copied(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in learner.state_dict().items()}


@pytest.mark.parametrize("make", [vmpo, ppo])
def test_the_kl_to_the_prior_is_a_loss_of_weight_beta(make: Any) -> None:
    """The toy policy's KL is its mean's squared distance from 2: the gradients with beta 2 and 0
    differ by twice the gradient of that."""
    gradients = []
    for beta in (0.0, 2.0):
        learner = make()
        rollout = rollout_of(learner)
        for group in learner.optimizer.param_groups:
            group["lr"] = 0.0
        learner.rate = 0.0
        learner._optimizer_step = lambda loss, limit=0.0, own=learner: (loss.backward(), {})[1]
        updated(learner, rollout, beta)
        gradients.append(learner.policy.mean.bias.grad)
    policy = make().policy
    mean = policy(rollout.observations, rollout.initial_state, rollout.resets)[0]
    (expected,) = torch.autograd.grad((mean - toys.PRIOR).square().sum(-1).mean(), policy.mean.bias)
    torch.testing.assert_close(gradients[1] - gradients[0], 2.0 * expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("make", [vmpo, ppo])
def test_a_restored_learner_continues_to_the_bit(make: Any) -> None:
    learner = make()
    for seed in range(7):
        updated(learner, rollout_of(learner, seed=seed))
    again = make(seed=99)
    again.load_state_dict(copied(learner))
    for seed in range(7, 13):  # across a copy into the target
        rollout = rollout_of(learner, seed=seed)
        assert updated(learner, rollout) == updated(again, rollout)
    final = again.state_dict()
    assert all(torch.equal(value, final[key]) for key, value in learner.state_dict().items())
    other = vmpo(num_objectives=2)
    refusal("the checkpoint", other.load_state_dict, copied(learner))


@pytest.mark.parametrize("make", [vmpo, ppo])
def test_a_non_finite_gradient_changes_no_weights(make: Any) -> None:
    learner = make()
    before, rollout = copied(learner), rollout_of(learner)
    rewards = rollout.rewards.clone()
    rewards[3, 2] = torch.nan
    with pytest.raises(NonFiniteGradient):
        updated(learner, rollout._replace(rewards=rewards))
    after = learner.state_dict()
    names = [name for name in before if name.startswith(("policy.", "critic.", "target."))]
    assert names and all(torch.equal(before[name], after[name]) for name in names)


def test_each_gradient_is_clipped_before_its_step() -> None:
    """A loss of 1,000 times the sum of n weights has a gradient of 1,000 sqrt(n)."""
    learner = ppo()
    learner.optimizer = torch.optim.SGD(learner.optimizer.param_groups[0]["params"], lr=1.0)
    before = [weight.detach().clone() for weight in learner.policy.parameters()]
    loss = sum(1e3 * weight.sum() for weight in learner.policy.parameters())
    norms = learner._optimizer_step(loss, 1.0)  # type: ignore[arg-type]
    moved = [new - old for new, old in zip(learner.policy.parameters(), before, strict=True)]
    length = torch.cat([move.flatten() for move in moved]).norm().item()
    number = sum(weight.numel() for weight in before)
    assert norms["policy_grad_norm"].item() == pytest.approx(1e3 * number**0.5, rel=1e-5)
    assert length == pytest.approx(1.0, rel=1e-4)


def returns_by_hand(learner: VMPO, rollout: Rollout) -> torch.Tensor:
    """To the end of the unroll or episode, one step after the other; the online critic's value
    where it is no failure."""
    steps, num, _ = rollout.rewards.shape
    following = learner.values(rollout.next_observations).detach()
    result = torch.zeros_like(rollout.rewards)
    for b in range(num):
        for t in reversed(range(steps)):
            if rollout.terminated[t, b]:
                rest = torch.zeros_like(following[t, b])
            elif rollout.truncated[t, b] or t == steps - 1:
                rest = following[t, b]
            else:
                rest = result[t + 1, b]
            result[t, b] = rollout.rewards[t, b] + learner.config.gamma * rest
    return result


def test_an_update_is_the_published_formula(double_precision: None) -> None:
    # The parts of the loss again, from torch's distributions and plain loops, once target and
    # online policy differ and PopArt has moved: KL(target || online) in that order and decoupled,
    # the policy's loss a sum over objectives and their halves, returns bootstrapped with the online
    # critic, half the squared error in PopArt's units.
    learner = vmpo(num_objectives=2, epsilon_temperature=(0.1, 0.3), target_period=50)
    for seed in range(7):
        updated(learner, rollout_of(learner, seed=seed))
    rollout = rollout_of(learner, seed=9)
    centre, scale = learner.popart_stats.mean.clone(), learner.popart_stats.variance.sqrt()
    with torch.no_grad():
        unrolled = rollout.observations, rollout.initial_state, rollout.resets
        mean, std = learner.policy(*unrolled)[:2]
        old_mean, old_std = learner.target(*unrolled)[:2]
        targets, outputs = (
            returns_by_hand(learner, rollout),
            learner.critic(rollout.critic_observations),
        )
        log_prob = Normal(mean, std).log_prob(rollout.actions).sum(-1).flatten()
        advantages = ((targets - centre) / scale - outputs).flatten(0, 1)
        temperature = nn.functional.softplus(learner.duals["temperature"]) + 1e-8
        policy_loss, temperature_loss = 0.0, 0.0
        for k, epsilon in enumerate((0.1, 0.3)):
            best = advantages[:, k].sort(descending=True).indices[: len(advantages) // 2]
            scaled = advantages[best, k] / temperature[k]
            policy_loss -= ((scaled.exp() / scaled.exp().sum()) * log_prob[best]).sum().item()
            temperature_loss += (temperature[k] * (epsilon + scaled.exp().mean().log())).item()

        def kl(q: Normal) -> float:
            return kl_divergence(Normal(old_mean, old_std), q).sum(-1).mean().item()

        error = (targets - centre) / scale - outputs
        expected = {
            "loss_policy": policy_loss,
            "loss_temperature": temperature_loss,
            "loss_value": 0.5 * error.square().sum(-1).mean().item(),
            "kl_mean": kl(Normal(mean, old_std)),
            "kl_std": kl(Normal(old_mean, std)),
        }
    assert expected["kl_mean"] > 1e-4 and expected["kl_std"] > 1e-7
    result = updated(learner, rollout)
    # figures are float32
    assert {name: result[name] for name in expected} == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("period", [1, 3, 100])
def test_minibatches_are_updates_on_groups_of_sequences(
    double_precision: None, period: int
) -> None:
    # Each pass visits every sequence once, in random order; an update equals one on a rollout of
    # these sequences.
    first, second = (vmpo(num_objectives=2, target_period=period) for _ in range(2))
    rollout = rollout_of(first)
    generator, same = (torch.Generator().manual_seed(1) for _ in range(2))
    metrics = first.learn(rollout, 0.0, passes=2, minibatches=3, generator=generator)
    by_hand = []
    for _ in range(2):
        order = torch.randperm(8, generator=same)
        for chosen in (order[:3], order[3:6], order[6:]):
            by_hand.append(updated(second, rollout.select(chosen)))
    assert second.steps == 6
    means = {name: sum(m[name] for m in by_hand) / 6 for name in metrics}
    assert metrics == pytest.approx(means, rel=1e-5, abs=1e-6)
    state = second.state_dict()
    for key, tensor in first.state_dict().items():
        torch.testing.assert_close(tensor, state[key])
