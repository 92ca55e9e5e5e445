"""Rules of the code that no linter knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from mocap_data.safe_yaml import read_yaml
from npmp.core.settings import flat, to_plain
from npmp.experiments import store
from npmp.tasks import TASKS

ROOT = Path(__file__).resolve().parents[1]


def test_lines_of_prose_have_at_most_100_columns() -> None:
    """Of what ruff does not look at, too, but for rows of tables, of digests and of addresses."""
    kinds = {".cff", ".css", ".html", ".js", ".md", ".toml", ".txt", ".yaml", ".yml"}
    folders = (".github", "conf", "docs", "experiments", "mocap_data", "npmp", "retarget", "tests")
    inside = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    free = re.compile(r"\||<img|.*\b[0-9a-f]{64}\b|\W*https?://\S+$")
    wide = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in (*ROOT.iterdir(), *inside)
        if path.suffix in kinds or path.name == "Makefile"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 100 and not free.match(line) and path.parent != ROOT / "docs" / "pictures"
    ]
    assert not wide


def test_no_branch_hangs_on_a_task() -> None:
    """Outside `npmp.tasks`: what differs between tasks is declared by them."""
    tasks = {
        "Dribble",
        "Guided",
        "Imitation",
        "Mapped",
        "Navigate",
        "Path",
        "CoursePath",
        "Recover",
        "Walk",
    }
    result = []
    for folder in ("npmp", "experiments"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "tasks" in path.relative_to(ROOT).parts:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Compare):
                    message = {
                        part.value for part in ast.walk(node) if isinstance(part, ast.Constant)
                    }
                    if message & ({kind.name for kind in TASKS} - {"path"}):
                        result.append(f"{path.relative_to(ROOT)}:{node.lineno}")
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                    kinds = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                    if kinds & tasks - ({"Path"} if "pathlib" in path.read_text() else set()):
                        result.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not result


def test_a_preset_says_only_what_differs() -> None:
    """No value of conf/GROUP is the default of its dataclass, too."""
    for group in set(store.GROUPS) - {"scenario"}:
        for file in sorted((store.CONF / group).glob("*.yaml")):
            name = read_yaml(file).pop("name", file.stem)
            verb = "imitate" if name in store.names("imitate", group) else "reuse"
            usual = flat(to_plain(store.schema_of(verb, group, name)()))
            content = flat(read_yaml(file))
            twice = [key for key, value in content.items() if usual.get(key, object()) == value]
            assert not twice, f"{file}: {twice}"
