"""One thing to watch: a robot's motion and what is shown with it, in the page's replay and in
films."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mocap_data.arrays import Array


@dataclass(frozen=True)
class ReplayClip:
    """One thing to watch.

    Attributes:
        qpos: (T, nq) the robot; reference: (T, nq) its ghost, or None.
        rate_hz: frames per second of both.
        tracked_frames: frames until the robot was lost, None when it never was.
        command, achieved: (T, 3) forward and lateral velocity [m/s] and yaw rate [rad/s], drawn as
          arrows, or None.
        keypoints: (T, M, 3) [m] of the recording, where the robot is; bones: (N, 2) pairs of them
          to draw rods between.
        feet: (T, F, 3) [m] the middle of the soles; contacts: (T, F) when they stand; sole_m: the
          radius [m] of the discs under them.
        ground: (n, n) heights [m] of one period of rough ground from the origin on, row by y; None:
          flat, at 0.
        ground_m: the distance of its points [m].
        ball: (T, 3) [m] the middle of a ball, or None; ball_m: its radius; target: (T, 2) [m] where
          it should be.
    """

    name: str
    qpos: Array
    rate_hz: float
    reference: Array | None = None
    tracked_frames: int | None = None
    command: Array | None = None
    achieved: Array | None = None
    keypoints: Array | None = None
    bones: npt.NDArray[np.int64] | None = None
    feet: Array | None = None
    contacts: npt.NDArray[np.bool_] | None = None
    sole_m: float = 0.05
    ground: npt.NDArray[np.floating[Any]] | None = None
    ground_m: float = 0.1
    ball: Array | None = None
    ball_m: float = 0.1
    target: Array | None = None

    def __post_init__(self) -> None:
        # a trial's are of single precision
        for name in ("qpos", "reference", "command", "achieved", "ball", "target"):
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, np.asarray(values, dtype=np.float64))


def frame_choice(frames: int, rate_hz: float, fps: float) -> tuple[npt.NDArray[np.int64], float]:
    """Which of `frames` at `rate_hz` to keep for about `fps`, evenly spaced, and the exact rate
    kept: never above `rate_hz`."""
    step = max(1, round(rate_hz / fps))
    return np.arange(0, frames, step), rate_hz / step
