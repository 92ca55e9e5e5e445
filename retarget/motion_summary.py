"""Summary of many motions: aggregated figures, the worst motions, groups by kind of movement.

The speed limits of a dog's gaits are those of Zhang et al. 2018. Shapes: T frames.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mocap_data import rotations
from mocap_data.motion import ReferenceMotion, mean_speed
from mocap_data.store import MotionSet
from retarget.quality import BAD, overall_rms, trouble
from retarget.recording_checks import WRONG, violations_of
from retarget.split import recording_of

# [m/s] and slower
SPEEDS = (("still", 0.15), ("walk", 0.9), ("trot", 1.6), ("canter", math.inf))
# at any speed above standing
TURN = "turn"
# [rad/s]
TURNING = 0.3
KINDS = (*(name for name, _ in SPEEDS), TURN)
WORST = 12
# largest number of chunks of one recording, as they often share a problem
PER_RECORDING = 2
# with more motions the table has the worst
ROWS = 25


def kinds_of(motion: ReferenceMotion) -> tuple[str, ...]:
    """The kind by mean horizontal speed, and "turn"; none for fewer than two frames."""
    if motion.num_frames < 2:
        return ()
    kind = next(name for name, below in SPEEDS if mean_speed(motion) < below)
    heading = np.unwrap(rotations.yaw(motion.qpos[:, 3:7]))
    rate = abs(heading[-1] - heading[0]) * motion.rate_hz / (motion.num_frames - 1)
    return (kind, TURN) if kind != SPEEDS[0][0] and rate >= TURNING else (kind,)


def originals_of(motions: Sequence[ReferenceMotion]) -> list[ReferenceMotion]:
    """The motions without mirror images, which have the same figures; all where only images are."""
    return [motion for motion in motions if not motion.mirror] or list(motions)


def figure_of(motion: ReferenceMotion, key: str) -> float:
    """A figure of a motion, NaN where it has none; "violations" are of positions and velocities."""
    if key == "violations":
        return violations_of(motion)
    return motion.quality.get(key, float("nan"))


def aggregate(motions: Sequence[ReferenceMotion], key: str, how: str) -> float:
    """A figure over all motions: "rms" over frames, "mean" weighted by time, "max" or "sum"."""
    if how == "rms":
        return overall_rms(motions)
    pairs = [(figure_of(motion, key), motion.duration_s) for motion in motions]
    finite = np.array([pair for pair in pairs if np.isfinite(pair[0])]).reshape(-1, 2)
    if not len(finite):
        return float("nan")
    if how == "mean":
        return float(np.average(finite[:, 0], weights=finite[:, 1]))
    return float(finite[:, 0].max() if how == "max" else finite[:, 0].sum())


def median_of(motions: Sequence[ReferenceMotion], key: str) -> float:
    """The median of a figure over the motions that have it; NaN where none has."""
    values = [value for motion in motions if np.isfinite(value := figure_of(motion, key))]
    return float(np.median(values)) if values else float("nan")


def worst(motions: Sequence[ReferenceMotion]) -> list[ReferenceMotion]:
    """Up to `WORST` motions, the worst first, at most `PER_RECORDING` per recording."""
    selected: list[ReferenceMotion] = []
    taken: Counter[str] = Counter()
    for motion in sorted(motions, key=lambda motion: -trouble(motion.quality)):
        if len(selected) < WORST and taken[recording_of(motion)] < PER_RECORDING:
            selected.append(motion)
            taken[recording_of(motion)] += 1
    return selected


def is_marked(motion: ReferenceMotion, warnings: Mapping[str, str]) -> bool:
    """Whether a motion is marked "!": a figure is bad, or its recording looks misread. Other
    warnings may concern dropped stretches.
    """
    lines = (warnings.get(name, "") for name in (motion.name, recording_of(motion)))
    return trouble(motion.quality) >= 1.0 or any(line.startswith(WRONG) for line in lines)


def by_kind(motions: Sequence[ReferenceMotion]) -> dict[str, list[ReferenceMotion]]:
    """The motions of each kind of movement, a turn also by its gait; {} where all are of one."""
    kinds_by_id = {id(motion): kinds_of(motion) for motion in motions}
    kinds = {
        kind: [motion for motion in motions if kind in kinds_by_id[id(motion)]] for kind in KINDS
    }
    groups = {kind: group for kind, group in kinds.items() if group}
    return groups if len(groups) > 1 else {}


def groups_of(motions: Sequence[ReferenceMotion]) -> dict[str, list[ReferenceMotion]]:
    """Groups of motions with their own medians: all, and each kind of movement."""
    kinds = by_kind(motions).items()
    return {"median": list(motions)} | {f"  {kind} ({len(g)})": g for kind, g in kinds}


# --- the table


class Column(NamedTuple):
    """A column of the table."""

    heading: str
    key: str
    factor: float
    decimals: int
    # aggregation of motions in the last row
    how: str

    def text(self, value: float) -> str:
        """A value in the column's unit."""
        return f"{self.factor * value:.{self.decimals}f}" if np.isfinite(value) else "-"


