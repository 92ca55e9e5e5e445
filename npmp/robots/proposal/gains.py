"""kp, kd and torque limits: the model's, else from the robot's weight."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from npmp.robots import check as contract
from npmp.robots.fields import FloatArray
from npmp.robots.proposal.draft import Draft, anchor_of, content_of, posed
from npmp.robots.proposal.shapes import end_of_leg
from npmp.robots.robot import Robot, build

_SAG_RAD = 0.1  # that a knee may give under the robot's weight; ANYmal B's gives 0.14
_SINK = 0.07  # share of its height that the base may sink under guessed gains; ANYmal B's 0.05
_DAMPING_S = 0.024  # kd over kp: ANYmal B's


def choose_gains(draft: Draft, drives: dict[str, Any], home: FloatArray) -> None:
    """kp, kd and torque limits: the model's where it says, else from the robot's weight."""
    names = draft.joint_names
    own = [drives.get(name) for name in names]
    weight = 9.81 * float(draft.model.body_mass.sum()) / len(draft.legs)
    pose = posed(draft.model, home)
    length = float(np.mean([anchor_of(draft, limb.joints[0])[2] - end_of_leg(draft, pose, limb)[2] for limb in draft.legs]))
    entry: dict[str, Any] = {}
    if all(drive is not None and drive.kp for drive in own):
        entry["kp"] = "model"
        kps = np.array([drive.kp for drive in own if drive is not None and drive.kp])
        draft.note("kp", f"the model's, {contract.span(kps)} Nm/rad")
    else:
        entry["kp"] = _round2(0.35 * weight * length / _SAG_RAD)  # a standing knee's lever is a third of the leg
        draft.why["drives.kp"] = "no position actuators; carries the robot's weight with 0.1 rad at the knee"
        kps = np.array([entry["kp"]])
        draft.note("kp", f"{entry['kp']:g} Nm/rad", draft.why["drives.kp"])
    damping = float(np.median(draft.model.dof_damping[6:]))
    if all(drive is not None and drive.kd for drive in own):
        entry["kd"] = "model"
        draft.note("kd", "the model's")
    else:
        entry["kd"] = _round2(max(0.0, _DAMPING_S * float(np.median(kps)) - damping))
        draft.why["drives.kd"] = f"0.024 s times kp, less the joints' own damping of {damping:g}"
        draft.note("kd", f"{entry['kd']:g} Nm s/rad", draft.why["drives.kd"])
    if all(drive is not None and drive.torque_limit for drive in own):
        entry["torque_limit"] = "model"
        limits = [drive.torque_limit for drive in own if drive is not None and drive.torque_limit]
        draft.note("torque limits", f"the model's, {contract.span(limits)} Nm")
    else:
        entry["torque_limit"] = _round2(1.5 * weight * length)
        draft.why["drives.torque_limit"] = "the model gives none; 1.5 times a leg's share of the weight at a leg's length"
        draft.note("torque limits", f"{entry['torque_limit']:g} Nm", draft.why["drives.torque_limit"])
    draft.content["drives"] = entry


def _round2(value: float) -> float:
    """Two figures."""
    return float(f"{value:.2g}")


def strong_enough(draft: Draft, where: Path) -> Robot:
    """Raise guessed gains until the robot stands; gives what was tried last."""
    robot = build(content_of(draft), where)
    first = draft.content["drives"]["kp"]
    if first == "model":
        return robot
    for factor in (1.0, 1.5, 2.5, 4.0):
        draft.content["drives"]["kp"] = _round2(first * factor)
        if draft.content["drives"]["kd"] != "model":
            damping = float(np.median(draft.model.dof_damping[6:]))
            draft.content["drives"]["kd"] = _round2(max(0.0, _DAMPING_S * first * factor - damping))
        robot = build(content_of(draft), where)
        standing = contract.stand(robot)
        if standing.problem == "" and standing.sink < _SINK and contract.settles(robot).passed:
            break
    kp, kd = draft.content["drives"]["kp"], draft.content["drives"]["kd"]
    draft.findings = [
        replace(found, value=f"{kp:g} Nm/rad") if found.topic == "kp"
        else replace(found, value=f"{kd:g} Nm s/rad") if found.topic == "kd" and kd != "model"
        else found
        for found in draft.findings
    ]  # fmt: skip
    return robot
