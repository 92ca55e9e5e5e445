"""The command: help, exit codes, one clear line for every mistake, and no litter."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pytest import CaptureFixture, MonkeyPatch

import npmp
from mocap_data.errors import InputError
from mocap_data.safe_yaml import read_yaml
from npmp.core.settings import help_of
from npmp.experiments import cli, store, terminal, usage
from npmp.experiments.command import Run, Verb
from npmp.experiments.compose import quoted
from retarget import CleanOptions, Options
from tests.experiments.command import Says, error_line
from tests.experiments.jobs import job_of, jobs_of
from tests.experiments.test_retarget import save

ROOT = Path(__file__).resolve().parents[2]
BASIC = ["-m", "hydra/launcher=basic"]  # a sweep in this process
pytestmark = pytest.mark.usefixtures("elsewhere")


class Recorder:
    """A command's work that only notes what it was given."""

    def __init__(self, result: BaseException | None = None) -> None:
        self.result = result
        self.calls: list[tuple[dict[str, Any], Run]] = []

    def __call__(self, config: Any, run: Run) -> None:
        self.calls.append((dict(run.values), run))
        if self.result is not None:
            raise self.result


def verb(name: str, work: Any) -> Verb:
    """A command that does something else."""
    command: Verb = cli.command_of(name)
    return dataclasses.replace(command, function=work, check=None)


# --- the dispatcher


def test_help_lists_every_verb_and_is_quick() -> None:
    # importing either takes seconds
    script = (
        "import sys; from npmp.experiments import cli; code = cli.main(['--help']);"
        "sys.exit(code or bool({'hydra', 'torch'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT
    )
    assert result.returncode == 0
    assert result.stderr == ""
    for name in cli.VERBS:
        assert f"\n  {name} " in result.stdout


def test_version(printed: Says) -> None:
    assert printed("--version") == f"npmp {npmp.__version__}\n"
    # stands there alone
    assert "version" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"]


COMMANDS = [name for verb in cli.VERBS for name in cli.commands(verb)]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_key_with_its_meaning(name: str, printed: Says) -> None:
    shown, keys = printed(*name.split(), "--help"), cli.command_of(name).keys
    assert all(len(line) <= 100 for line in shown.split("\n\n")[0].splitlines())
    meanings = dict.fromkeys(dir(CleanOptions) + dir(Options), "-") | help_of(keys)
    for field in dataclasses.fields(keys):
        assert meanings[field.name], f"{name}: {field.name} has no comment"
        assert f"{field.name}=" in shown or f"{field.name}." in shown
    assert "{now}" not in shown


@pytest.mark.parametrize("name", [verb for verb in cli.VERBS if "" not in cli.VERBS[verb]])
def test_help_of_a_verb_lists_its_actions(name: str, printed: Says, refused: Says) -> None:
    shown = printed(name, "--help")
    assert all(f"\n  {action} " in shown for action in cli.VERBS[name])
    assert "needs an action" in refused(name)


def test_help_offers_only_what_works_for_the_verb() -> None:
    assert store.names("imitate", "task") == ["imitation"]
    assert set(store.names("imitate", "algo")) == {"world_model", "mo_vmpo", "ppo"}
    assert set(store.names("reuse", "algo")) == {"world_model", "vmpo", "ppo", "clone"}
    assert {"walk", "hwangbo_speed", "recover"} <= set(store.names("reuse", "task"))
    shown = usage.of_command("reuse", cli.command_of("reuse"), ["algo=vmpo"])
    assert "algo.epsilon_std=" in shown and "algo.clone_steps=" not in shown
    assert shown.count("[P*] that paper at second") == 1
    one = usage.of_command("imitate", cli.command_of("imitate"), ["algo=ppo", "algo.unroll"])
    assert one.splitlines()[0].startswith("  algo.unroll=") and "steps=" not in one


def test_unknown_verb(refused: Says) -> None:
    line = refused("imitat", "data=x")
    assert "no verb 'imitat'; did you mean 'imitate'?" in line
    assert "doctor" in line


def test_a_deleted_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Says
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        assert "the current folder was deleted; cd to one that exists" in refused("inspect", "x")
        assert cli.main(["--version"]) == 0
    finally:
        os.chdir(tmp_path)


# --- what a verb is given


