"""From clips to reference motions.

Clip -> markers and stances -> targets at the robot's size and rate -> offsets (jointly over clips)
-> poses -> ReferenceMotion
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError
from mocap_data.files import json_text
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet
from npmp.robots import Robot
from npmp.robots.self_collision import SelfCollision
from retarget import kinematics, legs, pose_sequence, proportions
from retarget.offsets import estimate
from retarget.options import AUTO, Options, by_name
from retarget.prepared_robot import PreparedRobot
from retarget.quality import QualityMeter
from retarget.skeletons import skeleton_of
from retarget.targets import (
    RecordedMarkers,
    Targets,
    at_rate,
    body_scale,
    by_body,
    markers_of,
    prepared_for,
    standing_heights,
    targets,
)

# frames of the recordings; more are not solved faster together
_BATCH = 8192
OPTION = "retargeting option"


def retarget(clip: Clip, robot: Robot, **options: Any) -> ReferenceMotion:
    """The clip as a motion of the robot: eq. 8 of Bohez et al. 2022.

    options: the fields of `Options`.

    Raises:
      InputError: for a clip without the needed keypoints, too short or of absurd size, and for bad
        options.
    """
    chosen = by_name(Options, options, OPTION)
    [body] = bodies_of([clip], robot, chosen)
    return _motions(body.clips, body, chosen, QualityMeter(robot))[0]


def retarget_many(
    clips: Sequence[Clip],
    robot: Robot,
    *,
    progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> MotionSet:
    """All clips as motions of the robot; clips of one body share offsets and body scale.

    progress: called as progress(done, total, clip name) before each clip, and at the end with "".
    The offsets and options are kept in the result's provenance.

    Raises:
      InputError: as `retarget`, and for no clips or two of the same name.
    """
    chosen = by_name(Options, options, OPTION)
    if not clips:
        raise InputError("there are no clips to retarget")
    names = [clip.name for clip in clips]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"two clips have the same name: {', '.join(twice)}")
    tell = progress or (lambda done, total, name: None)
    bodies = bodies_of(clips, robot, chosen)
    meter = QualityMeter(robot)
    motions: dict[str, ReferenceMotion] = {}
    for body in bodies:
        for batch in _batches(body.clips):
            for k, clip in enumerate(batch):
                tell(len(motions) + k, len(clips), clip.clip.name)
            motions |= {motion.name: motion for motion in _motions(batch, body, chosen, meter)}
    tell(len(clips), len(clips), "")
    used = [(b.prepared.layout.names, b.prepared.layout.offsets(b.theta)) for b in bodies]
    provenance = {
        "method": "eq. 8 of arXiv 2203.17138",
        "options": json_text(asdict(chosen)),
        "offsets": json_text([dict(zip(names, moved.tolist())) for names, moved in used]),
        "body_scale": json_text([body.scale for body in bodies]),
    }
    return set_of(robot, [motions[name] for name in names], provenance)


def set_of(
    robot: Robot, motions: Sequence[ReferenceMotion], provenance: Mapping[str, str]
) -> MotionSet:
    """Motions of the robot as a set."""
    about = robot.name, robot.model_sha256, robot.joint_names, robot.body_names
    return MotionSet(*about, tuple(motions), provenance)


@dataclass(frozen=True)
class Body:
    """Clips of one body, and what they share."""

    clips: tuple[RecordedMarkers, ...]
    prepared: PreparedRobot
    scale: float
    # (M,) [m] of the markers of standing feet
    heights: Array
    # (P,)
    theta: Array


def bodies_of(clips: Sequence[Clip], robot: Robot, options: Options) -> list[Body]:
    """The clips by body, in order of first appearance, with body scale and offsets."""
    whole = PreparedRobot.of(robot)
    bodies = []
    for same in by_body(clips):
        skeleton = skeleton_of(same, tuple(robot.markers), options.skeleton)
        prepared = prepared_for(whole, skeleton)
        with _solvable(same):
            ready = tuple(markers_of(clip, skeleton, prepared, options) for clip in same)
            scale = body_scale(ready, prepared, options)
            heights = standing_heights(ready, prepared)
            person = proportions.fits(prepared)
            if person:
                own = proportions.scale_of(ready, prepared)
                scale = own if options.scale_body == AUTO else scale
                ready = tuple(proportions.fitted(clip, prepared, own, heights) for clip in ready)
                heights = standing_heights(ready, prepared)
            if prepared.flat_feet:
                layout = prepared.layout.with_heights(scale * heights + prepared.sole_height)
                prepared = replace(prepared, layout=layout)
            theta = prepared.layout.initial()
            if not person:
                tracks = [targets(clip, prepared, options, scale, heights) for clip in ready]
                theta = estimate(tracks, prepared)
        bodies.append(Body(ready, prepared, scale, heights, theta))
    return bodies


@contextmanager
def _solvable(clips: Sequence[Clip]) -> Iterator[None]:
    """Equations without a solution are the clips' fault: LinAlgError becomes an InputError."""
    try:
        yield
    except np.linalg.LinAlgError as error:
        named = f"clip {clips[0].name!r}"
        if len(clips) > 1:
            named = f"one of {len(clips)} clips ({clips[0].name!r}, ...)"
        why = f"its equations have no solution ({error}); are its units and axes right?"
        raise InputError(f"{named} cannot be retargeted: {why}") from None


