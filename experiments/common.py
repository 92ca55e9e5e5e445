"""What every verb does before and after its own work: Hydra, the output place, seeds, device,
errors.

A verb is a function `run(config, run) -> int | None` and one line, `main = verb("NAME", run)`.
Around it this module

- composes conf/NAME.yaml with the command line, and turns Hydra's messages into one clear line;
- checks numbers against the type of their default, keys that must be given, the device and the
  output place before any work starts;
- writes the resolved configuration to OUT/config.yaml, not before the verb has accepted its inputs
  (`run.begin()`), and with resume=RUN_FOLDER starts from that run's own;
- seeds python, numpy and torch, and makes torch deterministic: on the CPU the same seed gives the
  same bytes;
- never changes the working directory and leaves nothing behind but what OUT holds.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import io
import math
import os
import re
import shutil
import sys
import tempfile
import typing
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from mocap_data.outside import read_text, reading
from mocap_data.safe_yaml import MAX_NUMBER, MAX_YAML_BYTES, check_yaml
from npmp import plugins
from npmp.devices import check_device, cpus, seed_everything
from npmp.experiments.failures import (
    OK,
    USER_ERROR,
    USER_ERRORS,
    guarded,
    one_line,
    print_anything,
    told_user,
)
from npmp.experiments.help import CONF, choices, module_of, of_file
from npmp.experiments.inferred import inferred
from npmp.settings import flat, shown

# Keys whose values are paths: quoted for Hydra's grammar, so that spaces, "=", "(" or "~" need no
# care, and "~" expanded.
PATH_KEYS = frozenset(
    {
        "out",
        "source",
        "data",
        "module",
        "policy",
        "resume",
        "file",
        "target",
        "evaluations",
        "wander",
        "task.path",
        "recovery",
        "model",
        "actuator",
        "truth",
        "bundle",
        "log",
        "interface",
        "first",
        "second",
        "rollouts",
        "story",
    }
)
# Keys whose values are free text, quoted as well.
TEXT_KEYS = frozenset({"licence", "about", "data_command", "machine", "limits", "title", "note"})
# Hydra's options that make sense here; --experimental-rerun unpickles a file and is left out on
# purpose.
MULTIRUN = frozenset({"-m", "--multirun"})
OPTIONS_ALONE = MULTIRUN | {"--resolve", "--hydra-help"}
OPTIONS_WITH_VALUE = frozenset(
    {"-c", "--cfg", "-p", "--package", "-i", "--info", "-cd", "--config-dir"}
)
SHOWING = (OPTIONS_ALONE | OPTIONS_WITH_VALUE) - MULTIRUN
QUIET = (
    "hydra.output_subdir=null",
    "hydra.run.dir=.",
    "hydra.job.chdir=false",
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
)

# of whole numbers: floats, and so figures and pages, do not tell larger neighbours apart
LARGEST = 2**53

Out = Literal["folder", "file", "optional_file", "optional_folder"]
FOLDERS = ("folder", "optional_folder")  # kinds of out= that name a folder


def _nothing() -> None:
    """What `Run.begin` does where nobody has anything to note."""


@dataclass(frozen=True)
class Run:
    """What a verb is told besides its configuration."""

    verb: str
    # the run folder (exists), the file to write, or None where the verb needs none
    out: Path | None
    seed: int
    device: str  # "cpu", "cuda" or "cuda:N"; known to exist
    threads: int  # CPU threads for the simulator; results do not depend on them
    resume: Path | None = None  # the run folder to continue
    job: str = ""  # the name of this job in a sweep, "" for a single run
    given: Collection[str] = frozenset()  # the keys that the command line names, and the groups
    # The verb calls it once its inputs are loaded and sound, before it writes anything: writes
    # OUT/config.yaml. Until then whatever an earlier run left in OUT stays as it is.
    begin: Callable[[], None] = field(default=_nothing, compare=False, repr=False)

    @property
    def folder(self) -> Path:
        """`out` of a verb that always has one. Raises InputError where it has none."""
        if self.out is None:
            raise InputError(f"npmp {self.verb} needs out=...")
        return self.out


Verb = Callable[[DictConfig, Run], "int | None"]


@dataclass(frozen=True)
class Job:
    """One job of a command line, as Hydra composed it."""

    config: DictConfig
    name: str = ""  # in a sweep, "" for a single run
    number: int = 0  # in a sweep
    wrong: InputError | None = None  # with its settings
    overrides: tuple[str, ...] = ()  # in a sweep: what it has for its own
    given: frozenset[str] = frozenset()  # the keys that the command line names, and the groups


@dataclass(frozen=True)
class Main:
    """The main of a verb: called with arguments, it returns the exit code."""

    name: str
    function: Verb
    out: Out = "folder"  # what `out=` names
    torch: bool = True  # whether to seed and configure torch (importing it takes seconds)
    # the key that one argument without "=" is for, or those of several
    positional: str | Sequence[str] | None = None
    # a folder inside OUT that marks a run worth keeping; where it exists and is not empty, a new
    # run there is refused unless resume= names it
    protect: str | None = None
    # kinds that the verb can compute on; others are refused before any work
    devices: Sequence[str] = ("cpu", "cuda")
    # raises InputError for settings that the verb refuses
    check: Callable[[DictConfig, Run], object] | None = None

    def __call__(self, arguments: Sequence[str] | None = None, *, job: Job | None = None) -> int:
        """job: done instead of what the arguments ask for."""
        given = list(sys.argv[1:] if arguments is None else arguments)
        with guarded() as command:
            todo: Sequence[Job] | int | None = [job] if job is not None else None
            if job is None and MULTIRUN.isdisjoint(
                given := _with_choices_of_run(self.name, _with_multirun(given))
            ):
                todo = self.jobs(given)
            elif job is None:
                from npmp.experiments.sweeping.launch import launch

                todo = launch(self, given)
            command.code = USER_ERROR if todo is None else todo if isinstance(todo, int) else OK
            # no function of its own: between a command and what it does there are few frames
            for one in todo if isinstance(todo, Sequence) else ():
                made: list[Path] = []  # folders made for the job
                try:
                    config, run = _prepared(self, one, made)
                    code = self.function(config, run) or OK
                    run.begin()  # of a verb that had no inputs to look at
                    # not every action of such a verb writes something
                    if self.out == "optional_folder":
                        _remove_if_bare(made)
                except BrokenPipeError:
                    raise
                except USER_ERRORS as error:
                    _remove_if_bare(made)
                    code = told_user(error)
                command.code = max(command.code, code)
        return command.code

    def jobs(self, given: Sequence[str]) -> list[Job] | None:
        """What a command line asks for; None where Hydra cannot read it, which has been said."""
        return _jobs(self.name, list(given), self.positional)


verb = Main


def main_of(name: str) -> Main:
    """The main of a verb by its name."""
    module = importlib.import_module(module_of(name))
    return next(value for value in vars(module).values() if isinstance(value, Main))


def made_by(config: DictConfig, seed: int | None = None) -> dict[str, Any]:
    """How a page was made: command, seed, versions, machine and settings of this process."""
    from npmp.report import command_line, machine_summary, versions

    return {
        "command": command_line(),
        **({} if seed is None else {"seed": seed}),
        "versions": versions(),
        "machine": machine_summary(),
        "config": OmegaConf.to_container(config, resolve=True),
    }


def console(*, stderr: bool = False) -> Console:
    """Where tables go; wide where neither a terminal nor COLUMNS says how wide it is."""
    stream = sys.stderr if stderr else sys.stdout
    print_anything(stream)
    columns = os.environ.get("COLUMNS", "")
    told = columns.isdecimal() and int(columns) > 0
    return Console(stderr=stderr, width=None if told or stream.isatty() else 140)


def say(*lines: str, wrap: bool = False) -> None:
    """Lines on the terminal as they are, whatever brackets are in them. wrap: between words, at its
    width."""
    for line in lines:
        console().print(line, highlight=False, markup=False, soft_wrap=not wrap)


def table(
    columns: Iterable[str],
    rows: Iterable[Sequence[RenderableType]] = (),
    *,
    right: Collection[str] = (),
    **look: Any,
) -> Table:
    """A table for the terminal. right: columns of numbers; look: as `rich.table.Table` takes it."""
    made = Table(**look)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A bar on a terminal's stderr that goes when it is done, nothing elsewhere. columns: between
    it and the time."""
    shown = (TextColumn("{task.description}"), BarColumn(), *columns, TimeRemainingColumn())
    return Progress(
        *shown, console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    )


