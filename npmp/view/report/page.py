"""The report of a run: each thing that is given becomes a section."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.errors import counted
from mocap_data.motion import ReferenceMotion
from npmp import robots
from npmp.core.tables import read_metrics
from npmp.evaluation.policy import PolicyEvaluation
from npmp.evaluation.rollouts import ClipRollout, Rollouts, read_rollouts
from npmp.tasks.rewards import RewardConfig
from npmp.view.report import figures, parts, policy_page
from npmp.view.report.figures import FloatArray, Line
from npmp.view.report.motion_table import motion_table
from npmp.view.report.replay import ReplayClip, replay_section

# Beyond these the page would grow past what a browser opens at once; the figures of the rest are in
# the tables.
MAX_CLIPS_DRAWN = 20
MAX_METRICS_OPEN = 12
MAX_METRICS = 60
# how the replay lists it
WALKING = "walking on command"
LOST = (
    "A clip is tracked while the mean difference of body coordinates [m] plus that of joint angles "
    f"[rad] is at most {RewardConfig().termination_threshold:g} (eq. 2). Beyond, it is lost: the "
    "trial ends there, and no figure counts what follows."
)
MEANINGS = {
    "tracked (%)": "share of the clip before it is lost; of all clips, the share of their time",
    "tracked (s)": "time before the clip is lost",
    "base deviation, mean (cm)": "distance of the robot's base from the reference's while tracked",
    "max (cm)": "the largest distance of the base while tracked",
    "joint error (rad)": "mean absolute difference of joint angles while tracked",
}


def build(
    out: Path | str,
    *,
    title: str = "Report",
    subtitle: str = "",
    cards: Sequence[tuple[str, str, str]] = (),
    evaluation: Mapping[str, Any] | None = None,
    rollouts: Path | str | None = None,
    walking: PolicyEvaluation | None = None,
    motions: Sequence[ReferenceMotion] = (),
    learning: Sequence[tuple[str, Path | str]] = (),
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write the report and return its path. The file appears whole or not at all.

    Args:
      cards: (label, value, caption) at the top; from `evaluation` when empty.
      evaluation: the content of evaluation.json. rollouts: path of rollouts.h5.
      walking: of a policy.
      motions: their figures of retargeting are shown.
      learning: (title, path of metrics.csv) per run.
      provenance: command, config, seeds, versions, machine; absolute paths are cut.

    Raises:
      InputError: when a file is missing or malformed, or its robot is unknown.
    """
    evaluated = list((evaluation or {}).get("clips", ()))
    clips: list[ClipRollout] = []
    read = None
    robot = None if walking is None else walking.task.robot
    replay_clips = []
    if rollouts is not None:
        read = read_rollouts(rollouts)
        robot = robots.load(read.robot)
        place = {clip["name"]: i for i, clip in enumerate(evaluated)}
        clips = sorted(read.clips, key=lambda clip: place.get(clip.name, len(place)))
        replay_clips = [
            ReplayClip(c.name, c.qpos, c.rate_hz, c.reference_qpos, c.tracked_frames) for c in clips
        ]
    if walking is not None:
        replay_clips.append(policy_page.clip_of(walking.task, walking.trial, WALKING))
    replay, index = (None, {}) if robot is None else replay_section(robot, replay_clips)
    trial = None
    if walking is not None:
        of = walking.task, walking.figures, walking.trial, index.get(WALKING)
        trial = parts.Section("walking", "Walking on command", policy_page.trial_parts(*of))
    words = (
        "How closely the robot's markers follow the recording, and how feet and joints keep to the "
        "floor and limits."
    )
    retargeted = [parts.Words(words), motion_table(motions)] if motions else []
    sections = [
        replay,
        _imitation(evaluated, read and replace(read, clips=tuple(clips)), index),
        trial,
        parts.Section("retargeting", "Retargeting", retargeted) if motions else None,
        _learning(learning),
    ]
    cards = cards or _headline_of(evaluated)
    text = {"title": title, "subtitle": subtitle}
    return parts.assemble(Path(out), **text, cards=cards, sections=sections, provenance=provenance)


