"""Skeletons: a robot's markers as weighted means of a recording's keypoints.

A skeleton is read from a file (skeleton=FILE, as `npmp inspect` writes it), matched by the
keypoints' names (the files in `retarget/skeleton_files`, which skeleton=NAME selects), or detected
by shape and movement (`retarget.limb_detection`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from mocap_data.arrays import Array
from mocap_data.clip import Clip
from mocap_data.errors import InputError, check_available
from mocap_data.safe_yaml import read_yaml
from npmp.robots import check
from retarget.limb_detection import Limbs, detect_limbs, joints_of, words_of

QUADRUPED_MARKERS = check.QUADRUPED_MARKERS
HUMANOID_MARKERS = (
    *check.HUMANOID_MARKERS,
    *(f"{side}_{part}" for part in ("toe", "heel", "elbow", "hand") for side in "LR"),
)
# clips of a subject that are tried
_TRIES = 8
_FILES = Path(__file__).parent / "skeleton_files"


@dataclass(frozen=True)
class Skeleton:
    """`markers[name]` maps keypoint names to weights that sum to 1."""

    name: str
    markers: Mapping[str, Mapping[str, float]]
    # ambiguous assignments, a sentence each
    guesses: tuple[str, ...] = ()

    @property
    def keypoints(self) -> tuple[str, ...]:
        """All keypoints that the skeleton needs, each once, in order of first use."""
        return tuple(dict.fromkeys(key for weights in self.markers.values() for key in weights))

    def matched(self, names: Sequence[str]) -> Skeleton | None:
        """The skeleton in a clip's spelling of its keypoints; None where one is missing.

        Case, punctuation, a namespace ("mixamorig:") and a prefix of all names do not count.
        """
        if set(self.keypoints) <= set(names):
            return self
        keys = {key: plain_name(key) for key in self.keypoints}
        plain = [plain_name(name) for name in names]
        prefixes = (_prefix(plain), _prefix(list(keys.values())))
        for clip_prefix, prefix in ((0, 0), prefixes):
            both = zip(plain, names, strict=True)
            spelling = {name[clip_prefix:]: full for name, full in both if plain.count(name) == 1}
            spelled = {key: spelling.get(name[prefix:]) for key, name in keys.items()}
            if all(spelled.values()):
                markers = {
                    marker: {str(spelled[key]): share for key, share in weights.items()}
                    for marker, weights in self.markers.items()
                }
                return Skeleton(self.name, markers, self.guesses)
        return None


def plain_name(name: str) -> str:
    """A keypoint's letters and digits in lower case, without a namespace."""
    return re.sub(r"[\W_]", "", name.rpartition(":")[2]).lower()


def _prefix(names: Sequence[str]) -> int:
    """The number of first letters that all names share."""
    ends = zip(min(names), max(names), strict=False)
    return next((i for i, (a, b) in enumerate(ends) if a != b), 0)


def read_skeleton(path: Path) -> Skeleton:
    """A skeleton file: {markers: {name: keypoint, or {keypoint: weight}}}; guesses are ignored.

    Raises:
      InputError: other contents, or weights that do not sum to 1.
    """
    content = read_yaml(path)
    entries = content.get("markers") if isinstance(content, Mapping) else None
    if not isinstance(entries, Mapping) or not entries:
        raise InputError(f"{path}: markers is missing, expected {{L_hip: LeftUpLeg, ...}}")
    markers: dict[str, dict[str, float]] = {}
    for name, entry in entries.items():
        weights = entry if isinstance(entry, Mapping) else {entry: 1.0}
        shares = list(weights.values())
        numbers = all(isinstance(share, (int, float)) for share in shares)
        if not (numbers and np.isclose(sum(shares), 1.0, atol=1e-3)):
            expected = "a keypoint, or keypoints with weights that sum to 1"
            raise InputError(f"{path}: marker {name!r} is {entry!r}, expected {expected}")
        markers[str(name)] = {str(key): float(share) for key, share in weights.items()}
    return Skeleton(path.stem, markers)


