"""The documentation's Python runs as it stands, and the files and commands that it names exist."""

from __future__ import annotations

import re
import shlex
import sys
import types
from pathlib import Path

import pytest
import yaml

from npmp.experiments import cli, common

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))


def blocks(text: str, language: str) -> list[str]:
    """The fenced code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page, in order, share their names, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(page.stem)
    monkeypatch.setitem(sys.modules, page.stem, module)  # where dataclasses look for the module that they are in
    names = vars(module)
    for block in blocks(page.read_text(encoding="utf-8"), "python"):
        exec(compile(block, str(page), "exec"), names)


def commands(text: str) -> list[list[str]]:
    """The `npmp ...` lines of a page's command blocks, as arguments, without comments and with continued lines
    joined."""
    lines = "\n".join(blocks(text, "")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("npmp ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    """Every command has its verb, and every key that it is given."""
    text = page.read_text(encoding="utf-8")
    named = {arguments[0] for arguments in commands(text)} | set(re.findall(r"`npmp (\w+)", text))
    assert named <= set(cli.VERBS), f"{page.name} names commands that there are not: {sorted(named - set(cli.VERBS))}"
    for verb, *rest in commands(text):
        known = {*common.known_keys(verb), "robot"}
        keys = {argument.split("=")[0] for argument in rest if "=" in argument and not argument.startswith("hydra")}
        assert keys <= known, f"{page.name}: npmp {verb} has no {sorted(keys - known)}"


def test_defaults_are_those_of_the_configuration() -> None:
    """Tables with the columns key and default say what conf/retarget.yaml says."""
    text = (ROOT / "docs" / "retargeting.md").read_text(encoding="utf-8")
    [table] = re.findall(r"^\| key \| default \| meaning \|\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    config = common.compose("retarget")
    for row in table.splitlines():
        names, defaults = (cell.strip().replace("`", "").split(", ") for cell in row.split("|")[1:3])
        assert len(names) == len(defaults), row
        for name, default in zip(names, defaults, strict=True):
            assert config[name] == yaml.safe_load(default), (
                f"{name}: the page says {default}, the configuration {config[name]}"
            )
