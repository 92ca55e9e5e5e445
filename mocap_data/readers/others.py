"""Kinds of file that are not read: what each one is, and what to convert it to."""

from __future__ import annotations

import os
from pathlib import Path

from mocap_data.errors import InputError

# files that run code when they are read
PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth")

_SAVEZ = "save positions (T, M, 3), names and fps by numpy.savez (docs/tutorials/recording.md)"
_BLENDER = "import it in Blender and export Motion Capture (.bvh)"
_MODEL = "npmp robots add makes a robot of it"

# by suffix: what it is, what to do
_SCENES = {
    ".abc": "Alembic",
    ".blend": "Blender",
    ".dae": "Collada",
    ".fbx": "FBX",
    ".glb": "glTF",
    ".gltf": "glTF",
    ".usd": "USD",
    ".usda": "USD",
    ".usdc": "USD",
    ".usdz": "USD",
    ".vrm": "VRM",
}
_RECORDERS = {
    ".cap": ("Cortex", "C3D"),
    ".htr": ("Cortex", "BVH or C3D"),
    ".mvn": ("Xsens MVN", "BVH or C3D"),
    ".mvnx": ("Xsens MVN", "BVH or C3D"),
    ".qtm": ("Qualisys QTM", "C3D"),
    ".tak": ("OptiTrack Motive", "BVH or C3D"),
    ".trb": ("Cortex", "C3D"),
    ".tsv": ("Qualisys QTM", "C3D"),
    ".x1d": ("Vicon", "C3D"),
    ".x2d": ("Vicon", "C3D"),
    ".xcp": ("Vicon", "C3D"),
}
OTHERS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(PICKLES, ("pickles are not read, since they can run code", _SAVEZ)),
    **{suffix: (f"a scene in {name}, no recording", _BLENDER) for suffix, name in _SCENES.items()},
    **{
        suffix: (f"a file of {program}", f"export {formats} there")
        for suffix, (program, formats) in _RECORDERS.items()
    },
    **dict.fromkeys(
        (".avi", ".mkv", ".mov", ".mp4", ".webm"),
        ("a film, no recording of keypoints", f"estimate poses, then {_SAVEZ}"),
    ),
    **dict.fromkeys((".mjcf", ".urdf", ".xml"), ("a model, no recording", _MODEL)),
    **dict.fromkeys((".7z", ".gz", ".rar", ".tar", ".zip"), ("packed", "unpack it first")),
    **dict.fromkeys((".bag", ".db3", ".mcap"), ("a log of ROS", _SAVEZ)),
    **dict.fromkeys((".mot", ".sto"), ("OpenSim's table, no positions of markers", _SAVEZ)),
    ".mat": ("MATLAB's file", f"read it by scipy.io.loadmat, then {_SAVEZ}"),
    ".npy": ("a single array without names and rate", _SAVEZ),
    ".parquet": ("a table", _SAVEZ),
    ".smpl": ("Meshcapade's body and pose", f"export FBX there, then {_BLENDER}"),
    ".trc": ("OpenSim's table of markers", f"export C3D, or {_SAVEZ}"),
    ".xls": ("a spreadsheet", "save it as CSV"),
    ".xlsx": ("a spreadsheet", "save it as CSV"),
}


def refuse_other(path: str | os.PathLike[str]) -> None:
    """Refuse a file of a kind that is not read, by its suffix.

    Raises:
      InputError: with what it is and what to convert it to.
    """
    suffix = Path(path).suffix.lower()
    if suffix in OTHERS:
        what, advice = OTHERS[suffix]
        raise InputError(f"{path}: {what}; {advice}")
