"""The high-level policy that commands the latent space (robot-NPMP, eq. 7).

    z_t ~ N( theta z_{t-1} + (1 - theta) m, diag(sigma^2) )

m, theta and sigma are functions of proprioception and the task's inputs. theta is initialized to
the prior's correlation alpha and m near zero, so the policy starts as the AR(1) prior with another
standard deviation. For a white prior, alpha = 0, theta stays 0. On policy, z_{t-1} is data and has
no gradient; in imagination the gradient passes through it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from npmp.core import ranges
from npmp.core.gaussian import Gaussian
from npmp.skills.nets.skill_nets import DecoderState, Recurrent
from npmp.skills.prior import prior_std


@dataclass(frozen=True)
class HighLevelConfig:
    """Sizes and initial values of the high-level policy. Raises: ValueError for values out of
    range."""

    input_width: int = 128  # input norm; 256 in the paper
    hidden_width: int = 128  # two layers; 256 in the paper
    lstm_width: int = 128  # 256 in the paper
    initial_std: float = 0.35  # std of z_t; 0.5 in the paper; 0.312 of the prior at alpha 0.95
    # correlation of an AR(1) prior to start from and be regularized towards; 0: white; null: the
    # module's prior
    alpha: float | None = None

    def __post_init__(self) -> None:
        if self.alpha is not None:
            prior_std(self.alpha)
        sizes = ("input_width", "hidden_width", "lstm_width")
        ranges.at_least_one(self, *sizes)
        ranges.at_most(self, ranges.MAX_WIDTH, *sizes)
        ranges.above_zero(self, "initial_std")


class HighLevelNet(Recurrent):
    """Eq. 7 in three parts: `inputs` -> the LSTM cell `memory` -> `output`; `forward` is one step.

    Over a sequence only the LSTM is computed step by step.
    """

    def __init__(
        self,
        observations: int,
        latent_dim: int,
        alpha: float,
        config: HighLevelConfig | None = None,
        *,
        bound: Sequence[float] | float = 3.0,
    ):
        """Args:
        observations: width of the normalized observation, task included.
        alpha: correlation of the prior, theta's initial value; with 0 theta stays 0.
        bound: limit on |m|, of all latent dimensions or of each.

        Raises:
          ValueError: unless 0 <= alpha < 1 and the bounds are positive, one per dimension.
        """
        super().__init__()
        self.config = c = config or HighLevelConfig()
        prior_std(alpha)
        limits = [bound] * latent_dim if isinstance(bound, float) else list(bound)
        if not limits or len(limits) != latent_dim or not all(limit > 0 for limit in limits):
            raise ValueError(f"bound needs {latent_dim} positive numbers, got {limits}")
        self.latent_dim = latent_dim
        self.lstm_width = c.lstm_width
        self.bound: Tensor
        self.register_buffer("bound", torch.tensor(limits, dtype=torch.float32))
        self.norm = nn.Sequential(
            nn.Linear(observations + latent_dim, c.input_width),
            nn.LayerNorm(c.input_width),
            nn.Tanh(),
        )
        self.body = nn.Sequential(
            nn.Linear(c.input_width, c.hidden_width),
            nn.ELU(),
            nn.Linear(c.hidden_width, c.hidden_width),
            nn.ELU(),
        )
        self.memory = nn.LSTMCell(c.hidden_width, c.lstm_width)
        self.head = nn.Linear(c.lstm_width + c.hidden_width, 2 * latent_dim + 1)
        # m near 0, theta near alpha
        nn.init.normal_(self.head.weight, std=0.01 / self.head.in_features**0.5)
        nn.init.zeros_(self.head.bias)
        self.theta_start = math.log(alpha / (1.0 - alpha)) if alpha > 0.0 else -math.inf
        # m is weighted by 1 - theta, at first 1 - alpha; the gain compensates for it at the start
        self.gain = 1.0 / (1.0 - alpha)

    def inputs(self, observation: Tensor, z_before: Tensor) -> Tensor:
        """Inputs of the LSTM: (..., o) normalized, (..., d) -> (..., hidden_width)."""
        return self.body(self.norm(torch.cat((observation, z_before), -1)))

    def output(self, inputs: Tensor, hidden: Tensor, z_before: Tensor) -> Gaussian:
        """The latent's distribution. inputs (..., hidden_width), the LSTM's output (...,
        lstm_width), z_{t-1} (..., d)."""
        d = self.latent_dim
        raw_m, raw_std, raw_theta = self.head(torch.cat((hidden, inputs), -1)).split((d, d, 1), -1)
        theta = torch.sigmoid(raw_theta + self.theta_start)
        m = self.bound * torch.tanh(self.gain * raw_m / self.bound)
        # within a factor e^3 of its initial value, as the encoder's
        std = self.config.initial_std * torch.exp(3.0 * torch.tanh(raw_std / 3.0))
        return Gaussian(theta * z_before + (1.0 - theta) * m, std)

    def forward(
        self, observation: Tensor, z_before: Tensor, state: DecoderState
    ) -> tuple[Gaussian, DecoderState]:
        """One step. observation (n, o) normalized, z_before (n, d), state -> the latent's
        distribution, new state."""
        x = self.inputs(observation, z_before)
        state = DecoderState(*self.memory(x, (state.hidden, state.cell)))
        return self.output(x, state.hidden, z_before), state
