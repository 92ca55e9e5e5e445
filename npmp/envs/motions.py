"""Reading a motion dataset for a robot."""

from __future__ import annotations

from pathlib import Path

from mocap_data.errors import InputError
from mocap_data.store import MotionSet, read_motions
from npmp.robots import Robot


def load_motions(path: str | Path, robot: Robot, split: str | None = None) -> MotionSet:
    """A motion dataset made for this robot; of it, only the motions of `split` ("train",
    "validation"), or all for None.

    Raises:
      InputError: for one that cannot be read or was made for another robot or model, naming what
        differs, and for a split that it does not have.
    """
    motions = read_motions(
        path,
        robot=robot.name,
        model_sha256=robot.model_sha256,
        joint_names=robot.joint_names,
        body_names=robot.body_names,
    )
    if split is None:
        return motions
    try:
        return motions.select(split=split)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
