"""Downloads that can be interrupted, checked by their hash, and never seen half.

A file arrives as NAME.part; what the server called it (its ETag) stands in NAME.part.json, so that
a broken download goes on where it stopped, and only if the server still has the same file. The hash
is checked before NAME.part becomes NAME. httpx speaks with the server; whatever the server says is
an answer that ends, or one line that says why not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import ssl
import stat
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import httpx

from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from mocap_data.outside import read_json

CHUNK = 1 << 18  # bytes
LARGEST_FILE = 2 << 30  # bytes of a file whose size nobody knows
LARGEST_ARCHIVE = 8 << 30  # bytes that an archive may unpack to
LONGEST_WAIT = 30.0  # [s] between two tries
LONGEST_TIMEOUT = 3600.0  # [s]
MOST_REDIRECTS = 10
_TRY_AGAIN = (408, 425, 429, 500, 502, 503, 504)  # HTTP answers that may be others next time

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all where known


class Offline(InputError):
    """No server could be reached at all."""


class WrongHash(InputError):
    """What was downloaded is not what was expected."""


@dataclass(frozen=True)
class Settings:
    """How patient a download is.

    Attributes:
      timeout_s: without a byte.
      tries: connections without progress before giving up.
      wait_s: before the second try, doubled for each one after.
      slowest: [bytes/s] a server that brings less over twice timeout_s is hung up on.
    """

    timeout_s: float = 30.0
    tries: int = 4
    wait_s: float = 1.0
    slowest: float = 1000.0

    def __post_init__(self) -> None:
        if not 0.0 < self.timeout_s <= LONGEST_TIMEOUT or self.tries < 1 or self.wait_s < 0.0:
            allowed = f"above 0 and at most {LONGEST_TIMEOUT:g}"
            raise InputError(f"timeout_s={self.timeout_s:g} must be {allowed}, retries at least 0")


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
    at_most: int = LARGEST_FILE,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Fetched:
    """Fetch a file to `target` from the first of `urls` that has it; what is at `target` is
    replaced in one step.

    Args:
      sha256, size: what it must be; None where nobody knows.
      at_most: bytes that are taken where the size is not known.

    Raises:
      WrongHash: it is something else (the download is removed).
      Offline: no server can be reached.
      InputError: anything else a server or the disk refuses, on one line that names the URL or the
        file.
    """
    absent = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
    failures: list[InputError] = []
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"{url}: only http and https are fetched")
        part = _Part(target.with_name(target.name + ".part"), url)
        transfer = _Transfer(url, part, size, at_most, settings or Settings(), progress)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _alone(part.path):
                resumed_at = transfer.run()
                found = hash_of(part.path)
                if sha256 is not None and found != sha256 and resumed_at:
                    # Two halves of different files, perhaps: once more from the start.
                    part.forget()
                    resumed_at = transfer.run()
                    found = hash_of(part.path)
                if sha256 is not None and found != sha256:
                    part.forget()
                    raise WrongHash(
                        f"{url}: sha256 is {found[:16]}..., expected {sha256[:16]}...; nothing was kept"
                    )
                got = part.length
                os.replace(part.path, target)
                part.forget()
            return Fetched(target, found, got, url, resumed_at)
        except InputError as error:
            failures.append(error)
        except OSError as error:  # the network's are httpx's: this is the disk
            failures.append(InputError(f"{error.filename or part.path}: {_said(error)}"))
    with contextlib.suppress(OSError):  # folders made for nothing
        for folder in absent:
            folder.rmdir()
    offline = all(isinstance(error, Offline) for error in failures)
    raise (
        failures[0]
        if offline or len(failures) == 1
        else next(e for e in failures if not isinstance(e, Offline))
    )


def hash_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _alone(part: Path) -> Iterator[None]:
    """Hold the download against another process that fetches the same file, where the system can
    tell."""
    lock = part.with_name(part.name + ".lock")
    with lock.open("ab") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # a system without it: two processes at once are on their own
        except OSError:
            raise InputError(
                f"{part}: another process is downloading this file; wait for it"
            ) from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Part:
    """The beginning of a file, and the record of what the server called it."""

    path: Path
    url: str

    @property
    def record(self) -> Path:
        return self.path.with_name(self.path.name + ".json")

    @property
    def length(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    @property
    def validator(self) -> str:
        """By what the server knows its file again; "" where that is not known, or the beginning
        came from elsewhere."""
        try:
            known = read_json(self.record)
        except InputError:
            return ""
        same = isinstance(known, dict) and known.get("url") == self.url
        return _printable(known.get("validator")) if same else ""

    def note(self, answer: httpx.Response) -> None:
        etag = answer.headers.get("ETag", "")
        # A weak one does not promise the same bytes.
        validator = (
            etag if etag and not etag.startswith("W/") else answer.headers.get("Last-Modified")
        )
        self.record.write_text(
            json.dumps({"url": self.url, "validator": _printable(validator)}), encoding="utf-8"
        )

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)
        self.record.unlink(missing_ok=True)


class _Again(httpx.HTTPError):
    """A connection came to nothing; another one may not. The message says why."""


@dataclass
class _Transfer:
    """Brings `part` to its full length, by as many connections as that takes."""

    url: str
    part: _Part
    size: int | None
    at_most: int
    settings: Settings
    progress: Progress | None
    got: int = 0  # bytes of the file, by all connections
    stream: Any = None  # the connection that is open
    too_slow: bool = False

    def run(self) -> int:
        """Go on where the part stops as often as that gets further; returns how many bytes were
        there before.

        Raises:
          InputError: it does not come to an end.
          Offline: the server cannot be reached.
        """
        if not self.part.validator:
            self.part.forget()  # nothing says that the server still has the same file
        left, best = self.settings.tries, self.part.length
        self.began = [best]  # of each connection the byte that it brought first
        while left:
            try:
                with self._watched():
                    self._connection()
                return min(self.began)
            except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
                why = _said(error)
                # No name server answers now: nor will it in a second.
                unreachable = isinstance(_cause(error), socket.gaierror) or (
                    left == 1 and not self.part.length
                )
                if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)) and unreachable:
                    raise Offline(
                        f"offline: cannot reach {httpx.URL(self.url).host} ({why})"
                    ) from None
            # A few bytes a connection would go on for ever.
            further = (
                self.part.length >= best + self.settings.slowest * self.settings.timeout_s
                and not self.too_slow
            )
            best = max(best, self.part.length)
            left = self.settings.tries if further else left - 1
            if left and not further:
                doubled = min(self.settings.tries - 1 - left, 16)
                time.sleep(min(self.settings.wait_s * 2.0**doubled, LONGEST_WAIT))
        if self.too_slow:
            why = f"the server brings less than {self.settings.slowest:g} bytes/s"
        kept = f"{self.part.length} bytes are kept; the same command goes on from there"
        raise InputError(f"{self.url}: {why}{f' ({kept})' if self.part.validator else ''}")

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Hang up on a server that brings too little of the file for a while, whatever it sends
        instead.

        httpx's timeout begins anew with every byte: headers and chunks that drip would hold it for
        ever.
        """
        over, window_s = threading.Event(), 2.0 * self.settings.timeout_s

        def watch() -> None:
            before = self.got
            while not over.wait(window_s):
                if self.got - before < self.settings.slowest * window_s and self.stream is not None:
                    self.too_slow = True
                    with contextlib.suppress(OSError):  # closed already
                        socket.socket.shutdown(
                            self.stream.get_extra_info("socket"), socket.SHUT_RDWR
                        )
                before = self.got

        self.too_slow, self.stream = False, None
        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _trace(self, name: str, info: dict[str, Any]) -> None:
        """What httpx tells of a request: here the connection that it opened."""
        if name.endswith(("connect_tcp.complete", "start_tls.complete")):
            self.stream = info["return_value"]

    def _connection(self) -> None:
        """Ask for what is missing and append it; returns when the file is whole. Notes in `began`
        where that was."""
        validator = self.part.validator
        have = self.part.length if validator else 0
        headers = {"User-Agent": "npmp-data", "Accept-Encoding": "identity"}
        if have:
            headers |= {"Range": f"bytes={have}-", "If-Range": validator}
        schemes = ("https",) if self.url.startswith("https:") else ("http", "https")
        # verify: the authorities that the system trusts
        with httpx.Client(
            timeout=self.settings.timeout_s, verify=ssl.create_default_context()
        ) as client:
            request = client.build_request(
                "GET", self.url, headers=headers, extensions={"trace": self._trace}
            )
            for _ in range(MOST_REDIRECTS):
                with contextlib.closing(client.send(request, stream=True)) as answer:
                    if answer.next_request is None:
                        return self._take(answer, have)
                    request = answer.next_request
                    if request.url.scheme not in schemes:
                        raise InputError(
                            f"{self.url}: the server leads to {str(request.url)[:200]}; not followed"
                        )
        raise InputError(f"{self.url}: the server leads elsewhere more than {MOST_REDIRECTS} times")

    def _take(self, answer: httpx.Response, have: int) -> None:
        """Write what an answer brings."""
        span = answer.headers.get("Content-Range", "").strip()
        # nothing beyond what is there: whole, or another file by now
        if answer.status_code == 416 and have:
            if span == f"bytes */{have}" and self.size in (None, have):
                return
            self._anew()
        if answer.status_code not in (200, 206):
            said = f"the server says {answer.status_code} {answer.reason_phrase[:100]}"
            raise (
                _Again(said)
                if answer.status_code in _TRY_AGAIN
                else InputError(f"{self.url}: {said}")
            )
        total = _number(answer.headers.get("Content-Length"))
        # the whole file: the server cannot go on, or has another one by now
        if answer.status_code == 200:
            have = 0
        elif found := re.fullmatch(rf"bytes {have}-([0-9]{{1,18}})/([0-9]{{1,18}}|\*)", span):
            total = int(found[1]) + 1 if found[2] == "*" else int(found[2])
        else:
            self._anew()
        self._check(total, have)
        self.began.append(have)
        self.part.note(answer)
        expected = self.size if total is None else total
        with self.part.path.open("r+b" if have else "wb") as file:
            file.seek(have)
            file.truncate()
            try:
                for block in answer.iter_raw():
                    self.got += len(block)
                    have += len(block)
                    if have > (most := self.at_most if expected is None else expected):
                        raise InputError(f"{self.url}: more than the {most} bytes expected arrived")
                    file.write(block)
                    if self.progress is not None:
                        self.progress(have, expected)
            except httpx.RemoteProtocolError:
                # no length was said: the end is known only by its mark, which is missing
                if expected is None:
                    raise
        if expected is None and self.too_slow:  # an end of our making
            raise _Again("the answer was cut")
        if expected is not None and have != expected:
            raise _Again(f"the connection ended after {have} of {expected} bytes")

    def _anew(self) -> NoReturn:
        self.part.forget()
        raise _Again("the server cannot go on where it broke off")

    def _check(self, total: int | None, have: int) -> None:
        """Raise InputError for a file of another size than expected, or of more bytes than there is
        room for."""
        if (
            total is not None
            and total != self.size
            and (self.size is not None or total > self.at_most)
        ):
            expected = f"at most {self.at_most}" if self.size is None else self.size
            raise InputError(f"{self.url}: the server has {total} bytes, expected {expected}")
        folder = self.part.path.parent
        missing, free = (total or 0) - have, shutil.disk_usage(folder).free
        if missing > free:
            raise InputError(
                f"{self.url}: {missing / 1e6:.0f} MB to go, {folder} has room for {free / 1e6:.0f} MB"
            )


