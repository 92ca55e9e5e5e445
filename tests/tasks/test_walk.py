"""Walking by command: the task's functions by hand, its command process by statistics, its episodes
by what ends them."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet
from npmp import robots, tasks
from npmp.core import geometry
from npmp.core.settings import changed
from npmp.envs.state import RobotState
from npmp.tasks.commands import (
    CommandConfig,
    Commands,
    RecordedVelocities,
    as_command_range,
    changed_command,
    command_range_from_motions,
    sample_command,
)
from npmp.tasks.terminations import FloorContacts, Tilt
from npmp.tasks.velocity import (
    VelocityLossConfig,
    filtered,
    heading_velocity,
    must_stand,
    reachable,
    velocity_error,
    velocity_loss,
    velocity_reward,
)
from npmp.tasks.walk import FilteredVelocity, Walk, WalkConfig
from tests.environments import walk_env
from tests.refusals import refusal

RANGE = ((0.2, 1.0), (-0.3, 0.3), (-0.5, 1.5))


def gliding(
    robot: robots.Robot, forward: float, lateral: float, yaw_rate: float, *, lift: float = 0.0
) -> MotionSet:
    """The home pose carried along at constant velocities in its heading frame, for two seconds at
    50 Hz."""
    frames, dt = 100, 0.02
    yaw = 0.3 + yaw_rate * dt * np.arange(frames)
    qpos = np.tile(robot.home_qpos, (frames, 1))
    # constant velocity in the heading frame of the LATER frame of each pair
    steps = np.stack(
        (
            np.cos(yaw) * forward - np.sin(yaw) * lateral,
            np.sin(yaw) * forward + np.cos(yaw) * lateral,
        ),
        -1,
    )
    qpos[1:, :2] = np.cumsum(steps[1:] * dt, 0)
    qpos[:, 2] += lift
    qpos[:, 3], qpos[:, 6] = np.cos(yaw / 2), np.sin(yaw / 2)
    motion = ReferenceMotion("glide", qpos, rate_hz=50.0)
    return MotionSet(robot.name, robot.model_sha256, robot.joint_names, robot.body_names, (motion,))


def state_with(rotation: Tensor, linear_w: Tensor, angular_w: Tensor) -> RobotState:
    """A state of given world velocities."""
    zeros = torch.zeros(12)
    root_vel, root_ang = (geometry.to_local(rotation, v) for v in (linear_w, angular_w))
    return RobotState.still(torch.zeros(3), rotation, zeros)._replace(
        root_vel=root_vel, root_ang=root_ang
    )


# --- pure functions ---


def test_reward_is_that_of_the_equation() -> None:
    velocity = torch.tensor([[0.5, 0.1, 0.2], [1.0, 0.0, 0.0]])
    command = torch.tensor([[0.3, 0.0, -0.2], [1.0, 0.0, 0.0]])
    # differences 0.2, 0.1, 0.4: squares 0.04 + 0.01 + 0.16 = 0.21; exp(-0.21 / 0.5) = exp(-0.42)
    found = velocity_reward(velocity, command, 0.5)
    torch.testing.assert_close(found, torch.tensor([math.exp(-0.42), 1.0]))
    expected = torch.tensor([math.sqrt(0.21), 0.0])
    torch.testing.assert_close(velocity_error(velocity, command), expected)


def test_velocity_is_seen_from_the_heading_and_not_from_the_lean() -> None:
    # facing +y (a quarter turn to the left), then nose down by 0.4 rad; moving along the world's y
    # and falling
    lean = geometry.exp_so3(torch.tensor([0.0, 0.4, 0.0]))
    facing = geometry.yaw_matrix(torch.tensor(math.pi / 2))
    state = state_with(
        facing @ lean, torch.tensor([-0.2, 0.7, -0.5]), torch.tensor([0.1, 0.2, 0.9])
    )
    # forward is world y, left is world -x; the vertical velocity does not count; yaw is about the
    # world's vertical
    expected = torch.tensor([0.7, 0.2, 0.9])
    torch.testing.assert_close(heading_velocity(state), expected, atol=1e-6, rtol=0)


def test_tilt_counts_from_the_vertical_whatever_the_heading() -> None:
    for degrees, expected in ((44.0, False), (46.0, True), (179.0, True)):
        turn = geometry.exp_so3(torch.tensor([0.0, math.radians(degrees), 0.0]))
        state = state_with(
            geometry.yaw_matrix(torch.tensor(1.0)) @ turn, torch.zeros(3), torch.zeros(3)
        )
        assert bool(Tilt(45.0)(state, torch.zeros(1))) is expected


def test_command_process_by_hand() -> None:
    x = torch.tensor([0.5, 0.1, -0.2]).expand(3, 3)
    y = torch.tensor([0.9, -0.3, 1.2]).expand(3, 3)
    w = torch.tensor([[False] * 3, [True] * 3, [True] * 3])
    z = torch.tensor([[True] * 3, [True] * 3, [False] * 3])
    # w = 0 keeps x; w = z = 1 takes y; z = 0 is zero, or the end of the range nearest to it (0.2
    # for the forward velocity)
    expected = torch.tensor([[0.5, 0.1, -0.2], [0.9, -0.3, 1.2], [0.2, 0.0, 0.0]])
    torch.testing.assert_close(changed_command(x, y, w, z, RANGE), expected)
    # with a symmetric range it is the paper's x - w (x - y z)
    symmetric = ((-1.0, 1.0),) * 3
    wf, zf = w.float(), z.float()
    torch.testing.assert_close(changed_command(x, y, w, z, symmetric), x - wf * (x - y * zf))


def test_command_process_has_the_statistics_it_was_given() -> None:
    config = CommandConfig(
        command_range=RANGE, command_nonzero=(0.9, 0.25, 0.5), command_standing=0.0
    )
    generator = torch.Generator().manual_seed(0)
    n = 40_000
    marker = torch.full((n, 3), 7.0)  # outside every range: what keeps it has not changed
    kept = (sample_command(marker, config, generator) == 7.0).float().mean(0)
    # 6 deviations of a mean of 40,000
    torch.testing.assert_close(kept, torch.full((3,), 0.5), atol=0.015, rtol=0)
    fresh = sample_command(marker, config, generator, change=1.0)
    low, high = torch.tensor(RANGE).T
    assert bool(((fresh >= low) & (fresh <= high)).all())
    silent = (fresh == torch.tensor([0.2, 0.0, 0.0])).float().mean(0)
    torch.testing.assert_close(silent, torch.tensor([0.1, 0.75, 0.5]), atol=0.015, rtol=0)
    active = fresh[:, 2][fresh[:, 2] != 0.0]
    assert active.mean().item() == pytest.approx(0.5, abs=0.02)  # the middle of (-0.5, 1.5)
    # of a uniform distribution
    assert active.std().item() == pytest.approx(2.0 / math.sqrt(12.0), abs=0.02)


def test_training_has_commands_to_stand_and_trials_have_those_of_before() -> None:
    """Of all new commands 0.2 are zero, and 0.8 of the others' 0.1 x 0.5 x 0.5."""
    wide = ((-1.0, 1.0),) * 3
    some = CommandConfig(command_range=wide, command_nonzero=(0.9, 0.5, 0.5), command_standing=0.2)
    none = replace(some, command_standing=0.0)
    marker = torch.full((40_000, 3), 7.0)

    def sampled(config: CommandConfig, change: float) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return sample_command(marker, config, generator, change=change)

    def share_of_zero(command: Tensor) -> float:
        return (command == 0.0).all(-1).float().mean().item()

    new = sampled(some, 1.0)
    assert share_of_zero(new) == pytest.approx(0.2 + 0.8 * 0.025, abs=0.012)
    # commands that do not become zero are the same
    moves = (new != 0.0).any(-1)
    assert torch.equal(new[moves], sampled(none, 1.0)[moves])
    # in mid-episode: half of the changes
    assert share_of_zero(sampled(some, 0.5)) == pytest.approx(0.1, abs=0.012)

    commands = Commands(some)
    commands.bind(SimpleNamespace(num_envs=40_000, dt=0.02, device=torch.device("cpu")))
    trial = commands.sample_trial(marker, torch.Generator().manual_seed(0), change=1.0)
    assert torch.equal(trial, sampled(none, 1.0))
    commands.schedule(1, torch.Generator().manual_seed(0))
    assert commands.fixed is not None and torch.equal(commands.fixed[0], trial)


