"""The documentation is true: its Python and its commands run or at least compose, its links lead
somewhere, its tables say what the configuration says.

On a page, in order and in one empty folder: ```python is run, ```sh is run with debug=tiny, `npmp
...` lines of a block without a language are composed as the command would compose them;
`tests/test_docs_commands.py` runs them, too.
"""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown.extensions.toc import slugify

from mocap_data.errors import InputError
from npmp.experiments import cli, store
from npmp.view.play.modes import MODES
from tests.experiments.jobs import job_of, jobs_of

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


# what commands earlier on a page have made
MADE = ("runs/sysid/randomization/anymal_b_identified.yaml", "robots/my_dog/robot.yaml")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[tuple[str, str]]:
    """The fenced code blocks of a page, with their languages."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def with_code(*languages: str) -> list[Path]:
    return [
        page
        for page in PAGES
        if {language for language, _ in blocks(page.read_text())} & set(languages)
    ]


def typed(block: str) -> Iterator[list[str]]:
    """The lines of a block as a shell reads them; continued lines joined, the block's own variables
    put in."""
    variables: dict[str, str] = {}
    for line in block.replace("\\\n", " ").splitlines():
        if result := re.fullmatch(r"(\w+)=(\S+|\"[^\"]*\")", line.strip()):
            variables[result[1]] = result[2].strip('"')
            continue
        for name, value in variables.items():
            line = re.sub(rf"\${name}\b", lambda _, value=value: value, line)
        if words := shlex.split(line, comments=True):
            yield words


def commands(block: str) -> Iterator[list[str]]:
    """The `npmp ...` lines of a block as arguments."""
    for words in typed(block):
        words = list(dropwhile(lambda word: re.match("[A-Z_]+=", word), words))
        if words[0] == "npmp":
            yield words[1:]


# --- what runs ---


@cache
def tiny(command: str) -> set[str]:
    """What debug=tiny sets of a command."""
    return store.sizes(command, "tiny")


def run(page: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    """Run a page's blocks in order. Returns: the names that its Python has made."""
    monkeypatch.chdir(folder)
    module = types.ModuleType(page.stem)
    # where dataclasses look for the module that they are in
    monkeypatch.setitem(sys.modules, page.stem, module)
    for language, block in blocks(page.read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(block, str(page), "exec"), vars(module))
        for words in commands(block) if language == "sh" else ():
            name, rest = cli.named(words)
            small = [argument for argument in rest if argument.split("=")[0] not in tiny(name)]
            assert cli.main([*name.split(), *small, "debug=tiny"]) == 0, (
                f"{named(page)}: npmp {shlex.join(words)}"
            )
    return vars(module)


TASK = ROOT / "docs" / "your_own_task.md"


@pytest.mark.parametrize(
    "document", [page for page in with_code("python", "sh") if page != TASK], ids=named
)
def test_blocks_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(document, monkeypatch, tmp_path)


def test_the_task_of_the_docs_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = run(TASK, monkeypatch, tmp_path)
    assert 0.0 <= space["figures"]["heading_error_rad"] <= 3.2
    assert "heading_error_rad" in space["metrics"] and space["trainer"].iteration_count == 2


# --- what composes ---


def composed(words: list[str]) -> None:
    """Raise InputError where npmp would refuse its verb, a key, a choice or a value."""
    if "--help" in words:
        return
    name, rest = cli.named(words)
    for job in jobs_of(name, *rest):
        assert job.config


known_to_compose: set[tuple[str, ...]] = set()  # some stand on several pages


