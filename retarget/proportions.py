"""People at a robot's own proportions: limbs that point as recorded and are as long as the robot's.

Eq. 8's offsets absorb what differs between two bodies once for all frames. Between a person and a
humanoid that is too much: where the person's hips are 14 cm wide and the robot's 23, knees and
elbows turn away from the recording by 10 degrees. So people's markers are put where the robot would
have them, and the robot's own markers follow them without offsets.
Shapes: T frames, M markers. World frame, Z up, floor z = 0, metres.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mocap_data.arrays import Array
from retarget.kinematics import Points, forward, positions_of
from retarget.legs import LEG_MARKERS, SEGMENTS
from retarget.prepared_robot import PreparedRobot
from retarget.targets import RecordedMarkers

SIDES = ("L_", "R_")
# from marker to marker, outwards
_LIMBS = (
    *(("hip", "knee"), ("knee", "foot"), ("foot", "toe"), ("foot", "heel")),
    *(("shoulder", "elbow"), ("elbow", "hand")),
)
# [m] a foot this much higher than the other has e times less to say about the body's height
_LOW = 0.03
# between soles side by side, as a share of the leg
_APART = 0.05


def fits(prepared: PreparedRobot) -> bool:
    """Whether these are a humanoid's markers: legs on flat feet."""
    return prepared.flat_feet and set(LEG_MARKERS) <= set(prepared.layout.names)


def scale_of(clips: Sequence[RecordedMarkers], prepared: PreparedRobot) -> float:
    """The robot's thighs and shanks over those of a body's clips."""
    recorded = _legs(np.concatenate([clip.raw for clip in clips]), prepared)
    return float(_legs(_home(prepared), prepared) / max(float(np.median(recorded)), 1e-9))


def fitted(clip: RecordedMarkers, prepared: PreparedRobot, scale: float) -> RecordedMarkers:
    """The clip with a body that has the robot's proportions once it is scaled by `scale`.

    Standing ankles are as high as the robot's, and feet no nearer to each other than side by side.
    """
    home, names = _home(prepared) / scale, prepared.layout.names
    feet = [names.index(f"{side}foot") for side in SIDES]
    own = (prepared.layout.height[feet] - prepared.sole_height) / scale
    known = np.isfinite(clip.heights[feet])
    rise = float(np.mean((own - clip.heights[feet])[known])) if known.any() else 0.0
    width = _side_by_side(prepared) / scale

    def at_size(markers: Array) -> Array:
        return _set_down(_fit(markers, home, names, width), markers, feet) + [0.0, 0.0, rise]

    raw, smooth = at_size(clip.raw), at_size(clip.smooth)
    heights = np.full(len(names), np.nan)
    for on_it, stands in zip(prepared.foot_markers, clip.standing.T, strict=True):
        if stands.any():
            heights[list(on_it)] = np.median(smooth[stands][:, list(on_it), 2], axis=0)
    return replace(clip, raw=raw, smooth=smooth, heights=heights)


def _fit(markers: Array, home: Array, names: Sequence[str], width: float) -> Array:
    """Markers (T, M, 3) with the lengths that those of `home` (M, 3) have, about the hips' middle.

    width: how near to each other feet may come, from ankle to ankle [m].
    """
    at, out = {name: i for i, name in enumerate(names)}, markers.copy()

    def pair(places: Array, name: str) -> tuple[Array, Array]:
        """Middle (..., 3) of a left and a right marker, and what leads from right to left."""
        left, right = (places[..., at[side + name], :] for side in SIDES)
        return 0.5 * (left + right), left - right

    def put(name: str, middle: Array) -> None:
        across = 0.5 * np.linalg.norm(pair(home, name)[1]) * _unit(pair(markers, name)[1])
        out[:, at[f"L_{name}"]], out[:, at[f"R_{name}"]] = middle + across, middle - across

    hips, home_hips = pair(markers, "hip")[0], pair(home, "hip")[0]
    put("hip", hips)
    top = markers[:, at["chest"]] if "chest" in at else None
    if {"L_shoulder", "R_shoulder"} <= set(names):
        top = pair(markers, "shoulder")[0]
        long = np.linalg.norm(pair(home, "shoulder")[0] - home_hips)
        put("shoulder", hips + long * _unit(top - hips))
    if top is not None and "chest" in at:
        long = np.linalg.norm(home[at["chest"]] - home_hips)
        out[:, at["chest"]] = hips + long * _unit(top - hips)
    bones = [(side + a, side + b) for side in SIDES for a, b in _LIMBS]
    for a, b in ((at[a], at[b]) for a, b in bones if {a, b} <= set(at)):
        out[:, b] = out[:, a] + _length(home, a, b) * _unit(markers[:, b] - markers[:, a])
    left = _unit(pair(markers, "hip")[1] * [1.0, 1.0, 0.0])
    apart = np.sum(pair(out, "foot")[1] * left, axis=-1)
    # softly, from a tenth more on
    more = 0.1 * width * np.logaddexp(0.0, 10.0 * (1.0 - apart / width))
    for side, sign in zip(SIDES, (0.5, -0.5), strict=True):
        for name, share in (("knee", 0.5), ("foot", 1.0), ("toe", 1.0), ("heel", 1.0)):
            if side + name in at:
                out[:, at[side + name]] += sign * share * more[:, None] * left
    return out


def _set_down(markers: Array, recorded: Array, feet: Sequence[int]) -> Array:
    """Markers (T, M, 3) moved up or down to where the lower foot's ankle was recorded."""
    height = recorded[:, feet, 2]
    share = np.exp((height.min(axis=1, keepdims=True) - height) / _LOW)
    share /= share.sum(axis=1, keepdims=True)
    out = markers.copy()
    out[..., 2] += np.sum(share * (height - markers[:, feet, 2]), axis=1)[:, None]
    return out


def _side_by_side(prepared: PreparedRobot) -> float:
    """From ankle to ankle where the soles at home would nearly touch [m]."""
    home, names = _home(prepared), prepared.layout.names
    reach = 2.0 * prepared.robot.foot_radius + _APART * float(_legs(home, prepared)) / 2.0
    for side, sign in zip(SIDES, (1.0, -1.0), strict=True):
        ankle = names.index(f"{side}foot")
        foot = next(i for i, on_it in enumerate(prepared.foot_markers) if ankle in on_it)
        reach += float(np.max(sign * (home[ankle, 1] - prepared.home_soles[foot, :, 1])))
    return reach


def _legs(places: Array, prepared: PreparedRobot) -> Array:
    """Length (...) [m] of both legs together, of markers (..., M, 3)."""
    at = [prepared.layout.names.index(name) for name in LEG_MARKERS]
    return np.asarray(sum(_length(places, at[a], at[b]) for a, b in SEGMENTS))


def _home(prepared: PreparedRobot) -> Array:
    """(M, 3) [m] the robot's own markers in its home pose."""
    own = Points(prepared.layout.body, prepared.layout.position)
    return positions_of(own, *forward(prepared.tree, np.asarray(prepared.robot.home_qpos)[None]))[0]


def _length(places: Array, a: int, b: int) -> Array:
    """From marker to marker (...) [m] of places (..., M, 3)."""
    return np.asarray(np.linalg.norm(places[..., b, :] - places[..., a, :], axis=-1))


def _unit(vectors: Array) -> Array:
    """Vectors (..., 3) of length 1; zero stays zero."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, 1e-9))
