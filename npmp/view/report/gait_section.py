"""The gait of a policy command by command, as a section of its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npmp.evaluation.gait import STILL_MPS, worst
from npmp.view.report.parts import Cell, Paragraph, Section, Table, foot_labels

_COMMAND = "forward, lateral, yaw"
_COLUMNS = (_COMMAND, "achieved", "beyond the limits", "falls", "joints", "module", "recorded")
_PHASES = (
    "phase",
    _COMMAND,
    "stands still after (s)",
    "within 0.5 s",
    "largest error",
    "falls",
    "beyond the limits",
)
_FEET = (_COMMAND, "lift (cm)", "stands at (m/s)", "steps (1/s)", "touchdown", "opposite")


def grid_section(rows: Sequence[Mapping[str, Any]], feet: Sequence[str]) -> Section | None:
    """Tables of the robot and of its feet with a row per command, of
    `npmp.evaluation.policy.evaluate_commands`."""
    if not rows:
        return None
    on_robots = (
        "Each robot has one constant command, after a second with another. Joints: 99.9th "
        "percentile of the fastest joint, relative to its velocity limit. Module, recorded: lift "
        "(cm) and standing speed (m/s) of the worst foot, and opposite, of the module while it "
        "tracks recordings at about that velocity, and of these recordings."
    )
    on_feet = (
        f"Feet in the order {', '.join(foot_labels(feet))}. Lift: median height of a swing. Stands "
        "at: mean horizontal speed below 5 mm. Touchdown: phase within the first foot's stride. "
        "Opposite: correlation of the heights of opposite feet; 1 for a trot, −0.2 for a walk."
    )
    content = [
        Paragraph(on_robots),
        Table(_COLUMNS, [_row(row) for row in rows]),
        Paragraph(on_feet),
        Table(_FEET, [_feet_row(row) for row in rows]),
    ]
    return Section("grid", "Command by command", content)


def transitions_section(rows: Sequence[Mapping[str, Any]]) -> Section | None:
    """A table with a row per phase, of `npmp.evaluation.transitions.evaluate_transitions`."""
    if not rows:
        return None
    text = (
        "All robots have these commands in turn; they stop at different phases of a stride. "
        f"Stands still: all feet in contact, the base slower than {STILL_MPS:g} m/s, until the "
        "phase ends; median of all robots, and the share of them within 0.5 s. Largest error: of "
        "any robot, of half-second means of the velocity (m/s, m/s, rad/s), without the first half "
        "second."
    )
    table = Table(_PHASES, [_phase_row(row) for row in rows])
    return Section("transitions", "Standing still and stepping off", [Paragraph(text), table])


def transitions_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """The transitions in one line."""
    phases = [
        f"{row['phase']} off by {row['max_error']:.2f} at most"
        if "max_error" in row
        else f"{row['phase']} {_stands(row)}"
        for row in rows
    ]
    return f"{'; '.join(phases)}; {sum(row['falls'] for row in rows)} falls"


def _stands(row: Mapping[str, Any]) -> str:
    """When robots stand still."""
    return "never still" if row["stand_s"] is None else f"still after {row['stand_s']:.2f} s"


def _phase_row(row: Mapping[str, Any]) -> list[str | Cell]:
    faults = Cell("; ".join(row["faults"]), wrap=True)
    falls = Cell(str(row["falls"]), bad=row["falls"] > 0)
    if "max_error" in row:
        cells: list[str | Cell] = ["–", "–", _number(row["max_error"])]
    else:
        seconds = "never" if row["stand_s"] is None else _number(row["stand_s"])
        share = Cell(f"{100.0 * row['stood']:.0f} %", bad=row["stood"] < 1.0)
        cells = [seconds, share, "–"]
    return [row["phase"], _command(row), *cells, falls, faults]


def grid_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """The grid in one line: the number of commands within the limits, and the worst of each."""
    moving = [row for row in rows if any(row["command"]) and row.get("achieved")]
    good = sum(not row["faults"] for row in rows)
    error = np.array([np.subtract(r["achieved"], r["command"]) for r in moving] or [[0.0] * 3])
    lift = min((worst(row["lift_m"], min) for row in moving), default=0.0)
    slide = max((worst(row["stance_mps"], max) for row in moving), default=0.0)
    dead = sum(row["dead"] for row in moving)
    falls = sum(row["falls"] for row in rows)
    return (
        f"{good} of {len(rows)} commands within the limits; worst foot lifts {100 * lift:.1f} cm, "
        f"stands at {slide:.2f} m/s; off by {np.abs(error[:, :2]).max():.2f} m/s, "
        f"{np.abs(error[:, 2]).max():.2f} rad/s; {dead} dead, {falls} falls"
    )


def _row(row: Mapping[str, Any]) -> list[str | Cell]:
    achieved = row.get("achieved")
    faults = Cell("; ".join(row["faults"]), wrap=True)
    falls = Cell(str(row["falls"]), bad=row["falls"] > 0)
    if not achieved:
        return [_command(row), "–", faults, falls, *["–"] * 3]
    velocity = Cell(", ".join(f"{value:.2f}" for value in achieved), bad=row["dead"])
    joints = _number(row["joint_speed_share"])
    module = _worst_foot(row.get("module"))
    recorded = _worst_foot(row.get("recorded"))
    return [_command(row), velocity, faults, falls, joints, module, recorded]


def _feet_row(row: Mapping[str, Any]) -> list[str]:
    if not row.get("achieved"):
        return [_command(row), *["–"] * 5]
    columns = ("lift_m", 100, 1), ("stance_mps", 1, 2), ("step_rate_hz", 1, 1), ("phase", 1, 2)
    per_foot = (
        " ".join(_number(None if v is None else scale * v, digits) for v in row[key])
        for key, scale, digits in columns
    )
    return [_command(row), *per_foot, _number(row["opposite_correlation"])]


def _command(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{value:g}" for value in np.round(row["command"], 3))


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _worst_foot(metrics: Mapping[str, Any] | None) -> str:
    if not metrics:
        return "–"
    lift = worst(metrics["lift_m"], min)
    slide = worst(metrics["stance_mps"], max)
    return f"{100 * lift:.1f}, {slide:.2f}, {_number(metrics['opposite_correlation'])}"
