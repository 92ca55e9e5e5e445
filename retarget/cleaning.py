"""From retargeted recordings to a training set: filters, chunks, mirrors, split and weights.

As Bohez et al. 2022 (arXiv 2203.17138) prepare their motions: stretches that the robot's actuators
could not follow, that leave the ground, or that stand around are cut out; what remains is cut into
chunks of at most 10 s and mirrored.

    recording -> stretches without a reason to drop them -> chunks -> mirrors -> split by recording
    -> weights

Every frame is either in exactly one chunk or in exactly one `Dropped`. Shapes: T frames, F feet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from scipy.ndimage import maximum_filter1d

from mocap_data.arrays import Array, Bools, set_fields
from mocap_data.errors import InputError, check_known, counted
from mocap_data.files import json_text
from mocap_data.motion import ReferenceMotion, smooth_speed, smoothed
from mocap_data.store import MotionSet
from npmp.core import ranges
from npmp.robots import Robot
from npmp.robots.self_collision import Pair, SelfCollision
from retarget import mirror, split, weights
from retarget.ground import runs
from retarget.options import by_name
from retarget.quality import QualityMeter, beyond_positions, beyond_speed
from retarget.split import recording_of

POSITION = "joint position limits"
VELOCITY = "joint velocity limits"
FEET_FAR = "feet far from the ground"
ERROR = "far from the recording"
SELF_COLLISION = "self-collision"
LYING = "trunk or legs in the ground"
STANDING = "standing around"
SHORT = "too short"
# the first that holds is given
REASONS = (POSITION, VELOCITY, FEET_FAR, ERROR, SELF_COLLISION, LYING, STANDING, SHORT)
# dropped as well on both sides of what is dropped, but for standing around [s]
MARGIN_S = 0.1
# slower is standing: the root [m/s], its turning and the joints' root mean square [rad/s], averaged
# over half a second
STANDING_MPS = 0.1
STANDING_RADPS = 0.2
MIRRORS = ("none", "left_right", "all")
# pairs that `Cleaned.worst_collisions` names
MAX_COLLISIONS = 3


@dataclass(frozen=True)
class CleanOptions:
    """What to drop, and how to cut. A threshold of None switches its filter off.

    Raises:
      InputError: for values that make no sense.
    """

    # drop what exceeds the joints' position limits
    position_limits: bool = True
    # drop what exceeds the joints' velocity limits
    velocity_limits: bool = True
    # drop where all feet are higher above the floor [m]: jumps, platforms
    feet_far_m: float | None = 0.06
    # for longer than this [s]
    feet_far_s: float = 0.1
    # drop where the markers are further from the recording, root mean square over half a second
    max_error_m: float | None = 0.035
    # drop where the robot's parts are deeper in each other
    self_collision_m: float | None = 0.001
    # drop where anything but the feet is deeper in the floor
    body_penetration_m: float | None = 0.005
    # drop what hardly moves for longer than this
    standing_s: float | None = 3.0
    # so much of each of these stays [s]
    keep_standing_s: float = 1.0
    # shorter rests are dropped [s]
    min_chunk_s: float = 1.0
    # longer stretches are cut into chunks of equal length [s]
    max_chunk_s: float = 10.0
    # "none", "left_right", or "all" that the robot has and their products
    mirrors: str = "none"
    # share of the seconds set aside for validation, by whole recordings
    validation: float = 0.0
    # in place of that share: recordings by name or pattern ("walk_*")
    validation_recordings: str | Sequence[str] = ()
    # weights that make sampling about uniform over speeds
    flatten: bool = True
    # of the choice of recordings for validation
    seed: int = 0

    def __post_init__(self) -> None:
        check_known("choice of mirrors", [self.mirrors], MIRRORS)
        ranges.not_negative(self, "feet_far_m", "feet_far_s", "max_error_m", "self_collision_m")
        ranges.not_negative(self, "body_penetration_m", "standing_s", "keep_standing_s")
        ranges.not_negative(self, "min_chunk_s", "max_chunk_s")
        shortest = self.min_chunk_s
        longest = self.max_chunk_s
        if longest < 2.0 * shortest:
            why = "a stretch a little longer than the one is cut in halves"
            least = f"max_chunk_s={longest:g} must be at least twice min_chunk_s={shortest:g}"
            raise InputError(f"{least}: {why}")
        if self.standing_s is not None and self.keep_standing_s > self.standing_s:
            keep = f"keep_standing_s={self.keep_standing_s:g}"
            raise InputError(f"{keep} exceeds standing_s={self.standing_s:g}")
        split.require_share(self.validation)
        named = self.validation_recordings
        named = (named,) if isinstance(named, str) else tuple(named)
        set_fields(self, validation_recordings=named)
        if self.validation and named:
            both = f"validation={self.validation} and validation_recordings"
            raise InputError(f"{both}: give a share or recordings, not both")


@dataclass(frozen=True)
class Dropped:
    """A stretch [start_s, stop_s) of a recording that is in no chunk, and why: of `REASONS`."""

    recording: str
    start_s: float
    stop_s: float
    reason: str


class DroppedTime(NamedTuple):
    """What one reason of `REASONS` took."""

    reason: str
    seconds: float
    # of all seconds
    share: float
    stretches: int
    # that lost something
    recordings: int


class Collision(NamedTuple):
    """Two of the robot's bodies that run into each other, deeper than `self_collision_m`."""

    pair: Pair
    seconds: float
    # of all seconds
    share: float
    depth_m: float

    def __str__(self) -> str:
        """ "FL_calf with FL_hip: 63 % of frames, 12 mm"."""
        deep = f"{100 * self.share:.2g} % of frames, {1e3 * self.depth_m:.2g} mm"
        return f"{' with '.join(self.pair)}: {deep}"