def test_run_folder_holds_the_resolved_configuration(tmp_path: Path, elsewhere: Path) -> None:
    work = Recorder()
    out = tmp_path / "a run (1), = ~"  # each of these characters means something to Hydra
    given = [f"out='{out}'", "data=some motions.h5", "steps=1e5", "seed=3"]
    assert verb("imitate", work)(given) == 0
    config, run = work.calls[0]
    assert (run.verb, run.out, run.seed, run.device) == ("imitate", out, 3, "cpu")
    assert run.given == {"seed", "data", "steps", "out"}
    assert config["data"] == "some motions.h5"
    assert config["steps"] == 100_000 and isinstance(config["steps"], int)
    assert yaml.safe_load((out / "config.yaml").read_text()) == {"verb": "imitate", **config}
    assert {entry.name for entry in out.iterdir()} == {"config.yaml", ".hydra"}
    names = ("config.yaml", "hydra.yaml", "overrides.yaml")
    own, hydra, overrides = (yaml.safe_load((out / ".hydra" / name).read_text()) for name in names)
    assert own == config and overrides == given and hydra["hydra"]["runtime"]["choices"]["debug"]
    assert list(elsewhere.iterdir()) == []


def settings(name: str, *given: str) -> dict[str, Any]:
    return job_of(name, *given).values


def test_debug_tiny_gives_way_to_the_command_line() -> None:
    assert settings("imitate", "debug=tiny", "data=x")["steps"] == 1024
    assert settings("imitate", "data=x")["steps"] == 1_500_000
    assert settings("imitate", "debug=tiny", "data=x", "steps=17")["steps"] == 17


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("debug", ["none", "tiny"])
def test_every_command_composes(name: str, debug: str) -> None:
    assert settings(name, f"debug={debug}")["debug"] == debug


@pytest.mark.parametrize("kind", ["experiment", "sweep"])
def test_every_preset_is_of_a_command(kind: str) -> None:
    for file in (store.CONF / kind).glob("*.yaml"):
        verb = read_yaml(file)["verb"]
        needed = "data=x" if verb == "imitate" else "module=x"
        for job in jobs_of(verb, f"{kind}={file.stem}", "seed=0", needed):
            assert job.config.steps > 0


def test_seeds_repeat(tmp_path: Path) -> None:
    drawn = []

    def draw(config: Any, run: Run) -> None:
        import torch

        # the global generator is meant
        drawn.append((float(np.random.rand()), float(torch.rand(()))))  # noqa: NPY002

    main = verb("imitate", draw)
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        assert main([f"out={tmp_path / name}", "data=x", f"seed={seed}"]) == 0
    assert drawn[0] == drawn[1] != drawn[2]


def test_sweep_gives_each_job_a_folder_named_by_what_differs(
    tmp_path: Path, elsewhere: Path
) -> None:
    work = Recorder()
    arguments = [*BASIC, "data=x/y.h5", "seed=1,2", "net=small,paper", f"out={tmp_path / 's'}"]
    assert verb("imitate", work)(arguments) == 0
    names = {"net=paper,seed=1", "net=paper,seed=2", "net=small,seed=1", "net=small,seed=2"}
    assert {run.folder.name for _, run in work.calls} == names
    assert {entry.name for entry in (tmp_path / "s").iterdir()} == names | {"multirun.yaml"}
    assert all((tmp_path / "s" / name / "config.yaml").is_file() for name in names)
    assert list(elsewhere.iterdir()) == []


