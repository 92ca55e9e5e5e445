"""`npmp modules list | show NAME | pack MODULE | blend MODULE | add RUN`: shipped skill modules,
their cards, and the making of such a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from mocap_data import MotionSet, outside, read_motions
from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp import modules
from npmp.evaluation.module import top_speed
from npmp.experiments.common import (
    Run,
    compose,
    console,
    leaves,
    one_of,
    stored_config,
    table,
    verb,
)
from npmp.experiments.help import choices
from npmp.modules.cards import CardContent, write_card
from npmp.registry import Registry
from npmp.reuse import module_sha256
from npmp.skill import STORED_AS, SkillModule
from npmp.training.tables import hours_of

ACTIONS = ("list", "show", "pack", "blend", "add")
# settings of a run that say nothing of what came out, or are said otherwise
NOT_IN_THE_COMMAND = (
    "out", "seed", "resume", "threads", "torch_threads", "device", "debug", "data", "checkpoint_every", "evaluation",
)  # fmt: skip


def run(config: DictConfig, run: Run) -> int:
    """Do what `action` says."""
    one_of(config, "action", *ACTIONS)
    if config.action == "list":
        show_modules()
        return 0
    if config.action == "show":
        return show_card(config, run, modules.REGISTRY)
    if config.target is None:
        what = "a run: its folder" if config.action == "add" else wanted(modules.REGISTRY)
        raise InputError(f"npmp modules {config.action} needs {what}")
    if config.dtype is not None:
        one_of(config, "dtype", *STORED_AS)
    {"pack": pack, "blend": blend, "add": add}[str(config.action)](config, run)
    return 0


def wanted(registry: Registry) -> str:
    """What an action needs to be told, for messages."""
    return f"a {registry.kind.split()[-1]}: {', '.join(registry.names()) or 'its folder'}"


def show_card(config: DictConfig, run: Run, registry: Registry) -> int:
    """Print the card of `target`. Raises InputError where there is none."""
    if config.target is None:
        raise InputError(f"npmp {run.verb} show needs {wanted(registry)}")
    print(registry.card(str(config.target)))
    return 0


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A line per shipped artefact."""
    console().print(table(columns, rows, show_edge=False, pad_edge=False))


def show_modules() -> None:
    """A line per shipped module."""
    rows = []
    for name in modules.names():
        skill = SkillModule.load(modules.find(name))
        training = skill.contract.training
        steps = f"{training['env_steps']:,} steps" if "env_steps" in training else "a blend"
        clips = f"{len(training.get('clips', []))} clips, {steps}"
        rows.append(
            (
                name,
                skill.robot,
                str(skill.latent_dim),
                clips,
                ", ".join(training.get("licences", [])),
            )
        )
    show_table(("module", "robot", "latent", "trained on", "licences of the data"), rows)
    print(
        "module=NAME takes one; npmp modules show NAME prints its card, npmp skill info NAME reads it."
    )


def destination(place: Path, config: DictConfig) -> Path:
    """The folder to write a module to. Raises InputError where one is already, but for
    replace=true."""
    if (place / "module.json").exists() and not config.replace:
        raise InputError(f"{place} holds a module already; replace=true overwrites it")
    return place


def pack(config: DictConfig, run: Run) -> None:
    """Store a module's weights as another type, card included."""
    source = modules.find(str(config.target))
    skill = SkillModule.load(source)
    if run.out is None:
        raise InputError("npmp modules pack needs out=FOLDER for the new module")
    place = destination(run.out, config)
    skill.save(place, dtype=config.dtype or "float16")
    if (source / "CARD.md").is_file() and source.resolve() != place.resolve():
        with atomic_path(place / "CARD.md") as path:
            path.write_text(modules.card(source), encoding="utf-8")
    before, after = ((folder / "module.safetensors").stat().st_size for folder in (source, place))
    was, now = skill.state_dict(), SkillModule.load(place).state_dict()
    most = max(float((now[key] - was[key]).abs().max()) for key in was)
    print(
        f"{before:,} bytes before, {after:,} after; no weight changed by more than {most:.1e}: {place}"
    )


