"""Histograms of how robots move, and how much of them lies on the recordings'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from mocap_data.store import MotionSet
from npmp.analysis.movement import EDGES, Movement, MovementRecorder
from npmp.robots import Robot
from tests.environments import imitation_env


def test_overlap_by_hand() -> None:
    """Half of one's speeds lie in the other's bin, all of its turns, of four counts of feet one."""
    speeds = torch.tensor([0.05, 0.05, 0.95, 9.0])
    one = Movement(speeds, torch.zeros(4), torch.tensor([0, 1, 2, 3]))
    two = Movement(torch.tensor([0.02, 0.09]), torch.tensor([0.1, 0.0]), torch.tensor([3, 3, 3]))
    assert one.overlap(two) == pytest.approx({"speed_mps": 0.5, "turn_rps": 1.0, "feet_up": 0.25})
    assert one.overlap(one) == pytest.approx({"speed_mps": 1.0, "turn_rps": 1.0, "feet_up": 1.0})
    assert all(len(share) == len(EDGES[name]) - 1 for name, share in one.shares().items())
    figures = one.summary()
    assert figures["standing_share"] == 0.5 and figures["feet_up"] == 1.5
    assert figures["speed_mps"][2] == pytest.approx(0.5)
    nothing = Movement(torch.zeros(0), torch.zeros(0), torch.zeros(0))
    assert nothing.summary() == {} and nothing.overlap(one) == {}


def test_of_velocities() -> None:
    movement = Movement.of(torch.tensor([[3.0, -4.0, -0.5]]), torch.zeros(0))
    assert (movement.speed_mps.item(), movement.turn_rps.item()) == (5.0, 0.5)


def test_robots_on_their_recordings_move_as_these(robot: Robot, motions: MotionSet) -> None:
    """What the recorder makes of a recording's states is what `recorded` says of its poses, at the
    control rate."""
    env: Any = imitation_env(robot, motions, 2)
    record, reference = MovementRecorder(env), env.task.reference
    steps = 2 * record.window
    for i in range(steps):  # of the first clip; the second robot counts for the first half only
        record(reference.state(torch.full((2,), i + 1)), torch.tensor([True, i < record.window]))
    found = record.movement()
    assert len(found.speed_mps) == 3 and len(found.feet_up) == steps + record.window
    recorded = Movement.recorded(replace(motions, motions=motions.motions[:1]), robot)
    nearest = (found.speed_mps.unsqueeze(-1) - recorded.speed_mps).abs().amin(-1)
    assert nearest.max() < 0.02 and found.speed_mps[0] == found.speed_mps[1]
    assert set(found.feet_up.tolist()) <= set(recorded.feet_up.tolist())
