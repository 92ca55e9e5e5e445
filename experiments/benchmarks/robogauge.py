"""Run RoboGauge (github.com/wty-yy/RoboGauge) on a policy of a Go2, with RoboGauge's own options:

    git clone https://github.com/wty-yy/RoboGauge
    pip install pygame imageio
    npmp deploy export policy=go2_walk robot=unitree_go2 out=bundle
    python -m npmp.experiments.benchmarks.robogauge RoboGauge bundle \\
        --task-name npmp.slope_fd --search-max-level --frictions 0.8 --headless
    python -m npmp.experiments.benchmarks.robogauge RoboGauge footsteps --module go2_ground \\
        --speed 0.25 --task-name npmp.stairs_fd --level 3 --multi --frictions 0.8 --headless

Each task `go2.TERRAIN` of RoboGauge has a copy `npmp.TERRAIN`, in which the bundle, or the planner
of footsteps, is the policy, with its own gains and hold of targets. Terrains, seeds, goals, noise,
delay and metrics are RoboGauge's, and so are its files, which are not changed. Commands are clipped
to the policy's ranges. Results are in RoboGauge/logs.

RoboGauge's Go2 stops its thighs at 1.57 rad; Unitree's go to 3.49 rad in front and 4.54 rad behind.
With --policy-joint-ranges the simulated robot has those of the policy's robot.

The planner reads an elevation map of the terrain, cells of 4 cm with noise of 1 cm, placed by the
true pose; the policies of RoboGauge are blind.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from mocap_data.errors import InputError, importing
from npmp import robots
from npmp.deploy import Bundle, Readings
from npmp.deploy.footstep_controller import FootstepController
from npmp.deploy.robot import FloatArray
from npmp.envs.ground import Ground
from npmp.envs.sensing import SensorConfig
from npmp.skills import footsteps, modules
from npmp.skills.elevation_map import CELL_M, ElevationMap
from npmp.skills.skill_module import SkillModule
from npmp.tasks.inputs import HeightMapErrors

RUN = Path("robogauge/scripts/run.py")
OTHER = "go2."
OURS = "npmp."
# RoboGauge's names of the commands, in the bundle's order
COMMANDS = ("lin_vel_x", "lin_vel_y", "ang_vel_yaw")
# standard deviations of RoboGauge's uniform noise: 0.01 rad of joints, 0.8 rad/s of the gyro
NOISE = SensorConfig(joint_noise=0.006, gyro_noise=(0.46, 0.46, 0.46))
# terrains: cells from the origin to an edge, a height above all [m], the group of their geoms
CELLS = 240
SKY_M = 20.0
TERRAIN_GROUP = 0


# a control step: readings, command, and the root's true position and quaternion
Step = tuple[Readings, FloatArray, FloatArray, FloatArray]


@dataclass(frozen=True)
class Drives:
    """How a policy moves joints."""

    joint_names: list[str]
    home_pose: FloatArray  # (nu,) [rad]
    kp: FloatArray  # (nu,) [Nm/rad]
    kd: FloatArray  # (nu,) [Nm s/rad]
    joint_range: FloatArray  # (2, nu) [rad]
    command_range: FloatArray  # (2, 3) [m/s, m/s, rad/s]
    control_rate_hz: float
    hold: str


class BundlePolicy:
    """A bundle's policy, which reads no pose."""

    def __init__(self, bundle: Bundle):
        self.policy = bundle.policy()

    def reset(self) -> None:
        self.policy.reset()

    def act(self, readings: Readings, command: FloatArray, *pose: FloatArray) -> FloatArray:
        return self.policy.act(readings, command)


Adapted = tuple[Drives, BundlePolicy | FootstepController]


class TerrainGround(Ground):
    """The terrain of RoboGauge's simulator as heights of cells around its origin."""

    def __init__(self) -> None:
        self.heights = torch.zeros(2 * CELLS + 1, 2 * CELLS + 1)

    def load(self, model: Any, data: Any) -> None:
        """Measure heights by rays from above onto geoms of `TERRAIN_GROUP`, (x, y) [m]."""
        ticks = np.arange(-CELLS, CELLS + 1) * CELL_M
        groups = np.zeros(mujoco.mjNGROUP, np.uint8)
        groups[TERRAIN_GROUP] = 1
        down = np.array([0.0, 0.0, -1.0])
        geom = np.zeros(1, np.int32)
        depth = np.empty((len(ticks), len(ticks)))
        for i, x in enumerate(ticks):
            for k, y in enumerate(ticks):
                depth[i, k] = mujoco.mj_ray(model, data, [x, y, SKY_M], down, groups, 1, -1, geom)
        # rays that hit nothing have -1
        heights = np.where(depth < 0.0, np.nan, SKY_M - depth)
        self.heights = torch.tensor(heights, dtype=torch.float32)

    def height_at(self, position: Tensor, robots: Tensor) -> Tensor:
        cell = (position / CELL_M).round().long().clamp(-CELLS, CELLS) + CELLS
        return self.heights[cell[..., 0], cell[..., 1]]


