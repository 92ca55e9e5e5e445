"""A robot's motion with what is drawn beside it, for the page's replay and for films."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mocap_data.arrays import Array
from mocap_data.ground_profile import CELL_M, GroundProfile


@dataclass(frozen=True)
class ReplayClip:
    """A robot's motion with what is drawn beside it.

    Attributes:
      qpos: (T, nq). reference: (T, nq) of its ghost, or None.
      rate_hz: frames per second.
      tracked_frames: frames until the robot was lost, None if it never was.
      command, achieved: (T, 3) forward and lateral velocity [m/s] and yaw rate [rad/s], drawn as
        arrows, or None.
      keypoints: (T, M, 3) of the recording, at the robot [m]. bones: (N, 2) pairs of keypoints.
      feet: (T, F, 3) centres of the soles [m]. contacts: (T, F) whether they stand. sole_m: radius
        of the discs under them [m].
      ground: (n, n) heights of one period of rough ground from the origin, row by y [m]; None: flat
        at 0. ground_m: spacing of its points [m].
      ball: (T, 3) centre of a ball [m], or None. ball_m: its radius [m]. target: (T, 2) of the ball
        [m].
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
        # a trial's arrays are of single precision
        for name in ("qpos", "reference", "command", "achieved", "ball", "target"):
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, np.asarray(values, dtype=np.float64))


def ground_of(ground: GroundProfile | None) -> dict[str, Any]:
    """The ground of a motion as fields of `ReplayClip`; {} for flat ground."""
    if ground is None:
        return {}
    heights = ground.heights
    return {"ground": np.tile(heights, (len(heights), 1)), "ground_m": CELL_M}


def frame_choice(frames: int, rate_hz: float, fps: float) -> tuple[npt.NDArray[np.int64], float]:
    """Indices of evenly spaced frames at about `fps`, and their exact rate, at most `rate_hz`."""
    step = max(1, round(rate_hz / fps))
    return np.arange(0, frames, step), rate_hz / step
