"""Learning from a teacher: what is fitted is what the teacher says; runs resume to the bit; what
cannot be taught."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mocap_data.errors import InputError
from npmp.core.settings import changed
from npmp.core.tree import map_tree
from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.envs.features import proprioception
from npmp.envs.policy import PolicyOutput, observe
from npmp.envs.sensing import SensorConfig
from npmp.experiments import examples
from npmp.learning.agents import DecodedAgent, LatentAgent, latent_range
from npmp.learning.student import (
    CommandsOfTeacher,
    Lesson,
    ScriptedTeacher,
    StudentConfig,
    StudentTrainer,
    clone_loss,
    teacher_of,
    with_sensors_of_teacher,
)
from npmp.robots import Robot
from npmp.sim.randomization import PhysicsConfig
from npmp.skills.composition import over
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.nets.command_decoder import CommandDecoder
from npmp.skills.nets.high_level import HighLevelConfig
from npmp.skills.skill_module import SkillModule
from npmp.tasks import Dribble, Walk, WalkConfig
from npmp.tasks.inputs import GroundMap
from npmp.tasks.recover import Recover, RecoverConfig
from tests.refusals import refusal
from tests.trainers import check_repeats_and_resumes

CONFIG = StudentConfig(unroll=4, kept=2, updates=3, batch=8, lr=(3e-3, 3e-3), action_noise=0.0)
FITTED = replace(CONFIG, kept=1, updates=40, batch=16, lr=(1e-2, 1e-2), episode_s=None)
EXAMPLES = Path(examples.__path__[0])
RIGHTING = ScriptedTeacher(f"{EXAMPLES / 'righting.py'}:RightingTeacher", {})
TROT = ScriptedTeacher(f"{EXAMPLES / 'trotting.py'}:TrotTeacher", {})
NET = HighLevelConfig(input_width=16, hidden_width=16, lstm_width=16)


def righting(
    robot: Robot, skill: SkillModule, config: StudentConfig = CONFIG, seed: int = 0
) -> StudentTrainer:
    """Taught by the script of task `recover`, in joint space."""
    plain = skill.in_joint_space()
    env = TaskEnv(Recover(robot, RecoverConfig(drops=6)), 6, num_threads=1, seed=seed)
    torch.manual_seed(seed)
    student = HighLevelPolicy.for_task(plain, env.task, net=NET, bound=[8.0] * 12)
    agent = LatentAgent(student, plain)
    return StudentTrainer(env, agent, teacher_of(env, agent, RIGHTING), config, seed=seed)


def through_skills(robot: Robot, skill: SkillModule, seed: int = 0) -> StudentTrainer:
    """Taught by the script of task `walk` what a module's latents are to be used for."""
    seen = changed(
        WalkConfig(), sees_ground=True, ground_drift_m=0.05, ground_delay_s=0.04, ground_holes=0.1
    )
    env = TaskEnv(Walk(robot, replace(seen, clock_s=0.5)), 6, num_threads=1, seed=seed)
    torch.manual_seed(seed)
    agent = DecodedAgent(HighLevelPolicy.for_task(skill, env.task, net=NET), skill)
    return StudentTrainer(env, agent, teacher_of(env, agent, TROT), CONFIG, seed=seed)


def smaller(
    robot: Robot, skill: SkillModule, teacher: HighLevelPolicy, config: StudentConfig
) -> StudentTrainer:
    """Taught by another policy of the same module."""
    env = TaskEnv(Walk(robot), 6, num_threads=1, seed=0)
    torch.manual_seed(0)
    module = teacher.contract.module_sha256
    student = HighLevelPolicy.for_task(skill, env.task, net=NET, module=module)
    agent = LatentAgent(student, skill)
    return StudentTrainer(env, agent, teacher_of(env, agent, teacher), config)


