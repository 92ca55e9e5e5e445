"""Following: a task of reference and command goes through the same trainer as the others."""

from __future__ import annotations

import math

import pytest
import torch

from mocap_data.store import MotionSet
from npmp.envs import TaskEnv
from npmp.envs.state import RobotState
from npmp.policy import HighLevelPolicy
from npmp.robots import Robot
from npmp.skill import SkillModule
from npmp.tasks.follow import Follow, FollowConfig
from npmp.tasks.velocity import heading_velocity
from npmp.training.model_based import ModelBasedTrainer
from npmp.training.reuse import ReuseModelBasedConfig
from tests.untrained import skill, walking  # noqa: F401

RANGE = ((0.2, 0.8), (-0.1, 0.1), (-0.3, 0.3))


@pytest.fixture(scope="module")
def env(robot: Robot, motions: MotionSet) -> TaskEnv[Follow]:
    config = FollowConfig(command_range=RANGE, episode_s=2.0)
    return TaskEnv(Follow(robot, config, motions), 8, num_threads=1)


def test_the_policy_observes_command_and_reference(env: TaskEnv[Follow]) -> None:
    task = env.task
    assert len(task.inputs) == 3 + 12 and task.observe().shape == (8, 15)
    env.reset(clip=torch.tensor([0, 1] * 4), frame=torch.tensor([99, 120] * 4))
    seen = task.observe()
    torch.testing.assert_close(seen[:, :3], task.commands.current)
    # after the last of 100 frames comes the first
    joints = task.reference.at(torch.tensor([0, 121])).joint_pos
    torch.testing.assert_close(seen[:2, 3:], joints)
    command, goal = task.commands.current, task.next_goal(task.goal(), env.state)
    step = env.step(torch.zeros(8, 12))
    assert step.rewards.shape == (8, 2) and task.frame[:2].tolist() == [0, 121]
    away = (step.state.joint_pos - task.reference.at(goal[:, 1].long()).joint_pos).abs().mean(-1)
    off = (heading_velocity(step.state) - command).square().sum(-1)
    wanted = torch.stack((torch.exp(-off / 0.5), torch.exp(-away)), -1)
    torch.testing.assert_close(step.rewards, wanted)


def test_the_imagined_loss_is_of_both(env: TaskEnv[Follow]) -> None:
    env.reset()
    task, goal = env.task, env.task.goal()
    state = task.reference.state(goal[:, 1].long())
    states = RobotState(*(part.expand(3, *part.shape) for part in state))
    goals = goal.expand(3, *goal.shape).clone()
    goals[..., 3:] = heading_velocity(state)
    owed = task.imagined_loss(states, states, goals, goal[:, :0])
    assert owed.style.abs().max() == 0.0 and owed.task.max() < 1e-3
    bent = states._replace(joint_pos=states.joint_pos + 0.1)
    owed = task.imagined_loss(states, bent, goals, goal[:, :0])
    torch.testing.assert_close(owed.style, torch.full((8,), 0.2 * 12 * 0.1))


def test_it_is_learned_through_the_trainer_of_the_others(
    env: TaskEnv[Follow],
    skill: SkillModule,  # noqa: F811
) -> None:
    policy = HighLevelPolicy.for_task(skill, env.task)
    tiny = ReuseModelBasedConfig(
        model_hidden=(16,), model_batch=16, policy_batch=8, horizon=(4, 4), warmup_updates=2,
        warmup_steps=12, replay_steps=24, collect_steps=2, clone_steps=60, posture=0.0,
    )  # fmt: skip
    trainer = ModelBasedTrainer(env, policy, skill, tiny)
    trainer.warm_up()
    before = [weights.clone() for weights in policy.parameters()]
    figures = trainer.iteration(1.0)
    assert math.isfinite(figures["imagined_task"]) and figures["imagined_style"] > 0.0
    assert any(not torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
