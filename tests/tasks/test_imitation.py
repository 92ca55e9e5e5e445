"""The imitation environment: starts on the reference, ends for the right reason, and repeats itself
to the bit."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp import tasks
from npmp.core import geometry
from npmp.envs import RobotBatchConfig
from npmp.envs.features import encoder_context
from npmp.envs.kinematics import Kinematics
from npmp.envs.reference import Reference
from npmp.envs.state import RobotState, pose_from_qpos
from npmp.envs.threads import serial_if_small
from npmp.robots import Robot
from npmp.tasks import ImitationEnv
from npmp.tasks.rewards import CURRENT, REWARD_TERMS, RewardConfig, TrackingWeights, tracking_error
from retarget.kinematics import body_states, tree_of
from tests.actuators.servos import save_knee
from tests.environments import imitation_env
from tests.refusals import refusal

make = imitation_env


def follow(env: ImitationEnv) -> Tensor:
    """The action that asks for the reference's next joint angles."""
    return (
        env.task.tracking.reference.at(
            torch.minimum(env.task.tracking.frame + 1, env.task.tracking.last_frame)
        ).joint_pos
        - env.home
    )


def all_frames(env: ImitationEnv) -> tuple[Tensor, Tensor]:
    frame = torch.arange(env.task.tracking.reference.num_frames)
    return torch.bucketize(frame, env.task.tracking.reference.start, right=True) - 1, frame


# --- the reference ---


def test_reference_poses_are_the_datasets(robot: Robot, motions: MotionSet) -> None:
    reference = Reference(robot, motions)
    assert reference.num_frames == 250 and reference.length.tolist() == [100, 150]
    poses = reference.bodies(torch.arange(250))
    tree = tree_of(robot.model())
    bodies = [body_states(tree, m) for m in motions.motions]
    expected = np.concatenate([b.position for b in bodies])
    np.testing.assert_allclose(poses.position.numpy(), expected, atol=1e-5)
    quats = np.concatenate([b.quaternion for b in bodies])
    stored_rotation = geometry.matrix_from_quat(torch.from_numpy(quats)).float()
    torch.testing.assert_close(poses.rotation, stored_rotation, atol=1e-5, rtol=0)


def test_reference_velocities_lead_from_each_frame_to_the_next(
    robot: Robot, motions: MotionSet
) -> None:
    reference = Reference(robot, motions)
    f, dt = reference.frames, reference.dt
    inside = torch.ones(250, dtype=torch.bool)
    inside[reference.start] = False
    later = torch.nonzero(inside).squeeze(-1)
    torch.testing.assert_close(f.root_pos[later - 1] + dt * f.root_vel_w[later], f.root_pos[later])
    torch.testing.assert_close(f.joint_pos[later - 1] + dt * f.joint_vel[later], f.joint_pos[later])
    turned = geometry.exp_so3(dt * f.root_ang_w[later]) @ f.root_rot[later - 1]
    torch.testing.assert_close(turned, f.root_rot[later], atol=1e-5, rtol=0)
    # no velocity leads from the end of a clip to the start of the next
    torch.testing.assert_close(f.root_vel_w[reference.start], f.root_vel_w[reference.start + 1])
    assert f.root_vel_w.norm(dim=-1).max() < 3.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: dataclasses.replace(m, motions=()), "no clips"),
        (
            lambda m: dataclasses.replace(
                m, motions=(dataclasses.replace(m.motions[0], rate_hz=60.0),)
            ),
            "60 Hz.*50 Hz.*rate_hz=50",
        ),
        (lambda m: dataclasses.replace(m, motions=(m.motions[0].crop(0, 5),)), "5 frames"),
    ],
)
def test_unusable_datasets_are_refused(
    robot: Robot, motions: MotionSet, change, message: str
) -> None:  # type: ignore[no-untyped-def]
    refusal(message, make, robot, change(motions), 1)


# --- reset ---


