"""The adapter to RoboGauge, driven by a stand-in of its interface: a robot of two joints at rest,
whose gyro shows the count of physics steps, four of them per control step."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from npmp.deploy import Bundle
from npmp.deploy.contract import Command
from npmp.deploy.robot import FloatArray
from npmp.experiments.benchmarks import robogauge
from tests.deploy.standins import HOME, write_toy

VELOCITIES = [
    Command("forward_mps", "m/s", [-0.5, 1.0]),
    Command("lateral_mps", "m/s", [-0.25, 0.25]),
    Command("yaw_rate_rps", "rad/s", [-1.0, 1.0]),
]
SCRIPT = """
import sys
from robogauge.utils.task_register import task_register
task_register.run(sys.argv[1:])
"""
ROBOT = """
<mujoco>
  <compiler angle="radian"/>
  <worldbody>
    <body>
      <joint name="go2/hip" range="-0.1 0.1"/>
      <geom size="0.1"/>
      <body>
        <joint name="go2/knee" range="-0.1 0.1"/>
        <geom size="0.1"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


class Simulator:
    """Records the setpoints of its drives."""

    def __init__(self, config: Any):
        self.config = config
        self.action: FloatArray | None = None
        self.setpoints: list[FloatArray] = []

    def load(self) -> None:
        self.mj_model = mujoco.MjModel.from_xml_string(ROBOT)
        self.load_dof_limits()
        self.sim_dt = 0.005
        self.count = 0

    def load_dof_limits(self) -> None:
        self.dof_limits = self.mj_model.jnt_range.copy()

    def reset(self) -> None:
        self.action = None
        self.count = 0

    def setup_action(self, action: FloatArray, kp: FloatArray, kd: FloatArray, kind: str) -> None:
        self.action = action
        self.drive = (kp.tolist(), kd.tolist(), kind)

    def update_torque(self) -> None:
        if self.action is not None:
            self.setpoints.append(self.action)

    def step(self) -> Any:
        self.update_torque()
        self.count += 1
        gyro = np.array([self.count, 0.0, 0.0])
        imu = SimpleNamespace(quat=[1.0, 0.0, 0.0, 0.0], ang_vel=gyro, acc=np.array([0, 0, 9.81]))
        joint = SimpleNamespace(pos=HOME.copy(), names=["go2/hip", "go2/knee"])
        base = SimpleNamespace(
            pos=np.array([1.15, 0.0, 0.445]), quat=np.array([1.0, 0.0, 0.0, 0.0])
        )
        return SimpleNamespace(proprio=SimpleNamespace(imu=imu, joint=joint, base=base))


class SimulatorConfig:
    simulator_class = "MujocoSimulator"


class RobotConfig:
    robot_class = "Go2"

    class control:
        default_dof_pos = (0.0, 0.0)

    class commands:
        lin_vel_x = (-2.0, 2.0)