@pytest.fixture
def example_tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tasks of the examples, as a page sets them before a command."""
    monkeypatch.setenv("NPMP_TASKS", str(ROOT / "experiments" / "examples"))
    yield
    sys.modules.pop("npmp_plugin_task_gap", None)


@pytest.mark.parametrize("document", with_code(""), ids=named)
@pytest.mark.usefixtures("example_tasks")
def test_commands_compose(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in MADE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("name: made\n")
    for language, block in blocks(document.read_text(encoding="utf-8")):
        for words in commands(block) if language == "" else ():
            if tuple(words) in known_to_compose:
                continue
            try:
                composed(words)
            except InputError as error:
                pytest.fail(f"{named(document)}: npmp {shlex.join(words)}: {error}")
            known_to_compose.add(tuple(words))


@pytest.mark.parametrize("document", PAGES, ids=named)
def test_verbs_in_the_text_exist(document: Path) -> None:
    names = set(re.findall(r"`npmp ([a-z][\w-]*)", document.read_text(encoding="utf-8")))
    assert names <= {*cli.VERBS, "help"}, f"{named(document)} names verbs that there are not"


# --- links ---


@cache
def anchors(page: Path) -> set[str]:
    text = re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    return {
        slugify(title.replace("`", ""), "-")
        for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize("document", PAGES, ids=named)
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(
        r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    for target in re.findall(r"(?:\]\(|src=\")([^)\"\s]+)", text):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (document.parent / path).resolve() if path else document
        assert place.exists(), f"{named(document)} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(place), (
                f"{named(document)} links to {target}; its headings are {anchors(place)}"
            )


def test_the_reference_names_what_there_is() -> None:
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        for name in re.findall(r"^::: (.+)$", page.read_text(), re.MULTILINE):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                module, _, last = name.rpartition(".")
                assert hasattr(importlib.import_module(module), last), f"{named(page)}: {name}"


# --- tables ---


def test_every_verb_is_in_the_table_of_commands() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert set(cli.VERBS) <= set(re.findall(r"`npmp ([a-z][\w-]*)", text))


def test_defaults_are_those_of_the_configuration() -> None:
    """Tables with the columns key and default say what `npmp retarget` has."""
    text = (ROOT / "docs" / "retargeting.md").read_text(encoding="utf-8")
    [table] = re.findall(
        r"^\| key \| default \| meaning \|\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE
    )
    config = job_of("retarget").values
    for row in table.splitlines():
        names, defaults = (
            cell.strip().replace("`", "").split(", ") for cell in row.split("|")[1:3]
        )
        assert len(names) == len(defaults), row
        for name, default in zip(names, defaults, strict=True):
            assert config[name] == yaml.safe_load(default), (
                f"{name}: the page says {default}, the configuration {config[name]}"
            )


def first_column(page: str, heading: str) -> list[str]:
    """The names in the first column of the table under a heading's row."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    _, _, table = text.partition(heading)
    rows = table.split("\n\n")[0].splitlines()[2:]
    return [name.strip() for row in rows for name in row.split("|")[1].split(",")]


def test_every_scenario_and_mode_is_in_its_table() -> None:
    practice = ROOT / "conf" / "scenario" / "practice.yaml"
    scenarios = first_column("suite.md", "| scenario | command | what differs |")
    known = yaml.safe_load(practice.read_text(encoding="utf-8")).keys() - {"defaults", "name"}
    assert sorted(scenarios) == sorted(known)
    assert first_column("play.md", "| mode | needs | command |") == list(MODES)


@pytest.mark.parametrize("card", sorted((ROOT / "npmp").glob("[mp]o*/*/*.md")), ids=named)
def test_the_commands_of_cards_compose(card: Path) -> None:
    """With every key that they name; a shell puts their variables in."""
    message = 'npmp() { printf "%s\\0" "$@"; printf "\\n\\0"; }; D=dog C=cmu\n'
    script = message + "\n".join(block for _, block in blocks(card.read_text(encoding="utf-8")))
    shell = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    for words in shell.stdout.split("\0\n\0")[:-1]:
        name, rest = cli.named(words.split("\0"))
        given = [word for word in rest if not word.startswith("policy=runs/")]
        assert jobs_of(name, *given), words