def _batches(clips: Sequence[RecordedMarkers]) -> Iterator[list[RecordedMarkers]]:
    """The clips in order, in groups of about as many frames as are solved well together."""
    batch: list[RecordedMarkers] = []
    for clip in clips:
        batch.append(clip)
        if sum(one.clip.num_frames for one in batch) >= _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _motions(
    clips: Sequence[RecordedMarkers], body: Body, options: Options, meter: QualityMeter
) -> list[ReferenceMotion]:
    """The clips as motions with their figures."""
    prepared = body.prepared
    layout = body.prepared.layout
    with _solvable([clip.clip for clip in clips]):
        tracks = [targets(clip, prepared, options, body.scale, body.heights) for clip in clips]
        shifts = [layout.displacement(body.theta, track.heading) for track in tracks]
        goals = [track.locked + shift for track, shift in zip(tracks, shifts, strict=True)]
        solved = pose_sequence.solve(goals, tracks, body.theta, prepared)
        if prepared.arms:
            depth_of = SelfCollision(prepared.robot).depth
            rate = tracks[0].rate_hz
            solved = [pose_sequence.free_arms(qpos, depth_of, rate, prepared) for qpos in solved]
    return [meter.measured(_motion(*each, body)) for each in zip(clips, tracks, shifts, solved)]


def _motion(
    clip: RecordedMarkers, track: Targets, shift: Array, qpos: Array, body: Body
) -> ReferenceMotion:
    """Solved poses as a motion, with the figures of its frames."""
    prepared = body.prepared
    layout = body.prepared.layout
    bodies = kinematics.forward(prepared.tree, qpos)
    world = kinematics.positions_of(layout.points(body.theta), *bodies)
    # (T, M)
    squares = np.square(world - (track.raw + shift)).sum(axis=-1)
    contacts = track.standing & prepared.on_floor(qpos)
    figures = {
        "marker_rms_m": np.sqrt(squares.mean(axis=1)),
        "marker_max_m": np.sqrt(squares.max(axis=1)),
        "stances_lost": (track.standing & ~contacts).sum(axis=1).astype(np.float64),
    }
    person = replace(clip, raw=clip.recorded)
    recorded = at_rate(person, track.rate_hz)[0] if prepared.flat_feet else track.raw
    if set(legs.LEG_MARKERS) <= set(layout.names):
        columns = [layout.names.index(name) for name in legs.LEG_MARKERS]
        own = kinematics.positions_of(legs.leg_points(prepared.robot), *bodies)
        both = (legs.directions(m.reshape(-1, 2, 3, 3)) for m in (recorded[:, columns], own))
        error = legs.orientation_error(*both).mean(axis=(1, 2))
        # not where two of a leg's markers coincide
        if np.isfinite(error).all():
            figures["leg_orientation_rad"] = error
    return ReferenceMotion(
        name=clip.clip.name,
        qpos=qpos,
        rate_hz=track.rate_hz,
        source=clip.clip.source,
        licence=clip.clip.licence,
        quality={"body_scale": body.scale, "floor_slope": clip.slope},
        contacts=contacts,
        frame_quality=figures,
        recording=clip.clip.name,
    )
