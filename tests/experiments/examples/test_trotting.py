"""The scripted trot: its kinematics by MuJoCo's, its time, where it puts its feet, and that it
walks up stairs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp.actuators.models import ActuatorContract, make
from npmp.core.settings import changed
from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.envs.policy import observe
from npmp.envs.state import RobotState
from npmp.evaluation.trial import run_trial
from npmp.experiments.examples.trotting import TrotConfig, TrotTeacher
from npmp.robots import Robot
from npmp.sim.terrain import TerrainLimits
from npmp.tasks.inputs import Clock
from npmp.tasks.walk import Walk, WalkConfig, WalkEnv
from tests.environments import walk_env

HELD = RobotBatchConfig(hold="first_order")  # as the modules of ANYmal are driven


def env_of(robot: Robot, n: int, *, held: RobotBatchConfig = HELD, **settings: Any) -> WalkEnv:
    return TaskEnv(Walk(robot, changed(WalkConfig(), **settings)), n, robots=held, num_threads=1)


def asked(env: WalkEnv, *command: float) -> Tensor:
    return torch.tensor(command).expand(1, env.num_envs, 3)


def script_of(env: WalkEnv, config: TrotConfig | None = None) -> TrotTeacher:
    actor = TrotTeacher(env)
    actor.config = config or actor.config
    return actor


def test_it_walks_as_asked_and_then_stands(robot: Robot) -> None:
    env = env_of(robot, 6)
    going, standing = (asked(env, *command) for command in ((0.6, 0.1, 0.3), (0.0, 0.0, 0.0)))
    commands = torch.cat((going.expand(120, -1, -1), standing))
    trial = run_trial(TrotTeacher(env), env, seconds=4.8, commands=commands)
    assert not trial.fell.any()
    assert (trial.metrics["achieved"][70:120].mean((0, 1)) - going[0, 0]).abs().max() < 0.15
    feet = trial.metrics["feet"]  # (T, n, F, 2) height and speed
    assert feet[70:120, ..., 0].amax(0).min() > 0.04  # each foot of each robot has risen
    # none rises any more
    assert feet[-20:, ..., 0].max() < 0.01 and trial.metrics["achieved"][-20:].abs().max() < 0.1


def test_it_climbs_stairs(robot: Robot) -> None:
    env = env_of(
        robot,
        16,
        terrain="stairs",
        terrain_starts="uphill",
        terrain_limits=TerrainLimits(stair_m=0.15),
        terrain_fields=4,
        may_touch="legs",
    )
    trial = run_trial(TrotTeacher(env), env, seconds=4.0, commands=asked(env, 0.5, 0.0, 0.0))
    way = trial.metrics["achieved"][..., 0].sum(0) * env.dt
    # up to 0.9 m before the first of steps of 0.3 m they began
    climbs = ~trial.fell.any(0) & (way > 1.0)
    assert climbs.sum() >= 14  # all of 100 in the suite, which lasts longer


def test_a_script_is_told_of_the_drives_that_there_are(robot: Robot, tmp_path: Path) -> None:
    told = TrotConfig(drives=(64.0, 3.8))
    with pytest.raises(InputError, match=r"drives=\[64.0, 3.8\] is of drives that a model moves"):
        TrotTeacher(env_of(robot, 1), told)
    law = [64.2, 3.81, 0.1]
    make(ActuatorContract("mlp", 400.0, ["a"], [], False, [1.0, 1.0], [0.0, 0.0], 1.0, law)).save(
        tmp_path
    )
    held = replace(HELD, actuator=str(tmp_path))
    with pytest.raises(InputError, match=r"the best constant ones of its log are \[64.2,3.81\]"):
        TrotTeacher(env_of(robot, 1, held=held))
    assert TrotTeacher(env_of(robot, 1, held=held), told).config.drives == (64.0, 3.8)


def test_legs_that_stand_carry_the_weight(robot: Robot) -> None:
    actor = script_of(walk_env(robot, 1), TrotConfig(support=1.0))
    level = RobotState.still(torch.zeros(1, 3), torch.eye(3)[None], actor.home[None])
    of_leg = torch.full((1, 4), 0.7)  # in the middle of the stance
    torque = actor._carrying(level, actor.home[None], of_leg, of_leg < 0.4)
    _, jacobian = actor.legs.at(actor.home[None])
    # a foot that is pushed up by f is held by -J' f: what the feet push is the weight, straight
    # down
    for leg, own in enumerate(actor.legs.joints):
        pushed = torch.linalg.solve(jacobian[0, leg].T, -torque[0, own])
        expected = torch.tensor([0.0, 0.0, actor.weight / 4.0])
        torch.testing.assert_close(pushed, expected, atol=1e-2, rtol=1e-4)


def test_legs_swing_by_the_clock(robot: Robot) -> None:
    env = env_of(robot, 2, clock_s=0.6)
    env.task.commands.fix(asked(env, 0.5, 0.0, 0.0))
    actor = TrotTeacher(env)
    c, memory, first = actor.config, actor.initial_state(2), torch.ones(2, dtype=torch.bool)
    clocks, swung = [], []
    for _ in range(60):
        clocks.append(env.task.part(Clock).phase[0].item())
        told = env.task.observe()[0, 3:5]
        angle = 2.0 * math.pi * clocks[-1]
        expected = torch.tensor([math.sin(angle), math.cos(angle)])
        torch.testing.assert_close(told, expected, atol=1e-5, rtol=0.0)
        output, memory = actor.step(observe(env, first), memory)
        first = torch.zeros_like(first)
        swung.append(memory.swung[0, 0].item())  # of the left fore leg
        env.step(output.action)
    # a period is 30 steps
    assert clocks[0] == 0.0 and clocks[12] == pytest.approx(0.4) and min(clocks[25:35]) < 0.05
    # but where one begins or ends to rounding
    pairs = [
        (did, (clock + c.swing) % 1.0)
        for did, clock in zip(swung, clocks)
        if 1e-4 < clock < 1.0 - 1e-4
    ]
    assert all(did == (share < c.swing) for did, share in pairs)
    assert 0.3 < sum(swung) / len(swung) < 0.5


def test_a_clock_begins_with_its_own_robots_episode(robot: Robot) -> None:
    env = walk_env(robot, 3, clock_s=0.5)
    for _ in range(5):
        env.step(torch.zeros(3, 12))
    env.reset(torch.tensor([False, True, False]))
    assert env.task.part(Clock).phase.tolist() == pytest.approx([0.2, 0.0, 0.2])
    kept = env.task.state_dict()
    env.task.reset_memory(torch.tensor([True, False, False]))
    env.step(torch.zeros(3, 12))
    assert env.task.part(Clock).phase.tolist() == pytest.approx([0.04, 0.04, 0.24])
    env.task.load_state_dict(kept)
    assert env.task.part(Clock).phase.tolist() == pytest.approx([0.2, 0.0, 0.2])


def test_other_drives_are_told_what_makes_the_same_torque(robot: Robot) -> None:
    env, first = walk_env(robot, 4), torch.ones(4, dtype=torch.bool)
    for _ in range(3):
        env.step(0.1 * torch.randn(4, 12))
    state, kp, kd = env.state, torch.tensor(robot.kp).float(), torch.tensor(robot.kd).float()
    plain, other = script_of(env), script_of(env, TrotConfig(drives=(60.0, 5.0)))
    for_ideal, for_other = (
        actor.step(observe(env, first), actor.initial_state(4))[0].action
        for actor in (plain, other)
    )
    ideal = kp * (for_ideal + plain.home - state.joint_pos) - kd * state.joint_vel_end
    soft = 60.0 * (for_other + plain.home - state.joint_pos) - 5.0 * state.joint_vel_end
    torch.testing.assert_close(ideal, soft, atol=1e-3, rtol=1e-4)
    assert state.joint_vel_end.abs().max() > 0.5 and (for_ideal - for_other).abs().max() > 0.05
