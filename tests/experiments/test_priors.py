"""The table of priors: its figures by hand, and a run of two cells that continues."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet, write_motions
from npmp.core.tables import read_table
from npmp.envs.feet import Feet
from npmp.experiments.benchmarks import priors
from npmp.robots import Robot


def write_logs(run: Path, errors: list[float], cpu_s: list[float]) -> None:
    """Logs of 1,000 environment steps before the first iteration, and 500 of each; an empty cell
    for NaN."""
    run.mkdir(exist_ok=True)
    metrics = ["iteration,env_steps,velocity_error"]
    metrics += [
        f"{i + 1},{1500 + 500 * i},{'' if math.isnan(error) else error}"
        for i, error in enumerate(errors)
    ]
    timing = ["iteration,wall_s,cpu_s"]
    timing += [f"{i + 1},{9 * i},{seconds}" for i, seconds in enumerate(cpu_s)]
    for name, lines in (("metrics.csv", metrics), ("timing.csv", timing)):
        (run / name).write_text("\n".join(lines) + "\n")


def test_steps_follow_from_the_median_iteration(tmp_path: Path) -> None:
    """Iterations take 2, 2 and 3 s, the last with an evaluation 50 s: in 20 s there are ten, after
    1,000 steps ten times 500."""
    write_logs(tmp_path, [math.nan] * 5, [90.0, 92.0, 94.0, 97.0, 147.0])
    assert priors.steps_within(tmp_path, 20.0) == 1000 + 10 * 500
    assert priors.steps_within(tmp_path, 0.0) == 1000 + 500


def test_cpu_time_to_an_error(tmp_path: Path) -> None:
    """Of the first evaluation below it, whatever follows."""
    errors = [0.4, math.nan, 0.14, 0.16, 0.11]
    write_logs(tmp_path, errors, [10.0, 20.0, 30.0, 40.0, 50.0])
    assert priors.cpu_s_to_error(tmp_path, 0.15) == 30.0
    assert math.isnan(priors.cpu_s_to_error(tmp_path, 0.10))


def test_the_distance_moves_earth() -> None:
    """Half of the samples are 2 too high."""
    assert priors.distance(np.array([1.0, 3.0]), np.array([1.0, 1.0])) == pytest.approx(1.0)
    assert math.isnan(priors.distance(np.zeros(0), np.ones(2)))


def test_the_gait_of_a_robot_that_hops(robot: Robot) -> None:
    """Up and down by 0.2 m twice a second for 3 s while it moves at 0.4 m/s: five touchdowns of
    each foot between the first and the last step, 2 Hz apart."""
    steps = np.arange(151)
    qpos = np.tile(robot.home_qpos, (len(steps), 1))
    lowest = Feet(robot).heights(qpos[:1]).min()
    hop = np.sin(2.0 * np.pi * 2.0 * steps / 50.0 - 0.1)
    qpos[:, 0] = 0.4 * steps / 50.0
    qpos[:, 2] += 0.2 * hop.clip(min=0.0) - lowest
    gait = priors.gait_of(robot, [ReferenceMotion("hop", qpos, rate_hz=50.0)])
    np.testing.assert_allclose(gait.speed, 0.4, atol=1e-6)
    # touchdowns are at whole control steps
    np.testing.assert_allclose(gait.stride, 2.0, atol=0.1)
    assert gait.steps_hz == pytest.approx(6 / 3.02)


def test_cells_of_the_table() -> None:
    assert priors._cell([0.9]) == "0.9"
    assert priors._cell([310.0, 350.0]) == "330 (310 to 350)"
    assert priors._cell([0.5, math.nan, 0.7]) == "0.6 (0.5 to 0.7, 1 -)"
    assert priors._cell([None]) == priors._cell([math.nan]) == "-"


def test_a_stopped_training_continues_and_a_finished_one_is_kept(tmp_path: Path) -> None:
    calls = []

    def command(arguments: list[str]) -> int:
        calls.append(arguments)
        return len(calls) - 1

    def run_once() -> None:
        priors.run_once(command, tmp_path, "summary.json", "steps=3")

    run_once()
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(priors.CommandFailed) as failed:
        run_once()
    assert failed.value.code == 1
    (tmp_path / "summary.json").touch()
    run_once()
    assert calls == [[*priors.COMMON, "steps=3", f"out={tmp_path}"], [f"resume={tmp_path}"]]


def test_pilots_of_all_priors_come_before_any_module(
    motions: MotionSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "motions.h5"
    write_motions(data, replace(motions, motions=(replace(motions.motions[0], split="train"),)))
    order = []

    def run_once(command: object, folder: Path, result: str, *keys: str) -> None:
        order.append(str(folder.relative_to(tmp_path)))
        # the first module fails
        if not folder.name.startswith("pilot_"):
            raise priors.CommandFailed(2)

    monkeypatch.setattr(priors, "run_once", run_once)
    monkeypatch.setattr(priors, "steps_within", lambda folder, cpu_s: 100)
    options = ["--size", "tiny", "--seeds", "0", "--priors", "fsq", "ar1"]
    assert priors.main([f"data={data}", f"out={tmp_path}", *options]) == 2
    assert order == ["pilot_fsq", "pilot_ar1", "fsq_seed0/imitate"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_table_is_filled_and_continued(motions: MotionSet, tmp_path: Path) -> None:
    splits = ("train", "validation")
    split = tuple(replace(m, split=name) for m, name in zip(motions.motions, splits, strict=True))
    data = tmp_path / "motions.h5"
    write_motions(data, replace(motions, motions=split))
    out = tmp_path / "table"

    def fill(*names: str) -> int:
        options = ["--size", "tiny", "--cpu-s", "0", "--seeds", "0", "--priors", *names]
        return priors.main([f"data={data}", f"out={out}", *options])

    assert fill("fsq") == 0
    (row,) = read_table(out / "priors.csv")
    assert row["prior"] == "fsq" and row["seed"] == "0"
    unreached = {f"cpu_s_{error:.2f}" for error in priors.ERRORS}
    assert all(math.isfinite(float(row[name])) for name in {*priors.COLUMNS} - unreached)
    written = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors")}

    assert fill("fsq", "ar1") == 0
    rows = read_table(out / "priors.csv")
    assert [r["prior"] for r in rows] == ["ar1", "ar1 and behaviour prior", "fsq"]
    assert rows[2] == row
    assert all(path.stat().st_mtime_ns == time for path, time in written.items())
    assert "| fsq | 1 |" in (out / "priors.md").read_text()


@pytest.mark.slow
def test_a_failed_command_ends_it(motions: MotionSet, tmp_path: Path) -> None:
    data = tmp_path / "motions.h5"
    write_motions(data, replace(motions, motions=(replace(motions.motions[0], split="train"),)))
    keys = [f"data={data}", f"out={tmp_path}", "net.latent_dim=4", "num_envs=100000000"]
    assert priors.main([*keys, "--size", "tiny", "--cpu-s", "0"]) == 2
    assert not (tmp_path / "priors.csv").exists()
