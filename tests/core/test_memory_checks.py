"""Estimates of memory: near what was measured, and one line with the key's name where it does not
fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from npmp.core import memory_checks
from npmp.core.tree import leaves
from npmp.learning.world_model.replay import ReplayBuffer, Step
from npmp.robots import Robot
from npmp.sim.terrain import Terrain, TerrainConfig
from tests.refusals import refusal


def asked(monkeypatch: pytest.MonkeyPatch, estimate: Callable[[], None]) -> float:
    """The bytes that an estimate asks for."""
    result: list[float] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            memory_checks, "require_memory", lambda num_bytes, _: result.append(num_bytes)
        )
        estimate()
    return result[0]


def test_a_replay_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    flag, nothing = torch.zeros(7, dtype=torch.bool), torch.zeros(7, 0)
    widths = {"state": 57, "setpoint": 12, "z": 8}
    floats = {name: torch.zeros(7, width) for name, width in widths.items()}
    blank = Step(*[nothing] * len(Step._fields))
    replay = ReplayBuffer(11, blank._replace(is_first=flag, free=flag, policy=(), **floats))
    taken = sum(leaf.numel() * leaf.element_size() for leaf in leaves(replay.steps))
    assert asked(monkeypatch, lambda: memory_checks.require_replay(11, 7, 77)) == taken


def test_what_no_memory_holds_is_refused_by_its_key(robot: Robot) -> None:
    model = robot.model(visuals=False)
    for key, estimate in (
        ("num_envs=1000000000", lambda: memory_checks.require_robots(model, 10**9, substeps=8)),
        ("num_envs=10000000", lambda: memory_checks.require_replay(128, 10**7, 185)),
        (
            "algo.model_batch=10000000",
            lambda: memory_checks.require_batch(10**8 // 10, 8, (256, 256, 256), 57),
        ),
        ("algo.clone_steps=10000000", lambda: memory_checks.require_demonstration(10**7, 512, 160)),
        ("task.terrain_fields=1000000000", lambda: Terrain(TerrainConfig("perlin", fields=10**9))),
        ("task.future_frames", lambda: memory_checks.require_context(10**5, 57 * 10**6, 256)),
    ):
        refusal(f"^{key}.* needs about .* GiB of memory", estimate)
    memory_checks.require_robots(model, 1024, substeps=8)
    memory_checks.require_batch(512, 8, (256, 256, 256), 57)
