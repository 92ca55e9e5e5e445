from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

import mocap_data
from mocap_data import input_files
from mocap_data.errors import InputError
from mocap_data.readers import is_recording
from tests.refusals import refusal


def special_files(folder: Path) -> dict[str, Path]:
    """Irregular files by kind; opening the FIFO would block."""
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    (folder / "link").symlink_to(folder / "fifo")
    (folder / "loop").symlink_to(folder / "loop")
    special = {name: folder / name for name in ("fifo", "folder", "link", "loop", "absent")}
    return {**special, "device": Path("/dev/zero"), "null": Path("a\0b")}


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    for path in special_files(tmp_path).values():
        refusal("", input_files.read_text, path)
    # its name must be short
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{short}/s")
        refusal("not a regular file", input_files.regular_file, f"{short}/s")
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xff" * 10)
    refusal(r"has 10 bytes; at most 9 are read", input_files.regular_file, file, at_most=9)
    refusal(r"not UTF-8 text \(byte 0\)", input_files.read_text, file)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a": 1,\n"b" 2}'])
def test_invalid_json(text: str) -> None:
    assert refusal("JSON", input_files.parse_json, text, "a.json").startswith("a.json")


def test_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('\ufeff{"a": ["[[[", 1.5]}' + " " * 100, encoding="utf-8")
    assert input_files.read_json(tmp_path / "a.json") == {"a": ["[[[", 1.5]}


def test_errors_of_libraries_become_one_line() -> None:
    for error in (RecursionError(), MemoryError(), KeyError("a\nb"), OSError(5, "I/O error")):
        with pytest.raises(InputError, match=r"^a\.h5: ") as caught, input_files.reading("a.h5"):
            raise error
        assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(InputError, match=r"^unchanged$"), input_files.reading("a.h5"):
        raise InputError("unchanged")
    with pytest.raises(KeyboardInterrupt), input_files.reading("a.h5"):
        raise KeyboardInterrupt


def test_require_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert input_files.available_memory() > 1 << 20
    refusal("^a replay needs about 931,322", input_files.require_memory, 1e15, "a replay")
    input_files.require_memory(1e3, "a replay")
    monkeypatch.setattr(Path, "read_text", lambda self: "")  # neither /proc nor a cgroup
    assert input_files.available_memory() > 1 << 20


def pointer(path: Path, size: int = 1234567) -> Path:
    """A file as Git LFS leaves it where the contents were not downloaded."""
    lines = (
        "version https://git-lfs.github.com/spec/v1",
        f"oid sha256:{'a1' * 32}",
        f"size {size}",
    )
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("suffix", ["amc", "h5", "npz", "pkl"])
def test_a_pointer_of_git_lfs_is_named_by_every_reader(suffix: str, tmp_path: Path) -> None:
    path = pointer(tmp_path / f"walk.{suffix}")
    message = r"Git LFS pointer.*1,234,567 bytes"
    refusal(message, mocap_data.read, path)
    refusal(message, input_files.read_text, path)
    assert is_recording(path) == (suffix != "pkl")
