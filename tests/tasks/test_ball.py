"""A ball among legs: rolling by hand, pushes whose answer is known, and against MuJoCo."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from npmp import robots
from npmp.core import geometry
from npmp.envs import TaskEnv
from npmp.envs.state import pose_from_qpos
from npmp.tasks import Dribble, DribbleConfig
from npmp.tasks.ball import INERTIA, ROLLING, Ball, Legs, Shapes, rolled
from tests.refusals import refusal

DT = 0.02
RADIUS, MASS = 0.117, 0.45


def ball(x: float = 0.0, y: float = 0.0, vx: float = 0.0, drag: float = 0.0) -> Ball:
    flat = (torch.tensor([[x, y]]), torch.tensor([[vx, 0.0]]))
    return Ball(*flat, torch.tensor([RADIUS]), torch.tensor([MASS]), torch.tensor([drag]))


def post(x: float, y: float = 0.0, low: float = 0.03, high: float = 0.4) -> Shapes:
    """An upright leg of 3 cm radius, (1, 1, 1, ...)."""
    place = torch.tensor([x, y, 0.5 * (low + high)]).expand(1, 1, 1, 3)
    half = torch.tensor([[[0.0, 0.0, 0.5 * (high - low)]]])
    return Shapes(place, torch.eye(3).expand(1, 1, 1, 3, 3), half, torch.tensor([[0.03]]))


def several(shapes: Shapes, axis: int) -> Shapes:
    """The same twice: of one leg (axis -1) or of two (axis -2)."""
    where = (axis - 1, axis - 2, axis - 1, axis)
    return Shapes(*(torch.cat((s, s), at) for s, at in zip(shapes, where, strict=True)))


@pytest.fixture(scope="module")
def robot() -> robots.Robot:
    return robots.load("anymal_b")


def test_it_rolls_to_a_stop_and_stays() -> None:
    one = rolled(ball(vx=1.0, drag=0.5), post(5.0), DT)
    left = (1.0 - ROLLING * DT) / (1.0 + 0.5 * DT / (INERTIA * MASS))
    assert one.velocity[0].tolist() == pytest.approx([left, 0.0], abs=1e-6)
    assert one.position[0].tolist() == pytest.approx([left * DT, 0.0], abs=1e-6)
    state = ball(vx=1.0)
    for _ in range(100):
        state = rolled(state, post(5.0), DT)
    # v^2 / 2 a, less half a step, as it moves by the speed after each
    assert state.velocity.abs().max() < 1e-3
    assert state.position[0, 0].item() == pytest.approx(0.5 / ROLLING - 0.5 * DT, abs=2e-3)


def test_a_leg_that_walks_takes_it_along() -> None:
    state, x = ball(), -RADIUS - 0.031
    for _ in range(50):
        x += 0.5 * DT
        state = rolled(state, post(x), DT)
        assert state.position[0, 0] - x > RADIUS + 0.03 - 1e-3  # never inside
    assert state.velocity[0].tolist() == pytest.approx([0.5, 0.0], abs=0.1)
    assert 0.5 * 50 * DT - 0.01 < state.position[0, 0] < 0.5 * 50 * DT + 0.05


def test_it_leaves_along_the_line_from_the_leg() -> None:
    """3 cm off the middle: by asin(3 / 14.7) = 11.8 degrees to the other side."""
    state = rolled(ball(), post(-0.13, 0.03), DT)
    angle = torch.atan2(state.velocity[0, 1], state.velocity[0, 0])
    assert angle.item() == pytest.approx(float(np.arctan2(-0.03, 0.13)), abs=1e-3)
    gap = np.hypot(0.13, 0.03)
    assert state.velocity.norm().item() == pytest.approx((RADIUS + 0.03 - gap) / DT, rel=0.03)


def test_foot_and_shank_push_as_one() -> None:
    """Two capsules of a leg that are as deep in the ball move it as far as one; two legs move it
    twice."""
    one = post(-0.13)
    alone = rolled(ball(), one, DT).position
    torch.testing.assert_close(rolled(ball(), several(one, -1), DT).position, alone)
    torch.testing.assert_close(rolled(ball(), several(one, -2), DT).position, 2.0 * alone)


def test_a_foot_that_comes_down_on_it_hardly_shoots_it_away() -> None:
    """A foot's end 1 cm off the ball's top and 1 cm deep in it: the line between them is nearly
    upright, and the floor takes most of the push: 1 cm times 0.0100 / 0.1370."""
    low = RADIUS + float(np.sqrt((RADIUS + 0.03 - 0.01) ** 2 - 0.01**2))
    state = rolled(ball(), post(-0.01, low=low), DT)
    assert state.position[0, 0].item() == pytest.approx(0.01 * 0.01 / 0.137, rel=0.05)


def test_a_leg_that_is_led_further_leads_the_ball_further() -> None:
    ahead = post(-0.13)
    place = ahead.position.clone().requires_grad_(True)
    rolled(ball(), ahead._replace(position=place), DT).position[0, 0].backward()
    assert place.grad is not None and bool(torch.isfinite(place.grad).all())
    assert place.grad[..., 0].sum().item() == pytest.approx(1.0, abs=0.02)


def test_a_box_pushes_with_its_side_and_its_corner() -> None:
    """A box turned by 30 degrees about the vertical: its front face pushes along its own forward
    axis, its corner along the line to the ball."""
    turn = geometry.yaw_matrix(torch.tensor(np.pi / 6))
    half = torch.tensor([0.06, 0.03, 0.2])

    def pushed(local: tuple[float, float]) -> Tensor:
        centre = torch.tensor([0.0, 0.0, RADIUS]) - turn @ torch.tensor([*local, 0.0])
        shapes = Shapes(
            centre.expand(1, 1, 1, 3), turn.expand(1, 1, 1, 3, 3), half, torch.zeros(())
        )
        return turn[:2, :2].T @ rolled(ball(), shapes, DT).position[0]

    deep = 0.01
    assert pushed((0.06 + RADIUS - deep, 0.0)).tolist() == pytest.approx([deep, 0.0], abs=1e-4)
    step = float((RADIUS - deep) / np.sqrt(2.0))
    corner = pushed((0.06 + step, 0.03 + step))
    assert corner.tolist() == pytest.approx([deep / np.sqrt(2.0)] * 2, abs=1e-4)


@pytest.mark.parametrize("name", ["anymal_b", "op3"])
def test_legs_are_where_mujoco_has_them(name: str) -> None:
    """Each shape is one of MuJoCo's geoms; at home, all that is below 15 cm is among them."""
    robot = robots.load(name)
    model, legs = robot.model(), Legs(robot)
    data = mujoco.MjData(model)
    rng = np.random.default_rng(0)
    for _ in range(5):
        data.qpos[:] = robot.home_qpos + np.concatenate(
            (rng.normal(size=7), 0.5 * rng.normal(size=model.nu))
        )
        data.qpos[3:7] /= np.linalg.norm(data.qpos[3:7])
        mujoco.mj_kinematics(model, data)
        shapes = legs(*(part.float() for part in pose_from_qpos(torch.tensor(data.qpos))))
        for place, turn in zip(
            shapes.position.flatten(0, -2), shapes.turn.flatten(0, -3), strict=True
        ):
            off = np.abs(data.geom_xpos - place.numpy()).max(-1)
            assert off.min() < 1e-5
            near = data.geom_xmat[off < 1e-5].reshape(-1, 3, 3)
            assert np.abs(near - turn.numpy()).max((-1, -2)).min() < 1e-5
    mujoco.mj_resetData(model, data)
    data.qpos[:] = robot.home_qpos
    mujoco.mj_kinematics(model, data)
    at_home = legs(*(part.float() for part in pose_from_qpos(torch.tensor(robot.home_qpos))))
    low = np.flatnonzero((model.geom_group == 3) & (data.geom_xpos[:, 2] < 0.15))
    for place in data.geom_xpos[low]:
        assert np.abs(at_home.position.numpy() - place).max(-1).min() < 1e-5


