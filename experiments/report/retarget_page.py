"""The report of `npmp retarget`: how good the motions are, which are worst and why, what was dropped, and a 3-D replay.

One page that needs no network. Curves are drawn of a choice of motions, figures are given of all.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.report import figures, scene
from experiments.report.figures import Line, Stretch, breakable, escape, number
from experiments.report.page import (
    FOOT_CSS,
    POLICY,
    Scrubber,
    Section,
    assemble,
    foot_label,
    provenance_section,
    replay_section,
)
from experiments.report.replay import ReplayClip
from mocap_data.clip import Clip
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet
from npmp.robots import Robot
from retarget.cleaning import REASONS, Cleaned
from retarget.gaits import SPEEDS, TURN, kinds_of
from retarget.quality import BAD, SLIDING, QualityMeter, overall_rms, slide_speeds, trouble
from retarget.weights import speeds

MAX_WORST, MAX_OTHERS = 6, 6  # motions whose curves are drawn
MAX_ROWS = 400  # of the table
MAX_RECORDINGS = 80  # of the timeline
SHORTEST_REPLAY = 2.0  # [s] shorter motions are shown only where there is nothing else
FloatArray = npt.NDArray[np.float64]

# viser's client unpacks itself and its recordings in the page; nothing here allows the network.
SCENE_POLICY = (
    "default-src 'none'; img-src data: blob:; font-src data:; style-src 'unsafe-inline'; worker-src blob: data:; "
    "script-src 'unsafe-inline' 'unsafe-eval' blob: data:; connect-src data: blob:; frame-src 'self' blob: data:"
)


@dataclass(frozen=True)
class RetargetReport:
    """What there is to say about a run of `npmp retarget`.

    Attributes:
        whole: the retargeted recordings before cleaning. cleaned: what became of them.
        clips: the recordings by name.
        doubts: what looks wrong, by recording. failures: recordings left out, a line each.
        seconds: wall-clock of it all.
        replays: clips in the 3-D replay.
        provenance: command, versions and the like, shown as they are.
    """

    robot: Robot
    whole: MotionSet
    cleaned: Cleaned
    clips: Mapping[str, Clip] = field(default_factory=dict)
    doubts: Mapping[str, str] = field(default_factory=dict)
    failures: Sequence[str] = ()
    seconds: float | None = None
    replays: int = 3
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def motions(self) -> list[ReferenceMotion]:
        """The motions without mirror images, worst first."""
        kept = self.cleaned.motions.motions
        originals = [motion for motion in kept if not motion.mirror] or list(kept)
        return sorted(originals, key=lambda motion: -trouble(motion.quality))

    @cached_property
    def meter(self) -> QualityMeter:
        """The robot's."""
        return QualityMeter(self.robot)


def build(out: Path | str, data: RetargetReport) -> Path:
    """Write the report and give back its path. The file appears whole or not at all."""
    out = Path(out)
    replay, blocks, scripts, policy = _replay(data)
    sections = [
        replay,
        _histograms(data),
        _table(data),
        _curves(data),
        _dropped(data),
        _problems(data),
        provenance_section(_provenance(data), Scrubber(out.parent)),
    ]
    total = len(data.cleaned.motions.motions)
    mirrors = total - len(data.motions)
    count = len(data.whole.motions), len(data.motions)
    subtitle = (
        f"{count[0]} recording{'s' * (count[0] != 1)}, {count[1]} motion{'s' * (count[1] != 1)} of {data.robot.name}"
    )
    return assemble(
        out,
        title="Retargeting",
        subtitle=subtitle + (f", and {mirrors} mirror images" if mirrors else ""),
        notes=[],
        cards=_cards(data),
        sections=[section for section in sections if section is not None],
        data=blocks,
        scripts=scripts,
        policy=policy,
    )


def _known(data: RetargetReport, key: str) -> FloatArray:
    """A figure of the motions (N,), those that have it."""
    return np.array([motion.quality[key] for motion in data.motions if key in motion.quality], dtype=np.float64)


def _median(data: RetargetReport, key: str, factor: float) -> str:
    return _short(factor * _median_of(data.motions, key))


def _short(value: float) -> str:
    """Two digits; nothing smaller than a hundredth matters here."""
    return number(round(value, 2), 2)