class AdaptedRobot:
    """A policy with the methods of RoboGauge's robots."""

    def __init__(self, drives: Drives, policy: BundlePolicy | FootstepController):
        self.drives = drives
        self.policy = policy

    def reset(self) -> None:
        self.policy.reset()

    def build_observation(self, sim_data: Any, goal_data: Any) -> Step:
        """What the policy reads in a control step."""
        joints = sim_data.proprio.joint
        names = [name.rpartition("/")[2] for name in joints.names]
        if names != self.drives.joint_names:
            raise InputError(f"joints {self.drives.joint_names}: RoboGauge's robot has {names}")
        imu = sim_data.proprio.imu
        w, x, y, z = imu.quat
        up = np.array([2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z])
        command = [getattr(goal_data.velocity_goal, name) for name in COMMANDS]
        readings = Readings(joints.pos, imu.ang_vel, imu.acc, up)
        base = sim_data.proprio.base
        return readings, np.clip(command, *self.drives.command_range), base.pos, base.quat

    def get_action(self, step: Step) -> tuple[Any, ...]:
        """Targets (nu,) [rad], kp, kd, and RoboGauge's sign of position control."""
        return self.policy.act(*step), self.drives.kp, self.drives.kd, "P"


def simulator_of(
    base: type[Any], drives: Drives, ground: TerrainGround | None, policy_ranges: bool
) -> type[Any]:
    """RoboGauge's simulator `base` with the policy's hold of targets, and with an IMU that averages
    over a control period. ground: loaded with the terrain. policy_ranges: joints have the drives'.
    """

    class AdaptedSimulator(base):
        """`setup_action` begins to move the setpoint, `update_torque` moves it on."""

        # RoboGauge's setpoint (nu,) [rad]
        action: FloatArray | None

        def load(self, *args: Any, **kwargs: Any) -> None:
            super().load(*args, **kwargs)
            self.steps = round(1.0 / (drives.control_rate_hz * self.sim_dt))
            if ground is not None:
                ground.load(self.mj_model, self.mj_data)
            if policy_ranges:
                set_joint_ranges(self.mj_model, drives)
                # of its metric
                self.load_dof_limits()
            self.begin()

        def reset(self) -> None:
            super().reset()
            self.begin()

        def begin(self) -> None:
            self.target = drives.home_pose
            self.left = 0
            self.imu: deque[FloatArray] = deque(maxlen=self.steps)

        def setup_action(self, action: FloatArray, *drive: Any) -> None:
            before = self.target if self.action is None else self.action
            super().setup_action(before, *drive)
            self.target = action
            self.left = self.steps if drives.hold == "first_order" else 1

        def update_torque(self) -> None:
            if self.action is not None and self.left:
                self.action = self.action + (self.target - self.action) / self.left
                self.left -= 1
            super().update_torque()

        def step(self) -> Any:
            sim_data = super().step()
            imu = sim_data.proprio.imu
            self.imu.append(np.concatenate((imu.ang_vel, imu.acc)))
            imu.ang_vel, imu.acc = np.split(np.mean(self.imu, axis=0), 2)
            return sim_data

    return AdaptedSimulator


def set_joint_ranges(model: mujoco.MjModel, drives: Drives) -> None:
    """Give the joints of a model, whose names end in those of the drives, the drives' ranges.

    Raises InputError for joints that the model lacks.
    """
    joints = {model.joint(i).name.rpartition("/")[2]: i for i in range(model.njnt)}
    lacks = [name for name in drives.joint_names if name not in joints]
    if lacks:
        raise InputError(f"no joint {', '.join(lacks)}: RoboGauge's robot has {', '.join(joints)}")
    for name, angles in zip(drives.joint_names, drives.joint_range.T, strict=True):
        model.jnt_range[joints[name]] = angles
        model.jnt_limited[joints[name]] = True


def bundle_of(folder: Path) -> tuple[Drives, BundlePolicy]:
    """The drives and the policy of a bundle.

    Raises:
      InputError: as `Bundle.read`, and for a policy that is not commanded by three velocities.
    """
    bundle = Bundle.read(folder)
    contract = bundle.contract
    inputs = [*contract.command_names, *contract.extra_inputs]
    if len(inputs) != len(COMMANDS):
        raise InputError(f"'{folder}': commands {', '.join(inputs)}: expected three velocities")
    drives = Drives(
        contract.joint_names,
        contract.home_pose,
        contract.per_joint("kp"),
        contract.per_joint("kd"),
        contract.joint_range,
        contract.command_range,
        contract.control_rate_hz,
        contract.hold,
    )
    return drives, BundlePolicy(bundle)