def test_feet_of_other_shapes_are_refused(
    robot: robots.Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = robot.spec()
    foot = spec.geom("LF_foot")
    foot.type, foot.size = mujoco.mjtGeom.mjGEOM_ELLIPSOID, [0.02, 0.02, 0.03]
    odd = spec.compile()
    monkeypatch.setattr(robots.Robot, "model", lambda _: odd)
    refusal("'LF_FOOT' of 'anymal_b' collides as a ellipsoid", Legs, robot)


def test_it_goes_where_mujocos_goes(robot: robots.Robot) -> None:
    """Balls that roll into the feet of a standing robot, one after the other in place: 0.4 s later
    the model has them within a fifth of the way that they went."""
    n = 12
    env = TaskEnv(
        Dribble(robot, DribbleConfig(at_feet=1.0, drag=(0.3, 0.3))), n, seed=3, num_threads=1
    )
    ahead = torch.stack((torch.full((n,), 0.75), torch.linspace(0.10, 0.36, n)), -1)
    env.reset(ball=ahead, yaw=torch.zeros(n))
    task, model = env.task, env.robots.sim.model
    v = model.joint("ball").dofadr[0]
    env.robots.sim.qvel[:, v], env.robots.sim.qvel[:, v + 4] = (
        -1.2,
        (-1.2 / task.commands.radius).double(),
    )
    goal, start = task.goal(), task.commands.ball[:, :2].clone()
    for _ in range(20):
        env.step(torch.zeros(n, 12))
        goal = task.next_goal(goal, env.state)
    went = (task.commands.ball[:, :2] - start).norm(dim=-1)
    off = (goal[:, :2] - task.commands.ball[:, :2]).norm(dim=-1)
    assert went.std() > 0.03  # some met a foot, some passed beside it
    assert off.mean() < 0.2 * went.mean()
