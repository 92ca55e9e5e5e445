"""Compiled steps: equal to plain ones, and an error if compilation fails."""

from __future__ import annotations

import dataclasses
import os
import shutil
from typing import Any

import pytest
import torch

from mocap_data.store import MotionSet
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.envs.sensing import SensorConfig
from npmp.learning.imitation import ImitationModelBasedConfig
from npmp.learning.model_based import ModelBasedTrainer
from npmp.learning.world_model.compiling import compiled
from npmp.robots import Robot
from npmp.sim.randomization import PhysicsConfig
from npmp.skills.composition import TrackingPolicy
from npmp.skills.nets import NetConfig
from npmp.skills.skill_module import SkillModule
from tests.environments import imitation_env
from tests.refusals import refusal


def test_a_failed_compilation_names_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*inputs: Any) -> Any:
        raise torch._dynamo.exc.TorchDynamoException("no working C++ compiler\n\nmore lines")

    monkeypatch.setattr(torch, "compile", lambda function, **options: failing)
    refusal("algo.compile=true: .*C.. compiler$", compiled(torch.add, True), torch.ones(1))


@pytest.mark.skipif(
    "NPMP_SLOW" not in os.environ, reason="compiles for a minute; NPMP_SLOW=1 runs it"
)
@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler")
def test_compiled_and_plain_updates_agree(robot: Robot, motions: MotionSet) -> None:
    """Two trainers of one seed, one of them compiled: the same losses and gradients up to rounding,
    at two horizons."""
    net = NetConfig(latent_dim=4, encoder_width=16, decoder_width=16, lstm_width=8)
    config = ImitationModelBasedConfig(
        replay_steps=24, warmup_steps=12, warmup_updates=4, model_hidden=(16,), model_batch=16,
        policy_batch=8,
    )  # fmt: skip
    plant = RobotBatchConfig(
        hold="first_order",
        physics=PhysicsConfig(joint_offset=0.05, friction=(0.5, 1.0)),
        sensors=SensorConfig(delay_s=(0.0, 0.03), joint_noise=0.02),
    )
    trainers = []
    for compile in (False, True):
        env = imitation_env(robot, motions, 12, robots=plant)
        torch.manual_seed(0)
        skill = SkillModule.for_reference(
            robot, net, env.task.tracking.reference, env.task.tracking.features(5)
        )
        chosen = dataclasses.replace(config, compile=compile)
        trainers.append(ModelBasedTrainer(env, TrackingPolicy(skill), skill, chosen))
        trainers[-1].warm_up()
    for progress in (0.0, 1.0):  # two horizons
        plain, fast = (t.iteration(progress) for t in trainers)
        assert fast == pytest.approx(plain, rel=2e-3, abs=1e-5)
    one, other = (t.learned.lower.parameters() for t in trainers)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=0)
