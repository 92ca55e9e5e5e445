"""A recording in place of a robot: its states come again at its control steps, and nothing is
driven.

It is the clock as well, so a playback takes no longer than the policy's own work, and the same
policy answers the same.
"""

from __future__ import annotations

import numpy as np

from mocap_data.errors import InputError
from npmp.deploy.controller import Mode
from npmp.deploy.recording import SENSED, Recording
from npmp.deploy.robot import FloatArray, RobotStopped, State

RECORDING_ENDED = "the recording has ended"


class Playback:
    """A `RobotInterface` and a `Clock`. Use it with `writes=1`: one reading per control step."""

    def __init__(self, recording: Recording):
        """Raises InputError for a recording of several episodes."""
        columns = recording.columns
        if not (np.diff(columns["time_s"][:, 0]) > 0.0).all():
            raise InputError(
                "the recording's times do not rise, so it holds several episodes, as npmp bundle trial writes "
                "them; one of npmp deploy can be played"
            )
        # what the robot did then was not the policy's
        damped = np.flatnonzero(columns["mode"][:, 0] == Mode.DAMPING)
        self.rows = int(damped[0]) + 1 if len(damped) else len(columns["mode"])
        self.time_s, self.age_s = columns["time_s"][:, 0], columns["state_age_s"][:, 0]
        self.sensed = {name: columns[name] for name in SENSED}
        self.asked, self.dt = columns["asked"], 1.0 / recording.rate_hz
        self.row = -1  # before the first
        self.written: list[FloatArray] = []

    def now(self) -> float:
        beyond = max(0, self.row - self.rows + 1)
        return float(self.time_s[np.clip(self.row, 0, self.rows - 1)]) + beyond * self.dt

    def wait_until(self, time_s: float) -> None:
        """Go to the next step, whenever that was."""
        self.row += 1

    def command(self, _since_start: float) -> FloatArray:
        """What was asked for at this step."""
        return np.asarray(self.asked[min(self.row, self.rows - 1)])

    def read(self) -> State | None:
        if self.row >= self.rows:
            raise RobotStopped(RECORDING_ENDED)
        if not np.isfinite(self.age_s[self.row]):
            return None
        sensed = {name: self.sensed[name][self.row] for name in SENSED}
        temperature = sensed.pop("temperature")
        measured = temperature if np.isfinite(temperature).any() else None
        return State(self.now() - float(self.age_s[self.row]), **sensed, temperature=measured)

    def write(self, target: FloatArray, kp: FloatArray, kd: FloatArray, duration_s: float) -> None:
        self.written.append(target)

    def stop(self) -> None:
        """Nothing moves."""
