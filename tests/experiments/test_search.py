"""`hydra/sweeper=optuna`: what can be searched, that it finds what is there, and resumes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

optuna = pytest.importorskip("optuna", reason="needs the extra search")

from hydra.core.override_parser.overrides_parser import OverridesParser  # noqa: E402

from mocap_data.errors import InputError  # noqa: E402
from npmp.experiments import cli  # noqa: E402
from npmp.experiments.sweeping import drive as driving  # noqa: E402
from npmp.experiments.sweeping.drive import drive  # noqa: E402
from npmp.experiments.sweeping.report import best, report  # noqa: E402
from npmp.experiments.sweeping.search import Search, as_json, corners, distribution_of  # noqa: E402
from npmp.experiments.sweeping.sweep import Launcher, Sweep, SweptJob  # noqa: E402
from npmp.experiments.sweeping.workers import Ended  # noqa: E402

SPACE = {
    "lr": "tag(log,interval(1e-5,1e-1))",
    "discount": "interval(0.8,1.0)",
    "width": "64,128,256",
}


def parsed(key: str, value: str) -> Any:
    return distribution_of(OverridesParser.create().parse_override(f"{key}={value}"))


def sweep_of(
    folder: Path, *, trials: int = 150, sampler: str = "tpe", pruner: str = "none", seed: int = 0
) -> Sweep:
    settings = {"trials": trials, "sampler": sampler, "pruner": pruner, "startup": 8, "seed": seed}
    space = {key: as_json(parsed(key, value)) for key, value in SPACE.items()}
    search = {"sweeper": settings, "space": space}
    sweep = Sweep(folder, "imitate", Launcher(score="error", lower=True), [], [], search)
    sweep.create()
    return sweep


def error(own: Sequence[str]) -> float:
    """Least, 0, at lr 1e-3, discount 0.95, width 128."""
    values = dict(entry.split("=") for entry in own)
    far = (
        math.log10(float(values["lr"]) / 1e-3) ** 2
        + (25.0 * (float(values["discount"]) - 0.95)) ** 2
    )
    return far + 0.5 * abs(int(values["width"]) - 128) / 64


def settings_of(own: Sequence[str]) -> dict[str, Any]:
    return {"steps": 4, "own": list(own)}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0.5,2", optuna.distributions.CategoricalDistribution(["0.5", "2"])),
        ("choice([1,2],[3])", optuna.distributions.CategoricalDistribution(["[1,2]", "[3]"])),
        ("interval(1,2)", optuna.distributions.FloatDistribution(1.0, 2.0)),
        ("tag(log,interval(1e-3,1))", optuna.distributions.FloatDistribution(1e-3, 1.0, log=True)),
        ("int(interval(1,9))", optuna.distributions.IntDistribution(1, 9)),
        ("range(1,10,3)", optuna.distributions.IntDistribution(1, 7, step=3)),
    ],
)
def test_what_can_be_searched(value: str, expected: Any) -> None:
    assert parsed("x", value) == expected


@pytest.mark.parametrize(
    "value", ["range(0.5,2,0.5)", "glob(*)", "interval(2,1)", "tag(log,interval(0,1))"]
)
def test_what_cannot(value: str) -> None:
    with pytest.raises(InputError, match=r"^x: "):
        parsed("x", value)


def test_every_end_is_looked_at_before() -> None:
    space = {
        "a": parsed("a", "interval(1,2)"),
        "b": parsed("b", "x,y,z"),
        "c": parsed("c", "int(interval(3,4))"),
    }
    assert corners(space) == [
        ["a=1.0", "b=x", "c=3"],
        ["a=2.0", "b=y", "c=4"],
        ["a=2.0", "b=z", "c=4"],
    ]


def test_it_finds_a_planted_optimum(tmp_path: Path) -> None:
    """At random it takes 67 jobs in the mean until one is within 0.1 of it."""
    sweep = sweep_of(tmp_path / "s", trials=40, seed=4)
    search = Search(sweep, settings_of)
    for _ in range(40):
        (i,) = search.propose()
        sweep.jobs[i].state, sweep.jobs[i].score = "finished", error(sweep.jobs[i].overrides)
        search.tell(i)
    assert min(job.score for job in sweep.jobs if job.score is not None) < 0.1


class Curves:
    """Workers whose jobs measure 10 + error, 10 less at every look, and end at their error."""

    slots = 2

    def __init__(self, sweep: Sweep, die_after: int = 10**9):
        self.sweep, self.looks, self.die_after = sweep, dict[int, int](), die_after
        self.stopped, self.ends = set[int](), 0

    def start(self, number: int, log: Path) -> None:
        self.looks[number] = 0

    def ended(self, number: int) -> Ended | None:
        if number in self.stopped:
            return Ended(143, "here")
        if self.ends >= self.die_after:
            raise KeyboardInterrupt
        self.looks[number] += 1
        low = error(self.sweep.configs[number]["own"])
        rows = [f"{k},{k},{low + 10.0 * (1 - k / 4)}" for k in range(1, self.looks[number] + 1)]
        place = self.sweep.place(number)
        place.mkdir(parents=True, exist_ok=True)
        (place / "metrics.csv").write_text("\n".join(["iteration,env_steps,error", *rows, ""]))
        if self.looks[number] < 4:
            return None
        self.ends += 1
        return Ended(0, "here")

    def stop(self, number: int) -> None:
        self.stopped.add(number)

    def close(self) -> None:
        pass


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Curves]:
    monkeypatch.setattr(driving, "POLL_S", 0.0)
    monkeypatch.setattr(driving, "LOOK_S", 0.0)

    def use(sweep: Sweep, **given: Any) -> Curves:
        return Curves(sweep, **given)

    return use


def test_a_search_prunes_goes_on_and_reports(curves: Callable[..., Curves], tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "s", trials=24, pruner="successive_halving")
    with pytest.raises(KeyboardInterrupt):
        drive(sweep, curves(sweep, die_after=5), Search(sweep, settings_of))
    again = Sweep.load(sweep.folder)
    assert (
        len(again.jobs) < 24 and sum(job.state in ("finished", "pruned") for job in again.jobs) >= 5
    )
    with open(sweep.folder / "study.journal", "a") as journal:
        journal.write('{"op_code": 4, "cut sh')
    search = Search(again, settings_of)
    assert drive(again, curves(again), search) == 0
    assert len({tuple(job.overrides) for job in again.jobs}) == 24
    assert len(again.jobs) == 24 and {job.state for job in again.jobs} == {"finished", "pruned"}
    finished = [job for job in again.jobs if job.state == "finished"]
    assert all(job.score == pytest.approx(error(job.overrides)) for job in finished)
    assert len(search.study.get_trials(deepcopy=False)) == 24
    assert best(again) == (
        list(min(finished, key=lambda job: job.score or 0.0).overrides),
        min(j.score for j in finished),
        1,
    )
    assert set(search.importances()) == set(SPACE)
    assert [line.split(":")[0] for line in report(again, search)] == ["best", "page"]
    page = (sweep.folder / "search.html").read_text()
    assert page.count("<svg") == 1 and "best so far" in page and "discount" in page


def test_a_failed_job_is_tried_again_and_told_then(
    curves: Callable[..., Curves], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = sweep_of(tmp_path / "s", trials=6)
    workers = curves(sweep)
    ended = workers.ended
    wrong = Ended(2, "here", "no luck")
    monkeypatch.setattr(workers, "ended", lambda i: wrong if i == 2 else ended(i))
    assert (
        drive(sweep, workers, Search(sweep, settings_of)) == 2 and sweep.jobs[2].state == "failed"
    )
    again = Sweep.load(sweep.folder)
    search = Search(again, settings_of)
    assert drive(again, curves(again), search) == 0
    assert search.study.get_trials(deepcopy=False)[2].value == pytest.approx(
        error(again.jobs[2].overrides)
    )


def test_settings_that_do_not_go_together_are_left_out(
    curves: Callable[..., Curves], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def compose(own: Sequence[str]) -> dict[str, Any]:
        if "width=256" in own:
            raise InputError("too wide")
        return settings_of(own)

    sweep = sweep_of(tmp_path / "s", trials=8)
    assert drive(sweep, curves(sweep), Search(sweep, compose)) == 0
    assert len(sweep.jobs) == 8 and not any("width=256" in job.overrides for job in sweep.jobs)
    assert "width=256: too wide" in capsys.readouterr().err


def test_a_place_that_is_taken_is_left_out(
    curves: Callable[..., Curves], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = sweep_of(tmp_path / "s", trials=4)
    (sweep.folder / "001").mkdir()
    (sweep.folder / "001" / "config.yaml").write_text("of another")
    assert drive(sweep, curves(sweep), Search(sweep, settings_of)) == 0
    assert [job.name for job in sweep.jobs] == ["000", "002", "003", "004"] and len(
        sweep.configs
    ) == 4
    assert "001 holds something already" in capsys.readouterr().err
    assert [job.name for job in Sweep.load(sweep.folder).jobs] == ["000", "002", "003", "004"]


def test_the_best_settings_are_an_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Means over seeds; groups of choices, lists and numbers come back as they were."""
    own = {"a": ["net=paper", "algo.policy_lr=[0.002,1e-4]", "algo.ema=0.95"], "b": ["net=small"]}
    scores = (("a", 0, 0.5), ("a", 1, 0.9), ("b", 0, 0.8), ("b", 1, 0.5))
    jobs = [SweptJob(f"{k}{s}", [*own[k], f"seed={s}"], "finished", score=v) for k, s, v in scores]
    sweep = Sweep(
        tmp_path, "imitate", Launcher(score="tracked_fraction", lower=False), [{}] * 4, jobs
    )
    assert best(sweep) == (own["a"], pytest.approx(0.7), 2)
    assert len(report(sweep, None)) == 1
    written = yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert written["defaults"] == [{"net": "paper"}] and written["verb"] == "imitate"
    job = cli.job_of("imitate", f"experiment={tmp_path / 'best.yaml'}", "data=x")
    assert job.chosen["net"] == "paper"
    assert (job.config.algo.policy_lr, job.config.algo.ema) == ((0.002, 0.0001), 0.95)
    (tmp_path / "own.yaml").write_text("module: /a b/module\nsteps: 7\n")
    other = cli.job_of("imitate", "steps=8", f"experiment={tmp_path / 'own.yaml'}", "data=x").config
    assert (other.module, other.steps) == ("/a b/module", 8)
    assert cli.main(["imitate", "data=x", f"experiment={tmp_path / 'none.yaml'}"]) == 2
    assert "none.yaml" in capsys.readouterr().err
    assert best(Sweep(tmp_path, "imitate", Launcher(score="reward"), [{}] * 4, jobs)) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seed=3"], "needs keys to search"),
        (["algo.ema=interval(0.9,1.5)"], "ema must be in [0, 1], got 1.5"),
        (["algo.emas=interval(0.9,1)"], "algo has no setting 'emas'"),
        (
            ["algo.ema=interval(0.9,1)", "hydra.sweeper.sampler=grid"],
            "hydra.sweeper: no sampler 'grid'",
        ),
        (
            ["algo.ema=interval(0.9,1)", "hydra.launcher.score=kl"],
            "npmp imitate has no score known here",
        ),
    ],
)
def test_what_is_refused_before_anything_starts(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        "imitate",
        "-m",
        "hydra/sweeper=optuna",
        "data=x.h5",
        f"out={tmp_path / 's'}",
        *arguments,
    ]
    assert cli.main(given) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "s").exists()
