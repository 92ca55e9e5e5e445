"""A sweep that chooses its jobs as it goes: Optuna proposes settings by the scores so far."""

from __future__ import annotations

import importlib.util
import json
import sys
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep

from mocap_data.errors import InputError
from npmp.experiments.sweeping.sweep import DONE, FINISHED, PRUNED, Sweep, SweptJob, columns
from npmp.settings import from_mapping

STUDY = "study.journal"  # Optuna's: a line of JSON per event

Compose = Callable[[Sequence[str]], dict[str, Any]]  # a job's settings, of what it has for its own


@dataclass(frozen=True)
class Sweeper:
    """Settings proposed by Optuna, from the scores of the jobs before."""

    # jobs in all
    trials: int = 20
    # tpe or random
    sampler: str = "tpe"
    # what ends jobs early: successive_halving, median or none
    pruner: str = "successive_halving"
    # jobs at random before those that are proposed
    startup: int = 8
    # of the proposals
    seed: int = 0

    def __post_init__(self) -> None:
        known = {"sampler": ("tpe", "random"), "pruner": ("successive_halving", "median", "none")}
        for key, names in known.items():
            if (name := getattr(self, key)) not in names:
                raise ValueError(f"no {key} {name!r}; there are: {', '.join(names)}")
        if min(self.trials, self.startup) < 1:
            raise ValueError(f"trials and startup must be at least 1, got {self}")


def distribution_of(override: Override) -> Any:
    """Optuna's distribution for a sweep of Hydra's grammar: choices, interval(a,b),
    range(a,b,step), tag(log, ...).

    Raises:
      InputError: for a sweep that has none.
    """
    _optuna()
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    key, value = override.key_or_group, override.value()
    try:
        if isinstance(value, ChoiceSweep):
            return CategoricalDistribution(list(override.sweep_string_iterator()))
        if isinstance(value, RangeSweep):
            numbers = [int(text) for text in override.sweep_string_iterator()]
            return IntDistribution(numbers[0], numbers[-1], step=int(typing.cast(int, value.step)))
        if isinstance(value, IntervalSweep):
            low, high = typing.cast(Any, value.start), typing.cast(Any, value.end)
            kind: Any = IntDistribution if isinstance(low, int) else FloatDistribution
            return kind(low, high, log="log" in value.tags)
    except (TypeError, ValueError) as error:
        raise InputError(f"{key}: {error}") from error
    raise InputError(
        f"{key}: no values to search; expected a,b or interval(a,b) or range(a,b) or "
        "tag(log, interval(a,b))"
    )


def as_json(distribution: Any) -> Any:
    """A distribution as JSON has it."""
    from optuna.distributions import distribution_to_json

    return json.loads(distribution_to_json(distribution))


def corners(space: Mapping[str, Any]) -> list[list[str]]:
    """Jobs that hold every end and every choice of a space at least once, to check before any
    starts."""
    ends = [
        (key, getattr(entry, "choices", None) or (entry.low, entry.high))
        for key, entry in space.items()
    ]
    most = max(len(values) for _, values in ends)
    return [
        [f"{key}={values[min(i, len(values) - 1)]}" for key, values in ends] for i in range(most)
    ]


