"""One small dataset and one tiny trained run, shared by the tests of the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from mocap_data.store import MotionSet, write_motions
from npmp.experiments import imitate


@pytest.fixture(scope="session")
def data(motions: MotionSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seconds of trot and three of walk as a dataset."""
    path = tmp_path_factory.mktemp("data") / "motions.h5"
    write_motions(path, motions)
    return path


@pytest.fixture(scope="session")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted `npmp imitate debug=tiny` run with seed 0. Not to be changed."""
    out = tmp_path_factory.mktemp("trained") / "run"
    assert imitate.main([f"data={data}", f"out={out}", "debug=tiny", "threads=1"]) == 0
    return out


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables as wide as where nobody says how wide: a terminal's COLUMNS, or one left by a test runner, changes
    none."""
    monkeypatch.delenv("COLUMNS", raising=False)
