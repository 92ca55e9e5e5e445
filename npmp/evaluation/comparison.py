"""Training runs side by side: grouped where only the seed differs, scored over time and steps."""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from mocap_data.errors import InputError, unknown
from npmp.core.settings import flat, read_run_settings
from npmp.core.tables import read_table, to_float

FloatArray = npt.NDArray[np.float64]
Settings = dict[str, str]  # dotted keys, values as they are shown

# Settings that change where a run's result goes or how long it takes, but not the result.
APART = frozenset({"seed", "out", "resume", "debug", "checkpoint_every", "threads"})
# Settings of a run's length, chosen to suit an algorithm: they are no name for it.
LENGTHS = ("steps", "evaluation.every", "evaluation.starts")
AXES = ("minutes", "env_steps")
UNITS = {"minutes": "min", "env_steps": "steps"}
# runs of a group below which a bootstrap interval is too narrow
FEW = 5
# the group that has no setting of its own
BASE = "base"


@dataclass(frozen=True)
class TrainingRun:
    """One run folder."""

    path: Path
    # that made the run; "" where its config.yaml does not name it
    verb: str
    seed: int
    # those in which groups may differ
    settings: Settings
    # where the score was measured: "minutes" and "env_steps", (N,) each
    x: Mapping[str, FloatArray]
    # (N,)
    score: FloatArray
    # why its curve is not the whole run's; "" for a finished run
    problem: str

    def at(self, axis: str, budget: float) -> float:
        """The score after so many minutes or environment steps, linear between measurements; NaN
        outside of them."""
        return float(np.interp(budget, self.x[axis], self.score, left=math.nan, right=math.nan))

    def reached(self, axis: str, threshold: float, *, lower: bool = False) -> float:
        """Where the curve first meets the threshold from below (`lower`: from above); NaN where it
        never does."""
        above = (-1.0 if lower else 1.0) * (self.score - threshold)
        hits = np.flatnonzero(above >= 0.0)
        if not hits.size:
            return math.nan
        i = int(hits[0])
        x = self.x[axis]
        if i == 0:
            return float(x[0])
        return float(x[i - 1] + (x[i] - x[i - 1]) * above[i - 1] / (above[i - 1] - above[i]))


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone, and what tells them from other groups."""

    label: str
    settings: Settings
    runs: tuple[TrainingRun, ...]

    def end(self, axis: str) -> float:
        """Where the first of its runs ends."""
        return min(float(run.x[axis][-1]) for run in self.runs)

    def curve(self, axis: str) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """x, mean, lowest and highest score (N,), as far as all of its runs go."""
        begin = max(float(run.x[axis][0]) for run in self.runs)
        x = np.unique(np.concatenate([run.x[axis] for run in self.runs]))
        x = x[(x >= begin) & (x <= self.end(axis))]
        scores = np.array([np.interp(x, run.x[axis], run.score) for run in self.runs])
        return x, scores.mean(0), scores.min(0), scores.max(0)


@dataclass(frozen=True)
class Figure:
    """Mean and range over a group's runs, of those that have the figure."""

    mean: float
    low: float
    high: float
    count: int
    of: int

    @classmethod
    def over(cls, values: Iterable[float]) -> Figure:
        """Of values of which NaN are none."""
        every = list(values)
        finite = [value for value in every if math.isfinite(value)]
        if not finite:
            return cls(math.nan, math.nan, math.nan, 0, len(every))
        return cls(sum(finite) / len(finite), min(finite), max(finite), len(finite), len(every))


Figures = dict[str, Figure]  # of a group, by name
Budgets = Mapping[str, Sequence[float]]  # by axis


# --- reading


def find_runs(places: Sequence[str]) -> list[Path]:
    """The run folders at these places: folders, folders of such (a sweep's) or patterns; each once.
    Raises InputError for a place that has none."""
    folders: dict[Path, Path] = {}
    for place in places:
        path = Path(place).expanduser()
        matches = [str(path)] if path.exists() else sorted(glob.glob(str(path), recursive=True))
        runs = [run for match in matches for run in _runs_in(Path(match))]
        if not runs:
            raise InputError(
                f"no run at '{place}'; expected a folder with config.yaml and metrics.csv,"
                " or a folder of such"
            )
        folders |= {run.resolve(): run for run in runs if run.resolve() not in folders}
    return list(folders.values())


def _runs_in(folder: Path) -> list[Path]:
    if (folder / "config.yaml").is_file() and (folder / "metrics.csv").is_file():
        return [folder]
    inner = sorted(folder.iterdir()) if folder.is_dir() else []
    return [run for path in inner for run in _runs_in(path)]