def planner_of(
    module: str, ground: TerrainGround, speed_mps: float
) -> tuple[Drives, FootstepController]:
    """The drives of a module, and the planner of footsteps over it, with commands of at most
    `speed_mps` ahead and back. Raises InputError for a module that does not exist or fit."""
    skill = SkillModule.load(modules.find(module))
    contract = skill.contract
    generator = torch.Generator().manual_seed(0)
    dt = 1.0 / contract.control_rate_hz
    terrain = ElevationMap(ground, dt, HeightMapErrors(), generator)
    robot = robots.load(contract.robot)
    planner = FootstepController(skill, robot, terrain, NOISE)
    command_range = np.array(footsteps.COMMANDS).T
    command_range[:, 0] = command_range[:, 0].clip(-speed_mps, speed_mps)
    drives = Drives(
        contract.joint_names,
        np.array(contract.home_pose),
        np.array(contract.kp),
        np.array(contract.kd),
        np.array((robot.joint_lower, robot.joint_upper)),
        command_range,
        contract.control_rate_hz,
        skill.hold,
    )
    return drives, planner


def add_tasks(
    name: str,
    drives: Drives,
    policy: BundlePolicy | FootstepController,
    ground: TerrainGround | None,
    policy_ranges: bool,
) -> None:
    """Register the tasks `npmp.TERRAIN` with RoboGauge. name: of the policy in its logs."""
    pipeline = importlib.import_module("robogauge.tasks.pipeline.base_pipeline")
    # it looks the classes up by name, in its own module
    pipeline.AdaptedRobot = lambda config: AdaptedRobot(drives, policy)  # type: ignore[attr-defined]
    simulator = simulator_of(pipeline.MujocoSimulator, drives, ground, policy_ranges)
    pipeline.AdaptedSimulator = simulator  # type: ignore[attr-defined]
    tasks = _tasks()
    control = {
        "model_path": name,
        "default_dof_pos": drives.home_pose.tolist(),
        "control_dt": 1.0 / drives.control_rate_hz,
    }
    for name in [name for name in tasks.pipeline_classes if name.startswith(OTHER)]:
        robot = tasks.robot_cfgs[name]
        adapted = {
            "robot_class": "AdaptedRobot",
            "control": type("control", (robot.control,), control),
        }
        sim = type("Simulator", (tasks.sim_cfgs[name],), {"simulator_class": "AdaptedSimulator"})
        tasks.register(
            OURS + name.removeprefix(OTHER),
            tasks.pipeline_classes[name],
            sim,
            tasks.gauger_cfgs[name],
            type("Robot", (robot,), adapted),
        )


def restrict_commands(drives: Drives) -> None:
    """Replace the ranges of commands of all tasks by the policy's."""
    tasks = _tasks()
    ranges = dict(zip(COMMANDS, drives.command_range.T.tolist(), strict=True))
    for name, robot in tasks.robot_cfgs.items():
        commands = type("commands", (robot.commands,), ranges)
        tasks.robot_cfgs[name] = type(robot.__name__, (robot,), {"commands": commands})


def _tasks() -> Any:
    """RoboGauge's registry, filled."""
    importlib.import_module("robogauge.tasks")
    return importlib.import_module("robogauge.utils.task_register").task_register


def main(arguments: Sequence[str] | None = None) -> None:
    """Run RoboGauge's script on a policy.

    Raises:
      SystemExit: with code 2 for a folder without RoboGauge, a policy that does not fit, or missing
        packages.
    """
    parser = ArgumentParser(
        description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("robogauge", type=Path, help="RoboGauge's folder")
    parser.add_argument("bundle", type=Path, help="of npmp deploy export, or footsteps")
    parser.add_argument("--module", default="go2_ground", help="of footsteps; default: go2_ground")
    parser.add_argument(
        "--speed", type=float, default=1.0, help="limit of footsteps, ahead and back [m/s]"
    )
    parser.add_argument(
        "--bundle-commands",
        action="store_true",
        help="the policy's ranges of commands in all tasks, RoboGauge's own as well",
    )
    parser.add_argument(
        "--policy-joint-ranges",
        action="store_true",
        help="joints of RoboGauge's robot have the ranges of the policy's robot",
    )
    args, options = parser.parse_known_args(arguments)
    script = args.robogauge.resolve() / RUN
    try:
        if not script.is_file():
            raise InputError(
                f"'{args.robogauge}': no {RUN}; git clone https://github.com/wty-yy/RoboGauge"
            )
        if "--stress-benchmark" in options:
            raise InputError(
                "--stress-benchmark: starts processes without the policy; run its terrains "
                "one by one by --search-max-level and --multi"
            )
        ground = TerrainGround() if str(args.bundle) == footsteps.FOOTSTEPS else None
        if ground is None:
            adapted: Adapted = bundle_of(args.bundle)
        else:
            adapted = planner_of(args.module, ground, args.speed)
        drives, policy = adapted
        sys.path.insert(0, str(script.parents[2]))
        with importing("RoboGauge needs more packages: pip install pygame imageio"):
            add_tasks(str(args.bundle), drives, policy, ground, args.policy_joint_ranges)
        if args.bundle_commands:
            restrict_commands(drives)
    except InputError as error:
        parser.error(str(error))
    # processes that RoboGauge starts would not know the tasks
    sys.argv = [str(script), *options, "--num-processes", "1"]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
