"""The table of priors: each trains a module with the same data, CPU time and seed, and is reused.

    python -m npmp.experiments.benchmarks.priors data=dog.h5 out=runs/priors [KEY=VALUE ...]

Keys are those of `npmp imitate`. A cell is a module of one prior and seed, a folder of OUT with the
runs of `npmp imitate`, `evaluate`, `skill wander` and `reuse`. OUT/priors.csv (a row per seed) and
OUT/priors.md are written after evaluations and after each reuse. Started again, it continues;
several processes with the same OUT share the cells. Each computes on one core.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch

from mocap_data.arrays import Array as Floats
from mocap_data.errors import InputError
from mocap_data.files import atomic_path, locked
from mocap_data.motion import ReferenceMotion, speeds
from mocap_data.store import read_motions
from npmp import robots
from npmp.core.tables import read_metrics
from npmp.envs.feet import Feet
from npmp.evaluation.gait import swings
from npmp.experiments import evaluate, imitate, reuse, skill
from npmp.experiments.benchmarks import markdown_table, parser
from npmp.experiments.compose import compose
from npmp.experiments.terminal import OK, guarded, say
from npmp.robots import Robot

# priors of modules, and the rows of the table by the keys of their reuse: with behavior=0 the KL is
# to the module's prior only
REUSES = {
    "ar1": {"ar1": ["algo.behavior=0"], "ar1 and behaviour prior": []},
    "control_vae": {"control_vae": ["algo.behavior=0"]},
    "fsq": {"fsq": ["algo.behavior=0"]},
}
# keys of all commands: one thread each
COMMON = ("threads=1", "torch_threads=1")
LEARNING = ("split=train", "logger=none", "algo.overlap=false")
JUDGING = ("split=validation", "max_speed=2.0")
RANGE = "task.command_range=[[-0.5,1.5],[-0.3,0.3],[-1.0,1.0]]"


@dataclass(frozen=True)
class Size:
    """Keys of each command."""

    # environment steps of the run that measures the CPU time of an iteration
    pilot_steps: int
    imitate: Sequence[str]
    evaluate: Sequence[str]
    wander: Sequence[str]
    reuse: Sequence[str]


SIZES = {
    "full": Size(
        50_000,
        ("experiment=module", "evaluation.every=1000000"),
        (),
        ("envs=64", "shown=64", "seconds=20"),
        ("steps=230000", "evaluation.every=10"),
    ),
    "tiny": Size(1024, *(("debug=tiny",),) * 4),
}
# the last file of `npmp skill wander`
ROLLOUTS = "rollouts.h5"
# draws of randomized physics in the evaluation
DRAWS = 5
# velocity errors whose CPU time is measured
ERRORS = (0.15, 0.10)
# longest time between touchdowns of a foot that walks [s]
MAX_STRIDE_S = 2.0
COLUMNS = {
    "module_cpu_s": "CPU-s of the module",
    "tracked": "tracked, held-out",
    "tracked_randomized": "the same, randomized",
    "up_s": "on the prior: up [s]",
    "up_to_the_end": "up at 20 s",
    "speed_distance_mps": "distance of speeds [m/s]",
    "stride_distance_hz": "distance of strides [Hz]",
    "steps_hz": "steps of a foot [Hz]",
    **{f"cpu_s_{error:.2f}": f"walk: CPU-s to {error:.2f}" for error in ERRORS},
    "velocity_error": "error at the end",
}


@dataclass(frozen=True)
class Options:
    """Settings of the table."""

    data: Path
    out: Path
    priors: Sequence[str]
    seeds: Sequence[int]
    # CPU time of each module's iterations [s]
    cpu_s: float
    size: Size
    # further keys of `npmp imitate`
    keys: Sequence[str]
    # further keys of `npmp reuse`
    reuse: Sequence[str]
    # modules are trained and evaluated, not reused
    modules_only: bool


class Gait(NamedTuple):
    """Samples of moving robots or recordings."""

    speed: Floats  # of the root over half a second, of each frame [m/s]
    stride: Floats  # 1 / time between touchdowns of a foot [Hz]
    steps_hz: float  # touchdowns of a foot per second, mean over time and feet


class CommandFailed(Exception):
    """A command, which has printed why, ended with an exit code other than 0."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


