"""Maps that a depth camera fills, over ground whose height is a function by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from npmp.core import geometry
from npmp.envs.camera import CameraConfig, DepthCamera
from npmp.envs.state import RobotState
from npmp.skills.camera_map import (
    LOST_S,
    MOST_POINTS,
    REACH_M,
    SIDE,
    START_M,
    UPSIDE_DOWN,
    USUAL_M,
    CameraCells,
    CameraMap,
)
from npmp.skills.elevation_map import CELL_M

DT = 0.02
ROBOTS = torch.arange(2)
# of the root above the ground, where the camera is
HEIGHT_M = 0.4


def camera_map(delay_s: float = 0.0) -> CameraMap:
    config = CameraConfig(
        size=(64, 64), place_m=(0.0, 0.0, 0.0), noise_stereo=0.0, holes=0.0, delay_s=delay_s
    )
    camera = DepthCamera(config)
    camera.allocate(2, DT, torch.device("cpu"))
    return CameraMap(camera, DT)


def at(x: float, yaw: float = 0.0, height: float = HEIGHT_M) -> RobotState:
    """Two robots in a pose."""
    turn = geometry.yaw_matrix(torch.full((2,), yaw))
    position = torch.tensor([[x, 0.0, height]] * 2)
    return RobotState.still(position, turn, torch.zeros(2, 12))


def expose(map_: CameraMap, robots: RobotState, height: Callable[[Tensor], Tensor]) -> None:
    """Expose an image of ground of a height (function of x)."""
    image = map_.camera.depths(robots.root_pos, robots.root_rot, lambda p: height(p[..., 0]))
    map_.camera.past = torch.cat((image.unsqueeze(1), map_.camera.past[:, :-1]), 1)
    map_.camera.age = torch.zeros(2, dtype=torch.long)


def heights(map_: CameraMap, cells: CameraCells, x: list[float], y: float = 0.0) -> Tensor:
    """Heights along x of the first robot's map."""
    positions = torch.tensor([[[value, y] for value in x]] * 2)
    return map_.height_at(cells, positions, ROBOTS)[0]


def step(x: Tensor) -> Tensor:
    """A step of 0.1 m at 0.62 m, a border of the map's cells."""
    return torch.where(x > 0.62, 0.1, 0.0)


def test_before_an_image_only_the_ground_around_the_start_is_known() -> None:
    map_ = camera_map()
    cells = map_.begin(at(3.0, yaw=1.0), torch.tensor([0.02, -0.5]))
    inside = START_M - CELL_M
    positions = torch.tensor(
        [[3.0, 0.0], [3.0 + inside, -inside], [3.0 - inside, inside], [3.0 + START_M + CELL_M, 0.0]]
    )
    result = map_.height_at(cells, positions.expand(2, 4, 2), ROBOTS)
    expected = torch.tensor([[0.02, 0.02, 0.02, math.nan], [-0.5, -0.5, -0.5, math.nan]])
    torch.testing.assert_close(result, expected, equal_nan=True)


def test_an_image_shows_the_ground_ahead() -> None:
    map_ = camera_map()
    cells = map_.begin(at(0.0), torch.zeros(2))
    expose(map_, at(0.0), step)
    cells = map_.advance(cells, at(0.0), at(99.0))
    result = heights(map_, cells, [0.2, 0.4, 0.72, 0.8])
    torch.testing.assert_close(result, torch.tensor([0.0, 0.0, 0.1, 0.1]), atol=0.01, rtol=0.0)
    # to the side, behind the start's ground, nothing is seen
    assert heights(map_, cells, [-0.8]).isnan().all()


def test_it_is_where_the_robot_was_when_the_image_was_exposed() -> None:
    """It walks at 4 m/s and turns, before and after: a step more or less is two cells."""
    delay = 5
    map_ = camera_map(delay_s=delay * DT)
    map_.camera.age = torch.full((2,), delay + 1)
    cells = map_.begin(at(-0.8), torch.full((2,), math.nan))
    for k in range(-9, 1):
        cells = map_.advance(cells, at(0.08 * k, yaw=0.1 * k), at(99.0))
    expose(map_, at(0.0), step)
    for age in range(1, delay + 1):
        assert heights(map_, cells, [0.4, 0.72]).isnan().all()
        map_.camera.age = torch.full((2,), age)
        cells = map_.advance(cells, at(0.08 * age, yaw=0.1 * age), at(99.0))
    # cells are 4 cm wide: the last below the step, the first above it
    result = heights(map_, cells, [0.4, 0.56, 0.68, 0.8])
    torch.testing.assert_close(result, torch.tensor([0.0, 0.0, 0.1, 0.1]), atol=0.01, rtol=0.0)


