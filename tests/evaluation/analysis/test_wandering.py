"""Robots without a task: how long they stay up, on which latents, and from where."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.evaluation.analysis import wander
from npmp.evaluation.analysis.wandering import _WanderRecorder, wander_in
from npmp.robots import Robot
from npmp.skills.nets import DecoderState
from npmp.skills.prior import AR1
from npmp.tasks import ImitationEnv
from tests.environments import imitation_env
from tests.untrained import stub_module

FOLDED = torch.tensor([0.0, 1.2, -1.8] * 2 + [0.0, -1.2, 1.8] * 2).unsqueeze(0)


def env_of(robot: Robot, motions: MotionSet, n: int) -> ImitationEnv:
    return imitation_env(robot, motions, n, uniform_starts=1.0)


def puppet(action: Tensor, seen: list[Tensor]) -> Any:
    """A module whose decoder always does the same, and notes its latents."""

    def decode(z: Tensor, observation: Tensor, memory: DecoderState) -> tuple[Tensor, DecoderState]:
        seen.append(z)
        return action.expand(len(z), -1), memory

    return stub_module(decode, AR1(3, 0.95))


def test_who_holds_the_home_pose_stays_up_and_who_folds_its_legs_falls(
    robot: Robot, motions: MotionSet
) -> None:
    env = env_of(robot, motions, 4)
    held = wander_in(puppet(torch.zeros(1, 12), []), env, seconds=2.0, seed=0, kept=2)
    assert held.up_s.tolist() == pytest.approx([2.0] * 4) and held.qpos.shape == (101, 2, 19)
    assert held.still_up().all() and held.summary()["up_to_the_end"] == 1.0
    fallen = wander_in(puppet(FOLDED, []), env, seconds=2.0, seed=0)
    assert fallen.up_s.max() < 1.5 and not fallen.still_up().any()


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
            env.robots.sim.qvel[1, 2] = 1e12
        return advance(action, generator)

    monkeypatch.setattr(env.robots, "step", breaking)
    trial = wander_in(puppet(torch.zeros(1, 12), []), env, seconds=1.0, seed=0)
    assert trial.up_s.tolist() == pytest.approx([1.0, 10 * env.dt, 1.0])


def test_setpoints_are_those_of_their_step(robot: Robot, motions: MotionSet) -> None:
    """Home plus the action, which grows by 0.01 rad per step."""
    env = env_of(robot, motions, 3)
    taken: list[int] = []

    def decode(z: Tensor, observation: Tensor, memory: DecoderState) -> tuple[Tensor, DecoderState]:
        taken.append(1)
        return torch.full((len(z), 12), 0.01 * len(taken)), memory

    trial = wander_in(stub_module(decode, AR1(3, 0.95)), env, seconds=0.1, seed=0, kept=2)
    expected = env.home + 0.01 * torch.arange(1.0, 6.0)[:, None, None]
    torch.testing.assert_close(trial.setpoints, expected.expand(5, 2, 12))


def test_recorded_setpoints_are_copies(robot: Robot, motions: MotionSet) -> None:
    """An engine may overwrite its buffer in the next step."""
    env = env_of(robot, motions, 3)
    record = _WanderRecorder(env, 2)
    buffer = torch.full((3, 12), 0.5)
    step: Any = SimpleNamespace(state=env.state._replace(setpoint=buffer))
    record(SimpleNamespace(step=step))  # type: ignore[arg-type]
    buffer.fill_(9.0)
    assert (record.setpoints[0] == 0.5).all() and record.setpoints[0].shape == (2, 12)


def test_latents_are_those_of_the_prior(robot: Robot, motions: MotionSet) -> None:
    seen: list[Tensor] = []
    wander_in(puppet(torch.zeros(1, 12), seen), env_of(robot, motions, 64), seconds=4.0, seed=1)
    z = torch.stack(seen)
    assert z.var().item() == pytest.approx(1.0, abs=0.12)
    correlation = (z[1:] * z[:-1]).mean().item() / z.square().mean().item()
    assert correlation == pytest.approx(0.95, abs=0.05)


def test_a_shipped_module_wanders_from_the_home_pose_and_the_same_seed_repeats(
    robot: Robot,
) -> None:
    same: dict[str, Any] = {"robot": robot, "num_robots": 4, "seconds": 0.2, "seed": 5}
    one, other = (wander("anymal_b_dog", threads=1, **same) for _ in range(2))
    start, home = one.qpos[0, 0].tolist(), robot.home_qpos.tolist()
    # but for its heading
    assert start[:3] + start[7:] == pytest.approx(home[:3] + home[7:])
    assert torch.equal(one.qpos, other.qpos)
