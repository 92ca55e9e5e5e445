"""The models that the robots' tests share."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

# Imported by path: the tests are no package.
_spec = importlib.util.spec_from_file_location("robot_models", Path(__file__).parent / "models.py")
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
sys.modules["robot_models"] = _module
_spec.loader.exec_module(_module)
