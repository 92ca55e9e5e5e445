"""The commands of the documentation work: every line of its shell blocks is run, page after page,
each page in a folder of its own, as a user types it but for debug=tiny, on recordings that are
here. `make test-all` runs them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import dropwhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from urllib.request import urlopen

import pytest

from npmp import robots
from npmp.experiments import cli
from npmp.experiments.sweeping import job, workers
from npmp.experiments.sweeping.launcher import SweepLauncher
from tests.test_docs import ROOT, blocks, named, tiny, typed, with_code

pytestmark = pytest.mark.commands

# Lines that are not run, by how they begin, and why.
LEFT_OUT = {
    "make install": "installs packages",
    "make test": "is what runs this",
    "npmp imitate module=anymal_b_dog": "needs the module's own sizes, not those of debug=tiny",
    "npmp imitate module=go2_dog": "as the line above",
    "npmp deploy run bundle robot=unitree_go2": "needs a robot",
    "npmp evaluate suite policy=go2_mjlab": "takes minutes: a call per robot at 200 Hz",
    "npmp data fetch": "needs a network; links to the recordings that are here stand for it",
    "npmp deploy export policy=go2_gaits_walk format=web": "needs npm; tests/view/web runs it",
    "npmp skill push": "needs the Hugging Face Hub",
    "npmp skill pull": "needs the Hugging Face Hub",
    "python -m npmp.experiments.benchmarks": "measures for a minute",
    "python -m npmp.learning.depth_training": "learns for 16 minutes",
    "MUJOCO_GL=egl": "draws in this process, where MuJoCo was loaded without a renderer",
    "ray get-auth-token": "writes into the home folder",
    "RAY_AUTH_MODE=token ray start": "leaves processes behind; npmp makes a cluster for the jobs",
}
if importlib.util.find_spec("pydrake") is None:
    LEFT_OUT["npmp deploy trial bundle simulator=drake"] = "needs the extra drake"

# What pages take for granted, made where a line names it and its page has not made it: by a
# command, or as a link to recordings and models that are here.
GIVEN = {
    "recordings/dog": "mocap/dog_bvh/D1_0[05][389]_KAN01_001.bvh",
    "recordings/cmu": "mocap/cmu_asfamc/0[23]/*",
    "anydrive_v3_lstm.npz": "actuators/anydrive_v3_lstm.npz",
    "my_dog.xml": str(robots.find("anymal_b").parent / "anymal_b.xml"),
    "runs/depth_network": "python -c 'import shutil; shutil.copytree("
    f'"{ROOT}/experiments/results/eyes_stereo", "runs/depth_network")\'',
    "experiments/examples": str(ROOT / "experiments/examples"),
    "knee.npz": "npmp actuator import hwangbo out=knee.npz"
    " source=$NPMP_SHARED/actuators/hwangbo_anymal_knee.npz",
    "motor.npz": """python -c 'import numpy as np
        time = np.arange(0, 4, 0.0025); error = 0.1 * np.sin(9 * time)
        told = {"torque": 40 * error, "current": 20 * error, "velocity": np.cos(5 * time)}
        np.savez("motor.npz", time_s=time, position_error=error, **told)'""",
    "motions.h5": "npmp retarget out=motions.h5",
    "dog.h5": "npmp retarget source=recordings/dog validation=0.15 out=dog.h5",
    "dog_all.h5": "npmp retarget source=recordings/dog mirrors=all validation=0.15 out=dog_all.h5",
    "walk.h5": "npmp retarget source=$D/D1_053_KAN01_001.bvh@800:1000 out=walk.h5",
    "runs/knee": "npmp actuator fit debug=tiny data=knee.npz model=conv out=runs/knee",
    "runs/imitation": "npmp imitate debug=tiny data=motions.h5 out=runs/imitation",
    "runs/dog": "npmp imitate debug=tiny data=dog.h5 out=runs/dog",
    "runs/nominal": "npmp evaluate debug=tiny module=runs/dog/module data=dog.h5 out=runs/nominal",
    "runs/randomized": "npmp evaluate debug=tiny module=runs/dog/module data=dog.h5"
    " out=runs/randomized",
    "runs/reuse": "npmp reuse debug=tiny module=anymal_b_dog out=runs/reuse",
    "runs/evaluation": "npmp evaluate debug=tiny module=anymal_b_dog data=motions.h5"
    " out=runs/evaluation",
    "runs/fast": "npmp imitate debug=tiny data=motions.h5 out=runs/fast",
    "runs/published": "npmp imitate debug=tiny algo=mo_vmpo data=motions.h5 out=runs/published",
    "runs/seeds": "npmp imitate -m debug=tiny data=motions.h5 seed=0,1 out=runs/seeds",
    "runs/fig7": "npmp imitate -m debug=tiny data=motions.h5 randomization=none,paper"
    " out=runs/fig7",
    "bundle": "npmp deploy export debug=tiny policy=anymal_b_walk out=bundle",
    "runs/drake": "npmp deploy trial bundle debug=tiny seed=1 out=runs/drake",
    "runs/robot": "npmp deploy run bundle debug=tiny sim.realtime=false seed=1 out=runs/robot",
    "runs/sim": "npmp deploy run bundle debug=tiny sim.realtime=false out=runs/sim",
}
# Files that a page may name without a line that makes their folder, and which folder that is.
PARTS = dict.fromkeys(("bundle.json", "policy.onnx", "golden.npz"), "bundle")
# Besides debug=tiny, where a line has them: a minute of compiling, and jobs that one after another
# are proposed.
LESS = {"algo.compile=true": "algo.compile=false"}
# 3: what was judged did not pass; 130: Ctrl-C
CODES = {"evaluate suite": (0, 3), "deploy run": (0, 3), "play": (130,)}
PATIENCE_S = 60.0  # with a server, on a machine that is busy with other things
FILE = r"`((?!conf/)(?:[\w.]+/)*\w+\.(?:csv|h5|html|json|npz|onnx|png|safetensors|webp|yaml))`"


