"""Skeletons by name, by file and for robots; doubts about the bodies that they make."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from mocap_data.clip import Clip
from mocap_data.errors import InputError
from mocap_data.synthetic import dog_gait
from npmp import robots
from npmp.experiments.inspect import skeleton_file
from retarget import retarget
from retarget.plausibility import body_doubts, doubts_of, misread
from retarget.skeletons import (
    HUMANOID_MARKERS,
    QUADRUPED_MARKERS,
    known,
    marker_positions,
    read_skeleton,
    skeleton_of,
)
from tests.refusals import refusal
from tests.retarget.bodies import mirrored, person, plug_in_gait, renamed

PERSON, DOG = person(), dog_gait("walk", duration_s=3.0)


def scaled(clip: Clip, factor: float) -> Clip:
    return dataclasses.replace(clip, positions=factor * clip.positions)


def test_known_skeletons_have_all_markers_of_a_body() -> None:
    assert {"cmu", "dog", "lafan1", "style100", "xsens", "rokoko", "rigify", "smpl"} <= set(known())
    for skeleton in known().values():
        markers = set(skeleton.markers)
        missing = set(HUMANOID_MARKERS) - markers
        assert markers == set(QUADRUPED_MARKERS) or {m[2:] for m in missing} <= {"toe", "heel"}
        # a keypoint that is left in one marker is right in the other
        for name, weights in skeleton.markers.items():
            if name.startswith("L"):
                assert weights != skeleton.markers["R" + name[1:]]


@pytest.mark.parametrize("subject", ["", "Ann:"])
def test_plug_in_gait_is_known(subject: str) -> None:
    """Joints lie inwards of the markers on the skin: within 2 cm of where they are."""
    clip = renamed(plug_in_gait(PERSON), lambda name: subject + name)
    skeleton = skeleton_of(clip)
    assert skeleton.name == "plug_in_gait"
    assert doubts_of(clip) == []
    joints = {"hip": "UpLeg", "knee": "Leg", "foot": "Foot"}
    for side, letter in (("Left", "L"), ("Right", "R")):
        for marker, joint in joints.items():
            [at] = marker_positions(clip, skeleton, [f"{letter}_{marker}"]).transpose(1, 0, 2)
            truth = PERSON.positions[:, PERSON.index(side + joint)]
            assert np.linalg.norm(at - truth, axis=-1).max() < 0.02
    assert doubts_of(mirrored(clip)) == ["left and right are swapped (mirrored?)"]


def test_plug_in_gait_with_one_marker_on_the_sacrum() -> None:
    whole = plug_in_gait(PERSON)
    back = [whole.index(name) for name in ("LPSI", "RPSI")]
    positions = whole.positions.copy()
    positions[:, back[0]] = positions[:, back].mean(axis=1)
    names = tuple("SACR" if name == "LPSI" else name for name in whole.names)
    clip = dataclasses.replace(whole, positions=positions, names=names)
    clip = clip.select([name for name in names if name != "RPSI"])
    skeleton = skeleton_of(clip)
    assert skeleton.name == "plug_in_gait_sacrum"
    hips = ("L_hip", "R_hip")
    expected = marker_positions(whole, known()["plug_in_gait"], hips)
    np.testing.assert_allclose(marker_positions(clip, skeleton, hips), expected, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["cmu_joints", "lafan1", "xsens", "rigify", "smpl_short", "cc_base"]
)
@pytest.mark.parametrize("prefix", ["", "take1:", "Actor_"])
def test_case_punctuation_and_prefixes_do_not_count(name: str, prefix: str) -> None:
    skeleton = known()[name]
    names = [prefix + key.upper().replace("_", ".") for key in skeleton.keypoints]
    spelled = skeleton.of(names)
    assert spelled is not None and set(spelled.keypoints) == set(names)
    assert skeleton.of(names[1:]) is None


def test_the_markers_own_names_come_first() -> None:
    assert skeleton_of(PERSON, ("LeftFoot", "RightFoot")).name == "markers"
    with pytest.raises(InputError, match=r"kind 'cmu_joints', .* the robot has base, LF_shoulder"):
        skeleton_of(PERSON, QUADRUPED_MARKERS)


def test_a_skeletons_file_is_used(tmp_path: Path) -> None:
    """The hip a third of the way up to the spine."""
    path, robot = tmp_path / "mine.yaml", robots.load("op3")
    markers = {name: next(iter(keys)) for name, keys in known()["cmu_joints"].markers.items()}
    content = {"markers": markers | {"chest": {"Neck": 0.75, "Spine1": 0.25}}, "guesses": ["none"]}
    path.write_text(yaml.safe_dump(content))
    chosen = skeleton_of(PERSON, tuple(robot.markers), str(path))
    assert chosen.markers["chest"] == {"Neck": 0.75, "Spine1": 0.25}
    numbered = renamed(PERSON, lambda name: f"x{PERSON.names.index(name):02}")
    message = r"skeleton '.*mine.yaml' needs .*LeftArm.*; clip 'person'"
    refusal(message, skeleton_of, numbered, chosen=str(path))
    with pytest.raises(InputError, match=r"no skeleton 'mime'; there are: bandai_namco, .*a file"):
        skeleton_of(PERSON, chosen="mime")
    assert retarget(PERSON, robot, skeleton=str(path)).quality["rms_marker_m"] < 0.04


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "a skeleton's file holds markers"),
        ("markers: {}", "a skeleton's file holds markers"),
        ("markers: {L_hip: {a: 0.5, b: 0.4}}", "marker 'L_hip' must be a keypoint, or .* sum to 1"),
        ("markers: {L_hip: {a: half}}", "marker 'L_hip' must be"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    refusal(f"bad.yaml: {message}", read_skeleton, path)


def test_inspect_writes_what_retarget_reads(tmp_path: Path) -> None:
    path = tmp_path / "skeleton.yaml"
    skeleton = known()["dog"]
    markers = {k: dict(v) if len(v) > 1 else next(iter(v)) for k, v in skeleton.markers.items()}
    path.write_text(skeleton_file({"path": "a.bvh", "skeleton": "dog", "markers": markers}))
    assert read_skeleton(path).markers == skeleton.markers
    with pytest.raises(InputError, match=r"a.bvh: no skeleton to write: it fits none"):
        skeleton_file({"path": "a.bvh", "skeleton": "it fits none"})


def test_a_person_and_a_dog_raise_no_doubt() -> None:
    assert doubts_of(PERSON) == doubts_of(DOG) == []
    assert doubts_of(dog_gait("walk", speed_mps=-0.4, duration_s=3.0)) == []


@pytest.mark.parametrize(
    ("clip", "doubt"),
    [
        # a person of 1.7 m in inches read as centimetres, and in CMU's unit of 1/0.45 inch
        (
            scaled(PERSON, 1.0 / 2.54),
            "a person of 0.67 m .units. scale= should be 2.54 times larger",
        ),
        (
            scaled(PERSON, 0.45 / 2.54),
            "a person of 0.3 m .units. scale= should be 5.64 times larger",
        ),
        (scaled(PERSON, 1.6), "a person of 2.7 m .units"),
        (scaled(DOG, 0.3), "is 0.16 m high at the shoulder, an animal of four legs .units"),
        (mirrored(PERSON), "left and right are swapped .mirrored"),
        (mirrored(DOG), "left and right are swapped .mirrored"),
    ],
)
def test_a_misread_body_is_doubted(clip: Clip, doubt: str) -> None:
    [said] = doubts_of(clip)
    assert re.search(doubt, said), said
    assert misread(clip)


def test_legs_of_two_lengths_and_a_foot_in_the_air() -> None:
    places = PERSON.positions.copy()
    left = [PERSON.index(f"Left{part}") for part in ("Leg", "Foot", "ToeBase", "ToeBase_end")]
    places[:, left, 2] += 0.3
    said = " ".join(
        body_doubts(dataclasses.replace(PERSON, positions=places), known()["cmu_joints"])
    )
    assert "m from left hip to foot" in said and "has L_foot at least 0.35 m above" in said
