"""Adapt a model of another simulator to this package by its robot.yaml.

A robot.yaml with `drives:` describes such a model. Its kinematics, inertia and shapes are kept
(`npmp.robots.strip`); the rest is set here:

- one position actuator per joint, with the joint's name and in its order: kp, kd, torque limit and
  rotor inertia (`armature`) of `drives:`;
- shapes that collide meet the floor, and never each other: contype 0, conaffinity 1;
- feet have hard contacts with condim 3 and their own sliding friction: soft ones sink in by 1 cm;
- feet that are only shapes at the end of a shank become welded bodies, aligned with the base at
  zero joints, because motions and rewards use foot bodies;
- an "imu" site where the model has none;
- the solver options of the package's own robots.

Nothing is written to the model's files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.errors import InputError
from npmp.robots.description import (
    MODEL,
    BodyPoint,
    Description,
    DrivesEntry,
    Gain,
    match_names,
    one_of,
)
from npmp.robots.model import HINGE, compile_spec, hinge_names, posed
from npmp.robots.strip import GEOM_ATTRIBUTES, collides, delete, drop_visuals, strip

# models for other simulators have few iterations and similar options
_OPTIONS = (
    *("solver", "iterations", "ls_iterations", "tolerance", "ls_tolerance"),
    *("disableflags", "enableflags"),
)
# largest distance of a foot's shape from the point in robot.yaml [m]
_NEAR = 2e-3


@dataclass(frozen=True)
class Drive:
    """A joint's position control in the joint's own units; None where the model has no value."""

    # [Nm/rad]
    kp: float | None = None
    # [Nm s/rad]
    kd: float | None = None
    # [Nm]
    torque_limit: float | None = None
    # inertia of the rotor at the joint [kg m2]
    armature: float | None = None


def adapt(spec: mujoco.MjSpec, description: Description, path: Path, where: str) -> None:
    """Adapt a model's spec by its robot.yaml, in place.

    Args:
      path: the model's file. where: its robot.yaml, for messages.

    Raises:
      InputError: for unknown names, gains that neither file has, and an unsuitable model.
    """
    model_gains = model_drives(spec)
    strip(spec, path)
    bare = spec.copy()
    drop_visuals(bare)
    model = compile_spec(bare, path)
    check_suitable(model, path)
    joints = [model.joint(i).name for i in range(1, model.njnt)]
    bodies = [model.body(i).name for i in range(1, model.nbody)]
    entry = description.drives if isinstance(description.drives, DrivesEntry) else DrivesEntry()
    drives = {
        joint: _drive(entry, joint, joints, model_gains, f"{where}: drives") for joint in joints
    }

    for name, point in description.feet.at.items():
        at = f"{where}: feet.at.{name}"
        if name in bodies:
            raise InputError(f"{at}: the model has a body of that name; it needs no entry here")
        one_of(point.body, bodies, "body", f"{at}.body")
        _add_foot(spec, name, point, description.feet.radius, model)
    _set_contacts(spec, description.feet.bodies)
    if description.imu is not None:
        one_of(description.imu.body, bodies, "body", f"{where}: imu.body")
        delete(spec, [site for site in spec.sites if site.name == "imu"])
        spec.body(description.imu.body).add_site(
            name="imu", pos=description.imu.position, size=[0.01, 0.01, 0.01], group=4
        )
    for joint, drive in drives.items():
        _add_drive(spec, joint, drive)
    _set_options(spec, description.physics_rate_hz)


def _set_contacts(spec: mujoco.MjSpec, feet: Sequence[str]) -> None:
    for geom in spec.geoms:
        if not collides(geom):
            continue
        geom.contype = 0
        geom.conaffinity = 1
        if geom.parent.name in feet:
            # MuJoCo's default contacts; the priority overrides the ground's parameters
            geom.condim = 3
            geom.priority = 1
            geom.solref = [0.02, 1.0]
            geom.solimp = [0.9, 0.95, 0.001, 0.5, 2.0]
            geom.margin = 0.0
            geom.gap = 0.0


def _set_options(spec: mujoco.MjSpec, physics_rate_hz: float | None) -> None:
    defaults = mujoco.MjSpec()
    for key in _OPTIONS:
        setattr(spec.option, key, getattr(defaults.option, key))
    if physics_rate_hz is not None:
        spec.option.timestep = 1.0 / physics_rate_hz
    # stiff PD damping stays stable
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    # a third of the cost of elliptic cones
    spec.option.cone = mujoco.mjtCone.mjCONE_PYRAMIDAL
    # loaded feet creep less
    spec.option.impratio = 10.0


def _drive(
    entry: DrivesEntry,
    joint: str,
    joints: Sequence[str],
    model_gains: Mapping[str, Drive],
    where: str,
) -> Drive:
    """A joint's gains, by its entry in robot.yaml."""
    of_model = model_gains.get(joint, Drive())

    def resolve(key: str, value: Gain) -> float | None:
        if isinstance(value, Mapping):
            match_names(value, joints, f"{where}.{key}")
            value = value[joint]
        if value == MODEL:
            model_value: float | None = getattr(of_model, key)
            if model_value is None and key != "armature":
                raise InputError(f"{where}.{key}: the model has none for joint '{joint}'; set it")
            return model_value
        # kd: the joints' own damping may be enough
        if isinstance(value, str) or value < 0 or (value == 0 and key != "kd"):
            raise InputError(f"{where}.{key}={value!r}: must be above 0 or '{MODEL}'")
        return value

    return Drive(**{key: resolve(key, value) for key, value in vars(entry).items()})


