"""The `Robot`: an MJCF and a robot.yaml beside it, read into one frozen value.

The MJCF has the bodies, joints, inertia, shapes, time step and position actuators; robot.yaml has
the position and speed limits, home pose, feet, markers, mirrors and control rate. A folder with
these two files is a robot: `load("my_folder")` reads it like a packaged one. With `drives:` in
robot.yaml the MJCF may be any model, such as one of MuJoCo Menagerie (`npmp.robots.adapt`,
`npmp.robots.menagerie`).

Frames: X forward, Y left, Z up; metres, radians. Quaternions are (w, x, y, z). qpos is [root
position 3 | root quaternion 4 | joints J]; qvel is MuJoCo's: [root linear velocity 3, world frame |
root angular velocity 3, root frame | joint velocities J].
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.errors import InputError
from mocap_data.safe_yaml import read_yaml
from npmp.core import plugins
from npmp.robots.adapt import adapt
from npmp.robots.description import Description, frozen, match_names, one_of, read_description
from npmp.robots.menagerie import is_cached, locate
from npmp.robots.model import compile_spec, feet_in_world, hinge_names, hinges_to, posed, read_spec
from npmp.robots.strip import drop_visuals
from npmp.robots.symmetry import Marker, Symmetry, make_symmetry

_PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Robot:
    """A robot with a free root, position-controlled hinges and spherical feet; read-only arrays.

    J joints in qpos order, B bodies in MuJoCo's order (from the root, without the world), F feet.
    """

    name: str
    mjcf: Path
    source: str
    licence: str
    joint_names: tuple[str, ...]
    body_names: tuple[str, ...]
    foot_bodies: tuple[str, ...]
    # radius of the contact spheres [m]
    foot_radius: float
    # (3,) centre of a foot's sphere, or middle of a sole's points, in the foot body's frame [m]
    foot_offset: Array
    # (F, K, 3) centres of K contact spheres of foot_radius per foot, in the foot bodies' frames [m]
    foot_points: Array
    markers: Mapping[str, Marker]
    imu_site: str
    # (7 + J,) standing, the lowest foot touching z = 0
    home_qpos: Array
    # (J,) [Nm/rad]
    kp: Array
    # (J,) [Nm s/rad]
    kd: Array
    # (J,) [Nm]
    torque_limit: Array
    # (J,) [rad]
    joint_lower: Array
    # (J,) [rad]
    joint_upper: Array
    # (J,) speed limits of the drives [rad/s]
    velocity_limit: Array
    control_rate_hz: float
    physics_rate_hz: float
    symmetries: Mapping[str, Symmetry]
    # hash of names, kinematics and inertia, which a stored motion depends on
    model_sha256: str
    # pairs of bodies whose overlap is not a self-collision
    ignored_collisions: tuple[tuple[str, str], ...] = ()
    # the description that adapts a model of another simulator, None for a native MJCF
    adaptation: Description | None = None

    @property
    def home_joints(self) -> Array:
        """(J,) joint angles of the home pose [rad]."""
        return self.home_qpos[7:]

    @property
    def is_leg_joint(self) -> NDArray[np.bool_]:
        """(J,) whether a joint is between the root and a foot."""
        model = self.model(visuals=False)
        legs = [j for foot in self.foot_bodies for j in hinges_to(model, model.body(foot).id)]
        return np.isin(np.arange(len(self.joint_names)), legs)

    @property
    def substeps(self) -> int:
        """Physics steps per control step."""
        return round(self.physics_rate_hz / self.control_rate_hz)

    def with_joint_ranges(self, most: Mapping[str, float]) -> Robot:
        """The same robot with wider joint limits.

        Args:
          most: limits [rad] in both directions by parts of joints' names; wider limits stay, and
            so does a robot without any such joint.

        Raises:
          InputError: where only some of the keys are part of a joint's name.
        """
        unknown = [part for part in most if not any(part in name for name in self.joint_names)]
        if unknown and len(unknown) < len(most):
            raise InputError(
                f"no joint of '{self.name}' has {', '.join(unknown)} in its name:"
                f" {', '.join(self.joint_names)}"
            )
        least = [
            max((angle for part, angle in most.items() if part in name), default=-np.inf)
            for name in self.joint_names
        ]
        lower = np.minimum(self.joint_lower, np.negative(least))
        upper = np.maximum(self.joint_upper, least)
        return replace(self, joint_lower=frozen(lower), joint_upper=frozen(upper))

    def with_home(self, joints: ArrayLike) -> Robot:
        """The same robot with another home pose, (J,) [rad]."""
        home = np.asarray(joints, dtype=np.float64)
        model = self.model(visuals=False)
        qpos = _standing(model, home, self.foot_bodies, self.foot_radius, self.foot_points)
        return replace(self, home_qpos=frozen(qpos))

    def spec(self, *, visuals: bool = True) -> mujoco.MjSpec:
        """A new, editable spec of the robot without floor and light, its joints limited.

        Without visuals the compiled model has only colliding geoms: the same physics, 20 % faster.
        """
        spec = read_spec(self.mjcf)
        if self.adaptation is not None:
            adapt(spec, self.adaptation, self.mjcf, self.name)
            if not visuals:
                drop_visuals(spec)
        spec.compiler.discardvisual = not visuals
        limits = zip(self.joint_names, self.joint_lower, self.joint_upper, strict=True)
        for name, low, high in limits:
            joint = spec.joint(name)
            joint.limited = mujoco.mjtLimited.mjLIMITED_TRUE
            # the unit of the joint's file: attached models may have another
            unit = np.pi / 180 if joint.compiler.degree else 1.0
            joint.range = [low / unit, high / unit]
        return spec

    def on_floor(self, *, visuals: bool = False) -> mujoco.MjSpec:
        """`spec()` on an infinite flat floor, "floor", at the physics rate."""
        spec = self.spec(visuals=visuals)
        spec.option.timestep = 1.0 / self.physics_rate_hz
        plane = mujoco.mjtGeom.mjGEOM_PLANE
        size = [0, 0, 0.05]
        spec.worldbody.add_geom(name="floor", type=plane, size=size, contype=1, conaffinity=1)
        return spec

    def model(self, *, visuals: bool = True) -> mujoco.MjModel:
        """The compiled `spec()`."""
        return self.spec(visuals=visuals).compile()


def names() -> tuple[str, ...]:
    """The packaged robots, sorted."""
    return tuple(sorted(path.parent.name for path in _PACKAGE.glob("*/robot.yaml")))


def with_joints(joint_names: Iterable[str]) -> list[str]:
    """The packaged robots that have exactly these joints, in any order.

    Only their robot.yaml is read: loading may download a model.
    """
    joints = set(joint_names)
    return [name for name in names() if set(read_yaml(find(name))["joints"]) == joints]


def user_names() -> tuple[str, ...]:
    """Users' robots, sorted: folders with a robot.yaml in ./robots and NPMP_ROBOTS."""
    robots = {
        path.parent.name
        for folder in plugins.folders("robots")
        for path in folder.glob("*/robot.yaml")
    }
    return tuple(sorted(robots - set(names())))


