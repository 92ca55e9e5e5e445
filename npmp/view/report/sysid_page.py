"""The page of `npmp sysid`: estimated joint parameters, and measured against simulated angles."""

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

# joints whose charts are open
_OPEN = 6
# stretch of a recording in a chart [s]
_WINDOW_S = 6.0


def write(
    out: Path,
    stand: Stand,
    log: StandLog,
    estimate: Identified,
    result: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> Path:
    """Write the page; returns its path. result: the content of sysid.json."""
    before, after = (
        parts.number(1e3 * float(np.sqrt(np.square(rms).mean())))
        for rms in (estimate.rms_before, estimate.rms_after)
    )
    cards = [
        ("Angle error", f"{after} mrad", f"root mean square of all joints; {before} before"),
        (
            "Recorded",
            f"{parts.number(log.seconds)} s",
            f"{len(log.recordings)} recordings at {parts.number(log.rate_hz)} Hz",
        ),
    ]
    if "coverage" in result:
        share = parts.number(result["coverage"]["within_2"])
        cards.append(("Within two errors", share, "of the true values; expected: 0.95"))
    charts = _charts(stand, log.recordings[0], estimate)
    angles: list[Any] = [
        parts.Paragraph("Simulated in open loop, by the original and by the identified model."),
        parts.Charts(charts[:_OPEN]),
    ]
    if rest := charts[_OPEN:]:
        angles.append(parts.Fold(f"{len(rest)} more", [parts.Charts(rest)]))
    return parts.assemble(
        out,
        title=f"{result['robot']}: identified joints",
        cards=cards,
        sections=[
            parts.Section("estimates", "Estimates", _estimates(estimate)),
            parts.Section(
                "undetermined",
                "Not determined by these motions",
                [parts.BulletList(result["not_told_apart"])],
            ),
            parts.Section("angles", "Measured and simulated angles", angles),
        ],
        provenance=provenance,
    )


def _estimates(estimate: Identified) -> list[Any]:
    """A table of estimates with standard errors and angle errors; last the original model's."""
    kinds = [k for k in range(len(KINDS)) if (estimate.error[:, k] > 0.0).any()]
    columns = ["joint", *(f"{KINDS[k]} ({UNITS[KINDS[k]]})" for k in kinds)]
    columns += ["error before (mrad)", "after (mrad)"]
    rows: list[list[str | parts.Cell]] = []
    for j, name in enumerate(estimate.joints):
        cells = [
            parts.Cell(f"{parts.number(value, 4)} ± {parts.number(error, 2)}", float(value))
            for value, error in zip(
                estimate.estimate[j, kinds], estimate.error[j, kinds], strict=True
            )
        ]
        errors = (1e3 * float(rms[j]) for rms in (estimate.rms_before, estimate.rms_after))
        rows.append([name, *cells, *(parts.Cell.of(error, 2) for error in errors)])
    means = (parts.Cell.of(float(estimate.nominal[:, k].mean()), 4) for k in kinds)
    original: list[str | parts.Cell] = ["original model, mean", *means, "", ""]
    text = (
        "± one standard error, widened by the autocorrelation of the residuals and bounded by the "
        "prior. Error: root mean square of measured minus simulated angles."
    )
    table = parts.Table(columns, rows, last=[original], sortable=True)
    return [parts.Paragraph(text), table]


def _charts(stand: Stand, recording: JointRecording, estimate: Identified) -> list[parts.Chart]:
    """A chart per joint of a stretch in the middle of a recording."""
    both = np.stack((estimate.nominal, estimate.estimate))
    simulated = stand.replay(both, recording).position + both[:, None, :, BIAS]
    total = len(recording.command)
    length = round(_WINDOW_S * stand.rate_hz)
    part = slice(max(0, (total - length) // 2), min(total, (total + length) // 2))
    time = np.arange(total)[part] / stand.rate_hz
    angles = {
        "measured": (recording.position, "ref"),
        "before": (simulated[0], "other"),
        "after": (simulated[1], "robot"),
    }
    charts = []
    for j, name in enumerate(estimate.joints):
        lines = [Line(label, time, values[part, j], css) for label, (values, css) in angles.items()]
        charts.append(figures.line_chart(lines, title=name, unit="rad"))
    return charts
