"""`npmp actuator`: from a log to a model and what it comes to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npmp.actuators import read_log, write_log
from npmp.actuators.models import load
from npmp.actuators.servo import PDParameters
from npmp.experiments import cli
from tests.actuators.servos import log_of, servo
from tests.experiments.command import Says


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "servos.npz"
    pair = (
        servo(PDParameters(stiff, 1.0), name=f"s{stiff:g}", samples=300) for stiff in (20.0, 40.0)
    )
    write_log(path, log_of(*pair))
    return path


@pytest.mark.parametrize("kind", ["pd", "hybrid", "mlp", "conv", "vae"])
def test_fit_and_evaluate_judge_the_same_part(kind: str, data: Path, tmp_path: Path) -> None:
    fitted, judged = tmp_path / "model", tmp_path / "judged"
    args = [f"data={data}", "debug=tiny"]
    fit = [f"model={kind}", "validation.share=0.4", f"out={fitted}"]
    assert cli.main(["actuator", "fit", *args, *fit]) == 0
    evaluate = ["actuator", "evaluate", *args, f"model={fitted}"]
    assert cli.main([*evaluate, "split=validation", f"out={judged}"]) == 0
    first, second = (
        json.loads((folder / "evaluation.json").read_text()) for folder in (fitted, judged)
    )
    assert first == second and first["seconds"] == pytest.approx(2 * 0.4 * 300 / 200)
    assert {"rmse_nm", "rollout_rmse_nm", "baseline_rmse_nm"} <= set(first)
    assert "0.5" not in first["actuators"]
    contract = load(fitted).contract
    assert contract.kind == kind
    assert contract.training["validation"] == {"share": 0.4, "recordings": [], "actuators": []}
    assert contract.training["after"]["rmse_nm"] == first["rmse_nm"]
    assert contract.licence == "CC0-1.0"
    page = (judged / "report.html").read_text()
    assert "measured" in page and "</html>" in page and str(tmp_path) not in page
    assert cli.main([*evaluate, "split=all"]) == 0


def test_an_actuator_is_kept_aside_as_a_whole(data: Path, tmp_path: Path) -> None:
    args = [
        "validation.share=0",
        "validation.actuators=[s4*]",
        f"out={tmp_path}",
        "debug=tiny",
        "report=false",
    ]
    assert cli.main(["actuator", "fit", f"data={data}", *args]) == 0
    assert load(tmp_path).contract.actuators == ["s20"]
    assert list(json.loads((tmp_path / "evaluation.json").read_text())["actuators"]) == ["s40"]
    assert not (tmp_path / "report.html").exists()


def test_a_torque_of_the_other_sign_is_noted(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args, doubt = ["model=mlp", "debug=tiny", "report=false"], "negatively correlated"
    assert cli.main(["actuator", "fit", f"data={data}", *args, f"out={tmp_path / 'right'}"]) == 0
    assert doubt not in capsys.readouterr().err
    log = read_log(data)
    turned = replace(
        log, traces=tuple(replace(trace, torque=-trace.torque) for trace in log.traces)
    )
    write_log(tmp_path / "turned.npz", turned)
    arguments = [f"data={tmp_path / 'turned.npz'}", *args, f"out={tmp_path / 'wrong'}"]
    assert cli.main(["actuator", "fit", *arguments]) == 0
    assert doubt in capsys.readouterr().err


def test_the_kept_part_is_judged_on_the_log_that_was_fitted_only(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Says
) -> None:
    """A log of the same recordings, actuators and lengths is another; and at 400 Hz a log of 200 is
    the same."""
    pair = (
        servo(PDParameters(stiff, 2.0), name=f"s{stiff:g}", samples=300) for stiff in (20.0, 40.0)
    )
    write_log(tmp_path / "other.npz", log_of(*pair))
    args = ["rate_hz=400", "debug=tiny", "report=false"]
    assert cli.main(["actuator", "fit", f"data={data}", *args, f"out={tmp_path / 'm'}"]) == 0
    assert load(tmp_path / "m").contract.rate_hz == 400.0
    judge = ["actuator", "evaluate", *args, f"model={tmp_path / 'm'}"]
    assert cli.main([*judge, f"data={data}"]) == 0
    assert cli.main([*judge, f"data={tmp_path / 'other.npz'}", "split=all"]) == 0
    capsys.readouterr()
    assert "differs from the log that" in refused(*judge, f"data={tmp_path / 'other.npz'}")


def test_a_refit_leaves_no_figures_of_the_model_before(data: Path, tmp_path: Path) -> None:
    args = ["actuator", "fit", f"data={data}", "debug=tiny", f"out={tmp_path}"]
    assert cli.main(args) == 0 and (tmp_path / "evaluation.json").is_file()
    assert (tmp_path / "report.html").is_file()
    assert cli.main([*args, "validation.share=0"]) == 0
    assert not (tmp_path / "evaluation.json").exists() and not (tmp_path / "report.html").exists()


def test_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {
        name: np.linspace(0, 1, 50, dtype=np.float32)
        for name in ("position_error", "velocity", "torque")
    }
    np.savez(tmp_path / "knee.npz", rate_hz=400.0, **rows)
    source, out = f"source={tmp_path / 'knee.npz'}", tmp_path / "new" / "log.npz"
    for _ in range(2):  # a second time over the first
        assert cli.main(["actuator", "import", "hwangbo", source, f"out={out}"]) == 0
    assert "1 recordings of 1 actuators, 0 s at 400 Hz" in capsys.readouterr().out and out.is_file()
    before = (tmp_path / "knee.npz").read_bytes()
    assert cli.main(["actuator", "import", "hwangbo", source, f"out={tmp_path / 'knee.npz'}"]) == 2
    assert "is the source" in capsys.readouterr().err
    assert (tmp_path / "knee.npz").read_bytes() == before
