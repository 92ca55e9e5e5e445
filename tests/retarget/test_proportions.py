"""People at a robot's proportions: directions stay, lengths are the robot's, feet have room."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import retarget
from npmp import robots
from retarget import kinematics, proportions
from retarget.options import Options
from retarget.prepared_robot import PreparedRobot
from retarget.skeletons import skeleton_of
from retarget.targets import RecordedMarkers, markers_of, prepared_for
from tests.retarget import bodies
from tests.retarget.test_recover import some_poses

BONES = [
    *(("hip", "knee"), ("knee", "foot"), ("shoulder", "elbow"), ("elbow", "hand")),
    ("foot", "toe"),
]


@pytest.fixture(scope="module", params=["op3", "unitree_g1"])
def whole(request: pytest.FixtureRequest) -> PreparedRobot:
    return PreparedRobot.of(robots.load(request.param))


def recorded(whole: PreparedRobot, **person: float) -> tuple[RecordedMarkers, PreparedRobot]:
    """A person's markers, and the robot with those that the person has."""
    clip = bodies.person(**person)
    skeleton = skeleton_of([clip], tuple(whole.robot.markers))
    prepared = prepared_for(whole, skeleton)
    return markers_of(clip, skeleton, prepared, Options()), prepared


def at(prepared: PreparedRobot, places: np.ndarray, name: str) -> np.ndarray:
    return places[..., prepared.layout.names.index(name), :]


def bone(prepared: PreparedRobot, places: np.ndarray, a: str, b: str) -> np.ndarray:
    return at(prepared, places, b) - at(prepared, places, a)


def test_directions_stay_and_lengths_are_the_robots(whole: PreparedRobot) -> None:
    clip, prepared = recorded(whole, height=1.9)
    fitted = proportions.fitted(clip, prepared, 0.5)
    home = own_markers(prepared, np.asarray(prepared.robot.home_qpos)[None])[0]
    for side in ("L_", "R_"):
        for a, b in BONES:
            old, new = (bone(prepared, m.raw, side + a, side + b) for m in (clip, fitted))
            length = np.linalg.norm(new, axis=-1)
            expected = np.linalg.norm(bone(prepared, home, side + a, side + b)) / 0.5
            # legs of feet that are pushed apart are a little off
            close = 2e-2 if b in ("knee", "foot") else 1e-9
            np.testing.assert_allclose(length, expected, rtol=close)
            unit = old / np.linalg.norm(old, axis=-1, keepdims=True)
            np.testing.assert_allclose(new / length[:, None], unit, atol=10 * close)
    hips = np.linalg.norm(bone(prepared, fitted.raw, "R_hip", "L_hip"), axis=-1)
    np.testing.assert_allclose(
        hips, 2.0 * np.linalg.norm(bone(prepared, home, "R_hip", "L_hip")), rtol=1e-12
    )


def own_markers(prepared: PreparedRobot, qpos: np.ndarray) -> np.ndarray:
    points = kinematics.Points(prepared.layout.body, prepared.layout.position)
    return kinematics.positions_of(points, *kinematics.forward(prepared.tree, qpos))


def test_the_robot_itself_with_other_limbs_comes_back(whole: PreparedRobot) -> None:
    """Poses as markers, with hips, shoulders and every bone longer or shorter: the markers come
    back, but for where the body is, and where feet come too near to each other."""
    rng = np.random.default_rng(0)
    clip, prepared = recorded(whole)
    qpos = some_poses(whole, len(clip.raw), rng)
    qpos[:, 3:7] = [1.0, 0.0, 0.0, 0.0]
    waist = [7 + i for i, name in enumerate(whole.robot.joint_names) if "waist" in name]
    qpos[:, waist] = np.asarray(whole.robot.home_qpos)[waist]  # a trunk of one length
    own = own_markers(prepared, qpos)
    other = own.copy()
    names = prepared.layout.names
    for wide, share in (("hip", 0.6), ("shoulder", 1.2)):
        middle = 0.5 * (at(prepared, own, f"L_{wide}") + at(prepared, own, f"R_{wide}"))
        for side in ("L_", "R_"):
            i = names.index(side + wide)
            other[:, i] = middle + share * (own[:, i] - middle)
    for side in ("L_", "R_"):
        for a, b in BONES:
            longer = rng.uniform(0.7, 1.4)
            start = at(prepared, other, side + a)
            other[:, names.index(side + b)] = start + longer * bone(
                prepared, own, side + a, side + b
            )
    back = proportions.fitted(replace(clip, raw=other, smooth=other), prepared, 1.0).raw
    apart = bone(prepared, own, "R_foot", "L_foot")[:, 1]
    room = apart > 1.6 * proportions._side_by_side(prepared)
    assert np.count_nonzero(room) > 20
    hips = 0.5 * (at(prepared, own, "L_hip") + at(prepared, own, "R_hip"))
    moved = 0.5 * (at(prepared, back, "L_hip") + at(prepared, back, "R_hip"))
    error = np.abs((back - moved[:, None]) - (own - hips[:, None]))[room]
    chest = names.index("chest")
    # the axes of the G1's hips pass each other by millimetres
    assert np.delete(error, chest, axis=1).max() < 5e-3
    # between hips and shoulders on one line, as the robots' are
    assert error[:, chest].max() < 0.03


