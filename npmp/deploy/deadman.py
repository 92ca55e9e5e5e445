"""A second process that damps the robot when the control loop falls silent.

The loop sends it a byte with every write. Without one for `SILENCE_S`, or once the loop's process
has ended, it damps by its own line to the robot. Signals to the loop's terminal and process group
do not reach it.

    loop            | process
    beat, beat ...  | "." for each
    silent          | damps, says why, damps on until the loop's process has ended and `damping_s`
    release         | ends
"""

from __future__ import annotations

import gc
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import Any

from mocap_data.errors import InputError, one_line
from npmp.core.settings import from_mapping
from npmp.core.signals import write_aside
from npmp.deploy.contract import BundleContract
from npmp.deploy.robot import driver_class

# without a write of the loop, five control steps of 50 Hz [D]
SILENCE_S = 0.1
# without an answer of the process, which then protects nothing [D]
HUNG_S = 0.5
# until the process has its line to the robot; until it has ended [D]
READY_S = 20.0
END_S = 5.0
# between two commands to damp [D]
REPEAT_S = 0.005
# from the loop: it lives, or has damped the robot itself
BEAT = b"."
RELEASE = b"-"
# from the process, which answers a beat by a beat: it can damp, or has done so
READY = b"+"
TAKEN = b"!"
# a process that has ended is an error, not SIGPIPE; other systems have no such flag
NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)


class Deadman:
    """The loop's end: `wait` before the drives are taken over, `beat` with every write, `release`
    once the robot is damped. Left without a release, the process damps."""

    def __init__(self, place: str, contract: BundleContract, interface: str, damping_s: float):
        """place, interface: the robot, as `npmp deploy run` takes them. damping_s: for how long it
        damps once the loop's process has ended [s]."""
        own, its = socket.socketpair()
        path = os.pathsep.join(sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "npmp.deploy.deadman"],
            stdin=its.fileno(),
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,
        )
        its.close()
        self.socket = own
        self.damping_s = damping_s
        self.last_answer: float | None = None  # [s]
        self.reason = ""  # why the loop must not write any more
        about = {
            "place": place,
            "interface": interface,
            "damping_s": damping_s,
            "contract": asdict(contract),
        }
        with suppress(OSError):
            own.sendall(json.dumps(about).encode() + b"\n", NO_SIGNAL)
        own.setblocking(False)

    def wait(self) -> None:
        """Until the process can damp. Raises InputError where it cannot."""
        self.socket.settimeout(READY_S)
        answer = b""
        with suppress(OSError):
            while not answer.endswith((READY, b"\n")) and (more := self.socket.recv(4096)):
                answer += more
        self.socket.setblocking(False)
        if answer != READY:
            why = answer.decode(errors="replace").strip() or "it does not start"
            raise InputError(f"left as it is, as nothing damps it if this process ends: {why}")

    def beat(self) -> str:
        """Say that the loop is alive. Returns: why it must not write any more, "" for no reason."""
        now = time.monotonic()
        answer = b""
        try:
            with suppress(BlockingIOError):
                self.socket.send(BEAT, NO_SIGNAL)
            with suppress(BlockingIOError):
                answer = self.socket.recv(4096)
                self.reason = self.reason or ("" if answer else "the deadman process has ended")
        except OSError as error:
            self.reason = self.reason or f"the deadman process has ended ({error.strerror})"
        if TAKEN in answer:
            self.reason = f"the deadman process damped it: no write for {1e3 * SILENCE_S:.0f} ms"
        if self.last_answer is None or answer:
            self.last_answer = now
        if not self.reason and now - self.last_answer > HUNG_S:
            self.reason = f"the deadman process has not answered for {HUNG_S:g} s"
        return self.reason

    def release(self) -> None:
        """The robot is damped, the process is not needed any more."""
        with suppress(OSError):
            self.socket.send(RELEASE, NO_SIGNAL)

    def __enter__(self) -> Deadman:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()
        try:
            self.process.wait(END_S + self.damping_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


# --- in the process


def damper(about: dict[str, Any]) -> Callable[[], None]:
    """What damps the robot. Raises InputError, or what a user's `damper` raises."""
    contract = from_mapping(BundleContract, about["contract"])
    if about["interface"]:
        from npmp.deploy.unitree import unitree_damper

        return unitree_damper(contract, about["interface"])
    stop: Callable[[], None] = driver_class(about["place"]).damper(contract)
    return stop


def watch(loop: socket.socket) -> str:
    """Wait until the loop falls silent. Returns: why the robot is to be damped, "" where it is not:
    the loop released it, or never wrote."""
    poll = select.poll()
    poll.register(loop, select.POLLIN)
    armed = False
    while poll.poll(1e3 * SILENCE_S if armed else None):
        try:
            came = loop.recv(4096)
        except OSError:
            came = b""
        if RELEASE in came or not (came or armed):
            return ""
        if not came:
            return "the control loop's process has ended"
        armed = True
        with suppress(OSError):
            loop.send(BEAT, NO_SIGNAL)
    return f"the control loop has not written for {1e3 * SILENCE_S:.0f} ms"


def damp(loop: socket.socket, stop: Callable[[], None], why: str, damping_s: float) -> None:
    """Damp until the loop's process has ended, which might write once more, and `damping_s`."""
    loop.setblocking(False)
    with suppress(OSError):
        loop.send(TAKEN, NO_SIGNAL)
    failure = _failure(stop)
    write_aside(f"npmp: {why}: damping the robot{failure}\n")

    until = math.inf
    while time.monotonic() < until:
        if until == math.inf and _ended(loop):
            until = time.monotonic() + damping_s
        time.sleep(REPEAT_S)
        _failure(stop)


def _failure(stop: Callable[[], None]) -> str:
    try:
        stop()
    except Exception as error:  # it is called again
        return f", which fails: {error!r:.200}"
    return ""


def _ended(loop: socket.socket) -> bool:
    """Whether the loop's process has ended, or released this one."""
    try:
        came = loop.recv(4096)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return not came or RELEASE in came


def preempt() -> None:
    """Take a real-time priority above the one inherited from the loop: among equal ones a loop that
    hangs keeps its core."""
    if not hasattr(os, "sched_getscheduler"):
        return
    scheduler = os.sched_getscheduler(0)
    if scheduler not in (os.SCHED_FIFO, os.SCHED_RR):
        return
    inherited = os.sched_getparam(0).sched_priority
    priority = min(inherited + 1, os.sched_get_priority_max(scheduler))
    with suppress(PermissionError):
        os.sched_setscheduler(0, scheduler, os.sched_param(priority))


def main() -> int:
    """Read what to damp from the socket on the standard input, and watch."""
    preempt()
    kept = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGCONT}
    faults = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
    for number in signal.valid_signals() - kept - faults:
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    loop = socket.socket(fileno=0)
    line = b""
    while not line.endswith(b"\n"):
        if not (more := loop.recv(1 << 16)):
            return 0
        line += more
    about = json.loads(line)

    answer = READY
    try:
        stop = damper(about)
    except Exception as error:
        answer = f"{one_line(error) if isinstance(error, InputError) else repr(error)}\n".encode()
    try:
        loop.sendall(answer, NO_SIGNAL)
    except OSError:
        return 1
    if answer != READY:
        return 1

    gc.disable()  # a collection may take longer than a turn of the loop
    if why := watch(loop):
        damp(loop, stop, why, about["damping_s"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
