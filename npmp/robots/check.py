"""Checks of a robot: mass, mirrors, feet, self-collision, standing, gains, torque limits.

`check(robot)` returns one `Check` per assumption of retargeting and the environments.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import mujoco
import numpy as np

from mocap_data.arrays import Array
from mocap_data.errors import InputError, one_line
from npmp.robots.model import feet_in_world, in_world
from npmp.robots.robot import Robot
from npmp.robots.self_collision import Pair, SelfCollision
from npmp.robots.symmetry import Symmetry

# markers that recordings of dogs and people are matched to; toes, heels, elbows and hands are
# optional
QUADRUPED_MARKERS = (
    *("base", "LF_shoulder", "RF_shoulder", "LH_hip", "RH_hip"),
    *("LF_foot", "RF_foot", "LH_foot", "RH_foot"),
)
HUMANOID_MARKERS = (
    *("chest", "L_shoulder", "R_shoulder", "L_hip", "R_hip"),
    *("L_knee", "R_knee", "L_foot", "R_foot"),
)

MASS_KG = (0.5, 500.0)
# largest to smallest inertia about a joint, and of a body's principal axes
INERTIA_RATIO = 1e6
# [rad] of a leg's joint, at least: less is probably a limit in another unit
RANGE_RAD = 0.1
# random poses for the mirrors
POSES = 32
# [m] and [rad] error of mirrored poses, unless the symmetry has a tolerance
EXACT = 1e-6
# largest distance of a foot point from the floor at home
FLAT_M = 0.003
# share of its height that a standing base may sink, its tilt, its drift: with the usual 20 Nm/rad a
# Go2 sinks by 24 %, tilts by 8 degrees and drifts by 0.106 m
SINK = 0.3
TILT_DEG = 10.0
DRIFT_M = 0.11
STAND_S = 2.0
# joint speed [rad/s] at the end of standing, and of the gains' test in the air
STILL_RPS = 0.5
# [rad] largest remaining error after a deviation of STEP_RAD
SETTLED_RAD = 0.05
STEP_RAD = 0.2
# torque limit over a leg's share of the weight at the base's height, beyond which it is a
# placeholder; drives of legged robots: 1 to 5
PLACEHOLDER = 15.0
# [s] kd over kp that is proposed for joints without damping: ANYmal B's
DAMPING_S = 0.024
# poses of a joint's sweep
SWEEP = 25
# share of a sweep in which bodies of one limb may touch
SWEPT = 0.5
# share in which other bodies may touch from within [rad] of home on: arms hang beside thighs
BESIDE = 0.25
NEAR_RAD = 0.05
# [m] depth from which bodies touch
TOUCHING_M = 1e-3
_SIDES = {
    # word: (front, left)
    **dict.fromkeys(("lf", "fl"), (1, 1)),
    **dict.fromkeys(("rf", "fr"), (1, -1)),
    **dict.fromkeys(("lh", "hl", "rl"), (-1, 1)),
    **dict.fromkeys(("rh", "hr", "rr"), (-1, -1)),
    **dict.fromkeys(("front", "fore", "f"), (1, 0)),
    **dict.fromkeys(("hind", "rear", "back", "h"), (-1, 0)),
    **dict.fromkeys(("left", "l"), (0, 1)),
    **dict.fromkeys(("right", "r"), (0, -1)),
}


@dataclass(frozen=True)
class Check:
    """One assumption, whether it holds, and its numbers or the next step."""

    name: str
    passed: bool
    detail: str


@contextmanager
def quiet() -> Iterator[None]:
    """Silence MuJoCo's warnings inside: a simulation that diverges is a result here."""
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


@quiet()
def check(robot: Robot) -> tuple[Check, ...]:
    """All checks of a robot. A robot that fails one raises nothing."""
    try:
        floor = model_of(robot, floor=True)
        air = model_of(robot, floor=False)
    except (InputError, ValueError) as error:
        return (Check("model", False, one_line(error)),)
    rates = f"control {robot.control_rate_hz:g} Hz, physics {robot.physics_rate_hz:g} Hz"
    symmetries = [mirrors(robot, air, symmetry) for symmetry in robot.symmetries.values()]
    return (
        _compiles(robot, air),
        _mass(robot, air),
        _joints(robot, air),
        # the loader checks that they divide
        Check("rates", True, f"{rates}: {robot.substeps} steps each"),
        _axes(robot, air),
        *(symmetries or [Check("symmetry", True, "none: motions cannot be mirrored")]),
        _markers(robot),
        _feet(robot, floor),
        self_collision(robot),
        stands(robot),
        gains(robot),
        torque_limits(robot),
    )


