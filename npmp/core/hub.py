"""Folders on the Hugging Face Hub: addresses, upload, download, cards. Needs the extra hub."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from mocap_data.errors import InputError, importing, one_line
from mocap_data.input_files import reading, regular_file
from mocap_data.safe_yaml import MAX_YAML_BYTES, parse_yaml

if TYPE_CHECKING:
    from huggingface_hub import HfUri

CARD = "README.md"
# names of licences on the Hub; others are "other" with a name
LICENCES = (
    *("apache-2.0", "mit", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0"),
    *("cc-by-nc-4.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0", "cc-by-nc-nd-4.0"),
)
_METADATA = re.compile(rb"---\r?\n(.*?)\r?\n---[ \t]*\r?\n(?:\r?\n)?(.*)", re.DOTALL)


@contextmanager
def _library(address: str) -> Iterator[Any]:
    """huggingface_hub: an InputError if it is absent or a call fails, bars only on a terminal."""
    with importing("the Hub needs huggingface_hub: pip install 'npmp[hub]'"):
        import huggingface_hub.utils
    if not sys.stderr.isatty():
        huggingface_hub.utils.disable_progress_bars()
    try:
        yield huggingface_hub
    except Exception as error:
        raise InputError(f"{address}: {one_line(error)}") from error


def parse(address: str) -> HfUri:
    """A model or dataset by its address, hf://OWNER/NAME or hf://datasets/OWNER/NAME, with
    @REVISION if not the newest. Raises InputError."""
    with _library(address) as library:
        uri = library.parse_hf_uri(address)
    if uri.type not in ("model", "dataset") or uri.path_in_repo:
        raise InputError(f"{address}: expected hf://OWNER/NAME or hf://datasets/OWNER/NAME")
    return uri


def upload(folder: Path, uri: HfUri, message: str) -> str:
    """Upload a folder's files in one commit; the repository is created if it is missing. Returns
    the commit's URL. Raises InputError, also for an error of the Hub."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    with _library(uri.to_uri()) as library:
        api = library.HfApi(library_name="npmp")
        api.create_repo(uri.id, repo_type=uri.type, exist_ok=True)
        commit = api.create_commit(
            uri.id,
            [library.CommitOperationAdd(name, folder / name) for name in sorted(names)],
            commit_message=message,
            repo_type=uri.type,
            revision=uri.revision,
        )
        return str(commit.commit_url)


def download(uri: HfUri, names: Sequence[str]) -> Path:
    """The folder of a commit in the Hub's cache, with these files; its name is the commit's. No
    other file is fetched. Raises InputError for a missing file or an error of the Hub."""
    with _library(uri.to_uri()) as library:
        fetched = library.snapshot_download(
            uri.id,
            repo_type=uri.type,
            revision=uri.revision,
            allow_patterns=list(names),
            library_name="npmp",
        )
    folder = Path(fetched)
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise InputError(
            f"{uri.to_uri()} lacks {', '.join(missing)}; expected the files of npmp skill push"
        )
    return folder


def licence_metadata(licences: Sequence[str]) -> dict[str, str]:
    """The Hub's metadata of licences: "CC BY-NC 4.0 (LAFAN1)" is cc-by-nc-4.0."""
    plain = [re.sub(r" \([^()]*\)$", "", licence) for licence in licences]
    name = "; ".join(dict.fromkeys(plain))
    name = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
    return {"license": name} if name in LICENCES else {"license": "other", "license_name": name}


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
