"""Readers on small files written here; recordings are in test_recordings.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

import mocap_data
from mocap_data import input_files
from mocap_data.readers import is_recording
from mocap_data.readers.common import DOG_NAMES, DOG_PARENTS, MissingOptions
from mocap_data.store import MotionSet, write_motions
from tests.refusals import refusal

BVH = """HIERARCHY
ROOT Hips
{
  OFFSET 100 100 100
  CHANNELS 6 Xposition Yposition Zposition Zrotation Xrotation Yrotation
  JOINT Head
  {
    OFFSET 10 0 0
    CHANNELS 3 Zrotation Xrotation Yrotation
    End Site
    {
      OFFSET 5 0 0
    }
  }
}
MOTION
Frames: 2
Frame Time: 0.0166667
0 50 0 0 0 0 0 0 0
0 50 20 90 0 0 0 0 90
"""


@pytest.fixture
def bvh(tmp_path: Path) -> Path:
    path = tmp_path / "dog.bvh"
    path.write_text(BVH)
    return path


def test_bvh_by_hand(bvh: Path) -> None:
    clip = mocap_data.read(bvh, licence="CC0")
    assert clip.names == ("Hips", "Head", "Head_end")
    assert clip.parents == (-1, 0, 1)
    assert (clip.rate_hz, clip.name, clip.source, clip.licence) == (60.0, "dog", "dog.bvh", "CC0")
    # Y up to Z up: (x, y, z) -> (z, x, y), centimetres to metres.
    # Frame 0: no rotation, bones along the file's X: (0, 50, 0), (10, 50, 0), (15, 50, 0).
    expected = [[0, 0, 0.5], [0, 0.10, 0.5], [0, 0.15, 0.5]]
    np.testing.assert_allclose(clip.positions[0], expected, atol=1e-15)
    # Frame 1: the root turns X to Y: the head is at (0, 60, 20). In the root's frame the head turns
    # a quarter about Y, X to -Z, and -Z stays -Z under the root's rotation about Z: the end is at
    # (0, 60, 15).
    expected = [[0.2, 0, 0.5], [0.2, 0, 0.6], [0.15, 0, 0.6]]
    np.testing.assert_allclose(clip.positions[1], expected, atol=1e-15)


def test_bvh_in_another_style(tmp_path: Path) -> None:
    """CRLF, tabs, a byte order mark, braces on the line, names with spaces, two End Sites, odd
    channels."""
    text = (
        "\ufeffHierarchy\r\nRoot Hips {\r\n OFFSET 1 2 3\r\n CHANNELS 1 Yposition\r\n"
        "\tJOINT left leg {\r\n\tOFFSET 0 1 0\r\n"
        "\tCHANNELS 4 Yrotation Xposition Zrotation Xrotation\r\n"
        "End Site named {\r\n OFFSET 1 0 0\r\n }\r\nEnd Site\r\n{\r\nOFFSET 0 0 1 }\r\n}\r\n"
        "JOINT tail { OFFSET 0 0 -1 End Site { OFFSET 0 0 -1 } } }\r\n"
        "Motion\r\nFrames:\t1\r\nFrame Time:\t0.01\r\n7 90 5 0 0\r\n\r\n"
    )
    (tmp_path / "odd.BVH").write_bytes(text.encode())
    clip = mocap_data.read(tmp_path / "odd.BVH", scale=1.0, up="z")
    assert clip.names == ("Hips", "left leg", "left leg_end", "left leg_end2", "tail", "tail_end")
    assert clip.parents == (-1, 0, 1, 1, 0, 4)
    assert clip.rate_hz == 100.0
    # a position channel replaces one component of OFFSET: hips (1, 7, 3), leg offset (5, 1, 0);
    # a quarter about Y takes X to -Z and Z to X
    expected = [[1, 7, 3], [6, 8, 3], [6, 8, 2], [7, 8, 3], [1, 7, 2], [1, 7, 1]]
    np.testing.assert_allclose(clip.positions[0], expected, atol=1e-14)


CHANNELS = [f"{axis}{kind}" for kind in ("position", "rotation") for axis in "XYZ"]


@given(
    parents=st.lists(st.integers(0, 5), max_size=6),
    channels=st.lists(
        st.permutations(CHANNELS).flatmap(lambda c: st.integers(0, 6).map(lambda n: c[:n])),
        min_size=7,
        max_size=7,
    ),
    seed=st.integers(0, 2**16),
)
def test_any_hierarchy_and_channels_by_another_path(
    tmp_path_factory: pytest.TempPathFactory,
    parents: list[int],
    channels: list[list[str]],
    seed: int,
) -> None:
    """Trees of up to seven joints with any channels in any order, against scipy's matrices, joint
    by joint."""
    rng = np.random.default_rng(seed)
    parents = [-1, *(parent % (i + 1) for i, parent in enumerate(parents))]
    channels = [channels[0] or ["Xrotation"], *channels[1 : len(parents)]]
    offsets = rng.normal(size=(len(parents), 3))
    numbers = rng.uniform(-180, 180, size=(2, sum(map(len, channels))))
    children = {
        i: [j for j, parent in enumerate(parents) if parent == i] for i in range(len(parents))
    }
    order: list[int] = []  # of the joints in the file, and so of their numbers

    def block(i: int) -> str:
        order.append(i)
        inner = " ".join(f"JOINT j{j} {block(j)}" for j in children[i])
        x, y, z = map(float, offsets[i])
        listed = f"{len(channels[i])} {' '.join(channels[i])}"
        return f"{{ OFFSET {x!r} {y!r} {z!r} CHANNELS {listed} {inner} }}"

    rows = "\n".join(" ".join(map(repr, map(float, row))) for row in numbers)
    path = tmp_path_factory.getbasetemp() / "tree.bvh"
    path.write_text(f"HIERARCHY\nROOT j0 {block(0)}\nMOTION\nFrames: 2\nFrame Time: 0.01\n{rows}\n")
    clip = mocap_data.read(path, scale=1.0, up="z")
    for frame in range(2):
        column = 0
        turns = {}
        places = {}
        for i in order:
            offset = offsets[i].copy()
            turn = np.eye(3)
            for channel in channels[i]:
                number = numbers[frame, column]
                axis = "XYZ".index(channel[0])
                if channel.endswith("position"):
                    offset[axis] = number
                else:
                    turn = (
                        turn
                        @ Rotation.from_rotvec(np.deg2rad(number) * np.eye(3)[axis]).as_matrix()
                    )
                column += 1
            above = parents[i]
            turns[i] = turn if above < 0 else turns[above] @ turn
            places[i] = offset if above < 0 else places[above] + turns[above] @ offset
            position = clip.positions[frame, clip.index(f"j{i}")]
            np.testing.assert_allclose(position, places[i], atol=1e-9)


@pytest.mark.parametrize(
    ("frame_time", "rate_hz"),
    [
        ("0.0166667", 60.0),
        ("0.016666", 60.0),  # cut off, not rounded
        ("0.00833333", 120.0),
        ("0.04", 25.0),
        ("0.0170000", 1 / 0.017),  # printed to seven digits: meant as it stands
        ("0.03", 1 / 0.03),  # could be 33 or 34 Hz
    ],
)
def test_rate(bvh: Path, frame_time: str, rate_hz: float) -> None:
    bvh.write_text(BVH.replace("0.0166667", frame_time))
    assert mocap_data.read(bvh).rate_hz == pytest.approx(rate_hz, rel=1e-15)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("Frames: 2", "Frames: 3", "2 frames"),
        (" 90 0 0 0 0 90", " 90 0", "line 20: 5 numbers"),
        ("0 50 20", "0 nan 20", "line 20: 'nan'"),
        ("End Site", "End Sight", "line 10: .*SITE"),
        ("JOINT Head", "JOINT Hips", "'Hips'"),
    ],
)
def test_garbled_bvh(bvh: Path, old: str, new: str, key: str) -> None:
    assert old in BVH
    bvh.write_text(BVH.replace(old, new))
    assert refusal(key, mocap_data.read, bvh).startswith(str(bvh))


def test_errors_of_read(bvh: Path, tmp_path: Path) -> None:
    for name in ("absent.bvh", "a.fbx", "a.odd", "binary.bvh", "utf16.bvh"):
        path = tmp_path / name
        if name != "absent.bvh":
            encoding = "utf-16" if name == "utf16.bvh" else "utf-8"
            path.write_text("\0" if name == "binary.bvh" else BVH, encoding=encoding)
        refusal(name, mocap_data.read, path)
    refusal("'rate'.*: scale, up, ", mocap_data.read, bvh, rate=60)
    refusal("upward axis 'w'", mocap_data.read, bvh, up="w")
    for scale in (0.0, "furlong", "nan", "-1", True, None, [1]):
        refusal("scale=", mocap_data.read, bvh, scale=scale)


def test_units_by_name(bvh: Path) -> None:
    units = {"m": 1.0, "cm": 0.01, "MM": 0.001, " inches": 0.0254, "ft": 0.3048, "0.5": 0.5}
    for unit, metres in units.items():
        clip = mocap_data.read(bvh, scale=unit, up="z")
        np.testing.assert_allclose(clip.positions[0, 0], [0, 50 * metres, 0], rtol=1e-15)


def test_upward_axes(bvh: Path) -> None:
    """The end of the chain in frame 1 lies at (0, 60, 15) in the file, in centimetres."""
    for up, expected in (
        ("y", [0.15, 0.0, 0.60]),
        ("x", [0.60, 0.15, 0.0]),
        ("z", [0.0, 0.60, 0.15]),
        ("-y", [0.15, 0.0, -0.60]),
        ("-Z", [0.0, -0.60, -0.15]),
        ("-x", [0.60, -0.15, 0.0]),
    ):
        end = mocap_data.read(bvh, up=up).positions[1, 2]
        np.testing.assert_allclose(end, expected, atol=1e-15, err_msg=up)


def test_recordings_of_a_folder(bvh: Path, tmp_path: Path) -> None:
    for name, text in {
        "README.txt": "About these recordings",
        "LICENSE": "",
        "points.txt": " -1,2,3",
        "cycle.txt": '{"Loop": "wrap", "Frames": []}',
        "dog3d_character.txt": '{"Skeleton": {}}',
        "list.json": "[1, 2]",
        # damaged: read, and named when that fails
        "cut.h5": "\x89HDF\r\n\x1a\nabcd",
        "x.asf": "",
        "x.amc": "",
        "notes.md": "",
    }.items():
        (tmp_path / name).write_text(text)
    names = sorted(path.name for path in tmp_path.iterdir() if is_recording(path))
    assert names == ["cut.h5", "cycle.txt", "dog.bvh", "points.txt", "x.amc"]


def write_csv(path: Path, positions: np.ndarray) -> Path:
    path.write_text(
        "".join(",\t".join(repr(float(v)) for v in frame.ravel()) + "\n" for frame in positions)
    )
    return path


def test_csv(tmp_path: Path) -> None:
    positions = np.random.default_rng(0).normal(size=(4, 2, 3))
    path = write_csv(tmp_path / "two.csv", positions)
    clip = mocap_data.read(path, names=["a", "b"], rate_hz=100, up="z", scale=2.0)
    np.testing.assert_array_equal(clip.positions, 2.0 * positions)
    assert (clip.names, clip.rate_hz, clip.name, clip.parents) == (("a", "b"), 100.0, "two", None)
    y_up = mocap_data.read(path, names=["a", "b"], rate_hz=100)
    np.testing.assert_array_equal(y_up.positions, positions[..., [2, 0, 1]])


def test_csv_of_the_dog_set_needs_no_options(tmp_path: Path) -> None:
    clip = mocap_data.read(write_csv(tmp_path / "dog.txt", np.ones((3, 27, 3))))
    assert (clip.names, clip.rate_hz, clip.parents) == (DOG_NAMES, 60.0, DOG_PARENTS)
    two = write_csv(tmp_path / "two.csv", np.ones((3, 2, 3)))
    refusal("names=, rate_hz=", mocap_data.read, two)
    refusal("rate_hz=", mocap_data.read, two, names=["a", "b"])
    refusal("names has 1", mocap_data.read, two, names=["a"], rate_hz=60)


def test_assumed_values(bvh: Path, tmp_path: Path) -> None:
    dog = tmp_path / "dog.csv"
    np.savetxt(dog, np.zeros((3, 81)), delimiter=",")
    timed = tmp_path / "timed.csv"
    timed.write_text("time,a_x,a_y,a_z\n0,0,0,0\n0.01,0,0,1\n")
    archive = tmp_path / "a.npz"
    np.savez(archive, positions=np.zeros((3, 1, 3)), names=np.array(["a"]), fps=50.0)
    assert mocap_data.read(dog).assumed == ("scale", "up", "rate_hz", "names")
    assert mocap_data.read(dog, rate_hz=60.0, names=DOG_NAMES, up="z").assumed == ("scale",)
    for path in (timed, archive, bvh):
        assert mocap_data.read(path).assumed == ("scale", "up")
        assert mocap_data.read(path, scale="cm", up="z").assumed == ()
    assert mocap_data.read(archive).crop(0, 2).select(["a"]).assumed == ("scale", "up")


def test_csv_with_a_row_of_names(tmp_path: Path) -> None:
    path = tmp_path / "named.csv"
    path.write_text(
        "time (s), left foot_X,left foot_Y,left foot_Z,head.x,head.y,head.z,\n"
        "0.00,1,2,3,4,5,6\n0.02,1,2,3,4,5,7\n"
    )
    clip = mocap_data.read(path, up="z")
    assert (clip.names, clip.rate_hz) == (("left foot", "head"), 50.0)
    np.testing.assert_array_equal(clip.positions[1], [[1, 2, 3], [4, 5, 7]])
    assert mocap_data.read(path, rate_hz=10, names=["a", "b"]).names == ("a", "b")
    path.write_text("\n'ax','ay','az'\r\n1,2,3\r\n")
    assert mocap_data.read(path, rate_hz=10).names == ("a",)
    with pytest.raises(MissingOptions, match="rate_hz="):
        mocap_data.read(path)
    for times in ((0, 1, 3, 4), (0, 1e-320)):
        path.write_text("time,ax,ay,az\n" + "".join(f"{time},1,2,3\n" for time in times))
        refusal("rate_hz=|frames/s", mocap_data.read, path)
    for header in ("x,y,z", "ax,ay,bz", "ax,az,ay", "ax,ay", "time"):
        path.write_text(f"{header}\n1,2,3\n")
        refusal(r"line [12]: ", mocap_data.read, path, rate_hz=10)


def test_a_dataset_is_no_recording(tmp_path: Path, motions: MotionSet) -> None:
    path = tmp_path / "motions.h5"
    write_motions(path, motions)
    for reader in (mocap_data.read, mocap_data.read_all):
        refusal("dataset of robot motions", reader, path)
    assert not is_recording(path)


GOOD = {
    "positions": np.arange(12, dtype=np.float32).reshape(2, 2, 3),
    "names": np.array(["a", "b"]),
    "fps": 120.0,
}


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    np.savez(path, **GOOD, parents=np.array([-1, 0]))
    clip = mocap_data.read(path, scale=0.5)
    expected = 0.5 * GOOD["positions"][..., [2, 0, 1]].astype(float)
    np.testing.assert_array_equal(clip.positions, expected)
    assert (clip.names, clip.rate_hz, clip.parents) == (("a", "b"), 120.0, (-1, 0))
    np.savez_compressed(path, positions=GOOD["positions"])
    assert mocap_data.read(path, names=["c", "d"], rate_hz=30).names == ("c", "d")


class Bomb:
    """Fails the test when unpickled."""

    def __reduce__(self) -> tuple:
        return (pytest.fail, ("an archive was unpickled",))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"positions": np.ones((2, 2))}, "positions"),
        ({"fps": 0.0}, "rate of 0"),
        ({"parents": np.array([-1, 7])}, "parents"),
        ({"names": np.array([Bomb(), Bomb()], dtype=object)}, "pickle"),
    ],
)
def test_garbled_npz(tmp_path: Path, change: dict, key: str) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, **{key: value for key, value in {**GOOD, **change}.items() if value is not None})
    assert refusal(key, mocap_data.read, path).startswith(str(path))


def test_an_archive_that_unpacks_to_far_more_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, **{**GOOD, "positions": np.zeros((50_000, 2, 3))})
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(input_files, "available_memory", lambda: 1 << 20)
    refusal("positions, names, fps", mocap_data.read, path)
