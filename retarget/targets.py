"""From a recording to the solver's targets: markers at the robot's size and rate, over z = 0.

Clip -> markers -> low-pass -> stances, floor -> (body scale) -> output rate -> locked feet,
headings

All inputs are resampled to the output rate before the poses are solved. A motion resampled
afterwards would have sliding feet, and joints beyond their bounds. Shapes: T frames of the
recording, S frames of the output, M markers, F feet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mocap_data.arrays import Array, Bools
from mocap_data.clip import Clip
from mocap_data.errors import InputError, counted
from retarget import ground
from retarget.options import Options
from retarget.prepared_robot import PreparedRobot
from retarget.resampling import frame_times
from retarget.skeletons import Skeleton, marker_positions

MIN_FRAMES = 8
# [m] from the origin; larger coordinates are garbled numbers
MAX_COORDINATE = 1e4
# [m] range of trunk lengths; wrong units within it show as large errors
TRUNK_LENGTHS = (1e-4, 1e3)
# legs less than a tenth longer than the robot's are not scaled
_ALIKE = 0.9
# [m] as ground.STANCE_HEIGHT; a heel that is further up has left the floor
_SOLE_STANCE_HEIGHT = 0.03


@dataclass(frozen=True)
class RecordedMarkers:
    """A clip's markers at its size and rate, over its floor z = 0.

    For people `raw`, `smooth` and `heights` have the robot's proportions.
    """

    clip: Clip
    # (T, M, 3) [m]
    recorded: Array
    # (T, M, 3) [m]
    raw: Array
    # (T, M, 3) [m] low-passed
    smooth: Array
    # (T, F)
    standing: Bools
    # (F,) [m] height of the trunk's marker over each standing foot; NaN where it never stands
    legs: Array
    # (M,) [m] of the markers of standing feet; NaN for others
    heights: Array
    # slope of the recorded floor, which is levelled
    slope: float


@dataclass(frozen=True)
class Targets:
    """One clip at the output rate, standing paws as high as the robot's foot centres."""

    # (S, M, 3) [m] the animal's markers
    raw: Array
    # (S, M, 3) [m] with standing round feet held still and level
    locked: Array
    # (S, M) [rad] of the animal, held through the stances of round feet; zero for other markers
    heading: Array
    # (S, F)
    standing: Bools
    rate_hz: float


def record_markers(
    clip: Clip, skeleton: Skeleton, prepared: PreparedRobot, options: Options
) -> RecordedMarkers:
    """The clip's markers on the floor, with stances. Raises InputError for an unusable clip."""
    if clip.num_frames < MIN_FRAMES:
        frames = counted(clip.num_frames, "frame")
        raise InputError(f"clip {clip.name!r}: {frames}, expected at least {MIN_FRAMES}")
    _check_coordinates(clip)
    raw = marker_positions(clip, skeleton, prepared.layout.names)
    smooth = low_pass(raw, clip.rate_hz, options.marker_cutoff_hz)
    feet = [list(foot) for foot in prepared.foot_markers]
    columns = [column for foot in feet for column in foot]
    slope = ground.floor_slope(smooth[:, columns], clip.rate_hz)
    if slope.any():
        turn = ground.level_turn(slope).T
        raw = raw @ turn
        smooth = smooth @ turn
    height = _SOLE_STANCE_HEIGHT if prepared.flat_feet else ground.STANCE_HEIGHT
    stances = ground.stance(smooth[:, columns], clip.rate_hz, height=height)
    if prepared.flat_feet and len(feet) == 2:  # people stand on one leg
        other = dict(zip(columns, [c for foot in feet[::-1] for c in foot], strict=True))
        twin = np.array([columns.index(other[c]) for c in columns])
        stances = ground.level_with(smooth[:, columns], stances, twin)
    stance_of = dict(zip(columns, stances.T, strict=True))
    standing = np.stack([np.all([stance_of[c] for c in foot], axis=0) for foot in feet], axis=1)

    def standing_height(column: int) -> float:
        stands = stance_of[column]
        return float(np.median(smooth[stands, column, 2])) if stands.any() else np.inf

    # the floor is where each foot's lowest marker stands
    lowest = [min(foot, key=standing_height) for foot in feet]
    floor = ground.floor_height(smooth[:, lowest], np.stack([stance_of[c] for c in lowest], axis=1))
    down = np.array([0.0, 0.0, floor])
    length = float(np.median(np.linalg.norm(_along(raw, prepared), axis=-1)))
    if not TRUNK_LENGTHS[0] <= length <= TRUNK_LENGTHS[1]:
        raise InputError(
            f"clip {clip.name!r}: shoulders and hips are {length:.3g} m apart, expected "
            f"{TRUNK_LENGTHS[0]:g} to {TRUNK_LENGTHS[1]:g}; are its units and names right?"
        )
    legs = np.full(len(feet), np.nan)
    heights = np.full(len(prepared.layout.names), np.nan)
    for foot, top in enumerate(prepared.tops):
        stands = standing[:, foot]
        markers = feet[foot]
        if stands.any():
            legs[foot] = np.median(smooth[stands, top, 2]) - floor
            heights[markers] = np.median(smooth[stands][:, markers, 2], axis=0) - floor
    steep = float(np.linalg.norm(slope))
    raw = raw - down
    smooth = smooth - down
    return RecordedMarkers(clip, raw, raw, smooth, standing, legs, heights, steep)


