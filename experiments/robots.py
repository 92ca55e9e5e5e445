"""`npmp robots list | check NAME | show NAME | add MODEL.xml`: available robots, checks, a page of
a robot, and proposals for new ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from mocap_data.errors import InputError
from npmp import robots
from npmp.experiments.command import Keys, Run, Verb, provenance_of
from npmp.experiments.terminal import OK, USER_ERROR, say, show_table
from npmp.robots import Robot
from npmp.robots.check import Check, edit_hint
from npmp.robots.check import check as check_robot
from npmp.robots.menagerie import ROOT, model_file, reference_to
from npmp.robots.proposal import propose

LOOK: dict[str, Any] = {"show_edge": False, "pad_edge": False}


@dataclass(frozen=True, kw_only=True)
class ListRobots(Keys):
    """List the robots of the package and those in ./robots and NPMP_ROBOTS."""


@dataclass(frozen=True, kw_only=True)
class CheckRobot(Keys):
    """Check the assumptions about a robot: model, joints, feet, mirrors.

    npmp robots check robots/go2
    """

    # a robot's name or folder
    target: str


@dataclass(frozen=True, kw_only=True)
class ShowRobot(Keys):
    """Render a robot in its home pose with markers and collision shapes: NAME.png, and NAME.html
    with its checks and the guessed lines of its robot.yaml.

    npmp robots show robots/go2
    """

    # a robot's name or folder
    target: str
    # the output folder; null: the robot's folder, for a packaged robot the current one
    out: Path | None = None


@dataclass(frozen=True, kw_only=True)
class AddRobot(Keys):
    """Propose a robot.yaml for a model (MJCF or URDF), and check it.

    npmp robots add go2/scene.xml name=go2
    npmp robots add menagerie:unitree_h1/h1.xml out=robots/h1
    """

    # the model's file, or menagerie:FOLDER/FILE.xml
    target: str
    # the robot's name; null: the model's
    name: str | None = None
    # the output folder; null: robots/NAME, which robot=NAME uses
    out: Path | None = None
    # true: overwrite an existing robot.yaml
    replace: bool = False
    # write NAME.png and NAME.html beside it, as npmp robots show
    show: bool = True


def run_list(config: ListRobots, run: Run) -> None:
    """Print a line per robot of the package and of the user."""
    columns = ("robot", "joints", "kg", "feet", "control", "model", "licence")
    rows = [_row(name) for name in (*robots.names(), *robots.user_names())]
    show_table(columns, rows, right=("joints", "kg", "feet"), **LOOK)
    say(
        "robot=NAME selects one, robot=FOLDER the robot.yaml of a folder. npmp robots add "
        "MODEL.xml proposes a new one."
    )


def _row(name: str) -> tuple[str, ...]:
    """The row of a robot, or the reason why it cannot be loaded."""
    if not robots.is_local(name):
        absent = f"MuJoCo Menagerie: downloaded at first use, or {ROOT}=CHECKOUT"
        return name, "", "", "", "", absent, ""
    try:
        robot = robots.load(name)
        mass = float(robot.model(visuals=False).body_mass.sum())
    except InputError as error:
        return name, "", "", "", "", f"broken: {error}", ""
    feet = str(len(robot.foot_bodies))
    joints = str(len(robot.joint_names))
    rate = f"{robot.control_rate_hz:.4g} Hz"
    return name, joints, f"{mass:.2f}", feet, rate, robot.mjcf.name, robot.licence


def run_check(config: CheckRobot, run: Run) -> int:
    """Print the checks; returns 2 if any fails."""
    robot = robots.load(config.target)
    return USER_ERROR if report_checks(robot.name, check_robot(robot)) else OK


def run_show(config: ShowRobot, run: Run) -> int:
    """Print the checks; returns 2 if any fails."""
    robot = robots.load(config.target)
    file = robots.find(config.target)
    packaged = robot.name in robots.names() and file == robots.find(robot.name)
    folder = run.out or (Path() if packaged else file.parent)
    checks = check_robot(robot)
    show_robot(robot, checks, file, folder, provenance_of(run, seed=False))
    failed = [clause.name for clause in checks if not clause.passed]
    if failed:
        say(f"failing checks: {', '.join(failed)}; {edit_hint(failed)}")
    return USER_ERROR if failed else OK


def show_robot(
    robot: Robot, checks: Sequence[Check], file: Path, folder: Path, provenance: dict[str, Any]
) -> None:
    """Write the page and the still of a robot, and print their places."""
    from npmp.view.report import robot_page

    text = file.read_text(encoding="utf-8")
    written = robot_page.build(folder, robot, checks, text, provenance)
    if written.still is None:
        say(f"page: {written.page} (no still: {written.problem})")
    else:
        say(f"page: {written.page}, still: {written.still}")


def report_checks(name: str, checks: Sequence[Check]) -> list[str]:
    """Print all checks of a robot. Returns the failed ones."""
    signs = {True: Text("ok", "green"), False: Text("FAILS", "red")}
    rows = [(clause.name, signs[clause.passed], clause.detail) for clause in checks]
    show_table(("check", "", "numbers"), rows, **LOOK)
    failed = [clause.name for clause in checks if not clause.passed]
    rest = f"; failing: {', '.join(failed)}" if failed else "."
    say(f"{name}: {len(checks) - len(failed)} of {len(checks)} checks hold{rest}")
    return failed


def run_add(config: AddRobot, run: Run) -> int:
    """Propose FOLDER/robot.yaml for a model, show its sources, and check it; 2 if checks fail."""
    target = config.target
    name = config.name
    out = run.out
    if name is not None and not re.fullmatch(r"\w[\w.-]*", name):
        raise InputError(f"name={name}: expected letters, digits, '_', '-' and '.'")
    path = model_file(target)
    place = out or Path("robots") / (name or "robot")  # as deep as the final folder
    proposal = propose(path, reference=reference_to(target, path, place), name=name, folder=place)
    if out is None and proposal.name in robots.names():  # robot=NAME would still be that one
        raise InputError(f"'{proposal.name}' is a robot of this package; choose another name=")
    usual = Path("robots") / proposal.name
    folder = out or usual
    file = folder / "robot.yaml"
    proposal.write(file, replace=config.replace)
    signs = {True: Text("guess", "yellow"), False: Text("read", "green")}
    rows = [(f.topic, signs[bool(f.guessed)], f.value, f.guessed) for f in proposal.findings]
    show_table(("looked for", "", "result", "guessed, review it"), rows, **LOOK)
    robot_arg = proposal.name if folder.resolve() == usual.resolve() else folder
    failed = report_checks(proposal.name, proposal.checks)
    if config.show:
        show_robot(proposal.robot, proposal.checks, file, folder, provenance_of(run, seed=False))
    if failed:
        count = f"{len(failed)} check{'s' * (len(failed) > 1)} failed ({', '.join(failed)})"
        say(f"wrote {file}, but {count}: {edit_hint(failed)}, then npmp robots check {robot_arg}")
        return USER_ERROR
    guessed = proposal.text.count("guessed: ")
    say(
        f"wrote {file}; {guessed} lines are guessed: review them, then run npmp robots check "
        f"{robot_arg}"
    )
    say(f"use it: npmp retarget robot={robot_arg} source=... out=motions.h5")
    return OK


_common: Any = {"out": "optional_folder", "torch": False}
list_all = Verb("robots list", ListRobots, run_list, **_common)
check = Verb("robots check", CheckRobot, run_check, positional=("target",), **_common)
show = Verb("robots show", ShowRobot, run_show, positional=("target",), **_common)
add = Verb("robots add", AddRobot, run_add, positional=("target",), **_common)
