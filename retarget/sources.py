"""Finding and reading recordings: a file, a folder, a glob, a list of them, whole or in part.

A recording is a file of keypoints (any reader of `mocap_data`) or a robot's motion made by others.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from mocap_data.clip import Clip
from mocap_data.errors import InputError, counted
from mocap_data.motion import ReferenceMotion
from mocap_data.readers import READERS, is_recording, options_of, read_all
from mocap_data.readers.common import MissingOptions
from mocap_data.readers.others import check_supported
from mocap_data.readers.robot_motions import kind_of, read_robot_motion
from mocap_data.synthetic import demo_clips, gait_clips
from npmp.robots import Robot
from retarget.cleaning import unused
from retarget.imported import to_reference_motion

# sources that need no recording
GENERATED = {"synthetic": demo_clips, "gaits": gait_clips}
# how a robot's motion is read
IN_METRES = {"scale": 1.0, "up": "z"}
# what failed, why
Failure = tuple[str, str]
Explain = Callable[[Path, Exception], str]


def described(failure: Failure) -> str:
    """A failure on one line that names the recording."""
    label, reason = failure
    return reason if label in reason else f"{label}: {reason}"


class Excerpt(NamedTuple):
    """A file and the frames of it to use."""

    path: Path
    start: int
    # the frame to stop before; None: the end
    stop: int | None

    def crop(self, clip: Clip | ReferenceMotion) -> Clip | ReferenceMotion:
        """Those frames of the recording, a stop beyond its end meaning its end.

        The name tells the part from others of the same file ("walk_800_1400").

        Raises:
          InputError: where no frames are left.
        """
        stop = clip.num_frames if self.stop is None else min(self.stop, clip.num_frames)
        if self.start >= stop:
            requested = f"{self.start}:{'' if self.stop is None else self.stop}"
            has = f"the recording has {counted(clip.num_frames, 'frame')}"
            raise InputError(f"{self.path}: no frames {requested}; {has}")
        if not self.start and self.stop is None:
            return clip
        name = f"{clip.name}_{self.start}_{'end' if self.stop is None else stop}"
        return replace(clip.crop(self.start, stop), name=name)


@dataclass(frozen=True)
class Origin:
    """Where a clip comes from and how it was read; kept in the dataset's provenance."""

    clip: str
    file: str
    # [start, stop) of the recording
    frames: tuple[int, int]
    # of the recording
    rate_hz: float
    # metres per unit, or the unit's name; None: what the file says
    scale: float | str | None
    up: str
    # that was taken of several; None: the first
    subject: str | None = None
    # what the file does not say and its reader assumed, as of `Clip` and `RobotMotion`
    assumed: tuple[str, ...] = ()


RATE_KEY = "source_rate_hz"
# the commands' keys of what readers assume, where they are called otherwise
_KEYS = {"rate_hz": RATE_KEY}
# what they assume where no key's value says it
_WORDS = {
    "names": "the dog set's keypoints",
    "joint_names": "the documented robot's joints",
    "quaternion": "quaternions as x, y, z, w",
}
# of C3D
_USUAL_UP = "z"


def assumption(what: str, value: Any) -> str:
    """What a reader assumed as a command's key and value, e.g. "source_rate_hz=30", or in words."""
    if what in _WORDS:
        return _WORDS[what]
    if what == "up" and value in (None, "None"):
        value = _USUAL_UP
    return f"{_KEYS.get(what, what)}={f'{value:g}' if isinstance(value, float) else value}"


def assumes_rate(findings: Mapping[str, Any]) -> bool:
    """Whether the "assumed" of a recording's findings name its rate."""
    return any(line.startswith(RATE_KEY) for line in findings.get("assumed", ()))


def assumptions(origins: Iterable[Origin], rates_apart: Collection[str] = ()) -> list[str]:
    """What readers assumed where files are silent, a line for each value.

    rates_apart: clips whose rates do not count.
    """
    clips: dict[str, list[str]] = {}
    for origin in origins:
        for key in origin.assumed:
            if key != "rate_hz" or origin.clip not in rates_apart:
                line = assumption(key, getattr(origin, key, None))
                clips.setdefault(line, []).append(origin.clip)
    silent = {
        line: f"{names[0]} does" if len(names) == 1 else f"{len(names)} recordings do"
        for line, names in clips.items()
    }
    return [f"{line} ({which} not say)" for line, which in silent.items()]


@dataclass(frozen=True)
class Recordings:
    """What recordings hold."""

    # of keypoints
    clips: list[Clip] = field(default_factory=list)
    # of the robot, made by others
    motions: list[ReferenceMotion] = field(default_factory=list)
    # of each clip and motion, by its name
    origins: dict[str, Origin] = field(default_factory=dict)
    # what each one's file calls it, by its name
    entries: dict[str, str] = field(default_factory=dict)
    # the recordings that could not be read
    failures: list[Failure] = field(default_factory=list)

    @property
    def files(self) -> dict[str, str]:
        """The file of each clip, for messages."""
        return {name: origin.file for name, origin in self.origins.items()}

    def take(
        self,
        part: Excerpt,
        whole: Clip | ReferenceMotion,
        used: Mapping[str, Any],
        assumed: tuple[str, ...] = (),
    ) -> None:
        """Add a part of what was read, under a name that nothing else has."""
        try:
            clip = part.crop(whole)
        except InputError as error:
            self.failures.append((str(part.path), str(error)))
            return
        # the same file name in two folders
        name = unused(clip.name, set(self.origins))
        self.entries[name] = whole.name
        self.origins[name] = Origin(
            clip=name,
            file=str(part.path),
            frames=(part.start, part.start + clip.num_frames),
            rate_hz=clip.rate_hz,
            scale=used.get("scale"),
            up=str(used["up"]),
            subject=used.get("subject"),
            assumed=assumed,
        )
        if isinstance(clip, Clip):
            self.clips.append(replace(clip, name=name))
        else:
            self.motions.append(replace(clip, name=name, recording=name))


