"""Dribbling: the ball's physics by hand, what is seen and judged, when targets jump, what ends
episodes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from npmp import robots
from npmp.core import geometry
from npmp.core.settings import changed
from npmp.envs import RobotBatchConfig, TaskEnv, Trial
from npmp.envs.policy import observe
from npmp.envs.state import RobotState
from npmp.tasks import Dribble, DribbleConfig, DribbleEnv
from npmp.tasks.dribble import INPUTS, BallGoal, BallReward, drag_force, in_heading, jumped
from npmp.tasks.teachers.dribbling import DribbleScript
from tests.environments import walk_env

RADIUS, MASS = 0.117, 0.45
PLAIN: dict[str, Any] = {
    "radius_m": (RADIUS, RADIUS),
    "mass_kg": (MASS, MASS),
    "drag": (0.0, 0.0),
    "at_feet": 0.0,
}


def dribble_env(
    robot: robots.Robot, n: int, seed: int = 0, like: RobotBatchConfig | None = None, **c: Any
) -> DribbleEnv:
    return TaskEnv(
        Dribble(robot, changed(DribbleConfig(), **c)), n, robots=like, seed=seed, num_threads=1
    )


def put(env: DribbleEnv, place: tuple[float, float], velocity: float = 0.0) -> None:
    """All balls at a place of the world, rolling along x without slipping."""
    q, v = (
        env.robots.sim.model.joint("ball").qposadr[0],
        env.robots.sim.model.joint("ball").dofadr[0],
    )
    env.robots.sim.qpos[:, q : q + 2] = torch.tensor(place, dtype=torch.float64)
    env.robots.sim.qvel[:, v], env.robots.sim.qvel[:, v + 4] = velocity, velocity / RADIUS


def still(env: DribbleEnv, steps: int) -> None:
    for _ in range(steps):
        assert not env.step(torch.zeros(env.num_envs, 12)).terminated.any()


# --- the ball ---


def test_a_ball_rolls_to_a_stop(robot: robots.Robot) -> None:
    """Friction F at the floor and the rolling torque M share the pyramid of a contact: F / mu + M /
    mu_r = m g, with mu = 1 (the floor's) and mu_r = 0.04 m. A solid sphere that rolls: F = m a and
    M = 7/5 m r a. So

        a = g / (1 / mu + 7 r / (5 mu_r)) = 9.81 / (1 + 7 * 0.117 / 0.2) = 9.81 / 5.095 = 1.925
        m/s^2,

    1.5 m/s are gone after 0.78 s and 0.58 m, a bit more as contacts are soft.
    """
    env = dribble_env(robot, 1, **PLAIN)
    put(env, (0.0, 3.0), 1.5)
    still(env, 25)
    assert env.task.commands.ball_velocity[0, 0].item() == pytest.approx(
        1.5 - 1.925 * 0.5, abs=0.05
    )
    still(env, 25)
    x, y, z = env.task.commands.ball[0].tolist()
    assert x == pytest.approx(1.5**2 / (2 * 1.925), rel=0.07) and y == 3.0
    assert z == pytest.approx(RADIUS, abs=1e-4)
    assert env.task.commands.ball_velocity.abs().max() < 1e-5
    still(env, 10)
    assert env.task.commands.ball[0, 0].item() == pytest.approx(x, abs=1e-5)  # and there it stays


def test_a_ball_rolls_down_a_slope(robot: robots.Robot) -> None:
    """Pulled by P = m g sin(slope) at its centre, with F and M as in
    `test_a_ball_rolls_to_a_stop`: P - F = m a and F r - M = 2/5 m r a, so that

        a = (P/m - k (g - P/m)) / (7/5 + k), k = mu_r / r = 0.342,

    and at 20 degrees a = (3.355 - 0.342 * 6.455) / 1.742 = 0.659 m/s^2, a bit more as contacts are
    soft. At 10 degrees k (g - P/m) = 2.77 is more than P/m = 1.70: it rests.
    """
    for slope, speed in ((10.0, 0.0), (20.0, 0.659)):
        env = dribble_env(robot, 1, slope_deg=slope, **PLAIN)
        put(env, (0.0, 3.0))
        still(env, 51)
        velocity = env.task.commands.ball_velocity[0].tolist()
        assert velocity[0] == pytest.approx(speed, rel=0.1, abs=0.01)
        assert velocity[1] == pytest.approx(0.0, abs=1e-4)


def test_a_ball_bounces_as_its_damping_says(robot: robots.Robot) -> None:
    """Dropped by 0.5 m, the less damped one rises higher afterwards."""
    rises = []
    for damping in (0.1, 0.4, 1.0):
        env = dribble_env(robot, 1, damping=damping, **PLAIN)
        put(env, (0.0, 3.0))
        env.robots.sim.qpos[:, env.robots.sim.model.joint("ball").qposadr[0] + 2] = RADIUS + 0.5
        heights = []
        for _ in range(40):
            still(env, 1)
            heights.append(env.task.commands.ball[0, 2].item() - RADIUS)
        landed = next(step for step, height in enumerate(heights) if height < 0.02)
        rises.append(max(heights[landed:]))
    assert rises[0] > 2.0 * rises[1] > 4.0 * max(rises[2], 0.0)


def test_drag_leaves_of_a_speed_what_its_law_leaves() -> None:
    """dv/dt = -(c/m) v^2 from 4 m/s, c/m = 2 per metre, 0.5 s in 25 steps: 4 / (1 + 2 * 4 * 0.5) =
    0.8 m/s."""
    velocity, drag, mass = (
        torch.tensor([[2.4, -3.2, 0.0]]),
        torch.tensor([[0.9]]),
        torch.tensor([[0.45]]),
    )
    # c |v|^2 in no time
    assert drag_force(velocity, drag, mass, 0.0).norm().item() == pytest.approx(0.9 * 4.0**2)
    for _ in range(25):
        velocity = velocity + drag_force(velocity, drag, mass, 0.02) / mass * 0.02
    torch.testing.assert_close(velocity, torch.tensor([[0.48, -0.64, 0.0]]))


def test_balls_differ_as_they_were_drawn(robot: robots.Robot) -> None:
    env = dribble_env(robot, 32, at_feet=0.0)
    task, model = env.task, env.robots.sim.model
    still(env, 15)
    # they lie on the floor
    torch.testing.assert_close(task.commands.ball[:, 2], task.commands.radius, atol=2e-3, rtol=0)
    for values, (low, high) in (
        (task.commands.radius, (0.105, 0.129)),
        (task.commands.mass, (0.36, 0.54)),
        (task.commands.drag, (0.1, 0.8)),
    ):
        assert low <= values.min() < low + 0.2 * (high - low)
        assert high - 0.2 * (high - low) < values.max() <= high
    fields = env.robots.sim.expand(["body_mass", "body_inertia"])
    ball = model.body("ball").id
    torch.testing.assert_close(fields["body_mass"][:, ball].float(), task.commands.mass)
    expected = 0.4 * task.commands.mass * task.commands.radius.square()  # a solid sphere's
    found = fields["body_inertia"][:, ball].float()
    torch.testing.assert_close(found, expected.unsqueeze(-1).expand(-1, 3))
    before = task.commands.unit.clone()
    env.reset(torch.arange(32) < 4)
    assert (task.commands.unit != before).any(-1).tolist() == [True] * 4 + [False] * 28


def test_a_ball_far_away_changes_nothing_of_the_robot(robot: robots.Robot) -> None:
    env, plain = dribble_env(robot, 2, **PLAIN), walk_env(robot, 2)
    put(env, (0.0, 4.0))
    for t in range(50):
        action = 0.3 * torch.sin(torch.arange(24.0) + 0.3 * t).view(2, 12)
        a, b = env.step(action), plain.step(action)
    torch.testing.assert_close(a.state.pack(), b.state.pack(), atol=1e-6, rtol=0)


def test_a_foot_kicks_the_ball(robot: robots.Robot) -> None:
    """The ball lies 1 cm ahead of the left fore foot, which swings forward."""
    env = dribble_env(robot, 1, **PLAIN)
    env.reset(ball=torch.tensor([[0.451 + 0.031 + RADIUS + 0.01, 0.246]]))
    action = torch.zeros(1, 12)
    action[0, 1] = -0.5  # of the left fore hip: the leg swings forward
    speed = 0.0
    for _ in range(25):
        env.step(action)
        speed = max(speed, env.task.commands.ball_velocity[0, 0].item())
    assert speed > 0.2


def seen_at(env: DribbleEnv) -> Tensor:
    """Where the policy sees balls, in the world."""
    seen, state = env.task.observe()[:, :2], env.state
    turn = geometry.yaw_matrix(geometry.yaw_of(state.root_rot))[:, :2, :2]
    return state.root_pos[:, :2] + geometry.to_world(turn, seen)


def test_a_ball_is_seen_late_and_noisily(robot: robots.Robot) -> None:
    """0.1 s are 5 control steps: what is seen is where the ball was then, the target as it is."""
    late, exact = (dribble_env(robot, 2, seen=(s, 0.0), **PLAIN) for s in (0.1, 0.0))
    places = []
    for env in (late, exact):
        put(env, (1.0, 0.5), 1.0)
        env.task.begin(torch.arange(2), env.generator)
    for _ in range(8):
        places.append(exact.task.commands.ball[:, :2])
        torch.testing.assert_close(seen_at(exact), places[-1])
        torch.testing.assert_close(seen_at(late), places[max(0, len(places) - 6)])
        still(late, 1)
        still(exact, 1)

    noisy = dribble_env(robot, 512, seen=(0.0, 0.03), **PLAIN)
    still(noisy, 1)
    assert (seen_at(noisy) - noisy.task.commands.ball[:, :2]).std().item() == pytest.approx(
        0.03, rel=0.1
    )


# --- what is seen ---


def test_positions_are_seen_from_the_heading() -> None:
    """Facing +y at (1, 2): (0, 5) is 3 m ahead and 1 m to the left, whatever the lean."""
    lean = geometry.exp_so3(torch.tensor([0.0, 0.4, 0.0]))
    rotation = (geometry.yaw_matrix(torch.tensor(math.pi / 2)) @ lean).unsqueeze(0)
    state = RobotState.still(torch.tensor([[1.0, 2.0, 0.5]]), rotation, torch.zeros(1, 12))
    seen = in_heading(state, torch.tensor([[[0.0, 5.0], [1.0, 2.0]]]))
    torch.testing.assert_close(seen, torch.tensor([[[3.0, 1.0], [0.0, 0.0]]]), atol=1e-6, rtol=0)


def test_observations_are_egocentric(robot: robots.Robot) -> None:
    """Everything moved and turned in the plane looks the same."""
    env = dribble_env(robot, 3)
    task, before = env.task, env.task.observe()
    expected = in_heading(env.state, task.commands.target.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(before[:, 2:], expected)
    turn, shift = geometry.yaw_matrix(torch.tensor(2.1)), torch.tensor([5.0, -7.0, 0.0])
    moved = env.state._replace(
        root_pos=env.state.root_pos @ turn.T + shift, root_rot=turn @ env.state.root_rot
    )
    env.robots.state = moved
    q = env.robots.sim.model.joint("ball").qposadr[0]
    env.robots.sim.qpos[:, q : q + 3] = (task.commands.ball @ turn.T + shift).double()
    task.commands.target = task.commands.target @ turn[:2, :2].T + shift[:2]
    torch.testing.assert_close(task.observe(), before, atol=1e-5, rtol=0)


def test_a_policy_may_observe_the_radius(robot: robots.Robot) -> None:
    """In the last column; the others are as without it."""
    env = dribble_env(robot, 3, observes_radius=True)
    observed = env.task.observe()
    assert list(env.task.inputs) == [*INPUTS, "ball_radius_m"]
    torch.testing.assert_close(observed[:, 4], env.task.commands.radius)
    torch.testing.assert_close(observed[:, :4], dribble_env(robot, 3).task.observe())
    # the script's commands and features do not depend on it
    script = DribbleScript(env.task.config.teacher)
    seen = observe(env, torch.ones(3, dtype=torch.bool))
    command, _ = script.step(seen, ())
    without, _ = script.step(seen._replace(task=observed[:, :4]), ())
    torch.testing.assert_close(command, without)
    torch.testing.assert_close(script.features(observed), script.features(observed[:, :4]))


def test_a_trained_policy_determines_whether_the_radius_is_observed() -> None:
    with_radius = {"command": [*INPUTS, "ball_radius_m"]}
    assert Dribble.resolve(DribbleConfig(), None, with_radius).observes_radius
    observes = DribbleConfig(observes_radius=True)
    assert not Dribble.resolve(observes, None, {"command": list(INPUTS)}).observes_radius
    # of a module's record, which has no inputs
    assert Dribble.resolve(observes, None, {}) == observes


def test_episodes_begin_with_the_ball_at_a_fore_foot_or_around(robot: robots.Robot) -> None:
    near = dribble_env(robot, 64, at_feet=1.0).task.observe()
    # foot at 0.46 m, ball's and foot's radius, the gap
    assert bool(((near[:, 0] > 0.6) & (near[:, 0] < 0.95)).all())
    assert bool(((near[:, 1].abs() - 0.246).abs() < 1e-3).all())
    assert 10 < (near[:, 1] > 0).sum() < 54
    around = torch.linalg.vector_norm(
        dribble_env(robot, 64, at_feet=0.0).task.observe()[:, :2], dim=-1
    )
    assert 1.0 <= around.min() < 1.2 and 2.3 < around.max() <= 2.5


# --- targets ---


def test_the_target_jumps_by_two_metres_every_five_seconds(robot: robots.Robot) -> None:
    found = jumped(torch.ones(1, 2), torch.tensor([0.25]), 2.0)
    torch.testing.assert_close(found, torch.tensor([[1.0, 3.0]]))
    env = dribble_env(robot, 16)
    task = env.task
    assert len(set(task.commands.left.tolist())) > 8  # not all at once
    task.commands.left = torch.tensor([1, 250] * 8)
    for t in range(252):
        before, left = task.commands.target.clone(), task.commands.left.clone()
        task.advance(task.evaluate_step(), env.generator)  # no robot moves
        gone = torch.linalg.vector_norm(task.commands.target - before, dim=-1)
        torch.testing.assert_close(gone, torch.where(left == 1, 2.0, 0.0), atol=1e-5, rtol=0)
        assert bool((task.commands.left == torch.where(left == 1, 250, left - 1)).all())
        assert (left == 1).tolist() == [t in (0, 250), t == 249] * 8


def test_a_schedule_asks_the_same_of_all_robots_whatever_happens(robot: robots.Robot) -> None:
    env = dribble_env(robot, 4)
    task = env.task

    def moves(falls: bool) -> list[Tensor]:
        env.schedule(600, torch.Generator().manual_seed(1))
        env.generator.manual_seed(2 + falls)
        env.reset()
        seen = []
        for t in range(600):
            if falls and t == 100:
                env.reset(torch.tensor([True, False, False, False]))
            before = task.commands.target
            task.advance(task.evaluate_step(), env.generator)
            if t % 250 == 249:
                seen.append(task.commands.target - before)
        env.schedule(0, None)
        return seen

    first, second = moves(False), moves(True)
    assert len(first) == 2
    torch.testing.assert_close(first, second, atol=1e-5, rtol=0)


# --- what steps are worth ---


def test_the_reward_is_the_published_one(robot: robots.Robot) -> None:
    env = dribble_env(robot, 3)
    goal = BallGoal.of(env.task.goal())
    far = torch.tensor([[0.0, 0.0], [0.6, 0.8], [0.0, 2.0]])
    reward = BallReward(2.0)(env.state, goal._replace(target=goal.ball + far).pack())
    torch.testing.assert_close(reward, torch.tensor([1.0, math.exp(-0.5), math.exp(-2.0)]))
    step = env.step(torch.zeros(3, 12))
    distance = torch.linalg.vector_norm(step.metrics["ball"] - step.metrics["target"], dim=-1)
    torch.testing.assert_close(step.rewards[:, 0], torch.exp(-distance.square()))
    torch.testing.assert_close(step.error, distance)


def test_a_ball_too_far_away_ends_the_episode(robot: robots.Robot) -> None:
    env = dribble_env(robot, 3, **PLAIN)
    q = env.robots.sim.model.joint("ball").qposadr[0]
    env.robots.sim.qpos[:, q : q + 2] = torch.tensor(
        [[4.9, 0.0], [5.1, 0.0], [2.0, 0.0]], dtype=torch.float64
    )
    env.task.commands.target = torch.tensor([[3.0, 0.0], [3.0, 0.0], [-3.1, 0.0]])
    step = env.step(torch.zeros(3, 12))
    assert step.terminated.tolist() == [False, True, True]
    assert step.metrics["lost"].tolist() == [False, True, True]


def test_the_figures_of_a_trial_by_hand(robot: robots.Robot) -> None:
    """Two robots for 10 s. The first ball lies 2 m from its target, and 0.3 m in the last second
    before each jump; the second always 0.6 m. Of all steps 0.8 half are 0.6 m, so that is the lower
    median of (0.3, 0.6 .., 2)."""
    dt, steps = 0.02, 500
    to_jump = ((250 - torch.arange(steps) % 250) * dt).unsqueeze(-1).expand(-1, 2)
    error = torch.full((steps, 2), 0.6)
    error[:, 0] = torch.where(to_jump[:, 0] <= 1.001, 0.3, 2.0)
    fell = torch.zeros(steps, 2, dtype=torch.bool)
    fell[100, 1] = True
    seen = {"to_jump_s": to_jump, "ball_speed": torch.full((steps, 2), 0.25), "lost": fell.clone()}
    figures = dribble_env(robot, 1).task.figures(Trial(seen, error, fell, torch.zeros(1, 1), dt))
    assert figures["ball_target_median_m"] == pytest.approx(0.6)  # 100 at 0.3, 500 at 0.6, 400 at 2
    # the lower of as many at 0.3 and 0.6
    assert figures["ball_target_before_jump_median_m"] == pytest.approx(0.3)
    assert figures["survived"] == 0.5 and figures["ball_speed_mps"] == pytest.approx(0.25)
    assert figures["falls_per_minute"] == pytest.approx(3.0)
    assert figures["lost_per_minute"] == pytest.approx(3.0)


# --- through a model ---


def test_a_goal_goes_on_as_in_the_simulator(robot: robots.Robot) -> None:
    """A ball far from the robot rolls 0.3 s: targets stay, places agree within 3.5 cm of some 20.
    (Kicked balls, which `ROLLING` is fitted to, slip and brake less than one that rolls.)"""
    env = dribble_env(robot, 3, drag=(0.3, 0.3), at_feet=0.0)
    put(env, (0.0, 3.0), 1.0)
    goal = env.task.goal()
    target = goal[:, 4:6].clone()
    for _ in range(15):
        env.step(torch.zeros(3, 12))
        goal = env.task.next_goal(goal, env.state)
    assert torch.equal(goal[:, 4:6], target)
    torch.testing.assert_close(goal[:, :2], env.task.commands.ball[:, :2], atol=0.035, rtol=0)


def test_the_imagined_loss_by_hand(robot: robots.Robot) -> None:
    """Balls 1 m and 3 m from their targets after the first and the second of two steps, which count
    one to two: 2 (1 + 2 * 3) / 3. A robot that stands and is told to stand owes nothing more; one
    that is told to walk does."""
    env = dribble_env(robot, 1, distance_weight=2.0)
    env.reset(ball=torch.tensor([[0.6, 0.2]]))
    task, still = env.task, RobotState(*(part.expand(2, *part.shape) for part in env.state))
    goals = task.goal().expand(2, 1, -1).clone()
    goals[0, :, 4] = goals[0, :, 0] + 1.0
    goals[1, :, 4] = goals[1, :, 0] + 3.0
    goals[..., 5] = goals[..., 1]
    alone = Dribble(robot, DribbleConfig(distance_weight=2.0, teacher_weight=0.0))
    flat = torch.zeros(1, 0)
    alone.parts.loss.env = env  # type: ignore[union-attr]
    expected = pytest.approx(14.0 / 3.0, abs=1e-3)
    assert alone.imagined_loss(still, still, goals, flat).task.item() == expected
    assert task.imagined_loss(still, still, goals, flat).task.item() > 14.0 / 3.0 + 0.05
    goals[..., 4] = goals[..., 0]
    # the root of 1e-4
    expected = pytest.approx(2.0 * 0.01, abs=1e-3)
    assert task.imagined_loss(still, still, goals, flat).task.item() == expected
