"""The recordings of source=: a file, a folder, a glob, a list of them, each with its frames.

A recording is a file of keypoints (any reader of `mocap_data`) or a robot motion to import.
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
from mocap_data.readers.robot_motions import kind_of, read_robot_motion
from mocap_data.readers.unsupported import check_supported
from mocap_data.synthetic import demo_clips, gait_clips
from npmp.robots import Robot
from retarget.cleaning import unused_name
from retarget.robot_motion_import import to_reference_motion

# sources that need no recording
GENERATED = {"synthetic": demo_clips, "gaits": gait_clips}
# the options of a robot motion
IN_METRES = {"scale": 1.0, "up": "z"}
# the recording, the reason
Failure = tuple[str, str]
Explain = Callable[[Path, Exception], str]


def failure_line(failure: Failure) -> str:
    """The message of a failure on one line, with the recording."""
    label, reason = failure
    return reason if label in reason else f"{label}: {reason}"


class Excerpt(NamedTuple):
    """A file and its range of frames."""

    path: Path
    start: int
    # the frame to stop before; None: the end
    stop: int | None

    def crop(self, clip: Clip | ReferenceMotion) -> Clip | ReferenceMotion:
        """These frames of the recording; a stop beyond its end is clamped.

        The part's name has them ("walk_800_1400").

        Raises:
          InputError: no frames left.
        """
        stop = clip.num_frames if self.stop is None else min(self.stop, clip.num_frames)
        if self.start >= stop:
            requested = f"{self.start}:{'' if self.stop is None else self.stop}"
            frames = counted(clip.num_frames, "frame")
            raise InputError(f"{self.path}: no frames {requested} of {frames}")
        if not self.start and self.stop is None:
            return clip
        name = f"{clip.name}_{self.start}_{'end' if self.stop is None else stop}"
        return replace(clip.crop(self.start, stop), name=name)


@dataclass(frozen=True)
class Origin:
    """The file of a clip and the reader's options, for the dataset's provenance."""

    clip: str
    file: str
    # [start, stop) of the recording
    frames: tuple[int, int]
    # of the recording
    rate_hz: float
    # metres per unit, or the unit's name; None: the file's
    scale: float | str | None
    up: str
    # subject to select; None: the first
    subject: str | None = None
    # as of `Clip` and `RobotMotion`
    assumed: tuple[str, ...] = ()


RATE_KEY = "source_rate_hz"
# the commands' keys of assumed values, where they differ
_KEYS = {"rate_hz": RATE_KEY}
# assumed values without a key
_WORDS = {
    "names": "the dog set's keypoints",
    "joint_names": "the documented robot's joints",
    "quaternion": "quaternions as x, y, z, w",
}
# of C3D
_USUAL_UP = "z"


def assumption(option: str, value: Any) -> str:
    """A reader's assumption as a command's key and value, e.g. "source_rate_hz=30", or in words."""
    if option in _WORDS:
        return _WORDS[option]
    if option == "up" and value in (None, "None"):
        value = _USUAL_UP
    text = f"{value:g}" if isinstance(value, float) else value
    return f"{_KEYS.get(option, option)}={text}"


def assumes_rate(findings: Mapping[str, Any]) -> bool:
    """Whether the rate in a recording's findings is assumed."""
    return any(line.startswith(RATE_KEY) for line in findings.get("assumed", ()))


def assumptions(origins: Iterable[Origin], without_rate: Collection[str] = ()) -> list[str]:
    """The readers' assumptions, a line for each value. without_rate: clips whose rates are left
    out."""
    clips: dict[str, list[str]] = {}
    for origin in origins:
        for option in origin.assumed:
            if option != "rate_hz" or origin.clip not in without_rate:
                line = assumption(option, getattr(origin, option, None))
                clips.setdefault(line, []).append(origin.clip)
    subjects = {
        line: names[0] if len(names) == 1 else f"{len(names)} recordings"
        for line, names in clips.items()
    }
    return [f"{line} (not in {subject})" for line, subject in subjects.items()]


