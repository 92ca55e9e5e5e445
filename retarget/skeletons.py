"""Which keypoints of a recorded skeleton make up which marker of a robot.

A marker's position is a weighted mean of keypoints. A skeleton comes from a file (skeleton=FILE, as
`npmp inspect` writes it), is known by its keypoints' names (the files in `retarget/known`, which
skeleton=NAME chooses), or is found by its shape and movement (`retarget.limbs`).
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
from mocap_data.errors import InputError, unknown
from mocap_data.safe_yaml import read_yaml
from npmp.robots import check
from retarget.limbs import Limbs, find_limbs, joints_of, words_of

QUADRUPED_MARKERS = check.QUADRUPED_MARKERS
HUMANOID_MARKERS = (
    *check.HUMANOID_MARKERS,
    *(f"{side}_{part}" for part in ("toe", "heel", "elbow", "hand") for side in "LR"),
)
# clips of a body that are looked at
_TRIES = 8
_KNOWN = Path(__file__).parent / "known"


@dataclass(frozen=True)
class Skeleton:
    """`markers[name]` maps keypoint names to weights that sum to 1."""

    name: str
    markers: Mapping[str, Mapping[str, float]]
    # what could be otherwise, a sentence each
    guesses: tuple[str, ...] = ()

    @property
    def keypoints(self) -> tuple[str, ...]:
        """All keypoints that the skeleton needs, each once, in order of first use."""
        return tuple(dict.fromkeys(key for weights in self.markers.values() for key in weights))

    def of(self, names: Sequence[str]) -> Skeleton | None:
        """The skeleton by a clip's own spelling of its keypoints; None where one is missing.

        Case, punctuation, a namespace ("mixamorig:") and a prefix of all names do not count.
        """
        if set(self.keypoints) <= set(names):
            return self
        own = {key: plain_name(key) for key in self.keypoints}
        plain = [plain_name(name) for name in names]
        for cut, own_cut in ((0, 0), (_prefix(plain), _prefix(list(own.values())))):
            both = zip(plain, names, strict=True)
            spelling = {name[cut:]: original for name, original in both if plain.count(name) == 1}
            spelled = {key: spelling.get(name[own_cut:]) for key, name in own.items()}
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
    """How many first letters all names share."""
    ends = zip(min(names), max(names), strict=False)
    return next((i for i, (a, b) in enumerate(ends) if a != b), 0)


def read_skeleton(path: Path) -> Skeleton:
    """A skeleton's file: {markers: {name: keypoint, or {keypoint: weight}}}; guesses do not count.

    Raises:
      InputError: for anything else, and weights that do not sum to 1.
    """
    content = read_yaml(path)
    entries = content.get("markers") if isinstance(content, Mapping) else None
    if not isinstance(entries, Mapping) or not entries:
        raise InputError(f"{path}: a skeleton's file holds markers: {{L_hip: LeftUpLeg, ...}}")
    markers: dict[str, dict[str, float]] = {}
    for name, entry in entries.items():
        weights = entry if isinstance(entry, Mapping) else {entry: 1.0}
        shares = list(weights.values())
        numbers = all(isinstance(share, (int, float)) for share in shares)
        if not (numbers and np.isclose(sum(shares), 1.0, atol=1e-3)):
            raise InputError(
                f"{path}: marker '{name}' must be a keypoint, or keypoints with weights that sum "
                f"to 1; it is {entry!r}"
            )
        markers[str(name)] = {str(key): float(share) for key, share in weights.items()}
    return Skeleton(path.stem, markers)


def described(skeleton: Skeleton) -> dict[str, str | dict[str, float]]:
    """The markers as a skeleton's file has them."""
    return {
        name: next(iter(weights)) if len(weights) == 1 else dict(weights)
        for name, weights in skeleton.markers.items()
    }


@cache
def known() -> dict[str, Skeleton]:
    """The known skeletons by name."""
    return {path.stem: read_skeleton(path) for path in sorted(_KNOWN.glob("*.yaml"))}


def skeleton_of(
    clips: Clip | Sequence[Clip], markers: Sequence[str] = (), chosen: str | None = None
) -> Skeleton:
    """The skeleton of clips of one body, for a robot with these markers or for any.

    The markers' own names come first, then what is known by name, then what is found. chosen: a
    file or the name of a known skeleton.

    Raises:
      InputError: where it does not fit the clips or the robot, or two readings are as likely.
    """
    clips = [clips] if isinstance(clips, Clip) else clips
    clip = clips[0]
    by_marker = Skeleton("markers", {name: {name: 1.0} for name in markers})
    if chosen is not None:
        skeleton = _chosen(chosen, clip)
    elif markers and set(markers) <= set(clip.names):
        skeleton = by_marker
    else:
        skeleton = _by_name(clips) or found(clips)
    if markers and not set(skeleton.markers) & set(markers):
        has = ", ".join(skeleton.markers)
        robot_has = ", ".join(markers)
        kind = f"of the kind '{skeleton.name}', which has the markers {has}"
        raise InputError(f"clip {clip.name!r} is {kind}; the robot has {robot_has}")
    return skeleton


