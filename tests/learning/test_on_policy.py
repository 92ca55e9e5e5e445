"""Learning on policy, a module as a whole and a policy in latent space: what is stored is what
happened; runs repeat and resume to the bit."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

from mocap_data.store import MotionSet
from npmp.core.gaussian import Gaussian
from npmp.envs import TaskEnv
from npmp.envs.features import proprioception
from npmp.envs.policy import Observation
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.envs.sensing import SensorConfig
from npmp.learning.agents import BEHAVIOR_STEPS, LatentAgent, ModuleAgent
from npmp.learning.collectors import CollectorsConfig
from npmp.learning.on_policy import OnPolicyConfig, OnPolicyTrainer, PPOTraining, VMPOTraining
from npmp.learning.reuse import ReuseSettings, ReuseVMPOConfig, make_policy_trainer
from npmp.learning.rl import VMPO
from npmp.robots import Robot
from npmp.sim.randomization import PhysicsConfig, PushConfig, Spread
from npmp.skills.composition import CompositionState
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.nets import DecoderState, NetConfig
from npmp.skills.nets.high_level import HighLevelConfig
from npmp.skills.skill_module import SkillModule
from npmp.tasks import Dribble
from npmp.tasks.walk import Walk, WalkConfig
from tests.environments import imitation_env, walk_env
from tests.refusals import refusal
from tests.trainers import check_repeats_and_resumes, run

NET = NetConfig(latent_dim=4, encoder_width=16, decoder_width=16, lstm_width=8)
SMALL: dict[str, Any] = {"unroll": 6, "critic_hidden": (16,), "minibatches": 2, "beta_ramp": 0.5}
TINY = VMPOTraining(**SMALL, target_period=3)
PLANT = RobotBatchConfig(
    hold="first_order",
    physics=PhysicsConfig(mass=Spread(0.2), friction=(0.5, 1.0)),
    pushes=PushConfig(force=30.0),
    sensors=SensorConfig(delay_s=(0.0, 0.02), joint_noise=0.01),
)


def imitating(
    robot: Robot,
    motions: MotionSet,
    seed: int = 0,
    config: OnPolicyConfig = TINY,
    plant: RobotBatchConfig = PLANT,
) -> OnPolicyTrainer:
    env = imitation_env(robot, motions, 8, seed=seed, robots=plant)
    torch.manual_seed(seed)
    skill = SkillModule.for_reference(
        robot, NET, env.task.tracking.reference, env.task.tracking.features(5)
    )
    return OnPolicyTrainer(env, ModuleAgent(skill, 0.2), config, seed=seed)


def walking_on(
    robot: Robot,
    walking: WalkConfig,
    skill: SkillModule,
    policy: HighLevelPolicy,
    seed: int = 0,
    config: OnPolicyConfig = TINY,
) -> OnPolicyTrainer:
    env = walk_env(robot, 6, seed=seed, config=walking)
    return OnPolicyTrainer(env, LatentAgent(copy.deepcopy(policy), skill), config, seed=seed)


ALGORITHMS = [TINY, PPOTraining(**SMALL)]


def test_a_policy_may_be_held_to_a_behaviour_prior(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    """The KL of the updates is that to the prior that was fitted, whose weights the checkpoint
    keeps."""
    config = ReuseVMPOConfig(unroll=6, behavior=0.5)
    recordings: dict[str, Any] = {"recordings": None, "teacher": None, "new": True, "seed": 0}
    settings = ReuseSettings(algo=config, num_threads=1)
    made = make_policy_trainer(settings, Walk(robot, walking), skill, policy, 4, **recordings)
    assert isinstance(made, OnPolicyTrainer) and isinstance(made.agent, LatentAgent)
    prior = made.agent.behavior
    assert prior is not None and made.env_steps_before == 4 * BEHAVIOR_STEPS
    torch.nn.init.normal_(prior.net[-1].bias, std=0.3, generator=torch.Generator().manual_seed(1))
    spread = torch.rand(prior.examples.shape, generator=torch.Generator().manual_seed(2))
    prior.examples.copy_(torch.lerp(*prior.goals.unbind(-1), spread))
    rollout, _ = made.collect()
    given = rollout.observations
    weight = given.prior[..., -1]
    assert (weight <= 0.5).all() and weight.max() > 0.0
    mean, std, _, kl = policy(given, rollout.initial_state, rollout.resets)
    latents = Gaussian(mean, std)
    torch.testing.assert_close(kl, prior.kl(latents, given.z_before, given.prior))
    assert not torch.allclose(kl, prior.general.kl(latents, given.z_before, given.prior))
    made.iteration(0.0)
    assert any(name.startswith("behavior.") for name in made.state_dict())
    with pytest.raises(ValueError, match="one process"):
        ReuseSettings(algo=config, collectors=CollectorsConfig())


@pytest.mark.parametrize("config", ALGORITHMS, ids=["vmpo", "ppo"])
def test_runs_of_a_module_repeat_and_resume(
    robot: Robot, motions: MotionSet, config: OnPolicyConfig
) -> None:
    trainer = check_repeats_and_resumes(lambda seed: imitating(robot, motions, seed, config))
    assert trainer.env_steps == 4 * 6 * 8 == 4 * trainer.env_steps_per_iteration
    trainer.agent.module(trainer.range).check_robot(robot)


@pytest.mark.parametrize("config", ALGORITHMS, ids=["vmpo", "ppo"])
def test_runs_of_a_policy_repeat_and_resume(
    robot: Robot,
    walking: WalkConfig,
    skill: SkillModule,
    policy: HighLevelPolicy,
    config: OnPolicyConfig,
) -> None:
    before = {name: value.clone() for name, value in skill.state_dict().items()}
    trainer = check_repeats_and_resumes(
        lambda seed: walking_on(robot, walking, skill, policy, seed, config)
    )
    for kept in (skill, trainer.agent.skill):
        assert all(torch.equal(value, before[k]) for k, value in kept.state_dict().items())
    pairs = zip(trainer.agent.network.parameters(), policy.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)
    metrics = run(trainer, 1)[0]
    assert {"reward", "velocity_error", "failures_per_s", "kl", "entropy", "beta"} <= set(metrics)


def test_a_rollout_of_a_module_is_consistent(robot: Robot, motions: MotionSet) -> None:
    """Across resets: latents and memories start empty, densities are found again by the learner's
    re-run, successors are true."""
    trainer = imitating(robot, motions, plant=dataclasses.replace(PLANT, pushes=PushConfig()))
    trainer.collect()
    clip = torch.zeros(8, dtype=torch.long)
    # so that episodes end within the next unroll
    trainer.env.reset(clip=clip, frame=trainer.env.task.tracking.reference.last_frame(clip) - 3)
    rollout, _ = trainer.collect()
    check_consistent(trainer, rollout)
    assert rollout.rewards.shape == (6, 8, 5) and rollout.observations.z_before is None


def check_consistent(trainer: OnPolicyTrainer, rollout: Any) -> None:
    ended, known = rollout.terminated | rollout.truncated, rollout.critic_observations
    assert bool(ended[:-1].any()) and not bool((rollout.terminated & rollout.truncated).any())
    assert torch.equal(rollout.resets[1:], ended[:-1])
    assert bool((known[rollout.resets][:, -4:] == 0).all())  # the latent before
    mean, std, _, _ = trainer.learner.acting(
        rollout.observations, rollout.initial_state, rollout.resets
    )
    log_prob = Normal(mean, std).log_prob(rollout.actions).sum(-1)
    torch.testing.assert_close(log_prob, rollout.behaviour_log_prob, atol=1e-4, rtol=1e-4)
    goes_on = ~ended[:-1]
    following = rollout.next_observations[:-1]
    assert torch.equal(following[goes_on], known[1:][goes_on])
    assert not torch.equal(following[~goes_on], known[1:][~goes_on])


def test_a_rollout_of_a_policy_is_consistent(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    trainer = walking_on(robot, walking, skill, policy)
    # all but the last run out of time with the first unroll's last step
    trainer.env.age[:] = torch.tensor([15 - 6] * 5 + [0])
    trainer.collect()
    memory = trainer.carried.policy
    assert trainer.carried.is_first.tolist() == [True] * 5 + [False]
    for part in (memory.z, memory.lower.hidden, memory.upper.cell):
        assert (part == 0).all(-1).tolist() == [True] * 5 + [False]
    trainer.env.age[:] = torch.tensor([12] * 5 + [0])
    rollout, _ = trainer.collect()
    check_consistent(trainer, rollout)
    going = ~(rollout.terminated | rollout.truncated)[:-1]
    assert torch.equal(rollout.observations.z_before[1:][going], rollout.actions[:-1][going])


def test_a_time_out_is_bootstrapped_and_a_fall_is_not(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    trainer = walking_on(robot, walking, skill, policy)
    # the first robot is on its back after the first step, the second runs out of time; both are
    # reset at once
    trainer.env.age[:] = 0
    trainer.env.age[1] = 14
    over = torch.diag(torch.tensor([1.0, -1.0, -1.0]))
    upside_down = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    trainer.env.robots.sim.qpos[0, 2:7] = upside_down
    trainer.env.state.root_rot[0] = over
    rollout, _ = trainer.collect()
    assert rollout.terminated[0].tolist() == [True] + [False] * 5
    assert rollout.truncated[0].tolist() == [False, True] + [False] * 4
    # where it fell, not where it was put back
    assert rollout.next_observations[0, 0, 0].item() == pytest.approx(1.0, abs=0.05)
    learner = trainer.learner
    assert isinstance(learner, VMPO)
    # any values: what counts is where they are used
    returns = learner.returns(rollout, learner.values(rollout.critic_observations) + 5.0)
    successor = learner.values(rollout.next_observations)[0, :, 0]
    torch.testing.assert_close(returns[0, 0, 0], rollout.rewards[0, 0, 0])
    torch.testing.assert_close(returns[0, 1, 0], rollout.rewards[0, 1, 0] + 0.95 * successor[1])


def test_unrolling_a_module_equals_single_steps_and_eq_6(robot: Robot, motions: MotionSet) -> None:
    """The policy over T steps with resets against a loop of the module's own steps: means, carried
    state, the KL of N(alpha z + mu, sigma) to N(alpha z, sqrt(1 - alpha^2)) by torch.distributions,
    and every gradient."""
    policy: Any = imitating(robot, motions).agent.network
    nn.init.normal_(policy.lower.encoder.head.weight, std=0.3)
    policy, double = policy.double(), torch.float64  # gradients are sums of large terms that cancel
    g = torch.Generator().manual_seed(1)
    skill, t, b = policy.lower, 5, 3
    widths = (skill.contract.context_size, 33, 4, 0)
    context, senses, noise, nothing = (
        torch.randn(t, b, w, generator=g, dtype=double) for w in widths
    )
    given = Observation(senses, context, prior=nothing, noise=noise)
    resets = torch.zeros(t, b, dtype=torch.bool)
    resets[0, 0] = resets[2, 1] = True
    decoder = DecoderState(*(part.double() for part in policy.initial_state(b).lower))
    start = CompositionState((), torch.ones(b, 4, dtype=double), decoder)
    mean, std, end, kl = policy(given, start, resets)
    z, memory = start.z, start.lower
    weight = torch.randn(t, b, 12, generator=g, dtype=double)
    by_hand = torch.zeros((), dtype=double)
    for k in range(t):
        z, memory = z.masked_fill(resets[k].unsqueeze(-1), 0.0), memory.reset(resets[k])
        mu, sigma = skill.encode(given.task[k], z)
        ahead, before = Normal(0.95 * z + mu, sigma), Normal(0.95 * z, (1 - 0.95**2) ** 0.5)
        expected = kl_divergence(ahead, before).sum(-1)
        torch.testing.assert_close(kl[k], expected)
        z = 0.95 * z + mu + sigma * given.noise[k]
        action, memory = skill.decode(z, given.proprioception[k], memory)
        torch.testing.assert_close(mean[k], action)
        by_hand = by_hand + (weight[k] * action).sum() + expected.sum()
    for one, other in zip((end.z, *end.lower), (z, *memory), strict=True):
        torch.testing.assert_close(one, other)
    weights = list(skill.parameters())
    result = torch.autograd.grad((weight * mean).sum() + kl.sum(), weights)
    for gradient, expected in zip(result, torch.autograd.grad(by_hand, weights), strict=True):
        torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(std, torch.full_like(std, 0.2))


def test_the_critic_knows_what_the_policy_is_not_told(robot: Robot, motions: MotionSet) -> None:
    """The drawn physics and the true state, although the sensors are late and noisy; its scales are
    those of the first unroll."""
    trainer = imitating(robot, motions)
    rollout, _ = trainer.collect()
    known, env = rollout.critic_observations, trainer.env
    expected = torch.cat((env.task.privileged(), trainer.carried.policy.z), -1)
    assert torch.equal(trainer._critic_observations(trainer.carried.policy), expected)
    physics = env.robots.physics_size
    assert physics > 0 and known.shape[-1] == env.task.privileged().shape[-1] + 4
    assert not torch.allclose(env.observe(), proprioception(env.state, env.home), atol=1e-3)
    run(trainer, 1)
    scale = trainer.learner.critic.scale
    assert bool((scale.std >= 0.1).all()) and bool((scale.mean != 0.0).any())


@pytest.mark.parametrize("alpha", [None, 0.0])
def test_the_penalty_is_the_kl_to_the_prior(
    robot: Robot, walking: WalkConfig, skill: SkillModule, alpha: float | None
) -> None:
    net = HighLevelConfig(input_width=16, hidden_width=16, lstm_width=8, alpha=alpha)
    policy = HighLevelPolicy.for_task(skill, Walk(robot, walking), net=net)
    rollout, _ = walking_on(robot, walking, skill, policy).collect()
    mean, std, _, kl = policy(rollout.observations, rollout.initial_state, rollout.resets)
    own = 0.95 if alpha is None else alpha
    prior = Normal(own * rollout.observations.z_before, (1 - own**2) ** 0.5)
    torch.testing.assert_close(kl, kl_divergence(Normal(mean, std), prior).sum(-1))


def test_in_joint_space_the_latents_are_the_setpoints(
    robot: Robot, walking: WalkConfig, skill: SkillModule
) -> None:
    joints = skill.in_joint_space()
    net = HighLevelConfig(input_width=16, hidden_width=16, lstm_width=8)
    policy = HighLevelPolicy.for_task(joints, Walk(robot, walking), net=net)
    trainer = walking_on(robot, walking, joints, policy)
    rollout, _ = trainer.collect()
    going = ~(rollout.terminated | rollout.truncated)[0]
    # the second observation's setpoint minus home: half a radian per unit of the first latent
    setpoint = rollout.observations.proprioception[1][:, 12:24]
    assert bool(going.any())
    torch.testing.assert_close(setpoint[going], 0.5 * rollout.actions[0][going], atol=1e-5, rtol=0)
    assert trainer.iteration(0.0)["kl"] > 0


def test_the_objectives_are_the_task_s(robot: Robot, skill: SkillModule) -> None:
    env = TaskEnv(Dribble(robot), 2, num_threads=1)
    agent = LatentAgent(HighLevelPolicy.for_task(skill, env.task), skill)
    config = VMPOTraining(unroll=2, passes=1, minibatches=1, critic_hidden=(8,))
    assert "temperature_ball" in OnPolicyTrainer(env, agent, config).iteration(0.0)
    two = dataclasses.replace(config, epsilon_temperature=(0.1, 0.2))
    refusal("epsilon_temperature", OnPolicyTrainer, env, agent, two)
