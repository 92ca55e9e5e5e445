"""Elevation maps on ground whose height is a function by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp.core import geometry
from npmp.envs.ground import Ground
from npmp.envs.state import RobotState
from npmp.skills.elevation_map import CELL_M, LEVEL_S, ElevationMap
from npmp.tasks.inputs import HeightMapErrors

DT = 0.02
ROBOTS = torch.arange(2)


def height_at(position: Tensor, robots: Tensor) -> Tensor:
    """1 m per m along x, 10 m per m along y; the second robot's is 100 m higher."""
    rise = 100.0 * robots.view(-1, *([1] * (position.dim() - 2)))
    return position[..., 0] + 10.0 * position[..., 1] + rise


def elevation(**errors: Any) -> ElevationMap:
    ground = Ground()
    ground.height_at = height_at  # type: ignore[method-assign]
    config = HeightMapErrors(**{"ground_noise_m": 0.0, **errors})
    return ElevationMap(ground, DT, config, torch.Generator().manual_seed(0))


def at(position: list[float], yaw: float) -> RobotState:
    """Two robots in a pose."""
    joints = torch.zeros(2, 12)
    turn = geometry.yaw_matrix(torch.full((2,), yaw))
    return RobotState.still(torch.tensor([position] * 2), turn, joints)


def test_cells_have_the_height_at_their_centres() -> None:
    terrain = elevation()
    pose = terrain.begin(at([0.0, 0.0, 0.3], 0.0), torch.zeros(2))
    positions = torch.tensor([[[0.31, 0.0], [0.33, 0.0], [0.0, 0.05]]] * 2)
    expected = torch.tensor([0.32, 0.32, 0.4])
    heights = terrain.height_at(pose, positions, ROBOTS)
    torch.testing.assert_close(heights, torch.stack((expected, 100.0 + expected)))


def test_it_is_in_the_frame_of_the_odometry() -> None:
    terrain = elevation()
    pose = terrain.begin(at([0.0, 0.0, 0.3], 0.0), torch.zeros(2))
    # the robot is at (2, 1, 0.5), turned left by a right angle; its odometry is at the origin
    pose = terrain.advance(pose, at([0.0, 0.0, 0.3], 0.0), at([2.0, 1.0, 0.5], torch.pi / 2))
    heights = terrain.height_at(pose, torch.tensor([[[0.4, 0.0], [0.0, 0.4]]] * 2), ROBOTS)
    # 0.4 m ahead is (2, 1.4), to the left (1.6, 1); the odometry is 0.2 m too low
    expected = torch.tensor([2.0 + 14.0, 1.6 + 10.0]) - 0.2
    torch.testing.assert_close(heights[0], expected, atol=1e-4, rtol=0.0)


def test_a_delayed_map_has_the_drift_of_a_while_ago() -> None:
    terrain = elevation(ground_delay_s=10 * DT)
    pose = terrain.begin(at([0.0, 0.0, 0.3], 0.0), torch.zeros(2))
    for _ in range(10):
        pose = terrain.advance(pose, at([0.0, 0.0, 0.3], 0.0), at([0.0, 0.0, 0.4], 0.2))
    share = 1.0 - 0.9**10
    torch.testing.assert_close(pose.shift[:, 2], torch.full((2,), 0.1 * share))
    torch.testing.assert_close(pose.yaw, torch.full((2,), 0.2 * share))


def test_a_delayed_map_of_constant_drift_stays_where_it_is() -> None:
    """The odometry is turned by half a radian and 1 m off, and moves."""
    terrain = elevation(ground_delay_s=10 * DT)
    turn = geometry.yaw_matrix(torch.tensor(0.5))
    pose = terrain.begin(at([0.0, 0.0, 0.3], 0.0), torch.zeros(2))
    for step in range(300):
        walked = torch.tensor([0.01 * step, 0.0, 0.3])
        true = (turn @ walked + torch.tensor([1.0, 0.0, 0.0])).tolist()
        pose = terrain.advance(pose, at(walked.tolist(), 0.0), at(true, 0.5))
    position = torch.tensor([[[3.0, 0.4]]] * 2)
    expected = height_at(
        CELL_M * ((turn[:2, :2] @ position[0, 0] + torch.tensor([1.0, 0.0])) / CELL_M).round(),
        ROBOTS[:1],
    )
    heights = terrain.height_at(pose, position, ROBOTS)
    torch.testing.assert_close(heights[0, 0], expected[0], atol=1e-3, rtol=0.0)


def test_errors_are_sampled() -> None:
    terrain = elevation(ground_noise_m=0.02, ground_holes=0.2, ground_drift_m=0.05)
    pose = terrain.begin(at([0.0, 0.0, 0.3], 0.0), torch.zeros(2))
    assert pose.drift.abs().min().item() > 0.0
    flat = pose._replace(drift=torch.zeros_like(pose.drift))
    heights = terrain.height_at(flat, torch.zeros(2, 4000, 2), ROBOTS)
    assert heights.isnan().float().mean().item() == pytest.approx(0.2, abs=0.02)
    noise = heights[0][~heights[0].isnan()].std().item()
    assert noise == pytest.approx(0.02, rel=0.1)
    # a constant offset per robot
    exact = elevation()
    drift = torch.tensor([[CELL_M, 0.0, 0.01], [0.0, 0.0, 0.0]])
    shifted = exact.height_at(pose._replace(drift=drift), torch.zeros(2, 1, 2), ROBOTS)
    torch.testing.assert_close(shifted[:, 0], torch.tensor([CELL_M - 0.01, 100.0]))


def test_standing_feet_raise_it() -> None:
    terrain = elevation()
    pose = terrain.begin(at([0.0, 0.0, 0.3], 0.0), torch.zeros(2))
    above = torch.tensor([[0.01, 0.03, 5.0, 5.0], [1.0, 1.0, 1.0, 1.0]])
    stands = torch.tensor([[True, True, False, False], [False] * 4])
    raised = terrain.levelled(pose, above, stands)
    expected = torch.tensor([0.02 * DT / LEVEL_S, 0.0])
    torch.testing.assert_close(raised.level, expected)
    level = terrain.height_at(raised, torch.zeros(2, 1, 2), ROBOTS)[:, 0]
    torch.testing.assert_close(level, torch.tensor([0.0, 100.0]) + expected)


def test_occluded_ground_is_refused() -> None:
    with pytest.raises(InputError, match="ground_hidden: not available for footsteps"):
        elevation(ground_hidden=True)
