"""The groups of settings: which dataclasses of the library a key may hold, and which presets
conf/ has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mocap_data.errors import check_available
from npmp.experiments.setting_files import CONF, load

# Keys that hold one of several dataclasses, chosen by name.
GROUPS = ("task", "algo", "net", "high_level", "randomization", "scenario")

# Names beside the files of conf/GROUP: the library's own defaults.
PLAIN = {"net": "small", "high_level": "small", "randomization": "none"}

# Settings of a group's dataclass that others decide: the module and actuator=.
HIDDEN = {"randomization": ("hold", "accelerometer", "actuator")}


def is_file(name: str) -> bool:
    """Whether a choice is a file of one's own."""
    return name.endswith((".yaml", ".yml"))


def presets(group: str, verb: str | None = None) -> list[str]:
    """The files of a group, of experiments and sweeps only those of a verb."""
    paths = sorted((CONF / group).glob("*.yaml"))
    if verb is not None and group in ("experiment", "sweep"):
        paths = [path for path in paths if load(path).get("verb") == verb]
    return [path.stem for path in paths]


def preset_file(group: str, name: str) -> Path | None:
    """What a choice says otherwise than its dataclass: our file, or the one beside a task of one's
    own; None where there is none."""
    path = CONF / group / f"{name}.yaml"
    if path.is_file():
        return path
    from npmp.core import plugins

    file = plugins.tasks().get(name) if group == "task" else None
    beside = None if file is None else file.with_suffix(".yaml")
    return beside if beside is not None and beside.is_file() else None


def names(verb: str, group: str) -> list[str]:
    """The choices of a group."""
    if group == "algo":
        return list(_algorithms(verb))
    if group == "task":
        from npmp import tasks
        from npmp.core import plugins

        if verb == "imitate":
            return ["imitation"]
        ours = {kind.name for kind in tasks.TASKS} | set(presets("task"))
        return [*sorted(ours - ({"imitation"} if verb == "reuse" else set())), *plugins.tasks()]
    plain = [PLAIN[group]] if group in PLAIN else []
    return list(dict.fromkeys([*plain, *presets(group, verb)]))


def schema_of(verb: str, group: str, name: str) -> Any:
    """The type of a choice's settings. Raises InputError for a task or algorithm that there is
    not."""
    if group in ("algo", "task"):
        check_available(group, [name], names(verb, group))
    if group == "algo":
        return _algorithms(verb)[name]
    if group == "task":
        from npmp import tasks

        return tasks.find(task_of(name), source="a file").config_type
    from npmp.envs.robot_batch import RobotBatchConfig
    from npmp.evaluation.suite import Scenario
    from npmp.skills.nets import NetConfig
    from npmp.skills.nets.high_level import HighLevelConfig

    return {
        "net": NetConfig,
        "high_level": HighLevelConfig,
        "randomization": RobotBatchConfig,
        "scenario": dict[str, Scenario],
    }[group]


def run_named_task(verb: str, name: str) -> None:
    """Run the file of a task of the user's own that the command line names. Raises InputError."""
    from npmp import tasks
    from npmp.core import plugins

    if name in plugins.tasks() and name in names(verb, "task"):
        tasks.find(task_of(name))


def task_of(name: str) -> str:
    """The task that a choice is of: its own, or the one that a preset of conf/task builds on."""
    path = CONF / "task" / f"{name}.yaml"
    base = load(path).get("defaults") if path.is_file() else None
    return str(base[0]) if base else name


def _algorithms(verb: str) -> dict[str, type]:
    if verb == "imitate":
        from npmp.learning.imitation import ALGORITHMS

        return dict(ALGORITHMS)
    from npmp.learning.reuse import REUSE_ALGORITHMS

    return dict(REUSE_ALGORITHMS)
