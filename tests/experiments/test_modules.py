"""`npmp skill list | show | pack | blend | add`: what is shipped, its card, a module at half the
size, and a module made of a run."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from pytest import CaptureFixture

from mocap_data.store import MotionSet
from npmp.experiments import cli
from npmp.skills import modules
from npmp.skills.skill_module import SkillModule
from tests.experiments.command import Says


def test_every_shipped_module_loads_and_has_a_card(printed: Says) -> None:
    output = printed("skill", "list")
    for name in modules.names():
        assert name in output
        assert SkillModule.load(modules.find(name)).contract.training["licences"]
        for word in ("Data", "Command", "Scores", "Limits", "licence"):
            assert word.lower() in modules.card(name).lower()


def test_pack_halves_a_module(trained: Path, tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    source, small = trained / "module", tmp_path / "small"
    assert cli.main(["skill", "pack", str(source), f"out={small}"]) == 0
    sizes = [(folder / "module.safetensors").stat().st_size for folder in (source, small)]
    assert sizes[1] < 0.7 * sizes[0] and "no weight changed by more than" in capsys.readouterr().out
    before, after = (SkillModule.load(folder).state_dict() for folder in (source, small))
    for key, value in before.items():
        assert after[key].dtype == torch.float32
        # half a unit of 11 bits
        torch.testing.assert_close(after[key], value, rtol=2**-11, atol=1e-7)
        if not key.startswith(("encoder.", "decoder.")):
            assert torch.equal(after[key], value)
    assert cli.main(["skill", "pack", str(source), f"out={small}"]) == 2
    assert "replace=true" in capsys.readouterr().err


def test_add_makes_a_module_with_its_card(
    trained: Path, data: Path, motions: MotionSet, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    clip = {"name": motions.names[0], "tracked_fraction": 0.25, "tracked_s": 0.5, "duration_s": 2.0}
    clip |= {"base_deviation_m": {"mean": 0.02, "max": 0.1}, "joint_error_rad": 0.05}
    whole = clip | {"name": motions.names[1], "tracked_fraction": 1.0}
    whole |= {"tracked_s": 3.0, "duration_s": 3.0}
    # medians over 2 and 4 cm, and 5 and 9 cm; the randomized one from before the last frame's was
    # written
    later = whole | {"base_deviation_m": {"mean": 0.04, "max": 0.1, "last": 0.09}}
    newer = [clip | {"base_deviation_m": {"mean": 0.02, "max": 0.1, "last": 0.05}}, later]
    for name, physics, clips, seen in (
        ("nominal", "none", newer, 0),
        ("randomized", "paper", [clip, whole], None),
        ("known", "wide", newer, 1),
    ):
        (tmp_path / name).mkdir()
        content = {"split": "validation", "randomization": physics, "clips": clips}
        content |= {"seen_in_training": seen, "actuator": "runs/knee" if seen else "pd"}
        (tmp_path / name / "evaluation.json").write_text(json.dumps(content))
    scores = f"evaluations=[{tmp_path / 'nominal'},{tmp_path / 'randomized'},{tmp_path / 'known'}]"
    args = [f"data={data}", scores, "limits='It cannot jump, nor swim.'"]
    args += ["name=dog", "dtype=float16", f"out={tmp_path / 'dog'}"]
    assert cli.main(["skill", "add", str(trained), *args]) == 0
    capsys.readouterr()
    card = (tmp_path / "dog" / "CARD.md").read_text()
    assert SkillModule.load(tmp_path / "dog").contract.weights_dtype == "float16"
    for words in (
        "# dog",
        "It cannot jump, nor swim. Less than half is tracked of",
        "Seed 0",
        "2 recordings, 2 motions",
        "5 s",
        "| held-out, all (2), nominal | 0.700 | 1 | 3.0 cm | 7.0 cm | 0.050 rad |",
        "| held-out, all (2), `randomization=paper` | 0.700 | 1 | 2.0 cm | not recorded | "
        "0.050 rad |",
        "| validation (1 of recordings trained on), all (2), `randomization=wide`, "
        "`actuator=knee` | 0.700 | 1 | 3.0 cm | 7.0 cm | 0.050 rad |",
        "Simulation only, flat ground, actuator=pd.",
        "npmp imitate data=motions.h5 seed=0",
        "net.lstm_width=32",
        "out=runs/dog",
        "float16",
    ):
        assert words in card, words
    assert cli.main(["skill", "show", str(tmp_path / "dog")]) == 0
    assert capsys.readouterr().out.strip() == card.strip()


def test_an_action_that_writes_nothing_leaves_no_folder(tmp_path: Path) -> None:
    assert cli.main(["skill", "list", f"out={tmp_path / 'new' / 'out'}"]) == 0
    assert not any(tmp_path.iterdir())
