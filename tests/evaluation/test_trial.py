"""Trials: equal commands and starts for every policy, and all steps count."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from mocap_data.store import MotionSet
from npmp.envs import StepResult, TaskEnv, Trial
from npmp.envs.feet import Feet
from npmp.envs.state import pose_from_qpos
from npmp.evaluation.trial import run_trial
from npmp.robots import Robot
from npmp.skills.composition import Composition, over, wandering
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.skill_module import SkillModule
from npmp.tasks.commands import Commands
from npmp.tasks.walk import Walk, WalkConfig
from tests.environments import walk_env


def random_latents(skill: SkillModule, seed: int = 3) -> Composition:
    return wandering(skill, torch.Generator().manual_seed(seed))


def test_policies_have_equal_commands_and_trials_repeat(
    robot: Robot,
    walking: WalkConfig,
    skill: SkillModule,
    policy: HighLevelPolicy,
    start_poses: MotionSet,
) -> None:
    env, actor = walk_env(robot, 5, motions=start_poses, config=walking), over(policy, skill)
    ours = run_trial(actor, env, seconds=0.6, seed=3)
    random = run_trial(random_latents(skill), env, seconds=0.6, seed=3)
    again = run_trial(actor, env, seconds=0.6, seed=3)
    assert ours.metrics["command"].shape == (30, 5, 3) and ours.qpos.shape == (31, 19)
    assert torch.equal(ours.metrics["command"], random.metrics["command"])
    assert torch.equal(ours.qpos[0], random.qpos[0])
    assert not torch.equal(ours.metrics["achieved"], random.metrics["achieved"])
    assert torch.equal(ours.metrics["achieved"], again.metrics["achieved"])
    assert torch.equal(ours.qpos, again.qpos)
    other = run_trial(actor, env, seconds=0.6, seed=4)
    assert not torch.equal(ours.metrics["command"], other.metrics["command"])


def test_commands_follow_the_schedule_despite_falls(
    robot: Robot, walking: WalkConfig, skill: SkillModule
) -> None:
    env = walk_env(robot, 3, config=walking)
    trial = run_trial(random_latents(skill), env, seconds=0.6, seed=7)
    process = Commands(walking.command)
    process.bind(env)
    process.schedule(30, torch.Generator().manual_seed(7))
    expected = process.fixed
    assert expected is not None
    assert torch.equal(trial.metrics["command"], expected)
    difference = trial.metrics["achieved"] - trial.metrics["command"]
    torch.testing.assert_close(trial.error, torch.linalg.vector_norm(difference, dim=-1))
    env.reset()
    assert not torch.equal(env.task.commands.current, expected[-1])


def test_figures_by_hand(robot: Robot) -> None:
    command = torch.zeros(100, 2, 3)
    achieved = torch.zeros(100, 2, 3)
    achieved[:, 0] = torch.tensor([0.3, 0.0, 0.4])  # off by 0.5 all the time
    achieved[::2, 1, 0], achieved[1::2, 1, 0] = 0.2, -0.2  # sways by 0.2 about the command
    fell = torch.zeros(100, 2, dtype=torch.bool)
    fell[40, 0] = fell[80, 0] = True
    seen = {"command": command, "achieved": achieved}
    figures = Walk(robot).figures(
        Trial(seen, torch.zeros(100, 2), fell, torch.zeros(101, 19), 0.02)
    )
    assert figures["velocity_error"] == pytest.approx((0.5 + 0.2) / 2)
    assert figures["velocity_error_1s"] == pytest.approx((0.5 + 0.0) / 2, abs=1e-6)
    assert figures["error_forward_mps"] == pytest.approx((0.3 + 0.2) / 2)
    assert figures["error_yaw_rate_rps"] == pytest.approx(0.2)
    # two in four robot-seconds
    assert figures["falls"] == 2 and figures["falls_per_minute"] == pytest.approx(30.0)
    assert figures["survived"] == 0.5 and figures["seconds"] == 2.0 and figures["robots"] == 2


class Brief(Walk):
    """Walking that is over after three control steps of an episode."""

    def evaluate_step(self) -> StepResult:
        return super().evaluate_step()._replace(ended=self.env.age >= 2)


def test_episodes_end_by_task_and_not_by_time(
    robot: Robot, skill: SkillModule, walking: WalkConfig
) -> None:
    config = dataclasses.replace(walking, episode_s=0.06)
    lasting: TaskEnv[Walk] = TaskEnv(Walk(robot, config), 4, num_threads=1)
    run_trial(random_latents(skill), lasting, seconds=0.2)
    assert lasting.age.max() == 10  # of robots that have not fallen
    brief: TaskEnv[Walk] = TaskEnv(Brief(robot, config), 4, num_threads=1)
    run_trial(random_latents(skill), brief, seconds=0.2)
    assert brief.age.tolist() == [1] * 4  # three times three, and one


def test_a_trial_has_the_feet_of_every_robot(robot: Robot, skill: SkillModule) -> None:
    trial = run_trial(random_latents(skill), walk_env(robot, 3), seconds=0.1)
    feet, poses = trial.metrics["feet"], trial.qpos.numpy()
    assert feet.shape == (5, 3, 4, 2)
    np.testing.assert_allclose(feet[:, 0, :, 0], Feet(robot).heights(poses[1:]), atol=1e-5)
    place = Feet(robot)(*pose_from_qpos(trial.qpos))[..., 0, :2]
    expected = place.diff(dim=0).norm(dim=-1) / 0.02
    torch.testing.assert_close(feet[:, 0, :, 1], expected, atol=1e-3, rtol=1e-3)