def excerpts(source: Any, start: int, stop: int | None) -> list[Excerpt]:
    """As `files_of`, where an entry may end in "@START:STOP"; the others take start and stop.

    Raises:
      InputError: where nothing is found, or for what are no frames.
    """
    if isinstance(source, Sequence) and not isinstance(source, str):
        return [part for entry in source for part in excerpts(entry, start, stop)]
    text = str(source)
    place, at, frames = text.rpartition("@")
    if at and not _exists(text):
        # several entries, each with its own frames
        if "," in text and not _exists(place):
            return excerpts(_parts(text), start, stop)
        if match := re.fullmatch(r"(\d*):(\d*)", frames, re.ASCII):
            first, last = int(match[1] or 0), int(match[2]) if match[2] else None
            return [Excerpt(path, first, last) for path in files_of(place)]
        if _exists(place):
            expected = f"FILE@START:STOP takes whole numbers from 0, e.g. {place}@100:700"
            raise InputError(f"{text!r}: {frames!r} is no stretch of frames; {expected}")
    return [Excerpt(path, start, stop) for path in files_of(source)]


def files_below(folder: Path) -> list[Path]:
    """The files in a folder and below, without those in hidden folders (.git, .venv)."""
    files = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(place, name) for name in names]
    return sorted(file for file in files if file.is_file())


def _exists(text: str) -> bool:
    return Path(text).expanduser().exists()


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def files_of(source: Any) -> list[Path]:
    """The recordings of a file, a folder (in it and below), a glob, or a list of them.

    Raises:
      InputError: where nothing is found.
    """
    if isinstance(source, Sequence) and not isinstance(source, str):
        return list(dict.fromkeys(path for entry in source for path in files_of(entry)))
    text = str(source)
    path = Path(text).expanduser()
    if path.is_dir():
        # READMEs, licences and skeletons are none
        inside = files_below(path)
        files = [file for file in inside if is_recording(file) or kind_of(file) is not None]
        if not files:
            for file in inside:
                check_supported(file)
            raise InputError(f"no recording in {path}; readable are: {', '.join(READERS)}")
        return files
    if path.exists():
        return [path]
    matches = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
    if matches:
        lists = (files_of(match) if match.is_dir() else [match] for match in matches)
        return [file for files in lists for file in files]
    if "," in text:
        return files_of(_parts(text))
    if glob.has_magic(text):
        raise InputError(f"no file matches {text!r}")
    raise InputError(f"no file or folder {text!r} (source=gaits needs none)")


# a clip or a robot's motion, and what its reader assumed
Whole = tuple[Clip | ReferenceMotion, tuple[str, ...]]


def _read(path: Path, robot: Robot, given: dict[str, Any]) -> list[Whole]:
    """The clips of a recording, or the motion of a robot's; `names` count where it has none."""
    names = given.pop("names", None)
    kind = kind_of(path, names or ())

    def read(**named: Any) -> list[Whole]:
        if kind is None:
            return [(clip, clip.assumed) for clip in read_all(path, **given, **named)]
        theirs = read_robot_motion(path, kind=kind, **given, **named)
        return [(to_reference_motion(theirs, robot), theirs.assumed)]

    try:
        return read()
    except MissingOptions as error:
        if names is None or not {"names", "joint_names"} & set(error.options):
            raise
    return read(**{"names" if kind is None else "joint_names": names})


def known_options(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a recording takes with their defaults, of a robot's motion, too: `names` are
    those of its joints there. given: what tells one from the other."""
    try:
        kind = kind_of(path, given.get("names", ()))
    except OSError:
        kind = None
    if kind is None:
        return options_of(path)
    timed = {} if kind == "mjlab" else {"rate_hz": None}
    return {"names": None, "licence": "unknown", **timed}


def synthetic(name: str, start: int = 0, stop: int | None = None) -> Recordings:
    """A generated set of `GENERATED`, or those frames of its clips."""
    recordings = Recordings()
    for clip in GENERATED[name]():
        recordings.take(Excerpt(Path(clip.name), start, stop), clip, {"scale": 1.0, "up": "z"})
    return recordings


def read_recordings(
    chosen: Sequence[Excerpt],
    robot: Robot,
    given: Mapping[str, Any],
    explain: Explain = lambda _, error: str(error),
) -> Recordings:
    """Read and crop recordings under unique names; what fails is listed, the rest goes on.

    given: options of the readers, each for the files that take it (`known_options`). explain: why a
    file could not be read.
    """
    recordings = Recordings()
    for part in chosen:
        try:
            defaults = known_options(part.path, given)
            fitting = {
                key: value for key, value in given.items() if key in defaults or not defaults
            }
            for whole, assumed in _read(part.path, robot, fitting):
                used = {"up": "y", **defaults, **fitting}
                used = used if isinstance(whole, Clip) else IN_METRES
                recordings.take(part, whole, used, assumed)
        except (InputError, OSError) as error:
            recordings.failures.append((str(part.path), explain(part.path, error)))
    return recordings