def test_an_image_counts_once() -> None:
    map_ = camera_map()
    cells = map_.begin(at(0.0), torch.zeros(2))
    expose(map_, at(0.0), step)
    cells = map_.advance(cells, at(0.0), at(0.0))
    map_.camera.age = map_.camera.age + 1
    later = map_.advance(cells, at(0.5), at(0.5))
    torch.testing.assert_close(later.height, cells.height, equal_nan=True)


def test_what_was_seen_is_kept_until_it_is_out_of_reach() -> None:
    map_ = camera_map()
    cells = map_.begin(at(0.0), torch.zeros(2))
    expose(map_, at(0.0), step)
    cells = map_.advance(cells, at(0.0), at(0.0))
    for x in (0.4, 0.8):
        expose(map_, at(x), step)
        cells = map_.advance(cells, at(x), at(x))
    # now below and behind the robot
    expected = torch.tensor([0.0, 0.0, 0.1])
    torch.testing.assert_close(
        heights(map_, cells, [0.0, 0.4, 0.72]), expected, atol=0.01, rtol=0.0
    )
    # other ground of the same slots
    x = SIDE * CELL_M
    above = at(x, height=0.8 + HEIGHT_M)
    expose(map_, above, lambda at: torch.full_like(at, 0.8))
    cells = map_.advance(cells, above, above)
    result = heights(map_, cells, [x + 0.32, 0.32])
    expected = torch.tensor([0.8, math.nan])
    torch.testing.assert_close(result, expected, equal_nan=True, atol=0.01, rtol=0.0)
    # ground never seen, of a slot that holds other ground
    assert heights(map_, cells, [x + 0.32 + SIDE * CELL_M]).isnan().all()


def test_each_robot_has_its_own_images() -> None:
    map_ = camera_map()
    begun = map_.begin(at(0.0), torch.zeros(2))
    expose(map_, at(0.0), step)
    map_.camera.age = torch.tensor([1, 0])
    cells = map_.advance(begun, at(0.0), at(0.0))
    position = torch.tensor([[[0.72, 0.0]]] * 2)
    result = map_.height_at(cells, position, ROBOTS)[:, 0]
    torch.testing.assert_close(
        result, torch.tensor([math.nan, 0.1]), equal_nan=True, atol=0.01, rtol=0.0
    )
    torch.testing.assert_close(cells.blind_s, torch.tensor([DT, 0.0]))


def test_an_image_of_what_is_out_of_reach_is_an_image() -> None:
    map_ = camera_map()
    cells = map_.begin(at(0.0), torch.zeros(2))
    map_.camera.past = torch.full_like(map_.camera.past, 2.0 * REACH_M)
    map_.camera.age = torch.zeros(2, dtype=torch.long)
    cells = map_.advance(cells, at(0.0), at(0.0))
    assert cells.blind_s.max().item() == 0.0


def test_a_slow_camera_is_not_covered() -> None:
    map_ = camera_map()
    map_.camera.period = round(2.0 / DT)
    cells = map_.begin(at(0.0), torch.zeros(2))
    assert not map_.blind(cells._replace(blind_s=torch.full((2,), 3.9))).any()
    assert map_.blind(cells._replace(blind_s=torch.full((2,), 4.1))).all()


def test_cells_follow_new_heights_and_not_at_once() -> None:
    map_ = camera_map()
    cells = map_.begin(at(0.0), torch.zeros(2))
    result = []
    for _ in range(12):
        expose(map_, at(0.0), lambda x: torch.full_like(x, 0.05))
        cells = map_.advance(cells, at(0.0), at(0.0))
        result.append(heights(map_, cells, [0.32]).item())
    assert 0.01 < result[0] < 0.049
    assert result == sorted(result)
    assert result[-1] == pytest.approx(0.05, abs=0.002)
    assert cells.weight.max().item() == MOST_POINTS


