"""From recordings to whole motions of a robot; what cannot be retargeted is listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.errors import InputError
from mocap_data.sanity import wrong_size
from mocap_data.store import MotionSet
from npmp.robots import Robot
from retarget.collection import Progress, Refused, merged, retarget_all
from retarget.joint_map import JointOptions, Mapper
from retarget.people import read_person
from retarget.pipeline import set_of
from retarget.quality import QualityMeter
from retarget.sources import Failure, Recordings


def of_plausible_size(gathered: Recordings) -> Recordings:
    """The recordings without clips whose size shows that their units were misread; those are
    failures. scale_body=auto would scale a dog of 90 m to the robot's size unseen."""
    # keypoints all at one place have no size
    apart = [clip for clip in gathered.clips if np.ptp(clip.positions, axis=1).any()]
    wrong = {clip.name: why for clip in apart if (why := wrong_size(clip))}
    failures = [
        (gathered.files[name], f"{name} {why}; its units look wrong, and scale= is not given")
        for name, why in wrong.items()
    ]
    clips = [clip for clip in gathered.clips if clip.name not in wrong]
    return replace(gathered, clips=clips, failures=[*gathered.failures, *failures])


def motions_of(
    gathered: Recordings,
    robot: Robot,
    options: Mapping[str, Any],
    progress: Progress,
    *,
    joints: JointOptions | None = None,
    asf: Path | None = None,
) -> tuple[MotionSet | None, list[Failure]]:
    """All recordings as whole motions of the robot, in order (None where nothing fits), and what
    could not be read or retargeted.

    Args:
      options: of `retarget_many`.
      joints: carry people's joint angles over to OP3; None: retarget by keypoints.
      asf: the skeleton of AMC motions; None: the .asf file beside them.
    """
    sets: list[MotionSet] = []
    refused: list[Refused] = []
    if gathered.clips and joints is None:
        sets, refused = retarget_all(gathered.clips, robot, options, progress)
    elif gathered.clips and joints is not None:
        sets, refused = _by_joints(gathered, Mapper(robot, joints), robot, asf, progress)
    if gathered.motions:
        meter = QualityMeter(robot)
        measured = [meter.measured(motion) for motion in gathered.motions]
        sets.append(set_of(robot, measured, {"method": "as it came"}))
    failures = [(gathered.files[name], str(error)) for name, error in refused]
    whole = merged(sets, gathered.origins) if sets else None
    return whole, [*gathered.failures, *failures]


def _by_joints(
    gathered: Recordings, mapper: Mapper, robot: Robot, asf: Path | None, progress: Progress
) -> tuple[list[MotionSet], list[Refused]]:
    motions, refused = [], []
    for done, clip in enumerate(gathered.clips, 1):
        origin = gathered.origins[clip.name]
        path, (start, stop) = Path(origin.file), origin.frames
        try:
            person = read_person(
                path,
                clip=gathered.entries[clip.name],
                asf=asf,
                name=clip.name,
                start=start,
                stop=stop,
                licence=clip.licence,
            )
            motions.append(mapper.motion(person))
        except InputError as error:
            refused.append((clip.name, error))
        progress(done, len(gathered.clips), clip.name)
    return [set_of(robot, motions, mapper.provenance)] if motions else [], refused
