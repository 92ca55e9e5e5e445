"""Other people's models, brought in memory into the shape that the package's own have.

A robot.yaml with `drives:` says that its MJCF (or URDF) was not written for this package. Then what
stands there is read as kinematics, inertia and shapes, and the rest is made here, each time the
model is read:

- one robot: the tree under the free joint (one is added where there is none); floors, lights,
  cameras, keyframes, sensors, tendons, equality and contact rules go;
- the free joint is called "root", and every body, joint and geom has a name;
- one position actuator per joint, with the joint's name and in its order: kp, kd and torque limit
  of `drives:`, which may also give the joints the inertia of their rotors (`armature`) where the
  model forgot it;
- shapes that collided with anything meet the floor, and never each other: contype 0, conaffinity 1;
  feet meet it as the package's own do (hard, condim 3, their own sliding friction), for soft ones
  sink in by a centimetre where they should stand;
- where feet are but shapes at the end of a shank, each becomes a welded body of its own, aligned
  with the base when all joints are zero, because motions and rewards speak of foot bodies;
- an "imu" site where the model has none;
- solver options as those of the package's own robots, unless robot.yaml says otherwise;
- with `drop_missing: true`, shapes whose mesh files are missing are left out, also where they would
  collide.

Nothing is written to the model's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt

from mocap_data.errors import InputError
from npmp.robots.declared import refuse_excess
from npmp.robots.fields import (
    FloatArray,
    fields,
    flag,
    mapping,
    number,
    one_of,
    positive,
    read_only,
    text,
    vector,
)

ROOT_JOINT = "root"
INTEGRATORS = {
    "implicitfast": mujoco.mjtIntegrator.mjINT_IMPLICITFAST,
    "implicit": mujoco.mjtIntegrator.mjINT_IMPLICIT,
    "Euler": mujoco.mjtIntegrator.mjINT_EULER,
    "RK4": mujoco.mjtIntegrator.mjINT_RK4,
}
CONES = {"pyramidal": mujoco.mjtCone.mjCONE_PYRAMIDAL, "elliptic": mujoco.mjtCone.mjCONE_ELLIPTIC}
_FREE, _HINGE = mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_HINGE
_KEPT = (
    "type", "contype", "conaffinity", "condim", "priority", "friction", "solmix", "solref", "solimp", "margin", "gap",
    "mass", "density", "group", "rgba", "material",
)  # fmt: skip
_DEFAULTS = {
    "geom": (*_KEPT, "size", "pos", "quat"),
    "actuator": (
        "gaintype", "gainprm", "biastype", "biasprm", "dyntype", "dynprm", "gear", "ctrllimited", "ctrlrange",
        "forcelimited", "forcerange", "actlimited", "actrange", "group",
    ),
    "site": ("type", "size", "pos", "quat", "group", "rgba", "material"),
}  # fmt: skip
_NEAR = 2e-3  # [m] a foot's shape is within this distance of the point that robot.yaml gives


@dataclass(frozen=True)
class Drive:
    """A joint's position control in the joint's own units; None: the model does not say."""

    kp: float | None = None  # [Nm/rad]
    kd: float | None = None  # [Nm s/rad]
    torque_limit: float | None = None  # [Nm]
    # [kg m2] of the rotor, seen at the joint; None: what the model says
    armature: float | None = None


@dataclass(frozen=True)
class FootShape:
    """A colliding shape of the model that moves to a foot's body, as compiled."""

    geom: str
    size: FloatArray  # (3,) [m]
    position: FloatArray  # (3,) in the foot's frame [m]
    quaternion: FloatArray  # (4,) wxyz to the foot's frame


@dataclass(frozen=True)
class FootBody:
    """A foot that the model has only as a shape: the body made of it."""

    name: str
    parent: str
    position: FloatArray  # (3,) in the parent's frame [m]
    quaternion: FloatArray  # (4,) wxyz to the parent's frame
    # of the parent, that move to the foot; () where a sphere must be made
    shapes: tuple[FootShape, ...]


