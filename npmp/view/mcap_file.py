"""Write a deployment's log as MCAP with the messages of ROS 2, for Foxglove, Rerun and rosbag."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.errors import InputError, importing
from mocap_data.files import atomic_path
from npmp.deploy.run_log import DeployLog
from npmp.robots import Robot
from npmp.view.log_replay import poses_of_log
from npmp.view.robot_shapes import body_poses, moving_bodies

TOPICS = {
    "/joint_states": "sensor_msgs/msg/JointState",
    "/joint_commands": "sensor_msgs/msg/JointState",
    "/tf": "tf2_msgs/msg/TFMessage",
}
NONE = np.zeros(0)


def check_mcap(out: Path) -> tuple[Any, Any]:
    """mcap's writer and ROS 2's messages. Raises InputError for another suffix, or without them."""
    if out.suffix != ".mcap":
        raise InputError(f"record={out}: expected a name in .mcap")
    with importing("an MCAP needs mcap and rosbags: pip install 'npmp[ros]'"):
        from mcap.writer import Writer
        from rosbags.typesys import Stores, get_typestore
    return Writer, get_typestore(Stores.ROS2_JAZZY)


def write_mcap(out: Path, log: DeployLog, robot: Robot) -> None:
    """Write a log atomically, with times of the controller's clock; targets are /joint_commands.
    Raises InputError as `check_mcap` and `poses_of_log`."""
    writer_class, store = check_mcap(out)
    messages = list(_messages(log, robot, store.types))
    with atomic_path(out) as path, path.open("wb") as file:
        writer = writer_class(file)
        writer.start(profile="ros2", library="npmp")
        channels = {}
        for topic, kind in TOPICS.items():
            text, _ = store.generate_msgdef(kind, ros_version=2)
            schema = writer.register_schema(kind, "ros2msg", text.encode())
            channels[topic] = writer.register_channel(topic, "cdr", schema)
        for topic, time_ns, message in messages:
            data = bytes(store.serialize_cdr(message, TOPICS[topic]))
            writer.add_message(channels[topic], time_ns, data, time_ns)
        writer.finish()


def _messages(log: DeployLog, robot: Robot, types: Any) -> Iterator[tuple[str, int, Any]]:
    """Topic, time [ns] and message; steps without readings or targets have none of these."""

    def make(kind: str, *fields: Any) -> Any:
        package, _, name = kind.partition("/")
        return types[f"{package}/msg/{name}"](*fields)

    model = robot.model(visuals=False)
    frames = [str(model.body(body).name) for body in moving_bodies(model)]
    names = list(log.joint_names)
    poses = body_poses(model, poses_of_log(robot, log))
    for t, pose in enumerate(poses):
        row = {name: values[t] for name, values in log.columns.items()}
        time_ns = round(1e9 * float(row["time_s"][0]))
        stamp = make("builtin_interfaces/Time", *divmod(time_ns, 10**9))
        world = make("std_msgs/Header", stamp, "world")
        if np.isfinite(row["target"]).all():
            command = make("sensor_msgs/JointState", world, names, row["target"], NONE, NONE)
            yield "/joint_commands", time_ns, command
        if not np.isfinite([*row["joint_pos"], *row["up"]]).all():
            continue
        readings = (row[name] for name in ("joint_pos", "joint_vel", "joint_torque"))
        yield "/joint_states", time_ns, make("sensor_msgs/JointState", world, names, *readings)
        transforms = []
        for frame, values in zip(frames, pose):
            place = make("geometry_msgs/Vector3", *map(float, values[:3]))
            turn = make("geometry_msgs/Quaternion", *map(float, np.roll(values[3:], -1)))
            transform = make("geometry_msgs/Transform", place, turn)
            transforms.append(make("geometry_msgs/TransformStamped", world, frame, transform))
        yield "/tf", time_ns, make("tf2_msgs/TFMessage", transforms)
