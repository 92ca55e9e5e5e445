"""A robot.yaml proposed for somebody's model, from its geometry and names, with what was guessed
said line by line.

`propose(mjcf)` finds the legs (chains of hinges that end lowest), what their feet touch the ground
with, arms, joints that mirror each other, a standing pose and gains. What the model says is taken;
what it does not say is guessed, and its line in the YAML carries "# guessed: why". The result is a
start for a person who looks at it, held against `npmp.robots.check`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np

from mocap_data.errors import InputError
from npmp.robots import check as contract
from npmp.robots.adapt import Drive, compile_spec, own_drives, posed, read_spec, refuse_unfit, strip
from npmp.robots.fields import FloatArray
from npmp.robots.proposal.draft import Draft, Finding
from npmp.robots.proposal.feet import find_feet, match_soles
from npmp.robots.proposal.gains import choose_gains, strong_enough
from npmp.robots.proposal.limbs import check_forward, find_limbs
from npmp.robots.proposal.markers import place_markers
from npmp.robots.proposal.mirrors import find_mirrors
from npmp.robots.proposal.shapes import end_of_leg
from npmp.robots.proposal.stance import choose_home, choose_limits, choose_rates, find_imu
from npmp.robots.proposal.text import text_of
from npmp.robots.robot import Robot

# feet of a pose that stands are less beside their hips than this times what they are below
_UPRIGHT = 1.0


@dataclass(frozen=True)
class Proposal:
    """A robot.yaml and how it came about."""

    name: str
    text: str
    findings: tuple[Finding, ...]
    robot: Robot  # that the text describes
    checks: tuple[contract.Check, ...]


@contract.quiet()
def propose(
    mjcf: Path,
    *,
    reference: str | None = None,
    name: str | None = None,
    folder: Path | None = None,
    drop_missing: bool = False,
) -> Proposal:
    """A robot.yaml for the model in `mjcf`.

    Args:
      mjcf: the model's file, MJCF or URDF.
      reference: how robot.yaml shall name that file; by default its absolute path.
      name: the robot's; by default from the model's own.
      folder: where robot.yaml will lie, for messages and a relative reference.
      drop_missing: leave out colliding shapes whose mesh files are missing; without it they are
        refused.

    Raises:
      InputError: for a model that cannot be read, has no legs, or whose proposal does not load.
    """
    spec = read_spec(mjcf)
    drives, keys, timestep = own_drives(spec), _standing_keys(spec), float(spec.option.timestep)
    model_name = spec.modelname
    dropped = strip(spec, mjcf, visuals=False, drop_missing=drop_missing)
    model = compile_spec(spec, mjcf)
    refuse_unfit(model, mjcf)
    chosen = name or _slug(model_name if model_name not in ("", "MuJoCo Model") else mjcf.stem)
    where = (folder or Path()) / "robot.yaml"

    def drafted() -> Draft:
        draft = Draft(
            mjcf, reference or str(mjcf.resolve()), chosen, model, posed(model), bool(dropped)
        )
        if dropped:
            some = ", ".join(dropped[:4]) + (" ..." if len(dropped) > 4 else "")
            draft.note(
                "meshes",
                f"{len(dropped)} that would collide left out: {some}",
                "their files are missing",
            )
        return draft

    poses = [key for key in keys if len(key) == model.nq]
    standing = next((key for key in poses if _stands(drafted(), key)), None)
    robot, draft = _fill(drafted(), standing, drives, timestep, where)
    checks = contract.check(robot)
    passed_over = "its feet are not under its hips" if poses and standing is None else ""
    if standing is not None and not _holds(checks):  # one that was searched may
        other, second = _fill(drafted(), None, drives, timestep, where)
        again = contract.check(other)
        if _holds(again):
            robot, draft, checks, passed_over = other, second, again, "it does not stand for 2 s"
    if passed_over:
        at = next(i for i, found in enumerate(draft.findings) if found.topic == "home")
        draft.findings.insert(at, Finding("keyframe", "the model's is passed over", passed_over))
    return Proposal(draft.name, text_of(draft), tuple(draft.findings), robot, checks)


def _holds(checks: Sequence[contract.Check]) -> bool:
    return all(check.passed for check in checks if check.name in ("feet", "stands"))


def _stands(draft: Draft, key: FloatArray) -> bool:
    """Whether the legs of a keyframe reach down from their hips, as far as can be said without
    simulating it."""
    pose = posed(draft.model, key[7:])
    legs = 0
    with suppress(InputError):  # with straight legs at zero joints, most models stand
        find_limbs(draft, draft.zero)
        legs = len(draft.legs)
    try:
        find_limbs(draft, pose)
        away = np.array(
            [
                end_of_leg(draft, pose, limb) - pose.xanchor[limb.joints[0] + 1]
                for limb in draft.legs
            ]
        )
    except InputError:
        return False
    return len(draft.legs) >= legs and bool(
        np.all(np.linalg.norm(away[:, :2], axis=-1) < -_UPRIGHT * away[:, 2])
    )


def _fill(
    draft: Draft, home: FloatArray | None, drives: Mapping[str, Drive], timestep: float, where: Path
) -> tuple[Robot, Draft]:
    """The robot proposed with this keyframe's pose, or with one that is searched, and the draft
    that says how."""
    find_limbs(draft, draft.zero if home is None else posed(draft.model, home[7:]))
    check_forward(draft)
    choose_rates(draft, timestep)
    find_imu(draft)
    joints = choose_home(draft, home)
    feet = draft.content["feet"] = find_feet(draft, joints)
    match_soles(draft)
    choose_limits(draft, joints)
    place_markers(draft, feet)
    gains = choose_gains(draft, drives, joints)
    draft.content["symmetries"] = {}
    find_mirrors(draft, where)
    return strong_enough(draft, gains, where), draft


def _slug(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_").lower() or "robot"


def _standing_keys(spec: mujoco.MjSpec) -> list[FloatArray]:
    """qpos of keyframes that sound like standing, the best first."""
    words = ("home", "stand", "default", "init")
    rank = {
        key.name: next((i for i, word in enumerate(words) if word in key.name.lower()), None)
        for key in spec.keys
    }
    named = sorted(
        (key for key in spec.keys if rank[key.name] is not None),
        key=lambda key: rank[key.name] or 0,
    )
    return [np.array(key.qpos, dtype=np.float64) for key in named]
