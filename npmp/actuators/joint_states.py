"""Logs of joints from ROS: bags, MCAP, and CSV files of `ros2 topic echo --csv` and PlotJuggler.

States are sensor_msgs/JointState on /joint_states. Commands are the positions of another topic, a
JointState such as /joint_commands, or what a control_msgs/JointTrajectoryControllerState follows.

A CSV of `ros2 topic echo --csv` has no header; a row is a message of one topic: sec, nanosec,
frame_id, names, positions, velocities, efforts. A folder holds several, each with its topic's name:
joint_states.csv, joint_commands.csv. PlotJuggler's has the columns __time and
TOPIC/JOINT/position, /velocity, /effort.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
# fields of a JointState, by the channels of a log
FIELDS = {"position": "position", "velocity": "velocity", "torque": "effort"}
PLOTJUGGLER_TIME = "__time"
# cells of a row of ros2 topic echo before the names: sec, nanosec, frame_id
HEADER_CELLS = 3


@dataclass
class Topic:
    """The messages of a topic: T samples of n joints."""

    names: tuple[str, ...]
    # of the messages' headers, 0 where unset [ns]
    stamps: list[int] = field(default_factory=list)
    # of the recorder [ns]
    received: list[int] = field(default_factory=list)
    # (n,) each, by the channels of a log
    rows: dict[str, list[NDArray[np.float64]]] = field(default_factory=dict)

    def add(self, names: Sequence[str], stamp: int, received: int, **values: Any) -> None:
        """Add a message; empty arrays are left out. Raises InputError for other joints."""
        if tuple(names) != self.names:
            raise InputError(f"joints {', '.join(names)}: expected {', '.join(self.names)}")
        self.stamps.append(stamp)
        self.received.append(received)
        for name, row in values.items():
            if len(row):
                self.rows.setdefault(name, []).append(np.asarray(row, dtype=np.float64))

    def table(self, name: str, where: str) -> NDArray[np.float64] | None:
        """A channel (T, n); None if the messages do not have it."""
        rows = self.rows.get(name)
        if rows is None:
            return None
        if {row.shape for row in rows} != {(len(self.names),)} or len(rows) != len(self.stamps):
            raise InputError(f"{where}: expected a {name} of every joint in every message")
        return np.array(rows)


def is_joint_states(path: Path) -> bool:
    """Whether `read_joint_states` reads a file or folder."""
    if path.is_dir():
        return any((path / name).is_file() for name in ("metadata.yaml", f"{STATES}.csv"))
    if path.suffix != ".csv":
        return path.suffix in BAGS
    regular_file(path, at_most=MAX_TEXT_BYTES)
    with reading(path), path.open(encoding="utf-8-sig", newline="") as file:
        cells = next(csv.reader(file), [])
    return PLOTJUGGLER_TIME in cells or "".join(cells[:2]).isdigit()


def read_joint_states(path: Path) -> dict[str, Any]:
    """The joints with states and, if the file has commands, with these: time_s (T,) from the first
    sample; actuators (n,); position, velocity, torque, command (T, n) as far as recorded.

    Times are those of the messages' headers if all have them, else the recorder's. A sample has the
    command in force half a period after it, as it is sent after the reading. Samples before the
    first command, and those that repeat a time, are left out.

    Raises:
      InputError: for a file that is absent, damaged, or without such topics.
    """
    topics = dict(_topics(path))
    states = _chosen(path, "states", topics, (STATES,))
    used = [topics.pop(states)]
    if topics:
        used.append(topics[_chosen(path, "commands", topics, COMMANDS)])
    stamped = all(min(topic.stamps) > 0 for topic in used)
    times = [np.array(topic.stamps if stamped else topic.received) for topic in used]
    time = times[0]

    joints = [name for name in used[0].names if name in used[-1].names]
    if not joints:
        raise InputError(f"{path}: no joint has states and commands")
    columns: dict[str, NDArray[Any]] = {}
    for name in FIELDS:
        if (table := used[0].table(name, f"{path}: {states}")) is not None:
            columns[name] = table[:, [used[0].names.index(joint) for joint in joints]]
    # times that rise
    keep = np.concatenate(([True], np.diff(np.maximum.accumulate(time)) > 0))
    if len(used) > 1:
        command = used[1].table("position", f"{path}: commands")
        if command is None:
            raise InputError(f"{path}: the commands have no positions; available: {states} only")
        half = int(np.median(np.diff(time[keep]))) // 2 if keep.sum() > 1 else 0
        order = np.argsort(times[1], kind="stable")
        last = np.searchsorted(times[1][order], time + half, side="right") - 1
        keep &= last >= 0
        targets = command[order[np.maximum(last, 0)]]
        columns["command"] = targets[:, [used[1].names.index(joint) for joint in joints]]
    if not keep.any():
        raise InputError(f"{path}: no sample of {states} after a command")
    time = time[keep]
    kept = {name: values[keep] for name, values in columns.items()}
    return {"time_s": (time - time[0]) / 1e9, "actuators": np.array(joints), **kept}


def _chosen(path: Path, label: str, topics: dict[str, Topic], names: Sequence[str]) -> str:
    """The topic with one of these names, or the only one."""
    named = [topic for topic in topics if topic.rpartition("/")[2] in names]
    candidates = named or list(topics)
    if len(candidates) != 1:
        available = ", ".join(topics) or "none"
        raise InputError(
            f"{path}: topics of joints: {available}; expected one for the {label}, /{names[0]}"
        )
    return candidates[0]


def _topics(path: Path) -> Iterator[tuple[str, Topic]]:
    """The topics of joints in a file or folder, each with at least one message."""
    with reading(path):
        if path.is_dir() and not (path / "metadata.yaml").exists():
            for file in sorted(path.glob("*.csv")):
                yield f"/{file.stem}", _echo(file)
        elif path.suffix == ".csv":
            with path.open(encoding="utf-8-sig", newline="") as text:
                names = next(csv.reader(text))
            if PLOTJUGGLER_TIME in names:
                yield from _plotjuggler(path).items()
            else:
                yield f"/{path.stem}", _echo(path)
        else:
            yield from _bag(path).items()


def _bag(path: Path) -> dict[str, Topic]:
    if not path.is_dir():
        regular_file(path)
    with importing(f"{path}: a ROS bag needs rosbags: pip install 'npmp[ros]'"):
        from rosbags.highlevel import AnyReader
        from rosbags.typesys import Stores, get_typestore
    topics: dict[str, Topic] = {}
    with AnyReader([path], default_typestore=get_typestore(Stores.ROS2_JAZZY)) as bag:
        kinds = (JOINT_STATE, CONTROLLER_STATE)
        chosen = [connection for connection in bag.connections if connection.msgtype in kinds]
        for connection, received, data in bag.messages(connections=chosen):
            message: Any = bag.deserialize(data, connection.msgtype)
            if connection.msgtype == JOINT_STATE:
                names = message.name
                values = {name: getattr(message, key) for name, key in FIELDS.items()}
            else:
                names = message.joint_names
                # renamed in 2022
                followed = getattr(message, "reference", None) or message.desired
                values = {"position": followed.positions}
            stamp = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
            topic = topics.setdefault(connection.topic, Topic(tuple(names)))
            topic.add(names, stamp, received, **values)
    return topics


def _echo(path: Path) -> Topic:
    """A CSV of `ros2 topic echo --csv`."""
    topic: Topic | None = None
    regular_file(path, at_most=MAX_TEXT_BYTES)
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        for cells in filter(None, rows):
            where = f"{path}, line {rows.line_num}"
            body = cells[HEADER_CELLS:]
            names = body[: next((i for i, cell in enumerate(body) if _is_number(cell)), 0)]
            values = {}
            rest = body[len(names) :]
            for name in FIELDS:
                # an empty array is one empty cell
                size = 1 if rest[:1] == [""] else len(names)
                row, rest = rest[:size], rest[size:]
                values[name] = [] if row == [""] else [float(cell) for cell in row]
            if not names or rest or len(row) != size:
                raise InputError(
                    f"{where}: expected sec, nanosec, frame_id, then name, position, velocity and "
                    "effort of every joint (ros2 topic echo --csv --full-length)"
                )
            stamp = int(cells[0]) * 10**9 + int(cells[1])
            topic = topic or Topic(tuple(names))
            topic.add(names, stamp, stamp, **values)
    if topic is None:
        raise InputError(f"{path}: no rows")
    return topic


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text == ""
    return True


def _plotjuggler(path: Path) -> dict[str, Topic]:
    """A CSV of PlotJuggler, with empty cells where a topic has no message at a time."""
    regular_file(path, at_most=MAX_TEXT_BYTES)
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        header = [name.strip() for name in next(rows)]
        cells = [row for row in rows if row]
    if any(len(row) != len(header) for row in cells):
        raise InputError(f"{path}: expected {len(header)} columns in every row")
    numbers = np.array([[float(cell or "nan") for cell in row] for row in cells])
    channels = {key: name for name, key in FIELDS.items()}
    # by topic and channel: the columns of the joints
    places: dict[str, dict[str, dict[str, int]]] = {}
    for column, name in enumerate(header):
        parts = name.rsplit("/", 2)
        if len(parts) == 3 and parts[2] in channels:
            places.setdefault(parts[0], {}).setdefault(channels[parts[2]], {})[parts[1]] = column
    topics: dict[str, Topic] = {}
    time = numbers[:, header.index(PLOTJUGGLER_TIME)]
    for name, of_topic in places.items():
        joints = tuple(of_topic.get("position", {}))
        complete = {k: [v[j] for j in joints] for k, v in of_topic.items() if set(v) == set(joints)}
        topic = Topic(joints)
        for row, seconds in zip(numbers, time):
            values = {key: row[columns] for key, columns in complete.items()}
            if joints and np.isfinite(np.concatenate([*values.values()])).all():
                topic.add(joints, 0, round(1e9 * seconds), **values)
        if topic.stamps:
            topics[name] = topic
    return topics
