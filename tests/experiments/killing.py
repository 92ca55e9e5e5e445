"""Runs a training command, kills it with SIGKILL at random moments, lets it go on each time, and at
last to its end."""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any


def started(verb: str, arguments: list[str], out: Path) -> int:
    """The process of a new run, or of one that goes on where there is a run already."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        args = [f"resume={out}"] if (out / "config.yaml").is_file() else arguments
        code = importlib.import_module(f"npmp.experiments.{verb}").main(args)
    finally:
        os._exit(code)


def written(out: Path) -> int:
    """When a run last began: each start writes its configuration. 0 for none."""
    try:
        return (out / "config.yaml").stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def leftovers(out: Path) -> dict[str, Any]:
    """What a killed run left: its last checkpoint, the rows of its log, and halves of files."""
    steps = [
        int(path.stem.rpartition("_")[2])
        for path in (out / "checkpoints").glob("checkpoint_*.json")
    ]
    log = out / "metrics.csv"
    return {
        "checkpoint": max(steps, default=None),
        "rows": max(0, log.read_text().count("\n") - 1) if log.is_file() else 0,
        "halves": len(list(out.rglob(".*-????????.*"))),
    }


def main(verb: str, kills: int, seconds: float, seed: int, arguments: list[str]) -> None:
    """Kills come uniformly within so many seconds of the moment when the run begins to write.
    Prints one JSON object: what there was at each kill. The commands run in forked children, so
    that a kill costs no import of torch."""
    importlib.import_module(f"npmp.experiments.{verb}")
    out = Path(
        next(argument for argument in arguments if argument.startswith("out=")).removeprefix("out=")
    )
    draw, left = random.Random(seed), []
    for _ in range(kills):
        before = written(out)
        child = started(verb, arguments, out)
        while (
            written(out) == before
            and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        ):
            time.sleep(0.005)
        time.sleep(draw.uniform(0.0, seconds))
        os.kill(child, signal.SIGKILL)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL:
            left.append(leftovers(out))
    code = os.waitstatus_to_exitcode(os.waitpid(started(verb, arguments, out), 0)[1])
    print(json.dumps({"code": code, "killed": left}))
