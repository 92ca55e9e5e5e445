"""`npmp play`: a page in the browser on which one steers a robot."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Mapping
from typing import Any

from omegaconf import DictConfig

from mocap_data import MotionSet
from mocap_data.errors import InputError
from mocap_data.outside import read_json
from mocap_data.synthetic import GAITS, dog_gait
from npmp import modules, policies, robots, tasks
from npmp.envs import RobotBatchConfig, load_motions
from npmp.experiments.backend import robots_config_of
from npmp.experiments.common import Run, compose, verb
from npmp.experiments.help import choices
from npmp.experiments.inferred import IN_REUSE
from npmp.experiments.typed import build
from npmp.play import Cast, Session
from npmp.reuse import HighLevelPolicy, PolicyActor, find_module, module_sha256
from npmp.reuse.handover import HandoverActor, Recovery, load_recovery
from npmp.robots import Robot
from npmp.skill import SkillModule
from npmp.training.signals import Stopped, signals_noted
from retarget import retarget_many

STARTS = {"walk": "steer", "dribble": "dribble", "imitation": "imitate"}  # the modes that are tasks
GENERATED_S = 6.0  # of each gait, where there is no data [D]


def run(config: DictConfig, run: Run) -> int:
    """Serve until a signal comes."""
    try:
        from npmp.play.realtime import Player
        from npmp.play.scene import Scene
        from npmp.play.server import Server
    except ImportError as error:
        raise InputError(f"npmp play needs viser: pip install 'npmp[play]' ({error})") from error
    if not 0 <= int(config.port) < 2**16:
        raise InputError(
            f"port={config.port}: a port is a whole number from 0 to 65535; 0: any that is free"
        )
    cast, mode = cast_of(config)
    session = Session(cast, mode, seed=run.seed)
    run.begin()
    player = Player(session, lambda seen: server.show(seen))
    scene = Scene(cast.robot, lambda what, where: server.pointed(what, where))
    try:
        server = Server(player, scene, str(config.host), int(config.port))
        try:
            print(server.address, flush=True)
            if config.open:
                webbrowser.open(server.address)
            with signals_noted("closing the page") as signals:
                player.run(lambda: bool(signals))
        finally:
            server.close()
    finally:
        scene.close()
    raise Stopped("stopped", 128 + signals[0])


def cast_of(config: DictConfig) -> tuple[Cast, str | None]:
    """Who the configuration names, and the mode to begin with. Raises InputError for what does not
    go together."""
    robot = robots.load(config.robot.name)
    actors, skill = _actors(config, robot)
    task = None if config.get("task") is None else str(config.task.name)
    settings: dict[str, Any] = (
        {} if task is None else {task: build(tasks.find(task).config_type, config.task, at="task")}
    )
    cast = Cast(
        robot, skill, actors, settings, _presets(config, skill), _motions(config, robot),
        _recovery(config.recovery, robot, actors), int(config.threads or 1),
    )  # fmt: skip
    mode = config.mode or (None if task is None else STARTS.get(task, task))
    if mode is not None and mode not in cast.modes:
        raise InputError(f"no mode '{mode}' with these; there are: {', '.join(cast.modes)}")
    return cast, mode


def _recovery(name: str | None, robot: Robot, actors: Mapping[str, PolicyActor]) -> Recovery | None:
    """Who gets up what has fallen: the named one, else the robot's shipped one where it goes with
    who walks."""
    shipped = f"{robot.name}_recover"
    if (name is None and shipped not in policies.names()) or name == "none" or "walk" not in actors:
        return None
    found = load_recovery(name or shipped, robot)
    try:
        HandoverActor(actors["walk"], found.actor, robot)
    except InputError:
        if name is not None:
            raise
        return None
    return found


def _actors(config: DictConfig, robot: Robot) -> tuple[dict[str, PolicyActor], SkillModule]:
    """Policies by their tasks, the named one and shipped ones of the robot, and the module: the
    named one, the policy's, or a shipped one."""
    named = None if config.module is None else modules.find(str(config.module))
    actors: dict[str, PolicyActor] = {}
    if config.policy is not None:
        first = _actor(str(config.policy), named, robot)
        task = first.policy.contract.task
        if config.get("task") is not None and config.task.name != task:
            first.policy.check_task(tasks.find(config.task.name))
            actors[str(config.task.name)] = first
        actors[task] = first
    sha256 = None if named is None else module_sha256(named)
    for task in ("walk", "dribble"):
        name = f"{robot.name}_{task}"
        if task in actors or name not in policies.names():
            continue
        if (
            sha256 is None
            or read_json(policies.find(name) / "policy.json")["module_sha256"] == sha256
        ):
            actors[task] = _actor(name, named, robot)
    if named is not None:
        skill = SkillModule.load(named)
    elif actors:
        skill = next(iter(actors.values())).skill
    else:
        raise InputError(f"no policy is shipped for '{robot.name}': give policy= or module=")
    skill.check_robot(robot)
    return actors, skill


def _actor(policy: str, module: Any, robot: Robot) -> PolicyActor:
    folder = policies.find(policy)
    found = HighLevelPolicy.load(folder, module=module)
    skill = SkillModule.load(module or find_module(folder, found.contract.module_sha256))
    skill.check_robot(robot)
    return PolicyActor(found, skill)


def _presets(config: DictConfig, skill: SkillModule) -> dict[str, RobotBatchConfig]:
    """The randomizations of reuse."""
    group, name = (
        ("robot", config.robot.name)
        if config.robot.name in choices("robot")
        else ("robot.name", config.robot.name)
    )
    found = {}
    for preset in ("none", "paper", "wide"):
        composed = compose("evaluate", [f"{group}={name}", f"randomization={preset}", *IN_REUSE])
        found[preset] = robots_config_of(composed, skill)
    return found


def _motions(config: DictConfig, robot: Robot) -> Callable[[], MotionSet] | None:
    """The motions of data=, or generated gaits of a robot on four legs."""
    if config.data is not None:
        motions = load_motions(str(config.data), robot)
        return lambda: motions
    if len(robot.foot_bodies) != 4:
        return None
    return lambda: retarget_many(
        [dog_gait(gait, duration_s=GENERATED_S, name=gait) for gait in GAITS], robot
    )


main = verb("play", run, out="optional_folder", positional="policy", devices=("cpu",))
