"""Train and validation motions, split by recording: parts and mirrors of a recording are on one
side."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from mocap_data.arrays import Array
from mocap_data.errors import InputError, matching
from mocap_data.motion import ReferenceMotion
from retarget.weights import histogram

TRAIN = "train"
VALIDATION = "validation"
_TRIALS = 64


def recording_of(motion: ReferenceMotion) -> str:
    """The recording of a motion; the motion's name for none."""
    return motion.recording or motion.name


def require_share(validation: float) -> None:
    """Raise InputError for a share outside of [0, 1)."""
    if not 0.0 <= validation < 1.0:
        raise InputError(f"validation={validation}: must be at least 0 and below 1")


def split(
    motions: Sequence[ReferenceMotion],
    validation: float,
    seed: int = 0,
    origins: Mapping[str, str] = MappingProxyType({}),
    *,
    recordings: Sequence[str] = (),
    speeds: Sequence[Array] | None = None,
) -> tuple[ReferenceMotion, ...]:
    """The motions with their `split` set: about a share `validation` of the seconds is held out.

    All motions of a recording are on one side; both sides have all speeds, as far as the recordings
    allow. 0 splits nothing (the split is ""). The order of the motions does not matter.
    origins: the original recording of recordings that are its stretches; these are on one side.
    recordings: names or patterns ("walk_*") of those for validation, in place of the share.
    speeds: as in `weights.histogram`.

    Raises:
      InputError: a share outside of [0, 1), or a pattern that fits no recording.
    """
    require_share(validation)
    if not (validation or recordings) or not motions:
        return tuple(replace(motion, split="") for motion in motions)
    names = [recording_of(motion) for motion in motions]
    first: dict[str, str] = {}
    for name in sorted(names):
        first.setdefault(origins.get(name, name), name)
    groups = [first[origins.get(name, name)] for name in names]
    if recordings:
        selected = matching("recording (validation_recordings=)", recordings, sorted(set(names)))
        held_out = frozenset(group for name, group in zip(names, groups) if name in selected)
    else:
        profile: dict[str, Array] = {}
        for name, seconds in zip(groups, histogram(motions, speeds)[0], strict=True):
            profile[name] = profile.get(name, np.zeros_like(seconds)) + seconds
        held_out = choose(profile, validation, seed)
    sides = [VALIDATION if name in held_out else TRAIN for name in groups]
    return tuple(replace(motion, split=side) for motion, side in zip(motions, sides))


def choose(profile: Mapping[str, Array], share: float, seed: int = 0) -> frozenset[str]:
    """The recordings for validation, of the seconds (B,) that each spends in B bins of speed.

    The best of several greedy choices in random orders: its bins are nearest to `share` of all
    recordings' bins (least chi-squared). It depends on names and seed only. At least one of two or
    more recordings is chosen, and at least one is not; a single one is never chosen.
    """
    names = sorted(profile)
    seconds = {name: float(np.sum(profile[name])) for name in names}
    total = np.sum([profile[name] for name in names], axis=0)
    none = np.zeros_like(total)
    best = frozenset[str]()
    least = np.inf
    for trial in range(_TRIALS):
        keys = {name: hashlib.sha256(f"{seed}:{trial}:{name}".encode()).digest() for name in names}
        chosen = _greedy(sorted(names, key=lambda name: keys[name]), seconds, share)
        part = np.sum([profile[name] for name in sorted(chosen)], axis=0) if chosen else none
        squares = (part - share * total) ** 2
        miss = float(np.sum(np.divide(squares, total, out=none.copy(), where=total > 0.0)))
        # equal up to rounding: the first
        if miss < least * (1.0 - 1e-9):
            best = chosen
            least = miss
    return best


def _greedy(order: Sequence[str], seconds: Mapping[str, float], share: float) -> frozenset[str]:
    """Names whose `seconds` sum up to about `share` of all.

    Names are added in `order` while they fit; then one more if it reduces the difference.
    """
    goal = share * sum(seconds[name] for name in sorted(order))
    chosen: list[str] = []
    total = 0.0
    for name in order:
        if total + seconds[name] <= goal and len(chosen) < len(order) - 1:
            chosen.append(name)
            total += seconds[name]
    rest = [name for name in order if name not in set(chosen)]
    if len(rest) > 1:
        best = min(rest, key=lambda name: abs(total + seconds[name] - goal))
        if not chosen or abs(total + seconds[best] - goal) < abs(total - goal):
            chosen.append(best)
    return frozenset(chosen)
