"""Train and validation motions, split by recording: what a policy is judged on, it has seen no part
or mirror of."""

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

TRAIN, VALIDATION = "train", "validation"
_TRIALS = 64


def recording_of(motion: ReferenceMotion) -> str:
    """The key of the recording that a motion came from; its own name where it says none."""
    return motion.recording or motion.name


def split(
    motions: Sequence[ReferenceMotion],
    validation: float,
    seed: int = 0,
    origins: Mapping[str, str] = MappingProxyType({}),
    *,
    recordings: Sequence[str] = (),
    known: Sequence[Array] | None = None,
) -> tuple[ReferenceMotion, ...]:
    """The motions with their `split` set, so that about a share `validation` of the seconds is for
    validation.

    All motions of a recording, chunks and mirrors, are on one side; both sides have all speeds, as
    far as the recordings allow. 0 splits nothing (the split is ""). The order of the motions does
    not matter. origins: of recordings that are stretches of one, which may overlap, its name: they
    are on one side, too. What that
      name is does not matter, so that the folder of the files does not.
    recordings: names or patterns ("walk_*") of those that are for validation, whatever the share.
    known: as in `weights.histogram`.

    Raises:
      InputError: for a share that is not in [0, 1), and for a pattern that fits no recording.
    """
    if not 0.0 <= validation < 1.0:
        raise InputError(
            f"validation={validation}: the share for validation is at least 0 and below 1"
        )
    if not (validation or recordings) or not motions:
        return tuple(replace(motion, split="") for motion in motions)
    called = [recording_of(motion) for motion in motions]
    first: dict[str, str] = {}
    for name in sorted(called):
        first.setdefault(origins.get(name, name), name)
    whole = [first[origins.get(name, name)] for name in called]
    if recordings:
        named = matching("recording", recordings, sorted(set(called)))
        held_out = frozenset(
            group for name, group in zip(called, whole, strict=True) if name in named
        )
    else:
        profile: dict[str, Array] = {}
        for name, seconds in zip(whole, histogram(motions, known)[0], strict=True):
            profile[name] = profile.get(name, np.zeros_like(seconds)) + seconds
        held_out = choose(profile, validation, seed)
    return tuple(
        replace(motion, split=VALIDATION if name in held_out else TRAIN)
        for name, motion in zip(whole, motions, strict=True)
    )


def choose(profile: Mapping[str, Array], share: float, seed: int = 0) -> frozenset[str]:
    """The recordings for validation, of those in `profile` by name: the seconds (B,) that each
    spends in B bins of speed.

    Of some greedy choices (see `_greedy`), each in an order of its own, the one whose bins are
    nearest to `share` of all the recordings' (least chi-squared). Names and the seed alone decide
    about the orders, not the recordings' places. Of two or more recordings at least one is chosen
    and at least one is not; a single one is never chosen.
    """
    names = sorted(profile)
    seconds = {name: float(np.sum(profile[name])) for name in names}
    whole = np.sum([profile[name] for name in names], axis=0)
    best, least = frozenset[str](), np.inf
    for trial in range(_TRIALS):
        keys = {name: hashlib.sha256(f"{seed}:{trial}:{name}".encode()).digest() for name in names}
        chosen = _greedy(sorted(names, key=lambda name: keys[name]), seconds, share)
        part = (
            np.sum([profile[name] for name in sorted(chosen)], axis=0)
            if chosen
            else np.zeros_like(whole)
        )
        miss = float(
            np.sum(
                np.divide(
                    (part - share * whole) ** 2, whole, out=np.zeros_like(whole), where=whole > 0.0
                )
            )
        )
        if miss < least * (1.0 - 1e-9):  # equal up to rounding: the first
            best, least = chosen, miss
    return best


def _greedy(order: Sequence[str], seconds: Mapping[str, float], share: float) -> frozenset[str]:
    """Names whose `seconds` sum up to about `share` of all: taken in `order` while they fit.

    At last the one is added, if any, that brings the sum nearer to the share.
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
