"""Finding and reading recordings: a file, a folder, a glob, a list of them, each whole or a stretch
of its frames.

A recording is a file of keypoints (any reader of `mocap_data`) or a robot's motion made by others.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from mocap_data.clip import Clip
from mocap_data.errors import InputError, counted
from mocap_data.motion import ReferenceMotion
from mocap_data.readers import READERS, is_recording, options_of, read_all
from mocap_data.synthetic import demo_clips
from npmp.robots import Robot
from retarget.imported import import_motion, is_robot_motion

Failure = tuple[str, str]  # what failed, why
Explain = Callable[[Path, Exception], str]


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
            raise InputError(
                f"{self.path}: no frames {asked}; the recording has {counted(num_frames, 'frame')}"
            )
        return self.start, stop

    def crop(self, clip: Clip | ReferenceMotion) -> Clip | ReferenceMotion:
        """Those frames of the recording.

        The name tells the stretch from others of the same file ("walk_800_1400"), a whole file
        keeps its own.

        Raises:
          InputError: as `frames` does.
        """
        start, stop = self.frames(clip.num_frames)
        if self.whole:
            return clip
        name = f"{clip.name}_{start}_{'end' if self.stop is None else stop}"
        return replace(clip.crop(start, stop), name=name)


@dataclass(frozen=True)
class Origin:
    """Where a clip comes from, with what was used of it and how it was read; kept in the dataset's
    provenance."""

    clip: str
    file: str
    frames: tuple[int, int]  # [start, stop) of the recording
    rate_hz: float  # of the recording
    scale: float | str | None  # metres per unit, or the unit's name; None: what the file says
    up: str


class Gathered(NamedTuple):
    """What recordings hold: clips of keypoints, motions of the robot made by others, where each
    comes from, what its file calls it (both by its name), and the recordings that could not be
    read."""

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
    """Like `sources`, where an entry may end in "@START:STOP" to use those frames only; the others
    take start and stop.

    Raises:
      InputError: where nothing is found, or for a stretch that is none.
    """
    if isinstance(source, Sequence) and not isinstance(source, str):
        return [recording for entry in source for recording in recordings(entry, start, stop)]
    text = str(source)
    place, at, stretch = text.rpartition("@")
    if not at or Path(text).expanduser().exists():
        return [Recording(path, start, stop) for path in sources(source)]
    # several, each with frames of its own
    if "," in text and not Path(place).expanduser().exists():
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
    """The recordings that source= names: a file, a folder (recordings in it and below), a glob, or
    a list of them.

    Raises:
      InputError: where nothing is found.
    """
    if isinstance(source, Sequence) and not isinstance(source, str):
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
        return [
            entry for match in matches for entry in (sources(match) if match.is_dir() else [match])
        ]
    if "," in text:
        return sources([part.strip() for part in text.split(",") if part.strip()])
    if glob.has_magic(text):
        raise InputError(f"no file matches {text!r}")
    raise InputError(f"no file or folder {text!r} (source=synthetic needs none)")


def is_readable(path: Path) -> bool:
    """Whether a file in a folder is taken for a recording; READMEs, licences and skeletons are not."""
    return is_recording(path) or is_robot_motion(path)


def synthetic(start: int = 0, stop: int | None = None) -> Gathered:
    """The generated gaits, or those frames of them."""
    found = Gathered([], [], {}, {}, [])
    for clip in demo_clips():
        _take(found, Recording(Path(clip.name), start, stop), clip, {"scale": 1.0, "up": "z"})
    return found


def read_recordings(
    chosen: Sequence[Recording],
    robot: Robot,
    given: Mapping[str, Any],
    explain: Explain = lambda _, error: str(error),
) -> Gathered:
    """Read and crop recordings, and give every clip a name of its own; what fails is listed, the
    rest goes on.

    given: options of the readers, each for the files that take it. explain: says why a file could
    not be read.
    """
    found = Gathered([], [], {}, {}, [])
    for recording in chosen:
        _read(found, recording, given, robot, explain)
    return found


def _read(
    found: Gathered, recording: Recording, given: Mapping[str, Any], robot: Robot, explain: Explain
) -> None:
    """Add what one file holds, or why it could not be read."""
    path = recording.path
    known = options_of(path)
    fitting = {key: value for key, value in given.items() if key in known or not known}
    try:
        if is_robot_motion(path):
            licence = {"licence": given["licence"]} if "licence" in given else {}
            _take(
                found, recording, import_motion(path, robot, **licence), {"scale": 1.0, "up": "z"}
            )
        else:
            for clip in read_all(path, **fitting):
                _take(found, recording, clip, {"scale": None, "up": "y", **known, **fitting})
    except (InputError, OSError) as error:
        found.failures.append((str(path), explain(path, error)))


def _take(
    found: Gathered, recording: Recording, whole: Clip | ReferenceMotion, used: dict[str, Any]
) -> None:
    """Crop what was read, under a name that nothing else has."""
    try:
        clip = recording.crop(whole)
    except InputError as error:
        found.failures.append((str(recording.path), str(error)))
        return
    name, count = clip.name, 2
    while name in found.origins:  # the same file name in two folders
        name, count = f"{clip.name}_{count}", count + 1
    found.entries[name] = whole.name
    frames = (recording.start, recording.start + clip.num_frames)
    found.origins[name] = Origin(
        name, str(recording.path), frames, clip.rate_hz, used["scale"], str(used["up"])
    )
    if isinstance(clip, Clip):
        found.clips.append(replace(clip, name=name))
    else:
        found.motions.append(replace(clip, name=name, recording=name))
