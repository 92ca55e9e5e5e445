"""What files of motion hold, as plain values: recordings, skeletons, robots' motions, datasets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mocap_data import hdf5, read, rotations
from mocap_data.errors import InputError
from mocap_data.motion import ReferenceMotion
from mocap_data.npz import load_npz
from mocap_data.outside import parse_json, read_json_object, reading
from mocap_data.readers import cmu_h5, options_of, robot_motions
from mocap_data.readers.asf_amc import read_asf
from mocap_data.readers.common import MissingOptions
from mocap_data.readers.robot_motions.common import RobotMotion
from mocap_data.sanity import warnings_of
from mocap_data.stepping import name_doubt
from mocap_data.store import SCHEMA, read_motions
from npmp import robots
from retarget.imported import to_reference_motion
from retarget.overview import groups_of
from retarget.plausibility import doubts_of, doubts_of_motion, feet_doubt, root_doubt
from retarget.quality import QualityMeter
from retarget.skeletons import described, skeleton_of
from retarget.sources import Origin, assumption, assumptions
from retarget.split import recording_of

Findings = dict[str, Any]

MOTIONS = "reference motions"
# of a motion's figures those of the table of a dataset
FIGURES = (
    "rms_marker_m",
    "near_floor_mps",
    "foot_slide_mps",
    "penetration_p99_m",
    "float_m",
    "leg_orientation_deg",
)


def inspect_recording(path: Path, options: Mapping[str, Any] | None = None) -> Findings:
    """A recording of keypoints: times, keypoints, extent, speed, and what looks misread.

    options: of the reader; names= counts where the file has none. Names or a rate that nothing says
    are given a place holder and listed as missing.
    """
    defaults = options_of(path)
    chosen = {key: value for key, value in (options or {}).items() if key in defaults}
    names = chosen.pop("names", None)
    missing: tuple[str, ...] = ()
    try:
        clip = read(path, **chosen)
    except MissingOptions as error:
        if not set(error.options) <= {"names", "rate_hz"}:
            raise
        missing = tuple(key for key in error.options if key != "names" or names is None)
        stand_in: dict[str, Any] = {"rate_hz": 1.0} if "rate_hz" in missing else {}
        if "names" in missing:
            names = [f"point_{i}" for i in range(_count(path, "positions", 0, 3))]
        if "names" in error.options:
            stand_in["names"] = names
        clip = read(path, **chosen, **stand_in)
    timed = "rate_hz" not in missing
    named = "names" not in missing
    suffix = path.suffix.lower()
    findings: Findings = {
        "path": str(path),
        "kind": f"recording ({suffix[1:]})",
        "name": clip.name,
        "frames": clip.num_frames,
        "rate_hz": round(clip.rate_hz, 6) if timed else "not in the file (source_rate_hz=)",
    }
    if timed:
        findings["duration_s"] = round(clip.duration_s, 3)
    read_as: dict[str, Any] = {
        key: chosen.get(key, defaults[key]) for key in ("scale", "up") if key in defaults
    }
    if read_as:
        text = "as the file says"
        findings["read as"] = {k: text if v is None else v for k, v in read_as.items()}
    if assumed := [key for key in clip.assumed if key not in missing]:
        values = {**read_as, "rate_hz": clip.rate_hz}
        findings["assumed"] = [assumption(key, values.get(key)) for key in assumed]
    findings["source"] = clip.source
    findings["licence"] = clip.licence
    findings["extent_m"] = extent_of(clip.positions)
    warnings = []
    if not named and suffix in (".csv", ".txt") and (turns := robot_motions.quaternions_in(path)):
        columns = f"columns 4 to {3 + 4 * turns} are {turns} unit quaternions"
        warnings.append(f"{columns}: a root's place and rotations, no keypoints")
    if timed:
        findings["speed_mps"] = speed_of(clip.positions.mean(axis=1), clip.rate_hz)
        warnings += doubts_of(clip) if named else warnings_of(clip)
    if clip.remarks:
        findings["remarks"] = list(clip.remarks)
    if warnings:
        findings["warnings"] = warnings
    if named:
        try:
            skeleton = skeleton_of(clip)
            findings |= {"skeleton": skeleton.name, "markers": described(skeleton)}
            if skeleton.guesses:
                findings["guesses"] = list(skeleton.guesses)
        except InputError as error:
            findings["skeleton"] = str(error)
    unnamed = f"{len(clip.names)}, not named in the file (names= of mocap_data.read)"
    findings["keypoints"] = list(clip.names) if named else unnamed
    return findings


def _count(path: Path, array: str, root: int, width: int) -> int:
    """How many names an unnamed file needs: of an archive's second dimension, or of a CSV's row of
    `root` numbers and `width` per name."""
    if path.suffix.lower() == ".npz":
        return int(load_npz(path, (array,))[array].shape[1])
    return (robot_motions.numbers_in_a_row(path) - root) // width


def extent_of(positions: Any) -> dict[str, list[float]]:
    """Least and greatest coordinate along each axis of positions (..., 3), in mm precision."""
    flat = positions.reshape(-1, 3)
    low, high = flat.min(axis=0), flat.max(axis=0)
    return {axis: [round(float(a), 3), round(float(b), 3)] for axis, a, b in zip("xyz", low, high)}


def speed_of(path: Any, rate_hz: float) -> dict[str, float]:
    """Mean and greatest horizontal speed along a path (T, 3) [m/s]."""
    steps = np.linalg.norm(np.diff(path[:, :2], axis=0), axis=-1) * rate_hz
    mean, most = (steps.mean(), steps.max()) if len(steps) else (0.0, 0.0)
    return {"mean": round(float(mean), 3), "max": round(float(most), 3)}


def inspect_skeleton(path: Path) -> Findings:
    """An ASF skeleton: its bones and how many joint angles a motion of it has."""
    skeleton = read_asf(path)
    return {
        "path": str(path),
        "kind": "skeleton (asf); the motions are the .amc files beside it",
        "bones": len(skeleton.bones),
        "degrees of freedom": sum(len(bone.dofs) for bone in skeleton.bones),
        "metres per unit": round(float(skeleton.metres_per_unit), 6),
        "motions beside it": sorted(entry.name for entry in path.parent.glob(f"{path.stem}_*.amc")),
        "names": list(skeleton.names),
    }


def inspect_description(path: Path) -> Findings:
    """A JSON file that an export wrote; {} for any other."""
    try:
        content = read_json_object(path)
    except InputError:
        return {}
    if content.get("schema") == robot_motions.unitree_csv.SCHEMA:
        hidden = ("schema", "version", "columns")
        about = {key: value for key, value in content.items() if key not in hidden}
        kind = f"what {path.with_suffix('.csv').name} does not say of itself"
        return {"path": str(path), "kind": kind, **about}
    if {"format", "conventions", "joint_names", "clips"} <= set(content):
        return {"path": str(path), "kind": f"export to {content['format']}", **content}
    return {}


def inspect_robot_motion(
    path: Path, kind: str, options: Mapping[str, Any] | None = None
) -> Findings:
    """A robot's motion of others: conventions, names, ranges, and robots here with these joints.

    options: names= counts where the file has none; rate_hz= where its kind takes one.
    """
    options = options or {}
    timed = {"rate_hz": options["rate_hz"]} if "rate_hz" in options and kind != "mjlab" else {}
    named = True
    try:
        motion = robot_motions.read_robot_motion(path, kind=kind, **timed)
    except MissingOptions:
        named = "names" in options
        placeholders = [f"joint_{i}" for i in range(_count(path, "joint_pos", 7, 1))]
        names = options.get("names", placeholders)
        motion = robot_motions.read_robot_motion(path, kind=kind, joint_names=names, **timed)
    fitting = robots.with_joints(motion.joint_names) if named else []
    root = motion.qpos[:, :3]
    up = rotations.rotate(motion.qpos[:, 3:7], np.array([0.0, 0.0, 1.0]))[:, 2]
    findings: Findings = {
        "path": str(path),
        "kind": f"robot's motion ({kind})",
        "name": motion.name,
        "robot": motion.robot or "not said",
        "frames": motion.num_frames,
        "rate_hz": round(motion.rate_hz, 6),
        "duration_s": round(motion.duration_s, 3),
        "source": motion.source,
        "licence": motion.licence,
        "root extent_m": extent_of(root),
        "root speed_mps": speed_of(root, motion.rate_hz),
        "root tilt_deg": round(float(np.degrees(np.arccos(np.clip(up, -1.0, 1.0)).max())), 1),
    }
    if motion.assumed:
        findings["assumed"] = [assumption(key, motion.rate_hz) for key in motion.assumed]
    if doubts := _doubts_of_motion(motion, fitting):
        findings["warnings"] = doubts
    if motion.body_pos is not None:
        unnamed = f"{motion.body_pos.shape[1]}, not named in the file"
        findings["bodies"] = unnamed if motion.body_names is None else list(motion.body_names)
    if named:
        findings["robots here with these joints"] = fitting or "none"
    else:
        needed = "joint_names= is needed to read it"
        findings["joints"] = f"{len(motion.joint_names)}, not named in the file: {needed}"
    degrees = np.degrees(motion.qpos[:, 7:])
    findings["joint angles"] = [
        {
            "joint": name if named else i,
            "least_deg": round(float(degrees[:, i].min()), 1),
            "greatest_deg": round(float(degrees[:, i].max()), 1),
        }
        for i, name in enumerate(motion.joint_names)
    ]
    return findings


def _doubts_of_motion(motion: RobotMotion, fitting: Sequence[str]) -> list[str]:
    """What looks misread about a robot's motion, with the feet of the first robot that fits it."""
    try:
        if local := [name for name in fitting if robots.is_local(name)]:
            robot = robots.load(local[0])
            imported = to_reference_motion(motion, robot)
            return doubts_of_motion(imported, QualityMeter(robot), motion.assumed)
    except InputError:
        # the motion is of another model of that robot
        pass
    doubts = [root_doubt(motion.qpos)]
    if "rate_hz" in motion.assumed:
        doubts.append(name_doubt(motion.rate_hz, motion.source))
    return [doubt for doubt in doubts if doubt]


