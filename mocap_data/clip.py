"""Clip: a recorded motion as keypoints in the world."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from mocap_data.arrays import Array, read_only, require_moderate, require_rate, set_fields, unique
from mocap_data.errors import InputError, check_available, frame_range


@dataclass(frozen=True, eq=False, repr=False)
class Clip:
    """Keypoints over time in a right-handed world, Z up; the heading is the recording's.

    Raises:
      InputError: wrong shapes, values that are not finite, repeated names, or an impossible rate or
        coordinate.
    """

    # (T, M, 3) [m], world frame, read-only
    positions: Array
    # M unique keypoint names
    names: tuple[str, ...]
    # frames per second
    rate_hz: float
    # a file's name, or a generator
    source: str = "unknown"
    # of the recording
    licence: str = "unknown"
    # becomes the clip's group in a motion file
    name: str = "clip"
    # per keypoint the index of its parent, -1 for a root; None: unknown
    parents: tuple[int, ...] | None = None
    # values that the file lacks and its reader assumed: "rate_hz", "scale", "up", "names"
    assumed: tuple[str, ...] = ()
    # selections and omissions of its reader, a sentence each
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        clip = f"clip {self.name!r}"
        names = tuple(str(name) for name in self.names)
        shape = f"(T, {len(names)}, 3)"
        label = f"{clip}: positions"
        positions = read_only(self.positions, shape=shape, label=label)
        require_moderate(positions, label)
        rate_hz = require_rate(self.rate_hz, f"{clip}:")
        set_fields(self, names=names, positions=positions, rate_hz=rate_hz)
        if not names:
            raise InputError(f"{clip} has no keypoints")
        unique(names, f"{clip}: keypoint")
        if self.parents is not None:
            parents = tuple(int(parent) for parent in self.parents)
            count = len(names)
            if len(parents) != count or not all(-1 <= p < count for p in parents):
                raise InputError(f"{clip}: parents must be {count} indices from -1 to {count - 1}")
            try:
                TopologicalSorter({i: (parent,) for i, parent in enumerate(parents)}).prepare()
            except CycleError:
                raise InputError(f"{clip}: parents form a cycle") from None
            set_fields(self, parents=parents)

    def __repr__(self) -> str:
        size = f"{self.num_frames} frames of {len(self.names)} keypoints at {self.rate_hz:g} Hz"
        return f"<Clip {self.name!r}: {size}, from {self.source!r}>"

    @property
    def num_frames(self) -> int:
        """T."""
        return int(self.positions.shape[0])

    @property
    def duration_s(self) -> float:
        """T / rate [s]."""
        return self.num_frames / self.rate_hz

    def index(self, name: str) -> int:
        """The index of keypoint `name`. Raises InputError for an unknown name."""
        check_available(f"keypoint (clip {self.name!r})", [name], self.names)
        return self.names.index(name)

    def select(self, names: Sequence[str]) -> Clip:
        """The clip with only the keypoints `names`, in that order, and the parents among them.

        Raises:
          InputError: an unknown or a repeated name, or none.
        """
        columns = [self.index(name) for name in names]
        place = {column: i for i, column in enumerate(columns)} | {-1: -1}
        parents: tuple[int, ...] | None = None
        if self.parents is not None:
            parents = ()
            for up in (self.parents[column] for column in columns):
                while up not in place:
                    up = self.parents[up]
                parents += (place[up],)
        return dataclasses.replace(
            self, positions=self.positions[:, columns], names=tuple(names), parents=parents
        )

    def crop(self, start: int, stop: int | None = None) -> Clip:
        """Frames [start, stop), stop by default the end.

        Raises:
          InputError: unless 0 <= start < stop <= T.
        """
        part = frame_range(f"clip {self.name!r}", start, stop, self.num_frames)
        return dataclasses.replace(self, positions=self.positions[part])
