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
    # weight of its error in retargeting, relative to the other markers
    weight: float = 1.0


@dataclass(frozen=True)
class Symmetry:
    """One mirror, its own inverse: entry i of the image is entry permutation[i] of the original."""

    name: str
    normal: Array  # (3,) unit vector across the mirror plane, which goes through the origin
    joint_permutation: Indices  # (J,)
    joint_sign: Array  # (J,) +-1
    body_permutation: Indices  # (B,) without the world
    foot_permutation: Indices  # (F,)
    marker_permutation: Indices  # (M,) in the order of Robot.markers
    # (B, 4) wxyz from body frames to the images of their partners', in their own frames; the
    # identity where bodies are aligned with the base at zero joints
    body_turns: Array
    # (B, 3) [m] likewise of origins; 0 where they are mirror images
    body_shifts: Array
    # [m] of a model that is only nearly symmetric
    tolerance: float

    @property
    def reflection(self) -> Array:
        """(3,) diagonal of S."""
        return 1.0 - 2.0 * self.normal

    def mirror_points(self, points: ArrayLike) -> Array:
        """Positions or linear velocities (..., 3), each reflected; not permuted."""
        return np.asarray(points, dtype=np.float64) * self.reflection

    def mirror_quaternions(self, quaternions: ArrayLike) -> Array:
        """Orientations (..., 4) wxyz -> S R S, of the root and bodies aligned with it."""
        return np.asarray(quaternions, dtype=np.float64) * np.concatenate([[1.0], -self.reflection])

    def mirror_body_quaternions(self, quaternions: ArrayLike) -> Array:
        """Orientations of all bodies of the mirrored robot, (..., B, 4) wxyz: S R A'^T S A, where
        A turns a body against the base at zero joints, and A' its partner."""
        images = self.mirror_quaternions(np.asarray(quaternions)[..., self.body_permutation, :])
        return rotations.multiply(images, self.body_turns)

    def mirror_body_positions(self, positions: ArrayLike, quaternions: ArrayLike) -> Array:
        """Origins of all bodies of the mirrored robot, (..., B, 3) [m].

        Args:
          quaternions: (..., B, 4) of the original.
        """
        images = self.mirror_points(np.asarray(positions)[..., self.body_permutation, :])
        turned = self.mirror_body_quaternions(quaternions)
        return images - rotations.rotate(turned, self.body_shifts)

    def mirror_joints(self, joints: ArrayLike) -> Array:
        """Joint angles, velocities, targets or torques (..., J)."""
        return np.asarray(joints, dtype=np.float64)[..., self.joint_permutation] * self.joint_sign

    def mirror_qpos(self, qpos: ArrayLike) -> Array:
        """(..., 7 + J) [m | unit quaternion wxyz | rad]."""
        position, quaternion, joints = np.split(np.asarray(qpos, dtype=np.float64), [3, 7], axis=-1)
        image = (
            self.mirror_points(position),
            self.mirror_quaternions(quaternion),
            self.mirror_joints(joints),
        )
        return np.concatenate(image, axis=-1)


def make_symmetry(
    name: str,
    entry: SymmetryEntry,
    model: mujoco.MjModel,
    feet: Sequence[str],
    markers: Mapping[str, Marker],
    where: str,
) -> Symmetry:
    """The mirror of an entry of robot.yaml, from names and from positions at zero joints.

    A star stands for the rest of a name: "left_" swaps beginnings, "*_left" ends, "*left*" any
    part.

    Raises:
      InputError: where a swapped name does not exist, or joints or markers are not mirror images.
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
    # of each body (B, 4) S A'^T S A, and (B, 3) [m] from its origin to the image of its partner's,
    # in its own frame; exactly zero where only rounding differs
    frames = zero.xmat[1:].reshape(-1, 3, 3)
    origins = zero.xpos[1:]
    mirror = np.diag(reflection)
    turns = rotations.from_matrix(mirror @ frames[bodies].swapaxes(-1, -2) @ mirror @ frames)
    turns[np.abs(turns[:, 1:]).max(axis=-1) < 1e-9] = rotations.IDENTITY
    shifts = np.einsum("bij,bi->bj", frames, origins[bodies] * reflection - origins)
    shifts[np.abs(shifts).max(axis=-1) < 1e-9] = 0.0
    axes = zero.xaxis[1:]
    # +1 where the image of the partner's axis is the joint's axis, -1 where it is opposite
    alignment = np.sum(-axes[joints] * reflection * axes, axis=-1)
    for joint, partner, cosine in zip(joint_names, joints, alignment, strict=True):
        if abs(cosine) < 1.0 - tolerance:
            pair = f"'{joint}' and '{joint_names[partner]}'"
            raise InputError(f"{where}: axes of joints {pair} must be mirror images")
    # the marker at each marker's image, on the image of its body
    opposite = []
    marker_bodies = np.array([zero.body(m.body).id - 1 for m in markers.values()], int)
    points = [in_world(zero, marker.body, marker.position) for marker in markers.values()]
    positions = np.array(points).reshape(-1, 3)
    for marker, body, image in zip(markers, marker_bodies, positions * reflection, strict=True):
        distance = np.linalg.norm(positions - image, axis=-1)
        images = np.flatnonzero((distance < tolerance) & (marker_bodies == bodies[body]))
        if len(images) != 1:
            raise InputError(
                f"{where}: marker '{marker}': {len(images)} mirror images, expected one"
            )
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
    """(N,) index of each name's image: the name with a part swapped, or itself."""

    def image_of(name: str) -> str:
        for part, partner in partners.items():
            if (image := swapped(name, part, partner)) is not None:
                return one_of(image, names, f"{kind} (the image of {name})", where)
        return name

    permutation = [list(names).index(image_of(name)) for name in names]
    if [permutation[i] for i in permutation] != list(range(len(names))):
        raise InputError(f"{where}: swapping twice must restore the {kind} names")
    return frozen(permutation, np.int64)


def swapped(name: str, part: str, partner: str) -> str | None:
    """The name with one part replaced ("l_", "*_l", "*left*"); None where it lacks that part."""
    old = part.strip("*")
    new = partner.strip("*")
    if part.startswith("*") and part.endswith("*"):
        return name.replace(old, new, 1) if old in name else None
    if part.startswith("*"):
        return name.removesuffix(old) + new if name.endswith(old) else None
    return new + name.removeprefix(old) if name.startswith(old) else None
