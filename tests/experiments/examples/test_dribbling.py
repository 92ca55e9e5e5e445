"""The planning dribbler: its model by hand, and that it brings the ball nearer than it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.envs.policy import observe
from npmp.evaluation.trial import run_trial
from npmp.experiments.examples.dribbling import DribblePlanner, PlannerConfig, Scene, plan, predict
from npmp.robots import Robot
from npmp.tasks.dribble import Dribble, DribbleEnv
from npmp.tasks.teachers.dribbling import DribbleScriptConfig

CONFIG = PlannerConfig(
    lag_s=(0.1, 0.1), gain=(1.0, 1.0, 1.0), legs_m=(0.4, 0.25), leg_m=0.1, kick=2.0, rolling=1.0
)
RADIUS = torch.tensor([0.1])


def scene(ball: complex, *, speed: float = 0.0, ball_speed: float = 0.0) -> Scene:
    """A robot at the origin that faces along x."""
    parts = (0.0j, 1.0 + 0.0j, complex(speed), 0.0, ball, complex(ball_speed))
    return Scene(*(torch.tensor([part]) for part in parts))


def env_of(robot: Robot, n: int) -> DribbleEnv:
    held = RobotBatchConfig(hold="first_order")
    return TaskEnv(Dribble(robot), n, robots=held, num_threads=1)


def test_the_body_follows_commands_with_a_lag_and_a_free_ball_slows_down() -> None:
    after = predict(
        scene(5.0 + 0.0j, ball_speed=1.0), torch.tensor([[1.0, 0.0, 0.0]]), RADIUS, CONFIG
    )
    # 1 - exp(-0.1 / 0.1)
    assert after.velocity.item() == pytest.approx(0.632, abs=1e-3)
    # two steps of 0.05 s at 0.95 and 0.9 m/s
    assert after.ball_velocity.item() == pytest.approx(0.9)
    assert after.ball.item() == pytest.approx(5.0925)


def test_a_leg_kicks_the_ball_ahead_of_it() -> None:
    """The ball overlaps the left fore leg by 1 cm; the robot walks at 0.5 m/s."""
    start = scene(0.59 + 0.25j, speed=0.5)
    after = predict(start, torch.tensor([[0.5, 0.0, 0.0]]), RADIUS, CONFIG)
    # kicked to twice 0.5 m/s, then slowed by 1 m/s^2 for 0.1 s
    assert after.ball_velocity.item() == pytest.approx(0.9, abs=1e-5)
    assert after.ball.item().imag == pytest.approx(0.25)


def test_the_plan_leads_through_the_ball_within_the_limits() -> None:
    script = DribbleScriptConfig()
    config = replace(CONFIG, kick=1.4)
    generator = torch.Generator().manual_seed(0)
    target = torch.tensor([3.0 + 0.25j])
    commands = torch.zeros(1, config.horizon, 3)
    for _ in range(5):
        start = scene(0.65 + 0.25j)
        commands = plan(start, target, RADIUS, commands, script, config, generator)
    lowest, highest = torch.tensor((script.lowest, script.highest))
    assert (commands >= lowest).all() and (commands <= highest).all()
    assert last_ball(start, commands, config).real > 1.5


def last_ball(start: Scene, commands: Tensor, config: PlannerConfig) -> Tensor:
    """Where the ball is at the end of a plan."""
    for command in commands[0]:
        start = predict(start, command[None], RADIUS, config)
    return start.ball


@torch.no_grad()
def test_it_plans_again_after_a_fifth_of_a_second(robot: Robot) -> None:
    env = env_of(robot, 2)
    planner = DribblePlanner(env, PlannerConfig(samples=4, horizon=5))
    state = planner.initial_state(2)
    plans = []
    for step in range(12):
        is_first = torch.full((2,), step == 0)
        output, state = planner.step(observe(env, is_first), state)
        env.step(output.action)
        plans.append(state.plan)
    assert all(torch.equal(plans[0], later) for later in plans[1:10])
    assert not torch.equal(plans[9], plans[10])


@pytest.mark.slow
def test_it_brings_the_ball_to_its_target(robot: Robot) -> None:
    env = env_of(robot, 12)
    trial = run_trial(DribblePlanner(env), env, seconds=10.0)
    assert trial.fell.any(0).sum() <= 1
    # 0.3 m for 48 robots
    assert env.task.figures(trial)["ball_target_before_jump_median_m"] < 0.8
