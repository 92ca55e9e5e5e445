"""Marker offsets: where on the robot the animal's markers sit, the theta of eq. 8 (Bohez et al. 2022).

An animal is no scaled robot: the dog's trunk is 10 to 18 cm wide and its paws step on a 10 cm track,
ANYmal's hips are 23 cm apart and its feet stand on a 53 cm one. The offsets absorb this, once for all
frames, so that poses only carry the movement. They live in two places:

- **trunk markers** (those on the root body): a point in the root's frame, free in x, y and z. Their common
  height decides how high the base rides above the animal's back; eq. 8's regularizer settles it where the
  legs are bent as in the home pose on average.
- **foot markers**: a horizontal displacement (dx, dy) of the footprint in the animal's heading frame, held
  through each stance (see `ground.hold`). The point on the robot stays the centre of the foot's sphere. An
  offset in the shank's frame would swing with the shank and lift a foot that ought to stand; a horizontal
  one leaves every foot height as it is, and holding it through the stance leaves standing feet standing.

Symmetry holds exactly, by construction: markers that the robot's mirrors (left-right, front-back) map onto
each other share one set of parameters, applied with the mirrors' signs. A marker that a mirror maps to
itself (the base's centre) has no component across that mirror.
Shapes: M markers, P parameters, T frames, V tangent dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mocap_data.arrays import Array
from mocap_data.errors import InputError
from npmp.robots import Robot
from retarget.pose import Index, Linearized, Points, Tree

# Pulls footprints gently to the animal's own [1 per frame and m^2]; keeps the offset step well-posed when
# no joint cares.
_RIDGE = 1e-6


@dataclass(frozen=True)
class Layout:
    """How P parameters make M symmetric offsets: offset[m] = sum_p sign[p, m] theta[p] e_(axis[p])."""

    names: tuple[str, ...]
    body: Index  # (M,)
    position: Array  # (M, 3) [m] the robot's own marker positions, in their bodies' frames
    on_trunk: np.ndarray  # (M,) bool: on the root body
    axis: Index  # (P,) 0, 1 or 2
    sign: Array  # (P, M) -1, 0 or 1

    def initial(self) -> Array:
        """Parameters (P,) of the robot's own marker positions, footprints undisplaced."""
        theta = np.zeros(len(self.axis))
        for p, axis in enumerate(self.axis):
            members = np.flatnonzero(self.sign[p])
            if self.on_trunk[members[0]]:
                theta[p] = np.mean(self.sign[p, members] * self.position[members, axis])
        return theta

    def offsets(self, theta: Array) -> Array:
        """(M, 3) [m]: trunk markers' points, root's frame; feet's footprint displacements, heading frame."""
        out = np.zeros((len(self.names), 3))
        for p, axis in enumerate(self.axis):
            members = np.flatnonzero(self.sign[p])
            out[members, axis] = self.sign[p, members] * theta[p]
        return out

    def parameters(self, offsets: Mapping[str, Array]) -> Array:
        """The parameters (P,) of given symmetric offsets by marker name (as `offsets` makes them).

        Raises InputError for missing or unknown markers, or for offsets that the robot's mirrors do not map
        onto each other to 1e-6 m.
        """
        if set(offsets) != set(self.names):
            raise InputError(f"offsets are given for {', '.join(offsets)}; needed: {', '.join(self.names)}")
        values = np.array([np.asarray(offsets[name], dtype=np.float64).reshape(3) for name in self.names])
        theta = np.zeros(len(self.axis))
        for p, axis in enumerate(self.axis):
            members = np.flatnonzero(self.sign[p])
            theta[p] = self.sign[p, members[0]] * values[members[0], axis]
        if np.abs(self.offsets(theta) - values).max() > 1e-6:
            raise InputError("the marker offsets are not symmetric: a mirror of the robot changes them")
        return theta

    def points(self, theta: Array) -> Points:
        """The points on the robot at parameters `theta`."""
        return Points(self.body, np.where(self.on_trunk[:, None], self.offsets(theta), self.position))

    def displacement(self, theta: Array, heading: Array) -> Array:
        """Displacement (T, M, 3) [m] of the animal's footprints at headings (T, M) [rad]; 0 on the trunk."""
        local = np.where(self.on_trunk[:, None], 0.0, self.offsets(theta))
        cos, sin = np.cos(heading), np.sin(heading)
        x, y = local[:, 0], local[:, 1]
        return np.stack(
            (cos * x - sin * y, sin * x + cos * y, np.broadcast_to(local[:, 2], heading.shape)), axis=-1
        )


