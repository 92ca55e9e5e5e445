"""kp, kd, torque limits and rotor inertia: the model's, else guessed joint by joint.

Legs carry the robot: one stiffness for all their joints, from its weight, raised until it stands.
Every other joint holds its subtree level with 0.1 rad of sag, at 5 Hz or more with its inertia at
home, critically damped. One stiffness for all would make wrists of 4e-4 kg m2 oscillate at 300 Hz,
too fast for the physics step.

Where the model has a torque limit, kp is half of it per radian, as usual for legged robots, and
raised for legs until they stand; other joints that would not hold their load become stiffer, up to
the full torque at 0.3 rad.

The rotors of ankles and wrists have more inertia than foot and hand. Without a value in the model
(armature 0) it is 1 kg m2 per 7,500 Nm of torque, within a factor of two of legged robots' drives,
where the limb's inertia is smaller; without it a flat foot rattles on the floor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray

from mocap_data.arrays import Array
from npmp.robots import check as checks
from npmp.robots.adapt import Drive
from npmp.robots.description import MODEL
from npmp.robots.model import posed
from npmp.robots.proposal.draft import Draft, pairs
from npmp.robots.proposal.shapes import end_of_leg
from npmp.robots.robot import Robot, build

# sag of a knee under the robot's weight [rad]; 0.14 for ANYmal B
_SAG_RAD = 0.1
# share of its height that the base may sink under guessed gains; ANYmal B's 0.05, a Go2's with its
# usual gains 0.24
_SINK = 0.12
# [m] that the base may drift
_DRIFT_M = 0.05
# [rad/s] natural frequency of joints off the legs
_OMEGA = 2 * np.pi * 5.0
# their torque limit over the torque that holds their load level
_RESERVE = 3.0
# [rad] deviation at which they reach their torque limit, if that is more
_STROKE_RAD = 0.5
# likewise of drives whose torque limit the model has: usual, and least
_SOFT_RAD = 2.0
_STIFF_RAD = 0.3
# sag of their load [rad]; their kd over kp [s]
_LOADED_RAD = 0.2
_SOFT_DAMPING_S = 0.05
# [1/s2] torque limit over rotor inertia
_TORQUE_PER_INERTIA = 7500.0
# multiples of the legs' guessed kp to try
_FACTORS = (1.0, 1.5, 2.5, 4.0)
_TOPICS = {
    "kp": ("kp", "Nm/rad"),
    "kd": ("kd", "Nm s/rad"),
    "torque_limit": ("torque limits", "Nm"),
}


@dataclass(frozen=True)
class Gains:
    """The inputs of the drives' proposal; (J,) arrays."""

    # the model's values
    own: tuple[Drive, ...]
    # joints with a torque limit in the model, and no kp
    rated: NDArray[np.bool_]
    # joints of legs
    legs: NDArray[np.bool_]
    # guessed [Nm/rad]
    kp: Array
    # about the joint at home, with the rotor [kg m2]
    inertia: Array
    # the model's [Nm s/rad]
    damping: Array


def choose_gains(draft: Draft, drives: Mapping[str, Drive], home: Array) -> Gains:
    """Write kp, kd, torque limits and, where the model needs it, armature to the draft."""
    own = [drives.get(name, Drive()) for name in draft.joint_names]
    weight = 9.81 * float(draft.model.body_mass.sum()) / len(draft.legs)
    pose = posed(draft.model, home)
    long = [draft.anchor(leg.joints[0])[2] - end_of_leg(draft, pose, leg)[2] for leg in draft.legs]
    knee = weight * float(np.mean(long))
    most = checks.PLACEHOLDER * knee
    placeholders = [limit for drive in own if (limit := drive.torque_limit or 0.0) > most]
    own = [replace(d, torque_limit=None) if (d.torque_limit or 0.0) > most else d for d in own]
    legs = np.isin(np.arange(len(own)), [joint for limb in draft.legs for joint in limb.joints])
    inertia, hold = (_evened(draft, load) for load in _loads(draft.model, home))
    kp = np.where(legs, 0.35 * knee / _SAG_RAD, np.maximum(hold / _SAG_RAD, inertia * _OMEGA**2))
    rated = np.array([0.0 if drive.kp else drive.torque_limit or 0.0 for drive in own])
    loaded = np.where(legs, 0.0, np.minimum(hold / _LOADED_RAD, rated / _STIFF_RAD))
    kp = np.where(rated > 0.0, np.maximum(rated / _SOFT_RAD, loaded), kp)
    guesses = np.where(legs, 1.5 * knee, np.maximum(_RESERVE * hold, _STROKE_RAD * kp))
    limits = np.array([d.torque_limit or guess for d, guess in zip(own, guesses, strict=True)])
    bare = (draft.model.dof_armature[6:] == 0) & np.array([not drive.kp for drive in own])
    rotors = limits / _TORQUE_PER_INERTIA * (bare & (limits > _TORQUE_PER_INERTIA * inertia))

    damping = np.array(draft.model.dof_damping[6:])
    gains = Gains(tuple(own), rated > 0.0, legs, kp, inertia + rotors, damping)
    draft.content["drives"] = {}
    _write_gains(draft, gains, 1.0)
    none = "the model gives none"
    if placeholders:
        none = f"the model's {checks.span(placeholders)} Nm is a placeholder"
    reason = f"{none}; 1.5 times a leg's share of the weight at a leg's length"
    off = "; off the legs 3 times what holds their load" * (not legs.all())
    _write(draft, gains, "torque_limit", limits, reason + off)
    if rotors.any():
        reason = (
            f"the model's rotors have no inertia; 1 kg m2 per {_TORQUE_PER_INERTIA:g} Nm where the"
            " limb has less"
        )
        draft.reasons["drives.armature"] = reason
        table = dict(zip(draft.joint_names, rotors, strict=True))
        draft.content["drives"]["armature"] = {
            name: _round2(rotor) if rotor else MODEL for name, rotor in table.items()
        }
        names = ", ".join(name for name, rotor in table.items() if rotor)
        draft.note("rotor inertia", f"{checks.span(rotors[rotors > 0])} kg m2: {names}", reason)
    return gains


