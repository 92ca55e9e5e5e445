"""Fitting the world model to recent experience."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import torch

from mocap_data.files import atomic_path
from npmp.core import artifact
from npmp.core.progress import counted
from npmp.envs.state import RobotState, differentiate
from npmp.learning.rl.optimization import descend
from npmp.learning.world_model.compiling import compiled
from npmp.learning.world_model.losses import current_loss, model_loss
from npmp.learning.world_model.model import WorldModel
from npmp.learning.world_model.replay import ReplayBuffer

FILE = "world_model.safetensors"  # in a module's or a policy's folder
WINDOW = 8  # control steps unrolled from one true state [D]
CLIP_GRAD = 1.0  # norm


class ModelFit:
    """The world model's optimizer, and the model as it was last frozen, which a policy learns
    through."""

    def __init__(self, model: WorldModel, *, updates: int, batch: int, compile: bool):
        """updates: per call. batch: windows of each. compile: the model's step."""
        self.model = model
        self.updates = updates
        self.batch = batch
        if compile:
            # a trainer before this one in the process counts towards its recompilations
            torch.compiler.reset()
        self.frozen = copy.deepcopy(model).requires_grad_(False)
        self.optimizer = torch.optim.Adam(model.parameters())
        self.skipped = 0  # steps not taken in the last iteration
        self.goes_on = False  # from what another run has learned, with its scales
        self._advance = compiled(model.advance, compile)

    def save(self, folder: Path) -> None:
        """Write the model beside what was learned through it, in its folder. Raises OSError."""
        with atomic_path(folder / FILE) as path:
            artifact.write_tensors(self.model.state_dict(), path, name=folder / FILE)

    def go_on(self, folder: Path | None) -> None:
        """Before the first update: take over the model in the folder of what is to be learned on,
        where there is one and its sizes fit. Raises InputError for one that is damaged."""
        if folder is not None and (folder / FILE).is_file():
            self.goes_on = self.model.take_over(artifact.read_tensors(folder / FILE))

    def freeze(self) -> None:
        """Let the policy's updates see the model as it is now."""
        self.frozen.load_state_dict(self.model.state_dict())

    def take_scales(self, replay: ReplayBuffer, generator: torch.Generator) -> None:
        """Set the model's input and output scales from what has been collected; they stay as they
        are from then on. A model that goes on from another run's keeps that run's."""
        window = replay.windows(16384, 1, generator)
        keep = window.valid[0] > 0
        if self.model.currents is not None:  # always learned anew
            rms = window.currents[0][keep].mean(0).sqrt()
            self.model.current_scale.copy_(rms.clamp(min=1e-3))
        if self.goes_on:
            return
        state, after = (RobotState.unpack(states[keep]) for states in window.states)
        velocity = differentiate(state, after, self.model.dt)
        self.model.fit_scales(state, window.setpoints[0][keep], window.physics[0][keep], velocity)

    def __call__(
        self,
        replay: ReplayBuffer,
        lr: float,
        generator: torch.Generator,
        updates: int | None = None,
    ) -> dict[str, float]:
        """Gradient steps at a learning rate, `updates` of them or an iteration's; figures of the
        last one."""
        self.optimizer.param_groups[0]["lr"] = lr
        metrics: dict[str, float] = {}
        self.skipped = 0
        for _ in counted(self.updates if updates is None else updates):
            window = replay.windows(self.batch, WINDOW, generator)
            loss, log = model_loss(self._advance, window)
            log["model_loss"] = loss
            if self.model.currents is not None:
                log["model_current"] = current_loss(self.model, window)
                loss = loss + log["model_current"]
            self.skipped += not math.isfinite(descend(loss, self.optimizer, CLIP_GRAD))
            metrics = {name: value.item() for name, value in log.items()}
        return metrics
