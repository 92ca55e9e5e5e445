"""People as recordings have them: on dm_control's CMUHumanoid, from AMC files or from dm_control's
HDF5.

An AMC file is read by our own reader and converted by dm_control's `Amcvals2qpos`, which puts every
subject on one skeleton; the HDF5 has that done already. Also: when a person's feet stand, and when
they swing. Shapes: T frames, two sides (left, right). World frame, Z up, metres.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from scipy.ndimage import minimum_filter1d

from mocap_data import rotations
from mocap_data.arrays import Array
from mocap_data.errors import InputError, frame_range
from mocap_data.readers.asf_amc import (
    RATE_HZ,
    ROOT,
    Angles,
    AsfSkeleton,
    find_asf,
    read_amc,
    read_asf,
)
from mocap_data.readers.cmu_h5 import HumanoidMotion, is_cmu_h5, read_cmu_h5_motion
from retarget import ground
from retarget.ground import Bools
from retarget.imported import listed
from retarget.targets import MAX_COORDINATE, MIN_FRAMES, low_pass

SIDES = ("l", "r")
# What of the humanoid the map looks at.
_BODIES = (
    "thorax", "lfemur", "ltibia", "lfoot", "ltoes", "lhumerus", "lradius", "lhand",
    "rfemur", "rtibia", "rfoot", "rtoes", "rhumerus", "rradius", "rhand",
)  # fmt: skip
# [m] behind the humanoid's ankle, in the foot's frame: the back end of its foot's capsules
_HEEL = (0.0, 0.045, -0.03)
_STANCE_HEIGHT = 0.045  # [m] a heel or ball of the foot that is further up has left the floor
_LATELY = 0.35  # [s] before and after, in which the lower foot tells where the floor is
_SWING_SPEED = (0.35, 0.5)  # [m/s] at which a foot begins to swing, and does entirely


@dataclass(frozen=True, eq=False)
class Person:
    """What the map sees of the CMU humanoid: poses of the bodies `_BODIES`, at the start of each
    bone. World frame."""

    name: str
    rate_hz: float
    position: Mapping[str, Array]  # (T, 3) [m] by body
    rotation: Mapping[str, Array]  # (T, 3, 3) by body
    source: str
    licence: str

    @property
    def num_frames(self) -> int:
        """T."""
        return len(self.position["thorax"])

    def legs(self) -> Array:
        """(T, 2, 3, 3) [m] hip, knee and ankle of each side."""
        rows = [
            [self.position[f"{side}{body}"] for body in ("femur", "tibia", "foot")]
            for side in SIDES
        ]
        return np.asarray(np.stack([np.stack(row, axis=1) for row in rows], axis=1))

    def soles(self) -> Array:
        """(T, 2, 2, 3) [m] heel and ball of each foot."""
        heels = [
            self.position[f"{s}foot"] + self.rotation[f"{s}foot"] @ np.array(_HEEL) for s in SIDES
        ]
        balls = [self.position[f"{s}toes"] for s in SIDES]
        return np.stack([np.stack(heels, axis=1), np.stack(balls, axis=1)], axis=2)


def has_joints(path: str | os.PathLike[str]) -> bool:
    """Whether a file can be mapped by joints: AMC by its suffix, dm_control's HDF5 by a look
    inside."""
    suffix = Path(path).suffix.lower()
    return suffix == ".amc" or (suffix in (".h5", ".hdf5") and is_cmu_h5(path))


def read_person(
    recording: str | os.PathLike[str] | HumanoidMotion,
    *,
    clip: str | None = None,
    asf: str | os.PathLike[str] | None = None,
    name: str | None = None,
    start: int = 0,
    stop: int | None = None,
    licence: str = "unknown",
) -> Person:
    """A person's recording (AMC file, clip of dm_control's HDF5, or `HumanoidMotion`) on the CMU
    humanoid.

    clip: which one of an HDF5 with several. asf: of an AMC file, by default the one beside it; it
    only says what the file's numbers are, dm_control's skeleton stands for every subject's.
    start, stop: frames of the recording to use.

    Raises:
      InputError: for a file that cannot be read, and frames that there are not.
    """
    if isinstance(recording, HumanoidMotion):
        person = _of_humanoid(recording)
    elif Path(recording).suffix.lower() in (".h5", ".hdf5"):
        person = _of_humanoid(read_cmu_h5_motion(recording, clip, licence=licence))
    else:
        person = _of_amc(Path(recording), asf, licence)
    part = frame_range(f"{person.name!r}", start, stop, person.num_frames)
    if (count := part.stop - part.start) < MIN_FRAMES:
        raise InputError(
            f"{person.name!r} has {count} frames; retargeting needs at least {MIN_FRAMES}"
        )
    largest = max(float(np.abs(values[part]).max()) for values in person.position.values())
    if not largest <= MAX_COORDINATE:  # nan, too
        raise InputError(
            f"{person.name!r}: the person is {largest:.3g} m from the origin; a garbled number?"
        )
    return Person(
        person.name if name is None else name,
        person.rate_hz,
        {body: values[part] for body, values in person.position.items()},
        {body: values[part] for body, values in person.rotation.items()},
        person.source,
        person.licence,
    )


def _of_humanoid(motion: HumanoidMotion) -> Person:
    place = {body: motion.body_names.index(body) for body in _BODIES}
    return Person(
        motion.name,
        motion.rate_hz,
        {body: motion.body_pos[:, i] for body, i in place.items()},
        {body: rotations.to_matrix(motion.body_quat[:, i]) for body, i in place.items()},
        motion.source,
        motion.licence,
    )


def _of_amc(path: Path, asf: str | os.PathLike[str] | None, licence: str) -> Person:
    """An AMC file, read with our reader (whose complaints are clear), converted by dm_control's
    transformer."""
    if not path.is_file():
        raise InputError(f"no file {str(path)!r}")
    skeleton = read_asf(find_asf(path) if asf is None else asf)
    angles = read_amc(path, skeleton)
    parse, physics = _dm_control()
    values = _amc_values(path, skeleton, angles, parse._CMU_MOCAP_JOINT_ORDER)
    model = physics.model.ptr
    of_joint = {int(model.jnt_qposadr[i]): model.joint(i).name for i in range(1, model.njnt)}
    index2joint = {i: of_joint.get(i, "root") for i in range(model.nq)}
    convert = parse.Amcvals2qpos(index2joint, parse._CMU_MOCAP_JOINT_ORDER)
    data = mujoco.MjData(model)
    ids = [model.body(body).id for body in _BODIES]
    position, rotation = np.empty((len(values), len(ids), 3)), np.empty((len(values), len(ids), 9))
    for frame, row in enumerate(values):
        data.qpos[:] = convert(row)
        mujoco.mj_kinematics(model, data)
        position[frame], rotation[frame] = data.xpos[ids], data.xmat[ids]
    matrices = rotation.reshape(len(values), len(ids), 3, 3)
    return Person(
        path.stem,
        RATE_HZ,
        {body: position[:, i] for i, body in enumerate(_BODIES)},
        {body: matrices[:, i] for i, body in enumerate(_BODIES)},
        path.name,
        licence,
    )


def _amc_values(path: Path, skeleton: AsfSkeleton, angles: Angles, order: Sequence[str]) -> Array:
    """(T, 62) numbers of each frame in dm_control's order, BODYrAXIS [deg], the root's place first
    [file units].

    Raises:
      InputError: naming the bones or dofs that are not CMU's.
    """
    columns: dict[str, Array] = {}
    for bone in skeleton.bones:
        for dof, values in zip(bone.dofs, angles.get(bone.name, np.empty((0, 0))).T, strict=False):
            columns[f"{bone.name}{dof}"] = values if dof.startswith("t") else np.rad2deg(values)
    root = [f"{ROOT}{dof}" for dof in ("tx", "ty", "tz", "rx", "ry", "rz")]
    wanted = [*root, *order[len(root) :]]
    lacking = [name for name in wanted if name not in columns]
    if lacking:
        raise InputError(
            f"{path}: its skeleton has no {listed(lacking)}; mapping joints needs those of CMU's recordings"
        )
    return np.stack([columns[name] for name in wanted], axis=-1)


@lru_cache(maxsize=1)
def _dm_control() -> tuple[Any, Any]:
    """dm_control's AMC conversion and its CMU humanoid's physics; a second to import, so only when
    it is needed."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")  # of machines without a display
            from dm_control.suite import humanoid_CMU
            from dm_control.suite.utils import parse_amc
    except ImportError as error:
        raise InputError(
            f"mapping AMC files by joints needs the package dm_control ({error})"
        ) from None
    return parse_amc, humanoid_CMU.Physics.from_xml_string(*humanoid_CMU.get_model_and_assets())


