"""Motions over stairs and gaps: footfalls on level ground, swings above it, the same motion on a
floor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocap_data import dog_gait
from mocap_data.errors import InputError
from mocap_data.ground_profile import CELL_M, GroundProfile
from mocap_data.motion import ReferenceMotion, mean_speed
from npmp import robots
from npmp.robots import Robot
from retarget.cleaning import FOOTHOLD, LYING, clean
from retarget.generated_ground import gaps, over_generated, require_lengths, stairs
from retarget.mirror import mirror
from retarget.over_ground import _concave_bound, _smooth_maximum, foot_places, over_ground
from retarget.pipeline import motion_set_of, retarget
from retarget.prepared_robot import PreparedRobot
from retarget.quality import FOOT_ERROR, QualityMeter, slide_speeds

FLAT = GroundProfile(np.zeros(160))


@pytest.fixture(scope="module")
def go2() -> Robot:
    return robots.load("unitree_go2")


@pytest.fixture(scope="module")
def prepared(go2: Robot) -> PreparedRobot:
    return PreparedRobot.of(go2)


@pytest.fixture(scope="module")
def walk(go2: Robot) -> ReferenceMotion:
    """It walks along x from x = 0, for 1.5 m."""
    return retarget(dog_gait("walk", duration_s=5.0, speed_mps=0.6), go2)


def platform(height: float, start: float = 0.5) -> GroundProfile:
    """A platform after `start` [m], which is a multiple of CELL_M, up to 6 m."""
    heights = np.zeros(160)
    heights[round(start / CELL_M) + 1 : 121] = height
    return GroundProfile(heights)


def test_a_level_floor_changes_nothing(walk: ReferenceMotion, prepared: PreparedRobot) -> None:
    result = over_ground(walk, FLAT, prepared)
    np.testing.assert_allclose(result.qpos, walk.qpos, atol=1e-9)
    raised = over_ground(walk, GroundProfile(np.full(160, 0.3)), prepared)
    np.testing.assert_allclose(raised.qpos[:, 2], walk.qpos[:, 2] + 0.3, atol=1e-6)
    np.testing.assert_allclose(raised.qpos[:, 3:], walk.qpos[:, 3:], atol=1e-5)


def test_feet_stand_on_the_treads(
    walk: ReferenceMotion, prepared: PreparedRobot, go2: Robot
) -> None:
    """The platform of 8 cm begins at 0.55 m after a riser of 5 cm: a foot stands 2 cm beyond its
    radius from the riser, up to 2.5 mm of the search, and there at 0 or at 8 cm."""
    ground = platform(0.08)
    result = over_ground(walk, ground, prepared)
    r = go2.foot_radius
    feet = prepared.soles_at(result.qpos)[:, :, 0]
    stands = walk.contacts
    x, z = feet[stands][:, [0, 2]].T
    below, above = (x < 0.5), (x > 0.55)
    assert below.any() and above.any() and (below | above).all()
    assert x[below].max() <= 0.5 - r - 0.02 + 1e-3
    assert x[above].min() >= 0.55 + r + 0.02 - 1e-3
    np.testing.assert_allclose(z[below] - r, 0.0, atol=2e-3)
    np.testing.assert_allclose(z[above] - r, 0.08, atol=2e-3)
    assert result.frame_quality[FOOT_ERROR].max() < 2e-3

    clearance = feet[..., 2] - r - ground.height_at(feet[..., 0], r)
    assert clearance.min() > -1e-3
    before = prepared.soles_at(walk.qpos)[:, :, 0]
    slide = slide_speeds(feet, stands, walk.rate_hz)
    recorded = slide_speeds(before, stands, walk.rate_hz)
    np.testing.assert_allclose(slide, recorded, atol=2e-3)
    # all feet are on the platform at the end, and the root is as high over it as it was
    rise = result.qpos[-1, 2] - walk.qpos[-1, 2]
    assert rise == pytest.approx(0.08, abs=0.01)


def foot_along(x: list[float], stands: list[bool]) -> tuple[np.ndarray, np.ndarray]:
    """A foot's path (T, 1, 3), its centre 2 cm above the floor, and its stances."""
    feet = np.zeros((len(x), 1, 3))
    feet[:, 0, 0] = x
    feet[:, 0, 2] = 0.02
    return feet, np.array(stands)[:, None]


