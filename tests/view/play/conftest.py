"""What plays in these tests: the shipped ANYmal."""

from __future__ import annotations

import pytest

from mocap_data.store import MotionSet
from npmp.envs import RobotBatchConfig
from npmp.robots import Robot
from npmp.sim.randomization import PushConfig
from npmp.skills import modules, policies
from npmp.skills.composition import over
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.skill_module import SkillModule
from npmp.view.play import Cast


@pytest.fixture(scope="session")
def cast(robot: Robot, motions: MotionSet) -> Cast:
    skill = SkillModule.load(modules.find("anymal_b_dog"))
    actors = {
        task: over(HighLevelPolicy.load(policies.find(f"anymal_b_{task}")), skill)
        for task in ("walk", "dribble")
    }
    presets = {
        "none": RobotBatchConfig(),
        "pushed": RobotBatchConfig(pushes=PushConfig(force=50.0)),
    }
    return Cast(robot, skill, actors, presets=presets, make_motions=lambda: motions)
