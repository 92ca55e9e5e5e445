"""Readers on small files written here; recordings are in test_recordings.py."""

from __future__ import annotations

import os
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

import mocap_data
from mocap_data import outside, store
from mocap_data.errors import InputError
from mocap_data.readers import READERS, is_recording, options_of
from mocap_data.readers.asf_amc import read_asf
from mocap_data.readers.common import DOG_NAMES, DOG_PARENTS, MissingOptions
from mocap_data.readers.robot_motions import kind_of, read_robot_motion
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
        given = f"{len(channels[i])} {' '.join(channels[i])}"
        return f"{{ OFFSET {x!r} {y!r} {z!r} CHANNELS {given} {inner} }}"

    rows = "\n".join(" ".join(map(repr, map(float, row))) for row in numbers)
    path = tmp_path_factory.getbasetemp() / "tree.bvh"
    path.write_text(f"HIERARCHY\nROOT j0 {block(0)}\nMOTION\nFrames: 2\nFrame Time: 0.01\n{rows}\n")
    clip = mocap_data.read(path, scale=1.0, up="z")
    for frame in range(2):
        column, turns, places = 0, {}, {}
        for i in order:
            offset, turn = offsets[i].copy(), np.eye(3)
            for channel in channels[i]:
                number, axis = numbers[frame, column], "XYZ".index(channel[0])
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
            found = clip.positions[frame, clip.index(f"j{i}")]
            np.testing.assert_allclose(found, places[i], atol=1e-9)


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
    ("old", "new", "message"),
    [
        ("Frames: 2", "Frames: 3", "has 2 frames, its header declares 3; the file is cut short"),
        ("Frames: 2", "Frames: two", "line 17: 'Frames' must be a number, found 'two'"),
        ("0.0166667", "0", "line 18: a frame time of 0 s is not positive"),
        (" 90 0 0 0 0 90", " 90 0", "line 20: 5 numbers, expected 9 .*; the file is cut short"),
        ("50 0 0 0", "50 0 0", r"line 19: 8 numbers, expected 9 \(one per channel\)$"),
        ("0 50 20", "0 fifty 20", "line 20: 'fifty' is not a number"),
        ("0 50 20", "0 nan 20", r"line 20: a value is not finite \(frame 1\)"),
        (
            "Frames: 2\nFrame Time: 0.0166667\n0 50 0 0 0 0 0 0 0\n0 50 20 90 0 0 0 0 90",
            "Frames: 0\nFrame Time: 0.1",
            "line 17: the file has no frames",
        ),
        ("HIERARCHY", "HIERARCHIE", "line 1: expected HIERARCHY, found 'HIERARCHIE'"),
        ("T 10 0 0", "T 10 0 inf", "line 8: OFFSET of 'Head' must be a number, found 'inf'"),
        ("CHANNELS 3", "CHANNELS 4", "line 10: joint 'Head' has the unknown channel 'End'"),
        ("End Site", "End Sight", "line 10: expected SITE, found 'Sight'"),
        ("  }\n}\nMOTION", "MOTION", "line 13: expected OFFSET .*found the end"),
        ("JOINT Head", "JOINT Hips", "keypoint name 'Hips' appears more than once"),
    ],
)
def test_garbled_bvh(bvh: Path, old: str, new: str, message: str) -> None:
    assert old in BVH
    bvh.write_text(BVH.replace(old, new))
    assert refusal(message, mocap_data.read, bvh).startswith(str(bvh))


def test_binary_in_disguise(bvh: Path) -> None:
    bvh.write_bytes(np.random.default_rng(0).bytes(5000))
    refusal("is binary, expected text", mocap_data.read, bvh)
    bvh.write_text(BVH, encoding="utf-16")
    refusal("is text in UTF-16; save it as UTF-8 or ASCII", mocap_data.read, bvh)


