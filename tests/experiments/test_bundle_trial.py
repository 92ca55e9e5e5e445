"""`npmp deploy trial`, with a policy that stands in for a bundle's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npmp import robots
from npmp.deploy.bundle import Bundle
from npmp.deploy.controller import ControlMode
from npmp.deploy.run_log import read_log, write_log
from npmp.experiments import cli
from tests.deploy.standins import Standing, contract_of
from tests.deploy.test_trial import walking

QUICK = ["episodes=2", "steps=25"]


class Stand:
    """A bundle that holds the home pose."""

    contract, folder = walking(), Path("bundle")

    def policy(self) -> Standing:
        return Standing(robots.load("anymal_b").home_joints)


@pytest.fixture(autouse=True)
def bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bundle, "read", staticmethod(lambda folder: Stand()))


def test_a_trial_and_another_against_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert cli.main(["deploy", "trial", "bundle", *QUICK, f"out={first}"]) == 0
    assert "2 episodes, 0 falls; 100.0 % of the steps made" in capsys.readouterr().out
    log, told = read_log(first), json.loads((first / "trial.json").read_text())
    assert log.source == "mujoco" and len(log.columns["time_s"]) == 50 and log.acting.all()
    # under a second
    assert told["survived"] == 1.0 and told["velocity_error_1s"] is None and "against" not in told
    assert len(told["channels"]["gyro/x"]) == len(told["quantiles"]) == 5
    assert cli.main(["deploy", "trial", "bundle", *QUICK, f"against={first}", f"out={second}"]) == 0
    assert (
        "against mujoco: Kolmogorov-Smirnov 0.00 in the median, 0.00 at most"
        in capsys.readouterr().out
    )
    against = json.loads((second / "trial.json").read_text())["against"]
    assert len(against["worst"]) == 3 and {one["ks"] for one in against["channels"]} == {0.0}
    assert (
        cli.main(
            ["deploy", "compare-logs", str(first), str(second), f"out={tmp_path / 'compared'}"]
        )
        == 0
    )


@pytest.mark.slow
def test_a_trial_in_drake(tmp_path: Path) -> None:
    pytest.importorskip("pydrake")
    arguments = [
        "bundle",
        "trial",
        "bundle",
        "simulator=drake",
        "episodes=1",
        "steps=60",
        f"out={tmp_path}",
    ]
    assert cli.main(arguments) == 0
    told = json.loads((tmp_path / "trial.json").read_text())
    assert told["simulator"] == "drake" and told["falls"] == 0 and told["velocity_error_1s"] > 0.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulator=bullet", "out=t"], "simulator must be mujoco or drake, got 'bullet'"),
        (["episodes=0", "out=t"], "episodes"),
        (["against=nowhere", "out=t"], "nowhere"),
    ],
)
def test_what_it_refuses(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["deploy", "trial", "bundle", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.rglob("trial.json"))


def test_a_log_without_policy_steps_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["deploy", "trial", "bundle", *QUICK, f"out={tmp_path / 'first'}"]) == 0
    log = read_log(tmp_path / "first")
    log.columns["mode"][:] = ControlMode.STAND
    write_log(tmp_path / "stood.h5", log)
    arguments = [*QUICK, f"against={tmp_path / 'stood.h5'}", f"out={tmp_path / 'second'}"]
    assert cli.main(["deploy", "trial", "bundle", *arguments]) == 2
    assert "fewer than 20 samples" in capsys.readouterr().err and not (tmp_path / "second").exists()


def test_a_bundle_of_other_commands_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Stand, "contract", contract_of())
    assert cli.main(["deploy", "trial", "bundle", f"out={tmp_path / 't'}"]) == 2