def test_the_root_is_lowered_for_a_leg_that_is_too_short(robot: Robot) -> None:
    """ANYmal, which walks on almost straight legs, down a step of 0.4 of one."""
    walk = retarget(dog_gait("walk", duration_s=5.0, speed_mps=0.6), robot)
    prepared = PreparedRobot.of(robot)
    down = over_ground(walk, platform(-0.22, 1.0), prepared)
    feet = prepared.soles_at(down.qpos)[:, :, 0]
    radius = robot.foot_radius
    assert down.ground is not None and walk.contacts is not None
    above = feet[..., 2] - radius - down.ground.height_at(feet[..., 0], radius)
    assert above[walk.contacts].max() < 0.012
    # before and after the step it stands as high as it walks
    height = down.qpos[:, 2] - walk.qpos[:, 2]
    assert height[0] == pytest.approx(0.0, abs=0.01)
    assert height[-1] == pytest.approx(-0.22, abs=0.02)
    assert np.abs(np.diff(height)).max() * walk.rate_hz < 0.8


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=60), st.integers(1, 12))
def test_the_smooth_maximum_is_above_the_values(values: list[float], frames: int) -> None:
    above = _smooth_maximum(np.array(values), frames)
    assert (above >= np.maximum(values, 0.0) - 1e-9).all()
    assert above.max() <= max(max(values), 0.0) + 1e-9


@pytest.mark.parametrize(("x", "expected"), [(0.3, 0.3), (0.49, 0.46), (0.53, 0.59), (0.6, 0.6)])
def test_footfalls_move_off_the_riser(x: float, expected: float) -> None:
    """The riser is from 0.5 to 0.55 m; the foot's radius is 2 cm, the margin 2 cm."""
    feet, stands = foot_along([x] * 4, [True] * 4)
    places, heights = foot_places(feet, stands, platform(0.1), 0.02)
    np.testing.assert_allclose(places[:, 0, 0], expected, atol=2.6e-3)
    np.testing.assert_allclose(heights, 0.1 if expected > 0.5 else 0.0, atol=1e-9)
    np.testing.assert_allclose(places[:, 0, 2], 0.02 + heights[:, 0], atol=1e-9)


@pytest.mark.parametrize("way", [1, -1])
def test_a_dragged_foot_is_lifted_over_the_riser(way: int) -> None:
    """Up and down: from 0.3 to 0.8 m in 12 frames, without any lift of its own."""
    x = [*[0.3] * 4, *np.linspace(0.3, 0.8, 14)[1:-1], *[0.8] * 4][::way]
    feet, stands = foot_along(x, [True] * 4 + [False] * 12 + [True] * 4)
    ground = platform(0.1)
    places, _ = foot_places(feet, stands, ground, 0.02)
    height = places[:, 0, 2] - 0.02 - ground.height_at(places[:, 0, 0], 0.02)
    assert height.min() > -1e-9
    over_the_riser = np.abs(places[:, 0, 0] - 0.525) < 0.04
    assert over_the_riser.any() and height[over_the_riser].min() > 0.01
    np.testing.assert_allclose(height[stands[:, 0]], 0.0, atol=1e-9)


@pytest.mark.parametrize("way", [1, -1])
@pytest.mark.parametrize("frames", [1, 2, 5])
def test_a_clip_that_begins_or_ends_in_the_air(frames: int, way: int) -> None:
    """Those frames are over the platform, whose edge is at 0.55 m, the stance is before it."""
    x = [*np.linspace(0.8, 0.7, frames), *[0.3] * 4][::way]
    feet, stands = foot_along(x, ([False] * frames + [True] * 4)[::way])
    ground = platform(0.1)
    places, _ = foot_places(feet, stands, ground, 0.02)
    height = places[:, 0, 2] - 0.02 - ground.height_at(places[:, 0, 0], 0.02)
    assert height.min() > -1e-9
    np.testing.assert_allclose(height[stands[:, 0]], 0.0, atol=1e-9)


