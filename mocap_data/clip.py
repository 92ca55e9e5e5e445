"""A recorded motion as keypoints in the world."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mocap_data.arrays import Array, read_only
from mocap_data.errors import InputError, stretch, unknown
from mocap_data.sanity import require_moderate, require_rate

_CYCLE = -2


def _ancestor(parents: Sequence[int], child: int, among: Collection[int]) -> int:
    """The nearest ancestor of `child` that is `among` some, -1 where there is none, _CYCLE where
    the way leads in a circle."""
    at = parents[child]
    for _ in range(len(parents)):
        if at < 0 or at in among:
            return at
        at = parents[at]
    return _CYCLE


@dataclass(frozen=True, eq=False, repr=False)
class Clip:
    """Keypoints over time, as every reader returns them and every later stage takes them.

    The world is right-handed with Z up, in metres. "X forward" names the convention for rest poses
    and generated motion; a recording keeps the heading it was captured with, which is arbitrary.

    positions: (T, M, 3) [m], world frame, read-only.
    names: M unique keypoint names.
    rate_hz: frames per second.
    source: where the motion comes from (a file name or a generator).
    licence: of the recording; "unknown" unless the one who reads it says so.
    name: what to call the clip; becomes its group in a motion file.
    parents: per keypoint the index of the keypoint it hangs from, -1 for a root; None when not
    known.

    Raises:
      InputError: for wrong shapes, values that are not finite, repeated names, or a rate or
        coordinates that no recording has.
    """

    positions: Array
    names: tuple[str, ...]
    rate_hz: float
    source: str = "unknown"
    licence: str = "unknown"
    name: str = "clip"
    parents: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the way to normalise fields of a frozen dataclass
        set_field(self, "names", tuple(str(name) for name in self.names))
        what = f"clip {self.name!r}: positions"
        set_field(
            self,
            "positions",
            read_only(self.positions, shape=f"(T, {len(self.names)}, 3)", what=what),
        )
        require_moderate(self.positions, what)
        set_field(self, "rate_hz", require_rate(self.rate_hz, f"clip {self.name!r}:"))
        if not self.names:
            raise InputError(f"clip {self.name!r} has no keypoints")
        repeated = sorted({name for name in self.names if self.names.count(name) > 1})
        if repeated:
            raise InputError(
                f"clip {self.name!r}: keypoint name {repeated[0]!r} appears more than once"
            )
        if self.parents is not None:
            set_field(self, "parents", tuple(int(parent) for parent in self.parents))
            count = len(self.names)
            if len(self.parents) != count or not all(-1 <= p < count for p in self.parents):
                raise InputError(
                    f"clip {self.name!r}: parents must be {count} indices from -1 to {count - 1}"
                )
            if any(_ancestor(self.parents, i, set()) == _CYCLE for i in range(count)):
                raise InputError(f"clip {self.name!r}: parents lead in a circle")

    def __repr__(self) -> str:
        size = f"{self.num_frames} frames of {len(self.names)} keypoints at {self.rate_hz:g} Hz"
        return f"<Clip {self.name!r}: {size}, from {self.source!r}>"

    @property
    def num_frames(self) -> int:
        """T."""
        return int(self.positions.shape[0])

    @property
    def duration_s(self) -> float:
        """T / rate [s]: every frame lasts one period."""
        return self.num_frames / self.rate_hz

    def index(self, name: str) -> int:
        """The place of keypoint `name`.

        Raises:
          InputError: naming the keypoints there are.
        """
        try:
            return self.names.index(name)
        except ValueError:
            raise unknown(f"keypoint (clip {self.name!r})", name, self.names) from None

    def select(self, names: Sequence[str]) -> Clip:
        """The clip with only the keypoints `names`, in that order; each hangs from its nearest
        ancestor among them.

        Raises:
          InputError: for an unknown or a repeated name, or none.
        """
        columns = [self.index(name) for name in names]
        parents = None
        if self.parents is not None:
            place = {column: i for i, column in enumerate(columns)}
            nearest = [_ancestor(self.parents, column, set(columns)) for column in columns]
            parents = tuple(place.get(column, -1) for column in nearest)
        return dataclasses.replace(
            self, positions=self.positions[:, columns], names=tuple(names), parents=parents
        )

    def crop(self, start: int, stop: int | None = None) -> Clip:
        """Frames [start, stop), stop by default the end.

        Raises:
          InputError: unless 0 <= start < stop <= T: a crop is never silently shorter than asked
            for.
        """
        part = stretch(f"clip {self.name!r}", start, stop, self.num_frames)
        return dataclasses.replace(self, positions=self.positions[part])
