"""Stance detection, floor estimation, and feet locked to the floor in their stances.

Recorded paws move in stance: they roll from heel to toe (1 to 3 cm), and the ends of the skeleton's
paws have different heights. So targets of feet are corrected before the poses are solved. In each
stance a target has a constant position on the floor, and the correction is interpolated between
stances. Shapes: T frames, F feet. World, Z up, metres.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.ndimage import maximum_filter1d, uniform_filter1d

from mocap_data.arrays import Array, Bools

# [m/s] slower feet stand; swinging paws pass 1 m/s even in a slow walk
STANCE_SPEED = 0.35
# [m] above the foot's standing height; a paw held still in the air does not stand
STANCE_HEIGHT = 0.05
# [s] shorter stances are noise
STANCE_TIME = 0.05
# [m] above the other standing foot; a foot held still there does not stand
HELD_UP = 0.03
# [m] stances whose foot moves further are not locked
MOST_WANDER = 0.08
# [m] shorter paths determine no slope
_SLOPE_PATH = 1.5
# [m] of the heights of standing feet
_SLOPE_SCATTER = 0.01
# a level floor, and an implausible slope
_SLOPES = (0.006, 0.06)


def runs(mask: Bools) -> list[tuple[int, int]]:
    """The stretches [start, stop) where a mask (T,) is true."""
    edges = np.diff(np.concatenate(([False], mask, [False])).astype(np.int8))
    starts = np.flatnonzero(edges == 1)
    stops = np.flatnonzero(edges == -1)
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def horizontal_speed(feet: Array, rate_hz: float) -> Array:
    """Horizontal speed (T, F) [m/s] of feet (T, F, 3), central differences."""
    return np.linalg.norm(np.gradient(feet[..., :2], axis=0), axis=-1) * rate_hz


def stance(feet: Array, rate_hz: float, *, height: float = STANCE_HEIGHT) -> Bools:
    """The stances (T, F) of feet (T, F, 3): slow, up to `height` [m] above their standing height.

    Gaps and stances shorter than STANCE_TIME are closed and dropped.
    """
    slow = horizontal_speed(feet, rate_hz) < STANCE_SPEED
    out = np.zeros(slow.shape, dtype=bool)
    shortest = max(1, round(STANCE_TIME * rate_hz))
    for foot in np.flatnonzero(slow.any(axis=0)):
        above = feet[:, foot, 2]
        # the lowest quarter is in stance even if a paw is raised for some time
        low = np.percentile(above[slow[:, foot]], 25)
        out[:, foot] = steadied(slow[:, foot] & (above < low + height), shortest)
    return out


def level_with(feet: Array, standing: Bools, twin: Array) -> Bools:
    """Remove stances (T, F) in the air: a foot whose standing height is more than HELD_UP above its
    mirror image's, `twin` (F,), only stands at that height."""
    heights = [
        np.median(feet[stands, foot, 2]) if stands.any() else np.inf
        for foot, stands in enumerate(standing.T)
    ]
    lowest = np.array(heights)[twin] + HELD_UP
    return standing & ((heights <= lowest) | (feet[..., 2] <= lowest))


def steadied(mask: Bools, shortest: int) -> Bools:
    """Close gaps, then remove stretches, of fewer than `shortest` frames in a mask (T,). Stretches
    at the first or the last frame are kept, as they may be longer.
    """
    out = mask.copy()
    for value in (False, True):
        for start, stop in runs(out == value):
            if stop - start < shortest and start > 0 and stop < len(out):
                out[start:stop] = not value
    return out


def floor_height(feet: Array, standing: Bools) -> float:
    """Height [m] of the floor under feet (T, F, 3): the mean of their median standing heights.

    Feet that never stand are ignored; without a standing foot it is that of the lowest 2 % of all
    heights.
    """
    stands = np.flatnonzero(standing.any(axis=0))
    heights = [np.median(feet[standing[:, foot], foot, 2]) for foot in stands]
    return float(np.mean(heights)) if heights else float(np.percentile(feet[..., 2], 2))


