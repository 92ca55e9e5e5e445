"""The learned simulator: what the velocities become in one control step; poses follow by exact integration."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp.envs.features import Normalizer, true_state
from npmp.envs.state import RobotState, StepVelocity, integrate

FILE = "world_model.safetensors"


class WorldModel(nn.Module):
    """One control step of the robot: (state, setpoint) -> state.

    An MLP sees the robot's state without horizontal position and heading, and the new setpoint relative to the joints; it
    predicts the change of the 6 + nu velocities, seen from the root frame at the start of the step. The rest is kinematics.
    """

    home: Tensor

    def __init__(self, home: Tensor, dt: float, hidden: tuple[int, ...] = (256, 256, 256)):
        """home (nu,) joint angles of the home pose [rad]; dt control period [s]."""
        super().__init__()
        nu = len(home)
        self.dt, self.hidden = dt, tuple(hidden)
        self.register_buffer("home", home.clone())
        self.inputs = Normalizer(13 + 4 * nu)
        self.changes = Normalizer(6 + nu)
        layers: list[nn.Module] = []
        width = 13 + 4 * nu
        for h in hidden:
            layers += [nn.Linear(width, h), nn.ELU()]
            width = h
        head = nn.Linear(width, 6 + nu)
        nn.init.normal_(head.weight, std=0.1 / width**0.5)
        nn.init.zeros_(head.bias)
        self.net = nn.Sequential(*layers, head)

    def features(self, state: RobotState, setpoint: Tensor) -> Tensor:
        """The network's input before scaling: (n, 13 + 4 nu)."""
        return torch.cat((true_state(state, self.home), setpoint - state.joint_pos), -1)

    def velocity(self, state: RobotState, setpoint: Tensor) -> StepVelocity:
        """Predicted mean velocities over the step, in the root frame at its start."""
        out = self.net(self.inputs(self.features(state, setpoint)))
        change = out * self.changes.std + self.changes.mean
        return StepVelocity(
            state.root_vel + change[..., :3],
            state.root_ang + change[..., 3:6],
            state.joint_vel + change[..., 6:],
        )

    def forward(self, state: RobotState, setpoint: Tensor) -> RobotState:
        """The predicted next state; setpoint (n, nu) absolute joint targets [rad]."""
        return integrate(state, self.velocity(state, setpoint), setpoint, self.dt)

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

    def save(self, folder: Path) -> None:
        """Write `world_model.safetensors` into a folder: a start for what is learned in the same simulator later."""
        tensors = {k: v.detach().contiguous().cpu() for k, v in self.state_dict().items()}
        with atomic_path(folder / FILE) as path:
            save_file(tensors, str(path), metadata={"hidden": json.dumps(self.hidden)})

    @staticmethod
    def load(folder: Path, dt: float) -> WorldModel | None:
        """The world model in a folder, or None where there is none. dt: control period [s].

        Raises: InputError when the file is damaged.
        """
        path = folder / FILE
        if not path.is_file():
            return None
        try:
            with safe_open(str(path), "pt") as file:
                hidden = tuple(json.loads(file.metadata()["hidden"]))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            model = WorldModel(tensors["home"], dt, hidden)
            model.load_state_dict(tensors)
        except (SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"'{path}' is no world model: {str(error).splitlines()[0]}") from error
        return model
