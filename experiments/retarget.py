"""`npmp retarget`: recordings -> reference motions of a robot in one HDF5 dataset."""

from __future__ import annotations

import dataclasses
import glob
import inspect
import json
import os
import re
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from omegaconf import DictConfig, ListConfig
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import npmp
from experiments.common import Run, at_least, console, verb
from experiments.failures import one_line
from mocap_data import Clip, MotionSet, ReferenceMotion, demo_clips, read, write_motions
from mocap_data.errors import InputError
from mocap_data.readers import READERS
from mocap_data.readers.common import DOG_NAMES, MissingOptions
from mocap_data.store import SCHEMA
from npmp import robots
from npmp.robots import Robot
from retarget import Options, retarget, retarget_many
from retarget.quality import overall_rms

SOLVER_KEYS = tuple(entry.name for entry in dataclasses.fields(Options))  # each a key of conf/retarget.yaml
QUALITY = ("rms_marker_m", "foot_slide_mps", "penetration_m", "limit_violations")
SYNTHETIC = "synthetic"  # the source that needs no recording
DOUBTFUL_RMS = 0.05  # [m] a walking dog stays near 2 cm; one that sits or lies, which no robot can, reaches 10 cm
MISREAD_RMS = 0.12  # [m] beyond any pose that was read rightly; a dog read with the wrong axis up gives 15 cm
ANIMAL_SIZES = (0.2, 5.0)  # [m] across all keypoints; a dog has 1 m
DOUBTFUL_DURATION, DOUBTFUL_RATE = 600.0, 20.0  # [s], [Hz] a long and slow recording is one with a wrong rate
Failure = tuple[str, str]  # what failed, why


def run(config: DictConfig, run: Run) -> int:
    """Read, retarget, write, and show what came out. Fails when nothing succeeded, or with strict=true at the first failure."""
    terminal, begin = console(), time.perf_counter()
    at_least(config, rounds=1, iterations=1, start=0)
    synthetic = str(config.source) == SYNTHETIC
    check_out(run.place, [] if synthetic else [entry.path for entry in recordings(config.source, config.start, config.stop)])
    robot = robots.load(config.robot.name)
    gathered = gather(config)
    options = solver_options(config)
    files = {name: origin.file for name, origin in gathered.origins.items()}
    motion_set, more = retarget_clips(gathered.clips, robot, options, files=files)
    failures = [*gathered.failures, *more]
    if failures and config.strict:
        raise InputError(f"{described(failures[0])} (strict=true: nothing was written)")
    used = {clip.name: clip for clip in gathered.clips}
    written = [gathered.origins[name] for name in motion_set.names]
    provenance = {
        **motion_set.provenance,
        "npmp": npmp.__version__,
        "source": str(config.source),
        "recordings": json.dumps([dataclasses.asdict(origin) for origin in written]),
        **{key: str(value) for key, value in options.items()},
        "rate_hz": str(motion_set.motions[0].rate_hz),
    }
    write_motions(run.place, dataclasses.replace(motion_set, provenance=provenance))
    doubtful = {motion.name: why for motion in motion_set.motions if (why := doubts(motion, used[motion.name]))}
    terminal.print(table_of(motion_set, doubtful))
    frames = sum(used[name].num_frames for name in motion_set.names)
    seconds = time.perf_counter() - begin
    terminal.print(
        f"{counted(len(motion_set.motions), 'motion')} of {robot.name}, {counted(frames, 'frame')} in {seconds:.1f} s "
        f"({frames / seconds:,.0f} frames/s with reading and writing): {run.out}",
        highlight=False,
        soft_wrap=True,
    )
    sys.stdout.flush()  # the warnings belong after the table, also where both streams go to one place
    for name, why in doubtful.items():
        print(f"npmp: warning: {name} {why}", file=sys.stderr)
    report_failures(failures)
    return 0


