"""Limb detection in an unknown skeleton, by its hierarchy, bone lengths and movement.

A limb is one of two chains of keypoints that leave the trunk at one joint and are equally long. Two
pairs of limbs make a person or a four-legged animal, by the trunk's inclination and the contacts
with the floor. Names only decide sides and ends that movement does not determine; contradictions
are an error. Shapes: T frames, M keypoints. World frame, Z up.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mocap_data.arrays import Array, unit
from mocap_data.clip import Clip
from mocap_data.errors import InputError

UP = np.array([0.0, 0.0, 1.0])
# frames that are used
_FRAMES = 400
# share of the body's size below which keypoints are merged, and change of length above which bones
# are ignored
_SAME = 0.004
_STRETCH = 0.15
# greatest difference of twins' bones, as a share of the limb; least length of a limb, as a share of
# the longest pair
_ALIKE = 0.12
_SHORTEST = 0.35
# [rad] a joint that bends less, and less far from straight, is a twist bone
_RIGID = np.deg2rad(2.0)
_STRAIGHT = np.deg2rad(10.0)
# greatest ratio of an upper and a lower arm or leg; least share of the limb that they make
_RATIO = 1.7
_SHARE = 0.5
# a standing limb is nearer to the floor [body sizes], in more of the frames
_NEAR = 0.08
_OFTEN = 0.25
# keypoints as low as the lowest of a foot [body sizes]
_SOLE = 0.015
# the foot at a limb's end [limb lengths]; factor of its slowest keypoint's speed for resting ones
_FOOT = 0.3
_RESTS = 2.0
# cosine between the vertical and the trunk of a body that is upright
_UPRIGHT = 0.6
# [m/s] above it the direction of travel counts
_TRAVELS = 0.2
# [m/s] on four limbs a person is slower
_CRAWLS = 0.4
_HELPERS = {
    *("ik", "target", "pole", "footstep", "footsteps", "ctrl", "control", "effector", "camera"),
    *("prop", "armor", "armour", "skirt", "cape", "cloth", "hair", "weapon", "helper", "jiggle"),
}
_FORE = {"fore", "front", "arm", "forearm", "shoulder", "clav", "clavicle", "scapula", "hand"}
_HIND = {"hind", "rear", "thigh", "hip", "pelvis", "foot", "femur", "tibia"}
_TWISTS = {"twist", "roll"}
_ENDS = {"hand", "wrist", "foot", "ankle"}
_ANIMAL = {"tail", "paw", "hind", "hock"}
# English, French, German, Spanish, Italian; "d" is droite or destra
_LEFT = ("left", "l", "lft", "lt", "gauche", "g", "links", "izquierda", "izquierdo", "izq")
_RIGHT = ("right", "r", "rgt", "rt", "droite", "droit", "d", "rechts", "derecha", "derecho")
_SIDES = {
    **dict.fromkeys((*_LEFT, "sinistra", "sinistro", "sx"), "L"),
    **dict.fromkeys((*_RIGHT, "der", "dcha", "destra", "destro", "dx"), "R"),
}
_TWIN_LETTERS = str.maketrans("LRlrGDgd", "RLrlDGdg")


def words_of(name: str) -> list[str]:
    """The words of a keypoint's name in lower case, without a namespace: "a:LeftUpLeg"."""
    bare = name.rpartition(":")[2]
    return [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", bare)]


def sides_of(a: str, b: str) -> tuple[str, str]:
    """The sides, "L" or "R", in the names of two twins; ("", "") for none."""
    words = [set(words_of(name)) for name in (a, b)]
    # no sides: the "D" of "L_Thigh_D" and "R_Thigh_D"
    shared = words[0] & words[1]
    candidates = [{_SIDES[word] for word in name - shared if word in _SIDES} for name in words]
    if not any(candidates) and len(a) == len(b):
        # they differ in one letter: "lfemur" and "rfemur", "FL_foot" and "FR_foot"
        letters = [pair for pair in zip(a, b, strict=True) if pair[0] != pair[1]]
        if len(letters) == 1:
            candidates = [{letter.upper()} & {"L", "R"} for letter in letters[0]]
    sides = tuple(side.pop() if len(side) == 1 else "" for side in candidates)
    return (sides[0], sides[1]) if set(sides) == {"L", "R"} else ("", "")


def side_of(name: str, names: Collection[str]) -> str:
    """The side, "L" or "R", in a name: of a word, or of a letter in which a twin among the names
    differs; "" for none."""
    # "d" and "g" are ambiguous: their twins decide
    words = {_SIDES[word] for word in words_of(name) if word in _SIDES and word not in "dg"}
    if len(words) == 1:
        return words.pop()
    for i, letter in enumerate(name):
        twin = letter.translate(_TWIN_LETTERS)
        if twin != letter and f"{name[:i]}{twin}{name[i + 1 :]}" in names:
            return _SIDES[letter.lower()]
    return ""


@dataclass(frozen=True)
class Chain:
    """A chain of keypoints from the trunk to its end."""

    # keypoints from the trunk's joint outwards
    path: tuple[int, ...]
    # all keypoints below the first of the path
    members: tuple[int, ...]
    # the member that rests on the floor
    sole: int


@dataclass(frozen=True)
class Limbs:
    """Two pairs of limbs, (left, right) each."""

    # "person" or "quadruped"
    kind: str
    # arms or fore legs
    upper: tuple[Chain, Chain]
    # legs or hind legs
    lower: tuple[Chain, Chain]
    # keypoints of no limb
    trunk: tuple[int, ...]
    # ambiguous assignments, a sentence each
    guesses: tuple[str, ...] = ()


@dataclass
class _Tree:
    """Keypoints that are joined by bones; those at one place are one."""

    clip: Clip
    # (T, M, 3) [m] some frames of it
    positions: Array
    size: float
    children: dict[int, list[int]] = field(default_factory=dict)
    root: int = 0
    lengths: dict[tuple[int, int], float] = field(default_factory=dict)

    def length(self, a: int, b: int) -> float:
        if (a, b) not in self.lengths:
            bone = self.positions[:, a] - self.positions[:, b]
            self.lengths[a, b] = float(np.median(np.linalg.norm(bone, axis=-1)))
        return self.lengths[a, b]

    def below(self, node: int) -> list[int]:
        """The subtree of a node."""
        return [node, *(n for child in self.children.get(node, []) for n in self.below(child))]

    def chain(self, node: int) -> list[int]:
        """The longest path down from a node."""
        ways = [self.chain(child) for child in self.children.get(node, [])]
        return [node, *max(ways, key=lambda way: self.reach(node, way), default=[])]

    def reach(self, node: int, way: Sequence[int]) -> float:
        return sum(self.length(a, b) for a, b in itertools.pairwise([node, *way]))


def detect_limbs(clip: Clip) -> Limbs:
    """The limbs of a clip's skeleton.

    Raises:
      InputError: other than two pairs of limbs, or an ambiguous skeleton.
    """
    tree = _tree_of(clip)
    first, second = _two_pairs(tree)
    guesses: list[str] = []
    kind, upper, lower = _kind(tree, first, second)
    if kind == "quadruped":
        upper, lower = _ends(tree, upper, lower)
        ahead = _mean(tree, upper) - _mean(tree, lower)
    else:
        ahead = _facing(tree, upper, lower)
    sides = [_sides(tree, pair, ahead, guesses) for pair in (upper, lower)]
    in_limbs = {n for pair in sides for limb in pair for n in limb.members}
    trunk = tuple(n for n in tree.below(tree.root) if n not in in_limbs)
    return Limbs(kind, sides[0], sides[1], trunk, tuple(dict.fromkeys(guesses)))


def _tree_of(clip: Clip) -> _Tree:
    """The largest set of keypoints connected by bones of constant length."""
    positions = clip.positions[:: max(1, clip.num_frames // _FRAMES)]
    words = [frozenset(words_of(name)) for name in clip.names]
    # a word that all names share marks no helper
    helper_words = _HELPERS - frozenset.intersection(*words)
    helpers = [bool(helper_words & name_words) for name_words in words]
    parents = list(clip.parents or ())
    keypoints = [i for i, helper in enumerate(helpers) if not helper]
    if len(keypoints) < 8 or len(positions) < 2:
        few = f"{len(keypoints)} keypoints in {len(positions)} frames"
        raise _ambiguous(clip, f"{few}, expected at least 8 in 2")
    size = float(np.median(np.linalg.norm(np.ptp(positions[:, keypoints], axis=1), axis=-1)))
    if not parents or max(parents) < 0:
        raise _ambiguous(clip, "the file has no hierarchy of keypoints")
    same = list(range(len(parents)))
    bodies = list[int]()
    below: dict[int, list[int]] = {}
    for node in _outwards(parents):
        parent = parents[node]
        if helpers[node]:
            continue
        if parent < 0 or helpers[parent]:
            bodies.append(node)
            continue
        lengths = np.linalg.norm(positions[:, node] - positions[:, parent], axis=-1)
        low, middle, high = np.percentile(lengths, (5.0, 50.0, 95.0))
        if high - low > _STRETCH * size:
            bodies.append(node)
        elif middle < _SAME * size:
            same[node] = same[parent]
        else:
            below.setdefault(same[parent], []).append(node)
    tree = _Tree(clip, positions, size, below)
    tree.root = max(bodies, key=lambda body: len(tree.below(body)))
    return tree


def _outwards(parents: Sequence[int]) -> list[int]:
    """Keypoints in an order in which parents come before their children."""
    order: list[int] = []
    level = [i for i, parent in enumerate(parents) if parent < 0]
    while level:
        order += level
        level = [i for i, parent in enumerate(parents) if parent in set(level)]
    return order


Pair = tuple[Chain, Chain]


def _two_pairs(tree: _Tree) -> tuple[Pair, Pair]:
    """The two longest disjoint pairs of twins; among equally long pairs the most similar."""
    candidates: list[tuple[float, float, Pair]] = []
    for node in tree.below(tree.root):
        for a, b in itertools.combinations(tree.children.get(node, []), 2):
            if (difference := _difference(tree, node, a, b)) < _ALIKE:
                pair = _twins(_limb(tree, node, a), _limb(tree, node, b))
                candidates.append((-tree.reach(node, tree.chain(a)), difference, pair))
    candidates.sort(key=lambda entry: entry[:2])
    chosen: list[Pair] = []
    for reach, _, pair in candidates:
        taken = {n for other in chosen for limb in other for n in limb.members}
        if not taken & {limb.path[1] for limb in pair} and reach < _SHORTEST * candidates[0][0]:
            chosen.append(pair)
    if len(chosen) != 2:
        has = ", ".join(tree.clip.names[pair[0].path[1]] for pair in chosen) or "none"
        raise _ambiguous(tree.clip, f"{len(chosen)} pairs of equal limbs, expected two: {has}")
    return chosen[0], chosen[1]


def _limb(tree: _Tree, node: int, first: int) -> Chain:
    """The limb below a joint; its sole moves least of what is lowest of what rests at its end."""
    path = [node, *tree.chain(first)]
    left = [tree.reach(at, path[i + 1 :]) for i, at in enumerate(path)]
    foot = tree.below(next(at for at, way in zip(path, left) if way <= _FOOT * left[0]))
    moves = np.linalg.norm(np.diff(tree.positions[:, foot], axis=0), axis=-1)
    slow = np.percentile(moves, 30.0, axis=0)
    # not the end of a bone that swings about a paw that stands
    rests = slow <= _RESTS * slow.min() + 1e-6
    heights = np.where(rests, tree.positions[:-1, foot, 2], np.inf)
    lowest = heights.min(axis=1)
    stands = lowest <= np.percentile(lowest, 30.0)
    low = np.median(heights[stands], axis=0)
    speed = moves[stands].mean(axis=0)
    sole = foot[int(np.argmin(np.where(low < low.min() + _SOLE * tree.size, speed, np.inf)))]
    return Chain(tuple(path), tuple(tree.below(first)), sole)


def _twins(a: Chain, b: Chain) -> Pair:
    """Limbs with equal distances of soles from the trunk."""
    out = max(limb.path.index(limb.sole) if limb.sole in limb.path else 0 for limb in (a, b))
    return (replace(a, sole=a.path[out]), replace(b, sole=b.path[out])) if out else (a, b)


def _difference(tree: _Tree, node: int, a: int, b: int) -> float:
    """Difference of the bones of two chains, as a share of their length; inf: no twins."""
    ways = [node, *tree.chain(a)], [node, *tree.chain(b)]
    if len(ways[0]) != len(ways[1]) or len(ways[0]) < 3:
        return np.inf
    bones = np.array([[tree.length(p, q) for p, q in itertools.pairwise(way)] for way in ways])
    return float(np.abs(bones[0] - bones[1]).sum() / bones.mean(axis=0).sum())


def _mean(tree: _Tree, pair: Pair) -> Array:
    """(T, 3) [m] the middle between the first joints of two limbs."""
    return np.asarray(tree.positions[:, [limb.path[1] for limb in pair]].mean(axis=1))


def _kind(tree: _Tree, first: Pair, second: Pair) -> tuple[str, Pair, Pair]:
    """The kind of body, its upper and its lower limbs."""
    of = [[limb.sole for limb in pair] for pair in (first, second)]
    soles = [tree.positions[:, pair, 2].min(axis=1) for pair in of]
    # excludes bones of tails or toes that swing below them
    middle = np.median(tree.positions[:, tree.below(tree.root), 2], axis=1)
    floor = np.percentile(np.minimum(np.minimum(*soles), middle), 2.0)
    shares = [float((low < floor + _NEAR * tree.size).mean()) for low in soles]
    if shares[1] > shares[0]:
        first, second = second, first
        shares.reverse()
    if shares[0] < _OFTEN:
        raise _ambiguous(tree.clip, "no limb touches the floor (up=?)")
    trunk = _mean(tree, second) - _mean(tree, first)
    upright = float(np.median(trunk[:, 2] / np.linalg.norm(trunk, axis=-1)))
    if abs(upright) > _UPRIGHT:
        if min(shares) > 0.5:
            both = "an animal that sits, or a person with its hands on the floor"
            raise _ambiguous(tree.clip, f"ambiguous: {both}")
        # a person's arms are above its legs, even where hands are lower
        return ("person", second, first) if upright > 0.0 else ("person", first, second)
    if shares[1] > _OFTEN:
        words = {word for name in tree.clip.names for word in words_of(name)}
        fast = np.percentile(np.linalg.norm(_travel(tree), axis=-1), 90) > _CRAWLS
        if words & _ANIMAL or (fast and not words & {"thumb", "finger", "index"}):
            return "quadruped", second, first
        both = "a person on hands and feet, or a four-legged animal (another clip, where it walks?)"
        raise _ambiguous(tree.clip, f"ambiguous: {both}")
    raise _ambiguous(tree.clip, "its trunk lies and two of its limbs are off the floor (up=?)")


def _travel(tree: _Tree) -> Array:
    """(T - 1, 3) [m/s] horizontal velocity of the body, zero for small speeds."""
    stride = max(1, tree.clip.num_frames // _FRAMES)
    velocity = np.diff(tree.positions[:, tree.below(tree.root)].mean(axis=1), axis=0)
    velocity *= tree.clip.rate_hz / stride * (1.0 - UP)
    return np.asarray(velocity * (np.linalg.norm(velocity, axis=-1, keepdims=True) > _TRAVELS))


def _ends(tree: _Tree, upper: Pair, lower: Pair) -> tuple[Pair, Pair]:
    """The pairs of an animal as (fore, hind): by names, else by travel that the head's height does
    not contradict."""
    axis = unit((_mean(tree, upper) - _mean(tree, lower)) * (1.0 - UP))
    along = np.einsum("tc,tc->t", axis[:-1], _travel(tree))
    in_limbs = {n for pair in (upper, lower) for limb in pair for n in limb.members}
    free = [n for n in tree.below(tree.root) if n not in in_limbs]
    beyond = np.einsum("tnc,tc->n", tree.positions[:, free], axis)
    heights = tree.positions[:, free, 2].mean(axis=0)
    head = heights[int(np.argmax(beyond))]
    tail = heights[int(np.argmin(beyond))]
    scores = [_fore_words(tree, pair) for pair in (upper, lower)]
    by_name = np.sign(scores[0] - scores[1])
    goes = np.sign(along.sum()) * (np.abs(along).mean() > 0.5 * _TRAVELS)
    higher = np.sign(head - tail) * (abs(head - tail) > 0.1 * tree.size)
    # going backwards the head is behind; a high end may also be a tail
    if not by_name and (not goes or goes * higher < 0.0):
        one, other = (tree.clip.names[pair[0].path[1]] for pair in (upper, lower))
        reason = "its travel and its head have opposite directions" if goes else "it stands"
        raise _ambiguous(tree.clip, f"its fore legs could be {one!r} or {other!r}: {reason}")
    return (upper, lower) if (by_name or goes) > 0.0 else (lower, upper)


def _fore_words(tree: _Tree, pair: Pair) -> int:
    """Number of names of a pair with a word for fore legs, less those for hind legs."""
    words = [set(words_of(tree.clip.names[n])) for limb in pair for n in limb.members]
    return sum(bool(w & _FORE) for w in words) - sum(bool(w & _HIND) for w in words)


def _facing(tree: _Tree, upper: Pair, lower: Pair) -> Array:
    """(T, 3) the direction that a person faces, by toes, knees and travel."""
    across = _between(tree, upper) + _between(tree, lower)
    legs = []
    for limb in lower:
        hip, knee, ankle = joints_of(tree.clip, tree.positions, limb)
        # the ball of the foot, or its end; else the ankle, which has no vote
        toe = limb.path[min(limb.path.index(ankle) + 1, len(limb.path) - 1)]
        legs.append(tree.positions[:, [hip, knee, ankle, toe]])
    votes = forward_votes(across, legs)
    # 0.03 for walking ahead all the time, as much as knees
    way = unit(np.cross(across, UP))
    along = np.einsum("tc,tc->t", way[:-1], _travel(tree))
    votes += 0.03 * float(np.sign(along).mean())
    if abs(votes) < 0.01:
        raise _ambiguous(tree.clip, "front and back are not determined by toes, knees or travel")
    return np.asarray(way * np.sign(votes))


def forward_votes(across: Array, legs: Sequence[Array]) -> float:
    """Forward bend of knees and forward extent of toes, relative to the legs' length; negative:
    backwards.

    across: (T, 3) from a person's right to its left. legs: hips, knees, ankles and balls of the
      feet, (T, 4, 3) each.
    """
    way = unit(np.cross(across, UP))
    votes = 0.0
    for leg in legs:
        hip, knee, ankle, toe = np.moveaxis(leg, 1, 0)
        shin = unit(ankle - hip)
        bend = (knee - hip) - np.einsum("tc,tc->t", knee - hip, shin)[:, None] * shin
        length = float(np.linalg.norm(knee - hip, axis=-1).mean())
        votes += float(np.einsum("tc,tc->t", bend + toe - ankle, way).mean()) / (4.0 * length)
    return votes


def _between(tree: _Tree, pair: Pair) -> Array:
    return np.subtract(*(tree.positions[:, limb.path[1]] for limb in pair))


def _sides(tree: _Tree, pair: Pair, ahead: Array, guesses: list[str]) -> Pair:
    """A pair as (left, right) of the way ahead (T, 3)."""
    left = np.cross(UP, ahead)
    is_left = float(np.einsum("tc,tc->t", _between(tree, pair), left).mean()) > 0.0
    ordered = pair if is_left else (pair[1], pair[0])
    names = [tree.clip.names[limb.path[2]] for limb in ordered]
    sides = sides_of(names[0], names[1])
    if sides == ("R", "L"):
        raise _ambiguous(
            tree.clip,
            f"left and right are swapped: {names[0]!r} is on its left by toes, knees and travel "
            "(a mirrored recording? going backwards?)",
        )
    if not sides[0]:
        guesses.append(f"{names[0]!r} is left and {names[1]!r} right")
    return ordered


def joints_of(clip: Clip, positions: Array, limb: Chain) -> tuple[int, int, int]:
    """Start, middle and end of the two longest bones in a row that are about as long: hip, knee and
    ankle, or shoulder, elbow and wrist. Twist bones, which never bend, do not count, unless nothing
    bends: the clip may be a pose.

    Raises:
      InputError: where no two bones are an upper and a lower one.
    """
    names = clip.names
    path = [n for n in limb.path if not _TWISTS & set(words_of(names[n]))]
    joints = _two_bones(positions, _bending(names, positions, path)) or _two_bones(positions, path)
    if joints is None:
        listed = ", ".join(names[n] for n in limb.path)
        raise _ambiguous(clip, f"no two bones of {listed} are an upper and a lower arm or leg")
    return joints


def _two_bones(positions: Array, path: Sequence[int]) -> tuple[int, int, int] | None:
    lengths = np.median(np.linalg.norm(np.diff(positions[:, path], axis=1), axis=-1), axis=0)
    # the first bone is the trunk's, where there are more than two
    begin = int(len(lengths) > 2)
    pairs = [(*lengths[i : i + 2], i) for i in range(begin, len(lengths) - 1)]
    alike = [(a + b, i) for a, b, i in pairs if max(a, b) <= _RATIO * min(a, b)]
    reach, first = max(alike, default=(0.0, 0))
    enough = reach > 0.0 and reach >= _SHARE * lengths[begin:].sum()
    return (path[first], path[first + 1], path[first + 2]) if enough else None


def _bending(names: Sequence[str], positions: Array, path: Sequence[int]) -> list[int]:
    """A path without joints that stay straight, unless their name is that of an end."""
    kept = list(path[:2])
    for node, after in itertools.pairwise(path[2:]):
        inwards = unit(positions[:, node] - positions[:, kept[-1]])
        outwards = unit(positions[:, after] - positions[:, node])
        cosine = np.einsum("tc,tc->t", inwards, outwards)
        low, middle, high = np.percentile(np.arccos(np.clip(cosine, -1.0, 1.0)), (5, 50, 95))
        if _ENDS & set(words_of(names[node])) or high - low > _RIGID or middle > _STRAIGHT:
            kept.append(node)
    return [*kept, path[-1]]


def _ambiguous(clip: Clip, why: str) -> InputError:
    next_step = (
        "name its keypoints by skeleton=FILE; npmp inspect RECORDING out=skeleton.yaml writes a "
        "template"
    )
    return InputError(f"clip {clip.name!r} has an unknown skeleton: {why}; {next_step}")
