"""Reduce a model of another simulator to one named robot on a free joint.

- One tree of bodies remains, the one with the free joint. Floors, lights, cameras, keyframes,
  sensors, actuators, tendons, equality constraints and contact rules are deleted.
- The free joint is "root". A model without it has three slides with a ball or three hinges, which
it replaces, or a fixed trunk, which gets it.
- A body with several hinges becomes a chain of bodies with one hinge each.
- Passive joints with a range below 0.1 rad (backlash) are locked.
- Inertias that violate A + B >= C are balanced as by MuJoCo's `balanceinertia`.
- Every body, joint and geom has a name.
- Visual shapes whose mesh files are missing, or of a format that MuJoCo does not read, are deleted.

Nothing is written to the model's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from mocap_data.errors import InputError
from npmp.robots.model import BALL, FREE, HINGE, ROOT_JOINT, SLIDE, asset_paths

# attributes of a geom that are copied when it moves to a foot's body
GEOM_ATTRIBUTES = (
    *("type", "contype", "conaffinity", "condim", "priority", "friction", "solmix", "solref"),
    *("solimp", "margin", "gap", "mass", "density", "group", "rgba", "material"),
)
# the model's defaults that must not apply to elements added later
_DEFAULTS = {
    "geom": (*GEOM_ATTRIBUTES, "size", "pos", "quat"),
    "actuator": (
        *("gaintype", "gainprm", "biastype", "biasprm", "dyntype", "dynprm", "gear", "group"),
        *("ctrllimited", "ctrlrange", "forcelimited", "forcerange", "actlimited", "actrange"),
    ),
    "site": ("type", "size", "pos", "quat", "group", "rgba", "material"),
}
# deleted groups of the spec that the changes mention, and one element of each
_REPORTED = {
    "equalities": "equality",
    "tendons": "tendon",
    "pairs": "contact pair",
    "skins": "skin",
    "flexes": "flex",
}
# deleted groups that every model has
_UNREPORTED = ("keys", "sensors", "actuators", "excludes", "lights", "cameras")
# [rad] range below which a joint without an actuator is locked
_BACKLASH = 0.1
# [kg], [kg m2] of bodies that only carry a hinge; MuJoCo refuses moving bodies of 1e-15
_LINK_MASS = 1e-12
_LINK_INERTIA = 1e-13
# mesh formats that MuJoCo reads
_MESH_SUFFIXES = (".stl", ".obj", ".msh")
# types of joints that together move a body freely, in any order
_FLOATING = ([SLIDE] * 3 + [BALL], [SLIDE] * 3 + [HINGE] * 3)
# prefix of copied elements until the originals are deleted
_COPY = "npmp copy/"
# attributes that belong to an element's place in the spec
_UNCOPIED = (
    *("alt", "classname", "compiler", "frame", "id", "info", "name", "parent", "plugin"),
    *("set_frame", "signature"),
)
_ORIENTATIONS = ("type", "axisangle", "xyaxes", "zaxis", "euler")

# topic, value and reason of a change
Change = tuple[str, str, str]


def strip(spec: mujoco.MjSpec, path: Path) -> list[Change]:
    """Leave one named robot of bodies, joints, shapes and sites, in place.

    Returns: the changes that a user should know, ("left out", "2 tendons, robot trunk_b", reason).

    Raises:
      InputError: for a missing mesh that collides or gives a body its mass, and for a root that
        does not move freely.
    """
    counts = {group: len(getattr(spec, group)) for group in _REPORTED}
    left_out = [f"{n} {_REPORTED[group] if n == 1 else group}" for group, n in counts.items() if n]
    hinges = [joint for joint in spec.joints if joint.type == HINGE]
    locked = [joint for joint, loose in zip(hinges, backlash(spec), strict=True) if loose]
    for group in (*_REPORTED, *_UNREPORTED):
        delete(spec, getattr(spec, group))
    changes = _lock(spec, locked)

    # Elements added later (a floor, drives) take MuJoCo's own defaults. The spec owns them, so it
    # must live until they are read.
    mujoco_spec = mujoco.MjSpec()
    for kind, names in _DEFAULTS.items():
        for name in names:
            value = getattr(getattr(mujoco_spec.default, kind), name)
            setattr(getattr(spec.default, kind), name, value)
    # a URDF's feet are often links of their own, fixed to the shanks
    spec.compiler.fusestatic = False

    changes += _balance_inertia(spec)
    others, root_changes = _keep_one_robot(spec, path)
    changes += root_changes
    left_out += [f"robot {name}" for name in others]
    _name_all(spec)
    left_out += _drop_unreadable(spec, path)
    changes += _split_hinges(spec)
    if left_out:
        changes.insert(
            0, ("left out", ", ".join(left_out), "only one robot of hinges and shapes is supported")
        )
    return changes


def drop_visuals(spec: mujoco.MjSpec) -> None:
    """Leave only shapes that collide or have mass in a stripped spec, in place."""
    delete(spec, [g for g in spec.geoms if not (_weighs(g.parent) or collides(g))])
    used = {geom.meshname for geom in spec.geoms}
    delete(spec, [m for m in spec.meshes if (m.name or Path(m.file).stem) not in used])
    for item in (*spec.geoms, *spec.sites):
        item.material = ""
    delete(spec, spec.materials)
    delete(spec, spec.textures)


def collides(geom: Any) -> bool:
    return bool(geom.contype or geom.conaffinity)


def delete(spec: mujoco.MjSpec, elements: Iterable[Any]) -> None:
    for element in list(elements):
        spec.delete(element)


def backlash(spec: mujoco.MjSpec) -> list[bool]:
    """Whether to lock each hinge: it has no actuator, others have one, and its range is below 0.1
    rad."""
    driven = {
        actuator.target
        for actuator in spec.actuators
        if actuator.trntype == mujoco.mjtTrn.mjTRN_JOINT
    }
    locked = []
    for joint in spec.joints:
        if joint.type == HINGE:
            unit = np.pi / 180 if joint.compiler.degree else 1.0
            width = unit * float(np.ptp(joint.range))
            locked.append(bool(driven) and joint.name not in driven and 0 < width < _BACKLASH)
    return locked


def _lock(spec: mujoco.MjSpec, joints: Sequence[Any]) -> list[Change]:
    names = ", ".join(joint.name or f"of {joint.parent.name}" for joint in joints)
    delete(spec, joints)
    reason = f"no actuator and less than {_BACKLASH:g} rad of range: backlash"
    return [("locked joints", names, reason)] if names else []


def _balance_inertia(spec: mujoco.MjSpec) -> list[Change]:
    """Let MuJoCo balance principal inertias A + B < C."""
    spec.compiler.balanceinertia = True
    changes = []
    for body in spec.bodies:
        if not body.explicitinertial:
            continue
        principal = np.sort(body.inertia)
        if np.isfinite(body.fullinertia[0]):
            xx, yy, zz, xy, xz, yz = body.fullinertia
            principal = np.linalg.eigvalsh([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
        # the compiler's condition
        if principal[0] + principal[1] < principal[2]:
            figures = ", ".join(f"{value:.3g}" for value in principal)
            value = f"{body.name}: {figures} kg m2, now {principal.mean():.3g} each"
            changes.append(("inertia", value, "A + B >= C holds for every body"))
    return changes


# --- one robot with a free root


def _keep_one_robot(spec: mujoco.MjSpec, path: Path) -> tuple[list[str], list[Change]]:
    """Leave the tree under the free joint, "root"; without a free joint, the tree with the most
    hinges. Returns the names of other trees with hinges, and how the root became free."""
    world = spec.worldbody
    trees = list(world.bodies)
    if not trees:
        raise InputError(f"{path}: no robot, as the model has no body")
    changes: list[Change] = []
    if not any(joint.type == FREE for tree in trees for joint in tree.joints):
        trees, changes = _free_root(spec, trees, path)
    free = [body for body in trees if any(joint.type == FREE for joint in body.joints)]
    root = max(free or trees, key=_hinges)
    others = [body.name or "without a name" for body in trees if body is not root and _hinges(body)]
    delete(spec, [body for body in trees if body is not root])
    delete(spec, world.geoms)
    delete(spec, world.sites)

    # a URDF's floating joint may follow a massless link, which becomes the free one
    delete(spec, [j for j in spec.joints if j.type == FREE and j.parent.name != root.name])
    joint = next((j for j in root.joints if j.type == FREE), None) or root.add_freejoint()
    if any(other.name == ROOT_JOINT and other.type != FREE for other in spec.joints):
        raise InputError(
            f"{path}: joint '{ROOT_JOINT}' is not the free one; that name is the free joint's"
        )
    joint.name = ROOT_JOINT
    # only the pose of a reset without keyframe
    _reset_pose(root)
    return others, changes


def _reset_pose(body: Any) -> None:
    body.pos = [0.0, 0.0, 0.0]
    body.quat = [1.0, 0.0, 0.0, 0.0]
    body.alt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT


def _hinges(body: Any) -> int:
    """The number of hinges of a body and its descendants."""
    return sum(joint.type == HINGE for joint in body.find_all(mujoco.mjtObj.mjOBJ_JOINT))


def _free_root(
    spec: mujoco.MjSpec, trees: Sequence[Any], path: Path
) -> tuple[list[Any], list[Change]]:
    """The trees of a model without a free joint, with the robot's ready for one.

    Raises:
      InputError: for a root that moves, but not freely.
    """
    root = max(trees, key=_hinges)
    joints = _root_joints(root)
    for floating in _FLOATING:
        count = len(floating)
        if sorted(map(int, floating)) == sorted(int(joint.type) for joint in joints[:count]):
            motions = ", ".join(map(_motion, joints[:count]))
            delete(spec, joints[:count])
            return list(trees), [("root", "a free joint", f"in place of: {motions}")]
    if not root.joints:
        return list(trees), []
    if any(joint.type == SLIDE for joint in joints[:6]):
        motions = ", ".join(map(_motion, joints))
        raise InputError(
            f"{path}: '{root.name}' moves by {motions}: a planar or guided robot; a floating base"
            " is expected: <freejoint/>, or three slides and a ball"
        )
    return _wrap_in_trunk(spec, trees, path)


def _root_joints(body: Any) -> list[Any]:
    """The joints from a root outwards, along bodies without shapes that have a single child."""
    joints = list(body.joints)
    while len(body.bodies) == 1 and not body.geoms and len(joints) < 6:
        body = body.bodies[0]
        joints += body.joints
    return joints


def _motion(joint: Any) -> str:
    kind = {int(SLIDE): "slide", int(HINGE): "hinge", int(BALL): "ball"}[int(joint.type)]
    return kind if kind == "ball" else f"{kind} along {'XYZ'[int(np.abs(joint.axis).argmax())]}"


def _wrap_in_trunk(
    spec: mujoco.MjSpec, trees: Sequence[Any], path: Path
) -> tuple[list[Any], list[Change]]:
    """A trunk of the world's shapes that carries the trees with hinges, as URDF importers save
    robots. Floors, and shapes larger than the robot, stay in the world.

    Raises:
      InputError: for a single tree, or a world without such shapes.
    """
    limbs = [tree for tree in trees if _hinges(tree)]
    places = np.array([limb.pos for limb in limbs])
    middle = places.mean(axis=0)
    reach = 2.0 * float(np.linalg.norm(places - middle, axis=-1).max())
    flat = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)
    shapes = [
        geom
        for geom in spec.worldbody.geoms
        if geom.type not in flat
        and geom.frame is None
        and np.linalg.norm(geom.pos - middle) < reach
        and np.nan_to_num(geom.size).max() < reach
    ]
    if len(limbs) < 2 or not shapes:
        raise InputError(
            f"{path}: the trunk is fixed to the world ('{limbs[0].name}' turns by"
            f" '{limbs[0].joints[0].name}'); wrap it in a body with <freejoint/>"
        )
    body_names = {body.name for body in spec.bodies}
    name = next(name for name in ("trunk", "base", "npmp_trunk") if name not in body_names)
    trunk = spec.worldbody.add_body(name=name)
    for geom in shapes:
        _copy_attributes(geom, trunk.add_geom())
    for limb in limbs:
        _move(spec, limb, trunk)
    others = [tree for tree in trees if tree not in limbs]
    value = f"'{name}' of {len(shapes)} shapes of the world, on a free joint"
    reason = f"the model fixes its trunk to the world; it carries {len(limbs)} limbs"
    return [*others, trunk], [("root", value, reason)]


# --- moving elements within a spec


def _copy_attributes(source: Any, target: Any) -> None:
    """Copy all attributes of an element but its name and place in the spec."""
    for key in dir(source):
        if not key.startswith("_") and key not in _UNCOPIED:
            setattr(target, key, getattr(source, key))
    if hasattr(source, "alt"):
        _copy_orientation(source, target)


def _copy_orientation(source: Any, target: Any) -> None:
    for key in _ORIENTATIONS:
        setattr(target.alt, key, getattr(source.alt, key))


def _move(spec: mujoco.MjSpec, body: Any, parent: Any) -> Any:
    """Make a body with its descendants the last child of another; returns it."""
    frame = parent.add_frame()
    if body.frame is not None and body.parent.name == parent.name:
        frame.set_frame(body.frame)
    spec.copy_during_attach = True
    moved = frame.attach_body(body, _COPY, "")
    spec.delete(body)
    for group in (spec.bodies, spec.joints, spec.geoms, spec.sites):
        for item in group:
            item.name = item.name.removeprefix(_COPY)
    return moved


def _split_hinges(spec: mujoco.MjSpec) -> list[Change]:
    """Give each hinge its own body, in place: those before the last of a body move to massless
    bodies, in the same order and with the same names."""
    body_names = {body.name for body in spec.bodies}
    split: list[str] = []

    def visit(parent: Any) -> None:
        children = list(parent.bodies)
        if any(_has_several_hinges(child) for child in children):
            # all children move, so that their order stays
            moved = []
            for child in children:
                if _has_several_hinges(child):
                    split.append(child.name)
                    moved.append(_chain_hinges(spec, child, parent, body_names))
                else:
                    moved.append(_move(spec, child, parent))
            children = moved
        for child in children:
            visit(child)

    visit(spec.worldbody.first_body())
    reason = "one hinge a body; the added bodies weigh nothing"
    return [("split bodies", ", ".join(split), reason)] if split else []


def _has_several_hinges(body: Any) -> bool:
    return len(body.joints) > 1 and all(joint.type == HINGE for joint in body.joints)


def _chain_hinges(spec: mujoco.MjSpec, body: Any, parent: Any, body_names: set[str]) -> Any:
    """Move a body to the end of its parent's children, its hinges but the last to bodies between
    the two; returns it."""
    link = parent
    for hinge in body.joints[:-1]:
        first = link is parent
        link = link.add_body(name=_unused(f"{hinge.name}_link", body_names))
        if first:
            link.pos = body.pos
            link.quat = body.quat
            _copy_orientation(body, link)
            if body.frame is not None:
                link.set_frame(body.frame)
        link.explicitinertial = True
        link.mass = _LINK_MASS
        link.inertia = [_LINK_INERTIA] * 3
        joint = link.add_joint()
        _copy_attributes(hinge, joint)
        name = hinge.name
        spec.delete(hinge)
        joint.name = name
    moved = _move(spec, body, link)
    _reset_pose(moved)
    return moved


def _unused(name: str, names: set[str]) -> str:
    """A name that is not among `names`, which it is added to."""
    while name in names:
        name += "_"
    names.add(name)
    return name


def _name_all(spec: mujoco.MjSpec) -> None:
    """Name bodies, joints and geoms without a name by their place in the file."""
    names = {item.name for group in (spec.bodies, spec.joints, spec.geoms) for item in group}
    for i, body in enumerate(spec.bodies):
        body.name = body.name or _unused(f"body_{i}", names)
        for k, joint in enumerate(body.joints):
            suffix = f"_{k}" if k else ""
            joint.name = joint.name or _unused(f"{body.name}_joint{suffix}", names)
        for k, geom in enumerate(body.geoms):
            geom.name = geom.name or _unused(f"{body.name}_geom_{k}", names)


# --- asset files


def _drop_unreadable(spec: mujoco.MjSpec, path: Path) -> list[str]:
    """Delete visual shapes without a readable mesh, and missing textures. Returns the meshes of
    formats that MuJoCo does not read."""
    missing: dict[str, str] = {}
    unreadable: list[str] = []
    for mesh in spec.meshes:
        name = mesh.name or Path(mesh.file).stem
        paths = asset_paths(spec, mesh.file, spec.meshdir)
        suffix = Path(mesh.file).suffix.lower()
        if _is_missing(paths):
            missing[name] = f"no file {', '.join(map(str, paths))}"
        elif mesh.file and not mesh.content_type and suffix not in _MESH_SUFFIXES:
            missing[name] = f"{mesh.file} is none of {', '.join(_MESH_SUFFIXES)}"
            unreadable.append(f"mesh {Path(mesh.file).name}")
    for geom in [geom for geom in spec.geoms if geom.meshname in missing]:
        name = geom.meshname
        body = geom.parent
        if _weighs(body) or collides(geom):
            use = f"gives body '{body.name}' its mass" if _weighs(body) else "meets the floor"
            raise InputError(f"{path}: mesh '{name}' {use}: {missing[name]}")
        spec.delete(geom)
    delete(spec, [m for m in spec.meshes if (m.name or Path(m.file).stem) in missing])

    lost = [t for t in spec.textures if _is_missing(asset_paths(spec, t.file, spec.texturedir))]
    names = {texture.name or Path(texture.file).stem for texture in lost}
    for material in spec.materials:
        material.textures = ["" if name in names else name for name in material.textures]
    delete(spec, lost)
    return unreadable


def _is_missing(paths: Sequence[Path]) -> bool:
    return bool(paths) and not any(path.is_file() for path in paths)


def _weighs(body: Any) -> bool:
    """Whether a body's mass is that of its shapes."""
    return not body.explicitinertial and body.name != "world"
