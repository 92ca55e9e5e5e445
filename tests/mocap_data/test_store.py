from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from mocap_data import rotations
from mocap_data.errors import InputError
from mocap_data.ground_profile import GroundProfile
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet, read_motions, splits_in, write_motions
from tests.refusals import refusal

JOINTS = ("hip", "knee")
BODIES = ("base", "thigh", "shank")


def make_motion(name: str = "walk", frames: int = 50, seed: int = 0) -> ReferenceMotion:
    qpos = np.random.default_rng(seed).normal(size=(frames, 9))
    qpos[:, 3:7] = rotations.normalize(qpos[:, 3:7])
    return ReferenceMotion(
        name=name,
        qpos=qpos,
        rate_hz=60.0,
        source="walk.bvh",
        licence="CC BY-NC 4.0 (Ünicode)",
        quality={"rms_marker_m": 0.0123, "limit_violations": 0},
    )


def make_set(*names: str) -> MotionSet:
    motions = tuple(
        make_motion(name, seed=i) for i, name in enumerate(names or ("walk", "a trot", "b"))
    )
    return MotionSet(
        "biped", "ab" * 32, JOINTS, BODIES, motions, {"npmp": "0.1", "options": "none"}
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_motions(tmp_path / "motions.h5", make_set())
    return tmp_path / "motions.h5"


def test_round_trip_to_the_bit(path: Path) -> None:
    wrote = make_set()
    motions = read_motions(
        path, robot="biped", model_sha256="ab" * 32, joint_names=list(JOINTS), body_names=BODIES
    )
    for key in ("robot", "model_sha256", "joint_names", "body_names", "provenance", "names"):
        assert getattr(motions, key) == getattr(wrote, key)
    for a, b in zip(motions.motions, wrote.motions, strict=True):
        assert a.qpos.tobytes() == b.qpos.tobytes() and not a.qpos.flags.writeable
        for key in ("name", "rate_hz", "source", "licence", "quality"):
            assert getattr(a, key) == getattr(b, key)


def test_order_is_kept_and_bytes_repeat(tmp_path: Path) -> None:
    names = [f"clip_{i}" for i in np.random.default_rng(0).permutation(20)]
    for file in ("a.h5", "b.h5"):
        write_motions(tmp_path / file, make_set(*names))
    assert read_motions(tmp_path / "a.h5").names == tuple(names)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_some_clips_and_their_splits(path: Path) -> None:
    motions = read_motions(path, clips=["b", "walk"])
    assert motions.names == ("b", "walk")
    np.testing.assert_array_equal(motions["walk"].qpos, make_set()["walk"].qpos)
    refusal("'gallop'", read_motions, path, clips=["gallop"])
    refusal("'gallop'", motions.__getitem__, "gallop")
    assert splits_in(path) == {"walk": "", "a trot": "", "b": ""}


def test_layout(path: Path) -> None:
    """The file as other programs see it."""
    with h5py.File(path) as file:
        assert file.attrs["schema"] == "npmp-motion"
        assert file.attrs["version"] == 4
        assert file.attrs["robot"] == "biped"
        assert list(file.attrs["joint_names"]) == list(JOINTS)
        assert list(file.attrs["body_names"]) == list(BODIES)
        assert file["walk/qpos"].shape == (50, 9)
        assert list(file["walk"]) == ["qpos"]  # nothing that follows from the poses
        assert file["walk"].attrs["rate_hz"] == 60.0
        assert file["walk"].attrs["rms_marker_m"] == 0.0123


def test_grounds_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "stairs.h5"
    flat, other = make_set("walk", "trot").motions
    ground = GroundProfile(np.repeat([0.0, 0.1], 5))
    write_motions(file, replace(make_set(), motions=(replace(flat, ground=ground), other)))
    motions = read_motions(file)
    np.testing.assert_array_equal(motions["walk"].ground.heights, ground.heights)
    assert motions["trot"].ground is None
    assert motions["walk"].crop(1, 5).ground is motions["walk"].ground
    with h5py.File(file, "a") as damaged:
        damaged["walk/ground"][0] = np.nan
    assert "'walk'" in refusal("ground", read_motions, file)


def test_files_of_version_3_are_read(path: Path) -> None:
    """They differ only in that no motion has a ground."""
    with h5py.File(path, "a") as file:
        file.attrs["version"] = 3
    assert read_motions(path).names == make_set().names
    with h5py.File(path, "a") as file:
        file.attrs["version"] = 2
    assert "retarget again" in refusal("version is 2, expected 4", read_motions, path)


@pytest.mark.parametrize(
    ("expected", "key"),
    [
        ({"model_sha256": "cd" * 32}, "model_sha256"),
        ({"joint_names": ("hip", "ankle")}, "joint 1 is 'knee', expected 'ankle'"),
        ({"body_names": ("base", "shank", "thigh")}, "body 1 is 'thigh', expected 'shank'"),
    ],
)
def test_another_robot_is_refused(path: Path, expected: dict, key: str) -> None:
    assert "motions.h5" in refusal(key, read_motions, path, **expected)


def put(key: str, value: np.ndarray) -> Callable[[h5py.File], None]:
    """An array in place of another."""

    def change(file: h5py.File) -> None:
        if key in file:
            del file[key]
        file[key] = value

    return change


SPOILT: dict[str, tuple[Callable[[h5py.File], object], str]] = {
    "version": (lambda file: file.attrs.__setitem__("version", 5), "version"),
    "nan": (lambda file: file["walk/qpos"].__setitem__((3, 2), np.nan), "'walk': qpos .* frame 3"),
    "array": (lambda file: file.pop("a trot/qpos"), "clip 'a trot': qpos"),
    "columns": (put("walk/qpos", np.eye(10)[[3] * 50]), "'walk': qpos has 3 joints"),
    "stray": (put("stray", np.zeros(3)), "'stray'"),
}


def spoil(path: Path, how: str) -> None:
    with h5py.File(path, "r+") as file:
        SPOILT[how][0](file)


@pytest.mark.parametrize("how", SPOILT)
def test_spoilt_files(path: Path, how: str) -> None:
    spoil(path, how)
    assert refusal(SPOILT[how][1], read_motions, path).count("motions.h5") == 1


def test_checksums(path: Path) -> None:
    with h5py.File(path) as file:
        chunk = file["walk/qpos"].id.get_chunk_info(0)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset + chunk.size // 2] ^= 1
    path.write_bytes(bytes(data))
    refusal("clip 'walk': qpos is damaged", read_motions, path)
    assert read_motions(path, clips=["b"]).names == ("b",)  # the others are not read


def test_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_motions(tmp_path / "m.h5", make_set("old"))
    refusal(
        "no motions", write_motions, tmp_path / "m.h5", dataclasses.replace(make_set(), motions=())
    )

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(h5py.Group, "create_dataset", fail)
    with pytest.raises(OSError, match="disk full"):
        write_motions(tmp_path / "m.h5", make_set("new"))
    assert [path.name for path in tmp_path.iterdir()] == ["m.h5"]
    assert read_motions(tmp_path / "m.h5").names == ("old",)


def rich_motion(name: str = "walk_c01_lr", seed: int = 0) -> ReferenceMotion:
    """A motion with every field set to something that is not the default."""
    motion = make_motion(name, seed=seed)
    rng = np.random.default_rng(seed)
    return dataclasses.replace(
        motion,
        contacts=rng.random((50, 4)) < 0.5,
        frame_quality={"marker_rms_m": rng.random(50), "marker_max_m": rng.random(50)},
        recording="walk",
        start_s=10.0,
        mirror="left_right",
        split="validation",
        weight=1.7,
    )


FIELDS = ("recording", "start_s", "mirror", "split", "weight")


def test_every_field_round_trips(tmp_path: Path) -> None:
    wrote = rich_motion()
    write_motions(
        tmp_path / "m.h5", dataclasses.replace(make_set(), motions=(wrote, make_motion("plain")))
    )
    motions = read_motions(tmp_path / "m.h5")
    rich = motions["walk_c01_lr"]
    plain = motions["plain"]
    assert rich.contacts is not None and rich.contacts.dtype == np.bool_
    assert not rich.contacts.flags.writeable
    np.testing.assert_array_equal(rich.contacts, wrote.contacts)
    # by name, as HDF5 keeps them
    assert list(rich.frame_quality) == ["marker_max_m", "marker_rms_m"]
    for key, values in wrote.frame_quality.items():
        np.testing.assert_array_equal(rich.frame_quality[key], values)
    for key in (*FIELDS, "quality"):
        assert getattr(rich, key) == getattr(wrote, key)
    assert plain.contacts is None and not plain.frame_quality
    assert [getattr(plain, key) for key in FIELDS] == ["", 0.0, "", "", 1.0]
    assert list(splits_in(tmp_path / "m.h5").values()) == [wrote.split, ""]


def test_select() -> None:
    motions = [
        dataclasses.replace(make_motion(name), split=split)
        for name, split in [("a", "train"), ("b", "validation"), ("c", "train")]
    ]
    motion_set = dataclasses.replace(make_set(), motions=tuple(motions))
    assert motion_set.select().names == ("a", "b", "c")
    assert motion_set.select(split="train").names == ("a", "c")
    assert motion_set.select(["c", "b"]).names == ("c", "b")
    assert motion_set.select(["c", "b"], split="validation").names == ("b",)
    assert motion_set.select(split="train").provenance == motion_set.provenance
    refusal("'d'", motion_set.select, ["d"])
    refusal("'test'", motion_set.select, split="test")
    refusal("split=validation", motion_set.select, ["a"], split="validation")
    refusal("'train'", make_set().select, split="train")


def test_errors_of_single_clips_are_collected(path: Path) -> None:
    spoil(path, "array")
    spoil(path, "nan")
    refused: list[InputError] = []
    assert read_motions(path, refused=refused).names == ("b",)
    expected = [", clip 'a trot':", ": motion 'walk':"]
    assert [str(error).partition("motions.h5")[2][:16] for error in refused] == expected
