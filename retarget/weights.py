"""Sampling weights that flatten the histogram of speeds.

Animals stand and walk far more than they run. The paper samples clips about uniformly over
velocities (Bohez et al. 2022, arXiv 2203.17138); here each motion gets a weight per second that
flattens the histogram of the root's horizontal speed. Shapes: N motions, B bins, T frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mocap_data.arrays import Array
from mocap_data.motion import ReferenceMotion
from mocap_data.motion import speeds as root_speeds

BINS = 10
# between the largest and the smallest weight
MAX_RATIO = 30.0
# on the dog set larger ratios hardly flatten further, and concentrate the weight on fewer motions
_ROUNDS = 5
# smallest weights to try
_FLOORS = 60
# percentile of the speeds where the bins end; faster ones count in the last
_TOP = 99.0


def histogram(
    motions: Sequence[ReferenceMotion], speeds: Sequence[Array] | None = None
) -> tuple[Array, Array]:
    """Seconds (N, B) that each motion spends in each bin of speed, and the edges (B + 1,) [m/s].

    speeds: of each motion, (T,) [m/s]; None: by `root_speeds`.
    """
    motion_speeds = [root_speeds(motion) for motion in motions] if speeds is None else speeds
    periods = [
        np.full(len(s), 1.0 / m.rate_hz) for s, m in zip(motion_speeds, motions, strict=True)
    ]
    all_speeds = np.concatenate(motion_speeds)
    order = np.argsort(all_speeds)
    seconds = np.cumsum(np.concatenate(periods)[order])
    top = float(all_speeds[order[np.searchsorted(seconds, _TOP / 100.0 * seconds[-1])]])
    edges = np.linspace(0.0, max(top, 1e-6), BINS + 1)
    bins = [np.searchsorted(edges[1:-1], s, side="right") for s in motion_speeds]
    counts = [np.bincount(b, minlength=BINS) / m.rate_hz for b, m in zip(bins, motions)]
    return np.array(counts, dtype=np.float64), edges


def flat(seconds: Array) -> Array:
    """Weights (N,) per second for motions that spend `seconds` (N, B) in bins; on average 1.

    Expectation maximisation for the mixture of the motions that is nearest to an even histogram (in
    Kullback-Leibler divergence); its first round gives each motion the mean of 1 / density over its
    frames. Empty bins do not count. Weights are clipped to the range of MAX_RATIO that leaves the
    histogram the most even: a rare canter would be overfitted.
    """
    total = seconds.sum(axis=1)
    # (N, B) of each motion's time
    share = seconds / total[:, None]
    visited = seconds.sum(axis=0) > 0.0
    goal = visited / np.count_nonzero(visited)

    def density(weight: Array) -> Array:
        return np.asarray((weight @ seconds) / (weight @ total))

    weight = np.ones(len(seconds))
    for _ in range(_ROUNDS):
        factor = np.divide(goal, density(weight), out=np.zeros_like(goal), where=visited)
        weight = weight * (share @ factor)
    floors = np.geomspace(weight.min(), weight.max(), _FLOORS)
    clipped = [np.clip(weight, floor, floor * MAX_RATIO) for floor in floors]
    weight = max(clipped, key=lambda w: float(np.log(density(w)[visited]).sum()))
    return np.asarray(weight * (total.sum() / (weight @ total)))


def weigh(
    motions: Sequence[ReferenceMotion], speeds: Sequence[Array] | None = None
) -> tuple[ReferenceMotion, ...]:
    """The motions with weights that flatten the histogram of speeds of each split.

    speeds: as in `histogram`.
    """
    motion_speeds = [root_speeds(motion) for motion in motions] if speeds is None else speeds
    weight = np.ones(len(motions))
    for name in {motion.split for motion in motions}:
        indices = [i for i, motion in enumerate(motions) if motion.split == name]
        seconds, _ = histogram([motions[i] for i in indices], [motion_speeds[i] for i in indices])
        weight[indices] = flat(seconds)
    return tuple(replace(motion, weight=w) for motion, w in zip(motions, weight, strict=True))
