"""The benchmarks: what they print, and that measuring changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pytest import CaptureFixture

from mocap_data.store import read_motions
from npmp.experiments.benchmarks import env, gpu, scaling, training
from npmp.learning import timing


def last_line(capsys: CaptureFixture[str]) -> dict[str, Any]:
    return dict(json.loads(capsys.readouterr().out.strip().splitlines()[-1]))


def test_env_compares_with_the_bare_simulator(data: Path, capsys: CaptureFixture[str]) -> None:
    env.main(["--num-envs", "16", f"data={data}", "--seconds", "0.2", "threads=1"])
    figures = last_line(capsys)
    assert figures["num_envs"] == 16 and figures["substeps"] == 8
    # The ratio is that of the two speeds, in steps of the same length.
    physics = figures["steps_per_s"] * figures["substeps"] / figures["raw_physics_steps_per_s"]
    assert figures["ratio"] == pytest.approx(physics, rel=1e-3)


@pytest.mark.parametrize("algo", ["world_model", "mo_vmpo"])
def test_training_accounts_for_the_whole_time(
    algo: str, data: Path, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    keys = [f"data={data}", f"algo={algo}", "debug=tiny", "threads=1", f"out={tmp_path / 'run'}"]
    assert training.main(["imitate", *keys]) == 0
    figures = last_line(capsys)
    learner = figures["seconds"]["learner"]
    assert sum(learner.values()) == pytest.approx(figures["wall_s"], abs=0.1)
    assert {"physics", "policy, sensing, rewards"} <= {
        part for parts in figures["seconds"].values() for part in parts
    }
    # the world model is fitted beside the policy's updates, on a second thread
    assert ("collector" in figures["seconds"]) == (algo == "world_model")


def test_training_refuses_other_commands(capsys: CaptureFixture[str]) -> None:
    assert training.main(["retarget"]) == 2
    assert "imitate or reuse" in capsys.readouterr().err


def test_a_part_does_not_count_for_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 4.0, 10.0])
    monkeypatch.setattr(timing, "finished", lambda device: next(clock))

    class Trainer:
        def outer(self) -> int:
            return self.inner() + 1

        def inner(self) -> int:
            return 1

    parts = (timing.Part(Trainer, "outer", "a"), timing.Part(Trainer, "inner", "b"))
    monkeypatch.setattr(timing, "PARTS", parts)
    with timing.timed(torch.device("cpu")) as timer:
        assert Trainer().outer() == 2
    assert Trainer().outer() == 2  # not measured
    assert timer.seconds == {"learner": {"a": 7.0, "b": 3.0}}


@pytest.mark.slow
def test_scaling_measures_each_point(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = {name: (key, ()) for name, (key, _) in scaling.POINTS.items()}
    points |= {"robots": ("num_envs={}", (4, 8))}
    base = {"robots": 4, "clips": 3, "latent": 4, "horizon": 3}
    monkeypatch.setattr(scaling, "POINTS", points)
    monkeypatch.setattr(scaling, "BASE", base)
    arguments = [f"data={data}", "--iterations", "3", f"out={tmp_path}", "debug=tiny"]
    scaling.main(arguments)
    table = (tmp_path / "scaling.csv").read_text()
    assert [line.split(",")[:4] for line in table.splitlines()] == [
        ["robots", "clips", "latent", "horizon"],
        ["4", "3", "4", "3"],
        ["8", "3", "4", "3"],
    ]
    assert (tmp_path / "scaling.png").stat().st_size > 0


def test_clips_are_repeated_under_other_names(data: Path) -> None:
    motions = read_motions(data)
    many = scaling.repeated(motions, len(motions.motions) + 1)
    assert len(set(many.names)) == len(motions.motions) + 1
    assert (many.motions[-1].qpos == motions.motions[0].qpos).all()


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