def test_right_after_reset_every_start_frame_is_tracked(robot: Robot, motions: MotionSet) -> None:
    env = make(robot, motions, 250)
    clip, frame = all_frames(env)
    state = env.reset(clip=clip, frame=frame)
    kinematics = Kinematics(robot.model())
    for pose in (
        (state.root_pos, state.root_rot, state.joint_pos),
        pose_from_qpos(env.robots.sim.qpos),
    ):
        error = tracking_error(kinematics(*pose), pose[2], env.task.tracking.reference.at(frame))
        assert error.max() < 1e-3
    # and by MuJoCo's own kinematics against those of the dataset's poses
    data, model, tree = (
        mujoco.MjData(env.robots.sim.model),
        env.robots.sim.model,
        tree_of(robot.model()),
    )
    stored = np.concatenate([body_states(tree, m).position for m in motions.motions])
    for i in (0, 57, 99, 100, 249):
        data.qpos[:] = env.robots.sim.qpos[i].numpy()
        mujoco.mj_kinematics(model, data)
        assert np.abs(data.xpos[1:] - stored[i]).max() < 1e-6


def test_reset_touches_only_its_robots_and_no_earlier_result(
    robot: Robot, motions: MotionSet
) -> None:
    env = make(robot, motions, 4)
    step = env.step(follow(env))
    kept, sim, frame = (
        step.state.pack().clone(),
        env.robots.sim.snapshot(),
        env.task.tracking.frame.clone(),
    )
    mask = torch.tensor([False, True, False, True])
    env.reset(mask, clip=torch.tensor([0, 1]), frame=torch.tensor([5, 120]))
    assert torch.equal(step.state.pack(), kept)
    assert torch.equal(env.robots.sim.snapshot()[~mask], sim[~mask])
    assert torch.equal(env.state.pack()[~mask], kept[~mask])
    assert env.task.tracking.frame.tolist() == [frame[0], 5, frame[2], 120]
    assert env.task.tracking.last_frame[mask].tolist() == [99, 249]
    before = env.state
    assert env.reset(torch.zeros(4, dtype=torch.bool)) is before


# --- the goal, for simulated and imagined robots ---


def test_a_goal_goes_through_its_clip_and_counts_to_the_end(
    robot: Robot, motions: MotionSet
) -> None:
    env = make(robot, motions, 3, discount=0.5)
    env.reset(clip=torch.tensor([0, 1, 1]), frame=torch.tensor([98, 120, 130]))
    task = env.task
    task.tracking.free[2] = True
    goal = task.goal()
    assert goal.tolist() == [[0.0, 98.0, 99.0], [1.0, 120.0, 249.0], [1.0, 130.0, 130.0]]
    features = task.tracking.features(task.config.future_frames)
    context = encoder_context(
        features, env.state, task.tracking.frame, task.tracking.last_frame, env.home
    )
    assert torch.equal(task.observe()[:2], context[:2])
    goals = [task.next_goal(goal, env.state)]
    goals.append(task.next_goal(goals[0], env.state))
    # robots that are where they should be, all but 0.1 rad of each joint in the second step
    frames = [torch.minimum(at[:, 1], at[:, 2]).long() for at in (goal, *goals)]
    states = [task.tracking.reference.state(frame) for frame in frames]
    states[2] = states[2]._replace(joint_pos=states[2].joint_pos + 0.1)
    weights = TrackingWeights(effort=0.0, smoothness=0.0)
    task.tracking.config = dataclasses.replace(task.config, tracking=weights)
    before, after = (
        RobotState(*(torch.stack(parts) for parts in zip(*two))) for two in (states[:2], states[1:])
    )
    owed = task.imagined_loss(before, after, torch.stack(goals), goal[:, :0])
    # 0.5 * 12 * 0.1 of the second robot's second step; weights of all steps: 1, 1 and 0.5;
    # the first's clip is over by then, the third has no reference
    expected = torch.tensor([0.0, 0.5 * 0.6 / 2.5 * 3, 0.0])
    torch.testing.assert_close(owed.task, expected, atol=1e-5, rtol=1e-4)
    assert not owed.style.any()


# --- the end of episodes ---


def test_the_end_of_a_clip_is_a_truncation(robot: Robot, motions: MotionSet) -> None:
    env = make(robot, motions, 2)
    env.reset(clip=torch.tensor([0, 1]), frame=torch.tensor([97, 200]))
    first, second = env.step(follow(env)), env.step(follow(env))
    assert first.truncated.tolist() == [False, False]
    assert second.truncated.tolist() == [True, False]
    assert not second.terminated.any()
    assert env.task.tracking.frame.tolist() == [99, 202]


