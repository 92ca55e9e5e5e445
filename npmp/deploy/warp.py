"""The robot of `simulated.py` moved by mujoco_warp: MuJoCo's equations by other code, in single precision.

It computes on the CPU, one simulation, which takes it tens of times as long as MuJoCo.
"""

from __future__ import annotations

import numpy as np

from mocap_data.errors import InputError
from npmp.deploy.robot import FloatArray
from npmp.deploy.simulated import SimulatedRobot
from npmp.robots import Robot


class WarpRobot(SimulatedRobot):
    """One robot on flat ground in mujoco_warp. `data` holds where it is and its torques; nothing in MuJoCo is
    stepped."""

    def __init__(self, robot: Robot, *, accelerometer: str = "imu", crouch: float = 1.0):
        """As `SimulatedRobot`.

        Raises:
          InputError: where mujoco_warp is absent, or cannot simulate the robot.
        """
        try:
            import mujoco_warp
            import warp
        except ImportError as error:
            raise InputError(f"simulator=warp needs mujoco_warp: pip install 'npmp[warp]' ({error})") from error
        warp.config.log_level = warp.LOG_WARNING
        self._warp, self._mjw = warp, mujoco_warp
        super().__init__(robot, accelerometer=accelerometer, crouch=crouch)

    def place(self, crouch: float = 1.0) -> None:
        """As `SimulatedRobot.place`."""
        super().place(crouch)
        with self._warp.ScopedDevice("cpu"):
            try:
                self._model = self._mjw.put_model(self.model)
            except NotImplementedError as error:
                raise InputError(f"mujoco_warp cannot simulate this robot: {error}") from error
            self._state = self._mjw.put_data(self.model, self.data)

    def _gains(self, kp: FloatArray, kd: FloatArray) -> None:
        super()._gains(kp, kd)
        if hasattr(self, "_model"):  # the first ones are set before there is one
            for name in ("actuator_gainprm", "actuator_biasprm"):
                getattr(self._model, name).assign(getattr(self.model, name)[None])

    def _advance(self, setpoint: FloatArray) -> None:
        state, data = self._state, self.data
        with self._warp.ScopedDevice("cpu"):
            state.ctrl.assign(setpoint[None])
            self._mjw.step(self._model, state)
        for name in ("qpos", "qvel", "actuator_force"):
            getattr(data, name)[:] = getattr(state, name).numpy()[0]

    @property
    def broken(self) -> bool:
        """As `SimulatedRobot.broken`: nothing is finite any more."""
        return not np.isfinite(self.data.qpos).all()
