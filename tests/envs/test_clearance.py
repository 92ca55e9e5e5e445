"""How far above the ground what may not touch it is: against MuJoCo's distances, and with gradients."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from npmp import robots
from npmp.envs.clearance import Clearance
from npmp.envs.state import RobotState, pose_from_qpos
from npmp.sim import flat_scene


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_the_lowest_point_is_where_mujoco_sees_it(name: str) -> None:
    """`mj_geomDistance` to the floor, of random postures in the air; boxes' corners are exact, too."""
    robot = robots.load(name)
    bodies = [body for body in robot.body_names if body not in robot.foot_bodies]
    clearance, model = Clearance(robot, bodies), flat_scene(robot)
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    floor = model.geom("floor").id
    counted = [g for g in range(model.ngeom) if model.body(model.geom_bodyid[g]).name in bodies]
    round_ones = (mujoco.mjtGeom.mjGEOM_SPHERE, mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_BOX)
    for _ in range(10):
        data.qpos[:3], data.qpos[3:7] = (0.3, -2.0, 1.5), rng.normal(size=4)
        data.qpos[3:7] /= np.linalg.norm(data.qpos[3:7])
        data.qpos[7:] = rng.uniform(-1.0, 1.0, model.nu)
        mujoco.mj_forward(model, data)
        wanted = min(mujoco.mj_geomDistance(model, data, g, floor, 10.0, None) for g in counted)
        state = RobotState.still(*pose_from_qpos(torch.tensor(data.qpos).unsqueeze(0)))
        found = clearance(state).amin().item()
        if all(model.geom_type[g] in round_ones for g in counted):
            assert found == pytest.approx(wanted, abs=1e-5)
        else:  # bounding boxes lie outside
            assert wanted - 0.1 < found < wanted + 1e-5


def test_bending_a_leg_lowers_its_shank() -> None:
    robot = robots.load("anymal_b")
    state = RobotState.still(*pose_from_qpos(torch.tensor(robot.home_qpos).unsqueeze(0)))
    joints = state.joint_pos.clone().requires_grad_()
    clearance = Clearance(robot, ["LF_SHANK"])
    clearance(state._replace(joint_pos=joints)).amin().backward()
    assert joints.grad is not None
    lowers = (joints.grad[0].abs() > 1e-6).tolist()
    assert all(name.startswith("LF") == on for name, on in zip(robot.joint_names, lowers, strict=True))


def test_bodies_without_geoms_are_refused() -> None:
    with pytest.raises(ValueError, match="none of nothing"):
        Clearance(robots.load("anymal_b"), ["nothing"])
