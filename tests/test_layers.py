"""Imports go one way, and the light packages stay light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("mocap_data", "npmp", "retarget", "experiments")
LINKED = ("experiments", "conf")  # folders of the checkout that are parts of npmp

# From the bottom to the top; a layer may import those below its row. The most specific prefix
# counts.
ROWS: tuple[tuple[str, ...], ...] = (
    ("mocap_data",),
    ("npmp.core",),
    ("npmp.robots",),
    ("npmp.actuators", "retarget"),
    ("npmp.sim",),
    ("npmp.envs",),
    ("npmp.tasks",),
    ("npmp.skills",),
    ("npmp.evaluation", "npmp.deploy"),
    ("npmp.learning", "npmp.view"),
    ("npmp",),
    ("npmp.experiments",),
)
# where recordings and what is learned of them meet
MEETING = ("npmp.view", "npmp.experiments")
# modules of `npmp.deploy` that simulate, or read torch's networks
WITH_SIMULATOR = {
    f"npmp.deploy.{name}"
    for name in (
        "connection",
        "drake",
        "export",
        "external_policy",
        "footstep_controller",
        "simulated",
        "trial",
    )
}
LAYERS = {name: row for row, names in enumerate(ROWS) for name in names}
# Third parties that a layer must never import.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "mocap_data": ("torch", "mujoco", "dm_control", "hydra", "omegaconf"),
    "npmp.robots": ("torch", "hydra", "omegaconf"),
    "npmp.actuators.identification": ("torch", "hydra", "omegaconf"),
    "npmp.view.render": ("torch", "hydra", "omegaconf"),
    "retarget": ("torch", "hydra", "omegaconf"),
    "npmp": ("hydra", "omegaconf", "rich"),
    "npmp.deploy": ("torch", "mujoco"),
}


class Module(NamedTuple):
    """A module of the project."""

    name: str
    # full names of its imports, also of those in functions
    imports: tuple[str, ...]
    # those that it imports when it is imported
    at_once: tuple[str, ...]


@cache
def modules() -> tuple[Module, ...]:
    """Every module of the project, parsed once for all tests."""
    result = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):  # does not follow links
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            name = f"npmp.{name}" if folder in LINKED else name
            tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
            imports = tuple(imported(name, tree, is_package=is_package))
            tree.body = [
                node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)
            ]
            at_once = tuple(imported(name, tree, is_package=is_package))
            result.append(Module(name, imports, at_once))
    return tuple(result)


def imported(name: str, tree: ast.Module, *, is_package: bool) -> Iterator[str]:
    """The full names of what a module imports anywhere in it, `from a import b` as a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".")
                parents = parts[: len(parts) - node.level + (1 if is_package else 0)]
                base = ".".join([*parents, base] if base else parents)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def layer_of(name: str) -> str | None:
    """The most specific layer that holds a name, None for third parties."""
    return max([layer for layer in LAYERS if within(name, layer)], key=len, default=None)


def test_imports_go_one_way() -> None:
    wrong = []
    for name, imports, _ in modules():
        layer = layer_of(name)
        assert layer is not None
        for target in imports:
            other = layer_of(target)
            if other is None or other == layer:
                continue
            # npmp's own few names (its version) are for all; motions meet learning in a file, and
            # both on a page and in a film
            apart = other == "retarget" and layer not in MEETING
            if (LAYERS[other] >= LAYERS[layer] or apart) and target != "npmp.__version__":
                wrong.append(f"{name} imports {target}: {layer} may not import {other}")
    assert not wrong, "\n".join(wrong)


def test_no_layer_imports_what_it_must_not() -> None:
    wrong = []
    for name, imports, _ in modules():
        for layer, forbidden in FORBIDDEN.items():
            apart = within(name, "npmp.experiments") or (
                layer == "npmp.deploy" and name in WITH_SIMULATOR
            )
            if within(name, layer) and not apart:
                wrong += [
                    f"{name} imports {target}"
                    for target in imports
                    if target.split(".")[0] in forbidden
                ]
    assert not wrong, "\n".join(wrong)


def test_what_learning_imports_leaves_slow_parts_of_scipy_to_whoever_needs_them() -> None:
    """Every run, every job of a sweep and every collector would wait for them: 0.5 s of the 2.8
    that npmp imitate took to be imported (CPU of a busy Intel Xeon, 2026-11-23)."""
    # which it does not import
    allowed = {"npmp.actuators.servo_fit": "signal", "npmp.evaluation.comparison": "stats"}
    for name, _, at_once in modules():
        slow = {
            f"scipy.{part}" for part in {"interpolate", "signal", "stats"} - {allowed.get(name)}
        }
        wrong = [target for target in at_once if any(within(target, s) for s in slow)]
        assert not wrong, f"{name} imports {wrong[0]}; import it in the function that needs it"


def test_the_commands_go_by_their_installed_names() -> None:
    """`npmp.experiments` and `npmp.conf`: the bare names are the user's own. In a checkout they
    would import, too, and make every module twice."""
    links = {name: ROOT / "npmp" / name for name in LINKED}
    expected = {name: f"../{name}" for name in LINKED}
    assert {name: str(link.readlink()) for name, link in links.items()} == expected
    named = re.compile(
        r"(?:from|import|-m) (?:experiments|conf)\b(?!/)|[\"'`](?:experiments|conf)\.[a-z{]"
    )
    tests = [
        (str(path.relative_to(ROOT)), path.read_text("utf-8"))
        for path in sorted((ROOT / "tests").rglob("*.py"))
    ]
    # as text: what is imported by name, or by another process, counts as well
    wrong = [name for name, text in tests if name != "tests/test_layers.py" and named.search(text)]
    for folder in FOLDERS:
        wrong += [
            str(path)
            for path in (ROOT / folder).rglob("*.py")
            if named.search(path.read_text("utf-8"))
        ]
    assert not wrong, "\n".join(wrong)
    assert all(
        named.search(text)
        for text in ("from experiments import x", "-m experiments.cli", '"experiments.cli"')
    )


def test_nothing_is_pickled() -> None:
    wrong = []
    for name, imports, _ in modules():
        wrong += [name for target in imports if target.split(".")[0] == "pickle"]
    assert not wrong


@pytest.mark.parametrize(
    "statement",
    ["import npmp", "import npmp.robots", "import mocap_data", "import npmp.experiments.cli"],
)
def test_light_imports_leave_torch_and_hydra_alone(statement: str) -> None:
    heavy = "{'torch', 'hydra', 'matplotlib'}"
    check = f"{statement}\nimport sys\nprint(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert result.stdout.strip() == "[]"


def test_the_checker_sees_a_wrong_import() -> None:
    tree = ast.parse(
        "from npmp import envs\nimport npmp.learning.rl\nfrom . import other\nfrom .deep import x"
    )
    expected = ["npmp.envs", "npmp.learning.rl", "retarget.other", "retarget.deep.x"]
    assert list(imported("retarget.pipeline", tree, is_package=False)) == expected
    assert layer_of("npmp.learning.rl.vmpo") == "npmp.learning"
    assert layer_of("numpy") is None


def test_no_imports_go_in_circles() -> None:
    """Those within functions count, too; a package's own parts do not import it."""
    names = {module.name for module in modules()}
    graph: dict[str, set[str]] = {}
    for name, imports, _ in modules():
        graph[name] = set()
        for target in imports:
            while target and target not in names:
                target = target.rpartition(".")[0]
            if target and not within(name, target):
                graph[name].add(target)
    TopologicalSorter(graph).prepare()  # raises CycleError