def model_of(robot: Robot, *, floor: bool) -> mujoco.MjModel:
    """The robot's colliding shapes, on a floor or in the air, at its physics rate."""
    spec = robot.on_floor()
    if not floor:
        spec.delete(spec.geom("floor"))
        spec.option.gravity = [0.0, 0.0, 0.0]
    return spec.compile()


def _at(model: mujoco.MjModel, qpos: Array) -> mujoco.MjData:
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_forward(model, data)
    return data


def _feet_points(robot: Robot, data: mujoco.MjData) -> Array:
    """(F, K, 3) world positions of the feet's contact spheres."""
    return feet_in_world(data, robot.foot_bodies, robot.foot_points)


# --- the model


def _compiles(robot: Robot, model: mujoco.MjModel) -> Check:
    try:
        full = robot.model(visuals=True)
    except (InputError, ValueError) as error:
        return Check("model", False, f"does not compile with its visual shapes: {one_line(error)}")
    joints = len(robot.joint_names)
    bodies = len(robot.body_names)
    feet = len(robot.foot_bodies)
    shapes = f"{model.ngeom} shapes that collide, {full.ngeom} in all"
    return Check("model", True, f"{joints} joints, {bodies} bodies, {feet} feet, {shapes}")


def _mass(robot: Robot, model: mujoco.MjModel) -> Check:
    total = float(model.body_mass.sum())
    full = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, _at(model, robot.home_qpos), full)
    inertia = np.diag(full)[6:]
    ratio = float(inertia.max() / inertia.min())
    weighing = model.body_inertia[1:][model.body_mass[1:] > 1e-3]
    own = float((weighing.max(axis=-1) / np.maximum(weighing.min(axis=-1), 1e-15)).max())
    good = MASS_KG[0] <= total <= MASS_KG[1] and ratio < INERTIA_RATIO and own < INERTIA_RATIO
    detail = (
        f"{total:.3f} kg ({MASS_KG[0]:g} to {MASS_KG[1]:g});"
        f" inertia about joints {inertia.min():.2g} to {inertia.max():.2g} kg m2"
    )
    return Check("mass", good, detail)


def _joints(robot: Robot, model: mujoco.MjModel) -> Check:
    several = [robot.body_names[i - 1] for i in range(2, model.nbody) if model.body_jntnum[i] > 1]
    if several:
        reason = f"body '{several[0]}' has several hinges; expected one a body"
        return Check("joints", False, reason)
    span_rad = robot.joint_upper - robot.joint_lower
    stiff = np.flatnonzero(robot.is_leg_joint & (span_rad < RANGE_RAD))
    if len(stiff):
        name = robot.joint_names[stiff[0]]
        degrees = np.degrees(span_rad[stiff[0]])
        reason = (
            f"{name} turns by {degrees:.2g} degrees in all; are its limits in degrees, not rad?"
        )
        return Check("joints", False, f"{reason} (of the model: compiler angle=)")
    room = np.minimum(robot.home_joints - robot.joint_lower, robot.joint_upper - robot.home_joints)
    near = int(np.argmin(room))
    detail = f"nearest: {robot.joint_names[near]}, {room[near]:.2f} rad off"
    return Check("joints", bool(room[near] >= 0), f"home is within the limits; {detail}")


def _axes(robot: Robot, model: mujoco.MjModel) -> Check:
    """X forward, Y left: feet must be on the side that their names say."""
    points = _feet_points(robot, _at(model, robot.home_qpos)).mean(axis=1)
    named_sides = np.array([sides(foot) for foot in robot.foot_bodies])
    wrong = (named_sides * points[:, :2] < -1e-3).any(axis=1)
    if wrong.any():
        feet = ", ".join(foot for foot, off in zip(robot.foot_bodies, wrong, strict=True) if off)
        return Check("axes", False, f"feet not on their names' side (X forward, Y left): {feet}")
    if not named_sides.any():
        return Check("axes", True, "not checked: the feet's names have no sides")
    return Check("axes", True, "X forward, Y left: feet are on their names' side")


