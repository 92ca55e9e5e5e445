"""Finding the way: what the planner knows, by hand, and what a policy is told."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from mocap_data.errors import InputError
from npmp.core.settings import changed
from npmp.envs import TaskEnv
from npmp.envs.policy import observe
from npmp.envs.task import Trial
from npmp.learning.agents import LatentAgent
from npmp.learning.student import teacher_of
from npmp.robots import Robot
from npmp.skills.composition import over
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.skill_module import SkillModule
from npmp.tasks.navigate import (
    INPUTS,
    NEAR_M,
    OCCUPIED,
    Guided,
    Mapped,
    Navigate,
    NavigateConfig,
    _lengths,
)
from tests.untrained import policy, skill, walking

__all__ = ["policy", "skill", "walking"]
RANGE = ((-0.3, 0.8), (-0.2, 0.2), (-0.8, 0.8))
CONFIG = changed(NavigateConfig(), terrain_fields=2, command_range=RANGE)


@pytest.fixture
def env(robot: Robot) -> TaskEnv[Navigate]:
    return TaskEnv(Navigate(robot, CONFIG), 6, num_threads=1)


def test_ways_lead_through_the_door() -> None:
    """8 m by 8 m, a wall at x = 4 with a door at y = 6 to 8, its cells 0.1 m: from (2, 2) to (6, 2)
    the way goes there and back, 2 * hypot(2, 4) = 8.9 m at least, but for the corners; what is
    near to walls counts for more."""
    stands = np.zeros((160, 160), dtype=bool)
    stands[:120, 79:82] = True
    length = _lengths(stands, 0.05, 2, np.array([[20, 60]]))[0]
    straight = 2.0 * math.hypot(2.0, 4.0)
    assert straight < float(length[20, 20]) < 1.5 * straight
    assert float(length[20, 60]) == 0.0 and float(length[24, 60]) == pytest.approx(0.4, rel=0.01)
    # who stands in the wall gets out of it first
    assert float(length[20, 41]) > float(length[20, 44]) > float(length[20, 47]) > 1.3


def test_low_walls_are_walls(robot: Robot) -> None:
    """The same houses, half as high."""
    ways = [
        TaskEnv(
            Guided(robot, changed(CONFIG, terrain_level=level)), 1, num_threads=1
        ).task.planner.routes
        for level in (1.0, 0.5)
    ]
    for part, same in zip(*ways, strict=True):
        assert torch.equal(part, same)


def test_the_command_leads_along_the_way(env: TaskEnv[Navigate]) -> None:
    task, at = env.task, env.state.root_pos[:, :2]
    command = task.commands.current
    assert (command[:, 1] == 0.0).all() and command[:, 2].abs().max() <= 0.8
    before = task.planner.distance_to_goal(at.unsqueeze(1)).squeeze(-1)
    assert (before > 1.0).all()
    turned = command[:, 2].abs() < 0.79  # those that face where the way leads, within 23 degrees
    assert turned.any()
    state = env.state
    ahead = state.root_rot[:, :2, 0] / state.root_rot[:, :2, 0].norm(dim=-1, keepdim=True)
    after = task.planner.distance_to_goal((at + 0.4 * ahead).unsqueeze(1)).squeeze(-1)
    assert (after < before)[turned].all()
    assert (command[turned, 0] > 0.4).all()


def test_who_is_at_the_goal_has_arrived(env: TaskEnv[Navigate]) -> None:
    task, at = env.task, env.state.root_pos[:, :2].clone()
    task.planner.place = at + torch.tensor([0.9 * NEAR_M, 0.0])
    task.planner.place[3] = at[3] + torch.tensor([0.0, 1.2 * NEAR_M])
    step = env.step(torch.zeros(6, 12))
    expected = torch.tensor([True, True, True, False, True, True])
    assert torch.equal(step.metrics["arrived"], expected) and torch.equal(step.ended, expected)
    assert step.truncated[0] and not step.terminated.any()


def test_figures_count_first_episodes(env: TaskEnv[Navigate]) -> None:
    """Four robots, 5 steps of 20 ms: one arrives at the third, one falls before it arrives, one
    falls after, one does neither: half are missed, a quarter collided."""
    arrived, fell = torch.zeros(2, 5, 4, dtype=torch.bool)
    arrived[2, 0] = arrived[4, 1] = arrived[1, 2] = True
    fell[1, 1] = fell[3, 2] = True
    seen = {"arrived": arrived, "command": torch.zeros(5, 4, 3), "achieved": torch.zeros(5, 4, 3)}
    trial = Trial(seen, torch.zeros(5, 4), fell, torch.zeros(6, 26), 0.02)
    found = env.task.figures(trial)
    assert (found["missed"], found["collided"]) == (0.5, 0.25)
    assert found["arrival_s"] == pytest.approx(0.5 * (0.06 + 0.04))


def test_a_policy_is_told_the_goal_alone(env: TaskEnv[Navigate]) -> None:
    task, state = env.task, env.state
    assert tuple(task.inputs) == tuple(INPUTS) and task.observe().shape == (6, 2 + 144)
    to = task.inputs_of(state, task.goal())
    yaw = torch.atan2(state.root_rot[:, 1, 0], state.root_rot[:, 0, 0])
    ahead = torch.stack((torch.cos(yaw), torch.sin(yaw)), -1)
    left = torch.stack((-torch.sin(yaw), torch.cos(yaw)), -1)
    torch.testing.assert_close(
        to[:, :1] * ahead + to[:, 1:] * left, task.planner.place - state.root_pos[:, :2]
    )


def test_the_planner_teaches_over_a_walking_policy(
    env: TaskEnv[Navigate], robot: Robot, skill: SkillModule, policy: HighLevelPolicy
) -> None:
    """The velocity itself is shown, within what the policy can be asked for."""
    commanded = over(policy, skill).as_module()
    above = HighLevelPolicy.for_task(commanded, env.task)
    planner = teacher_of(env, LatentAgent(above, commanded))
    is_first = torch.ones(6, dtype=torch.bool)
    shown, _ = planner.step(observe(env, is_first), planner.initial_state(6))
    low, high = torch.tensor(policy.contract.command_range).T
    asked = env.task.commands.current.clamp(low, high)
    torch.testing.assert_close(0.5 * (low + high) + 0.5 * (high - low) * shown, asked)
    with pytest.raises(InputError, match="task=navigate"):
        teacher_of(env, LatentAgent(HighLevelPolicy.for_task(skill, env.task), skill), policy)
    for kind, config in ((Guided, changed(CONFIG, camera=None)), (Mapped, CONFIG)):
        policy.check_task(kind(robot, config))


def test_a_map_is_of_what_was_seen(robot: Robot) -> None:
    """What is marked stands there, within a cell; a way that is known to be closed is longer."""
    task = Mapped(robot, CONFIG)
    env, free = TaskEnv(task, 6, num_threads=1), math.hypot(0.1, 0.1)
    for _ in range(12):
        env.step(torch.zeros(6, 12))
    terrain, marked = env.ground.terrain, 0  # type: ignore[attr-defined]
    for robot_id, field in enumerate(env.ground.field.tolist()):  # type: ignore[attr-defined]
        rows, columns = torch.nonzero(task.planner.evidence[robot_id] >= OCCUPIED).T
        place = terrain.corner[field] + terrain.cell * torch.stack((columns, rows), -1)
        around = place[:, None] + free * torch.tensor(
            [[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, -1], [1, -1], [-1, 1]]
        )
        there = terrain.height_at(around) > terrain.heights.min() + 0.15
        marked += len(rows)
        assert not len(rows) or there.any(-1).float().mean() > 0.95
    assert marked > 20
    at = env.state.root_pos[:, None, :2]
    straight = (task.planner.place - at[:, 0]).norm(dim=-1)
    assert (task.planner.distance_to_goal(at)[:, 0] > 0.95 * straight - 0.15).all()
    # nobody sees behind a wall: no way is longer than with the whole map, but for what is dear
    known = task.planner.distance_to_goal(at, task.planner.goal_index.unsqueeze(-1))
    assert (task.planner.distance_to_goal(at) < known + 3.0).all()


def test_a_way_where_none_is_known() -> None:
    """A wall at x = 2 m with a gap of 0.6 m about y = 3 m, too narrow: ways lead through the gap,
    not the wall; where there is none they lead through the wall. A goal in the wall is where a
    middle fits, 0.5 m before it."""
    stands, goal = np.zeros((81, 81), bool), np.array([[10, 30]])
    stands[:, 40] = True
    closed = _lengths(stands, 0.05, 2, goal)[0]
    stands[54:67, 40] = False
    narrow = _lengths(stands, 0.05, 2, goal)[0]
    assert closed[10, 10] > narrow[10, 10] + 20.0 > 25.0 and closed.isfinite().all()
    assert narrow[:, 20].argmin() == 30
    inside = _lengths(stands, 0.05, 2, np.array([[10, 20]]))[0]
    assert inside[10].argmin() in (15, 25) and inside.min() == 0.0


def test_what_a_map_believes(robot: Robot) -> None:
    """A measured depth that ends above the floor at once and for good. One of a picture the second
    time; on the floor it speaks against. The farthest say nothing."""
    task = Mapped(robot, CONFIG)
    env, ids = TaskEnv(task, 1, num_threads=1), torch.zeros(1, dtype=torch.long)
    level = torch.cat((env.state.root_pos, torch.eye(3).reshape(1, 9)), -1)
    high = float(robot.home_qpos[2]) + task.planner.camera.config.place_m[2]

    def believed(pixel: int, depth: float) -> int:
        seen = torch.full((1, 144), task.planner.camera.config.range_m[1])
        seen[0, pixel] = depth
        task.planner._add_depths(ids, seen, level)
        return int((task.planner.evidence >= OCCUPIED).sum())

    floor, everywhere = 100, task.planner.evidence.numel()  # a pixel that looks down
    down = high / -float(task.planner.camera.rays[floor, 2])
    for eyes, first, after in (("", 1, everywhere), ("some", 0, everywhere - 1)):
        task.planner.camera.config = replace(task.planner.camera.config, network=eyes)
        task.planner.evidence.zero_()
        assert [believed(8, 0.5), believed(8, 0.5), believed(8, 4.0)] == [first, 1, 1]
        task.planner.evidence.fill_(OCCUPIED)
        assert believed(floor, down) == after


def test_what_cannot_be_found_is_refused(robot: Robot) -> None:
    with pytest.raises(InputError, match=r"task\.terrain=stairs"):
        Navigate(robot, changed(NavigateConfig(), terrain="stairs"))
    with pytest.raises(InputError, match=r"task\.camera=null"):
        Mapped(robot, changed(CONFIG, camera=None))
    known = {"command_range": [[-8.0, 8.0], [-8.0, 8.0]], "camera": None}
    assert Navigate.resolve(NavigateConfig(), None, known).walk.camera is None
    known = {"command_range": RANGE, "camera": None}
    found = Guided.resolve(NavigateConfig(), None, known)
    assert found.walk.command.command_range == RANGE and found.walk.camera is None
    flight = Mapped.resolve(changed(NavigateConfig(), camera="flight"), None, known)
    assert flight.walk.camera == "flight"
