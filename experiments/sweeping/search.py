"""A sweep that chooses its jobs as it goes: Optuna proposes settings by the scores of those before."""

from __future__ import annotations

import importlib.util
import json
import sys
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep

from mocap_data.errors import InputError
from npmp.experiments.sweeping.sweep import FINISHED, PRUNED, Sweep, SweptJob, columns

STUDY = "study.journal"  # Optuna's: a line of JSON per event
SAMPLERS, PRUNERS = ("tpe", "random"), ("successive_halving", "median", "none")

Compose = Callable[[Sequence[str]], dict[str, Any]]  # a job's settings, of what it has for its own


def distribution_of(override: Override) -> Any:
    """Optuna's distribution for a sweep of Hydra's grammar: choices, interval(a,b),
    range(a,b,step), tag(log, ...).

    Raises:
      InputError: for a sweep that has none.
    """
    from optuna import distributions

    key, value = override.key_or_group, override.value()
    try:
        if isinstance(value, ChoiceSweep):
            return distributions.CategoricalDistribution(list(override.sweep_string_iterator()))
        if isinstance(value, RangeSweep):
            numbers = [int(text) for text in override.sweep_string_iterator()]
            return distributions.IntDistribution(
                numbers[0], numbers[-1], step=int(typing.cast(int, value.step))
            )
        if isinstance(value, IntervalSweep):
            low, high, log = (
                typing.cast(Any, value.start),
                typing.cast(Any, value.end),
                "log" in value.tags,
            )
            if isinstance(low, int):
                return distributions.IntDistribution(low, high, log=log)
            return distributions.FloatDistribution(low, high, log=log)
    except (TypeError, ValueError) as error:
        raise InputError(f"{key}: {error}") from error
    raise InputError(
        f"{key}: no values to search; there are a,b  interval(a,b)  range(a,b)  tag(log, interval(a,b))"
    )


def as_json(distribution: Any) -> Any:
    """A distribution as JSON has it."""
    from optuna.distributions import distribution_to_json

    return json.loads(distribution_to_json(distribution))


def corners(space: Mapping[str, Any]) -> list[list[str]]:
    """Jobs that hold every end and every choice of a space at least once: what to look at before
    any of them runs."""
    ends = {
        key: getattr(entry, "choices", None) or (entry.low, entry.high)
        for key, entry in space.items()
    }
    most = max(len(values) for values in ends.values())
    return [
        [f"{key}={values[min(i, len(values) - 1)]}" for key, values in ends.items()]
        for i in range(most)
    ]


