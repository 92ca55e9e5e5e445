"""A template of a skeleton file for keypoints of an unknown skeleton, guessed by their names."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from mocap_data.errors import printable
from retarget.limb_detection import side_of
from retarget.skeletons import HUMANOID_MARKERS, QUADRUPED_MARKERS, plain_name

# parts of a keypoint's name that hint at a marker, the strongest first
_PERSON = {
    "chest": ("clav", "c7", "cerv", "strn", "stern", "chest", "thorax", "neck", "spine"),
    "shoulder": ("acr", "sho", "shoulder", "upperarm"),
    "hip": ("hjc", "hip", "upleg", "thigh", "femur", "asi", "troc", "gtr"),
    "knee": ("kjc", "kne", "shin", "lowerleg", "leg"),
    "foot": ("ajc", "ank", "mal", "foot"),
    "toe": ("toe", "mt2", "meta"),
    "heel": ("hee", "cal"),
    "elbow": ("ejc", "elb", "forearm", "lowerarm"),
    "hand": ("wjc", "wri", "wra", "hand"),
}
_ANIMAL = {
    "base": ("back", "trunk", "spine", "sacr", "pelvis"),
    "F_shoulder": ("scap", "sho", "acr"),
    "H_hip": ("hip", "troc", "gtr", "thigh", "femur"),
    "F_foot": ("forepaw", "frontpaw", "forefoot", "frontfoot", "manus", "hand"),
    "H_foot": ("hindpaw", "rearpaw", "hindfoot", "rearfoot", "pes", "foot"),
}
_FOUR_LEGS = ("paw", "hind", "tail", "hock", "carp", "scap", "withers")


def skeleton_template(names: Sequence[str], why: str) -> str:
    """The text of a skeleton file to complete; `why`: the reason that no skeleton fits, a comment
    in it.

    Markers without a guess are comments. Sides are those of the names; `npmp inspect` and
    `npmp retarget` warn where the body is the other way round.
    """
    animal = any(word in plain_name(name) for name in names for word in _FOUR_LEGS)
    markers, parts = (QUADRUPED_MARKERS, _ANIMAL) if animal else (HUMANOID_MARKERS, _PERSON)
    listed = [_comment(", ".join(names[i : i + 10])) for i in range(0, len(names), 10)]
    lines = [
        "# A template, guessed by names: complete it, then set skeleton=FILE.",
        _comment(why),
        "# A marker is a keypoint, or keypoints with weights that sum to 1: {KEYPOINT: 0.5, ...}",
        "# Keypoints:",
        *listed,
        "markers:",
    ]
    sides = {name: side_of(name, set(names)) for name in names}
    free = list(names)
    for marker in markers:
        side = "" if marker in parts else marker[0]
        part = marker if marker in parts else marker[1:].removeprefix("_")
        guess = _guess([name for name in free if sides[name] == side], parts[part])
        if guess:
            free.remove(guess)
        line = yaml.safe_dump({marker: guess}, allow_unicode=True, width=1000).strip()
        lines.append(f"  {line}" if guess else f"  # {marker}:")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> str:
    return f"# {printable(' '.join(text.split()))}"


def _guess(names: Sequence[str], hints: Sequence[str]) -> str:
    """The first name that contains the strongest hint."""
    return next((name for hint in hints for name in names if hint in plain_name(name)), "")