def marker_entries(skeleton: Skeleton) -> dict[str, str | dict[str, float]]:
    """The markers as in a skeleton file."""
    return {
        name: next(iter(weights)) if len(weights) == 1 else dict(weights)
        for name, weights in skeleton.markers.items()
    }


@cache
def shipped_skeletons() -> dict[str, Skeleton]:
    """The skeletons of `retarget/skeleton_files` by name."""
    return {path.stem: read_skeleton(path) for path in sorted(_FILES.glob("*.yaml"))}


def find_skeleton(
    clips: Clip | Sequence[Clip], markers: Sequence[str] = (), skeleton: str | None = None
) -> Skeleton:
    """The skeleton of clips of one subject, for a robot with these markers or for any.

    It is found by the markers' names, the keypoints' names, or movement, in this order. skeleton: a
    file or the name of a shipped one instead.

    Raises:
      InputError: a skeleton that fits neither the clips nor the robot, or an ambiguous one.
    """
    clips = [clips] if isinstance(clips, Clip) else clips
    clip = clips[0]
    if skeleton is not None:
        result = _selected(skeleton, clip)
    elif markers and set(markers) <= set(clip.names):
        result = Skeleton("markers", {name: {name: 1.0} for name in markers})
    else:
        result = _by_name(clips) or detect_skeleton(clips)
    if markers and not set(result.markers) & set(markers):
        has = ", ".join(result.markers)
        expected = ", ".join(markers)
        raise InputError(
            f"clip {clip.name!r}: skeleton {result.name!r} has markers {has}, the robot {expected}"
        )
    return result


def _selected(skeleton: str, clip: Clip) -> Skeleton:
    """The skeleton of a file or a name, in the clip's spelling."""
    path = Path(skeleton).expanduser()
    if path.is_file():
        requested = read_skeleton(path)
    else:
        check_available("skeleton or file", [skeleton], shipped_skeletons())
        requested = shipped_skeletons()[skeleton]
    matched = requested.matched(clip.names)
    if matched is None:
        plain = {plain_name(name) for name in clip.names}
        missing = [key for key in requested.keypoints if plain_name(key) not in plain]
        listed = ", ".join(missing or requested.keypoints)
        has = ", ".join(clip.names[:40])
        raise InputError(f"skeleton={skeleton}: clip {clip.name!r} lacks {listed}; it has {has}")
    return matched


def _by_name(clips: Sequence[Clip]) -> Skeleton | None:
    """The shipped skeleton with most markers whose keypoints the clips have.

    Names of a person without toes can be a dog's; then a tail decides, otherwise the movement.
    """
    names = clips[0].names
    candidates = (skeleton.matched(names) for skeleton in shipped_skeletons().values())
    matched = [skeleton for skeleton in candidates if skeleton is not None]
    if any("tail" in words_of(name) for name in names):
        matched = [skeleton for skeleton in matched if not is_person(skeleton)]
    elif len({is_person(skeleton) for skeleton in matched}) > 1:
        person = is_person(detect_skeleton(clips))
        matched = [skeleton for skeleton in matched if is_person(skeleton) == person]
    return max(matched, key=lambda skeleton: len(skeleton.markers), default=None)


def is_person(skeleton: Skeleton) -> bool:
    """Whether it has a person's legs."""
    return "L_hip" in skeleton.markers


def detect_skeleton(clips: Sequence[Clip]) -> Skeleton:
    """The skeleton of clips of one subject by shape and movement, of the longest unambiguous clip.

    Raises:
      InputError: as `detect_limbs`, of the longest clip.
    """
    errors = []
    for clip in sorted(clips, key=lambda clip: -clip.duration_s)[:_TRIES]:
        try:
            limbs = detect_limbs(clip)
            break
        except InputError as error:
            errors.append(error)
    else:
        raise errors[0]
    columns = _person(clip, limbs) if limbs.kind == "person" else _quadruped(clip, limbs)
    markers = {
        name: {clip.names[i]: share for i, share in weights.items()}
        for name, weights in columns.items()
    }
    return Skeleton("detected", markers, limbs.guesses)


