"""The robot of a command that names none is that of its module, else of its data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mocap_data.store import MotionSet, write_motions
from tests.experiments.jobs import job_of, jobs_of


@pytest.fixture
def places(motions: MotionSet, tmp_path: Path) -> dict[str, str]:
    """A dataset and a module that say they are of OP3."""
    write_motions(tmp_path / "op3.h5", replace(motions, robot="op3"))
    (tmp_path / "module").mkdir()
    (tmp_path / "module" / "module.json").write_text(json.dumps({"robot": "op3"}))
    return {"data": f"data={tmp_path / 'op3.h5'}", "module": f"module={tmp_path / 'module'}"}


def robot_of(name: str, *given: str) -> str:
    return str(job_of(name, *given).values["robot"])


def test_module_then_data(places: dict[str, str]) -> None:
    assert robot_of("imitate", places["data"]) == "op3"
    assert robot_of("evaluate", "module=anymal_b_dog", places["data"]) == "anymal_b"
    assert robot_of("skill info", places["module"]) == "op3"
    assert robot_of("evaluate", places["module"], "robot=anymal_b") == "anymal_b"
    swept = jobs_of("evaluate", "-m", "module=anymal_b_dog,op3_cmu")
    assert [job.values["robot"] for job in swept] == ["anymal_b", "op3"]


def test_what_cannot_be_read_is_left_to_the_command(tmp_path: Path) -> None:
    (tmp_path / "broken.h5").write_text("no HDF5")
    for argument in (f"data={tmp_path / 'broken.h5'}", "data=nowhere.h5", "module=nowhere"):
        assert robot_of("evaluate", argument) == "anymal_b"


def test_a_policy_is_judged_at_its_own_task_under_the_pushes_of_its_training() -> None:
    args = ("policy=op3_walk", "randomization=paper")
    job = job_of("evaluate", *args)
    assert job.chosen["task"] == "walk" and job.config.randomization.pushes.force == 10.0
    assert job_of("evaluate", *args, "task=path").chosen["task"] == "path"
