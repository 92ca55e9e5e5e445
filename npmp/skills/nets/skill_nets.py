"""Encoder and decoder of the skill module (robot-NPMP, networks).

Sizes default to a small CPU preset; the paper's are in conf/net/paper.yaml.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from npmp.core import ranges
from npmp.core.gaussian import Gaussian
from npmp.skills import priors
from npmp.skills.prior import AR1, prior_settings, prior_std

# change of joint targets per unit of a joint-space latent [rad]; 0.175 at the initial std [D]
JOINT_SCALE = 0.5


@dataclass(frozen=True)
class NetConfig:
    """Sizes of the skill module's networks. Raises: ValueError for values out of range."""

    latent_dim: int = 32  # 60 in related work
    alpha: float = 0.95  # correlation of the AR(1) prior, eq. 5
    encoder_width: int = 256  # two hidden layers; 1024 in the paper
    decoder_width: int = 128  # input norm and both branches; 256 in the paper
    lstm_width: int = 128  # 256 in the paper
    # prior of latents, by its name in `npmp.skills.priors.PRIORS`
    prior: str = "ar1"
    # settings of another prior than ar1, whose setting is alpha
    prior_settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        prior_std(self.alpha)
        if self.prior == AR1.name and self.prior_settings:
            raise ValueError(f"prior_settings: must be empty for prior={self.prior}; set alpha")
        if self.prior != AR1.name and self.alpha != type(self).alpha:
            raise ValueError(
                f"alpha={self.alpha:g}: has no effect with prior={self.prior}; set prior_settings"
            )
        priors.settings_of(self.prior, self.settings_of_prior)
        sizes = ("latent_dim", "encoder_width", "decoder_width", "lstm_width")
        ranges.at_least_one(self, *sizes)
        ranges.at_most(self, ranges.MAX_WIDTH, *sizes)

    @property
    def settings_of_prior(self) -> dict[str, Any]:
        """Settings of the prior, alpha included."""
        return prior_settings(self.prior, self.alpha, self.prior_settings)


class DecoderState(NamedTuple):
    """The LSTM's memory."""

    hidden: Tensor  # (n, lstm_width)
    cell: Tensor  # (n, lstm_width)

    def reset(self, mask: Tensor) -> DecoderState:
        """Set the memory to zero where mask (n,) bool is true."""
        keep = (~mask).to(self.hidden.dtype).unsqueeze(-1)
        return DecoderState(self.hidden * keep, self.cell * keep)


class Recurrent(nn.Module):
    """A network with an LSTM's memory of `lstm_width` units."""

    lstm_width: int

    def initial_state(self, n: int) -> DecoderState:
        """Zero memory of n robots."""
        zeros = next(iter(self.state_dict().values())).new_zeros(n, self.lstm_width)
        return DecoderState(zeros, zeros.clone())


class Encoder(nn.Module):
    """q(z_t | z_{t-1}, x_t): from reference features and previous latent to the deviation from the
    prior, eq. 3."""

    def __init__(self, features: int, config: NetConfig, prior_std: float):
        """prior_std: of a step of the prior; sigma's initial value."""
        super().__init__()
        width = config.encoder_width
        d = config.latent_dim
        self._prior_std = prior_std
        self.body = nn.Sequential(
            nn.Linear(features + d, width), nn.LayerNorm(width), nn.ELU(),
            nn.Linear(width, width), nn.ELU(),
        )  # fmt: skip
        self.head = nn.Linear(width, 2 * d)
        # starts at the prior: no information, no KL
        nn.init.normal_(self.head.weight, std=0.01 / width**0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, features: Tensor, z_before: Tensor) -> Gaussian:
        """features (n, f), z_{t-1} (n, d) -> the deviation N(mu, sigma^2) from the prior's mean."""
        mu, raw = self.head(self.body(torch.cat((features, z_before), -1))).chunk(2, -1)
        return Gaussian(mu, self._sigma(raw))

    def over_time(self, features: Tensor) -> Callable[[int, Tensor], Gaussian]:
        """`forward` of a sequence of features (T, n, f): a function of t and z_{t-1} (n, d).

        The first layer's product with the features, most of the work, is computed for all steps at
        once.
        """
        first = self.body[0]
        assert isinstance(first, nn.Linear)  # for the type checker
        width = features.shape[-1]
        projected = nn.functional.linear(features, first.weight[:, :width], first.bias)
        of_latent = first.weight[:, width:].t()
        rest = self.body[1:]

        def step(t: int, z_before: Tensor) -> Gaussian:
            mu, raw = self.head(rest(torch.addmm(projected[t], z_before, of_latent))).chunk(2, -1)
            return Gaussian(mu, self._sigma(raw))

        return step

    def _sigma(self, raw: Tensor) -> Tensor:
        # within a factor e^3 of the prior's standard deviation
        return self._prior_std * torch.exp(3.0 * torch.tanh(raw / 3.0))


