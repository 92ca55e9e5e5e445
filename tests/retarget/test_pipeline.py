"""Clips to motions: mirrors, floor, rates, velocities, joint offsets, bad input; and a real
recording."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import mocap_data
import retarget
from mocap_data import rotations
from mocap_data.clip import Clip
from mocap_data.synthetic import dog_gait
from npmp import robots
from retarget import offsets, targets
from retarget.skeletons import marker_positions, shipped_skeletons
from retarget.subjects import group_by_bones
from tests.refusals import refusal


def as_markers(clip: Clip) -> Clip:
    """The nine markers of a dog clip, under their own names."""
    names = tuple(shipped_skeletons()["dog"].markers)
    return Clip(
        marker_positions(clip, shipped_skeletons()["dog"], names),
        names,
        clip.rate_hz,
        name=clip.name,
    )


def test_a_generated_walk(robot: robots.Robot) -> None:
    clip = dog_gait("walk", duration_s=3.0)
    motion = retarget.retarget(clip, robot)
    assert motion.rate_hz == 50.0
    assert motion.num_frames == 150  # 179 periods of 1/60 s hold 149 of 1/50 s
    assert (motion.name, motion.licence, motion.source) == (clip.name, clip.licence, clip.source)
    hips = clip.positions[:, clip.index("Hips"), :2]  # the animal's way is the robot's
    way = motion.qpos[-1, :2] - motion.qpos[0, :2]
    np.testing.assert_allclose(way, hips[-1] - hips[0], atol=0.03)
    assert motion.quality["rms_marker_m"] < 0.02
    assert motion.quality["penetration_m"] < 0.003
    assert motion.quality["float_m"] < 0.002
    assert motion.quality["foot_slide_mps"] < 0.05
    assert motion.quality["limit_violations"] == 0
    assert 0.4 < motion.qpos[:, 2].mean() < 0.6
    knees = motion.qpos[:, [9, 12, 15, 18]]  # front knees bend back, hind knees forward
    assert (knees[:, :2] < 0).all() and (knees[:, 2:] > 0).all()


def test_moved_and_turned_clips_give_moved_and_turned_motions(robot: robots.Robot) -> None:
    clip = dog_gait("walk", duration_s=1.5)
    turn = np.array([np.cos(0.5), 0.0, 0.0, np.sin(0.5)])  # 1 rad about z
    moved = dataclasses.replace(
        clip, positions=rotations.rotate(turn, clip.positions) + [3.0, -2.0, 1.7]
    )
    first = retarget.retarget(clip, robot)
    second = retarget.retarget(moved, robot)
    np.testing.assert_allclose(second.qpos[:, 7:], first.qpos[:, 7:], atol=1e-6)
    expected = rotations.rotate(turn, first.qpos[:, :3]) + [
        3.0,
        -2.0,
        0.0,
    ]  # the floor is found wherever it is
    np.testing.assert_allclose(second.qpos[:, :3], expected, atol=1e-6)


def test_a_trunk_that_sinks_is_carried_over_the_floor(robot: robots.Robot) -> None:
    clip = as_markers(dog_gait("walk", duration_s=2.0))
    positions = clip.positions.copy()
    dip = np.clip(np.sin(np.linspace(0.0, np.pi, clip.num_frames)) * 2.0 - 1.0, 0.0, None)
    positions[:, :5, 2] -= 0.45 * dip[:, None]
    motion = retarget.retarget(dataclasses.replace(clip, positions=positions), robot)
    assert motion.quality["penetration_m"] < 0.01


def test_rates_and_crops(robot: robots.Robot) -> None:
    clip = dog_gait("walk", duration_s=2.0)
    motion = retarget.retarget(clip.crop(30, 90), robot, rate_hz=np.float32(100.0))
    assert motion.rate_hz == 100.0
    assert motion.num_frames == 99  # 59 periods of 1/60 s hold 98 of 1/100 s
    default = retarget.retarget(clip.crop(30, 90), robot)
    np.testing.assert_allclose(motion.qpos[::2], default.qpos, atol=0.03)


def test_low_pass_keeps_slow_and_removes_fast() -> None:
    time = np.arange(240) / 60
    slow = np.sin(2 * np.pi * time)
    fast = 0.1 * np.sin(2 * np.pi * 25.0 * time)
    out = targets.low_pass((slow + fast)[:, None], 60.0, 8.0)[:, 0]
    assert np.abs(out - slow)[30:-30].max() < 5e-3
    np.testing.assert_array_equal(targets.low_pass(slow[:, None], 60.0, None)[:, 0], slow)


def test_many_clips_share_their_offsets(robot: robots.Robot) -> None:
    clips = [dog_gait("walk", duration_s=1.5), dog_gait("trot", duration_s=1.0)]
    reports: list[tuple[int, int, str]] = []
    motions = retarget.retarget_many(clips, robot, progress=lambda *args: reports.append(args))
    assert reports == [(0, 2, "synthetic_walk"), (1, 2, "synthetic_trot"), (2, 2, "")]
    assert (motions.robot, motions.model_sha256) == (robot.name, robot.model_sha256)
    assert motions.body_names == robot.body_names
    [offsets] = json.loads(motions.provenance["offsets"])
    assert set(offsets) == set(robot.markers)


def test_a_body_larger_than_the_robot_is_scaled_down(robot: robots.Robot) -> None:
    clip = dog_gait("walk", duration_s=3.0)
    horse = dataclasses.replace(clip, positions=2.5 * clip.positions)
    motion = retarget.retarget(horse, robot)
    small = retarget.retarget(clip, robot)
    assert small.quality["body_scale"] == 1.0
    scale = motion.quality["body_scale"]
    assert scale == pytest.approx(0.38, abs=0.03)  # legs of 0.5 m against 1.25 m
    expected = scale * 2.5 * 0.5 * 2.98 * np.array([1, 0])
    np.testing.assert_allclose(motion.qpos[-1, :2] - motion.qpos[0, :2], expected, atol=0.05)
    fixed = retarget.retarget(horse, robot, scale_body=0.4)
    assert fixed.quality["body_scale"] == 0.4
    assert fixed.quality["rms_marker_m"] < 0.02


def test_clips_of_other_proportions_are_of_other_subjects(robot: robots.Robot) -> None:
    clip = dog_gait("walk", duration_s=1.5)
    longer = dataclasses.replace(clip, name="longer", positions=clip.positions * [1.4, 1.0, 1.0])
    same = dataclasses.replace(clip, name="same", positions=clip.positions + [1.0, 2.0, 3.0])
    expected = [[clip.name, "same"], ["longer"]]
    assert [[c.name for c in group] for group in group_by_bones([clip, longer, same])] == expected
    motions = retarget.retarget_many([clip, longer, same], robot)
    assert motions.names == (clip.name, "longer", "same")  # in the order given
    assert len(json.loads(motions.provenance["offsets"])) == 2


def test_a_persons_recording_for_a_four_legged_robot(robot: robots.Robot) -> None:
    names = tuple(dict.fromkeys(shipped_skeletons()["cmu"].keypoints))
    clip = Clip(
        np.random.default_rng(0).normal(size=(60, len(names), 3)), names, 60.0, name="person"
    )
    refusal("'person'.*'cmu'.*base", retarget.retarget, clip, robot)


@pytest.mark.parametrize("file", ["cmu_asfamc/07/07_01.amc", "cmu_bvh/007_01.bvh"])
def test_people_walk_on_flat_feet(shared: Path, file: str) -> None:
    motion = retarget.retarget(mocap_data.read(shared / "mocap" / file), robots.load("op3"))
    assert 0.2 < motion.quality["body_scale"] < 0.32
    assert motion.quality["rms_marker_m"] < 0.015
    assert motion.quality["leg_orientation_deg"] < 5.0
    assert motion.quality["foot_slide_mps"] < 0.001
    assert motion.quality["float_m"] < 0.0005  # all four corners of standing soles
    assert motion.quality["penetration_m"] < 0.003
    assert motion.quality["limit_violations"] == motion.quality["velocity_violations"] == 0
    assert motion.quality["self_collision_share"] < 0.02


def test_an_animal_that_only_stands(robot: robots.Robot) -> None:
    clip = dog_gait("walk", duration_s=1.0)
    still = dataclasses.replace(clip, positions=np.repeat(clip.positions[:1], 60, axis=0))
    np.testing.assert_allclose(retarget.retarget(still, robot).qvel, 0.0, atol=1e-6)


def test_a_sitting_dog_does_not_change_a_walk(robot: robots.Robot, shared: Path) -> None:
    folder = shared / "mocap" / "dog_bvh"
    walk, sit = (
        mocap_data.read(folder / f"D1_{number}_KAN01_001.bvh") for number in ("009", "003")
    )
    alone = retarget.retarget(walk, robot)
    beside = retarget.retarget_many([sit, walk], robot).motions[1]
    assert alone.quality["rms_marker_m"] < 0.012
    assert abs(alone.quality["rms_marker_m"] - beside.quality["rms_marker_m"]) < 0.002
    assert beside.quality["foot_slide_mps"] < 0.003
    assert beside.quality["penetration_p99_m"] < 0.002


def test_people_in_a_mirror(make: SimpleNamespace, shared: Path) -> None:
    """A run, too fast for the robot's drives."""
    op3 = robots.load("op3")
    clip = mocap_data.read(shared / "mocap/cmu_asfamc/02/02_03.amc").crop(0, 120)
    motion = retarget.retarget(clip, op3)
    image = retarget.retarget(make.mirrored(clip, [("l", "r")]), op3)
    mirror = op3.symmetries["left_right"]
    expected = mirror.mirror_qpos(motion.qpos)
    np.testing.assert_allclose(image.qpos[:, :3], expected[:, :3], atol=1e-9)
    angle = rotations.angle(image.qpos[:, 3:7], expected[:, 3:7])
    np.testing.assert_allclose(angle, 0.0, atol=1e-9)
    np.testing.assert_allclose(image.qpos[:, 7:], expected[:, 7:], atol=1e-9)
    assert motion.contacts is not None and image.contacts is not None
    np.testing.assert_array_equal(image.contacts, motion.contacts[:, mirror.foot_permutation])


def test_impossible_coordinates(robot: robots.Robot) -> None:
    clip = dog_gait("walk", duration_s=1.0)
    wild = clip.positions.copy()
    wild[3, 2, 0] = -5e4
    far = dataclasses.replace(clip, positions=wild)
    refusal("Spine1 in frame 3", retarget.retarget, far, robot)
    refusal("0 m apart", retarget.retarget, dataclasses.replace(clip, positions=0.0 * wild), robot)


def test_equations_without_a_solution_name_the_clip(
    robot: robots.Robot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def singular(*_: object) -> None:
        raise np.linalg.LinAlgError("Singular matrix")

    monkeypatch.setattr(offsets, "offset_step", singular)
    clip = dog_gait("walk", duration_s=1.0)
    refusal("'synthetic_walk'", retarget.retarget, clip, robot)
    two = [clip, dataclasses.replace(clip, name="other")]
    refusal("'synthetic_walk', 'other'", retarget.retarget_many, two, robot)
