"""The robot's state: integrating its velocities is an identity, on random numbers and on the
simulator's own."""

from __future__ import annotations

import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.core import geometry
from npmp.envs.state import (
    GRAVITY,
    RobotState,
    StepVelocity,
    arrive,
    differentiate,
    integrate,
    pose_from_qpos,
)
from npmp.robots import Robot
from tests.environments import imitation_env

DT = 0.02
ORIGIN = geometry.skew(torch.zeros(3))  # an IMU there


def random_state(n: int, seed: int, dtype: torch.dtype = torch.float32) -> RobotState:
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=dtype)

    return RobotState(
        draw(n, 3),
        geometry.exp_so3(draw(n, 3)),
        draw(n, 12),
        draw(n, 3),
        draw(n, 3),
        draw(n, 12),
        draw(n, 3),
        draw(n, 12),
        draw(n, 3),
        draw(n, 3),
        draw(n, 12),
    )


def at_constant(root_vel: Tensor, root_ang: Tensor, joint_vel: Tensor) -> StepVelocity:
    return StepVelocity(root_vel, root_ang, joint_vel, root_vel, root_ang, joint_vel)


def assert_same(a: RobotState, b: RobotState, tolerance: float) -> None:
    for name, x, y in zip(RobotState._fields, a, b, strict=True):
        torch.testing.assert_close(
            x, y, atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_integrate_undoes_differentiate() -> None:
    before, after = random_state(64, 0, torch.float64), random_state(64, 1, torch.float64)
    result = integrate(before, differentiate(before, after, DT), after.setpoint, DT)
    for name in (
        "root_pos",
        "root_rot",
        "joint_pos",
        "setpoint",
        "root_vel_end",
        "root_ang_end",
        "joint_vel_end",
    ):
        torch.testing.assert_close(getattr(result, name), getattr(after, name), atol=1e-10, rtol=0)


def test_differentiate_undoes_integrate() -> None:
    before, a, b = (random_state(64, seed, torch.float64) for seed in range(3))
    velocity = StepVelocity(
        a.root_vel, a.root_ang, a.joint_vel, b.root_vel, b.root_ang, b.joint_vel
    )
    after = integrate(before, velocity, a.setpoint, DT)
    for result, given in zip(differentiate(before, after, DT), velocity, strict=True):
        torch.testing.assert_close(result, given, atol=1e-10, rtol=0)


def test_arriving_at_mujocos_numbers_is_integrating_the_velocities_to_them() -> None:
    before, ahead = random_state(64, 0), random_state(64, 1)
    half = geometry.log_so3(ahead.root_rot)
    angle = half.norm(dim=-1, keepdim=True)
    quaternion = torch.cat((torch.cos(angle / 2), torch.sin(angle / 2) * half / angle), -1)
    qpos = torch.cat((ahead.root_pos, quaternion, ahead.joint_pos), -1)
    # MuJoCo's root moves in the world and turns in its own frame
    moving = geometry.to_world(ahead.root_rot, ahead.root_vel_end)
    qvel = torch.cat((moving, ahead.root_ang_end, ahead.joint_vel_end), -1)
    imu_cross = geometry.skew(torch.tensor([0.3, -0.2, 0.1]))
    result = arrive(before, qpos, qvel, ahead.setpoint, DT, imu_cross)
    integrated = integrate(before, differentiate(before, ahead, DT), ahead.setpoint, DT, imu_cross)
    for name, x, y in zip(RobotState._fields, result, integrated, strict=True):
        # 1/DT of the rounding of poses and velocities of size 1 to 10
        torch.testing.assert_close(x, y, atol=2e-3, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_an_accelerometer_beside_the_axis_feels_the_turn() -> None:
    """Spinning up about the vertical from rest to 2 rad/s within a step, the IMU 0.1 m ahead of the
    origin: it gains 0.2 m/s to the left within 20 ms, 10 m/s2. Turning on at 2 rad/s, it is drawn
    inwards by 2 * 2 * 0.1 m/s2."""
    imu_cross, rest = (
        geometry.skew(torch.tensor([0.1, 0.0, 0.0])),
        RobotState.still(torch.zeros(1, 3), torch.eye(3).unsqueeze(0), torch.zeros(1, 12)),
    )
    still, turning, joints = torch.zeros(1, 3), torch.tensor([[0.0, 0.0, 2.0]]), torch.zeros(1, 12)
    spun = integrate(
        rest, StepVelocity(still, still, joints, still, turning, joints), joints, DT, imu_cross
    )
    torch.testing.assert_close(spun.accel, torch.tensor([[0.0, 10.0, GRAVITY]]), atol=1e-4, rtol=0)
    on = integrate(spun, at_constant(still, turning, joints), joints, DT, imu_cross)
    # the mean over the step, seen from the frame at its end, half a step's turn ahead of the mean
    # direction
    expected = torch.tensor([[-0.4, 0.4 * 0.02, GRAVITY]])
    torch.testing.assert_close(on.accel, expected, atol=1e-3, rtol=0)


def test_local_velocities_are_seen_from_the_new_frame() -> None:
    # one step of a quarter turn about the vertical while moving along the old x axis, which is the
    # new frame's -y
    still = random_state(1, 0)._replace(
        root_pos=torch.zeros(1, 3),
        root_rot=torch.eye(3).unsqueeze(0),
        root_vel_end=torch.tensor([[1.0, 0.0, 0.0]]),
    )
    turn = torch.tensor([[0.0, 0.0, torch.pi / 2 / DT]])
    after = integrate(
        still,
        at_constant(torch.tensor([[1.0, 0.0, 0.0]]), turn, torch.zeros(1, 12)),
        still.setpoint,
        DT,
        ORIGIN,
    )
    torch.testing.assert_close(after.root_pos, torch.tensor([[DT, 0.0, 0.0]]))
    torch.testing.assert_close(after.root_vel, torch.tensor([[0.0, -1.0, 0.0]]), atol=1e-6, rtol=0)
    # the velocity did not change, so the accelerometer reads gravity's reaction alone
    torch.testing.assert_close(after.accel, torch.tensor([[0.0, 0.0, GRAVITY]]), atol=1e-4, rtol=0)


def test_accelerometer_reads_g_at_rest_and_nothing_in_free_fall() -> None:
    tilted = geometry.exp_so3(torch.tensor([[0.3, -0.2, 1.0]]))
    state = random_state(1, 0)._replace(root_rot=tilted, root_vel_end=torch.zeros(1, 3))
    rest = integrate(
        state,
        at_constant(torch.zeros(1, 3), torch.zeros(1, 3), torch.zeros(1, 12)),
        state.setpoint,
        DT,
        ORIGIN,
    )
    torch.testing.assert_close(rest.accel, GRAVITY * tilted[:, 2])
    torch.testing.assert_close(rest.accel.norm(dim=-1), torch.tensor([GRAVITY]))
    falling = geometry.to_local(tilted, torch.tensor([[0.0, 0.0, -GRAVITY * DT]]))
    fall = integrate(
        state,
        at_constant(falling, torch.zeros(1, 3), torch.zeros(1, 12)),
        state.setpoint,
        DT,
        ORIGIN,
    )
    torch.testing.assert_close(fall.accel, torch.zeros(1, 3), atol=1e-4, rtol=0)


def test_the_simulators_velocities_reproduce_its_positions(
    robot: Robot, motions: MotionSet
) -> None:
    """A second of stumbling robots: poses integrated from velocities stay on the simulator's."""
    env = imitation_env(robot, motions, 16)
    generator = torch.Generator().manual_seed(0)
    imagined = env.state
    for _ in range(50):
        before = env.state
        env.step(0.3 * torch.randn(16, 12, generator=generator))
        velocity = differentiate(before, env.state, env.dt)
        imagined = integrate(imagined, velocity, env.state.setpoint, env.dt, env.robots.imu_cross)
    assert_same(imagined, env.state, 2e-2)  # accelerations are differences of rounded velocities
    pos, rot, joints = pose_from_qpos(env.robots.sim.qpos)
    torch.testing.assert_close(imagined.root_pos, pos, atol=1e-5, rtol=0)
    torch.testing.assert_close(imagined.root_rot, rot, atol=1e-5, rtol=0)
    torch.testing.assert_close(imagined.joint_pos, joints, atol=1e-5, rtol=0)


def test_packing_choosing_and_indexing() -> None:
    a, b = random_state(5, 0), random_state(5, 1)
    packed = a.pack()
    assert packed.shape == (5, 27 + 48)
    assert_same(RobotState.unpack(packed), a, 0.0)
    mask = torch.tensor([True, False, True, False, False])
    mixed = a.where(mask, b)
    assert_same(mixed[mask], a[mask], 0.0)
    assert_same(mixed[~mask], b[~mask], 0.0)
    assert a[0] is a.root_pos
    lower = a.above(torch.full((5,), 0.25))
    torch.testing.assert_close(lower.root_pos, a.root_pos - torch.tensor([0.0, 0.0, 0.25]))
    assert_same(lower._replace(root_pos=a.root_pos), a, 0.0)
