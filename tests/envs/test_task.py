"""Reward terms: their weights, and terms that a caller adds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp.core.settings import changed
from npmp.envs import TaskEnv
from npmp.envs.state import RobotState
from npmp.envs.task import Term
from npmp.robots import Robot
from npmp.tasks import Walk, WalkConfig

RANGE = ((0.5, 0.5), (0.0, 0.0), (0.0, 0.0))


def missing(state: RobotState, goal: Tensor) -> Tensor:
    """Commanded minus forward velocity [m/s]."""
    return goal[..., 0] - state.root_vel[..., 0]


@pytest.fixture
def walk(robot: Robot) -> Walk:
    """Commanded to walk at 0.5 m/s."""
    return Walk(robot, changed(WalkConfig(), command_range=RANGE))


def at_speed(env: TaskEnv[Walk], *speeds: float) -> RobotState:
    """The state of all robots, with forward velocities (H,): (H, n, ...)."""
    state = RobotState(*(part.expand(len(speeds), *part.shape).clone() for part in env.state))
    state.root_vel.zero_()
    state.root_vel[..., 0] = torch.tensor(speeds).unsqueeze(-1)
    return state


def test_weights_of_simulated_states(walk: Walk) -> None:
    task = walk.with_rewards([Term(missing, 0.2)], {"velocity": 0.1})
    TaskEnv(task, 2, num_threads=1)
    assert task.objectives == ("velocity", "missing")
    # eq. 16 of a robot at rest: exp(-0.5^2 / 0.5); 0.2 (0.5 - 0)
    expected = torch.tensor([0.1 * math.exp(-0.5), 0.1])
    torch.testing.assert_close(task.evaluate_step().rewards, expected.expand(2, 2))


def test_weights_of_imagined_states(walk: Walk) -> None:
    task = walk.with_rewards([Term(missing, 0.2)], {"velocity": 0.1})
    env = TaskEnv(walk, 3, num_threads=1)
    same = TaskEnv(task, 3, num_threads=1)
    states = at_speed(env, 0.1, 0.3)
    goals = torch.tensor([0.5, 0.0, 0.0]).expand(2, 3, 3)
    flat = torch.zeros(3, 0)
    own = walk.imagined_loss(states, states, goals, flat)
    loss = same.task.imagined_loss(states, states, goals, flat)
    # of the one term that it stands for, minus 0.2 times the mean of 0.4 and 0.2
    torch.testing.assert_close(loss.task, 0.1 * own.task - 0.06)
    assert torch.equal(loss.style, own.style)


def test_names(walk: Walk) -> None:
    for terms in ([Term(missing, name="velocity")], [Term(missing), Term(missing)]):
        with pytest.raises(InputError, match="two terms"):
            walk.with_rewards(terms)
    with pytest.raises(InputError, match=r"task\.rewards\.speed: .*available: velocity"):
        walk.with_rewards(weights={"speed": 1.0})
    with pytest.raises(InputError, match="'missing'"):
        Term("missing", missing)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="needs a name"):
        Term(lambda state, goal: goal[..., 0])
