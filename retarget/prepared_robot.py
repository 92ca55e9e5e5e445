"""A robot for retargeting: its kinematic tree, the layout of its markers, its soles."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import mujoco
import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array, Bools
from mocap_data.errors import InputError
from npmp.robots import Robot
from retarget.inverse_kinematics import Problem
from retarget.kinematics import Index, Points, Tree, forward, heights_of, positions_of, tree_of
from retarget.markers import MarkerLayout, layout_of
from retarget.quality import OFF_FLOOR

# [m] height of ANYmal B's hips over the floor in its home pose
_LEG = 0.4968
# c of eq. 8 for ANYmal B [m^2 / rad^2]
_REGULARIZATION = 0.01
# RMS marker error of five dog walks: 1.5 cm with a trunk of weight 1, 1.35 cm with 3; legs of 61
# walks of people on OP3, with offsets: 7.2 degrees off with limbs of weight 1, 4.8 with 4
_TRUNK_WEIGHT = 3.0
_LIMB_WEIGHT = 4.0


@dataclass(frozen=True)
class PreparedRobot:
    """A robot for retargeting; M markers, F feet with K contact points each."""

    robot: Robot
    tree: Tree
    layout: MarkerLayout
    # indices of each foot's markers in the layout
    foot_markers: tuple[tuple[int, ...], ...]
    # [m] over the floor of a standing foot's lowest marker, at home
    sole_height: float
    # (F K,) the feet's contact points, those of a foot together
    soles: Points = field(repr=False)
    # (N,) points of other shapes that may touch the floor
    hull: Points = field(repr=False)
    # (N,) [m] of the spheres about them
    hull_radius: Array = field(repr=False)

    @classmethod
    def of(cls, robot: Robot, markers: tuple[str, ...] | None = None) -> PreparedRobot:
        """Compile the robot and lay out its markers, or those of these names.

        Raises:
          InputError: a robot without the needed joints, markers or feet.
        """
        model = robot.model()
        tree = tree_of(model)
        body = np.array([tree.body_names.index(name) for name in robot.foot_bodies], dtype=np.intp)
        foot_of_point = np.repeat(body, robot.foot_points.shape[1])
        soles = Points(foot_of_point, robot.foot_points.reshape(-1, 3))
        layout = layout_of(robot, tree, markers)
        feet = tuple(tuple(np.flatnonzero(layout.body == foot).tolist()) for foot in body)
        for name, markers_on_foot in zip(robot.foot_bodies, feet, strict=True):
            if not markers_on_foot:
                raise InputError(f"robot {robot.name!r}: foot {name!r} has no marker")
        lowest = float(np.mean([layout.height[list(foot)].min() for foot in feet]))
        return cls(robot, tree, layout, feet, lowest, soles, *hull_of(model, body))

    def with_markers(self, names: Sequence[str]) -> PreparedRobot:
        """The robot with only the markers among `names`.

        Raises:
          InputError: too few markers.
        """
        shared = tuple(name for name in self.robot.markers if name in names)
        return self if shared == self.layout.names else PreparedRobot.of(self.robot, shared)

    @property
    def points_per_foot(self) -> int:
        """K: 1 for a round foot, 3 or more for a sole."""
        return self.robot.foot_points.shape[1]

    @property
    def flat_feet(self) -> bool:
        """Whether the feet have soles."""
        return self.points_per_foot >= 3

    @property
    def carries(self) -> Bools:
        """(F, J) joints between the root and each foot."""
        feet = self.soles.body[:: self.points_per_foot]
        out = np.zeros((len(feet), self.tree.num_joints), dtype=bool)
        for foot, body in enumerate(feet):
            out[foot, self.tree.hinge[self.tree.chain(int(body))]] = True
        return out

    @property
    def arms(self) -> list[Index]:
        """The joints of each limb that carries no foot."""
        with_feet: Bools = np.any(self.carries, axis=0)
        limbs: dict[int, list[int]] = {}
        for body in np.flatnonzero(self.tree.hinge >= 0):
            top = self.tree.chain(int(body))[-1]
            limbs.setdefault(top, []).append(int(self.tree.hinge[body]))
        without = (joints for joints in limbs.values() if not with_feet[joints].any())
        return [np.array(joints, dtype=np.intp) for joints in without]

    @property
    def home_markers(self) -> Array:
        """(M, 3) [m] the robot's markers in the home pose."""
        markers = Points(self.layout.body, self.layout.position)
        return positions_of(markers, *forward(self.tree, np.asarray(self.robot.home_qpos)[None]))[0]

    @property
    def home_soles(self) -> Array:
        """(F, K, 3) [m] the feet's contact points in the home pose."""
        return self.soles_at(np.asarray(self.robot.home_qpos)[None])[0]

    @property
    def tops(self) -> list[int]:
        """The trunk marker of each foot's leg: the nearest in plan, at home."""
        layout = self.layout
        trunk = np.flatnonzero(layout.on_trunk)
        middle = self.home_soles.mean(axis=1)
        # (trunk, F); the lower one of two at one place
        away = np.linalg.norm(layout.position[trunk, None, :2] - middle[None, :, :2], axis=-1)
        away = away + 1e-6 * layout.height[trunk, None]
        return [int(trunk[k]) for k in np.argmin(away, axis=0)]

    @property
    def home_tops(self) -> Array:
        """(F,) [m] height of those markers over the floor at home."""
        return self.layout.height[self.tops]

    def soles_at(self, qpos: Array) -> Array:
        """(T, F, K, 3) [m] the feet's contact points at poses (T, 7 + J)."""
        world = positions_of(self.soles, *forward(self.tree, qpos))
        return world.reshape(len(qpos), -1, self.points_per_foot, 3)

    def on_floor(self, qpos: Array) -> Bools:
        """(T, F) feet on the floor at poses (T, 7 + J)."""
        clearance = self.soles_at(qpos)[..., 2].min(axis=2) - self.robot.foot_radius
        return np.asarray(clearance < OFF_FLOOR * float(self.home_tops.mean()))

    def depth(self, qpos: Array) -> Array:
        """(T,) [m] depth of the robot's lowest point below the floor at poses (T, 7 + J)."""
        bodies = forward(self.tree, qpos)
        feet = self.robot.foot_radius - positions_of(self.soles, *bodies)[..., 2]
        rest = self.hull_radius - heights_of(self.hull, *bodies)
        return np.asarray(np.maximum(feet.max(axis=1), rest.max(axis=1, initial=-np.inf)))

    @property
    def weights(self) -> Array:
        """(M,) weights of the markers: the robot's, times the trunk's or the limbs'."""
        layout = self.layout
        out = np.array([float(self.robot.markers[name].weight) for name in layout.names])
        out[layout.on_trunk] *= _TRUNK_WEIGHT
        out[~(layout.on_trunk | layout.on_foot)] *= _LIMB_WEIGHT
        return out

    def problem(self, theta: Array) -> Problem:
        """The pose problem of eq. 8 at offset parameters `theta`."""
        robot = self.robot
        points = self.layout.points(theta)
        limits = robot.joint_lower, robot.joint_upper
        # eq. 8 compares angles with squared lengths: for legs of half ANYmal's length it is a
        # quarter
        pull = _REGULARIZATION * (float(self.home_tops.mean()) / _LEG) ** 2
        return Problem(self.tree, points, robot.home_joints, *limits, pull, self.weights)