def steps() -> Iterator[Any]:
    """Page by page what is to be done: its Python, the words of its lines, at last the files that
    its text names. With --dist loadscope a worker takes all of what is alike up to the "::"."""
    for page in with_code("", "sh"):
        text = page.read_text(encoding="utf-8")
        for language, block in blocks(text):
            if language == "python":
                yield pytest.param(page, block, id=f"{named(page)}::python")
            for words in typed(block) if language in ("", "sh") else ():
                yield pytest.param(page, words, id=f"{named(page)}::{shlex.join(words)}")
        text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        yield pytest.param(page, set(re.findall(FILE, text)), id=f"{named(page)}::files")


@pytest.fixture(scope="session")
def at(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Place]]:
    """The folder of a page."""
    launch = SweepLauncher.launch

    def first_job(self: Any, job_overrides: Any, initial_job_idx: int) -> Any:
        return launch(self, job_overrides[:1], initial_job_idx)

    given = Place(tmp_path_factory.mktemp("given"), shared)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NPMP_SHARED", str(shared))
        patch.setenv("D", "recordings/dog")
        patch.delenv("RAY_ADDRESS", raising=False)
        # one job of a sweep, and in this process, where torch is imported already
        patch.setattr(SweepLauncher, "launch", first_job)
        patch.setattr(workers, "begin", done_here)
        yield cache(lambda page: Place(tmp_path_factory.mktemp(page.stem), shared, given))