def test_schedule_changes_only_at_whole_periods() -> None:
    process = Commands(CommandConfig(command_range=RANGE, command_period_s=0.2))
    process.bind(SimpleNamespace(num_envs=50, dt=0.02, device=torch.device("cpu")))
    process.schedule(35, torch.Generator().manual_seed(1))
    commands = process.fixed
    assert commands is not None and commands.shape == (35, 50, 3)
    changes = (commands[1:] != commands[:-1]).any(-1).any(-1)
    assert torch.nonzero(changes).squeeze(-1).tolist() == [9, 19, 29]


def test_command_range_covers_what_the_motions_do(robot: robots.Robot) -> None:
    found = command_range_from_motions(gliding(robot, 0.6, -0.1, 0.8))
    for (low, high), true in zip(found, (0.6, -0.1, 0.8), strict=True):
        assert low == pytest.approx(true, abs=1e-3)
        assert high == pytest.approx(true, abs=1e-3)
    refusal("three pairs", as_command_range, [[0.0, 1.0], [0.0, 1.0]])


def two_gaits(robot: robots.Robot) -> MotionSet:
    """A turn at 0.6 m/s of weight 3, and a slow walk the other way round of weight 1."""
    turn, slow = gliding(robot, 0.6, -0.1, 0.8), gliding(robot, 0.2, 0.1, -0.3)
    clips = (
        replace(turn.motions[0], name="turn", weight=3.0),
        replace(slow.motions[0], name="slow"),
    )
    return replace(turn, motions=clips)


