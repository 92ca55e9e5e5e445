"""Missing samples of keypoints: the stretch with the body in the volume, and gaps within it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mocap_data.arrays import Array, Bools
from mocap_data.errors import InputError, counted
from mocap_data.readers.subjects import Keypoints

# [s] longer gaps of a marker are not filled
MAX_GAP_S = 0.25
# markers that a remark lists
_LISTED = 8


def without_gaps(
    path: Path, whole: Keypoints, missing: Bools, rate_hz: float, *, drop: bool
) -> Keypoints:
    """The keypoints of the longest stretch with the body in the volume, gaps filled.

    missing: samples (T, M). drop: leave out keypoints that are missing for longer than MAX_GAP_S,
      or in more than half of the stretch.

    Raises:
      InputError: as `fill_gaps`.
    """
    longest = math.floor(MAX_GAP_S * rate_hz + 1e-9)
    stretches = body_stretches(missing, longest)
    stretch = max(stretches, key=lambda one: one.stop - one.start)
    points = whole.positions[stretch]
    missing = missing[stretch]
    columns = list(range(len(whole.names)))
    remarks = list(whole.remarks)
    if drop:
        seen = [column for column in columns if _gap(missing[:, column]) <= longest]
        # where none is left the first error says more
        columns = seen or columns
    names = [whole.names[column] for column in columns]
    if lost := [name for name in whole.names if name not in names]:
        many = f"{counted(len(lost), 'marker')} missing for longer than {MAX_GAP_S:g} s"
        more = ", ..." * (len(lost) > _LISTED)
        remarks.append(f"{many}, left out: {', '.join(lost[:_LISTED])}{more}")
    positions = fill_gaps(
        points[:, columns],
        missing[:, columns],
        names,
        max_frames=longest,
        what=path,
        begin=stretch.start,
    )
    if len(positions) < len(whole.positions):
        first = stretch.start + int(np.argmax(~missing[:, columns], axis=0).max())
        last = first + len(positions) - 1
        several = f"the longest of {len(stretches)} stretches with all markers"
        why = several if len(stretches) > 1 else "the others lack markers"
        frames = f"frames {first} to {last} of {len(whole.positions):,} are taken"
        remarks.append(f"{frames}: {why}")
    parents = whole.parents if len(columns) == len(whole.names) else None
    return Keypoints(positions, names, parents, tuple(remarks))


def body_stretches(missing: Bools, max_frames: int) -> list[slice]:
    """The runs of frames in which a body is in the volume, of missing samples (T, M).

    It is where at least half as many markers are seen as in the fullest frame; gaps of up to
    `max_frames` frames do not end a run, and shorter runs do not count beside longer ones.
    """
    seen = np.sum(~missing, axis=1)
    there = np.flatnonzero(2 * seen >= max(int(seen.max(initial=0)), 1))
    if not len(there):
        return [slice(0, len(missing))]
    runs = np.split(there, np.flatnonzero(np.diff(there) > max_frames + 1) + 1)
    stretches = [slice(int(run[0]), int(run[-1]) + 1) for run in runs]
    return [one for one in stretches if one.stop - one.start > max_frames] or stretches


def _gap(missing: Bools) -> int:
    """The longest run of frames in which a marker is missing between two in which it is seen; of
    one that is seen in less than half of the frames, all."""
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
    what: object,
    begin: int = 0,
) -> Array:
    """Positions (T', M, 3) without gaps, of points (T, M, 3) of which some are missing (T, M).

    Gaps of up to `max_frames` frames between known samples are filled by a cubic spline through all
    of the marker's known samples (a line where there are fewer than four). Frames before the last
    marker appears and after the first disappears are left out, up to half of all. begin: the first
    frame's number, for messages.

    Raises:
      InputError: naming the marker and its frames where that is not enough.
    """
    from scipy.interpolate import CubicSpline

    frames = len(points)
    present = np.logical_not(missing)
    never = ~present.any(axis=0)
    if never.any():
        gone = f"marker {names[int(np.argmax(never))]!r} is missing in all {frames} frames"
        raise InputError(f"{what}: {gone}; leave it out (C3D: names=)")
    first = np.argmax(present, axis=0)
    last = frames - 1 - np.argmax(present[::-1], axis=0)
    start, stop = int(first.max()), int(last.min()) + 1
    if stop - start < max(1, (frames + 1) // 2):
        late = names[int(np.argmax(first))]
        early = names[int(np.argmin(last))]
        raise InputError(
            f"{what}: marker {late!r} appears in frame {begin + start} and {early!r} is last seen "
            f"in frame {begin + stop - 1}; less than half of the {frames} frames with a body have "
            "all markers; leave them out (C3D: names=)"
        )
    filled = points.copy()
    for m, name in enumerate(names):
        gone_at = np.flatnonzero(missing[start:stop, m]) + start
        if not len(gone_at):
            continue
        for gap in np.split(gone_at, np.flatnonzero(np.diff(gone_at) > 1) + 1):
            if len(gap) > max_frames:
                most = f"more than the {max_frames} that are filled"
                ends = f"{begin + gap[0]} to {begin + gap[-1]}"
                where = f"frames {ends} ({len(gap)} frames, {most})"
                raise InputError(f"{what}: marker {name!r} is missing in {where}")
        seen = np.flatnonzero(present[:, m])
        if len(seen) >= 4:
            filled[gone_at, m] = CubicSpline(seen, points[seen, m], axis=0)(gone_at)
        else:
            for axis in range(3):
                filled[gone_at, m, axis] = np.interp(gone_at, seen, points[seen, m, axis])
    return filled[start:stop]
