"""Installs packages for a test, from the index that pip is set to."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


def outside() -> dict[str, str]:
    """The variables of this process without PYTHONPATH, which names the checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def pip_install(python: Path | str, *words: str, folder: Path) -> None:
    """Run `pip install` of a Python in a folder. Skips the test if no index answers."""
    pip = [python, "-m", "pip", "--retries=1"]
    options = {"cwd": folder, "env": outside(), "capture_output": True, "text": True}
    probe = subprocess.run([*pip, "--timeout=15", "index", "versions", "dm-env"], **options)
    if probe.returncode:
        pytest.skip(f"no package index: {probe.stderr.strip().splitlines()[-1]:.200}")
    result = subprocess.run([*pip, "--timeout=180", "install", "--quiet", *words], **options)
    assert result.returncode == 0, result.stderr