def test_recorded_commands_are_those_of_the_motions_together(robot: robots.Robot) -> None:
    recorded = RecordedVelocities.of(two_gaits(robot))
    # 99 velocities of each clip, 25 at a time: 75 means
    assert recorded.velocity.shape == (150, 3)
    assert recorded.weight[[0, 74, 149]].tolist() == [3.0, 225.0, 300.0]
    slower = ((0.0, 0.5), (-0.2, 0.2), (-1.0, 1.0))
    config = CommandConfig(
        command_range=slower,
        command_jitter=(0.0, 0.0, 0.0),
        command_nonzero=(0.9, 0.0, 0.0),
        command_standing=0.0,
    )
    generator, n = torch.Generator().manual_seed(0), 40_000
    marker = torch.full((n, 3), 7.0)
    fresh = sample_command(marker, config, generator, change=1.0, recorded=recorded)
    # standing 0.1, of the others three quarters turn, clipped to 0.5 m/s; no component comes from
    # elsewhere
    expected = {(0.0, 0.0, 0.0): 0.1, (0.5, -0.1, 0.8): 0.675, (0.2, 0.1, -0.3): 0.225}
    for command, share in expected.items():
        found = ((fresh - torch.tensor(command)).abs() < 1e-3).all(-1).float().mean().item()
        assert found == pytest.approx(share, abs=0.015)
    differs = sample_command(marker, config, generator, recorded=recorded) != 7.0
    assert bool((differs.all(-1) == differs.any(-1)).all())
    assert differs.float().mean().item() == pytest.approx(0.5, abs=0.015)


def test_recorded_commands_are_jittered(robot: robots.Robot) -> None:
    wide = ((-9.0, 9.0),) * 3
    config = CommandConfig(
        command_range=wide,
        command_jitter=(0.05, 0.1, 0.2),
        command_nonzero=(1.0, 1.0, 1.0),
        command_standing=0.0,
    )
    drawn = sample_command(
        torch.zeros(40_000, 3),
        config,
        torch.Generator().manual_seed(0),
        change=1.0,
        recorded=RecordedVelocities.of(gliding(robot, 0.6, -0.1, 0.8)),
    )
    torch.testing.assert_close(drawn.mean(0), torch.tensor([0.6, -0.1, 0.8]), atol=6e-3, rtol=0)
    torch.testing.assert_close(drawn.std(0), torch.tensor([0.05, 0.1, 0.2]), atol=0, rtol=0.03)


