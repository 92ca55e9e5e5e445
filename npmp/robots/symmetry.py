"""Mirrors of a robot: reflections that map it onto itself, permuting joints, bodies, feet and markers.

With S the reflection (diagonal, one -1), a position p mirrors to S p, an orientation R to S R S, and an
angular velocity w, being a pseudovector, to -S w. A turn by q about axis a becomes a turn by q about -S a,
which gives the sign of each joint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mocap_data.errors import InputError
from npmp.robots.fields import FloatArray, IntArray, fields, one_of, read_only, read_only_indices

_AXES = {"x": 0, "y": 1, "z": 2}
_TOLERANCE = 1e-6  # [m] and [1]: how far from its exact image a marker or an axis may be


@dataclass(frozen=True)
class Symmetry:
    """One mirror. Entry i of the image comes from entry permutation[i] of the original; its own inverse."""

    name: str
    normal: FloatArray  # (3,) unit vector across the mirror plane, which goes through the origin
    joint_permutation: IntArray  # (J,)
    joint_sign: FloatArray  # (J,) +-1
    body_permutation: IntArray  # (B,) world left out
    foot_permutation: IntArray  # (F,)
    marker_permutation: IntArray  # (M,) in the order of Robot.markers

    @property
    def reflection(self) -> FloatArray:
        """(3,) diagonal of S."""
        return 1.0 - 2.0 * self.normal

    def mirror_points(self, points: ArrayLike) -> FloatArray:
        """Positions or linear velocities (..., 3), each reflected. Permuting bodies is left to the caller."""
        return np.asarray(points, dtype=np.float64) * self.reflection

    def mirror_rotation_vectors(self, vectors: ArrayLike) -> FloatArray:
        """Angular velocities or rotation vectors (..., 3)."""
        return np.asarray(vectors, dtype=np.float64) * -self.reflection

    def mirror_quaternions(self, quaternions: ArrayLike) -> FloatArray:
        """Orientations (..., 4) wxyz -> S R S, for bodies aligned with the base when all joints are zero."""
        return np.asarray(quaternions, dtype=np.float64) * np.concatenate([[1.0], -self.reflection])

    def mirror_joints(self, joints: ArrayLike) -> FloatArray:
        """Joint angles, velocities, targets or torques (..., J)."""
        return np.asarray(joints, dtype=np.float64)[..., self.joint_permutation] * self.joint_sign

    def mirror_qpos(self, qpos: ArrayLike) -> FloatArray:
        """(..., 7 + J) [m | unit quaternion wxyz | rad]."""
        position, quaternion, joints = np.split(np.asarray(qpos, dtype=np.float64), [3, 7], axis=-1)
        root = self.mirror_points(position), self.mirror_quaternions(quaternion)
        return np.concatenate([*root, self.mirror_joints(joints)], axis=-1)

    def mirror_qvel(self, qvel: ArrayLike) -> FloatArray:
        """(..., 6 + J) [m/s in the world | rad/s in the root's frame | rad/s]."""
        linear, angular, joints = np.split(np.asarray(qvel, dtype=np.float64), [3, 6], axis=-1)
        root = self.mirror_points(linear), self.mirror_rotation_vectors(angular)
        return np.concatenate([*root, self.mirror_joints(joints)], axis=-1)


@dataclass(frozen=True)
class Layout:
    """What a mirror is derived from: names, and what is where in the base's frame at zero joints."""

    joint_names: Sequence[str]
    joint_axes: FloatArray  # (J, 3)
    body_names: Sequence[str]
    foot_bodies: Sequence[str]
    marker_names: Sequence[str]
    marker_bodies: Sequence[int]  # (M,) indices into body_names
    marker_positions: FloatArray  # (M, 3) [m]


def read_symmetry(name: str, value: Any, layout: Layout, where: str) -> Symmetry:
    """The mirror that `{normal: x|y|z, swap: [[prefix, prefix], ...]}` describes.

    Raises InputError where a swapped name does not exist, or joints or markers are no mirror images.
    """
    entry = fields(value, where, required=("normal", "swap"))
    normal = np.eye(3)[_AXES[one_of(entry["normal"], tuple(_AXES), "axis", f"{where}.normal")]]
    partners = _partners(entry["swap"], f"{where}.swap")
    joints = _name_permutation(layout.joint_names, partners, "joint", where)
    bodies = _name_permutation(layout.body_names, partners, "body", where)
    return Symmetry(
        name=name,
        normal=read_only(normal),
        joint_permutation=joints,
        joint_sign=_joint_signs(layout, joints, normal, where),
        body_permutation=bodies,
        foot_permutation=_name_permutation(layout.foot_bodies, partners, "foot", where),
        marker_permutation=_marker_permutation(layout, bodies, normal, where),
    )


def _partners(value: Any, where: str) -> dict[str, str]:
    """[[a, b], ...] as a -> b and b -> a."""
    partners: dict[str, str] = {}
    for pair in value if isinstance(value, list) else [value]:
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(side, str) for side in pair)):
            raise InputError(f"{where}: expected pairs of name prefixes; found {pair!r:.40}")
        if pair[0] in partners or pair[1] in partners:
            raise InputError(f"{where}: a prefix of {pair!r} is swapped twice")
        partners |= {pair[0]: pair[1], pair[1]: pair[0]}
    return partners


def _name_permutation(names: Sequence[str], partners: Mapping[str, str], kind: str, where: str) -> IntArray:
    """(N,) index of each name's image: its prefix swapped, or itself where no prefix fits."""

    def image_of(name: str) -> str:
        for prefix, partner in partners.items():
            if name.startswith(prefix):
                image = partner + name.removeprefix(prefix)
                return one_of(image, names, f"{kind} (the image of {name})", where)
        return name

    permutation = [list(names).index(image_of(name)) for name in names]
    if [permutation[i] for i in permutation] != list(range(len(names))):
        raise InputError(f"{where}: swapping prefixes twice does not give the {kind} names back")
    return read_only_indices(permutation)


def _joint_signs(layout: Layout, permutation: IntArray, normal: FloatArray, where: str) -> FloatArray:
    """(J,) +1 where the image of the partner's axis points along the joint's axis, -1 where against it."""
    images = -layout.joint_axes[permutation] * (1.0 - 2.0 * normal)
    alignment = np.sum(images * layout.joint_axes, axis=-1)
    for joint, partner, cosine in zip(layout.joint_names, permutation, alignment, strict=True):
        if abs(cosine) < 1.0 - _TOLERANCE:
            pair = f"'{joint}' and '{layout.joint_names[partner]}'"
            raise InputError(f"{where}: the axes of joints {pair} are no mirror images")
    return read_only(np.sign(alignment))


def _marker_permutation(
    layout: Layout, body_permutation: IntArray, normal: FloatArray, where: str
) -> IntArray:
    """(M,) index of the marker that sits where each marker's image is, on the image of its body."""
    permutation = []
    bodies = np.asarray(layout.marker_bodies)
    for name, body, position in zip(layout.marker_names, bodies, layout.marker_positions, strict=True):
        distance = np.linalg.norm(layout.marker_positions - position * (1.0 - 2.0 * normal), axis=-1)
        images = np.flatnonzero((distance < _TOLERANCE) & (bodies == body_permutation[body]))
        if len(images) != 1:
            raise InputError(f"{where}: marker '{name}' has {len(images)} mirror images; expected one")
        permutation.append(images[0])
    return read_only_indices(permutation)
