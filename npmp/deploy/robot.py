"""The interface between controller and robot: read the newest state, write targets, stop.

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
    """Sensor readings. Joints in the order of the bundle; root frame: X forward, Y left, Z up."""

    # measurement time of the oldest reading, on the controller's clock (time.monotonic)
    time_s: float
    # (nu,) [rad]
    joint_pos: FloatArray
    # (nu,) [rad/s]
    joint_vel: FloatArray
    # (nu,) [Nm]
    joint_torque: FloatArray
    # (3,) angular velocity in the root frame, mean over the last control period [rad/s]
    gyro: FloatArray
    # (3,) specific force in the root frame, mean over the last control period [m/s2]
    accelerometer: FloatArray
    # (3,) the world's vertical in the root frame
    up: FloatArray
    # (nu,) temperatures of the motors [degrees Celsius]; None if not measured
    temperature: FloatArray | None = None


class TerrainReading(NamedTuple):
    """A reading of a height map or a depth camera, as measured: NaN where there is no reading."""

    # measurement time, on the controller's clock (time.monotonic)
    time_s: float
    # (t,) [m] in the order of the bundle's extra inputs
    values: FloatArray


class RobotStopped(Exception):
    """The robot has stopped by itself and accepts no more targets; the message is the reason."""


class RobotInterface(Protocol):
    """A real or simulated robot. No method may block.

    It may also have the methods `read_heights` and `read_depths`, which return the newest
    `TerrainReading` of a height map and of a depth camera, None for no new one. Without them a
    policy observes level ground.

    Its class may also have a static method `damper(contract)`, which a second process calls
    (`npmp.deploy.deadman`): it opens another connection to the robot, sends nothing, and returns a
    function that damps the robot, which is called repeatedly.
    """

    def read(self) -> State | None:
        """The newest state, None if no state has arrived since the last call.

        Raises:
          RobotStopped: if the robot's own protection has stopped it.
        """

    def write(self, target: FloatArray, kp: FloatArray, kd: FloatArray, duration_s: float) -> None:
        """Drive the joints: torque = kp (target - angle) - kd velocity.

        target (nu,) [rad]; kp (nu,) [Nm/rad]; kd (nu,) [Nm s/rad]. The drives interpolate linearly
        from the last target to this one within duration_s [s]; 0: a step. Each target is written
        several times in a control period.
        """

    def stop(self) -> None:
        """Damp: kp 0, kd only. The robot accepts no targets after it."""


def driver_class(robot: str) -> type[Any]:
    """The class named by FILE.py:CLASS or package.module:CLASS: a `RobotInterface` whose only
    argument is the bundle's contract.

    Raises:
      InputError: if the class does not exist or does not fit, or its module cannot be imported.
    """
    source, _, name = robot.rpartition(":")
    if not source or not name.isidentifier():
        raise InputError(f"robot={robot}: expected sim, FILE.py:CLASS or package.module:CLASS")
    try:
        driver = getattr(_module(source), name)
    except Exception as error:  # whatever a user's file raises
        raise InputError(f"robot={robot}: {type(error).__name__}: {error}") from error
    methods = ("read", "write", "stop")
    if not isinstance(driver, type) or not all(callable(getattr(driver, m, None)) for m in methods):
        raise InputError(f"robot={robot}: expected a class with the methods {', '.join(methods)}")
    try:
        inspect.signature(driver).bind("contract")
    except TypeError as error:
        raise InputError(
            f"robot={robot}: expected a constructor that takes only the bundle's contract: {error}"
        ) from error
    return driver


def _module(source: str) -> ModuleType:
    if not source.endswith(".py"):
        return importlib.import_module(source)
    if not Path(source).is_file():
        raise FileNotFoundError(f"no file {source}")
    spec = importlib.util.spec_from_file_location(f"npmp_robot_{Path(source).stem}", source)
    assert spec is not None and spec.loader is not None  # the module of a .py file
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look modules up there
    spec.loader.exec_module(module)
    return module
