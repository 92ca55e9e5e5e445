"""A behaviour prior: the distribution of a module's latents in a state, given the achieved goal.

    p(z_t | x_t, g_t, z_{t-1}) = N(alpha z_{t-1} + mu, diag(sigma^2)),  (mu, sigma) = f(x, g, z)

x_t is the true state, g_t the goal achieved in the next half second (`npmp.learning.cloning`). The
AR(1) prior regularizes a policy towards latents seen by the decoder; this one towards latents of
motions like the recordings (a learned prior as in ControlVAE, Yao et al. 2022, with goals in
hindsight as in Andrychowicz et al. 2017).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from npmp.core.gaussian import Gaussian
from npmp.envs.features import true_state
from npmp.envs.state import RobotState
from npmp.skills.normalizer import Normalizer
from npmp.skills.prior import AR1, Prior

HIDDEN = 256  # units of each of two layers [D]
EXAMPLES = 2000  # stored goals, to detect unsupported ones [D]
NEIGHBOURS = 20  # examples within `NEAR` of a supported goal, 1 % of those stored [D]
NEAR = 0.15  # radius, as a share of the range of commanded goals [D]
NEAREST = 0.05  # least radius, for tasks with one goal [m/s, rad/s] [D]


class BehaviorPrior(Prior):
    """An MLP to mean and std of the latent, trained by `npmp.learning.cloning.fit_behavior`.

    Its KL is a mixture, w KL(q || this) + (1 - w) KL(q || AR(1)). For goals without examples, e.g.
    running sideways, the network would extrapolate, and w is 0 (`support`).
    """

    name = "behavior"

    home: Tensor
    examples: Tensor
    goals: Tensor
    near: Tensor

    def __init__(
        self,
        home: Tensor,
        goals: Sequence[tuple[float, float]],
        latent_dim: int,
        alpha: float,
        share: float = 1.0,
    ):
        """Args:
        home: (nu,) [rad].
        goals: the g ranges (low, high) of commanded goals; empty for a task without `achieved`.
        alpha: of the AR(1) prior. share: w where goals have examples.
        """
        super().__init__(latent_dim)
        goal_width = len(goals)
        self.general = AR1(latent_dim, alpha)
        self.alpha = alpha
        self.std = self.general.std
        self.share = share
        self.register_buffer("home", home.clone(), persistent=False)
        ends = torch.tensor(goals).view(-1, 2)
        width = ends[:, 1] - ends[:, 0]
        # goals with an empty range get the widest one
        width = torch.where(width > 0.0, width, width.max() if goal_width else width)
        self.register_buffer("goals", ends, persistent=False)
        self.register_buffer("near", (NEAR * width).clamp(min=NEAREST), persistent=False)
        state = 12 + 3 * len(home)
        self.scale = Normalizer(state + goal_width)
        self.register_buffer("examples", torch.zeros(EXAMPLES, goal_width))
        self.goal_width = goal_width
        self.observes_task = goal_width > 0
        head = nn.Linear(HIDDEN, 2 * latent_dim)
        nn.init.normal_(head.weight, std=0.01 / HIDDEN**0.5)
        nn.init.zeros_(head.bias)
        self.net = nn.Sequential(
            nn.Linear(state + goal_width + latent_dim, HIDDEN),
            nn.ELU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ELU(),
            head,
        )

    def features(self, state: RobotState, goal: Tensor) -> Tensor:
        """Unscaled features (..., 12 + 3 nu + g): the true state without height, which depends on
        the terrain, and the goal (..., g) as in the task's inputs."""
        return torch.cat((true_state(state, self.home)[..., 1:], goal[..., : self.goal_width]), -1)

    def forward(self, features: Tensor, z_before: Tensor) -> Gaussian:
        """features (..., f), z_{t-1} (..., d) -> the latent's distribution."""
        mu, raw = self.net(torch.cat((self.scale(features), z_before), -1)).chunk(2, -1)
        # within a factor e^3 of the AR(1) prior's, as in the policy
        std = self.std * torch.exp(3.0 * torch.tanh(raw / 3.0))
        return Gaussian(self.general.step(z_before, features).mean + mu, std)

    def observe(self, state: RobotState, task: Tensor) -> Tensor:
        """`features`, and the weight w of this prior in its KL, (..., f + 1)."""
        features = self.features(state, task)
        weight = self.share * self.support(features)
        return torch.cat((features, weight.unsqueeze(-1)), -1)

    def step(self, z_before: Tensor, observed: Tensor) -> Gaussian:
        return self(observed[..., :-1], z_before)

    def kl(self, distribution: Gaussian, z_before: Tensor, observed: Tensor) -> Tensor:
        """As `Prior.kl`: w KL(q || this) + (1 - w) KL(q || AR(1))."""
        weight = observed[..., -1]
        latents = self.step(z_before, observed)
        general = self.general.kl(distribution, z_before, observed)
        return weight * distribution.kl(latents) + (1.0 - weight) * general

    def commanded(self, goal: Tensor) -> Tensor:
        """Whether goals (..., g) lie within `near` of the commanded range, (...) bool. Others are
        not fitted, to save the network's capacity."""
        low, high = self.goals.unbind(-1)
        return ((goal > low - self.near) & (goal < high + self.near)).all(-1)

    def set_examples(self, features: Tensor, generator: torch.Generator) -> None:
        """Fit scales to features (N, f) of a demonstration, and sample examples from its goals."""
        self.scale.fit(features, 0.05)
        count = len(features)
        device = self.home.device
        rows = torch.randint(count, (EXAMPLES,), generator=generator, device=device)
        self.examples.copy_(self._goals(features)[rows])

    def _goals(self, features: Tensor) -> Tensor:
        return features[..., features.shape[-1] - self.goal_width :]

    def support(self, features: Tensor) -> Tensor:
        """Support of the goals of features (..., f) by the examples, (...): 1 with `NEIGHBOURS`
        within `NEAR`, falling to 0 at twice that radius."""
        if not self.goal_width:
            return torch.ones_like(features[..., 0])
        goals = self._goals(features).detach().flatten(0, -2)
        # a robot's goal hardly changes over a rollout
        distinct, of_each = goals.unique(dim=0, return_inverse=True)
        far = torch.cdist(distinct / self.near, self.examples / self.near)
        kth = far.kthvalue(NEIGHBOURS, -1).values[of_each].view(features.shape[:-1])
        return (2.0 - kth).clamp(0.0, 1.0)
