"""Motions of a dataset in others' formats: mjlab's npz and Unitree's CSV, a file per clip."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError, check_known, unknown
from mocap_data.export import write_mjlab_npz, write_unitree_csv
from mocap_data.files import write_json
from mocap_data.store import MotionSet, read_motions, splits_in
from npmp import robots
from npmp.robots import Robot
from retarget.kinematics import body_states, tree_of
from retarget.resampling import resample

MANIFEST = "export.json"
MJLAB = "mjlab"
UNITREE = "unitree_csv"


def chosen(data: Path, asked: Sequence[str] | None, split: Any) -> list[str]:
    """The names of the clips to write. Raises InputError for one that there is not, or none."""
    of = splits_in(data)
    available = list(of)
    check_known(f"clip in {data}", asked or [], available)
    names = available if asked is None else list(dict.fromkeys(asked))
    if split is not None:
        if split not in of.values():
            raise unknown(f"split in {data}", split, sorted({*of.values()} - {""}))
        names = [name for name in names if of[name] == split]
    if not names:
        why = " holds no clips" if split is None else f": no clip of clips= is of {split=!s}"
        raise InputError(f"{data}{why}")
    return names


def robot_for(kind: str, data: Path, motions: MotionSet) -> Robot | None:
    """The robot that a dataset is of, None where it is none of those here, or has another model by
    now. Raises InputError where a format needs it."""
    with contextlib.suppress(InputError):
        robot = robots.load(motions.robot)
        if robot.model_sha256 == motions.model_sha256:
            return robot
    if kind == MJLAB:
        raise InputError(
            f"{data}: format=mjlab holds the bodies' poses; these need the model of robot "
            f"{motions.robot!r} that the motions were made with, which is not here "
            "(format=unitree_csv needs none)"
        )
    return None


CONVENTIONS = {
    MJLAB: "metres, radians, seconds; world Z up; quaternions w, x, y, z, body to world; "
    "velocities of body origins in world axes; bodies without the world, joints and bodies in "
    "MuJoCo's order",
    UNITREE: "metres, radians; world Z up; root x, y, z, quaternion x, y, z, w (root to world), "
    "joints; no header",
}


def export(
    folder: Path,
    kind: str,
    data: Path,
    names: Sequence[str],
    robot: Robot | None,
    rate_hz: float | None = None,
) -> list[dict[str, Any]]:
    """Write a file per clip of a dataset and export.json; gives what it says of each clip.

    One clip at a time: a dataset may be larger than memory. robot: as `robot_for`. rate_hz: None:
    each clip's own.

    Raises:
      InputError: where the robot that another rate needs is not here.
    """
    written: list[dict[str, Any]] = []
    for name in names:
        bodies_of = robot.body_names if robot is not None and kind == MJLAB else None
        motions = read_motions(data, clips=[name], body_names=bodies_of)
        motion = motions.motions[0]
        if rate_hz is not None and float(rate_hz) != motion.rate_hz:
            if robot is None:
                raise InputError(
                    f"rate_hz={rate_hz}: resampling needs the robot's model, which is not here; "
                    "leave rate_hz out"
                )
            motion = resample(motion, robot, float(rate_hz))
        if kind == MJLAB:
            assert robot is not None  # by `robot_for`
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
