"""The recordings of source=: options of their readers, and failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError, one_line
from mocap_data.readers import robot_motions
from mocap_data.readers.common import MissingOptions
from npmp.experiments.command import Keys
from npmp.experiments.terminal import warn
from npmp.robots import Robot
from retarget import sources

SYNTHETIC = "synthetic"  # the source without recordings

# {key of a command: option of the readers}
_OWN = ("scale", "up", "licence", "asf", "character", "body_model", "names", "subject")
KEYS = {key: key for key in _OWN} | {"source_rate_hz": "rate_hz"}


@dataclass(frozen=True, kw_only=True)
class Reading(Keys):
    """Settings of the readers of recordings."""

    # frame rate of files without one (keypoints, AMC, robots' CSV); null: the file's, 60 for CSV,
    # 120 for AMC, 30 or 120 for robots' CSV
    source_rate_hz: float | None = None
    # names of the keypoints, or of the joints of a robot motion, in the file's order, if it has
    # none
    names: list[str] | None = None
    # the skeleton of AMC motions; null: the .asf file beside them
    asf: Path | None = None
    # the body model of AMASS motions, an npz from the authors of SMPL; not shipped
    body_model: Path | None = None
    # the character file of DeepMimic motions; null: the one beside them, by its name
    character: Path | None = None
    # subject of recordings with several: a BVH's ROOT, a prefix of markers' names (Ben of
    # Ben:LASI); null: the first
    subject: str | None = None


def options_of_keys(config: Reading) -> dict[str, Any]:
    """The readers' options for a command's keys."""
    values = {option: getattr(config, key, None) for key, option in KEYS.items()}
    return {option: value for option, value in values.items() if value is not None}


def report_failures(failures: Sequence[sources.Failure]) -> None:
    """Print skipped recordings on stderr, one line each."""
    for failure in failures:
        warn(f"left out: {sources.failure_line(failure)}")


def report_remarks(recordings: sources.Recordings) -> None:
    """Print selections and omissions of readers on stderr, one line each."""
    remarks = [
        f"{recordings.files[clip.name]}: {remark}"
        for clip in recordings.clips
        for remark in clip.remarks
    ]
    for line in dict.fromkeys(remarks):
        warn(line)


def gather(
    source: str | list[str], start: int, stop: int | None, robot: Robot, config: Reading
) -> sources.Recordings:
    """Read and crop the recordings of source=, under unique names.

    Raises:
      InputError: if no recording could be read, or no recording supports an option.
    """
    if isinstance(source, str) and source in sources.GENERATED:
        recordings = sources.synthetic(source, start, stop)
    else:
        options = options_of_keys(config)
        chosen = sources.excerpts(source, start, stop)
        check_used(options, [recording.path for recording in chosen])
        recordings = sources.read_recordings(chosen, robot, options, with_keys)
        report_remarks(recordings)
    refuse_nothing(recordings.clips or recordings.motions, recordings.failures)
    return recordings


def refuse_nothing(recordings: object, failures: Sequence[sources.Failure]) -> None:
    """Without recordings print all failures but the first, and raise it as InputError."""
    if not recordings:
        report_failures(failures[1:])
        raise InputError(sources.failure_line(failures[0]))


def check_used(options: dict[str, Any], paths: Sequence[Path]) -> None:
    """Raise InputError for an option that no file supports.

    Raises:
      InputError: naming the key.
    """
    for key, files in (
        ("source_rate_hz", "keypoint files (.csv, .npz, .txt) and robots' .csv"),
        ("scale", "keypoints, not for robots' motions, which are in metres with Z up"),
        ("up", "keypoints, not for robots' motions, which are in metres with Z up"),
        ("names", "files without names of columns"),
        ("asf", "AMC motions"),
        ("character", "DeepMimic motions"),
        ("body_model", "AMASS motions"),
        ("subject", "recordings that may hold several: BVH, C3D and files of keypoints"),
    ):
        option = KEYS[key]
        accepted = [sources.reader_options(path, options) for path in paths]
        # the error of a file without a reader is more specific
        if option not in options or any(option in each or not each for each in accepted):
            continue
        own = f"; {paths[0]} has its own rate (rate_hz= is that of the motions)"
        value = f"{options[option]:g}" if isinstance(options[option], float) else options[option]
        raise InputError(f"{key}={value}: needs {files}{own if key == 'source_rate_hz' else ''}")


def with_keys(path: Path, error: Exception) -> str:
    """The reason why a recording cannot be read, with this command's keys for missing values."""
    lacking = error.options if isinstance(error, MissingOptions) else ()
    if "names" in lacking or "joint_names" in lacking:
        reason = one_line(error).split("; ")[0]
        if robot_motions.ambiguous(path):
            reason += f", or a robot's root and {robot_motions.numbers_in_a_row(path) - 7} joints"
        return f"{reason}; give names=[...], those of its columns in order"
    if "rate_hz" in lacking:
        return f"{path}: no frame rate; give source_rate_hz="
    return one_line(error)
