"""The page of `npmp actuator`: predicted against measured torque."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npmp.actuators.evaluation import Evaluation, Prediction
from npmp.report import figures
from npmp.report.figures import Line
from npmp.report.parts import Cell, Charts, Section, Table, Words, assemble, number

SHOWN = 6  # traces with curves: those of median error and those around it
SECONDS = 4.0  # of each, where its torque moves most
COLUMNS = ("one step (Nm)", "on its own (Nm)", "constant gains (Nm)", "spread of the torque (Nm)")
KEYS = ("rmse_nm", "rollout_rmse_nm", "baseline_rmse_nm", "torque_std_nm")


def judged(out: Path, evaluation: Evaluation, part: str, provenance: Mapping[str, Any]) -> Path:
    """Write the page; gives back its path. part: what it was judged on, in words."""
    found = evaluation.figures
    words = (
        f"{found['kind']} on {part}: {number(found['seconds'])} s at {number(found['rate_hz'])} Hz. RMSE of the "
        "torque, one step ahead of measured torques, and on the model's own torques from each trace's first on (the "
        "two are one where a model takes no torque). Constant gains: the best PD law, fitted to what the model was "
        "fitted to."
    )
    if found["kind"] in ("pd", "hybrid") and "position_mae_rad" in found:
        words += (
            " Torques are those at the log's pendulum: what accelerates the rotor is taken off."
        )
    ratio = found["baseline_rmse_nm"] / max(found["rollout_rmse_nm"], 1e-12)
    cards = [
        ("On its own", f"{number(found['rollout_rmse_nm'])} Nm", "RMSE of the torque"),
        ("One step", f"{number(found['rmse_nm'])} Nm", "RMSE of the torque"),
        (
            "Constant gains",
            f"{number(found['baseline_rmse_nm'])} Nm",
            f"{number(ratio)} times as much",
        ),
    ]
    sections = [
        Section("torque", "Torque", [Words(words), *_over_seconds(found), *_curves(evaluation)]),
        *(_table(found, what) for what in ("actuators", "recordings") if len(found[what]) > 1),
        _latents(found),
    ]
    title = f"Actuator model: {found['kind']}"
    return assemble(out, title=title, cards=cards, sections=sections, provenance=provenance)


def _over_seconds(found: Mapping[str, Any]) -> list[Any]:
    after = found["rollout_rmse_nm_after_s"]
    if len(after) < 2:
        return []
    seconds = [float(key) for key in after]
    lines = [
        Line("constant gains", seconds, [found["baseline_rmse_nm"]] * len(seconds), "ref"),
        Line("model on its own", seconds, list(after.values())),
    ]
    title = "Error after so long without a measured torque"
    return [figures.line_chart(lines, title=title, unit="Nm", x_label="time since (s)", width=940)]


def _curves(evaluation: Evaluation) -> list[Any]:
    """Some traces, the stretch of each where the torque moves most, and predicted over measured of
    all."""
    by_error = sorted(
        evaluation.predictions, key=lambda p: float(np.square(p.rollout - p.trace.torque).mean())
    )
    middle = max(0, len(by_error) // 2 - SHOWN // 2)
    rate = evaluation.figures["rate_hz"]
    charts = [_curve(p, rate) for p in by_error[middle : middle + SHOWN]]
    return [*charts, _scatter(evaluation.predictions)]


def _curve(p: Prediction, rate_hz: float) -> Any:
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
    title = f"{p.trace.recording}, {p.trace.actuator}"
    return figures.line_chart(lines, title=title, unit="Nm", width=940, height=220)


def _scatter(predictions: Sequence[Prediction], points: int = figures.MAX_POINTS // 2) -> Any:
    """Predicted over measured torque at moments spread evenly over all traces."""
    measured = np.concatenate([p.trace.torque for p in predictions])
    told = np.concatenate([p.rollout for p in predictions])
    at = np.linspace(0, len(measured) - 1, min(points, len(measured))).astype(int)
    at = at[np.argsort(measured[at], kind="stable")]
    # dots are curves with a gap after every point; of more points, thinned, some would be joined
    x, y = (
        np.repeat(measured[at], 2),
        np.stack((told[at], np.full(len(at), np.nan)), -1).reshape(-1),
    )
    ends = [float(measured.min()), float(measured.max())]
    lines = [Line("equal", ends, ends, "ref"), Line("model on its own", x, y)]
    return Charts(
        [
            figures.line_chart(
                lines,
                title="Predicted over measured",
                unit="Nm",
                x_label="measured (Nm)",
                height=320,
            )
        ]
    )


def _table(found: Mapping[str, Any], what: str) -> Section:
    rows = [(name, *(Cell.of(row[key], 4) for key in KEYS)) for name, row in found[what].items()]
    return Section(
        what,
        what.capitalize(),
        [Table((what[:-1], *COLUMNS), rows, sortable=True, tall=len(rows) > 20)],
    )


def _latents(found: Mapping[str, Any]) -> Section | None:
    if (latents := found.get("latents")) is None:
        return None
    told = latents.get("told_apart")
    shown = "" if told is None else (
        f"{number(100 * told)} % of traces are fitted best with the latent of their own actuator, "
        f"{number(100 * latents['told_apart_by_all_traces'])} % of actuators by all their traces together "
        f"({number(100 * latents['told_apart_by_chance'])} % by chance). "
    )  # fmt: skip
    words = f"{shown}Likelihood of an actuator's log under the best of {latents['draws']} samples of N(0, I):"
    rows = [
        (name, Cell.of(value, 3), Cell.of(latents["rmse_nm_of_the_best_draw"][name], 4))
        for name, value in latents["nats_per_sample"].items()
    ]
    return Section(
        "latents",
        "Latents",
        [Words(words), Table(("actuator", "nats per sample", "RMSE (Nm)"), rows)],
    )
