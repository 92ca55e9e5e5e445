"""Write a deployment's log as MCAP with the messages of ROS 2, for Foxglove, Rerun and rosbag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mocap_data.errors import InputError, importing
from mocap_data.files import atomic_path
from npmp.deploy.controller import ControlMode
from npmp.deploy.run_log import DeployLog
from npmp.robots import Robot
from npmp.view.log_replay import poses_of_log
from npmp.view.robot_shapes import body_poses, moving_bodies

# topics and their types
TOPICS = {
    "/joint_states": "sensor_msgs/msg/JointState",
    "/joint_commands": "sensor_msgs/msg/JointState",
    "/imu": "sensor_msgs/msg/Imu",
    "/tf": "tf2_msgs/msg/TFMessage",
    "/cmd_vel": "geometry_msgs/msg/TwistStamped",
    "/rosout": "rcl_interfaces/msg/Log",
}
WORLD = "world"
# commands of a walking policy, which become /cmd_vel
VELOCITIES = ("forward_mps", "lateral_mps", "yaw_rate_rps")
# where the covariance is unknown, as sensor_msgs/Imu defines it
UNKNOWN = np.zeros(9)
NONE = np.zeros(0)


def check_mcap(out: Path) -> None:
    """Raise InputError unless a file can be written here: its suffix, and the packages."""
    if out.suffix != ".mcap":
        raise InputError(f"record={out}: expected a name in .mcap")
    _libraries()


def _libraries() -> tuple[Any, Any]:
    """The class of mcap's writer, and the messages of ROS 2."""
    with importing("an MCAP needs mcap and rosbags: pip install 'npmp[ros]'"):
        from mcap.writer import Writer
        from rosbags.typesys import Stores, get_typestore
    return Writer, get_typestore(Stores.ROS2_JAZZY)


def write_mcap(out: Path, log: DeployLog, robot: Robot) -> None:
    """Write a log atomically, with times of the controller's clock.

    Targets are on /joint_commands. Steps without readings have no /joint_states, /imu and /tf; the
    commands of tasks without velocity commands are left out. /rosout has the changes of mode.

    Raises:
      InputError: if a package is absent, or for a log without readings.
    """
    writer_class, store = _libraries()
    messages = _Messages(log, robot, store)
    with atomic_path(out) as path, path.open("wb") as file:
        writer = writer_class(file)
        writer.start(profile="ros2", library="npmp")
        channels = {}
        for topic, kind in TOPICS.items():
            text, _ = store.generate_msgdef(kind, ros_version=2)
            schema = writer.register_schema(kind, "ros2msg", text.encode())
            channels[topic] = writer.register_channel(topic, "cdr", schema)
        for t, time_s in enumerate(log.columns["time_s"][:, 0]):
            time_ns = round(1e9 * time_s)
            for topic, message in messages.of_step(t, time_ns):
                data = bytes(store.serialize_cdr(message, TOPICS[topic]))
                writer.add_message(channels[topic], time_ns, data, time_ns)
        writer.finish()


class _Messages:
    """The messages of a log."""

    def __init__(self, log: DeployLog, robot: Robot, store: Any):
        model = robot.model(visuals=False)
        self.types = store.types
        self.log = log
        self.poses = body_poses(model, poses_of_log(robot, log))
        self.frames = [str(model.body(body).name) for body in moving_bodies(model)]
        self.has_velocities = log.command_names == VELOCITIES

    def of_step(self, t: int, time_ns: int) -> list[tuple[str, Any]]:
        """The messages of a control step by topic."""
        row = {name: values[t] for name, values in self.log.columns.items()}
        stamp = self._make("builtin_interfaces", "Time", *divmod(time_ns, 10**9))
        world = self._make("std_msgs", "Header", stamp, WORLD)
        root = self._make("std_msgs", "Header", stamp, self.frames[0])
        out: list[tuple[str, Any]] = []
        modes = self.log.columns["mode"][:, 0]
        if t == 0 or modes[t] != modes[t - 1]:
            mode = ControlMode(int(modes[t])).name.lower()
            info = self.types["rcl_interfaces/msg/Log"].INFO
            log = self._make("rcl_interfaces", "Log", stamp, info, "npmp", mode, "", "", 0)
            out.append(("/rosout", log))
        if np.isfinite(row["joint_pos"]).all():
            readings = (row["joint_pos"], row["joint_vel"], row["joint_torque"])
            out.append(("/joint_states", self._joints(world, *readings)))
        if np.isfinite(row["target"]).all():
            out.append(("/joint_commands", self._joints(world, row["target"], NONE, NONE)))
        if np.isfinite(row["up"]).all():
            turn = self._turn(self.poses[t, 0, 3:])
            gyro, accelerometer = (self._vector(row[name]) for name in ("gyro", "accelerometer"))
            values = (root, turn, UNKNOWN, gyro, UNKNOWN, accelerometer, UNKNOWN)
            out.append(("/imu", self._make("sensor_msgs", "Imu", *values)))
            transforms = [
                self._make(
                    "geometry_msgs",
                    "TransformStamped",
                    world,
                    frame,
                    self._make(
                        "geometry_msgs", "Transform", self._vector(pose[:3]), self._turn(pose[3:])
                    ),
                )
                for frame, pose in zip(self.frames, self.poses[t], strict=True)
            ]
            out.append(("/tf", self._make("tf2_msgs", "TFMessage", transforms)))
        if self.has_velocities and np.isfinite(row["command"]).all():
            forward, lateral, turning = row["command"]
            linear = self._vector(np.array([forward, lateral, 0.0]))
            angular = self._vector(np.array([0.0, 0.0, turning]))
            twist = self._make("geometry_msgs", "Twist", linear, angular)
            out.append(("/cmd_vel", self._make("geometry_msgs", "TwistStamped", root, twist)))
        return out

    def _make(self, package: str, kind: str, *fields: Any) -> Any:
        return self.types[f"{package}/msg/{kind}"](*fields)

    def _vector(self, xyz: NDArray[np.float64]) -> Any:
        return self._make("geometry_msgs", "Vector3", *xyz.tolist())

    def _turn(self, wxyz: NDArray[np.float64]) -> Any:
        w, x, y, z = wxyz.tolist()
        return self._make("geometry_msgs", "Quaternion", x, y, z, w)

    def _joints(self, header: Any, *values: NDArray[np.float64]) -> Any:
        names = list(self.log.joint_names)
        return self._make("sensor_msgs", "JointState", header, names, *values)
