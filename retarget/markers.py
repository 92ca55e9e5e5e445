"""Marker offsets: where on the robot the animal's markers sit, the theta of eq. 8 (Bohez et al.
2022).

An animal is no scaled robot: the dog's trunk is 10 to 18 cm wide and its paws step on a 10 cm
track, ANYmal's hips are 23 cm apart and its feet stand on a 53 cm one. The offsets absorb this,
once for all frames, so that poses only carry the movement. Where they live depends on the marker:

- **trunk markers** (those on the root body): a point in the root's frame, free in x, y and z. Their
  common height decides how high the base rides above the animal's back; eq. 8's regularizer settles
  it where the legs are bent as in the home pose on average.
- **footprints** (markers on a round foot): a horizontal displacement (dx, dy) of the footprint in
  the animal's heading frame, held through each stance (see `ground.hold`). The point on the robot
  stays the centre of the foot's sphere. An offset in the shank's frame would swing with the shank
  and lift a foot that ought to stand; a horizontal one leaves every foot height as it is, and
  holding it through the stance leaves standing feet standing.
- **sole markers** (those on a foot with a flat sole): a displacement on the sole, along its length
  and breadth. A sole stands level, so that this leaves heights alone, too; how high above its sole
  a foot carries a marker (an ankle, say) is what the recording shows when the foot stands, see
  `MarkerLayout.with_heights`.
- **limb markers** (all others: knees, elbows, hands): a displacement from the robot's own marker,
  fixed to its body, free in x, y and z, and pulled gently to zero.

Displacements on soles and limbs are given along the axes that the root's frame has when all joints
are at zero, so that a mirror of the robot reflects them as it reflects everything else.

Symmetry holds exactly, by construction: markers that the robot's mirrors (left-right, front-back,
or what it has) map onto each other share one set of parameters, applied with the mirrors' signs. A
marker that a mirror maps to itself (the base's centre) has no component across that mirror.
Shapes: M markers, P parameters, T frames, B bodies, V tangent dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mocap_data.arrays import Array
from mocap_data.errors import InputError
from npmp.robots import Robot
from retarget.inverse_kinematics import Linearized
from retarget.kinematics import Index, Points, Tree, forward

Bools = NDArray[np.bool_]

# Added to the offset step's equations [1 per frame]: keeps them well-posed when no joint cares.
_RIDGE = 1e-6
# Weight, per frame and against 1 for a marker's squared error, of a marker's squared displacement
# from the robot's own: a displacement along a limb's own axis of turning shows in no recording. Nor
# does, without a front-back mirror, a trunk that leans with all its markers leaning the other way,
# or a sole that tilts.
_LIMB_PULL = 0.01
_LEAN_PULL = 0.1


@dataclass(frozen=True)
class MarkerLayout:
    """How P parameters make M symmetric offsets: offset[m] = sum_p sign[p, m] theta[p] e_(axis[p])."""

    names: tuple[str, ...]
    body: Index  # (M,)
    position: Array  # (M, 3) [m] the robot's own marker positions, in their bodies' frames
    on_trunk: Bools  # (M,) on the root body
    on_foot: Bools  # (M,) on a foot, round or flat
    footprint: Bools  # (M,) on a round foot
    turn: Array  # (M, 3, 3) the root's axes at zero joints, in the marker's body
    up: Array  # (M, 3) the vertical at home, in the marker's body
    height: Array  # (M,) [m] above the floor at home
    axis: Index  # (P,) 0, 1 or 2
    sign: Array  # (P, M) -1, 0 or 1
    leans: bool  # no mirror tells front from back
    images: Index  # (N, M) marker that each marker is mapped to, by every product of the mirrors

    @property
    def pull(self) -> Array:
        """(P,) weight of each parameter's square, per frame."""
        members = self.sign != 0.0
        limb = members[:, ~(self.on_trunk | self.on_foot)].any(axis=1)
        lean = self.leans & (self.axis == 0) & members[:, ~self.footprint].any(axis=1)
        return np.where(limb, _LIMB_PULL, np.where(lean, _LEAN_PULL, 0.0))

    def initial(self) -> Array:
        """Parameters (P,) of the robot's own marker positions, footprints undisplaced."""
        theta = np.zeros(len(self.axis))
        for p, axis in enumerate(self.axis):
            members = np.flatnonzero(self.sign[p])
            if self.on_trunk[members[0]]:
                theta[p] = np.mean(self.sign[p, members] * self.position[members, axis])
        return theta

    def offsets(self, theta: Array) -> Array:
        """(M, 3) [m]: trunk markers' points, root's frame; footprints' displacements, heading
        frame; others' displacements."""
        out = np.zeros((len(self.names), 3))
        for p, axis in enumerate(self.axis):
            members = np.flatnonzero(self.sign[p])
            out[members, axis] = self.sign[p, members] * theta[p]
        return out

    def parameters(self, offsets: Mapping[str, Array]) -> Array:
        """The parameters (P,) of given symmetric offsets by marker name (as `offsets` makes them).

        Raises:
          InputError: for missing or unknown markers, or for offsets that the robot's mirrors do not
              map onto each other to 1e-6 m.
        """
        if set(offsets) != set(self.names):
            raise InputError(
                f"offsets are given for {', '.join(offsets)}; needed: {', '.join(self.names)}"
            )
        values = np.array(
            [np.asarray(offsets[name], dtype=np.float64).reshape(3) for name in self.names]
        )
        theta = np.zeros(len(self.axis))
        for p, axis in enumerate(self.axis):
            members = np.flatnonzero(self.sign[p])
            theta[p] = self.sign[p, members[0]] * values[members[0], axis]
        if np.abs(self.offsets(theta) - values).max() > 1e-6:
            raise InputError(
                "the marker offsets are not symmetric: a mirror of the robot changes them"
            )
        return theta

    def points(self, theta: Array) -> Points:
        """The points on the robot at parameters `theta`."""
        offsets = self.offsets(theta)
        local = self.position + np.einsum(
            "mij,mj->mi", self.turn, np.where(self.footprint[:, None], 0.0, offsets)
        )
        return Points(self.body, np.where(self.on_trunk[:, None], offsets, local))

    def displacement(self, theta: Array, heading: Array) -> Array:
        """Displacement (T, M, 3) [m] of the animal's footprints at headings (T, M) [rad]; 0 for
        other markers."""
        local = np.where(self.footprint[:, None], self.offsets(theta), 0.0)
        cos, sin = np.cos(heading), np.sin(heading)
        x, y = local[:, 0], local[:, 1]
        return np.stack(
            (cos * x - sin * y, sin * x + cos * y, np.broadcast_to(local[:, 2], heading.shape)),
            axis=-1,
        )

    def with_heights(self, height: Array) -> MarkerLayout:
        """The layout with its sole markers moved to `height` (M,) [m] above the floor when the sole
        stands on it.

        Of the markers that the mirrors map onto each other the mean is taken.
        """
        mean = np.mean(height[self.images], axis=0)
        rise = np.where(self.on_foot & ~self.footprint, mean - self.height, 0.0)
        return replace(
            self, position=self.position + rise[:, None] * self.up, height=self.height + rise
        )