def with_other_sensors(
    robot: Robot, skill: SkillModule, *, camera: bool, seed: int = 0
) -> tuple[StudentTrainer, HighLevelPolicy]:
    """A student on stairs with a map, and a camera or none; its teacher, which has a map and a
    clock."""
    ground = {"terrain": "stairs", "terrain_fields": 4, "ground_noise_m": 0.02}
    config = changed(WalkConfig(), sees_ground=True, **ground)
    teacher_task = Walk(robot, changed(config, clock_s=0.5))
    torch.manual_seed(0)
    teacher = HighLevelPolicy.for_task(skill, teacher_task, net=NET)
    torch.manual_seed(seed)
    own = {"camera": "stereo", "sees_ground": False} if camera else {}
    task, sensors = with_sensors_of_teacher(
        Walk(robot, changed(config, **own)), teacher, teacher_task
    )
    env = TaskEnv(task, 6, num_threads=1, seed=seed)
    agent = LatentAgent(HighLevelPolicy.for_task(skill, task, net=NET), skill)
    teaching = teacher_of(env, agent, teacher, sensors)
    return StudentTrainer(env, agent, teaching, FITTED, seed=seed), teacher


def test_a_teacher_may_have_other_sensors(robot: Robot, skill: SkillModule) -> None:
    """The targets are the teacher's output on the clock and the map of the student's robots, as the
    student observes it where it has one."""
    for camera in (True, False):
        trainer, teacher = with_other_sensors(robot, skill, camera=camera)
        task = trainer.env.task
        names = list(task.extra_inputs)
        assert names[0].startswith("depth" if camera else "ground")
        assert not any(name.startswith("clock") for name in names)
        observed = observe(trainer.env, torch.ones(6, dtype=torch.bool))
        observed = observed._replace(z_before=torch.zeros(6, skill.latent_dim))
        random_numbers = trainer.env.generator.get_state()
        target, _ = trainer.teacher.step(observed, trainer.teacher.initial_state(6))
        heights = observed.task[:, 3:]
        if camera:
            # the reading that the teacher had
            trainer.env.generator.set_state(random_numbers)
            heights = task.part(GroundMap).read()
        # a clock at an episode's start
        clock = torch.tensor([0.0, 1.0]).expand(6, 2)
        inputs = torch.cat((observed.task[:, :3], clock, heights), -1)
        expected, _ = teacher.step(observed._replace(task=inputs), teacher.initial_state(6))
        torch.testing.assert_close(target.mean, expected.mean)
    check_it_comes_nearer(trainer)


def test_a_teacher_observes_the_exact_state(robot: Robot, skill: SkillModule) -> None:
    """Noise, delay and joint offsets reach the student alone."""
    robots = RobotBatchConfig(
        physics=PhysicsConfig(joint_offset=0.1),
        sensors=SensorConfig(delay_s=(0.0, 0.02), joint_noise=0.1, gyro_noise=(0.5, 0.5, 0.5)),
    )
    env = TaskEnv(Walk(robot), 6, robots=robots, num_threads=1)
    agent = LatentAgent(HighLevelPolicy.for_task(skill, env.task, net=NET), skill)
    teacher = HighLevelPolicy.for_task(skill, env.task, net=NET)
    teaching = teacher_of(env, agent, teacher)
    env.reset()
    env.step(torch.zeros(6, env.num_actions))
    observed = observe(env, torch.ones(6, dtype=torch.bool))
    observed = observed._replace(z_before=torch.zeros(6, skill.latent_dim))
    exact = proprioception(env.state, env.robots.home)
    assert (observed.proprioception - exact).abs().amax(-1).min() > 0.01
    target, _ = teaching.step(observed, teaching.initial_state(6))
    expected, _ = teacher.step(observed._replace(proprioception=exact), teacher.initial_state(6))
    torch.testing.assert_close(target.mean, expected.mean)


def test_a_student_with_other_sensors_resumes_to_the_bit(robot: Robot, skill: SkillModule) -> None:
    check_repeats_and_resumes(
        lambda seed: with_other_sensors(robot, skill, camera=True, seed=seed)[0]
    )


