"""Logs of stands, written and read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mocap_data.errors import InputError
from npmp.actuators import read_log
from npmp.identification import Recording, StandLog, read_stand_log, write_stand_log

MOMENTS = np.linspace(0.0, 1.0, 21)


def recording(**others: np.ndarray) -> Recording:
    command = np.stack((MOMENTS, -MOMENTS), -1)
    return Recording("chirp", command, command + 0.5, **others)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    log = StandLog(20.0, ("a", "b"), (recording(),))
    write_stand_log(tmp_path / "log.npz", log, licence="CC0-1.0")
    read = read_stand_log(tmp_path / "log.npz")
    assert (
        read.rate_hz == 20.0
        and read.joints == ("a", "b")
        and read.seconds == pytest.approx(21 / 20)
    )
    assert read.recordings[0].position == pytest.approx(log.recordings[0].position)
    assert read.recordings[0].velocity is None and read.recordings[0].torque is None


def test_a_log_with_all_is_a_log_of_actuators_too(tmp_path: Path) -> None:
    one = np.ones((21, 2))
    write_stand_log(
        tmp_path / "log.npz", StandLog(20.0, ("a", "b"), (recording(velocity=one, torque=2 * one),))
    )
    traces = read_log(tmp_path / "log.npz").traces
    assert [trace.actuator for trace in traces] == ["a", "b"]
    assert traces[0].position_error == pytest.approx(-0.5) and traces[1].torque == pytest.approx(
        2.0
    )


def test_uneven_moments_become_even(tmp_path: Path) -> None:
    time = np.delete(np.arange(30) / 10.0, 7)
    values = np.stack((time, 2 * time), -1)
    np.savez(
        tmp_path / "log.npz", time_s=time, command=values, position=values, actuators=["a", "b"]
    )
    read = read_stand_log(tmp_path / "log.npz")
    assert read.rate_hz == 10.0
    assert read.recordings[0].command[:, 1] == pytest.approx(2 * np.arange(30) / 10.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"command": None}, "no command"),
        ({"actuators": None}, "must name the joints"),
        ({"position": np.full((21, 2), np.nan)}, "holds no number"),
        ({"torque": np.zeros((20, 2))}, r"torque is \[20, 2\]"),
        ({"rate_hz": None}, "neither time_s"),
        ({"rate_hz": -1.0}, "between 0 and"),
        ({"rate_hz": 0.0, "time_s": np.arange(21.0)}, "between 0 and"),
        ({"rate_hz": "fast"}, "rate_hz must be one number"),
        ({"rate_hz": np.ones(2)}, "rate_hz must be one number"),
        ({"actuators": "knee"}, "`actuators` must be a row of names"),
        ({"position": np.array(1.0)}, r"command is \[21, 2\]"),
        ({"command": np.zeros((20, 2))}, r"command is \[20, 2\], expected"),
        ({"time_s": np.array(1.0)}, "time_s must be 16 numbers or more"),
        ({"time_s": np.array(["x"] * 21)}, "time_s must be 16 numbers or more"),
        ({"time_s": np.append(np.arange(20) / 20, 1e9)}, "a pause of 1e.09 s"),
    ],
)
def test_what_lacks_something_is_refused(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    good = {
        "rate_hz": 20.0,
        "actuators": ["a", "b"],
        "command": np.zeros((21, 2)),
        "position": np.zeros((21, 2)),
    }
    entries = {name: value for name, value in (good | change).items() if value is not None}
    np.savez(tmp_path / "log.npz", **entries)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=words):
        read_stand_log(tmp_path / "log.npz")
