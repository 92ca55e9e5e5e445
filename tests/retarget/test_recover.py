"""Keypoints generated from known poses and offsets, then recovered: exactly without noise, to its
standard error with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from mocap_data import rotations
from mocap_data.errors import InputError
from npmp import robots
from retarget import inverse_kinematics, kinematics
from retarget.offsets import offset_jacobian, offset_step
from retarget.prepared_robot import PreparedRobot

LEG = 0.5  # [m] of a robot on which a centimetre of noise is a centimetre


def solvers() -> list[PreparedRobot]:
    """All robots but the G1, whose arms have seven joints: elbow and hand give six numbers."""
    result = []
    for name in sorted(set(robots.names()) - {"unitree_g1"}):
        try:
            result.append(PreparedRobot.of(robots.load(name)))
        except InputError:  # a model that is not here
            continue
    return result


@pytest.fixture(scope="module", params=solvers(), ids=lambda prepared: prepared.robot.name)
def prepared(request: pytest.FixtureRequest) -> PreparedRobot:
    return request.param


def some_offsets(prepared: PreparedRobot, rng: np.random.Generator) -> np.ndarray:
    """Symmetric offsets, up to a tenth of the leg away from the robot's own markers."""
    size = 0.1 * float(prepared.home_tops.mean())
    return prepared.layout.initial() + rng.uniform(-size, size, len(prepared.layout.axis))


def some_poses(prepared: PreparedRobot, frames: int, rng: np.random.Generator) -> np.ndarray:
    """Poses (T, 7 + J) anywhere, joints within 0.25 rad of home and of their bounds' inside."""
    robot = prepared.robot
    joints = robot.home_joints + rng.uniform(-0.25, 0.25, size=(frames, len(robot.joint_names)))
    joints = np.clip(joints, robot.joint_lower + 0.05, robot.joint_upper - 0.05)
    root = rotations.normalize(rng.normal(size=(frames, 4)))
    return np.concatenate((rng.normal(size=(frames, 3)), root, joints), axis=1)


def problem_of(
    prepared: PreparedRobot, theta: np.ndarray, regularization: float = 1e-9
) -> inverse_kinematics.Problem:
    """Eq. 8 of the keypoints alone: hardly a regularizer, all weights 1."""
    weight = np.ones(len(prepared.layout.names))
    return replace(prepared.problem(theta), regularization=regularization, weight=weight)


def keypoints(prepared: PreparedRobot, theta: np.ndarray, qpos: np.ndarray) -> np.ndarray:
    return kinematics.positions_of(
        prepared.layout.points(theta), *kinematics.forward(prepared.tree, qpos)
    )


def observable(prepared: PreparedRobot, theta: np.ndarray, qpos: np.ndarray) -> np.ndarray:
    """(V,) the directions that markers say something about: not OP3's head."""
    system = inverse_kinematics.linearize(
        problem_of(prepared, theta, 1e-12), qpos[:1], keypoints(prepared, theta, qpos[:1])
    )
    return np.einsum("tii->i", system.hessian) > 1e-8


