"""The learned simulator: what the velocities become in one control step; poses follow by exact integration."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from npmp.envs.features import Normalizer, true_state
from npmp.envs.state import RobotState, StepVelocity, integrate


class WorldModel(nn.Module):
    """One control step of the robot: (state, setpoint) -> state.

    An MLP sees the robot's state without horizontal position and heading, and the new setpoint relative to the joints;
    it predicts the 6 + nu velocities, their means over the step and what they are at its end, as differences from what
    they are at its start, all in the root frame there. The rest is kinematics. Where physics is randomized it is told
    what was drawn, `RobotBatch.physics`.
    """

    home: Tensor
    lever: Tensor | None

    def __init__(
        self,
        home: Tensor,
        dt: float,
        hidden: tuple[int, ...] = (256, 256, 256),
        physics_size: int = 0,
        lever: Tensor | None = None,
    ):
        """Args:
        home: (nu,) joint angles of the home pose [rad]. dt: control period [s].
        physics_size: width of the drawn physics. lever: (3, 3) `RobotBatch.lever`.
        """
        super().__init__()
        nu = len(home)
        self.dt = dt
        self.register_buffer("home", home.clone())
        self.register_buffer("lever", lever, persistent=False)
        self.inputs = Normalizer(19 + 5 * nu)
        self.changes = Normalizer(2 * (6 + nu))
        layers: list[nn.Module] = []
        width = 19 + 5 * nu + physics_size
        for h in hidden:
            layers += [nn.Linear(width, h), nn.ELU()]
            width = h
        head = nn.Linear(width, 2 * (6 + nu))
        nn.init.normal_(head.weight, std=0.1 / width**0.5)
        nn.init.zeros_(head.bias)
        self.net = nn.Sequential(*layers, head)

    def features(self, state: RobotState, setpoint: Tensor) -> Tensor:
        """The network's input before scaling, but for the physics: (n, 19 + 5 nu)."""
        return torch.cat((true_state(state, self.home), setpoint - state.joint_pos, _velocity(state)), -1)

    def velocity(self, state: RobotState, setpoint: Tensor, physics: Tensor) -> StepVelocity:
        """Predicted velocities of the step, in the root frame at its start."""
        out = self.net(torch.cat((self.inputs(self.features(state, setpoint)), physics), -1))
        now = _velocity(state)
        found = out * self.changes.std + self.changes.mean + torch.cat((now, now), -1)
        nu = len(self.home)
        return StepVelocity(*found.split((3, 3, nu, 3, 3, nu), -1))

    def forward(self, state: RobotState, setpoint: Tensor, physics: Tensor | None = None) -> RobotState:
        """The predicted next state; setpoint (n, nu) absolute joint targets [rad]; physics (n, physics_size), None if 0
        wide."""
        if physics is None:
            physics = setpoint[..., :0]
        return integrate(state, self.velocity(state, setpoint, physics), setpoint, self.dt, self.lever)

    def advance(self, state: Tensor, setpoint: Tensor, physics: Tensor) -> Tensor:
        """`forward` as a function of nothing but tensors: the states (n, 27 + 4 nu) are `RobotState.pack`'s."""
        return self(RobotState.unpack(state), setpoint, physics).pack()

    @torch.no_grad()
    def fit_scales(self, state: RobotState, setpoint: Tensor, velocity: StepVelocity) -> None:
        """Take the input and output scales from transitions (n, ...)."""
        self.inputs.fit(self.features(state, setpoint), 0.02)
        now = _velocity(state)
        self.changes.fit(torch.cat(velocity, -1) - torch.cat((now, now), -1), 0.02)


def _velocity(state: RobotState) -> Tensor:
    """What the next step sets out from, (..., 6 + nu)."""
    return torch.cat((state.root_vel_end, state.root_ang_end, state.joint_vel_end), -1)
