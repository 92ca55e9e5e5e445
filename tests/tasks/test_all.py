"""What holds for every task: checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mocap_data.store import MotionSet
from npmp import tasks
from npmp.core.settings import changed
from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.envs.sensing import SensorConfig
from npmp.robots import Robot
from npmp.sim.randomization import PhysicsConfig, PushConfig, Spread

# drawn physics has its own idea of the masses
DRAWN = RobotBatchConfig(
    hold="first_order",
    physics=PhysicsConfig(mass=Spread(0.1, 0.1), joint_offset=0.05),
    pushes=PushConfig(force=50.0, duration_s=0.1, gap_s=0.2),
    sensors=SensorConfig(delay_s=(0.0, 0.02), joint_noise=0.03),
)
MIXED = {"terrain": "mixed", "terrain_fields": 8, "terrain_curriculum": True}
RANGE = ((-0.5, 1.0), (-0.2, 0.2), (-0.5, 0.5))


@pytest.mark.parametrize(
    ("name", "settings", "like"),
    [
        ("walk", {"command_period_s": 0.1, "episode_s": 0.2, "clock_s": 0.5}, None),
        ("walk", MIXED | {"episode_s": 0.1, "velocity_filter": 0.5}, None),
        ("dribble", {"jump_period_s": 0.1, "episode_s": 0.3, "at_feet": 1.0}, DRAWN),
        ("imitation", {"start_tail": 40, "uniform_starts": 0.0}, DRAWN),
        ("path", {"command_range": RANGE, "episode_s": 0.2}, None),
        ("recover", {"drops": 8, "episode_s": 0.2}, None),
        ("navigate", {"terrain_fields": 2, "episode_s": 0.2, "command_range": RANGE}, None),
        ("mapped", {"terrain_fields": 2, "episode_s": 0.2, "command_range": RANGE}, None),
    ],
)
def test_a_restored_environment_goes_on_to_the_bit(
    robot: Robot,
    motions: MotionSet,
    name: str,
    settings: dict[str, Any],
    like: RobotBatchConfig | None,
) -> None:
    kind: Any = tasks.find(name)

    def made(seed: int) -> TaskEnv[Any]:
        task = kind(robot, changed(kind.config_type(), **settings), motions)
        return TaskEnv(task, 5, robots=like, seed=seed, num_threads=1, episode_s=0.3)

    def run(env: TaskEnv[Any], steps: int) -> list[Tensor]:
        seen = []
        for t in range(steps):
            step = env.step(0.5 * torch.sin(torch.arange(60.0) + float(t)).view(5, 12))
            env.reset(step.terminated | step.truncated)
            seen += [env.state.pack(), env.observe(), env.task.goal(), step.rewards]
            seen.append(env.task.privileged())
        return seen

    first, other = made(0), made(9)
    run(first, 7)
    kept = {key: value.clone() for key, value in first.state_dict().items()}
    expected = run(first, 20)
    for env in (other, first):
        env.load_state_dict(kept)
        assert all(torch.equal(a, b) for a, b in zip(run(env, 20), expected, strict=True))
