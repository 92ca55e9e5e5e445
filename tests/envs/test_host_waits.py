"""On a GPU a control step asks the device for no value; a reset asks for the number of robots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mocap_data.ground_profile import GroundProfile
from mocap_data.store import MotionSet
from npmp.core import host_waits
from npmp.envs import TaskEnv, robot_batch
from npmp.learning.exploration import Redirection
from npmp.robots import Robot
from tests.environments import imitation_env, walk_env

# operations whose result the host reads, or whose size it needs
WAITING = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal.",
    "unique",
    "_linalg_check_errors",
)


class Waits(TorchDispatchMode):
    """Names of the operations that would wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        by_mask = "index" in name and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool
            for arg in args
            if isinstance(arg, list | tuple)
            for index in arg
        )
        if by_mask or any(part in name for part in WAITING):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def asynchronous(monkeypatch: pytest.MonkeyPatch) -> None:
    """The branches for a GPU."""
    for module in (host_waits, robot_batch):
        monkeypatch.setattr(module, "is_asynchronous", lambda device: True)


def environments(robot: Robot, motions: MotionSet) -> list[TaskEnv[Any]]:
    rough = {"terrain": "perlin", "terrain_fields": 2}
    return [
        imitation_env(robot, motions, 3),
        imitation_env(robot, over_steps(motions), 3),
        walk_env(robot, 3),
        walk_env(robot, 3, **rough),
    ]


def over_steps(motions: MotionSet) -> MotionSet:
    """The motions 5 cm higher, on blocks that nearly touch."""
    ground = GroundProfile(np.tile([0.0, *19 * [0.05]], 8))
    raised = np.eye(motions.motions[0].qpos.shape[1])[2] * 0.05
    higher = [replace(m, qpos=m.qpos + raised, ground=ground) for m in motions.motions]
    return replace(motions, motions=tuple(higher))


def test_a_step_waits_for_nothing(robot: Robot, motions: MotionSet, asynchronous: None) -> None:
    for env in environments(robot, motions):
        env.step(torch.zeros(3, 12))
        with Waits() as waits:
            env.observe()
            step = env.step(torch.zeros(3, 12))
        assert waits.names == []
        with Waits() as waits:
            env.reset(step.terminated | True)
        assert waits.names == ["aten.nonzero.default"]


def test_other_goals_wait_for_nothing(robot: Robot, motions: MotionSet, asynchronous: None) -> None:
    """Robots that change to another frame, and the others."""
    env = imitation_env(robot, over_steps(motions), 64)
    before = env.task.tracking.frame.clone()
    generator = torch.Generator().manual_seed(0)
    redirect = Redirection(env, generator, prior_share=0.0, prior_steps=1, rejoin_rate=25.0)
    with Waits() as waits:
        changed = redirect(torch.zeros(64, dtype=torch.bool))
    assert waits.names == []
    assert 16 < changed.sum() < 48
    assert torch.equal(env.task.tracking.frame[~changed], before[~changed])
    assert not torch.equal(env.task.tracking.frame, before)


def test_both_branches_step_alike(
    robot: Robot, motions: MotionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a simulation breaks down; on a GPU it is counted only."""
    ends = []
    for waits in (True, False):
        if not waits:
            for module in (host_waits, robot_batch):
                monkeypatch.setattr(module, "is_asynchronous", lambda device: True)
        env = imitation_env(robot, motions, 3)
        env.robots.sim.qvel[1, 2] = 1e5
        step = env.step(torch.zeros(3, 12))
        ends.append(step.state.pack())
        assert step.terminated[1]
        assert env.robots.lost == 1
        assert len(env.robots.breakdowns) == waits
        env.robots.clear_breakdowns()
        assert env.robots.lost == 0
    assert torch.equal(*ends)


def test_constants_are_copied_once() -> None:
    cpu = torch.device("cpu")
    value = host_waits.constant([[0.0, 1.0], [2.0, 3.0]], cpu)
    assert value.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert host_waits.constant(((0.0, 1.0), (2.0, 3.0)), cpu) is value
    assert host_waits.constant((0.5,), cpu, torch.float64).dtype == torch.float64