def read_run(path: Path, score: str) -> TrainingRun:
    """One run folder's settings and the course of one metric. Raises InputError for a folder that
    is damaged or has no such metric."""
    verb, config = read_run_settings(path)
    settings = {key: _text(value) for key, value in flat(config).items() if key not in APART}
    metrics = _table(path / "metrics.csv")
    timing = _table(path / "timing.csv")
    if not metrics:
        raise InputError(f"{path / 'metrics.csv'} has no rows yet")
    if score not in metrics[0]:
        names = [name for name in metrics[0] if name != "iteration"]
        raise InputError(f"{path}: {unknown('metric', score, names)}")
    wall = {row.get("iteration"): to_float(row.get("wall_s")) for row in timing}
    minutes = [wall.get(row["iteration"], math.nan) / 60 for row in metrics]
    steps, scores = ([to_float(row.get(key)) for row in metrics] for key in ("env_steps", score))
    curve = np.array((minutes, steps, scores), dtype=np.float64).T
    curve = curve[np.isfinite(curve).all(axis=1)]
    if not len(curve):
        raise InputError(f"{path} has not measured '{score}' yet, or lost its timing.csv")
    steps = [to_float(row.get("env_steps")) for row in metrics[-2:]]
    return TrainingRun(
        path=path,
        verb=verb or "",
        seed=int(config.get("seed", 0)),
        settings=settings,
        x={"minutes": curve[:, 0], "env_steps": curve[:, 1]},
        score=curve[:, 2],
        problem=_problem(path, metrics[-1], steps, config.get("steps")),
    )


def _problem(path: Path, last: Mapping[str, str], env_steps: Sequence[float], planned: Any) -> str:
    """Why a run is not finished; env_steps: of its last two rows."""
    has_plan = isinstance(planned, int)
    done = f"{env_steps[-1]:,.0f} of {planned:,} environment steps" if has_plan else "unfinished"
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        ended = str(summary["iterations"]) == last["iteration"]
    except (OSError, ValueError, KeyError, TypeError):
        ended = False
    each = env_steps[-1] - env_steps[0] if len(env_steps) > 1 else env_steps[-1]
    if ended and (not has_plan or env_steps[-1] > planned - each):
        return ""
    return f"diverged after {done}" if (path / "diverged.json").is_file() else f"incomplete: {done}"


def _table(path: Path) -> list[dict[str, str]]:
    """A log's rows; a last one that is still being written is left out."""
    return [
        row
        for row in read_table(path)
        if (row.get("iteration") or "").isdigit() and None not in row.values()
    ]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(_text(entry) for entry in value)}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --- grouping


def group_runs(runs: Sequence[TrainingRun]) -> list[Group]:
    """Runs that differ in their seed alone together, in the order in which they are first met.

    A group is named by the keys in which groups differ (`telling_keys`); a value that most groups
    share is left unsaid, and the group with nothing to say is the base. Raises InputError for runs
    of different verbs.
    """
    verbs = sorted({run.verb for run in runs if run.verb})
    if len(verbs) > 1:
        raise InputError(
            f"runs of npmp {' and npmp '.join(verbs)} cannot be compared with each other"
        )
    together: dict[tuple[tuple[str, str], ...], list[TrainingRun]] = {}
    for run in runs:
        together.setdefault(tuple(sorted(run.settings.items())), []).append(run)
    groups = [sorted(members, key=lambda run: run.seed) for members in together.values()]
    all_settings = [members[0].settings for members in groups]
    keys = telling_keys(all_settings)
    labels = _labels(all_settings, [key for key in keys if key not in LENGTHS] or keys)
    return [
        Group(label, {key: settings.get(key, "-") for key in keys}, tuple(members))
        for label, settings, members in zip(labels, all_settings, groups, strict=True)
    ]


def telling_keys(groups: Sequence[Settings]) -> list[str]:
    """The keys whose values differ between groups. Of a section that has a name (algo, net,
    randomization) the name stands for the keys that follow from it."""
    every = list(dict.fromkeys(key for settings in groups for key in settings))
    differing = [key for key in every if len({settings.get(key) for settings in groups}) > 1]
    named = {key.removesuffix(".name") for key in differing if key.endswith(".name")}

    def follows(key: str) -> bool:
        for section in named:
            if key.startswith(f"{section}.") and key != f"{section}.name":
                pairs = {(group.get(f"{section}.name"), group.get(key)) for group in groups}
                # one value to each name
                return len(pairs) == len({name for name, _ in pairs})
        return False

    return [key for key in differing if not follows(key)]


def _labels(groups: Sequence[Settings], keys: Sequence[str]) -> list[str]:
    """A group's values of the keys, by their shortest unique names, without those that more than
    half of the groups share."""
    short = shortened(keys)
    labels = []
    for settings in groups:
        parts = []
        for key in keys:
            value = settings.get(key, "-")
            shared = sum(other.get(key, "-") == value for other in groups)
            if len(groups) < 3 or 2 * shared <= len(groups):
                text = Path(value).stem if key in ("data", "module") else value
                parts.append(f"{short[key]}={text}")
        labels.append(" ".join(parts) or BASE)
    return [
        label if labels.count(label) == 1 else f"{label} ({i + 1})"
        for i, label in enumerate(labels)
    ]


