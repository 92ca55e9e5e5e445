"""Recorded motion as data: keypoint clips, reference motions, and the files that hold them.

The layer below robots and learning: it imports neither a simulator nor torch.

    read(path)       a recording (BVH, ASF/AMC, C3D, keypoint CSV and npz, DeepMimic JSON,
    dm_control's HDF5) as a `Clip` read_all(path)   all its clips, where a file holds many Clip
    world keypoints over time, metres, Z up ReferenceMotion  a motion already carried over to a
    robot MotionSet        the reference motions of one file; `write_motions`, `read_motions`
    dog_gait         a generated, freely licensed dog gait
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mocap_data.errors import InputError

if TYPE_CHECKING:
    from mocap_data.clip import Clip
    from mocap_data.motion import ReferenceMotion
    from mocap_data.readers import read, read_all
    from mocap_data.store import MotionSet, read_motions, write_motions
    from mocap_data.synthetic import demo_clips, dog_gait

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

_HOME = {
    "Clip": "mocap_data.clip",
    "MotionSet": "mocap_data.store",
    "ReferenceMotion": "mocap_data.motion",
    "demo_clips": "mocap_data.synthetic",
    "dog_gait": "mocap_data.synthetic",
    "read": "mocap_data.readers",
    "read_all": "mocap_data.readers",
    "read_motions": "mocap_data.store",
    "write_motions": "mocap_data.store",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import mocap_data.errors` stays cheap (no h5py)."""
    if name not in _HOME:
        raise AttributeError(f"module 'mocap_data' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOME[name]), name)
