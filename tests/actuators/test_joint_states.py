"""ROS logs: bags written by rosbags and CSV files hold the same arrays as ours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from rosbags import rosbag1, rosbag2
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from mocap_data.errors import InputError
from npmp.actuators import read_log
from npmp.actuators.actuator_log import read_stand_log
from npmp.actuators.joint_states import CONTROLLER_STATE, JOINT_STATE, read_joint_states
from tests.refusals import refusal

# hip before knee in ours, behind it in those of ROS
JOINTS = ("hip", "knee")
COUNT = 40
# from 2026 on, 100 Hz [ns]
STAMPS = 1_790_000_000_000_000_000 + 10_000_000 * np.arange(COUNT)
# the recorder's, which jitter
LATER = STAMPS + 1_000_000 + 300_000 * (np.arange(COUNT) % 3)
EMPTY = np.zeros(0)
Tables = Mapping[str, np.ndarray]
Write = Callable[[Path, Tables], Path]


@pytest.fixture
def tables() -> Tables:
    rng = np.random.default_rng(0)
    names = ("position", "velocity", "torque", "command")
    return {name: rng.normal(size=(COUNT, 2)) for name in names}


def joint_state(store: Any, stamp: int, *values: np.ndarray) -> Any:
    """A message with the joints in the other order, and a gripper that has no command."""
    seconds, rest = divmod(int(stamp), 10**9)
    header = {"seq": 0} if "seq" in store.types["std_msgs/msg/Header"].__annotations__ else {}
    time = store.types["builtin_interfaces/msg/Time"](seconds, rest)
    of = store.types["std_msgs/msg/Header"](**header, stamp=time, frame_id="")
    names = ["knee", "hip", "gripper"] if len(values) > 1 else ["knee", "hip"]
    rows = [np.append(row[::-1], [0.5] * (len(names) - 2)) for row in values]
    return store.types[JOINT_STATE](of, names, *rows, *[EMPTY] * (3 - len(rows)))


def messages(store: Any, tables: Tables) -> list[tuple[str, int, Any]]:
    """Topic, time of the recorder and message; a command is sent 2 ms after the reading."""
    out = []
    for t in range(COUNT):
        readings = [tables[name][t] for name in ("position", "velocity", "torque")]
        out.append(("/joint_states", LATER[t], joint_state(store, STAMPS[t], *readings)))
        command = joint_state(store, STAMPS[t] + 2_000_000, tables["command"][t])
        out.append(("/joint_commands", LATER[t] + 2_000_000, command))
    return out


def ros2(plugin: rosbag2.StoragePlugin, version: Literal[8, 9]) -> Write:
    def write(folder: Path, tables: Tables) -> Path:
        store = get_typestore(Stores.ROS2_JAZZY)
        with rosbag2.Writer(folder / "run", version=version, storage_plugin=plugin) as bag:
            topics = ("/joint_states", "/joint_commands")
            connections = {t: bag.add_connection(t, JOINT_STATE, typestore=store) for t in topics}
            for topic, time, message in messages(store, tables):
                data = store.serialize_cdr(message, JOINT_STATE)
                bag.write(connections[topic], int(time), data)
        return folder / "run"

    return write


def ros1(folder: Path, tables: Tables) -> Path:
    store = get_typestore(Stores.ROS1_NOETIC)
    with rosbag1.Writer(folder / "run.bag") as bag:
        topics = ("/joint_states", "/joint_commands")
        connections = {t: bag.add_connection(t, JOINT_STATE, typestore=store) for t in topics}
        for topic, time, message in messages(store, tables):
            bag.write(connections[topic], int(time), store.serialize_ros1(message, JOINT_STATE))
    return folder / "run.bag"


def plotjuggler(folder: Path, tables: Tables) -> Path:
    """Both topics in a table, a row per time at which either has a message."""
    states = [
        f"/joint_states/{joint}/{key}"
        for key in ("position", "velocity", "effort")
        for joint in JOINTS
    ]
    commands = [f"/joint_commands/{joint}/position" for joint in JOINTS]
    lines = [",".join(["__time", "/joint_states/header/stamp/sec", *states, *commands])]
    for t in range(COUNT):
        names = ("position", "velocity", "torque")
        values = [repr(v) for name in names for v in tables[name][t].tolist()]
        lines.append(",".join([f"{t / 100:.3f}", "1", *values, "", ""]))
        command = [repr(v) for v in tables["command"][t].tolist()]
        lines.append(",".join([f"{t / 100 + 0.002:.3f}", "1", *[""] * 6, *command]))
    (folder / "run.csv").write_text("\n".join(lines))
    return folder / "run.csv"


WRITERS: dict[str, Write] = {
    "sqlite": ros2(rosbag2.StoragePlugin.SQLITE3, 8),
    "mcap": ros2(rosbag2.StoragePlugin.MCAP, 9),
    "ros1": ros1,
    "plotjuggler": plotjuggler,
}


@pytest.mark.parametrize("form", WRITERS)
def test_every_form_holds_the_arrays_of_our_csv(form: str, tables: Tables, tmp_path: Path) -> None:
    own = ["time_s,actuator," + ",".join(tables)]
    for t in range(COUNT):
        for j, joint in enumerate(JOINTS):
            cells = [repr(float(values[t, j])) for values in tables.values()]
            own.append(",".join([f"{t / 100:.2f}", joint, *cells]))
    (tmp_path / "own.csv").write_text("\n".join(own))
    path = WRITERS[form](tmp_path, tables)

    expected = {trace.actuator: trace for trace in read_log(tmp_path / "own.csv").traces}
    log = read_log(path)
    assert log.rate_hz == pytest.approx(100.0) and set(log.actuators) == set(JOINTS)
    for trace in log.traces:
        assert trace.columns.keys() == expected[trace.actuator].columns.keys()
        for name, values in trace.columns.items():
            np.testing.assert_allclose(values, expected[trace.actuator].columns[name], atol=1e-6)

    stand = read_stand_log(path)
    order = [stand.joints.index(joint) for joint in JOINTS]
    [recording] = stand.recordings
    for name, values in tables.items():
        np.testing.assert_allclose(getattr(recording, name)[:, order], values, atol=1e-6)


def test_a_file_of_a_bag_is_read_without_its_folder(tables: Tables, tmp_path: Path) -> None:
    folder = WRITERS["mcap"](tmp_path, tables)
    [file] = folder.glob("*.mcap")
    np.testing.assert_array_equal(
        read_joint_states(file)["command"], read_joint_states(folder)["command"]
    )


def test_a_sample_has_the_command_in_force_half_a_period_later(tmp_path: Path) -> None:
    """Readings at 0, 10, ..., 30 ms; commands 1, 2, 3 at 4, 16 and 24 ms: that of 16 ms is later
    than half a period after 10 ms."""
    rows = [
        ("0.000", "0.1", ""),
        ("0.004", "", "1"),
        ("0.010", "0.2", ""),
        ("0.016", "", "2"),
        ("0.020", "0.3", ""),
        ("0.024", "", "3"),
        # again, and back in time
        ("0.020", "0.9", ""),
        ("0.030", "0.4", ""),
    ]
    header = "__time,/joint_states/hip/position,/arm/command/hip/position"
    path = tmp_path / "run.csv"
    path.write_text("\n".join([header, *map(",".join, rows)]))
    result = read_joint_states(path)
    np.testing.assert_allclose(result["time_s"], [0.0, 0.01, 0.02, 0.03], atol=1e-9)
    assert result["command"][:, 0].tolist() == [1.0, 1.0, 3.0, 3.0]
    assert result["position"][:, 0].tolist() == [0.1, 0.2, 0.3, 0.4]
    assert "torque" not in result


def test_all_states_are_read_without_a_command(tmp_path: Path) -> None:
    """Of two joints the hip is commanded from 10 ms on."""
    header = "__time,/joint_states/hip/position,/joint_states/knee/position,/c/hip/position,/note"
    rows = [
        ("0.000", "0.1", "1.1", "", "walk"),
        ("0.010", "0.2", "1.2", "", ""),
        ("0.011", "", "", "5", ""),
        ("0.020", "0.3", "1.3", "", "stand"),
    ]
    path = tmp_path / "run.csv"
    path.write_text("\n".join([header, *map(",".join, rows)]))
    result = read_joint_states(path, all_states=True)
    assert result["actuators"].tolist() == ["hip", "knee"]
    assert result["position"].tolist() == [[0.1, 1.1], [0.2, 1.2], [0.3, 1.3]]
    nan = np.nan
    np.testing.assert_array_equal(result["command"], [[nan, nan], [5.0, nan], [5.0, nan]])
    commanded = read_joint_states(path)
    assert commanded["actuators"].tolist() == ["hip"]
    assert commanded["position"].tolist() == [[0.2], [0.3]]


@pytest.mark.parametrize(
    ("rows", "part"),
    [([], "no row"), (["0.0,0.1", ",0.2"], "row 3"), (["0.0,0.1", "0.1"], "row 3")],
)
def test_a_damaged_csv_is_refused(rows: list[str], part: str, tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("\n".join(["__time,/joint_states/hip/position", *rows]))
    with pytest.raises(InputError, match=part):
        read_joint_states(path)


def test_a_controllers_state_is_the_command(tables: Tables, tmp_path: Path) -> None:
    store = get_typestore(Stores.ROS2_JAZZY)
    definition = (
        "std_msgs/Header header\nstring[] joint_names\n"
        "trajectory_msgs/JointTrajectoryPoint reference\n"
    )
    store.register(get_types_from_msg(definition, CONTROLLER_STATE))
    point = store.types["trajectory_msgs/msg/JointTrajectoryPoint"]
    duration = store.types["builtin_interfaces/msg/Duration"](0, 0)
    mcap = rosbag2.StoragePlugin.MCAP
    with rosbag2.Writer(tmp_path / "run", version=9, storage_plugin=mcap) as bag:
        states = bag.add_connection("/joint_states", JOINT_STATE, typestore=store)
        of_controller = bag.add_connection("/arm/state", CONTROLLER_STATE, typestore=store)
        for t in range(COUNT):
            row = tables["position"][t]
            message = joint_state(store, STAMPS[t], row, row)
            bag.write(states, int(LATER[t]), store.serialize_cdr(message, JOINT_STATE))
            followed = point(tables["command"][t], EMPTY, EMPTY, EMPTY, duration)
            state = store.types[CONTROLLER_STATE](message.header, list(JOINTS), followed)
            data = store.serialize_cdr(state, CONTROLLER_STATE)
            bag.write(of_controller, int(LATER[t]), data)
    result = read_joint_states(tmp_path / "run")
    order = [result["actuators"].tolist().index(joint) for joint in JOINTS]
    np.testing.assert_array_equal(result["command"][:, order], tables["command"])


def test_refusals(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("__time,/joint_states/hip/position\n" + "".join(f"{t},0\n" for t in range(20)))
    refusal("lacks command", read_stand_log, path)
    assert read_joint_states(path)["position"].shape == (20, 1)
    path.write_text("__time,/a/hip/position,/b/hip/position\n0,1,1\n")
    refusal("'/b'.; expected one /joint_states", read_joint_states, path)
    path.write_text("__time,/joint_states/hip/position\n0,x\n")
    refusal("run.csv: could not convert", read_joint_states, path)
    (tmp_path / "run.mcap").write_bytes(b"no bag")
    refusal("run.mcap", read_log, tmp_path / "run.mcap")


def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.bag").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "rosbags.highlevel", None)
    refusal(r"npmp\[ros\]", read_log, tmp_path / "run.bag")
