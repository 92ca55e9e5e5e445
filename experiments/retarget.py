"""`npmp retarget`: recordings -> reference motions of a robot in one HDF5 dataset, cleaned and judged, and a report."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from omegaconf import DictConfig, OmegaConf
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import npmp
from experiments.common import Run, at_least, console, one_of, verb
from experiments.failures import one_line
from experiments.recordings import (
    SYNTHETIC,
    Failure,
    Gathered,
    Origin,
    counted,
    described,
    gather,
    recordings,
    report_failures,
)
from mocap_data import Clip, MotionSet, ReferenceMotion, write_motions
from mocap_data.errors import InputError
from mocap_data.sanity import doubts as implausible
from mocap_data.sanity import wrong_size
from mocap_data.store import SCHEMA
from npmp import robots
from npmp.robots import Robot
from retarget import Cleaned, CleanOptions, Dropped, Judge, Options, clean, cleaning, retarget, retarget_many
from retarget.gaits import SPEEDS, TURN, kinds_of
from retarget.joint_map import JointOptions, Mapper, has_joints, read_person
from retarget.quality import BAD, overall_rms, trouble
from retarget.split import recording_of

SOLVER_KEYS = tuple(entry.name for entry in dataclasses.fields(Options))  # each a key of conf/retarget.yaml
CLEAN_KEYS = tuple(entry.name for entry in dataclasses.fields(CleanOptions))
# Of each reason to drop something the key that decides on it.
KEY_OF = {
    cleaning.POSITION: "position_limits", cleaning.VELOCITY: "velocity_limits", cleaning.FEET_FAR: "feet_far_m",
    cleaning.STANDING: "standing_s", cleaning.ERROR: "max_error_m", cleaning.SELF_COLLISION: "self_collision_m",
    cleaning.LYING: "body_penetration_m", cleaning.SHORT: "min_chunk_s",
}  # fmt: skip
METHODS = ("points", "joints")
KINDS = (*(name for name, _ in SPEEDS), TURN)
AUTO = "auto"
ROWS = 25  # of the table on the terminal; with more motions it shows the worst
WORST = 12
PER_RECORDING = 2  # of the worst: chunks of one recording often share what is wrong with it
DOUBTFUL_RMS = 0.05  # [m] a walking dog stays near 2 cm; one that sits or lies, which no robot can, reaches 10 cm
WRONG = "looks wrong"  # how a doubt begins that a recording was misread
MISREAD_RMS = 0.12  # [m] beyond any pose that was read rightly; a dog read with the wrong axis up gives 15 cm


def run(config: DictConfig, run: Run) -> int:
    """Read, retarget, clean, write, and show what came out.

    Fails when nothing is left, or with strict=true at the first failure.
    """
    terminal, begin = console(), time.perf_counter()
    at_least(config, rounds=1, iterations=1, start=0, replays=0)
    one_of(config, "method", *METHODS)
    options, filters = solver_options(config), clean_options(config)
    joint_options(config)
    synthetic = str(config.source) == SYNTHETIC
    files = [] if synthetic else [entry.path for entry in recordings(config.source, config.start, config.stop)]
    check_out(run.place, files)
    page = report_place(config.report, run.place)
    robot = robots.load(config.robot.name)
    gathered = gather(config, robot)
    if config.method == "points":
        if config.scale is None:
            gathered = of_plausible_size(gathered)
        whole, more = motions_of(
            gathered, robot, lambda: retarget_clips(gathered.clips, robot, options, files=gathered.files)
        )
    else:
        whole, more = motions_of(
            gathered, robot, lambda: retarget_by_joints(gathered, robot, joint_options(config), config.asf)
        )
    failures = [*gathered.failures, *more]
    if failures and config.strict:
        raise InputError(f"{described(failures[0])} (strict=true: nothing was written)")
    clips = {clip.name: clip for clip in gathered.clips}
    doubtful = {
        motion.name: why
        for motion in whole.motions
        if (why := doubts(motion, clips.get(motion.name), cleaned=config.clean))
    }
    source_of = {name: f"{origin.file}: {gathered.entries[name]}" for name, origin in gathered.origins.items()}
    cleaned = clean(whole, robot, origins=source_of, **filters) if config.clean else uncleaned(whole)
    if not cleaned.motions.motions:
        warn(doubtful)
        report_failures(failures)
        gone = ", ".join(f"{reason} {s:.1f} s ({KEY_OF[reason]}=)" for reason, s in cleaned.dropped_s.items())
        raise InputError(
            f"cleaning leaves nothing of {counted(len(whole.motions), 'recording')}: {gone}; clean=false keeps all"
        )
    failures += emptied(whole, cleaned)
    motion_set = dataclasses.replace(
        cleaned.motions,
        provenance=provenance_of(cleaned, config, [gathered.origins[name] for name in whole.names], options, failures),
    )
    cleaned = dataclasses.replace(cleaned, motions=motion_set)
    write_motions(run.place, motion_set)
    show(terminal, cleaned, doubtful, config.clean)
    frames = sum(clips[m.name].num_frames if m.name in clips else m.num_frames for m in whole.motions)
    seconds = time.perf_counter() - begin
    terminal.print(
        f"{counted(len(motion_set.motions), 'motion')} of {robot.name} from {counted(frames, 'frame')} in {seconds:.1f} s "
        f"({frames / seconds:,.0f} frames/s with reading and writing): {run.out}",
        highlight=False,
        soft_wrap=True,
    )
    if page is not None:
        write_report(page, robot, whole, cleaned, clips, doubtful, failures, seconds, run, config)
        terminal.print(f"report: {page}", highlight=False, soft_wrap=True)
    sys.stdout.flush()  # the warnings belong after the table, also where both streams go to one place
    warn(doubtful)
    report_failures(failures)
    return 0


def warn(doubtful: Mapping[str, str]) -> None:
    """A line on stderr for each motion that looks wrong or needs a look."""
    for name, why in doubtful.items():
        print(f"npmp: warning: {name} {why}", file=sys.stderr)


# --- where things go ---


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


def report_place(chosen: Any, out: Path) -> Path | None:
    """Where the report goes: beside the dataset, where report= says, or nowhere.

    Raises InputError for a folder, or a file that is no report of ours, which is not replaced.
    """
    if chosen is None:
        return None
    from experiments.report import is_report

    place = out.with_suffix(".html") if str(chosen) == AUTO else Path(str(chosen)).expanduser()
    if place.is_dir():
        raise InputError(f"report={place} is a folder; a file name is expected, or null for no report")
    if place.exists() and not is_report(place):
        raise InputError(
            f"report={place} exists and is no report of npmp, so it is not replaced; name another file, or null"
        )
    if not place.parent.is_dir():
        raise InputError(f"report={place}: there is no folder {place.parent}")
    return place


# --- settings ---


def solver_options(config: DictConfig) -> dict[str, Any]:
    """What the configuration says about the solver, for `retarget_many`. Raises InputError for a value that makes no
    sense."""
    chosen = {key: _plain(config[key]) for key in SOLVER_KEYS if key in config}
    Options(**chosen)  # a bad option is no clip's fault: say so before any is looked at
    return chosen


def clean_options(config: DictConfig) -> dict[str, Any]:
    """What the configuration says about cleaning, for `clean`. Raises InputError for a value that makes no sense."""
    chosen = {key: _plain(config[key]) for key in CLEAN_KEYS if key in config}
    CleanOptions(**chosen)
    return chosen


def joint_options(config: DictConfig) -> dict[str, Any]:
    """What the configuration says about people's joints. Raises InputError for a value that makes no sense."""
    chosen = {
        "rate_hz": config.rate_hz,
        "time_scale": config.time_scale,
        "cutoff_hz": config.marker_cutoff_hz,
        "root_cutoff_hz": config.root_cutoff_hz,
        "hold_feet": config.plant_feet,
        "joint_speed_share": config.joint_speed_share,
    }
    JointOptions.given(chosen)
    return chosen


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


