"""The learner: what it does with a rollout, that it resumes to the bit, and that it learns."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
import sys

import pytest
import torch
from torch import nn
from torch.distributions import Normal

from mocap_data.errors import InputError
from npmp.nets.prior import kl_to_prior
from npmp.rl import NonFiniteGradient, Rollout, VMPOConfig, VMPOLearner


def _load_toys():
    """The module beside this file; tests are no package."""
    path = pathlib.Path(__file__).with_name("toys.py")
    spec = importlib.util.spec_from_file_location("rl_toys", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


toys = _load_toys()


@pytest.fixture
def double_precision():
    """Networks, rollouts and updates in float64: what cancels is compared by its formula, not by
    its rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _learner(seed: int = 0, num_objectives: int = 1, regularizer=None, **values) -> VMPOLearner:
    torch.manual_seed(seed)
    # Far faster than the paper's figures: the toys take a hundred updates, not a million.
    defaults = {
        "objectives": ("track", "effort", "other")[:num_objectives],
        "learning_rate": 3e-3,
        "dual_learning_rate": 2e-2,
        "target_period": 5,
        "epsilon_mean": 0.02,
        "epsilon_std": 1e-3,
        "popart_step_size": 0.03,
    }
    config = VMPOConfig(**{**defaults, **values})
    return VMPOLearner(
        toys.GaussianLSTM(5, 2), toys.MLPCritic(4, num_objectives), config, regularizer
    )


def _rollout(learner: VMPOLearner, seed: int = 0, num: int = 8, steps: int = 12) -> Rollout:
    world = toys.PointMass(num, seed, num_objectives=len(learner.config.objectives))
    rollout, _ = toys.collect(world, learner, learner.policy.initial_state(num), steps)
    return rollout


def _train(
    learner: VMPOLearner,
    updates: int,
    seed: int = 0,
    num: int = 64,
    steps: int = 16,
    blind: bool = False,
):
    """Mean rewards [K] per step of the first and of the last rollout."""
    world = toys.PointMass(num, seed, blind=blind, num_objectives=len(learner.config.objectives))
    state = learner.policy.initial_state(num)
    history = []
    for _ in range(updates):
        rollout, state = toys.collect(world, learner, state, steps)
        learner.update(rollout)
        history.append(rollout.rewards.mean((0, 1)))
    return history[0].tolist(), history[-1].tolist()


def test_it_learns_to_move_on_command_from_memory():
    # The command is seen once, the velocity never, and one step changes it by 0.3 at most. Without
    # memory the best is to go 0.3 of the way and stay: exp(-0.7^2 / 0.5) = 0.375. Random actions
    # reach 0.16.
    first, last = _train(_learner(seed=0), updates=150, blind=True)
    assert first[0] < 0.2
    assert last[0] > 0.5


def test_it_improves_two_objectives_at_once():
    # Random actions: 0.16 and -0.025 (0.05 |a|^2 of std 0.5 in two dimensions).
    first, last = _train(_learner(seed=1, num_objectives=2), updates=60, seed=1)
    assert last[0] > first[0] + 0.2
    assert last[1] > first[1]


@pytest.mark.parametrize("n_step", [1, None])
@pytest.mark.parametrize("ending", ["termination", "truncation"])
def test_the_critic_recovers_known_values(n_step, ending):
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
        seen, following, failed = (
            torch.zeros_like(phase),
            torch.zeros_like(phase),
            torch.zeros_like(last),
        )
        expected = torch.tensor([5.0])
    torch.manual_seed(0)
    config = VMPOConfig(gamma=0.8, n_step=n_step, learning_rate=1e-2, popart_step_size=0.05)
    learner = VMPOLearner(
        toys.GaussianLSTM(4, 1, hidden=4), toys.MLPCritic(4, 1, hidden=16), config
    )
    values = []
    for _ in range(250):
        learner.update(
            Rollout(
                observations=nn.functional.one_hot(seen, 4).float(),
                actions=torch.randn(steps, num, 1),
                behaviour_log_prob=torch.zeros(steps, num),
                initial_state=learner.policy.initial_state(num),
                resets=phase == 0,
                rewards=1 + 0.3 * torch.randn(steps, num, 1),
                terminated=failed,
                truncated=last & ~failed,
                next_observations=nn.functional.one_hot(following, 4).float(),
            )
        )
        with torch.no_grad():
            values.append(learner.values(torch.eye(4)[: len(expected)])[:, 0])
    torch.testing.assert_close(torch.stack(values[-50:]).mean(0), expected, rtol=0.03, atol=0.05)


