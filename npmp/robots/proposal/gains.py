"""kp, kd, torque limits and rotor inertia: the model's, else guessed joint by joint.

Legs carry the robot: one stiffness for all their joints, from its weight, raised until it stands.
Every other joint carries what hangs on it: stiff enough to hold that out with 0.1 rad of sag, and
for 5 Hz with its inertia at home, critically damped. One stiffness for all would make wrists of
4e-4 kg m2 ring at 300 Hz, which no physics step follows.

Drives turn a rotor through a gear, and that weighs more at ankle and wrist than foot and hand do. A
model that says nothing of it (armature 0) gets 1 kg m2 per 7,500 Nm of torque, as drives of legged
robots have within a factor of two, where its own inertia is smaller than that; without it a flat
foot rattles on the floor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np
from numpy.typing import NDArray

from npmp.robots import check as contract
from npmp.robots.adapt import Drive, posed
from npmp.robots.fields import FloatArray
from npmp.robots.proposal.draft import Draft, anchor_of, content_of
from npmp.robots.proposal.shapes import end_of_leg
from npmp.robots.robot import Robot, build

_SAG_RAD = 0.1  # that a knee may give under the robot's weight; ANYmal B's gives 0.14
_SINK = 0.07  # share of its height that the base may sink under guessed gains; ANYmal B's 0.05
_DAMPING_S = 0.024  # kd over kp of legs: ANYmal B's
_OMEGA = 2 * np.pi * 5.0  # [rad/s] natural frequency of joints that carry no robot
_RESERVE = 3.0  # torque of such joints, times what holds their load out
_STROKE_RAD = 0.5  # deviation at which they are at their torque limit, if that is more
_TORQUE_PER_INERTIA = 7500.0  # [1/s2] torque limit over rotor inertia
_FACTORS = (1.0, 1.5, 2.5, 4.0)  # of the legs' guessed kp, tried in turn


@dataclass(frozen=True)
class Gains:
    """What the joints' drives are proposed from; (J,) arrays."""

    own: tuple[Drive, ...]  # what the model says
    legs: NDArray[np.bool_]  # of a leg
    kp: FloatArray  # guessed [Nm/rad]
    inertia: FloatArray  # about the joint at home, rotor included [kg m2]
    damping: FloatArray  # the model's [Nm s/rad]


def choose_gains(draft: Draft, drives: Mapping[str, Drive], home: FloatArray) -> Gains:
    """kp, kd and torque limits: the model's where it says, else guessed; armature where the model
    needs one."""
    own = tuple(drives.get(name, Drive()) for name in draft.joint_names)
    weight = 9.81 * float(draft.model.body_mass.sum()) / len(draft.legs)
    pose = posed(draft.model, home)
    length = float(
        np.mean(
            [
                anchor_of(draft, limb.joints[0])[2] - end_of_leg(draft, pose, limb)[2]
                for limb in draft.legs
            ]
        )
    )
    legs = np.isin(np.arange(len(own)), [joint for limb in draft.legs for joint in limb.joints])
    inertia, hold = (_evened(draft, load) for load in _loads(draft.model, home))
    kp = np.where(
        legs, 0.35 * weight * length / _SAG_RAD, np.maximum(hold / _SAG_RAD, inertia * _OMEGA**2)
    )
    limits = np.where(legs, 1.5 * weight * length, np.maximum(_RESERVE * hold, _STROKE_RAD * kp))
    limits = np.array(
        [drive.torque_limit or limit for drive, limit in zip(own, limits, strict=True)]
    )

    bare = (draft.model.dof_armature[6:] == 0) & np.array([not drive.kp for drive in own])
    rotors = np.where(
        bare & (limits > _TORQUE_PER_INERTIA * inertia), limits / _TORQUE_PER_INERTIA, 0.0
    )
    gains = Gains(own, legs, kp, inertia + rotors, np.array(draft.model.dof_damping[6:]))
    draft.content["drives"] = {}
    _write_gains(draft, gains, 1.0)
    why = "the model gives none; 1.5 times a leg's share of the weight at a leg's length"
    _write(
        draft,
        gains,
        "torque_limit",
        limits,
        why + "; off the legs 3 times what holds their load" * (not legs.all()),
    )
    if rotors.any():
        why = f"the model's rotors weigh nothing; 1 kg m2 per {_TORQUE_PER_INERTIA:g} Nm where the limb weighs less"
        draft.why["drives.armature"] = why
        entries = [_round2(rotor) if rotor else "model" for rotor in rotors]
        draft.content["drives"]["armature"] = dict(zip(draft.joint_names, entries, strict=True))
        some = ", ".join(
            name for name, rotor in zip(draft.joint_names, rotors, strict=True) if rotor
        )
        draft.note("rotor inertia", f"{contract.span(rotors[rotors > 0])} kg m2: {some}", why)
    return gains


