"""The scenes robots are simulated in, composed from `Robot.spec()`."""

from __future__ import annotations

from collections.abc import Callable

import mujoco
import numpy as np

from npmp.robots import Robot
from npmp.robots.model import touching

FLOOR = "floor"


def flat_scene(
    robot: Robot, additions: Callable[[mujoco.MjSpec], None] | None = None
) -> mujoco.MjModel:
    """The robot on an infinite flat floor, at its physics rate, and what a task adds.

    Args:
      robot: its geoms must collide with geoms of contype 1 (as those of `npmp.robots` do).
      additions: adds to the spec, `Task.add_to_scene`; bodies after the robot's.
    """
    spec = robot.on_floor()
    if additions is not None:
        additions(spec)
    return spec.compile()


def add_contact_sensors(spec: mujoco.MjSpec, robot: Robot) -> tuple[str, ...]:
    """Add a sensor of the number of contacts with the floor to every body that is not a foot; gives
    their names.

    They cost a few per cent of the physics, so only tasks that terminate on them ask for them.
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
    """Let the robot's bodies collide with each other, but for those that touch in the home pose or
    are linked."""
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
