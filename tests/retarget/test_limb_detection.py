"""Unknown skeletons, generated: detected, or refused as ambiguous."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import pytest

from mocap_data.clip import Clip
from mocap_data.synthetic import dog_gait
from retarget.limb_detection import forward_votes, side_of
from retarget.skeletons import Skeleton, detect_skeleton, find_skeleton, shipped_skeletons
from tests.refusals import refusal
from tests.retarget.bodies import (
    grown,
    mirrored,
    numbered,
    person,
    renamed,
    shuffled,
    split,
    without,
)

PERSON = person()
DOG = dog_gait("walk", duration_s=4.0)
OF_PERSON = shipped_skeletons()["cmu_joints"]
OF_DOG = shipped_skeletons()["dog"]
# dogs' legs as other riggers call them
LABRADOR = {
    "Arm": "LegUpper",
    "ForeArm": "LegLower",
    "Hand": "LegAnkle",
    "Hand_end": "LegToe",
    "UpLeg": "HindUpper",
    "Leg": "HindLower",
    "Foot": "HindAnkle",
    "Foot_end": "HindToe",
}


SIDES = ("Left", "Right")


def prefixed(name: str) -> str:
    return f"mixamorig:{name}"


def labrador(name: str) -> str:
    side = next((side for side in ("Left", "Right") if name.startswith(side)), "")
    part = name.removeprefix(side)
    return f"b_{side}{LABRADOR.get(part, part)}"


def short(name: str) -> str:
    """lUpLeg for LeftUpLeg."""
    return re.sub("^(Left|Right)", lambda side: side[0][0].lower(), name)


def helped(clip: Clip) -> Clip:
    """A root of the scene, footsteps, targets of inverse kinematics, armour: helper bones first."""
    still = np.zeros_like(clip.positions[:, 0])
    foot = "LeftFoot_end" if "LeftFoot_end" in clip.names else "LeftFoot"
    added = {
        "Armature": ("", still),
        "b_footsteps": ("", still + [1.0, 0.0, 0.0]),
        "ik_foot_l": (foot, np.array([0.0, 0.02, 0.0])),
        "ArmorShoulderL": ("LeftShoulder", np.array([0.0, 0.1, 0.3])),
        "ArmorShoulderR": ("RightShoulder", np.array([0.0, -0.1, 0.3])),
        "cape_end": ("Spine1", np.array([-0.5, 0.0, -0.9])),
    }
    return grown(clip, added, first=True)


def twisted(clip: Clip) -> Clip:
    """Twist bones in all upper limbs."""
    for side in ("Left", "Right"):
        for child in ("ForeArm", "Hand", "Leg"):
            clip = split(clip, side + child, f"{side}{child}Twist")
    return clip


def spined(clip: Clip) -> Clip:
    """A spine, neck (and tail) of more bones."""
    for child in ("Spine1", "Neck", "Head", *(["Tail1"] if "Tail1" in clip.names else [])):
        clip = split(split(clip, child, f"{child}_a"), child, f"{child}_b")
    return clip


def toed(clip: Clip) -> Clip:
    """Claws that hang from each paw in the air, a bone longer than the paw: no soles."""
    ends = [name for name in clip.names if name.endswith(("Hand_end", "Foot_end"))]
    return grown(clip, {f"{end}_fur": (end, np.array([-0.05, 0.0, 0.09])) for end in ends})


def swinging(clip: Clip) -> Clip:
    """A bone beyond each paw that swings about it, and a tail: both below the floor at times."""
    angle = 0.25 * np.arange(clip.num_frames)[:, None] + np.arange(4)
    swing = np.stack([np.cos(angle), np.zeros_like(angle), np.sin(angle)], axis=-1)
    ends = [name for name in clip.names if name.endswith(("Hand_end", "Foot_end"))]
    tail = np.array([-0.1, 0.0, -0.4]) + 0.2 * swing[:, 0]
    nubs = {f"{end}_nub": (end, 0.06 * swing[:, i]) for i, end in enumerate(ends)}
    return grown(clip, {**nubs, "Tail_nub": ("Tail1", tail)})


def still(clip: Clip) -> Clip:
    return dataclasses.replace(clip, positions=np.repeat(clip.positions[:1], 60, axis=0))


def turned(clip: Clip) -> Clip:
    """Facing the other way, elsewhere."""
    return dataclasses.replace(
        clip, positions=clip.positions * [-1.0, -1.0, 1.0] + [3.0, -2.0, 0.1]
    )


SAME: dict[str, Callable[[Clip], Clip]] = {
    "plain": lambda clip: clip,
    "without names": numbered,
    "prefix": lambda clip: renamed(clip, prefixed),
    "short sides": lambda clip: renamed(clip, short),
    "helper bones": helped,
    "twist bones": twisted,
    "twist bones without names": lambda clip: numbered(twisted(clip)),
    "one pose": lambda clip: still(clip),
    "named as control": lambda clip: renamed(clip, lambda name: f"{name}_ctrl"),
    "long spine": spined,
    "turned": turned,
    "another order": shuffled,
}
DOGS: dict[str, Callable[[Clip], Clip]] = {
    "labrador": lambda clip: renamed(helped(clip), labrador),
    "soles": toed,
    "swinging ends": swinging,
}


def expected(skeleton: Skeleton, before: Clip, after: Clip) -> Skeleton:
    """The expected skeleton in the changed clip's names: keypoints keep their index, or their
    names."""
    if set(before.names) - set(after.names) and "b_Hips" not in after.names:
        new = dict(zip(before.names, after.names[: len(before.names)], strict=True))
    else:
        change = labrador if "b_Hips" in after.names else str
        new = {name: change(name) for name in before.names}
    return dataclasses.replace(
        skeleton,
        markers={
            marker: {new[key]: share for key, share in weights.items()}
            for marker, weights in skeleton.markers.items()
        },
    )


@pytest.mark.parametrize("change", SAME)
def test_a_person_is_detected(change: str) -> None:
    clip = SAME[change](PERSON)
    markers = dict(detect_skeleton([clip]).markers)
    truth = dict(expected(OF_PERSON, PERSON, clip).markers)
    if change == "long spine":
        # a vertebra of the neck that is as near to the shoulders as its first
        assert set(markers.pop("chest")) <= {"Neck", "Neck_b"}
        truth.pop("chest")
    assert markers == truth


@pytest.mark.parametrize("change", [*SAME, *DOGS])
def test_a_dog_is_detected(change: str) -> None:
    clip = (SAME | DOGS)[change](DOG)
    assert detect_skeleton([clip]).markers == expected(OF_DOG, DOG, clip).markers


def test_a_person_without_toes_is_no_dog() -> None:
    """By its names it could be one: hands and feet have ends, and nothing is a tail."""
    clip = renamed(without(PERSON, "ToeBase"), lambda name: name.replace("ToeBase_end", "Foot_end"))
    assert OF_DOG.matched(clip.names) is not None
    assert find_skeleton(clip).name == "perception_neuron"
    assert "LeftFoot_end" in detect_skeleton([clip]).markers["L_toe"]
    assert find_skeleton(DOG).name == "dog"
    tailless = DOG.select([name for name in DOG.names if "Tail" not in name])
    assert find_skeleton(tailless).name == "dog"


NAMINGS: dict[str, Callable[[str, str], str]] = {
    "L_Leg": lambda side, part: f"{side[0]}_{part}",
    "Leg_l": lambda side, part: f"{part}_{side[0].lower()}",
    "LegGauche": lambda side, part: part + {"Left": "Gauche", "Right": "Droite"}[side],
    "links_Leg": lambda side, part: {"Left": "links_", "Right": "rechts_"}[side] + part,
    "xLLeg": lambda side, part: f"x{side[0]}{part}",
    "L_Leg_D": lambda side, part: f"{side[0]}_{part}_D",
}


@pytest.mark.parametrize("clip", [PERSON, DOG], ids=["person", "dog"])
@pytest.mark.parametrize("naming", NAMINGS)
def test_sides_by_names_and_movement(naming: str, clip: Clip) -> None:
    """In any spelling; where they contradict it, both are named."""

    def spelled(name: str) -> str:
        side = next((side for side in SIDES if name.startswith(side)), "")
        return NAMINGS[naming](side, name.removeprefix(side)) if side else name

    right = renamed(clip, spelled)
    markers = detect_skeleton([right]).markers
    for name, weights in detect_skeleton([clip]).markers.items():
        assert markers[name] == {spelled(key): share for key, share in weights.items()}
    assert detect_skeleton([right]).guesses == ()
    # the same in a mirror: its left is called right
    refusal("left and right are swapped: .* is on its left", detect_skeleton, [mirrored(right)])


def test_names_without_sides_are_a_guess() -> None:
    assert detect_skeleton([PERSON]).guesses == ()
    guesses = detect_skeleton([numbered(PERSON)]).guesses
    assert guesses == ("'j12' is left and 'j22' right", "'j07' is left and 'j17' right")


def grazing(clip: Clip) -> Clip:
    """The dog's head lowered below its tail while it walks."""
    places = clip.positions.copy()
    head = [clip.index(name) for name in ("Head", "Head_end")]
    places[:, head, 2] -= 0.5
    return dataclasses.replace(clip, positions=places)