@pytest.mark.parametrize("way", [1, -1])
def test_a_foot_recorded_in_the_floor_stands_at_one_height(way: int) -> None:
    """Its stances are 1 cm in the floor, their last and first frames too."""
    x = [*[0.3] * 4, *np.linspace(0.3, 0.8, 14)[1:-1], *[0.8] * 4][::way]
    feet, stands = foot_along(x, [True] * 4 + [False] * 12 + [True] * 4)
    feet[stands[:, 0], :, 2] -= 0.01
    ground = platform(0.1)
    places, _ = foot_places(feet, stands, ground, 0.02)
    height = places[:, 0, 2] - 0.02 - ground.height_at(places[:, 0, 0], 0.02)
    np.testing.assert_allclose(height[stands[:, 0]], -0.01, atol=1e-9)
    assert height[~stands[:, 0]].min() > -1e-9


@given(st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=30))
def test_the_concave_bound(values: list[float]) -> None:
    """It is above the values, concave, and touches the first and the last."""
    points = np.array(values)
    bound = _concave_bound(points)
    assert (bound >= points - 1e-9).all()
    assert (np.diff(bound, 2) <= 1e-9).all()
    np.testing.assert_allclose(bound[[0, -1]], points[[0, -1]])


def test_generated_stairs() -> None:
    """Risers within the limits, one of them at the end of the period, 25 cm apart or more."""
    for seed in range(20):
        heights = stairs((0.05, 0.15), np.random.default_rng(seed)).heights
        assert len(heights) * CELL_M == 8.0 and heights[0] == 0.0
        change = np.diff(heights, append=0.0)
        risers = np.abs(change[change != 0.0])
        assert (risers >= 0.05).all() and (risers <= 0.15).all()
        treads = np.diff(np.flatnonzero(change))
        assert treads.min() * CELL_M >= 0.25


def test_generated_gaps() -> None:
    """Widths within the limits between their upper edges, 0.8 m and more of level ground between
    them, also from a period to the next."""
    for seed in range(20):
        heights = gaps((0.2, 0.4), np.random.default_rng(seed)).heights
        assert len(heights) * CELL_M == 8.0
        inside = heights < 0.0
        assert (heights[~inside] == 0.0).all() and heights[inside].max() <= -0.4
        # both sides lie within a gap
        changes = np.flatnonzero(np.diff(inside.astype(int)))
        first, last = changes[::2], changes[1::2]
        widths = (last + 1 - first) * CELL_M
        assert len(widths) >= 3
        assert widths.min() >= 0.2 - 1e-9 and widths.max() <= 0.4 + 1e-9
        between = (np.append(first[1:], first[0] + len(heights)) - last - 1) * CELL_M
        assert between.min() >= 0.8 - 1e-9


def test_walks_over_gaps(go2: Robot, walk: ReferenceMotion, prepared: PreparedRobot) -> None:
    """Over gaps of 40 cm, where footfalls move by more than 10 cm, feet stand on the ground beside
    them, and pass over them at its height and above; the root keeps its height, up to 1.5 cm where
    a place is out of reach."""
    [result] = over_generated(motion_set_of(go2, [walk], {}), go2, "gaps", (0.4, 0.4), 0)
    assert result.name == f"{walk.name}_gaps" and result.ground is not None
    assert result.contacts is not None
    feet = prepared.soles_at(result.qpos)[:, :, 0]
    np.testing.assert_allclose(feet[result.contacts][:, 2], go2.foot_radius, atol=0.01)
    under = result.ground.height_at(feet[..., 0])
    assert (under < -0.1).any() and not (under[result.contacts] < -1e-9).any()
    assert feet[..., 2].min() > go2.foot_radius - 3e-3
    np.testing.assert_allclose(result.qpos[:, 2], walk.qpos[:, 2], atol=0.015)
    assert mean_speed(result) == pytest.approx(mean_speed(walk), rel=0.1)


def test_a_foot_that_never_stands_follows_the_others() -> None:
    """It is carried 12 cm high over a gap, the other stands before it."""
    heights = np.zeros(160)
    heights[11:19] = -0.5
    feet = np.zeros((20, 2, 3))
    feet[:, 0, 0] = 0.3
    feet[:, 1, 0] = np.linspace(0.4, 1.2, 20)
    feet[:, :, 2] = [0.02, 0.14]
    standing = np.tile([True, False], (20, 1))
    places, under = foot_places(feet, standing, GroundProfile(heights), 0.02)
    np.testing.assert_allclose(under, 0.0, atol=1e-9)
    np.testing.assert_allclose(places, feet, atol=1e-9)


