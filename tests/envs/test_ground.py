"""Walking on rough ground: where robots stand, that the ground has no edge, levels, checkpoints,
what critics see."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp import robots
from npmp.core.geometry import levelled
from npmp.core.settings import changed
from npmp.envs.ground import RoughGround
from npmp.envs.policy import Observation, PolicyOutput
from npmp.envs.state import RobotState
from npmp.evaluation.trial import run_trial
from npmp.learning.world_model.imagination import above_ground
from npmp.sim.terrain import KINDS, PERIOD_M
from npmp.tasks.inputs import MAP_POINTS, GroundMap, _occluded, ground_names
from npmp.tasks.terminations import FloorContacts
from npmp.tasks.velocity import heading_velocity
from npmp.tasks.walk import WalkConfig, WalkEnv
from tests.environments import walk_env


def rough_env(
    robot: robots.Robot, n: int, terrain: str = "perlin", fields: int = 6, **settings: Any
) -> WalkEnv:
    return walk_env(robot, n, terrain=terrain, terrain_fields=fields, **settings)


def ground_of(env: WalkEnv) -> RoughGround:
    assert isinstance(env.ground, RoughGround)
    return env.ground


def still(env: WalkEnv) -> Tensor:
    return torch.zeros(env.num_envs, env.num_actions)


@pytest.mark.parametrize("kind", (*KINDS, "mixed"))
def test_robots_start_on_the_ground_and_stand(robot: robots.Robot, kind: str) -> None:
    env = rough_env(robot, 14, kind, fields=7)
    data = mujoco.MjData(env.robots.sim.model)
    clearance = []
    feet = [f"{leg}_foot" for leg in ("LF", "RF", "LH", "RH")]  # spheres
    for qpos in env.robots.qpos:
        data.qpos[:] = qpos.numpy()
        mujoco.mj_forward(env.robots.sim.model, data)
        assert all(contact.dist > -0.005 for contact in data.contact)
        center = torch.tensor(
            np.array([data.geom(name).xpos for name in feet]), dtype=torch.float32
        )
        height = center[:, 2] - robot.foot_radius - ground_of(env).terrain.height_at(center[:, :2])
        clearance.append(height.min().item())
    assert min(clearance) > -1e-4 and max(clearance) < 0.02
    rotation = env.state.root_rot
    assert bool((rotation[:, 2, 2] > 1.0 - 1e-6).all())  # level
    assert len(set(rotation[:, 0, 0].tolist())) == 14  # facing anywhere
    for _ in range(20):
        assert not env.step(still(env)).terminated.any()
    assert not env.fallen(env.state).any()


class Nudged:
    """Stands, and is put just beyond the period's edge before its third step."""

    def __init__(self, env: WalkEnv):
        self.env, self.steps, self.by = env, 0, torch.zeros(3)

    def initial_state(self, n: int) -> Tensor:
        return torch.zeros(n, 1)

    def step(self, observation: Observation, state: Tensor) -> tuple[PolicyOutput, Tensor]:
        env = self.env
        self.steps += 1
        if self.steps == 3:
            edge = ground_of(env).terrain.corner[0, 0] + PERIOD_M + 0.02
            self.by = torch.stack(
                (edge - env.state.root_pos[0, 0], torch.tensor(0.0), torch.tensor(0.5))
            )
            env.robots.shift(torch.tensor([0]), self.by[None])
        return PolicyOutput(still(env)), state


def test_a_trial_is_told_as_if_no_robot_was_moved_back(robot: robots.Robot) -> None:
    env = rough_env(robot, 2, "stairs", fields=2, terrain_seed=2)
    actor = Nudged(env)
    trial = run_trial(actor, env, seconds=0.12)
    ground, places = ground_of(env), trial.qpos[:, :2]
    assert ground.moved[0].tolist() == [-PERIOD_M, 0.0]
    torch.testing.assert_close(places[-1], places[0] + actor.by[:2], atol=0.02, rtol=0.0)
    here = env.state.root_pos[:1, :2]
    at = env.ground.height_at(here - ground.moved[:1], torch.tensor([0]))
    torch.testing.assert_close(at, ground.terrain.height_at(here), atol=1e-4, rtol=0.0)
    height, stood = trial.metrics["base"][:, 1, 2], robot.home_qpos[2]
    assert (height - stood).abs().max() < 0.1
    assert ground.terrain.height_at(env.state.root_pos[1, :2]).item() < -0.15


