"""What commands say about recordings that they read."""

from __future__ import annotations

from pathlib import Path

import pytest

from mocap_data.errors import InputError
from npmp import robots
from npmp.experiments.recordings import Reading, gather
from npmp.view.inspection import inspect
from retarget.inspection import inspect_recording
from tests.mocap_data.test_subject_selection import bvh, chain


def test_the_second_person_of_a_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bvh(tmp_path / "two.bvh", chain("Ann", 0, prefix="A"), chain("Ben", 100))
    line = "2 bodies (ROOT Ann, ROOT Ben): the first is used; subject=Ben selects the second"
    assert inspect_recording(path)["remarks"] == [line]
    [row] = inspect(tmp_path)["files"]
    assert row["doubts"].startswith(line)
    assert "remarks" not in inspect(path, options={"subject": "Ben"})
    robot = robots.load("op3")
    # two parts of one file: one line
    first = gather([f"{path}@0:1", str(path)], 0, None, robot, Reading())
    assert capsys.readouterr().err == f"npmp: {path}: {line}\n"
    second = gather(str(path), 0, None, robot, Reading(subject="Ben"))
    assert capsys.readouterr().err == ""
    names = [each.clips[0].names[0] for each in (first, second)]
    assert names == ["Ann", "Ben"]
    assert second.origins["two"].subject == "Ben"
    other = tmp_path / "a.amc"
    other.write_text("")
    with pytest.raises(InputError, match="subject=Ben"):
        gather(str(other), 0, None, robot, Reading(subject="Ben"))