def stances(person: Person) -> tuple[Bools, Bools]:
    """When heels and when balls of the feet (T, 2) stand: slow, and near the floor. A foot stands
    where both do.

    The floor is where the lower foot has lately been: all subjects are put on one skeleton, whose
    legs are not theirs, so heights drift by centimetres; and some walk over steps.
    """
    soles = low_pass(person.soles(), person.rate_hz, 8.0)  # (T, foot, heel or ball, 3)
    flat = soles.reshape(len(soles), 4, 3)
    slow = ground.horizontal_speed(flat, person.rate_hz) < ground.STANCE_SPEED
    # Heel and ball are points of a model, not of the sole: each stands at a height of its own, told
    # by the lower foot.
    low = [
        np.percentile(flat[slow[:, i] if slow[:, i].any() else slice(None), i, 2], 25)
        for i in range(4)
    ]
    height = flat[..., 2] - np.tile(np.reshape(low, (2, 2)).min(axis=0), 2)
    window = round(2.0 * _LATELY * person.rate_hz) | 1
    floor = minimum_filter1d(height.min(axis=1), window, mode="nearest")
    down = slow & (height < floor[:, None] + _STANCE_HEIGHT)
    shortest = max(1, round(ground.STANCE_TIME * person.rate_hz))
    steady = np.stack([ground.steadied(column, shortest) for column in down.T], axis=1).reshape(
        -1, 2, 2
    )
    return steady[..., 0].copy(), steady[..., 1].copy()


def swings(person: Person) -> Array:
    """How much each foot swings (T, 2), 0 to 1: by its horizontal speed."""
    feet = low_pass(person.soles(), person.rate_hz, 8.0).mean(axis=2)
    low, high = _SWING_SPEED
    return np.clip((ground.horizontal_speed(feet, person.rate_hz) - low) / (high - low), 0.0, 1.0)
