"""A short rendered film of a robot's motion, where MuJoCo can draw without a display.

Off-screen drivers that are half installed can take the whole process down, so the drawing happens in another one, with
a time limit: whatever goes wrong there, the answer here is None.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import mujoco
import numpy as np
import numpy.typing as npt

BACKENDS = ("egl", "osmesa")
TIME_LIMIT_S = 45.0
FRAMES_PER_S = 10.0
MAX_SECONDS = 6.0
SIZE = (400, 256)  # width, height [pixels]
MAX_BYTES = 1_500_000
NO_VIDEO = "NPMP_NO_VIDEO"


def backends() -> tuple[str, ...]:
    """Backends worth trying: the one that MUJOCO_GL names, or all when it is unset or switched off for this process
    alone."""
    named = os.environ.get("MUJOCO_GL", "").strip().lower()
    return (named,) if named in BACKENDS else BACKENDS


def render(model: mujoco.MjModel, qpos: npt.ArrayLike, rate_hz: float) -> bytes | None:
    """An animated WebP of the first seconds of poses qpos (T, nq), or None when nothing can draw here.

    The environment variable NPMP_NO_VIDEO, when set, says not to try. Frames that are not finite end the film.
    """
    if os.environ.get(NO_VIDEO):
        return None
    q = np.asarray(qpos, dtype=np.float64)
    step = max(1, round(rate_hz / FRAMES_PER_S))
    q = q[: int(MAX_SECONDS * rate_hz) : step]
    bad = ~np.isfinite(q).all(axis=1)
    q = q[: int(np.argmax(bad))] if bad.any() else q
    if len(q) < 2 or q.shape[1] != model.nq:
        return None
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder) / "model.mjb", Path(folder) / "film.webp"
            mujoco.mj_saveModel(model, str(source), None)
            np.save(Path(folder) / "qpos.npy", q)
            for backend in backends():
                command = [sys.executable, "-m", "npmp.robots.film", folder, str(rate_hz / step)]
                environment = {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
                root = str(Path(__file__).resolve().parents[2])
                environment["PYTHONPATH"] = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
                done = subprocess.run(command, env=environment, capture_output=True, timeout=TIME_LIMIT_S, check=False)
                if done.returncode == 0 and target.is_file():
                    picture = target.read_bytes()
                    return picture if 0 < len(picture) <= MAX_BYTES else None
    except (OSError, subprocess.SubprocessError, mujoco.FatalError):
        return None
    return None


def _draw(folder: Path, fps: float) -> None:
    """The other process: read the model and the poses, write film.webp."""
    from PIL import Image

    model = mujoco.MjModel.from_binary_path(str(folder / "model.mjb"))
    frames = np.load(folder / "qpos.npy", allow_pickle=False)
    data = mujoco.MjData(model)
    camera = mujoco.MjvCamera()
    camera.distance, camera.azimuth, camera.elevation = 2.1, 120.0, -26.0
    look = mujoco.MjvOption()
    model.vis.headlight.ambient[:] = 0.5
    model.vis.headlight.diffuse[:] = 0.6
    pictures = []
    with mujoco.Renderer(model, height=SIZE[1], width=SIZE[0]) as renderer:
        for q in frames:
            data.qpos[:] = q
            mujoco.mj_forward(model, data)
            camera.lookat[:] = (q[0], q[1], 0.35)
            renderer.update_scene(data, camera, look)
            _floor(renderer.scene, q)
            pictures.append(Image.fromarray(renderer.render()))
    out = io.BytesIO()
    pictures[0].save(
        out, "WEBP", save_all=True, append_images=pictures[1:], duration=round(1000 / fps), loop=0, quality=55, method=3
    )
    (folder / "film.webp").write_bytes(out.getvalue())


def _floor(scene: mujoco.MjvScene, q: np.ndarray) -> None:
    """A plane at z = 0 with tiles around the robot: its model has no floor of its own."""
    tile = 0.5
    cx, cy = int(np.floor(q[0] / tile)), int(np.floor(q[1] / tile))
    # (kind, half sizes, centre, brightness)
    things = [(mujoco.mjtGeom.mjGEOM_PLANE, (40.0, 40.0, 0.1), (float(q[0]), float(q[1]), -0.004), 0.62)]
    for i in range(-8, 9):
        for j in range(-8, 9):
            if (cx + i + cy + j) % 2:
                centre = ((cx + i + 0.5) * tile, (cy + j + 0.5) * tile, -0.002)
                things.append((mujoco.mjtGeom.mjGEOM_BOX, (tile / 2, tile / 2, 0.002), centre, 0.57))
    for kind, size, centre, bright in things:
        if scene.ngeom >= scene.maxgeom:
            return
        colour = np.array([bright, bright, bright + 0.03, 1.0], dtype=np.float32)
        mujoco.mjv_initGeom(
            scene.geoms[scene.ngeom], kind, np.array(size), np.array(centre), np.eye(3).reshape(-1), colour
        )
        scene.ngeom += 1


if __name__ == "__main__":
    _draw(Path(sys.argv[1]), float(sys.argv[2]))
