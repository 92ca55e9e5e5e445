"""The script that gets up: mirrored as the robot is, and it does get up."""

from __future__ import annotations

import math

import pytest
import torch

from npmp import robots
from npmp.envs import TaskEnv
from npmp.envs.policy import PolicyOutput, observe
from npmp.envs.state import RobotState
from npmp.evaluation.trial import run_trial
from npmp.experiments.examples.righting import RightingConfig, RightingTeacher
from npmp.robots import Robot
from npmp.tasks.recover import Recover, RecoverConfig
from tests.refusals import refusal


@pytest.fixture(scope="module")
def env(robot: Robot) -> TaskEnv[Recover]:
    return TaskEnv(Recover(robot, RecoverConfig(drops=24)), 24, num_threads=1)


def posed(env: TaskEnv[Recover], roll: float, joints: torch.Tensor | None = None) -> None:
    """All robots rolled by an angle about their forward axis."""
    c, s = math.cos(roll), math.sin(roll)
    turn = torch.tensor([[1.0, 0.0, 0.0], [0.0, c, -s], [0.0, s, c]]).expand(env.num_envs, 3, 3)
    place = torch.tensor([0.0, 0.0, 0.3]).expand(env.num_envs, 3)
    env.robots.state = RobotState.still(
        place, turn, env.home.expand(env.num_envs, -1) if joints is None else joints
    )


def test_it_gets_up_from_anywhere(env: TaskEnv[Recover]) -> None:
    trial = run_trial(RightingTeacher(env), env, seconds=4.0)
    figures = env.task.figures(trial)
    assert figures["recovered"] >= 0.95 and figures["recovery_s"] < 2.0
    assert trial.metrics["torque"].abs().max() <= 40.0 + 1e-3


def test_left_and_right_are_mirror_images(env: TaskEnv[Recover], robot: Robot) -> None:
    actor, n = RightingTeacher(env), env.num_envs
    first = torch.ones(n, dtype=torch.bool)
    targets = []
    for roll in (2.0, -2.0):
        posed(env, roll)
        memory = actor.initial_state(n)
        for _ in range(60):  # until the targets are where they go
            told: PolicyOutput
            told, memory = actor.step(observe(env, first), memory)
            env.robots.state = env.robots.state._replace(setpoint=told.action + env.home)
        targets.append((told.action + env.home)[0].numpy())
    mirrored = robot.symmetries["left_right"].mirror_joints(targets[1])
    found = torch.tensor(targets[0]).double()
    torch.testing.assert_close(found, torch.tensor(mirrored), atol=1e-5, rtol=0.0)
    assert abs(targets[0][0]) > 0.05  # not the same on both sides anyway
    same_side = robot.symmetries["front_back"].mirror_joints(targets[0])
    found = torch.tensor(targets[0]).double()
    torch.testing.assert_close(found, torch.tensor(same_side), atol=1e-5, rtol=0.0)


def test_targets_move_no_faster_than_they_may_and_end_in_the_home_pose(
    env: TaskEnv[Recover],
) -> None:
    actor, n = RightingTeacher(env), env.num_envs
    actor.config = RightingConfig(speed=5.0, firm=0.0)
    posed(env, 0.0)
    memory, first = actor.initial_state(n), torch.ones(n, dtype=torch.bool)
    actions = []
    for _ in range(80):
        told, memory = actor.step(observe(env, first), memory)
        actions.append(told.action)
        after = told.action + env.home
        env.robots.state = env.robots.state._replace(setpoint=after, joint_pos=after)
    steps = torch.stack(actions).diff(dim=0).abs()
    assert steps.max() == pytest.approx(5.0 * env.dt, rel=1e-4)
    assert actions[10].abs().max() > 0.3 and actions[-1].abs().max() < 1e-5  # crouches, then stands


def test_on_its_back_it_does_not_dither_between_sides(env: TaskEnv[Recover]) -> None:
    actor, n = RightingTeacher(env), env.num_envs
    memory, first = actor.initial_state(n), torch.ones(n, dtype=torch.bool)
    sides = []
    for roll in (3.0, -3.0, 3.0, -2.0, -3.0):
        posed(env, roll)
        _, memory = actor.step(observe(env, first), memory)
        sides.append(memory.side[0].item())
    assert sides == [1.0, 1.0, 1.0, -1.0, -1.0]


def test_a_robot_with_other_legs_is_refused() -> None:
    op3 = TaskEnv(Recover(robots.load("op3"), RecoverConfig(drops=1)), 1, num_threads=1)
    refusal("no script for getting up", RightingTeacher, op3)