# --- retargeting ---


def read_clips(config: DictConfig) -> tuple[list[Clip], list[Failure]]:
    """The clips of source=, cropped and with unique names, and the recordings that could not be read.

    Raises InputError where none could be.
    """
    gathered = gather(config, robots.load(config.robot.name))
    return gathered.clips, gathered.failures


def of_plausible_size(gathered: Gathered) -> Gathered:
    """What was gathered without the clips whose size says that their units were read wrongly; those are failures.

    scale_body=auto would scale a dog of 90 m to the robot's size, and nobody would see it in the dataset. Who gives
    scale= has said what the units are; such a clip is warned of and kept. Raises InputError where nothing remains.
    """
    apart = [
        clip for clip in gathered.clips if np.ptp(clip.positions, axis=1).any()
    ]  # keypoints all at one place have no size
    wrong = {clip.name: why for clip in apart if (why := wrong_size(clip))}
    said = {name: f"{name} {why}; its units look wrong, and scale= is not given" for name, why in wrong.items()}
    failures = [(gathered.files[name], text) for name, text in said.items()]
    left = gathered._replace(
        clips=[clip for clip in gathered.clips if clip.name not in wrong], failures=[*gathered.failures, *failures]
    )
    if not (left.clips or left.motions):
        report_failures(left.failures[1:])
        raise InputError(described(left.failures[0]))
    return left


