"""The `Robot`: an MJCF and a `robot.yaml` beside it, read into one frozen value.

The MJCF holds what MuJoCo understands (bodies, joints, inertia, shapes, the time step, position
actuators with their gains and torque limits); robot.yaml holds the rest (position and speed limits,
home pose, feet, markers, mirrors, control rate). No number stands in both. A folder with these two
files is a robot: `load("my_folder")` reads it like the packaged ones. With `drives:` in robot.yaml
the MJCF may be anybody's, also one of MuJoCo Menagerie (`npmp.robots.adapt`,
`npmp.robots.menagerie`).

Frames: X forward, Y left, Z up; metres, radians. Quaternions are (w, x, y, z). qpos is [root
position 3 | root quaternion 4 | joints J]; qvel is MuJoCo's: [root linear velocity 3, world frame |
root angular velocity 3, root frame | joint velocities J].
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mocap_data.errors import InputError
from mocap_data.safe_yaml import read_yaml
from npmp import plugins
from npmp.robots.adapt import (
    ROOT_JOINT,
    Adaptation,
    adapt,
    compile_spec,
    posed,
    read_adaptation,
    read_spec,
)
from npmp.robots.fields import (
    FloatArray,
    fields,
    mapping,
    number,
    one_of,
    positive,
    read_only,
    text,
    vector,
)
from npmp.robots.menagerie import at_hand, locate
from npmp.robots.symmetry import Layout, Symmetry, read_symmetry

_PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Marker:
    """A named point on a body: `position` (3,) [m] in the frame of `body`."""

    body: str
    position: FloatArray
    weight: float = 1.0  # of its error in retargeting, relative to the other markers


@dataclass(frozen=True)
class Robot:
    """A robot with a free root, position-controlled hinges and spherical feet. All arrays are
    read-only.

    J joints in qpos order, B bodies in MuJoCo's order (the root first, the world left out), F feet.
    """

    name: str
    mjcf: Path
    source: str
    licence: str
    joint_names: tuple[str, ...]
    body_names: tuple[str, ...]
    foot_bodies: tuple[str, ...]
    foot_radius: float  # [m]
    foot_offset: (
        # (3,) in the foot body's frame [m]: centre of its sphere; of a sole, the middle of its
        # points
        FloatArray
    )
    foot_points: (
        # (F, K, 3) in the foot bodies' frames [m]: centres of K contact spheres of foot_radius per
        # foot
        FloatArray
    )
    markers: Mapping[str, Marker]
    imu_site: str
    home_qpos: FloatArray  # (7 + J,) standing, the lowest foot touching z = 0
    kp: FloatArray  # (J,) [Nm/rad]
    kd: FloatArray  # (J,) [Nm s/rad]
    torque_limit: FloatArray  # (J,) [Nm]
    joint_lower: FloatArray  # (J,) [rad]
    joint_upper: FloatArray  # (J,) [rad]
    velocity_limit: FloatArray  # (J,) [rad/s]
    control_rate_hz: float
    physics_rate_hz: float
    symmetries: Mapping[str, Symmetry]
    model_sha256: str  # of names, kinematics and inertia: what a stored motion depends on
    adaptation: Adaptation | None = None  # of an MJCF that was not written for this package

    @property
    def home_joints(self) -> FloatArray:
        """(J,) joint angles of the home pose [rad]."""
        return self.home_qpos[7:]

    @property
    def carries_feet(self) -> NDArray[np.bool_]:
        """(J,) which joints are of legs, between the root and a foot."""
        model = self.model()
        carrying: set[int] = set()
        for name in self.foot_bodies:
            body = model.body(name).id
            while body:
                carrying.add(int(body))
                body = model.body_parentid[body]
        return np.array([int(model.joint(name).bodyid[0]) in carrying for name in self.joint_names])

    @property
    def substeps(self) -> int:
        """Physics steps per control step."""
        return round(self.physics_rate_hz / self.control_rate_hz)

    def turning(self, most: Mapping[str, float]) -> Robot:
        """The same robot with wider joint limits: joints whose names contain a key may turn to its
        angle either way.

        Limits that are wider already stay. most: angles [rad] by parts of joints' names; nothing
        changes where none of them is part of any.

        Raises:
          InputError: where some of the keys are part of no joint's name.
        """
        unknown = [part for part in most if not any(part in name for name in self.joint_names)]
        if unknown and len(unknown) < len(most):
            raise InputError(
                f"no joint of '{self.name}' has {', '.join(unknown)} in its name: {', '.join(self.joint_names)}"
            )
        least = [
            max((angle for part, angle in most.items() if part in name), default=-np.inf)
            for name in self.joint_names
        ]
        lower, upper = (
            np.minimum(self.joint_lower, np.negative(least)),
            np.maximum(self.joint_upper, least),
        )
        return replace(self, joint_lower=read_only(lower), joint_upper=read_only(upper))

    def spec(self, *, visuals: bool = True) -> mujoco.MjSpec:
        """A fresh, editable spec of the robot alone: no floor, no light, joints limited to
        lower..upper.

        Without visuals the compiled model keeps only colliding geoms: the same physics, a fifth
        faster.
        """
        spec = read_spec(self.mjcf)
        if self.adaptation is not None:
            adapt(spec, self.adaptation, self.mjcf, visuals=visuals)
        spec.compiler.discardvisual = not visuals
        # of the spec's angles until it is compiled
        unit = np.pi / 180 if spec.compiler.degree else 1.0
        for name, lower, upper in zip(
            self.joint_names, self.joint_lower, self.joint_upper, strict=True
        ):
            joint = spec.joint(name)
            joint.limited = mujoco.mjtLimited.mjLIMITED_TRUE
            joint.range = [lower / unit, upper / unit]
        return spec

    def model(self, *, visuals: bool = True) -> mujoco.MjModel:
        """The compiled `spec()`."""
        return self.spec(visuals=visuals).compile()


def names() -> tuple[str, ...]:
    """The packaged robots, sorted."""
    return tuple(sorted(path.parent.name for path in _PACKAGE.glob("*/robot.yaml")))


def with_joints(joint_names: Iterable[str]) -> list[str]:
    """The packaged robots that have exactly these joints, in whatever order.

    By their robot.yaml alone: loading one may fetch its model from the network.
    """
    wanted = set(joint_names)
    return [name for name in names() if set(read_yaml(find(name))["joints"]) == wanted]


def own_names() -> tuple[str, ...]:
    """One's own robots, sorted: the folders with a robot.yaml in ./robots and in the folders that
    NPMP_ROBOTS lists."""
    found = {
        path.parent.name
        for folder in plugins.folders("robots")
        for path in folder.glob("*/robot.yaml")
    }
    return tuple(sorted(found - set(names())))


def find(robot: str | Path) -> Path:
    """The robot.yaml of a packaged robot, of one of one's own (`own_names`), or of the path of a
    folder or file.

    Raises:
      InputError: where there is none.
    """
    for folder in (_PACKAGE, *plugins.folders("robots")):
        if str(robot) == Path(robot).name and (folder / robot / "robot.yaml").is_file():
            return folder / robot / "robot.yaml"
    path = Path(robot).expanduser()
    if path.is_dir():
        if not (path / "robot.yaml").is_file():
            raise InputError(
                f"no robot.yaml in folder '{robot}'; npmp robots add MODEL.xml out={robot} writes one"
            )
        path = path / "robot.yaml"
    if path.is_file() and path.suffix in (".xml", ".urdf"):
        raise InputError(
            f"{robot} is a model, no robot yet; npmp robots add {robot} makes one of it"
        )
    if path.suffix not in (".yaml", ".yml"):
        raise InputError(
            f"no robot '{robot}'; there are: {', '.join((*names(), *own_names()))}, or the path of a folder"
        )
    if not path.exists():
        raise InputError(f"no robot file '{path}'; the packaged robots are: {', '.join(names())}")
    return path


def load(robot: str | Path) -> Robot:
    """The packaged robot of that name, or your own by its name or by the path of its folder or of
    its robot.yaml.

    Raises:
      InputError: for an unknown name, a missing or malformed file, a robot.yaml that does not fit
        its MJCF, or a model of MuJoCo Menagerie that cannot be had.
    """
    return _read(find(robot))


def is_at_hand(robot: str | Path) -> bool:
    """Whether the robot's model can be read without a download. Raises InputError for no robot at
    all."""
    content = read_yaml(find(robot))
    return at_hand(str(content.get("mjcf", ""))) if isinstance(content, dict) else True


# --- robot.yaml ---


_REQUIRED = ("name", "mjcf", "control_rate_hz", "joints", "feet", "markers", "symmetries")
_ADAPTED = (
    "physics_rate_hz",
    "solver",
    "imu",
    "drop_missing",
)  # only with `drives`: a model of one's own says these itself


def _read(path: Path) -> Robot:
    return build(read_yaml(path), path)


def build(content: Any, path: Path) -> Robot:
    """The robot that a robot.yaml's content describes; `path` is where it stands, or would. Raises
    InputError."""
    adapted = isinstance(content, dict) and "drives" in content
    site = ("imu_site",) if not (adapted and "imu" in content) else ()
    optional = ("source", "licence", "drives", *(_ADAPTED if adapted else ()))
    top = fields(content, str(path), required=(*_REQUIRED, *site), optional=optional)

    mjcf = locate(text(top["mjcf"], f"{path}: mjcf"), path.parent)
    adaptation = read_adaptation(top, mjcf, str(path)) if adapted else None
    spec = read_spec(mjcf)
    if adaptation is not None:
        adapt(spec, adaptation, mjcf, visuals=False)
    model = compile_spec(spec, mjcf)
    joint_names = _joint_names(model, mjcf)
    body_names = tuple(model.body(i).name for i in range(1, model.nbody))
    sites = tuple(model.site(i).name for i in range(model.nsite))

    home, lower, upper, velocity = _joint_table(top["joints"], joint_names, f"{path}: joints")
    kp, kd, torque_limit = _drives(model, joint_names, mjcf)
    foot_bodies, foot_radius, foot_offset, foot_points = _feet(
        top["feet"], body_names, f"{path}: feet"
    )
    markers = _markers(top["markers"], body_names, f"{path}: markers")
    layout = _layout(model, joint_names, body_names, foot_bodies, markers)
    control_rate_hz = positive(top["control_rate_hz"], f"{path}: control_rate_hz")
    physics_rate_hz = 1.0 / model.opt.timestep
    substeps = physics_rate_hz / control_rate_hz
    if substeps < 0.5 or abs(substeps - round(substeps)) > 1e-6:
        rates = f"control_rate_hz {control_rate_hz:g} does not divide the physics rate {physics_rate_hz:g} Hz"
        raise InputError(f"{path}: {rates} of {mjcf.name}")

    return Robot(
        name=text(top["name"], f"{path}: name"),
        mjcf=mjcf,
        source=text(top.get("source", ""), f"{path}: source"),
        licence=text(top.get("licence", ""), f"{path}: licence"),
        joint_names=joint_names,
        body_names=body_names,
        foot_bodies=foot_bodies,
        foot_radius=foot_radius,
        foot_offset=foot_offset,
        foot_points=foot_points,
        markers=MappingProxyType(markers),
        imu_site=one_of(top.get("imu_site", "imu"), sites, "site", f"{path}: imu_site"),
        home_qpos=read_only(_standing(model, home, foot_bodies, foot_radius, foot_points)),
        kp=read_only(kp),
        kd=read_only(kd),
        torque_limit=read_only(torque_limit),
        joint_lower=read_only(lower),
        joint_upper=read_only(upper),
        velocity_limit=read_only(velocity),
        control_rate_hz=control_rate_hz,
        physics_rate_hz=physics_rate_hz,
        symmetries=MappingProxyType(
            {
                name: read_symmetry(name, entry, layout, f"{path}: symmetries.{name}")
                for name, entry in mapping(top["symmetries"], f"{path}: symmetries").items()
            }
        ),
        model_sha256=_model_sha256(model),
        adaptation=adaptation,
    )


def _joint_table(value: Any, joint_names: Sequence[str], where: str) -> FloatArray:
    """(4, J): home, lower, upper [rad] and speed limit [rad/s]."""
    table = fields(value, where, required=joint_names)
    rows = []
    for name in joint_names:
        here = f"{where}.{name}"
        row = fields(table[name], here, required=("home", "lower", "upper", "velocity"))
        home, lower, upper = (
            number(row[key], f"{here}.{key}") for key in ("home", "lower", "upper")
        )
        if not lower <= home <= upper or lower == upper:
            raise InputError(
                f"{here}: home {home:g} is not within lower {lower:g} and upper {upper:g}"
            )
        rows.append((home, lower, upper, positive(row["velocity"], f"{here}.velocity")))
    return np.array(rows).T


def _feet(
    value: Any, body_names: Sequence[str], where: str
) -> tuple[tuple[str, ...], float, FloatArray, FloatArray]:
    """Bodies, radius [m], offset (3,) [m] and points (F, K, 3) [m], which are the offset alone
    where none are given."""
    entry = fields(value, where, required=("bodies", "radius", "offset"), optional=("points", "at"))
    if not isinstance(entry["bodies"], list) or not entry["bodies"]:
        raise InputError(
            f"{where}.bodies: expected a list of bodies; found {entry['bodies']!r:.40}"
        )
    bodies = tuple(one_of(body, body_names, "body", f"{where}.bodies") for body in entry["bodies"])
    radius, offset = (
        positive(entry["radius"], f"{where}.radius"),
        vector(entry["offset"], f"{where}.offset"),
    )
    if "points" not in entry:
        return bodies, radius, offset, read_only(np.broadcast_to(offset, (len(bodies), 1, 3)))
    table = fields(entry["points"], f"{where}.points", required=bodies)
    points = [_points(table[body], f"{where}.points.{body}") for body in bodies]
    if len({len(sole) for sole in points}) > 1:
        counts = ", ".join(f"{body} {len(sole)}" for body, sole in zip(bodies, points, strict=True))
        raise InputError(f"{where}.points: every foot needs as many; found {counts}")
    return bodies, radius, offset, read_only(points)


def _points(value: Any, where: str) -> list[FloatArray]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: expected a list of points [x, y, z]; found {value!r:.40}")
    return [vector(point, where) for point in value]


def _markers(value: Any, body_names: Sequence[str], where: str) -> dict[str, Marker]:
    markers = {}
    for name, entry in mapping(value, where).items():
        here = f"{where}.{name}"
        entry = fields(entry, here, required=("body", "position"), optional=("weight",))
        body = one_of(entry["body"], body_names, "body", f"{here}.body")
        weight = positive(entry.get("weight", 1.0), f"{here}.weight")
        markers[name] = Marker(body, vector(entry["position"], f"{here}.position"), weight)
    return markers


# --- MJCF ---


def _joint_names(model: mujoco.MjModel, mjcf: Path) -> tuple[str, ...]:
    """Names of the hinges; refuses anything but a free joint "root" on the first body, then hinges."""
    free, hinge = mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_HINGE
    joint_names = tuple(model.joint(i).name for i in range(model.njnt))
    if joint_names[:1] != (ROOT_JOINT,) or model.jnt_type[0] != free or model.jnt_bodyid[0] != 1:
        raise InputError(f"{mjcf}: the first body must have a free joint named '{ROOT_JOINT}'")
    for name, kind in zip(joint_names[1:], model.jnt_type[1:], strict=True):
        if kind != hinge:
            raise InputError(f"{mjcf}: joint '{name}' is no hinge; only hinges may follow the root")
    return joint_names[1:]


def _drives(
    model: mujoco.MjModel, joint_names: tuple[str, ...], mjcf: Path
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """kp [Nm/rad], kd [Nm s/rad], torque limit [Nm], each (J,): torque = clip(kp (target - q) - kd
    qd)."""
    actuators = tuple(model.actuator(i).name for i in range(model.nu))
    if actuators != joint_names:
        found = ", ".join(actuators) or "none"
        wanted = "one position actuator per joint, with its name and in its order (or `drives:` in robot.yaml)"
        raise InputError(f"{mjcf}: expected {wanted}: {', '.join(joint_names)}; found {found}")
    kp, (offset, stiffness, damping) = model.actuator_gainprm[:, 0], model.actuator_biasprm[:, :3].T
    lower, upper = model.actuator_forcerange.T
    on_its_joint = (model.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT) & (
        model.actuator_trnid[:, 0] == np.arange(1, model.njnt)
    )
    gear = model.actuator_gear[:, 0]
    position = (offset == 0) & (stiffness == -kp) & (kp > 0) & (damping <= 0) & (gear == 1)
    limited = (model.actuator_forcelimited != 0) & (upper > 0) & (lower == -upper)
    for i, name in enumerate(actuators):
        if not (on_its_joint[i] and position[i]):
            raise InputError(
                f"{mjcf}: actuator '{name}' is no position actuator (kp, kv, gear 1) on its joint"
            )
        if not limited[i]:
            raise InputError(
                f"{mjcf}: actuator '{name}' needs a symmetric forcerange, the torque limit"
            )
    return kp, -damping, upper


def _point(data: mujoco.MjData, body: str, position: FloatArray) -> FloatArray:
    """(3,) world position of a point given in a body's frame [m]."""
    frame = data.body(body)
    return frame.xpos + frame.xmat.reshape(3, 3) @ position