@dataclass(frozen=True)
class Adaptation:
    """What robot.yaml says of a foreign model, resolved: all that `adapt` needs."""

    drives: Mapping[str, Drive]  # joint -> all three figures
    feet: tuple[FootBody, ...] = ()  # to be made
    foot_bodies: tuple[str, ...] = ()  # all of them
    foot_radius: float = 0.02  # [m] of the spheres made for feet without a shape
    imu: tuple[str, FloatArray] | None = None  # body and position (3,) [m] of the site to add
    physics_rate_hz: float | None = None  # None: the model's own
    integrator: str = "implicitfast"  # stiff PD damping stays stable
    cone: str = "pyramidal"  # a third of the elliptic cones' cost
    impratio: float = 10.0  # loaded feet creep less
    drop_missing: bool = False  # leave out colliding shapes whose mesh files are missing


def read_spec(mjcf: Path) -> mujoco.MjSpec:
    """The file's spec as it stands.

    Raises:
      InputError: for one that is missing, no MJCF, or declares more than a robot needs
        (`npmp.robots.declared`).
    """
    if not mjcf.exists():
        raise InputError(f"no MJCF file '{mjcf}'")
    refuse_excess(mjcf)
    try:
        return mujoco.MjSpec.from_file(str(mjcf))
    except (ValueError, MemoryError) as error:
        raise InputError(f"{mjcf}: not a valid MJCF: {' '.join(str(error).split())}") from error


def compile_spec(spec: mujoco.MjSpec, mjcf: Path) -> mujoco.MjModel:
    """The model. Raises InputError for one that does not compile."""
    try:
        return spec.compile()
    except (ValueError, MemoryError) as error:
        raise InputError(f"{mjcf}: does not compile: {' '.join(str(error).split())}") from error


# --- robot.yaml -> Adaptation
# -----------------------------------------------------------------------------------------


def read_adaptation(top: Mapping[str, Any], mjcf: Path, where: str) -> Adaptation:
    """The foreign model's part of a robot.yaml, held against the model.

    Raises:
      InputError: for names that do not exist, drives that neither say, and a model that cannot be
        adapted.
    """
    spec = read_spec(mjcf)
    own = own_drives(spec)
    drop_missing = flag(top.get("drop_missing", False), f"{where}: drop_missing")
    strip(spec, mjcf, visuals=False, drop_missing=drop_missing)
    model = compile_spec(spec, mjcf)
    refuse_unfit(model, mjcf)
    joints = [model.joint(i).name for i in range(1, model.njnt)]
    bodies = [model.body(i).name for i in range(1, model.nbody)]
    solver = fields(
        top.get("solver", {}),
        f"{where}: solver",
        required=(),
        optional=("integrator", "cone", "impratio"),
    )
    feet = top["feet"] if isinstance(top["feet"], dict) else {}
    rate = top.get("physics_rate_hz")
    return Adaptation(
        drives=_read_drives(top["drives"], joints, own, f"{where}: drives"),
        foot_bodies=tuple(str(name) for name in feet.get("bodies") or ()),
        feet=_read_feet(feet.get("at", {}), model, bodies, f"{where}: feet.at"),
        foot_radius=positive(feet.get("radius"), f"{where}: feet.radius"),
        imu=_read_imu(top["imu"], bodies, f"{where}: imu") if "imu" in top else None,
        physics_rate_hz=None if rate is None else positive(rate, f"{where}: physics_rate_hz"),
        integrator=one_of(
            solver.get("integrator", "implicitfast"),
            tuple(INTEGRATORS),
            "integrator",
            f"{where}: solver",
        ),
        cone=one_of(solver.get("cone", "pyramidal"), tuple(CONES), "cone", f"{where}: solver"),
        impratio=positive(solver.get("impratio", 10.0), f"{where}: solver.impratio"),
        drop_missing=drop_missing,
    )


