"""A small untrained skill module, for everything that commands one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet
from npmp.core.gaussian import Gaussian
from npmp.core.settings import changed
from npmp.envs.features import true_state
from npmp.robots import Robot
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.nets import DecoderState, NetConfig
from npmp.skills.nets.high_level import HighLevelConfig
from npmp.skills.prior import Prior
from npmp.skills.skill_module import SkillContract, SkillModule
from npmp.tasks.walk import Walk, WalkConfig
from tests.environments import walk_env


@pytest.fixture(scope="session")
def walking() -> WalkConfig:
    """Short episodes, so that a tiny run meets their ends."""
    return changed(
        WalkConfig(),
        command_range=((0.0, 0.8), (-0.2, 0.2), (-0.5, 0.5)),
        episode_s=0.3,
        command_period_s=0.1,
    )


@pytest.fixture(scope="session")
def skill(robot: Robot, walking: WalkConfig) -> SkillModule:
    torch.manual_seed(0)
    env = walk_env(robot, 1, config=walking)
    context = 10 + true_state(env.state, env.home).shape[-1]
    net = NetConfig(latent_dim=4, encoder_width=8, decoder_width=16, lstm_width=8)
    module = SkillModule(
        SkillContract.for_robot(robot, net, context_size=context, context_horizon=5)
    )
    # an untrained decoder hardly moves the robot; this one does something with its latent
    torch.nn.init.normal_(module.decoder.head.weight, std=0.5)
    return module.requires_grad_(False)


@pytest.fixture(scope="session")
def start_poses(robot: Robot) -> MotionSet:
    """Start poses that all differ: the home pose, its joints slowly on the move."""
    frames = 40
    qpos = np.tile(robot.home_qpos, (frames, 1))
    qpos[:, 7:] += np.linspace(0.0, 0.2, frames)[:, None]
    motion = ReferenceMotion("bow", qpos, rate_hz=50.0)
    return MotionSet(robot.name, robot.model_sha256, robot.joint_names, robot.body_names, (motion,))


@pytest.fixture
def policy(robot: Robot, skill: SkillModule, walking: WalkConfig) -> HighLevelPolicy:
    torch.manual_seed(1)
    net = HighLevelConfig(input_width=16, hidden_width=16, lstm_width=8)
    return HighLevelPolicy.for_task(skill, Walk(robot, walking), net=net, module="0" * 64)


def stub_module(decode: Any, prior: Prior, encode: Any = None) -> Any:
    """What a composition needs of a skill module, by functions in place of networks."""

    def posterior(context: Tensor, z_before: Tensor, observed: Tensor) -> Gaussian:
        mu, sigma = encode(context, z_before)
        return Gaussian(prior.step(z_before, observed).mean + mu, sigma)

    return SimpleNamespace(
        prior=prior,
        latent_dim=len(prior.bound),
        encode=encode,
        posterior=posterior,
        initial_state=lambda n: DecoderState(torch.zeros(n, 1), torch.zeros(n, 1)),
        step=lambda o, state: decode(o.task, o.proprioception, state),
    )
