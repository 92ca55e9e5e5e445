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
    """Write the page of robots on latents of the prior and on noise; returns its path.

    found: the content of wander.json. recorded: how the recordings move, to compare with.
    """
    clips, lines = [], []
    for kind, trial in trials.items():
        for i in range(trial.qpos.shape[1]):
            qpos, up = trial.qpos[:, i].numpy(), trial.up_frames(i)
            clips.append(ReplayClip(f"{kind} {i}", qpos, 1.0 / trial.dt, tracked_frames=up))
        time = np.linspace(0.0, trial.cap_s, 201)
        ended = np.where(trial.still_up().numpy(), np.inf, trial.up_s.numpy())
        lines.append(Line(kind, time, (ended[None, :] > time[:, None]).mean(1), CSS[kind]))
    chart = figures.wide("Robots still up", "share", *lines, height=240, y_range=(0.0, 1.0))
    columns = {
        "up_s_mean": "up, mean (s)",
        "up_s_median": "median (s)",
        "up_to_the_end": "up to the end",
        "path_m": "path (m)",
        "speed_mps": "speed (m/s)",
    }
    rows = []
    for kind, row in found["latents"].items():
        ratio, shown = row.get("prior_up_ratio"), ""
        if ratio is not None:
            value, low, high = (number(ratio[key]) for key in ("ratio", "low", "high"))
            shown = f"{value} ({low} to {high})"
        rows.append((kind, *(number(row[key]) for key in columns), shown))
    seconds = number(found["seconds"])
    words = (
        f"{found['robots']} robots from the {found['starts']}, {seconds} s at most: times of those "
        "still up then count as that. prior: the latents' AR(1) process; white: independent "
        "latents of the same variance; white_actions: joint targets with the mean and spread that "
        "they have under the prior, independent at every step. Starts, physics, senses and pushes "
        "are the same."
    )
    table = Table(("latents", *columns.values(), "prior / this"), rows)
    best = found["latents"]["prior"]
    sections = [Section("up", "How long they stay up", [Words(words), table, chart])]
    if recorded is not None and best["overlap"]:  # none of a trial that ended at once
        sections.append(_likeness(trials["prior"].movement, recorded, best["overlap"]))
    most = f"mean of {found['robots']} robots, {seconds} s at most"
    path = f"mean until the fall, {number(best['speed_mps'])} m/s"
    cards = [("Up on the prior", f"{number(best['up_s_mean'])} s", most)]
    cards.append(("Path", f"{number(best['path_m'])} m", path))
    title = f"{found['module']}: wandering without a task"
    return _page(out, robot, title, clips, sections, provenance, cards)


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
        one, other = (np.repeat([1.0 - i, i], [len(values) for values in pair]) for i in (0, 1))
        look: dict[str, Any] = {
            "weights": one,
            "before": other,
            "names": ("prior", "recordings"),
            "bins": len(EDGES[name]) - 1,
            "top": EDGES[name][-1] - EDGES[name][0],
        }
        charts.append(figures.histogram(np.concatenate(pair), title=title, unit=unit, **look))
    shares = (f"{key.partition('_')[0]} {number(share)}" for key, share in overlap.items())
    words = (
        "On latents of the prior, and in the recordings that robots started from: speed and yaw "
        "rate averaged over half a second, feet more than 5 mm above the ground. Shared area of "
        f"the histograms: {', '.join(shares)}."
    )
    parts = [Words(words), Charts(charts, small=True)]
    return Section("likeness", "How like the recordings they move", parts)


def interpolation(
    out: Path,
    robot: Robot,
    found: Mapping[str, Any],
    motions: Mapping[str, tuple[np.ndarray, int]],
    rate_hz: float,
    provenance: Mapping[str, Any],
) -> Path:
    """Write the page of robots between two clips; returns its path.

    found: the content of interpolation.json. motions: qpos (T, nq) and the frames until the fall,
    by name.
    """
    clips = [
        ReplayClip(name, qpos, rate_hz, tracked_frames=frames)
        for name, (qpos, frames) in motions.items()
    ]
    rows = found["weights"]
    shown = {
        "forward_mps": ("forward velocity", "m/s"),
        "yaw_rate_rps": ("yaw rate", "rad/s"),
        "up_s": ("time up", "s"),
    }
    charts = []
    for key, (title, unit) in shown.items():
        line = Line(title, [row["w"] for row in rows], [row[key] for row in rows])
        charts.append(figures.line_chart([line], title=title, unit=unit, x_label="w"))
    columns = ("w", "forward (m/s)", "lateral (m/s)", "yaw rate (rad/s)", "up (s)", "of (s)")
    keys = ("w", "forward_mps", "lateral_mps", "yaw_rate_rps", "up_s", "of_s")
    words = (
        f"z = (1 − w) z_a + w z_b, w = 0: {found['from']}, w = 1: {found['to']}; mixed by "
        f"{found['aligned_by']}, {found['mix']}; the decoder is frozen, the encoder is not used."
    )
    table = Table(columns, [[number(row[key]) for key in keys] for row in rows])
    parts = [Words(words), Charts(charts, small=True), table]
    section = Section("between", "Between the clips", parts)
    title = f"{found['module']}: between two clips"
    return _page(out, robot, title, clips, [section], provenance)


def _page(
    out: Path,
    robot: Robot,
    title: str,
    clips: Sequence[ReplayClip],
    sections: Sequence[Section],
    provenance: Mapping[str, Any],
    cards: Sequence[tuple[str, str, str]] = (),
) -> Path:
    shown, packed = replay_section(robot, clips)
    made: dict[str, Any] = {"replay": packed, "provenance": provenance}
    return assemble(out, title=title, cards=cards, sections=[shown, *sections], **made)
