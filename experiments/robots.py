"""`npmp robots list | check NAME | add MODEL.xml`: the robots there are, whether one keeps the
contract, a new one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.markup import escape

from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp import robots
from npmp.experiments.common import Run, console, one_of, table, verb
from npmp.experiments.failures import OK, USER_ERROR
from npmp.robots.check import Check, check, what_to_edit
from npmp.robots.menagerie import ROOT, locate, reference_to
from npmp.robots.proposal import ProposedValue, propose

ACTIONS = ("list", "check", "add")
LOOK: dict[str, Any] = {"show_edge": False, "pad_edge": False}


def run(config: DictConfig, run: Run) -> int:
    """Do what `action` says; 2 where a robot fails its checks."""
    one_of(config, "action", *ACTIONS)
    if config.action == "list":
        if config.target is not None:
            instead = f"npmp robots check {config.target} looks at one"
            raise InputError(f"npmp robots list takes no {config.target!r}; {instead}")
        return show_robots()
    if config.target is None:
        what = {"check": "a robot's name or folder", "add": "a model, e.g. robot.xml"}[
            str(config.action)
        ]
        raise InputError(f"npmp robots {config.action} needs {what}")
    if config.action == "check":
        robot = robots.load(str(config.target))
        return report_checks(robot.name, check(robot))
    options = {"replace": bool(config.replace), "drop_missing": bool(config.drop_missing)}
    return add_robot(str(config.target), name=config.name, out=run.out, **options)


def show_robots() -> int:
    """A line per packaged robot and per one of one's own."""
    columns = ("robot", "joints", "kg", "feet", "control", "model", "licence")
    rows = [list(map(escape, _row(name))) for name in (*robots.names(), *robots.user_names())]
    console().print(table(columns, rows, right=("joints", "kg", "feet"), **LOOK))
    print(
        "robot=NAME chooses one; robot=FOLDER takes the robot.yaml of a folder. npmp robots add MODEL.xml proposes one."
    )
    return OK


def _row(name: str) -> tuple[str, ...]:
    """What is to be said of a robot; why it cannot be loaded, where it cannot."""
    if not robots.is_at_hand(name):
        return (
            name,
            "",
            "",
            "",
            "",
            f"MuJoCo Menagerie: downloaded at first use, or {ROOT}=CHECKOUT",
            "",
        )
    try:
        robot = robots.load(name)
        mass = float(robot.model(visuals=False).body_mass.sum())
    except InputError as error:
        return name, "", "", "", "", f"broken: {error}", ""
    feet, joints = str(len(robot.foot_bodies)), str(len(robot.joint_names))
    return (
        name,
        joints,
        f"{mass:.2f}",
        feet,
        f"{robot.control_rate_hz:.4g} Hz",
        robot.mjcf.name,
        robot.licence,
    )


def report_checks(name: str, checks: Sequence[Check]) -> int:
    """Print the contract, clause by clause; 2 where one fails."""
    signs = {True: "[green]ok[/]", False: "[red]FAILS[/]"}
    rows = [(clause.name, signs[clause.passed], escape(clause.detail)) for clause in checks]
    console().print(table(("check", "", "numbers"), rows, **LOOK))
    failed = [clause.name for clause in checks if not clause.passed]
    rest = f"; failing: {', '.join(failed)}" if failed else "."
    print(f"{name}: {len(checks) - len(failed)} of {len(checks)} checks hold{rest}")
    return USER_ERROR if failed else OK


def add_robot(
    target: str, *, name: str | None, out: Path | None, replace: bool, drop_missing: bool = False
) -> int:
    """Propose FOLDER/robot.yaml for a model, show what was found and guessed, and check it."""
    if name is not None and not re.fullmatch(r"\w[\w.-]*", str(name)):
        raise InputError(f"name={name}: letters, digits, '_', '-' and '.' are expected")
    path = locate(target, Path())
    if path.is_dir():
        raise InputError(f"{target} is a folder; the model's file is expected{_models_in(path)}")
    place = out or Path("robots") / str(name or "robot")  # as deep as the folder it will be
    reference = reference_to(target, path, place)
    proposal = propose(
        path, reference=reference, name=name, folder=place, drop_missing=drop_missing
    )
    if out is None and proposal.name in robots.names():  # robot=NAME would go on meaning that one
        raise InputError(
            f"'{proposal.name}' is a robot of this package; give the new one another name="
        )
    folder = out or Path("robots") / proposal.name
    file = folder / "robot.yaml"
    if file.exists() and not replace:
        raise InputError(
            f"{file} is there already, perhaps with your changes; choose another out= or give replace=true"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(file) as place:
        place.write_text(proposal.text, encoding="utf-8")
    show_findings(proposal.findings)
    code = report_checks(proposal.name, proposal.checks)
    failed = [clause.name for clause in proposal.checks if not clause.passed]
    shown = (
        proposal.name if folder.resolve() == (Path("robots") / proposal.name).resolve() else folder
    )
    if failed:
        count = f"{len(failed)} check{'s' * (len(failed) > 1)} failed ({', '.join(failed)})"
        print(f"wrote {file}, but {count}: {what_to_edit(failed)}, then npmp robots check {shown}")
        return code
    guessed = sum("# guessed" in line for line in proposal.text.splitlines())
    print(
        f"wrote {file}; {guessed} lines are marked guessed: look at them, then npmp robots check {shown}"
    )
    print(f"use it: npmp retarget robot={shown} source=... out=motions.h5")
    return code


def _models_in(folder: Path) -> str:
    """ ", e.g. FILE" of a folder, or ""."""
    models = sorted(path for pattern in ("*.xml", "*.urdf") for path in folder.glob(pattern))
    return f", e.g. {models[0]}" if models else ""


def show_findings(findings: Sequence[ProposedValue]) -> None:
    """What was found in the model, and what had to be guessed."""
    signs = {True: "[yellow]guess[/]", False: "[green]found[/]"}
    rows = [
        (row.topic, signs[bool(row.guessed)], escape(row.value), escape(row.guessed))
        for row in findings
    ]
    console().print(table(("looked for", "", "result", "guessed, look at it"), rows, **LOOK))


main = verb("robots", run, out="optional_folder", torch=False, positional=("action", "target"))

if __name__ == "__main__":
    raise SystemExit(main(None))
