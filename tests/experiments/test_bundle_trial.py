"""`npmp deploy trial`, with a policy that stands in for a bundle's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pytest import CaptureFixture, MonkeyPatch

from npmp import robots
from npmp.deploy.bundle import Bundle
from npmp.deploy.run_log import read_log
from npmp.experiments import bundle as bundle_commands
from npmp.experiments import cli
from tests.deploy.standins import Standing
from tests.deploy.test_trial import walking

QUICK = ["episodes=2", "steps=25"]


class Stand:
    """A bundle that holds the home pose."""

    contract, folder = walking(), Path("bundle")

    def policy(self) -> Standing:
        return Standing(robots.load("anymal_b").home_joints)


@pytest.fixture(autouse=True)
def bundle(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(Bundle, "read", staticmethod(lambda folder: Stand()))
    monkeypatch.setattr(bundle_commands, "check_golden", lambda bundle: None)


def test_two_trials_are_compared(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for out in (first, second):
        assert cli.main(["deploy", "trial", "bundle", *QUICK, f"out={out}"]) == 0
    assert "2 episodes, 0 falls; 100.0 % of the steps survived" in capsys.readouterr().out
    log, figures = read_log(first), json.loads((first / "trial.json").read_text())
    assert log.source == "mujoco" and len(log.columns["time_s"]) == 50 and log.acting.all()
    # under a second
    assert figures["survived"] == 1.0 and figures["velocity_error_1s"] is None
    assert len(figures["channels"]["gyro/x"]) == len(figures["quantiles"]) == 5
    compared = tmp_path / "compared"
    args = [str(first), str(second), f"out={compared}"]
    assert cli.main(["deploy", "compare-logs", *args]) == 0
    channels = json.loads((compared / "comparison.json").read_text())["channels"]
    assert {one["ks"] for one in channels} == {0.0}


@pytest.mark.slow
def test_a_trial_in_drake(tmp_path: Path) -> None:
    pytest.importorskip("pydrake")
    arguments = [
        "deploy",
        "trial",
        "bundle",
        "simulator=drake",
        "episodes=1",
        "steps=60",
        f"out={tmp_path}",
    ]
    assert cli.main(arguments) == 0
    report = json.loads((tmp_path / "trial.json").read_text())
    assert (
        report["simulator"] == "drake"
        and report["falls"] == 0
        and report["velocity_error_1s"] > 0.0
    )
