"""The one closed loop: which robots are reset when, what is carried on, and what a recorder is
shown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npmp.envs import EnvStep
from npmp.envs.policy import Observation, PolicyOutput
from npmp.envs.rollout import RolloutState, Transition, rollout


class Memory(NamedTuple):
    count: Tensor  # (n,) decisions made in this episode


class Counter:
    """Acts by how often it has acted in the episode."""

    def initial_state(self, n: int) -> Memory:
        return Memory(torch.zeros(n))

    def step(self, observation: Observation, state: Memory) -> tuple[PolicyOutput, Memory]:
        # an episode's first step has an empty memory, no other has
        assert torch.equal(observation.is_first, state.count == 0)
        return PolicyOutput(state.count.unsqueeze(-1)), Memory(state.count + 1)


class Toy:
    """Robot i fails in its (i + 2)nd step, and runs out of time in its third."""

    num_envs, device = 3, torch.device("cpu")
    task, state = SimpleNamespace(observe=lambda: torch.zeros(3, 0)), None

    def __init__(self) -> None:
        self.age, self.resets = torch.zeros(3, dtype=torch.long), []  # type: ignore[var-annotated]

    def observe(self) -> Tensor:
        return torch.zeros(3, 1)

    def step(self, action: Tensor) -> EnvStep:
        self.age = self.age + 1
        failed = self.age == torch.tensor([2, 3, 4])
        state: Any = SimpleNamespace(age=self.age)
        return EnvStep(
            state,
            action,
            failed,
            (self.age == 3) & ~failed,
            torch.zeros(3),
            torch.zeros(3, dtype=torch.bool),
            {},
        )

    def reset(self, mask: Tensor) -> None:
        self.resets.append(mask.tolist())
        self.age = self.age.masked_fill(mask, 0)


def play(
    env: Toy, steps: int, carried: RolloutState | None = None, **options: Any
) -> tuple[list[list[float]], RolloutState]:
    actions: list[list[float]] = []

    def record(moment: Transition) -> None:
        assert moment.step.state.age is env.age  # before anybody is reset
        actions.append(moment.output.action.squeeze(-1).tolist())

    env_: Any = env
    carried = rollout(Counter(), env_, steps, record, carried=carried, **options)
    return actions, carried


def test_memories_are_emptied_where_episodes_end_and_only_there() -> None:
    """By failure in steps 2, 4 (robot 0), 3 (1); robot 2 is out of time in step 3, a step before it
    would fail."""
    env = Toy()
    actions, _ = play(env, 5)
    assert actions == [[0, 0, 0], [1, 1, 1], [0, 2, 2], [1, 0, 0], [0, 1, 1]]
    assert env.resets == [
        [False] * 3,
        [True, False, False],
        [False, True, True],
        [True, False, False],
        [False] * 3,
    ]


def test_two_rollouts_are_one() -> None:
    whole, _ = play(Toy(), 5)
    env = Toy()
    first, carried = play(env, 2)
    second, _ = play(env, 3, carried)
    assert first + second == whole


def test_a_recorder_ends_the_rollout() -> None:
    env: Any = Toy()
    carried = rollout(Counter(), env, 9, lambda moment: bool(env.age[1] == 2))
    # robot 0 failed in that step and has begun anew
    assert carried.policy.count.tolist() == [0, 2, 2]
