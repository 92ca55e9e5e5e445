"""The simulations: what resets them, what brings them back, and what they do not depend on."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from npmp.robots import Robot
from npmp.sim import BatchSim, add_contact_sensors, flat_scene


def standing(robot: Robot, n: int, threads: int = 1) -> BatchSim:
    sim = BatchSim(flat_scene(robot), n, control_rate_hz=robot.control_rate_hz, num_threads=threads)
    place(sim, robot, torch.arange(n))
    return sim


def place(sim: BatchSim, robot: Robot, ids: Tensor) -> None:
    qpos = torch.tensor(robot.home_qpos).expand(len(ids), -1)
    sim.set_state(ids, qpos, torch.zeros(len(ids), sim.model.nv))


def wild(robot: Robot, n: int, seed: int) -> Tensor:
    """Joint targets far enough off the home pose to make the robots stumble."""
    home = torch.tensor(robot.home_joints, dtype=torch.float32)
    return home + 0.5 * torch.randn(n, len(home), generator=torch.Generator().manual_seed(seed))


def test_equals_a_loop_over_mj_step_to_the_bit(robot: Robot) -> None:
    sim, target = standing(robot, 2), wild(robot, 2, 0)
    data = mujoco.MjData(sim.model)
    data.qpos[:] = robot.home_qpos
    for _ in range(5):
        sim.step(target)
        data.ctrl[:] = target[1].numpy()
        mujoco.mj_step(sim.model, data, 8)
    np.testing.assert_array_equal(sim.qpos[1].numpy(), data.qpos)
    np.testing.assert_array_equal(sim.qvel[1].numpy(), data.qvel)


def test_a_reset_leaves_nothing_of_the_past(robot: Robot) -> None:
    used, fresh = standing(robot, 3), standing(robot, 3)
    for seed in range(10):
        used.step(wild(robot, 3, seed))
    place(used, robot, torch.tensor([0, 2]))
    target = wild(robot, 3, 99)
    for sim in (used, fresh):
        for _ in range(5):
            sim.step(target)
    assert torch.equal(used.snapshot()[[0, 2]], fresh.snapshot()[[0, 2]])
    assert not torch.equal(used.snapshot()[1], fresh.snapshot()[1])


def test_snapshots_go_on_to_the_bit_and_are_copies(robot: Robot) -> None:
    sim, other = standing(robot, 2), standing(robot, 2)
    sim.step(wild(robot, 2, 0))
    kept = sim.snapshot()
    for seed in (1, 2):
        sim.step(wild(robot, 2, seed))
    other.restore(kept)
    for seed in (1, 2):
        other.step(wild(robot, 2, seed))
    assert torch.equal(sim.snapshot(), other.snapshot())


def test_threads_do_not_change_a_bit(robot: Robot) -> None:
    results = []
    for threads in (1, 2, 3):
        sim = standing(robot, 7, threads)
        for seed in range(5):
            sim.step(wild(robot, 7, seed))
        results.append(sim.snapshot())
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_sensors_by_name_and_at_rest(robot: Robot) -> None:
    sim = standing(robot, 2)
    for _ in range(50):
        sim.step(torch.tensor(robot.home_joints, dtype=torch.float32).expand(2, -1))
    names = [sim.model.sensor(i).name for i in range(sim.model.nsensor)]
    accelerometer = sim.sensor(next(n for n in names if "accel" in n))
    assert accelerometer.shape == (2, 3)
    expected = torch.full((2,), 9.81).double()
    torch.testing.assert_close(accelerometer.norm(dim=-1), expected, atol=0.05, rtol=0)
    with pytest.raises(KeyError):
        sim.sensor("no such sensor")


def test_contact_sensors_tell_knees_from_feet(robot: Robot) -> None:
    sim = BatchSim(
        flat_scene(robot, lambda spec: add_contact_sensors(spec, robot)),
        2,
        control_rate_hz=50.0,
        num_threads=1,
    )
    qpos = torch.tensor(robot.home_qpos).repeat(2, 1)
    qpos[1, 2] = 0.12  # the second lies on its belly
    sim.set_state(torch.arange(2), qpos, torch.zeros(2, sim.model.nv))
    sim.step(torch.tensor(robot.home_joints, dtype=torch.float32).expand(2, -1))
    touching = torch.cat(
        [sim.sensor(f"contact_{b}") for b in robot.body_names if b not in robot.foot_bodies], -1
    )
    assert not touching[0].any() and touching[1].any()