@pytest.mark.parametrize(("page", "what"), list(steps()))
def test_it_works(
    page: Path,
    what: str | list[str] | set[str],
    at: Callable[[Path], Place],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = at(page)
    monkeypatch.chdir(here.folder)
    if isinstance(what, str):
        # where dataclasses look for it
        monkeypatch.setitem(sys.modules, here.python.__name__, here.python)
        exec(compile(what, str(page), "exec"), vars(here.python))
    elif isinstance(what, set):
        for name in what:
            here.provide(PARTS.get(name, name))
        there = {path.as_posix() for folder in here.knows for path in folder.rglob("*")}
        assert not [name for name in what if not any(path.endswith(f"/{name}") for path in there)]
    elif why := [
        reason for start, reason in LEFT_OUT.items() if shlex.join(what).startswith(start)
    ]:
        pytest.skip(f"{shlex.join(what)}: {why[0]}")
    else:
        here.run(what)


class Place:
    """A folder to type in. `given`: the one of what is taken for granted, there None."""

    def __init__(self, folder: Path, shared: Path, given: Place | None = None):
        self.folder, self.shared, self.given, self.python = (
            folder,
            shared,
            given,
            types.ModuleType(folder.name),
        )
        self.knows = [
            folder,
            *([given.folder, ROOT / "npmp", ROOT / "experiments"] if given else []),
        ]

    def run(self, words: Sequence[str]) -> None:
        """A line, with the variables that are set before its command."""
        line = [*map(os.path.expandvars, words)]
        command = list(dropwhile(lambda word: re.match("[A-Z_]+=", word), line))
        variables = line[: len(line) - len(command)]
        for variable in variables:
            self.provide(variable)
        environment = dict(word.split("=", 1) for word in variables)
        # there is no cluster at a page's address; npmp starts one on this machine
        environment.pop("RAY_ADDRESS", None)
        with patch.dict(os.environ, environment):
            self.command(command)
        if "NPMP_TASKS" in environment:
            sys.modules.pop("npmp_plugin_task_gap", None)

    def command(self, words: list[str]) -> None:
        match words:
            case ["npmp", *rest]:
                self.npmp(rest)
            case ["make", target]:
                [recipe] = re.findall(
                    rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE
                )
                for line in re.findall(r"^\t\$\(BIN\)/npmp (.*)", recipe, re.MULTILINE):
                    self.run(["npmp", *shlex.split(line)])
            case ["python", "-c", code]:
                exec(code.replace("\n        ", "\n"), {})
            case other:
                pytest.fail(f"no test runs {shlex.join(other)}")

    def npmp(self, words: Sequence[str]) -> None:
        name, rest = cli.named(words)
        for argument in rest:
            self.provide(argument)
        if self.given:
            small = [LESS.get(word, word) for word in rest if word.split("=")[0] not in tiny(name)]
            still = ["sim.realtime=false"] if "robot=sim" in rest else []
            rest = [*small, "debug=tiny", *still]
        with asked(name):
            assert cli.main([*name.split(), *rest]) in CODES.get(name, (0,))

    def provide(self, argument: str) -> None:
        """Make what an argument names and is not there yet; make place for what out= names."""
        key, _, value = argument.rpartition("=")
        if key == "out" and (self.folder / value).is_symlink():
            (self.folder / value).unlink()
        for name, origin in GIVEN.items() if key != "out" else ():
            place = self.folder / name
            if place.exists() or not re.search(rf"(?<![\w./]){re.escape(name)}(?![\w.])", argument):
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            if self.given:
                with contextlib.chdir(self.given.folder):
                    self.given.provide(name)
                place.symlink_to(self.given.folder / name)
            elif origin.startswith(("npmp ", "python ")):
                self.run(shlex.split(origin))
            elif place.suffix or Path(origin).is_absolute():
                place.symlink_to(self.shared / origin)
            else:
                place.mkdir()
                for path in self.shared.glob(origin):
                    (place / path.name).symlink_to(path)


def done_here(folder: Path, number: int, log: Path, *_: Any, **__: Any) -> Any:
    """In place of the process of a sweep's job."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        code = job.work(folder, number)
    return SimpleNamespace(poll=lambda: code, stdin=None)


def answer(line: str, path: str = "") -> str:
    """What a server says, once it is ready, whose address is in a line."""
    [address] = re.findall(r"http://[\d.]+:\d+", line)
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urlopen(f"{address}/{path}", timeout=PATIENCE_S) as result:
                return str(result.read().decode())
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


@contextlib.contextmanager
def asked(verb: str) -> Iterator[None]:
    """Meanwhile `npmp play` is asked whether its robot moves, and then ended as by Ctrl-C; other
    verbs end by themselves."""
    if verb != "play":
        yield
        return
    message, heard, over = io.StringIO(), list[str](), threading.Event()

    def ask() -> None:
        while not over.wait(0.05):
            if "\n" in message.getvalue():
                try:
                    heard.append(answer(message.getvalue(), "health"))
                finally:
                    os.kill(os.getpid(), signal.SIGINT)
                return

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    with contextlib.redirect_stdout(message):
        yield
    over.set()
    asking.join()
    assert "real_time_factor" in "".join(heard)
