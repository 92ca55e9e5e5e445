"""Trained artefacts that come with the package: folders of one kind, each with its card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mocap_data.errors import InputError
from mocap_data.outside import read_text


@dataclass(frozen=True)
class Registry:
    """Where artefacts of a kind are shipped, one in each folder of `place`."""

    place: Path
    kind: str  # what one is called in messages, "skill module"
    contract: str  # the file that makes a folder one, "module.json"
    card_name: str  # its card in Markdown, "CARD.md"
    maker: str = ""  # what writes a card, for messages

    def names(self) -> tuple[str, ...]:
        """Those that are shipped, sorted."""
        return tuple(sorted(path.parent.name for path in self.place.glob(f"*/{self.contract}")))

    def find(self, artefact: str | Path) -> Path:
        """The folder of a shipped one by its name; any other value is a folder already.

        Raises:
          InputError: for neither.
        """
        folder = Path(artefact)
        if folder.is_dir():
            return folder
        if str(artefact) in self.names():
            return self.place / str(artefact)
        shipped = ", ".join(self.names()) or "none"
        raise InputError(
            f"no {self.kind} '{artefact}': neither a folder nor one of those that are shipped ({shipped})"
        )

    def card(self, artefact: str | Path) -> str:
        """The card of a shipped one or of a folder.

        Raises:
          InputError: for an unknown one and for one without a card.
        """
        if str(artefact) not in self.names() and not Path(artefact).is_dir():
            word, shipped = self.kind.split()[-1], ", ".join(self.names()) or "none"
            raise InputError(f"no shipped {word} '{artefact}'; there are: {shipped}")
        path = self.find(artefact) / self.card_name
        if not path.is_file():
            maker = f"; {self.maker} writes one" if self.maker else ""
            raise InputError(f"no card in '{path.parent}': {self.card_name} is missing{maker}")
        return read_text(path)
