"""What a command line leaves out and follows from its inputs: the robot that a module or policy was
trained for or that motions are of, and the task of a policy that is judged or filmed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mocap_data.store import robot_of
from npmp.core.registry import Registry
from npmp.skills import modules, policies

REGISTRIES: Mapping[str, Registry] = {"module": modules.REGISTRY, "policy": policies.REGISTRY}


def inferred(verb: str, keys: type, given: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Keys and values that stand on the command line as if the user had given them; they beat those
    that an experiment= sets. What cannot be read the command itself says more of."""
    key_names = {field.name for field in dataclasses.fields(keys)}
    paths = {key: Path(os.path.expanduser(text.strip("'\""))) for key, text in given}
    result = []
    if "robot" in key_names and not {"robot", "resume"} & paths.keys():
        artefacts = [key for key in REGISTRIES if key in paths and key in key_names]
        robots = [REGISTRIES[key].said(paths[key], "robot") for key in artefacts]
        if not any(robots) and "data" in paths and "data" in key_names:
            robots.append(robot_of(paths["data"]))
        result += [("robot", robot) for robot in robots if robot][:1]
    if verb in ("evaluate", "render") and "policy" in paths and "task" not in paths:
        task = REGISTRIES["policy"].said(paths["policy"], "task")
        result += [("task", task)] if task else []
    return result
