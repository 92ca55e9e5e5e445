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
from mocap_data.errors import InputError, check_available, unknown
from mocap_data.files import atomic_path
from mocap_data.input_files import reading, regular_file
from npmp.core import hub
from npmp.core.artifact import sha256
from npmp.core.settings import from_mapping
from npmp.deploy.bundle import CONTRACT, GOLDEN, GRAPH, Bundle
from npmp.deploy.graph import check_graph
from npmp.experiments.command import Keys, Run, Verb
from npmp.experiments.data import accept
from npmp.experiments.terminal import say
from npmp.skills import modules, policies
from npmp.skills.high_level_policy import HighLevelPolicy, find_module
from npmp.skills.skill_module import SkillModule

MODULE = ("module.json", "module.safetensors")
POLICY = ("policy.json", "policy.safetensors", *(f"module/{name}" for name in MODULE))
DATASET = "motions.h5"
UNKNOWN = "unknown"
# in a licence's name in lower case
NON_COMMERCIAL = re.compile(r"(?<![a-z])(by)?nc(?![a-z])|non[\s_-]*commercial|research")


@dataclass(frozen=True)
class Content:
    """The content of an artefact, from its files."""

    robot: str
    # a sentence
    summary: str
    # licences of the recordings; [] if it names none
    licences: list[str]


@dataclass(frozen=True)
class Published:
    """The metadata of a card that `pull` reads, under its key npmp."""

    # a key of KINDS
    kind: str
    licences: list[str]
    # SHA-256 of each file
    sha256: dict[str, str]

    def __post_init__(self) -> None:
        if not self.licences:
            raise ValueError("licences: expected at least one")


@dataclass(frozen=True)
class Kind:
    """A kind of artefact."""

    name: str
    # relative paths; the first identifies the kind
    files: tuple[str, ...]
    # reads and checks a folder without executing anything in it; raises InputError
    read: Callable[[Path], Content]
    # file of the card
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
    dataset = read_motions(folder / DATASET)
    seconds = sum(len(motion.qpos) / motion.rate_hz for motion in dataset.motions)
    summary = f"{len(dataset.motions)} reference motions of {dataset.robot}, {seconds:.0f} s."
    licences = sorted({motion.licence for motion in dataset.motions})
    return Content(dataset.robot, summary, licences)


KINDS = {
    "module": Kind("skill module", MODULE, _module, "CARD.md"),
    "policy": Kind("policy", POLICY, _policy),
    "bundle": Kind("bundle", (CONTRACT, GRAPH, GOLDEN), _bundle),
    "motions": Kind("motion dataset", (DATASET,), _dataset, repo_type="dataset"),
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
    # the folder; null: NAME
    out: Path | None = None
    # true: accept a licence with conditions; false: ask on a terminal
    accept_licence: bool = False
    # true: overwrite an existing artefact
    replace: bool = False


def push_artefact(config: Push, run: Run) -> None:
    """Upload an artefact and print the command that fetches it."""
    key, source = _find(config.target)
    kind = KINDS[key]
    uri = hub.parse(f"hf://{kind.repo_type}s/{config.repo}")
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in kind.files:
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            shutil.copyfile(_local_file(source, name), path)
        content = kind.read(folder)
        licences = _licences(content, config)
        say(f"{config.target}: {content.summary}", f"licence: {'; '.join(licences)}")
        files = {name: sha256(folder / name) for name in kind.files}
        own = {"kind": key, "licences": licences, "sha256": files}
        card = source / kind.card
        if card.is_file():
            text = card.read_bytes()
        else:
            text = f"# {uri.id}\n\n{content.summary}\n\nLicence: {'; '.join(licences)}.\n".encode()
        hub.write_card(folder, {**_metadata(kind, content.robot, licences), "npmp": own}, text)
        url = hub.upload(folder, uri, f"Upload {kind.name} of {content.robot}")
    say(url, f"npmp skill pull {uri.to_uri()}")


def pull_artefact(config: Pull, run: Run) -> None:
    """Print the licence, then fetch the artefact's files, check them and copy them to out=."""
    uri = hub.parse(config.target)
    folder = hub.download(uri, [hub.CARD])
    metadata, text = hub.read_card(folder)
    with reading(folder / hub.CARD):
        own = from_mapping(Published, metadata.get("npmp") or {}, at="npmp")
    check_available("kind of artefact", [own.kind], KINDS)
    kind = KINDS[own.kind]
    licence = "; ".join(own.licences)
    say(f"{config.target}: {kind.name}, commit {folder.name}", f"licence: {licence}")
    destination = run.out or Path(uri.id.partition("/")[2])
    existing = [name for name in (*kind.files, kind.card) if (destination / name).exists()]
    if existing and not config.replace:
        raise InputError(f"{destination} has {existing[0]}; replace=true overwrites it")
    if NON_COMMERCIAL.search(licence.lower()):
        accept(config.target, licence, accepted=config.accept_licence)

    folder = hub.download(replace(uri, revision=folder.name), [hub.CARD, *kind.files])
    for name in kind.files:
        if sha256(folder / name) != own.sha256.get(name):
            raise InputError(f"'{folder / name}': sha256 differs from that in {hub.CARD}")
    recorded = set(kind.read(folder).licences) - {UNKNOWN}
    if not recorded <= set(own.licences):
        raise InputError(
            f"{config.target}: its files are under '{'; '.join(sorted(recorded))}', its card says "
            f"'{licence}'"
        )
    # the contract last: without it a folder that is not finished is no artefact
    for name in reversed(kind.files):
        with atomic_path(destination / name) as path:
            shutil.copyfile(folder / name, path)
    with atomic_path(destination / kind.card) as path:
        path.write_bytes(text)
    say(f"{destination}: {', '.join([*kind.files, kind.card])}")


def _find(target: str) -> tuple[str, Path]:
    """Kind and path of an artefact: a folder, a dataset's file, or a shipped one by name. Raises
    InputError."""
    path = Path(target)
    if path.suffix.lower() in (".h5", ".hdf5"):
        return "motions", regular_file(path)
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


def _metadata(kind: Kind, robot: str, licences: list[str]) -> dict[str, Any]:
    """The Hub's metadata of a card."""
    purpose: dict[str, Any] = {"library_name": "npmp", "pipeline_tag": "robotics"}
    if kind.repo_type == "dataset":
        purpose = {"task_categories": ["robotics"]}
    licence = hub.licence_metadata(licences)
    return {**licence, **purpose, "tags": ["npmp", kind.name.replace(" ", "-"), robot]}


_common: Any = {"out": "optional_folder", "devices": ("cpu",), "positional": ("target",)}
push = Verb("skill push", Push, push_artefact, torch=False, **_common)
pull = Verb("skill pull", Pull, pull_artefact, torch=False, **_common)
