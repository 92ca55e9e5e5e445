"""What files of motion hold, as plain values, for `npmp inspect`: recordings, robots' motions of
others, CMU clips."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from mocap_data import read, rotations
from mocap_data.errors import InputError
from mocap_data.motion import ReferenceMotion
from mocap_data.npz import load_npz
from mocap_data.outside import read_json_object
from mocap_data.readers import cmu_h5, options_of
from mocap_data.readers.common import MissingOptions
from mocap_data.readers.robot_motions import (
    numbers_in_a_row,
    quaternions_in,
    read_robot_motion,
    unitree_csv,
)
from mocap_data.sanity import warnings_of
from npmp import robots
from npmp.experiments.common import is_number
from npmp.experiments.motion_tables import COLUMNS, groups_of

Findings = dict[str, Any]

# Of a motion's figures those of the table of a dataset.
FIGURES = ("rms_marker_m", "foot_slide_mps", "penetration_p99_m", "float_m", "leg_orientation_deg")
MOTIONS_SHOWN = 25  # of a dataset, on the terminal
LEANING = 0.5  # the height of the root's own up vector: less is more than 60 degrees from upright


def inspect_recording(path: Path) -> Findings:
    """A recording of keypoints in any format: times, keypoints, extent, speed, and what looks wrong
    about it.

    What the file does not say, names or rate, is given a place holder and listed as missing.
    """
    missing: tuple[str, ...] = ()
    try:
        clip = read(path)
    except MissingOptions as error:
        if not set(error.options) <= {"names", "rate_hz"}:
            raise
        missing = error.options
        stand_in: dict[str, Any] = {"rate_hz": 1.0} if "rate_hz" in missing else {}
        if "names" in missing:
            stand_in["names"] = [f"point_{i}" for i in range(count_of_keypoints(path))]
        clip = read(path, **stand_in)
    findings: Findings = {
        "path": str(path),
        "kind": f"recording ({path.suffix.lower()[1:]})",
        "name": clip.name,
        "frames": clip.num_frames,
        "rate_hz": "not in the file (source_rate_hz=)"
        if "rate_hz" in missing
        else round(clip.rate_hz, 6),
    }
    if "rate_hz" not in missing:
        findings["duration_s"] = round(clip.duration_s, 3)
    read_as = {key: value for key, value in options_of(path).items() if key in ("scale", "up")}
    if read_as:
        findings["read as"] = {
            key: "as the file says" if value is None else value for key, value in read_as.items()
        }
    findings.update(
        {"source": clip.source, "licence": clip.licence, "extent_m": extent_of(clip.positions)}
    )
    doubtful = []
    if (
        "names" in missing
        and path.suffix.lower() in (".csv", ".txt")
        and (turns := quaternions_in(path))
    ):
        doubtful.append(
            f"columns 4 to {3 + 4 * turns} are {turns} unit quaternions: a root's place and rotations, no keypoints"
        )
    if "rate_hz" not in missing:
        findings["speed_mps"] = speed_of(clip.positions[:, 0], clip.rate_hz)
        doubtful += warnings_of(clip)
    if doubtful:
        findings["doubts"] = doubtful
    names = (
        f"{len(clip.names)}, not named in the file (names= of mocap_data.read)"
        if "names" in missing
        else list(clip.names)
    )
    findings["keypoints"] = names
    return findings


def count_of_keypoints(path: Path) -> int:
    """How many keypoints an unnamed recording has: a third of a CSV row's numbers, or an archive's
    second dimension."""
    if path.suffix.lower() == ".npz":
        return int(load_npz(path, ("positions",))["positions"].shape[1])
    return numbers_in_a_row(path) // 3


def extent_of(positions: Any) -> dict[str, list[float]]:
    """Least and greatest coordinate along each axis of positions (..., 3), in mm precision."""
    flat = positions.reshape(-1, 3)
    low, high = flat.min(axis=0), flat.max(axis=0)
    return {axis: [round(float(a), 3), round(float(b), 3)] for axis, a, b in zip("xyz", low, high)}


def speed_of(path: Any, rate_hz: float) -> dict[str, float]:
    """Mean and greatest horizontal speed along a path (T, 3) [m/s]."""
    steps = np.linalg.norm(np.diff(path[:, :2], axis=0), axis=-1) * rate_hz
    return {
        "mean": round(float(steps.mean()), 3) if len(steps) else 0.0,
        "max": round(float(steps.max()), 3) if len(steps) else 0.0,
    }


def inspect_skeleton(path: Path) -> Findings:
    """An ASF skeleton: its bones and how many joint angles a motion of it has."""
    from mocap_data.readers.asf_amc import read_asf

    skeleton = read_asf(path)
    return {
        "path": str(path),
        "kind": "skeleton (asf); the motions are the .amc files beside it",
        "bones": len(skeleton.bones),
        "degrees of freedom": sum(len(bone.dofs) for bone in skeleton.bones),
        "metres per unit": round(float(skeleton.metres_per_unit), 6),
        "motions beside it": sorted(entry.name for entry in path.parent.glob(f"{path.stem}_*.amc")),
        "names": [bone.name for bone in skeleton.bones],
    }


def inspect_description(path: Path) -> Findings:
    """A JSON file that `npmp export` wrote; {} for any other."""
    try:
        content = read_json_object(path)
    except InputError:
        return {}
    if content.get("schema") == unitree_csv.SCHEMA:
        about = {
            key: value
            for key, value in content.items()
            if key not in ("schema", "version", "columns")
        }
        return {
            "path": str(path),
            "kind": f"what {path.with_suffix('.csv').name} does not say of itself",
            **about,
        }
    if {"format", "conventions", "joint_names", "clips"} <= set(content):
        return {"path": str(path), "kind": f"export to {content['format']}", **content}
    return {}


def inspect_robot_motion(path: Path, kind: str) -> Findings:
    """A robot's motion of others: conventions, names, ranges, and the robots here that have these
    joints."""
    unnamed = False
    try:
        motion = read_robot_motion(path, kind=kind)
    except MissingOptions:
        motion, unnamed = (
            read_robot_motion(path, kind=kind, joint_names=stand_in_names(path, kind)),
            True,
        )
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
        "conventions": {
            key: value
            for key, value in motion.conventions.items()
            if not (unnamed and key == "joint order")
        },
    }
    if np.median(up) < LEANING:
        findings["doubts"] = [
            "the root lies or is upside down most of the time (order of the quaternion? root frame?)"
        ]
    if motion.body_pos is not None:
        bodies = motion.body_names
        findings["bodies"] = (
            f"{motion.body_pos.shape[1]}, not named in the file" if bodies is None else list(bodies)
        )
    if unnamed:
        findings["joints"] = (
            f"{len(motion.joint_names)}, not named in the file: joint_names= or robot= is needed to read it"
        )
    else:
        findings["robots here with these joints"] = robots.with_joints(motion.joint_names) or "none"
    findings["joint angles"] = [
        {
            "joint": i if unnamed else name,
            "least_deg": round(low, 1),
            "greatest_deg": round(high, 1),
        }
        for i, (name, low, high) in enumerate(
            zip(
                motion.joint_names,
                np.degrees(motion.qpos[:, 7:].min(axis=0)).tolist(),
                np.degrees(motion.qpos[:, 7:].max(axis=0)).tolist(),
            )
        )
    ]
    return findings


def stand_in_names(path: Path, kind: str) -> list[str]:
    """As many names as an unnamed motion has joints."""
    if kind == "mjlab":
        return [f"joint_{i}" for i in range(load_npz(path, ("joint_pos",))["joint_pos"].shape[1])]
    return [f"joint_{i}" for i in range(numbers_in_a_row(path) - 7)]


def inspect_cmu(path: Path) -> Findings:
    """dm_control's CMU clips, by their attributes alone: none of the arrays is read."""
    clips = cmu_h5.list_cmu_h5(path)
    longest = max(clips, key=lambda clip: clip.duration_s)
    return {
        "path": str(path),
        "kind": "CMU humanoid clips (dm_control's HDF5)",
        "in all": {
            "clips": len(clips),
            "seconds": round(sum(clip.duration_s for clip in clips), 1),
        },
        "rate_hz": sorted({round(clip.rate_hz, 3) for clip in clips}),
        "longest": f"{longest.name}, {longest.duration_s:.1f} s",
        "joints": len(cmu_h5.JOINT_NAMES),
        "keypoints": list(cmu_h5.KEYPOINT_NAMES),
        "clips": [
            {
                "name": c.name,
                "frames": c.num_frames,
                "seconds": round(c.duration_s, 2),
                "rate_hz": round(c.rate_hz, 3),
            }
            for c in clips
        ],
    }