# --- the command line
# -------------------------------------------------------------------------------------------------


def hydra_arguments(
    given: Sequence[str],
    *,
    positional: str | Sequence[str] | None = None,
    multirun: bool = False,
    scratch: Path | None = None,
    verb_name: str | None = None,
) -> list[str]:
    """The arguments as Hydra wants them: positional ones named, paths quoted, no litter, sweeps
    named by what they vary.

    With a verb's name, the robot of its module or dataset is added where none is named.

    Raises:
      InputError: for an argument that is neither an option nor key=value.
    """
    options: list[str] = []  # they come first: argparse takes no positional arguments in two places
    arguments: list[str] = []
    places = [positional] if isinstance(positional, str) else list(positional or ())
    value_follows = False
    for argument in given:
        if value_follows:
            options.append(argument)
            value_follows = False
        elif argument.startswith("-") and not argument.startswith("-="):
            option = argument.split("=", 1)[0]
            if option not in OPTIONS_ALONE | OPTIONS_WITH_VALUE:
                raise InputError(
                    f"no option {option!r}; settings are key=value, options are --help, -m (sweep), --cfg job (show)"
                )
            value_follows = option in OPTIONS_WITH_VALUE and "=" not in argument
            options.append(argument)
        elif "=" not in argument and not argument.startswith("~"):
            named = {other.partition("=")[0] for other in arguments}
            free = [place for place in places if place not in named]
            if not free:
                raise InputError(f"{argument!r} is no setting; settings are key=value, e.g. seed=1")
            arguments.append(f"{free[0]}={quoted(argument, multirun=multirun)}")
        else:
            key, equals, value = argument.partition("=")
            if not re.fullmatch(r"[~+]{0,2}\w[\w./@:\-]*", key):
                raise InputError(f"{argument!r} is no setting; settings are key=value, e.g. seed=1")
            if key == "experiment" and value.endswith((".yaml", ".yml")):
                # what is given besides holds, wherever it stands
                arguments[:0] = experiment_file(Path(value))
                continue
            if key == "randomization" and value.endswith((".yaml", ".yml")):
                arguments += randomization_file(Path(os.path.expanduser(value)))
                continue
            if key == "task" and value not in choices("task") and value in plugins.tasks():
                arguments[:0] = own_task(value)
                continue
            if key == "robot" and (own_name := own_robot(value)) is not None:
                key, value = "robot.name", quoted(own_name, multirun=multirun)
            if re.search(rf"\d{{{MAX_NUMBER},}}", value):
                raise InputError(f"{key}: a number of more than {MAX_NUMBER} digits")
            if key in PATH_KEYS:
                value = quoted(value, multirun=multirun)
            elif key in TEXT_KEYS and value not in ("", "null") and value[0] not in "'\"":
                value = "'{}'".format(value.replace("\\", "\\\\").replace("'", "\\'"))
            arguments.append(f"{key}{equals}{value}")
    if verb_name is not None:
        arguments.extend(inferred(verb_name, arguments))
    arguments.extend(QUIET)
    if multirun:
        # A job's folder is named by what differs between jobs, not by what all of them share.
        shared = _keys_not_swept(arguments)
        arguments.append(f"hydra.job.config.override_dirname.exclude_keys=[{','.join(shared)}]")
        arguments.append(f"hydra.sweep.dir={quoted(str(scratch))}")
    return [*options, *arguments]


