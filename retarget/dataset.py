"""From recordings to a dataset: motions of a robot, cleaned, with their provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mocap_data.clip_checks import size_warning
from mocap_data.errors import InputError, counted
from mocap_data.files import json_text
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet
from npmp import __version__
from npmp.robots import Robot
from retarget.cleaning import OPTION_OF, Cleaned, clean
from retarget.generated_ground import over_generated, require_lengths
from retarget.options import Options, from_mapping
from retarget.pipeline import OPTION, Progress, motion_set_of, retarget_subjects
from retarget.quality import QualityMeter
from retarget.recording_checks import motion_warnings, recording_warnings, retargeting_warning
from retarget.resampling import resample
from retarget.sources import Failure, Recordings, failure_line
from retarget.split import recording_of
from retarget.subjects import Refused, subjects_of


def of_plausible_size(recordings: Recordings) -> Recordings:
    """Move clips of an implausible size, whose units were misread, to the failures. Otherwise
    scale_body=auto would scale a dog of 90 m to the robot's size without a warning."""
    # keypoints all at one point have no size
    extended = [clip for clip in recordings.clips if np.ptp(clip.positions, axis=1).any()]
    warnings = {clip.name: warning for clip in extended if (warning := size_warning(clip))}
    failures = [
        (recordings.files[name], f"{name} {warning}; skipped, as scale= is not set")
        for name, warning in warnings.items()
    ]
    clips = [clip for clip in recordings.clips if clip.name not in warnings]
    return replace(recordings, clips=clips, failures=[*recordings.failures, *failures])


@dataclass(frozen=True)
class Retargeted:
    """The recordings as motions of a robot, not cleaned."""

    # motions in the recordings' order; None: no recording fits
    motions: MotionSet | None
    failures: list[Failure]
    # warnings of the recording, by clip and imported motion
    warnings: Mapping[str, list[str]]

    def motion_warnings(self, *, cleaned: bool) -> dict[str, str]:
        """The warnings of motions that have one, by name; `cleaned` as of `retargeting_warning`."""
        motions = self.motions.motions if self.motions is not None else ()
        lines = {
            motion.name: retargeting_warning(motion, self.warnings[motion.name], cleaned=cleaned)
            for motion in motions
        }
        return {name: line for name, line in lines.items() if line}


def retarget_recordings(
    recordings: Recordings, robot: Robot, options: Mapping[str, Any], progress: Progress
) -> Retargeted:
    """All recordings as motions of the robot. options: of `retarget_many`."""
    settings = from_mapping(Options, options, OPTION)
    refused: list[Refused] = []
    warnings: dict[str, list[str]] = {}
    sets: list[MotionSet] = []
    if recordings.clips:
        markers = tuple(robot.markers)
        subjects = subjects_of(recordings.clips, markers, settings.skeleton, refused)
        for subject in subjects:
            for clip in subject.clips:
                warnings[clip.name] = recording_warnings(clip, subject.skeleton)
        sets.append(retarget_subjects(subjects, robot, settings, progress, refused))
    if recordings.motions:
        meter = QualityMeter(robot)
        rate = float(settings.rate_hz or robot.control_rate_hz)
        imported: list[ReferenceMotion] = []
        for motion in recordings.motions:
            assumed = recordings.origins[motion.name].assumed
            warnings[motion.name] = motion_warnings(motion, meter, assumed)
            try:
                imported.append(meter.measured(resample(motion, robot, rate)))
            except InputError as error:
                refused.append((motion.name, error))
        sets.append(motion_set_of(robot, imported, {"method": "as it came"}))
    failures = [(recordings.files[name], str(error)) for name, error in refused]
    motions = merged([entry for entry in sets if entry.motions], list(recordings.origins))
    return Retargeted(motions, [*recordings.failures, *failures], warnings)


def merged(sets: Sequence[MotionSet], order: Sequence[str]) -> MotionSet | None:
    """The motions of several sets of one robot, in the order of their names; None without sets.

    The provenance has all differing values.
    """
    if not sets:
        return None
    motions = {motion.name: motion for entry in sets for motion in entry.motions}
    values: dict[str, dict[str, None]] = {}
    for entry in sets:
        for key, value in entry.provenance.items():
            values.setdefault(key, {})[value] = None
    provenance = {
        key: next(iter(distinct)) if len(distinct) == 1 else json.dumps(list(distinct))
        for key, distinct in values.items()
    }
    ordered = tuple(motions[name] for name in order if name in motions)
    return replace(sets[0], motions=ordered, provenance=provenance)


