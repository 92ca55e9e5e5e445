"""The packages that the page runs on: fetched once by npm, kept in the cache, and checked against
packages.json."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mocap_data.catalog import cache_folder
from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from mocap_data.outside import read_json_object, reading
from npmp.settings import from_mapping

PINNED = Path(__file__).with_name("packages.json")
MAX_BYTES = 256 << 20  # of a file in a package
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Package:
    """One of npm's packages, at one version."""

    name: str
    version: str
    integrity: str  # of its archive as npm writes it: sha512-BASE64
    licence: str  # SPDX
    files: dict[str, str]  # paths in the archive, and what they are called beside the page
    # the Python package that carries its licence's text, where its archive does not
    same_licence_as: str = ""

    @property
    def archive(self) -> str:
        """What npm calls its archive."""
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"


def pinned() -> list[Package]:
    """Those that packages.json names."""
    content = read_json_object(PINNED)
    return [
        from_mapping(Package, {"name": name, **entry}, at=f"{PINNED}: {name}")
        for name, entry in content.items()
    ]


def fetched(package: Package, cache: Path | None = None) -> dict[str, bytes]:
    """A package's files, by the names that they have beside the page.

    Args:
      cache: folder of archives; None: `npm` in the cache of all that is fetched (NPMP_CACHE).

    Raises:
      InputError: where npm is absent or cannot fetch it, or the archive is another than the pinned
        one.
    """
    folder = cache_folder() / "npm" if cache is None else cache
    path = folder / package.archive
    if not path.is_file():
        _fetch(package, path)
    with reading(path):
        content = path.read_bytes()
    if integrity(content) != package.integrity:
        raise InputError(
            f"'{path}' is not {package.name} {package.version} as pinned: its checksum differs; remove it, and it is "
            "fetched anew"
        )
    return _files(package, content, path)


def integrity(content: bytes) -> str:
    """A checksum as npm writes it."""
    return "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()


def _fetch(package: Package, path: Path) -> None:
    """Let npm put the archive at `path`, from whatever registry it is set up for."""
    what = f"{package.name}@{package.version}"
    instead = f"or put its archive to '{path}'"
    npm = shutil.which("npm")
    if npm is None:
        raise InputError(
            f"the page needs {what}, and there is no npm to fetch it: install Node.js, {instead}"
        )
    with tempfile.TemporaryDirectory() as folder:
        # --ignore-scripts: nothing of a package runs here
        options = (
            "--ignore-scripts",
            "--silent",
            "--fetch-retries=1",
            f"--pack-destination={folder}",
        )
        try:
            done = subprocess.run(
                [npm, "pack", what, *options],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InputError(
                f"npm could not fetch {what}: {error}; try again, {instead}"
            ) from error
        found = Path(folder) / package.archive
        if done.returncode or not found.is_file():
            why = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
            raise InputError(
                f"npm could not fetch {what} ({why:.200}); is its registry within reach? Else {instead[3:]}"
            )
        if integrity(content := found.read_bytes()) != package.integrity:
            raise InputError(
                f"npm fetched another {what} than the pinned one: its checksum differs"
            )
        with atomic_path(path) as temporary:
            temporary.write_bytes(content)


def _files(package: Package, content: bytes, path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with reading(path), tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for member in archive:
            name = package.files.get(member.name)
            file = archive.extractfile(member) if name is not None and member.isfile() else None
            if name is not None and file is not None and member.size <= MAX_BYTES:
                found[name] = file.read()
    if missing := set(package.files.values()) - set(found):
        raise InputError(f"'{path}' lacks {', '.join(sorted(missing))}")
    return found


def licences(package: Package) -> dict[str, bytes]:
    """Texts of a package's licence and of what it is made of, by file name; none where its archive
    has its own."""
    if not package.same_licence_as:
        return {}
    try:
        files = importlib.metadata.files(package.same_licence_as) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    texts = [
        file for file in files if file.name.upper().startswith(("LICENSE", "THIRDPARTYNOTICES"))
    ]
    return {
        f"{package.same_licence_as}-{file.name}": Path(str(file.locate())).read_bytes()
        for file in texts
    }
