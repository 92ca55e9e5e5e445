"""The shipped artefacts of a kind: folders, each with a card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mocap_data.errors import InputError, unknown
from mocap_data.input_files import read_json, read_text


@dataclass(frozen=True)
class Registry:
    """The artefacts of a kind, one in each subfolder of `folder`."""

    folder: Path
    # name of the kind in messages, "skill module"
    kind: str
    # file of the contract, "module.json"
    contract: str
    # file of the card, "CARD.md"
    card_name: str
    # command that writes a card, for messages
    maker: str = ""

    def names(self) -> tuple[str, ...]:
        """The names of the shipped artefacts, sorted."""
        return tuple(sorted(path.parent.name for path in self.folder.glob(f"*/{self.contract}")))

    def find(self, artefact: str | Path) -> Path:
        """The folder of an artefact by its path or shipped name; a local folder with a contract has
        precedence. Raises InputError."""
        folder = Path(artefact)
        if str(artefact) in self.names() and not (folder / self.contract).is_file():
            return self.folder / str(artefact)
        if folder.is_dir():
            return folder
        shipped = ", ".join(self.names()) or "none"
        raise InputError(
            f"no {self.kind} '{artefact}': neither a folder nor shipped; shipped: {shipped}"
        )

    def contract_text(self, artefact: str | Path, key: str) -> str | None:
        """A text entry of an artefact's contract; None if it cannot be read."""
        try:
            content = read_json(self.find(artefact) / self.contract)
        except (InputError, OSError):
            return None
        text = content.get(key) if isinstance(content, dict) else None
        return text if isinstance(text, str) else None

    def of_robot(self, robot: str, ending: str = "") -> list[str]:
        """The shipped artefacts of a robot whose names have an ending, the shortest first."""
        names = [name for name in self.names() if self.contract_text(name, "robot") == robot]
        return sorted((name for name in names if name.endswith(ending)), key=len)

    def card(self, artefact: str | Path) -> str:
        """The card of a shipped artefact or of a folder. Raises InputError if it is missing."""
        if str(artefact) not in self.names() and not Path(artefact).is_dir():
            raise unknown(f"shipped {self.kind.split()[-1]}", artefact, self.names())
        path = self.find(artefact) / self.card_name
        if not path.is_file():
            maker = f"; {self.maker} writes one" if self.maker else ""
            raise InputError(f"no card in '{path.parent}': {self.card_name} is missing{maker}")
        return read_text(path)
