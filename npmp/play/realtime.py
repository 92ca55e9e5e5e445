"""A session moved by the clock, with wishes from other threads."""

from __future__ import annotations

import queue
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from mocap_data.errors import InputError
from npmp.deploy.controller import Clock, SystemClock
from npmp.play.session import Session, Snapshot

SPEEDS = (0.1, 0.25, 0.5, 1.0)  # of simulated time
BEHIND_S = 0.25  # more is not caught up with: a robot that runs to be in time again is no sight
WINDOW_S = 2.0  # that the real-time factor is a mean over

Wish = Callable[[Session], object]


class Player:
    """Steps a session at absolute deadlines and shows every step."""

    def __init__(
        self, session: Session, show: Callable[[Snapshot], None], clock: Clock | None = None
    ):
        """show: is called in the thread of `run`, after each step and while it is paused."""
        self.session, self._show, self._clock = session, show, clock or SystemClock()
        self.speed, self.paused, self.busy, self.note = 1.0, False, "", ""
        self._once, self._wishes = 0, queue.SimpleQueue[Wish]()
        self._maker = ThreadPoolExecutor(1)  # of modes
        self._times: deque[tuple[float, float]] = deque()  # real and simulated [s]
        self._opening = 0

    def ask(self, wish: Wish) -> None:
        """Have something done to the session before its next step, from any thread."""
        self._wishes.put(wish)

    def once(self) -> None:
        """A single step, of a session that is paused."""
        self._once += 1

    @property
    def factor(self) -> float:
        """Simulated by real time, over the last two seconds; 0 before there are any."""
        if len(self._times) < 2:
            return 0.0
        (real, simulated), (now, then) = self._times[0], self._times[-1]
        return (then - simulated) / max(now - real, 1e-9)

    def open(self, mode: str, /, **world: object) -> None:
        """Go over to a mode, in another world where `world` says so; it is made in a thread of its
        own, and the present one goes on until then. To be called where `run` is, by a wish."""
        self._opening += 1
        number, self.busy = self._opening, f"opening {mode}"
        try:
            settings = replace(self.session.world, **world)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            self.busy = ""
            raise InputError(str(error)) from error

        def make() -> None:
            if number != self._opening:
                return  # somebody has asked for another one meanwhile
            try:
                made = self.session.made(mode, settings)
            except Exception as error:  # it belongs to whoever runs the session
                self.ask(lambda _, error=error: self._failed(number, error))  # type: ignore[misc]
            else:
                self.ask(
                    lambda session: self._opened(number, lambda: session.enter(made, settings))
                )

        self._maker.submit(make)

    def _opened(self, number: int, enter: Callable[[], None]) -> None:
        if number == self._opening:  # else somebody has asked for another one meanwhile
            self.busy = ""
            enter()

    def _failed(self, number: int, error: Exception) -> None:
        if number == self._opening:
            self.busy = ""
        # a mode that cannot be made is no reason to end the present one
        if not isinstance(error, InputError):
            traceback.print_exception(error)
            raise InputError(f"this mode cannot be opened: {error}") from error
        raise error

    def _granted(self) -> None:
        while True:
            try:
                wish = self._wishes.get_nowait()
            except queue.Empty:
                return
            try:
                wish(self.session)
            except InputError as error:
                self.note = str(error)
            except Exception as error:  # of a wish that nobody has thought of: the robot goes on
                traceback.print_exception(error)
                self.note = f"not done: {error}"

    def run(self, stop: Callable[[], bool]) -> None:
        """Until `stop` says so. What the session raises, but for an `InputError` of a wish, ends
        it."""
        clock = self._clock
        deadline = clock.now()
        while not stop():
            self._granted()
            dt = self.session.mode.env.dt
            if self.paused and not self._once:
                self._show(self.session.snapshot())
                self._times.clear()
                deadline = clock.now() + dt
            else:
                self._once = max(0, self._once - 1) if self.paused else 0
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
