"""The cast of `npmp play`: the policies that are named, and those shipped for a robot."""

from __future__ import annotations

from collections.abc import Mapping

from mocap_data.errors import InputError
from npmp import tasks
from npmp.evaluation.handover import HandoverActor, Recovery, load_recovery
from npmp.robots import Robot
from npmp.skills import modules, policies
from npmp.skills.high_level_policy import PolicyActor, load_actor, module_sha256
from npmp.skills.skill_module import SkillModule
from npmp.tasks import Dribble, Walk


def actors_of(
    robot: Robot, policy: str | None, module: str | None, wanted: str | None
) -> tuple[dict[str, PolicyActor], SkillModule]:
    """Policies by their tasks, the named one and shipped ones of the robot, and the module: the
    named one, the policy's, or a shipped one.

    Args:
      wanted: a task that the named policy plays, too.

    Raises:
      InputError: where there is neither, or they do not go together.
    """
    named = None if module is None else modules.find(module)
    actors: dict[str, PolicyActor] = {}
    if policy is not None:
        first = load_actor(policies.find(policy), robot, named)
        task = first.policy.contract.task
        if wanted is not None and wanted != task:
            first.policy.check_task(tasks.find(wanted))
            actors[wanted] = first
        actors[task] = first
    sha256 = None if named is None else module_sha256(named)
    for task in (Walk.name, Dribble.name):
        for name in policies.of_robot(robot.name, f"_{task}"):
            if task in actors:
                break
            theirs = policies.REGISTRY.said(name, "module_sha256")
            if sha256 in (None, theirs):
                actors[task] = load_actor(policies.find(name), robot, named)
    shipped = modules.of_robot(robot.name)
    if named is not None or (shipped and not actors):
        skill = SkillModule.load(named or modules.find(shipped[0]))
    elif actors:
        skill = next(iter(actors.values())).skill
    else:
        how = f"give policy= or module=, or make both: npmp demo robot={robot.name} source=..."
        raise InputError(f"nothing is shipped for '{robot.name}': {how}")
    skill.check_robot(robot)
    return actors, skill


def recovery_of(
    robot: Robot, name: str | None, actors: Mapping[str, PolicyActor]
) -> Recovery | None:
    """What gets up a robot that has fallen: the named policy, else the robot's shipped one where it
    goes with what walks; "none": nothing. Raises InputError where the named one does not."""
    shipped = f"{robot.name}_recover"
    there = name is not None or shipped in policies.names()
    if not there or name == "none" or Walk.name not in actors:
        return None
    recovery = load_recovery(name or shipped, robot)
    try:
        HandoverActor(actors[Walk.name], recovery.actor, robot)
    except InputError:
        if name is not None:
            raise
        return None
    return recovery
