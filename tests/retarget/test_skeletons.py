"""Skeletons by name, by file and for robots; warnings of their bodies."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from mocap_data.clip import Clip
from mocap_data.synthetic import dog_gait
from npmp import robots
from npmp.experiments.inspect import skeleton_file
from retarget import retarget
from retarget.recording_checks import body_warnings, is_misread, recording_warnings
from retarget.skeletons import (
    HUMANOID_MARKERS,
    QUADRUPED_MARKERS,
    find_skeleton,
    marker_positions,
    read_skeleton,
    shipped_skeletons,
)
from tests.refusals import refusal
from tests.retarget.bodies import mirrored, person, plug_in_gait, renamed

PERSON = person()
DOG = dog_gait("walk", duration_s=3.0)


def warnings_of(clip: Clip) -> list[str]:
    return recording_warnings(clip, find_skeleton(clip))


def scaled(clip: Clip, factor: float) -> Clip:
    return dataclasses.replace(clip, positions=factor * clip.positions)


def test_shipped_skeletons_have_all_markers_of_a_body() -> None:
    assert {"cmu", "dog", "lafan1", "style100", "xsens", "rokoko", "rigify", "smpl"} <= set(
        shipped_skeletons()
    )
    for skeleton in shipped_skeletons().values():
        markers = set(skeleton.markers)
        missing = set(HUMANOID_MARKERS) - markers
        assert markers == set(QUADRUPED_MARKERS) or {m[2:] for m in missing} <= {"toe", "heel"}
        # a keypoint that is left in one marker is right in the other
        for name, weights in skeleton.markers.items():
            if name.startswith("L"):
                assert weights != skeleton.markers["R" + name[1:]]


@pytest.mark.parametrize("subject", ["", "Ann:"])
def test_plug_in_gait_is_shipped(subject: str) -> None:
    """Joints lie inwards of the markers on the skin: within 2 cm of where they are."""
    clip = renamed(plug_in_gait(PERSON), lambda name: subject + name)
    skeleton = find_skeleton(clip)
    assert skeleton.name == "plug_in_gait"
    assert warnings_of(clip) == []
    joints = {"hip": "UpLeg", "knee": "Leg", "foot": "Foot"}
    for side, letter in (("Left", "L"), ("Right", "R")):
        for marker, joint in joints.items():
            [at] = marker_positions(clip, skeleton, [f"{letter}_{marker}"]).transpose(1, 0, 2)
            truth = PERSON.positions[:, PERSON.index(side + joint)]
            assert np.linalg.norm(at - truth, axis=-1).max() < 0.02
    assert warnings_of(mirrored(clip)) == ["left and right are swapped (mirrored?)"]


@pytest.mark.parametrize(
    "name", ["cmu_joints", "lafan1", "xsens", "rigify", "smpl_short", "cc_base"]
)
@pytest.mark.parametrize("prefix", ["", "take1:", "Actor_"])
def test_case_punctuation_and_prefixes_do_not_count(name: str, prefix: str) -> None:
    skeleton = shipped_skeletons()[name]
    names = [prefix + key.upper().replace("_", ".") for key in skeleton.keypoints]
    spelled = skeleton.matched(names)
    assert spelled is not None and set(spelled.keypoints) == set(names)
    assert skeleton.matched(names[1:]) is None


def test_the_markers_own_names_come_first() -> None:
    assert find_skeleton(PERSON, ("LeftFoot", "RightFoot")).name == "markers"
    refusal("'cmu_joints'.*LF_shoulder", find_skeleton, PERSON, QUADRUPED_MARKERS)


def test_a_skeleton_file(tmp_path: Path) -> None:
    """The hip a third of the way up to the spine."""
    path = tmp_path / "mine.yaml"
    robot = robots.load("op3")
    markers = {
        name: next(iter(keys)) for name, keys in shipped_skeletons()["cmu_joints"].markers.items()
    }
    content = {"markers": markers | {"chest": {"Neck": 0.75, "Spine1": 0.25}}, "guesses": ["none"]}
    path.write_text(yaml.safe_dump(content))
    skeleton = find_skeleton(PERSON, tuple(robot.markers), str(path))
    assert skeleton.markers["chest"] == {"Neck": 0.75, "Spine1": 0.25}
    numbered = renamed(PERSON, lambda name: f"x{PERSON.names.index(name):02}")
    refusal("skeleton=.*LeftArm", find_skeleton, numbered, skeleton=str(path))
    refusal("'mime'", find_skeleton, PERSON, skeleton="mime")
    assert retarget(PERSON, robot, skeleton=str(path)).quality["rms_marker_m"] < 0.04


@pytest.mark.parametrize(
    ("text", "key"), [("markers: {}", "markers"), ("markers: {L_hip: {a: 0.5, b: 0.4}}", "'L_hip'")]
)
def test_invalid_files(tmp_path: Path, text: str, key: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    refusal(f"bad.yaml: .*{key}", read_skeleton, path)


def test_inspect_writes_what_retarget_reads(tmp_path: Path) -> None:
    path = tmp_path / "skeleton.yaml"
    skeleton = shipped_skeletons()["dog"]
    markers = {k: dict(v) if len(v) > 1 else next(iter(v)) for k, v in skeleton.markers.items()}
    path.write_text(skeleton_file({"path": "a.bvh", "skeleton": "dog", "markers": markers}))
    assert read_skeleton(path).markers == skeleton.markers
    refusal("a.bvh", skeleton_file, {"path": "a.bvh", "skeleton": "it fits none"})


def test_a_person_and_a_dog_have_no_warnings() -> None:
    assert warnings_of(PERSON) == warnings_of(DOG) == []
    assert warnings_of(dog_gait("walk", speed_mps=-0.4, duration_s=3.0)) == []


@pytest.mark.parametrize(
    ("clip", "key"),
    [
        # a person of 1.7 m in inches read as centimetres, and in CMU's unit of 1/0.45 inch
        (
            scaled(PERSON, 1.0 / 2.54),
            "a person of 0.67 m .units. scale= should be 2.54 times larger",
        ),
        (scaled(DOG, 0.3), "is 0.16 m high at the shoulder, an animal of four legs .units"),
        (mirrored(PERSON), "left and right are swapped .mirrored"),
        (mirrored(DOG), "left and right are swapped .mirrored"),
    ],
)
def test_warnings_of_a_misread_body(clip: Clip, key: str) -> None:
    [warning] = warnings_of(clip)
    assert re.search(key, warning), warning
    assert is_misread(warnings_of(clip))


def test_legs_of_two_lengths_and_a_foot_in_the_air() -> None:
    places = PERSON.positions.copy()
    left = [PERSON.index(f"Left{part}") for part in ("Leg", "Foot", "ToeBase", "ToeBase_end")]
    places[:, left, 2] += 0.3
    warnings = " ".join(
        body_warnings(
            dataclasses.replace(PERSON, positions=places), shipped_skeletons()["cmu_joints"]
        )
    )
    assert "m from left hip to foot" in warnings and "has L_foot at least 0.35 m above" in warnings