def find(robot: str | Path) -> Path:
    """The robot.yaml of a packaged robot, a user's robot, or the path of a folder or file.

    Raises:
      InputError: for an unknown name, and a path without robot.yaml.
    """
    for folder in (_PACKAGE, *plugins.folders("robots")):
        if str(robot) == Path(robot).name and (folder / robot / "robot.yaml").is_file():
            return folder / robot / "robot.yaml"
    path = Path(robot).expanduser()
    if path.is_dir():
        if not (path / "robot.yaml").is_file():
            raise InputError(
                f"no robot.yaml in folder '{robot}';"
                f" npmp robots add MODEL.xml out={robot} writes one"
            )
        path = path / "robot.yaml"
    if path.is_file() and path.suffix in (".xml", ".urdf"):
        raise InputError(
            f"{robot} is a model without robot.yaml; npmp robots add {robot} writes one"
        )
    if path.suffix not in (".yaml", ".yml"):
        raise InputError(
            f"no robot '{robot}'; available: {', '.join((*names(), *user_names()))},"
            " or the path of a folder"
        )
    if not path.exists():
        raise InputError(f"no robot file '{path}'; packaged robots: {', '.join(names())}")
    return path


def load(robot: str | Path) -> Robot:
    """A packaged or a user's robot by its name, or by the path of its folder or robot.yaml.

    Raises:
      InputError: for an unknown name, a missing or malformed file, a robot.yaml that does not match
        its MJCF, or a model of MuJoCo Menagerie that cannot be downloaded.
    """
    path = find(robot)
    return build(read_yaml(path), path)


