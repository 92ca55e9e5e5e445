"""The tour with punches: its waypoints, punches and arms by hand, and a tour of one waypoint."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from npmp import robots
from npmp.envs.policy import Observation, PolicyOutput
from npmp.envs.state import RobotState
from npmp.experiments.benchmarks import tour

RANGE = ((-0.5, 1.0), (-0.5, 0.5), (-1.0, 1.0))


def test_punches_grow_for_a_minute() -> None:
    """Of at most 300 N: from 100 N at the start to 300 N after 60 s, each at least half of it."""
    punches = tour.Punches.sample(200, 29, 300.0, np.random.default_rng(0))
    force = np.linalg.norm(punches.force, axis=-1)
    assert 50.0 <= force[:, 0].min() < 60.0 and 90.0 < force[:, 0].max() <= 100.0
    assert 100.0 <= force[:, 6].min() < 110.0 and 190.0 < force[:, 6].max() <= 200.0
    assert 150.0 <= force[:, 12:].min() < 155.0 and 295.0 < force[:, 12:].max() <= 300.0
    assert punches.joint.min() == 0 and punches.joint.max() == 28


def test_the_guide_leads_to_a_waypoint() -> None:
    """From (1, 2), facing along y, a waypoint 0.4 m ahead and 0.1 rad to the left is at (1, 2.4).
    The command stops within 0.1 m and begins again beyond 0.2 m; the next waypoint begins anew."""
    waypoints = torch.zeros(1, tour.WAYPOINTS, 3)
    waypoints[0, :, 0] = 0.4
    waypoints[0, :, 2] = 0.1
    half = math.pi / 2
    guide = tour.Guide(waypoints, torch.tensor([[1.0, 2.0, half]]), RANGE)

    def command(time_s: float, x: float, y: float, yaw: float) -> Any:
        velocity, error = guide.command(time_s, torch.tensor([[x, y, yaw]]))
        return velocity[0].tolist(), error[0].tolist()

    def turned(yaw: float) -> float:
        return half + yaw

    velocity, error = command(0.0, 1.0, 2.0, turned(0.0))
    assert velocity == pytest.approx([0.6, 0.0, 0.15], abs=1e-6)
    assert error == pytest.approx([0.4, 0.1], abs=1e-6)
    # facing along x the waypoint is to the left, beyond the range; 1.67 rad as well
    assert command(0.02, 1.0, 2.0, 0.0)[0] == pytest.approx([0.0, 0.5, 1.0], abs=1e-6)
    # 0.05 m and 0 rad from it, then 0.15 m and 0.1 rad, then 0.3 m and 0.2 rad
    assert command(0.04, 1.0, 2.35, turned(0.1))[0] == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)
    assert command(0.06, 1.0, 2.25, turned(0.0))[0] == pytest.approx([0.0, 0.0, 0.0], abs=1e-6)
    forward = [0.45 * math.cos(0.1), 0.45 * math.sin(0.1), 0.3]
    assert command(0.08, 1.0, 2.1, turned(-0.1))[0] == pytest.approx(forward, abs=1e-6)
    # 0.15 m again
    velocity, _ = command(tour.WAYPOINT_S, 1.0, 2.25, turned(0.0))
    assert velocity == pytest.approx([0.225, 0.0, 0.15], abs=1e-6)


def test_arms_mirror_and_stay_in_front() -> None:
    robot = robots.load("unitree_g1")
    arms = tour.arm_joints(robot)
    names = [robot.joint_names[i] for i in arms]
    assert len(arms) == 14
    assert names[0] == "left_shoulder_pitch_joint" and names[13] == "right_wrist_yaw_joint"
    targets = tour.sample_arms(robot.model(), robot, 2, 0.02, np.random.default_rng(0))
    assert targets.shape == (4500, 2, 14)
    assert targets[..., 7] == pytest.approx(targets[..., 0])
    assert targets[..., 8] == pytest.approx(-targets[..., 1])
    # 25 steps of at most 0.06 rad in half a second, in a straight line
    assert targets.diff(dim=0).abs().max() <= 0.06 + 1e-6
    assert (targets[-1] != targets[0]).any()


def test_a_policy_does_not_see_its_walking_arms() -> None:
    """Of two joints the second is an arm's."""
    seen: list[Observation] = []

    def step(observation: Observation, state: Any) -> tuple[PolicyOutput, Any]:
        seen.append(observation)
        return PolicyOutput(torch.tensor([[1.0, 2.0]])), state

    policy = SimpleNamespace(step=step, initial_state=lambda n: None)
    walking = tour.WalkingArms(policy, [1], torch.tensor([[[0.3]], [[0.4]]]), reads=False)
    two = torch.tensor([[5.0, 6.0]])
    still = RobotState.still(torch.zeros(1, 3), torch.eye(3)[None], two)
    state = still._replace(joint_vel=two, joint_vel_end=two)
    observation = Observation(torch.arange(13.0)[None], torch.zeros(1, 3), state=state)
    actions = [walking.step(observation, None)[0].action.tolist() for _ in range(3)]
    assert actions == [[pytest.approx([1.0, value])] for value in (0.3, 0.4, 0.4)]
    assert seen[0].proprioception[0, :5].tolist() == [0.0, 0.0, 2.0, 0.0, 4.0]
    assert seen[0].state.joint_vel_end.tolist() == [[5.0, 0.0]]
    assert state.joint_vel_end.tolist() == [[5.0, 6.0]]
    walking = tour.WalkingArms(policy, [1], torch.tensor([[[0.3]]]), reads=True)
    walking.step(observation, None)
    assert seen[-1] is observation


@pytest.mark.parametrize("arms", [[], ["--random-arms"]])
def test_a_tour_of_one_waypoint(
    arms: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without punches it stands after a second; the shipped policy needs its arms for longer."""
    monkeypatch.setattr(tour, "WAYPOINTS", 1)
    monkeypatch.setattr(tour, "WAYPOINT_S", 1.0)
    tour.main(["policy=g1_walk", "--tours", "2", *arms, "--force-n", "0", "threads=1"])
    figures = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert figures["completed"] == 2 and figures["survived_s"] == 1.0
    assert len(figures["each_s"]) == 2
