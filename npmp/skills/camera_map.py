"""An elevation map that a depth camera fills, in the frame of a robot's odometry.

Cells of a square that moves with the robot hold the mean and the highest of the points that fell
into them, older images with less weight. Ground that the camera has not observed is unknown, except
around the start, which is as high as the feet. Without images the whole map is unknown.

An image is invalid if most pixels have no reading, if it repeats the last one while the robot
moves, and if the ground is farther at its bottom than at its top: on level ground the camera then
hangs upside down. Over steps half of such images are not recognized.

Left out: how uncertain the pose was when a point was seen (Fankhauser et al. 2018). Images exposed
before `begin` are placed by the pose at `begin`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from npmp.core import geometry
from npmp.core.tree import map_tree, where_tree
from npmp.envs.camera import DepthCamera
from npmp.envs.state import RobotState
from npmp.skills.elevation_map import CELL_M

# cells along a side
SIDE = 64
# largest distance of a seen point from the robot, along x and y [m]
REACH_M = 0.5 * (SIDE - 2) * CELL_M
# largest distance from the robot of ground that is as high as the feet at the start [m] [D]
START_M = 0.6
# standard deviation of a point's height beside the camera's noise [m] [D]
POINT_M = 0.01
# largest weight of older images, as that of this many exact points [D]
MOST_POINTS = 5.0
# an image with fewer readings than this share of its pixels is invalid; time without a valid one,
# and at least two periods of the camera, after which the map is unknown [s] [D]
LEAST_SHARE = 0.2
LOST_S = 0.5
# an image that is equal to the last one is invalid if the robot has moved by this since that was
# exposed [m], or turned [rad] [D]
MOVED_M = 0.02
TURNED_RAD = 0.05
# regression slope of an image's rows on those of level ground below which it is upside down; height
# of a camera above that ground [m]; spread of its rows below which the slope says nothing [m] [D]
UPSIDE_DOWN = -0.3
USUAL_M = 0.4
MIN_SPREAD_M = 0.1


class Exposure(NamedTuple):
    """The latest images of n robots."""

    depth: Tensor  # (n, pixels) [m]
    # at the exposure; of equal images, at the first one's
    root_pos: Tensor  # (n, 3) estimated [m]
    root_rot: Tensor  # (n, 3, 3)


class CameraCells(NamedTuple):
    """The maps of n robots, and where they were since the camera's delay."""

    # (n, SIDE ** 2, 2) long: column and row, in the odometry's frame, of the ground in each slot
    place: Tensor
    height: Tensor  # (n, SIDE ** 2, 2) mean and highest [m]; NaN: unknown
    weight: Tensor  # (n, SIDE ** 2), 1 of an exact point
    root_pos: Tensor  # (n, D + 1, 3) estimated, the latest first [m]
    root_rot: Tensor  # (n, D + 1, 3, 3)
    latest: Exposure
    blind_s: Tensor  # (n,) since the latest valid image [s]


