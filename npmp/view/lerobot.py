"""Export motions and rollouts as a dataset of LeRobot, format v3.0. Needs the extra lerobot."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np

from mocap_data import hdf5, store
from mocap_data.arrays import Array
from mocap_data.errors import InputError, check_available, importing
from mocap_data.files import write_json
from mocap_data.input_files import require_memory
from npmp import __version__
from npmp.core import hub
from retarget.export import at_rate, check_flat, robot_of_dataset

FORMAT = "lerobot"
VERSION = "v3.0"
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_FILES = "data/chunk-*/file-*.parquet"
# of frames in a file; LeRobot's default
FILE_BYTES = 100 << 20
# peak memory per number of a frame: float32 per episode and joined, float64 and its quantiles'
NUMBER_BYTES = 2 * 4 + 2 * 8
STATE = "observation.state"
ACTION = "action"
INDICES = ("frame_index", "episode_index", "index", "task_index")
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
# units by name
ROOT_POSE = {f"root_{name}": "m" for name in "xyz"} | {f"root_q{name}": "1" for name in "wxyz"}
ROOT_VELOCITY = {f"root_v{name}": "m/s" for name in "xyz"} | {
    f"root_w{name}": "rad/s" for name in "xyz"
}
CONVENTIONS = (
    "World Z up. root_q: quaternion, root to world. root_v: linear velocity in world axes. root_w: "
    "angular velocity in the root's frame. An action is the target of the joints from its frame to "
    "the next. In rollouts it is the setpoint of the drives. In motions it is the position at the "
    "next frame, and velocities are backward differences."
)


@dataclass(frozen=True, eq=False)
class Episode:
    """A motion of a robot with the targets of its joints."""

    # unique; it becomes the task
    name: str
    # (T, 7 + J) and (T, 6 + J), see `mocap_data.motion.ReferenceMotion`
    qpos: Array
    qvel: Array
    # (T, J) [rad] from frame t to t + 1
    targets: Array
    rate_hz: float
    source: str
    licence: str
    split: str = "train"


@dataclass(frozen=True)
class Content:
    """The content of a dataset of LeRobot."""

    robot: str
    rate_hz: float
    # of info.json
    features: dict[str, dict[str, Any]]
    # of meta/episodes
    rows: list[dict[str, Any]]
    # by feature, of each episode
    frames: list[dict[str, Array]]


def load_pyarrow() -> Any:
    """pyarrow with its parquet. Raises InputError if it is absent."""
    with importing("format=lerobot needs pyarrow: pip install 'npmp[lerobot]'"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def export_lerobot(
    file: Path | str,
    folder: Path | str,
    *,
    clips: Sequence[str] | None = None,
    split: str | None = None,
    rate_hz: float | None = None,
) -> list[dict[str, Any]]:
    """Export a dataset of motions, or a rollouts.h5 of `npmp evaluate module=` or `npmp skill
    wander`.

    clips, split, rate_hz: as of `npmp data export`; a rollouts.h5 has clips only.

    Returns: the rows of meta/episodes.

    Raises:
      InputError: invalid data, rates that differ, or a folder with a dataset.
    """
    content = read_content(Path(file), clips=clips, split=split, rate_hz=rate_hz)
    write_lerobot(Path(folder), content)
    return content.rows


def read_content(
    file: Path,
    *,
    clips: Sequence[str] | None = None,
    split: str | None = None,
    rate_hz: float | None = None,
) -> Content:
    """The content of a dataset of motions or a rollouts.h5, see `export_lerobot`. Raises
    InputError."""
    if hdf5.schema_of(file) == store.SCHEMA:
        motions = store.read_motions(file, clips=clips).select(split=split)
        check_flat(FORMAT, file, motions.names)
        return content_of(motions.robot, motions.joint_names, of_motions(file, motions, rate_hz))
    if split is not None or rate_hz is not None:
        raise InputError(f"{file}: split= and rate_hz= need a dataset of motions")
    with hdf5.open_hdf5(file) as content:
        check_available(f"rollout in {file}", clips or [], hdf5.members(content))
        names = list(dict.fromkeys(clips or hdf5.members(content)))
        groups = [hdf5.member(content, name) for name in names]
        if not groups or not all(
            isinstance(group, h5py.Group) and hdf5.member(group, "setpoints") is not None
            for group in groups
        ):
            raise InputError(
                f"{file}: expected a dataset of motions, or a rollouts.h5 with setpoints; write it "
                "with npmp evaluate module=... or npmp skill wander"
            )
        check_flat(FORMAT, file, names)
        joints = [str(name) for name in content.attrs["joint_names"]]
        episodes = of_rollouts(content, names, len(joints))
        return content_of(str(content.attrs["robot"]), joints, episodes)


def of_motions(
    data: Path, motions: store.MotionSet, rate_hz: float | None = None
) -> Iterator[Episode]:
    """Motions as episodes, those of the training split first; the last frame has no target.

    rate_hz: None: each motion's.

    Raises:
      InputError: another rate without the robot's model, or too little memory.
    """
    robot = robot_of_dataset(FORMAT, data, motions)
    frames = sum(
        motion.num_frames * (rate_hz or motion.rate_hz) / motion.rate_hz
        for motion in motions.motions
    )
    check_memory(data, frames, len(motions.joint_names))
    for motion in sorted(motions.motions, key=lambda motion: motion.split or "train"):
        motion = at_rate(motion, rate_hz, robot, motions.robot)
        yield Episode(
            motion.name,
            qpos=motion.qpos[:-1],
            qvel=motion.qvel[:-1],
            targets=motion.qpos[1:, 7:],
            rate_hz=motion.rate_hz,
            source=motion.source,
            licence=motion.licence,
            split=motion.split or "train",
        )


def of_rollouts(file: h5py.File, names: Sequence[str], num_joints: int) -> Iterator[Episode]:
    """Rollouts of an open rollouts.h5 as episodes, until the robot falls or loses the motion.

    Raises:
      InputError: an array that is missing, linked, of another shape or not finite, a number of
        frames beyond the rollout's, or too little memory.
    """
    groups = [hdf5.member(file, name) for name in names]
    parts = [_arrays(group, num_joints) for group in groups]
    check_memory(file.filename, sum(len(part["qpos"]) for part in parts), num_joints)
    for name, group, part in zip(names, groups, parts, strict=True):
        about = hdf5.attributes(group)
        frames = int(about["up_frames" if "up_frames" in about else "tracked_frames"])
        where = hdf5.location_of(group)
        if not 1 <= frames <= len(part["qpos"]):
            raise InputError(f"{where} has {frames} frames, expected 1 to {len(part['qpos'])}")
        arrays = {}
        for key, array in part.items():
            # the frames after a fall are not written
            arrays[key] = hdf5.read_array(array, f"{where}: {key}")[: frames - 1]
            if not np.isfinite(arrays[key]).all():
                raise InputError(f"{where}: {key} has nan or inf, expected finite numbers")
        yield Episode(
            name,
            qpos=arrays["qpos"],
            qvel=arrays["qvel"],
            targets=arrays["setpoints"],
            rate_hz=float(about["rate_hz"]),
            source=str(hdf5.plain(about["source"])),
            licence=str(hdf5.plain(about["licence"])),
        )


def _arrays(group: h5py.Group, num_joints: int) -> dict[str, h5py.Dataset]:
    """The arrays of a rollout, not read yet. Raises InputError for other shapes or types."""
    widths = {"qpos": 7 + num_joints, "qvel": 6 + num_joints, "setpoints": num_joints}
    arrays = {key: hdf5.member(group, key) for key in widths}
    frames = 0
    for key, array in arrays.items():
        label = f"{hdf5.location_of(group)}: {key}"
        hdf5.array_bytes(array, label)
        if key == "qpos" and array.ndim:
            frames = array.shape[0]
        expected = (frames - 1 if key == "setpoints" else frames, widths[key])
        if array.shape != expected:
            raise InputError(f"{label} has shape {array.shape}, expected {expected}")
    return arrays


def check_memory(file: Path | str, frames: float, num_joints: int) -> None:
    """Raise InputError before the frames of a file exceed the free memory."""
    numbers = frames * (len(ROOT_POSE) + len(ROOT_VELOCITY) + 3 * num_joints + 1 + len(INDICES))
    require_memory(NUMBER_BYTES * numbers, f"{file}: {frames:,.0f} frames (fewer by clips=)")


def content_of(robot: str, joint_names: Sequence[str], episodes: Iterable[Episode]) -> Content:
    """Collect episodes; those without frames are left out. Those of a split come one after another.

    Raises:
      InputError: rates that differ or are no whole number of frames per second, or no frames.
    """
    rows: list[dict[str, Any]] = []
    frames: list[dict[str, Array]] = []
    rate_hz = 0.0
    for episode in episodes:
        rate_hz = rate_hz or episode.rate_hz
        if episode.rate_hz != rate_hz or rate_hz < 1.0 or not rate_hz.is_integer():
            raise InputError(
                f"clip {episode.name!r} has {episode.rate_hz:g} Hz; LeRobot needs one whole number "
                "for all clips: set rate_hz=, e.g. rate_hz=50"
            )
        number = len(rows)
        first = rows[-1]["dataset_to_index"] if rows else 0
        if len(episode.targets):
            frames.append(_columns(episode, number, first))
            rows.append(_row(episode, number, first, frames[-1]))
    if not rows:
        raise InputError("no clip has two frames, so there is nothing to write")
    return Content(robot, rate_hz, features_of(joint_names), rows, frames)


def licences_of(rows: Iterable[dict[str, Any]]) -> list[str]:
    """The licences of rows of meta/episodes, sorted; a rollout's are joined."""
    return sorted({part for row in rows for part in row["licence"].split("; ")})