def test_metrics_are_floats_and_named():
    learner = _learner(num_objectives=2)
    metrics = learner.update(_rollout(learner))
    assert all(isinstance(value, float) for value in metrics.values())
    for name in (
        "temperature",
        "weight_kl",
        "return",
        "value_error",
        "explained_variance",
        "value_std",
    ):
        assert f"{name}/track" in metrics and f"{name}/effort" in metrics
    parts = sum(
        metrics[f"loss/{part}"] for part in ("policy", "value", "temperature", "alpha", "kl")
    )
    assert metrics["loss/total"] == pytest.approx(parts, rel=1e-5)
    # Entropy of std 0.5 in two dimensions: 2 (ln 0.5 + ln(2 pi e) / 2) = 1.4516
    assert metrics["entropy"] == pytest.approx(1.4516, abs=1e-4)


def test_right_after_a_copy_the_target_is_the_policy_and_it_acted():
    learner = _learner(target_period=3)
    for seed in range(6):
        metrics = learner.update(_rollout(learner, seed=seed))
    assert metrics["kl/mean"] > 0
    rollout = _rollout(learner, seed=6)
    assert rollout.resets[1:].any()
    metrics = learner.update(rollout)
    assert metrics["kl/mean"] == 0 and metrics["kl/std"] == 0
    assert metrics["off_policy"] == pytest.approx(0, abs=1e-5)


def test_popart_moves_the_units_and_not_the_values():
    learner = _learner(num_objectives=2, learning_rate=1e-12)  # so that the networks stand still
    observations = torch.randn(10, 4)
    before, outputs = learner.values(observations).detach(), learner.critic(observations).detach()
    for seed in range(3):
        rollout = _rollout(learner, seed=seed)
        metrics = learner.update(dataclasses.replace(rollout, rewards=rollout.rewards + 7.0))
    after = learner.values(observations).detach()
    assert metrics["value_std/track"] > 2
    assert not torch.allclose(outputs, learner.critic(observations), atol=0.1)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


def test_the_target_acts_and_follows_every_period():
    learner = _learner(target_period=3)
    start = {k: v.clone() for k, v in learner.policy.state_dict().items()}

    def equal(a, b):
        return all(torch.equal(a[key], b[key]) for key in a)

    for step in range(1, 7):
        learner.update(_rollout(learner, seed=step))
        if step in (1, 2):
            assert equal(learner.target_policy.state_dict(), start)
            assert not equal(learner.policy.state_dict(), start)
        assert equal(learner.target_policy.state_dict(), learner.policy.state_dict()) == (
            step % 3 == 0
        )
    learner.update(_rollout(learner, seed=7))
    state, first = learner.policy.initial_state(4), torch.ones(4, dtype=torch.bool)
    action, log_prob, _ = learner.act(torch.ones(4, 5), state, first)
    mean, std, _ = learner.target_policy(torch.ones(1, 4, 5), state, first[None])
    torch.testing.assert_close(log_prob, Normal(mean[0], std[0]).log_prob(action).sum(-1))
    assert not any(p.requires_grad for p in learner.target_policy.parameters())


def test_acting_step_by_step_equals_the_unroll():
    learner = _learner()
    rollout = _rollout(learner, steps=20)
    mean, std, _ = learner.target_policy(
        rollout.observations, rollout.initial_state, rollout.resets
    )
    assert rollout.resets[1:].any()
    expected = Normal(mean, std).log_prob(rollout.actions).sum(-1)
    torch.testing.assert_close(rollout.behaviour_log_prob, expected, rtol=1e-4, atol=1e-5)