def _read_drives(
    value: Any, joints: Sequence[str], own: Mapping[str, Drive], where: str
) -> dict[str, Drive]:
    """Every joint's drive.

    `value` is "model" or has kp, kd, torque_limit, and armature perhaps: a number, "model", or one
    of these per joint.
    """
    keys = ("kp", "kd", "torque_limit")
    optional = (*keys, "armature")
    entry = (
        dict.fromkeys(keys, "model")
        if value == "model"
        else fields(value, where, required=(), optional=optional)
    )
    drives = {}
    for joint in joints:
        kp, kd, limit = (
            _read_gain(entry.get(key, "model"), key, joint, joints, own, where) for key in keys
        )
        drives[joint] = Drive(
            kp, kd, limit, _read_armature(entry.get("armature", "model"), joint, joints, where)
        )
    return drives


def _read_armature(value: Any, joint: str, joints: Sequence[str], where: str) -> float | None:
    if isinstance(value, dict):
        value = fields(value, f"{where}.armature", required=joints)[joint]
    return None if value == "model" else positive(value, f"{where}.armature")


def _read_gain(
    value: Any, key: str, joint: str, joints: Sequence[str], own: Mapping[str, Drive], where: str
) -> float:
    if isinstance(value, dict):
        value = fields(value, f"{where}.{key}", required=joints)[joint]
    if value == "model":
        found: float | None = getattr(own.get(joint, Drive()), key)
        if found is None:
            raise InputError(f"{where}: the model gives joint '{joint}' no {key}; give it here")
        return found
    if key == "kd" and number(value, f"{where}.{key}") == 0:
        return 0.0  # the joints' own damping may be enough
    return positive(value, f"{where}.{key}")


def _read_feet(
    value: Any, model: mujoco.MjModel, bodies: Sequence[str], where: str
) -> tuple[FootBody, ...]:
    data = posed(model)
    feet = []
    for name, entry in mapping(value, where).items():
        here = f"{where}.{name}"
        if name in bodies:
            raise InputError(f"{here}: the model has a body of that name; it needs no entry here")
        entry = fields(entry, here, required=("body", "position"))
        parent = one_of(text(entry["body"], f"{here}.body"), bodies, "body", f"{here}.body")
        position = vector(entry["position"], f"{here}.position")
        frame = data.body(parent)
        aligned = np.zeros(4)
        mujoco.mju_negQuat(aligned, frame.xquat)
        shapes = _shapes_at(model, parent, position, frame.xquat)
        feet.append(FootBody(name, parent, position, read_only(_tidy(aligned)), shapes))
    return tuple(feet)


def _shapes_at(
    model: mujoco.MjModel, body: str, position: FloatArray, turn: FloatArray
) -> tuple[FootShape, ...]:
    """The body's colliding shapes centred at a point; `turn` (4,) takes the body's frame to the
    foot's."""
    b = model.body(body).id
    shapes = []
    for g in range(model.body_geomadr[b], model.body_geomadr[b] + model.body_geomnum[b]):
        offset = model.geom_pos[g] - position
        meets = model.geom_contype[g] or model.geom_conaffinity[g]
        if (
            not meets
            or np.linalg.norm(offset) > _NEAR
            or model.geom_type[g] == mujoco.mjtGeom.mjGEOM_MESH
        ):
            continue
        moved, turned = np.zeros(3), np.zeros(4)
        mujoco.mju_rotVecQuat(moved, offset, turn)
        mujoco.mju_mulQuat(turned, turn, model.geom_quat[g])
        name, size = model.geom(g).name, read_only(model.geom_size[g])
        shapes.append(FootShape(name, size, read_only(moved), read_only(_tidy(turned))))
    return tuple(shapes)


def _read_imu(value: Any, bodies: Sequence[str], where: str) -> tuple[str, FloatArray]:
    entry = fields(value, where, required=("body", "position"))
    return one_of(entry["body"], bodies, "body", f"{where}.body"), vector(
        entry["position"], f"{where}.position"
    )


