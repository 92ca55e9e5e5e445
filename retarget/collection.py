"""Many recordings, some of which cannot be retargeted: those are named with the reason."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mocap_data.clip import Clip
from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp.robots import Robot
from retarget.cleaning import Cleaned, Dropped
from retarget.pipeline import retarget, retarget_many
from retarget.plausibility import misread
from retarget.split import recording_of

# a clip's name, and why it cannot be retargeted
Refused = tuple[str, InputError]
Progress = Callable[[int, int, str], None]


def retarget_all(
    clips: Sequence[Clip],
    robot: Robot,
    options: Mapping[str, Any],
    progress: Progress | None = None,
) -> tuple[list[MotionSet], list[Refused]]:
    """All clips that fit the robot as motions, and those that do not.

    Clips that look misread (units, axis) go by themselves, so that they do not spoil the marker
    offsets that the others share. options, progress: as of `retarget_many`.
    """
    about = tuple(robot.markers), options.get("skeleton")
    apart = {clip.name for clip in clips if misread(clip, *about)}
    sets: list[MotionSet] = []
    refused: list[Refused] = []
    for is_apart in (False, True):
        group = [clip for clip in clips if (clip.name in apart) == is_apart]
        if not group:
            continue
        try:
            sets.append(retarget_many(group, robot, progress=progress, **options))
        except InputError as error:
            # which clip was it? only now worth the time to look at each alone
            bad = _refused(group, robot, options) or [(clip.name, error) for clip in group]
            refused += bad
            good = [clip for clip in group if clip.name not in dict(bad)]
            if good:
                sets.append(retarget_many(good, robot, progress=progress, **options))
    return sets, refused


def _refused(clips: Sequence[Clip], robot: Robot, options: Mapping[str, Any]) -> list[Refused]:
    refused = []
    for clip in clips:
        try:
            retarget(clip, robot, **options)
        except InputError as error:
            refused.append((clip.name, error))
    return refused


def merged(sets: Sequence[MotionSet], order: Sequence[str] | Mapping[str, Any]) -> MotionSet:
    """The motions of several sets of one robot, in the order of their names.

    Where their provenances differ, all values are kept.
    """
    if len(sets) == 1:
        return sets[0]
    place = {name: i for i, name in enumerate(order)}
    motions = [motion for entry in sets for motion in entry.motions]
    motions.sort(key=lambda motion: place[motion.name])
    values: dict[str, dict[str, None]] = {}
    for entry in sets:
        for key, value in entry.provenance.items():
            values.setdefault(key, {})[value] = None
    provenance = {
        key: next(iter(distinct)) if len(distinct) == 1 else json.dumps(list(distinct))
        for key, distinct in values.items()
    }
    return replace(sets[0], motions=tuple(motions), provenance=provenance)


def emptied(whole: MotionSet, cleaned: Cleaned) -> dict[str, str]:
    """The recordings of which cleaning left nothing, with the seconds that each reason took."""
    kept = {recording_of(motion) for motion in cleaned.motions.motions}
    gone: defaultdict[str, list[Dropped]] = defaultdict(list)
    for entry in cleaned.dropped:
        gone[entry.recording].append(entry)
    reasons = {}
    for name in dict.fromkeys(recording_of(motion) for motion in whole.motions):
        if name not in kept:
            seconds = replace(cleaned, dropped=tuple(gone[name])).dropped_s
            reasons[name] = ", ".join(f"{reason} {s:.1f} s" for reason, s in seconds.items())
    return reasons
