"""What a film shows and from where: the robot and what goes with it, and a camera that follows
smoothly.

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
FOVY_DEG = 32.0  # vertical field of view: a long lens, legs stay in proportion
HALF = math.tan(math.radians(FOVY_DEG) / 2.0)  # the picture's half height at a distance of 1
FOLLOWED_S = 0.5  # the camera's path is smoothed by a Gaussian of this deviation
FILLED = (0.84, 0.76)  # of the picture's width and height, by what is shown at its largest
# of half the picture's height: what is shown stands so much below its middle, for words are above
BELOW = 0.14
GAP_M = 0.25  # between the recording's figure and the robot beside it
LIMB_M = 0.07  # around the bodies' origins there is so much of a robot
FARTHEST_M = 60.0
ARROW_UP_M = 0.34  # above the root: where arrows of velocities start


@dataclass(frozen=True)
class View:
    """Where a film is seen from. Raises InputError for values out of range."""

    # or fixed: the camera stands, and sees the whole way; robot: what the robot's own camera sees
    mode: str = "follow"
    # degrees from the robot's first heading; 0 from behind, 90 from its right, 180 from ahead
    azimuth: float = 125.0
    elevation: float = -20.0  # degrees; below 0 the camera looks down
    # from what it looks at [m]; None: so that what is shown fills the picture
    distance: float | None = None

    def __post_init__(self) -> None:
        check_available("camera", [self.mode], MODES)
        if not (math.isfinite(self.azimuth) and -89.0 <= self.elevation <= 89.0):
            raise InputError(f"elevation={self.elevation}: from -89 to 89 degrees is expected")
        if self.distance is not None and not 0.0 < self.distance <= FARTHEST_M:
            raise InputError(
                f"distance={self.distance}: above 0 and at most {FARTHEST_M:g} m is expected"
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

    # in the root frame [m]
    place: tuple[float, float, float]
    # downwards from forwards, and its view from top to bottom [deg]
    pitch: float
    fovy: float


@dataclass(frozen=True)
class Shot:
    """A stretch of film.

    Attributes:
        clip: the robot's motion and what goes with it. Its keypoints are drawn as a figure beside
          the robot, its reference as a ghost.
        path: (S, 2) a line on the floor, or None.
        title: in the upper left corner; note: smaller, below.
        shown: which of `PARTS`, where the clip has them.
        moment: the one frame to show; None: all.
        mount: the robot's own camera, None where it has none.
        marks: points (3,) in the world [m] by name, drawn over the first picture.
        glass: the robot is translucent, and so are the shapes by which it collides.
    """

    robot: Robot
    clip: ReplayClip
    view: View = View()
    path: FloatArray | None = None
    title: str = ""
    note: str = ""
    shown: Collection[str] = PARTS
    moment: int | None = None
    mount: Mount | None = None
    marks: Mapping[str, FloatArray] = field(default_factory=dict)
    glass: bool = False

    def __post_init__(self) -> None:
        check_available("part to show", self.shown, PARTS)
        if self.view.mode == "robot" and self.mount is None:
            raise InputError("camera=robot: what is filmed has no camera; task=mapped has one")
        if not any(self.has(part) for part in self.shown):
            there = ", ".join(part for part, there in self._there.items() if there)
            requested = ", ".join(self.shown) or "nothing"
            raise InputError(f"nothing to show: {self.clip.name!r} has {there}, not {requested}")

    @property
    def _there(self) -> dict[str, bool]:
        reference = self.clip.reference is not None
        keypoints = self.clip.keypoints is not None
        return dict(zip(PARTS, (True, reference, keypoints), strict=True))

    def has(self, part: str) -> bool:
        """Whether one of `PARTS` is shown."""
        return part in self.shown and self._there[part]

    @property
    def qpos(self) -> FloatArray:
        """(T, nq)."""
        return self.clip.qpos

    @cached_property
    def bodies(self) -> FloatArray:
        """(T, B, 3) where the origins of the robot's bodies are, its feet among them."""
        model = self.robot.model(visuals=False)
        data = mujoco.MjData(model)
        places = np.empty((len(self.qpos), model.nbody - 1, 3))
        for place, q in zip(places, self.qpos, strict=True):
            data.qpos[:] = q
            mujoco.mj_kinematics(model, data)
            place[:] = data.xpos[1:]
        return places

    @property
    def azimuth(self) -> float:
        """The camera's, in the world [deg]."""
        return math.degrees(rotations.yaw(self.qpos[0, 3:7])) + self.view.azimuth

    @cached_property
    def figure(self) -> FloatArray | None:
        """(T, M, 3) the recording's keypoints as they are drawn: to the left of the robot in the
        picture, or where it is without it."""
        points = self.clip.keypoints
        if not self.has("recording") or points is None:
            return None
        if not (self.has("robot") or self.has("ghost")):
            return points
        right = Camera(np.zeros((1, 3)), self.azimuth, 0.0, 1.0).axes[0]
        # both go the same way: what matters is their extent about the robot at each moment
        here = self.qpos[:, None, :3] @ right
        edge = (self.bodies @ right - here).min() - LIMB_M
        return points - ((points @ right - here).max() - edge + GAP_M) * right


def camera_of(shot: Shot, size: tuple[int, int]) -> Camera:
    """The camera for a shot in pictures of size (width, height): it follows what is shown, which
    fills the picture."""
    points, followed = _seen(shot)
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
    for axis in (right, up):  # in the middle of the picture, by and large
        along = ((points - middle[:, None]) @ axis)[:: max(1, count // 200)]
        ends = np.percentile(along.min(axis=1), 2), np.percentile(along.max(axis=1), 98)
        middle = middle + 0.5 * sum(ends) * axis
    camera = replace(camera, lookat=middle)
    distance = shot.view.distance or min(_fitting(camera, points, size), FARTHEST_M)
    return replace(camera, distance=distance, lookat=middle + BELOW * HALF * distance * up)


def smoothed(way: FloatArray, rate_hz: float) -> FloatArray:
    """A way (T, k) without the sway of steps, extended at its ends by point reflection."""
    # as far as the filter reaches
    wide = min(len(way) - 1, math.ceil(4.0 * FOLLOWED_S * rate_hz) + 1)
    if wide < 1:
        return way
    longer = np.pad(way, ((wide, wide), (0, 0)), mode="reflect", reflect_type="odd")
    filtered = gaussian_filter1d(longer, FOLLOWED_S * rate_hz, axis=0, mode="nearest")
    return np.asarray(filtered)[wide:-wide]


def _seen(shot: Shot) -> tuple[FloatArray, FloatArray]:
    """Points (T, N, 3) that should be in the picture, and (T, 3) what a camera follows."""
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
    """The distance [m] at which points (T, N, 3) fill `FILLED` of the picture, but for its rarest
    moments."""
    x, y, depth = np.moveaxis((points - camera.lookat[:, None]) @ camera.axes.T, -1, 0)
    wide = FILLED[0] * HALF * size[0] / size[1]
    tall = FILLED[1] * HALF
    needed = np.maximum(np.abs(x) / wide, np.abs(y) / tall) - depth
    return float(np.percentile(needed.max(axis=1), 98))