# --- the runs of a cell


def run_once(command: Callable[[list[str]], int], folder: Path, result: str, *keys: str) -> None:
    """Run a command into `folder` unless its file `result` exists; continue a stopped training.

    Raises:
      CommandFailed: if it fails or is stopped.
    """
    if (folder / result).is_file():
        return
    continues = (folder / "checkpoints").is_dir()
    code = command([f"resume={folder}"] if continues else [*COMMON, *keys, f"out={folder}"])
    # each run compiles its own step, of which torch keeps eight
    torch.compiler.reset()
    if code != OK:
        raise CommandFailed(code)


def imitating(options: Options, prior: str) -> tuple[str, ...]:
    """Keys of a module's training."""
    keys = (*LEARNING, *options.size.imitate, *options.keys)
    return (*keys, f"data={options.data}", f"net.prior={prior}")


def pilot_folder(options: Options, prior: str) -> Path:
    """The run that measures the CPU time of a prior's iteration."""
    return options.out / f"pilot_{prior}"


def run_pilots(options: Options) -> None:
    """Measure the iterations of all priors soon after each other. One measurement serves all seeds,
    so that their modules take as many steps.

    Raises:
      CommandFailed: as `run_once`.
    """
    steps = f"steps={options.size.pilot_steps}"
    options.out.mkdir(parents=True, exist_ok=True)
    busy = f"another process measures the pilots of {options.out}"
    with locked(options.out, busy, wait=True):
        for prior in options.priors:
            folder = pilot_folder(options, prior)
            run_once(imitate.main, folder, "summary.json", *imitating(options, prior), steps)


def run_cell(
    folder: Path, prior: str, seed: int, options: Options, report: Callable[[], None]
) -> None:
    """Train, evaluate and reuse a module; `report` is called after each part."""
    size = options.size
    data = f"data={options.data}"
    own_seed = f"seed={seed}"
    steps = f"steps={steps_within(pilot_folder(options, prior), options.cpu_s)}"
    module_run = folder / "imitate"
    run_once(imitate.main, module_run, "summary.json", *imitating(options, prior), own_seed, steps)

    module = f"module={module_run / 'module'}"
    judging = (module, data, *JUDGING, *size.evaluate)
    run_once(evaluate.main, folder / "nominal", "evaluation.json", *judging, own_seed)
    for draw in range(DRAWS):
        keys = (*judging, "randomization=paper", f"seed={draw}")
        run_once(evaluate.main, folder / f"randomized_{draw}", "evaluation.json", *keys)
    wandering = (module, data, own_seed, "split=validation", "report=false", *size.wander)
    run_once(skill.wander, folder / "wander", ROLLOUTS, *wandering)
    report()
    if options.modules_only:
        return

    walking = (module, data, own_seed, *LEARNING, "task=walk", RANGE, *size.reuse)
    for row, regularized in REUSES[prior].items():
        run = reuse_folder(folder, row)
        run_once(reuse.main, run, "summary.json", *walking, *regularized, *options.reuse)
        report()


def steps_within(pilot: Path, cpu_s: float) -> int:
    """Environment steps of a run whose iterations take `cpu_s` [s], by the median iteration of a
    pilot. The first and the last include compilation and evaluations."""
    count = read_metrics(pilot / "metrics.csv")["env_steps"]
    per_iteration = count[1] - count[0]
    seconds = np.diff(read_metrics(pilot / "timing.csv")["cpu_s"])[:-1]
    iterations = max(1, round(cpu_s / float(np.median(seconds))))
    return int(count[0] + (iterations - 1) * per_iteration)


def reuse_folder(folder: Path, row: str) -> Path:
    """The run of a row of the table."""
    return folder / f"reuse_{row.replace(' ', '_')}"


