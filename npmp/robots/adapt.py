"""Models that were not written for this package, brought into its shape as they are read.

A robot.yaml with `drives:` says that its MJCF (or URDF) is such a one. Its kinematics, inertia and
shapes are taken, and the rest is made here:

- one robot: the tree under the free joint; floors, lights, cameras, keyframes, sensors, tendons,
  equality and contact rules go;
- a free joint is made where there is none: of three slides with a ball or three hinges, of a trunk
  whose shapes are the world's, on a trunk without a joint;
- a body with several hinges becomes a chain of bodies with one each;
- passive joints that hardly turn (backlash) are locked;
- inertias that no body can have are balanced, as MuJoCo's `balanceinertia` does;
- the free joint is called "root", and every body, joint and geom has a name;
- one position actuator per joint, with the joint's name and in its order: kp, kd and torque limit
  of `drives:`, which may also give the joints the inertia of their rotors (`armature`);
- shapes that collided with anything meet the floor, and never each other: contype 0, conaffinity 1;
  feet meet it as the package's own do (hard, condim 3, their own sliding friction): soft ones sink
  in by a centimetre;
- feet that are only shapes at the end of a shank become welded bodies, aligned with the base when
  all joints are zero, because motions and rewards speak of foot bodies;
- an "imu" site where the model has none;
- solver options are those of the package's own robots; visual shapes whose mesh files are missing,
  or of a format that MuJoCo does not read, are left out.

Nothing is written to the model's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.errors import InputError
from npmp.robots.description import (
    MODEL,
    Description,
    DrivesEntry,
    Gain,
    Place,
    match_names,
    one_of,
)
from npmp.robots.model import BALL, FREE, HINGE, ROOT_JOINT, SLIDE, compile_spec, hinge_names, posed

# of a shape that moves to a foot's body
_SHAPE = (
    *("type", "contype", "conaffinity", "condim", "priority", "friction", "solmix", "solref"),
    *("solimp", "margin", "gap", "mass", "density", "group", "rgba", "material"),
)
# what a model's defaults say of later additions
_DEFAULTS = {
    "geom": (*_SHAPE, "size", "pos", "quat"),
    "actuator": (
        *("gaintype", "gainprm", "biastype", "biasprm", "dyntype", "dynprm", "gear", "group"),
        *("ctrllimited", "ctrlrange", "forcelimited", "forcerange", "actlimited", "actrange"),
    ),
    "site": ("type", "size", "pos", "quat", "group", "rgba", "material"),
}
# models for other simulators come with one iteration and the like
_OPTIONS = (
    *("solver", "iterations", "ls_iterations", "tolerance", "ls_tolerance"),
    *("disableflags", "enableflags"),
)
# what a model loses: groups of the spec, and one of each
_TOLD = {
    "equalities": "equality",
    "tendons": "tendon",
    "pairs": "contact pair",
    "skins": "skin",
    "flexes": "flex",
}
# what every model has, and the physics does not need
_UNTOLD = ("keys", "sensors", "actuators", "excludes", "lights", "cameras")
# [m] a foot's shape is within this distance of the point that robot.yaml gives
_NEAR = 2e-3
# [rad] a joint without an actuator in a model with actuators, and with less range, is locked
_BACKLASH = 0.1
# [kg], [kg m2] of bodies that only carry a hinge; MuJoCo refuses moving bodies of 1e-15
_LINK_MASS = 1e-12
_LINK_INERTIA = 1e-13
# mesh files that MuJoCo reads
_MESHES = (".stl", ".obj", ".msh")
# joints that together move a body freely, by type, in whatever order
_FLOATING = ([SLIDE] * 3 + [BALL], [SLIDE] * 3 + [HINGE] * 3)
# of elements that are copied within a spec: their names until the originals are deleted
_COPY = "npmp copy/"
# what belongs to an element's place in the spec
_OWN = (
    *("alt", "classname", "compiler", "frame", "id", "info", "name", "parent", "plugin"),
    *("set_frame", "signature"),
)

# topic, value and reason of something that was changed
Change = tuple[str, str, str]


@dataclass(frozen=True)
class Drive:
    """A joint's position control in the joint's own units; None: the model does not say."""

    # [Nm/rad]
    kp: float | None = None
    # [Nm s/rad]
    kd: float | None = None
    # [Nm]
    torque_limit: float | None = None
    # [kg m2] of the rotor, seen at the joint
    armature: float | None = None


def adapt(spec: mujoco.MjSpec, said: Description, path: Path, where: str) -> None:
    """Bring a model's spec into the package's shape as its robot.yaml says, in place: strip it, and
    give it feet, drives, an IMU and solver options.

    Raises:
      InputError: for names that do not exist, drives that neither give, and a model that cannot be
        adapted.
    """
    own_drives = model_drives(spec)
    strip(spec, path)
    bare = spec.copy()
    drop_visuals(bare)
    model = compile_spec(bare, path)
    refuse_unfit(model, path)
    joints = [model.joint(i).name for i in range(1, model.njnt)]
    bodies = [model.body(i).name for i in range(1, model.nbody)]
    entry = said.drives if isinstance(said.drives, DrivesEntry) else DrivesEntry()
    drives = {
        joint: _drive(entry, joint, joints, own_drives, f"{where}: drives") for joint in joints
    }
    for name, place in said.feet.at.items():
        at = f"{where}: feet.at.{name}"
        if name in bodies:
            raise InputError(f"{at}: the model has a body of that name; it needs no entry here")
        one_of(place.body, bodies, "body", f"{at}.body")
        _make_foot(spec, name, place, said.feet.radius, model)
    for geom in spec.geoms:
        if colliding(geom):
            geom.contype = 0
            geom.conaffinity = 1
            if geom.parent.name in said.feet.bodies:
                # MuJoCo's hard defaults, whatever the ground's
                geom.condim = 3
                geom.priority = 1
                geom.solref = [0.02, 1.0]
                geom.solimp = [0.9, 0.95, 0.001, 0.5, 2.0]
                geom.margin = geom.gap = 0.0
    if said.imu is not None:
        one_of(said.imu.body, bodies, "body", f"{where}: imu.body")
        _delete(spec, [site for site in spec.sites if site.name == "imu"])
        spec.body(said.imu.body).add_site(
            name="imu", pos=said.imu.position, size=[0.01, 0.01, 0.01], group=4
        )
    for joint, drive in drives.items():
        _add_drive(spec, joint, drive)
    usual = mujoco.MjSpec()
    for key in _OPTIONS:
        setattr(spec.option, key, getattr(usual.option, key))
    if said.physics_rate_hz is not None:
        spec.option.timestep = 1.0 / said.physics_rate_hz
    # stiff PD damping stays stable
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    # a third of the elliptic cones' cost
    spec.option.cone = mujoco.mjtCone.mjCONE_PYRAMIDAL
    # loaded feet creep less
    spec.option.impratio = 10.0


def _drive(
    entry: DrivesEntry, joint: str, joints: Sequence[str], known: Mapping[str, Drive], where: str
) -> Drive:
    own = known.get(joint, Drive())

    def figure(key: str, value: Gain) -> float | None:
        if isinstance(value, Mapping):
            match_names(value, joints, f"{where}.{key}")
            value = value[joint]
        if value == MODEL:
            own_value: float | None = getattr(own, key)
            if own_value is None and key != "armature":
                raise InputError(f"{where}: the model gives joint '{joint}' no {key}; give it here")
            return own_value
        # kd: the joints' own damping may be enough
        if isinstance(value, str) or value < 0 or (value == 0 and key != "kd"):
            raise InputError(f"{where}.{key} must be above 0 or '{MODEL}', got {value!r}")
        return value

    return Drive(**{key: figure(key, value) for key, value in vars(entry).items()})


def _add_drive(spec: mujoco.MjSpec, joint: str, drive: Drive) -> None:
    actuator = spec.add_actuator(name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    actuator.set_to_position(kp=drive.kp, kv=drive.kd)
    actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
    limit = float(drive.torque_limit or 0.0)  # `_drive` left none out
    actuator.forcerange = [-limit, limit]
    actuator.ctrllimited = mujoco.mjtLimited.mjLIMITED_FALSE  # targets are not clipped
    if drive.armature is not None:
        spec.joint(joint).armature = drive.armature


def _make_foot(
    spec: mujoco.MjSpec, name: str, place: Place, radius: float, model: mujoco.MjModel
) -> None:
    """Add a foot's body, aligned with the base and without mass where its parent's is given, and
    move its shapes there, by where they are in the compiled model; a sphere where it has none."""
    parent = spec.body(place.body)
    own = model.body(place.body).id
    turn = posed(model).xquat[own]
    aligned = _tidy(rotations.conjugate(turn))
    body = parent.add_body(name=name, pos=place.position, quat=aligned)
    if parent.explicitinertial:
        body.explicitinertial = True
        body.mass = 0.0
        body.inertia = [0.0, 0.0, 0.0]
    offsets = model.geom_pos - place.position
    taken = (model.geom_bodyid == own) & (np.linalg.norm(offsets, axis=-1) <= _NEAR)
    taken &= (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    taken &= model.geom_type != mujoco.mjtGeom.mjGEOM_MESH
    for g in np.flatnonzero(taken):
        old = spec.geom(model.geom(g).name)
        turned = rotations.multiply(turn, model.geom_quat[g])
        moved = rotations.rotate(turn, offsets[g])
        new = body.add_geom(size=model.geom_size[g], pos=moved, quat=_tidy(turned))
        for key in _SHAPE:
            setattr(new, key, getattr(old, key))
        shape = old.name
        spec.delete(old)
        new.name = shape
    if not taken.any():
        sphere = mujoco.mjtGeom.mjGEOM_SPHERE
        sole = body.add_geom(name=f"{name}_sole", type=sphere, size=[radius, 0, 0])
        sole.friction = [0.8, 0.02, 0.01]
        sole.group = 3
        sole.priority = 1
        sole.mass = 0.0


def _tidy(quaternion: Array) -> Array:
    """Exactly no turn where it is one but for rounding; w >= 0."""
    unit = quaternion / np.linalg.norm(quaternion) * (1.0 if quaternion[0] >= 0 else -1.0)
    return rotations.IDENTITY if np.abs(unit[1:]).max() < 1e-9 else unit


def refuse_unfit(model: mujoco.MjModel, path: Path) -> None:
    """Raise InputError for what no adaptation helps: other joints than hinges, offset angles,
    infinite figures."""
    for figure in ("mass", "inertia", "pos", "ipos"):
        values = getattr(model, f"body_{figure}").reshape(model.nbody, -1)
        if not np.isfinite(values).all():
            body = model.body(int(np.argmin(np.isfinite(values).all(axis=1)))).name
            raise InputError(f"{path}: body '{body}': {figure}: must be finite")
    for i, name in enumerate(hinge_names(model, path), 1):
        if model.qpos0[model.jnt_qposadr[i]] != 0:
            raise InputError(
                f"{path}: joint '{name}' counts its angle from a ref;"
                " give its body that turn and drop ref"
            )
    if model.njnt < 2:
        raise InputError(f"{path}: no joints to drive")


def model_drives(spec: mujoco.MjSpec) -> dict[str, Drive]:
    """What the model's actuators, and the torque limits of its joints, say of each joint.

    An actuator of gear g pulls with g times its force and sees g times the angle. Motors have a
    limit, but no gains.
    """
    drives = {}
    for joint in spec.joints:
        if joint.type == HINGE and joint.actfrcrange[1] > joint.actfrcrange[0]:
            drives[joint.name] = Drive(torque_limit=float(np.abs(joint.actfrcrange).min()))
    for actuator in spec.actuators:
        if actuator.trntype != mujoco.mjtTrn.mjTRN_JOINT:
            continue
        gear = abs(float(actuator.gear[0]))
        limit = drives.get(actuator.target, Drive()).torque_limit
        force = np.abs(actuator.forcerange)
        control = np.abs(actuator.ctrlrange)
        affine = actuator.biastype == mujoco.mjtBias.mjBIAS_AFFINE
        if force.max() > 0:
            limit = float(force.min() * gear)
        elif not affine and control.max() > 0:
            limit = float(control.min() * gear * actuator.gainprm[0])
        kp = float(actuator.gainprm[0])
        stiffness, damping = (float(v) for v in actuator.biasprm[1:3])
        if affine and kp > 0 and np.isclose(stiffness, -kp):
            # a positive entry is a damping ratio, which only the compiler makes a gain of
            kd = None if damping > 0 else -damping * gear**2
            drives[actuator.target] = Drive(kp * gear**2, kd, limit)
        else:
            drives[actuator.target] = Drive(torque_limit=limit)
    return drives


# --- stripping


def strip(spec: mujoco.MjSpec, path: Path) -> list[Change]:
    """Leave one named robot of bodies, joints, shapes and sites, in place. Returns what was changed
    beyond that: ("left out", "2 tendons, robot trunk_b", why).

    Visual shapes whose files are missing are left out.

    Raises:
      InputError: where a missing mesh collides, or gives a body its mass, and for a root that moves
        otherwise than freely.
    """
    counts = {group: len(getattr(spec, group)) for group in _TOLD}
    left_out = [f"{n} {_TOLD[group] if n == 1 else group}" for group, n in counts.items() if n]
    hinges = [joint for joint in spec.joints if joint.type == HINGE]
    locked = [joint for joint, loose in zip(hinges, backlash(spec), strict=True) if loose]
    for group in (*_TOLD, *_UNTOLD):
        _delete(spec, getattr(spec, group))
    changes = _lock(spec, locked)
    # MuJoCo's own defaults for what is added from here on (a floor, drives); what the model has was
    # read with its own. Their spec owns them, so it must live as long as they are read
    usual = mujoco.MjSpec()
    for kind, names in _DEFAULTS.items():
        for name in names:
            value = getattr(getattr(usual.default, kind), name)
            setattr(getattr(spec.default, kind), name, value)
    # a URDF's feet are often links of their own, fixed to the shanks
    spec.compiler.fusestatic = False
    changes += _balance_inertia(spec)
    others, of_root = _keep_one_robot(spec, path)
    changes += of_root
    left_out += [f"robot {name}" for name in others]
    _name_all(spec)
    left_out += _drop_unreadable(spec, path)
    changes += _split_hinges(spec)
    if left_out:
        why = "one robot of hinges and shapes is taken"
        changes.insert(0, ("left out", ", ".join(left_out), why))
    return changes


def colliding(geom: Any) -> bool:
    return bool(geom.contype or geom.conaffinity)


def _delete(spec: mujoco.MjSpec, group: Iterable[Any]) -> None:
    for item in list(group):
        spec.delete(item)


def backlash(spec: mujoco.MjSpec) -> list[bool]:
    """Of each hinge whether it is one that is locked: without an actuator where others have one,
    and with a range below 0.1 rad."""
    driven = {
        actuator.target
        for actuator in spec.actuators
        if actuator.trntype == mujoco.mjtTrn.mjTRN_JOINT
    }
    locked = []
    for joint in spec.joints:
        if joint.type == HINGE:
            unit = np.pi / 180 if joint.compiler.degree else 1.0
            turns = unit * float(np.ptp(joint.range))
            locked.append(bool(driven) and joint.name not in driven and 0 < turns < _BACKLASH)
    return locked


def _lock(spec: mujoco.MjSpec, joints: Sequence[Any]) -> list[Change]:
    names = ", ".join(joint.name or f"of {joint.parent.name}" for joint in joints)
    _delete(spec, joints)
    why = f"no actuator and less than {_BACKLASH:g} rad of range: backlash"
    return [("locked joints", names, why)] if names else []


def _balance_inertia(spec: mujoco.MjSpec) -> list[Change]:
    """Let MuJoCo make equal the principal inertias A + B < C, which no body has."""
    spec.compiler.balanceinertia = True
    changes = []
    for body in spec.bodies:
        if not body.explicitinertial:
            continue
        principal = np.array(body.inertia)
        if np.isfinite(body.fullinertia[0]):
            xx, yy, zz, xy, xz, yz = body.fullinertia
            matrix = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
            principal = np.linalg.eigvalsh(matrix)
        small, middle, large = np.sort(principal)
        # as the compiler decides
        if small + middle < large:
            figures = ", ".join(f"{value:.3g}" for value in np.sort(principal))
            value = f"{body.name}: {figures} kg m2, now {principal.mean():.3g} each"
            changes.append(("inertia", value, "A + B >= C holds for every body"))
    return changes


# --- one robot with a free root


def _keep_one_robot(spec: mujoco.MjSpec, path: Path) -> tuple[list[str], list[Change]]:
    """Leave the tree under the free joint, "root"; where nothing is free, the tree with the most
    hinges becomes so. Gives the names of other trees with hinges, and how the root became free."""
    world = spec.worldbody
    trees = list(world.bodies)
    if not trees:
        raise InputError(f"{path}: no body, so no robot")
    changes: list[Change] = []
    if not any(joint.type == FREE for tree in trees for joint in tree.joints):
        trees, changes = _freed(spec, trees, path)
    free = [body for body in trees if any(joint.type == FREE for joint in body.joints)]
    root = max(free or trees, key=_hinges)
    others = [body.name or "without a name" for body in trees if body is not root and _hinges(body)]
    _delete(spec, [body for body in trees if body is not root])
    _delete(spec, world.geoms)
    _delete(spec, world.sites)
    # a URDF's floating joint may follow a link without mass; that link is free then
    _delete(spec, [j for j in spec.joints if j.type == FREE and j.parent.name != root.name])
    joint = next((j for j in root.joints if j.type == FREE), None) or root.add_freejoint()
    if any(other.name == ROOT_JOINT and other.type != FREE for other in spec.joints):
        raise InputError(
            f"{path}: joint '{ROOT_JOINT}' is not the free one; that name is the free joint's"
        )
    joint.name = ROOT_JOINT
    root.pos = [0.0, 0.0, 0.0]  # only what a reset without a pose starts from
    root.quat = [1.0, 0.0, 0.0, 0.0]
    root.alt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT
    return others, changes


def _hinges(body: Any) -> int:
    """Hinges of a body and of all that it carries."""
    return sum(joint.type == HINGE for joint in body.find_all(mujoco.mjtObj.mjOBJ_JOINT))


def _freed(spec: mujoco.MjSpec, trees: Sequence[Any], path: Path) -> tuple[list[Any], list[Change]]:
    """The trees of a model without a free joint, that of the robot ready for one.

    Raises:
      InputError: for a root that moves, and not freely.
    """
    root = max(trees, key=_hinges)
    joints = _first_joints(root)
    types = sorted(int(joint.type) for joint in joints[:6])
    for floating in _FLOATING:
        count = len(floating)
        if sorted(map(int, floating)) == sorted(int(joint.type) for joint in joints[:count]):
            moves = ", ".join(map(_motion, joints[:count]))
            _delete(spec, joints[:count])
            return list(trees), [("root", "a free joint", f"in place of: {moves}")]
    if not root.joints:
        return list(trees), []
    if int(SLIDE) in types:
        moves = ", ".join(_motion(joint) for joint in joints)
        raise InputError(
            f"{path}: '{root.name}' moves by {moves}: a planar or guided robot; a floating base is"
            " expected: <freejoint/>, or three slides and a ball"
        )
    return _wrapped(spec, trees, path)


def _first_joints(body: Any) -> list[Any]:
    """The joints from a root outwards, as long as bodies without shapes carry a single one."""
    joints = list(body.joints)
    while len(body.bodies) == 1 and not body.geoms and len(joints) < 6:
        body = body.bodies[0]
        joints += body.joints
    return joints


def _motion(joint: Any) -> str:
    kind = {int(SLIDE): "slide", int(HINGE): "hinge", int(BALL): "ball"}[int(joint.type)]
    return kind if kind == "ball" else f"{kind} along {'XYZ'[int(np.abs(joint.axis).argmax())]}"


def _wrapped(
    spec: mujoco.MjSpec, trees: Sequence[Any], path: Path
) -> tuple[list[Any], list[Change]]:
    """A trunk of the world's shapes that carries the trees with hinges, as importers of URDF save
    robots. Floors, and what is larger than the robot, stay the world's.

    Raises:
      InputError: for a single tree, and where the world has no such shapes.
    """
    limbs = [tree for tree in trees if _hinges(tree)]
    places = np.array([limb.pos for limb in limbs])
    reach = 2.0 * float(np.linalg.norm(places - places.mean(axis=0), axis=-1).max())
    flat = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)
    kept = [g for g in spec.worldbody.geoms if g.type not in flat and g.frame is None]
    # a box as a floor, walls
    kept = [g for g in kept if np.linalg.norm(g.pos - places.mean(axis=0)) < reach]
    kept = [g for g in kept if np.nan_to_num(g.size).max() < reach]
    if len(limbs) < 2 or not kept:
        raise InputError(
            f"{path}: the trunk is fixed to the world ('{limbs[0].name}' turns by"
            f" '{limbs[0].joints[0].name}'); wrap it in a body with <freejoint/>"
        )
    taken = {body.name for body in spec.bodies}
    name = next(name for name in ("trunk", "base", "npmp_trunk") if name not in taken)
    trunk = spec.worldbody.add_body(name=name)
    for geom in kept:
        _copied(geom, trunk.add_geom())
    for limb in limbs:
        _move(spec, limb, trunk)
    others = [tree for tree in trees if tree not in limbs]
    value = f"'{name}' of {len(kept)} shapes of the world, on a free joint"
    why = f"the model fixes its trunk to the world; it carries {len(limbs)} limbs"
    return [*others, trunk], [("root", value, why)]


# --- moving elements within a spec


def _copied(old: Any, new: Any) -> None:
    """Give an element all that another of its kind has, but for name and place in the spec."""
    for key in dir(old):
        if not key.startswith("_") and key not in _OWN:
            setattr(new, key, getattr(old, key))
    for key in ("type", "axisangle", "xyaxes", "zaxis", "euler") if hasattr(old, "alt") else ():
        setattr(new.alt, key, getattr(old.alt, key))


def _move(spec: mujoco.MjSpec, body: Any, parent: Any) -> Any:
    """Make a body with all that it carries the last child of another; returns it."""
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
    """Give each hinge a body, in place: those before the last of a body get one without mass, in
    the same order and with the same name."""
    taken = {body.name for body in spec.bodies}
    split: list[str] = []

    def visit(parent: Any) -> None:
        children = list(parent.bodies)
        if any(_crowded(child) for child in children):
            # all, so that their order stays
            children = [_chained(spec, child, parent, taken, split) for child in children]
        for child in children:
            visit(child)

    visit(spec.worldbody.first_body())
    why = "one hinge a body; the added bodies weigh nothing"
    return [("split bodies", ", ".join(split), why)] if split else []


def _crowded(body: Any) -> bool:
    return len(body.joints) > 1 and all(joint.type == HINGE for joint in body.joints)


def _chained(spec: mujoco.MjSpec, body: Any, parent: Any, taken: set[str], split: list[str]) -> Any:
    """A body moved to the end of its parent's children, its hinges but for the last on bodies in
    between."""
    if not _crowded(body):
        return _move(spec, body, parent)
    split.append(body.name)
    where = parent
    for old in body.joints[:-1]:
        name = f"{old.name}_link"
        while name in taken:
            name += "_"
        taken.add(name)
        link = where.add_body(name=name)
        if where is parent:
            link.pos = body.pos
            link.quat = body.quat
            for key in ("type", "axisangle", "xyaxes", "zaxis", "euler"):
                setattr(link.alt, key, getattr(body.alt, key))
            if body.frame is not None:
                link.set_frame(body.frame)
        link.explicitinertial = True
        link.mass = _LINK_MASS
        link.inertia = [_LINK_INERTIA] * 3
        joint = link.add_joint()
        _copied(old, joint)
        called = old.name
        spec.delete(old)
        joint.name = called
        where = link
    last = _move(spec, body, where)
    last.pos = [0.0, 0.0, 0.0]
    last.quat = [1.0, 0.0, 0.0, 0.0]
    last.alt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT
    return last


def _name_all(spec: mujoco.MjSpec) -> None:
    """Names for bodies, joints and geoms without one, by where they stand in the file."""
    taken = {item.name for group in (spec.bodies, spec.joints, spec.geoms) for item in group}

    def fresh(wanted: str) -> str:
        while wanted in taken:
            wanted += "_"
        taken.add(wanted)
        return wanted

    for i, body in enumerate(spec.bodies):
        body.name = body.name or fresh(f"body_{i}")
        for k, joint in enumerate(body.joints):
            joint.name = joint.name or fresh(f"{body.name}_joint" + (f"_{k}" if k else ""))
        for k, geom in enumerate(body.geoms):
            geom.name = geom.name or fresh(f"{body.name}_geom_{k}")


def _drop_unreadable(spec: mujoco.MjSpec, path: Path) -> list[str]:
    """Take out what only shows and has no file, or none that MuJoCo reads. Gives the latter."""
    missing: dict[str, str] = {}
    unread: list[str] = []
    for mesh in spec.meshes:
        name = mesh.name or Path(mesh.file).stem
        if places := _places(spec, mesh.file, spec.meshdir):
            missing[name] = f"there is no {', '.join(map(str, places))}"
        elif mesh.file and not mesh.content_type and Path(mesh.file).suffix.lower() not in _MESHES:
            missing[name] = f"{mesh.file} is none of {', '.join(_MESHES)}"
            unread.append(f"mesh {Path(mesh.file).name}")
    for geom in [geom for geom in spec.geoms if geom.meshname in missing]:
        mesh = geom.meshname
        body = geom.parent
        if _weighs(body) or colliding(geom):
            does = f"gives body '{body.name}' its mass" if _weighs(body) else "meets the floor"
            raise InputError(f"{path}: the mesh '{mesh}' {does}, and {missing[mesh]}")
        spec.delete(geom)
    _delete(spec, [m for m in spec.meshes if (m.name or Path(m.file).stem) in missing])
    lost = [t for t in spec.textures if _places(spec, t.file, spec.texturedir)]
    names = {texture.name or Path(texture.file).stem for texture in lost}
    for material in spec.materials:
        material.textures = ["" if name in names else name for name in material.textures]
    _delete(spec, lost)
    return unread


def drop_visuals(spec: mujoco.MjSpec) -> None:
    """Leave only what collides or weighs of a stripped spec, in place."""
    _delete(spec, [g for g in spec.geoms if not (_weighs(g.parent) or colliding(g))])
    used = {geom.meshname for geom in spec.geoms}
    _delete(spec, [m for m in spec.meshes if (m.name or Path(m.file).stem) not in used])
    for item in (*spec.geoms, *spec.sites):
        item.material = ""
    _delete(spec, spec.materials)
    _delete(spec, spec.textures)


def _weighs(body: Any) -> bool:
    """Whether a body's mass is that of its shapes."""
    return not body.explicitinertial and body.name != "world"


def _places(spec: mujoco.MjSpec, file: str, folder: str) -> list[Path]:
    """Where an asset's file is looked for, as MuJoCo does, and is not; none where it is found, or
    needs no file."""
    base = Path(spec.modelfiledir)
    name = Path(file).name
    tried = base / folder / file, base / file, base / folder / name, base / name
    exists = not file or any(place.is_file() for place in tried)
    return [] if exists else list(dict.fromkeys(tried))
