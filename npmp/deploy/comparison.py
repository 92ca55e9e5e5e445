"""Two recordings compared by how their channels are distributed, since no two runs are the same
step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mocap_data.errors import InputError, counted
from npmp.deploy.recording import Recording

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
FEWEST = 20  # samples of a channel that say anything
AXES = ("x", "y", "z")
# What is compared, and its unit; the rest of a recording is about time and the guard.
UNITS = {
    "joint_pos": "rad", "joint_vel": "rad/s", "joint_torque": "Nm", "gyro": "rad/s", "accelerometer": "m/s2", "up": "1",
    "target": "rad", "state_age_s": "s",
}  # fmt: skip
# The least spread of a channel by its unit: what varies less, as a head that is held still, differs
# by nothing of interest [D]
LEAST_SPREAD = {"rad": 0.02, "rad/s": 0.2, "Nm": 0.2, "m/s2": 0.5, "1": 0.02, "s": 0.002}
Channels = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Difference:
    """One channel on both sides."""

    channel: str
    unit: str
    first: tuple[float, ...]  # its quantiles, as QUANTILES
    second: tuple[float, ...]
    ks: float  # Kolmogorov-Smirnov: the most that the shares below any value differ, 0 to 1
    wasserstein: float  # the mean distance that samples must be moved, in the channel's unit
    # the same over the spread (deviation) within the sides, LEAST_SPREAD at the least
    relative: float


def channels(recording: Recording) -> dict[str, NDArray[np.float64]]:
    """The channels (T,) of a recording where its policy acted, without those that it does not have."""
    found = {}
    for name in UNITS:
        values = recording.columns[name][recording.acting]
        ends = {1: ("",), 3: tuple(f"/{axis}" for axis in AXES)}.get(values.shape[1])
        if values.shape[1] == len(recording.joint_names) and name not in (
            "gyro",
            "accelerometer",
            "up",
            "state_age_s",
        ):
            ends = tuple(f"/{joint}" for joint in recording.joint_names)
        for end, column in zip(ends or (), values.T):
            if len(kept := column[np.isfinite(column)]) >= FEWEST:
                found[name + end] = kept
    return found


def difference(channel: str, first: NDArray[np.float64], second: NDArray[np.float64]) -> Difference:
    """How samples (N,) and (M,) of a channel are distributed on both sides."""
    grid = np.sort(np.concatenate((first, second)))
    below = [
        np.searchsorted(np.sort(side), grid, side="right") / len(side) for side in (first, second)
    ]
    apart = np.abs(below[0] - below[1])
    moved = float((apart[:-1] * np.diff(grid)).sum())
    before, after = (
        tuple(float(q) for q in np.quantile(side, QUANTILES)) for side in (first, second)
    )
    unit = UNITS[channel.partition("/")[0]]
    # within the sides: together they would spread with their distance, and all that are far apart
    # would tie
    spread = max(float(np.sqrt((first.var() + second.var()) / 2)), LEAST_SPREAD[unit])
    return Difference(channel, unit, before, after, float(apart.max()), moved, moved / spread)


def compare(first: Channels, second: Channels) -> list[Difference]:
    """All channels that both sides have, the most different first.

    Raises:
      InputError: where they share none.
    """
    shared = [name for name in first if name in second]
    if not shared:
        raise InputError(
            f"the logs share no channel of at least {FEWEST} samples while the policy acts"
        )
    return sorted(
        (difference(name, first[name], second[name]) for name in shared), key=lambda d: -d.relative
    )


def in_words(found: Sequence[Difference], count: int = 3) -> list[str]:
    """The most different channels, a line each."""
    lines = []
    for one in found[:count]:
        middle = f"median {one.first[2]:.3g} against {one.second[2]:.3g} {one.unit}"
        width = f"5-95 % {one.first[0]:.3g} to {one.first[4]:.3g} against {one.second[0]:.3g} to {one.second[4]:.3g}"
        lines.append(f"{one.channel}: {one.relative:.2f} of its spread apart; {middle}; {width}")
    return lines


def refuse_unlike(first: tuple[str, Sequence[str]], second: tuple[str, Sequence[str]]) -> None:
    """Refuse logs of different robots: (name, joints) of each.

    Raises:
      InputError: naming both.
    """
    if tuple(first[1]) != tuple(second[1]):
        names = [f"{name} with {counted(len(joints), 'joint')}" for name, joints in (first, second)]
        raise InputError(f"the logs are of robots with different joints: {names[0]}, {names[1]}")
