"""Speed, as one JSON object on the last line printed: `python -m npmp.experiments.benchmarks.NAME`.

Keys of npmp imitate follow the options, e.g. algo=mo_vmpo robot=op3; without data= generated gaits
are used.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from mocap_data import MotionSet, demo_clips
from mocap_data.files import json_text
from npmp.core.devices import cpus, seed_everything
from npmp.envs import load_motions
from npmp.experiments.command import Run, Verb, run_of
from npmp.experiments.compose import compose
from npmp.robots import Robot
from retarget import retarget_many


def parser(about: str | None) -> argparse.ArgumentParser:
    """Options with their defaults in the help; the rest are keys."""
    options = argparse.ArgumentParser(
        description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    options.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    return options


# the key of a required dataset, where generated gaits replace it
NO_DATA = "data=none"


def settings(command: Verb, keys: list[str], required: list[str]) -> tuple[Any, Run]:
    """A command's settings and its run, without an output place."""
    job = compose(command.name, command.keys, [*required, *keys])
    config = job.config
    threads, torch_threads = (
        getattr(config, key, None) or cpus() for key in ("threads", "torch_threads")
    )
    seed_everything(config.seed, device=config.device, threads=torch_threads)
    return config, run_of(job, None, threads, job.values)


def motions_of(config: Any, robot: Robot) -> MotionSet:
    """The dataset of the settings; by default generated dog gaits."""
    if f"data={config.data}" == NO_DATA:
        return retarget_many(demo_clips(), robot)
    return load_motions(config.data, robot)


def show(name: str, robot: str, figures: dict[str, Any]) -> None:
    """The last line."""
    sys.stdout.write(json_text({"bench": name, "robot": robot, **figures}) + "\n")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
