"""The provenance of a page: versions, machine, and text without absolute paths."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

from npmp import __version__
from npmp.core.devices import cpus

VERSIONED_PACKAGES = ("numpy", "scipy", "mujoco", "mujoco_warp", "dm_control", "torch", "h5py")


def versions() -> dict[str, str]:
    """Versions of the installed packages that determine the results."""
    installed = {"python": platform.python_version(), "npmp": __version__}
    for name in VERSIONED_PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def machine_summary() -> dict[str, Any]:
    """Cores and system of the machine; no host name, user or path."""
    return {"cores": cpus(), "system": f"{platform.system()} {platform.machine()}"}


_ABSOLUTE = re.compile(r"(?<![\w.:/~-])(?:~?/|[A-Za-z]:\\)(?:[^\s/\\'\"=,;:<>|()\[\]{}]+[/\\])+")


def scrub(text: str, folder: Path | None = None) -> str:
    """Text without absolute paths: those inside `folder` become relative to it, others keep their
    last part.

    >>> scrub("module=/home/ada/runs/demo/module data=x.h5")
    'module=…/module data=x.h5'
    """
    if folder is not None:
        inside = str(folder.resolve())
        if inside != os.path.sep:
            text = text.replace(inside + os.path.sep, "").replace(inside, ".")
    return _ABSOLUTE.sub("…/", text)