def test_every_command_of_the_task_is_a_recorded_one(robot: robots.Robot) -> None:
    still = {"command_jitter": (0.0, 0.0, 0.0), "command_period_s": 0.02, "command_change": 1.0}
    env = walk_env(robot, 8, motions=two_gaits(robot), commands="recorded", **still)
    # 0.8 rad/s are beyond the range of `walk_env`
    known = torch.tensor([[0.0, 0.0, 0.0], [0.2, 0.1, -0.3]])

    def recorded(commands: Tensor) -> bool:
        return bool(((commands.unsqueeze(-2) - known).abs() < 1e-3).all(-1).any(-1).all())

    begun = env.task.commands.current.clone()
    env.step(torch.zeros(8, 12))
    assert recorded(begun) and recorded(env.task.commands.current)
    assert not torch.equal(begun, env.task.commands.current)
    assert recorded(env.task.new_goals(torch.full((64, 3), 7.0), env.generator))
    env.schedule(5, torch.Generator().manual_seed(1))
    fixed = env.task.commands.fixed
    assert fixed is not None and recorded(fixed)
    refusal("task.commands=recorded", Walk, robot, changed(WalkConfig(), commands="recorded"))


# --- the environment ---


def test_the_home_pose_stands_and_nothing_but_feet_touches(robot: robots.Robot) -> None:
    env = walk_env(robot, 4)
    for _ in range(25):
        step = env.step(torch.zeros(4, 12))
        assert not step.terminated.any()
    assert step.rewards.shape == (4, 1)
    assert bool((heading_velocity(step.state).abs() < 0.05).all())
    torch.testing.assert_close(
        step.error,
        torch.linalg.vector_norm(heading_velocity(step.state) - env.task.commands.current, dim=-1),
    )


def test_a_fall_terminates_and_time_truncates(robot: robots.Robot) -> None:
    env = walk_env(robot, 3, episode_s=2.0)
    env.age = torch.tensor([0, 98, 98])  # the second and third have two steps left
    limp = torch.zeros(3, 12)
    fold = torch.tensor([1.0, 1.0, -1.0, -1.0])  # fore legs, hind legs
    # the third folds its legs up and drops on its belly
    limp[2, 1::3], limp[2, 2::3] = 1.2 * fold, -1.9 * fold
    fell, timed_out = torch.zeros(3, dtype=torch.bool), torch.zeros(3, dtype=torch.bool)
    for t in range(60):
        step = env.step(limp)
        assert not (step.terminated & step.truncated).any()
        if t == 1:
            assert step.truncated.tolist() == [False, True, True]
        if step.terminated[2] and not fell[2]:  # its belly touches; it has not toppled
            assert env.task.part(FloorContacts)(env.state, env.task.goal()).tolist() == [
                False,
                False,
                True,
            ]
            assert not Tilt(45.0)(step.state, env.task.goal()).any()
        fell |= step.terminated
        timed_out |= step.truncated
    assert fell.tolist() == [False, False, True]


def test_starts_on_the_reference_touch_the_floor(robot: robots.Robot) -> None:
    env = walk_env(robot, 8, motions=gliding(robot, 0.6, 0.0, 0.5, lift=0.12), reference_starts=1.0)
    # the reference floats 12 cm above the floor; its home pose stands at the home pose's height
    expected = torch.full((8,), float(robot.home_qpos[2]))
    torch.testing.assert_close(env.state.root_pos[:, 2], expected, atol=1e-5, rtol=0)
    expected = torch.tensor([[0.6, 0.0, 0.5]]).expand(8, 3)
    torch.testing.assert_close(heading_velocity(env.state), expected, atol=1e-3, rtol=0)
    assert not env.step(torch.zeros(8, 12)).terminated.any()
    mixed = walk_env(robot, 200, motions=gliding(robot, 0.6, 0.0, 0.5))
    moving = (heading_velocity(mixed.state)[:, 0] > 0.3).float().mean().item()
    assert moving == pytest.approx(0.5, abs=0.15)


