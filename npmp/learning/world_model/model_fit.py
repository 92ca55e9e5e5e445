"""Fitting the world model to recent experience."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import Tensor, nn

from mocap_data.files import atomic_path
from npmp.core import artifact
from npmp.core.progress import counted
from npmp.envs.state import RobotState, differentiate
from npmp.learning.rl.muon import Muon
from npmp.learning.rl.optimization import descend
from npmp.learning.world_model.compiling import compiled
from npmp.learning.world_model.losses import current_loss, model_loss
from npmp.learning.world_model.model import WorldModel
from npmp.learning.world_model.replay import ReplayBuffer

FILE = "world_model.safetensors"  # in a module's or a policy's folder
WINDOW = 8  # control steps unrolled from one true state [D]
CLIP_GRAD = 1.0  # norm


class ModelFit:
    """The world model, its optimizer, and a frozen copy for the policy's gradients."""

    def __init__(self, model: WorldModel, *, updates: int, batch: int, compile: bool):
        """updates: per call. batch: windows per update. compile: the model's step."""
        self.model = model
        self.updates = updates
        self.batch = batch
        if compile:
            # recompilations of earlier trainers in this process count towards the limit
            torch.compiler.reset()
        self.frozen = copy.deepcopy(model).requires_grad_(False)
        last = [part[-1] for part in (model.net, model.currents) if isinstance(part, nn.Sequential)]
        self.optimizer = Muon(model, last)
        # updates skipped in the last call, ()
        self.skipped = torch.zeros((), dtype=torch.long)
        self.pretrained = False
        self._advance = compiled(model.advance, compile)

    def save(self, folder: Path) -> None:
        """Write the model into the folder of a module or a policy. Raises OSError."""
        with atomic_path(folder / FILE) as path:
            artifact.write_tensors(self.model.state_dict(), path, name=folder / FILE)

    def load_pretrained(self, folder: Path | None) -> None:
        """Load the model in the folder of a module or policy, if there is one and its sizes fit.
        Raises InputError if it is damaged."""
        if folder is not None and (folder / FILE).is_file():
            self.pretrained = self.model.load_pretrained(artifact.read_tensors(folder / FILE))

    def freeze(self) -> None:
        """Copy the model into `frozen`."""
        self.frozen.load_state_dict(self.model.state_dict())

    def fit_scales(self, replay: ReplayBuffer, generator: torch.Generator) -> None:
        """Set the model's input and output scales from the replay, once; a pretrained model keeps
        its own."""
        window = replay.windows(16384, 1, generator)
        valid = window.valid[0] > 0
        if self.model.currents is not None:  # never pretrained
            rms = window.currents[0][valid].mean(0).sqrt()
            self.model.current_scale.copy_(rms.clamp(min=1e-3))
        if self.pretrained:
            return
        state, after = (RobotState.unpack(states[valid]) for states in window.states)
        velocity = differentiate(state, after, self.model.dt)
        self.model.fit_scales(state, window.setpoints[0][valid], window.physics[0][valid], velocity)

    def __call__(
        self,
        replay: ReplayBuffer,
        lr: float,
        generator: torch.Generator,
        updates: int | None = None,
    ) -> dict[str, float]:
        """Fit the model by gradient steps; updates: by default an iteration's. Returns metrics of
        the last."""
        self.optimizer.param_groups[0]["lr"] = lr
        log: dict[str, Tensor] = {}
        self.skipped = torch.zeros_like(self.skipped)
        for _ in counted(self.updates if updates is None else updates):
            window = replay.windows(self.batch, WINDOW, generator)
            loss, log = model_loss(self._advance, window)
            log["model_loss"] = loss
            if self.model.currents is not None:
                log["model_current"] = current_loss(self.model, window)
                loss = loss + log["model_current"]
            norm = descend(loss, self.optimizer, CLIP_GRAD)
            self.skipped = self.skipped + ~norm.isfinite()
        return {name: value.item() for name, value in log.items()}
