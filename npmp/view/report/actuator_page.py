"""The page of `npmp actuator`: predicted against measured torque."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npmp.actuators.evaluation import Evaluation, Prediction
from npmp.view.report import figures
from npmp.view.report.figures import Line
from npmp.view.report.parts import Cell, Chart, Section, Table, Words, assemble, number

# traces with curves: those of median error and those around it
SHOWN = 6
# of each, where its torque moves most
SECONDS = 4.0
COLUMNS = {
    "rmse_nm": "one step (Nm)",
    "rollout_rmse_nm": "on its own (Nm)",
    "baseline_rmse_nm": "constant gains (Nm)",
    "torque_std_nm": "spread of the torque (Nm)",
}


def judged(out: Path, evaluation: Evaluation, part: str, provenance: Mapping[str, Any]) -> Path:
    """Write the page; returns its path. part: of the log that it was judged on, in words."""
    result = evaluation.figures
    words = (
        f"{result['kind']} on {part}: {number(result['seconds'])} s at {number(result['rate_hz'])} "
        "Hz. RMSE of the torque, one step ahead of measured torques, and on the model's own "
        "torques from each trace's first on (equal where a model takes no torque). Constant gains: "
        "the best PD law, fitted to what the model was fitted to."
    )
    if result["kind"] in ("pd", "hybrid") and "position_mae_rad" in result:
        words += " Torques are those at the log's pendulum, without what accelerates the rotor."
    rollout = result["rollout_rmse_nm"]
    baseline = result["baseline_rmse_nm"]
    rmse = "RMSE of the torque"
    ratio = f"{number(baseline / max(rollout, 1e-12))} times as much"
    cards = [
        ("On its own", f"{number(rollout)} Nm", rmse),
        ("One step", f"{number(result['rmse_nm'])} Nm", rmse),
        ("Constant gains", f"{number(baseline)} Nm", ratio),
    ]
    sections = [
        Section("torque", "Torque", [Words(words), *_over_seconds(result), *_curves(evaluation)]),
        *(_table(result, what) for what in ("actuators", "recordings") if len(result[what]) > 1),
    ]
    title = f"Actuator model: {result['kind']}"
    return assemble(out, title=title, cards=cards, sections=sections, provenance=provenance)


def _over_seconds(found: Mapping[str, Any]) -> list[Chart]:
    after = found["rollout_rmse_nm_after_s"]
    if len(after) < 2:
        return []
    seconds = [float(key) for key in after]
    constant = Line("constant gains", seconds, [found["baseline_rmse_nm"]] * len(seconds), "ref")
    own = Line("model on its own", seconds, list(after.values()))
    title = "Error after so long without a measured torque"
    return [figures.wide(title, "Nm", constant, own, x_label="time since (s)", height=170)]


def _curves(evaluation: Evaluation) -> list[Chart]:
    """Some traces, the stretch of each where the torque moves most."""
    by_error = sorted(
        evaluation.predictions, key=lambda p: float(np.square(p.rollout - p.trace.torque).mean())
    )
    middle = max(0, len(by_error) // 2 - SHOWN // 2)
    rate = evaluation.figures["rate_hz"]
    return [_curve(p, rate) for p in by_error[middle : middle + SHOWN]]


def _curve(p: Prediction, rate_hz: float) -> Chart:
    window = min(len(p.trace), round(SECONDS * rate_hz))
    moves = np.concatenate(([0.0], np.cumsum(np.abs(np.diff(p.trace.torque)))))
    first = int(np.argmax(moves[window - 1 :] - moves[: len(moves) - window + 1]))
    part = slice(first, first + window)
    time = np.arange(first, first + window) / rate_hz
    lines = [
        Line("measured", time, p.trace.torque[part], "ref"),
        Line("constant gains", time, p.baseline[part], "other"),
        Line("model on its own", time, p.rollout[part]),
    ]
    return figures.wide(f"{p.trace.recording}, {p.trace.actuator}", "Nm", *lines, height=220)


def _table(found: Mapping[str, Any], what: str) -> Section:
    rows = [(name, *(Cell.of(row[key], 4) for key in COLUMNS)) for name, row in found[what].items()]
    columns = (what[:-1], *COLUMNS.values())
    return Section(what, what.capitalize(), [Table(columns, rows, sortable=True)])
