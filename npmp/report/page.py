"""The report of a run: each part of `ReportData` becomes a section, a part that is missing none."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mocap_data.motion import ReferenceMotion
from npmp import robots
from npmp.evaluation.rollouts import ClipRollout, Rollouts, read_rollouts
from npmp.report import figures, replay
from npmp.report.data import ReportData, Walking
from npmp.report.figures import Line
from npmp.report.motion_table import motion_table
from npmp.report.parts import (
    FOOT_CSS,
    Bar,
    Bars,
    Chart,
    Charts,
    Fold,
    ReplayPlayer,
    Section,
    Table,
    Words,
    assemble,
    foot_label,
    number,
)
from npmp.training.tables import read_metrics

FloatArray = npt.NDArray[np.float64]
# Beyond these the page would grow past what a browser opens at once; the figures of the rest are in
# the tables.
MAX_CLIPS_DRAWN = 20
MAX_METRICS_OPEN, MAX_METRICS = 12, 60
WALKING = "walking on command"  # how the replay lists it


def build(out_html: Path | str, data: ReportData) -> Path:
    """Write the report and return its path. The file appears whole or not at all.

    Raises:
      InputError: when a file that `data` names is missing or malformed, or its robot is unknown.
    """
    evaluated = list((data.evaluation or {}).get("clips", ()))
    rollouts = None
    if data.rollouts is not None:
        rollouts = read_rollouts(data.rollouts)  # sorted by name
        place = {clip["name"]: i for i, clip in enumerate(evaluated)}
        ordered = sorted(rollouts.clips, key=lambda clip: place.get(clip.name, len(place)))
        rollouts = replace(rollouts, clips=tuple(ordered))
    section, packed = _replay(data, rollouts)
    index = {clip["name"]: i for i, clip in enumerate(packed["clips"])} if packed else {}
    return assemble(
        Path(out_html),
        title=data.title,
        subtitle=data.subtitle,
        cards=list(data.headline) or _headline_of(evaluated),
        sections=[
            section,
            _imitation(evaluated, rollouts, index),
            _walking(data.walking, index),
            _retarget(data.motions),
            _learning(data.learning),
        ],
        replay=packed,
        provenance=data.provenance,
        scripts=("page.js", "tables.js"),
    )


def _mean(values: Iterable[float]) -> float:
    kept = [v for v in values if math.isfinite(v)]
    return sum(kept) / len(kept) if kept else math.nan


def _nan_rms(values: FloatArray) -> FloatArray:
    """Root mean square over the first axis of the finite values; NaN where there are none."""
    finite = np.isfinite(values)
    count, total = finite.sum(axis=0), (np.where(finite, values, 0.0) ** 2).sum(axis=0)
    return np.sqrt(np.where(count > 0, total / np.maximum(count, 1), np.nan))


def _headline_of(clips: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Headline figures from the evaluation, when the caller gives none."""
    if not clips:
        return []
    tracked = number(100 * _mean(c["tracked_fraction"] for c in clips))
    deviation = number(100 * _mean(c["base_deviation_m"]["mean"] for c in clips))
    joints = number(_mean(c["joint_error_rad"] for c in clips))
    many = f"mean of {len(clips)} clips" if len(clips) != 1 else "one clip"
    return [
        ("Tracked", f"{tracked} %", f"of the motion before the robot is lost, {many}"),
        ("Base deviation", f"{deviation} cm", "distance from the reference while tracked, mean"),
        ("Joint error", f"{joints} rad", "mean absolute difference to the reference"),
    ]


# ---- replay


def _replay(
    data: ReportData, rollouts: Rollouts | None
) -> tuple[Section | None, dict[str, Any] | None]:
    clips = [
        replay.ReplayClip(
            c.name, c.qpos, c.rate_hz, reference=c.reference_qpos, tracked_frames=c.tracked_frames
        )
        for c in (rollouts.clips if rollouts else ())
    ]
    if (walk := data.walking) is not None:
        both: dict[str, Any] = {"command": walk.command, "achieved": walk.achieved}
        clips.append(replay.ReplayClip(WALKING, walk.qpos, walk.rate_hz, **both))
    if not clips:
        return None, None
    return replay_section(robots.load(str(data.robot or (rollouts and rollouts.robot))), clips)


def replay_section(
    robot: robots.Robot, clips: Sequence[replay.ReplayClip]
) -> tuple[Section, dict[str, Any] | None]:
    """The replay, and its data (None where no clip can be drawn)."""
    packed, remarks = replay.pack(robot.model(), list(clips), robot.foot_bodies)
    notes = [Words(remark, "") for remark in remarks]
    shown = packed["clips"]
    if not shown:
        return Section("replay", "Replay", notes), None
    ghost, recording = any(c["layers"] > 1 for c in shown), any("points" in c for c in shown)
    if ghost:
        words = "The robot in blue, its reference as a grey ghost; lines on the floor: base paths."
    else:
        words = "The robot in blue; the line on the floor is its base's path."
    if recording:
        words += " The recording beside the robot, and where its keypoints are on the robot."
    if any("velocity" in c for c in shown):
        words += " Arrows: velocity commanded (grey) and achieved (blue) in m/s; arcs: yaw rate."
    feet = [foot_label(robot.foot_bodies, i) for i in range(len(robot.foot_bodies))]
    parts = [Words(words), ReplayPlayer(feet, ghost, recording), *notes]
    return Section("replay", "Replay", parts), packed


