"""The cost of imitation as work grows: robots, clips, latent dimensions, imagined steps.

    python -m npmp.experiments.benchmarks.scaling data=dog.h5 out=runs/scaling [KEY=VALUE ...]

Each point is a short run of `npmp imitate` in a process of its own, one quantity changed at a time.
Writes OUT/scaling.csv after each, and OUT/scaling.png.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure

from mocap_data.store import MotionSet, write_motions
from npmp import robots
from npmp.experiments import imitate
from npmp.experiments.benchmarks import NO_DATA, motions_of, parser, settings

# quantity -> its key, and its values; the default value is measured for each
POINTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "robots": ("num_envs={}", (64, 256, 1024, 4096)),
    "clips": ("data={}", (1, 10, 62, 500)),
    "latent": ("net.latent_dim={}", (8, 16, 32, 64)),
    "horizon": ("algo.horizon=[{0},{0}]", (8, 16, 24, 32)),
}
BASE = {"robots": 1024, "clips": 62, "latent": 32, "horizon": 16}
ITERATIONS = 24
COLLECT_STEPS = 2
# control steps before the first iteration
WARM_UP = 16


def main(arguments: list[str] | None = None) -> None:
    """Measure the points and draw them."""
    options = parser(__doc__)
    options.add_argument("--iterations", type=int, default=ITERATIONS)
    args = options.parse_intermixed_args(arguments)
    config, _ = settings(imitate.main, ["out=runs/scaling", *args.keys], [NO_DATA])
    out: Path = config.out
    out.mkdir(parents=True, exist_ok=True)
    motions = motions_of(config, robots.load(config.robot))
    points = [
        {**BASE, quantity: value} for quantity, (_, values) in POINTS.items() for value in values
    ]
    rows: list[dict[str, Any]] = []
    for point in points:
        # the base is a value of each quantity
        if any(row.items() >= point.items() for row in rows):
            continue
        with TemporaryDirectory() as folder:
            figures = measure(point, motions, Path(folder), args.iterations, args.keys)
        rows.append(point | figures)
        _write(out / "scaling.csv", rows)
    plot(rows).savefig(out / "scaling.png", dpi=150)


def measure(
    point: Mapping[str, int], motions: MotionSet, folder: Path, iterations: int, keys: Sequence[str]
) -> dict[str, float]:
    """Seconds per iteration and environment step, and the largest memory, of a run of its own in a
    folder. Exits with the run's code if it fails."""
    data = folder / "clips.h5"
    write_motions(data, repeated(motions, point["clips"]))
    robots = point["robots"]
    steps = robots * (WARM_UP + iterations * COLLECT_STEPS)
    chosen = {**point, "clips": str(data)}
    command = [
        *(sys.executable, "-m", "npmp.experiments.benchmarks.training", "imitate"),
        *(f"steps={steps}", "evaluation.every=1000000", "evaluation.starts=1"),
        *keys,
        *(key.format(chosen[quantity]) for quantity, (key, _) in POINTS.items()),
        f"out={folder / 'run'}",
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    figures = json.loads(done.stdout.splitlines()[-1])
    seconds = figures["iteration_s"]
    return {
        "iteration_s": seconds,
        "ms_per_env_step": round(1000.0 * seconds / (robots * COLLECT_STEPS), 4),
        "memory_mb": figures["memory_mb"],
    }


def repeated(motions: MotionSet, count: int) -> MotionSet:
    """The first `count` motions, repeated under other names where there are fewer."""
    clips = [
        replace(motion, name=f"{motion.name}_{number}", split="")
        for number, motion in enumerate(islice(cycle(motions.motions), count))
    ]
    return replace(motions, motions=tuple(clips))


def plot(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Time of an iteration and memory over each quantity."""
    figure = Figure(figsize=(9.0, 4.5), layout="constrained")
    axes = figure.subplots(2, len(POINTS), sharey="row", sharex="col")
    for column, quantity in enumerate(POINTS):
        others = [name for name in POINTS if name != quantity]
        line = [row for row in rows if all(row[name] == BASE[name] for name in others)]
        line.sort(key=lambda row: row[quantity])
        for axis, name in zip(axes[:, column], ("iteration_s", "memory_mb"), strict=True):
            axis.plot([row[quantity] for row in line], [row[name] for row in line], "o-")
            axis.set_xscale("log", base=2)
        values = [int(row[quantity]) for row in line]
        axes[1, column].set_xticks(values, [f"{value:,}" for value in values])
        axes[1, column].set_xlabel(quantity)
    for row in axes:
        # shared by the row; set once all is drawn
        row[0].set_ylim(bottom=0.0)
    axes[0, 0].set_ylabel("iteration [s]")
    axes[1, 0].set_ylabel("memory [MB]")
    return figure


def _write(table: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
