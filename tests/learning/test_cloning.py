"""What a module does, labelled with what came of it: windows, failures, starts; and a policy that
takes it over."""

from __future__ import annotations

import copy
import dataclasses
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from mocap_data.store import MotionSet
from npmp.core.settings import changed
from npmp.envs.features import context_size
from npmp.envs.ground import Ground
from npmp.envs.policy import Observation
from npmp.envs.state import RobotState
from npmp.learning import cloning
from npmp.learning.cloning import (
    Demonstration,
    collect_demonstration,
    demonstrate,
    fit_behavior,
    fit_policy,
    labelled,
    upright_states,
)
from npmp.learning.world_model.behavior import BehaviorPrior
from npmp.robots import Robot
from npmp.skills.composition import wandering
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.skill_module import SkillModule
from npmp.tasks.imitation import Imitation, ImitationConfig
from npmp.tasks.velocity import heading_velocity
from npmp.tasks.walk import Walk, WalkConfig
from tests.environments import walk_env

STEPS, ROBOTS, LATENTS = 10, 6, 4


def demonstration(speed: Tensor, *, std: float = 0.2) -> Demonstration:
    """Robots that stand as they are and move forward at speeds (T, n)."""
    steps, n = speed.shape
    state = RobotState.unpack(torch.zeros(steps, n, RobotState.width(12)))
    state = state._replace(root_rot=torch.eye(3).expand(steps, n, 3, 3))
    state = state._replace(root_vel=torch.stack((speed, 0 * speed, 0 * speed), -1))
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(steps, n, LATENTS, generator=generator)
    flags = torch.zeros(steps, n, dtype=torch.bool)
    return Demonstration(
        state.pack(),
        torch.zeros(steps, n, 0),
        torch.randn(steps, n, 33, generator=generator),
        latents,
        latents,
        torch.full_like(latents, std),
        flags,
        state.pack(),
        flags.clone(),
        Ground(),
    )


