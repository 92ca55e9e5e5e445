"""docs/your_own_task.md: its code runs, and its task trains."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_task_of_the_docs_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "your_own_task.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    module = types.ModuleType("your_own_task")
    monkeypatch.setitem(sys.modules, "your_own_task", module)  # where dataclasses look for their own module
    space: dict[str, Any] = vars(module)
    for block in blocks:
        exec(compile(block, "your_own_task.md", "exec"), space)
    assert 0.0 <= space["figures"]["heading_error_rad"] <= 3.2
    assert "heading_error_rad" in space["metrics"] and space["trainer"].iteration_count == 2
    task = next(block for block in blocks if "class Heading" in block)
    body = [line for line in task[task.index("class Heading") :].splitlines() if line.strip()]
    assert len(body) <= 34  # some thirty: learned through a model and by V-MPO
