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
from npmp.view.render import backend
from retarget import CleanOptions, Options
from tests.experiments.command import Says, error_line
from tests.experiments.jobs import job_of, jobs_of

ROOT = Path(__file__).resolve().parents[2]
BASIC = ["-m", "hydra/launcher=basic"]  # a sweep in this process
pytestmark = pytest.mark.usefixtures("elsewhere")


class Recorder:
    """A command's function that records its arguments."""

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
    output, keys = printed(*name.split(), "--help"), cli.command_of(name).keys
    assert all(len(line) <= 100 for line in output.split("\n\n")[0].splitlines())
    meanings = dict.fromkeys(dir(CleanOptions) + dir(Options), "-") | help_of(keys)
    for field in dataclasses.fields(keys):
        assert meanings[field.name], f"{name}: {field.name} has no comment"
        assert f"{field.name}=" in output or f"{field.name}." in output
    assert "{now}" not in output


@pytest.mark.parametrize("name", [verb for verb in cli.VERBS if "" not in cli.VERBS[verb]])
def test_help_of_a_verb_lists_its_actions(name: str, printed: Says, refused: Says) -> None:
    output = printed(name, "--help")
    assert all(f"\n  {action} " in output for action in cli.VERBS[name])
    assert "needs an action" in refused(name)


def test_help_offers_only_what_works_for_the_verb() -> None:
    assert store.names("imitate", "task") == ["imitation"]
    assert set(store.names("imitate", "algo")) == {"world_model", "mo_vmpo", "ppo"}
    assert set(store.names("reuse", "algo")) == {"world_model", "vmpo", "ppo", "clone"}
    assert {"walk", "hwangbo_speed", "recover"} <= set(store.names("reuse", "task"))
    output = usage.of_command("reuse", cli.command_of("reuse"), ["algo=vmpo"])
    assert "algo.epsilon_std=" in output and "algo.clone_steps=" not in output
    assert output.count("[P*] the paper at second") == 1
    one = usage.of_command("imitate", cli.command_of("imitate"), ["algo=ppo", "algo.unroll"])
    assert one.splitlines()[0].startswith("  algo.unroll=") and "steps=" not in one


def test_a_deleted_folder_is_named(tmp_path: Path, monkeypatch: MonkeyPatch, refused: Says) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        assert "folder was deleted" in refused("inspect", "x")
    finally:
        os.chdir(tmp_path)


# --- the arguments of a verb


def test_run_folder_holds_the_resolved_configuration(tmp_path: Path, elsewhere: Path) -> None:
    work = Recorder()
    out = tmp_path / "a run (1), = ~"  # each of these characters means something to Hydra
    args = [f"out='{out}'", "data=some motions.h5", "steps=1e5", "seed=3"]
    assert verb("imitate", work)(args) == 0
    config, run = work.calls[0]
    assert (run.verb, run.out, run.seed, run.device) == ("imitate", out, 3, "cpu")
    assert run.overridden == {"seed", "data", "steps", "out"}
    assert config["data"] == "some motions.h5"
    assert config["steps"] == 100_000 and isinstance(config["steps"], int)
    assert yaml.safe_load((out / "config.yaml").read_text()) == {"verb": "imitate", **config}
    assert {entry.name for entry in out.iterdir()} == {"config.yaml", ".hydra"}
    names = ("config.yaml", "hydra.yaml", "overrides.yaml")
    own, hydra, overrides = (yaml.safe_load((out / ".hydra" / name).read_text()) for name in names)
    assert own == config and overrides == args and hydra["hydra"]["runtime"]["choices"]["debug"]
    assert list(elsewhere.iterdir()) == []


def settings(name: str, *given: str) -> dict[str, Any]:
    return job_of(name, *given).values


