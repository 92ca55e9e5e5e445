"""Formats that are not read: each with the format to convert it to."""

from __future__ import annotations

from pathlib import Path

import pytest

import mocap_data
from npmp.view.inspection import inspect
from retarget.sources import files_of
from tests.refusals import refusal


@pytest.mark.parametrize(
    ("suffix", "message"),
    [(".FBX", "Blender"), (".pkl", "numpy.savez"), (".urdf", "npmp robots add")],
)
def test_unsupported_formats(suffix: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / f"walk{suffix}"
    path.write_text("data")
    refusal(f"walk{suffix}: .*{message}", mocap_data.read, path)
    refusal(f"walk{suffix}: .*{message}", inspect, path)
    refusal(f"walk{suffix}: .*{message}", files_of, str(tmp_path))
