"""The file of a robot.yaml's `mjcf:`, a path or `menagerie:FOLDER/FILE.xml` of MuJoCo Menagerie.

The package `mujoco-menagerie` (the extra `menagerie`) downloads a model at its first use and caches
it. The environment variable MENAGERIE_ROOT names a checkout to use instead.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from mocap_data.errors import InputError, importing, one_line

PREFIX = "menagerie:"
ROOT = "MENAGERIE_ROOT"


def locate(reference: str, folder: Path) -> Path:
    """The file of `mjcf: reference` in a robot.yaml of this folder, which may be absent; a model of
    Menagerie is downloaded if needed.

    Raises:
      InputError: for a model of Menagerie that is not in the checkout or cannot be downloaded.
    """
    if not reference.startswith(PREFIX):
        path = Path(reference).expanduser()
        # the folder may not exist yet
        return (folder / path).resolve() if ".." in path.parts else folder / path
    model, file = _split(reference)
    if root := os.environ.get(ROOT):
        path = Path(root) / model
        if not path.is_dir():
            raise InputError(f"{reference}: no folder '{model}' under {ROOT}={root}")
        return path / file
    install = "pip install 'npmp[menagerie]'"
    with importing(f"{reference} needs mujoco-menagerie: {install}, or set {ROOT} to a checkout"):
        import mujoco_menagerie
    try:
        return Path(mujoco_menagerie.get(model).path()) / file
    except (mujoco_menagerie.MenagerieError, OSError) as error:
        raise InputError(
            f"{reference}: {one_line(error)}; or set {ROOT} to a checkout of MuJoCo Menagerie"
        ) from error


def model_file(reference: str) -> Path:
    """As `locate`, from the working folder. Raises InputError also for a folder."""
    path = locate(reference, Path())
    if path.is_dir():
        models = sorted(file for kind in ("*.xml", "*.urdf") for file in path.glob(kind))
        example = f", e.g. {models[0]}" if models else ""
        raise InputError(f"{reference} is a folder; expected the model's file{example}")
    return path


def is_cached(reference: str) -> bool:
    """Whether a reference's file can be read without a download."""
    if not reference.startswith(PREFIX):
        return True
    model, file = _split(reference)
    if root := os.environ.get(ROOT):
        return (Path(root) / model / file).is_file()
    try:
        import mujoco_menagerie
    except ImportError:
        return False
    try:
        return bool(mujoco_menagerie.Cache().is_cached(mujoco_menagerie.get(model)))
    except mujoco_menagerie.MenagerieError:
        return False


def _split(reference: str) -> tuple[str, str]:
    """Folder and file of `menagerie:FOLDER/FILE.xml`."""
    parts = PurePosixPath(reference.removeprefix(PREFIX)).parts
    if len(parts) < 2 or ".." in parts or parts[0] == "/":
        raise InputError(
            f"{reference}: expected {PREFIX}FOLDER/FILE.xml,"
            f" e.g. {PREFIX}anybotics_anymal_c/anymal_c.xml"
        )
    return parts[0], str(PurePosixPath(*parts[1:]))


def reference_to(target: str, path: Path, folder: Path) -> str:
    """The `mjcf:` of a robot.yaml in a folder: `menagerie:` for a model of Menagerie; a relative
    path where both share a folder other than the root, so that they can move together; else the
    absolute path."""
    root = os.environ.get(ROOT)
    if target.startswith(PREFIX):
        return target
    if root and path.resolve().is_relative_to(Path(root).resolve()):
        return PREFIX + path.resolve().relative_to(Path(root).resolve()).as_posix()
    path = path.resolve()
    folder = folder.resolve()
    shared = path.anchor == folder.anchor and os.path.commonpath([path, folder]) != path.anchor
    return Path(os.path.relpath(path, folder)).as_posix() if shared else str(path)
