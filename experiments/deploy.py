"""`npmp deploy BUNDLE robot=sim|log=FILE|FILE.py:CLASS`: the controller of `npmp.deploy` around a
bundle."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from omegaconf import DictConfig

from mocap_data.errors import InputError
from mocap_data.files import write_json
from npmp import robots
from npmp.deploy.bundle import Bundle, BundleContract
from npmp.deploy.controller import (
    TIME_IS_OVER,
    Clock,
    Controller,
    ControllerConfig,
    Mode,
    SystemClock,
    drive,
    missed_deadlines,
)
from npmp.deploy.guard import GuardConfig
from npmp.deploy.playback import RECORDING_ENDED, Playback
from npmp.deploy.realtime import check_priority, prioritized
from npmp.deploy.recording import Recorder, Recording, read_recording, write_recording
from npmp.deploy.robot import FloatArray, RobotInterface
from npmp.deploy.simulated import SimulatedConfig, Stepped, make_station, spawn
from npmp.deploy.trial import refuse_other_model
from npmp.deploy.wire import STALE_S, RemoteRobot, UdpLine, identity
from npmp.experiments.common import Run, above_zero, plain, refuse_idle, say, verb
from npmp.experiments.failures import NOT_PASSED, OK
from npmp.robots import Robot
from npmp.settings import from_mapping
from npmp.training.signals import signals_noted

ENDS_WELL = (TIME_IS_OVER, RECORDING_ENDED, "SIGINT", "SIGTERM", "SIGHUP")
SETTINGS = ("controller", "guard")  # what a recording says that it was made with
MOST_DIFFERENCE = 1e-3  # [rad] of targets from the recorded ones, from rounding [D]


@dataclass(frozen=True)
class Driven:
    """A robot as a run of the controller needs it."""

    robot: RobotInterface
    clock: Clock
    asked: Callable[[float], FloatArray]
    seconds: float


def run(config: DictConfig, run: Run) -> int:
    """Drive the robot; 3 where a watchdog ended it, or where the policy of a recording does not
    answer as it did."""
    above_zero(config, "seconds")
    check_priority(config.priority)
    bundle = Bundle.read(str(config.bundle))
    contract, policy = bundle.contract, bundle.policy(str(config.runtime))
    told: dict[str, Any] = {}
    kind, opened, recording = _opened(config, contract, run.seed, told)
    _refuse_what_does_nothing(config, run, kind, recording)
    settings, guard = _settings(config, recording)
    if contract.task == "recover" and guard.tilt_deg < 180.0:
        say(
            f"guard.tilt_deg={guard.tilt_deg:g} damps a robot that has fallen; to have it get up: guard.tilt_deg=180"
        )
    run.begin()  # before there is a robot: whatever fails from then on, it is told to stop
    with opened as driven:
        controller = Controller(contract, policy, settings, guard)
        recorder = Recorder(contract, kind)
        try:
            _drive(driven, controller, recorder, int(config.priority))
        finally:  # what led to a failure is what one wants to look at
            about = {"task": contract.task, "policy_sha256": contract.policy_sha256}
            recording = recorder.recording(
                {**about, "controller": asdict(settings), "guard": asdict(guard)}
            )
            write_recording(run.folder / "recording.h5", recording)
    found = {**summary(recording, controller), **told}
    write_json(run.folder / "deploy.json", found)
    report(found, run.folder)
    return NOT_PASSED if found["tripped"] or answers_otherwise(found) else OK


def _settings(config: DictConfig, played: Recording | None) -> tuple[ControllerConfig, GuardConfig]:
    """As configured; for a recording that is played those that it was made with, where it says so,
    and one reading per control step."""
    given = plain(config) | (
        {} if played is None else {k: v for k, v in played.about.items() if k in SETTINGS}
    )
    controller = from_mapping(ControllerConfig, given["controller"], at="controller")
    guard = from_mapping(GuardConfig, given["guard"], at="guard")
    return (controller if played is None else replace(controller, writes=1)), guard


def _refuse_what_does_nothing(
    config: DictConfig, run: Run, kind: str, played: Recording | None
) -> None:
    """Raise InputError for settings of a simulation where there is none, and for those that a
    recording has itself."""
    if played is not None:
        own = [key for key in SETTINGS if key in played.about]
        refuse_idle(
            config,
            run.given,
            "does not change log=, which has its own and is played to its end",
            "seconds",
            *own,
        )
    if kind != "sim":
        refuse_idle(config, run.given, f"is of robot=sim, not of {kind}", "sim")


def _drive(driven: Driven, controller: Controller, recorder: Recorder, priority: int) -> None:
    """`drive` in time, ended by signals."""
    real = isinstance(driven.clock, SystemClock)
    with (
        prioritized(priority if real else 0) as granted,
        signals_noted("damping the robot") as signals,
    ):
        if not granted:
            say(
                f"priority={priority} is not granted by this system; deadlines may be missed when it is busy"
            )
        drive(
            driven.robot, controller, seconds=driven.seconds, clock=driven.clock, asked=driven.asked,
            note=recorder.note, stop=lambda: signals[0].name if signals else "",
        )  # fmt: skip


def _opened(
    config: DictConfig, contract: BundleContract, seed: int, told: dict[str, Any]
) -> tuple[str, AbstractContextManager[Driven], Recording | None]:
    """What robot= names, the robot itself, which is made when it is entered, and the recording that
    it is, if any.

    told: filled with what it says afterwards. Raises InputError for none.
    """
    command, kind = _command(config, contract), str(config.interface)
    if config.log is not None and kind not in ("sim", "log"):
        raise InputError(
            f"robot={kind} and log={config.log}: a recording is played without a robot"
        )
    if config.log is not None or kind == "log":
        if config.log is None:
            raise InputError("robot=log needs log=, a recording of npmp deploy")
        recording = read_recording(str(config.log))
        refuse_other_robot(contract, recording.robot, recording.joint_names)
        if recording.rate_hz != contract.control_rate_hz:
            rates = f"{contract.control_rate_hz:g} Hz, the recording {recording.rate_hz:g}"
            raise InputError(f"log={config.log}: the bundle has {rates}")
        if command is None and recording.command_names != tuple(contract.command):
            other, own = ", ".join(recording.command_names), ", ".join(contract.command)
            raise InputError(
                f"log={config.log}: it was asked for {other}, the bundle takes {own}; give command="
            )
        return "log", _played(recording, Playback(recording), command, contract, told), recording
    asked_for = np.zeros(len(contract.command)) if command is None else command
    if kind == "sim":
        robot, settings = _simulation(config, contract)
        return kind, _simulated(robot, settings, config, contract, seed, asked_for, told), None
    return kind, _own(own_interface(kind), contract, asked_for, float(config.seconds)), None


@contextmanager
def _played(
    recording: Recording,
    again: Playback,
    command: FloatArray | None,
    contract: BundleContract,
    told: dict[str, Any],
) -> Iterator[Driven]:
    yield Driven(
        again, again, again.command if command is None else lambda _: command, float("inf")
    )
    same = recording.about.get("policy_sha256") == contract.policy_sha256
    told["playback"] = {
        **same_targets(recording, again.written),
        "same_policy": same,
        "same_command": command is None,
    }


@contextmanager
def _own(
    made: Callable[[BundleContract], RobotInterface],
    contract: BundleContract,
    asked: FloatArray,
    seconds: float,
) -> Iterator[Driven]:
    robot = made(contract)
    try:
        yield Driven(robot, SystemClock(), lambda _: asked, seconds)
    finally:
        robot.stop()


def _command(config: DictConfig, contract: BundleContract) -> FloatArray | None:
    """What command= says, None where it says nothing. Raises InputError for what the bundle does
    not take."""
    if config.command is None:
        return None
    given = plain(config)["command"]
    names = ", ".join(contract.command)
    try:
        wanted = np.asarray(given if isinstance(given, list) else [given], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"command={given}: numbers are expected: {names}") from error
    if wanted.shape != (len(contract.command),) or not np.isfinite(wanted).all():
        raise InputError(
            f"command={given}: {len(contract.command)} finite numbers are expected: {names}"
        )
    for name, value, (low, high) in zip(contract.command, wanted, contract.command_range):
        if not low <= value <= high:
            say(
                f"{name} {value:g} is kept within {low:g} to {high:g}, which the policy was trained in"
            )
    return wanted


def refuse_other_robot(contract: BundleContract, robot: str, joint_names: Sequence[str]) -> None:
    """Raises InputError where a bundle is not for a robot with these joints."""
    if tuple(joint_names) != tuple(contract.joint_names):
        raise InputError(
            f"the bundle is for '{contract.robot}' with {len(contract.joint_names)} joints, not '{robot}'"
        )


def _simulation(config: DictConfig, contract: BundleContract) -> tuple[Robot, SimulatedConfig]:
    """Raises InputError where the bundle is for another robot than is here, or other rates, or for
    settings that cannot be."""
    robot = robots.load(contract.robot)
    refuse_other_model(contract, robot)
    settings = from_mapping(SimulatedConfig, plain(config.sim), at="sim")
    if (oldest := float(config.guard.state_age_s)) > STALE_S:
        raise InputError(
            f"guard.state_age_s={oldest:g}: robot=sim hears nothing that is older than {STALE_S:g} s"
        )
    if settings.deadman_ms <= (least := 2e3 / robot.physics_rate_hz):
        raise InputError(
            f"sim.deadman_ms={settings.deadman_ms:g} must be more than two physics steps, {least:g} ms"
        )
    return robot, settings


@contextmanager
def _simulated(
    robot: Robot, settings: SimulatedConfig, config: DictConfig, contract: BundleContract, seed: int,
    asked: FloatArray, told: dict[str, Any],
) -> Iterator[Driven]:  # fmt: skip
    """The simulated robot, in a process of its own or in simulated time; told["robot"]: what it
    says when it ends."""
    name, joints, seconds = (
        identity(robot.name, robot.model_sha256),
        len(robot.joint_names),
        float(config.seconds),
    )
    if not settings.realtime:
        line = Stepped(make_station(robot, contract.accelerometer, settings, seed))
        remote = RemoteRobot(name, joints, line, line.now)
        yield Driven(remote, line, lambda _: asked, seconds)
        told["robot"], told["refused"] = line.station.summary(), dict(remote.inbox.refused)
        return
    with closing(UdpLine(name, joints)) as udp:
        remote = RemoteRobot(name, joints, udp)
        with spawn(
            robot.name,
            contract.accelerometer,
            settings,
            udp.address,
            seed=seed,
            priority=int(config.priority),
        ) as process:
            try:
                yield Driven(remote, SystemClock(), lambda _: asked, seconds)
                if udp.peer is None:  # it has not begun, and would wait for long to be spoken to
                    process.terminate()
                said, _ = process.communicate(timeout=30 * settings.silence_s)
                told["robot"] = json.loads(said) if said else {"ended": process.returncode}
                told["refused"] = dict(remote.inbox.refused)
            except subprocess.TimeoutExpired:
                told["robot"] = {"ended": "not within its time"}
            finally:
                process.kill()


def own_interface(place: str) -> Callable[[BundleContract], RobotInterface]:
    """The class that FILE.py:CLASS or package.module:CLASS names. Raises InputError for none."""
    where, _, name = place.rpartition(":")
    if not where or not name.isidentifier():
        raise InputError(
            f"robot={place}: sim, log, FILE.py:CLASS or package.module:CLASS is expected"
        )
    try:
        found = getattr(_module(where), name)
    except (ImportError, AttributeError, SyntaxError, FileNotFoundError) as error:
        raise InputError(f"robot={place}: {error}") from error
    lacking = [
        method for method in ("read", "write", "stop") if not callable(getattr(found, method, None))
    ]
    if not isinstance(found, type) or lacking:
        raise InputError(f"robot={place} is no class with the methods read, write and stop")
    try:
        inspect.signature(found).bind("contract")
    except TypeError as error:
        raise InputError(
            f"robot={place} must be made from the bundle's contract alone: {error}"
        ) from error
    return found


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    if not Path(where).is_file():
        raise FileNotFoundError(f"no file {where}")
    spec = importlib.util.spec_from_file_location(f"npmp_robot_{Path(where).stem}", where)
    assert spec is not None and spec.loader is not None  # of a file that ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def same_targets(recording: Recording, written: Sequence[FloatArray]) -> dict[str, float]:
    """How far targets are from the recorded ones, where both were written [rad]."""
    modes = recording.columns["mode"][:, 0]
    sent = recording.columns["target"][(modes == Mode.STAND) | (modes == Mode.POLICY)]
    steps = min(len(sent), len(written))
    apart = np.abs(sent[:steps] - np.array(written[:steps])) if steps else np.zeros((1, 1))
    return {"steps": steps, "target_difference_rad": float(apart.max())}


def answers_otherwise(found: dict[str, Any]) -> bool:
    """Whether the policy of a recording, asked for the same, did not answer as it was recorded."""
    again = found.get("playback", {})
    same = again.get("same_policy") and again["same_command"]
    return bool(same and again["target_difference_rad"] > MOST_DIFFERENCE)


def summary(recording: Recording, controller: Controller) -> dict[str, Any]:
    """The figures of a run."""
    columns, acting = recording.columns, recording.acting
    late, work = columns["late_s"][:, 0], columns["work_s"][:, 0]
    missed = int(missed_deadlines(late, 1.0 / recording.rate_hz).sum())
    moved = np.abs(columns["proposed"] - columns["target"])[acting].max(1, initial=0.0) > 1e-9
    reason = controller.reason
    return {
        "robot_name": recording.robot, "source": recording.source, "ended": reason,
        "tripped": reason not in ENDS_WELL,
        "modes": [[when - controller.history[0][0], mode.name.lower(), why] for when, mode, why in controller.history],
        "policy_s": float(acting.sum() / recording.rate_hz), "steps": len(late),
        "deadlines": {"missed": missed, "late_ms": spread(1e3 * late)},
        "work_us": spread(1e6 * work), "state_age_ms": spread(1e3 * columns["state_age_s"][acting]),
        "limited_share": float(moved.mean()) if acting.any() else 0.0,
    }  # fmt: skip


def spread(values: Any) -> dict[str, float]:
    """Median, 99th percentile and maximum; nothing of nothing."""
    kept = np.asarray(values)[np.isfinite(values)]
    return {} if not kept.size else {"p50": float(np.median(kept)), "p99": float(np.quantile(kept, 0.99)),
                                     "max": float(kept.max())}  # fmt: skip


def report(found: dict[str, Any], folder: Path) -> None:
    """A few lines on the terminal."""
    late, work = found["deadlines"]["late_ms"], found["work_us"]
    say(
        f"{found['policy_s']:.1f} s of policy; ended in damping: {found['ended']}",
        f"{found['deadlines']['missed']} of {found['steps']} deadlines missed; a step begins {late['p50']:.2f} ms late "
        f"(99 %: {late['p99']:.2f}) and takes {work['p50']:.0f} us (99 %: {work['p99']:.0f})",
    )
    if "playback" in found:
        say(
            f"targets differ from the recorded ones by at most {found['playback']['target_difference_rad']:.2g} rad"
        )
        if not found["playback"]["same_policy"]:
            say("the recording was made with another policy than the bundle's")
        if answers_otherwise(found):
            say(f"that is more than {MOST_DIFFERENCE:g} rad: the bundle does not answer as it did")
    say(f"recording and figures: {folder}")


_main = verb("deploy", run, torch=False, positional="bundle")


def main(arguments: Sequence[str] | None = None) -> int:
    """`npmp deploy`. robot=sim is interface=sim (robot= chooses a model elsewhere), robot=log=FILE
    is log=FILE."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    given = [a.removeprefix("robot=") if a.startswith("robot=log=") else a for a in given]
    return _main(
        [f"interface={a.removeprefix('robot=')}" if a.startswith("robot=") else a for a in given]
    )


if __name__ == "__main__":
    sys.exit(main(None))