class Search:
    """Optuna's study of a sweep, in SWEEP/study.journal."""

    def __init__(self, sweep: Sweep, compose: Compose):
        """sweep: with `search`: {"sweeper": of `Sweeper`, "space": distributions as JSON}.

        Raises:
          InputError: where Optuna is not installed, or the search is damaged.
        """
        self._optuna = optuna = _optuna()
        from optuna.distributions import json_to_distribution
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        self.sweep, self.compose = sweep, compose
        found = sweep.search or {}
        self.sweeper = from_mapping(Sweeper, found.get("sweeper", {}), at="search.sweeper")
        try:
            space = found["space"].items()
            self.space = {key: json_to_distribution(json.dumps(entry)) for key, entry in space}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{sweep.folder}: its search has no space ({error})") from error
        pruners: dict[str, Callable[[], Any]] = {
            "successive_halving": lambda: optuna.pruners.SuccessiveHalvingPruner(
                reduction_factor=3
            ),
            "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=self.sweeper.startup),
            "none": optuna.pruners.NopPruner,
        }
        journal = _mended(sweep.folder.resolve() / STUDY)
        self.study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(journal), typing.cast(Any, _NoLock()))),
            study_name="sweep",
            load_if_exists=True,
            pruner=pruners[self.sweeper.pruner](),
            direction="minimize" if sweep.launcher.lower else "maximize",
        )
        self._trials = {
            trial.number: optuna.trial.Trial(self.study, trial._trial_id)
            for trial in self.study.get_trials(deepcopy=False)
        }
        for i, job in enumerate(sweep.jobs):  # one that ended as its driver did
            if job.state in DONE and self._number(i) in self._trials:
                self.tell(i)

    def _number(self, i: int) -> int:
        """The study's number of job i: its name."""
        return int(self.sweep.jobs[i].name)

    def _ask(self) -> Any:
        """Another trial: one that was asked for just before its driver died, or a new one."""
        used = {self._number(i) for i in range(len(self.sweep.jobs))}
        for number, trial in self._trials.items():
            if number not in used and not self._frozen(number).state.is_finished():
                return trial
        # drawn from the number of the trial on: a search that is resumed does not draw again what
        # it had
        self.study.sampler = self._sampler(self.sweeper.seed + 1009 * len(self._trials))
        trial = self.study.ask(self.space)
        self._trials[trial.number] = trial
        return trial

    def _sampler(self, seed: int) -> Any:
        samplers = self._optuna.samplers
        if self.sweeper.sampler == "random":
            return samplers.RandomSampler(seed=seed)
        with self._quiet():
            return samplers.TPESampler(
                seed=seed, n_startup_trials=self.sweeper.startup, multivariate=True
            )

    def _quiet(self) -> warnings.catch_warnings[None]:
        """Without warnings that a part of Optuna is experimental."""
        category = self._optuna.exceptions.ExperimentalWarning
        return warnings.catch_warnings(action="ignore", category=category)

    def _frozen(self, number: int) -> Any:
        return self.study.get_trials(deepcopy=False)[number]

    @property
    def exhausted(self) -> bool:
        """Whether there are as many jobs as are wanted."""
        return len(self.sweep.jobs) >= self.sweeper.trials

    def propose(self) -> list[int]:
        """Another job, appended to the sweep: its number; none where there are enough."""
        while not self.exhausted:
            trial = self._ask()
            own = [f"{key}={value}" for key, value in trial.params.items()]
            try:
                self.sweep.add(SweptJob(f"{trial.number:03d}", own), self.compose(own))
            # each value is sound by itself, but not all of them go together
            except InputError as error:
                print(f"npmp: left out {' '.join(own)}: {error}", file=sys.stderr)
                self.study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
                continue
            return [len(self.sweep.jobs) - 1]
        return []

    def look(self, i: int) -> bool:
        """Report the scores of a running job to the study. Returns whether to end it early."""
        number = self._number(i)
        frozen, trial = self._frozen(number), self._trials[number]
        if frozen.state.is_finished():
            return False
        metrics = self.sweep.place(i) / "metrics.csv"
        for step, score in enumerate(columns(metrics, str(self.sweep.launcher.score))[0]):
            if step not in frozen.intermediate_values:
                trial.report(score, step)
        return bool(trial.should_prune())

    def tell(self, i: int) -> None:
        """Tell the study how a job ended; not that it failed: a resumed sweep tries it again."""
        job, state = self.sweep.jobs[i], self._optuna.trial.TrialState
        if job.state == FINISHED and job.score is not None:
            self.study.tell(self._number(i), job.score, skip_if_finished=True)
        elif job.state in DONE:
            ended = state.PRUNED if job.state == PRUNED else state.FAIL
            self.study.tell(self._number(i), state=ended, skip_if_finished=True)

    def importances(self) -> dict[str, float]:
        """The share of the score's variance by key (PED-ANOVA); {} where too little is known."""
        complete = (self._optuna.trial.TrialState.COMPLETE,)
        done = self.study.get_trials(deepcopy=False, states=complete)
        if len(done) < 4 or len({trial.value for trial in done}) < 2:
            return {}
        importance = self._optuna.importance
        with self._quiet():
            evaluator = importance.PedAnovaImportanceEvaluator()
            return dict(importance.get_param_importances(self.study, evaluator=evaluator))


class _NoLock:
    """Optuna's journal needs no lock of its own: its process holds the sweep's."""

    def acquire(self) -> bool:
        """As Optuna's locks."""
        return True

    def release(self) -> None:
        """As Optuna's locks."""


def _mended(path: Path) -> Path:
    """A journal, less a last line that a full disk or a kill cut short."""
    if path.is_file() and not (content := path.read_bytes()).endswith(b"\n"):
        path.write_bytes(content[: content.rfind(b"\n") + 1])
    return path


def _optuna() -> Any:
    if importlib.util.find_spec("optuna") is None:
        raise InputError(
            "hydra/sweeper=optuna needs the package optuna: make install EXTRAS=search, or pip "
            "install optuna"
        )
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
