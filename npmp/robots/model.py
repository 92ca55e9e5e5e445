"""Reading MJCF and URDF files: the spec, the compiled model, and its kinematics at a pose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import mujoco
import numpy as np
import numpy.typing as npt

from mocap_data.arrays import Array
from mocap_data.errors import InputError, one_line
from npmp.robots.excess import EXPAND, places, refuse_excess, xml_of

ROOT_JOINT = "root"
FREE = mujoco.mjtJoint.mjJNT_FREE
BALL = mujoco.mjtJoint.mjJNT_BALL
SLIDE = mujoco.mjtJoint.mjJNT_SLIDE
HINGE = mujoco.mjtJoint.mjJNT_HINGE


def read_spec(path: Path) -> mujoco.MjSpec:
    """The file's spec as it stands; meshes of a URDF by the paths where they lie.

    Raises:
      InputError: for a file that is missing, no model, or declares more than a robot needs
        (`npmp.robots.excess`).
    """
    if not path.exists():
        raise InputError(f"no MJCF file '{path}'")
    if path.suffix == ".xacro":
        raise InputError(f"{path}: a xacro template; {EXPAND}")
    refuse_excess(path)
    try:
        if path.suffix == ".urdf":
            return mujoco.MjSpec.from_string(_located(path))
        return mujoco.MjSpec.from_file(str(path))
    except (ValueError, MemoryError) as error:
        raise InputError(f"{path}: not a valid MJCF: {one_line(error)}") from error


def _located(path: Path) -> str:
    """A URDF that names its meshes by absolute paths. MuJoCo itself drops their folders, and knows
    no package://NAME/FILE."""
    root = xml_of(path)
    compilers = list(root.iterfind("mujoco/compiler"))
    folders = {"", *(compiler.get("meshdir", "") for compiler in compilers)}
    for mesh in root.iter("mesh"):
        name = mesh.get("filename", "")
        paths = sorted(places(name, (path.parent,), folders), key=lambda p: -_shared(p, name))
        mesh.set("filename", str(paths[0].resolve() if paths else name))
    if not compilers:
        compilers = [ElementTree.SubElement(ElementTree.SubElement(root, "mujoco"), "compiler")]
    for compiler in compilers:
        compiler.set("strippath", "false")
        compiler.attrib.pop("meshdir", None)
    return ElementTree.tostring(root, encoding="unicode")


def joint_speeds(path: Path) -> dict[str, float]:
    """The speed limits that a URDF gives its joints [rad/s]; MuJoCo drops them, and an MJCF has
    none."""
    if path.suffix != ".urdf":
        return {}
    speeds = {}
    for joint in xml_of(path).iterfind("joint"):
        limit = joint.find("limit")
        velocity = "" if limit is None else limit.get("velocity", "")
        try:
            speed = float(velocity or 0)
        except ValueError:
            name = joint.get("name")
            raise InputError(f"{path}: joint '{name}' has the velocity {velocity!r:.40}") from None
        if 0 < speed < math.inf:
            speeds[joint.get("name", "")] = speed
    return speeds


def _shared(path: Path, name: str) -> int:
    """How many parts of their ends a path and a name share."""
    pairs = zip(reversed(path.parts), reversed(Path(name).parts), strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(Path(name).parts))


def compile_spec(spec: mujoco.MjSpec, path: Path) -> mujoco.MjModel:
    """The model. Raises InputError for one that does not compile."""
    try:
        return spec.compile()
    except (ValueError, MemoryError) as error:
        raise InputError(f"{path}: does not compile: {one_line(error)}") from error


def hinge_names(model: mujoco.MjModel, path: Path) -> tuple[str, ...]:
    """Names of the hinges. Raises InputError for other than a free joint "root", then hinges."""
    free = model.njnt and model.jnt_type[0] == FREE and model.jnt_bodyid[0] == 1
    if not free or model.joint(0).name != ROOT_JOINT:
        raise InputError(f"{path}: the first body must have a free joint named '{ROOT_JOINT}'")
    for i in range(1, model.njnt):
        if model.jnt_type[i] != HINGE:
            name = model.joint(i).name
            raise InputError(f"{path}: joint '{name}' is no hinge; only hinges may follow the root")
    return tuple(model.joint(i).name for i in range(1, model.njnt))


def hinges_to(model: mujoco.MjModel, body: int) -> list[int]:
    """Indices of the hinges (0 is the first after the root) from the root to a body, outwards."""
    joints: list[int] = []
    while body > 1:
        first = model.body_jntadr[body] - 1
        joints = [*range(first, first + model.body_jntnum[body]), *joints]
        body = model.body_parentid[body]
    return joints


def feet_in_world(data: mujoco.MjData, bodies: Sequence[str], points: npt.ArrayLike) -> Array:
    """World positions (F, K, 3) [m] of points (F, K, 3) [m] in the frames of feet."""
    soles = zip(bodies, np.asarray(points), strict=True)
    return np.array([in_world(data, body, sole) for body, sole in soles])


def in_world(data: mujoco.MjData, body: str, points: npt.ArrayLike) -> Array:
    """World positions (..., 3) [m] of points (..., 3) [m] given in a body's frame."""
    frame = data.body(body)
    return np.asarray(frame.xpos + points @ frame.xmat.reshape(3, 3).T)


def touching(
    model: mujoco.MjModel, data: mujoco.MjData, below_m: float = 0.0
) -> set[tuple[int, int]]:
    """Pairs of bodies, the lower id first, whose colliding geoms are nearer than that in the pose
    of `data`; within their margins."""
    mujoco.mj_kinematics(model, data)
    mujoco.mj_collision(model, data)
    geoms = data.contact.geom[data.contact.dist < below_m]
    return {(min(pair), max(pair)) for pair in model.geom_bodyid[geoms].tolist()}


def posed(model: mujoco.MjModel, joints: npt.ArrayLike = 0.0) -> mujoco.MjData:
    """Kinematics and centres of mass with the root at the origin, unturned, and the hinges at
    `joints` (J,) [rad]."""
    data = mujoco.MjData(model)
    data.qpos[:7] = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    data.qpos[7:] = joints
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    return data
