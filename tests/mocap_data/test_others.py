"""Files of other kinds: what each is, and what to do with it."""

from __future__ import annotations

from pathlib import Path

import pytest

import mocap_data
from mocap_data.readers import READERS
from mocap_data.readers.others import OTHERS
from npmp.view.inspection import inspect
from retarget.sources import files_of
from tests.refusals import refusal


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        (".FBX", "a scene in FBX, .*export Motion Capture"),
        (".trb", "a file of Cortex; export C3D there"),
        (".trc", "OpenSim's table of markers; export C3D, or save positions"),
        (".pkl", "pickles are not read, since they can run code; save positions"),
        (".urdf", "a model, no recording; npmp robots add"),
    ],
)
def test_what_to_convert_it_to(suffix: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / f"walk{suffix}"
    path.write_text("data")
    refusal(f"walk{suffix}: {message}", mocap_data.read, path)
    refusal(f"walk{suffix}: {message}", inspect, path)
    refusal(f"walk{suffix}: {message}", files_of, str(tmp_path))


def test_no_kind_that_is_read_is_refused() -> None:
    assert not set(OTHERS) & {*READERS, ".asf"}
