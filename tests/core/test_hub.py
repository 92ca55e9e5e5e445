"""Addresses and cards of the Hub."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pytest import MonkeyPatch

from npmp.core import hub
from tests.refusals import refusal


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("hf://owner/go2_walk", ("model", "owner/go2_walk", None)),
        ("hf://datasets/owner/dog.v2@v1", ("dataset", "owner/dog.v2", "v1")),
    ],
)
def test_addresses(address: str, parts: tuple[str, str, str | None]) -> None:
    pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    uri = hub.parse(address)
    assert (uri.type, uri.id, uri.revision) == parts


@pytest.mark.parametrize(
    "address",
    ["owner/walk", "hf://walk", "hf://owner/..", "hf://a/b/policy.json", "hf://spaces/a/b"],
)
def test_other_addresses_are_refused(address: str) -> None:
    pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    refusal(address, hub.parse, address)


@pytest.mark.parametrize(
    ("licences", "name"),
    [
        (["Apache-2.0", "Apache-2.0 (generated)"], "apache-2.0"),
        (["CC BY-NC 4.0 (LAFAN1)"], "cc-by-nc-4.0"),
        (["CC BY 4.0 (a)", "CC BY 4.0 (b)"], "cc-by-4.0"),
    ],
)
def test_a_licence_without_its_remark(licences: list[str], name: str) -> None:
    assert hub.licence_metadata(licences) == {"license": name}


def test_several_licences_are_another_one() -> None:
    several = {"license": "other", "license_name": "apache-2.0-cc-by-nc-4.0"}
    assert hub.licence_metadata(["Apache-2.0 (generated)", "CC BY-NC 4.0"]) == several


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


def test_an_absent_extra_is_named(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refusal(r"npmp\[hub\]", hub.parse, "hf://owner/walk")
