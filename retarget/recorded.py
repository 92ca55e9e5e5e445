"""What a motion was made from: the recording's keypoints where the robot is, and their bones.

Shapes: T frames, M keypoints. World frame, Z up, metres.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import minimum_spanning_tree

from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.motion import ReferenceMotion


def keypoints_of(
    motion: ReferenceMotion, clip: Clip, scale: float = 1.0, slower: float = 1.0
) -> Array:
    """The recording's keypoints (T, M, 3) [m] at the motion's frames: on the floor, as large as the
    robot walks, and where the robot is; reflected as the motion is. scale, slower: the factors on
    the recording's lengths and on its time that it was retargeted with."""
    seconds = motion.start_s + np.arange(motion.num_frames) / motion.rate_hz
    at = np.clip(seconds / slower * clip.rate_hz, 0, clip.num_frames - 1)
    below = np.minimum(np.floor(at).astype(np.int64), max(clip.num_frames - 2, 0))
    share = (at - below)[:, None, None]
    above = np.minimum(below + 1, clip.num_frames - 1)
    points = (1.0 - share) * clip.positions[below] + share * clip.positions[above]
    points = points - [0.0, 0.0, float(np.percentile(clip.positions[..., 2].min(axis=1), 5))]
    points = points * scale * _reflection(motion.mirror)
    middle = points[..., :2].mean(axis=1)
    points[..., :2] += (motion.qpos[:, :2] - middle).mean(axis=0)
    return np.asarray(points)


def _reflection(mirrors: str) -> Array:
    """Signs (3,) by which places are seen in mirrors."""
    seen = mirrors.split("+")
    return np.array(
        [-1.0 if "front_back" in seen else 1.0, -1.0 if "left_right" in seen else 1.0, 1.0]
    )


def bones(clip: Clip) -> npt.NDArray[np.int64]:
    """Pairs of keypoints (N, 2) to draw a line between: the skeleton where the clip has one, else
    the keypoints whose distances change least, as a tree."""
    if clip.parents is not None:
        pairs = [(parent, child) for child, parent in enumerate(clip.parents) if parent >= 0]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)
    chosen = clip.positions[
        np.linspace(0, clip.num_frames - 1, min(60, clip.num_frames)).round().astype(np.int64)
    ]
    distance = np.linalg.norm(chosen[:, :, None] - chosen[:, None, :], axis=-1)
    cost = distance.std(axis=0) + 0.1 * distance.mean(axis=0)
    # a cost of 0 would be no edge
    tree = minimum_spanning_tree(cost + 1e-9 * (1.0 - np.eye(len(cost))))
    return np.stack(tree.nonzero(), axis=1).astype(np.int64)