# ---- imitation


def _imitation(
    clips: Sequence[Mapping[str, Any]], rollouts: Rollouts | None, index: Mapping[str, int]
) -> Section | None:
    parts: list[Any] = [_evaluation_table(clips)] if clips else []
    if rollouts and rollouts.clips:
        drawn = rollouts.clips[:MAX_CLIPS_DRAWN]
        parts.append(_joint_table(rollouts))
        parts += [
            _clip_fold(clip, rollouts.foot_names, index.get(clip.name), i == 0)
            for i, clip in enumerate(drawn)
        ]
        if len(rollouts.clips) > len(drawn):
            words = f"Charts of the first {len(drawn)} of {len(rollouts.clips)} clips."
            parts.append(Words(f"{words} The replay has all of them.", ""))
    return Section("imitation", "Imitation", parts) if parts else None


def _evaluation_table(clips: Sequence[Mapping[str, Any]]) -> Table:
    columns = ["clip", "tracked (%)", "tracked (s)", "clip (s)"]
    columns += ["base deviation, mean (cm)", "max (cm)", "joint error (rad)"]
    table = [
        (
            *(100 * c["tracked_fraction"], c["tracked_s"], c["duration_s"]),
            *(100 * c["base_deviation_m"]["mean"], 100 * c["base_deviation_m"]["max"]),
            c["joint_error_rad"],
        )
        for c in clips
    ]
    rows = [[c["name"], *map(number, values)] for c, values in zip(clips, table, strict=True)]
    means = [["mean", *(number(_mean(column)) for column in zip(*table, strict=True))]]
    return Table(columns, rows, means if len(rows) > 1 else ())


def _joint_table(rollouts: Rollouts) -> Fold:
    rows = []
    for clip in rollouts.clips[:MAX_CLIPS_DRAWN]:
        rms = _nan_rms(clip.joint_difference_rad()[_tracked_part(clip)])
        rows.append([clip.name, *(number(float(value), 2) for value in rms)])
    columns = ("clip", *rollouts.joint_names)
    title = "Joint error while tracked (rad, root mean square)"
    return Fold(title, [Table(columns, rows, sortable=True)], is_open=True)


def _tracked_part(clip: ClipRollout) -> slice:
    """The frames that count: until the robot is lost, at least one."""
    return slice(0, max(1, clip.tracked_frames))


def _clip_fold(
    clip: ClipRollout, foot_names: Sequence[str], index: int | None, is_open: bool
) -> Fold:
    """The charts over time of one clip."""
    t, lost, tracked = clip.time_s, clip.lost_after_s, _tracked_part(clip)
    time_range = (0.0, float(t[-1])) if len(t) > 1 else None
    common: dict[str, Any] = {"x_range": time_range, "lost_after": lost, "clip": index}

    def chart(title: str, unit: str, *lines: Line) -> Chart:
        # a fall must not flatten the part that counts
        top = np.nanmax(np.asarray(lines[0].y)[tracked], initial=0.0)
        shown = (0.0, 1.35 * float(top)) if lost is not None and top > 0 else None
        return figures.line_chart(lines, title=title, unit=unit, y_range=shown, **common)

    difference = np.abs(clip.joint_difference_rad())
    worst = Line("worst joint", t, difference.max(axis=1), "other")
    mean = Line("mean of joints", t, difference.mean(axis=1))
    base = Line("base deviation", t, 100 * clip.base_deviation_m())
    charts = [chart("Base deviation", "(cm)", base), chart("Joint error", "(rad)", worst, mean)]
    # heights of the feet on one scale, so that they compare
    feet, reference = clip.foot_height, clip.reference_foot_height
    both = np.concatenate([feet[tracked], reference])
    finite = both[np.isfinite(both)]
    low, high = np.percentile(finite, [0.5, 99.5]) if finite.size else (0.0, 0.1)
    pad = 0.08 * max(high - low, 0.02)
    scale = (100 * float(low - pad), 100 * float(high + pad))
    names = [foot_label(foot_names, i) for i in range(feet.shape[1])]
    css = [FOOT_CSS[i % 4] for i in range(len(names))]
    for i, name in enumerate(names):
        lines = [Line("reference", t, 100 * reference[:, i], "ref")]
        lines.append(Line("robot", t, 100 * feet[:, i], css[i]))
        look = {"unit": "(cm)", "y_range": scale, "height": 140, **common}
        charts.append(figures.line_chart(lines, title=f"Foot height {name}", **look))
    footfall: list[Any] = []
    if len(t) > 1:
        stands = np.apply_along_axis(figures.stance, 0, feet, counted=tracked)
        like = np.apply_along_axis(figures.stance, 0, reference)
        footfall = [
            figures.footfall_chart(t, like, stands, names, css, clip=index, lost_after=lost),
            Words("A foot stands while it is within 2 cm of its lowest height."),
        ]
    whole = f"{number(len(t) / clip.rate_hz)} s"
    state = whole if lost is None else f"lost after {number(lost)} s of {whole}"
    return Fold(clip.name, [Charts(charts), *footfall], state, is_open)


