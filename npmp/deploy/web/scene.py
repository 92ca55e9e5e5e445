"""A robot's scene for the browser's MuJoCo: the physics that its policies were trained in, as XML
that its release reads, and what there is to draw."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np

from mocap_data.errors import InputError
from npmp.robots import Robot
from npmp.robots.looks import moving_bodies, shapes
from npmp.sim import flat_spec

# MuJoCo writes six digits: what a scene that was read again may differ by, relative to the largest
# of its kind
_DIGITS = 1e-4
# what `input=` says the drives' gains say, too; sites have no size that anything depends on
_PASSED_OVER = ("actuator_ctrlspec", "site_size")
_OPTIONS = (
    "timestep",
    "integrator",
    "cone",
    "impratio",
    "solver",
    "iterations",
    "tolerance",
    "gravity",
    "disableflags",
)
# assets that a scene without visuals has no use for
_DRAWN_ONLY = ("mesh", "material", "texture", "skin")


def scene_xml(robot: Robot, additions: Callable[[mujoco.MjSpec], None] | None = None) -> str:
    """The robot on its floor, as `npmp.sim.flat_spec`, without what is only looked at.

    Older releases of MuJoCo read it, too: `input=`, which 3.17 writes at every actuator, goes where
    it says what it always was. Inertias are written in full.

    Raises:
      InputError: for a robot whose physics needs files besides the XML (colliding meshes), or more
        than XML can say.
    """
    spec = flat_spec(robot, additions)
    model = spec.compile()
    if model.nmesh:
        raise InputError(
            f"robot '{robot.name}' collides with meshes; a page takes spheres, capsules, cylinders and boxes"
        )
    root = ElementTree.fromstring(spec.to_xml())
    for assets in root.iter("asset"):
        for asset in [entry for entry in assets if entry.tag in _DRAWN_ONLY]:
            assets.remove(asset)
    for element in root.iter():
        element.attrib.pop("material", None)
        if element.get("input") == "pos":
            del element.attrib["input"]
    for element in root.iter("body"):
        _tell_inertia(element, model.body(element.get("name")))
    for compiler in root.iter("compiler"):
        # shapes that were only looked at may have had a part in it
        compiler.set("inertiafromgeom", "false")
    xml = ElementTree.tostring(root, encoding="unicode")
    if different := differing(model, mujoco.MjModel.from_xml_string(xml)):
        raise InputError(
            f"robot '{robot.name}': its scene as XML differs from its scene in {', '.join(different)}"
        )
    return xml


def _tell_inertia(element: ElementTree.Element, body: Any) -> None:
    """Write a compiled body's mass and inertia into its element."""
    if (old := element.find("inertial")) is not None:
        element.remove(old)
    if body.mass[0] > 0:
        arrays = {
            "pos": body.ipos,
            "quat": body.iquat,
            "mass": body.mass,
            "diaginertia": body.inertia,
        }
        text = {
            name: " ".join(repr(float(value)) for value in array) for name, array in arrays.items()
        }
        element.insert(0, ElementTree.Element("inertial", text))


def differing(first: mujoco.MjModel, second: mujoco.MjModel) -> list[str]:
    """Names of the arrays of two models that are not the same, within what six digits tell apart."""
    wrong = []
    for name in dir(first):
        mine = getattr(first, name)
        if (
            name in _PASSED_OVER
            or name.startswith("_")
            or not isinstance(mine, np.ndarray)
            or not mine.size
        ):
            continue
        other = getattr(second, name)
        near = _DIGITS * max(1e-9, float(np.abs(mine).max()))
        wrong += (
            []
            if mine.shape == other.shape and np.allclose(mine, other, rtol=0.0, atol=near)
            else [name]
        )
    wrong += [
        f"option {name}"
        for name in _OPTIONS
        if np.any(getattr(first.opt, name) != getattr(second.opt, name))
    ]
    return wrong


def looks(robot: Robot) -> dict[str, Any]:
    """What to draw: `npmp.robots.looks.shapes`, and which bodies they are on."""
    model = robot.model()
    return {
        "bodies": moving_bodies(model),
        "shapes": shapes(model, robot.foot_bodies, colours=True),
    }
