"""Downloads, checked by their hash and never seen half (by pooch), and zip archives."""

from __future__ import annotations

import contextlib
import logging
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import pooch
import requests

from mocap_data.errors import InputError
from mocap_data.files import atomic_path

# [s] without a byte
TIMEOUT_S = 30.0
# of an address, before the next one
TRIES = 3
# bytes that an archive may unpack to
LARGEST_ARCHIVE = 8 << 30

# bytes so far, bytes in all where known
Progress = Callable[[int, int | None], None]

pooch.get_logger().setLevel(logging.WARNING)


class Offline(InputError):
    """No server could be reached at all."""


class WrongHash(InputError):
    """What was downloaded is not what was expected."""


@dataclass(frozen=True)
class Fetched:
    """A download that is whole."""

    path: Path
    sha256: str
    size: int
    url: str


def hash_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return pooch.file_hash(str(path))


def download(
    urls: Sequence[str],
    target: Path,
    *,
    sha256: str | None = None,
    progress: Progress | None = None,
) -> Fetched:
    """Fetch a file to `target` from the first of `urls` that has it, in one step.

    Args:
      sha256: what it must be; None where that is not known.

    Raises:
      WrongHash: it is something else; nothing is kept.
      Offline: no server can be reached.
      InputError: the server or the disk refuses.
    """
    failures: list[InputError] = []
    absent = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
    for url in urls:
        try:
            _retrieve(url, target, sha256, progress)
            return Fetched(target, hash_of(target), target.stat().st_size, url)
        except InputError as error:
            failures.append(error)
    # folders made for nothing
    with contextlib.suppress(OSError):
        for folder in absent:
            folder.rmdir()
    raise next((e for e in failures if not isinstance(e, Offline)), failures[0])


def _retrieve(url: str, target: Path, sha256: str | None, progress: Progress | None) -> None:
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{url}: only http and https are fetched")
    shown = False if progress is None else _Bar(progress)
    downloader = pooch.HTTPDownloader(progressbar=shown, timeout=TIMEOUT_S)
    for left in reversed(range(TRIES)):
        try:
            pooch.retrieve(
                url,
                None if sha256 is None else f"sha256:{sha256}",
                fname=target.name,
                path=target.parent,
                downloader=downloader,
            )
            return
        except requests.HTTPError as error:
            code = getattr(error.response, "status_code", 0)
            if code < 500 or not left:
                raise InputError(f"{url}: the server answers {code}") from None
        except requests.ConnectionError:
            if not left:
                raise Offline(f"offline: cannot reach {urlsplit(url).netloc}") from None
        except requests.RequestException as error:
            if not left:
                raise InputError(f"{url}: {' '.join(str(error).split())[:200]}") from None
        except OSError as error:
            raise InputError(f"{target}: {error.strerror or error}") from None
        except ValueError:
            raise WrongHash(f"{url}: not the sha256 expected, {sha256}; nothing was kept") from None


class _Bar:
    """A progress bar as pooch wants one, around a callback."""

    def __init__(self, progress: Progress):
        self.total, self._done, self._progress = 0, 0, progress

    def update(self, size: int) -> None:
        self._done += size
        self._progress(self._done, self.total or None)

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        pass


def extract_zip(archive: Path, folder: Path, *, suffixes: Sequence[str] = ()) -> list[Path]:
    """Unpack a zip's files of these suffixes (all without any), without their common folder.

    Nothing is unpacked unless every name is harmless. Each file appears whole or not at all.

    Raises:
      InputError: a damaged archive, a name that leads out of the folder, no file of these suffixes,
        or more than LARGEST_ARCHIVE bytes.
    """
    try:
        with zipfile.ZipFile(archive) as content:
            wanted = []
            for entry in content.infolist():
                place = PurePosixPath(entry.filename)
                if place.is_absolute() or ".." in place.parts or set(entry.filename) & set("\\:"):
                    raise InputError(f"{archive} holds {entry.filename!r}, outside its folder")
                if not entry.is_dir() and (not suffixes or place.suffix.lower() in suffixes):
                    wanted.append((entry, place))
            if not wanted:
                raise InputError(f"{archive} holds no {', '.join(suffixes) or 'file'}")
            # zipfile reads no more of an entry than its size here
            if sum(entry.file_size for entry, _ in wanted) > LARGEST_ARCHIVE:
                limit = LARGEST_ARCHIVE >> 30
                raise InputError(f"{archive} unpacks to more than {limit} GiB; not unpacked")
            parents = {place.parts[0] if len(place.parts) > 1 else "" for _, place in wanted}
            skip = 1 if len(parents) == 1 and "" not in parents else 0
            made = []
            for entry, place in wanted:
                target = folder.joinpath(*place.parts[skip:])
                with atomic_path(target) as temporary:
                    temporary.write_bytes(content.read(entry))
                made.append(target)
            return made
    except (InputError, OSError):
        raise
    # zipfile lets through what its codecs and struct raise
    except Exception as error:
        raise InputError(f"{archive}: damaged, or no zip archive ({error})") from None
