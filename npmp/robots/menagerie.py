"""Where a robot.yaml's `mjcf:` lies: a path, or `menagerie:FOLDER/FILE.xml`, a model of MuJoCo
Menagerie.

The models come through the package `mujoco-menagerie` (the extra `menagerie`), which downloads one
at its first use and keeps it in a cache; the environment variable MENAGERIE_ROOT names a checkout
to use instead, with or without the package.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from mocap_data.errors import InputError, importing, one_line

PREFIX = "menagerie:"
ROOT = "MENAGERIE_ROOT"


def locate(reference: str, folder: Path) -> Path:
    """The file that `mjcf: reference` in a robot.yaml of this folder means; of a model of
    Menagerie, downloaded if need be.

    Raises:
      InputError: for a model of Menagerie that is not there or cannot be had. Whether the file
        exists is not looked at.
    """
    if not reference.startswith(PREFIX):
        path = Path(reference).expanduser()
        # the folder may be still to be made
        return (folder / path).resolve() if ".." in path.parts else folder / path
    model, file = _split(reference)
    if root := os.environ.get(ROOT):
        path = Path(root) / model
        if not path.is_dir():
            raise InputError(f"{reference}: no folder '{model}' under {ROOT}={root}")
        return path / file
    how = "install the extra (pip install 'npmp[menagerie]')"
    needs = f"needs the package mujoco-menagerie; {how} or let {ROOT} name a checkout"
    with importing(f"{reference}: {needs} of MuJoCo Menagerie"):
        import mujoco_menagerie
    try:
        return Path(mujoco_menagerie.get(model).path()) / file
    except (mujoco_menagerie.MenagerieError, OSError) as error:
        instead = f"{ROOT} can name a checkout of MuJoCo Menagerie instead"
        raise InputError(f"{reference}: {one_line(error)}; {instead}") from error


def model_file(reference: str) -> Path:
    """As `locate`, from this folder. Raises InputError for a folder of models, too."""
    path = locate(reference, Path())
    if path.is_dir():
        models = sorted(file for kind in ("*.xml", "*.urdf") for file in path.glob(kind))
        example = f", e.g. {models[0]}" if models else ""
        raise InputError(f"{reference} is a folder; the model's file is expected{example}")
    return path


def at_hand(reference: str) -> bool:
    """Whether the file of a reference can be had without a download. Never touches the network."""
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
    """How robot.yaml in a folder names the model: as one of Menagerie where it is one; by the way
    from the folder where they share one that is not the root, so that both can be moved together;
    else by its absolute path.
    """
    root = os.environ.get(ROOT)
    if target.startswith(PREFIX):
        return target
    if root and path.resolve().is_relative_to(Path(root).resolve()):
        return PREFIX + path.resolve().relative_to(Path(root).resolve()).as_posix()
    path = path.resolve()
    folder = folder.resolve()
    shared = path.anchor == folder.anchor and os.path.commonpath([path, folder]) != path.anchor
    return Path(os.path.relpath(path, folder)).as_posix() if shared else str(path)
