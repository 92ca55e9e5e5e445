"""A toy environment for tests of learners: point masses with a commanded velocity."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from npmp.learning.rl import Learner, Rollout
from npmp.skills.unroll import unroll_lstm

PRIOR = 2.0  # the mean that the toy policy's penalty draws to


class PointMass:
    """B masses in the plane with accelerations limited to 0.3 per step; they reset themselves.

    Observation [B, 5]: velocity, command, and 1 at the first step of an episode. A `blind` policy
    sees the command at that step only and its velocity never: without memory it can do nothing
    after the first step. Reward [B, K]: exp(-|v - v_cmd|^2 / 0.5), and for K = 2 also -0.05 |a|^2.
    An episode is truncated after `length` steps and terminated beyond |v| = 3.
    """

    def __init__(
        self, num: int, seed: int, length: int = 16, blind: bool = False, num_objectives: int = 1
    ):
        self.num = num
        self.length = length
        self.blind = blind
        self.num_objectives = num_objectives
        self.generator = torch.Generator().manual_seed(seed)
        self.velocity, self.command = torch.zeros(num, 2), torch.zeros(num, 2)
        # Episodes start out of step with each other, so that resets fall everywhere in an unroll.
        self.age = torch.randint(length, (num,), generator=self.generator)
        self.first = torch.ones(num, dtype=torch.bool)
        self._reset(self.first)

    def _reset(self, which: Tensor) -> None:
        angle = 2 * math.pi * torch.rand(self.num, generator=self.generator)
        command = torch.stack([angle.cos(), angle.sin()], -1)
        self.command = torch.where(which[:, None], command, self.command)
        self.velocity = torch.where(which[:, None], 0.0, self.velocity)

    def observe(self) -> Tensor:
        first = self.first[:, None].float()
        if self.blind:
            return torch.cat([torch.zeros_like(self.velocity), self.command * first, first], -1)
        return torch.cat([self.velocity, self.command, first], -1)

    def critic_observe(self) -> Tensor:
        return torch.cat([self.velocity, self.command], -1)

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Actions [B, 2] -> rewards [B, K], terminated [B], truncated [B], the critic's successor
        [B, 4]."""
        self.velocity = self.velocity + 0.3 * action.clamp(-1, 1)
        rewards = torch.stack(
            [
                torch.exp(-(self.velocity - self.command).square().sum(-1) / 0.5),
                -0.05 * action.square().sum(-1),
            ],
            -1,
        )[:, : self.num_objectives]
        self.age = self.age + 1
        terminated = self.velocity.norm(dim=-1) > 3
        truncated = (self.age >= self.length) & ~terminated
        successor = self.critic_observe()
        self.first = terminated | truncated
        self.age = torch.where(self.first, 0, self.age)
        self._reset(self.first)
        return rewards, terminated, truncated, successor


class GaussianLSTM(nn.Module):
    """Policy: LSTM on the observation, linear mean, one std per dimension."""

    def __init__(self, num_inputs: int, num_actions: int, hidden: int = 32, std: float = 0.5):
        super().__init__()
        self.hidden = hidden
        self.embed = nn.Linear(num_inputs, hidden)
        self.cell = nn.LSTMCell(hidden, hidden)
        self.mean = nn.Linear(2 * hidden, num_actions)
        self.log_std = nn.Parameter(torch.full((num_actions,), math.log(std)))
        nn.init.zeros_(self.mean.weight)

    def initial_state(self, n: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(n, self.hidden), torch.zeros(n, self.hidden)

    def forward(self, observations, state, resets):
        features = nn.functional.elu(self.embed(observations))
        memory, state = unroll_lstm(self.cell, features, state, resets)
        mean = self.mean(torch.cat([features, memory], -1))
        return mean, self.log_std.exp().expand_as(mean), state, (mean - PRIOR).square().sum(-1)


def collect(world: PointMass, learner: Learner, state, steps: int) -> tuple[Rollout, object]:
    """`steps` steps of the behaviour policy, and the recurrent state after them."""
    rows: list[dict[str, Tensor]] = []
    initial = state
    for _ in range(steps):
        row = {"observations": world.observe(), "critic_observations": world.critic_observe()}
        row["resets"] = world.first
        action, log_prob, state = learner.act(
            row["observations"], state, world.first, world.generator
        )
        names = ("rewards", "terminated", "truncated", "next_observations")
        row |= {"actions": action, "behaviour_log_prob": log_prob}
        rows.append(row | dict(zip(names, world.step(action), strict=True)))
    stacked = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return Rollout(**stacked, initial_state=initial), state
