"""Render shots to frames, each in another process, as a driver may crash it, and add captions."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt

from mocap_data.errors import InputError
from mocap_data.input_files import require_memory
from npmp.view.render import backend
from npmp.view.render.caption import Caption
from npmp.view.render.clip import frame_choice
from npmp.view.render.shot import FOVY_DEG, Camera, Shot, camera_of, smoothed
from npmp.view.render.stage import stage

# cross-fade between shots [s]
FADE_S = 0.4
# time-out of a backend's first frame [s]
FIRST_FRAME_S = 60.0

Pictures = npt.NDArray[np.uint8]
_ROOT = str(Path(__file__).resolve().parents[3])


@dataclass(frozen=True)
class Frames:
    """The frames of a film."""

    # (N, height, width, 3) RGB
    pictures: Pictures
    fps: float
    # backend that rendered the pictures
    backend: str


def draw(
    shots: Sequence[Shot],
    size: tuple[int, int],
    fps: float,
    *,
    captions: bool = True,
    progress: Callable[[int, int], object] = lambda done, count: None,
) -> Frames:
    """The frames of shots with cross-fades.

    Args:
      size: width and height [pixels], both even.
      fps: upper limit; the rate divides that of the first shot.
      captions: add titles, notes and velocities.
      progress: called with the number of rendered frames and of all.

    Raises:
      InputError: if no backend works, or the memory is insufficient.
    """
    fps = frame_choice(1, shots[0].clip.rate_hz, fps)[1]
    indices = [_frame_indices(shot, fps) for shot in shots]
    count = sum(map(len, indices))
    text = f"{count:,} frames of {size[0]}x{size[1]} pixels"
    require_memory(2.0 * count * size[0] * size[1] * 3, text)
    rendered: list[Pictures] = []
    used: str | None = None
    for shot, frames in zip(shots, indices, strict=True):
        before = sum(map(len, rendered))

        def shot_progress(done: int, before: int = before) -> object:
            return progress(before + done, count)

        camera = camera_of(shot, size)
        camera = replace(camera, lookat=camera.lookat[frames])
        pictures, used = _render(shot, frames, camera, size, used, shot_progress)
        if captions:
            caption = Caption(shot, camera, size)
            pairs = zip(pictures, frames, strict=True)
            pictures = np.stack([caption.apply(picture, t) for picture, t in pairs])
        rendered.append(pictures)
    return Frames(_joined(rendered, round(FADE_S * fps)), fps, str(used))


def _frame_indices(shot: Shot, fps: float) -> npt.NDArray[np.int64]:
    """The frames of a shot to render in real time."""
    count = len(shot.qpos)
    if shot.frame is not None:
        return np.array([shot.frame])
    rate = shot.clip.rate_hz
    length = max(1, int((count - 1) / rate * fps + 1e-6) + 1)
    return np.minimum(np.round(np.arange(length) / fps * rate), count - 1).astype(np.int64)


def _joined(parts: Sequence[Pictures], fade: int) -> Pictures:
    """The parts joined with cross-fades of `fade` frames."""
    film = parts[0]
    for part in parts[1:]:
        over = min(fade, len(film) // 2, len(part) // 2)
        share = (np.arange(1, over + 1) / (over + 1))[:, None, None, None]
        start = len(film) - over
        mixed = np.round((1.0 - share) * film[start:] + share * part[:over]).astype(np.uint8)
        film = np.concatenate((film[:start], mixed, part[over:]))
    return film


def _inputs(
    shot: Shot, frames: npt.NDArray[np.int64], camera: Camera, size: tuple[int, int]
) -> dict[str, Any]:
    """Inputs of the rendering process except the model."""
    clip = shot.clip
    inputs: dict[str, npt.ArrayLike] = {
        "qpos": shot.qpos[frames],
        "size": size,
        "robot": shot.has("robot"),
        "lookat": camera.lookat,
        "camera": (camera.azimuth, camera.elevation, camera.distance),
    }
    if clip.reference is not None and shot.has("ghost"):
        inputs["ghost"] = clip.reference[frames]
    if (figure := shot.figure) is not None:
        inputs["figure"] = figure[frames]
        inputs["bones"] = np.zeros((0, 2), dtype=np.int64) if clip.bones is None else clip.bones
    if clip.command is not None:
        inputs["command"] = clip.command[frames]
    if clip.achieved is not None:
        inputs["achieved"] = smoothed(clip.achieved, clip.rate_hz)[frames]
    if clip.ball is not None and clip.target is not None:
        inputs |= {"ball": clip.ball[frames], "ball_m": clip.ball_m, "target": clip.target[frames]}
    if shot.path is not None:
        inputs["path"] = shot.path
    return {name: np.asarray(value) for name, value in inputs.items()}


def _render(
    shot: Shot,
    frames: npt.NDArray[np.int64],
    camera: Camera,
    size: tuple[int, int],
    only: str | None,
    progress: Callable[[int], object],
) -> tuple[Pictures, str]:
    """A shot's frames without captions, and the backend that rendered them: `only`, or the first
    that works."""
    clip = shot.clip
    mount = shot.mount if shot.view.mode == "robot" else None
    model = stage(
        shot.robot,
        size,
        camera.distance,
        clip.ground,
        clip.ground_m,
        shot.qpos[:, :2],
        mount,
        glass=shot.glass,
    )
    model.vis.global_.fovy = FOVY_DEG
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        mujoco.mj_saveModel(model, str(Path(folder) / "model.mjb"), None)
        np.savez(Path(folder) / "shot.npz", **_inputs(shot, frames, camera, size))
        for name in (only,) if only else backend.candidates():
            pictures, failed[name] = _try_backend(name, folder, len(frames), size, progress)
            if pictures is not None:
                return pictures, name
    reasons = [f"{name}: {why} ({backend.ADVICE.get(name, '')})" for name, why in failed.items()]
    raise InputError(f"no rendering backend works: {'; '.join(reasons) or 'none to try'}")


def _try_backend(
    name: str, folder: str, count: int, size: tuple[int, int], progress: Callable[[int], object]
) -> tuple[Pictures | None, str]:
    """The frames of a backend, or None and the reason."""
    pictures = np.empty((count, size[1], size[0], 3), dtype=np.uint8)
    environment = backend.environment(name)
    environment["PYTHONPATH"] = ":".join(filter(None, (_ROOT, environment.get("PYTHONPATH"))))
    # -P: no imports from the current folder
    command = [sys.executable, "-P", "-m", "npmp.view.render.drawing", folder]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors)
        assert isinstance(process.stdout, io.BufferedReader)  # for the type checker
        alarm = threading.Timer(FIRST_FRAME_S, process.kill)
        alarm.start()
        done = 0
        try:
            while done < count and process.stdout.readinto(pictures[done]) == pictures[done].nbytes:
                done += 1
                alarm.cancel()
                progress(done)
            process.stdout.close()
            code = process.wait(timeout=FIRST_FRAME_S)
        finally:
            alarm.cancel()
            process.kill()
            process.wait()
        errors.seek(0)
        message = errors.read().decode("utf-8", errors="replace")
    if done < count:
        slow = f"too slow ({done} of {count} frames)"
        return None, slow if code == -9 else backend.reason(code, message)
    if not pictures.any():
        return None, "the frames are black"
    return pictures, ""