def check_out(out: Path, files: Sequence[Path]) -> None:
    """Refuse to replace a recording, or any other file that is no dataset of motions. Raises InputError."""
    if not (out.exists() or out.is_symlink()):
        return
    if any(file.exists() and out.exists() and os.path.samefile(file, out) for file in files):
        raise InputError(f"out={out} is one of the recordings of source=; name another file, e.g. out=motions.h5")
    if not is_dataset(out):
        raise InputError(f"out={out} exists and is no dataset of motions, so it is not replaced; name another file")


def is_dataset(path: Path) -> bool:
    """Whether a file is one that `write_motions` made, of any version."""
    if not path.is_file() or not h5py.is_hdf5(path):
        return False
    try:
        with h5py.File(path, "r") as file:
            schema = file.attrs.get("schema")
    except OSError:
        return False
    return schema in (SCHEMA, SCHEMA.encode())


def doubts(motion: ReferenceMotion, clip: Clip) -> str:
    """What makes a motion look misread, "looks wrong: RMS 864 cm (units? ...)", or hard for the robot; or nothing."""
    found, misread = [], False
    error, violations = motion.quality["rms_marker_m"], motion.quality["limit_violations"]
    if error > DOUBTFUL_RMS:
        misread = error > MISREAD_RMS
        hint = "units? scale=; axis? up=" if misread else "sitting or lying? else units, scale=, or axis, up="
        found.append(f"RMS {100 * error:.3g} cm ({hint})")
    size = float(np.median(np.linalg.norm(np.ptp(clip.positions, axis=1), axis=-1)))
    if not ANIMAL_SIZES[0] <= size <= ANIMAL_SIZES[1]:
        misread = True
        found.append(f"an animal of {size:.3g} m (units? scale=)")
    if violations > 0:
        found.append(f"{counted(int(violations), 'limit violation')} (too fast for the robot? else rate, source_rate_hz=)")
    if clip.duration_s > DOUBTFUL_DURATION and clip.rate_hz < DOUBTFUL_RATE:
        misread = True
        found.append(f"{clip.duration_s:.0f} s at {clip.rate_hz:g} frames/s (rate? source_rate_hz=, or the file's own)")
    return f"{'looks wrong' if misread else 'needs a look'}: {'; '.join(found)}" if found else ""


def counted(number: int, noun: str) -> str:
    """ "1 motion", "2 motions"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def solver_options(config: DictConfig) -> dict[str, Any]:
    """What the configuration says about the solver, for `retarget_many`."""
    return {key: config[key] for key in SOLVER_KEYS if key in config}


def described(failure: Failure) -> str:
    """A failure on one line that names the recording."""
    label, reason = failure
    return reason if label in reason else f"{label}: {reason}"


class Recording(NamedTuple):
    """A file and the frames of it to use."""

    path: Path
    start: int
    stop: int | None  # the frame to stop before; None: the end

    def crop(self, clip: Clip) -> Clip:
        """Those frames of the recording; a stop beyond its end means its end.

        The name tells the stretch from others of the same file ("walk_800_1400"), a whole file keeps its own.
        Raises InputError, with the frames as they were asked for, where none are left.
        """
        if not self.start and self.stop is None:
            return clip
        stop = clip.num_frames if self.stop is None else min(self.stop, clip.num_frames)
        if self.start >= stop:
            asked = f"{self.start}:{'' if self.stop is None else self.stop}"
            raise InputError(f"{self.path}: no frames {asked}; the recording has {counted(clip.num_frames, 'frame')}")
        name = f"{clip.name}_{self.start}_{'end' if self.stop is None else stop}"
        return dataclasses.replace(clip.crop(self.start, stop), name=name)


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a clip comes from, with what was used of it and how it was read; kept in the dataset's provenance."""

    clip: str
    file: str
    frames: tuple[int, int]  # [start, stop) of the recording
    rate_hz: float  # of the recording
    scale: float  # metres per unit
    up: str


class Gathered(NamedTuple):
    """The clips of source=, where each comes from (by its name), and the recordings that could not be read."""

    clips: list[Clip]
    origins: dict[str, Origin]
    failures: list[Failure]