def differences(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(T, V) tangent steps from poses b to a."""
    root = rotations.difference(b[:, 3:7], a[:, 3:7])
    return np.concatenate((a[:, :3] - b[:, :3], root, a[:, 7:] - b[:, 7:]), axis=1)


def test_poses_are_recovered(prepared: PreparedRobot) -> None:
    rng = np.random.default_rng(2)
    theta = some_offsets(prepared, rng)
    true = some_poses(prepared, 300, rng)
    problem = problem_of(prepared, theta)
    result = inverse_kinematics.solve_track(
        problem, keypoints(prepared, theta, true), stride=1, tolerance=1e-8, iterations=100
    )
    error = np.abs(differences(result, true)[:, observable(prepared, theta, true)])
    assert error[:, :3].max() < 1e-4  # [m]
    assert np.degrees(error[:, 3:].max()) < 0.05


def test_noise_moves_poses_by_its_standard_error(prepared: PreparedRobot) -> None:
    # For small noise the error of least squares is normal with covariance sigma^2 (J'J)^-1, the
    # Cramer-Rao bound, so that error' J'J error / sigma^2 averages to the number of directions, 6 +
    # J, and no estimate without bias does better.
    rng = np.random.default_rng(3)
    theta = some_offsets(prepared, rng)
    true = some_poses(prepared, 400, rng)
    clean = keypoints(prepared, theta, true)
    sigma = 0.01 * float(prepared.home_tops.mean()) / LEG
    problem = problem_of(prepared, theta)
    noisy = clean + sigma * rng.normal(size=clean.shape)
    result = inverse_kinematics.solve_track(
        problem, noisy, stride=1, tolerance=1e-7, iterations=100
    )
    free = observable(prepared, theta, true)
    inside = ((result[:, 7:] > problem.lower + 1e-6) & (result[:, 7:] < problem.upper - 1e-6)).all(
        axis=1
    )
    jacobian = inverse_kinematics.linearize(problem, true, clean).jacobian[:, :, free]
    moved = np.einsum("trv,tv->tr", jacobian, differences(result, true)[:, free])
    squares = np.square(moved).sum(axis=1)[inside] / sigma**2
    assert inside.mean() > 0.7  # a bound makes errors smaller
    assert squares.mean() / np.count_nonzero(free) == pytest.approx(1.0, abs=0.15)


def test_noise_moves_offsets_by_their_standard_error(prepared: PreparedRobot) -> None:
    # As above, for the offsets, with the poses eliminated: error' S error / sigma^2 is chi-squared
    # with as many degrees of freedom as there are parameters that the keypoints determine; S is the
    # Schur complement of the poses.
    rng = np.random.default_rng(4)
    theta = some_offsets(prepared, rng)
    true = some_poses(prepared, 200, rng)
    true[:, 3:7] = rotations.exp(np.array([0.2, 0.2, 1.0]) * rng.uniform(-1.0, 1.0, size=(200, 3)))
    heading = rng.uniform(-3.0, 3.0, size=(200, len(prepared.layout.names)))
    clean = keypoints(prepared, theta, true) - prepared.layout.displacement(theta, heading)
    sigma = 0.002 * float(prepared.home_tops.mean()) / LEG
    noisy = clean + sigma * rng.normal(size=clean.shape)
    result = theta.copy()
    qpos = true.copy()
    for _ in range(12):
        problem = replace(
            problem_of(prepared, result),
            lower=prepared.robot.joint_lower - 1.0,
            upper=prepared.robot.joint_upper + 1.0,
        )
        goal = noisy + prepared.layout.displacement(result, heading)
        qpos = inverse_kinematics.solve_poses(problem, goal, qpos, tolerance=1e-7)
        turned = kinematics.forward(prepared.tree, qpos)[1]
        jacobian = offset_jacobian(prepared.layout, turned, heading, problem.weight)
        system = inverse_kinematics.linearize(problem, qpos, goal)
        result = result + offset_step(system, jacobian, result, 0.0 * result)
    problem = problem_of(prepared, theta)
    system = inverse_kinematics.linearize(problem, true, clean)
    turned = kinematics.forward(prepared.tree, true)[1]
    jacobian = offset_jacobian(prepared.layout, turned, heading, problem.weight)
    cross = system.jacobian.transpose(0, 2, 1) @ jacobian
    curvature = np.einsum("trp,trq->pq", jacobian, jacobian)
    curvature -= np.einsum("tvp,tvq->pq", cross, np.linalg.solve(system.hessian, cross))
    values, vectors = np.linalg.eigh(curvature)
    determined = values > 1e-4 * values.max()
    score = (values * np.square(vectors.T @ (result - theta)))[determined].sum() / sigma**2
    low, high = chi2.ppf([0.001, 0.999], np.count_nonzero(determined))
    assert low < score < high
    assert np.count_nonzero(determined) >= 2
