"""People at a robot's proportions: limbs in the recorded directions with the robot's lengths.

Offsets that absorb a robot's wider hips turn knees and elbows away from the recording by 10
degrees. So people's markers are moved to the robot's proportions, without offsets.
Shapes: T frames, M markers. World frame, Z up, floor z = 0, metres.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mocap_data.arrays import Array, unit
from mocap_data.errors import InputError
from retarget.leg_orientation import LEG_MARKERS, SEGMENTS
from retarget.prepared_robot import PreparedRobot
from retarget.targets import RecordedMarkers

_SIDES = ("L_", "R_")
# from marker to marker, outwards
_LIMBS = (
    *(("hip", "knee"), ("knee", "foot"), ("foot", "toe"), ("foot", "heel")),
    *(("shoulder", "elbow"), ("elbow", "hand")),
)
# [m] a foot this much higher than the other has e times less weight in the body's height
_LOW = 0.03
# gap between soles side by side [lengths of both legs], and distance ahead from which feet may
# cross [leg lengths]
_APART = 0.025
_PAST = 0.6


def applies_to(prepared: PreparedRobot) -> bool:
    """Whether these are a humanoid's markers: legs on flat feet."""
    layout = prepared.layout
    feet = {name for name, on_foot in zip(layout.names, layout.on_foot) if on_foot}
    has_legs = set(LEG_MARKERS) <= set(layout.names)
    return prepared.flat_feet and has_legs and {"L_foot", "R_foot"} <= feet


def scale_of(clips: Sequence[RecordedMarkers], prepared: PreparedRobot) -> float:
    """The robot's thighs and shanks over those of a body's clips.

    Raises:
      InputError: coinciding hips, knees and ankles.
    """
    recorded = _legs(np.concatenate([clip.raw for clip in clips]), prepared)
    length = float(np.median(recorded))
    if not length > 0.0:
        raise InputError(f"clip {clips[0].clip.name!r}: its hips, knees and ankles coincide")
    return float(_legs(prepared.home_markers, prepared)) / length


def with_proportions(
    clip: RecordedMarkers, prepared: PreparedRobot, scale: float, heights: Array
) -> RecordedMarkers:
    """The clip with the robot's proportions once it is scaled by `scale`.

    Standing ankles are as high as the robot's; feet keep their recorded height. Feet closer than
    side by side are moved apart, which changes the shanks' lengths. heights: (M,) [m] of standing
    feet, as recorded.
    """
    layout = prepared.layout
    home = prepared.home_markers / scale
    at = {name: i for i, name in enumerate(layout.names)}
    feet = [at[f"{side}foot"] for side in _SIDES]
    for side in _SIDES:
        for foot, end in ((at[f"{side}foot"], at.get(side + name)) for name in ("toe", "heel")):
            # the robot's distance from the ankle on the floor
            if end is not None:
                length = float(np.median(_length(clip.raw, foot, end)))
                slope = np.clip((heights[foot] - heights[end]) / max(length, 1e-9), -0.9, 0.9)
                reach = np.linalg.norm((home[end] - home[foot])[:2])
                drop = reach * slope / np.sqrt(1.0 - slope**2)
                home[end] = home[foot] + [reach, 0.0, -drop]
    rise = np.mean((layout.height[feet] - prepared.sole_height) / scale - heights[feet])
    width = _side_by_side(prepared) / scale
    leg = float(_legs(home, prepared)) / 2.0

    def at_size(markers: Array) -> Array:
        parted = _parted(_with_lengths(markers, home, at), at, width, _PAST * leg)
        return _set_down(parted, markers, feet) + [0.0, 0.0, rise]

    raw = at_size(clip.raw)
    smooth = at_size(clip.smooth)
    new_heights = np.full(len(at), np.nan)
    for markers, stands in zip(prepared.foot_markers, clip.standing.T, strict=True):
        if stands.any():
            new_heights[list(markers)] = np.median(smooth[stands][:, list(markers), 2], axis=0)
    return replace(clip, raw=raw, smooth=smooth, heights=new_heights)


