"""`npmp inspect`: every kind of file and folder, and what is wrong with a broken one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from npmp.skills.high_level_policy import HighLevelPolicy, PolicyContract
from npmp.skills.nets.high_level import HighLevelConfig
from npmp.skills.skill_module import SkillModule
from tests.experiments.command import Inspects


@pytest.fixture
def policy(trained: Path, tmp_path: Path) -> Path:
    """The folder of an untrained policy for the trained module."""
    module = SkillModule.load(trained / "module")
    contract = PolicyContract(
        robot=module.robot,
        task="walk",
        module_sha256="",
        latent_dim=module.latent_dim,
        alpha=module.prior.alpha,
        observation=module.contract.observation,
        command=["forward", "lateral", "yaw"],
        command_range=[[0.0, 1.0]] * 3,
        net=asdict(HighLevelConfig(input_width=8, hidden_width=8, lstm_width=8)),
        latent_bound=[3.0] * module.latent_dim,
    )
    HighLevelPolicy(contract).save(tmp_path / "policy")
    return tmp_path / "policy"


def put(file: h5py.File, name: str, key: str, value: Any) -> None:
    del file[f"{name}/{key}"]
    file[f"{name}/{key}"] = value


def spoil(path: Path, how: str) -> None:
    with h5py.File(path, "r+") as file:
        first = next(iter(file))
        change: dict[str, Callable[[], Any]] = {
            "provenance": lambda: file.attrs.__setitem__("provenance", "{cut"),
            "provenance bytes": lambda: file.attrs.__setitem__(
                "provenance", np.bytes_(b"\xff\xfe{")
            ),
            "rate": lambda: file[first].attrs.__setitem__("rate_hz", -50.0),
            "no rate": lambda: file[first].attrs.__delitem__("rate_hz"),
            "nan": lambda: file[f"{first}/qpos"].__setitem__((3, 8), np.nan),
            "missing": lambda: file[first].__delitem__("qpos"),
            "lengths": lambda: put(file, first, "contacts", np.zeros((5, 4), np.uint8)),
            "sha": lambda: file.attrs.__setitem__("model_sha256", "ab" * 32),
            "robot": lambda: file.attrs.__setitem__("robot", "hexapod"),
            "version": lambda: file.attrs.__setitem__("version", 99),
            "empty": lambda: [file.__delitem__(name) for name in list(file)],
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
    found, printed = inspected(data)
    assert "problems" not in found
    assert found["kind"] == "reference motions"
    assert [clip["frames"] for clip in found["clips"]] == [100, 150]
    assert not any(line.startswith("problems") for line in printed.splitlines())


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("provenance", "attribute 'provenance' is not a JSON object"),
        ("provenance bytes", "attribute 'provenance' is not a JSON object"),
        ("rate", "rate -50 Hz"),
        ("no rate", "attribute 'rate_hz' is missing"),
        ("nan", "qpos has a value that is not finite at frame 3"),
        ("missing", "qpos"),
        ("lengths", "arrays differ in frames"),
        ("sha", "model_sha256"),
        ("robot", "no robot 'hexapod'"),
        ("version", "version is 99"),
        ("empty", "holds no motions"),
        ("chunk", "qpos is damaged"),
    ],
)
def test_a_broken_dataset_says_what_is_wrong(
    data: Path, tmp_path: Path, inspected: Inspects, how: str, message: str
) -> None:
    path = tmp_path / "motions.h5"
    shutil.copy(data, path)
    spoil(path, how)
    found, printed = inspected(path, code=2)
    last = printed.splitlines()[-1]
    assert last.startswith("problems: ") and message in last
    assert len(found["problems"]) == 1  # said once, not per clip
    assert found["kind"] == "reference motions"
    assert len(found["clips"]) == (0 if how == "empty" else 2)
    assert len(found["joint_names"]) == 12


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
        (lambda weights, about: weights.write_bytes(b"x"), "checksum differs"),
        (lambda weights, about: rewrite(about, robot=None), "lacks robot"),
        (lambda weights, about: rewrite(about, schema="other"), "expected schema"),
        (lambda weights, about: rewrite(about, version=7), "version 7"),
        (lambda weights, about: rewrite(about, net={"lstm_width": -1}), "problems: "),
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
    found, _ = inspected(folder)
    assert "problems" not in found
    assert found["kind"] == ("skill module" if kind == "module" else "policy")
    assert found["robot"] == "anymal_b" and found["weights"] > 100
    change(folder / f"{kind}.safetensors", folder / f"{kind}.json")
    found, printed = inspected(folder, code=2)
    last = printed.splitlines()[-1]
    assert last.startswith("problems: ") and message in last
    assert "kind: " in printed


def test_runs(trained: Path, tmp_path: Path, inspected: Inspects) -> None:
    found, _ = inspected(trained)
    assert found["kind"] == "run folder of npmp imitate"
    assert "tracked_fraction" in found["last metrics"]
    broken = tmp_path / "broken"
    shutil.copytree(trained, broken)
    (broken / "config.yaml").write_text("a: [")
    (broken / "metrics.csv").write_bytes(b"a,b\n\xff,1\n")
    found, printed = inspected(broken, code=2)
    assert len(found["problems"]) == 2
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


def test_another_model_of_the_robot(trained: Path, tmp_path: Path, inspected: Inspects) -> None:
    shutil.copytree(trained / "module", tmp_path / "module")
    rewrite(tmp_path / "module" / "module.json", model_sha256="ab" * 32)
    _, printed = inspected(tmp_path / "module", code=2)
    assert "model_sha256 is abab" in printed.splitlines()[-1]
