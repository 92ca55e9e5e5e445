"""Before and after a command's own work: settings, output place, seeds, device, errors.

A command is a dataclass of its keys, a function `run(config, run) -> int | None` and one line,
`main = Verb("NAME", Keys, run)`. Around the function a Verb

- is a Hydra application (`application`), whose settings become typed (`compose`), and checks the
device and the output before any work starts;
- writes the settings to OUT/config.yaml and OUT/.hydra, not before the function has accepted its
  inputs (`run.begin()`), and with resume=RUN_FOLDER starts from that run's own;
- locks OUT against other processes;
- seeds python, numpy and torch, and makes torch deterministic: on the CPU the same seed gives the
  same bytes;
- never changes the working directory and writes only to OUT.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mocap_data.errors import InputError
from mocap_data.files import locked, make_writable, remove_bare
from npmp.core.devices import check_device, cpus, seed_everything
from npmp.core.settings import flat, format_value, read_run_settings
from npmp.experiments.compose import Job, Values
from npmp.experiments.run_folder import CONFIG, HYDRA, write_config, write_hydra
from npmp.experiments.terminal import OK, USER_ERRORS, guarded

Out = Literal["folder", "file", "optional_file", "optional_folder"]
MOST_THREADS = 4096
# in out=: date and time
NOW = "${now:%Y-%m-%d_%H-%M-%S}"


@dataclass(frozen=True)
class Run:
    """Arguments of a command's function in addition to its settings."""

    verb: str
    # the run folder (exists), the file to write, or None if the command needs none
    out: Path | None
    seed: int
    # "cpu", "cuda" or "cuda:N"; checked
    device: str
    # CPU threads for the simulator; results do not depend on them
    threads: int
    # the physics engine; "": the device's default
    engine: str = ""
    # the run folder to continue
    resume: Path | None = None
    # the keys and groups that the command line sets
    overridden: Collection[str] = frozenset()
    # the choice of each group
    chosen: Mapping[str, str | None] = field(default_factory=dict)
    # the settings as plain values
    values: Mapping[str, Any] = field(default_factory=dict)
    # Writes OUT/config.yaml. The command calls it once its inputs are valid; until then OUT is
    # unchanged.
    begin: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)

    @property
    def place(self) -> dict[str, Any]:
        """Device, threads and engine, as `TaskEnv` takes them."""
        return {"device": self.device, "num_threads": self.threads, "engine": self.engine}

    @property
    def folder(self) -> Path:
        """`out` of a command that requires one. Raises InputError if it is missing."""
        if self.out is None:
            raise InputError(f"npmp {self.verb} needs out=...")
        return self.out


