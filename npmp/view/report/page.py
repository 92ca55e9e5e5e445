"""The report of a run: a section for each argument."""

from __future__ import annotations

import math
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
from npmp.view.render.clip import ground_of
from npmp.view.report import figures, parts, policy_page
from npmp.view.report.figures import FloatArray, Line
from npmp.view.report.motion_table import motion_table
from npmp.view.report.replay import ReplayClip, replay_section

# most clips with charts, which bounds the size of the page
MAX_CLIPS = 20
# most metrics with charts
MAX_METRICS = 60
# the policy's clip in the replay
WALKING = "walking on command"
LOST = (
    "A clip is tracked while the mean difference of body coordinates [m] plus that of joint angles "
    f"[rad] is at most {RewardConfig().termination_threshold:g} (eq. 2). Beyond this the clip is "
    "lost: the trial ends, and later frames are not evaluated."
)
MEANINGS = {
    "tracked (%)": "share of the clip before it is lost; for all clips, the share of their time",
    "tracked (s)": "time before the clip is lost",
    "base deviation, mean (cm)": "distance of the robot's base from the reference's while tracked",
    "max (cm)": "the largest distance of the base while tracked",
    "joint error (rad)": "mean absolute difference of joint angles while tracked",
    "infeasible by": "what keeps the robot from the clip by physics, on its footfalls",
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
    """Write the report atomically and return its path.

    Args:
      cards: (label, value, caption) at the top; by default of `evaluation`.
      evaluation: the content of evaluation.json. rollouts: path of rollouts.h5.
      walking: of a policy.
      motions: for their retargeting metrics.
      learning: (title, path of metrics.csv) per run.
      provenance: command, config, seeds, versions, machine; absolute paths are removed.

    Raises:
      InputError: for a missing or malformed file, or an unknown robot.
    """
    evaluated = list((evaluation or {}).get("clips", ()))
    read = None
    robot = None if walking is None else walking.task.robot
    replay_clips = []
    if rollouts is not None:
        read = read_rollouts(rollouts)
        robot = robots.load(read.robot)
        order = {clip["name"]: i for i, clip in enumerate(evaluated)}
        clips = sorted(read.clips, key=lambda clip: order.get(clip.name, len(order)))
        read = replace(read, clips=tuple(clips))
        replay_clips = [
            ReplayClip(
                c.name, c.qpos, c.rate_hz, c.reference_qpos, c.tracked_frames, **ground_of(c.ground)
            )
            for c in clips
        ]
    if walking is not None:
        replay_clips.append(policy_page.clip_of(walking.task, walking.trial, WALKING))
    replay, index = (None, {}) if robot is None else replay_section(robot, replay_clips)
    return parts.assemble(
        Path(out),
        title=title,
        subtitle=subtitle,
        cards=cards or _cards(evaluated),
        sections=[
            replay,
            _imitation(evaluated, read, index),
            _walking(walking, index),
            _retargeting(motions),
            _learning(learning),
        ],
        provenance=provenance,
    )


def _walking(walking: PolicyEvaluation | None, index: Mapping[str, int]) -> parts.Section | None:
    """The section of a policy's trial. index: of the replay's clips."""
    if walking is None:
        return None
    trial = policy_page.trial_parts(
        walking.task, walking.figures, walking.trial, index.get(WALKING)
    )
    return parts.Section("walking", "Walking on command", trial)


def _retargeting(motions: Sequence[ReferenceMotion]) -> parts.Section | None:
    """The section of the motions' retargeting metrics."""
    if not motions:
        return None
    lead = parts.Paragraph(
        "Distances of the robot's markers from the recording, contacts of feet, and joint limits."
    )
    return parts.Section("retargeting", "Retargeting", [lead, motion_table(motions)])


def _all_clips(clips: Sequence[Mapping[str, Any]]) -> list[float]:
    """The last row of the table of clips: tracked share and sums of times, means over the tracked
    time, the largest deviation."""
    tracked = np.array([clip["tracked_s"] for clip in clips], dtype=np.float64)
    seconds = sum(clip["duration_s"] for clip in clips)

    def mean(values: Sequence[float]) -> float:
        array = np.array(values, dtype=np.float64)
        valid = np.isfinite(array) & (tracked > 0.0)
        return float(np.average(array[valid], weights=tracked[valid])) if valid.any() else math.nan

    deviation = mean([clip["base_deviation_m"]["mean"] for clip in clips])
    largest = max(clip["base_deviation_m"]["max"] for clip in clips)
    joints = mean([clip["joint_error_rad"] for clip in clips])
    share = float(tracked.sum()) / seconds if seconds else math.nan
    return [100 * share, float(tracked.sum()), seconds, 100 * deviation, 100 * largest, joints]


def _cards(clips: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    if not clips:
        return []
    share, _, _, deviation, _, joints = map(parts.number, _all_clips(clips))
    count = counted(len(clips), "clip")
    return [
        ("Tracked", f"{share} %", f"of the time of {count}, until each is lost"),
        ("Base deviation", f"{deviation} cm", "from the reference, mean over the tracked time"),
        ("Joint error", f"{joints} rad", "mean absolute difference to the reference"),
    ]


# ---- imitation


def _imitation(
    clips: Sequence[Mapping[str, Any]], rollouts: Rollouts | None, index: Mapping[str, int]
) -> parts.Section | None:
    """index: of the clips in the replay, by name."""
    content: list[Any] = []
    if clips:
        content.append(_clip_table(clips))
    if rollouts and rollouts.clips:
        charted = rollouts.clips[:MAX_CLIPS]
        content += [
            _clip_fold(clip, rollouts.foot_names, index.get(clip.name), i == 0)
            for i, clip in enumerate(charted)
        ]
        if len(rollouts.clips) > len(charted):
            text = f"Charts of the first {len(charted)} of {len(rollouts.clips)} clips."
            content.append(parts.Paragraph(f"{text} The replay has all of them.", ""))
    if not content:
        return None
    return parts.Section("imitation", "Imitation", [parts.Paragraph(LOST), *content])


def _clip_table(clips: Sequence[Mapping[str, Any]]) -> parts.Table:
    has_reasons = any(clip.get("infeasible_by") for clip in clips)
    rows = []
    for clip in clips:
        values = (
            100 * clip["tracked_fraction"],
            clip["tracked_s"],
            clip["duration_s"],
            100 * clip["base_deviation_m"]["mean"],
            100 * clip["base_deviation_m"]["max"],
            clip["joint_error_rad"],
        )
        reason = [clip["infeasible_by"]] if has_reasons else []
        rows.append([clip["name"], *map(parts.number, values), *reason])
    columns = ["clip", "tracked (%)", "tracked (s)", "clip (s)"]
    columns += ["base deviation, mean (cm)", "max (cm)", "joint error (rad)"]
    columns += ["infeasible by"] if has_reasons else []
    groups = {"all clips": list(clips)} if len(clips) > 1 else {}
    if has_reasons:
        groups["feasible clips"] = [clip for clip in clips if not clip["infeasible_by"]]
        groups["infeasible clips"] = [clip for clip in clips if clip["infeasible_by"]]
    last = [
        [name, *map(parts.number, _all_clips(group)), *([""] if has_reasons else [])]
        for name, group in groups.items()
        if group
    ]
    return parts.Table(columns, rows, last, meanings=MEANINGS)


def _clip_fold(
    clip: ClipRollout, foot_names: Sequence[str], index: int | None, is_open: bool
) -> parts.Fold:
    """The charts of a clip over time."""
    t = clip.time_s
    lost = clip.lost_after_s
    tracked = clip.tracked
    time_range = (0.0, float(t[-1])) if len(t) > 1 else None
    common: dict[str, Any] = {"x_range": time_range, "lost_after": lost, "clip": index}

    def chart(title: str, unit: str, *lines: Line) -> parts.Chart:
        # scaled to the tracked part, as errors after a fall are large
        top = np.nanmax(np.asarray(lines[0].y)[tracked], initial=0.0)
        y_range = (0.0, 1.35 * float(top)) if lost is not None and top > 0 else None
        return figures.line_chart(lines, title=title, unit=unit, y_range=y_range, **common)

    difference = np.abs(clip.joint_difference_rad())
    worst = Line("worst joint", t, difference.max(axis=1), "other")
    mean = Line("mean of joints", t, difference.mean(axis=1))
    base = Line("base deviation", t, 100 * clip.base_deviation_m())
    charts = [chart("Base deviation", "(cm)", base), chart("Joint error", "(rad)", worst, mean)]
    content: list[Any] = [parts.Charts(charts)]
    if len(t) > 1:
        stance = np.apply_along_axis(figures.stance, 0, clip.foot_height, counted=tracked)
        reference = np.apply_along_axis(figures.stance, 0, clip.reference_foot_height)
        names = parts.foot_labels(foot_names)
        content += [
            figures.footfall_chart(t, reference, stance, names, clip=index, lost_after=lost),
            parts.Paragraph("A foot stands while it is within 2 cm of its lowest height."),
        ]
    duration = f"{parts.number(len(t) / clip.rate_hz)} s"
    state = duration if lost is None else f"lost after {parts.number(lost)} s of {duration}"
    return parts.Fold(clip.name, content, state, is_open)


# ---- learning


def metric_chart(name: str, x: FloatArray, y: FloatArray, x_label: str) -> parts.Chart:
    """One learning curve, logarithmic over more than two decades; rows without a value are
    skipped."""
    valid = np.isfinite(x) & np.isfinite(y)
    x = x[valid]
    y = y[valid]
    log = bool(y.size and (y > 0).all() and y.max() > 100 * y.min())
    is_share = "fraction" in name and y.size and y.min() >= 0 and y.max() <= 1
    return figures.line_chart(
        [Line(name, x, y)],
        title=name.replace("_", " ").replace("/", " / "),
        unit="log scale" if log else "",
        x_label=x_label,
        width=330,
        height=150,
        log=log,
        y_range=(0.0, 1.02) if is_share else None,
    )


def _learning(runs: Sequence[tuple[str, Path | str]]) -> parts.Section | None:
    content: list[Any] = []
    axes = {"env_steps": "environment steps", "iteration": "iteration"}
    for title, path in runs:
        columns = read_metrics(path)
        axis = next((key for key in axes if key in columns), None)
        names = [name for name in columns if name not in axes][:MAX_METRICS]
        if len(runs) > 1 or title:
            content.append(parts.Paragraph(title, "h3"))
        if not names:
            content.append(parts.Paragraph("No metrics yet."))
            continue
        x = columns[axis] if axis else np.arange(len(columns[names[0]]), dtype=np.float64)
        label = axes[axis] if axis else "row"
        charts = [metric_chart(name, x, columns[name], label) for name in names]
        content.append(parts.Charts(charts, small=True))
    return parts.Section("learning", "Learning", content) if content else None
