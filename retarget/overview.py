"""Many motions at a glance: figures summed up, the worst, those to look at, groups by movement.

The speeds that tell a dog's gaits apart are those of Zhang et al. 2018; a person's walk falls among
its walks or trots. Shapes: T frames.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from mocap_data import rotations
from mocap_data.motion import ReferenceMotion
from retarget.plausibility import WRONG, violations_of
from retarget.quality import overall_rms, trouble
from retarget.split import recording_of

# [m/s] and slower
SPEEDS = (("still", 0.15), ("walk", 0.9), ("trot", 1.6), ("canter", math.inf))
# of any speed but still
TURN = "turn"
# [rad/s]
TURNING = 0.3
KINDS = (*(name for name, _ in SPEEDS), TURN)
WORST = 12
# of the worst: chunks of one recording often share what is wrong with it
PER_RECORDING = 2


def kinds_of(motion: ReferenceMotion) -> tuple[str, ...]:
    """The kind by mean horizontal speed, and "turn"; none for fewer than two frames."""
    if motion.num_frames < 2:
        return ()
    seconds = (motion.num_frames - 1) / motion.rate_hz
    speed = float(np.linalg.norm(np.diff(motion.qpos[:, :2], axis=0), axis=-1).sum()) / seconds
    kind = next(name for name, below in SPEEDS if speed < below)
    # of the root's x axis, seen from above
    forward = rotations.to_matrix(motion.qpos[:, 3:7])[:, :2, 0]
    heading = np.unwrap(np.arctan2(forward[:, 1], forward[:, 0]))
    turning = kind != SPEEDS[0][0] and abs(heading[-1] - heading[0]) >= TURNING * seconds
    return (kind, TURN) if turning else (kind,)


def originals_of(motions: Sequence[ReferenceMotion]) -> list[ReferenceMotion]:
    """The motions without mirror images, which have the same figures; all where only images are."""
    return [motion for motion in motions if not motion.mirror] or list(motions)


def figure_of(motion: ReferenceMotion, key: str) -> float:
    """A figure of a motion, NaN where it has none; "violations" are of positions and velocities."""
    if key == "violations":
        return violations_of(motion)
    return motion.quality.get(key, float("nan"))


def summed_up(motions: Sequence[ReferenceMotion], key: str, how: str) -> float:
    """A figure over all motions: "rms" over frames, "mean" weighted by time, "max" or "sum"."""
    if how == "rms":
        return overall_rms(motions)
    pairs = [(figure_of(motion, key), motion.duration_s) for motion in motions]
    known = np.array([pair for pair in pairs if np.isfinite(pair[0])]).reshape(-1, 2)
    if not len(known):
        return float("nan")
    if how == "mean":
        return float(np.average(known[:, 0], weights=known[:, 1]))
    return float(known[:, 0].max() if how == "max" else known[:, 0].sum())


def median_of(motions: Sequence[ReferenceMotion], key: str) -> float:
    """The median of a figure over the motions that have it; NaN where none has."""
    known = [value for motion in motions if np.isfinite(value := figure_of(motion, key))]
    return float(np.median(known)) if known else float("nan")


def worst(motions: Sequence[ReferenceMotion]) -> list[ReferenceMotion]:
    """Up to `WORST` of the motions, the worst first, at most `PER_RECORDING` of a recording."""
    found: list[ReferenceMotion] = []
    taken: Counter[str] = Counter()
    for motion in sorted(motions, key=lambda motion: -trouble(motion.quality)):
        if len(found) < WORST and taken[recording_of(motion)] < PER_RECORDING:
            found.append(motion)
            taken[recording_of(motion)] += 1
    return found


def is_marked(motion: ReferenceMotion, warnings: Mapping[str, str]) -> bool:
    """Whether a motion gets a "!": a figure of its own is bad, or its recording looks misread.

    Other warnings may be of stretches of the recording that were dropped.
    """
    said = (warnings.get(name, "") for name in (motion.name, recording_of(motion)))
    return trouble(motion.quality) >= 1.0 or any(why.startswith(WRONG) for why in said)


def by_kind(motions: Sequence[ReferenceMotion]) -> dict[str, list[ReferenceMotion]]:
    """The motions of each kind of movement, a turn also by its gait; {} where all are of one."""
    of = {id(motion): kinds_of(motion) for motion in motions}
    kinds = {kind: [motion for motion in motions if kind in of[id(motion)]] for kind in KINDS}
    found = {kind: group for kind, group in kinds.items() if group}
    return found if len(found) > 1 else {}


def groups_of(motions: Sequence[ReferenceMotion]) -> dict[str, list[ReferenceMotion]]:
    """Groups of motions to give medians of: all, and those of each kind of movement."""
    kinds = by_kind(motions).items()
    return {"median": list(motions)} | {f"  {kind} ({len(g)})": g for kind, g in kinds}
