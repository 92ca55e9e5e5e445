"""What an action asks of a robot's drives: joint angles (PD), velocities, torques or muscles.

Peng & van de Panne 2017 compare these four; everywhere else an action is a joint angle. All are
scaled alike: an action in radians asks a joint at rest in the home pose for the torque that PD
control by the robot's gains gives.
"""

from __future__ import annotations

import mujoco
import torch
from torch import Tensor

from npmp.robots import Robot

PD = "pd"
ACTION_SPACES = (PD, "velocity", "torque", "muscle")
# an action of 1 rad asks for the velocity that gets there in this time
_LAG_S = 0.1
# excitation of both muscles of a joint at rest
_TONE = 0.05


class ActionSpace:
    """One of `ACTION_SPACES` for a robot: its drives, and the controls that these take for an
    action."""

    def __init__(self, name: str, robot: Robot, device: torch.device):
        """Raises: ValueError for another name."""
        if name not in ACTION_SPACES:
            raise ValueError(f"no action space '{name}'; there are: {', '.join(ACTION_SPACES)}")
        self.name, self._robot = name, robot
        self._home, stiffness, limit = (
            torch.tensor(values, dtype=torch.float32, device=device)
            for values in (robot.home_joints, robot.kp, robot.torque_limit)
        )
        one = torch.ones_like(stiffness)
        scales = {
            PD: one,
            "velocity": one / _LAG_S,
            "torque": stiffness,
            "muscle": stiffness / limit,
        }
        self._scale = scales[name]

    def put_drives(self, spec: mujoco.MjSpec) -> None:
        """Replace the position drives of the robot in a scene; joints keep their names, order and
        torque limits."""
        if self.name == PD:
            return
        r = self._robot
        for name, kp, limit, *ends in zip(
            r.joint_names, r.kp, r.torque_limit, r.joint_lower, r.joint_upper, strict=True
        ):
            drive = spec.actuator(name)
            if self.name == "muscle":
                spec.delete(drive)
                # muscles pull: a force below zero
                for side, gear in (("flexor", -1.0), ("extensor", 1.0)):
                    muscle = spec.add_actuator(name=f"{name}_{side}", target=name)
                    muscle.trntype = mujoco.mjtTrn.mjTRN_JOINT
                    muscle.gear = [gear, 0, 0, 0, 0, 0]
                    muscle.lengthrange = sorted(gear * end for end in ends)
                    muscle.set_to_muscle(tausmooth=0.0, force=float(limit))
            elif self.name == "velocity":
                drive.set_to_velocity(kv=kp * _LAG_S)
            else:
                drive.set_to_motor()

    def controls(self, setpoint: Tensor) -> Tensor:
        """Setpoints (n, J), home + action [rad], as the drives' controls: (n, J), of muscles (n, 2
        J)."""
        if self.name == PD:
            return setpoint
        asked = (setpoint - self._home) * self._scale
        if self.name != "muscle":
            return asked
        both = torch.stack((_TONE + asked, _TONE - asked), -1)  # flexor, extensor, joint by joint
        return both.clamp(0.0, 1.0).flatten(-2)
