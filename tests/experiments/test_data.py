"""`npmp data`: listing, licences, fetching from a server on this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest import CaptureFixture, MonkeyPatch

from mocap_data import catalog
from npmp.experiments import cli, data
from tests.experiments.command import Says
from tests.mocap_data.test_catalog import serving, sha

real_entry = catalog.entry
LIST = """
free:
  what: a free walk
  licence: CC0
  licence_url: https://example.org/cc0
  non_commercial: false
  credit: me
  homepage: https://example.org
  use: npmp retarget source=FOLDER
  bases: [BASE]
  files:
    - [walk.bvh, 4, SHA]
    - run.bvh
bound:
  what: a bound walk
  licence: CC BY-NC 4.0 (non-commercial use only)
  licence_url: https://example.org/nc
  non_commercial: true
  credit: "you: [all]"
  homepage: https://example.org
  bases: [BASE]
  files: [walk.bvh]
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: MonkeyPatch) -> Iterator[Path]:
    """The folder of a server with a catalog of its own; the cache lies beside it."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "walk.bvh").write_text("walk")
    (folder / "run.bvh").write_text("runs")
    path = tmp_path / "catalog.yaml"
    text = LIST.replace("SHA", sha(b"walk"))
    real = catalog.entries
    monkeypatch.setattr(catalog, "entries", lambda _=None: real(path))
    monkeypatch.setattr(catalog, "entry", lambda name: real_entry(name, path))
    monkeypatch.setenv("NPMP_CACHE", str(tmp_path / "cache"))
    with serving(folder) as base:
        path.write_text(text.replace("BASE", base))
        yield folder


def test_the_real_list(printed: Says, monkeypatch: MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NPMP_CACHE", str(tmp_path / "cache"))
    output = printed("data", "list")
    for word in ("dog-keypoints", "cmu", "CC BY-NC 4.0", str(tmp_path / "cache")):
        assert word in output
    assert not (tmp_path / "cache").exists()  # looking leaves nothing behind


def test_fetch_to_a_folder(site: Path, tmp_path: Path, printed: Says) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    output = printed("data", "fetch", "free", f"out={mine}")
    assert "2 files fetched" in output and "licence: CC0" in output and "credit: me" in output
    assert f"npmp retarget source={mine}" in output
    assert sorted(path.name for path in mine.iterdir()) == ["run.bvh", "walk.bvh"]
    assert "0 files fetched (0 MB), 2 were there" in printed("data", "fetch", "free")
    rows = [
        line.split("│")
        for line in printed("data", "list").splitlines()
        if "walk" in line and "│" in line
    ]
    assert [(row[1].strip(), row[5].strip()) for row in rows] == [("free", "yes"), ("bound", "no")]


def test_a_bound_licence_is_accepted_or_nothing_happens(
    site: Path, tmp_path: Path, printed: Says, refused: Says
) -> None:
    assert refused("data", "fetch", "bound").splitlines() == [
        "bound is CC BY-NC 4.0 (non-commercial use only), https://example.org/nc; "
        "accept_licence=true accepts this"
    ]
    assert not (tmp_path / "cache").exists()
    assert "you: [all]" in printed("data", "fetch", "bound", "accept_licence=true")


@pytest.mark.parametrize(("answer", "accepted"), [("yes\n", True), ("no\n", False), ("", False)])
def test_a_terminal_is_asked(
    answer: str, accepted: bool, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return answer

    monkeypatch.setattr(data.sys, "stdin", Terminal())
    monkeypatch.setattr(data.sys.stderr, "isatty", lambda: True, raising=False)
    if accepted:
        data.accept("dog", "CC BY-NC 4.0", accepted=False)
    else:
        with pytest.raises(data.InputError, match="not accepted, so nothing was fetched"):
            data.accept("dog", "CC BY-NC 4.0", accepted=False)
    assert "CC BY-NC 4.0" in capsys.readouterr().err


def test_what_failed_is_listed(site: Path, capsys: CaptureFixture[str]) -> None:
    (site / "walk.bvh").write_text("fake")  # as long as the right one
    assert cli.main(["data", "fetch", "free"]) == 2
    printed = capsys.readouterr()
    assert "1 files fetched" in printed.out or "1 file fetched" in printed.out
    first, last = printed.err.splitlines()
    assert "walk.bvh" in first and "sha256" in first
    assert last == "npmp: error: 1 of 2 files of free are missing"


def test_offline_is_one_line(refused: Says, monkeypatch: MonkeyPatch, tmp_path: Path) -> None:
    def unresolved(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    monkeypatch.setenv("NPMP_CACHE", str(tmp_path / "cache"))
    assert refused("data", "fetch", "cmu") == "offline: cannot reach mocap.cs.cmu.edu"
    assert not (tmp_path / "cache").exists()
