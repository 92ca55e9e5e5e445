"""Downloads from a server on this machine, some of which fail; zip archives, sound and hostile."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from mocap_data import InputError, download
from mocap_data.download import Offline, WrongHash, extract_zip

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
def test_a_file_arrives_whole_whatever_the_first_answers(
    first: list[int], server: tuple[str, list[int]], tmp_path: Path
) -> None:
    url, answers = server
    answers += first
    told: list[tuple[int, int | None]] = []
    got = download.download(
        [url], tmp_path / "d" / "a.bvh", sha256=SHA, progress=lambda *now: told.append(now)
    )
    assert (got.sha256, got.size, got.url) == (SHA, len(BODY), url)
    assert got.path.read_bytes() == BODY and left(tmp_path) == ["a.bvh", "d"]
    assert told[-1] == (len(BODY), len(BODY))


def test_a_wrong_hash_keeps_nothing(server: tuple[str, list[int]], tmp_path: Path) -> None:
    with pytest.raises(WrongHash, match="not the sha256 expected, 0000"):
        download.download([server[0]], tmp_path / "a.bvh", sha256="0" * 64)
    assert left(tmp_path) == []


def test_what_a_server_refuses_is_one_line_and_the_next_address_counts(
    server: tuple[str, list[int]], tmp_path: Path
) -> None:
    url, answers = server
    answers.append(404)
    with pytest.raises(InputError, match=f"{url}: the server answers 404$"):
        download.download([url], tmp_path / "new" / "a.bvh")
    assert left(tmp_path) == []
    with pytest.raises(Offline, match=r"offline: cannot reach 127.0.0.1:9"):
        download.download(["http://127.0.0.1:9/x"], tmp_path / "a.bvh")
    assert download.download(["http://127.0.0.1:9/x", url], tmp_path / "a.bvh").url == url
    with pytest.raises(InputError, match="only http and https are fetched"):
        download.download(["file:///etc/passwd"], tmp_path / "b.bvh")


def archive(path: Path, names: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, data in names.items():
            file.writestr(name, data)
    return path


def test_a_zip_is_unpacked_without_its_common_folder(tmp_path: Path) -> None:
    files = {"set/a.bvh": b"1", "set/deep/b.bvh": b"2", "set/readme.txt": b"3"}
    made = extract_zip(archive(tmp_path / "a.zip", files), tmp_path / "out", suffixes=[".bvh"])
    assert sorted(str(p.relative_to(tmp_path / "out")) for p in made) == ["a.bvh", "deep/b.bvh"]
    assert (tmp_path / "out" / "deep" / "b.bvh").read_bytes() == b"2"
    two = archive(tmp_path / "b.zip", {"x/a.bvh": b"1", "y/a.bvh": b"2"})
    assert {p.read_bytes() for p in extract_zip(two, tmp_path / "two")} == {b"1", b"2"}


@pytest.mark.parametrize(
    "name", ["../evil.bvh", "/evil.bvh", "a/../../evil.bvh", "C:/evil.bvh", "a\\..\\..\\evil.bvh"]
)
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / "a.zip", {"good.bvh": b"1", name: b"2"})
    with pytest.raises(InputError, match="outside its folder"):
        extract_zip(path, tmp_path / "out" / "deep", suffixes=[".bvh"])
    assert left(tmp_path) == ["a.zip"]


def test_bombs_and_damaged_archives_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = archive(tmp_path / "a.zip", {"a.bvh": b"abc" * 1000})
    with pytest.raises(InputError, match=r"holds no \.txt"):
        extract_zip(good, tmp_path / "out", suffixes=[".txt"])
    data = bytearray(good.read_bytes())
    # in the file's bytes: its checksum no longer fits
    data[100] ^= 0xFF
    for damaged in (data, data[:200]):
        (tmp_path / "b.zip").write_bytes(damaged)
        with pytest.raises(InputError, match="damaged, or no zip archive"):
            extract_zip(tmp_path / "b.zip", tmp_path / "out")
    monkeypatch.setattr(download, "LARGEST_ARCHIVE", 1000)
    with pytest.raises(InputError, match="unpacks to more than"):
        extract_zip(good, tmp_path / "out")
    assert not (tmp_path / "out").exists() or left(tmp_path / "out") == []
