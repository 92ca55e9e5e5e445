"""One learner, many collectors: whose batch comes when, how old it is, and what becomes of the
dead."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp.core.tables import read_table
from npmp.experiments import cli
from npmp.learning import collectors
from npmp.learning.collectors import (
    Batch,
    Collector,
    CollectorsConfig,
    Distributed,
    Inline,
    distributed,
)
from npmp.learning.run import iterations
from npmp.learning.trainer import Gathered, mean_figures
from tests.refusals import refusal

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs the extra ray"
)


class Counter:
    """A trainer whose weight is the number of its updates, and whose collections say what they
    acted on."""

    def __init__(self, seed: int = 0, *, of_all: bool = False):
        self.of_all_collectors, self.joins, self.seed = of_all, True, seed
        robots = SimpleNamespace(breakdowns=[], lost=0, forget_breakdowns=lambda: None)
        self.env: Any = SimpleNamespace(device="cpu", robots=robots)
        self.iteration_count, self.env_steps = 0, 0
        self.weight = torch.zeros(1)
        self.learned: list[Any] = []

    def gather(self, progress: float) -> Gathered:
        return Gathered(
            {"by": torch.tensor([float(self.seed)]), "on": self.weight.clone()},
            {"reward": progress},
            8,
        )

    def merge(self, parts: Sequence[Gathered]) -> Gathered:
        data = {name: torch.cat([part.data[name] for part in parts]) for name in ("by", "on")}
        return Gathered(data, mean_figures(parts), sum(part.env_steps for part in parts))

    def iteration(self, progress: float, gathered: Gathered | None = None) -> dict[str, float]:
        gathered = gathered or self.gather(progress)
        self.learned.append({name: value.tolist() for name, value in gathered.data.items()})
        self.iteration_count += 1
        self.env_steps += gathered.env_steps
        self.weight = self.weight + 1.0
        return dict(gathered.figures)

    def acting_weights(self) -> dict[str, Tensor]:
        return {"weight": self.weight}

    def act_as(self, weights: dict[str, Tensor]) -> None:
        self.weight = weights["weight"]

    def state_dict(self) -> dict[str, Tensor]:
        return {"weight": self.weight}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.weight = state["weight"]


def making(robots: int, seed: int) -> Any:
    return Counter(seed)


class Paced(Inline):
    """Collectors that come in the order that a script says; the collection is made when it was
    asked for."""

    order: ClassVar[list[int]] = []

    def __init__(self, make: Any, robots: int, seeds: Sequence[int]):
        super().__init__(make, robots, seeds)
        self.ready: dict[int, Batch] = {}

    def request(self, i: int, version: int, weights: Any, progress: float) -> None:
        assert i not in self.ready  # at most one under way
        self.ready[i] = self._all[i].gather(version, weights, progress)

    def take(self, wanted: Sequence[int]) -> tuple[int, Batch] | None:
        i = self.order.pop(0) if len(wanted) > 1 else wanted[0]
        return i, self.ready.pop(i)


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Distributed]:
    def make(order: list[int], *, of_all: bool = False, **settings: Any) -> Distributed:
        monkeypatch.setattr(Paced, "order", order)
        monkeypatch.setattr(collectors, "OnRay", Paced)
        return Distributed(
            Counter(of_all=of_all),
            lambda n, seed: Counter(seed, of_all=of_all),
            CollectorsConfig("ray", 2, **settings),
            robots=8,
            seed=5,
        )

    return make


def test_inline_collectors_take_turns_on_the_newest_weights() -> None:
    trainer = Distributed(Counter(), making, CollectorsConfig("inline", 3), robots=8, seed=5)
    figures = [trainer.iteration(i / 10) for i in range(4)]
    assert [entry["by"] for entry in trainer.learned] == [[1014.0], [2023.0], [3032.0], [1014.0]]
    assert [entry["on"] for entry in trainer.learned] == [[0.0], [1.0], [2.0], [3.0]]
    assert trainer.env_steps == 32 and all(entry["staleness"] == 0.0 for entry in figures)
    assert [entry["reward"] for entry in figures] == [0.0, 0.1, 0.2, 0.3]
    assert "waited_share" in trainer.timings()


def test_they_go_on_while_the_learner_learns(paced: Callable[..., Distributed]) -> None:
    """In turns, two collectors are two updates behind; from the start, where both acted on the
    first weights, one."""
    trainer = paced([0, 1, 0, 1, 0, 1])
    staleness = [trainer.iteration(0.0)["staleness"] for _ in range(6)]
    assert staleness == [0.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    assert [entry["on"] for entry in trainer.learned] == [[0.0], [0.0], [0.0], [1.0], [2.0], [3.0]]


def test_of_many_an_update_takes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Paced, "order", [0, 1, 2, 3, 4, 5] * 4)
    monkeypatch.setattr(collectors, "OnRay", Paced)
    trainer = Distributed(Counter(), making, CollectorsConfig("ray", 6), robots=8, seed=5)
    figures = [trainer.iteration(0.0) for _ in range(6)]
    assert [len(entry["by"]) for entry in trainer.learned] == [3] * 6
    assert trainer.env_steps == 6 * 3 * 8
    assert [entry["staleness"] for entry in figures] == [0.0, 1.0, 2.0, 2.0, 2.0, 2.0]


def test_what_is_too_old_is_thrown_away(paced: Callable[..., Distributed]) -> None:
    trainer = paced([0, 0, 0, 0, 1, 0], most_behind=3)
    figures = [trainer.iteration(0.0) for _ in range(5)]
    assert [entry["staleness"] for entry in figures] == [0.0, 1.0, 1.0, 1.0, 1.0]
    # 1's, four updates old
    assert [entry["thrown_away"] for entry in figures] == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert {entry["by"][0] for entry in trainer.learned} == {1014.0}


def test_a_batch_of_all_has_each_in_its_place(paced: Callable[..., Distributed]) -> None:
    trainer = paced([], of_all=True)
    figures = [trainer.iteration(0.0) for _ in range(3)]
    assert all(entry["by"] == [1014.0, 2023.0] for entry in trainer.learned)
    assert [entry["on"] for entry in trainer.learned] == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    assert [entry["staleness"] for entry in figures] == [0.0, 1.0, 1.0] and trainer.env_steps == 48
    inline = Distributed(
        Counter(of_all=True),
        lambda n, s: Counter(s, of_all=True),
        CollectorsConfig("inline"),
        robots=8,
        seed=5,
    )
    assert [inline.iteration(0.0)["staleness"] for _ in range(3)] == [0.0, 0.0, 0.0]


def test_how_much_an_update_takes() -> None:
    """And so how many updates a run of so many steps has."""
    config = CollectorsConfig("ray", 8)
    assert config.batches(Counter()) == 4 and config.batches(Counter(of_all=True)) == 1
    assert CollectorsConfig("ray", 8, sync=True).batches(Counter()) == 1
    trainer: Any = SimpleNamespace(steps_before=0, steps_each=100)
    assert iterations(trainer, 2000, 4) == 5


def test_settings() -> None:
    refusal("no actors 'mpi'; available: ray, inline", CollectorsConfig, "mpi")
    with pytest.raises(ValueError, match="number"):
        CollectorsConfig("inline", 0)
    with pytest.raises(ValueError, match="most_behind"):
        CollectorsConfig("inline", most_behind=0)
    whole: Any = Counter(of_all=True)
    with (
        pytest.raises(InputError, match=r"7 robots .* do not divide evenly by num_actors=2"),
        distributed(whole, making, CollectorsConfig("inline"), robots=7, seed=0),
    ):
        pass
    with distributed(whole, making, None, robots=7, seed=0) as same:
        assert same is whole


# --- Ray


class Mortal(Collector):
    """One that tells the number of its process as its reward."""

    def gather(self, version: int, weights: dict[str, Any], progress: float) -> Batch:
        gathered = self.trainer.gather(progress)
        return Batch(version, gathered._replace(figures={"reward": float(os.getpid())}), 0.0, [], 1)


@needs_ray
@pytest.mark.slow
def test_the_dead_are_replaced_and_who_cannot_live_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    class Doomed:  # of this function, so that its processes need no torch
        """A collector that ends its process."""

        def __init__(self, make: Any, robots: int, seed: int, threads: int):
            os._exit(1)

        def gather(self, version: int, weights: Any, progress: float) -> None: ...

    class Unmakeable(Doomed):
        """One whose settings are wrong."""

        def __init__(self, make: Any, robots: int, seed: int, threads: int):
            raise InputError("no such robot")

    monkeypatch.setattr(collectors, "Collector", Mortal)
    trainer = Distributed(Counter(), making, CollectorsConfig("ray", 2), robots=8, seed=5)
    try:
        dead = trainer.iteration(0.0)["reward"]
        os.kill(int(dead), signal.SIGKILL)
        living, until = set[float](), time.monotonic() + 240.0
        while len(living) < 2 and time.monotonic() < until:
            time.sleep(0.05)  # the new one needs the processor more than the other
            figures = trainer.iteration(0.0)
            living |= {figures["reward"]} - {dead}
        assert len(living) == 2 and figures["actor_deaths"] >= 1 and figures["staleness"] <= 4
        assert trainer.env.robots.lost >= 3
    finally:
        trainer.close()
    monkeypatch.setattr(collectors, "MOST_BARREN", 2)
    monkeypatch.setattr(collectors, "Collector", Doomed)
    barren = Distributed(Counter(), int, CollectorsConfig("ray", 1), robots=8, seed=5)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="3 collectors died before they had collected anything"):
        barren.iteration(0.0)
    barren.close()
    monkeypatch.setattr(collectors, "Collector", Unmakeable)
    wrong = Distributed(Counter(), int, CollectorsConfig("ray", 1), robots=8, seed=5)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="a collector could not be made"):
        wrong.iteration(0.0)
    wrong.close()


@needs_ray
@pytest.mark.slow
def test_ray_in_step_gives_the_bits_of_one_process_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert cli.main(["retarget", "report=false", f"out={tmp_path / 'm.h5'}"]) == 0
    given = [
        "imitate",
        "algo=mo_vmpo",
        f"data={tmp_path / 'm.h5'}",
        "debug=tiny",
        "threads=1",
        "steps=1200",
    ]
    kinds = {"inline": ["actors=inline"], "step": ["actors=ray", "actors_sync=true"]}
    for kind, actors in kinds.items():
        assert cli.main([*given, *actors, f"out={tmp_path / kind}"]) == 0
    for name in ("metrics.csv", "module/module.safetensors"):
        assert (tmp_path / "inline" / name).read_bytes() == (tmp_path / "step" / name).read_bytes()
    found = {float(row["staleness"]) for row in read_table(tmp_path / "step" / "metrics.csv")}
    assert found == {0.0}
    code = cli.main(["imitate", f"resume={tmp_path / 'step'}", "steps=2000", "actors_sync=false"])
    assert code == 0
    rows = read_table(tmp_path / "step" / "metrics.csv")
    assert [int(row["iteration"]) for row in rows] == list(range(1, len(rows) + 1))
    assert 0 < max(float(row["staleness"]) for row in rows) <= 4
    assert float(rows[-1]["env_steps"]) >= 2000
    summary = json.loads((tmp_path / "step" / "summary.json").read_text())
    assert 0.0 <= summary["waited_share"] <= 1.0
