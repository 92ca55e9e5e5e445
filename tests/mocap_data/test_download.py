"""Downloads from a server that misbehaves: broken connections, wrong hashes, silence; and archives
that do."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import stat
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mocap_data import InputError, download
from mocap_data.download import Offline, Settings, WrongHash, extract_zip

BODY = np.random.default_rng(0).bytes(300_000)
SHA = hashlib.sha256(BODY).hexdigest()
QUICK = Settings(timeout_s=0.5, tries=3, wait_s=0.01)


class Server:
    """A server on this machine whose behaviour a test sets; `requests` holds what was asked."""

    def __init__(self) -> None:
        self.body = BODY
        self.etag: str | None = '"one"'
        self.ranges = True
        self.cut: list[int] = []  # of each answer the bytes to send before hanging up
        self.status: list[int] = []  # answers before the good one
        self.length: int | None = None  # a Content-Length that lies
        self.stall = 0.0  # seconds of silence in the middle
        self.redirect: str | None = None
        self.requests: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self.thread.start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.requests.append((request.path, dict(request.headers)))
        if self.redirect and request.path != "/moved":
            request.send_response(302)
            request.send_header("Location", self.redirect)
            request.end_headers()
            return
        if self.status:
            request.send_error(self.status.pop(0))
            return
        if request.path == "/missing":
            request.send_error(404)
            return
        start = 0
        asked = request.headers.get("Range")
        if asked and self.ranges and request.headers.get("If-Range") in (self.etag, None):
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(self.body):
                request.send_response(416)
                request.send_header("Content-Range", f"bytes */{len(self.body)}")
                request.end_headers()
                return
        body = self.body[start:]
        request.send_response(206 if start else 200)
        if start:
            request.send_header(
                "Content-Range", f"bytes {start}-{len(self.body) - 1}/{len(self.body)}"
            )
        request.send_header(
            "Content-Length", str(self.length if self.length is not None else len(body))
        )
        if self.etag:
            request.send_header("ETag", self.etag)
        request.end_headers()
        count = self.cut.pop(0) if self.cut else len(body)
        try:
            request.wfile.write(body[: count // 2])
            if self.stall:
                request.wfile.flush()
                time.sleep(self.stall)
            request.wfile.write(body[count // 2 : count])
        except OSError:
            pass  # the client gave up first

    def ranges_asked(self) -> list[str | None]:
        return [headers.get("Range") for _, headers in self.requests]


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def fetch(server: Server, target: Path, **options: Any) -> download.Fetched:
    return download.download([f"{server.url}/file"], target, **{"settings": QUICK, **options})


def leftovers(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir() if path != target)


def test_whole(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    got = fetch(
        server,
        tmp_path / "a" / "f.bin",
        sha256=SHA,
        size=len(BODY),
        progress=lambda *at: seen.append(at),
    )
    assert got.path.read_bytes() == BODY and (got.sha256, got.size, got.resumed_at) == (
        SHA,
        len(BODY),
        0,
    )
    assert seen[-1] == (300_000, 300_000) and leftovers(got.path) == []


def test_a_broken_connection_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.cut = [100_000, 50_000]
    got = fetch(server, tmp_path / "f.bin", sha256=SHA)
    assert got.path.read_bytes() == BODY and leftovers(got.path) == []
    assert server.ranges_asked() == [None, "bytes=100000-", "bytes=150000-"]
    assert server.requests[1][1]["If-Range"] == '"one"'


def test_a_broken_download_goes_on_the_next_time(server: Server, tmp_path: Path) -> None:
    server.cut = [100_000, 0]
    target = tmp_path / "f.bin"
    with pytest.raises(
        InputError, match=r"connection ended after 100000 of 300000 bytes.*100000 bytes are kept"
    ) as caught:
        fetch(server, target, settings=Settings(timeout_s=0.5, tries=1, wait_s=0.0))
    assert (
        "\n" not in str(caught.value)
        and not target.exists()
        and (tmp_path / "f.bin.part").stat().st_size == 100_000
    )
    got = fetch(server, target, sha256=SHA)
    assert got.path.read_bytes() == BODY and got.resumed_at == 100_000 and leftovers(target) == []
    assert server.ranges_asked()[-1] == "bytes=100000-"


def test_a_server_that_cannot_go_on_starts_anew(server: Server, tmp_path: Path) -> None:
    server.ranges, server.cut = False, [100_000]
    got = fetch(server, tmp_path / "f.bin", sha256=SHA)
    assert got.path.read_bytes() == BODY and len(server.requests) == 2


def test_a_file_that_changed_meanwhile_starts_anew(server: Server, tmp_path: Path) -> None:
    server.cut = [100_000, 0]
    with pytest.raises(InputError):
        fetch(server, tmp_path / "f.bin", settings=Settings(timeout_s=0.5, tries=1))
    server.etag, server.body = '"two"', BODY[::-1]
    got = fetch(server, tmp_path / "f.bin")
    assert got.path.read_bytes() == BODY[::-1] and got.resumed_at == 0


def test_without_a_validator_nothing_is_gone_on_with(server: Server, tmp_path: Path) -> None:
    server.etag, server.cut = None, [100_000, 100_000]
    with pytest.raises(InputError, match="the connection ended after 100000 of 300000 bytes"):
        fetch(server, tmp_path / "f.bin", settings=Settings(timeout_s=0.5, tries=1))
    got = fetch(server, tmp_path / "f.bin", sha256=SHA)
    assert got.path.read_bytes() == BODY and server.ranges_asked() == [None, None, None]


def test_a_part_that_is_whole_already(server: Server, tmp_path: Path) -> None:
    (tmp_path / "f.bin.part").write_bytes(BODY)
    (tmp_path / "f.bin.part.json").write_text(
        json.dumps({"url": f"{server.url}/file", "validator": '"one"'})
    )
    got = fetch(server, tmp_path / "f.bin", sha256=SHA)
    assert got.path.read_bytes() == BODY and server.ranges_asked() == ["bytes=300000-"]


def test_a_part_of_something_else_is_found_out_by_the_hash(server: Server, tmp_path: Path) -> None:
    (tmp_path / "f.bin.part").write_bytes(b"x" * 100)
    (tmp_path / "f.bin.part.json").write_text(
        json.dumps({"url": f"{server.url}/file", "validator": '"one"'})
    )
    assert fetch(server, tmp_path / "f.bin", sha256=SHA).path.read_bytes() == BODY
    assert server.ranges_asked() == ["bytes=100-", None]


def test_an_answer_in_chunks_that_breaks_off_is_not_taken_for_whole(tmp_path: Path) -> None:
    """Without a length only the last, empty chunk says that all is there."""

    def serve(listener: socket.socket, whole: bool) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(10_000)
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
            connection.sendall(head + b"4\r\nwalk\r\n" + (b"0\r\n\r\n" if whole else b"4\r\nru"))

    for whole in (True, False):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=serve, args=(listener, whole), daemon=True)
            thread.start()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/f"
            settings = Settings(timeout_s=0.5, tries=1, wait_s=0.0)
            if whole:
                assert (
                    download.download(
                        [url], tmp_path / "f.bin", settings=settings
                    ).path.read_bytes()
                    == b"walk"
                )
            else:
                with pytest.raises(InputError):
                    download.download([url], tmp_path / "g.bin", settings=settings)
            thread.join()
    assert not (tmp_path / "g.bin").exists()


def test_a_wrong_hash_keeps_nothing(server: Server, tmp_path: Path) -> None:
    (tmp_path / "f.bin").write_bytes(b"before")
    with pytest.raises(
        WrongHash, match=f"sha256 is {SHA[:16]}..., expected {'0' * 16}...; nothing was kept"
    ):
        fetch(server, tmp_path / "f.bin", sha256="0" * 64)
    assert (tmp_path / "f.bin").read_bytes() == b"before" and leftovers(tmp_path / "f.bin") == []


def test_another_length_than_expected(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the server has 300000 bytes, expected 5"):
        fetch(server, tmp_path / "f.bin", size=5)
    assert len(server.requests) == 1  # nothing that trying again would mend


def test_a_length_that_lies(server: Server, tmp_path: Path) -> None:
    server.length, server.ranges = 300_500, False
    with pytest.raises(InputError, match="the connection ended after 300000 of 300500 bytes"):
        fetch(server, tmp_path / "f.bin")
    server.ranges = True
    # asked for the rest, it says that there is none
    assert fetch(server, tmp_path / "e.bin").size == 300_000
    server.length = 1000
    assert fetch(server, tmp_path / "g.bin").size == 1000  # what HTTP calls the file
    with pytest.raises(WrongHash):
        fetch(server, tmp_path / "h.bin", sha256=SHA)


def test_missing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="/missing: the server says 404 Not Found"):
        download.download([f"{server.url}/missing"], tmp_path / "f.bin", settings=QUICK)
    assert len(server.requests) == 1
    got = download.download(
        [f"{server.url}/missing", f"{server.url}/file"],
        tmp_path / "f.bin",
        sha256=SHA,
        settings=QUICK,
    )
    assert got.url.endswith("/file")


def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.status = [503, 429]
    assert fetch(server, tmp_path / "f.bin", sha256=SHA).size == 300_000
    server.status = [500] * 9
    with pytest.raises(InputError, match="the server says 500"):
        fetch(server, tmp_path / "g.bin")


def test_a_redirect_is_followed(server: Server, tmp_path: Path) -> None:
    server.redirect = "/moved"
    assert fetch(server, tmp_path / "f.bin", sha256=SHA).path.read_bytes() == BODY
    assert [path for path, _ in server.requests] == ["/file", "/moved"]
    server.redirect = "file:///etc/hostname"
    with pytest.raises(
        InputError, match=r"the server leads to file://.*/etc/hostname; not followed"
    ):
        fetch(server, tmp_path / "g.bin")
    server.redirect = "/file"  # for ever
    with pytest.raises(InputError, match="the server leads elsewhere more than 10 times"):
        fetch(server, tmp_path / "g.bin")


def test_silence_is_given_up(server: Server, tmp_path: Path) -> None:
    server.stall, server.cut = 1.0, [200_000] * 3
    begin = time.perf_counter()
    settings = Settings(timeout_s=0.15, tries=1, wait_s=0.0)
    server.etag = None
    with pytest.raises(InputError, match="the server stopped answering"):
        fetch(server, tmp_path / "f.bin", settings=settings)
    assert time.perf_counter() - begin < 3.0


def test_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/f"
    with pytest.raises(Offline, match=r"offline: cannot reach 127.0.0.1 \(Connection refused\)"):
        download.download([url], tmp_path / "a" / "f.bin", settings=QUICK)
    assert list(tmp_path.iterdir()) == []

    def nobody(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    with pytest.raises(
        Offline, match=r"offline: cannot reach example.org \(Name or service not known\)"
    ):
        download.download(
            ["https://example.org/f", "https://example.org/g"], tmp_path / "f.bin", settings=QUICK
        )


def test_only_the_web(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only http and https"):
        download.download(["file:///etc/hostname"], tmp_path / "f.bin")


def test_two_at_once(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with (
        download._alone(tmp_path / "f.bin.part"),
        pytest.raises(InputError, match="another process is downloading this file"),
    ):
        fetch(server, tmp_path / "f.bin")


def test_no_room(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        download.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})()
    )
    with pytest.raises(InputError, match="has room for 0 MB"):
        fetch(server, tmp_path / "f.bin")


# --- servers that lie ---

DIGITS = b"9" * 5000
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
PARTIAL = b"HTTP/1.1 206 Partial Content\r\n"
FOUND = b"HTTP/1.1 302 Found\r\nLocation: "
PATIENCE = Settings(timeout_s=0.1, tries=2, wait_s=0.01)

# What each says first, and what over and over after that, once in so many seconds.
LIARS: dict[str, tuple[bytes, bytes, float]] = {
    "says nothing": (b"", b"", 0.0),
    "speaks no HTTP": (b"\x16\x03\x01\x00garbage\r\n\r\n", b"", 0.0),
    "a status that is no number": (b"HTTP/1.1 abc OK\r\n\r\n", b"", 0.0),
    "a status of 5,000 digits": (b"HTTP/1.1 " + DIGITS + b" OK\r\n\r\n", b"", 0.0),
    "a length of 5,000 digits": (OK + b"Content-Length: " + DIGITS + b"\r\n\r\nwalk", b"", 0.0),
    "a length of 18 digits": (OK + b"Content-Length: " + DIGITS[:18] + b"\r\n\r\nwalk", b"", 0.0),
    "a negative length": (OK + b"Content-Length: -4\r\n\r\nwalk", b"", 0.0),
    "two lengths": (OK + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nwalk", b"", 0.0),
    "a negative chunk": (CHUNKED + b"-4\r\nwalk\r\n0\r\n\r\n", b"", 0.0),
    "a chunk of 5,000 digits": (CHUNKED + DIGITS + b"\r\nwalk\r\n0\r\n\r\n", b"", 0.0),
    "a chunk that is no number": (CHUNKED + b"xyz\r\nwalk\r\n0\r\n\r\n", b"", 0.0),
    "an unknown encoding": (OK + b"Transfer-Encoding: magic\r\n\r\nwalk", b"", 0.0),
    "a range of 5,000 digits": (
        PARTIAL + b"Content-Range: bytes " + DIGITS + b"-" + DIGITS + b"/*\r\n\r\n",
        b"",
        0.0,
    ),
    "a whole of 5,000 digits": (
        PARTIAL + b"Content-Range: bytes 4-9/" + DIGITS + b"\r\n\r\n",
        b"",
        0.0,
    ),
    "a rest that nobody asked for": (PARTIAL + b"Content-Range: bytes 7-9/10\r\n\r\nrun", b"", 0.0),
    "nothing is satisfiable": (
        b"HTTP/1.1 416 No\r\nContent-Range: bytes */" + DIGITS + b"\r\n\r\n",
        b"",
        0.0,
    ),
    "leads to no address": (FOUND + b"http://[::1\r\n\r\n", b"", 0.0),
    "leads to a port of 5,000 digits": (
        FOUND + b"http://localhost:" + DIGITS + b"/\r\n\r\n",
        b"",
        0.0,
    ),
    "leads to an address with controls": (FOUND + b"http://a\x0bb\xff/\r\n\r\n", b"", 0.0),
    "leads to a name of no language": (
        FOUND + b"http://xn--\xff\xfe." + b"a" * 300 + b"/\r\n\r\n",
        b"",
        0.0,
    ),
    "leads nowhere": (b"HTTP/1.1 302 Found\r\n\r\n", b"", 0.0),
    "leads on without an end": (FOUND + b"/\r\n\r\n", b"walk" * 1000, 0.0),
    "has nothing": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", 0.0),
    "cookies of 5,000 digits": (
        b"HTTP/1.1 404 No\r\nSet-Cookie: a=b; Max-Age="
        + DIGITS
        + b"; Version="
        + DIGITS
        + b"\r\n\r\n",
        b"",
        0.0,
    ),
    "headers without an end": (OK, b"A: b\r\n", 0.0),
    "headers that drip": (OK, b"A: b\r\n", 0.05),
    "one line that drips": (OK + b"A: ", b"b", 0.05),
    "go on, go on": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
    "an answer without an end": (OK + b"\r\n", b"walk" * 1000, 0.0),
    "an answer that drips": (OK + b"\r\n", b"w", 0.05),
    "an answer of known length that drips": (
        OK + b'ETag: "one"\r\nContent-Length: 9000\r\n\r\n',
        b"w",
        0.05,
    ),
    "chunks without an end": (CHUNKED, b"4\r\nwalk\r\n", 0.0),
    "a chunk's head that drips": (CHUNKED + b"4;", b"a", 0.05),
    "an error that drips": (b"HTTP/1.1 503 Busy\r\n\r\n", b"w", 0.05),
}


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf"), 1e30])
def test_a_patience_that_no_clock_has(timeout_s: float) -> None:
    with pytest.raises(InputError, match="timeout_s"):
        Settings(timeout_s=timeout_s)


def test_many_tries_do_not_wait_for_ever(server: Server, tmp_path: Path) -> None:
    server.status = [503] * 5
    settings = Settings(timeout_s=0.5, tries=10**30, wait_s=0.001)
    assert fetch(server, tmp_path / "f.bin", sha256=SHA, settings=settings).size == 300_000


@pytest.mark.parametrize("lie", LIARS)
def test_a_lying_server_is_refused_in_one_line_and_in_time(lie: str, tmp_path: Path) -> None:
    first, then, every_s = LIARS[lie]
    over = threading.Event()

    def speak(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(10_000)
            connection.sendall(first)
            while then and not over.wait(every_s):
                connection.sendall(then)
            if not first:
                over.wait(5.0)

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=speak, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/f"
        (tmp_path / "f.part").write_bytes(b"walk")
        (tmp_path / "f.part.json").write_text(json.dumps({"url": url, "validator": '"one"'}))
        begin = time.perf_counter()
        try:
            with pytest.raises(InputError) as caught:
                download.download([url], tmp_path / "f", at_most=100_000, settings=PATIENCE)
        finally:
            over.set()
    assert time.perf_counter() - begin < 5.0
    assert not (tmp_path / "f").exists() and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "record",
    [
        "",
        "{",
        "[" * 100_000,
        "[]",
        "9" * 5000,
        '{"url": URL, "validator": [1]}',
        '{"url": URL, "validator": "a\\r\\nb: c"}',
        '{"url": URL, "validator": "\\udc80\\u0000"}',
        '{"url": URL, "validator": "' + "a" * 100_000 + '"}',
    ],
    ids=range(9),
)
def test_a_damaged_record_of_a_part_begins_anew(
    server: Server, tmp_path: Path, record: str
) -> None:
    (tmp_path / "f.bin.part").write_bytes(BODY[:1000])
    (tmp_path / "f.bin.part.json").write_text(
        record.replace("URL", json.dumps(f"{server.url}/file"))
    )
    assert fetch(server, tmp_path / "f.bin", sha256=SHA).resumed_at == 0
    assert server.ranges_asked() == [None]


# --- archives ---


def archive(path: Path, names: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, data in names.items():
            file.writestr(name, data)
    return path


def test_a_zip_is_unpacked_without_its_common_folder(tmp_path: Path) -> None:
    path = archive(
        tmp_path / "a.zip", {"set/a.bvh": b"1", "set/deep/b.bvh": b"2", "set/readme.txt": b"3"}
    )
    made = extract_zip(path, tmp_path / "out", suffixes=[".bvh"])
    assert sorted(str(p.relative_to(tmp_path / "out")) for p in made) == ["a.bvh", "deep/b.bvh"]
    assert (tmp_path / "out" / "deep" / "b.bvh").read_bytes() == b"2"
    two = archive(tmp_path / "b.zip", {"x/a.bvh": b"1", "y/a.bvh": b"2"})
    assert {p.read_bytes() for p in extract_zip(two, tmp_path / "two")} == {b"1", b"2"}


@pytest.mark.parametrize(
    "name", ["../evil.bvh", "/evil.bvh", "a/../../evil.bvh", "C:/evil.bvh", "a\\..\\..\\evil.bvh"]
)
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / "a.zip", {"good.bvh": b"1", name: b"2"})
    with pytest.raises(InputError, match="leads out of its folder; not unpacked"):
        extract_zip(path, tmp_path / "out" / "deep", suffixes=[".bvh"])
    assert [p.name for p in tmp_path.rglob("*")] == ["a.zip"]


def test_links_and_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = zipfile.ZipInfo("a.bvh")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr(link, "/etc/passwd")
    with pytest.raises(InputError, match="leads out"):
        extract_zip(tmp_path / "a.zip", tmp_path / "out")
    bomb = archive(tmp_path / "b.zip", {"a.bvh": b"0" * 2000})
    monkeypatch.setattr(download, "LARGEST_ARCHIVE", 1000)
    with pytest.raises(InputError, match="unpacks to more than"):
        extract_zip(bomb, tmp_path / "out")


def test_damaged_archives(tmp_path: Path) -> None:
    good = archive(tmp_path / "a.zip", {"a.bvh": b"abc" * 1000})
    data = bytearray(good.read_bytes())
    data[100] ^= 0xFF  # in the file's bytes: its checksum no longer fits
    (tmp_path / "b.zip").write_bytes(data)
    (tmp_path / "c.zip").write_bytes(data[:200])
    for name in ("b.zip", "c.zip"):
        with pytest.raises(InputError, match="damaged, or no zip archive"):
            extract_zip(tmp_path / name, tmp_path / "out")
    with zipfile.ZipFile(good, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.bvh", BODY)
    data = bytearray(good.read_bytes())
    data[40:60] = b"\xff" * 20
    good.write_bytes(data)
    with pytest.raises(InputError, match="damaged, or no zip archive"):
        extract_zip(good, tmp_path / "out")
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []
    with pytest.raises(InputError, match=r"holds no \.bvh"):
        extract_zip(
            archive(tmp_path / "d.zip", {"a.txt": b"1"}), tmp_path / "out", suffixes=[".bvh"]
        )
    with pytest.raises(InputError, match=r"two files 'A\.bvh' in one place"):
        extract_zip(archive(tmp_path / "e.zip", {"a.bvh": b"1", "A.bvh": b"2"}), tmp_path / "out")
