"""Reads a dataset by LeRobot's own reader, in a process that has its packages.

    python read_by_lerobot.py FOLDER OUT.npz

OUT.npz has the frames, LeRobot's own statistics of episode 0, and `meta`, the rest as JSON.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:
    # Beside a torch for the CPU, a torchvision built for CUDA loads no operators. Its import only
    # registers their shapes, and LeRobot's reader calls none.
    for name in ("nms", "qnms"):
        signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{name}", signature)

from lerobot.datasets.compute_stats import compute_episode_stats
from lerobot.datasets.lerobot_dataset import LeRobotDataset

folder, out = sys.argv[1:]
dataset = LeRobotDataset("npmp/motions", root=folder, delta_timestamps={"action": [0.0, 0.02]})
frames = [dataset[index] for index in range(len(dataset))]
arrays = {
    key: np.stack([np.asarray(frame[key]) for frame in frames])
    for key in ("observation.state", "action", "timestamp", "episode_index", "frame_index")
}
values = {"observation.state": arrays["observation.state"], "action": arrays["action"][:, 0]}
meta = dataset.meta
statistics = {
    f"{owner}/{key}/{figure}": array
    for owner, stats in (
        ("lerobot", compute_episode_stats(values, meta.features)),
        ("dataset", meta.stats),
    )
    for key in values
    for figure, array in stats[key].items()
}
about = {
    "total_episodes": meta.total_episodes,
    "fps": meta.fps,
    "robot_type": meta.robot_type,
    "licences": list(meta.episodes["licence"]),
    "tasks": [frame["task"] for frame in frames],
}
np.savez(out, meta=json.dumps(about), **arrays, **statistics)
