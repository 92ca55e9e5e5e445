"""The cast of `npmp play`: the policies that are named, and those shipped for a robot."""

from __future__ import annotations

from collections.abc import Mapping

from mocap_data.errors import InputError
from npmp import tasks
from npmp.evaluation.handover import Recovery, check_wired_alike, load_recovery
from npmp.robots import Robot
from npmp.skills import modules, policies
from npmp.skills.composition import Composition
from npmp.skills.high_level_policy import load_policy, module_sha256
from npmp.skills.skill_module import SkillModule
from npmp.tasks import Dribble, Walk


def policies_of(
    robot: Robot, policy: str | None, module: str | None, wanted: str | None
) -> tuple[dict[str, Composition], SkillModule]:
    """Policies by their tasks, the named one and shipped ones of the robot, and the module: the
    named one, the policy's, or a shipped one.

    Args:
      wanted: a task that the named policy plays, too.

    Raises:
      InputError: where there is neither, or they do not go together.
    """
    named = None if module is None else modules.find(module)
    by_task: dict[str, Composition] = {}
    if policy is not None:
        first = load_policy(policies.find(policy), robot, named)
        task = first.upper.contract.task
        if wanted is not None and wanted != task:
            first.upper.check_task(tasks.find(wanted))
            by_task[wanted] = first
        by_task[task] = first
    sha256 = None if named is None else module_sha256(named)
    for task in (Walk.name, Dribble.name):
        for name in policies.of_robot(robot.name, f"_{task}"):
            if task in by_task:
                break
            theirs = policies.REGISTRY.contract_text(name, "module_sha256")
            if sha256 in (None, theirs):
                by_task[task] = load_policy(policies.find(name), robot, named)
    shipped = modules.of_robot(robot.name)
    if named is not None or (shipped and not by_task):
        skill = SkillModule.load(named or modules.find(shipped[0]))
    elif by_task:
        skill = next(iter(by_task.values())).lower
    else:
        how = f"give policy= or module=, or make both: npmp demo robot={robot.name} source=..."
        raise InputError(f"nothing is shipped for '{robot.name}': {how}")
    skill.check_robot(robot)
    return by_task, skill


def recovery_of(
    robot: Robot, name: str | None, by_task: Mapping[str, Composition]
) -> Recovery | None:
    """What gets up a robot that has fallen: the named policy, else the robot's shipped one where it
    goes with what walks; "none": nothing. Raises InputError where the named one does not."""
    shipped = f"{robot.name}_recover"
    there = name is not None or shipped in policies.names()
    if not there or name == "none" or Walk.name not in by_task:
        return None
    recovery = load_recovery(name or shipped, robot)
    try:
        check_wired_alike(by_task[Walk.name], recovery.policy)
    except InputError:
        if name is not None:
            raise
        return None
    return recovery
