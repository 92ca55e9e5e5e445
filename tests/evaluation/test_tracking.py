"""Evaluation's rollouts: how far is counted right, with policies whose success is known."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp.core.gaussian import Gaussian
from npmp.envs import EnvStep, TaskEnv
from npmp.evaluation.tracking import track
from npmp.robots import Robot
from npmp.skills.nets import NetConfig
from npmp.skills.prior import AR1
from npmp.skills.skill_module import SkillContract, SkillModule
from npmp.tasks import Imitation
from tests.environments import imitation_env
from tests.untrained import stub_module


def stub() -> Any:
    """A skill whose latents are zero and whose actions are too."""
    return stub_module(
        lambda z, proprioception, state: (torch.zeros(len(z), 12), state),
        AR1(2, 0.95),
        encode=lambda context, z: Gaussian(torch.zeros_like(z), torch.ones_like(z)),
    )


class Scripted(TaskEnv[Imitation]):
    """Robots that are said to fail in the control step of the given number, counted from 1."""

    fail_at: Tensor
    taken = 0

    def step(self, action: Tensor) -> EnvStep:
        self.taken += 1
        return super().step(action)._replace(terminated=self.fail_at == self.taken)


def test_tracked_steps_are_those_before_the_failure(robot: Robot, motions: MotionSet) -> None:
    env = Scripted(Imitation(robot, motions=motions), 4, num_threads=1)
    env.fail_at = torch.tensor([1, 4, 0, 9])
    # to track: 10, 10, 3 (never fails) and 5 steps (its failure comes after its clip's end)
    result = track(stub(), env, torch.tensor([0, 0, 0, 1]), torch.tensor([89, 89, 96, 244]))
    assert result.remaining.tolist() == [10, 10, 3, 5]
    assert result.steps.tolist() == [0, 3, 3, 5]
    torch.testing.assert_close(result.fraction, torch.tensor([0.0, 0.3, 1.0, 1.0]))
    assert env.taken <= 6  # no robot is left after the sixth


def test_trajectories_begin_at_the_start_and_follow_the_frames(
    robot: Robot, motions: MotionSet
) -> None:
    env = imitation_env(robot, motions, 2)
    result = track(stub(), env, torch.tensor([0, 1]), torch.tensor([95, 240]))
    steps = len(result.error)
    assert result.qpos.shape == (steps + 1, 2, 19) and result.qpos.dtype == torch.float64
    assert result.frame.shape == (steps + 1, 2) and result.error.shape == (steps, 2)
    torch.testing.assert_close(result.qpos[0, 0], torch.tensor(motions.motions[0].qpos[95]))
    torch.testing.assert_close(result.qpos[0, 1], torch.tensor(motions.motions[1].qpos[140]))
    assert result.frame[:, 0].tolist()[:5] == [95, 96, 97, 98, 99]


def test_evaluation_is_deterministic_and_has_no_gradients(robot: Robot, motions: MotionSet) -> None:
    env = imitation_env(robot, motions, 3)
    from npmp.envs.features import ReferenceFeatures, true_state

    size = (
        ReferenceFeatures(robot, env.task.reference).size
        + true_state(env.state, env.home).shape[-1]
    )
    torch.manual_seed(0)
    skill = SkillModule(
        SkillContract.for_robot(
            robot,
            NetConfig(latent_dim=4, encoder_width=8, decoder_width=8, lstm_width=8),
            context_size=size,
            context_horizon=5,
        )
    )
    where = torch.tensor([0, 1, 1]), torch.tensor([10, 120, 200])
    first, second = track(skill, env, *where), track(skill, env, *where)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    assert not first.error.requires_grad
