"""`npmp deploy run BUNDLE [robot=sim|FILE.py:CLASS]`: the controller of `npmp.deploy` around a
bundle."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mocap_data.errors import InputError, printable
from mocap_data.files import write_json
from npmp import robots
from npmp.core import ranges
from npmp.core.signals import OTHERS, Stopped, signals_noted, write_aside
from npmp.deploy.bundle import Bundle
from npmp.deploy.connection import SimulatedConfig, SimulatedConnection, simulated_connection
from npmp.deploy.contract import BundleContract
from npmp.deploy.controller import (
    OF_DRIVER,
    TIME_IS_OVER,
    Controller,
    ControllerConfig,
    LoopClock,
    SystemClock,
    drive,
)
from npmp.deploy.deadman import Deadman
from npmp.deploy.export import nearest_gains
from npmp.deploy.golden_check import check_golden
from npmp.deploy.robot import FloatArray, RobotInterface, driver_class
from npmp.deploy.run_log import FILE, JOURNAL, DeployLogger, summary
from npmp.deploy.safety import SafetyConfig, Watchdog
from npmp.deploy.simulated import check_limits
from npmp.deploy.terrain_input import TerrainInput
from npmp.deploy.unitree import MOTORS, STICK_COMMANDS, observe, stick_command, unitree_robot
from npmp.experiments.bundle import show_fastest
from npmp.experiments.command import NOW, Keys, Run, Verb, refuse_idle
from npmp.experiments.terminal import NOT_PASSED, OK, say, warn
from npmp.tasks.recover import Recover, RecoverConfig
from npmp.view.mcap_file import check_mcap, write_mcap

ANY_TILT_DEG = 180.0  # largest angle from upright reasons to damp other than watchdogs
ENDS_AS_WANTED = (TIME_IS_OVER, "SIGINT", "SIGTERM", "SIGHUP")


@dataclass(frozen=True, kw_only=True)
class Deploy(Keys):
    """Run a bundle on a robot: stand up, act by the policy, damp at the end or when a
    watchdog trips. Everything is logged. Exit code: 0 at the end of the time, otherwise 3.

    npmp deploy run bundle robot=sim command=[0.4,0,0] seconds=20
    npmp deploy run bundle robot=sim sim.latency_ms=10 sim.jitter_ms=20 sim.loss=0.01
    npmp deploy run bundle robot=my_robot.py:MyRobot seconds=10
    npmp deploy run bundle robot=unitree_go2 interface=eth0 dry=true
    npmp deploy run bundle robot=unitree_go2 interface=eth0 command=remote
    """

    # the folder that npmp deploy export wrote
    bundle: str
    # sim, MuJoCo in this process; unitree_go2, unitree_g1; FILE.py:CLASS, your own RobotInterface
    robot: str = "sim"
    # the network interface of a Unitree robot, lo for Unitree's simulators
    interface: str | None = None
    # true: read for two seconds, report problems, send nothing
    dry: bool = False
    # the command in the task's units, clamped to the bundle's ranges; remote: the sticks of
    # Unitree's remote; null: zeros
    command: float | list[float] | str | None = None
    # duration of the policy [s]; then the robot is damped
    seconds: float = 30.0
    # settings of standing up, and rate of writing
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    # conditions of damping, and limits of targets and commands (torque_share, command_ramp_s)
    safety: SafetyConfig = field(default_factory=SafetyConfig)
    # the folder of the fitted model that the bundle was exported with, for its gains; null: those
    # of the robot's description
    actuator: str | None = None
    # the connection to the simulated robot, and the robot's own watchdog
    sim: SimulatedConfig = field(default_factory=SimulatedConfig)
    # an MCAP file (FILE.mcap) for the log as messages of ROS 2, for Foxglove and Rerun
    # (pip install 'npmp[ros]'); null: none
    record: Path | None = None
    # the folder for deploy.json and log.h5
    out: Path | None = Path(f"runs/deploy/{NOW}")

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.above_zero(self, "seconds")


def run(config: Deploy, run: Run) -> int:
    """Drive the robot. Returns 3 unless the time ended the run."""
    bundle = Bundle.read(config.bundle)
    contract = bundle.contract
    kind = config.robot
    if contract.task == Recover.name and config.safety.tilt_deg < ANY_TILT_DEG:
        say(
            f"safety.tilt_deg={config.safety.tilt_deg:g} damps a fallen robot; set "
            "safety.tilt_deg=180 so that it gets up"
        )
    unitree = _is_unitree(config, contract)
    command = _command(config, contract)
    _check_limits(config, contract)
    if config.record is not None:
        check_mcap(config.record)
    check_golden(bundle)
    policy = bundle.policy()
    watched = False
    if kind == "sim":
        simulated = simulated_connection(contract, config.sim, config.safety.state_age_s, run.seed)
        opened: AbstractContextManager[tuple[RobotInterface, LoopClock]] = nullcontext(
            (simulated, simulated)
        )
    else:
        refuse_idle(run, f"is of robot=sim, not of {kind}", "sim")
        make_unitree = partial(
            unitree_robot, safety=config.safety, interface=config.interface or "", dry=config.dry
        )
        driver = make_unitree if unitree else driver_class(kind)
        opened = _driven(kind, driver, contract, dry=config.dry)
        watched = not config.dry and (unitree or hasattr(driver, "damper"))
    # before the robot is connected: any later failure stops it
    run.begin()
    with _deadman(config, contract, watched=watched) as deadman, opened as (robot, clock):
        if config.dry:
            return _dry_run(config, contract, robot)
        sticks = partial(stick_command, robot, contract.command_range)
        controller = Controller(contract, policy, config.controller, config.safety)
        command_source = sticks if command is None else lambda _: command
        ended = _drive(config, run.folder, robot, controller, clock, command_source, deadman)
    failure = ended.failure
    if ended.tripped:
        with suppress(OSError):
            for message in ended.unwritten:
                warn(message)
    if isinstance(failure, Stopped):
        raise failure
    if failure is not None:
        traceback.print_exception(failure)
        if not unitree and OF_DRIVER in getattr(failure, "__notes__", ()):
            say(f"robot={kind}: raised by the driver, not by npmp")
    if not ended.tripped:
        report(ended, run.folder)
        if ended.unwritten:
            raise OSError(ended.unwritten[0])
        return OK if controller.reason == TIME_IS_OVER else NOT_PASSED
    with suppress(OSError):  # a full disk, a closed terminal
        report(ended, run.folder)
    return NOT_PASSED


def _dry_run(config: Deploy, contract: BundleContract, robot: RobotInterface) -> int:
    """Print what the robot measures and what would damp it, without commands to it."""
    lines, reason = observe(robot, Watchdog(contract, config.safety))
    terrain = TerrainInput(contract)
    terrain.connect(robot)
    say(*lines, *terrain.take_messages())
    say(f"the robot would be damped: {reason}" if reason else "no problems")
    return NOT_PASSED if reason else OK


class RunEnd(NamedTuple):
    """End a run."""

    failure: BaseException | None
    figures: dict[str, Any]  # of deploy.json
    tripped: bool  # by anything but the time or a person
    unwritten: list[str]  # why files could not be


def _drive(
    config: Deploy,
    folder: Path,
    robot: RobotInterface,
    controller: Controller,
    clock: LoopClock,
    command: Callable[[float], FloatArray],
    deadman: Deadman | None,
) -> RunEnd:
    """Writes log and deploy.json in any case."""
    contract = controller.contract
    about: dict[str, Any] = {"task": contract.task, "policy_sha256": contract.policy_sha256}
    about |= {"controller": asdict(config.controller), "safety": asdict(config.safety)}
    failure: BaseException | None = None
    for before in (FILE, "deploy.json"):  # delete files of another run
        (folder / before).unlink(missing_ok=True)
    logger = DeployLogger(contract, config.robot, about, folder / JOURNAL)
    try:
        with signals_noted("damping the robot", OTHERS) as signals:
            failure = drive(
                robot,
                controller,
                seconds=config.seconds,
                clock=clock,
                command=command,
                record=logger.record,
                stop_reason=lambda: signals[0].name if signals else "",
                report=lambda message: write_aside(f"npmp: {printable(message)}\n"),
                deadman=deadman,
            )
    # also after a failure
    finally:
        tripped = failure is not None or controller.reason not in ENDS_AS_WANTED
        if tripped:
            # before a full disk or a closed terminal prevents it
            with suppress(OSError):
                warn(f"damped: {controller.reason}")
        figures = summary(logger.log(), controller) | {"tripped": tripped}
        if isinstance(robot, SimulatedConnection):
            figures |= robot.summary()
        unwritten = []
        writes: dict[Path, Callable[[Path], Any]] = {
            folder / FILE: logger.write,
            folder / "deploy.json": partial(write_json, content=figures),
        }
        if config.record is not None:
            model = robots.load(contract.robot)
            writes[config.record] = partial(write_mcap, log=logger.log(), robot=model)
        for path, write in writes.items():
            try:
                write(path)
            except (OSError, InputError) as error:
                unwritten.append(f"{path}: {getattr(error, 'strerror', None) or error}")
    return RunEnd(failure, figures, tripped, unwritten)


def _check_limits(config: Deploy, contract: BundleContract) -> None:
    """Compare a bundle with its robot's description and with the command line.

    Raises:
      InputError: naming what differs.
    """
    for command in contract.commands:
        low, high = command.range
        if command.is_velocity and not low <= 0.0 <= high:
            raise InputError(
                f"the bundle's range of {command.name}=[{low:g}, {high:g}]: must hold 0"
                f"{f' {command.unit}' * bool(command.unit)}, so that the robot can stand"
            )
    if contract.robot not in (*robots.names(), *robots.user_names()):
        raise InputError(
            f"no robot '{contract.robot}' here to compare the bundle with; add it: npmp robots "
            f"add MODEL name={contract.robot}"
        )
    robot = robots.load(contract.robot)
    if config.safety.tilt_deg >= ANY_TILT_DEG:
        # it may lie, and has wider joint limits
        robot = robot.with_joint_ranges(RecoverConfig().joint_range_rad)
    if config.actuator is not None:
        kp, kd = nearest_gains(config.actuator)
        robot = replace(robot, kp=np.full_like(robot.kp, kp), kd=np.full_like(robot.kd, kd))
    check_limits(contract, robot)


def _is_unitree(config: Deploy, contract: BundleContract) -> bool:
    """Whether the robot is Unitree's. Raises InputError for settings of other robots."""
    kind = config.robot
    supported = " and ".join(MOTORS)
    unitree = kind in MOTORS
    if config.command == "remote" and not (unitree and len(contract.commands) == STICK_COMMANDS):
        raise InputError(f"command=remote: needs a walking {supported}, got {kind}")
    if unitree and not config.interface:
        raise InputError(
            f"robot={kind}: needs interface=, the network interface of the robot (ip link), or lo "
            "for Unitree's simulators"
        )
    if config.interface is not None and not unitree:
        raise InputError(f"interface={config.interface} is of {supported}, not of robot={kind}")
    if config.dry and kind == "sim":
        raise InputError("dry=true: needs a real robot, got robot=sim")
    if unitree and contract.robot != kind:
        raise InputError(f"robot={kind}: the bundle is for '{contract.robot}'")
    return unitree


