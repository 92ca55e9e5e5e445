"""Learning through a model, imitation and walking by one trainer: what is collected, that it
learns, that it repeats and resumes itself to the bit."""

from __future__ import annotations

import copy
import dataclasses
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp.core import geometry
from npmp.core.settings import changed
from npmp.envs import RobotBatchConfig
from npmp.envs.features import context_size
from npmp.envs.sensing import SensorConfig
from npmp.envs.state import RobotState
from npmp.learning import cloning
from npmp.learning.imitation import ImitationModelBasedConfig
from npmp.learning.model_based import ModelBasedConfig, ModelBasedTrainer
from npmp.learning.reuse import ReuseModelBasedConfig
from npmp.learning.world_model.replay import Step
from npmp.robots import Robot
from npmp.sim.randomization import PhysicsConfig, PushConfig
from npmp.skills.composition import TrackingPolicy
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.nets import NetConfig
from npmp.skills.skill_module import SkillModule
from npmp.tasks.imitation import Imitation, ImitationConfig
from npmp.tasks.walk import Walk, WalkConfig
from tests.environments import imitation_env, walk_env
from tests.refusals import refusal
from tests.trainers import SMALL, check_repeats_and_resumes, run

NET = NetConfig(latent_dim=4, encoder_width=16, decoder_width=16, lstm_width=8)
TINY = ImitationModelBasedConfig(**SMALL, prior_share=0.3, prior_steps=4, rejoin_rate=5.0)
WALKING = ReuseModelBasedConfig(**SMALL, clone_updates=2, episode_s=None)


