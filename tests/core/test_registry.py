"""Artefacts by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from npmp.skills import modules, policies


@pytest.mark.parametrize(("registry", "name"), [(policies, "go2_walk"), (modules, "go2_dog")])
def test_a_folder_to_write_to_is_not_taken_for_a_shipped_name(
    registry: object, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands make their output folder before they look for the inputs."""
    monkeypatch.chdir(tmp_path)
    kind = registry.REGISTRY  # type: ignore[attr-defined]
    Path(name).mkdir()
    assert kind.find(name) == kind.folder / name
    (Path(name) / "bundle.json").touch()
    assert kind.find(name) == kind.folder / name
    (Path(name) / kind.contract).touch()  # the user's artefact of that name
    assert kind.find(name) == Path(name)
    assert kind.find(tmp_path) == tmp_path
