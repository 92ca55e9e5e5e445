"""Addresses, cards and checksums of the Hub; the extra hub is not needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pytest import MonkeyPatch

from npmp.core import hub
from npmp.core.hub import Address
from tests.refusals import refusal


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("hf://owner/go2_walk", Address("owner/go2_walk")),
        ("hf://datasets/owner/dog.v2", Address("owner/dog.v2", "dataset")),
        ("hf://owner/walk@refs/pr/3", Address("owner/walk", revision="refs/pr/3")),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert Address.parse(text) == address and str(address) == text


@pytest.mark.parametrize(
    "text", ["owner/walk", "hf://walk", "hf://owner/..", "hf://owner/walk/policy.json", "hf://a/b@"]
)
def test_other_addresses_are_refused(text: str) -> None:
    assert "hf://OWNER/NAME" in refusal("", Address.parse, text)


@pytest.mark.parametrize("text", [b"# Walk\n", b"\n---\nlines\r\n", b"", "# \u00e4".encode()])
def test_the_text_of_a_card_is_kept(text: bytes, tmp_path: Path) -> None:
    metadata = {"license": "mit", "npmp": {"kind": "policy", "licences": ["MIT: \u00e4"]}}
    hub.write_card(tmp_path, metadata, text)
    assert hub.read_card(tmp_path) == (metadata, text)


def test_a_card_edited_on_the_hub_is_read(tmp_path: Path) -> None:
    (tmp_path / hub.CARD).write_bytes(b"---\r\nlicense: mit\r\n---\r\n# Walk")
    assert hub.read_card(tmp_path) == ({"license": "mit"}, b"# Walk")


@pytest.mark.parametrize("card", [b"# Walk", b"---\n- a\n---\n", b"---\na: &x 1\nb: *x\n---\n"])
def test_a_card_without_metadata_is_refused(card: bytes, tmp_path: Path) -> None:
    (tmp_path / hub.CARD).write_bytes(card)
    refusal(hub.CARD, hub.read_card, tmp_path)


def test_the_sums_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"b")
    hub.write_sums(tmp_path, ["a"])
    # of "abc": the first example of FIPS 180-2
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert (tmp_path / hub.SUMS).read_text() == f"{digest}  a\n"
    hub.check_sums(tmp_path, ["a"])
    refusal("b", hub.check_sums, tmp_path, ["a", "b"])


def test_an_absent_extra_is_named(monkeypatch: MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refusal(r"npmp\[hub\]", hub.download, Address("owner/walk"), [hub.CARD])
    refusal(r"npmp\[hub\]", hub.upload, tmp_path, Address("owner/walk"), "Upload")
