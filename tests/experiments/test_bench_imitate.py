"""`npmp bench imitate`: what it prints for each algorithm, and that measuring changes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mocap_data.store import MotionSet
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.experiments import cli
from npmp.experiments.bench_imitate import bare, noted, timed
from npmp.robots import Robot
from npmp.sim import BatchSim
from tests.environments import imitation_env


def figures_of(
    capsys: pytest.CaptureFixture[str], data: Path, arguments: Sequence[str]
) -> dict[str, Any]:
    """The JSON object on the last line that the command prints."""
    assert (
        cli.main(
            [
                "bench",
                "imitate",
                "debug=tiny",
                "seconds=0.05",
                "threads=1",
                f"data={data}",
                *arguments,
            ]
        )
        == 0
    )
    return dict(json.loads(capsys.readouterr().out.strip().splitlines()[-1]))


# an algorithm in a second
SHORT = {
    "world_model": [
        "algo.warmup_steps=16", "algo.model_updates=1", "algo.policy_updates=1", "algo.horizon=[2,2]",
        "algo.policy_batch=16",
    ],
    "mo_vmpo": ["algo=mo_vmpo", "algo.unroll=8", "algo.critic_hidden=[32,32]"],
}  # fmt: skip


@pytest.mark.parametrize("algo", SHORT)
def test_shares_and_ratios(algo: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = figures_of(capsys, data, [*SHORT[algo], "randomization=paper"])
    spent = figures["seconds_per_iteration"]
    assert (
        figures["algo"] == algo
        and figures["randomization"] == "paper"
        and figures["num_envs"] == 16
    )
    assert figures["samples_per_s"] == pytest.approx(
        figures["steps_per_iteration"] / spent["whole"], rel=1e-2
    )
    assert figures["ratio_to_raw_physics"] == pytest.approx(
        spent["raw_physics"] / spent["sampler"], rel=1e-2
    )
    assert 0.9 < figures["sampler_share"] + figures["learner_share"] <= 1.0
    if algo == "world_model":
        assert {"sampler", "model_fit", "imagination"} < set(spent)
        assert spent["model_fit"] + spent["imagination"] == pytest.approx(
            figures["learner_share"] * spent["whole"], rel=1e-2
        )


def test_learning_on_warp(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mujoco_warp")
    figures = figures_of(
        capsys, data, [*SHORT["world_model"], "algo.num_envs=2", "algo.warmup_steps=10", "sim=warp"]
    )
    assert (figures["sim"], figures["device"], figures["num_envs"]) == ("warp", "cpu", 2)
    assert 0.0 < figures["ratio_to_raw_physics"] <= 1.1


@pytest.mark.parametrize("hold", ["zero_order", "first_order"])
def test_measuring_changes_nothing(
    robot: Robot, motions: MotionSet, hold: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment that is watched, and whose physics is repeated by the same calls, goes on as
    one that is not."""
    plain, watched = (
        imitation_env(robot, motions, 4, robots=RobotBatchConfig(hold=hold)) for _ in range(2)
    )
    action = torch.zeros(4, 12)
    sim = watched.sim
    assert isinstance(sim, BatchSim)
    with noted(sim) as asked:
        for _ in range(3):
            plain.step(action)
            watched.step(action)
        assert len(asked) == 3 and asked[0].ctrl.shape == (4, 12)
        calls, step = list(asked), BatchSim.step
        ends: list[torch.Tensor] = []

        def spied(self: BatchSim, ctrl: torch.Tensor, previous: torch.Tensor | None = None) -> None:
            call = calls[len(ends)]
            assert (
                ctrl is call.ctrl
                and previous is call.previous
                and (previous is None) == (hold == "zero_order")
            )
            step(self, ctrl, previous)
            ends.append(self.snapshot())

        monkeypatch.setattr(BatchSim, "step", spied)
        assert bare(sim, asked) > 0.0 and not asked
        assert [
            torch.equal(end, call.state) for end, call in zip(ends, calls[1:], strict=False)
        ] == [True, True]
        monkeypatch.undo()
    for env in (plain, watched):
        env.step(action)
    assert torch.equal(plain.state.pack(), watched.state.pack())


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