def _add_drive(spec: mujoco.MjSpec, joint: str, drive: Drive) -> None:
    assert drive.torque_limit is not None  # `_drive` resolved it
    actuator = spec.add_actuator(name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    actuator.set_to_position(kp=drive.kp, kv=drive.kd)
    actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
    actuator.forcerange = [-drive.torque_limit, drive.torque_limit]
    # targets are not clipped
    actuator.ctrllimited = mujoco.mjtLimited.mjLIMITED_FALSE
    if drive.armature is not None:
        spec.joint(joint).armature = drive.armature


def _add_foot(
    spec: mujoco.MjSpec, name: str, point: BodyPoint, radius: float, model: mujoco.MjModel
) -> None:
    """Add a foot's body, aligned with the base, and move the shapes near its origin there; a sphere
    where the compiled model has none."""
    parent = spec.body(point.body)
    parent_id = model.body(point.body).id
    parent_turn = posed(model).xquat[parent_id]
    body = parent.add_body(
        name=name, pos=point.position, quat=_rounded_turn(rotations.conjugate(parent_turn))
    )
    if parent.explicitinertial:
        body.explicitinertial = True
        body.mass = 0.0
        body.inertia = [0.0, 0.0, 0.0]

    offsets = model.geom_pos - point.position
    near = (model.geom_bodyid == parent_id) & (np.linalg.norm(offsets, axis=-1) <= _NEAR)
    near &= (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    near &= model.geom_type != mujoco.mjtGeom.mjGEOM_MESH
    for g in np.flatnonzero(near):
        source = spec.geom(model.geom(g).name)
        turn = _rounded_turn(rotations.multiply(parent_turn, model.geom_quat[g]))
        position = rotations.rotate(parent_turn, offsets[g])
        moved = body.add_geom(size=model.geom_size[g], pos=position, quat=turn)
        for key in GEOM_ATTRIBUTES:
            setattr(moved, key, getattr(source, key))
        geom_name = source.name
        spec.delete(source)
        moved.name = geom_name
    if not near.any():
        sphere = mujoco.mjtGeom.mjGEOM_SPHERE
        sole = body.add_geom(name=f"{name}_sole", type=sphere, size=[radius, 0, 0])
        sole.friction = [0.8, 0.02, 0.01]
        sole.group = 3
        sole.priority = 1
        sole.mass = 0.0


def _rounded_turn(quaternion: Array) -> Array:
    """A unit quaternion with w >= 0; exactly the identity where only rounding differs."""
    unit = quaternion / np.linalg.norm(quaternion) * (1.0 if quaternion[0] >= 0 else -1.0)
    return rotations.IDENTITY if np.abs(unit[1:]).max() < 1e-9 else unit


def check_suitable(model: mujoco.MjModel, path: Path) -> None:
    """Raise InputError for a model that cannot be adapted: joints other than hinges, reference
    angles, infinite values."""
    for figure in ("mass", "inertia", "pos", "ipos"):
        values = getattr(model, f"body_{figure}").reshape(model.nbody, -1)
        if not np.isfinite(values).all():
            body = model.body(int(np.argmin(np.isfinite(values).all(axis=1)))).name
            raise InputError(f"{path}: body '{body}': {figure}: must be finite")
    for i, name in enumerate(hinge_names(model, path), 1):
        if model.qpos0[model.jnt_qposadr[i]] != 0:
            raise InputError(
                f"{path}: joint '{name}' has a ref; turn its body by that angle and remove ref"
            )
    if model.njnt < 2:
        raise InputError(f"{path}: no joints to drive")


def model_drives(spec: mujoco.MjSpec) -> dict[str, Drive]:
    """The gains of a model's actuators, and the torque limits of its joints, by joint.

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
        stiffness = float(actuator.biasprm[1])
        damping = float(actuator.biasprm[2])
        if affine and kp > 0 and np.isclose(stiffness, -kp):
            # a positive entry is a damping ratio, which only the compiler turns into a gain
            kd = None if damping > 0 else -damping * gear**2
            drives[actuator.target] = Drive(kp * gear**2, kd, limit)
        else:
            drives[actuator.target] = Drive(torque_limit=limit)
    return drives
