"""`npmp sysid`: commands for a stand, a log identified, and its preset used."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from npmp.actuators.actuator_log import read_stand_log
from npmp.envs import RobotBatchConfig
from npmp.experiments import cli
from npmp.experiments.backend import robots_config_of
from tests.experiments.jobs import job_of


@pytest.fixture(scope="module")
def excited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sysid") / "excite"
    arguments = ["sysid", "excite", "debug=tiny", "robot=anymal_b", "threads=1", f"out={out}"]
    assert cli.main(arguments) == 0
    return out


@pytest.fixture(scope="module")
def fitted(excited: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sysid") / "fit"
    args = [
        "sysid",
        "fit",
        "debug=tiny",
        "robot=anymal_b",
        "threads=1",
        f"data={excited / 'log.npz'}",
        f"out={out}",
    ]
    assert cli.main([*args, f"truth={excited / 'truth.json'}"]) == 0
    return out


def test_the_commands_are_the_log_s(excited: Path) -> None:
    rows = list(csv.reader((excited / "commands.csv").open()))
    log, truth = (
        read_stand_log(excited / "log.npz"),
        json.loads((excited / "truth.json").read_text()),
    )
    assert rows[0] == ["time_s", *log.joints] and list(truth["joints"]) == list(log.joints)
    table = np.array(rows[1:], dtype=float)
    assert table[:, 0] == pytest.approx(np.arange(350) / 50.0)
    assert table[:, 1:] == pytest.approx(log.recordings[0].command, abs=1e-6)


def test_what_is_written(fitted: Path) -> None:
    """Seven seconds and few iterations do not find everything, but most of what the encoders
    read."""
    result = json.loads((fitted / "sysid.json").read_text())
    joint = result["joints"]["LF_HAA"]
    assert joint["residual_rms_after_rad"] < 0.2 * joint["residual_rms_before_rad"]
    assert set(joint["estimate"]) == set(result["units"]) and joint["standard_error"]["kd"] is None
    assert result["coverage"]["parameters"] == 72 and joint["condition_number"] > 1.0
    assert any("only on their sum" in sentence for sentence in result["not_told_apart"])
    page = (fitted / "report.html").read_text()
    assert "</html>" in page and "RH_KFE" in page


def test_the_preset_is_a_randomization(fitted: Path) -> None:
    result = json.loads((fitted / "sysid.json").read_text())["joints"]["LF_HAA"]["estimate"]
    args = ("--config-dir", str(fitted), "randomization=anymal_b_identified")
    job = job_of("imitate", *args, "data=x")
    assert job.chosen["randomization"] == "anymal_b_identified"
    robots_config = robots_config_of(job.config, RobotBatchConfig())
    assert robots_config.physics.nominal["LF_HAA"].kp == pytest.approx(result["kp"], rel=1e-4)
    # of paper
    assert robots_config.physics.friction == (0.4, 1.0) and robots_config.pushes.force == 50.0
    assert robots_config.physics.gain.whole == 0.0 and robots_config.physics.gain.each >= 0.05
