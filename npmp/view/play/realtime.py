"""Step a session in real time, with requests from other threads."""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from mocap_data.errors import InputError
from npmp.deploy.controller import LoopClock, SystemClock
from npmp.view.play.modes import Mode
from npmp.view.play.session import Session, Snapshot

# simulated by real time
SPEEDS = (0.1, 0.25, 0.5, 1.0)
# largest delay that is caught up with [s]
BEHIND_S = 0.25
# time without a step after which the session is stalled [s]
STALLED_S = 2.0
# window of the real-time factor [s]
WINDOW_S = 2.0
# values of one kind of request between two steps
MAX_VALUES = 64

Request = Callable[..., object]  # (session, **values)


class Player:
    """Steps a session at absolute deadlines and displays every step."""

    def __init__(
        self, session: Session, show: Callable[[Snapshot], None], clock: LoopClock | None = None
    ):
        """show: called in the thread of `run`, after each step and while paused."""
        self.session = session
        self._show = show
        self._clock = clock or SystemClock()
        self.speed = 1.0
        self.paused = False
        self.busy = ""
        self.note = ""
        self._lock = threading.Lock()
        self._requests = dict[str, tuple[Request, dict[str, Any]]]()
        self._once = 0
        self._opening = 0
        # mode and world that are being opened
        self._pending = session.mode.name, session.world
        self._opener = ThreadPoolExecutor(1)
        self._times: deque[tuple[float, float]] = deque()  # real and simulated [s]

    def ask(self, kind: str, request: Request, /, **values: Any) -> None:
        """Request a change of the session before its next step, from any thread.

        Requests of one kind between two steps are merged: the last one with the values of all.

        Raises:
          InputError: for too many values.
        """
        with self._lock:
            merged = self._requests.pop(kind, (request, {}))[1] | values
            if len(merged) > MAX_VALUES:
                raise InputError(f"{kind}: more than {MAX_VALUES} values")
            self._requests[kind] = request, merged

    def once(self) -> None:
        """One step of a paused session."""
        self._once = 1

    @property
    def moves(self) -> bool:
        """Whether the session is being stepped."""
        times = tuple(self._times)  # modified by the session's thread
        return bool(times) and not self.paused and self._clock.now() - times[-1][0] < STALLED_S

    @property
    def factor(self) -> float:
        """The real-time factor over the last two seconds; 0 while the session is not stepped."""
        times = tuple(self._times)
        if len(times) < 2 or not self.moves:
            return 0.0
        real, simulated = times[0]
        now, then = times[-1]
        return (then - simulated) / max(now - real, 1e-9)

    def open(self, mode: str | None = None, /, **world: object) -> None:
        """Switch to a mode, or to the settings `world`. Another thread opens it, while the current
        mode continues. Must be called in the thread of `run`, by a request.

        Raises:
          InputError: for unknown settings.
        """
        if not self.busy:
            self._pending = self.session.mode.name, self.session.world
        try:
            settings = replace(self._pending[1], **world)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise InputError(str(error)) from error
        name = mode or self._pending[0]
        self._pending = name, settings
        self._opening += 1
        number = self._opening
        self.busy = f"opening {name}"

        def make() -> Mode | None:
            # None: superseded by a newer request
            return self.session.made(name, settings) if number == self._opening else None

        def opened(session: Session, *, future: Future[Mode | None]) -> None:
            if number == self._opening:
                self.busy = ""
            # raises the exception of `make`
            mode = future.result()
            if number == self._opening and mode is not None:
                session.enter(mode, settings)

        self._opener.submit(make).add_done_callback(
            lambda future: self.ask(f"opened {number}", opened, future=future)
        )

    def _handle_requests(self) -> None:
        """Apply the requests since the last step. One that fails does not end the session."""
        with self._lock:
            requests = self._requests
            self._requests = {}
        for request, values in requests.values():
            try:
                request(self.session, **values)
            except InputError as error:
                self.note = str(error)
            except Exception as error:
                traceback.print_exception(error)
                self.note = f"failed: {error}"

    def run(self, stop: Callable[[], bool]) -> None:
        """Run until `stop` returns true. Exceptions of `Session.step` end it."""
        clock = self._clock
        deadline = clock.now()
        while not stop():
            self._handle_requests()
            dt = self.session.mode.env.dt
            if self.paused and not self._once:
                self._show(self.session.snapshot())
                self._times.clear()
                deadline = clock.now() + dt
            else:
                self._once = 0
                self.session.step()
                self._show(self.session.snapshot())
                now = clock.now()
                self._times.append((now, self.session.time_s))
                while now - self._times[0][0] > WINDOW_S:
                    self._times.popleft()
                deadline += dt / self.speed
                if now > deadline + BEHIND_S:
                    deadline = now
            clock.wait_until(deadline)
