"""What `npmp play` makes of its arguments; tests/view/play has the rest."""

from __future__ import annotations

import socket

from pytest import CaptureFixture

from npmp.experiments import cli, play
from tests.experiments.jobs import job_of


def cast_of(*given: str) -> tuple[play.Cast, str | None]:
    job = job_of("play", *given)
    return play.cast_of(job.config, job.chosen["task"])


def test_without_arguments_there_is_all_that_is_shipped_for_anymal() -> None:
    cast, mode = cast_of()
    assert mode is None and cast.modes == ("steer", "navigate", "dribble", "imitate", "wander")
    assert list(cast.presets) == ["none", "paper", "wide"]
    assert cast.presets["paper"].pushes.force == 150.0  # of reuse
    assert cast.presets["none"].hold == "first_order"  # as the module was trained


def test_a_robot_on_two_legs_has_no_generated_gaits() -> None:
    cast, _ = cast_of("robot=op3")
    assert cast.modes == ("steer", "dribble", "wander")


def test_a_task_is_a_mode() -> None:
    for task, mode in (("dribble", "dribble"), ("imitation", "imitate")):
        assert cast_of(f"task={task}")[1] == mode
    cast, mode = cast_of("policy=anymal_b_rough", "task=path", "task.path=slalom")
    assert mode == "path" and cast.settings["path"].path == "slalom"
    session = play.Session(cast, mode)
    for _ in range(3):
        session.step()
    assert session.snapshot().mode == "path"


def test_a_robot_plays_what_is_shipped_for_it() -> None:
    cast, mode = cast_of("robot=unitree_go2")
    assert cast.robot.name == cast.skill.robot == "unitree_go2" and "wander" in cast.modes
    session = play.Session(cast, mode)
    session.step()
    assert not session.snapshot().down


def test_a_port_that_is_taken(capsys: CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert cli.main(["play", f"port={port}"]) == 2
    assert f"port={port}" in capsys.readouterr().err
