"""Marker offsets: the animal's markers on the robot, theta of eq. 8 (Bohez et al. 2022).

Animals and robots differ in proportions: a dog's paws step on a 10 cm track, ANYmal's feet on a 53
cm one. The offsets compensate for this, equally in all frames (people have none, see
`proportions`):

- **trunk markers** (on the root body): a point in the root's frame, free in x, y and z.
- **footprints** (markers on a round foot): a horizontal displacement (dx, dy) of the footprint in
  the animal's heading frame, constant in each stance (see `ground.hold`). The point on the robot is
  the centre of the foot's sphere. An offset in the shank's frame would swing with the shank and
  lift a standing foot.
- **sole markers** (on a foot with a flat sole): a displacement on the sole, along its length and
  breadth; their height above the sole is the recording's (`MarkerLayout.with_heights`).
- **limb markers** (knees, elbows, hands): a displacement from the robot's marker, fixed to its
  body, free in x, y and z, regularized towards zero.

Displacements on soles and limbs are along the axes of the root's frame with all joints at zero, so
that a mirror of the robot reflects them. Symmetry holds by construction: markers that the robot's
mirrors map onto each other share one set of parameters, with the mirrors' signs; a marker that a
mirror maps to itself has no component across it.
Shapes: M markers, P parameters, T frames, B bodies, V tangent dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mocap_data.arrays import Array, Bools
from mocap_data.errors import InputError, check_available
from npmp.robots import Robot
from retarget.kinematics import Index, Points, Tree, forward

# weight of a squared displacement per frame (a squared marker error has 1), as displacements along
# a joint's axis do not affect poses
_LIMB_PULL = 0.01
# weight of the trunk's pitch offset, which without a front-back mirror does not affect poses
_LEAN_PULL = 0.1


@dataclass(frozen=True)
class MarkerLayout:
    """P parameters of M symmetric offsets: offset[m] = sum_p sign[p, m] theta[p] e_(axis[p])."""

    names: tuple[str, ...]
    # (M,)
    body: Index
    # (M, 3) [m] the robot's marker positions, in their bodies' frames
    position: Array
    # (M,) on the root body
    on_trunk: Bools
    # (M,) on a foot, round or flat
    on_foot: Bools
    # (M,) on a round foot
    footprint: Bools
    # (M, 3, 3) the root's axes at zero joints, in the marker's body
    turn: Array
    # (M, 3) the vertical at home, in the marker's body
    up: Array
    # (M,) [m] above the floor at home
    height: Array
    # (P,) 0, 1 or 2
    axis: Index
    # (P, M) -1, 0 or 1
    sign: Array
    # without a front-back mirror
    leans: bool
    # (N, M) marker that each marker is mapped to, by every product of the mirrors
    images: Index

    @property
    def pull(self) -> Array:
        """(P,) weight of each parameter's square, per frame."""
        members = self.sign != 0.0
        limb = members[:, ~(self.on_trunk | self.on_foot)].any(axis=1)
        lean = self.leans & (self.axis == 0) & members[:, ~self.footprint].any(axis=1)
        return np.where(limb, _LIMB_PULL, np.where(lean, _LEAN_PULL, 0.0))

    def initial(self) -> Array:
        """Parameters (P,) of the robot's marker positions, footprints undisplaced."""
        theta = np.zeros(len(self.axis))
        for p, axis in enumerate(self.axis):
            members = np.flatnonzero(self.sign[p])
            if self.on_trunk[members[0]]:
                theta[p] = np.mean(self.sign[p, members] * self.position[members, axis])
        return theta

    def offsets(self, theta: Array) -> Array:
        """(M, 3) [m]: trunk markers' points in the root's frame, others' displacements."""
        return np.einsum("pm,p,pc->mc", self.sign, theta, np.eye(3)[self.axis])

    def points(self, theta: Array) -> Points:
        """The points on the robot at parameters `theta`."""
        offsets = self.offsets(theta)
        moved = np.where(self.footprint[:, None], 0.0, offsets)
        local = self.position + np.einsum("mij,mj->mi", self.turn, moved)
        return Points(self.body, np.where(self.on_trunk[:, None], offsets, local))

    def displacement(self, theta: Array, heading: Array) -> Array:
        """Displacement (T, M, 3) [m] of footprints at headings (T, M) [rad]; 0 for others."""
        local = np.where(self.footprint[:, None], self.offsets(theta), 0.0)
        cos = np.cos(heading)
        sin = np.sin(heading)
        x = local[:, 0]
        y = local[:, 1]
        z = np.broadcast_to(local[:, 2], heading.shape)
        return np.stack((cos * x - sin * y, sin * x + cos * y, z), axis=-1)

    def with_heights(self, height: Array) -> MarkerLayout:
        """The layout with its sole markers `height` (M,) [m] above the floor.

        Markers that the mirrors map onto each other get their mean.
        """
        mean = np.mean(height[self.images], axis=0)
        rise = np.where(self.on_foot & ~self.footprint, mean - self.height, 0.0)
        position = self.position + rise[:, None] * self.up
        return replace(self, position=position, height=self.height + rise)


