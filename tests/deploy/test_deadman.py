"""What damps the robot when the control loop falls silent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mocap_data.errors import InputError
from npmp.deploy import deadman
from npmp.deploy.bundle import Bundle
from npmp.deploy.controller import Controller, ControlMode
from npmp.deploy.deadman import BEAT, RELEASE, TAKEN, Deadman, damp, watch
from npmp.experiments import deploy
from tests.deploy.standins import Standing, contract_of, two_joints
from tests.deploy.test_controller import Ideal, controller, run

# appends "stiff TIME" or "damp TIME" to a file; its joints are where they are sent
DRIVER = """
import os, time
import numpy as np
from npmp.deploy.robot import State

FILE = os.open({file!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def say(word):
    os.write(FILE, f"{{word}} {{time.monotonic()}}\\n".encode())

class Robot:
    def __init__(self, contract):
        self.pos = contract.home_pose

    def read(self):
        now, zero, up = time.monotonic(), 0 * self.pos, np.array([0.0, 0.0, 1.0])
        self.pos = self.pos + 1e-9
        return State(now, self.pos, zero, zero, np.full(3, 1e-6 * (now % 100)), 9.81 * up, up)

    def write(self, target, kp, kd, duration_s):
        self.pos = target
        say("stiff")

    def stop(self):
        say("damp")

    @staticmethod
    def damper(contract):
        return lambda: say("damp")
"""


def driver(folder: Path, source: str = DRIVER) -> tuple[str, Callable[[], list[tuple[str, float]]]]:
    """robot=, and what it was sent."""
    file = folder / "sent.txt"
    (folder / "standin.py").write_text(source.format(file=str(file)))

    def sent() -> list[tuple[str, float]]:
        lines = file.read_text().splitlines() if file.exists() else []
        pairs = (line.split() for line in lines)
        return [(word, float(at)) for word, at in pairs]

    return f"{folder}/standin.py:Robot", sent


# --- its parts, in a thread


def watched(*sent: bytes, closed: bool = False) -> str:
    """What `watch` returns after these messages."""
    loop, process = socket.socketpair()
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(watch(process)))
    thread.start()
    for message in sent:
        loop.send(message)
        time.sleep(0.01)
    if closed:
        loop.close()
    thread.join(10.0)
    loop.close()
    process.close()
    return answers[0]


def test_it_watches_from_the_first_beat_until_it_is_released() -> None:
    assert watched(BEAT, BEAT, RELEASE) == ""
    assert watched(closed=True) == ""  # nothing was written yet
    assert "has not written for 100 ms" in watched(BEAT)
    assert "process has ended" in watched(BEAT, closed=True)


def test_it_damps_until_the_loop_s_process_has_ended() -> None:
    loop, process = socket.socketpair()
    stops = []

    def stop() -> None:
        stops.append(time.monotonic())
        if len(stops) == 1:
            raise OSError("bus off")

    thread = threading.Thread(target=damp, args=(process, stop, "silent", 0.05))
    thread.start()
    time.sleep(0.2)
    loop.send(BEAT)  # a loop that was only slow
    time.sleep(0.1)
    assert loop.recv(99) == TAKEN and thread.is_alive() and len(stops) > 5
    ended = time.monotonic()
    loop.close()
    thread.join(10.0)
    assert not thread.is_alive() and stops[-1] >= ended + 0.04


# --- the process


def test_a_silent_loop_is_damped_and_must_not_write_again(tmp_path: Path) -> None:
    place, sent = driver(tmp_path)
    with Deadman(place, two_joints(), "", damping_s=0.05) as guard:
        guard.wait()
        for _ in range(30):
            assert guard.beat() == ""
            time.sleep(0.01)
        assert sent() == []
        until = time.monotonic() + 10.0
        while not sent() and time.monotonic() < until:
            time.sleep(0.01)
        assert sent()[0][0] == "damp"
        assert "no write for 100 ms" in guard.beat() == guard.beat()
    assert guard.process.returncode == 0


def test_a_loop_that_ends_in_order_is_left_alone(tmp_path: Path) -> None:
    place, sent = driver(tmp_path)
    with Deadman(place, two_joints(), "", damping_s=0.05) as guard:
        guard.wait()
        assert guard.beat() == ""
        guard.release()
    assert guard.process.returncode == 0 and sent() == []


def test_a_deadman_that_dies_damps(tmp_path: Path) -> None:
    place, _ = driver(tmp_path)
    with Deadman(place, two_joints(), "", damping_s=0.05) as guard:
        guard.wait()
        assert guard.beat() == ""
        guard.process.kill()
        guard.process.wait()
        assert "deadman process has ended" in guard.beat()


def test_a_deadman_that_hangs_damps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, _ = driver(tmp_path)
    monkeypatch.setattr(deadman, "HUNG_S", 0.05)
    with Deadman(place, two_joints(), "", damping_s=0.05) as guard:
        guard.wait()
        guard.beat()
        os.kill(guard.process.pid, signal.SIGSTOP)
        time.sleep(0.1)
        guard.beat()
        time.sleep(0.1)
        assert "has not responded" in guard.beat()
        os.kill(guard.process.pid, signal.SIGCONT)


def test_without_a_damper_that_works_the_robot_is_left_as_it_is(tmp_path: Path) -> None:
    place, _ = driver(tmp_path, DRIVER.replace("        return lambda", "        1 / 0; lambda"))
    with (
        Deadman(place, two_joints(), "", damping_s=0.05) as guard,
        pytest.raises(InputError, match=r"not taken over.*ZeroDivisionError"),
    ):
        guard.wait()


def test_it_preempts_a_loop_that_hangs_under_real_time_priority(tmp_path: Path) -> None:
    place, _ = driver(tmp_path)
    try:
        before = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(20))
    except (AttributeError, PermissionError):
        pytest.skip("no right to real-time priority")
    try:
        with Deadman(place, two_joints(), "", damping_s=0.05) as guard:
            guard.wait()
            assert os.sched_getparam(guard.process.pid).sched_priority == 21
            guard.release()
    finally:
        os.sched_setscheduler(0, *before)


def test_no_command_is_sent_before_the_deadman_can_damp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stand:
        contract = contract_of()

        def policy(self) -> Standing:
            return Standing(self.contract.home_pose)

    monkeypatch.setattr(Bundle, "read", staticmethod(lambda folder: Stand()))
    monkeypatch.setattr(deploy, "check_golden", lambda bundle: None)
    slow = "        time.sleep(0.3)\n        say('opened')\n        return lambda"
    place, sent = driver(tmp_path, DRIVER.replace("        return lambda", slow))
    settings = ["controller.stand_s=0.1", "controller.damping_s=0.05", "seconds=0.1"]
    deploy.main(["bundle", f"robot={place}", *settings, f"out={tmp_path / 'out'}"])
    assert [word for word, _ in sent()][:2] == ["opened", "stiff"]


class Taken:
    """A `Deadman` that has damped the robot after so many beats."""

    def __init__(self, beats: int):
        self.beats, self.released = beats, False

    def beat(self) -> str:
        self.beats -= 1
        return "taken" if self.beats < 0 else ""

    def release(self) -> None:
        self.released = True


def test_the_loop_does_not_write_once_it_is_taken_over() -> None:
    robot, machine, taken = Ideal(), controller(), Taken(501)
    run(robot, machine, deadman=taken)
    assert machine.reason == "taken" and machine.mode is ControlMode.DAMPING
    # two beats to a write but for the first one, and none before it
    assert len(robot.written) == 251 and robot.stops > 90 and taken.released


def test_a_robot_that_cannot_be_told_to_stop_is_left_to_the_deadman() -> None:
    robot, taken = Ideal(), Taken(10**9)

    def stop() -> None:
        raise OSError("bus off")

    robot.stop = stop  # type: ignore[method-assign]
    machine: Controller = controller()
    run(robot, machine, deadman=taken)
    assert not taken.released


# --- whatever happens

PROGRAM = """
import sys, time
from dataclasses import replace
from npmp.deploy.bundle import Bundle
from npmp.experiments import deploy
from tests.deploy.standins import Standing, contract_of

class Hangs(Standing):
    def act(self, *given):
        if self.acts == 30 and {hangs}:
            sum(range(10**8))  # no signal reaches Python meanwhile
        return super().act(*given)

class Stand:
    contract = contract_of()

    def policy(self):
        return Hangs(self.contract.home_pose)

Bundle.read = staticmethod(lambda folder: Stand())
deploy.check_golden = lambda bundle: None
sys.exit(deploy.main(sys.argv[1:]))
"""
SETTINGS = ["controller.stand_s=0.2", "seconds=60", "safety.missed_deadlines=1000000"]
SETTINGS += ["safety.state_age_s=60", "controller.damping_s=0.2"]
WELL = ("INT", "TERM", "HUP")
CAUGHT = (*WELL, "QUIT", "TSTP", "USR1", "USR2", "ALRM")
ENDS = ("SEGV", "ABRT", "KILL")
WITHIN_S = 0.15 if os.environ.get("NPMP_IDLE") else 1.0  # of a machine that does nothing else


@pytest.mark.slow
@pytest.mark.parametrize("happens", [*CAUGHT, *ENDS, "STOP", "a hang"])
def test_whatever_happens_the_robot_is_damped(happens: str, tmp_path: Path) -> None:
    """At once by signals that Python sees, else by the deadman."""
    place, sent = driver(tmp_path)
    program = PROGRAM.format(hangs=happens == "a hang")
    arguments = ["bundle", f"robot={place}", *SETTINGS, f"out={tmp_path / 'out'}"]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stderr=log,
            stdout=log,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
        )
    try:
        until = time.monotonic() + 60.0
        while not (first := sent()) or first[-1][1] - first[0][1] < 0.5:
            assert process.poll() is None and time.monotonic() < until, log
            time.sleep(0.01)
        began = time.monotonic()
        if happens != "a hang":
            # to the whole group, as a terminal does
            os.killpg(process.pid, getattr(signal, f"SIG{happens}"))
        if happens == "STOP":
            time.sleep(1.0)
            os.killpg(process.pid, signal.SIGCONT)
        code = process.wait(60.0)
        time.sleep(0.5)  # a deadman damps on
    finally:
        process.kill()
    words = [word for word, _ in sent()]
    damped = words.index("damp")
    assert set(words[damped:]) == {"damp"}, "it was stiff again"
    between = sent()[damped][1] - (sent()[damped - 1][1] if happens == "a hang" else began)
    assert between < WITHIN_S
    if happens in ENDS:
        assert code == -getattr(signal, f"SIG{happens}")
    else:
        assert code == 3
        ended = json.loads((tmp_path / "out" / "deploy.json").read_text())
        assert ended["tripped"] is (happens not in WELL)