def motions_of(
    gathered: Gathered, robot: Robot, retargeted: Callable[[], tuple[MotionSet, list[Failure]]]
) -> tuple[MotionSet, list[Failure]]:
    """All that was gathered as whole motions of the robot, in order, and what could not be.

    retargeted: gives those of the clips. Raises InputError where nothing fits.
    """
    sets: list[MotionSet] = []
    failures: list[Failure] = []
    if gathered.clips:
        try:
            found, failures = retargeted()
            sets.append(found)
        except InputError as error:
            if not gathered.motions:
                raise
            failures = [(gathered.clips[0].name, one_line(error))]
    if gathered.motions:
        judge = Judge(robot)
        judged = tuple(judge.judged(motion) for motion in gathered.motions)
        sets.append(set_of(robot, judged, {"method": "as it came"}))
    return merged(sets, gathered.origins), failures


def set_of(robot: Robot, motions: Sequence[ReferenceMotion], provenance: Mapping[str, str]) -> MotionSet:
    """Motions of the robot as a set."""
    return MotionSet(robot.name, robot.model_sha256, robot.joint_names, robot.body_names, tuple(motions), provenance)


def retarget_by_joints(
    gathered: Gathered, robot: Robot, options: Mapping[str, Any], asf: str | None = None
) -> tuple[MotionSet, list[Failure]]:
    """People's joint angles carried over to OP3, behind a progress bar, and the recordings that could not be.

    Raises InputError for a robot without OP3's joints, or where nothing fits.
    """
    mapper = Mapper(robot, JointOptions.given(options))
    motions, failures = [], []
    with progress_bar() as progress:
        for clip in progress.track(gathered.clips, description="joints"):
            origin = gathered.origins[clip.name]
            path, (start, stop) = Path(origin.file), origin.frames
            try:
                if not has_joints(path):
                    raise InputError(f"{path} holds no joint angles (AMC and dm_control's HDF5 do); use method=points")
                entry = None if path.suffix.lower() == ".amc" else gathered.entries[clip.name]
                person = read_person(
                    path, clip=entry, asf=asf, name=clip.name, start=start, stop=stop, licence=clip.licence
                )
                motions.append(mapper.motion(person))
            except InputError as error:
                failures.append((origin.file, one_line(error)))
    if not motions:
        report_failures(failures[1:])
        raise InputError(described(failures[0]))
    return set_of(robot, motions, mapper.provenance), failures