def test_pixels_without_a_reading_show_nothing() -> None:
    map_ = camera_map()
    begun = map_.begin(at(0.0), torch.zeros(2))
    for depth in map_.camera.config.range_m:
        map_.camera.past = torch.full_like(map_.camera.past, depth)
        map_.camera.age = torch.zeros(2, dtype=torch.long)
        cells = map_.advance(begun, at(0.0), at(0.0))
        for name in ("place", "height", "weight"):
            after = getattr(cells, name)
            torch.testing.assert_close(after, getattr(begun, name), equal_nan=True)


def test_a_covered_camera_makes_all_unknown_until_it_sees_again() -> None:
    map_ = camera_map()
    cells = map_.begin(at(0.0), torch.zeros(2))
    steps = round(LOST_S / DT) + 1
    for k in range(steps):
        assert not map_.blind(cells).any() or k == steps - 1
        map_.camera.past = torch.full_like(map_.camera.past, map_.camera.config.range_m[0])
        map_.camera.age = torch.zeros(2, dtype=torch.long)
        cells = map_.advance(cells, at(0.0), at(0.0))
    assert map_.blind(cells).all()
    assert heights(map_, cells, [0.0, 0.4]).isnan().all()
    expose(map_, at(0.0), step)
    cells = map_.advance(cells, at(0.0), at(0.0))
    assert not map_.blind(cells).any()
    result = heights(map_, cells, [0.4, 0.72])
    torch.testing.assert_close(result, torch.tensor([0.0, 0.1]), atol=0.01, rtol=0.0)


def test_a_cell_has_the_mean_and_the_highest_of_its_points() -> None:
    map_ = camera_map()
    cells = map_.begin(at(0.0), torch.full((2,), math.nan))
    # the face of a step in the middle of a cell
    expose(map_, at(0.0), lambda x: torch.where(x > 0.6, 0.1, 0.0))
    cells = map_.advance(cells._replace(weight=torch.zeros_like(cells.weight)), at(0.0), at(0.0))
    position = torch.tensor([[[0.6, 0.0]]] * 2)
    mean = map_.height_at(cells, position, ROBOTS)[0].item()
    highest = map_.highest_at(cells, position, ROBOTS)[0].item()
    assert highest == pytest.approx(0.1, abs=0.015)
    assert 0.02 < mean < highest - 0.02


def see(map_: CameraMap, cells: CameraCells, robots: RobotState, image: Tensor) -> CameraCells:
    """The map after the arrival of an image (2, pixels)."""
    map_.camera.past = torch.cat((image.unsqueeze(1), map_.camera.past[:, :-1]), 1)
    map_.camera.age = torch.zeros(2, dtype=torch.long)
    return map_.advance(cells, robots, robots)


def image_of_step(map_: CameraMap, robots: RobotState) -> Tensor:
    """Depths (2, pixels) of the step."""
    return map_.camera.depths(robots.root_pos, robots.root_rot, lambda p: step(p[..., 0]))


@pytest.mark.parametrize("moved", [{"x": 1.0}, {"yaw": 1.0}])
def test_a_frozen_camera_is_covered_once_the_robot_moves(moved: dict[str, float]) -> None:
    map_ = camera_map()
    cells = map_.begin(at(0.0), torch.zeros(2))
    image = image_of_step(map_, at(0.0))
    image[:, ::7] = math.nan
    still = 0.5 * LOST_S / DT
    for k in range(round(2.5 * LOST_S / DT)):
        share = max(0.0, (k - still) * DT)  # by 1 m/s or rad/s
        robots = at(**{"x": 0.0, **{name: share * value for name, value in moved.items()}})
        cells = see(map_, cells, robots, image)
        assert not map_.blind(cells).any() or share > LOST_S
    assert map_.blind(cells).all()
    assert heights(map_, cells, [0.0, 0.4, 0.72]).isnan().all()
    # it works again
    cells = see(map_, cells, robots, image_of_step(map_, robots))
    assert not map_.blind(cells).any()


