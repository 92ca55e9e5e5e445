"""The code of a task in ./tasks runs when the command line names it, never because a file does."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mocap_data.errors import InputError
from npmp import tasks
from npmp.core import plugins
from npmp.experiments import cli, usage
from tests.experiments.command import Says
from tests.experiments.jobs import job_of

SPIN = """
from pathlib import Path
from npmp.tasks import Walk
Path("ran").touch()
class Spin(Walk):
    name = "spin"
"""


@pytest.fixture(autouse=True)
def spin(elsewhere: Path) -> Iterator[None]:
    Path("tasks").mkdir()
    Path("tasks/spin.py").write_text(SPIN)
    yield
    sys.modules.pop("npmp_plugin_task_spin", None)


def test_the_command_line_names_it() -> None:
    assert job_of("reuse", "module=m", "task=spin", "task.episode_s=3").values["task"]["name"]
    assert Path("ran").exists()
    assert [*plugins.loaded_tasks()] == ["spin"]
    # from then on files may, too
    assert tasks.find("spin", source="policy.json").name == "spin"


def test_its_help_is_that_of_its_settings() -> None:
    text = usage.of_command("reuse", cli.command_of("reuse"), ["task=spin"])
    assert "keys of task=spin" in text and Path("ran").exists()


def test_a_policy_names_it(refused: Says) -> None:
    Path("policy").mkdir()
    Path("policy/policy.json").write_text(json.dumps({"robot": "anymal_b", "task": "spin"}))
    for verb in ("evaluate", "render"):
        assert "add task=spin" in refused(verb, "policy=policy")
    with pytest.raises(InputError, match=r"policy\.json names task=spin; .* add task=spin"):
        tasks.find("spin", source="policy.json")
    assert not Path("ran").exists()


def test_a_run_to_resume_names_it(refused: Says) -> None:
    Path("run").mkdir()
    stored = {"verb": "reuse", "module": "m", "task": {"name": "spin"}, "out": "run", "seed": 0}
    Path("run/config.yaml").write_text(yaml.safe_dump(stored))
    assert "add task=spin" in refused("reuse", "resume=run")
    assert not Path("ran").exists()
    assert job_of("reuse", "resume=run", "task=spin").chosen["task"] == "spin"


def test_an_experiment_or_a_story_names_it(refused: Says) -> None:
    Path("configs/experiment").mkdir(parents=True)
    content = "# @package _global_\nverb: reuse\ndefaults: [{override /task: spin}]\n"
    Path("configs/experiment/best.yaml").write_text(content)
    args = ("--config-dir", "configs", "experiment=best", "module=m")
    assert "add task=spin" in refused("reuse", *args)
    Path("story").write_text("policy=anymal_b_walk task=spin\n")
    assert "add task=spin" in refused("render", "story=story", "out=film.webp")
    assert not Path("ran").exists()


def test_a_sweep_names_it(refused: Says) -> None:
    config = {"out": "s", "module": "m", "task": {"name": "spin"}}
    plan = {"verb": "reuse", "jobs": [{"name": "one", "overrides": [], "config": config}]}
    jobs = [{"name": "one", "overrides": [], "state": "stopped"}]
    state = {"launcher": {}, "jobs": jobs, "verb": "reuse"}
    Path("s").mkdir()
    Path("s/jobs.json").write_text(json.dumps(plan))
    Path("s/sweep.json").write_text(json.dumps(state))
    assert "add task=spin" in refused("sweeps", "resume", "s")
    assert not Path("ran").exists()
