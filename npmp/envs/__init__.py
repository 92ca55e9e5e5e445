"""Environments: torch functions on the simulator's arrays.

`TaskEnv` is the environment of any `Task` (`npmp.tasks`). Imagination uses the same states,
features and sensors.
"""

from npmp.envs.motions import load_motions
from npmp.envs.robot_batch import RobotBatch, RobotBatchConfig
from npmp.envs.task import EnvStep, Start, StepResult, Task, TaskLoss, Trial
from npmp.envs.task_env import TaskEnv

__all__ = [
    "EnvStep",
    "RobotBatch",
    "RobotBatchConfig",
    "Start",
    "StepResult",
    "Task",
    "TaskEnv",
    "TaskLoss",
    "Trial",
    "load_motions",
]
