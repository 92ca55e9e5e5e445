"""Tasks, one file each, and their environments by name.

A new task is a file here and `conf/task/NAME.yaml`. Tasks of users are in ./tasks
(docs/your_own_task.md).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path as File
from typing import Any

from mocap_data.errors import InputError, unknown
from mocap_data.store import MotionSet
from npmp import robots
from npmp.core import plugins
from npmp.core.devices import check_device
from npmp.core.settings import from_mapping, plain_fields
from npmp.envs.motions import load_motions
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.envs.task import Task
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.tasks.dribble import Dribble, DribbleConfig, DribbleEnv
from npmp.tasks.imitation import Imitation, ImitationConfig, ImitationEnv
from npmp.tasks.path import Path, PathConfig
from npmp.tasks.walk import Walk, WalkConfig, WalkEnv

__all__ = [
    "TASKS",
    "Dribble",
    "DribbleConfig",
    "DribbleEnv",
    "Imitation",
    "ImitationConfig",
    "ImitationEnv",
    "Path",
    "PathConfig",
    "Walk",
    "WalkConfig",
    "WalkEnv",
    "find",
    "make",
    "todays_settings",
    "trained_config",
]

# old names of settings in the records of policies
_RENAMED = {"script": "teacher", "script_weight": "teacher_weight"}

TASKS: tuple[type[Task], ...] = tuple(
    kind
    for module in sorted(entry.name for entry in pkgutil.iter_modules(__path__))
    for kind in vars(importlib.import_module(f"{__name__}.{module}")).values()
    if isinstance(kind, type)
    and issubclass(kind, Task)
    and kind.__module__ == f"{__name__}.{module}"
    and "name" in vars(kind)  # classes without a name are variants
)


def find(name: str, *, source: object = None) -> type[Task]:
    """The task class with a name. The file of a user's task (`npmp.core.plugins.tasks`) is run.

    Args:
      source: the file that contains the name; a user's task must then be loaded already.

    Raises:
      InputError: for an unknown name, and for a file that does not define the task.
    """
    for task in TASKS:
        if task.name == name:
            return task
    files = plugins.tasks()
    if name not in files:
        raise unknown("task", name, (*(task.name for task in TASKS), *files))
    if source is not None and name not in plugins.loaded_tasks():
        raise InputError(
            f"{source} names task={name}; the code in {files[name]} runs only when you name it: "
            f"add task={name}"
        )
    for kind in vars(plugins.task_module(name)).values():
        if isinstance(kind, type) and issubclass(kind, Task) and kind.__dict__.get("name") == name:
            return kind
    raise InputError(f"{files[name]} has no task with name = {name!r}")


def trained_config(kind: type[Task], training: Mapping[str, Any]) -> Any:
    """The settings of a task in a policy's training record, with defaults for missing ones.

    Raises:
      InputError: for settings that the task does not have.
    """
    settings = todays_settings(kind, training.get("settings", {}))
    return from_mapping(kind.config_type, settings, at="the policy's settings")


def todays_settings(kind: type[Task], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A task's settings from an old record, under their current names."""
    renamed = {_RENAMED.get(name, name): value for name, value in settings.items()}
    names = plain_fields(kind.config_type)
    # settings of a scripted teacher
    if "teacher" in renamed and "teacher" not in names:
        teacher = renamed.pop("teacher")
        if "root_height_m" in names:
            renamed["root_height_m"] = teacher.get("height_m")
    return renamed


def make(
    task: str | type[Task],
    *,
    robot: str | Robot,
    data: str | File | MotionSet | None = None,
    num_envs: int = 256,
    robots_config: RobotBatchConfig | None = None,
    seed: int = 0,
    num_threads: int = 0,
    device: str = "cpu",
    engine: str = "",
    **options: Any,
) -> TaskEnv[Any]:
    """Make the environment of a task.

    Args:
      task: "imitation" (needs `data`), "walk", "path" or "dribble" (`data` gives start poses), or a
        class of your own.
      robot: a robot or its name.
      data: a motion dataset, or the path of its HDF5 file.
      num_envs: robots simulated at once.
      robots_config: drives, sensors, physics and pushes; by default ideal robots.
      device: of all tensors, e.g. "cpu" or "cuda".
      engine: of the physics, as `npmp.sim.simulate`.
      options: fields of the task's settings, such as `ImitationConfig` or `WalkConfig`.

    Raises:
      InputError: for an unknown task, robot, option or device, and for a dataset of
        another robot.
    """
    kind: Any = find(task) if isinstance(task, str) else task
    check_device(str(device))
    if not isinstance(robot, Robot):
        robot = robots.load(robot)
    motions = data if data is None or isinstance(data, MotionSet) else load_motions(data, robot)
    return TaskEnv(
        kind(robot, from_mapping(kind.config_type, options, at=f"task '{kind.name}'"), motions),
        num_envs,
        robots=robots_config,
        seed=seed,
        num_threads=num_threads,
        device=device,
        engine=engine,
    )
