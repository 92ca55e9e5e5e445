"""People on dm_control's CMUHumanoid, from AMC files or dm_control's HDF5; when their feet stand.

An AMC file is read by our own reader and converted by dm_control's `Amcvals2qpos`, which puts every
subject on one skeleton; the HDF5 has that done already.
Shapes: T frames, two sides (left, right). World frame, Z up, metres.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from scipy.ndimage import minimum_filter1d

from mocap_data import rotations
from mocap_data.arrays import Array, Bools
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
from mocap_data.readers.cmu_h5 import BODY_NAMES, read_bodies
from retarget import ground
from retarget.imported import listed
from retarget.targets import MAX_COORDINATE, MIN_FRAMES, low_pass

SIDES = ("l", "r")
_LIMBS = ("femur", "tibia", "foot", "toes", "humerus", "radius", "hand")
# what of the humanoid the joint map looks at
_BODIES = ("thorax", *(f"{side}{body}" for side in SIDES for body in _LIMBS))
# [m] behind the humanoid's ankle, in the foot's frame: the back end of its foot's capsules
_HEEL = (0.0, 0.045, -0.03)
# [m] a heel or ball of the foot that is further up has left the floor
_STANCE_HEIGHT = 0.045
# [s] before and after, in which the lower foot tells where the floor is
_LATELY = 0.35
# [m/s] at which a foot begins to swing, and does entirely
_SWING_SPEED = (0.35, 0.5)
_CUTOFF_HZ = 8.0


@dataclass(frozen=True, eq=False)
class Person:
    """Poses of the CMU humanoid's `_BODIES`, at the start of each bone; world frame."""

    name: str
    rate_hz: float
    # (T, 3) [m] by body
    position: Mapping[str, Array]
    # (T, 3, 3) by body
    rotation: Mapping[str, Array]
    source: str
    licence: str

    @property
    def num_frames(self) -> int:
        """T."""
        return len(self.position["thorax"])

    def legs(self) -> Array:
        """(T, 2, 3, 3) [m] hip, knee and ankle of each side."""
        at = self.position
        rows = [[at[f"{side}{body}"] for body in ("femur", "tibia", "foot")] for side in SIDES]
        return np.asarray(np.stack([np.stack(row, axis=1) for row in rows], axis=1))

    def soles(self) -> Array:
        """(T, 2, 2, 3) [m] heel and ball of each foot."""
        at, turn = self.position, self.rotation
        heels = [at[f"{s}foot"] + turn[f"{s}foot"] @ np.array(_HEEL) for s in SIDES]
        balls = [at[f"{s}toes"] for s in SIDES]
        return np.stack([np.stack(heels, axis=1), np.stack(balls, axis=1)], axis=2)


def read_person(
    path: str | os.PathLike[str],
    *,
    clip: str | None = None,
    asf: str | os.PathLike[str] | None = None,
    name: str | None = None,
    start: int = 0,
    stop: int | None = None,
    licence: str = "unknown",
) -> Person:
    """A person's AMC file, or a clip of dm_control's HDF5.

    clip: which one of an HDF5 with several. asf: of an AMC file, None: the one beside it; it only
    says what the file's numbers are. start, stop: frames of the recording to use.

    Raises:
      InputError: for a file of another format or that cannot be read, and frames that there are
        not.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in (".h5", ".hdf5"):
        person = _of_hdf5(path, clip, licence)
    elif suffix == ".amc":
        person = _of_amc(path, asf, licence)
    else:
        has = "AMC and dm_control's HDF5 do"
        raise InputError(f"{path} holds no joint angles ({has}); use method=points")
    what = f"{person.name!r}"
    part = frame_range(what, start, stop, person.num_frames)
    if (count := part.stop - part.start) < MIN_FRAMES:
        raise InputError(f"{what} has {count} frames; retargeting needs at least {MIN_FRAMES}")
    position = {body: values[part] for body, values in person.position.items()}
    rotation = {body: values[part] for body, values in person.rotation.items()}
    largest = max(float(np.abs(values).max()) for values in position.values())
    # nan, too
    if not largest <= MAX_COORDINATE:
        far = f"the person is {largest:.3g} m from the origin"
        raise InputError(f"{what}: {far}; a garbled number?")
    return replace(person, name=name or person.name, position=position, rotation=rotation)


def _of_hdf5(path: Path, clip: str | None, licence: str) -> Person:
    """A clip of dm_control's HDF5."""
    found, _, places, turns = read_bodies(path, clip)
    at = {body: BODY_NAMES.index(body) for body in _BODIES}
    position = {body: places[:, i] for body, i in at.items()}
    rotation = {body: rotations.to_matrix(turns[:, i]) for body, i in at.items()}
    source = f"{path.name}, {found.name}"
    return Person(found.name, found.rate_hz, position, rotation, source, licence)


