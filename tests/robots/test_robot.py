"""Loading robots: packaged ones and users', and the errors of a robot.yaml or MJCF."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from npmp import robots
from tests.refusals import refusal

# A plank on two one-joint legs, left and right, whose hip axes point opposite ways.
MJCF = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <body name="plank">
      <freejoint name="root"/>
      <geom type="box" size="0.2 0.1 0.02"/>
      <site name="imu"/>
      <body name="l_leg" pos="0 0.1 0">
        <joint name="l_hip" axis="1 0 0"/>
        <inertial mass="1" pos="0 0 -0.1" diaginertia="0.03 0.02 0.01"/>
        <geom type="capsule" size="0.02" fromto="0 0 0 0 0 -0.3"/>
      </body>
      <body name="r_leg" pos="0 -0.1 0">
        <joint name="r_hip" axis="-1 0 0"/>
        <inertial mass="1" pos="0 0 -0.1" diaginertia="0.03 0.02 0.01"/>
        <geom type="capsule" size="0.02" fromto="0 0 0 0 0 -0.3"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="l_hip" joint="l_hip" kp="10" kv="1" forcerange="-5 5"/>
    <position name="r_hip" joint="r_hip" kp="20" kv="2" forcerange="-6 6"/>
  </actuator>
</mujoco>
"""
ROBOT = """
name: plank
mjcf: plank.xml
control_rate_hz: 50
imu_site: imu
joints:
  l_hip: {home: 0.1, lower: -1, upper: 1, velocity: 10}
  r_hip: {home: 0.1, lower: -1, upper: 1, velocity: 10}
feet: {bodies: [l_leg, r_leg], radius: 0.02, offset: [0, 0, -0.3]}
markers:
  centre: {body: plank, position: [0, 0, 0]}
  left: {body: l_leg, position: [0, 0, -0.3]}
  right: {body: r_leg, position: [0, 0, -0.3]}
symmetries:
  left_right: {normal: y, swap: [[l_, r_]]}
"""


def write(folder: Path, *, robot: str = ROBOT, mjcf: str = MJCF) -> Path:
    (folder / "plank.xml").write_text(mjcf)
    (folder / "robot.yaml").write_text(robot)
    return folder


def changed(path: str, value: object) -> str:
    """ROBOT with the entry at "key key" set to `value`, or left out where value is None."""
    content = inner = yaml.safe_load(ROBOT)
    *above, key = path.split()
    for name in above:
        inner = inner[name]
    inner[key] = value
    if value is None:
        del inner[key]
    # through JSON, so that YAML has no aliases
    return yaml.safe_dump(json.loads(json.dumps(content)))


def message(folder: Path, **files: str) -> str:
    """The one line that loading this robot fails with."""
    return refusal("", robots.load, write(folder, **files))


# --- loading ---


def test_own_robot_by_folder_or_file(tmp_path: Path) -> None:
    write(tmp_path)
    plank = robots.load(tmp_path)
    assert robots.load(str(tmp_path / "robot.yaml")).model_sha256 == plank.model_sha256
    assert plank.name == "plank" and plank.source == ""
    assert plank.joint_names == ("l_hip", "r_hip")
    assert plank.body_names == ("plank", "l_leg", "r_leg")
    np.testing.assert_array_equal(plank.kp, [10, 20])
    np.testing.assert_array_equal(plank.kd, [1, 2])
    np.testing.assert_array_equal(plank.torque_limit, [5, 6])
    assert (plank.physics_rate_hz, plank.control_rate_hz, plank.substeps) == (200, 50, 4)
    # Both legs swung by 0.1 rad: the foot's centre is 0.3 cos 0.1 below, its sole 0.02 lower.
    assert plank.home_qpos[2] == pytest.approx(0.3 * np.cos(0.1) + 0.02)


def test_feet_are_points_or_soles(tmp_path: Path) -> None:
    """Without points a foot is its offset; with points the lowest of them touches the floor at
    home."""
    plank = robots.load(write(tmp_path))
    np.testing.assert_array_equal(plank.foot_points, [[[0, 0, -0.3]]] * 2)
    corners = [[-0.1, 0.0, -0.35], [0.1, 0.0, -0.35]]
    plank = robots.load(
        write(tmp_path, robot=changed("feet points", {"l_leg": corners, "r_leg": corners}))
    )
    np.testing.assert_array_equal(plank.foot_points, [corners, corners])
    np.testing.assert_array_equal(plank.foot_offset, [0, 0, -0.3])
    assert plank.home_qpos[2] == pytest.approx(0.35 * np.cos(0.1) + 0.02)
    with pytest.raises(ValueError, match="read-only"):
        plank.foot_points[0, 0, 0] = 1.0


def test_limits_are_radians_whatever_the_models_unit(tmp_path: Path) -> None:
    """The model's angles are in degrees, MJCF's default; robot.yaml's limits of +-1 are radians."""
    for unit in ("degree", "radian"):
        mjcf = MJCF.replace("<option", f'<compiler angle="{unit}"/><option')
        model = robots.load(write(tmp_path, mjcf=mjcf)).model()
        np.testing.assert_allclose(model.jnt_range[1:], [[-1, 1], [-1, 1]], atol=1e-12)


