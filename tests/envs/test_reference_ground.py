"""Imitation over stairs: robots start on their motions, on the ground that these carry."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.ground_profile import CELL_M, GroundProfile
from mocap_data.store import MotionSet
from npmp.envs.reference import ReferenceFrames
from npmp.envs.reference_ground import ReferenceGround
from npmp.envs.starts import StartPoses
from npmp.envs.state import RobotState
from npmp.learning.world_model.imagination import above_ground
from npmp.robots import Robot
from npmp.tasks import ImitationEnv
from retarget.over_ground import over_ground
from retarget.prepared_robot import PreparedRobot
from retarget.quality import QualityMeter
from tests.environments import imitation_env

PERIOD_M = 8.0


def stepped(height: float) -> GroundProfile:
    """Blocks of `height` [m] every metre, 0.5 m long with their risers."""
    return GroundProfile(np.tile(np.repeat([0.0, height], 10), 8))


@pytest.fixture(scope="module")
def on_stairs(robot: Robot, motions: MotionSet) -> MotionSet:
    """Of the first motion: on a floor, on blocks, on the same a period further, on higher ones."""
    prepared = PreparedRobot.of(robot)
    flat = motions.motions[0]
    low = over_ground(replace(flat, name="low"), stepped(0.05), prepared)
    further = low.qpos + np.eye(low.qpos.shape[1])[0] * PERIOD_M
    again = replace(low, name="again", qpos=further)
    high = over_ground(replace(flat, name="high"), stepped(0.08), prepared)
    return replace(motions, motions=(flat, low, again, high))


@pytest.fixture(scope="module")
def env(robot: Robot, on_stairs: MotionSet) -> ImitationEnv:
    return imitation_env(robot, on_stairs, 4)


def start(env: ImitationEnv, frame: int) -> None:
    clip = torch.arange(4)
    env.reset(clip=clip, frame=env.task.tracking.reference.start + frame)


def follow(env: ImitationEnv) -> Tensor:
    """The action that asks for the reference's next joint angles."""
    tracking = env.task.tracking
    return tracking.reference.at(tracking.frame + 1).joint_pos - env.home


@pytest.mark.parametrize("frame", [0, 40, 90])
def test_a_robot_on_its_reference_is_imagined_in_its_posture(env: ImitationEnv, frame: int) -> None:
    """Heights and tilts of imagined robots count from the same ground as the reference's."""
    start(env, frame)
    tracking = env.task.tracking
    reference = tracking.reference
    tracked = reference.tracked(reference.at(tracking.frame))
    above = above_ground(
        RobotState(*(part.unsqueeze(0) for part in tracked)),
        env.ground,
        env.ground.patch(env.state),
    )
    frames = ReferenceFrames(*(part[tracking.frame] for part in reference.above_ground))
    expected = reference.tracked(frames)
    torch.testing.assert_close(above.root_pos[0], expected.root_pos, atol=0.02, rtol=0.0)
    torch.testing.assert_close(above.root_rot[0], expected.root_rot, atol=0.05, rtol=0.0)
    torch.testing.assert_close(above.root_vel[0], expected.root_vel, atol=1e-4, rtol=0.0)
    assert not torch.allclose(expected.root_rot[3], tracked.root_rot[3], atol=0.01) or frame == 0


@pytest.mark.parametrize("frame", [0, 40, 90])
def test_robots_start_on_their_ground(
    env: ImitationEnv, robot: Robot, on_stairs: MotionSet, frame: int
) -> None:
    """Their feet are as high above the terrain's triangles as above the motions' profiles."""
    start(env, frame)
    tracking = env.task.tracking
    meter = QualityMeter(robot)
    poses = [motion.qpos[frame] for motion in on_stairs.motions]
    np.testing.assert_allclose(tracking.qpos().numpy(), poses, atol=1e-5)
    state = env.state
    feet = env.feet(state.root_pos, state.root_rot, state.joint_pos)[:, :, 0]
    above = feet[..., 2] - env.ground.height_in_world(feet[..., :2])
    profiles = [motion.ground or GroundProfile(np.zeros(160)) for motion in on_stairs.motions]
    for i, motion in enumerate(on_stairs.motions):
        x = meter.feet(motion)[frame, :, 0]
        world = x[:, 2] + motion.ground_at(x[:, 0], robot.foot_radius)
        expected = world - profiles[i].height_at(x[:, 0])
        np.testing.assert_allclose(above[i].numpy(), expected, atol=1e-4)


def test_motions_with_the_same_ground_share_a_field(env: ImitationEnv) -> None:
    start(env, 0)
    assert env.ground.field.tolist() == [0, 1, 1, 2]
    # the motion of the next period is simulated in the first, beside the same motion
    torch.testing.assert_close(env.state.root_pos[2], env.state.root_pos[1], atol=1e-5, rtol=0)
    assert env.ground.moved[2, 0] == env.ground.moved[1, 0] - PERIOD_M
    for _ in range(10):
        step = env.step(follow(env))
    assert not step.terminated.any() and step.error.max() < 0.3
    torch.testing.assert_close(step.error[2], step.error[1], atol=1e-3, rtol=0)