def experiment_file(path: Path) -> list[str]:
    """What a file in the form of conf/experiment/*.yaml says, as arguments: one that a sweep found
    to be best.

    Raises:
      InputError: when it cannot be read.
    """
    content = load_config(path)
    groups = [] if "defaults" not in content else list(content.defaults)
    chosen = [
        f"{str(key).removeprefix('override /')}={value}"
        for entry in groups
        for key, value in entry.items()
    ]
    found = {
        key: leaf
        for key, leaf in flat(OmegaConf.to_container(content)).items()
        if key != "defaults"
    }
    plain = leaves(content)
    texts = {
        key: quoted(leaf) if isinstance(leaf, str) else plain[key] for key, leaf in found.items()
    }
    return chosen + [f"{key}={text}" for key, text in texts.items()]


def randomization_file(path: Path) -> list[str]:
    """What a file in the form of conf/randomization/*.yaml says, as arguments: a preset that npmp
    sysid wrote.

    Raises:
      InputError: when it cannot be read, or is none.
    """
    content = plain(load_config(path))
    if unknown := content.keys() - {"name", "physics", "pushes", "sensors"}:
        raise InputError(f"{path}: no randomization; unknown: {', '.join(sorted(unknown))}")
    name = quoted(str(content.pop("name", path.stem)))
    parts = [f"++randomization.{key}={_in_hydra(value)}" for key, value in content.items()]
    return ["randomization=none", f"randomization.name={name}", *parts]


