"""A second process that damps the robot when the control loop falls silent.

The loop sends it a byte with every write. After `SILENCE_S` without one, or when the loop's process
has ended, it damps the robot by its own connection. Signals to the loop's terminal and process
group do not reach it.

    loop            | process
    beat, beat ...  | "." for each
    silent          | damps, reports why, goes on until `damping_s` after the loop's process ended
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

# time without a write of the loop, five control steps at 50 Hz [s] [D]
SILENCE_S = 0.1
# time without a response of the process [s] [D]
HUNG_S = 0.5
# time-outs: until the process is connected to the robot, until it has ended [s] [D]
READY_S = 20.0
END_S = 5.0
# period of the damping commands [s] [D]
REPEAT_S = 0.005
# from the loop: it is alive, or has damped the robot itself
BEAT = b"."
RELEASE = b"-"
# from the process: it can damp, or has damped the robot; it answers a beat by a beat
READY = b"+"
TAKEN = b"!"
# raises an error instead of SIGPIPE if the process has ended; not on every system
NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)


class Deadman:
    """The loop's side: `wait` before the first write, `beat` with every write, `release` once the
    robot is damped. Without a release the process damps."""

    def __init__(self, place: str, contract: BundleContract, interface: str, damping_s: float):
        """place, interface: the robot, as of `npmp deploy run`. damping_s: duration of damping once
        the loop's process has ended [s]."""
        own, other = socket.socketpair()
        path = os.pathsep.join(sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "npmp.deploy.deadman"],
            stdin=other.fileno(),
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,
        )
        other.close()
        self.socket = own
        self.damping_s = damping_s
        # time of the process's last response [s]
        self.last_response: float | None = None
        # reason that the loop must not write any more
        self.reason = ""
        settings = {
            "place": place,
            "interface": interface,
            "damping_s": damping_s,
            "contract": asdict(contract),
        }
        with suppress(OSError):
            own.sendall(json.dumps(settings).encode() + b"\n", NO_SIGNAL)
        own.setblocking(False)

    def wait(self) -> None:
        """Wait until the process can damp.

        Raises:
          InputError: if it cannot.
        """
        self.socket.settimeout(READY_S)
        response = b""
        with suppress(OSError):
            while not response.endswith((READY, b"\n")) and (more := self.socket.recv(4096)):
                response += more
        self.socket.setblocking(False)
        if response != READY:
            reason = response.decode(errors="replace").strip() or "it does not start"
            raise InputError(f"the robot was not taken over: the deadman process fails: {reason}")

    def beat(self) -> str:
        """Signal that the loop is alive. Returns why it must not write any more, "" for no
        reason."""
        now = time.monotonic()
        response = b""
        try:
            with suppress(BlockingIOError):
                self.socket.send(BEAT, NO_SIGNAL)
            with suppress(BlockingIOError):
                response = self.socket.recv(4096)
                self.reason = self.reason or ("" if response else "the deadman process has ended")
        except OSError as error:
            self.reason = self.reason or f"the deadman process has ended ({error.strerror})"
        if TAKEN in response:
            self.reason = (
                f"the deadman process damped the robot: no write for {1e3 * SILENCE_S:.0f} ms"
            )
        if self.last_response is None or response:
            self.last_response = now
        if not self.reason and now - self.last_response > HUNG_S:
            self.reason = f"the deadman process has not responded for {HUNG_S:g} s"
        return self.reason

    def release(self) -> None:
        """End the process, as the robot is damped."""
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


def damper(settings: dict[str, Any]) -> Callable[[], None]:
    """The function that damps the robot. Raises InputError, or as a user's `damper`."""
    contract = from_mapping(BundleContract, settings["contract"])
    if settings["interface"]:
        from npmp.deploy.unitree import unitree_damper

        return unitree_damper(contract, settings["interface"])
    stop: Callable[[], None] = driver_class(settings["place"]).damper(contract)
    return stop


def watch(loop: socket.socket) -> str:
    """Wait until the loop falls silent. Returns why the robot must be damped, "" if the loop
    released the process or never wrote."""
    poll = select.poll()
    poll.register(loop, select.POLLIN)
    armed = False
    while poll.poll(1e3 * SILENCE_S if armed else None):
        try:
            received = loop.recv(4096)
        except OSError:
            received = b""
        if RELEASE in received or not (received or armed):
            return ""
        if not received:
            return "the control loop's process has ended"
        armed = True
        with suppress(OSError):
            loop.send(BEAT, NO_SIGNAL)
    return f"the control loop has not written for {1e3 * SILENCE_S:.0f} ms"


def damp(loop: socket.socket, stop: Callable[[], None], reason: str, damping_s: float) -> None:
    """Damp until `damping_s` after the loop's process, which might write once more, has ended."""
    loop.setblocking(False)
    with suppress(OSError):
        loop.send(TAKEN, NO_SIGNAL)
    failure = _failure(stop)
    write_aside(f"npmp: {reason}: damping the robot{failure}\n")

    until = math.inf
    while time.monotonic() < until:
        if until == math.inf and _ended(loop):
            until = time.monotonic() + damping_s
        time.sleep(REPEAT_S)
        _failure(stop)


def _failure(stop: Callable[[], None]) -> str:
    try:
        stop()
    except Exception as error:  # it is called repeatedly
        return f" fails: {error!r:.200}"
    return ""


def _ended(loop: socket.socket) -> bool:
    """Whether the loop's process has ended, or released this one."""
    try:
        received = loop.recv(4096)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return not received or RELEASE in received


def preempt() -> None:
    """Raise a real-time priority inherited from the loop: a hanging loop would keep its core from a
    process of equal priority."""
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
    """Read the settings from the socket on the standard input, and watch."""
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
    settings = json.loads(line)

    response = READY
    try:
        stop = damper(settings)
    except Exception as error:
        message = one_line(error) if isinstance(error, InputError) else repr(error)
        response = f"{message}\n".encode()
    try:
        loop.sendall(response, NO_SIGNAL)
    except OSError:
        return 1
    if response != READY:
        return 1

    gc.disable()  # a collection may take longer than a tick of the loop
    if reason := watch(loop):
        damp(loop, stop, reason, settings["damping_s"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
