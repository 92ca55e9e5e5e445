"""Following a path: its geometry by hand, the controller on a point that obeys late, and robots
that walk it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp import robots, tasks
from npmp.core import geometry
from npmp.core.settings import changed
from npmp.envs import TaskEnv, Trial
from npmp.sim.terrain import PERIOD_M
from npmp.tasks import Path as PathTask
from npmp.tasks.path import (
    RUN_OUT_M,
    SHAPES,
    SPACING_M,
    PathConfig,
    command_on,
    nearest,
    sampled_path,
    speed_on,
)

RANGE = ((-0.5, 1.5), (-0.3, 0.3), (-1.0, 1.0))


def path_env(robot: robots.Robot, n: int = 3, **settings: object) -> TaskEnv[PathTask]:
    config = changed(PathConfig(), **{"command_range": RANGE, **settings})  # type: ignore[arg-type]
    return TaskEnv(PathTask(robot, config), n, num_threads=1)


def test_a_course_begins_at_the_origin_along_x() -> None:
    """A quarter of a circle of radius 2 m about (2, 0), from (0, 0) upwards and to the right."""
    angle = np.linspace(math.pi, math.pi / 2, 200)
    course = sampled_path(np.stack((2.0 + 2.0 * np.cos(angle), 2.0 * np.sin(angle)), -1))
    assert course.length == pytest.approx(math.pi, rel=1e-4)
    assert len(course.point) == pytest.approx((math.pi + RUN_OUT_M - 0.25) / SPACING_M, abs=2)
    assert course.point[0].abs().max() < 1e-6 and course.heading[0] == 0.0
    middle = round(0.5 * math.pi / SPACING_M)
    assert course.curvature[middle].item() == pytest.approx(-0.5, rel=0.02)  # to the right
    assert course.heading[-1].item() == pytest.approx(-math.pi / 2, abs=0.1)


def test_the_nearest_point_stays_on_its_branch() -> None:
    """In the middle of the figure eight both branches are as near; a robot that has gone half stays
    on the second."""
    course = sampled_path(SHAPES["figure_eight"]())
    half = round(0.5 * course.length / SPACING_M)
    place = torch.tensor([[0.03, 0.0]]).expand(2, 2)
    index, distance = nearest(course, place, torch.tensor([0, half]), 25)
    assert index[0] <= 3 and abs(int(index[1]) - half) <= 3
    assert distance.max().item() < 0.04


def test_command_by_hand() -> None:
    """On a straight path along x: 0.2 m to its left, 0.3 m behind p_bar, heading 0.5 rad to the
    left."""
    course = sampled_path(np.array([[0.0, 0.0], [10.0, 0.0]]))
    config = changed(PathConfig(), command_range=RANGE, speed_mps=0.6, gain=2.0, yaw_gain=3.0)
    at = torch.tensor([100])
    place, yaw = course.point[at] + torch.tensor([[0.0, 0.2]]), torch.tensor([0.5])
    found = command_on(course, place, yaw, at, torch.tensor([0.3]), config, 1.0)
    x, y = 0.6 + 2.0 * 0.3, -2.0 * 0.2  # world
    expected = (
        math.cos(0.5) * x + math.sin(0.5) * y,
        math.cos(0.5) * y - math.sin(0.5) * x,
        -3.0 * 0.5,
    )
    torch.testing.assert_close(found[0], torch.tensor(expected), atol=1e-4, rtol=0)


def glide(name: str, speed: float, *, delay_s: float = 0.25, bias: Tensor) -> tuple[Tensor, bool]:
    """Points that obey commands with a first-order delay and an error: distances to the path,
    whether all arrived."""
    config = changed(PathConfig(), command_range=RANGE, speed_mps=speed)
    course, n, dt = sampled_path(SHAPES[name]()), len(bias), 0.02
    low, high = torch.tensor(RANGE).T
    place, yaw, velocity = torch.zeros(n, 2), torch.zeros(n), torch.zeros(n, 3)
    near, target, errors = torch.zeros(n, dtype=torch.long), torch.zeros(n), []
    for _ in range(round(2.0 * course.length / speed / dt)):
        near, error = nearest(course, place, near, 25)
        errors.append(error)
        at = (target / SPACING_M).long().clamp(max=len(course.point) - 1)
        target = torch.minimum(
            target + dt * speed_on(course, at, config, 1.0), near * SPACING_M + 0.5
        )
        command = command_on(course, place, yaw, near, target - near * SPACING_M, config, 1.0)
        velocity += dt / delay_s * (command.clamp(low, high) + bias - velocity)
        cos, sin = torch.cos(yaw), torch.sin(yaw)
        x, y = velocity[:, 0], velocity[:, 1]
        place = place + dt * torch.stack((cos * x - sin * y, sin * x + cos * y), -1)
        yaw = yaw + dt * velocity[:, 2]
        if bool((near * SPACING_M >= course.length).all()):
            return torch.stack(errors), True
    return torch.stack(errors), False


@pytest.mark.parametrize("speed", [0.5, 1.0])
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_robot_that_obeys_velocities_stays_on_the_path(name: str, speed: float) -> None:
    """A quarter of a second late and off by what a good walking policy is off by: 0.1 m/s, 0.05
    m/s, 0.08 rad/s."""
    signs = torch.cartesian_prod(*(torch.tensor([-1.0, 0.0, 1.0]),) * 3)
    errors, arrived = glide(name, speed, bias=signs * torch.tensor([0.1, 0.05, 0.08]))
    assert arrived
    assert errors.mean().item() < 0.05 and errors.max().item() < 0.15


# --- the task ---


def test_the_course_is_laid_from_where_a_robot_stands(robot: robots.Robot) -> None:
    """Robots start at home, here along x. Carried elsewhere before `begin`, they are still at its
    start."""
    env = path_env(robot)
    env.reset(yaw=torch.zeros(3))
    ids = torch.arange(3)
    env.robots.carry(
        ids, torch.tensor([[1.0, 2.0], [-3.0, 0.0], [0.0, 0.0]]), _turns([0.3, 2.0, -1.0])
    )
    env.task.begin(ids, env.generator)
    place, yaw = env.task.planner._place()
    assert place.abs().max() < 1e-6 and yaw.abs().max() < 1e-6
    expected = env.task.commands.current[2]
    torch.testing.assert_close(env.task.commands.current[0], expected, atol=1e-5, rtol=0)
    # half a metre ahead on its own heading: the same in the course's frame
    env.robots.carry(
        torch.tensor([1]),
        torch.tensor([[-3.0 + 0.5 * math.cos(2.0), 0.5 * math.sin(2.0)]]),
        _turns([0.0]),
    )
    torch.testing.assert_close(
        env.task.planner._place()[0][1], torch.tensor([0.5, 0.0]), atol=1e-5, rtol=0
    )


def test_a_robot_that_rough_ground_moves_back_takes_the_course_along(robot: robots.Robot) -> None:
    env = path_env(robot, terrain="perlin", terrain_level=0.01, terrain_fields=1)
    env.robots.shift(torch.tensor([1]), torch.tensor([[PERIOD_M, 0.0, 0.1]]))
    place = env.step(torch.zeros(3, env.num_actions)).metrics["place"]
    torch.testing.assert_close(env.task.planner._place()[0], place, atol=1e-4, rtol=0)
    assert env.ground.state_dict()["moved"][1].tolist() == [-PERIOD_M, 0.0]


def _turns(angles: list[float]) -> Tensor:
    return geometry.yaw_matrix(torch.tensor(angles))


def test_robots_are_asked_to_follow_and_the_point_waits(robot: robots.Robot) -> None:
    """They stand: p_bar goes half a metre ahead and waits there."""
    env = path_env(robot, speed_mps=1.0)
    for _ in range(60):
        step = env.step(torch.zeros(3, env.num_actions))
    assert not step.terminated.any() and not step.metrics["finished"].any()
    assert step.metrics["lag"].tolist() == pytest.approx([0.5] * 3, abs=0.03)
    # on a path that is straight at first: 1 m/s and 1.5 of half a metre, beyond what may be asked
    # for
    assert env.task.commands.current[:, 0].tolist() == [1.5] * 3
    assert step.error.max().item() < 0.05
    state = env.state_dict()
    other = path_env(robot, speed_mps=1.0)
    other.load_state_dict(state)
    a, b = (e.step(torch.zeros(3, env.num_actions)) for e in (env, other))
    assert torch.equal(a.metrics["lag"], b.metrics["lag"])
    assert torch.equal(env.task.commands.current, other.task.commands.current)


def test_the_end_of_the_path_is_the_end_of_the_episode(robot: robots.Robot) -> None:
    env = path_env(robot)
    env.task.planner.near[1] = (
        env.task.planner.near[1] + round(env.task.planner.path.length / SPACING_M) + 3
    )
    end = env.task.planner.path.point[env.task.planner.near[1]]
    env.robots.carry(torch.tensor([1]), end.unsqueeze(0), _turns([0.0]))
    step = env.step(torch.zeros(3, env.num_actions))
    assert step.metrics["finished"].tolist() == step.ended.tolist() == [False, True, False]


def test_figures_by_hand(robot: robots.Robot) -> None:
    steps = 100
    error = torch.zeros(steps, 3)
    error[:, 0], error[7, 1] = 0.02, 0.5
    fell, finished = (
        torch.zeros(steps, 3, dtype=torch.bool),
        torch.zeros(steps, 3, dtype=torch.bool),
    )
    fell[10, 0], finished[20, 0] = True, True  # it fell first, then came through
    finished[30, 1], fell[40, 1] = True, True  # it fell on its second round
    zeros = torch.zeros(steps, 3, 3)
    seen = {
        "command": zeros,
        "achieved": zeros,
        "finished": finished,
        "lag": torch.full((steps, 3), 0.1),
    }
    task = PathTask(robot, changed(PathConfig(), command_range=RANGE))
    figures = task.figures(Trial(seen, error, fell, torch.zeros(steps + 1, 19), 0.02))
    assert figures["path_error_mean_m"] == pytest.approx((100 * 0.02 + 0.5) / 300)
    assert figures["path_error_max_m"] == 0.5 and figures["path_lag_m"] == pytest.approx(0.1)
    assert figures["finished"] == pytest.approx(1 / 3) and figures["falls"] == 2
    assert task.trial_s == pytest.approx(5.0 + 1.25 * task.planner.path.length / 0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"path": "circle"},
            "no path 'circle'; available: figure_eight, slalom, square, a file that ends in .csv",
        ),
        ({"path": "nowhere.csv"}, "no file 'nowhere.csv'"),
        ({"speed_mps": 2.0}, "speed_mps=2"),
        ({"command_range": ((0.0, 1.0), (0.0, 0.0), (0.0, 1.0))}, "command_range"),
    ],
)
def test_what_cannot_be_followed_is_named(
    robot: robots.Robot, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError) as error:
        PathTask(robot, changed(PathConfig(), **{"command_range": RANGE, **settings}))  # type: ignore[arg-type]
    assert str(error.value).startswith(message)


def test_a_file_s_path(robot: robots.Robot, tmp_path: Path) -> None:
    (tmp_path / "way.csv").write_text("x,y\n0,0\n0,3\n")
    task = PathTask(
        robot, changed(PathConfig(), command_range=RANGE, path=str(tmp_path / "way.csv"))
    )
    assert task.planner.path.length == pytest.approx(3.0)
    # along x at first, wherever it led
    assert task.planner.path.point[100].tolist() == pytest.approx([2.0, 0.0], abs=1e-5)
    assert tasks.find("path") is PathTask
