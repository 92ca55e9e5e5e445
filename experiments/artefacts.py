"""`npmp skill list | show | pack | add`: skill modules and policies, and their cards."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from mocap_data import input_files, read_motions
from mocap_data.errors import InputError, check_available
from mocap_data.files import atomic_path
from npmp.core.settings import as_text, flat, read_run_settings
from npmp.core.tables import wall_clock_hours
from npmp.experiments import imitate
from npmp.experiments.command import Keys, Run, Verb
from npmp.experiments.compose import compose, quoted
from npmp.experiments.terminal import say, show_table
from npmp.skills import modules, policies
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.modules.cards import CardContent, size_of, write_card
from npmp.skills.skill_module import SkillModule

LOOK: dict[str, Any] = {"show_edge": False, "pad_edge": False}
Dtype = Literal["float32", "float16"]
# settings of a run that do not affect the module, or have their own line
NOT_IN_THE_COMMAND = (
    *("out", "seed", "resume", "data", "checkpoint_every", "evaluation"),
    *("threads", "torch_threads", "device", "debug"),
)


@dataclass(frozen=True, kw_only=True)
class ListArtefacts(Keys):
    """List the skill modules and policies in the package."""


@dataclass(frozen=True, kw_only=True)
class ShowArtefact(Keys):
    """Print the card of a module or policy.

    npmp skill show anymal_b_dog
    """

    # a shipped module or policy, or a folder
    target: str


@dataclass(frozen=True, kw_only=True)
class _NewModule(Keys):
    """Keys of commands that write a module."""

    # the new module's folder
    out: Path | None = None
    # true: overwrite an existing module
    replace: bool = False


@dataclass(frozen=True, kw_only=True)
class PackModule(_NewModule):
    """Store a module's weights with another dtype.

    npmp skill pack runs/imitation/module out=small
    """

    # a shipped module or a folder
    target: str
    # the type of stored weights
    dtype: Dtype = "float16"


@dataclass(frozen=True, kw_only=True)
class AddModule(_NewModule):
    """Copy the module of an imitation run, and write its card.

    npmp skill add runs/dog name=dog data=dog.h5 evaluations=[runs/nominal] dtype=float16
    """

    # the folder of an npmp imitate run
    target: str
    # the module's name; null: the run folder's
    name: str | None = None
    # the module's folder; null: modules/NAME
    out: Path | None = None
    # dtype of the stored weights; null: the run's
    dtype: Dtype | None = None
    # evaluation.json files of npmp evaluate, or their folders, for the card's scores
    evaluations: list[Path] | None = None
    # wander.json of npmp skill wander, or its folder, for the card
    wander: Path | None = None
    # the motion dataset, for the card: its size, and the scores of clips up to 2 m/s
    data: Path | None = None
    # a sentence of the card on the data
    about: str = ""
    # the dataset's command, for the card
    data_command: str = ""
    # the machine it was trained on, for the card
    machine: str = ""
    # sentences of the card on the module's limits
    limits: str = ""


def show_all(config: ListArtefacts, run: Run) -> None:
    """Print a line per shipped module and policy."""
    rows = []
    for name in modules.names():
        skill = SkillModule.load(modules.find(name))
        training = skill.contract.training
        clips = f"{len(training.get('clips', []))} clips, {training['env_steps']:,} steps"
        licences = ", ".join(training.get("licences", []))
        rows.append((name, skill.robot, str(skill.latent_dim), clips, licences))
    show_table(("module", "robot", "latent", "trained on", "licences of the data"), rows, **LOOK)
    say("")
    columns = ("policy", "robot", "task", "module", "commands", "extra inputs")
    listed = []
    for name in policies.names():
        own = HighLevelPolicy.load(policies.find(name)).contract
        pairs = zip(own.command, own.command_range)
        ranges = ", ".join(f"{a:g} to {b:g} {unit}" for unit, (a, b) in pairs)
        extra = ["clock"] * (own.clock_s is not None) + ["ground"] * own.sees_ground
        extra += ["depth"] * (own.camera is not None)
        module = str(own.training.get("module", ""))
        listed.append((name, own.robot, own.task, module, ranges, ", ".join(extra)))
    show_table(columns, listed, **LOOK)
    say("module=NAME and policy=NAME select one; npmp skill show NAME prints its card.")


def show_card(config: ShowArtefact, run: Run) -> None:
    """Print the card of a module or policy."""
    folder = Path(config.target)
    if not folder.is_dir():
        check_available("module or policy", [config.target], (*modules.names(), *policies.names()))
    is_policy = config.target in policies.names() or (folder / "policy.json").is_file()
    say((policies if is_policy else modules).card(config.target))


def pack_module(config: PackModule, run: Run) -> None:
    """Store a module's weights with another dtype; the card is updated."""
    source = modules.find(config.target)
    skill = SkillModule.load(source)
    place = _destination(config, run.out)
    skill.save(place, dtype=config.dtype)
    if (source / "CARD.md").is_file() and source.resolve() != place.resolve():
        with atomic_path(place / "CARD.md") as path:
            path.write_text(modules.card(source), encoding="utf-8")
    before, after = ((folder / "module.safetensors").stat().st_size for folder in (source, place))
    was = skill.state_dict()
    now = SkillModule.load(place).state_dict()
    most = max(float((now[key] - was[key]).abs().max()) for key in was)
    say(
        f"{before:,} bytes before, {after:,} after; no weight changed by more than "
        f"{most:.1e}: {place}"
    )


