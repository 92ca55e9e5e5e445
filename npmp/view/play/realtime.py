"""A session moved by the clock, with wishes from other threads."""

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

SPEEDS = (0.1, 0.25, 0.5, 1.0)  # of simulated time
BEHIND_S = 0.25  # a larger delay is not caught up with
STALLED_S = 2.0  # without a step the robot counts as standing still
WINDOW_S = 2.0  # of the mean that is the real-time factor
MOST_VALUES = 64  # of one kind of wish between two steps

Wish = Callable[..., object]  # (session, **values)


class Player:
    """Steps a session at absolute deadlines and shows every step."""

    def __init__(
        self, session: Session, show: Callable[[Snapshot], None], clock: LoopClock | None = None
    ):
        """show: is called in the thread of `run`, after each step and while it is paused."""
        self.session = session
        self._show = show
        self._clock = clock or SystemClock()
        self.speed = 1.0
        self.paused = False
        self.busy = ""
        self.note = ""
        self._lock = threading.Lock()
        self._wishes = dict[str, tuple[Wish, dict[str, Any]]]()
        self._once = 0
        self._opening = 0
        # mode and world that are being opened
        self._wanted = session.mode.name, session.world
        self._maker = ThreadPoolExecutor(1)  # of modes
        self._times: deque[tuple[float, float]] = deque()  # real and simulated [s]

    def ask(self, kind: str, wish: Wish, /, **values: Any) -> None:
        """Have something done to the session before its next step, from any thread.

        Wishes of one kind between two steps become one: the last, with the values of all.

        Raises:
          InputError: for too many values at once.
        """
        with self._lock:
            merged = self._wishes.pop(kind, (wish, {}))[1] | values
            if len(merged) > MOST_VALUES:
                raise InputError("too many settings at once")
            self._wishes[kind] = wish, merged

    def once(self) -> None:
        """A single step, of a session that is paused."""
        self._once = 1

    @property
    def moves(self) -> bool:
        """Whether the robot is being stepped now."""
        times = tuple(self._times)  # the session's thread changes them
        return bool(times) and not self.paused and self._clock.now() - times[-1][0] < STALLED_S

    @property
    def factor(self) -> float:
        """Simulated by real time, over the last two seconds; 0 while the robot does not move."""
        times = tuple(self._times)
        if len(times) < 2 or not self.moves:
            return 0.0
        real, simulated = times[0]
        now, then = times[-1]
        return (then - simulated) / max(now - real, 1e-9)

    def open(self, mode: str | None = None, /, **world: object) -> None:
        """Switch to a mode, in another world where `world` says so. A thread of its own makes it;
        the present one continues until then. To be called where `run` is, by a wish."""
        if not self.busy:
            self._wanted = self.session.mode.name, self.session.world
        try:
            settings = replace(self._wanted[1], **world)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise InputError(str(error)) from error
        name = mode or self._wanted[0]
        self._wanted = name, settings
        self._opening += 1
        number = self._opening
        self.busy = f"opening {name}"

        def make() -> Mode | None:
            # None: another one has been asked for meanwhile
            return self.session.made(name, settings) if number == self._opening else None

        def opened(session: Session, *, made: Future[Mode | None]) -> None:
            if number == self._opening:
                self.busy = ""
            # raises here what making it raised
            mode = made.result()
            if number == self._opening and mode is not None:
                session.enter(mode, settings)

        self._maker.submit(make).add_done_callback(
            lambda made: self.ask(f"opened {number}", opened, made=made)
        )

    def _grant(self) -> None:
        """Do what was asked for since the last step. A wish that fails does not end the session."""
        with self._lock:
            wishes, self._wishes = self._wishes, {}
        for wish, values in wishes.values():
            try:
                wish(self.session, **values)
            except InputError as error:
                self.note = str(error)
            except Exception as error:
                traceback.print_exception(error)
                self.note = f"not done: {error}"

    def run(self, stop: Callable[[], bool]) -> None:
        """Until `stop` returns true. What `Session.step` raises ends it."""
        clock = self._clock
        deadline = clock.now()
        while not stop():
            self._grant()
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
