"""The page of `npmp sysid`: what was found, and measured angles against simulated ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npmp.actuators.actuator_log import JointRecording, StandLog
from npmp.actuators.identification.estimation import Identified
from npmp.actuators.identification.stand import BIAS, KINDS, UNITS, Stand
from npmp.view.report import figures, parts
from npmp.view.report.figures import Line

_OPEN = 6  # joints whose charts are open
_WINDOW_S = 6.0  # of a recording that is drawn: its motions are fast


def identified(
    out: Path,
    stand: Stand,
    log: StandLog,
    found: Identified,
    result: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> Path:
    """Write the page; returns its path. result: the content of sysid.json."""
    before, after = (
        parts.number(1e3 * float(np.sqrt(np.square(rms).mean())))
        for rms in (found.rms_before, found.rms_after)
    )
    missed = f"root mean square, all joints; {before} before"
    recorded = f"{len(log.recordings)} recordings at {parts.number(log.rate_hz)} Hz"
    length = f"{parts.number(log.seconds)} s"
    cards = [("Angles missed", f"{after} mrad", missed), ("Recorded", length, recorded)]
    if "coverage" in result:
        share = parts.number(result["coverage"]["within_2"])
        cards.append(("Within two errors", share, "of the true values; 0.95 are due"))
    charts = _charts(stand, log.recordings[0], found)
    angles: list[Any] = [
        parts.Words(
            "Simulated in open loop from the first reading on, by the model as it was and as it "
            "was identified."
        ),
        _missed(found),
        parts.Charts(charts[:_OPEN]),
    ]
    if rest := charts[_OPEN:]:
        angles.append(parts.Fold(f"{len(rest)} more", [parts.Charts(rest)]))
    unknown = [parts.Lines(result["not_told_apart"]), _certainty(found)]
    sections = [
        parts.Section("found", "What was found", _found(found)),
        parts.Section("apart", "What these motions do not tell", unknown),
        parts.Section("angles", "Measured and simulated angles", angles),
    ]
    title = f"{result['robot']}: joints as identified"
    return parts.assemble(out, title=title, cards=cards, sections=sections, provenance=provenance)


def _found(found: Identified) -> list[Any]:
    """Estimates with their errors, below them what the model had."""
    kinds = [k for k in range(len(KINDS)) if (found.error[:, k] > 0.0).any()]
    columns = ("joint", *(f"{KINDS[k]} ({UNITS[KINDS[k]]})" for k in kinds))
    rows: list[list[str | parts.Cell]] = []
    for j, name in enumerate(found.joints):
        cells = [
            parts.Cell(f"{parts.number(value, 4)} ± {parts.number(error, 2)}", float(value))
            for value, error in zip(found.estimate[j, kinds], found.error[j, kinds], strict=True)
        ]
        rows.append([name, *cells])
    means = (parts.Cell.of(float(found.nominal[:, k].mean()), 4) for k in kinds)
    model: list[str | parts.Cell] = ["the model, mean", *means]
    words = (
        "± one standard error, widened by the autocorrelation of the residuals; limited by what "
        "was known before."
    )
    return [parts.Words(words), parts.Table(columns, rows, last=[model], sortable=True)]


def _certainty(found: Identified) -> parts.Table:
    """How well a joint's parameters are told from one another."""
    rows = []
    for j, name in enumerate(found.joints):
        first, second, correlation = found.most_correlated(j)
        pair = f"{first}, {second}: {parts.number(correlation, 2)}"
        condition = float(found.condition[j])
        time = float(found.correlation_time[j])
        rows.append((name, parts.Cell.of(condition, 1), pair, parts.Cell.of(time, 1)))
    columns = ("joint", "condition number", "most correlated", "autocorrelation time (samples)")
    return parts.Table(columns, rows, sortable=True)


def _missed(found: Identified) -> parts.Bars:
    """Residuals by joint, before and after."""
    bars = []
    for j, name in enumerate(found.joints):
        before, after = 1e3 * float(found.rms_before[j]), 1e3 * float(found.rms_after[j])
        bars.append(parts.Bar(f"{name}, before", before, parts.number(before), "other"))
        bars.append(parts.Bar("after", after, parts.number(after)))
    return parts.Bars("Root mean square of the angles missed", bars, unit="mrad")


def _charts(stand: Stand, recording: JointRecording, found: Identified) -> list[parts.Chart]:
    """A chart per joint of a stretch in the middle of a recording."""
    both = np.stack((found.nominal, found.estimate))
    read = stand.replay(both, recording).position + both[:, None, :, BIAS]
    total = len(recording.command)
    length = round(_WINDOW_S * stand.rate_hz)
    part = slice(max(0, (total - length) // 2), min(total, (total + length) // 2))
    time = np.arange(total)[part] / stand.rate_hz
    angles = {"measured": (recording.position, "ref"), "before": (read[0], "other")}
    angles["after"] = (read[1], "robot")
    charts = []
    for j, name in enumerate(found.joints):
        lines = [Line(name, time, values[part, j], css) for name, (values, css) in angles.items()]
        charts.append(figures.line_chart(lines, title=name, unit="rad"))
    return charts
