"""`npmp retarget`: recordings -> reference motions of a robot in one HDF5 dataset."""

from __future__ import annotations

import dataclasses
import glob
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from omegaconf import DictConfig, ListConfig
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import npmp
from experiments.common import Run, console, verb
from experiments.failures import one_line
from mocap_data import Clip, MotionSet, demo_clips, read, write_motions
from mocap_data.errors import InputError
from mocap_data.readers import READERS
from npmp import robots
from npmp.robots import Robot
from retarget import Options, retarget, retarget_many
from retarget.quality import overall_rms

SOLVER_KEYS = tuple(entry.name for entry in dataclasses.fields(Options))  # each a key of conf/retarget.yaml
QUALITY = ("rms_marker_m", "foot_slide_mps", "penetration_m", "limit_violations")
Failure = tuple[str, str]  # what failed, why


def run(config: DictConfig, run: Run) -> int:
    """Read, retarget, write, and show what came out. Fails when nothing succeeded, or with strict=true at the first failure."""
    terminal, begin = console(), time.perf_counter()
    robot = robots.load(config.robot.name)
    clips, failures = read_clips(config)
    motion_set, more = retarget_clips(clips, robot, solver_options(config))
    failures += more
    if failures and config.strict:
        raise InputError(f"{described(failures[0])} (strict=true: nothing was written)")
    provenance = {
        "npmp": npmp.__version__,
        "source": str(config.source),
        "frames": f"{config.start}:{'' if config.stop is None else config.stop}",
        **{key: str(value) for key, value in solver_options(config).items()},
    }
    write_motions(run.place, dataclasses.replace(motion_set, provenance=provenance))
    terminal.print(table_of(motion_set))
    frames = sum(clip.num_frames for clip in clips)
    seconds = time.perf_counter() - begin
    terminal.print(
        f"{len(motion_set.motions)} motions of {robot.name}, {frames} frames in {seconds:.1f} s "
        f"({frames / seconds:,.0f} frames/s with reading and writing): {run.out}",
        highlight=False,
        soft_wrap=True,
    )
    report_failures(failures)
    return 0


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

    @property
    def suffix(self) -> str:
        """What tells this stretch from others of the same file: "_800_1400", or nothing for a whole file."""
        return "" if not self.start and self.stop is None else f"_{self.start}_{'end' if self.stop is None else self.stop}"


def recordings(source: Any, start: int, stop: int | None) -> list[Recording]:
    """Like `sources`, where an entry may end in "@START:STOP" to use those frames only; the others take start and stop.

    Raises InputError where nothing is found.
    """
    if isinstance(source, ListConfig | list | tuple):
        return [recording for entry in source for recording in recordings(entry, start, stop)]
    if stretch := re.fullmatch(r"(.+)@(\d*):(\d*)", str(source)):
        first, last = int(stretch[2] or 0), int(stretch[3]) if stretch[3] else None
        return [Recording(path, first, last) for path in sources(stretch[1])]
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
    failures: list[Failure] = []
    found: list[tuple[str, Clip, Recording]] = []
    if str(config.source) == "synthetic":
        found = [(clip.name, clip, Recording(Path(clip.name), config.start, config.stop)) for clip in demo_clips()]
    else:
        options = {"scale": config.scale, "up": config.up, "licence": config.licence, "rate_hz": config.source_rate_hz}
        given = {key: value for key, value in options.items() if value is not None}
        for recording in recordings(config.source, config.start, config.stop):
            try:
                found.append((str(recording.path), read(recording.path, **given), recording))
            except (InputError, OSError) as error:
                failures.append((str(recording.path), one_line(error)))
    clips: list[Clip] = []
    taken: set[str] = set()
    for label, clip, recording in found:
        try:
            if recording.suffix:
                stop = None if recording.stop is None else min(recording.stop, clip.num_frames)
                clip = clip.crop(recording.start, stop)
        except InputError as error:
            failures.append((label, one_line(error)))
            continue
        base = clip.name + recording.suffix
        name, count = base, 2
        while name in taken:  # the same file name in two folders
            name, count = f"{base}_{count}", count + 1
        taken.add(name)
        clips.append(dataclasses.replace(clip, name=name))
    if not clips:
        report_failures(failures[1:])
        raise InputError(described(failures[0]))
    return clips, failures


def retarget_clips(
    clips: Sequence[Clip], robot: Robot, options: dict[str, Any], *, quiet: bool = False
) -> tuple[MotionSet, list[Failure]]:
    """All clips that fit the robot as motions, behind a progress bar, and those that do not.

    Raises InputError where none does.
    """
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
                    retarget(clip, robot, rounds=0, iterations=1)
                    good.append(clip)
                except InputError as error:
                    failures.append((clip.name, one_line(error)))
            if not failures or not good:
                raise
            return retarget_many(good, robot, progress=tell, **options), failures


def table_of(motion_set: MotionSet) -> Table:
    """Clips and their quality figures; the last row sums up (marker errors by root mean square over frames)."""
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
        table.add_row(motion.name, *(values[row] for _, values, _ in columns))
    return table


def report_failures(failures: Sequence[Failure]) -> None:
    """Recordings left out, one line each, on stderr."""
    for failure in failures:
        print(f"npmp: left out: {described(failure)}", file=sys.stderr)


main = verb("retarget", run, out="file", torch=False, devices=("cpu",))

if __name__ == "__main__":
    sys.exit(main(None))
