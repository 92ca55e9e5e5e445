"""Where real recordings come from: sources, licences, hashes; and the cache that holds what was
fetched.

`catalog.yaml` beside this module is the list. A hash in it is of a copy that this project was
tested with. Files at a pinned address (a commit) must have it; files at an address that may change
are only compared with it. What has no hash gets one at its first download: it is noted in the cache
(hashes.json) and must be the same ever after.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pooch
import yaml

from mocap_data.download import (
    Fetched,
    Offline,
    Progress,
    WrongHash,
    download,
    extract_zip,
    hash_of,
)
from mocap_data.errors import InputError, unknown
from mocap_data.files import atomic_path
from mocap_data.outside import read_json

_LIST = Path(__file__).with_name("catalog.yaml")
_NOTES = "hashes.json"


@dataclass(frozen=True)
class Source:
    """A file of an entry. path: its place in the entry's folder. urls: where it is, the first that
    answers counts."""

    path: str
    urls: tuple[str, ...]
    sha256: str | None = None
    size: int | None = None  # bytes


@dataclass(frozen=True)
class Entry:
    """A set of recordings.

    pinned: the addresses name one version for ever, so that a hash must hold. unpack: suffixes to
    take out of the files, which are zip archives then; () for files that are recordings themselves.
    use: a command that reads them.
    """

    name: str
    what: str
    licence: str
    licence_url: str
    non_commercial: bool
    credit: str
    homepage: str
    files: tuple[Source, ...]
    pinned: bool = True
    unpack: tuple[str, ...] = ()
    use: str = ""

    @property
    def size(self) -> int | None:
        """Bytes to download, None where that is not known of every file."""
        sizes = [source.size for source in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)


@dataclass
class Report:
    """What fetching an entry came to."""

    folder: Path
    fetched: list[Fetched] = field(default_factory=list)
    present: list[Path] = field(default_factory=list)  # in the cache already, whole
    failed: list[tuple[str, str]] = field(default_factory=list)  # path, why
    notes: list[str] = field(default_factory=list)


def entries(path: Path = _LIST) -> Mapping[str, Entry]:
    """The catalog by name.

    Raises:
      InputError: the list is none.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        found = {name: _entry(name, values) for name, values in content.items()}
    except (yaml.YAMLError, AttributeError, TypeError, KeyError, ValueError) as error:
        raise InputError(f"{path}: not a catalog ({' '.join(str(error).split())})") from None
    return MappingProxyType(found)


def entry(name: str, path: Path = _LIST) -> Entry:
    """The entry called `name`.

    Raises:
      InputError: there is none; it names those there are.
    """
    known = entries(path)
    if name not in known:
        raise unknown("data set", name, known)
    return known[name]


def _entry(name: str, values: Mapping[str, Any]) -> Entry:
    """An entry of the YAML: `bases` are addresses that each file's path (or its own `from`) is
    appended to."""
    sources = []
    for row in values["files"]:
        path, size, sha256 = (row, None, None) if isinstance(row, str) else row
        place = Path(path).name if values.get("flatten", True) else path
        sources.append(Source(place, tuple(base + path for base in values["bases"]), sha256, size))
    texts = {
        key: str(values[key]) for key in ("what", "licence", "licence_url", "credit", "homepage")
    }
    return Entry(
        name=name,
        non_commercial=bool(values["non_commercial"]),
        files=tuple(sources),
        pinned=bool(values.get("pinned", True)),
        unpack=tuple(values.get("unpack", ())),
        use=str(values.get("use", "")),
        **texts,
    )


# --- the cache ---


def cache_folder() -> Path:
    """NPMP_CACHE, or where the system keeps caches."""
    given = os.environ.get("NPMP_CACHE")
    return Path(given).expanduser() if given else Path(pooch.os_cache("npmp"))


def folder_of(which: Entry, cache: Path | None = None) -> Path:
    """Where an entry's files are, or will be."""
    return (cache_folder() if cache is None else cache) / "data" / which.name


def notes_of(which: Entry, cache: Path | None = None) -> dict[str, dict[str, Any]]:
    """By path: sha256 and size of what was fetched. {} where nothing was, or it is damaged."""
    try:
        content = read_json(folder_of(which, cache) / _NOTES)
    except InputError:
        return {}
    rows = content.items() if isinstance(content, dict) else ()
    return {
        key: row
        for key, row in rows
        if isinstance(row, dict) and isinstance(row.get("sha256"), str)
    }


