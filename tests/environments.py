"""Environments as tests want them: small, on one thread."""

from __future__ import annotations

from typing import Any

from mocap_data.store import MotionSet
from npmp.core.settings import changed
from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.robots import Robot
from npmp.sim.randomization import PhysicsConfig, Spread
from npmp.tasks import Imitation, ImitationConfig, ImitationEnv, Walk, WalkConfig, WalkEnv

# the physics of a robot that all differ
EVERYTHING = PhysicsConfig(
    friction=(0.4, 1.0),
    mass=Spread(0.3, 0.1),
    com_trunk=0.05,
    com_links=0.02,
    joint_offset=0.05,
    damping=Spread(0.3, 0.1),
    friction_loss=Spread(0.3, 0.1),
    gain=Spread(0.2, 0.05),
    torque=Spread(0.2, 0.05),
)


def imitation_env(
    robot: Robot,
    motions: MotionSet,
    n: int,
    *,
    robots: RobotBatchConfig | None = None,
    seed: int = 0,
    num_threads: int = 1,
    device: Any = "cpu",
    **settings: Any,
) -> ImitationEnv:
    """settings: of `ImitationConfig`."""
    task = Imitation(robot, ImitationConfig(**settings), motions)
    ideal = RobotBatchConfig()  # zero-order hold
    return TaskEnv(
        task, n, robots=robots or ideal, seed=seed, num_threads=num_threads, device=device
    )


def walk_env(
    robot: Robot,
    n: int,
    *,
    motions: MotionSet | None = None,
    robots: RobotBatchConfig | None = None,
    seed: int = 0,
    device: Any = "cpu",
    config: WalkConfig | None = None,
    **settings: Any,
) -> WalkEnv:
    """settings: of `WalkConfig`, where no config is given. Commands are modest ones, also where
    there are motions."""
    if config is None:
        config = changed(
            WalkConfig(), **{"command_range": ((0.0, 0.8), (-0.2, 0.2), (-0.5, 0.5)), **settings}
        )
    return TaskEnv(
        Walk(robot, config, motions), n, robots=robots, seed=seed, num_threads=1, device=device
    )
