"""Recorded physics steps are repeated, and recording changes nothing."""

from __future__ import annotations

import pytest
import torch
from pytest import MonkeyPatch

from mocap_data.store import MotionSet
from npmp.envs.physics_time import recorded_physics, repeat_physics
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.robots import Robot
from npmp.sim import BatchSim
from tests.environments import imitation_env


@pytest.mark.parametrize("hold", ["zero_order", "first_order"])
def test_measuring_changes_nothing(
    robot: Robot, motions: MotionSet, hold: str, monkeypatch: MonkeyPatch
) -> None:
    """An environment that is watched, and whose physics is repeated by the same calls, goes on as
    one that is not."""
    plain, watched = (
        imitation_env(robot, motions, 4, robots=RobotBatchConfig(hold=hold)) for _ in range(2)
    )
    action = torch.zeros(4, 12)
    sim = watched.robots.sim
    assert isinstance(sim, BatchSim)
    with recorded_physics(watched) as asked:
        for _ in range(3):
            plain.step(action)
            watched.step(action)
        assert len(asked) == 3 and asked[0].ctrl.shape == (4, 12)
        calls, step = list(asked), BatchSim.step
        ends: list[torch.Tensor] = []

        def spied(self: BatchSim, ctrl: torch.Tensor, previous: torch.Tensor | None = None) -> None:
            call = calls[len(ends)]
            assert ctrl is call.ctrl and previous is call.previous
            assert (previous is None) == (hold == "zero_order")
            step(self, ctrl, previous)
            ends.append(self.snapshot())

        monkeypatch.setattr(BatchSim, "step", spied)
        assert repeat_physics(watched, asked) > 0.0 and not asked
        found = [torch.equal(end, call.state) for end, call in zip(ends, calls[1:], strict=False)]
        assert found == [True, True]
        monkeypatch.undo()
    for each in (plain, watched):
        each.step(action)
    assert torch.equal(plain.state.pack(), watched.state.pack())