def run_of(job: Job, out: Path | None, threads: int, values: Values, **more: Any) -> Run:
    """The run of a job. values: its settings, complete; more: as `Run` takes it."""
    where = out, job.config.seed, job.config.device, threads
    engine = getattr(job.config, "engine", None) or ""
    return Run(
        job.verb,
        *where,
        engine,
        overridden=job.overridden,
        chosen=job.chosen,
        values=values,
        **more,
    )


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Keys of every command."""

    # the output file or folder
    out: Path | None = None
    # random seed; the same seed gives the same numbers on the CPU
    seed: int = 0
    # device of everything but the physics: cpu, cuda or cuda:N
    device: str = "cpu"
    # tiny: a run of seconds, as a test
    debug: str = "none"

    def __post_init__(self) -> None:
        for name in ("threads", "torch_threads"):
            if (count := getattr(self, name, None)) is not None and not 1 <= count <= MOST_THREADS:
                raise InputError(f"{name} must be from 1 to {MOST_THREADS}, got {count}")


@dataclass(frozen=True, kw_only=True)
class Computing(Keys):
    """Keys of commands that simulate or learn."""

    # CPU threads of the simulator; results do not depend on them; null: all available ones
    threads: int | None = None
    # CPU threads of torch; several are only faster for larger networks than the default; null: all
    torch_threads: int | None = 1


@dataclass(frozen=True)
class Verb:
    """The main of a command: called with arguments, it returns the exit code."""

    # with its action: "evaluate suite"
    name: str
    keys: type[Keys]
    function: Callable[[Any, Run], int | None]
    # kind of `out=`
    out: Out = "folder"
    # whether to seed and configure torch (importing it takes seconds)
    torch: bool = True
    # positional keys in order; "runs*" takes all following values
    positional: Sequence[str] = ()
    # a subfolder of OUT; if it is not empty, a new run in OUT needs resume=
    protect: str | None = None
    # kinds of devices that the command supports
    devices: Sequence[str] = ("cpu", "cuda")
    # raises InputError for settings that the command refuses
    check: Callable[[Any, Run], object] | None = None

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """Run the command with arguments. Returns the exit code."""
        from npmp.experiments import application

        argv = list(sys.argv[1:] if arguments is None else arguments)
        with guarded() as outcome:
            outcome.code = application.main(self, argv)
        return outcome.code

    def run(self, job: Job) -> int:
        """Run one job in this process. Returns the exit code. Raises InputError."""
        new_folders: list[Path] = []  # created for this job
        try:
            with contextlib.ExitStack() as held:
                config, run = _prepared(self, job, new_folders, held)
                code = self.function(config, run) or OK
                # for commands that do not call it
                if run.resume is None:
                    run.begin()
        except BrokenPipeError:
            raise
        except USER_ERRORS:
            # a failed run without a result
            remove_bare(new_folders, CONFIG, HYDRA)
            raise
        # some commands have no output
        if self.out == "optional_folder":
            remove_bare(new_folders, CONFIG, HYDRA)
        return code

    @property
    def in_folder(self) -> bool:
        """Whether `out=` names a folder."""
        return self.out.endswith("folder")

    def refuse(self, job: Job, values: Values) -> None:
        """Raises InputError for invalid settings. values: the complete settings."""
        if self.check is not None:
            self.check(job.config, run_of(job, job.config.out, cpus(), values))


def refuse_idle(run: Run, why: str, *keys: str) -> None:
    """Raise InputError for overrides of keys (or of their parts, as task.path of task) that have no
    effect.

    why: the end of the message, after the key and its value.

    Raises:
      InputError: for the first of these keys.
    """
    values = flat(dict(run.values)) | dict(run.chosen)
    for key in sorted(run.overridden):
        named = key in keys or key.partition(".")[0] in keys
        if named and (value := values.get(key)) is not None:
            raise InputError(
                f"{key}={value if isinstance(value, str) else format_value(value)} {why}"
            )


def provenance_of(run: Run, *, seed: bool = True) -> dict[str, Any]:
    """The provenance of a page: command, seed, versions, machine and settings of this process."""
    from npmp.view.report import machine_summary, versions

    return {
        "command": " ".join(a for a in sys.argv if not a.startswith("hydra")),
        **({"seed": run.seed} if seed else {}),
        "versions": versions(),
        "machine": machine_summary(),
        "config": dict(run.values),
    }


# --- one job


def _prepared(
    command: Verb, job: Job, new_folders: list[Path], held: contextlib.ExitStack
) -> tuple[Any, Run]:
    """The arguments of the command's function; creates and locks the output place and seeds the
    generators. Created folders are added to `new_folders`.

    Raises:
      InputError: for settings that the job cannot run with.
    """
    config = job.config
    if config.device.startswith("cuda") and "cuda" not in command.devices:
        raise InputError(
            f"device={config.device}: npmp {command.name} computes on the CPU only; use device=cpu"
        )
    check_device(config.device)
    resume = getattr(config, "resume", None)
    place, new = _prepare_out(command, config.out, resume)
    new_folders += new
    folder = place if command.out == "folder" else None
    if folder is not None:
        held.enter_context(locked(folder, f"another npmp process uses {folder}"))
    values = {**job.values, "out": None if place is None else str(place)}
    begun: list[bool] = []

    def begin() -> None:
        if folder is not None and not begun:
            write_config(folder, command.name, values)
            write_hydra(folder, values)
        begun.append(True)

    threads, torch_threads = (
        getattr(config, key, None) or cpus() for key in ("threads", "torch_threads")
    )
    run = run_of(job, place, threads, values, resume=resume, begin=begin)
    seed_everything(run.seed, device=run.device, threads=torch_threads, use_torch=command.torch)
    return config, run


def _prepare_out(
    command: Verb, out: Path | None, resume: Path | None
) -> tuple[Path | None, list[Path]]:
    """The place of out=, created and writable, and its new folders (outermost first)."""
    if out is None:
        if not command.out.startswith("optional"):
            raise InputError("out= is empty; expected an output place, e.g. out=runs/first")
        return None, []
    place = out
    is_folder = command.in_folder
    if not is_folder and place.is_dir():
        raise InputError(f"out={place} is a folder; expected a file name")
    if is_folder and place.exists() and not place.is_dir():
        raise InputError(f"out={place} is a file; expected a folder")
    continued = resume is not None and resume.resolve() == place.resolve()
    if is_folder and not continued:
        if (place / CONFIG).is_file():
            owner, stored = read_run_settings(place)
            if owner not in (command.name, None):
                raise InputError(f"out={place} is a run of npmp {owner}; choose another out=")
            if owner is None and not {"out", "seed", "device"} <= set(stored):
                raise InputError(
                    f"out={place} has a config.yaml of another program; choose another out="
                )
        kept = place / command.protect if command.protect else None
        if kept is not None and kept.is_dir() and any(kept.iterdir()):
            raise InputError(
                f"out={place} is a run folder; continue it with resume={place} or choose "
                "another out="
            )
    return place, make_writable(place if is_folder else place.parent)
