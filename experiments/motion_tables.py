"""Tables of motions and their figures on the terminal, for `npmp retarget` and `npmp inspect`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from rich import box
from rich.table import Table

from mocap_data import MotionSet, ReferenceMotion
from retarget import Cleaned
from retarget.doubts import WRONG
from retarget.gaits import SPEEDS, TURN, kinds_of
from retarget.quality import BAD, overall_rms, trouble
from retarget.split import recording_of

KINDS = (*(name for name, _ in SPEEDS), TURN)
ROWS = 25  # with more motions the table shows the worst
WORST = 12
PER_RECORDING = 2  # of the worst: chunks of one recording often share what is wrong with it

# Of each column of the table: heading, key, factor, decimals, how motions are summed up in the last row.
COLUMNS: tuple[tuple[str, str, float, int, str], ...] = (
    ("RMS\ncm", "rms_marker_m", 100.0, 2, "rms"),
    ("max\ncm", "max_marker_m", 100.0, 1, "max"),
    ("slide\ncm/s", "foot_slide_mps", 100.0, 2, "mean"),
    ("slid\n%", "foot_slide_share", 100.0, 1, "mean"),
    ("sunk\nmm", "penetration_p99_m", 1000.0, 1, "max"),
    ("float\nmm", "float_m", 1000.0, 1, "max"),
    ("over\nlimit", "violations", 1.0, 0, "sum"),
    ("self\n%", "self_collision_share", 100.0, 1, "mean"),
    ("jerk\nrad/s3", "jerk_rms", 1.0, 0, "mean"),
    ("legs\ndeg", "leg_orientation_deg", 1.0, 1, "mean"),
)  # fmt: skip
LEGEND = (
    "Marker error, root mean square and largest; foot slide in stance and its share of steps above 5 cm/s; foot below "
    "the floor and above it in stance, 99th percentiles; joints beyond position or velocity limits; self-collision; "
    "joint jerk."
)
_BAD_FIGURES = ", ".join(
    f"{heading.split()[0]} {factor * BAD[key]:g} {heading.split()[1]}"
    for heading, key, factor, *_ in COLUMNS
    if key in BAD
)
LEGEND_OF_MARKS = (
    f"! marks a recording that looks misread, or figures that are bad: {_BAD_FIGURES} or more; anything over a "
    f"limit; {100 * BAD['stance_lost_share']:g} % of stances lost; "
    f"{1000 * BAD['body_penetration_m']:g} mm of the body in the ground."
)


def figure_of(motion: ReferenceMotion, key: str) -> float:
    """A column's figure of a motion, NaN where it has none."""
    if key == "violations":
        return motion.quality.get("limit_violations", 0.0) + motion.quality.get("velocity_violations", 0.0)
    return motion.quality.get(key, float("nan"))


def summed_up(motions: Sequence[ReferenceMotion], key: str, how: str) -> float:
    """A column's figure over all motions: marker errors by root mean square over frames, means weighted by time."""
    if how == "rms":
        return overall_rms(motions)
    values = np.array([figure_of(motion, key) for motion in motions])
    known = np.isfinite(values)
    if not known.any():
        return float("nan")
    if how == "mean":
        return float(np.average(values[known], weights=np.array([motion.duration_s for motion in motions])[known]))
    return float(values[known].max() if how == "max" else values[known].sum())


def table_of(motion_set: MotionSet, doubtful: Mapping[str, str] | None = None) -> Table:
    """Motions and their figures, the worst of them where there are many; then medians, by kind of movement too, and all
    together.

    Mirrors have the figures of what they mirror and are left out. doubtful: what speaks against a motion, by name or
    recording (`is_marked`).
    """
    originals = [motion for motion in motion_set.motions if not motion.mirror]
    motions = originals or list(motion_set.motions)
    shown = motions
    title = f"motions of {motion_set.robot}"
    if len(motions) > ROWS:
        shown = worst(motions)
        title += f": the worst {len(shown)} of {len(motions)}, at most {PER_RECORDING} of a recording"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("clip", overflow="fold", ratio=1, min_width=14)
    columns = [column for column in COLUMNS if any(np.isfinite(figure_of(motion, column[1])) for motion in motions)]
    for heading in ("s", *(heading for heading, *_ in columns)):
        table.add_column(heading, justify="right", no_wrap=True)

    def text(value: float, factor: float, decimals: int) -> str:
        return f"{factor * value:.{decimals}f}" if np.isfinite(value) else "-"

    for motion in shown:
        mark = " !" if is_marked(motion, doubtful or {}) else ""
        figures = (text(figure_of(motion, key), factor, decimals) for _, key, factor, decimals, _ in columns)
        table.add_row(motion.name + mark, f"{motion.duration_s:.1f}", *figures)
    if len(motions) > 1:
        table.add_section()
        for name, group in groups_of(motions).items():
            medians = (
                text(float(np.nanmedian([figure_of(motion, key) for motion in group])), factor, decimals)
                for _, key, factor, decimals, _ in columns
            )
            table.add_row(name, f"{np.median([motion.duration_s for motion in group]):.1f}", *medians)
        sums = (text(summed_up(motions, key, how), factor, decimals) for _, key, factor, decimals, how in columns)
        table.add_row("all", f"{sum(motion.duration_s for motion in motions):.1f}", *sums, style="bold")
    return table


def worst(motions: Sequence[ReferenceMotion]) -> list[ReferenceMotion]:
    """Up to `WORST` of the motions, the worst first, and of no recording more than `PER_RECORDING`."""
    found: list[ReferenceMotion] = []
    taken: Counter[str] = Counter()
    for motion in sorted(motions, key=lambda motion: -trouble(motion.quality)):
        if len(found) < WORST and taken[recording_of(motion)] < PER_RECORDING:
            found.append(motion)
            taken[recording_of(motion)] += 1
    return found


def is_marked(motion: ReferenceMotion, doubtful: Mapping[str, str]) -> bool:
    """Whether a motion gets a "!": a figure of its own is bad, or its recording looks misread.

    What else a recording is doubted for may be in the stretches of it that were dropped.
    """
    said = (doubtful.get(name, "") for name in (motion.name, recording_of(motion)))
    return trouble(motion.quality) >= 1.0 or any(why.startswith(WRONG) for why in said)


def groups_of(motions: Sequence[ReferenceMotion]) -> dict[str, list[ReferenceMotion]]:
    """Groups of motions to give medians of: all, and those of each kind of movement where there are several kinds."""
    groups = {"median": list(motions)}
    kinds = {kind: [motion for motion in motions if kind in kinds_of(motion)] for kind in KINDS}
    found = {f"  {kind} ({len(group)})": group for kind, group in kinds.items() if group}
    return groups | found if len(found) > 1 else groups


def dropped_table(cleaned: Cleaned) -> Table:
    """Seconds by reason."""
    table = Table(title="dropped", title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("reason")
    for heading in ("s", "%", "stretches", "recordings"):
        table.add_column(heading, justify="right")
    for reason, seconds in cleaned.dropped_s.items():
        where = [entry.recording for entry in cleaned.dropped if entry.reason == reason]
        share = 100.0 * seconds / max(cleaned.seconds_in, 1e-9)
        table.add_row(reason, f"{seconds:.1f}", f"{share:.1f}", str(len(where)), str(len(set(where))))
    return table
