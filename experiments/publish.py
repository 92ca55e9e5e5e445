"""`npmp skill push | pull`: modules, policies, bundles and motion datasets on the Hugging Face
Hub."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mocap_data import read_motions
from mocap_data.errors import InputError, unknown
from mocap_data.files import atomic_path
from npmp.core import hub
from npmp.deploy import Bundle
from npmp.deploy.graph import check_graph
from npmp.experiments.command import Keys, Run, Verb
from npmp.experiments.data import accept
from npmp.experiments.terminal import say
from npmp.skills import modules, policies
from npmp.skills.high_level_policy import HighLevelPolicy, find_module
from npmp.skills.skill_module import SkillModule

MODULE_FILES = ("module.json", "module.safetensors")
# names of licences on the Hub; others are "other" with a name
HUB_LICENCES = (
    *("apache-2.0", "mit", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0"),
    *("cc-by-nc-4.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0", "cc-by-nc-nd-4.0"),
)
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Content:
    """The content of an artefact, from its files."""

    robot: str
    # a sentence
    summary: str
    # licences of the recordings; [] if it names none
    licences: list[str]


@dataclass(frozen=True)
class Kind:
    """A kind of artefact: its files, and how to read them."""

    name: str
    # relative paths; the first identifies the kind
    files: tuple[str, ...]
    # reads a folder and checks it without executing anything in it; raises InputError
    read: Callable[[Path], Content]
    # the parent of new folders
    parent: str
    # a command that uses a FOLDER
    use: str
    # the card's file in a folder
    card: str = "README.md"
    # on the Hub: "model" or "dataset"
    repo_type: str = "model"


def _module(folder: Path) -> Content:
    skill = SkillModule.load(folder)
    rate = skill.contract.control_rate_hz
    licences = list(skill.contract.training.get("licences", []))
    summary = f"A skill module for {skill.robot}: {skill.latent_dim} latents at {rate:g} Hz."
    return Content(skill.robot, summary, licences)


def _policy(folder: Path) -> Content:
    contract = HighLevelPolicy.load(folder, module=folder / "module").contract
    summary = f"A policy for {contract.robot} at task {contract.task}, with its skill module."
    return replace(_module(folder / "module"), robot=contract.robot, summary=summary)


def _bundle(folder: Path) -> Content:
    bundle = Bundle.read(folder)
    bundle.golden()
    check_graph(bundle.graph, str(folder))
    contract = bundle.contract
    rate = contract.control_rate_hz
    summary = f"A bundle for {contract.robot} at task {contract.task}: one graph at {rate:g} Hz."
    return Content(contract.robot, summary, contract.licence)


def _dataset(folder: Path) -> Content:
    dataset = read_motions(folder / "motions.h5")
    seconds = sum(len(motion.qpos) / motion.rate_hz for motion in dataset.motions)
    summary = f"{len(dataset.motions)} reference motions of {dataset.robot}, {seconds:.0f} s."
    licences = sorted({motion.licence for motion in dataset.motions})
    return Content(dataset.robot, summary, licences)


KINDS = {
    "module": Kind(
        "skill module",
        MODULE_FILES,
        _module,
        "modules",
        "npmp reuse task=walk module=FOLDER",
        card="CARD.md",
    ),
    "policy": Kind(
        "policy",
        ("policy.json", "policy.safetensors", *(f"module/{name}" for name in MODULE_FILES)),
        _policy,
        "policies",
        "npmp play policy=FOLDER",
    ),
    "bundle": Kind(
        "bundle",
        ("bundle.json", "policy.onnx", "golden.npz"),
        _bundle,
        "bundles",
        "npmp deploy check FOLDER",
    ),
    "motions": Kind(
        "motion dataset",
        ("motions.h5",),
        _dataset,
        "motions",
        "npmp imitate data=FOLDER/motions.h5",
        repo_type="dataset",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Push(Keys):
    """Upload a module, a policy with its module, a bundle or a motion dataset to the Hugging Face
    Hub, with its licence, card and checksums.

    npmp skill push go2_walk repo=owner/go2_walk
    npmp skill push motions.h5 repo=owner/motions licence=CC-BY-4.0
    """

    # a shipped module or policy, a folder, or a dataset's file
    target: str
    # the repository, OWNER/NAME; it is created if it is missing
    repo: str
    # the licence of an artefact that names none; null: of its recordings
    licence: str | None = None


@dataclass(frozen=True, kw_only=True)
class Pull(Keys):
    """Download an artefact of npmp skill push: print its licence, fetch it, check it.

    npmp skill pull hf://owner/go2_walk
    npmp skill pull hf://datasets/owner/motions@v1 out=motions
    """

    # hf://OWNER/NAME or hf://datasets/OWNER/NAME, with @REVISION if not the newest
    target: str
    # the folder; null: modules/NAME, policies/NAME, bundles/NAME or motions/NAME
    out: Path | None = None
    # true: accept a licence with conditions; false: ask on a terminal
    accept_licence: bool = False
    # true: overwrite an existing artefact
    replace: bool = False


def push_artefact(config: Push, run: Run) -> None:
    """Upload an artefact and print the command that fetches it."""
    key, source = _find(config.target)
    kind = KINDS[key]
    address = hub.Address.parse(f"hf://{config.repo}")
    address = replace(address, type=kind.repo_type)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in kind.files:
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            shutil.copyfile(_local_file(source, name), path)
        content = kind.read(folder)
        licences = _licences(content, config)
        say(f"{config.target}: {content.summary}", f"licence: {'; '.join(licences)}")
        hub.write_card(
            folder,
            _metadata(key, content, licences),
            _card_text(source / kind.card, address.name, content, licences),
        )
        hub.write_sums(folder, kind.files)
        url = hub.upload(folder, address, f"Upload {kind.name} {address.name}")
    say(url, f"npmp skill pull {address}")


def pull_artefact(config: Pull, run: Run) -> None:
    """Print the licence, then fetch the artefact's files, check them and copy them to out=."""
    address = hub.Address.parse(config.target)
    folder = hub.download(address, [hub.CARD])
    metadata, text = hub.read_card(folder)
    about = metadata.get("npmp")
    key = about.get("kind") if isinstance(about, dict) else None
    licences = about.get("licences") if isinstance(about, dict) else None
    if key not in KINDS or not isinstance(licences, list) or not licences:
        raise InputError(f"{address}: its card names no artefact of npmp skill push")
    kind = KINDS[key]
    licence = "; ".join(map(str, licences))
    say(f"{address}: {kind.name}, commit {folder.name}", f"licence: {licence}")
    destination = run.out or Path(kind.parent) / address.name
    if (destination / kind.files[0]).exists() and not config.replace:
        raise InputError(f"{destination} has {kind.files[0]}; replace=true overwrites it")
    if _non_commercial(licence):
        accept(str(address), licence, accepted=config.accept_licence)
    commit = replace(address, revision=folder.name)
    folder = hub.download(commit, [hub.CARD, hub.SUMS, *kind.files])
    hub.check_sums(folder, kind.files)
    content = kind.read(folder)
    if hidden := set(content.licences) - {UNKNOWN, *licences}:
        raise InputError(
            f"{address}: its files name the licence '{'; '.join(sorted(hidden))}', its card "
            f"'{licence}'"
        )
    for name in kind.files:
        with atomic_path(destination / name) as path:
            shutil.copyfile(folder / name, path)
    with atomic_path(destination / kind.card) as path:
        path.write_bytes(text)
    say(content.summary, f"{destination}: {', '.join([*kind.files, kind.card])}")
    say(f"next: {kind.use.replace('FOLDER', str(destination))}")


