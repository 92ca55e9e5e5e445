from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mocap_data.files import atomic_path


def test_writes_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "new" / "file.txt"
    with atomic_path(target) as temporary:
        assert temporary.parent == target.parent
        assert temporary.suffix == ".txt"
        temporary.write_text("first")
        assert not target.exists()
    assert target.read_text() == "first"
    with pytest.raises(RuntimeError), atomic_path(target) as temporary:
        temporary.write_text("second, half")
        raise RuntimeError
    assert target.read_text() == "first"
    assert [path.name for path in target.parent.iterdir()] == ["file.txt"]


def test_usual_rights(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with atomic_path(tmp_path / "atomic") as temporary:
        temporary.write_text("")
    rights = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "atomic")]
    assert rights[0] == rights[1]


def test_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError), atomic_path(tmp_path / "file" / "x"):
        raise AssertionError("not reached")