def test_debug_tiny_gives_way_to_the_command_line() -> None:
    assert settings("imitate", "debug=tiny", "data=x")["steps"] == 1024
    assert settings("imitate", "data=x")["steps"] == 1_500_000
    assert settings("imitate", "debug=tiny", "data=x", "steps=17")["steps"] == 17


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_composes(name: str) -> None:
    assert settings(name, "debug=tiny")["debug"] == "tiny"


@pytest.mark.parametrize("kind", ["experiment", "sweep"])
def test_every_preset_is_of_a_command(kind: str) -> None:
    for file in (store.CONF / kind).glob("*.yaml"):
        verb = read_yaml(file)["verb"]
        needed = "data=x" if verb == "imitate" else "module=x"
        jobs = jobs_of(verb, f"{kind}={file.stem}", "seed=0", needed)
        assert all(job.config.steps > 0 for job in jobs)
        assert len({yaml.safe_dump(job.values) for job in jobs}) == len(jobs)


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
    args = ["task=recover", "algo=clone", "algo.unroll=7", "task.drop_m=0.5", "threads=1"]
    assert main([f"out={out}", "module=x", *args]) == 0
    assert main([f"resume={out}", "algo.taught=0.9", "task.stand=[0.9,1.0]"]) == 0
    (before, _), (after, _) = work.calls
    expected = (0.9, 7, 0.5)
    assert (after["algo"]["taught"], after["algo"]["unroll"], after["task"]["drop_m"]) == expected
    assert after["task"]["stand"] == [0.9, 1.0] and before["algo"]["taught"] != 0.9
    assert main([f"resume={out}", "threads=null"]) == 0
    (goes_on, run) = work.calls[-1]
    assert goes_on["threads"] is None and before["threads"] == 1
    assert run.overridden == {"resume", "threads"}
    assert "algo has no setting 'horizon'" in refused(f"resume={out}", "algo.horizon=9", by=main)


def test_an_experiment_does_not_change_a_run_that_goes_on(tmp_path: Path, refused: Says) -> None:
    work, out = Recorder(), tmp_path / "run"
    main = verb("imitate", work)
    assert main([f"out={out}", "data=x", "experiment=small"]) == 0
    message = refused(f"resume={out}", "experiment=dog_walk", by=main)
    assert f"experiment=dog_walk does not change resume={out}" in message
    expected = f"seed=7 does not change resume={out}, which goes on as seed 0 began"
    assert expected in refused("imitate", f"resume={out}", "seed=7")
    assert len(work.calls) == 1


def test_a_run_with_checkpoints_is_not_overwritten(tmp_path: Path, refused: Says) -> None:
    work = Recorder()
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "1").touch()
    message = refused(f"out={tmp_path / 'run'}", "data=x", by=verb("imitate", work))
    assert "continue it with resume=" in message
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
    message = refused(f"out={out}", "data=x", "module=y", by=verb("evaluate", work))
    assert f"out={out} is a run of npmp imitate; choose another out=" in message
    message = refused(f"resume={out}", "module=y", by=verb("reuse", work))
    assert "is a run of npmp imitate; npmp reuse cannot continue it" in message
    foreign.mkdir()
    (foreign / "config.yaml").write_text("theme: dark\n")
    message = refused(f"out={foreign}", "data=x", "module=y", by=verb("evaluate", work))
    assert "config.yaml of another program" in message
    assert (out / "config.yaml").read_bytes() == before
    assert (foreign / "config.yaml").read_text() == "theme: dark\n"
    assert not work.calls


