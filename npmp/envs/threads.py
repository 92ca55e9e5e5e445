"""How many threads the environments' small tensors deserve."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

# Waking torch's threads takes some 50 us, and costs the physics' threads their cores while they
# wait for more: with fewer robots than this, no operation on all their bodies takes as long on one
# thread.
_WORTH_IT = 2048


Method = TypeVar("Method", bound=Callable[..., Any])


def serial_if_small(method: Method) -> Method:
    """Decorates an environment's method: torch runs on the calling thread alone where the robots
    are few.

    The physics keeps its own threads. Torch's number of threads is the process's; it is put back on
    the way out. Off the main thread it stays as it is: beside a learner at work (algo.overlap), a
    change would reach the learner's sums at a moment that the clock decides, and with it their last
    bits.
    """

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        threads = torch.get_num_threads()
        beside = threading.current_thread() is not threading.main_thread()
        if threads == 1 or beside or self.num_envs >= _WORTH_IT:
            return method(self, *args, **kwargs)
        torch.set_num_threads(1)
        try:
            return method(self, *args, **kwargs)
        finally:
            torch.set_num_threads(threads)

    return cast(Method, run)
