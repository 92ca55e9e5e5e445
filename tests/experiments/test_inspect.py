"""`npmp inspect`: every kind of file and folder, and what is wrong with a broken one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.experiments.command import Inspects


def spoil(path: Path, how: str) -> None:
    with h5py.File(path, "r+") as file:
        first = next(iter(file))
        change: dict[str, Callable[[], Any]] = {
            "provenance": lambda: file.attrs.__setitem__("provenance", "{cut"),
            "nan": lambda: file[f"{first}/qpos"].__setitem__((3, 8), np.nan),
            "missing": lambda: file[first].__delitem__("qpos"),
            "sha": lambda: file.attrs.__setitem__("model_sha256", "ab" * 32),
            "robot": lambda: file.attrs.__setitem__("robot", "hexapod"),
            "chunk": lambda: None,
        }
        change[how]()
        chunk = file[f"{first}/qpos"].id.get_chunk_info(0) if how == "chunk" else None
    if chunk is not None:
        content = bytearray(path.read_bytes())
        middle = chunk.byte_offset + chunk.size // 2
        content[middle : middle + 8] = bytes(byte ^ 0xFF for byte in content[middle : middle + 8])
        path.write_bytes(content)


def test_a_sound_dataset_has_no_problems(data: Path, inspected: Inspects) -> None:
    result, printed = inspected(data)
    assert "problems" not in result
    assert result["kind"] == "reference motions"
    assert [clip["frames"] for clip in result["clips"]] == [100, 150]
    assert not any(line.startswith("problems") for line in printed.splitlines())


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("provenance", "attribute 'provenance' is not a JSON object"),
        ("nan", "qpos has a value that is not finite at frame 3"),
        ("missing", "qpos"),
        ("sha", "model_sha256"),
        ("robot", "no robot 'hexapod'"),
        ("chunk", "qpos is damaged"),
    ],
)
def test_a_broken_dataset_says_what_is_wrong(
    data: Path, tmp_path: Path, inspected: Inspects, how: str, message: str
) -> None:
    path = tmp_path / "motions.h5"
    shutil.copy(data, path)
    spoil(path, how)
    result, printed = inspected(path, code=2)
    last = printed.splitlines()[-1]
    assert last.startswith("problems: ") and message in last
    assert len(result["problems"]) == 1  # said once, not per clip
    assert result["kind"] == "reference motions"
    assert len(result["clips"]) == 2
    assert len(result["joint_names"]) == 12


def rewrite(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["module", "policy"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights, about: flip_last_byte(weights), "checksum differs"),
        (lambda weights, about: weights.unlink(), "safetensors' is missing"),
        (lambda weights, about: rewrite(about, robot=None), "lacks robot"),
        (lambda weights, about: rewrite(about, robot="hexapod"), "no robot 'hexapod'"),
        (lambda weights, about: about.write_text("{"), "no valid JSON"),
    ],
)
def test_modules_and_policies(
    trained: Path,
    policy: Path,
    tmp_path: Path,
    inspected: Inspects,
    kind: str,
    change: Callable[[Path, Path], None],
    message: str,
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained / "module" if kind == "module" else policy, folder)
    result, _ = inspected(folder)
    assert "problems" not in result
    assert result["kind"] == ("skill module" if kind == "module" else "policy")
    assert result["robot"] == "anymal_b" and result["weights"] > 100
    change(folder / f"{kind}.safetensors", folder / f"{kind}.json")
    result, printed = inspected(folder, code=2)
    last = printed.splitlines()[-1]
    assert last.startswith("problems: ") and message in last
    assert "kind: " in printed


def test_runs(trained: Path, tmp_path: Path, inspected: Inspects) -> None:
    result, _ = inspected(trained)
    assert result["kind"] == "run folder of npmp imitate"
    assert "tracked_fraction" in result["last metrics"]
    broken = tmp_path / "broken"
    shutil.copytree(trained, broken)
    (broken / "config.yaml").write_text("a: [")
    (broken / "metrics.csv").write_bytes(b"a,b\n\xff,1\n")
    result, printed = inspected(broken, code=2)
    assert len(result["problems"]) == 2
    last = printed.splitlines()[-1]
    assert "config.yaml" in last and "metrics.csv" in last


def test_a_dataset_is_inspected_without_torch(data: Path) -> None:
    program = (
        "import sys; from npmp.experiments import cli; code = cli.main(sys.argv[1:]); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, "inspect", str(data)], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
