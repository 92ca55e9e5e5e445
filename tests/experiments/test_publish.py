"""`npmp skill push | pull`, against a stand-in for the Hub."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from pytest import MonkeyPatch

from mocap_data.store import MotionSet, write_motions
from npmp.experiments.publish import NON_COMMERCIAL
from npmp.robots import Robot
from npmp.skills import modules, policies
from npmp.skills.high_level_policy import find_module, load_policy, module_sha256
from tests.deploy.standins import write_toy
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
    site: HubStub, elsewhere: Path, printed: Says, refused: Says
) -> None:
    output = printed("skill", "push", "anymal_b_gaits", "repo=owner/gaits")
    assert "licence: Apache-2.0 (generated)" in output
    assert output.endswith("npmp skill pull hf://models/owner/gaits\n")
    card = site.files("models/owner/gaits")["README.md"].decode()
    assert card.startswith("---\nlicense: apache-2.0\n")
    output = printed("skill", "pull", "hf://owner/gaits")
    assert "licence: Apache-2.0 (generated)" in output
    folder = elsewhere / "gaits"
    names = ("module.json", "module.safetensors", "CARD.md")
    same(folder, modules.find("anymal_b_gaits"), names)
    assert {path.name for path in folder.iterdir()} == set(names)
    # nothing of the reader's is overwritten, a card neither
    for name in names[:2]:
        (folder / name).unlink()
    assert "CARD.md" in refused("skill", "pull", "hf://owner/gaits")
    printed("skill", "pull", "hf://owner/gaits", "replace=true")
    same(folder, modules.find("anymal_b_gaits"), names)


@pytest.mark.parametrize(
    ("licence", "asks"),
    [
        ("CC BY-NC 4.0", True),
        ("cc_by_nc_4.0", True),
        ("CC-BYNC", True),
        ("Non commercial use", True),
        ("research only", True),
        ("Apache-2.0 (generated)", False),
        ("CC-BY-4.0", False),
        ("licence of the concert", False),
    ],
)
def test_names_of_licences_with_conditions(licence: str, asks: bool) -> None:
    assert bool(NON_COMMERCIAL.search(licence.lower())) is asks


def test_a_licence_with_conditions_is_accepted_or_only_the_card_is_fetched(
    site: HubStub, elsewhere: Path, printed: Says, refused: Says
) -> None:
    printed("skill", "push", "go2_walk", "repo=owner/walk")
    line = refused("skill", "pull", "hf://owner/walk")
    assert "CC BY-NC 4.0" in line and "accept_licence=true" in line
    fetched = [line for line in site.requests if line.startswith("GET") and "/resolve/" in line]
    assert [line.rpartition("/")[2] for line in fetched] == ["README.md"]
    assert not (elsewhere / "walk").exists()
    printed("skill", "pull", "hf://owner/walk", "accept_licence=true")
    folder = elsewhere / "walk"
    same(folder, policies.find("go2_walk"), ("policy.json", "policy.safetensors", "README.md"))
    same(folder / "module", modules.find("go2_dog"), ("module.json", "module.safetensors"))


def test_a_policy_brings_its_module(
    site: HubStub, policy: Path, elsewhere: Path, robot: Robot, printed: Says
) -> None:
    printed("skill", "push", policy, "repo=owner/tiny")
    printed("skill", "pull", "hf://owner/tiny", "out=tiny")
    same(policy, Path("tiny"), ("policy.json", "policy.safetensors", "README.md"))
    assert find_module("tiny", module_sha256(policy.parent / "module")) == Path("tiny/module")
    assert load_policy(Path("tiny"), robot)


def test_a_dataset_goes_with_its_licences(
    site: HubStub, motions: MotionSet, data: Path, elsewhere: Path, printed: Says, refused: Says
) -> None:
    recorded = motions.motions[0].licence
    assert recorded in refused("skill", "push", data, "repo=owner/gaits", "licence=MIT")
    output = printed("skill", "push", data, "repo=owner/gaits")
    assert output.endswith("npmp skill pull hf://datasets/owner/gaits\n")
    assert f"licence: {recorded}" in printed("skill", "pull", "hf://datasets/owner/gaits")
    folder = elsewhere / "gaits"
    assert (folder / "motions.h5").read_bytes() == data.read_bytes()
    card = (folder / "README.md").read_text()
    # two seconds and three
    assert "2 reference motions of anymal_b, 5 s." in card and recorded in card

    one, two = motions.motions
    mixed = replace(motions, motions=(one, replace(two, licence="unknown")))
    write_motions("mixed.h5", mixed)
    assert "licence=" in refused("skill", "push", "mixed.h5", "repo=owner/mixed")
    output = printed("skill", "push", "mixed.h5", "repo=owner/mixed", "licence=CC-BY-4.0")
    assert f"licence: {recorded}; CC-BY-4.0" in output


def test_a_bundle_comes_back_with_the_same_bytes(
    site: HubStub, elsewhere: Path, printed: Says
) -> None:
    write_toy(Path("toy"))
    assert "licence: CC0" in printed("skill", "push", "toy", "repo=owner/toy")
    printed("skill", "pull", "hf://owner/toy", "out=copy")
    same(Path("toy"), Path("copy"), ("bundle.json", "policy.onnx", "golden.npz"))


def test_changed_weights_are_refused_and_the_earlier_commit_is_still_there(
    site: HubStub, elsewhere: Path, printed: Says, refused: Says
) -> None:
    printed("skill", "push", "anymal_b_gaits", "repo=owner/gaits")
    [commit] = site.repos["models/owner/gaits"]
    content = bytearray(site.files("models/owner/gaits")["module.safetensors"])
    content[-1] ^= 1
    site.commit("models/owner/gaits", {"module.safetensors": bytes(content)})
    assert "sha256" in refused("skill", "pull", "hf://owner/gaits")
    assert not any(elsewhere.iterdir())
    printed("skill", "pull", f"hf://owner/gaits@{commit}")
    assert "replace=true" in refused("skill", "pull", f"hf://owner/gaits@{commit}")


def test_no_code_and_no_pickle(
    site: HubStub, elsewhere: Path, printed: Says, refused: Says
) -> None:
    """Files of other names are not fetched; a pickle in place of weights is refused."""
    printed("skill", "push", "anymal_b_gaits", "repo=owner/gaits")
    site.commit("models/owner/gaits", {"module.py": b"exit(1)", "policy.pt": b"\x80"})
    printed("skill", "pull", "hf://owner/gaits", "out=good")
    assert not any(name in line for line in site.requests for name in ("module.py", "policy.pt"))

    weights = pickle.dumps({"encoder": [1.0]})
    files = site.files("models/owner/gaits")
    contract = json.loads(files["module.json"])
    contract["weights_sha256"] = sha256(weights).hexdigest()
    changed = {"module.json": json.dumps(contract).encode(), "module.safetensors": weights}
    card = files["README.md"]
    for name, content in changed.items():
        old, new = (sha256(content).hexdigest().encode() for content in (files[name], content))
        card = card.replace(old, new)
    site.commit("models/owner/gaits", {**changed, "README.md": card})
    assert "module.safetensors" in refused("skill", "pull", "hf://owner/gaits", "out=bad")
    assert not Path("bad").exists()


def test_a_card_that_hides_the_licence_is_refused(
    site: HubStub, elsewhere: Path, printed: Says, refused: Says
) -> None:
    printed("skill", "push", "go2_dog", "repo=owner/dog")
    card = site.files("models/owner/dog")["README.md"]
    site.commit("models/owner/dog", {"README.md": card.replace(b"- CC BY-NC 4.0", b"- MIT")})
    line = refused("skill", "pull", "hf://owner/dog")
    assert "CC BY-NC 4.0" in line and "MIT" in line
    for text, word in ((b"# A title", "metadata"), (b"---\nlicense: mit\n---\n", "npmp")):
        site.commit("models/owner/dog", {"README.md": text})
        assert word in refused("skill", "pull", "hf://owner/dog")
    assert not any(elsewhere.iterdir())


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
    same(Path("again"), Path("one"), ("module.json", "module.safetensors", "CARD.md"))
    assert "offline" in refused("skill", "pull", "hf://owner/two").lower()
    assert not site.requests


@pytest.mark.parametrize(
    ("target", "word"), [("anymal_b_trot", "licence="), ("go2", "go2_gaits"), (".", "module.json")]
)
def test_what_cannot_be_pushed(target: str, word: str, elsewhere: Path, refused: Says) -> None:
    assert word in refused("skill", "push", target, "repo=owner/name")
