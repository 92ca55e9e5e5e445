from __future__ import annotations

import json
import math
from pathlib import Path

import h5py
import numpy as np
import pytest

from mocap_data.files import atomic_path, json_text, new_hdf5


def test_writes_are_atomic(tmp_path: Path) -> None:
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


def test_json_has_no_nan() -> None:
    figures = {"a": math.nan, "b": [1.5, -math.inf, "NaN"], "c": {"d": (np.float64("inf"), 2)}}
    expected = {"a": None, "b": [1.5, None, "NaN"], "c": {"d": [None, 2]}}
    assert json.loads(json_text(figures), parse_constant=pytest.fail) == expected
    assert json_text({"x": 0.1}, indent=1) == json.dumps({"x": 0.1}, indent=1)


def test_hdf5_writes_are_atomic(tmp_path: Path) -> None:
    with new_hdf5(tmp_path / "a.h5", track_order=True) as file:
        file["x"] = np.arange(5)
    before = (tmp_path / "a.h5").read_bytes()
    with pytest.raises(RuntimeError), new_hdf5(tmp_path / "a.h5") as file:
        raise RuntimeError("half")
    assert (tmp_path / "a.h5").read_bytes() == before and len(list(tmp_path.iterdir())) == 1
    with h5py.File(tmp_path / "a.h5") as file:
        assert list(file["x"]) == [0, 1, 2, 3, 4]


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full stands for the disk: every write to it fails as one to a full disk does."""

    def full(_: Path, content: bytes) -> None:
        with open("/dev/full", "wb", buffering=0) as device:
            device.write(content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with (
        pytest.raises(OSError, match="No space left on device") as caught,
        new_hdf5(tmp_path / "a.h5") as file,
    ):
        file["x"] = np.arange(5)
    assert caught.value.filename == str(tmp_path / "a.h5") and not list(tmp_path.iterdir())
