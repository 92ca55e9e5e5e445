"""The state's `accel` against MuJoCo's own accelerometers on a moving ANYmal: what it averages, and
where.

With the IMU's imu_cross it is the mean over the last control step at the IMU. Without, as modules
before 0.2 were trained, it is the difference of two mean velocities: an average over the last TWO
control steps (weights rise to their middle and fall again) of the base's origin, half a step late.
"""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from mocap_data.arrays import Array
from npmp import robots
from npmp.core import geometry
from npmp.envs.robot_batch import imu_position
from npmp.envs.state import RobotState, arrive, pose_from_qpos

STEPS = 200


def with_accelerometers(robot: robots.Robot) -> mujoco.MjModel:
    """On a floor, with an accelerometer at the base's origin and one at the IMU."""
    spec = robot.spec(visuals=False)
    spec.option.timestep = 1.0 / robot.physics_rate_hz
    spec.worldbody.add_geom(
        type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.05], contype=1, conaffinity=1
    )
    spec.body(robot.body_names[0]).add_site(name="origin")
    for name, site in (("at_origin", "origin"), ("at_imu", robot.imu_site)):
        spec.add_sensor(
            name=name,
            type=mujoco.mjtSensor.mjSENS_ACCELEROMETER,
            objtype=mujoco.mjtObj.mjOBJ_SITE,
            objname=site,
        )
    return spec.compile()


def shaken(robot: robots.Robot) -> tuple[dict[str, Array], dict[str, Array], int]:
    """ANYmal swaying and stamping in place.

    Returns: the readings of both sensors at every physics step, turned into the world's axes (T n,
    3); the state's
      accel with and without the imu_cross at every control step, likewise (T, 3); n.
    """
    model = with_accelerometers(robot)
    data, dt = mujoco.MjData(model), 1.0 / robot.control_rate_hz
    n = round(dt / model.opt.timestep)
    data.qpos[:] = robot.home_qpos
    pos, rot, joints = pose_from_qpos(torch.tensor(data.qpos).unsqueeze(0))
    levers = {"at_imu": geometry.skew(imu_position(model, robot)), "at_origin": None}
    states = dict.fromkeys(levers, RobotState.still(pos, rot, joints))
    read: dict[str, list[Array]] = {name: [] for name in levers}
    held: dict[str, list[Array]] = {name: [] for name in levers}
    phase = np.arange(model.nu)
    for t in range(STEPS):
        data.ctrl[:] = robot.home_joints + 0.25 * np.sin(2 * np.pi * 2.0 * t * dt + phase)
        for _ in range(n):
            turned = np.empty(9)
            mujoco.mju_quat2Mat(turned, data.qpos[3:7])
            mujoco.mj_step(model, data)
            for name, values in read.items():
                values.append(turned.reshape(3, 3) @ data.sensor(name).data)
        now = torch.tensor(data.qpos).unsqueeze(0), torch.tensor(data.qvel).unsqueeze(0)
        for name, imu_cross in levers.items():
            states[name] = arrive(states[name], *now, joints, dt, imu_cross)
            held[name].append(
                geometry.to_world(states[name].root_rot, states[name].accel)[0].numpy()
            )
    assert float(states["at_imu"].root_rot[0, 2, 2]) > 0.8  # still on its feet
    return (
        {name: np.array(values) for name, values in read.items()},
        {name: np.array(values) for name, values in held.items()},
        n,
    )


def rms(values: Array) -> float:
    return float(np.sqrt(np.square(values[10:]).mean()))


def mean_of_a_step(read: Array, n: int, late: int = 0) -> Array:
    """The mean over a control step that ended so many physics steps before each control step's end,
    (T, 3)."""
    ends = np.arange(1, STEPS + 1) * n - late
    return np.array([read[max(0, end - n) : max(1, end)].mean(0) for end in ends])


def over_two_steps(read: Array, n: int) -> Array:
    """The average over the last two control steps with weights 1, 2, ... n, ... 2, 1, (T, 3); no
    sense in the first."""
    weights = np.concatenate((np.arange(1, n + 1), np.arange(n - 1, 0, -1)))[:, None] / n**2
    ends = np.arange(2, STEPS + 1) * n
    averages = np.array([(weights * read[end - 2 * n + 1 : end]).sum(0) for end in ends])
    return np.concatenate((averages[:1], averages))


@pytest.fixture(scope="module")
def readings() -> tuple[dict[str, Array], dict[str, Array], int]:
    return shaken(robots.load("anymal_b"))


def test_the_accelerometer_is_the_mean_of_a_step_at_the_imu(
    readings: tuple[dict[str, Array], ...],
) -> None:
    """RMS of what differs, m/s^2: 0.25 of 5.0 that the acceleration varies by, as MuJoCo's readings
    are those at the start of each physics step. A step earlier it is 0.6 off, at the base's origin
    4.2."""
    read, held, n = readings
    off = [rms(held["at_imu"] - mean_of_a_step(read["at_imu"], n, late)) for late in range(n + 1)]
    assert int(np.argmin(off)) == 0 and off[0] == pytest.approx(0.253, abs=0.1)
    expected = pytest.approx(4.22, abs=0.4)
    assert rms(held["at_imu"] - mean_of_a_step(read["at_origin"], n)) == expected


def test_without_a_lever_it_averages_two_steps_at_the_base_s_origin(
    readings: tuple[dict[str, Array], ...],
) -> None:
    """RMS of what differs, m/s^2: 0.12 of 3.4 that the acceleration varies by. A mean over the last
    step is 0.73 off, and at its best (0.26) where it is taken three to four physics steps earlier:
    half a control step of eight. At the IMU it is 4.3 off."""
    read, held, n = readings
    expected = pytest.approx(0.124, abs=0.05)
    assert rms(held["at_origin"] - over_two_steps(read["at_origin"], n)) == expected
    off = [
        rms(held["at_origin"] - mean_of_a_step(read["at_origin"], n, late)) for late in range(n + 1)
    ]
    assert int(np.argmin(off)) in (n // 2 - 1, n // 2)
    assert off[0] == pytest.approx(0.73, abs=0.1) and min(off) == pytest.approx(0.256, abs=0.08)
    expected = pytest.approx(4.34, abs=0.4)
    assert rms(held["at_origin"] - mean_of_a_step(read["at_imu"], n)) == expected
