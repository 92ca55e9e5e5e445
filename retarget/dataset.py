"""From recordings to a dataset: whole motions of a robot, cleaned, with how they were made; what
cannot be retargeted is listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from mocap_data.errors import InputError, counted
from mocap_data.files import json_text
from mocap_data.sanity import size_warning
from mocap_data.store import MotionSet
from npmp import __version__
from npmp.robots import Robot
from retarget import cleaning
from retarget.cleaning import Cleaned, clean
from retarget.collection import Progress, Refused, merged, retarget_all
from retarget.pipeline import set_of
from retarget.quality import QualityMeter
from retarget.resampling import resample
from retarget.sources import Failure, Recordings, described

# Of each reason to drop something the option that decides on it.
OPTION_OF = {
    cleaning.POSITION: "position_limits",
    cleaning.VELOCITY: "velocity_limits",
    cleaning.FEET_FAR: "feet_far_m",
    cleaning.STANDING: "standing_s",
    cleaning.ERROR: "max_error_m",
    cleaning.SELF_COLLISION: "self_collision_m",
    cleaning.LYING: "body_penetration_m",
    cleaning.SHORT: "min_chunk_s",
}


def of_plausible_size(gathered: Recordings) -> Recordings:
    """The recordings without clips whose size shows that their units were misread; those are
    failures. scale_body=auto would scale a dog of 90 m to the robot's size unseen."""
    # keypoints all at one place have no size
    apart = [clip for clip in gathered.clips if np.ptp(clip.positions, axis=1).any()]
    wrong = {clip.name: why for clip in apart if (why := size_warning(clip))}
    failures = [
        (gathered.files[name], f"{name} {why}; its units look wrong, and scale= is not given")
        for name, why in wrong.items()
    ]
    clips = [clip for clip in gathered.clips if clip.name not in wrong]
    return replace(gathered, clips=clips, failures=[*gathered.failures, *failures])


def motions_of(
    gathered: Recordings, robot: Robot, options: Mapping[str, Any], progress: Progress
) -> tuple[MotionSet | None, list[Failure]]:
    """All recordings as whole motions of the robot, in order (None where nothing fits), and what
    could not be read or retargeted.

    options: of `retarget_many`.
    """
    sets: list[MotionSet] = []
    refused: list[Refused] = []
    if gathered.clips:
        sets, refused = retarget_all(gathered.clips, robot, options, progress)
    if gathered.motions:
        meter = QualityMeter(robot)
        rate = float(options.get("rate_hz") or robot.control_rate_hz)
        measured = []
        for motion in gathered.motions:
            try:
                measured.append(meter.measured(resample(motion, robot, rate)))
            except InputError as error:
                refused.append((motion.name, error))
        if measured:
            sets.append(set_of(robot, measured, {"method": "as it came"}))
    failures = [(gathered.files[name], str(error)) for name, error in refused]
    whole = merged(sets, gathered.origins) if sets else None
    return whole, [*gathered.failures, *failures]


def cleaned_of(
    whole: MotionSet, robot: Robot, gathered: Recordings, options: Mapping[str, Any] | None
) -> Cleaned:
    """The training set. options: of `clean`; None: the motions as they are."""
    if options is None:
        seconds = sum(motion.duration_s for motion in whole.motions)
        return Cleaned(whole, (), seconds, seconds)
    origins = {name: f"{file}: {gathered.entries[name]}" for name, file in gathered.files.items()}
    return clean(whole, robot, origins=origins, **options)


def nothing_kept(whole: MotionSet, cleaned: Cleaned) -> InputError:
    """The error for a dataset of which cleaning leaves nothing, with the options that decide."""
    gone = ", ".join(
        f"{reason} {s:.1f} s ({OPTION_OF[reason]}=)" for reason, s in cleaned.dropped_s.items()
    )
    pairs = f"; {cleaned.worst_collisions}" if cleaned.collisions else ""
    return InputError(
        f"cleaning leaves nothing of {counted(len(whole.motions), 'recording')}: {gone}{pairs}; "
        "clean=false keeps all"
    )


def with_provenance(
    cleaned: Cleaned, gathered: Recordings, failures: Sequence[Failure], said: Mapping[str, Any]
) -> Cleaned:
    """The set with how it was made, as texts. said: source and options of retargeting."""
    motions = cleaned.motions
    origins = gathered.origins
    kept = {motion.recording or motion.name for motion in motions.motions}
    seconds = {"read": round(cleaned.seconds_in, 3), "kept": round(cleaned.seconds_kept, 3)}
    provenance = {
        **motions.provenance,
        "npmp": __version__,
        **{key: str(value) for key, value in said.items()},
        "recordings": json_text([asdict(origins[name]) for name in origins if name in kept]),
        "rate_hz": str(motions.motions[0].rate_hz),
        "seconds": json_text(seconds),
        "dropped": json_text([asdict(entry) for entry in cleaned.dropped]),
        "failures": json_text([described(failure) for failure in failures]),
    }
    return replace(cleaned, motions=replace(motions, provenance=provenance))
