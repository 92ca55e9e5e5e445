"""The report of a run: each part of `ReportData` becomes a section, and a part that is missing
leaves none."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt

from mocap_data.motion import ReferenceMotion
from npmp import robots
from npmp.evaluation.rollouts import ClipRollout, Rollouts, read_rollouts
from npmp.render.short import short_film
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
    Heat,
    Picture,
    Player,
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
MAX_BARS = 60
MAX_METRICS_OPEN, MAX_METRICS = 12, 60
WALKING = "walking on command"  # how the replay lists it


def build(out_html: Path | str, data: ReportData, *, film: bool = True) -> Path:
    """Write the report and give back its path. The file appears whole or not at all.

    Args:
        out_html: where to write it; the folder is made.
        data: the parts to show.
        film: also render a short video when a GL backend works; never needed, never an error.

    Raises:
      InputError: when a file that `data` names is missing or malformed, or its robot is unknown.
    """
    out = Path(out_html)
    rollouts = (
        None if data.rollouts is None else _in_order(read_rollouts(data.rollouts), data.evaluation)
    )
    section, packed = _replay(data, rollouts, film)
    index = {c["name"]: i for i, c in enumerate(packed["clips"])} if packed else {}
    return assemble(
        out,
        title=data.title,
        subtitle=data.subtitle,
        cards=list(data.headline) or _headline_of(data),
        sections=[
            section,
            _imitation(data, rollouts, index),
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
    count = finite.sum(axis=0)
    total = (np.where(finite, values, 0.0) ** 2).sum(axis=0)
    return np.sqrt(np.where(count > 0, total / np.maximum(count, 1), np.nan))


# ---- the evaluation's clips


def _evaluated(evaluation: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    return list((evaluation or {}).get("clips", ()))


def _in_order(rollouts: Rollouts, evaluation: Mapping[str, Any] | None) -> Rollouts:
    """The rollouts in the evaluation's order (the file sorts by name), those that it does not name
    last."""
    place = {c["name"]: i for i, c in enumerate(_evaluated(evaluation))}
    return replace(
        rollouts, clips=tuple(sorted(rollouts.clips, key=lambda c: place.get(c.name, len(place))))
    )


def _headline_of(data: ReportData) -> list[tuple[str, str, str]]:
    """Headline figures from the evaluation, when the caller gives none."""
    clips = _evaluated(data.evaluation)
    if not clips:
        return []
    tracked = _mean(c["tracked_fraction"] for c in clips)
    deviation = _mean(c["base_deviation_m"]["mean"] for c in clips)
    joints = _mean(c["joint_error_rad"] for c in clips)
    many = f"mean of {len(clips)} clips" if len(clips) != 1 else "one clip"
    return [
        (
            "Tracked",
            f"{number(100 * tracked)} %",
            f"of the motion before the robot is lost, {many}",
        ),
        (
            "Base deviation",
            f"{number(100 * deviation)} cm",
            "distance from the reference while tracked, mean",
        ),
        ("Joint error", f"{number(joints)} rad", "mean absolute difference to the reference"),
    ]


# ---- replay


def _replay_clips(rollouts: Rollouts | None, walking: Walking | None) -> list[replay.ReplayClip]:
    clips = [
        replay.ReplayClip(
            c.name, c.qpos, c.rate_hz, reference=c.reference_qpos, tracked_frames=c.tracked_frames
        )
        for c in (rollouts.clips if rollouts else ())
    ]
    if walking is not None:
        asked, done = walking.command, walking.achieved
        clips.append(
            replay.ReplayClip(WALKING, walking.qpos, walking.rate_hz, command=asked, achieved=done)
        )
    return clips


def _replay(
    data: ReportData, rollouts: Rollouts | None, film: bool
) -> tuple[Section | None, dict[str, Any] | None]:
    clips = _replay_clips(rollouts, data.walking)
    if not clips:
        return None, None
    return replay_section(
        robots.load(str(data.robot or (rollouts and rollouts.robot))), clips, film
    )


def replay_section(
    robot: robots.Robot, clips: Sequence[replay.ReplayClip], film: bool = False
) -> tuple[Section, dict[str, Any] | None]:
    """The replay, and its data (None where no clip can be drawn)."""
    model: mujoco.MjModel = robot.model()
    packed, remarks = replay.pack(model, list(clips), robot.foot_bodies)
    said = [Words(remark, "") for remark in remarks]
    if not packed["clips"]:
        return Section("replay", "Replay", said), None
    ghost = any(c["layers"] > 1 for c in packed["clips"])
    recording = any("points" in c for c in packed["clips"])
    words = "The robot in blue" + (", its reference as a grey ghost" if ghost else "")
    words += (
        "; lines on the floor are the paths of their bases."
        if ghost
        else "; the line on the floor is its base's path."
    )
    if recording:
        words += " The recording beside the robot, and where its keypoints are on the robot."
    if any("velocity" in c for c in packed["clips"]):
        words += " Arrows: velocity commanded (grey) and achieved (blue), in metres per second; arcs: the yaw rate."
    player = Player(
        [foot_label(robot.foot_bodies, i) for i in range(len(robot.foot_bodies))], ghost, recording
    )
    picture = short_film(robot, clips[0]) if film else None
    films = []
    if picture is not None:
        source = f"data:image/webp;base64,{base64.b64encode(picture).decode('ascii')}"
        films = [
            Fold(
                "The first clip, rendered",
                [Picture(source, f"{clips[0].name}, rendered")],
                screen=True,
            )
        ]
    return Section("replay", "Replay", [Words(words), player, *said, *films]), packed


# ---- imitation


def _imitation(
    data: ReportData, rollouts: Rollouts | None, index: Mapping[str, int]
) -> Section | None:
    clips = _evaluated(data.evaluation)
    if not clips and not (rollouts and rollouts.clips):
        return None
    parts: list[Any] = []
    if clips:
        parts += [*_tracked_bars(clips), _evaluation_table(clips)]
    if rollouts and rollouts.clips:
        parts.append(_joint_heat(rollouts))
        drawn = rollouts.clips[:MAX_CLIPS_DRAWN]
        parts += [
            _clip_fold(clip, rollouts.foot_names, index.get(clip.name), i == 0)
            for i, clip in enumerate(drawn)
        ]
        if len(rollouts.clips) > len(drawn):
            words = f"Charts of the first {len(drawn)} of {len(rollouts.clips)} clips; the replay has all of them."
            parts.append(Words(words, ""))
    return Section("imitation", "Imitation", parts)


def _tracked_bars(clips: list[Mapping[str, Any]]) -> list[Any]:
    bars = []
    for clip in clips[:MAX_BARS]:
        fraction = clip["tracked_fraction"]
        text = f"{number(100 * fraction)} % · {number(clip['tracked_s'])} of {number(clip['duration_s'])} s"
        bars.append(Bar(clip["name"], fraction, text))
    chart = Bars("Tracked part of each clip", bars, full=1.0, unit="until the robot is lost")
    more = (
        [Words(f"The first {MAX_BARS} of {len(clips)} clips.", "")] if len(clips) > MAX_BARS else []
    )
    return [chart, *more]


def _evaluation_table(clips: list[Mapping[str, Any]]) -> Table:
    columns = (
        "clip", "tracked (%)", "tracked (s)", "clip (s)", "base deviation, mean (cm)", "max (cm)", "joint error (rad)",
    )  # fmt: skip
    table = [
        (
            100 * c["tracked_fraction"], c["tracked_s"], c["duration_s"],
            100 * c["base_deviation_m"]["mean"], 100 * c["base_deviation_m"]["max"], c["joint_error_rad"],
        )
        for c in clips
    ]  # fmt: skip
    rows = [[c["name"], *map(number, values)] for c, values in zip(clips, table, strict=True)]
    means = [["mean", *(number(_mean(column)) for column in zip(*table, strict=True))]]
    return Table(columns, rows, means if len(rows) > 1 else ())


def _tracked_part(clip: ClipRollout) -> slice:
    """The frames that count: until the robot is lost, at least one."""
    return slice(0, max(1, clip.tracked_frames))


def _tracked_range(clip: ClipRollout, values: Any) -> tuple[float, float] | None:
    """The y axis of an error (T,) of a clip that was lost: a fall must not flatten the part that
    counts."""
    if clip.lost_after_s is None:
        return None
    part = values[_tracked_part(clip)]
    part = part[np.isfinite(part)]
    return (0.0, 1.35 * float(part.max())) if part.size and part.max() > 0 else None


def _joint_heat(rollouts: Rollouts) -> Heat:
    clips = rollouts.clips[:MAX_CLIPS_DRAWN]
    rms = [_nan_rms(c.joint_difference_rad()[_tracked_part(c)]).tolist() for c in clips]
    title, unit = "Joint error while tracked", "(rad, root mean square)"
    return Heat(title, [c.name for c in clips], rollouts.joint_names, rms, unit)


def _clip_fold(
    clip: ClipRollout, foot_names: Sequence[str], index: int | None, is_open: bool
) -> Fold:
    """The charts over time of one clip."""
    t, lost = clip.time_s, clip.lost_after_s
    common: dict[str, Any] = {
        "x_range": (0.0, float(t[-1])) if len(t) > 1 else None, "lost_after": lost, "clip": index,
    }  # fmt: skip
    deviation, difference = 100 * clip.base_deviation_m(), np.abs(clip.joint_difference_rad())
    worst, mean = difference.max(axis=1), difference.mean(axis=1)
    base = [Line("base deviation", t, deviation)]
    joints = [Line("worst joint", t, worst, "other"), Line("mean of joints", t, mean)]
    charts = [
        figures.line_chart(
            lines, title=title, unit=unit, y_range=_tracked_range(clip, lines[0].y), **common
        )
        for lines, title, unit in (
            (base, "Base deviation", "(cm)"),
            (joints, "Joint error", "(rad)"),
        )
    ] + _foot_charts(clip, foot_names, common)
    whole = f"{number(len(t) / clip.rate_hz)} s"
    state = f"lost after {number(lost)} s of {whole}" if lost is not None else whole
    return Fold(clip.name, [Charts(charts), *_footfall(clip, foot_names, index)], state, is_open)


def _foot_charts(
    clip: ClipRollout, foot_names: Sequence[str], common: Mapping[str, Any]
) -> list[Chart]:
    """Heights of the feet on one scale, so that they compare."""
    feet, reference, t = clip.foot_height, clip.reference_foot_height, clip.time_s
    both = np.concatenate([feet[_tracked_part(clip)], reference])
    finite = both[np.isfinite(both)]
    bottom, top = np.percentile(finite, [0.5, 99.5]) if finite.size else (0.0, 0.1)
    pad = 0.08 * max(top - bottom, 0.02)
    scale = (100 * float(bottom - pad), 100 * float(top + pad))
    charts = []
    for i in range(feet.shape[1]):
        lines = [
            Line("reference", t, 100 * reference[:, i], "ref"),
            Line("robot", t, 100 * feet[:, i], FOOT_CSS[i % 4]),
        ]
        title = f"Foot height {foot_label(foot_names, i)}"
        charts.append(
            figures.line_chart(lines, title=title, unit="(cm)", y_range=scale, height=140, **common)
        )
    return charts


def _footfall(clip: ClipRollout, foot_names: Sequence[str], index: int | None) -> list[Any]:
    feet, reference, t = clip.foot_height, clip.reference_foot_height, clip.time_s
    if len(t) < 2:
        return []
    count = feet.shape[1]
    stands = np.apply_along_axis(figures.stance, 0, feet, counted=_tracked_part(clip))
    chart = figures.footfall_chart(
        t,
        np.apply_along_axis(figures.stance, 0, reference),
        stands,
        [foot_label(foot_names, i) for i in range(count)],
        [FOOT_CSS[i % 4] for i in range(count)],
        clip=index,
        lost_after=clip.lost_after_s,
    )
    return [chart, Words("A foot stands while it is within 2 cm of its lowest height.")]


# ---- walking


def _walking(walking: Walking | None, index: Mapping[str, int]) -> Section | None:
    if walking is None:
        return None
    command, achieved = walking.command, walking.achieved
    words = (
        "Velocity in the robot's own heading frame: commanded, and achieved by the policy that steers the frozen skill "
        "module."
    )
    parts: list[Any] = [Words(words), *([_error_bars(walking)] if walking.errors else [])]
    names = (("Forward velocity", "(m/s)"), ("Lateral velocity", "(m/s)"), ("Yaw rate", "(rad/s)"))
    for k, (name, unit) in enumerate(names):
        lines = [
            Line("commanded", walking.time_s, command[:, k], "ref"),
            Line("achieved", walking.time_s, achieved[:, k], "robot"),
        ]
        clip = index.get(WALKING)
        parts.append(
            figures.line_chart(lines, title=name, unit=unit, width=940, height=165, clip=clip)
        )
    rows = [["policy", *map(number, _nan_rms(achieved - command))]]
    parts.append(
        Table(
            ["root mean square error", "forward (m/s)", "lateral (m/s)", "yaw rate (rad/s)"], rows
        )
    )
    return Section("walking", "Walking on command", parts)


def _error_bars(walking: Walking) -> Bars:
    (first, worst), *_ = walking.errors.items()
    bars = []
    for name, value in walking.errors.items():
        share = f" · {100 * value / worst:.0f} % of {first}" if name != first and worst > 0 else ""
        bars.append(
            Bar(
                name,
                value,
                number(value) + share,
                css="robot" if name == list(walking.errors)[-1] else "ref",
            )
        )
    return Bars("Velocity error", bars, unit=walking.errors_caption)


# ---- retargeting, learning, provenance


def _retarget(motions: Sequence[ReferenceMotion]) -> Section | None:
    if not motions:
        return None
    words = "How closely the robot's markers follow the recording, and how feet and joints keep to the floor and limits."
    return Section("retargeting", "Retargeting", [Words(words), motion_table(motions)])


# What a reader looks for first; a column's place is that of the first pattern it matches.
_METRIC_ORDER = (
    r"tracked|success|survi", r"velocity_error|error_(before|after)", r"return|reward", r"model", r"loss",
    r"(^|_)kl(_|$)", r"beta", r"sigma|latent|std", r"temperature|eta|alpha", r"grad|norm",
)  # fmt: skip


def _metric_place(name: str) -> int:
    return next(
        (i for i, pattern in enumerate(_METRIC_ORDER) if re.search(pattern, name)),
        len(_METRIC_ORDER),
    )


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
        title=name.replace("_", " ").replace("/", " / "), unit="log scale" if log else "", x_label=x_label, width=330,
        height=150, log=log, y_range=(0.0, 1.02) if share else None,
    )  # fmt: skip


def _learning(runs: Sequence[tuple[str, Path | str]]) -> Section | None:
    parts: list[Any] = []
    for title, path in runs:
        columns = read_metrics(path)
        axis = next((k for k in ("env_steps", "iteration") if k in columns), None)
        names = sorted(
            (k for k in columns if k not in ("env_steps", "iteration")), key=_metric_place
        )[:MAX_METRICS]
        if len(runs) > 1 or title:
            parts.append(Words(title, "h3"))
        if not names:
            parts.append(Words("No figures yet."))
            continue
        x = columns[axis] if axis else np.arange(len(columns[names[0]]), dtype=np.float64)
        x_label = {"env_steps": "environment steps", "iteration": "iteration"}.get(
            axis or "", "row"
        )
        charts = [metric_chart(k, x, columns[k], x_label) for k in names]
        parts.append(Charts(charts[:MAX_METRICS_OPEN], small=True))
        if rest := charts[MAX_METRICS_OPEN:]:
            parts.append(Fold(f"{len(rest)} more", [Charts(rest, small=True)]))
    return Section("learning", "Learning", parts) if parts else None
