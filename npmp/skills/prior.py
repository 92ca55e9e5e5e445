"""Priors over latent commands: the base class `Prior`, and the AR(1) process of robot-NPMP.

A prior is a distribution p(z_t | z_{t-1}, s_t) with the prior's observation s_t. A module's encoder
outputs the deviation from it,

    q(z_t | z_{t-1}, x_t) = N(m + mu, diag(sigma^2)),  m the mean of p(z_t | z_{t-1}, s_t),

and policies are regularized towards it by the KL. A new prior is a file in `npmp/skills/priors/`;
`net.prior` selects one by its name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from npmp.core.gaussian import Gaussian, kl_per_dimension
from npmp.envs.features import true_state
from npmp.envs.state import RobotState
from npmp.skills.normalizer import Normalizer

# default bound of latents, in standard deviations of the AR(1) process
BOUND = 3.0


class Prior(nn.Module, ABC):
    """A distribution of the next latent. All methods are stateless; z (..., d)."""

    # name in settings and contracts
    name: ClassVar[str]
    # the dataclass of its settings
    config_type: ClassVar[type]
    # correlation of successive latents; initial value of a policy's theta
    alpha: float
    # standard deviation of a step; initial value of an encoder's sigma
    std: float
    # whether `observe` depends on the task
    observes_task: bool = False
    # (d,) default limit of a policy's latents
    bound: Tensor

    def __init__(self, latent_dim: int):
        super().__init__()
        self.register_buffer("bound", torch.full((latent_dim,), BOUND), persistent=False)

    @classmethod
    def from_config(cls, latent_dim: int, config: Any, home: Tensor) -> Prior:
        """An untrained one. config: of `config_type`; home: of the joints (nu,) [rad]."""
        return cls(latent_dim, config, home)  # type: ignore[call-arg]

    @classmethod
    def code(cls, z: Tensor, config: Any) -> Tensor:
        """The decoder's input for latents z (..., d): z, or a discrete code of it."""
        return z

    def observe(self, state: RobotState, task: Tensor) -> Tensor:
        """The prior's observation s_t, (..., f).

        Args:
          state: true states (...). task: (..., c), as `Task.observe` where `observes_task`.
        """
        return state.root_pos[..., :0]

    def fit(self, observed: Tensor) -> None:
        """Fit input scales to observations (N, f)."""

    def initial(self, n: int) -> Tensor:
        """z before an episode's first step, (n, d)."""
        return self.bound.new_zeros(n, len(self.bound))

    def first(self, z_before: Tensor, observed: Tensor) -> Gaussian:
        """The distribution of an episode's first latent."""
        return self.step(z_before, observed)

    @abstractmethod
    def step(self, z_before: Tensor, observed: Tensor) -> Gaussian:
        """p(z_t | z_{t-1}, s_t); observed: (..., f) as `observe`."""

    def kl_of_deviation(self, deviation: Gaussian, z_before: Tensor, observed: Tensor) -> Tensor:
        """KL of a distribution relative to the prior's mean, per dimension (..., d) [nats]."""
        std = self.step(z_before, observed).std
        return kl_per_dimension((deviation.mean / std).square(), (deviation.std / std).square())

    def kl(self, distribution: Gaussian, z_before: Tensor, observed: Tensor) -> Tensor:
        """KL[ distribution || step ], (...) [nats]."""
        mean = distribution.mean - self.step(z_before, observed).mean
        deviation = Gaussian(mean, distribution.std)
        return self.kl_of_deviation(deviation, z_before, observed).sum(-1)


def prior_std(alpha: float) -> float:
    """Standard deviation of a step of the AR(1) prior: sqrt(1 - alpha^2), 0.3122 for alpha = 0.95.

    Raises:
      ValueError: unless 0 <= alpha < 1.
    """
    if not 0.0 <= alpha < 1.0:
        raise ValueError(f"alpha must lie in [0, 1), got {alpha}")
    return math.sqrt(1.0 - alpha * alpha)


@dataclass(frozen=True)
class AR1Config:
    """Settings of the AR(1) prior. Raises ValueError out of range."""

    # correlation of successive latents, eq. 5
    alpha: float = 0.95

    def __post_init__(self) -> None:
        prior_std(self.alpha)


class AR1(Prior):
    """p(z_t | z_{t-1}) = N(alpha z_{t-1}, (1 - alpha^2) I) (robot-NPMP, eq. 3, 5 and 6).

    Its stationary distribution is N(0, I) for every alpha in [0, 1); at 0 it is white.
    """

    name = "ar1"
    config_type = AR1Config

    def __init__(self, latent_dim: int, alpha: float):
        """Raises: ValueError unless 0 <= alpha < 1."""
        super().__init__(latent_dim)
        self.alpha = alpha
        self.std = prior_std(alpha)

    @classmethod
    def from_config(cls, latent_dim: int, config: AR1Config, home: Tensor) -> AR1:
        return cls(latent_dim, config.alpha)

    def first(self, z_before: Tensor, observed: Tensor) -> Gaussian:
        """The stationary distribution."""
        return Gaussian(torch.zeros_like(z_before), torch.ones_like(z_before))

    def step(self, z_before: Tensor, observed: Tensor) -> Gaussian:
        return Gaussian(self.alpha * z_before, torch.full_like(z_before, self.std))

    def kl_of_deviation(self, deviation: Gaussian, z_before: Tensor, observed: Tensor) -> Tensor:
        """As `Prior.kl_of_deviation`, eq. 6: the previous latent drops out."""
        variance = self.std**2
        mean = deviation.mean.square()
        return kl_per_dimension(mean / variance, deviation.std.square() / variance)


class StatePrior(Prior):
    """A prior conditioned on the robot's state, by an MLP. s_t is the true state without height,
    which depends on the terrain."""

    # the mean has no share of the previous latent
    alpha = 0.0
    home: Tensor

    def __init__(
        self, latent_dim: int, home: Tensor, *, hidden: int, outputs: int, inputs: int = 0
    ):
        """Args:
        home: (nu,) [rad].
        hidden: units of each of two layers.
        outputs: of the network, about zero at first. inputs: of the network, after the state.
        """
        super().__init__(latent_dim)
        self.register_buffer("home", home.clone(), persistent=False)
        width = 12 + 3 * len(home)
        self.scale = Normalizer(width)
        head = nn.Linear(hidden, outputs)
        nn.init.normal_(head.weight, std=0.01 / hidden**0.5)
        nn.init.zeros_(head.bias)
        self.net = nn.Sequential(
            nn.Linear(width + inputs, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU(), head
        )

    def observe(self, state: RobotState, task: Tensor) -> Tensor:
        return true_state(state, self.home)[..., 1:]

    def fit(self, observed: Tensor) -> None:
        self.scale.fit(observed, 0.1)


def prior_settings(name: str, alpha: float, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a module's prior; the AR(1) prior's alpha is a separate key."""
    return {"alpha": alpha} if name == AR1.name else dict(settings)
