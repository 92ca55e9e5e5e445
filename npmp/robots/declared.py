"""What a model declares, counted before MuJoCo reads it: a few words of XML can ask for hours or
for all memory.

MuJoCo expands composites, flexes and replicates while it parses, and opens whatever file is named.
So the text is gone through first, with the files that it includes, and what no robot needs is
refused.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers import expat

from mocap_data.errors import InputError
from mocap_data.outside import reading, regular_file

MAX_XML = 16 << 20  # bytes of a file; Menagerie's largest robot has 0.1 MB
MAX_ASSET = 256 << 20  # bytes of a mesh or texture
MAX_PIXELS = 1 << 24
MAX_DEPTH = 200  # of elements in one another
MAX_FILES = 64
MAX_ELEMENTS = 10_000  # replicates multiplied out; 20,000 shapes on one body compile for 23 s
# what the attributes' values, multiplied, may declare
_PRODUCTS = (
    ("composite", ("count",), 256),  # a cable of 1000 compiles for 42 s
    ("flexcomp", ("count",), 4096),  # 5 s
    ("hfield", ("nrow", "ncol"), MAX_PIXELS),
    ("texture", ("width", "height"), MAX_PIXELS),
    ("user", ("dim",), 1000),
)
_EACH = {"nsample": 1000, "memory": 1 << 30}  # of whatever element
_SIZES = 1_000_000  # of whatever <size> declares
_PREFIXES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50, "e": 1 << 60}


@dataclass
class _Seen:
    """What the files of one model say together."""

    main: Path
    files: int = 0
    open: tuple[Path, ...] = ()  # the chain of includes that leads to the one being read
    folders: set[str] = field(default_factory=lambda: {""})  # of assets
    assets: list[tuple[Path, str]] = field(default_factory=list)  # the file that names it, its name


def refuse_excess(mjcf: Path) -> None:
    """Look through an MJCF or URDF, what it includes and the sizes of its assets.

    Raises:
      InputError: for no regular file, no XML, files that include one another in a circle, assets
        that are no regular files, and for more of anything than a robot needs.
    """
    seen = _Seen(mjcf)
    _elements(mjcf, seen)
    for file, name in seen.assets:
        for path in _places(name, (seen.main.parent, file.parent), seen.folders):
            _refuse_asset(path)


def _elements(path: Path, seen: _Seen) -> int:
    """Elements of a file and all that it includes, replicates and attached models multiplied out."""
    if path.resolve() in seen.open:
        raise InputError(f"{path}: includes itself")
    seen.files += 1
    if seen.files > MAX_FILES:
        raise InputError(f"{seen.main}: includes more than {MAX_FILES} files")
    before, seen.open = seen.open, (*seen.open, path.resolve())
    text = regular_file(path, at_most=MAX_XML).read_bytes().removeprefix(b"\xef\xbb\xbf")
    count = _Counter(path, seen)
    # MuJoCo takes bytes as they come; names are turned back
    parser = expat.ParserCreate("iso-8859-1")
    parser.StartElementHandler, parser.EndElementHandler = count.start, count.end
    parser.EntityDeclHandler = count.entity
    try:
        with reading(path):
            parser.Parse(text, True)
    except InputError as error:
        if isinstance(error.__cause__, expat.ExpatError):
            raise InputError(f"{path}: not a valid MJCF: {error.__cause__}") from error
        raise
    seen.open = before
    return count.finish()


class _Counter:
    """Expat's handlers for one file."""

    def __init__(self, path: Path, seen: _Seen):
        self.path, self.seen = path, seen
        self.total = 0
        self.times = [1]  # how often each of the open elements stands in the model
        self.models: dict[str, int] = {}  # elements of the models to attach, by name
        self.attached: list[tuple[str, int]] = []

    def entity(self, name: str, *_: Any) -> None:
        raise InputError(f"{self.path}: declares the entity '{name:.40}'; MJCFs have none")

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        for key, value in attributes.items():
            try:
                value.encode("latin-1", "replace").decode("utf-8")
            except UnicodeDecodeError as error:  # MuJoCo's names are read as UTF-8
                raise InputError(f"{self.path}: {tag}'s {key} is not UTF-8") from error
        times = self.times[-1]
        if tag == "replicate":
            times *= max(1, int(_product(attributes.get("count", ""))))
        self.times.append(times)
        if len(self.times) > MAX_DEPTH:
            raise InputError(f"{self.path}: elements {MAX_DEPTH} deep in one another")
        self.add(times)
        self.hold(tag, attributes)
        if tag == "compiler":
            self.seen.folders |= {
                _name(attributes[key])
                for key in ("meshdir", "texturedir", "assetdir")
                if key in attributes
            }
        names = [_name(value) for key, value in attributes.items() if key.startswith("file")]
        if tag in ("include", "model"):
            for name in names:
                found = self.other(name)
                if tag == "include":
                    self.add(times * found)
                else:
                    self.models[attributes.get("name") or Path(name).stem] = found
        else:
            self.seen.assets += [(self.path, name) for name in names]
        if tag == "attach":
            self.attached.append((attributes.get("model", ""), times))

    def end(self, _: str) -> None:
        self.times.pop()

    def add(self, elements: int) -> None:
        self.total += elements
        if self.total > MAX_ELEMENTS:
            raise InputError(f"{self.path}: more than {MAX_ELEMENTS:,} elements")

    def other(self, name: str) -> int:
        """Elements of another file, the larger where two could be meant; 0 where none is there,
        which MuJoCo says."""
        places = _places(name, (self.path.parent, self.seen.main.parent), {""})
        return max((_elements(path, self.seen) for path in places), default=0)

    def hold(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Hold an element's numbers against what a robot needs."""
        for kind, keys, most in _PRODUCTS:
            if tag == kind:
                self.at_most(
                    tag, keys, math.prod(_product(attributes.get(key, "")) for key in keys), most
                )
        for key, value in attributes.items():
            if key in _EACH or tag == "size":
                self.at_most(tag, (key,), _product(value), _EACH.get(key, _SIZES))

    def at_most(self, tag: str, keys: tuple[str, ...], found: float, most: int) -> None:
        if found > most:
            raise InputError(
                f"{self.path}: {tag} of {' x '.join(keys)} {found:,.0f}; at most {most:,} are taken"
            )

    def finish(self) -> int:
        """All elements, once the whole file is read."""
        for model, times in self.attached:
            self.add(times * self.models.get(model, 0))
        return self.total


def _product(text: str) -> float:
    """Of the numbers in an attribute, each with a prefix perhaps; words that are none are MuJoCo's
    to refuse."""
    product = 1.0
    for word in text.split():
        factor = _PREFIXES.get(word[-1].lower(), 1)
        try:
            product *= max(1.0, float(word if factor == 1 else word[:-1] or "1") * factor)
        except ValueError:
            continue
    return product if math.isfinite(product) else float(2**63)


def _name(attribute: str) -> str:
    """A file's name from expat's Latin-1."""
    return os.fsdecode(attribute.encode("latin-1", "replace")).replace("\0", "")


def _places(name: str, bases: tuple[Path, ...], folders: set[str]) -> Iterator[Path]:
    """Where something of that name lies, of all the places where MuJoCo may look."""
    plain = name.partition("://")[2] or name  # of a URDF: package://
    tried = {
        base / folder / part
        for base in bases
        for folder in folders
        for part in (plain, Path(plain).name)
        if part
    }
    yield from sorted(path for path in tried if os.path.lexists(path) and not path.is_dir())


def _refuse_asset(path: Path) -> None:
    regular_file(path, at_most=MAX_ASSET)
    with path.open("rb") as file:
        start = file.read(24)
    if start.startswith(b"\x89PNG"):
        width, height = int.from_bytes(start[16:20], "big"), int.from_bytes(start[20:24], "big")
        if width * height > MAX_PIXELS:
            raise InputError(
                f"{path}: a picture of {width:,} x {height:,}; at most {MAX_PIXELS:,} pixels are taken"
            )
