"""MuJoCo's rendering backends, tested in separate processes, as a broken driver may crash its
process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

# in the order of trial; those without a display first
BACKENDS = {"linux": ("egl", "osmesa", "glfw"), "darwin": ("cgl", "glfw")}.get(
    sys.platform, ("glfw",)
)
ADVICE = {
    "egl": "needs a GPU driver or Mesa: apt install libegl1 libgl1",
    "osmesa": "software rendering: apt install libosmesa6 (or libosmesa6-dev)",
    "glfw": "needs a display (DISPLAY) and libglfw3",
    "cgl": "needs a session with a screen",
}
# a small frame; black means that nothing was rendered
PROBE = """
import mujoco
model = mujoco.MjModel.from_xml_string(
    "<mujoco><worldbody><light pos='0 0 3'/><geom type='sphere' size='1' rgba='1 1 1 1'/>"
    "</worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 32, 32) as renderer:
    renderer.update_scene(data)
    assert renderer.render().max() > 0, "the frame is black"
"""


def candidates() -> tuple[str, ...]:
    """The backend of MUJOCO_GL, else all of this platform."""
    named = os.environ.get("MUJOCO_GL", "").strip().lower()
    return (named,) if named in ADVICE else BACKENDS


def environment(backend: str) -> dict[str, str]:
    """The environment of a process that renders with a backend."""
    chosen = {**os.environ, "MUJOCO_GL": backend}
    chosen.pop("PYOPENGL_PLATFORM", None)  # takes precedence over MUJOCO_GL
    return chosen


def reason(code: int, stderr: str) -> str:
    """The reason why a rendering process failed, by its exit code and stderr."""
    if code < 0:
        return f"the process died of signal {-code}"
    errors = [line for line in stderr.strip().splitlines() if line.strip()]
    errors = [line for line in errors if not line.startswith((" ", "Exception ignored"))]
    return (errors[-1] if errors else f"exit code {code}")[:160]


def reasons(timeout_s: float = 20.0) -> Mapping[str, str]:
    """The reason of failure by backend, "" for one that works."""
    results = {}
    for name in BACKENDS:
        try:
            command = [sys.executable, "-P", "-c", PROBE]
            options: dict[str, Any] = {"env": environment(name), "timeout": timeout_s}
            probe = subprocess.run(command, capture_output=True, text=True, **options)
        except subprocess.TimeoutExpired:
            results[name] = f"no answer in {timeout_s:g} s"
            continue
        results[name] = "" if probe.returncode == 0 else reason(probe.returncode, probe.stderr)
    return results