def layout_of(robot: Robot, tree: Tree, chosen: Sequence[str] | None = None) -> MarkerLayout:
    """The layout of a robot's markers, or of those `chosen`, symmetric under all of the robot's
    mirrors together.

    Raises:
      InputError: when the robot has no markers or one on an unknown body, or where a mirror maps a
          chosen marker to one that is not.
    """
    if not robot.markers:
        raise InputError(f"robot '{robot.name}' has no markers to retarget to")
    for name, marker in robot.markers.items():
        if marker.body not in tree.body_names:
            raise InputError(
                f"marker '{name}' is on no body '{marker.body}'; there are: {', '.join(tree.body_names)}"
            )
    every = tuple(robot.markers)
    names = every if chosen is None else tuple(name for name in every if name in chosen)
    place = np.array([every.index(name) for name in names], dtype=np.intp)
    body = np.array(
        [tree.body_names.index(robot.markers[name].body) for name in names], dtype=np.intp
    )
    position = np.array([robot.markers[name].position for name in names], dtype=np.float64)
    feet = [tree.body_names.index(name) for name in robot.foot_bodies]
    on_trunk, on_foot = body == 0, np.isin(body, feet)
    footprint = on_foot & (robot.foot_points.shape[1] < 3)
    zero = np.concatenate(([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], np.zeros(tree.num_joints)))
    _, at_zero = forward(tree, zero[None])
    where, at_home = forward(tree, np.asarray(robot.home_qpos)[None])
    height = where[0, body, 2] + np.einsum("mj,mj->m", at_home[0, body, 2], position)
    products = _products(robot)
    images = np.empty((len(products), len(names)), dtype=np.intp)
    for k, (permutation, _) in enumerate(products):
        missing = [every[i] for i in permutation[place] if every[i] not in names]
        if missing:
            raise InputError(
                f"markers come with their mirror images; missing: {', '.join(missing)}"
            )
        images[k] = [names.index(every[i]) for i in permutation[place]]
    axis, sign = _symmetric_parameters(images, products, on_foot)
    return MarkerLayout(
        names,
        body,
        position,
        on_trunk,
        on_foot,
        footprint,
        at_zero[0, body].transpose(0, 2, 1),
        at_home[0, body, 2],
        height,
        axis,
        sign,
        not any(mirror.normal[0] for mirror in robot.symmetries.values()),
        images,
    )