def _in_hydra(value: Any) -> str:
    """A value in the grammar of Hydra's arguments."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_in_hydra(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_in_hydra, value)) + "]"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return (
        {None: "null", True: "true", False: "false"}[value]
        if value is None or isinstance(value, bool)
        else str(value)
    )


def own_task(name: str) -> list[str]:
    """The settings of one of the user's own tasks, NAME.yaml beside its file, as arguments.

    Raises:
      InputError: when they cannot be read.
    """
    settings = plain(load_config(plugins.tasks()[name].with_suffix(".yaml"))) | {"name": name}
    return [
        "task=your_own",
        *(f"++task.{key}={_in_hydra(value)}" for key, value in settings.items()),
    ]


def own_robot(value: str) -> str | None:
    """A robot of one's own, for the key robot.name: a folder or robot.yaml that exists, or a name
    that `npmp.robots` finds in ./robots or NPMP_ROBOTS; None for what conf/robot/ has, and for what
    nobody has.

    Raises:
      InputError: for a path where no robot is.
    """
    if not value or value in choices("robot") or value.startswith(("[", "'", '"', "$")):
        return None
    path = Path(os.path.expanduser(value))
    if (path / "robot.yaml").is_file() or (path.suffix in (".yaml", ".yml") and path.is_file()):
        return str(path)
    if os.sep in value:
        raise InputError(f"robot={value}: no folder with a robot.yaml, and no robot.yaml, is there")
    from npmp import robots

    return value if value in robots.user_names() else None


def quoted(path: str, *, multirun: bool = False) -> str:
    """A path as a value of Hydra's grammar: quoted where a character has a meaning there.

    Lists, quoted values, null, ??? and interpolations stay as they are; with `multirun` so does a
    comma (it separates jobs).
    """
    plain = r"[\w/\-.%@?|*:+]*" if not multirun else r"[\w/\-.%@?|*:+,]*"
    special = path.startswith(("[", "'", '"', "${")) or (multirun and "(" in path)
    if not path or special or re.fullmatch(plain, path, re.ASCII):
        return path
    escaped = re.sub(r"(\\*)'", lambda match: match[1] * 2 + r"\'", path)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return f"'{escaped}{escaped[len(escaped) - trailing :]}'"


def _overrides(arguments: Sequence[str]) -> list[Override]:
    return OverridesParser.create().parse_overrides(list(arguments))


def _keys_not_swept(arguments: Sequence[str]) -> list[str]:
    try:
        parsed = _overrides([argument for argument in arguments if "=" in argument])
    except OverrideParseException:
        return []  # composing fails on it too, and says so
    return sorted({entry.key_or_group for entry in parsed if not entry.is_sweep_override()} - {""})


# --- errors
# -----------------------------------------------------------------------------------------------------------


def known_keys(verb_name: str, given: Sequence[str] = ()) -> list[str]:
    """Every key of a verb's configuration with the choices that are given and exist, dotted, and
    its groups."""
    groups = [group for group in of_file(CONF / f"{verb_name}.yaml").defaults if choices(group)]
    pairs = [entry.partition("=") for entry in given]
    chosen = tuple(
        f"{key}={value}" for key, _, value in pairs if key in groups and value in choices(key)
    )
    container = OmegaConf.to_container(_defaults(verb_name, chosen), resolve=False)
    return sorted({*_flatten(container), *groups})


def _flatten(value: Any, prefix: str = "") -> list[str]:
    if not isinstance(value, dict):
        return []
    keys = []
    for name, inner in value.items():
        keys.append(f"{prefix}{name}")
        keys.extend(_flatten(inner, f"{prefix}{name}."))
    return keys


def explain(error: BaseException, verb_name: str, given: Sequence[str] = ()) -> str:
    """One line for what Hydra or OmegaConf raised while composing the configuration of these
    arguments."""
    message = str(error)
    if found := re.search(
        r"Could not override '([^']*)'|Could not append to config\. An item is already at '([^']*)'",
        message,
    ):
        key = (found[1] or found[2]).split("@")[0]
        return unknown_key(verb_name, key, given)
    if found := re.search(r"Could not find '([^']*)/([^'/]*)'", message):
        names = choices(found[1])
        if found[1] == "robot":
            from npmp import robots

            names += robots.user_names()
        elif found[1] == "task":
            names = [name for name in names if name != "your_own"] + list(plugins.tasks())
        close = difflib.get_close_matches(found[2], names, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"no {found[1]} {found[2]!r}; {hint}there are: {', '.join(names) or 'none'}"
    if found := re.search(r"Ambiguous value for argument '([^'=]*)=([^']*)'", message):
        key, value = found[1], found[2]
        return f"{key}={value} holds a comma: a list is {key}=[{value}], one run per value is -m {key}={value}"
    if found := re.search(r"Error parsing override '([^\n]*)'\n([^\n]*)", message):
        return f"cannot read {found[1]!r} ({found[2].strip()}); special characters need quotes: \"key='value'\""
    unreadable = r"LexerNoViableAltException: (.*)|(.*(?:no viable alternative|(?:mismatched|extraneous) input).*)"
    if found := re.search(unreadable, message):
        where = (found[1] or found[2]).split(" See ")[0].strip()
        return f"cannot read the command line ({where}); special characters need quotes: \"key='value'\""
    if found := re.search(r"Key '([^']*)' is not in struct", message):
        return unknown_key(verb_name, found[1], given)
    return one_line(error)


def unknown_key(verb_name: str, key: str, given: Sequence[str]) -> str:
    """The line for a key that a verb has not with these arguments, with the nearest that it has."""
    keys = known_keys(verb_name, given)
    parent, _, leaf = key.rpartition(".")
    siblings = {
        entry.rpartition(".")[2]: entry for entry in keys if entry.rpartition(".")[0] == parent
    }
    close = [siblings[name] for name in difflib.get_close_matches(leaf, siblings, n=1, cutoff=0.6)]
    if not close:  # the right name under the wrong parent
        close = [entry for entry in keys if entry.rpartition(".")[2] == leaf][:1]
    if siblings and parent:
        hint = f"did you mean {close[0]!r}? " if close else ""
        return (
            f"{verb_name} has no key {key!r}; {hint}under {parent} there are: {', '.join(siblings)}"
        )
    hint = f"did you mean {close[0]!r}? " if close and close[0] != key else ""
    top = ", ".join(entry for entry in keys if "." not in entry)
    return f"{verb_name} has no key {key!r}; {hint}there are: {top} (npmp {verb_name} --help says more)"


# --- one job
# ----------------------------------------------------------------------------------------------------------


def _jobs(name: str, given: list[str], positional: str | Sequence[str] | None) -> list[Job] | None:
    """What a command line asks for, with every value looked at; None where Hydra cannot read it,
    which has been said.

    Hydra only composes: the work itself is not done below its functions.

    Raises:
      InputError: for an argument that is neither an option nor key=value.
    """
    jobs: list[Job] = []

    def job(config: DictConfig) -> None:
        jobs.append(_composed_job(name, config))

    multirun = not MULTIRUN.isdisjoint(given)
    shows = any(entry.partition("=")[0] in SHOWING for entry in given)
    scratch = Path(tempfile.mkdtemp(prefix="npmp-sweep-")) if multirun else None
    before, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    try:
        command = hydra_arguments(
            given, positional=positional, multirun=multirun, scratch=scratch, verb_name=name
        )
        sys.argv = [f"npmp {name}", *command]
        os.environ["HYDRA_FULL_ERROR"] = "1"  # let exceptions through: they are explained here
        if shows:
            hydra.main(config_path=str(CONF), config_name=name, version_base="1.3")(job)()
        else:  # hydra.main would compose once more, to ask whether it is a sweep
            mode, settings = (
                ("MULTIRUN" if multirun else "RUN"),
                [entry for entry in command if entry not in MULTIRUN],
            )
            with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
                hydras = GlobalHydra.instance().hydra
                assert hydras is not None  # it is initialized; for the type checker
                run = hydras.multirun if multirun else hydras.run
                run(
                    config_name=name, task_function=job, overrides=[*settings, f"hydra.mode={mode}"]
                )
    except InputError:
        raise
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        told_user(error, explain(error, name, given))
        return None
    finally:
        sys.argv = before
        if full_error is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
    return jobs


def _with_multirun(given: Sequence[str]) -> list[str]:
    """With -m where a sweep of conf/sweep is named, sweep=NAME, and the jobs are to be run rather
    than shown.

    Raises:
      InputError: for one beside resume=, which has its own settings.
    """
    settings = {key: value for key, _, value in (argument.partition("=") for argument in given)}
    if settings.get("sweep", "").strip("'\"") not in choices("sweep"):
        return list(given)
    if settings.get("resume", "null") != "null":
        raise InputError(
            f"sweep={settings['sweep']} does not change resume={settings['resume']}; give the keys to change"
        )
    return (
        list(given)
        if {"-m", "--multirun", "-c", "--cfg", "--info", "-i"} & settings.keys()
        else ["-m", *given]
    )


def _with_choices_of_run(verb_name: str, given: Sequence[str]) -> list[str]:
    """With resume=FOLDER also the choices of that run (algo=clone), so that their keys are those
    that may be given."""
    settings = {key: value for key, _, value in (argument.partition("=") for argument in given)}
    folder = Path(os.path.expanduser(settings.get("resume", "").strip("'\"")))
    if not settings.get("resume") or not (folder / "config.yaml").is_file():
        return list(given)
    _, stored = stored_config(folder)
    chosen = []
    for group in of_file(CONF / f"{verb_name}.yaml").defaults:
        name = _choice(stored, group)
        known = [*choices(group), *(plugins.tasks() if group == "task" else ())]
        if name in known and group not in settings:
            chosen.append(f"{group}={name}")
    return [*chosen, *given]


def _choice(stored: DictConfig, group: str) -> str | None:
    """Which of a group's files a run's configuration began with, where it says so."""
    return stored[group].get("name") if isinstance(stored.get(group), DictConfig) else None


def _is_choice(stored: DictConfig, entry: Override) -> bool:
    """Whether an argument names what a run's configuration began with."""
    name = _choice(stored, entry.key_or_group)
    return name is not None and entry.value() == name