def test_leaving_the_corridor_is_a_termination_even_at_the_end(
    robot: Robot, motions: MotionSet
) -> None:
    env = make(robot, motions, 3)
    env.reset(clip=torch.tensor([0, 0, 0]), frame=torch.tensor([10, 98, 98]))
    env.robots.sim.qpos[:2, 0] += 0.95  # a third of that is over 0.3
    step = env.step(follow(env))
    assert step.terminated.tolist() == [True, True, False]
    assert step.truncated.tolist() == [False, False, True]
    assert (step.error[:2] > 0.3).all() and step.error[2] < 0.3


def test_free_robots_end_by_falling_only(robot: Robot, motions: MotionSet) -> None:
    env = make(robot, motions, 3)
    env.reset(clip=torch.tensor([0, 0, 0]), frame=torch.tensor([10, 98, 10]))
    env.robots.sim.qpos[0, 0] += 2.0  # far from the reference, but on its feet
    env.robots.sim.qpos[2, 3:7] = torch.tensor([0.5, 0.866, 0.0, 0.0])  # on its side
    before = env.task.tracking.sampler.counts
    env.task.tracking.free[:] = True
    step = env.step(follow(env))
    assert step.terminated.tolist() == [False, False, True]
    assert not step.truncated.any()
    # nothing was counted
    assert (env.task.tracking.sampler.counts <= before).all()


def test_rejoining_moves_a_robot_in_the_plane_only(robot: Robot, motions: MotionSet) -> None:
    env, twin = make(robot, motions, 2), make(robot, motions, 2)
    for e in (env, twin):
        e.reset(clip=torch.tensor([1, 1]), frame=torch.tensor([130, 150]))
        e.step(follow(e) + 0.1)
    # one of the two environments is elsewhere and faces 2 rad to the left
    half, yaw = torch.tensor(1.0).double(), geometry.yaw_matrix(torch.tensor(2.0))
    cosine, sine = torch.cos(half), torch.sin(half)
    w, x, y, z = env.robots.sim.qpos[:, 3:7].clone().unbind(-1)
    turned = (
        cosine * w - sine * z,
        cosine * x - sine * y,
        cosine * y + sine * x,
        cosine * z + sine * w,
    )
    env.robots.sim.qpos[:, 3:7] = torch.stack(turned, -1)
    env.robots.sim.qpos[:, :2] += 3.0
    env.robots.sim.qvel[:, :3] = geometry.to_world(yaw.double(), env.robots.sim.qvel[:, :3].clone())
    position, rotation, _ = pose_from_qpos(env.robots.sim.qpos)
    env.robots.state = env.state._replace(root_pos=position.clone(), root_rot=rotation)
    env.task.tracking.rejoin(torch.tensor([True, False]))
    assert torch.equal(env.state.root_pos[1], position[1])  # the other robot is left where it is
    pos, rot, _ = pose_from_qpos(env.robots.sim.qpos)
    torch.testing.assert_close(env.state.root_pos, pos, atol=1e-6, rtol=0)
    torch.testing.assert_close(env.state.root_rot, rot, atol=1e-6, rtol=0)
    target = env.task.tracking.reference.at(env.task.tracking.frame)
    torch.testing.assert_close(pos[0, :2], target.root_pos[0, :2], atol=1e-5, rtol=0)
    expected = geometry.yaw_of(target.root_rot)[0]
    torch.testing.assert_close(geometry.yaw_of(rot)[0], expected, atol=1e-5, rtol=0)
    # the physics goes on as if nothing had happened, seen from the robot
    for _ in range(5):
        action = torch.full((2, 12), 0.05)
        mine, theirs = env.step(action).state[:1], twin.step(action).state[:1]
        # but for rounding and for the friction pyramids, which do not turn with the robot
        for name in ("joint_pos", "root_vel", "root_ang", "joint_vel"):
            torch.testing.assert_close(getattr(mine, name), getattr(theirs, name), atol=0.1, rtol=0)
    torch.testing.assert_close(mine.root_pos[:, 2], theirs.root_pos[:, 2], atol=1e-3, rtol=0)


