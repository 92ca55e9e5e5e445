"""Rates, IMU, and the standing pose with the limits round it."""

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
# of a leg's length, standing
_STRETCH = 0.9


def choose_rates(draft: Draft, timestep: float) -> None:
    """Control at 50 Hz or the nearest to it that divides the physics rate."""
    physics = 1.0 / timestep
    if physics < 200 or physics > 2001:
        draft.why["physics_rate_hz"] = f"the model's {physics:g} Hz is unusual for legs in contact"
        draft.content["physics_rate_hz"] = physics = 500.0
    control = physics / max(1, round(physics / 50))
    draft.content["control_rate_hz"] = round(control, 9)
    near = "nearest to 50 Hz that divides physics"
    why = draft.why["control_rate_hz"] = "50 Hz, as ANYmal" if abs(control - 50) < 1e-6 else near
    draft.note("rates", f"control {control:g} Hz, physics {physics:g} Hz", why)


def find_imu(draft: Draft) -> None:
    sites = [draft.model.site(i).name for i in range(draft.model.nsite)]
    if named := [site for site in sites if "imu" in site.lower()]:
        draft.content["imu_site"] = named[0]
        draft.note("imu", f"site {named[0]}")
        return
    draft.content["imu"] = {"body": draft.root, "position": [0.0, 0.0, 0.0]}
    draft.why["imu"] = "the model has no site named imu; the root's origin"
    draft.note("imu", f"{draft.root} origin", draft.why["imu"])


def choose_home(draft: Draft, key: Array | None) -> Array:
    """(J,) the standing pose: the model's keyframe, else knees bent and feet under the hips."""
    lower, upper = draft.ranges()
    if key is not None and np.ptp(key[7:]) > 0:
        draft.note("home", "the model's keyframe")
        return np.clip(np.round(key[7:], 6), lower, upper)
    why = draft.why["joints.home"] = "knees bent, feet under the hips"
    value = f"legs stretched to {100 * _STRETCH:.0f} % with the feet under the hips"
    draft.note("home", value, why)
    joints = np.clip(np.zeros(len(lower)), lower, upper)
    shift = np.zeros(2)
    for _ in range(2):  # again, with the feet under the whole's centre of mass
        for limb in draft.legs:
            joints = _bend(draft, limb, joints, shift)
        pose = posed(draft.model, joints)
        ends = np.mean([end_of_leg(draft, pose, limb)[:2] for limb in draft.legs], axis=0)
        shift = shift + [pose.subtree_com[1][0] - ends[0], 0.0]
    # right legs as left ones where chains are alike, so that rounding leaves no difference
    for left, right in pairs(draft.legs):
        limbs = draft.legs[left].joints, draft.legs[right].joints
        for a, b in zip(*limbs, strict=True) if len(limbs[0]) == len(limbs[1]) else ():
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
    # the point that must be under the hip, fixed in the last body: what is lowest at zero
    start = posed(model, np.clip(np.zeros(len(lower)), lower, upper))
    local = (end_of_leg(draft, start, limb) - start.xpos[body]) @ start.xmat[body].reshape(3, 3)
    sole = sole_geoms(model, start, limb)[1]
    # without an ankle no sole stays level
    ankle = len(bent) > 2
    flat = ankle and (len(sole) > 1 or not is_round(model, sole[0]))
    pose = posed(model, joints)

    def end_of(values: Array) -> tuple[Array, Array]:
        pose.qpos[7 + index] = values
        mujoco.mj_kinematics(model, pose)
        turn = pose.xmat[body].reshape(3, 3)
        return pose.xpos[body] + turn @ local, turn

    low, high = np.maximum(lower[index], -2.6), np.minimum(upper[index], 2.6)
    longest = _longest(lambda values: end_of(values)[0] - hip, low, high)

    def residual(values: Array) -> Array:
        end, turn = end_of(values)
        away = end - hip
        out = [4 * (away[0] - shift[0]), away[2] + _STRETCH * longest]
        out += [0.3 * value for j, value in zip(limb.joints, values, strict=True) if j not in bent]
        if flat:
            out += list(2 * (turn[2] - level))
        return np.array([*out, *(0.003 * values)])

    solutions: list[tuple[float, Array]] = []
    for sign in (1.0, -1.0):
        first = np.zeros(len(index))
        for angle, joint in zip((0.5, -1.0, 0.5), bent, strict=False):
            first[limb.joints.index(joint)] = sign * np.sign(draft.axis(joint)[1]) * angle
        inside = np.clip(first, low + 1e-6, high - 1e-6)
        fit = least_squares(residual, inside, bounds=(low, high), max_nfev=60)
        right = _knee_points_right(draft, limb, joints, fit.x)
        solutions.append((float(fit.cost) + (0.0 if right else 1e-3), fit.x))
    best = min(solutions, key=lambda solution: solution[0])[1]
    out = joints.copy()
    out[index] = np.where(np.abs(best) < 2e-3, np.clip(0.0, low, high), best)
    return out


def _longest(away_of: Callable[[Array], Array], low: Array, high: Array) -> float:
    """How far down a leg reaches, its end under its hip [m]."""

    def residual(values: Array) -> Array:
        away = away_of(values)
        return np.array([away[2] + 10.0, away[0]])

    starts = [np.clip(0.0 * low, low + 1e-6, high - 1e-6), 0.5 * (low + high)]
    fits = [least_squares(residual, start, bounds=(low, high), max_nfev=30) for start in starts]
    return max(float(-away_of(result.x)[2]) for result in fits)


def _knee_points_right(draft: Draft, limb: LimbChain, joints: Array, values: Array) -> bool:
    """Knees of hind legs and of people point forward, of front legs backward."""
    bent = draft.pitching(limb)
    if len(bent) < 2:
        return True
    trial = joints.copy()
    trial[list(limb.joints)] = values
    pose = posed(draft.model, trial)
    ahead = pose.xanchor[bent[1] + 1][0] - pose.xanchor[bent[0] + 1][0]
    return bool(ahead < 0) if limb.side.endswith("F") else bool(ahead > 0)


def choose_limits(draft: Draft, home: Array) -> None:
    knees = {draft.pitching(limb)[1] for limb in draft.legs if len(draft.pitching(limb)) > 1}
    speeds = joint_speeds(draft.mjcf)
    table = draft.content["joints"] = {}
    unlimited = []
    for i, (name, low, high) in enumerate(zip(draft.joint_names, *draft.ranges(), strict=True)):
        if not (np.isfinite(low) and np.isfinite(high)):
            unlimited.append(name)
            draft.why[f"joints.{name}"] = "limits: the model gives none"
            width = 1.2 if abs(draft.axis(i)[1]) > 0.7 else 0.7
            low, high = home[i] - width, home[i] + width
            if i in knees and abs(home[i]) > 0.1:  # a knee bends to one side only
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
        draft.note("limits", value, "round home; knees to one side")
    else:
        draft.note("limits", "the model's")
    if speeds.keys() >= table.keys():
        draft.note("speed limits", "the model's")
        return
    why = draft.why["joints.velocity"] = "15 rad/s, ANYmal B's; the maker's data sheet says"
    draft.note("speed limits", f"{_VELOCITY:g} rad/s", why)
