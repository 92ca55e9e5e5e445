"""kp, kd, torque limits and rotor inertia: the model's, else guessed joint by joint.

Legs carry the robot: one stiffness for all their joints, from its weight, raised until it stands.
Every other joint carries what hangs on it: stiff enough to hold that out with 0.1 rad of sag, and
for 5 Hz with its inertia at home, critically damped. One stiffness for all would make wrists of
4e-4 kg m2 ring at 300 Hz, which no physics step follows.

Where the model says what a drive can give, it is as soft as users of legged robots run theirs: half
its torque per radian, the legs raised until they stand; what would not hold its load so becomes
stiffer, up to the whole torque at 0.3 rad. A waist of 820 Nm/rad is nobody's.

Drives turn a rotor through a gear, and at ankle and wrist that weighs more than foot and hand. A
model that says nothing of it (armature 0) gets 1 kg m2 per 7,500 Nm of torque, as drives of legged
robots have within a factor of two, where its own inertia is smaller than that; without it a flat
foot rattles on the floor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray

from mocap_data.arrays import Array
from npmp.robots import check as contract
from npmp.robots.adapt import Drive
from npmp.robots.description import MODEL
from npmp.robots.model import posed
from npmp.robots.proposal.draft import Draft, pairs
from npmp.robots.proposal.shapes import end_of_leg
from npmp.robots.robot import Robot, build

# that a knee may give under the robot's weight; ANYmal B's gives 0.14
_SAG_RAD = 0.1
# share of its height that the base may sink under guessed gains; ANYmal B's 0.05, the Go2's as its
# users run it 0.24
_SINK = 0.12
# [m] likewise that it may drift
_DRIFT_M = 0.05
# [rad/s] natural frequency of joints that carry no robot
_OMEGA = 2 * np.pi * 5.0
# torque of such joints, times what holds their load out
_RESERVE = 3.0
# deviation at which they are at their torque limit, if that is more
_STROKE_RAD = 0.5
# likewise of drives whose torque the model says: the usual, and the least
_SOFT_RAD = 2.0
_STIFF_RAD = 0.3
# that their load may make joints off the legs give [rad]; their kd over kp [s]
_LOADED_RAD = 0.2
_SOFT_DAMPING_S = 0.05
# [1/s2] torque limit over rotor inertia
_TORQUE_PER_INERTIA = 7500.0
# of the legs' guessed kp, tried in turn
_FACTORS = (1.0, 1.5, 2.5, 4.0)
_TOPICS = {
    "kp": ("kp", "Nm/rad"),
    "kd": ("kd", "Nm s/rad"),
    "torque_limit": ("torque limits", "Nm"),
}


@dataclass(frozen=True)
class Gains:
    """What the joints' drives are proposed from; (J,) arrays."""

    # what the model says
    own: tuple[Drive, ...]
    # whose torque the model says, and no kp
    rated: NDArray[np.bool_]
    # of a leg
    legs: NDArray[np.bool_]
    # guessed [Nm/rad]
    kp: Array
    # about the joint at home, rotor included [kg m2]
    inertia: Array
    # the model's [Nm s/rad]
    damping: Array


def choose_gains(draft: Draft, drives: Mapping[str, Drive], home: Array) -> Gains:
    """kp, kd and torque limits: the model's where it says, else guessed; armature where the model
    needs one."""
    own = [drives.get(name, Drive()) for name in draft.joint_names]
    weight = 9.81 * float(draft.model.body_mass.sum()) / len(draft.legs)
    pose = posed(draft.model, home)
    long = [draft.anchor(leg.joints[0])[2] - end_of_leg(draft, pose, leg)[2] for leg in draft.legs]
    knee = weight * float(np.mean(long))
    most = contract.PLACEHOLDER * knee
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
        none = f"the model's {contract.span(placeholders)} Nm is a placeholder"
    why = f"{none}; 1.5 times a leg's share of the weight at a leg's length"
    off = "; off the legs 3 times what holds their load" * (not legs.all())
    _write(draft, gains, "torque_limit", limits, why + off)
    if rotors.any():
        why = draft.why["drives.armature"] = (
            f"the model's rotors weigh nothing; 1 kg m2 per {_TORQUE_PER_INERTIA:g} Nm where the"
            " limb weighs less"
        )
        table = dict(zip(draft.joint_names, rotors, strict=True))
        draft.content["drives"]["armature"] = {
            name: _round2(rotor) if rotor else MODEL for name, rotor in table.items()
        }
        names = ", ".join(name for name, rotor in table.items() if rotor)
        draft.note("rotor inertia", f"{contract.span(rotors[rotors > 0])} kg m2: {names}", why)
    return gains