def test_read_names_what_there_is(bvh: Path, tmp_path: Path) -> None:
    refusal(r"no file '.*absent.bvh'", mocap_data.read, tmp_path / "absent.bvh")
    refusal("is a folder", mocap_data.read, tmp_path)
    (tmp_path / "a.fbx").write_text("")
    refusal("a.fbx: a scene in FBX, .*; import it in Blender", mocap_data.read, tmp_path / "a.fbx")
    (tmp_path / "a.odd").write_text("")
    message = r"suffix '.odd'; there are: .amc, .bvh, .c3d, .csv, .h5, .hdf5, .json"
    refusal(message, mocap_data.read, tmp_path / "a.odd")
    refusal("no file", mocap_data.read, "a\0b.bvh")
    os.mkfifo(tmp_path / "pipe.bvh")
    refusal("is no regular file", mocap_data.read, tmp_path / "pipe.bvh")
    message = r"no option for .bvh files 'rate'; there are: scale, up, "
    refusal(message, mocap_data.read, bvh, rate=60)
    refusal("no upward axis 'w'; there are: x, y, z, -x, -y, -z", mocap_data.read, bvh, up="w")
    refusal(r"scale 0.0 is not positive", mocap_data.read, bvh, scale=0.0)


def test_units_by_name(bvh: Path) -> None:
    units = {"m": 1.0, "cm": 0.01, "MM": 0.001, " inches": 0.0254, "ft": 0.3048, "0.5": 0.5}
    for unit, metres in units.items():
        clip = mocap_data.read(bvh, scale=unit, up="z")
        np.testing.assert_allclose(clip.positions[0, 0], [0, 50 * metres, 0], rtol=1e-15)
    message = r"dog.bvh: no unit 'furlong'; .* a number or one of: m, dm, cm, mm, in, ft"
    refusal(message, mocap_data.read, bvh, scale="furlong")
    for scale in ("nan", "-1", True, None, [1]):
        refusal("scale", mocap_data.read, bvh, scale=scale)


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
        found = mocap_data.read(bvh, up=up).positions[1, 2]
        np.testing.assert_allclose(found, expected, atol=1e-15, err_msg=up)


def test_every_option_is_listed(bvh: Path) -> None:
    about = {"name": None, "source": None, "licence": "unknown"}
    assert options_of(bvh) == {"scale": 0.01, "up": "y", "subject": None} | about
    (bvh.parent / "a.txt").write_text(' \n{"Frames": []}')
    assert "character" in options_of(bvh.parent / "a.txt")
    assert "names" in options_of("b.txt")
    assert options_of("a.fbx") == {}


def test_what_of_a_folder_is_a_recording(bvh: Path, tmp_path: Path) -> None:
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
    found = sorted(path.name for path in tmp_path.iterdir() if is_recording(path))
    assert found == ["cut.h5", "cycle.txt", "dog.bvh", "points.txt", "x.amc"]


def test_a_hierarchy_as_deep_as_you_like(tmp_path: Path) -> None:
    deep = "".join(f"JOINT j{i} {{ OFFSET 0 1 0 " for i in range(1, 1500))
    root = f"ROOT j0 {{ OFFSET 0 0 0 CHANNELS 1 Xposition {deep} {'}' * 1500}"
    text = f"HIERARCHY\n{root}\nMOTION\nFrames: 1\nFrame Time: 0.1\n5\n"
    (tmp_path / "deep.bvh").write_text(text)
    clip = mocap_data.read(tmp_path / "deep.bvh", scale=1.0, up="z")
    np.testing.assert_array_equal(clip.positions[0, -1], [5, 1499, 0])
    (tmp_path / "deep.bvh").write_text(
        text.replace("JOINT j1 {", "JOINT j1 {" + "JOINT k {" * 1000)
    )
    refusal(r"line 2: more than 2,000 joints", mocap_data.read, tmp_path / "deep.bvh")


