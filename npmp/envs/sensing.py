"""Sensor model: calibration errors, one shared delay, noise (robot-NPMP, imitation task).

The same functions serve simulated and imagined robots. Delays interpolate linearly between the
states of control steps. Setpoints have neither delay nor noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from npmp.core import ranges
from npmp.envs.features import proprioception
from npmp.envs.state import GRAVITY, RobotState


@dataclass(frozen=True)
class SensorConfig:
    """Noise and delay of the decoder's observations; by default none. Raises ValueError for values
    out of range.

    Noise is Gaussian; settings are standard deviations. The delay is uniform, sampled at every
    control step and shared by all sensors.
    """

    # minimum and maximum [s]
    delay_s: tuple[float, float] = (0.0, 0.0)
    # noise of joint angles [rad]
    joint_noise: float = 0.0
    # per axis of the root [rad/s]
    gyro_noise: tuple[float, float, float] = (0.0, 0.0, 0.0)
    # noise of each axis [m/s^2]
    accelerometer_noise: float = 0.0
    # noise of the gravity vector's components [1]
    up_noise: float = 0.0

    def __post_init__(self) -> None:
        ranges.pairs(self, "delay_s")
        ranges.not_negative(
            self, "delay_s", "joint_noise", "gyro_noise", "accelerometer_noise", "up_noise"
        )
        ranges.at_most(self, ranges.LONGEST_DELAY_S, "delay_s")
        if self.delay_s[0] > self.delay_s[1]:
            raise ValueError(f"delay_s must be [least, most], got {list(self.delay_s)}")
        if len(self.gyro_noise) != 3:
            raise ValueError(f"gyro_noise must be three numbers, got {list(self.gyro_noise)}")


class SensorNoise(NamedTuple):
    """Random numbers of one observation, batch shape (...)."""

    delay: Tensor  # (..., 1) uniform in [0, 1); (..., 0) without delay
    noise: Tensor  # (..., o) standard normal; (..., 0) without noise


class Sensing:
    """Sensor readings as functions of recent exact observations, `history` (n, H + 1, o), the
    latest first; H is the longest delay in control steps."""

    def __init__(self, config: SensorConfig, home: Tensor, dt: float):
        """home (nu,) [rad]; dt control period [s]."""
        self.config = config
        self.home = home
        self.dt = dt
        nu = len(home)
        self.lags = math.ceil(config.delay_s[1] / dt - 1e-9)
        joints = torch.full((nu,), config.joint_noise), torch.zeros(nu)
        accelerometer = torch.full((3,), config.accelerometer_noise / GRAVITY)
        imu = torch.tensor(config.gyro_noise), accelerometer, torch.full((3,), config.up_noise)
        self.noise = torch.cat((*joints, *imu)).to(home)
        self.noisy = bool(self.noise.any())
        self._delayed = torch.ones(2 * nu + 9, dtype=torch.bool, device=home.device)
        self._delayed[nu : 2 * nu] = False

    @property
    def width(self) -> int:
        """o, the width of one observation."""
        return len(self.noise)

    def exact(self, state: RobotState, joint_offset: Tensor | None = None) -> Tensor:
        """Readings (n, o) without noise and delay.

        Args:
          joint_offset: (n, nu) [rad], added to joint angles and setpoints.
        """
        if joint_offset is not None:
            read = state.joint_pos + joint_offset
            setpoint = state.setpoint + joint_offset
            state = state._replace(joint_pos=read, setpoint=setpoint)
        return proprioception(state, self.home)

    def begin(self, exact: Tensor) -> Tensor:
        """A constant history after a reset. (n, o) -> (n, H + 1, o)."""
        return exact.unsqueeze(-2).expand(*exact.shape[:-1], self.lags + 1, exact.shape[-1]).clone()

    def remember(self, history: Tensor, exact: Tensor) -> Tensor:
        """The history after one more control step."""
        return torch.cat((exact.unsqueeze(-2), history[..., :-1, :]), -2)

    def sample(self, shape: tuple[int, ...], generator: torch.Generator) -> SensorNoise:
        """Sample the random numbers of observations of a batch shape, in the order of `read`."""
        delays = int(self.lags > 0)
        noises = self.noisy * self.width
        device = self.noise.device
        return SensorNoise(
            torch.rand((*shape, delays), generator=generator, device=device),
            torch.randn((*shape, noises), generator=generator, device=device),
        )

    def apply(self, history: Tensor, random: SensorNoise) -> Tensor:
        """The decoder's observation (n, o): the history with delay and noise."""
        reading = history[..., 0, :]
        if self.lags:
            low, high = self.config.delay_s
            steps = (low + (high - low) * random.delay) / self.dt
            if self.lags == 1:
                between = torch.lerp(reading, history[..., 1, :], steps)
            else:
                lag = steps.floor().clamp(max=self.lags - 1)
                index = lag.long().unsqueeze(-1).expand(-1, 1, history.shape[-1])
                newer, older = (history.gather(1, index + k).squeeze(1) for k in (0, 1))
                between = torch.lerp(newer, older, steps - lag)
            reading = torch.where(self._delayed, between, reading)
        if self.noisy:
            reading = reading + self.noise * random.noise
        return reading

    def read(self, history: Tensor, generator: torch.Generator) -> Tensor:
        """The decoder's observation (n, o); each call samples delay and noise."""
        return self.apply(history, self.sample((len(history),), generator))
