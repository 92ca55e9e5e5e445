"""Adaptive randomization: ranges follow success, and draws keep within them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.robots import Robot
from npmp.sim.adaptive import AdaptiveConfig, AdaptiveRanges
from npmp.sim.randomization import PhysicsConfig, PushConfig, Spread
from npmp.tasks.walk import Walk, WalkConfig

COLUMNS = {
    "friction": slice(0, 1),
    "joint_offset": slice(1, 4),
    "gain_whole": slice(4, 4),
    "weak_joint": slice(4, 5),
}


def reach(n: int = 10, *, pushes: bool = True, **settings: Any) -> AdaptiveRanges:
    config = AdaptiveConfig(**{"kind": "each", "start": 0.5, "episodes": 4, **settings})
    return AdaptiveRanges(config, COLUMNS, pushes=pushes, num_envs=n, device=torch.device("cpu"))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def note(adaptive: AdaptiveRanges, succeeded: int, failed: int) -> None:
    """Episodes of as many robots."""
    outcome = torch.tensor([True] * succeeded + [False] * failed)
    adaptive.note(torch.arange(len(outcome)), outcome)


def test_one_success_rate_moves_all_ranges_by_hand() -> None:
    """9 of 10 widen by 1.1, 6 of 10 change nothing, 4 of 10 narrow by 0.9; less than ten wait."""
    adaptive = reach(kind="all", episodes=10)
    assert adaptive.names == ("friction", "joint_offset", "pushes")
    note(adaptive, 5, 0)
    assert adaptive.low.tolist() == [0.5] * 3
    note(adaptive, 4, 1)
    assert adaptive.low.tolist() == pytest.approx([0.55] * 3) and torch.equal(
        adaptive.low, adaptive.high
    )
    note(adaptive, 6, 4)
    note(adaptive, 4, 6)
    assert adaptive.high.tolist() == pytest.approx([0.495] * 3)
    for _ in range(20):
        note(adaptive, 10, 0)
    assert adaptive.shares() == {
        "friction": [1.0, 1.0],
        "joint_offset": [1.0, 1.0],
        "pushes": [1.0],
    }
    assert adaptive.logged() == {"range_share": 1.0}
    for _ in range(40):
        note(adaptive, 0, 10)
    assert adaptive.logged()["range_share"] == pytest.approx(0.05)


def test_an_end_moves_by_its_own_episodes() -> None:
    """Ends: friction's lower and upper, both of the joint offsets at once, the upper of pushes."""
    adaptive = reach()
    assert list(zip(adaptive._of.tolist(), adaptive._side.tolist(), strict=True)) == [
        (0, -1),
        (0, 1),
        (1, 0),
        (2, 1),
    ]
    adaptive.end = torch.tensor([0] * 4 + [1] * 3 + [-1] * 3)
    note(adaptive, 0, 10)
    assert (
        adaptive.low.tolist() == pytest.approx([0.45, 0.5, 0.5])
        and adaptive.high.tolist() == [0.5] * 3
    )
    assert adaptive.counted.tolist() == [0, 3, 0, 0]
    adaptive.end = torch.tensor([2] * 4 + [3] * 4 + [-1] * 2)
    note(adaptive, 10, 0)
    expected = {"friction": [0.45, 0.5], "joint_offset": [0.55, 0.55], "pushes": [0.55]}
    assert adaptive.shares() == {name: pytest.approx(ends) for name, ends in expected.items()}
    assert adaptive.logged()["range_share_friction"] == pytest.approx(0.475)