class Decoder(Recurrent):
    """Maps z_t, proprioception and memory to joint targets centred on the home pose.

    Branch 1 (two layers, LSTM) takes proprioception only; branch 2 takes branch 1, the normalized
    input and the latent. The action is linear in both branches.
    """

    def __init__(self, observations: int, actions: int, config: NetConfig):
        super().__init__()
        w = config.decoder_width
        h = config.lstm_width
        self.lstm_width = h
        self.code = priors.code_of(config.prior, config.settings_of_prior)
        self.norm = nn.Sequential(nn.Linear(observations, w), nn.LayerNorm(w), nn.Tanh())
        self.branch1 = nn.Sequential(nn.Linear(w, w), nn.ELU(), nn.Linear(w, w), nn.ELU())
        self.lstm = nn.LSTMCell(w, h)
        self.branch2 = nn.Sequential(
            nn.Linear(h + w + config.latent_dim, w), nn.ELU(), nn.Linear(w, w), nn.ELU()
        )
        self.head = nn.Linear(h + w, actions)
        nn.init.normal_(self.head.weight, std=0.01 / (h + w) ** 0.5)  # starts at the home pose
        nn.init.zeros_(self.head.bias)

    def forward(
        self, z: Tensor, observation: Tensor, state: DecoderState
    ) -> tuple[Tensor, DecoderState]:
        """z (n, d), observation (n, o) normalized, state -> action (n, a) [rad], new state."""
        x, memorized = self.inputs(observation)
        state = DecoderState(*self.lstm(memorized, (state.hidden, state.cell)))
        return self.output(state.hidden, x, z), state

    def inputs(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Layers before the LSTM: observation (..., o) -> normalized input (..., w), the LSTM's
        input (..., w)."""
        x = self.norm(observation)
        return x, self.branch1(x)

    def output(self, hidden: Tensor, x: Tensor, z: Tensor) -> Tensor:
        """Layers after the LSTM: its output (..., h), normalized input (..., w), latent (..., d) ->
        action (..., a) [rad]."""
        y = self.branch2(torch.cat((hidden, x, self.code(z)), -1))
        return self.head(torch.cat((hidden, y), -1))


class JointDecoder(Recurrent):
    """A `Decoder` without skills: latents are joint targets. It has no weights or memory."""

    def __init__(self, actions: int, config: NetConfig):
        """Raises: ValueError unless the latent has a dimension per joint."""
        super().__init__()
        if config.latent_dim != actions:
            raise ValueError(
                f"latents in joint space have latent_dim {actions}, got {config.latent_dim}"
            )
        self.lstm_width = config.lstm_width
        self.scale: Tensor
        self.register_buffer("scale", torch.full((actions,), JOINT_SCALE))

    def forward(
        self, z: Tensor, observation: Tensor, state: DecoderState
    ) -> tuple[Tensor, DecoderState]:
        """As `Decoder.forward`: action = scale * z; the observation is not used."""
        return self.scale * z, state
