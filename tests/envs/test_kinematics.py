"""Forward kinematics against MuJoCo's own, for ANYmal and for trees unlike it."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from npmp.envs.kinematics import Kinematics
from npmp.envs.state import pose_from_qpos
from npmp.robots import Robot

# Branches of different depth, siblings out of order, welded bodies in the middle and at the end,
# turned bodies, hinges off the body's origin and about slanted axes, and mass away from the
# origins.
ODD_TREE = """
<mujoco><worldbody><body name="root" pos="0 0 1"><freejoint/>
  <inertial pos="0.1 -0.2 0.05" mass="3" diaginertia="1 1 1"/>
  <body name="a" pos="0.3 0 0" quat="0.9 0.1 0.3 -0.2">
    <joint name="ja" axis="1 2 -1" pos="0.1 -0.05 0.2"/>
    <inertial pos="0.05 0.02 -0.1" mass="1.5" diaginertia="1 1 1"/>
    <body name="a_weld" pos="0 0.2 0.1" quat="0.7 0 0.7 0.1">
      <inertial pos="0.1 0 0" mass="0.4" diaginertia="1 1 1"/>
      <body name="a_tip" pos="0.1 0.1 0"><joint name="jt" axis="0 1 0" pos="0 0 0.07"/>
        <inertial pos="0 0 -0.2" mass="0.7" diaginertia="1 1 1"/></body></body></body>
  <body name="b" pos="-0.2 0.1 0"><joint name="jb" axis="0 0 1"/>
    <inertial pos="0 0.3 0" mass="0.9" diaginertia="1 1 1"/></body>
  <body name="c" pos="0 -0.3 0.2" quat="0.5 -0.5 0.5 0.5">
    <inertial pos="0 0 0" mass="0.2" diaginertia="1 1 1"/>
    <body name="c1" pos="0.1 0 0"><joint name="jc1" axis="1 0 0" pos="0.02 0.03 0.04"/>
      <inertial pos="0.1 0 0" mass="0.3" diaginertia="1 1 1"/></body>
    <body name="c2" pos="-0.1 0 0">
      <inertial pos="0.1 0.1 0" mass="0.6" diaginertia="1 1 1"/></body></body>
</body></worldbody></mujoco>
"""

LONE_BODY = """<mujoco><worldbody><body><freejoint/>
  <inertial pos="0.1 0 0" mass="2" diaginertia="1 1 1"/></body></worldbody></mujoco>"""


def random_qpos(model: mujoco.MjModel, n: int) -> np.ndarray:
    qpos = np.random.default_rng(0).uniform(-3.0, 3.0, (n, model.nq))
    qpos[:, 3:7] /= np.linalg.norm(qpos[:, 3:7], axis=1, keepdims=True)
    return qpos


def assert_equals_mujoco(model: mujoco.MjModel, n: int = 50) -> None:
    qpos, data = random_qpos(model, n), mujoco.MjData(model)
    poses = Kinematics(model)(*pose_from_qpos(torch.from_numpy(qpos)))
    for i in range(n):
        data.qpos[:] = qpos[i]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        np.testing.assert_allclose(poses.position[i], data.xpos[1:], atol=1e-5)
        np.testing.assert_allclose(poses.rotation[i].flatten(-2), data.xmat[1:], atol=1e-5)
        np.testing.assert_allclose(poses.center_of_mass[i], data.subtree_com[1], atol=1e-5)


def test_anymal_equals_mujoco(robot: Robot) -> None:
    assert_equals_mujoco(robot.model())


@pytest.mark.parametrize("xml", [ODD_TREE, LONE_BODY])
def test_other_trees_equal_mujoco(xml: str) -> None:
    assert_equals_mujoco(mujoco.MjModel.from_xml_string(xml))


def test_batch_shapes_are_kept_and_do_not_matter(robot: Robot) -> None:
    kinematics = Kinematics(robot.model())
    pos, rot, joints = pose_from_qpos(torch.from_numpy(random_qpos(robot.model(), 6)))
    flat = kinematics(pos, rot, joints)
    block = kinematics(pos.view(2, 3, 3), rot.view(2, 3, 3, 3), joints.view(2, 3, 12))
    single = kinematics(pos[4], rot[4], joints[4])
    assert block.position.shape == (2, 3, 17, 3) and single.rotation.shape == (17, 3, 3)
    for a, b, c in zip(flat, block, single, strict=True):
        torch.testing.assert_close(a, b.flatten(0, 1))
        torch.testing.assert_close(a[4], c)


def test_gradients_are_right() -> None:
    model = mujoco.MjModel.from_xml_string(ODD_TREE)
    kinematics = Kinematics(model).double()
    qpos = torch.from_numpy(random_qpos(model, 2))
    _, rot, _ = pose_from_qpos(qpos)
    inputs = (qpos[:, :3].clone(), rot.double(), qpos[:, 7:].clone())
    assert torch.autograd.gradcheck(
        lambda *x: tuple(kinematics(*x)), tuple(x.requires_grad_() for x in inputs)
    )