def test_a_sweep_with_a_name_runs_all_that_it_says(
    tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    work = Recorder()
    arguments = ["sweep=fig6", BASIC[1], "data=x", "steps=7", f"out={tmp_path / 's'}"]
    assert verb("reuse", work)(arguments) == 0
    jobs = {(b, s) for b in (0.001, 0.01, 0.1, 1) for s in range(3)}
    assert all(c["algo"]["beta"][0] == c["algo"]["beta"][1] for c, _ in work.calls)
    assert {(c["algo"]["beta"][0], c["seed"]) for c, _ in work.calls} == jobs
    assert all((c["steps"], c["module"]) == (7, "anymal_b_dog") for c, _ in work.calls)
    assert (tmp_path / "s" / "algo.beta=[0.001,0.001],seed=2" / "config.yaml").is_file()
    resumed = tmp_path / "s" / "algo.beta=[1,1],seed=0"
    assert verb("reuse", work)([f"resume='{resumed}'", "sweep=fig6"]) == 2
    assert capsys.readouterr().err.count(f"sweep=fig6 does not change resume={resumed}") == 1
    assert verb("reuse", work)(["sweep=fig6", "data=x", "--cfg", "job"]) == 0
    assert "steps: 232000\n" in capsys.readouterr().out and len(work.calls) == 12


def test_sweep_goes_on_after_a_failed_job(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    work = Recorder()
    arguments = [*BASIC, "data=x", "steps=none_at_all,3", f"out={tmp_path / 's'}"]
    assert verb("imitate", work)(arguments) == 2
    assert [run.folder.name for _, run in work.calls] == ["steps=3"]
    assert "steps must be a whole number" in capsys.readouterr().err


def test_resume_starts_from_the_runs_own_settings(tmp_path: Path) -> None:
    work = Recorder()
    main, out = verb("imitate", work), tmp_path / "run"
    assert main([f"out={out}", "data=x", "steps=100", "seed=7", "net=paper", "num_envs=3"]) == 0
    assert main([f"resume={out}", "steps=200"]) == 0
    (before, _), (after, run) = work.calls
    assert run.out == run.resume == out
    assert after == {**before, "steps": 200, "resume": str(out)}


def test_what_goes_on_takes_the_keys_of_its_own_algorithm(tmp_path: Path, refused: Says) -> None:
    work, out = Recorder(), tmp_path / "run"
    main = verb("reuse", work)
    given = ["task=recover", "algo=clone", "algo.unroll=7", "task.drop_m=0.5", "threads=1"]
    assert main([f"out={out}", "module=x", *given]) == 0
    assert main([f"resume={out}", "algo.taught=0.9", "task.stand=[0.9,1.0]"]) == 0
    (before, _), (after, _) = work.calls
    expected = (0.9, 7, 0.5)
    assert (after["algo"]["taught"], after["algo"]["unroll"], after["task"]["drop_m"]) == expected
    assert after["task"]["stand"] == [0.9, 1.0] and before["algo"]["taught"] != 0.9
    assert main([f"resume={out}", "threads=null"]) == 0
    (goes_on, run) = work.calls[-1]
    assert goes_on["threads"] is None and before["threads"] == 1
    assert run.given == {"resume", "threads"}
    assert "algo has no setting 'horizon'" in refused(f"resume={out}", "algo.horizon=9", by=main)


def test_an_experiment_does_not_change_a_run_that_goes_on(tmp_path: Path, refused: Says) -> None:
    work, out = Recorder(), tmp_path / "run"
    main = verb("imitate", work)
    assert main([f"out={out}", "data=x", "experiment=small"]) == 0
    said = refused(f"resume={out}", "experiment=dog_walk", by=main)
    assert f"experiment=dog_walk does not change resume={out}" in said
    expected = f"seed=7 does not change resume={out}, which goes on as seed 0 began"
    assert expected in refused("imitate", f"resume={out}", "seed=7")
    assert len(work.calls) == 1


def test_a_run_with_checkpoints_is_not_overwritten(tmp_path: Path, refused: Says) -> None:
    work = Recorder()
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "1").touch()
    said = refused(f"out={tmp_path / 'run'}", "data=x", by=verb("imitate", work))
    assert "holds a run already; continue it with resume=" in said
    assert not work.calls


def test_a_failed_verb_leaves_an_earlier_configuration(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert verb("imitate", Recorder())([f"out={out}", "data=x"]) == 0
    before = (out / "config.yaml").read_bytes()
    arguments = [f"out={out}", "data=y", "seed=4"]
    assert verb("imitate", Recorder(InputError("no such data")))(arguments) == 2
    assert (out / "config.yaml").read_bytes() == before

    def accepts_then_fails(config: Any, run: Run) -> None:
        run.begin()
        raise InputError("the disk is full")

    assert verb("imitate", accepts_then_fails)([f"out={out}", "data=y", "seed=4"]) == 2
    assert yaml.safe_load((out / "config.yaml").read_text())["seed"] == 4


def test_a_folder_of_another_verb_is_refused(tmp_path: Path, refused: Says) -> None:
    work, out, foreign = Recorder(), tmp_path / "run", tmp_path / "foreign"
    assert verb("imitate", Recorder())([f"out={out}", "data=x"]) == 0
    before = (out / "config.yaml").read_bytes()
    said = refused(f"out={out}", "data=x", "module=y", by=verb("evaluate", work))
    assert f"out={out} holds a run of npmp imitate; choose another out=" in said
    said = refused(f"resume={out}", "module=y", by=verb("reuse", work))
    assert "is a run of npmp imitate; npmp reuse cannot continue it" in said
    foreign.mkdir()
    (foreign / "config.yaml").write_text("theme: dark\n")
    said = refused(f"out={foreign}", "data=x", "module=y", by=verb("evaluate", work))
    assert "holds a config.yaml that npmp did not write" in said
    assert (out / "config.yaml").read_bytes() == before
    assert (foreign / "config.yaml").read_text() == "theme: dark\n"
    assert not work.calls


def test_resuming_elsewhere_does_not_overwrite_a_run(tmp_path: Path, refused: Says) -> None:
    work = Recorder()
    main = verb("imitate", work)
    for name in "ab":
        assert main([f"out={tmp_path / name}", "data=x"]) == 0
        (tmp_path / name / "checkpoints").mkdir()
        (tmp_path / name / "checkpoints" / "1").touch()
    work.calls.clear()
    said = refused(f"resume={tmp_path / 'a'}", f"out={tmp_path / 'b'}", by=main)
    assert "b holds a run already" in said
    assert not work.calls
    assert main([f"resume={tmp_path / 'a'}", f"out={tmp_path / 'c'}"]) == 0
    assert work.calls[0][1].out == tmp_path / "c" and work.calls[0][1].resume == tmp_path / "a"


def test_home_is_expanded_in_every_path(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    work = Recorder()
    assert verb("imitate", work)(["out='~/run'", "data=x"]) == 0
    assert work.calls[0][1].out == tmp_path / "run"
    assert job_of("imitate", "data='~/m.h5'").config.data == tmp_path / "m.h5"


def test_a_verb_for_the_cpu_refuses_others_before_any_work(tmp_path: Path, refused: Says) -> None:
    work = Recorder()
    said = "device=cuda: npmp deploy check computes on the CPU only; use device=cpu"
    assert said in refused("x", "device=cuda", by=verb("deploy check", work))
    assert not work.calls and not (tmp_path / "run").exists()


def test_an_experiment_is_a_named_set_of_changes() -> None:
    assert settings("imitate", "experiment=dog_walk", "data=x")["steps"] == 600_000
    assert settings("imitate", "experiment=dog_walk", "data=x", "steps=5")["steps"] == 5


@pytest.mark.parametrize(
    "order", [["--cfg", "job", "data=x", "seed=9"], ["data=x", "seed=9", "--cfg", "job"]]
)
def test_show_the_configuration_instead_of_running(order: list[str], printed: Says) -> None:
    work = Recorder()
    assert yaml.safe_load(printed(*order, by=verb("imitate", work)))["seed"] == 9
    assert not work.calls


# --- mistakes


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["stpes=3"], "no setting 'stpes'; the nearest are: steps, "),
        (["algo.compilee=1"], "algo has no setting 'compilee'; the nearest are: compile, "),
        (["policy_lr=3"], "the nearest are: algo.policy_lr, "),
        (["algo=mo_vmpo", "algo.policy_batch=3"], "algo has no setting 'policy_batch'"),
        (["debug=huge"], "no debug 'huge'; available: none, tiny"),
        (["seed=abc"], "seed must be a whole number, got 'abc'"),
        (["seed=-1"], "seed=-1"),
        (["steps=1.5"], "steps must be a whole number, got 1.5"),
        (["algo.model_hidden=[256,9000]"], "model_hidden must be at most 8192, got [256, 9000]"),
        (["net.lstm_width=9000"], "lstm_width must be at most 8192, got 9000"),
        (["randomization=paper", "randomization.sensors.delay_s=[0,11]"], "must be at most 10"),
        (["steps=null"], "steps must be a whole number, got null"),
        (["steps=1e30"], "steps must be a number of at most 9,007,199,254,740,992"),
        (["steps=" + "9" * 6000], "steps: a number of more than 400 digits"),
        (["tempos=null"], "tempos must be a list, each a finite number, got null"),
        (["task.tracking=null"], "task.tracking must be a mapping, got null"),
        (["torch_threads=1000000"], "torch_threads must be from 1 to 4096"),
        (["data=null"], "data must be a path, got null"),
        (["data=[x]"], "data must be a path, got ['x']"),
        (["~algo"], "imitate needs algo=... (how it is learned)"),
        (["~algo.ema"], "~algo.ema: this key cannot be removed"),
        (["~sead"], "no setting 'sead'; the nearest are: seed, "),
        (["+seed=1"], "+seed=1: seed exists; seed=1 sets it"),
        (["algo=null"], "a choice of algo is left out by ~algo"),
        (["out=" + "a/" * 600], "out= has 1199 bytes; at most 900 work"),
        (["randomization.hold=zero_order"], "randomization has no setting 'hold'"),
        (["device=gpu"], "no device 'gpu'; available: cpu, cuda, cuda:N"),
        (["motions.h5"], "'motions.h5' is no setting; settings are key=value"),
        (["--steps", "3"], "unrecognized arguments: --steps 3; settings are key=value"),
        (["seed=1,2"], "seed=1,2 holds a comma"),
        (["seed=["], "'['"),
        (["steps=[~/a]"], "special characters need quotes"),
        (["steps=[a=3]"], "special characters need quotes"),
        (["=3"], "'=3' is no setting"),
        (["resume=/nowhere"], "no run folder"),
        (["out=/dev/null/x"], "cannot write to /dev/null/x"),
        (["out=/dev/null"], "is a file; a folder is expected"),
    ],
)
def test_one_clear_line_and_exit_code_2(
    arguments: list[str], expected: str, tmp_path: Path, elsewhere: Path, refused: Says
) -> None:
    work = Recorder()
    out = (
        []
        if any(argument.startswith("out=") for argument in arguments)
        else [f"out={tmp_path / 'run'}"]
    )
    assert expected in refused("data=x", *out, *arguments, by=verb("imitate", work))
    assert not work.calls
    assert not (tmp_path / "run").exists()
    assert list(elsewhere.iterdir()) == []


