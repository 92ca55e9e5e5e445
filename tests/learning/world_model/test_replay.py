"""The replay buffer, filled with data that encodes time and robot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp.core import checkpoint
from npmp.core.tree import leaves
from npmp.learning.world_model import replay as replay_module
from npmp.learning.world_model.replay import ReplayBuffer, Step
from npmp.skills.nets import DecoderState

ENVS = 3
NONE = torch.zeros(ENVS, dtype=torch.bool)


def step(t: float = 0.0, n: int = ENVS, **change: Any) -> Step:
    """Every entry is 1000 t + robot."""
    tag = (1000.0 * t + torch.arange(float(n))).unsqueeze(-1)
    whole = Step(*[tag[:, :0]] * len(Step._fields))._replace(
        is_first=torch.zeros(n, dtype=torch.bool),
        free=torch.zeros(n, dtype=torch.bool),
        state=tag.expand(n, 3),
        setpoint=tag,
        physics=tag.expand(n, 2),
        currents=tag,
        history=tag.expand(n, 3),
        z=tag,
        decoder=DecoderState(tag, tag),
        policy=(),
        goal=tag,
    )
    return whole._replace(**change)


def among(*robots: int) -> Tensor:
    return torch.tensor([robot in robots for robot in range(ENVS)])


def filled(capacity: int, steps: int, first: dict[int, set[int]] | None = None) -> ReplayBuffer:
    """`first`: robots whose episode begins at a step (all at step 0)."""
    replay = ReplayBuffer(capacity, step())
    for t in range(steps):
        begins = among(*(first or {}).get(t, set())) if t else ~NONE
        replay.add(step(t, is_first=begins))
    return replay


def time_and_robot(values: Tensor) -> tuple[Tensor, Tensor]:
    return values.long() // 1000, values.long() % 1000


def test_heights_of_a_window_are_relative_to_its_start() -> None:
    """Ground at 2 m + 0.1 m a step + 1 cm a foot, robots 0.5 m above 2 m + 0.1 m a step, which is
    its level."""

    def climbing(t: float) -> Step:
        level = torch.full((ENVS, 1), 2.0 + 0.1 * t)
        states = torch.cat((torch.zeros(ENVS, 2), level + 0.5), -1)
        ground = level + torch.arange(4.0) / 100.0
        return step(
            state=states, physics=0.0 * level, patch=level.repeat(1, 2), ground=ground, z=level
        )

    replay = ReplayBuffer(20, climbing(0))
    for t in range(20):
        replay.add(climbing(t)._replace(is_first=torch.full((ENVS,), t == 0)))
    window = replay.windows(50, 5, torch.Generator().manual_seed(0))
    climbed = 0.1 * torch.arange(6.0).view(6, 1).expand(6, 50)
    torch.testing.assert_close(window.states[..., 2], 0.5 + climbed, atol=1e-5, rtol=0)
    expected = climbed[:-1, :, None] + torch.arange(4.0) / 100.0
    torch.testing.assert_close(window.physics[..., 1:], expected, atol=1e-5, rtol=0)
    start = replay.starts(50, torch.Generator().manual_seed(0))
    torch.testing.assert_close(start.state[:, 2], torch.full((50,), 0.5))


@pytest.mark.parametrize(("capacity", "steps"), [(50, 20), (50, 50), (20, 33), (20, 107)])
def test_windows_are_consecutive_steps_of_one_robot(capacity: int, steps: int) -> None:
    window = filled(capacity, steps).windows(500, 8, torch.Generator().manual_seed(0))
    assert window.states.shape == (9, 500, 3) and window.valid.shape == (8, 500)
    time, robot = time_and_robot(window.states[..., 0])
    assert torch.equal(time, time[:1] + torch.arange(9).unsqueeze(-1))
    assert torch.equal(robot, robot[:1].expand(9, 500))
    assert torch.equal(window.setpoints[..., 0], window.states[:-1, :, 0])
    assert torch.equal(window.physics[..., 0], window.setpoints[..., 0])
    assert torch.equal(window.currents[..., 0], window.states[1:, :, 0])
    assert time.min() == max(0, steps - capacity) and time.max() == steps - 1
    assert set(robot[0].tolist()) == set(range(ENVS)) and window.valid.all()


@pytest.mark.parametrize(("capacity", "steps"), [(50, 40), (20, 57)])
def test_windows_are_masked_after_an_episode(capacity: int, steps: int) -> None:
    """Episodes of robot 1 begin at steps 38, 45 and 50, of robot 2 at step 30."""
    begins = {30: {2}, 38: {1}, 45: {1}, 50: {1}}
    window = filled(capacity, steps, begins).windows(2000, 8, torch.Generator().manual_seed(0))
    time, robot = time_and_robot(window.states[..., 0])
    for column in range(2000):
        here, start = int(robot[0, column]), int(time[0, column])
        later = [t for t, robots in begins.items() if here in robots and t > start]
        # transitions before the masked one
        num_valid = min((min(later) - start - 1) if later else 8, 8)
        assert window.valid[:, column].tolist() == [1.0] * num_valid + [0.0] * (8 - num_valid)


def test_starts_are_whole_steps() -> None:
    start = filled(20, 33).starts(1000, torch.Generator().manual_seed(0))
    for values in (start.z, start.goal, *start.decoder):
        assert torch.equal(values[:, 0], start.state[:, 0])
    time, _ = time_and_robot(start.z)
    assert time.min() == 13 and time.max() == 32


@pytest.mark.parametrize("steps", [12, 20, 33])
def test_a_restored_ring_continues_equally(steps: int) -> None:
    replay, other = filled(20, steps), ReplayBuffer(20, step())
    other.load_state_dict({k: v.clone() for k, v in replay.state_dict().items()})
    for t in range(steps, steps + 9):
        for ring in (replay, other):
            ring.add(step(t, is_first=among(1) if t == steps + 2 else NONE))
    windows = (r.windows(200, 4, torch.Generator().manual_seed(1)) for r in (replay, other))
    for one, two in zip(*windows, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_starts_of_robots_with_a_goal(asynchronous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Robot 1 is free, robot 2 from step 30 on: all other steps are sampled; on a GPU, too."""
    monkeypatch.setattr(replay_module, "is_asynchronous", lambda device: asynchronous)
    replay = ReplayBuffer(40, step())
    for t in range(55):
        replay.add(step(t, free=among(1) if t < 30 else among(1, 2)))
    start = replay.starts(2000, torch.Generator().manual_seed(0), free=False)
    assert not start.free.any()
    time, _ = time_and_robot(start.z)
    assert len(torch.unique(time)) == 40
    # of 15 such steps two robots track, of the 25 later ones one
    assert (time < 30).float().mean().item() == pytest.approx(30 / 55, abs=0.04)
    for t in range(40):
        replay.add(step(t, free=~NONE))
    # all are free: any step
    assert len(replay.starts(5, torch.Generator(), free=False).z) == 5


