"""Rates, IMU, and the standing pose with the limits round it."""

from __future__ import annotations

from collections.abc import Callable

import mujoco
import numpy as np
from scipy.optimize import least_squares

from npmp.robots.adapt import posed
from npmp.robots.fields import FloatArray
from npmp.robots.proposal.draft import (
    Draft,
    Limb,
    anchor_of,
    axis_of,
    model_range,
    pitch_joints,
    short,
)
from npmp.robots.proposal.shapes import end_of_leg, is_round, sole_geoms

_VELOCITY = 15.0  # [rad/s]
_STRETCH = 0.9  # of a leg's length, standing


def choose_rates(draft: Draft, timestep: float) -> None:
    """Control at 50 Hz or the nearest to it that divides the physics rate."""
    physics = 1.0 / timestep
    if physics < 200 or physics > 2001:
        draft.content["physics_rate_hz"] = physics = 500.0
        draft.why["physics_rate_hz"] = (
            f"the model's {1 / timestep:g} Hz is unusual for legs in contact"
        )
    steps = max(1, round(physics / 50))
    control = physics / steps
    draft.content["control_rate_hz"] = round(control, 9)
    draft.why["control_rate_hz"] = (
        "50 Hz, as ANYmal" if abs(control - 50) < 1e-6 else "nearest to 50 Hz that divides physics"
    )
    draft.note(
        "rates", f"control {control:g} Hz, physics {physics:g} Hz", draft.why["control_rate_hz"]
    )


def find_imu(draft: Draft) -> None:
    sites = [draft.model.site(i).name for i in range(draft.model.nsite)]
    named = [site for site in sites if "imu" in site.lower()]
    if named:
        draft.content["imu_site"] = named[0]
        draft.note("imu", f"site {named[0]}")
        return
    root = draft.model.body(1).name
    draft.content["imu"] = {"body": root, "position": [0.0, 0.0, 0.0]}
    draft.why["imu"] = "the model has no site named imu; the root's origin"
    draft.note("imu", f"{root} origin", draft.why["imu"])


def choose_home(draft: Draft, key: FloatArray | None) -> FloatArray:
    """(J,) the standing pose: the model's keyframe, else knees bent and feet under the hips."""
    lower, upper = model_range(draft)
    if key is not None and np.ptp(key[7:]) > 0:
        joints = np.clip(np.round(key[7:], 6), lower, upper)
        draft.note("home", "the model's keyframe")
        return joints
    joints = _bent_legs(draft, lower, upper)
    draft.why["joints.home"] = "knees bent, feet under the hips"
    draft.note(
        "home",
        f"legs stretched to {100 * _STRETCH:.0f} % with the feet under the hips",
        draft.why["joints.home"],
    )
    return joints


def _bent_legs(draft: Draft, lower: FloatArray, upper: FloatArray) -> FloatArray:
    """Every leg stretched to _STRETCH of its length, its end under its hip, soles level; other
    joints nearest to zero."""
    joints = np.clip(np.zeros(len(lower)), lower, upper)
    shift = np.zeros(2)
    for _ in range(2):  # again, with the feet under the whole's centre of mass
        for limb in draft.legs:
            joints = _bent_leg(draft, limb, joints, lower, upper, shift)
        pose = posed(draft.model, joints)
        ends = np.mean([end_of_leg(draft, pose, limb)[:2] for limb in draft.legs], axis=0)
        shift = shift + [pose.subtree_com[1][0] - ends[0], 0.0]
    return np.round(_mirrored_home(draft, joints, lower, upper), 4)


def _bent_leg(
    draft: Draft,
    limb: Limb,
    joints: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    shift: FloatArray,
) -> FloatArray:
    index = np.array(limb.joints)
    bent = pitch_joints(draft, limb)
    hip = anchor_of(draft, bent[0] if bent else limb.joints[0])
    body = draft.model.body(limb.body).id
    level = draft.zero.xmat[body].reshape(3, 3)[2].copy()
    # the point that must be under the hip, fixed in the last body: what is lowest at zero
    start = posed(draft.model, np.clip(np.zeros(len(lower)), lower, upper))
    local = (end_of_leg(draft, start, limb) - start.xpos[body]) @ start.xmat[body].reshape(3, 3)
    sole = sole_geoms(draft.model, start, limb)[1]
    flat = len(sole) > 1 or not is_round(draft.model, sole[0])

    pose = posed(draft.model, joints)

    def end_of(values: FloatArray) -> tuple[FloatArray, FloatArray]:
        pose.qpos[7 + index] = values
        mujoco.mj_kinematics(draft.model, pose)
        turn = pose.xmat[body].reshape(3, 3)
        return pose.xpos[body] + turn @ local, turn

    low = np.maximum(lower[index], -2.6)
    high = np.minimum(upper[index], 2.6)
    longest = _longest(end_of, hip, low, high)

    def residual(values: FloatArray) -> FloatArray:
        end, turn = end_of(values)
        away = end - hip
        out = [4 * (away[0] - shift[0]), away[2] + _STRETCH * longest]
        sideways = [j for j in range(len(index)) if int(index[j]) not in bent]
        out += [0.3 * values[j] for j in sideways]
        if flat:
            out += list(2 * (turn[2] - level))
        return np.array([*out, *(0.003 * values)])

    solutions: list[tuple[float, FloatArray]] = []
    for sign in (1.0, -1.0):
        first = np.zeros(len(index))
        for k, joint in enumerate(bent[:3]):
            lateral = np.sign(axis_of(draft, joint)[1])
            first[list(index).index(joint)] = sign * lateral * (0.5, -1.0, 0.5)[k]
        found = least_squares(
            residual, np.clip(first, low + 1e-6, high - 1e-6), bounds=(low, high), max_nfev=60
        )
        cost = float(found.cost) + (
            0.0 if _knee_points_right(draft, limb, joints, found.x) else 1e-3
        )
        solutions.append((cost, found.x))
    best = min(solutions, key=lambda solution: solution[0])[1]
    out = joints.copy()
    out[index] = np.where(np.abs(best) < 2e-3, np.clip(0.0, low, high), best)
    return out