def clean_recordings(
    motions: MotionSet,
    robot: Robot,
    recordings: Recordings,
    options: Mapping[str, Any] | None,
    grounds: Mapping[str, Sequence[float]] | None = None,
    rounds: int = 1,
) -> Cleaned:
    """The training set.

    Args:
      options: of `clean`; None: the motions unchanged.
      grounds: kinds of ground and their least and largest length [m]: the walks and trots that
        cleaning keeps are also laid over each, and all is cleaned again. None, or without options:
        flat ground only.
      rounds: how often each motion is laid over each kind, over different ground.

    Raises:
      InputError: as `clean`, `require_lengths` and `over_generated`.
    """
    if options is None:
        seconds = sum(motion.duration_s for motion in motions.motions)
        return Cleaned(motions, (), seconds, seconds)
    origins = {
        name: f"{file}: {recordings.entries[name]}" for name, file in recordings.files.items()
    }
    if not grounds:
        return clean(motions, robot, origins=origins, **options)
    lengths_m = {kind: require_lengths(kind, lengths) for kind, lengths in grounds.items()}
    only_cut = {"mirrors": "none", "validation": 0.0, "validation_recordings": (), "flatten": False}
    flat = clean(motions, robot, origins=origins, **{**options, **only_cut})
    laid = [
        motion
        for kind, lengths in lengths_m.items()
        for motion in over_generated(flat.motions, robot, kind, lengths, options["seed"], rounds)
    ]
    both = replace(flat.motions, motions=(*flat.motions.motions, *laid))
    cleaned = clean(both, robot, origins=origins, **options)
    return replace(
        cleaned,
        dropped=(*flat.dropped, *cleaned.dropped),
        seconds_in=flat.seconds_in + sum(motion.duration_s for motion in laid),
        collisions=flat.collisions,
    )


def nothing_kept(motions: MotionSet, cleaned: Cleaned) -> InputError:
    """The error for a dataset without motions after cleaning, with the options that decide."""
    dropped = ", ".join(
        f"{reason} {s:.1f} s ({OPTION_OF[reason]}=)" for reason, s in cleaned.dropped_s.items()
    )
    pairs = f"; {cleaned.worst_collisions}" if cleaned.collisions else ""
    count = counted(len(motions.motions), "recording")
    return InputError(f"cleaning keeps nothing of {count}: {dropped}{pairs}; clean=false keeps all")


def dropped_recordings(motions: MotionSet, cleaned: Cleaned) -> dict[str, str]:
    """The recordings without a chunk after cleaning, with the seconds that each reason dropped."""
    kept = {recording_of(motion) for motion in cleaned.motions.motions}
    reasons = {}
    for name in dict.fromkeys(recording_of(motion) for motion in motions.motions):
        if name not in kept:
            dropped = tuple(entry for entry in cleaned.dropped if entry.recording == name)
            seconds = replace(cleaned, dropped=dropped).dropped_s
            reasons[name] = ", ".join(f"{reason} {s:.1f} s" for reason, s in seconds.items())
    return reasons


def with_provenance(
    cleaned: Cleaned,
    recordings: Recordings,
    failures: Sequence[Failure],
    settings: Mapping[str, Any],
) -> Cleaned:
    """The set with its provenance, as texts. settings: source and options of retargeting."""
    motions = cleaned.motions
    origins = recordings.origins
    kept = {motion.recording or motion.name for motion in motions.motions}
    seconds = {"read": round(cleaned.seconds_in, 3), "kept": round(cleaned.seconds_kept, 3)}
    provenance = {
        **motions.provenance,
        "npmp": __version__,
        **{key: str(value) for key, value in settings.items()},
        "recordings": json_text([asdict(origins[name]) for name in origins if name in kept]),
        "rate_hz": str(motions.motions[0].rate_hz),
        "seconds": json_text(seconds),
        "dropped": json_text([asdict(entry) for entry in cleaned.dropped]),
        "failures": json_text([failure_line(failure) for failure in failures]),
    }
    return replace(cleaned, motions=replace(motions, provenance=provenance))