def _with_lengths(markers: Array, home: Array, at: dict[str, int]) -> Array:
    """Markers (T, M, 3) with the lengths of those of `home` (M, 3), about the hips' middle."""
    out = markers.copy()
    hips = _middle(markers, at, "hip")

    def put(name: str, middle: Array) -> None:
        left = at[f"L_{name}"]
        right = at[f"R_{name}"]
        half = 0.5 * _length(home, left, right) * unit(markers[:, left] - markers[:, right])
        out[:, left] = middle + half
        out[:, right] = middle - half

    put("hip", hips)
    tops = [name for name in ("shoulder", "chest") if {name, f"L_{name}"} & set(at)]
    for name in tops:
        length = np.linalg.norm(_middle(home, at, name) - _middle(home, at, "hip"))
        position = hips + length * unit(_middle(markers, at, tops[0]) - hips)
        if name in at:
            out[:, at[name]] = position
        else:
            put(name, position)
    bones = [(side + a, side + b) for side in _SIDES for a, b in _LIMBS]
    for a, b in ((at[a], at[b]) for a, b in bones if {a, b} <= set(at)):
        out[:, b] = out[:, a] + _length(home, a, b) * unit(markers[:, b] - markers[:, a])
    return out


def _parted(markers: Array, at: dict[str, int], width: float, past: float) -> Array:
    """Markers (T, M, 3) with ankles at least `width` [m] apart across the hips.

    A soft bound that decreases with the distance of one ahead (`past` [m]) and with the hips'
    inclination.
    """
    left = unit(markers[:, at["L_hip"]] - markers[:, at["R_hip"]]) * [1.0, 1.0, 0.0]
    between = markers[:, at["L_foot"]] - markers[:, at["R_foot"]]
    apart = np.sum(between * left, axis=-1, keepdims=True)
    ahead = np.linalg.norm((between - apart * left)[..., :2], axis=-1, keepdims=True)
    more = 0.1 * width * np.logaddexp(0.0, 10.0 * (1.0 - apart / width))
    step = 0.5 * more * np.exp(-((ahead / past) ** 4)) * left
    out = markers.copy()
    for side, shift in zip(_SIDES, (step, -step), strict=True):
        for name, share in (("knee", 0.5), ("foot", 1.0), ("toe", 1.0), ("heel", 1.0)):
            if side + name in at:
                out[:, at[side + name]] += share * shift
    return out


def _set_down(markers: Array, recorded: Array, feet: Sequence[int]) -> Array:
    """Markers (T, M, 3) moved vertically to the recorded height of the lower foot's ankle."""
    height = recorded[:, feet, 2]
    share = np.exp((height.min(axis=1, keepdims=True) - height) / _LOW)
    share /= share.sum(axis=1, keepdims=True)
    out = markers.copy()
    out[..., 2] += np.sum(share * (height - markers[:, feet, 2]), axis=1)[:, None]
    return out


def _side_by_side(prepared: PreparedRobot) -> float:
    """Distance of the ankles at which the soles at home nearly touch [m]."""
    home = prepared.home_markers
    y = prepared.home_soles[..., 1]
    left, right = (home[prepared.layout.names.index(f"{side}foot"), 1] for side in _SIDES)
    gap = y[y > 0.0].min() - y[y < 0.0].max() - 2.0 * prepared.robot.foot_radius
    return float(left - right - gap + _APART * _legs(home, prepared))


def _legs(positions: Array, prepared: PreparedRobot) -> Array:
    """Length (...) [m] of both legs together, of positions (..., M, 3)."""
    at = [prepared.layout.names.index(name) for name in LEG_MARKERS]
    return np.asarray(sum(_length(positions, at[a], at[b]) for a, b in SEGMENTS))


def _length(positions: Array, a: int, b: int) -> Array:
    """Distance (...) [m] between two markers of positions (..., M, 3)."""
    return np.asarray(np.linalg.norm(positions[..., b, :] - positions[..., a, :], axis=-1))


def _middle(positions: Array, at: dict[str, int], name: str) -> Array:
    """A marker of positions (..., M, 3), or the middle between the left and the right one."""
    columns = [at[name]] if name in at else [at[side + name] for side in _SIDES]
    return np.asarray(positions[..., columns, :].mean(axis=-2))
