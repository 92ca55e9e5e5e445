"""From retargeted recordings to a training set: filters, chunks, mirrors, split and weights.

As Bohez et al. 2022 (arXiv 2203.17138) prepare their motions: stretches that the robot's actuators
could not follow, that leave the ground, or that stand around are cut out; what remains is cut into
chunks of at most 10 s and mirrored.

    recording -> stretches without a reason to drop them -> chunks -> mirrors -> split by recording
    -> weights

Every frame that comes in is either in exactly one chunk or in exactly one `Dropped`.
Shapes: T frames, F feet.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from scipy.ndimage import binary_dilation, uniform_filter1d

from mocap_data.arrays import Array
from mocap_data.errors import InputError, unknown
from mocap_data.motion import ReferenceMotion, smooth_speed
from mocap_data.store import MotionSet
from npmp.robots import Robot
from retarget import mirror, split, weights
from retarget.ground import Bools, runs
from retarget.options import by_name, require
from retarget.quality import QualityMeter, beyond_positions, beyond_speed
from retarget.self_collision import SelfCollision
from retarget.split import recording_of

POSITION, VELOCITY, FEET_FAR, STANDING, ERROR, SELF_COLLISION, LYING, SHORT = (
    "joint position limits",
    "joint velocity limits",
    "feet far from the ground",
    "standing around",
    "far from the recording",
    "self-collision",
    "trunk or legs in the ground",
    "too short",
)
# the first that holds is given
REASONS = (POSITION, VELOCITY, FEET_FAR, ERROR, SELF_COLLISION, LYING, STANDING, SHORT)
MIRRORS = ("none", "left_right", "all")


@dataclass(frozen=True)
class CleanOptions:
    """What to drop, and how to cut. A threshold of None switches its filter off.

    position_limits, velocity_limits: drop what exceeds the robot's joint limits.
    feet_far_m, feet_far_s: drop where all feet are higher above the ground than this for longer
    than this: jumps,
      platforms.
    max_error_m: drop where the robot's markers are further (root mean square over the markers,
    averaged over half a
        second) from the recording's; needs the motions' figure marker_rms_m.
    self_collision_m: drop where the robot's parts are deeper in each other.
    body_penetration_m: drop where anything but the feet is deeper in the ground.
    standing_s: drop what hardly moves for longer than this, but for its first keep_standing_s.
    standing_mps, standing_radps: hardly moving is a root slower and turning slower than these, and
    joints slower (root
        mean square over the joints) than standing_radps, all averaged over half a second.
    margin_s: dropped as well, before and after what is dropped for another reason than standing
    around. min_chunk_s: shorter rests are dropped.
    max_chunk_s: longer stretches are cut into chunks of equal length.
    mirrors: "none", "left_right", or "all" that the robot has and their products.
    validation: share of the seconds, by whole recordings, that is set aside for validation.
    validation_recordings: in place of that share, recordings by name or pattern ("walk_*").
    flatten: weights that make sampling about uniform over speeds.
    max_weight_ratio: between the largest and the smallest weight, at most.
    seed: of the choice of recordings for validation.

    Raises:
      InputError: for values that make no sense.
    """

    position_limits: bool = True
    velocity_limits: bool = True
    feet_far_m: float | None = 0.06
    feet_far_s: float = 0.1
    max_error_m: float | None = 0.035
    self_collision_m: float | None = 0.001
    body_penetration_m: float | None = 0.005
    standing_s: float | None = 3.0
    keep_standing_s: float = 1.0
    standing_mps: float = 0.1
    standing_radps: float = 0.2
    margin_s: float = 0.1
    min_chunk_s: float = 1.0
    max_chunk_s: float = 10.0
    mirrors: str = "none"
    validation: float = 0.0
    validation_recordings: str | Sequence[str] = ()
    flatten: bool = True
    max_weight_ratio: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.mirrors not in MIRRORS:
            raise unknown("choice of mirrors", self.mirrors, MIRRORS)
        require(
            self, "feet_far_m", "feet_far_s", "max_error_m", "self_collision_m", "body_penetration_m", "standing_s",
            "keep_standing_s", "standing_mps", "standing_radps", "margin_s", "min_chunk_s", "max_chunk_s",
        )  # fmt: skip
        if self.max_chunk_s < 2.0 * self.min_chunk_s:
            raise InputError(
                f"max_chunk_s={self.max_chunk_s:g} must be at least twice min_chunk_s={self.min_chunk_s:g}: "
                "a stretch a little longer than the one is cut in halves"
            )
        if self.standing_s is not None and self.keep_standing_s > self.standing_s:
            raise InputError(
                f"keep_standing_s={self.keep_standing_s:g} exceeds standing_s={self.standing_s:g}"
            )
        if not 0.0 <= self.validation < 1.0:
            raise InputError(
                f"validation={self.validation}: the share for validation is at least 0 and below 1"
            )
        named = self.validation_recordings
        object.__setattr__(
            self, "validation_recordings", (named,) if isinstance(named, str) else tuple(named)
        )
        if self.validation and self.validation_recordings:
            raise InputError(
                f"validation={self.validation} and validation_recordings: give a share or recordings, not both"
            )
        if not self.max_weight_ratio >= 1.0:
            raise InputError(f"max_weight_ratio={self.max_weight_ratio} must be at least 1")


@dataclass(frozen=True)
class Dropped:
    """A stretch [start_s, stop_s) of a recording that is in no chunk, and why: one of `REASONS`."""

    recording: str
    start_s: float
    stop_s: float
    reason: str

    @property
    def duration_s(self) -> float:
        """Its length [s]."""
        return self.stop_s - self.start_s


class Loss(NamedTuple):
    """What one reason of `REASONS` took."""

    reason: str
    seconds: float
    share: float  # of all seconds
    stretches: int
    recordings: int  # that lost something


@dataclass(frozen=True)
class Cleaned:
    """A training set, and what did not get into it.

    motions: chunks and their mirrors, chunk by chunk, each followed by its mirrors.
    dropped: in the order of the recordings.
    seconds_in: of all recordings; seconds_kept of the chunks without their mirrors [s].
    """

    motions: MotionSet
    dropped: tuple[Dropped, ...]
    seconds_in: float
    seconds_kept: float

    @property
    def dropped_s(self) -> Mapping[str, float]:
        """Seconds by reason, of those reasons that there were."""
        found: dict[str, float] = {}
        for reason in REASONS:
            total = sum(entry.duration_s for entry in self.dropped if entry.reason == reason)
            if total > 0.0:
                found[reason] = total
        return found

    @property
    def losses(self) -> list[Loss]:
        """A row per reason that there was."""
        rows = []
        for reason, seconds in self.dropped_s.items():
            where = [entry.recording for entry in self.dropped if entry.reason == reason]
            share = seconds / max(self.seconds_in, 1e-9)
            rows.append(Loss(reason, seconds, share, len(where), len(set(where))))
        return rows


@dataclass(frozen=True)
class Cleaner:
    """A robot made ready for cleaning. Not to be shared between threads."""

    robot: Robot
    options: CleanOptions
    meter: QualityMeter = field(repr=False)
    collision: SelfCollision = field(repr=False)

    def reasons(self, motion: ReferenceMotion) -> Iterator[tuple[str, Bools]]:
        """Reasons to drop frames of a motion and where they hold, (T,), without margins."""
        options, robot, rate = self.options, self.robot, motion.rate_hz
        if options.position_limits:
            beyond = beyond_positions(motion.qpos[:, 7:], robot.joint_lower, robot.joint_upper)
            yield POSITION, np.asarray(beyond.any(axis=1))
        if options.velocity_limits:
            yield (
                VELOCITY,
                np.asarray(beyond_speed(motion.qvel[:, 6:], robot.velocity_limit).any(axis=1)),
            )
        if options.feet_far_m is not None:
            clearance = self.meter.feet(motion)[..., 2].min(axis=(1, 2)) - robot.foot_radius
            yield FEET_FAR, longer(clearance > options.feet_far_m, options.feet_far_s, rate)
        if options.max_error_m is not None and "marker_rms_m" in motion.frame_quality:
            mean_square = smoothed(np.square(motion.frame_quality["marker_rms_m"]), rate)
            yield ERROR, np.sqrt(mean_square) > options.max_error_m
        if options.self_collision_m is not None or options.body_penetration_m is not None:
            itself, below = self.collision.depths(motion.qpos)
            if options.self_collision_m is not None:
                yield SELF_COLLISION, itself > options.self_collision_m
            if options.body_penetration_m is not None:
                yield LYING, below > options.body_penetration_m

    def standing(self, motion: ReferenceMotion) -> Bools:
        """Where a motion (T,) has hardly moved for long, but for the beginning that is kept."""
        options, rate = self.options, motion.rate_hz
        if options.standing_s is None:
            return np.zeros(motion.num_frames, dtype=bool)
        still = longer(
            hardly_moving(motion, options.standing_mps, options.standing_radps),
            options.standing_s,
            rate,
        )
        for start, stop in runs(still):
            still[start : min(stop, start + round(options.keep_standing_s * rate))] = False
        return still

    def labels(self, motion: ReferenceMotion) -> np.ndarray:
        """Of each frame (T,) the index in `REASONS` of why it is dropped, or -1."""
        rate, out = motion.rate_hz, np.full(motion.num_frames, -1)
        margin = round(self.options.margin_s * rate)
        found = [(reason, widened(where, margin)) for reason, where in self.reasons(motion)]
        found.append((STANDING, self.standing(motion)))
        for reason, where in sorted(found, key=lambda entry: REASONS.index(entry[0]), reverse=True):
            out[where] = REASONS.index(reason)  # the first in the list has the last word
        shortest = math.ceil(self.options.min_chunk_s * rate - 1e-9)
        for start, stop in runs(out < 0):
            if stop - start < max(shortest, 2):
                out[start:stop] = REASONS.index(SHORT)
        return out

    def stretches(self, motion: ReferenceMotion) -> tuple[list[tuple[int, int]], list[Dropped]]:
        """The frames [start, stop) of each chunk, and what is dropped; together they are the whole
        motion."""
        label, rate = self.labels(motion), motion.rate_hz
        kept = [
            piece
            for start, stop in runs(label < 0)
            for piece in pieces(start, stop, self.options.max_chunk_s * rate)
        ]
        edges = np.concatenate(([0], np.flatnonzero(np.diff(label)) + 1, [len(label)]))
        dropped = [
            Dropped(
                recording_of(motion),
                motion.start_s + start / rate,
                motion.start_s + stop / rate,
                REASONS[label[start]],
            )
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
    """A training set out of retargeted recordings.

    Chunks are called RECORDING_c00, _c01, ..., their mirrors RECORDING_c00_lr, _fb, _lrfb; a
    recording that is kept whole in one piece keeps its name. Their figures of quality are found
    anew, those of mirrors are the same. The options are kept in the result's provenance under
    "cleaning".
    origins: of recordings that are stretches of one, which one: see `split.split`.
    options: the fields of `CleanOptions`.

    That everything is dropped is no error.

    Raises:
      InputError: for bad options, motions of another robot, and mirrors that the robot does not
        have.
    """
    chosen = clean_options(options)
    if motion_set.joint_names != tuple(robot.joint_names):
        raise InputError(f"the motions are of robot '{motion_set.robot}', expected '{robot.name}'")
    meter = QualityMeter(robot)
    cleaner = Cleaner(robot, chosen, meter, SelfCollision(robot))
    ways = mirrors_of(robot, chosen.mirrors)
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
            part = meter.measured(part)
            kept_s += part.duration_s
            motions.append(part)
            motions += [
                mirror.mirror(part, robot, way, name=unused(part.name + mirror.suffix(way), used))
                for way in ways
            ]
            # the chunk's first velocity leads to it from a frame that the chunk does not hold
            speed = smooth_speed(motion.qvel[start:stop, :2], motion.rate_hz)
            speeds += [speed] * (1 + len(ways))
    held_out = tuple(chosen.validation_recordings)
    divided = split.split(
        motions, chosen.validation, chosen.seed, origins, recordings=held_out, known=speeds
    )
    if chosen.flatten and divided:
        divided = weights.weigh(divided, max_ratio=chosen.max_weight_ratio, known=speeds)
    provenance = {**motion_set.provenance, "cleaning": json.dumps(asdict(chosen))}
    return Cleaned(
        replace(motion_set, motions=divided, provenance=provenance),
        tuple(dropped),
        sum(motion.duration_s for motion in motion_set.motions),
        kept_s,
    )


def chunk_names(motion: ReferenceMotion, kept: Sequence[tuple[int, int]]) -> list[str]:
    """A name for each chunk of a motion."""
    if list(kept) == [(0, motion.num_frames)]:
        return [motion.name]
    digits = max(2, len(str(len(kept) - 1)))
    return [f"{motion.name}_c{number:0{digits}d}" for number in range(len(kept))]


def unused(name: str, used: set[str]) -> str:
    """`name`, with a number behind it where it is in `used` (a recording may be called like
    another's mirror); adds it."""
    free, number = name, 2
    while free in used:
        free, number = f"{name}_{number}", number + 1
    used.add(free)
    return free


def clean_options(given: Mapping[str, Any]) -> CleanOptions:
    """The options by name.

    Raises:
      InputError: for an unknown one or a value that makes no sense.
    """
    return by_name(CleanOptions, given, "cleaning option")


def mirrors_of(robot: Robot, choice: str) -> tuple[str, ...]:
    """The mirrors to make: none, left_right, or all of the robot's.

    Raises:
      InputError: for one that it does not have.
    """
    if choice == "none":
        return ()
    if choice == "all":
        return mirror.combinations(robot)
    if choice not in robot.symmetries:
        raise unknown(f"mirror of robot '{robot.name}'", choice, tuple(robot.symmetries))
    return (choice,)


def smoothed(values: Array, rate_hz: float) -> Array:
    """`values` (T, ...) averaged over half a second."""
    return np.asarray(
        uniform_filter1d(values, max(1, round(rate_hz / 2)) | 1, axis=0, mode="nearest")
    )


def hardly_moving(motion: ReferenceMotion, speed: float, turning: float) -> Bools:
    """Where (T,) the root is slower than `speed` [m/s], and it and the joints turn slower than
    `turning` [rad/s]."""
    rate = motion.rate_hz
    travel = np.linalg.norm(smoothed(motion.qvel[:, :3], rate), axis=1)
    turn = np.linalg.norm(smoothed(motion.qvel[:, 3:6], rate), axis=1)
    joints = (
        np.sqrt(smoothed(np.square(motion.qvel[:, 6:]).mean(axis=1), rate))
        if motion.qvel.shape[1] > 6
        else 0.0 * turn
    )
    return np.asarray((travel < speed) & (turn < turning) & (joints < turning))


def longer(where: Bools, seconds: float, rate_hz: float) -> Bools:
    """Only those stretches of `where` (T,) that last longer."""
    out = where.copy()
    for start, stop in runs(where):
        if (stop - start) / rate_hz <= seconds:
            out[start:stop] = False
    return out


def widened(where: Bools, frames: int) -> Bools:
    """`where` (T,) and `frames` more on either side."""
    return (
        np.asarray(binary_dilation(where, iterations=frames))
        if frames > 0 and where.any()
        else where
    )


def pieces(start: int, stop: int, longest: float) -> list[tuple[int, int]]:
    """Frames [start, stop) cut into as few pieces of at most `longest` frames as possible, equal to
    a frame."""
    count = max(1, math.ceil((stop - start) / max(1, math.floor(longest + 1e-9))))
    edges = [start + (stop - start) * i // count for i in range(count + 1)]
    return list(pairwise(edges))