def progress_bar(*, quiet: bool = False) -> Progress:
    """A bar on a terminal that goes when it is done, nothing elsewhere."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )


def retarget_clips(
    clips: Sequence[Clip],
    robot: Robot,
    options: dict[str, Any],
    *,
    quiet: bool = False,
    files: Mapping[str, str] | None = None,
) -> tuple[MotionSet, list[Failure]]:
    """All clips that fit the robot as motions, behind a progress bar, and those that do not.

    Clips that look misread (units, axis) go by themselves, so that they do not spoil the marker offsets that the others
    share.
    files: of clips by name, for messages. Raises InputError where none fits.
    """
    apart = {clip.name for clip in clips if misread(clip)}
    both = [[clip for clip in clips if (clip.name in apart) == misread_ones] for misread_ones in (False, True)]
    groups = [group for group in both if group]
    sets, failures = [], []
    for group in groups:
        try:
            found, more = _retarget_group(group, robot, options, quiet=quiet, files=files or {})
            sets.append(found)
            failures += more
        except InputError as error:
            if len(groups) == 1:
                raise
            failures.append(((files or {}).get(group[0].name, group[0].name), one_line(error)))
    if not sets:
        report_failures(failures[1:])
        raise InputError(described(failures[0]))
    return merged(sets, [clip.name for clip in clips]), failures


def _retarget_group(
    clips: Sequence[Clip], robot: Robot, options: dict[str, Any], *, quiet: bool, files: Mapping[str, str]
) -> tuple[MotionSet, list[Failure]]:
    failures: list[Failure] = []
    with progress_bar(quiet=quiet) as progress:
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
                    failures.append((files.get(clip.name, clip.name), one_line(error)))
            if not failures:
                raise
            if not good:
                report_failures(failures[1:])
                raise InputError(described(failures[0])) from None
            return retarget_many(good, robot, progress=tell, **options), failures


def merged(sets: Sequence[MotionSet], order: Sequence[str] | Mapping[str, Any]) -> MotionSet:
    """The motions of several sets of one robot, in the order of their names. What their provenances share is kept;
    where they differ, all values are."""
    if len(sets) == 1:
        return sets[0]
    place = {name: i for i, name in enumerate(order)}
    motions = sorted((motion for entry in sets for motion in entry.motions), key=lambda motion: place[motion.name])
    keys = dict.fromkeys(key for entry in sets for key in entry.provenance)
    values = {
        key: list(dict.fromkeys(entry.provenance[key] for entry in sets if key in entry.provenance)) for key in keys
    }
    provenance = {key: found[0] if len(found) == 1 else json.dumps(found) for key, found in values.items()}
    return dataclasses.replace(sets[0], motions=tuple(motions), provenance=provenance)


def uncleaned(motion_set: MotionSet) -> Cleaned:
    """A set as it is, every figure in place."""
    seconds = sum(motion.duration_s for motion in motion_set.motions)
    return Cleaned(motion_set, (), seconds, seconds)


def emptied(whole: MotionSet, cleaned: Cleaned) -> list[Failure]:
    """The recordings of which cleaning left nothing, with the seconds that each reason took."""
    kept = {recording_of(motion) for motion in cleaned.motions.motions}
    gone: defaultdict[str, list[Dropped]] = defaultdict(list)
    for entry in cleaned.dropped:
        gone[entry.recording].append(entry)
    found = []
    for name in dict.fromkeys(recording_of(motion) for motion in whole.motions):
        if name not in kept:
            seconds = dataclasses.replace(cleaned, dropped=tuple(gone[name])).dropped_s
            reasons = ", ".join(f"{reason} {s:.1f} s" for reason, s in seconds.items())
            found.append((name, f"{name}: nothing kept ({reasons})"))
    return found


def provenance_of(
    cleaned: Cleaned,
    config: DictConfig,
    origins: Sequence[Origin],
    options: Mapping[str, Any],
    failures: Sequence[Failure],
) -> dict[str, str]:
    """How the dataset was made, as texts."""
    kept = {motion.recording or motion.name for motion in cleaned.motions.motions}
    return {
        **cleaned.motions.provenance,
        "npmp": npmp.__version__,
        "source": str(config.source),
        "recordings": json.dumps([dataclasses.asdict(origin) for origin in origins if origin.clip in kept]),
        **{key: str(value) for key, value in options.items()},
        "rate_hz": str(cleaned.motions.motions[0].rate_hz),
        "seconds": json.dumps({"read": round(cleaned.seconds_in, 3), "kept": round(cleaned.seconds_kept, 3)}),
        "dropped": json.dumps([dataclasses.asdict(entry) for entry in cleaned.dropped]),
        "failures": json.dumps([described(failure) for failure in failures]),
    }


# --- judging ---


def misread(clip: Clip) -> bool:
    """Whether a clip looks as if its units or axes were read wrongly."""
    return any(hint in doubt for doubt in implausible(clip) for hint in ("units?", "upside down", "up or down"))


def doubts(motion: ReferenceMotion, clip: Clip | None, *, cleaned: bool = False) -> str:
    """What makes a motion look misread, "looks wrong: RMS 864 cm (units? ...)", or hard for the robot; or nothing.

    cleaned: what is merely hard for the robot is dropped, and listed there.
    """
    error = motion.quality.get("rms_marker_m", 0.0)
    violations = motion.quality.get("limit_violations", 0.0) + motion.quality.get("velocity_violations", 0.0)
    found = [] if clip is None else implausible(clip)
    if error <= MISREAD_RMS:  # then one that lies is one that lies, and no axis was mixed up
        found = [doubt for doubt in found if not doubt.startswith("lies")]
    wrong = any(hint in doubt for doubt in found for hint in ("units?", "axis?", "rate?"))
    if error > MISREAD_RMS or (error > DOUBTFUL_RMS and not cleaned):
        wrong |= error > MISREAD_RMS
        hint = (
            "units? scale=; axis? up=" if error > MISREAD_RMS else "sitting or lying? else units, scale=, or axis, up="
        )
        found.insert(0, f"RMS {100 * error:.3g} cm ({hint})")
    if violations > 0 and not cleaned:
        found.append(
            f"{counted(int(violations), 'limit violation')} (too fast for the robot? else rate, source_rate_hz=)"
        )
    return f"{WRONG if wrong else 'needs a look'}: {'; '.join(found)}" if found else ""


# Of each column of the table: heading, key, factor, decimals, how motions are summed up in the last row.
COLUMNS: tuple[tuple[str, str, float, int, str], ...] = (
    ("RMS\ncm", "rms_marker_m", 100.0, 2, "rms"),
    ("max\ncm", "max_marker_m", 100.0, 1, "max"),
    ("slide\ncm/s", "foot_slide_mps", 100.0, 2, "mean"),
    ("slid\n%", "foot_slide_share", 100.0, 1, "mean"),
    ("sunk\nmm", "penetration_p99_m", 1000.0, 1, "max"),
    ("float\nmm", "float_m", 1000.0, 1, "max"),
    ("over\nlimit", "violations", 1.0, 0, "sum"),
    ("self\n%", "self_collision_share", 100.0, 1, "mean"),
    ("jerk\nrad/s3", "jerk_rms", 1.0, 0, "mean"),
    ("legs\ndeg", "leg_orientation_deg", 1.0, 1, "mean"),
)  # fmt: skip
LEGEND = (
    "Marker error, root mean square and largest; foot slide in stance and its share of steps above 5 cm/s; foot below the floor "
    "and above it in stance, 99th percentiles; joints beyond position or velocity limits; self-collision; joint jerk."
)
_BAD_FIGURES = ", ".join(
    f"{heading.split()[0]} {factor * BAD[key]:g} {heading.split()[1]}"
    for heading, key, factor, *_ in COLUMNS
    if key in BAD
)
LEGEND_OF_MARKS = (
    f"! marks a recording that looks misread, or figures that are bad: {_BAD_FIGURES} or more; anything over a limit; "
    f"{100 * BAD['stance_lost_share']:g} % of stances lost; {1000 * BAD['body_penetration_m']:g} mm of the body in the ground."
)


def figure_of(motion: ReferenceMotion, key: str) -> float:
    """A column's figure of a motion, NaN where it has none."""
    if key == "violations":
        return motion.quality.get("limit_violations", 0.0) + motion.quality.get("velocity_violations", 0.0)
    return motion.quality.get(key, float("nan"))


