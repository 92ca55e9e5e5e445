"""Recordings of several subjects: the first is taken, subject= takes another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mocap_data
from tests.mocap_data.test_c3d import write
from tests.refusals import refusal

# joints of a chain, which with its End Site has eight keypoints
JOINTS = 7


def chain(root: str, x: float, joints: int = JOINTS, prefix: str = "") -> str:
    """A ROOT at (x, 0, 0) [cm] with joints above one another, 10 cm apart."""
    names = [root, *(f"{prefix}J{i}" for i in range(1, joints))]
    text = f"ROOT {names[0]}\n{{\nOFFSET {x} 0 0\nCHANNELS 1 Xposition\n"
    for name in names[1:]:
        text += f"JOINT {name}\n{{\nOFFSET 0 10 0\nCHANNELS 1 Xrotation\n"
    return text + "End Site\n{\nOFFSET 0 10 0\n}\n" + "}\n" * joints


def bvh(path: Path, *roots: str) -> Path:
    channels = "".join(roots).count("CHANNELS")
    row = " ".join(["0"] * channels)
    path.write_text(f"HIERARCHY\n{''.join(roots)}MOTION\nFrames: 1\nFrame Time: 0.01\n{row}\n")
    return path


def test_the_second_person_of_a_bvh_is_named(tmp_path: Path) -> None:
    prop = chain("Ball", 50, joints=1)
    path = bvh(tmp_path / "two.bvh", chain("Ann", 0, prefix="A"), prop, chain("Ben", 100))
    first = mocap_data.read(path)
    assert first.names == ("Ann", *(f"AJ{i}" for i in range(1, 7)), "AJ6_end")
    assert first.parents == (-1, *range(7))
    assert first.remarks == (
        "2 bodies (ROOT Ann, ROOT Ben): the first is used; subject=Ben selects the second",
    )
    second = mocap_data.read(path, subject="Ben")
    assert (second.names[0], second.parents, second.remarks) == ("Ben", first.parents, ())
    # of the hips replaced by the channel, 0; the seventh bone ends 70 cm above
    np.testing.assert_allclose(second.positions[0, -1], [0.0, 0.0, 0.7], atol=1e-12)
    assert mocap_data.read(path, subject="Ball").names == ("Ball", "Ball_end")
    refusal("subject=.*'Cas'", mocap_data.read, path, subject="Cas")


def test_two_people_of_the_same_names(tmp_path: Path) -> None:
    path = bvh(tmp_path / "two.bvh", chain("Hips", 0), chain("Hips", 100))
    assert "subject=Hips2 selects the second" in mocap_data.read(path).remarks[0]
    assert mocap_data.read(path, subject="Hips2").names == mocap_data.read(path).names


def test_a_person_with_a_prop_is_one_body(tmp_path: Path) -> None:
    path = bvh(tmp_path / "one.bvh", chain("Ann", 0, prefix="A"), chain("Ball", 50, joints=3))
    clip = mocap_data.read(path)
    assert (len(clip.names), clip.remarks) == (8 + 4, ())


@pytest.mark.parametrize("suffix", ["c3d", "csv", "npz"])
def test_prefixes_of_markers_are_subjects(suffix: str, tmp_path: Path) -> None:
    names = [f"{subject}:M{i}" for subject in ("Ann", "Ben") for i in range(8)] + ["Box:M0"]
    positions = 0.1 + np.arange(2 * 17 * 3).reshape(2, 17, 3) / 100.0
    path = tmp_path / f"two.{suffix}"
    if suffix == "c3d":
        write(path, positions, LABELS=names)
    elif suffix == "npz":
        np.savez(path, positions=positions, names=names, fps=10.0)
    else:
        header = ",".join(f"{name}_{axis}" for name in names for axis in "xyz")
        rows = "\n".join(",".join(map(str, row)) for row in positions.reshape(2, -1))
        path.write_text(f"{header}\n{rows}\n")
    options = {"up": "z"} if suffix == "c3d" else {"up": "z", "rate_hz": 10.0}
    first = mocap_data.read(path, **options)
    assert first.names == tuple(names[:8])
    message = "2 bodies (Ann, Ben): the first is used; subject=Ben selects the second"
    assert first.remarks == (message,)
    second = mocap_data.read(path, subject="Ben", **options)
    assert (second.names, second.remarks) == (tuple(names[8:16]), ())
    np.testing.assert_allclose(second.positions, positions[:, 8:16], atol=1e-6)


@pytest.mark.parametrize(("first", "second"), [("left", "right"), ("upper", "lower")])
def test_prefixes_of_one_body_are_no_subjects(first: str, second: str, tmp_path: Path) -> None:
    """Sides of one body share all bare names; its halves share none."""
    parts = {"left": "M", "right": "M", "upper": "U", "lower": "D"}
    names = [f"{prefix}:{parts[prefix]}{i}" for prefix in (first, second) for i in range(9)]
    path = tmp_path / "one.npz"
    np.savez(path, positions=np.ones((2, 18, 3)), names=names, fps=10.0)
    clip = mocap_data.read(path)
    assert (clip.names, clip.remarks) == (tuple(names), ())


def test_names_of_a_c3d_are_of_any_subject(tmp_path: Path) -> None:
    write(tmp_path / "a.c3d", np.ones((2, 2, 3)), LABELS=["Ann:M0", "Ben:M0"])
    options = {"names": ["Ben:M0"], "subject": "Ann"}
    refusal("subject=Ann", mocap_data.read, tmp_path / "a.c3d", **options)
