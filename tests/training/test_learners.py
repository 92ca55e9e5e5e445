"""Several learners, each with collectors of its own."""

from __future__ import annotations

import importlib.util
import math
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mocap_data.errors import InputError
from npmp import parallel
from npmp.rl import NonFiniteGradient
from npmp.rl.gradients import descend
from npmp.training.collectors import CollectorsConfig
from npmp.training.learners import device_of, distributed
from npmp.training.trainer import Gathered

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs the extra ray"
)


class Slope:
    """A trainer of one weight, whose gradient is what its collectors collect: a number of their
    seed."""

    of_all_collectors, joins = False, True

    def __init__(self, robots: int, seed: int, device: str | None):
        if robots == 13 and device == "cpu":
            raise InputError("no such robot")
        self.seed, self.robots, self.device = seed, robots, device
        robot_batch = SimpleNamespace(breakdowns=[], lost=0, forget_breakdowns=lambda: None)
        self.env: Any = SimpleNamespace(device="cpu", robots=robot_batch)
        self.module = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.module.weight)
        self.generator = torch.Generator().manual_seed(seed)
        self.iteration_count, self.env_steps, self.learn_nan = 0, 0, False

    def gather(self, progress: float) -> Gathered:
        return Gathered(
            torch.tensor([[float(self.seed % 7)]]), {"reward": float(self.seed % 7)}, self.robots
        )

    def merge(self, parts: Any) -> Gathered:
        raise AssertionError("of one collector there is nothing to merge")

    def iteration(self, progress: float, gathered: Gathered | None = None) -> dict[str, float]:
        assert gathered is not None
        if self.device == "cpu":  # the second learner
            if progress == 0.5:
                os._exit(1)
            if progress == 0.6:
                raise ValueError("no memory left")
        self.env_steps += gathered.env_steps
        loss = self.module(gathered.data).sum() * (math.nan if self.learn_nan else 1.0)
        if not math.isfinite(
            descend(loss, self.module, 100.0, torch.optim.SGD(self.module.parameters(), lr=1.0))
        ):
            raise NonFiniteGradient
        self.iteration_count += 1
        drawn = torch.rand((), generator=self.generator).item()
        return gathered.figures | {"weight": self.module.weight.item(), "drawn": drawn}

    def acting_weights(self) -> dict[str, Tensor]:
        return {"weight": self.module.weight}

    def act_as(self, weights: dict[str, Tensor]) -> None:
        self.module.weight.data.copy_(weights["weight"])

    def state_dict(self) -> dict[str, Tensor]:
        return {"weight": self.module.weight.detach(), "count": torch.tensor(self.iteration_count)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.module.weight.data.copy_(state["weight"])
        self.iteration_count = int(state["count"])


@needs_ray
@pytest.mark.slow
def test_two_learners_go_down_the_mean_of_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has one collector, whose seed tells its gradient; from a state of -3 on, which both are
    told."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = CollectorsConfig("ray", 1, sync=True, learners=2)
    slopes = [(seed + 1009) % 7 for seed in (5, 5 + 15485863)]
    assert slopes[0] != slopes[1]
    first: Any = Slope(8, 5, None)
    with distributed(first, Slope, config, "cpu", robots=8, seed=5) as trainer:
        trainer.load_state_dict({"weight": torch.tensor([[-3.0]]), "count": torch.tensor(0)})
        # a run begins alone: it may fit a model before the first iteration
        assert parallel.count() == 1
        figures = [trainer.iteration(0.1) for _ in range(2)]
        mean = sum(slopes) / 2
        assert first.module.weight.item() == pytest.approx(-3.0 - 2 * mean)
        # of both, so equal
        assert [one["weight"] for one in figures] == pytest.approx([-3.0 - mean, -3.0 - 2 * mean])
        assert figures[0]["reward"] == mean and figures[0]["staleness"] == 0.0
        own = torch.rand((), generator=torch.Generator().manual_seed(5)).item()
        assert figures[0]["drawn"] != own  # the other draws for itself
        assert trainer.env_steps == 2 * 2 * 8 and parallel.count() == 2
        with pytest.raises(NonFiniteGradient):
            first.learn_nan = True
            trainer.iteration(0.2)
        first.learn_nan = False
        assert trainer.env_steps == 3 * 2 * 8 and first.module.weight.item() == pytest.approx(
            -3.0 - 2 * mean
        )
        with pytest.raises(ValueError, match="no memory left"):
            trainer.iteration(0.6)
        with pytest.raises(InputError, match="one of 2 learners is gone; resume= goes on"):
            trainer.iteration(0.5)
    assert parallel.count() == 1
    with (
        pytest.raises(InputError, match="no such robot"),
        distributed(Slope(13, 5, None), Slope, config, "cpu", robots=13, seed=5),
    ):
        pass
    many = CollectorsConfig("ray", 999, learners=2)
    with (
        pytest.raises(
            InputError, match=r"num_actors=999 of learners=2: a core each is needed, Ray has \d"
        ),
        distributed(first, Slope, many, "cpu", robots=8, seed=5),
    ):
        pass


def test_a_gpu_each_and_processes_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_of("cpu", 3) == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_of("cuda", rank) for rank in range(2)] == ["cuda:0", "cuda:1"]
    assert device_of("cuda:1", 0) == "cuda:1"
    with pytest.raises(InputError, match="a GPU each is needed, and there is no cuda:2"):
        device_of("cuda:1", 1)
    with pytest.raises(
        InputError, match="learners=2 are processes of Ray, as their collectors are; use actors=ray"
    ):
        CollectorsConfig("inline", 1, learners=2)
    with pytest.raises(ValueError, match="learners"):
        CollectorsConfig("ray", 1, learners=0)
