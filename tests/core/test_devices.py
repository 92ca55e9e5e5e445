"""Devices: native bfloat16, and training on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.core.devices import has_native_bfloat16
from npmp.core.settings import changed
from npmp.envs import TaskEnv
from npmp.envs.features import ReferenceFeatures
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.envs.sensing import SensorConfig
from npmp.learning.agents import LatentAgent, ModuleAgent
from npmp.learning.imitation import ImitationModelBasedConfig, trained_module
from npmp.learning.model_based import ModelBasedTrainer
from npmp.learning.on_policy import OnPolicyTrainer, VMPOTraining
from npmp.learning.student import StudentConfig, StudentTrainer, teacher_of
from npmp.robots import Robot
from npmp.sim.randomization import PushConfig
from npmp.skills.composition import TrackingPolicy
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.nets import NetConfig
from npmp.skills.nets.high_level import HighLevelConfig
from npmp.skills.skill_module import SkillModule
from npmp.tasks import Imitation, ImitationEnv
from npmp.tasks.walk import Walk, WalkConfig
from tests.environments import EVERYTHING, imitation_env, walk_env
from tests.trainers import SMALL

CPU = torch.device("cpu")
NET = NetConfig(latent_dim=4, encoder_width=16, decoder_width=16, lstm_width=8)
FULL = RobotBatchConfig(
    hold="first_order",
    physics=EVERYTHING,
    pushes=PushConfig(force=50.0, duration_s=0.1, gap_s=0.1),
    sensors=SensorConfig(
        delay_s=(0.0, 0.03), joint_noise=0.03, gyro_noise=(0.1, 0.2, 0.8), accelerometer_noise=0.5
    ),
)


def numbers(x: Tensor) -> Tensor:
    """A tensor on the CPU."""
    return x.detach().cpu()


@pytest.mark.parametrize(
    ("capabilities", "isa", "native"),
    [
        ({"avx512_bf16": True}, "ALL", True),
        ({"bf16": True}, "DEFAULT", True),
        ({"avx512_bf16": False, "avx512_f": True}, "ALL", False),
        ({"avx512_bf16": True}, "AVX2", False),
        ({}, "ALL", False),
    ],
)
def test_bfloat16_is_native_where_the_processor_and_onednn_have_it(
    capabilities: dict[str, bool], isa: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", isa)
    assert has_native_bfloat16() is native


# --- training on a GPU


def imitate(robot: Robot, motions: MotionSet, device: torch.device) -> ImitationEnv:
    return imitation_env(robot, motions, 4, robots=FULL, device=device)


FAST = ImitationModelBasedConfig(
    **SMALL, prior_share=0.3, prior_steps=4, rejoin_rate=10.0, posture=1.0, wasserstein=1.0
)
PUBLISHED = VMPOTraining(unroll=4, critic_hidden=(16,), target_period=1)
CLONED = StudentConfig(unroll=4, kept=2, updates=2, batch=2)


def new_module(env: ImitationEnv) -> SkillModule:
    torch.manual_seed(0)  # of its weights
    task = Imitation(env.robot, None, env.task.tracking._motions)
    features = ReferenceFeatures(env.robot, task.tracking.reference)
    return SkillModule.for_reference(env.robot, NET, task.tracking.reference, features)


def fast(robot: Robot, motions: MotionSet, device: torch.device) -> ModelBasedTrainer:
    env = imitate(robot, motions, device)
    skill = new_module(env)
    return ModelBasedTrainer(env, TrackingPolicy(skill), skill, FAST)


def published(robot: Robot, motions: MotionSet, device: torch.device) -> OnPolicyTrainer:
    env = imitate(robot, motions, device)
    agent = ModuleAgent(new_module(env).to(device), 0.2)
    agent.network.to(device)
    return OnPolicyTrainer(env, agent, PUBLISHED)


def walk(
    robot: Robot, motions: MotionSet, skill: SkillModule, device: torch.device
) -> OnPolicyTrainer:
    env = walk_env(
        robot, 4, motions=motions, robots=FULL, device=device, episode_s=0.1, command_period_s=0.04
    )
    return OnPolicyTrainer(env, latent_agent(env, skill), PUBLISHED)


def latent_agent(env: TaskEnv[Any], skill: SkillModule, **more: Any) -> LatentAgent:
    torch.manual_seed(0)  # of the policy's weights
    net = HighLevelConfig(16, 16, 16)
    policy = HighLevelPolicy.for_task(skill, env.task, net=net, **more)
    return LatentAgent(policy.to(env.device), skill.to(env.device))


def student(task: Walk, skill: SkillModule, device: torch.device) -> StudentTrainer:
    env = TaskEnv(task, 4, robots=FULL, num_threads=1, device=device, episode_s=0.12)
    agent = latent_agent(env, skill.in_joint_space(), bound=[8.0] * 12)
    return StudentTrainer(env, agent, teacher_of(env, agent), CLONED)


def trot(
    robot: Robot, motions: MotionSet, skill: SkillModule, device: torch.device
) -> StudentTrainer:
    config = changed(
        WalkConfig(), terrain="stairs+flat", terrain_fields=2, clock_s=0.5, sees_ground=True
    )
    return student(Walk(robot, config), skill, device)


def published_walk(robot: Robot, motions: MotionSet, device: torch.device) -> OnPolicyTrainer:
    skill = trained_module(published(robot, motions, CPU)).requires_grad_(False)
    return walk(robot, motions, skill, device)


def published_trot(robot: Robot, motions: MotionSet, device: torch.device) -> StudentTrainer:
    skill = trained_module(published(robot, motions, CPU)).requires_grad_(False)
    return trot(robot, motions, skill, device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("build", [fast, published, published_walk, published_trot])
def test_training_on_a_gpu(robot: Robot, motions: MotionSet, build: Any) -> None:
    """An iteration, a checkpoint, and another iteration, with everything randomized."""
    trainer = build(robot, motions, torch.device("cuda:0"))
    if isinstance(trainer, ModelBasedTrainer):
        trainer.warm_up()
    figures = [trainer.iteration(0.0)]
    trainer.load_state_dict({k: numbers(v).clone() for k, v in trainer.state_dict().items()})
    figures.append(trainer.iteration(0.5))
    assert all(value == value for row in figures for value in row.values())
    state = {name: numbers(value) for name, value in trainer.state_dict().items()}
    assert all(v.isfinite().all() for v in state.values() if v.is_floating_point())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_an_action_does_the_same_on_a_gpu(robot: Robot, motions: MotionSet) -> None:
    ends = []
    for device in (CPU, torch.device("cuda:0")):
        env = imitation_env(robot, motions, 2, device=device)
        env.reset(
            clip=torch.tensor([0, 1], device=device), frame=torch.tensor([10, 120], device=device)
        )
        for _ in range(3):
            env.step(torch.full((2, 12), 0.1, device=device))
        ends.append(numbers(env.state.pack()))
    # accelerations: differences of differences
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-3, atol=2e-2)
