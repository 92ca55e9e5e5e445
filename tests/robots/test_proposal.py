"""Proposals of a robot.yaml: what is found in a model, what is guessed and said to be, and that the
result works."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest
import yaml

from npmp import robots
from npmp.robots.check import HUMANOID_MARKERS, QUADRUPED_MARKERS
from npmp.robots.proposal import Proposal, propose
from tests.refusals import refusal
from tests.robots.models import LEGS, dog, person

# an OBJ of 0.2 x 0.1 x 0.1 m
BOX = "".join(f"v {x} {y} {z}\n" for x in (-0.1, 0.1) for y in (-0.05, 0.05) for z in (0.0, 0.1))
TRIANGLES = "1 2 4,1 4 3,5 7 8,5 8 6,1 5 6,1 6 2,3 4 8,3 8 7,1 3 7,1 7 5,2 6 8,2 8 4"
BOX += "".join(f"f {corners}\n" for corners in TRIANGLES.split(","))


def proposal(folder: Path, mjcf: str) -> Proposal:
    (folder / "model.xml").write_text(mjcf)
    return propose(folder / "model.xml")


def content(result: Proposal) -> dict:
    return yaml.safe_load(result.text)


def guessed(result: Proposal) -> set[str]:
    return {finding.topic for finding in result.findings if finding.guessed}


def test_a_dog_with_motors_and_a_keyframe(tmp_path: Path) -> None:
    result = proposal(tmp_path, dog())
    text = content(result)
    assert result.name == text["name"] == "dog_1"
    assert all(check.passed for check in result.checks), result.checks
    assert text["imu_site"] == "imu" and text["control_rate_hz"] == 50
    assert text["feet"]["bodies"] == ["FL_foot", "FR_foot", "RL_foot", "RR_foot"]
    assert text["feet"]["radius"] == 0.02
    assert text["feet"]["at"]["RR_foot"] == {"body": "RR_calf", "position": [0, 0, -0.2]}
    assert set(text["markers"]) == set(QUADRUPED_MARKERS)
    # where the axes of hip (along X at y = 0.05) and thigh (along Y at x = 0.18) meet
    assert text["markers"]["LF_shoulder"] == {"body": "trunk", "position": [0.18, 0.05, 0]}
    assert text["markers"]["base"]["position"] == [0, 0, 0]
    assert text["markers"]["RH_foot"] == {"body": "RR_foot", "position": [0, 0, 0]}
    expected = {"home": -1.6, "lower": -2.7, "upper": -0.8, "velocity": 15}
    assert text["joints"]["RL_calf_joint"] == expected
    expected = {"left_right": {"normal": "y", "swap": [["FL_", "FR_"], ["RL_", "RR_"]]}}
    assert text["symmetries"] == expected
    assert text["drives"]["torque_limit"] == "model"
    # gains and the speed are given nowhere; names, feet, home, limits and the torque stand in the
    # model
    assert guessed(result) == {"rates", "speed limits", "markers", "kp", "kd"}
    for line in result.text.splitlines():
        if line.strip().startswith(("kp:", "kd:", "control_rate_hz:", "LF_shoulder:")):
            assert "# guessed: " in line, line


def test_the_text_is_the_robot(tmp_path: Path) -> None:
    """Written down and loaded, it is the robot that was checked."""
    result = proposal(tmp_path, dog(turned=True))
    (tmp_path / "robot.yaml").write_text(result.text)
    loaded = robots.load(tmp_path)
    assert loaded.model_sha256 == result.robot.model_sha256
    assert loaded.joint_names == result.robot.joint_names
    for field in (
        "home_qpos",
        "kp",
        "kd",
        "torque_limit",
        "joint_lower",
        "joint_upper",
        "foot_points",
    ):
        np.testing.assert_array_equal(getattr(loaded, field), getattr(result.robot, field))
    expected = {name: marker.body for name, marker in result.robot.markers.items()}
    assert {name: marker.body for name, marker in loaded.markers.items()} == expected


def test_a_stance_is_searched_where_there_is_no_keyframe(tmp_path: Path) -> None:
    """Without keyframe, limits and actuators: knees bent, feet under the hips, legs at nine tenths
    of their length."""
    result = proposal(tmp_path, dog(key=False, ranges=False, actuators="none"))
    assert all(check.passed for check in result.checks), result.checks
    assert {"home", "limits", "kp", "kd", "torque limits"} <= guessed(result)
    joints = content(result)["joints"]
    for leg in ("FL", "FR", "RL", "RR"):
        assert joints[f"{leg}_hip_joint"]["home"] == 0
        thigh, knee = joints[f"{leg}_thigh_joint"]["home"], joints[f"{leg}_calf_joint"]["home"]
        # thigh and calf are equally long, so the foot is under the hip where the knee bends twice
        # as far as the thigh
        assert knee == pytest.approx(-2 * thigh, abs=0.02)
        # the hip stands above the lowest point, 0.4 m and the sole's radius at full stretch
        assert 0.4 * np.cos(thigh) + 0.02 == pytest.approx(0.9 * 0.42, abs=0.01)
        # front knees point back, hind knees forward, as a dog's
        assert np.sign(knee) == (-1 if leg[0] == "F" else 1)
    assert set(content(result)["symmetries"]) == {"left_right", "front_back"}


def test_a_person_in_degrees(tmp_path: Path) -> None:
    result = proposal(tmp_path, person())
    assert all(check.passed for check in result.checks), result.checks
    text = content(result)
    assert set(HUMANOID_MARKERS) | {"L_toe", "R_heel", "L_elbow", "R_hand"} <= set(text["markers"])
    assert text["markers"]["L_hip"] == {"body": "pelvis", "position": [0, 0.1, -0.05]}
    assert text["markers"]["L_knee"] == {"body": "left_shin", "position": [0, 0, 0]}
    assert text["markers"]["L_foot"] == {"body": "left_foot", "position": [0, 0, 0]}
    # between the shoulders, but on the root, below the waist, whose pose is fitted to three markers
    # at least
    assert text["markers"]["chest"] == {"body": "pelvis", "position": [0, 0, 0.35]}
    assert text["markers"]["R_elbow"]["body"] == "right_forearm"
    assert text["markers"]["R_shoulder"]["body"] == "torso"
    # box of 0.2 x 0.08 m, 0.015 half high, at (0.03, 0, -0.06): corners 5 mm inside, centres 5 mm
    # above its underside
    assert text["feet"]["bodies"] == ["left_foot", "right_foot"] and text["feet"]["radius"] == 0.005
    expected = {(x, y, -0.07) for x in (-0.065, 0.125) for y in (-0.035, 0.035)}
    assert {tuple(point) for point in text["feet"]["points"]["left_foot"]} == expected
    assert text["feet"]["offset"] == [0.03, 0, -0.07]
    assert text["joints"]["left_knee"]["lower"] == 0
    assert text["joints"]["left_knee"]["upper"] == pytest.approx(2.268928)
    assert text["symmetries"]["left_right"]["swap"] == [["left_", "right_"]]
    knees = text["joints"]["left_knee"]["home"], text["joints"]["right_knee"]["home"]
    assert knees[0] == knees[1] > 0.2


def test_suffixes_and_camel_case_are_names_of_sides_too(tmp_path: Path) -> None:
    swapped = person()
    parts = (
        "shoulder_pitch shoulder_roll elbow hip_yaw hip_roll hip_pitch knee ankle_pitch ankle_roll"
    )
    for part in parts.split():
        for side in ("left", "right"):
            swapped = swapped.replace(f'"{side}_{part}"', f'"{part}_{side}"')
    text = content(proposal(tmp_path, swapped))
    expected = [["*_left", "*_right"], ["left_", "right_"]]
    assert sorted(text["symmetries"]["left_right"]["swap"]) == expected
    camel = person().replace('"left_', '"Left').replace('"right_', '"Right')
    expected = [["Left", "Right"]]
    assert content(proposal(tmp_path, camel))["symmetries"]["left_right"]["swap"] == expected


def test_nearly_symmetric_models_get_a_tolerance(tmp_path: Path) -> None:
    result = proposal(tmp_path, dog(shift=1e-3))
    assert content(result)["symmetries"]["left_right"]["tolerance"] == 3e-3
    assert any("within 3 mm only" in finding.value for finding in result.findings)
    assert all(check.passed for check in result.checks), result.checks


BALL = "<mujoco><worldbody><body><geom size='1'/></body></worldbody></mujoco>"


@pytest.mark.parametrize(
    ("mjcf", "expected"),
    [(dog(facing=-1.0), "-X"), (BALL, "no joints"), ("<mujoco><worldbody/></mujoco>", "no body")],
)
def test_what_cannot_be_proposed_is_said(tmp_path: Path, mjcf: str, expected: str) -> None:
    assert expected in refusal("", proposal, tmp_path, mjcf)


@pytest.mark.parametrize(
    "pose", ["0 -2.2 -1.6 0 -2.2 -1.6 0 0.9 -1.6 0 0.9 -1.6", "0 0.1 -2.6 " * 4]
)
def test_a_keyframe_that_does_not_stand_is_passed_over(tmp_path: Path, pose: str) -> None:
    """Front legs folded up before the trunk, or all feet far behind the hips."""
    result = proposal(tmp_path, dog().replace("0 0.8 -1.6 " * 4, pose))
    assert {"keyframe", "home"} <= guessed(result)
    assert all(check.passed for check in result.checks), result.checks


def test_light_limbs_get_gains_of_their_own(tmp_path: Path) -> None:
    """Without rotors: legs are as stiff as the weight asks, arms as their own, ankles get a rotor;
    both sides alike."""
    result = proposal(tmp_path, person().replace('damping="0.5" armature="0.01"', 'damping="0"'))
    assert all(check.passed for check in result.checks), result.checks
    robot = result.robot
    figures = {
        name: (robot.kp[i], robot.kd[i], robot.torque_limit[i])
        for i, name in enumerate(robot.joint_names)
    }
    assert all(figures[name] == figures[name.replace("left_", "right_")] for name in figures)
    assert figures["left_knee"] == figures["left_ankle_roll"]
    assert figures["left_elbow"][0] < 0.1 * figures["left_knee"][0]
    model = robot.model(visuals=False)
    rotors = dict(zip(robot.joint_names, model.dof_armature[6:], strict=True))
    assert rotors["left_knee"] == 0
    assert rotors["left_ankle_roll"] == pytest.approx(robot.torque_limit[-1] / 7500, rel=0.1)
    # the elbow: 5 Hz and critically damped about its inertia at home
    data = mujoco.MjData(model)
    data.qpos[:] = robot.home_qpos
    mujoco.mj_forward(model, data)
    full = np.zeros((model.nv, model.nv))
    mujoco.mj_fullM(model, data, full)
    elbow = robot.joint_names.index("left_elbow")
    kp, kd, inertia = robot.kp[elbow], robot.kd[elbow], full[6 + elbow, 6 + elbow]
    assert np.sqrt(kp / inertia) >= 0.95 * 2 * np.pi * 5
    assert kd == pytest.approx(2 * np.sqrt(kp * inertia), rel=0.06)


def pup() -> str:
    """A dog as a URDF, whose floating joint follows a link without mass."""
    legs, inertial = (
        "",
        (
            '<inertial><mass value="{0}"/>'
            '<inertia ixx="{1}" iyy="{1}" izz="{1}" ixy="0" ixz="0" iyz="0"/></inertial>'
        ),
    )
    ball = '<geometry><sphere radius="0.02"/></geometry>'
    foot = f'<collision><origin xyz="0 0 -0.2"/>{ball}</collision>'
    limit = '<limit lower="-2.5" upper="2.5" effort="40" velocity="9"/>'
    for name in ("FL", "FR", "RL", "RR"):
        x, y = 0.2 if name[0] == "F" else -0.2, 0.1 if name[1] == "L" else -0.1
        parent = "trunk"
        for part, axis, at in (
            ("hip", "1 0 0", f"{x} {y} 0"),
            ("thigh", "0 1 0", "0 0 0"),
            ("calf", "0 1 0", "0 0 -0.2"),
        ):
            link = f"{name}_{part}"
            shape = foot if part == "calf" else ""
            legs += f'<link name="{link}">{inertial.format(0.5, 0.002)}{shape}</link>'
            legs += f'<joint name="{link}_joint" type="revolute"><parent link="{parent}"/>'
            legs += f'<child link="{link}"/><origin xyz="{at}"/><axis xyz="{axis}"/>{limit}</joint>'
            parent = link
    floating = '<parent link="base_link"/><child link="trunk"/></joint>'
    return (
        f'<robot name="pup"><link name="base_link"/><joint name="free" type="floating">{floating}'
        f'<link name="trunk">{inertial.format(8, 0.1)}</link>{legs}</robot>'
    )


def test_a_floating_joint_below_a_link_without_mass(tmp_path: Path) -> None:
    """As URDFs describe a free base; each joint has its drive's speed and torque."""
    (tmp_path / "pup.urdf").write_text(pup())
    result = propose(tmp_path / "pup.urdf")
    assert all(check.passed for check in result.checks), result.checks
    assert result.robot.body_names[:2] == ("base_link", "trunk")
    assert set(result.robot.velocity_limit) == {9.0} and set(result.robot.torque_limit) == {40.0}
    assert "speed limits" not in guessed(result)