def _chosen(chosen: str, clip: Clip) -> Skeleton:
    path = Path(chosen).expanduser()
    if not path.is_file() and chosen not in known():
        raise unknown("skeleton", chosen, [*known(), "or a file"])
    requested = read_skeleton(path) if path.is_file() else known()[chosen]
    skeleton = requested.of(clip.names)
    if skeleton is None:
        plain = {plain_name(name) for name in clip.names}
        missing = [
            key for key in requested.keypoints if plain_name(key) not in plain
        ] or requested.keypoints
        raise InputError(
            f"skeleton {chosen!r} needs {', '.join(missing)}; clip {clip.name!r} has "
            f"{', '.join(clip.names[:40])}"
        )
    return skeleton


def _by_name(clips: Sequence[Clip]) -> Skeleton | None:
    """The known skeleton with most markers whose keypoints the clips have.

    Names of a person without toes can be those of a dog: a tail decides, else its shape.
    """
    names = clips[0].names
    fitting = [s for s in (one.of(names) for one in known().values()) if s is not None]
    if any("tail" in words_of(name) for name in names):
        fitting = [skeleton for skeleton in fitting if not is_person(skeleton)]
    elif len({is_person(skeleton) for skeleton in fitting}) > 1:
        person = is_person(found(clips))
        fitting = [skeleton for skeleton in fitting if is_person(skeleton) == person]
    return max(fitting, key=lambda s: len(s.markers), default=None)


def is_person(skeleton: Skeleton) -> bool:
    """Whether it has a person's legs."""
    return "L_hip" in skeleton.markers


def found(clips: Sequence[Clip]) -> Skeleton:
    """The skeleton of clips of one body by its shape and movement, of the longest clip that tells.

    Raises:
      InputError: as `find_limbs`, of the longest.
    """
    errors = []
    for clip in sorted(clips, key=lambda one: -one.duration_s)[:_TRIES]:
        try:
            limbs = find_limbs(clip)
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
    return Skeleton("found", markers, limbs.guesses)


def _person(clip: Clip, limbs: Limbs) -> dict[str, dict[int, float]]:
    """Hip, knee, ankle and ball of the foot; shoulder, elbow and wrist; of the trunk the keypoint
    nearest to the middle of the shoulders."""
    one: dict[str, int] = {}
    for letter, arm, leg in zip("LR", limbs.upper, limbs.lower, strict=True):
        for names, limb in ((("shoulder", "elbow", "hand"), arm), (("hip", "knee", "foot"), leg)):
            joints = joints_of(clip, clip.positions, limb)
            one |= {f"{letter}_{name}": i for name, i in zip(names, joints, strict=True)}
        beyond = leg.path[leg.path.index(one[f"{letter}_foot"]) + 1 :]
        if beyond:
            one[f"{letter}_toe"] = beyond[0]
    middle = clip.positions[:, [one["L_shoulder"], one["R_shoulder"]]].mean(axis=1)
    assert clip.parents is not None  # limbs are found by them
    # from the head down: no backpack, no face
    column = [max(limbs.trunk, key=lambda n: clip.positions[:, n, 2].mean())]
    while clip.parents[column[-1]] >= 0:
        column.append(clip.parents[column[-1]])
    away = np.linalg.norm(clip.positions[:, column] - middle[:, None], axis=-1).mean(axis=0)
    one["chest"] = column[int(np.argmin(away))]
    return {name: {one[name]: 1.0} for name in HUMANOID_MARKERS if name in one}


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
      InputError: for a marker that the skeleton does not have.
    """
    weights = np.zeros((len(names), len(clip.names)))
    for row, name in enumerate(names):
        if name not in skeleton.markers:
            has = f"it has {', '.join(skeleton.markers)}"
            raise InputError(f"skeleton '{skeleton.name}' has no marker '{name}'; {has}")
        for key, weight in skeleton.markers[name].items():
            weights[row, clip.index(key)] = weight
    used = np.flatnonzero(weights.any(axis=0))
    return np.einsum("mk,tkc->tmc", weights[:, used], clip.positions[:, used], optimize=True)