def _all_clips(clips: Sequence[Mapping[str, Any]]) -> list[float]:
    """The last row of `_evaluation_table`: sums of times, the share of time that is tracked, means
    over that time, the largest deviation."""
    tracked = np.array([clip["tracked_s"] for clip in clips], dtype=np.float64)
    seconds = sum(clip["duration_s"] for clip in clips)

    def mean(values: Sequence[float]) -> float:
        each = np.array(values, dtype=np.float64)
        kept = np.isfinite(each) & (tracked > 0.0)
        return float(np.average(each[kept], weights=tracked[kept])) if kept.any() else math.nan

    deviation = mean([clip["base_deviation_m"]["mean"] for clip in clips])
    largest = max(clip["base_deviation_m"]["max"] for clip in clips)
    joints = mean([clip["joint_error_rad"] for clip in clips])
    share = float(tracked.sum()) / seconds if seconds else math.nan
    return [100 * share, float(tracked.sum()), seconds, 100 * deviation, 100 * largest, joints]


def _headline_of(clips: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Headline figures from the evaluation, when the caller gives none."""
    if not clips:
        return []
    share, _, _, deviation, _, joints = map(parts.number, _all_clips(clips))
    many = counted(len(clips), "clip")
    return [
        ("Tracked", f"{share} %", f"of the time of {many}, until each is lost"),
        ("Base deviation", f"{deviation} cm", "from the reference, mean over the tracked time"),
        ("Joint error", f"{joints} rad", "mean absolute difference to the reference"),
    ]


# ---- imitation


def _imitation(
    clips: Sequence[Mapping[str, Any]], rollouts: Rollouts | None, index: Mapping[str, int]
) -> parts.Section | None:
    content: list[Any] = [parts.Words(LOST)]
    if clips:
        content.append(_evaluation_table(clips))
    if rollouts and rollouts.clips:
        drawn = rollouts.clips[:MAX_CLIPS_DRAWN]
        content.append(_joint_table(rollouts))
        content += [
            _clip_fold(clip, rollouts.foot_names, index.get(clip.name), i == 0)
            for i, clip in enumerate(drawn)
        ]
        if len(rollouts.clips) > len(drawn):
            words = f"Charts of the first {len(drawn)} of {len(rollouts.clips)} clips."
            content.append(parts.Words(f"{words} The replay has all of them.", ""))
    return parts.Section("imitation", "Imitation", content) if len(content) > 1 else None


def _evaluation_table(clips: Sequence[Mapping[str, Any]]) -> parts.Table:
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
    rows = [[c["name"], *map(parts.number, values)] for c, values in zip(clips, table, strict=True)]
    last = [["all clips", *map(parts.number, _all_clips(clips))]] if len(clips) > 1 else ()
    return parts.Table(columns, rows, last, meanings=MEANINGS)


def _joint_table(rollouts: Rollouts) -> parts.Fold:
    """A row per joint, so that it fits any number of joints and clips."""
    squares = [
        np.square(np.ma.masked_invalid(clip.joint_difference_rad()[clip.tracked]))
        for clip in rollouts.clips
    ]
    overall = np.sqrt(np.ma.concatenate(squares).mean(axis=0)).filled(np.nan)
    each = np.stack([np.sqrt(square.mean(axis=0)).filled(np.nan) for square in squares])
    rows: list[parts.Row] = []
    for j, joint in enumerate(rollouts.joint_names):
        worst = int(np.nan_to_num(each[:, j], nan=-1.0).argmax())
        errors = (parts.Cell.of(float(value), 3) for value in (overall[j], each[worst, j]))
        rows.append([joint, *errors, rollouts.clips[worst].name])
    columns = ("joint", "all clips", "worst clip", "which")
    title = "Joint error while tracked (rad, root mean square)"
    return parts.Fold(title, [parts.Table(columns, rows, sortable=True)], is_open=True)


def _clip_fold(
    clip: ClipRollout, foot_names: Sequence[str], index: int | None, is_open: bool
) -> parts.Fold:
    """The charts over time of one clip."""
    t = clip.time_s
    lost = clip.lost_after_s
    tracked = clip.tracked
    time_range = (0.0, float(t[-1])) if len(t) > 1 else None
    common: dict[str, Any] = {"x_range": time_range, "lost_after": lost, "clip": index}

    def chart(title: str, unit: str, *lines: Line) -> parts.Chart:
        # a fall must not flatten the part that counts
        top = np.nanmax(np.asarray(lines[0].y)[tracked], initial=0.0)
        y_range = (0.0, 1.35 * float(top)) if lost is not None and top > 0 else None
        return figures.line_chart(lines, title=title, unit=unit, y_range=y_range, **common)

    difference = np.abs(clip.joint_difference_rad())
    worst = Line("worst joint", t, difference.max(axis=1), "other")
    mean = Line("mean of joints", t, difference.mean(axis=1))
    base = Line("base deviation", t, 100 * clip.base_deviation_m())
    charts = [chart("Base deviation", "(cm)", base), chart("Joint error", "(rad)", worst, mean)]
    feet = clip.foot_height
    reference = clip.reference_foot_height
    names = parts.foot_labels(foot_names)
    footfall: list[Any] = []
    if len(t) > 1:
        stands = np.apply_along_axis(figures.stance, 0, feet, counted=tracked)
        like = np.apply_along_axis(figures.stance, 0, reference)
        footfall = [
            figures.footfall_chart(t, like, stands, names, clip=index, lost_after=lost),
            parts.Words("A foot stands while it is within 2 cm of its lowest height."),
        ]
    whole = f"{parts.number(len(t) / clip.rate_hz)} s"
    state = whole if lost is None else f"lost after {parts.number(lost)} s of {whole}"
    return parts.Fold(clip.name, [parts.Charts(charts), *footfall], state, is_open)


# ---- retargeting and learning


# What a reader looks for first; a column's place is that of the first pattern it matches.
_METRIC_ORDER = (
    *(r"tracked|success|survi", r"velocity_error|error_(before|after)", r"return|reward"),
    *(r"model", r"loss", r"(^|_)kl(_|$)", r"beta", r"sigma|latent|std"),
    *(r"temperature|eta|alpha", r"grad|norm"),
)


def _metric_place(name: str) -> int:
    matches = (i for i, pattern in enumerate(_METRIC_ORDER) if re.search(pattern, name))
    return next(matches, len(_METRIC_ORDER))


def metric_chart(name: str, x: FloatArray, y: FloatArray, x_label: str) -> parts.Chart:
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


def _learning(runs: Sequence[tuple[str, Path | str]]) -> parts.Section | None:
    content: list[Any] = []
    axes = {"env_steps": "environment steps", "iteration": "iteration"}
    for title, path in runs:
        columns = read_metrics(path)
        axis = next((key for key in axes if key in columns), None)
        names = sorted(columns.keys() - axes.keys(), key=lambda key: (_metric_place(key), key))
        names = names[:MAX_METRICS]
        if len(runs) > 1 or title:
            content.append(parts.Words(title, "h3"))
        if not names:
            content.append(parts.Words("No figures yet."))
            continue
        x = columns[axis] if axis else np.arange(len(columns[names[0]]), dtype=np.float64)
        label = axes[axis] if axis else "row"
        charts = [metric_chart(name, x, columns[name], label) for name in names]
        content.append(parts.Charts(charts[:MAX_METRICS_OPEN], small=True))
        if rest := charts[MAX_METRICS_OPEN:]:
            content.append(parts.Fold(f"{len(rest)} more", [parts.Charts(rest, small=True)]))
    return parts.Section("learning", "Learning", content) if content else None
