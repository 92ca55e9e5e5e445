"""Logs of runs: round trip, figures, comparison."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import h5py
import numpy as np
import pytest

from mocap_data.errors import InputError
from npmp.deploy.controller import Controller, ControllerConfig, ControlMode, drive
from npmp.deploy.log_comparison import channels, compare, difference, summary_lines
from npmp.deploy.run_log import (
    FILE,
    JOURNAL,
    DeployLog,
    DeployLogger,
    check_same_joints,
    fastest_joint,
    layout,
    read_log,
    write_log,
)
from npmp.deploy.safety import SafetyConfig
from tests.deploy.standins import Standing, state_of, two_joints
from tests.deploy.test_controller import Ideal, controller
from tests.refusals import refusal


@cache
def logged() -> tuple[DeployLog, Controller]:
    robot = Ideal()
    robot.stalls = {650: 0.013}
    machine = Controller(
        two_joints(), Standing(np.zeros(2)), ControllerConfig(stand_s=1.0), SafetyConfig()
    )
    logger = DeployLogger(two_joints(), "sim", {"task": "walk"})
    drive(
        robot,
        machine,
        seconds=1.0,
        clock=robot,
        record=logger.record,
        command=lambda now: np.array([0.4, now / 10]),
    )
    return logger.log(), machine


def drive_still(robot: Ideal, machine: Controller, logger: DeployLogger) -> None:
    """A run of 1 s of policy, commanded to stand."""
    drive(
        robot,
        machine,
        seconds=1.0,
        clock=robot,
        record=logger.record,
        command=lambda _: np.zeros(2),
    )


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    log, _ = logged()
    assert {name: values.shape[1] for name, values in log.columns.items()} == layout(2, 2)
    write_log(tmp_path / FILE, log)
    result = read_log(tmp_path)  # the run's folder
    for name, values in log.columns.items():
        np.testing.assert_array_equal(result.columns[name], values)
    named = ("robot", "joint_names", "command_names", "rate_hz", "source", "about")
    assert all(getattr(result, name) == getattr(log, name) for name in named)
    assert result.acting.sum() == 50
    assert np.isnan(result.columns["temperature"]).all()  # is not measured


def test_a_run_that_was_killed_leaves_its_journal(tmp_path: Path) -> None:
    """The last step was cut in its middle; a log that was written takes the journal's place."""
    robot, machine = Ideal(), controller()
    logger = DeployLogger(two_joints(), "sim", {"task": "walk"}, tmp_path / JOURNAL)
    drive_still(robot, machine, logger)
    whole = logger.log()
    with open(tmp_path / JOURNAL, "r+b") as file:
        file.truncate((tmp_path / JOURNAL).stat().st_size - 3)
    result = read_log(tmp_path)
    assert (result.about, result.rate_hz, result.source) == ({"task": "walk"}, 50.0, "sim")
    for name, values in whole.columns.items():
        np.testing.assert_array_equal(result.columns[name], values[:-1])
    (tmp_path / JOURNAL).write_text('{"schema": "another"}\n')
    refusal("schema", read_log, tmp_path)
    logger.write(tmp_path / FILE)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert len(read_log(tmp_path).columns["mode"]) == len(whole.columns["mode"])


@pytest.mark.parametrize("full", [OSError("no space"), 20])
def test_a_full_disk_ends_the_journal_alone(tmp_path: Path, full: OSError | int) -> None:
    robot, machine, written = Ideal(), controller(), list[bytes]()
    logger = DeployLogger(two_joints(), "sim", {}, tmp_path / JOURNAL)

    class Full:
        closed = False

        def write(self, data: bytes) -> int:
            written.append(data)
            if len(written) < 9:
                return len(data)
            if isinstance(full, OSError):
                raise full
            return full

        def close(self) -> None:
            self.closed = True

    logger.file = Full()  # type: ignore[assignment]
    drive_still(robot, machine, logger)
    assert machine.reason == "the time is over" and len(written) == 9 and logger.file is None
    assert logger.write(tmp_path / FILE).acting.sum() == 50


