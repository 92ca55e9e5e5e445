"""Penetration of a robot's collision geoms into each other, of all but the feet into the ground.

Pairs of bodies that a joint connects and those of `SelfCollision.ignored` do not count. A foot that
is welded to its shank is part of it. Geoms need not collide in physics (ANYmal's do not, to save
time). T frames, J joints; world frame, Z up, metres.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import mujoco
import numpy as np

from mocap_data.arrays import Array
from mocap_data.errors import InputError
from mocap_data.ground_profile import CELL_M, GroundProfile
from npmp.robots.model import touching
from npmp.robots.robot import Robot

# names of two moving bodies, in the model's order
Pair = tuple[str, str]
# reasons to ignore a pair
AT_HOME = "overlap at home"
BY_DESIGN = "overlap in most poses"
AS_ROBOT_YAML = "ignore_collisions"
MIRROR = "as its mirror image"
BESIDE = "beside each other"
# a name that models do not have
_FLOOR = "floor of the self-collision check"
# [m] above the floor while only the robot's own pairs are computed
_OUT_OF_REACH = 100.0
# [m] depth of an overlap
_DEEP = 1e-3
# number of random poses
_POSES = 64
# share of these poses from which an overlap within one limb is by design
_MOST = 0.5
# [m] ground before and after a period, further than a robot reaches
_BESIDE_M = 2.0
# [m] half width of a ground
_FAR_M = 1000.0
# largest mass of a body that only carries a hinge [kg]
_NO_MASS = 1e-9


class SelfCollision:
    """Penetration of a robot's collision geoms at poses. Not thread-safe.

    `ignored` maps the pairs of bodies that do not count to a reason: they overlap at home (a thigh
    beside its hip drive) or in most poses of the joints between them, robot.yaml lists them, or
    they are the mirror image of such a pair.
    """

    def __init__(self, robot: Robot) -> None:
        self._model = _collidable(robot).compile()
        self._data = mujoco.MjData(self._model)
        self._robot = robot
        self.ignored = self._mirrored(self._to_ignore())
        self._model = self._spec().compile()
        self._data = mujoco.MjData(self._model)
        self._floor = self._model.geom(_FLOOR).id

    def _spec(self) -> mujoco.MjSpec:
        """The robot on a floor, without the ignored pairs."""
        spec = _collidable(self._robot)
        for pair in self.ignored:
            for a, b in itertools.product(*map(self._members, pair)):
                spec.add_exclude(bodyname1=a, bodyname2=b)
        # feet have their own figures
        for foot in self._robot.foot_bodies:
            spec.add_exclude(bodyname1="world", bodyname2=foot)
        return spec

    def _on(self, ground: GroundProfile) -> mujoco.MjModel:
        """The robot on one period of a ground, and `_BESIDE_M` beyond it."""
        spec = self._spec()
        around = round(_BESIDE_M / CELL_M)
        row = np.pad(ground.heights, (around, around + 1), "wrap")
        low = float(row.min())
        half = 0.5 * CELL_M * (len(row) - 1)
        size = [half, _FAR_M, max(float(np.ptp(row)), 1e-3), 1.0]
        heights = np.tile(row, 2)
        spec.add_hfield(name=_FLOOR, nrow=2, ncol=len(row), size=size, userdata=heights)
        floor = spec.geom(_FLOOR)
        floor.type = mujoco.mjtGeom.mjGEOM_HFIELD
        floor.hfieldname = _FLOOR
        floor.pos = [half - _BESIDE_M, 0.0, low]
        return spec.compile()

    def depth(self, qpos: Array) -> Array:
        """Deepest penetration (T,) [m] of the parts into each other at poses (T, 7 + J)."""
        return self.depths(qpos)[0]

    def depths(self, qpos: Array, ground: GroundProfile | None = None) -> tuple[Array, Array]:
        """`depth`, and that of all but the feet into the ground, (T,) [m] each.

        ground: None: the floor z = 0.

        Raises:
          InputError: for poses of another robot.
        """
        model = self._model
        data = self._data
        floor = self._floor
        if ground is not None:
            model = self._on(ground)
            data = mujoco.MjData(model)
            qpos = qpos.copy()
            qpos[:, 0] %= ground.period_m
        if qpos.ndim != 2 or qpos.shape[1] != model.nq:
            raise InputError(f"poses are {qpos.shape}, expected (T, {model.nq})")
        of_parts = np.zeros(len(qpos))
        of_floor = np.zeros(len(qpos))
        contact = data.contact
        for frame, row in enumerate(qpos):
            data.qpos[:] = row
            mujoco.mj_kinematics(model, data)
            mujoco.mj_collision(model, data)
            if not data.ncon:
                continue
            depth = -contact.dist
            with_floor = (contact.geom == floor).any(axis=1)
            of_parts[frame] = max(0.0, depth[~with_floor].max(initial=0.0))
            of_floor[frame] = max(0.0, depth[with_floor].max(initial=0.0))
        return of_parts, of_floor

    def pairs(self, qpos: Array) -> dict[Pair, Array]:
        """Penetration (T,) [m] of each pair of bodies that touch at poses (T, 7 + J)."""
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
        """Penetration [m] of each pair of moving bodies in the pose of the data."""
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
        """The pairs to ignore, without their mirror images."""
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
        # within a limb, over random poses inside the joint limits
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
        """Bodies that hinges connect through massless bodies."""
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
        """The pairs and their mirror images."""
        names = self._robot.body_names
        mirrored = dict(pairs)
        for symmetry in self._robot.symmetries.values():
            images = [names[i] for i in symmetry.body_permutation]
            image_of = dict(zip(names, images, strict=True))
            for pair in list(mirrored):
                image = [self._moving(image_of[name]) for name in pair]
                mirrored.setdefault(self._named(*image), MIRROR)
        return mirrored


def _collidable(robot: Robot) -> mujoco.MjSpec:
    """The robot on a floor; all collision geoms collide, without margins."""
    spec = robot.spec(visuals=False)
    for geom in spec.geoms:
        # compiling discards the others, which are visual
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