def _loads(model: mujoco.MjModel, home: Array) -> tuple[Array, Array]:
    """(J,) inertia about each joint at home [kg m2], and the torque (J,) [Nm] that holds all that
    it carries level."""
    data = posed(model, home)
    mujoco.mj_forward(model, data)
    full = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, full)
    bodies = model.jnt_bodyid[1:]
    arms = np.linalg.norm(data.subtree_com[bodies] - data.xanchor[1:], axis=-1)
    return np.diag(full)[6:].copy(), 9.81 * model.body_subtreemass[bodies] * arms


def _evened(draft: Draft, values: Array) -> Array:
    """Values (J,) with those of left and right limbs averaged: they differ by rounding."""
    even = values.copy()
    for limbs in (draft.legs, draft.arms):
        for left, right in pairs(limbs):
            a = list(limbs[left].joints)
            b = list(limbs[right].joints)
            if len(a) == len(b):
                mean = 0.5 * (values[a] + values[b])
                even[a] = mean
                even[b] = mean
    return even


def _write_gains(draft: Draft, gains: Gains, factor: float) -> None:
    """Write kp and kd, with the legs' guessed kp times a factor."""
    kp = np.where(gains.legs, factor, 1.0) * gains.kp
    real = np.array([drive.kp or guess for drive, guess in zip(gains.own, kp, strict=True)])
    middle = np.median(gains.damping)
    damping = np.where(gains.legs, middle, gains.damping)
    kd = np.where(gains.legs, checks.DAMPING_S * real, 2 * np.sqrt(real * gains.inertia))
    kd = np.where(gains.rated, _SOFT_DAMPING_S * real, kd) - damping
    off = not gains.legs.all()
    reason = "no position actuators; carries the robot's weight with 0.1 rad at the knee"
    reason += f"; off the legs its load with {_SAG_RAD:g} rad, or 5 Hz" * off
    ratio_s = checks.DAMPING_S
    critical = "; off the legs critical damping" * off
    if gains.rated.all():
        reason = "no position actuators; half its torque limit per radian, more under larger loads"
        ratio_s = _SOFT_DAMPING_S
        critical = ""
    _write(draft, gains, "kp", kp, reason)
    reason = f"{ratio_s:g} s times kp, less the joints' own damping of {middle:g}"
    _write(draft, gains, "kd", np.maximum(kd, 0.0), reason + critical)


def _write(draft: Draft, gains: Gains, key: str, guesses: Array, reason: str) -> None:
    """Write one value of the drives: "model", a number, or one of these per joint."""
    topic, unit = _TOPICS[key]
    own = [getattr(drive, key) for drive in gains.own]
    draft.findings = [finding for finding in draft.findings if finding.topic != topic]
    if all(own):
        draft.content["drives"][key] = MODEL
        draft.note(topic, f"the model's, {checks.span(own)} {unit}")
        return
    figures = [value or _round2(guess) for value, guess in zip(own, guesses, strict=True)]
    entries = [MODEL if value else figure for value, figure in zip(own, figures, strict=True)]
    table = dict(zip(draft.joint_names, entries, strict=True))
    draft.content["drives"][key] = entries[0] if (len(set(map(str, entries))) == 1) else table
    draft.reasons[f"drives.{key}"] = reason
    draft.note(topic, f"{checks.span(figures)} {unit}", reason)


def _round2(value: float) -> float:
    """To two digits."""
    return float(f"{value:.2g}")


def raise_until_standing(draft: Draft, gains: Gains, where: Path) -> Robot:
    """Raise the legs' guessed gains until the robot stands. If it never does, gains from torque
    limits stay as guessed, others at the last factor."""
    robot = build(draft.robot_yaml(), where)
    if all(drive.kp for drive in gains.own):
        return robot
    for factor in _FACTORS:
        _write_gains(draft, gains, factor)
        robot = build(draft.robot_yaml(), where)
        result = checks.stand(robot)
        stands = result.problem == "" and result.sink < _SINK and result.drift_m < _DRIFT_M
        if stands and checks.gains(robot).passed:
            return robot
    if gains.rated[gains.legs].all():
        _write_gains(draft, gains, 1.0)
        robot = build(draft.robot_yaml(), where)
    return robot
