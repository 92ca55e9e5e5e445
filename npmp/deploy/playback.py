"""A log in place of a robot: its states come again at its control steps, and nothing is driven.

It is the clock as well, so a playback takes no longer than the policy's own work, and the same
policy answers the same.
"""

from __future__ import annotations

import numpy as np

from mocap_data.errors import InputError
from npmp.deploy.controller import ControlMode
from npmp.deploy.robot import FloatArray, RobotStopped, State
from npmp.deploy.run_log import SENSED, DeployLog

LOG_ENDED = "the log has ended"


class Playback:
    """A `RobotInterface` and a `LoopClock`. It takes `writes=1`: one reading per control step."""

    def __init__(self, log: DeployLog):
        """Raises InputError for a log of several episodes."""
        self.columns, self.dt = log.columns, 1.0 / log.rate_hz
        self.time_s, mode = log.columns["time_s"][:, 0], log.columns["mode"][:, 0]
        if not (np.diff(self.time_s) > 0.0).all():
            raise InputError(
                "the log's times do not rise, so it holds several episodes, as a trial writes "
                "them; play one of npmp deploy"
            )
        # what the robot did then was not the policy's
        damped = np.flatnonzero(mode == ControlMode.DAMPING)
        self.rows = int(damped[0]) + 1 if len(damped) else len(mode)
        self.driven = (mode == ControlMode.STAND) | (mode == ControlMode.POLICY)
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
        return np.asarray(self.columns["asked"][min(self.row, self.rows - 1)])

    def read(self) -> State | None:
        if self.row >= self.rows:
            raise RobotStopped(LOG_ENDED)
        age = float(self.columns["state_age_s"][self.row, 0])
        if not np.isfinite(age):
            return None
        sensed = {name: self.columns[name][self.row] for name in SENSED}
        temperature = sensed.pop("temperature")
        measured = temperature if np.isfinite(temperature).any() else None
        return State(self.now() - age, **sensed, temperature=measured)

    def write(self, target: FloatArray, kp: FloatArray, kd: FloatArray, duration_s: float) -> None:
        self.written.append(target)

    def stop(self) -> None:
        """Nothing moves."""

    def difference(self) -> dict[str, float]:
        """How far what was written is from what the log has, where both were written [rad]."""
        sent = self.columns["target"][self.driven]
        steps = min(len(sent), len(self.written))
        apart = np.abs(sent[:steps] - np.array(self.written[:steps])) if steps else np.zeros(1)
        return {"steps": steps, "target_difference_rad": float(apart.max())}