def features_of(joint_names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The features of info.json; "units" is an addition to LeRobot's keys."""
    positions = {f"{name}.pos": "rad" for name in joint_names}
    velocities = {f"{name}.vel": "rad/s" for name in joint_names}
    vectors = {STATE: ROOT_POSE | positions | ROOT_VELOCITY | velocities, ACTION: positions}
    features: dict[str, dict[str, Any]] = {
        key: {"shape": [len(units)], "names": list(units), "units": list(units.values())}
        for key, units in vectors.items()
    }
    features |= {key: {"shape": [1], "names": None} for key in ("timestamp", *INDICES)}
    return {
        key: {"dtype": "int64" if key in INDICES else "float32"} | feature
        for key, feature in features.items()
    }


def _columns(episode: Episode, number: int, first: int) -> dict[str, Any]:
    """The columns (T, ...) of an episode. number: its index and its task's. first: the index of its
    first frame in the dataset."""
    index = np.arange(len(episode.targets))
    constant = np.full(len(index), number)
    return {
        STATE: np.concatenate([episode.qpos, episode.qvel], axis=1).astype(np.float32),
        ACTION: episode.targets.astype(np.float32),
        "timestamp": (index / episode.rate_hz).astype(np.float32),
        "frame_index": index,
        "episode_index": constant,
        "index": first + index,
        "task_index": constant,
    }


def _row(episode: Episode, number: int, first: int, columns: dict[str, Array]) -> dict[str, Any]:
    """A row of meta/episodes; source, licence and split are additions to LeRobot's columns."""
    frame_bytes = sum(values[0].nbytes for values in columns.values())
    row: dict[str, Any] = {
        "episode_index": number,
        "tasks": [episode.name],
        "length": len(episode.targets),
        "data/chunk_index": 0,
        "data/file_index": first * frame_bytes // FILE_BYTES,
        "dataset_from_index": first,
        "dataset_to_index": first + len(episode.targets),
        "meta/episodes/chunk_index": 0,
        "meta/episodes/file_index": 0,
        "source": episode.source,
        "licence": episode.licence,
        "split": episode.split,
    }
    for key, values in columns.items():
        row |= {f"stats/{key}/{name}": value for name, value in statistics(values).items()}
    return row


def statistics(values: Array) -> dict[str, list[float]]:
    """LeRobot's statistics of values (T, n) or (T,), over T."""
    table = values.reshape(len(values), -1).astype(np.float64)
    figures = {name: getattr(np, name)(table, axis=0) for name in ("min", "max", "mean", "std")}
    figures["count"] = np.array([len(table)])
    for share, quantile in zip(QUANTILES, np.quantile(table, QUANTILES, axis=0)):
        figures[f"q{round(100 * share):02d}"] = quantile
    return {name: figure.tolist() for name, figure in figures.items()}


def check_new(folder: Path) -> None:
    """Raise InputError for a folder with a dataset or a card, or with other data, which LeRobot
    would read too. Data of an export that was cut off is allowed."""
    names = ["meta", hub.CARD]
    data = folder / "data"
    files = [path for path in (data, *data.rglob("*")) if path.is_symlink() or not path.is_dir()]
    if not all(path.relative_to(folder).match(DATA_FILES) for path in files):
        names.append("data")
    for name in names:
        if (folder / name).exists():
            raise InputError(f"{folder / name} exists; name another folder with out=")


def write_lerobot(folder: Path, content: Content) -> None:
    """Write `data`, then `meta`, then README.md, so that an export cut off last lacks only the
    card. Raises InputError, as `check_new`."""
    pa = load_pyarrow()
    check_new(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".lerobot-", dir=folder) as temporary:
        unfinished = Path(temporary)
        _write_frames(pa, unfinished, content)
        _write_meta(pa, unfinished / "meta", content)
        _write_card(unfinished, content)
        if (folder / "data").exists():
            shutil.rmtree(folder / "data")
        # data without meta is that of an export that was cut off
        for name in ("data", "meta", hub.CARD):
            os.replace(unfinished / name, folder / name)


def _write_frames(pa: Any, folder: Path, content: Content) -> None:
    """Write the files of data, a row group per episode."""

    def arrow(values: Array) -> Any:
        flat = pa.array(values.ravel())
        return flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, len(values[0]))

    pairs = zip(content.rows, content.frames)
    for number, group in groupby(pairs, lambda pair: pair[0]["data/file_index"]):
        tables = [pa.table({key: arrow(each) for key, each in part.items()}) for _, part in group]
        path = folder / DATA.format(chunk_index=0, file_index=number)
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.parquet.ParquetWriter(path, tables[0].schema) as writer:
            for table in tables:
                writer.write_table(table)


