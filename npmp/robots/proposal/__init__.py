"""A robot.yaml proposed for somebody's model, from its geometry and names, with what was guessed said line by line.

`propose(mjcf)` finds the legs (chains of hinges that end lowest), what their feet touch the ground with, arms, joints that
mirror each other, a standing pose and gains. What the model says is taken; what it does not say is guessed, and its line in
the YAML carries "# guessed: why". The result is a start for a person who looks at it, held against `npmp.robots.check`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np

from npmp.robots import check as contract
from npmp.robots.fields import FloatArray
from npmp.robots.foreign import at_zero, compile_spec, own_drives, read_spec, refuse_unfit, strip
from npmp.robots.proposal.draft import Draft, Finding, posed
from npmp.robots.proposal.feet import find_feet, match_soles
from npmp.robots.proposal.gains import choose_gains, strong_enough
from npmp.robots.proposal.limbs import check_forward, find_limbs
from npmp.robots.proposal.markers import place_markers
from npmp.robots.proposal.mirrors import find_mirrors
from npmp.robots.proposal.stance import choose_home, choose_limits, choose_rates, find_imu
from npmp.robots.proposal.text import text_of
from npmp.robots.robot import Robot


@dataclass(frozen=True)
class Proposal:
    """A robot.yaml and how it came about."""

    name: str
    text: str
    findings: tuple[Finding, ...]
    robot: Robot  # that the text describes
    checks: tuple[contract.Check, ...]


def propose(mjcf: Path, *, reference: str | None = None, name: str | None = None, folder: Path | None = None) -> Proposal:
    """A robot.yaml for the model in `mjcf`.

    Args:
      mjcf: the model's file, MJCF or URDF.
      reference: how robot.yaml shall name that file; by default its absolute path.
      name: the robot's; by default from the model's own.
      folder: where robot.yaml will lie, for messages.

    Raises: InputError for a model that cannot be read, has no legs, or whose proposal does not load.
    """
    spec = read_spec(mjcf)
    drives, keys, timestep = own_drives(spec), _standing_keys(spec), float(spec.option.timestep)
    model_name = spec.modelname
    strip(spec, mjcf, visuals=False)
    model = compile_spec(spec, mjcf)
    refuse_unfit(model, mjcf)
    chosen = name or _slug(model_name if model_name not in ("", "MuJoCo Model") else mjcf.stem)
    draft = Draft(mjcf, reference or str(mjcf.resolve()), chosen, model, at_zero(model))
    home = next((key for key in keys if len(key) == model.nq), None)
    pose = draft.zero if home is None else posed(model, home[7:])
    find_limbs(draft, pose)
    check_forward(draft, pose)
    choose_rates(draft, timestep)
    find_imu(draft)
    joints = choose_home(draft, home)
    feet = draft.content["feet"] = find_feet(draft, joints)
    match_soles(draft)
    choose_limits(draft, joints)
    place_markers(draft, feet)
    choose_gains(draft, drives, joints)
    draft.content["symmetries"] = {}
    where = (folder or Path()) / "robot.yaml"
    find_mirrors(draft, where)
    robot = strong_enough(draft, where)
    checks = contract.check(robot)
    return Proposal(draft.name, text_of(draft), tuple(draft.findings), robot, checks)


def _slug(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_").lower() or "robot"


def _standing_keys(spec: mujoco.MjSpec) -> list[FloatArray]:
    """qpos of keyframes that sound like standing, the best first."""
    words = ("home", "stand", "default", "init")
    rank = {key.name: next((i for i, word in enumerate(words) if word in key.name.lower()), None) for key in spec.keys}
    named = sorted((key for key in spec.keys if rank[key.name] is not None), key=lambda key: rank[key.name] or 0)
    return [np.array(key.qpos, dtype=np.float64) for key in named]
