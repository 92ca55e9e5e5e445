"""The replay, filled with data that says where it comes from."""

from __future__ import annotations

import pytest
import torch

from mocap_data.errors import InputError
from npmp import checkpoint
from npmp.world_model.replay import Replay

ENVS = 3
SIZES = {
    "state": 2,
    "setpoint": 1,
    "z": 1,
    "hidden": 1,
    "cell": 1,
    "physics": 2,
    "joint_offset": 0,
    "history": 3,
}


def filled(capacity: int, steps: int, first: dict[int, set[int]] | None = None) -> Replay:
    """Every entry is 1000 t + robot; `first`: robots whose episode begins at a step (all at step
    0)."""
    replay = Replay(capacity, ENVS, SIZES)
    for t in range(steps):
        add(replay, t, (first or {}).get(t, set()) if t else set(range(ENVS)))
    return replay


def add(replay: Replay, t: int, first: set[int]) -> None:
    tag = 1000.0 * t + torch.arange(ENVS)
    begins = torch.tensor([robot in first for robot in range(ENVS)])
    floats = {k: tag.unsqueeze(-1).expand(ENVS, n) for k, n in SIZES.items()}
    replay.add(tag.long(), tag.long() + 7, begins, **floats)


def time_and_robot(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return values.long() // 1000, values.long() % 1000


def test_a_window_counts_all_heights_from_where_it_began() -> None:
    """Ground at 2 m + 0.1 m a step + 1 cm a foot, robots 0.5 m above 2 m + 0.1 m a step, which is
    its level."""
    replay = Replay(20, ENVS, {"state": 3, "setpoint": 1, "physics": 1, "patch": 2, "ground": 4})
    for t in range(20):
        level = torch.full((ENVS, 1), 2.0 + 0.1 * t)
        states = torch.cat((torch.zeros(ENVS, 2), level + 0.5), -1)
        ground = level + torch.arange(4.0) / 100.0
        floats = {
            "setpoint": level,
            "physics": 0.0 * level,
            "patch": level.expand(-1, 2),
            "ground": ground,
        }
        nowhere = torch.zeros(ENVS, dtype=torch.long)
        replay.add(nowhere, nowhere, torch.full((ENVS,), t == 0), state=states, **floats)
    window = replay.windows(50, 5, torch.Generator().manual_seed(0))
    climbed = 0.1 * torch.arange(6.0).view(6, 1).expand(6, 50)
    torch.testing.assert_close(window.states[..., 2], 0.5 + climbed, atol=1e-5, rtol=0)
    wanted = climbed[:-1, :, None] + torch.arange(4.0) / 100.0
    torch.testing.assert_close(window.physics[..., 1:], wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("capacity", "steps"), [(50, 20), (50, 50), (20, 33), (20, 20), (20, 107)])
def test_windows_are_successive_steps_of_one_robot(capacity: int, steps: int) -> None:
    replay = filled(capacity, steps)
    assert len(replay) == min(capacity, steps) * ENVS
    window = replay.windows(500, 8, torch.Generator().manual_seed(0))
    assert (
        window.states.shape == (9, 500, 2)
        and window.setpoints.shape == (8, 500, 1)
        and window.valid.shape == (8, 500)
    )
    time, robot = time_and_robot(window.states[..., 0])
    assert torch.equal(time, time[:1] + torch.arange(9).unsqueeze(-1))
    assert torch.equal(robot, robot[:1].expand(9, 500))
    # what was done in the state it was done in
    assert torch.equal(window.setpoints[..., 0], window.states[:-1, :, 0])
    # all that is kept, and no more
    assert time.min() == max(0, steps - capacity) and time.max() == steps - 1
    assert set(robot[0].tolist()) == set(range(ENVS))
    assert torch.equal(window.physics[..., 0], window.setpoints[..., 0])  # drawn then and there
    assert window.valid.all()


@pytest.mark.parametrize(("capacity", "steps"), [(50, 40), (20, 57)])
def test_windows_never_cross_into_another_episode(capacity: int, steps: int) -> None:
    """Robot 1 begins anew at steps 38, 45 and 50, robot 2 at step 30: whatever would lead there is
    masked, and all after it."""
    begins = {30: {2}, 38: {1}, 45: {1}, 50: {1}}
    window = filled(capacity, steps, begins).windows(2000, 8, torch.Generator().manual_seed(0))
    time, robot = time_and_robot(window.states[..., 0])
    for column in range(2000):
        robot_here, start = int(robot[0, column]), int(time[0, column])
        later = [t for t, who in begins.items() if robot_here in who and t > start]
        # transitions before the one that a reset swallowed
        sound = (min(later) - start - 1) if later else 8
        assert window.valid[:, column].tolist() == [1.0] * min(sound, 8) + [0.0] * (
            8 - min(sound, 8)
        )


def test_starts_are_whole_moments() -> None:
    start = filled(20, 33).starts(1000, torch.Generator().manual_seed(0))
    for values in (start.state[:, 0], start.z[:, 0], start.hidden[:, 0], start.cell[:, 0]):
        assert torch.equal(values.long(), start.frame)
    assert torch.equal(start.last_frame, start.frame + 7)
    time, _ = time_and_robot(start.frame)
    assert time.min() == 13 and time.max() == 32


@pytest.mark.parametrize(("capacity", "steps"), [(50, 20), (20, 33)])
def test_stretches_are_successive_moments(capacity: int, steps: int) -> None:
    """Robot 1 begins anew at step 17. The last moment may be the latest there is, the first the
    oldest."""
    stretch, first = filled(capacity, steps, {17: {1}}).stretches(
        1000, 4, torch.Generator().manual_seed(0)
    )
    assert stretch.state.shape == (5, 1000, 2) and first.shape == (5, 1000)
    time, robot = time_and_robot(stretch.frame)
    assert torch.equal(time, time[:1] + torch.arange(5).unsqueeze(-1)) and torch.equal(
        robot, robot[:1].expand(5, 1000)
    )
    for values in (stretch.z, stretch.hidden, stretch.cell):
        assert torch.equal(values[..., 0].long(), stretch.frame)
    assert torch.equal(first, ((time == 17) & (robot == 1)) | (time == 0))
    assert time.min() == max(0, steps - capacity) and time.max() == steps - 1


@pytest.mark.parametrize("steps", [12, 20, 33])
def test_a_restored_ring_goes_on_as_if_nothing_had_happened(steps: int) -> None:
    replay, other = filled(20, steps), Replay(20, ENVS, SIZES)
    other.load_state_dict({k: v.clone() for k, v in replay.state_dict().items()})
    for t in range(steps, steps + 9):
        for r in (replay, other):
            add(r, t, {1} if t == steps + 2 else set())
    a, b = (r.windows(200, 4, torch.Generator().manual_seed(1)) for r in (replay, other))
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x, y)


