from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

import mocap_data
from mocap_data import outside
from mocap_data.errors import InputError
from mocap_data.readers import is_recording
from tests.refusals import refusal


def special_files(folder: Path) -> dict[str, Path]:
    """What is no regular file, by kind; opening the FIFO would wait for ever."""
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    (folder / "link").symlink_to(folder / "fifo")
    (folder / "loop").symlink_to(folder / "loop")
    found = {name: folder / name for name in ("fifo", "folder", "link", "loop", "absent")}
    return {**found, "device": Path("/dev/zero"), "null": Path("a\0b")}


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    for path in special_files(tmp_path).values():
        refusal("", outside.read_text, path)
    # its name must be short
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{short}/s")
        refusal("no regular file", outside.regular_file, f"{short}/s")
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xff" * 10)
    refusal(r"has 10 bytes; at most 9 are read", outside.regular_file, file, at_most=9)
    refusal(r"not UTF-8 text \(byte 0\)", outside.read_text, file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 65 + "]" * 65, "nested more than 64 levels"),
        (" " * (2 << 20) + '{"a":' * 80 + "1" + "}" * 80, "nested more than 64 levels"),
        ("[" * 200_000, "no JSON that can be read"),
        ("1" * 6000, "no JSON that can be read"),
        ('{"a": 1,\n"b" 2}', "line 2: no valid JSON"),
        ('{"a": 1', "cut short"),
    ],
)
def test_json_that_is_none(text: str, message: str) -> None:
    refusal(message, outside.parse_json, text, "a.json")


def test_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('\ufeff{"a": ["[[[", 1.5]}' + " " * 100, encoding="utf-8")
    assert outside.read_json(tmp_path / "a.json") == {"a": ["[[[", 1.5]}
    assert outside.parse_json("[" * 64 + "]" * 64, "a")


def test_whatever_a_library_raises_becomes_one_line() -> None:
    for error in (
        RecursionError(),
        MemoryError(),
        KeyError("a\nb"),
        SystemError(),
        OSError(5, "Input/output error"),
    ):
        with pytest.raises(InputError, match=r"^a\.h5: ") as found, outside.reading("a.h5"):
            raise error
        assert len(str(found.value).splitlines()) == 1
    with pytest.raises(InputError, match=r"^as it is$"), outside.reading("a.h5"):
        raise InputError("as it is")
    with pytest.raises(KeyboardInterrupt), outside.reading("a.h5"):
        raise KeyboardInterrupt


def test_memory_is_asked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outside.available_memory() > 1 << 20
    with pytest.raises(InputError, match=r"^a replay needs about 931,322\.6 GiB of memory; "):
        outside.require_memory(1e15, "a replay")
    outside.require_memory(1e3, "a replay")
    monkeypatch.setattr(Path, "read_text", lambda self: "")  # neither /proc nor a cgroup
    assert outside.available_memory() > 1 << 20


def pointer(path: Path, size: int = 1234567) -> Path:
    """A file as Git LFS leaves it where the contents were not downloaded."""
    lines = (
        "version https://git-lfs.github.com/spec/v1",
        f"oid sha256:{'a1' * 32}",
        f"size {size}",
    )
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    "suffix", ["amc", "bvh", "c3d", "csv", "h5", "hdf5", "json", "npz", "txt", "pkl"]
)
def test_a_pointer_of_git_lfs_is_named_by_every_reader(suffix: str, tmp_path: Path) -> None:
    path = pointer(tmp_path / f"walk.{suffix}")
    message = r"is a Git LFS pointer, not the file \(1,234,567 bytes\): git lfs pull"
    refusal(message, mocap_data.read, path)
    refusal(message, outside.read_text, path)
    assert is_recording(path) == (suffix != "pkl")


def test_a_text_about_git_lfs_is_no_pointer(tmp_path: Path) -> None:
    path = pointer(tmp_path / "notes.txt")
    path.write_text(f"In this folder:\n{path.read_text()}")
    assert outside.pointer_size(path) is None
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:a1\n")
    assert outside.pointer_size(path) is None
