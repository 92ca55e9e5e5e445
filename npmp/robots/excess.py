"""What a model's XML declares, counted before MuJoCo reads it.

MuJoCo expands composites, flexes and replicates while it parses, and opens whatever file is named:
a few words can ask for hours, or for all memory. So the text is read first, with the files that it
includes, and what no robot needs is refused.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

from mocap_data.errors import InputError
from mocap_data.input_files import reading, regular_file

# bytes of a file; Menagerie's largest robot has 0.1 MB
MAX_XML = 16 << 20
# bytes of a mesh or texture
MAX_ASSET = 256 << 20
MAX_PIXELS = 1 << 24
# of elements in one another
MAX_DEPTH = 200
MAX_FILES = 64
# replicates multiplied out; 20,000 shapes on one body compile for 23 s
MAX_ELEMENTS = 10_000
# element -> attributes whose product is limited; a cable of 1000 compiles for 42 s
_PRODUCTS: dict[str, tuple[tuple[str, ...], int]] = {
    "composite": (("count",), 256),
    "flexcomp": (("count",), 4096),
    "hfield": (("nrow", "ncol"), MAX_PIXELS),
    "texture": (("width", "height"), MAX_PIXELS),
    "user": (("dim",), 1000),
}
# attributes of any element
_EACH = {"nsample": 1000, "memory": 1 << 30}
# whatever <size> declares
_SIZES = 1_000_000
# a tag and its quoted attributes, at once or not at all
_TAG = re.compile(rb"""<(?:[^<>"']|"[^"]*"|'[^']*')*+>""")
# how other tokens of XML begin and end
_TOKENS = ((b"<!--", b"-->"), (b"<![CDATA[", b"]]>"), (b"<?", b"?>"), (b"<!", b">"))
_NOT_A_NUMBER = re.compile(r"[-+]?nan(\(\w*\))?", re.IGNORECASE)
_PREFIXES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50, "e": 1 << 60}


def refuse_excess(path: Path) -> None:
    """Look through an MJCF or URDF, what it includes, and the sizes of its assets.

    Raises:
      InputError: for no regular file, no XML, files that include one another in a circle, assets
        that are no regular files, and for more of anything than a robot needs.
    """
    model = _Counter(path)
    model.read()
    for file, name in model.assets:
        for asset_path in places(name, (path.parent, file.parent), model.folders):
            regular_file(asset_path, at_most=MAX_ASSET)
            with asset_path.open("rb") as asset:
                start = asset.read(24)
            width, height = int.from_bytes(start[16:20], "big"), int.from_bytes(start[20:], "big")
            if start.startswith(b"\x89PNG") and width * height > MAX_PIXELS:
                raise InputError(
                    f"{asset_path}: a picture of {width:,} x {height:,}; at most {MAX_PIXELS:,} are"
                    " taken"
                )


def without_comments(text: bytes) -> bytes:
    """XML with spaces for its comments, line by line as long. MuJoCo ends a comment at the first
    "-->", XML forbids "--" within one; here as MuJoCo."""
    parts: list[bytes] = []
    start = 0
    while (tag := text.find(b"<", start)) >= 0:
        parts.append(text[start:tag])
        opened = next((pair for pair in _TOKENS if text.startswith(pair[0], tag)), None)
        if opened is None:
            match = _TAG.match(text, tag)
            stop = match.end() if match else -1
        else:
            end = text.find(opened[1], tag + len(opened[0]))
            stop = end + len(opened[1]) if end >= 0 else -1
        if stop < 0:
            # no token: XML's parser says what is wrong with it
            return b"".join((*parts, text[tag:]))
        comment = opened is not None and opened[0] == b"<!--"
        token = text[tag:stop]
        parts.append(re.sub(rb"[^\n]", b" ", token) if comment else token)
        start = stop
    return b"".join((*parts, text[start:]))


def xml_of(path: Path) -> ElementTree.Element:
    """The root element of an XML file, comments read as MuJoCo reads them."""
    return ElementTree.fromstring(without_comments(path.read_bytes()))


def places(name: str, bases: tuple[Path, ...], folders: set[str]) -> Iterator[Path]:
    """Files of that name, of all the places where MuJoCo may look; of package://NAME/FILE also in
    the folders above."""
    _, package, plain = name.rpartition("://")
    tried = {base / dir / p for base in bases for dir in folders for p in (plain, Path(plain).name)}
    if package:
        inner = Path(*Path(plain).parts[1:])
        tried |= {above / p for base in bases for above in base.parents for p in (plain, inner)}
    yield from sorted(path for path in tried if os.path.lexists(path) and not path.is_dir())


class _Counter:
    """One file of a model, `main` for the first: expat's handlers, and what they count."""

    def __init__(self, path: Path, included_by: _Counter | None = None):
        self.path, self.main, before = path, self, tuple[Path, ...]()
        if included_by is not None:
            self.main = included_by.main
            before = included_by.chain
        # the chain of includes that leads to this file
        self.chain: tuple[Path, ...] = (*before, path.resolve())
        if path.resolve() in before:
            raise InputError(f"{path}: includes itself")
        # of `main`, for all files: their number, where assets lie, and assets by the file that
        # names them, and their name
        self.files = 0
        self.folders = {""}
        self.assets = list[tuple[Path, str]]()
        self.total = 0
        self.closed = False
        # how often each of the open elements stands in the model
        self.times = [1]
        # elements of the models to attach, by name
        self.models: dict[str, int] = {}
        self.attached: list[tuple[str, int]] = []

    def read(self) -> int:
        """Elements of the file and all that it includes, replicates and attachments multiplied
        out."""
        self.main.files += 1
        if self.main.files > MAX_FILES:
            raise InputError(f"{self.main.path}: includes more than {MAX_FILES} files")
        raw = regular_file(self.path, at_most=MAX_XML).read_bytes()
        text = without_comments(raw.removeprefix(b"\xef\xbb\xbf"))
        # MuJoCo takes bytes as they come; names are turned back
        parser = expat.ParserCreate("iso-8859-1")
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.EntityDeclHandler = self.entity
        try:
            with reading(self.path):
                parser.Parse(text, True)
        except InputError as error:
            if not isinstance(error.__cause__, expat.ExpatError):
                raise
            if not self.closed:  # what follows the root element MuJoCo does not read
                raise InputError(f"{self.path}: not a valid MJCF: {error.__cause__}") from error
        for name, times in self.attached:
            self.add(times * self.models.get(name, 0))
        return self.total

    def entity(self, name: str, *_: Any) -> None:
        raise InputError(f"{self.path}: declares the entity '{name:.40}'; MJCFs have none")

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        for key, value in attributes.items():
            try:
                value.encode("latin-1", "replace").decode("utf-8")
            except UnicodeDecodeError as error:  # MuJoCo's names are read as UTF-8
                raise InputError(f"{self.path}: {tag}'s {key} is not UTF-8") from error
            if key != "name" and any(map(_NOT_A_NUMBER.fullmatch, value.split())):
                called = f" '{attributes['name']}'" if attributes.get("name") else ""
                raise InputError(
                    f"{self.path}: {tag}{called}: {key}={value!r:.60}: must be numbers; nan is none"
                )
        if tag.startswith("xacro:"):
            raise InputError(f"{self.path}: a xacro template; {EXPAND}")
        times = self.times[-1]
        if tag == "replicate":
            times *= max(1, int(_product(attributes.get("count", ""))))
        self.times.append(times)
        if len(self.times) > MAX_DEPTH:
            raise InputError(f"{self.path}: elements {MAX_DEPTH} deep in one another")
        self.add(times)
        self.limit(tag, attributes)
        if tag == "compiler":
            dirs = ("meshdir", "texturedir", "assetdir")
            self.main.folders |= {_name(attributes[key]) for key in dirs if key in attributes}
        names = [_name(value) for key, value in attributes.items() if key.startswith("file")]
        if tag == "include":
            self.add(times * sum(map(self.other, names)))
        elif tag == "model":
            self.models |= {
                attributes.get("name") or Path(name).stem: self.other(name) for name in names
            }
        else:
            self.main.assets += [(self.path, name) for name in names if name]
        if tag == "attach":
            self.attached.append((attributes.get("model", ""), times))

    def end(self, _: str) -> None:
        self.times.pop()
        self.closed = len(self.times) == 1

    def add(self, elements: int) -> None:
        self.total += elements
        if self.total > MAX_ELEMENTS:
            raise InputError(f"{self.path}: more than {MAX_ELEMENTS:,} elements")

    def other(self, name: str) -> int:
        """Elements of another file, the larger where two could be meant; 0 where none is there,
        which MuJoCo says."""
        paths = places(name, (self.path.parent, self.main.path.parent), {""}) if name else ()
        return max((_Counter(path, self).read() for path in paths), default=0)

    def limit(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Refuse an element whose numbers are beyond what a robot needs."""
        limits = [_PRODUCTS[tag]] if tag in _PRODUCTS else []
        limits += [((key,), most) for key, most in _EACH.items() if key in attributes]
        limits += [((key,), _SIZES) for key in attributes if tag == "size" and key not in _EACH]
        for keys, most in limits:
            product = math.prod(_product(attributes.get(key, "")) for key in keys)
            if product > most:
                what = f"{tag} of {' x '.join(keys)} {product:,.0f}"
                raise InputError(f"{self.path}: {what}; at most {most:,} are taken")


EXPAND = "expand it first, with ROS: xacro ROBOT.xacro > robot.urdf"


def _product(text: str) -> float:
    """The numbers in an attribute, multiplied, each with a prefix perhaps; MuJoCo refuses words."""
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
