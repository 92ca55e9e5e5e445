"""Constructed motions of a robot, for tests of the steps after retargeting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.motion import ReferenceMotion
from npmp.robots import Robot


def motion_of(
    robot: Robot, qpos: Array, rate_hz: float = 50.0, name: str = "m", **more: object
) -> ReferenceMotion:
    """Poses (T, 7 + J) as a motion."""
    return ReferenceMotion(name=name, qpos=qpos, rate_hz=rate_hz, **more)


def mirrored(
    clip: Clip, pairs: Sequence[tuple[str, str]], signs: Sequence[float] = (1.0, -1.0, 1.0)
) -> Clip:
    """A recording seen in a mirror through the origin. pairs: how names of one side begin and how
    the other's do, the first that fits counts; names of which no other side is there stay."""

    def image(name: str) -> str:
        both = [*pairs, *((b, a) for a, b in pairs)]
        result = (b + name.removeprefix(a) for a, b in both if name.startswith(a))
        return next((other for other in result if other in clip.names), name)

    columns = [clip.index(image(name)) for name in clip.names]
    return replace(clip, positions=clip.positions[:, columns] * signs)


def standing(robot: Robot, frames: int) -> Array:
    """The home pose (T, 7 + J), standing at the origin."""
    return np.tile(robot.home_qpos, (frames, 1))


def walking(robot: Robot, frames: int, speed: float, rate_hz: float = 50.0) -> Array:
    """A gliding stand (T, 7 + J), 2 cm above the floor: goes along x at `speed` [m/s] while its
    joints move a little."""
    qpos = standing(robot, frames)
    time = np.arange(frames) / rate_hz
    qpos[:, 0] += speed * time
    qpos[:, 2] += 0.02
    qpos[:, 7:] += 0.1 * np.sin(2 * np.pi * 1.5 * time)[:, None]
    return qpos


def wandering(robot: Robot, frames: int, seed: int = 0, rate_hz: float = 50.0) -> Array:
    """Smooth random poses (T, 7 + J): the root turns about every axis, joints swing within their
    limits."""
    rng = np.random.default_rng(seed)
    time = np.arange(frames)[:, None] / rate_hz

    def sway(width: int) -> Array:
        return np.asarray(
            np.sin(2 * np.pi * rng.uniform(0.2, 1.0, width) * time + rng.uniform(0, 6, width))
        )

    joints = robot.joint_lower + (0.5 + 0.45 * sway(len(robot.joint_names))) * (
        robot.joint_upper - robot.joint_lower
    )
    place = np.array([0.3, 0.2, 0.9]) + sway(3) * [0.5, 0.4, 0.05]
    turn = rotations.from_euler("ZYX", sway(3) * [2.5, 0.4, 0.5])
    return np.concatenate([place, turn, joints], axis=1)


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """The functions of this file."""
    return SimpleNamespace(
        motion_of=motion_of,
        mirrored=mirrored,
        standing=standing,
        walking=walking,
        wandering=wandering,
    )
