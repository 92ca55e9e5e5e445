"""Models of real actuators, learned from logs: how a joint's torque follows from commands, angles and velocities."""

from npmp.actuators.log import ActuatorLog, HeldOut, Trace, read_log, write_log

__all__ = ["ActuatorLog", "HeldOut", "Trace", "read_log", "write_log"]
