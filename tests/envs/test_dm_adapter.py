"""The dm_env face: dm_env's own conformance tests, a mirrored physics, and dm_control's viewer loop
without a window."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import dm_env
import mujoco
import numpy as np
import pytest
import torch
from absl.testing import absltest
from dm_env import test_utils

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp.envs.dm_adapter import DmControlAdapter
from npmp.robots import Robot
from npmp.tasks import Imitation
from tests.environments import imitation_env, walk_env

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of a missing display
    from dm_control.viewer.runtime import Runtime, State


def imitation(robot: Robot, motions: MotionSet) -> DmControlAdapter:
    return DmControlAdapter(imitation_env(robot, motions, 1))


def walking(robot: Robot) -> DmControlAdapter:
    return DmControlAdapter(walk_env(robot, 1, episode_s=0.2))


@pytest.mark.parametrize("task", ["imitation", "walk"])
def test_conforms_to_dm_env(task: str, robot: Robot, motions: MotionSet) -> None:
    class Case(test_utils.EnvironmentTestMixin, absltest.TestCase):
        """In here, so that it is not collected by itself."""

        def make_object_under_test(self) -> dm_env.Environment:
            return imitation(robot, motions) if task == "imitation" else walking(robot)

        def make_action_sequence(self) -> Iterator[np.ndarray]:
            for i in range(60):  # wild enough to end episodes
                yield np.full(12, 1.0 if i % 2 else -1.0, dtype=np.float32)

    result = absltest.unittest.TestResult()
    absltest.unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    assert result.testsRun >= 4
    assert result.wasSuccessful(), "\n".join(text for _, text in result.errors + result.failures)


def test_specs_name_what_is_seen(robot: Robot, motions: MotionSet) -> None:
    adapter = imitation(robot, motions)
    spec = adapter.observation_spec()
    assert list(spec) == [
        "joint_pos_minus_home",
        "setpoint_minus_home",
        "gyro",
        "accelerometer_g",
        "up",
        "context",
    ]
    assert spec["joint_pos_minus_home"].shape == (12,) and spec["up"].shape == (3,)
    assert list(walking(robot).observation_spec())[-1] == "command"
    assert adapter.action_spec().shape == (12,) and adapter.control_timestep() == pytest.approx(
        0.02
    )
    assert adapter.action_spec().name == "\t".join(robot.joint_names)


def test_failure_has_discount_zero_and_the_end_of_a_clip_one(
    robot: Robot, motions: MotionSet
) -> None:
    adapter = imitation(robot, motions)
    env = adapter._env
    assert isinstance(env.task, Imitation)

    def run_from(frame: int, shift: float) -> dm_env.TimeStep:
        adapter.reset()
        env.reset(clip=torch.tensor([0]), frame=torch.tensor([frame]))
        env.sim.qpos[0, 0] += shift
        return adapter.step(env.task.reference.at(env.task.frame)[2][0].numpy() - env.home.numpy())

    middle, end, failure = run_from(20, 0.0), run_from(98, 0.0), run_from(20, 1.0)
    assert middle.mid() and middle.discount == 1.0
    assert end.last() and end.discount == 1.0
    assert failure.last() and failure.discount == 0.0
    assert failure.reward < middle.reward
    assert adapter.step(np.zeros(12)).first()


def test_physics_is_the_simulations(robot: Robot, motions: MotionSet) -> None:
    adapter = imitation(robot, motions)
    env, physics = adapter._env, adapter.physics
    adapter.reset()
    pointer = physics.data.ptr
    for _ in range(5):
        adapter.step(np.full(12, 0.05))
    np.testing.assert_array_equal(physics.data.qpos, env.sim.qpos[0].numpy())
    np.testing.assert_array_equal(physics.data.qvel, env.sim.qvel[0].numpy())
    assert physics.data.time == pytest.approx(0.1)
    assert physics.data.ptr is pointer  # the viewer holds on to it
    np.testing.assert_allclose(
        physics.named.data.xpos["base"], env.state.root_pos[0].numpy(), atol=1e-6
    )
    assert physics.model.ngeom > env.sim.model.ngeom  # with the robot's looks
    # stepping the mirror as the simulation is stepped gives the same
    data = mujoco.MjData(env.sim.model)
    data.qpos[:], data.qvel[:] = physics.data.qpos, physics.data.qvel
    adapter.step(np.zeros(12))
    assert np.abs(physics.data.qpos - data.qpos).max() > 0


def test_pushes_from_the_viewer_act_on_the_simulation_until_the_next_episode(
    robot: Robot, motions: MotionSet
) -> None:
    pushed, left_alone = imitation(robot, motions), imitation(robot, motions)
    for adapter in (pushed, left_alone):
        adapter.reset()
    pushed.physics.named.data.xfrc_applied["base", 1] = 300.0  # N, sideways
    for adapter in (pushed, left_alone):
        adapter.step(np.zeros(12))
    # 300 N on 30 kg for 20 ms: 0.2 m/s
    gained = pushed.physics.data.qvel[1] - left_alone.physics.data.qvel[1]
    assert 0.05 < gained < 0.3
    pushed.reset()
    assert not pushed.physics.data.xfrc_applied.any() and not pushed._forces.any()


# dm_control's, on actions without bounds
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_dm_controls_viewer_loop_runs_episodes(robot: Robot, motions: MotionSet) -> None:
    adapter, seen = imitation(robot, motions), []

    def policy(step: dm_env.TimeStep) -> np.ndarray:
        seen.append(step.observation["context"].shape)
        return np.zeros(12)

    runtime = Runtime(adapter, policy)
    runtime.on_error += lambda message: pytest.fail(message)
    for _ in range(40):
        runtime.tick(0.02, paused=False)
    assert runtime.state in (State.RUNNING, State.STOPPED) and len(seen) > 3
    runtime.restart()
    runtime.tick(0.02, paused=True)
    assert runtime.state is State.RUNNING
    # without a policy: its default action, all zeros and read-only
    Runtime(adapter).tick(0.1, paused=False)


def test_misuse_is_refused(robot: Robot, motions: MotionSet) -> None:
    with pytest.raises(InputError, match="num_envs=1, got 2"):
        DmControlAdapter(imitation_env(robot, motions, 2))
    adapter = imitation(robot, motions)
    adapter.reset()
    with pytest.raises(ValueError, match=r"shape \(12,\)"):
        adapter.step(np.zeros(11))


def test_observations_are_copies(robot: Robot, motions: MotionSet) -> None:
    adapter = imitation(robot, motions)
    first = adapter.reset().observation
    kept = {k: v.copy() for k, v in first.items()}
    for _ in range(3):
        adapter.step(np.full(12, 0.1))
    for name, value in first.items():
        np.testing.assert_array_equal(value, kept[name])