def sides(name: str) -> tuple[int, int]:
    """(front, left) of a name ("LF_FOOT", "FL_calf", "l_foot"): +1, or -1 for hind and right; 0
    where the name says neither."""
    front = left = 0
    for word in re.split(r"[^A-Za-z]+|(?<=[a-z])(?=[A-Z])", name):
        ahead, aside = _SIDES.get(word.lower(), (0, 0))
        front = ahead or front
        left = aside or left
    return front, left


# --- mirrors


def mirrors(robot: Robot, model: mujoco.MjModel, symmetry: Symmetry) -> Check:
    name = f"symmetry {symmetry.name}"
    allowed = max(EXACT, symmetry.tolerance)
    worst = mirror_error(robot, model, symmetry, _random_poses(robot, np.random.default_rng(0)))
    detail = f"mirrored poses are off by at most {worst:.1e} m (allowed {allowed:.0e})"
    twice = symmetry.mirror_qpos(symmetry.mirror_qpos(robot.home_qpos))
    if np.abs(twice - robot.home_qpos).max() > 1e-12:
        return Check(name, False, "mirroring twice does not restore the pose")
    if worst > allowed:
        hint = "set a larger `tolerance` for a robot that is only nearly symmetric"
        return Check(name, False, f"{detail}; {hint}")
    home = float(np.abs(symmetry.mirror_joints(robot.home_joints) - robot.home_joints).max())
    images = np.sort(symmetry.mirror_joints([robot.joint_lower, robot.joint_upper]), axis=0)
    limits = np.abs(images - [robot.joint_lower, robot.joint_upper]).max(axis=0)
    differs = f"home by {home:.2g} rad" if home > 1e-6 else ""
    if limits.max() > 1e-6:
        first = int(np.argmax(limits))
        twin = int(symmetry.joint_permutation[first])
        pair = " and ".join(sorted({robot.joint_names[first], robot.joint_names[twin]}))
        differs = f"limits of {pair} by {limits.max():.2g} rad"
    also = f", but the image differs in the {differs}" if differs else ""
    return Check(name, not differs, detail + also)


def _random_poses(robot: Robot, rng: np.random.Generator) -> Iterator[Array]:
    for _ in range(POSES):
        quaternion = rng.normal(size=4)
        joints = rng.uniform(-np.pi, np.pi, size=len(robot.joint_names))
        yield np.concatenate([rng.normal(size=3), quaternion / np.linalg.norm(quaternion), joints])


def mirror_error(
    robot: Robot, model: mujoco.MjModel, symmetry: Symmetry, poses: Iterable[Array]
) -> float:
    """The largest distance [m] (or angle [rad] x 1 m) of mirrored poses' bodies, feet and markers
    from the poses' mirrors."""
    data = mujoco.MjData(model)
    image = mujoco.MjData(model)
    worst = 0.0
    for qpos in poses:
        data.qpos[:] = qpos
        image.qpos[:] = symmetry.mirror_qpos(qpos)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_kinematics(model, image)
        turned = symmetry.mirror_body_quaternions(data.xquat[1:])
        cosine = np.clip(np.abs(np.sum(turned * image.xquat[1:], axis=-1)), 0, 1).min()
        angle = 2 * np.sqrt(2 * (1 - cosine)) if 1 - cosine > 1e-13 else 0.0
        bodies = symmetry.mirror_body_positions(data.xpos[1:], data.xquat[1:])
        markers = symmetry.mirror_points(_marker_points(robot, data)[symmetry.marker_permutation])
        # points of a sole may be permuted
        soles = symmetry.mirror_points(_feet_points(robot, data)[symmetry.foot_permutation])
        distances = np.linalg.norm(_feet_points(robot, image)[:, :, None] - soles[:, None], axis=-1)
        worst = max(
            worst,
            np.abs(image.xpos[1:] - bodies).max(),
            angle,
            np.abs(_marker_points(robot, image) - markers).max(initial=0.0),
            distances.min(axis=-1).max(),
        )
    return float(worst)


def _marker_points(robot: Robot, data: mujoco.MjData) -> Array:
    """(M, 3) [m]."""
    points = [in_world(data, marker.body, marker.position) for marker in robot.markers.values()]
    return np.array(points).reshape(-1, 3)


