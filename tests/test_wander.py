"""Robots without a task: how long they stay up, and what the latents carry."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.envs import ImitationConfig, ImitationEnv
from npmp.nets import DecoderState
from npmp.nets.prior import prior_std
from npmp.robots import Robot
from npmp.wander import latent_use, wander


def env_of(robot: Robot, motions: MotionSet, n: int) -> ImitationEnv:
    return ImitationEnv(robot, motions, n, config=ImitationConfig(num_threads=1))


def puppet(action: Tensor, seen: list[Tensor], **more: Any) -> Any:
    """A module whose decoder always does the same, and notes its latents."""

    def decode(z: Tensor, observation: Tensor, memory: DecoderState) -> tuple[Tensor, DecoderState]:
        seen.append(z)
        return action.expand(len(z), -1), memory

    memory = DecoderState(torch.zeros(1, 1), torch.zeros(1, 1))
    return SimpleNamespace(decode=decode, alpha=0.95, latent_dim=3, initial_state=lambda n: memory, **more)


def test_who_holds_the_home_pose_stays_up_and_who_folds_its_legs_falls(robot: Robot, motions: MotionSet) -> None:
    env = env_of(robot, motions, 4)
    held = wander(puppet(torch.zeros(1, 12), []), env, "prior", seconds=2.0, seed=0)
    assert held.up_s.tolist() == pytest.approx([2.0] * 4) and held.qpos.shape == (101, 4, 19)
    folded = torch.tensor([0.0, 1.2, -1.8] * 2 + [0.0, -1.2, 1.8] * 2).unsqueeze(0)
    fallen = wander(puppet(folded, []), env, "prior", seconds=2.0, seed=0)
    assert fallen.up_s.max() < 1.5


@pytest.mark.parametrize(("latents", "correlation"), [("prior", 0.95), ("white", 0.0)])
def test_latents_have_the_same_variance_and_their_own_correlation(
    robot: Robot, motions: MotionSet, latents: str, correlation: float
) -> None:
    seen: list[Tensor] = []
    wander(puppet(torch.zeros(1, 12), seen), env_of(robot, motions, 64), latents, seconds=4.0, seed=1)
    z = torch.stack(seen)
    assert z.var().item() == pytest.approx(1.0, abs=0.12)
    assert (z[1:] * z[:-1]).mean().item() / z.square().mean().item() == pytest.approx(correlation, abs=0.05)
    with pytest.raises(ValueError, match="prior, white"):
        wander(puppet(torch.zeros(1, 12), []), env_of(robot, motions, 1), "pink", seconds=0.1, seed=0)


def test_a_dimension_that_follows_the_prior_carries_nothing(robot: Robot, motions: MotionSet) -> None:
    """mu = (0.3, 0, 0), sigma the prior's: 0.3^2 / (2 (1 - alpha^2)) = 0.4615 nats in the first dimension, none in the others."""
    n, std = 4, prior_std(0.95)

    def encode(context: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tensor([0.3, 0.0, 0.0]).expand(n, -1), torch.full((n, 3), std)

    contract = SimpleNamespace(context_horizon=5)
    skill = puppet(torch.zeros(1, 12), [], encode=encode, contract=contract)
    use = latent_use(skill, env_of(robot, motions, n), steps=10, seed=0)
    assert use.kl.tolist() == pytest.approx([0.4615, 0.0, 0.0], abs=1e-3) and use.active() == 1
    assert use.mean_share.tolist() == pytest.approx([0.0] * 3, abs=1e-6)  # the mean never varies
