"""Contents of motion files as plain values: recordings, skeletons, robot motions, datasets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mocap_data import hdf5, read, rotations
from mocap_data.clip import Clip
from mocap_data.clip_checks import clip_warnings
from mocap_data.errors import InputError
from mocap_data.input_files import parse_json, read_json_object, reading
from mocap_data.motion import ReferenceMotion
from mocap_data.npz import load_npz
from mocap_data.readers import cmu_h5, options_of, robot_motions
from mocap_data.readers.asf_amc import read_asf
from mocap_data.readers.common import MissingOptions
from mocap_data.readers.robot_motions.common import RobotMotion
from mocap_data.step_checks import rate_warning
from mocap_data.store import SCHEMA, read_motions
from npmp import robots
from retarget.motion_summary import groups_of
from retarget.quality import QualityMeter
from retarget.recording_checks import (
    motion_warnings,
    recording_warnings,
    root_warning,
    stance_warning,
)
from retarget.robot_motion_import import to_reference_motion
from retarget.skeletons import find_skeleton, marker_entries
from retarget.sources import Origin, assumption, assumptions
from retarget.split import recording_of

Findings = dict[str, Any]

MOTIONS = "reference motions"
# figures of a motion in the table of a dataset
FIGURES = (
    "rms_marker_m",
    "near_floor_mps",
    "foot_slide_mps",
    "penetration_p99_m",
    "float_m",
    "leg_orientation_deg",
)


def inspect_recording(path: Path, options: Mapping[str, Any] | None = None) -> Findings:
    """A recording of keypoints: times, keypoints, extent, speed, warnings.

    options: of the reader; names= is used where the file has none. Missing names or a missing rate
    get a placeholder.
    """
    defaults = options_of(path)
    used = {key: value for key, value in (options or {}).items() if key in defaults}
    clip, missing = _read_with_placeholders(path, used)
    has_rate = "rate_hz" not in missing
    has_names = "names" not in missing
    suffix = path.suffix.lower()
    findings: Findings = {
        "path": str(path),
        "kind": f"recording ({suffix[1:]})",
        "name": clip.name,
        "frames": clip.num_frames,
        "rate_hz": round(clip.rate_hz, 6) if has_rate else "not in the file (source_rate_hz=)",
    }
    if has_rate:
        findings["duration_s"] = round(clip.duration_s, 3)
    read_as: dict[str, Any] = {
        key: used.get(key, defaults[key]) for key in ("scale", "up") if key in defaults
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
    warnings: list[str] = []
    skeleton = None
    reason = ""
    if has_names:
        try:
            skeleton = find_skeleton(clip)
        except InputError as error:
            reason = str(error)
    if has_rate:
        findings["speed_mps"] = speed_of(clip.positions.mean(axis=1), clip.rate_hz)
        warnings += recording_warnings(clip, skeleton) if has_names else clip_warnings(clip)
    if clip.remarks:
        findings["remarks"] = list(clip.remarks)
    if warnings:
        findings["warnings"] = warnings
    if skeleton is not None:
        findings |= {"skeleton": skeleton.name, "markers": marker_entries(skeleton)}
        if skeleton.guesses:
            findings["guesses"] = list(skeleton.guesses)
    elif has_names:
        findings["skeleton"] = reason
    unnamed = f"{len(clip.names)}, not named in the file (names= of mocap_data.read)"
    findings["keypoints"] = list(clip.names) if has_names else unnamed
    return findings


def _read_with_placeholders(path: Path, options: dict[str, Any]) -> tuple[Clip, tuple[str, ...]]:
    """Read a recording with placeholders for missing "names" and "rate_hz"; returns it and the
    missing options."""
    names = options.pop("names", None)
    try:
        return read(path, **options), ()
    except MissingOptions as error:
        if not set(error.options) <= {"names", "rate_hz"}:
            raise
        missing = tuple(key for key in error.options if key != "names" or names is None)
        if "names" in error.options:
            count = _count(path, "positions", 0, 3) if names is None else 0
            options = {**options, "names": names or [f"point_{i}" for i in range(count)]}
        if "rate_hz" in missing:
            options = {**options, "rate_hz": 1.0}
    return read(path, **options), missing


def _count(path: Path, array: str, root: int, width: int) -> int:
    """The number of names that a file needs: of an archive's second dimension, or of a CSV's row of
    `root` numbers and `width` per name."""
    if path.suffix.lower() == ".npz":
        return int(load_npz(path, (array,))[array].shape[1])
    return (robot_motions.numbers_in_a_row(path) - root) // width


def extent_of(positions: Any) -> dict[str, list[float]]:
    """Least and greatest coordinate along each axis of positions (..., 3), in mm precision."""
    flat = positions.reshape(-1, 3)
    low = flat.min(axis=0)
    high = flat.max(axis=0)
    return {axis: [round(float(a), 3), round(float(b), 3)] for axis, a, b in zip("xyz", low, high)}


def speed_of(path: Any, rate_hz: float) -> dict[str, float]:
    """Mean and greatest horizontal speed along a path (T, 3) [m/s]."""
    steps = np.linalg.norm(np.diff(path[:, :2], axis=0), axis=-1) * rate_hz
    if not len(steps):
        steps = np.zeros(1)
    return {"mean": round(float(steps.mean()), 3), "max": round(float(steps.max()), 3)}


def inspect_skeleton(path: Path) -> Findings:
    """An ASF skeleton: its bones and degrees of freedom."""
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
    """The content of an export's JSON file; {} for any other."""
    try:
        content = read_json_object(path)
    except InputError:
        return {}
    if content.get("schema") == robot_motions.unitree_csv.SCHEMA:
        hidden = ("schema", "version", "columns")
        about = {key: value for key, value in content.items() if key not in hidden}
        kind = f"joint names and rate of {path.with_suffix('.csv').name}"
        return {"path": str(path), "kind": kind, **about}
    if {"format", "conventions", "joint_names", "clips"} <= set(content):
        return {"path": str(path), "kind": f"export to {content['format']}", **content}
    return {}