def test_swapping_environments_changes_no_figure(double_precision):
    learner = _learner(num_objectives=2)
    rollout = _rollout(learner)
    state = learner.state_dict()
    metrics = learner.update(rollout)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    fields = {f.name: getattr(rollout, f.name) for f in dataclasses.fields(rollout)}
    initial = tuple(part[order] for part in fields.pop("initial_state"))
    swapped = Rollout(
        initial_state=initial, **{k: None if v is None else v[:, order] for k, v in fields.items()}
    )
    learner.load_state_dict(state)
    assert learner.update(swapped) == pytest.approx(metrics, rel=1e-6, abs=1e-7)


def test_invalid_steps_have_no_influence():
    # An automatic reset leaves a dead step after each end of an episode. Whatever stands there, the
    # update is the same.
    learner = _learner()
    rollout = _rollout(learner)
    valid = torch.ones_like(rollout.resets)
    ended = rollout.terminated | rollout.truncated
    valid[1:] = ~ended[:-1]
    inside = (valid[4] & valid[5]).nonzero()[0]
    valid[5, inside] = False  # and one in the middle of an episode
    resets = rollout.resets.clone()
    resets[1:] |= ~valid[:-1]  # what follows a dead step starts afresh
    assert 0 < (~valid).sum() < valid.numel() / 4
    results = []
    state = learner.state_dict()
    for garbage in (0.0, 50.0):
        fill = ~valid.unsqueeze(-1)
        spoiled = dataclasses.replace(
            rollout,
            observations=torch.where(fill, garbage, rollout.observations),
            critic_observations=torch.where(fill, garbage, rollout.critic_observations),
            rewards=torch.where(fill, garbage, rollout.rewards),
            actions=torch.where(fill, garbage, rollout.actions),
            resets=resets,
            valid=valid,
        )
        learner.load_state_dict(state)
        results.append((learner.update(spoiled), learner.state_dict()))
    assert results[0][0] == results[1][0]
    assert all(torch.equal(results[0][1][key], results[1][1][key]) for key in state)
    learner.load_state_dict(state)
    assert learner.update(rollout) != results[0][0]