def _standing(
    model: mujoco.MjModel,
    home: FloatArray,
    foot_bodies: Sequence[str],
    radius: float,
    points: FloatArray,
) -> FloatArray:
    """(7 + J,) qpos of the home pose at the height where the lowest foot point touches z = 0."""
    data = posed(model, home)
    lowest = min(
        _point(data, foot, point)[2]
        for foot, sole in zip(foot_bodies, points, strict=True)
        for point in sole
    )
    return np.concatenate([[0.0, 0.0, radius - lowest, 1.0, 0.0, 0.0, 0.0], home])


def _layout(
    model: mujoco.MjModel,
    joint_names: Sequence[str],
    body_names: Sequence[str],
    foot_bodies: Sequence[str],
    markers: Mapping[str, Marker],
) -> Layout:
    data = posed(model)
    points = [_point(data, marker.body, marker.position) for marker in markers.values()]
    return Layout(
        joint_names=joint_names,
        joint_axes=data.xaxis[1:].copy(),
        body_names=body_names,
        body_positions=data.xpos[1:].copy(),
        body_rotations=data.xmat[1:].reshape(-1, 3, 3).copy(),
        foot_bodies=foot_bodies,
        marker_names=tuple(markers),
        marker_bodies=[body_names.index(marker.body) for marker in markers.values()],
        marker_positions=np.array(points).reshape(-1, 3),
    )


