"""Reading MJCF and URDF files: the spec, the compiled model, and its kinematics at a pose."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import mujoco
import numpy as np
import numpy.typing as npt

from mocap_data.arrays import Array
from mocap_data.errors import InputError, one_line
from mocap_data.input_files import reading, regular_file

ROOT_JOINT = "root"
FREE = mujoco.mjtJoint.mjJNT_FREE
BALL = mujoco.mjtJoint.mjJNT_BALL
SLIDE = mujoco.mjtJoint.mjJNT_SLIDE
HINGE = mujoco.mjtJoint.mjJNT_HINGE


def read_spec(path: Path) -> mujoco.MjSpec:
    """The spec of an MJCF or URDF file; a URDF's meshes by absolute paths.

    Raises:
      InputError: for a missing file, a xacro template, an invalid model, or an asset that is a
        Git LFS pointer or not a regular file.
    """
    regular_file(path)
    urdf = path.suffix == ".urdf"
    if path.suffix == ".xacro" or (urdf and b"<xacro:" in path.read_bytes()):
        raise InputError(
            f"{path}: a xacro template; expand it first, with ROS: xacro ROBOT.xacro > robot.urdf"
        )
    try:
        if urdf:
            spec = mujoco.MjSpec.from_string(_with_absolute_meshes(path))
        else:
            spec = mujoco.MjSpec.from_file(str(path))
    except InputError:
        raise
    except (ValueError, MemoryError) as error:
        raise InputError(f"{path}: not a valid MJCF: {one_line(error)}") from error
    for mesh in spec.meshes:
        _check_asset(asset_paths(spec, mesh.file, spec.meshdir))
    for texture in spec.textures:
        _check_asset(asset_paths(spec, texture.file, spec.texturedir))
    return spec


def asset_paths(spec: mujoco.MjSpec, file: str, folder: str) -> list[Path]:
    """The paths where MuJoCo searches for an asset's file; empty for an asset without a file."""
    if not file:
        return []
    base = Path(spec.modelfiledir)
    name = Path(file).name
    return list(
        dict.fromkeys((base / folder / file, base / file, base / folder / name, base / name))
    )


def _check_asset(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.exists() and not path.is_dir():
            regular_file(path)


def _urdf_root(path: Path) -> ElementTree.Element:
    """The root element of a URDF. A comment ends at its first "-->", as in MuJoCo."""
    with reading(path):
        text = re.sub(rb"<!--.*?-->", b"", path.read_bytes(), flags=re.DOTALL)
        return ElementTree.fromstring(text)


def _with_absolute_meshes(path: Path) -> str:
    """The text of a URDF that names its meshes by absolute paths: MuJoCo drops their folders and
    does not resolve package://NAME/FILE."""
    root = _urdf_root(path)
    compilers = list(root.iterfind("mujoco/compiler"))
    folders = {"", *(compiler.get("meshdir", "") for compiler in compilers)}
    for mesh in root.iter("mesh"):
        name = mesh.get("filename", "")
        paths = sorted(
            _mesh_candidates(name, path.parent, folders),
            key=lambda candidate: -_common_suffix(candidate, name),
        )
        mesh.set("filename", str(paths[0].resolve() if paths else name))
    if not compilers:
        compilers = [ElementTree.SubElement(ElementTree.SubElement(root, "mujoco"), "compiler")]
    for compiler in compilers:
        compiler.set("strippath", "false")
        compiler.attrib.pop("meshdir", None)
    return ElementTree.tostring(root, encoding="unicode")


def _mesh_candidates(name: str, base: Path, folders: set[str]) -> list[Path]:
    """Existing files of that name; of package://NAME/FILE also in the folders above."""
    _, package, plain = name.rpartition("://")
    candidates = {base / folder / p for folder in folders for p in (plain, Path(plain).name)}
    if package:
        inside = Path(*Path(plain).parts[1:])
        candidates |= {above / p for above in base.parents for p in (plain, inside)}
    return sorted(path for path in candidates if os.path.lexists(path) and not path.is_dir())


def _common_suffix(path: Path, name: str) -> int:
    """The number of trailing parts that a path and a name have in common."""
    pairs = zip(reversed(path.parts), reversed(Path(name).parts), strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(Path(name).parts))


def joint_speeds(path: Path) -> dict[str, float]:
    """The velocity limits of a URDF's joints [rad/s], which MuJoCo drops; empty for an MJCF."""
    if path.suffix != ".urdf":
        return {}
    speeds = {}
    for joint in _urdf_root(path).iterfind("joint"):
        limit = joint.find("limit")
        velocity = "" if limit is None else limit.get("velocity", "")
        try:
            speed = float(velocity or 0)
        except ValueError:
            name = joint.get("name")
            raise InputError(
                f"{path}: joint '{name}': velocity={velocity!r:.40}: must be a number [rad/s]"
            ) from None
        if 0 < speed < math.inf:
            speeds[joint.get("name", "")] = speed
    return speeds


def compile_spec(spec: mujoco.MjSpec, path: Path) -> mujoco.MjModel:
    """The compiled model. Raises InputError where MuJoCo refuses it."""
    try:
        return spec.compile()
    except (ValueError, MemoryError) as error:
        raise InputError(f"{path}: does not compile: {one_line(error)}") from error


def hinge_names(model: mujoco.MjModel, path: Path) -> tuple[str, ...]:
    """Names of the hinges after the free joint.

    Raises:
      InputError: unless the joints are a free joint named "root", then hinges.
    """
    free = model.njnt and model.jnt_type[0] == FREE and model.jnt_bodyid[0] == 1
    if not free or model.joint(0).name != ROOT_JOINT:
        raise InputError(f"{path}: the first body must have a free joint named '{ROOT_JOINT}'")
    for i in range(1, model.njnt):
        if model.jnt_type[i] != HINGE:
            name = model.joint(i).name
            raise InputError(
                f"{path}: joint '{name}' is not a hinge; only hinges may follow the root"
            )
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
    """World positions (..., 3) [m] of points (..., 3) [m] in a body's frame."""
    frame = data.body(body)
    return np.asarray(frame.xpos + points @ frame.xmat.reshape(3, 3).T)


def touching(
    model: mujoco.MjModel, data: mujoco.MjData, below_m: float = 0.0
) -> set[tuple[int, int]]:
    """Pairs of bodies, the lower id first, whose colliding geoms are nearer than `below_m` in the
    pose of `data`; within their margins."""
    mujoco.mj_kinematics(model, data)
    mujoco.mj_collision(model, data)
    geoms = data.contact.geom[data.contact.dist < below_m]
    return {(min(pair), max(pair)) for pair in model.geom_bodyid[geoms].tolist()}


def posed(model: mujoco.MjModel, joints: npt.ArrayLike = 0.0) -> mujoco.MjData:
    """Kinematics and centres of mass with the root at the origin, upright, and the hinges at
    `joints` (J,) [rad]."""
    data = mujoco.MjData(model)
    data.qpos[:7] = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    data.qpos[7:] = joints
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    return data
