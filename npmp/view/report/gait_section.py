"""The section of a policy's page that shows its gait command by command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npmp.evaluation.gait import worst
from npmp.tasks.velocity import COMMAND_CHANNELS
from npmp.view.report import figures
from npmp.view.report.figures import Line
from npmp.view.report.parts import Cell, Charts, Section, Table, Words, foot_labels

DEG = 180.0 / np.pi
_COMMAND = "forward, lateral, yaw"
_COLUMNS = (_COMMAND, "achieved", "beyond the limits", "falls", "joints", "module", "recorded")
_FEET = (_COMMAND, "lift (cm)", "stands at (m/s)", "steps (1/s)", "touchdown", "opposite")


def grid_section(rows: Sequence[Mapping[str, Any]], feet: Sequence[str]) -> Section | None:
    """Tables with a row per command (`npmp.evaluation.policy.evaluate_commands`), of the robot and
    of its feet, and charts of commanded and achieved velocities."""
    if not rows:
        return None
    words = (
        "Robots that each keep one command, after a second of another. Joints: 99.9th percentile "
        "of the fastest, in velocity limits. Module and recorded: lift (cm) and standing speed "
        "(m/s) of the worst foot, and opposite, of the module while it tracks recordings at about "
        "that velocity, and of these."
    )
    on_feet = (
        f"Feet in the order {', '.join(foot_labels(feet))}. Lift: how high a swing gets, median. "
        "Stands at: mean horizontal speed below 5 mm. Touchdown: phase within the first foot's "
        "stride. Opposite: correlation of the heights of opposite feet; 1 is a trot, about −0.2 a "
        "walk in four beats."
    )
    parts = [
        Words(words),
        Table(_COLUMNS, [_row(row) for row in rows]),
        Words(on_feet),
        Table(_FEET, [_feet_row(row) for row in rows]),
        Charts([chart for axis in range(3) for chart in _charts(rows, axis)]),
    ]
    return Section("grid", "Command by command", parts)


def grid_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """The grid in one line: how many commands are within the limits, and the worst of each."""
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
    faults = Cell("; ".join(row["faults"]), words=True)
    cells = [faults, Cell(str(row["falls"]), bad=row["falls"] > 0)]
    if not achieved:
        return [_command(row), "–", *cells, *["–"] * 3]
    reached = Cell(", ".join(f"{value:.2f}" for value in achieved), bad=row["dead"])
    beside = (_beside(row.get(key)) for key in ("module", "recorded"))
    return [_command(row), reached, *cells, _number(row["joint_speed_share"]), *beside]


def _feet_row(row: Mapping[str, Any]) -> list[str]:
    if not row.get("achieved"):
        return [_command(row), *["–"] * 5]
    columns = ("lift_m", 100, 1), ("stance_mps", 1, 2), ("step_rate_hz", 1, 1), ("phase", 1, 2)
    each = (
        " ".join(_number(None if v is None else scale * v, digits) for v in row[key])
        for key, scale, digits in columns
    )
    return [_command(row), *each, _number(row["opposite_correlation"])]


def _command(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{value:g}" for value in np.round(row["command"], 3))


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _beside(found: Mapping[str, Any] | None) -> str:
    if not found:
        return "–"
    lift = worst(found["lift_m"], min)
    slide = worst(found["stance_mps"], max)
    return f"{100 * lift:.1f}, {slide:.2f}, {_number(found['opposite_correlation'])}"


def _charts(rows: Sequence[Mapping[str, Any]], axis: int) -> list[figures.Chart]:
    """Along one component of the command, the others at rest."""
    rest = rows[0]["command"]
    mine = [r for r in rows if all(r["command"][k] == rest[k] for k in range(3) if k != axis)]
    mine.sort(key=lambda row: float(row["command"][axis]))
    if len(mine) < 2:
        return []
    title, unit = COMMAND_CHANNELS[axis]
    x = [row["command"][axis] for row in mine]
    achieved = [row["achieved"][axis] if row.get("achieved") else np.nan for row in mine]
    angles = ("roll, RMS", "roll_rms_rad", "robot"), ("pitch, mean", "pitch_rad", "other")
    leans = [
        Line(label, x, [DEG * row.get(name, np.nan) for row in mine], css)
        for label, name, css in angles
    ]
    speeds = [Line("commanded", x, x, "ref"), Line("achieved", x, achieved, "robot")]
    drawn = (title, f"({unit})", speeds), ("Base roll and pitch", "(deg)", leans)
    along = f"commanded ({unit})"
    return [
        figures.line_chart(lines, title=name, unit=of, x_label=along) for name, of, lines in drawn
    ]
