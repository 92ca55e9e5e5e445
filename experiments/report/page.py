"""The report's page: each part of `ReportData` becomes a section, and a part that is missing leaves none.

The page fetches nothing: style, scripts, charts and the replay's data are inside, and its content policy forbids the
rest. Every word that comes from a file is escaped; absolute paths are cut.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt

from experiments.report import figures, replay, video
from experiments.report.data import ReportData, Rollout, Rollouts, Walking, read_metrics, read_rollouts, scrub
from experiments.report.figures import Bar, Line, escape, number
from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp import robots

FOOT_CSS = ("lf", "rf", "lh", "rh")
# Beyond these the page would grow past what a browser opens at once; the figures of the rest are in the tables.
MAX_CLIPS_DRAWN = 20
MAX_BARS = 60
MAX_METRICS_OPEN, MAX_METRICS = 12, 60
FOOTER = "Made by <code>npmp</code>. This page is one file and needs no network."
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True)
class Section:
    key: str
    title: str
    body: str


def build(out_html: Path | str, data: ReportData, *, film: bool = True) -> Path:
    """Write the report and give back its path. The file appears whole or not at all.

    Args:
        out_html: where to write it; the folder is made.
        data: the parts to show.
        film: also render a short video when a GL backend works; never needed, never an error.

    Raises InputError when a file that `data` names is missing or malformed, or its robot is unknown.
    """
    out = Path(out_html)
    rollouts = None if data.rollouts is None else _in_order(read_rollouts(data.rollouts), data.evaluation)
    walking = None if data.walking is None else Walking.of(data.walking)
    clips = _replay_clips(rollouts, walking)
    replay_section, packed = _replay(data, rollouts, clips, film)
    index = {c["name"]: i for i, c in enumerate(packed["clips"])} if packed else {}
    clean = Scrubber(out.parent)

    sections = [
        replay_section,
        _imitation(data, rollouts, index),
        _walking(walking, index),
        _retarget(data.retarget),
        _learning(data.learning),
        provenance_section(data.provenance, clean),
    ]
    shown = [s for s in sections if s is not None]
    return assemble(
        out,
        title=data.title,
        subtitle=clean(data.subtitle),
        notes=[clean(note) for note in data.notes],
        cards=list(data.headline) or _headline_of(data),
        sections=shown,
        data={"replay-data": packed} if packed else {},
        # The charts listen before the replay starts to speak.
        scripts=("page.js", "replay.js") if packed else ("page.js",),
    )


def assemble(
    out: Path,
    *,
    title: str,
    subtitle: str = "",
    notes: Sequence[str] = (),
    cards: Sequence[tuple[str, str, str]] = (),
    sections: Sequence[Section] = (),
    data: Mapping[str, Any] = MappingProxyType({}),
    scripts: Sequence[str] = ("page.js",),
    policy: str = POLICY,
) -> Path:
    """Write a page of sections to `out`, whole or not at all, and give back its path.

    data: what scripts read, as JSON, by the id of its element. scripts: names of assets. policy: the content policy.
    """
    body = _cards(cards) + "\n".join(
        f'<section id="{s.key}" aria-labelledby="{s.key}-title"><h2 id="{s.key}-title">{escape(s.title)}</h2>{s.body}</section>'
        for s in sections
    )
    if not body:
        body = '<section><p class="lead">There is nothing to show yet.</p></section>'
    assets = resources.files("experiments.report") / "assets"

    def asset(name: str) -> str:
        return (assets / name).read_text(encoding="utf-8")

    page = Template(asset("page.html")).substitute(
        title=escape(title),
        policy=policy,
        subtitle=f'<p class="sub">{escape(subtitle)}</p>' if subtitle else "",
        notes="".join(f'<p class="note-line">{escape(n)}</p>' for n in notes),
        nav="".join(f'<a href="#{s.key}">{escape(s.title)}</a>' for s in sections),
        style=asset("page.css"),
        body=body,
        footer=FOOTER,
        data="".join(
            f'<script type="application/json" id="{key}">{_json(value)}</script>' for key, value in data.items()
        ),
        script="".join(asset(name) for name in scripts),
    )
    with atomic_path(out) as temporary:
        temporary.write_text(page, encoding="utf-8", newline="\n")
    return out


def is_report(path: Path) -> bool:
    """Whether a file is a page of ours."""
    try:
        return FOOTER in path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


class Scrubber:
    """`scrub` bound to the report's folder, for text and, recursively, for what holds text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, text: object) -> str:
        return scrub(str(text), self.folder)

    def deep(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {self(k): self.deep(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.deep(v) for v in value]
        return value if isinstance(value, (bool, int, float)) or value is None else self(value)


def _json(value: Any) -> str:
    """JSON that is safe inside a script element: no "<", so nothing in it can close the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _real(value: Any) -> float:
    """A number from a file, NaN when it is none."""
    return (
        float(value)
        if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
        else math.nan
    )


def _cards(headline: Sequence[tuple[str, str, str]]) -> str:
    if not headline:
        return ""
    cards = "".join(
        f'<div class="card"><div class="what">{escape(label)}</div><div class="value">{escape(value)}</div>'
        f'<div class="caption">{escape(caption)}</div></div>'
        for label, value, caption in headline
    )
    return f'<div class="cards">{cards}</div>'


def _evaluated(evaluation: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    clips = (evaluation or {}).get("clips") or []
    if not isinstance(clips, Sequence) or not all(isinstance(c, Mapping) for c in clips):
        raise InputError("evaluation: 'clips' is not a list of tables")
    return list(clips)


def _in_order(rollouts: Rollouts, evaluation: Mapping[str, Any] | None) -> Rollouts:
    """The rollouts in the evaluation's order (the file sorts by name), those that it does not name last."""
    place = {str(c.get("name")): i for i, c in enumerate(_evaluated(evaluation))}
    return replace(rollouts, clips=tuple(sorted(rollouts.clips, key=lambda c: place.get(c.name, len(place)))))


def _deviation(clip: Mapping[str, Any], which: str) -> float:
    value = clip.get("base_deviation_m")
    return _real(value.get(which)) if isinstance(value, Mapping) else (_real(value) if which == "mean" else math.nan)


def _mean(values: Iterable[float]) -> float:
    kept = [v for v in values if math.isfinite(v)]
    return sum(kept) / len(kept) if kept else math.nan


def _headline_of(data: ReportData) -> list[tuple[str, str, str]]:
    """Headline figures from the evaluation, when the caller gives none."""
    clips = _evaluated(data.evaluation)
    if not clips:
        return []
    tracked = _mean(_real(c.get("tracked_fraction")) for c in clips)
    deviation = _mean(_deviation(c, "mean") for c in clips)
    joints = _mean(_real(c.get("joint_error_rad")) for c in clips)
    many = f"mean of {len(clips)} clips" if len(clips) != 1 else "one clip"
    return [
        ("Tracked", f"{number(100 * tracked)} %", f"of the motion before the robot is lost, {many}"),
        (
            "Base deviation",
            f"{number(100 * deviation)} cm",
            "distance from the reference while tracked, mean",
        ),
        ("Joint error", f"{number(joints)} rad", "mean absolute difference to the reference"),
    ]


# ---- replay
# ---------------------------------------------------------------------------------------------------------------


def _replay_clips(rollouts: Rollouts | None, walking: Walking | None) -> list[replay.ReplayClip]:
    clips = [
        replay.ReplayClip(c.name, c.qpos, c.rate_hz, reference=c.reference_qpos, tracked_frames=c.tracked_frames)
        for c in (rollouts.clips if rollouts else ())
    ]
    if walking is not None:
        if walking.qpos is not None:
            clips.append(
                replay.ReplayClip(
                    walking.name,
                    walking.qpos,
                    walking.rate_hz,
                    command=walking.command,
                    achieved=walking.achieved,
                )
            )
        if walking.random_qpos is not None:
            achieved = walking.random_achieved
            clips.append(
                replay.ReplayClip(
                    f"{walking.name}: random latents",
                    walking.random_qpos,
                    walking.rate_hz,
                    command=None if achieved is None else walking.command,
                    achieved=achieved,
                )
            )
    return clips


def _replay(
    data: ReportData, rollouts: Rollouts | None, clips: list[replay.ReplayClip], film: bool
) -> tuple[Section | None, dict[str, Any] | None]:
    name = data.robot or (rollouts.robot if rollouts else None) or str((data.evaluation or {}).get("robot") or "")
    if not clips:
        return None, None
    if not name:
        raise InputError(
            "the report has rollouts but no robot's name: set ReportData.robot, or the file's attribute 'robot'"
        )
    return replay_section(robots.load(name), clips, film)


def replay_section(
    robot: robots.Robot, clips: Sequence[replay.ReplayClip], film: bool
) -> tuple[Section, dict[str, Any] | None]:
    """The replay that the page draws by itself, and its data (None where no clip can be drawn)."""
    model: mujoco.MjModel = robot.model()
    packed, remarks = replay.pack(model, list(clips), robot.foot_bodies)
    if not packed["clips"]:
        return Section("replay", "Replay", "".join(f"<p>{escape(r)}</p>" for r in remarks)), None
    ghost = any(c["layers"] > 1 for c in packed["clips"])
    arrows = any("velocity" in c for c in packed["clips"])
    feet = "".join(
        f'<span class="key"><i class="swatch {css}"></i>{escape(foot_label(robot.foot_bodies, i))}</span>'
        for i, css in zip(range(len(robot.foot_bodies)), FOOT_CSS, strict=False)
    )
    words = "The robot in blue" + (", its reference as a grey ghost" if ghost else "")
    words += (
        "; lines on the floor are the paths of their bases." if ghost else "; the line on the floor is its base's path."
    )
    if arrows:
        words += " Arrows: velocity commanded (grey) and achieved (blue), in metres per second; arcs: the yaw rate."
    ghost_choice = (
        '<label>ghost <select data-part="ghost"><option value="over">in place</option><option value="beside">beside</option>'
        '<option value="off">off</option></select></label>'
    )
    moving = ""
    if film:
        picture = video.render(model, clips[0])
        if picture is not None:
            moving = (
                '<details class="screen"><summary>The first clip, rendered</summary>'
                f'<img class="film" alt="{escape(clips[0].name)}, rendered" src="data:image/webp;base64,'
                f'{base64.b64encode(picture).decode("ascii")}"></details>'
            )
    body = (
        f'<p class="lead">{words}</p>'
        '<div id="replay"><div class="stage"><canvas data-part="canvas" tabindex="0" aria-label="3-D replay"></canvas>'
        '<div class="status" data-part="status"></div><div class="badge" data-part="lost" hidden>lost</div></div>'
        '<div class="controls"><button type="button" data-part="play" aria-label="play">▶</button>'
        '<input type="range" data-part="scrub" min="0" max="1" step="any" value="0" aria-label="time"></div>'
        '<div class="controls"><label>clip <select data-part="clip"></select></label>'
        '<label>speed <select data-part="speed"><option value="0.1">0.1×</option><option value="0.25">0.25×</option>'
        '<option value="0.5">0.5×</option><option value="1" selected>1×</option><option value="2">2×</option></select></label>'
        f"{ghost_choice}"
        '<label><input type="checkbox" data-part="follow" checked>follow</label>'
        f'<button type="button" data-part="reset">reset view</button><span class="legend">{feet}</span></div>'
        '<p class="hint">Drag to orbit, shift-drag to pan, wheel to zoom after a click. <kbd>space</kbd> plays, '
        "<kbd>←</kbd> <kbd>→</kbd> step (shift: 1 s), <kbd>[</kbd> <kbd>]</kbd> change the clip, <kbd>+</kbd> <kbd>−</kbd> "
        "zoom. A click in a chart over time jumps to that moment.</p>"
        '<p class="fallback">The replay needs JavaScript.</p></div>'
        + "".join(f"<p>{escape(r)}</p>" for r in remarks)
        + moving
    )
    return Section("replay", "Replay", body), packed


# ---- imitation
# ------------------------------------------------------------------------------------------------------------


def _imitation(data: ReportData, rollouts: Rollouts | None, index: Mapping[str, int]) -> Section | None:
    clips = _evaluated(data.evaluation)
    if not clips and not (rollouts and rollouts.clips):
        return None
    parts: list[str] = []
    if clips:
        parts.append(_tracked_bars(clips, _evaluated(data.evaluation_before)))
        parts.append(_evaluation_table(clips))
    if rollouts and rollouts.clips:
        parts.append(_joint_heat(rollouts))
        drawn = rollouts.clips[:MAX_CLIPS_DRAWN]
        parts.extend(
            _clip_details(clip, rollouts.foot_names, index.get(clip.name), is_open=i == 0)
            for i, clip in enumerate(drawn)
        )
        if len(rollouts.clips) > len(drawn):
            parts.append(
                f"<p>Charts of the first {len(drawn)} of {len(rollouts.clips)} clips; the replay has all of them.</p>"
            )
    return Section("imitation", "Imitation", "".join(parts))


def _tracked_bars(clips: list[Mapping[str, Any]], before: list[Mapping[str, Any]]) -> str:
    earlier = {str(c.get("name")): _real(c.get("tracked_fraction")) for c in before}
    bars = []
    for clip in clips[:MAX_BARS]:
        fraction, seconds, whole = (_real(clip.get(k)) for k in ("tracked_fraction", "tracked_s", "duration_s"))
        text = f"{number(100 * fraction)} %"
        if math.isfinite(seconds) and math.isfinite(whole):
            text += f"  ·  {number(seconds)} of {number(whole)} s"
        name = str(clip.get("name", "?"))
        bars.append(Bar(name, fraction, text, mark=earlier.get(name)))
    more = f"<p>The first {MAX_BARS} of {len(clips)} clips.</p>" if len(clips) > MAX_BARS else ""
    chart = figures.bar_chart(
        bars,
        title="Tracked part of each clip",
        full=1.0,
        unit="until the robot is lost",
        mark_name="before training",
    )
    return f'<div class="scroll">{chart}</div>{more}'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], last: Sequence[str] | None = None) -> str:
    """An HTML table; all cells are text and escaped here. `last` is a row of means."""
    head = "".join(f"<th>{escape(c)}</th>" for c in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    if last is not None:
        body += '<tr class="mean">' + "".join(f"<td>{escape(c)}</td>" for c in last) + "</tr>"
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _evaluation_table(clips: list[Mapping[str, Any]]) -> str:
    columns = [
        "clip",
        "tracked (%)",
        "tracked (s)",
        "clip (s)",
        "base deviation, mean (cm)",
        "max (cm)",
        "joint error (rad)",
    ]

    def values(c: Mapping[str, Any]) -> list[float]:
        return [
            100 * _real(c.get("tracked_fraction")),
            _real(c.get("tracked_s")),
            _real(c.get("duration_s")),
            100 * _deviation(c, "mean"),
            100 * _deviation(c, "max"),
            _real(c.get("joint_error_rad")),
        ]

    table = [values(c) for c in clips]
    rows = [[str(c.get("name", "?")), *(number(v) for v in v_row)] for c, v_row in zip(clips, table, strict=True)]
    last = ["mean", *(number(_mean(column)) for column in zip(*table, strict=True))] if len(rows) > 1 else None
    return _table(columns, rows, last)


def _joint_names(rollouts: Rollouts) -> list[str]:
    count = rollouts.clips[0].qpos.shape[1] - 7
    names = list(rollouts.joint_names)
    return names if len(names) == count else [f"joint {i}" for i in range(count)]


def _tracked_part(clip: Rollout) -> slice:
    """The frames that count: until the robot is lost, at least one."""
    return slice(0, None if clip.tracked_frames is None else max(1, clip.tracked_frames))


def _tracked_range(clip: Rollout, values: npt.NDArray[np.float64]) -> tuple[float, float] | None:
    """The y axis of an error (T,) of a clip that was lost: a fall must not flatten the part that counts."""
    if clip.lost_after_s is None:
        return None
    part = values[_tracked_part(clip)]
    part = part[np.isfinite(part)]
    return (0.0, 1.35 * float(part.max())) if part.size and part.max() > 0 else None


def _nan_rms(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Root mean square over the first axis of the finite values; NaN where there are none."""
    finite = np.isfinite(values)
    count = finite.sum(axis=0)
    total = (np.where(finite, values, 0.0) ** 2).sum(axis=0)
    return np.sqrt(np.where(count > 0, total / np.maximum(count, 1), np.nan))


def _joint_heat(rollouts: Rollouts) -> str:
    names = _joint_names(rollouts)
    if not names:
        return ""
    same = [c for c in rollouts.clips if c.qpos.shape[1] == len(names) + 7][:MAX_CLIPS_DRAWN]
    rms = np.stack([_nan_rms(c.joint_difference_rad()[_tracked_part(c)]) for c in same])
    chart = figures.heat_map(
        [c.name for c in same], names, rms, title="Joint error while tracked", unit="(rad, root mean square)"
    )
    return f'<div class="scroll">{chart}</div>'


def foot_label(names: Sequence[str], i: int) -> str:
    return re.sub(r"(?i)_?foot$", "", names[i]) or names[i] if i < len(names) else f"foot {i}"


def _clip_details(clip: Rollout, foot_names: Sequence[str], index: int | None, *, is_open: bool) -> str:
    """The charts over time of one clip."""
    t = clip.time_s
    lost = clip.lost_after_s
    span = (0.0, float(t[-1])) if len(t) > 1 else None
    deviation = 100 * clip.base_deviation_m()
    charts = [
        figures.line_chart(
            [Line("base deviation", t, deviation)],
            title="Base deviation",
            unit="(cm)",
            x_range=span,
            y_range=_tracked_range(clip, deviation),
            lost_after=lost,
            clip=index,
        )
    ]
    difference = np.abs(clip.joint_difference_rad())
    if difference.shape[1]:
        charts.append(
            figures.line_chart(
                [
                    Line("worst joint", t, difference.max(axis=1), "other"),
                    Line("mean of joints", t, difference.mean(axis=1)),
                ],
                title="Joint error",
                unit="(rad)",
                x_range=span,
                y_range=_tracked_range(clip, difference.max(axis=1)),
                lost_after=lost,
                clip=index,
            )
        )
    wide = ""
    if clip.foot_height is not None:
        feet, ref = clip.foot_height, clip.reference_foot_height
        both = feet[_tracked_part(clip)]
        both = both if ref is None else np.concatenate([both, ref])
        finite = both[np.isfinite(both)]
        top = float(np.percentile(finite, 99.5)) if finite.size else 0.1
        bottom = float(np.percentile(finite, 0.5)) if finite.size else 0.0
        pad = 0.08 * max(top - bottom, 0.02)
        for i in range(feet.shape[1]):
            css = FOOT_CSS[i % 4]
            lines = [] if ref is None else [Line("reference", t, 100 * ref[:, i], "ref")]
            lines.append(Line("robot", t, 100 * feet[:, i], css))
            charts.append(
                figures.line_chart(
                    lines,
                    title=f"Foot height {foot_label(foot_names, i)}",
                    unit="(cm)",
                    x_range=span,
                    # One scale for the four feet, so that they compare.
                    y_range=(100 * (bottom - pad), 100 * (top + pad)),
                    height=140,
                    lost_after=lost,
                    clip=index,
                )
            )
        if ref is not None and len(t) > 1:
            labels = [foot_label(foot_names, i) for i in range(feet.shape[1])]
            counted = _tracked_part(clip)
            stands = np.apply_along_axis(figures.stance, 0, feet, counted=counted)
            reference_stands = np.apply_along_axis(figures.stance, 0, ref)
            chart = figures.footfall_chart(
                t,
                reference_stands,
                stands,
                labels,
                [FOOT_CSS[i % 4] for i in range(len(labels))],
                clip=index,
                lost_after=lost,
            )
            words = "A foot stands while it is within 2 cm of its lowest height."
            wide = f'<div class="scroll">{chart}</div><p class="lead">{words}</p>'
    whole = f"{number(len(t) / clip.rate_hz)} s"
    state = f"lost after {number(lost)} s of {whole}" if lost is not None else whole
    return (
        f"<details{' open' if is_open else ''}><summary>{escape(clip.name)} <span>{escape(state)}</span></summary>"
        f'<div class="charts">{"".join(charts)}</div>{wide}</details>'
    )


# ---- walking
# --------------------------------------------------------------------------------------------------------------


def _walking(walking: Walking | None, index: Mapping[str, int]) -> Section | None:
    if walking is None:
        return None
    t = np.asarray(walking.time_s, dtype=np.float64)
    command, achieved = (np.asarray(v, dtype=np.float64) for v in (walking.command, walking.achieved))
    random = None if walking.random_achieved is None else np.asarray(walking.random_achieved, dtype=np.float64)
    parts = [
        '<p class="lead">Velocity in the robot\'s own heading frame: commanded, and achieved by the policy that '
        "steers the frozen skill module.</p>"
    ]
    if walking.errors:
        names = list(walking.errors)
        bars = []
        for i, name in enumerate(names):
            value = _real(walking.errors[name])
            text, first = number(value), _real(walking.errors[names[0]])
            if i and math.isfinite(value) and math.isfinite(first) and first > 0:
                text += f"  ·  {100 * value / first:.0f} % of {names[0]}"
            bars.append(Bar(name, value, text, css="robot" if i == len(names) - 1 else "ref"))
        parts.append(
            f'<div class="scroll">{figures.bar_chart(bars, title="Velocity error", unit=walking.errors_caption)}</div>'
        )
    charts = []
    for k, (name, unit) in enumerate(
        (("Forward velocity", "(m/s)"), ("Lateral velocity", "(m/s)"), ("Yaw rate", "(rad/s)"))
    ):
        lines = [] if random is None else [Line("random latents", t, random[:, k], "other")]
        lines += [Line("commanded", t, command[:, k], "ref"), Line("achieved", t, achieved[:, k], "robot")]
        charts.append(
            figures.line_chart(lines, title=name, unit=unit, width=940, height=165, clip=index.get(walking.name))
        )
    parts.append("".join(f'<div class="scroll">{c}</div>' for c in charts))
    rows = [["policy", *(number(v) for v in _nan_rms(achieved - command))]]
    if random is not None:
        rows.insert(0, ["random latents", *(number(v) for v in _nan_rms(random - command))])
    parts.append(_table(["root mean square error", "forward (m/s)", "lateral (m/s)", "yaw rate (rad/s)"], rows))
    return Section("walking", "Walking on command", "".join(parts))


# ---- retargeting, learning, provenance
# ------------------------------------------------------------------------------------

# Key of a row -> heading and factor to the heading's unit, in the order of the table.
_QUALITY: dict[str, tuple[str, float]] = {
    "frames": ("frames", 1.0),
    "duration_s": ("duration (s)", 1.0),
    "rms_marker_m": ("marker error, RMS (cm)", 100.0),
    "max_marker_m": ("marker error, largest (cm)", 100.0),
    "foot_slide_mps": ("foot slide (cm/s)", 100.0),
    "penetration_m": ("floor penetration (cm)", 100.0),
    "float_m": ("standing feet above the floor (cm)", 100.0),
    "limit_violations": ("limit violations", 1.0),
    "velocity_violations": ("velocity violations", 1.0),
    "self_collision_share": ("self-collision (% of frames)", 100.0),
}
# The rest of a motion's figures are for the report of `npmp retarget`.
_HIDDEN = (
    "name", "source", "licence", "foot_slide_share", "near_floor_mps", "stance_lost_share", "penetration_p99_m",
    "body_penetration_m", "jerk_rms", "body_scale", "floor_slope",
)  # fmt: skip


def _retarget(rows: Sequence[Mapping[str, Any]] | None) -> Section | None:
    if not rows:
        return None
    keys = [k for k in _QUALITY if any(k in r for r in rows)]
    keys += list(dict.fromkeys(k for r in rows for k in r if k not in _QUALITY and k not in _HIDDEN))
    columns = ["clip", *(_QUALITY[k][0] if k in _QUALITY else k.replace("_", " ") for k in keys)]

    def cell(row: Mapping[str, Any], key: str) -> str:
        value = row.get(key)
        if value is None:
            return "n/a"
        factor = _QUALITY[key][1] if key in _QUALITY else 1.0
        return number(_real(value) * factor) if isinstance(value, (int, float, np.number)) else str(value)

    table = [[str(row.get("name", "?")), *(cell(row, k) for k in keys)] for row in rows]
    last = None
    if len(rows) > 1:
        last = [
            "mean",
            *(number(_mean(_real(r.get(k)) for r in rows) * _QUALITY.get(k, ("", 1.0))[1]) for k in keys),
        ]
    licences = sorted({str(r["licence"]) for r in rows if r.get("licence")})
    words = "How closely the robot's markers follow the recording, and how the feet and joints keep to the floor and limits."
    note = f'<p class="lead">Licence of the recordings: {escape("; ".join(licences))}</p>' if licences else ""
    return Section("retargeting", "Retargeting", f'<p class="lead">{words}</p>{_table(columns, table, last)}{note}')


# What a reader looks for first; a column's place is that of the first pattern it matches.
_METRIC_ORDER = (
    r"tracked|success|survi",
    r"velocity_error|error_(before|after)",
    r"return|reward",
    r"model",
    r"loss",
    r"(^|_)kl(_|$)",
    r"beta",
    r"sigma|latent|std",
    r"temperature|eta|alpha",
    r"grad|norm",
)


def _metric_place(name: str) -> int:
    return next((i for i, pattern in enumerate(_METRIC_ORDER) if re.search(pattern, name)), len(_METRIC_ORDER))


def metric_chart(name: str, x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], x_label: str) -> str:
    """One learning curve; rows without a value are skipped, and what spans more than two decades is drawn on a log
    scale."""
    kept = np.isfinite(x) & np.isfinite(y)
    x, y = x[kept], y[kept]
    log = bool(y.size and (y > 0).all() and y.max() > 100 * y.min())
    y_range = None
    if re.search(r"fraction", name) and y.size and y.min() >= 0 and y.max() <= 1:
        y_range = (0.0, 1.02)
    css = ("robot", "third", "other")[0 if _metric_place(name) < 3 else 1 if _metric_place(name) < 5 else 2]
    return figures.line_chart(
        [Line(name, x, y, css)],
        title=name.replace("_", " ").replace("/", " / "),
        unit="log scale" if log else "",
        x_label=x_label,
        width=330,
        height=150,
        log=log,
        y_range=y_range,
    )


def _learning(runs: Sequence[tuple[str, Path | str]]) -> Section | None:
    parts: list[str] = []
    for title, path in runs:
        columns = read_metrics(path)
        axis = next((k for k in ("env_steps", "iteration") if k in columns), None)
        names = sorted((k for k in columns if k not in ("env_steps", "iteration")), key=_metric_place)[:MAX_METRICS]
        parts.append(f"<h3>{escape(title)}</h3>" if len(runs) > 1 or title else "")
        if not names:
            parts.append('<p class="lead">No figures yet.</p>')
            continue
        x = columns[axis] if axis else np.arange(len(columns[names[0]]), dtype=np.float64)
        x_label = {"env_steps": "environment steps", "iteration": "iteration"}.get(axis or "", "row")
        charts = [metric_chart(k, x, columns[k], x_label) for k in names]
        parts.append(f'<div class="charts small">{"".join(charts[:MAX_METRICS_OPEN])}</div>')
        if len(charts) > MAX_METRICS_OPEN:
            rest = charts[MAX_METRICS_OPEN:]
            parts.append(
                f'<details><summary>{len(rest)} more</summary><div class="charts small">{"".join(rest)}</div></details>'
            )
    return Section("learning", "Learning", "".join(parts)) if parts else None


def provenance_section(provenance: Mapping[str, Any], clean: Scrubber) -> Section | None:
    if not provenance:
        return None
    terms: list[str] = []
    blocks: list[str] = []
    for key, raw in provenance.items():
        value = clean.deep(raw)
        name = escape(str(key).replace("_", " "))
        if (
            isinstance(value, dict)
            and all(not isinstance(v, (dict, list)) for v in value.values())
            and len(value) <= 16
        ):
            words = " · ".join(f"{k} {v}" for k, v in value.items())
            terms.append(f"<dt>{name}</dt><dd>{escape(words)}</dd>")
        elif isinstance(value, (dict, list)) and not (
            isinstance(value, list) and all(not isinstance(v, (dict, list)) for v in value)
        ):
            text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
            blocks.append(f'<details class="screen"><summary>{name}</summary><pre>{escape(text)}</pre></details>')
        elif isinstance(value, list):
            terms.append(f"<dt>{name}</dt><dd>{escape(', '.join(str(v) for v in value))}</dd>")
        elif "\n" in str(value):
            blocks.append(f"<details><summary>{name}</summary><pre>{escape(value)}</pre></details>")
        elif str(key) == "command":
            terms.append(f"<dt>{name}</dt><dd><code>{escape(value)}</code></dd>")
        else:
            terms.append(f"<dt>{name}</dt><dd>{escape(value)}</dd>")
    listed = f"<dl>{''.join(terms)}</dl>" if terms else ""
    return Section("provenance", "Provenance", listed + "".join(blocks))
