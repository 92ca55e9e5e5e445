"""The recordings that source= names: reading them, and saying what could not be read.

A recording is a file of keypoints (any reader of `mocap_data`) or a robot's motion made by others; a file may hold
several. What fails is listed, the rest goes on.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from experiments.failures import one_line
from mocap_data import Clip, ReferenceMotion, demo_clips
from mocap_data.errors import InputError
from mocap_data.readers import options_of, read_all
from mocap_data.readers.common import DOG_NAMES, MissingOptions
from npmp.robots import Robot
from retarget.imported import import_motion, is_robot_motion
from retarget.sources import Recording, recordings

SYNTHETIC = "synthetic"  # the source that needs no recording
Failure = tuple[str, str]  # what failed, why

# Keys of a command and the readers' options that they give.
KEYS = {
    "scale": "scale",
    "up": "up",
    "licence": "licence",
    "source_rate_hz": "rate_hz",
    "asf": "asf",
    "character": "character",
}


def described(failure: Failure) -> str:
    """A failure on one line that names the recording."""
    label, reason = failure
    return reason if label in reason else f"{label}: {reason}"


def report_failures(failures: Sequence[Failure]) -> None:
    """Recordings left out, one line each, on stderr."""
    for failure in failures:
        print(f"npmp: left out: {described(failure)}", file=sys.stderr)


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a clip comes from, with what was used of it and how it was read; kept in the dataset's provenance."""

    clip: str
    file: str
    frames: tuple[int, int]  # [start, stop) of the recording
    rate_hz: float  # of the recording
    scale: float | str | None  # metres per unit, or the unit's name; None: what the file says
    up: str


class Gathered(NamedTuple):
    """What source= holds: clips of keypoints, motions of the robot made by others, where each comes from (by its name),
    what its file calls it, and the recordings that could not be read."""

    clips: list[Clip]
    motions: list[ReferenceMotion]
    origins: dict[str, Origin]
    entries: dict[str, str]
    failures: list[Failure]

    @property
    def files(self) -> dict[str, str]:
        """The file of each clip, for messages."""
        return {name: origin.file for name, origin in self.origins.items()}


def gather(config: DictConfig, robot: Robot) -> Gathered:
    """Read and crop what source= names, and give every clip a name of its own.

    Raises:
      InputError: where nothing could be read, or where an option is given that no recording takes.
    """
    found = Gathered([], [], {}, {}, [])
    if str(config.source) == SYNTHETIC:
        for clip in demo_clips():
            _take(found, Recording(Path(clip.name), config.start, config.stop), clip, {"scale": 1.0, "up": "z"})
    else:
        given = {option: config[key] for key, option in KEYS.items() if config.get(key) is not None}
        chosen = recordings(config.source, config.start, config.stop)
        _check_used(given, chosen, config)
        for recording in chosen:
            _read(found, recording, given, robot)
    if not (found.clips or found.motions):
        report_failures(found.failures[1:])
        raise InputError(described(found.failures[0]))
    return found


def _check_used(given: dict[str, Any], chosen: Sequence[Recording], config: DictConfig) -> None:
    """Refuse an option that is for another kind of file than any there is."""
    for key, what in (
        ("source_rate_hz", "keypoint files (.csv, .npz, .txt)"),
        ("asf", "AMC motions"),
        ("character", "DeepMimic motions"),
    ):
        option = KEYS[key]
        if option in given and not any(option in known_options(recording.path) for recording in chosen):
            aside = (
                f"; {chosen[0].path} says its own rate (rate_hz= is that of the motions)"
                if key == "source_rate_hz"
                else ""
            )
            raise InputError(f"{key}={config[key]} is for {what}{aside}")


def _read(found: Gathered, recording: Recording, given: dict[str, Any], robot: Robot) -> None:
    """Add what one file holds, or why it could not be read."""
    path = recording.path
    known = known_options(path)
    fitting = {key: value for key, value in given.items() if key in known or not known}
    try:
        if is_robot_motion(path):
            licence = {"licence": given["licence"]} if "licence" in given else {}
            _take(found, recording, import_motion(path, robot, **licence), {"scale": 1.0, "up": "z"})
        else:
            for clip in read_all(path, **fitting):
                _take(found, recording, clip, {"scale": None, "up": "y", **known, **fitting})
    except MissingOptions as error:
        found.failures.append((str(path), with_keys(path, error)))
    except (InputError, OSError) as error:
        found.failures.append((str(path), one_line(error)))


def _take(found: Gathered, recording: Recording, whole: Clip | ReferenceMotion, used: dict[str, Any]) -> None:
    """Crop what was read, under a name that nothing else has."""
    try:
        clip = recording.crop(whole)
    except InputError as error:
        found.failures.append((str(recording.path), one_line(error)))
        return
    name, count = clip.name, 2
    while name in found.origins:  # the same file name in two folders
        name, count = f"{clip.name}_{count}", count + 1
    found.entries[name] = whole.name
    frames = (recording.start, recording.start + clip.num_frames)
    found.origins[name] = Origin(name, str(recording.path), frames, clip.rate_hz, used["scale"], str(used["up"]))
    if isinstance(clip, Clip):
        found.clips.append(dataclasses.replace(clip, name=name))
    else:
        found.motions.append(dataclasses.replace(clip, name=name, recording=name))


def known_options(path: Path) -> dict[str, Any]:
    """The options of the reader for a file with their defaults; none for a file that has no reader."""
    try:
        return dict(options_of(path))
    except (InputError, OSError):
        return {}


def with_keys(path: Path, error: MissingOptions) -> str:
    """What a recording lacks, said with the keys of this command instead of the reader's options."""
    if "names" in error.options:
        return (
            f"{path} does not name its keypoints; this command reads unnamed ones only in the dog set's layout of "
            f"{len(DOG_NAMES)}; others: mocap_data.read(path, names=...) from Python"
        )
    if "rate_hz" in error.options:
        return f"{path} does not say its rate; give source_rate_hz=, its frames per second"
    return one_line(error)
