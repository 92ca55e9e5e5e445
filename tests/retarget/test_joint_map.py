"""People to OP3 by joint angles: hand-derived angles, poses recovered, real recordings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mocap_data import rotations
from mocap_data.errors import InputError
from mocap_data.motion import ReferenceMotion
from mocap_data.readers.asf_amc import read_amc, read_asf
from mocap_data.readers.cmu_h5 import list_cmu_h5
from npmp import robots
from retarget import kinematics, legs, people
from retarget.joint_map import JointOptions, Mapper, ankle_angles, arm_angles, hip_angles
from retarget.people import Person, read_person
from retarget.trajectory_optimization import MotionProblem, System, Track, held_points, optimize

OP3 = robots.load("op3")
BARE = JointOptions(cutoff_hz=None)
# the robot's axes in the humanoid's
UPRIGHT = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
FOOT = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
THIGH, SHANK = 0.4, 0.41  # [m] of a made-up person


@pytest.fixture(scope="module")
def mapper() -> Mapper:
    return Mapper(OP3, BARE)


def turn(axis: str, angle: float) -> np.ndarray:
    return rotations.to_matrix(rotations.from_euler(axis, [angle]))


def joint(qpos: np.ndarray, name: str) -> np.ndarray:
    return np.asarray(qpos[..., 7 + OP3.joint_names.index(name)])


def person_like(qpos: np.ndarray, rate_hz: float = 120.0) -> Person:
    """A person whose limbs point as those of OP3 at poses (T, 27), with human lengths."""
    tree = kinematics.tree_of(OP3.model())
    place, turned = kinematics.forward(tree, qpos)
    at = {name: (place[:, i], turned[:, i]) for i, name in enumerate(OP3.body_names)}
    trunk = at["body_link"][1]
    scale = (THIGH + SHANK) / 0.22015
    middle = np.array([0.0001, 0.0, -0.0285])  # of the hips, in the trunk's frame
    centre = scale * (at["body_link"][0] + trunk @ middle)
    position, rotation = {"thorax": centre}, {"thorax": trunk @ UPRIGHT.T}
    for side, sign in (("l", 1.0), ("r", -1.0)):
        thigh, shank, sole = (
            at[f"{side}_{body}"][1] for body in ("hip_pitch_link", "knee_link", "ank_roll_link")
        )
        hip = centre + scale * 0.035 * sign * trunk[:, :, 1]
        knee = hip - THIGH * thigh[:, :, 2]
        ankle = knee - SHANK * shank[:, :, 2]
        upper, fore = (
            sign * at[f"{side}_{body}"][1][:, :, 1] for body in ("sho_roll_link", "el_link")
        )
        shoulder = centre + 0.5 * trunk[:, :, 2] + 0.2 * sign * trunk[:, :, 1]
        elbow = shoulder + 0.3 * upper
        for body, where, how in (
            ("femur", hip, thigh @ UPRIGHT.T),
            ("tibia", knee, shank @ UPRIGHT.T),
            ("foot", ankle, sole @ FOOT.T),
            ("toes", ankle + 0.11 * sole[:, :, 0], sole @ FOOT.T),
            ("humerus", shoulder, trunk),
            ("radius", elbow, trunk),
            ("hand", elbow + 0.25 * fore, trunk),
        ):
            position[side + body], rotation[side + body] = where, how
    return Person("made up", rate_hz, position, rotation, "test", "test")


# --- angles, by hand ---


def test_hip_angles_by_hand() -> None:
    """Leg straight down; raised forwards by 0.5; spread to the left by 0.3; toes to the left by
    0.2."""
    thighs = np.stack([np.eye(3), turn("Y", -0.5), turn("X", 0.3), turn("Z", 0.2)])
    expected = np.array([[0, 0, 0], [0, 0, -0.5], [0, 0.3, 0], [0.2, 0, 0]])
    np.testing.assert_allclose(hip_angles(thighs), expected, atol=1e-12)
    # raised, the thigh's -z points forwards: Ry(-0.5) (0, 0, -1) = (sin 0.5, 0, -cos 0.5)
    np.testing.assert_allclose(-thighs[1, :, 2], [np.sin(0.5), 0, -np.cos(0.5)], atol=1e-12)


@given(st.floats(-3, 3), st.floats(-1.5, 1.5), st.floats(-3, 3))
def test_hip_angles_make_up_the_rotation(yaw: float, roll: float, pitch: float) -> None:
    thigh = turn("Z", yaw) @ turn("X", roll) @ turn("Y", pitch)
    a, b, c = hip_angles(thigh[None])[0]
    np.testing.assert_allclose(turn("Z", a) @ turn("X", b) @ turn("Y", c), thigh, atol=1e-9)


@given(st.floats(-1.2, 1.2), st.floats(-1.2, 1.2))
def test_ankle_angles_carry_the_normal(pitch: float, roll: float) -> None:
    normal = (turn("Y", pitch) @ turn("X", roll))[:, 2]
    np.testing.assert_allclose(ankle_angles(normal[None])[0], np.array([pitch, roll]), atol=1e-9)


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_arm_angles_by_hand(side: float) -> None:
    """Stretched sideways; hanging; hanging, forearm towards the middle; both straight ahead."""
    out, down, ahead = (
        np.array([0.0, side, 0.0]),
        np.array([0.0, 0.0, -1.0]),
        np.array([1.0, 0.0, 0.0]),
    )
    upper = np.array([0.99 * out + 0.1 * down, down, down, ahead])
    upper /= np.linalg.norm(upper, axis=-1, keepdims=True)
    fore = np.array([upper[0], down, -out, ahead])
    half = 0.5 * np.pi
    found = arm_angles(upper, fore, side)
    lowered = np.arctan2(0.1, 0.99)
    # lowering turns the left arm against x, the right along it; straight ahead is down turned about
    # y by -90 degrees
    expected = [
        [0, -side * lowered, 0],
        [0, -side * half, 0],
        [0, -side * half, -side * half],
        [-half, -side * half, 0],
    ]
    np.testing.assert_allclose(found, np.array(expected), atol=1e-12)


def test_arm_puts_the_hand_in_its_direction() -> None:
    rng = np.random.default_rng(0)
    upper = rng.normal(size=(50, 3)) * 0.3 + [0.2, 0.3, -1.0]
    fore = rng.normal(size=(50, 3)) * 0.3 + [0.6, 0.0, -0.7]
    upper, fore = (v / np.linalg.norm(v, axis=-1, keepdims=True) for v in (upper, fore))
    for a, b, c in zip(upper, fore, arm_angles(upper, fore, 1.0), strict=True):
        plane = turn("Y", c[0])[:, 0]  # normal of the plane that the arm can be in
        assert abs(plane @ (a + b)) < 1e-9
        found = turn("Y", c[0]) @ turn("X", c[1]) @ [0.0, 1.0, 0.0]
        assert found @ a >= np.sqrt(1 - (plane @ a) ** 2) - 1e-9  # as near as the plane allows


# --- whole poses ---


def test_op3_like_person_is_recovered(mapper: Mapper) -> None:
    """A person who holds the limbs as OP3 does at known joint angles gives these angles back."""
    rng = np.random.default_rng(1)
    qpos = np.tile(OP3.home_qpos, (20, 1))
    low, high = OP3.joint_lower + 0.05, OP3.joint_upper - 0.05
    qpos[:, 7:] = low + (high - low) * rng.uniform(0.2, 0.8, size=(20, 20))
    for name in ("head_pan", "head_tilt"):
        qpos[:, 7 + OP3.joint_names.index(name)] = 0.0
    # arms lowered: at 0 they lie along the shoulder's first axis
    for side, sign in (("l", 1.0), ("r", -1.0)):
        qpos[:, 7 + OP3.joint_names.index(f"{side}_sho_roll")] = sign * rng.uniform(
            0.6, 1.4, size=20
        )
        qpos[:, 7 + OP3.joint_names.index(f"{side}_el")] = sign * rng.uniform(-1.2, 0.3, size=20)
        qpos[:, 7 + OP3.joint_names.index(f"{side}_sho_pitch")] = rng.uniform(-1, 1, size=20)
    qpos[:, :3] += rng.normal(size=(20, 3))
    qpos[:, 3:7] = rotations.from_euler("ZYX", rng.uniform(-0.3, 0.3, size=(20, 3)))
    found = mapper.pose(person_like(qpos))
    np.testing.assert_allclose(found[:, :3], qpos[:, :3], atol=1e-9)
    assert rotations.angle(found[:, 3:7], qpos[:, 3:7]).max() < 1e-7
    np.testing.assert_allclose(found[:, 7:], qpos[:, 7:], atol=1e-7)


def test_copied_legs_point_as_the_persons(mapper: Mapper) -> None:
    """Within bounds nothing is lost: the directions of thighs and shanks agree to rounding."""
    qpos = np.tile(OP3.home_qpos, (60, 1))
    phase = np.linspace(0, 4 * np.pi, 60)
    for side, sign in (("l", 1.0), ("r", -1.0)):
        qpos[:, 7 + OP3.joint_names.index(f"{side}_hip_pitch")] = sign * (
            -0.35 + 0.3 * sign * np.sin(phase)
        )
    person = person_like(qpos, OP3.control_rate_hz)
    found = legs.robot_directions(OP3, mapper.prepared.tree, mapper.pose(person))
    error = legs.orientation_error(legs.directions(person.legs()), found)
    np.testing.assert_allclose(error, 0, atol=1e-6)
    assert mapper.scale(person) == pytest.approx(0.22015 / (THIGH + SHANK), rel=1e-4)


def test_time_scale_stretches_time(mapper: Mapper) -> None:
    person = person_like(np.tile(OP3.home_qpos, (60, 1)), OP3.control_rate_hz)
    slow = Mapper(OP3, dataclasses.replace(BARE, time_scale=2.0)).motion(person)
    assert mapper.motion(person).num_frames == 60
    assert slow.num_frames == 119  # 59 periods become 118


# --- judged ---


def test_leg_error_by_hand() -> None:
    """A shank turned by 0.1 rad is 0.1 off, thighs are not."""
    person = np.zeros((1, 2, 3, 3))
    person[:, :, 1], person[:, :, 2] = [0, 0, -1], [0, 0, -2]
    other = person.copy()
    other[0, 1, 2] = other[0, 1, 1] + [0.5 * np.sin(0.1), 0, -0.5 * np.cos(0.1)]
    error = legs.orientation_error(legs.directions(person), legs.directions(other))
    np.testing.assert_allclose(error, np.array([[[0, 0], [0, 0.1]]]), atol=1e-12)


def test_legs_of_coinciding_points_are_refused() -> None:
    with pytest.raises(InputError, match="coincide"):
        legs.directions(np.zeros((1, 2, 3, 3)))


def test_heels_hold_before_and_toes_after_a_stance() -> None:
    standing = np.zeros((9, 2), dtype=bool)
    heel, toe = standing.copy(), standing.copy()
    standing[3:6, 0] = heel[2:6, 0] = toe[3:8, 0] = True
    held = held_points(OP3, standing, heel, toe)
    ahead = OP3.foot_points[0, :, 0] > OP3.foot_offset[0]
    assert held[3:6, 0].all() and not held[:, 1].any()
    np.testing.assert_array_equal(held[2, 0], ~ahead)
    np.testing.assert_array_equal(held[6, 0], ahead)
    np.testing.assert_array_equal(held[7, 0], ahead)
    assert not held[[0, 1, 8], 0].any()


# --- whole tracks ---


def squat(mapper: Mapper, period_s: float, *, share: float = 0.9) -> Track:
    """Knees bent and stretched, soles level in place, over two periods; joints may use a share of
    their speed."""
    rate = OP3.control_rate_hz
    time = np.arange(round(2 * period_s * rate)) / rate
    qpos = np.tile(OP3.home_qpos, (len(time), 1))
    bend = 0.35 + 0.3 * (1 - np.cos(2 * np.pi * time / period_s))
    for name, factor in (("hip_pitch", -1.0), ("knee", 2.0), ("ank_pitch", 1.0)):
        for side, sign in (("l", 1.0), ("r", -1.0)):
            qpos[:, 7 + OP3.joint_names.index(f"{side}_{name}")] = sign * factor * bend
    qpos[:, 2] = (0.11015 + 0.11) * np.cos(bend) + 0.059
    standing = np.ones((len(qpos), 2), dtype=bool)
    held = np.ones((len(qpos), 2, 4), dtype=bool)
    points, vectors = mapper.leg_points, np.array([[0, 1], [1, 2], [3, 4], [4, 5]])
    most = share * OP3.velocity_limit / rate
    return Track(
        mapper.prepared, qpos, standing, held, np.zeros((len(qpos), 2)), points, vectors, most
    )


def test_sound_track_stays_as_it_is(mapper: Mapper) -> None:
    """Peak speed of the knee 2 * 0.3 * 2 pi / 2 s = 1.9 rad/s, far below its limit; the soles hold
    already."""
    track = squat(mapper, 2.0)
    np.testing.assert_allclose(optimize(track), track.qpos, atol=1e-4)


def test_fast_track_is_slowed_with_feet_held(mapper: Mapper) -> None:
    """Peak speed of the knee 2 * 0.3 * 2 pi / 0.5 s = 7.5 rad/s against 4.3."""
    track = squat(mapper, 0.5)
    found = optimize(track)
    assert np.abs(np.diff(track.qpos[:, 7:], axis=0)).max() > 1.5 * track.most.max()
    assert np.abs(np.diff(found[:, 7:], axis=0)).max() < 1.01 * track.most.max()
    soles = mapper.prepared.soles_at(found)
    np.testing.assert_allclose(soles, np.broadcast_to(soles[:1], soles.shape), atol=2e-4)
    np.testing.assert_allclose(soles[..., 2], OP3.foot_radius, atol=2e-4)


def test_gradient_is_the_costs_derivative(mapper: Mapper) -> None:
    track, rng = squat(mapper, 0.5), np.random.default_rng(0)
    problem, frames = MotionProblem.of(track), len(track.qpos)
    problem = dataclasses.replace(
        problem,
        goal=problem.goal + 0.01 * rng.normal(size=(frames, 8, 3)),
        held=rng.random((frames, 8)) < 0.5,
        wanted=rng.normal(size=(frames, 4, 3)),
    )
    # the root's attitude stays: its distance is linear only near the given one
    step = np.zeros((frames, 26))
    step[:, [0, 1, 2, *range(6, 26)]] = 0.02 * rng.normal(size=(frames, 23))
    qpos, way = kinematics.integrate(track.qpos, step), rng.normal(size=(frames, 26))

    def system(size: float) -> System:
        return problem.linearize(kinematics.integrate(qpos, size * way))

    slope = (system(1e-6).cost - system(-1e-6).cost) / 2e-6
    assert slope == pytest.approx(2.0 * (system(0.0).gradient * way).sum(), rel=1e-4)


# --- recordings ---


@pytest.fixture(scope="module")
def walk(shared: Path) -> Path:
    path = shared / "mocap" / "cmu_asfamc" / "39" / "39_03.amc"
    if not path.exists():
        pytest.skip(f"needs {path}")
    return path


@pytest.fixture(scope="module")
def motion(walk: Path) -> ReferenceMotion:
    return Mapper(OP3, JointOptions()).motion(read_person(walk, licence="CMU"))


def test_walk_meets_what_is_asked_of_it(motion: ReferenceMotion) -> None:
    quality = motion.quality
    assert quality["leg_orientation_deg"] < 4.0
    assert quality["float_m"] < 1e-3 and quality["penetration_m"] < 1e-3
    assert quality["foot_slide_mps"] < 0.005
    assert (
        quality["self_collision_share"]
        == quality["limit_violations"]
        == quality["velocity_violations"]
        == 0
    )
    assert motion.rate_hz == OP3.control_rate_hz and motion.recording == motion.name == "39_03"
    assert motion.contacts is not None and 0.3 < motion.contacts.mean() < 0.7
    assert motion.licence == "CMU"


def test_mirrored_person_walks_mirrored(walk: Path, motion: ReferenceMotion) -> None:
    """Left and right swapped before or after: the same. The world mirrors y; the humanoid's left is
    its x."""
    person = read_person(walk)
    world, own = np.diag([1.0, -1.0, 1.0]), np.diag([-1.0, 1.0, 1.0])

    def other(body: str) -> str:
        return body if body == "thorax" else {"l": "r", "r": "l"}[body[0]] + body[1:]

    image = dataclasses.replace(
        person,
        position={other(body): values @ world for body, values in person.position.items()},
        rotation={other(body): world @ values @ own for body, values in person.rotation.items()},
    )
    found = Mapper(OP3, JointOptions()).motion(image)
    expected = OP3.symmetries["left_right"].mirror_qpos(motion.qpos)
    np.testing.assert_allclose(found.qpos[:, :3], expected[:, :3], atol=1e-4)
    assert rotations.angle(found.qpos[:, 3:7], expected[:, 3:7]).max() < 1e-3
    np.testing.assert_allclose(found.qpos[:, 7:], expected[:, 7:], atol=2e-3)


def test_values_are_those_that_dm_control_parses(walk: Path) -> None:
    """Our reader puts the numbers where dm_control's parser has them (which needs frames that count
    from 1)."""
    parse, _ = people._dm_control()
    skeleton = read_asf(walk.with_name("39.asf"))
    ours = people._amc_values(
        walk, skeleton, read_amc(walk, skeleton), parse._CMU_MOCAP_JOINT_ORDER
    )
    np.testing.assert_allclose(ours, np.stack(parse.parse(str(walk))), atol=1e-9)


def test_dm_controls_hdf5(shared: Path) -> None:
    path = shared / "mocap" / "dm_control_h5" / "test_trajectories.h5"
    if not path.exists():
        pytest.skip(f"needs {path}")
    person = read_person(path, clip=list_cmu_h5(path)[0].name)
    motion = Mapper(OP3, JointOptions()).motion(person)
    assert np.isfinite(motion.qpos).all() and motion.quality["limit_violations"] == 0


# --- bad input ---


def test_bad_input(tmp_path: Path, walk: Path) -> None:
    with pytest.raises(InputError, match="no file"):
        read_person(tmp_path / "none.amc")
    (tmp_path / "bad.amc").write_text("no motion at all\n")
    with pytest.raises(InputError, match=r"bad\.amc"):
        read_person(tmp_path / "bad.amc", asf=walk.with_name("39.asf"))
    with pytest.raises(InputError, match="frames 10 to 5"):
        read_person(walk, start=10, stop=5)
    with pytest.raises(InputError, match="needs at least"):
        read_person(walk, start=10, stop=13)
    with pytest.raises(InputError, match="time_scale must be positive"):
        JointOptions(time_scale=0.0)
    with pytest.raises(InputError, match="is for OP3"):
        Mapper(robots.load("anymal_b"), JointOptions())
    with pytest.raises(InputError, match=r"x\.bvh holds no joint angles"):
        read_person("x.bvh")
