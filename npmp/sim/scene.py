"""Scenes of a robot on a floor, composed from `Robot.spec()`."""

from __future__ import annotations

from collections.abc import Callable

import mujoco
import numpy as np

from npmp.robots import Robot
from npmp.robots.model import touching

FLOOR = "floor"
# largest time constant of contacts with a height field (solref) [s]; MuJoCo raises it to at least
# two physics steps. With its default of 0.02 s a foot of 2.2 cm radius that swings against a riser
# sinks in beyond its centre. The height field then holds it.
# [D: experiments/results/2026-12-01-stuck-feet.md]
FIELD_CONTACT_S = 0.01


def flat_scene(
    robot: Robot, additions: Callable[[mujoco.MjSpec], None] | None = None
) -> mujoco.MjModel:
    """The robot on an infinite flat floor, at its physics rate.

    Args:
      robot: its geoms collide with geoms of contype 1, as those of `npmp.robots` do.
      additions: adds bodies and sensors to the spec, after the robot's (`Task.add_to_scene`).
    """
    spec = robot.on_floor()
    if additions is not None:
        additions(spec)
    return spec.compile()


def add_contact_sensors(spec: mujoco.MjSpec, robot: Robot) -> tuple[str, ...]:
    """Add to every body but the feet a sensor of its number of contacts with the floor.

    They cost a few per cent of the physics time, so only tasks that terminate on contacts add them.

    Returns: the sensors' names.
    """
    bodies = [body for body in robot.body_names if body not in robot.foot_bodies]
    for body in bodies:
        spec.add_sensor(
            name=f"contact_{body}",
            type=mujoco.mjtSensor.mjSENS_CONTACT,
            objtype=mujoco.mjtObj.mjOBJ_GEOM,
            objname=FLOOR,
            reftype=mujoco.mjtObj.mjOBJ_BODY,
            refname=body,
            intprm=[1 << int(mujoco.mjtConDataField.mjCONDATA_FOUND), 0, 1],
        )
    return tuple(f"contact_{body}" for body in bodies)


def let_bodies_collide(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Enable self-collisions, except of bodies that touch in the home pose or are linked."""
    for geom in spec.geoms:
        if geom.conaffinity and geom.parent.name in robot.body_names:
            geom.contype = 1
    model = spec.compile()
    data = mujoco.MjData(model)
    data.qpos[: len(robot.home_qpos)] = robot.home_qpos
    for first, second in sorted(touching(model, data, below_m=np.inf)):
        names = model.body(first).name, model.body(second).name
        if set(names) <= set(robot.body_names):
            apart = f"apart_{names[0]}_{names[1]}"
            spec.add_exclude(name=apart, bodyname1=names[0], bodyname2=names[1])
