"""A module and its mirror images as a teacher: it is asked in the mirrors in which it knows a
motion, its student comes nearer to what it says, a run goes on to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp.envs import RobotBatchConfig
from npmp.nets import NetConfig
from npmp.robots import Robot
from npmp.skill import SkillModule
from npmp.tasks import ImitationEnv
from npmp.training.imitation import DistillConfig
from npmp.training.mirrored import MirrorTeacher, student_of
from npmp.training.student import StudentTrainer
from retarget import mirror
from tests.environments import imitation_env
from tests.trainers import check_repeats_and_resumes

NET = NetConfig(latent_dim=4, encoder_width=16, decoder_width=16, lstm_width=8)
SETTINGS: dict[str, Any] = {"unroll": 4, "kept": 2, "updates": 3, "batch": 8, "action_noise": 0.0}
CONFIG = DistillConfig(**SETTINGS, rejoin_rate=5.0)
N = 6


def saying(skill: SkillModule, **training: Any) -> SkillModule:
    """The same module, which says something else of its training."""
    other = SkillModule(replace(skill.contract, training=training))
    other.load_state_dict(skill.state_dict())
    return other.requires_grad_(False).eval()


@pytest.fixture(scope="module")
def both_ways(robot: Robot, motions: MotionSet) -> MotionSet:
    """Each motion, and seen front to back."""
    ways = [(motion, mirror.mirror(motion, robot, "front_back")) for motion in motions.motions]
    return replace(motions, motions=tuple(motion for pair in ways for motion in pair))


@pytest.fixture(scope="module")
def teacher(robot: Robot, motions: MotionSet) -> SkillModule:
    """One that asks for something else in every place, trained on the motions as they are."""
    task = imitation_env(robot, motions, 1).task
    torch.manual_seed(3)
    skill = SkillModule.for_reference(robot, NET, task.reference, task.features(5))
    with torch.no_grad():
        skill.decoder.head.weight.normal_(std=0.1)
        skill.encoder.head.weight.normal_(std=0.1)
    return saying(skill, clips=[motion.name for motion in motions.motions], accelerometer="root")


def trainer(
    robot: Robot,
    motions: MotionSet,
    teacher: SkillModule,
    config: DistillConfig = CONFIG,
    seed: int = 0,
    net: NetConfig = NET,
) -> StudentTrainer:
    env = environment(robot, motions, seed=seed)
    shows, student = MirrorTeacher(env, teacher), student_of(env, teacher, net, seed=seed)
    return StudentTrainer(env, student, shows, config, seed=seed)


def environment(robot: Robot, motions: MotionSet, seed: int = 0, **settings: Any) -> ImitationEnv:
    plant = RobotBatchConfig(accelerometer=settings.pop("accelerometer", "root"))
    return imitation_env(robot, motions, N, robots=plant, seed=seed, **settings)


def test_it_is_asked_in_the_mirrors_in_which_it_knows_a_motion(
    robot: Robot, both_ways: MotionSet, teacher: SkillModule
) -> None:
    env, names = environment(robot, both_ways), [motion.name for motion in both_ways.motions]

    def shows(*clips: str) -> list[list[bool]]:
        known = saying(teacher, clips=list(clips), accelerometer="root")
        return MirrorTeacher(env, known).shows.tolist()

    plain, mirrored = [True, False, False, False], [False, False, True, False]
    assert shows(names[0], names[2]) == [plain, mirrored, plain, mirrored]
    assert shows(names[1]) == [mirrored, plain, mirrored, plain]
    assert shows(*names[:2]) == 4 * [[True, False, True, False]]


def test_it_shows_its_mean_and_in_a_mirror_the_image_of_it(
    robot: Robot, both_ways: MotionSet, teacher: SkillModule
) -> None:
    run = trainer(robot, both_ways, teacher, DistillConfig(**SETTINGS, rejoin_rate=0.0))
    # the same frames of a motion and its image
    env, clip = run.env, torch.tensor([0, 0, 0, 1, 1, 1])
    first = torch.ones(N, dtype=torch.bool)
    env.reset(
        first, clip=clip, frame=env.task.reference.start[clip] + torch.tensor([3, 9, 20, 3, 9, 20])
    )
    context, seen = env.task.observe(), env.observe().clone()
    shown = run.act(env, run.initial_memory(N), first).note["shown"]
    mu, _ = teacher.encode(context, torch.zeros(N, 4))
    own, _ = teacher.decode(mu, seen, teacher.initial_state(N))
    torch.testing.assert_close(shown[:3], own[:3], atol=1e-5, rtol=0)
    image = torch.from_numpy(
        robot.symmetries["front_back"].mirror_joints(shown[:3].numpy())
    ).float()
    torch.testing.assert_close(shown[3:], image, atol=1e-4, rtol=0)
    assert (shown[3:] - own[3:]).abs().amax() > 0.01


def test_what_two_mirrors_show_is_averaged(
    robot: Robot, both_ways: MotionSet, teacher: SkillModule
) -> None:
    """Against the same robots asked in either alone, over two steps: memories are those of each
    mirror."""
    names = [motion.name for motion in both_ways.motions]
    shown = []
    for clips in (names, names[::2], names[1::2]):  # in both mirrors, as they are or in the other
        run = trainer(robot, both_ways, saying(teacher, clips=clips, accelerometer="root"))
        env, first, clip = (
            run.env,
            torch.ones(N, dtype=torch.bool),
            torch.tensor([0, 1, 2, 3, 0, 1]),
        )
        run.config = DistillConfig(**SETTINGS, rejoin_rate=0.0)
        env.reset(first, clip=clip, frame=env.task.reference.start[clip] + 7)
        once = run.act(env, run.initial_memory(N), first)
        env.step(torch.zeros(N, env.num_actions))
        shown.append((once.note["shown"], run.act(env, once.memory, ~first).note["shown"]))
    for both, one, other in zip(*shown, strict=True):
        torch.testing.assert_close(both, 0.5 * (one + other), atol=1e-5, rtol=0)
        assert (one - other).abs().amax() > 0.01


def test_an_update_without_a_finite_gradient_is_left_out(
    robot: Robot, both_ways: MotionSet, teacher: SkillModule
) -> None:
    run = trainer(robot, both_ways, teacher)
    gathered = run.gather(0.0)
    gathered.data.shown[:] = torch.nan
    before = {name: value.clone() for name, value in run.agent.network.state_dict().items()}
    assert run.iteration(0.0, gathered)["skipped_updates"] == 3.0
    assert all(torch.equal(value, before[name]) for name, value in run.average.state_dict().items())


def test_a_student_begins_as_its_teacher_and_learns_its_images(
    robot: Robot, both_ways: MotionSet, teacher: SkillModule
) -> None:
    run = trainer(
        robot, both_ways, teacher, DistillConfig(**{**SETTINGS, "updates": 60, "lr": (1e-2, 1e-2)})
    )
    begun = run.average.module(run.range).state_dict()
    assert all(
        torch.equal(begun[name], value)
        for name, value in teacher.state_dict().items()
        if "range" not in name
    )
    gathered = run.gather(0.0)
    first = run.iteration(0.0, gathered)
    last = [run.iteration(0.0, gathered) for _ in range(4)][-1]
    assert last["clone_error"] < 0.6 * first["clone_error"] and last["kl"] > 0.0
    assert run.env_steps == 5 * 4 * N and {"reward", "error"} <= set(last)


def test_a_student_of_other_sizes_begins_anew(
    robot: Robot, both_ways: MotionSet, teacher: SkillModule
) -> None:
    small = replace(NET, decoder_width=8)
    run = trainer(robot, both_ways, teacher, net=small)
    run.iteration(0.0)
    module = run.average.module(run.range)
    assert module.net == small and module.contract.home_pose == teacher.contract.home_pose


def test_the_kl_weighs_beta(robot: Robot, both_ways: MotionSet, teacher: SkillModule) -> None:
    """A student that is held to the prior with all its weight ends nearer to it."""
    kls = []
    for beta in (0.0, 10.0):
        config = DistillConfig(**{**SETTINGS, "updates": 30, "lr": (1e-2, 1e-2)}, beta=beta)
        run = trainer(robot, both_ways, teacher, config)
        gathered = run.gather(0.0)
        kls.append([run.iteration(0.0, gathered)["kl"] for _ in range(3)][-1])
    assert kls[1] < 0.5 * kls[0]


def test_an_anchor_draws_each_update_back_to_the_teacher(
    robot: Robot, both_ways: MotionSet, teacher: SkillModule
) -> None:
    """By anchor x lr of the way, which 100 x 1e-2 is all of."""
    ends = []
    for anchor in (0.0, 30.0, 100.0):
        config = DistillConfig(**{**SETTINGS, "updates": 1, "lr": (1e-2, 1e-2)}, anchor=anchor)
        run = trainer(robot, both_ways, teacher, config)
        run.iteration(0.0)
        ends.append(run.agent.network.skill)
    away = 0.0
    for free, drawn, held, there in zip(
        *(skill.parameters() for skill in ends), teacher.parameters(), strict=True
    ):
        torch.testing.assert_close(drawn, 0.7 * free + 0.3 * there, atol=1e-6, rtol=0.0)
        assert torch.equal(held, there)
        away = max(away, (free - there).abs().max().item())
    assert away > 5e-3
    with pytest.raises(ValueError, match="anchor times lr must be at most 1"):
        DistillConfig(anchor=110.0, lr=(1e-2, 1e-3))
    with pytest.raises(InputError, match=r"algo.anchor=30: .* do not correspond .* \(net=\)"):
        trainer(
            robot,
            both_ways,
            teacher,
            replace(CONFIG, anchor=30.0),
            net=replace(NET, decoder_width=8),
        )


def test_runs_repeat_and_resume(robot: Robot, both_ways: MotionSet, teacher: SkillModule) -> None:
    check_repeats_and_resumes(lambda seed: trainer(robot, both_ways, teacher, seed=seed))


def test_a_teacher_that_does_not_fit_is_refused(
    robot: Robot, both_ways: MotionSet, teacher: SkillModule
) -> None:
    known = list(teacher.contract.training["clips"])
    env = environment(robot, both_ways)
    with pytest.raises(InputError, match="trained on none of these 4 motions"):
        MirrorTeacher(env, saying(teacher, clips=["elsewhere"], accelerometer="root"))
    held = saying(teacher, clips=known, accelerometer="root", hold="first_order")
    with pytest.raises(InputError, match="hold is first_order, here it is zero_order"):
        MirrorTeacher(env, held)
    with pytest.raises(InputError, match="accelerometer is root, here it is imu"):
        MirrorTeacher(environment(robot, both_ways, accelerometer="imu"), teacher)
    with pytest.raises(InputError, match="future_frames is 5, here it is 9"):
        MirrorTeacher(environment(robot, both_ways, future_frames=9), teacher)
    strange = (*both_ways.motions[:3], replace(both_ways.motions[3], mirror="upside_down"))
    with pytest.raises(InputError, match="seen in 'upside_down'; the robot's mirrors are"):
        MirrorTeacher(environment(robot, replace(both_ways, motions=strange)), teacher)


def test_an_imu_beside_a_mirrors_plane_is_refused(
    robot: Robot, both_ways: MotionSet, teacher: SkillModule
) -> None:
    """ANYmal's is beside both planes; where no mirror is needed it does not matter."""
    named = saying(teacher, clips=list(teacher.contract.training["clips"]), accelerometer="imu")
    message = "in the mirror front_back the IMU is elsewhere on 'anymal_b'"
    with pytest.raises(InputError, match=message):
        MirrorTeacher(environment(robot, both_ways, accelerometer="imu"), named)
    plain = replace(both_ways, motions=both_ways.motions[::2])
    MirrorTeacher(environment(robot, plain, accelerometer="imu"), named)
