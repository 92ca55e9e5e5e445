"""What a command line leaves out and follows from its inputs: the robot that a module or policy was
trained for or that motions are of, and the task of a policy that is judged or filmed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mocap_data.errors import InputError
from mocap_data.hdf5 import attributes, open_hdf5
from mocap_data.outside import read_json
from npmp import modules, policies
from npmp.registry import Registry

REGISTRIES: Mapping[str, Registry] = {"module": modules.REGISTRY, "policy": policies.REGISTRY}


def inferred(verb: str, keys: type, given: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Keys and values that stand on the command line as if the user had given them; they beat those
    that an experiment= sets. What cannot be read the command itself says more of."""
    said, known = dict(given), {field.name for field in dataclasses.fields(keys)}
    found = []
    if "robot" in known and not {"robot", "resume"} & said.keys():
        robots = (
            of_artefact(key, said[key], "robot")
            for key in REGISTRIES
            if key in said and key in known
        )
        robot = next((name for name in robots if name), None)
        if robot is None and "data" in said and "data" in known:
            robot = robot_of_data(said["data"])
        found += [("robot", robot)] if robot else []
    if verb in ("evaluate", "render") and "policy" in said and "task" not in said:
        task = of_artefact("policy", said["policy"], "task")
        found += [("task", task)] if task else []
    return found


def of_artefact(kind: str, value: str, key: str) -> str | None:
    """What the contract of a module or policy says, by its folder or a shipped one's name; None
    where it cannot be read."""
    registry = REGISTRIES[kind]
    try:
        content = read_json(registry.find(_path(value)) / registry.contract)
    except (InputError, OSError):
        return None
    said = content.get(key) if isinstance(content, dict) else None
    return said if isinstance(said, str) else None


def robot_of_data(value: str) -> str | None:
    """What the motions of a dataset are of; None where that cannot be read."""
    try:
        with open_hdf5(_path(value)) as file:
            robot = attributes(file).get("robot")
    except (InputError, OSError):
        return None
    return robot if isinstance(robot, str) else None


def _path(value: str) -> Path:
    return Path(os.path.expanduser(value.strip("'\"")))