@dataclass(frozen=True)
class Recordings:
    """The clips and robot motions of recordings."""

    clips: list[Clip] = field(default_factory=list)
    # imported motions of the robot
    motions: list[ReferenceMotion] = field(default_factory=list)
    # origin of each clip and motion, by its name
    origins: dict[str, Origin] = field(default_factory=dict)
    # its name in the file, by its name
    entries: dict[str, str] = field(default_factory=dict)
    # the recordings that could not be read
    failures: list[Failure] = field(default_factory=list)

    @property
    def files(self) -> dict[str, str]:
        """The file of each clip, for messages."""
        return {name: origin.file for name, origin in self.origins.items()}

    def add(
        self,
        part: Excerpt,
        recording: Clip | ReferenceMotion,
        options: Mapping[str, Any],
        assumed: tuple[str, ...] = (),
    ) -> None:
        """Add a part of a recording, under a unique name. options: of its reader."""
        try:
            clip = part.crop(recording)
        except InputError as error:
            self.failures.append((str(part.path), str(error)))
            return
        # the same file name in two folders
        name = unused_name(clip.name, set(self.origins))
        self.entries[name] = recording.name
        self.origins[name] = Origin(
            clip=name,
            file=str(part.path),
            frames=(part.start, part.start + clip.num_frames),
            rate_hz=clip.rate_hz,
            scale=options.get("scale"),
            up=str(options["up"]),
            subject=options.get("subject"),
            assumed=assumed,
        )
        if isinstance(clip, Clip):
            self.clips.append(replace(clip, name=name))
        else:
            self.motions.append(replace(clip, name=name, recording=name))


def excerpts(source: Any, start: int, stop: int | None) -> list[Excerpt]:
    """As `files_of`, where an entry may end in "@START:STOP"; the others take start and stop.

    Raises:
      InputError: no file, or invalid frames.
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
            first = int(match[1] or 0)
            last = int(match[2]) if match[2] else None
            return [Excerpt(path, first, last) for path in files_of(place)]
        if _exists(place):
            expected = f"expected FILE@START:STOP, e.g. {place}@100:700"
            raise InputError(f"{text!r}: {frames!r} are not frames, {expected}")
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
      InputError: no recording.
    """
    if isinstance(source, Sequence) and not isinstance(source, str):
        return list(dict.fromkeys(path for entry in source for path in files_of(entry)))
    text = str(source)
    path = Path(text).expanduser()
    if path.is_dir():
        # without READMEs, licences and skeletons
        inside = files_below(path)
        files = [file for file in inside if is_recording(file) or kind_of(file) is not None]
        if not files:
            for file in inside:
                check_supported(file)
            raise InputError(f"{path}: no recording, expected one of: {', '.join(READERS)}")
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


# a clip or a robot motion, and its reader's assumptions
Read = tuple[Clip | ReferenceMotion, tuple[str, ...]]


def _read(path: Path, robot: Robot, options: dict[str, Any]) -> list[Read]:
    """The clips of a recording, or a robot motion; `names` are used where the file has none."""
    names = options.pop("names", None)
    kind = kind_of(path, names or ())

    def read(**names_option: Any) -> list[Read]:
        if kind is None:
            clips = read_all(path, **options, **names_option)
            return [(clip, clip.assumed) for clip in clips]
        motion = read_robot_motion(path, kind=kind, **options, **names_option)
        return [(to_reference_motion(motion, robot), motion.assumed)]

    try:
        return read()
    except MissingOptions as error:
        if names is None or not {"names", "joint_names"} & set(error.options):
            raise
    return read(**{"names" if kind is None else "joint_names": names})


def reader_options(path: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a recording's reader with their defaults; for a robot motion `names` are its
    joints. options: `names` decides between the two."""
    try:
        kind = kind_of(path, options.get("names", ()))
    except OSError:
        kind = None
    if kind is None:
        return options_of(path)
    rate = {} if kind == "mjlab" else {"rate_hz": None}
    return {"names": None, "licence": "unknown", **rate}


def synthetic(name: str, start: int = 0, stop: int | None = None) -> Recordings:
    """A generated set of `GENERATED`, or these frames of its clips."""
    recordings = Recordings()
    for clip in GENERATED[name]():
        recordings.add(Excerpt(Path(clip.name), start, stop), clip, IN_METRES)
    return recordings


def read_recordings(
    parts: Sequence[Excerpt],
    robot: Robot,
    options: Mapping[str, Any],
    explain: Explain = lambda _, error: str(error),
) -> Recordings:
    """Read and crop recordings under unique names; failures are listed.

    options: of the readers, each for the files that take it (`reader_options`). explain: the reason
    of an error of a file.
    """
    recordings = Recordings()
    for part in parts:
        try:
            defaults = reader_options(part.path, options)
            valid = {k: value for k, value in options.items() if k in defaults or not defaults}
            for recording, assumed in _read(part.path, robot, dict(valid)):
                used = {"up": "y", **defaults, **valid}
                used = used if isinstance(recording, Clip) else IN_METRES
                recordings.add(part, recording, used, assumed)
        except (InputError, OSError) as error:
            recordings.failures.append((str(part.path), explain(part.path, error)))
    return recordings
