"""Distributed collection: order and staleness of batches, replacement of dead collectors."""

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
    DistributedTrainer,
    InlineCollectors,
)
from npmp.learning.run import iterations
from npmp.learning.trainer import Experience, mean_metrics

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs the extra ray"
)


class Counter:
    """A trainer whose weight counts its updates; its collections record seed and weight."""

    def __init__(self, seed: int = 0, *, of_all: bool = False):
        self.needs_all_collectors = of_all
        self.seed = seed
        robots = SimpleNamespace(breakdowns=[], lost=0, clear_breakdowns=lambda: None)
        self.env: Any = SimpleNamespace(device="cpu", robots=robots)
        self.iteration_count = 0
        self.env_steps = 0
        self.weight = torch.zeros(1)
        self.learned: list[Any] = []

    def collect_experience(self, progress: float) -> Experience:
        return Experience(
            {"by": torch.tensor([float(self.seed)]), "on": self.weight.clone()},
            {"reward": progress},
            8,
        )

    def merge(self, parts: Sequence[Experience]) -> Experience:
        data = {name: torch.cat([part.data[name] for part in parts]) for name in ("by", "on")}
        return Experience(data, mean_metrics(parts), sum(part.env_steps for part in parts))

    def iteration(self, progress: float, experience: Experience | None = None) -> dict[str, float]:
        experience = experience or self.collect_experience(progress)
        self.learned.append({name: value.tolist() for name, value in experience.data.items()})
        self.iteration_count += 1
        self.env_steps += experience.env_steps
        self.weight = self.weight + 1.0
        return dict(experience.metrics)

    def acting_weights(self) -> dict[str, Tensor]:
        return {"weight": self.weight}

    def load_acting_weights(self, weights: dict[str, Tensor]) -> None:
        self.weight = weights["weight"]

    def state_dict(self) -> dict[str, Tensor]:
        return {"weight": self.weight}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.weight = state["weight"]


def making(robots: int, seed: int) -> Any:
    return Counter(seed)


class ScriptedCollectors(InlineCollectors):
    """Collectors that finish in a scripted order; each collects when its batch is submitted."""

    order: ClassVar[list[int]] = []

    def __init__(self, make: Any, robots: int, seeds: Sequence[int]):
        super().__init__(make, robots, seeds)
        self.ready: dict[int, Batch] = {}

    def submit(self, i: int, version: int, weights: Any, progress: float) -> None:
        assert i not in self.ready  # at most one under way
        self.ready[i] = self._collectors[i].collect(version, weights, progress)

    def poll(self, ids: Sequence[int]) -> tuple[int, Batch] | None:
        i = self.order.pop(0) if len(ids) > 1 else ids[0]
        return i, self.ready.pop(i)


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> Callable[..., DistributedTrainer]:
    def make(order: list[int], *, of_all: bool = False, **settings: Any) -> DistributedTrainer:
        monkeypatch.setattr(ScriptedCollectors, "order", order)
        monkeypatch.setattr(collectors, "RayCollectors", ScriptedCollectors)
        return DistributedTrainer(
            Counter(of_all=of_all),
            lambda n, seed: Counter(seed, of_all=of_all),
            CollectorsConfig("ray", 2, **settings),
            num_envs=8,
            seed=5,
        )

    return make


def test_inline_collectors_take_turns_on_the_newest_weights() -> None:
    trainer = DistributedTrainer(
        Counter(), making, CollectorsConfig("inline", 3), num_envs=8, seed=5
    )
    figures = [trainer.iteration(i / 10) for i in range(4)]
    assert [entry["by"] for entry in trainer.learned] == [[1014.0], [2023.0], [3032.0], [1014.0]]
    assert [entry["on"] for entry in trainer.learned] == [[0.0], [1.0], [2.0], [3.0]]
    assert trainer.env_steps == 32 and all(entry["staleness"] == 0.0 for entry in figures)
    assert [entry["reward"] for entry in figures] == [0.0, 0.1, 0.2, 0.3]
    assert "waited_share" in trainer.timings()


