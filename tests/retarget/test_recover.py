"""Keypoints generated from known poses and offsets, then recovered: exactly without noise, to its
standard error with it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter1d
from scipy.stats import chi2

import retarget
from mocap_data import rotations
from mocap_data.arrays import Array, Bools
from mocap_data.clip import Clip
from mocap_data.errors import InputError
from npmp import robots
from retarget import foot_locking, inverse_kinematics, kinematics
from retarget.offsets import offset_jacobian, offset_step
from retarget.prepared_robot import PreparedRobot

# What asks for more than the keypoints is off: regularizer, filters, weights, planting.
PLAIN = {
    "regularization": 1e-7,
    "weights": {},
    "marker_cutoff_hz": None,
    "root_cutoff_hz": None,
    "joint_speed_share": None,
    "scale_body": 1.0,
    "free_arms": False,
}
LEG = 0.5  # [m] of a robot on which a centimetre of noise is a centimetre
# of all contact points of a foot together, against 1 for a trunk marker
SOLE_WEIGHT = 100.0
ROOT_TIME = 0.1  # [s] standard deviation of the window that smooths the root's displacement
KEEP = 1e-3  # [m^2 / rad^2] pull of the joints to where they were


def solvers() -> list[PreparedRobot]:
    found = []
    for name in robots.names():
        try:
            found.append(PreparedRobot.of(robots.load(name)))
        except InputError:  # a model that is not here
            continue
    return found


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


def lock_feet(qpos: Array, contacts: Bools, rate_hz: float, prepared: PreparedRobot) -> Array:
    """A motion (T, 7 + J) whose feet stand where `contacts` (T, F) says so: still, level, on the
    floor.

    Through each of its stances a foot keeps the mean place and heading that it had in them, its
    contact points all at the floor; the correction fades from one stance into the next, and no
    contact point goes below the floor. The root moves little and smoothly to let the legs reach;
    joints stay within their bounds; joints of limbs without feet stay as they are.
    """
    goal = foot_locking.stand_soles(
        prepared.soles_at(qpos), contacts, prepared.home_soles, prepared.robot.foot_radius
    )
    moved = follow(qpos, goal, rate_hz, prepared)
    problem = problem_of(prepared, qpos, prepared.soles, SOLE_WEIGHT / prepared.points_per_foot)
    return foot_locking.put_feet(
        moved, replace(problem, hold_root=True), flat(goal), rate_hz, prepared
    )


def problem_of(
    prepared: PreparedRobot, qpos: Array, points: kinematics.Points, weight: float
) -> inverse_kinematics.Problem:
    robot = prepared.robot
    each = np.full(len(points.body), weight)
    return inverse_kinematics.Problem(
        prepared.tree, points, qpos[:, 7:], robot.joint_lower, robot.joint_upper, KEEP, weight=each
    )


def flat(soles: Array) -> Array:
    return soles.reshape(len(soles), -1, 3)


def follow(qpos: Array, goal: Array, rate_hz: float, prepared: PreparedRobot) -> Array:
    """The motion with its root displaced, smoothly, towards where the legs reach the goal (T, F, K,
    3) at ease."""
    size = (
        float(np.ptp(prepared.home_soles.reshape(-1, 3), axis=0).max())
        + prepared.robot.home_qpos[2]
    )
    corners = (
        0.5 * size * np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]], dtype=np.float64)
    )
    points = kinematics.Points(
        np.concatenate((np.zeros(4, dtype=np.intp), prepared.soles.body)),
        np.concatenate((corners, prepared.soles.local)),
    )
    keep = qpos[:, None, :3] + rotations.rotate(qpos[:, None, 3:7], corners)
    problem = problem_of(prepared, qpos, points, SOLE_WEIGHT / prepared.points_per_foot)
    assert problem.weight is not None
    problem.weight[:4] = 0.25
    solved = inverse_kinematics.solve_poses(
        problem, np.concatenate((keep, flat(goal)), axis=1), qpos, tolerance=1e-4
    )
    out = qpos.copy()
    out[:, :3] += smooth(solved[:, :3] - qpos[:, :3], rate_hz)
    turn = rotations.log(rotations.multiply(solved[:, 3:7], rotations.conjugate(qpos[:, 3:7])))
    out[:, 3:7] = rotations.multiply(rotations.exp(smooth(turn, rate_hz)), qpos[:, 3:7])
    out[:, 3:7] = rotations.normalize(out[:, 3:7])
    out[:, 7:] = solved[:, 7:]
    return out


def smooth(values: Array, rate_hz: float) -> Array:
    """`values` (T, K) averaged over a moment, without lag."""
    return np.asarray(gaussian_filter1d(values, ROOT_TIME * rate_hz, axis=0, mode="nearest"))


def steady_motion(
    prepared: PreparedRobot, make: SimpleNamespace, rate_hz: float, seconds: float
) -> tuple[np.ndarray, np.ndarray]:
    """A motion (T, 7 + J) whose feet stand by turns, and its stances (T, F)."""
    robot, rng = prepared.robot, np.random.default_rng(1)
    time = np.arange(round(seconds * rate_hz)) / rate_hz
    qpos = np.tile(robot.home_qpos, (len(time), 1))
    phase = rng.uniform(0.0, 2.0 * np.pi, len(robot.joint_names))
    qpos[:, 7:] += 0.12 * np.sin(2.0 * np.pi * 0.8 * time[:, None] + phase)
    qpos[:, 0] += 0.3 * time * float(prepared.home_tops.mean())
    qpos[:, 2] -= 0.03 * robot.home_qpos[2]
    feet = len(robot.foot_bodies)
    contacts = np.stack([((time / 1.2 + foot / feet) % 1.0) < 0.6 for foot in range(feet)], axis=1)
    return lock_feet(qpos, contacts, rate_hz, prepared), contacts


def keypoints(prepared: PreparedRobot, theta: np.ndarray, qpos: np.ndarray) -> np.ndarray:
    return kinematics.positions_of(
        prepared.layout.points(theta), *kinematics.forward(prepared.tree, qpos)
    )


def seen(prepared: PreparedRobot, theta: np.ndarray, qpos: np.ndarray) -> np.ndarray:
    """(V,) the directions that markers say something about: not OP3's head."""
    system = inverse_kinematics.linearize(
        prepared.problem(theta, 1e-12), qpos[:1], keypoints(prepared, theta, qpos[:1])
    )
    return np.einsum("tii->i", system.hessian) > 1e-8