def _markers(robot: Robot) -> Check:
    marked = {marker.body for marker in robot.markers.values()}
    if robot.body_names[0] not in marked:
        return Check("markers", False, f"none is on the root body '{robot.body_names[0]}'")
    if unmarked := [foot for foot in robot.foot_bodies if foot not in marked]:
        return Check("markers", False, f"no marker is on foot '{unmarked[0]}'")
    groups = {"a dog's": QUADRUPED_MARKERS, "a person's": HUMANOID_MARKERS}
    missing = {like: [n for n in group if n not in robot.markers] for like, group in groups.items()}
    like = min(missing, key=lambda like: len(missing[like]))
    count = len(robot.markers)
    if lacking := missing[like]:
        return Check("markers", False, f"{count}; {like} recordings need {', '.join(lacking)}")
    return Check("markers", True, f"{count}; sufficient for {like} recordings")


# --- self-collision


@dataclass(frozen=True)
class Touch:
    """Two bodies that touch while one joint sweeps its range, the others at home."""

    pair: Pair
    joint: str
    # [rad] of the joint, nearest to home, and its distance from home
    angle: float
    away: float
    # share of the joint's range in which they touch
    share: float
    depth_m: float


def sweep(robot: Robot, collision: SelfCollision) -> list[Touch]:
    """Each touching pair with the joint that causes the contact nearest to home, by decreasing
    share."""
    nearest: dict[Pair, Touch] = {}
    for joint, name in enumerate(robot.joint_names):
        home = float(robot.home_joints[joint])
        lower = float(robot.joint_lower[joint])
        upper = float(robot.joint_upper[joint])
        near = np.clip([home - NEAR_RAD, home, home + NEAR_RAD], lower, upper)
        angles = np.concatenate((np.linspace(lower, upper, SWEEP), near))
        poses = np.tile(robot.home_qpos, (len(angles), 1))
        poses[:, 7 + joint] = angles
        for pair, depth in collision.pairs(poses).items():
            touching = depth > TOUCHING_M
            if not touching.any():
                continue
            away = np.where(touching, np.abs(angles - home), np.inf)
            first = int(away.argmin())
            share = float(touching[:SWEEP].mean())
            touch = Touch(pair, name, angles[first], away[first], share, float(depth.max()))
            if pair not in nearest or touch.away < nearest[pair].away:
                nearest[pair] = touch
    return sorted(nearest.values(), key=lambda touch: -touch.share)


def self_collision(robot: Robot) -> Check:
    """No pair touches near home, nor bodies of one limb in most poses; other pairs are listed."""
    collision = SelfCollision(robot)
    touches = sweep(robot, collision)
    doubtful = [
        touch
        for touch in touches
        if (touch.share > BESIDE and touch.away < NEAR_RAD + 1e-9)
        or (touch.share > SWEPT and collision.in_line(touch.pair))
    ]
    if doubtful:
        pairs = ", ".join(f"[{', '.join(touch.pair)}]" for touch in doubtful[:4])
        worst = doubtful[0]
        detail = (
            f"{' with '.join(worst.pair)}: {_mm(worst.depth_m)} deep in"
            f" {100 * worst.share:.0f} % of {worst.joint}'s range;"
            f" where shapes may overlap: ignore_collisions: [{pairs}]"
        )
        return Check("self-collision", False, detail)
    detail = "each joint through its range: nothing touches"
    if touches:
        first = touches[0]
        detail = (
            f"each joint through its range: {len(touches)} pairs touch, {' with '.join(first.pair)}"
            f" from {first.joint} {first.angle:.2f} rad on"
        )
    reasons = Counter(collision.ignored.values())
    ignored = ", ".join(f"{count} ({reason})" for reason, count in reasons.items())
    detail += f"; ignored pairs: {ignored}" if ignored else ""
    return Check("self-collision", True, detail)


# --- standing


def _feet(robot: Robot, model: mujoco.MjModel) -> Check:
    """Check that at home all foot points and shapes of feet are on the floor, and nothing else
    is."""
    data = _at(model, robot.home_qpos)
    bottoms = _feet_points(robot, data)[..., 2] - robot.foot_radius
    floor = model.geom("floor").id
    # height of each body's lowest colliding point [m]; inf where it has none
    low = dict.fromkeys(robot.body_names, np.inf)
    for geom in np.flatnonzero((model.geom_bodyid > 0) & (model.geom_conaffinity != 0)).tolist():
        body = model.body(model.geom_bodyid[geom]).name
        low[body] = min(low[body], mujoco.mj_geomDistance(model, data, floor, geom, 10.0, None))
    shapes = [low.pop(body) for body in robot.foot_bodies]
    points = f"points {1e3 * bottoms.min():.1f} to {_mm(bottoms.max())}"
    detail = f"at home: {points}, shapes {_mm(min(shapes))} to {_mm(max(shapes))}"
    other = min(low, key=lambda body: low[body])
    if low[other] <= 0:
        return Check(
            "feet", False, f"{detail}; '{other}' reaches {_mm(low[other])}, below the feet"
        )
    if not np.isfinite(max(shapes)):
        return Check("feet", False, "a foot has no shape that collides")
    rest = "nothing else collides"
    if np.isfinite(low[other]):
        rest = f"next lowest '{other}' at {_mm(low[other])}"
    good = bool(max(bottoms.max(), np.abs(shapes).max()) < FLAT_M)
    return Check("feet", good, f"{detail}; {rest}")