def _of_amc(path: Path, asf: str | os.PathLike[str] | None, licence: str) -> Person:
    """An AMC file, read with our reader, converted by dm_control's transformer."""
    if not path.is_file():
        raise InputError(f"no file {str(path)!r}")
    skeleton = read_asf(find_asf(path) if asf is None else asf)
    parse, physics = _dm_control()
    order = parse._CMU_MOCAP_JOINT_ORDER
    values = _amc_values(path, skeleton, read_amc(path, skeleton), order)
    model = physics.model.ptr
    of_joint = {int(model.jnt_qposadr[i]): model.joint(i).name for i in range(1, model.njnt)}
    convert = parse.Amcvals2qpos({i: of_joint.get(i, "root") for i in range(model.nq)}, order)
    data = mujoco.MjData(model)
    ids = [model.body(body).id for body in _BODIES]
    position, rotation = np.empty((len(values), len(ids), 3)), np.empty((len(values), len(ids), 9))
    for frame, row in enumerate(values):
        data.qpos[:] = convert(row)
        mujoco.mj_kinematics(model, data)
        position[frame], rotation[frame] = data.xpos[ids], data.xmat[ids]
    places = {body: position[:, i] for i, body in enumerate(_BODIES)}
    turns = {body: rotation[:, i].reshape(-1, 3, 3) for i, body in enumerate(_BODIES)}
    return Person(path.stem, RATE_HZ, places, turns, path.name, licence)


def _amc_values(path: Path, skeleton: AsfSkeleton, angles: Angles, order: Sequence[str]) -> Array:
    """(T, 62) numbers in dm_control's order, BODYrAXIS [deg], the root's place first [file units].

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
        needs = "mapping joints needs those of CMU's recordings"
        raise InputError(f"{path}: its skeleton has no {listed(lacking)}; {needs}")
    return np.stack([columns[name] for name in wanted], axis=-1)


@lru_cache(maxsize=1)
def _dm_control() -> tuple[Any, Any]:
    """dm_control's AMC conversion and its CMU humanoid's physics; a second to import."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            # of machines without a display
            warnings.simplefilter("ignore")
            from dm_control.suite import humanoid_CMU
            from dm_control.suite.utils import parse_amc
    except ImportError as error:
        needs = f"mapping AMC files by joints needs the package dm_control ({error})"
        raise InputError(needs) from None
    return parse_amc, humanoid_CMU.Physics.from_xml_string(*humanoid_CMU.get_model_and_assets())


def stances(person: Person) -> tuple[Bools, Bools]:
    """When heels and when balls of the feet (T, 2) stand: slow, and near the floor.

    The floor is where the lower foot has lately been: all subjects are put on one skeleton, whose
    legs are not theirs, so heights drift by centimetres; and some walk over steps.
    """
    rate = person.rate_hz
    # (T, foot and heel or ball, 3)
    flat = low_pass(person.soles(), rate, _CUTOFF_HZ).reshape(person.num_frames, 4, 3)
    slow = ground.horizontal_speed(flat, rate) < ground.STANCE_SPEED
    # heel and ball are points of a model: each stands at a height of its own
    low = [
        np.percentile(flat[slow[:, i] if slow[:, i].any() else slice(None), i, 2], 25)
        for i in range(4)
    ]
    height = flat[..., 2] - np.tile(np.reshape(low, (2, 2)).min(axis=0), 2)
    window = round(2.0 * _LATELY * rate) | 1
    floor = minimum_filter1d(height.min(axis=1), window, mode="nearest")
    down = slow & (height < floor[:, None] + _STANCE_HEIGHT)
    shortest = ground.shortest_stance(rate)
    steady = np.stack([ground.steadied(column, shortest) for column in down.T], axis=1)
    return steady[:, 0::2].copy(), steady[:, 1::2].copy()


def swings(person: Person) -> Array:
    """How much each foot swings (T, 2), 0 to 1: by its horizontal speed."""
    feet = low_pass(person.soles(), person.rate_hz, _CUTOFF_HZ).mean(axis=2)
    low, high = _SWING_SPEED
    return np.clip((ground.horizontal_speed(feet, person.rate_hz) - low) / (high - low), 0.0, 1.0)