def test_signs_follow_from_the_axes(tmp_path: Path) -> None:
    """Hip axes that are each other's mirror image (+X and -X across Y) need no change of sign."""
    symmetry = robots.load(write(tmp_path)).symmetries["left_right"]
    np.testing.assert_array_equal(symmetry.joint_sign, [1, 1])
    np.testing.assert_array_equal(symmetry.joint_permutation, [1, 0])
    np.testing.assert_array_equal(symmetry.body_permutation, [0, 2, 1])
    np.testing.assert_array_equal(symmetry.marker_permutation, [0, 2, 1])
    same_axes = MJCF.replace('axis="-1 0 0"', 'axis="1 0 0"')
    symmetry = robots.load(write(tmp_path, mjcf=same_axes)).symmetries["left_right"]
    np.testing.assert_array_equal(symmetry.joint_sign, [-1, -1])


# --- the model's hash ---


def test_hash_ignores_what_motions_do_not_depend_on(tmp_path: Path) -> None:
    plain = robots.load(write(tmp_path)).model_sha256
    mjcf = MJCF.replace('kp="10"', 'kp="11"').replace('size="0.02" fromto', 'size="0.03" fromto')
    mjcf = mjcf.replace('timestep="0.005"', 'timestep="0.0025"')
    assert robots.load(write(tmp_path, mjcf=mjcf)).model_sha256 == plain
    # The same inertia by other principal axes: turned by 90 degrees about X, Y and Z change places.
    turned = 'diaginertia="0.03 0.01 0.02" euler="90 0 0"'
    mjcf = MJCF.replace('diaginertia="0.03 0.02 0.01"', turned)
    assert robots.load(write(tmp_path, mjcf=mjcf)).model_sha256 == plain


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('pos="0 0.1 0"', 'pos="0 0.1001 0"'),
        ('mass="1" pos="0 0 -0.1"', 'mass="1.001" pos="0 0 -0.1"'),
        ("0.03 0.02 0.01", "0.03 0.02 0.0101"),
        ('axis="1 0 0"', 'axis="-1 0 0"'),
    ],
)
def test_hash_sees_kinematics_and_inertia(tmp_path: Path, old: str, new: str) -> None:
    lopsided = changed("symmetries", {})
    plain = robots.load(write(tmp_path, robot=lopsided)).model_sha256
    other = robots.load(
        write(tmp_path, robot=lopsided, mjcf=MJCF.replace(old, new, 1))
    ).model_sha256
    assert other != plain


# --- wrong files ---


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("colour", "red", "'colour'"),
        ("imu_site", "nose", "imu_site: no site 'nose'"),
        ("control_rate_hz", 60, "control_rate_hz=60"),
        ("joints r_hip", None, "joints lacks 'r_hip'"),
        ("joints l_hip home", 2, "joints.l_hip: home=2"),
        ("feet points", {"l_leg": [[0, 0, 0]]}, "feet.points lacks 'r_leg'"),
        ("markers left position", [0, 0, -0.2], "marker 'left'"),
        ("symmetries left_right swap", [["l_", "q_"]], "'q_hip'"),
        ("imu", {"body": "base", "position": [0, 0, 0]}, "imu needs `drives:`"),
    ],
)
def test_wrong_entries_are_named(tmp_path: Path, path: str, value: object, expected: str) -> None:
    assert expected in message(tmp_path, robot=changed(path, value))


DRIVE = '<position name="l_hip" joint="l_hip" kp="10" kv="1" forcerange="-5 5"/>'


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("</mujoco>", "", "plank.xml: "),
        ('<freejoint name="root"/>', "", "'root'"),
        (DRIVE, "", "actuators: r_hip"),
        (DRIVE, DRIVE.replace('joint="l', 'joint="r'), "actuator 'l_hip'"),
        ('axis="-1 0 0"', 'axis="0 1 0"', "'l_hip' and 'r_hip'"),
    ],
)
def test_wrong_mjcf_is_named(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in MJCF
    assert expected in message(tmp_path, mjcf=MJCF.replace(old, new, 1))


def test_garbled_and_missing_files(tmp_path: Path) -> None:
    assert "robot.yaml" in message(tmp_path, robot="name: [")
    assert "robot.yaml" in message(tmp_path, robot="- 1")
    refusal("other.yaml", robots.load, tmp_path / "other.yaml")
    (tmp_path / "robot.yaml").unlink()
    refusal(r"no robot\.yaml in folder", robots.load, tmp_path)


def test_joints_may_turn_further_than_the_robot_says() -> None:
    robot = robots.load("anymal_b")
    wide = robot.with_joint_ranges({"HFE": 3.0, "KFE": 2.0})
    by_name = {
        name: (low, high)
        for name, low, high in zip(
            wide.joint_names, wide.joint_lower, wide.joint_upper, strict=True
        )
    }
    assert by_name["LF_HFE"] == (-3.0, 3.0) and by_name["RF_HAA"] == (-0.9, 0.7)
    assert by_name["LF_KFE"] == (-2.6, 2.0)  # wider already where it is
    assert wide.model().joint("RH_HFE").range.tolist() == pytest.approx([-3.0, 3.0])
    assert robot.joint_upper[1] == 1.6 and wide.model_sha256 == robot.model_sha256
    # of another kind of robot
    assert np.array_equal(robot.with_joint_ranges({"elbow": 3.0}).joint_lower, robot.joint_lower)
    refusal("KFX", robot.with_joint_ranges, {"HFE": 3.0, "KFX": 3.0})