def _mm(metres: float) -> str:
    return f"{1e3 * metres:.1f} mm"


@dataclass(frozen=True)
class Standing:
    """The end of STAND_S of standing under a robot's gains, from home."""

    # "" where its feet, and nothing else, are on the floor
    problem: str
    # share of its height that the base sank
    sink: float = np.nan
    tilt_deg: float = np.nan
    drift_m: float = np.nan
    # fastest joint in the last quarter [rad/s]
    speed_rps: float = np.nan
    # largest share of a torque limit in the last quarter
    strain: float = np.nan


def stand(robot: Robot, *, held: bool = False) -> Standing:
    """Simulate standing. held: the base only moves vertically, so that legs need not balance."""
    model = model_of(robot, floor=True)
    data = _at(model, robot.home_qpos)
    data.ctrl[:] = robot.home_joints
    fastest = 0.0
    strained = 0.0
    steps = round(STAND_S * robot.physics_rate_hz)
    with quiet():
        for step in range(steps):
            mujoco.mj_step(model, data)
            if held:
                data.qpos[[0, 1, 3, 4, 5, 6]] = robot.home_qpos[[0, 1, 3, 4, 5, 6]]
                data.qvel[[0, 1, 3, 4, 5]] = 0.0
            if _diverged(data):
                seconds = step / robot.physics_rate_hz
                return Standing(f"the simulation diverges after {seconds:.2f} s")
            if step >= 0.75 * steps:
                load = np.abs(data.actuator_force) / robot.torque_limit
                fastest = max(fastest, float(np.abs(data.qvel[6:]).max()))
                strained = max(strained, float(load.max()))
    floor = model.geom("floor").id
    touching = {int(g) for contact in data.contact for g in contact.geom if floor in contact.geom}
    down = {model.body(model.geom_bodyid[g]).name for g in touching - {floor}}
    fallen = [f"'{body}' on the floor" for body in sorted(down - set(robot.foot_bodies))]
    aloft = [f"foot '{foot}' in the air" for foot in robot.foot_bodies if foot not in down]
    upright = np.clip(data.body(robot.body_names[0]).xmat[8], -1, 1)
    return Standing(
        problem=(fallen + aloft + [""])[0],
        sink=float((robot.home_qpos[2] - data.qpos[2]) / robot.home_qpos[2]),
        tilt_deg=float(np.degrees(np.arccos(upright))),
        drift_m=float(np.linalg.norm(data.qpos[:2])),
        speed_rps=fastest,
        strain=strained,
    )


def _diverged(data: mujoco.MjData) -> bool:
    bad = data.warning[mujoco.mjtWarning.mjWARN_BADQACC].number
    return bool(bad) or not np.all(np.isfinite(data.qpos))


def stands(robot: Robot) -> Check:
    """Check that the robot is on its feet and still after STAND_S, not much lower than home.

    A biped may need its base held: with the usual soft gains (Unitree's G1: 57 Nm/rad at both
    ankles, where 240 would balance it) a policy balances it.
    """
    free = _standing_check(robot, held=False)
    if free.passed or len(robot.foot_bodies) != 2:
        return free
    held = _standing_check(robot, held=True)
    if not held.passed:
        return free
    return replace(held, detail=f"{held.detail}; base held: it needs a policy to balance")


def _standing_check(robot: Robot, *, held: bool) -> Check:
    s = stand(robot, held=held)
    if np.isnan(s.sink):
        return Check("stands", False, s.problem)
    height = 1e3 * robot.home_qpos[2] * s.sink
    detail = (
        f"{STAND_S:g} s: base {-height:+.0f} mm ({-100 * s.sink:+.0f} %),"
        f" tilt {s.tilt_deg:.1f} deg, drift {1e3 * s.drift_m:.0f} mm,"
        f" joints {s.speed_rps:.2f} rad/s, at most {100 * s.strain:.0f} % of the torque limit"
    )
    if s.problem:
        return Check("stands", False, f"{detail}; {s.problem}")
    still = held or (s.drift_m < DRIFT_M and s.speed_rps < STILL_RPS)
    return Check("stands", abs(s.sink) < SINK and s.tilt_deg < TILT_DEG and still, detail)


