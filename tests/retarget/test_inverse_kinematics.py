"""Kinematics against MuJoCo, Jacobians against finite differences, and poses generated, then
recovered."""

from __future__ import annotations

from dataclasses import replace

import mujoco
import numpy as np
import pytest

from mocap_data import rotations
from mocap_data.errors import InputError
from npmp import robots
from retarget import inverse_kinematics, kinematics

# A tree that has what ANYmal lacks: turned body frames, hinges off their body's origin, a skew
# axis, a branch without joints.
ODD = """
<mujoco><worldbody>
  <body name="root" pos="0 0 1"><freejoint name="root"/><geom size="0.1"/>
    <body name="arm" pos="0.3 0.1 0" euler="20 30 40">
      <joint name="a" axis="1 2 3" pos="0.05 -0.02 0.1"/><geom size="0.1"/>
      <body name="plate" pos="0 0.2 0.1" euler="0 90 10"><geom size="0.1"/>
        <body name="tip" pos="0.1 0 0.2"><joint name="b" axis="0 -1 0.5" pos="0 0.1 0"/>
          <geom size="0.1"/></body>
      </body>
    </body>
    <body name="tail" pos="-0.3 0 0"><joint name="c" axis="0 0 1"/><geom size="0.1"/></body>
  </body>
</worldbody></mujoco>
"""


def models() -> list[mujoco.MjModel]:
    return [robots.load("anymal_b").model(), mujoco.MjModel.from_xml_string(ODD)]


def random_qpos(
    rng: np.random.Generator, frames: int, joints: int, spread: float = 1.0
) -> np.ndarray:
    root = rotations.normalize(rng.normal(size=(frames, 4)))
    return np.concatenate(
        (rng.normal(size=(frames, 3)), root, spread * rng.normal(size=(frames, joints))), axis=1
    )


@pytest.mark.parametrize("model", models(), ids=["anymal_b", "odd"])
def test_forward_equals_mujoco(model: mujoco.MjModel) -> None:
    tree = kinematics.tree_of(model)
    qpos = random_qpos(np.random.default_rng(0), 20, tree.num_joints)
    position, rotation = kinematics.forward(tree, qpos)
    data = mujoco.MjData(model)
    for t in range(len(qpos)):
        data.qpos[:] = qpos[t]
        mujoco.mj_kinematics(model, data)
        np.testing.assert_allclose(position[t], data.xpos[1:], atol=1e-12)
        np.testing.assert_allclose(rotation[t].reshape(-1, 9), data.xmat[1:], atol=1e-12)


@pytest.mark.parametrize("model", models(), ids=["anymal_b", "odd"])
def test_integrate_equals_mujoco(model: mujoco.MjModel) -> None:
    rng = np.random.default_rng(1)
    qpos = random_qpos(rng, 10, model.nv - 6)
    step = rng.normal(size=(10, model.nv))
    moved = kinematics.integrate(qpos, step)
    for t in range(10):
        expected = qpos[t].copy()
        mujoco.mj_integratePos(model, expected, step[t], 1.0)
        np.testing.assert_allclose(moved[t], expected, atol=1e-12)


@pytest.mark.parametrize("model", models(), ids=["anymal_b", "odd"])
def test_jacobian_equals_central_differences(model: mujoco.MjModel) -> None:
    rng = np.random.default_rng(2)
    tree = kinematics.tree_of(model)
    body = np.arange(len(tree.body_names))
    points = kinematics.Points(body, rng.normal(size=(len(body), 3)))
    qpos = random_qpos(rng, 5, tree.num_joints)

    def world(at: np.ndarray) -> np.ndarray:
        return kinematics.positions_of(points, *kinematics.forward(tree, at))

    jacobian = kinematics.jacobian_of(tree, points, *kinematics.forward(tree, qpos), world(qpos))
    assert jacobian.shape == (5, len(body), 3, model.nv)
    h = 1e-5
    for v in range(model.nv):
        step = np.zeros((5, model.nv))
        step[:, v] = h
        slope = (
            world(kinematics.integrate(qpos, step)) - world(kinematics.integrate(qpos, -step))
        ) / (2 * h)
        np.testing.assert_allclose(jacobian[..., v], slope, atol=1e-8)