def _write_meta(pa: Any, meta: Path, content: Content) -> None:
    """Write info.json, stats.json, the episodes and the tasks."""
    rows = content.rows
    splits = [row["split"] for row in rows]
    info = {
        "codebase_version": VERSION,
        "robot_type": content.robot,
        "total_episodes": len(rows),
        "total_frames": rows[-1]["dataset_to_index"],
        "total_tasks": len(rows),
        "chunks_size": 1000,
        "data_files_size_in_mb": FILE_BYTES >> 20,
        "video_files_size_in_mb": 200,
        "fps": round(content.rate_hz),
        "splits": {
            split: f"{splits.index(split)}:{splits.index(split) + splits.count(split)}"
            for split in dict.fromkeys(splits)
        },
        "data_path": DATA,
        "video_path": None,
        "features": content.features,
    }
    write_json(meta / "info.json", info, indent=4)
    keys = content.features
    whole = {key: np.concatenate([part[key] for part in content.frames]) for key in keys}
    stats = {key: statistics(values) for key, values in whole.items()}
    write_json(meta / "stats.json", stats, indent=4)

    episodes = meta / "episodes/chunk-000/file-000.parquet"
    episodes.parent.mkdir(parents=True)
    pa.parquet.write_table(pa.Table.from_pylist(rows), episodes)
    # pandas reads the column "task" as the table's index
    tasks = pa.table({"task_index": range(len(rows)), "task": [row["tasks"][0] for row in rows]})
    kinds = {"task_index": ("int64", "int64"), "task": ("unicode", "object")}
    columns = [
        {
            "name": name,
            "field_name": name,
            "pandas_type": kind,
            "numpy_type": dtype,
            "metadata": None,
        }
        for name, (kind, dtype) in kinds.items()
    ]
    pandas = {"index_columns": ["task"], "column_indexes": [], "columns": columns}
    tasks = tasks.replace_schema_metadata({"pandas": json.dumps(pandas)})
    pa.parquet.write_table(tasks, meta / "tasks.parquet")


