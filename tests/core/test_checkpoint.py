"""Checkpoints: whole or absent, the newest sound one found, optimizers brought back to the bit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from npmp.core import artifact, checkpoint
from tests.refusals import refusal


def content(step: int) -> dict[str, torch.Tensor]:
    return {
        "a": torch.full((3, 2), float(step)),
        "count": torch.tensor(step),
        "flag": torch.tensor([True, False]),
    }


def test_round_trip_of_all_types(tmp_path: Path) -> None:
    tensors = content(7) | {
        "double": torch.randn(4, dtype=torch.float64),
        "bytes": torch.get_rng_state(),
        "empty": torch.zeros(0, 3),
        "view": torch.arange(12.0).view(3, 4).T,
    }
    checkpoint.save(tmp_path / "deep" / "er", 7, tensors, {"best": 0.5, "name": "x"})
    step, result, values = checkpoint.load_latest(tmp_path / "deep" / "er")
    assert step == 7 and values == {"best": 0.5, "name": "x"}
    assert set(result) == set(tensors)
    for name, value in tensors.items():
        assert result[name].dtype == value.dtype and torch.equal(result[name], value), name


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 10, 9):
        checkpoint.save(tmp_path, step, content(step), {}, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"checkpoint_{step:010d}.{end}" for step in (9, 10) for end in ("json", "safetensors")
    ]
    assert checkpoint.load_latest(tmp_path)[0] == 10


@pytest.mark.parametrize(
    "damage", ["truncate", "flip", "garble json", "no tensors", "no json", "half written"]
)
def test_a_damaged_newest_falls_back_to_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    checkpoint.save(tmp_path, 1, content(1), {"v": 1})
    newest = checkpoint.save(tmp_path, 2, content(2), {"v": 2})
    data = newest.read_bytes()
    if damage == "truncate":
        newest.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        newest.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "garble json":
        newest.with_suffix(".json").write_text('{"step": 2, "sha')
    elif damage == "no tensors":
        newest.unlink()
    else:  # killed before the description was written, or while the tensors were
        newest.with_suffix(".json").unlink()
        if damage == "half written":
            newest.rename(newest.with_name(newest.name + ".tmp"))
    step, tensors, values = checkpoint.load_latest(tmp_path)
    assert step == 1 and values == {"v": 1} and torch.equal(tensors["a"], content(1)["a"])
    lines = capsys.readouterr().err.splitlines()
    if damage in ("no json", "half written"):  # an ordinary kill
        assert lines == []
    else:
        assert len(lines) == 1 and "checkpoint_0000000002" in lines[0]
        assert lines[0].endswith("checkpoint_0000000001")


@pytest.mark.parametrize(
    "text",
    ["[]", '{"step": "2", "sha256": 5, "values": {}}', '{"step": 1, "sha256": "", "values": []}'],
)
def test_a_description_of_another_shape_is_passed_over(tmp_path: Path, text: str) -> None:
    checkpoint.save(tmp_path, 2, content(2), {"v": 2}).with_suffix(".json").write_text(text)
    refusal("no usable checkpoint", checkpoint.load_latest, tmp_path)
    checkpoint.save(tmp_path, 1, content(1), {"v": 1})
    assert checkpoint.load_latest(tmp_path)[0] == 1


def test_links_to_themselves_and_pipes_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refusal("loop", checkpoint.load_latest, tmp_path / "loop")
    path = checkpoint.save(tmp_path / "run", 1, content(1), {})
    data = path.read_bytes()
    path.write_bytes((1 << 40).to_bytes(8, "little") + data[8:])
    refusal(path.name, artifact.read_tensors, path)
    path.unlink()
    os.mkfifo(path)
    refusal("not a regular file", checkpoint.load_latest, tmp_path / "run")
    path.unlink()
    path.symlink_to(path.name)
    refusal("no usable checkpoint", checkpoint.load_latest, tmp_path / "run")


def test_nothing_usable_is_one_clear_line(tmp_path: Path) -> None:
    refusal("no checkpoint in", checkpoint.load_latest, tmp_path / "absent")
    checkpoint.save(tmp_path, 3, content(3), {}).write_bytes(b"not a tensor")
    message = r"no usable checkpoint.*checkpoint_0000000003.*checksum"
    refusal(message, checkpoint.load_latest, tmp_path)


def test_a_failed_save_leaves_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, 1, content(1), {})
    before = sorted(p.name for p in tmp_path.iterdir())

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(artifact, "save_file", full)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(tmp_path, 2, content(2), {})
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_an_optimizer_goes_on_to_the_bit() -> None:
    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        for i in range(steps):
            optimizer.zero_grad()
            model(torch.full((2, 3), float(i))).square().sum().backward()
            optimizer.step()

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer, 5)
    kept = {k: v.clone() for k, v in checkpoint.optimizer_tensors(optimizer).items()}
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    train(model, optimizer, 3)

    other = torch.nn.Linear(3, 2)
    other.load_state_dict(weights)
    resumed = torch.optim.Adam(other.parameters(), lr=0.01)
    checkpoint.load_optimizer_tensors(resumed, kept)
    train(other, resumed, 3)
    assert torch.equal(model.weight, other.weight) and torch.equal(model.bias, other.bias)
    assert checkpoint.optimizer_tensors(torch.optim.Adam(other.parameters())) == {}


def test_moments_of_other_parameters_are_refused_by_name() -> None:
    weights = [torch.zeros(2, 3, requires_grad=True), torch.zeros(4, requires_grad=True)]
    optimizer = torch.optim.Adam(weights)
    for key, value in (
        ("2.exp_avg", torch.zeros(4)),
        ("1.exp_avg", torch.zeros(2, 3)),
        ("x.step", torch.tensor(1.0)),
    ):
        message = f"the optimizer's {key} "
        with pytest.raises(ValueError, match=message):
            checkpoint.load_optimizer_tensors(optimizer, {"0.step": torch.tensor(1.0), key: value})
    assert not optimizer.state


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint_0000000003-abcd1234.safetensors").write_bytes(b"half")
    (tmp_path / "checkpoint_0000000003.safetensors").write_bytes(b"whole, but not described")
    for step in (1, 2, 4):
        checkpoint.save(tmp_path, step, content(step), {}, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"checkpoint_{step:010d}.{end}" for step in (2, 4) for end in ("json", "safetensors")
    ]


@pytest.mark.parametrize(
    ("number", "reason"), [(28, "No space left on device"), (27, "File too large")]
)
def test_a_disk_that_is_full_is_an_error_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    def full(*_: object) -> None:
        raise SafetensorError(f"Error while serializing: I/O error: {reason} (os error {number})")

    monkeypatch.setattr(artifact, "save_file", full)
    message = rf"\[Errno {number}\] {reason}.*checkpoint_0000000002\.safetensors'$"
    with pytest.raises(OSError, match=message):
        checkpoint.save(tmp_path, 2, content(2), {})
    assert not list(tmp_path.iterdir())
