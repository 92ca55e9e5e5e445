"""The page of `npmp robots show`: a robot in its home pose with markers and collision shapes, and
the guessed lines of its robot.yaml."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco

from mocap_data.errors import InputError
from npmp.robots import Robot
from npmp.robots.check import Check
from npmp.robots.model import in_world
from npmp.view.render import ReplayClip, Shot, View, draw, write
from npmp.view.report.parts import Cell, Paragraph, Picture, Row, Section, Table, assemble

SIZE = (960, 720)
_GUESSED = "guessed: "


@dataclass(frozen=True)
class RobotPage:
    """The written files."""

    page: Path
    # None if nothing can render here
    still: Path | None
    # reason for a missing still
    problem: str = ""


def build(
    folder: Path,
    robot: Robot,
    checks: Sequence[Check],
    text: str,
    provenance: Mapping[str, Any] | None = None,
) -> RobotPage:
    """Write NAME.png and NAME.html into a folder; only the page if nothing can render here.

    text: of robot.yaml.
    """
    still = folder / f"{robot.name}.png"
    problem = ""
    try:
        write(still, draw([shot_of(robot)], SIZE, 1.0))
        image = base64.b64encode(still.read_bytes()).decode()
        caption = "The home pose. Orange: collision shapes. Red: markers."
        home = [Paragraph(caption), Picture(f"data:image/png;base64,{image}", caption)]
    except InputError as error:
        problem = str(error)
        home = [Paragraph(f"No picture: {problem}")]
    guesses = guesses_of(text)
    model = robot.model(visuals=False)
    mass = float(model.body_mass.sum())
    feet = len(robot.foot_bodies)
    page = assemble(
        folder / f"{robot.name}.html",
        title=robot.name,
        subtitle=robot.source,
        cards=[
            ("Mass", f"{mass:.2f} kg", f"{feet} feet"),
            ("Joints", str(len(robot.joint_names)), f"{len(robot.markers)} markers"),
            ("Height", f"{robot.home_qpos[2]:.3f} m", "of the base in the home pose"),
            ("Guessed", str(len(guesses)), "lines of robot.yaml"),
        ],
        sections=[
            Section("home", "Home", home),
            _guesses(guesses),
            _checks(checks),
            _joints(robot),
        ],
        provenance=provenance,
    )
    return RobotPage(page, None if problem else still, problem)


def shot_of(robot: Robot) -> Shot:
    """The translucent robot in its home pose with its markers."""
    data = mujoco.MjData(robot.model(visuals=False))
    data.qpos[:] = robot.home_qpos
    mujoco.mj_kinematics(data.model, data)
    marks = {
        name: in_world(data, marker.body, marker.position) for name, marker in robot.markers.items()
    }
    clip = ReplayClip("home", robot.home_qpos[None], 1.0)
    return Shot(robot, clip, View(), title=robot.name, marks=marks, glass=True)


def guesses_of(text: str) -> list[tuple[int, str, str]]:
    """The guessed lines of a robot.yaml: number, content and reason."""
    guesses = []
    for number, line in enumerate(text.splitlines(), 1):
        content, _, why = line.partition(_GUESSED)
        if why and "#" in content:
            setting = re.sub(r"\s*#\s*$", "", content).strip().removeprefix("# ").rstrip(": ")
            guesses.append((number, setting, why))
    return guesses


def _guesses(guesses: Sequence[tuple[int, str, str]]) -> Section:
    rows: list[Row] = [
        [str(number), Cell(line, wrap=True), Cell(why, wrap=True)] for number, line, why in guesses
    ]
    if not rows:
        return Section("guessed", "Guessed lines", [Paragraph("No line of robot.yaml is guessed.")])
    lead = Paragraph("Values that the model does not contain. Delete the mark once checked.")
    return Section("guessed", "Guessed lines", [lead, Table(("line", "", "because"), rows)])


def _checks(checks: Sequence[Check]) -> Section:
    rows: list[Row] = [
        [
            check.name,
            Cell("ok" if check.passed else "fails", bad=not check.passed),
            Cell(check.detail, wrap=True),
        ]
        for check in checks
    ]
    return Section("checks", "Checks", [Table(("check", "", "numbers"), rows)])


def _joints(robot: Robot) -> Section:
    columns = ("joint", "home", "lower", "upper", "rad/s", "kp", "kd", "Nm")
    figures = (
        robot.home_joints,
        robot.joint_lower,
        robot.joint_upper,
        robot.velocity_limit,
        robot.kp,
        robot.kd,
        robot.torque_limit,
    )
    decimals = (2, 2, 2, 1, 1, 2, 1)
    rows: list[Row] = [
        [name, *(Cell.of(float(v[j]), d) for v, d in zip(figures, decimals, strict=True))]
        for j, name in enumerate(robot.joint_names)
    ]
    lead = Paragraph("Angles in rad, kp in Nm/rad, kd in Nm s/rad.")
    return Section("joints", "Joints", [lead, Table(columns, rows, sortable=True)])
