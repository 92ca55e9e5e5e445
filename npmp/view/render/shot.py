"""A shot of a film: a motion, and a camera that fits and follows it smoothly.

Shapes: T frames, M keypoints. World frame, Z up, metres.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import mujoco
import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter1d

from mocap_data import rotations
from mocap_data.errors import InputError, check_available
from npmp.robots import Robot
from npmp.view.render.clip import ReplayClip

FloatArray = npt.NDArray[np.float64]

MODES = ("follow", "fixed", "robot")
PARTS = ("robot", "ghost", "recording")
# vertical field of view, a long lens
FOVY_DEG = 32.0
# half height of the image at distance 1
HALF = math.tan(math.radians(FOVY_DEG) / 2.0)
# standard deviation of the Gaussian that smooths the camera's path [s]
SMOOTHING_S = 0.5
# share of the image's width and height that the motion fills
FILLED = (0.84, 0.76)
# downward shift of the motion for the title, of half the image's height
BELOW = 0.14
# gap between the recording's figure and the robot [m]
GAP_M = 0.25
# extent of the robot around the origins of its bodies [m]
LIMB_M = 0.07
MAX_DISTANCE_M = 60.0
# height of the velocity arrows above the root [m]
ARROW_UP_M = 0.34


@dataclass(frozen=True)
class View:
    """The camera's position.

    Raises:
      InputError: for values out of range.
    """

    # follow; fixed: shows the whole path; robot: the robot's own camera
    mode: str = "follow"
    # camera direction from the robot's initial heading: 0 behind, 90 right, 180 ahead [deg]
    azimuth: float = 125.0
    # below 0 the camera looks down [deg]
    elevation: float = -20.0
    # distance from the point that the camera looks at [m]; None: the motion fills the image
    distance: float | None = None

    def __post_init__(self) -> None:
        check_available("camera", [self.mode], MODES)
        if not (math.isfinite(self.azimuth) and -89.0 <= self.elevation <= 89.0):
            raise InputError(f"elevation={self.elevation}: must be from -89 to 89 [deg]")
        if self.distance is not None and not 0.0 < self.distance <= MAX_DISTANCE_M:
            raise InputError(
                f"distance={self.distance}: must be above 0 and at most {MAX_DISTANCE_M:g} [m]"
            )


@dataclass(frozen=True)
class Camera:
    """MuJoCo's free camera over T frames."""

    lookat: FloatArray  # (T, 3) [m]
    azimuth: float  # [deg] in the world, as MuJoCo counts it
    elevation: float  # [deg]
    distance: float  # [m]

    @cached_property
    def axes(self) -> FloatArray:
        """(3, 3) rows: right and up in the picture, and the camera's direction."""
        az = math.radians(self.azimuth)
        el = math.radians(self.elevation)
        ahead = np.array([math.cos(el) * math.cos(az), math.cos(el) * math.sin(az), math.sin(el)])
        right = np.array([math.sin(az), -math.cos(az), 0.0])
        return np.stack((right, np.cross(right, ahead), ahead))


@dataclass(frozen=True)
class Mount:
    """A camera on a robot."""

    # position of the camera in the root frame [m]
    position: tuple[float, float, float]
    # downward pitch of the camera [deg]
    pitch: float
    # vertical field of view [deg]
    fovy: float


