"""The report of `npmp retarget`: 3-D replay, distributions and metrics of the motions, and what was
dropped."""

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
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet
from npmp.robots import Robot
from npmp.view.render.clip import ground_of
from npmp.view.report import figures, parts
from npmp.view.report.figures import FloatArray
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
from retarget.keypoint_overlay import bones, keypoints_of
from retarget.motion_summary import originals_of
from retarget.quality import SLIDING, QualityMeter, slide_speeds, trouble

# most rows of the table
MAX_ROWS = 400
# shorter motions of a large set are not replayed [s]
MIN_REPLAY_S = 2.0


@dataclass(frozen=True)
class RetargetReport:
    """The results of `npmp retarget`.

    Attributes:
      whole: the retargeted recordings before cleaning. cleaned: after it.
      clips: the recordings by name.
      warnings: by recording. failures: recordings left out, a line each.
      assumed: assumptions on values that files lack, a line each.
      seconds: wall-clock time.
      provenance: command, versions and the like.
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
        """A metric of all motions, as in the table's last rows, with two digits."""
        return parts.number(round(factor * overall(self.motions, key), 2), 2)


def build(out: Path | str, data: RetargetReport) -> Path:
    """Write the report atomically and return its path."""
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
            _replay(data),
            *([_histograms(data), _table(data)] if data.motions else []),
            _dropped(data),
            _problems(data),
        ],
        provenance=_provenance(data),
    )


def _cards(data: RetargetReport) -> list[tuple[str, str, str]]:
    kept = data.cleaned.seconds_kept
    recorded = data.cleaned.seconds_in
    share = 100.0 * kept / max(recorded, 1e-9)
    cards = [("Kept", f"{kept:,.0f} s", f"{share:.0f} % of {recorded:,.0f} s recorded")]
    if math.isfinite(overall(data.motions, "rms_marker_m")):
        caption = f"RMS over all frames; {data.overall('max_marker_m', 100)} cm at most"
        cards.append(("Marker error", f"{data.overall('rms_marker_m', 100)} cm", caption))
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
        float(np.nan_to_num(overall(data.motions, f"{kind}_violations")))
        for kind in ("limit", "velocity")
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
    """The size of the replay of all motions [bytes]."""
    bodies = len(moving_bodies(data.robot.model()))
    soles = len(data.robot.foot_bodies)
    total = 0.0
    for motion in data.motions:
        clip = data.clips.get(motion.recording or motion.name)
        points = soles + (0 if clip is None else len(clip.names))
        total += motion.duration_s * FRAMES_PER_S * frame_bytes(bodies, points)
    return total


def replayed(data: RetargetReport) -> list[tuple[str, ReferenceMotion]]:
    """The motions in the replay with their titles, worst first: all of a small set; for a set above
    `BUDGET_BYTES` the worst, median and best that last `MIN_REPLAY_S`."""
    motions = data.motions
    small = replay_bytes(data) <= BUDGET_BYTES
    if not small:
        motions = [m for m in motions if m.duration_s >= MIN_REPLAY_S] or motions
    last = len(motions) - 1
    ranks = {0: "worst", last // 2: "median", last: "best"} if last > 1 else {}
    return [
        (f"{ranks[i]}: {motion.name}" if i in ranks else motion.name, motion)
        for i, motion in enumerate(motions)
        if small or i in ranks or not ranks
    ]


def _replay(data: RetargetReport) -> parts.Section | None:
    chosen = replayed(data)
    if not chosen:
        return None
    wholes = {entry.recording or entry.name: entry for entry in data.whole.motions}
    robot = data.robot
    centres = robot.foot_points.mean(axis=1, keepdims=True)
    soles = np.linalg.norm(robot.foot_points - centres, axis=2)
    sole_m = max(0.04, 1.3 * robot.foot_radius, 1.2 * float(soles.max()))
    clips = []
    for title, motion in chosen:
        recording = motion.recording or motion.name
        whole = wholes.get(recording, motion)
        recorded = ground_of(motion.ground)
        clip = data.clips.get(recording)
        if clip is not None and motion.ground is None:
            slowdown = whole.duration_s / clip.duration_s
            slowdown = slowdown if slowdown > 1.05 else 1.0
            scale = whole.quality.get("body_scale", 1.0)
            points = keypoints_of(motion, clip, scale, slowdown)
            recorded = {"keypoints": points, "bones": bones(clip)}
        feet = data.meter.feet(motion).mean(axis=2)
        feet[..., 2] += motion.ground_at(feet[..., 0], robot.foot_radius)
        clips.append(
            ReplayClip(
                title,
                motion.qpos,
                motion.rate_hz,
                feet=feet,
                contacts=data.meter.contacts(motion),
                sole_m=sole_m,
                **recorded,
            )
        )
    notes = "All motions, the worst first."
    if len(chosen) < len(data.motions):
        size_mb = replay_bytes(data) / 1e6
        notes = f"{len(chosen)} of {len(data.motions)} motions; all would take {size_mb:.0f} MB."
    return replay_section(data.robot, clips, notes)[0]


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
    percent = "(% of its limit, fastest joint of each frame)"
    rows: list[tuple[str, str, float, Sequence[FloatArray], dict[str, Any]]] = [
        ("Marker error", "(cm, RMS of each frame)", 100, errors, {"least": 0.5}),
        ("Foot slide", "(cm/s, each step in stance)", 100, slides, {"threshold": 100 * SLIDING}),
        ("Feet in the floor", "(mm, deepest foot of each frame)", 1000, depths, {"least": 0.5}),
        ("Joint speed", percent, 100, shares, {"threshold": 100.0}),
    ]
    charts = [
        figures.histogram(factor * np.concatenate(values), title=title, unit=unit, **more)
        for title, unit, factor, values, more in rows
        if values
    ]
    lead = parts.Paragraph("Shares of all frames after cleaning, without mirror images.")
    content = [lead, parts.Charts(charts, small=True)]
    return parts.Section("distributions", "Distributions", content)


def speed_shares(robot: Robot, motion: ReferenceMotion) -> FloatArray:
    """Joint speeds (T, nu) relative to their limits."""
    return np.asarray(np.abs(motion.qvel[:, 6:]) / robot.velocity_limit)


# ---- the table


def _table(data: RetargetReport) -> parts.Section:
    motions = data.motions
    text = (
        "Worst first; a click on a heading sorts, its tooltip explains. Last all motions, and each "
        "kind of movement: RMS over frames, means weighted by time, maxima of maxima and "
        "percentiles, sums of counts. Mirror images have the values of their originals."
    )
    if len(motions) > MAX_ROWS:
        text += f" The worst {MAX_ROWS} of {len(motions)}."
    table = motion_table(motions, most=MAX_ROWS)
    return parts.Section("motions", "Motions", [parts.Paragraph(text), table])


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
    """The pairs of colliding bodies."""
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
    advice = parts.Paragraph("Exclude shapes that may overlap: ignore_collisions in robot.yaml.")
    return parts.Fold("Self-collision by bodies", [advice, table], is_open=True)


def _problems(data: RetargetReport) -> parts.Section | None:
    content: list[Any] = []
    if data.warnings:
        lines = [f"{name} {why}" for name, why in data.warnings.items()]
        content += [parts.Paragraph("To check", "h3"), parts.BulletList(lines)]
    if data.assumed:
        content += [parts.Paragraph("Assumptions", "h3"), parts.BulletList(data.assumed)]
    if data.failures:
        content += [parts.Paragraph("Left out", "h3"), parts.BulletList(data.failures)]
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