def blend(config: DictConfig, run: Run) -> None:
    """Store the module between two."""
    if run.out is None or config["with"] is None:
        raise InputError(
            "npmp modules blend needs with=MODULE, the other one, and out=FOLDER for the new module"
        )
    folders, share = (
        [modules.find(str(name)) for name in (config.target, config["with"])],
        float(config.share),
    )
    one, other = (SkillModule.load(folder) for folder in folders)
    place = destination(run.out, config)
    blended = one.blended(other, share)
    of, beside = (module_sha256(folder) for folder in folders)
    said = {"blended": {"of": of, "with": beside, "share": share}}
    blended.save(place, training=blended.contract.training | said, dtype=config.dtype or "float32")
    (place / "CARD.md").unlink(missing_ok=True)  # of the module that was there
    print(f"{1 - share:g} of {config.target}, {share:g} of {config['with']}: {place}")


def add(config: DictConfig, run: Run) -> None:
    """The module of a run with its card, in a folder of its own."""
    folder = Path(str(config.target))
    if not (folder / "module" / "module.json").is_file():
        raise InputError(
            f"no module in '{folder}': a folder of npmp imitate with module/module.json is expected"
        )
    skill = SkillModule.load(folder / "module")
    name = str(config.name or folder.resolve().name)
    motions = None if config.data is None else read_motions(str(config.data), robot=skill.robot)
    evaluations = [read_json(entry, "evaluation.json") for entry in config.evaluations]
    wander = None if config.wander is None else read_json(config.wander, "wander.json")
    place = destination(run.out or Path("modules") / name, config)
    content = CardContent(
        name=name,
        contract=asdict(skill.contract)
        | {"weights_dtype": config.dtype or skill.contract.weights_dtype},
        commands=commands_of(folder, config, name),
        about=str(config.about),
        **({} if motions is None else size_of(motions)),
        hours=hours_of(folder),
        machine=str(config.machine),
        evaluations=evaluations,
        speeds={}
        if motions is None
        else {motion.name: top_speed(motion) for motion in motions.motions},
        wander=wander,
        limits=str(config.limits),
    )
    text = write_card(content)
    skill.save(place, dtype=config.dtype or skill.contract.weights_dtype)
    with atomic_path(place / "CARD.md") as path:
        path.write_text(text, encoding="utf-8")
    print(text)
    print(f"{place}: module.json, module.safetensors, CARD.md")


def read_json(place: object, name: str) -> dict[str, Any]:
    """A JSON object from a file, or from the file `name` of a folder. Raises InputError."""
    path = Path(str(place))
    return outside.read_json_object(path / name if path.is_dir() else path)


def size_of(motions: MotionSet) -> dict[str, Any]:
    """Recordings, motions and seconds of a dataset, as `CardContent` has them."""
    return {
        "recordings": len({m.recording or m.name for m in motions.motions}),
        "clips": len(motions.motions),
        "seconds": float(sum(len(m.qpos) / m.rate_hz for m in motions.motions)),
    }


def commands_of(folder: Path, config: DictConfig, name: str) -> list[str]:
    """The commands that make the module: what the caller says of the data, and the run's own with
    what it changed."""
    lines = [str(config.data_command)] if config.data_command else []
    if not (folder / "config.yaml").is_file():
        return lines
    owner, stored = stored_config(folder)
    if owner != "imitate":
        return lines
    groups = {
        key: OmegaConf.select(stored, f"{key}.name") for key in ("robot", "algo", "randomization")
    }
    chosen = [f"{key}={value}" for key, value in groups.items() if value in choices(key)]
    defaults = leaves(compose("imitate", chosen))
    plain = set(leaves(compose("imitate")).items())
    words = ["npmp imitate", f"data={Path(str(stored.data)).name}", f"seed={stored.seed}"]
    words += [
        part for part in chosen if (f"{part.split('=')[0]}.name", part.split("=")[1]) not in plain
    ]
    for key, value in leaves(stored).items():
        if (
            key.split(".")[0] not in NOT_IN_THE_COMMAND
            and key in defaults
            and defaults[key] != value
        ):
            words.append(f"{key}={value}")
    return [*lines, " ".join([*words, f"out=runs/{name}"])]


main = verb(
    "modules",
    run,
    out="optional_folder",
    torch=False,
    positional=("action", "target"),
    devices=("cpu",),
)