def test_a_robot_that_is_sent_elsewhere_has_time_to_get_there(
    robot: Robot, motions: MotionSet
) -> None:
    """Half a second in which only a fall is a failure, and nothing is counted; then the corridor
    holds again."""
    env = make(
        robot, motions, 2, uniform_starts=1.0, reward=RewardConfig(termination_threshold=1e-6)
    )
    env.task.tracking.rejoin(torch.tensor([True, False]))
    env.task.tracking.frame[:], env.task.tracking.last_frame[:] = 110, 249
    assert env.task.tracking.grace.tolist() == [25, 0]
    visits = env.task.tracking.sampler.counts[1].sum()
    assert env.step(follow(env)).terminated.tolist() == [False, True]
    assert env.task.tracking.sampler.counts[1].sum() == pytest.approx(float(visits) + 1, abs=1e-3)
    for _ in range(24):
        assert not env.step(follow(env)).terminated[0]
    assert env.task.tracking.grace.tolist() == [0, 0]
    assert env.step(follow(env)).terminated[0]
    env.task.tracking.rejoin(torch.tensor([True, False]))
    env.task.tracking.frame[:], env.task.tracking.last_frame[:] = 110, 249
    env.robots.sim.qpos[0, 3:7] = torch.tensor([0.5, 0.866, 0.0, 0.0])  # on its side
    assert env.step(follow(env)).terminated[0]
    env.reset(torch.tensor([True, False]))
    assert env.task.tracking.grace[0] == 0


# --- the motors' current ---


def knee(folder: Path, **told: float) -> RobotBatchConfig:
    """Robots whose joints an untrained model of convolutions moves."""
    save_knee(folder, **told)
    return RobotBatchConfig(actuator=str(folder))


def test_currents_are_an_objective_of_their_own(
    robot: Robot, motions: MotionSet, tmp_path: Path
) -> None:
    """Eq. 14, beside the terms of eq. 9, which stay as they are."""
    plant = knee(tmp_path, current_scale=2.0)
    with_it, without = (
        make(robot, motions, 3, robots=plant, reward=RewardConfig(current_weight=w))
        for w in (5e-4, 0)
    )
    assert with_it.task.objectives == (*REWARD_TERMS, CURRENT)
    assert without.task.objectives == REWARD_TERMS
    for _ in range(2):
        both = [env.step(torch.zeros(3, 12)).rewards for env in (with_it, without)]
    squares = with_it.robots.current_squares
    assert squares is not None and squares.shape == (3, 12) and bool((squares > 0).all())
    torch.testing.assert_close(both[0][:, -1], -5e-4 * squares.sum(-1))
    assert torch.equal(both[0][:, :-1], both[1])


def test_currents_that_no_drive_tells_are_no_objective(
    robot: Robot, motions: MotionSet, tmp_path: Path
) -> None:
    weighed = {"reward": RewardConfig(current_weight=5e-4)}
    message = r"current_weight=0\.0005"
    refusal(message, make, robot, motions, 1, **weighed)
    message = r"its log has none"
    refusal(message, make, robot, motions, 1, robots=knee(tmp_path), **weighed)


# --- repeatability ---


def rollout(env: ImitationEnv, steps: int, seed: int = 0) -> Tensor:
    """Everything a learner gets to see of a noisy rollout with resets."""
    g = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(steps):
        step = env.step(follow(env) + 0.2 * torch.randn(env.num_envs, 12, generator=g))
        done = step.terminated | step.truncated
        rows.append(
            torch.cat(
                (step.state.pack(), step.rewards, step.error[:, None], done[:, None].float()), -1
            )
        )
        env.reset(done)
    return torch.stack(rows)


def test_the_same_seed_gives_the_same_bytes_at_any_number_of_threads(
    robot: Robot, motions: MotionSet
) -> None:
    results = []
    for threads in (1, 2):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            results.append(rollout(make(robot, motions, 200, seed=3, num_threads=threads), 15))
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
    assert results[0][..., -1].any()  # with resets in it
    assert torch.equal(*results)
    assert not torch.equal(results[0], rollout(make(robot, motions, 200, seed=4), 15))


def test_off_the_main_thread_nothing_is_switched() -> None:
    """Where robots act beside a learner at work, its sums must not change with the clock."""

    class Counting:
        num_envs = 1

        @serial_if_small
        def work(self) -> int:
            return torch.get_num_threads()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(1) as sampler:
            assert sampler.submit(Counting().work).result() == 2
        assert Counting().work() == 1 and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_tasks_hold_is_the_robots_where_nothing_else_is_said(
    robot: Robot, motions: MotionSet
) -> None:
    env = tasks.make("imitation", robot=robot, data=motions, num_envs=1, num_threads=1)
    assert env.robots.config.hold == "first_order"
    env = tasks.make(
        "imitation", robot=robot, data=motions, num_envs=1, num_threads=1, hold="zero_order"
    )
    assert env.robots.config.hold == "zero_order"
