"""What Hydra's documentation says of an application holds for a command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

from mocap_data.errors import InputError
from npmp.experiments import cli
from npmp.experiments.sweeping import launcher as launchers
from npmp.experiments.sweeping.job import work
from npmp.experiments.sweeping.sweep import Sweep
from npmp.experiments.sweeping.workers import Ended
from tests.experiments.command import Says
from tests.experiments.jobs import job_of, jobs_of

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def configs() -> Path:
    """A config folder of the user's own."""
    folder = Path("configs")
    for name, text in {
        "experiment/mine.yaml": "defaults: [override /net: mine]\nsteps: ${num_envs}\nnum_envs: 7",
        "net/mine.yaml": "defaults: [small, _self_]\nname: mine\nlstm_width: 17",
        "sweep/mine.yaml": "hydra:\n  mode: MULTIRUN\n  sweeper: {params: {seed: 'range(2)'}}",
    }.items():
        (folder / name).parent.mkdir(parents=True)
        package = "" if name.startswith("net") else "# @package _global_\n"
        (folder / name).write_text(package + text + "\n")
    return folder


# --- what is shown


def test_cfg(printed: Says) -> None:
    job = yaml.safe_load(printed("imitate", "--cfg", "job", "algo=ppo", "seed=3"))
    assert (job["seed"], job["algo"]["name"], job["data"]) == (3, "ppo", "???")
    hydra = yaml.safe_load(printed("imitate", "--cfg", "hydra"))
    assert list(hydra) == ["hydra"] and hydra["hydra"]["launcher"]["kind"] == "local"
    assert {"hydra", "seed"} < set(yaml.safe_load(printed("imitate", "--cfg", "all")))
    part = printed("imitate", "--cfg", "job", "--package", "evaluation")
    assert part == "# @package evaluation\nevery: 50\nstarts: 64\n"


