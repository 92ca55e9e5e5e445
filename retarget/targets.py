"""From a recording to what the solver shall meet: markers at the robot's size and rate, over the
floor z = 0.

Clip -> markers -> low-pass -> stances, floor -> (body scale) -> output rate -> locked feet,
headings

Everything is brought to the output rate before anything is solved. A motion solved at the
recording's rate and resampled afterwards would have standing feet that slide at every step that
falls between two frames, and joints beyond their bounds where a spline overshoots.
Shapes: T frames of the recording, S frames of the output, M markers, F feet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError
from retarget import ground
from retarget.options import Options
from retarget.prepared_robot import PreparedRobot
from retarget.resampling import frame_times
from retarget.skeletons import marker_positions, skeleton_of

MIN_FRAMES = 8
MAX_COORDINATE = 1e4  # [m] from the origin; no recording goes further, a garbled number does
# [m] beyond them nothing can be solved; wrong units within them show as large errors
TRUNK_LENGTHS = (1e-4, 1e3)
_SAME_BODY = 0.03  # relative difference of bone lengths, root of squares
_ALIKE = 0.9  # legs less than a tenth longer than the robot's are as good as its own
# [m] see ground.STANCE_HEIGHT; a heel that is further up has left the floor
_SOLE_STANCE_HEIGHT = 0.03


@dataclass(frozen=True)
class Recorded:
    """A clip's markers at its own size and rate, over its floor z = 0."""

    clip: Clip
    raw: Array  # (T, M, 3) [m]
    smooth: Array  # (T, M, 3) [m] low-passed
    standing: ground.Bools  # (T, F)
    # (F,) [m] height of the trunk's marker over each foot while it stands; NaN where it never does
    legs: Array
    # (M,) [m] of the markers of standing feet; NaN for those that never stand, and for other
    # markers
    heights: Array
    slope: float  # of the recorded floor, which was made level; 0 where it was


@dataclass(frozen=True)
class Targets:
    """One clip as the solver sees it: at the output rate, standing paws as high as the robot's foot
    centres."""

    raw: Array  # (S, M, 3) [m] the animal's markers
    locked: Array  # (S, M, 3) [m] with standing round feet held still and level
    # (S, M) [rad] of the animal, held through each foot's stances; zero for markers on no round
    # foot
    heading: Array
    standing: ground.Bools  # (S, F)
    rate_hz: float


def prepared_for(prepared: PreparedRobot, clip: Clip) -> PreparedRobot:
    """The robot with only the markers that the clip's skeleton has.

    Raises:
      InputError: where they do not suffice.
    """
    robot = prepared.robot
    skeleton = skeleton_of(clip, tuple(robot.markers))
    shared = tuple(name for name in robot.markers if name in skeleton.markers)
    if shared == prepared.layout.names:
        return prepared
    return PreparedRobot.of(robot, shared)


def by_body(clips: Sequence[Clip]) -> list[list[Clip]]:
    """The clips in groups of one body each: the same keypoint names, and bones as long as the
    group's first clip's.

    People of one data set have the same keypoints and other proportions; clips of one animal shall
    share offsets.
    """
    groups: list[tuple[tuple[str, ...], Array, list[Clip]]] = []
    for clip in clips:
        bones = _bones(clip)
        for names, first, members in groups:
            if names == clip.names and np.linalg.norm(bones - first) <= _SAME_BODY * np.linalg.norm(
                first
            ):
                members.append(clip)
                break
        else:
            groups.append((clip.names, bones, [clip]))
    return [members for _, _, members in groups]


