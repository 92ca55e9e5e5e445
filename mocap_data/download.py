"""Downloads in one step, checked by their hash (by pooch)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pooch
import requests

from mocap_data.errors import InputError

# [s] without a byte
TIMEOUT_S = 30.0
# attempts of an address, before the next one
TRIES = 3

# bytes so far, bytes in all (None: unknown)
Progress = Callable[[int, int | None], None]

pooch.get_logger().setLevel(logging.WARNING)


class Offline(InputError):
    """No server could be reached."""


def download(
    urls: Sequence[str],
    target: Path,
    *,
    sha256: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Fetch a file to `target` from the first of `urls` that has it, in one step.

    sha256: the expected hash; None: any.

    Raises:
      Offline: no server can be reached.
      InputError: an error of the server or the disk, or another hash; no file is kept.
    """
    failures: list[InputError] = []
    absent = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
    for url in urls:
        try:
            _retrieve(url, target, sha256, progress)
            return
        except InputError as error:
            failures.append(error)
    # created folders without a file
    with contextlib.suppress(OSError):
        for folder in absent:
            folder.rmdir()
    raise next((e for e in failures if not isinstance(e, Offline)), failures[0])


def _retrieve(url: str, target: Path, sha256: str | None, progress: Progress | None) -> None:
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{url}: expected an address of http or https")
    bar = False if progress is None else _Bar(progress)
    downloader = pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT_S)
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
            raise InputError(f"{url}: expected sha256 {sha256}; deleted the download") from None


class _Bar:
    """A progress bar for pooch, around a callback."""

    def __init__(self, progress: Progress):
        self.total = 0
        self._done = 0
        self._progress = progress

    def update(self, size: int) -> None:
        self._done += size
        self._progress(self._done, self.total or None)

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        pass
