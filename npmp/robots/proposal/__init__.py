"""A robot.yaml proposed for a model, from its geometry and names.

`propose(mjcf)` determines the legs (chains of hinges that end lowest), feet, arms, mirrors, a
standing pose and gains. Values that the model has are used; the others are guessed, and their lines
in the YAML end in "# guessed: reason". The proposal is a start for the user, checked by
`npmp.robots.check`.
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
from npmp.robots import check as checks
from npmp.robots.adapt import Drive, check_suitable, model_drives
from npmp.robots.model import compile_spec, posed, read_spec
from npmp.robots.proposal.draft import Draft, ProposedValue
from npmp.robots.proposal.feet import find_feet, match_soles
from npmp.robots.proposal.gains import choose_gains, raise_until_standing
from npmp.robots.proposal.limbs import check_forward, find_limbs
from npmp.robots.proposal.markers import place_markers
from npmp.robots.proposal.mirrors import find_mirrors
from npmp.robots.proposal.shapes import end_of_leg
from npmp.robots.proposal.stance import choose_home, choose_limits, choose_rates, find_imu
from npmp.robots.proposal.text import text_of
from npmp.robots.robot import Robot
from npmp.robots.strip import backlash, drop_visuals, strip

# words in the names of any robot's files and folders
_GENERAL = {
    *("robot", "robots", "model", "models", "scene", "main", "urdf", "mjcf", "xml", "assets"),
    *("description", "resources", "base", "world", "data", "src", "home", "tmp"),
}


@dataclass(frozen=True)
class Proposal:
    """A robot.yaml, its robot, and where each value comes from."""

    name: str
    text: str
    findings: tuple[ProposedValue, ...]
    robot: Robot
    checks: tuple[checks.Check, ...]

    def write(self, file: Path, *, replace: bool = False) -> None:
        """Write robot.yaml. Raises InputError for an existing file without `replace`."""
        if file.exists() and not replace:
            raise InputError(
                f"{file} exists, perhaps with your changes; choose another out= or set replace=true"
            )
        with atomic_path(file) as place:
            place.write_text(self.text, encoding="utf-8")


@checks.quiet()
def propose(
    mjcf: Path, *, reference: str | None = None, name: str | None = None, folder: Path | None = None
) -> Proposal:
    """A robot.yaml for the model in `mjcf`.

    Args:
      mjcf: the model's file, MJCF or URDF.
      reference: the `mjcf:` of robot.yaml; by default the absolute path.
      name: of the robot; by default the model's, or its file's.
      folder: of the robot.yaml to write, for messages and a relative reference.

    Raises:
      InputError: for a model that cannot be read, has no legs, or whose proposal does not load.
    """
    spec = read_spec(mjcf)
    drives = model_drives(spec)
    timestep = float(spec.option.timestep)
    # keyframes whose names suggest standing, the best first
    keyframes = [
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
    check_suitable(model, mjcf)
    robot_name = name or _propose_name(mjcf, model_name)
    where = (folder or Path()) / "robot.yaml"
    path = reference or str(mjcf.resolve())

    def new_draft() -> Draft:
        draft = Draft(mjcf, path, robot_name, model, posed(model))
        for change in changes:
            draft.note(*change)
        return draft

    poses = [pose for key in keyframes if (pose := _pose_of(key, locked, model.nq)) is not None]
    keyframe = next((pose for pose in poses if _is_standing(new_draft(), pose)), None)
    robot, draft = _fill(new_draft(), keyframe, drives, timestep, where)
    results = checks.check(robot)
    rejected = "its feet are not under its hips" if poses and keyframe is None else ""
    if keyframe is not None and not _stands(results):
        # a searched pose may stand
        searched_robot, searched_draft = _fill(new_draft(), None, drives, timestep, where)
        searched_results = checks.check(searched_robot)
        if _stands(searched_results):
            robot = searched_robot
            draft = searched_draft
            results = searched_results
            rejected = "it does not stand for 2 s"
    if rejected:
        at = next(i for i, finding in enumerate(draft.findings) if finding.topic == "home")
        draft.findings.insert(at, ProposedValue("keyframe", "the model's is not used", rejected))
    return Proposal(draft.name, text_of(draft), tuple(draft.findings), robot, results)


def _propose_name(mjcf: Path, model_name: str) -> str:
    """The file's name; for files like NAME/urdf/robot.urdf the folder's, else the model's own."""
    folders = [folder.name for folder in mjcf.resolve().parents[:3]]
    names = [mjcf.stem]
    if not _words(folders[0]):
        names += folders[1:]
    if model_name != "MuJoCo Model":
        names.append(model_name)
    chosen = next((name for name in names if _words(name)), "robot")
    return re.sub(r"\W+", "_", chosen).strip("_").lower()


def _words(name: str) -> set[str]:
    """The words of a name that distinguish robots."""
    words = set(re.split(r"[\W_]+", name.lower())) - _GENERAL
    return {word for word in words if len(word) > 1 and not word.isdigit()}


def _pose_of(keyframe: Array, locked: NDArray[np.bool_], nq: int) -> Array | None:
    """(nq,) a keyframe's pose without locked hinges, the root at the origin; None for a keyframe of
    other joints. locked: of all the model's hinges."""
    root = len(keyframe) - len(locked)
    # three slides and three hinges were the free joint
    root_hinges = 3 if root == 3 else 0
    if root not in (0, 3, 7) or (~locked).sum() - root_hinges != nq - 7:
        return None
    angles = keyframe[root:][~locked][root_hinges:]
    return np.concatenate(([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], angles))


def _stands(results: Sequence[checks.Check]) -> bool:
    return all(check.passed for check in results if check.name in ("feet", "stands"))


def _is_standing(draft: Draft, qpos: Array) -> bool:
    """Whether the legs of a keyframe reach down from their hips, without simulating it."""
    pose = posed(draft.model, qpos[7:])
    legs = 0
    # most models stand with straight legs at zero joints
    with suppress(InputError):
        find_limbs(draft, draft.zero)
        legs = len(draft.legs)
    try:
        find_limbs(draft, pose)
        ends = [end_of_leg(draft, pose, limb) for limb in draft.legs]
    except InputError:
        return False
    from_hips = np.array(ends) - [pose.xanchor[limb.joints[0] + 1] for limb in draft.legs]
    aside = np.linalg.norm(from_hips[:, :2], axis=-1)
    return len(draft.legs) >= legs and bool(np.all(aside < -from_hips[:, 2]))


def _fill(
    draft: Draft, home: Array | None, drives: Mapping[str, Drive], timestep: float, where: Path
) -> tuple[Robot, Draft]:
    """The robot with a keyframe's pose as home, or None for a searched one, and its draft."""
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
    return raise_until_standing(draft, gains, where), draft
