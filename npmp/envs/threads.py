"""Number of torch threads for the environments' small tensors."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

# Number of robots from which on torch uses several threads. Waking them takes some 50 us, and
# while they spin they take cores from the physics.
_MIN_ROBOTS = 2048


Method = TypeVar("Method", bound=Callable[..., Any])


def serial_if_small(method: Method) -> Method:
    """Decorate an environment's method: with few robots torch runs on the calling thread only.

    The physics keeps its threads. The number of torch threads is global to the process, and is
    restored afterwards. Off the main thread it is not changed: a concurrent learner (algo.overlap)
    would sum in another order, which is not reproducible.
    """

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        threads = torch.get_num_threads()
        concurrent = threading.current_thread() is not threading.main_thread()
        if threads == 1 or concurrent or self.num_envs >= _MIN_ROBOTS:
            return method(self, *args, **kwargs)
        torch.set_num_threads(1)
        try:
            return method(self, *args, **kwargs)
        finally:
            torch.set_num_threads(threads)

    return cast(Method, run)