def _write_card(folder: Path, content: Content) -> None:
    """Write README.md, the card for the Hub: licence, sources, names and units."""
    rows = content.rows
    licences = licences_of(rows)
    metadata = hub.licence_metadata(licences) | {
        "task_categories": ["robotics"],
        "tags": ["LeRobot", "npmp", content.robot],
        "configs": [{"config_name": "default", "data_files": "data/*/*.parquet"}],
    }
    seconds = rows[-1]["dataset_to_index"] / content.rate_hz
    lines = [
        f"# Motions of {content.robot}",
        "",
        f"{len(rows)} episodes, {seconds:.0f} s at {content.rate_hz:g} Hz, in LeRobot's format "
        f"{VERSION}, written by npmp {__version__}.",
        "",
        f"Licence: {'; '.join(licences)}.",
        "",
        "| source | licence | episodes |",
        "|---|---|---|",
    ]
    origins = [(row["source"], row["licence"]) for row in rows]
    lines += [f"| {' | '.join(pair)} | {origins.count(pair)} |" for pair in dict.fromkeys(origins)]
    lines += ["", CONVENTIONS, "", "| feature | index | name | unit |", "|---|---|---|---|"]
    for key in (STATE, ACTION):
        units = zip(content.features[key]["names"], content.features[key]["units"])
        lines += [f"| {key} | {i} | {name} | {unit} |" for i, (name, unit) in enumerate(units)]
    hub.write_card(folder, metadata, "\n".join([*lines, ""]).encode())