def test_collectors_continue_while_the_learner_learns(
    paced: Callable[..., DistributedTrainer],
) -> None:
    """Two alternating collectors are two updates behind, after the first two batches."""
    trainer = paced([0, 1, 0, 1, 0, 1])
    staleness = [trainer.iteration(0.0)["staleness"] for _ in range(6)]
    assert staleness == [0.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    assert [entry["on"] for entry in trainer.learned] == [[0.0], [0.0], [0.0], [1.0], [2.0], [3.0]]


def test_stale_batches_are_discarded(paced: Callable[..., DistributedTrainer]) -> None:
    trainer = paced([0, 0, 0, 0, 1, 0], most_behind=3)
    figures = [trainer.iteration(0.0) for _ in range(5)]
    assert [entry["staleness"] for entry in figures] == [0.0, 1.0, 1.0, 1.0, 1.0]
    # 1's, four updates old
    assert [entry["thrown_away"] for entry in figures] == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert {entry["by"][0] for entry in trainer.learned} == {1014.0}


def test_all_collectors_keep_their_order_in_a_batch(
    paced: Callable[..., DistributedTrainer],
) -> None:
    trainer = paced([], of_all=True)
    figures = [trainer.iteration(0.0) for _ in range(3)]
    assert all(entry["by"] == [1014.0, 2023.0] for entry in trainer.learned)
    assert [entry["on"] for entry in trainer.learned] == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    assert [entry["staleness"] for entry in figures] == [0.0, 1.0, 1.0] and trainer.env_steps == 48
    inline = DistributedTrainer(
        Counter(of_all=True),
        lambda n, s: Counter(s, of_all=True),
        CollectorsConfig("inline"),
        num_envs=8,
        seed=5,
    )
    assert [inline.iteration(0.0)["staleness"] for _ in range(3)] == [0.0, 0.0, 0.0]


def test_batches_per_update_and_iterations_of_a_run() -> None:
    config = CollectorsConfig("ray", 8)
    assert (
        config.batches_per_update(Counter()) == 4
        and config.batches_per_update(Counter(of_all=True)) == 1
    )
    assert CollectorsConfig("ray", 8, sync=True).batches_per_update(Counter()) == 1
    trainer: Any = SimpleNamespace(env_steps_before=0, env_steps_per_iteration=100)
    assert iterations(trainer, 2000, 4) == 5


# --- Ray


class PidCollector(Collector):
    """Returns its process id as the reward."""

    def collect(self, version: int, weights: dict[str, Any], progress: float) -> Batch:
        experience = self.trainer.collect_experience(progress)
        return Batch(
            version, experience._replace(metrics={"reward": float(os.getpid())}), 0.0, [], 1
        )


@needs_ray
@pytest.mark.slow
def test_dead_collectors_are_replaced_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    class Doomed:  # of this function, so that its processes need no torch
        """A collector that ends its process."""

        def __init__(self, make: Any, robots: int, seed: int, threads: int):
            os._exit(1)

        def collect(self, version: int, weights: Any, progress: float) -> None: ...

    class Unmakeable(Doomed):
        """One whose settings are wrong."""

        def __init__(self, make: Any, robots: int, seed: int, threads: int):
            raise InputError("no such robot")

    monkeypatch.setattr(collectors, "Collector", PidCollector)
    trainer = DistributedTrainer(Counter(), making, CollectorsConfig("ray", 2), num_envs=8, seed=5)
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
    monkeypatch.setattr(collectors, "MAX_FAILURES", 2)
    monkeypatch.setattr(collectors, "Collector", Doomed)
    barren = DistributedTrainer(Counter(), int, CollectorsConfig("ray", 1), num_envs=8, seed=5)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="3 collectors died"):
        barren.iteration(0.0)
    barren.close()
    monkeypatch.setattr(collectors, "Collector", Unmakeable)
    wrong = DistributedTrainer(Counter(), int, CollectorsConfig("ray", 1), num_envs=8, seed=5)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="could not be created"):
        wrong.iteration(0.0)
    wrong.close()


@needs_ray
@pytest.mark.slow
def test_synchronous_ray_equals_one_process_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert cli.main(["retarget", "report=false", f"out={tmp_path / 'm.h5'}"]) == 0
    args = [
        "imitate",
        "algo=mo_vmpo",
        f"data={tmp_path / 'm.h5'}",
        "debug=tiny",
        "threads=1",
        "steps=1200",
    ]
    kinds = {"inline": ["actors=inline"], "step": ["actors=ray", "actors_sync=true"]}
    for kind, actors in kinds.items():
        assert cli.main([*args, *actors, f"out={tmp_path / kind}"]) == 0
    for name in ("metrics.csv", "module/module.safetensors"):
        assert (tmp_path / "inline" / name).read_bytes() == (tmp_path / "step" / name).read_bytes()
    staleness = {float(row["staleness"]) for row in read_table(tmp_path / "step" / "metrics.csv")}
    assert staleness == {0.0}
    code = cli.main(["imitate", f"resume={tmp_path / 'step'}", "steps=2000", "actors_sync=false"])
    assert code == 0
    rows = read_table(tmp_path / "step" / "metrics.csv")
    assert [int(row["iteration"]) for row in rows] == list(range(1, len(rows) + 1))
    assert 0 < max(float(row["staleness"]) for row in rows) <= 4
    assert float(rows[-1]["env_steps"]) >= 2000
    summary = json.loads((tmp_path / "step" / "summary.json").read_text())
    assert 0.0 <= summary["waited_share"] <= 1.0