def add_module(config: AddModule, run: Run) -> None:
    """Write the module of a run and its card to a new folder."""
    folder = Path(config.target)
    if not (folder / "module" / "module.json").is_file():
        raise InputError(
            f"no module in '{folder}'; expected a run folder of npmp imitate with "
            "module/module.json"
        )
    skill = SkillModule.load(folder / "module")
    name = config.name or folder.resolve().name
    motions = None if config.data is None else read_motions(config.data, robot=skill.robot)
    dtype = config.dtype or skill.contract.weights_dtype
    content = CardContent(
        name=name,
        contract=asdict(skill.contract) | {"weights_dtype": dtype},
        commands=_commands_of(folder, config.data_command, name),
        about=config.about,
        **({} if motions is None else size_of(motions)),
        hours=wall_clock_hours(folder),
        machine=config.machine,
        evaluations=[_read_json(entry, "evaluation.json") for entry in config.evaluations or []],
        wander=None if config.wander is None else _read_json(config.wander, "wander.json"),
        limits=config.limits,
    )
    place = _destination(config, run.out or Path("modules") / name)
    text = write_card(content)
    skill.save(place, dtype=dtype)
    with atomic_path(place / "CARD.md") as path:
        path.write_text(text, encoding="utf-8")
    say(text, f"{place}: module.json, module.safetensors, CARD.md")


def _destination(config: _NewModule, place: Path | None) -> Path:
    """The folder to write a module to. Raises InputError if it is missing, or contains a module
    without replace=true."""
    if place is None:
        raise InputError("out= is empty; name the new module's folder, e.g. out=modules/walk")
    if (place / "module.json").exists() and not config.replace:
        raise InputError(f"{place} exists and is a module; replace=true overwrites it")
    return place


def _read_json(place: Path, name: str) -> dict[str, Any]:
    """A JSON object from a file, or from the file `name` of a folder. Raises InputError."""
    return input_files.read_json_object(place / name if place.is_dir() else place)


def _commands_of(folder: Path, data_command: str, name: str) -> list[str]:
    """The commands that reproduce the module: the dataset's command, and the run's with its
    overrides."""
    lines = [data_command] if data_command else []
    if not (folder / "config.yaml").is_file():
        return lines
    owner, stored = read_run_settings(folder)
    if owner != "imitate":
        return lines
    chosen = {"robot": str(stored["robot"])} if stored.get("robot") else {}
    for key, value in stored.items():
        if isinstance(value, dict) and "name" in value:
            chosen[key] = str(value["name"])
    usual, defaults = (
        flat(compose("imitate", imitate.main.keys, choices).values)
        for choices in ([], [f"{key}={quoted(text)}" for key, text in chosen.items()])
    )
    words = ["npmp imitate", f"data={Path(str(stored['data'])).name}", f"seed={stored['seed']}"]
    for key, text in chosen.items():
        if usual.get(key, usual.get(f"{key}.name")) != text:
            words.append(f"{key}={text}")
    for key, value in flat(stored).items():
        kept = key.split(".")[0] not in (*NOT_IN_THE_COMMAND, "robot") and not key.endswith(".name")
        if kept and key in defaults and defaults[key] != value:
            words.append(f"{key}={as_text(value)}")
    return [*lines, " ".join([*words, f"out=runs/{name}"])]


_common: Any = {"out": "optional_folder", "devices": ("cpu",)}
_one: Any = {**_common, "positional": ("target",)}
list_all = Verb("skill list", ListArtefacts, show_all, **_common)
show = Verb("skill show", ShowArtefact, show_card, torch=False, **_one)
pack = Verb("skill pack", PackModule, pack_module, **_one)
add = Verb("skill add", AddModule, add_module, **_one)
