"""From clips to reference motions: markers, floor, offsets, poses, velocities, figures.

Clip -> markers and stances -> targets at the robot's size and rate -> offsets (jointly over clips)
-> poses -> ReferenceMotion
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet
from npmp.robots import Robot
from retarget import kinematics, legs, pose_sequence
from retarget.markers import MarkerLayout
from retarget.offsets import estimate
from retarget.options import Options
from retarget.prepared_robot import PreparedRobot
from retarget.quality import QualityMeter
from retarget.self_collision import SelfCollision
from retarget.targets import (
    Recorded,
    Targets,
    body_scale,
    by_body,
    prepared_for,
    recorded,
    standing_heights,
    targets,
)

_BATCH = 8192  # frames of the recordings; more are not solved faster together


def retarget(
    clip: Clip,
    robot: Robot,
    *,
    start: int = 0,
    stop: int | None = None,
    offsets: Mapping[str, Array] | None = None,
    **options: Any,
) -> ReferenceMotion:
    """The clip as a motion of the robot: eq. 8 of Bohez et al. 2022.

    start, stop: frames of the clip to use; the offsets are estimated from these, too.
    offsets: marker offsets by name, as from `estimate_offsets`; estimated from the clip when None.
    options: the fields of `Options`.

    Raises:
      InputError: for a clip without the needed keypoints, too short or of absurd size, and for bad
        options.
    """
    chosen = Options.given(options)
    if start != 0 or stop is not None:
        clip = clip.crop(start, stop)
    [skeleton] = _skeletons([clip], robot, chosen, offsets)
    return _motions(skeleton.clips, skeleton, chosen, QualityMeter(robot))[0]


def retarget_many(
    clips: Sequence[Clip],
    robot: Robot,
    *,
    offsets: Mapping[str, Array] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> MotionSet:
    """All clips as motions of the robot; clips of one body (see `targets.by_body`) share offsets
    and body scale.

    progress: called as progress(done, total, clip name) before each clip (some are solved
    together), and once at
        the end with an empty name. The offsets and options are kept in the result's provenance.

    Raises:
      InputError: as `retarget` does, and for no clips or two of the same name.
    """
    chosen = Options.given(options)
    if not clips:
        raise InputError("there are no clips to retarget")
    names = [clip.name for clip in clips]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"two clips have the same name: {', '.join(twice)}")
    skeletons = _skeletons(clips, robot, chosen, offsets)
    meter = QualityMeter(robot)
    found: dict[str, ReferenceMotion] = {}
    for skeleton in skeletons:
        for batch in _batches(skeleton.clips):
            for k, clip in enumerate(batch):
                if progress is not None:
                    progress(len(found) + k, len(clips), clip.clip.name)
            for motion in _motions(batch, skeleton, chosen, meter):
                found[motion.name] = motion
    if progress is not None:
        progress(len(clips), len(clips), "")
    used = [_by_name(skeleton.prepared.layout, skeleton.theta) for skeleton in skeletons]
    provenance = {
        "method": "eq. 8 of arXiv 2203.17138",
        "options": json.dumps(asdict(chosen)),
        "offsets": json.dumps(
            [{name: offset.tolist() for name, offset in named.items()} for named in used]
        ),
        "body_scale": json.dumps([skeleton.scale for skeleton in skeletons]),
    }
    motions = tuple(found[name] for name in names)
    return MotionSet(
        robot.name, robot.model_sha256, robot.joint_names, robot.body_names, motions, provenance
    )


def estimate_offsets(clips: Sequence[Clip], robot: Robot, **options: Any) -> dict[str, Array]:
    """Marker offsets (3,) [m] by marker name, jointly over `clips` of one body.

    See `retarget.markers` for their frames. options: the fields of `Options`.

    Raises:
      InputError: as `retarget` does, and for clips of several bodies.
    """
    if not clips:
        raise InputError("there are no clips to estimate offsets from")
    skeletons = _skeletons(clips, robot, Options.given(options))
    if len(skeletons) > 1:
        raise InputError(
            "the clips are of several bodies (keypoint names or bone lengths differ); offsets are those of one"
        )
    return _by_name(skeletons[0].prepared.layout, skeletons[0].theta)


def targets_of(clip: Clip, prepared: PreparedRobot, options: Options) -> Targets:
    """The clip's markers at the robot's size and rate, on the floor, with stances and headings.

    Raises:
      InputError: for an unfit clip.
    """
    found = recorded(clip, prepared, options)
    scale, heights = body_scale([found], prepared, options), standing_heights([found], prepared)
    return targets(found, prepared, options, scale, heights)


@dataclass(frozen=True)
class _Skeleton:
    """Clips of one body, and what they share."""

    clips: tuple[Recorded, ...]
    prepared: PreparedRobot
    scale: float
    heights: Array  # (M,) [m] of the markers of standing feet
    theta: Array  # (P,)


def _skeletons(
    clips: Sequence[Clip],
    robot: Robot,
    options: Options,
    offsets: Mapping[str, Array] | None = None,
) -> list[_Skeleton]:
    """The clips by body, in order of first appearance, with body scale and offsets."""
    whole = PreparedRobot.of(robot)
    found = []
    for same in by_body(clips):
        prepared = prepared_for(whole, same[0])
        with _solvable(same):
            ready = tuple(recorded(clip, prepared, options) for clip in same)
            scale = body_scale(ready, prepared, options)
            heights = standing_heights(ready, prepared)
            if prepared.points_per_foot >= 3:
                prepared = prepared.with_heights(scale * heights + prepared.sole_height)
            if offsets is None:
                theta = estimate(
                    [targets(clip, prepared, options, scale, heights) for clip in ready],
                    prepared,
                    options,
                )
            else:
                theta = prepared.layout.parameters(offsets)
        found.append(_Skeleton(ready, prepared, scale, heights, theta))
    return found


@contextmanager
def _solvable(clips: Sequence[Clip]) -> Iterator[None]:
    """Equations without a solution are the clips' fault: LinAlgError becomes an InputError that
    names them."""
    try:
        yield
    except np.linalg.LinAlgError as error:
        named = (
            f"clip {clips[0].name!r}"
            if len(clips) == 1
            else f"one of {len(clips)} clips ({clips[0].name!r}, ...)"
        )
        raise InputError(
            f"{named} cannot be retargeted: its equations have no solution ({error}); are its units and axes right?"
        ) from None


def _by_name(layout: MarkerLayout, theta: Array) -> dict[str, Array]:
    return dict(zip(layout.names, layout.offsets(theta), strict=True))


def _batches(clips: Sequence[Recorded]) -> Iterator[list[Recorded]]:
    """The clips in order, in groups of about as many frames as are solved well together."""
    batch: list[Recorded] = []
    for clip in clips:
        batch.append(clip)
        if sum(one.clip.num_frames for one in batch) >= _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _motions(
    clips: Sequence[Recorded], skeleton: _Skeleton, options: Options, meter: QualityMeter
) -> list[ReferenceMotion]:
    prepared, theta, layout = skeleton.prepared, skeleton.theta, skeleton.prepared.layout
    with _solvable([clip.clip for clip in clips]):
        ready = [
            targets(clip, prepared, options, skeleton.scale, skeleton.heights) for clip in clips
        ]
        shifts = [layout.displacement(theta, track.heading) for track in ready]
        goals = [track.locked + shift for track, shift in zip(ready, shifts, strict=True)]
        solved = pose_sequence.solve(goals, ready, theta, prepared, options)
        most = None
        if options.joint_speed_share is not None:
            most = options.joint_speed_share * prepared.robot.velocity_limit / ready[0].rate_hz
        if options.free_arms and prepared.arms:
            inside = SelfCollision(prepared.robot).depth
            solved = [
                pose_sequence.free_arms(q, inside, ready[0].rate_hz, prepared, most) for q in solved
            ]
    motions = []
    for clip, track, shift, qpos in zip(clips, ready, shifts, solved, strict=True):
        world = kinematics.positions_of(
            layout.points(theta), *kinematics.forward(prepared.tree, qpos)
        )
        squares = np.square(world - (track.raw + shift)).sum(axis=-1)  # (T, M)
        contacts = track.standing & prepared.on_floor(qpos)
        motion = ReferenceMotion(
            name=clip.clip.name,
            qpos=qpos,
            rate_hz=track.rate_hz,
            source=clip.clip.source,
            licence=clip.clip.licence,
            quality={"body_scale": skeleton.scale, "floor_slope": clip.slope},
            contacts=contacts,
            frame_quality={
                "marker_rms_m": np.sqrt(squares.mean(axis=1)),
                "marker_max_m": np.sqrt(squares.max(axis=1)),
                "stances_lost": (track.standing & ~contacts).sum(axis=1).astype(np.float64),
            },
            recording=clip.clip.name,
        )
        wanted = legs.marker_directions(track.raw, layout.names)
        if wanted is not None:
            error = legs.orientation_error(
                wanted, legs.robot_directions(prepared.robot, prepared.tree, qpos)
            ).mean(axis=(1, 2))
            motion = replace(
                motion, frame_quality={**motion.frame_quality, "leg_orientation_rad": error}
            )
        motions.append(meter.measured(motion))
    return motions