def _loads(model: mujoco.MjModel, home: Array) -> tuple[Array, Array]:
    """(J,) inertia about each joint at home [kg m2], and (J,) the torque that holds what hangs on
    it out level [Nm]."""
    data = posed(model, home)
    mujoco.mj_forward(model, data)
    full = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, full)
    bodies = model.jnt_bodyid[1:]
    arms = np.linalg.norm(data.subtree_com[bodies] - data.xanchor[1:], axis=-1)
    return np.diag(full)[6:].copy(), 9.81 * model.body_subtreemass[bodies] * arms


def _evened(draft: Draft, values: Array) -> Array:
    """The same for limbs left and right, whose inertia differs by rounding: gains must not."""
    out = values.copy()
    for limbs in (draft.legs, draft.arms):
        for left, right in pairs(limbs):
            a, b = list(limbs[left].joints), list(limbs[right].joints)
            if len(a) == len(b):
                out[a] = out[b] = 0.5 * (values[a] + values[b])
    return out


def _write_gains(draft: Draft, gains: Gains, factor: float) -> None:
    """kp and kd, the legs' guessed ones multiplied."""
    kp = np.where(gains.legs, factor, 1.0) * gains.kp
    real = np.array([drive.kp or guess for drive, guess in zip(gains.own, kp, strict=True)])
    middle = np.median(gains.damping)
    damping = np.where(gains.legs, middle, gains.damping)
    kd = np.where(gains.legs, contract.DAMPING_S * real, 2 * np.sqrt(real * gains.inertia))
    kd = np.where(gains.rated, _SOFT_DAMPING_S * real, kd) - damping
    off = not gains.legs.all()
    why = "no position actuators; carries the robot's weight with 0.1 rad at the knee"
    why += f"; off the legs its load with {_SAG_RAD:g} rad, or 5 Hz" * off
    share = contract.DAMPING_S
    critical = "; off the legs critical damping" * off
    if gains.rated.all():
        why = "no position actuators; half its torque limit per radian, more where that gives way"
        share = _SOFT_DAMPING_S
        critical = ""
    _write(draft, gains, "kp", kp, why)
    why = f"{share:g} s times kp, less the joints' own damping of {middle:g}"
    _write(draft, gains, "kd", np.maximum(kd, 0.0), why + critical)


def _write(draft: Draft, gains: Gains, key: str, guesses: Array, why: str) -> None:
    """One of the drives' figures and what is said of it: the model's; a number; or one a joint,
    some the model's."""
    topic, unit = _TOPICS[key]
    own = [getattr(drive, key) for drive in gains.own]
    draft.findings = [finding for finding in draft.findings if finding.topic != topic]
    if all(own):
        draft.content["drives"][key] = MODEL
        draft.note(topic, f"the model's, {contract.span(own)} {unit}")
        return
    figures = [value or _round2(guess) for value, guess in zip(own, guesses, strict=True)]
    entries = [MODEL if value else figure for value, figure in zip(own, figures, strict=True)]
    table = dict(zip(draft.joint_names, entries, strict=True))
    draft.content["drives"][key] = entries[0] if (len(set(map(str, entries))) == 1) else table
    draft.why[f"drives.{key}"] = why
    draft.note(topic, f"{contract.span(figures)} {unit}", why)


def _round2(value: float) -> float:
    """Two figures."""
    return float(f"{value:.2g}")


def strong_enough(draft: Draft, gains: Gains, where: Path) -> Robot:
    """Raise the legs' guessed gains until the robot stands; soft drives, with which none stands
    alone, stay as they are. Without such the last that was tried."""
    robot = build(draft.robot_yaml(), where)
    if all(drive.kp for drive in gains.own):
        return robot
    for factor in _FACTORS:
        _write_gains(draft, gains, factor)
        robot = build(draft.robot_yaml(), where)
        standing = contract.stand(robot)
        stood = standing.problem == "" and standing.sink < _SINK and standing.drift_m < _DRIFT_M
        if stood and contract.gains(robot).passed:
            return robot
    if gains.rated[gains.legs].all():
        _write_gains(draft, gains, 1.0)
        robot = build(draft.robot_yaml(), where)
    return robot
