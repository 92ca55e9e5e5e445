"""What latents carry, and what a module says of itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.core.gaussian import Gaussian
from npmp.evaluation import analysis
from npmp.evaluation.analysis.latents import use_in
from npmp.robots import Robot
from npmp.skills import modules
from npmp.skills.nets import DecoderState
from npmp.skills.prior import AR1, prior_std
from tests.environments import imitation_env
from tests.refusals import refusal
from tests.untrained import stub_module


def test_a_dimension_that_follows_the_prior_carries_nothing(
    robot: Robot, motions: MotionSet
) -> None:
    """mu = (0, 0.3, 0), sigma the prior's: 0.3^2 / (2 (1 - alpha^2)) = 0.4615 nats in that
    dimension, none in the others."""
    n, std = 4, prior_std(0.95)

    def decode(z: Tensor, observation: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        return torch.zeros(len(z), 12), state

    def encode(context: Tensor, z: Tensor) -> Gaussian:
        return Gaussian(torch.tensor([0.0, 0.3, 0.0]).expand(n, -1), torch.full((n, 3), std))

    skill = stub_module(decode, AR1(3, 0.95), encode=encode)
    use = use_in(skill, imitation_env(robot, motions, n), steps=10, seed=0)
    assert use.kl.tolist() == pytest.approx([0.0, 0.4615, 0.0], abs=1e-3)
    assert use.active() == 1 and use.order[0] == 1
    assert use.mean_share.tolist() == pytest.approx([0.0] * 3, abs=1e-6)  # the mean never varies


def test_a_module_describes_itself() -> None:
    for name in modules.names():
        figures = analysis.describe(name)
        skill = analysis.open_module(name)
        assert figures["parameters"]["all"] == sum(p.numel() for p in skill.parameters())
        file = modules.find(name) / "module.safetensors"
        assert figures["file"]["bytes"] == file.stat().st_size
        assert sum(figures["observation"].values()) == len(skill.observation_scale.mean)
        assert figures["licences"] and figures["robot"] == skill.robot
        assert "file" not in analysis.describe(skill)
    refusal("no skill module 'cat'", analysis.describe, "cat")
