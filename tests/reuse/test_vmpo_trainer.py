"""Collection in latent space: what is stored is what happened; runs repeat and resume to the bit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from mocap_data.errors import InputError
from npmp.envs import TaskEnv
from npmp.nets.high_level import HighLevelConfig
from npmp.reuse import HighLevelPolicy, PolicyInput, VMPOTrainer, VMPOTrainerConfig
from npmp.rl import VMPOConfig
from npmp.robots import Robot
from npmp.skill import SkillModule
from npmp.tasks import Dribble
from npmp.tasks.walk import Walk, WalkConfig
from tests.environments import walk_env

LEARNER = VMPOConfig(
    objectives=("velocity",), target_period=2, learning_rate=1e-3, regularizer_weight=0.01
)


def trainer(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy, seed: int = 0
) -> VMPOTrainer:
    env = walk_env(robot, 6, seed=seed, config=walking)
    config = VMPOTrainerConfig(unroll=9, critic_hidden=(16, 16), learner=LEARNER)
    return VMPOTrainer(env, skill, copy.deepcopy(policy), config, seed=seed)


def test_a_rollout_is_consistent(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    run = trainer(robot, walking, skill, policy)
    run.collect()
    rollout, _ = run.collect()
    seen = rollout.observations
    assert isinstance(seen, PolicyInput)
    ended = rollout.terminated | rollout.truncated
    assert bool(ended.any()) and not bool((rollout.terminated & rollout.truncated).any())
    # an episode's first step follows an episode's last one, with an empty previous latent;
    # elsewhere it is the last action
    assert torch.equal(rollout.resets[1:], ended[:-1])
    assert bool((seen.z_prev[rollout.resets] == 0).all())
    goes_on = ~ended[:-1]
    assert torch.equal(seen.z_prev[1:][goes_on], rollout.actions[:-1][goes_on])
    # the true successor: the next row where the episode goes on, something else where it was reset
    following, critic = rollout.next_observations[:-1], rollout.critic_observations[1:]
    assert torch.equal(following[goes_on], critic[goes_on])
    assert not torch.equal(following[~goes_on], critic[~goes_on])
    # the learner, re-running the acting network from the stored state across resets, finds the same
    # densities
    mean, std, _ = run.learner.target_policy(seen, rollout.initial_state, rollout.resets)
    log_prob = Normal(mean, std).log_prob(rollout.actions).sum(-1)
    torch.testing.assert_close(log_prob, rollout.behaviour_log_prob, atol=1e-4, rtol=1e-4)


def test_a_new_episode_starts_with_empty_memories(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    run = trainer(robot, walking, skill, policy)
    # all but the last run out of time with the unroll's last step
    run.env.age[:] = torch.tensor([15 - 9] * 5 + [0])
    run.collect()
    z, memory = run.carried.memory.skill
    assert run.carried.first.tolist() == [True] * 5 + [False]
    used = (
        (z.abs().sum(-1) > 0) & (memory.hidden.abs().sum(-1) > 0) & (memory.cell.abs().sum(-1) > 0)
    )
    unused = (z == 0).all(-1) & (memory.hidden == 0).all(-1) & (memory.cell == 0).all(-1)
    assert used.tolist() == [False] * 5 + [True] and unused.tolist() == [True] * 5 + [False]
    assert run.env.age.tolist() == [0] * 5 + [9]


def test_a_time_out_is_bootstrapped_and_a_fall_is_not(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    run = trainer(robot, walking, skill, policy)
    # the first robot is on its back after the first step, the second runs out of time; both are
    # reset at once
    run.env.age[:] = 0
    run.env.age[1] = 14
    over = torch.diag(torch.tensor([1.0, -1.0, -1.0]))
    run.env.sim.qpos[0, 2:7] = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    run.env.state.root_rot[0] = over
    rollout, _ = run.collect()
    assert rollout.terminated[0].tolist() == [True] + [False] * 5
    assert rollout.truncated[0].tolist() == [False, True] + [False] * 4
    height = rollout.next_observations[0, :, 0]
    # where it fell, not where it was put back
    assert height[0].item() == pytest.approx(1.0, abs=0.05)
    # any values: what counts is where they are used
    values = run.learner.values(rollout.critic_observations) + 5.0
    targets = run.learner._targets(rollout, values, torch.ones_like(rollout.resets))
    successor = run.learner.values(rollout.next_observations)[0, :, 0]
    torch.testing.assert_close(targets[0, 0, 0], rollout.rewards[0, 0, 0])
    torch.testing.assert_close(targets[0, 1, 0], rollout.rewards[0, 1, 0] + 0.95 * successor[1])


def test_the_penalty_is_the_kl_to_the_prior(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    run = trainer(robot, walking, skill, policy)
    rollout, _ = run.collect()
    mean, std, _ = policy(rollout.observations, rollout.initial_state, rollout.resets)
    prior = Normal(0.95 * rollout.observations.z_prev, (1 - 0.95**2) ** 0.5)
    torch.testing.assert_close(
        run._kl_to_prior(rollout, mean, std), kl_divergence(Normal(mean, std), prior).sum(-1)
    )


def test_a_white_prior_is_white(robot: Robot, walking: WalkConfig, skill: SkillModule) -> None:
    net = HighLevelConfig(input_width=16, hidden_width=16, lstm_width=8, alpha=0.0)
    run = trainer(
        robot, walking, skill, HighLevelPolicy.for_task(skill, Walk(robot, walking), net=net)
    )
    rollout, _ = run.collect()
    mean, std, _ = run.policy(rollout.observations, rollout.initial_state, rollout.resets)
    expected = kl_divergence(Normal(mean, std), Normal(0.0, 1.0)).sum(-1)
    torch.testing.assert_close(run._kl_to_prior(rollout, mean, std), expected)


def test_in_joint_space_the_latents_are_the_setpoints(
    robot: Robot, walking: WalkConfig, skill: SkillModule
) -> None:
    joints = skill.in_joint_space()
    net = HighLevelConfig(input_width=16, hidden_width=16, lstm_width=8)
    run = trainer(
        robot, walking, joints, HighLevelPolicy.for_task(joints, Walk(robot, walking), net=net)
    )
    rollout, _ = run.collect()
    going = ~(rollout.terminated | rollout.truncated)[0]
    # the second observation's setpoint minus home: half a radian per unit of the first latent
    setpoint = rollout.observations.proprioception[1][:, 12:24]
    assert bool(going.any())
    torch.testing.assert_close(setpoint[going], 0.5 * rollout.actions[0][going], atol=1e-5, rtol=0)
    assert run.iteration(0.0)["kl"] > 0


def test_the_decoder_stays_as_it_is_and_the_policy_does_not(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    run = trainer(robot, walking, skill, policy)
    metrics = [run.iteration(0.0) for _ in range(3)]
    for name, value in skill.state_dict().items():
        assert torch.equal(run.skill.state_dict()[name], value)
    assert any(
        not torch.equal(a, b)
        for a, b in zip(run.policy.parameters(), policy.parameters(), strict=True)
    )
    assert run.env_steps == 3 * 9 * 6 and run.iteration_count == 3
    assert all(
        name in metrics[0]
        for name in ("reward", "velocity_error", "kl", "entropy", "temperature_velocity")
    )
    assert [list(m) for m in metrics] == [list(metrics[0])] * 3  # the same columns every time


def test_the_same_seed_gives_the_same_numbers_and_a_resumed_run_equals_an_uninterrupted_one(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    whole = trainer(robot, walking, skill, policy)
    expected = [whole.iteration(0.0) for _ in range(5)]
    first = trainer(robot, walking, skill, policy)
    assert [first.iteration(0.0) for _ in range(3)] == expected[:3]
    kept = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    second = trainer(robot, walking, skill, policy, seed=8)
    second.load_state_dict(kept)
    assert [second.iteration(0.0) for _ in range(2)] == expected[3:]
    for a, b in zip(whole.policy.parameters(), second.policy.parameters(), strict=True):
        assert torch.equal(a, b)


def test_what_does_not_fit_is_refused(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    run = trainer(robot, walking, skill, policy)
    with pytest.raises(InputError, match="another kind of run"):
        run.load_state_dict({**run.state_dict(), "carried.memory.skill.z": torch.zeros(2, 4)})
    env = walk_env(robot, 2, config=walking)
    config = VMPOTrainerConfig(
        learner=VMPOConfig(objectives=("a", "b"), epsilon_temperature=(0.1, 0.2))
    )
    with pytest.raises(InputError, match=r"epsilon_temperature needs 1 or 1 values .*'velocity'"):
        VMPOTrainer(env, skill, policy, config)


def test_the_objectives_are_the_task_s(robot: Robot, skill: SkillModule) -> None:
    env = TaskEnv(Dribble(robot), 2, num_threads=1)
    run = VMPOTrainer(
        env,
        skill,
        HighLevelPolicy.for_task(skill, env.task),
        VMPOTrainerConfig(unroll=2, updates=1),
    )
    assert "temperature_ball" in run.iteration(0.0)