class CameraMap:
    """Maps of robots with a camera; the interface of `ElevationMap`."""

    def __init__(self, camera: DepthCamera, dt: float):
        self.camera = camera
        self.dt = dt
        # means of the rows of level ground, minus their mean [m]
        down = -camera.rays[:, 2].clamp(max=-1e-6)
        level = self._rows((USUAL_M / down).clamp(*camera.config.range_m))
        self.level = level - level.mean()

    def begin(self, robots: RobotState, ground: Tensor) -> CameraCells:
        """Maps of robots that stand on ground of a height (n,) [m]."""
        n = len(ground)
        place = _places_around(robots.root_pos)
        away = CELL_M * place - robots.root_pos[:, None, :2]
        near = away.abs().amax(-1) < START_M
        past = self.camera.delay + 1
        height = torch.where(near, ground.unsqueeze(-1), math.nan)
        return CameraCells(
            place=place,
            height=torch.stack((height, height), -1),
            weight=near.to(ground),
            root_pos=robots.root_pos.unsqueeze(1).expand(n, past, 3),
            root_rot=robots.root_rot.unsqueeze(1).expand(n, past, 3, 3),
            # the first image is not equal to NaN
            latest=Exposure(
                ground.new_full((n, len(self.camera.rays)), math.nan),
                robots.root_pos,
                robots.root_rot,
            ),
            blind_s=torch.zeros_like(ground),
        )

    def advance(self, cells: CameraCells, odometry: RobotState, true: RobotState) -> CameraCells:
        """Maps one control step later, with the images that arrive now. true: not used."""
        root_pos = torch.cat((odometry.root_pos.unsqueeze(1), cells.root_pos[:, :-1]), 1)
        root_rot = torch.cat((odometry.root_rot.unsqueeze(1), cells.root_rot[:, :-1]), 1)
        blind_s = cells.blind_s + self.dt
        cells = cells._replace(root_pos=root_pos, root_rot=root_rot, blind_s=blind_s)
        ids = torch.nonzero(self.camera.arrives()).squeeze(-1)
        if len(ids):
            cells = self._with_images(cells, ids)
        blind = self.blind(cells).unsqueeze(-1)
        return cells._replace(
            height=cells.height.masked_fill(blind.unsqueeze(-1), math.nan),
            weight=cells.weight.masked_fill(blind, 0.0),
        )

    def _with_images(self, cells: CameraCells, ids: Tensor) -> CameraCells:
        """Maps with the latest images of robots ids (k,)."""
        camera = self.camera
        nearest, farthest = camera.config.range_m
        depth = camera.read()[ids].nan_to_num(farthest).clamp(nearest, farthest)  # (k, pixels)
        reads = (depth > nearest) & (depth < farthest)
        exposure, frozen = _unless_equal(
            map_tree(lambda part: part[ids], cells.latest),
            Exposure(depth, cells.root_pos[ids, -1], cells.root_rot[ids, -1]),
        )
        upright = self.slope(depth) > UPSIDE_DOWN
        has_image = (reads.float().mean(-1) >= LEAST_SHARE) & upright & ~frozen
        root_pos = cells.root_pos[ids, -1:]
        local = camera.position + depth.unsqueeze(-1) * camera.rays
        points = root_pos + geometry.to_world(cells.root_rot[ids, -1:], local)
        away = (points - root_pos)[..., :2].abs().amax(-1)
        valid = reads & (away < REACH_M) & has_image.unsqueeze(-1)
        deviation = camera.config.noise_stereo * depth.square() + camera.config.noise_flight * depth
        weight = valid / (1.0 + (deviation / POINT_M).square())

        slot = _slot(_place(points[..., :2]))
        none = torch.zeros(len(ids), SIDE**2, device=depth.device)
        image_weight = none.scatter_add(1, slot, weight)
        mean = none.scatter_add(1, slot, weight * points[..., 2]) / image_weight
        top = torch.where(valid, points[..., 2], -math.inf)
        highest = none.scatter_reduce(1, slot, top, "amax", include_self=False)
        latest = torch.stack((mean, highest), -1)

        old_place, old_height, old_weight = (
            part[ids] for part in (cells.place, cells.height, cells.weight)
        )
        observed = (image_weight > 0.0).unsqueeze(-1)
        place = torch.where(observed, _places_around(root_pos.squeeze(1)), old_place)
        # a slot may hold ground that is out of reach by now
        same_weight = torch.where((place == old_place).all(-1), old_weight, 0.0)
        total = same_weight + image_weight
        older = torch.where(same_weight.unsqueeze(-1) > 0.0, old_height, latest)
        height = older.lerp(latest, (image_weight / total).unsqueeze(-1))
        height = torch.where(observed, height, old_height)
        weight = torch.where(observed.squeeze(-1), total.clamp(max=MOST_POINTS), old_weight)
        blind_s = torch.where(has_image, 0.0, cells.blind_s[ids])
        return cells._replace(
            place=cells.place.index_copy(0, ids, place),
            height=cells.height.index_copy(0, ids, height),
            weight=cells.weight.index_copy(0, ids, weight),
            latest=map_tree(lambda old, new: old.index_copy(0, ids, new), cells.latest, exposure),
            blind_s=cells.blind_s.index_copy(0, ids, blind_s),
        )

    def slope(self, depth: Tensor) -> Tensor:
        """Regression slope (n,) of the means of the rows of images (n, pixels) [m] on those of
        level ground from a usual height; 1 if these hardly differ, as when the camera looks
        straight down."""
        rows = self._rows(depth)
        if self.level.square().mean().sqrt() < MIN_SPREAD_M:
            return torch.ones_like(rows[:, 0])
        return rows @ self.level / self.level.square().sum()

    def _rows(self, depth: Tensor) -> Tensor:
        """Means of the rows of images (..., pixels), (..., rows)."""
        return depth.unflatten(-1, (-1, self.camera.config.size[0])).mean(-1)

    def blind(self, cells: CameraCells) -> Tensor:
        """Whether robots have had no image for a while, (n,) bool."""
        return cells.blind_s > max(LOST_S, 2.0 * self.camera.period * self.dt)

    def levelled(self, cells: CameraCells, above: Tensor, stands: Tensor) -> CameraCells:
        """The maps as they are: a shift by what the feet stand on, which was seen a second ago,
        would spoil what was seen since."""
        return cells

    def points(self, cells: CameraCells, robot: int) -> Tensor:
        """Centres of the cells that a robot has seen, (k, 3) in its odometry's frame [m]."""
        seen = cells.weight[robot] > 0.0
        height = cells.height[robot, seen, :1]
        return torch.cat((CELL_M * cells.place[robot, seen], height), -1)

    def height_at(self, cells: CameraCells, position: Tensor, robots: Tensor) -> Tensor:
        """Mean heights (k, ...) [m] of cells at positions (k, ..., 2) of k robots in their
        odometry's frame; NaN where nothing was seen. robots: (k,) indices."""
        return self._heights(cells, position, robots)[..., 0]

    def highest_at(self, cells: CameraCells, position: Tensor, robots: Tensor) -> Tensor:
        """As `height_at`, the highest."""
        return self._heights(cells, position, robots)[..., 1]

    def _heights(self, cells: CameraCells, position: Tensor, robots: Tensor) -> Tensor:
        place = _place(position).view(len(robots), -1, 2)
        slot = _slot(place)
        rows = robots.unsqueeze(-1)
        valid = (cells.place[rows, slot] == place).all(-1, keepdim=True)
        height = torch.where(valid, cells.height[rows, slot], math.nan)
        return height.view(*position.shape[:-1], 2)