def _loads(model: mujoco.MjModel, home: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(J,) inertia about each joint at home [kg m2], and (J,) the torque that holds what hangs on
    it out level [Nm]."""
    data = posed(model, home)
    mujoco.mj_forward(model, data)
    full = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, full)
    bodies = model.jnt_bodyid[1:]
    levers = np.linalg.norm(data.subtree_com[bodies] - data.xanchor[1:], axis=-1)
    return np.diag(full)[6:].copy(), 9.81 * model.body_subtreemass[bodies] * levers


def _evened(draft: Draft, values: FloatArray) -> FloatArray:
    """The same for limbs left and right, whose inertia differs by rounding: gains must not."""
    out = values.copy()
    for limbs in (draft.legs, draft.arms):
        sides = {limb.side: limb.joints for limb in limbs}
        for left, right in (("L", "R"), ("LF", "RF"), ("LH", "RH")):
            if left in sides and right in sides and len(sides[left]) == len(sides[right]):
                a, b = list(sides[left]), list(sides[right])
                out[a] = out[b] = 0.5 * (values[a] + values[b])
    return out


def _write_gains(draft: Draft, gains: Gains, factor: float) -> None:
    """kp and kd, the legs' guessed ones multiplied."""
    kp = np.where(gains.legs, factor, 1.0) * gains.kp
    real = np.array([drive.kp or guess for drive, guess in zip(gains.own, kp, strict=True)])
    damping = np.where(gains.legs, np.median(gains.damping), gains.damping)
    kd = np.where(gains.legs, _DAMPING_S * real, 2 * np.sqrt(real * gains.inertia)) - damping
    off = not gains.legs.all()
    why = "no position actuators; carries the robot's weight with 0.1 rad at the knee"
    _write(
        draft,
        gains,
        "kp",
        kp,
        why + f"; off the legs its load with {_SAG_RAD:g} rad, or 5 Hz" * off,
    )
    why = f"0.024 s times kp, less the joints' own damping of {np.median(gains.damping):g}"
    _write(draft, gains, "kd", np.maximum(kd, 0.0), why + "; off the legs critical damping" * off)


_TOPICS = {
    "kp": ("kp", "Nm/rad"),
    "kd": ("kd", "Nm s/rad"),
    "torque_limit": ("torque limits", "Nm"),
}


def _write(draft: Draft, gains: Gains, key: str, guesses: FloatArray, why: str) -> None:
    """One of the drives' figures and what is said of it: the model's; a number; or one a joint,
    some the model's."""
    topic, unit = _TOPICS[key]
    known = [getattr(drive, key) for drive in gains.own]
    draft.findings = [found for found in draft.findings if found.topic != topic]
    if all(known):
        draft.content["drives"][key] = "model"
        draft.note(topic, f"the model's, {contract.span(known)} {unit}")
        return
    table = [
        value if value else _round2(guess) for value, guess in zip(known, guesses, strict=True)
    ]
    entries = ["model" if value else figure for value, figure in zip(known, table, strict=True)]
    shared = len(set(map(str, entries))) == 1
    draft.content["drives"][key] = (
        entries[0] if shared else dict(zip(draft.joint_names, entries, strict=True))
    )
    draft.why[f"drives.{key}"] = why
    draft.note(topic, f"{contract.span(table)} {unit}", why)


def _round2(value: float) -> float:
    """Two figures."""
    return float(f"{value:.2g}")


def strong_enough(draft: Draft, gains: Gains, where: Path) -> Robot:
    """Raise the legs' guessed gains until the robot stands; gives what was tried last."""
    robot = build(content_of(draft), where)
    if all(drive.kp for drive in gains.own):
        return robot
    for factor in _FACTORS:
        _write_gains(draft, gains, factor)
        robot = build(content_of(draft), where)
        standing = contract.stand(robot)
        if standing.problem == "" and standing.sink < _SINK and contract.settles(robot).passed:
            break
    return robot