# --- figures


def gait_of(robot: Robot, motions: Iterable[ReferenceMotion]) -> Gait:
    """The gait of motions on flat ground."""
    feet = Feet(robot)
    speed = []
    intervals = []
    touchdowns = 0
    seconds = 0.0
    for motion in motions:
        if motion.num_frames < 2:
            continue
        dt = 1.0 / motion.rate_hz
        speed.append(speeds(motion))
        seconds += motion.num_frames * dt
        heights = feet.heights(motion.qpos)
        valid = np.ones((len(heights), 1), bool)
        for height in heights.T:
            _, (_, last, _) = swings(height[:, None], valid, dt)
            touchdowns += len(last)
            intervals.append(np.diff(last) * dt)
    together = np.concatenate(intervals) if intervals else np.zeros(0)
    stride = 1.0 / together[together <= MAX_STRIDE_S]
    steps_hz = touchdowns / max(seconds, 1e-9) / len(robot.foot_bodies)
    return Gait(np.concatenate(speed) if speed else np.zeros(0), stride, steps_hz)


def distance(samples: Floats, expected: Floats) -> float:
    """The earth mover's distance of two histograms, in their unit; NaN without samples."""
    # slow to import
    from scipy.stats import wasserstein_distance

    if not len(samples) or not len(expected):
        return float("nan")
    return float(wasserstein_distance(samples, expected))


def rollouts_until_falls(path: Path) -> list[ReferenceMotion]:
    """The motions in rollouts.h5 of `npmp skill wander`."""
    with h5py.File(path) as file:
        return [
            ReferenceMotion(
                name, group["qpos"][: int(group.attrs["up_frames"])], float(group.attrs["rate_hz"])
            )
            for name, group in file.items()
        ]


def cpu_s_to_error(run: Path, error: float) -> float:
    """CPU time of the first evaluation with a velocity error of at most `error`; NaN without one.
    With the warm-up and the evaluations before."""
    errors = read_metrics(run / "metrics.csv")["velocity_error"]
    reached = np.flatnonzero(errors <= error)
    if not len(reached):
        return float("nan")
    return float(read_metrics(run / "timing.csv")["cpu_s"][reached[0]])


def module_figures(folder: Path, recorded: Gait) -> dict[str, float]:
    """The columns of a module."""
    names = ["nominal", *(f"randomized_{draw}" for draw in range(DRAWS))]
    evaluations = [read_json(folder / name / "evaluation.json") for name in names]
    tracked, *randomized = (evaluation["mean"]["time_share"] for evaluation in evaluations)
    wander = read_json(folder / "wander" / "wander.json")
    rollouts = rollouts_until_falls(folder / "wander" / ROLLOUTS)
    gait = gait_of(robots.load(wander["robot"]), rollouts)
    return {
        "module_cpu_s": float(read_metrics(folder / "imitate" / "timing.csv")["cpu_s"][-1]),
        "tracked": tracked,
        "tracked_randomized": float(np.mean(randomized)),
        "up_s": wander["latents"]["up_s_mean"],
        "up_to_the_end": wander["latents"]["up_to_the_end"],
        "speed_distance_mps": distance(gait.speed, recorded.speed),
        "stride_distance_hz": distance(gait.stride, recorded.stride),
        "steps_hz": gait.steps_hz,
    }


def walk_figures(run: Path) -> dict[str, float]:
    """The columns of a reuse run."""
    figures = {f"cpu_s_{error:.2f}": cpu_s_to_error(run, error) for error in ERRORS}
    return figures | {"velocity_error": read_json(run / "summary.json")["velocity_error"]["after"]}


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    return json.loads(path.read_text())


# --- the table