def shortened(keys: Sequence[str]) -> dict[str, str]:
    """Each key's last part, "algo.name" its section; the whole key where that would be another's,
    too."""
    short = {key: key.removesuffix(".name").rpartition(".")[2] for key in keys}
    return {
        key: name if list(short.values()).count(name) == 1 else key for key, name in short.items()
    }


# --- figures


def shared_end(groups: Sequence[Group], axis: str) -> list[float]:
    """Where the shortest group ends; [] where all end there, within a hundredth: its scores are
    those of the end."""
    ends = [group.end(axis) for group in groups]
    return [min(ends)] if max(ends) > 1.01 * min(ends) else []


def figures(group: Group, budgets: Budgets, threshold: float | None, *, lower: bool) -> Figures:
    """A group's row: its length, the score at its end and at each budget, where the threshold is
    met."""
    runs = group.runs
    row = {axis: Figure.over(run.x[axis][-1] for run in runs) for axis in AXES}
    row["end"] = Figure.over(run.score[-1] for run in runs)
    for axis in AXES:
        for budget in budgets[axis]:
            name = f"at {short(budget)} {UNITS[axis]}"
            row[name] = Figure.over(run.at(axis, budget) for run in runs)
    if threshold is not None:
        for axis in AXES:
            reached = [run.reached(axis, threshold, lower=lower) for run in runs]
            row[f"{UNITS[axis]} to {threshold:g}"] = Figure.over(reached)
    return row


@dataclass(frozen=True)
class Difference:
    """A group's scores at its end, beside another group's (Agarwal et al. 2021, rliable).

    Attributes:
      iqm: mean of the middle half of its scores. interval: of it, 95 %, by bootstrap over the runs.
      by: how much better that is than the other group's. by_interval: of it, 95 %; above 0: better,
        below: worse, else undecided.
      better: the probability that a run of this group beats one of the other; half for ties.
    """

    iqm: float
    interval: tuple[float, float]
    by: float
    by_interval: tuple[float, float]
    better: float


def differences(groups: Sequence[Group], *, lower: bool) -> list[Difference]:
    """Of every group from the first. lower: whether less is better. Without two runs an interval is
    NaN."""
    scores = [np.array([run.score[-1] for run in group.runs]) for group in groups]
    sign = -1.0 if lower else 1.0
    first = scores[0]
    results = []
    for own in scores:
        both = math.nan, math.nan
        if own is not first:
            both = _bootstrap((own, first), lambda a, b: sign * (_iqm(a) - _iqm(b)))
        wins = np.sign(sign * (own[:, None] - first[None])).mean() / 2 + 0.5
        by = float(sign * (_iqm(own) - _iqm(first)))
        interval = _bootstrap((own,), _iqm)
        results.append(Difference(float(_iqm(own)), interval, by, both, float(wins)))
    return results


def _iqm(values: FloatArray) -> FloatArray:
    """Means (...) of the middle halves of values (..., N)."""
    return np.asarray(stats.trim_mean(values, 0.25, axis=-1))


def _bootstrap(samples: tuple[FloatArray, ...], statistic: Any) -> tuple[float, float]:
    """95 % interval, percentiles of 10,000 resamples; NaN where a sample holds one run alone."""
    if min(map(len, samples)) < 2:
        return math.nan, math.nan
    rng = np.random.default_rng(0)
    drawn = [sample[rng.integers(len(sample), size=(10_000, len(sample)))] for sample in samples]
    low, high = np.percentile(statistic(*drawn), (2.5, 97.5))
    return float(low), float(high)


def short(value: float, digits: int = 3) -> str:
    """A few digits, thousands as k and millions as M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def notes(groups: Sequence[Group]) -> list[str]:
    """Remarks on the table."""
    lines: list[str] = []
    for group in groups:
        lines += [
            f"{group.label}, seed {run.seed}: {run.problem}" for run in group.runs if run.problem
        ]
        seeds = [run.seed for run in group.runs]
        if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
            lines.append(f"{group.label}: more than one run with seed {', '.join(map(str, twice))}")
    fewest = min((len(group.runs) for group in groups if len(group.runs) > 1), default=FEW)
    if fewest < FEW and len(groups) > 1:
        lines.append(
            f"intervals over {fewest} runs are too narrow: of so few a bootstrap sees too little;"
            f" take {FEW} or more"
        )
    if len({len(group.runs) for group in groups}) > 1:
        lines.append("the groups have different numbers of runs")
    return lines