@pytest.fixture(autouse=True)
def short_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cloning from few steps."""
    for name, value in (("SEQUENCE", 8), ("BATCH", 8)):
        monkeypatch.setattr(cloning, name, value)


def imitating(
    robot: Robot,
    motions: MotionSet,
    seed: int = 0,
    config: ModelBasedConfig = TINY,
    n: int = 12,
    skill: SkillModule | None = None,
) -> ModelBasedTrainer:
    env, new = imitation_env(robot, motions, n, seed=seed), skill is None
    if skill is None:
        torch.manual_seed(seed)
        task = env.task
        skill = SkillModule.for_reference(
            robot, NET, task.tracking.reference, task.tracking.features(5)
        )
    return ModelBasedTrainer(env, TrackingPolicy(skill), skill, config, new=new, seed=seed)


def walking_on(
    robot: Robot,
    walking: WalkConfig,
    skill: SkillModule,
    policy: HighLevelPolicy,
    seed: int = 0,
    config: ModelBasedConfig = WALKING,
    **more: Any,
) -> ModelBasedTrainer:
    robots = RobotBatchConfig(pushes=PushConfig(force=50.0, duration_s=0.1, gap_s=0.1))
    env = walk_env(robot, 6, seed=seed, config=walking, robots=robots)
    return ModelBasedTrainer(env, copy.deepcopy(policy), skill, config, seed=seed, **more)


# --- runs ---


@pytest.mark.parametrize(
    "change",
    [{}, {"overlap": False}, {"posture": 1.0, "wasserstein": 1.0, "fresh_starts": 0.5}],
    ids=["plain", "one_thread", "prior"],
)
def test_runs_of_imitation_repeat_and_resume(
    robot: Robot, motions: MotionSet, change: dict[str, Any]
) -> None:
    config = replace(TINY, **change)
    trainer = check_repeats_and_resumes(
        lambda seed: imitating(robot, motions, seed, config), before=3
    )
    assert (
        trainer.env_steps
        == 12 * (12 + 5 * 4)
        == trainer.env_steps_before + 5 * trainer.env_steps_per_iteration
    )
    trainer.module().check_robot(robot)


def test_runs_of_walking_repeat_and_resume(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    before = {name: value.clone() for name, value in skill.state_dict().items()}
    trainer = check_repeats_and_resumes(
        lambda seed: walking_on(robot, walking, skill, policy, seed), before=3
    )
    for kept in (skill, trainer.learned.lower):
        assert all(torch.equal(value, before[k]) for k, value in kept.state_dict().items())
    assert trainer.env_steps == (320 + 12 + 5 * 4) * 6
    named = {"reward", "velocity_error", "failures_per_s", "model_loss", "kl", "imagined_task"}
    assert named <= set(run(trainer, 1)[0])


def test_a_checkpoint_of_another_run_is_refused(robot: Robot, motions: MotionSet) -> None:
    state = imitating(robot, motions).state_dict()
    refusal("the checkpoint", imitating(robot, motions, n=6).load_state_dict, state)
    lacking = {k: v for k, v in state.items() if k != "carried.is_first"}
    refusal("the checkpoint", imitating(robot, motions).load_state_dict, lacking)


# --- two threads ---


# --- collection ---


def test_what_is_collected_is_what_happened(robot: Robot, motions: MotionSet) -> None:
    """Successive states in the replay are a control step apart wherever it does not say that an
    episode began."""
    trainer = imitating(robot, motions)
    trainer.warm_up()
    run(trainer, 6)  # more steps than the ring holds
    assert trainer.replay.filled == 24
    window = trainer.replay.windows(300, 1, torch.Generator().manual_seed(0))
    before, after = (RobotState.unpack(s) for s in window.states)
    sound = window.valid[0] > 0
    assert 0.3 < sound.float().mean() < 1.0
    moved = after.root_pos - before.root_pos
    velocity = geometry.to_world(after.root_rot, after.root_vel)
    torch.testing.assert_close(moved[sound], 0.02 * velocity[sound], atol=1e-5, rtol=0)
    turned, speed = after.joint_pos - before.joint_pos, 0.02 * after.joint_vel
    torch.testing.assert_close(turned[sound], speed[sound], atol=1e-6, rtol=0)
    torch.testing.assert_close(after.setpoint[sound], window.setpoints[0][sound])


def test_memories_are_empty_where_an_episode_begins(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    trainer = walking_on(robot, walking, skill, policy)
    trainer.warm_up()
    kept = trainer.replay.recent()
    first = kept.is_first
    assert trainer.replay.filled == 12 and bool(first[0].all()) and bool(first[1:].any())
    for values in (kept.z, *kept.decoder, *kept.policy):
        assert not bool(values[first].any()) and bool(values[~first].abs().sum(-1).all())
    low, high = walking.command.range[0]
    forward = kept.goal[..., 0]
    assert bool(((forward >= low) & (forward <= high)).all()) and not bool(kept.free.any())


def test_what_imagination_leaves_out_is_left_out(robot: Robot, motions: MotionSet) -> None:
    """Without physics the model has that many inputs less and the replay keeps none; without
    sensors the decoder sees exactly."""
    plant = RobotBatchConfig(
        physics=PhysicsConfig(friction=(0.4, 1.0)),
        pushes=PushConfig(force=10.0),
        sensors=SensorConfig(delay_s=(0.0, 0.02), joint_noise=0.1),
    )
    env = imitation_env(robot, motions, 4, robots=plant)
    skill = SkillModule.for_reference(
        robot, NET, env.task.tracking.reference, env.task.tracking.features(5)
    )
    sizes = {}
    for known in (True, False):
        config = replace(TINY, model_physics=known, imagine_sensors=known)
        trainer = ModelBasedTrainer(env, TrackingPolicy(skill), skill, config)
        trainer.warm_up()
        assert math.isfinite(trainer.iteration(0.0)["imagined_task"])
        sizes[known] = trainer.model.net[0].in_features
        width = trainer.replay.steps.physics.shape[-1]
        assert width == (env.robots.physics_size if known else 0)
        assert trainer.imagination.sensing.noisy == known
    assert sizes[True] - sizes[False] == env.robots.physics_size > 0


@pytest.mark.parametrize("pushed", [False, True])
def test_a_push_is_known_to_the_model_and_imagined_where_it_is_to_be(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy, pushed: bool
) -> None:
    config = replace(WALKING, imagine_pushes=pushed)
    trainer = walking_on(robot, walking, skill, policy, config=config)
    trainer.warm_up()
    assert bool(trainer.replay.recent().physics.any())
    given: list[Step] = []
    roll = trainer.imagination.rollout
    trainer.imagination.rollout = lambda start, *rest: given.append(start) or roll(start, *rest)  # type: ignore[method-assign, func-returns-value]
    trainer.improve_policy(0.0)
    assert bool(given[0].physics.any()) == pushed


def test_on_rough_ground_heights_are_above_it_and_integrals_of_velocities(
    robot: Robot, walking: WalkConfig, skill: SkillModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    # an untrained module soon falls
    monkeypatch.setattr(cloning, "GOAL_S", 0.04)
    ground = {"terrain": "perlin", "terrain_fields": 4, "terrain_height": 0.6}
    rough = changed(walking, sees_ground=True, ground_holes=0.1, **ground)
    policy = HighLevelPolicy.for_task(skill, Walk(robot, rough))
    trainer = walking_on(robot, rough, skill, policy)
    # cloned from the module on its prior, on the task's ground
    warm_up = trainer.warm_up()
    assert math.isfinite(warm_up["clone_loss"])
    assert warm_up["clone_loss"] != warm_up["clone_loss_before"]
    assert all(math.isfinite(value) for value in trainer.iteration(0.0).values())
    window = trainer.replay.windows(64, 4, torch.Generator().manual_seed(0))
    states, valid = RobotState.unpack(window.states), window.valid.unsqueeze(-1)
    moved = states.root_pos[1:] - states.root_pos[:-1]
    went = geometry.to_world(states.root_rot[1:], states.root_vel[1:]) * trainer.env.dt
    torch.testing.assert_close(moved * valid, went * valid, atol=1e-4, rtol=0)
    # standing or stumbling, and not at the world's heights of fields that go up and down by some
    # 0.6 m imagined heights are above the ground
    home = float(robot.home_qpos[2])
    assert abs(trainer.postures.high[0].item() - home) < 0.15
    heights, world = states.root_pos[0, :, 2], trainer.replay.recent().state[..., 2]
    assert abs(heights.mean() - home) < 0.15 and abs(world.mean() - home) > 0.2


# --- learning ---


@pytest.mark.parametrize(("iterations", "share"), [(0, 0.9), (5, 0.45), (1000, 0.1)])
def test_the_average_trails_the_policy(
    robot: Robot, motions: MotionSet, iterations: int, share: float
) -> None:
    """After two updates an iteration, d = min(ema, (1 + t) / (10 + t)): 1 / 10, 11 / 20, and the 9
    / 10 that are asked for. What is learned through stays as it is."""
    trainer = imitating(robot, motions, config=replace(TINY, ema=0.9, policy_updates=2))
    trainer.warm_up()
    trainer.iteration_count = iterations
    online, average = trainer.learned.lower, trainer.average.lower
    start = online.decoder.head.weight.detach().clone()
    trainer.improve_policy(0.0)
    moved = online.decoder.head.weight.detach() - start
    assert moved.abs().max() > 0
    expected = start + share * moved
    torch.testing.assert_close(average.decoder.head.weight, expected, atol=1e-8, rtol=1e-3)
    assert not any(p.requires_grad for p in average.parameters())
    assert not any(p.requires_grad for p in trainer.fit.frozen.parameters())
    assert all(p.requires_grad for p in trainer.model.parameters())


def test_one_bad_batch_does_not_poison_the_policy(robot: Robot, motions: MotionSet) -> None:
    trainer = imitating(robot, motions)
    trainer.warm_up()
    skill = trainer.learned.lower
    before = {k: v.clone() for k, v in skill.state_dict().items()}
    trainer.replay.steps.state.fill_(float("nan"))
    trainer.improve_policy(0.0)
    assert trainer.skipped == 1
    assert all(torch.equal(v, before[k]) for k, v in skill.state_dict().items())


@pytest.mark.slow
def test_style_counts_once_a_new_policy_obeys(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    """The same moments are imagined; the gradient differs by the task's style."""
    norms = {}
    heavy = changed(walking, press_weight=1e4)
    for new, progress in ((True, 0.1), (True, 0.9), (False, 0.1), (False, 0.9)):
        config = replace(WALKING, clone_updates=0, horizon=(4, 4))
        trainer = walking_on(robot, heavy, skill, policy, config=config, new=new)
        trainer.warm_up()
        norms[new, progress] = trainer.improve_policy(progress)["policy_grad_norm"]
    assert norms[True, 0.1] < 0.5 * norms[True, 0.9]
    assert norms[False, 0.1] == norms[False, 0.9] == norms[True, 0.9]


