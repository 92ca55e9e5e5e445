"""Imagination: the same functions on the same numbers as in the simulator, the composition of its
parts, and sums that can be done by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.core.gaussian import Gaussian
from npmp.core.settings import changed
from npmp.envs import RobotBatchConfig
from npmp.envs.ground import Ground
from npmp.envs.policy import Observation
from npmp.envs.reference import Reference
from npmp.envs.sensing import Sensing, SensorConfig, SensorNoise
from npmp.envs.state import RobotState, StepVelocity, differentiate, integrate
from npmp.envs.task import TaskLoss
from npmp.learning.exploration import step_of
from npmp.learning.world_model.imagination import Imagination, ImaginedLosses
from npmp.learning.world_model.model import WorldModel
from npmp.learning.world_model.posture import PostureRange, SlicedWasserstein
from npmp.learning.world_model.replay import Step
from npmp.robots import Robot
from npmp.sim.randomization import PhysicsConfig
from npmp.skills.composition import over
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.nets import DecoderState
from npmp.skills.prior import AR1, prior_std
from npmp.skills.skill_module import SkillModule
from npmp.tasks.walk import WalkConfig, WalkEnv
from tests.environments import imitation_env, walk_env
from tests.untrained import stub_module

N, H = 5, 6
NOISY = SensorConfig(delay_s=(0.0, 0.03), joint_noise=0.02, gyro_noise=(0.1, 0.1, 0.1))


# --- on toys ---


class Sleeper:
    """A model of robots on which nothing acts: they stay as they are."""

    home, current_scale = torch.zeros(12), torch.tensor(0.5)
    currents: Any = None

    def current_rms(self, state: RobotState, setpoint: Tensor, physics: Tensor) -> Tensor:
        return 10.0 * (setpoint - state.joint_pos)

    def __call__(self, state: RobotState, setpoint: Tensor, physics: Tensor) -> RobotState:
        return state


class Toy:
    """A task whose goal is a number, which counts its steps; a step costs as much as it says."""

    extra_inputs: tuple[str, ...] = ()

    def imagine(self, state: RobotState, goal: Tensor, *_: Tensor) -> Tensor:
        return goal

    def next_goal(self, goal: Tensor, after: RobotState) -> Tensor:
        return goal + 1.0

    def imagined_loss(
        self, before: RobotState, after: RobotState, goals: Tensor, patch: Tensor
    ) -> TaskLoss:
        owed = goals[..., 0].mean(0)
        return TaskLoss(owed, 10.0 * owed)


class Constants:
    """A policy that always says the same of its latents, relative to those before."""

    def __init__(self, mu: Tensor, std: Tensor, alpha: float):
        self.mu, self.std = mu, std
        self.prior = AR1(mu.shape[-1], alpha)

    def step(self, observation: Observation, state: Any) -> tuple[Gaussian, Any]:
        return Gaussian(self.prior.alpha * observation.z_before + self.mu, self.std), state


def still(n: int) -> RobotState:
    return RobotState.still(torch.zeros(n, 3), torch.eye(3).repeat(n, 1, 1), torch.zeros(n, 12))


def start_of(state: RobotState, z: Tensor, goal: Tensor, free: Tensor | None = None) -> Step:
    """Moments to imagine from, with an empty memory."""
    n = len(z)
    nothing, empty = torch.zeros(n, 0), torch.zeros(n, 1)
    none = torch.zeros(n, dtype=torch.bool)
    return Step(*[nothing] * len(Step._fields))._replace(
        is_first=none,
        free=none if free is None else free,
        state=state.pack(),
        setpoint=state.setpoint,
        z=z,
        decoder=DecoderState(empty, empty),
        policy=(),
        goal=goal,
    )


def ideal(home: Tensor | None = None) -> Sensing:
    """Senses without noise, delay or calibration error."""
    return Sensing(SensorConfig(), torch.zeros(12) if home is None else home, 0.02)


def toy_imagination(
    policy: Any, decode: Any, model: Any = None, postures: Any = None, **more: Any
) -> Imagination:
    skill = stub_module(decode, policy.prior)
    postures = postures or PostureRange(still(3))
    task: Any = Toy()
    model = model or Sleeper()
    return Imagination(over(policy, skill), model, ideal(), task, Ground(), postures, **more)


def test_imagining_by_hand() -> None:
    """Two robots, three steps, goals 5 and 8: a step costs as much as the goal after it, 7 and 10
    in the mean. The policy shifts one of the first's two latent dimensions by the prior's
    deviation, 1/2 nat a step, and by twice that for the second: 2 nats. Setpoints stay 0.3 rad off
    12 joints, at 5 A/rad: 12 * 2.25 A^2.
    """
    std = prior_std(0.95)
    policy = Constants(torch.tensor([[std, 0.0], [2 * std, 0.0]]), torch.full((2, 2), std), 0.95)
    state = still(2)._replace(setpoint=torch.full((2, 12), 0.3))
    imagine = toy_imagination(policy, lambda z, seen, memory: (torch.zeros(2, 12), memory))
    imagine.model.currents = torch.nn.Identity()
    start = start_of(state, torch.zeros(2, 2), torch.tensor([[5.0], [8.0]]))
    result = imagine(start, 3, torch.Generator().manual_seed(0))
    expected = ImaginedLosses(
        *map(torch.tensor, (8.5, 85.0, 3.6, 0.0, 1.25, 0.0, std, 0.0, 0.0, 27.0))
    )
    torch.testing.assert_close(result, expected)


def test_no_robot_has_more_than_its_share_of_the_gradient() -> None:
    """The place of one of five robots grows tenfold a step, of the others not; a robot pays for
    its last place. What goes back to the start is a fifth each, and at most five times that."""
    growth = torch.tensor([[10.0], [1.0], [1.0], [1.0], [1.0]])

    class Grows(Sleeper):
        def __call__(self, state: RobotState, setpoint: Tensor, physics: Tensor) -> RobotState:
            return state._replace(root_pos=growth * state.root_pos)

    policy = Constants(torch.zeros(5, 2), torch.ones(5, 2), 0.95)
    imagine = toy_imagination(
        policy, lambda z, seen, memory: (torch.zeros(5, 12), memory), model=Grows()
    )
    imagine.task.imagined_loss = lambda before, after, goals, patch: TaskLoss(  # type: ignore[method-assign]
        after.root_pos[-1, :, 0], torch.zeros(5)
    )
    start = start_of(still(5), torch.zeros(5, 2), torch.zeros(5, 1))
    state = start.state.clone().requires_grad_()
    imagine(start._replace(state=state), H, torch.Generator()).task.backward()
    assert state.grad is not None
    torch.testing.assert_close(state.grad[:, 0], torch.tensor([1.0, 0.2, 0.2, 0.2, 0.2]))


@pytest.mark.parametrize("frees", [True, False])
def test_robots_that_act_from_the_prior_by_hand(frees: bool) -> None:
    """Two robots, two steps: the first is asked something, the second is free.

    The range of postures is a height of at least 0.25 m; both lie at 0, which costs 4 * 0.25 = 1 a
    step; of free ones alone where they imagine the prior. The policy's mu of 1 and deviation of 2
    are then not the second's, which draws z = alpha z + sqrt(1 - alpha^2) noise.
    """
    std, seen = prior_std(0.9), list[Tensor]()

    def decode(z: Tensor, observation: Tensor, memory: DecoderState) -> tuple[Tensor, DecoderState]:
        seen.append(z)
        return torch.zeros(2, 12), memory

    policy = Constants(torch.ones(2, 4), torch.full((2, 4), 2.0), 0.9)
    high = still(3)._replace(root_pos=torch.tensor([[0.0, 0.0, 0.25]] * 3))
    free = torch.tensor([False, True])
    start = start_of(still(2), torch.ones(2, 4), torch.ones(2, 1), free)
    imagine = toy_imagination(policy, decode, postures=PostureRange(high), frees=frees)
    result = imagine(start, 2, torch.Generator().manual_seed(3))
    torch.testing.assert_close(result.posture, torch.tensor(1.0))
    assert result.std == 2.0  # of the first
    # KL of each of four dimensions (r + 1 / v - 1 - log r) / 2, r = 4 / v, of the first alone
    ratio, variance = 4.0 / std**2, std**2
    kl = 2.0 * (ratio + 1.0 / variance - 1.0 - math.log(ratio))
    torch.testing.assert_close(result.kl, torch.tensor(kl))
    noise, z = torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(3)), torch.ones(2, 4)
    for k in range(2):
        second = std * noise[k, 1] if frees else 1.0 + 2.0 * noise[k, 1]
        z = 0.9 * z + torch.stack((1.0 + 2.0 * noise[k, 0], second))
        torch.testing.assert_close(seen[k], z)


def test_a_crowd_that_acts_from_the_prior_is_judged_as_one(
    robot: Robot, motions: MotionSet
) -> None:
    """Three robots at rest, of which the first is asked something: `wasserstein` is of the other
    two, in all steps."""
    reference = Reference(robot, motions)
    crowd = SlicedWasserstein(reference)
    states = reference.state(torch.tensor([5, 20, 60]))
    policy = Constants(torch.zeros(3, 4), torch.ones(3, 4), 0.9)
    free = torch.tensor([False, True, True])
    start = start_of(states, torch.ones(3, 4), torch.ones(3, 1), free)
    imagine = toy_imagination(
        policy, lambda z, seen, memory: (torch.zeros(3, 12), memory), wasserstein=crowd, frees=True
    )
    seen: list[RobotState] = []
    found = SlicedWasserstein.forward
    crowd.forward = lambda state, generator: (  # type: ignore[method-assign]
        seen.append(state) or found(crowd, state, generator)  # type: ignore[func-returns-value]
    )
    result = imagine(start, 2, torch.Generator().manual_seed(3))
    assert torch.equal(seen[0].joint_pos, states.joint_pos[[1, 2]].expand(2, 2, 12))
    assert result.wasserstein > 0.0


def test_staying_up_teaches_the_decoder_alone() -> None:
    """The setpoint's first entry raises the robot; the action is the decoder's weight times z."""
    weight, shift = (torch.tensor(value, requires_grad=True) for value in (0.5, 0.1))

    class Lift(Sleeper):
        def __call__(self, state: RobotState, setpoint: Tensor, physics: Tensor) -> RobotState:
            return state._replace(root_pos=state.root_pos + setpoint[:, :3])

    high = still(3)._replace(root_pos=torch.tensor([[0.0, 0.0, 99.0]] * 3))
    imagine = toy_imagination(
        Constants(shift.expand(2, 4), torch.ones(2, 4), 0.9),
        lambda z, seen, memory: (weight * z.repeat(1, 3), memory),
        Lift(),
        PostureRange(high),
        frees=True,
    )
    all_of_them = torch.ones(2, dtype=torch.bool)
    start = start_of(still(2), torch.ones(2, 4), torch.ones(2, 1), all_of_them)
    imagine(start, 2, torch.Generator().manual_seed(0)).posture.backward()
    assert weight.grad is not None and weight.grad != 0.0
    assert shift.grad is None or shift.grad == 0.0


# --- on robots ---


def test_imagined_and_real_robots_see_alike(robot: Robot, motions: MotionSet) -> None:
    """A model that knows the simulator's velocities, run through imagination: contexts,
    proprioception and poses are those of the real rollout, and the loss is that of its states."""
    n, steps = 6, 12
    env = imitation_env(robot, motions, n)
    env.reset(clip=torch.tensor([0] * 3 + [1] * 3), frame=torch.tensor([0, 40, 80, 100, 150, 245]))
    actions = 0.1 * torch.randn(steps, n, 12, generator=torch.Generator().manual_seed(0))
    real: list[dict[str, Tensor]] = []
    velocities: list[StepVelocity] = []
    begin = start_of(env.state, torch.zeros(n, 2), env.task.goal())
    for t in range(steps):
        seen = {"task": env.task.observe(), "senses": env.observe()}
        before, step = env.state, env.step(actions[t])
        velocities.append(differentiate(before, step.state, env.dt))
        real.append(seen | {"state": step.state.pack()})

    imagined: list[dict[str, Tensor]] = []

    class Watching(Constants):
        def step(self, observation: Observation, state: Any) -> tuple[Gaussian, Any]:
            imagined.append({"task": observation.task, "senses": observation.proprioception})
            return super().step(observation, state)

    def decode(z: Tensor, observation: Tensor, memory: DecoderState) -> tuple[Tensor, DecoderState]:
        return actions[len(imagined) - 1], memory

    class Model(Sleeper):
        home = env.home

        def __call__(self, state: RobotState, setpoint: Tensor, physics: Tensor) -> RobotState:
            made = velocities[len(imagined) - 1]
            after = integrate(state, made, setpoint, env.dt, env.robots.imu_cross)
            imagined[-1]["state"] = after.pack()
            return after

    policy: Any = Watching(torch.zeros(n, 2), torch.full((n, 2), prior_std(0.95)), 0.95)
    skill = stub_module(decode, policy.prior)
    model: Any = Model()
    imagine = Imagination(
        over(policy, skill), model, ideal(env.home), env.task, env.ground, PostureRange(env.state)
    )
    result = imagine(begin, steps, torch.Generator().manual_seed(0))
    for t in range(steps):
        for name in ("task", "senses", "state"):
            torch.testing.assert_close(imagined[t][name], real[t][name], atol=3e-3, rtol=0)
    states = torch.stack([begin.state, *(step["state"] for step in real)])
    before, after = RobotState.unpack(states[:-1]), RobotState.unpack(states[1:])
    goals = begin.goal + torch.arange(1, steps + 1).view(-1, 1, 1) * torch.tensor([0.0, 1.0, 0.0])
    expected = env.task.imagined_loss(before, after, goals, begin.patch).task.mean()
    torch.testing.assert_close(result.task, expected, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(result.kl, torch.tensor(0.0), atol=1e-6, rtol=0)


@pytest.fixture
def env(robot: Robot, walking: WalkConfig) -> WalkEnv:
    config = RobotBatchConfig(physics=PhysicsConfig(joint_offset=0.05), sensors=NOISY)
    heavy = changed(walking, drag_weight=0.7, swing_height_m=0.3, press_weight=5.0, lift_weight=2.0)
    env = walk_env(robot, N, robots=config, config=heavy)
    for _ in range(3):
        env.step(0.1 * torch.ones(N, 12))
    return env


def real_start(env: WalkEnv, skill: SkillModule, policy: HighLevelPolicy) -> Step:
    state = over(policy, skill).initial_state(N)
    still = torch.zeros(N, env.num_actions)
    observation = Observation(still, still, torch.zeros(N, dtype=torch.bool))
    return step_of(env, observation, state, still, physics_size=env.robots.physics_size)


def imagination(env: WalkEnv, skill: SkillModule, policy: HighLevelPolicy) -> Imagination:
    torch.manual_seed(5)
    model = WorldModel(
        env.home, env.dt, env.feet, (16,), env.robots.physics_size, env.robots.imu_cross
    )
    model.requires_grad_(False)
    torch.nn.init.normal_(model.net[-1].weight, std=0.3)
    sensing, postures = env.robots.sensing, PostureRange(env.state)
    return Imagination(over(policy, skill), model, sensing, env.task, env.ground, postures)


def test_a_rollout_is_policy_decoder_and_model_in_turn(
    env: WalkEnv, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    imagine, start = imagination(env, skill, policy), real_start(env, skill, policy)
    result, goal = imagine(start, H, torch.Generator().manual_seed(1)), env.task.goal()

    generator, sensing = torch.Generator().manual_seed(1), env.robots.sensing
    noise = torch.randn(H, N, 4, generator=generator)
    draws = sensing.sample((H, N), generator)
    state, z, memory, decoder = env.state, start.z, policy.initial_state(N), skill.initial_state(N)
    history, offset = env.robots.history, env.robots.joint_offset
    assert offset is not None
    states, kls = [env.state.pack()], []
    for k in range(H):
        senses = sensing.apply(history, SensorNoise(draws.delay[k], draws.noise[k]))
        latent, memory = policy.step(Observation(senses, goal, z_before=z), memory)
        kls.append(AR1(z.shape[-1], 0.95).kl(latent, z, z))
        z = latent.mean + latent.std * noise[k]
        action, decoder = skill.decode(z, senses, decoder)
        state = imagine.model(state, env.home + action - offset, start.physics)
        history = sensing.remember(history, sensing.exact(state, offset))
        states.append(state.pack())
    before = RobotState.unpack(torch.stack(states[:-1]))
    after = RobotState.unpack(torch.stack(states[1:]))
    loss = env.task.imagined_loss(before, after, goal.expand(H, N, 3), start.patch)
    effort = (after.setpoint - before.joint_pos).abs().sum(-1).mean()
    smoothness = (after.setpoint - before.setpoint).abs().sum(-1).mean()
    expected = {
        "task": loss.task.mean(),
        "style": loss.style.mean(),
        "kl": torch.stack(kls).mean(),
        "posture": imagine.postures(after).mean(),
        "effort": effort,
        "smoothness": smoothness,
    }
    for name, value in expected.items():
        torch.testing.assert_close(getattr(result, name), value, atol=1e-5, rtol=1e-5)
    assert loss.task.mean() > 0.0 and loss.style.mean() > 0.0


def test_the_gradient_is_the_policy_s_and_passes_through_decoder_model_and_latents(
    env: WalkEnv, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    imagine, bias = imagination(env, skill, policy), policy.net.head.bias
    start = real_start(env, skill, policy)

    def loss() -> Tensor:
        result = imagine(start, H, torch.Generator().manual_seed(1))
        return result.task + 0.01 * result.kl

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
    # not more exact: what robots set out with, and whether they walk, is detached on purpose
    assert slope == pytest.approx((bias.grad * direction).sum().item(), rel=0.1)
