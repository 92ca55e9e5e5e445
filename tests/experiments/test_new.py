"""`npmp new`: what it writes runs as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mocap_data.errors import InputError
from npmp import tasks
from npmp.experiments import cli

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_task_trains_and_is_judged(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["new", "task", "turn_about"]) == 0
    assert "npmp reuse task=turn_about" in capsys.readouterr().out
    tiny = ["task=turn_about", "module=anymal_b_dog", "debug=tiny", "threads=1", "steps=288"]
    assert cli.main(["reuse", *tiny, "task.episode_s=3", "out=run"]) == 0
    assert json.loads(Path("run/policy/policy.json").read_text())["task"] == "turn_about"
    assert "turn_about_error_rad" in capsys.readouterr().out
    judged = ["policy=run/policy", "task=turn_about", "debug=tiny", "threads=1", "out=judged"]
    assert cli.main(["evaluate", *judged]) == 0
    assert (
        0 <= json.loads(Path("judged/evaluation.json").read_text())["turn_about_error_rad"] <= 3.2
    )
    assert cli.main(["reuse", *tiny, "task=turn_abot", "out=other"]) == 2
    assert "did you mean 'turn_about'" in capsys.readouterr().err


def test_the_docs_show_what_is_written(place: Path) -> None:
    assert cli.main(["new", "task", "heading"]) == 0
    text = (ROOT / "docs" / "your_own_task.md").read_text()
    for suffix, language in ((".py", "python"), (".yaml", "yaml")):
        [block] = re.findall(rf"```{language}\n(.*?)```", text, re.S)[:1]
        assert Path(f"tasks/heading{suffix}").read_text() == block


def test_what_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("tasks").mkdir()
    for name, said in (
        ("walk", "is a task of this package"),
        ("No-Name", "small letters"),
        ("mine", "is there already"),
    ):
        Path("tasks/mine.py").write_text("raise ValueError('broken')")
        assert cli.main(["new", "task", name]) == 2
        assert said in capsys.readouterr().err
    assert cli.main(["new", "robot", "rex"]) == 2
    assert "model=" in capsys.readouterr().err
    Path("tasks/mine.yaml").write_text("name: mine\n")
    assert cli.main(["reuse", "task=mine", "module=anymal_b_dog"]) == 2
    assert "tasks/mine.py: ValueError: broken" in capsys.readouterr().err
    Path("tasks/mine.py").write_text("")
    with pytest.raises(InputError, match="has no task with name = 'mine'"):
        tasks.find("mine")


def test_tasks_elsewhere_are_found(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["new", "task", "look_around", "out=elsewhere"]) == 0
    with pytest.raises(InputError, match="no task 'look_around'"):
        tasks.find("look_around")
    monkeypatch.setenv("NPMP_TASKS", str(place / "elsewhere"))
    assert tasks.find("look_around").name == "look_around"
