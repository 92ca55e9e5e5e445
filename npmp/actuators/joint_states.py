"""Logs of joints from ROS: bags, MCAP, and CSV files of PlotJuggler.

States are sensor_msgs/JointState on /joint_states. Commands are the positions of another topic, a
JointState such as /joint_commands, or what a control_msgs/JointTrajectoryControllerState follows.

A CSV has the columns __time and TOPIC/JOINT/position, /velocity, /effort.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mocap_data.errors import InputError, importing
from mocap_data.input_files import MAX_TEXT_BYTES, reading, regular_file

BAGS = (".bag", ".mcap", ".db3")
STATES = "joint_states"
COMMANDS = ("joint_commands", "joint_command")
JOINT_STATE = "sensor_msgs/msg/JointState"
CONTROLLER_STATE = "control_msgs/msg/JointTrajectoryControllerState"
# channels of a log, and their names in a JointState
FIELDS = {"position": "position", "velocity": "velocity", "torque": "effort"}
TIME = "__time"
# times of the header, 0 if unset, and of the recorder [ns]; joints; a row per channel, maybe empty
Message = tuple[int, int, tuple[str, ...], list[Sequence[float]]]


def is_joint_states(path: Path) -> bool:
    """Whether `read_joint_states` reads a file or folder."""
    if path.is_dir():
        return (path / "metadata.yaml").is_file()
    if path.suffix != ".csv":
        return path.suffix in BAGS
    with reading(path):
        return TIME in next(_rows(path), [])


def read_joint_states(path: Path, *, all_states: bool = False) -> dict[str, Any]:
    """The joints with states and, if there are commands, with these: time_s (T,) from the first
    sample; actuators (n,); position, velocity, torque, command (T, n) as far as recorded.

    Times are those of the messages' headers if all are set, else the recorder's. A sample has the
    command in force half a period after it, as it is sent after the reading. Samples that repeat a
    time are left out.

    Args:
      all_states: whether to keep states before the first command, and joints without one, with NaN
        as command; several topics of commands then count as none.

    Raises:
      InputError: for a file that is absent, damaged, or without such topics.
    """
    with reading(path):
        topics = _plotjuggler(path) if path.suffix == ".csv" else _bag(path)
    states = topics.pop(_chosen(path, topics, STATES))
    candidates = [name for name in topics if name.rpartition("/")[2] in COMMANDS]
    if all_states and len(candidates) != 1 and len(topics) != 1:
        topics = {}
    commands = topics[_chosen(path, topics, *COMMANDS)] if topics else states
    unset = any(message[0] <= 0 for message in (*states, *commands))
    time, sent = (np.array([message[unset] for message in of]) for of in (states, commands))
    commanded = [name for name in states[0][2] if name in commands[0][2]]
    joints = list(states[0][2]) if all_states else commanded
    columns = _columns(path, states, joints)
    keep = np.concatenate(([True], np.diff(np.maximum.accumulate(time)) > 0))
    if topics:
        targets = _columns(path, commands, commanded).get("position")
        if targets is None or not commanded:
            raise InputError(f"{path}: expected positions of the states' joints as commands")
        half = int(np.median(np.diff(time[keep]))) // 2 if keep.sum() > 1 else 0
        last = np.searchsorted(np.maximum.accumulate(sent), time + half, side="right") - 1
        sent_before = last >= 0
        columns["command"] = np.full((len(time), len(joints)), np.nan)
        places = np.array([joints.index(joint) for joint in commanded])
        columns["command"][np.flatnonzero(sent_before)[:, None], places] = targets[
            last[sent_before]
        ]
        if not all_states:
            keep &= sent_before
    if not keep.any():
        raise InputError(f"{path}: no state after a command")
    seconds = (time[keep] - time[keep][0]) / 1e9
    columns = {name: values[keep] for name, values in columns.items()}
    return {"time_s": seconds, "actuators": np.array(joints), **columns}


def _chosen(path: Path, topics: dict[str, list[Message]], *names: str) -> str:
    """The topic with one of these names, or the only one."""
    candidates = [name for name in topics if name.rpartition("/")[2] in names] or list(topics)
    if len(candidates) != 1:
        raise InputError(f"{path}: topics of joints: {[*topics]}; expected one /{names[0]}")
    return candidates[0]


def _columns(
    path: Path, messages: list[Message], joints: list[str]
) -> dict[str, NDArray[np.float64]]:
    """The channels (T, n) of a topic that its messages have."""
    names = messages[0][2]
    columns = {}
    for k, channel in enumerate(FIELDS):
        rows = [message[3][k] for message in messages]
        if any(map(len, rows)):
            if any(m[2] != names or len(row) != len(names) for m, row in zip(messages, rows)):
                raise InputError(f"{path}: {channel}: expected the same joints in every message")
            table = np.array(rows, dtype=np.float64)
            columns[channel] = table[:, [names.index(joint) for joint in joints]]
    return columns


def _bag(path: Path) -> dict[str, list[Message]]:
    with importing(f"{path}: a ROS bag needs rosbags: pip install 'npmp[ros]'"):
        from rosbags.highlevel import AnyReader
        from rosbags.typesys import Stores, get_typestore
    if not path.is_dir():
        regular_file(path)
    topics: dict[str, list[Message]] = {}
    with AnyReader([path], default_typestore=get_typestore(Stores.ROS2_JAZZY)) as bag:
        kinds = (JOINT_STATE, CONTROLLER_STATE)
        chosen = [connection for connection in bag.connections if connection.msgtype in kinds]
        for connection, received, data in bag.messages(connections=chosen):
            message: Any = bag.deserialize(data, connection.msgtype)
            if connection.msgtype == JOINT_STATE:
                names = message.name
                rows = [getattr(message, key) for key in FIELDS.values()]
            else:
                names = message.joint_names
                # `desired` until 2022
                followed = getattr(message, "reference", None) or message.desired
                rows = [followed.positions, (), ()]
            stamp = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
            topic = topics.setdefault(connection.topic, [])
            topic.append((stamp, received, tuple(names), rows))
    return topics


def _rows(path: Path) -> Iterator[list[str]]:
    regular_file(path, at_most=MAX_TEXT_BYTES)
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from filter(None, csv.reader(file, skipinitialspace=True))


def _plotjuggler(path: Path) -> dict[str, list[Message]]:
    """The topics of a CSV; cells are empty where a topic has no message at a time."""
    header, *cells = _rows(path)
    if not cells:
        raise InputError(f"{path}: no row below the header")
    ends = [TIME, *FIELDS.values()]
    used = [i for i, name in enumerate(header) if name.strip().rpartition("/")[2] in ends]
    table = np.full((len(cells), len(header)), np.nan)
    for k, line in enumerate(cells):
        if len(line) != len(header):
            raise InputError(
                f"{path}: row {k + 2} has {len(line)} columns, expected {len(header)} as in row 1"
            )
        table[k, used] = [float(line[i] or "nan") for i in used]
    seconds = table[:, header.index(TIME)]
    if not np.isfinite(seconds).all():
        row_number = int(np.isfinite(seconds).argmin()) + 2
        raise InputError(f"{path}: row {row_number}: {TIME}: expected a time [s]")
    time_ns: list[int] = np.round(1e9 * seconds).astype(int).tolist()
    # columns of the joints by topic and field
    places: dict[str, dict[str, dict[str, int]]] = {}
    for column, name in enumerate(header):
        topic, joint, key = ["", "", *name.strip().rsplit("/", 2)][-3:]
        if key in FIELDS.values():
            fields = places.setdefault(topic, {field: {} for field in FIELDS.values()})
            fields[key][joint] = column
    topics: dict[str, list[Message]] = {}
    for topic, fields in places.items():
        joints = tuple(dict.fromkeys(joint for of in fields.values() for joint in of))
        columns = [[of[joint] for joint in joints if joint in of] for of in fields.values()]
        for time, row in zip(time_ns, table):
            rows: list[Any] = [row[indices] for indices in columns]
            if np.isfinite(np.concatenate(rows)).all():
                topics.setdefault(topic, []).append((0, time, joints, rows))
    return topics