def is_local(robot: str | Path) -> bool:
    """Whether the robot's model can be read without a download. Raises InputError as `find`."""
    content = read_yaml(find(robot))
    return is_cached(str(content.get("mjcf", ""))) if isinstance(content, dict) else True


def build(content: Any, path: Path) -> Robot:
    """The robot of a robot.yaml's content, which is, or will be, at `path`. Raises InputError."""
    description = read_description(content, str(path))
    mjcf = locate(description.mjcf, path.parent)
    spec = read_spec(mjcf)
    adaptation = None if description.drives is None else description
    if adaptation is not None:
        adapt(spec, adaptation, mjcf, str(path))
        drop_visuals(spec)
    model = compile_spec(spec, mjcf)
    joints = hinge_names(model, mjcf)
    bodies = _names(model.body, 1, model.nbody)
    match_names(description.joints, joints, f"{path}: joints")
    for foot in description.feet.bodies:
        one_of(foot, bodies, "body", f"{path}: feet.bodies")
    if description.feet.points:
        match_names(description.feet.points, description.feet.bodies, f"{path}: feet.points")
    for name, marker in description.markers.items():
        one_of(marker.body, bodies, "body", f"{path}: markers.{name}.body")
    for body in itertools.chain(*description.ignore_collisions):
        one_of(body, bodies, "body", f"{path}: ignore_collisions")
    kp, kd, torque_limit = _drives(model, joints, mjcf)
    rows = [description.joints[name] for name in joints]
    feet = description.feet
    markers = {
        name: Marker(marker.body, frozen(marker.position), marker.weight)
        for name, marker in description.markers.items()
    }
    points = frozen([feet.points.get(foot, (feet.offset,)) for foot in feet.bodies])
    home = np.array([row.home for row in rows])
    symmetries = {
        name: make_symmetry(name, entry, model, feet.bodies, markers, f"{path}: symmetries.{name}")
        for name, entry in description.symmetries.items()
    }
    sites = _names(model.site, 0, model.nsite)
    return Robot(
        name=description.name,
        mjcf=mjcf,
        source=description.source,
        licence=description.licence,
        joint_names=joints,
        body_names=bodies,
        foot_bodies=feet.bodies,
        foot_radius=feet.radius,
        foot_offset=frozen(feet.offset),
        foot_points=points,
        markers=MappingProxyType(markers),
        imu_site=one_of(description.imu_site, sites, "site", f"{path}: imu_site"),
        home_qpos=frozen(_standing(model, home, feet.bodies, feet.radius, points)),
        kp=frozen(kp),
        kd=frozen(kd),
        torque_limit=frozen(torque_limit),
        joint_lower=frozen([row.lower for row in rows]),
        joint_upper=frozen([row.upper for row in rows]),
        velocity_limit=frozen([row.velocity for row in rows]),
        control_rate_hz=description.control_rate_hz,
        physics_rate_hz=_physics_rate(model, description, mjcf, path),
        symmetries=MappingProxyType(symmetries),
        model_sha256=_model_sha256(model),
        ignored_collisions=description.ignore_collisions,
        adaptation=adaptation,
    )


def _names(element: Any, start: int, stop: int) -> tuple[str, ...]:
    return tuple(element(i).name for i in range(start, stop))