@contextmanager
def _deadman(
    config: Deploy, contract: BundleContract, *, watched: bool
) -> Iterator[Deadman | None]:
    """The process that damps the robot if this one stops writing; None if the driver has no
    damper."""
    if not watched:
        if config.robot != "sim" and not config.dry:
            warn(
                f"robot={config.robot} has no damper: nothing damps it if this process is killed "
                "or hangs (docs/controller.md)"
            )
        yield None
        return
    damping_s = config.controller.damping_s
    with Deadman(config.robot, contract, config.interface or "", damping_s) as deadman:
        deadman.wait()
        yield deadman


@contextmanager
def _driven(
    name: str, driver: Callable[..., Any], contract: BundleContract, *, dry: bool
) -> Iterator[tuple[RobotInterface, LoopClock]]:
    try:
        robot = driver(contract)
    except InputError:
        raise
    except BaseException as error:
        raise _driver_error(name, "was constructed", error) from error
    try:
        yield robot, SystemClock()
    finally:
        try:
            if not dry:
                robot.stop()
        except BaseException as error:
            raise _driver_error(name, "was stopped", error) from error


def _driver_error(name: str, when: str, error: BaseException) -> BaseException:
    if isinstance(error, KeyboardInterrupt):
        return error
    traceback.print_exception(error)
    return InputError(f"robot={name} raised when it {when}: {error!r:.200}")


