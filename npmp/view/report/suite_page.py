"""The page of `npmp evaluate suite`: scenarios, red flags, and remedies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npmp.core.artifact import short
from npmp.evaluation.dead_zones import LAST_S, MIN_RESPONSE, ROBOTS_PER_COMMAND
from npmp.evaluation.suite import ScenarioResult
from npmp.robots import Robot
from npmp.view.report.parts import (
    Bar,
    Bars,
    Cell,
    Definitions,
    Paragraph,
    Section,
    Table,
    assemble,
    number,
)
from npmp.view.report.policy_page import clip_of
from npmp.view.report.replay import replay_section

UNITS = {"jerk": "1/s", "slip_mps": "m/s", "spread_mps": "m/s"}


def write(
    out: Path,
    robot: Robot,
    result: Mapping[str, Any],
    scenarios: Mapping[str, ScenarioResult],
    provenance: Mapping[str, Any],
) -> Path:
    """Write the page; returns its path.

    result: the content of suite.json. scenarios: for the replay, by name.
    """
    rows = result["scenarios"]
    raised = [flag for flag in result["red_flags"] if flag["raised"]]
    clips = [clip_of(scenario.task, scenario.trial, name) for name, scenario in scenarios.items()]
    passed = sum(row["passed"] for row in rows)
    return assemble(
        out,
        title=f"{result['policy']}: scenario suite",
        cards=[
            ("passed", f"{passed} of {len(rows)}", f"scenarios, {result['trials']} trials each"),
            ("red flags", str(len(raised)), f"of {len(result['red_flags'])}"),
        ],
        sections=[
            Section("scenarios", "Scenarios", [_lead(result), _bars(rows), _table(rows)]),
            _remedies(rows),
            _flags(result["red_flags"]),
            _dead_zones(result["dead_zones"]),
            _joint_speeds(result["joint_speeds"]),
            replay_section(robot, clips)[0],
        ],
        provenance=provenance,
    )


def _lead(result: Mapping[str, Any]) -> Paragraph:
    text = (
        "A trial succeeds if the robot never falls and its mean velocity over the last "
        f"{number(result['success']['last_s'])} s is within the table's bounds of its command. "
        f"{result['robot']}, randomization {result['randomization']}, seed {result['seed']}, "
        f"actuator={short(result['actuator'])}. Robots start with a random heading, small tilt "
        "and velocity."
    )
    if any(row["scaled"] for row in result["scenarios"]):
        text += " Commands beyond the policy's range are clipped to it."
    if result["teacher"]:
        text += f" Learned from: {result['teacher']}."
    return Paragraph(text)


def _bars(rows: Sequence[Mapping[str, Any]]) -> Bars:
    bars = [
        Bar(
            row["name"],
            row["success"],
            f"{100 * row['success']:.0f} %",
            css="robot" if row["passed"] else "other",
            interval=(row["low"], row["high"]),
            mark=row["pass_mark"],
        )
        for row in rows
    ]
    unit = "share of trials, with Wilson's 95 % interval; upright line: the pass mark"
    return Bars("Success", bars, full=1.0, unit=unit)


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = ["scenario", "success", "mark", "fell", "off command", "command"]
    columns += ["off by (m/s)", "off by (rad/s)", "source"]
    lines = []
    for row in rows:
        success = Cell.of(row["success"], 2, bad=not row["passed"])
        shares = (Cell.of(row[key], 2) for key in ("pass_mark", "fell", "off_command"))
        command = ", ".join(number(value) for value in row["command"])
        errors = []
        for unit in ("mps", "rps"):
            error = Cell.of(row.get(f"error_{unit}", math.nan), 3).text
            errors.append(f"{error} of {number(row[f'bound_{unit}'])}")
        lines.append((row["name"], success, *shares, command, *errors, f"[{row['source']}]"))
    return Table(columns, lines)


def _remedies(rows: Sequence[Mapping[str, Any]]) -> Section | None:
    """Training settings from practice for each failed scenario."""
    failed = [row for row in rows if not row["passed"]]
    if not failed:
        return None
    reasons = ("is off its command", "falls")
    entries = [
        (row["name"], f"{reasons[row['fell'] >= row['off_command']]}: {row['cure']}")
        for row in failed
    ]
    return Section("cures", "Not passed", [Definitions(entries)])


def _joint_speeds(speeds: Mapping[str, Mapping[str, float]]) -> Section:
    rows = list[tuple[str | Cell, ...]]()
    for name, row in speeds.items():
        limit = row["limit_rps"]
        values = (Cell.of(row[key], 1, bad=row[key] > limit) for key in ("p999_rps", "max_rps"))
        rows.append((name, *values, Cell.of(limit, 1)))
    text = "Over all scenarios, at the end of control steps, before falls."
    columns = ("joint", "99.9th percentile (rad/s)", "maximum (rad/s)", "limit (rad/s)")
    return Section("speeds", "Joint speeds", [Paragraph(text), Table(columns, rows)])


def _dead_zones(sides: Sequence[Mapping[str, Any]]) -> Section | None:
    """Small commands, and the achieved velocities."""
    if not sides:
        return None
    lines = []
    for side in sides:
        dead = Cell(number(side["up_to"]), side["up_to"], bad=side["up_to"] > 0.0)
        pairs = ", ".join(f"{command:g}: {value:.2f}" for command, value in side["achieved"])
        lines.append((f"{side['axis']} {'-' if side['sign'] < 0 else '+'}", dead, pairs))
    text = (
        f"On the ground of task=, {ROBOTS_PER_COMMAND} robots per command. The robot does not "
        f"respond to a command if it achieves less than {100 * MIN_RESPONSE:.0f} % of it over the "
        f"last {LAST_S:g} s, or falls."
    )
    table = Table(("axis", "no response up to", "commanded: achieved (m/s, rad/s)"), lines)
    return Section("dead_zones", "Dead zones", [Paragraph(text), table])


def _flags(flags: Sequence[Mapping[str, Any]]) -> Section:
    lines = []
    raised = []
    for flag in flags:
        name = flag["name"].removesuffix("_mps").replace("_", " ")
        unit = UNITS.get(flag["name"], "")
        measured, limit = (f"{number(flag[key])} {unit}".strip() for key in ("value", "from"))
        cell = Cell(measured, flag["value"], bad=flag["raised"])
        lines.append((name, cell, limit, "raised" if flag["raised"] else "no"))
        if flag["raised"]:
            raised.append((name, f"{flag['symptom']}: {flag['cure']}"))
    text = (
        "Simulated symptoms of failures on real robots, in the scenarios that only give a command, "
        "before falls; falls at the start and joint speeds in all scenarios. The limits are our "
        "decision."
    )
    table = Table(("flag", "measured", "from", ""), lines)
    remedies = [Definitions(raised)] if raised else []
    return Section("flags", "Red flags", [Paragraph(text), table, *remedies])
