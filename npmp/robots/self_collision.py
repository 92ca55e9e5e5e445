"""Does the robot touch itself, or the floor with anything but its feet? From its collision geoms.

Pairs of bodies that a joint connects do not count, and neither do those of
`SelfCollision.ignored`. A foot that is welded to its shank is a part of it. Whether the geoms
collide in physics (ANYmal's do not, it saves time) does not matter here. Shapes: T frames, J
joints. World frame, Z up, metres.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import mujoco
import numpy as np

from mocap_data.arrays import Array
from mocap_data.errors import InputError
from npmp.robots.model import touching
from npmp.robots.robot import Robot

# names of two moving bodies, in the model's order
Pair = tuple[str, str]
# why a pair does not count
AT_HOME = "overlap at home"
BY_DESIGN = "overlap in most poses"
AS_ROBOT_YAML = "ignore_collisions"
MIRROR = "as its mirror image"
BESIDE = "beside each other"
# a name that no model has
_FLOOR = "floor of the self-collision check"
# [m] to lift the robot above the floor while its own pairs are looked at
_OUT_OF_REACH = 100.0
# [m] of shapes that overlap
_DEEP = 1e-3
# random ones, and the share of them in which shapes of one limb overlap that are made so
_POSES = 64
_MOST = 0.5
# [kg] of a body that is only there to carry a hinge
_NO_MASS = 1e-9


class SelfCollision:
    """A robot's collision geoms, asked about poses. Not to be shared between threads.

    `ignored` gives the pairs of bodies that do not count, and why: they overlap at home (a thigh
    beside its hip drive), in most poses of the joints between them, by robot.yaml, or are the
    mirror image of such a pair.
    """

    def __init__(self, robot: Robot) -> None:
        self._model = _collidable(robot).compile()
        self._data = mujoco.MjData(self._model)
        self._robot = robot
        self.ignored = self._mirrored(self._to_ignore())
        spec = _collidable(robot)
        for pair in self.ignored:
            for a, b in itertools.product(*map(self._members, pair)):
                spec.add_exclude(bodyname1=a, bodyname2=b)
        # feet have their own, finer figures
        for foot in robot.foot_bodies:
            spec.add_exclude(bodyname1="world", bodyname2=foot)
        self._model = spec.compile()
        self._data = mujoco.MjData(self._model)
        self._floor = self._model.geom(_FLOOR).id

    def depth(self, qpos: Array) -> Array:
        """Deepest penetration (T,) [m] of the robot's parts into each other at poses (T, 7 + J)."""
        return self.depths(qpos)[0]

    def depths(self, qpos: Array) -> tuple[Array, Array]:
        """(T,) [m] as `depth`, and how deep anything but the feet is below the floor z = 0.

        Raises:
          InputError: for poses of another robot.
        """
        model = self._model
        data = self._data
        floor = self._floor
        if qpos.ndim != 2 or qpos.shape[1] != model.nq:
            raise InputError(f"poses are of shape {qpos.shape}, expected (T, {model.nq})")
        itself, below = np.zeros((2, len(qpos)))
        pose = data.qpos
        contact = data.contact
        for frame, row in enumerate(qpos):
            pose[:] = row
            mujoco.mj_kinematics(model, data)
            mujoco.mj_collision(model, data)
            if not data.ncon:
                continue
            depth = -contact.dist
            ground = (contact.geom == floor).any(axis=1)
            itself[frame] = max(0.0, depth[~ground].max(initial=0.0))
            below[frame] = max(0.0, depth[ground].max(initial=0.0))
        return itself, below

    def pairs(self, qpos: Array) -> dict[Pair, Array]:
        """How deep (T,) [m] the bodies of each pair are in each other at poses (T, 7 + J); only of
        pairs that touch."""
        model = self._model
        data = self._data
        pairs: dict[Pair, Array] = {}
        for frame, row in enumerate(qpos):
            data.qpos[:] = row
            mujoco.mj_kinematics(model, data)
            mujoco.mj_collision(model, data)
            for pair, depth in self._touching().items():
                pairs.setdefault(pair, np.zeros(len(qpos)))[frame] = depth
        return pairs

    def _touching(self) -> dict[Pair, float]:
        """Depth [m] of each pair of moving bodies in the present pose."""
        model = self._model
        contact = self._data.contact
        deepest: dict[Pair, float] = {}
        bodies = model.body_weldid[model.geom_bodyid[contact.geom]]
        for (one, other), distance in zip(bodies.tolist(), contact.dist.tolist(), strict=True):
            if one and other and distance < 0:
                pair = self._named(one, other)
                deepest[pair] = max(-distance, deepest.get(pair, 0.0))
        return deepest

    def _named(self, one: int, other: int) -> Pair:
        names = [self._model.body(body).name for body in sorted((one, other))]
        return names[0], names[1]

    def _moving(self, name: str) -> int:
        """The body that moves a body: itself, or what it is welded to."""
        return int(self._model.body_weldid[self._model.body(name).id])

    def _members(self, name: str) -> list[str]:
        """A moving body and what is welded to it."""
        model = self._model
        body = model.body(name).id
        return [model.body(b).name for b in range(1, model.nbody) if model.body_weldid[b] == body]

    def _to_ignore(self) -> dict[Pair, str]:
        robot = self._robot
        model = self._model
        data = self._data
        ignored = {
            self._named(*map(self._moving, pair)): AS_ROBOT_YAML
            for pair in robot.ignored_collisions
        }
        data.qpos[:] = robot.home_qpos
        data.qpos[2] += _OUT_OF_REACH
        for bodies in touching(model, data):
            ignored.setdefault(self._named(*model.body_weldid[[*bodies]].tolist()), AT_HOME)
        ignored = dict.fromkeys(self._neighbours(), BESIDE) | ignored
        # of limbs whose joints may be in any pose within their limits
        counts: dict[Pair, int] = {}
        rng = np.random.default_rng(0)
        for _ in range(_POSES):
            data.qpos[7:] = rng.uniform(robot.joint_lower, robot.joint_upper)
            mujoco.mj_kinematics(model, data)
            mujoco.mj_collision(model, data)
            for pair, depth in self._touching().items():
                if depth > _DEEP and self.in_line(pair):
                    counts[pair] = counts.get(pair, 0) + 1
        for pair, count in counts.items():
            if count > _MOST * _POSES:
                ignored.setdefault(pair, BY_DESIGN)
        return ignored

    def _neighbours(self) -> Iterable[Pair]:
        """Bodies that hinges connect with only bodies without mass between them."""
        model = self._model
        for body in range(2, model.nbody):
            parent = int(model.body_parentid[body])
            through = False
            while parent > 0 and model.body_mass[parent] < _NO_MASS and model.body_jntnum[parent]:
                parent = int(model.body_parentid[parent])
                through = True
            if through and model.body_jntnum[body] and parent > 0:
                yield self._named(int(model.body_weldid[parent]), body)

    def in_line(self, pair: Pair) -> bool:
        """Whether one of the bodies carries the other."""
        model = self._model
        upper, lower = (model.body(name).id for name in pair)
        while lower > upper:
            lower = int(model.body_weldid[model.body_parentid[lower]])
        return lower == upper

    def _mirrored(self, pairs: Mapping[Pair, str]) -> dict[Pair, str]:
        """With the images of the pairs in the robot's mirrors, so that limbs are treated alike."""
        robot = self._robot
        out = dict(pairs)
        for symmetry in robot.symmetries.values():
            image = dict(
                zip(
                    robot.body_names,
                    [robot.body_names[i] for i in symmetry.body_permutation],
                    strict=True,
                )
            )
            for one, other in list(out):
                twins = self._moving(image[one]), self._moving(image[other])
                out.setdefault(self._named(*twins), MIRROR)
        return out


def _collidable(robot: Robot) -> mujoco.MjSpec:
    """The robot over a floor, every collision geom meeting every other body's, no margins."""
    spec = robot.spec(visuals=False)
    for geom in spec.geoms:
        # the others are only looked at, and gone once compiled
        if geom.contype or geom.conaffinity:
            geom.contype = 1
            geom.conaffinity = 1
            geom.margin = 0.0
            geom.gap = 0.0
            geom.condim = 1
    plane = spec.worldbody.add_geom()
    plane.name = _FLOOR
    plane.type = mujoco.mjtGeom.mjGEOM_PLANE
    plane.size = [0.0, 0.0, 1.0]
    plane.contype = 1
    plane.conaffinity = 1
    plane.condim = 1
    return spec