def recordings(source: Any, start: int, stop: int | None) -> list[Recording]:
    """Like `sources`, where an entry may end in "@START:STOP" to use those frames only; the others take start and stop.

    Raises InputError where nothing is found, or for a stretch that is none.
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
            f"{text!r}: {stretch!r} is no stretch of frames; FILE@START:STOP takes whole numbers from 0, e.g. {place}@100:700"
        )
    return [Recording(path, start, stop) for path in sources(source)]


def sources(source: Any) -> list[Path]:
    """The recordings that source= names: a file, a folder (recordings in it and below), a glob, or a list of them.

    Raises InputError where nothing is found.
    """
    if isinstance(source, ListConfig | list | tuple):
        found = [path for entry in source for path in sources(entry)]
        return list(dict.fromkeys(found))
    text = str(source)
    path = Path(text).expanduser()
    if path.is_dir():
        files = sorted(entry for entry in path.rglob("*") if entry.suffix.lower() in READERS and entry.is_file())
        # Folders of recordings hold READMEs and licences; a .txt is one of ours only where nothing else is.
        recordings = [entry for entry in files if entry.suffix.lower() != ".txt"] or files
        if not recordings:
            raise InputError(f"no recording in {path}; readable are: {', '.join(READERS)}")
        return recordings
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


def read_clips(config: DictConfig) -> tuple[list[Clip], list[Failure]]:
    """The clips of source=, cropped and with unique names, and the recordings that could not be read.

    Raises InputError where none could be.
    """
    gathered = gather(config)
    return gathered.clips, gathered.failures


def gather(config: DictConfig) -> Gathered:
    """Read and crop what source= names, and give every clip a name of its own.

    Raises InputError where nothing could be read, or where source_rate_hz= is given and no recording takes it.
    """
    failures: list[Failure] = []
    found: list[tuple[Recording, Clip, dict[str, Any]]] = []
    if str(config.source) == SYNTHETIC:
        for clip in demo_clips():
            found.append((Recording(Path(clip.name), config.start, config.stop), clip, {"scale": 1.0, "up": "z"}))
    else:
        options = {"scale": config.scale, "up": config.up, "licence": config.licence, "rate_hz": config.source_rate_hz}
        given = {key: value for key, value in options.items() if value is not None}
        chosen = recordings(config.source, config.start, config.stop)
        if "rate_hz" in given and not any("rate_hz" in defaults_of(recording.path) for recording in chosen):
            raise InputError(
                f"source_rate_hz={config.source_rate_hz} is for keypoint files (.csv, .npz, .txt); "
                f"{chosen[0].path} says its own rate (rate_hz= is that of the motions)"
            )
        for recording in chosen:
            known = defaults_of(recording.path)
            fitting = {key: value for key, value in given.items() if key in known or not known}
            try:
                found.append((recording, read(recording.path, **fitting), {**known, **fitting}))
            except MissingOptions as error:
                failures.append((str(recording.path), with_keys(recording.path, error)))
            except (InputError, OSError) as error:
                failures.append((str(recording.path), one_line(error)))
    clips: list[Clip] = []
    origins: dict[str, Origin] = {}
    for recording, whole, used in found:
        try:
            clip = recording.crop(whole)
        except InputError as error:
            failures.append((str(recording.path), one_line(error)))
            continue
        name, count = clip.name, 2
        while name in origins:  # the same file name in two folders
            name, count = f"{clip.name}_{count}", count + 1
        clips.append(dataclasses.replace(clip, name=name))
        frames = (recording.start, recording.start + clip.num_frames)
        scale, up = float(used["scale"]), str(used["up"])
        origins[name] = Origin(name, str(recording.path), frames, clip.rate_hz, scale, up)
    if not clips:
        report_failures(failures[1:])
        raise InputError(described(failures[0]))
    return Gathered(clips, origins, failures)


def defaults_of(path: Path) -> dict[str, Any]:
    """The options of the reader for a file with their defaults; none for a file that has no reader."""
    reader = READERS.get(path.suffix.lower())
    parameters = inspect.signature(reader).parameters if reader else {}
    return {name: entry.default for name, entry in parameters.items() if name != "path"}


def with_keys(path: Path, error: MissingOptions) -> str:
    """What a recording lacks, said with the keys of this command instead of the reader's options."""
    if "names" in error.options:
        return (
            f"{path} does not name its keypoints; this command reads unnamed ones only in the dog set's layout of "
            f"{len(DOG_NAMES)}; others: mocap_data.read(path, names=...) from Python"
        )
    return f"{path} does not say its rate; give source_rate_hz=, its frames per second"


