"""Footsteps by hand: where feet may stand, how they swing, when a plan waits."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp import robots
from npmp.core import geometry
from npmp.envs.legs import Legs
from npmp.envs.policy import bind, observe
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.envs.rollout import Transition, rollout
from npmp.envs.state import RobotState
from npmp.evaluation.handover import Handover
from npmp.evaluation.policy import Pushed
from npmp.evaluation.trial import run_trial
from npmp.robots import Robot
from npmp.skills import modules
from npmp.skills.camera_map import CameraMap
from npmp.skills.composition import over
from npmp.skills.elevation_map import CELL_M
from npmp.skills.footsteps import (
    BLIND_SPEED,
    CLEARANCE,
    DOWN_M,
    DUTY,
    EDGE_M,
    FARTHEST_FOOT,
    FEET_S,
    HIGHER_M,
    LARGEST_LEAD,
    LOWEST_HIP,
    NARROW_EDGE_M,
    SHORT_M,
    STANDS_M,
    WAIT,
    FootstepPolicy,
    Plan,
    mean_pose,
    pitched,
    swing_waits,
)
from npmp.skills.skill_module import SkillModule
from npmp.tasks import Walk, WalkConfig
from tests.environments import walk_env

AHEAD = torch.tensor([[0.5, 0.0, 0.0]])
# no robot is in free fall
STANDING = torch.tensor([False])


@pytest.fixture(scope="module")
def go2() -> Robot:
    return robots.load("unitree_go2")


@pytest.fixture(scope="module")
def trained() -> SkillModule:
    return SkillModule.load(modules.find("go2_ground"))


class Bound:
    """A policy bound to a Go2 at a command (n, 3) on ground of a height (function of x and y)."""

    def __init__(
        self, go2: Robot, trained: SkillModule, command: Tensor, height: Any = None, **settings: Any
    ):
        """settings: of `WalkConfig`."""
        self.policy = FootstepPolicy(trained, go2)
        batch = RobotBatchConfig().like(trained)
        clock_s = self.policy.contract.clock_s
        n = len(command)
        self.env = walk_env(
            go2,
            n,
            robots=batch,
            clock_s=clock_s,
            command_range=((-1.0, 1.0),) * 3,
            ground_noise_m=0.0,
            **settings,
        )
        self.env.schedule(10_000, None)
        self.env.task.commands.fix(command[None])
        self.env.reset()
        bind(self.policy, self.env)
        self.command = command
        home = self.policy.home.expand(n, -1)
        place = torch.tensor([0.0, 0.0, float(go2.home_qpos[2])]).expand(n, 3)
        # at the origin along x
        self.robots = RobotState.still(place, torch.eye(3).expand(n, 3, 3), home)
        if height is not None:
            self.env.ground.height_at = lambda at, robots: height(at[..., 0], at[..., 1])  # type: ignore[method-assign,assignment]

    def plans(self, steps: int) -> list[Plan]:
        """The plans of robots that follow them exactly."""
        policy = self.policy
        plan = policy._begun(self.robots)
        plans = []
        for t in range(steps):
            phase = torch.full((len(self.command),), t * self.env.dt / policy.period_s % 1.0)
            plan = policy._advanced(plan, self.command, torch.ones_like(phase), phase, phase < 0)
            plans.append(plan)
        return plans

    def feet(self, plan: Plan) -> Tensor:
        """Lowest points of the feet of a plan's latest frame, (n, F, 3)."""
        policy = self.policy
        joints = plan.window.joints[:, -1]
        centres = policy.legs.feet(plan.root_pos, plan.root_rot, joints)[:, :, 0]
        return centres - torch.tensor([0.0, 0.0, policy.radius])


def test_the_mean_pose_is_that_of_the_imitated_motions(trained: SkillModule) -> None:
    height, up, joints = mean_pose(trained)
    assert 0.27 < height < 0.30  # a Go2 stands at 0.28 m
    torch.testing.assert_close(up, torch.tensor([0.0, 0.0, 1.0]), atol=0.05, rtol=0.0)
    assert joints.shape == (12,)