def summed_up(motions: Sequence[ReferenceMotion], key: str, how: str) -> float:
    """A column's figure over all motions: marker errors by root mean square over frames, means weighted by time."""
    if how == "rms":
        return overall_rms(motions)
    values = np.array([figure_of(motion, key) for motion in motions])
    known = np.isfinite(values)
    if not known.any():
        return float("nan")
    if how == "mean":
        return float(np.average(values[known], weights=np.array([motion.duration_s for motion in motions])[known]))
    return float(values[known].max() if how == "max" else values[known].sum())


def table_of(motion_set: MotionSet, doubtful: Mapping[str, str] | None = None) -> Table:
    """Motions and their figures, the worst of them where there are many; then medians, by kind of movement too, and all
    together.

    Mirrors have the figures of what they mirror and are left out. doubtful: what speaks against a motion, by name or
    recording (`is_marked`).
    """
    originals = [motion for motion in motion_set.motions if not motion.mirror]
    motions = originals or list(motion_set.motions)
    shown = motions
    title = f"motions of {motion_set.robot}"
    if len(motions) > ROWS:
        shown = worst(motions)
        title += f": the worst {len(shown)} of {len(motions)}, at most {PER_RECORDING} of a recording"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("clip", overflow="fold", ratio=1, min_width=14)
    columns = [column for column in COLUMNS if any(np.isfinite(figure_of(motion, column[1])) for motion in motions)]
    for heading in ("s", *(heading for heading, *_ in columns)):
        table.add_column(heading, justify="right", no_wrap=True)

    def text(value: float, factor: float, decimals: int) -> str:
        return f"{factor * value:.{decimals}f}" if np.isfinite(value) else "-"

    for motion in shown:
        mark = " !" if is_marked(motion, doubtful or {}) else ""
        figures = (text(figure_of(motion, key), factor, decimals) for _, key, factor, decimals, _ in columns)
        table.add_row(motion.name + mark, f"{motion.duration_s:.1f}", *figures)
    if len(motions) > 1:
        table.add_section()
        for name, group in groups_of(motions).items():
            medians = (
                text(float(np.nanmedian([figure_of(motion, key) for motion in group])), factor, decimals)
                for _, key, factor, decimals, _ in columns
            )
            table.add_row(name, f"{np.median([motion.duration_s for motion in group]):.1f}", *medians)
        sums = (text(summed_up(motions, key, how), factor, decimals) for _, key, factor, decimals, how in columns)
        table.add_row("all", f"{sum(motion.duration_s for motion in motions):.1f}", *sums, style="bold")
    return table