@pytest.mark.parametrize("step_m", [0.1, 0.15, 0.2])
@pytest.mark.parametrize("pitched", [False, True])
def test_no_image_of_stairs_is_upside_down(step_m: float, pitched: bool) -> None:
    """Before and on stairs with treads of 0.3 m, the root 0.3 m above the mean ground under its
    feet; level, or pitched along the stairs."""
    place = {"place_m": (0.3, 0.0, 0.05), "pitch_deg": 45.0, "size": (32, 18)}
    camera = DepthCamera(CameraConfig(noise_stereo=0.0, holes=0.0, **place))
    camera.allocate(1, DT, torch.device("cpu"))
    map_ = CameraMap(camera, DT)

    def stairs(x: Tensor) -> Tensor:
        return step_m * (x / 0.3).floor().clamp(0.0, 6.0)

    x = torch.arange(-1.0, 2.5, 0.02)
    fore, hind = stairs(x + 0.2), stairs(x - 0.2)
    position = torch.stack((x, torch.zeros_like(x), 0.3 + 0.5 * (fore + hind)), -1)
    angle = torch.atan2(fore - hind, torch.full_like(x, 0.4)) * pitched
    none = torch.zeros_like(x)
    rotation = geometry.exp_so3(torch.stack((none, -angle, none), -1))
    image = camera.depths(position, rotation, lambda p: stairs(p[..., 0]))
    assert map_.slope(image).min().item() > UPSIDE_DOWN + 0.1
    # a camera upside down before the stairs
    assert map_.slope(image[:20].flip(-1)).max().item() < UPSIDE_DOWN


def test_equal_images_of_a_robot_at_rest_are_valid() -> None:
    map_ = camera_map()
    cells = map_.begin(at(0.0), torch.zeros(2))
    image = image_of_step(map_, at(0.0))
    for _ in range(round(2.0 * LOST_S / DT)):
        cells = see(map_, cells, at(0.0), image)
    assert cells.blind_s.max().item() == 0.0


def test_a_camera_upside_down_is_covered() -> None:
    map_ = camera_map()
    cells = map_.begin(at(0.0), torch.zeros(2))
    after = see(map_, cells, at(0.0), image_of_step(map_, at(0.0)).flip(-1))
    torch.testing.assert_close(after.blind_s, torch.full((2,), DT))
    torch.testing.assert_close(after.height, cells.height, equal_nan=True)


def test_pixels_without_a_number_are_left_out() -> None:
    map_ = camera_map()
    begun = map_.begin(at(0.0), torch.zeros(2))
    image = image_of_step(map_, at(0.0))
    image[:, ::7] = math.nan
    cells = see(map_, begun, at(0.0), image)
    assert cells.blind_s.max().item() == 0.0
    result = heights(map_, cells, [0.4, 0.72])
    torch.testing.assert_close(result, torch.tensor([0.0, 0.1]), atol=0.01, rtol=0.0)
    blind = see(map_, begun, at(0.0), torch.full_like(image, math.nan))
    torch.testing.assert_close(blind.blind_s, torch.full((2,), DT))
    torch.testing.assert_close(blind.height, begun.height, equal_nan=True)


def test_slope_of_an_image() -> None:
    """Level ground from the usual height has 1, by definition."""
    map_ = camera_map()
    usual = at(0.0, height=USUAL_M)
    image = map_.camera.depths(
        usual.root_pos, usual.root_rot, lambda p: torch.zeros_like(p[..., 0])
    )
    torch.testing.assert_close(map_.slope(image), torch.ones(2), atol=0.02, rtol=0.0)
    torch.testing.assert_close(map_.slope(-image), -torch.ones(2), atol=0.02, rtol=0.0)
    torch.testing.assert_close(
        map_.slope(torch.ones_like(image)), torch.zeros(2), atol=1e-5, rtol=0
    )


def test_the_slope_of_an_image_straight_down_is_undefined() -> None:
    config = CameraConfig(size=(8, 8), fov_deg=(20.0, 20.0), pitch_deg=90.0, noise_stereo=0.0)
    camera = DepthCamera(config)
    camera.allocate(2, DT, torch.device("cpu"))
    image = torch.rand(2, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(CameraMap(camera, DT).slope(image), torch.ones(2))