def _cards(data: RetargetReport) -> list[tuple[str, str, str]]:
    cleaned = data.cleaned
    share = 100.0 * cleaned.seconds_kept / max(cleaned.seconds_in, 1e-9)
    cards = [("Kept", f"{cleaned.seconds_kept:,.0f} s", f"{share:.0f} % of {cleaned.seconds_in:,.0f} s recorded")]
    overall = overall_rms(data.motions)
    if math.isfinite(overall):
        largest = _short(100 * float(_known(data, "max_marker_m").max()))
        cards.append(
            ("Marker error", f"{_median(data, 'rms_marker_m', 100)} cm",
             f"RMS, median of motions; {_short(100 * overall)} cm over all frames, {largest} cm at most")
        )  # fmt: skip
    if _known(data, "leg_orientation_deg").size:
        worst = _short(float(_known(data, "leg_orientation_deg").max()))
        median = _median(data, "leg_orientation_deg", 1)
        cards.append(("Leg orientation", f"{median}°", f"off the person's, median; {worst}° at most"))
    slid = _known(data, "foot_slide_share")
    violations = sum(float(_known(data, key).sum()) for key in ("limit_violations", "velocity_violations"))
    touching = _known(data, "self_collision_share")
    cards += [
        ("Foot slide", f"{_median(data, 'foot_slide_mps', 100)} cm/s",
         f"in stance, median; {_short(100 * float(slid.mean()) if slid.size else math.nan)} % of steps above "
         f"{100 * SLIDING:g} cm/s"),
        ("Feet in the floor", f"{_median(data, 'penetration_p99_m', 1000)} mm",
         f"99th percentile of frames, median of motions; {_median(data, 'float_m', 1000)} mm above it in stance"),
        ("Limits", f"{violations:g}", "joints beyond position or velocity limits, over all frames"),
        ("Self-collision", f"{_short(100 * float(touching.mean()) if touching.size else math.nan)} %", "of frames, mean"),
    ]  # fmt: skip
    return cards


# ---- replay
# ---------------------------------------------------------------------------------------------------------------