def _symmetric_parameters(
    images: Index, products: list[tuple[Index, Array]], on_foot: Bools
) -> tuple[Index, Array]:
    """(P,) axes and (P, M) signs of the parameters that M markers share under the products of the
    mirrors.

    images: (N, M) marker that each is mapped to, by product.
    """
    axes: list[int] = []
    signs: list[Array] = []
    todo = set(range(images.shape[1]))
    while todo:
        seed = min(todo)
        todo -= set(images[:, seed].tolist())
        for axis in range(2 if on_foot[seed] else 3):
            row = np.zeros(images.shape[1])
            clash = False
            for image, (_, flip) in zip(images[:, seed], products, strict=True):
                clash |= row[image] == -flip[axis]
                row[image] = flip[axis]
            # A clash: a mirror maps the marker to itself and this component to its negative, so it
            # is zero.
            if not clash:
                axes.append(axis)
                signs.append(row)
    return np.array(axes, dtype=np.intp), np.array(signs)


def _products(robot: Robot) -> list[tuple[Index, Array]]:
    """(marker permutation (all markers), signs (3,)) of every product of the robot's mirrors, the
    identity first."""
    mirrors = list(robot.symmetries.values())
    found = []
    for chosen in itertools.product((False, True), repeat=len(mirrors)):
        permutation, flip = np.arange(len(robot.markers)), np.ones(3)
        for use, mirror in zip(chosen, mirrors, strict=True):
            if use:
                permutation = np.asarray(mirror.marker_permutation)[permutation]
                flip = flip * mirror.reflection
        found.append((permutation, flip))
    return found


def offset_jacobian(
    layout: MarkerLayout, rotation: Array, heading: Array, weight: Array | None = None
) -> Array:
    """Derivative (T, 3M, P) of the residual f - (p + displacement) by the parameters.

    rotation: (T, B, 3, 3) of all bodies. heading: (T, M) [rad]. weight: (M,) of the markers, as in
    the problem.
    """
    frames, count = heading.shape
    jacobian = np.zeros((frames, count, 3, len(layout.axis)))
    cos, sin = np.cos(heading), np.sin(heading)
    turned = np.zeros((frames, count, 2, 3))  # the heading frame's x and y axes, in the world
    turned[:, :, 0, 0], turned[:, :, 0, 1] = cos, sin
    turned[:, :, 1, 0], turned[:, :, 1, 1] = -sin, cos
    for p, axis in enumerate(layout.axis):
        for m in np.flatnonzero(layout.sign[p]):
            if layout.footprint[m]:
                column = -turned[:, m, axis]
            elif layout.on_trunk[m]:
                column = rotation[:, 0, :, axis]
            else:
                column = rotation[:, layout.body[m]] @ layout.turn[m, :, axis]
            jacobian[:, m, :, p] = layout.sign[p, m] * column
    if weight is not None:
        jacobian *= np.sqrt(weight)[:, None, None]
    return jacobian.reshape(frames, 3 * count, -1)


def offset_step(
    system: Linearized, jacobian: Array, theta: Array | None = None, pull: Array | None = None
) -> Array:
    """The closed-form step (P,) of the parameters, jointly over all frames.

    With the poses held fixed, the best offsets are a mean of residuals; but the poses have just
    fitted their markers, so little residual is left and alternation would creep (the base's height
    against the trunk markers' height trades only through the weak regularizer). The step here lets
    every pose answer, to first order: the poses are eliminated from the joint normal equations (the
    Schur complement), which leaves a P x P system. Same minimum of eq. 8, in a few rounds instead
    of hundreds.

    theta, pull: (P,) the parameters and the weights of their squares per frame, where they are
    pulled to zero.
    """
    transposed = jacobian.transpose(0, 2, 1)
    cross = system.jacobian.transpose(0, 2, 1) @ jacobian  # (T, V, P)
    answer = np.linalg.solve(
        system.hessian, np.concatenate((cross, system.gradient[..., None]), axis=-1)
    )
    reduced = np.einsum("tvp,tvk->pk", cross, answer)
    hessian = np.einsum("tpr,trk->pk", transposed, jacobian) - reduced[:, :-1]
    gradient = np.einsum("tpr,tr->p", transposed, system.residual) - reduced[:, -1]
    hessian += _RIDGE * len(jacobian) * np.eye(len(hessian))
    if theta is not None and pull is not None:
        hessian += len(jacobian) * np.diag(pull)
        gradient += len(jacobian) * pull * theta
    step: Array = -np.linalg.solve(hessian, gradient)
    return step
