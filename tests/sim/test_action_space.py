"""Action spaces: what an action of so many radians asks of the drives."""

import mujoco
import numpy as np
import pytest
import torch

from mocap_data.errors import InputError
from npmp import robots, tasks
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.sim import flat_scene
from npmp.sim.action_space import ACTION_SPACES, ActionSpace
from npmp.sim.randomization import PhysicsConfig

ROBOT = robots.load("anymal_b")
CPU = torch.device("cpu")


def _asked(space: ActionSpace, action: np.ndarray) -> tuple[mujoco.MjModel, mujoco.MjData]:
    """The robot in the home pose, in the air, at rest, with what an action asks for."""
    model = flat_scene(ROBOT, space.put_drives)
    data = mujoco.MjData(model)
    data.qpos[:] = ROBOT.home_qpos
    data.qpos[2] += 1.0
    data.ctrl[:] = space.controls(torch.tensor(ROBOT.home_joints + action, dtype=torch.float32))
    if model.na:
        data.act[:] = data.ctrl  # muscles that have followed
    mujoco.mj_forward(model, data)
    return model, data


@pytest.mark.parametrize("name", ACTION_SPACES)
def test_an_action_asks_every_space_for_the_torque_of_pd_control(name):
    action = 0.05 * np.arange(-6, 6)  # rad; 0.3 * 100 Nm/rad is within the limit of 40
    _, data = _asked(ActionSpace(name, ROBOT, CPU), action)
    # muscles pull by MuJoCo's curves of force over length, which are at their best in the middle of
    # a joint's range
    room = 3.0 + 0.35 * np.abs(100 * action) if name == "muscle" else 0.01
    assert (np.abs(data.qfrc_actuator[6:] - 100 * action) < room).all()


@pytest.mark.parametrize("name", ACTION_SPACES)
def test_no_space_exceeds_the_torque_limit(name):
    _, data = _asked(ActionSpace(name, ROBOT, CPU), np.full(12, 3.0))
    # 1.3: FVL, passive
    assert np.abs(data.qfrc_actuator[6:]).max() <= 40.0 * (1.3 if name == "muscle" else 1.0) + 1e-9


def test_controls_of_muscles_are_excitations_of_two_a_joint():
    space = ActionSpace("muscle", ROBOT, CPU)
    home = torch.tensor(ROBOT.home_joints, dtype=torch.float32)
    action = torch.zeros(12)
    action[0], action[1] = 0.1, -9.0
    controls = space.controls(home + action).view(12, 2)
    torch.testing.assert_close(controls[0], torch.tensor([0.05 + 0.1 * 100 / 40, 0.0]))
    torch.testing.assert_close(controls[1], torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(controls[2], torch.tensor([0.05, 0.05]))


def test_a_velocity_is_reached_and_held():
    space = ActionSpace("velocity", ROBOT, CPU)
    model, data = _asked(space, np.eye(12)[0] * 0.05)  # 0.5 rad/s of the first hip
    model.opt.gravity[:] = 0.0
    for _ in range(200):  # half a second
        mujoco.mj_step(model, data)
    assert data.qvel[6] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("name", ACTION_SPACES)
def test_environments_step_in_every_space_and_repeat(name):
    def run() -> torch.Tensor:
        env = tasks.make(
            "walk",
            robot="anymal_b",
            num_envs=2,
            seed=0,
            robots_config=RobotBatchConfig(actuator=name, hold="first_order"),
        )
        for _ in range(3):
            env.step(torch.full((2, 12), 0.02))
        return env.state.pack()

    first = run()
    assert torch.isfinite(first).all() and torch.equal(first, run())


def test_drawn_physics_needs_pd_drives():
    drawn = RobotBatchConfig(actuator="torque", physics=PhysicsConfig(friction=(0.5, 1.0)))
    with pytest.raises(InputError, match="randomization=none, or actuator=pd"):
        tasks.make("walk", robot="anymal_b", num_envs=1, robots_config=drawn)


def test_an_unknown_space_is_refused_by_name():
    with pytest.raises(
        ValueError, match="no action space 'jerk'; there are: pd, velocity, torque, muscle"
    ):
        ActionSpace("jerk", ROBOT, CPU)