def retarget_clips(
    clips: Sequence[Clip],
    robot: Robot,
    options: dict[str, Any],
    *,
    quiet: bool = False,
    files: Mapping[str, str] | None = None,
) -> tuple[MotionSet, list[Failure]]:
    """All clips that fit the robot as motions, behind a progress bar, and those that do not.

    files: of clips by name, for messages. Raises InputError where none fits.
    """
    Options(**options)  # a bad option is no clip's fault: say so before any is looked at
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )
    failures: list[Failure] = []
    with progress:
        task = progress.add_task("marker offsets", total=len(clips))

        def tell(done: int, total: int, name: str) -> None:
            progress.update(task, completed=done, total=total, description=f"poses {name}"[:40])

        try:
            return retarget_many(clips, robot, progress=tell, **options), failures
        except InputError:
            # Which clip was it? Only now worth the time to look at each alone.
            good = []
            for clip in clips:
                try:
                    retarget(clip, robot, **{**options, "iterations": 1})
                    good.append(clip)
                except InputError as error:
                    failures.append(((files or {}).get(clip.name, clip.name), one_line(error)))
            if not failures:
                raise
            if not good:
                report_failures(failures[1:])
                raise InputError(described(failures[0])) from None
            return retarget_many(good, robot, progress=tell, **options), failures


def table_of(motion_set: MotionSet, doubtful: Collection[str] = ()) -> Table:
    """Clips and their quality figures; the last row sums up (marker errors by root mean square over frames).

    doubtful: names of motions to mark with "!".
    """
    table = Table(title=f"motions of {motion_set.robot}", title_justify="left", show_footer=len(motion_set.motions) > 1)
    motions = motion_set.motions
    weights = np.array([len(motion.qpos) / motion.rate_hz for motion in motions])
    figures = {key: np.array([motion.quality[key] for motion in motions]) for key in QUALITY}
    overall = f"{100 * overall_rms(motions):.2f}"
    columns: list[tuple[str, list[str], str]] = [
        ("seconds", [f"{value:.1f}" for value in weights], f"{weights.sum():.1f}"),
        ("RMS marker\nerror cm", [f"{100 * value:.2f}" for value in figures["rms_marker_m"]], overall),
        (
            "foot slide\ncm/s",
            [f"{100 * value:.2f}" for value in figures["foot_slide_mps"]],
            f"{100 * np.average(figures['foot_slide_mps'], weights=weights):.2f}",
        ),
        (
            "penetration\nmm",
            [f"{1000 * value:.1f}" for value in figures["penetration_m"]],
            f"{1000 * figures['penetration_m'].max():.1f}",
        ),
        (
            "limit\nviolations",
            [f"{value:g}" for value in figures["limit_violations"]],
            f"{figures['limit_violations'].sum():g}",
        ),
    ]
    table.add_column("clip", overflow="fold", footer="all")
    for heading, _, footer in columns:
        table.add_column(heading, justify="right", footer=footer)
    for row, motion in enumerate(motions):
        table.add_row(motion.name + (" !" if motion.name in doubtful else ""), *(values[row] for _, values, _ in columns))
    return table


def report_failures(failures: Sequence[Failure]) -> None:
    """Recordings left out, one line each, on stderr."""
    for failure in failures:
        print(f"npmp: left out: {described(failure)}", file=sys.stderr)


main = verb("retarget", run, out="file", torch=False, positional="source", devices=("cpu",))

if __name__ == "__main__":
    sys.exit(main(None))
