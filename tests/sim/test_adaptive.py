"""Adaptive randomization: ranges follow success, and draws keep within them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from mocap_data.errors import InputError
from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.robots import Robot
from npmp.sim.adaptive import AdaptiveConfig, AdaptiveRanges
from npmp.sim.randomization import PhysicsConfig, PushConfig, Spread
from npmp.tasks.walk import Walk, WalkConfig

COLUMNS = {"friction": slice(0, 1), "gain_whole": slice(1, 1), "weak_joint": slice(1, 2)}


def adaptive_ranges(columns: dict[str, slice] = COLUMNS, *, pushes: bool = True) -> AdaptiveRanges:
    config = AdaptiveConfig("all", start=0.5, episodes=10)
    return AdaptiveRanges(config, columns, pushes=pushes, device=torch.device("cpu"))


def test_one_success_rate_moves_all_ranges_by_hand() -> None:
    """9 of 10 widen by 1.1, 6 of 10 change nothing, 4 of 10 narrow by 0.9; less than ten wait."""
    adaptive = adaptive_ranges()

    def after(succeeded: int, failed: int) -> float:
        adaptive.note(torch.tensor([True] * succeeded + [False] * failed))
        return adaptive.logged()["range_share"]

    assert after(5, 0) == 0.5
    assert after(4, 1) == pytest.approx(0.55)
    assert after(6, 4) == pytest.approx(0.55)
    assert after(4, 6) == pytest.approx(0.495)
    assert [after(10, 0) for _ in range(20)][-1] == 1.0
    assert [after(0, 10) for _ in range(40)][-1] == pytest.approx(0.05)


def test_draws_fill_the_share_but_for_what_chooses() -> None:
    adaptive = adaptive_ranges()
    unit = torch.tensor([[-1.0, 1.0], [0.5, -0.5]])
    assert adaptive.draw(unit).tolist() == [[-0.5, 1.0], [0.25, -0.5]]
    with pytest.raises(InputError, match="nothing is drawn"):
        adaptive_ranges({"weak_joint": slice(0, 1)}, pushes=False)


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
    # to begin is not to end
    assert adaptive is not None and adaptive.counted.item() == 0.0
    env.age.zero_()
    for _ in range(5):
        step = env.step(torch.zeros(4, 12))
        env.reset(step.terminated | step.truncated)
    assert adaptive.share.item() == pytest.approx(0.55)
    assert env.robots.randomizer.unit.abs().max() <= 0.55
    # in the middle of an episode: it is not over
    env.reset()
    assert adaptive.counted.item() == 0.0
    env._over[:], env._failed[:] = True, True
    env.reset(torch.ones(4, dtype=torch.bool))
    assert adaptive.share.item() == pytest.approx(0.495)


def test_the_share_is_in_checkpoints(robot: Robot) -> None:
    env, other = environment(robot), environment(robot)
    adaptive, again = env.robots.adaptive, other.robots.adaptive
    assert adaptive is not None and again is not None
    adaptive.share.fill_(0.7)
    adaptive.counted.fill_(3.0)
    other.load_state_dict(env.state_dict())
    assert again.logged() == {"range_share": pytest.approx(0.7)} and again.counted == 3.0
    plain = TaskEnv(env.task, 4, robots=env.robots.config.whole(), num_threads=1)
    assert plain.robots.adaptive is None
    assert not any("adaptive" in name for name in plain.state_dict())
    with pytest.raises(ValueError, match="without these adaptive ranges"):
        other.load_state_dict(plain.state_dict())


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "some"},
        {"start": 0.01},
        {"below": 0.9},
        {"widen": 0.9},
        {"episodes": 0},
        {"least": 0.0},
    ],
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        AdaptiveConfig(**wrong)


def test_evaluation_draws_from_the_whole_ranges() -> None:
    adapting = replace(RobotBatchConfig(), adaptive=AdaptiveConfig(kind="all"))
    assert adapting.whole() == RobotBatchConfig()
