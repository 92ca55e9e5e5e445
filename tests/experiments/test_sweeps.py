"""Sweeps: what is refused before a job starts, and what is resumed when a process dies."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pytest import CaptureFixture, MonkeyPatch

from npmp.experiments import cli
from npmp.experiments.sweeping import launch as launching
from npmp.experiments.sweeping import launcher as launchers
from npmp.experiments.sweeping import scheduler
from npmp.experiments.sweeping.launch import next_commands
from npmp.experiments.sweeping.scheduler import run_jobs
from npmp.experiments.sweeping.sweep import Launcher, Sweep, SweepProgress, SweptJob, failure
from npmp.experiments.sweeping.workers import Ended, begin
from tests.experiments.command import Says
from tests.experiments.forked import SERVER
from tests.experiments.jobs import job_of

# each a dataset of generated motion, in a second or two
CLIPS = ["retarget", "-m", "report=false", "seed=1,2"]

pytestmark = pytest.mark.usefixtures("elsewhere")


def states(folder: Path) -> list[str]:
    return [job["state"] for job in json.loads((folder / "sweep.json").read_text())["jobs"]]


def sweep_of(folder: Path, count: int, **launcher: Any) -> Sweep:
    jobs = [SweptJob(f"seed={i}", [f"seed={i}"]) for i in range(count)]
    settings = Launcher(retries=2, score="reward", lower=False, **launcher)
    shared = {"out": str(folder), "data": "motions.h5", "steps": 100}
    configs = [shared | {"seed": i} for i in range(count)]
    sweep = Sweep(folder, "imitate", settings, [], [])
    sweep.add(configs, jobs)
    return sweep


class Scripted:
    """Workers whose attempts end as a script says; a callable is done first."""

    slots = 2

    def __init__(self, script: dict[int, list[Ended | Callable[[], Ended | None]]]):
        self.script, self.started, self.stopped = script, list[int](), list[int]()
        self.most = 0
        self.running: set[int] = set()

    def start(self, number: int, log: Path) -> None:
        self.started.append(number)
        self.running.add(number)
        self.most = max(self.most, len(self.running))

    def ended(self, number: int) -> Ended | None:
        how = self.script[number][0]
        found = how if isinstance(how, Ended) else how()
        if found is not None:
            self.script[number].pop(0)
            self.running.discard(number)
        return found

    def stop(self, number: int) -> None:
        self.stopped.append(number)
        self.script[number] = [Ended(143, "here")]

    def close(self) -> None:
        pass


@pytest.fixture
def scripted(monkeypatch: MonkeyPatch) -> Callable[..., Scripted]:
    monkeypatch.setattr(scheduler, "POLL_S", 0.0)

    def use(**script: Any) -> Scripted:
        return Scripted({int(key[1:]): list(value) for key, value in script.items()})

    return use


GOOD, KILLED, GONE, WRONG = (
    Ended(0, "here"),
    Ended(-9, "here"),
    Ended(None, "", "NodeDiedError"),
    Ended(2, "here"),
)


# --- the command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("hydra/launcher=slurm", "no hydra/launcher 'slurm'; available: basic, local, ray"),
        ("hydra.launcher.gpus=1", "gpus and resources need hydra/launcher=ray"),
        ("steps=3,many", "got 'many' (job seed=1,steps=many; none was started)"),
        ("algo.ema=interval(0,1)", "BasicSweeper does not support sweep type : INTERVAL"),
    ],
)
def test_a_wrong_job_is_refused_before_the_first_starts(
    arguments: str, message: str, refused: Says
) -> None:
    data = [] if arguments == "data=" else ["data=x.h5", arguments]
    text = refused("imitate", "-m", "seed=1,2", "out=s", *data)
    assert message in text and len(text.splitlines()) == 1 and not Path("s").exists()


def test_verbs_that_have_no_sweeps(capsys: CaptureFixture[str]) -> None:
    assert cli.main(["retarget", "-m", "seed=1,2", "report=p.html", "out=s/m.h5"]) == 2
    assert "report=p.html" in capsys.readouterr().err
    assert cli.main(["sysid", "excite", "-m", "seed=1,2", "out=s"]) == 2
    assert "sysid excite" in capsys.readouterr().err


def test_a_launcher_takes_settings(
    scripted: Callable[..., Scripted], tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(launchers, "workers_of", lambda sweep: scripted(j0=[GOOD], j1=[GOOD]))
    args = ["hydra/launcher=ray", "hydra.launcher.cores=2", "+hydra.launcher.resources.a100=1"]
    args += ["seed=1,2", f"out={tmp_path / 's' / 'm.h5'}"]
    assert cli.main(["retarget", "-m", *args]) == 0
    launcher = Sweep.load(tmp_path / "s").launcher
    assert (launcher.kind, launcher.cores, launcher.resources) == ("ray", 2, {"a100": 1.0})
    # as Hydra records a job
    record = yaml.safe_load((tmp_path / "s" / "seed=2" / ".hydra" / "overrides.yaml").read_text())
    assert record == ["seed=2", f"out={tmp_path / 's' / 'm.h5'}"]


@pytest.mark.slow
def test_a_sweep_from_the_command_line(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    out = tmp_path / "a sweep" / "m.h5"
    assert cli.main([*CLIPS, f"out={out}"]) == 0
    assert "seed=2: finished" in capsys.readouterr().err
    result = json.loads((out.parent / "sweep.json").read_text())
    assert [job["overrides"] for job in result["jobs"]] == [["seed=1"], ["seed=2"]]
    assert states(out.parent) == ["finished"] * 2
    assert all(job["seconds"] > 0 for job in result["jobs"])
    assert all((out.parent / f"seed={i}" / "m.h5").is_file() for i in (1, 2))
    assert cli.main([*CLIPS, f"out={out}"]) == 2
    assert "is a sweep; npmp sweeps resume" in capsys.readouterr().err
    (out.parent / "seed=2" / "m.h5").unlink()
    assert cli.main(["sweeps", "resume", str(out.parent)]) == 0  # nothing to do: it was finished
    assert not (out.parent / "seed=2" / "m.h5").exists()
    capsys.readouterr()
    assert cli.main(["sweeps", "show", str(out.parent)]) == 0
    assert "2 finished" in capsys.readouterr().out
    moved = out.parent.rename(tmp_path / "elsewhere")  # it goes on where it is
    sweep = Sweep.load(moved)
    sweep.jobs[1].state = "stopped"
    sweep.save()
    assert cli.main(["sweeps", "resume", str(moved), "launcher=local"]) == 0
    assert (moved / "seed=2" / "m.h5").is_file() and not out.parent.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "sweep lacks launcher, jobs"),
        ("[", "no valid JSON"),
        ('{"launcher": {}, "jobs": [{"name": "x", "overrides": []}]}', "jobs.json"),
    ],
)
def test_a_damaged_sweep_is_one_line(text: str, message: str, refused: Says) -> None:
    sweep_of(Path("s"), 2)
    Path("s/sweep.json").write_text(text)
    said = refused("sweeps", "show", "s")
    assert "s/sweep.json" in said and message in said and len(said.splitlines()) == 1


# --- a folder of somebody else


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"verb": "deploy"}, "'deploy'"),
        ({"name": "../../x"}, "'../../x'"),
        ({"name": "logs"}, "'logs'"),
        ({"config": {"out": ".."}}, "out=.."),
        ({"config": {"out": "s", "data": "x", "algo": 3}}, "algo must be a mapping with a name"),
        ({"config": {"out": "m.h5", "report": "/tmp/page.html"}}, "report=/tmp/page.html"),
    ],
)
def test_a_foreign_sweep_runs_no_code_and_writes_nowhere_else(
    plan: dict[str, Any], message: str, refused: Says
) -> None:
    sweep_of(Path("s"), 1)
    content, state = (
        json.loads(Path("s", name).read_text()) for name in ("jobs.json", "sweep.json")
    )
    for key, value in plan.items():
        (content if key == "verb" else content["jobs"][0])[key] = value
    state["jobs"][0]["name"] = content["jobs"][0]["name"]
    Path("s/jobs.json").write_text(json.dumps(content))
    Path("s/sweep.json").write_text(json.dumps(state))
    before = sorted(Path().rglob("*"))
    text = refused("sweeps", "resume", "s")
    assert message in text and len(text.splitlines()) == 1 and sorted(Path().rglob("*")) == before


def test_a_link_out_of_a_sweep(tmp_path: Path, refused: Says) -> None:
    sweep_of(Path("s"), 1)
    Path("s/logs").mkdir()
    Path("s/logs/seed=0.log").symlink_to(tmp_path / "outside")
    assert "links out of the sweep's folder" in refused("sweeps", "resume", "s")


# --- what dies


def test_the_dead_are_tried_again_and_the_wrong_are_not(
    scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    sweep = sweep_of(tmp_path / "s", 4)
    workers = scripted(j0=[KILLED, GONE, GOOD], j1=[WRONG], j2=[KILLED] * 3, j3=[GOOD])
    assert run_jobs(sweep, workers) == 2
    assert states(sweep.folder) == ["finished", "failed", "failed", "finished"]
    assert [job.attempts for job in sweep.jobs] == [3, 1, 3, 1] and workers.most == 2
    assert "died 3 times (exit code -9)" in sweep.failures()[1]
    assert run_jobs(Sweep.load(sweep.folder), scripted(j1=[GOOD], j2=[GOOD])) == 0
    assert states(sweep.folder) == ["finished"] * 4


def test_a_signal_stops_all_and_the_rest_waits(
    scripted: Callable[..., Scripted], tmp_path: Path
) -> None:
    sweep = sweep_of(tmp_path / "s", 4)

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    workers = scripted(j0=[GOOD], j1=[interrupt], j2=[GOOD], j3=[GOOD])
    workers.script[2] = [lambda: None]
    assert run_jobs(sweep, workers) == 143
    assert set(workers.stopped) >= {1} and states(sweep.folder)[0] == "finished"
    assert set(states(sweep.folder)[1:]) <= {"stopped", "finished"}
    assert states(sweep.folder)[1] == "stopped"


def test_a_full_disk_does_not_end_the_sweep(
    scripted: Callable[..., Scripted], tmp_path: Path, monkeypatch: MonkeyPatch, capsys: Any
) -> None:
    sweep = sweep_of(tmp_path / "s", 3)
    save, full = Sweep.save, [True]

    def fails(self: Sweep) -> None:
        if full[0]:
            raise OSError(28, "No space left on device", "sweep.json")
        save(self)

    def freed() -> Ended:
        full[0] = False
        return GOOD

    monkeypatch.setattr(Sweep, "save", fails)
    workers = scripted(
        j0=[GOOD], j1=[Ended(2, "here", "m.h5: No space left on device")], j2=[freed]
    )
    assert run_jobs(sweep, workers) == 2 and states(sweep.folder) == [
        "finished",
        "failed",
        "finished",
    ]
    result = capsys.readouterr().err.count(
        "sweep.json is not up to date: sweep.json: No space left"
    )
    assert result == 1


def test_without_a_place_a_sweep_waits(scripted: Callable[..., Scripted], tmp_path: Path) -> None:
    """A cluster whose only node comes back."""
    workers, looks = scripted(j0=[GOOD]), [0]

    class Node(Scripted):
        @property
        def slots(self) -> int:  # type: ignore[override]
            looks[0] += 1
            return int(looks[0] > 3)

    workers.__class__ = Node
    assert run_jobs(sweep_of(tmp_path / "s", 1), workers) == 0 and looks[0] > 3


@pytest.mark.parametrize(
    ("score", "lower", "compare"),
    [
        ("velocity_error", True, "npmp evaluate compare w score=velocity_error lower=true;"),
        (None, None, "npmp evaluate compare w;"),
    ],
)
def test_a_sweep_ends_with_commands_that_work(
    score: str | None, lower: bool | None, compare: str
) -> None:
    launcher = Launcher(score=score, lower=lower)
    assert compare in next_commands(Sweep(Path("w"), "reuse", launcher, [], []))
    assert next_commands(Sweep(Path("w"), "evaluate", launcher, [], [])) == "npmp sweeps show w"


def test_names_that_are_not_unique_or_too_long_are_numbers(
    scripted: Callable[..., Scripted], tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    def names(folder: str, seeds: str) -> list[str]:
        monkeypatch.setattr(launchers, "workers_of", lambda sweep: scripted(j0=[GOOD], j1=[GOOD]))
        code = cli.main(["retarget", "-m", f"seed={seeds}", f"out={tmp_path / folder / 'm.h5'}"])
        assert code == 0
        return [job.name for job in Sweep.load(tmp_path / folder).jobs]

    assert names("same", "1,1") == ["000", "001"]
    monkeypatch.setattr(launchers, "LONGEST_NAME", 5)
    assert names("long", "1,2") == ["000", "001"]


def test_the_best_of_a_sweep_is_an_experiment(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path / "s", 4)
    swept = ("algo=ppo net.lstm_width=8", "algo=ppo net.lstm_width=16")
    for i, job in enumerate(sweep.jobs):
        job.overrides = [*swept[i % 2].split(), f"seed={i}"]
        job.state, job.score = "finished", float(i)
    [line] = launching.report_best(sweep)
    assert line.startswith("best: algo=ppo net.lstm_width=16 (reward 2, mean of 2); --config-dir ")
    job = job_of("imitate", "--config-dir", str(sweep.folder), "experiment=best", "data=x")
    assert job.chosen["algo"] == "ppo" and job.config.net.lstm_width == 16


def test_a_folder_that_holds_something_is_not_gone_on_with(tmp_path: Path, refused: Says) -> None:
    (tmp_path / "s" / "seed=1").mkdir(parents=True)
    (tmp_path / "s" / "seed=1" / "config.yaml").write_text("verb: retarget\n")
    message = refused("retarget", "-m", "seed=0,1", f"out={tmp_path / 's' / 'm.h5'}")
    assert "seed=1 exists" in message
    assert not (tmp_path / "s" / "sweep.json").exists()
    assert not (tmp_path / "s" / "jobs.json").exists()


@pytest.mark.slow
def test_two_do_not_work_on_one_sweep(tmp_path: Path, refused: Says) -> None:
    sweep = sweep_of(tmp_path / "s", 1)
    sweep.jobs[0].state = "running"
    sweep.save()
    with sweep.locked():
        assert "another npmp process runs the sweep" in refused(
            "sweeps", "resume", str(sweep.folder)
        )
        assert cli.main(["sweeps", "show", str(sweep.folder)]) == 0
        assert states(sweep.folder) == ["running"]
    assert cli.main(["sweeps", "show", str(sweep.folder)]) == 0
    assert states(sweep.folder) == ["stopped"]


def test_a_job_ends_with_whoever_began_it(tmp_path: Path) -> None:
    """Its standard input is what it lives by."""
    (tmp_path / "s").mkdir()
    process = begin(tmp_path / "s", 0, tmp_path / "log")
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=60) in (137, 2)  # 2: it had found out before that there is no sweep
    code = "from npmp.experiments.sweeping.job import end_with_parent as e; e(); import time; "
    code += "time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=30) == 137


# --- what is read


def test_progress(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    assert SweepProgress.of(path, "reward", 100) == SweepProgress(steps=100.0)
    path.write_text("iteration,env_steps,reward\n1,20,0.5\n2,40,\n3,60,nan\n")
    assert SweepProgress.of(path, "reward", 100) == SweepProgress(60.0, 100.0, 0.5)
    assert SweepProgress.of(path, "reward", 100).share == 0.6
    assert SweepProgress.of(path, None, None).share is None
    # after a warm-up of 890 s, 20 steps in 2 s: 40 are left
    (tmp_path / "timing.csv").write_text("iteration,wall_s,steps_per_s\n1,890,\n2,892,10.0\n")
    assert SweepProgress.of(path, "reward", 100).left_s == 4.0


def test_what_a_log_ends_on(tmp_path: Path) -> None:
    assert failure(tmp_path / "none") == ""
    (tmp_path / "log").write_text("npmp: error: first\nnpmp: error: data=x: no file\n  \nbye\n")
    assert failure(tmp_path / "log") == "data=x: no file"
    (tmp_path / "log").write_text("Killed\n\n")
    assert failure(tmp_path / "log") == "Killed"


# --- training


def trained(folder: Path, seed: int) -> list[bytes]:
    return [
        (folder / f"seed={seed}" / name).read_bytes()
        for name in ("metrics.csv", "module/module.safetensors")
    ]


@pytest.mark.slow
def test_killed_workers_and_drivers_change_no_byte(tmp_path: Path) -> None:
    assert cli.main(["retarget", "report=false", f"out={tmp_path / 'm.h5'}"]) == 0
    args = [
        "imitate",
        "-m",
        f"data={tmp_path / 'm.h5'}",
        "debug=tiny",
        "steps=700",
        "checkpoint_every=1",
        "seed=0,1",
    ]
    assert cli.main([*args, "hydra/launcher=basic", f"out={tmp_path / 'whole'}"]) == 0
    cut = tmp_path / "cut"
    driver = SERVER.Process(target=cli.main, args=([*args, "hydra.launcher.jobs=1", f"out={cut}"],))
    driver.start()

    def kept() -> int:
        done = cut.glob("seed=0/checkpoints/checkpoint_*.json")  # not what a worker is writing
        return max((int(path.stem.rpartition("_")[2]) for path in done), default=0)

    wait_for(lambda: kept() > 0)
    result = subprocess.run(
        ["pgrep", "-f", f"sweeping.job {cut} 0"], capture_output=True, text=True, check=False
    )
    if result.stdout.split():  # it may have ended meanwhile
        os.kill(int(result.stdout.split()[0]), signal.SIGKILL)
    killed_at = kept()
    wait_for(lambda: kept() > killed_at or states(cut)[0] == "finished")
    driver.kill()
    driver.join()
    assert cli.main(["sweeps", "resume", str(cut)]) == 0
    assert states(cut) == ["finished"] * 2
    assert all(trained(cut, seed) == trained(tmp_path / "whole", seed) for seed in (0, 1))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")
def test_ray_gives_the_same(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for launcher in ("basic", "ray"):
        out = tmp_path / launcher / "m.h5"
        assert cli.main([*CLIPS, f"hydra/launcher={launcher}", f"out={out}"]) == 0
    for seed in (1, 2):
        here, ray = (tmp_path / kind / f"seed={seed}" / "m.h5" for kind in ("basic", "ray"))
        assert here.read_bytes() == ray.read_bytes()
    assert states(tmp_path / "ray") == ["finished"] * 2


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


# --- conf/sweep