def hull_of(model: mujoco.MjModel, feet: Index) -> tuple[Points, Array]:
    """Spheres (points on bodies and radii) about the ends of a robot's shapes, without its feet."""
    body: list[int] = []
    local: list[Array] = []
    radius: list[float] = []
    for geom in range(model.ngeom):
        on = int(model.geom_bodyid[geom]) - 1
        if on < 0 or on in feet or not (model.geom_contype[geom] or model.geom_conaffinity[geom]):
            continue
        points, ball = _ends(model, geom)
        turn = rotations.to_matrix(model.geom_quat[geom])
        local += [model.geom_pos[geom] + turn @ point for point in points]
        body += [on] * len(points)
        radius += [ball] * len(points)
    places = np.array(local, dtype=np.float64).reshape(-1, 3)
    return Points(np.array(body, dtype=np.intp), places), np.array(radius, dtype=np.float64)


def _ends(model: mujoco.MjModel, geom: int) -> tuple[Array, float]:
    """Points (N, 3) in a geom's frame and the radius of balls about them whose hull is the geom."""
    kind = model.geom_type[geom]
    a, b, c = model.geom_size[geom]
    kinds = mujoco.mjtGeom
    if kind == kinds.mjGEOM_SPHERE:
        return np.zeros((1, 3)), float(a)
    if kind == kinds.mjGEOM_CAPSULE:
        return np.array([[0.0, 0.0, -b], [0.0, 0.0, b]]), float(a)
    if kind == kinds.mjGEOM_CYLINDER:
        angle = np.arange(8) * np.pi / 4.0
        rim = np.stack((a * np.cos(angle), a * np.sin(angle), np.full(8, b)), axis=1)
        return np.concatenate((rim, rim * [1.0, 1.0, -1.0])), 0.0
    if kind == kinds.mjGEOM_ELLIPSOID:
        return np.concatenate((np.diag([a, b, c]), -np.diag([a, b, c]))), 0.0
    if kind == kinds.mjGEOM_MESH:
        mesh = int(model.geom_dataid[geom])
        first = int(model.mesh_vertadr[mesh])
        count = int(model.mesh_vertnum[mesh])
        vertices = np.array(model.mesh_vert[first : first + count], dtype=np.float64)
        # the furthest along the edges, faces and corners of a cube
        ways = np.array([w for w in itertools.product((-1.0, 0.0, 1.0), repeat=3) if any(w)])
        ways /= np.linalg.norm(ways, axis=1, keepdims=True)
        return vertices[np.unique(np.argmax(vertices @ ways.T, axis=0))], 0.0
    # a box, and the box about anything else
    return np.array(list(itertools.product((-1.0, 1.0), repeat=3))) * [a, b, c], 0.0