def inspect_cmu(path: Path) -> Findings:
    """dm_control's CMU clips, by their attributes alone: none of the arrays is read."""
    clips = [
        {
            "name": clip.name,
            "frames": clip.num_frames,
            "seconds": round(clip.num_frames / clip.rate_hz, 2),
            "rate_hz": round(clip.rate_hz, 3),
        }
        for clip in cmu_h5.list_cmu_h5(path)
    ]
    return {
        "path": str(path),
        "kind": "CMU humanoid clips (dm_control's HDF5)",
        "in all": totals(clips),
        "keypoints": list(cmu_h5.KEYPOINT_NAMES),
        "clips": clips,
    }


def inspect_hdf5(path: Path) -> Findings:
    """A dataset of reference motions, CMU's clips, or the rollouts of an evaluation."""
    with hdf5.open_hdf5(path) as file:
        root = _attributes(file)
        names = hdf5.members(file)
        if root.get("schema") == SCHEMA:
            return _dataset(path, root, [_clip(name, _child(file, name)) for name in names])
        if cmu_h5.is_cmu_h5(path):
            return inspect_cmu(path)
        clips = []
        for name in names:
            if isinstance(entry := _child(file, name), h5py.Group):
                arrays = {key: _child(entry, key) for key in hdf5.members(entry)}
                are = {key: a for key, a in arrays.items() if isinstance(a, h5py.Dataset)}
                shapes = {key: list(array.shape) for key, array in are.items()}
                clips.append({"name": name, **shapes, **_attributes(entry)})
        if not clips or not all("qpos" in clip and "reference_qpos" in clip for clip in clips):
            others = "rollouts of an evaluation nor dm_control's CMU clips"
            wanted = f"neither reference motions (schema {SCHEMA!r}), {others}"
            raise InputError(f"{path}: HDF5, but {wanted}")
        return {"path": str(path), "kind": "rollouts of an evaluation", **root, "clips": clips}


