"""The simulator for a device: MuJoCo on the CPU's threads, with a mirror where tensors are
elsewhere."""

from __future__ import annotations

from typing import Any

import mujoco
import torch

from npmp.sim.batch import BatchSim
from npmp.sim.staged import StagedBatchSim

Simulator = BatchSim | StagedBatchSim


def make_simulator(
    model: mujoco.MjModel, num_envs: int, *, device: torch.device, **settings: Any
) -> Simulator:
    """Simulations of a model for an environment whose tensors are on a device; settings and errors
    as `BatchSim`."""
    if device.type == "cpu":
        return BatchSim(model, num_envs, **settings)
    return StagedBatchSim(model, num_envs, device=device, **settings)
