"""The process of one job: `python -m npmp.experiments.sweeping.job SWEEP NUMBER CPU,CPU TASK ...`.

CPU,CPU may be empty: all. TASKs are users' tasks whose files it may run. It ends when its standard
input does, i.e. with the process that started it. A job that was started before resumes from its
checkpoint.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path


def end_with_parent() -> None:
    """Wait for the end of the standard input, which has no content."""

    def watch() -> None:
        os.read(0, 1)
        os._exit(137)  # as after kill -9, which runs survive

    threading.Thread(target=watch, daemon=True).start()


def work(folder: Path, number: int, tasks: Sequence[str] = ()) -> int:
    """Do a job. Returns its exit code."""
    from mocap_data.files import locked
    from npmp.experiments.cli import command_of
    from npmp.experiments.compose import Job
    from npmp.experiments.store import run_named_task
    from npmp.experiments.sweeping.sweep import Sweep
    from npmp.experiments.terminal import guarded

    with guarded() as outcome:
        sweep = Sweep.load(folder.resolve())
        sweep.check()
        place = sweep.place(number)
        command = command_of(sweep.verb)
        values = dict(sweep.configs[number])
        for task in tasks:
            run_named_task(task)
        # not the composed value: the folder may have been moved
        file = "" if command.in_folder else Path(str(values["out"])).name
        values["out"] = str(place / file)
        # a previous attempt may still be ending
        with locked(sweep.log(number).with_suffix(".lock"), "", wait=True):
            begun = (place / "config.yaml").is_file()
            kept = any(place.glob("checkpoints/*.json"))
            if "resume" in values and begun and (kept or values["resume"] is None):
                values["resume"] = str(place)
            outcome.code = command.run(Job(command.name, command.keys, values))
    return outcome.code


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    from npmp.experiments.cli import set_environment

    end_with_parent()
    folder, number, cpus, *tasks = arguments
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})
    set_environment()
    return work(Path(folder), int(number), tasks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