def state_of(which: Entry, cache: Path | None = None) -> tuple[int, int]:
    """How many of an entry's files are in the cache, and how many there are; by their sizes,
    without hashing."""
    notes, folder = notes_of(which, cache), folder_of(which, cache)
    there = 0
    for source in which.files:
        path = folder / source.path
        there += path.is_file() and path.stat().st_size == notes.get(source.path, {}).get("size")
    return there, len(which.files)


def fetch(
    which: Entry,
    *,
    cache: Path | None = None,
    progress: Callable[[Source], Progress | None] | None = None,
) -> Report:
    """Bring an entry's files into the cache: those that are missing, or not what they were.

    One file that fails does not stop the others; it is listed in the report.

    Args:
      progress: called before each download; what it returns is told the bytes.

    Raises:
      Offline: nothing can be reached.
    """
    report = Report(folder_of(which, cache))
    notes = notes_of(which, cache)
    for source in which.files:
        try:
            _fetch_one(which, source, report, notes, progress)
        except Offline as error:
            if report.fetched or report.failed:
                report.failed.append((source.path, str(error)))
                break
            there = f"; {len(report.present)} of {len(which.files)} files are in {report.folder}"
            raise Offline(f"{error}{there if report.present else ''}") from None
        except InputError as error:
            report.failed.append((source.path, str(error)))
    if which.unpack and not report.failed:
        for source in which.files:
            extract_zip(
                report.folder / source.path, report.folder / "unpacked", suffixes=which.unpack
            )
    return report


def _fetch_one(
    which: Entry,
    source: Source,
    report: Report,
    notes: dict[str, dict[str, Any]],
    progress: Callable[[Source], Progress | None] | None,
) -> None:
    """Bring one file into the cache, and what became of it into the report and the notes.

    Raises:
      InputError: as `download`.
    """
    target = report.folder / source.path
    first = notes.get(source.path, {}).get("sha256")
    must = source.sha256 if which.pinned and source.sha256 else first
    if must is not None and target.is_file() and hash_of(target) == must:
        report.present.append(target)
        if must != first:
            notes[source.path] = {"sha256": must, "size": target.stat().st_size}
            _write_notes(report.folder, notes)
        return
    try:
        # pooch takes what lies there where it knows no hash
        if must is None:
            target.unlink(missing_ok=True)
        shown = None if progress is None else progress(source)
        got = download(source.urls, target, sha256=must, progress=shown)
    except WrongHash as error:
        if must == first and must != source.sha256:
            advice = f"to take the new one, delete {target.parent}"
            raise WrongHash(
                f"{error} (the file there is no longer the one fetched first; {advice})"
            ) from None
        raise
    report.fetched.append(got)
    notes[source.path] = {"sha256": got.sha256, "size": got.size, "url": got.url}
    _write_notes(report.folder, notes)
    if source.sha256 is None and first is None:
        report.notes.append(
            f"{source.path}: no hash was known; sha256 {got.sha256} noted in "
            f"{report.folder / _NOTES}"
        )
    elif source.sha256 is not None and got.sha256 != source.sha256:
        report.notes.append(
            f"{source.path}: other bytes than the copy this version was tested with"
        )


def recordings_of(which: Entry, report: Report) -> Path:
    """The folder that holds the recordings themselves."""
    return report.folder / "unpacked" if which.unpack else report.folder


def place(which: Entry, report: Report, out: Path) -> list[Path]:
    """Copy an entry's recordings to a folder of the user's; files there of the same name are
    replaced, others stay."""
    origin = recordings_of(which, report)
    if which.unpack:
        names = sorted(path.relative_to(origin) for path in origin.rglob("*") if path.is_file())
    else:
        names = [Path(source.path) for source in which.files if (origin / source.path).is_file()]
    made = []
    for name in names:
        with atomic_path(out / name) as temporary:
            shutil.copyfile(origin / name, temporary)
        made.append(out / name)
    return made


def _write_notes(folder: Path, notes: Mapping[str, Any]) -> None:
    with atomic_path(folder / _NOTES) as temporary:
        temporary.write_text(
            json.dumps(dict(notes), indent=2, sort_keys=True) + "\n", encoding="utf-8"
        )
