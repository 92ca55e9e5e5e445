"""`npmp data list | fetch NAME`: recordings from the network, with their licences."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import DownloadColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from mocap_data import catalog
from mocap_data.catalog import Entry, Report, Source
from mocap_data.download import Progress
from mocap_data.errors import InputError, one_line, printable
from npmp.experiments.command import Keys, Run, Verb
from npmp.experiments.terminal import USER_ERROR, progress_bar, say, show_table, warn

NOTES_SHOWN = 5  # largest number of listed files


@dataclass(frozen=True, kw_only=True)
class ListData(Keys):
    """List the available sets of recordings."""


@dataclass(frozen=True, kw_only=True)
class FetchData(Keys):
    """Fetch a set of recordings into the cache, checked by its hash; run again to resume.

    npmp data fetch cmu
    npmp data fetch dog accept_licence=true out=recordings/dog
    """

    # name of the set (npmp data list)
    target: str
    # also copy the recordings to this folder; null: they stay in the cache (NPMP_CACHE)
    out: Path | None = None
    # true: accept a licence with conditions; false: ask on a terminal
    accept_licence: bool = False


def show_list(config: ListData, run: Run) -> None:
    """Print a row per set: content, licence, size, whether it is in the cache."""
    rows = []
    for entry in catalog.entries().values():
        there, files = catalog.state_of(entry)
        state = "yes" if there == files else f"{there} of {files} files" if there else "no"
        rows.append((entry.name, entry.what, entry.licence, entry.megabytes, state))
    columns = ("name", "what", "licence", "MB", "in the cache")
    title = "recordings to fetch with npmp data fetch NAME"
    show_table(columns, rows, right=("MB",), title=title, title_justify="left")
    say(f"cache: {catalog.cache_folder() / 'data'} (NPMP_CACHE changes it)")


def fetch_set(config: FetchData, run: Run) -> int:
    """Fetch a set: print its licence, ask for acceptance, download missing files, copy to out=.
    Returns 2 if a file failed."""
    entry = catalog.entry(config.target)
    say(
        f"{entry.name}: {entry.what}",
        f"licence: {entry.licence}, {entry.licence_url}",
        f"credit: {entry.credit}",
    )
    if entry.non_commercial:
        licence = f"{entry.licence}, {entry.licence_url}"
        accept(entry.name, licence, accepted=config.accept_licence)
    run.begin()
    with progress_bar(DownloadColumn(), TransferSpeedColumn()) as bar:
        report = catalog.fetch(entry, progress=lambda source: progress_of(bar, source))
    return tell(entry, report, run)


def accept(name: str, licence: str, *, accepted: bool) -> None:
    """Require acceptance of a licence: accept_licence=true, or "yes" in the terminal.

    Raises:
      InputError: for a licence that is not accepted.
    """
    if accepted:
        return
    if sys.stdin.isatty() and sys.stderr.isatty():
        question = f"{name} may be used under {licence} only. Type yes to accept: "
        print(printable(question), end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("yes", "y"):
            return
        raise InputError(f"{name} is {licence}; not accepted, so nothing was fetched")
    raise InputError(f"{name} is {licence}; accept_licence=true accepts this")


def progress_of(bars: Bars, source: Source) -> Progress:
    task = bars.add_task(source.path, total=source.size)

    def update(done: int, total: int | None) -> None:
        bars.update(task, completed=done, total=total, visible=done != total)

    return update


def tell(entry: Entry, report: Report, run: Run) -> int:
    """Print the result; copy to out=. Returns the exit code."""
    loaded = sum(path.stat().st_size for path in report.fetched) / 1e6
    there = len(report.present)
    say(f"{len(report.fetched)} files fetched ({loaded:.3g} MB), {there} were there")
    folder = report.folder
    if report.fetched or report.present:
        if run.out is not None:
            copied = catalog.copy_to(entry, report, run.out)
            folder = run.out
            say(f"{len(copied)} files in {folder}")
        else:
            say(f"in {folder}")
        if entry.use and not report.failed:
            first = str(folder / entry.files[0].path)
            say(f"next: {entry.use.replace('FOLDER', str(folder)).replace('FILE', first)}")
    sys.stdout.flush()  # failures follow the rest, also if both streams are merged
    for path, why in report.failed[:NOTES_SHOWN]:
        warn(f"error: {path}: {one_line(InputError(why))}")
    if report.failed:
        missing = f"{len(report.failed)} of {len(entry.files)} files of {entry.name} are missing"
        warn(f"error: {missing}")
    return USER_ERROR if report.failed else 0


_common: Any = {"out": "optional_folder", "torch": False}
list_all = Verb("data list", ListData, show_list, **_common)
fetch = Verb("data fetch", FetchData, fetch_set, positional=("target",), **_common)
