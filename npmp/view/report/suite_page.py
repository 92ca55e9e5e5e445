"""The page of `npmp evaluate suite`: scenarios that a policy passes, red flags, and remedies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npmp.core.artifact import short
from npmp.core.settings import flat
from npmp.evaluation.dead_zones import LAST_S, MIN_RESPONSE, ROBOTS_PER_COMMAND
from npmp.evaluation.suite import ScenarioResult
from npmp.robots import Robot
from npmp.view.report.parts import (
    Bar,
    Bars,
    Cell,
    Fold,
    Section,
    Table,
    Terms,
    Words,
    assemble,
    number,
)
from npmp.view.report.policy_page import clip_of
from npmp.view.report.replay import replay_section

UNITS = {"jerk": "1/s", "slip_mps": "m/s", "spread_mps": "m/s"}


def write(
    out: Path,
    robot: Robot,
    found: Mapping[str, Any],
    outcomes: Mapping[str, ScenarioResult],
    provenance: Mapping[str, Any],
) -> Path:
    """Write the page; returns its path.

    found: the content of suite.json.
    """
    rows = found["scenarios"]
    raised = [flag for flag in found["red_flags"] if flag["raised"]]
    clips = [clip_of(outcome.task, outcome.trial, name) for name, outcome in outcomes.items()]
    passed = sum(row["passed"] for row in rows)
    cards = [
        ("passed", f"{passed} of {len(rows)}", f"scenarios, {found['trials']} trials each"),
        ("red flags", str(len(raised)), f"of {len(found['red_flags'])} looked for"),
    ]
    differences = Terms([(row["name"], differs(row["settings"])) for row in rows])
    fold = Fold("What differs from flat ground", [differences])
    sections = [
        Section("scenarios", "Scenarios", [_words(found), _bars(rows), _table(rows), fold]),
        _cures(rows),
        _flags(found["red_flags"]),
        _dead_zones(found["dead_zones"]),
        _joint_speeds(found["joint_speeds"]),
        replay_section(robot, clips)[0],
    ]
    title = f"{found['policy']}: scenario suite"
    return assemble(out, title=title, cards=cards, sections=sections, provenance=provenance)


def _words(found: Mapping[str, Any]) -> Words:
    scaled = any(row["scaled"] for row in found["scenarios"])
    edge = " Commands beyond the policy's range are those at its edge." if scaled else ""
    return Words(
        "A trial succeeds that never falls and whose mean velocity over its last "
        f"{number(found['success']['last_s'])} s is near its command, within the bounds of the "
        f"table. {found['robot']}, randomization {found['randomization']}, seed {found['seed']}, "
        f"actuator={short(found['actuator'])}; robots start leaning a "
        f"little and moving a little, each with a heading of its own.{edge}"
        + (f" Learned from: {found['teacher']}." if found["teacher"] else "")
    )


def _bars(rows: Sequence[Mapping[str, Any]]) -> Bars:
    bars = []
    for row in rows:
        share = f"{100 * row['success']:.0f} %"
        css = "robot" if row["passed"] else "other"
        ends = (row["low"], row["high"])
        bars.append(Bar(row["name"], row["success"], share, css, ends, row["pass_mark"]))
    unit = "share of trials, with Wilson's 95 % interval; upright line: the pass mark"
    return Bars("Success", bars, full=1.0, unit=unit)


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = ["scenario", "success", "mark", "fell", "off command", "command"]
    columns += ["off by (m/s)", "off by (rad/s)", "source"]
    lines = []
    for row in rows:
        shares = (Cell.of(row[key], 2) for key in ("pass_mark", "fell", "off_command"))
        command = ", ".join(number(v) for v in row["command"])
        off = []
        for unit in ("mps", "rps"):
            error = Cell.of(row.get(f"error_{unit}", math.nan), 3).text
            off.append(f"{error} of {number(row[f'bound_{unit}'])}")
        success = Cell.of(row["success"], 2, bad=not row["passed"])
        lines.append((row["name"], success, *shares, command, *off, f"[{row['source']}]"))
    return Table(columns, lines)


def differs(settings: Mapping[str, Any]) -> str:
    """What of a scenario's settings is not as on an ideal robot on flat ground, as its
    configuration has it."""
    changes = flat({key: settings[key] for key in ("task", "physics", "sensors") if settings[key]})
    words = [f"{key.partition('.')[2]} {_shown(value)}" for key, value in changes.items() if key]
    push = settings["push"]
    if push["force_n"]:
        times = f", {push['count']} times every {push['every_s']:g} s" if push["count"] > 1 else ""
        force = f"{push['force_n']:g} N for {push['duration_s']:g} s"
        words.append(f"pushed by {force} from a side{times}")
    return "; ".join([*words, f"{settings['seconds']:g} s"])


def _shown(value: Any) -> str:
    several = isinstance(value, list | tuple)
    return f"[{', '.join(f'{v:g}' for v in value)}]" if several else str(value)


def _cures(rows: Sequence[Mapping[str, Any]]) -> Section | None:
    """What practice trains with where a scenario is not passed."""
    failed = [row for row in rows if not row["passed"]]
    if not failed:
        return None
    why = ("is off its command", "falls")
    entries = [
        (row["name"], f"{why[row['fell'] >= row['off_command']]}: {row['cure']}") for row in failed
    ]
    return Section("cures", "Not passed", [Terms(entries)])


def _joint_speeds(speeds: Mapping[str, Mapping[str, float]]) -> Section:
    rows = list[tuple[str | Cell, ...]]()
    for name, row in speeds.items():
        limit = row["limit_rps"]
        reached = (Cell.of(row[key], 1, bad=row[key] > limit) for key in ("p999_rps", "max_rps"))
        rows.append((name, *reached, Cell.of(limit, 1)))
    words = (
        "Of all scenarios, at the end of control steps, before falls; the drives' limits are "
        "robot.yaml's."
    )
    columns = ("joint", "99.9th percentile (rad/s)", "maximum (rad/s)", "limit (rad/s)")
    return Section("speeds", "Joint speeds", [Words(words), Table(columns, rows)])


def _dead_zones(sides: Sequence[Mapping[str, Any]]) -> Section | None:
    """Small commands, and what came of them."""
    if not sides:
        return None
    lines = []
    for side in sides:
        dead = Cell(number(side["up_to"]), side["up_to"], bad=side["up_to"] > 0.0)
        pairs = ", ".join(f"{command:g}: {got:.2f}" for command, got in side["achieved"])
        lines.append((f"{side['axis']} {'-' if side['sign'] < 0 else '+'}", dead, pairs))
    words = (
        f"Ground as task= has it, {ROBOTS_PER_COMMAND} robots a command. Not answered is a command "
        f"of which less than {100 * MIN_RESPONSE:.0f} % comes over the last {LAST_S:g} s, "
        "or one falls."
    )
    table = Table(("axis", "not answered up to", "asked: achieved (m/s, rad/s)"), lines)
    return Section("dead_zones", "Dead zones", [Words(words), table])


def _flags(flags: Sequence[Mapping[str, Any]]) -> Section:
    lines = []
    raised = []
    for flag in flags:
        name = flag["name"].removesuffix("_mps")
        unit = UNITS.get(flag["name"], "")
        name = name.replace("_", " ")
        measured, most = (f"{number(flag[key])} {unit}".strip() for key in ("value", "from"))
        cell = Cell(measured, flag["value"], bad=flag["raised"])
        lines.append((name, cell, most, "raised" if flag["raised"] else "no"))
        if flag["raised"]:
            raised.append((name, f"{flag['symptom']}: {flag['cure']}"))
    words = (
        "Measured in simulation, of what goes wrong on robots: on the scenarios that are only a "
        "command, before falls; falls at the start and joint speeds in all. Where a flag begins is"
        " our decision."
    )
    cures = [Terms(raised)] if raised else []
    table = Table(("flag", "measured", "from", ""), lines)
    return Section("flags", "Red flags", [Words(words), table, *cures])
