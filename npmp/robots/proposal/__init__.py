"""A robot.yaml proposed for somebody's model, from its geometry and names.

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

import numpy as np
from numpy.typing import NDArray

from mocap_data.arrays import Array
from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp.robots import check as contract
from npmp.robots.adapt import Drive, backlash, drop_visuals, model_drives, refuse_unfit, strip
from npmp.robots.model import compile_spec, posed, read_spec
from npmp.robots.proposal.draft import Draft, ProposedValue
from npmp.robots.proposal.feet import find_feet, match_soles
from npmp.robots.proposal.gains import choose_gains, strong_enough
from npmp.robots.proposal.limbs import check_forward, find_limbs
from npmp.robots.proposal.markers import place_markers
from npmp.robots.proposal.mirrors import find_mirrors
from npmp.robots.proposal.shapes import end_of_leg
from npmp.robots.proposal.stance import choose_home, choose_limits, choose_rates, find_imu
from npmp.robots.proposal.text import text_of
from npmp.robots.robot import Robot

# words of files and folders of any robot
_GENERAL = {
    *("robot", "robots", "model", "models", "scene", "main", "urdf", "mjcf", "xml", "assets"),
    *("description", "resources", "base", "world", "data", "src", "home", "tmp"),
}


@dataclass(frozen=True)
class Proposal:
    """A robot.yaml and how it came about."""

    name: str
    text: str
    findings: tuple[ProposedValue, ...]
    # that the text describes
    robot: Robot
    checks: tuple[contract.Check, ...]

    def write(self, file: Path, *, replace: bool = False) -> None:
        """Write robot.yaml. Raises InputError where there is one, but for replace."""
        if file.exists() and not replace:
            raise InputError(
                f"{file} is there already, perhaps with your changes; choose another out= or give "
                "replace=true"
            )
        with atomic_path(file) as place:
            place.write_text(self.text, encoding="utf-8")


@contract.quiet()
def propose(
    mjcf: Path, *, reference: str | None = None, name: str | None = None, folder: Path | None = None
) -> Proposal:
    """A robot.yaml for the model in `mjcf`.

    Args:
      mjcf: the model's file, MJCF or URDF.
      reference: how robot.yaml names that file; by default its absolute path.
      name: the robot's; by default from the model's own.
      folder: where robot.yaml will lie, for messages and a relative reference.

    Raises:
      InputError: for a model that cannot be read, has no legs, or whose proposal does not load.
    """
    spec = read_spec(mjcf)
    drives = model_drives(spec)
    timestep = float(spec.option.timestep)
    # keyframes that sound like standing, the best first
    keys = [
        np.array(key.qpos, dtype=np.float64)
        for word in ("home", "stand", "default", "init")
        for key in spec.keys
        if word in key.name.lower()
    ]
    locked = np.array(backlash(spec), dtype=bool)
    model_name = spec.modelname
    changes = strip(spec, mjcf)
    drop_visuals(spec)
    model = compile_spec(spec, mjcf)
    refuse_unfit(model, mjcf)
    proposed, doubt = _name_of(mjcf, model_name)
    chosen = name or proposed
    where = (folder or Path()) / "robot.yaml"
    path = reference or str(mjcf.resolve())

    def drafted() -> Draft:
        draft = Draft(mjcf, path, chosen, model, posed(model))
        if doubt and name is None:
            draft.note("name", chosen, doubt)
        for change in changes:
            draft.note(*change)
        return draft

    poses = [pose for key in keys if (pose := _of_model(key, locked, model.nq)) is not None]
    standing = next((key for key in poses if _stands(drafted(), key)), None)
    robot, draft = _fill(drafted(), standing, drives, timestep, where)
    checks = contract.check(robot)
    passed_over = "its feet are not under its hips" if poses and standing is None else ""
    if standing is not None and not _holds(checks):  # one that was searched may
        other, second = _fill(drafted(), None, drives, timestep, where)
        again = contract.check(other)
        if _holds(again):
            robot = other
            draft = second
            checks = again
            passed_over = "it does not stand for 2 s"
    if passed_over:
        at = next(i for i, finding in enumerate(draft.findings) if finding.topic == "home")
        line = ProposedValue("keyframe", "the model's is passed over", passed_over)
        draft.findings.insert(at, line)
    return Proposal(draft.name, text_of(draft), tuple(draft.findings), robot, checks)


def _name_of(mjcf: Path, called: str) -> tuple[str, str]:
    """A name for the robot, and why it is not the model's own, or "".

    The model's own, where its file or a folder above has a word of it: models are called after what
    they were copied from. Else the file's; of robot.urdf in NAME/urdf the folder's.
    """
    own = called if called != "MuJoCo Model" else ""
    folders = [folder.name for folder in mjcf.resolve().parents[:3]]
    places = [mjcf.stem, *folders]
    agrees = any(word in place.lower() for word in _words(own) for place in places)
    agrees = agrees or any(word in own.lower() for place in places for word in _words(place))
    in_general = bool(folders) and not _words(folders[0])
    above = next((place for place in folders if _words(place)), "") if in_general else ""
    other = next((place for place in (mjcf.stem, above) if _words(place)), "")
    chosen = own if own and (agrees or not other) else other
    name = re.sub(r"\W+", "_", chosen).strip("_").lower()
    doubt = f"the model calls itself '{own}', its file and folders do not"
    return name or "robot", doubt if own and chosen != own else ""


def _words(name: str) -> set[str]:
    """The words of a name that tell robots apart."""
    words = set(re.split(r"[\W_]+", name.lower())) - _GENERAL
    return {word for word in words if len(word) > 1 and not word.isdigit()}


def _of_model(key: Array, locked: NDArray[np.bool_], count: int) -> Array | None:
    """(nq,) a keyframe's pose without the angles of locked hinges, the root at the origin; None
    where it is of something else. locked: of all the model's hinges; count: nq."""
    root = len(key) - len(locked)
    # six single joints, three of them hinges, were the free one
    spare = 3 if root == 3 else 0
    if root not in (0, 3, 7) or (~locked).sum() - spare != count - 7:
        return None
    angles = key[root:][~locked][spare:]
    return np.concatenate(([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], angles))