def _composed_job(name: str, config: DictConfig) -> Job:
    """A job inside Hydra's main, where its own command line is known."""
    hydra_config = HydraConfig.get()
    # as written
    given = typing.cast(
        list[str], OmegaConf.to_container(hydra_config.overrides.task, resolve=False)
    )
    swept: dict[str, Any] = {}
    if hydra_config.mode == RunMode.MULTIRUN:
        shared = set(hydra_config.job.config.override_dirname.exclude_keys)
        own = tuple(entry for entry in given if entry.partition("=")[0].lstrip("+~") not in shared)
        swept = {
            "name": _job_name(hydra_config),
            "number": int(hydra_config.job.num),
            "overrides": own,
        }
    wrong: InputError | None = None
    overrides = _overrides(given)
    try:
        with open_dict(config):
            # of conf/sweep: what `npmp.experiments.sweeping.launch` makes jobs of
            config.pop("variants", None)
        expand_paths(config)
        config = _with_resumed(name, config, overrides)
        check_values(name, config, overrides)
        if missing := sorted(OmegaConf.missing_keys(config)):
            raise InputError(f"npmp {name} needs {missing[0]}=...{_comment_of(name, missing[0])}")
    except (InputError, OSError) as error:
        wrong = error if isinstance(error, InputError) else InputError(one_line(error))
    keys = frozenset(
        entry.key_or_group
        for entry in overrides
        if not (config.get("resume") and _is_choice(config, entry))
    )
    return Job(config, wrong=wrong, given=keys, **swept)


