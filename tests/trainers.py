"""What is asked of every trainer: equal numbers from a seed and a checkpoint; and a small one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# settings of a world model that learns in a second
SMALL: dict[str, Any] = {
    "collect_steps": 4,
    "replay_steps": 24,
    "warmup_steps": 12,
    "warmup_updates": 3,
    "model_hidden": (16,),
    "model_updates": 1,
    "model_batch": 16,
    "policy_updates": 1,
    "policy_batch": 8,
    "horizon": (3, 5),
}


def copied(trainer: Any) -> dict[str, Tensor]:
    """Its state, sharing no memory with it."""
    return {name: value.clone() for name, value in trainer.state_dict().items()}


def run(trainer: Any, iterations: int, total: int = 8) -> list[dict[str, float]]:
    """So many iterations of a run of `total`."""
    return [trainer.iteration(trainer.iteration_count / total) for _ in range(iterations)]


def check_repeats_and_resumes(
    make: Callable[[int], Any], *, before: int = 2, after: int = 2
) -> Any:
    """make: a trainer by its seed, before its first iteration. Returns one after all of them."""

    def begun(seed: int) -> Any:
        trainer = make(seed)
        if hasattr(trainer, "warm_up"):
            trainer.warm_up()
        return trainer

    whole, again = begun(0), begun(0)
    first = run(whole, before)
    assert first == run(again, before)  # floats compared exactly
    assert all(list(row) == list(first[0]) for row in first)  # the same columns every time
    kept = copied(whole)
    expected = run(whole, after)
    resumed = make(5)  # a fresh process, whose own random numbers must not matter
    resumed.load_state_dict(kept)
    assert resumed.iteration_count == before
    assert run(resumed, after) == expected
    final = whole.state_dict()
    assert final.keys() == resumed.state_dict().keys()
    for name, value in resumed.state_dict().items():
        assert torch.equal(value, final[name]), name
    assert begun(1).iteration(0.0) != first[0]
    return whole
