"""Where real recordings come from: sources, licences, hashes; and the cache that holds what was
fetched.

`catalog.yaml` beside this module is the list. A hash in it is of a copy that this project was
tested with; what is fetched must have it.
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
from mocap_data.errors import InputError, check_known
from mocap_data.files import atomic_path

_LIST = Path(__file__).with_name("catalog.yaml")


@dataclass(frozen=True)
class Source:
    """A file of an entry."""

    # its place in the entry's folder
    path: str
    # the first that answers counts
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
        """The size in words; ">" where only some of the files' sizes are known."""
        sizes = [source.size for source in self.files]
        total = sum(size or 0 for size in sizes)
        if None in sizes:
            return f"> {total / 1e6:.0f}" if total else "?"
        return f"{total / 1e6:.3g}" if total < 1e8 else f"{total / 1e6:.0f}"


@dataclass
class Report:
    """What fetching an entry came to."""

    folder: Path
    fetched: list[Path] = field(default_factory=list)
    # in the cache already
    present: list[Path] = field(default_factory=list)
    # path, why
    failed: list[tuple[str, str]] = field(default_factory=list)


def entries(path: Path = _LIST) -> Mapping[str, Entry]:
    """The catalog by name.

    Raises:
      InputError: the list is none.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return {name: _entry(name, values) for name, values in content.items()}
    except (yaml.YAMLError, AttributeError, TypeError, KeyError, ValueError) as error:
        raise InputError(f"{path}: not a catalog ({' '.join(str(error).split())})") from None


def entry(name: str, path: Path = _LIST) -> Entry:
    """The entry called `name`.

    Raises:
      InputError: no such entry; the message lists the available ones.
    """
    available = entries(path)
    check_known("data set", [name], available)
    return available[name]


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
        use=str(values.get("use", "")),
        **texts,
    )


# --- the cache ---


def cache_folder() -> Path:
    """NPMP_CACHE, or where the system keeps caches."""
    folder = os.environ.get("NPMP_CACHE")
    return Path(folder).expanduser() if folder else Path(pooch.os_cache("npmp"))


def folder_of(which: Entry, cache: Path | None = None) -> Path:
    """Where an entry's files are, or will be."""
    return (cache_folder() if cache is None else cache) / "data" / which.name


def state_of(which: Entry, cache: Path | None = None) -> tuple[int, int]:
    """How many of an entry's files are in the cache, and how many there are; by their sizes,
    without hashing."""
    folder = folder_of(which, cache)
    paths = [(folder / source.path, source.size) for source in which.files]
    there = sum(path.is_file() and size in (None, path.stat().st_size) for path, size in paths)
    return there, len(which.files)


def fetch(
    which: Entry,
    *,
    cache: Path | None = None,
    progress: Callable[[Source], Progress | None] | None = None,
) -> Report:
    """Bring an entry's files into the cache: those that are missing, or have another hash.

    One file that fails does not stop the others; it is listed in the report.
    progress: called before each download; what it returns is called with the bytes.

    Raises:
      Offline: nothing can be reached.
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
            there = f"; {len(report.present)} of {len(which.files)} files are in {report.folder}"
            raise Offline(f"{error}{there if report.present else ''}") from None
        except InputError as error:
            report.failed.append((source.path, str(error)))
    return report


def place(which: Entry, report: Report, out: Path) -> list[Path]:
    """Copy an entry's recordings to a folder of the user's; files there of the same name are
    replaced, others stay."""
    names = [s.path for s in which.files if (report.folder / s.path).is_file()]
    for name in names:
        with atomic_path(out / name) as temporary:
            shutil.copyfile(report.folder / name, temporary)
    return [out / name for name in names]
