"""Evaluation of a policy: metrics by hand, pushes, and tasks that a policy fits."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from mocap_data.errors import InputError
from npmp.core import geometry
from npmp.core.settings import changed
from npmp.envs import Trial
from npmp.envs.policy import Observation
from npmp.evaluation import transitions
from npmp.evaluation.policy import (
    PolicyEvaluationConfig,
    Pushed,
    at_task,
    command_grid,
    evaluate_policy,
    evaluate_pushes,
)
from npmp.evaluation.trial import base_motion, effort, run_trial
from npmp.robots import Robot
from npmp.skills import modules
from npmp.skills.composition import Composition, over, wandering
from npmp.skills.high_level_policy import HighLevelPolicy, find_module, module_sha256
from npmp.skills.skill_module import SkillModule
from npmp.tasks import Dribble, DribbleConfig
from npmp.tasks.path import Path as PathTask
from npmp.tasks.path import PathConfig
from npmp.tasks.teachers.dribbling import DribbleScriptConfig, dribble_command
from npmp.tasks.velocity import settled
from npmp.tasks.walk import Walk, WalkConfig
from tests.environments import walk_env
from tests.refusals import refusal


def test_roll_pitch_height_and_speed_by_hand() -> None:
    """Turned left by 1, then nose down by 0.2, then rolled by 0.1 rad; moving at (0.3, 0.4, -0.7)
    in the world."""
    turns = [torch.tensor(turn) for turn in ([0.0, 0.0, 1.0], [0.0, 0.2, 0.0], [0.1, 0.0, 0.0])]
    rotation = torch.linalg.multi_dot([geometry.exp_so3(turn) for turn in turns])
    velocity = geometry.to_local(rotation, torch.tensor([0.3, 0.4, -0.7]))
    motion = base_motion(rotation, torch.tensor([9.0, 9.0, 0.5]), velocity)
    torch.testing.assert_close(motion, torch.tensor([0.1, 0.2, 0.5, 0.5]))


def test_effort_by_hand() -> None:
    """One robot, two joints, a fall after the third step: differences within an episode count."""
    torque = torch.tensor([[2.0, 0.0], [4.0, 0.0], [6.0, 0.0], [9.0, 0.0], [9.0, 0.0]]).unsqueeze(1)
    speed = torch.tensor([[1.0, 1.0], [1.0, 1.0], [-1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]).unsqueeze(1)
    base = torch.zeros(5, 1, 4)
    base[..., 3] = 0.5
    first = torch.tensor([True, False, False, True, False]).unsqueeze(1)
    seen = {"torque": torque, "joint_vel": speed, "base": base, "is_first": first}
    figures = effort(Trial(seen, torch.zeros(5, 1), first, torch.zeros(6, 9), 0.02))
    power = (2.0 + 4.0 + 0.0 + 9.0 + 9.0) / 5  # what is braked does not count
    assert figures["mechanical_power_w"] == pytest.approx(power)
    assert figures["energy_j_per_m"] == pytest.approx(power / 0.5)
    assert figures["torque_rms_nm"] == pytest.approx(math.sqrt((4 + 16 + 36 + 81 + 81) / 10))
    # of the third step
    assert figures["torque_rate_nm_s"] == pytest.approx((2.0 + 0.0) / 2 / 0.02)
    assert figures["joint_jerk_rad_s3"] == pytest.approx(math.sqrt((2.0**2 + 0.0) / 2) / 0.02**2)


def test_settled_by_hand() -> None:
    command = torch.zeros(8, 2, 3)
    command[4:, 1, 2] = 1.0
    assert settled(command, 3)[:, 0].tolist() == [False] * 3 + [True] * 5
    assert settled(command, 3)[:, 1].tolist() == [False] * 3 + [True] + [False] * 3 + [True]


def test_settled_metrics_exclude_changes_of_command(robot: Robot) -> None:
    """Off by 1 m/s for half a second after each of two changes in six seconds, exact otherwise."""
    command = torch.zeros(300, 1, 3)
    command[150:, :, 0] = 1.0
    achieved = command.clone()
    achieved[:25, :, 0], achieved[150:175, :, 0] = 1.0, 0.0
    none = torch.zeros(300, 1, dtype=torch.bool)
    seen = {"command": command, "achieved": achieved}
    figures = Walk(robot).figures(
        Trial(seen, torch.zeros(300, 1), none, torch.zeros(301, 19), 0.02)
    )
    assert figures["error_forward_mps"] == figures["velocity_error"] == pytest.approx(1.0 / 6)
    assert figures["error_forward_mps_1s"] == pytest.approx(1.0 / 6)  # half of two seconds of six
    assert figures["error_forward_mps_settled"] == figures["velocity_error_1s_settled"] == 0.0
    short = Trial(
        {k: v[:20] for k, v in seen.items()},
        torch.zeros(20, 1),
        none[:20],
        torch.zeros(21, 19),
        0.02,
    )
    assert "error_forward_mps_settled" not in Walk(robot).figures(short)


def random_latents(skill: SkillModule) -> Composition:
    return wandering(skill, torch.Generator().manual_seed(3))


def test_a_push_has_its_duration(robot: Robot, skill: SkillModule, walking: WalkConfig) -> None:
    """Between the third and the fifth step; where no robot is pushed nothing differs."""
    env = walk_env(robot, 2, config=walking)
    force = torch.zeros(5, 2, 2)
    force[3:, 0, 0] = 500.0
    calm = run_trial(random_latents(skill), env, seconds=0.16, seed=1)
    pushed = run_trial(Pushed(random_latents(skill), env, force), env, seconds=0.16, seed=1)
    differ = (pushed.metrics["achieved"] - calm.metrics["achieved"]).abs().amax(-1) > 1e-6
    assert differ[:, 0].tolist() == [False] * 3 + [True] * 5 and not differ[:, 1].any()
    # in the robot's heading frame, and it starts in any heading
    gained = (pushed.metrics["achieved"] - calm.metrics["achieved"])[4, 0, :2].norm()
    # mean over a step
    assert gained.item() == pytest.approx(1.5 * 500 * 0.02 / robot.model().body_mass.sum(), rel=0.6)
    rows = evaluate_pushes(random_latents(skill), env, (1.0, 2000.0), seconds=0.5)
    assert [row["force_n"] for row in rows] == [1.0, 2000.0]
    assert all(0.0 <= row["upright"] <= 1.0 for row in rows)


def test_an_evaluation_has_the_trials_of_its_config(
    robot: Robot,
    skill: SkillModule,
    policy: HighLevelPolicy,
    walking: WalkConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PHASE_S", "MAX_TURN_S"):
        monkeypatch.setattr(transitions, name, 0.6)
    actor, config = (
        over(policy, skill),
        PolicyEvaluationConfig(robots=2, seconds=0.2, grid=True, pushes=(5.0,), short_s=0.1),
    )
    evaluation = evaluate_policy(actor, lambda: Walk(robot, walking), config, num_threads=1)
    again = evaluate_policy(actor, lambda: Walk(robot, walking), config, num_threads=1)
    assert evaluation.figures == again.figures
    assert len(evaluation.figures["grid"]) == len(command_grid(walking.command.range))
    assert len(evaluation.figures["pushes"]) == 1
    assert evaluation.trial.fell.shape == (10, 2) and evaluation.figures["mechanical_power_w"] > 0.0
    plain = evaluate_policy(
        actor,
        lambda: Walk(robot, walking),
        PolicyEvaluationConfig(robots=2, seconds=0.2),
        num_threads=1,
    )
    assert set(evaluation.figures) - set(plain.figures) == {"grid", "pushes", "transitions"}
    path = changed(PathConfig(), command_range=walking.command.command_range)
    walked = evaluate_policy(
        actor,
        lambda: PathTask(robot, path),
        PolicyEvaluationConfig(robots=2, seconds=0.2),
        num_threads=1,
    )
    assert walked.figures["finished"] == 0.0 and "path_error_mean_m" in walked.figures
    with pytest.raises(InputError, match="path"):
        evaluate_policy(actor, lambda: PathTask(robot, path), config, num_threads=1)


def test_a_walking_policy_dribbles_with_the_script(policy: HighLevelPolicy, robot: Robot) -> None:
    """Its latent is that of walking at the velocity that the script makes of ball and target."""
    scripted = at_task(policy, robot, "dribble", DribbleConfig())
    scripted.check_task(Dribble)
    assert at_task(policy, robot, "path", PathConfig()) is policy
    senses = torch.randn(5, sum(width for _, width in policy.contract.observation))
    z = torch.randn(5, policy.contract.latent_dim)
    ball, target = torch.randn(2, 5, 2)
    within = DribbleScriptConfig(lowest=(-0.01, -0.2, -0.5), highest=(0.8, 0.2, 0.5))
    command_input = Observation(senses, dribble_command(ball, target, within), z_before=z)
    ball_input = command_input._replace(task=torch.cat((ball, target), -1))
    (walks, _), (dribbles, _) = (
        one.step(inputs, one.initial_state(5))
        for one, inputs in ((policy, command_input), (scripted, ball_input))
    )
    torch.testing.assert_close(dribbles.mean, walks.mean)


def test_a_policy_that_sees_the_ground_does_walking_where_it_is_seen(
    robot: Robot, skill: SkillModule
) -> None:
    sees = Walk(
        robot,
        changed(
            WalkConfig(), command_range=((0.0, 1.0), (-0.2, 0.2), (-0.5, 0.5)), sees_ground=True
        ),
    )
    policy = HighLevelPolicy.for_task(skill, sees)
    policy.check_task(Walk)  # whose settings are yet to come
    policy.check_task(sees)
    settled = Walk.resolve(WalkConfig(), None, policy.contract.input_settings)
    assert settled.sees_ground and settled.command == sees.config.command
    with pytest.raises(InputError, match=r"task.clock_s=0.5"):
        Walk.resolve(WalkConfig(clock_s=0.5), None, policy.contract.input_settings)
    with pytest.raises(InputError, match=r"task.sees_ground=True"):
        Walk.resolve(
            WalkConfig(sees_ground=True),
            None,
            HighLevelPolicy.for_task(skill, Walk(robot)).contract.input_settings,
        )
    with pytest.raises(InputError, match="outputs only commands"):
        policy.for_other_task(Dribble(robot))
    timed = HighLevelPolicy.for_task(skill, Walk(robot, WalkConfig(clock_s=0.5)))
    slower = timed.for_other_task(Walk(robot, WalkConfig(clock_s=0.6)))
    assert slower.contract == dataclasses.replace(
        timed.contract, clock_s=0.6, command_range=slower.contract.command_range
    )
    with pytest.raises(InputError, match=r"the policy's clock_s is 0.5, the task's 0.6"):
        timed.check_task(Walk(robot, WalkConfig(clock_s=0.6)))
    with pytest.raises(InputError, match="clock_sin, clock_cos; task 'walk' has forward_mps, "):
        timed.for_other_task(Walk(robot))
    path = PathTask.resolve(PathConfig(speed_mps=0.4), None, policy.contract.input_settings)
    trial = evaluate_policy(
        over(policy, skill),
        lambda: PathTask(robot, path),
        PolicyEvaluationConfig(robots=2, seconds=0.2),
    )
    assert 0.0 <= trial.figures["path_error_mean_m"] < 1.0
    message = r"ground_LF_FOOT_-0.10_-0.05_m, .* \(99 in all\); task 'walk' has forward_mps, "
    refusal(message, policy.check_task, Walk(robot))


def test_the_module_is_found_by_its_checksum(skill: SkillModule, tmp_path: Path) -> None:
    shipped = modules.find("anymal_b_dog")
    assert find_module(tmp_path, module_sha256(shipped)) == shipped
    (tmp_path / "run" / "policy").mkdir(parents=True)
    skill.save(tmp_path / "run" / "skills")
    module = find_module(tmp_path / "run" / "policy", module_sha256(tmp_path / "run" / "skills"))
    assert module == tmp_path / "run" / "skills"
    message = r"no skill module with sha256 000000000000... among the shipped ones"
    refusal(message, find_module, tmp_path / "run" / "policy", "0" * 64)


def test_torque_is_that_of_the_drives(robot: Robot) -> None:
    """A robot held at home by its PD drives: torque = P (setpoint - q) - D qd, to what a physics
    step changes."""
    env = walk_env(robot, 2)
    for _ in range(60):
        env.step(torch.full((2, env.num_actions), 0.02))
    stiffness = torch.tensor(env.robots.sim.model.actuator_gainprm[:, 0])
    expected = stiffness * (env.state.setpoint - env.state.joint_pos)
    assert expected.abs().max() > 5.0
    torch.testing.assert_close(env.robots.torque, expected.float(), atol=0.2, rtol=0.02)