def worst(motions: Sequence[ReferenceMotion]) -> list[ReferenceMotion]:
    """Up to `WORST` of the motions, the worst first, and of no recording more than `PER_RECORDING`."""
    found: list[ReferenceMotion] = []
    taken: Counter[str] = Counter()
    for motion in sorted(motions, key=lambda motion: -trouble(motion.quality)):
        if len(found) < WORST and taken[recording_of(motion)] < PER_RECORDING:
            found.append(motion)
            taken[recording_of(motion)] += 1
    return found


def is_marked(motion: ReferenceMotion, doubtful: Mapping[str, str]) -> bool:
    """Whether a motion gets a "!": a figure of its own is bad, or its recording looks misread.

    What else a recording is doubted for may be in the stretches of it that were dropped.
    """
    said = (doubtful.get(name, "") for name in (motion.name, recording_of(motion)))
    return trouble(motion.quality) >= 1.0 or any(why.startswith(WRONG) for why in said)


def groups_of(motions: Sequence[ReferenceMotion]) -> dict[str, list[ReferenceMotion]]:
    """Groups of motions to give medians of: all, and those of each kind of movement where there are several kinds."""
    groups = {"median": list(motions)}
    kinds = {kind: [motion for motion in motions if kind in kinds_of(motion)] for kind in KINDS}
    found = {f"  {kind} ({len(group)})": group for kind, group in kinds.items() if group}
    return groups | found if len(found) > 1 else groups


