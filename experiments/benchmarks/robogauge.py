"""Run RoboGauge (github.com/wty-yy/RoboGauge) on a bundle of a Go2, with RoboGauge's own options:

    git clone https://github.com/wty-yy/RoboGauge
    pip install pygame imageio
    npmp deploy export policy=go2_walk robot=unitree_go2 out=bundle
    python -m npmp.experiments.benchmarks.robogauge RoboGauge bundle \\
        --task-name npmp.slope_fd --search-max-level --frictions 0.8 --headless

Each task `go2.TERRAIN` of RoboGauge has a copy `npmp.TERRAIN`, in which the bundle is the policy
and moves its targets as its contract says. Terrains, seeds, goals, noise, delay and metrics are
RoboGauge's, and so are its files, which are not changed. Commands are clipped to the policy's
ranges. Results are in RoboGauge/logs.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.errors import InputError, importing
from npmp.deploy import Bundle, BundleContract, Readings
from npmp.deploy.robot import FloatArray

RUN = Path("robogauge/scripts/run.py")
OTHER = "go2."
OURS = "npmp."
# RoboGauge's names of the commands, in the bundle's order
COMMANDS = ("lin_vel_x", "lin_vel_y", "ang_vel_yaw")


class BundleRobot:
    """A bundle with the methods of RoboGauge's robots."""

    def __init__(self, bundle: Bundle):
        self.contract = bundle.contract
        self.policy = bundle.policy()
        self.gains = (self.contract.per_joint("kp"), self.contract.per_joint("kd"))

    def reset(self) -> None:
        self.policy.reset()

    def build_observation(self, sim_data: Any, goal_data: Any) -> tuple[Readings, FloatArray]:
        """Readings and command of a control step."""
        joints = sim_data.proprio.joint
        names = [name.rpartition("/")[2] for name in joints.names]
        if names != self.contract.joint_names:
            raise InputError(f"joints {self.contract.joint_names}: RoboGauge's robot has {names}")
        imu = sim_data.proprio.imu
        w, x, y, z = imu.quat
        up = np.array([2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z])
        command = [getattr(goal_data.velocity_goal, name) for name in COMMANDS]
        readings = Readings(joints.pos, imu.ang_vel, imu.acc, up)
        return readings, np.clip(command, *self.contract.command_range)

    def get_action(self, obs: tuple[Readings, FloatArray]) -> tuple[Any, ...]:
        """Targets (nu,) [rad], kp, kd, and RoboGauge's sign of position control."""
        return self.policy.act(*obs), *self.gains, "P"


def simulator_of(base: type[Any], contract: BundleContract) -> type[Any]:
    """RoboGauge's simulator `base` with the contract's hold of targets, and with an IMU that
    averages over a control period."""

    class BundleSimulator(base):
        """`setup_action` begins to move the setpoint, `update_torque` moves it on."""

        # RoboGauge's setpoint (nu,) [rad]
        action: FloatArray | None

        def load(self, *args: Any, **kwargs: Any) -> None:
            super().load(*args, **kwargs)
            self.steps = round(1.0 / (contract.control_rate_hz * self.sim_dt))
            self.begin()

        def reset(self) -> None:
            super().reset()
            self.begin()

        def begin(self) -> None:
            self.target = contract.home_pose
            self.left = 0
            self.imu: deque[FloatArray] = deque(maxlen=self.steps)

        def setup_action(self, action: FloatArray, *drive: Any) -> None:
            before = self.target if self.action is None else self.action
            super().setup_action(before, *drive)
            self.target = action
            self.left = self.steps if contract.hold == "first_order" else 1

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

    return BundleSimulator


def add_tasks(bundle: Bundle) -> None:
    """Register the tasks `npmp.TERRAIN` with RoboGauge.

    Raises:
      InputError: for a policy that is not commanded by three velocities.
    """
    contract = bundle.contract
    inputs = [*contract.command_names, *contract.extra_inputs]
    if len(inputs) != len(COMMANDS):
        raise InputError(
            f"'{bundle.folder}': commands {', '.join(inputs)}: expected three velocities"
        )
    pipeline = importlib.import_module("robogauge.tasks.pipeline.base_pipeline")
    # it looks the classes up by name, in its own module
    pipeline.BundleRobot = lambda config: BundleRobot(bundle)  # type: ignore[attr-defined]
    simulator = simulator_of(pipeline.MujocoSimulator, contract)
    pipeline.BundleSimulator = simulator  # type: ignore[attr-defined]
    tasks = _tasks()
    control = {
        "model_path": str(bundle.folder),
        "default_dof_pos": contract.home_pose.tolist(),
        "control_dt": 1.0 / contract.control_rate_hz,
    }
    for name in [name for name in tasks.pipeline_classes if name.startswith(OTHER)]:
        robot = tasks.robot_cfgs[name]
        of_bundle = {
            "robot_class": "BundleRobot",
            "control": type("control", (robot.control,), control),
        }
        sim = type("Simulator", (tasks.sim_cfgs[name],), {"simulator_class": "BundleSimulator"})
        tasks.register(
            OURS + name.removeprefix(OTHER),
            tasks.pipeline_classes[name],
            sim,
            tasks.gauger_cfgs[name],
            type("Robot", (robot,), of_bundle),
        )


def restrict_commands(contract: BundleContract) -> None:
    """Replace the ranges of commands of all tasks by the bundle's."""
    tasks = _tasks()
    ranges = dict(zip(COMMANDS, contract.command_range.T.tolist(), strict=True))
    for name, robot in tasks.robot_cfgs.items():
        commands = type("commands", (robot.commands,), ranges)
        tasks.robot_cfgs[name] = type(robot.__name__, (robot,), {"commands": commands})


def _tasks() -> Any:
    """RoboGauge's registry, filled."""
    importlib.import_module("robogauge.tasks")
    return importlib.import_module("robogauge.utils.task_register").task_register


def main(arguments: Sequence[str] | None = None) -> None:
    """Run RoboGauge's script on a bundle.

    Raises:
      SystemExit: with code 2 for a folder without RoboGauge, a bundle that does not fit, or missing
        packages.
    """
    parser = ArgumentParser(
        description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("robogauge", type=Path, help="RoboGauge's folder")
    parser.add_argument("bundle", type=Path, help="of npmp deploy export")
    parser.add_argument(
        "--bundle-commands",
        action="store_true",
        help="the bundle's ranges of commands in all tasks, RoboGauge's own as well",
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
                "--stress-benchmark: starts processes without the bundle; run its terrains "
                "one by one by --search-max-level and --multi"
            )
        bundle = Bundle.read(args.bundle)
        sys.path.insert(0, str(script.parents[2]))
        with importing("RoboGauge needs more packages: pip install pygame imageio"):
            add_tasks(bundle)
        if args.bundle_commands:
            restrict_commands(bundle.contract)
    except InputError as error:
        parser.error(str(error))
    # processes that RoboGauge starts would not know the tasks
    sys.argv = [str(script), *options, "--num-processes", "1"]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
