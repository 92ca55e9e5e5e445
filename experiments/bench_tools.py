"""What the benchmarks share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from omegaconf import DictConfig

    from mocap_data import MotionSet
    from npmp.robots import Robot


def finished(device: torch.device) -> float:
    """The time [s] once everything that the device was asked to do is done."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def motions_of(config: DictConfig, robot: Robot) -> MotionSet:
    """The dataset that data= names, else the generated dog gaits."""
    from mocap_data import demo_clips
    from npmp.envs import load_motions
    from retarget import retarget_many

    return (
        retarget_many(demo_clips(), robot)
        if config.data is None
        else load_motions(config.data, robot)
    )
