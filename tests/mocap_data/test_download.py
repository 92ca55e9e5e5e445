"""Downloads from a server on this machine, some of which fail."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from mocap_data import InputError, download
from mocap_data.download import Offline
from tests.refusals import refusal

BODY = bytes(range(256)) * 1000
SHA = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def server() -> Iterator[tuple[str, list[int]]]:
    """An address, and the answers that it gives before the good one: a status, or 0 for a body that
    breaks off."""
    answers: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = answers.pop(0) if answers else 200
            self.send_response(status or 200)
            self.send_header("Content-Length", str(len(BODY) if status in (0, 200) else 0))
            self.end_headers()
            if status in (0, 200):
                self.wfile.write(BODY if status else BODY[:1000])

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_address[1]}/a.bvh", answers
    http.shutdown()
    http.server_close()


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


@pytest.mark.parametrize("first", [[], [503, 503], [0]])
def test_downloads_are_retried(
    first: list[int], server: tuple[str, list[int]], tmp_path: Path
) -> None:
    url, answers = server
    answers += first
    reports: list[tuple[int, int | None]] = []
    target = tmp_path / "d" / "a.bvh"
    download.download([url], target, sha256=SHA, progress=lambda *now: reports.append(now))
    assert target.read_bytes() == BODY and left(tmp_path) == ["a.bvh", "d"]
    assert reports[-1] == (len(BODY), len(BODY))


def test_a_wrong_hash_keeps_nothing(server: tuple[str, list[int]], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="sha256 0000"):
        download.download([server[0]], tmp_path / "a.bvh", sha256="0" * 64)
    assert left(tmp_path) == []


def test_the_next_address_is_tried(server: tuple[str, list[int]], tmp_path: Path) -> None:
    url, answers = server
    answers.append(404)
    refusal(f"{url}: the server answers 404$", download.download, [url], tmp_path / "new" / "a.bvh")
    assert left(tmp_path) == []
    with pytest.raises(Offline, match=r"offline: cannot reach 127.0.0.1:9"):
        download.download(["http://127.0.0.1:9/x"], tmp_path / "a.bvh")
    download.download(["http://127.0.0.1:9/x", url], tmp_path / "a.bvh")
    assert (tmp_path / "a.bvh").read_bytes() == BODY
    with pytest.raises(InputError, match="http"):
        download.download(["file:///etc/passwd"], tmp_path / "b.bvh")
