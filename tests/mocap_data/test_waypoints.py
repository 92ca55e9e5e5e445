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
        "x,y\n0,0\n1,0.5\n1,2",
        "x_m,y_m\n0,0\n1,0.5\n1,2",
        "X [m], Y [m]\r\n0,0\r\n1, 0.5\r\n1,2\r\n",
        "\ufeffx,y\n0,0\n1,.5\n1,2\n",
    ],
)
def test_points_with_and_without_names(tmp_path: Path, text: str) -> None:
    (tmp_path / "path.csv").write_bytes(text.encode())
    found = read_waypoints(tmp_path / "path.csv", longest_m=10.0)
    np.testing.assert_allclose(found, [[0, 0], [1, 0.5], [1, 2]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "path.csv is empty"),
        (b"x,y\n", "path.csv is empty"),
        (b"0,0,0\n1,1,1\n", "3 numbers in a row; a path has two, x and y in metres"),
        (b"y,x\n0,0\n1,1\n", "line 1: 'y,x'; a path has x, y in metres, a comma between them"),
        (b"x;y\n0;0\n1;1\n", "line 1: 'x;y'; a path has"),
        (b"0,0\n1\n", "line 2: 1 numbers"),
        (b"x,y\n0,0\n1,a\n", "line 3: 'a' is not a number"),
        (b"0,0\n1,nan\n", "line 2: a value is not finite"),
        (b"0,0\n1,inf\n", "line 2: a value is not finite"),
        (b"0,0\n", "a path of 0 m"),
        (b"1,1\n1,1\n", "a path of 0 m; between 0.1 and 10 m are followed"),
        (b"0,0\n1e300,0\n-1e300,1e300\n", "a path of inf m"),
        (b"0,0\n11,0\n", "a path of 11 m"),
        (b"\0\1\2\3", "is binary"),
        (b"\xff\xfe0\0,\0", "UTF-16"),
    ],
)
def test_hostile_files_are_a_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "path.csv").write_bytes(content)
    assert message in refusal("", read_waypoints, tmp_path / "path.csv", longest_m=10.0)


def test_size_and_kind_are_checked_first(tmp_path: Path) -> None:
    with open(tmp_path / "large.csv", "wb") as file:
        file.truncate((16 << 20) + 1)
    for place, message in (
        (tmp_path / "large.csv", "bytes; at most"),
        (tmp_path, "is a folder"),
        (Path("/dev/zero"), "no regular"),
    ):
        refusal(message, read_waypoints, place, longest_m=10.0)
