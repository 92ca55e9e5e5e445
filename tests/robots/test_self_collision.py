"""Self-collision, on a robot whose overlaps are worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import yaml

from mocap_data.ground_profile import GroundProfile
from npmp import robots
from npmp.robots import Robot
from npmp.robots.self_collision import (
    AS_ROBOT_YAML,
    AT_HOME,
    BESIDE,
    BY_DESIGN,
    MIRROR,
    SelfCollision,
)
from tests.refusals import refusal
from tests.robots.models import DOG_YAML, LEGS, dog
from tests.robots.test_robot import MJCF, ROBOT, write

# At hip angle -a both legs swing inwards: their tips are 0.2 - 0.6 sin(a) apart and the capsules,
# which never collide in physics, meet there first.
NO_CONTACT = '<default><geom contype="0" conaffinity="1"/></default><worldbody>'


def plank(folder: Path, home: float = 0.0) -> Robot:
    mjcf = MJCF.replace("<worldbody>", NO_CONTACT)
    return robots.load(write(folder, robot=ROBOT.replace("home: 0.1", f"home: {home}"), mjcf=mjcf))


def poses(height: float, *hips: float) -> np.ndarray:
    """(T, 9): the plank level at a height, both hips at the same angle."""
    return np.array([[0.0, 0.0, height, 1.0, 0.0, 0.0, 0.0, hip, hip] for hip in hips])


def test_legs_meet_as_deep_as_worked_out(tmp_path: Path) -> None:
    depth, _ = SelfCollision(plank(tmp_path)).depths(
        poses(1.0, 0.0, -np.arcsin(0.25), -np.arcsin(0.3), 0.5)
    )
    # sin a = 0.25: tips 0.05 apart, radii 0.04 together: free. sin a = 0.3: 0.02 apart, 0.02 deep.
    # The legs run into the plank all the time, which is what joints do.
    np.testing.assert_allclose(depth, [0.0, 0.0, 0.02, 0.0], atol=1e-9)


def test_what_overlaps_at_home_does_not_count(tmp_path: Path) -> None:
    collision = SelfCollision(plank(tmp_path, home=-0.31))
    assert collision.ignored == {("l_leg", "r_leg"): AT_HOME}
    assert not collision.depths(poses(1.0, -0.31, -0.5))[0].any()


def test_only_feet_may_be_near_the_floor(tmp_path: Path) -> None:
    collision = SelfCollision(plank(tmp_path))
    # The plank's underside is 0.02 below its middle; the feet hang 0.3 below it.
    for height, deep in ((0.3, 0.0), (0.1, 0.0), (0.01, 0.01)):
        itself, below = collision.depths(poses(height, 0.0))
        np.testing.assert_allclose([itself[0], below[0]], [0.0, deep], atol=1e-9)


def test_depth_in_a_ground_along_x(tmp_path: Path) -> None:
    """A platform of 0.1 from 0.5 to 3 m, again after 8 m. The plank reaches 0.2 to either side."""
    heights = np.zeros(160)
    heights[10:61] = 0.1
    qpos = poses(0.11, *6 * [0.0])
    qpos[:, 0] = [0.2, 1.0, 9.0, -7.0, 3.4, 2.9]
    qpos[5, 2] = 0.13
    _, below = SelfCollision(plank(tmp_path)).depths(qpos, GroundProfile(heights))
    np.testing.assert_allclose(below, [0.0, 0.01, 0.01, 0.01, 0.0, 0.0], atol=1e-4)


def test_home_is_free_and_foreign_poses_are_refused(robot: Robot) -> None:
    collision = SelfCollision(robot)
    assert collision.depths(np.asarray(robot.home_qpos)[None])[0][0] == 0.0
    refusal(r"\(3, 9\), expected \(T, 19\)", collision.depth, poses(1.0, 0.0, 0.1, 0.2))


def test_a_leg_through_the_other_is_seen(robot: Robot) -> None:
    """Mirrored in X, the left shanks cross where both thighs swing towards the middle."""
    qpos = np.asarray(robot.home_qpos).copy()
    joints = dict(zip(robot.joint_names, range(7, 19), strict=True))
    qpos[joints["LF_HFE"]], qpos[joints["LF_KFE"]] = 1.2, -0.05
    qpos[joints["LH_HFE"]], qpos[joints["LH_KFE"]] = -1.2, 0.05
    assert SelfCollision(robot).depths(qpos[None])[0][0] > 0.01


def changed(folder: Path, mjcf: str, **more: object) -> Robot:
    """The dog of other people's making, with other shapes and entries of its robot.yaml."""
    content = yaml.safe_load(DOG_YAML) | more
    (folder / "dog.xml").write_text(mjcf)
    (folder / "robot.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(content))))
    return robots.load(folder)


def test_pairs_that_robot_yaml_ignores_and_their_images(tmp_path: Path) -> None:
    """Both fore shanks inwards: hips rolled by 0.6 rad cross below the trunk."""
    mjcf = dog(meshes=False)
    robot = changed(tmp_path, mjcf)
    crossed = np.tile(robot.home_qpos, (2, 1))
    crossed[1, [7, 10]] = 0.6, -0.6
    pairs = SelfCollision(robot).pairs(crossed)
    assert ("FR_calf", "FL_calf") in pairs
    assert pairs["FR_calf", "FL_calf"][0] == 0.0 < pairs["FR_calf", "FL_calf"][1]
    assert SelfCollision(robot).depths(crossed)[0][1] == max(depth[1] for depth in pairs.values())

    # a foot is a part of its calf
    ignored = [["FL_foot", "FR_calf"], ["FL_thigh", "FL_calf"]]
    collision = SelfCollision(changed(tmp_path, mjcf, ignore_collisions=ignored))
    assert collision.ignored["FR_calf", "FL_calf"] == AS_ROBOT_YAML
    assert collision.ignored["FR_thigh", "FR_calf"] == MIRROR
    assert ("FR_calf", "FL_calf") not in collision.pairs(crossed)

    (tmp_path / "robot.yaml").write_text(
        yaml.safe_dump(yaml.safe_load(DOG_YAML) | {"ignore_collisions": [["FL_calf", "tail"]]})
    )
    refusal("ignore_collisions: .*tail", robots.load, tmp_path)


HIP = '<joint name="{}_hip_joint" axis="1 0 0" range="-0.8 0.8"/>'
KNEE = '<joint name="FL_calf_joint" range="-2.7 -0.8"/>'


def with_hips(radius: float, joints: str = HIP) -> str:
    """The dog with spheres on its hips."""
    mjcf = dog(meshes=False)
    for leg in LEGS:
        sphere = f'<geom class="collision" type="sphere" size="{radius}"/>'
        mjcf = mjcf.replace(HIP.format(leg), joints.format(leg) + sphere)
    return mjcf


def test_shapes_of_a_limb_that_mostly_overlap_are_made_so(tmp_path: Path) -> None:
    """A sphere of 0.165 m at 0.19 m of the left calf meets the hip's of 0.15 m, 0.08 m beside it,
    where 0.2^2 + 0.19^2 + 2 0.2 0.19 cos q + 0.08^2 < 0.315^2: |q| > 1.35, 71 % of -2.7 to -0.8."""
    guard = '<geom class="collision" type="sphere" size="0.165" pos="0 0 -0.19"/>'
    joints = yaml.safe_load(DOG_YAML)["joints"]
    for leg in LEGS:
        joints[f"{leg}_calf_joint"]["home"] = -1.3
    mjcf = with_hips(0.15).replace(KNEE, KNEE + guard)
    collision = SelfCollision(changed(tmp_path, mjcf, joints=joints))
    assert collision.ignored["FL_hip", "FL_calf"] == BY_DESIGN
    assert collision.ignored["FR_hip", "FR_calf"] == MIRROR


def test_a_body_without_mass_between_two_connects_them(tmp_path: Path) -> None:
    """As where a body with two hinges was split: trunk and hip go on not to touch."""
    joints = yaml.safe_load(DOG_YAML)["joints"]
    row = joints["FL_hip_joint"]
    joints |= {f"{leg}_swing": row for leg in LEGS}
    drives = {"kp": 60, "kd": 1, "torque_limit": 20}
    both = HIP + '<joint name="{0}_swing" axis="0 1 0" range="-0.5 0.5"/>'
    mjcf = with_hips(0.03, both.replace("{}", "{0}"))
    collision = SelfCollision(changed(tmp_path, mjcf, joints=joints, drives=drives))
    assert collision.ignored["trunk", "FL_hip"] in (AT_HOME, BESIDE)
    assert ("trunk", "FL_thigh") not in collision.ignored