# ---- walking


def _walking(walking: Walking | None, index: Mapping[str, int]) -> Section | None:
    if walking is None:
        return None
    command, achieved = walking.command, walking.achieved
    parts: list[Any] = [Words("Velocity in the robot's heading frame: commanded, and achieved.")]
    if walking.errors:
        parts.append(_error_bars(walking))
    names = (("Forward velocity", "(m/s)"), ("Lateral velocity", "(m/s)"), ("Yaw rate", "(rad/s)"))
    for k, (name, unit) in enumerate(names):
        lines = [Line("commanded", walking.time_s, command[:, k], "ref")]
        lines.append(Line("achieved", walking.time_s, achieved[:, k]))
        parts.append(figures.wide(name, unit, *lines, clip=index.get(WALKING)))
    columns = ("root mean square error", "forward (m/s)", "lateral (m/s)", "yaw rate (rad/s)")
    parts.append(Table(columns, [["policy", *map(number, _nan_rms(achieved - command))]]))
    return Section("walking", "Walking on command", parts)


def _error_bars(walking: Walking) -> Bars:
    (first, worst), *_ = walking.errors.items()
    bars = []
    for name, value in walking.errors.items():
        share = f" · {100 * value / worst:.0f} % of {first}" if name != first and worst > 0 else ""
        css = "robot" if name == list(walking.errors)[-1] else "ref"
        bars.append(Bar(name, value, number(value) + share, css))
    return Bars("Velocity error", bars, unit=walking.errors_caption)


# ---- retargeting and learning


def _retarget(motions: Sequence[ReferenceMotion]) -> Section | None:
    if not motions:
        return None
    words = (
        "How closely the robot's markers follow the recording, and how feet and joints keep to the "
        "floor and limits."
    )
    return Section("retargeting", "Retargeting", [Words(words), motion_table(motions)])


# What a reader looks for first; a column's place is that of the first pattern it matches.
_METRIC_ORDER = (
    *(r"tracked|success|survi", r"velocity_error|error_(before|after)", r"return|reward"),
    *(r"model", r"loss", r"(^|_)kl(_|$)", r"beta", r"sigma|latent|std"),
    *(r"temperature|eta|alpha", r"grad|norm"),
)


def _metric_place(name: str) -> int:
    found = (i for i, pattern in enumerate(_METRIC_ORDER) if re.search(pattern, name))
    return next(found, len(_METRIC_ORDER))


def metric_chart(name: str, x: FloatArray, y: FloatArray, x_label: str) -> Chart:
    """One learning curve; rows without a value are skipped, and what spans more than two decades is
    drawn on a log scale."""
    kept = np.isfinite(x) & np.isfinite(y)
    x, y = x[kept], y[kept]
    log = bool(y.size and (y > 0).all() and y.max() > 100 * y.min())
    share = "fraction" in name and y.size and y.min() >= 0 and y.max() <= 1
    place = _metric_place(name)
    return figures.line_chart(
        [Line(name, x, y, "robot" if place < 3 else "third" if place < 5 else "other")],
        title=name.replace("_", " ").replace("/", " / "),
        unit="log scale" if log else "",
        x_label=x_label,
        width=330,
        height=150,
        log=log,
        y_range=(0.0, 1.02) if share else None,
    )


def _learning(runs: Sequence[tuple[str, Path | str]]) -> Section | None:
    parts: list[Any] = []
    axes = {"env_steps": "environment steps", "iteration": "iteration"}
    for title, path in runs:
        columns = read_metrics(path)
        axis = next((key for key in axes if key in columns), None)
        names = sorted(columns.keys() - axes.keys(), key=lambda key: (_metric_place(key), key))
        names = names[:MAX_METRICS]
        if len(runs) > 1 or title:
            parts.append(Words(title, "h3"))
        if not names:
            parts.append(Words("No figures yet."))
            continue
        x = columns[axis] if axis else np.arange(len(columns[names[0]]), dtype=np.float64)
        label = axes[axis] if axis else "row"
        charts = [metric_chart(name, x, columns[name], label) for name in names]
        parts.append(Charts(charts[:MAX_METRICS_OPEN], small=True))
        if rest := charts[MAX_METRICS_OPEN:]:
            parts.append(Fold(f"{len(rest)} more", [Charts(rest, small=True)]))
    return Section("learning", "Learning", parts) if parts else None