def _model_sha256(model: mujoco.MjModel) -> str:
    """Hash of what a stored motion depends on: names, tree, joint axes and mass distribution.

    Figures are rounded to 1e-8 (m, kg, kg m2), far above the differences between versions of
    MuJoCo. Shapes, gains and limits may change without making old motions unusable, so they stay
    out.
    """
    lines = []
    for i in range(1, model.nbody):
        axes = _matrix(model.body_iquat[i])
        # In the body's axes, because the order and signs of principal axes are the compiler's
        # choice.
        inertia = axes @ np.diag(model.body_inertia[i]) @ axes.T
        parent = model.body(model.body_parentid[i]).name
        figures = _figures(
            model.body_pos[i],
            _matrix(model.body_quat[i]),
            model.body_mass[i],
            model.body_ipos[i],
            inertia,
        )
        lines.append(f"body {model.body(i).name} {parent} {figures}")
    for i in range(model.njnt):
        joint = model.joint(i)
        figures = _figures(joint.pos, joint.axis)
        lines.append(
            f"joint {joint.name} {model.body(joint.bodyid[0]).name} {joint.type[0]} {figures}"
        )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _matrix(quaternion: FloatArray) -> FloatArray:
    """(4,) wxyz -> (3, 3)."""
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, quaternion)
    return matrix.reshape(3, 3)


def _figures(*arrays: ArrayLike) -> str:
    """All entries to 1e-8, zero spelled one way."""
    flat = np.concatenate([np.ravel(np.asarray(array, dtype=np.float64)) for array in arrays])
    return " ".join(f"{value + 0.0:.8f}" for value in np.round(flat, 8))
