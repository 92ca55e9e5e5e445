"""A stand's log as that of a robot: its joints in order, its units and signs plausible."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mocap_data.errors import InputError
from npmp.actuators.actuator_log import SLOWEST, JointRecording, StandLog
from npmp.robots import Robot

# commands may leave the joints' ranges by so much [rad]
_BEYOND = 0.5
# a joint that moves less is not identified [rad]: ten counts of a 12-bit encoder
_LEAST_MOTION = 0.015


def of_robot(log: StandLog, robot: Robot) -> StandLog:
    """The log with the robot's joints in its order.

    Raises:
      InputError: for a rate below `SLOWEST` (ms?), other joints, angles far outside the joints'
        ranges (degrees?), joints that hardly move, and positions that go against their commands
        (signs?).
    """
    if log.rate_hz < SLOWEST:
        raise InputError(
            f"the log's rate is {log.rate_hz:g} Hz, at least {SLOWEST:g} expected; is its time in "
            "ms?"
        )
    absent = [name for name in robot.joint_names if name not in log.joints]
    unknown = [name for name in log.joints if name not in robot.joint_names]
    if absent or unknown or len(log.joints) != len(robot.joint_names):
        raise InputError(
            f"the log's joints are not those of '{robot.name}'; absent: "
            f"{', '.join(absent) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
        )
    order = [log.joints.index(name) for name in robot.joint_names]

    def ordered(recording: JointRecording) -> JointRecording:
        kept = ("command", "position", "velocity", "torque")
        parts = {key: getattr(recording, key) for key in kept}
        return replace(recording, **{k: v[:, order] for k, v in parts.items() if v is not None})

    log = StandLog(log.rate_hz, robot.joint_names, tuple(map(ordered, log.recordings)))
    commands = np.concatenate([recording.command for recording in log.recordings]).T
    positions = np.concatenate([recording.position for recording in log.recordings]).T
    limits = zip(robot.joint_names, robot.joint_lower, robot.joint_upper, strict=True)
    for (name, lower, upper), command, position in zip(limits, commands, positions, strict=True):
        for what, angle in (("command", command), ("position", position)):
            low, high = float(angle.min()), float(angle.max())
            if low < lower - _BEYOND or high > upper + _BEYOND:
                raise InputError(
                    f"{name}: {what} goes from {low:.3g} to {high:.3g} rad, the joint's range is "
                    f"{lower:.3g} to {upper:.3g}; is the log in degrees, or its zero another?"
                )
            if high - low < _LEAST_MOTION:
                raise InputError(
                    f"{name}: {what} moves by {high - low:.2g} rad, at least {_LEAST_MOTION} are "
                    "needed; npmp sysid excite makes such commands"
                )
        together = float(np.corrcoef(command, position)[0, 1])
        if together < 0.0:
            raise InputError(
                f"{name}: position goes against command (correlation {together:.2f}); has one of "
                "them the other sign, or is the column another joint's?"
            )
    return log
