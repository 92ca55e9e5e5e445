"""The progress line in the terminal."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from npmp.core.progress import announce, counted, phase
from npmp.learning import live
from npmp.learning.live import LiveLine, live_line
from npmp.learning.run_files import RunLog


def test_the_line_keeps_the_latest_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = RunLog(tmp_path, 3, evaluation_keys=("tracked_s",), progress=LiveLine())
    log.write(1, 10, {"loss": 0.5, "tracked_s": 1.5, "kl": 0.25, "beta": 0.01}, env_steps_here=10)
    log.write(2, 20, {"loss": 1.0}, env_steps_here=20)
    log.write(3, 30, {"loss": 1.5, "kl": 0.5}, env_steps_here=30)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("iteration 3/3  ")
    assert " steps/s  0:00 left  tracked_s 1.5  kl 0.5" in line


def test_the_line_has_the_first_and_the_latest_evaluations() -> None:
    curves = {"velocity_error": [0.5, 0.4, 0.3, 0.2, 0.1], "tracked_s": [0.25], "reward": []}
    line = live_line(5, 9, None, 61.0, {"kl": 2.0}, curves)
    assert line == (
        "iteration 5/9  1:01 left  tracked_s 0.25  velocity_error 0.5 > 0.3 > 0.2 > 0.1  kl 2"
    )


def test_speed_excludes_warm_up_and_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 890 s of warm-up and compilation iterations of 2 s: 97 of 100 take 194 s."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "process_time", lambda: 2.0 * now[0])
    rates: list[tuple[float | None, float | None]] = []
    line = LiveLine()
    monkeypatch.setattr(line, "show", lambda i, n, speed, left, *_: rates.append((speed, left)))
    log = RunLog(tmp_path, 100, progress=line)
    for iteration, at in ((1, 890.0), (2, 892.0), (3, 894.0)):
        now[0] = at
        log.write(iteration, 50 * iteration, {}, env_steps_here=50 * iteration)
    assert rates == [(None, None), (25.0, 196.0), (25.0, 194.0)]
    rows = (tmp_path / "timing.csv").read_text().splitlines()
    assert rows[1:] == ["1,890.0,1780.0,", "2,892.0,1784.0,25.0", "3,894.0,1788.0,25.0"]


def test_phases_are_named_and_updated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seconds in (("TICK_S", 0.01), ("PLAIN_S", 0.05), ("PHASE_S", 0.0)):
        monkeypatch.setattr(live, name, seconds)
    with LiveLine():
        announce("making 3 robots")
        with phase("fitting"):
            for i in counted(4):
                time.sleep(0.1 * (i == 2))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "making 3 robots  0:00" and "fitting  0:00" in lines
    # updated during a step of 0.1 s
    assert lines.count("fitting  2/4  0:00") >= 1