def _dataset(path: Path, root: Findings, clips: list[Findings]) -> Findings:
    """A dataset of reference motions, of its attributes and those of its clips."""
    findings: Findings = {"path": str(path), "kind": MOTIONS}
    findings |= {key: root[key] for key in root if key not in ("provenance", *findings)}
    provenance = root.get("provenance", "{}")
    try:
        if isinstance(provenance, str):
            provenance = parse_json(provenance, str(path))
    except InputError:
        pass
    findings["provenance"] = provenance
    findings["in all"] = totals(clips)
    if assumed := _assumed(provenance):
        findings["assumed"] = assumed
    if any(clip.get("split") for clip in clips):
        findings["splits"] = splits_of(clips)
    problems, originals = _problems(path, root.get("robot"))
    if warnings := _warnings(provenance, originals):
        findings["warnings"] = warnings
    if len(originals) > 1:
        findings["medians"] = medians_of(originals, clips)
    findings["clips"] = clips
    return findings | ({"problems": list(dict.fromkeys(problems))} if problems else {})


def _entry(provenance: Any, key: str) -> Any:
    """A value of the provenance that is JSON itself; None for any other."""
    try:
        return parse_json(provenance[key], key)
    except (InputError, KeyError, TypeError):
        return None


def _assumed(provenance: Any) -> list[str]:
    """What the readers of a dataset's recordings assumed, in lines."""
    try:
        return assumptions(Origin(**entry) for entry in _entry(provenance, "recordings") or [])
    except TypeError:
        return []


def _warnings(provenance: Any, motions: Sequence[ReferenceMotion]) -> list[str]:
    """The warnings that a dataset was made with, and motions whose feet move but never stand."""
    warnings = _entry(provenance, "warnings")
    warnings = warnings if isinstance(warnings, dict) else {}
    about = {name: f"{name} {why}" for name, why in warnings.items()}
    for motion in motions:
        if recording_of(motion) not in about and (doubt := feet_doubt(motion)):
            about[motion.name] = f"{motion.name}: {doubt}"
    return list(about.values())


