"""What a robot must be able to do for the controller: give its newest state, take targets, and
stop.

docs/controller.md shows how to write one for a real robot.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class State(NamedTuple):
    """What a robot measures. Joints in the order of the bundle's `joint_names`; root frame: X
    forward, Y left, Z up."""

    # when the oldest of it was measured, on the clock of the controller (time.monotonic)
    time_s: float
    joint_pos: FloatArray  # (nu,) [rad]
    joint_vel: FloatArray  # (nu,) [rad/s]
    joint_torque: FloatArray  # (nu,) [Nm]
    # (3,) angular velocity in the root frame, mean over the last control period [rad/s]
    gyro: FloatArray
    # (3,) specific force in the root frame, mean over the last control period [m/s2]
    accelerometer: FloatArray
    up: FloatArray  # (3,) the world's vertical in the root frame
    # (nu,) of the motors [degrees Celsius]; None where it is not measured
    temperature: FloatArray | None = None


class RobotStopped(Exception):
    """The robot has stopped by itself and takes no more targets. The message says why."""


class RobotInterface(Protocol):
    """A robot, real or simulated. No method may wait."""

    def read(self) -> State | None:
        """The newest state, None where none has come since the last call.

        Raises:
          RobotStopped: when the robot's own protection has stopped it.
        """

    def write(self, target: FloatArray, kp: FloatArray, kd: FloatArray, duration_s: float) -> None:
        """Drive the joints: torque = kp (target - angle) - kd velocity.

        target (nu,) [rad]; kp (nu,) [Nm/rad]; kd (nu,) [Nm s/rad]. The drives go linearly from the
        last target to this one within duration_s [s]; 0: at once. The same target comes several
        times in a control period.
        """

    def stop(self) -> None:
        """Damp: no stiffness, kd alone. The robot takes no targets after it."""