def test_what_would_not_fit_into_memory_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 1,000 joints without channels and 100,000 frames of one number: a file of 0.2 MB, and 2.4 GB
    # of positions
    joints = "".join(f"JOINT j{i} {{ OFFSET 0 1 0 }} " for i in range(1000))
    path = tmp_path / "wide.bvh"
    head = (
        f"HIERARCHY\nROOT r {{ OFFSET 0 0 0 CHANNELS 1 Xposition {joints} }}\n"
        "MOTION\nFrames: 100000\nFrame Time: 0.1\n"
    )
    path.write_text(head + "1\n" * 100_000)
    message = "100,000 frames of 1,001 keypoints are more than the 100,000,000 coordinates"
    refusal(message, mocap_data.read, path)
    monkeypatch.setattr("mocap_data.readers.common.MAX_FILE_BYTES", 100_000)
    refusal(r"has 2\d\d,\d\d\d bytes; at most 100,000 are read", mocap_data.read, path)


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
    message = r"has 2 keypoints; only the dog set's 27 .*give names and rate_hz"
    refusal(message, mocap_data.read, write_csv(tmp_path / "two.csv", np.ones((3, 2, 3))))
    refusal("give rate_hz", mocap_data.read, tmp_path / "two.csv", names=["a", "b"])
    with pytest.raises(InputError, match="has 2 keypoints, but there are 1 names"):
        mocap_data.read(tmp_path / "two.csv", names=["a"], rate_hz=1)


def test_what_a_file_does_not_say_is_assumed(bvh: Path, tmp_path: Path) -> None:
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
    with pytest.raises(MissingOptions, match=r"give rate_hz$"):
        mocap_data.read(path)
    path.write_text("frame,ax,ay,az\n1,1,2,3\n2,1,2\n")
    refusal("line 3: 3 numbers, the rows before have 4", mocap_data.read, path, rate_hz=10)
    path.write_text("ax,ay,az,bx,by,bz\n1,1,2\n")
    refusal("3 numbers in a row, its row of names has 6", mocap_data.read, path, rate_hz=10)
    path.write_text("time,ax,ay,az\n0,1,2,3\n1,1,2,3\n3,1,2,3\n4,1,2,3\n")
    refusal("frame 1 lasts 2 s, most last 1 s; give rate_hz=", mocap_data.read, path)
    path.write_text("time,ax,ay,az\n0,1,2,3\n1e-320,1,2,3\n")
    refusal("a rate of inf frames/s, a frame of 0 s, is not possible", mocap_data.read, path)
    for header in ("x,y,z", "ax,ay,bz", "ax,az,ay", "ax,ay", "time"):
        path.write_text(f"{header}\n1,2,3\n")
        refusal(r"line 1: .* is not a number|line 2: 3 numbers", mocap_data.read, path, rate_hz=10)


def test_what_is_no_recording_says_what_it_is(tmp_path: Path, motions: MotionSet) -> None:
    path = tmp_path / "motions.h5"
    write_motions(path, motions)
    for reader in (mocap_data.read, mocap_data.read_all):
        refusal(r"motions.h5 is a dataset of robot motions, .*, not", reader, path)
    assert not is_recording(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("1,2,3\n1,2\n", "line 2: 2 numbers, the rows before have 3"),
        ("1,2\n", "2 numbers in a row, expected three"),
        ("x,y,z\n1,2,3\n", "line 1: 'x' is not a number"),
        ("1,2\n3,4,5,6\n", "line 2: 4 numbers, the rows before have 2"),
        ("1,2,3\n1,nan,3\n", r"line 2: a value is not finite \(frame 1\)"),
    ],
)
def test_garbled_csv(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    assert refusal(message, mocap_data.read, path, names=["a"], rate_hz=60).startswith(str(path))


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
    ("change", "message"),
    [
        ({"positions": None}, "array 'positions' is missing; expected positions, names, fps"),
        (
            {"positions": np.ones((2, 2))},
            r"positions is float64 \(2, 2\), expected numbers \(T, M, 3\)",
        ),
        ({"positions": np.ones((0, 2, 3))}, "no frames"),
        ({"positions": np.full((2, 2, 3), np.inf)}, "not finite at frame 0"),
        ({"names": np.array([1, 2])}, "names must be a list of texts"),
        ({"fps": 0.0}, "a rate of 0 frames/s is not possible; expected 5 to 10,000"),
        ({"parents": np.array([-1, 7])}, "parents must be 2 indices"),
        ({"names": np.array([Bomb(), Bomb()], dtype=object)}, "names holds Python objects"),
    ],
)
def test_garbled_npz(tmp_path: Path, change: dict, message: str) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, **{key: value for key, value in {**GOOD, **change}.items() if value is not None})
    assert refusal(message, mocap_data.read, path).startswith(str(path))