def test_the_command_in_force_judges_the_step_and_changes_after_it(robot: robots.Robot) -> None:
    env = walk_env(robot, 2, command_change=1.0, command_nonzero=(1.0, 1.0, 1.0))
    env.task.commands.left = torch.tensor([1, 5])
    before = env.task.commands.current.clone()
    step = env.step(torch.zeros(2, 12))
    expected = velocity_reward(heading_velocity(step.state), before, 0.5)
    torch.testing.assert_close(step.rewards[:, 0], expected)
    assert (env.task.commands.current != before).any(-1).tolist() == [True, False]
    assert env.task.commands.left.tolist() == [150, 4]


def test_the_filter_by_hand(robot: robots.Robot) -> None:
    """c = 0.75: v <- 3/4 v + 1/4 v_new; an episode begins with the velocity it starts at."""
    found = filtered(torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0.0, 4.0, 2.0]), 0.75).tolist()
    assert found == [0.75, 1.0, 2.0]
    env = walk_env(robot, 2, velocity_filter=0.75)
    expected = heading_velocity(env.state)
    for _ in range(3):
        step = env.step(0.3 * torch.ones(2, 12))
        expected = 0.75 * expected + 0.25 * heading_velocity(step.state)
        torch.testing.assert_close(env.task.part(FilteredVelocity).value, expected)
    for wrong in (
        {"velocity_filter": 1.0},
        {"command_range": ((0.0, 1.0),)},
        {"command_range": ()},
        {"command_nonzero": (1.0,)},
        {"command_jitter": (0.1, 0.1)},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            changed(WalkConfig(), **wrong)  # type: ignore[arg-type]


def test_make_builds_by_name_and_refuses_by_name(robot: robots.Robot) -> None:
    env = tasks.make("walk", robot="anymal_b", num_envs=2, num_threads=1, phi=0.2)
    assert isinstance(env.task, Walk) and env.task.config.phi == 0.2 and env.num_envs == 2
    message = "no task 'swim'; available: dribble, imitation, navigate, guided, mapped, path, "
    refusal(message, tasks.make, "swim", robot=robot)
    refusal("no robot 'anymal_x'", tasks.make, "walk", robot="anymal_x")
    with pytest.raises(InputError, match=r"cuda:99.*(no CUDA device here|available: cpu)"):
        tasks.make("walk", robot=robot, device="cuda:99")
    refusal("no device 'gpu'", tasks.make, "walk", robot=robot, device="gpu")
    refusal("no setting 'speed'", tasks.make, "walk", robot=robot, speed=1.0)
    refusal("needs data", tasks.make, "imitation", robot=robot)


def test_an_imagined_course_s_loss_by_hand() -> None:
    # one robot at its command, then off by 1 m/s forward, then by 1 m/s sideways, then right;
    # weights 1/10 to 4/10, windows of two steps
    config, zero = (
        VelocityLossConfig(step_weight=0.5, stride_weight=2.0, stride_s=0.2),
        torch.zeros(1, 3),
    )
    off = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 0.0]])
    steps = (2 * 1 + 3 * 1) / 10
    # means (1/2, 0, 0), (1/2, -1/2, 0) and (0, -1/2, 0), weighted as their last steps
    strides = (2 * 0.5 + 3 * math.sqrt(0.5) + 4 * 0.5) / 9
    found = velocity_loss(off.unsqueeze(1), zero, config, 0.1)
    torch.testing.assert_close(found, torch.tensor([0.5 * steps + 2.0 * strides]))
    # windows no longer than all
    still = velocity_loss(torch.zeros(4, 2, 3), zero, VelocityLossConfig(stride_s=1.2), 0.1)
    assert still.tolist() == pytest.approx([2e-4, 2e-4])


