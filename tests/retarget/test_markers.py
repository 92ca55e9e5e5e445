"""Offsets: symmetric by construction, their derivative, and offsets generated, then recovered."""

from __future__ import annotations

import numpy as np
import pytest

from mocap_data import rotations
from mocap_data.clip import Clip
from npmp import robots
from retarget import Options, kinematics
from retarget.markers import MarkerLayout
from retarget.offsets import offset_jacobian
from retarget.pipeline import fit_subject
from retarget.prepared_robot import PreparedRobot
from retarget.subjects import subjects_of


@pytest.fixture(scope="module")
def prepared(robot: robots.Robot) -> PreparedRobot:
    return PreparedRobot.of(robot)


def assert_symmetric(
    robot: robots.Robot, layout: MarkerLayout, offsets: np.ndarray, tolerance: float
) -> None:
    for mirror in robot.symmetries.values():
        mirrored = mirror.mirror_points(offsets)[mirror.marker_permutation]
        np.testing.assert_allclose(mirrored, offsets, atol=tolerance)


def test_six_parameters_describe_anymals_nine_markers(prepared: PreparedRobot) -> None:
    # base: z only (both mirrors map it to itself); the four trunk corners share x, y, z; the four
    # feet share x, y
    layout = prepared.layout
    assert layout.names[:2] == ("base", "LF_shoulder")
    assert layout.axis.tolist() == [2, 0, 1, 2, 0, 1]
    np.testing.assert_array_equal(layout.sign[0], [1, 0, 0, 0, 0, 0, 0, 0, 0])
    # y of LF, RF, LH, RH
    np.testing.assert_array_equal(layout.sign[2], [0, 1, -1, 1, -1, 0, 0, 0, 0])
    np.testing.assert_array_equal(layout.sign[4], [0, 0, 0, 0, 0, 1, 1, -1, -1])  # x of the feet


def test_a_footprint_is_displaced_in_the_heading_frame(prepared: PreparedRobot) -> None:
    heading = np.zeros((1, 9))
    heading[:, 5:] = np.pi / 2  # facing +Y: forward 0.1 is +Y, left 0.2 is -X
    moved = prepared.layout.displacement(np.array([0.0, 0.0, 0.0, 0.0, 0.1, 0.2]), heading)[0]
    np.testing.assert_allclose(moved[:5], 0.0)
    np.testing.assert_allclose(moved[5], [-0.2, 0.1, 0.0], atol=1e-15)  # LF
    np.testing.assert_allclose(moved[8], [0.2, -0.1, 0.0], atol=1e-15)  # RH


def test_offset_jacobian_equals_differences(prepared: PreparedRobot) -> None:
    rng = np.random.default_rng(1)
    layout = prepared.layout
    frames = 4
    qpos = np.concatenate(
        (
            rng.normal(size=(frames, 3)),
            rotations.normalize(rng.normal(size=(frames, 4))),
            rng.normal(size=(frames, 12)),
        ),
        axis=1,
    )
    heading = rng.normal(size=(frames, 9))
    bodies = kinematics.forward(prepared.tree, qpos)

    def residual(theta: np.ndarray) -> np.ndarray:
        return (
            kinematics.positions_of(layout.points(theta), *bodies)
            - layout.displacement(theta, heading)
        ).reshape(frames, 27)

    theta = rng.normal(size=6)
    jacobian = offset_jacobian(layout, bodies[1], heading, np.ones(9))
    for p in range(6):
        # linear
        expected = residual(theta + np.eye(6)[p]) - residual(theta)
        np.testing.assert_allclose(jacobian[..., p], expected, atol=1e-12)


def random_motion(robot: robots.Robot, frames: int = 400) -> np.ndarray:
    """Poses that race along at 2 m/s, so that no foot ever stands, the joints at random about the
    home pose."""
    rng = np.random.default_rng(2)
    qpos = np.zeros((frames, 19))
    qpos[:, 0] = 2.0 * np.arange(frames) / 60.0
    qpos[:, 2] = 0.5
    qpos[:, 3:7] = rotations.exp(0.1 * rng.normal(size=(frames, 3)))
    qpos[:, 7:] = robot.home_joints + 0.2 * rng.normal(size=(frames, 12))
    return qpos


def test_offsets_from_a_clip_are_symmetric(robot: robots.Robot, prepared: PreparedRobot) -> None:
    qpos = random_motion(robot, 120)
    positions = kinematics.positions_of(
        prepared.layout.points(prepared.layout.initial()), *kinematics.forward(prepared.tree, qpos)
    )
    # a lopsided animal
    positions = positions + 0.03 * np.random.default_rng(6).normal(size=(1, 9, 3))
    clip = Clip(positions, prepared.layout.names, 60.0)
    [subject] = subjects_of([clip], tuple(robot.markers))
    body = fit_subject(subject, PreparedRobot.of(robot), Options())
    assert_symmetric(robot, prepared.layout, prepared.layout.offsets(body.theta), 1e-9)


def test_limb_and_sole_offsets_move_points_as_a_mirror_moves_them() -> None:
    prepared = PreparedRobot.of(robots.load("op3"))
    theta = np.random.default_rng(7).normal(scale=0.01, size=len(prepared.layout.axis))
    assert_symmetric(prepared.robot, prepared.layout, prepared.layout.offsets(theta), 1e-12)
    mirror = prepared.robot.symmetries["left_right"]
    qpos = np.tile(prepared.robot.home_qpos, (1, 1))
    qpos[:, 7:] += np.random.default_rng(8).normal(scale=0.3, size=20)
    points = prepared.layout.points(theta)
    world = kinematics.positions_of(points, *kinematics.forward(prepared.tree, qpos))
    image = kinematics.positions_of(
        points, *kinematics.forward(prepared.tree, mirror.mirror_qpos(qpos))
    )
    chosen = [list(prepared.robot.markers).index(name) for name in prepared.layout.names]
    expected = mirror.mirror_points(world)[:, mirror.marker_permutation[chosen]]
    np.testing.assert_allclose(image, expected, atol=1e-7)