def gains(robot: Robot) -> Check:
    """Check that in the air every joint returns from STEP_RAD off home (within its limits)."""
    model = model_of(robot, floor=False)
    home = robot.home_joints
    inwards = np.where(robot.joint_upper - home > home - robot.joint_lower, 1.0, -1.0)
    room = np.maximum(robot.joint_upper - home, home - robot.joint_lower)
    qpos = robot.home_qpos.copy()
    qpos[7:] = home + inwards * np.minimum(STEP_RAD, 0.5 * room)
    data = _at(model, qpos)
    data.ctrl[:] = home
    with quiet():
        mujoco.mj_step(model, data, round(STAND_S * robot.physics_rate_hz))
    if _diverged(data):
        return Check("gains", False, "the joints' control diverges at this physics rate")
    error = np.abs(data.qpos[7:] - home)
    # the error that dry friction may hold
    held = model.dof_frictionloss[6:] / robot.kp
    worst = int(np.argmax(error - held))
    fastest = float(np.abs(data.qvel[6:]).max())
    detail = (
        f"kp {span(robot.kp)}, kd {span(robot.kd)}, torque {span(robot.torque_limit)} Nm;"
        f" of {STEP_RAD:g} rad off home {error[worst]:.3f} rad remain ({robot.joint_names[worst]}),"
        f" {fastest:.2f} rad/s"
    )
    good = bool(error[worst] - held[worst] < SETTLED_RAD and fastest < STILL_RPS)
    damping = model.dof_damping[6:]
    undamped = np.flatnonzero(robot.kd + damping <= 0)
    if len(undamped):
        name = robot.joint_names[undamped[0]]
        kd = DAMPING_S * robot.kp[undamped[0]]
        hint = (
            f"{name} has kd 0 and no damping; try drives: kd: {kd:.2g} ({DAMPING_S:g} s times kp)"
        )
        return Check("gains", False, f"{detail}; {hint}")
    if not robot.kd.all():
        detail += f"; kd 0: only the joints' own damping of {span(damping)} Nm s/rad"
    return Check("gains", good, detail)


def torque_limits(robot: Robot) -> Check:
    """No torque limit is far above that of the robot's weight at the height of its base."""
    weight = 9.81 * float(robot.model(visuals=False).body_mass.sum()) / len(robot.foot_bodies)
    carried = weight * float(robot.home_qpos[2])
    largest = int(np.argmax(robot.torque_limit))
    ratio = float(robot.torque_limit[largest]) / carried
    detail = (
        f"at most {robot.torque_limit[largest]:.4g} Nm ({robot.joint_names[largest]}),"
        f" {ratio:.1f} times a leg's share of the weight at the base's height"
    )
    if ratio <= PLACEHOLDER:
        return Check("torque limits", True, detail)
    hint = (
        f"expected at most {PLACEHOLDER:g} times; is it a placeholder? See the maker's data sheet"
    )
    return Check("torque limits", False, f"{detail}; {hint}")


def span(values: Array | Sequence[float]) -> str:
    low = float(np.min(values)) + 0.0
    high = float(np.max(values)) + 0.0
    return f"{low:.4g}" if low == high else f"{low:.4g}..{high:.4g}"


# check -> keys of robot.yaml that it depends on
_KEYS = {
    "gains": ("drives",),
    "torque limits": ("drives",),
    "self-collision": ("ignore_collisions",),
    "stands": ("drives", "the joints' home"),
    "feet": ("feet", "the joints' home"),
    "joints": ("joints",),
    "markers": ("markers",),
    "rates": ("control_rate_hz", "physics_rate_hz"),
}


def edit_hint(failed: Sequence[str]) -> str:
    """The keys of robot.yaml that failing checks depend on, as a next step."""
    keys = (_KEYS.get(name, ("symmetries",) * name.startswith("symmetry")) for name in failed)
    entries = dict.fromkeys(itertools.chain(*keys))
    return f"edit there {', '.join(entries)}" if entries else "change the model itself"