def _prepared(main: Main, job: Job, made: list[Path]) -> tuple[DictConfig, Run]:
    """What the verb's function is given, its output place made (its new folders are added to
    `made`) and the generators seeded.

    Raises:
      InputError: for what the job cannot be run with.
    """
    name, config = main.name, job.config
    if job.name:
        print(f"[{job.number}] {job.name}", file=sys.stderr, flush=True)
    if job.wrong is not None:
        raise job.wrong
    for key in ("threads", "torch_threads"):
        if config.get(key) is not None:
            at_least(config, **{key: 1})
    device = str(config.device)
    if device.startswith("cuda") and "cuda" not in main.devices:
        raise InputError(
            f"device={device}: npmp {name} computes on the CPU only so far; use device=cpu"
        )
    check_device(device)
    place, new = _prepare_out(name, config, main.out, job.name, protect=main.protect)
    made += new
    begun: list[bool] = []

    def begin() -> None:
        if not begun and main.out == "folder" and place is not None:
            write_config(config, place, verb_name=name)
        begun.append(True)

    run = Run(
        verb=name,
        out=place,
        seed=int(config.seed),
        device=device,
        threads=int(config.get("threads") or cpus()),
        resume=Path(str(config.resume)) if config.get("resume") else None,
        job=job.name,
        given=job.given,
        begin=begin,
    )
    torch_threads = int(config.get("torch_threads") or cpus())
    seed_everything(run.seed, device=run.device, threads=torch_threads, use_torch=main.torch)
    return config, run


def _comment_of(verb_name: str, key: str) -> str:
    """What a key is for, from its comment: " (the motion dataset ...)"."""
    comments = {entry.name: entry.comment for entry in of_file(CONF / f"{verb_name}.yaml").keys}
    return f" ({comments[key]})" if comments.get(key) else ""


def _job_name(hydra_config: Any) -> str:
    """A sweep job's folder name: its own overrides, "seed=1,steps=100"."""
    name = str(hydra_config.job.override_dirname).replace("/", "_").replace("'", "")
    return name or str(hydra_config.job.num)


def expand_paths(config: DictConfig) -> None:
    """Replace a leading "~" in every path of the configuration, in place."""

    def expanded(value: Any) -> Any:
        if isinstance(value, ListConfig):
            return [expanded(entry) for entry in value]
        return os.path.expanduser(value) if isinstance(value, str) else value

    for key in PATH_KEYS & {str(key) for key in config}:
        if not OmegaConf.is_missing(config, key) and config[key] is not None:
            config[key] = expanded(config[key])


def _with_resumed(verb_name: str, config: DictConfig, overrides: Sequence[Override]) -> DictConfig:
    """With resume=RUN_FOLDER: that run's configuration, changed only by what this command line
    gives."""
    if not config.get("resume"):
        return config
    folder = Path(str(config.resume))
    if not (folder / "config.yaml").is_file():
        raise InputError(f"resume={folder}: no run folder (it has no config.yaml)")
    owner, stored = stored_config(folder)
    if owner not in (verb_name, None):
        raise InputError(
            f"resume={folder} is a run of npmp {owner}; npmp {verb_name} cannot continue it"
        )
    stored = _completed(stored, config, folder)
    with open_dict(stored):
        for entry in overrides:
            key = entry.key_or_group
            if key == "debug" or key.startswith("hydra") or _is_choice(stored, entry):
                continue  # what the run began with has values of its own
            if key == "experiment" and entry.value() is not None:
                raise InputError(
                    f"experiment={entry.value()} does not change resume={folder}, which has its own settings; "
                    "give the keys to change"
                )
            if key == "seed" and entry.value() != stored.seed:
                raise InputError(
                    f"seed={entry.value()} does not change resume={folder}, which goes on as seed {stored.seed} began"
                )
            OmegaConf.update(
                stored, key, OmegaConf.select(config, key), merge=False, force_add=True
            )
        stored.resume = str(folder)
        if not any(entry.key_or_group == "out" for entry in overrides):
            stored.out = str(folder)
    return stored


def _completed(stored: DictConfig, config: DictConfig, folder: Path) -> DictConfig:
    """A run's settings with the present values of keys that it lacks, as one from before them does.

    Raises:
      InputError: for a value of another kind.
    """
    own, present = (OmegaConf.to_container(each, resolve=True) for each in (stored, config))
    # of DictConfigs; for the type checker
    assert isinstance(own, dict) and isinstance(present, dict)
    for key, value in present.items():
        if key not in own:
            own[key] = value
        elif isinstance(value, dict) != isinstance(own[key], dict):
            raise InputError(f"{folder / 'config.yaml'}: {key!s} is of another kind than npmp's")
        elif isinstance(value, dict):
            own[key] = own[key] if (CONF / str(key)).is_dir() else value | own[key]
        elif value is not None and value != "???":
            try:
                own[key] = checked(str(key), own[key], value)
            except InputError as error:
                raise InputError(f"{folder / 'config.yaml'}: {error}") from error
    completed = OmegaConf.create(own)
    OmegaConf.set_struct(completed, True)
    return completed