def inspect_robot_motion(
    path: Path, kind: str, options: Mapping[str, Any] | None = None
) -> Findings:
    """A robot motion: conventions, names, ranges, and robots with these joints.

    options: names= is used where the file has none; rate_hz= where its kind takes one.
    """
    options = options or {}
    rate = {"rate_hz": options["rate_hz"]} if "rate_hz" in options and kind != "mjlab" else {}
    has_names = True
    try:
        motion = robot_motions.read_robot_motion(path, kind=kind, **rate)
    except MissingOptions:
        has_names = "names" in options
        placeholders = [f"joint_{i}" for i in range(_count(path, "joint_pos", 7, 1))]
        names = options.get("names", placeholders)
        motion = robot_motions.read_robot_motion(path, kind=kind, joint_names=names, **rate)
    fitting = robots.with_joints(motion.joint_names) if has_names else []
    root = motion.qpos[:, :3]
    up = rotations.rotate(motion.qpos[:, 3:7], np.array([0.0, 0.0, 1.0]))[:, 2]
    findings: Findings = {
        "path": str(path),
        "kind": f"robot's motion ({kind})",
        "name": motion.name,
        "robot": motion.robot or "not in the file",
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
    if warnings := _robot_motion_warnings(motion, fitting):
        findings["warnings"] = warnings
    if motion.body_pos is not None:
        unnamed = f"{motion.body_pos.shape[1]}, not named in the file"
        findings["bodies"] = unnamed if motion.body_names is None else list(motion.body_names)
    if has_names:
        findings["robots here with these joints"] = fitting or "none"
    else:
        next_step = "set joint_names= to read it"
        findings["joints"] = f"{len(motion.joint_names)}, not named in the file: {next_step}"
    degrees = np.degrees(motion.qpos[:, 7:])
    findings["joint angles"] = [
        {
            "joint": name if has_names else i,
            "least_deg": round(float(degrees[:, i].min()), 1),
            "greatest_deg": round(float(degrees[:, i].max()), 1),
        }
        for i, name in enumerate(motion.joint_names)
    ]
    return findings


def _robot_motion_warnings(motion: RobotMotion, fitting: Sequence[str]) -> list[str]:
    """The warnings of a robot motion, with the feet of the first installed robot with its
    joints."""
    try:
        if installed := [name for name in fitting if robots.is_local(name)]:
            robot = robots.load(installed[0])
            imported = to_reference_motion(motion, robot)
            return motion_warnings(imported, QualityMeter(robot), motion.assumed)
    except InputError:
        # the motion is of another model of that robot
        pass
    warnings = [root_warning(motion.qpos)]
    if "rate_hz" in motion.assumed:
        warnings.append(rate_warning(motion.rate_hz, motion.source))
    return [warning for warning in warnings if warning]


def inspect_cmu(path: Path) -> Findings:
    """Describe dm_control's CMU clips by their attributes, without reading arrays."""
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
    """Describe an HDF5 file: reference motions, CMU's clips, or rollouts of an evaluation."""
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
                shapes = {
                    key: list(array.shape)
                    for key, array in arrays.items()
                    if isinstance(array, h5py.Dataset)
                }
                clips.append({"name": name, **shapes, **_attributes(entry)})
        if not clips or not all("qpos" in clip and "reference_qpos" in clip for clip in clips):
            expected = (
                f"expected schema {SCHEMA!r}, rollouts of an evaluation or dm_control's clips"
            )
            raise InputError(f"{path}: unknown HDF5 layout, {expected}")
        return {"path": str(path), "kind": "rollouts of an evaluation", **root, "clips": clips}


def _dataset(path: Path, root: Findings, clips: list[Findings]) -> Findings:
    """Describe a dataset of reference motions by its attributes and those of its clips."""
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
    """A value of the provenance that is JSON; None for any other."""
    try:
        return parse_json(provenance[key], key)
    except (InputError, KeyError, TypeError):
        return None


def _assumed(provenance: Any) -> list[str]:
    """The assumptions of the readers of a dataset's recordings, one line each."""
    try:
        return assumptions(Origin(**entry) for entry in _entry(provenance, "recordings") or [])
    except TypeError:
        return []


def _warnings(provenance: Any, motions: Sequence[ReferenceMotion]) -> list[str]:
    """The warnings in a dataset's provenance, and of motions whose feet move but never stand."""
    stored = _entry(provenance, "warnings")
    stored = stored if isinstance(stored, dict) else {}
    lines = {name: f"{name} {warning}" for name, warning in stored.items()}
    for motion in motions:
        if recording_of(motion) not in lines and (warning := stance_warning(motion)):
            lines[motion.name] = f"{motion.name}: {warning}"
    return list(lines.values())


def _problems(path: Path, robot_name: Any) -> tuple[list[str], list[ReferenceMotion]]:
    """Errors while reading the dataset, and the readable motions without mirrors."""
    expected: dict[str, Any] = {}
    problems = []
    if isinstance(robot_name, str):
        try:
            robot = robots.load(robot_name)
            keys = ("model_sha256", "joint_names", "body_names")
            expected = {"robot": robot.name} | {key: getattr(robot, key) for key in keys}
        except InputError as error:
            problems.append(str(error))
    # files with other names than expected raise an error; read without expectations
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
    """A clip without reading its arrays; a question mark for a missing value."""
    attrs = {} if group is None else _attributes(group)
    shape: tuple[int, ...] = () if group is None else getattr(_child(group, "qpos"), "shape", ())
    feet: tuple[int, ...] = () if group is None else getattr(_child(group, "contacts"), "shape", ())
    frames = int(shape[0]) if shape else "?"
    rate = attrs.get("rate_hz", "?")
    has_rate = isinstance(frames, int) and isinstance(rate, int | float) and rate > 0
    numbers = {
        key: float(f"{value:.4g}")
        for key, value in attrs.items()
        if key not in ("rate_hz", "licence", "source") and isinstance(value, int | float)
    }
    return {
        "name": name,
        "frames": frames,
        "seconds": round(frames / rate, 2) if has_rate else "?",
        "rate_hz": rate,
        "licence": attrs.get("licence", "?"),
        **{key: attrs[key] for key in ("recording", "mirror", "split") if attrs.get(key)},
        **({"feet": int(feet[1])} if len(feet) == 2 else {}),
        **numbers,
    }


def is_number(value: Any) -> bool:
    """Whether a value is a finite number and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def totals(clips: Sequence[Findings]) -> Findings:
    """Clips, seconds, recordings and mirrored clips of a dataset."""
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
    """The medians of the motions' figures: of all, and by kind of movement."""
    by_name = {clip["name"]: clip for clip in clips}
    rows: list[Findings] = []
    for name, group in groups_of(motions).items():
        row: Findings = {"name": name, "clips": len(group)}
        for key in ("seconds", *FIGURES, "weight"):
            values = [by_name[motion.name].get(key) for motion in group]
            numbers = [float(value) for value in values if value is not None and is_number(value)]
            if numbers:
                row[key] = float(f"{np.median(numbers):.4g}")
        rows.append(row)
    return rows
