"""The world model: a network predicts the velocities of one control step, which are integrated
exactly."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from npmp.envs.features import true_state
from npmp.envs.feet import Feet
from npmp.envs.ground import ABOUT_FEET
from npmp.envs.state import RobotState, StepVelocity, integrate
from npmp.skills.normalizer import Normalizer

_MAX_HEIGHT_M = 0.3  # heights of feet are clamped to this [D]
_CURRENT_UNITS = 128  # hidden units of the head for the motors' currents [D]


class WorldModel(nn.Module):
    """One control step of the robot: (state, setpoint) -> state.

    Inputs of the MLP are the robot's state without horizontal position and heading, the new
    setpoint relative to the joints, and heights and velocities of the points under the feet.
    Further inputs are the randomized physics parameters (`RobotBatch.physics`), and on rough ground
    the heights around the feet. Outputs: the 6 + nu velocities, mean over the step and at its end,
    minus those at its start, in the root frame at the start. Poses follow by kinematics.
    """

    home: Tensor
    current_scale: Tensor
    imu_cross: Tensor | None

    def __init__(
        self,
        home: Tensor,
        dt: float,
        feet: Feet,
        hidden: tuple[int, ...] = (256, 256, 256),
        physics_size: int = 0,
        imu_cross: Tensor | None = None,
        *,
        rough: bool = False,
        currents: bool = False,
    ):
        """Args:
        home: (nu,) joint angles of the home pose [rad]. dt: control period [s].
        feet: F feet with K points each.
        physics_size: number of physics parameters. imu_cross: (3, 3) `RobotBatch.imu_cross`.
        rough: append the heights `Ground.about_feet` [m] to the physics parameters.
        currents: predict the motors' currents.
        """
        super().__init__()
        nu = len(home)
        num_feet, points = feet.shape
        self.dt = dt
        self.feet = feet
        self.ground_size = len(ABOUT_FEET) * num_feet * rough
        self.register_buffer("home", home.clone())
        self.register_buffer("imu_cross", imu_cross, persistent=False)
        feature_size = 19 + 5 * nu + 4 * num_feet * points
        self.about_size = (len(ABOUT_FEET) - 1) * num_feet * points * rough
        self.inputs = Normalizer(feature_size)
        self.changes = Normalizer(2 * (6 + nu))
        layers: list[nn.Module] = []
        width = feature_size + physics_size + self.about_size
        self.currents: nn.Module | None = None  # RMS over a step, in units of `current_scale`
        self.register_buffer("current_scale", torch.ones(nu), persistent=currents)
        if currents:
            inner = nn.Linear(width, _CURRENT_UNITS)
            last = nn.Linear(_CURRENT_UNITS, nu)
            self.currents = nn.Sequential(inner, nn.ELU(), last)
        for h in hidden:
            layers += [nn.Linear(width, h), nn.ELU()]
            width = h
        head = nn.Linear(width, 2 * (6 + nu))
        nn.init.normal_(head.weight, std=0.1 / width**0.5)
        nn.init.zeros_(head.bias)
        self.net = nn.Sequential(*layers, head)

    def features(
        self, state: RobotState, setpoint: Tensor, ground: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Unscaled inputs: (n, 19 + 5 nu + 4 F K), and the heights around the feet (n, 4 F K) or
        (n, 0). ground: (n, 5 F) [m] or (n, 0).
        """
        heights, velocities = self._foot_motion(state, ground)
        if self.ground_size:  # the height above the ground under the feet
            state = state.above(ground[..., : self.feet.shape[0]].mean(-1))
        motion = (true_state(state, self.home), setpoint - state.joint_pos, _velocity(state))
        features = torch.cat((*motion, heights[..., 0].flatten(1), velocities.flatten(1)), -1)
        return features, heights[..., 1:].flatten(1) / _MAX_HEIGHT_M

    def _foot_motion(self, state: RobotState, ground: Tensor) -> tuple[Tensor, Tensor]:
        """Features of the points under the feet: clamped heights above the ground (n, F, K, 1), on
        rough ground above each of `ABOUT_FEET` (n, F, K, 5) [m]; velocities in the root frame (n,
        F, K, 3) [m/s]."""
        position, velocity = self.feet.moving(state.joint_pos, state.joint_vel_end)
        angular = state.root_ang_end[:, None, None].expand_as(position)
        rotational = torch.linalg.cross(angular, position)
        velocities = velocity + rotational + state.root_vel_end[:, None, None]
        up = (position * state.root_rot[:, None, None, 2]).sum(-1)
        heights = (up + state.root_pos[:, 2, None, None] - self.feet.radius).unsqueeze(-1)
        if self.ground_size:
            surrounding = ground.unflatten(-1, (len(ABOUT_FEET), -1)).transpose(-1, -2)
            heights = heights - surrounding.unsqueeze(-2)
        return heights.clamp(-_MAX_HEIGHT_M, _MAX_HEIGHT_M), velocities

    def velocity(self, state: RobotState, setpoint: Tensor, physics: Tensor) -> StepVelocity:
        """Predicted velocities of the step, in the root frame at its start."""
        out = self.net(self._scaled(state, setpoint, physics))
        start = _velocity(state)
        velocities = out * self.changes.std + self.changes.mean + torch.cat((start, start), -1)
        nu = len(self.home)
        return StepVelocity(*velocities.split((3, 3, nu, 3, 3, nu), -1))

    def _scaled(self, state: RobotState, setpoint: Tensor, physics: Tensor) -> Tensor:
        parameters, ground = self._split_physics(physics)
        features, heights = self.features(state, setpoint, ground)
        return torch.cat((self.inputs(features), parameters, heights), -1)

    def current_rms(self, state: RobotState, setpoint: Tensor, physics: Tensor) -> Tensor:
        """RMS currents of the motors over the step, (n, nu), in units of `current_scale` [A].
        Arguments as of `forward`."""
        assert self.currents is not None
        # the signed current, like the torque, is easier to fit
        rms: Tensor = self.currents(self._scaled(state, setpoint, physics))
        return rms.abs()

    def forward(
        self, state: RobotState, setpoint: Tensor, physics: Tensor | None = None
    ) -> RobotState:
        """The next state; setpoint: (n, nu) joint targets [rad]; physics: (n, physics_size), on
        rough ground with heights, (n, physics_size + 5 F); None: (n, 0)."""
        if physics is None:
            physics = setpoint[..., :0]
        return integrate(
            state, self.velocity(state, setpoint, physics), setpoint, self.dt, self.imu_cross
        )

    def advance(self, state: Tensor, setpoint: Tensor, physics: Tensor) -> Tensor:
        """`forward` on packed states (n, 27 + 4 nu), `RobotState.pack`."""
        return self(RobotState.unpack(state), setpoint, physics).pack()

    @torch.no_grad()
    def fit_scales(
        self, state: RobotState, setpoint: Tensor, physics: Tensor, velocity: StepVelocity
    ) -> None:
        """Set the input and output scales from transitions (n, ...)."""
        self.inputs.fit(self.features(state, setpoint, self._split_physics(physics)[1])[0], 0.02)
        start = _velocity(state)
        self.changes.fit(torch.cat(velocity, -1) - torch.cat((start, start), -1), 0.02)

    def load_pretrained(self, weights: Mapping[str, Tensor]) -> bool:
        """Load another model's weights and scales, except for currents. New inputs (ground heights,
        other physics parameters) start with zero weights. Returns False, with no change, if the
        sizes do not fit."""
        key = "net.0.weight"
        num_inputs = len(self.inputs.mean)
        own, weights = (
            {name: tensor for name, tensor in part.items() if not name.startswith("current")}
            for part in (self.state_dict(), weights)
        )
        shapes = {name: tensor.shape for name, tensor in weights.items()}
        first = weights.get(key, own[key][:, :0])
        if first.dim() != 2 or first.shape[1] < num_inputs:
            return False
        width = own[key].shape[1]
        if first.shape[1] != width:
            without_ground = width - self.about_size
            same_physics = first.shape[1] == without_ground
            shared = first[:, : without_ground if same_physics else num_inputs]
            first = torch.cat((shared, first.new_zeros(len(first), width - shared.shape[1])), -1)
        if shapes | {key: first.shape} != {name: tensor.shape for name, tensor in own.items()}:
            return False
        self.load_state_dict({**weights, key: first}, strict=False)
        return True

    def _split_physics(self, physics: Tensor) -> tuple[Tensor, Tensor]:
        """Physics parameters, and heights of the ground."""
        num_parameters = physics.shape[-1] - self.ground_size
        return physics[..., :num_parameters], physics[..., num_parameters:]


def _velocity(state: RobotState) -> Tensor:
    """Velocities at the end of the step, (..., 6 + nu)."""
    return torch.cat((state.root_vel_end, state.root_ang_end, state.joint_vel_end), -1)