def test_a_needed_key_is_named_with_its_meaning(refused: Says) -> None:
    said = refused(by=verb("imitate", Recorder()))
    assert "npmp imitate needs data=... (the motion dataset" in said


def test_a_device_that_is_not_there(refused: Says) -> None:
    import torch

    device = f"cuda:{torch.cuda.device_count()}" if torch.cuda.is_available() else "cuda"
    assert "device" in refused("data=x", f"device={device}", by=verb("imitate", Recorder()))


@pytest.mark.parametrize(
    "error", [InputError("the file is garbled"), FileNotFoundError(2, "No such file", "x.h5")]
)
def test_a_users_error_leaves_no_folder(error: Exception, tmp_path: Path, refused: Says) -> None:
    said = refused("data=x", f"out={tmp_path / 'a' / 'b'}", by=verb("imitate", Recorder(error)))
    assert said in ("the file is garbled", "x.h5: No such file")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . CPUAllocator: can't allocate memory"),
    ],
)
def test_memory_that_there_is_not_is_one_line(
    error: Exception, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    assert verb("imitate", Recorder(error))(["data=x", f"out={tmp_path / 'a'}"]) == 1
    assert error_line(capsys).startswith("out of memory; fewer robots")


def test_an_internal_error_shows_its_traceback(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    code = verb("imitate", Recorder(ZeroDivisionError("oh")))(["data=x", f"out={tmp_path / 'a'}"])
    assert code == 1
    text = capsys.readouterr().err
    assert "ZeroDivisionError: oh" in text
    assert text.strip().splitlines()[-1].startswith("npmp: error: an internal error")
    # A ValueError of the verb's own is no mistake on the command line.
    assert verb("imitate", Recorder(ValueError("inner")))(["data=x", f"out={tmp_path / 'b'}"]) == 1


def test_debug_shows_where_a_users_error_was_found(
    tmp_path: Path, capsys: CaptureFixture[str], monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setenv("NPMP_DEBUG", "1")
    code = verb("imitate", Recorder(InputError("garbled")))(["data=x", f"out={tmp_path / 'a'}"])
    assert code == 2
    assert "Traceback" in capsys.readouterr().err


def test_interrupted(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    code = verb("imitate", Recorder(KeyboardInterrupt()))(["data=x", f"out={tmp_path / 'a'}"])
    assert code == 130
    assert "Traceback" not in capsys.readouterr().err


def test_long_messages_are_cut() -> None:
    assert len(terminal.one_line(InputError("x" * 5000))) < 500
    assert terminal.one_line(InputError("two\n lines")) == "two lines"


@pytest.mark.parametrize(
    "path", ["plain/a-b_c.h5", "a b", "it's", "back\\", "a,b", "(1)", "x=y", "{b}", "ü", "a'\\'b"]
)
def test_paths_in_quotes_are_taken_as_they_stand(path: str) -> None:
    assert settings("imitate", f"data={quoted(path)}", f"module={quoted(path)}")["data"] == path
    assert settings("retarget", "source=[a.bvh,'b c.bvh']")["source"] == ["a.bvh", "b c.bvh"]


def test_two_runs_in_one_folder_at_once_are_refused(
    tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    codes = []

    def again(config: Any, run: Run) -> None:
        codes.append(verb("imitate", Recorder())([f"out={run.out}", "data=x"]))

    assert verb("imitate", again)([f"out={tmp_path / 'run'}", "data=x"]) == 0
    assert codes == [2] and "another npmp works in" in error_line(capsys)
    assert verb("imitate", Recorder())([f"out={tmp_path / 'run'}", "data=x"]) == 0


def test_escapes_of_foreign_files_do_not_reach_the_terminal(capsys: CaptureFixture[str]) -> None:
    terminal.say("a\x1b[2Jb\x07")
    terminal.console().print(terminal.table(["x"], [["c\x1b]0;d\x07"]]))
    terminal.warn("e\x1b[31m")
    shown = "".join(capsys.readouterr())
    assert "\x1b" not in shown and "\x07" not in shown and "a\\x1b[2Jb\\x07" in shown


def test_a_renderer_that_there_is_not_is_ignored(
    monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    assert cli.main(["--version"]) == 0 and os.environ["MUJOCO_GL"] == "disable"
    assert "MUJOCO_GL='nonsense' is ignored" in capsys.readouterr().err


# --- verbs that are here already


def test_inspect_and_its_mistakes(tmp_path: Path, printed: Says, refused: Says) -> None:
    positions = np.zeros((10, 2, 3))
    positions[:, :, 1] = np.linspace(0.1, 1.0, 10)[:, None]
    path = tmp_path / "clip.npz"
    np.savez(path, positions=positions, names=np.array(["a", "b"]), fps=np.array(50.0))
    printed("inspect", path, f"out={tmp_path / 'found.json'}")
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["frames"], found["rate_hz"], found["keypoints"]) == (10, 50.0, ["a", "b"])
    (tmp_path / "cut.h5").write_bytes(b"\x89HDF\r\n\x1a\n cut")
    for name, expected in {"cut.h5": "not HDF5", "nowhere": "no file"}.items():
        assert expected in refused("inspect", tmp_path / name)


def test_retarget_leaves_out_what_cannot_be_read(
    tmp_path: Path, capsys: CaptureFixture[str], refused: Says
) -> None:
    from mocap_data import dog_gait, read_motions

    folder, out = tmp_path / "clips", tmp_path / "motions.h5"
    folder.mkdir()
    clip = dog_gait("walk", duration_s=2.0)
    save(folder / "good.npz", clip)
    (folder / "bad.bvh").write_text("HIERARCHY\nROOT")
    arguments = ["retarget", f"source={folder}", f"out={out}", "up=z", "scale=1.0"]
    assert "bad.bvh" in refused(*arguments, "strict=true")
    assert not out.exists()
    assert cli.main(arguments) == 0
    shown = capsys.readouterr()
    assert "npmp: left out:" in shown.err and "bad.bvh" in shown.err
    assert "RMS" in shown.out and "1 motion of anymal_b" in shown.out
    motions = read_motions(out, robot="anymal_b")
    assert motions.names == ("good",)
    assert motions.provenance["source"] == str(folder)
    left = sorted(entry.name for entry in tmp_path.iterdir() if entry.is_file())
    assert left == ["motions.h5", "motions.html"]


def test_doctor_says_that_it_works(
    tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    from npmp.view.render import backend

    monkeypatch.setattr(
        backend, "reasons", lambda timeout_s: {"egl": "", "osmesa": "library not found"}
    )
    code = cli.main(["doctor", f"out={tmp_path / 'found.json'}"])
    found = {entry["name"]: entry for entry in json.loads((tmp_path / "found.json").read_text())}
    assert (
        found["python"]["verdict"]
        == found["mujoco.batch"]["verdict"]
        == found["models"]["verdict"]
        == "ok"
    )
    assert found["osmesa"]["verdict"] == "absent" and found["osmesa"]["advice"]
    broken = [entry for entry in found.values() if entry["verdict"] == "broken"]
    assert code == (1 if broken else 0), broken
    assert "npmp works here" in capsys.readouterr().out


def test_doctor_knows_a_version_out_of_range() -> None:
    from npmp.view import installation

    assert installation.check_requirement("numpy>=1.0")[0] == "ok"
    assert installation.check_requirement("numpy<1.0")[0] == "broken"
    assert installation.check_requirement("no-such-package-anywhere>=1")[0] == "absent"


def test_a_broken_gl_backend_is_found_out(monkeypatch: MonkeyPatch) -> None:
    from npmp.view.render import backend

    monkeypatch.setattr(backend, "BACKENDS", ("egl",))
    monkeypatch.setattr(backend, "PROBE", "import os; os.abort()")
    assert "signal" in backend.reasons(20.0)["egl"]
    monkeypatch.setattr(backend, "PROBE", "raise RuntimeError('no such device')")
    assert "no such device" in backend.reasons(20.0)["egl"]


def test_killed_pipes_are_quiet() -> None:
    command = f"{shlex.quote(sys.executable)} -m npmp.experiments.cli doctor --help | head -1"
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, env={**os.environ}
    )
    assert result.stderr == ""


def test_a_licence_is_free_text(tmp_path: Path) -> None:
    """With commas, brackets and quotes in it."""
    from mocap_data import dog_gait, read_motions

    clip, text = dog_gait("walk", duration_s=2.0), "CMU (free for all uses, don't resell by itself)"
    recording, out = tmp_path / "walk.npz", tmp_path / "motions.h5"
    save(recording, clip)
    given = [f"source={recording}", f"licence={quoted(text)}", f"out={out}"]
    assert cli.main(["retarget", *given, "up=z", "scale=1.0", "report=null"]) == 0
    assert {motion.licence for motion in read_motions(out).motions} == {text}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: ${b}\nb: ${a}\n", "refers to other values"),
        (
            "a0: &a0 [x, x]\n"
            + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)),
            "*a0",
        ),
        ("[" * 10_000, "nested more than 64 levels deep"),
        ("seed: " + "9" * 6000, "6000 digits"),
        ("seed: abc\ndata: x\n", "seed must be a whole number"),
        ("evaluation: 5\ndata: x\n", "Evaluation must be a mapping, got 5"),
        ("a: 1\n", "npmp imitate has no setting 'a'"),
        ("- 1\n", "not a configuration"),
    ],
)
def test_a_runs_settings_that_would_grow_or_never_end_are_one_line(
    text: str, message: str, tmp_path: Path, refused: Says
) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert message in refused(f"resume={tmp_path}", by=verb("imitate", Recorder()))


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_names_and_terminals_that_are_not_utf_8(encoding: str, monkeypatch: MonkeyPatch) -> None:
    """Neither the table printer nor an error ends in a traceback, with streams as an interpreter
    opens them."""
    for arguments in (
        ["inspect", os.fsdecode(b"\xff\xfeo\xcc\x88.h5")],
        ["skill", "list"],
        ["robots", "list"],
    ):
        out, err = io.BytesIO(), io.BytesIO()
        monkeypatch.setattr(
            sys, "stdout", io.TextIOWrapper(out, encoding, "strict", write_through=True)
        )
        monkeypatch.setattr(
            sys, "stderr", io.TextIOWrapper(err, encoding, "backslashreplace", write_through=True)
        )
        assert cli.main(arguments) == (2 if arguments[0] == "inspect" else 0), err.getvalue()
        assert b"Traceback" not in err.getvalue() and out.getvalue() + err.getvalue()