def stored_config(folder: Path) -> tuple[str | None, DictConfig]:
    """FOLDER/config.yaml as `write_config` left it: the verb (None where it does not say) and its
    configuration.

    Raises:
      InputError: when it cannot be read.
    """
    config = load_config(folder / "config.yaml")
    with open_dict(config):
        owner = config.pop("verb", None)
    return (None if owner is None else str(owner)), config


def load_config(path: Path) -> DictConfig:
    """A run's config.yaml, as `write_config` writes it: without interpolations. Raises InputError
    for any other."""
    text = read_text(path, at_most=MAX_YAML_BYTES)
    if "${" in text:
        raise InputError(
            f"{path}: not a configuration that npmp wrote (it refers to other values by ${{...}})"
        )
    check_yaml(text, str(path))
    with reading(path):
        config = OmegaConf.load(io.StringIO(text))
    if not isinstance(config, DictConfig):
        raise InputError(f"{path}: not a configuration (keys and values expected)")
    OmegaConf.set_struct(config, True)
    return config


def check_values(verb_name: str, config: DictConfig, overrides: Sequence[Override]) -> None:
    """Hold every number given on the command line against the type of its default; 1e6 may stand
    for 1000000.

    Raises:
      InputError: e.g. "steps=abc: a whole number is expected (default 3000000)". Changes `config`
        only from a float to the equal int where the default is one.
    """
    plain = [entry for entry in overrides if not entry.is_delete() and not entry.is_add()]
    values = [entry for entry in plain if not (CONF / entry.key_or_group).is_dir()]
    if not values:
        return
    chosen = [
        f"{entry.get_key_element()}={entry.value()}"
        for entry in plain
        if (CONF / entry.key_or_group).is_dir()
    ]
    defaults = _defaults(verb_name, tuple(chosen))
    for entry in values:
        key = entry.key_or_group
        value = OmegaConf.select(config, key)
        if OmegaConf.is_missing(defaults, key):
            continue
        default = OmegaConf.select(defaults, key, default=None)
        OmegaConf.update(config, key, checked(key, value, default), force_add=True)


def checked(key: str, value: Any, default: Any) -> Any:
    """`value` where it has the kind of `default`, converted where that loses nothing. Raises
    InputError."""

    def wrong(expected: str) -> InputError:
        found = value if isinstance(value, str) else shown(value)
        return InputError(f"{key}={found}: {expected} is expected (default {default})")

    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise wrong("true or false")
    elif isinstance(default, int):
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise wrong("a whole number")
        if abs(value) > LARGEST:
            raise InputError(
                f"{key}: a whole number of at most {LARGEST:,} is expected (default {default})"
            )
    elif isinstance(default, float):
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not abs(value) <= sys.float_info.max
        ):
            raise wrong("a number")
    elif isinstance(default, ListConfig) and not isinstance(value, ListConfig):
        raise wrong("a list [a,b]")
    elif isinstance(default, DictConfig) and not isinstance(value, DictConfig):
        raise wrong("a mapping {key: value}")
    return value


def at_least(config: DictConfig, **lowest: int) -> None:
    """Check whole numbers of a verb's configuration; a key is written with "__" for ".", e.g.
    `evaluation__every=1`.

    Raises:
      InputError: for anything but a whole number that is large enough. Keys that the configuration
        has not are left alone.
    """
    for name, low in lowest.items():
        key = name.replace("__", ".")
        value = OmegaConf.select(config, key, default=low)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= LARGEST:
            most = f", at most {LARGEST:,}," if isinstance(value, int) and value > LARGEST else ""
            raise InputError(
                f"{key}={shown(value)}: a whole number of at least {low}{most} is expected"
            )