def test_imagined_feet_are_above_the_ground_beneath_them(robot: robots.Robot) -> None:
    env = rough_env(robot, 7, "slopes", drag_weight=0.7, press_weight=0.0, lift_weight=0.0)
    for _ in range(5):
        env.step(still(env))
    walk, state = env.task, env.ground.integrated(env.state)
    patch = env.ground.patch(env.state)
    centers = env.feet(state.root_pos, state.root_rot, state.joint_pos)
    ground = env.ground.height_at(centers[..., :2], torch.arange(env.num_envs))
    relief = ground.mean(-1) - patch[:, :1]
    under = env.ground.about_feet(state, patch)[:, :4]
    torch.testing.assert_close(under, relief, atol=1e-4, rtol=0)
    # postures count from there, too: two moments
    both = RobotState(*(torch.stack((part, part)) for part in state.above(patch[:, 0])))
    stood = state.root_pos[:, 2] - ground.mean((-1, -2))  # over feet, and over a foot's points
    for height in above_ground(both, env.ground, patch).root_pos[..., 2]:
        torch.testing.assert_close(height, stood, atol=1e-4, rtol=0)
    # two moments as imagination has them, heights above the patch; feet then 0.5 m/s on along x
    lowered = state.root_pos - torch.nn.functional.pad(patch[:, :1], (2, 0))
    along = torch.tensor([0.5 * env.dt, 0.0, 0.0])
    states = RobotState(*(torch.stack((part, part)) for part in state))
    states = states._replace(root_pos=torch.stack((lowered - along, lowered)))
    middle = env.ground.height_at(centers[..., :2] - 0.5 * along[:2], torch.arange(env.num_envs))
    height = centers[..., 2] - robot.foot_radius - middle
    share = (1.0 - height / walk.config.stepping.swing_height_m).clamp(0.0, 1.0).mean(-1).amax(-1)
    owed = walk.imagined_loss(states, states, torch.zeros(2, 7, 3), patch)
    torch.testing.assert_close(owed.style, 0.7 * 0.5 * share, atol=1e-3, rtol=1e-3)
    assert bool((share > 0.5).any())  # standing on slopes, feet are on them


