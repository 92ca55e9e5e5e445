"""The trial: everyone gets the same commands and starts, and every step counts."""

from __future__ import annotations

import pytest
import torch

from mocap_data.store import MotionSet
from npmp.envs.walking import WalkingConfig, WalkingEnv
from npmp.reuse import HighLevelPolicy, WalkingTrial, evaluate_walking
from npmp.robots import Robot
from npmp.skill import SkillModule


def test_both_sides_face_the_same_commands_and_the_trial_repeats(
    robot: Robot, walking: WalkingConfig, skill: SkillModule, policy: HighLevelPolicy, motions: MotionSet
) -> None:
    env = WalkingEnv(robot, 5, motions=motions, config=walking)
    ours = evaluate_walking(policy, skill, env, seconds=0.6, seed=3)
    random = evaluate_walking(None, skill, env, seconds=0.6, seed=3)
    again = evaluate_walking(policy, skill, env, seconds=0.6, seed=3)
    assert ours.command.shape == (30, 5, 3) and ours.qpos.shape == (31, 19)
    assert torch.equal(ours.command, random.command) and torch.equal(ours.qpos[0], random.qpos[0])
    assert not torch.equal(ours.achieved, random.achieved)
    assert torch.equal(ours.achieved, again.achieved) and torch.equal(ours.qpos, again.qpos)
    other = evaluate_walking(policy, skill, env, seconds=0.6, seed=4)
    assert not torch.equal(ours.command, other.command)


def test_summary_by_hand() -> None:
    command = torch.zeros(100, 2, 3)
    achieved = torch.zeros(100, 2, 3)
    achieved[:, 0] = torch.tensor([0.3, 0.0, 0.4])  # off by 0.5 all the time
    achieved[::2, 1, 0], achieved[1::2, 1, 0] = 0.2, -0.2  # sways by 0.2 about the command
    fell = torch.zeros(100, 2, dtype=torch.bool)
    fell[40, 0] = fell[80, 0] = True
    figures = WalkingTrial(command, achieved, fell, torch.zeros(101, 19), 0.02).summary()
    assert figures["velocity_error"] == pytest.approx((0.5 + 0.2) / 2)
    assert figures["velocity_error_1s"] == pytest.approx((0.5 + 0.0) / 2, abs=1e-6)
    assert figures["error_forward_mps"] == pytest.approx((0.3 + 0.2) / 2)
    assert figures["error_yaw_rate_rps"] == pytest.approx(0.2)
    assert figures["falls"] == 2 and figures["falls_per_minute"] == pytest.approx(30.0)  # two in four robot-seconds
    assert figures["survived"] == 0.5 and figures["seconds"] == 2.0 and figures["robots"] == 2


def test_given_commands_are_used(robot: Robot, walking: WalkingConfig, skill: SkillModule) -> None:
    env = WalkingEnv(robot, 3, config=walking)
    commands = torch.rand(10, 3, 3)
    trial = evaluate_walking(None, skill, env, commands=commands)
    assert torch.equal(trial.command, commands)
    torch.testing.assert_close(trial.error, torch.linalg.vector_norm(trial.achieved - commands, dim=-1))
