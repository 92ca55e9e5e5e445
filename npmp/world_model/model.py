"""The learned simulator: what the velocities become in one control step; poses follow by exact integration."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from npmp.envs.features import Normalizer, true_state
from npmp.envs.state import RobotState, StepVelocity, integrate


class WorldModel(nn.Module):
    """One control step of the robot: (state, setpoint) -> state.

    An MLP sees the robot's state without horizontal position and heading, and the new setpoint relative to the joints;
    it predicts the change of the 6 + nu velocities, seen from the root frame at the start of the step. The rest is
    kinematics. Where physics is randomized it is told what was drawn, `Plant.physics`.
    """

    home: Tensor

    def __init__(self, home: Tensor, dt: float, hidden: tuple[int, ...] = (256, 256, 256), physics_size: int = 0):
        """home (nu,) joint angles of the home pose [rad]; dt control period [s]; physics_size width of the drawn
        physics."""
        super().__init__()
        nu = len(home)
        self.dt = dt
        self.register_buffer("home", home.clone())
        self.inputs = Normalizer(13 + 4 * nu)
        self.changes = Normalizer(6 + nu)
        layers: list[nn.Module] = []
        width = 13 + 4 * nu + physics_size
        for h in hidden:
            layers += [nn.Linear(width, h), nn.ELU()]
            width = h
        head = nn.Linear(width, 6 + nu)
        nn.init.normal_(head.weight, std=0.1 / width**0.5)
        nn.init.zeros_(head.bias)
        self.net = nn.Sequential(*layers, head)

    def features(self, state: RobotState, setpoint: Tensor) -> Tensor:
        """The network's input before scaling, but for the physics: (n, 13 + 4 nu)."""
        return torch.cat((true_state(state, self.home), setpoint - state.joint_pos), -1)

    def velocity(self, state: RobotState, setpoint: Tensor, physics: Tensor) -> StepVelocity:
        """Predicted mean velocities over the step, in the root frame at its start."""
        out = self.net(torch.cat((self.inputs(self.features(state, setpoint)), physics), -1))
        change = out * self.changes.std + self.changes.mean
        return StepVelocity(
            state.root_vel + change[..., :3],
            state.root_ang + change[..., 3:6],
            state.joint_vel + change[..., 6:],
        )

    def forward(self, state: RobotState, setpoint: Tensor, physics: Tensor | None = None) -> RobotState:
        """The predicted next state; setpoint (n, nu) absolute joint targets [rad]; physics (n, physics_size), None if 0
        wide."""
        if physics is None:
            physics = setpoint[..., :0]
        return integrate(state, self.velocity(state, setpoint, physics), setpoint, self.dt)

    def advance(self, state: Tensor, setpoint: Tensor, physics: Tensor) -> Tensor:
        """`forward` as a function of nothing but tensors: the states (n, 21 + 3 nu) are `RobotState.pack`'s."""
        return self(RobotState.unpack(state), setpoint, physics).pack()

    @torch.no_grad()
    def fit_scales(self, state: RobotState, setpoint: Tensor, velocity: StepVelocity) -> None:
        """Take the input and output scales from transitions (n, ...)."""
        self.inputs.fit(self.features(state, setpoint), 0.02)
        change = torch.cat(
            (
                velocity.root_vel - state.root_vel,
                velocity.root_ang - state.root_ang,
                velocity.joint_vel - state.joint_vel,
            ),
            -1,
        )
        self.changes.fit(change, 0.02)