def layout_of(robot: Robot, tree: Tree) -> Layout:
    """The layout of a robot's markers, symmetric under all of the robot's mirrors together.

    Raises InputError when the robot has no markers or one on an unknown body.
    """
    if not robot.markers:
        raise InputError(f"robot '{robot.name}' has no markers to retarget to")
    names = tuple(robot.markers)
    for name, marker in robot.markers.items():
        if marker.body not in tree.body_names:
            raise InputError(
                f"marker '{name}' is on no body '{marker.body}'; there are: {', '.join(tree.body_names)}"
            )
    body = np.array([tree.body_names.index(marker.body) for marker in robot.markers.values()], dtype=np.intp)
    position = np.array([marker.position for marker in robot.markers.values()], dtype=np.float64)
    on_trunk = body == 0
    axes: list[int] = []
    signs: list[Array] = []
    todo = set(range(len(names)))
    while todo:
        seed = min(todo)
        images = _images(robot, seed)
        todo -= {image for image, _ in images}
        for axis in range(3 if on_trunk[seed] else 2):
            row = np.zeros(len(names))
            clash = False
            for image, flip in images:
                clash |= row[image] == -flip[axis]
                row[image] = flip[axis]
            if (
                not clash
            ):  # else a mirror maps the marker to itself and this component to its negative: it is zero
                axes.append(axis)
                signs.append(row)
    return Layout(names, body, position, on_trunk, np.array(axes, dtype=np.intp), np.array(signs))


def _images(robot: Robot, seed: int) -> list[tuple[int, Array]]:
    """(marker, signs (3,)) of every image of marker `seed` under products of the robot's mirrors."""
    mirrors = list(robot.symmetries.values())
    found = []
    for chosen in itertools.product((False, True), repeat=len(mirrors)):
        image, flip = seed, np.ones(3)
        for use, mirror in zip(chosen, mirrors, strict=True):
            if use:
                image = int(mirror.marker_permutation[image])
                flip = flip * (1.0 - 2.0 * mirror.normal)
        found.append((image, flip))
    return found


def offset_jacobian(layout: Layout, root_rotation: Array, heading: Array) -> Array:
    """Derivative (T, 3M, P) of the residual f - (p + displacement) by the parameters.

    root_rotation: (T, 3, 3). heading: (T, M) [rad].
    """
    frames, count = heading.shape
    jacobian = np.zeros((frames, count, 3, len(layout.axis)))
    cos, sin = np.cos(heading), np.sin(heading)
    turned = np.zeros((frames, count, 2, 3))  # the heading frame's x and y axes, in the world
    turned[:, :, 0, 0], turned[:, :, 0, 1] = cos, sin
    turned[:, :, 1, 0], turned[:, :, 1, 1] = -sin, cos
    for p, axis in enumerate(layout.axis):
        for m in np.flatnonzero(layout.sign[p]):
            if layout.on_trunk[m]:
                jacobian[:, m, :, p] = layout.sign[p, m] * root_rotation[:, :, axis]
            else:
                jacobian[:, m, :, p] = -layout.sign[p, m] * turned[:, m, axis]
    return jacobian.reshape(frames, 3 * count, -1)


def offset_step(system: Linearized, jacobian: Array) -> Array:
    """The closed-form step (P,) of the parameters, jointly over all frames.

    With the poses held fixed, the best offsets are a mean of residuals; but the poses have just fitted
    their markers, so little residual is left and alternation would creep (the base's height against the
    trunk markers' height trades only through the weak regularizer). The step here lets every pose answer,
    to first order: the poses are eliminated from the joint normal equations (the Schur complement), which
    leaves a P x P system. Same minimum of eq. 8, in a few rounds instead of hundreds.
    """
    transposed = jacobian.transpose(0, 2, 1)
    cross = system.jacobian.transpose(0, 2, 1) @ jacobian  # (T, V, P)
    answer = np.linalg.solve(system.hessian, np.concatenate((cross, system.gradient[..., None]), axis=-1))
    reduced = np.einsum("tvp,tvk->pk", cross, answer)
    hessian = np.einsum("tpr,trk->pk", transposed, jacobian) - reduced[:, :-1]
    gradient = np.einsum("tpr,tr->p", transposed, system.residual) - reduced[:, -1]
    hessian += _RIDGE * len(jacobian) * np.eye(len(hessian))
    step: Array = -np.linalg.solve(hessian, gradient)
    return step