def test_values_of_a_wrong_width_are_logged_as_nan() -> None:
    robot, logger = Ideal(), DeployLogger(two_joints(), "sim", {})
    machine = controller(np.zeros(2))
    robot.read = lambda: state_of(robot.time, gyro=np.zeros(7))  # type: ignore[method-assign]
    drive_still(robot, machine, logger)
    assert machine.mode is ControlMode.DAMPING
    assert np.isnan(logger.log().columns["gyro"]).all()


@pytest.mark.parametrize("wrong", ["gone", "text", "another", "newer", "narrow", "cut"])
def test_other_files_are_refused(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / FILE
    write_log(path, logged()[0])
    if wrong == "gone":
        path.unlink()
    elif wrong == "text":
        path.write_text("time,mode\n")
    elif wrong == "cut":
        path.write_bytes(path.read_bytes()[:-1000])
    else:
        with h5py.File(path, "a") as file:
            if wrong == "another":
                file.attrs["schema"] = "npmp-motion"
            elif wrong == "newer":
                file.attrs["version"] = 2
            else:
                del file["gyro"]
                file["gyro"] = np.zeros((3, 3))
    refusal("", read_log, path)


def test_the_fastest_joint_is_held_against_its_drive() -> None:
    log, _ = logged()
    speed = np.zeros_like(log.columns["joint_vel"])
    # the knee at 6 rad/s in two of fifty steps of the policy, where 5 are its limit; elsewhere any
    acting = np.flatnonzero(log.acting)
    speed[acting[:2], 1], speed[acting, 0], speed[~log.acting] = -6.0, 4.0, 99.0
    result = fastest_joint(replace(log, columns={**log.columns, "joint_vel": speed}), two_joints())
    assert (result["name"], result["limit"], result["max"]) == ("knee", 5.0, 6.0)
    assert result["steps_above"] == pytest.approx(0.04)


def test_the_difference_of_two_distributions() -> None:
    first = np.arange(128) / 128
    same = difference("up/z", first, first[::-1])
    assert (same.ks, same.wasserstein, same.relative) == (0.0, 0.0, 0.0)
    # moved by 0.5: every sample must go that far, and half of them lie where the other has none
    moved = difference("up/z", first, first + 0.5)
    assert (moved.wasserstein, moved.ks) == pytest.approx((0.5, 0.5))
    # 128 equal steps of 1/128 have the variance (128^2 - 1) / 12 / 128^2
    assert moved.relative == pytest.approx(0.5 / np.sqrt((128**2 - 1) / 12 / 128**2))
    assert (moved.first[2], moved.second[2]) == pytest.approx((63.5 / 128, 127.5 / 128))
    still = difference("joint_pos/head", np.zeros(30), np.full(30, 1e-3))  # 1 mrad of at least 20
    assert still.relative == pytest.approx(0.05) and still.ks == 1.0


def test_the_worst_channels_are_named() -> None:
    rng = np.random.default_rng(0)
    first = {f"joint_pos/{name}": rng.normal(size=2000) for name in "abcd"}
    second = {
        name: values + shift for (name, values), shift in zip(first.items(), (0.0, 3.0, 1.0, 0.3))
    }
    result = compare(first, second | {"gyro/x": np.zeros(50)})
    assert [one.channel for one in result] == [f"joint_pos/{name}" for name in "bcda"]
    expected = [f"joint_pos/{name}" for name in "bcd"]
    assert [line.split(":")[0] for line in summary_lines(result)] == expected
    refusal("no channel", compare, first, {"gyro/x": np.zeros(50)})
    with pytest.raises(InputError, match="joints differ"):
        check_same_joints(logged()[0], replace(logged()[0], joint_names=("a", "b")))


def test_channels_are_those_of_the_policy() -> None:
    result = channels(logged()[0])
    names = ("joint_pos/hip", "joint_vel/knee", "gyro/x", "up/z", "target/hip", "state_age_s")
    assert set(names) <= set(result) and "temperature/hip" not in result
    assert all(len(values) == 50 for values in result.values())
