"""What the benchmarks share."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from npmp.robots import Robot


def finished(device: torch.device) -> float:
    """The time [s] once everything that the device was asked to do is done."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def synthetic_motions(robot: Robot, path: Path) -> Path:
    """The generated dog gaits as a dataset at `path`."""
    from mocap_data import demo_clips, write_motions
    from retarget import retarget_many

    write_motions(path, retarget_many(demo_clips(), robot))
    return path
