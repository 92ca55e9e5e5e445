"""Compare two logs by the distributions of their channels: no two runs agree step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mocap_data.errors import InputError
from npmp.deploy.run_log import DeployLog

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# samples a channel needs to be compared
MIN_SAMPLES = 20
AXES = ("x", "y", "z")
# the compared arrays of a log, and their units
UNITS = {
    "joint_pos": "rad",
    "joint_vel": "rad/s",
    "joint_torque": "Nm",
    "target": "rad",
    "gyro": "rad/s",
    "accelerometer": "m/s2",
    "up": "1",
    "state_age_s": "s",
}
# lower bound of a channel's spread, by unit: channels that hardly vary, such as a locked joint, do
# not rank first [D]
MIN_SPREAD = {"rad": 0.02, "rad/s": 0.2, "Nm": 0.2, "m/s2": 0.5, "1": 0.02, "s": 0.002}
Channels = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class ChannelDifference:
    """One channel in both logs."""

    channel: str
    unit: str
    # quantiles of each log, as QUANTILES
    first: tuple[float, ...]
    second: tuple[float, ...]
    # Kolmogorov-Smirnov statistic, 0 to 1
    ks: float
    # Wasserstein distance, in the channel's unit
    wasserstein: float
    # the same divided by the channel's spread: the standard deviation within the logs, at least
    # MIN_SPREAD
    relative: float


def channels(log: DeployLog) -> dict[str, NDArray[np.float64]]:
    """The finite samples (N,) of each channel while the policy acts; short channels are left
    out."""
    samples = {}
    for name in UNITS:
        if name == "state_age_s":
            labels = [name]
        else:
            parts = AXES if name in ("gyro", "accelerometer", "up") else log.joint_names
            labels = [f"{name}/{part}" for part in parts]
        for channel, column in zip(labels, log.columns[name][log.acting].T):
            finite = column[np.isfinite(column)]
            if len(finite) >= MIN_SAMPLES:
                samples[channel] = finite
    return samples


def difference(
    channel: str, first: NDArray[np.float64], second: NDArray[np.float64]
) -> ChannelDifference:
    """The difference of samples (N,) and (M,) of a channel."""
    from scipy import stats  # slow to import

    wasserstein = float(stats.wasserstein_distance(first, second))
    unit = UNITS[channel.partition("/")[0]]
    # within the logs: the spread of both together would grow with their distance
    spread = max(float(np.sqrt((first.var() + second.var()) / 2)), MIN_SPREAD[unit])
    return ChannelDifference(
        channel=channel,
        unit=unit,
        first=tuple(np.quantile(first, QUANTILES).tolist()),
        second=tuple(np.quantile(second, QUANTILES).tolist()),
        ks=float(stats.ks_2samp(first, second, method="asymp").statistic),
        wasserstein=wasserstein,
        relative=wasserstein / spread,
    )


def compare(first: Channels, second: Channels) -> list[ChannelDifference]:
    """The channels of both logs, the most different first.

    Raises:
      InputError: if the logs share no channel.
    """
    shared = [name for name in first if name in second]
    if not shared:
        raise InputError(
            f"the logs share no channel of at least {MIN_SAMPLES} samples while the policy acts"
        )
    differences = (difference(name, first[name], second[name]) for name in shared)
    return sorted(differences, key=lambda d: -d.relative)


def summary_lines(differences: Sequence[ChannelDifference], count: int = 3) -> list[str]:
    """The most different channels, one line each."""
    lines = []
    for difference in differences[:count]:
        median = (
            f"median {difference.first[2]:.3g} against {difference.second[2]:.3g} {difference.unit}"
        )
        ends = (f"{side[0]:.3g} to {side[4]:.3g}" for side in (difference.first, difference.second))
        width = f"5-95 % {' against '.join(ends)}"
        lines.append(
            f"{difference.channel}: differs by {difference.relative:.2f} spreads; {median}; {width}"
        )
    return lines
