"""Recorded motion as data: keypoint clips, reference motions, and their files.

It is independent of robots, simulators and torch.

    read(path)       a recording (BVH, ASF/AMC, C3D, CSV, npz, DeepMimic, dm_control's HDF5): `Clip`
    read_all(path) all clips of a file Clip             keypoints over time in the world, metres, Z
    up ReferenceMotion  a motion of a robot: poses over time MotionSet        the reference motions
    of one file; `write_motions`, `read_motions` dog_gait         a generated dog gait
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mocap_data.errors import InputError

if TYPE_CHECKING:
    from mocap_data.clip import Clip
    from mocap_data.motion import ReferenceMotion
    from mocap_data.readers import read, read_all
    from mocap_data.store import MotionSet, read_motions, write_motions
    from mocap_data.synthetic import demo_clips, dog_gait

_MODULES = {
    "mocap_data.clip": ("Clip",),
    "mocap_data.motion": ("ReferenceMotion",),
    "mocap_data.readers": ("read", "read_all"),
    "mocap_data.store": ("MotionSet", "read_motions", "write_motions"),
    "mocap_data.synthetic": ("demo_clips", "dog_gait"),
}
__all__ = [
    "Clip",
    "InputError",
    "MotionSet",
    "ReferenceMotion",
    "demo_clips",
    "dog_gait",
    "read",
    "read_all",
    "read_motions",
    "write_motions",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: `import mocap_data.errors` needs no h5py."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'mocap_data' has no attribute {name!r}")
