"""Compiled steps: what they compute, and that a machine that cannot compile goes on without."""

from __future__ import annotations

import dataclasses
import os
import shutil
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch._inductor.exc import CppCompileError

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


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


def fibonacci(carry: Pair, scale: Tensor) -> Pair:
    return Pair(carry.b, scale * (carry.a + carry.b))


def test_without_a_compiler_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*arguments: Any) -> Any:
        raise torch._dynamo.exc.TorchDynamoException(
            "InvalidCxxCompiler: No working C++ compiler found\n\nfurther lines"
        )

    monkeypatch.setattr(torch, "compile", lambda function, **options: failing)
    step, ones = compiled(fibonacci, True), torch.ones(3)
    for _ in range(2):
        assert step(Pair(ones, ones), 2.0 * ones).b.tolist() == [4.0] * 3
    [line] = capsys.readouterr().err.splitlines()  # once
    assert line.startswith("npmp: torch.compile does not work here") and "compiler" in line


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), CppCompileError(["g++"], "no such header")]
)
@pytest.mark.parametrize("backward", [False, True])
def test_what_fails_in_either_direction_is_met_at_the_first_call(
    error: Exception,
    backward: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Tensor) -> Tensor:
            if not backward:
                raise error
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            raise error

    def fast(carry: Pair, scale: Tensor) -> Pair:
        return Pair(Failing.apply(carry.a), carry.b)

    monkeypatch.setattr(torch, "compile", lambda function, **options: fast)
    step, scale = compiled(fibonacci, True), torch.full((3,), 2.0, requires_grad=True)
    result = step(Pair(torch.ones(3), torch.ones(3)), scale)
    result.b.sum().backward()
    assert result.b.tolist() == [4.0] * 3 and scale.grad is not None
    assert scale.grad.tolist() == [2.0] * 3
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("npmp: torch.compile does not work here")


def test_an_error_of_the_step_itself_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: Any) -> Any:
        raise ValueError("mine")

    monkeypatch.setattr(torch, "compile", lambda function, **options: failing)
    with pytest.raises(ValueError, match="mine"):
        compiled(fibonacci, True)(torch.ones(1))


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
        skill = SkillModule.for_reference(robot, net, env.task.reference, env.task.features(5))
        chosen = dataclasses.replace(config, compile=compile)
        trainers.append(ModelBasedTrainer(env, TrackingPolicy(skill), skill, chosen))
        trainers[-1].warm_up()
    for progress in (0.0, 1.0):  # two horizons
        plain, fast = (t.iteration(progress) for t in trainers)
        assert fast == pytest.approx(plain, rel=2e-3, abs=1e-5)
    one, other = (t.learned.lower.parameters() for t in trainers)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=0)
