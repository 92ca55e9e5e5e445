"""A walking policy and its decoder as one decoder, whose latent is the command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from npmp.core.settings import from_mapping
from npmp.skills.nets.high_level import HighLevelConfig, HighLevelNet
from npmp.skills.nets.skill_nets import Decoder, DecoderState, NetConfig, Recurrent
from npmp.skills.normalizer import Normalizer


class CommandDecoder(Recurrent):
    """A `Decoder` of commands: a latent from -1 to 1 is the lowest to the highest command. The
    memory is that of both networks and the previous latent, concatenated."""

    def __init__(self, observations: int, actions: int, walker: Mapping[str, Any]):
        """walker: the module's `net`, the policy's `high_level`, `alpha`, `bound` and
        `command_range`. Raises InputError or ValueError for invalid ones."""
        super().__init__()
        net = from_mapping(NetConfig, walker["net"], at="walker.net")
        high_level = from_mapping(HighLevelConfig, walker["high_level"], at="walker.high_level")
        low, high = torch.tensor(walker["command_range"]).T
        self.policy = HighLevelNet(
            observations + len(low),
            net.latent_dim,
            walker["alpha"],
            high_level,
            bound=walker["bound"],
        )
        self.decoder = Decoder(observations, actions, net)
        self.scale = Normalizer(len(low))
        self.range = Normalizer(len(low))  # of commands
        self.range.mean.copy_(0.5 * (low + high))
        self.range.std.copy_((0.5 * (high - low)).clamp(min=1e-6))
        self._parts = high_level.lstm_width, net.lstm_width, net.latent_dim
        self.lstm_width = sum(self._parts)

    def command(self, z: Tensor) -> Tensor:
        """Commands of latents, (n, k)."""
        return self.range.mean + self.range.std * z.clamp(-1.0, 1.0)

    def latent(self, command: Tensor) -> Tensor:
        """Latents of commands, (n, k): the inverse of `command` within the range."""
        return self.range(command).clamp(-1.0, 1.0)

    def forward(
        self, z: Tensor, observation: Tensor, state: DecoderState
    ) -> tuple[Tensor, DecoderState]:
        (high, low, before), (cell, deep, _) = (part.split(self._parts, -1) for part in state)
        inputs = torch.cat((observation, self.scale(self.command(z))), -1)
        latent, memory = self.policy(inputs, before, DecoderState(high, cell))
        action, below = self.decoder(latent.mean, observation, DecoderState(low, deep))
        hidden = torch.cat((memory.hidden, below.hidden, latent.mean), -1)
        cells = torch.cat((memory.cell, below.cell, torch.zeros_like(latent.mean)), -1)
        return action, DecoderState(hidden, cells)
