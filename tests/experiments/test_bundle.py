"""`npmp export policy=...` and `npmp bundle check`: from a shipped policy to a folder that is
whole."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from npmp import policies
from npmp.deploy.runtime import RUNTIMES
from npmp.experiments import cli

if any(
    importlib.util.find_spec(name) is None
    for name in ("onnx", "onnxscript", "onnxruntime", "numba")
):
    pytest.skip("the extra deploy is not installed", allow_module_level=True)


def test_from_a_policy_to_a_checked_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bundle"
    assert cli.main(["export", "policy=anymal_b_walk", f"out={out}", "steps=120", "threads=1"]) == 0
    assert "rad from torch over 120 steps" in capsys.readouterr().out
    about = json.loads((out / "bundle.json").read_text())
    assert about["robot"] == "anymal_b" and about["licence"] == ["CC BY-NC 4.0"]
    assert about["golden"]["randomization"] == "paper"
    own = json.loads((policies.find("anymal_b_walk") / "policy.json").read_text())
    assert (
        about["policy_sha256"] == own["weights_sha256"]
        and about["module_sha256"] == own["module_sha256"]
    )
    assert cli.main(["bundle", "check", str(out)]) == 0
    said = capsys.readouterr().out
    assert (
        all(f"runtime={name}: largest difference" in said for name in RUNTIMES)
        and "over 120 steps" in said
    )
    assert "reading its weights once" in said
    assert cli.main(["bundle", "check", str(out), "runtime=numba"]) == 0
    assert "runtime=onnxruntime" not in capsys.readouterr().out
    assert cli.main(["bundle", "check", str(out), "runtime=tvm"]) == 2
    assert "there are onnxruntime, numba" in capsys.readouterr().err
    assert cli.main(["bundle", "check", str(out), "priority=100"]) == 2
    assert "1 to 99 is expected" in capsys.readouterr().err
    assert cli.main(["bundle", "trial", str(out), "priority=20", f"out={tmp_path / 'trial'}"]) == 2
    assert "priority=20 is of action=check" in capsys.readouterr().err
    assert cli.main(["bundle", "check", str(out), "priority=20"]) == 0
    driven, again = tmp_path / "driven", tmp_path / "again"
    quick = ["sim.realtime=false", "seconds=1", "controller.stand_s=1.0", "command=[0.4,0,0]"]
    assert cli.main(["deploy", str(out), *quick, f"out={driven}"]) == 0
    assert (
        cli.main(["deploy", str(out), "runtime=onnxruntime", f"log={driven}", f"out={again}"]) == 0
    )
    played = json.loads((again / "deploy.json").read_text())["playback"]
    # other sums, other rounding
    assert played["steps"] >= 100 and 0.0 < played["target_difference_rad"] < 1e-4
    assert cli.main(["inspect", str(out)]) == 0
    assert "kind: bundle" in capsys.readouterr().out

    broken = shutil.copytree(out, tmp_path / "broken")
    content = bytearray((broken / "policy.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (broken / "policy.onnx").write_bytes(content)
    assert cli.main(["bundle", "check", str(broken)]) == 2
    assert "its checksum differs" in capsys.readouterr().err
    assert cli.main(["inspect", str(broken)]) == 2
    *shown, last = capsys.readouterr().out.splitlines()
    assert (
        "task: walk" in shown and last.startswith("problems: ") and "its checksum differs" in last
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["export", "policy=anymal_b_walk", "module=op3_cmu"], "commands another skill module"),
        (["export", "policy=nobody"], "no policy 'nobody'"),
        (["export"], "or policy=... (a bundle is written)"),
        (["export", "policy=anymal_b_walk", "steps=0"], "steps"),
        (
            ["export", "policy=anymal_b_walk", "split=train"],
            "split='train' is of motions, data=..., not of a policy",
        ),
        (["export", "motions.h5", "steps=200"], "steps=200 is of a policy, not of motions"),
        (["bundle", "check"], "needs a bundle's folder"),
        (["bundle", "check", "nowhere"], "no bundle in 'nowhere'"),
        (["bundle", "show", "nowhere"], "action"),
    ],
)
def test_what_it_refuses(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "exported" / "bundle.json").exists()
