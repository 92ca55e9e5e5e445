"""Catalog of public recordings: sources, licences, hashes; and the cache of downloads.

`catalog.yaml` is the list. Its hashes are of tested copies; a download must match.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pooch
import yaml

from mocap_data.download import Offline, Progress, download
from mocap_data.errors import InputError, check_available
from mocap_data.files import atomic_path

_LIST = Path(__file__).with_name("catalog.yaml")


@dataclass(frozen=True)
class Source:
    """A file of an entry."""

    # path in the entry's folder
    path: str
    # tried in order
    urls: tuple[str, ...]
    sha256: str | None = None
    # bytes
    size: int | None = None


@dataclass(frozen=True)
class Entry:
    """A set of recordings; `use` is a command that reads them."""

    name: str
    what: str
    licence: str
    licence_url: str
    non_commercial: bool
    credit: str
    homepage: str
    files: tuple[Source, ...]
    use: str = ""

    @property
    def megabytes(self) -> str:
        """The size [MB] as text; ">" where only some of the files have a size."""
        sizes = [source.size for source in self.files]
        total = sum(size or 0 for size in sizes)
        if None in sizes:
            return f"> {total / 1e6:.0f}" if total else "?"
        return f"{total / 1e6:.3g}" if total < 1e8 else f"{total / 1e6:.0f}"


@dataclass
class Report:
    """The result of fetching an entry."""

    folder: Path
    fetched: list[Path] = field(default_factory=list)
    # files that were in the cache
    present: list[Path] = field(default_factory=list)
    # path, reason
    failed: list[tuple[str, str]] = field(default_factory=list)


def entries(path: Path = _LIST) -> Mapping[str, Entry]:
    """The catalog by name. Raises InputError for an invalid list."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return {name: _entry(name, values) for name, values in content.items()}
    except (yaml.YAMLError, AttributeError, TypeError, KeyError, ValueError) as error:
        raise InputError(f"{path}: invalid catalog ({' '.join(str(error).split())})") from None


def entry(name: str, path: Path = _LIST) -> Entry:
    """The entry called `name`. Raises InputError for an unknown name."""
    available = entries(path)
    check_available("data set", [name], available)
    return available[name]


def _entry(name: str, values: Mapping[str, Any]) -> Entry:
    """An entry of the YAML: `bases` are addresses to which each file's path is appended."""
    sources = []
    for row in values["files"]:
        path, size, sha256 = (row, None, None) if isinstance(row, str) else row
        destination = Path(path).name if values.get("flatten", True) else path
        addresses = tuple(base + path for base in values["bases"])
        sources.append(Source(destination, addresses, sha256, size))
    texts = {
        key: str(values[key]) for key in ("what", "licence", "licence_url", "credit", "homepage")
    }
    return Entry(
        name=name,
        non_commercial=bool(values["non_commercial"]),
        files=tuple(sources),
        use=str(values.get("use", "")),
        **texts,
    )


# --- the cache ---


def cache_folder() -> Path:
    """NPMP_CACHE, or the system's folder of caches."""
    folder = os.environ.get("NPMP_CACHE")
    return Path(folder).expanduser() if folder else Path(pooch.os_cache("npmp"))


def folder_of(which: Entry, cache: Path | None = None) -> Path:
    """The folder of an entry's files in the cache."""
    return (cache_folder() if cache is None else cache) / "data" / which.name


def state_of(which: Entry, cache: Path | None = None) -> tuple[int, int]:
    """The numbers of an entry's files in the cache and in total, by their sizes, without
    hashing."""
    folder = folder_of(which, cache)
    paths = [(folder / source.path, source.size) for source in which.files]
    present = sum(path.is_file() and size in (None, path.stat().st_size) for path, size in paths)
    return present, len(which.files)


def fetch(
    which: Entry,
    *,
    cache: Path | None = None,
    progress: Callable[[Source], Progress | None] | None = None,
) -> Report:
    """Download missing files of an entry, and those with another hash, into the cache. Failures are
    listed in the report. progress: called before each download; its result is called with the
    bytes.

    Raises:
      Offline: no server can be reached.
    """
    report = Report(folder_of(which, cache))
    for source in which.files:
        target = report.folder / source.path
        if target.is_file() and source.sha256 in (None, pooch.file_hash(str(target))):
            report.present.append(target)
            continue
        callback = None if progress is None else progress(source)
        try:
            download(source.urls, target, sha256=source.sha256, progress=callback)
            report.fetched.append(target)
        except Offline as error:
            if report.fetched or report.failed:
                report.failed.append((source.path, str(error)))
                break
            present = f"; {len(report.present)} of {len(which.files)} files are in {report.folder}"
            raise Offline(f"{error}{present if report.present else ''}") from None
        except InputError as error:
            report.failed.append((source.path, str(error)))
    return report


def place(which: Entry, report: Report, out: Path) -> list[Path]:
    """Copy an entry's recordings to a folder; files of the same name are replaced."""
    names = [s.path for s in which.files if (report.folder / s.path).is_file()]
    for name in names:
        with atomic_path(out / name) as temporary:
            shutil.copyfile(report.folder / name, temporary)
    return [out / name for name in names]
