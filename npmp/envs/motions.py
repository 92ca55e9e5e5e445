"""Loading a robot's motion dataset."""

from __future__ import annotations

from pathlib import Path

from mocap_data.errors import InputError
from mocap_data.store import MotionSet, read_motions
from npmp.robots import Robot


def load_motions(path: str | Path, robot: Robot, split: str | None = None) -> MotionSet:
    """Load a motion dataset of a robot.

    Args:
      split: "train" or "validation"; None: all motions.

    Raises:
      InputError: for an unreadable dataset, one of another robot or model, or a missing split.
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
