"""Compare training runs: groups of runs that differ in their seed only, scored over wall-clock time
and environment steps."""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from mocap_data.errors import InputError, unknown
from npmp.core.settings import flat, read_run_settings
from npmp.core.tables import read_table, to_float

FloatArray = npt.NDArray[np.float64]
# by dotted key, values as text
Settings = dict[str, str]

# settings that do not change a run's result, or only its seed
IGNORED = frozenset({"seed", "out", "resume", "debug", "checkpoint_every", "threads"})
# settings of a run's length, which do not name a group
LENGTHS = ("steps", "evaluation.every", "evaluation.starts")
AXES = ("minutes", "env_steps")
UNITS = {"minutes": "min", "env_steps": "steps"}
# runs per group below which a bootstrap interval is too narrow
MIN_RUNS = 5
# label of the group that differs in no setting
BASE = "base"


@dataclass(frozen=True)
class TrainingRun:
    """One run folder."""

    path: Path
    # the command that wrote the run; "" if config.yaml does not name it
    verb: str
    seed: int
    settings: Settings
    # "minutes" and "env_steps" of each measurement, (N,)
    x: Mapping[str, FloatArray]
    # (N,)
    score: FloatArray
    # reason why the curve is incomplete; "" for a finished run
    problem: str

    def at(self, axis: str, budget: float) -> float:
        """The score after a budget of minutes or environment steps, interpolated linearly; NaN
        outside the measurements."""
        return float(np.interp(budget, self.x[axis], self.score, left=math.nan, right=math.nan))

    def reached(self, axis: str, threshold: float, *, lower: bool = False) -> float:
        """The first x at which the score crosses the threshold upwards (`lower`: downwards); NaN if
        there is none."""
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
    """Runs that differ in their seed only."""

    label: str
    # the settings in which groups differ
    settings: Settings
    runs: tuple[TrainingRun, ...]

    def end(self, axis: str) -> float:
        """The end of its shortest run."""
        return min(float(run.x[axis][-1]) for run in self.runs)

    def curve(self, axis: str) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """x, and mean, lowest and highest score (N,), over the range that all runs cover."""
        begin = max(float(run.x[axis][0]) for run in self.runs)
        x = np.unique(np.concatenate([run.x[axis] for run in self.runs]))
        x = x[(x >= begin) & (x <= self.end(axis))]
        scores = np.array([np.interp(x, run.x[axis], run.score) for run in self.runs])
        return x, scores.mean(0), scores.min(0), scores.max(0)


@dataclass(frozen=True)
class Statistic:
    """Mean and range over the runs of a group that have the value."""

    mean: float
    low: float
    high: float
    # runs that have the value, and all runs
    count: int
    of: int

    @classmethod
    def over(cls, values: Iterable[float]) -> Statistic:
        """Over values of which NaN are left out."""
        every = list(values)
        finite = [value for value in every if math.isfinite(value)]
        if not finite:
            return cls(math.nan, math.nan, math.nan, 0, len(every))
        return cls(sum(finite) / len(finite), min(finite), max(finite), len(finite), len(every))

    def __str__(self) -> str:
        """The mean; on a second line the range, and the count if some runs lack the value."""
        if not self.count:
            return "-" if self.of == 1 else f"-\n0/{self.of}"
        second = ""
        if self.count > 1:
            second = f"{short(self.low, 2)}–{short(self.high, 2)}"
        if self.count < self.of:
            second = f"{second} {self.count}/{self.of}"
        return f"{short(self.mean)}\n{second.strip()}".strip()


# --- reading


def find_runs(places: Sequence[str]) -> list[Path]:
    """The run folders among folders, folders of runs (a sweep's) and patterns, without duplicates.

    Raises:
      InputError: for a place without a run.
    """
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
    """The settings of a run folder, and one of its metrics over time.

    Raises:
      InputError: for a damaged folder, or one without that metric.
    """
    verb, config = read_run_settings(path)
    settings = {key: _text(value) for key, value in flat(config).items() if key not in IGNORED}
    metrics = _table(path / "metrics.csv")
    timing = _table(path / "timing.csv")
    if not metrics:
        raise InputError(f"{path / 'metrics.csv'} has no rows yet")
    if score not in metrics[0]:
        names = [name for name in metrics[0] if name != "iteration"]
        raise InputError(f"{path}: {unknown('metric', score, names)}")

    wall_s = {row.get("iteration"): to_float(row.get("wall_s")) for row in timing}
    minutes = [wall_s.get(row["iteration"], math.nan) / 60 for row in metrics]
    env_steps = [to_float(row.get("env_steps")) for row in metrics]
    scores = [to_float(row.get(score)) for row in metrics]
    curve = np.array((minutes, env_steps, scores), dtype=np.float64).T
    curve = curve[np.isfinite(curve).all(axis=1)]
    if not len(curve):
        raise InputError(f"{path}: no measurement of '{score}' yet, or timing.csv is missing")
    return TrainingRun(
        path=path,
        verb=verb or "",
        seed=int(config.get("seed", 0)),
        settings=settings,
        x={"minutes": curve[:, 0], "env_steps": curve[:, 1]},
        score=curve[:, 2],
        problem=_problem(path, metrics[-1], env_steps[-2:], config.get("steps")),
    )


