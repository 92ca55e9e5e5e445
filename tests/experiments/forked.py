"""Functions in processes of their own which have imported the commands already: forked from a
server, each costs milliseconds where a new interpreter takes seconds for torch."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

SERVER = multiprocessing.get_context("forkserver")
COMMANDS = (
    "npmp.experiments.cli",
    "npmp.experiments.imitate",
    "npmp.experiments.reuse",
    "tests.experiments.killing",
)
LATER = ("torch._dynamo", "torch.utils.tensorboard")  # which a run imports by and by: 1.6 s
SERVER.set_forkserver_preload([*COMMANDS, *LATER])


class Done(NamedTuple):
    """How a process ended."""

    code: int  # as of subprocess: -9 of one that was killed
    out: str
    err: str


def forked(function: Callable[..., int | None], *arguments: Any, seconds: float = 120.0) -> Done:
    """Call a function of a module that can be imported; what it returns, or SystemExit says, is the
    exit code.

    Raises:
      TimeoutError: when it takes longer than `seconds`; it is killed then.
    """
    with TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = SERVER.Process(target=_inside, args=(str(out), str(err), function, arguments))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutError(f"{function.__name__} took longer than {seconds:g} s")
        message = [path.read_text() if path.exists() else "" for path in (out, err)]
        return Done(process.exitcode, *message)


def _inside(
    out: str, err: str, function: Callable[..., int | None], arguments: tuple[Any, ...]
) -> None:
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    sys.exit(function(*arguments))
