"""ANYmal B: equal to the URDF it was made from, mirrored exactly, and able to stand."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import mujoco
import numpy as np
import pytest

from npmp import robots
from tests.robots.models import at, random_qpos, same_bodies, with_floor

LEGS = ("LF", "RF", "LH", "RH")
ANYMAL = robots.load("anymal_b")
MODEL = ANYMAL.model()


# --- against the URDF ---


def urdf_text(shared: Path) -> str:
    path = shared / "robots" / "anymal_b_urdf" / "anymal_b_example-robot-data-6.0.0.urdf"
    if not path.exists():
        pytest.skip(f"needs {path}")
    return path.read_text()


def compile_urdf(text: str, *, boundmass: float, boundinertia: float) -> mujoco.MjModel:
    """The URDF without meshes, fixed links merged, on a free root.

    Its dummy base link (1e-6 kg) has a singular inertia, which MuJoCo refuses: it gets the diagonal
    of it.
    """
    compiler = (
        '<mujoco><compiler discardvisual="true" fusestatic="true" balanceinertia="true" '
        f'boundmass="{boundmass}" boundinertia="{boundinertia}"/></mujoco>'
    )
    opening_end = text.index(">", text.index("<robot")) + 1
    text = text[:opening_end] + compiler + text[opening_end:]
    singular = 'ixx="1e-6" ixy="1e-6" ixz="1e-6" iyy="1e-6" iyz="1e-6" izz="1e-6"'
    assert text.count(singular) == 1
    text = text.replace(singular, 'ixx="1e-6" ixy="0" ixz="0" iyy="1e-6" iyz="0" izz="1e-6"')
    spec = mujoco.MjSpec.from_string(text)
    spec.worldbody.first_body().add_freejoint(name="root")
    return spec.compile()


@pytest.fixture
def urdf(shared: Path) -> mujoco.MjModel:
    return compile_urdf(urdf_text(shared), boundmass=1e-4, boundinertia=1e-6)


def test_joints_are_the_urdfs(urdf: mujoco.MjModel) -> None:
    assert tuple(urdf.joint(i).name for i in range(1, urdf.njnt)) == ANYMAL.joint_names
    assert np.all(ANYMAL.torque_limit == 40) and np.all(ANYMAL.velocity_limit == 15)


def test_mass_is_the_urdfs(shared: Path, urdf: mujoco.MjModel) -> None:
    links = ElementTree.fromstring(urdf_text(shared)).iter("mass")
    figures = sum(float(link.attrib["value"]) for link in links)
    assert MODEL.body_mass.sum() == pytest.approx(figures, rel=1e-5)
    assert MODEL.body_mass.sum() == pytest.approx(urdf.body_mass.sum(), rel=1e-9)


def test_kinematics_and_inertia_are_the_urdfs(urdf: mujoco.MjModel) -> None:
    same_bodies(MODEL, urdf, poses=50)


def test_feet_are_where_the_urdfs_fixed_joints_put_them(shared: Path, urdf: mujoco.MjModel) -> None:
    origin = {
        joint.attrib["name"]: np.array(joint.find("origin").attrib["xyz"].split(), dtype=float)  # type: ignore
        for joint in ElementTree.fromstring(urdf_text(shared)).findall("joint")
    }
    rng = np.random.default_rng(1)
    for _ in range(20):
        qpos = random_qpos(rng, 12)
        ours, theirs = at(MODEL, qpos), at(urdf, qpos)
        for leg in LEGS:
            in_shank = origin[f"{leg}_SHANK_TO_ADAPTER"] + origin[f"{leg}_ADAPTER_TO_FOOT"]
            shank = theirs.body(f"{leg}_SHANK")
            expected = shank.xpos + shank.xmat.reshape(3, 3) @ in_shank
            np.testing.assert_allclose(ours.body(f"{leg}_FOOT").xpos, expected, atol=1e-9)


# --- names and figures ---


def test_drives_are_the_pd_law_with_a_torque_limit() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        qpos, qvel = random_qpos(rng, 12, 0.5), rng.normal(size=18)
        data = at(MODEL, qpos, qvel)
        data.ctrl[:] = rng.normal(size=12)
        mujoco.mj_forward(MODEL, data)
        torque = ANYMAL.kp * (data.ctrl - qpos[7:]) - ANYMAL.kd * qvel[6:]
        expected = np.clip(torque, -ANYMAL.torque_limit, ANYMAL.torque_limit)
        np.testing.assert_allclose(data.qfrc_actuator[6:], expected, atol=1e-12)
    assert not MODEL.actuator_ctrllimited.any()


def test_knees_keep_their_side() -> None:
    """Front knees bend one way, hind knees the other, and never through the straight leg.

    The leg is straight when the foot, 0.1 m beside the tube's knee end and 0.298 m below, lies in
    line with the thigh: at atan(0.1 / 0.298) = 0.324 rad on the side where the knee must not go.
    """
    straight = np.arctan2(0.1, 0.298)
    for leg, sign in zip(LEGS, (-1, -1, 1, 1), strict=True):
        knee = ANYMAL.joint_names.index(f"{leg}_KFE")
        limits = sign * np.array([ANYMAL.joint_lower[knee], ANYMAL.joint_upper[knee]])
        assert limits.min() > -straight + 0.3
        assert sign * ANYMAL.home_joints[knee] > 0


def test_imu_reads_gravity_in_the_bases_axes() -> None:
    """At rest an accelerometer shows the reaction to gravity; rolled by +90 degrees, up is the
    base's +Y."""
    model = ANYMAL.spec()
    model.option.gravity = [0, 0, -9.81]
    compiled = model.compile()
    half = np.sqrt(0.5)
    for quaternion, up in (((1, 0, 0, 0), (0, 0, 1)), ((half, half, 0, 0), (0, 1, 0))):
        qpos = ANYMAL.home_qpos.copy()
        qpos[3:7] = quaternion
        data = at(compiled, qpos)
        rotation = data.body("base").xmat.reshape(3, 3)
        np.testing.assert_allclose(rotation.T @ [0, 0, 1], up, atol=1e-12)
        result = data.site(ANYMAL.imu_site).xmat.reshape(3, 3)
        np.testing.assert_allclose(result, rotation, atol=1e-12)
    # Spinning at w about the base's X axis, the gyro says (w, 0, 0) whatever the base's attitude.
    qvel = np.zeros(18)
    qvel[3] = 1.5
    data = at(compiled, random_qpos(np.random.default_rng(5), 12), qvel)
    np.testing.assert_allclose(data.sensor("imu_gyro").data, [1.5, 0, 0], atol=1e-12)


