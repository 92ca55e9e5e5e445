"""What simulated joints on a stand do, against formulas."""

from __future__ import annotations

import numpy as np
import pytest

from npmp import robots
from npmp.actuators.identification.stand import KINDS, stand_of
from tests.actuators.identification.arms import RATE, arm, sweep

GRAVITY = 9.81


def with_(stand, **given):  # type: ignore[no-untyped-def]
    values = stand.nominal[None].copy()
    for kind, value in given.items():
        values[..., KINDS.index(kind)] = value
    return values


def test_a_drive_sags_by_weight_over_stiffness() -> None:
    """At rest kp (c - q - bias) = -m g l cos(q): a positive angle about +y is down, which is where
    gravity pulls."""
    stand = arm()
    command = np.full((round(4 * RATE), 1), 0.1)
    values = with_(stand, friction_loss=0.0, bias=0.03)
    motion = stand.run(values, command, np.array([0.1]), torque=True)
    q = motion.position[0, -1, 0]
    assert motion.torque is not None
    assert 40.0 * (0.1 - q - 0.03) == pytest.approx(-GRAVITY * 0.3 * np.cos(q), rel=1e-4)
    assert motion.torque[0, -1, 0] == pytest.approx(-GRAVITY * 0.3 * np.cos(q), rel=1e-4)


def test_the_first_reading_is_where_it_starts() -> None:
    stand = arm()
    motion = stand.run(with_(stand, bias=0.02), sweep(), np.array([0.25]))
    assert motion.position[0, 0, 0] == pytest.approx(0.23) and motion.position.shape == (1, 500, 1)


def test_a_delay_of_whole_samples_moves_the_motion_by_so_many() -> None:
    """From rest at equilibrium, a command n samples later does the same n samples later."""
    stand = arm("turning")
    command = sweep()
    both = np.concatenate((with_(stand), with_(stand, delay_s=3 / RATE)))
    position = stand.run(both, command, command[0]).position
    assert position[1, 3:] == pytest.approx(position[0, :-3], abs=1e-9)
    assert np.abs(position[1] - position[0]).max() > 0.05


def test_a_delay_of_a_part_lies_between() -> None:
    """The late command's mean over every physics step: of 1 / 8 sample, half a step of the old,
    half of the new."""
    stand = arm()
    command = np.array([[0.0], [1.0], [1.0]])
    control = stand._controls(with_(stand, delay_s=1 / RATE / 8), command)[0, :, 0]
    assert control == pytest.approx([0, 0, 0, 0, 0.5, 1, 1, 1])


def test_armature_and_mass_are_one_inertia_where_nothing_pulls() -> None:
    """About the vertical m l^2 = 0.09 kg m2 more armature does what the mass does."""
    heavy, light = arm("turning"), arm("turning", mass=1e-6)
    command = sweep()
    one = heavy.run(with_(heavy), command, command[0]).position
    other = light.run(with_(light, armature=0.05 + 0.09), command, command[0]).position
    # friction's give depends on the inertia at the start, which is the same
    assert np.abs(one - other).max() < 1e-4


def test_a_robot_s_limbs_do_not_feel_each_other() -> None:
    stand = stand_of(robots.load("anymal_b"), 50.0)
    assert [len(tree) for tree in stand.trees] == [3, 3, 3, 3] and stand.substeps == 8
    command = np.zeros((20, 12)) + robots.load("anymal_b").home_joints
    changed = stand.nominal.copy()
    changed[0, KINDS.index("kp")] *= 0.5
    position = stand.run(np.stack((stand.nominal, changed)), command, command[0]).position
    assert position[0][:, 3:] == pytest.approx(position[1][:, 3:], abs=1e-12)
    assert np.abs(position[0] - position[1])[:, :3].max() > 1e-3
