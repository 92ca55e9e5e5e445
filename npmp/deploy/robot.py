"""What a robot must be able to do for the controller: give its newest state, take targets, stop.

docs/controller.md shows how to write a driver for a real robot.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mocap_data.errors import InputError

FloatArray = NDArray[np.float64]


class State(NamedTuple):
    """What a robot measures. Joints in the order of the bundle; root frame: X forward, Y left, Z
    up."""

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
    """A robot, real or simulated. No method may wait.

    Its class may also have a static method `damper(contract)`, which a second process calls
    (`npmp.deploy.deadman`): it opens another line to the robot, sends nothing, and returns what
    damps, which is called again and again.
    """

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


def driver_class(place: str) -> type[Any]:
    """The class that FILE.py:CLASS or package.module:CLASS names: a `RobotInterface` that is made
    from the bundle's contract alone.

    Raises:
      InputError: where there is none, or its module cannot be run.
    """
    where, _, name = place.rpartition(":")
    if not where or not name.isidentifier():
        raise InputError(f"robot={place}: sim, FILE.py:CLASS or package.module:CLASS is expected")
    try:
        driver = getattr(_module(where), name)
    except Exception as error:  # whatever a user's file raises
        raise InputError(f"robot={place}: {type(error).__name__}: {error}") from error
    methods = ("read", "write", "stop")
    if not isinstance(driver, type) or not all(callable(getattr(driver, m, None)) for m in methods):
        raise InputError(f"robot={place} is no class with the methods {', '.join(methods)}")
    try:
        inspect.signature(driver).bind("contract")
    except TypeError as error:
        raise InputError(
            f"robot={place} must be made from the bundle's contract alone: {error}"
        ) from error
    return driver


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    if not Path(where).is_file():
        raise FileNotFoundError(f"no file {where}")
    spec = importlib.util.spec_from_file_location(f"npmp_robot_{Path(where).stem}", where)
    assert spec is not None and spec.loader is not None  # of a file that ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module
