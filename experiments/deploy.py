"""`npmp deploy run BUNDLE [robot=sim|FILE.py:CLASS] [log=FILE]`: the controller of `npmp.deploy`
around a bundle."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.errors import InputError
from mocap_data.files import write_json
from npmp import ranges, robots
from npmp.deploy.bundle import Bundle
from npmp.deploy.contract import BundleContract
from npmp.deploy.controller import (
    TIME_IS_OVER,
    Controller,
    ControllerConfig,
    LoopClock,
    SystemClock,
    drive,
)
from npmp.deploy.playback import LOG_ENDED, Playback
from npmp.deploy.robot import FloatArray, RobotInterface, driver_class
from npmp.deploy.robot_server import SimulatedConfig, simulated_robot
from npmp.deploy.run_log import (
    FILE,
    DeployLog,
    DeployLogger,
    read_log,
    refuse_other_joints,
    summary,
    write_log,
)
from npmp.deploy.safety import SafetyConfig
from npmp.deploy.simulated import refuse_other_model
from npmp.deploy.wire import STALE_S
from npmp.experiments.bundle import show_fastest
from npmp.experiments.command import Keys, Run, Verb, refuse_idle
from npmp.experiments.terminal import NOT_PASSED, OK, say
from npmp.robots import Robot
from npmp.settings import as_plain, from_mapping
from npmp.training.signals import signals_noted

ENDS_WELL = (TIME_IS_OVER, LOG_ENDED, "SIGINT", "SIGTERM", "SIGHUP")
SETTINGS = ("controller", "safety")  # what a log says that it was made with
MOST_DIFFERENCE = 1e-3  # [rad] of targets from the logged ones, from rounding [D]


@dataclass(frozen=True)
class Driven:
    """A robot as a run of the controller needs it."""

    robot: RobotInterface
    clock: LoopClock
    asked: Callable[[float], FloatArray]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Deploy(Keys):
    """Run a bundle on a robot: stand up, do what the policy says, damp at the end or when a
    watchdog trips. Everything is logged. It ends with 0 where the time was over or a signal came,
    with 3 where a watchdog tripped or a playback differs.

    npmp deploy run bundle robot=sim command=[0.4,0,0] seconds=20
    npmp deploy run bundle robot=sim sim.latency_ms=10 sim.jitter_ms=20 sim.loss=0.01
    npmp deploy run bundle log=runs/deploy/log.h5
    npmp deploy run bundle robot=my_robot.py:MyRobot seconds=10
    """

    # the folder that npmp deploy export wrote
    bundle: str
    # sim, MuJoCo in a process of its own; FILE.py:CLASS, your own RobotInterface
    robot: str = "sim"
    # in place of a robot the states of a run again: its log, or its folder
    log: Path | None = None
    # what the policy is asked for, in its task's units, kept within the bundle's ranges; null:
    # zeros, with log= what was asked then
    command: float | list[float] | None = None
    # of the policy, then the robot is damped; a log is played to its end
    seconds: float = 30.0
    # a log is played with the controller and safety settings that it was made with
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    # what ends in damping; torque_share and command_ramp_s also limit what is sent
    safety: SafetyConfig = field(default_factory=SafetyConfig)
    # the line to the simulated robot, each way, and the robot's own watchdog
    sim: SimulatedConfig = field(default_factory=SimulatedConfig)
    # the folder for deploy.json and log.h5
    out: Path | None = Path("runs/deploy/{now}")

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.above_zero(self, "seconds")


def run(config: Deploy, run: Run) -> int:
    """Drive the robot; 3 where a watchdog ended it, or where the policy of a log does not answer as
    it did."""
    bundle = Bundle.read(config.bundle)
    contract, policy, kind = bundle.contract, bundle.policy(), config.robot
    said: dict[str, Any] = {}
    played = _log(config, contract)
    kind = kind if played is None else "log"
    settings = _settings(config, run, kind, played)
    if contract.task == "recover" and settings[1].tilt_deg < 180.0:
        say(
            f"safety.tilt_deg={settings[1].tilt_deg:g} damps a robot that has fallen; "
            "to have it get up: safety.tilt_deg=180"
        )
    opened = _opened(config, contract, kind, played, run.seed, said)
    run.begin()  # before there is a robot: whatever fails from then on, it is stopped
    with opened as driven:
        controller, logger = Controller(contract, policy, *settings), DeployLogger(contract, kind)
        failure = None
        try:
            with signals_noted("damping the robot") as signals:
                failure = drive(
                    driven.robot,
                    controller,
                    seconds=driven.seconds,
                    clock=driven.clock,
                    asked=driven.asked,
                    note=logger.note,
                    stop=lambda: signals[0].name if signals else "",
                )
        finally:  # what led to a failure is what one wants to look at
            about: dict[str, Any] = {"task": contract.task, "policy_sha256": contract.policy_sha256}
            about |= {"controller": asdict(settings[0]), "safety": asdict(settings[1])}
            log = logger.log(about)
            write_log(run.folder / FILE, log)
    found = {**summary(log, controller), **said}
    found["tripped"] = controller.reason not in ENDS_WELL
    write_json(run.folder / "deploy.json", found)
    if failure is not None:
        traceback.print_exception(failure)
        say(f"robot={kind} raised this; it is the driver's, not npmp's")
    report(found, run.folder)
    return NOT_PASSED if found["tripped"] or answers_otherwise(found) else OK


def _log(config: Deploy, contract: BundleContract) -> DeployLog | None:
    """The log in place of a robot, if any. Raises InputError for one of another robot."""
    kind, path = config.robot, config.log
    if path is None:
        return None
    if kind != "sim":
        raise InputError(f"robot={kind} and log={path}: a log is played without a robot")
    log = read_log(path)
    refuse_other_joints(contract, log)
    if log.rate_hz != contract.control_rate_hz:
        raise InputError(
            f"log={path}: it has {log.rate_hz:g} Hz, the bundle {contract.control_rate_hz:g} Hz"
        )
    if config.command is None and log.command_names != tuple(contract.command_names):
        other, own = ", ".join(log.command_names), ", ".join(contract.command_names)
        raise InputError(f"log={path}: its commands are {other}, the bundle's {own}; give command=")
    return log


def _settings(
    config: Deploy, run: Run, kind: str, played: DeployLog | None
) -> tuple[ControllerConfig, SafetyConfig]:
    """As configured; for a log those that it was made with, where it says so, and one reading per
    control step. Raises InputError for settings that change nothing."""
    if kind != "sim":
        refuse_idle(run, f"is of robot=sim, not of {kind}", "sim")
    if played is None:
        return config.controller, config.safety
    own = {key: played.about[key] for key in SETTINGS if key in played.about}
    instead = "does not change log=, which has its own and is played to its end"
    refuse_idle(run, instead, "seconds", *own)
    given = {key: as_plain(getattr(config, key)) for key in SETTINGS} | own
    controller = from_mapping(ControllerConfig, given["controller"], at="controller")
    return replace(controller, writes=1), from_mapping(SafetyConfig, given["safety"], at="safety")


def _opened(
    config: Deploy,
    contract: BundleContract,
    kind: str,
    played: DeployLog | None,
    seed: int,
    said: dict[str, Any],
) -> AbstractContextManager[Driven]:
    """What robot= names, which is made when it is entered. said: filled with what it says
    afterwards. Raises InputError for none."""
    command, seconds = _command(config, contract), config.seconds
    if played is not None:
        return _played(played, command, contract, said)
    asked = np.zeros(len(contract.commands)) if command is None else command
    if kind != "sim":
        return _driven(kind, driver_class(kind), contract, asked, seconds)
    robot, settings = robots.load(contract.robot), _simulation(config)
    refuse_other_model(contract, robot)
    if settings.deadman_ms <= (least := 2e3 / robot.physics_rate_hz):
        raise InputError(
            f"sim.deadman_ms={settings.deadman_ms:g}: must be more than two physics steps, "
            f"{least:g} ms"
        )
    return _simulated(robot, settings, contract, seed, asked, seconds, said)


def _simulation(config: Deploy) -> SimulatedConfig:
    """Raises InputError for settings that cannot be."""
    if (oldest := config.safety.state_age_s) > STALE_S:
        raise InputError(
            f"safety.state_age_s={oldest:g}: robot=sim hears nothing older than {STALE_S:g} s"
        )
    return config.sim


@contextmanager
def _simulated(
    robot: Robot,
    settings: SimulatedConfig,
    contract: BundleContract,
    seed: int,
    asked: FloatArray,
    seconds: float,
    said: dict[str, Any],
) -> Iterator[Driven]:
    with simulated_robot(robot, contract.accelerometer, settings, seed=seed, said=said) as opened:
        yield Driven(*opened, lambda _: asked, seconds)


@contextmanager
def _driven(
    place: str, made: type[Any], contract: BundleContract, asked: FloatArray, seconds: float
) -> Iterator[Driven]:
    try:
        robot = made(contract)
    except Exception as error:
        traceback.print_exception(error)
        raise InputError(f"robot={place} raised this when it was made: {error!r:.200}") from error
    try:
        yield Driven(robot, SystemClock(), lambda _: asked, seconds)
    finally:
        robot.stop()


@contextmanager
def _played(
    log: DeployLog, command: FloatArray | None, contract: BundleContract, said: dict[str, Any]
) -> Iterator[Driven]:
    again = Playback(log)
    asked = again.command if command is None else lambda _: command
    yield Driven(again, again, asked, float("inf"))
    same = log.about.get("policy_sha256") == contract.policy_sha256
    said["playback"] = {**again.difference(), "same_policy": same, "same_command": command is None}


def _command(config: Deploy, contract: BundleContract) -> FloatArray | None:
    """What command= says, None where it says nothing. Raises InputError for what the bundle does
    not take."""
    if config.command is None:
        return None
    given, names = config.command, ", ".join(contract.command_names)
    wanted = np.asarray(given if isinstance(given, list) else [given], dtype=np.float64)
    if wanted.shape != (len(contract.commands),) or not np.isfinite(wanted).all():
        raise InputError(
            f"command={given}: {len(contract.commands)} finite numbers are expected: {names}"
        )
    for one, value in zip(contract.commands, wanted):
        low, high = one.range
        if not low <= value <= high:
            say(
                f"{one.name} {value:g} is kept within {low:g} to {high:g} {one.unit}, which the "
                "policy was trained in"
            )
    return wanted


def answers_otherwise(found: dict[str, Any]) -> bool:
    """Whether the policy of a log, asked for the same, did not answer as it was logged."""
    again = found.get("playback", {})
    same = again.get("same_policy") and again["same_command"]
    return bool(same and again["target_difference_rad"] > MOST_DIFFERENCE)


def report(found: dict[str, Any], folder: Path) -> None:
    """A few lines on the terminal."""
    late, work = found["deadlines"]["late_ms"], found["work_us"]
    say(f"{found['policy_s']:.1f} s of policy; ended in damping: {found['ended']}")
    if work["max"] > 0.0:  # not in simulated time
        say(
            f"{found['deadlines']['missed']} of {found['steps']} deadlines missed; a step begins "
            f"{late['p50']:.2f} ms late (99 %: {late['p99']:.2f}) and takes {work['p50']:.0f} us "
            f"(99 %: {work['p99']:.0f})"
        )
    if "travelled_m" in (robot := found.get("robot", {})):
        upright = math.degrees(math.acos(min(1.0, robot["least_upright"])))
        say(
            f"the simulated robot came {robot['travelled_m']:.2f} m far, tilted by at most "
            f"{upright:.0f} degrees"
        )
    show_fastest(found["fastest_joint"])
    if "playback" in found:
        off = found["playback"]["target_difference_rad"]
        say(f"targets differ from the logged ones by at most {off:.2g} rad")
        if not found["playback"]["same_policy"]:
            say("the log was made with another policy than the bundle's")
        if answers_otherwise(found):
            say(f"that is more than {MOST_DIFFERENCE:g} rad: the bundle does not answer as it did")
    say(f"log and figures: {folder}")


main = Verb("deploy run", Deploy, run, torch=False, positional=("bundle",))