def test_fresh_starts_are_starts_of_episodes() -> None:
    """At step 12 an episode of robot 1 begins, at 20 robot 2 gets a new goal and keeps its
    recurrent state."""
    replay, ones = ReplayBuffer(20, step()), torch.ones(ENVS, 1)
    for t in range(30):
        first = {12: among(1), 20: among(2)}.get(t, NONE)
        empty = (~among(1)).float().unsqueeze(-1) if t == 12 else ones
        replay.add(step(t, is_first=first, decoder=DecoderState(empty, ones)))
    generator = torch.Generator().manual_seed(0)
    start = replay.starts(400, generator, fresh=100)
    time, robot = time_and_robot(start.z[:, 0])
    assert bool((time[:100] == 12).all()) and bool((robot[:100] == 1).all())
    assert len(torch.unique(time[100:])) == 20
    for t in range(30, 50):
        replay.add(step(t))
    # no start: any step
    assert len(torch.unique(replay.starts(400, generator, fresh=400).z)) > 40


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("head", torch.tensor(3)),
        ("steps.is_first", torch.zeros(21, ENVS, dtype=torch.bool)),
        ("steps.state", torch.zeros(12)),
    ],
)
def test_slots_of_another_buffer_are_refused_and_change_nothing(name: str, value: Tensor) -> None:
    state, other = filled(20, 12).state_dict(), ReplayBuffer(20, step())
    with pytest.raises(InputError), checkpoint.restoring():
        other.load_state_dict(state | {name: value})
    assert not any(bool(leaf.any()) for leaf in leaves(other.steps))