def test_the_way_to_a_new_command_by_hand() -> None:
    """0.1 of a component's unit a step at most, no farther than the command, which is kept."""
    start, command = (
        torch.tensor([[0.0, 0.3, -1.0], [0.5, 0.0, 0.0]]),
        torch.tensor([[0.25, 0.3, 1.0], [0.5, 0.0, 0.0]]),
    )
    way = reachable(start, command, torch.tensor([0.1, 0.1, 0.2]), 4)
    wanted = [[0.0, 0.3, -1.0], [0.1, 0.3, -0.8], [0.2, 0.3, -0.6], [0.25, 0.3, -0.4]]
    torch.testing.assert_close(way[:, 0], torch.tensor(wanted))
    assert torch.equal(way[:, 1], command[1].expand(4, 3))


def test_a_robot_must_stand_once_there_was_time_to_brake() -> None:
    """At 1 m/s^2 and 2 rad/s^2, steps of 0.1 s: from rest at once, from 0.25 m/s after three steps,
    from 0.3 rad/s after two; at another command than zero never."""
    config = VelocityLossConfig(acceleration=(1.0, 1.0, 2.0))
    velocity = torch.tensor([[0.0, 0.0, 0.0], [0.25, 0.0, 0.0], [0.0, 0.0, -0.3], [0.0, 0.0, 0.0]])
    command = torch.zeros(4, 3)
    command[3, 2] = 0.1
    stands = must_stand(velocity, command, config, 0.1, 4)
    assert stands.T.int().tolist() == [[1, 1, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 0, 0]]


def test_the_loss_on_standing_counts_at_command_zero(robot: robots.Robot) -> None:
    """Two robots at rest with their feet 2 cm above the ground, 0.2 m/s; one must walk."""
    losses = []
    for weight in (0.0, 2.0):
        env = walk_env(robot, 2, stand_still_weight=weight)
        state = env.state
        home = torch.tensor(robot.home_qpos, dtype=torch.float32)
        height = float(env.feet.heights(robot.home_qpos[None]).max()) - 0.02
        position = (home[:3] - torch.tensor([0.0, 0.0, height])).repeat(4, 2, 1)
        rotation = torch.eye(3).repeat(4, 2, 1, 1)
        states = RobotState.still(position, rotation, home[7:].repeat(4, 2, 1))
        goals = torch.zeros(4, 2, 3)
        goals[:, 1, 0] = 0.5
        patch = env.ground.patch(state)
        losses.append(env.task.imagined_loss(states, states, goals, patch).task)
    torch.testing.assert_close(
        losses[1] - losses[0], torch.tensor([2.0 * 0.2, 0.0]), atol=5e-3, rtol=0.0
    )


def test_the_loss_on_roll_and_pitch_rates_leaves_out_yaw(robot: robots.Robot) -> None:
    """Two robots, one of which rolls by 0.2 and pitches by -0.1 rad/s while it yaws."""
    losses = []
    for weight in (0.0, 2.0):
        env = walk_env(robot, 2, roll_pitch_weight=weight)
        states = RobotState(*(part.expand(4, *part.shape).clone() for part in env.state))
        states.root_ang[:, 0] = torch.tensor([0.2, -0.1, 0.7])
        states.root_ang[:, 1] = torch.tensor([0.0, 0.0, 0.7])
        patch = env.ground.patch(env.state)
        losses.append(env.task.imagined_loss(states, states, torch.zeros(4, 2, 3), patch).task)
    torch.testing.assert_close(losses[1] - losses[0], torch.tensor([2.0 * 0.3, 0.0]))


def test_what_robots_achieve_is_their_velocity_and_the_command_is_all_they_see(
    robot: robots.Robot,
) -> None:
    env = walk_env(robot, 4)
    env.step(torch.zeros(4, env.num_actions))
    task, generator = env.task, torch.Generator().manual_seed(9)
    assert torch.equal(task.achieved(env.state), heading_velocity(env.state))
    assert torch.equal(task.observe(), task.goal())
    assert torch.equal(task.goal(), task.commands.current)
    drawn = task.new_goals(task.goal(), generator)
    low, high = torch.tensor(task.commands.config.range).T
    assert bool(((drawn >= low) & (drawn <= high)).all()) and not drawn.equal(task.goal())