def _unless_equal(before: Exposure, latest: Exposure) -> tuple[Exposure, Tensor]:
    """The latest images (k, ...), with the poses of those before where both are equal; and whether
    they are equal although the robot has moved, (k,) bool."""
    equal = (latest.depth == before.depth).all(-1)
    away = torch.linalg.vector_norm(latest.root_pos - before.root_pos, dim=-1)
    turn = geometry.log_so3(before.root_rot.transpose(-1, -2) @ latest.root_rot)
    moved = (away > MOVED_M) | (torch.linalg.vector_norm(turn, dim=-1) > TURNED_RAD)
    return where_tree(equal, before, latest), equal & moved


def _place(position: Tensor) -> Tensor:
    """Column and row (..., 2) long of the cells around positions (..., 2) [m]."""
    return (position / CELL_M).round().long()


def _slot(place: Tensor) -> Tensor:
    """Index (...) of the slot for the ground at columns and rows (..., 2)."""
    wrapped = place % SIDE
    return wrapped[..., 0] * SIDE + wrapped[..., 1]


def _places_around(root_pos: Tensor) -> Tensor:
    """Columns and rows (n, SIDE ** 2, 2) of the ground around robots (n, 3), in slots."""
    index = torch.arange(SIDE**2, device=root_pos.device)
    slot = torch.stack((index // SIDE, index % SIDE), -1)
    middle = _place(root_pos[:, None, :2])
    half = SIDE // 2
    return middle + (slot - middle + half) % SIDE - half
