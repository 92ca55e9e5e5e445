"""The benchmarks: what they print, and that measuring changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pytest import CaptureFixture

from npmp.experiments.benchmarks import env, gpu, imitate
from npmp.learning.timing import timed


def last_line(capsys: CaptureFixture[str]) -> dict[str, Any]:
    return dict(json.loads(capsys.readouterr().out.strip().splitlines()[-1]))


def test_env_compares_with_the_bare_simulator(data: Path, capsys: CaptureFixture[str]) -> None:
    env.main(["--num-envs", "16", "--seconds", "0.2", "--data", str(data), "threads=1"])
    figures = last_line(capsys)
    assert figures["num_envs"] == 16 and figures["substeps"] == 8
    # The ratio is that of the two speeds, in steps of the same length.
    physics = figures["steps_per_s"] * figures["substeps"] / figures["raw_physics_steps_per_s"]
    assert figures["ratio"] == pytest.approx(physics, rel=1e-3)


@pytest.mark.parametrize("algo", ["world_model", "mo_vmpo"])
def test_shares_and_ratios(algo: str, data: Path, capsys: CaptureFixture[str]) -> None:
    keys = [f"algo={algo}", "debug=tiny", "threads=1", "randomization=paper"]
    imitate.main(["--seconds", "0.05", "--data", str(data), *keys])
    figures = last_line(capsys)
    spent = figures["seconds_per_iteration"]
    assert (figures["algo"], figures["randomization"]) == (algo, "paper")
    steps = figures["steps_per_iteration"]
    assert figures["samples_per_s"] == pytest.approx(steps / spent["whole"], rel=1e-2)
    physics = spent["raw_physics"] / spent["sampler"]
    assert figures["ratio_to_raw_physics"] == pytest.approx(physics, rel=1e-2)
    shares = figures["sampler_share"] + figures["learner_share"]
    # the world model is fitted beside the policy's updates, on a second thread
    assert 0.9 < shares <= (2.0 if algo == "world_model" else 1.0)


def test_time_is_counted_while_it_is_asked_for() -> None:
    class Trainer:
        def collect(self, steps: int) -> int:
            return steps

    trainer = Trainer()
    with timed(trainer, torch.device("cpu")) as spent:
        assert trainer.collect(3) == 3
    counted = spent["sampler"]
    assert counted > 0.0 and set(spent) == {"sampler"}
    trainer.collect(3)
    assert spent["sampler"] == counted


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_gpu_refuses_without_one(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    assert gpu.main([f"out={tmp_path / 'gpu'}"]) == 2
    assert "device=cuda" in capsys.readouterr().err
    assert not (tmp_path / "gpu").exists()


@pytest.mark.slow
def test_gpu_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("mujoco_warp")
    assert gpu.main(["--size", "tiny", "device=cpu", f"out={tmp_path}"]) == 0
    figures = json.loads((tmp_path / "gpu.json").read_text())
    assert [row["num_envs"] for row in figures["speeds"]] == [4, 8]
    assert figures["module"]["iterations"] == figures["walking"]["iterations"] == 1
    assert "| module | tracked_fraction |" in (tmp_path / "gpu.md").read_text()
    assert (tmp_path / "policy" / "policy.json").is_file()