def test_feet_have_room_side_by_side(whole: PreparedRobot) -> None:
    clip, prepared = recorded(whole)
    crossed = clip.raw.copy()
    feet = [
        [prepared.layout.names.index(side + name) for name in ("foot", "toe")]
        for side in ("L_", "R_")
    ]
    for foot, sign in zip(feet, (-0.1, 0.1), strict=True):
        crossed[:, foot] += [0.0, sign, 0.0]
    fitted = proportions.fitted(replace(clip, raw=crossed), prepared, 0.4)
    apart = 0.4 * bone(prepared, fitted.raw, "R_foot", "L_foot")[:, 1]
    soles = prepared.home_soles[..., 1]
    ankles = [at(prepared, own_home(prepared), side + "foot")[1] for side in ("L_", "R_")]
    inner = (ankles[0] - soles[0].min()) + (soles[1].max() - ankles[1])
    assert apart.min() > inner + 2.0 * prepared.robot.foot_radius


def own_home(prepared: PreparedRobot) -> np.ndarray:
    return own_markers(prepared, np.asarray(prepared.robot.home_qpos)[None])[0]


def test_standing_ankles_are_as_high_as_the_robots(whole: PreparedRobot) -> None:
    clip, prepared = recorded(whole)
    scale = proportions.scale_of([clip], prepared)
    fitted = proportions.fitted(clip, prepared, scale)
    for side, stands in zip(("L_", "R_"), clip.standing.T, strict=True):
        i = prepared.layout.names.index(side + "foot")
        height = scale * np.median(fitted.smooth[stands][:, i, 2]) + prepared.sole_height
        assert height == pytest.approx(prepared.layout.height[i], abs=0.01 * scale)
        assert fitted.heights[i] == np.median(fitted.smooth[stands][:, i, 2])


def test_the_scale_is_that_of_legs(whole: PreparedRobot) -> None:
    # a person's thigh and shank: 0.245 and 0.246 of the height
    clip, prepared = recorded(whole, height=1.6)
    home = own_home(prepared)
    leg = sum(
        np.linalg.norm(bone(prepared, home, *b))
        for b in (("L_hip", "L_knee"), ("L_knee", "L_foot"))
    )
    assert proportions.scale_of([clip], prepared) == pytest.approx(leg / (0.491 * 1.6), rel=1e-6)


def test_only_humanoids_are_fitted() -> None:
    assert not proportions.fits(PreparedRobot.of(robots.load("anymal_b")))
    g1 = robots.load("unitree_g1")
    arms = tuple(name for name in g1.markers if "knee" not in name)
    assert proportions.fits(PreparedRobot.of(g1))
    assert not proportions.fits(PreparedRobot.of(g1, arms))


@pytest.mark.parametrize("hips", [0.5, 1.0, 1.5])
def test_a_person_of_any_width_walks_on_a_g1(hips: float) -> None:
    """By offsets thighs and shanks were 9 to 11 degrees off; nothing touches, nothing slides."""
    clip = bodies.person(seconds=2.0)
    places = clip.positions.copy()
    for side, sign in (("Left", 1.0), ("Right", -1.0)):
        leg = [
            i
            for i, n in enumerate(clip.names)
            if n.startswith(side) and n.endswith(("Leg", "Foot", "ToeBase", "ToeBase_end"))
        ]
        places[:, leg, 1] += sign * 0.055 * 1.7 * (hips - 1.0)
    motion = retarget.retarget(replace(clip, positions=places), robots.load("unitree_g1"))
    assert motion.quality["leg_orientation_deg"] < 6.0
    assert motion.quality["self_collision_share"] == 0.0
    assert motion.quality["foot_slide_mps"] < 0.001
    assert motion.quality["rms_marker_m"] < 0.03
