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
from npmp.evaluation.terrains import TERRAIN_TRIALS
from npmp.experiments import cli
from npmp.skills import modules, policies
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.tasks import Dribble
from tests.experiments.command import Says

TINY = ["debug=tiny", "threads=1"]


def judged(policy: Path, out: Path, *more: str) -> dict[str, object]:
    assert cli.main(["evaluate", f"policy={policy}", f"out={out}", *TINY, *more]) == 0
    result = json.loads((out / "evaluation.json").read_text())
    expected = {".hydra", "config.yaml", "evaluation.json", "report.html"}
    assert {entry.name for entry in out.iterdir()} == expected
    assert isinstance(result, dict)
    return result


def test_walking_is_judged_without_data(
    policy: Path, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    more = "task=walk evaluation.grid=true evaluation.pushes=[20,40] evaluation.short_s=0.3"
    result = judged(policy, tmp_path / "walk", *more.split())
    assert "walk: velocity_error" in capsys.readouterr().out
    expected = ("anymal_b_walk", "module", "anymal_b", "walk")
    assert (result["policy"], result["module"], result["robot"], result["task"]) == expected
    parts = [f"error_{name}" for name in ("forward_mps", "lateral_mps", "yaw_rate_rps")]
    parts += [f"{part}_1s" for part in parts] + ["error_forward_mps_settled", "torque_rms_nm"]
    for key in (*parts, "falls_per_minute", "survived", "velocity_error"):
        assert isinstance(result[key], float), key
    assert [row["force_n"] for row in result["pushes"]] == [20, 40]  # type: ignore[attr-defined]
    assert result["grid"][0]["command"] == [0.0, 0.0, 0.0]  # type: ignore[index]
    phases = [row["phase"] for row in result["transitions"]]  # type: ignore[attr-defined]
    assert phases == ["stand", "walk", "stop", "turn about", "stop"]
    page = (tmp_path / "walk" / "report.html").read_text()
    for words in ("Gait diagram", "Command by command", "Recovery from pushes", "turn about"):
        assert words in page


def test_dribbling_shows_the_ball(policy: Path, tmp_path: Path) -> None:
    robot, folder = robots.load("anymal_b"), tmp_path / "commanded"
    module = f"module={policy.parent / 'module'}"
    HighLevelPolicy.load(policy).for_other_task(Dribble(robot)).save(folder)
    result = judged(folder, tmp_path / "dribble", "task=dribble", "task.jump_period_s=0.1", module)
    assert 0.0 < result["ball_target_before_jump_median_m"] < 5.0  # type: ignore[operator]
    page = (tmp_path / "dribble" / "report.html").read_text()
    for words in ("Ball to target", '"ball"', '"radius"'):
        assert words in page


@pytest.mark.slow
def test_judging_on_rough_ground(policy: Path, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    few = {name: kind._replace(sizes=kind.sizes[:2]) for name, kind in TERRAIN_TRIALS.items()}
    monkeypatch.setattr(terrains, "TERRAIN_TRIALS", few)
    task = ("task=walk", "task.terrain=slopes+perlin", "task.terrain_fields=2")
    result = judged(
        policy, tmp_path / "rough", *task, "evaluation.grounds=true", "evaluation.short_s=0.2"
    )
    rows = [(row["terrain"], row["value"]) for row in result["grounds"]]  # type: ignore[attr-defined]
    assert rows == [
        ("flat", 0.0),
        *(("slopes_up", angle) for angle in (10.0, 20.0)),
        *(("slopes_down", angle) for angle in (10.0, 20.0)),
        *(("perlin", height) for height in (0.1, 0.2)),
    ]
    page = (tmp_path / "rough" / "report.html").read_text()
    assert "stairs up" not in page
    for words in ("Rough ground", "slopes up", "leg lengths", "repeats every 8 m", '"heights"'):
        assert words in page


def test_a_walking_policy_follows_a_path(policy: Path, tmp_path: Path) -> None:
    (tmp_path / "my way.csv").write_text("x,y\n0,0\n1,0\n2,1\n")
    more = "task=path", f"task.path={tmp_path / 'my way.csv'}", "task.speed_mps=0.4"
    result = judged(policy, tmp_path / "path", *more)
    assert result["path_length_m"] == pytest.approx(1.0 + 2.0**0.5) and result["finished"] == 0.0
    assert isinstance(result["path_error_mean_m"], float)
    assert isinstance(result["path_error_max_m"], float)
    assert result["settings"]["command_range"] == [[0.0, 0.8], [-0.2, 0.2], [-0.5, 0.5]]  # type: ignore[index]
    assert "From above" in (tmp_path / "path" / "report.html").read_text()


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
        output = printed("skill", "list")
        assert ("anymal_b_walk" in output and "0 to 0.8 forward_mps" in output) == (
            registry is full
        )
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
