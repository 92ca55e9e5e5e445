"""The robots' contract: what holds for the shipped ones, and which clause fails when something is
wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import mujoco
import numpy as np
import pytest
import yaml

from mocap_data.errors import InputError
from npmp import robots
from npmp.robots.check import check, sides
from npmp.robots.symmetry import swapped
from tests.robots.models import DOG_YAML, dog, random_qpos


def load(folder: Path, mjcf: str = "", **changes: object) -> robots.Robot:
    (folder / "dog.xml").write_text(mjcf or dog())
    (folder / "robot.yaml").write_text(yaml.safe_dump(yaml.safe_load(DOG_YAML) | changes))
    return robots.load(folder)


def failing(robot: robots.Robot) -> dict[str, str]:
    return {clause.name: clause.detail for clause in check(robot) if not clause.passed}


def section(name: str) -> dict[str, dict]:
    return yaml.safe_load(DOG_YAML)[name]


def shipped() -> list[str]:
    return [name for name in robots.names() if robots.find(name).with_name(f"{name}.xml").is_file()]


@pytest.mark.parametrize("name", shipped())
def test_shipped_robots_keep_it(name: str) -> None:
    assert failing(robots.load(name)) == {}


@pytest.mark.parametrize("turned", [False, True])
def test_a_sound_robot_keeps_it(tmp_path: Path, turned: bool) -> None:
    robot = load(tmp_path, dog(turned=turned))
    assert failing(robot) == {}
    names = ["model", "mass", "joints", "rates", "axes", "symmetry left_right", "markers"]
    names += ["feet", "self-collision", "stands", "gains", "torque limits"]
    assert [clause.name for clause in check(robot)] == names


SYMMETRY = "symmetry left_right"


@pytest.mark.parametrize(
    ("changes", "clause", "detail"),
    [
        ({"drives": {"kp": 2, "kd": 0.5}}, "stands", "on the floor"),
        ({"drives": {"kp": 2e6, "kd": 0, "torque_limit": 1e9}}, "gains", ""),
        ({"feet": {"radius": 0.03}}, "feet", ""),
        ({"markers": {"LF_foot": None}}, "markers", "'FL_foot'"),
        ({"markers": {"base": None}}, "markers", "base"),
        ({"joints": {"FL_hip_joint": {"lower": -0.5}}}, SYMMETRY, "FR_hip_joint by 0.3 rad"),
        ({"joints": {"FL_thigh_joint": {"home": 0.7}}}, SYMMETRY, "differs in the home by 0.1 rad"),
        ({"joints": {"FL_calf_joint": {"lower": -1.62, "upper": -1.58}}}, "joints", "2.3 degrees"),
    ],
)
def test_what_is_wrong_fails(
    tmp_path: Path, changes: dict[str, dict], clause: str, detail: str
) -> None:
    content = {}
    for name, inner in changes.items():
        content[name] = section(name)
        for key, value in inner.items():
            if value is None:
                del content[name][key]
            elif isinstance(value, dict):
                content[name][key] = content[name][key] | value
            else:
                content[name][key] = value
    if clause == "markers":
        content["symmetries"] = {}
    result = failing(load(tmp_path, **content))
    assert clause in result and detail in result[clause], result


def test_a_robot_that_diverges_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MuJoCo would write MUJOCO_LOG.TXT to the working directory."""
    robot = load(tmp_path, drives={"kp": 2e6, "kd": 0, "torque_limit": 1e9})
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    before = mujoco.get_mju_user_warning()
    assert "diverges" in " ".join(failing(robot).values())
    assert list(here.iterdir()) == [] and mujoco.get_mju_user_warning() is before


def test_rotors(tmp_path: Path) -> None:
    """drives.armature: one for all, one a joint, or the model's 0.01."""
    drives = {"kp": 60, "kd": 1, "torque_limit": "model"}
    own = load(tmp_path)
    table = dict.fromkeys(own.joint_names, "model") | {"FL_calf_joint": 0.03}
    for armature, expected in (
        (0.02, 12 * [0.02]),
        (table, [0.03 if n == "FL_calf_joint" else 0.01 for n in own.joint_names]),
    ):
        robot = load(tmp_path, drives=drives | {"armature": armature})
        np.testing.assert_allclose(robot.model().dof_armature[6:], expected)
        assert robot.model_sha256 == own.model_sha256
    with pytest.raises(InputError, match=r"drives\.armature=-1"):
        load(tmp_path, drives=drives | {"armature": -1})


def test_heavy_and_backwards(tmp_path: Path) -> None:
    heavy = dog().replace('mass="6"', 'mass="600"')
    assert "613.2" not in failing(load(tmp_path)).get("mass", "")
    assert "607.200 kg (0.5 to 500)" in failing(load(tmp_path, heavy))["mass"]
    markers = section("markers")
    for name in ("LF_shoulder", "RF_shoulder", "LH_hip", "RH_hip"):
        markers[name]["position"][0] *= -1
    result = failing(load(tmp_path, dog(facing=-1.0), markers=markers))
    assert "FL_foot" in result["axes"] and "X forward" in result["axes"]


def test_nearly_symmetric_robots_say_how_near(tmp_path: Path) -> None:
    """A hip 1 mm ahead: markers are no images, and other poses are off by up to 2 mm, as the leg
    turns about another axis."""
    mirror = section("symmetries")
    with pytest.raises(InputError, match="marker 'LF_foot'"):
        load(tmp_path, dog(shift=1e-3), symmetries=mirror)
    mirror["left_right"]["tolerance"] = 1.1e-3
    result = failing(load(tmp_path, dog(shift=1e-3), symmetries=mirror))
    assert "off by at most" in result["symmetry left_right"]
    assert "tolerance" in result["symmetry left_right"]
    mirror["left_right"]["tolerance"] = 2.1e-3
    robot = load(tmp_path, dog(shift=1e-3), symmetries=mirror)
    assert failing(robot) == {} and robot.symmetries["left_right"].tolerance == 2.1e-3


