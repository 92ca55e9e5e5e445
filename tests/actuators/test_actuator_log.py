"""Logs of actuators: splits, files, errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmp.actuators import ActuatorLog, HeldOut, Trace, read_log, write_log
from npmp.actuators.actuator_log import (
    CONSTANTS,
    JointRecording,
    StandLog,
    at_rate,
    read_stand_log,
    unit_warnings,
    write_stand_log,
)
from tests.refusals import refusal


def trace(recording: str = "run", actuator: str = "knee", samples: int = 100, **more: Any) -> Trace:
    rows = np.arange(3 * samples, dtype=np.float32).reshape(3, samples) / 100
    return Trace(recording, actuator, *rows, **more)


def written(path: Path, **arrays: Any) -> Path:
    """A file of these, None left out."""
    np.savez(path / "log.npz", **{k: v for k, v in arrays.items() if v is not None})
    return path / "log.npz"


def named(prefix: str, arrays: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}/{name}": values for name, values in arrays.items()}


def test_the_end_of_every_trace_is_kept_aside() -> None:
    log = ActuatorLog(100.0, (trace(), trace(actuator="hip", samples=60)))
    first, last = log.split(HeldOut(0.3))
    assert last is not None
    assert [len(t) for t in (*first.traces, *last.traces)] == [70, 42, 30, 18]
    assert last.traces[0].torque[0] == log.traces[0].torque[70]
    assert first.traces[0].torque[0] == log.traces[0].torque[0]
    assert (log.seconds, first.seconds) == (pytest.approx(1.6), pytest.approx(1.12))


def test_recordings_and_actuators_are_kept_aside_as_a_whole() -> None:
    pairs = [(r, a) for r in ("chirp_1", "chirp_2", "step") for a in ("knee", "hip")]
    log = ActuatorLog(100.0, tuple(trace(*pair) for pair in pairs))
    first, last = log.split(HeldOut(0.0, recordings=["chirp_*"]))
    assert last is not None
    assert (first.recordings, last.recordings) == (["step"], ["chirp_1", "chirp_2"])
    first, last = log.split(HeldOut(0.5, actuators=["hip"]))
    assert last is not None and first.actuators == ["knee"]
    assert {(t.actuator, len(t)) for t in last.traces} == {("knee", 50), ("hip", 100)}
    assert log.split(HeldOut(0.0))[1] is None
    refusal("'jump'", log.split, HeldOut(recordings=["jump"]))
    refusal("validation", log.split, HeldOut(recordings=["*"]))
    with pytest.raises(ValueError, match="share=1"):
        HeldOut(1.0)


def test_an_npz_file_comes_back(tmp_path: Path) -> None:
    warm = {name: np.full(100, 40.0, np.float32) for name in ("temperature", "position")}
    pair = (
        trace(others=warm, kp=2.0, kd=0.5, limit=3.0, inertia=0.5, gravity=2.0),
        trace(actuator="hip", others=warm, kp=1.0, kd=0.0, limit=9.0, inertia=0.5, gravity=0.0),
    )
    log = ActuatorLog(250.0, (*pair, trace("other")), "CC0-1.0", "somewhere")
    write_log(tmp_path / "log.npz", log)
    back = read_log(tmp_path / "log.npz")
    assert (back.rate_hz, back.licence, back.source) == (250.0, "CC0-1.0", "somewhere")
    assert back.recordings == log.recordings
    for mine, theirs in zip(back.traces, log.traces, strict=True):
        assert (mine.recording, mine.actuator) == (theirs.recording, theirs.actuator)
        for name in (*CONSTANTS, "position_error", "velocity", "torque"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
    np.testing.assert_array_equal(back.traces[1].others["temperature"], warm["temperature"])
    assert not back.has_gains and not back.has_pendulums


def test_commands_at_uneven_moments_become_errors_at_even_ones(tmp_path: Path) -> None:
    """position = 2 t, command = 1 + 2 t: the error is 1 at any moment."""
    time = np.sort(np.append(np.arange(50) / 100, [0.1234, 0.2345]))
    angles = {"position": 2 * time, "command": 1 + 2 * time}
    log = read_log(written(tmp_path, time_s=time, velocity=0 * time, torque=5 * time, **angles))
    (result,) = log.traces
    assert (log.rate_hz, len(result)) == (100.0, 50)
    assert (result.recording, result.actuator) == ("log", "actuator_0")
    np.testing.assert_allclose(result.position_error, 1.0, rtol=1e-6)
    np.testing.assert_allclose(result.torque, 5 * np.arange(50) / 100, atol=1e-6)


def test_a_csv_file_holds_a_moment_of_an_actuator_in_a_row(tmp_path: Path) -> None:
    lines = ["recording,actuator,time_s,position_error,velocity,torque,kp"]
    for i in range(20):
        lines += [f"a,{name},{i / 50},{i},{-i},{2 * i},{kp}" for name, kp in (("l", 3), ("r", 4))]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    log = read_log(tmp_path / "log.csv")
    assert log.rate_hz == 50.0 and log.recordings == ["a"] and log.actuators == ["l", "r"]
    assert [t.kp for t in log.traces] == [3.0, 4.0] and log.has_gains
    np.testing.assert_array_equal(log.traces[1].torque, 2 * np.arange(20))
    (tmp_path / "log.csv").write_text("\n".join([*lines, "a,l,9,x,0,0,1"]))
    refusal("line 42: position_error='x'", read_log, tmp_path / "log.csv")


def test_a_csv_file_as_spreadsheets_write_it(tmp_path: Path) -> None:
    """A byte order mark first, blanks behind the commas."""
    lines = ["\ufefftime_s, position_error , velocity, torque"]
    lines += [f"{i / 50}, {i}, 0, {i}" for i in range(20)]
    (tmp_path / "log.csv").write_text("\n".join(lines), encoding="utf-8")
    (result,) = read_log(tmp_path / "log.csv").traces
    np.testing.assert_array_equal(result.position_error, np.arange(20))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"torque": None}, "run lacks torque"),
        ({"velocity": np.zeros(49)}, "run/velocity"),
        ({"time_s": np.zeros(50)}, "time_s"),
        ({"time_s": np.append(np.arange(49) / 100, 0.59)}, "0.11 s after 0.48 s"),
        ({"limit": np.array(-1.0)}, "limit=-1"),
        ({"inertia": np.array(0.1), "gravity": np.array(1.0)}, "inertia"),
    ],
)
def test_what_a_log_lacks_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    rows = dict.fromkeys(("time_s", "position_error", "velocity", "torque"), np.linspace(0, 1, 50))
    refusal(message, read_log, written(tmp_path, **named("run", rows | change)))


def test_a_log_comes_to_another_rate() -> None:
    """Torques of 2, 2.01, ... Nm at 50 Hz: at 190 Hz as much lies between two as time does."""
    warm = {"temperature": np.full(100, 40.0, np.float32)}
    log = ActuatorLog(50.0, (trace(others=warm, kp=2.0),))
    result = at_rate(log, 190.0)
    (one,) = result.traces
    assert result.rate_hz == 190.0 and one.kp == 2.0 and len(one) == 99 * 190 // 50 + 1
    np.testing.assert_allclose(one.torque, 2.0 + np.arange(len(one)) / 190 * 50 / 100, atol=1e-6)
    assert one.others["temperature"].shape == one.torque.shape and result.digest() != log.digest()
    refusal("rate_hz=-1", at_rate, log, -1.0)
    refusal("1 samples", at_rate, log, 0.1)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    write_log(tmp_path / "log.npz", ActuatorLog(100.0, (trace(),)))
    whole = (tmp_path / "log.npz").read_bytes()
    overwritten = whole[:200] + bytes(100) + whole[300:]
    for damaged in (whole[: len(whole) // 2], b"", b"no archive", overwritten):
        (tmp_path / "log.npz").write_bytes(damaged)
        refusal("", read_log, tmp_path / "log.npz")
    refusal("", read_log, tmp_path / "absent.npz")
    refusal("5 samples", ActuatorLog, 100.0, (trace(samples=5),))
    refusal("rate_hz=0", ActuatorLog, 0.0, (trace(),))
    refusal("torque 100", ActuatorLog, 10.0, (replace(trace(), velocity=np.zeros(99, np.float32)),))


def test_other_units_are_doubted() -> None:
    """0.5 rad are 28.6 degrees; 5 ms are 0.2 Hz where they are taken for 5 s."""
    sound, degrees = (replace(trace(), position_error=np.float32([e] * 100)) for e in (0.5, 28.6))
    assert unit_warnings(ActuatorLog(200.0, (sound,))) == []
    (large,) = unit_warnings(ActuatorLog(200.0, (degrees,)))
    assert "28.6 rad, beyond pi; are they in degrees?" in large
    (slow,) = unit_warnings(ActuatorLog(0.2, (sound,)))
    assert "0.2 Hz, below 20; is time_s in ms?" in slow


# --- robots on stands

MOMENTS = np.linspace(0.0, 1.0, 21)
COMMAND = np.stack((MOMENTS, -MOMENTS), -1)


def test_a_stand_log_comes_back_and_is_a_log_of_actuators_where_all_is_known(
    tmp_path: Path,
) -> None:
    path, one = tmp_path / "log.npz", np.ones((21, 2))
    log = StandLog(20.0, ("a", "b"), (JointRecording("chirp", COMMAND, COMMAND + 0.5),))
    write_stand_log(path, log, licence="CC0-1.0")
    back = read_stand_log(path)
    assert (back.rate_hz, back.joints, back.seconds) == (20.0, ("a", "b"), 21 / 20)
    np.testing.assert_allclose(back.recordings[0].position, COMMAND + 0.5)
    assert back.recordings[0].velocity is None and back.recordings[0].torque is None
    refusal("chirp lacks velocity, torque", read_log, path)
    recording = replace(log.recordings[0], velocity=one, torque=2 * one)
    write_stand_log(path, replace(log, recordings=(recording,)))
    first, second = read_log(path).traces
    assert (first.actuator, second.actuator) == ("a", "b")
    assert first.position_error == pytest.approx(-0.5) and second.torque == pytest.approx(2.0)
