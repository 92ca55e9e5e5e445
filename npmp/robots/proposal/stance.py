"""Rates, IMU, and the standing pose with its limits."""

from __future__ import annotations

from collections.abc import Callable

import mujoco
import numpy as np
from scipy.optimize import least_squares

from mocap_data.arrays import Array
from npmp.robots.model import joint_speeds, posed
from npmp.robots.proposal.draft import Draft, LimbChain, pairs, short
from npmp.robots.proposal.shapes import end_of_leg, is_round, sole_geoms

# [rad/s]
_VELOCITY = 15.0
# share of a leg's length while standing
_STRETCH = 0.9


def choose_rates(draft: Draft, timestep: float) -> None:
    """Write a control rate of 50 Hz, or the nearest that divides the physics rate."""
    physics = 1.0 / timestep
    if physics < 200 or physics > 2001:
        reason = f"the model's {physics:g} Hz is unusual for legs in contact"
        draft.reasons["physics_rate_hz"] = reason
        physics = 500.0
        draft.content["physics_rate_hz"] = physics
    control = physics / max(1, round(physics / 50))
    draft.content["control_rate_hz"] = round(control, 9)
    reason = "50 Hz, as ANYmal"
    if abs(control - 50) >= 1e-6:
        reason = "nearest to 50 Hz that divides physics"
    draft.reasons["control_rate_hz"] = reason
    draft.note("rates", f"control {control:g} Hz, physics {physics:g} Hz", reason)


def find_imu(draft: Draft) -> None:
    """Write the IMU's site, or its place on the root."""
    sites = [draft.model.site(i).name for i in range(draft.model.nsite)]
    if named := [site for site in sites if "imu" in site.lower()]:
        draft.content["imu_site"] = named[0]
        draft.note("imu", f"site {named[0]}")
        return
    draft.content["imu"] = {"body": draft.root, "position": [0.0, 0.0, 0.0]}
    reason = "the model has no site named imu; the root's origin"
    draft.reasons["imu"] = reason
    draft.note("imu", f"{draft.root} origin", reason)


def choose_home(draft: Draft, key: Array | None) -> Array:
    """(J,) the standing pose: the model's keyframe, else knees bent and feet under the hips."""
    lower, upper = draft.ranges()
    if key is not None and np.ptp(key[7:]) > 0:
        draft.note("home", "the model's keyframe")
        return np.clip(np.round(key[7:], 6), lower, upper)
    reason = "knees bent, feet under the hips"
    draft.reasons["joints.home"] = reason
    value = f"legs stretched to {100 * _STRETCH:.0f} % with the feet under the hips"
    draft.note("home", value, reason)
    joints = np.clip(np.zeros(len(lower)), lower, upper)
    shift = np.zeros(2)
    # the second time with the feet under the robot's centre of mass
    for _ in range(2):
        for limb in draft.legs:
            joints = _bend(draft, limb, joints, shift)
        pose = posed(draft.model, joints)
        ends = np.mean([end_of_leg(draft, pose, limb)[:2] for limb in draft.legs], axis=0)
        shift = shift + [pose.subtree_com[1][0] - ends[0], 0.0]
    # right legs as the images of left ones, without differences by rounding
    for left, right in pairs(draft.legs):
        left_joints = draft.legs[left].joints
        right_joints = draft.legs[right].joints
        if len(left_joints) != len(right_joints):
            continue
        for a, b in zip(left_joints, right_joints, strict=True):
            sign = np.sign(-draft.axis(a) * [1, -1, 1] @ draft.axis(b))
            joints[b] = np.clip(sign * joints[a], lower[b], upper[b])
    return np.round(joints, 4)