# --- home ---


def test_home_height_by_hand() -> None:
    """Hip to knee 0.25 m, knee to the sphere's centre (0.1, 0.298) m, turned by 0.4 forth and 0.8
    back."""
    knee = 0.25 * np.cos(0.4)
    foot = 0.298 * np.cos(0.4) - 0.1 * np.sin(0.4)
    assert ANYMAL.home_qpos[2] == pytest.approx(knee + foot + 0.031, abs=1e-9)


def test_robot_geoms_collide_with_the_floor_only() -> None:
    qpos = ANYMAL.home_qpos.copy()
    # folded into the trunk
    qpos[7:] = [-0.7, -1.6, -2.6, 0.7, -1.6, -2.6, -0.7, 1.6, 2.6, 0.7, 1.6, 2.6]
    assert at(MODEL, qpos).ncon == 0
    qpos[2] = 0.0
    assert at(with_floor(ANYMAL), qpos).ncon > 4


# --- mirrors ---


def test_mirrors_swap_the_legs_they_should() -> None:
    """Left-right: abduction changes its sign, the pitch axes keep theirs. Front-back: the other way
    round."""
    left_right, front_back = ANYMAL.symmetries["left_right"], ANYMAL.symmetries["front_back"]
    np.testing.assert_array_equal(left_right.joint_sign, [-1, 1, 1] * 4)
    np.testing.assert_array_equal(front_back.joint_sign, [1, -1, -1] * 4)
    feet = np.array(LEGS)
    assert list(feet[left_right.foot_permutation]) == ["RF", "LF", "RH", "LH"]
    assert list(feet[front_back.foot_permutation]) == ["LH", "RH", "LF", "RF"]
    markers = np.array(tuple(ANYMAL.markers))
    result = dict(zip(markers, markers[front_back.marker_permutation], strict=True))["LF_shoulder"]
    assert result == "LH_hip"


# --- markers ---


def test_shoulders_and_hips_are_where_a_legs_first_two_axes_meet() -> None:
    rng = np.random.default_rng(9)
    for _ in range(10):
        data = at(MODEL, random_qpos(rng, 12))
        base = data.body("base")
        for leg, name in zip(LEGS, ("LF_shoulder", "RF_shoulder", "LH_hip", "RH_hip"), strict=True):
            point = base.xpos + base.xmat.reshape(3, 3) @ ANYMAL.markers[name].position
            for joint in ("HAA", "HFE"):
                from_axis = np.cross(
                    point - data.joint(f"{leg}_{joint}").xanchor, data.joint(f"{leg}_{joint}").xaxis
                )
                np.testing.assert_allclose(from_axis, 0, atol=1e-12)
