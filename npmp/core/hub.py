"""Folders on the Hugging Face Hub: upload, download, card and checksums. Needs the extra hub."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mocap_data.errors import InputError, importing, one_line
from mocap_data.input_files import read_text, reading, regular_file
from mocap_data.safe_yaml import MAX_YAML_BYTES, parse_yaml
from npmp.core.artifact import sha256

CARD = "README.md"
# in the format of sha256sum
SUMS = "SHA256SUMS"
NEEDED = "the Hub needs huggingface_hub: pip install 'npmp[hub]'"
_NAME = r"[A-Za-z0-9_][\w.-]*"
_ADDRESS = re.compile(rf"hf://(datasets/)?({_NAME}/{_NAME})(?:@([\w./-]+))?", re.ASCII)
_METADATA = re.compile(rb"---\r?\n(.*?)\r?\n---[ \t]*\r?\n(?:\r?\n)?(.*)", re.DOTALL)


@dataclass(frozen=True)
class Address:
    """A repository of the Hub: hf://OWNER/NAME of a model, hf://datasets/OWNER/NAME of a dataset;
    @REVISION selects a branch, a tag or a commit."""

    # OWNER/NAME
    repo: str
    # "model" or "dataset"
    type: str = "model"
    # None: the main branch
    revision: str | None = None

    @staticmethod
    def parse(text: str) -> Address:
        """The address in a text. Raises InputError."""
        parts = _ADDRESS.fullmatch(text)
        if parts is None:
            raise InputError(
                f"no address of the Hub: {text!r:.200}; expected hf://OWNER/NAME or "
                "hf://datasets/OWNER/NAME, and @REVISION if not the newest"
            )
        return Address(parts[2], "dataset" if parts[1] else "model", parts[3])

    @property
    def name(self) -> str:
        """The repository's name without its owner."""
        return self.repo.partition("/")[2]

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf://{'datasets/' * (self.type == 'dataset')}{self.repo}{revision}"


def upload(folder: Path, address: Address, message: str) -> str:
    """Upload a folder's files in one commit; the repository is created if it is missing. Returns
    the commit's address. Raises InputError, also for an error of the Hub."""
    with importing(NEEDED):
        from huggingface_hub import CommitOperationAdd, HfApi
    _bars_on_terminals_only()
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    with _errors_of(address):
        additions = [CommitOperationAdd(name, folder / name) for name in sorted(names)]
        api = HfApi(library_name="npmp")
        api.create_repo(address.repo, repo_type=address.type, exist_ok=True)
        commit = api.create_commit(
            address.repo, additions, commit_message=message, repo_type=address.type
        )
        return str(commit.commit_url)


def download(address: Address, names: Sequence[str]) -> Path:
    """The folder of a commit in the Hub's cache, with these files; its name is the commit's.

    No other file is fetched. With HF_HUB_OFFLINE=1 they must be in the cache.

    Raises:
      InputError: for a missing file or an error of the Hub.
    """
    with importing(NEEDED):
        from huggingface_hub import snapshot_download
    _bars_on_terminals_only()
    with _errors_of(address):
        fetched = snapshot_download(
            address.repo,
            repo_type=address.type,
            revision=address.revision,
            allow_patterns=list(names),
            library_name="npmp",
        )
    folder = Path(fetched)
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise InputError(
            f"{address} lacks {', '.join(missing)}; expected a repository of npmp skill push"
        )
    return folder


def _bars_on_terminals_only() -> None:
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()


@contextmanager
def _errors_of(address: Address) -> Iterator[None]:
    """Turn any exception of huggingface_hub into an InputError."""
    try:
        yield
    except Exception as error:
        raise InputError(f"{address}: {one_line(error)}") from error


def write_card(folder: Path, metadata: Mapping[str, Any], text: bytes) -> None:
    """Write a card: the Hub's metadata as YAML, and the text unchanged."""
    head = yaml.safe_dump(dict(metadata), sort_keys=False, allow_unicode=True)
    (folder / CARD).write_bytes(f"---\n{head}---\n\n".encode() + text)


def read_card(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Metadata and text of a card. Raises InputError for a card without metadata."""
    path = regular_file(folder / CARD, at_most=MAX_YAML_BYTES)
    parts = _METADATA.fullmatch(path.read_bytes())
    with reading(path):
        metadata = parse_yaml(parts[1].decode(), str(path)) if parts else None
    if parts is None or not isinstance(metadata, dict):
        raise InputError(f"'{path}': expected metadata between two lines of ---")
    return metadata, parts[2]


def write_sums(folder: Path, names: Sequence[str]) -> None:
    """Write the SHA-256 of a folder's files to SHA256SUMS."""
    lines = [f"{sha256(folder / name)}  {name}\n" for name in names]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def check_sums(folder: Path, names: Sequence[str]) -> None:
    """Compare files with SHA256SUMS. Raises InputError for the first that differs or is absent
    there."""
    lines = read_text(folder / SUMS, at_most=MAX_YAML_BYTES).splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for name in names:
        if sha256(regular_file(folder / name)) != sums.get(name):
            raise InputError(
                f"'{folder / name}': sha256 differs from that in {SUMS}; delete this folder of the "
                "cache and pull again"
            )
