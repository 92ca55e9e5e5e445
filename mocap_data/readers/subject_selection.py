"""Recordings of several subjects: the keypoints of each, and the subject to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mocap_data.arrays import Array
from mocap_data.errors import check_available

# least keypoints of a body, also as a share of the largest one's: props and helpers have fewer
_LEAST = 8
_SHARE = 0.5
# bodies that a message lists
_LISTED = 8
# prefixes that are not subjects
_SIDES = ("left", "right", "l", "r")


@dataclass(frozen=True)
class Keypoints:
    """The keypoints of a recording, or those of one of its subjects."""

    # (T, M, 3) in the file's units
    positions: Array
    names: Sequence[str]
    # as of `Clip`
    parents: Sequence[int] | None = None
    # about other subjects, a sentence each
    remarks: tuple[str, ...] = ()


def select_subject(path: Path, keypoints: Keypoints, subject: str | None) -> Keypoints:
    """The keypoints of one subject; None: the first body of several, else all keypoints.

    Raises:
      InputError: an unknown subject.
    """
    names = keypoints.names
    parents = keypoints.parents
    count = keypoints.positions.shape[1]
    # names of another number: `Clip` raises for them
    if len(names) != count or (parents is not None and len(parents) != count):
        return keypoints
    columns, remarks = subject_columns(path, names, parents, subject)
    if len(columns) == count:
        return keypoints
    if parents is not None:
        place = {column: i for i, column in enumerate(columns)}
        parents = [place.get(parents[column], -1) for column in columns]
    selected = [names[column] for column in columns]
    return Keypoints(keypoints.positions[:, columns], selected, parents, remarks)


def subject_columns(
    path: Path, names: Sequence[str], parents: Sequence[int] | None, subject: str | None
) -> tuple[list[int], tuple[str, ...]]:
    """The indices of a subject's keypoints, and a remark about others; as `select_subject`."""
    subjects = _subjects(names, parents)
    if subject is not None:
        check_available(
            f"subject (in {path}, subject=)", [subject], [name for name in subjects if name]
        )
        return subjects[subject], ()

    largest = max(map(len, subjects.values()), default=0)
    bodies = [
        name
        for name, columns in subjects.items()
        if len(columns) >= max(_LEAST, _SHARE * largest) and name
    ]
    if parents is None:
        bare = {name: {_bare(names[column]) for column in subjects[name]} for name in bodies}
        bodies = [
            name
            for name in bodies
            if any(_alike(bare[name], bare[other]) for other in bodies if other != name)
        ]
    if len(bodies) < 2:
        return list(range(len(names))), ()

    listed = [f"ROOT {name}" if parents is not None else name for name in bodies[:_LISTED]]
    more = ", ..." if len(bodies) > _LISTED else ""
    remark = (
        f"{len(bodies)} bodies ({', '.join(listed)}{more}): the first is used; "
        f"subject={bodies[1]} selects the second"
    )
    return subjects[bodies[0]], (remark,)


def _bare(name: str) -> str:
    """A keypoint's name without its prefix."""
    return name.rpartition(":")[2]


def _alike(a: set[str], b: set[str]) -> bool:
    """Whether two bodies share most of their keypoints' bare names."""
    return 2 * len(a & b) > min(len(a), len(b))


def _subjects(names: Sequence[str], parents: Sequence[int] | None) -> dict[str, list[int]]:
    """The indices of each subject's keypoints by its name: that of its root, without a hierarchy
    the prefix of "SUBJECT:MARKER" except sides ("left:hip"); "" for keypoints of no subject."""
    subjects: dict[str, list[int]] = {}
    if parents is None:
        for column, name in enumerate(names):
            prefixes = [part for part in name.split(":")[:-1] if part.lower() not in _SIDES]
            subjects.setdefault(":".join(prefixes), []).append(column)
        return subjects
    for column in range(len(names)):
        root = _root_of(column, parents)
        label = "" if root is None else _numbered(names[root], names[:root])
        subjects.setdefault(label, []).append(column)
    return subjects


def _root_of(column: int, parents: Sequence[int]) -> int | None:
    """The root above a keypoint; None for a cycle of parents."""
    for _ in parents:
        if parents[column] < 0:
            return column
        if parents[column] >= len(parents):
            return None
        column = parents[column]
    return None


def _numbered(name: str, before: Sequence[str]) -> str:
    """A root's name; numbered where earlier roots have the same ("Hips", "Hips2")."""
    same = sum(other == name for other in before)
    return f"{name}{same + 1}" if same else name