def _bones(clip: Clip) -> Array:
    """Median lengths (N,) of the bones [m]; a single zero where no bones are known."""
    places = clip.positions[:: max(1, clip.num_frames // 50)]
    if clip.parents is not None and max(clip.parents) >= 0:
        child = np.flatnonzero(np.array(clip.parents) >= 0)
        ends = places[:, child] - places[:, np.array(clip.parents)[child]]
        return np.asarray(np.median(np.linalg.norm(ends, axis=-1), axis=0))
    return np.zeros(1)


def recorded(clip: Clip, prepared: PreparedRobot, options: Options) -> Recorded:
    """The clip's markers on the floor, with stances.

    Raises:
      InputError: for an unfit clip.
    """
    if clip.num_frames < MIN_FRAMES:
        raise InputError(
            f"clip {clip.name!r} has {clip.num_frames} frame{'s' if clip.num_frames != 1 else ''}; "
            f"retargeting needs at least {MIN_FRAMES}"
        )
    _check_coordinates(clip)
    layout = prepared.layout
    raw = marker_positions(clip, skeleton_of(clip, tuple(prepared.robot.markers)), layout.names)
    smooth = low_pass(raw, clip.rate_hz, options.marker_cutoff_hz)
    flat = prepared.points_per_foot >= 3
    columns = [column for foot in prepared.foot_markers for column in foot]
    slope = ground.floor_slope(smooth[:, columns], clip.rate_hz)
    if slope.any():
        turn = ground.level_turn(slope).T
        raw, smooth = raw @ turn, smooth @ turn
    reach = _SOLE_STANCE_HEIGHT if flat else ground.STANCE_HEIGHT
    each = dict(
        zip(columns, ground.stance(smooth[:, columns], clip.rate_hz, height=reach).T, strict=True)
    )
    standing = np.stack(
        [np.all([each[c] for c in foot], axis=0) for foot in prepared.foot_markers], axis=1
    )
    # The floor is where each foot's lowest marker stands.
    lowest = [
        min(
            foot, key=lambda c: float(np.median(smooth[each[c], c, 2])) if each[c].any() else np.inf
        )
        for foot in prepared.foot_markers
    ]
    floor = ground.floor_height(smooth[:, lowest], np.stack([each[c] for c in lowest], axis=1))
    down = np.array([0.0, 0.0, floor])
    length = float(np.median(np.linalg.norm(_along(raw, prepared), axis=-1)))
    if not TRUNK_LENGTHS[0] <= length <= TRUNK_LENGTHS[1]:
        raise InputError(
            f"clip {clip.name!r}: shoulders and hips are {length:.3g} m apart, which is no animal; "
            "are its units (metres are expected) and keypoint names right?"
        )
    legs = np.full(len(prepared.foot_markers), np.nan)
    heights = np.full(len(layout.names), np.nan)
    for foot, top in enumerate(prepared.tops):
        now = standing[:, foot]
        if now.any():
            legs[foot] = np.median(smooth[now, top, 2]) - floor
            heights[list(prepared.foot_markers[foot])] = (
                np.median(smooth[now][:, list(prepared.foot_markers[foot]), 2], axis=0) - floor
            )
    return Recorded(
        clip, raw - down, smooth - down, standing, legs, heights, float(np.linalg.norm(slope))
    )


def body_scale(clips: Sequence[Recorded], prepared: PreparedRobot, options: Options) -> float:
    """The factor on the recordings' lengths: as given, or that which makes standing legs as long as
    the robot's at home.

    Bodies of nearly the robot's size are left as they are, and smaller ones are never enlarged: a
    robot with longer legs takes a dog's steps as they are (the offsets carry it higher), one with
    shorter legs cannot. Recordings of one body share it: the median over feet and recordings
    counts, so that one that sits does not.
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


def standing_heights(clips: Sequence[Recorded], prepared: PreparedRobot) -> Array:
    """(M,) [m] how high feet carry their markers over the floor when they stand, in the recordings;
    0 for other markers.

    Where no foot ever stands: as high as the robot's do. The paws of one animal are one: recordings
    share it.
    """
    known = np.stack([clip.heights for clip in clips])
    out = np.zeros(known.shape[1])
    for m in np.flatnonzero(prepared.layout.on_foot & ~prepared.layout.footprint):
        out[m] = prepared.layout.height[m] - prepared.sole_height
    for m in np.flatnonzero(np.isfinite(known).any(axis=0)):
        out[m] = np.nanmedian(known[:, m])
    return out


def targets(
    clip: Recorded, prepared: PreparedRobot, options: Options, scale: float, heights: Array
) -> Targets:
    """The clip at the robot's size and the output rate, standing feet locked.

    heights: (M,) [m] from `standing_heights`. The target of a round foot is the bottom of the
    animal's paw.

    Raises:
      InputError: for one that is too short.
    """
    rate = float(options.rate_hz or prepared.robot.control_rate_hz)
    name, duration = clip.clip.name, clip.clip.duration_s
    if duration * rate < 3.0:
        raise InputError(
            f"clip {name!r} of {duration:.2f} s is too short for a motion at {rate:g} Hz"
        )
    raw, locked, standing = at_rate(clip, rate)
    footprints = [foot[0] for foot in prepared.foot_markers] if prepared.points_per_foot < 3 else []
    for markers in (raw, locked):
        markers[:, footprints, 2] -= heights[footprints]
    raw, locked = scale * raw, scale * locked
    along = np.unwrap(np.arctan2(*_along(raw, prepared)[:, 1::-1].T))
    heading = np.zeros(raw.shape[:2])
    if footprints:
        if options.lock_feet:
            locked[:, footprints] = ground.lock_feet(
                locked[:, footprints], standing, reach=scale * ground.PIN_REACH
            )
        for foot, column in enumerate(footprints):
            heading[:, column] = ground.hold(along[:, None], standing[:, foot])[:, 0]
    # The lowest marker of a standing foot is as high as the robot's: the centre of a sphere a
    # radius above the floor.
    rise = np.array([0.0, 0.0, prepared.sole_height])
    return Targets(raw + rise, locked + rise, heading, standing, rate)


def at_rate(clip: Recorded, rate_hz: float) -> tuple[Array, Array, ground.Bools]:
    """Raw and smooth markers (S, M, 3) by cubic splines, and stances (S, F): those whose frames on
    both sides stand."""
    from scipy.interpolate import CubicSpline

    old = clip.clip.rate_hz
    new = frame_times(len(clip.raw), old, rate_hz, width=2 * clip.raw[0].size)
    if old == rate_hz:
        return clip.raw.copy(), clip.smooth.copy(), clip.standing
    both = np.concatenate((clip.raw, clip.smooth), axis=1)
    out = np.asarray(CubicSpline(np.arange(len(both)), both, axis=0)(new))
    before = np.floor(new + 1e-9).astype(np.intp)
    after = np.ceil(new - 1e-9).astype(np.intp)
    count = clip.raw.shape[1]
    return (
        out[:, :count].copy(),
        out[:, count:].copy(),
        clip.standing[before] & clip.standing[after],
    )


def low_pass(values: Array, rate_hz: float, cutoff_hz: float | None) -> Array:
    """`values` (T, ...) low-passed without lag (Butterworth of order 2, forth and back); a copy for
    None."""
    from scipy.signal import butter, sosfiltfilt

    if cutoff_hz is None or cutoff_hz >= 0.45 * rate_hz:
        return values.copy()
    sections = butter(2, cutoff_hz, fs=rate_hz, output="sos")
    return np.asarray(
        sosfiltfilt(sections, values, axis=0, padlen=min(len(values) - 1, round(rate_hz / 2)))
    )


def _along(markers: Array, prepared: PreparedRobot) -> Array:
    """(T, 3) [m] along the trunk, hind to front; across it and turned to the front where it is
    rather wide than long."""
    layout = prepared.layout
    x, y = layout.position[:, 0], layout.position[:, 1]
    trunk = layout.on_trunk
    if not trunk.any():
        raise InputError(f"robot '{prepared.robot.name}' has no markers on its root body")
    wide = np.ptp(y[trunk]) > np.ptp(x[trunk])
    way = y if wide else x
    ahead, behind = np.flatnonzero(trunk & (way > 1e-6)), np.flatnonzero(trunk & (way < -1e-6))
    if not (len(ahead) and len(behind)):
        raise InputError(
            f"robot '{prepared.robot.name}' needs trunk markers in front of and behind its base, "
            "or left and right of it"
        )
    line: Array = markers[:, ahead].mean(axis=1) - markers[:, behind].mean(axis=1)
    return np.stack((line[:, 1], -line[:, 0], line[:, 2]), axis=-1) if wide else line


def _check_coordinates(clip: Clip) -> None:
    """Refuse what only a garbled file or a wrong unit says.

    Raises:
      InputError: naming keypoint and frame.
    """
    size = np.abs(clip.positions).max(axis=-1)  # (T, M)
    frame, keypoint = np.unravel_index(int(np.argmax(size)), size.shape)
    if size[frame, keypoint] > MAX_COORDINATE:
        raise InputError(
            f"clip {clip.name!r}: keypoint {clip.names[keypoint]} is {size[frame, keypoint]:.3g} m from the origin in "
            f"frame {frame} of the clip, at most {MAX_COORDINATE:g} m are expected; a garbled number, or other units?"
        )
