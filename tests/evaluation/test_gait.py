"""Figures of gait: swings, phases and limits by hand, and rows per command."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mocap_data.store import MotionSet
from npmp.envs.features import ReferenceFeatures
from npmp.envs.reference import Reference
from npmp.envs.task import Trial
from npmp.evaluation import gait
from npmp.evaluation.gait import (
    FootMotion,
    faults,
    gait_metrics,
    standing_metrics,
    swings,
    worst_foot,
)
from npmp.evaluation.policy import add_references, command_grid, evaluate_commands, lead_in
from npmp.evaluation.trial import run_trial
from npmp.robots import Robot, load
from npmp.skills.composition import Composition, wandering
from npmp.skills.nets import NetConfig
from npmp.skills.skill_module import SkillModule
from npmp.tasks.walk import WalkConfig
from tests.environments import walk_env

DT = 0.02


def series(*stretches: tuple[float, int]) -> np.ndarray:
    """Heights (T, 1) [m]: each for so many steps."""
    return np.concatenate([np.full(steps, height) for height, steps in stretches])[:, None]


def test_a_swing_is_complete_and_valid() -> None:
    height = series((0.03, 4), (0.0, 3), (0.02, 5), (0.0, 2), (0.01, 2), (0.0, 3), (0.04, 3))
    height[8] = 0.05
    usable = np.ones(height.shape, bool)
    peaks, where = swings(height, usable, DT)
    # the first and the last are cut, that of two steps is a bounce
    assert peaks.tolist() == [0.05] and where[:, 0].tolist() == [7, 11, 0]
    usable[12] = False  # the step in which it touches down
    assert not len(swings(height, usable, DT)[0])


def stepping(phases: list[float], *, seconds: float = 4.0, period: float = 0.5) -> FootMotion:
    """Feet that swing for 40 % of a stride from their phase on, rising by 3 cm, at 1 m/s; they
    stand at 0.1 m/s. Two robots, half a stride apart."""
    t = np.arange(round(seconds / DT))[:, None, None] * DT
    robot = np.array([0.0, 0.5])[None, :, None]
    share = (t / period + robot - np.array(phases)) % 1.0
    up = share < 0.4
    height = np.where(up, 0.03 * np.sin(np.pi * share / 0.4) + 0.006, 0.0)
    return FootMotion(height, np.where(up, 1.0, 0.1), np.ones(height.shape[:2], bool), DT)


def test_figures_of_a_trot_and_of_a_walk_by_hand() -> None:
    pairs = [(0, 3), (1, 2)]
    trot = gait_metrics(stepping([0.0, 0.5, 0.5, 0.0]), pairs)
    assert trot["opposite_correlation"] == pytest.approx(1.0)
    assert trot["phase"] == pytest.approx([0.0, 0.5, 0.5, 0.0], abs=0.05)
    assert trot["lift_m"] == pytest.approx([0.036] * 4, abs=1e-3)
    assert trot["stance_mps"] == pytest.approx([0.1] * 4)  # nothing of the swing counts
    assert trot["step_rate_hz"] == pytest.approx([2.0] * 4, rel=0.15)
    assert trot["swing_share"] == pytest.approx([0.4] * 4, abs=0.03)
    walk = gait_metrics(stepping([0.0, 0.5, 0.25, 0.75]), pairs)
    assert walk["phase"][1:] == pytest.approx([0.5, 0.25, 0.75], abs=0.05)
    assert walk["opposite_correlation"] < 0.0


def test_a_foot_that_never_lifts_has_no_swing_and_is_worst() -> None:
    seen = stepping([0.0, 0.5])
    seen.height[..., 1], seen.speed[..., 1] = 0.002, 0.4
    metrics = gait_metrics(seen, [(0, 1)])
    assert metrics["lift_m"][1] is None and metrics["step_rate_hz"][1] == 0.0
    assert len(gait.skating(metrics, [0.4, 0.0, 0.0], 0.5)) == 2
    assert gait_metrics(seen.where(np.zeros(seen.valid.shape, bool)), [(0, 1)]) == {}


def test_metrics_of_the_worst_foot() -> None:
    """A foot that slides at 0.8 m/s, and one that stands for half of the time and is 6 cm up in the
    other: the first is the worse one."""
    height, speed = torch.zeros(100, 1, 2), torch.full((100, 1, 2), 0.8)
    up = torch.arange(100) % 20 < 10
    height[up, :, 1], speed[~up, :, 1] = 0.06, 0.0
    base, never = torch.zeros(100, 1, 4), torch.zeros(100, 1, dtype=torch.bool)
    base[..., 3] = 0.5

    def worst(*feet: int) -> dict[str, float]:
        feet_of = torch.stack((height, speed), -1)[:, :, list(feet)]
        seen = {"feet": feet_of, "base": base, "is_first": never}
        return worst_foot(Trial(seen, torch.zeros(100, 1), never, torch.zeros(101, 19), DT))

    gliding = pytest.approx({"swing_share": 0.0, "stance_mps": 0.8, "foot_lift_m": 0.0})
    assert worst(0) == gliding and worst(0, 1) == gliding
    assert worst(1) == pytest.approx({"swing_share": 0.5, "stance_mps": 0.0, "foot_lift_m": 0.06})
    # a robot that stands neither steps nor glides
    base[..., 3] = 0.05
    assert worst(0, 1) == {}


def test_faults_of_a_command() -> None:
    good = gait_metrics(stepping([0.0, 0.5]), [(0, 1)]) | {"falls": 0, "dead": False}
    good |= {"command": [0.4, 0.0, 0.0], "achieved": [0.35, 0.02, -0.05], "joint_speed_share": 0.9}
    assert faults(good, 0.5) == []
    # a robot twice as tall lifts twice as high
    assert faults(good, 1.0) == ["a foot lifts by 3.6 cm"]
    bad = good | {"falls": 2, "dead": True, "achieved": [0.15, 0.0, 0.1], "joint_speed_share": 1.2}
    assert len(faults(bad, 0.5)) == 5
    assert faults({"command": [1.0, 0, 0], "falls": 3}, 0.5) == ["3 falls"]
    standing = good | {"command": [0.0, 0.0, 0.0], "achieved": [0.0, 0.0, 0.0], "lift_m": [None]}
    # feet may stay where they are
    assert faults(standing | {"stood": 1.0}, 0.5) == []
    assert faults(standing | {"stood": 0.75}, 0.5) == ["75 % of robots stand still within 0.5 s"]


def test_metrics_of_standing_by_hand() -> None:
    """Two seconds of four robots with two feet: the first stands still from 0.4 s on; the second
    too, but creeps at 0.04 m/s from 1 s to 1.2 s; the third keeps a foot up; the fourth falls."""
    speed = torch.zeros(100, 4)
    speed[:20] = 0.5
    speed[50:60, 1] = 0.04
    height = torch.zeros(100, 4, 2)
    height[:, 2, 1] = 0.02
    fell = torch.zeros(100, 4, dtype=torch.bool)
    fell[10, 3] = True
    base = torch.zeros(100, 4, 4)
    base[..., 3] = speed
    seen = {"base": base, "feet": torch.stack((height, height), -1)}
    metrics = standing_metrics(Trial(seen, speed, fell, torch.zeros(101, 19), DT))
    # of 0.4 s, 1.2 s, never, never
    assert metrics["stand_s"] == pytest.approx(1.2)
    assert metrics["stood"] == 0.25
    # after half a second: one of four robots creeps for 10 of 75 steps, one of four has a foot up
    assert metrics["base_mps"] == pytest.approx(0.04 * 10 / 75 / 4)
    assert metrics["feet_down"] == 0.75


def test_opposite_feet_are_diagonal_or_left_and_right() -> None:
    for name in ("anymal_b", "op3"):
        robot = load(name)
        sides = [gait.foot_positions(robot)[[a, b]] for a, b in gait.opposite_feet(robot)]
        assert len(sides) == len(robot.foot_bodies) // 2
        for a, b in sides:
            assert a[1] * b[1] < 0 and (name == "op3" or a[0] * b[0] < 0)


def test_metrics_at_a_command_use_steps_at_its_velocity() -> None:
    seen = stepping([0.0, 0.5], seconds=8.0)
    velocity = np.zeros((*seen.valid.shape, 3))
    velocity[:200, :, 0] = 0.5
    velocity[200:, :, 0] = 1.0
    slow = gait.metrics_at_command(seen, velocity, [0.45, 0.0, 0.0], [(0, 1)])
    assert slow == gait_metrics(seen.where(velocity[..., 0] == 0.5), [(0, 1)])
    assert gait.metrics_at_command(seen, velocity, [0.0, 0.3, 0.0], [(0, 1)]) is None


def test_the_grid_covers_the_range_one_component_at_a_time() -> None:
    commands = command_grid(((-0.5, 0.75), (-0.3, 0.3), (0.0, 1.0))).tolist()
    forward = [row[0] for row in commands if row[1:] == [0.0, 0.0]]
    assert forward == [0.0, -0.25, -0.5, 0.25, 0.5, 0.75]
    assert [row[1] for row in commands if row[1]] == pytest.approx([-0.15, -0.3, 0.15, 0.3])
    assert [row[2] for row in commands if row[2]] == [0.5, 1.0]
    # a range without standing
    slow = command_grid(((0.2, 0.4), (0.0, 0.0), (0.0, 0.0)))
    torch.testing.assert_close(slow, torch.tensor([[0.2, 0.0, 0.0], [0.4, 0.0, 0.0]]))


def test_rows_are_metrics_of_their_robots(
    robot: Robot,
    skill: SkillModule,
    walking: WalkConfig,
    start_poses: MotionSet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gait, "TRACKED_ROBOTS", 4)
    monkeypatch.setattr(gait, "TRACKED_S", 3.0)

    def policy() -> Composition:
        return wandering(skill, torch.Generator().manual_seed(3))

    commands = command_grid(walking.command.range)[:4]
    env = walk_env(robot, 8, config=walking)
    rows = evaluate_commands(policy(), env, commands, seconds=1.2, seed=1)
    schedule = lead_in(env, commands.repeat_interleave(2, 0), 1)
    trial = run_trial(policy(), env, seconds=2.2, seed=1, commands=schedule)
    assert torch.equal(trial.metrics["command"][50], commands.repeat_interleave(2, 0))
    assert torch.equal(trial.metrics["command"][0], trial.metrics["command"][49])
    for i, row in enumerate(rows):
        mine = slice(2 * i, 2 * i + 2)
        assert row["falls"] == int(trial.fell[:, mine].sum())
        up = (trial.fell[:, mine].cumsum(0) == 0)[100:]
        assert ("achieved" in row) == bool(up.any())
        # the first command is zero
        assert ("stood" in row) == (i == 0)
        if up.any():
            kept = trial.metrics["achieved"][100:, mine][up]
            assert row["achieved"] == pytest.approx(kept.mean(0).tolist())
            assert row["joint_speed_share"] > 0.0 and len(row["lift_m"]) == 4
    reference, net = Reference(robot, start_poses), NetConfig(latent_dim=4, encoder_width=8)
    tracking = SkillModule.for_reference(robot, net, reference, ReferenceFeatures(robot, reference))
    add_references(rows, tracking, robot, start_poses, num_threads=1)
    assert all({"module", "recorded"} <= set(row) for row in rows)
