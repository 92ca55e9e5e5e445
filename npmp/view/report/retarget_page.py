"""The report of `npmp retarget`: how good the motions are, which are worst and why, what was
dropped, and a 3-D replay.

Curves are drawn of a choice of motions, figures are given of all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.clip import Clip
from mocap_data.errors import counted
from mocap_data.motion import ReferenceMotion, speeds
from mocap_data.store import MotionSet
from npmp.robots import Robot
from npmp.view.report import figures, parts
from npmp.view.report.figures import FloatArray, Line
from npmp.view.report.motion_table import motion_table, overall
from npmp.view.report.replay import (
    BUDGET_BYTES,
    FRAMES_PER_S,
    ReplayClip,
    frame_bytes,
    replay_section,
)
from npmp.view.robot_shapes import moving_bodies
from retarget.cleaning import Cleaned, Collision
from retarget.ground import runs
from retarget.keypoint_overlay import bones, keypoints_of
from retarget.motion_summary import originals_of
from retarget.quality import SLIDING, QualityMeter, slide_speeds, trouble

# motions whose curves are drawn
MAX_WORST = 6
MAX_OTHERS = 6
# of the table
MAX_ROWS = 400
# of a large set, shorter motions are shown only where there is nothing else [s]
SHORTEST_REPLAY = 2.0
# motions of a large set in the 3-D replay: the worst, the median, the best
REPLAYS = 3


@dataclass(frozen=True)
class RetargetReport:
    """What there is to say about a run of `npmp retarget`.

    Attributes:
        whole: the retargeted recordings before cleaning. cleaned: what became of them.
        clips: the recordings by name.
        warnings: what looks wrong, by recording. failures: recordings left out, a line each.
        assumed: what files do not say, a line each.
        seconds: wall-clock of it all.
        provenance: command, versions and the like, shown as they are.
    """

    robot: Robot
    whole: MotionSet
    cleaned: Cleaned
    clips: Mapping[str, Clip] = field(default_factory=dict)
    warnings: Mapping[str, str] = field(default_factory=dict)
    failures: Sequence[str] = ()
    assumed: Sequence[str] = ()
    seconds: float | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def motions(self) -> list[ReferenceMotion]:
        """The motions without mirror images, worst first."""
        originals = originals_of(self.cleaned.motions.motions)
        return sorted(originals, key=lambda motion: -trouble(motion.quality))

    @cached_property
    def meter(self) -> QualityMeter:
        return QualityMeter(self.robot)

    def overall(self, key: str, factor: float = 1.0) -> str:
        """A figure of all motions, as in the last rows of the table, in words."""
        return _short(factor * overall(self.motions, key))


def build(out: Path | str, data: RetargetReport) -> Path:
    """Write the report and return its path. The file appears whole or not at all."""
    chosen = chosen_for_replay(data)
    replay, place = _replay(data, chosen)
    index = {motion.name: place[title] for title, motion in chosen if title in place}
    whole = counted(len(data.whole.motions), "recording")
    motions = counted(len(data.motions), "motion")
    mirrors = len(data.cleaned.motions.motions) - len(data.motions)
    also = f", and {mirrors} mirror images" if mirrors else ""
    return parts.assemble(
        Path(out),
        title="Retargeting",
        subtitle=f"{whole}, {motions} of {data.robot.name}{also}",
        cards=_cards(data),
        sections=[
            replay,
            *([_histograms(data), _table(data), _curves(data, index)] if data.motions else []),
            _dropped(data),
            _problems(data),
        ],
        provenance=_provenance(data),
    )


def _short(value: float) -> str:
    """Two digits; nothing smaller than a hundredth matters here."""
    return parts.number(round(value, 2), 2)


def _cards(data: RetargetReport) -> list[tuple[str, str, str]]:
    kept = data.cleaned.seconds_kept
    recorded = data.cleaned.seconds_in
    share = 100.0 * kept / max(recorded, 1e-9)
    cards = [("Kept", f"{kept:,.0f} s", f"{share:.0f} % of {recorded:,.0f} s recorded")]
    if math.isfinite(overall(data.motions, "rms_marker_m")):
        words = f"RMS over all frames; {data.overall('max_marker_m', 100)} cm at most"
        cards.append(("Marker error", f"{data.overall('rms_marker_m', 100)} cm", words))
    if math.isfinite(overall(data.motions, "leg_orientation_deg")):
        angle = f"{data.overall('leg_orientation_deg')}°"
        cards.append(("Leg orientation", angle, "off the person's, mean over time"))

    slide = f"{data.overall('foot_slide_mps', 100)} cm/s"
    slid = data.overall("foot_slide_share", 100)
    in_stance = f"mean of standing feet; {slid} % of their steps above {100 * SLIDING:g} cm/s"
    if math.isnan(overall(data.motions, "foot_slide_mps")):
        slide = "no foot stands"
        in_stance = f"feet near the floor move at {data.overall('near_floor_mps', 100)} cm/s"
    sunk = "99th percentile, worst motion"
    if math.isfinite(overall(data.motions, "float_m")):
        sunk += f"; standing feet {data.overall('float_m', 1000)} mm above"
    violations = sum(
        float(np.nan_to_num(overall(data.motions, f"{what}_violations")))
        for what in ("limit", "velocity")
    )
    return [
        *cards,
        ("Foot slide", slide, in_stance),
        ("Feet in the floor", f"{data.overall('penetration_p99_m', 1000)} mm", sunk),
        ("Limits", f"{violations:g}", "joints beyond position or velocity limits, over all frames"),
        ("Self-collision", f"{data.overall('self_collision_share', 100)} %", "of all frames"),
    ]


# ---- replay


def replay_bytes(data: RetargetReport) -> float:
    """What the 3-D replay of all motions takes [bytes]."""
    bodies = len(moving_bodies(data.robot.model()))
    soles = len(data.robot.foot_bodies)
    total = 0.0
    for motion in data.motions:
        clip = data.clips.get(motion.recording or motion.name)
        points = soles + (0 if clip is None else len(clip.names))
        total += motion.duration_s * FRAMES_PER_S * frame_bytes(bodies, points)
    return total


def chosen_for_replay(data: RetargetReport) -> list[tuple[str, ReferenceMotion]]:
    """All motions of a small set, worst first, each with its title; of a set that takes more than
    `BUDGET_BYTES` the worst, the median and the best.

    Where short motions are passed over, the titles say among which these are the worst, the median
    and the best.
    """
    motions = data.motions
    among = ""
    small = replay_bytes(data) <= BUDGET_BYTES
    if not small:
        long = [motion for motion in motions if motion.duration_s >= SHORTEST_REPLAY]
        motions = long if len(long) >= REPLAYS else motions
        among = f" of {SHORTEST_REPLAY:g} s and more" if len(motions) < len(data.motions) else ""
    last = len(motions) - 1
    words = {0: "worst", last // 2: "median", last: "best"} if last > 1 else {}
    return [
        (f"{words[i]}{among}: {motion.name}" if i in words else motion.name, motion)
        for i, motion in enumerate(motions)
        if small or i in words or not words
    ]


def _replay(
    data: RetargetReport, chosen: Sequence[tuple[str, ReferenceMotion]]
) -> tuple[parts.Section | None, dict[str, int]]:
    """The section, and the number of each clip in it by its title."""
    if not chosen:
        return None, {}
    wholes = {entry.recording or entry.name: entry for entry in data.whole.motions}
    robot = data.robot
    clips = []
    centres = robot.foot_points.mean(axis=1, keepdims=True)
    soles = np.linalg.norm(robot.foot_points - centres, axis=2)
    sole_m = max(0.04, 1.3 * robot.foot_radius, 1.2 * float(soles.max()))
    for title, motion in chosen:
        recording = motion.recording or motion.name
        whole = wholes.get(recording, motion)
        recorded = dict[str, Any]()
        if (clip := data.clips.get(recording)) is not None:
            slower = whole.duration_s / clip.duration_s
            scale = whole.quality.get("body_scale", 1.0)
            slower = slower if slower > 1.05 else 1.0
            points = keypoints_of(motion, clip, scale, slower)
            recorded = {"keypoints": points, "bones": bones(clip)}
        feet = data.meter.feet(motion).mean(axis=2)
        contacts = data.meter.contacts(motion)
        of_feet: dict[str, Any] = {"feet": feet, "contacts": contacts, "sole_m": sole_m}
        clips.append(ReplayClip(title, motion.qpos, motion.rate_hz, **of_feet, **recorded))
    whole_size, budget = (size / 1e6 for size in (replay_bytes(data), BUDGET_BYTES))
    words = "All motions, the worst first."
    if len(chosen) < len(data.motions):
        words = f"{len(chosen)} of {len(data.motions)} motions: all would take {whole_size:.0f} MB,"
        words += f" {budget:g} MB is the most."
    return replay_section(data.robot, clips, words)


# ---- distributions


def _histograms(data: RetargetReport) -> parts.Section:
    motions = data.motions
    radius = data.robot.foot_radius
    errors = [m.frame_quality["marker_rms_m"] for m in motions if "marker_rms_m" in m.frame_quality]
    slides = []
    depths = []
    shares = []
    for motion in motions:
        feet = data.meter.feet(motion)
        slides.append(slide_speeds(feet, data.meter.contacts(motion), motion.rate_hz))
        depths.append(np.maximum(0.0, radius - feet[..., 2].min(axis=(1, 2))))
        shares.append(speed_shares(data.robot, motion).max(axis=1))
    seconds = np.array([motion.duration_s for motion in motions])
    longest = {"bins": 20, "top": float(seconds.max()) * 1.001}
    percent = "(% of its limit, fastest joint of each frame)"
    rows: list[tuple[str, str, float, Sequence[FloatArray], dict[str, Any]]] = [
        ("Marker error", "(cm, RMS of each frame)", 100, errors, {"least": 0.5}),
        ("Foot slide", "(cm/s, each step in stance)", 100, slides, {"threshold": 100 * SLIDING}),
        ("Feet in the floor", "(mm, deepest foot of each frame)", 1000, depths, {"least": 0.5}),
        ("Joint speed", percent, 100, shares, {"threshold": 100.0}),
        ("Root speed", "(m/s)", 1, [speeds(motion) for motion in motions], {}),
        ("Length of motions", "(s)", 1, [seconds], longest),
    ]
    charts = [
        figures.histogram(factor * np.concatenate(values), title=title, unit=unit, **more)
        for title, unit, factor, values, more in rows
        if values
    ]
    words = parts.Words("Shares of all kept frames without mirror images.")
    content = [words, parts.Charts(charts, small=True)]
    return parts.Section("distributions", "Distributions", content)


def speed_shares(robot: Robot, motion: ReferenceMotion) -> FloatArray:
    """Joint speeds (T, J) as shares of their limits."""
    return np.asarray(np.abs(motion.qvel[:, 6:]) / robot.velocity_limit)


# ---- the table


def _table(data: RetargetReport) -> parts.Section:
    motions = data.motions
    words = (
        "Worst first; a click on a heading sorts, the mouse on it explains. At the end all motions "
        "together, and each kind of movement: RMS over frames, means weighted by time, the largest "
        "of largest values and percentiles, sums of counts. Mirror images have the figures of what "
        "they mirror."
    )
    more = f" The worst {MAX_ROWS} of {len(motions)}." if len(motions) > MAX_ROWS else ""
    table = motion_table(motions, most=MAX_ROWS)
    return parts.Section("motions", "Motions", [parts.Words(words + more), table])


# ---- curves


def chosen_for_curves(motions: Sequence[ReferenceMotion]) -> list[int]:
    """Of motions, worst first: the worst, and others evenly from the rest."""
    worst = list(range(min(MAX_WORST, len(motions))))
    rest = range(len(worst), len(motions))
    places = np.linspace(0, len(rest) - 1, min(MAX_OTHERS, len(rest)))
    return worst + sorted({rest[round(i)] for i in places})


def _curves(data: RetargetReport, index: Mapping[str, int]) -> parts.Section:
    motions = data.motions
    chosen = chosen_for_curves(motions)
    folds = []
    for place, i in enumerate(chosen):
        motion = motions[i]
        rank = f"rank {i + 1} of {len(motions)}, " if len(motions) > 1 else ""
        charts = parts.Charts(curves_of(data, motion, index.get(motion.name)), small=True)
        detail = f"{rank}{parts.number(motion.duration_s)} s"
        folds.append(parts.Fold(motion.name, [charts], detail, is_open=place == 0))
    words = "Shaded: the foot stands."
    if len(chosen) < len(motions):
        others = f"{len(chosen) - MAX_WORST} evenly from the rest"
        words = f"The worst {MAX_WORST} of {len(motions)} motions, and {others}. {words}"
    return parts.Section("curves", "Over time", [parts.Words(words), *folds])


def curves_of(
    data: RetargetReport, motion: ReferenceMotion, clip: int | None = None
) -> list[parts.Chart]:
    """The charts of one motion. clip: its number in the replay."""
    robot = data.robot
    rate = motion.rate_hz
    t = np.arange(motion.num_frames) / rate
    look: dict[str, Any] = {"width": 330, "height": 140, "clip": clip}
    look["x_range"] = (0.0, max(float(t[-1]), 1.0 / rate))

    def chart(title: str, unit: str, *lines: Line, **more: Any) -> parts.Chart:
        return figures.line_chart(lines, title=title, unit=unit, **look | more)

    # how high the lowest point of each sole is, with its stances, on one scale
    feet = data.meter.feet(motion)
    standing = data.meter.contacts(motion)
    height = 1000 * (feet[..., 2].min(axis=2) - robot.foot_radius)  # [mm]
    scale = min(-2.0, float(height.min())), max(20.0, 1.05 * float(height.max()))
    charts = []
    for foot, name in enumerate(parts.foot_labels(robot.foot_bodies)):
        bands = [(a / rate, b / rate) for a, b in runs(standing[:, foot])]
        line = Line("height", t, height[:, foot], parts.FOOT_CSS[foot % 4])
        charts.append(
            chart(f"Foot {name}", "(mm above the floor)", line, y_range=scale, bands=bands)
        )
    if {"marker_rms_m", "marker_max_m"} <= set(motion.frame_quality):
        largest = Line("largest", t, 100 * motion.frame_quality["marker_max_m"], "other")
        rms = Line("RMS", t, 100 * motion.frame_quality["marker_rms_m"])
        charts.append(chart("Marker error", "(cm)", largest, rms))
    shares = 100 * speed_shares(robot, motion)
    fastest = int(shares.max(axis=0).argmax())
    moment = Line("fastest joint of each moment", t, shares.max(axis=1), "ref")
    joint = Line(robot.joint_names[fastest], t, shares[:, fastest], "third")
    charts.append(chart("Joint speed", "(% of limit)", moment, joint, threshold=100.0))
    root = motion.qpos[:, :2] - motion.qpos[0, :2]
    path = Line("root", root[:, 0], root[:, 1])
    from_above: dict[str, Any] = {"x_label": "x (m)", "height": 200, "clip": None, "x_range": None}
    charts.append(chart("Root path", "(m, from above)", path, square=True, **from_above))
    return [*charts, chart("Root height", "(cm)", Line("root", t, 100 * motion.qpos[:, 2]))]


# ---- what was dropped


def _dropped(data: RetargetReport) -> parts.Section | None:
    if not data.cleaned.dropped:
        return None
    rows: list[parts.Row] = []
    for row in data.cleaned.losses:
        counts = ((row.seconds, 1), (100 * row.share, 1), (row.stretches, 0), (row.recordings, 0))
        rows.append([row.reason, *(parts.Cell.of(value, decimals) for value, decimals in counts)])
    columns = ("reason", "s", "% of all", "stretches", "recordings")
    content: list[Any] = [parts.Table(columns, rows, sortable=True)]
    if data.cleaned.collisions:
        content.append(_collisions(data.cleaned.collisions))
    return parts.Section("dropped", "Dropped", content)


def _collisions(collisions: Sequence[Collision]) -> parts.Fold:
    """The pairs of bodies that run into each other, and what can be done about shapes that may."""
    pairs: list[parts.Row] = [
        [
            " with ".join(row.pair),
            parts.Cell.of(row.seconds, 1),
            parts.Cell.of(100 * row.share, 1),
            parts.Cell.of(1000 * row.depth_m, 1),
        ]
        for row in collisions[:MAX_ROWS]
    ]
    table = parts.Table(("bodies", "s", "% of all", "mm at most"), pairs, sortable=True)
    why = "Shapes that may overlap: ignore_collisions in robot.yaml."
    return parts.Fold("Self-collision by bodies", [parts.Words(why), table], is_open=True)


def _problems(data: RetargetReport) -> parts.Section | None:
    content: list[Any] = []
    if data.warnings:
        lines = [f"{name} {why}" for name, why in data.warnings.items()]
        content += [parts.Words("Looks wrong, or needs a look", "h3"), parts.Lines(lines)]
    if data.assumed:
        content += [parts.Words("Assumed where files are silent", "h3"), parts.Lines(data.assumed)]
    if data.failures:
        content += [parts.Words("Left out", "h3"), parts.Lines(data.failures)]
    return parts.Section("problems", "Problems", content) if content else None


def _provenance(data: RetargetReport) -> dict[str, Any]:
    provenance = data.cleaned.motions.provenance
    licences = sorted({motion.licence for motion in data.cleaned.motions.motions})
    out = dict(data.provenance) | {"licence of the recordings": "; ".join(licences)}
    if data.seconds is not None:
        out["took"] = f"{data.seconds:.1f} s"
    for key in ("options", "cleaning", "offsets", "body_scale", "recordings"):
        if key in provenance:
            try:
                out[key] = json.loads(provenance[key])
            except ValueError:
                out[key] = provenance[key]
    return out
