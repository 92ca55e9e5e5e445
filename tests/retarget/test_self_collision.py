"""Self-collision, on a robot whose overlaps are worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from npmp import robots
from npmp.robots import Robot
from retarget.self_collision import SelfCollision
from tests.refusals import refusal
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
    depth = SelfCollision(plank(tmp_path)).depth(
        poses(1.0, 0.0, -np.arcsin(0.25), -np.arcsin(0.3), 0.5)
    )
    # sin a = 0.25: tips 0.05 apart, radii 0.04 together: free. sin a = 0.3: 0.02 apart, 0.02 deep.
    # The legs run into the plank all the time, which is what joints do.
    np.testing.assert_allclose(depth, [0.0, 0.0, 0.02, 0.0], atol=1e-9)


def test_what_overlaps_at_home_does_not_count(tmp_path: Path) -> None:
    collision = SelfCollision(plank(tmp_path, home=-0.31))
    assert collision.ignored == (("l_leg", "r_leg"),)
    assert not collision.depth(poses(1.0, -0.31, -0.5)).any()


def test_only_feet_may_be_near_the_floor(tmp_path: Path) -> None:
    collision = SelfCollision(plank(tmp_path))
    # The plank's underside is 0.02 below its middle; the feet hang 0.3 below it.
    for height, deep in ((0.3, 0.0), (0.1, 0.0), (0.01, 0.01)):
        itself, below = collision.depths(poses(height, 0.0))
        np.testing.assert_allclose([itself[0], below[0]], [0.0, deep], atol=1e-9)


def test_home_is_free_and_foreign_poses_are_refused(robot: Robot) -> None:
    collision = SelfCollision(robot)
    assert collision.depth(np.asarray(robot.home_qpos)[None])[0] == 0.0
    refusal(r"\(3, 9\), expected \(T, 19\)", collision.depth, poses(1.0, 0.0, 0.1, 0.2))


def test_a_leg_through_the_other_is_seen(robot: Robot) -> None:
    """Mirrored in X, the left shanks cross where both thighs swing towards the middle."""
    qpos = np.asarray(robot.home_qpos).copy()
    joints = dict(zip(robot.joint_names, range(7, 19), strict=True))
    qpos[joints["LF_HFE"]], qpos[joints["LF_KFE"]] = 1.2, -0.05
    qpos[joints["LH_HFE"]], qpos[joints["LH_KFE"]] = -1.2, 0.05
    assert SelfCollision(robot).depth(qpos[None])[0] > 0.01
