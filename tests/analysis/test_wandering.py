"""Robots without a task: how long they stay up, on which latents, from where, and how two kinds are
compared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.analysis import wander, wandering
from npmp.analysis.wandering import Wandering, ratio_of_means, summarize, wander_in
from npmp.nets import DecoderState
from npmp.robots import Robot
from npmp.tasks import ImitationEnv
from tests.environments import imitation_env

FOLDED = torch.tensor([0.0, 1.2, -1.8] * 2 + [0.0, -1.2, 1.8] * 2).unsqueeze(0)


def env_of(robot: Robot, motions: MotionSet, n: int) -> ImitationEnv:
    return imitation_env(robot, motions, n, uniform_starts=1.0)


def puppet(action: Tensor, seen: list[Tensor]) -> Any:
    """A module whose decoder always does the same, and notes its latents."""

    def decode(z: Tensor, observation: Tensor, memory: DecoderState) -> tuple[Tensor, DecoderState]:
        seen.append(z)
        return action.expand(len(z), -1), memory

    memory = DecoderState(torch.zeros(1, 1), torch.zeros(1, 1))
    return SimpleNamespace(decode=decode, alpha=0.95, latent_dim=3, initial_state=lambda n: memory)


def test_who_holds_the_home_pose_stays_up_and_who_folds_its_legs_falls(
    robot: Robot, motions: MotionSet
) -> None:
    env = env_of(robot, motions, 4)
    held = wander_in(puppet(torch.zeros(1, 12), []), env, "prior", seconds=2.0, seed=0, shown=2)
    assert held.up_s.tolist() == pytest.approx([2.0] * 4) and held.qpos.shape == (101, 2, 19)
    assert held.still_up().all() and held.summary()["up_to_the_end"] == 1.0
    assert held.action_mean.tolist() == [0.0] * 12 and held.action_std.tolist() == [0.0] * 12
    fallen = wander_in(puppet(FOLDED, []), env, "prior", seconds=2.0, seed=0)
    assert fallen.up_s.max() < 1.5 and not fallen.still_up().any()
    assert fallen.action_mean.tolist() == pytest.approx(FOLDED[0].tolist())


def test_a_simulation_that_breaks_down_is_no_longer_up(
    robot: Robot, motions: MotionSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """MuJoCo resets it and the state stays that of before: both stand."""
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the working directory
    env, steps = env_of(robot, motions, 3), []
    advance = env.robots.step

    def breaking(action: Tensor, generator: torch.Generator) -> Tensor:
        steps.append(1)
        if len(steps) == 11:
            env.sim.qvel[1, 2] = 1e12
        return advance(action, generator)

    monkeypatch.setattr(env.robots, "step", breaking)
    trial = wander_in(puppet(torch.zeros(1, 12), []), env, "prior", seconds=1.0, seed=0)
    assert trial.up_s.tolist() == pytest.approx([1.0, 10 * env.dt, 1.0])


@pytest.mark.parametrize(("latents", "correlation"), [("prior", 0.95), ("white", 0.0)])
def test_latents_have_the_same_variance_and_their_own_correlation(
    robot: Robot, motions: MotionSet, latents: str, correlation: float
) -> None:
    seen: list[Tensor] = []
    wander_in(
        puppet(torch.zeros(1, 12), seen), env_of(robot, motions, 64), latents, seconds=4.0, seed=1
    )
    z = torch.stack(seen)
    assert z.var().item() == pytest.approx(1.0, abs=0.12)
    expected = pytest.approx(correlation, abs=0.05)
    assert (z[1:] * z[:-1]).mean().item() / z.square().mean().item() == expected


def test_kinds_share_their_starts_and_noise_without_a_module_has_what_it_is_told(
    robot: Robot, motions: MotionSet
) -> None:
    env, skill = env_of(robot, motions, 8), puppet(torch.zeros(1, 12), [])
    first, second = (
        wander_in(skill, env, kind, seconds=0.1, seed=3) for kind in ("prior", "white")
    )
    assert torch.equal(first.qpos[0], second.qpos[0]) and torch.equal(first.up_s, second.up_s)
    told = torch.full((12,), 0.1), torch.full((12,), 0.05)
    noise = wander_in(
        skill, env_of(robot, motions, 64), "white_actions", seconds=1.0, seed=3, noise=told
    )
    assert noise.action_mean.tolist() == pytest.approx([0.1] * 12, abs=0.01)
    assert noise.action_std.tolist() == pytest.approx([0.05] * 12, abs=0.005)


def test_ratio_of_means_by_hand() -> None:
    """Every pair has the ratio 2, so has every resample; of (1, 3) against (1, 1) resamples have
    the means 1, 2 or 3."""
    times = torch.tensor([2.0, 4.0, 8.0])
    found = [*ratio_of_means(times, times / 2).values()]
    assert found == pytest.approx([2.0, 2.0, 2.0])
    found = [*ratio_of_means(torch.tensor([1.0, 3.0]), torch.ones(2)).values()]
    assert found == pytest.approx([2.0, 1.0, 3.0])


def test_the_bootstrap_is_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    times, others = torch.rand(2, 7, generator=torch.Generator().manual_seed(0)) + 0.5
    whole = ratio_of_means(times, others)
    monkeypatch.setattr(wandering, "_AT_ONCE", 700)
    assert ratio_of_means(times, others) == whole
    assert whole["low"] < whole["ratio"] < whole["high"]


def test_medians_are_between_the_middle_two() -> None:
    some = torch.zeros(1)
    trial = Wandering(
        torch.tensor([1.0, 2.0, 4.0, 9.0]), torch.zeros(4), some, some, some, 0.02, 20.0
    )
    assert trial.summary()["up_s_median"] == 3.0


def test_a_shipped_module_wanders_from_the_home_pose_and_the_same_seed_repeats(
    robot: Robot,
) -> None:
    same: dict[str, Any] = {"robot": robot, "num_robots": 4, "seconds": 0.2, "seed": 5}
    trials = [wander("anymal_b_dog", threads=1, **same) for _ in range(2)]
    assert list(trials[0]) == ["prior", "white", "white_actions"]
    start, home = trials[0]["prior"].qpos[0, 0].tolist(), robot.home_qpos.tolist()
    # but for its heading
    assert start[:3] + start[7:] == pytest.approx(home[:3] + home[7:])
    assert torch.equal(trials[0]["white_actions"].qpos, trials[1]["white_actions"].qpos)
    figures = summarize(trials[0])
    assert "prior_up_ratio" not in figures["prior"]
    assert figures["white_actions"]["prior_up_ratio"]["ratio"] == pytest.approx(1.0)
