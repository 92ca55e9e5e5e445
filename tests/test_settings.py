"""Settings out of range are refused by name: one table for the dataclasses of all packages.

`tests/core/test_ranges.py` has the bounds themselves.
"""

from __future__ import annotations

from typing import Any

import pytest

from npmp.actuators.identification.excitation import ExcitationConfig
from npmp.envs.ground import GroundConfig
from npmp.learning.imitation import ImitationModelBasedConfig, ImitationVMPOConfig
from npmp.learning.on_policy import VMPOTraining
from npmp.learning.reuse import ReuseModelBasedConfig
from npmp.learning.rl.learner import VMPOConfig
from npmp.sim.randomization import PhysicsConfig, Spread
from npmp.sim.terrain import TerrainConfig, TerrainLimits
from npmp.tasks.commands import CommandConfig
from npmp.tasks.dribble import DribbleConfig
from npmp.tasks.navigate import NavigateConfig
from npmp.tasks.recover import RecoverConfig
from npmp.tasks.walk import WalkConfig


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (CommandConfig, {"commands": "guessed"}, "uniform, recorded; got 'guessed'"),
        (CommandConfig, {"command_jitter": (0.1, -0.1, 0.0)}, "command_jitter"),
        (CommandConfig, {"command_range": ((1.0, 0.0), (0.0, 0.0), (0.0, 0.0))}, "low <= high"),
        (CommandConfig, {"command_nonzero": (0.9, 0.25, 1.5)}, r"\[0, 1\]"),
        (WalkConfig, {"velocity_filter": 1.0}, "velocity_filter"),
        (WalkConfig, {"may_touch": "hands"}, "may_touch must be one of feet, legs, limbs"),
        (GroundConfig, {"terrain": "swamp"}, "terrain must be one of flat, .*; got 'swamp'"),
        (GroundConfig, {"terrain": "perlin", "terrain_level": 2.0}, "terrain_level must be in"),
        (GroundConfig, {"terrain_height": -1.0}, "terrain_height must lie in"),
        (GroundConfig, {"terrain_fields": 0}, "terrain_fields must be"),
        (GroundConfig, {"terrain_starts": "uphill"}, "terrain_starts"),
        (TerrainConfig, {"kind": "perlin", "fields": 2, "rows": 3}, "2 fields .* 3 levels"),
        (TerrainLimits, {"slope_deg": 70.0}, "slope_deg"),
        (NavigateConfig, {"goal_m": (-1.0, 3.0)}, "goal_m"),
        (DribbleConfig, {"radius_m": (0.2, 0.1)}, "radius_m"),
        (DribbleConfig, {"drag": (-0.1, 0.1)}, "drag"),
        (DribbleConfig, {"at_feet": 1.5}, "at_feet"),
        (RecoverConfig, {"stand": (1.0, 0.5)}, "stand"),
        (RecoverConfig, {"drop_m": 0.0}, "drop_m"),
        (RecoverConfig, {"drops": 0}, "drops"),
        (PhysicsConfig, {"friction": (0.0, 1.0)}, "friction"),
        (PhysicsConfig, {"payload": (0.5, 0.1)}, "payload"),
        (Spread, {"whole": 1.0}, "below 1"),
        (ExcitationConfig, {"seconds": 5.0}, "seconds"),
        (VMPOConfig, {"gamma": 1.1}, "gamma"),
        (VMPOTraining, {"unroll": 0}, "unroll"),
        (ImitationVMPOConfig, {"initial_std": 0.0}, "initial_std"),
        (ImitationModelBasedConfig, {"prior_share": 1.0}, "prior_share"),
        (ImitationModelBasedConfig, {"beta": (-1.0, 0.0)}, "beta"),
        (ReuseModelBasedConfig, {"style_ramp": (0.5, 0.2)}, "style_ramp"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(
    config: type, settings: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        config(**settings)
    assert "\n" not in str(raised.value)