def is_number(value: Any) -> bool:
    """Whether a value is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def above_zero(config: DictConfig, *keys: str) -> None:
    """Check numbers of a verb's configuration. Raises InputError for anything but a number above
    zero."""
    for key in keys:
        value = OmegaConf.select(config, key)
        if not is_number(value) or value <= 0:
            raise InputError(f"{key}={value}: a number above 0 is expected")


def refuse_idle(config: DictConfig, given: Collection[str], why: str, *keys: str) -> None:
    """Refuse keys that are given, themselves or as a part (task.path of task), though they do
    nothing. Raises InputError.

    given: as `Run.given`. why: what follows the key and its value.
    """
    for key in sorted(given):
        if (key in keys or key.partition(".")[0] in keys) and (
            value := OmegaConf.select(config, key)
        ) is not None:
            shows = value.get("name", "") if isinstance(value, DictConfig) else shown(value)
            raise InputError(f"{key}={shows} {why}")


def names_of(config: DictConfig, key: str) -> list[str] | None:
    """A key that takes one name or a list of them, None where it is null."""
    value = config[key]
    return (
        None
        if value is None
        else [str(name) for name in (value if isinstance(value, ListConfig) else [value])]
    )


def one_of(config: DictConfig, key: str, *choices: str) -> None:
    """Check a key that has a few possible values. Raises InputError, naming them."""
    if config[key] not in choices:
        raise InputError(f"no {key} '{config[key]}'; there are: {', '.join(choices)}")


# --- the output place
# -------------------------------------------------------------------------------------------------


def _prepare_out(
    verb_name: str, config: DictConfig, kind: Out, job: str, *, protect: str | None
) -> tuple[Path | None, list[Path]]:
    """The place that out= names, made and known to be writable, and the folders made for it
    (outermost first)."""
    if config.out is None:
        if not kind.startswith("optional"):
            raise InputError("out= is empty; name the place for the result, e.g. out=runs/first")
        return None, []
    place, is_folder = Path(str(config.out)), kind in FOLDERS
    if job:  # each job of a sweep has a folder of its own
        place = place / job if is_folder else place.parent / job / place.name
    if not is_folder and place.is_dir():
        raise InputError(f"out={place} is a folder; a file name is expected")
    if is_folder and place.exists() and not place.is_dir():
        raise InputError(f"out={place} is a file; a folder is expected")
    continued = config.get("resume") and Path(str(config.resume)).resolve() == place.resolve()
    if is_folder and not continued:
        _check_owner(verb_name, place)
        kept = place / protect if protect else None
        if kept is not None and kept.is_dir() and any(kept.iterdir()):
            raise InputError(
                f"out={place} holds a run already; continue it with resume={place} or choose another out="
            )
    folder = place if is_folder else place.parent
    made = make_writable(folder)
    with open_dict(config):
        config.out = str(place)
    return place, made


def _check_owner(verb_name: str, place: Path) -> None:
    """Refuse a folder whose config.yaml is another verb's, or none of ours. Raises InputError."""
    if not (place / "config.yaml").is_file():
        return
    owner, stored = stored_config(place)
    if owner not in (verb_name, None):
        raise InputError(f"out={place} holds a run of npmp {owner}; choose another out=")
    if owner is None and not {"out", "seed", "device"} <= set(stored):
        raise InputError(
            f"out={place} holds a config.yaml that npmp did not write; choose another out="
        )


def make_writable(folder: Path) -> list[Path]:
    """Make a folder and its parents and try to write there; returns the folders made. Raises
    InputError."""
    absent = [path for path in [folder, *folder.parents] if not path.exists()][::-1]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        _remove_if_bare(absent)
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from error
    return absent


def _remove_if_bare(made: Sequence[Path]) -> None:
    """Take back folders of a run that failed before it had a result: those that hold nothing but
    config.yaml."""
    for folder in reversed(made):
        if not folder.is_dir():
            continue
        if [entry.name for entry in folder.iterdir()] == ["config.yaml"]:
            (folder / "config.yaml").unlink()
        if not any(folder.iterdir()):
            folder.rmdir()


def write_config(config: DictConfig, folder: Path, *, verb_name: str) -> None:
    """Write FOLDER/config.yaml: whose it is and the resolved configuration, in one step.
    `stored_config` reads it."""
    text = OmegaConf.to_yaml(OmegaConf.merge({"verb": verb_name}, config), resolve=True)
    with atomic_path(folder / "config.yaml") as path:
        path.write_text(text, encoding="utf-8")


def plain(config: DictConfig) -> dict[str, Any]:
    """A configuration as JSON has it."""
    container = OmegaConf.to_container(config, resolve=True)
    assert isinstance(container, dict)  # of a DictConfig; for the type checker
    return {str(key): value for key, value in container.items()}


def leaves(config: DictConfig) -> dict[str, str]:
    """The leaves of a configuration by their dotted keys, as the command line writes them."""
    plain = {None: "null", True: "true", False: "false"}
    found = flat(OmegaConf.to_container(config))
    texts = {
        key: plain[leaf] if leaf is None or isinstance(leaf, bool) else str(leaf)
        for key, leaf in found.items()
    }
    return {key: text.replace(" ", "") for key, text in texts.items()}


def compose(verb_name: str, overrides: Sequence[str] = ()) -> DictConfig:
    """A verb's resolved configuration, for one verb that runs another's stage (the demo) and for
    tests.

    Raises:
      InputError: for an unknown key or choice, or a value of the wrong kind.
    """
    try:
        config = _composed(verb_name, overrides)
        check_values(verb_name, config, _overrides(overrides))
        return config
    except (ConfigCompositionException, OmegaConfBaseException, OverrideParseException) as error:
        raise InputError(explain(error, verb_name, overrides)) from error


@functools.lru_cache(maxsize=64)
def _defaults(verb_name: str, chosen: tuple[str, ...] = ()) -> DictConfig:
    """A verb's configuration with these choices of groups, for reading: composing takes Hydra a
    tenth of a second, and every job of a sweep asks."""
    return _composed(verb_name, chosen)


def _composed(verb_name: str, overrides: Sequence[str] = ()) -> DictConfig:
    """A verb's configuration, inside a running Hydra main or outside of one."""
    if GlobalHydra.instance().is_initialized():
        return hydra.compose(verb_name, overrides=list(overrides))
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose(verb_name, overrides=list(overrides))
