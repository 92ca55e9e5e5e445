"""HDF5 files of users: links, other types and damaged arrays are one line."""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from mocap_data import hdf5, input_files
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet, read_motions, write_motions
from tests.refusals import refusal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A dataset of two motions, four frames of a robot with two joints and two bodies."""
    pose = np.zeros((4, 9))
    pose[:, 3] = 1.0
    motion = ReferenceMotion("walk", pose, 50.0, quality={"rms_marker_m": 0.01})
    motion = dataclasses.replace(motion, frame_quality={"marker_rms_m": np.ones(4)})
    motions = (motion, dataclasses.replace(motion, name="trot"))
    write_motions(
        tmp_path / "motions.h5", MotionSet("dog", "ab", ("a", "b"), ("base", "foot"), motions)
    )
    return tmp_path / "motions.h5"


def replace(group: h5py.Group, name: str, link: object) -> None:
    del group[name]
    group[name] = link


LINKS: dict[str, Callable[[h5py.File], object]] = {
    "soft": lambda file: replace(file["walk"], "qpos", h5py.SoftLink("/trot/qpos")),
    "external": lambda file: replace(file, "trot", h5py.ExternalLink("other.h5", "/")),
    # opening it never ends
    "a FIFO": lambda file: replace(file["walk"], "qpos", h5py.ExternalLink("fifo", "/")),
}


@pytest.mark.parametrize("kind", sorted(LINKS))
def test_links_are_not_followed(path: Path, kind: str) -> None:
    os.mkfifo(path.with_name("fifo"))
    with h5py.File(path, "r+") as file:
        LINKS[kind](file)
    refusal("link", read_motions, path)


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        ("/", "robot", b"\xff\xfe"),
        ("/", "joint_names", np.array([[1.0]])),
        ("walk", "source", "s" * 10_001),
    ],
)
def test_attributes_of_another_type(path: Path, place: str, key: str, value: object) -> None:
    with h5py.File(path, "r+") as file:
        file[place].attrs[key] = value
    refusal(key, read_motions, path)


def test_attributes_of_other_programs_are_ignored(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        attrs = file["walk"].attrs
        attrs["reference"] = file["trot"].ref
        attrs["opaque"] = np.void(b"\x01\x02")
        attrs["complex"] = 1.0 + 2.0j
        attrs["compound"] = np.zeros(2, [("a", float), ("b", int)])
        attrs["empty"] = h5py.Empty("f")
        attrs["list"] = [1.0, 2.0]
    assert read_motions(path)["walk"].quality == {"rms_marker_m": 0.01}


def replace_array(path: Path, **settings: object) -> None:
    with h5py.File(path, "r+") as file:
        del file["walk/qpos"]
        file["walk"].create_dataset("qpos", **settings)


def test_arrays_larger_than_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_array(path, data=np.zeros((400_000, 9)), chunks=(1000, 9), compression="gzip")
    monkeypatch.setattr(input_files, "available_memory", lambda: 10 << 20)
    refusal("clips=", read_motions, path)


def test_arrays_in_other_files_are_not_opened(path: Path) -> None:
    path.with_name("raw").write_bytes(bytes(288))
    external = [(str(path.with_name("raw")), 0, 288)]
    replace_array(path, shape=(4, 9), dtype="f8", external=external)
    refusal("qpos", read_motions, path)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"compression": "gzip", "compression_opts": 9},
        {"chunks": (3, 4), "compression": "gzip", "shuffle": True},
        {"chunks": (2, 9), "dtype": ">f4", "compression": "gzip", "fletcher32": True},
    ],
)
def test_arrays_in_any_storage(tmp_path: Path, settings: dict) -> None:
    values = np.random.default_rng(0).normal(size=(7, 9))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        expected = file.create_dataset("x", data=values, **settings)[...]
    with hdf5.open_hdf5(tmp_path / "a.h5") as file:
        assert hdf5.array_bytes(file["x"], "x") >= values.nbytes
        np.testing.assert_array_equal(hdf5.read_array(file["x"], "x"), expected)


def test_a_chunk_that_expands_beyond_its_size_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        array = file.create_dataset("x", (10,), "f8", chunks=(10,), compression="gzip")
        array.id.write_direct_chunk((0,), zlib.compress(bytes(1_000_000)))
        file.create_dataset("y", data=np.zeros(10), chunks=(10,), compression="lzf")
    with hdf5.open_hdf5(tmp_path / "a.h5") as file:
        refusal("x is damaged", hdf5.read_array, file["x"], "x")
        refusal("y is stored with", hdf5.read_array, file["y"], "y")
