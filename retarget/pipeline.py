"""Clips to reference motions: eq. 8 of Bohez et al. 2022 (arXiv 2203.17138).

clips -> subjects, each with its skeleton      `subjects.subjects_of`
-> markers on the floor, stances               `targets.record_markers`
-> body scale, marker offsets                  `fit_subject`
-> targets at the robot's size and rate        `targets.make_targets`
-> poses                                       `pose_sequence.solve`
-> ReferenceMotion with its figures            `_motion`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mocap_data.arrays import Array, unique
from mocap_data.clip import Clip
from mocap_data.errors import InputError
from mocap_data.files import json_text
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet
from npmp.robots import Robot
from npmp.robots.self_collision import SelfCollision
from retarget import kinematics, leg_orientation, pose_sequence, proportions
from retarget.offsets import estimate_offsets
from retarget.options import AUTO, Options, from_mapping
from retarget.prepared_robot import PreparedRobot
from retarget.quality import QualityMeter
from retarget.recording_checks import is_misread, recording_warnings
from retarget.subjects import Refused, Subject, subjects_of
from retarget.targets import (
    RecordedMarkers,
    Targets,
    body_scale,
    make_targets,
    record_markers,
    standing_heights,
    to_rate,
)

# frames that are solved together
_BATCH_FRAMES = 8192
OPTION = "retargeting option"
Progress = Callable[[int, int, str], None]


def retarget(clip: Clip, robot: Robot, **options: Any) -> ReferenceMotion:
    """The clip as a motion of the robot.

    options: the fields of `Options`.

    Raises:
      InputError: a clip without the needed keypoints, too short or of an implausible size; an
        invalid option.
    """
    [motion] = retarget_many([clip], robot, **options).motions
    return motion


def retarget_many(
    clips: Sequence[Clip], robot: Robot, *, progress: Progress | None = None, **options: Any
) -> MotionSet:
    """All clips as motions of the robot; clips of one subject share offsets and body scale.

    progress: called as progress(done, total, clip name) before each clip, and at the end with "".
    The offsets and options are stored in the result's provenance.

    Raises:
      InputError: as `retarget`; no clips, or two of the same name.
    """
    settings = from_mapping(Options, options, OPTION)
    if not clips:
        raise InputError("no clips to retarget")
    names = unique([clip.name for clip in clips], "clip")
    subjects = subjects_of(clips, tuple(robot.markers), settings.skeleton)
    return retarget_subjects(subjects, robot, settings, progress).select(names)


def retarget_subjects(
    subjects: Sequence[Subject],
    robot: Robot,
    options: Options,
    progress: Progress | None = None,
    refused: list[Refused] | None = None,
) -> MotionSet:
    """The clips of all subjects as motions of the robot, by subject; as `retarget_many`.

    refused: if passed, errors of single clips are appended to it, and the other clips are
    processed.
    """
    report = progress or (lambda done, total, name: None)
    total = sum(len(subject.clips) for subject in subjects)
    prepared = PreparedRobot.of(robot)
    meter = QualityMeter(robot)
    bodies: list[Body] = []
    motions: list[ReferenceMotion] = []

    def solve(subject: Subject) -> None:
        body = fit_subject(subject, prepared, options)
        solved: list[ReferenceMotion] = []
        for batch in _batches(body.recorded):
            for i, recorded in enumerate(batch):
                report(len(motions) + len(solved) + i, total, recorded.clip.name)
            solved += _motions(batch, body, options, meter)
        bodies.append(body)
        motions.extend(solved)

    for subject in subjects:
        for group in _groups(subject):
            try:
                solve(group)
            except InputError as error:
                if refused is None:
                    raise
                errors = _errors(group, error, prepared, options)
                names = {name for name, _ in errors}
                rest = [clip for clip in group.clips if clip.name not in names]
                if rest:
                    solve(group.select(rest))
                refused += errors
    report(total, total, "")
    offsets = [
        dict(zip(body.prepared.layout.names, body.prepared.layout.offsets(body.theta).tolist()))
        for body in bodies
    ]
    provenance = {
        "method": "eq. 8 of arXiv 2203.17138",
        "options": json_text(asdict(options)),
        "offsets": json_text(offsets),
        "body_scale": json_text([body.scale for body in bodies]),
    }
    return motion_set_of(robot, motions, provenance)


def motion_set_of(
    robot: Robot, motions: Sequence[ReferenceMotion], provenance: Mapping[str, str]
) -> MotionSet:
    """Motions of the robot as a set."""
    return MotionSet(
        robot=robot.name,
        model_sha256=robot.model_sha256,
        joint_names=robot.joint_names,
        body_names=robot.body_names,
        motions=tuple(motions),
        provenance=provenance,
    )


@dataclass(frozen=True)
class Body:
    """The markers of a subject's clips, fitted to the robot."""

    recorded: tuple[RecordedMarkers, ...]
    prepared: PreparedRobot
    scale: float
    # (M,) [m] of the markers of standing feet
    heights: Array
    # (P,) of the marker offsets
    theta: Array


