"""A stand's log checked against its robot: joints in order, plausible units and signs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mocap_data.errors import InputError
from npmp.actuators.actuator_log import MIN_RATE_HZ, JointRecording, StandLog
from npmp.robots import Robot

# angle by which readings may leave the joints' ranges [rad]
_MARGIN = 0.5
# [rad] range of a joint's motion, at least: ten counts of a 12-bit encoder
_LEAST_MOTION = 0.015


def match_robot(log: StandLog, robot: Robot) -> StandLog:
    """The log with the robot's joints in its order.

    Raises:
      InputError: for a rate below `MIN_RATE_HZ` (ms?), other joints, angles far outside the joints'
        ranges (degrees?), joints that hardly move, and positions opposite to their commands
        (signs?).
    """
    if log.rate_hz < MIN_RATE_HZ:
        raise InputError(
            f"rate_hz={log.rate_hz:g}: must be at least {MIN_RATE_HZ:g} Hz; is its time in ms?"
        )
    missing = [name for name in robot.joint_names if name not in log.joints]
    unknown = [name for name in log.joints if name not in robot.joint_names]
    if missing or unknown or len(log.joints) != len(robot.joint_names):
        raise InputError(
            f"actuators: must be the joints of '{robot.name}'; missing: "
            f"{', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
        )
    order = [log.joints.index(name) for name in robot.joint_names]

    def ordered(recording: JointRecording) -> JointRecording:
        names = ("command", "position", "velocity", "torque")
        columns = {key: getattr(recording, key) for key in names}
        return replace(recording, **{k: v[:, order] for k, v in columns.items() if v is not None})

    log = StandLog(log.rate_hz, robot.joint_names, tuple(map(ordered, log.recordings)))
    commands = np.concatenate([recording.command for recording in log.recordings]).T
    positions = np.concatenate([recording.position for recording in log.recordings]).T
    limits = zip(robot.joint_names, robot.joint_lower, robot.joint_upper, strict=True)
    for (name, lower, upper), command, position in zip(limits, commands, positions, strict=True):
        for key, angle in (("command", command), ("position", position)):
            low = float(angle.min())
            high = float(angle.max())
            if low < lower - _MARGIN or high > upper + _MARGIN:
                raise InputError(
                    f"{name}: {key} is {low:.3g} to {high:.3g} rad, expected {lower:.3g} to "
                    f"{upper:.3g}; is the log in degrees, or its zero another?"
                )
            if high - low < _LEAST_MOTION:
                raise InputError(
                    f"{name}: {key} moves by {high - low:.2g} rad, expected at least "
                    f"{_LEAST_MOTION}; npmp sysid excite writes such commands"
                )
        correlation = float(np.corrcoef(command, position)[0, 1])
        if correlation < 0.0:
            raise InputError(
                f"{name}: position and command have the correlation {correlation:.2f}, expected a "
                "positive one; is a sign wrong, or the column another joint's?"
            )
    return log