COLUMNS = (
    Column("RMS\ncm", "rms_marker_m", 100.0, 2, "rms"),
    Column("max\ncm", "max_marker_m", 100.0, 1, "max"),
    Column("near\ncm/s", "near_floor_mps", 100.0, 0, "mean"),
    Column("slide\ncm/s", "foot_slide_mps", 100.0, 2, "mean"),
    Column("slid\n%", "foot_slide_share", 100.0, 1, "mean"),
    Column("sunk\nmm", "penetration_p99_m", 1000.0, 1, "max"),
    Column("float\nmm", "float_m", 1000.0, 1, "max"),
    Column("over\nlimit", "violations", 1.0, 0, "sum"),
    Column("self\n%", "self_collision_share", 100.0, 1, "mean"),
    Column("jerk\nrad/s3", "jerk_rms", 1.0, 0, "mean"),
    Column("legs\ndeg", "leg_orientation_deg", 1.0, 1, "mean"),
)
LEGEND = (
    "Marker error, root mean square and largest; speed of feet near the floor; foot slide in "
    "stance and its share of steps above 5 cm/s (- where no foot stands); foot below the floor "
    "and above it in stance, 99th percentiles; joints beyond position or velocity limits; "
    "self-collision; joint jerk."
)
_BAD_FIGURES = ", ".join(
    f"{column.heading.split()[0]} {column.factor * BAD[column.key]:g} {column.heading.split()[1]}"
    for column in COLUMNS
    if column.key in BAD
)
LEGEND_OF_MARKS = (
    f"! marks a recording that looks misread, or figures that are bad: {_BAD_FIGURES} or more; "
    f"anything over a limit; near {100 * BAD['foot_slide_mps']:g} cm/s where no foot stands; "
    f"{100 * BAD['stance_lost_share']:g} % of stances lost; "
    f"{1000 * BAD['body_penetration_m']:g} mm of the body in the ground."
)


class SummaryTable(NamedTuple):
    """A table of motions, with cells as text; the first cell of a row is a name."""

    title: str
    headings: list[str]
    rows: list[list[str]]
    # medians of all and by kind of movement, then aggregates; none for a single motion
    medians: list[list[str]]


def summary_table(motion_set: MotionSet, warnings: Mapping[str, str]) -> SummaryTable:
    """Motions and their figures, the worst of more than ROWS; then medians, by kind of movement,
    and aggregates.

    Mirrors have the figures of their originals and are left out. warnings: by name or recording.
    """
    motions = originals_of(motion_set.motions)
    selected = motions
    title = f"motions of {motion_set.robot}"
    if len(motions) > ROWS:
        selected = worst(motions)
        limit = f"at most {PER_RECORDING} of a recording"
        title += f": the worst {len(selected)} of {len(motions)}, {limit}"
    columns = [
        column
        for column in COLUMNS
        # the slide column is empty if no foot stands
        if column.key == "foot_slide_mps"
        or any(np.isfinite(figure_of(motion, column.key)) for motion in motions)
    ]

    def row(name: str, seconds: float, figures: Sequence[float]) -> list[str]:
        cells = (column.text(value) for column, value in zip(columns, figures, strict=True))
        return [name, f"{seconds:.1f}", *cells]

    rows = []
    for motion in selected:
        mark = " !" if is_marked(motion, warnings) else ""
        figures = [figure_of(motion, column.key) for column in columns]
        rows.append(row(motion.name + mark, motion.duration_s, figures))
    medians = []
    for name, group in groups_of(motions).items():
        seconds = float(np.median([motion.duration_s for motion in group]))
        medians.append(row(name, seconds, [median_of(group, column.key) for column in columns]))
    sums = [aggregate(motions, column.key, column.how) for column in columns]
    medians.append(row("all", sum(motion.duration_s for motion in motions), sums))
    headings = ["s", *(column.heading for column in columns)]
    return SummaryTable(title, headings, rows, medians if len(motions) > 1 else [])
