"""`npmp skill push | pull`, against a stand-in for the Hub."""

from __future__ import annotations

import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest import MonkeyPatch

from npmp.core import hub
from npmp.skills import modules, policies
from tests.experiments.command import Says
from tests.experiments.hub_stub import HubStub, serving_hub

pytest.importorskip("huggingface_hub", reason="needs the extra hub")


def fresh() -> None:
    """Forget huggingface_hub, which reads its variables at import."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        del sys.modules[name]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: MonkeyPatch) -> Iterator[HubStub]:
    """An empty Hub, and an empty cache."""
    with serving_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_stub")
        # its storage service; without it files go by Git LFS
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        fresh()
        yield server
    fresh()


def same(one: Path, other: Path, names: tuple[str, ...]) -> None:
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_a_module_comes_back_with_the_same_bytes(
    site: HubStub, elsewhere: Path, printed: Says
) -> None:
    output = printed("skill", "push", "anymal_b_gaits", "repo=owner/gaits")
    assert "licence: Apache-2.0 (generated)" in output
    assert output.endswith("npmp skill pull hf://owner/gaits\n")
    card = site.files("models/owner/gaits")["README.md"].decode()
    assert card.startswith("---\nlicense: apache-2.0\n")
    output = printed("skill", "pull", "hf://owner/gaits")
    assert "licence: Apache-2.0 (generated)" in output
    folder = elsewhere / "modules" / "gaits"
    names = ("module.json", "module.safetensors", "CARD.md")
    same(folder, modules.find("anymal_b_gaits"), names)
    assert {path.name for path in folder.iterdir()} == set(names)


def test_a_licence_with_conditions_is_accepted_or_only_the_card_is_fetched(
    site: HubStub, elsewhere: Path, printed: Says, refused: Says
) -> None:
    printed("skill", "push", "go2_walk", "repo=owner/walk")
    line = refused("skill", "pull", "hf://owner/walk")
    assert "CC BY-NC 4.0" in line and "accept_licence=true" in line
    fetched = [line for line in site.requests if line.startswith("GET") and "/resolve/" in line]
    assert [line.rpartition("/")[2] for line in fetched] == ["README.md"]
    assert not (elsewhere / "policies").exists()
    output = printed("skill", "pull", "hf://owner/walk", "accept_licence=true")
    assert "next: npmp play policy=policies/walk" in output
    folder = elsewhere / "policies" / "walk"
    same(
        folder, policies.find("go2_walk"), ("policy.json", "policy.safetensors", "README.md")
    )
    same(folder / "module", modules.find("go2_dog"), ("module.json", "module.safetensors"))


def test_a_dataset_needs_its_licence(
    site: HubStub, data: Path, tmp_path: Path, printed: Says, refused: Says
) -> None:
    ...


def test_offline_reads_the_cache(
    site: HubStub, elsewhere: Path, monkeypatch: MonkeyPatch, printed: Says, refused: Says
) -> None:
    for name in ("one", "two"):
        printed("skill", "push", "anymal_b_gaits", f"repo=owner/{name}")
    printed("skill", "pull", "hf://owner/one")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    fresh()
    site.requests.clear()
    printed("skill", "pull", "hf://owner/one", "out=again")
    same(Path("again"), Path("modules/one"), ("module.json", "module.safetensors", "CARD.md"))
    assert "offline" in refused("skill", "pull", "hf://owner/two").lower()
    assert not site.requests
