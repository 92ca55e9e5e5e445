"""The short film in a report, where something can draw; nobody waits for it long, and nothing fails
without it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from mocap_data.errors import InputError
from npmp.render.clip import ReplayClip
from npmp.render.files import write
from npmp.render.film import draw
from npmp.render.shot import Shot
from npmp.robots import Robot

TIME_LIMIT_S = 45.0
FRAMES_PER_S = 10.0
MAX_SECONDS = 6.0
SIZE = (400, 256)  # width, height [pixels]
MAX_MB = 1.5
NO_VIDEO = "NPMP_NO_VIDEO"


def short_film(robot: Robot, clip: ReplayClip) -> bytes | None:
    """An animated WebP of a clip's first seconds, the robot and its ghost, or None when nothing can
    draw here.

    The environment variable NPMP_NO_VIDEO, when set, says not to try. Frames that are not finite
    end the film.
    """
    if os.environ.get(NO_VIDEO):
        return None
    count = int(MAX_SECONDS * clip.rate_hz)
    poses = [
        np.asarray(q, dtype=np.float64)[:count]
        for q in (clip.qpos, clip.reference)
        if q is not None
    ]
    bad = np.asarray(~np.isfinite(np.concatenate(poses, axis=1)).all(axis=1))
    count = int(np.argmax(bad)) if bad.any() else len(bad)
    if count < 2 or poses[0].shape[1] != len(robot.home_qpos):
        return None
    ghost = poses[1][:count] if len(poses) > 1 else None
    shown = ReplayClip(clip.name, poses[0][:count], clip.rate_hz, reference=ghost)
    try:
        frames = draw([Shot(robot, shown)], SIZE, FRAMES_PER_S, timeout_s=TIME_LIMIT_S)
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / "film.webp", frames, max_mb=MAX_MB)
            return (Path(folder) / "film.webp").read_bytes()
    except (InputError, OSError):
        return None
