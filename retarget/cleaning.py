"""From retargeted recordings to a training set: filters, chunks, mirrors, split and weights.

As in Bohez et al. 2022 (arXiv 2203.17138): drop stretches beyond the limits of the actuators, far
from the ground or without movement; cut the rest into chunks of at most 10 s, and mirror them.

    recording -> valid stretches -> chunks -> mirrors -> split by recording -> weights

Every frame is in exactly one chunk or in exactly one `Dropped`. Shapes: T frames, F feet.
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
from mocap_data.errors import InputError, check_available, counted
from mocap_data.files import json_text
from mocap_data.motion import ReferenceMotion, smooth_speed, smoothed
from mocap_data.store import MotionSet
from npmp.core import ranges
from npmp.robots import Robot
from npmp.robots.self_collision import Pair, SelfCollision
from retarget import mirror, split, weights
from retarget.ground import runs
from retarget.options import from_mapping
from retarget.quality import FOOT_ERROR, QualityMeter, beyond_positions, beyond_speed
from retarget.split import recording_of

POSITION = "joint position limits"
VELOCITY = "joint velocity limits"
FEET_FAR = "feet far from the ground"
ERROR = "far from the recording"
FOOTHOLD = "no foothold"
SELF_COLLISION = "self-collision"
LYING = "trunk or legs in the ground"
STANDING = "standing around"
SHORT = "too short"
# the option of each reason, by priority
OPTION_OF = {
    POSITION: "position_limits",
    VELOCITY: "velocity_limits",
    FEET_FAR: "feet_far_m",
    ERROR: "max_error_m",
    FOOTHOLD: "max_error_m",
    SELF_COLLISION: "self_collision_m",
    LYING: "body_penetration_m",
    STANDING: "standing_s",
    SHORT: "min_chunk_s",
}
REASONS = tuple(OPTION_OF)
# margin around dropped stretches, except those of STANDING [s]
MARGIN_S = 0.1
# root speed below which a robot stands, averaged over half a second [m/s]
STANDING_MPS = 0.1
# angular speed of the root, and root mean square of the joints', below which it stands [rad/s]
STANDING_RADPS = 0.2
# kept at the beginning of a dropped standing [s]
KEEP_STANDING_S = 1.0
# shorter flights are kept [s]
FEET_FAR_S = 0.1
# longer flights are kept if the root falls freely: its downward acceleration [m/s^2], half to one
# and a half of gravity, as bodies are scaled and paths smoothed
FALLING = (0.5 * 9.81, 1.5 * 9.81)
# largest RMS distance of a fall from its parabola [m]; the dog's jumps have up to 4 mm
OFF_PARABOLA = 0.01
MIRRORS = ("none", "left_right", "all")
# pairs that `Cleaned.worst_collisions` names
MAX_COLLISIONS = 3


@dataclass(frozen=True)
class CleanOptions:
    """Filters and cuts recordings. A threshold of None disables its filter.

    Raises:
      InputError: values out of range.
    """

    # drop frames beyond the joints' position limits
    position_limits: bool = True
    # drop frames beyond the joints' velocity limits
    velocity_limits: bool = True
    # drop frames with all feet higher than this above the floor [m], except in jumps: platforms
    feet_far_m: float | None = 0.06
    # drop frames with a larger RMS marker error over half a second, or, over stairs or gaps, with a
    # foot further from its place [m]
    max_error_m: float | None = 0.035
    # drop frames with deeper self-collision [m]
    self_collision_m: float | None = 0.001
    # drop frames with other bodies than feet deeper in the floor [m]
    body_penetration_m: float | None = 0.005
    # drop longer stretches without movement [s]
    standing_s: float | None = 3.0
    # shorter stretches are dropped [s]
    min_chunk_s: float = 1.0
    # longer stretches are cut into chunks of equal length [s]
    max_chunk_s: float = 10.0
    # "none", "left_right", or "all": the robot's mirrors and their products
    mirrors: str = "none"
    # share of the seconds held out for validation, by whole recordings
    validation: float = 0.0
    # recordings held out by name or pattern ("walk_*"), instead of that share
    validation_recordings: str | Sequence[str] = ()
    # set sampling weights that flatten the distribution of speeds
    flatten: bool = True
    # seed of the choice of validation recordings
    seed: int = 0

    def __post_init__(self) -> None:
        check_available("choice of mirrors", [self.mirrors], MIRRORS)
        ranges.not_negative(self, "feet_far_m", "max_error_m", "self_collision_m")
        ranges.not_negative(self, "body_penetration_m", "standing_s", "min_chunk_s", "max_chunk_s")
        if self.max_chunk_s < 2.0 * self.min_chunk_s:
            expected = f"at least twice min_chunk_s={self.min_chunk_s:g}"
            raise InputError(f"max_chunk_s={self.max_chunk_s:g}: must be {expected}")
        if self.standing_s is not None and self.standing_s < KEEP_STANDING_S:
            raise InputError(
                f"standing_s={self.standing_s:g}: must be at least {KEEP_STANDING_S:g}"
            )
        split.require_share(self.validation)
        names = self.validation_recordings
        names = (names,) if isinstance(names, str) else tuple(names)
        set_fields(self, validation_recordings=names)
        if self.validation and names:
            raise InputError(f"validation={self.validation}: set it or validation_recordings=")


@dataclass(frozen=True)
class Dropped:
    """A stretch [start_s, stop_s) of a recording that is in no chunk; reason: of `REASONS`."""

    recording: str
    start_s: float
    stop_s: float
    reason: str


class DroppedTime(NamedTuple):
    """The time dropped for one reason of `REASONS`."""

    reason: str
    seconds: float
    # share of the duration of all recordings
    share: float
    stretches: int
    # number of recordings with such a stretch
    recordings: int


class Collision(NamedTuple):
    """Two bodies of the robot that penetrate each other by more than `self_collision_m`."""

    pair: Pair
    seconds: float
    # share of the duration of all recordings
    share: float
    depth_m: float

    def __str__(self) -> str:
        """ "FL_calf with FL_hip: 63 % of frames, 12 mm"."""
        deep = f"{100 * self.share:.2g} % of frames, {1e3 * self.depth_m:.2g} mm"
        return f"{' with '.join(self.pair)}: {deep}"


@dataclass(frozen=True)
class Cleaned:
    """A training set, and the stretches that were dropped."""

    # chunk by chunk, each followed by its mirrors
    motions: MotionSet
    # dropped stretches in the order of the recordings
    dropped: tuple[Dropped, ...]
    # duration of all recordings [s]
    seconds_in: float
    # seconds of the chunks without their mirrors
    seconds_kept: float
    # colliding pairs of all recordings, the most frequent first
    collisions: tuple[Collision, ...] = ()

    @property
    def worst_collisions(self) -> str:
        """The most frequent pairs on one line; "" for none."""
        more = len(self.collisions) - MAX_COLLISIONS
        worst = "; ".join(map(str, self.collisions[:MAX_COLLISIONS]))
        return f"{worst}; and {more} more pairs" if more > 0 else worst

    @property
    def dropped_s(self) -> Mapping[str, float]:
        """Seconds by reason."""
        return {row.reason: row.seconds for row in self.losses}

    @property
    def losses(self) -> list[DroppedTime]:
        """A row per reason with dropped stretches."""
        rows = []
        for reason in REASONS:
            entries = [entry for entry in self.dropped if entry.reason == reason]
            seconds = sum(entry.stop_s - entry.start_s for entry in entries)
            share = seconds / max(self.seconds_in, 1e-9)
            recordings = {entry.recording for entry in entries}
            if seconds > 0.0:
                rows.append(DroppedTime(reason, seconds, share, len(entries), len(recordings)))
        return rows

    def summary(self) -> str:
        """The kept seconds, chunks and mirror images on one line."""
        motions = self.motions.motions
        mirrors = sum(bool(motion.mirror) for motion in motions)
        validation = sum(motion.duration_s for motion in motions if motion.split == "validation")
        parts = [
            f"kept {self.seconds_kept:.1f} of {self.seconds_in:.1f} s in "
            f"{counted(len(motions) - mirrors, 'chunk')}"
        ]
        parts += [f"{counted(mirrors, 'mirror image')} of them"] if mirrors else []
        parts += [f"{validation:.1f} s of all for validation"] if validation else []
        return ", ".join(parts)


class Cleaner:
    """The filters for motions of a robot. Not to be shared between threads."""

    def __init__(self, robot: Robot, options: CleanOptions) -> None:
        self.robot = robot
        self.options = options
        self.meter = QualityMeter(robot)
        self._collision = SelfCollision(robot)
        # seconds and greatest depth [m] of the colliding pairs so far
        self._collisions: dict[Pair, tuple[float, float]] = {}

    def reasons(self, motion: ReferenceMotion) -> Iterator[tuple[str, Bools]]:
        """Masks (T,) of the frames to drop, by reason, without margins."""
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
            far = longer(clearance > options.feet_far_m, FEET_FAR_S, rate)
            yield FEET_FAR, far & ~falling(far, motion.qpos[:, 2], rate)
        if options.max_error_m is not None and "marker_rms_m" in motion.frame_quality:
            mean_square = smoothed(np.square(motion.frame_quality["marker_rms_m"]), rate)
            yield ERROR, np.sqrt(mean_square) > options.max_error_m
        if options.max_error_m is not None and FOOT_ERROR in motion.frame_quality:
            yield FOOTHOLD, motion.frame_quality[FOOT_ERROR] > options.max_error_m
        if options.self_collision_m is not None or options.body_penetration_m is not None:
            self_depth, below = self._collision.depths(motion.qpos, motion.ground)
            if options.self_collision_m is not None:
                deep = self_depth > options.self_collision_m
                self._count_pairs(motion.qpos[deep], options.self_collision_m, rate)
                yield SELF_COLLISION, deep
            if options.body_penetration_m is not None:
                yield LYING, below > options.body_penetration_m

    def _count_pairs(self, poses: Array, beyond_m: float, rate_hz: float) -> None:
        """Add the pairs deeper than `beyond_m` [m] in poses (T, 7 + J)."""
        for pair, depth in self._collision.pairs(poses).items():
            seconds, deepest = self._collisions.get(pair, (0.0, 0.0))
            seconds += float((depth > beyond_m).sum()) / rate_hz
            if seconds > 0:
                self._collisions[pair] = seconds, max(deepest, float(depth.max()))

    def collisions(self, seconds_in: float) -> tuple[Collision, ...]:
        """The pairs of all motions so far, the most frequent first. seconds_in: of all motions."""
        rows = [
            Collision(pair, seconds, seconds / max(seconds_in, 1e-9), depth)
            for pair, (seconds, depth) in self._collisions.items()
        ]
        return tuple(sorted(rows, key=lambda row: (-row.seconds, row.pair)))

    def standing(self, motion: ReferenceMotion) -> Bools:
        """The frames (T,) of long stretches without movement, except their kept beginning."""
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
            still[start : min(stop, start + round(KEEP_STANDING_S * rate))] = False
        return still

    def labels(self, motion: ReferenceMotion) -> np.ndarray:
        """The index in `REASONS` of each frame (T,), -1 for a kept one."""
        rate = motion.rate_hz
        out = np.full(motion.num_frames, -1)
        window = 2 * round(MARGIN_S * rate) + 1
        masks = {
            reason: maximum_filter1d(mask, window, mode="constant")
            for reason, mask in self.reasons(motion)
        }
        masks[STANDING] = self.standing(motion)
        # the first reason has precedence
        for index, reason in reversed(list(enumerate(REASONS))):
            if reason in masks:
                out[masks[reason]] = index
        shortest = math.ceil(self.options.min_chunk_s * rate - 1e-9)
        for start, stop in runs(out < 0):
            if stop - start < max(shortest, 2):
                out[start:stop] = REASONS.index(SHORT)
        return out

    def stretches(self, motion: ReferenceMotion) -> tuple[list[tuple[int, int]], list[Dropped]]:
        """The frames [start, stop) of all chunks and all dropped stretches."""
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
    """A training set from retargeted recordings; it may be empty.

    Chunks are named RECORDING_c00, _c01, ..., their mirrors RECORDING_c00_lr, _fb, _lrfb; an uncut
    recording keeps its name. Figures are recomputed; mirrors have those of their originals. The
    options are stored in the result's provenance under "cleaning". origins: of `split.split`.
    options: the fields of `CleanOptions`.

    Raises:
      InputError: an invalid option, motions of another robot, or mirrors that the robot lacks.
    """
    settings = from_mapping(CleanOptions, options, "cleaning option")
    if motion_set.joint_names != tuple(robot.joint_names):
        raise InputError(f"the motions are of robot {motion_set.robot!r}, expected {robot.name!r}")
    cleaner = Cleaner(robot, settings)
    mirrors = {"none": (), "all": mirror.combinations(robot)}.get(
        settings.mirrors, (settings.mirrors,)
    )
    motions: list[ReferenceMotion] = []
    speeds: list[Array] = []
    dropped: list[Dropped] = []
    names = set(motion_set.names)
    seconds_kept = 0.0
    for motion in motion_set.motions:
        kept, left_out = cleaner.stretches(motion)
        dropped += left_out
        for (start, stop), name in zip(kept, chunk_names(motion, kept), strict=True):
            name = name if name == motion.name else unused_name(name, names)
            part = replace(motion.crop(start, stop), name=name, recording=recording_of(motion))
            part = cleaner.meter.measured(part)
            seconds_kept += part.duration_s
            motions.append(part)
            for mirrored in mirrors:
                image = unused_name(part.name + mirror.suffix(mirrored), names)
                motions.append(mirror.mirror(part, robot, mirrored, name=image))
            # the chunk's first velocity is from a frame outside of the chunk
            speed = smooth_speed(motion.qvel[start:stop, :2], motion.rate_hz)
            speeds += [speed] * (1 + len(mirrors))
    divided = split.split(
        motions,
        settings.validation,
        settings.seed,
        origins,
        recordings=tuple(settings.validation_recordings),
        speeds=speeds,
    )
    if settings.flatten and divided:
        divided = weights.weigh(divided, speeds)
    provenance = {**motion_set.provenance, "cleaning": json_text(asdict(settings))}
    result = replace(motion_set, motions=divided, provenance=provenance)
    seconds = sum(motion.duration_s for motion in motion_set.motions)
    return Cleaned(result, tuple(dropped), seconds, seconds_kept, cleaner.collisions(seconds))


def chunk_names(motion: ReferenceMotion, ranges: Sequence[tuple[int, int]]) -> list[str]:
    """A name for each chunk of a motion."""
    if list(ranges) == [(0, motion.num_frames)]:
        return [motion.name]
    digits = max(2, len(str(len(ranges) - 1)))
    return [f"{motion.name}_c{number:0{digits}d}" for number in range(len(ranges))]


def unused_name(name: str, used: set[str]) -> str:
    """`name`, with a numeric suffix if it is in `used`; adds it to `used`."""
    result = name
    number = 2
    while result in used:
        result = f"{name}_{number}"
        number = number + 1
    used.add(result)
    return result


def longer(mask: Bools, seconds: float, rate_hz: float) -> Bools:
    """The stretches of a mask (T,) that last longer than `seconds`."""
    out = mask.copy()
    for start, stop in runs(mask):
        if (stop - start) / rate_hz <= seconds:
            out[start:stop] = False
    return out


def falling(mask: Bools, height: Array, rate_hz: float) -> Bools:
    """The stretches of a mask (T,) in which heights (T,) [m] fall freely: they are on a parabola
    whose acceleration is within `FALLING`. Stretches of less than four frames do not tell."""
    out = np.zeros_like(mask)
    for start, stop in runs(mask):
        if stop - start < 4:
            continue
        time = np.arange(stop - start) / rate_hz
        parabola = np.polyfit(time, height[start:stop], 2)
        off = (height[start:stop] - np.polyval(parabola, time)).std()
        fall = -2.0 * parabola[0]
        out[start:stop] = FALLING[0] < fall < FALLING[1] and off < OFF_PARABOLA
    return out


def pieces(start: int, stop: int, longest: float) -> list[tuple[int, int]]:
    """Divide frames [start, stop) into the fewest nearly equal pieces of at most `longest`."""
    count = max(1, math.ceil((stop - start) / max(1, math.floor(longest + 1e-9))))
    return list(pairwise([start + (stop - start) * i // count for i in range(count + 1)]))
