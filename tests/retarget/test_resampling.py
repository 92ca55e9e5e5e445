"""Resampling: SQUAD through ReferenceMotion, round trips, contacts, velocities on the manifold."""

from __future__ import annotations

from types import SimpleNamespace

import mujoco
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocap_data import rotations
from mocap_data.errors import InputError
from mocap_data.motion import velocities
from npmp import robots
from npmp.robots import Robot
from retarget.resampling import frame_times, nearest, resample, resample_qpos
from tests.refusals import refusal


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_velocities_are_mujocos(make: SimpleNamespace, name: str) -> None:
    """The closed form against mj_differentiatePos over random poses, and integrated back by
    mj_integratePos."""
    robot = robots.load(name)
    model = robot.model()
    qpos = make.wandering(robot, 40)
    qpos[::3, 3:7] *= -1.0  # the same rotations
    qvel = velocities(qpos, 50.0)
    expected = np.empty(model.nv)
    pose = np.empty(model.nq)
    for t in range(1, len(qpos)):
        mujoco.mj_differentiatePos(model, expected, 1 / 50, qpos[t - 1], qpos[t])
        np.testing.assert_allclose(qvel[t], expected, atol=1e-10)
        pose[:] = qpos[t - 1]
        mujoco.mj_integratePos(model, pose, qvel[t], 1 / 50)
        result = pose[[*range(3), *range(7, model.nq)]]
        np.testing.assert_allclose(result, np.delete(qpos[t], range(3, 7)), atol=1e-12)
        assert rotations.angle(pose[3:7], qpos[t, 3:7]) < 1e-7
    np.testing.assert_array_equal(qvel[0], qvel[1])


@given(
    frames=st.integers(1, 200),
    rate=st.sampled_from([24.0, 30.0, 50.0, 60.0, 120.0, 100 / 3]),
    new=st.floats(5.0, 240.0),
)
def test_frame_times_stay_within_the_motion(frames: int, rate: float, new: float) -> None:
    times = frame_times(frames, rate, new)
    assert times[0] == 0.0 and times[-1] <= frames - 1
    np.testing.assert_allclose(np.diff(times[:-1]), rate / new, rtol=1e-6)
    assert frames - 1 - times[-1] < rate / new + 1e-6  # no further frame would have fitted


def test_every_second_frame_is_a_frame(make: SimpleNamespace, robot: Robot) -> None:
    qpos = make.wandering(robot, 31)
    np.testing.assert_allclose(resample_qpos(qpos, 60.0, 30.0), qpos[::2], atol=1e-12)
    doubled = resample_qpos(qpos, 30.0, 60.0)
    np.testing.assert_allclose(doubled[::2], qpos, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(doubled[:, 3:7], axis=1), 1.0, atol=1e-14)


def test_smooth_motion_is_recovered(make: SimpleNamespace, robot: Robot) -> None:
    """From samples of a known motion at 60 Hz its poses at 50 Hz: splines to fourth order, SQUAD to
    third."""
    result = resample_qpos(make.wandering(robot, 601, rate_hz=60.0), 60.0, 50.0)
    exact = make.wandering(robot, 501, rate_hz=50.0)
    assert len(result) == 501
    np.testing.assert_allclose(result[:, :3], exact[:, :3], atol=2e-7)
    np.testing.assert_allclose(result[:, 7:], exact[:, 7:], atol=2e-6)
    assert rotations.angle(result[:, 3:7], exact[:, 3:7]).max() < 5e-4


def test_a_resampled_motion_has_all_fields(make: SimpleNamespace, robot: Robot) -> None:
    qpos = make.wandering(robot, 61, rate_hz=60.0)
    contacts = np.arange(61)[:, None] // 10 % 2 == np.arange(4) % 2
    figures = {"marker_rms_m": np.random.default_rng(0).random(61)}
    motion = make.motion_of(robot, qpos, 60.0, contacts=contacts, frame_quality=figures, weight=2.0)
    out = resample(motion, robot, 50.0)
    assert (out.num_frames, out.rate_hz, out.weight) == (51, 50.0, 2.0)
    np.testing.assert_allclose(out.qvel, velocities(out.qpos, 50.0))
    assert out.contacts is not None
    for frame in (0, 7, 33, 50):
        np.testing.assert_array_equal(out.contacts[frame], contacts[round(frame * 60 / 50)])
    assert out.frame_quality["marker_rms_m"][5] == figures["marker_rms_m"][6]  # both at 0.1 s


def test_joints_stay_within_their_limits(make: SimpleNamespace, robot: Robot) -> None:
    """A joint that runs into its bound and stays there: a spline alone would overshoot."""
    qpos = np.tile(robot.home_qpos, (40, 1))
    qpos[:, 7] = np.clip(np.linspace(0.0, 3.0, 40), None, robot.joint_upper[0])
    assert resample_qpos(qpos, 50.0, 120.0)[:, 7].max() > robot.joint_upper[0] + 1e-4
    result = resample(make.motion_of(robot, qpos), robot, 120.0).qpos[:, 7].max()
    assert result == robot.joint_upper[0]


def test_few_frames(make: SimpleNamespace, robot: Robot) -> None:
    for frames in (1, 2, 3):
        qpos = make.wandering(robot, frames)
        assert resample_qpos(qpos, 50.0, 120.0).shape == (len(frame_times(frames, 50.0, 120.0)), 19)
        result = len(nearest(np.zeros((frames, 4), bool), 50.0, 120.0))
        assert result == len(frame_times(frames, 50.0, 120.0))
    with pytest.raises(InputError, match="too short for 5 Hz"):
        resample(make.motion_of(robot, make.wandering(robot, 4)), robot, 5.0)
    refusal("rate -5 Hz", resample, make.motion_of(robot, make.wandering(robot, 4)), robot, -5.0)
