"""Does the robot touch itself, or the floor with anything but its feet? From its collision geoms.

Pairs of bodies that a joint connects, or that overlap in the home pose (a thigh beside its hip
drive), do not count. Whether the geoms collide in physics (ANYmal's do not, it saves time) does not
matter here. Shapes: T frames, J joints. World frame, Z up, metres.
"""

from __future__ import annotations

import mujoco
import numpy as np

from mocap_data.arrays import Array
from mocap_data.errors import InputError
from npmp.robots import Robot
from npmp.robots.model import touching

# a name that no model has
_FLOOR = "floor of the self-collision check"
# [m] to lift the robot above the floor while its own pairs are looked at
_OUT_OF_REACH = 100.0


class SelfCollision:
    """A robot's collision geoms, asked about poses. Not to be shared between threads.

    `ignored` lists the pairs of bodies that overlap in the home pose.
    """

    def __init__(self, robot: Robot) -> None:
        model = _collidable(robot).compile()
        data = mujoco.MjData(model)
        data.qpos[:] = robot.home_qpos
        data.qpos[2] += _OUT_OF_REACH
        welded = {tuple(sorted(model.body_weldid[[*pair]])) for pair in touching(model, data)}
        self.ignored = tuple(sorted((model.body(a).name, model.body(b).name) for a, b in welded))
        spec = _collidable(robot)
        for a, b in self.ignored:
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
        model, data, floor = self._model, self._data, self._floor
        if qpos.ndim != 2 or qpos.shape[1] != model.nq:
            raise InputError(f"poses are of shape {qpos.shape}, expected (T, {model.nq})")
        itself, below = np.zeros((2, len(qpos)))
        pose, contact = data.qpos, data.contact
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


def _collidable(robot: Robot) -> mujoco.MjSpec:
    """The robot over a floor, every collision geom meeting every other body's, no margins."""
    spec = robot.spec(visuals=False)
    for geom in spec.geoms:
        # the others are only looked at, and gone once compiled
        if geom.contype or geom.conaffinity:
            geom.contype, geom.conaffinity, geom.margin, geom.gap, geom.condim = 1, 1, 0.0, 0.0, 1
    plane = spec.worldbody.add_geom()
    plane.name, plane.type, plane.size = _FLOOR, mujoco.mjtGeom.mjGEOM_PLANE, [0.0, 0.0, 1.0]
    plane.contype, plane.conaffinity, plane.condim = 1, 1, 1
    return spec
