"""The checkpoint that a run resumes from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from npmp.core import checkpoint
from npmp.learning.run import starting_point


def test_the_latest_checkpoint_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert starting_point(None) is None
    assert starting_point(tmp_path) is None
    assert "no checkpoint" in capsys.readouterr().err
    checkpoint.save(tmp_path / "checkpoints", 3, {"a": torch.ones(1)}, {})
    latest = starting_point(tmp_path)
    assert latest is not None and latest[0] == 3 and capsys.readouterr().err == ""
