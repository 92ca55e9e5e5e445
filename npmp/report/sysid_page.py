"""The page of `npmp sysid`: what was found, and measured angles against simulated ones, before and
after."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npmp.identification import KINDS, UNITS, Identified, Recording, Stand, StandLog
from npmp.report import figures
from npmp.report.figures import Line
from npmp.report.parts import (
    Bar,
    Bars,
    Cell,
    Chart,
    Charts,
    Fold,
    Lines,
    Row,
    Section,
    Table,
    Words,
    assemble,
    number,
)

_BIAS = KINDS.index("bias")
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
    """Write the page; gives back its path. result: the content of sysid.json."""
    before, after = (
        1e3 * float(np.sqrt(np.square(rms).mean())) for rms in (found.rms_before, found.rms_after)
    )
    cards = [
        (
            "Angles missed",
            f"{number(after)} mrad",
            f"root mean square, all joints; {number(before)} before",
        ),
        (
            "Recorded",
            f"{number(log.seconds)} s",
            f"{len(log.recordings)} recordings at {number(log.rate_hz)} Hz",
        ),
    ]
    if "coverage" in result:
        share = number(result["coverage"]["within_2"])
        cards.append(("Within two errors", share, "of the true values; 0.95 are due"))
    charts = _charts(stand, log.recordings[0], found)
    told = [
        Words(
            "Simulated in open loop from the first reading on, by the model as it was and as it was identified."
        )
    ]
    folded = (
        [Fold(f"{len(charts) - _OPEN} more", [Charts(charts[_OPEN:])])]
        if len(charts) > _OPEN
        else []
    )
    sections = [
        Section("found", "What was found", _found(found)),
        Section(
            "apart",
            "What these motions do not tell",
            [Lines(result["not_told_apart"]), _certainty(found)],
        ),
        Section(
            "angles",
            "Measured and simulated angles",
            [*told, _missed(found), Charts(charts[:_OPEN]), *folded],
        ),
    ]
    title = f"{result['robot']}: joints as identified"
    return assemble(out, title=title, cards=cards, sections=sections, provenance=provenance)


def _found(found: Identified) -> list[Any]:
    """Estimates with their errors, below them what the model had."""
    kinds = [k for k in range(len(KINDS)) if (found.error[:, k] > 0.0).any()]
    columns = ("joint", *(f"{KINDS[k]} ({UNITS[KINDS[k]]})" for k in kinds))
    rows: list[Row] = [
        [name]
        + [
            Cell(
                f"{number(found.estimate[j, k], 4)} ± {number(found.error[j, k], 2)}",
                float(found.estimate[j, k]),
            )
            for k in kinds
        ]
        for j, name in enumerate(found.joints)
    ]
    model: list[Row] = [
        ["the model, mean", *(Cell.of(float(found.nominal[:, k].mean()), 4) for k in kinds)]
    ]
    words = "± one standard error, widened by how long residuals resemble themselves; limited by what was known before."
    return [Words(words), Table(columns, rows, last=model, sortable=True)]


def _certainty(found: Identified) -> Table:
    """How well a joint's parameters are told from one another."""
    rows = []
    for j, name in enumerate(found.joints):
        upper = np.triu(found.correlation(j), 1)
        first, second = np.unravel_index(int(np.argmax(np.abs(upper))), upper.shape)
        pair = f"{KINDS[first]}, {KINDS[second]}: {number(float(upper[first, second]), 2)}"
        rows.append(
            (
                name,
                Cell.of(float(found.condition[j]), 1),
                pair,
                Cell.of(float(found.correlation_time[j]), 1),
            )
        )
    columns = (
        "joint",
        "condition number",
        "most correlated",
        "samples that residuals resemble themselves",
    )
    return Table(columns, rows, sortable=True)


def _missed(found: Identified) -> Bars:
    """Residuals by joint, as they were and are."""
    bars = []
    for name, before, after in zip(
        found.joints, 1e3 * found.rms_before, 1e3 * found.rms_after, strict=True
    ):
        bars += [
            Bar(f"{name}, before", float(before), number(before), "other"),
            Bar("after", float(after), number(after)),
        ]
    return Bars("Root mean square of the angles missed", bars, unit="mrad")


def _charts(stand: Stand, recording: Recording, found: Identified) -> list[Chart]:
    """A chart per joint of a stretch in the middle of a recording."""
    both = np.stack((found.nominal, found.estimate))
    speed = None if recording.velocity is None else recording.velocity[0]
    motion = stand.run(both, recording.command, recording.position[0], speed)
    read = motion.position + both[:, None, :, _BIAS]
    total, length = len(recording.command), round(_WINDOW_S * stand.rate_hz)
    part = slice(max(0, (total - length) // 2), min(total, (total + length) // 2))
    time = np.arange(total)[part] / stand.rate_hz
    return [
        figures.line_chart(
            [
                Line("measured", time, recording.position[part, j], "ref"),
                Line("before", time, read[0][part, j], "other"),
                Line("after", time, read[1][part, j], "robot"),
            ],
            title=name,
            unit="rad",
        )
        for j, name in enumerate(found.joints)
    ]