def dropped_table(cleaned: Cleaned) -> Table:
    """Seconds by reason."""
    table = Table(title="dropped", title_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("reason")
    for heading in ("s", "%", "stretches", "recordings"):
        table.add_column(heading, justify="right")
    for reason, seconds in cleaned.dropped_s.items():
        where = [entry.recording for entry in cleaned.dropped if entry.reason == reason]
        share = 100.0 * seconds / max(cleaned.seconds_in, 1e-9)
        table.add_row(reason, f"{seconds:.1f}", f"{share:.1f}", str(len(where)), str(len(set(where))))
    return table


def show(terminal: Any, cleaned: Cleaned, doubtful: Mapping[str, str], was_cleaned: bool) -> None:
    """The tables on the terminal."""
    terminal.print(table_of(cleaned.motions, doubtful))
    motions = cleaned.motions.motions
    terminal.print(LEGEND, style="dim", highlight=False)
    if any(is_marked(motion, doubtful) for motion in motions):
        terminal.print(LEGEND_OF_MARKS, style="dim", highlight=False)
    if was_cleaned:
        if cleaned.dropped:
            terminal.print(dropped_table(cleaned))
        chunks, mirrors = sum(not m.mirror for m in motions), sum(bool(m.mirror) for m in motions)
        lines = [f"kept {cleaned.seconds_kept:.1f} of {cleaned.seconds_in:.1f} s in {counted(chunks, 'chunk')}"]
        if mirrors:
            lines.append(f"{counted(mirrors, 'mirror image')} of them")
        held = sum(m.duration_s for m in motions if m.split == "validation")
        if held:
            lines.append(f"{held:.1f} s of all for validation")
        terminal.print(", ".join(lines), highlight=False, soft_wrap=True)


def write_report(
    page: Path,
    robot: Robot,
    whole: MotionSet,
    cleaned: Cleaned,
    clips: Mapping[str, Clip],
    doubtful: Mapping[str, str],
    failures: Sequence[Failure],
    seconds: float,
    run: Run,
    config: DictConfig,
) -> None:
    """The HTML report."""
    from experiments.report import command_line, machine_summary, retarget_page, versions

    retarget_page.build(
        page,
        retarget_page.RetargetReport(
            robot=robot,
            whole=whole,
            cleaned=cleaned,
            clips=clips,
            doubts=doubtful,
            failures=[described(failure) for failure in failures],
            seconds=seconds,
            replays=config.replays,
            provenance={
                "command": command_line(),
                "dataset": str(run.out),
                "versions": versions() | {"npmp": npmp.__version__},
                "machine": machine_summary(),
                "config": OmegaConf.to_container(config, resolve=True),
            },
        ),
    )


main = verb("retarget", run, out="file", torch=False, positional="source", devices=("cpu",))

if __name__ == "__main__":
    sys.exit(main(None))
