"""Motions of a dataset as mjlab's npz or Unitree's CSV, a file per clip."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mocap_data import hdf5
from mocap_data.errors import InputError, check_available
from mocap_data.export import write_mjlab_npz, write_unitree_csv
from mocap_data.files import write_json
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet, read_motions, splits_in
from npmp import robots
from npmp.robots import Robot
from retarget.kinematics import body_states, tree_of
from retarget.resampling import resample

MANIFEST = "export.json"
MJLAB = "mjlab"
UNITREE = "unitree_csv"


def clip_names(data: Path, clips: Sequence[str] | None, split: Any) -> list[str]:
    """The names of the clips to write. Raises InputError for unknown ones, or none."""
    split_of = splits_in(data)
    check_available(f"clip in {data}", clips or [], split_of)
    names = list(split_of) if clips is None else list(dict.fromkeys(clips))
    if split is not None:
        check_available(f"split in {data}", [split], sorted({*split_of.values()} - {""}))
        names = [name for name in names if split_of[name] == split]
    if not names:
        raise InputError(f"{data}: no clips left of clips={clips}, split={split}")
    return names


def check_flat(kind: str, data: Path, names: Sequence[str]) -> None:
    """Raise InputError for a clip over stairs or gaps, whose ground no format holds."""
    with hdf5.open_hdf5(data) as file:
        for name in names:
            if hdf5.member(hdf5.member(file, name), "ground") is not None:
                raise InputError(
                    f"motion {name!r} is over stairs or gaps, which format={kind} cannot express; "
                    "leave it out by clips="
                )


def robot_of_dataset(kind: str, data: Path, motions: MotionSet) -> Robot | None:
    """The robot of a dataset; None for an unknown robot, or another model of it.

    Raises:
      InputError: a format that needs the robot.
    """
    with contextlib.suppress(InputError):
        robot = robots.load(motions.robot)
        if robot.model_sha256 == motions.model_sha256:
            return robot
    if kind == MJLAB:
        raise InputError(
            f"format=mjlab: needs the model of robot {motions.robot!r} of {data}, which is not"
            " installed; set format=unitree_csv"
        )
    return None


CONVENTIONS = {
    MJLAB: "metres, radians, seconds; world Z up; quaternions w, x, y, z, body to world; "
    "velocities of body origins in world axes; bodies without the world, joints and bodies in "
    "MuJoCo's order",
    UNITREE: "metres, radians; world Z up; root x, y, z, quaternion x, y, z, w (root to world), "
    "joints; no header",
}


def at_rate(
    motion: ReferenceMotion, rate_hz: float | None, robot: Robot | None, name: str
) -> ReferenceMotion:
    """A motion at a frame rate; None: its own. name: of the robot.

    Raises:
      InputError: another rate without the robot's model.
    """
    if rate_hz is None or float(rate_hz) == motion.rate_hz:
        return motion
    if robot is None:
        raise InputError(
            f"rate_hz={rate_hz}: resampling needs the model of robot {name!r},"
            f" which is not installed; expected the data's {motion.rate_hz:g}"
        )
    return resample(motion, robot, float(rate_hz))


def export(
    folder: Path,
    kind: str,
    data: Path,
    names: Sequence[str],
    robot: Robot | None,
    rate_hz: float | None = None,
) -> list[dict[str, Any]]:
    """Write a file per clip of a dataset and export.json; returns its entries of clips.

    One clip at a time: a dataset may be larger than memory. robot: of `robot_of_dataset`. rate_hz:
    None: each clip's.

    Raises:
      InputError: another rate without the robot's model, or a clip over stairs or gaps.
    """
    check_flat(kind, data, names)
    written: list[dict[str, Any]] = []
    for name in names:
        body_names = robot.body_names if robot is not None and kind == MJLAB else None
        motions = read_motions(data, clips=[name], body_names=body_names)
        motion = motions.motions[0]
        motion = at_rate(motion, rate_hz, robot, motions.robot)
        if kind == MJLAB:
            assert robot is not None  # by `robot_of_dataset`
            path = folder / f"{name}.npz"
            bodies = body_states(tree_of(robot.model(visuals=False)), motion)
            write_mjlab_npz(path, motion, motions.joint_names, motions.body_names, bodies)
        else:
            path = folder / f"{name}.csv"
            write_unitree_csv(path, motion, motions.joint_names, robot=motions.robot)
        keys = ("source", "licence", "recording", "mirror", "split")
        entry = {"name": name, "file": path.name, "frames": motion.num_frames}
        entry |= {"rate_hz": motion.rate_hz} | {key: getattr(motion, key) for key in keys}
        written.append(entry)
    manifest = {
        "format": kind,
        "conventions": CONVENTIONS[kind],
        "data": str(data),
        "robot": motions.robot,
        "model_sha256": motions.model_sha256,
        "joint_names": list(motions.joint_names),
        "body_names": list(motions.body_names),
        "clips": written,
    }
    write_json(folder / MANIFEST, manifest)
    return written