def _bend(draft: Draft, limb: LimbChain, joints: Array, shift: Array) -> Array:
    """A leg stretched to _STRETCH of its length, its end under its hip, its sole level; other
    joints nearest to zero."""
    model = draft.model
    index = np.array(limb.joints)
    bent = draft.pitching(limb)
    lower, upper = draft.ranges()
    hip = draft.anchor(bent[0] if bent else limb.joints[0])
    body = model.body(limb.body).id
    level = draft.zero.xmat[body].reshape(3, 3)[2].copy()
    # the point that must be under the hip, fixed in the last body: the lowest one at zero
    start = posed(model, np.clip(np.zeros(len(lower)), lower, upper))
    local = (end_of_leg(draft, start, limb) - start.xpos[body]) @ start.xmat[body].reshape(3, 3)
    sole = sole_geoms(model, start, limb)[1]
    # only an ankle can keep the sole level
    ankle = len(bent) > 2
    flat = ankle and (len(sole) > 1 or not is_round(model, sole[0]))
    pose = posed(model, joints)

    def end_of(values: Array) -> tuple[Array, Array]:
        pose.qpos[7 + index] = values
        mujoco.mj_kinematics(model, pose)
        turn = pose.xmat[body].reshape(3, 3)
        return pose.xpos[body] + turn @ local, turn

    low = np.maximum(lower[index], -2.6)
    high = np.minimum(upper[index], 2.6)
    longest = _longest(lambda values: end_of(values)[0] - hip, low, high)

    def residual(values: Array) -> Array:
        end, turn = end_of(values)
        from_hip = end - hip
        errors = [4 * (from_hip[0] - shift[0]), from_hip[2] + _STRETCH * longest]
        errors += [0.3 * v for j, v in zip(limb.joints, values, strict=True) if j not in bent]
        if flat:
            errors += list(2 * (turn[2] - level))
        return np.array([*errors, *(0.003 * values)])

    solutions: list[tuple[float, Array]] = []
    for sign in (1.0, -1.0):
        first = np.zeros(len(index))
        for angle, joint in zip((0.5, -1.0, 0.5), bent, strict=False):
            first[limb.joints.index(joint)] = sign * np.sign(draft.axis(joint)[1]) * angle
        inside = np.clip(first, low + 1e-6, high - 1e-6)
        fit = least_squares(residual, inside, bounds=(low, high), max_nfev=60)
        natural = _bends_naturally(draft, limb, joints, fit.x)
        solutions.append((float(fit.cost) + (0.0 if natural else 1e-3), fit.x))
    best = min(solutions, key=lambda solution: solution[0])[1]
    bent_joints = joints.copy()
    bent_joints[index] = np.where(np.abs(best) < 2e-3, np.clip(0.0, low, high), best)
    return bent_joints


def _longest(from_hip: Callable[[Array], Array], low: Array, high: Array) -> float:
    """The distance [m] that a leg's end reaches below its hip."""

    def residual(values: Array) -> Array:
        end = from_hip(values)
        return np.array([end[2] + 10.0, end[0]])

    starts = [np.clip(0.0 * low, low + 1e-6, high - 1e-6), 0.5 * (low + high)]
    fits = [least_squares(residual, start, bounds=(low, high), max_nfev=30) for start in starts]
    return max(float(-from_hip(fit.x)[2]) for fit in fits)


def _bends_naturally(draft: Draft, limb: LimbChain, joints: Array, values: Array) -> bool:
    """Whether the knee of a hind or human leg points forward, of a front leg backward."""
    bent = draft.pitching(limb)
    if len(bent) < 2:
        return True
    trial = joints.copy()
    trial[list(limb.joints)] = values
    pose = posed(draft.model, trial)
    ahead = pose.xanchor[bent[1] + 1][0] - pose.xanchor[bent[0] + 1][0]
    return bool(ahead < 0) if limb.side.endswith("F") else bool(ahead > 0)


def choose_limits(draft: Draft, home: Array) -> None:
    """Write the joints' home, position limits and speed limits."""
    knees = {draft.pitching(limb)[1] for limb in draft.legs if len(draft.pitching(limb)) > 1}
    speeds = joint_speeds(draft.mjcf)
    table = draft.content["joints"] = {}
    unlimited = []
    for i, (name, low, high) in enumerate(zip(draft.joint_names, *draft.ranges(), strict=True)):
        if not (np.isfinite(low) and np.isfinite(high)):
            unlimited.append(name)
            draft.reasons[f"joints.{name}"] = "limits: the model has none"
            width = 1.2 if abs(draft.axis(i)[1]) > 0.7 else 0.7
            low = home[i] - width
            high = home[i] + width
            # a knee bends to one side only
            if i in knees and abs(home[i]) > 0.1:
                low, high = (0.05, 2.6) if home[i] > 0 else (-2.6, -0.05)
        table[name] = {
            "home": short(home[i]),
            "lower": short(min(low, home[i])),
            "upper": short(max(high, home[i])),
            "velocity": speeds.get(name, _VELOCITY),
        }
    if unlimited:
        first = ", ".join(unlimited[:4]) + " ..." * (len(unlimited) > 4)
        value = f"{len(unlimited)} joints have none: {first}"
        draft.note("limits", value, "around home; knees to one side")
    else:
        draft.note("limits", "the model's")
    if speeds.keys() >= table.keys():
        draft.note("speed limits", "the model's")
        return
    reason = "15 rad/s, ANYmal B's; see the maker's data sheet"
    draft.reasons["joints.velocity"] = reason
    draft.note("speed limits", f"{_VELOCITY:g} rad/s", reason)
