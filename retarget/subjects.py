"""Recordings of one subject: clips with bones of the same lengths, and the skeleton of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError
from retarget.skeletons import Skeleton, find_skeleton

# a clip's name and the error of it
Refused = tuple[str, InputError]
# relative difference of bone lengths, root of squares
_SAME_BONES = 0.03


@dataclass(frozen=True)
class Subject:
    """Clips of one subject, and the skeleton of their keypoints."""

    clips: tuple[Clip, ...]
    skeleton: Skeleton

    def select(self, clips: Sequence[Clip]) -> Subject:
        """The subject with only these clips."""
        return replace(self, clips=tuple(clips))


def subjects_of(
    clips: Sequence[Clip],
    markers: Sequence[str] = (),
    skeleton: str | None = None,
    refused: list[Refused] | None = None,
) -> list[Subject]:
    """The clips by subject, in order of first appearance, each with its skeleton.

    markers, skeleton: as of `find_skeleton`. refused: where passed, clips without a skeleton are
    appended to it with their error.

    Raises:
      InputError: as `find_skeleton`.
    """
    subjects = []
    for group in group_by_bones(clips):
        try:
            subjects.append(Subject(tuple(group), find_skeleton(group, markers, skeleton)))
        except InputError as error:
            if refused is None:
                raise
            refused += [(clip.name, error) for clip in group]
    return subjects


def group_by_bones(clips: Sequence[Clip]) -> list[list[Clip]]:
    """The clips in groups with the same keypoint names and bones of the same lengths."""
    groups: list[tuple[tuple[str, ...], Array, list[Clip]]] = []
    for clip in clips:
        bones = _bone_lengths(clip)
        for names, first, members in groups:
            most = _SAME_BONES * np.linalg.norm(first)
            if names == clip.names and np.linalg.norm(bones - first) <= most:
                members.append(clip)
                break
        else:
            groups.append((clip.names, bones, [clip]))
    return [members for _, _, members in groups]


def _bone_lengths(clip: Clip) -> Array:
    """Median lengths (N,) [m] of the bones; a single zero for a clip without bones."""
    if clip.parents is None or max(clip.parents) < 0:
        return np.zeros(1)
    positions = clip.positions[:: max(1, clip.num_frames // 50)]
    parents = np.array(clip.parents)
    child = np.flatnonzero(parents >= 0)
    bones = positions[:, child] - positions[:, parents[child]]
    return np.asarray(np.median(np.linalg.norm(bones, axis=-1), axis=0))
