"""`npmp modules`: what is shipped, its card, and a look into a module."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import cli
from npmp import modules
from npmp.skill import SkillModule


def test_every_shipped_module_loads_and_has_a_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["modules"]) == 0
    shown = capsys.readouterr().out
    for name in modules.names():
        assert name in shown
        skill = SkillModule.load(modules.find(name))
        assert skill.contract.training["licences"]
        for word in ("Data", "Command", "Scores", "Limits", "licence"):
            assert word.lower() in modules.card(name).lower()


def test_info_of_a_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    motions, folder, out = tmp_path / "motions.h5", tmp_path / "run", tmp_path / "info.json"
    assert cli.main(["retarget", "debug=tiny", "report=null", f"out={motions}"]) == 0
    assert cli.main(["imitate", "debug=tiny", f"data={motions}", f"out={folder}"]) == 0
    capsys.readouterr()
    assert cli.main(["modules", "info", str(folder / "module"), f"data={motions}", "envs=4", "seconds=0.5", f"out={out}"]) == 0
    figures = json.loads(out.read_text())
    assert figures["robot"] == "anymal_b" and figures["latent_dim"] == len(figures["kl_by_dimension"])
    assert 0 < figures["prior_latents"]["up_s_mean"] <= 0.5 and figures["kl_nats_per_step"] >= 0
    assert "white latents: up_s_mean" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["modules", "show"], "needs a module"),
        (["modules", "show", "cat"], "no shipped module 'cat'"),
        (["modules", "info", "cat"], "no skill module 'cat'"),
        (["modules", "dance"], "action"),
    ],
)
def test_what_does_not_exist_is_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err