def test_teacher_and_student_cannot_have_different_clocks(robot: Robot, skill: SkillModule) -> None:
    task, teacher_task = (Walk(robot, changed(WalkConfig(), clock_s=s)) for s in (0.4, 0.5))
    teacher = HighLevelPolicy.for_task(skill, teacher_task, net=NET)
    message = "task.clock_s=0.4: expected the teacher's, 0.5"
    refusal(message, with_sensors_of_teacher, task, teacher, teacher_task)


def check_it_comes_nearer(trainer: StudentTrainer) -> Lesson:
    experience = trainer.collect_experience(0.0)
    errors = [trainer.iteration(0.0, experience)["clone_error"] for _ in range(5)]
    assert errors[-1] < 0.4 * errors[0] and trainer.env_steps == 5 * 4 * 6
    lesson: Lesson = experience.data
    return lesson


def test_the_policy_comes_nearer_to_what_a_script_says(robot: Robot, skill: SkillModule) -> None:
    lesson = check_it_comes_nearer(righting(robot, skill, FITTED))
    assert lesson.observations.proprioception.shape[:2] == (4, 6) == lesson.targets.shape[:2]


def test_moments_that_are_lost_count_less() -> None:
    """0.05 rad by its square, 0.3 rad by the tangent at 0.1: 0.0025 and 0.1 (2 0.3 - 0.1)."""
    miss = torch.tensor([0.05, -0.3])
    assert clone_loss(miss, 0.1).item() == pytest.approx((0.0025 + 0.05) / 2)
    assert clone_loss(miss, None).item() == pytest.approx((0.0025 + 0.09) / 2)


def test_at_first_the_teacher_acts_and_at_last_the_policy(robot: Robot, skill: SkillModule) -> None:
    trainer = righting(robot, skill)
    lesson = trainer.collect_experience(0.0).data
    # where the teacher acts its targets are what robots sense as their last setpoints
    setpoints = lesson.observations.proprioception[1:, :, 12:24]
    torch.testing.assert_close(setpoints, lesson.targets[:-1], atol=1e-5, rtol=0.0)
    torch.testing.assert_close(
        lesson.observations.z_before[1:] * trainer.agent.unit, lesson.targets[:-1]
    )
    late = righting(robot, skill).collect_experience(0.5).data
    assert (late.observations.proprioception[1:, :, 12:24] - late.targets[:-1]).abs().amax() > 0.05


@pytest.mark.parametrize("progress", [0.0, 0.5])
def test_a_policy_is_put_into_a_smaller_network(
    robot: Robot, skill: SkillModule, policy: HighLevelPolicy, progress: float
) -> None:
    """What is shown is what the policy would do where robots have moved by these latents: by its
    own while it acts, later by the student's."""
    if progress == 0.0:
        lesson = check_it_comes_nearer(smaller(robot, skill, policy, FITTED))
    else:
        lesson = smaller(robot, skill, policy, CONFIG).collect_experience(progress).data
    state = policy.initial_state(6)
    for t, target in enumerate(lesson.targets):
        observation = map_tree(lambda part, t=t: part[t], lesson.observations)
        latents, state = policy.step(observation, state)
        torch.testing.assert_close(latents.mean, target)
    apart = (lesson.observations.z_before[1:] - lesson.targets[:-1]).abs().amax()
    assert apart == 0.0 if progress == 0.0 else apart > 1e-3


def test_runs_repeat_and_resume(robot: Robot, skill: SkillModule) -> None:
    check_repeats_and_resumes(lambda seed: righting(robot, skill, seed=seed))


def test_a_script_teaches_through_a_frozen_decoder(robot: Robot, skill: SkillModule) -> None:
    """What the student unrolls is what its policy and the module's decoder do step by step."""
    trainer = through_skills(robot, skill)
    before = {name: weight.clone() for name, weight in skill.state_dict().items()}
    experience = trainer.collect_experience(0.0)
    errors = [trainer.iteration(0.0, experience)["clone_error"] for _ in range(5)]
    lesson: Lesson = experience.data
    assert errors[-1] < 0.95 * errors[0] and lesson.targets.shape == (4, 6, 12)
    network = trainer.agent.network
    mean, *_ = network(lesson.observations, lesson.start, lesson.is_first)
    memory, decoder = lesson.start.upper, lesson.start.lower
    for t in range(len(lesson.targets)):
        observation = map_tree(lambda part, t=t: part[t], lesson.observations)
        latents, memory = network.upper.step(observation, memory)
        action, decoder = skill.decode(latents.mean, observation.proprioception, decoder)
        torch.testing.assert_close(mean[t], action, atol=1e-5, rtol=1e-4)
    for name, weight in skill.state_dict().items():
        assert torch.equal(weight, before[name])


