"""`npmp robots`, and robot= for one's own robots."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from pytest import CaptureFixture, MonkeyPatch

from mocap_data.errors import InputError
from mocap_data.store import read_motions
from npmp import robots
from npmp.experiments import cli
from npmp.experiments.command import Run
from npmp.robots.menagerie import reference_to
from npmp.view.render.film import Frames
from npmp.view.render.stage import ROBOT_GROUP, stage
from npmp.view.report import robot_page
from tests.experiments.command import Says
from tests.experiments.jobs import job_of
from tests.refusals import refusal
from tests.robots import models


@pytest.fixture(scope="module")
def dog() -> str:
    """A model in Unitree's layout."""
    return models.dog()


def no_picture(*_: object, **__: object) -> None:
    raise InputError("nothing can draw here: egl: no driver")


@pytest.fixture
def place(dog: str, tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """A working directory with dog.xml, where nothing can draw."""
    monkeypatch.setattr(robot_page, "draw", no_picture)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MENAGERIE_ROOT", raising=False)
    monkeypatch.setenv("MENAGERIE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "dog.xml").write_text(dog)
    return tmp_path


def test_list(place: Path, printed: Says) -> None:
    output = printed("robots", "list")
    assert "30.48" in output and all(name in output for name in robots.names())
    # nothing of Menagerie is here, and listing fetches nothing
    assert "downloaded at first use" in output


def robots_verb(action: str, *given: str) -> int:
    """A command, its errors as they are."""
    command = cli.command_of(f"robots {action}")
    job = job_of(f"robots {action}", *given)
    return command.function(job.config, Run("robots", job.config.out, 0, "cpu", 1)) or 0


def test_add_check_and_use(place: Path, capsys: CaptureFixture[str], printed: Says) -> None:
    output = printed("robots", "add", "dog.xml", "name=rex")
    assert "12 of 12 checks hold" in output and "wrote robots/rex/robot.yaml" in output
    assert "robot=rex" in output
    assert "FL_foot" in output and "guess" in output
    file = place / "robots" / "rex" / "robot.yaml"
    written = file.read_text()
    assert yaml.safe_load(written)["name"] == "rex" and "# guessed: " in written

    refusal(r"robots/rex/robot.yaml", robots_verb, "add", "dog.xml", "name=rex")
    file.write_text("changed")
    assert robots_verb("add", "dog.xml", "name=rex", "replace=true") == 0
    assert file.read_text() == written
    for target in ("rex", "robots/rex", "robots/rex/robot.yaml"):
        assert robots_verb("check", target) == 0
    assert robots_verb("list") == 0
    assert "rex: 12 of 12 checks hold." in capsys.readouterr().out

    file.write_text(written.replace("kp: ", "kp: 1  # "))
    assert cli.main(["robots", "check", "robots/rex"]) == 2
    assert "failing: " in capsys.readouterr().out


def test_show(place: Path, printed: Says, monkeypatch: MonkeyPatch) -> None:
    output = printed("robots", "add", "dog.xml", "name=rex")
    assert "page: robots/rex/rex.html (no still: nothing can draw here" in output
    page = place / "robots" / "rex" / "rex.html"
    text = page.read_text()
    assert "half its torque limit per radian" in text
    # a line of robot.yaml with its reason
    lines = (place / "robots" / "rex" / "robot.yaml").read_text().splitlines()
    guesses = robot_page.guesses_of("\n".join(lines))
    assert len(guesses) == sum("guessed: " in line for line in lines)
    number, message, why = next(
        guess for guess in guesses if guess[1].startswith("control_rate_hz")
    )
    assert lines[number - 1] == f"{message}  # guessed: {why}"
    assert ("home: guessed" in "".join(lines)) == any(guess[1] == "home" for guess in guesses)

    picture = np.full((1, 16, 16, 3), 200, dtype=np.uint8)
    frames = Frames(picture, 1.0, "egl")
    monkeypatch.setattr(robot_page, "draw", lambda *_, **__: frames)
    assert "still: robots/rex/rex.png" in printed("robots", "show", "rex")
    assert "data:image/png;base64," in page.read_text()
    printed("robots", "show", "anymal_b", "out=here")
    assert (place / "here" / "anymal_b.png").is_file()
    assert "No line of robot.yaml is guessed" in (place / "here" / "anymal_b.html").read_text()
    page.unlink()
    printed("robots", "add", "dog.xml", "name=rex", "replace=true", "show=false")
    assert not page.exists()


def test_a_picture_has_markers_and_collision_shapes() -> None:
    robot = robots.load("anymal_b")
    shot = robot_page.shot_of(robot)
    assert set(shot.marks) == set(robot.markers)
    # at home the lowest of the feet's spheres touches the floor
    assert shot.marks["LF_foot"][2] == pytest.approx(robot.foot_radius, abs=1e-6)
    model = stage(robot, (64, 64), 3.0, None, 0.1, np.zeros((1, 2)), glass=True)
    seen = (model.geom_bodyid > 0) & (model.geom_group == ROBOT_GROUP)
    colliding = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    assert (seen & colliding).sum() == (colliding & (model.geom_bodyid > 0)).sum() > 0
    assert (model.geom_rgba[seen, 3] < 0.5).all()


def test_a_project_that_is_moved(place: Path) -> None:
    """The model lies under the same folder as robot.yaml, which says the way there."""
    assert cli.main(["robots", "add", "dog.xml", "name=rex"]) == 0
    expected = "../../dog.xml"
    assert yaml.safe_load((place / "robots" / "rex" / "robot.yaml").read_text())["mjcf"] == expected
    moved = place / "elsewhere"
    moved.mkdir()
    (place / "robots").rename(moved / "robots")
    (place / "dog.xml").rename(moved / "dog.xml")
    assert robots.load(moved / "robots" / "rex").mjcf == (moved / "dog.xml").resolve()
    result = reference_to("dog.xml", Path("/models/dog.xml"), Path("/projects/robots/rex"))
    assert result == "/models/dog.xml"


def test_checks_that_fail_after_add(place: Path, dog: str, capsys: CaptureFixture[str]) -> None:
    """Position actuators too weak: the model's word is taken, and what it leads to is said last."""
    weak = dog
    for joint in [
        f"{leg}_{part}_joint"
        for leg in ("FR", "FL", "RR", "RL")
        for part in ("hip", "thigh", "calf")
    ]:
        weak = weak.replace(
            f'<motor name="{joint.removesuffix("_joint")}" joint="{joint}" gear="2" '
            'ctrlrange="-10 10"/>',
            f'<position joint="{joint}" kp="0.5" forcerange="-9 9" dampratio="1"/>',
        )
    (place / "dog.xml").write_text(weak)
    assert robots_verb("add", "dog.xml", "name=rex") == 2
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("wrote robots/rex/robot.yaml, but ") and "failed (" in last
    assert "stands" in last
    assert "edit there " in last and "drives" in last
    assert last.endswith("then npmp robots check rex") and "use it" not in last


def test_one_look_and_motions_of_a_robot_nobody_knew(place: Path) -> None:
    assert robots_verb("add", "dog.xml", "name=rex") == 0
    assert cli.main(["retarget", "robot=robots/rex", "out=motions.h5", "debug=tiny"]) == 0
    result = read_motions(place / "motions.h5")
    assert result.robot == "rex" and result.motions
    assert all(motion.quality["limit_violations"] == 0 for motion in result.motions)
