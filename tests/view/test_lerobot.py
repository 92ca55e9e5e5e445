"""Datasets of LeRobot: its layout, its statistics, and frames equal to those of the file."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import h5py
import numpy as np
import pytest

from mocap_data import ReferenceMotion, write_motions
from mocap_data.errors import InputError
from mocap_data.files import new_hdf5
from mocap_data.ground_profile import GroundProfile
from mocap_data.store import MotionSet
from npmp.core import hub
from npmp.robots import Robot
from npmp.view import lerobot
from npmp.view.lerobot import export_lerobot
from tests.mocap_data.test_export import smooth_motion
from tests.package_index import outside, pip_install
from tests.refusals import refusal

pytest.importorskip("pyarrow")
from pyarrow import parquet

DATA = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
# LeRobot and the packages that its reader imports and npmp's extras do not install
READER = (
    "lerobot==0.4.4",
    "accelerate>=1.10,<2",
    "av>=15,<16",
    "datasets>=4,<5",
    "dill>=0.3,<0.4.2",
    "multiprocess<0.70.20",
    "pandas>=2,<3",
    "pytz",
    "xxhash",
)


def motion_set(robot: Robot, **rates: float) -> MotionSet:
    """Motions of 9 frames by name and rate; the first is of the validation split."""
    motions = []
    for i, (name, rate) in enumerate(rates.items()):
        motion = smooth_motion(robot, 9 + i, rate)
        split = "train" if i else "validation"
        about = {"source": f"{name}.bvh", "licence": "CC BY-NC 4.0", "split": split}
        motions.append(dataclasses.replace(motion, name=name, **about))
    return MotionSet(
        robot.name, robot.model_sha256, robot.joint_names, robot.body_names, tuple(motions)
    )


@pytest.fixture
def motions(robot: Robot, tmp_path: Path) -> MotionSet:
    written = motion_set(robot, trot=50.0, walk=50.0)
    write_motions(tmp_path / "motions.h5", written)
    return written


def frames_of(motion: ReferenceMotion) -> tuple[np.ndarray, np.ndarray]:
    """States and actions of all frames but the last."""
    state = np.concatenate([motion.qpos, motion.qvel], axis=1)[:-1]
    return state, motion.qpos[1:, 7:]


def test_layout(motions: MotionSet, robot: Robot, tmp_path: Path) -> None:
    """The training split is first: walk has 9 steps, trot 8."""
    out = tmp_path / "out"
    rows = export_lerobot(tmp_path / "motions.h5", out)
    assert [(row["tasks"], row["length"]) for row in rows] == [(["walk"], 9), (["trot"], 8)]
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    meta = {"meta/info.json", "meta/stats.json", "meta/tasks.parquet", EPISODES}
    assert files == {"README.md", DATA, *meta}

    info = json.loads((out / "meta/info.json").read_text())
    expected = {"codebase_version": "v3.0", "robot_type": "anymal_b", "fps": 50}
    expected |= {"total_episodes": 2, "total_frames": 17, "total_tasks": 2}
    assert expected.items() <= info.items()
    assert info["splits"] == {"train": "0:1", "validation": "1:2"}
    assert info["data_path"].format(chunk_index=0, file_index=0) == DATA
    state = info["features"]["observation.state"]
    action = info["features"]["action"]
    joint = robot.joint_names[0]
    assert (state["dtype"], state["shape"], action["shape"]) == ("float32", [37], [12])
    assert (state["names"][7], state["units"][7]) == (f"{joint}.pos", "rad")
    assert (state["names"][19], state["units"][19]) == ("root_vx", "m/s")
    assert (state["names"][25], state["units"][25]) == (f"{joint}.vel", "rad/s")

    table = parquet.read_table(out / DATA)
    assert table.column_names == list(info["features"])
    assert table["index"].to_pylist() == list(range(17))
    assert table["frame_index"].to_pylist() == [*range(9), *range(8)]
    assert table["episode_index"].to_pylist() == table["task_index"].to_pylist()
    assert table["timestamp"].to_pylist()[8:11] == pytest.approx([0.16, 0.0, 0.02])
    pairs = zip(*(frames_of(motions[name]) for name in ("walk", "trot")))
    for key, parts in zip(("observation.state", "action"), pairs):
        np.testing.assert_allclose(table[key].to_pylist(), np.concatenate(parts), atol=1e-6)
    assert parquet.read_metadata(out / DATA).num_row_groups == 2

    episodes = parquet.read_table(out / EPISODES).to_pylist()
    ranges = [(row["dataset_from_index"], row["dataset_to_index"]) for row in episodes]
    assert ranges == [(0, 9), (9, 17)]
    assert [row["source"] for row in episodes] == ["walk.bvh", "trot.bvh"]
    tasks = parquet.read_table(out / "meta/tasks.parquet")
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]


def test_the_card_names_licence_and_sources(motions: MotionSet, tmp_path: Path) -> None:
    export_lerobot(tmp_path / "motions.h5", tmp_path / "out")
    metadata, text = hub.read_card(tmp_path / "out")
    assert metadata["license"] == "cc-by-nc-4.0" and "LeRobot" in metadata["tags"]
    assert b"| walk.bvh | CC BY-NC 4.0 | 1 |" in text
    assert b"| action | 0 | LF_HAA.pos | rad |" in text


def test_the_card_of_rollouts_names_every_licence(
    motions: MotionSet, robot: Robot, tmp_path: Path
) -> None:
    write_rollouts(tmp_path / "rollouts.h5", robot, motions["trot"])
    with h5py.File(tmp_path / "rollouts.h5", "r+") as file:
        file["trot"].attrs["licence"] = "Apache-2.0 (generated); CC BY-NC 4.0"
    export_lerobot(tmp_path / "rollouts.h5", tmp_path / "out")
    metadata, _ = hub.read_card(tmp_path / "out")
    assert metadata["license"] == "other"
    assert metadata["license_name"] == "apache-2.0-cc-by-nc-4.0"


def test_statistics() -> None:
    """Of 0, 1, ..., 4: mean 2, variance 2, first decile 0.4; a constant has no deviation."""
    stats = lerobot.statistics(np.stack([np.arange(5.0), np.full(5, 7.0)], axis=1))
    assert stats["mean"] == [2.0, 7.0] and stats["count"] == [5]
    assert stats["min"] == [0.0, 7.0] and stats["max"] == [4.0, 7.0]
    assert stats["std"] == pytest.approx([np.sqrt(2.0), 0.0])
    assert stats["q10"] == pytest.approx([0.4, 7.0])


def test_files_are_split_by_size(
    motions: MotionSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lerobot, "FILE_BYTES", 9 * (4 * 50 + 8 * 4))  # nine frames
    export_lerobot(tmp_path / "motions.h5", tmp_path / "out")
    for number, frames in ((0, 9), (1, 8)):
        path = tmp_path / "out" / lerobot.DATA.format(chunk_index=0, file_index=number)
        assert parquet.read_metadata(path).num_rows == frames


def write_rollouts(path: Path, robot: Robot, motion: ReferenceMotion) -> np.ndarray:
    """Rollouts of a motion of 9 frames, one lost after 5 and one fallen at once; returns their
    setpoints."""
    setpoints = motion.qpos[:-1, 7:] + 0.1
    with new_hdf5(path, track_order=True) as file:
        file.attrs["robot"] = robot.name
        file.attrs["joint_names"] = list(robot.joint_names)
        for name, key, frames in (("trot", "tracked_frames", 5), ("prior 0", "up_frames", 1)):
            group = file.create_group(name)
            group.attrs.update({"rate_hz": 50.0, key: frames, "source": "a", "licence": "MIT"})
            group.update({"qpos": motion.qpos, "qvel": motion.qvel, "setpoints": setpoints})
    return setpoints


def test_rollouts(motions: MotionSet, robot: Robot, tmp_path: Path) -> None:
    """Four steps lead to the fifth frame; an episode without a step is left out."""
    path = tmp_path / "rollouts.h5"
    setpoints = write_rollouts(path, robot, motions["trot"])
    (row,) = export_lerobot(path, tmp_path / "out")
    assert (row["tasks"], row["length"], row["licence"]) == (["trot"], 4, "MIT")
    table = parquet.read_table(tmp_path / "out" / DATA)
    np.testing.assert_allclose(table["action"].to_pylist(), setpoints[:4], atol=1e-6)
    state, _ = frames_of(motions["trot"])
    np.testing.assert_allclose(table["observation.state"].to_pylist(), state[:4], atol=1e-5)


def test_refusals(motions: MotionSet, robot: Robot, tmp_path: Path) -> None:
    data = tmp_path / "motions.h5"
    out = tmp_path / "out"
    write_motions(tmp_path / "mixed.h5", motion_set(robot, trot=50.0, walk=30.0))
    with pytest.raises(InputError, match="'trot' has 50 Hz; LeRobot needs one whole number"):
        export_lerobot(tmp_path / "mixed.h5", out)
    write_rollouts(tmp_path / "rollouts.h5", robot, motions["trot"])
    with pytest.raises(InputError, match="no clip has two frames"):
        export_lerobot(tmp_path / "rollouts.h5", out, clips=["prior 0"])
    with pytest.raises(InputError, match="need a dataset of motions"):
        export_lerobot(tmp_path / "rollouts.h5", out, rate_hz=30.0)
    with h5py.File(tmp_path / "rollouts.h5", "r+") as file:
        del file["trot/setpoints"]
    with pytest.raises(InputError, match=r"or a rollouts\.h5 with setpoints"):
        export_lerobot(tmp_path / "rollouts.h5", out)
    assert not out.exists()
    export_lerobot(data, out)
    with pytest.raises(InputError, match="name another folder"):
        export_lerobot(data, out)


def test_rollouts_are_checked(motions: MotionSet, robot: Robot, tmp_path: Path) -> None:
    """Links, shapes, numbers that are not finite, and counts of frames; 9 frames have 8 steps."""
    path = tmp_path / "rollouts.h5"
    out = tmp_path / "out"
    write_rollouts(tmp_path / "other.h5", robot, motions["trot"])
    joints = np.zeros((8, 12))
    for link in (h5py.SoftLink("/prior 0/setpoints"), h5py.ExternalLink("other.h5", "trot/qvel")):
        write_rollouts(path, robot, motions["trot"])
        with h5py.File(path, "r+") as file:
            del file["trot/setpoints"]
            file["trot/setpoints"] = link
        refusal("'setpoints' is a soft or external link", export_lerobot, path, out)
    for key, values, message in (
        ("setpoints", joints[:, :11], r"has shape \(8, 11\), expected \(8, 12\)"),
        ("setpoints", joints[:7], r"has shape \(7, 12\), expected \(8, 12\)"),
        ("setpoints", np.where(np.arange(8)[:, None] == 3, np.nan, joints), "nan or inf"),
        ("qvel", np.zeros((9, 17)), r"has shape \(9, 17\), expected \(9, 18\)"),
        ("qpos", np.float64(0.0), r"has shape \(\), expected \(0, 19\)"),
    ):
        write_rollouts(path, robot, motions["trot"])
        with h5py.File(path, "r+") as file:
            del file[f"trot/{key}"]
            file[f"trot/{key}"] = values
        assert f"'trot': {key}" in refusal(message, export_lerobot, path, out)
    for frames in (0, -3, 10):
        write_rollouts(path, robot, motions["trot"])
        with h5py.File(path, "r+") as file:
            file["trot"].attrs["tracked_frames"] = frames
        refusal(f"has {frames} frames, expected 1 to 9", export_lerobot, path, out)
    assert not out.exists()


def test_frames_after_a_fall_need_not_be_finite(
    motions: MotionSet, robot: Robot, tmp_path: Path
) -> None:
    write_rollouts(tmp_path / "rollouts.h5", robot, motions["trot"])
    with h5py.File(tmp_path / "rollouts.h5", "r+") as file:
        file["trot/qvel"][4:] = np.nan
    (row,) = export_lerobot(tmp_path / "rollouts.h5", tmp_path / "out")
    assert row["length"] == 4


def test_stairs_are_refused(motions: MotionSet, robot: Robot, tmp_path: Path) -> None:
    """Their ground would be lost, of motions and of rollouts; other clips are written."""
    stairs = dataclasses.replace(motions["trot"], ground=GroundProfile(np.array([0.0, 0.1, 0.2])))
    both = dataclasses.replace(motions, motions=(stairs, motions["walk"]))
    write_motions(tmp_path / "stairs.h5", both)
    write_rollouts(tmp_path / "rollouts.h5", robot, motions["trot"])
    with h5py.File(tmp_path / "rollouts.h5", "r+") as file:
        file["trot/ground"] = np.zeros(3)
    message = "motion 'trot' is over stairs or gaps, which format=lerobot cannot express; .* clips="
    for name in ("stairs.h5", "rollouts.h5"):
        refusal(message, export_lerobot, tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    export_lerobot(tmp_path / "stairs.h5", tmp_path / "out", clips=["walk"])


def test_memory_is_checked(
    motions: MotionSet, robot: Robot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame has 19 + 18 numbers of the state, 12 targets and 5 of time and indices, of 24 bytes
    each. There are 9 + 10 frames of motions, half of them at 25 Hz, and 2 * 9 of rollouts."""
    asked: list[float] = []
    monkeypatch.setattr(lerobot, "require_memory", lambda size, _: asked.append(size))
    write_rollouts(tmp_path / "rollouts.h5", robot, motions["trot"])
    export_lerobot(tmp_path / "motions.h5", tmp_path / "a")
    export_lerobot(tmp_path / "motions.h5", tmp_path / "b", rate_hz=25.0)
    export_lerobot(tmp_path / "rollouts.h5", tmp_path / "c")
    assert asked == pytest.approx([54 * 24 * frames for frames in (19, 9.5, 18)])


