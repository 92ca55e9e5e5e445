"""Getting up: where falls leave a robot, when it is up, and what that is worth."""

from __future__ import annotations

import math

import mujoco
import pytest
import torch

from npmp.envs import TaskEnv
from npmp.envs.state import RobotState
from npmp.envs.task import Trial
from npmp.robots import Robot
from npmp.sim import flat_scene
from npmp.sim.scene import let_bodies_collide
from npmp.tasks.recover import Recover, RecoverConfig, dropped, is_up

SMALL = RecoverConfig(drops=12)


def env_of(robot: Robot, n: int = 4, **settings: float) -> TaskEnv[Recover]:
    return TaskEnv(Recover(robot, RecoverConfig(**{"drops": 12, **settings})), n, num_threads=1)  # type: ignore[arg-type]


def test_drops_leave_robots_lying_anyhow_and_nearly_at_rest(robot: Robot) -> None:
    qpos, qvel, packed = dropped(robot, SMALL)
    assert torch.equal(qpos, dropped(robot, SMALL)[0]) and 10 <= len(qpos) <= 12
    state = RobotState.unpack(packed)
    assert state.root_rot[:, 2, 2].min() < -0.5 and state.root_rot[:, 2, 2].max() > 0.5
    assert (qpos[:, 2] < robot.home_qpos[2]).all() and (qpos[:, 2] > 0.05).all()
    assert not qpos[:, :2].any()
    assert qvel.abs().amax(-1).median() < 3.0
    away = (state.setpoint - torch.tensor(robot.home_joints, dtype=torch.float32)).abs()
    assert away.max() <= 1.0 + 1e-6 and away.max() > 0.8
    # velocities of the state are those of the simulation, in the root frame
    turned = torch.einsum("nij,nj->ni", state.root_rot, state.root_vel_end)
    torch.testing.assert_close(turned, qvel[:, :3].float(), rtol=1e-5, atol=1e-6)


def test_legs_do_not_pass_through_each_other(robot: Robot) -> None:
    model = flat_scene(robot, lambda spec: let_bodies_collide(spec, robot))
    data = mujoco.MjData(model)

    def own_contacts(left: float, right: float) -> int:
        data.qpos[:] = robot.home_qpos
        data.qpos[2] += 1.0  # above the floor
        data.joint("LF_HAA").qpos[0], data.joint("RF_HAA").qpos[0] = left, right
        mujoco.mj_forward(model, data)
        return int(data.ncon)

    assert own_contacts(0.0, 0.0) == 0
    assert own_contacts(-0.6, 0.6) > 0  # both fore legs swung inwards


def test_the_reward_is_how_upright_and_how_high(robot: Robot) -> None:
    env = env_of(robot, 3, standing_starts=1.0)
    env.reset()
    env.task.commands.target = torch.ones(3, 1)
    upside_down, low = torch.diag(torch.tensor([1.0, -1.0, -1.0])), 0.5 * float(robot.home_qpos[2])
    state = env.state
    rotation, position = state.root_rot.clone(), state.root_pos.clone()
    rotation[1], position[2, 2] = upside_down, low
    env.robots.state = state._replace(root_rot=rotation, root_pos=position)
    told = env.task.evaluate_step()
    # upright and high; on its back: all of the first half is lost; at half the height: half of the
    # second
    expected = torch.tensor([1.0, 0.5, 0.75])
    torch.testing.assert_close(told.rewards[:, 0], expected, atol=1e-5, rtol=0.0)
    assert told.metrics["up"].tolist() == [True, False, False] and not told.failed.any()


def test_a_robot_that_falls_again_has_not_recovered(robot: Robot) -> None:
    task, dt = Recover(robot, SMALL), 0.02
    up = torch.zeros(300, 4, dtype=torch.bool)  # six seconds
    up[50:, 0] = True  # after a second, for good
    up[200:, 1] = True  # too late
    up[50:100, 2] = True  # not for good
    up[:, 3] = True  # landed on its feet, and does not count
    trial = Trial(
        {"up": up},
        torch.zeros(300, 4),
        torch.zeros(300, 4, dtype=torch.bool),
        torch.zeros(301, 19),
        dt,
    )
    figures = task.figures(trial)
    assert figures["recovered"] == pytest.approx(1 / 3)
    assert figures["not_recovered"] == pytest.approx(2 / 3)
    assert figures["recovery_s"] == pytest.approx(4.0)  # the median of 1, 4 and 6


def test_the_imagined_loss_wants_the_robot_upright_high_and_still(robot: Robot) -> None:
    env = env_of(robot, 1, standing_starts=1.0)
    env.reset()
    goal = torch.ones(2, 1, 1)

    def loss(tilt: float = 0.0, height: float = 1.0, joints: float = 0.0) -> float:
        c, s = math.cos(tilt), math.sin(tilt)
        turned = torch.tensor([[1.0, 0.0, 0.0], [0.0, c, -s], [0.0, s, c]])
        state = RobotState.still(
            torch.tensor([0.0, 0.0, height * float(robot.home_qpos[2])]), turned, env.home + joints
        )
        states = RobotState.unpack(state.pack().expand(2, 1, -1))
        return env.task.imagined_loss(states, states, goal, torch.zeros(1, 0)).task.item()

    assert loss() == pytest.approx(0.0, abs=1e-6)
    assert loss(tilt=math.pi) == pytest.approx(2.0, abs=1e-5)
    assert loss(height=0.5) == pytest.approx(0.5, abs=1e-5)
    assert loss(joints=0.1) == pytest.approx(0.03, abs=1e-5)
    # on its back joints are free
    assert loss(tilt=math.pi, joints=0.1) == pytest.approx(2.0, abs=1e-5)


def test_trials_are_on_drops_that_no_training_has_seen_and_none_stands(robot: Robot) -> None:
    env = env_of(robot, 8, standing_starts=1.0)
    env.reset()
    assert is_up(env.state, 1.0, float(robot.home_qpos[2]), SMALL).all()
    trained = env.task.parts.starts.fallen[0]
    env.schedule(10, torch.Generator())
    env.reset()
    assert not torch.isin(env.state.root_pos[:, 2].double(), trained[:, 2].float().double()).any()
    env.schedule(0, None)
    assert env.task.parts.starts.fallen[0] is trained