def _person(clip: Clip, limbs: Limbs) -> dict[str, dict[int, float]]:
    """Hip, knee, ankle and ball of the foot; shoulder, elbow and wrist; and the trunk's keypoint
    nearest to the middle of the shoulders."""
    column: dict[str, int] = {}
    for letter, arm, leg in zip("LR", limbs.upper, limbs.lower, strict=True):
        for names, limb in ((("shoulder", "elbow", "hand"), arm), (("hip", "knee", "foot"), leg)):
            joints = joints_of(clip, clip.positions, limb)
            column |= {f"{letter}_{name}": i for name, i in zip(names, joints, strict=True)}
        beyond = leg.path[leg.path.index(column[f"{letter}_foot"]) + 1 :]
        if beyond:
            column[f"{letter}_toe"] = beyond[0]
    middle = clip.positions[:, [column["L_shoulder"], column["R_shoulder"]]].mean(axis=1)
    assert clip.parents is not None  # by `detect_limbs`
    # from the head down: no backpack, no face
    spine = [max(limbs.trunk, key=lambda n: clip.positions[:, n, 2].mean())]
    while clip.parents[spine[-1]] >= 0:
        spine.append(clip.parents[spine[-1]])
    away = np.linalg.norm(clip.positions[:, spine] - middle[:, None], axis=-1).mean(axis=0)
    column["chest"] = spine[int(np.argmin(away))]
    return {name: {column[name]: 1.0} for name in HUMANOID_MARKERS if name in column}


def _quadruped(clip: Clip, limbs: Limbs) -> dict[str, dict[int, float]]:
    """Shoulders, hips and soles; the trunk's centre is the mean of shoulders and hips, not a spine
    joint, which arches.

    A dog's shoulder blade glides on its ribs: the shoulder joint swings with the leg while the
    blade's upper end stays with the spine, as a robot's leg hangs from a rigid trunk (RMS marker
    error of five walks: 1.7 cm with the middle of the two, 1.5 cm with 0.8 of the blade's end). A
    fore leg with a bone more than the hind leg has a blade.
    """
    markers: dict[str, dict[int, float]] = {"base": {}}
    for letter, fore, hind in zip("LR", limbs.upper, limbs.lower, strict=True):
        # a bone of the pelvis is short beside the thigh
        top, knee = (np.linalg.norm(np.diff(clip.positions[:, hind.path[1:4]], axis=1), axis=-1)).T
        hip = 2 if len(hind.path) > 4 and np.median(top) < 0.6 * np.median(knee) else 1
        blade = len(fore.path) > len(hind.path) - hip + 1
        shoulder = {fore.path[1]: 0.8, fore.path[2]: 0.2} if blade else {fore.path[1]: 1.0}
        markers["base"] |= {i: 0.25 * share for i, share in shoulder.items()}
        markers["base"] |= {hind.path[hip]: 0.25}
        markers[f"{letter}F_shoulder"] = shoulder
        markers[f"{letter}H_hip"] = {hind.path[hip]: 1.0}
        markers[f"{letter}F_foot"] = {fore.sole: 1.0}
        markers[f"{letter}H_foot"] = {hind.sole: 1.0}
    return {name: markers[name] for name in QUADRUPED_MARKERS}


def marker_positions(clip: Clip, skeleton: Skeleton, names: Sequence[str]) -> Array:
    """Positions (T, M, 3) [m] of the markers `names` in the clip.

    Raises:
      InputError: a marker that the skeleton does not have.
    """
    weights = np.zeros((len(names), len(clip.names)))
    for row, name in enumerate(names):
        check_available(f"marker (skeleton {skeleton.name!r})", [name], skeleton.markers)
        for key, weight in skeleton.markers[name].items():
            weights[row, clip.index(key)] = weight
    used = np.flatnonzero(weights.any(axis=0))
    return np.einsum("mk,tkc->tmc", weights[:, used], clip.positions[:, used], optimize=True)
