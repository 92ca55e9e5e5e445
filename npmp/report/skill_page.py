"""Pages of `npmp skill`: robots that wander, and what lies between two clips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npmp.analysis import Movement, Wandering
from npmp.analysis.movement import EDGES
from npmp.report import figures
from npmp.report.figures import Line
from npmp.report.page import replay_section
from npmp.report.parts import Charts, Section, Table, Words, assemble, number
from npmp.report.replay import ReplayClip
from npmp.robots import Robot

CSS = {"prior": "robot", "white": "ref", "white_actions": "other"}


def wandering(
    out: Path,
    robot: Robot,
    found: Mapping[str, Any],
    trials: Mapping[str, Wandering],
    provenance: Mapping[str, Any],
    recorded: Movement | None = None,
) -> Path:
    """Write the page of robots on latents of the prior and on noise; gives back its path.

    found: the content of wander.json. recorded: how the recordings move, to compare with.
    """
    clips = [
        ReplayClip(
            f"{kind} {i}",
            trial.qpos[:, i].numpy(),
            1.0 / trial.dt,
            tracked_frames=trial.up_frames(i),
        )
        for kind, trial in trials.items()
        for i in range(trial.qpos.shape[1])
    ]
    lines = []
    for kind, trial in trials.items():
        time = np.linspace(0.0, trial.cap_s, 201)
        ended = np.where(trial.still_up().numpy(), np.inf, trial.up_s.numpy())
        lines.append(Line(kind, time, (ended[None, :] > time[:, None]).mean(1), CSS[kind]))
    chart = figures.line_chart(
        lines, title="Robots still up", unit="share", width=940, height=240, y_range=(0.0, 1.0)
    )
    columns = (
        "latents",
        "up, mean (s)",
        "median (s)",
        "up to the end",
        "path (m)",
        "speed (m/s)",
        "prior / this",
    )
    rows = []
    for kind, row in found["latents"].items():
        ratio = row.get("prior_up_ratio")
        shown = (
            ""
            if ratio is None
            else f"{number(ratio['ratio'])} ({number(ratio['low'])} to {number(ratio['high'])})"
        )
        values = (
            row[key] for key in ("up_s_mean", "up_s_median", "up_to_the_end", "path_m", "speed_mps")
        )
        rows.append((kind, *map(number, values), shown))
    words = (
        f"{found['robots']} robots from the {found['starts']}, {number(found['seconds'])} s at most: times of those "
        "still up then count as that. prior: the latents' AR(1) process; white: independent latents of the same "
        "variance; "
        "white_actions: joint targets with the mean and spread that they have under the prior, independent at every "
        "step. Starts, physics, senses and pushes are the same."
    )
    best = found["latents"]["prior"]
    sections = [Section("up", "How long they stay up", [Words(words), Table(columns, rows), chart])]
    if recorded is not None and best["overlap"]:  # none of a trial that ended at once
        sections.append(_likeness(trials["prior"].movement, recorded, best["overlap"]))
    most = f"mean of {found['robots']} robots, {number(found['seconds'])} s at most"
    cards = [
        ("Up on the prior", f"{number(best['up_s_mean'])} s", most),
        (
            "Path",
            f"{number(best['path_m'])} m",
            f"mean until the fall, {number(best['speed_mps'])} m/s",
        ),
    ]
    return _page(
        out,
        robot,
        f"{found['module']}: wandering without a task",
        clips,
        sections,
        cards,
        provenance,
    )


def _likeness(prior: Movement, recorded: Movement, overlap: Mapping[str, float]) -> Section:
    """Histograms of both, one over the other."""
    charts = []
    shown = {
        "speed_mps": ("Speed", "m/s"),
        "turn_rps": ("Turn", "rad/s"),
        "feet_up": ("Feet off the ground", ""),
    }
    for name, (title, unit) in shown.items():
        pair = [np.asarray(getattr(movement, name), dtype=float) for movement in (prior, recorded)]
        if not all(len(values) for values in pair):
            continue
        weights = [np.repeat([1.0 - i, i], [len(values) for values in pair]) for i in (0.0, 1.0)]
        bins = {"bins": len(EDGES[name]) - 1, "top": EDGES[name][-1] - EDGES[name][0]}
        charts.append(
            figures.histogram(
                np.concatenate(pair), title=title, unit=unit, weights=weights[0], before=weights[1],
                names=("prior", "recordings"), **bins,
            )
        )  # fmt: skip
    words = (
        "On latents of the prior, and in the recordings that robots started from: speed and yaw rate averaged over "
        "half a second, feet more than 5 mm above the ground. Shared area of the histograms: "
        + ", ".join(f"{key.partition('_')[0]} {number(share)}" for key, share in overlap.items())
        + "."
    )
    return Section(
        "likeness", "How like the recordings they move", [Words(words), Charts(charts, small=True)]
    )


def interpolation(
    out: Path,
    robot: Robot,
    found: Mapping[str, Any],
    motions: Mapping[str, tuple[np.ndarray, int]],
    rate_hz: float,
    provenance: Mapping[str, Any],
) -> Path:
    """Write the page of robots between two clips; gives back its path.

    found: the content of interpolation.json. motions: qpos (T, nq) and the frames until the fall,
    by name.
    """
    clips = [
        ReplayClip(name, qpos, rate_hz, tracked_frames=frames)
        for name, (qpos, frames) in motions.items()
    ]
    rows = found["weights"]
    w = [row["w"] for row in rows]
    charts = [
        figures.line_chart([Line(title, w, [row[key] for row in rows])], title=title, unit=unit, x_label="w")
        for key, title, unit in (
            ("forward_mps", "forward velocity", "m/s"), ("yaw_rate_rps", "yaw rate", "rad/s"), ("up_s", "time up", "s"),
        )
    ]  # fmt: skip
    columns = ("w", "forward (m/s)", "lateral (m/s)", "yaw rate (rad/s)", "up (s)", "of (s)")
    keys = ("w", "forward_mps", "lateral_mps", "yaw_rate_rps", "up_s", "of_s")
    words = (
        f"z = (1 − w) z_a + w z_b, w = 0: {found['from']}, w = 1: {found['to']}; mixed by {found['aligned_by']}, "
        f"{found['mix']}; the decoder is frozen, the encoder has no say."
    )
    table = Table(columns, [[number(row[key]) for key in keys] for row in rows])
    section = Section(
        "between", "Between the clips", [Words(words), Charts(charts, small=True), table]
    )
    return _page(
        out, robot, f"{found['module']}: between two clips", clips, [section], (), provenance
    )


def _page(
    out: Path,
    robot: Robot,
    title: str,
    clips: Sequence[ReplayClip],
    told: Sequence[Section],
    cards: Sequence[tuple[str, str, str]],
    provenance: Mapping[str, Any],
) -> Path:
    shown, packed = replay_section(robot, clips)
    return assemble(
        out, title=title, cards=cards, sections=[shown, *told], replay=packed, provenance=provenance
    )