def test_postures_count_from_the_slope_of_the_ground(
    robot: robots.Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a plane that rises by 0.3 along x and falls by 0.2 along y, a robot that stands level is
    tilted by that, and one that stands along its normal is upright."""
    env = rough_env(robot, 3, "slopes")
    gradient = torch.tensor([0.3, -0.2])
    monkeypatch.setattr(env.ground, "above", lambda points, patch: points[..., :2] @ gradient)
    state = env.ground.integrated(env.state)
    patch = env.ground.patch(env.state)
    _, slope = env.ground.plane(state, patch)
    torch.testing.assert_close(slope, gradient.expand(3, 2), atol=1e-3, rtol=0.0)

    normal = torch.tensor([-0.3, 0.2, 1.0]) / math.sqrt(1.13)
    flat = state._replace(root_rot=torch.eye(3).repeat(3, 1, 1))
    along = state._replace(root_rot=levelled(gradient).T.repeat(3, 1, 1))
    for posture, up in ((flat, normal), (along, torch.tensor([0.0, 0.0, 1.0]))):
        one = RobotState(*(part.unsqueeze(0) for part in posture))
        vertical = above_ground(one, env.ground, patch).root_rot[0, :, 2]
        torch.testing.assert_close(vertical, up.expand(3, 3), atol=1e-3, rtol=0.0)


def test_a_robot_that_crosses_the_edge_goes_on_as_if_there_were_none(robot: robots.Robot) -> None:
    """The same robot a period further on, moved back by the step, does what the one that stayed
    does."""
    env = rough_env(robot, 2, fields=1)
    ground = ground_of(env)
    for name in ("state", "history"):
        value = getattr(env.robots, name)
        setattr(env.robots, name, value[[0, 0]])
    env.robots.sim.restore(env.robots.sim.snapshot()[[0, 0]])
    home = env.state.root_pos[0, :2] - ground.terrain.corner[0]
    # to the edge of the period, then one of them beyond it
    to_edge = torch.cat((0.3 - home[:1], torch.zeros(2))).expand(2, 3).clone()
    to_edge[:, 2] = 0.15
    env.robots.shift(torch.arange(2), to_edge)
    env.robots.shift(torch.tensor([1]), torch.tensor([[PERIOD_M, 0.0, 0.0]]))
    apart = env.state.root_pos[1] - env.state.root_pos[0]
    assert apart.tolist() == pytest.approx([PERIOD_M, 0.0, 0.0], abs=1e-5)
    for t in range(10):
        env.step(0.2 * torch.sin(torch.arange(12.0) + 0.3 * t).expand(2, 12))
        torch.testing.assert_close(env.robots.qpos[0], env.robots.qpos[1], atol=1e-5, rtol=0)
        local = env.ground.local(env.state)
        expected = pytest.approx([PERIOD_M, 0.0, 0.0], abs=1e-4)
        assert (local.root_pos[1] - local.root_pos[0]).tolist() == expected
    expected = heading_velocity(env.state)[1]
    torch.testing.assert_close(heading_velocity(env.state)[0], expected, atol=2e-3, rtol=0)
    assert ground.moved.tolist() == [[0.0, 0.0], [-PERIOD_M, 0.0]]


def test_the_critic_sees_the_ground_in_the_heading_frame(robot: robots.Robot) -> None:
    env = rough_env(robot, 1, "slopes", fields=1)
    ground = ground_of(env)
    # halfway up the side of the pyramid that faces -x, looking along +x, then along +y
    middle = ground.terrain.corner[0] + torch.tensor([1.9, 4.0])
    state = env.state._replace(root_pos=torch.cat((middle, torch.tensor([2.0]))).unsqueeze(0))
    rise = ground.terrain.height_at(middle + torch.tensor([0.1, 0.0])) - ground.terrain.height_at(
        middle
    )
    for rotation, axis in (
        (torch.eye(3), 0),
        (torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]), 1),
    ):
        relief = ground.relief(state._replace(root_rot=rotation.unsqueeze(0))).view(11, 7)
        steps = relief.diff(dim=axis)
        # looking along +y, +x is to the right: what lies to the left is lower
        expected = torch.full_like(steps, float(rise) * (1.0, -1.0)[axis])
        torch.testing.assert_close(steps, expected, atol=1e-4, rtol=0)
        assert relief.mean().abs() < 1e-5


def test_limbs_may_touch_where_they_are_allowed_to(
    robot: robots.Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = {}
    for may_touch in ("feet", "legs", "limbs"):
        env = walk_env(robot, 1, may_touch=may_touch)
        for body in ("LF_SHANK", "LF_THIGH", "base"):
            monkeypatch.setattr(
                env.robots.sim,
                "sensor",
                lambda name, body=body: torch.tensor([[float(name == f"contact_{body}")]]),
            )
            failed[may_touch, body] = bool(env.task.part(FloorContacts)(env.state, env.task.goal()))
    allowed = [key for key, value in failed.items() if not value]
    assert allowed == [("legs", "LF_SHANK"), ("limbs", "LF_SHANK"), ("limbs", "LF_THIGH")]
    with pytest.raises(ValueError, match="may_touch"):
        WalkConfig(may_touch="hands")


def test_a_trunk_of_several_links_may_not_touch() -> None:
    env = walk_env(robots.load("unitree_g1"), 1, may_touch="limbs")
    names = env.task.part(FloorContacts).names
    assert {"contact_pelvis", "contact_torso_link", "contact_left_elbow_link"} <= {*names}
    assert not any("knee" in name or "hip" in name for name in names)


def test_levels_rise_and_fall_with_what_the_episode_was(robot: robots.Robot) -> None:
    env = rough_env(robot, 6, fields=16, terrain_curriculum=True)
    ground = ground_of(env)
    assert ground.row.tolist() == list(range(6))
    assert (ground.field // 2).tolist() == list(range(6))
    ground.field = torch.tensor([0, 3, 7, 0, 3, 7]) * 2
    assert ground.figures() == {"terrain_level": pytest.approx((1 / 8 + 4 / 8 + 1.0) / 3)}
    ground.row = torch.tensor([3, 3, 3, 3, 0, 7])
    ground.failed = torch.tensor([False, False, True, False, True, False])
    ground.commanded_m = torch.tensor([5.0, 5.0, 5.0, 0.5, 5.0, 5.0])
    ground.travelled_m = torch.tensor([2.6, 2.4, 5.0, 0.0, 0.0, 5.0])
    # far enough: up; not far enough, failed: down; asked for nothing: stay; at the bottom: stay; at
    # the top: anywhere
    env.reset()
    assert ground.row[:5].tolist() == [4, 2, 2, 3, 0] and 0 <= int(ground.row[5]) <= 7
    assert (ground.field // 2).tolist() == ground.row.tolist()
    assert ground.commanded_m.tolist() == [0.0] * 6


def test_a_robot_stays_on_its_kind_and_each_kind_has_its_levels(robot: robots.Robot) -> None:
    # 16 fields of three kinds: five levels, from 3 or 4 fields each
    env = rough_env(robot, 6, "stairs+gaps+perlin", fields=16, terrain_curriculum=True)
    ground = ground_of(env)
    assert len(ground.terrain.first) == 6

    def kinds() -> list[str]:
        return [ground.terrain.kinds[field] for field in ground.field.tolist()]

    expected = ["stairs"] * 2 + ["gaps"] * 2 + ["perlin"] * 2
    level = torch.tensor([0, 1, 2, 3, 4, 0])
    # both on stairs fail, both over gaps get across, of those on noise one does
    failed = torch.tensor([True, True, False, False, False, True])
    for _ in range(20):
        ground.row = level.clone()
        ground.failed = failed.clone()
        ground.commanded_m = torch.full((6,), 4.0)
        ground.travelled_m = torch.full((6,), 3.0)
        env.reset()
        assert kinds() == expected
        assert ground.row[:4].tolist() == [0, 0, 3, 4] and ground.row[5] == 0
        levels = [ground.terrain.levels[field] for field in ground.field.tolist()]
        assert levels == pytest.approx([(row + 1) / 5 for row in ground.row.tolist()])
    figures = ground.figures()
    assert figures["terrain_level_stairs"] == pytest.approx(0.2)
    assert figures["terrain_level_gaps"] == pytest.approx(0.9)
    assert next(iter(figures)) == "terrain_level" and len(figures) == 4


def test_a_curriculum_resumes_to_the_bit(robot: robots.Robot) -> None:
    envs = [rough_env(robot, 4, "slopes+noise", 16, terrain_curriculum=True) for _ in range(2)]
    first, second = (ground_of(env) for env in envs)
    first.row = torch.tensor([5, 2, 7, 0])
    envs[0].step(still(envs[0]))
    envs[1].load_state_dict(envs[0].state_dict())
    for env in envs:
        env.reset()
    assert torch.equal(first.row, second.row) and torch.equal(first.field, second.field)
    torch.testing.assert_close(envs[0].robots.qpos, envs[1].robots.qpos, atol=0.0, rtol=0.0)


def test_trials_have_robots_on_every_kind(robot: robots.Robot) -> None:
    env = rough_env(robot, 8, "mixed", fields=16)
    env.schedule(1, torch.Generator().manual_seed(0))
    env.reset()
    ground = ground_of(env)
    assert {ground.terrain.kinds[field] for field in ground.field.tolist()} == set(KINDS)


def test_a_curriculum_has_a_field_of_each_kind() -> None:
    with pytest.raises(InputError, match="needs at least one field of each of the 8 kinds"):
        changed(WalkConfig(), terrain="mixed", terrain_fields=7, terrain_curriculum=True)
    changed(WalkConfig(), terrain="mixed", terrain_fields=8, terrain_curriculum=True)


def test_how_far_a_robot_went_by_hand(robot: robots.Robot) -> None:
    ground = ground_of(rough_env(robot, 2))
    command = torch.tensor([[0.3, 0.4, 1.0], [0.0, 0.0, 1.0]])
    achieved = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    ground.advance(torch.tensor([False, True]), {"command": command, "achieved": achieved})
    torch.testing.assert_close(ground.commanded_m, torch.tensor([0.5 * 0.02, 0.0]))
    torch.testing.assert_close(ground.travelled_m, torch.tensor([0.6 * 0.02, 0.0]))
    assert ground.failed.tolist() == [False, True]


def test_checkpoints_of_other_ground_are_refused(robot: robots.Robot) -> None:
    rough, flat = rough_env(robot, 5, "mixed", fields=8), walk_env(robot, 5)
    kept = rough.state_dict()
    for name, value in (("field", torch.full((5,), 8)), ("row", torch.full((5,), -1))):
        with pytest.raises(ValueError, match=name):
            rough.load_state_dict({**kept, f"ground.{name}": value})
    with pytest.raises(ValueError, match="flat ground"):
        rough.load_state_dict(flat.state_dict())
    with pytest.raises(ValueError, match="rough ground"):
        flat.load_state_dict(kept)


def test_policies_see_the_ground_from_where_they_stand(robot: robots.Robot) -> None:
    env = rough_env(robot, 8, "stairs", sees_ground=True, ground_noise_m=0.0)
    told, ground = env.task.observe(), ground_of(env)
    assert told.shape == (8, 3 + 4 * len(MAP_POINTS))
    assert tuple(env.task.extra_inputs) == ground_names(robot)
    assert torch.equal(told[:, :3], env.task.commands.current)
    # one point by hand: 0.4 m ahead of the right fore foot, 5 cm to the right
    i = ground_names(robot).index("ground_RF_FOOT_+0.40_-0.05_m")
    # level, as they have just started
    x, y = env.state.root_rot[:, :2, 0], env.state.root_rot[:, :2, 1]
    foot = env.feet(env.state.root_pos, env.state.root_rot, env.state.joint_pos)[:, 1, 0, :2]
    height = ground.terrain.height_at(foot + 0.4 * x - 0.05 * y)
    expected = height - env.state.root_pos[:, 2] + float(robot.home_qpos[2])
    torch.testing.assert_close(told[:, 3 + i], expected.clamp(-0.5, 0.5), atol=1e-4, rtol=0.0)
    flat = walk_env(robot, 2, sees_ground=True, ground_noise_m=0.0)
    assert flat.task.observe()[:, 3:].abs().max() < 1e-4  # where the floor is in the home pose
    noisy = walk_env(robot, 64, sees_ground=True, ground_noise_m=0.02)
    assert noisy.task.observe()[:, 3:].std().item() == pytest.approx(0.02, rel=0.1)


def test_imagined_robots_see_what_simulated_ones_do(robot: robots.Robot) -> None:
    env = rough_env(robot, 8, "stairs", sees_ground=True, ground_noise_m=0.0, ground_drift_m=0.1)
    drift, draws = (
        env.task.part(GroundMap).drift.zero_().clone(),
        torch.zeros(8, 2, 4 * len(MAP_POINTS)),
    )
    patch = env.ground.patch(env.state)
    state = env.ground.integrated(env.state).above(patch[:, 0])
    height = partial(env.ground.above, patch=patch)
    told = env.task.imagine(state, env.task.goal(), height, drift, draws)
    torch.testing.assert_close(told, env.task.observe(), atol=1e-4, rtol=0.0)
    drift[:, 2] = 0.5  # of 0.1 m
    higher = env.task.imagine(state, env.task.goal(), height, drift, draws)
    torch.testing.assert_close(higher[:, 3:], (told[:, 3:] + 0.05).clamp(-0.5, 0.5))


@pytest.mark.parametrize(
    ("starts", "signs"), [("uphill", {1.0}), ("downhill", {-1.0}), ("up_or_down", {1.0, -1.0})]
)
def test_starts_are_before_what_is_climbed(
    robot: robots.Robot, starts: str, signs: set[float]
) -> None:
    env = rough_env(robot, 32, "flat+stairs", fields=4, terrain_starts=starts)
    ground = ground_of(env)
    climbs = torch.tensor(
        [ground.terrain.kinds[field] == "stairs" for field in ground.field.tolist()]
    )
    ahead = env.state.root_rot[:, 0, 0]  # 1 where it faces along x
    assert climbs.any() and not climbs.all()
    torch.testing.assert_close(ahead[climbs], torch.ones(int(climbs.sum())))
    assert ahead[~climbs].std() > 0.3
    higher = env.state.root_pos[:, :2] + torch.tensor([1.5, 0.0])
    rise = ground.terrain.height_at(higher) - ground.terrain.height_at(env.state.root_pos[:, :2])
    assert rise[climbs].abs().min() > 0.1
    assert set(rise[climbs].sign().tolist()) == signs
    with pytest.raises(ValueError, match=starts):
        changed(WalkConfig(), terrain="flat+perlin", terrain_starts=starts)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_map_is_as_old_as_it_says(robot: robots.Robot, steps: int) -> None:
    """Heights relative to a root that sinks by 1 cm a control step; drift moves them all."""
    env = walk_env(robot, 2, sees_ground=True, ground_noise_m=0.0, ground_delay_s=0.02 * steps)
    ids, known, read = torch.arange(2), env.task.part(GroundMap), []
    for _ in range(6):
        env.robots.shift(ids, torch.tensor([[0.0, 0.0, -0.01]]).expand(2, -1))
        known.advance(env.task.evaluate_step(), env.generator)
        read.append((known.read()[0, 0], known._heights()[0, 0]))
    for t in range(steps, 6):
        torch.testing.assert_close(read[t][0], read[t - steps][1])
    drifting = walk_env(
        robot, 64, sees_ground=True, ground_noise_m=0.0, ground_drift_m=0.05, ground_holes=0.25
    )
    heights = drifting.task.part(GroundMap).read()
    assert 0.2 < (heights == 0.0).float().mean() < 0.3
    off = heights.abs().amax(-1)  # of N(0, 5 cm) each
    assert 0.04 < off.square().mean().sqrt() < 0.06


def test_what_lies_below_an_edge_is_hidden(robot: robots.Robot) -> None:
    """From a step 0.3 m high that ends at x = 1 m, an eye at 0.45 m, 0.6 m above it, sees the floor
    from x = 1.275 m on: the sight over the edge falls by 0.6 m in 0.55 m."""
    step, floor = walk_env(robot, 1).state, torch.tensor([0.3, 0.0])

    def height(place: Tensor) -> Tensor:
        return torch.where(place[..., 0] < 1.0, *floor)

    state = step._replace(root_pos=torch.tensor([[0.0, 0.0, 0.8]]), root_rot=torch.eye(3)[None])
    place = torch.tensor([[[0.9, 0.0], [1.15, 0.0], [1.4, 0.0], [1.15, 0.3]]])
    hidden = _occluded(state, place, height(place), height)
    assert hidden.tolist() == [[False, True, False, True]]
    for kind, least, most in (("flat", 0.0, 0.0), ("stairs", 1e-3, 0.5)):
        env = walk_env(robot, 32, terrain=kind, sees_ground=True, ground_hidden=True)
        known = env.task.part(GroundMap)._heights()
        assert least <= known.isnan().float().mean() <= most
        assert env.task.part(GroundMap).read().isfinite().all()