def test_a_replay_of_another_shape_is_refused() -> None:
    state = filled(20, 20).state_dict()
    with pytest.raises(ValueError, match="does not fit"):
        Replay(10, ENVS, SIZES).load_state_dict(state)
    with pytest.raises(ValueError, match="expected"):
        Replay(20, ENVS + 1, SIZES).load_state_dict(state)


def test_starts_of_robots_that_have_reference_left() -> None:
    """Robot 1 has none; robot 2 from step 30 on. Every other moment is drawn, and nothing else."""
    replay = Replay(40, ENVS, SIZES)
    frame = torch.zeros(ENVS, dtype=torch.long)
    for t in range(55):
        ends = torch.tensor([99, t, 99 if t < 30 else t])
        replay.add(
            frame + t,
            ends,
            torch.zeros(ENVS, dtype=torch.bool),
            **{k: torch.zeros(ENVS, v) for k, v in SIZES.items()},
        )
    start = replay.starts(2000, torch.Generator().manual_seed(0), tracking=True)
    assert bool((start.frame < start.last_frame).all())
    assert len(torch.unique(start.frame)) == 40
    # of 15 such steps two robots track, of the 25 later ones one
    early = (start.frame < 30).float().mean()
    assert early.item() == pytest.approx(30 / 55, abs=0.04)
    stretch, _ = replay.stretches(2000, 6, torch.Generator().manual_seed(0), tracking=True)
    assert bool((stretch.frame[-1] < stretch.last_frame[-1]).all())
    assert stretch.frame[0].min() == 15 and stretch.frame[-1].max() == 54
    assert torch.equal(stretch.frame, stretch.frame[:1] + torch.arange(7).unsqueeze(-1))
    for _ in range(40):
        replay.add(
            frame,
            frame,
            torch.zeros(ENVS, dtype=torch.bool),
            **{k: torch.zeros(ENVS, v) for k, v in SIZES.items()},
        )
    # nobody tracks: any moment
    assert len(replay.starts(5, torch.Generator(), tracking=True).frame) == 5


def test_a_share_of_starts_is_where_episodes_began() -> None:
    """Of 30 steps of three robots: at 12 an episode of robot 1 begins, at 20 robot 2 is sent
    elsewhere with what it remembers."""
    replay = Replay(20, ENVS, SIZES)
    for t in range(30):
        first = torch.tensor([False, t == 12, t == 20])
        memory = {k: torch.ones(ENVS, v) for k, v in SIZES.items()}
        memory["hidden"][1] *= float(t != 12)
        replay.add(torch.arange(ENVS), torch.full((ENVS,), t), first, **memory)
    generator = torch.Generator().manual_seed(0)
    start = replay.starts(400, generator, fresh=100)
    assert torch.equal(start.last_frame[:100], torch.full((100,), 12)) and bool(
        (start.frame[:100] == 1).all()
    )
    assert len(torch.unique(start.last_frame[100:])) == 20
    for t in range(20):
        replay.add(
            torch.arange(ENVS),
            torch.full((ENVS,), t),
            torch.zeros(ENVS, dtype=torch.bool),
            **memory,
        )
    # none began: any moment
    assert len(torch.unique(replay.starts(400, generator, fresh=400).last_frame)) == 20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("head", torch.tensor(99)),
        ("head", torch.tensor(-1)),
        ("head", torch.tensor(3)),
        ("head", torch.tensor([1, 2])),
        ("head", torch.tensor(0.5)),
        ("frame", torch.full((12, ENVS), 10**6)),
        ("last_frame", torch.full((12, ENVS), -1)),
        ("frame", torch.zeros(12, ENVS)),
        ("first", torch.zeros(12, ENVS)),
        ("floats.state", torch.zeros(12, ENVS, 2, dtype=torch.long)),
        ("floats.state", torch.zeros(12)),
        ("floats.odd", torch.zeros(12)),
    ],
)
def test_slots_that_no_run_wrote_are_refused_and_change_nothing(
    name: str, value: torch.Tensor
) -> None:
    state = filled(20, 12).state_dict()
    replay = Replay(20, ENVS, SIZES)
    with checkpoint.restoring():
        replay.load_state_dict(state)
    other = Replay(20, ENVS, SIZES, frames=100_000)
    with (
        pytest.raises(InputError, match="the checkpoint is of another kind of run"),
        checkpoint.restoring(),
    ):
        other.load_state_dict(state | {name: value})
    assert other.filled == 0 and bool((other.floats["state"] == 0).all())