def test_a_teachers_commands_are_latents_of_a_walker(
    skill: SkillModule, policy: HighLevelPolicy
) -> None:
    decoder = over(policy, skill).as_module().decoder
    assert isinstance(decoder, CommandDecoder)
    low, high = torch.tensor(policy.contract.command_range).T
    commands: Any = torch.stack((low, high, 0.5 * (low + high), high + 1.0))

    class Teacher:
        def initial_state(self, n: int) -> Any:
            return ()

        def step(self, observation: Any, state: Any) -> Any:
            return PolicyOutput(torch.zeros(4, 12), commands), state

    observation: Any = None
    latents, _ = CommandsOfTeacher(Teacher(), decoder).step(observation, ())
    ends = torch.tensor([-1.0, 1.0, 0.0, 1.0]).unsqueeze(-1).expand(4, len(low))
    torch.testing.assert_close(latents, ends)
    commands = None
    refusal("teacher Teacher outputs no", CommandsOfTeacher(Teacher(), decoder).step, None, ())


def test_learning_through_skills_repeats_and_resumes(robot: Robot, skill: SkillModule) -> None:
    check_repeats_and_resumes(lambda seed: through_skills(robot, skill, seed))


def test_collectors_robots_stand_side_by_side(robot: Robot, skill: SkillModule) -> None:
    trainer = righting(robot, skill)
    both = trainer.merge([trainer.collect_experience(0.0), trainer.collect_experience(0.0)])
    assert both.data.targets.shape == (4, 12, 12) and both.env_steps == 48
    assert both.data.start.hidden.shape == (12, 16)


def test_the_range_of_latents_is_that_of_what_collectors_bring(
    robot: Robot, skill: SkillModule
) -> None:
    collector, learner = righting(robot, skill), righting(robot, skill)
    experience = collector.collect_experience(0.0)
    learner.iteration(0.0, experience)
    torch.testing.assert_close(learner.range, latent_range(experience.data.z), rtol=0, atol=0)


def test_a_record_names_the_files_of_a_teacher(tmp_path: Path) -> None:
    path = tmp_path / "walk" / "policy"
    settings = {"policy": str(path), "walker": "anymal_b_walk", "near": 0.5}
    record = ScriptedTeacher(RIGHTING.reference, settings).record()
    assert record["teacher"] == "righting.py:RightingTeacher"
    assert record["teacher_settings"] == settings | {"policy": "walk/policy"}


def test_what_cannot_be_taught_is_refused(
    robot: Robot, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    dribbles = TaskEnv(Dribble(robot), 2, num_threads=1)
    rights = TaskEnv(Recover(robot, RecoverConfig(drops=4)), 2, num_threads=1)
    walks = TaskEnv(Walk(robot), 2, num_threads=1)
    agent = LatentAgent(policy, skill)
    with pytest.raises(InputError, match="'dribble'"):
        teacher_of(dribbles, LatentAgent(policy, skill.in_joint_space()))
    refusal("trained for task 'walk'; task=recover accepts", teacher_of, rights, agent, policy)
    other = HighLevelPolicy(replace(policy.contract, module_sha256="f" * 64))
    with pytest.raises(InputError, match=r"teacher commands another module \(sha256 ffffffffffff"):
        teacher_of(walks, agent, other)
    for wrong in (
        {"unroll": 0}, {"taught": 2.0}, {"lr": (0.0, 1.0)}, {"episode_s": 0.0}, {"beta": -1.0},
        {"outlier_rad": 0.0},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(wrong))):
            StudentConfig(**wrong)  # type: ignore[arg-type]