def _find(target: str) -> tuple[str, Path]:
    """Kind and path of an artefact: a folder, a dataset's file, or a shipped one by name. Raises
    InputError."""
    path = Path(target)
    if path.is_file():
        return "motions", path
    for key, kind in KINDS.items():
        if (path / kind.files[0]).is_file():
            return key, path
    for key, registry in (("module", modules), ("policy", policies)):
        if target in registry.names():
            return key, registry.find(target)
    if path.is_dir():
        contracts = ", ".join(kind.files[0] for kind in KINDS.values())
        raise InputError(f"{target}: expected a folder with one of {contracts}")
    shipped = (*modules.names(), *policies.names())
    raise unknown("folder, dataset or shipped artefact", target, shipped)


def _local_file(source: Path, name: str) -> Path:
    """The local file of an artefact's file. Raises InputError for a policy without its module."""
    if source.is_file():
        return source
    if name.startswith("module/"):
        own = HighLevelPolicy.load(source).contract.module_sha256
        return find_module(source, own) / Path(name).name
    return source / name


def _licences(content: Content, config: Push) -> list[str]:
    """The licences of an artefact: of its recordings, and licence= for those that name none.
    Raises InputError if it is missing or not needed."""
    recorded = [licence for licence in content.licences if licence != UNKNOWN]
    complete = bool(recorded) and UNKNOWN not in content.licences
    if complete and config.licence is not None:
        raise InputError(
            f"licence={config.licence}: {config.target} is under {'; '.join(recorded)}; leave out "
            "licence="
        )
    if not complete and config.licence is None:
        raise InputError(f"{config.target} names no licence; set licence=, e.g. licence=CC-BY-4.0")
    return recorded if config.licence is None else [*recorded, config.licence]


def _non_commercial(licence: str) -> bool:
    words = re.split(r"\W+", licence.lower().replace("non-commercial", "noncommercial"))
    return "nc" in words or "noncommercial" in words


def _metadata(key: str, content: Content, licences: list[str]) -> dict[str, Any]:
    """The metadata of the card on the Hub."""
    # "CC BY-NC 4.0" is cc-by-nc-4.0, "Apache-2.0 (generated)" apache-2.0
    name = "; ".join(licence.partition(" (")[0] for licence in licences)
    name = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
    licence = {"license": name}
    if name not in HUB_LICENCES:
        licence = {"license": "other", "license_name": name}
    purpose: dict[str, Any] = {"library_name": "npmp", "pipeline_tag": "robotics"}
    if KINDS[key].repo_type == "dataset":
        purpose = {"task_categories": ["robotics"]}
    tags = ["npmp", KINDS[key].name.replace(" ", "-"), content.robot]
    return {**licence, **purpose, "tags": tags, "npmp": {"kind": key, "licences": licences}}


def _card_text(path: Path, name: str, content: Content, licences: list[str]) -> bytes:
    """The card of a folder, or a short one."""
    if path.is_file():
        return path.read_bytes()
    licence = f"**Licence and data.** {'; '.join(licences)}."
    return f"# {name}\n\n{content.summary}\n\n{licence}\n".encode()


_common: Any = {"out": "optional_folder", "devices": ("cpu",), "positional": ("target",)}
push = Verb("skill push", Push, push_artefact, torch=False, **_common)
pull = Verb("skill pull", Pull, pull_artefact, torch=False, **_common)