def test_menageries_anymal_c(shared: Path) -> None:
    """The shipped robot.yaml's names, feet and markers are found again."""
    folder = shared / "robots" / "menagerie" / "anybotics_anymal_c"
    if not folder.is_dir():
        pytest.skip(f"needs {folder}")
    result = propose(folder / "anymal_c.xml")
    assert all(check.passed for check in result.checks), result.checks
    text = content(result)
    ours = yaml.safe_load(robots.find("anymal_c").read_text())
    assert text["feet"]["bodies"] == ours["feet"]["bodies"]
    for foot, entry in ours["feet"]["at"].items():
        assert text["feet"]["at"][foot]["body"] == entry["body"]
        position = text["feet"]["at"][foot]["position"]
        np.testing.assert_allclose(position, entry["position"], atol=2e-6)
    for name, marker in ours["markers"].items():
        assert text["markers"][name]["body"] == marker["body"]
        np.testing.assert_allclose(text["markers"][name]["position"], marker["position"], atol=2e-6)
    assert text["symmetries"].keys() == ours["symmetries"].keys()


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    tied = '<equality><joint joint1="FL_hip_joint" joint2="FR_hip_joint"/></equality>'
    tendon = '<tendon><fixed name="t"><joint joint="FL_calf_joint" coef="1"/></fixed></tendon>'
    second = '<body name="cart"><joint type="hinge"/><geom size="0.1"/></body></worldbody>'
    mjcf = dog().replace("</worldbody>", second).replace("</mujoco>", tied + tendon + "</mujoco>")
    result = {row.topic: row.value for row in proposal(tmp_path, mjcf).findings}
    assert result["left out"] == "1 equality, 1 tendon, robot cart"
    assert "left out" not in {row.topic for row in proposal(tmp_path, dog()).findings}