def _problem(path: Path, last: Mapping[str, str], env_steps: Sequence[float], planned: Any) -> str:
    """The reason why a run is not finished. env_steps: of its last two rows."""
    has_plan = isinstance(planned, int)
    done = f"{env_steps[-1]:,.0f} of {planned:,} environment steps" if has_plan else "unfinished"
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        ended = str(summary["iterations"]) == last["iteration"]
    except (OSError, ValueError, KeyError, TypeError):
        ended = False
    per_row = env_steps[-1] - env_steps[0] if len(env_steps) > 1 else env_steps[-1]
    if ended and (not has_plan or env_steps[-1] > planned - per_row):
        return ""
    return f"diverged after {done}" if (path / "diverged.json").is_file() else f"incomplete: {done}"


def _table(path: Path) -> list[dict[str, str]]:
    """The rows of a log, without a last one that is still being written."""
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
    """Runs grouped by their settings, in the order of first appearance.

    The label of a group lists the settings in which groups differ, except values that most groups
    share; a group with an empty list is the base.

    Raises:
      InputError: for runs of different commands.
    """
    verbs = sorted({run.verb for run in runs if run.verb})
    if len(verbs) > 1:
        raise InputError(
            f"runs of npmp {' and npmp '.join(verbs)} cannot be compared with each other"
        )
    by_settings: dict[tuple[tuple[str, str], ...], list[TrainingRun]] = {}
    for run in runs:
        by_settings.setdefault(tuple(sorted(run.settings.items())), []).append(run)
    groups = [sorted(members, key=lambda run: run.seed) for members in by_settings.values()]
    all_settings = [members[0].settings for members in groups]
    keys = differing_keys(all_settings)
    labels = _labels(all_settings, [key for key in keys if key not in LENGTHS] or keys)
    return [
        Group(label, {key: settings.get(key, "-") for key in keys}, tuple(members))
        for label, settings, members in zip(labels, all_settings, groups, strict=True)
    ]


def differing_keys(groups: Sequence[Settings]) -> list[str]:
    """The keys whose values differ between groups. A section's name (algo.name) stands for the keys
    that it determines."""
    keys = list(dict.fromkeys(key for settings in groups for key in settings))
    differing = [key for key in keys if len({settings.get(key) for settings in groups}) > 1]
    named = {key.removesuffix(".name") for key in differing if key.endswith(".name")}

    def determined(key: str) -> bool:
        for section in named:
            if key.startswith(f"{section}.") and key != f"{section}.name":
                pairs = {(group.get(f"{section}.name"), group.get(key)) for group in groups}
                # one value per name
                return len(pairs) == len({name for name, _ in pairs})
        return False

    return [key for key in differing if not determined(key)]


def _labels(groups: Sequence[Settings], keys: Sequence[str]) -> list[str]:
    names = short_names(keys)
    labels = []
    for settings in groups:
        parts = []
        for key in keys:
            value = settings.get(key, "-")
            shared = sum(other.get(key, "-") == value for other in groups)
            if len(groups) < 3 or 2 * shared <= len(groups):
                text = Path(value).stem if key in ("data", "module") else value
                parts.append(f"{names[key]}={text}")
        labels.append(" ".join(parts) or BASE)
    return [
        label if labels.count(label) == 1 else f"{label} ({i + 1})"
        for i, label in enumerate(labels)
    ]


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Each key's last part ("algo.name": its section), or the whole key if that is ambiguous."""
    names = {key: key.removesuffix(".name").rpartition(".")[2] for key in keys}
    return {
        key: name if list(names.values()).count(name) == 1 else key for key, name in names.items()
    }


# --- statistics


def shortest_end(groups: Sequence[Group], axis: str) -> list[float]:
    """The end of the shortest group as a budget; [] if all groups end within 1 % of it."""
    ends = [group.end(axis) for group in groups]
    return [min(ends)] if max(ends) > 1.01 * min(ends) else []


def summarize(
    group: Group, budgets: Mapping[str, Sequence[float]], threshold: float | None, *, lower: bool
) -> dict[str, Statistic]:
    """A group's row: its length, the score at its end and at each budget (by axis), and when the
    threshold is reached."""
    runs = group.runs
    row = {axis: Statistic.over(run.x[axis][-1] for run in runs) for axis in AXES}
    row["end"] = Statistic.over(run.score[-1] for run in runs)
    for axis in AXES:
        for budget in budgets[axis]:
            name = f"at {short(budget)} {UNITS[axis]}"
            row[name] = Statistic.over(run.at(axis, budget) for run in runs)
    if threshold is not None:
        for axis in AXES:
            reached = [run.reached(axis, threshold, lower=lower) for run in runs]
            row[f"{UNITS[axis]} to {threshold:g}"] = Statistic.over(reached)
    return row