def _number(text: str | None) -> int | None:
    """A count of bytes; None for what is none, or more than any disk holds."""
    return int(text) if text and re.fullmatch("[0-9]{1,18}", text) else None


def _printable(text: object) -> str:
    """What can be sent back in a header; "" for anything else."""
    return text if isinstance(text, str) and re.fullmatch(r"[ -~]{1,1000}", text) else ""


def _cause(error: BaseException) -> BaseException:
    """What the system said, below what libraries made of it."""
    while (
        not isinstance(error, OSError)
        and (below := error.__cause__ or error.__context__) is not None
    ):
        error = below
    return error


def _said(error: BaseException) -> str:
    """An error of the network or the disk in words."""
    if isinstance(error, httpx.TimeoutException):
        return "the server stopped answering"
    cause = _cause(error)
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(error)
    return " ".join(text.split())[:200] or type(error).__name__


# --- archives ---


def extract_zip(archive: Path, folder: Path, *, suffixes: Sequence[str] = ()) -> list[Path]:
    """Unpack the files of a zip with those suffixes (all without any) into `folder`, without their
    folders' common parent.

    Nothing is unpacked unless every name is harmless. Each file appears whole or not at all.

    Raises:
      InputError: a damaged archive, a name that leads out of the folder, a link, two files of one
        name, or more than LARGEST_ARCHIVE bytes.
    """
    try:
        with zipfile.ZipFile(archive) as content:
            chosen = [entry for entry in content.infolist() if not entry.is_dir()]
            places = [(entry, _inside(archive, entry)) for entry in chosen]
            if sum(entry.file_size for entry in chosen) > LARGEST_ARCHIVE:
                raise InputError(
                    f"{archive} unpacks to more than {LARGEST_ARCHIVE >> 30} GiB; not unpacked"
                )
            wanted = [
                (entry, place)
                for entry, place in places
                if not suffixes or place.suffix.lower() in suffixes
            ]
            if not wanted:
                raise InputError(
                    f"{archive} holds no {', '.join(suffixes)}"
                    if suffixes
                    else f"{archive} is empty"
                )
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
    except (InputError, OSError):
        raise
    except Exception as error:  # zipfile lets through what its codecs and struct raise
        raise InputError(f"{archive}: damaged, or no zip archive ({_said(error)})") from None


def _inside(archive: Path, entry: zipfile.ZipInfo) -> PurePosixPath:
    """Where an entry goes, relative.

    Raises:
      InputError: it leads elsewhere or is a link.
    """
    name = entry.filename
    place = PurePosixPath(name)
    bad = (
        not name
        or "\\" in name
        or "\0" in name
        or place.is_absolute()
        or ".." in place.parts
        or ":" in place.parts[0]
    )
    if bad or stat.S_ISLNK(entry.external_attr >> 16):
        raise InputError(f"{archive} holds {name!r}, which leads out of its folder; not unpacked")
    return place


def _extract(content: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> Path:
    with (
        atomic_path(target) as temporary,
        content.open(entry) as source,
        temporary.open("wb") as file,
    ):
        left = entry.file_size
        while block := source.read(CHUNK):
            left -= len(block)
            if left < 0:
                raise InputError(f"{entry.filename} is larger than its archive says; not unpacked")
            file.write(block)
    return target
