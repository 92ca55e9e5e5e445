"""Where a run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from npmp.core import checkpoint
from npmp.learning.run import starting_point
from tests.refusals import refusal


def test_the_newest_checkpoint_or_afresh(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert starting_point(None) is None
    for made in ("absent", "empty"):
        if made == "empty":
            (tmp_path / "checkpoints").mkdir()
        assert starting_point(tmp_path) is None
        assert "holds no checkpoint yet: starting afresh" in capsys.readouterr().err
    checkpoint.save(tmp_path / "checkpoints", 3, {"a": torch.ones(1)}, {})
    found = starting_point(tmp_path)
    assert found is not None and found[0] == 3 and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("target", "message"),
    [("checkpoints", "Too many levels"), ("nowhere", "No such file"), ("a.txt", "Not a dir")],
)
def test_what_is_no_folder_of_checkpoints_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, message: str
) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "checkpoints").symlink_to(tmp_path / target)
    refusal(f"checkpoints: {message}", starting_point, tmp_path)
    assert capsys.readouterr().err == ""
