"""A depth camera on a robot, rendered over a height field.

Along a bearing the steepest elevation of the ground up to a distance (the horizon) never decreases.
A ray ends at the first distance whose horizon is as steep as the ray. An image costs heights at
`BEARINGS` times `DISTANCES` points and a binary search, not a march along each ray. Objects
narrower than 8 % of their distance may be missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mocap_data.errors import unknown
from mocap_data.input_files import read_json_object
from mocap_data.safe_yaml import read_yaml
from npmp.core import geometry, ranges
from npmp.core.memory_checks import require_images
from npmp.core.settings import from_mapping, to_plain
from npmp.envs.state import RobotState
from npmp.envs.task import Sensor, StepResult

# least number of bearings; an image has two per column
BEARINGS = 64
# sampled distances per bearing, a power of 2
DISTANCES = 64
# largest number of columns or rows of an image
MOST_PIXELS = 256
# images rendered at once, so that they fit into the CPU's cache
CHUNK = 8
# bisections between the two distances at a ray's end
HALVINGS = 3
# shortest sampled distance
_FIRST_M = 0.05


@dataclass(frozen=True)
class CameraConfig:
    """A depth camera: its pose, noise and delay. Raises ValueError for values out of range."""

    # columns, rows
    size: tuple[int, int] = (16, 9)
    # horizontal and vertical field of view
    fov_deg: tuple[float, float] = (87.0, 58.0)
    # position in the root frame [m]: forwards, to the left, up; on an ANYmal
    place_m: tuple[float, float, float] = (0.45, 0.0, 0.1)
    # angle of the optical axis below the horizontal
    pitch_deg: float = 35.0
    # nearest and farthest depth [m]
    range_m: tuple[float, float] = (0.2, 4.0)
    # standard deviation of the depth of a stereo camera over the squared depth [1/m]
    noise_stereo: float = 0.004
    # standard deviation of the depth of a time-of-flight camera over the depth
    noise_flight: float = 0.0
    # share of pixels without a reading, which get the farthest depth
    holes: float = 0.02
    rate_hz: float = 10.0
    # time from exposure until a policy observes the image
    delay_s: float = 0.1
    # folder of a network that estimates depths from colour images (`ImageCamera`); "": measured
    network: str = ""
    # renderer of these images: generated (`Appearances`) or mujoco
    renderer: str = "generated"

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "size")
        ranges.at_most(self, MOST_PIXELS, "size")
        ranges.at_most(self, ranges.LONGEST_DELAY_S, "delay_s")
        ranges.above_zero(self, "rate_hz", "fov_deg", "range_m")
        ranges.not_negative(self, "noise_stereo", "noise_flight", "delay_s")
        ranges.share(self, "holes")
        ranges.one_of(self, "renderer", ("generated", "mujoco"))
        if self.renderer != "generated" and not self.network:
            raise ValueError(f"renderer={self.renderer}: only a camera with network= has images")
        if max(self.fov_deg) >= 170.0 or self.range_m[0] >= self.range_m[1]:
            raise ValueError("fov_deg must be below 170, range_m must be [nearest, farthest]")


# settings of cameras by name [D: the manufacturers' data sheets]
CAMERAS = {
    "stereo": CameraConfig(),
    "flight": CameraConfig(
        fov_deg=(70.0, 55.0), noise_stereo=0.0, noise_flight=0.01, rate_hz=15.0, delay_s=0.08
    ),
}


# names of settings in older files; `recorded` still writes "eyes"
_OLD_NAMES = {"eyes": "network", "look": "renderer"}


def camera_of(camera: str | Mapping[str, Any]) -> CameraConfig:
    """A camera from its name, a YAML file, a mapping, or the folder of a depth network, which
    determines its camera, without noise. Raises InputError for anything else."""
    if isinstance(camera, str) and camera in CAMERAS:
        return CAMERAS[camera]
    if isinstance(camera, str) and (Path(camera) / "eyes.json").is_file():
        camera = {"network": camera}
    if isinstance(camera, str) and not camera.endswith((".yaml", ".yml")):
        raise unknown("camera", camera, CAMERAS)
    content = read_yaml(Path(camera)) if isinstance(camera, str) else camera
    if isinstance(content, Mapping):
        content = {_OLD_NAMES.get(name, name): value for name, value in content.items()}
    config = from_mapping(CameraConfig, content, at="camera")
    if not config.network:
        return config
    folder = Path(config.network).resolve()
    trained = read_json_object(folder / "eyes.json").get("camera", {})
    usual = to_plain(from_mapping(CameraConfig, trained, at=f"'{folder}'.camera"))
    exact = dict.fromkeys(("noise_stereo", "noise_flight", "holes"), 0.0)
    content = {**usual, **exact, **content, "network": str(folder)}
    return from_mapping(CameraConfig, content, at="camera")


def recorded(config: CameraConfig) -> dict[str, Any]:
    """The settings that policies and depth networks depend on, as `camera_of` takes them."""
    values = to_plain(config)
    del values["renderer"]
    network = values.pop("network")
    return {**values, "eyes": network} if network else values  # type: ignore[no-any-return]


class DepthCamera(Sensor):
    """Depth images along the optical axis, row by row from the top left, at the camera's rate and
    delay."""

    saved: ClassVar[Mapping[str, str]] = {"eye.age": "age", "eye.past": "past"}
    age: Tensor  # (n,) long: control steps since the latest image
    past: Tensor  # (n, L, pixels) [m], the latest first

    def __init__(self, config: CameraConfig):
        self.config = config
        self.recorded = recorded(config)
        columns, rows = config.size
        names = (f"depth_{row}_{column}_m" for row in range(rows) for column in range(columns))
        self.ranges = dict.fromkeys(names, config.range_m)
        left, up = (
            torch.linspace(1.0 - 1.0 / k, 1.0 / k - 1.0, k) * math.tan(math.radians(fov / 2.0))
            for k, fov in zip(config.size, config.fov_deg, strict=True)
        )
        pitch = math.radians(config.pitch_deg)
        up, left = (part.flatten() for part in torch.meshgrid(up, left, indexing="ij"))
        cos, sin = math.cos(pitch), math.sin(pitch)
        # in the root frame: the optical axis, to the right, down; and (pixels, 3), 1 along the axis
        self.axes = np.array([[cos, 0.0, -sin], [0.0, -1.0, 0.0], [-sin, 0.0, -cos]])
        self.rays = torch.stack((cos + up * sin, left, up * cos - sin), -1)
        reach = config.range_m[1] * float(self.rays.norm(dim=-1).max())
        share = torch.arange(DISTANCES) / (DISTANCES - 1)
        self.distances = _FIRST_M * (reach / _FIRST_M) ** share

    def bind(self, env: Any) -> None:
        """As `Part.bind`."""
        super().bind(env)
        self.allocate(env.num_envs, env.dt, env.device)

    def allocate(self, n: int, dt: float, device: torch.device) -> None:
        """Allocate state for n robots; dt: control period [s]."""
        c = self.config
        self.period = max(1, round(1.0 / (c.rate_hz * dt)))
        self.delay = round(c.delay_s / dt)
        self.rays = self.rays.to(device)
        self.distances = self.distances.to(device)
        self.position = torch.tensor(c.place_m, device=device)
        self.age = torch.zeros(n, dtype=torch.long, device=device)
        images = -(-self.delay // self.period) + 1
        require_images(n, images, c.size)
        self.past = torch.zeros(n, images, len(self.rays), device=device)

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """Fill the images of robots ids (k,) with the start's; phases are random."""
        phase = torch.rand(len(ids), generator=generator, device=ids.device)
        self.age = self.age.index_copy(0, ids, (phase * self.period).long())
        image = self._image(ids).unsqueeze(1).expand(-1, self.past.shape[1], -1)
        self.past = self.past.index_copy(0, ids, image)

    def advance(self, result: StepResult, generator: torch.Generator) -> None:
        """Take an image if a period is over."""
        self.age = self.age + 1
        due = torch.nonzero(self.age >= self.period).squeeze(-1)
        if len(due):
            older = torch.cat((self._image(due).unsqueeze(1), self.past[due, :-1]), 1)
            self.past = self.past.index_copy(0, due, older)
            self.age = self.age.index_fill(0, due, 0)

    def _image(self, ids: Tensor) -> Tensor:
        depth = self._exact(ids)
        normal = torch.randn(2, *depth.shape, generator=self.env.generator, device=depth.device)
        return self.add_noise(depth, normal[0], normal[1])

    def _exact(self, ids: Tensor) -> Tensor:
        """Depths before noise."""
        state = RobotState.unpack(self.env.state.pack()[ids])
        return self.images(state.root_pos, state.root_rot, self.env.ground.height_in_world)

    def read(self) -> Tensor:
        """The latest image older than the delay, (n, pixels) [m]."""
        which = self._latest()
        return self.past[torch.arange(len(which), device=which.device), which]

    def arrives(self) -> Tensor:
        """Whether `read` has a new image in this control step, (n,) bool; exposed `delay` steps
        ago."""
        return self.age + self.period * self._latest() == self.delay

    def _latest(self) -> Tensor:
        """Index in `past` of the latest image that a policy observes, (n,)."""
        missing = (self.delay - self.age).clamp(min=0)
        return torch.div(missing + self.period - 1, self.period, rounding_mode="floor")

    def imagined(
        self, state: RobotState, height: Callable[[Tensor], Tensor], drift: Tensor, noise: Tensor
    ) -> Tensor:
        """As `Sensor.imagined`: an image at each step, without delay."""
        depth = self.depths(state.root_pos, state.root_rot, height)
        return self.add_noise(depth, *noise.unbind(-2))

    def add_noise(self, depth: Tensor, noise: Tensor, other: Tensor) -> Tensor:
        """Add noise and holes to depths (..., pixels) [m]; noise, other: standard normal, same
        shape."""
        c = self.config
        near, far = self.config.range_m
        off = c.noise_stereo * depth.square() + c.noise_flight * depth
        lost = (torch.special.ndtr(other) < c.holes) | (depth >= far)
        return torch.where(lost, far, (depth + off * noise).clamp(near, far)).nan_to_num(far)

    def images(
        self, position: Tensor, rotation: Tensor, height: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """As `depths`, in chunks; height does not depend on the robot."""
        pairs = zip(position.split(CHUNK), rotation.split(CHUNK), strict=True)
        return torch.cat([self.depths(*pair, height) for pair in pairs])

    @torch.no_grad()
    def depths(
        self, position: Tensor, rotation: Tensor, height: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Exact depths (B, pixels) [m], clamped to `range_m`.

        Args:
          position: (B, 3) of the root [m]. rotation: (B, 3, 3).
          height: ground height (B, k) [m] at points (B, k, 2) [m].
        """
        rays = self.rays @ rotation.mT
        at = position + rotation @ self.position
        flat = torch.linalg.vector_norm(rays[..., :2], dim=-1).clamp(min=1e-6)
        slope = rays[..., 2] / flat
        yaw = geometry.yaw_of(rotation).unsqueeze(-1)
        bearing = torch.atan2(rays[..., 1], rays[..., 0]) - yaw
        bearing = torch.atan2(torch.sin(bearing), torch.cos(bearing))
        half = bearing.abs().amax(-1, keepdim=True).clamp(min=1e-6)
        count = max(BEARINGS, 2 * self.config.size[0])
        d = self.distances
        angle = yaw + half * torch.linspace(-1.0, 1.0, count, device=d.device)  # (B, A)
        along = torch.stack((torch.cos(angle), torch.sin(angle)), -1)
        points = at[:, None, None, :2] + d[:, None] * along[:, :, None]  # (B, A, D, 2)
        rise = height(points.flatten(1, 2)).view(points.shape[:-1]) - at[:, 2, None, None]
        horizon = (rise / d).cummax(-1).values
        column = ((bearing / half + 1.0) / 2.0 * (count - 1)).round().long()
        first = _first_at_least(horizon, column, slope)
        far = d[first.clamp(max=len(d) - 1)]
        near = torch.where(first > 0, d[(first - 1).clamp(min=0)], 0.0)
        ahead = rays[..., :2] / flat.unsqueeze(-1)
        for _ in range(HALVINGS):
            middle = 0.5 * (near + far)
            ground = height(at[:, None, :2] + middle.unsqueeze(-1) * ahead)
            ended = ground >= at[:, 2:] + slope * middle
            near = torch.where(ended, near, middle)
            far = torch.where(ended, middle, far)
        depth = 0.5 * (near + far) / flat
        nearest, farthest = self.config.range_m
        return torch.where(first < len(d), depth, farthest).clamp(nearest, farthest)


def _first_at_least(rising: Tensor, row: Tensor, value: Tensor) -> Tensor:
    """Index (B, k) of the first number >= value (B, k) in a row (B, k) of rising numbers (B, R, D),
    D if there is none; by bisection, D a power of 2."""
    count = rising.shape[-1]
    numbers = rising.flatten(1)
    begin = row * count
    step = count
    index = torch.zeros_like(row)
    while step:
        tried = (index + step).clamp(max=count)
        below = numbers.gather(1, begin + tried - 1) < value
        index = torch.where(below, tried, index)
        step = step // 2
    return index
