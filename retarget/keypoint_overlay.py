"""Keypoints of a recording as an overlay on the robot's motion, and their bones.

Shapes: T frames, M keypoints. World frame, Z up, metres.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse.csgraph import minimum_spanning_tree

from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.motion import ReferenceMotion
from retarget.kinematics import Index

# frames for the distances of keypoints
_SAMPLE = 60


def keypoints_of(
    motion: ReferenceMotion, clip: Clip, scale: float = 1.0, slower: float = 1.0
) -> Array:
    """The recording's keypoints (T, M, 3) [m] at the motion's frames, on the floor by the robot.

    scale, slower: factors of the retargeting on the recording's lengths and time.
    """
    seconds = motion.start_s + np.arange(motion.num_frames) / motion.rate_hz
    frames = np.clip(seconds / slower * clip.rate_hz, 0, clip.num_frames - 1)
    before = np.minimum(np.floor(frames).astype(np.int64), max(clip.num_frames - 2, 0))
    after = np.minimum(before + 1, clip.num_frames - 1)
    share = (frames - before)[:, None, None]
    points = (1.0 - share) * clip.positions[before] + share * clip.positions[after]
    floor = float(np.percentile(clip.positions[..., 2].min(axis=1), 5))
    mirrors = motion.mirror.split("+")
    flips = [-1.0 if name in mirrors else 1.0 for name in ("front_back", "left_right")]
    points = (points - [0.0, 0.0, floor]) * scale * np.array([*flips, 1.0])
    points[..., :2] += (motion.qpos[:, :2] - points[..., :2].mean(axis=1)).mean(axis=0)
    return np.asarray(points)


def bones(clip: Clip) -> Index:
    """Pairs of keypoints (N, 2) joined by a line: the clip's hierarchy, else the tree of keypoints
    whose distances change least."""
    if clip.parents is not None:
        pairs = [(parent, child) for child, parent in enumerate(clip.parents) if parent >= 0]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)
    even = np.linspace(0, clip.num_frames - 1, min(_SAMPLE, clip.num_frames)).round()
    positions = clip.positions[even.astype(np.int64)]
    distance = np.linalg.norm(positions[:, :, None] - positions[:, None, :], axis=-1)
    cost = distance.std(axis=0) + 0.1 * distance.mean(axis=0)
    # a cost of 0 would remove the edge
    tree = minimum_spanning_tree(cost + 1e-9 * (1.0 - np.eye(len(cost))))
    return np.stack(tree.nonzero(), axis=1).astype(np.int64)
