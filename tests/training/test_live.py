"""What a training verb shows in the terminal."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from npmp.training.live import LiveLine, live_line
from npmp.training.run_files import RunLog


def test_the_live_line_remembers_what_was_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = RunLog(tmp_path, 3, judged=("tracked_s",), progress=LiveLine())
    log.write(
        1, 10, {"loss": 0.5, "tracked_s": 1.5, "kl": 0.25, "beta": 0.01}, env_steps_done_here=10
    )
    log.write(2, 20, {"loss": 1.0}, env_steps_done_here=20)
    log.write(3, 30, {"loss": 1.5, "kl": 0.5}, env_steps_done_here=30)  # the last is shown always
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("3/3  ") and " steps/s  0:00 left  tracked_s 1.5  kl 0.5" in line


def test_the_live_line_in_full() -> None:
    figures = {
        "kl": 0.5,
        "tracked_s": 1.25,
        "model_loss": math.nan,
        "unknown": 1.0,
        "loss_policy": -2.0,
    }
    expected = "7/10  1,234 steps/s  1:02:03 left  tracked_s 1.25  loss_policy -2  kl 0.5"
    assert live_line(7, 10, 1234.5, figures, 3723.0) == expected