def test_observations_are_as_on_a_floor(
    env: ImitationEnv, robot: Robot, motions: MotionSet
) -> None:
    """Of a robot whose motion is on a floor, elsewhere in the world."""
    start(env, 30)
    alone = imitation_env(robot, replace(motions, motions=motions.motions[:1]), 1)
    alone.reset(clip=torch.tensor([0]), frame=torch.tensor([30]))
    observed = env.task.observe()[:1]
    torch.testing.assert_close(observed, alone.task.observe(), atol=2e-4, rtol=0)


@pytest.mark.parametrize("frame", [0, 50])
def test_the_root_is_as_high_above_the_local_patch_as_in_the_simulation(
    env: ImitationEnv, frame: int
) -> None:
    """A demonstration stores states and patches at that height."""
    start(env, frame)
    local = env.ground.local(env.state)
    ground = env.ground.above(local.root_pos[:, None, :2], env.ground.local_patch(env.state))[:, 0]
    in_world = env.ground.height_in_world(env.state.root_pos[:, :2])
    above = env.state.root_pos[:, 2] - in_world
    torch.testing.assert_close(local.root_pos[:, 2] - ground, above, atol=2e-4, rtol=0)
    # elsewhere patches are at the world's height
    assert not bool(env.ground.patch(env.state)[:, 0].any())
    assert bool(env.ground.local_patch(env.state)[:, 0].any())


def test_imagined_robots_observe_the_same(env: ImitationEnv) -> None:
    """Of the robot a period further, too, whose state was moved back."""
    start(env, 50)
    task = env.task
    state = env.ground.integrated(env.state)
    patch = env.ground.patch(env.state)
    none = state.root_pos[:, :0]
    imagined = task.imagine(state, task.goal(), partial(env.ground.above, patch=patch), none, none)
    torch.testing.assert_close(imagined, task.observe())
    # the ground under the feet, in the world, is where the physics has it
    feet = env.feet(env.state.root_pos, env.state.root_rot, env.state.joint_pos)[:, :, 0]
    under = env.ground.about_feet(state, patch)[:, :4]
    torch.testing.assert_close(under, env.ground.height_in_world(feet[..., :2]), atol=2e-4, rtol=0)


def test_the_reference_above_its_ground(env: ImitationEnv, motions: MotionSet) -> None:
    """Roots are as high above the mean ground under their feet as on the floor, within a block."""
    reference = env.task.tracking.reference
    heights = reference.above_ground.root_pos[:, 2].view(4, -1)
    flat = torch.tensor(motions.motions[0].qpos[:, 2]).float()
    torch.testing.assert_close(heights[0], flat, atol=1e-5, rtol=0)
    assert (heights - flat).abs().max() < 0.08


def test_robots_that_change_the_motion_are_put_down(env: ImitationEnv) -> None:
    start(env, 20)
    env.task.tracking.rejoin(torch.tensor([True, False, True, True]))
    state = env.state
    feet = env.feet(state.root_pos, state.root_rot, state.joint_pos)[:, :, 0]
    clearance = feet[..., 2] - env.feet.radius - env.ground.height_in_world(feet[..., :2])
    assert clearance.amin(-1)[[0, 2, 3]].abs().max() < 0.02
    tracking = env.task.tracking
    expected = tracking.reference.at(tracking.frame).root_pos[:, :2]
    integrated = env.ground.integrated(state).root_pos[:, :2]
    torch.testing.assert_close(integrated, expected, atol=1e-4, rtol=0)


def test_a_ground_of_another_period_is_refused(on_stairs: MotionSet) -> None:
    other = replace(on_stairs.motions[1], ground=GroundProfile(np.zeros(100)))
    with pytest.raises(InputError, match=f"after {100 * CELL_M:g} m, expected 8 m"):
        ReferenceGround([other])


def test_walks_start_on_motions_of_flat_ground_only(robot: Robot, on_stairs: MotionSet) -> None:
    """The home pose, and the 100 frames of the one motion on a floor."""
    generator = torch.Generator().manual_seed(0)
    stairs_only = replace(on_stairs, motions=on_stairs.motions[1:])
    start = StartPoses(robot, stairs_only, share=1.0).sample(50, generator)
    home = torch.tensor(robot.home_joints)
    assert (start.qpos[:, 7:] == home).all()
    both = StartPoses(robot, on_stairs, share=1.0).sample(50, generator)
    recorded = torch.tensor(on_stairs.motions[0].qpos[:, 7:])
    assert (both.qpos[:, None, 7:] == recorded).all(-1).any(-1).all()
