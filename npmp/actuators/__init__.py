"""Models of real actuators, learned from logs: torques from commands, angles and velocities."""

from npmp.actuators.actuator_log import ActuatorLog, HeldOut, Trace, read_log, write_log
from npmp.actuators.models import ActuatorModel, load

__all__ = ["ActuatorLog", "ActuatorModel", "HeldOut", "Trace", "load", "read_log", "write_log"]