@dataclass(frozen=True)
class Shot:
    """A part of a film.

    Attributes:
      clip: the motion. Its keypoints are drawn as a figure beside the robot, its reference as a
        ghost.
      path: (S, 2) a line on the floor [m], or None.
      title: in the upper left corner. note: below it.
      parts: the subset of `PARTS` to draw.
      frame: for a still; None: all.
      mount: the robot's camera, or None.
      marks: points (3,) in the world [m] by name, drawn over the first frame.
      glass: draw the robot and its collision shapes translucent.
      curves: (T,) by GROUP/PLOT/LINE, for a .rrd; empty: joint angles and velocities.
    """

    robot: Robot
    clip: ReplayClip
    view: View = View()
    path: FloatArray | None = None
    title: str = ""
    note: str = ""
    parts: Collection[str] = PARTS
    frame: int | None = None
    mount: Mount | None = None
    marks: Mapping[str, FloatArray] = field(default_factory=dict)
    glass: bool = False
    curves: Mapping[str, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_available("part", self.parts, PARTS)
        if self.view.mode == "robot" and self.mount is None:
            raise InputError("camera=robot: the robot has no camera here; task=mapped has one")
        if not any(self.has(part) for part in self.parts):
            available = ", ".join(part for part, there in self._available.items() if there)
            requested = ", ".join(self.parts) or "nothing"
            raise InputError(f"show={requested}: {self.clip.name!r} has {available}")

    @property
    def _available(self) -> dict[str, bool]:
        reference = self.clip.reference is not None
        keypoints = self.clip.keypoints is not None
        return dict(zip(PARTS, (True, reference, keypoints), strict=True))

    def has(self, part: str) -> bool:
        """Whether one of `PARTS` is drawn."""
        return part in self.parts and self._available[part]

    @property
    def qpos(self) -> FloatArray:
        """Poses of the robot, (T, nq)."""
        return self.clip.qpos

    @cached_property
    def bodies(self) -> FloatArray:
        """(T, B, 3) positions of the robot's bodies, including its feet [m]."""
        model = self.robot.model(visuals=False)
        data = mujoco.MjData(model)
        positions = np.empty((len(self.qpos), model.nbody - 1, 3))
        for t, q in enumerate(self.qpos):
            data.qpos[:] = q
            mujoco.mj_kinematics(model, data)
            positions[t] = data.xpos[1:]
        return positions

    @property
    def azimuth(self) -> float:
        """Azimuth of the camera in the world [deg]."""
        return math.degrees(rotations.yaw(self.qpos[0, 3:7])) + self.view.azimuth

    @cached_property
    def figure(self) -> FloatArray | None:
        """(T, M, 3) positions of the recording's figure: left of the robot in the image, or in its
        place without it."""
        points = self.clip.keypoints
        if not self.has("recording") or points is None:
            return None
        if not (self.has("robot") or self.has("ghost")):
            return points
        right = Camera(np.zeros((1, 3)), self.azimuth, 0.0, 1.0).axes[0]
        # relative to the robot, as both move along
        here = self.qpos[:, None, :3] @ right
        edge = (self.bodies @ right - here).min() - LIMB_M
        return points - ((points @ right - here).max() - edge + GAP_M) * right


def camera_of(shot: Shot, size: tuple[int, int]) -> Camera:
    """The camera of a shot for images of size (width, height), which the motion fills."""
    points, followed = _points(shot)
    count = len(points)
    top = float(np.percentile(points[..., 2].max(axis=1), 95))
    bottom = float(np.percentile(points[..., 2].min(axis=1), 5))
    middle = np.full((count, 3), 0.5 * (min(bottom, top - 0.1) + top))
    if shot.view.mode == "fixed":
        flat = points[..., :2].reshape(-1, 2)
        middle[:, :2] = 0.5 * (flat.min(axis=0) + flat.max(axis=0))
    else:
        middle[:, :2] = smoothed(followed[:, :2], shot.clip.rate_hz)
        if shot.clip.ground is not None:
            middle[:, 2] = smoothed(followed[:, 2:], shot.clip.rate_hz)[:, 0]
    camera = Camera(middle, shot.azimuth, shot.view.elevation, 1.0)
    right, up, _ = camera.axes
    for axis in (right, up):  # centres most of the motion in the image
        along = ((points - middle[:, None]) @ axis)[:: max(1, count // 200)]
        ends = np.percentile(along.min(axis=1), 2), np.percentile(along.max(axis=1), 98)
        middle = middle + 0.5 * sum(ends) * axis
    camera = replace(camera, lookat=middle)
    distance = shot.view.distance or min(_fitting(camera, points, size), MAX_DISTANCE_M)
    return replace(camera, distance=distance, lookat=middle + BELOW * HALF * distance * up)


def smoothed(values: FloatArray, rate_hz: float) -> FloatArray:
    """Values (T, k) without the oscillation of steps, extended at the ends by point reflection."""
    # 4 standard deviations, beyond which the Gaussian is cut [frames]
    padding = min(len(values) - 1, math.ceil(4.0 * SMOOTHING_S * rate_hz) + 1)
    if padding < 1:
        return values
    padded = np.pad(values, ((padding, padding), (0, 0)), mode="reflect", reflect_type="odd")
    filtered = gaussian_filter1d(padded, SMOOTHING_S * rate_hz, axis=0, mode="nearest")
    return np.asarray(filtered)[padding:-padding]


def _points(shot: Shot) -> tuple[FloatArray, FloatArray]:
    """Points (T, N, 3) that must be in the image, and (T, 3) the position to follow."""
    clip = shot.clip
    parts = []
    followed = []
    if shot.has("robot") or shot.has("ghost"):
        limb = LIMB_M * np.concatenate((np.eye(3), -np.eye(3)))
        parts.append((shot.bodies[:, :, None] + limb).reshape(len(shot.qpos), -1, 3))
        followed.append(shot.qpos[:, :3])
        if clip.command is not None:
            parts.append(shot.qpos[:, None, :3] + [0.0, 0.0, ARROW_UP_M + 0.05])
    if shot.marks:
        marks = np.array([*shot.marks.values()])
        parts.append(np.broadcast_to(marks, (len(shot.qpos), *marks.shape)))
    if (figure := shot.figure) is not None:
        parts.append(figure)
        followed.append(figure.mean(axis=1))
    if clip.ball is not None:
        parts += [clip.ball[:, None] + [0.0, 0.0, up] for up in (clip.ball_m, -clip.ball_m)]
        followed.append(clip.ball)
    return np.concatenate(parts, axis=1), np.mean(followed, axis=0)


def _fitting(camera: Camera, points: FloatArray, size: tuple[int, int]) -> float:
    """The distance [m] at which points (T, N, 3) fill `FILLED` of the image, except in 2 % of the
    frames."""
    x, y, depth = np.moveaxis((points - camera.lookat[:, None]) @ camera.axes.T, -1, 0)
    wide = FILLED[0] * HALF * size[0] / size[1]
    tall = FILLED[1] * HALF
    needed = np.maximum(np.abs(x) / wide, np.abs(y) / tall) - depth
    return float(np.percentile(needed.max(axis=1), 98))
