"""Unsupported formats: the program of each, and the format to convert to."""

from __future__ import annotations

import os
from pathlib import Path

from mocap_data.errors import InputError

# formats that execute code when read
PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth")

_SAVEZ = "save positions (T, M, 3), names and fps by numpy.savez (docs/tutorials/recording.md)"
_BLENDER = "import it in Blender and export Motion Capture (.bvh)"
_MODEL = "npmp robots add makes a robot of it"

# by suffix: the format, the next step
_SCENES = (".abc", ".blend", ".dae", ".fbx", ".glb", ".gltf", ".usd", ".usda", ".usdc", ".usdz")
# exports of motion capture programs
_EXPORTS = (".cap", ".htr", ".mvn", ".mvnx", ".qtm", ".tak", ".trb", ".tsv", ".x1d", ".x2d", ".xcp")
UNSUPPORTED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(PICKLES, ("pickles are not read, since they can run code", _SAVEZ)),
    **dict.fromkeys((*_SCENES, ".vrm", ".smpl"), ("a scene, no recording", _BLENDER)),
    **dict.fromkeys(_EXPORTS, ("a recorder's own format", "export BVH or C3D in its program")),
    **dict.fromkeys(
        (".avi", ".mkv", ".mov", ".mp4", ".webm"),
        ("a film, no recording of keypoints", f"estimate poses, then {_SAVEZ}"),
    ),
    **dict.fromkeys((".mjcf", ".urdf", ".xml"), ("a model, no recording", _MODEL)),
    **dict.fromkeys((".7z", ".gz", ".rar", ".tar", ".zip"), ("packed", "unpack it first")),
    **dict.fromkeys((".bag", ".db3", ".mcap"), ("a ROS log", _SAVEZ)),
    **dict.fromkeys((".mot", ".sto", ".trc"), ("an OpenSim table", f"export C3D, or {_SAVEZ}")),
    ".mat": ("a MATLAB file", f"read it by scipy.io.loadmat, then {_SAVEZ}"),
    **dict.fromkeys((".npy", ".parquet"), ("a table without keypoints' names", _SAVEZ)),
    **dict.fromkeys((".xls", ".xlsx"), ("a spreadsheet", "save it as CSV")),
}


def check_supported(path: str | os.PathLike[str]) -> None:
    """Raise InputError for a file of an unsupported format, by its suffix, with the next step."""
    suffix = Path(path).suffix.lower()
    if suffix in UNSUPPORTED:
        description, next_step = UNSUPPORTED[suffix]
        raise InputError(f"{path}: {description}; {next_step}")