def fit_subject(subject: Subject, prepared: PreparedRobot, options: Options) -> Body:
    """The subject's markers, its body scale and its marker offsets, jointly over its clips.

    Raises:
      InputError: a clip that cannot be retargeted.
    """
    prepared = prepared.with_markers(tuple(subject.skeleton.markers))
    with _solvable(subject.clips):
        recorded = tuple(
            record_markers(clip, subject.skeleton, prepared, options) for clip in subject.clips
        )
        scale = body_scale(recorded, prepared, options)
        heights = standing_heights(recorded, prepared)
        is_person = proportions.applies_to(prepared)
        if is_person:
            # a person's limbs get the robot's lengths, so it needs no offsets
            leg_scale = proportions.scale_of(recorded, prepared)
            scale = leg_scale if options.scale_body == AUTO else scale
            recorded = tuple(
                proportions.with_proportions(track, prepared, leg_scale, heights)
                for track in recorded
            )
            heights = standing_heights(recorded, prepared)
        if prepared.flat_feet:
            layout = prepared.layout.with_heights(scale * heights + prepared.sole_height)
            prepared = replace(prepared, layout=layout)
        theta = prepared.layout.initial()
        if not is_person:
            tracks = [make_targets(track, prepared, options, scale, heights) for track in recorded]
            theta = estimate_offsets(tracks, prepared)
    return Body(recorded, prepared, scale, heights, theta)


@contextmanager
def _solvable(clips: Sequence[Clip]) -> Iterator[None]:
    """Turn a LinAlgError into an InputError that names the clips."""
    try:
        yield
    except np.linalg.LinAlgError as error:
        names = ", ".join(repr(clip.name) for clip in clips[:3])
        hint = "are its units and axes right?"
        raise InputError(f"clip {names}: no solution of its poses ({error}); {hint}") from None


def _groups(subject: Subject) -> list[Subject]:
    """The subject's clips in groups that share offsets; clips that look misread are separate."""
    if len(subject.clips) == 1:
        return [subject]
    groups: dict[bool, list[Clip]] = {False: [], True: []}
    for clip in subject.clips:
        groups[is_misread(recording_warnings(clip, subject.skeleton))].append(clip)
    return [subject.select(clips) for clips in groups.values() if clips]


def _errors(
    subject: Subject, error: InputError, prepared: PreparedRobot, options: Options
) -> list[Refused]:
    """Clips that fail individually, with their errors; if none does, all clips with `error`."""
    meter = QualityMeter(prepared.robot)
    errors = []
    for clip in subject.clips:
        try:
            body = fit_subject(subject.select([clip]), prepared, options)
            _motions(body.recorded, body, options, meter)
        except InputError as own_error:
            errors.append((clip.name, own_error))
    return errors or [(clip.name, error) for clip in subject.clips]


def _batches(clips: Sequence[RecordedMarkers]) -> Iterator[list[RecordedMarkers]]:
    """The clips in order, in groups of about _BATCH_FRAMES frames."""
    batch: list[RecordedMarkers] = []
    for clip in clips:
        batch.append(clip)
        if sum(track.clip.num_frames for track in batch) >= _BATCH_FRAMES:
            yield batch
            batch = []
    if batch:
        yield batch


def _motions(
    clips: Sequence[RecordedMarkers], body: Body, options: Options, meter: QualityMeter
) -> list[ReferenceMotion]:
    """The clips as motions with their figures."""
    prepared = body.prepared
    layout = prepared.layout
    with _solvable([clip.clip for clip in clips]):
        tracks = [make_targets(clip, prepared, options, body.scale, body.heights) for clip in clips]
        shifts = [layout.displacement(body.theta, track.heading) for track in tracks]
        goals = [track.locked + shift for track, shift in zip(tracks, shifts, strict=True)]
        solved = pose_sequence.solve(goals, tracks, body.theta, prepared)
        if prepared.arms:
            depth_of = SelfCollision(prepared.robot).depth
            rate = tracks[0].rate_hz
            solved = [pose_sequence.free_arms(qpos, depth_of, rate, prepared) for qpos in solved]
    return [meter.measured(_motion(*each, body)) for each in zip(clips, tracks, shifts, solved)]


def _motion(
    recorded: RecordedMarkers, track: Targets, shift: Array, qpos: Array, body: Body
) -> ReferenceMotion:
    """Solved poses as a motion, with the figures of its frames."""
    prepared = body.prepared
    layout = prepared.layout
    clip = recorded.clip
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
    if set(leg_orientation.LEG_MARKERS) <= set(layout.names):
        columns = [layout.names.index(name) for name in leg_orientation.LEG_MARKERS]
        person = replace(recorded, raw=recorded.recorded)
        markers = to_rate(person, track.rate_hz)[0] if prepared.flat_feet else track.raw
        leg_points = leg_orientation.leg_points(prepared.robot)
        joints = kinematics.positions_of(leg_points, *bodies)
        both = (
            leg_orientation.directions(points.reshape(-1, 2, 3, 3))
            for points in (markers[:, columns], joints)
        )
        error = leg_orientation.orientation_error(*both).mean(axis=(1, 2))
        # undefined if two markers of a leg coincide
        if np.isfinite(error).all():
            figures["leg_orientation_rad"] = error
    return ReferenceMotion(
        name=clip.name,
        qpos=qpos,
        rate_hz=track.rate_hz,
        source=clip.source,
        licence=clip.licence,
        quality={"body_scale": body.scale, "floor_slope": recorded.slope},
        contacts=contacts,
        frame_quality=figures,
        recording=clip.name,
    )