def test_an_export_that_was_cut_off_is_repeated(
    motions: MotionSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the data were moved; the finished one is refused."""
    data = tmp_path / "motions.h5"
    out = tmp_path / "out"
    replace = os.replace

    def until_meta(source: Path, target: Path) -> None:
        if Path(target) == out / "meta":
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as cut:
        cut.setattr(lerobot.os, "replace", until_meta)
        with pytest.raises(KeyboardInterrupt):
            export_lerobot(data, out)
    assert [path.name for path in out.iterdir()] == ["data"]
    (out / "data/chunk-000/file-001.parquet").write_bytes(b"of a larger one")
    export_lerobot(data, out)
    assert {path.name for path in out.iterdir()} == {"data", "meta", hub.CARD}
    assert [path.name for path in (out / "data").rglob("*.parquet")] == ["file-000.parquet"]
    refusal("meta exists; name another folder", export_lerobot, data, out)


@pytest.mark.parametrize("name", [hub.CARD, "data", "data/mine.txt"])
def test_files_of_the_user_are_kept(name: str, motions: MotionSet, tmp_path: Path) -> None:
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    refusal("exists; name another", export_lerobot, tmp_path / "motions.h5", tmp_path / "out")
    assert path.read_text() == "mine"
    assert not (tmp_path / "out/meta").exists()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with LeRobot and what its reader imports, for this Python and its torch. LeRobot's
    pins exclude this torch, so pip does not resolve them."""
    for name in ("torch", "huggingface_hub", "requests"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("lerobot")
    # torchvision 0.N is of torch 2.(N - 15)
    minor = int(version("torch").split(".")[1])
    packages = (*READER, f"torchvision==0.{minor + 15}.*")
    pip_install(
        sys.executable, "--no-deps", "--target", str(folder), "--", *packages, folder=folder
    )
    return folder


@pytest.mark.slow
def test_lerobot_reads_it(reader: Path, motions: MotionSet, tmp_path: Path) -> None:
    """Its own reader and its own statistics, without a network."""
    export_lerobot(tmp_path / "motions.h5", tmp_path / "out")
    script = Path(__file__).with_name("read_by_lerobot.py")
    settings = {"PYTHONPATH": str(reader), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, script, tmp_path / "out", tmp_path / "read.npz"],
        env=outside() | settings,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    read = np.load(tmp_path / "read.npz")
    names = ("walk", "trot")
    pairs = [frames_of(motions[name]) for name in names]
    lengths = [len(state) for state, _ in pairs]
    assert json.loads(str(read["meta"])) == {
        "total_episodes": 2,
        "fps": 50,
        "robot_type": "anymal_b",
        "licences": ["CC BY-NC 4.0"] * 2,
        "tasks": [name for name, length in zip(names, lengths) for _ in range(length)],
    }
    states, actions = (np.concatenate(parts) for parts in zip(*pairs))
    # the action of the next frame; an episode's last one is repeated
    following = np.concatenate([np.concatenate([action[1:], action[-1:]]) for _, action in pairs])
    steps = np.concatenate([np.arange(length) for length in lengths])
    np.testing.assert_allclose(read["observation.state"], states, atol=1e-5)
    np.testing.assert_allclose(read["action"][:, 0], actions, atol=1e-6)
    np.testing.assert_allclose(read["action"][:, 1], following, atol=1e-6)
    np.testing.assert_allclose(read["timestamp"], steps / 50.0, atol=1e-6)
    np.testing.assert_array_equal(read["frame_index"], steps)
    np.testing.assert_array_equal(read["episode_index"], np.repeat([0, 1], lengths))

    figures: dict[str, set[str]] = {"lerobot": set(), "dataset": set()}
    for name in read.files:
        if name.startswith(tuple(figures)):
            owner, figure = name.split("/", 1)
            figures[owner].add(figure)
    assert figures["lerobot"] == figures["dataset"] and len(figures["lerobot"]) == 20
    for name in figures["lerobot"]:
        # theirs estimates quantiles from a histogram
        if not name.split("/")[1].startswith("q"):
            # theirs subtracts squares in float32
            theirs, ours = read[f"lerobot/{name}"], read[f"dataset/{name}"]
            np.testing.assert_allclose(ours, theirs, atol=1e-4, err_msg=name)