def layout_of(robot: Robot, tree: Tree, selected: Sequence[str] | None = None) -> MarkerLayout:
    """The layout of a robot's markers, or of those `selected`, symmetric under all its mirrors.

    Raises:
      InputError: no markers, one on an unknown body, or a selected marker without its mirror image.
    """
    if not robot.markers:
        raise InputError(f"robot {robot.name!r} has no markers to retarget to")
    for name, marker in robot.markers.items():
        check_available(f"body of marker {name!r}", [marker.body], tree.body_names)
    every = tuple(robot.markers)
    names = every if selected is None else tuple(name for name in every if name in selected)
    markers = [robot.markers[name] for name in names]
    body = np.array([tree.body_names.index(marker.body) for marker in markers], dtype=np.intp)
    position = np.array([marker.position for marker in markers], dtype=np.float64)
    on_foot = np.isin(body, [tree.body_names.index(name) for name in robot.foot_bodies])
    zero = np.concatenate(([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], np.zeros(tree.num_joints)))
    _, at_zero = forward(tree, zero[None])
    where, at_home = forward(tree, np.asarray(robot.home_qpos)[None])
    up = at_home[0, body, 2]
    products = _products(robot)
    images = []
    for permutation, _ in products:
        mapped = [every[permutation[every.index(name)]] for name in names]
        missing = [name for name in mapped if name not in names]
        if missing:
            listed = ", ".join(missing)
            raise InputError(f"mirror images of markers are missing: {listed}")
        images.append([names.index(name) for name in mapped])
    mapped_to = np.array(images, dtype=np.intp)
    axis, sign = _symmetric_parameters(mapped_to, products, on_foot)
    return MarkerLayout(
        names=names,
        body=body,
        position=position,
        on_trunk=body == 0,
        on_foot=on_foot,
        footprint=on_foot & (robot.foot_points.shape[1] < 3),
        turn=at_zero[0, body].transpose(0, 2, 1),
        up=up,
        height=where[0, body, 2] + np.einsum("mj,mj->m", up, position),
        axis=axis,
        sign=sign,
        leans=not any(mirror.normal[0] for mirror in robot.symmetries.values()),
        images=mapped_to,
    )


def _symmetric_parameters(
    images: Index, products: list[tuple[Index, Array]], on_foot: Bools
) -> tuple[Index, Array]:
    """(P,) axes and (P, M) signs of the parameters that markers share under the mirrors' products.

    images: (N, M) marker that each is mapped to, by product.
    """
    axes: list[int] = []
    signs: list[Array] = []
    remaining = set(range(images.shape[1]))
    while remaining:
        seed = min(remaining)
        remaining -= set(images[:, seed].tolist())
        for axis in range(2 if on_foot[seed] else 3):
            row = np.zeros(images.shape[1])
            clash = False
            for image, (_, flip) in zip(images[:, seed], products, strict=True):
                clash |= row[image] == -flip[axis]
                row[image] = flip[axis]
            # a clash: a mirror maps the component to its negative, so it is zero
            if not clash:
                axes.append(axis)
                signs.append(row)
    return np.array(axes, dtype=np.intp), np.array(signs)


def _products(robot: Robot) -> list[tuple[Index, Array]]:
    """(marker permutation, signs (3,)) of every product of the robot's mirrors, identity first."""
    mirrors = list(robot.symmetries.values())
    products = []
    for applied in itertools.product((False, True), repeat=len(mirrors)):
        permutation = np.arange(len(robot.markers))
        flip = np.ones(3)
        for mirror in itertools.compress(mirrors, applied):
            permutation = np.asarray(mirror.marker_permutation)[permutation]
            flip = flip * mirror.reflection
        products.append((permutation, flip))
    return products
