"""Mirrors of a robot: reflections that map it onto itself, permuting joints, bodies, feet and
markers.

With S the reflection (diagonal, one -1), a position p mirrors to S p, an orientation R to S R S,
and an angular velocity w, being a pseudovector, to -S w. A turn by q about axis a becomes a turn by
q about -S a, which gives the sign of each joint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.errors import InputError
from npmp.robots.description import SymmetryEntry, frozen, one_of
from npmp.robots.model import in_world, posed

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Marker:
    """A named point on a body."""

    body: str
    # (3,) in the body's frame [m]
    position: Array
    # of its error in retargeting, relative to the other markers
    weight: float = 1.0


@dataclass(frozen=True)
class Symmetry:
    """One mirror. Entry i of the image comes from entry permutation[i] of the original; its own
    inverse."""

    name: str
    normal: Array  # (3,) unit vector across the mirror plane, which goes through the origin
    joint_permutation: Indices  # (J,)
    joint_sign: Array  # (J,) +-1
    body_permutation: Indices  # (B,) world left out
    foot_permutation: Indices  # (F,)
    marker_permutation: Indices  # (M,) in the order of Robot.markers
    # What body frames differ by from their partners' images, in their own frames: a model's choice,
    # not its kinematics. (B, 4) wxyz; none where bodies align with the base when all joints are
    # zero
    body_turns: Array
    # (B, 3) [m]; none where origins lie in the mirror plane or opposite to each other
    body_shifts: Array
    # [m] of what is mirrored, for a model that is only nearly symmetric
    tolerance: float

    @property
    def reflection(self) -> Array:
        """(3,) diagonal of S."""
        return 1.0 - 2.0 * self.normal

    def mirror_points(self, points: ArrayLike) -> Array:
        """Positions or linear velocities (..., 3), each reflected. Permuting bodies is left to the
        caller."""
        return np.asarray(points, dtype=np.float64) * self.reflection

    def mirror_quaternions(self, quaternions: ArrayLike) -> Array:
        """Orientations (..., 4) wxyz -> S R S: of the root, and of bodies aligned with it when all
        joints are zero."""
        return np.asarray(quaternions, dtype=np.float64) * np.concatenate([[1.0], -self.reflection])

    def mirror_body_quaternions(self, quaternions: ArrayLike) -> Array:
        """Orientations of all bodies, (..., B, 4) wxyz, as the mirrored robot has them: permuted, S
        R S, and turned.

        A body whose frame is turned by A against the base at zero joints, the image of one turned
        by A', has S R A'^T S A.
        """
        images = self.mirror_quaternions(np.asarray(quaternions)[..., self.body_permutation, :])
        return rotations.multiply(images, self.body_turns)

    def mirror_body_positions(self, positions: ArrayLike, quaternions: ArrayLike) -> Array:
        """Origins of all bodies, (..., B, 3) [m], as the mirrored robot has them; quaternions (...,
        B, 4) of the original."""
        images = self.mirror_points(np.asarray(positions)[..., self.body_permutation, :])
        turned = self.mirror_body_quaternions(quaternions)
        return images - rotations.rotate(turned, self.body_shifts)

    def mirror_joints(self, joints: ArrayLike) -> Array:
        """Joint angles, velocities, targets or torques (..., J)."""
        return np.asarray(joints, dtype=np.float64)[..., self.joint_permutation] * self.joint_sign

    def mirror_qpos(self, qpos: ArrayLike) -> Array:
        """(..., 7 + J) [m | unit quaternion wxyz | rad]."""
        position, quaternion, joints = np.split(np.asarray(qpos, dtype=np.float64), [3, 7], axis=-1)
        root = self.mirror_points(position), self.mirror_quaternions(quaternion)
        return np.concatenate([*root, self.mirror_joints(joints)], axis=-1)


def make_symmetry(
    name: str,
    entry: SymmetryEntry,
    model: mujoco.MjModel,
    feet: Sequence[str],
    markers: Mapping[str, Marker],
    where: str,
) -> Symmetry:
    """The mirror that an entry of robot.yaml describes, from names and from places at zero joints.

    A star stands for the rest of a name: "left_" is "left_*" and swaps beginnings, "*_left" ends,
    "*left*" what is anywhere in a name.

    Raises:
      InputError: where a swapped name does not exist, or joints or markers are no mirror images.
    """
    normal = np.eye(3)["xyz".index(entry.normal)]
    tolerance = entry.tolerance
    zero = posed(model)
    reflection = 1.0 - 2.0 * normal
    partners = dict(entry.swap) | {b: a for a, b in entry.swap}
    joint_names = [model.joint(i).name for i in range(1, model.njnt)]
    joints = _name_permutation(joint_names, partners, "joint", where)
    body_names = [model.body(i).name for i in range(1, model.nbody)]
    bodies = _name_permutation(body_names, partners, "body", where)
    # of each body (B, 4) S A'^T S A, for `Symmetry.mirror_body_quaternions`, and (B, 3) [m] from
    # its origin to the image of its partner's, in its own frame; none exactly where only rounding
    own = zero.xmat[1:].reshape(-1, 3, 3)
    origins = zero.xpos[1:]
    mirror = np.diag(reflection)
    turns = rotations.from_matrix(mirror @ own[bodies].swapaxes(-1, -2) @ mirror @ own)
    turns[np.abs(turns[:, 1:]).max(axis=-1) < 1e-9] = rotations.IDENTITY
    shifts = np.einsum("bij,bi->bj", own, origins[bodies] * reflection - origins)
    shifts[np.abs(shifts).max(axis=-1) < 1e-9] = 0.0
    axes = zero.xaxis[1:]
    # +1 where the image of the partner's axis points along the joint's axis, -1 where against it
    alignment = np.sum(-axes[joints] * reflection * axes, axis=-1)
    for joint, partner, cosine in zip(joint_names, joints, alignment, strict=True):
        if abs(cosine) < 1.0 - tolerance:
            pair = f"'{joint}' and '{joint_names[partner]}'"
            raise InputError(f"{where}: the axes of joints {pair} are no mirror images")
    # of each marker the one that sits where its image is, on the image of its body
    opposite = []
    on = np.array([zero.body(m.body).id - 1 for m in markers.values()], int)
    places = [in_world(zero, marker.body, marker.position) for marker in markers.values()]
    positions = np.array(places).reshape(-1, 3)
    for marker, body, image in zip(markers, on, positions * reflection, strict=True):
        distance = np.linalg.norm(positions - image, axis=-1)
        images = np.flatnonzero((distance < tolerance) & (on == bodies[body]))
        if len(images) != 1:
            has = f"has {len(images)} mirror images; expected one"
            raise InputError(f"{where}: marker '{marker}' {has}")
        opposite.append(images[0])
    return Symmetry(
        name=name,
        normal=frozen(normal),
        joint_permutation=joints,
        joint_sign=frozen(np.sign(alignment)),
        body_permutation=bodies,
        foot_permutation=_name_permutation(feet, partners, "foot", where),
        marker_permutation=frozen(opposite, np.int64),
        body_turns=frozen(turns),
        body_shifts=frozen(shifts),
        tolerance=tolerance,
    )


def _name_permutation(
    names: Sequence[str], partners: Mapping[str, str], kind: str, where: str
) -> Indices:
    """(N,) index of each name's image: a part of it swapped, or itself where none fits."""

    def image_of(name: str) -> str:
        for part, partner in partners.items():
            if (image := swapped(name, part, partner)) is not None:
                return one_of(image, names, f"{kind} (the image of {name})", where)
        return name

    permutation = [list(names).index(image_of(name)) for name in names]
    if [permutation[i] for i in permutation] != list(range(len(names))):
        raise InputError(f"{where}: swapping names twice does not give the {kind} names back")
    return frozen(permutation, np.int64)


def swapped(name: str, part: str, partner: str) -> str | None:
    """The name with one part of it replaced, or None where it has not that part. "l_", "*_l" and
    "*left*" as in `swap`."""
    old, new = part.strip("*"), partner.strip("*")
    if part.startswith("*") and part.endswith("*"):
        return name.replace(old, new, 1) if old in name else None
    if part.startswith("*"):
        return name.removesuffix(old) + new if name.endswith(old) else None
    return new + name.removeprefix(old) if name.startswith(old) else None
