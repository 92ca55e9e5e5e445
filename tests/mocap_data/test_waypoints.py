"""Paths from CSV files: what is read, and what is refused in a line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mocap_data.readers.waypoints import read_waypoints
from tests.refusals import refusal


@pytest.mark.parametrize(
    "text",
    [
        "0,0\n1,0.5\n1,2\n",
        "X [m], Y [m]\r\n0,0\r\n1, 0.5\r\n1,2\r\n",
        "\ufeffx,y\n0,0\n1,.5\n1,2\n",
    ],
)
def test_points_with_and_without_names(tmp_path: Path, text: str) -> None:
    (tmp_path / "path.csv").write_bytes(text.encode())
    points = read_waypoints(tmp_path / "path.csv", longest_m=10.0)
    np.testing.assert_allclose(points, [[0, 0], [1, 0.5], [1, 2]])


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"0,0,0\n1,1,1\n", "3 numbers"),
        (b"y,x\n0,0\n1,1\n", "line 1: 'y,x'"),
        (b"0,0\n1,nan\n", "line 2: 'nan'"),
        (b"0,0\n11,0\n", "11 m"),
    ],
)
def test_refusals(tmp_path: Path, content: bytes, key: str) -> None:
    (tmp_path / "path.csv").write_bytes(content)
    refusal(key, read_waypoints, tmp_path / "path.csv", longest_m=10.0)
