"""Where metrics can be looked at: TensorBoard, and Weights & Biases without a network."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest

from npmp.learning import loggers
from tests.refusals import refusal


def test_what_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal("no logger 'paper'; available: tensorboard, wandb, none", loggers.check, "paper")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert loggers.check("tensorboard") == "tensorboard"
    refusal(r"logger=wandb needs the package wandb: .* pip install wandb", loggers.check, "wandb")


def test_none_is_no_board(tmp_path: Path) -> None:
    assert loggers.open_logger("none", tmp_path, settings={}, done=None) is None
    assert not list(tmp_path.iterdir())


def test_tensorboard_hides_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for done, steps in ((None, (10, 20, 30)), (20, (30, 40))):
        board = loggers.open_logger("tensorboard", tmp_path, settings={}, done=done)
        assert board is not None
        for step in steps:
            board.write({"loss": step + (done or 0) / 100, "none": math.nan}, step)
        board.flush()  # a kill would lose nothing from here on
        board.close()
    events = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"]
    expected = [(10, 10), (20, 20), (30, 30.2), (40, 40.2)]
    assert [(e.step, round(e.value, 3)) for e in events.Scalars("loss")] == expected


def test_wandb_works_offline_and_goes_on_with_the_same_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    for done, step in ((None, 10), (10, 20)):
        board = loggers.open_logger("wandb", tmp_path, settings={"seed": 0}, done=done)
        assert board is not None
        board.write({"loss": 1.0, "none": math.nan}, step)
        board.flush()
        board.close()
    name = json.loads((tmp_path / "wandb.json").read_text())["id"]
    kept = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert kept and all(name in folder.name for folder in kept)
    assert all(list(folder.glob(f"run-{name}.wandb")) for folder in kept)
