"""Being scheduled in time, where the system allows it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from mocap_data.errors import InputError


def check_priority(priority: int) -> int:
    """The priority as it is. Raises InputError for one that `prioritized` does not take."""
    if not 0 <= priority <= 99:
        raise InputError(f"priority={priority}: 1 to 99 is expected, or 0 for none")
    return priority


@contextmanager
def prioritized(priority: int) -> Iterator[bool]:
    """Inside, this process is scheduled before all ordinary ones (SCHED_FIFO); yields False where
    that is not allowed.

    priority: 1 to 99, 0 to stay ordinary. What one step takes is far less than its period, so
    nobody starves.
    """
    if priority == 0 or not hasattr(os, "sched_setscheduler"):
        yield priority == 0
        return
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, before, parameters)