def _problems(path: Path, robot_name: Any) -> tuple[list[str], list[ReferenceMotion]]:
    """What `read_motions` refuses the dataset for, and the motions that can be read, no mirrors."""
    expected: dict[str, Any] = {}
    problems = []
    if isinstance(robot_name, str):
        try:
            robot = robots.load(robot_name)
            keys = ("model_sha256", "joint_names", "body_names")
            expected = {"robot": robot.name} | {key: getattr(robot, key) for key in keys}
        except InputError as error:
            problems.append(str(error))
    # a file of other names than expected is refused as a whole: the rest shows without expectations
    for args in (expected, {}) if expected else ({},):
        refused: list[InputError] = []
        try:
            motions = read_motions(path, **args, refused=refused).motions
        except InputError as error:
            refused.append(error)
            motions = ()
        problems += [str(error) for error in refused]
        if motions:
            return problems, [motion for motion in motions if not motion.mirror]
    return problems, []


def _attributes(node: Any) -> Findings:
    """The attributes of a file or group as JSON values; none where they cannot be read."""
    try:
        with reading(node.file.filename):
            return {key: hdf5.plain(value) for key, value in hdf5.attributes(node).items()}
    except InputError:
        return {}


def _child(group: Any, name: str) -> Any:
    """A member of a group, None where it cannot be opened."""
    try:
        with reading(group.file.filename):
            return hdf5.member(group, name) if isinstance(group, h5py.Group) else None
    except InputError:
        return None


def _clip(name: str, group: Any) -> Findings:
    """A clip without its arrays being read; a question mark for what it does not say."""
    attrs = {} if group is None else _attributes(group)
    shape: tuple[int, ...] = () if group is None else getattr(_child(group, "qpos"), "shape", ())
    feet: tuple[int, ...] = () if group is None else getattr(_child(group, "contacts"), "shape", ())
    frames = int(shape[0]) if shape else "?"
    rate = attrs.get("rate_hz", "?")
    timed = isinstance(frames, int) and isinstance(rate, int | float) and rate > 0
    numbers = {
        key: float(f"{value:.4g}")
        for key, value in attrs.items()
        if key not in ("rate_hz", "licence", "source") and isinstance(value, int | float)
    }
    return {
        "name": name,
        "frames": frames,
        "seconds": round(frames / rate, 2) if timed else "?",
        "rate_hz": rate,
        "licence": attrs.get("licence", "?"),
        **{key: attrs[key] for key in ("recording", "mirror", "split") if attrs.get(key)},
        **({"feet": int(feet[1])} if len(feet) == 2 else {}),
        **numbers,
    }


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def totals(clips: Sequence[Findings]) -> Findings:
    """Clips, seconds, recordings and mirrored clips of a dataset, as far as its clips say."""
    recordings = {clip["recording"] for clip in clips if clip.get("recording")}
    mirrored = sum(bool(clip.get("mirror")) for clip in clips)
    return {
        "clips": len(clips),
        "seconds": round(sum(clip["seconds"] for clip in clips if is_number(clip["seconds"])), 2),
        **({"recordings": len(recordings)} if recordings else {}),
        **({"mirrored clips": mirrored} if mirrored else {}),
    }


def splits_of(clips: Sequence[Findings]) -> list[Findings]:
    """A row per split: its totals and how its sampling weights spread."""
    rows = []
    for split in sorted({str(clip.get("split", "")) for clip in clips}):
        inside = [clip for clip in clips if str(clip.get("split", "")) == split]
        weights = [float(clip["weight"]) for clip in inside if is_number(clip.get("weight"))]
        row = {"split": split or "none", **totals(inside)}
        if weights:
            row["least weight"] = float(f"{min(weights):.4g}")
            row["greatest weight"] = float(f"{max(weights):.4g}")
        rows.append(row)
    return rows


def medians_of(motions: Sequence[ReferenceMotion], clips: Sequence[Findings]) -> list[Findings]:
    """The medians of the motions' figures: of all, and by kind of movement where there are some."""
    of = {clip["name"]: clip for clip in clips}
    rows: list[Findings] = []
    for name, group in groups_of(motions).items():
        row: Findings = {"name": name, "clips": len(group)}
        for key in ("seconds", *FIGURES, "weight"):
            values = [of[motion.name].get(key) for motion in group]
            numbers = [float(value) for value in values if value is not None and is_number(value)]
            if numbers:
                row[key] = float(f"{np.median(numbers):.4g}")
        rows.append(row)
    return rows
