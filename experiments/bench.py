"""`npmp bench NAME`: speed, as one JSON object on the last line printed."""

from __future__ import annotations

import importlib
import json
import sys

from omegaconf import DictConfig

from mocap_data.errors import InputError, unknown
from mocap_data.files import atomic_path
from npmp.experiments.common import Run, above_zero, at_least, verb

# A module bench_NAME each, whose `measure` gives the figures.
BENCHES = ("env", "imitate", "retarget", "actors")


def run(config: DictConfig, run: Run) -> int:
    """Measure what name= asks for."""
    if config.name not in BENCHES:
        raise unknown("benchmark", config.name, BENCHES)
    if config.name == "retarget" and (run.device != "cpu" or config.sim != "batch"):
        raise InputError(
            f"npmp bench {config.name} has neither sim= nor device=: it computes on the CPU"
        )
    at_least(config, num_envs=1)
    above_zero(config, "seconds")
    measure = importlib.import_module(f"npmp.experiments.bench_{config.name}").measure
    figures = {"bench": config.name, "robot": config.robot.name, **measure(config, run)}
    text = json.dumps(figures)
    if run.out is not None:
        with atomic_path(run.out) as path:
            path.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


main = verb("bench", run, out="optional_file", positional="name")

if __name__ == "__main__":
    sys.exit(main(None))
