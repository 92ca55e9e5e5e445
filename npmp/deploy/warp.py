"""The robot of `simulated.py` moved by mujoco_warp: MuJoCo's equations by other code, in single
precision.

It computes on the CPU. A step of one robot takes it a hundred times as long as MuJoCo, of fifty
about one and a half times as long as that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from mocap_data.errors import InputError
from npmp.deploy.robot import FloatArray
from npmp.deploy.simulated import SimulatedRobot, scene
from npmp.robots import Robot

MOST = 64  # robots that are stepped together [D]


class Worlds:
    """Simulations that are stepped together, one for each robot."""

    def __init__(self, robot: Robot, count: int):
        """Raises InputError where mujoco_warp is absent, or cannot simulate the robot."""
        try:
            from npmp.sim.warp import WarpSim
        except ImportError as error:
            raise InputError(
                f"simulator=warp needs mujoco_warp: pip install 'npmp[warp]' ({error})"
            ) from error
        import torch

        rate = robot.physics_rate_hz
        self.sim = WarpSim(scene(robot), count, control_rate_hz=rate, instead="simulator=mujoco")
        self.gains = self.sim.expand(["actuator_gainprm", "actuator_biasprm"])
        self.count, self.ctrl = count, torch.zeros(count, self.sim.model.nu)

    def place(self, index: int, qpos: FloatArray) -> None:
        """One of them at rest at qpos (nq,)."""
        place = self.ctrl.new_tensor(qpos[None])
        self.sim.set_state(
            self.ctrl.new_tensor([index]).long(), place, place.new_zeros(1, self.sim.model.nv)
        )


class WarpRobot(SimulatedRobot):
    """One robot on flat ground in mujoco_warp. `data` holds where it is and its torques; nothing in
    MuJoCo is stepped."""

    def __init__(
        self,
        robot: Robot,
        *,
        accelerometer: str = "imu",
        crouch: float = 1.0,
        worlds: Worlds | None = None,
        index: int = 0,
    ):
        """As `SimulatedRobot`, but that it stands. worlds: it is the one of this index there.

        Raises:
          InputError: as `Worlds`.
        """
        self.worlds, self.index = worlds or Worlds(robot, 1), index
        super().__init__(robot, accelerometer=accelerometer, crouch=crouch)

    @classmethod
    def several(cls, robot: Robot, count: int, *, accelerometer: str) -> Sequence[Self]:
        """As `SimulatedRobot.several`."""
        worlds = Worlds(robot, min(count, MOST))
        return [
            cls(robot, accelerometer=accelerometer, worlds=worlds, index=k)
            for k in range(worlds.count)
        ]

    def resting(self, crouch: float) -> None:
        """It stands: to lie down takes too long here."""
        self.place(crouch)

    def place(self, crouch: float = 1.0) -> None:
        """As `SimulatedRobot.place`."""
        super().place(crouch)
        self.worlds.place(self.index, self.data.qpos)

    def _gains(self, kp: FloatArray, kd: FloatArray) -> None:
        super()._gains(kp, kd)
        for name, each in self.worlds.gains.items():
            each.numpy()[self.index] = getattr(self.model, name)

    @classmethod
    def _advance_all(cls, robots: Sequence[Self]) -> None:
        worlds = robots[0].worlds
        ctrl = worlds.ctrl.numpy()
        for robot in robots:
            ctrl[robot.index] = robot.setpoint()
        worlds.sim.step(worlds.ctrl)
        qpos, qvel, force = (
            part.numpy() for part in (worlds.sim.qpos, worlds.sim.qvel, worlds.sim.drive_forces())
        )
        for robot in robots:
            data, k = robot.data, robot.index
            data.qpos[:], data.qvel[:], data.actuator_force[:] = qpos[k], qvel[k], force[k, 6:]

    @property
    def broken(self) -> bool:
        """As `SimulatedRobot.broken`: nothing is finite any more."""
        return not np.isfinite(self.data.qpos).all()
