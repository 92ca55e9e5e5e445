"""Running a sweep to its end, and the best of its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from mocap_data.files import atomic_path
from npmp.experiments.command import write_hydra
from npmp.experiments.compose import Job, Values, parsed
from npmp.experiments.store import GROUPS
from npmp.experiments.sweeping.drive import drive
from npmp.experiments.sweeping.sweep import Launcher, Sweep, SweptJob
from npmp.experiments.sweeping.workers import Local, Ray, Workers
from npmp.experiments.terminal import say

# below the sweep's folder, which is a folder of configs by it
BEST = Path("experiment", "best.yaml")


def score_of(job: Job) -> tuple[str, bool] | None:
    """The column of metrics.csv that runs are compared by and whether less is better; None for a
    command that trains nothing."""
    if job.verb == "imitate":
        return "tracked_fraction", False
    if job.verb == "reuse":
        from npmp import tasks

        return str(tasks.find(str(job.chosen["task"])).main_figure), True
    return None


def with_score(launcher: Launcher, job: Job) -> Launcher:
    """The launcher with the column that a command's runs are compared by, where it has no other."""
    score = score_of(job)
    if score is None or launcher.score not in (None, score[0]):
        return launcher
    lower = score[1] if launcher.lower is None else launcher.lower
    return replace(launcher, score=score[0], lower=lower)


def workers_of(sweep: Sweep) -> Workers:
    """Those that the sweep's launcher asks for. Raises InputError where there are none."""
    return (Ray if sweep.launcher.kind == "ray" else Local)(sweep.folder, sweep.launcher)


def go_on(
    sweep: Sweep,
    configs: Sequence[Values] = (),
    jobs: Sequence[SweptJob] = (),
    composed: Sequence[DictConfig] = (),
) -> int:
    """Run new jobs of a sweep, or without them what is not finished, and print how it ended.

    Args:
      configs: the settings of new jobs. composed: their configs as Hydra has them.

    Returns: the exit code.

    Raises:
      InputError: where no worker can run it, another process does already, or a new job's folder
        holds something.
    """
    workers = workers_of(sweep)
    try:
        first = len(sweep.jobs) if jobs else 0
        if jobs:
            sweep.add(configs, jobs)
        for i, config in enumerate(composed, first):
            sweep.place(i).mkdir()
            write_hydra(sweep.place(i), sweep.configs[i], config)
        with sweep.locked():
            code = drive(sweep, workers, first)
            lines = report_best(sweep)
    finally:
        workers.close()
    say(*(f"failed: {line}" for line in sweep.failures()), *lines)
    say(what_next(sweep))
    return code


def what_next(sweep: Sweep) -> str:
    """The commands that show what came out of a sweep."""
    folder = sweep.folder
    launcher = sweep.launcher
    # the others have no runs whose scores could be compared over time
    if sweep.verb not in ("imitate", "reuse"):
        return f"npmp sweeps show {folder}"
    # npmp evaluate compare's own default is imitation's score
    by = f" score={launcher.score}" if launcher.score else ""
    by += " lower=true" if by and launcher.lower else ""
    return (
        f"npmp sweeps show {folder}; npmp evaluate compare {folder}{by}; tensorboard "
        f"--logdir {folder}"
    )


def report_best(sweep: Sweep) -> list[str]:
    """Write experiment/best.yaml. Returns a line on it; none where `Sweep.best` has none."""
    if (best := sweep.best()) is None:
        return []
    settings, score, count = best
    write_best(sweep, settings, score)
    runs = f", mean of {count}" if count > 1 else ""
    named = " ".join(settings) or "as without the sweep"
    use = f"--config-dir {sweep.folder} experiment=best"
    return [f"best: {named} ({sweep.launcher.score} {score:.4g}{runs}); {use}"]


def write_best(sweep: Sweep, settings: Sequence[str], score: float) -> None:
    """SWEEP/experiment/best.yaml: what the best job does not share with the others."""
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
