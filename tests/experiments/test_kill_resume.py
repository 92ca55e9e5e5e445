"""Runs killed at random moments end with the bytes of the run that was not killed; NPMP_KILLS=20
kills more often than here."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from npmp.core import checkpoint
from npmp.experiments import cli, imitate
from npmp.learning import imitation
from tests.experiments import killing
from tests.experiments.forked import forked

KILLS = int(os.environ.get("NPMP_KILLS", "3"))
EVERY = 2  # iterations between checkpoints
ITERATIONS = max(6, 2 * KILLS)

SMALL = f"""threads=1 checkpoint_every={EVERY} evaluation.every=2 evaluation.starts=4
    net.encoder_width=32 net.latent_dim=8 net.decoder_width=32 net.lstm_width=32 num_envs=16
    randomization=paper"""
COMMANDS = {
    "world_model": f"""{SMALL} tempos=[0.87,1.15] algo.collect_steps=8
        algo.replay_steps=64 algo.warmup_steps=16 algo.model_hidden=[32,32] algo.model_batch=32
        algo.policy_batch=16 algo.horizon=[4,4] algo.model_updates=1 algo.policy_updates=1
        steps={16 * 16 + 128 * ITERATIONS}""",
    "mo_vmpo": f"""{SMALL} algo=mo_vmpo algo.unroll=8 algo.critic_hidden=[32,32]
        steps={128 * ITERATIONS}""",
    "reuse": f"debug=tiny threads=1 randomization=paper steps={16 * 69 + 64 * ITERATIONS}",
    "reuse_vmpo": f"algo=vmpo debug=tiny threads=1 steps={128 * ITERATIONS}",
}


def killed(verb: str, kills: int, seconds: float, arguments: list[str]) -> dict[str, Any]:
    done = forked(killing.main, verb, kills, seconds, 0, arguments, seconds=600.0)
    assert done.code == 0, done.err
    report = json.loads(done.out.splitlines()[-1])
    assert report["code"] == 0, done.err
    return dict(report)


def seconds_of(run: Path) -> float:
    with open(run / "timing.csv", newline="") as file:
        return float(list(csv.DictReader(file))[-1]["wall_s"])


def starting_seconds_of(run: Path) -> float:
    """What a run takes beside its iterations, from its configuration to its summary."""
    begin, end = ((run / name).stat().st_mtime for name in ("config.yaml", "summary.json"))
    return max(0.0, end - begin - seconds_of(run))


def rewards_of(run: Path) -> dict[int, float]:
    """What TensorBoard shows of the reward, by environment steps."""
    board = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = board.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    entries = [(event.step, event.value) for event in events.Scalars("reward")]
    assert len(entries) == len(dict(entries))
    return dict(entries)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", COMMANDS)
def test_a_run_killed_again_and_again_ends_with_the_same_bytes(
    algorithm: str, data: Path, trained: Path, tmp_path: Path
) -> None:
    verb = "reuse" if algorithm.startswith("reuse") else "imitate"
    whole, out = tmp_path / "whole", tmp_path / "killed"
    args = [f"data={data}", *COMMANDS[algorithm].split()]
    if verb == "reuse":
        args += [f"module={trained / 'module'}"]
    killed(verb, 0, 0.0, [f"out={whole}", *args])
    # in the mean each start lives to make its share of the iterations
    seconds = 2.0 * (starting_seconds_of(whole) + seconds_of(whole) / KILLS)
    report = killed(verb, KILLS, seconds, [f"out={out}", *args])
    print(json.dumps(report))
    for left in report["killed"]:  # a kill costs what came after the last checkpoint, no more
        assert left["rows"] - (left["checkpoint"] or 0) <= EVERY
    artefact = "policy" if verb == "reuse" else "module"
    newest = max((whole / "checkpoints").glob("*.safetensors")).relative_to(whole)
    for name in (
        "metrics.csv",
        str(newest),
        f"{artefact}/{artefact}.safetensors",
        f"{artefact}/{artefact}.json",
    ):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    assert not list(out.rglob(".*-????????.*")), "halves of files are cleared away"
    assert rewards_of(out) == rewards_of(whole) and len(rewards_of(out)) == ITERATIONS


def run_with_signal(number: int, method: str, after: int, arguments: list[str]) -> int:
    """The command, which gets a signal in that method of its trainer."""
    real = getattr(imitation.ModelBasedTrainer, method)

    def signalled(self: Any, *given: Any) -> Any:
        if self.iteration_count == max(0, after - 1):
            os.kill(os.getpid(), number)
        return real(self, *given)

    setattr(imitation.ModelBasedTrainer, method, signalled)
    return cli.main(arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "method", "after"),
    [
        (signal.SIGTERM, "iteration", 3),
        (signal.SIGINT, "iteration", 3),
        (signal.SIGTERM, "warm_up", 0),
    ],
)
def test_a_signal_ends_a_run_with_a_checkpoint_and_a_word_how_to_go_on(
    number: signal.Signals, method: str, after: int, data: Path, trained: Path, tmp_path: Path
) -> None:
    """Of debug=tiny: its checkpoints come after iterations 2 and 4; this one is stopped in
    iteration 3, or before the first."""
    out = tmp_path / "run"
    done = forked(
        run_with_signal,
        number,
        method,
        after,
        ["imitate", f"data={data}", f"out={out}", "debug=tiny", "threads=1"],
    )
    assert done.code == 128 + number, done.err
    message = done.err.splitlines()[-1]
    assert message.startswith(f"npmp: {number.name} after iteration {after} of 6")
    assert message.endswith(f"npmp imitate resume={out}")
    assert checkpoint.load_latest(out / "checkpoints")[0] == after
    assert imitate.main([f"resume={out}"]) == 0
    for name in (
        "metrics.csv",
        "module/module.safetensors",
        "checkpoints/checkpoint_0000000006.safetensors",
    ):
        assert (out / name).read_bytes() == (trained / name).read_bytes(), name


def left_alone(data: Path, out: Path, steps: int, hangup: signal.Handlers) -> int:
    """The exit code of a run whose terminal goes as soon as it shows an iteration."""
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGHUP, hangup)
        command = [
            "imitate",
            f"data={data}",
            f"out={out}",
            "debug=tiny",
            "threads=1",
            f"steps={steps}",
        ]
        os.execv(sys.executable, [sys.executable, "-m", "npmp.experiments.cli", *command])
    output = b""
    # not each iteration is shown
    while not re.search(rb"iteration [1-9]\d*/", output):
        output += os.read(terminal, 1000)
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.slow
def test_a_terminal_that_is_gone_costs_no_work(data: Path, tmp_path: Path) -> None:
    """The run ends at a checkpoint, though nothing hears what it says."""
    assert left_alone(data, tmp_path / "run", 1_000_000, signal.SIG_DFL) == 128 + signal.SIGHUP
    done, _ = checkpoint.load_latest(tmp_path / "run" / "checkpoints")[:2]
    assert 0 < done < 1000


@pytest.mark.slow
def test_a_run_that_ignores_hangups_outlives_its_terminal(data: Path, tmp_path: Path) -> None:
    assert left_alone(data, tmp_path / "run", 1024, signal.SIG_IGN) == 0
    assert (tmp_path / "run" / "summary.json").is_file()


def with_a_full_disk(arguments: list[str]) -> int:
    """The command, which may write no file larger than its first checkpoint."""
    real = checkpoint.save

    def save(folder: Path, step: int, *rest: Any, **more: Any) -> Path:
        path = real(folder, step, *rest, **more)
        if step == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size - 1,) * 2)
        return path

    checkpoint.save = save
    return cli.main(arguments)


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_leaves_the_last_checkpoint(
    data: Path, trained: Path, tmp_path: Path
) -> None:
    """No file may grow beyond what the first checkpoint needed; the later ones hold more replay."""
    out = tmp_path / "run"
    done = forked(
        with_a_full_disk, ["imitate", f"data={data}", f"out={out}", "debug=tiny", "threads=1"]
    )
    assert done.code == 2, done.err
    last = done.err.splitlines()[-1]
    assert last.startswith("npmp: error: ") and "checkpoint_0000000004" in last
    assert "File too large" in last
    assert checkpoint.load_latest(out / "checkpoints")[0] == 2
    assert imitate.main([f"resume={out}"]) == 0
    assert (out / "metrics.csv").read_bytes() == (trained / "metrics.csv").read_bytes()
    assert torch.equal(
        *(checkpoint.load_latest(run / "checkpoints")[1]["generator"] for run in (out, trained))
    )