def _command(config: Deploy, contract: BundleContract) -> FloatArray | None:
    """The command (c,), zeros by default; None for the remote's. Raises InputError for commands
    that the bundle does not support."""
    if config.command == "remote":
        return None
    if isinstance(config.command, str):
        raise InputError(f"command={config.command}: expected remote, a number or a list")
    if config.command is None:
        return np.zeros(len(contract.commands))
    values = config.command if isinstance(config.command, list) else [config.command]
    result = contract.command_of(values)
    for component, value in zip(contract.commands, result):
        low, high = component.range
        if not low <= value <= high:
            say(
                f"{component.name} {value:g} is clamped to {low:g} to {high:g} {component.unit}, "
                "the policy's "
                "training range"
            )
    return result


def report(ended: RunEnd, folder: Path) -> None:
    """Print a summary."""
    figures = ended.figures
    late = figures["deadlines"]["late_ms"]
    work = figures["work_us"]
    say(f"{figures['policy_s']:.1f} s of policy; ended in damping: {figures['ended']}")
    # only in real time, and after a step
    if work and work["max"] > 0.0:
        say(
            f"{figures['deadlines']['missed']} of {figures['steps']} deadlines missed; a step "
            f"begins {late['p50']:.2f} ms late (99 %: {late['p99']:.2f}) and takes "
            f"{work['p50']:.0f} us (99 %: {work['p99']:.0f})"
        )
    if "travelled_m" in (robot := figures.get("robot", {})):
        upright = math.degrees(math.acos(min(1.0, robot["least_upright"])))
        say(
            f"the simulated robot travelled {robot['travelled_m']:.2f} m far, tilted by at most "
            f"{upright:.0f} degrees"
        )
    show_fastest(figures["fastest_joint"])
    if not ended.unwritten:
        say(f"log and figures: {folder}")


main = Verb("deploy run", Deploy, run, torch=False, positional=("bundle",))
