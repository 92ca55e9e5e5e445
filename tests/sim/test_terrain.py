"""Height fields: what each kind promises, that they repeat themselves, and that MuJoCo sees the
same ground."""

from __future__ import annotations

import math

import mujoco
import numpy as np
import pytest
import torch

from npmp import robots
from npmp.sim import flat_scene
from npmp.sim.randomization import damping_ratio
from npmp.sim.scene import FIELD_CONTACT_S, FLOOR
from npmp.sim.terrain import (
    KINDS,
    MARGIN_M,
    PERIOD_M,
    Grid,
    Terrain,
    TerrainConfig,
    TerrainLimits,
    height_field,
)

COARSE, FINE = Grid(80, 0.1), Grid(160, 0.05)
# what level 1 reaches: the lowest and the highest point [m]; slopes run for 2.6 m, in which stairs
# have up to ten steps
RISE = math.tan(math.radians(30.0)) * 2.6
BOUNDS = {
    "perlin": (0.0, 0.3),
    "noise": (-0.05, 0.05),
    "obstacles": (-0.2, 0.2),
    "gaps": (-0.5, 0.0),
    "slopes": (-RISE, RISE),
    "stairs": (-2.0, 2.0),
    "stepping_stones": (-0.5, 0.03),
    "platforms": (0.0, 0.5),
}