def test_wheels_are_asked_about(tmp_path: Path) -> None:
    """Spheres that turn without limits about their middles."""
    mjcf = dog(actuators="none", key=False)
    for leg in LEGS:
        foot = f'<geom name="{leg}" class="foot"/>'
        wheel = f'<body name="{leg}_wheel" pos="0 0 -0.2"><joint name="{leg}_wheel_joint"/>'
        wheel += foot.replace("/>", ' pos="0 0 0"/></body>')
        mjcf = mjcf.replace(foot, wheel)
    result = {row.topic: row for row in proposal(tmp_path, mjcf).findings}
    assert "FL_wheel_joint" in result["wheels?"].value and result["wheels?"].guessed


@pytest.mark.parametrize("reference", ["package://pup_description/meshes/", "../meshes/"])
def test_meshes_of_a_urdf_are_found_beside_its_package(tmp_path: Path, reference: str) -> None:
    folder = tmp_path / "pup_description"
    for name in ("urdf", "meshes"):
        (folder / name).mkdir(parents=True)
    (folder / "meshes" / "trunk.obj").write_text(BOX)
    mesh = f'<collision><geometry><mesh filename="{reference}trunk.obj"/></geometry></collision>'
    path = folder / "urdf" / "pup.urdf"
    path.write_text(pup().replace('<link name="trunk">', f'<link name="trunk">{mesh}'))
    result = propose(path)
    assert all(check.passed for check in result.checks), result.checks
    assert result.robot.model().nmesh == 1
    (folder / "meshes" / "trunk.obj").unlink()
    refusal(r"mesh 'trunk'.*meshes/trunk\.obj", propose, path)