# --- what it begins with ---


def test_recordings_are_cloned_and_give_the_postures(
    robot: Robot,
    walking: WalkConfig,
    skill: SkillModule,
    policy: HighLevelPolicy,
    motions: MotionSet,
) -> None:
    recordings = Imitation(robot, ImitationConfig(uniform_starts=1.0), motions)
    with pytest.raises(InputError, match="context_size"):  # this one's encoder knows no recordings
        walking_on(robot, walking, skill, policy, recordings=recordings)
    torch.manual_seed(0)
    contract = dataclasses.replace(skill.contract, context_size=context_size(robot, 5))
    skill = SkillModule(contract).requires_grad_(False)
    trainer = walking_on(robot, walking, skill, policy, recordings=recordings)
    low = torch.quantile(recordings.tracking.reference.frames.joint_pos[:, 0], 0.01)
    assert trainer.postures.low[4] == low
    figures = trainer.warm_up()
    assert trainer.postures.low[4] == low and "clone_loss" in figures
    # one that has learned before is held to the behaviour prior, too
    later = walking_on(robot, walking, skill, policy, recordings=recordings, new=False)
    assert later.env_steps_before == (12 + later.clone_steps) * 6
    assert "clone_loss" not in later.warm_up() and later.env_steps == later.env_steps_before
    plain = dataclasses.replace(WALKING, behavior=0.0)
    more: dict[str, Any] = {"recordings": recordings, "new": False, "config": plain}
    alone = walking_on(robot, walking, skill, policy, **more)
    assert alone.env_steps_before == 12 * 6 and alone.behavior is None
    pairs = zip(later.policy.parameters(), policy.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_what_does_not_fit_is_refused(
    robot: Robot, walking: WalkConfig, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    def made(**change: Any) -> ModelBasedTrainer:
        return walking_on(robot, walking, skill, policy, config=replace(WALKING, **change))

    refusal(r"algo\.clone_steps=20", made, clone_steps=20)
    for key in ("clone_steps", "policy_batch"):
        refusal(rf"algo\.{key}=1000000000: .* GiB", made, **{key: 10**9})
    with pytest.raises(InputError, match=r"algo\.prior_share=0.3: must be 0 for task 'walk'"):
        walking_on(robot, walking, skill, policy, config=TINY)
    clocked = walk_env(robot, 2, config=changed(walking, clock_s=0.5))
    refusal("sensors that cannot be imagined", ModelBasedTrainer, clocked, policy, skill, WALKING)
