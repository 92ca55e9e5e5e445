"""People at a robot's proportions: directions stay, lengths are the robot's, feet have room."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import retarget
from mocap_data import rotations
from mocap_data.errors import InputError
from npmp import robots
from retarget import kinematics, proportions
from retarget.options import Options
from retarget.prepared_robot import PreparedRobot
from retarget.skeletons import find_skeleton
from retarget.targets import RecordedMarkers, record_markers, standing_heights
from tests.retarget import bodies
from tests.retarget.test_recover import some_poses

LEGS = [("hip", "knee"), ("knee", "foot")]
ARMS = [("shoulder", "elbow"), ("elbow", "hand")]
SIDES = ("L_", "R_")


@pytest.fixture(scope="module", params=["op3", "unitree_g1"])
def prepared(request: pytest.FixtureRequest) -> PreparedRobot:
    return PreparedRobot.of(robots.load(request.param))


class Recorded:
    """A person's markers, and the robot with those that the person has."""

    def __init__(self, prepared: PreparedRobot, wide: float = 0.0, **person: float):
        """wide: by which feet are further out than they were, and knees by half [m]."""
        clip = bodies.person(**person)
        places = clip.positions.copy()
        for side, sign in (("Left", 1.0), ("Right", -1.0)):
            for end in ("Leg", "Foot", "ToeBase", "ToeBase_end"):
                out = sign * wide * (0.5 if end == "Leg" else 1.0)
                places[:, clip.names.index(side + end), 1] += out
        clip = replace(clip, positions=places)
        skeleton = find_skeleton([clip], tuple(prepared.robot.markers))
        self.prepared = prepared.with_markers(tuple(skeleton.markers))
        self.names = self.prepared.layout.names
        self.clip = record_markers(clip, skeleton, self.prepared, Options())

    def fitted(self, scale: float, raw: np.ndarray | None = None) -> np.ndarray:
        """Raw markers at the robot's proportions; raw: in place of the recorded ones."""
        return self.scaled(self.clip if raw is None else replace(self.clip, raw=raw), scale).raw

    def scaled(self, clip: RecordedMarkers, scale: float) -> RecordedMarkers:
        heights = standing_heights([clip], self.prepared)
        return proportions.with_proportions(clip, self.prepared, scale, heights)

    def at(self, places: np.ndarray, name: str) -> np.ndarray:
        return places[..., self.names.index(name), :]

    def bone(self, places: np.ndarray, a: str, b: str) -> np.ndarray:
        return self.at(places, b) - self.at(places, a)

    def robot_markers(self, qpos: np.ndarray) -> np.ndarray:
        """The robot's own markers at poses (T, 7 + J)."""
        points = kinematics.Points(self.prepared.layout.body, self.prepared.layout.position)
        return kinematics.positions_of(points, *kinematics.forward(self.prepared.tree, qpos))

    def inner(self) -> float:
        """From ankle to ankle where the soles touch [m]: the inner corners' reach, twice."""
        robot = self.prepared.robot
        reach = 0.0
        for body, sign in zip(robot.foot_bodies, (1.0, -1.0), strict=True):
            points = robot.foot_points[robot.foot_bodies.index(body)]
            reach += float(np.max(-sign * points[:, 1]))
        return reach + 2.0 * robot.foot_radius


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_directions_stay_and_lengths_are_the_robots(prepared: PreparedRobot) -> None:
    person = Recorded(prepared, wide=0.4, height=1.9)
    new = person.fitted(0.5)
    home = person.prepared.home_markers / 0.5
    for side in SIDES:
        for a, b in (*LEGS, *ARMS):
            bone = person.bone(new, side + a, side + b)
            length = np.linalg.norm(person.bone(home, side + a, side + b))
            expected = length * unit(person.bone(person.clip.raw, side + a, side + b))
            np.testing.assert_allclose(
                bone, expected, atol=1e-4
            )  # feet are far apart, not infinitely
    for wide in ("hip", "shoulder"):
        result = np.linalg.norm(person.bone(new, f"R_{wide}", f"L_{wide}"), axis=-1)
        expected = np.linalg.norm(person.bone(home, f"R_{wide}", f"L_{wide}"))
        np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_limb_lengths_are_recovered(prepared: PreparedRobot) -> None:
    """Poses as markers, with hips, shoulders and every bone longer or shorter: the markers come
    back, but for where the body is, and where feet come too near to each other."""
    rng = np.random.default_rng(0)
    person = Recorded(prepared)
    qpos = some_poses(prepared, len(person.clip.raw), rng)
    qpos[:, 3:7] = [1.0, 0.0, 0.0, 0.0]
    waist = [7 + i for i, name in enumerate(prepared.robot.joint_names) if "waist" in name]
    qpos[:, waist] = np.asarray(prepared.robot.home_qpos)[waist]  # a trunk of one length
    markers = person.robot_markers(qpos)
    other = markers.copy()
    for wide, share in (("hip", 0.6), ("shoulder", 1.2)):
        middle = 0.5 * (person.at(markers, f"L_{wide}") + person.at(markers, f"R_{wide}"))
        for side in SIDES:
            place = middle + share * (person.at(markers, side + wide) - middle)
            other[:, person.names.index(side + wide)] = place
    for side in SIDES:
        for a, b in (*LEGS, *ARMS):
            bone = rng.uniform(0.7, 1.4) * person.bone(markers, side + a, side + b)
            other[:, person.names.index(side + b)] = person.at(other, side + a) + bone
    back = person.fitted(1.0, other)
    room = person.bone(markers, "R_foot", "L_foot")[:, 1] > 1.6 * person.inner()
    assert np.count_nonzero(room) > 20
    error = back - markers
    error -= 0.5 * (person.at(error, "L_hip") + person.at(error, "R_hip"))[:, None]
    error = np.abs(error[room])
    limbs = [i for i, name in enumerate(person.names) if name[2:] not in ("toe", "est")]
    # the axes of the G1's hips pass each other by millimetres
    assert error[:, limbs].max() < 5e-3


