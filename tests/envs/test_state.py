"""The robot's state: integrating its velocities is an identity, on random numbers and on the simulator's own."""

from __future__ import annotations

import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp import geometry
from npmp.envs import ImitationConfig, ImitationEnv
from npmp.envs.plant import PlantConfig
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

DT = 0.02


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
    )


def assert_same(a: RobotState, b: RobotState, tolerance: float) -> None:
    for name, x, y in zip(RobotState._fields, a, b, strict=True):
        torch.testing.assert_close(x, y, atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def test_integrate_undoes_differentiate() -> None:
    before, after = random_state(64, 0, torch.float64), random_state(64, 1, torch.float64)
    velocity = differentiate(before, after.root_pos, after.root_rot, after.joint_pos, DT)
    found = integrate(before, velocity, after.setpoint, DT)
    for name in ("root_pos", "root_rot", "joint_pos", "setpoint"):
        torch.testing.assert_close(getattr(found, name), getattr(after, name), atol=1e-10, rtol=0)


def test_differentiate_undoes_integrate() -> None:
    before = random_state(64, 0, torch.float64)
    other = random_state(64, 1, torch.float64)
    velocity = StepVelocity(other.root_vel, other.root_ang, other.joint_vel)
    after = integrate(before, velocity, other.setpoint, DT)
    for found, given in zip(
        differentiate(before, after.root_pos, after.root_rot, after.joint_pos, DT), velocity, strict=True
    ):
        torch.testing.assert_close(found, given, atol=1e-10, rtol=0)


def test_arriving_in_a_pose_is_integrating_the_velocity_to_it() -> None:
    before, pose = random_state(64, 0, torch.float64), random_state(64, 1, torch.float64)
    velocity = differentiate(before, pose.root_pos, pose.root_rot, pose.joint_pos, DT)
    assert_same(
        arrive(before, pose.root_pos, pose.root_rot, pose.joint_pos, pose.setpoint, DT),
        integrate(before, velocity, pose.setpoint, DT),
        1e-8,
    )


def test_local_velocities_are_seen_from_the_new_frame() -> None:
    # one step of a quarter turn about the vertical while moving along the old x axis, which is the new frame's -y
    still = random_state(1, 0)._replace(
        root_pos=torch.zeros(1, 3), root_rot=torch.eye(3).unsqueeze(0), root_vel=torch.tensor([[1.0, 0.0, 0.0]])
    )
    turn = torch.tensor([[0.0, 0.0, torch.pi / 2 / DT]])
    after = integrate(
        still, StepVelocity(torch.tensor([[1.0, 0.0, 0.0]]), turn, torch.zeros(1, 12)), still.setpoint, DT
    )
    torch.testing.assert_close(after.root_pos, torch.tensor([[DT, 0.0, 0.0]]))
    torch.testing.assert_close(after.root_vel, torch.tensor([[0.0, -1.0, 0.0]]), atol=1e-6, rtol=0)
    # the velocity did not change, so the accelerometer reads gravity's reaction alone
    torch.testing.assert_close(after.accel, torch.tensor([[0.0, 0.0, GRAVITY]]), atol=1e-4, rtol=0)


def test_accelerometer_reads_g_at_rest_and_nothing_in_free_fall() -> None:
    tilted = geometry.exp_so3(torch.tensor([[0.3, -0.2, 1.0]]))
    state = random_state(1, 0)._replace(root_rot=tilted, root_vel=torch.zeros(1, 3))
    rest = integrate(state, StepVelocity(torch.zeros(1, 3), torch.zeros(1, 3), torch.zeros(1, 12)), state.setpoint, DT)
    torch.testing.assert_close(rest.accel, GRAVITY * tilted[:, 2])
    torch.testing.assert_close(rest.accel.norm(dim=-1), torch.tensor([GRAVITY]))
    falling = geometry.to_local(tilted, torch.tensor([[0.0, 0.0, -GRAVITY * DT]]))
    fall = integrate(state, StepVelocity(falling, torch.zeros(1, 3), torch.zeros(1, 12)), state.setpoint, DT)
    torch.testing.assert_close(fall.accel, torch.zeros(1, 3), atol=1e-4, rtol=0)


def test_a_robot_standing_in_the_simulator_feels_g(robot: Robot, motions: MotionSet) -> None:
    env = ImitationEnv(robot, motions, 1, config=ImitationConfig(plant=PlantConfig(), num_threads=1))
    env.sim.set_state(torch.arange(1), torch.tensor(robot.home_qpos).unsqueeze(0), torch.zeros(1, 18))
    for _ in range(100):
        state = env.step(torch.zeros(1, 12)).state
    torch.testing.assert_close(state.accel, GRAVITY * state.root_rot[:, 2], atol=0.02, rtol=0)
    assert state.root_ang.abs().max() < 1e-2 and state.root_vel.abs().max() < 2e-2


def test_the_simulators_velocities_reproduce_its_positions(robot: Robot, motions: MotionSet) -> None:
    """A second of stumbling robots: poses integrated from velocities alone stay on the simulator's."""
    env = ImitationEnv(robot, motions, 16, config=ImitationConfig(num_threads=1))
    generator = torch.Generator().manual_seed(0)
    imagined = env.state
    for _ in range(50):
        before = env.state
        env.step(0.3 * torch.randn(16, 12, generator=generator))
        velocity = differentiate(before, *pose_from_qpos(env.sim.qpos), env.dt)
        imagined = integrate(imagined, velocity, env.state.setpoint, env.dt)
    assert_same(imagined, env.state, 2e-2)  # accelerations are second differences of rounded positions
    pos, rot, joints = pose_from_qpos(env.sim.qpos)
    torch.testing.assert_close(imagined.root_pos, pos, atol=1e-5, rtol=0)
    torch.testing.assert_close(imagined.root_rot, rot, atol=1e-5, rtol=0)
    torch.testing.assert_close(imagined.joint_pos, joints, atol=1e-5, rtol=0)


def test_packing_choosing_and_indexing() -> None:
    a, b = random_state(5, 0), random_state(5, 1)
    packed = a.pack()
    assert packed.shape == (5, 21 + 36)
    assert_same(RobotState.unpack(packed), a, 0.0)
    mask = torch.tensor([True, False, True, False, False])
    mixed = a.where(mask, b)
    assert_same(mixed[mask], a[mask], 0.0)
    assert_same(mixed[~mask], b[~mask], 0.0)
    assert a[0] is a.root_pos


def test_gradients_flow_through_a_step_from_rest() -> None:
    state = random_state(4, 0)
    velocity = StepVelocity(torch.zeros(4, 3), torch.zeros(4, 3, requires_grad=True), torch.zeros(4, 12))
    integrate(state, velocity, state.setpoint, DT).pack().sum().backward()
    assert velocity.root_ang.grad is not None and velocity.root_ang.grad.isfinite().all()