def field(kind: str, grid: Grid = FINE, level: float = 1.0, seed: int = 0) -> np.ndarray:
    return height_field(kind, grid, level, TerrainConfig(kind), np.random.default_rng(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_bounded_grows_with_its_level_and_is_flat_at_zero(kind: str) -> None:
    low, high = BOUNDS[kind]
    full = field(kind)
    assert full.shape == (160, 160)
    assert full.min() >= low - 1e-9 and full.max() <= high + 1e-9
    assert np.ptp(full) > 0.29 * (high - low)  # a pyramid goes up or down, by six to ten steps
    assert np.ptp(field(kind, level=0.0)) == 0.0
    if kind not in ("gaps", "stepping_stones"):  # whose depth is one, and whose widths grow
        np.testing.assert_allclose(np.ptp(field(kind, level=0.5)), 0.5 * np.ptp(full), rtol=0.15)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_field(kind: str) -> None:
    np.testing.assert_array_equal(field(kind, seed=3), field(kind, seed=3))
    if kind not in ("gaps", "slopes", "stairs", "platforms"):  # of which there are few
        assert (field(kind, seed=3) != field(kind, seed=4)).any()


@pytest.mark.parametrize("kind", ("perlin", "noise", "slopes"))
def test_smooth_ground_goes_on_beyond_its_period(kind: str) -> None:
    """The step over the seam is no larger than the largest within."""
    heights = field(kind, COARSE)
    for axis in (0, 1):
        within = np.abs(np.diff(heights, axis=axis)).max()
        seam = np.abs(np.take(heights, 0, axis) - np.take(heights, -1, axis)).max()
        assert seam <= within + 1e-9


def test_perlin_noise_by_its_waves() -> None:
    """Waves of 1 to 2 m: points 0.1 m apart are alike, points 0.8 m apart are not."""
    heights = np.stack([field("perlin", COARSE, seed=s) for s in range(32)])
    assert np.ptp(heights, axis=(1, 2)) == pytest.approx(np.full(32, 0.3))
    about = heights - heights.mean((1, 2), keepdims=True)
    near, far = ((about * np.roll(about, k, 1)).mean() / about.var() for k in (1, 8))
    assert near > 0.85 and abs(far) < 0.2


def test_widths_and_heights_by_hand() -> None:
    slope = np.abs(field("slopes", COARSE)[40])
    assert np.abs(np.diff(slope)).max() == pytest.approx(0.1 * math.tan(math.radians(30.0)))
    # a gap of 0.6 m between edges has eleven points at its bottom, 5 cm apart
    bottom = (field("gaps")[20] < -0.4).astype(int)
    assert np.flatnonzero(np.diff(bottom, prepend=0) == 1).tolist() == [0, 40, 80, 120]
    assert bottom.sum() == 44


def test_steps_and_treads_by_hand() -> None:
    """Along the middle row, from the edge: 0.7 m of floor, in 2.6 m steps of 0.2 m, the top."""
    steps = {5: 10, 6: 8, 7: 7, 8: 6}  # cells of a tread: how many fit into 52
    found = set()
    for seed in range(30):
        stairs = field("stairs", seed=seed)
        sign = np.sign(stairs[80, 80])
        along = sign * stairs[80, :81]
        tread = int(np.flatnonzero(along > 0.3)[0]) - 14
        count = steps[tread]
        assert along[:14].tolist() == [0.0] * 14
        end = 14 + count * tread
        expected = 0.2 * np.repeat(np.arange(1, count + 1), tread)
        np.testing.assert_allclose(along[14:end], expected)
        np.testing.assert_allclose(along[end:], 0.2 * count)
        found.add((sign, tread))
    assert found == {(sign, tread) for sign in (-1.0, 1.0) for tread in steps}


def test_platforms_by_hand() -> None:
    """Tops of 2.6 m, 0.5 m high, from 0.7 m in x and from 2.7 m in y; lanes of 1.4 m."""
    platforms = field("platforms")
    top = np.zeros(160, dtype=bool)
    top[14:67] = True  # 0.70 to 3.30 m
    top[94:147] = True
    np.testing.assert_allclose(platforms[80], 0.5 * top)
    np.testing.assert_allclose(platforms[:, 40], 0.5 * np.roll(top, 40))
    assert (platforms[0] == 0.5 * top).all() and (platforms[40] == 0.0).all()
    np.testing.assert_allclose(field("platforms", level=0.2).max(), 0.1)


def test_parkour_by_hand() -> None:
    """A platform, stairs with a top of 1.4 m about the middle, two gaps of 0.6 m, equal along y."""
    limits = TerrainLimits(stair_m=0.12, platform_m=0.15)
    config = TerrainConfig("parkour", limits=limits)
    heights = height_field("parkour", FINE, 1.0, config, np.random.default_rng(0))
    assert (heights == heights[0]).all()
    along = heights[0]
    platform = np.flatnonzero(np.isclose(along, 0.15))
    assert platform.tolist() == list(range(20, 35))  # 1 to 1.7 m
    top = np.flatnonzero(np.isclose(along, 0.48))
    assert top.tolist() == list(range(66, 95))  # 3.3 to 4.7 m
    treads = set()
    for k in (1, 2, 3):
        step = np.flatnonzero(np.isclose(along, 0.12 * k))
        np.testing.assert_array_equal(step + step[::-1], 160)
        treads.add(len(step) // 2)
    assert len(treads) == 1 and treads <= {5, 6, 7, 8}
    bottom = np.flatnonzero(along == -0.5)
    # 11 points at the bottom, 0.6 m between the edges, which are one cell wide
    assert bottom.tolist() == [*range(126, 137), *range(147, 158)]
    for gap_m, points in ((0.05, 1), (0.3, 5), (1.0, 11)):
        config = TerrainConfig("parkour", limits=TerrainLimits(gap_m=gap_m))
        field_ = height_field("parkour", FINE, 1.0, config, np.random.default_rng(0))
        assert (field_[0] == -0.5).sum() == 2 * points
    assert np.ptp(height_field("parkour", FINE, 0.0, config, np.random.default_rng(0))) == 0.0


@pytest.mark.parametrize("down", (False, True))
@pytest.mark.parametrize("kind", ("stairs", "slopes", "platforms", "parkour"))
def test_starts_before_climbs_are_level_and_face_them(kind: str, down: bool) -> None:
    terrain = Terrain(TerrainConfig(kind, fields=8))
    fields = torch.arange(8).repeat_interleave(50)
    uniform = torch.rand(2, 400, generator=torch.Generator().manual_seed(0))
    place = terrain.before_climb(fields, uniform, torch.full((400,), down))
    around = torch.cartesian_prod(torch.linspace(-0.35, 0.35, 5), torch.linspace(-0.2, 0.2, 5))
    heights = terrain.height_at(place[:, None] + around)
    assert (heights.amax(-1) - heights.amin(-1)).max() < 1e-4
    # edges are at most 0.65 m ahead, so 0.9 m ahead there is a step, or 0.25 m of slope
    rise = terrain.height_at(place + torch.tensor([0.9, 0.0])) - heights[:, 12]
    assert ((-rise if down else rise) > 0.1).all()


def test_kinds_may_be_joined() -> None:
    terrain = Terrain(TerrainConfig("flat+stairs+stairs", fields=6, rows=2))
    assert terrain.kinds == ["flat", "stairs", "stairs"] * 2 and terrain.levels[0] == 0.5
    inside = torch.rand(64, 2, generator=torch.Generator().manual_seed(0)) * PERIOD_M
    spread = [torch.std(terrain.height_at(corner + inside)).item() for corner in terrain.corner]
    assert spread[0] == spread[3] == 0.0 and min(spread[1:3] + spread[4:]) > 0.1
    assert (
        Terrain(TerrainConfig("flat+slopes", fields=2)).cell
        > Terrain(TerrainConfig("flat+gaps", fields=2)).cell
    )


def test_fields_lie_side_by_side_each_continued() -> None:
    terrain = Terrain(TerrainConfig("mixed", fields=24, rows=3))
    assert terrain.kinds == list(KINDS) * 3
    assert terrain.column.tolist() == list(range(8)) * 3
    assert terrain.levels == pytest.approx([1 / 3] * 8 + [2 / 3] * 8 + [1.0] * 8)
    assert terrain.first.tolist() == [0, 8, 16, 24]
    inside = torch.rand(64, 2, generator=torch.Generator().manual_seed(0)) * PERIOD_M
    for corner in terrain.corner:
        here = terrain.height_at(corner + inside)
        for axis in (0, 1):  # what lies up to the margin beyond is the ground of the other side
            edge = inside.clone()
            edge[:, axis] = (inside[:, axis] / PERIOD_M - 0.5) * 1.9 * MARGIN_M
            far = edge.clone()
            far[:, axis] += PERIOD_M
            # corners are rounded to 1e-6 m, and walls rise by 0.5 m in 0.05
            result = terrain.height_at(corner + edge)
            torch.testing.assert_close(result, terrain.height_at(corner + far), atol=2e-4, rtol=0)
        assert here.abs().max() < 2.0


@pytest.mark.parametrize("kind", ("perlin", "stairs"))
def test_the_height_is_what_mujoco_sees(kind: str) -> None:
    terrain = Terrain(TerrainConfig(kind, fields=4))
    model = flat_scene(robots.load("anymal_b"), terrain.add_to_scene)
    data = mujoco.MjData(model)
    data.qpos[2] = 50.0
    mujoco.mj_kinematics(model, data)
    place = (torch.rand(500, 2, generator=torch.Generator().manual_seed(1)) - 0.5) * 19.0
    hit = np.zeros(1, dtype=np.int32)
    seen = []
    for x, y in place.double().tolist():
        length = mujoco.mj_ray(
            model, data, np.array([x, y, 5.0]), np.array([0.0, 0.0, -1.0]), None, 1, -1, hit
        )
        seen.append(5.0 - length)
    np.testing.assert_allclose(terrain.height_at(place).numpy(), seen, atol=5e-5)
    assert terrain.height_at(torch.tensor([1e3, math.nan])).isfinite()


def test_the_way_back_is_whole_periods() -> None:
    terrain = Terrain(TerrainConfig("noise", fields=2))
    field_of = torch.tensor([1, 1, 0])
    place = terrain.corner[field_of] + torch.tensor([[8.1, 3.0], [0.1, 7.9], [-0.2, -0.2]])
    assert terrain.way_back(place, field_of).tolist() == [[-8.0, 0.0], [0.0, 0.0], [8.0, 8.0]]


def test_places_to_start_from_are_level_where_there_is_level_ground() -> None:
    for kind in ("gaps", "slopes", "stairs", "stepping_stones", "obstacles", "platforms"):
        terrain = Terrain(TerrainConfig(kind, fields=2))
        around = torch.cartesian_prod(*[torch.linspace(-0.55, 0.55, 7)] * 2)
        heights = terrain.height_at(terrain.starts.unsqueeze(-2) + around)
        assert (heights.amax(-1) - heights.amin(-1)).max() < 1e-3, kind


@pytest.mark.parametrize("restitution", [None, 0.4])
def test_a_foot_that_hits_a_riser_comes_free(restitution: float | None) -> None:
    """A foot of the Go2's size swings against a riser at 3 m/s, under 80 N for 0.2 s. Then 20 N
    pull it back. With a restitution its time constant is halved."""
    terrain = Terrain(TerrainConfig("stairs", fields=1, seed=3))
    spec = mujoco.MjSpec()
    spec.option.timestep = 0.0025
    spec.option.gravity = np.zeros(3)
    spec.worldbody.add_geom(name=FLOOR, type=mujoco.mjtGeom.mjGEOM_PLANE, size=[1.0, 1.0, 1.0])
    row = float(terrain.corner[0, 1]) + 0.5 * PERIOD_M
    along = torch.arange(float(terrain.corner[0, 0]), 4.0, 0.01)
    heights = terrain.height_at(torch.stack((along, torch.full_like(along, row)), -1))
    riser = int(((heights[1:] - heights[:-1]) > 1e-3).nonzero()[0])
    foot = spec.worldbody.add_body(pos=[0.0, row, 0.0])
    for axis in ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0]):
        foot.add_joint(type=mujoco.mjtJoint.mjJNT_SLIDE, axis=axis)
    ball = foot.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[0.022, 0.0, 0.0], mass=0.5)
    terrain.add_to_scene(spec)
    if restitution is not None:
        ratio = float(damping_ratio(torch.tensor(restitution)))
        ball.priority = 1
        ball.solref = [0.5 * FIELD_CONTACT_S / ratio, ratio]
    model = spec.compile()
    data = mujoco.MjData(model)
    start = float(along[riser]) - 0.08
    data.qpos[:] = start, float(heights[riser]) + 0.052
    data.qvel[0] = 3.0
    data.qfrc_applied[:] = 80.0, -10.0
    mujoco.mj_step(model, data, 80)
    assert start < data.qpos[0] < start + 0.15
    data.qfrc_applied[:] = -20.0, 0.0
    mujoco.mj_step(model, data, 120)
    assert data.qpos[0] < start


def test_contacts_stiffer_than_the_bound_stay() -> None:
    spec = mujoco.MjSpec()
    spec.worldbody.add_geom(name=FLOOR, type=mujoco.mjtGeom.mjGEOM_PLANE, size=[1.0, 1.0, 1.0])
    for solref in ([0.005, 1.0], [-1000.0, -50.0], [0.03, 0.8]):
        spec.worldbody.add_geom(size=[0.1, 0.0, 0.0], solref=solref)
    Terrain(TerrainConfig("stairs", fields=1)).add_to_scene(spec)
    expected = [[0.01, 1.0], [0.005, 1.0], [-1000.0, -50.0], [0.01, 0.8]]
    np.testing.assert_allclose(spec.compile().geom_solref, expected)
