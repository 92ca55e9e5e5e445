"""Observations and actions in a robot's mirror images: numbers change places and signs."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mocap_data.arrays import Array
from npmp.envs.features import reference_points
from npmp.robots import Robot
from npmp.robots.symmetry import Symmetry

# parts of what is seen, in order: positions of the reference's points, the first two columns of its
# orientation, vectors and angular velocities in the root's frame, a number of each joint, a height
FRAME = ("points", "axes", "vector", "angular")  # of `ReferenceFeatures`, of each frame
TRUE_STATE = ("height", "vector", "joints", "vector", "angular", "joints", "vector", "joints")
PROPRIOCEPTION = ("joints", "joints", "angular", "vector", "vector")


class SignedPermutation(NamedTuple):
    """How rows of m numbers look in several mirrors; each image of an image is the row itself."""

    source: Tensor  # (mirrors, m) which number comes here
    sign: Tensor  # (mirrors, m) +-1

    def images(self, rows: Tensor) -> Tensor:
        """(..., m) -> (..., mirrors, m): in every mirror."""
        return rows[..., self.source] * self.sign

    def back(self, images: Tensor) -> Tensor:
        """(..., mirrors, m), each as seen in its mirror -> the same without."""
        return images.gather(-1, self.source.expand(images.shape)) * self.sign


class Mirrors:
    """All products of a robot's mirrors, none of them first, and what they make of contexts,
    observations and actions."""

    def __init__(self, robot: Robot, horizon: int, device: torch.device | str = "cpu"):
        """horizon: reference frames in a context."""
        kept, joints, points = robot.symmetries, len(robot.joint_names), reference_points(robot)
        self.names = tuple(
            frozenset(names)
            for count in range(len(kept) + 1)
            for names in itertools.combinations(kept, count)
        )
        width = {"points": 3 * len(points), "axes": 6, "joints": joints, "height": 1}

        def permutation(*kinds: str) -> SignedPermutation:
            widths = [width.get(kind, 3) for kind in kinds]
            rows = []
            for names in self.names:
                # whose values tell where they come from, and their signs
                row = np.arange(1.0, sum(widths) + 1.0)
                for name in names:
                    parts = zip(kinds, np.split(row, np.cumsum(widths)[:-1]), strict=True)
                    row = np.concatenate(
                        [_image(kind, part, kept[name], points).ravel() for kind, part in parts]
                    )
                rows.append(row)
            told = torch.from_numpy(np.stack(rows)).to(device)
            return SignedPermutation(told.abs().long() - 1, told.sign().float())

        self.context = permutation(*FRAME * horizon, *("joints",) * horizon, *TRUE_STATE)
        self.observation, self.action = permutation(*PROPRIOCEPTION), permutation("joints")

    def onto(self, mirror: str) -> list[frozenset[str]]:
        """For each of `names`, the mirrors of its recording that show a motion made in `mirror`
        ("left_right+front_back")."""
        return [
            names ^ frozenset(name for name in mirror.split("+") if name) for names in self.names
        ]


def _image(kind: str, part: Array, mirror: Symmetry, points: list[int]) -> Array:
    if kind == "joints":
        return mirror.mirror_joints(part)
    if kind == "height":
        return part
    rows = part.reshape(-1, 3)
    if kind == "points":
        rows = rows[[points.index(int(mirror.body_permutation[body])) for body in points]]
    if kind == "axes":  # of S R S
        rows = rows * mirror.reflection[:2, None]
    return mirror.mirror_points(rows) * (-1.0 if kind == "angular" else 1.0)