def _longest(
    end_of: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
    hip: FloatArray,
    low: FloatArray,
    high: FloatArray,
) -> float:
    """How far down a leg reaches, its end under its hip [m]."""

    def residual(values: FloatArray) -> FloatArray:
        away = end_of(values)[0] - hip
        return np.array([away[2] + 10.0, away[0]])

    starts = [np.clip(0.0 * low, low + 1e-6, high - 1e-6), 0.5 * (low + high)]
    found = [least_squares(residual, start, bounds=(low, high), max_nfev=30) for start in starts]
    return max(float(hip[2] - end_of(result.x)[0][2]) for result in found)


def _knee_points_right(draft: Draft, limb: Limb, joints: FloatArray, values: FloatArray) -> bool:
    """Knees of hind legs and of people point forward, of front legs backward."""
    bent = pitch_joints(draft, limb)
    if len(bent) < 2:
        return True
    trial = joints.copy()
    trial[list(limb.joints)] = values
    pose = posed(draft.model, trial)
    ahead = pose.xanchor[bent[1] + 1][0] - pose.xanchor[bent[0] + 1][0]
    return bool(ahead < 0) if limb.side.endswith("F") else bool(ahead > 0)


def _mirrored_home(
    draft: Draft, joints: FloatArray, lower: FloatArray, upper: FloatArray
) -> FloatArray:
    """The right legs' joints as the left ones', where chains are alike, so that rounding leaves no
    difference."""
    out = joints.copy()
    sides = {limb.side: limb for limb in draft.legs}
    for left, right in (("L", "R"), ("LF", "RF"), ("LH", "RH")):
        if left not in sides or len(sides[left].joints) != len(sides[right].joints):
            continue
        for a, b in zip(sides[left].joints, sides[right].joints, strict=True):
            image = -axis_of(draft, a) * [1, -1, 1]
            sign = np.sign(image @ axis_of(draft, b))
            out[b] = np.clip(sign * out[a], lower[b], upper[b])
    return out


def choose_limits(draft: Draft, home: FloatArray) -> None:
    lower, upper = model_range(draft)
    knees = {
        pitch_joints(draft, limb)[1] for limb in draft.legs if len(pitch_joints(draft, limb)) > 1
    }
    table: dict[str, dict[str, float]] = {}
    open_joints = []
    for i, name in enumerate(draft.joint_names):
        low, high = float(lower[i]), float(upper[i])
        if not (np.isfinite(low) and np.isfinite(high)):
            open_joints.append(name)
            draft.why[f"joints.{name}"] = "limits: the model gives none"
            reach = 1.2 if abs(axis_of(draft, i)[1]) > 0.7 else 0.7
            low, high = float(home[i]) - reach, float(home[i]) + reach
            if i in knees and abs(home[i]) > 0.1:  # a knee bends to one side only
                low, high = (0.05, 2.6) if home[i] > 0 else (-2.6, -0.05)
        table[name] = {
            "home": short(float(home[i])),
            "lower": short(min(low, float(home[i]))),
            "upper": short(max(high, float(home[i]))),
            "velocity": _VELOCITY,
        }
    draft.content["joints"] = table
    draft.why["joints.velocity"] = "15 rad/s, ANYmal B's; the maker's data sheet says"
    if open_joints:
        some = ", ".join(open_joints[:4]) + (" ..." if len(open_joints) > 4 else "")
        draft.note(
            "limits",
            f"{len(open_joints)} joints have none: {some}",
            "round home; knees to one side",
        )
    else:
        draft.note("limits", "the model's")
    draft.note("speed limits", f"{_VELOCITY:g} rad/s", draft.why["joints.velocity"])
