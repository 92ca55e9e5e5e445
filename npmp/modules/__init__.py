"""Skill modules that come with the package, each a folder with its model card, CARD.md."""

from __future__ import annotations

from pathlib import Path

from mocap_data.errors import InputError
from mocap_data.outside import read_text

_PACKAGE = Path(__file__).resolve().parent


def names() -> tuple[str, ...]:
    """The shipped modules, sorted."""
    return tuple(sorted(path.parent.name for path in _PACKAGE.glob("*/module.json")))


def find(module: str | Path) -> Path:
    """The folder of a shipped module by its name; any other value is a folder already.

    Raises:
      InputError: for neither.
    """
    folder = Path(module)
    if folder.is_dir():
        return folder
    if str(module) in names():
        return _PACKAGE / str(module)
    shipped = ", ".join(names()) or "none"
    raise InputError(f"no skill module '{module}': neither a folder nor one of those that are shipped ({shipped})")


def card(module: str | Path) -> str:
    """The model card of a shipped module or of a module's folder: data, command, steps, scores, limits.

    Raises:
      InputError: for an unknown module and for one without a card.
    """
    if str(module) not in names() and not Path(module).is_dir():
        raise InputError(f"no shipped module '{module}'; there are: {', '.join(names()) or 'none'}")
    path = find(module) / "CARD.md"
    if not path.is_file():
        raise InputError(f"no card in '{path.parent}': CARD.md is missing; npmp modules add writes one")
    return read_text(path)