@dataclass(frozen=True)
class Cleaned:
    """A training set, and what did not get into it."""

    # chunk by chunk, each followed by its mirrors
    motions: MotionSet
    # in the order of the recordings
    dropped: tuple[Dropped, ...]
    # of all recordings
    seconds_in: float
    # of the chunks without their mirrors
    seconds_kept: float
    # of all recordings, the most frequent first
    collisions: tuple[Collision, ...] = ()

    @property
    def worst_collisions(self) -> str:
        """The pairs that run into each other most, in a line; "" where none does."""
        more = len(self.collisions) - MAX_COLLISIONS
        worst = "; ".join(map(str, self.collisions[:MAX_COLLISIONS]))
        return f"{worst}; and {more} more pairs" if more > 0 else worst

    @property
    def dropped_s(self) -> Mapping[str, float]:
        """Seconds by reason, of those reasons that there were."""
        return {row.reason: row.seconds for row in self.losses}

    @property
    def losses(self) -> list[DroppedTime]:
        """A row per reason that there was."""
        rows = []
        for reason in REASONS:
            entries = [entry for entry in self.dropped if entry.reason == reason]
            seconds = sum(entry.stop_s - entry.start_s for entry in entries)
            share = seconds / max(self.seconds_in, 1e-9)
            where = {e.recording for e in entries}
            if seconds > 0.0:
                rows.append(DroppedTime(reason, seconds, share, len(entries), len(where)))
        return rows

    def in_words(self) -> str:
        """What was kept, in a line."""
        motions = self.motions.motions
        mirrors = sum(bool(motion.mirror) for motion in motions)
        held = sum(motion.duration_s for motion in motions if motion.split == "validation")
        parts = [
            f"kept {self.seconds_kept:.1f} of {self.seconds_in:.1f} s in "
            f"{counted(len(motions) - mirrors, 'chunk')}"
        ]
        parts += [f"{counted(mirrors, 'mirror image')} of them"] if mirrors else []
        parts += [f"{held:.1f} s of all for validation"] if held else []
        return ", ".join(parts)


