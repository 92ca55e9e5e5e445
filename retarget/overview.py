"""Many motions at a glance: their figures summed up, the worst of them, those to look at, and
groups by movement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from mocap_data.motion import ReferenceMotion
from retarget.doubts import WRONG
from retarget.gaits import SPEEDS, TURN, kinds_of
from retarget.quality import overall_rms, trouble
from retarget.split import recording_of

KINDS = (*(name for name, _ in SPEEDS), TURN)
WORST = 12
PER_RECORDING = 2  # of the worst: chunks of one recording often share what is wrong with it


def originals_of(motions: Sequence[ReferenceMotion]) -> list[ReferenceMotion]:
    """The motions without mirror images, which have the figures of what they mirror; all where
    there is nothing else."""
    return [motion for motion in motions if not motion.mirror] or list(motions)


def figure_of(motion: ReferenceMotion, key: str) -> float:
    """A column's figure of a motion, NaN where it has none."""
    if key == "violations":
        return motion.quality.get("limit_violations", 0.0) + motion.quality.get(
            "velocity_violations", 0.0
        )
    return motion.quality.get(key, float("nan"))


def summed_up(motions: Sequence[ReferenceMotion], key: str, how: str) -> float:
    """A column's figure over all motions: marker errors by root mean square over frames, means
    weighted by time."""
    if how == "rms":
        return overall_rms(motions)
    values = np.array([figure_of(motion, key) for motion in motions])
    known = np.isfinite(values)
    if not known.any():
        return float("nan")
    if how == "mean":
        return float(
            np.average(
                values[known], weights=np.array([motion.duration_s for motion in motions])[known]
            )
        )
    return float(values[known].max() if how == "max" else values[known].sum())


def median_of(motions: Sequence[ReferenceMotion], key: str) -> float:
    """The median of a figure over the motions that have it; NaN where none has."""
    known = [value for motion in motions if np.isfinite(value := figure_of(motion, key))]
    return float(np.median(known)) if known else float("nan")


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


def by_kind(motions: Sequence[ReferenceMotion]) -> dict[str, list[ReferenceMotion]]:
    """The motions of each kind of movement, a turn besides its gait; {} where all are of one kind."""
    kinds = {kind: [motion for motion in motions if kind in kinds_of(motion)] for kind in KINDS}
    found = {kind: group for kind, group in kinds.items() if group}
    return found if len(found) > 1 else {}