def test_a_step_is_labelled_with_the_mean_of_what_followed(robot: Robot) -> None:
    speed = torch.arange(8.0).unsqueeze(-1)  # of one robot
    goal, sound = labelled(demonstration(speed), Walk(robot), 3)
    # steps 0, 1, 2 move at 0, 1, 2 m/s: 1 in the mean; the last window begins at step 5
    assert goal[:, 0, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert not bool(goal[..., 1:].any())
    assert bool(sound.all())


def test_windows_over_an_end_of_an_episode_do_not_count(robot: Robot) -> None:
    shown = demonstration(torch.zeros(8, 2))
    shown.is_first[0] = True
    shown.failed[3, 0], shown.is_first[4, 0] = True, True
    shown.is_first[6, 1] = True  # that one ran out of time
    _, sound = labelled(shown, Walk(robot), 3)
    # the failing step 3 is in the windows from 1, 2 and 3; the start at 6 in those from 4 and 5 but
    # not at its begin
    assert sound[:, 0].tolist() == [True, False, False, False, True, True]
    assert sound[:, 1].tolist() == [True, True, True, True, False, False]


def test_the_first_latents_of_the_prior_are_not_learned(robot: Robot) -> None:
    shown = demonstration(torch.zeros(5, 1), std=0.0)
    shown.is_first[0] = True
    assert labelled(shown, Walk(robot), 2)[1][:, 0].tolist() == [False, True, True, True]


def test_states_before_a_fall_are_no_postures_to_keep() -> None:
    shown = demonstration(torch.arange(6.0).unsqueeze(-1))
    shown.failed[4, 0] = True
    # of the windows of two steps those from 3 and 4 hold the fall
    assert upright_states(shown, 2).root_vel[:, 0].tolist() == [0.0, 1.0, 2.0]
    shown.failed[:] = True
    assert len(upright_states(shown, 2).root_vel) == 5  # no robot held up: all there is
    assert upright_states(shown, 2, at_most=2).root_vel[:, 0].tolist() == [0.0, 3.0]


def test_the_loss_is_the_kl_from_what_was_shown_but_for_its_entropy(
    robot: Robot, policy: HighLevelPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SEQUENCE", STEPS), ("BATCH", 64)):
        monkeypatch.setattr(cloning, name, value)
    shown = demonstration(torch.rand(STEPS, ROBOTS, generator=torch.Generator().manual_seed(1)))
    walk = copy.deepcopy(policy)
    generator = torch.Generator().manual_seed(2)
    loss = fit_policy(walk, shown, Walk(robot), generator, window=1, updates=1)[0]
    again = torch.Generator().manual_seed(2)
    torch.randint(1, (64,), generator=again)
    robots = torch.randint(ROBOTS, (64,), generator=again)
    goal = heading_velocity(RobotState.unpack(shown.after))
    given = Observation(
        shown.proprioception[:, robots], goal[:, robots], z_before=shown.z_before[:, robots]
    )
    latents, _ = policy.latents(given, policy.initial_state(64), shown.is_first[:, robots])
    expected = Normal(shown.mean[:, robots], shown.std[:, robots])
    kl = kl_divergence(expected, Normal(*latents)).sum(-1).mean()
    # of each step, but for the constant log sqrt(2 pi)
    entropy = LATENTS * (torch.tensor(0.2).log() + 0.5)
    torch.testing.assert_close(torch.tensor(loss), kl.detach() + entropy, atol=1e-4, rtol=1e-4)


def test_a_behaviour_prior_learns_which_latents_lead_where(
    robot: Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """z deviates from the AR(1) prior by the speed: with that known a step costs log(0.2 / 0.312)
    a dimension less its mean's square, and robots kept aside cost the same."""
    monkeypatch.setattr(cloning, "RATE", (1e-2, 1e-3))
    speed = torch.rand(1, 40, generator=torch.Generator().manual_seed(1)).expand(STEPS, 40)
    shown = demonstration(speed)
    shown = shown._replace(mean=0.95 * shown.z_before + speed.unsqueeze(-1))
    prior = BehaviorPrior(torch.zeros(12), 3 * [(-1.0, 1.0)], LATENTS, 0.95)
    generator = torch.Generator().manual_seed(2)
    figures = fit_behavior(prior, shown, Walk(robot), generator, window=1, updates=200)
    variance, start = 0.2**2, 1.0 - 0.95**2
    known = math.log(0.2) + 0.5

    def gained(robots: slice) -> float:
        far = variance + speed[:, robots].square().mean().item()
        return LATENTS * (known - far / (2.0 * start) - 0.5 * math.log(start))

    assert figures["behavior_loss"] == pytest.approx(gained(slice(36)), abs=0.5)
    # the last tenth of the robots is kept aside
    assert figures["behavior_loss_held_out"] == pytest.approx(gained(slice(36, 40)), abs=0.5)
    # what was shown at other goals than the task asks for is left out
    faster = BehaviorPrior(torch.zeros(12), 3 * [(3.0, 4.0)], LATENTS, 0.95)
    assert fit_behavior(faster, shown, Walk(robot), generator, window=1, updates=20) == {}
    # a task that does not say what a step has achieved has no goal to know latents by
    blind, task = BehaviorPrior(torch.zeros(12), [], LATENTS, 0.95), Walk(robot)
    monkeypatch.setattr(task, "achieved", None)
    without = fit_behavior(blind, shown, task, generator, window=1, updates=20)
    assert without["behavior_loss"] < 0.0  # here the state says it, too


def test_a_demonstration_is_what_happened(
    robot: Robot, walking: WalkConfig, skill: SkillModule
) -> None:
    env = walk_env(robot, 3, config=walking)
    generator = torch.Generator().manual_seed(0)
    shown = demonstrate(wandering(skill, generator), env, 20, generator, noise=0.05)
    assert shown.is_first[0].all() and bool(shown.is_first[1:].any()) and not bool(shown.std.any())
    goes_on = ~shown.is_first[1:]
    assert torch.equal(shown.before[1:][goes_on], shown.after[:-1][goes_on])
    assert torch.equal(shown.z_before[1:][goes_on], shown.mean[:-1][goes_on])
    assert not bool(shown.z_before[shown.is_first].any())


def recorded_observations(task: Walk, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """A list to which each observation of a task (n, c) is added."""
    observed: list[Tensor] = []

    def observe() -> Tensor:
        observed.append(Walk.observe(task))
        return observed[-1]

    monkeypatch.setattr(task, "observe", observe)
    return observed


def test_a_fitted_policy_observes_the_ground_of_the_demonstration(
    robot: Robot, walking: WalkConfig, skill: SkillModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a continuous one, with an exact map."""
    config = changed(walking, terrain="perlin", terrain_fields=6, sees_ground=True)
    env = walk_env(robot, 3, config=changed(config, ground_noise_m=0.0))
    task = env.task
    observed = recorded_observations(task, monkeypatch)
    generator = torch.Generator().manual_seed(0)
    shown = demonstrate(wandering(skill, generator), env, 34, generator, noise=0.0)
    policy = HighLevelPolicy.for_task(skill, task)
    fitted: list[Observation] = []

    def latents(inputs: Observation, *others: Any) -> Any:
        fitted.append(inputs)
        return HighLevelPolicy.latents(policy, inputs, *others)

    monkeypatch.setattr(policy, "latents", latents)
    fit_policy(policy, shown, task, generator, window=1, updates=1)
    (inputs,) = fitted
    differ = []
    for step, row in ((0, 0), (31, 0), (0, 127), (17, 64), (31, 127)):
        same = (shown.proprioception == inputs.proprioception[step, row]).all(-1)
        # at the start robots sense the same, at other places
        heights = torch.stack([observed[t][i, 3:] for t, i in torch.nonzero(same).tolist()])
        fitted_heights = inputs.task[step, row, 3:]
        assert float((heights - fitted_heights).abs().amax(-1).min()) < 1e-4
        differ.append(float(fitted_heights.std()))
    assert min(differ) > 1e-3


def test_a_map_is_imagined_for_all_steps_as_a_camera_is_step_by_step(
    robot: Robot, walking: WalkConfig, skill: SkillModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With noise of each step and the drift of each robot."""
    errors = {"ground_noise_m": 0.02, "ground_drift_m": 0.05}
    config = changed(walking, terrain="perlin", terrain_fields=6, sees_ground=True, **errors)
    env = walk_env(robot, 3, config=config)
    generator = torch.Generator().manual_seed(0)
    shown = demonstrate(wandering(skill, generator), env, 34, generator, noise=0.0)
    policy = HighLevelPolicy.for_task(skill, env.task)
    fitted: list[Observation] = []

    def latents(inputs: Observation, *others: Any) -> Any:
        fitted.append(inputs)
        return HighLevelPolicy.latents(policy, inputs, *others)

    monkeypatch.setattr(policy, "latents", latents)
    for camera in (None, {}):
        monkeypatch.setattr(type(env.task), "camera", camera)
        random_numbers = torch.Generator().manual_seed(1)
        fit_policy(policy, shown, env.task, random_numbers, window=1, updates=1)
    together, by_steps = fitted
    assert together.task.shape == (32, 128, 3 + len(env.task.extra_inputs))
    torch.testing.assert_close(together.task, by_steps.task, atol=1e-5, rtol=0.0)


def test_latents_that_depend_on_the_ground_are_learned(
    robot: Robot, walking: WalkConfig, skill: SkillModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a module on its prior whose latents deviate by six times the mean height on the map. By
    the AR(1) prior alone this costs its square over 2 (1 - 0.95^2) per dimension."""
    for name, value in (("SEQUENCE", 8), ("BATCH", 32), ("RATE", (1e-2, 1e-3))):
        monkeypatch.setattr(cloning, name, value)
    config = changed(walking, terrain="perlin", terrain_fields=6, sees_ground=True)
    env = walk_env(robot, 16, config=changed(config, ground_noise_m=0.0))
    task = env.task
    observed = recorded_observations(task, monkeypatch)
    generator = torch.Generator().manual_seed(0)
    demonstration = demonstrate(wandering(skill, generator), env, 30, generator, noise=0.0)
    off = 6.0 * torch.stack(observed)[:30, :, 3:].mean(-1, keepdim=True)
    std = torch.full_like(demonstration.mean, 0.2)
    demonstration = demonstration._replace(mean=0.95 * demonstration.z_before + off, std=std)
    policy = HighLevelPolicy.for_task(skill, task)
    first, last = fit_policy(policy, demonstration, task, generator, window=1, updates=40)
    cost = skill.latent_dim * off.square().mean().item() / (2.0 * (1.0 - 0.95**2))
    assert cost > 1.0 and first - last > 0.5 * cost


def test_recordings_are_observed_on_their_own_ground(
    robot: Robot, walking: WalkConfig, skill: SkillModule, motions: MotionSet
) -> None:
    """On a floor, for a task on rough ground."""
    config = changed(walking, terrain="perlin", terrain_fields=6, sees_ground=True)
    env = walk_env(robot, 3, config=changed(config, ground_noise_m=0.0))
    recordings = Imitation(robot, ImitationConfig(), motions)
    tracking = dataclasses.replace(skill.contract, context_size=context_size(robot, 5))
    skill = SkillModule(tracking).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    shown = collect_demonstration(
        skill, env, recordings, steps=3, noise=0.0, generator=generator, seed=1
    )
    heights = len(env.task.extra_inputs)
    for step in range(3):
        state = RobotState.unpack(shown.before[step])
        above = partial(shown.ground.above, patch=shown.patch[step])
        none = torch.zeros(3, 3), torch.zeros(3, 2, heights)
        read = env.task.imagine(state, torch.zeros(3, 3), above, *none)[:, -heights:]
        floor = (float(robot.home_qpos[2]) - state.root_pos[:, 2:]).expand_as(read)
        torch.testing.assert_close(read, floor, atol=1e-5, rtol=0.0)
