"""Reader of rollouts.h5: the robot's and the reference's motion, per clip."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mocap_data.arrays import Array
from mocap_data.ground_profile import GroundProfile
from mocap_data.hdf5 import open_hdf5

ARRAYS = ("qpos", "reference_qpos", "foot_height", "reference_foot_height")
GROUND = "ground"


@dataclass(frozen=True)
class ClipRollout:
    """One clip of rollouts.h5.

    Attributes:
        qpos, reference_qpos: (T, nq) root position [m], root quaternion (w, x, y, z), joints [rad].
        foot_height, reference_foot_height: (T, F) above the ground [m].
        rate_hz: frames per second.
        tracked_frames: frames before tracking failed, T if it never did.
        ground: of the motion; None: flat, at 0.
    """

    name: str
    qpos: Array
    reference_qpos: Array
    rate_hz: float
    tracked_frames: int
    foot_height: Array
    reference_foot_height: Array
    ground: GroundProfile | None = None

    @property
    def time_s(self) -> Array:
        """(T,) seconds from the clip's start."""
        return np.arange(len(self.qpos)) / self.rate_hz

    @property
    def lost_after_s(self) -> float | None:
        """Time at which tracking failed [s]; None if it never did."""
        return self.tracked_frames / self.rate_hz if self.tracked_frames < len(self.qpos) else None

    @property
    def tracked(self) -> slice:
        """The frames before tracking failed, at least one."""
        return slice(0, max(1, self.tracked_frames))

    def base_deviation_m(self) -> Array:
        """(T,) distance of the base's position from the reference's [m]."""
        return np.asarray(np.linalg.norm(self.qpos[:, :3] - self.reference_qpos[:, :3], axis=1))

    def joint_difference_rad(self) -> Array:
        """(T, J) joint angle minus the reference's [rad]."""
        return self.qpos[:, 7:] - self.reference_qpos[:, 7:]


@dataclass(frozen=True)
class Rollouts:
    """The content of rollouts.h5."""

    robot: str
    joint_names: tuple[str, ...]
    foot_names: tuple[str, ...]
    clips: tuple[ClipRollout, ...]


def read_rollouts(path: Path | str) -> Rollouts:
    """Read rollouts.h5: a group per clip with `qpos`, `reference_qpos`, `foot_height`,
    `reference_foot_height`, `qvel` (T, nv), `setpoints` (T - 1, J) [rad], optional `ground` (P,),
    and attributes `rate_hz`, `tracked_frames`, `source`, `licence`; root attributes `robot`,
    `joint_names`, `foot_names`.

    Raises:
      InputError: if the file is missing, not HDF5, or incomplete.
    """
    with open_hdf5(path) as file:
        return Rollouts(
            robot=str(file.attrs["robot"]),
            joint_names=tuple(file.attrs["joint_names"]),
            foot_names=tuple(file.attrs["foot_names"]),
            clips=tuple(
                ClipRollout(
                    name,
                    rate_hz=float(group.attrs["rate_hz"]),
                    tracked_frames=int(group.attrs["tracked_frames"]),
                    **{key: np.asarray(group[key][()], dtype=np.float64) for key in ARRAYS},
                    ground=GroundProfile(group[GROUND][()]) if GROUND in group else None,
                )
                for name, group in file.items()
            ),
        )
