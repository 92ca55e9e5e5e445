"""Which robot a command is about where it does not say: the one that its module was trained for, or
that its motions are of."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from mocap_data.errors import InputError
from mocap_data.hdf5 import attributes, open_hdf5
from mocap_data.outside import read_json
from npmp import modules, policies, robots
from npmp.experiments.help import CONF, choices, of_file
from npmp.registry import Registry

SAID = ("robot", "robot.name", "resume")  # keys that settle the robot themselves


# A policy is judged under the randomization of reuse.
IN_REUSE = (
    "randomization/in_reuse@randomization=${randomization}",
    "randomization/in_reuse/by_robot@randomization=${robot}_${randomization}",
)


def inferred(verb_name: str, arguments: Sequence[str]) -> list[str]:
    """Arguments that follow from others: the robot, the randomization of reuse where a policy is
    judged or filmed, and the task where it is filmed.

    Raises: InputError as `robot_override`.
    """
    robot = robot_override(verb_name, arguments)
    policies_named = [
        a.partition("=")[2] for a in arguments if a.startswith("policy=") and a != "policy=null"
    ]
    judges = verb_name in ("evaluate", "export", "render") and policies_named
    task = None
    if (
        verb_name == "render"
        and policies_named
        and not any(a.startswith("task=") for a in arguments)
    ):
        task = _said(policies_named[-1], policies.REGISTRY, "task")
    named = [robot] if robot is not None else []
    return [
        *named,
        *(IN_REUSE if judges else ()),
        *([f"task={task}"] if task in choices("task") else []),
    ]


def inferred_robot(verb_name: str, arguments: Sequence[str]) -> str | None:
    """The robot of the module, else of the dataset, that a verb's arguments name; None where they
    name a robot themselves, where the verb takes none, and where there is nothing to read (the verb
    says what is wrong with its inputs).

    It stands on the command line as if the user had named it: it beats the robot that an
    experiment= sets.

    arguments: key=value as Hydra reads them.

    Raises:
      InputError: when jobs of a sweep are about different robots.
    """
    if "robot" not in of_file(CONF / f"{verb_name}.yaml").defaults:
        return None
    try:
        given = {
            entry.key_or_group: entry
            for entry in OverridesParser.create().parse_overrides(list(arguments))
        }
    except HydraException:
        return None  # composing fails on it too, and says so
    if any(key in given for key in SAID):
        return None
    for key, reader in (
        ("module", robot_of_module),
        ("policy", robot_of_policy),
        ("data", robot_of_data),
    ):
        # motions of any robot can be written
        if key not in given or (verb_name, key) == ("export", "data"):
            continue
        try:
            values = (
                list(given[key].sweep_string_iterator())
                if given[key].is_sweep_override()
                else [given[key].value()]
            )
        except HydraException:
            return None  # a sweep that cannot be listed, as of glob(*) or interval(0, 1)
        found = {robot for value in values if (robot := reader(value)) is not None}
        if len(found) > 1:
            raise InputError(
                f"{key}= names things of different robots ({', '.join(sorted(found))}): one sweep is for one robot"
            )
        if found:
            return found.pop()
    return None


def robot_override(verb_name: str, arguments: Sequence[str]) -> str | None:
    """`inferred_robot` as an argument for Hydra: robot=NAME, or robot.name=NAME of a robot of one's
    own.

    Raises:
      InputError: for a robot that is not at hand.
    """
    name = inferred_robot(verb_name, arguments)
    if name is None:
        return None
    if name in choices("robot"):
        return f"robot={name}"
    if name in robots.user_names():
        return f"robot.name='{name}'"
    known = ", ".join((*choices("robot"), *robots.user_names()))
    raise InputError(
        f"this is for robot '{name}', and there are: {known}; give robot=FOLDER, where its robot.yaml is"
    )


def robot_of_module(value: Any) -> str | None:
    """What a module, by its folder or a shipped one's name, was trained for; None where that cannot
    be read."""
    return _said(value, modules.REGISTRY, "robot")


def robot_of_policy(value: Any) -> str | None:
    """The same of a policy."""
    return _said(value, policies.REGISTRY, "robot")


def _said(value: Any, registry: Registry, key: str) -> str | None:
    """What an artefact's contract says; None where it cannot be read."""
    if value is None:
        return None
    try:
        content = read_json(registry.find(_plain(value)) / registry.contract)
    except (InputError, OSError):
        return None
    said = content.get(key) if isinstance(content, dict) else None
    return said if isinstance(said, str) else None


def robot_of_data(value: Any) -> str | None:
    """What the motions of a dataset are of; None where that cannot be read."""
    if value is None:
        return None
    try:
        with open_hdf5(_plain(value)) as file:
            robot = attributes(file).get("robot")
    except InputError:
        return None
    return robot if isinstance(robot, str) else None


def _plain(value: Any) -> Path:
    return Path(os.path.expanduser(str(value).strip("'\"")))
