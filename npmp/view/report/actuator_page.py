"""The page of `npmp actuator`: predicted against measured torque."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npmp.actuators.evaluation import Evaluation, Prediction
from npmp.view.report import figures
from npmp.view.report.figures import Line
from npmp.view.report.parts import Cell, Chart, Paragraph, Section, Table, assemble, number

# traces with curves, those around the median error
MAX_CURVES = 6
# stretch of each trace where its torque varies most [s]
WINDOW_S = 4.0
COLUMNS = {
    "rmse_nm": "one step (Nm)",
    "rollout_rmse_nm": "rollout (Nm)",
    "baseline_rmse_nm": "constant gains (Nm)",
    "torque_std_nm": "standard deviation of the torque (Nm)",
}


def write(out: Path, evaluation: Evaluation, part: str, provenance: Mapping[str, Any]) -> Path:
    """Write the page; returns its path. part: the evaluated part of the log, in words."""
    result = evaluation.figures
    text = (
        f"{result['kind']} on {part}: {number(result['seconds'])} s at {number(result['rate_hz'])} "
        "Hz. RMSE of the torque: one step ahead of measured torques, and in a rollout from each "
        "trace's start on the model's own torques (equal for a model without torque input). "
        "Constant gains: the best PD law, fitted to the same data."
    )
    if result["kind"] in ("pd", "hybrid") and "position_mae_rad" in result:
        text += " Torques are those at the log's pendulum, without the rotor's acceleration."
    rollout = result["rollout_rmse_nm"]
    baseline = result["baseline_rmse_nm"]
    rmse = "RMSE of the torque"
    ratio = f"{number(baseline / max(rollout, 1e-12))} times as much"
    content = [Paragraph(text), *_by_horizon(result), *_curves(evaluation)]
    tables = [_table(result, key) for key in ("actuators", "recordings") if len(result[key]) > 1]
    return assemble(
        out,
        title=f"Actuator model: {result['kind']}",
        cards=[
            ("Rollout", f"{number(rollout)} Nm", rmse),
            ("One step", f"{number(result['rmse_nm'])} Nm", rmse),
            ("Constant gains", f"{number(baseline)} Nm", ratio),
        ],
        sections=[Section("torque", "Torque", content), *tables],
        provenance=provenance,
    )


def _by_horizon(result: Mapping[str, Any]) -> list[Chart]:
    errors = result["rollout_rmse_nm_after_s"]
    if len(errors) < 2:
        return []
    seconds = [float(key) for key in errors]
    constant = Line("constant gains", seconds, [result["baseline_rmse_nm"]] * len(seconds), "ref")
    model = Line("model", seconds, list(errors.values()))
    title = "Error by time since the last measured torque"
    return [figures.wide(title, "Nm", constant, model, x_label="time since (s)", height=170)]


def _curves(evaluation: Evaluation) -> list[Chart]:
    by_error = sorted(
        evaluation.predictions, key=lambda p: float(np.square(p.rollout - p.trace.torque).mean())
    )
    middle = max(0, len(by_error) // 2 - MAX_CURVES // 2)
    rate_hz = evaluation.figures["rate_hz"]
    return [_curve(prediction, rate_hz) for prediction in by_error[middle : middle + MAX_CURVES]]


def _curve(prediction: Prediction, rate_hz: float) -> Chart:
    trace = prediction.trace
    window = min(len(trace), round(WINDOW_S * rate_hz))
    variation = np.concatenate(([0.0], np.cumsum(np.abs(np.diff(trace.torque)))))
    start = int(np.argmax(variation[window - 1 :] - variation[: len(variation) - window + 1]))
    part = slice(start, start + window)
    time = np.arange(start, start + window) / rate_hz
    lines = [
        Line("measured", time, trace.torque[part], "ref"),
        Line("constant gains", time, prediction.baseline[part], "other"),
        Line("model", time, prediction.rollout[part]),
    ]
    return figures.wide(f"{trace.recording}, {trace.actuator}", "Nm", *lines, height=220)


def _table(result: Mapping[str, Any], key: str) -> Section:
    rows = [(name, *(Cell.of(row[key], 4) for key in COLUMNS)) for name, row in result[key].items()]
    columns = (key[:-1], *COLUMNS.values())
    return Section(key, key.capitalize(), [Table(columns, rows, sortable=True)])