def test_sides_in_names() -> None:
    told = {"LF_FOOT": (1, 1), "RH_FOOT": (-1, -1), "FL_calf": (1, 1), "FR_calf": (1, -1)}
    told |= {"RL_foot": (-1, 1), "RR_foot": (-1, -1), "left_foot": (0, 1), "footRight": (0, -1)}
    told |= {"l_ank_roll_link": (0, 1), "front_left": (1, 1), "hindPaw": (-1, 0)}
    told |= {"calf": (0, 0), "roll": (0, 0)}
    assert {name: sides(name) for name in told} == told


def test_swapped_names() -> None:
    assert swapped("l_hip", "l_", "r_") == "r_hip" and swapped("hip_l", "l_", "r_") is None
    assert swapped("l_hip", "l_*", "r_*") == "r_hip"
    assert swapped("hip_l", "*_l", "*_r") == "hip_r" and swapped("hip_lower", "*_l", "*_r") is None
    assert swapped("joint_left_hip", "*_left_*", "*_right_*") == "joint_right_hip"


# --- mirrors of bodies whose frames are their makers' choice ---


def test_turned_and_shifted_frames_mirror_exactly(tmp_path: Path) -> None:
    """Only the left thighs' frames are rolled, and the left hips' origins lie elsewhere on their
    axes."""
    mjcf = dog(turned=True)
    plain = dog()
    for leg in ("FR", "RR"):  # right legs from the model with aligned frames
        start, end = f'<body name="{leg}_hip"', f'name="{leg}" class="foot"/>'
        old = mjcf[mjcf.index(start) : mjcf.index(end)]
        mjcf = mjcf.replace(old, plain[plain.index(start) : plain.index(end)])
    for leg, x in (("FL", 0.18), ("RL", -0.18)):
        mjcf = mjcf.replace(f'name="{leg}_hip" pos="{x} ', f'name="{leg}_hip" pos="{x + 0.03} ')
        mjcf = mjcf.replace(f'name="{leg}_thigh" pos="0 ', f'name="{leg}_thigh" pos="-0.03 ')
    robot = load(tmp_path, mjcf)
    symmetry, model = robot.symmetries["left_right"], robot.model()
    assert np.any(symmetry.body_turns[:, 0] != 1) and np.any(symmetry.body_shifts)
    rng = np.random.default_rng(0)
    for _ in range(20):
        qpos = random_qpos(rng, 12)
        data, image = mujoco.MjData(model), mujoco.MjData(model)
        data.qpos[:], image.qpos[:] = qpos, symmetry.mirror_qpos(qpos)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_kinematics(model, image)
        positions = symmetry.mirror_body_positions(data.xpos[1:], data.xquat[1:])
        np.testing.assert_allclose(positions, image.xpos[1:], atol=1e-12)
        quaternions = symmetry.mirror_body_quaternions(data.xquat[1:])
        alignment = np.abs(np.sum(quaternions * image.xquat[1:], axis=-1))
        np.testing.assert_allclose(alignment, 1.0, atol=1e-12)
        again = symmetry.mirror_body_quaternions(quaternions)
        np.testing.assert_allclose(np.abs(np.sum(again * data.xquat[1:], axis=-1)), 1.0, atol=1e-12)
        result = symmetry.mirror_body_positions(positions, quaternions)
        np.testing.assert_allclose(result, data.xpos[1:], atol=1e-12)


def test_checks_never_raise(tmp_path: Path) -> None:
    gone = dataclasses.replace(load(tmp_path), mjcf=tmp_path / "gone.xml")
    assert [clause.name for clause in check(gone)] == ["model"] and not check(gone)[0].passed


def test_bodies_that_touch_near_home_are_named(tmp_path: Path) -> None:
    """The thighs' capsules are 0.115 m beside the middle: a trunk half as wide as 0.1145 m is free
    of them at home, and not where a hip turns in by 0.05 rad."""
    detail = {clause.name: clause.detail for clause in check(load(tmp_path))}["self-collision"]
    assert detail.startswith("each joint through its range: ")
    size = "0.15 0.06 0.05"
    assert size in dog()
    detail = failing(load(tmp_path, dog().replace(size, "0.15 0.1145 0.05")))["self-collision"]
    assert "trunk with" in detail and "ignore_collisions: [[trunk, " in detail


def test_no_damping_and_placeholders_are_no_ok(tmp_path: Path) -> None:
    """60 Nm/rad: 0.024 s of it are 1.4 Nm s/rad. 13.2 kg on 4 legs at 0.3 m: 1000 Nm are 100 times
    that."""
    mjcf = dog().replace('damping="1"', 'damping="0" frictionloss="0.1"')
    details = failing(load(tmp_path, mjcf, drives={"kp": 60, "kd": 0, "torque_limit": 1000}))
    assert "kd: 1.4" in details["gains"]
    assert "1000 Nm (FR_hip_joint)" in details["torque limits"]
    assert "placeholder" in details["torque limits"]
    # a joint's own damping is one
    checks = {clause.name: clause for clause in check(load(tmp_path, drives={"kp": 60, "kd": 0}))}
    assert checks["gains"].passed and "the joints' own damping of 1" in checks["gains"].detail
