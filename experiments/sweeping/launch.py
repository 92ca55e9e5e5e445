"""Run a sweep to its end, and find the best of its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from mocap_data.files import atomic_path
from npmp.experiments.compose import parsed
from npmp.experiments.store import GROUPS
from npmp.experiments.sweeping.scheduler import run_jobs
from npmp.experiments.sweeping.sweep import Sweep
from npmp.experiments.sweeping.workers import Local, Ray, Workers
from npmp.experiments.terminal import say

# in the sweep's folder, for --config-dir
BEST = Path("experiment", "best.yaml")


def workers_of(sweep: Sweep) -> Workers:
    """The workers of the sweep's launcher. Raises InputError if none is available."""
    return (Ray if sweep.launcher.kind == "ray" else Local)(sweep.folder, sweep.launcher)


def run_sweep(sweep: Sweep, workers: Workers, first: int = 0) -> int:
    """Run all jobs from `first` on that are not finished, and print the result.

    Returns: the exit code.

    Raises:
      InputError: if another process works on the sweep.
    """
    with sweep.locked():
        code = run_jobs(sweep, workers, first)
        lines = report_best(sweep)
    say(*(f"failed: {line}" for line in sweep.failures()), *lines)
    say(next_commands(sweep))
    return code


def next_commands(sweep: Sweep) -> str:
    """The commands that show a sweep's results."""
    folder = sweep.folder
    launcher = sweep.launcher
    # other commands have no learning curves to compare
    if sweep.verb not in ("imitate", "reuse"):
        return f"npmp sweeps show {folder}"
    by = f" score={launcher.score}" if launcher.score else ""
    by += " lower=true" if by and launcher.lower else ""
    return (
        f"npmp sweeps show {folder}; npmp evaluate compare {folder}{by}; tensorboard "
        f"--logdir {folder}"
    )


def report_best(sweep: Sweep) -> list[str]:
    """Write experiment/best.yaml. Returns a line on it, or none."""
    if (best := sweep.best()) is None:
        return []
    settings, score, count = best
    write_best(sweep, settings, score)
    runs = f", mean of {count}" if count > 1 else ""
    named = " ".join(settings) or "as without the sweep"
    use = f"--config-dir {sweep.folder} experiment=best"
    return [f"best: {named} ({sweep.launcher.score} {score:.4g}{runs}); {use}"]


def write_best(sweep: Sweep, settings: Sequence[str], score: float) -> None:
    """Write SWEEP/experiment/best.yaml with the settings that only the best job has."""
    defaults: list[Any] = []
    values: Any = OmegaConf.create({"verb": sweep.verb})
    for override in map(parsed, settings):
        key = override.key_or_group
        value = override.value()
        if key == "experiment":
            defaults.insert(0, str(value))
        elif key in GROUPS and isinstance(value, str):
            defaults.append({f"override /{key}": value})
        else:
            OmegaConf.update(values, key, value)
    content: Any = OmegaConf.to_container(values)
    if defaults:
        content = {"defaults": [*defaults, "_self_"]} | content
    file = sweep.folder / BEST
    file.parent.mkdir(exist_ok=True)
    with atomic_path(file) as path:
        why = f"{sweep.launcher.score} {score:.6g}, the best of {len(sweep.jobs)} jobs"
        text = f"# @package _global_\n# {why}\n" + yaml.safe_dump(content, sort_keys=False)
        path.write_text(text, encoding="utf-8")
