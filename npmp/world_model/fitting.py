"""Fitting the world model to recent experience: one half of the fast path."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from npmp import ranges
from npmp.envs.state import RobotState, differentiate
from npmp.training.schedules import linear
from npmp.world_model.compiling import compiled
from npmp.world_model.losses import ModelWeights, model_loss
from npmp.world_model.model import WorldModel
from npmp.world_model.replay import Replay


@dataclass(frozen=True)
class ModelFitConfig:
    """How the world model is fitted; pairs are (start, end) of a linear schedule over the run. Raises ValueError out of
    range."""

    model_hidden: tuple[int, ...] = (256, 256, 256)
    model_updates: int = 4  # per iteration
    model_batch: int = 512
    window: int = 8
    model_lr: tuple[float, float] = (1e-3, 2e-4)
    clip_grad: float = 1.0
    model_weights: ModelWeights = field(default_factory=ModelWeights)
    compile: bool = False  # the learner's inner functions, by torch.compile: a minute or two at first, then faster

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "model_hidden", "model_updates", "model_batch", "window")
        ranges.pairs(self, "model_lr")
        ranges.above_zero(self, "model_lr", "clip_grad")


class ModelFit:
    """The world model's optimizer and schedule."""

    def __init__(self, model: WorldModel, config: ModelFitConfig):
        self.model, self.config = model, config
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config.model_lr[0])
        self.skipped = 0  # steps not taken in the last iteration
        self._advance = compiled(model.advance, config.compile)

    def take_scales(self, replay: Replay, generator: torch.Generator) -> None:
        """Set the model's input and output scales from what has been collected; they stay as they are from then on."""
        window = replay.windows(16384, 1, generator)
        keep = window.valid[0] > 0
        state = RobotState.unpack(window.states[0][keep])
        after = RobotState.unpack(window.states[1][keep])
        velocity = differentiate(state, after, self.model.dt)
        self.model.fit_scales(state, window.setpoints[0][keep], velocity)

    def __call__(self, replay: Replay, progress: float, generator: torch.Generator) -> dict[str, float]:
        """One iteration's gradient steps; progress in [0, 1] is the share of the run done. Returns metrics of the last
        step."""
        c = self.config
        for group in self.optimizer.param_groups:
            group["lr"] = linear(c.model_lr, progress)
        metrics: dict[str, float] = {}
        self.skipped = 0
        for _ in range(c.model_updates):
            loss, log = model_loss(self._advance, replay.windows(c.model_batch, c.window, generator), c.model_weights)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), c.clip_grad)
            if torch.isfinite(norm):  # one bad batch must not poison the model
                self.optimizer.step()
            else:
                self.skipped += 1
            metrics = {"model_loss": loss.item(), **{k: v.item() for k, v in log.items()}}
        return metrics
