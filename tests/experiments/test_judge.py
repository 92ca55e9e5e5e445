"""`npmp evaluate policy=` and `npmp skill list` on an untrained policy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pytest import CaptureFixture, MonkeyPatch

from npmp import robots
from npmp.core.registry import Registry
from npmp.evaluation import terrains
from npmp.experiments import cli
from npmp.skills import modules, policies
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.tasks import Dribble
from tests.experiments.command import Says
from tests.experiments.jobs import job_of

TINY = ["debug=tiny", "threads=1"]


def judged(policy: Path, out: Path, *more: str) -> dict[str, object]:
    assert cli.main(["evaluate", f"policy={policy}", f"out={out}", *TINY, *more]) == 0
    found = json.loads((out / "evaluation.json").read_text())
    expected = {".hydra", "config.yaml", "evaluation.json", "report.html"}
    assert {entry.name for entry in out.iterdir()} == expected
    assert isinstance(found, dict)
    return found


def test_walking_is_judged_without_data(
    policy: Path, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    more = "task=walk evaluation.grid=true evaluation.pushes=[20,40] evaluation.short_s=0.3"
    found = judged(policy, tmp_path / "walk", *more.split())
    assert "walk: velocity_error" in capsys.readouterr().out
    expected = ("anymal_b_walk", "module", "anymal_b", "walk")
    assert (found["policy"], found["module"], found["robot"], found["task"]) == expected
    parts = [f"error_{name}" for name in ("forward_mps", "lateral_mps", "yaw_rate_rps")]
    parts += [f"{part}_1s" for part in parts] + ["error_forward_mps_settled", "torque_rms_nm"]
    for key in (*parts, "falls_per_minute", "survived", "velocity_error"):
        assert isinstance(found[key], float), key
    assert [row["force_n"] for row in found["pushes"]] == [20, 40]  # type: ignore[attr-defined]
    assert found["grid"][0]["faults"] == []  # type: ignore[index]
    page = (tmp_path / "walk" / "report.html").read_text()
    for words in ("Gait diagram", "Command by command", "Recovery from pushes", "commanded"):
        assert words in page
    assert "Roll" in page


def test_dribbling_shows_the_ball(policy: Path, tmp_path: Path) -> None:
    robot, folder = robots.load("anymal_b"), tmp_path / "commanded"
    module = f"module={policy.parent / 'module'}"
    HighLevelPolicy.load(policy).for_other_task(Dribble(robot)).save(folder)
    found = judged(folder, tmp_path / "dribble", "task=dribble", "task.jump_period_s=0.1", module)
    assert 0.0 < found["ball_target_before_jump_median_m"] < 5.0  # type: ignore[operator]
    page = (tmp_path / "dribble" / "report.html").read_text()
    for words in ("Ball, x", "Share of time", '"ball"', '"radius"'):
        assert words in page


@pytest.mark.slow
def test_judging_on_rough_ground(policy: Path, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    for name, values in (("SLOPES_DEG", (10.0, 20.0)), ("STAIRS_M", ()), ("PERLIN_M", (0.1,))):
        monkeypatch.setattr(terrains, name, values)
    task = ("task=walk", "task.terrain=stairs", "task.terrain_fields=2")
    found = judged(
        policy, tmp_path / "rough", *task, "evaluation.grounds=true", "evaluation.short_s=0.2"
    )
    rows = [(row["terrain"], row["value"]) for row in found["grounds"]]  # type: ignore[attr-defined]
    assert rows == [("slopes", 10.0), ("slopes", 20.0), ("perlin", 0.1)]
    page = (tmp_path / "rough" / "report.html").read_text()
    assert "Stairs, height of a step" not in page
    ground = "Rough ground", "Perlin noise", "above the mean of the ground", '"ground"'
    for words in (*ground, "repeats itself"):
        assert words in page


def test_a_walking_policy_follows_a_path(policy: Path, tmp_path: Path) -> None:
    (tmp_path / "my way.csv").write_text("x,y\n0,0\n1,0\n2,1\n")
    more = "task=path", f"task.path={tmp_path / 'my way.csv'}", "task.speed_mps=0.4"
    found = judged(policy, tmp_path / "path", *more)
    assert found["path_length_m"] == pytest.approx(1.0 + 2.0**0.5) and found["finished"] == 0.0
    assert isinstance(found["path_error_mean_m"], float)
    assert isinstance(found["path_error_max_m"], float)
    assert found["settings"]["command_range"] == [[0.0, 0.8], [-0.2, 0.2], [-0.5, 0.5]]  # type: ignore[index]
    assert "From above" in (tmp_path / "path" / "report.html").read_text()


def test_a_policy_is_judged_under_reuse_s_randomization(
    policy: Path, tmp_path: Path, printed: Says
) -> None:
    found = judged(
        policy, tmp_path / "paper", "task=walk", "randomization=paper", "evaluation.seconds=0.1"
    )
    assert found["randomization"] == "paper"
    assert "force: 150.0" in (tmp_path / "paper" / "config.yaml").read_text()
    assert job_of("evaluate", "randomization=paper").config.randomization.pushes.force == 50.0
    arguments = [
        f"policy={policy}",
        "task=walk",
        "randomization=paper",
        "randomization.pushes.force=7",
        "--cfg",
        "job",
    ]
    assert "force: 7" in printed("evaluate", *arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"task": "imitation"},
            "the policy was trained for task 'walk'; task=imitation accepts policies for imitation",
        ),
        ({"task": "swim"}, "no task 'swim'"),
        ({"module": "anymal_b_dog"}, "the policy commands another skill module than"),
        ({"robot": "op3"}, "anymal_b"),
        (
            {"task": "path", "task.path": "square dance"},
            "no path 'square dance'; available: figure_eight",
        ),
        ({"task": "path", "task.speed_mps": "3"}, "speed_mps=3: commands reach 0.8 m/s forward"),
        ({"task.speed_mps": "1"}, "task has no setting 'speed_mps'"),
        ({"task.command_range": "[[0,1],[0]]"}, "command_range"),
        ({"evaluation.robots": "0"}, "evaluation"),
        ({"evaluation.robots": "100000000000"}, "GiB of memory"),
        ({"evaluation.seconds": "-1"}, "seconds"),
        ({"evaluation.pushes": "[a]"}, "evaluation.pushes[0] must be a finite number"),
        (
            {"task": "path", "evaluation.grid": "true"},
            "trials on a grid of commands, under pushes and on grounds are for",
        ),
    ],
)
def test_mistakes_are_a_line(
    change: dict[str, str], message: str, policy: Path, tmp_path: Path, capfd: CaptureFixture[str]
) -> None:
    arguments = {"policy": str(policy), "task": "walk", "out": str(tmp_path / "out"), **change}
    code = cli.main(["evaluate", *(f"{key}={value}" for key, value in arguments.items()), *TINY])
    assert code == 2
    [line] = capfd.readouterr().err.strip().splitlines()
    assert message in line
    assert not (tmp_path / "out").exists()


def test_a_module_that_is_nowhere_must_be_named(
    policy: Path, tmp_path: Path, capfd: CaptureFixture[str]
) -> None:
    shutil.copytree(policy, tmp_path / "alone")
    arguments = [f"policy={tmp_path / 'alone'}", "task=walk", f"out={tmp_path / 'out'}", *TINY]
    assert cli.main(["evaluate", *arguments]) == 2
    shipped = ", ".join(modules.names())
    assert f"among the shipped ones ({shipped}) or next to" in capfd.readouterr().err
    assert cli.main(["evaluate", *arguments, f"module={policy.parent / 'module'}"]) == 0


def test_policies_are_listed_and_shown(
    policy: Path, monkeypatch: MonkeyPatch, printed: Says, refused: Says, tmp_path: Path
) -> None:
    empty, full = (
        Registry(place, "policy", "policy.json", "README.md") for place in (tmp_path, policy.parent)
    )
    for registry in (empty, full):
        for name in ("names", "find", "card"):
            monkeypatch.setattr(policies, name, getattr(registry, name))
        monkeypatch.setattr(policies, "REGISTRY", registry)
        shown = printed("skill", "list")
        assert ("anymal_b_walk" in shown and "0 to 0.8 forward_mps" in shown) == (registry is full)
    assert printed("skill", "show", "anymal_b_walk") == "# anymal_b_walk\n\n"
    for words, message in (
        (["show"], "npmp skill show needs target="),
        (["show", "cat"], "no module or policy 'cat'; available: anymal_b_dog"),
        (["dance"], "has no action 'dance'; available: list, show"),
    ):
        assert message in refused("skill", *words)
    out = tmp_path / "out"
    arguments = [
        "evaluate",
        "policy=anymal_b_walk",
        "task=walk",
        f"out={out}",
        *TINY,
        "evaluation.seconds=0.1",
    ]
    assert cli.main(arguments) == 0
    assert json.loads((out / "evaluation.json").read_text())["policy"] == "anymal_b_walk"