def test_on_level_ground_it_is_a_trot(go2: Robot, trained: SkillModule) -> None:
    bound = Bound(go2, trained, AHEAD)
    plans = bound.plans(100)
    swings = torch.stack([plan.swings[0] for plan in plans[50:]])
    # diagonal feet together, a share of 1 - duty in the air
    torch.testing.assert_close(swings[:, 0], swings[:, 3])
    torch.testing.assert_close(swings[:, 1], swings[:, 2])
    assert swings.float().mean().item() == pytest.approx(1.0 - DUTY, abs=0.03)
    feet = torch.stack([bound.feet(plan)[0] for plan in plans[50:]])
    standing = ~swings[1:] & ~swings[:-1]
    moved = (feet[1:] - feet[:-1]).norm(dim=-1)[standing]
    assert moved.max().item() < 1e-3
    assert feet[..., 2].min().item() > -2e-3
    expected = CLEARANCE * bound.policy.height_m
    assert feet[..., 2].max().item() == pytest.approx(expected, rel=0.1)
    # as fast as commanded: 50 steps are a second
    travelled = plans[99].root_pos - plans[49].root_pos
    torch.testing.assert_close(travelled, AHEAD, atol=0.01, rtol=0.0)
    velocity = plans[99].window.vectors[:, -1, -2]
    torch.testing.assert_close(velocity, AHEAD, atol=0.02, rtol=0.0)


def test_at_command_zero_all_feet_stand(go2: Robot, trained: SkillModule) -> None:
    bound = Bound(go2, trained, torch.zeros(1, 3))
    plans = bound.plans(60)
    assert not any(bool(plan.swings.any()) for plan in plans)
    torch.testing.assert_close(plans[-1].position, plans[0].position)


def test_footholds_keep_away_from_edges(go2: Robot, trained: SkillModule) -> None:
    # a gap from 0.5 to 0.82 m, borders of the map's cells, of 0.5 m in depth
    def height(x: Tensor, y: Tensor) -> Tensor:
        return torch.where((x > 0.5) & (x < 0.82), -0.5, 0.0)

    bound = Bound(go2, trained, AHEAD, height)
    policy = bound.policy
    margin = policy.radius + EDGE_M
    trot = torch.tensor([[0.55, 0.1], [0.75, 0.1], [0.3, 0.1]])
    robot = torch.zeros(3, dtype=torch.long)
    start = policy._begun(bound.robots)
    at = policy._foothold(start, trot, torch.zeros(3), robot)
    assert at[0, 0].item() <= 0.5 - margin < at[0, 0].item() + 0.03
    assert at[1, 0].item() - 0.03 < 0.82 + margin <= at[1, 0].item()
    torch.testing.assert_close(at[2], torch.tensor([0.3, 0.1, 0.0]))
    # all footholds of a walk over it
    for plan in bound.plans(120):
        x = plan.foothold[0, :, 0]
        assert bool(((x <= 0.5 - margin + 1e-6) | (x >= 0.82 + margin - 1e-6)).all())
        assert plan.foothold[0, :, 2].abs().max().item() < 1e-6
    assert plan.root_pos[0, 0].item() > 0.9


def test_a_foothold_is_nearer_to_edges_where_no_place_is_far_from_them(
    go2: Robot, trained: SkillModule
) -> None:
    """A beam of three of the map's cells has room for a foot with the narrow margin only. A foot
    beside it steps onto it, as far as it reaches; those on level ground and far away do not."""
    middle = 15 * CELL_M
    half = 1.5 * CELL_M

    def height(x: Tensor, y: Tensor) -> Tensor:
        return -0.5 * ((x > 0.2) & ((x - middle).abs() > half))

    bound = Bound(go2, trained, AHEAD, height)
    policy = bound.policy
    assert policy.radius + NARROW_EDGE_M < half < policy.radius + EDGE_M
    start = policy._begun(bound.robots)
    near = 3.0 * 0.072 * policy.height_m  # three steps of the search
    trot = torch.tensor([[2.0, 0.1], [middle + near, 0.1], [0.0, 0.1], [middle, 0.1]])
    none = torch.zeros(4)
    robot = torch.zeros(4, dtype=torch.long)
    valid = policy._search(start, trot, none, robot, EDGE_M)[1]
    assert valid.tolist() == [False, False, True, False]
    at = policy._foothold(start, trot, none, robot)
    expected = [[2.0, 0.1, -DOWN_M], [middle, 0.1, 0.0], [0.0, 0.1, 0.0], [middle, 0.1, 0.0]]
    torch.testing.assert_close(at, torch.tensor(expected))


