"""Users' robots and tasks: in ./robots, ./tasks, and the folders of NPMP_ROBOTS and NPMP_TASKS.

Code only runs if the user names it (task=NAME or teacher=FILE.py:CLASS on the command line,
`npmp.tasks.find` in Python), not if a policy.json, a config.yaml or another file does.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from mocap_data.errors import InputError

# prefix of the modules of tasks
_MODULE = "npmp_plugin_task_"


def folders(kind: str) -> list[Path]:
    """The folders with plugins of a kind, "robots" or "tasks", in search order."""
    listed = os.environ.get(f"NPMP_{kind.upper()}", "").split(os.pathsep)
    return [*(Path(entry).expanduser() for entry in listed if entry), Path(kind)]


def tasks() -> dict[str, Path]:
    """The files of users' tasks by name, NAME.py; NAME.yaml beside it has settings."""
    paths = [path for folder in folders("tasks") for path in sorted(folder.glob("*.py"))]
    return {path.stem: path for path in reversed(paths) if not path.stem.startswith("_")}


def task_module(name: str) -> ModuleType:
    """The module of a user's task, loaded once. Raises InputError if its file fails."""
    return _run(_MODULE + name, tasks()[name])


def is_class(reference: str) -> bool:
    """Whether a text is FILE.py:CLASS."""
    return ".py:" in reference


def find_class(reference: str) -> Any:
    """The class of FILE.py:CLASS, whose file is run once. Raises InputError."""
    file, _, name = reference.rpartition(":")
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise InputError(f"{reference}: no file '{file}'")
    module_name = "npmp_plugin_file_" + re.sub(r"\W", "_", str(path))
    kind = getattr(_run(module_name, path), name, None)
    if not isinstance(kind, type):
        raise InputError(f"{reference}: no class {name!r} in '{file}'")
    return kind


def _run(module_name: str, path: Path) -> ModuleType:
    """The module of a file, run once. Raises InputError if it fails."""
    if (loaded := sys.modules.get(module_name)) is not None:
        return loaded
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None  # for the type checker
    module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise InputError(
            f"{path}: {type(error).__name__}: {error}; NPMP_DEBUG=1 prints the traceback"
        ) from error
    return module


def loaded_tasks() -> dict[str, ModuleType]:
    """The loaded modules of tasks by name, which other processes cannot import."""
    prefix = len(_MODULE)
    return {name[prefix:]: m for name, m in sys.modules.items() if name.startswith(_MODULE)}