def anymal_problem(
    regularization: float, **changes: object
) -> tuple[robots.Robot, inverse_kinematics.Problem]:
    robot = robots.load("anymal_b")
    tree = kinematics.tree_of(robot.model())
    body = np.array([tree.body_names.index(marker.body) for marker in robot.markers.values()])
    local = np.array([marker.position for marker in robot.markers.values()])
    values: dict = {
        "lower": robot.joint_lower,
        "upper": robot.joint_upper,
        "regularization": regularization,
        "weight": np.ones(len(body)),
    }
    values.update(changes)
    return robot, inverse_kinematics.Problem(
        tree, kinematics.Points(body, local), robot.home_joints, **values
    )


def known_poses(robot: robots.Robot, frames: int, spread: float) -> np.ndarray:
    rng = np.random.default_rng(3)
    qpos = random_qpos(rng, frames, 12)
    qpos[:, 7:] = np.clip(
        robot.home_joints + rng.uniform(-spread, spread, size=(frames, 12)),
        robot.joint_lower,
        robot.joint_upper,
    )
    return qpos


def places(problem: inverse_kinematics.Problem, qpos: np.ndarray) -> np.ndarray:
    """(T, M, 3) Where the markers of poses are."""
    return kinematics.positions_of(problem.points, *kinematics.forward(problem.tree, qpos))


def solved(
    problem: inverse_kinematics.Problem, targets: np.ndarray, **options: float
) -> np.ndarray:
    """(T, 7 + J) Poses, each from where the root alone fits best."""
    start = inverse_kinematics.fit_root(problem.tree, problem.points, targets, problem.stand)
    return inverse_kinematics.solve_poses(problem, targets, start, **options)


def test_the_solution_is_a_minimum_of_equation_8() -> None:
    robot, problem = anymal_problem(0.01)
    targets = places(problem, known_poses(robot, 40, 0.3))
    targets = targets + 0.02 * np.random.default_rng(4).normal(size=targets.shape)
    result = solved(problem, targets)
    gradient = inverse_kinematics.linearize(problem, result, targets).gradient
    inside = (result[:, 7:] > problem.lower) & (result[:, 7:] < problem.upper)
    assert np.abs(gradient[:, :6]).max() < 1e-5
    assert np.abs(gradient[:, 6:][inside]).max() < 1e-5


def test_points_without_weight() -> None:
    robot, problem = anymal_problem(0.01)
    problem.weight[3] = 0.0
    start = known_poses(robot, 5, 0.3)
    targets = places(problem, start)
    lost = targets.copy()
    lost[:, 3] = np.nan
    home = np.concatenate((start[:, :7], np.tile(robot.home_joints, (5, 1))), axis=1)
    result = [inverse_kinematics.solve_poses(problem, goal, home) for goal in (targets, lost)]
    np.testing.assert_array_equal(*result)
    assert np.abs(result[0] - home).max() > 0.1


def test_joint_bounds() -> None:
    robot, problem = anymal_problem(1e-6)
    true = known_poses(robot, 50, 0.6)
    targets = places(problem, true)
    lower = robot.home_joints - 0.3
    upper = robot.home_joints + 0.3
    robot, tight = anymal_problem(1e-6, lower=lower, upper=upper)
    result = solved(tight, targets)
    joints = result[:, 7:]
    assert (joints >= lower).all() and (joints <= upper).all()
    at_bound = (joints == lower) | (joints == upper)
    assert at_bound.any()
    # Karush-Kuhn-Tucker: free directions have no slope, a bound's slope points outward
    gradient = inverse_kinematics.linearize(tight, result, targets).gradient
    assert np.abs(gradient[:, :6]).max() < 1e-4
    assert np.abs(gradient[:, 6:][~at_bound]).max() < 1e-4
    assert (gradient[:, 6:][joints == lower] > -1e-4).all()
    assert (gradient[:, 6:][joints == upper] < 1e-4).all()