def _holds(checks: Sequence[contract.Check]) -> bool:
    return all(check.passed for check in checks if check.name in ("feet", "stands"))


def _stands(draft: Draft, key: Array) -> bool:
    """Whether the legs of a keyframe reach down from their hips, as far as can be said without
    simulating it."""
    pose = posed(draft.model, key[7:])
    legs = 0
    with suppress(InputError):  # with straight legs at zero joints, most models stand
        find_limbs(draft, draft.zero)
        legs = len(draft.legs)
    try:
        find_limbs(draft, pose)
        ends = [end_of_leg(draft, pose, limb) for limb in draft.legs]
    except InputError:
        return False
    away = np.array(ends) - [pose.xanchor[limb.joints[0] + 1] for limb in draft.legs]
    beside = np.linalg.norm(away[:, :2], axis=-1)
    return len(draft.legs) >= legs and bool(np.all(beside < -away[:, 2]))


def _fill(
    draft: Draft, home: Array | None, drives: Mapping[str, Drive], timestep: float, where: Path
) -> tuple[Robot, Draft]:
    """The robot proposed with this keyframe's pose, or with one that is searched, and the draft
    that says how."""
    find_limbs(draft, draft.zero if home is None else posed(draft.model, home[7:]))
    check_forward(draft)
    choose_rates(draft, timestep)
    find_imu(draft)
    joints = choose_home(draft, home)
    draft.content["feet"] = find_feet(draft, joints)
    match_soles(draft)
    choose_limits(draft, joints)
    place_markers(draft)
    gains = choose_gains(draft, drives, joints)
    find_mirrors(draft, where)
    return strong_enough(draft, gains, where), draft