def test_home_is_expanded_in_every_path(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    work = Recorder()
    assert verb("imitate", work)(["out='~/run'", "data=x"]) == 0
    assert work.calls[0][1].out == tmp_path / "run"
    assert job_of("imitate", "data='~/m.h5'").config.data == tmp_path / "m.h5"


# --- mistakes


def test_a_device_that_is_not_there(refused: Says) -> None:
    import torch

    device = f"cuda:{torch.cuda.device_count()}" if torch.cuda.is_available() else "cuda"
    assert "device" in refused("data=x", f"device={device}", by=verb("imitate", Recorder()))


@pytest.mark.parametrize(
    "error", [InputError("the file is garbled"), FileNotFoundError(2, "No such file", "x.h5")]
)
def test_a_users_error_leaves_no_folder(error: Exception, tmp_path: Path, refused: Says) -> None:
    message = refused("data=x", f"out={tmp_path / 'a' / 'b'}", by=verb("imitate", Recorder(error)))
    assert message in ("the file is garbled", "x.h5: No such file")
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
    assert error_line(capsys).startswith("out of memory; use fewer robots")


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
    assert codes == [2] and "another npmp process uses" in error_line(capsys)
    assert verb("imitate", Recorder())([f"out={tmp_path / 'run'}", "data=x"]) == 0


def test_escapes_of_foreign_files_do_not_reach_the_terminal(capsys: CaptureFixture[str]) -> None:
    terminal.say("a\x1b[2Jb\x07")
    terminal.console().print(terminal.table(["x"], [["c\x1b]0;d\x07"]]))
    terminal.warn("e\x1b[31m")
    output = "".join(capsys.readouterr())
    assert "\x1b" not in output and "\x07" not in output and "a\\x1b[2Jb\\x07" in output


def test_a_renderer_that_there_is_not_is_ignored(
    monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    assert cli.main(["--version"]) == 0 and os.environ["MUJOCO_GL"] == "disable"
    assert "MUJOCO_GL='nonsense' is ignored" in capsys.readouterr().err


# --- the installation


def test_doctor_says_that_it_works(
    tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    reasons = {"egl": "", "osmesa": "library not found"}
    monkeypatch.setattr(backend, "reasons", lambda timeout_s: reasons)
    code = cli.main(["doctor", f"out={tmp_path / 'found.json'}"])
    result = {entry["name"]: entry for entry in json.loads((tmp_path / "found.json").read_text())}
    assert all(result[name]["verdict"] == "ok" for name in ("python", "mujoco.batch", "models"))
    assert result["osmesa"]["verdict"] == "absent" and result["osmesa"]["advice"]
    broken = [entry for entry in result.values() if entry["verdict"] == "broken"]
    assert code == (1 if broken else 0), broken
    assert "npmp works here" in capsys.readouterr().out


def test_killed_pipes_are_quiet() -> None:
    command = f"{shlex.quote(sys.executable)} -m npmp.experiments.cli doctor --help | head -1"
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, env={**os.environ}
    )
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: ${b}\nb: ${a}\n", "refers to other values"),
        ("seed: abc\ndata: x\n", "seed must be a whole number"),
        ("a: 1\n", "npmp imitate has no setting 'a'"),
        ("- 1\n", "config.yaml"),
    ],
)
def test_a_runs_settings_that_would_grow_or_never_end_are_one_line(
    text: str, message: str, tmp_path: Path, refused: Says
) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert message in refused(f"resume={tmp_path}", by=verb("imitate", Recorder()))


def test_names_and_terminals_that_are_not_utf_8(monkeypatch: MonkeyPatch) -> None:
    """Neither the table printer nor an error ends in a traceback, with streams as an interpreter
    opens them."""
    for arguments in (
        ["inspect", os.fsdecode(b"\xff\xfeo\xcc\x88.h5")],
        ["skill", "list"],
        ["robots", "list"],
    ):
        out, err = io.BytesIO(), io.BytesIO()
        monkeypatch.setattr(
            sys, "stdout", io.TextIOWrapper(out, "ascii", "strict", write_through=True)
        )
        monkeypatch.setattr(
            sys, "stderr", io.TextIOWrapper(err, "ascii", "backslashreplace", write_through=True)
        )
        assert cli.main(arguments) == (2 if arguments[0] == "inspect" else 0), err.getvalue()
        assert b"Traceback" not in err.getvalue() and out.getvalue() + err.getvalue()