def test_a_track_is_solved_as_well_as_its_frames_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    robot, problem = anymal_problem(0.01)
    rng = np.random.default_rng(5)
    # more frames than a chunk
    sway = np.sin(np.arange(5000)[:, None] / 20.0 + rng.uniform(0.0, 6.0, 12))
    true = np.tile(robot.home_qpos, (5000, 1))
    true[:, 7:] += 0.3 * sway
    true[:, 3:7] = rotations.exp(0.2 * sway[:, :3])
    true[2500:, 3:7] *= -1.0  # another track begins, and quaternions are on the other side
    targets = places(problem, true)
    targets += 0.01 * rng.normal(size=targets.shape)
    track = inverse_kinematics.solve_track(problem, targets, starts=(0, 2500), tolerance=1e-7)
    alone = solved(problem, targets, tolerance=1e-7)
    np.testing.assert_allclose(track[:, 7:], alone[:, 7:], atol=1e-5)
    np.testing.assert_allclose(rotations.angle(track[:, 3:7], alone[:, 3:7]), 0.0, atol=1e-5)
    monkeypatch.setattr(inverse_kinematics, "_THREADS", 1)
    again = inverse_kinematics.solve_track(problem, targets, starts=(0, 2500), tolerance=1e-7)
    np.testing.assert_array_equal(again, track)


def test_homes_and_weights_may_change_from_frame_to_frame() -> None:
    robot, problem = anymal_problem(0.05)
    true = known_poses(robot, 40, 0.3)
    targets = places(problem, true)
    targets = targets + 0.01 * np.random.default_rng(6).normal(size=targets.shape)
    weight = np.random.default_rng(7).uniform(0.5, 2.0, size=(40, 9))
    home = true[:, 7:] + 0.1
    each = replace(problem, stand=home, weight=weight)
    start = inverse_kinematics.fit_root(problem.tree, problem.points, targets, problem.stand)
    result = inverse_kinematics.solve_poses(each, targets, start, tolerance=1e-8)
    for t in (0, 17, 39):
        one = replace(problem, stand=home[t], weight=weight[t])
        expected = inverse_kinematics.solve_poses(
            one, targets[t : t + 1], start[t : t + 1], tolerance=1e-8
        )
        np.testing.assert_allclose(result[t], expected[0], atol=1e-9)
        inside = (result[t, 7:] > problem.lower) & (result[t, 7:] < problem.upper)
        gradient = inverse_kinematics.linearize(
            one, result[t : t + 1], targets[t : t + 1]
        ).gradient[0]
        assert np.abs(gradient[:6]).max() < 1e-6 and np.abs(gradient[6:][inside]).max() < 1e-6


def test_a_root_cannot_be_fitted_to_points_on_a_line() -> None:
    tree = kinematics.tree_of(robots.load("anymal_b").model())
    points = kinematics.Points(
        np.zeros(3, dtype=np.intp), np.array([[0.0, 0, 0], [1.0, 0, 0], [2.0, 0, 0]])
    )
    with pytest.raises(InputError, match="not on a line"):
        inverse_kinematics.fit_root(tree, points, np.zeros((4, 3, 3)), np.zeros(12))


def test_shoulders_above_a_waist_fit_the_root() -> None:
    """The G1's pelvis carries its hips alone; its torso hangs on three joints of the waist."""
    g1 = robots.load("unitree_g1")
    tree = kinematics.tree_of(g1.model())
    assert [tree.body_names[body] for body in tree.trunk] == ["pelvis", "torso_link"]
    markers = [g1.markers[name] for name in ("L_hip", "R_hip", "L_shoulder", "R_shoulder")]
    body = np.array([tree.body_names.index(marker.body) for marker in markers])
    points = kinematics.Points(body, np.array([marker.position for marker in markers]))
    qpos = random_qpos(np.random.default_rng(0), 5, 29)
    qpos[:, 7:] = g1.home_joints
    targets = kinematics.positions_of(points, *kinematics.forward(tree, qpos))
    result = inverse_kinematics.fit_root(tree, points, targets, g1.home_joints)
    np.testing.assert_allclose(result[:, :3], qpos[:, :3], atol=1e-9)
    got = np.abs((result[:, 3:7] * qpos[:, 3:7]).sum(axis=1))
    np.testing.assert_allclose(got, np.ones(5), atol=1e-9)