def chosen_for_replay(data: RetargetReport) -> list[tuple[str, ReferenceMotion]]:
    """The worst, the median, the best motion, then others between them; each with what to call it.

    Where short motions are passed over, the names say among which these are the worst, the median and the best.
    """
    motions = [motion for motion in data.motions if motion.duration_s >= SHORTEST_REPLAY]
    motions = motions if len(motions) >= data.replays else data.motions
    among = f" of {SHORTEST_REPLAY:g} s and more" if len(motions) < len(data.motions) else ""
    count = min(data.replays, len(motions))
    last = len(motions) - 1
    places = (
        [0, last // 2, last]
        + [round(last * share) for share in (0.25, 0.75, 0.12, 0.38, 0.62, 0.88)]
        + list(range(last))
    )
    chosen = list(dict.fromkeys(places))[:count]
    words = {last: "best", last // 2: "median", 0: "worst"} if last > 1 else {}
    return [(f"{words[i]}{among}: {motions[i].name}" if i in words else motions[i].name, motions[i]) for i in chosen]


def _replay(data: RetargetReport) -> tuple[Section | None, dict[str, Any], tuple[str, ...], str]:
    """The section, its data by element, the page's scripts and policy."""
    plain: tuple[str, ...] = ("page.js", "tables.js")
    chosen = chosen_for_replay(data)
    if not chosen:
        return None, {}, plain, POLICY
    trouble_with = ""
    if scene.installed():
        try:
            recordings = scene.record(data.robot, [_take(data, title, motion) for title, motion in chosen])
        except OSError as error:
            trouble_with = f"The side-by-side replay could not be recorded: {error.strerror or error}."
        else:
            blocks: dict[str, Any] = {"scene-client": scene.client()}
            blocks |= {f"scene-{i}": base64.b64encode(entry).decode("ascii") for i, entry in enumerate(recordings)}
            return _scene(data, chosen), blocks, (*plain, "scene.js"), SCENE_POLICY
    else:
        trouble_with = f"For the recording and the robot side by side: {scene.HOW_TO_GET}, then run this again."
    clips = [ReplayClip(title, motion.qpos, motion.rate_hz) for title, motion in chosen]
    section, packed = replay_section(data.robot, clips, film=False)
    section = Section(section.key, section.title, f'<p class="note-line">{escape(trouble_with)}</p>{section.body}')
    return section, {"replay-data": packed} if packed else {}, (*plain, "replay.js") if packed else plain, POLICY


def _take(data: RetargetReport, title: str, motion: ReferenceMotion) -> scene.Take:
    recording = motion.recording or motion.name
    clip = data.clips.get(recording)
    whole = next((entry for entry in data.whole.motions if (entry.recording or entry.name) == recording), motion)
    slower = 1.0 if clip is None else whole.duration_s / clip.duration_s
    feet = data.meter.feet(motion).mean(axis=2)
    return scene.Take(
        title, motion, clip, data.meter.contacts(motion), feet,
        scale=whole.quality.get("body_scale", 1.0), slower=slower if slower > 1.05 else 1.0,
    )  # fmt: skip


def _scene(data: RetargetReport, chosen: Sequence[tuple[str, ReferenceMotion]]) -> Section:
    buttons = "".join(f'<button type="button" aria-pressed="false">{breakable(title)}</button>' for title, _ in chosen)
    longest = max(motion.duration_s for _, motion in chosen)
    cut = f" Of each, the first {scene.MAX_SECONDS:g} s." if longest > scene.MAX_SECONDS else ""
    keys = (
        '<span class="legend"><span class="key"><i class="swatch point"></i>recorded keypoints, beside the robot and on it'
        '</span><span class="key"><i class="swatch disc"></i>standing foot</span></span>'
    )
    size = f"{len(chosen)} of {len(data.motions)} shown; the floor's darker lines are 1 m apart."
    body = (
        f'<p class="lead">The recording beside the robot, and where its keypoints are on the robot. {escape(size + cut)}</p>'
        f'<div id="scene"><div class="choice">{buttons}{keys}</div>'
        '<div class="stage"><div class="cover">The replay starts here; it needs JavaScript and WebGL.</div></div>'
        '<p class="hint">The bar below the scene scrubs; space plays and stops. Drag to orbit, right-drag to pan, wheel to zoom. '
        "The tree at the bar's right end hides and shows parts.</p></div>"
    )
    return Section("replay", "Replay", body)


# ---- distributions
# --------------------------------------------------------------------------------------------------------


def _histograms(data: RetargetReport) -> Section | None:
    motions, robot = data.motions, data.robot
    if not motions:
        return None
    errors = [motion.frame_quality["marker_rms_m"] for motion in motions if "marker_rms_m" in motion.frame_quality]
    slides, depths, shares = [], [], []
    for motion in motions:
        feet, standing = data.meter.feet(motion), data.meter.contacts(motion)
        slides.append(slide_speeds(feet, standing, motion.rate_hz))
        depths.append(np.maximum(0.0, robot.foot_radius - feet[..., 2].min(axis=(1, 2))))
        shares.append(speed_shares(robot, motion).max(axis=1))
    root = [speeds(motion) for motion in motions]
    lengths = np.concatenate([np.full(len(s), 1.0 / m.rate_hz) for s, m in zip(root, motions, strict=True)])
    weights = np.concatenate([np.full(len(s), m.weight) for s, m in zip(root, motions, strict=True)])
    charts = []
    if errors:
        charts.append(
            figures.histogram(
                100 * np.concatenate(errors), title="Marker error", unit="(cm, RMS of each frame)", least=0.5
            )
        )
    charts += [
        figures.histogram(
            100 * np.concatenate(slides), title="Foot slide", unit="(cm/s, each step in stance)", threshold=100 * SLIDING
        ),
        figures.histogram(
            1000 * np.concatenate(depths), title="Feet in the floor", unit="(mm, deepest foot of each frame)", least=0.5
        ),
        figures.histogram(
            100 * np.concatenate(shares), title="Joint speed", unit="(% of its limit, fastest joint of each frame)",
            threshold=100.0,
        ),
        figures.histogram(
            np.concatenate(root), title="Root speed", unit="(m/s)", weights=lengths * weights, before=lengths,
            names=("as sampled", "as recorded"),
        ),
        figures.histogram(
            [motion.duration_s for motion in motions], title="Length of motions", unit="(s)", bins=20,
            top=max(motion.duration_s for motion in motions) * 1.001,
        ),
    ]  # fmt: skip
    words = (
        "Shares of all kept frames without mirror images. Root speed is shown before and after the sampling weights."
    )
    body = f'<p class="lead">{words}</p><div class="charts small">{"".join(charts)}</div>'
    return Section("distributions", "Distributions", body)


def speed_shares(robot: Robot, motion: ReferenceMotion) -> FloatArray:
    """Joint speeds (T, J) as shares of their limits."""
    return np.asarray(np.abs(motion.qvel[:, 6:]) / robot.velocity_limit)


# ---- the table
# ------------------------------------------------------------------------------------------------------------

# Key of quality -> heading, factor, decimals.
COLUMNS: dict[str, tuple[str, float, int]] = {
    "rms_marker_m": ("marker RMS (cm)", 100.0, 2),
    "max_marker_m": ("marker max (cm)", 100.0, 1),
    "foot_slide_mps": ("foot slide (cm/s)", 100.0, 2),
    "foot_slide_share": ("sliding steps (%)", 100.0, 1),
    "near_floor_mps": ("speed near floor (cm/s)", 100.0, 1),
    "stance_lost_share": ("stances lost (%)", 100.0, 1),
    "penetration_p99_m": ("feet sunk, p99 (mm)", 1000.0, 1),
    "penetration_m": ("feet sunk, max (mm)", 1000.0, 1),
    "float_m": ("feet floating, p99 (mm)", 1000.0, 1),
    "body_penetration_m": ("body sunk (mm)", 1000.0, 1),
    "limit_violations": ("beyond position limits", 1.0, 0),
    "velocity_violations": ("beyond velocity limits", 1.0, 0),
    "self_collision_share": ("self-collision (%)", 100.0, 1),
    "jerk_rms": ("jerk (rad/s³)", 1.0, 0),
    "leg_orientation_deg": ("leg orientation (deg)", 1.0, 1),
}


def _table(data: RetargetReport) -> Section | None:
    if not data.motions:
        return None
    keys = [key for key in COLUMNS if any(key in motion.quality for motion in data.motions)]
    splits = any(motion.split for motion in data.motions)
    headings = ["motion", "s", *(COLUMNS[key][0] for key in keys), "weight", *(["split"] if splits else [])]
    head = "".join(f"<th data-sort>{escape(heading)}</th>" for heading in headings)
    rows = []
    for motion in data.motions[:MAX_ROWS]:
        cells = [f"<td>{breakable(motion.name)}</td>", _cell(motion.duration_s, 1)]
        for key in keys:
            value = motion.quality.get(key, math.nan)
            cells.append(_cell(value * COLUMNS[key][1], COLUMNS[key][2], bad=value >= BAD.get(key, math.inf)))
        cells.append(_cell(motion.weight, 2))
        if splits:
            cells.append(f"<td>{escape(motion.split)}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    ends = ["<td></td>"] * (2 if splits else 1)
    last = []
    for name, group in {"median": data.motions, **kinds_in(data.motions)}.items():
        length = float(np.median([motion.duration_s for motion in group]))
        cells = [_cell(COLUMNS[key][1] * _median_of(group, key), COLUMNS[key][2]) for key in keys]
        last.append(f'<tr class="mean"><td>{escape(name)}</td>{_cell(length, 1)}{"".join([*cells, *ends])}</tr>')
    median = "".join(last)
    more = f"<p>The worst {MAX_ROWS} of {len(data.motions)}.</p>" if len(data.motions) > MAX_ROWS else ""
    words = (
        "Worst first; a click on a heading sorts. At the end medians, of all and by kind of movement. "
        "Mirror images have the figures of what they mirror."
    )
    return Section(
        "motions", "Motions",
        f'<p class="lead">{words}</p>{more}<div class="table tall"><table class="wrap" data-sortable>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}{median}</tbody></table></div>",
    )  # fmt: skip


def kinds_in(motions: Sequence[ReferenceMotion]) -> dict[str, list[ReferenceMotion]]:
    """Motions by kind of movement, where there are several kinds."""
    kinds = {
        kind: [motion for motion in motions if kind in kinds_of(motion)]
        for kind in (*(name for name, _ in SPEEDS), TURN)
    }
    found = {f"median of {len(group)}: {kind}": group for kind, group in kinds.items() if group}
    return found if len(found) > 1 else {}


def _median_of(motions: Sequence[ReferenceMotion], key: str) -> float:
    values = [motion.quality[key] for motion in motions if key in motion.quality]
    return float(np.median(values)) if values else math.nan


def _cell(value: float, decimals: int, *, bad: bool = False) -> str:
    """A number in a table; the script sorts by `data-value`."""
    known = math.isfinite(value)
    size, words = (f"{value:.6g}", f"{value:,.{decimals}f}") if known else ("NaN", "–")
    return f'<td{" class=bad" if bad else ""} data-value="{size}">{words}</td>'


# ---- curves
# ---------------------------------------------------------------------------------------------------------------


def chosen_for_curves(motions: Sequence[ReferenceMotion]) -> list[int]:
    """Of motions, worst first: the worst, and others evenly from the rest."""
    worst = list(range(min(MAX_WORST, len(motions))))
    rest = range(len(worst), len(motions))
    count = min(MAX_OTHERS, len(rest))
    return worst + sorted({rest[round(i)] for i in np.linspace(0, len(rest) - 1, count)} if count else set())


def _curves(data: RetargetReport) -> Section | None:
    motions = data.motions
    if not motions:
        return None
    chosen = chosen_for_curves(motions)
    parts = []
    for place, i in enumerate(chosen):
        motion = motions[i]
        rank = f"rank {i + 1} of {len(motions)}" if len(motions) > 1 else ""
        detail = ", ".join(part for part in (rank, f"{number(motion.duration_s)} s") if part)
        parts.append(
            f"<details{' open' if place == 0 else ''}><summary>{breakable(motion.name)} <span>{escape(detail)}</span></summary>"
            f'<div class="charts small">{"".join(curves_of(data, motion))}</div></details>'
        )
    words = "Shaded: the foot stands."
    if len(chosen) < len(motions):
        others = len(chosen) - MAX_WORST
        words = f"The worst {MAX_WORST} of {len(motions)} motions, and {others} evenly from the rest. {words}"
    return Section("curves", "Over time", f'<p class="lead">{words}</p>{"".join(parts)}')


def curves_of(data: RetargetReport, motion: ReferenceMotion) -> list[str]:
    """The charts of one motion."""
    robot, rate = data.robot, motion.rate_hz
    t = np.arange(motion.num_frames) / rate
    span = (0.0, max(float(t[-1]), 1.0 / rate))
    feet, standing = data.meter.feet(motion), data.meter.contacts(motion)
    height = 1000 * (feet[..., 2].min(axis=2) - robot.foot_radius)  # the lowest point of each sole [mm]
    low, high = min(-2.0, float(height.min())), max(20.0, 1.05 * float(height.max()))
    charts = []
    for foot in range(height.shape[1]):
        edges = np.flatnonzero(np.diff(np.concatenate(([False], standing[:, foot], [False])).astype(np.int8)))
        bands = [(a / rate, b / rate) for a, b in zip(edges[::2], edges[1::2], strict=True)]
        charts.append(
            figures.line_chart(
                [Line("height", t, height[:, foot], FOOT_CSS[foot % 4])], title=f"Foot {foot_label(robot.foot_bodies, foot)}",
                unit="(mm above the floor)", x_range=span, y_range=(low, high), bands=bands, width=330, height=140,
            )
        )  # fmt: skip
    if {"marker_rms_m", "marker_max_m"} <= set(motion.frame_quality):
        charts.append(
            figures.line_chart(
                [Line("largest", t, 100 * motion.frame_quality["marker_max_m"], "other"),
                 Line("RMS", t, 100 * motion.frame_quality["marker_rms_m"])],
                title="Marker error", unit="(cm)", x_range=span, width=330, height=140,
            )
        )  # fmt: skip
    shares = 100 * speed_shares(robot, motion)
    fastest = int(shares.max(axis=0).argmax())
    charts.append(
        figures.line_chart(
            [Line("fastest joint of each moment", t, shares.max(axis=1), "ref"),
             Line(robot.joint_names[fastest], t, shares[:, fastest], "third")],
            title="Joint speed", unit="(% of limit)", x_range=span, threshold=100.0, width=330, height=140,
        )
    )  # fmt: skip
    root = motion.qpos[:, :2] - motion.qpos[0, :2]
    reach = [(min(v.min(), (v.min() + v.max() - 0.5) / 2), max(v.max(), (v.min() + v.max() + 0.5) / 2)) for v in root.T]
    charts.append(
        figures.line_chart(
            [Line("root", root[:, 0], root[:, 1])], title="Root path", unit="(m, from above)", x_label="x (m)", square=True,
            x_range=reach[0], y_range=reach[1], width=330, height=200,
        )
    )  # fmt: skip
    charts.append(
        figures.line_chart(
            [Line("root", t, 100 * motion.qpos[:, 2])],
            title="Root height",
            unit="(cm)",
            x_range=span,
            width=330,
            height=140,
        )
    )
    return charts


# ---- what was dropped
# -----------------------------------------------------------------------------------------------------


def _dropped(data: RetargetReport) -> Section | None:
    cleaned = data.cleaned
    if not cleaned.dropped:
        return None
    css = {reason: f"r{i % 8}" for i, reason in enumerate(REASONS)}
    lengths = {motion.recording or motion.name: motion.start_s + motion.duration_s for motion in data.whole.motions}
    parts: dict[str, list[Stretch]] = {name: [] for name in lengths}
    lost = dict.fromkeys(lengths, 0.0)
    for motion in data.motions:
        stop = motion.start_s + motion.duration_s
        held = motion.split == "validation"
        words = f"{motion.name}: {motion.start_s:.1f} to {stop:.1f} s{', validation' if held else ''}"
        parts.setdefault(motion.recording, []).append(Stretch(motion.start_s, stop, "held" if held else "kept", words))
    for entry in cleaned.dropped:
        words = f"{entry.reason}: {entry.start_s:.1f} to {entry.stop_s:.1f} s"
        parts.setdefault(entry.recording, []).append(Stretch(entry.start_s, entry.stop_s, css[entry.reason], words))
        lost[entry.recording] = lost.get(entry.recording, 0.0) + entry.duration_s
    names = list(lengths)
    more = ""
    if len(names) > MAX_RECORDINGS:
        most = sorted(names, key=lambda name: -lost[name])[:MAX_RECORDINGS]
        names = [name for name in names if name in set(most)]
        more = f"<p>The {MAX_RECORDINGS} recordings of {len(lengths)} that lost most.</p>"
    seen = [reason for reason in REASONS if reason in cleaned.dropped_s]
    keys = [("kept", "kept")]
    keys += [("kept, for validation", "held")] if any(motion.split == "validation" for motion in data.motions) else []
    keys += [(reason, css[reason]) for reason in seen]
    chart = figures.timeline(
        [(name, lengths[name], parts[name]) for name in names],
        title="Recordings: what was kept and what was dropped",
        keys=keys,
    )
    rows = []
    for reason in seen:
        where = [entry for entry in cleaned.dropped if entry.reason == reason]
        seconds, recordings = cleaned.dropped_s[reason], {entry.recording for entry in where}
        rows.append(
            f'<tr><td><i class="swatch {css[reason]}"></i>{escape(reason)}</td>{_cell(seconds, 1)}'
            f"{_cell(100 * seconds / max(cleaned.seconds_in, 1e-9), 1)}{_cell(len(where), 0)}{_cell(len(recordings), 0)}</tr>"
        )
    head = "".join(f"<th data-sort>{words}</th>" for words in ("reason", "s", "% of all", "stretches", "recordings"))
    table = f'<div class="table"><table data-sortable><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    return Section("dropped", "Dropped", f'{table}<div class="scroll">{chart}</div>{more}')


def _problems(data: RetargetReport) -> Section | None:
    lines = [f"<li>{escape(name)} {escape(why)}</li>" for name, why in data.doubts.items()]
    lost = [f"<li>{escape(scrubbed)}</li>" for scrubbed in data.failures]
    if not (lines or lost):
        return None
    body = f"<h3>Looks wrong, or needs a look</h3><ul>{''.join(lines)}</ul>" if lines else ""
    body += f"<h3>Left out</h3><ul>{''.join(lost)}</ul>" if lost else ""
    return Section("problems", "Problems", body)


def _provenance(data: RetargetReport) -> dict[str, Any]:
    made = data.cleaned.motions.provenance
    licences = sorted({motion.licence for motion in data.cleaned.motions.motions})
    out = dict(data.provenance)
    out["licence of the recordings"] = "; ".join(licences)
    if data.seconds is not None:
        out["took"] = f"{data.seconds:.1f} s"
    for key in ("options", "cleaning", "offsets", "body_scale", "recordings"):
        if key in made:
            try:
                out[key] = json.loads(made[key])
            except ValueError:
                out[key] = made[key]
    return out
