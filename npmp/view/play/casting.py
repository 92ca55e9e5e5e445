"""Policies and modules of `npmp play`: named ones, and those shipped for a robot."""

from __future__ import annotations

from collections.abc import Mapping

from mocap_data.errors import InputError
from npmp import tasks
from npmp.evaluation.handover import Recovery, check_compatible, load_recovery
from npmp.robots import Robot
from npmp.skills import modules, policies
from npmp.skills.composition import Composition, over
from npmp.skills.footsteps import FOOTSTEPS, FootstepPolicy
from npmp.skills.high_level_policy import load_policy, module_sha256
from npmp.skills.skill_module import SkillModule
from npmp.tasks import Dribble, Walk


def policies_of(
    robot: Robot, policy: str | None, module: str | None, task_name: str | None
) -> tuple[dict[str, Composition], SkillModule]:
    """Load the named policy and the robot's shipped ones by task, and the module: the named one,
    the policy's, or a shipped one.

    Args:
      task_name: another task for the named policy.

    Raises:
      InputError: where nothing is named or shipped, or policy and module do not fit.
    """
    named = None if module is None else modules.find(module)
    by_task: dict[str, Composition] = {}
    if policy is not None:
        if policy == FOOTSTEPS:
            planner = FootstepPolicy.over_module(module, robot)
            first = over(planner, planner.skill)
        else:
            first = load_policy(policies.find(policy), robot, named)
        task = first.upper.contract.task
        if task_name is not None and task_name != task:
            first.upper.check_task(tasks.find(task_name))
            by_task[task_name] = first
        by_task[task] = first
    sha256 = None if named is None else module_sha256(named)
    for task in (Walk.name, Dribble.name):
        for name in policies.of_robot(robot.name, f"_{task}"):
            if task in by_task:
                break
            module_of_policy = policies.REGISTRY.contract_text(name, "module_sha256")
            if sha256 in (None, module_of_policy):
                by_task[task] = load_policy(policies.find(name), robot, named)
    shipped = modules.of_robot(robot.name)
    if named is not None or (shipped and not by_task):
        skill = SkillModule.load(named or modules.find(shipped[0]))
    elif by_task:
        skill = next(iter(by_task.values())).lower
    else:
        hint = f"set policy= or module=, or train both: npmp demo robot={robot.name} source=..."
        raise InputError(f"no policy or module is shipped for '{robot.name}': {hint}")
    skill.check_robot(robot)
    return by_task, skill


def recovery_of(
    robot: Robot, name: str | None, by_task: Mapping[str, Composition]
) -> Recovery | None:
    """The recovery policy after falls: the named one, else the robot's shipped one if compatible
    with the walking policy; "none": None. Raises InputError for an incompatible named one."""
    shipped = f"{robot.name}_recover"
    available = name is not None or shipped in policies.names()
    if not available or name == "none" or Walk.name not in by_task:
        return None
    recovery = load_recovery(name or shipped, robot)
    try:
        check_compatible(by_task[Walk.name], recovery.policy)
    except InputError:
        if name is not None:
            raise
        return None
    return recovery
