"""The planner of footsteps as the controller of one robot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from npmp import robots
from npmp.deploy import Readings
from npmp.deploy.footstep_controller import FootstepController
from npmp.deploy.robot import FloatArray
from npmp.envs import RobotBatchConfig
from npmp.envs.camera import CameraConfig, DepthCamera
from npmp.envs.ground import Ground
from npmp.envs.policy import bind, observe
from npmp.envs.sensing import SensorConfig
from npmp.envs.state import GRAVITY
from npmp.skills import modules
from npmp.skills.camera_map import LOST_S, CameraMap
from npmp.skills.composition import over
from npmp.skills.elevation_map import ElevationMap
from npmp.skills.footsteps import FootstepPolicy
from npmp.skills.skill_module import SkillModule
from npmp.tasks.inputs import HeightMapErrors
from tests.environments import walk_env

COMMAND = (0.5, 0.1, 0.2)
EXACT = HeightMapErrors(ground_noise_m=0.0)


def controller_of(skill: SkillModule) -> FootstepController:
    terrain = ElevationMap(Ground(), 0.02, EXACT, torch.Generator())
    return FootstepController(skill, robots.load("unitree_go2"), terrain, SensorConfig())


@pytest.fixture(scope="module")
def trained() -> SkillModule:
    return SkillModule.load(modules.find("go2_ground"))


def test_it_acts_as_the_policy_of_a_task(trained: SkillModule) -> None:
    """From the same readings, over 100 steps of a walk, and again after a reset."""
    go2 = robots.load("unitree_go2")
    policy = FootstepPolicy(trained, go2)
    env = walk_env(
        go2,
        1,
        robots=RobotBatchConfig().like(trained),
        clock_s=policy.contract.clock_s,
        command_range=((-1.0, 1.0),) * 3,
        ground_noise_m=0.0,
    )
    env.schedule(10_000, None)
    env.task.commands.fix(torch.tensor([[COMMAND]]))
    composition = over(policy, trained)
    controller = controller_of(trained)
    bind(composition, env)
    for _ in range(2):
        env.reset()
        controller.reset()
        state = composition.initial_state(1)
        for t in range(100):
            with torch.no_grad():
                output, state = composition.step(observe(env, torch.tensor([t == 0])), state)
            robot = env.state
            readings = Readings(
                robot.joint_pos[0].numpy(),
                robot.root_ang[0].numpy(),
                robot.accel[0].numpy(),
                robot.root_rot[0, 2].numpy(),
            )
            quaternion = env.robots.sim.qpos[0, 3:7].numpy()
            target = controller.act(readings, COMMAND, robot.root_pos[0].numpy(), quaternion)
            expected = env.home.double().numpy() + output.action[0].double().numpy()
            assert target == pytest.approx(expected, abs=1e-3)
            env.step(output.action)


def test_commands_are_clipped(trained: SkillModule) -> None:
    """To 1 m/s ahead and 0.5 m/s back, and they move the legs."""
    upright = np.array([0.0, 0.0, 1.0])
    home = np.array(trained.contract.home_pose)
    readings = Readings(home, np.zeros(3), GRAVITY * upright, upright)

    def after(*command: float) -> FloatArray:
        controller = controller_of(trained)
        for _ in range(20):
            target = controller.act(readings, command, 0.3 * upright, [1.0, 0.0, 0.0, 0.0])
        return target

    ahead, back, stand = after(1.0, 0.0, 0.0), after(-0.5, 0.0, 0.0), after(0.0, 0.0, 0.0)
    assert after(9.0, 0.0, 0.0) == pytest.approx(ahead)
    assert after(-9.0, 0.0, 0.0) == pytest.approx(back)
    assert np.abs(ahead - back).max() > 0.05
    assert np.abs(ahead - stand).max() > 0.05


def test_readings_that_are_no_numbers(trained: SkillModule) -> None:
    """They raise, and the next step is as if they had not come."""
    upright = np.array([0.0, 0.0, 1.0])
    home = np.array(trained.contract.home_pose)
    readings = Readings(home, np.zeros(3), GRAVITY * upright, upright)
    pose = (0.3 * upright, [1.0, 0.0, 0.0, 0.0])
    one, other = controller_of(trained), controller_of(trained)
    with pytest.raises(ValueError, match="expected 3 finite numbers"):
        one.act(readings._replace(gyro=np.full(3, np.nan)), COMMAND, *pose)
    with pytest.raises(ValueError, match="expected 12 finite numbers"):
        one.act(readings._replace(joint_pos=home[:3]), COMMAND, *pose)
    target = one.act(readings, COMMAND, *pose)
    assert target == pytest.approx(other.act(readings, COMMAND, *pose))


@pytest.mark.parametrize("depth_m", [0.0, np.nan, np.inf])
def test_a_camera_without_readings_makes_it_blind(trained: SkillModule, depth_m: float) -> None:
    camera = DepthCamera(CameraConfig(delay_s=0.0))
    camera.allocate(1, 0.02, torch.device("cpu"))
    camera.past.fill_(depth_m)
    terrain = CameraMap(camera, 0.02)
    controller = FootstepController(trained, robots.load("unitree_go2"), terrain, SensorConfig())
    upright = np.array([0.0, 0.0, 1.0])
    home = np.array(trained.contract.home_pose)
    readings = Readings(home, np.zeros(3), GRAVITY * upright, upright)
    steps = round(LOST_S / 0.02)
    for k in range(steps + 5):
        target = controller.act(readings, COMMAND, 0.3 * upright, [1.0, 0.0, 0.0, 0.0])
        assert np.isfinite(target).all()
        assert not controller.blind or k > steps - 5
    assert controller.blind
