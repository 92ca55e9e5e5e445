"""The catalog of recordings and its cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from mocap_data import catalog
from mocap_data.catalog import Entry, Source
from mocap_data.download import Offline
from tests.refusals import refusal


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address that serves a folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address that serves it."""
    folder = tmp_path / "site"
    folder.mkdir()
    with serving(folder) as address:
        yield folder, address


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def entry(base: str, *files: Source | str, **changes: Any) -> Entry:
    sources = tuple(Source(f, (base + f,)) if isinstance(f, str) else f for f in files)
    texts = {"what": "w", "licence": "l", "licence_url": "u", "credit": "c", "homepage": "h"}
    return Entry(name="set", non_commercial=False, files=sources, **{**texts, **changes})


def test_the_shipped_catalog_is_sound() -> None:
    entries = catalog.entries()
    assert {"dog", "cmu", "cmu-h5", "dog-keypoints", "deepmimic", "deepmimic-dog"} == set(entries)
    for one in entries.values():
        assert one.what and one.licence and one.licence_url.startswith("http")
        assert one.credit and one.files
        assert len({source.path for source in one.files}) == len(one.files)
        for source in one.files:
            assert not Path(source.path).is_absolute() and ".." not in Path(source.path).parts
            assert all(
                url.startswith(("https://", "http://mocap.cs.cmu.edu/")) for url in source.urls
            )
            assert (source.sha256 is None) == (source.size is None)
            assert source.sha256 is None or (len(source.sha256) == 64 and int(source.sha256, 16))
        assert one.non_commercial == ("NC" in one.licence)
        # more than one address for a file needs the hash to say which of them is right
        assert all(source.sha256 for source in one.files if len(source.urls) > 1)
    refusal("'cat'", catalog.entry, "cat")


def test_dm_control_has_the_same_hash() -> None:
    mocap = pytest.importorskip("dm_control.locomotion.mocap.cmu_mocap_data")
    (source,) = catalog.entry("cmu-h5").files
    assert (source.sha256, source.size) == (mocap.H5_SHA256["2020"], mocap.H5_BYTES["2020"])
    assert source.urls == (mocap.H5_URL["2020"],)


def test_fetch_brings_what_is_missing_or_damaged(site: tuple[Path, str], tmp_path: Path) -> None:
    folder, base = site
    (folder / "a.bvh").write_bytes(b"one")
    (folder / "b.bvh").write_bytes(b"two")
    which = entry(base, "a.bvh", Source("07/b.bvh", (base + "b.bvh",), sha(b"two"), 3))
    assert catalog.state_of(which, tmp_path) == (0, 2)
    report = catalog.fetch(which, cache=tmp_path)
    assert [result.read_bytes() for result in report.fetched] == [
        b"one",
        b"two",
    ] and not report.failed
    assert catalog.state_of(which, tmp_path) == (2, 2)
    again = catalog.fetch(which, cache=tmp_path)
    assert not again.fetched and len(again.present) == 2
    # damaged in the cache, where the hash is known
    (report.folder / "07/b.bvh").write_bytes(b"xxx")
    assert catalog.fetch(which, cache=tmp_path).fetched == [report.folder / "07/b.bvh"]


def test_a_wrong_hash_fails_alone(site: tuple[Path, str], tmp_path: Path) -> None:
    folder, base = site
    (folder / "a.bvh").write_bytes(b"one")
    (folder / "b.bvh").write_bytes(b"two")
    which = entry(base, Source("a.bvh", (base + "a.bvh",), sha(b"ONE"), 3), "missing.bvh", "b.bvh")
    report = catalog.fetch(which, cache=tmp_path)
    assert [path for path, _ in report.failed] == ["a.bvh", "missing.bvh"]
    assert "sha256" in report.failed[0][1] and "404" in report.failed[1][1]
    assert [result.name for result in report.fetched] == ["b.bvh"]


def test_placing_replaces_only_its_own_files(site: tuple[Path, str], tmp_path: Path) -> None:
    folder, base = site
    (folder / "a.bvh").write_bytes(b"one")
    which = entry(base, "a.bvh")
    report = catalog.fetch(which, cache=tmp_path)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "a.bvh").write_text("old")
    (mine / "other.bvh").write_text("mine")
    catalog.place(which, report, mine)
    assert sorted(p.name for p in mine.iterdir()) == ["a.bvh", "other.bvh"]
    assert (mine / "a.bvh").read_bytes() == b"one"


def test_offline_reports_the_cached_files(site: tuple[Path, str], tmp_path: Path) -> None:
    folder, base = site
    (folder / "a.bvh").write_bytes(b"one")
    catalog.fetch(entry(base, "a.bvh"), cache=tmp_path)
    gone = entry("http://127.0.0.1:9/", "a.bvh", "b.bvh")  # the discard port: nothing listens
    with pytest.raises(Offline, match=r"offline: cannot reach 127.0.0.1:9; 1 of 2 files are in "):
        catalog.fetch(gone, cache=tmp_path)
    # what is there needs no network
    assert catalog.fetch(entry("http://127.0.0.1:9/", "a.bvh"), cache=tmp_path).present