@dataclass(frozen=True)
class Difference:
    """A group's final scores compared with the first group's (Agarwal et al. 2021, rliable)."""

    # interquartile mean of the scores
    iqm: float
    # 95 % bootstrap interval over runs
    iqm_interval: tuple[float, float]
    # improvement of the interquartile mean over the first group's
    improvement: float
    # 95 % bootstrap interval; undecided if it contains 0
    improvement_interval: tuple[float, float]
    # probability that a run of this group scores better than one of the first; ties count half
    probability: float


def differences(groups: Sequence[Group], *, lower: bool) -> list[Difference]:
    """Each group against the first. lower: whether lower scores are better. Intervals of a single
    run are NaN."""
    scores = [np.array([run.score[-1] for run in group.runs]) for group in groups]
    sign = -1.0 if lower else 1.0
    first = scores[0]
    results = []
    for own in scores:
        interval = math.nan, math.nan
        if own is not first:
            interval = _bootstrap((own, first), lambda a, b: sign * (_iqm(a) - _iqm(b)))
        wins = np.sign(sign * (own[:, None] - first[None])).mean() / 2 + 0.5
        results.append(
            Difference(
                iqm=float(_iqm(own)),
                iqm_interval=_bootstrap((own,), _iqm),
                improvement=float(sign * (_iqm(own) - _iqm(first))),
                improvement_interval=interval,
                probability=float(wins),
            )
        )
    return results


def _iqm(values: FloatArray) -> FloatArray:
    """Interquartile means (...) of values (..., N)."""
    return np.asarray(stats.trim_mean(values, 0.25, axis=-1))


def _bootstrap(samples: tuple[FloatArray, ...], statistic: Any) -> tuple[float, float]:
    """95 % percentile interval of 10,000 resamples; NaN if a sample is a single run."""
    if min(map(len, samples)) < 2:
        return math.nan, math.nan
    rng = np.random.default_rng(0)
    resampled = [
        sample[rng.integers(len(sample), size=(10_000, len(sample)))] for sample in samples
    ]
    low, high = np.percentile(statistic(*resampled), (2.5, 97.5))
    return float(low), float(high)


# --- output


def short(value: float, digits: int = 3) -> str:
    """A few digits, thousands as k and millions as M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def difference_rows(
    groups: Sequence[Group], results: Sequence[Difference]
) -> tuple[tuple[str, ...], list[list[str]]]:
    """Columns and rows of `differences` as a table; no rows for a single group."""

    def interval(ends: tuple[float, float]) -> str:
        return "-" if math.isnan(ends[0]) else f"{short(ends[0])} to {short(ends[1])}"

    columns = ("runs", "n", "IQM", "95 %", f"better than {groups[0].label} by", "95 %", "P(better)")
    rows = []
    for group, one in zip(groups, results, strict=True):
        row = [group.label, str(len(group.runs)), short(one.iqm), interval(one.iqm_interval)]
        if group is groups[0]:
            row += [""] * 3
        else:
            row += [short(one.improvement), interval(one.improvement_interval)]
            row += [short(one.probability, 2)]
        rows.append(row)
    return columns, rows if len(groups) > 1 else []


def as_json(
    groups: Sequence[Group], table: Sequence[Mapping[str, Statistic]], results: Sequence[Difference]
) -> list[dict[str, Any]]:
    """Each group with its runs and statistics; null for NaN."""
    return [
        {
            "label": group.label,
            "settings": group.settings,
            "runs": [
                {"run": run.path.name, "seed": run.seed, "problem": run.problem or None}
                for run in group.runs
            ],
            "figures": {name: _finite(asdict(statistic)) for name, statistic in row.items()},
            "end": _finite(asdict(one)),
        }
        for group, row, one in zip(groups, table, results, strict=True)
    ]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        return [_finite(entry) for entry in value]
    return value if math.isfinite(value) else None


def notes(groups: Sequence[Group]) -> list[str]:
    """Remarks on the table: unfinished runs, duplicate seeds, too few runs."""
    lines: list[str] = []
    for group in groups:
        lines += [
            f"{group.label}, seed {run.seed}: {run.problem}" for run in group.runs if run.problem
        ]
        seeds = [run.seed for run in group.runs]
        if duplicates := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
            numbers = ", ".join(map(str, duplicates))
            lines.append(f"{group.label}: more than one run with seed {numbers}")
    fewest = min((len(group.runs) for group in groups if len(group.runs) > 1), default=MIN_RUNS)
    if fewest < MIN_RUNS and len(groups) > 1:
        lines.append(
            f"bootstrap intervals of {fewest} runs are too narrow; use {MIN_RUNS} runs or more"
        )
    if len({len(group.runs) for group in groups}) > 1:
        lines.append("the groups have different numbers of runs")
    return lines
