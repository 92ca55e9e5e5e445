"""Downloads that can be interrupted, checked by their hash, and never seen half: standard library only.

A file arrives as NAME.part; what the server called it (its ETag) stands in NAME.part.json, so that a broken download
goes on where it stopped, and only if the server still has the same file. The hash is checked before NAME.part becomes
NAME.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import stat
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mocap_data.errors import InputError

CHUNK = 1 << 18  # bytes
LARGEST_ARCHIVE = 8 << 30  # bytes that an archive may unpack to
LONGEST_WAIT = 30.0  # [s] between two tries
_TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)  # HTTP answers that may be others next time

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all where known


class Offline(InputError):
    """No server could be reached at all."""


class WrongHash(InputError):
    """What was downloaded is not what was expected."""


@dataclass(frozen=True)
class Settings:
    """How patient a download is. timeout_s: without a byte. tries: connections without progress before giving up."""

    timeout_s: float = 30.0
    tries: int = 4
    wait_s: float = 1.0  # before the second try, doubled for each one after

    def __post_init__(self) -> None:
        if not self.timeout_s > 0.0 or self.tries < 1 or self.wait_s < 0.0:
            raise InputError(f"timeout_s={self.timeout_s:g} must be above 0, retries at least 0")


@dataclass(frozen=True)
class Fetched:
    """A download that is whole. resumed_at: bytes that were there already, 0 where it began anew."""

    path: Path
    sha256: str
    size: int
    url: str
    resumed_at: int = 0


def download(
    urls: Sequence[str],
    target: Path,
    *,
    sha256: str | None = None,
    size: int | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Fetched:
    """Fetch a file to `target` from the first of `urls` that has it; what is at `target` is replaced in one step.

    sha256, size: what it must be; None where nobody knows.

    Raises WrongHash where it is something else (the download is removed), Offline where no server can be reached,
    InputError for anything else a server or the disk refuses: each on one line that names the URL.
    """
    settings = settings or Settings()
    absent = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    failures: list[InputError] = []
    for url in urls:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise InputError(f"{url}: only http and https are fetched")
        try:
            with _alone(part):
                resumed_at = _transfer(url, part, size, settings, progress)
                found = hash_of(part)
                if sha256 is not None and found != sha256 and resumed_at:
                    # Two halves of different files, perhaps: once more from the start.
                    _forget(part)
                    resumed_at = _transfer(url, part, size, settings, progress)
                    found = hash_of(part)
                if sha256 is not None and found != sha256:
                    _forget(part)
                    raise WrongHash(f"{url}: sha256 is {found[:16]}..., expected {sha256[:16]}...; nothing was kept")
                got = part.stat().st_size
                os.replace(part, target)
                _forget(part)
            return Fetched(target, found, got, url, resumed_at)
        except InputError as error:
            failures.append(error)
    with contextlib.suppress(OSError):  # folders made for nothing
        for folder in absent:
            folder.rmdir()
    offline = all(isinstance(error, Offline) for error in failures)
    raise failures[0] if offline or len(failures) == 1 else next(e for e in failures if not isinstance(e, Offline))


def hash_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def _alone(part: Path) -> Iterator[None]:
    """Hold the download against another process that fetches the same file, where the system can tell."""
    lock = part.with_name(part.name + ".lock")
    with lock.open("ab") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # a system without it: two processes at once are on their own
        except OSError:
            raise InputError(f"{part}: another process is downloading this file; wait for it") from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _forget(part: Path) -> None:
    for path in (part, _about(part)):
        path.unlink(missing_ok=True)


def _about(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _known(part: Path, url: str) -> dict[str, Any]:
    """What was noted about the beginning in `part`; {} where nothing was, or it came from elsewhere."""
    try:
        content = json.loads(_about(part).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and content.get("url") == url else {}


def _transfer(url: str, part: Path, size: int | None, settings: Settings, progress: Progress | None) -> int:
    """Bring `part` to its full length, going on where it stops as often as that gets further.

    Returns how many bytes were there before. Raises InputError where it does not come to an end.
    """
    before = part.stat().st_size if part.exists() else 0
    if before and not _known(part, url).get("validator"):
        _forget(part)  # nothing says that the server still has the same file
        before = 0
    left, last = settings.tries, "it was cut short"
    began = [before]  # of each connection the byte that it brought first
    while left:
        have = part.stat().st_size if part.exists() else 0
        try:
            _attempt(url, part, size, settings, progress, began)
            return min(began)
        except _Restart:
            _forget(part)
            last = "the server cannot go on where it broke off"
            left -= 1
            continue
        except urllib.error.HTTPError as error:
            with error:
                if error.code not in _TRY_AGAIN:
                    raise InputError(f"{url}: the server says {error.code} {error.reason}") from None
                last = f"the server says {error.code} {error.reason}"
        except urllib.error.URLError as error:
            if isinstance(error.reason, socket.gaierror):
                raise _offline(url, error.reason) from None  # no name server answers now: nor in a second
            last = error.reason if isinstance(error.reason, str) else _said(error.reason)
            if have == 0 and left == 1:
                raise _offline(url, last) from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.filename is not None:
                raise  # the disk, not the network
            last = _said(error)
        now = part.stat().st_size if part.exists() else 0
        left = settings.tries if now > have else left - 1  # as long as it gets further it goes on
        if left:
            time.sleep(min(settings.wait_s * 2.0 ** (settings.tries - 1 - left), LONGEST_WAIT) if now <= have else 0.0)
    kept = part.stat().st_size if part.exists() else 0
    goes_on = (
        f" ({kept} bytes are kept; the same command goes on from there)" if _known(part, url).get("validator") else ""
    )
    raise InputError(f"{url}: {last}{goes_on}")


class _Restart(Exception):
    """What is there cannot be gone on with."""


def _attempt(
    url: str, part: Path, size: int | None, settings: Settings, progress: Progress | None, began: list[int]
) -> None:
    """One connection: ask for what is missing and append it. Notes in `began` where that was.

    Returns when the file is whole. Raises _Restart, InputError, or what the network raises.
    """
    have = part.stat().st_size if part.exists() else 0
    known = _known(part, url)
    request = urllib.request.Request(url, headers={"User-Agent": "npmp-data", "Accept-Encoding": "identity"})
    if have and known.get("validator"):
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", str(known["validator"]))
    try:
        answer = urllib.request.urlopen(request, timeout=settings.timeout_s)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing beyond what is there: whole, or another file by now
            total = _total(error.headers.get("Content-Range", ""))
            error.close()
            if total == have and size in (None, have):
                return
            raise _Restart from None
        raise
    with answer:
        if url.startswith("https:") and answer.geturl().startswith("http:"):
            raise InputError(f"{url}: the server leads to {answer.geturl()}, without encryption; not followed")
        total = _length(answer.headers.get("Content-Length"))
        if answer.status == 206:
            start = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", "").strip())
            if start is None or int(start[1]) != have:
                raise _Restart
            total = int(start[2]) if start[2] != "*" else None if total is None else have + total
        else:  # the whole file: the server cannot go on, or has another one by now
            have = 0
        if size is not None and total is not None and total != size:
            raise InputError(f"{url}: the server has {total} bytes, expected {size}")
        began.append(have)
        _room(part, url, None if total is None else total - have)
        validator = answer.headers.get("ETag", "")
        if not validator or validator.startswith("W/"):  # a weak one does not promise the same bytes
            validator = answer.headers.get("Last-Modified", "")
        _about(part).write_text(json.dumps({"url": url, "validator": validator, "total": total}), encoding="utf-8")
        with part.open("r+b" if have else "wb") as file:
            file.seek(have)
            file.truncate()
            while block := _block(answer):
                file.write(block)
                have += len(block)
                if (expected := total or size) is not None and have > expected:
                    raise InputError(f"{url}: more than the {expected} bytes expected arrived")
                if progress is not None:
                    progress(have, total or size)
    expected = total if total is not None else size
    if expected is not None and have != expected:
        raise ConnectionError(f"the connection ended after {have} of {expected} bytes")


def _block(answer: Any) -> bytes:
    """The next bytes of an answer; none at its end, also where it ends too early (its length tells)."""
    try:
        return bytes(answer.read(CHUNK))
    except http.client.IncompleteRead as error:
        if answer.length is None:  # no length was said: the end is known only by its mark, which is missing
            raise
        return error.partial


def _room(part: Path, url: str, needed: int | None) -> None:
    free = shutil.disk_usage(part.parent).free
    if needed is not None and needed > free:
        raise InputError(f"{url}: {needed / 1e6:.0f} MB are missing, {part.parent} has room for {free / 1e6:.0f} MB")


def _length(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _total(content_range: str) -> int | None:
    found = re.fullmatch(r"bytes \*/(\d+)", content_range.strip())
    return int(found[1]) if found else None


def _said(error: BaseException) -> str:
    """A network error in words."""
    if isinstance(error, TimeoutError):
        return "the server stopped answering"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def _offline(url: str, reason: object) -> Offline:
    said = _said(reason) if isinstance(reason, BaseException) else str(reason)
    return Offline(f"offline: cannot reach {urllib.parse.urlsplit(url).hostname} ({said})")


# --- archives ---


def extract_zip(archive: Path, folder: Path, *, suffixes: Sequence[str] = ()) -> list[Path]:
    """Unpack the files of a zip with those suffixes (all without any) into `folder`, without their folders' common
    parent.

    Nothing is unpacked unless every name is harmless. Each file appears whole or not at all.

    Raises InputError for a damaged archive, a name that leads out of the folder, a link, two files of one name, or more
    than LARGEST_ARCHIVE bytes.
    """
    try:
        with zipfile.ZipFile(archive) as content:
            chosen = [entry for entry in content.infolist() if not entry.is_dir()]
            places = [(entry, _inside(archive, entry)) for entry in chosen]
            if sum(entry.file_size for entry in chosen) > LARGEST_ARCHIVE:
                raise InputError(f"{archive} unpacks to more than {LARGEST_ARCHIVE >> 30} GiB; not unpacked")
            wanted = [(entry, place) for entry, place in places if not suffixes or place.suffix.lower() in suffixes]
            if not wanted:
                raise InputError(f"{archive} holds no {', '.join(suffixes)}" if suffixes else f"{archive} is empty")
            parents = {place.parts[0] if len(place.parts) > 1 else "" for _, place in wanted}
            common = len(parents) == 1 and "" not in parents
            seen: set[str] = set()
            made = []
            for entry, place in wanted:
                target = folder.joinpath(*place.parts[1:] if common else place.parts)
                if str(target).lower() in seen:
                    raise InputError(f"{archive} holds two files {place.name!r} in one place")
                seen.add(str(target).lower())
                made.append(_extract(content, entry, target))
            return made
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise InputError(f"{archive}: damaged, or no zip archive ({_said(error)})") from None


def _inside(archive: Path, entry: zipfile.ZipInfo) -> PurePosixPath:
    """Where an entry goes, relative. Raises InputError for what leads elsewhere or is a link."""
    name = entry.filename
    place = PurePosixPath(name)
    bad = (
        not name or "\\" in name or "\0" in name or place.is_absolute() or ".." in place.parts or ":" in place.parts[0]
    )
    if bad or stat.S_ISLNK(entry.external_attr >> 16):
        raise InputError(f"{archive} holds {name!r}, which leads out of its folder; not unpacked")
    return place


def _extract(content: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".unpack-", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file, content.open(entry) as source:
            left = entry.file_size
            while block := source.read(CHUNK):
                left -= len(block)
                if left < 0:
                    raise InputError(f"{entry.filename} is larger than its archive says; not unpacked")
                file.write(block)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return target