def _tidy(quaternion: FloatArray) -> FloatArray:
    """Exactly no turn where it is one but for rounding; w >= 0."""
    unit = quaternion / np.linalg.norm(quaternion) * (1.0 if quaternion[0] >= 0 else -1.0)
    return np.array([1.0, 0.0, 0.0, 0.0]) if np.abs(unit[1:]).max() < 1e-9 else unit


def refuse_unfit(model: mujoco.MjModel, mjcf: Path) -> None:
    """Raises InputError, naming the joint, for what no adaptation helps: other joints than hinges,
    offset angles."""
    for i in range(1, model.njnt):
        name = model.joint(i).name
        if model.jnt_type[i] != _HINGE:
            raise InputError(f"{mjcf}: joint '{name}' is no hinge; only hinges may follow the root")
        if model.qpos0[model.jnt_qposadr[i]] != 0:
            raise InputError(
                f"{mjcf}: joint '{name}' counts its angle from a ref; give its body that turn and drop ref"
            )
    if model.njnt < 2:
        raise InputError(f"{mjcf}: no joints to drive")


def posed(model: mujoco.MjModel, joints: npt.ArrayLike = 0.0) -> mujoco.MjData:
    """Kinematics and centres of mass with the root at the origin, unturned, and the hinges at
    `joints` (J,) [rad]."""
    data = mujoco.MjData(model)
    data.qpos[:7] = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    data.qpos[7:] = joints
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    return data


# --- the spec
# ---------------------------------------------------------------------------------------------------------


def own_drives(spec: mujoco.MjSpec) -> dict[str, Drive]:
    """What the model's own actuators, and the torque limits of its joints, say of each joint.

    An actuator of gear g pulls with g times its force and sees g times the angle. Motors have a
    limit, but no gains.
    """
    drives = {}
    for joint in spec.joints:
        if joint.type == _HINGE and joint.actfrcrange[1] > joint.actfrcrange[0]:
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
        kp, (stiffness, damping) = (
            float(actuator.gainprm[0]),
            (float(v) for v in actuator.biasprm[1:3]),
        )
        if affine and kp > 0 and np.isclose(stiffness, -kp):
            # a positive entry is a damping ratio, which only the compiler makes a gain of
            kd = None if damping > 0 else -damping * gear**2
            drives[actuator.target] = Drive(kp * gear**2, kd, limit)
        else:
            drives[actuator.target] = Drive(torque_limit=limit)
    return drives


