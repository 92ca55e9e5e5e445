"""`npmp play`: steer a robot in the browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mocap_data import MotionSet
from mocap_data.errors import InputError
from mocap_data.synthetic import GAITS, dog_gait
from npmp import robots
from npmp.core.signals import Stopped, signals_noted
from npmp.envs import load_motions
from npmp.experiments.backend import Simulating, robots_config_of
from npmp.experiments.command import Computing, Run, Verb
from npmp.experiments.compose import compose, quoted
from npmp.experiments.store import group
from npmp.robots import Robot
from npmp.view.play import Cast, Session
from npmp.view.play.casting import policies_of, recovery_of
from retarget import retarget_many

# modes whose names are not tasks' names
STARTS = {"walk": "steer", "dribble": "dribble", "imitation": "imitate", "mapped": "navigate"}
GENERATED_S = 6.0  # length of each gait, without data [D]


@dataclass(frozen=True, kw_only=True)
class Play(Computing):
    """Steer a robot in the browser, on a page at a local port, until Ctrl-C. Without arguments the
    keys set a walking robot's velocity.

    npmp play
    npmp play policy=anymal_b_dribble open=true
    npmp play module=runs/walk/module data=motions.h5 mode=imitate
    npmp play policy=anymal_b_walk task=path task.path=slalom
    """

    # a robot: its name, or the folder of its robot.yaml (npmp robots list)
    robot: str = "anymal_b"
    # the policy: its folder, or a shipped one's name; null: those shipped for the robot
    policy: str | None = None
    # a task to play, of a policy or of data=; null: the policy's
    task: Any = group(None)
    # the skill module, for all modes: its folder, or a shipped one's name; null: the policy's,
    # found by its checksum
    module: str | None = None
    # motions (HDF5) to imitate; null: generated gaits, of robots on four legs
    data: Path | None = None
    # initial mode: steer, navigate, dribble, imitate, wander, or a policy's task; null: that of
    # policy= or task=
    mode: str | None = None
    # a policy of task=recover for fallen robots; null: the one shipped for the robot; none: reset
    # after a second
    recovery: str | None = None
    # the address to listen at; with 0.0.0.0 anybody who reaches the port can steer
    host: str = "127.0.0.1"
    # port; 0: any free one
    port: int = 8080
    # true: open the browser
    open: bool = False
    # CPU threads of the simulator; one robot needs no more
    threads: int | None = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port={self.port}: must be from 0 (any free port) to 65535")


def run(config: Play, run: Run) -> int:
    """Serve until a signal."""
    # viser takes long to import
    from npmp.view.play.realtime import Player
    from npmp.view.play.scene import Scene
    from npmp.view.play.server import Server

    cast, mode = cast_of(config, run.chosen["task"])
    session = Session(cast, mode, seed=run.seed)
    run.begin()
    player = Player(session, lambda snapshot: server.show(snapshot))
    scene = Scene(cast.robot, lambda event, args: server.on_pointer(event, args))
    try:
        server = Server(player, scene, config.host, config.port)
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


def cast_of(config: Play, task: str | None) -> tuple[Cast, str | None]:
    """The policies, module and motions of the configuration, and the initial mode. Raises
    InputError for incompatible ones."""
    robot = robots.load(config.robot)
    actors, skill = policies_of(robot, config.policy, config.module, task)
    presets = {}  # of reuse
    for name in ("none", "paper", "wide"):
        overrides = [f"robot={quoted(config.robot)}", f"randomization={name}"]
        presets[name] = robots_config_of(compose("reuse", Simulating, overrides).config, skill)
    cast = Cast(
        robot,
        skill,
        actors,
        {} if task is None else {task: config.task},
        presets,
        _motions(config.data, robot),
        recovery_of(robot, config.recovery, actors),
        config.threads or 1,
    )
    mode = config.mode or (None if task is None else STARTS.get(task, task))
    if mode is not None and mode not in cast.modes:
        raise InputError(f"no mode '{mode}'; available: {', '.join(cast.modes)}")
    return cast, mode


def _motions(data: Path | None, robot: Robot) -> Callable[[], MotionSet] | None:
    """The motions of data=, or generated gaits for a robot with four legs."""
    if data is not None:
        motions = load_motions(data, robot)
        return lambda: motions
    if len(robot.foot_bodies) != 4:
        return None
    return lambda: retarget_many(
        [dog_gait(gait, duration_s=GENERATED_S, name=gait) for gait in GAITS], robot
    )


main = Verb("play", Play, run, out="optional_folder", positional=("policy",), devices=("cpu",))
