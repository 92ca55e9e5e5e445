"""AMASS: joint rotations of SMPL (npz), turned into keypoints by a body model of the user.

    poses (T, 3 K) rotation vectors [rad] in the parent, K = 24 (SMPL), 52 (SMPL+H)
    or 55 (SMPL-X); trans (T, 3) [m]; betas; mocap_framerate. Z up.

A body model is an npz of v_template (V, 3), shapedirs (V, 3, S), J_regressor (K, V) and
kintree_table (2, K), as published by its authors (smpl.is.tue.mpg.de); none is shipped. Joints of
the unposed body: J_regressor (v_template + shapedirs betas) (Loper et al. 2015, eq. 10).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError
from mocap_data.npz import load_npz
from mocap_data.readers.common import check_size, file_rate, forward_kinematics, world_clip
from mocap_data.readers.keypoints import one_number
from mocap_data.readers.subject_selection import Keypoints

_RATES = ("mocap_framerate", "mocap_frame_rate", "fps")
_MODEL = ("v_template", "shapedirs", "J_regressor", "kintree_table")
# SMPL's body, the first joints of all three models
NAMES = (
    *("Pelvis", "L_Hip", "R_Hip", "Spine1", "L_Knee", "R_Knee", "Spine2", "L_Ankle", "R_Ankle"),
    *("Spine3", "L_Foot", "R_Foot", "Neck", "L_Collar", "R_Collar", "Head", "L_Shoulder"),
    *("R_Shoulder", "L_Elbow", "R_Elbow", "L_Wrist", "R_Wrist"),
)


def read_amass(
    path: str | os.PathLike[str],
    *,
    body_model: str | os.PathLike[str] | None = None,
    rate_hz: float | None = None,
) -> Clip:
    """The 22 joints of SMPL's body (T, 22, 3).

    body_model: the npz of the body model. rate_hz: in place of the file's.

    Raises:
      InputError: with the file: no body model, an array missing or of another shape.
    """
    path = Path(path)
    if body_model is None:
        raise InputError(
            f"{path} holds joint rotations of SMPL (AMASS), no keypoints; set body_model=FILE.npz, "
            "of SMPL, SMPL+H or SMPL-X, with v_template, J_regressor and kintree_table"
        )
    arrays = load_npz(path, ("poses", "trans", "betas", *_RATES))
    poses = arrays["poses"]
    trans = arrays["trans"]
    rate = next((arrays[key] for key in _RATES if arrays[key] is not None), None)
    if rate_hz is None and rate is None:
        raise InputError(f"{path}: no rate ({', '.join(_RATES)}); set rate_hz=")
    if rate_hz is None:
        rate_hz = file_rate(path, one_number(path, "rate", np.asarray(rate)))
    betas = np.zeros(0) if arrays["betas"] is None else arrays["betas"]
    if betas.ndim > 1 and (betas == betas[:1]).all():
        betas = betas[0]
    shaped = poses.ndim == 2 and poses.shape[1] >= 3 * len(NAMES) and len(poses) and betas.ndim == 1
    numbers = {poses.dtype.kind, betas.dtype.kind} <= {*"fiu"}
    if not (shaped and numbers and trans.shape == (len(poses), 3)):
        shapes = f"poses {poses.shape}, trans {trans.shape} and betas {betas.shape}"
        raise InputError(f"{path}: {shapes}, expected numbers (T, 66 or more), (T, 3) and (S,)")
    check_size(path, len(poses), len(NAMES))
    rest, parents = _body(Path(body_model), betas)
    turns = rotations.exp(poses[:, : 3 * len(NAMES)].reshape(len(poses), -1, 3))
    bones = rest[1:] - rest[parents[1:]]
    positions = forward_kinematics(parents, [rest[0] + trans, *bones], [*turns.swapaxes(0, 1)])
    keypoints = Keypoints(positions, NAMES, parents)
    return world_clip(path, keypoints, rate_hz=rate_hz, scale=1.0, up="z", assumed=())


def _body(path: Path, betas: Array) -> tuple[Array, list[int]]:
    """The unposed body's joints (22, 3) [m], and their parents. Raises InputError."""
    if path.suffix.lower() != ".npz":
        raise InputError(f"{path}: a body model must be an .npz; pickles can run code")
    arrays = load_npz(path, _MODEL)
    count = len(NAMES)
    if missing := [key for key in _MODEL if arrays[key] is None]:
        raise InputError(f"{path}: no body model: array {missing[0]!r} is missing")
    try:
        template, shapes, regressor, tree = (np.asarray(arrays[key], float) for key in _MODEL)
        used = min(len(betas), shapes.shape[-1])
        rest = (regressor @ (template + shapes[..., :used] @ betas[:used]))[:count]
        parents = [-1, *(int(up) for up in tree[0, 1:count])]
    except (ValueError, IndexError) as error:
        raise InputError(f"{path}: the body model's arrays do not fit: {error}") from None
    if rest.shape != (count, 3) or not all(0 <= up < i for i, up in enumerate(parents) if i):
        raise InputError(f"{path}: no body model of SMPL's: {rest.shape[0]} of its 22 joints")
    return rest, parents
