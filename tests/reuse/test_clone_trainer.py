"""Learning from a teacher: what is fitted is what the teacher says; a run goes on to the bit; who
cannot be taught."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from mocap_data.errors import InputError
from npmp.envs import TaskEnv
from npmp.imitation.lessons import clone_loss
from npmp.nets.high_level import HighLevelConfig
from npmp.reuse import CloneTrainer, CloneTrainerConfig, HighLevelPolicy
from npmp.reuse.policy import PolicyInput
from npmp.robots import Robot
from npmp.skill import SkillModule
from npmp.tasks import Dribble, Walk, WalkConfig
from npmp.tasks.recover import Recover, RecoverConfig

CONFIG = CloneTrainerConfig(unroll=4, kept=2, updates=3, batch=8, lr=(3e-3, 3e-3), action_noise=0.0)


def trainer(
    robot: Robot, skill: SkillModule, config: CloneTrainerConfig = CONFIG, seed: int = 0
) -> CloneTrainer:
    plain = skill.in_joint_space()
    env = TaskEnv(Recover(robot, RecoverConfig(drops=6)), 6, num_threads=1, seed=seed)
    torch.manual_seed(seed)
    net = HighLevelConfig(input_width=16, hidden_width=16, lstm_width=16)
    return CloneTrainer(
        env,
        plain,
        HighLevelPolicy.for_task(plain, env.task, net=net, bound=[8.0] * 12),
        config,
        seed=seed,
    )


def test_the_policy_comes_nearer_to_what_the_teacher_says(robot: Robot, skill: SkillModule) -> None:
    run = trainer(
        robot, skill, CloneTrainerConfig(unroll=4, kept=1, updates=40, batch=16, lr=(1e-2, 1e-2))
    )
    gathered = run.gather(0.0)
    first = run.iteration(0.0, gathered)["clone_error"]
    for _ in range(4):
        last = run.iteration(0.0, gathered)["clone_error"]
    assert last < 0.4 * first
    lesson = gathered.data
    assert (
        lesson.steps["given"].proprioception.shape[:2] == (4, 6) == lesson.steps["shown"].shape[:2]
    )
    assert run.env_steps == 5 * 24


def test_moments_that_are_lost_count_less() -> None:
    """0.05 rad by its square, 0.3 rad by the tangent at 0.1: 0.0025 and 0.1 (2 0.3 - 0.1)."""
    off = torch.tensor([0.05, -0.3])
    assert clone_loss(off, 0.1).item() == pytest.approx((0.0025 + 0.05) / 2)
    assert clone_loss(off, None).item() == pytest.approx((0.0025 + 0.09) / 2)


def test_at_first_the_teacher_acts_and_at_last_the_policy(robot: Robot, skill: SkillModule) -> None:
    run = trainer(robot, skill)
    lesson = run.gather(0.0).data
    # where the teacher acts its targets are what robots sense as their last setpoints
    told = lesson.steps["given"].proprioception[1:, :, 12:24]
    torch.testing.assert_close(told, lesson.steps["shown"][:-1], atol=1e-5, rtol=0.0)
    torch.testing.assert_close(
        lesson.steps["given"].z_prev[1:] * run.skill.decoder.scale, lesson.steps["shown"][:-1]
    )
    late = trainer(robot, skill)
    lesson = late.gather(0.5).data
    assert (
        lesson.steps["given"].proprioception[1:, :, 12:24] - lesson.steps["shown"][:-1]
    ).abs().amax() > 0.05


def taught(
    robot: Robot, skill: SkillModule, teacher: HighLevelPolicy, config: CloneTrainerConfig
) -> CloneTrainer:
    env = TaskEnv(Walk(robot), 6, num_threads=1, seed=0)
    torch.manual_seed(0)
    net, module = (
        HighLevelConfig(input_width=16, hidden_width=16, lstm_width=16),
        teacher.contract.module_sha256,
    )
    student = HighLevelPolicy.for_task(skill, env.task, net=net, module=module)
    return CloneTrainer(env, skill, student, config, teacher=teacher)


def test_a_policy_is_put_into_a_smaller_network(
    robot: Robot, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    run = taught(
        robot,
        skill,
        policy,
        CloneTrainerConfig(unroll=4, kept=1, updates=40, batch=16, lr=(1e-2, 1e-2), episode_s=None),
    )
    gathered = run.gather(0.0)
    first = run.iteration(0.0, gathered)["clone_error"]
    for _ in range(4):
        last = run.iteration(0.0, gathered)["clone_error"]
    assert last < 0.4 * first
    # what was shown is what the policy would have done as the actor: while it acts, its own way
    steps, state = gathered.data.steps, policy.initial_state(6)
    for given, shown in zip(zip(*steps["given"], strict=True), steps["shown"], strict=True):
        latent, state = policy.step(PolicyInput(*given), state)
        torch.testing.assert_close(latent.mean, shown)
    assert torch.equal(steps["given"].z_prev[1:], steps["shown"][:-1])


def test_a_teacher_is_asked_with_the_latents_that_robots_moved_by(
    robot: Robot, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    """Not with those that it would have chosen: who acts from half of the run on is the student."""
    steps = taught(robot, skill, policy, CONFIG).gather(0.5).data.steps
    state = policy.initial_state(6)
    for given, shown in zip(zip(*steps["given"], strict=True), steps["shown"], strict=True):
        latent, state = policy.step(PolicyInput(*given), state)
        torch.testing.assert_close(latent.mean, shown)
    assert (steps["given"].z_prev[1:] - steps["shown"][:-1]).abs().amax() > 1e-3


def test_a_run_goes_on_to_the_bit(robot: Robot, skill: SkillModule) -> None:
    run = trainer(robot, skill)
    run.iteration(0.0)
    kept = copy.deepcopy(run.state_dict())
    expected = run.iteration(0.1)
    other = trainer(robot, skill, seed=5)
    other.load_state_dict(kept)
    assert other.iteration(0.1) == expected
    for one, two in zip(run.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_run_that_sees_goes_on_to_the_bit(robot: Robot, skill: SkillModule) -> None:
    def walking(seed: int) -> CloneTrainer:
        plain = skill.in_joint_space()
        task = Walk(
            robot,
            WalkConfig(terrain="stairs+flat", terrain_fields=2, clock_s=0.5, sees_ground=True),
        )
        env = TaskEnv(task, 3, num_threads=1, seed=seed, episode_s=0.12)
        torch.manual_seed(seed)
        net = HighLevelConfig(input_width=16, hidden_width=16, lstm_width=16)
        policy = HighLevelPolicy.for_task(plain, task, net=net, bound=[8.0] * 12)
        return CloneTrainer(env, plain, policy, CONFIG, seed=seed)

    run = walking(0)
    run.iteration(0.0)
    kept = copy.deepcopy(run.state_dict())
    expected = [run.iteration(0.5), run.iteration(0.9)]
    other = walking(5)
    other.load_state_dict(kept)
    assert [other.iteration(0.5), other.iteration(0.9)] == expected


def test_collectors_robots_stand_side_by_side(robot: Robot, skill: SkillModule) -> None:
    run = trainer(robot, skill)
    parts = [run.gather(0.0), run.gather(0.0)]
    both = run.merge(parts)
    assert (
        both.data.steps["shown"].shape == (4, 12, 12)
        and both.data.start.hidden.shape == (12, 16)
        and both.env_steps == 48
    )


def test_who_cannot_be_taught_is_refused(
    robot: Robot, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    dribbles = TaskEnv(Dribble(robot), 2, num_threads=1)
    with pytest.raises(InputError, match="task 'dribble' has no teacher"):
        CloneTrainer(dribbles, skill.in_joint_space(), policy)
    env = TaskEnv(Recover(robot, RecoverConfig(drops=4)), 2, num_threads=1)
    with pytest.raises(InputError, match="joint_space=true, or a policy of the module as teacher="):
        CloneTrainer(env, skill, policy)
    with pytest.raises(InputError, match="trained for task 'walk'; task=recover takes"):
        CloneTrainer(env, skill, policy, teacher=policy)
    other = HighLevelPolicy(replace(policy.contract, module_sha256="f" * 64))
    with pytest.raises(InputError, match=r"teacher commands another module \(sha256 ffffffffffff"):
        CloneTrainer(TaskEnv(Walk(robot), 2, num_threads=1), skill, policy, teacher=other)
    for wrong in (
        {"unroll": 0},
        {"taught": 2.0},
        {"lr": (0.0, 1.0)},
        {"episode_s": 0.0},
        {"outlier_rad": 0.0},
    ):
        with pytest.raises(ValueError):
            CloneTrainerConfig(**wrong)  # type: ignore[arg-type]