def test_walks_over_stairs(go2: Robot, walk: ReferenceMotion) -> None:
    still = replace(walk, name="still", qpos=np.tile(walk.qpos[:1], (len(walk.qpos), 1)))
    motions = motion_set_of(go2, [walk, still], {})
    [result] = over_generated(motions, go2, "stairs", (0.05, 0.08), 0)
    assert result.name == f"{walk.name}_stairs"
    assert result.recording == walk.recording
    assert mean_speed(result) == pytest.approx(mean_speed(walk), rel=0.05)
    assert np.abs(result.qpos[-1, 1]) < 0.05
    assert result.quality["penetration_m"] < 0.01 and result.quality["float_m"] < 0.01


def test_names_in_use_are_not_given_again(go2: Robot, walk: ReferenceMotion) -> None:
    walks = [replace(walk, name="a"), replace(walk, name="a_stairs")]
    laid = over_generated(motion_set_of(go2, walks, {}), go2, "stairs", (0.05, 0.08), 0)
    assert [motion.name for motion in laid] == ["a_stairs_2", "a_stairs_stairs"]


def test_each_round_is_over_other_stairs(go2: Robot, walk: ReferenceMotion) -> None:
    walks = [replace(walk, name="a"), replace(walk, name="b")]
    once = over_generated(motion_set_of(go2, walks, {}), go2, "stairs", (0.05, 0.08), 0)
    twice = over_generated(motion_set_of(go2, walks, {}), go2, "stairs", (0.05, 0.08), 0, rounds=2)
    names = ["a_stairs", "b_stairs", "a_stairs_2", "b_stairs_2"]
    assert [motion.name for motion in twice] == names
    grounds = [motion.ground.heights for motion in twice if motion.ground is not None]
    assert len({heights.tobytes() for heights in grounds}) == 4
    # the first round is as before
    assert once[1].ground is not None and (once[1].ground.heights == grounds[1]).all()


def test_cleaning_drops_steps_out_of_reach(go2: Robot, walk: ReferenceMotion) -> None:
    """With a riser of 30 cm, as high as the Go2's hips, some frames have no foothold or have the
    robot in the ground; with 5 cm all are kept."""
    prepared = PreparedRobot.of(go2)
    plain = {"flatten": False, "standing_s": None}

    def cleaned(height: float) -> dict[str, float]:
        motion = over_ground(walk, platform(height), prepared)
        return dict(clean(motion_set_of(go2, [motion], {}), go2, **plain).dropped_s)

    assert not cleaned(0.05)
    assert {FOOTHOLD, LYING} & set(cleaned(0.3))


def test_a_front_back_mirror_reverses_the_ground(robot: Robot) -> None:
    """Feet of the image are as high above its ground as those of the original."""
    motion = retarget(dog_gait("walk", duration_s=3.0), robot)
    motion = over_ground(motion, platform(0.1, 0.3), PreparedRobot.of(robot))
    image = mirror(motion, robot, "front_back")
    meter = QualityMeter(robot)
    order = robot.symmetries["front_back"].foot_permutation
    expected = meter.feet(motion)[:, order][..., 2]
    np.testing.assert_allclose(meter.feet(image)[..., 2], expected, atol=1e-6)


@pytest.mark.parametrize("value", [[0.1], [0.0, 0.1], [0.2, 0.1], [0.1, 0.9], 0.1])
@pytest.mark.parametrize("kind", ["stairs", "gaps"])
def test_impossible_lengths(kind: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{kind}="):
        require_lengths(kind, value)


def test_gaps_are_whole_cells_wide() -> None:
    assert require_lengths("gaps", [0.15, 0.3]) == (0.15, 0.3)
    with pytest.raises(InputError, match=r"gaps=\[0.12, 0.3\].* in steps of 0.05 m"):
        require_lengths("gaps", [0.12, 0.3])


def test_robots_with_soles_are_refused(walk: ReferenceMotion) -> None:
    op3 = robots.load("op3")
    with pytest.raises(InputError, match="soles"):
        over_ground(walk, FLAT, PreparedRobot.of(op3))


def test_a_motion_is_laid_once(walk: ReferenceMotion, prepared: PreparedRobot) -> None:
    with pytest.raises(InputError, match="flat ground"):
        over_ground(replace(walk, ground=FLAT), FLAT, prepared)