def test_an_archive_that_unpacks_to_far_more_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, **{**GOOD, "positions": np.zeros((50_000, 2, 3))})
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(outside, "available_memory", lambda: 1 << 20)
    refusal(r"unpacking positions, names, fps needs about 0.0 GiB of memory", mocap_data.read, path)


def test_an_npz_directory_of_a_hundred_thousand_entries_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "many.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"")
    data = path.read_bytes()
    start = data.index(b"PK\x01\x02")
    entries, end = 100_000 * data[start : start + 47], data[start + 47 :]
    size = struct.pack("<I", len(entries))
    # the end names its entries by numbers of 16 and 32 bits; zipfile goes by the second, the
    # directory's size
    path.write_bytes(data[:start] + entries + end[:12] + size + end[16:])
    with zipfile.ZipFile(path) as archive:
        assert len(archive.filelist) == 100_000
    tracemalloc.start()
    message = r"many\.npz: a directory of 4,700,000 bytes; at most 10,000 entries"
    refusal(message, mocap_data.read, path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_npz_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, **GOOD)
    whole = path.read_bytes()
    damaged = whole[:200] + b"\xff" * 50 + whole[250:]
    for data in (b"", b"text", whole[:100], whole[:-30], damaged):
        path.write_bytes(data)
        assert refusal("", mocap_data.read, path).startswith(str(path))
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    refusal("holds a single array", mocap_data.read, path)


@pytest.mark.parametrize("suffix", sorted({*READERS, ".asf"}))
def test_special_files_are_refused_at_once(tmp_path: Path, suffix: str) -> None:
    """Opening a FIFO would wait for ever, reading /dev/zero never end."""
    fifo, device = tmp_path / f"fifo{suffix}", tmp_path / f"device{suffix}"
    os.mkfifo(fifo)
    device.symlink_to("/dev/zero")
    of_keypoints = mocap_data.read, mocap_data.read_all, read_asf
    for path in (fifo, device):
        for how in (*of_keypoints, read_robot_motion, store.read_motions):
            refusal("", how, path)
        assert not is_recording(path) and kind_of(path) is None


def test_special_files_beside_a_motion(tmp_path: Path) -> None:
    (tmp_path / "1_1.amc").write_text("1\nroot 0\n")
    (tmp_path / "a.json").write_text('{"Frames": [[0.1, 0, 0, 0, 1, 0, 0, 0, 0]]}')
    os.mkfifo(tmp_path / "1.asf")
    os.mkfifo(tmp_path / "a.txt")
    for options in ({}, {"asf": tmp_path / "1.asf"}):
        refusal("", mocap_data.read, tmp_path / "1_1.amc", **options)
    for options in ({}, {"character": tmp_path / "a.txt"}):
        refusal("", mocap_data.read, tmp_path / "a.json", **options)


@pytest.mark.parametrize("header", ["(" * 4000, "-" * 9000 + "1", "[" * 5000, "{'a':" * 1500])
def test_npz_headers_nested_deep(tmp_path: Path, header: str) -> None:
    npy = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for key in ("positions", "names", "fps"):
            archive.writestr(f"{key}.npy", npy)
    refusal(r"a\.npz: ", mocap_data.read, tmp_path / "a.npz")