def totals(clips: Sequence[Findings]) -> Findings:
    """Clips, seconds, recordings and mirrored clips of a dataset, as far as its clips say."""
    recordings = {clip["recording"] for clip in clips if clip.get("recording")}
    mirrored = sum(bool(clip.get("mirror")) for clip in clips)
    return {
        "clips": len(clips),
        "seconds": round(
            sum(clip["seconds"] for clip in clips if isinstance(clip["seconds"], int | float)), 2
        ),
        **({"recordings": len(recordings)} if recordings else {}),
        **({"mirrored clips": mirrored} if mirrored else {}),
    }


def splits_of(clips: Sequence[Findings]) -> list[Findings]:
    """A row per split: its totals and how its sampling weights spread."""
    rows = []
    for split in sorted({str(clip.get("split", "")) for clip in clips}):
        inside = [clip for clip in clips if str(clip.get("split", "")) == split]
        weights = [
            float(clip["weight"]) for clip in inside if isinstance(clip.get("weight"), int | float)
        ]
        row = {"split": split or "none", **totals(inside)}
        if weights:
            row |= {
                "least weight": float(f"{min(weights):.4g}"),
                "greatest weight": float(f"{max(weights):.4g}"),
            }
        rows.append(row)
    return rows


def medians_of(motions: Sequence[ReferenceMotion], clips: Sequence[Findings]) -> list[Findings]:
    """The medians of the motions' figures: of all, and by kind of movement where there are several
    kinds."""
    of = {clip["name"]: clip for clip in clips}
    rows: list[Findings] = []
    for name, group in groups_of(motions).items():
        row: Findings = {"name": name, "clips": len(group)}
        for key in ("seconds", *FIGURES, "weight"):
            values = [of[motion.name].get(key) for motion in group]
            known = [float(value) for value in values if value is not None and is_number(value)]
            if known:
                row[key] = float(f"{np.median(known):.4g}")
        rows.append(row)
    return rows