class Cleaner:
    """A robot made ready for cleaning. Not to be shared between threads."""

    def __init__(self, robot: Robot, options: CleanOptions) -> None:
        self.robot = robot
        self.options = options
        self.meter = QualityMeter(robot)
        self._collision = SelfCollision(robot)
        # of the pairs that touched so far: seconds, and the deepest [m]
        self._touched: dict[Pair, tuple[float, float]] = {}

    def reasons(self, motion: ReferenceMotion) -> Iterator[tuple[str, Bools]]:
        """Reasons to drop frames of a motion and where they hold, (T,), without margins."""
        options = self.options
        robot = self.robot
        rate = motion.rate_hz
        if options.position_limits:
            beyond = beyond_positions(motion.qpos[:, 7:], robot.joint_lower, robot.joint_upper)
            yield POSITION, np.asarray(beyond.any(axis=1))
        if options.velocity_limits:
            fast = beyond_speed(motion.qvel[:, 6:], robot.velocity_limit)
            yield VELOCITY, np.asarray(fast.any(axis=1))
        if options.feet_far_m is not None:
            clearance = self.meter.feet(motion)[..., 2].min(axis=(1, 2)) - robot.foot_radius
            yield FEET_FAR, longer(clearance > options.feet_far_m, options.feet_far_s, rate)
        if options.max_error_m is not None and "marker_rms_m" in motion.frame_quality:
            mean_square = smoothed(np.square(motion.frame_quality["marker_rms_m"]), rate)
            yield ERROR, np.sqrt(mean_square) > options.max_error_m
        if options.self_collision_m is not None or options.body_penetration_m is not None:
            itself, below = self._collision.depths(motion.qpos)
            if options.self_collision_m is not None:
                deep = itself > options.self_collision_m
                self._note(motion.qpos[deep], options.self_collision_m, rate)
                yield SELF_COLLISION, deep
            if options.body_penetration_m is not None:
                yield LYING, below > options.body_penetration_m

    def _note(self, poses: Array, beyond_m: float, rate_hz: float) -> None:
        """Add up which pairs are deeper than that in poses (T, 7 + J)."""
        for pair, depth in self._collision.pairs(poses).items():
            seconds, deepest = self._touched.get(pair, (0.0, 0.0))
            seconds += float((depth > beyond_m).sum()) / rate_hz
            if seconds > 0:
                self._touched[pair] = seconds, max(deepest, float(depth.max()))

    def collisions(self, seconds_in: float) -> tuple[Collision, ...]:
        """The pairs of all motions so far, the most frequent first. seconds_in: of the motions."""
        rows = [
            Collision(pair, seconds, seconds / max(seconds_in, 1e-9), depth)
            for pair, (seconds, depth) in self._touched.items()
        ]
        return tuple(sorted(rows, key=lambda row: (-row.seconds, row.pair)))

    def standing(self, motion: ReferenceMotion) -> Bools:
        """Where a motion (T,) has hardly moved for long, but for the beginning that is kept."""
        options = self.options
        rate = motion.rate_hz
        if options.standing_s is None:
            return np.zeros(motion.num_frames, dtype=bool)
        travel = np.linalg.norm(smoothed(motion.qvel[:, :3], rate), axis=1)
        turn = np.linalg.norm(smoothed(motion.qvel[:, 3:6], rate), axis=1)
        squares = np.square(motion.qvel[:, 6:]).sum(axis=1) / max(1, motion.qvel.shape[1] - 6)
        joints = np.sqrt(smoothed(squares, rate))
        slow = (travel < STANDING_MPS) & (turn < STANDING_RADPS) & (joints < STANDING_RADPS)
        still = longer(slow, options.standing_s, rate)
        for start, stop in runs(still):
            still[start : min(stop, start + round(options.keep_standing_s * rate))] = False
        return still

    def labels(self, motion: ReferenceMotion) -> np.ndarray:
        """Of each frame (T,) the index in `REASONS` of why it is dropped, or -1."""
        rate = motion.rate_hz
        out = np.full(motion.num_frames, -1)
        window = 2 * round(MARGIN_S * rate) + 1
        masks = {
            reason: maximum_filter1d(where, window, mode="constant")
            for reason, where in self.reasons(motion)
        }
        masks[STANDING] = self.standing(motion)
        # the first in the list has the last word
        for index, reason in reversed(list(enumerate(REASONS))):
            if reason in masks:
                out[masks[reason]] = index
        shortest = math.ceil(self.options.min_chunk_s * rate - 1e-9)
        for start, stop in runs(out < 0):
            if stop - start < max(shortest, 2):
                out[start:stop] = REASONS.index(SHORT)
        return out

    def stretches(self, motion: ReferenceMotion) -> tuple[list[tuple[int, int]], list[Dropped]]:
        """The frames [start, stop) of each chunk, and what is dropped; together all frames."""
        label = self.labels(motion)
        rate = motion.rate_hz
        begin = motion.start_s
        longest = self.options.max_chunk_s * rate
        name = recording_of(motion)
        kept = [piece for run in runs(label < 0) for piece in pieces(*run, longest)]
        edges = np.concatenate(([0], np.flatnonzero(np.diff(label)) + 1, [len(label)]))
        dropped = [
            Dropped(name, begin + start / rate, begin + stop / rate, REASONS[label[start]])
            for start, stop in pairwise(edges.tolist())
            if label[start] >= 0
        ]
        return kept, dropped


