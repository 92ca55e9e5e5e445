"""Imagination of reuse: it is the composition of its parts, and its gradient is the policy's alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from npmp.actors import skill_memory
from npmp.envs import RobotBatchConfig
from npmp.envs.feet import Feet, dragging, unlifted
from npmp.envs.sensing import Sensing, SensorConfig, SensorDraws
from npmp.envs.state import RobotState
from npmp.nets.prior import kl_to_prior
from npmp.reuse import HighLevelPolicy, PolicyInput
from npmp.reuse.imagination import PolicyImagination
from npmp.robots import Robot
from npmp.sim.randomization import PhysicsConfig
from npmp.skill import SkillModule
from npmp.tasks.velocity import CourseConfig, course_loss, heading_velocity
from npmp.tasks.walk import WalkConfig, WalkEnv
from npmp.world_model.collection import robot_note
from npmp.world_model.model import WorldModel
from npmp.world_model.posture import PostureRange
from npmp.world_model.replay import Start
from tests.environments import walk_env

N, H = 5, 6
NOISY = SensorConfig(delay_s=(0.0, 0.03), joint_noise=0.02, gyro_noise=(0.1, 0.1, 0.1))


@pytest.fixture
def env(robot: Robot, walking: WalkConfig) -> WalkEnv:
    config = RobotBatchConfig(physics=PhysicsConfig(joint_offset=0.05), sensors=NOISY)
    env = walk_env(
        robot,
        N,
        robots=config,
        config=replace(
            walking, drag_weight=0.7, swing_height_m=0.3, press_weight=5.0, lift_weight=2.0
        ),
    )
    for _ in range(3):
        env.step(0.1 * torch.ones(N, 12))
    return env


def start_of(env: WalkEnv, skill: SkillModule) -> Start:
    memory, action = skill_memory(skill, N), torch.zeros(N, env.num_actions)
    note = robot_note(env, action, env.robots.physics_size)
    nowhere = torch.zeros(N, dtype=torch.long)
    return Start(z=memory.z, **memory.decoder._asdict(), frame=nowhere, last_frame=nowhere, **note)


def imagination(env: WalkEnv, skill: SkillModule, policy: HighLevelPolicy) -> PolicyImagination:
    torch.manual_seed(5)
    model = WorldModel(
        env.home, env.dt, env.feet, (16,), env.robots.physics_size, env.robots.imu_cross
    )
    model.requires_grad_(False)
    torch.nn.init.normal_(model.net[-1].weight, std=0.3)
    return PolicyImagination(
        policy, skill, model, env.robots.sensing, env.task, PostureRange(env.state)
    )


def test_a_rollout_is_policy_decoder_and_model_in_turn(
    env: WalkEnv, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    imagine = imagination(env, skill, policy)
    start, goal = start_of(env, skill), env.task.goal()
    found = imagine(
        start, policy.initial_state(N), goal, goal[:, :0], H, torch.Generator().manual_seed(1)
    )

    generator, sensing = torch.Generator().manual_seed(1), env.robots.sensing
    noise = torch.randn(H, N, 4, generator=generator)
    draws = sensing.draw((H, N), generator)
    state, z, memory, decoder = env.state, start.z, policy.initial_state(N), skill.initial_state(N)
    history, offset = env.robots.history, env.robots.joint_offset
    assert offset is not None
    states, kls = [], []
    for k in range(H):
        seen = sensing.shown(history, SensorDraws(draws.delay[k], draws.noise[k]))
        latent, memory = policy.step(PolicyInput(seen, goal, z), memory)
        kls.append(kl_to_prior(latent.mean, latent.std, z, 0.95))
        z = latent.mean + latent.std * noise[k]
        action, decoder = skill.decode(z, seen, decoder)
        state = imagine.model(state, env.home + action - offset, start.physics)
        history = sensing.remember(history, sensing.exact(state, offset))
        states.append(state.pack())
    after = RobotState.unpack(torch.stack(states))
    lost = course_loss(heading_velocity(after), goal, CourseConfig(), env.dt).mean()
    feet = Feet(env.robot)(after.root_pos, after.root_rot, after.joint_pos)
    height = feet[..., 2].unfold(0, 2, 1).mean(-1) - env.robot.foot_radius
    # of the worst foot
    style = 0.7 * dragging(feet[:-1], feet[1:], height, 0.3, env.dt).mean((0, 3)).amax(-1).mean()
    style = style + 5.0 * torch.relu(-height - 0.01).amax(-1).sum(-1).mean()
    travelled = (after.root_pos[-1] - after.root_pos[0])[:, :2].norm(dim=-1)
    style = style + 2.0 * unlifted(height, travelled, 0.3, env.dt * (H - 1)).mean()
    torch.testing.assert_close(found.style, style, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.task, lost, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.kl, torch.stack(kls).mean(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        found.posture, imagine.postures(after, 4.0, 1.0, 0.5).mean(), atol=1e-5, rtol=1e-5
    )
    before = RobotState.unpack(torch.stack([env.state.pack(), *states[:-1]]))
    effort, change = (
        (after.setpoint - before.joint_pos).abs(),
        (after.setpoint - before.setpoint).abs(),
    )
    torch.testing.assert_close(found.effort, effort.sum(-1).mean(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.smoothness, change.sum(-1).mean(), atol=1e-5, rtol=1e-5)


def test_the_gradient_is_the_policy_s_and_passes_through_decoder_model_and_latents(
    env: WalkEnv, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    imagine = imagination(env, skill, policy)
    start, goal, bias = start_of(env, skill), env.task.goal(), policy.net.head.bias

    def loss() -> torch.Tensor:
        found = imagine(
            start, policy.initial_state(N), goal, goal[:, :0], H, torch.Generator().manual_seed(1)
        )
        return found.task + 0.01 * found.kl

    loss().backward()
    assert all(p.grad is None for p in (*skill.parameters(), *imagine.model.parameters()))
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in policy.parameters())
    assert bias.grad is not None
    # along m's own direction of steepest change, by differences
    direction = torch.zeros_like(bias)
    direction[:4] = bias.grad[:4] / bias.grad[:4].norm()
    with torch.no_grad():
        bias += 2e-3 * direction
        above = loss()
        bias -= 4e-3 * direction
        below = loss()
    slope = ((above - below) / 4e-3).item()
    assert slope == pytest.approx((bias.grad * direction).sum().item(), rel=0.05)


def test_without_sensors_what_is_seen_is_exact(
    env: WalkEnv, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    imagine = imagination(env, skill, policy)
    imagine.sensing = Sensing(SensorConfig(), env.home, env.dt)
    start = start_of(env, skill)
    generator = torch.Generator().manual_seed(1)
    one = imagine(start, policy.initial_state(N), env.task.goal(), start.z[:, :0], 1, generator)
    drawn = torch.Generator().manual_seed(1)
    torch.randn(1, N, 4, generator=drawn)
    assert torch.equal(generator.get_state(), drawn.get_state())  # nothing but latents is drawn
    assert bool(one.task.isfinite())
