"""MO-V-MPO in imitation: what is stored is what happened, the KL is the sequence's, runs repeat and
resume to the bit."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp.envs.features import ReferenceFeatures, encoder_context, proprioception
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.envs.sensing import SensorConfig
from npmp.imitation import ImitationPolicyInput, MOVMPOConfig, MOVMPOTrainer
from npmp.imitation.policy import CriticInput, ImitationCritic, critic_input
from npmp.nets import DecoderState, NetConfig
from npmp.rl import VMPOConfig
from npmp.robots import Robot
from npmp.sim.randomization import PhysicsConfig, PushConfig, Spread
from npmp.tasks.rewards import REWARD_TERMS
from tests.environments import imitation_env

NET = NetConfig(latent_dim=4, encoder_width=16, decoder_width=16, lstm_width=8)
TINY = MOVMPOConfig(
    unroll=6,
    updates=2,
    critic_hidden=(16,),
    learner=VMPOConfig(objectives=REWARD_TERMS, target_period=3, learning_rate=1e-3),
)
PLANT = RobotBatchConfig(
    hold="first_order",
    physics=PhysicsConfig(mass=Spread(0.2), friction=(0.5, 1.0)),
    pushes=PushConfig(force=30.0),
    sensors=SensorConfig(delay_s=(0.0, 0.02), joint_noise=0.01),
)


def make(
    robot: Robot,
    motions: MotionSet,
    seed: int = 0,
    n: int = 8,
    config: MOVMPOConfig = TINY,
    plant: RobotBatchConfig = PLANT,
) -> MOVMPOTrainer:
    env = imitation_env(robot, motions, n, seed=seed, robots=plant)
    return MOVMPOTrainer(env, NET, config, seed=seed)


def run(trainer: MOVMPOTrainer, iterations: int, total: int = 8) -> list[dict[str, float]]:
    return [trainer.iteration(trainer.iteration_count / total) for _ in range(iterations)]


def test_betas_course_is_the_papers() -> None:
    """0.3 (1 - (1 - k/K)^0.2): 0.017 at a quarter of K, 0.039 at half of it, 0.11 at nine tenths; K
    is half of the run."""
    config = MOVMPOConfig(beta=0.3)
    found = [config.beta_at(0.5 * share) for share in (0.0, 0.25, 0.5, 0.9, 1.0, 2.0)]
    assert found == pytest.approx([0.0, 0.0168, 0.0388, 0.1107, 0.3, 0.3], abs=2e-4)


def test_a_rollout_is_consistent(robot: Robot, motions: MotionSet) -> None:
    """Across resets: latents and memories start empty, densities are found again by the learner's
    re-run, successors are true."""
    trainer = make(robot, motions, plant=dataclasses.replace(PLANT, pushes=PushConfig()))
    trainer.collect()
    clip = torch.zeros(8, dtype=torch.long)
    trainer.env.reset(
        clip=clip, frame=trainer.env.task.reference.last_frame(clip) - 3
    )  # so that episodes end within the next unroll
    rollout, _ = trainer.collect()
    ended = rollout.terminated | rollout.truncated
    assert bool(ended[:-1].any(0).all())
    assert torch.equal(rollout.resets[1:], ended[:-1]) and rollout.rewards.shape == (6, 8, 5)
    seen, known = rollout.observations, rollout.critic_observations
    assert isinstance(seen, ImitationPolicyInput) and bool((known.z[rollout.resets] == 0).all())
    mean, std, _, _ = trainer.learner.target_policy(seen, rollout.initial_state, rollout.resets)
    log_prob = Normal(mean, std).log_prob(rollout.actions).sum(-1)
    torch.testing.assert_close(log_prob, rollout.behaviour_log_prob, atol=1e-4, rtol=1e-4)
    goes_on = ~ended[:-1]
    for following, present in zip(rollout.next_observations, known, strict=True):
        assert torch.equal(following[:-1][goes_on], present[1:][goes_on])


def test_unrolling_equals_single_steps_and_eq_6(robot: Robot, motions: MotionSet) -> None:
    """The policy over T steps with resets against a loop of the module's own steps: means, carried
    state, the KL of N(alpha z + mu, sigma) to N(alpha z, sqrt(1 - alpha^2)) by torch.distributions,
    and every gradient."""
    policy = make(robot, motions).policy
    torch.nn.init.normal_(policy.skill.encoder.head.weight, std=0.3)
    policy, double = policy.double(), torch.float64  # gradients are sums of large terms that cancel
    g = torch.Generator().manual_seed(1)
    skill, t, b = policy.skill, 5, 3
    given = ImitationPolicyInput(
        torch.randn(t, b, skill.contract.context_size, generator=g, dtype=double),
        torch.randn(t, b, 33, generator=g, dtype=double),
        torch.randn(t, b, 4, generator=g, dtype=double),
    )
    resets = torch.zeros(t, b, dtype=torch.bool)
    resets[0, 0] = resets[2, 1] = True
    start = policy.initial_state(b)._replace(z=torch.ones(b, 4))
    start = type(start)(*(part.double() for part in start))
    mean, std, end, kl = policy(given, start, resets)
    z, memory = start.z, DecoderState(start.hidden, start.cell)
    weight = torch.randn(t, b, 12, generator=g, dtype=double)
    by_hand = torch.zeros((), dtype=double)
    for k in range(t):
        z, memory = z.masked_fill(resets[k].unsqueeze(-1), 0.0), memory.reset(resets[k])
        mu, sigma = skill.encode(given.context[k], z)
        expected = kl_divergence(
            Normal(0.95 * z + mu, sigma), Normal(0.95 * z, (1 - 0.95**2) ** 0.5)
        ).sum(-1)
        torch.testing.assert_close(kl[k], expected)
        z = 0.95 * z + mu + sigma * given.noise[k]
        action, memory = skill.decode(z, given.proprioception[k], memory)
        torch.testing.assert_close(mean[k], action)
        by_hand = by_hand + (weight[k] * action).sum() + expected.sum()
    torch.testing.assert_close(end.z, z)
    torch.testing.assert_close(end.hidden, memory.hidden)
    torch.testing.assert_close(end.cell, memory.cell)
    weights = list(skill.parameters())
    found = torch.autograd.grad((weight * mean).sum() + kl.sum(), weights)
    for gradient, expected in zip(found, torch.autograd.grad(by_hand, weights), strict=True):
        torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(std, torch.full_like(std, 0.2))


def test_the_encoder_learns_through_the_density_of_the_setpoints(
    robot: Robot, motions: MotionSet
) -> None:
    trainer = make(robot, motions)
    before = {k: v.clone() for k, v in trainer.policy.state_dict().items()}
    trainer.iteration(0.1)
    moved = {k for k, v in trainer.policy.state_dict().items() if not torch.equal(v, before[k])}
    for name in (
        "skill.encoder.head.weight",
        "skill.decoder.lstm.weight_hh",
        "skill.decoder.head.weight",
        "log_std",
    ):
        assert name in moved


def test_the_critic_knows_what_the_policy_is_not_told(robot: Robot, motions: MotionSet) -> None:
    """Clip and drawn physics move the values of every objective and are no inputs of the policy;
    what the critic sees is the true state, although the sensors are late and noisy."""
    trainer = make(robot, motions)
    rollout, _ = trainer.collect()
    known = rollout.critic_observations
    assert (
        isinstance(known, CriticInput)
        and known.physics.shape[-1] == trainer.env.robots.physics_size > 0
    )
    assert bool((known.physics[0].std(0) > 0).any())  # robots differ, and the critic knows how
    critic = trainer.learner.critic
    assert isinstance(critic, ImitationCritic)
    torch.nn.init.normal_(critic.value_head.weight)  # zero at the start
    values = trainer.learner.values(known).detach()
    for other in (known._replace(clip=1 - known.clip), known._replace(physics=known.physics + 0.5)):
        assert bool(
            ((trainer.learner.values(other).detach() - values).abs().amax((0, 1)) > 1e-5).all()
        )
    assert set(ImitationPolicyInput._fields) == {"context", "proprioception", "noise"}
    env = trainer.env
    seen, true = env.observe(), proprioception(env.state, env.home)
    assert not torch.allclose(seen, true, atol=1e-3)
    expected = encoder_context(
        ReferenceFeatures(robot, env.task.reference),
        env.state,
        env.task.frame,
        env.task.last_frame,
        env.home,
    )
    assert torch.equal(critic_input(env, trainer.carried.memory.z).context, expected)


def test_the_end_of_a_clip_is_bootstrapped_and_a_failure_is_not(
    robot: Robot, motions: MotionSet
) -> None:
    """Returns of a rollout with both: the last reward plus gamma times the value of the true
    successor, or the reward alone."""
    trainer = make(robot, motions)
    trainer.collect()
    clip = torch.zeros(8, dtype=torch.long)
    trainer.env.reset(clip=clip, frame=trainer.env.task.reference.last_frame(clip) - 3)
    lost = torch.tensor([True] * 4 + [False] * 4)
    trainer.env.sim.qpos[lost, 2] += 1.0  # far above the reference
    rollout, _ = trainer.collect()
    failed, over = rollout.terminated, rollout.truncated
    assert bool(failed[0, :4].all()) and bool(over[:, 4:].any())
    learner = trainer.learner
    values, following = (
        learner.values(rollout.critic_observations),
        learner.values(rollout.next_observations),
    )
    targets = learner._targets(rollout, values.detach(), torch.ones_like(failed))
    torch.testing.assert_close(targets[failed], rollout.rewards[failed])
    expected = rollout.rewards[over] + learner.config.gamma * following.detach()[over]
    torch.testing.assert_close(targets[over], expected)


def test_minibatches_draw_from_the_runs_generator(robot: Robot, motions: MotionSet) -> None:
    """Same seed, same numbers; a resumed run goes on with the same groups; more groups than robots
    are refused."""
    config = dataclasses.replace(TINY, minibatches=3)
    whole = make(robot, motions, config=config)
    run(whole, 2)
    assert whole.learner.steps == 2 * 2 * 3
    kept = {k: v.clone() for k, v in whole.state_dict().items()}
    resumed = make(robot, motions, seed=5, config=config)
    resumed.load_state_dict(kept)
    assert run(resumed, 2) == run(whole, 2)
    with pytest.raises(InputError, match="minibatches"):
        make(robot, motions, config=dataclasses.replace(TINY, minibatches=9))


def test_beta_weighs_the_policys_own_penalty(robot: Robot, motions: MotionSet) -> None:
    """One update of the same rollout with beta 0 and 1: the losses differ by the KL."""
    losses = []
    for beta in (0.0, 1.0):
        trainer = make(robot, motions)
        rollout, _ = trainer.collect()
        trainer.learner.regularizer_weight = beta
        losses.append(trainer.learner.update(rollout))
    assert losses[1]["loss/regularizer"] > 0
    difference = losses[1]["loss/total"] - losses[0]["loss/total"]
    rounding = 4 * torch.finfo(torch.float32).eps * abs(losses[1]["loss/total"])
    assert difference == pytest.approx(losses[1]["loss/regularizer"], rel=1e-4, abs=rounding)


def test_the_same_seed_gives_the_same_numbers_and_runs_resume(
    robot: Robot, motions: MotionSet
) -> None:
    whole, again = make(robot, motions), make(robot, motions)
    first = run(whole, 3)
    assert first == run(again, 3)
    kept = {k: v.clone() for k, v in whole.state_dict().items()}
    expected = run(whole, 3)
    resumed = make(robot, motions, seed=5)
    resumed.load_state_dict(kept)
    assert run(resumed, 3) == expected
    final: dict[str, Tensor] = resumed.state_dict()
    assert all(torch.equal(v, final[k]) for k, v in whole.state_dict().items())


def test_what_does_not_fit_is_refused(robot: Robot, motions: MotionSet) -> None:
    with pytest.raises(InputError, match="objectives"):
        make(
            robot,
            motions,
            config=dataclasses.replace(TINY, learner=VMPOConfig(objectives=("reward",))),
        )
    kept = make(robot, motions).state_dict()
    with pytest.raises(InputError, match="another kind of run"):
        make(robot, motions, n=4).load_state_dict(kept)
    with pytest.raises(ValueError, match="beta_ramp"):
        MOVMPOConfig(beta_ramp=0.0)