def motion_table(clips: Sequence[Findings], medians: Sequence[Findings] = ()) -> Group:
    """Reference motions without mirror images, in the units of `npmp retarget`'s table: the
    `MOTIONS_SHOWN` longest where there are more, then the medians, and a line that says what is
    left out."""
    originals = [clip for clip in clips if not clip.get("mirror")] or list(clips)
    shown, title = originals, f"clips: {len(originals)}"
    if len(originals) > MOTIONS_SHOWN:
        shown = sorted(
            originals, key=lambda clip: -clip["seconds"] if is_number(clip["seconds"]) else 0.0
        )[:MOTIONS_SHOWN]
        title = f"clips: the {MOTIONS_SHOWN} longest of {len(originals)}"
    units = {key: (heading, factor, decimals) for heading, key, factor, decimals, _ in COLUMNS}
    numbers = {
        "seconds": ("s", 1.0, 1),
        **{key: units[key] for key in FIGURES},
        "weight": ("weight", 1.0, 3),
    }
    numbers = {
        key: how
        for key, how in numbers.items()
        if any(is_number(clip.get(key)) for clip in originals)
    }
    splits = any(clip.get("split") for clip in originals)
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    table.add_column("clip", overflow="fold", min_width=14)
    for heading, _, _ in numbers.values():
        table.add_column(heading, justify="right", no_wrap=True)
    if splits:
        table.add_column("split", no_wrap=True)

    def add(row: Findings) -> None:
        cells = [
            f"{factor * row[key]:.{decimals}f}" if is_number(row.get(key)) else "-"
            for key, (_, factor, decimals) in numbers.items()
        ]
        table.add_row(
            Text(str(row["name"])), *cells, *([str(row.get("split", ""))] if splits else [])
        )

    for clip in shown:
        add(clip)
    table.add_section()
    for row in medians:
        add(row)
    mirrors = len(clips) - len(originals)
    said = (
        [f"{mirrors} mirror image{'s' * (mirrors != 1)} besides, with the same figures"]
        if mirrors
        else []
    )
    said += ["out= writes all"] if mirrors or len(shown) < len(originals) else []
    return Group(table, *([Text("; ".join(said))] if said else []))