def body_scale(
    clips: Sequence[RecordedMarkers], prepared: PreparedRobot, options: Options
) -> float:
    """The factor on the recordings' lengths: the option's, or standing legs as long as the robot's.

    Bodies of nearly the robot's size are not scaled, and smaller ones are never enlarged: a robot
    with longer legs can make a dog's steps. The median over feet and recordings is used, which
    ignores sitting animals.
    """
    if isinstance(options.scale_body, float | int):
        return float(options.scale_body)
    home = prepared.home_tops - prepared.sole_height
    weight = np.concatenate([clip.standing.sum(axis=0) / clip.clip.rate_hz for clip in clips])
    with np.errstate(invalid="ignore"):
        ratios = np.concatenate([home / clip.legs for clip in clips])
    good = np.isfinite(ratios) & (ratios > 0.0) & (weight > 0.0)
    if not good.any():
        return 1.0
    order = np.argsort(ratios[good])
    total = np.cumsum(weight[good][order])
    ratio = float(ratios[good][order][np.searchsorted(total, 0.5 * total[-1])])
    return ratio if ratio < _ALIKE else 1.0


def standing_heights(clips: Sequence[RecordedMarkers], prepared: PreparedRobot) -> Array:
    """(M,) [m] how high standing feet carry their markers in the recordings; 0 for other markers.

    If no foot ever stands, they are the robot's.
    """
    heights = np.stack([clip.heights for clip in clips])
    layout = prepared.layout
    sole = layout.on_foot & ~layout.footprint
    out = np.where(sole, layout.height - prepared.sole_height, 0.0)
    for m in np.flatnonzero(np.isfinite(heights).any(axis=0)):
        out[m] = np.nanmedian(heights[:, m])
    return out


def make_targets(
    markers: RecordedMarkers,
    prepared: PreparedRobot,
    options: Options,
    scale: float,
    heights: Array,
) -> Targets:
    """The clip at the robot's size and the output rate, standing feet locked.

    heights: (M,) [m] from `standing_heights`. The target of a round foot is the paw's bottom.

    Raises:
      InputError: a clip that is too short.
    """
    rate = float(options.rate_hz or prepared.robot.control_rate_hz)
    name = markers.clip.name
    duration = markers.clip.duration_s
    if duration * rate < 3.0:
        raise InputError(f"clip {name!r}: {duration:.2f} s is too short for {rate:g} Hz")
    raw, locked, standing = to_rate(markers, rate)
    footprints = [] if prepared.flat_feet else [foot[0] for foot in prepared.foot_markers]
    for positions in (raw, locked):
        positions[:, footprints, 2] -= heights[footprints]
    raw = scale * raw
    locked = scale * locked
    along = np.unwrap(np.arctan2(*_along(raw, prepared)[:, 1::-1].T))
    heading = np.zeros(raw.shape[:2])
    if footprints:
        most = scale * ground.MOST_WANDER
        locked[:, footprints] = ground.lock_feet(locked[:, footprints], standing, most=most)
    for foot, column in enumerate(footprints):
        heading[:, column] = ground.hold(along[:, None], standing[:, foot])[:, 0]
    # the lowest marker of a standing foot is as high as the robot's
    rise = np.array([0.0, 0.0, prepared.sole_height])
    return Targets(raw + rise, locked + rise, heading, standing, rate)


