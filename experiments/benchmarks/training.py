"""Where the time of a training run goes, by part and thread.

    python -m npmp.experiments.benchmarks.training imitate data=dog.h5 steps=100000 out=runs/time
    python -m npmp.experiments.benchmarks.training reuse module=anymal_b_dog steps=100000 out=...

Runs the command whole, prints a table in Markdown, and the figures as JSON in the last line.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch

from mocap_data.errors import InputError
from mocap_data.files import json_text
from npmp.core.devices import cpus
from npmp.core.tables import read_table
from npmp.experiments import imitate, reuse
from npmp.experiments.benchmarks import markdown_table
from npmp.experiments.compose import compose
from npmp.experiments.terminal import guarded
from npmp.learning.timing import WAITING, Timer, timed

COMMANDS = {"imitate": imitate.main, "reuse": reuse.main}
REST = "start, logs, checkpoints"


def main(arguments: list[str] | None = None) -> int:
    """Run the command, measured. Returns the exit code."""
    names = arguments if arguments is not None else sys.argv[1:]
    with guarded() as outcome:
        if not names or names[0] not in COMMANDS:
            raise InputError(f"expected {' or '.join(COMMANDS)} and its keys; got {names[:1]}")
        outcome.code = measure(names[0], names[1:])
    return outcome.code


def measure(name: str, keys: list[str]) -> int:
    """Run a command and print its table. Returns the command's exit code."""
    command = COMMANDS[name]
    config = compose(command.name, command.keys, keys).config
    wall = time.perf_counter()
    cpu = time.process_time()
    with timed(torch.device(config.device)) as timer:
        # out= may contain the time
        code = command([*keys, f"out={config.out}"])
    if code:
        return code
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    rows = table(timer, wall)
    sys.stdout.write(markdown(rows, wall, cpu))
    figures = {
        "bench": "training",
        "command": name,
        "seconds": rows,
        "wall_s": round(wall, 2),
        "cpu_s": round(cpu, 2),
        "cores_busy": round(cpu / wall / cpus(), 3),
        "iteration_s": iteration_seconds(config.out),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    sys.stdout.write(json_text(figures) + "\n")
    return 0


def iteration_seconds(run: Path) -> float:
    """Median wall time of an iteration in the second half of a run, without its evaluations."""
    seconds = [float(row["wall_s"]) for row in read_table(run / "timing.csv")]
    differences = [after - before for before, after in pairwise(seconds)]
    return round(median(differences[len(differences) // 2 :] or seconds), 4)


def table(timer: Timer, wall: float) -> dict[str, dict[str, float]]:
    """Seconds by thread and part, longest first; they sum up to the wall time in each thread."""
    rows = {}
    for thread, parts in timer.seconds.items():
        idle = REST if thread == "learner" else WAITING
        remaining = wall - sum(parts.values())
        whole = {**parts, idle: parts.get(idle, 0.0) + remaining}
        ordered = sorted(whole.items(), key=lambda item: -item[1])
        rows[thread] = {part: round(seconds, 2) for part, seconds in ordered}
    return rows


def markdown(rows: Mapping[str, Mapping[str, float]], wall: float, cpu: float) -> str:
    """The table: a column per thread."""
    threads = sorted(rows, reverse=True)
    sums: dict[str, float] = {}
    for parts in rows.values():
        for part, seconds in parts.items():
            sums[part] = sums.get(part, 0.0) + seconds
    lines = []
    for part in sorted(sums, key=lambda name: -sums[name]):
        columns = [f"{rows[thread].get(part, 0.0):.1f}" for thread in threads]
        lines.append([part, *columns, f"{sums[part] / wall:.0%}"])
    text = markdown_table(["part [s]", *threads, "share of the wall time"], lines)
    return f"{text}\nwall {wall:.1f} s, CPU {cpu:.1f} s: {cpu / wall:.2f} cores of {cpus()}\n"


if __name__ == "__main__":
    sys.exit(main())
