"""Fitting the world model to recent experience: one half of the fast path."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mocap_data.files import atomic_path
from npmp import artifact, ranges
from npmp.envs.sensing import Sensing, SensorConfig
from npmp.envs.state import RobotState, differentiate
from npmp.envs.task_env import TaskEnv
from npmp.rl.gradients import descend
from npmp.training.schedules import linear
from npmp.world_model.compiling import compiled
from npmp.world_model.losses import ModelWeights, model_loss
from npmp.world_model.model import WorldModel
from npmp.world_model.replay import Replay

FILE = "world_model.safetensors"  # in a module's or a policy's folder


@dataclass(frozen=True)
class ModelFitConfig:
    """How the world model is fitted; pairs are (start, end) of a linear schedule over the run.
    Raises ValueError out of range."""

    model_hidden: tuple[int, ...] = (256, 256, 256)
    model_updates: int = 4  # per iteration
    model_batch: int = 512
    window: int = 8
    model_lr: tuple[float, float] = (1e-3, 2e-4)
    clip_grad: float = 1.0
    model_weights: ModelWeights = field(default_factory=ModelWeights)
    # the learner's inner functions, by torch.compile: a minute or two at first, then faster
    compile: bool = False

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "model_hidden", "model_updates", "model_batch", "window")
        ranges.pairs(self, "model_lr")
        ranges.above_zero(self, "model_lr", "clip_grad")


@dataclass(frozen=True)
class ThroughModelConfig(ModelFitConfig):
    """How a policy is learned through the model that is fitted meanwhile. Raises ValueError for
    values out of range."""

    collect_steps: int = 2  # control steps per robot and iteration
    replay_steps: int = 128  # control steps kept per robot
    # control steps collected before the first update, from which the scales are taken
    warmup_steps: int = 16
    # of the model alone, before the first of a policy; in imitation of one that goes on
    warmup_updates: int = 600
    policy_updates: int = 4  # per iteration
    policy_batch: int = 128  # imagined robots per update
    policy_lr: tuple[float, float] = (5e-4, 5e-5)
    # of the policy's weights, for evaluation and half of the collection; see `averaging`
    ema: float = 0.995
    model_physics: bool = True  # the model is told what was drawn of the physics, and of pushes
    imagine_sensors: bool = True  # imagined robots have the sensors' noise and delay

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(
            self, "collect_steps", "replay_steps", "warmup_steps", "policy_updates", "policy_batch"
        )
        ranges.not_negative(self, "warmup_updates")
        ranges.pairs(self, "policy_lr")
        ranges.above_zero(self, "policy_lr")
        ranges.share(self, "ema")
        if self.replay_steps <= self.window + 1:
            raise ValueError(
                f"replay_steps ({self.replay_steps}) must exceed the window ({self.window}) by more than one"
            )
        if not self.window < self.warmup_steps:
            raise ValueError(
                f"warmup_steps ({self.warmup_steps}) must exceed the window ({self.window})"
            )

    def sensing(self, env: TaskEnv[Any]) -> Sensing:
        """The sensors of imagined robots."""
        return (
            env.robots.sensing
            if self.imagine_sensors
            else Sensing(SensorConfig(), env.home, env.dt)
        )


class ModelFit:
    """The world model's optimizer and schedule, and the model as it was last frozen, which a policy
    learns through."""

    def __init__(self, model: WorldModel, config: ModelFitConfig):
        self.model, self.config = model, config
        if config.compile:
            # a trainer before this one in the process counts towards its recompilations
            torch.compiler.reset()
        self.frozen = copy.deepcopy(model).requires_grad_(False)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config.model_lr[0])
        self.skipped = 0  # steps not taken in the last iteration
        self.goes_on = False  # from what another run has learned, with its scales
        self._advance = compiled(model.advance, config.compile)

    def save(self, folder: Path) -> None:
        """Write the model beside what was learned through it, in its folder. Raises OSError."""
        with atomic_path(folder / FILE) as path:
            artifact.write_tensors(self.model.state_dict(), path, called=folder / FILE)

    def go_on(self, folder: Path | None) -> None:
        """Before the first update: take over the model in the folder of what is to be learned on,
        where there is one and its sizes fit. Raises InputError for one that is damaged."""
        if folder is not None and (folder / FILE).is_file():
            self.goes_on = self.model.take_over(artifact.read_tensors(folder / FILE))

    def freeze(self) -> None:
        """Let the policy's updates see the model as it is now."""
        self.frozen.load_state_dict(self.model.state_dict())

    def take_scales(self, replay: Replay, generator: torch.Generator) -> None:
        """Set the model's input and output scales from what has been collected; they stay as they
        are from then on, and where the model goes on from another run's, as that has them."""
        if self.goes_on:
            return
        window = replay.windows(16384, 1, generator)
        keep = window.valid[0] > 0
        state = RobotState.unpack(window.states[0][keep])
        after = RobotState.unpack(window.states[1][keep])
        velocity = differentiate(state, after, self.model.dt)
        self.model.fit_scales(state, window.setpoints[0][keep], window.physics[0][keep], velocity)

    def warm_up(self, replay: Replay, generator: torch.Generator, updates: int) -> dict[str, float]:
        """So many gradient steps, or a few more, before a policy's first. Returns metrics of the
        last one."""
        metrics: dict[str, float] = {}
        for _ in range(-(-updates // self.config.model_updates)):
            metrics = self(replay, 0.0, generator)
        return metrics

    def __call__(
        self, replay: Replay, progress: float, generator: torch.Generator
    ) -> dict[str, float]:
        """One iteration's gradient steps; progress in [0, 1] is the share of the run done. Returns
        metrics of the last step."""
        c = self.config
        for group in self.optimizer.param_groups:
            group["lr"] = linear(c.model_lr, progress)
        metrics: dict[str, float] = {}
        self.skipped = 0
        for _ in range(c.model_updates):
            loss, log = model_loss(
                self._advance, replay.windows(c.model_batch, c.window, generator), c.model_weights
            )
            self.skipped += not math.isfinite(
                descend(loss, self.model, c.clip_grad, self.optimizer)
            )
            metrics = {"model_loss": loss.item(), **{k: v.item() for k, v in log.items()}}
        return metrics