class Search:
    """Optuna's study of a sweep, in SWEEP/study.journal."""

    def __init__(self, sweep: Sweep, compose: Compose):
        """sweep: with `search`, the settings of conf/sweeping/sweeper/optuna.yaml, and `space`,
        distributions as JSON.

        Raises:
          InputError: where Optuna is not installed, or for settings that do not exist.
        """
        settings = sweep.search or {}
        optuna = _optuna()
        from optuna.distributions import json_to_distribution
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        self.sweep, self.compose, self._optuna = sweep, compose, optuna
        self.trials = int(settings["trials"])
        self.space = {
            key: json_to_distribution(json.dumps(entry)) for key, entry in settings["space"].items()
        }
        self.settings, startup = settings, int(settings["startup"])
        pruner: Any = {
            "successive_halving": lambda: optuna.pruners.SuccessiveHalvingPruner(
                reduction_factor=3
            ),
            "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=startup),
            "none": optuna.pruners.NopPruner,
        }[settings["pruner"]]()
        self.study = optuna.create_study(
            storage=JournalStorage(
                JournalFileBackend(
                    str(_whole(sweep.folder.resolve() / STUDY)), typing.cast(Any, _NoLock())
                )
            ),
            study_name="sweep",
            load_if_exists=True,
            pruner=pruner,
            direction="minimize" if sweep.lower else "maximize",
        )
        known = self.study.get_trials(deepcopy=False)
        self._trials = {
            trial.number: optuna.trial.Trial(self.study, trial._trial_id) for trial in known
        }
        for i, job in enumerate(sweep.jobs):  # one that ended as its driver did
            if job.state in (FINISHED, PRUNED) and self._number(i) in self._trials:
                self.told(i)

    def _number(self, i: int) -> int:
        """The study's number of job i: its name."""
        return int(self.sweep.jobs[i].name)

    def _ask(self) -> Any:
        """Another trial: one that was asked for just before its driver died, or a new one."""
        used = {self._number(i) for i in range(len(self.sweep.jobs))}
        for number, trial in self._trials.items():
            if number not in used and not self._frozen(number).state.is_finished():
                return trial
        # drawn from the number of the trial on: a search that goes on does not draw again what it
        # had
        self.study.sampler = self._sampler(int(self.settings["seed"]) + 1009 * len(self._trials))
        trial = self.study.ask(self.space)
        self._trials[trial.number] = trial
        return trial

    def _sampler(self, seed: int) -> Any:
        samplers = self._optuna.samplers
        if self.settings["sampler"] == "random":
            return samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            return samplers.TPESampler(
                seed=seed, n_startup_trials=int(self.settings["startup"]), multivariate=True
            )

    def _frozen(self, number: int) -> Any:
        return self.study.get_trials(deepcopy=False)[number]

    @property
    def exhausted(self) -> bool:
        """Whether there are as many jobs as are wanted."""
        return len(self.sweep.jobs) >= self.trials

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
        """Tell the study the scores that a running job has had. Returns whether it is not worth
        going on with."""
        number = self._number(i)
        frozen, trial = self._frozen(number), self._trials[number]
        if frozen.state.is_finished():
            return False
        for step, score in enumerate(
            columns(self.sweep.place(i) / "metrics.csv", str(self.sweep.score))[0]
        ):
            if step not in frozen.intermediate_values:
                trial.report(score, step)
        return bool(trial.should_prune())

    def told(self, i: int) -> None:
        """Tell the study how a job ended; not that it failed: a sweep that goes on tries it again."""
        job, state = self.sweep.jobs[i], self._optuna.trial.TrialState
        if job.state == FINISHED and job.score is not None:
            self.study.tell(self._number(i), job.score, skip_if_finished=True)
        elif job.state in (FINISHED, PRUNED):
            ended = state.PRUNED if job.state == PRUNED else state.FAIL
            self.study.tell(self._number(i), state=ended, skip_if_finished=True)

    def importances(self) -> dict[str, float]:
        """How much of the score's variance each key accounts for (fANOVA); {} where too little is
        known."""
        done = self.study.get_trials(
            deepcopy=False, states=(self._optuna.trial.TrialState.COMPLETE,)
        )
        if len(done) < 4 or len({trial.value for trial in done}) < 2:
            return {}
        evaluator = self._optuna.importance.PedAnovaImportanceEvaluator()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            return dict(
                self._optuna.importance.get_param_importances(self.study, evaluator=evaluator)
            )


class _NoLock:
    """Optuna's journal needs no lock of its own: who works on a sweep has the sweep's."""

    def acquire(self) -> bool:
        """As Optuna's locks."""
        return True

    def release(self) -> None:
        """As Optuna's locks."""


def _whole(path: Path) -> Path:
    """A journal, less a last line that a full disk or a kill cut short."""
    if path.is_file() and not (content := path.read_bytes()).endswith(b"\n"):
        path.write_bytes(content[: content.rfind(b"\n") + 1])
    return path


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise InputError for settings of conf/sweeping/sweeper/optuna.yaml that do not exist, or
    without Optuna."""
    _optuna()
    for key, known in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
        if settings[key] not in known:
            raise InputError(
                f"no hydra.sweeper.{key} {settings[key]!r}; there are: {', '.join(known)}"
            )


def _optuna() -> Any:
    if importlib.util.find_spec("optuna") is None:
        raise InputError(
            "hydra/sweeper=optuna needs the package optuna: make install EXTRAS=search, or pip install optuna"
        )
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
