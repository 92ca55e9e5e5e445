"""Whole tracks of OP3, squatting: what is sound stays, what is too fast is slowed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from npmp import robots
from retarget import kinematics, leg_orientation
from retarget.prepared_robot import PreparedRobot
from retarget.trajectory_optimization import MotionProblem, System, Track, optimize

OP3 = robots.load("op3")
PREPARED = PreparedRobot.of(OP3)


def squat(period_s: float, *, share: float = 0.9) -> Track:
    """Knees bent and stretched, soles level in place, over two periods; joints may use a share of
    their speed."""
    rate = OP3.control_rate_hz
    time = np.arange(round(2 * period_s * rate)) / rate
    qpos = np.tile(OP3.home_qpos, (len(time), 1))
    bend = 0.35 + 0.3 * (1 - np.cos(2 * np.pi * time / period_s))
    for name, factor in (("hip_pitch", -1.0), ("knee", 2.0), ("ank_pitch", 1.0)):
        for side, sign in (("l", 1.0), ("r", -1.0)):
            qpos[:, 7 + OP3.joint_names.index(f"{side}_{name}")] = sign * factor * bend
    qpos[:, 2] = (0.11015 + 0.11) * np.cos(bend) + 0.059
    standing = np.ones((len(qpos), 2), dtype=bool)
    most = share * OP3.velocity_limit / rate
    return Track(
        PREPARED, qpos, standing, leg_orientation.leg_points(OP3), leg_orientation.SEGMENTS, most
    )


def test_a_valid_track_is_unchanged() -> None:
    """Peak speed of the knee 2 * 0.3 * 2 pi / 2 s = 1.9 rad/s, far below its limit; the soles hold
    already."""
    track = squat(2.0)
    np.testing.assert_allclose(optimize(track), track.qpos, atol=1e-4)


def test_fast_track_is_slowed_with_feet_held() -> None:
    """Peak speed of the knee 2 * 0.3 * 2 pi / 0.5 s = 7.5 rad/s against 4.3."""
    track = squat(0.5)
    result = optimize(track)
    assert np.abs(np.diff(track.qpos[:, 7:], axis=0)).max() > 1.5 * track.most.max()
    assert np.abs(np.diff(result[:, 7:], axis=0)).max() < 1.01 * track.most.max()
    soles = PREPARED.soles_at(result)
    np.testing.assert_allclose(soles, np.broadcast_to(soles[:1], soles.shape), atol=2e-4)
    np.testing.assert_allclose(soles[..., 2], OP3.foot_radius, atol=2e-4)


def test_gradient_is_the_costs_derivative() -> None:
    track = squat(0.5)
    rng = np.random.default_rng(0)
    problem = MotionProblem.of(track)
    frames = len(track.qpos)
    problem = dataclasses.replace(
        problem,
        goal=problem.goal + 0.01 * rng.normal(size=(frames, 8, 3)),
        held=rng.random((frames, 8)) < 0.5,
        leg_vectors=rng.normal(size=(frames, 4, 3)),
    )
    # the root's attitude stays: its distance is linear only near the initial one
    step = np.zeros((frames, 26))
    step[:, [0, 1, 2, *range(6, 26)]] = 0.02 * rng.normal(size=(frames, 23))
    qpos = kinematics.integrate(track.qpos, step)
    way = rng.normal(size=(frames, 26))

    def system(size: float) -> System:
        return problem.linearize(kinematics.integrate(qpos, size * way))

    slope = (system(1e-6).cost - system(-1e-6).cost) / 2e-6
    assert slope == pytest.approx(2.0 * (system(0.0).gradient * way).sum(), rel=1e-4)