@pytest.mark.parametrize(
    ("clip", "key"),
    [
        (mirrored(PERSON), "left and right"),
        (dataclasses.replace(DOG, parents=None), "hierarchy"),
        (without(PERSON, "Arm", "Hand", "Hand_end", "Shoulder"), "two"),
        (numbered(grazing(DOG)), "opposite directions"),
        (dataclasses.replace(PERSON, positions=PERSON.positions[..., [2, 1, 0]]), "up="),
    ],
)
def test_ambiguous_skeletons_are_refused(clip: Clip, key: str) -> None:
    refusal(f"(?s)unknown skeleton: .*({key}).*skeleton=FILE", detect_skeleton, [clip])


def test_another_clip_of_the_subject_decides() -> None:
    """A mirrored clip, which is longer, and a good one."""
    assert detect_skeleton([mirrored(PERSON), PERSON.crop(0, 120)]).markers == OF_PERSON.markers


def test_knees_and_toes_vote_by_hand() -> None:
    """Hip, knee and ankle one above the other, the knee 0.1 m ahead, the toe 0.2 m: of the thigh's
    0.51 m 0.3 / (4 * 0.51), each leg."""
    leg = np.array([[[0.0, 0.0, 1.0], [0.1, 0.0, 0.5], [0.0, 0.0, 0.0], [0.2, 0.0, 0.0]]])
    left = np.array([[0.0, 0.3, 0.0]])
    share = 0.3 / (4.0 * np.hypot(0.1, 0.5))
    assert forward_votes(left, [leg, leg]) == pytest.approx(2.0 * share)
    assert forward_votes(-left, [leg]) == pytest.approx(-share)


def test_the_side_of_a_name_by_its_words_or_its_twin() -> None:
    names = {"LELB", "RELB", "CLAV", "Knee_g", "Knee_d", "right hip", "Leg_D_L", "Head_D"}
    sides = {name: side_of(name, names) for name in names}
    assert sides == {
        "LELB": "L",
        "RELB": "R",
        "CLAV": "",
        "Knee_g": "L",
        "Knee_d": "R",
        "right hip": "R",
        "Leg_D_L": "L",
        "Head_D": "",
    }
