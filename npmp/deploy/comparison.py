"""Two logs compared by how their channels are distributed, since no two runs are the same step by
step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mocap_data.errors import InputError
from npmp.deploy.run_log import DeployLog

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
FEWEST = 20  # samples of a channel that say anything
AXES = ("x", "y", "z")
# What is compared, and its unit; the rest of a log is about time and safety.
UNITS = {"joint_pos": "rad", "joint_vel": "rad/s", "joint_torque": "Nm", "target": "rad"}
UNITS |= {"gyro": "rad/s", "accelerometer": "m/s2", "up": "1", "state_age_s": "s"}
# The least spread of a channel by its unit: what varies less, as a head that is held still, differs
# by nothing of interest [D]
LEAST_SPREAD = {"rad": 0.02, "rad/s": 0.2, "Nm": 0.2, "m/s2": 0.5, "1": 0.02, "s": 0.002}
Channels = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class ChannelDifference:
    """One channel on both sides."""

    channel: str
    unit: str
    first: tuple[float, ...]  # its quantiles, as QUANTILES
    second: tuple[float, ...]
    ks: float  # Kolmogorov-Smirnov: the most that the shares below any value differ, 0 to 1
    wasserstein: float  # the mean distance that samples must be moved, in the channel's unit
    # the same over the spread (deviation) within the sides, LEAST_SPREAD at the least
    relative: float


def channels(log: DeployLog) -> dict[str, NDArray[np.float64]]:
    """The channels (T,) of a log where its policy acted, without those that it does not have."""
    samples = {}
    for name in UNITS:
        parts = AXES if name in ("gyro", "accelerometer", "up") else log.joint_names
        names = [name] if name == "state_age_s" else [f"{name}/{part}" for part in parts]
        for channel, column in zip(names, log.columns[name][log.acting].T):
            if len(kept := column[np.isfinite(column)]) >= FEWEST:
                samples[channel] = kept
    return samples


def difference(
    channel: str, first: NDArray[np.float64], second: NDArray[np.float64]
) -> ChannelDifference:
    """How samples (N,) and (M,) of a channel are distributed on both sides."""
    from scipy import stats  # slow to import

    ks = float(stats.ks_2samp(first, second, method="asymp").statistic)
    moved = float(stats.wasserstein_distance(first, second))
    before, after = (tuple(np.quantile(side, QUANTILES).tolist()) for side in (first, second))
    unit = UNITS[channel.partition("/")[0]]
    # within the sides: together they would spread with their distance, and all that are far apart
    # would tie
    spread = max(float(np.sqrt((first.var() + second.var()) / 2)), LEAST_SPREAD[unit])
    return ChannelDifference(channel, unit, before, after, ks, moved, moved / spread)


def compare(first: Channels, second: Channels) -> list[ChannelDifference]:
    """All channels that both sides have, the most different first.

    Raises:
      InputError: where they share none.
    """
    shared = [name for name in first if name in second]
    if not shared:
        raise InputError(
            f"the logs share no channel of at least {FEWEST} samples while the policy acts"
        )
    differences = (difference(name, first[name], second[name]) for name in shared)
    return sorted(differences, key=lambda d: -d.relative)


def in_words(found: Sequence[ChannelDifference], count: int = 3) -> list[str]:
    """The most different channels, a line each."""
    lines = []
    for one in found[:count]:
        middle = f"median {one.first[2]:.3g} against {one.second[2]:.3g} {one.unit}"
        sides = (f"{side[0]:.3g} to {side[4]:.3g}" for side in (one.first, one.second))
        width = f"5-95 % {' against '.join(sides)}"
        lines.append(f"{one.channel}: {one.relative:.2f} of its spread apart; {middle}; {width}")
    return lines
