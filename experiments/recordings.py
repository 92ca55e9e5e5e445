"""The recordings that source= names: finding them, reading them, and saying what could not be read.

A recording is a file of keypoints (any reader of `mocap_data`) or a robot's motion made by others; a file may hold
several. What fails is listed, the rest goes on.
"""

from __future__ import annotations

import dataclasses
import glob
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, ListConfig

from experiments.failures import one_line
from mocap_data import Clip, ReferenceMotion, demo_clips
from mocap_data.errors import InputError
from mocap_data.readers import READERS, is_recording, options_of, read_all
from mocap_data.readers.common import DOG_NAMES, MissingOptions
from npmp.robots import Robot
from retarget.imported import import_motion, is_robot_motion

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


def counted(number: int, noun: str) -> str:
    """ "1 motion", "2 motions"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class Recording(NamedTuple):
    """A file and the frames of it to use."""

    path: Path
    start: int
    stop: int | None  # the frame to stop before; None: the end

    @property
    def whole(self) -> bool:
        """Whether all frames are used."""
        return not self.start and self.stop is None

    def frames(self, num_frames: int) -> tuple[int, int]:
        """The frames [start, stop) of a recording of so many; a stop beyond its end means its end.

        Raises:
          InputError: with the frames as they were asked for, where none are left.
        """
        stop = num_frames if self.stop is None else min(self.stop, num_frames)
        if self.start >= stop:
            asked = f"{self.start}:{'' if self.stop is None else self.stop}"
            raise InputError(f"{self.path}: no frames {asked}; the recording has {counted(num_frames, 'frame')}")
        return self.start, stop

    def crop(self, clip: Clip | ReferenceMotion) -> Clip | ReferenceMotion:
        """Those frames of the recording.

        The name tells the stretch from others of the same file ("walk_800_1400"), a whole file keeps its own.

        Raises:
          InputError: as `frames` does.
        """
        start, stop = self.frames(clip.num_frames)
        if self.whole:
            return clip
        name = f"{clip.name}_{start}_{'end' if self.stop is None else stop}"
        return dataclasses.replace(clip.crop(start, stop), name=name)


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


def recordings(source: Any, start: int, stop: int | None) -> list[Recording]:
    """Like `sources`, where an entry may end in "@START:STOP" to use those frames only; the others take start and stop.

    Raises:
      InputError: where nothing is found, or for a stretch that is none.
    """
    if isinstance(source, ListConfig | list | tuple):
        return [recording for entry in source for recording in recordings(entry, start, stop)]
    text = str(source)
    place, at, stretch = text.rpartition("@")
    if not at or Path(text).expanduser().exists():
        return [Recording(path, start, stop) for path in sources(source)]
    if "," in text and not Path(place).expanduser().exists():  # several, each with frames of its own
        return recordings([part.strip() for part in text.split(",") if part.strip()], start, stop)
    if found := re.fullmatch(r"(\d*):(\d*)", stretch, re.ASCII):
        first, last = int(found[1] or 0), int(found[2]) if found[2] else None
        return [Recording(path, first, last) for path in sources(place)]
    if Path(place).expanduser().exists():
        raise InputError(
            f"{text!r}: {stretch!r} is no stretch of frames; FILE@START:STOP takes whole numbers from 0, "
            f"e.g. {place}@100:700"
        )
    return [Recording(path, start, stop) for path in sources(source)]


def sources(source: Any) -> list[Path]:
    """The recordings that source= names: a file, a folder (recordings in it and below), a glob, or a list of them.

    Raises:
      InputError: where nothing is found.
    """
    if isinstance(source, ListConfig | list | tuple):
        found = [path for entry in source for path in sources(entry)]
        return list(dict.fromkeys(found))
    text = str(source)
    path = Path(text).expanduser()
    if path.is_dir():
        files = sorted(entry for entry in path.rglob("*") if entry.is_file() and is_readable(entry))
        if not files:
            raise InputError(f"no recording in {path}; readable are: {', '.join(READERS)}")
        return files
    if path.exists():
        return [path]
    matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
    if matches:
        return [entry for match in matches for entry in (sources(match) if match.is_dir() else [match])]
    if "," in text:
        return sources([part.strip() for part in text.split(",") if part.strip()])
    if glob.has_magic(text):
        raise InputError(f"no file matches {text!r}")
    raise InputError(f"no file or folder {text!r} (source=synthetic needs none)")


def is_readable(path: Path) -> bool:
    """Whether a file in a folder is taken for a recording; READMEs, licences and skeletons are not."""
    return is_recording(path) or is_robot_motion(path)


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