def differences(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(T, V) tangent steps from poses b to a."""
    root = rotations.difference(b[:, 3:7], a[:, 3:7])
    return np.concatenate((a[:, :3] - b[:, :3], root, a[:, 7:] - b[:, 7:]), axis=1)


def test_poses_come_back_exactly(prepared: PreparedRobot) -> None:
    rng = np.random.default_rng(2)
    theta, true = some_offsets(prepared, rng), some_poses(prepared, 300, rng)
    problem = prepared.problem(theta, 1e-9)
    found = inverse_kinematics.solve_track(
        problem, keypoints(prepared, theta, true), stride=1, tolerance=1e-8, iterations=100
    )
    error = np.abs(differences(found, true)[:, seen(prepared, theta, true)])
    assert error[:, :3].max() < 1e-4  # [m]
    assert np.degrees(error[:, 3:].max()) < 0.05


def test_a_motion_comes_back_through_the_whole_pipeline(
    prepared: PreparedRobot, make: SimpleNamespace
) -> None:
    # A tenth of a millimetre and of a degree, where a millimetre and half a degree are asked for:
    # what remains is that stances begin and end with a foot that is not quite still, and move the
    # floor by their median.
    rate = prepared.robot.control_rate_hz
    qpos, _ = steady_motion(prepared, make, rate, 6.0)
    theta = prepared.layout.initial()
    limbs = ~(prepared.layout.on_trunk | prepared.layout.on_foot)
    theta = theta + np.where((prepared.layout.sign[:, limbs] != 0.0).any(axis=1), 0.01, 0.0)
    clip = Clip(keypoints(prepared, theta, qpos), prepared.layout.names, rate, name="made")
    offsets = dict(zip(prepared.layout.names, prepared.layout.offsets(theta), strict=True))
    motion = retarget.retarget(clip, prepared.robot, offsets=offsets, lock_feet=False, **PLAIN)
    error = np.abs(differences(motion.qpos, qpos)[:, seen(prepared, theta, qpos)])
    assert motion.quality["rms_marker_m"] < 1e-3
    assert error[:, :3].max() < 1e-3
    assert np.degrees(error[:, 3:].max()) < 0.5


def test_noise_moves_poses_by_its_standard_error(prepared: PreparedRobot) -> None:
    # For small noise the error of least squares is normal with covariance sigma^2 (J'J)^-1, the
    # Cramer-Rao bound, so that error' J'J error / sigma^2 averages to the number of directions, 6 +
    # J, and no estimate without bias does better.
    rng = np.random.default_rng(3)
    theta, true = some_offsets(prepared, rng), some_poses(prepared, 400, rng)
    clean = keypoints(prepared, theta, true)
    sigma = 0.01 * float(prepared.home_tops.mean()) / LEG
    problem = prepared.problem(theta, 1e-9)
    noisy = clean + sigma * rng.normal(size=clean.shape)
    found = inverse_kinematics.solve_track(problem, noisy, stride=1, tolerance=1e-7, iterations=100)
    free = seen(prepared, theta, true)
    inside = ((found[:, 7:] > problem.lower + 1e-6) & (found[:, 7:] < problem.upper - 1e-6)).all(
        axis=1
    )
    jacobian = inverse_kinematics.linearize(problem, true, clean).jacobian[:, :, free]
    moved = np.einsum("trv,tv->tr", jacobian, differences(found, true)[:, free])
    squares = np.square(moved).sum(axis=1)[inside] / sigma**2
    assert inside.mean() > 0.7  # a bound makes errors smaller
    assert squares.mean() / np.count_nonzero(free) == pytest.approx(1.0, abs=0.15)


def test_noise_moves_offsets_by_their_standard_error(prepared: PreparedRobot) -> None:
    # As above, for the offsets, with the poses eliminated: error' S error / sigma^2 is chi-squared
    # with as many degrees of freedom as there are parameters that the keypoints determine; S is the
    # Schur complement of the poses.
    rng = np.random.default_rng(4)
    theta, true = some_offsets(prepared, rng), some_poses(prepared, 200, rng)
    true[:, 3:7] = rotations.exp(np.array([0.2, 0.2, 1.0]) * rng.uniform(-1.0, 1.0, size=(200, 3)))
    heading = rng.uniform(-3.0, 3.0, size=(200, len(prepared.layout.names)))
    clean = keypoints(prepared, theta, true) - prepared.layout.displacement(theta, heading)
    sigma = 0.002 * float(prepared.home_tops.mean()) / LEG
    noisy = clean + sigma * rng.normal(size=clean.shape)
    reg = 1e-9
    found, qpos = theta.copy(), true.copy()
    for _ in range(12):
        problem = replace(
            prepared.problem(found, reg),
            lower=prepared.robot.joint_lower - 1.0,
            upper=prepared.robot.joint_upper + 1.0,
        )
        goal = noisy + prepared.layout.displacement(found, heading)
        qpos = inverse_kinematics.solve_poses(problem, goal, qpos, tolerance=1e-7)
        jacobian = offset_jacobian(
            prepared.layout, kinematics.forward(prepared.tree, qpos)[1], heading
        )
        found = found + offset_step(inverse_kinematics.linearize(problem, qpos, goal), jacobian)
    system = inverse_kinematics.linearize(prepared.problem(theta, reg), true, clean)
    jacobian = offset_jacobian(prepared.layout, kinematics.forward(prepared.tree, true)[1], heading)
    cross = system.jacobian.transpose(0, 2, 1) @ jacobian
    curvature = np.einsum("trp,trq->pq", jacobian, jacobian)
    curvature -= np.einsum("tvp,tvq->pq", cross, np.linalg.solve(system.hessian, cross))
    values, vectors = np.linalg.eigh(curvature)
    known = values > 1e-4 * values.max()
    score = (values * np.square(vectors.T @ (found - theta)))[known].sum() / sigma**2
    low, high = chi2.ppf([0.001, 0.999], np.count_nonzero(known))
    assert low < score < high
    assert np.count_nonzero(known) >= 2
