"""Unitree's Go2 and G1 in primitives: equal to the maker's models, mirrored, and able to stand."""

from __future__ import annotations

import re
from pathlib import Path

import mujoco
import numpy as np
import pytest

from npmp import robots
from npmp.robots import check

NAMES = {"unitree_go2": ("go2", "go2.xml"), "unitree_g1": ("g1", "g1_29dof.xml")}


def makers(shared: Path, name: str) -> Path:
    """The maker's model. Skips where absent."""
    path = shared.joinpath("robots", "unitree", *NAMES[name])
    if not path.exists():
        pytest.skip(f"needs {path}")
    return path


def theirs(shared: Path, name: str) -> mujoco.MjModel:
    """The maker's model without its meshes, which carry no mass."""
    text = makers(shared, name).read_text()
    text = re.sub(r"<geom\s[^>]*mesh=[^>]*/>|<mesh [^>]*/>", "", text)
    return mujoco.MjModel.from_xml_string(text)


@pytest.mark.parametrize("name", NAMES)
def test_kinematics_and_inertia_are_the_makers(shared: Path, name: str) -> None:
    """Joint by joint: axes, ranges and anchors; in any pose the inertia about all joints, without
    the rotors', and the places of bodies, to 1e-3 (the G1's right side differs from its left by
    1e-5 m)."""
    robot, reference = robots.load(name), theirs(shared, name)
    ours = robot.model()
    assert ours.body_mass.sum() == pytest.approx(reference.body_mass.sum(), rel=1e-6)
    data, other = mujoco.MjData(ours), mujoco.MjData(reference)
    rng = np.random.default_rng(0)
    for joint in robot.joint_names:
        np.testing.assert_allclose(ours.joint(joint).axis, reference.joint(joint).axis, atol=1e-6)
        np.testing.assert_allclose(ours.joint(joint).range, reference.joint(joint).range, atol=1e-3)
    places = [int(reference.joint(joint).qposadr[0]) for joint in robot.joint_names]
    for _ in range(10):
        data.qpos[:3], data.qpos[3:7] = rng.normal(size=3), rng.normal(size=4)
        data.qpos[3:7] /= np.linalg.norm(data.qpos[3:7])
        data.qpos[7:] = rng.uniform(robot.joint_lower, robot.joint_upper)
        other.qpos[:7], other.qpos[places] = data.qpos[:7], data.qpos[7:]
        inertia = []
        for model, state in ((ours, data), (reference, other)):
            mujoco.mj_forward(model, state)
            full = np.zeros((model.nv, model.nv))
            mujoco.mj_fullM(model, state, full)
            inertia.append(full - np.diag(model.dof_armature))
        # both models have their joints in one order
        np.testing.assert_allclose(*inertia, atol=1e-3)
        for foot in robot.foot_bodies:
            # the Go2's own feet are marked 2 mm beside their spheres
            assert np.linalg.norm(data.body(foot).xpos - other.body(foot).xpos) < 2.1e-3


@pytest.mark.parametrize("name", NAMES)
def test_all_checks_hold(name: str) -> None:
    assert [one for one in check.check(robots.load(name)) if not one.passed] == []


def test_a_g1_stands_where_its_base_is_held() -> None:
    """57 Nm/rad at both ankles balance less than m g h = 35.1 kg * 9.81 m/s2 * 0.7 m = 240."""
    robot = robots.load("unitree_g1")
    ankles = [robot.joint_names.index(f"{side}_ankle_pitch_joint") for side in ("left", "right")]
    assert robot.kp[ankles].sum() == pytest.approx(57.0)
    assert "on the floor" in check.stand(robot).problem
    assert check.stand(robot, held=True).problem == ""
    assert "base held" in check.stands(robot).detail
