"""Speed, as one JSON object on the last line printed: `python -m npmp.experiments.benchmarks.NAME`.

What follows the options are keys of npmp imitate (retarget: of npmp retarget), e.g. algo=mo_vmpo
robot=op3.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocap_data import MotionSet, demo_clips
from npmp.devices import cpus, seed_everything
from npmp.envs import load_motions
from npmp.experiments.command import Run, Verb, run_of
from npmp.experiments.compose import compose, split
from npmp.robots import Robot
from npmp.sim import Simulator
from retarget import retarget_many


def parser(about: str | None) -> argparse.ArgumentParser:
    """Options with their defaults in the help; the rest are keys."""
    made = argparse.ArgumentParser(
        description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument("--data", type=Path, help="a motion dataset; generated gaits without")
    made.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    return made


def settings(command: Verb, keys: list[str], required: list[tuple[str, str]]) -> tuple[Any, Run]:
    """A command's settings and its run, without an output place."""
    job = compose(command.name, command.keys, [*required, *split(keys)])
    config = job.config
    threads, torch_threads = (
        getattr(config, key, None) or cpus() for key in ("threads", "torch_threads")
    )
    seed_everything(config.seed, device=config.device, threads=torch_threads)
    return config, run_of(job, None, threads, job.values)


def finished(device: torch.device) -> float:
    """The time [s] once everything that the device was asked to do is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def motions_of(data: Path | None, robot: Robot) -> MotionSet:
    """The dataset, else the generated dog gaits."""
    return retarget_many(demo_clips(), robot) if data is None else load_motions(data, robot)


class Asked(NamedTuple):
    """A control step that a simulator was asked for."""

    state: Tensor  # (n, size) the simulator's, before
    ctrl: Tensor  # (n, nu) [rad]
    previous: Tensor | None  # (n, nu) [rad] where the hold is of first order


@contextmanager
def noted(sim: Simulator) -> Iterator[list[Asked]]:
    """What the simulator is asked for while the context lasts."""
    asked: list[Asked] = []
    step = sim.step

    def noting(ctrl: Tensor, previous: Tensor | None = None) -> None:
        asked.append(
            Asked(sim.snapshot(), ctrl.clone(), None if previous is None else previous.clone())
        )
        step(ctrl, previous)

    sim.step = noting  # type: ignore[method-assign]
    yield asked
    sim.step = step  # type: ignore[method-assign]


def bare(sim: Simulator, asked: list[Asked]) -> float:
    """Seconds that the bare physics takes for what was `noted`, which is forgotten; the simulator
    is left as it was.

    The same steps from the same states, on the same threads and by the simulator's own call: a busy
    machine slows both alike. With states on a GPU the transfers are part of it.
    """
    now, seconds = sim.snapshot(), 0.0
    # not the watched one
    step: Any = type(sim).step
    for state, ctrl, previous in asked:
        sim.restore(state)
        begin = finished(sim.device)
        step(sim, ctrl, previous)
        seconds += finished(sim.device) - begin
    sim.restore(now)
    asked.clear()
    return seconds


def show(name: str, robot: str, figures: dict[str, Any]) -> None:
    """The last line."""
    sys.stdout.write(json.dumps({"bench": name, "robot": robot, **figures}) + "\n")
