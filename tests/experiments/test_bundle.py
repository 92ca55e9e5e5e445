"""`npmp deploy export` and `npmp deploy check`: from a shipped policy to a folder that is
whole."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from pytest import CaptureFixture

from npmp.experiments import cli
from npmp.skills import policies
from tests.experiments.command import Says

if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")):
    pytest.skip("the extra deploy is not installed", allow_module_level=True)


def test_from_a_policy_to_a_checked_bundle(
    tmp_path: Path, capsys: CaptureFixture[str], printed: Says, refused: Says
) -> None:
    out = tmp_path / "bundle"
    arguments = ["deploy", "export", "policy=anymal_b_walk", f"out={out}", "steps=120", "threads=1"]
    assert "from torch over 520 steps" in printed(*arguments)
    assert {path.name for path in out.iterdir()} == {"bundle.json", "policy.onnx", "golden.npz"}
    about = json.loads((out / "bundle.json").read_text())
    assert about["robot"] == "anymal_b" and about["licence"] == ["CC BY-NC 4.0"]
    assert about["golden"]["randomization"] == "paper"
    own = json.loads((policies.find("anymal_b_walk") / "policy.json").read_text())
    assert about["policy_sha256"] == own["weights_sha256"]
    assert about["module_sha256"] == own["module_sha256"]
    message = printed("deploy", "check", str(out))
    assert "largest difference from torch" in message and "over 520 steps" in message
    assert "lateral_mps [m/s] -0.3 to 0.3: velocity of the root along Y" in message
    driven = tmp_path / "driven"
    quick = ["sim.realtime=false", "seconds=1", "controller.stand_s=1.0", "command=[0.4,0,0]"]
    line = printed("deploy", "run", str(out), *quick, f"out={driven}")
    assert "the simulated robot travelled 0." in line
    assert "kind: bundle" in printed("inspect", str(out))

    broken = shutil.copytree(out, tmp_path / "broken")
    content = bytearray((broken / "policy.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (broken / "policy.onnx").write_bytes(content)
    assert "policy.onnx" in refused("deploy", "check", str(broken))
    assert cli.main(["inspect", str(broken)]) == 2
    *output, last = capsys.readouterr().out.splitlines()
    assert "task: walk" in output
    assert last.startswith("problems: ") and "sha256 differs" in last
