"""Where the feet are: against MuJoCo, and what dragging them comes to by hand."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from npmp import robots
from npmp.envs.feet import Feet, dragging
from npmp.envs.state import pose_from_qpos


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_contact_points_are_where_mujoco_has_them(name: str) -> None:
    robot = robots.load(name)
    model, feet = robot.model(), Feet(robot)
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    for _ in range(5):
        data.qpos[:3], data.qpos[3:7] = (0.3, -2.0, 1.5), rng.normal(size=4)
        data.qpos[3:7] /= np.linalg.norm(data.qpos[3:7])
        data.qpos[7:] = rng.uniform(-1.0, 1.0, model.nu)
        mujoco.mj_forward(model, data)
        wanted = [
            [data.body(body).xpos + data.body(body).xmat.reshape(3, 3) @ point for point in points]
            for body, points in zip(robot.foot_bodies, robot.foot_points, strict=True)
        ]
        found = feet(*pose_from_qpos(torch.tensor(data.qpos).unsqueeze(0)))
        torch.testing.assert_close(found[0], torch.tensor(np.array(wanted)).float(), atol=1e-5, rtol=0.0)
        lowest = np.array(wanted)[..., 2].min(-1) - robot.foot_radius
        np.testing.assert_allclose(feet.heights(data.qpos[None])[0], lowest, atol=1e-5)


def test_dragging_by_hand() -> None:
    """Half a metre a second in the ground, on it, half way up, at the height where feet are free, and above."""
    before, height = torch.zeros(5, 3), torch.tensor([-0.01, 0.0, 0.02, 0.04, 0.5])
    after = torch.tensor([0.006, 0.0, -0.008]).expand(5, 3)
    found = dragging(before, after, height, 0.04, 0.02)
    torch.testing.assert_close(found, torch.tensor([0.5, 0.5, 0.25, 0.0, 0.0]), atol=1e-3, rtol=0.0)


def test_dragging_asks_to_stand_still_or_to_lift() -> None:
    after = torch.tensor([0.01, 0.0, 0.0], requires_grad=True)
    height = torch.tensor(0.01, requires_grad=True)
    dragging(torch.zeros(3), after, height, 0.04, 0.02).backward()
    assert after.grad is not None and height.grad is not None
    assert after.grad[0] == pytest.approx(0.75 / 0.02, rel=1e-3) and height.grad == pytest.approx(-0.5 / 0.04, rel=1e-3)
