"""An estimate as a randomization preset."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npmp.actuators.identification.estimation import Identified
from npmp.actuators.identification.preset import PresetConfig, preset, summary
from npmp.actuators.identification.stand import KINDS
from npmp.core.settings import from_mapping
from npmp.envs import RobotBatchConfig


def found() -> Identified:
    """Two joints; of the first everything is known to 1 %, of the second nothing of its scale."""
    estimate = np.tile([0.1, 0.5, 0.2, 0.010, 0.02, 100.0, 2.0], (2, 1))
    estimate[1, 3:5] = 0.014, -0.01
    error = np.array(
        [[1e-3, 0.025, 2e-3, 1e-3, 3e-3, 1.0, 0.0], [1e-2, 0.0, 1e-3, 0.0, 4e-3, 12.0, 0.0]]
    )
    covariance = np.stack([np.diag(row**2) for row in error])
    one, prior = np.ones(2), np.full((2, len(KINDS)), np.inf)
    prior[:, KINDS.index("kp")], prior[:, KINDS.index("bias")] = 12.0, 0.03
    return Identified(
        ("a", "b"), estimate, estimate, covariance, prior, one, one, one, one, 0.0 * one
    )


def test_the_spreads_are_two_standard_errors_within_limits() -> None:
    base = {"physics": {"friction": [0.4, 1.0]}, "pushes": {"force": 9.0}, "sensors": {}}
    made = preset(found(), base, "mine")
    physics = made["physics"]
    # 2 sqrt((0.01^2 + 0.1^2) / 2) = 0.1421
    assert physics["armature"] == {"whole": 0.0, "each": pytest.approx(0.1421, abs=1e-4)}
    gain = 2 * np.hypot(1, 12) / np.hypot(100, 100)
    assert physics["gain"]["each"] == pytest.approx(gain, rel=1e-4)
    # 2 * 0.025 / 2.5 / sqrt(2) = 0.014: the least is taken
    assert physics["damping"]["each"] == 0.05
    assert physics["joint_offset"] == pytest.approx(2 * np.sqrt((3e-3**2 + 4e-3**2) / 2), rel=1e-4)
    assert made["sensors"]["delay_s"] == [pytest.approx(0.008), pytest.approx(0.014)]
    gains = {"kp": 100.0, "kd": 2.0, "offset": -0.01}
    expected = {"armature": 0.1, "damping": 0.5, "friction_loss": 0.2} | gains
    assert physics["nominal"]["b"] == expected
    assert physics["friction"] == [0.4, 1.0] and made["pushes"] == {"force": 9.0}
    assert made["name"] == "mine"
    from_mapping(RobotBatchConfig, made, ignore=("name",))


def test_a_small_uncertain_value_counts_as_much_as_a_large_one() -> None:
    """1 % of 0.1 kg m2, 20 % of 0.001: 2 sqrt((0.01^2 + 0.2^2) / 2) = 0.2832; a joint without any
    does not count."""
    unequal = found()
    unequal.estimate[:, 0], unequal.covariance[:, 0, 0] = (0.1, 0.001), (1e-3**2, 2e-4**2)
    unequal.estimate[:, 2], unequal.covariance[:, 2, 2] = (0.0, 0.2), (1.0, 0.02**2)
    physics = preset(unequal, {}, "x")["physics"]
    assert physics["armature"]["each"] == pytest.approx(0.2832, abs=1e-4)
    assert physics["friction_loss"]["each"] == pytest.approx(0.2, rel=1e-4)


def test_only_angles_leave_damping_and_kd_untold() -> None:
    """With torques a model without kd has none to look for, and nothing to tell apart."""
    for torques in (False, True):
        words = " ".join(summary(replace(found(), torques=torques))["not_told_apart"])
        assert ("on their sum" in words) is not torques


def test_widths_are_the_user_s() -> None:
    wide = preset(found(), {}, "x", PresetConfig(errors=0.0, least=0.2))["physics"]
    assert wide["gain"]["each"] == wide["armature"]["each"] == 0.2 and wide["joint_offset"] == 0.0
    with pytest.raises(ValueError, match="least="):
        PresetConfig(least=0.6)
