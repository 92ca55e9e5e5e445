"""The robot of a command that names none is that of its module, else of its data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mocap_data.errors import InputError
from mocap_data.store import MotionSet, write_motions
from npmp.experiments.common import hydra_arguments
from npmp.experiments.inferred import inferred_robot, robot_override


@pytest.fixture
def places(motions: MotionSet, tmp_path: Path) -> dict[str, str]:
    """A dataset and a module that say they are of OP3, and a module of a robot that nobody has."""
    write_motions(tmp_path / "op3.h5", replace(motions, robot="op3"))
    for name in ("op3", "unheard_of"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "module.json").write_text(json.dumps({"robot": name}))
    return {
        "data": str(tmp_path / "op3.h5"),
        "module": str(tmp_path / "op3"),
        "unheard_of": str(tmp_path / "unheard_of"),
    }


def test_module_then_data(places: dict[str, str]) -> None:
    assert robot_override("imitate", [f"data={places['data']}"]) == "robot=op3"
    assert (
        robot_override("evaluate", ["module=anymal_b_dog", f"data={places['data']}"])
        == "robot=anymal_b"
    )
    assert robot_override("skill", [f"module='{places['module']}'"]) == "robot=op3"


@pytest.mark.parametrize("more", ["robot=anymal_b", "robot.name=anymal_b", "resume=runs/a"])
def test_who_names_a_robot_is_not_corrected(places: dict[str, str], more: str) -> None:
    assert inferred_robot("evaluate", [f"module={places['module']}", more]) is None


def test_what_cannot_be_read_is_left_to_the_verb(tmp_path: Path) -> None:
    (tmp_path / "broken.h5").write_text("no HDF5")
    for argument in (
        f"data={tmp_path / 'broken.h5'}",
        "data=nowhere.h5",
        "module=nowhere",
        "module=null",
        "seed=1",
        "a=[",
    ):
        assert inferred_robot("evaluate", [argument]) is None
    assert inferred_robot("inspect", ["module=anymal_b_dog"]) is None  # a verb without a robot


@pytest.mark.parametrize("sweep", ["glob(*)", "interval(0, 1)"])
def test_sweeps_that_cannot_be_listed_are_left_to_hydra(sweep: str) -> None:
    assert inferred_robot("evaluate", [f"data={sweep}"]) is None


def test_a_robot_that_is_not_at_hand_is_named(places: dict[str, str]) -> None:
    with pytest.raises(InputError, match="for robot 'unheard_of', and there are: anymal_b"):
        robot_override("reuse", [f"module={places['unheard_of']}"])


def test_sweeps_are_for_one_robot_and_not_named_by_it(places: dict[str, str]) -> None:
    with pytest.raises(InputError, match="different robots"):
        robot_override("evaluate", [f"module=anymal_b_dog,{places['module']}"])
    arguments = hydra_arguments(
        ["module=anymal_b_dog", "seed=0,1"],
        multirun=True,
        scratch=Path("/tmp/x"),
        verb_name="evaluate",
    )
    assert "robot=anymal_b" in arguments
    assert any("exclude_keys" in a and "robot" in a for a in arguments)