def _physics_rate(model: mujoco.MjModel, description: Description, mjcf: Path, path: Path) -> float:
    physics_rate_hz = 1.0 / model.opt.timestep
    substeps = physics_rate_hz / description.control_rate_hz
    if substeps < 0.5 or abs(substeps - round(substeps)) > 1e-6:
        raise InputError(
            f"{path}: control_rate_hz={description.control_rate_hz:g}: must divide the physics rate"
            f" {physics_rate_hz:g} Hz of {mjcf.name}"
        )
    return physics_rate_hz


def _drives(
    model: mujoco.MjModel, joint_names: tuple[str, ...], mjcf: Path
) -> tuple[Array, Array, Array]:
    """kp [Nm/rad], kd [Nm s/rad], torque limit [Nm], each (J,): torque = clip(kp (target - q) - kd
    qd)."""
    actuators = tuple(model.actuator(i).name for i in range(model.nu))
    if actuators != joint_names:
        actual = ", ".join(actuators) or "none"
        raise InputError(
            f"{mjcf}: actuators: {actual}; expected one position actuator per joint, with its name"
            f" and in its order (or `drives:` in robot.yaml): {', '.join(joint_names)}"
        )
    kp = model.actuator_gainprm[:, 0]
    offset, stiffness, damping = model.actuator_biasprm[:, :3].T
    lower, upper = model.actuator_forcerange.T
    on_its_joint = model.actuator_trnid[:, 0] == np.arange(1, model.njnt)
    on_its_joint &= model.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT
    gear = model.actuator_gear[:, 0]
    position = (offset == 0) & (stiffness == -kp) & (kp > 0) & (damping <= 0) & (gear == 1)
    limited = (model.actuator_forcelimited != 0) & (upper > 0) & (lower == -upper)
    for i, name in enumerate(actuators):
        if not (on_its_joint[i] and position[i]):
            raise InputError(
                f"{mjcf}: actuator '{name}' must be a position actuator (kp, kv, gear 1) of joint"
                f" '{name}'"
            )
        if not limited[i]:
            raise InputError(
                f"{mjcf}: actuator '{name}' must have a symmetric forcerange, the torque limit"
            )
    return kp, -damping, upper


def _standing(
    model: mujoco.MjModel, home: Array, foot_bodies: Sequence[str], radius: float, points: Array
) -> Array:
    """(7 + J,) qpos of the home pose at the height where the lowest foot point touches z = 0."""
    lowest = feet_in_world(posed(model, home), foot_bodies, points)[..., 2].min()
    return np.concatenate([[0.0, 0.0, radius - lowest, 1.0, 0.0, 0.0, 0.0], home])


def _model_sha256(model: mujoco.MjModel) -> str:
    """Hash of the names, tree, joint axes and mass distribution, which stored motions depend on.

    Values are rounded to 1e-8 (m, kg, kg m2), far above the differences between versions of
    MuJoCo. Stored motions do not depend on shapes, gains and limits.
    """
    lines = []
    for i in range(1, model.nbody):
        axes = rotations.to_matrix(model.body_iquat[i])
        # in the body's axes: the compiler chooses the order and signs of principal axes
        inertia = axes @ np.diag(model.body_inertia[i]) @ axes.T
        parent = model.body(model.body_parentid[i]).name
        figures = _figures(
            model.body_pos[i],
            rotations.to_matrix(model.body_quat[i]),
            model.body_mass[i],
            model.body_ipos[i],
            inertia,
        )
        lines.append(f"body {model.body(i).name} {parent} {figures}")
    for i in range(model.njnt):
        joint = model.joint(i)
        body = model.body(joint.bodyid[0]).name
        figures = _figures(joint.pos, joint.axis)
        lines.append(f"joint {joint.name} {body} {joint.type[0]} {figures}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _figures(*arrays: ArrayLike) -> str:
    """All entries to 1e-8, without a negative zero."""
    flat = np.concatenate([np.ravel(np.asarray(array, dtype=np.float64)) for array in arrays])
    return " ".join(f"{value + 0.0:.8f}" for value in np.round(flat, 8))