def test_legs_without_an_ankle_end_in_spheres(tmp_path: Path) -> None:
    """Box ends of 20 x 20 mm: no sole stays level on them, so the knees bend and the foot is the
    sphere with a cap of height h = 5 and half-width a: a stands askew, so up to 10 sqrt 2."""
    foot = '<default class="foot">\n          <geom type="sphere" size="0.02"'
    box = foot.replace("sphere", "box").replace("0.02", "0.01 0.01 0.01")
    mjcf = dog(meshes=False, key=False)
    assert foot in mjcf
    result = proposal(tmp_path, mjcf.replace(foot, box))
    feet = content(result)["feet"]
    assert feet["bodies"] == [f"{leg}_calf" for leg in ("FL", "FR", "RL", "RR")]
    assert [len(points) for points in feet["points"].values()] == [1] * 4
    assert 0.005 <= feet["radius"] < 0.025
    home = [joint["home"] for name, joint in content(result)["joints"].items() if "calf" in name]
    assert max(home) < -0.8
    assert all(check.passed for check in result.checks), result.checks


def test_placeholders_of_torque_are_guessed(tmp_path: Path) -> None:
    """13.2 kg on 4 legs: 1000 Nm are 100 times a leg's share of the weight at its length."""
    mjcf = dog(actuators="position").replace('forcerange="-25 25"', 'forcerange="-1000 1000"')
    result = proposal(tmp_path, mjcf)
    assert content(result)["drives"]["torque_limit"] < 100
    reasons = {finding.topic: finding.guessed for finding in result.findings}
    assert reasons["torque limits"].startswith("the model's 1000 Nm is a placeholder")
    assert all(check.passed for check in result.checks), result.checks