def floor_slope(feet: Array, rate_hz: float) -> Array:
    """Slope (2,) of the floor, dz/dx and dz/dy, under feet (T, F, 3); zero for a level floor.

    Some capture volumes are not level (CMU's walks climb 8 cm in 4 m). A plane is fitted to
    the slow feet, each with its own height, robustly: a platform or a raised paw is not a slope.
    """
    frame, foot = np.nonzero(horizontal_speed(feet, rate_hz) < 0.5 * STANCE_SPEED)
    level = np.zeros(2)
    if len(frame) < 4 * feet.shape[1]:
        return level
    points = feet[frame, foot]
    if np.linalg.norm(np.ptp(points[:, :2], axis=0)) < _SLOPE_PATH:
        return level
    flat = points[:, :2] - points[:, :2].mean(axis=0)
    heights = np.eye(feet.shape[1])[foot]
    heights = heights[:, heights.any(axis=0)]

    def fit(columns: Array, pull: Array) -> tuple[Array, Array]:
        weight = np.ones(len(points))
        for _ in range(20):
            normal = columns.T @ (weight[:, None] * columns) + np.diag(pull)
            solution = np.linalg.solve(normal, columns.T @ (weight * points[:, 2]))
            residual = points[:, 2] - columns @ solution
            weight = 1.0 / (1.0 + np.square(residual / _SLOPE_SCATTER))
        return np.asarray(solution), np.asarray(np.abs(residual) / _SLOPE_SCATTER)

    ridge = np.full(heights.shape[1], 1e-9)
    _, residual_level = fit(heights, ridge)
    # regularization keeps directions without movement level
    pull = np.append(np.full(2, 0.01 * len(points)), ridge)
    solution, residual = fit(np.concatenate((flat, heights), axis=1), pull)
    slope: Array = solution[:2]
    plausible = _SLOPES[0] < float(np.linalg.norm(slope)) < _SLOPES[1]
    loss = np.log1p(np.square(residual)).mean()
    better = loss < 0.8 * np.log1p(np.square(residual_level)).mean()
    return slope if plausible and better and (residual < 2.0).mean() > 0.75 else level


def level_turn(slope: Array) -> Array:
    """The rotation matrix (3, 3) that makes a floor of `slope` (2,) level."""
    from scipy.spatial.transform import Rotation  # slow to import

    return Rotation.align_vectors([0.0, 0.0, 1.0], [*-slope, 1.0])[0].as_matrix()


def hold(
    values: Array, standing: Bools, goal: float | None = None, most: float | None = None
) -> Array:
    """`values` (T, K) held constant in each stance of `standing` (T,), blended in between.

    In a stance the values become `goal`, or their mean, unless they deviate by more than `most`. In
    a swing the corrections of both neighbouring stances are interpolated.
    """
    stances = runs(standing)
    if not stances:
        return values.copy()
    correction = np.zeros_like(values)
    for start, stop in stances:
        held = values[start:stop].mean(axis=0) if goal is None else np.full(values.shape[1], goal)
        stray = np.linalg.norm(values[start:stop] - held, axis=-1).max()
        if most is None or stray <= most:
            correction[start:stop] = held - values[start:stop]
    return values + fade(correction, stances)


def fade(correction: Array, stances: list[tuple[int, int]]) -> Array:
    """`correction` (T, K) of the stances, faded by a smooth step from each into the next."""
    out = correction.copy()
    out[: stances[0][0]] = out[stances[0][0]]
    out[stances[-1][1] :] = out[stances[-1][1] - 1]
    for (_, leave), (land, _) in pairwise(stances):
        share = np.arange(1, land - leave + 1) / (land - leave + 1)
        rise = (share * share * (3.0 - 2.0 * share))[:, None]
        out[leave:land] = (1.0 - rise) * out[leave - 1] + rise * out[land]
    return out


def lock_feet(feet: Array, standing: Bools, *, most: float = MOST_WANDER) -> Array:
    """Feet (T, F, 3) with stances fixed at height 0, and never below 0; `most` as in `hold`."""
    out = feet.copy()
    for foot in range(feet.shape[1]):
        out[:, foot, :2] = hold(feet[:, foot, :2], standing[:, foot], most=most)
        out[:, foot, 2:] = np.maximum(hold(feet[:, foot, 2:], standing[:, foot], goal=0.0), 0.0)
    return out


def envelope(values: Array, width: int) -> Array:
    """A smooth upper bound (T,) of `values` (T,): their maximum over `width` frames, averaged."""
    # a symmetric window
    odd = width | 1
    highest = maximum_filter1d(values, odd, mode="nearest")
    return np.maximum(np.asarray(uniform_filter1d(highest, odd, mode="nearest")), values)