def rows_of(options: Options, recorded: Gait) -> list[dict[str, Any]]:
    """A row per prior and seed of the cells with an evaluated module."""
    rows = []
    for folder in sorted(options.out.glob("*_seed*")):
        if not (folder / "wander" / ROLLOUTS).is_file():
            continue
        prior, _, seed = folder.name.rpartition("_seed")
        of_module = module_figures(folder, recorded)
        for name in REUSES[prior]:
            run = reuse_folder(folder, name)
            of_walk = walk_figures(run) if (run / "summary.json").is_file() else {}
            rows.append({"prior": name, "seed": int(seed), **of_module, **of_walk})
    return rows


def write_table(options: Options, recorded: Gait) -> None:
    """Write OUT/priors.csv and OUT/priors.md."""
    rows = rows_of(options, recorded)
    with atomic_path(options.out / "priors.csv") as path, open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, ["prior", "seed", *COLUMNS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    with atomic_path(options.out / "priors.md") as path:
        path.write_text(markdown(rows, recorded), encoding="utf-8")


def markdown(rows: Sequence[dict[str, Any]], recorded: Gait) -> str:
    """A line per prior: means over seeds, least and most in brackets."""
    lines = []
    for prior in dict.fromkeys(row["prior"] for row in rows):
        of_prior = [row for row in rows if row["prior"] == prior]
        cells = [_cell([row.get(column) for row in of_prior]) for column in COLUMNS]
        lines.append([prior, str(len(of_prior)), *cells])
    table = markdown_table(["prior", "seeds", *COLUMNS.values()], lines)
    recordings = f"The recordings make {recorded.steps_hz:.2f} steps of a foot per second."
    return f"{table}\n{recordings}\n"


def _cell(values: Sequence[float | None]) -> str:
    """E.g. "0.93 (0.91 to 0.95)"; "-" for a seed without a value."""
    numbers = [value for value in values if value is not None and np.isfinite(value)]
    if not numbers:
        return "-"

    def text(value: float) -> str:
        return f"{value:.0f}" if value >= 100.0 else f"{value:.3g}"

    if len(values) == 1:
        return text(numbers[0])
    missing = f", {len(values) - len(numbers)} -" if len(numbers) < len(values) else ""
    return (
        f"{text(float(np.mean(numbers)))} ({text(min(numbers))} to {text(max(numbers))}{missing})"
    )


def fill(options: Options) -> None:
    """Compute the cells that are missing and that no other process computes.

    Raises:
      InputError: for data without a robot or a split. CommandFailed: as `run_once`.
    """
    motions = read_motions(options.data)
    robot = robots.load(motions.robot)
    recorded = gait_of(robot, motions.select(split="train").motions)
    run_pilots(options)
    for seed in options.seeds:
        for prior in options.priors:
            folder = options.out / f"{prior}_seed{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as held:
                try:
                    held.enter_context(locked(folder, f"another process computes {folder}"))
                except InputError as error:
                    say(str(error))
                    continue
                run_cell(folder, prior, seed, options, lambda: write_table(options, recorded))
    write_table(options, recorded)
    say(str(options.out / "priors.md"))


def main(arguments: list[str] | None = None) -> int:
    """Compute the table. Returns the exit code."""
    chosen = parser(__doc__)
    chosen.add_argument("--priors", nargs="+", choices=REUSES, default=list(REUSES))
    chosen.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    chosen.add_argument("--cpu-s", type=float, default=1800.0, help="of each module's iterations")
    chosen.add_argument("--size", choices=SIZES, default="full")
    chosen.add_argument(
        "--reuse", nargs="+", default=[], metavar="KEY=VALUE", help="further keys of npmp reuse"
    )
    chosen.add_argument("--modules-only", action="store_true", help="do not reuse modules")
    args = chosen.parse_intermixed_args(arguments)
    with guarded() as outcome:
        command = imitate.main
        config = compose(command.name, command.keys, ["out=runs/priors", *args.keys]).config
        place = {"data": config.data, "out": config.out, "size": SIZES[args.size]}
        try:
            fill(Options(**{**vars(args), **place}))
        except CommandFailed as failed:
            return failed.code
    return outcome.code


if __name__ == "__main__":
    sys.exit(main())
