"""Missing samples of keypoints: the frames with the body in the volume, and gaps within them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mocap_data.arrays import Array, Bools
from mocap_data.errors import InputError, counted
from mocap_data.readers.subject_selection import Keypoints

# [s] longer gaps of a marker are not filled
MAX_GAP_S = 0.25
# markers that a remark lists
_LISTED = 8


def fill_recording(
    path: Path, keypoints: Keypoints, missing: Bools, rate_hz: float, *, drop: bool
) -> Keypoints:
    """The keypoints of the longest stretch with the body in the volume, gaps filled.

    missing: samples (T, M). drop: leave out keypoints with a gap longer than MAX_GAP_S, or missing
      in more than half of the stretch.

    Raises:
      InputError: as `fill_gaps`.
    """
    longest = math.floor(MAX_GAP_S * rate_hz + 1e-9)
    stretches = body_stretches(missing, longest)
    stretch = max(stretches, key=lambda stretch: stretch.stop - stretch.start)
    missing = missing[stretch]
    columns = list(range(len(keypoints.names)))
    remarks = list(keypoints.remarks)
    if drop:
        complete = [column for column in columns if _gap(missing[:, column]) <= longest]
        # without any keep the error of `fill_gaps`
        columns = complete or columns
    names = [keypoints.names[column] for column in columns]
    dropped = [name for name in keypoints.names if name not in names]
    if dropped:
        count = f"{counted(len(dropped), 'marker')} missing for longer than {MAX_GAP_S:g} s"
        more = ", ..." * (len(dropped) > _LISTED)
        remarks.append(f"{count}, left out: {', '.join(dropped[:_LISTED])}{more}")
    positions = fill_gaps(
        keypoints.positions[stretch][:, columns],
        missing[:, columns],
        names,
        max_frames=longest,
        label=path,
        begin=stretch.start,
    )
    if len(positions) < len(keypoints.positions):
        first = stretch.start + int(np.argmax(~missing[:, columns], axis=0).max())
        last = first + len(positions) - 1
        several = f"the longest of {len(stretches)} stretches with all markers"
        reason = several if len(stretches) > 1 else "the others lack markers"
        frames = f"frames {first} to {last} of {len(keypoints.positions):,} are used"
        remarks.append(f"{frames}: {reason}")
    parents = keypoints.parents if len(columns) == len(keypoints.names) else None
    return Keypoints(positions, names, parents, tuple(remarks))


def body_stretches(missing: Bools, max_frames: int) -> list[slice]:
    """The runs of frames in which a body is in the volume, of missing samples (T, M).

    These have at least half as many markers as the fullest frame; gaps of up to `max_frames` frames
    do not end a run, and shorter runs do not count beside longer ones.
    """
    visible = np.sum(~missing, axis=1)
    inside = np.flatnonzero(2 * visible >= max(int(visible.max(initial=0)), 1))
    if not len(inside):
        return [slice(0, len(missing))]
    runs = np.split(inside, np.flatnonzero(np.diff(inside) > max_frames + 1) + 1)
    stretches = [slice(int(run[0]), int(run[-1]) + 1) for run in runs]
    return [
        stretch for stretch in stretches if stretch.stop - stretch.start > max_frames
    ] or stretches


def _gap(missing: Bools) -> int:
    """The longest gap [frames] of a marker; all frames where it is missing in more than half."""
    present = np.flatnonzero(~missing)
    if 2 * len(present) < len(missing):
        return len(missing)
    return int(np.diff(present).max(initial=1)) - 1


def fill_gaps(
    points: Array,
    missing: Bools,
    names: Sequence[str],
    *,
    max_frames: int,
    label: object,
    begin: int = 0,
) -> Array:
    """Positions (T', M, 3) without gaps, of points (T, M, 3) of which some are missing (T, M).

    Gaps of up to `max_frames` frames are filled by a cubic spline through all of the marker's other
    samples (a line for fewer than four). Frames before the last marker appears and after the first
    disappears are left out, up to half of all. begin: the first frame's number, for errors.

    Raises:
      InputError: a longer gap, with the marker and its frames.
    """
    from scipy.interpolate import CubicSpline

    frames = len(points)
    present = np.logical_not(missing)
    first = np.where(present.any(axis=0), np.argmax(present, axis=0), frames)
    last = frames - 1 - np.argmax(present[::-1], axis=0)
    start = int(first.max())
    stop = int(last.min()) + 1
    if stop - start < max(1, (frames + 1) // 2):
        late = names[int(np.argmax(first))]
        early = names[int(np.argmin(last))]
        raise InputError(
            f"{label}: marker {late!r} begins in frame {begin + start} and {early!r} ends in frame "
            f"{begin + stop - 1}: less than half of the {frames} frames with a body have all "
            "markers; leave them out (C3D: names=)"
        )
    filled = points.copy()
    for m, name in enumerate(names):
        gaps = np.flatnonzero(missing[start:stop, m]) + start
        if not len(gaps):
            continue
        for gap in np.split(gaps, np.flatnonzero(np.diff(gaps) > 1) + 1):
            if len(gap) > max_frames:
                ends = f"frames {begin + gap[0]} to {begin + gap[-1]}"
                most = f"{len(gap)} frames, expected at most {max_frames}"
                raise InputError(f"{label}: marker {name!r} is missing in {ends} ({most})")
        samples = np.flatnonzero(present[:, m])
        if len(samples) >= 4:
            filled[gaps, m] = CubicSpline(samples, points[samples, m], axis=0)(gaps)
        else:
            for axis in range(3):
                filled[gaps, m, axis] = np.interp(gaps, samples, points[samples, m, axis])
    return filled[start:stop]