def test_a_short_swing_beside_higher_ground_waits() -> None:
    lifted = torch.tensor([0.2, 0.1, 0.0]).expand(4, 3)
    length = torch.tensor([0.5, 1.0, 1.5, 2.0]) * SHORT_M
    low, high = HIGHER_M
    up = torch.tensor([high, 0.5 * (low + high), 2.0 * high, high])
    foothold = lifted + torch.stack((length, torch.zeros(4), up), -1)
    waits = swing_waits(lifted, foothold, foothold[:, 2])
    expected = WAIT * torch.tensor([[1.0, 0.0], [0.5, 0.0], [0.5, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(waits, expected)
    # the way back is its mirror image; by noise, or where nothing is known, none waits
    torch.testing.assert_close(swing_waits(foothold, lifted, foothold[:, 2]), expected.flip(-1))
    assert not swing_waits(lifted, lifted, lifted[:, 2] + low).any()
    assert not swing_waits(lifted, foothold, torch.full((4,), -math.inf)).any()


def test_a_foot_beside_a_step_rises_before_it_moves(go2: Robot, trained: SkillModule) -> None:
    """From 3 cm in front of the face of a step of 0.12 m: where the foot would touch the face, it
    is above the step."""
    bound = Bound(go2, trained, AHEAD)
    policy = bound.policy
    plan = policy._begun(bound.robots)
    step = torch.zeros(1, 4, 3)
    step[0, 0] = torch.tensor([SHORT_M, 0.0, 0.12])
    foothold = plan.lifted + step
    highest = foothold[..., 2]
    waits = swing_waits(plan.lifted[0], foothold[0], highest[0])[None]
    plan = plan._replace(foothold=foothold, highest=highest, waits=waits)
    face = plan.lifted[0, 0, 0].item() + 0.03
    beside = []
    for share in torch.linspace(0.0, 1.0, 51):
        swing = torch.tensor([[1.0, 0.0, 0.0, 0.0]]) * share
        plan = policy._framed(plan, swing, STANDING)
        foot = bound.feet(plan)[0, 0].tolist()
        if abs(foot[0] - face) < policy.radius:
            beside.append(foot[2])
    assert len(beside) > 5
    # by more than the clearance of a swing that waits less
    assert min(beside) > 0.15
    # it arrives
    assert foot == pytest.approx(foothold[0, 0].tolist(), abs=3e-3)


def test_no_foothold_is_much_lower_than_the_last_where_there_is_none(
    go2: Robot, trained: SkillModule
) -> None:
    bound = Bound(go2, trained, AHEAD, lambda x, y: torch.where(x > 0.2, -0.5, 0.0))
    trot = torch.tensor([[1.0, 0.0]])
    robot = torch.zeros(1, dtype=torch.long)
    start = bound.policy._begun(bound.robots)
    at = bound.policy._foothold(start, trot, torch.zeros(1), robot)
    torch.testing.assert_close(at, torch.tensor([[1.0, 0.0, -DOWN_M]]))


def test_feet_swing_over_a_step_and_the_root_rises_with_them(
    go2: Robot, trained: SkillModule
) -> None:
    bound = Bound(go2, trained, AHEAD, lambda x, y: torch.where(x > 0.6, 0.12, 0.0))
    lowest = []
    for plan in bound.plans(160):
        feet = bound.feet(plan)[0]
        beyond = feet[:, 0] > 0.6
        lowest += feet[beyond, 2].tolist()
    assert min(lowest) > 0.115
    assert plan.root_pos[0, 2].item() == pytest.approx(0.12 + bound.policy.height_m, abs=0.005)


def test_the_root_is_lowered_where_a_leg_is_too_short(go2: Robot, trained: SkillModule) -> None:
    def height(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(x < 0.6, 0.0, -0.27)

    bound = Bound(go2, trained, AHEAD, height)
    plans = bound.plans(150)
    standing = torch.stack([~plan.swings[0] for plan in plans])
    above = torch.stack([(bound.feet(plan) - plan.lifted)[0, :, 2] for plan in plans])
    # with a root over the mean of the footholds a foot hangs 5.4 cm above its own
    assert above[standing].max().item() < 0.025
    assert plans[-1].lifted[0, :, 2].max().item() == pytest.approx(-0.27, abs=1e-3)


def test_the_limit_of_a_root_over_its_feet(go2: Robot, trained: SkillModule) -> None:
    bound = Bound(go2, trained, torch.zeros(1, 3))
    policy = bound.policy
    longest = FARTHEST_FOOT * policy.legs.length[0]
    far = torch.tensor([0.0, 10.0, 10.0, 10.0])  # only the first foot is low

    def limit(plan: Plan, foot: Tensor, share: float = 0.0) -> float:
        feet = torch.cat((foot.expand(4, 2), far[:, None] - 0.3), -1)[None]
        swings = torch.tensor([[share > 0.0, False, False, False]])
        plan = plan._replace(swings=swings, foothold=feet)
        under = feet.clone()
        if share > 0.0:
            under[0, 0] = 5.0
        return policy._support_limit(plan, under, torch.tensor([[share, 0.0, 0.0, 0.0]])).item()

    plan = policy._begun(bound.robots)._replace(root_rot=torch.eye(3)[None])
    hip = policy.legs.hips[0] + plan.root_pos[0]
    # 7, 24, 25: the foot is 0.28 of the leg in front of its hip
    ahead = hip[:2] + torch.stack((0.28 * longest, torch.tensor(0.0)))
    down = -0.3 + policy.radius - policy.height_m
    expected = down + 0.96 * longest - policy.legs.hips[0, 2]
    assert limit(plan, ahead) == pytest.approx(expected.item(), abs=1e-6)
    # out of reach: the hip stays above its foot
    lowest = down + LOWEST_HIP * policy.legs.length[0] - policy.legs.hips[0, 2]
    assert limit(plan, ahead + longest) == pytest.approx(lowest.item(), abs=1e-6)

    # turned to the left by 90 degrees and pitched by 0.3 rad, in the middle of a swing
    x, y, z = policy.legs.hips[0].tolist()
    cos, sin = math.cos(0.3), math.sin(0.3)
    local = torch.tensor([x * cos - z * sin, y, x * sin + z * cos])
    rotation = geometry.yaw_matrix(torch.tensor([0.5 * math.pi])) @ pitched(torch.tensor([0.3]))
    velocity = torch.tensor([[0.5, 0.2, 0.0]])
    plan = plan._replace(root_rot=rotation, yaw=torch.tensor([0.5 * math.pi]), velocity=velocity)
    lands_s = 0.5 * (1.0 - DUTY) * policy.period_s
    forwards = local[0] + 0.5 * lands_s + 0.28 * longest
    left = local[1] + 0.2 * lands_s
    place = plan.root_pos[0, :2] + torch.stack((-left, forwards))
    expected = down + 0.96 * longest - local[2]
    assert limit(plan, place, share=0.5) == pytest.approx(expected.item(), abs=1e-5)


def test_a_plan_waits_for_its_robot(go2: Robot, trained: SkillModule) -> None:
    bound = Bound(go2, trained, AHEAD.repeat(3, 1))
    policy = bound.policy
    plan = bound.plans(50)[-1]
    here = plan.window.vectors[:, 1, 0]
    behind = policy.height_m * torch.tensor([0.0, 0.51, 2.0])
    robots = bound.robots._replace(
        root_pos=here - behind.unsqueeze(-1) * torch.tensor([1.0, 0.0, 0.0])
    )
    expected = torch.tensor([1.0, 0.5, 0.0])
    torch.testing.assert_close(policy._pace(plan, robots), expected, atol=1e-4, rtol=0.0)
    # and does not get farther away than LARGEST_LEAD: it is moved back in H steps
    offset, _ = policy._offset(plan, robots)
    back = policy._beside(plan, robots).position - plan.position
    back = policy.horizon * back
    torch.testing.assert_close(back[:2], torch.zeros(2, 2), atol=1e-5, rtol=0.0)
    assert back[2, 0].item() == pytest.approx(
        LARGEST_LEAD * policy.height_m - offset[2, 0].item(), abs=1e-5
    )


def test_robots_turned_by_a_right_angle_have_the_same_plan(
    go2: Robot, trained: SkillModule
) -> None:
    bound = Bound(go2, trained, AHEAD.repeat(2, 1))
    turn = geometry.yaw_matrix(torch.tensor([0.0, torch.pi / 2]))
    state = bound.robots._replace(root_rot=turn)
    policy = bound.policy
    plan = policy._begun(state)
    for t in range(40):
        phase = torch.full((2,), t * bound.env.dt / policy.period_s % 1.0)
        plan = policy._advanced(plan, bound.command, torch.ones(2), phase, phase < 0)
    joints = plan.window.joints[:, -1]
    torch.testing.assert_close(joints[0], joints[1], atol=1e-3, rtol=0.0)
    moved = (plan.root_pos - state.root_pos).unsqueeze(1) @ turn
    torch.testing.assert_close(moved[0], moved[1], atol=1e-3, rtol=0.0)


def test_the_module_follows_it(go2: Robot, trained: SkillModule) -> None:
    bound = Bound(go2, trained, AHEAD.repeat(4, 1))
    policy = over(bound.policy, trained)
    trial = run_trial(policy, bound.env, seconds=4.0, commands=bound.command[None])
    assert not trial.fell.any()
    speed = trial.metrics["achieved"][100:, :, 0].mean().item()
    assert speed == pytest.approx(0.5, abs=0.05)


def test_a_robot_that_begins_again_gets_a_new_plan(go2: Robot, trained: SkillModule) -> None:
    bound = Bound(go2, trained, AHEAD.repeat(2, 1))
    policy = over(bound.policy, trained)
    states: list[Transition] = []
    after = rollout(policy, bound.env, 30, states.append)
    plan = after.policy.upper
    is_first = torch.tensor([True, False])
    bound.env.reset(is_first)
    observation = observe(bound.env, is_first)
    seen = trained.prior.observe(observation.state, observation.task)
    observation = observation._replace(z_before=after.policy.z, prior=seen)
    _, anew = bound.policy.step(observation, plan)
    start = bound.env.state.root_pos[0, :2]
    torch.testing.assert_close(anew.position[0], start, atol=0.01, rtol=0.0)
    moved = torch.linalg.vector_norm(anew.position[1] - plan.position[1]).item()
    assert 0.002 < moved < 0.02


def test_a_dropped_robot_reaches_for_the_ground(go2: Robot, trained: SkillModule) -> None:
    """From 0.2 m above stairs with an edge under the front feet: they are planned on a tread beside
    the edge, and in the air the body is level although its feet are not."""
    front = Legs(go2).at(torch.tensor(go2.home_joints, dtype=torch.float32)[None])[0][0, 0, 0]
    edge = front.item() + 0.01
    bound = Bound(go2, trained, torch.zeros(1, 3), lambda x, y: 0.1 * (x > edge))
    policy = bound.policy
    robots = bound.robots._replace(root_pos=bound.robots.root_pos + torch.tensor([0.0, 0.0, 0.2]))
    none = torch.zeros(1)
    drops = ~STANDING
    plan = policy._dropped(policy._begun(robots), drops)
    away = (plan.lifted[0, :2, 0] - edge).abs()
    assert away.min().item() > EDGE_M + policy.radius - 0.5 * CELL_M
    heights = 0.1 * (plan.lifted[0, :, 0] > edge)
    torch.testing.assert_close(plan.lifted[0, :, 2], heights, atol=1e-5, rtol=0.0)
    # in all frames the robot is where it lands
    landed = heights.mean() + policy.height_m
    torch.testing.assert_close(plan.window.vectors[0, :, 0, 2], landed.expand(policy.horizon + 1))
    torch.testing.assert_close(bound.feet(plan)[0, :, 2], heights, atol=3e-3, rtol=0.0)
    # one that does not fall stands on its feet
    standing = policy._dropped(policy._begun(robots), STANDING).lifted
    assert standing[0, :, 2].min().item() > 0.15
    # feet in the air move neither footholds nor map
    in_air = policy._on_feet(plan, policy._feet(robots), drops)
    torch.testing.assert_close(in_air.lifted, plan.lifted)
    torch.testing.assert_close(in_air.map.level, torch.zeros(1))
    for _ in range(10):
        plan = policy._advanced(plan, bound.command, none + 1.0, none, drops)
    assert plan.support[0, 1].item() == pytest.approx(-torch.tan(policy.pitch).item(), abs=1e-5)
    after = policy._advanced(plan, bound.command, none + 1.0, none, STANDING)
    assert after.support[0, 1].item() != pytest.approx(plan.support[0, 1].item(), abs=1e-4)


def test_a_robot_dropped_beside_a_hole_waits_at_rest(go2: Robot, trained: SkillModule) -> None:
    def height(x: Tensor, y: Tensor) -> Tensor:
        return torch.where((x > 0.0) & (y > 0.0), -0.25, 0.0)

    bound = Bound(go2, trained, torch.zeros(1, 3), height)
    policy = bound.policy
    robots = bound.robots._replace(root_pos=bound.robots.root_pos + torch.tensor([0.0, 0.0, 0.2]))
    plan = policy._dropped(policy._begun(robots), ~STANDING)
    assert plan.lifted[0, :, 2].min().item() == pytest.approx(-0.25, abs=1e-5)
    # below the mean of its footholds
    assert plan.support[0, 0].item() < plan.lifted[0, :, 2].mean().item() - 0.01
    torch.testing.assert_close(
        plan.window.vectors[0, :, -2:], torch.zeros(policy.horizon + 1, 2, 3), atol=1e-4, rtol=0.0
    )


def test_each_robot_is_dropped_alone(go2: Robot, trained: SkillModule) -> None:
    """From 0.2 and 0.04 m, standing, and over unknown ground: plans are as those of single
    robots, and those that do not drop are unchanged."""
    bound = Bound(go2, trained, torch.zeros(4, 3))
    policy = bound.policy

    def height_at(at: Tensor, robots: Tensor) -> Tensor:
        unknown = (robots == 3).view(-1, *([1] * (at.dim() - 2)))
        return torch.where(unknown, math.nan, torch.zeros_like(at[..., 0]))

    bound.env.ground.height_at = height_at  # type: ignore[method-assign,assignment]
    above = torch.tensor([0.2, 0.04, 0.2, 0.2])
    off = torch.stack((0.0 * above, 0.0 * above, above), -1)
    robots = bound.robots._replace(root_pos=bound.robots.root_pos + off)
    begun = policy._begun(robots)
    plan = policy._dropped(begun, torch.tensor([True, True, False, True]))
    torch.testing.assert_close(plan.lifted[0, :, 2], torch.zeros(4), atol=1e-5, rtol=0.0)
    for field in ("lifted", "root_pos", "support"):
        torch.testing.assert_close(getattr(plan, field)[1:], getattr(begun, field)[1:])
    torch.testing.assert_close(plan.window.joints[1:], begun.window.joints[1:])


def test_what_it_needs_is_named(go2: Robot, trained: SkillModule, robot: Robot) -> None:
    policy = FootstepPolicy(trained, go2)
    env = walk_env(go2, 1, robots=RobotBatchConfig().like(trained))
    with pytest.raises(InputError, match=r"footsteps need .* a clock; set task.clock_s=0.5"):
        policy.bind(env)
    with pytest.raises(InputError, match="the policy was trained for task 'walk'"):
        policy.check_task(SimpleNamespace(name="recover", policies_of=()))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expected four legs"):
        FootstepPolicy(SkillModule.load(modules.find("op3_cmu")), robots.load("op3"))


def test_each_robot_steps_on_its_own_ground(go2: Robot, trained: SkillModule) -> None:
    bound = Bound(go2, trained, AHEAD.repeat(2, 1))
    # the second robot's ground rises by 0.1 m
    rises = torch.tensor([0.0, 0.1])

    def height_at(at: Tensor, robots: Tensor) -> Tensor:
        rise = rises[robots].view(-1, *([1] * (at.dim() - 2)))
        return torch.where(at[..., 0] > 0.5, rise, 0.0)

    bound.env.ground.height_at = height_at  # type: ignore[method-assign,assignment]
    plan = bound.plans(160)[-1]
    torch.testing.assert_close(plan.foothold[..., 2], rises[:, None].expand(2, 4))


def test_footholds_move_to_the_feet_that_stand(go2: Robot, trained: SkillModule) -> None:
    bound = Bound(go2, trained, AHEAD)
    policy = bound.policy
    plan = bound.plans(55)[-1]
    stands = plan.window.stands[0, 1:].all(0)
    assert 0 < stands.sum().item() < 4
    aside = plan.lifted + torch.tensor([0.05, 0.0, policy.radius])
    moved = policy._on_feet(plan, aside, STANDING).lifted - plan.lifted
    expected = 0.05 * bound.env.dt / FEET_S * stands
    torch.testing.assert_close(moved[0, :, 0], expected, atol=1e-6, rtol=1e-4)
    # not to one in the air
    raised = int(stands.nonzero()[0])
    aside[0, raised, 2] += 2.0 * STANDS_M
    lifted = policy._on_feet(plan, aside, STANDING).lifted
    torch.testing.assert_close(lifted[0, raised], plan.lifted[0, raised])


def test_a_map_that_is_off_is_raised_to_the_feet(go2: Robot, trained: SkillModule) -> None:
    bound = Bound(go2, trained, torch.zeros(1, 3))
    policy = bound.policy
    plan = bound.plans(2)[-1]
    high = plan.lifted + torch.tensor([0.0, 0.0, policy.radius + 2.0 * STANDS_M])
    for _ in range(100):
        plan = policy._on_feet(plan, high, STANDING)
    expected = torch.full((1,), 2.0 * STANDS_M)
    torch.testing.assert_close(plan.map.level, expected, atol=2e-3, rtol=0.0)


def test_an_episode_begins_in_the_robot_s_pose(go2: Robot, trained: SkillModule) -> None:
    bound = Bound(go2, trained, torch.zeros(1, 3))
    first, *_, last = bound.plans(60)
    torch.testing.assert_close(first.root_pos, bound.robots.root_pos, atol=0.01, rtol=0.0)
    torch.testing.assert_close(first.root_rot, bound.robots.root_rot, atol=0.01, rtol=0.0)
    assert last.root_pos[0, 2].item() == pytest.approx(bound.policy.height_m, abs=1e-3)


def test_unknown_ground_around_a_foothold_costs(go2: Robot, trained: SkillModule) -> None:
    bound = Bound(go2, trained, AHEAD, lambda x, y: torch.where(x > 0.5, math.nan, 0.05))
    policy = bound.policy
    start = policy._begun(bound.robots)
    robot = torch.zeros(3, dtype=torch.long)
    trot = torch.tensor([[0.2, 0.0], [0.48, 0.0], [5.0, 0.0]])
    at = policy._foothold(start, trot, torch.full((3,), 0.02), robot)
    torch.testing.assert_close(at[0], torch.tensor([0.2, 0.0, 0.05]))
    # away from the border, as far as a foot and its margin reach
    assert at[1, 0].item() < 0.5 - policy.radius - EDGE_M
    # where nothing is known it steps as the trot does, at the height of before
    torch.testing.assert_close(at[2], torch.tensor([5.0, 0.0, 0.02]))


def test_a_foot_that_hangs_is_put_down_where_the_robot_stands(
    go2: Robot, trained: SkillModule
) -> None:
    bound = Bound(go2, trained, torch.zeros(1, 3))
    policy = bound.policy
    plan = bound.plans(30)[-1]
    feet = plan.lifted + torch.tensor([0.0, 0.0, policy.radius])
    feet[0, 0, 2] += 0.02
    torch.testing.assert_close(policy._on_feet(plan, feet, STANDING).lifted, plan.lifted)
    # where it moves the ground may be higher than mapped
    moving = plan._replace(velocity=AHEAD)
    rise = policy._on_feet(moving, feet, STANDING).lifted[0, 0, 2] - plan.lifted[0, 0, 2]
    assert rise.item() == pytest.approx(0.02 * bound.env.dt / FEET_S, rel=1e-3)


def test_a_camera_fills_the_map_of_a_walking_robot(go2: Robot, trained: SkillModule) -> None:
    camera = {"place_m": [0.3, 0.0, 0.05], "size": [32, 18], "pitch_deg": 45.0}
    ground = {"terrain": "slopes", "terrain_level": 0.5, "terrain_starts": "uphill"}
    bound = Bound(go2, trained, AHEAD, camera=camera, **ground)
    policy = bound.policy
    assert isinstance(policy.map, CameraMap)
    env = bound.env
    after = rollout(over(policy, trained), env, 120, lambda step: None)
    plan = after.policy.upper
    robots = env.ground.integrated(env.state)
    ahead = robots.root_rot[:, :2, 0].unsqueeze(1) * torch.tensor([-0.3, 0.4, 0.7]).view(-1, 1)
    first = torch.zeros(1, dtype=torch.long)
    true = env.ground.height_at(robots.root_pos[:, None, :2] + ahead, first)
    assert true[0, 2].item() - true[0, 0].item() > 0.1
    position = plan.odometry.root_pos
    mapped = policy.map.height_at(plan.map, position[:, None, :2] + ahead, first)
    # above the root: the odometry has drifted a little
    expected = true - robots.root_pos[:, 2:]
    torch.testing.assert_close(mapped - position[:, 2:], expected, atol=0.04, rtol=0.0)


def test_a_blind_robot_walks_at_half_the_speed(go2: Robot, trained: SkillModule) -> None:
    bound = Bound(go2, trained, AHEAD.repeat(2, 1), camera="stereo")
    policy = bound.policy
    plan = policy._begun(bound.robots)
    seen = plan.map._replace(blind_s=torch.tensor([0.0, 10.0]))
    pace = policy._pace(plan._replace(map=seen), bound.robots)
    torch.testing.assert_close(pace, torch.tensor([1.0, BLIND_SPEED]))


def test_a_task_may_have_any_camera(go2: Robot, trained: SkillModule) -> None:
    settings = FootstepPolicy(trained, go2).contract.input_settings
    config = Walk.resolve(WalkConfig(camera="flight"), None, settings)
    assert config.camera == "flight"


@pytest.mark.parametrize("wrap", ["pushed", "handover"])
def test_wrapped_policies_are_bound(go2: Robot, trained: SkillModule, wrap: str) -> None:
    bound = Bound(go2, trained, AHEAD)
    walking = over(FootstepPolicy(trained, go2), trained)
    wrapped: Any
    if wrap == "pushed":
        wrapped = Pushed(walking, bound.env, torch.zeros(1, 1, 2))
    else:
        wrapped = Handover.__new__(Handover)
        wrapped.walking = walking
    bind(wrapped, bound.env)
    assert walking.upper.env is bound.env
