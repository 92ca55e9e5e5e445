"""The learned simulator: what the velocities become in one control step; poses follow by exact
integration."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from npmp.envs.features import true_state
from npmp.envs.feet import Feet
from npmp.envs.ground import ABOUT_FEET
from npmp.envs.state import RobotState, StepVelocity, integrate
from npmp.skills.normalizer import Normalizer

_NEAR_M = 0.3  # a foot higher than this above the ground is as good as this high [m] [D]
_CURRENT_UNITS = 128  # of the layer that tells the motors' currents [D]


class WorldModel(nn.Module):
    """One control step of the robot: (state, setpoint) -> state.

    An MLP sees the robot's state without horizontal position and heading, the new setpoint relative
    to the joints, and how high above the ground and how fast the points under its feet are, which
    decide what touches and what slips; it predicts the 6 + nu velocities, their means over the step
    and what they are at its end, as differences from what they are at its start, all in the root
    frame there. The rest is kinematics. It is told what was drawn of the physics,
    `RobotBatch.physics`, and on rough ground how high each foot is above that under and about it.
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
        feet: of the robot, F with K points each.
        physics_size: width of the drawn physics. imu_cross: (3, 3) `RobotBatch.imu_cross`.
        rough: it is told the ground's heights, `Ground.about_feet` [m], after the drawn physics.
        currents: it tells the motors' currents.
        """
        super().__init__()
        nu = len(home)
        count, points = feet.shape
        self.dt = dt
        self.feet = feet
        self.ground_size = len(ABOUT_FEET) * count * rough
        self.register_buffer("home", home.clone())
        self.register_buffer("imu_cross", imu_cross, persistent=False)
        feature_size = 19 + 5 * nu + 4 * count * points
        self.about_size = (len(ABOUT_FEET) - 1) * count * points * rough
        self.inputs = Normalizer(feature_size)
        self.changes = Normalizer(2 * (6 + nu))
        layers: list[nn.Module] = []
        width = feature_size + physics_size + self.about_size
        self.currents: nn.Module | None = None  # RMS over a step, in `current_scale`
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
        """What the network sees before scaling, but for the drawn physics, (n, 19 + 5 nu + 4 F K),
        and of the ground about the feet (n, 4 F K) or (n, 0). ground (n, 5 F) or (n, 0), as told.
        """
        heights, speeds = self._steps(state, ground)
        if self.ground_size:  # how high the robot stands, wherever it has climbed to
            state = state.above(ground[..., : self.feet.shape[0]].mean(-1))
        motion = (true_state(state, self.home), setpoint - state.joint_pos, _velocity(state))
        features = torch.cat((*motion, heights[..., 0].flatten(1), speeds.flatten(1)), -1)
        return features, heights[..., 1:].flatten(1) / _NEAR_M

    def _steps(self, state: RobotState, ground: Tensor) -> tuple[Tensor, Tensor]:
        """Of the points under the feet the heights above the ground (n, F, K, 1), where that is
        told at `ABOUT_FEET` (n, F, K, 5) [m], as far as contact is near, and the velocities in the
        root frame (n, F, K, 3) [m/s]."""
        place, moved = self.feet.moving(state.joint_pos, state.joint_vel_end)
        turn = torch.linalg.cross(state.root_ang_end[:, None, None].expand_as(place), place)
        speeds = moved + turn + state.root_vel_end[:, None, None]
        lifted = (place * state.root_rot[:, None, None, 2]).sum(-1)
        heights = (lifted + state.root_pos[:, 2, None, None] - self.feet.radius).unsqueeze(-1)
        if self.ground_size:
            about = ground.unflatten(-1, (len(ABOUT_FEET), -1)).transpose(-1, -2)
            heights = heights - about.unsqueeze(-2)
        return heights.clamp(-_NEAR_M, _NEAR_M), speeds

    def velocity(self, state: RobotState, setpoint: Tensor, physics: Tensor) -> StepVelocity:
        """Predicted velocities of the step, in the root frame at its start."""
        out = self.net(self._scaled(state, setpoint, physics))
        now = _velocity(state)
        velocities = out * self.changes.std + self.changes.mean + torch.cat((now, now), -1)
        nu = len(self.home)
        return StepVelocity(*velocities.split((3, 3, nu, 3, 3, nu), -1))

    def _scaled(self, state: RobotState, setpoint: Tensor, physics: Tensor) -> Tensor:
        drawn, ground = self._told(physics)
        seen, about = self.features(state, setpoint, ground)
        return torch.cat((self.inputs(seen), drawn, about), -1)

    def current_rms(self, state: RobotState, setpoint: Tensor, physics: Tensor) -> Tensor:
        """The motors' RMS currents over the step, (n, nu), in `current_scale` [A]; arguments as
        `forward`."""
        assert self.currents is not None  # enabled in the constructor
        # a current has the sign of its torque, which is the simpler function
        rms: Tensor = self.currents(self._scaled(state, setpoint, physics))
        return rms.abs()

    def forward(
        self, state: RobotState, setpoint: Tensor, physics: Tensor | None = None
    ) -> RobotState:
        """The predicted next state; setpoint (n, nu) absolute joint targets [rad]; physics (n,
        physics_size), with the ground's heights where these are told; None if 0 wide."""
        if physics is None:
            physics = setpoint[..., :0]
        return integrate(
            state, self.velocity(state, setpoint, physics), setpoint, self.dt, self.imu_cross
        )

    def advance(self, state: Tensor, setpoint: Tensor, physics: Tensor) -> Tensor:
        """`forward` as a function of nothing but tensors: the states (n, 27 + 4 nu) are
        `RobotState.pack`'s."""
        return self(RobotState.unpack(state), setpoint, physics).pack()

    @torch.no_grad()
    def fit_scales(
        self, state: RobotState, setpoint: Tensor, physics: Tensor, velocity: StepVelocity
    ) -> None:
        """Take the input and output scales from transitions (n, ...)."""
        self.inputs.fit(self.features(state, setpoint, self._told(physics)[1])[0], 0.02)
        now = _velocity(state)
        self.changes.fit(torch.cat(velocity, -1) - torch.cat((now, now), -1), 0.02)

    def take_over(self, learned: Mapping[str, Tensor]) -> bool:
        """Go on from another's weights and scales, with nothing learned of the ground about the
        feet where that was flat, of the physics where that was told other, and of currents. Returns
        False, and changes nothing, for one of other sizes."""
        own = self.state_dict()
        key = "net.0.weight"
        num_inputs = len(self.inputs.mean)
        own, learned = (
            {name: tensor for name, tensor in part.items() if not name.startswith("current")}
            for part in (own, learned)
        )
        sizes = {name: tensor.shape for name, tensor in learned.items()}
        first = learned.get(key, own[key][:, :0])
        if first.dim() != 2 or first.shape[1] < num_inputs:
            return False
        width = own[key].shape[1]
        if first.shape[1] != width:
            common = width - self.about_size
            kept = first[:, : common if first.shape[1] == common else num_inputs]
            first = torch.cat((kept, first.new_zeros(len(first), width - kept.shape[1])), -1)
        if sizes | {key: first.shape} != {name: tensor.shape for name, tensor in own.items()}:
            return False
        self.load_state_dict({**learned, key: first}, strict=False)
        return True

    def _told(self, physics: Tensor) -> tuple[Tensor, Tensor]:
        """What was drawn, and the ground's heights."""
        drawn = physics.shape[-1] - self.ground_size
        return physics[..., :drawn], physics[..., drawn:]


def _velocity(state: RobotState) -> Tensor:
    """What the next step sets out from, (..., 6 + nu)."""
    return torch.cat((state.root_vel_end, state.root_ang_end, state.joint_vel_end), -1)