def test_draws_fill_their_reach_and_half_of_them_are_at_an_end() -> None:
    adaptive = reach(4000)
    adaptive.low[0], adaptive.high[0] = 0.2, 0.6
    unit = 2.0 * torch.rand(4000, 5, generator=generator()) - 1.0
    drawn = adaptive.draw(torch.arange(4000), unit, generator())
    free = adaptive.end == -1
    assert free.float().mean().item() == pytest.approx(0.5, abs=0.03)
    friction = drawn[free, 0]
    assert -0.2 <= friction.min() < -0.19 and 0.59 < friction.max() <= 0.6
    assert friction.mean().item() == pytest.approx(0.2, abs=0.02)
    assert (drawn[adaptive.end == 0, 0] == -0.2).all() and (
        drawn[adaptive.end == 1, 0] == 0.6
    ).all()
    offsets = drawn[adaptive.end == 2, 1:4]
    assert (offsets.abs() == 0.5).all() and (offsets > 0).float().mean().item() == pytest.approx(
        0.5, abs=0.05
    )
    assert drawn[adaptive.end != 2, 1:4].abs().max() <= 0.5
    torch.testing.assert_close(drawn[:, 4], unit[:, 4])  # which joint is weak is no range
    sizes = adaptive.pushed(torch.full((4000,), 0.5))
    assert (sizes[adaptive.end == 3] == 0.5).all() and (sizes[adaptive.end != 3] == 0.25).all()


def environment(robot: Robot, **settings: Any) -> TaskEnv[Walk]:
    config = RobotBatchConfig(
        physics=PhysicsConfig(friction=(0.4, 1.0), mass=Spread(0.3, 0.1)),
        pushes=PushConfig(50.0),
        adaptive=AdaptiveConfig(**{"kind": "all", "start": 0.5, "episodes": 4, **settings}),
    )
    walk = Walk(robot, WalkConfig(episode_s=0.1, tilt_limit_deg=170.0))
    return TaskEnv(walk, 4, robots=config, num_threads=1)


def test_episodes_count_where_they_end(robot: Robot) -> None:
    """Robots that stand: after five steps all have succeeded; those that lie down have failed."""
    env = environment(robot)
    adaptive = env.robots.adaptive
    assert adaptive is not None and adaptive.counted.item() == 0.0  # to begin is not to end
    env.age.zero_()
    for _ in range(5):
        step = env.step(torch.zeros(4, 12))
        env.reset(step.terminated | step.truncated)
    assert (
        adaptive.high.tolist() == pytest.approx([0.55] * 4)
        and env.robots.randomizer.unit.abs().max() <= 0.55
    )
    env.reset()  # in the middle of an episode: it is not over
    assert adaptive.counted.item() == 0.0
    env._over[:], env._failed[:] = True, True
    env.reset(torch.ones(4, dtype=torch.bool))
    assert adaptive.high.tolist() == pytest.approx([0.495] * 4)


def test_what_was_reached_is_in_checkpoints(robot: Robot) -> None:
    env, other = environment(robot, kind="each"), environment(robot, kind="each")
    env.robots.adaptive.low[1] = 0.7
    env.robots.adaptive.counted[0] = 3.0
    other.load_state_dict(env.state_dict())
    assert (
        other.robots.adaptive.shares()
        == env.robots.adaptive.shares()
        != environment(robot).robots.adaptive.shares()
    )
    assert (
        torch.equal(other.robots.adaptive.end, env.robots.adaptive.end)
        and other.robots.adaptive.counted[0] == 3.0
    )
    plain = TaskEnv(env.task, 4, robots=env.robots.config.whole(), num_threads=1)
    assert plain.robots.adaptive is None and not any(
        "adaptive" in name for name in plain.state_dict()
    )
    with pytest.raises(ValueError, match="without these adaptive ranges"):
        other.load_state_dict(plain.state_dict())


def test_settings_are_checked() -> None:
    for wrong in (
        {"kind": "some"},
        {"start": 0.01},
        {"below": 0.9},
        {"widen": 0.9},
        {"episodes": 0},
        {"least": 0.0},
    ):
        with pytest.raises(ValueError, match="must"):
            AdaptiveConfig(**wrong)
    assert (
        replace(RobotBatchConfig(), adaptive=AdaptiveConfig(kind="all")).whole()
        == RobotBatchConfig()
    )