def test_the_regularizer_pulls_the_policy_to_the_prior():
    # The KL to the AR(1) prior N(0.95 z, 0.3122^2) of a previous latent that is an observation.
    def kl(rollout: Rollout, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
        return kl_to_prior(mean, std, rollout.observations[..., :2], alpha=0.95)

    figures = {}
    for weight in (0.0, 10.0):
        learner = _learner(regularizer=kl, regularizer_weight=weight)
        history = [learner.update(_rollout(learner, seed=i))["loss/regularizer"] for i in range(40)]
        figures[weight] = history[-1] / history[0]
    assert figures[10.0] < 0.7 < figures[0.0]


def test_the_unit_of_the_rewards_does_not_matter(double_precision):
    # Rewards and PopArt's statistics 1000 times larger: the same update of every network.
    learner = _learner()
    for seed in range(3):
        learner.update(_rollout(learner, seed=seed))
    state = learner.state_dict()
    scaled = state | {
        "popart.mean": 1e3 * state["popart.mean"],
        "popart.variance": 1e6 * state["popart.variance"],
    }
    rollout = _rollout(learner, seed=9)
    results = []
    for start, scale in ((state, 1.0), (scaled, 1000.0)):
        learner.load_state_dict(start)
        metrics = learner.update(dataclasses.replace(rollout, rewards=scale * rollout.rewards))
        results.append((metrics, learner.state_dict()))
    (metrics, after), (large_metrics, large_after) = results
    assert large_metrics["value_std/track"] == pytest.approx(
        1000 * metrics["value_std/track"], rel=1e-6
    )
    assert large_metrics["weight_kl/track"] == pytest.approx(metrics["weight_kl/track"], rel=1e-6)
    for key in after:
        if key.startswith(("policy.", "critic.", "duals.")):
            torch.testing.assert_close(large_after[key], after[key])


def test_a_restored_learner_continues_to_the_bit():
    learner = _learner(num_objectives=2)
    for seed in range(7):
        learner.update(_rollout(learner, seed=seed))
    state = learner.state_dict()
    assert all(type(value) is torch.Tensor for value in state.values())
    again = _learner(seed=99, num_objectives=2)
    again.load_state_dict(state)
    for seed in range(7, 13):  # across a copy into the target
        rollout = _rollout(learner, seed=seed)
        assert learner.update(rollout) == again.update(rollout)
    final = again.state_dict()
    assert all(torch.equal(value, final[key]) for key, value in learner.state_dict().items())
    # a copy, not an alias
    assert not torch.equal(state["policy.mean.weight"], final["policy.mean.weight"])


def test_the_same_seed_gives_the_same_bytes():
    runs = [_train(_learner(seed=3), updates=5, seed=3) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_foreign_checkpoint_is_refused_and_changes_nothing():
    learner = _learner()
    before = learner.state_dict()
    other = _learner(num_objectives=2)
    other.update(_rollout(other))
    with pytest.raises(InputError, match=r"shape \[2"):
        learner.load_state_dict(other.state_dict())
    lacking = dict(before)
    del lacking["duals.raw_alpha_mean"]
    with pytest.raises(InputError, match=r"lacks duals\.raw_alpha_mean"):
        learner.load_state_dict(lacking)
    with pytest.raises(InputError, match="unknown extra"):
        learner.load_state_dict({**before, "extra": torch.zeros(1)})
    with pytest.raises(InputError, match=r"optimizer\.0\.exp_avg"):
        learner.load_state_dict({**before, "optimizer.0.exp_avg": torch.zeros(1, 2)})
    after = learner.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_gradient_that_is_no_number_stops_before_the_weights():
    learner = _learner()
    before = learner.state_dict()
    rollout = _rollout(learner)
    rewards = rollout.rewards.clone()
    rewards[3, 2] = torch.nan
    with pytest.raises(NonFiniteGradient):
        learner.update(dataclasses.replace(rollout, rewards=rewards))
    after = learner.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("name", ["raw_temperature", "raw_alpha_mean", "raw_alpha_std"])
def test_nor_does_a_multipliers_gradient_that_is_no_number_pass(name):
    learner = _learner()
    before = learner.state_dict()
    getattr(learner.duals, name).register_hook(lambda gradient: gradient * torch.nan)
    with pytest.raises(NonFiniteGradient):
        learner.update(_rollout(learner))
    after = learner.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_without_popart_the_head_is_left_alone():
    learner = _learner(popart=False)
    rollout = _rollout(learner)
    assert learner.update(rollout)["value_std/track"] == 1
    found = learner.values(rollout.critic_observations)
    assert torch.equal(found, learner.critic(rollout.critic_observations))


def test_contradictions_in_the_config_are_refused():
    with pytest.raises(InputError, match=r"1 or 3 values"):
        VMPOConfig(objectives=("a", "b", "c"), epsilon_temperature=(0.1, 0.2))
    with pytest.raises(InputError, match="distinct"):
        VMPOConfig(objectives=("a", "a"))
    for wrong in (
        {"gamma": 1.1},
        {"n_step": 0},
        {"target_period": 0},
        {"learning_rate": 0.0},
        {"epsilon_mean": -1.0},
        {"initial_temperature": 0.0},
        {"popart_step_size": 0.0},
        {"max_gradient_norm": 0.0},
        {"objectives": ()},
    ):
        with pytest.raises(InputError):
            VMPOConfig(**wrong)


def test_what_does_not_fit_is_refused():
    learner = _learner()
    with pytest.raises(ValueError, match="2 objectives"):
        learner.update(_rollout(_learner(num_objectives=2)))
    with pytest.raises(ValueError, match="value_head"):
        VMPOLearner(toys.GaussianLSTM(5, 2), toys.MLPCritic(4, 2), VMPOConfig())
    rollout = _rollout(learner)
    for field, wrong in (
        ("terminated", rollout.terminated.float()),
        ("resets", rollout.resets[:-1]),
        ("valid", rollout.resets[:, :-1]),
        ("observations", {"x": rollout.observations[1:]}),
        ("behaviour_log_prob", rollout.behaviour_log_prob[..., None]),
        ("rewards", rollout.rewards[..., 0]),
        ("initial_state", (torch.zeros(7, 32),)),
    ):
        with pytest.raises(ValueError, match=field):
            dataclasses.replace(rollout, **{field: wrong})


def _returns_by_hand(learner: VMPOLearner, rollout: Rollout) -> torch.Tensor:
    """To the end of the unroll or episode, one step after the other; the online critic's value
    where it is no failure."""
    steps, num, _ = rollout.rewards.shape
    following = learner.values(rollout.next_observations).detach()
    found = torch.zeros_like(rollout.rewards)
    for b in range(num):
        for t in reversed(range(steps)):
            if rollout.terminated[t, b]:
                rest = torch.zeros_like(following[t, b])
            elif rollout.truncated[t, b] or t == steps - 1:
                rest = following[t, b]
            else:
                rest = found[t + 1, b]
            found[t, b] = rollout.rewards[t, b] + learner.config.gamma * rest
    return found


def test_an_update_is_the_published_formula(double_precision):
    # The parts of the loss again, from torch's distributions and plain loops, once target and
    # online policy differ and PopArt has moved: KL(target || online) in that order and decoupled,
    # the policy's loss a sum over objectives and their halves, returns bootstrapped with the online
    # critic, half the squared error in PopArt's units.
    learner = _learner(num_objectives=2, epsilon_temperature=(0.1, 0.3), target_period=50)
    for seed in range(7):
        learner.update(_rollout(learner, seed=seed))
    rollout = _rollout(learner, seed=9)
    stats = learner.state_dict()
    centre, scale = stats["popart.mean"], stats["popart.variance"].sqrt()
    with torch.no_grad():
        mean, std = learner.policy(rollout.observations, rollout.initial_state, rollout.resets)[:2]
        old_mean, old_std = learner.target_policy(
            rollout.observations, rollout.initial_state, rollout.resets
        )[:2]
        targets, outputs = (
            _returns_by_hand(learner, rollout),
            learner.critic(rollout.critic_observations),
        )
        log_prob = Normal(mean, std).log_prob(rollout.actions).sum(-1).flatten()
        advantages = ((targets - centre) / scale - outputs).flatten(0, 1)
        temperature = learner.duals.temperature
        policy_loss, temperature_loss = 0.0, 0.0
        for k, epsilon in enumerate((0.1, 0.3)):
            best = advantages[:, k].sort(descending=True).indices[: len(advantages) // 2]
            scaled = (advantages[best, k] / temperature[k]).double()
            policy_loss -= ((scaled.exp() / scaled.exp().sum()) * log_prob[best]).sum().item()
            temperature_loss += (temperature[k] * (epsilon + scaled.exp().mean().log())).item()

        def kl(q: Normal) -> float:
            return (
                torch.distributions.kl_divergence(Normal(old_mean, old_std), q)
                .sum(-1)
                .mean()
                .item()
            )

        expected = {
            "loss/policy": policy_loss,
            "loss/temperature": temperature_loss,
            "loss/value": 0.5
            * ((targets - centre) / scale - outputs).square().sum(-1).mean().item(),
            "kl/mean": kl(Normal(mean, old_std)),
            "kl/std": kl(Normal(old_mean, std)),
        }
    assert expected["kl/mean"] > 1e-4 and expected["kl/std"] > 1e-7
    found = learner.update(rollout)
    # figures are float32
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6)


def test_there_are_no_importance_weights():
    learner = _learner()
    rollout, state = _rollout(learner), learner.state_dict()
    results = []
    for shift in (0.0, 5.0):
        learner.load_state_dict(state)
        metrics = learner.update(
            dataclasses.replace(rollout, behaviour_log_prob=rollout.behaviour_log_prob + shift)
        )
        results.append((metrics.pop("off_policy"), metrics, learner.state_dict()))
    assert results[1][0] == pytest.approx(results[0][0] + 5.0, abs=1e-4)
    assert results[1][1] == results[0][1]
    assert all(torch.equal(results[1][2][key], results[0][2][key]) for key in state)


def test_the_re_run_starts_from_the_stored_state():
    # In the middle of episodes the memory matters: from an empty one the densities are others.
    learner = _learner()
    with torch.no_grad():  # as if it had learned: at first the memory has no say
        for network in (learner.policy, learner.target_policy):
            network.mean.weight.copy_(
                torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
            )
    world = toys.PointMass(8, 0)
    _, state = toys.collect(world, learner, learner.policy.initial_state(8), 5)
    rollout, _ = toys.collect(world, learner, state, 5)
    assert not rollout.resets[0].all()
    before = learner.state_dict()
    stored = learner.update(rollout)["off_policy"]
    learner.load_state_dict(before)
    empty = learner.update(
        dataclasses.replace(rollout, initial_state=learner.policy.initial_state(8))
    )
    assert stored == pytest.approx(0, abs=1e-5) and abs(empty["off_policy"]) > 1e-3


def test_passes_over_whole_rollouts_are_updates():
    # With one minibatch nothing is drawn: three passes are three updates, with the target copied in
    # between.
    results = []
    for learn in (True, False):
        learner = _learner(num_objectives=2, target_period=2)
        rollout = _rollout(learner)
        if learn:
            learner.learn(rollout, passes=3)
        else:
            for _ in range(3):
                learner.update(rollout)
        results.append(learner.state_dict())
    assert learner.steps == 3
    assert all(torch.equal(results[0][key], results[1][key]) for key in results[0])


@pytest.mark.parametrize("period", [1, 2, 3, 100])
def test_minibatches_are_updates_on_groups_of_sequences(double_precision, period):
    # Each pass deals every sequence once, in an order of its own; an update sees what it would see
    # of a rollout of these alone.
    def learner():
        return _learner(num_objectives=2, target_period=period)

    first, second = learner(), learner()
    rollout = _rollout(first)
    metrics = first.learn(
        rollout, passes=2, minibatches=3, generator=torch.Generator().manual_seed(1)
    )
    drawn, by_hand = torch.Generator().manual_seed(1), []
    for _ in range(2):
        order = torch.randperm(8, generator=drawn)
        assert sorted(order.tolist()) == list(range(8))
        for chosen in (order[:3], order[3:6], order[6:]):
            by_hand.append(second.update(rollout.sequences(chosen)))
    assert metrics == pytest.approx(
        {name: sum(m[name] for m in by_hand) / 6 for name in metrics}, rel=1e-6, abs=1e-7
    )
    state = second.state_dict()
    for key, tensor in first.state_dict().items():
        torch.testing.assert_close(tensor, state[key])


def test_sequences_keep_what_belongs_together():
    learner = _learner()
    rollout = dataclasses.replace(
        _rollout(learner), initial_state=(torch.arange(8.0)[:, None], torch.arange(8.0)[:, None])
    )
    part = rollout.sequences(torch.tensor([5, 2]))
    assert part.num_steps == 24 and part.valid is None
    assert part.initial_state[1].flatten().tolist() == [5.0, 2.0]
    for name in (
        "observations",
        "actions",
        "rewards",
        "resets",
        "critic_observations",
        "next_observations",
    ):
        assert torch.equal(getattr(part, name), getattr(rollout, name)[:, [5, 2]])


def test_impossible_minibatches_are_refused():
    learner = _learner()
    for passes, minibatches in ((0, 1), (1, 0), (1, 9)):
        with pytest.raises(ValueError, match="minibatches"):
            learner.learn(_rollout(learner), passes=passes, minibatches=minibatches)
