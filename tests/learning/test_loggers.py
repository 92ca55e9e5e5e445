"""TensorBoard, and Weights & Biases offline."""

from __future__ import annotations

import importlib.util
import json
import math
import time
from pathlib import Path

import pytest

from npmp.learning import loggers
from tests.refusals import refusal


def test_unknown_and_missing_loggers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal("logger", loggers.check, "paper")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refusal("logger=wandb", loggers.check, "wandb")


def test_tensorboard_hides_events_after_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    now = time.time()
    for done, steps in ((None, (10, 20, 30)), (20, (30, 40))):
        # readers sort the files by the second of their start
        now += 1.0
        monkeypatch.setattr(time, "time", lambda now=now: now)
        board = loggers.open_logger("tensorboard", tmp_path, settings={}, resume_env_steps=done)
        assert board is not None
        for step in steps:
            board.write({"loss": step + (done or 0) / 100, "none": math.nan}, step)
        board.flush()
        board.close()
    events = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"]
    expected = [(10, 10), (20, 20), (30, 30.2), (40, 40.2)]
    assert [(e.step, round(e.value, 3)) for e in events.Scalars("loss")] == expected


def test_wandb_works_offline_and_keeps_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    for done, step in ((None, 10), (10, 20)):
        board = loggers.open_logger("wandb", tmp_path, settings={"seed": 0}, resume_env_steps=done)
        assert board is not None
        board.write({"loss": 1.0, "none": math.nan}, step)
        board.flush()
        board.close()
    name = json.loads((tmp_path / "wandb.json").read_text())["id"]
    folders = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert folders and all(name in folder.name for folder in folders)
    assert all(list(folder.glob(f"run-{name}.wandb")) for folder in folders)
