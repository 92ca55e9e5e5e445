"""Models that were not written for this package, brought into its shape as they are read.

A robot.yaml with `drives:` says that its MJCF (or URDF) is such a one. Its kinematics, inertia and
shapes are taken, and the rest is made here:

- one robot: the tree under the free joint (one is added where there is none); floors, lights,
  cameras, keyframes, sensors, tendons, equality and contact rules go;
- the free joint is called "root", and every body, joint and geom has a name;
- one position actuator per joint, with the joint's name and in its order: kp, kd and torque limit
  of `drives:`, which may also give the joints the inertia of their rotors (`armature`);
- shapes that collided with anything meet the floor, and never each other: contype 0, conaffinity 1;
  feet meet it as the package's own do (hard, condim 3, their own sliding friction): soft ones sink
  in by a centimetre;
- feet that are only shapes at the end of a shank become welded bodies, aligned with the base when
  all joints are zero, because motions and rewards speak of foot bodies;
- an "imu" site where the model has none;
- solver options are those of the package's own robots; visual shapes whose mesh files are missing
  are left out.

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
from npmp.robots.model import FREE, HINGE, ROOT_JOINT, compile_spec, hinge_names, posed

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
    known = model_drives(spec)
    strip(spec, path)
    bare = spec.copy()
    drop_visuals(bare)
    model = compile_spec(bare, path)
    refuse_unfit(model, path)
    joints = [model.joint(i).name for i in range(1, model.njnt)]
    bodies = [model.body(i).name for i in range(1, model.nbody)]
    entry = said.drives if isinstance(said.drives, DrivesEntry) else DrivesEntry()
    drives = {joint: _drive(entry, joint, joints, known, f"{where}: drives") for joint in joints}
    for name, place in said.feet.at.items():
        at = f"{where}: feet.at.{name}"
        if name in bodies:
            raise InputError(f"{at}: the model has a body of that name; it needs no entry here")
        one_of(place.body, bodies, "body", f"{at}.body")
        _make_foot(spec, name, place, said.feet.radius, model)
    for geom in spec.geoms:
        if colliding(geom):
            geom.contype, geom.conaffinity = 0, 1
            if geom.parent.name in said.feet.bodies:
                # MuJoCo's hard defaults, whatever the ground's
                geom.condim, geom.priority = 3, 1
                geom.solref, geom.solimp = [0.02, 1.0], [0.9, 0.95, 0.001, 0.5, 2.0]
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
            found: float | None = getattr(own, key)
            if found is None and key != "armature":
                raise InputError(f"{where}: the model gives joint '{joint}' no {key}; give it here")
            return found
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
    parent, own = spec.body(place.body), model.body(place.body).id
    turn = posed(model).xquat[own]
    aligned = _tidy(rotations.conjugate(turn))
    body = parent.add_body(name=name, pos=place.position, quat=aligned)
    if parent.explicitinertial:
        body.explicitinertial, body.mass, body.inertia = True, 0.0, [0.0, 0.0, 0.0]
    offsets = model.geom_pos - place.position
    taken = (model.geom_bodyid == own) & (np.linalg.norm(offsets, axis=-1) <= _NEAR)
    taken &= (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    taken &= model.geom_type != mujoco.mjtGeom.mjGEOM_MESH
    for g in np.flatnonzero(taken):
        old, turned = spec.geom(model.geom(g).name), rotations.multiply(turn, model.geom_quat[g])
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
        sole.friction, sole.group, sole.priority, sole.mass = [0.8, 0.02, 0.01], 3, 1, 0.0


def _tidy(quaternion: Array) -> Array:
    """Exactly no turn where it is one but for rounding; w >= 0."""
    unit = quaternion / np.linalg.norm(quaternion) * (1.0 if quaternion[0] >= 0 else -1.0)
    return rotations.IDENTITY if np.abs(unit[1:]).max() < 1e-9 else unit


def refuse_unfit(model: mujoco.MjModel, path: Path) -> None:
    """Raise InputError for what no adaptation helps: other joints than hinges, offset angles."""
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
        force, control = np.abs(actuator.forcerange), np.abs(actuator.ctrlrange)
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


def strip(spec: mujoco.MjSpec, path: Path) -> list[str]:
    """Leave one named robot of bodies, joints, shapes and sites, in place. Gives what else may
    matter: "2 tendons", "robot trunk_b".

    Visual shapes whose files are missing are left out.

    Raises:
      InputError: where a missing mesh collides, or gives a body its mass.
    """
    counts = {group: len(getattr(spec, group)) for group in _TOLD}
    others = [f"{n} {_TOLD[group] if n == 1 else group}" for group, n in counts.items() if n]
    for group in (*_TOLD, *_UNTOLD):
        _delete(spec, getattr(spec, group))
    # MuJoCo's own defaults for what is added from here on (a floor, drives); what the model has was
    # read with its own. Their spec owns them, so it must live as long as they are read
    usual = mujoco.MjSpec()
    for kind, names in _DEFAULTS.items():
        for name in names:
            value = getattr(getattr(usual.default, kind), name)
            setattr(getattr(spec.default, kind), name, value)
    # a URDF's feet are often links of their own, fixed to the shanks
    spec.compiler.fusestatic = False
    others += [f"robot {name}" for name in _keep_one_robot(spec, path)]
    _name_all(spec)
    _drop_missing(spec, path)
    return others


def colliding(geom: Any) -> bool:
    return bool(geom.contype or geom.conaffinity)


def _delete(spec: mujoco.MjSpec, group: Iterable[Any]) -> None:
    for item in list(group):
        spec.delete(item)


def _keep_one_robot(spec: mujoco.MjSpec, path: Path) -> list[str]:
    """Leave the tree under the free joint, "root"; where nothing is free, the tree with the most
    hinges becomes so. Gives the names of other trees with hinges."""
    world = spec.worldbody
    trees = list(world.bodies)
    if not trees:
        raise InputError(f"{path}: no body, so no robot")
    free = [body for body in trees if any(joint.type == FREE for joint in body.joints)]

    def hinges(body: Any) -> int:
        return sum(joint.type == HINGE for joint in body.find_all(mujoco.mjtObj.mjOBJ_JOINT))

    root = max(free or trees, key=hinges)
    others = [body.name or "without a name" for body in trees if body is not root and hinges(body)]
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
    return others


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


def _drop_missing(spec: mujoco.MjSpec, path: Path) -> None:
    """Take out what only shows and has no file."""
    missing = {
        mesh.name or Path(mesh.file).stem: places
        for mesh in spec.meshes
        if (places := _places(spec, mesh.file, spec.meshdir))
    }
    for geom in [geom for geom in spec.geoms if geom.meshname in missing]:
        mesh, body = geom.meshname, geom.parent
        if _weighs(body) or colliding(geom):
            does = f"gives body '{body.name}' its mass" if _weighs(body) else "meets the floor"
            looked = ", ".join(map(str, missing[mesh]))
            raise InputError(f"{path}: the mesh '{mesh}' {does}, and there is no {looked}")
        spec.delete(geom)
    _delete(spec, [m for m in spec.meshes if (m.name or Path(m.file).stem) in missing])
    lost = [t for t in spec.textures if _places(spec, t.file, spec.texturedir)]
    names = {texture.name or Path(texture.file).stem for texture in lost}
    for material in spec.materials:
        material.textures = ["" if name in names else name for name in material.textures]
    _delete(spec, lost)


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
    base, name = Path(spec.modelfiledir), Path(file).name
    tried = base / folder / file, base / file, base / folder / name, base / name
    found = not file or any(place.is_file() for place in tried)
    return [] if found else list(dict.fromkeys(tried))