def test_feet_have_room_side_by_side_but_may_cross_far_ahead(prepared: PreparedRobot) -> None:
    person = Recorded(prepared)
    scale = proportions.scale_of([person.clip], person.prepared)
    feet = {side: [person.names.index(side + end) for end in ("foot", "toe")] for side in SIDES}

    def apart(ahead: float, aside: float) -> np.ndarray:
        """(T,) [m] from ankle to ankle across the robot, of feet moved to the other side."""
        crossed = np.repeat(person.clip.raw[:1], len(person.clip.raw), axis=0)
        for side, sign in zip(SIDES, (-1.0, 1.0), strict=True):
            crossed[:, feet[side]] += [0.5 * -sign * ahead, sign * aside, 0.0]
        return scale * person.bone(person.fitted(scale, crossed), "R_foot", "L_foot")[:, 1]

    assert apart(0.0, 0.15).min() > person.inner()
    assert apart(3.0, 0.9).max() < 0.0


def test_a_body_that_rolls_over_does_not_jump(prepared: PreparedRobot) -> None:
    # the way across the hips has no direction on the floor once they are on end
    person = Recorded(prepared)
    angle = np.linspace(0.0, np.pi, len(person.clip.raw))
    turn = rotations.to_matrix(
        np.stack((np.cos(angle / 2), np.sin(angle / 2), 0 * angle, 0 * angle), -1)
    )
    still = np.einsum("tij,mj->tmi", turn, person.clip.raw[0] - person.clip.raw[0].mean(axis=0))
    step = np.linalg.norm(np.diff(person.fitted(1.0, still), axis=0), axis=-1)
    recorded = np.linalg.norm(np.diff(still, axis=0), axis=-1)
    assert step.max() < 4.0 * recorded.max()


def test_standing_feet_are_as_high_and_as_long_as_the_robots(prepared: PreparedRobot) -> None:
    person = Recorded(prepared)
    scale = proportions.scale_of([person.clip], person.prepared)
    result = person.scaled(person.clip, scale)
    home = person.prepared.home_markers
    layout = person.prepared.layout
    for side, stands in zip(SIDES, person.clip.standing.T, strict=True):
        i = person.names.index(side + "foot")
        height = scale * np.median(result.smooth[stands][:, i, 2]) + person.prepared.sole_height
        assert height == pytest.approx(layout.height[i], abs=0.01 * scale)
        assert result.heights[i] == np.median(result.smooth[stands][:, i, 2])
        foot = scale * np.linalg.norm(
            person.bone(result.smooth, side + "foot", side + "toe")[stands, :2], axis=-1
        )
        reach = np.linalg.norm(person.bone(home, side + "foot", side + "toe")[:2])
        assert np.median(foot) == pytest.approx(reach, rel=0.02)


def test_the_scale_is_that_of_legs(prepared: PreparedRobot) -> None:
    # a person's thigh and shank: 0.245 and 0.246 of the height
    person = Recorded(prepared, height=1.6)
    home = person.prepared.home_markers
    leg = sum(np.linalg.norm(person.bone(home, f"L_{a}", f"L_{b}")) for a, b in LEGS)
    scale = proportions.scale_of([person.clip], person.prepared)
    assert scale == pytest.approx(leg / (0.491 * 1.6), rel=1e-6)
    point = replace(person.clip, raw=np.zeros_like(person.clip.raw))
    with pytest.raises(InputError, match="'person'"):
        proportions.scale_of([point], person.prepared)


def test_only_humanoids_are_fitted() -> None:
    assert not proportions.applies_to(PreparedRobot.of(robots.load("anymal_b")))
    g1 = robots.load("unitree_g1")
    assert proportions.applies_to(PreparedRobot.of(g1))
    without = tuple(name for name in g1.markers if "knee" not in name)
    assert not proportions.applies_to(PreparedRobot.of(g1, without))


@pytest.mark.parametrize("wide", [-0.04, 0.0, 0.04])
def test_a_person_of_any_width_walks_on_a_g1(wide: float) -> None:
    """By offsets thighs and shanks were 9 to 11 degrees off; nothing touches, nothing slides."""
    clip = bodies.person(seconds=2.0)
    sides = [(name.startswith("Left"), name.startswith("Right")) for name in clip.names]
    legs = [name.endswith(("Leg", "Foot", "ToeBase", "ToeBase_end")) for name in clip.names]
    across = np.array(
        [(left - right) * leg for (left, right), leg in zip(sides, legs, strict=True)]
    )
    moved = clip.positions + wide * across[:, None] * np.array([0.0, 1.0, 0.0])
    motion = retarget.retarget(replace(clip, positions=moved), robots.load("unitree_g1"))
    assert motion.quality["leg_orientation_deg"] < 6.0
    assert motion.quality["self_collision_share"] == 0.0
    assert motion.quality["foot_slide_mps"] < 0.001
    assert motion.quality["rms_marker_m"] < 0.03
