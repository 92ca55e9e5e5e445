"""Datasets that lead elsewhere, lie about their sizes, or hold something unexpected: one line each,
before reading."""

from __future__ import annotations

import dataclasses
import os
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from mocap_data import hdf5, outside
from mocap_data.errors import InputError
from mocap_data.hdf5 import schema_of
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet, read_motions, splits_in, write_motions
from tests.refusals import refusal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sound dataset of two motions, four frames of a robot with two joints and two bodies."""
    pose = np.zeros((4, 9))
    pose[:, 3] = 1.0
    motion = ReferenceMotion("walk", pose, 50.0, quality={"rms_marker_m": 0.01})
    motion = dataclasses.replace(motion, frame_quality={"marker_rms_m": np.ones(4)})
    motions = (motion, dataclasses.replace(motion, name="trot"))
    write_motions(
        tmp_path / "motions.h5", MotionSet("dog", "ab", ("a", "b"), ("base", "foot"), motions)
    )
    return tmp_path / "motions.h5"


def refused(path: Path) -> str:
    """The one line that both ways of reading end with."""
    said = refusal("", splits_in, path)
    assert said == refusal("", read_motions, path)
    return said


def replace(group: h5py.Group, name: str, link: object) -> None:
    del group[name]
    group[name] = link


LINKS: dict[str, Callable[[h5py.File], object]] = {
    "soft clip": lambda file: replace(file, "trot", h5py.SoftLink("/walk")),
    "soft array": lambda file: replace(file["walk"], "qpos", h5py.SoftLink("/trot/qpos")),
    "soft figure": lambda file: replace(
        file["walk/frame_quality"], "marker_rms_m", h5py.SoftLink("/trot/qpos")
    ),
    "cyclic": lambda file: replace(file, "trot", h5py.SoftLink("/trot")),
    "dangling": lambda file: replace(file["walk"], "qpos", h5py.SoftLink("nowhere")),
    "external": lambda file: replace(file, "trot", h5py.ExternalLink("other.h5", "/")),
    # opening it never ends
    "a FIFO": lambda file: replace(file["walk"], "qpos", h5py.ExternalLink("fifo", "/")),
}


@pytest.mark.parametrize("how", sorted(LINKS))
def test_links_are_not_followed(path: Path, how: str) -> None:
    os.mkfifo(path.with_name("fifo"))
    with h5py.File(path, "r+") as file:
        LINKS[how](file)
    assert "is a link to another place; these are not followed" in refused(path)


def test_groups_within_themselves_end(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["again"] = file["/"]
        file["walk/frame_quality/inner"] = file["walk"]
    assert "clip 'walk'" in refused(path)
    with h5py.File(path, "r+") as file:
        del file["walk"]
    assert "clip 'again'" in refused(path)


@pytest.mark.parametrize(
    ("place", "key", "value", "message"),
    [
        ("/", "schema", 7, "schema np.int64(7), expected 'npmp-motion'"),
        ("/", "schema", np.array(["npmp-motion"] * 2, dtype="S11"), "schema array"),
        ("/", "version", 2.5, "attribute 'version' is np.float64(2.5), expected an integer"),
        ("/", "robot", b"\xff\xfe", "attribute 'robot' is '\\udcff\\udcfe', expected a text"),
        ("/", "joint_names", np.array([[1.0]]), "expected a list of texts"),
        ("walk", "rate_hz", "fast", "attribute 'rate_hz' is 'fast', expected a number"),
        ("walk", "source", 3, "expected a text"),
    ],
)
def test_attributes_of_another_type(
    path: Path, place: str, key: str, value: object, message: str
) -> None:
    with h5py.File(path, "r+") as file:
        file[place].attrs[key] = value
    assert message in refused(path)


def test_attributes_of_strangers_are_left_alone(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        walk = file["walk"]
        walk.attrs["reference"] = file["trot"].ref
        walk.attrs["opaque"] = np.void(b"\x01\x02")
        walk.attrs["complex"] = 1.0 + 2.0j
        walk.attrs["long"] = np.longdouble(1.5)
        walk.attrs["compound"] = np.zeros(2, [("a", float), ("b", int)])
        walk.attrs["empty"] = h5py.Empty("f")
        walk.attrs["list"] = [1.0, 2.0]
        h5py.h5a.create(
            walk.id, b"\xff\xfe", h5py.h5t.NATIVE_DOUBLE, h5py.h5s.create(h5py.h5s.SCALAR)
        )
        text = h5py.h5a.create(walk.id, b"text", h5py.h5t.C_S1, h5py.h5s.create(h5py.h5s.SCALAR))
        text.write(np.array(b"\xff", "S1"))
    assert read_motions(path)["walk"].quality == {"rms_marker_m": 0.01}


def test_a_name_that_is_no_text(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        h5py.h5g.create(file.id, b"\xff\xfe")
    assert "is not UTF-8" in refused(path)


def test_texts_that_all_point_to_one_long_text(path: Path) -> None:
    """25 names of 3 bytes, of which each says that it is the provenance of 2 MiB: 50 MiB of a file
    of 2."""
    with h5py.File(path, "r") as file:
        known = dict(file.attrs)
    known["provenance"] = f'{{"a": "{"x" * (2 << 20)}"}}'
    for joints in (2, 25):
        with h5py.File(path, "w") as file:  # not in order, so that its head has no checksum
            for key, value in known.items():
                file.attrs[key] = value
            file.attrs["joint_names"] = [f"{i:03}" for i in range(joints)]
        if joints == 2:  # a long text is no harm
            assert schema_of(path) == "npmp-motion"
    data = path.read_bytes()
    # before the text its heap's head and its own, each of 16 bytes
    heap = data.find(b'{"a": "xxx') - 32
    assert data[heap : heap + 4] == b"GCOL"
    count = 0
    for other in (found.start() for found in re.finditer(b"GCOL", data)):
        entry = struct.pack("<IQ", 3, other)  # then the text's number in the heap, of 4 bytes
        data, made = re.subn(
            re.escape(entry) + b"..\0\0",
            struct.pack("<IQI", (2 << 20) + 9, heap, 1),
            data,
            flags=re.DOTALL,
        )
        count += made
    assert count >= 25
    path.write_bytes(data)
    assert " texts, of up to 2,097," in refused(path)
    assert schema_of(path) is None


def test_a_text_longer_than_any_of_ours(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["walk"].attrs["source"] = "s" * 10_001
    assert "expected a text of at most 10,000 characters" in refused(path)


def replaced(path: Path, key: str, **settings: object) -> None:
    with h5py.File(path, "r+") as file:
        del file["walk"][key]
        file["walk"].create_dataset(key, **settings)


def test_sizes_that_a_file_does_not_have(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 72 GB of nothing
    replaced(path, "qpos", shape=(10**9, 9), dtype="f8", chunks=(1000, 9), compression="gzip")
    expected = "qpos declares (1000000000, 9), 72,000,000,000 bytes"
    assert expected in refused(path).replace("array 'qpos'", "qpos")
    replaced(path, "qpos", shape=(4, 9), maxshape=(None, 9), dtype="f8", chunks=(10**8, 9))
    assert "damaged" in refused(path)
    # true, and much
    replaced(path, "qpos", data=np.zeros((400_000, 9)), chunks=(1000, 9), compression="gzip")
    monkeypatch.setattr(outside, "available_memory", lambda: 10 << 20)
    message = r"2 motions \(clips= reads some of them\) needs about 0\.0 GiB of memory"
    refusal(message, read_motions, path)


def test_a_chunk_that_unpacks_to_more_than_it_is(path: Path) -> None:
    replaced(path, "qpos", shape=(4, 9), dtype="f8", chunks=(4, 9), compression="gzip")
    with h5py.File(path, "r+") as file:
        file["walk/qpos"].id.write_direct_chunk((0, 0), zlib.compress(bytes(100_000)))
    refusal(r"qpos is damaged \(a chunk of 288 bytes unpacks to another size\)", read_motions, path)


def test_arrays_in_other_files_are_not_opened(path: Path) -> None:
    path.with_name("raw").write_bytes(bytes(288))
    replaced(
        path, "qpos", shape=(4, 9), dtype="f8", external=[(str(path.with_name("raw")), 0, 288)]
    )
    assert "lies in another file" in refused(path)
    layout = h5py.VirtualLayout((4, 9), "f8")
    layout[:] = h5py.VirtualSource("fifo", "x", (4, 9), "f8")
    with h5py.File(path, "r+") as file:
        del file["walk/qpos"]
        file["walk"].create_virtual_dataset("qpos", layout)
    assert "lies in another file" in refused(path)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"compression": "gzip", "compression_opts": 9},
        {"chunks": (3, 4), "compression": "gzip", "shuffle": True},
        {"chunks": (3, 4), "fletcher32": True},
        {
            "chunks": (2, 9),
            "dtype": ">f4",
            "compression": "gzip",
            "shuffle": True,
            "fletcher32": True,
        },
    ],
)
def test_arrays_however_they_are_stored(tmp_path: Path, settings: dict) -> None:
    values = np.random.default_rng(0).normal(size=(7, 9))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        wrote = file.create_dataset("x", data=values, **settings)[...]
    with hdf5.open_hdf5(tmp_path / "a.h5") as file:
        assert hdf5.array_bytes(file["x"], "x") >= values.nbytes
        np.testing.assert_array_equal(hdf5.read_array(file["x"], "x"), wrote)


def test_compression_that_is_not_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((7, 9)), compression="lzf")
    with (
        hdf5.open_hdf5(tmp_path / "a.h5") as file,
        pytest.raises(InputError, match="in a way that is not read"),
    ):
        hdf5.read_array(file["x"], "x")


def test_too_many_clips_or_attributes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5, "MAX_ATTRIBUTES", 5)
    assert "attributes; at most 5 are read" in refused(path)
    monkeypatch.undo()
    monkeypatch.setattr(hdf5, "MAX_MEMBERS", 1)
    assert "has 2 members; at most 1 are read" in refused(path)