def to_rate(markers: RecordedMarkers, rate_hz: float) -> tuple[Array, Array, Bools]:
    """Raw and smooth markers (S, M, 3) by cubic splines, and stances (S, F) of both neighbours."""
    from scipy.interpolate import CubicSpline

    raw = markers.raw
    old = markers.clip.rate_hz
    new = frame_times(len(raw), old, rate_hz, width=2 * raw[0].size)
    if old == rate_hz:
        return raw.copy(), markers.smooth.copy(), markers.standing
    both = np.concatenate((raw, markers.smooth), axis=1)
    out = np.asarray(CubicSpline(np.arange(len(both)), both, axis=0)(new))
    before = np.floor(new + 1e-9).astype(np.intp)
    after = np.ceil(new - 1e-9).astype(np.intp)
    standing = markers.standing[before] & markers.standing[after]
    count = raw.shape[1]
    return out[:, :count].copy(), out[:, count:].copy(), standing


def low_pass(values: Array, rate_hz: float, cutoff_hz: float | None) -> Array:
    """`values` (T, ...) low-passed without lag (Butterworth of order 2, forth and back)."""
    from scipy.signal import butter, sosfiltfilt

    if cutoff_hz is None or cutoff_hz >= 0.45 * rate_hz:
        return values.copy()
    sections = butter(2, cutoff_hz, fs=rate_hz, output="sos")
    pad = min(len(values) - 1, round(rate_hz / 2))
    return np.asarray(sosfiltfilt(sections, values, axis=0, padlen=pad))


def _along(markers: Array, prepared: PreparedRobot) -> Array:
    """(T, 3) [m] along the trunk, hind to front; for a wide one across it, turned to the front."""
    layout = prepared.layout
    robot = prepared.robot
    x = layout.position[:, 0]
    y = layout.position[:, 1]
    trunk = layout.on_trunk
    if not trunk.any():
        raise InputError(f"robot {robot.name!r}: no markers on its root body")
    wide = np.ptp(y[trunk]) > np.ptp(x[trunk])
    way = y if wide else x
    ahead = np.flatnonzero(trunk & (way > 1e-6))
    behind = np.flatnonzero(trunk & (way < -1e-6))
    if not (len(ahead) and len(behind)):
        expected = "trunk markers in front of and behind its base, or left and right of it"
        raise InputError(f"robot {robot.name!r}: expected {expected}")
    line: Array = markers[:, ahead].mean(axis=1) - markers[:, behind].mean(axis=1)
    return np.stack((line[:, 1], -line[:, 0], line[:, 2]), axis=-1) if wide else line


def _check_coordinates(clip: Clip) -> None:
    """Raise InputError for a coordinate beyond MAX_COORDINATE, with keypoint and frame."""
    # (T, M)
    size = np.abs(clip.positions).max(axis=-1)
    frame, keypoint = np.unravel_index(int(np.argmax(size)), size.shape)
    if (far := size[frame, keypoint]) > MAX_COORDINATE:
        raise InputError(
            f"clip {clip.name!r}: keypoint {clip.names[keypoint]} in frame {frame} is {far:.3g} m "
            f"from the origin, expected at most {MAX_COORDINATE:g}; are its units right?"
        )