def adapt(spec: mujoco.MjSpec, adaptation: Adaptation, mjcf: Path, *, visuals: bool) -> None:
    """Bring a spec as read into the package's shape, in place. Raises InputError where a shape's
    mesh is missing."""
    strip(spec, mjcf, visuals=visuals, drop_missing=adaptation.drop_missing)
    for foot in adaptation.feet:
        _make_foot(spec, foot, adaptation.foot_radius)
    for geom in spec.geoms:
        if colliding(geom):
            geom.contype, geom.conaffinity = 0, 1
            if geom.parent.name in adaptation.foot_bodies:
                _make_grip(geom)
    if adaptation.imu is not None:
        body, position = adaptation.imu
        for site in [site for site in spec.sites if site.name == "imu"]:
            spec.delete(site)
        spec.body(body).add_site(name="imu", pos=position, size=[0.01, 0.01, 0.01], group=4)
    for joint, drive in adaptation.drives.items():
        actuator = spec.add_actuator(name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        actuator.set_to_position(kp=drive.kp, kv=drive.kd)
        actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
        limit = float(drive.torque_limit or 0.0)  # read_adaptation left none out
        actuator.forcerange = [-limit, limit]
        actuator.ctrllimited = mujoco.mjtLimited.mjLIMITED_FALSE  # targets are not clipped
        if drive.armature is not None:
            spec.joint(joint).armature = drive.armature
    usual = mujoco.MjSpec()  # models for other simulators come with one iteration and the like
    for key in (
        "solver",
        "iterations",
        "ls_iterations",
        "tolerance",
        "ls_tolerance",
        "disableflags",
        "enableflags",
    ):
        setattr(spec.option, key, getattr(usual.option, key))
    if adaptation.physics_rate_hz is not None:
        spec.option.timestep = 1.0 / adaptation.physics_rate_hz
    spec.option.integrator = INTEGRATORS[adaptation.integrator]
    spec.option.cone = CONES[adaptation.cone]
    spec.option.impratio = adaptation.impratio


def _make_grip(geom: Any) -> None:
    """Contacts of a foot as those of the package's own robots: MuJoCo's hard defaults, whatever the
    ground's."""
    geom.condim, geom.priority = 3, 1
    geom.solref, geom.solimp = [0.02, 1.0], [0.9, 0.95, 0.001, 0.5, 2.0]
    geom.margin = geom.gap = 0.0


def strip(
    spec: mujoco.MjSpec, mjcf: Path, *, visuals: bool, drop_missing: bool = False
) -> tuple[str, ...]:
    """Leave one named robot of bodies, joints, shapes and sites, in place; without visuals only
    what collides or weighs.

    Looks whose files are missing are left out, and with drop_missing what collides too. Gives the
    names of such meshes.
    Raises:
      InputError: where a missing mesh collides otherwise, or gives a body its mass.
    """
    leftovers = (
        spec.keys, spec.sensors, spec.actuators, spec.tendons, spec.equalities, spec.excludes, spec.pairs, spec.lights,
        spec.cameras, spec.skins, spec.flexes,
    )  # fmt: skip
    for group in leftovers:
        _delete(spec, group)
    _forget_defaults(spec)
    # a URDF's feet are often links of their own, fixed to the shanks
    spec.compiler.fusestatic = False
    _keep_one_robot(spec, mjcf)
    _name_all(spec)
    return _drop_looks(spec, mjcf, visuals=visuals, drop_missing=drop_missing)


def _forget_defaults(spec: mujoco.MjSpec) -> None:
    """MuJoCo's own defaults for what is added from here on (a floor, drives); what the model has
    was read with its own."""
    usual = mujoco.MjSpec()  # owns its defaults, so it must live as long as they are read
    for kind, names in _DEFAULTS.items():
        mine, theirs = getattr(spec.default, kind), getattr(usual.default, kind)
        for name in names:
            setattr(mine, name, getattr(theirs, name))


def colliding(geom: Any) -> bool:
    return bool(geom.contype or geom.conaffinity)


def _delete(spec: mujoco.MjSpec, group: Iterable[Any]) -> None:
    for item in list(group):
        spec.delete(item)


def _keep_one_robot(spec: mujoco.MjSpec, mjcf: Path) -> None:
    """Leave the tree under the free joint, "root"; where nothing is free, the tree with the most
    hinges becomes so."""
    world = spec.worldbody
    trees = list(world.bodies)
    if not trees:
        raise InputError(f"{mjcf}: no body, so no robot")
    free = [body for body in trees if any(joint.type == _FREE for joint in body.joints)]

    def hinges(body: Any) -> int:
        return sum(joint.type == _HINGE for joint in body.find_all(mujoco.mjtObj.mjOBJ_JOINT))

    root = max(free or trees, key=hinges)
    _delete(spec, [body for body in trees if body is not root])
    _delete(spec, world.geoms)
    _delete(spec, world.sites)
    below = [
        joint for joint in spec.joints if joint.type == _FREE and joint.parent.name != root.name
    ]
    # a URDF's floating joint may follow a link without mass; that link is free then
    _delete(spec, below)
    joint = (
        next((joint for joint in root.joints if joint.type == _FREE), None) or root.add_freejoint()
    )
    for other in spec.joints:
        if other.name == ROOT_JOINT and other.type != _FREE:
            raise InputError(
                f"{mjcf}: joint '{ROOT_JOINT}' is not the free one; that name is the free joint's"
            )
    joint.name = ROOT_JOINT
    root.pos = [0.0, 0.0, 0.0]  # only what a reset without a pose starts from
    root.quat = [1.0, 0.0, 0.0, 0.0]
    root.alt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT


def _name_all(spec: mujoco.MjSpec) -> None:
    """Names for bodies, joints and geoms without one, by where they stand in the file, so the same
    each time."""
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


def _drop_looks(
    spec: mujoco.MjSpec, mjcf: Path, *, visuals: bool, drop_missing: bool
) -> tuple[str, ...]:
    """Gives the meshes without files that would have collided."""
    dropped = []
    missing = {
        mesh.name or Path(mesh.file).stem
        for mesh in spec.meshes
        if _is_missing(spec, mesh.file, spec.meshdir)
    }
    for body in spec.bodies:
        weighs = not body.explicitinertial and body.name != "world"
        for geom in list(body.geoms):
            gone = geom.meshname in missing
            if gone and weighs:
                raise InputError(
                    f"{mjcf}: the mesh '{geom.meshname}' gives body '{body.name}' its mass, and its file is missing"
                )
            if gone and colliding(geom):
                if not drop_missing:
                    hint = "drop_missing=true leaves such shapes out (in robot.yaml, drop_missing: true)"
                    raise InputError(
                        f"{mjcf}: the mesh '{geom.meshname}' meets the floor, and its file is missing; {hint}"
                    )
                dropped.append(str(geom.meshname))
            if gone or not (visuals or weighs or colliding(geom)):
                spec.delete(geom)
    used = {geom.meshname for geom in spec.geoms}
    for mesh in list(spec.meshes):
        name = mesh.name or Path(mesh.file).stem
        if name in missing or not (visuals or name in used):
            spec.delete(mesh)
    if not visuals:
        for item in (*spec.geoms, *spec.sites):
            item.material = ""
        _delete(spec, spec.materials)
        _delete(spec, spec.textures)
    lost = [t for t in spec.textures if _is_missing(spec, t.file, spec.texturedir)]
    for material in spec.materials:
        names = {texture.name or Path(texture.file).stem for texture in lost}
        material.textures = ["" if name in names else name for name in material.textures]
    _delete(spec, lost)
    return tuple(dict.fromkeys(dropped))


def _is_missing(spec: mujoco.MjSpec, file: str, folder: str) -> bool:
    """Whether an asset's file is in none of the places where MuJoCo would look; False for what
    needs no file."""
    if not file:
        return False
    base = Path(spec.modelfiledir)
    places = (
        base / folder / file,
        base / file,
        base / folder / Path(file).name,
        base / Path(file).name,
    )
    return not any(place.is_file() for place in places)


def _make_foot(spec: mujoco.MjSpec, foot: FootBody, radius: float) -> None:
    """Add the foot's body, without mass where its parent's is given, and move its shapes there."""
    parent = spec.body(foot.parent)
    body = parent.add_body(name=foot.name, pos=foot.position, quat=foot.quaternion)
    if parent.explicitinertial:
        body.explicitinertial, body.mass, body.inertia = True, 0.0, [0.0, 0.0, 0.0]
    if not foot.shapes:
        body.add_geom(
            name=f"{foot.name}_sole", type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[radius, 0, 0], group=3, priority=1,
            contype=0, conaffinity=1, friction=[0.8, 0.02, 0.01], mass=0.0,
        )  # fmt: skip
    for shape in foot.shapes:
        old = spec.geom(shape.geom)
        new = body.add_geom(size=shape.size, pos=shape.position, quat=shape.quaternion)
        for key in _KEPT:
            setattr(new, key, getattr(old, key))
        spec.delete(old)
        new.name = shape.geom
