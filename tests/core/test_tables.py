"""The tables of a run, read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from npmp.core.tables import read_metrics, wall_clock_hours
from tests.refusals import refusal


def test_read_metrics(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("iteration,loss,word\n0,1.5,a\n1,,b\n2,nan\n", encoding="utf-8")
    columns = read_metrics(path)
    assert list(columns) == ["iteration", "loss"]
    np.testing.assert_array_equal(columns["loss"], [1.5, np.nan, np.nan])
    path.write_text("iteration,loss\n", encoding="utf-8")
    assert read_metrics(path) == {}
    for content in (b"", b"\xff\xfe\x00"):
        path.write_bytes(content)
        refusal("", read_metrics, path)


def test_hours(tmp_path: Path) -> None:
    assert wall_clock_hours(tmp_path) is None
    (tmp_path / "timing.csv").write_text("iteration,wall_s\n0,60.0\n1,7200.0\n")
    assert wall_clock_hours(tmp_path) == 2.0