def clean(
    motion_set: MotionSet,
    robot: Robot,
    *,
    origins: Mapping[str, str] = MappingProxyType({}),
    **options: Any,
) -> Cleaned:
    """A training set out of retargeted recordings; it may be empty.

    Chunks are called RECORDING_c00, _c01, ..., their mirrors RECORDING_c00_lr, _fb, _lrfb; a
    recording that is kept whole keeps its name. Figures of quality are found anew, those of mirrors
    are the same. The options are kept in the result's provenance under "cleaning".
    origins: of recordings that are stretches of one, which one: see `split.split`.
    options: the fields of `CleanOptions`.

    Raises:
      InputError: for bad options, motions of another robot, and mirrors that the robot lacks.
    """
    chosen = by_name(CleanOptions, options, "cleaning option")
    if motion_set.joint_names != tuple(robot.joint_names):
        raise InputError(f"the motions are of robot '{motion_set.robot}', expected '{robot.name}'")
    cleaner = Cleaner(robot, chosen)
    choice = chosen.mirrors
    ways = {"none": (), "all": mirror.combinations(robot)}.get(choice, (choice,))
    motions: list[ReferenceMotion] = []
    speeds: list[Array] = []
    dropped: list[Dropped] = []
    used = set(motion_set.names)
    kept_s = 0.0
    for motion in motion_set.motions:
        kept, gone = cleaner.stretches(motion)
        dropped += gone
        for (start, stop), name in zip(kept, chunk_names(motion, kept), strict=True):
            name = name if name == motion.name else unused(name, used)
            part = replace(motion.crop(start, stop), name=name, recording=recording_of(motion))
            part = cleaner.meter.measured(part)
            kept_s += part.duration_s
            motions.append(part)
            for way in ways:
                image = unused(part.name + mirror.suffix(way), used)
                motions.append(mirror.mirror(part, robot, way, name=image))
            # the chunk's first velocity leads to it from a frame that the chunk does not hold
            speed = smooth_speed(motion.qvel[start:stop, :2], motion.rate_hz)
            speeds += [speed] * (1 + len(ways))
    held_out = tuple(chosen.validation_recordings)
    divided = split.split(
        motions, chosen.validation, chosen.seed, origins, recordings=held_out, known=speeds
    )
    if chosen.flatten and divided:
        divided = weights.weigh(divided, speeds)
    provenance = {**motion_set.provenance, "cleaning": json_text(asdict(chosen))}
    result = replace(motion_set, motions=divided, provenance=provenance)
    seconds = sum(motion.duration_s for motion in motion_set.motions)
    return Cleaned(result, tuple(dropped), seconds, kept_s, cleaner.collisions(seconds))


def chunk_names(motion: ReferenceMotion, kept: Sequence[tuple[int, int]]) -> list[str]:
    """A name for each chunk of a motion."""
    if list(kept) == [(0, motion.num_frames)]:
        return [motion.name]
    digits = max(2, len(str(len(kept) - 1)))
    return [f"{motion.name}_c{number:0{digits}d}" for number in range(len(kept))]


def unused(name: str, used: set[str]) -> str:
    """`name`, with a number behind it where it is in `used`; adds it."""
    free = name
    number = 2
    while free in used:
        free = f"{name}_{number}"
        number = number + 1
    used.add(free)
    return free


def longer(where: Bools, seconds: float, rate_hz: float) -> Bools:
    """Only those stretches of `where` (T,) that last longer."""
    out = where.copy()
    for start, stop in runs(where):
        if (stop - start) / rate_hz <= seconds:
            out[start:stop] = False
    return out


def pieces(start: int, stop: int, longest: float) -> list[tuple[int, int]]:
    """Frames [start, stop) in as few pieces of at most `longest` as possible, equal to a frame."""
    count = max(1, math.ceil((stop - start) / max(1, math.floor(longest + 1e-9))))
    return list(pairwise([start + (stop - start) * i // count for i in range(count + 1)]))
