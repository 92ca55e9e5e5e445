"""`npmp retarget`: recordings -> a dataset of reference motions of a robot, and a report."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.progress import MofNCompleteColumn
from rich.table import Table

from mocap_data import MotionSet, store, write_motions
from mocap_data.errors import InputError, counted
from npmp import robots
from npmp.core import ranges
from npmp.experiments.command import Run, Verb, provenance_of
from npmp.experiments.recordings import SYNTHETIC, Reading, gather, refuse_nothing, report_failures
from npmp.experiments.terminal import console, progress_bar, say, table, warn
from npmp.robots import Robot
from retarget import CleanOptions, Options, dataset
from retarget.cleaning import Cleaned
from retarget.generated_ground import KINDS, require_lengths
from retarget.motion_summary import LEGEND, LEGEND_OF_MARKS, is_marked, summary_table
from retarget.sources import GENERATED, RATE_KEY, Recordings, assumptions, excerpts, failure_line

AUTO = "auto"
# style of the tables
LOOK: dict[str, Any] = {
    "title_justify": "left",
    "box": box.SIMPLE_HEAD,
    "padding": 0,
    "pad_edge": False,
}


@dataclass(frozen=True, kw_only=True)
class Retarget(Reading, Options, CleanOptions):
    """Retarget recordings (BVH, ASF/AMC, C3D, keypoints, DeepMimic, dm_control HDF5, motions of
    robots) to a robot.

    npmp retarget robot=anymal_b source=recordings/dog out=motions.h5
    npmp retarget source=recordings/dog mirrors=all validation=0.1 out=motions.h5
    npmp retarget source='[a.bvh@800:1400,b.bvh@0:600]' out=two.h5
    npmp retarget robot=op3 source=recordings/cmu out=people.h5
    npmp retarget robot=unitree_go2 source=gaits stairs=[0.05,0.1] out=stairs.h5
    npmp retarget out=motions.h5
    """

    # a robot: its name, or the folder of its robot.yaml (npmp robots list)
    robot: str = "anymal_b"
    # a file, a folder, a glob or a list [a,b] of them, each with frames as FILE@START:STOP;
    # synthetic: generated dog gaits; gaits: more of them, to learn a module from
    source: str | list[str] = SYNTHETIC
    # the dataset to write; it replaces a dataset in one step, and no other file
    out: Path | None = Path("motions.h5")
    # the HTML report; auto: beside the dataset, OUT.html; null or false: none
    report: bool | str | None = AUTO
    # first frame of every recording
    start: int = 0
    # frame after the last; null, or beyond the end: the recording's end
    stop: int | None = None
    # licence of the recordings, kept in the dataset; null: unknown (synthetic gaits: their own)
    licence: str | None = None
    # true: if a recording fails, the command fails and writes nothing
    strict: bool = False
    # metres per unit of the recording, or the unit: m, cm, mm, in, ft; null: the file's (AMC, C3D),
    # 0.01 for BVH, else 1
    scale: float | str | None = None
    # the recording's upward axis: x, y, z, or -x, -y, -z for one that points down; null: the file's
    # (C3D), else y
    up: str | None = None
    # false: write whole recordings without cleaning
    clean: bool = True
    # [lowest, highest] riser [m]: walks and trots are also laid over stairs; null: they are not
    stairs: list[float] | None = None
    # [narrowest, widest] gap [m], in steps of 0.05: walks and trots are also laid over gaps; null:
    # they are not
    gaps: list[float] | None = None
    # how often each walk or trot is laid over stairs and over gaps, each time over different ones
    ground_rounds: int = 1

    def __post_init__(self) -> None:
        ranges.not_negative(self, "start")
        ranges.at_least_one(self, "ground_rounds")
        for kind, lengths in self.grounds.items():
            require_lengths(kind, lengths)
            if not self.clean:
                raise InputError(f"{kind}= needs clean=true, which drops steps out of reach")
        if not self.source:
            raise InputError("source=[]: expected a file, a folder or a glob")
        Reading.__post_init__(self)
        Options.__post_init__(self)
        CleanOptions.__post_init__(self)

    @property
    def grounds(self) -> dict[str, list[float]]:
        """The kinds of generated ground, which are keys of their names, with their least and
        largest length [m]."""
        lengths_m = {kind: getattr(self, kind) for kind in KINDS}
        return {kind: lengths for kind, lengths in lengths_m.items() if lengths is not None}


def run(config: Retarget, run: Run) -> None:
    """Read, retarget, clean and write; print the result."""
    begin = time.perf_counter()
    selection = config.source, config.start, config.stop
    sources = () if str(config.source) in GENERATED else excerpts(*selection)
    store.check_replaceable(run.folder, [source.path for source in sources])
    page = report_path(config.report, run.folder)
    robot = robots.load(config.robot)
    gathered = gather(*selection, robot, config)
    if config.scale is None:
        gathered = dataset.of_plausible_size(gathered)
        refuse_nothing(gathered.clips or gathered.motions, gathered.failures)
    retargeted = retarget_recordings(gathered, robot, config)
    whole = retargeted.motions
    failures = retargeted.failures
    assert whole is not None  # for the type checker
    clips = {clip.name: clip for clip in gathered.clips}
    warnings = retargeted.motion_warnings(cleaned=config.clean)
    # warnings about a rate mention that it is assumed
    warned = [name for name, warning in warnings.items() if "rate?" in warning]
    assumed = assumptions(gathered.origins.values(), without_rate=warned)
    cleaning = part_of(config, CleanOptions) if config.clean else None
    cleaned = dataset.clean_recordings(
        whole, robot, gathered, cleaning, config.grounds, config.ground_rounds
    )
    if not cleaned.motions.motions:
        show_warnings(warnings)
        report_failures(failures)
        raise dataset.nothing_kept(whole, cleaned)
    failures += [
        (name, f"{name}: nothing kept ({reasons})")
        for name, reasons in dataset.dropped_recordings(whole, cleaned).items()
    ]
    settings = provenance_settings(config, warnings)
    cleaned = dataset.with_provenance(cleaned, gathered, failures, settings)
    motion_set = cleaned.motions
    write_motions(run.folder, motion_set)
    show(cleaned, warnings, config.clean)
    say(*(f"assumed: {line}" for line in assumed if not line.startswith(RATE_KEY)))
    frames = sum(clips.get(m.name, m).num_frames for m in whole.motions)
    seconds = time.perf_counter() - begin
    say(
        f"{counted(len(motion_set.motions), 'motion')} of {robot.name} from "
        f"{counted(frames, 'frame')} in {seconds:.1f} s "
        f"({frames / seconds:,.0f} frames/s with reading and writing): {run.out}"
    )
    if page is not None:
        from npmp.view.report import retarget_page

        report = retarget_page.RetargetReport(
            robot=robot,
            whole=whole,
            cleaned=cleaned,
            clips=clips,
            warnings=warnings,
            assumed=assumed,
            failures=[failure_line(failure) for failure in failures],
            seconds=seconds,
            provenance=provenance_of(run, seed=False) | {"dataset": str(run.out)},
        )
        retarget_page.build(page, report)
        say(f"report: {page}")
    # warnings follow the table, also if both streams are merged
    sys.stdout.flush()
    show_warnings(warnings, assumed)
    report_failures(failures)


def provenance_settings(config: Retarget, warnings: Mapping[str, str]) -> dict[str, Any]:
    """The settings and warnings that a dataset records."""
    settings = {"source": config.source, **part_of(config, Options)}
    if config.grounds:
        settings |= {**config.grounds, "ground_rounds": config.ground_rounds}
    if warnings:
        settings["warnings"] = json.dumps(warnings)
    return settings


def show_warnings(warnings: Mapping[str, str], assumed: Sequence[str] = ()) -> None:
    """Print a line on stderr for each suspicious motion and each assumed rate."""
    for name, why in warnings.items():
        warn(f"warning: {name} {why}")
    for line in assumed:
        if line.startswith(RATE_KEY):
            warn(f"warning: assumed: {line}")


def report_path(chosen: bool | str | None, out: Path) -> Path | None:
    """The report's file: beside the dataset, of report=, or None.

    Raises:
      InputError: for a folder, or an existing file that is not a report of npmp.
    """
    if chosen is None or chosen is False:
        return None
    from npmp.view.report import check_replaceable

    page = out.with_suffix(".html") if chosen in (True, AUTO) else Path(str(chosen)).expanduser()
    check_replaceable(page, "report")
    return page


def part_of(config: Retarget, settings: type[Options] | type[CleanOptions]) -> dict[str, Any]:
    """The keys that are settings of the library."""
    return {entry.name: getattr(config, entry.name) for entry in dataclasses.fields(settings)}


def retarget_recordings(gathered: Recordings, robot: Robot, config: Retarget) -> dataset.Retargeted:
    """`retarget.dataset.retarget_recordings` behind a progress bar. Raises InputError if all
    recordings fail, with strict=true if any does."""
    with progress_bar(MofNCompleteColumn()) as bar:
        task = bar.add_task("marker offsets", total=len(gathered.clips))

        def tell(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=f"poses {name}"[:40])

        options = part_of(config, Options)
        retargeted = dataset.retarget_recordings(gathered, robot, options, tell)
    refuse_nothing(retargeted.motions, retargeted.failures)
    if retargeted.failures and config.strict:
        first = failure_line(retargeted.failures[0])
        raise InputError(f"{first} (nothing was written, as strict=true)")
    return retargeted


def table_of(motion_set: MotionSet, warnings: Mapping[str, str]) -> Table:
    """As `summary_table`."""
    summary = summary_table(motion_set, warnings)
    result = Table(title=summary.title, **LOOK)
    result.add_column("clip", overflow="fold", ratio=1, min_width=14)
    for heading in summary.headings:
        result.add_column(heading, justify="right", no_wrap=True)
    for row in summary.rows:
        result.add_row(*row)
    result.add_section()
    for row in summary.medians:
        result.add_row(*row, style="bold" if row is summary.medians[-1] else None)
    return result


def dropped_table(cleaned: Cleaned) -> Table:
    """Seconds by reason."""
    columns = ("reason", "s", "%", "stretches", "recordings")
    rows = []
    for row in cleaned.losses:
        share = f"{100 * row.share:.1f}"
        counts = (str(row.stretches), str(row.recordings))
        rows.append((row.reason, f"{row.seconds:.1f}", share, *counts))
    return table(columns, rows, right=columns[1:], title="dropped", **LOOK)


def show(cleaned: Cleaned, warnings: Mapping[str, str], was_cleaned: bool) -> None:
    """Print the tables."""
    terminal = console()
    terminal.print(table_of(cleaned.motions, warnings))
    terminal.print(LEGEND, style="dim", highlight=False)
    if any(is_marked(motion, warnings) for motion in cleaned.motions.motions):
        terminal.print(LEGEND_OF_MARKS, style="dim", highlight=False)
    if was_cleaned:
        if cleaned.dropped:
            terminal.print(dropped_table(cleaned))
        if cleaned.collisions:
            say(f"self-collision: {cleaned.worst_collisions}")
        say(cleaned.summary())


main = Verb(
    "retarget", Retarget, run, out="file", torch=False, positional=("source",), devices=("cpu",)
)