def test_info(configs: Path) -> None:
    """All of it: plugins, search path, defaults tree, defaults list, config."""
    args = ["--info", "all", "--config-dir", configs, "module=m", "randomization=paper"]
    command = [sys.executable, "-m", "npmp.experiments.cli", "reuse", *map(str, args)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0 and not result.stderr
    for text in (
        "SweepLauncher",
        "Config search path",
        "randomization/paper/stage/reuse",
        "randomization: paper",
        "BasicSweeper",
        "configs",
    ):
        assert text in result.stdout


# --- overrides


def test_add_a_key(refused: Says) -> None:
    args = ("policy=anymal_b_walk", "+scenario.mine={command: [1, 0, 0], seconds: 4.0}")
    assert job_of("evaluate suite", *args).config.scenario["mine"].seconds == 4.0
    assert job_of("imitate", "++seed=4").values["seed"] == 4
    assert "npmp imitate has no setting 'sead'" in refused("imitate", "data=x", "+sead=4")


def test_remove_a_key() -> None:
    args = ("policy=anymal_b_walk", "~scenario.strong_push")
    scenarios = job_of("evaluate suite", *args).config.scenario
    assert "strong_push" not in scenarios and "push" in scenarios
    assert job_of("imitate", "data=x", "~seed").config.seed == 0


def test_config_dir(configs: Path) -> None:
    job = job_of("imitate", "--config-dir", str(configs), "experiment=mine", "data=x", "seed=2")
    config = job.config
    assert (config.steps, config.num_envs, config.net.lstm_width, config.seed) == (7, 7, 17, 2)
    assert (config.experiment, job.chosen["net"]) == ("mine", "mine")


def test_the_store_holds_the_dataclasses() -> None:
    job_of("imitate", "data=x")
    node = ConfigStore.instance().load("algo/ppo.yaml").node
    assert node._metadata.object_type.__name__ == "ImitationPPOConfig"
    assert node.name == "ppo"


# --- multirun


@pytest.mark.parametrize(
    ("swept", "expected"),
    [
        ("algo=choice(ppo,mo_vmpo)", ["ppo", "mo_vmpo"]),
        ("algo=ppo,world_model", ["ppo", "world_model"]),
        ("algo=glob(*_m*)", ["world_model"]),
        ("seed=range(1,4)", [1, 2, 3]),
        ("steps=choice(1,2,3)", [1, 2, 3]),
    ],
)
def test_multirun(swept: str, expected: list[object]) -> None:
    jobs = jobs_of("imitate", "-m", "data=x", swept)
    key = swept.partition("=")[0]
    values = [job.values[key] for job in jobs]
    assert [v["name"] if isinstance(v, dict) else v for v in values] == expected


def test_keys_of_parts() -> None:
    jobs = jobs_of("reuse", "-m", "module=m", "task.ground.terrain=stairs,rooms")
    assert [job.values["task"]["terrain"] for job in jobs] == ["stairs", "rooms"]
    job = job_of("evaluate", "policy=anymal_b_walk", "task=path", "task.walk.ground.terrain=stairs")
    assert job.config.task.walk.ground.terrain == "stairs"
    assert job.overridden >= {"task.terrain"}


def test_a_sweep_of_the_users(configs: Path) -> None:
    jobs = jobs_of("imitate", "--config-dir", str(configs), "sweep=mine", "data=x")
    assert [job.values["seed"] for job in jobs] == [0, 1]


class Twice(Sweeper):
    """A sweeper that asks for its jobs one by one, as those do that learn from scores."""

    def setup(self, *, hydra_context, task_function, config) -> None:  # type: ignore[no-untyped-def]
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        for i in range(2):
            [result] = self.launcher.launch([[*arguments, f"seed={i + 1}"]], initial_job_idx=i)
            assert result.return_value is None  # a dataset has no score


Twice.__module__ = "hydra_plugins.npmp"


@pytest.mark.parametrize("launcher", ["basic", "local"])
def test_a_sweeper_and_a_launcher(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job_of("retarget")  # registers our own plugins
    monkeypatch.setattr(sys.modules["hydra_plugins.npmp"], "Twice", Twice, raising=False)
    Plugins.instance().register(Twice)
    node = {"_target_": "hydra_plugins.npmp.Twice"}
    ConfigStore.instance().store(group="hydra/sweeper", name="twice", node=node)
    args = ["-m", f"hydra/launcher={launcher}", "hydra/sweeper=twice", "report=false", "stop=180"]
    assert cli.main(["retarget", *args, "out=s/m.h5"]) == 0
    datasets = sorted(Path("s").glob("*/m.h5"))
    assert len(datasets) == 2 and datasets[0].read_bytes() != datasets[1].read_bytes()
    assert Path("s/sweep.json").exists() == (launcher == "local")


def test_an_experiment_without_a_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("verb: imitate\nseed: 7\n")
    with pytest.raises(InputError, match="@package _global_"):
        jobs_of("imitate", "--config-dir", str(tmp_path), "experiment=mine", "data=x")


class InProcess:
    """Workers of a sweep that run its jobs in this process, one after the other."""

    slots = 1

    def __init__(self, sweep: Sweep):
        self.folder = sweep.folder
        self.codes: dict[int, int] = {}

    def start(self, number: int, log: Path) -> None:
        log.parent.mkdir(exist_ok=True)
        self.codes[number] = work(self.folder, number)

    def ended(self, number: int) -> Ended:
        return Ended(self.codes[number], "in this process")

    def stop(self, number: int) -> None:
        raise AssertionError("nothing to stop")

    def close(self) -> None:
        pass


def test_points_that_come_again_are_jobs_of_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launchers, "workers_of", InProcess)
    args = ["-m", "seed=1,1", "hydra.sweeper.max_batch_size=1", "report=false", "stop=180"]
    assert cli.main(["retarget", *args, "out=s/m.h5"]) == 0
    assert len(list(Path("s").glob("*/m.h5"))) == 2


@pytest.mark.parametrize("option", ["--config-path=x", "--experimental-rerun=x"])
def test_options_without_use_are_refused(option: str) -> None:
    assert cli.main(["retarget", option]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("plugin", ["joblib", "optuna"])
def test_plugins_of_others(plugin: str) -> None:
    pytest.importorskip(
        f"hydra_plugins.hydra_{plugin}_{'launcher' if plugin == 'joblib' else 'sweeper'}"
    )
    args = {
        "joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=1,2"],
        "optuna": ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "algo.ema=interval(0,1)"],
    }[plugin]
    assert cli.main(["retarget", "report=false", "out=m.h5"]) == 0
    small = ["data=m.h5", "debug=tiny", "threads=1", "steps=300"]
    assert cli.main(["imitate", "-m", *args, *small, "out=s"]) == 0
    assert len([*Path("s").glob("*/summary.json")]) == 2