class Register:
    """The registry, and a pipeline of RoboGauge's steps: two control steps at 2 m/s ahead, the
    second target one physics step late, then a reset and one more."""

    def __init__(self, names: dict[str, Any]):
        self.names = names
        self.pipeline_classes: dict[str, Any] = {}
        self.sim_cfgs: dict[str, Any] = {}
        self.gauger_cfgs: dict[str, Any] = {}
        self.robot_cfgs: dict[str, Any] = {}
        self.register("go2.flat", None, SimulatorConfig, None, RobotConfig)
        self.register("go2_moe.flat", None, SimulatorConfig, None, RobotConfig)

    def register(self, name: str, pipeline: Any, sim: Any, gauge: Any, robot: Any) -> None:
        self.pipeline_classes[name] = pipeline
        self.sim_cfgs[name] = sim
        self.gauger_cfgs[name] = gauge
        self.robot_cfgs[name] = robot

    def run(self, arguments: list[str]) -> None:
        self.arguments = arguments
        name = arguments[1]
        self.sim = self.names[self.sim_cfgs[name].simulator_class](self.sim_cfgs[name]())
        robot = self.names[self.robot_cfgs[name].robot_class](self.robot_cfgs[name]())
        velocity = SimpleNamespace(lin_vel_x=2.0, lin_vel_y=0.0, ang_vel_yaw=0.0)
        goal = SimpleNamespace(velocity_goal=velocity)
        self.sim.load()
        for delay in (0, 1, 0):
            if delay == 0:
                self.sim.reset()
                robot.reset()
                data = self.sim.step()
            action = robot.get_action(robot.build_observation(data, goal))
            for count in range(4):
                if count == delay:
                    self.sim.setup_action(*action)
                data = self.sim.step()


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Register:
    """RoboGauge in tmp_path."""
    pipeline = ModuleType("base_pipeline")
    register = Register(vars(pipeline))
    tasks = ModuleType("task_register")
    vars(pipeline)["MujocoSimulator"] = Simulator
    vars(tasks)["task_register"] = register
    modules = {
        "robogauge.tasks": ModuleType("tasks"),
        "robogauge.tasks.pipeline.base_pipeline": pipeline,
        "robogauge.utils.task_register": tasks,
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "argv", ["robogauge"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    script = tmp_path / robogauge.RUN
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT)
    return register


def test_a_bundle_drives_the_robot(register: Register, tmp_path: Path) -> None:
    """The policy answers (1 g + 1 m/s, gyro + 1 m/s) in the first step, half of it, the count of
    steps and the same more in the second. 2 m/s are clipped to 1. The first gyro is 1, the second
    the mean of 2 to 5. A setpoint moves by a quarter of the way per physics step; the second target
    comes a step late. After the reset the policy begins again."""
    write_toy(tmp_path / "bundle", commands=VELOCITIES)
    robogauge.main([str(tmp_path), str(tmp_path / "bundle"), "--task-name", "npmp.flat"])
    first = np.array([2.0, 2.0])
    second = 0.5 * first + [2.0, 3.5 + 1.0] + 1.0
    moved = [first * k / 4 for k in (1, 2, 3, 4)]
    late = [first + (second - first) * k / 4 for k in (0, 1, 2, 3)]
    # the drives hold the last setpoint in the step between reset and target
    assert np.array(register.sim.setpoints) - HOME == pytest.approx(
        np.array([*moved, *late, *moved]), abs=1e-6
    )
    assert register.sim.drive == ([10.0, 10.0], [1.0, 1.0], "P")
    assert register.arguments == ["--task-name", "npmp.flat", "--num-processes", "1"]
    assert register.robot_cfgs["npmp.flat"].control.default_dof_pos == HOME.tolist()
    assert register.robot_cfgs["npmp.flat"].commands.lin_vel_x == (-2.0, 2.0)
    assert "npmp_moe.flat" not in register.robot_cfgs


def test_held_targets(register: Register, tmp_path: Path) -> None:
    """A zero-order hold jumps to the target."""
    write_toy(tmp_path / "bundle", commands=VELOCITIES, hold="zero_order")
    robogauge.main([str(tmp_path), str(tmp_path / "bundle"), "--task-name", "npmp.flat"])
    assert register.sim.setpoints[0] == pytest.approx(HOME + 2.0)
    assert register.sim.setpoints[3] == pytest.approx(HOME + 2.0)


def test_the_bundles_commands_for_all_policies(register: Register, tmp_path: Path) -> None:
    write_toy(tmp_path / "bundle", commands=VELOCITIES)
    bundle = str(tmp_path / "bundle")
    robogauge.main([str(tmp_path), bundle, "--bundle-commands", "--task-name", "npmp.flat"])
    for name in ("npmp.flat", "go2.flat", "go2_moe.flat"):
        assert register.robot_cfgs[name].commands.lin_vel_x == [-0.5, 1.0]
        assert register.robot_cfgs[name].commands.ang_vel_yaw == [-1.0, 1.0]


def test_the_ranges_of_the_policys_joints(register: Register, tmp_path: Path) -> None:
    write_toy(tmp_path / "bundle", commands=VELOCITIES)
    run = [str(tmp_path), str(tmp_path / "bundle"), "--task-name", "npmp.flat"]
    robogauge.main(run)
    assert register.sim.mj_model.jnt_range.tolist() == [[-0.1, 0.1], [-0.1, 0.1]]
    robogauge.main([*run, "--policy-joint-ranges"])
    expected = Bundle.read(tmp_path / "bundle").contract.joint_range.T
    assert register.sim.mj_model.jnt_range == pytest.approx(expected)
    assert register.sim.dof_limits == pytest.approx(expected)


SCENE = """
<mujoco>
  <worldbody>
    <geom type="plane" size="0 0 0.05"/>
    <geom type="box" size="0.5 5 0.1" pos="1.5 0 0.1"/>
    <geom type="sphere" size="0.2" pos="0 0 1" group="3"/>
  </worldbody>
</mujoco>
"""


def test_heights_of_the_terrain() -> None:
    """A box of 0.2 m from 1 to 2 m, and floor under the robot's geoms."""
    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    ground = robogauge.TerrainGround()
    ground.load(model, data)
    position = torch.tensor([[[0.0, 0.0], [0.97, 0.0], [1.03, 2.0], [1.97, -3.0], [2.03, 0.0]]])
    heights = ground.height_at(position, torch.tensor([0]))
    expected = torch.tensor([[0.0, 0.0, 0.2, 0.2, 0.0]])
    torch.testing.assert_close(heights, expected, atol=1e-5, rtol=0.0)


def test_the_planner_of_footsteps() -> None:
    """At the limits of its commands and of --speed."""
    drives, policy = robogauge.planner_of("go2_ground", robogauge.TerrainGround(), 0.7)
    assert drives.command_range.tolist() == [[-0.5, -0.3, -1.0], [0.7, 0.3, 1.0]]
    assert drives.joint_names == policy.contract.joint_names
    assert drives.hold == "first_order"
    # the thigh in front
    assert drives.joint_range[:, 1] == pytest.approx([-1.5708, 3.4907], abs=1e-4)


@pytest.mark.parametrize(
    ("folder", "options", "about"),
    [
        (".", [], "commands forward_mps"),
        (".", ["--stress-benchmark"], "--stress-benchmark"),
        ("bundle", [], "run.py"),
    ],
)
def test_refusals(
    folder: str,
    options: list[str],
    about: str,
    register: Register,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A bundle commanded by one velocity; processes; another folder."""
    write_toy(tmp_path / "bundle")
    with pytest.raises(SystemExit, match="2"):
        robogauge.main([str(tmp_path / folder), str(tmp_path / "bundle"), *options])
    assert about in capsys.readouterr().err
