"""The parts of a page, and writing it with the templates of `templates/`.

The page is one file that fetches nothing, enforced by its content security policy. All text is
escaped by the templates; no module writes HTML.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mocap_data.errors import InputError
from mocap_data.files import atomic_path, json_text
from npmp.view.report.provenance import machine_summary, scrub, versions

HERE = Path(__file__).parent
FOOTER = "This page is one file and needs no network."
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
FOOT_CSS = ("lf", "rf", "lh", "rh")


# ---- text


def visible(value: object) -> str:
    """Text with control characters and lone surrogates, which SVG and HTML forbid, replaced."""
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return "".join(c if c >= " " or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def number(value: object, digits: int = 3) -> str:
    """A number with `digits` significant digits, grouped thousands, and no exponent from 1e-4 to
    1e9; n/a if not finite.

    >>> number(0.012345), number(1234567.0), number(float("nan")), number(12.0)
    ('0.0123', '1,234,567', 'n/a', '12')
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return str(value)
    x = float(value)
    if not math.isfinite(x):
        return "n/a"
    if x == 0:
        return "0"
    size = abs(x)
    if size < 1e-4 or size >= 1e9:
        mantissa, exponent = f"{x:.{digits - 1}e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    text = f"{x:,.{max(0, digits - 1 - math.floor(math.log10(size)))}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "\N{MINUS SIGN}")


def foot_labels(names: Sequence[str]) -> list[str]:
    """Names of feet in charts: their bodies' names without a common ending."""
    labels = [name.split("_") for name in names]
    while len(labels) > 1 and all(len(label) > 1 for label in labels):
        if len({label[-1].lower() for label in labels}) > 1:
            break
        labels = [label[:-1] for label in labels]
    return ["_".join(label) for label in labels]


def scrubbed(value: Any, folder: Path) -> Any:
    """`scrub` applied to all strings in mappings and lists."""
    if isinstance(value, Mapping):
        return {scrub(str(key), folder): scrubbed(entry, folder) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrubbed(entry, folder) for entry in value]
    plain = value is None or isinstance(value, (bool, int, float))
    return value if plain else scrub(str(value), folder)


# ---- parts of a section; templates/parts.html has a macro for each class


@dataclass(frozen=True)
class Paragraph:
    """A paragraph (css: lead, note-line), a heading (css: h3), or preformatted text (css: pre)."""

    text: str
    css: str = "lead"


@dataclass(frozen=True)
class Chart:
    """An SVG under its caption; legend: (name, CSS class)."""

    title: str
    unit: str
    svg: Markup
    legend: Sequence[tuple[str, str]] = ()
    wide: bool = False


@dataclass(frozen=True)
class Charts:
    """Charts side by side, three in a row where `small`."""

    charts: Sequence[Chart]
    small: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell of a table. value: to sort by, if it is a number. wrap: lines may break."""

    text: str
    value: float | None = None
    bad: bool = False
    wrap: bool = False

    @classmethod
    def of(cls, value: float, decimals: int, *, bad: bool = False) -> Cell:
        """A number with so many decimals; a dash if it is not finite."""
        return cls(f"{value:,.{decimals}f}" if math.isfinite(value) else "–", float(value), bad)


Row = Sequence["str | Cell"]


@dataclass(frozen=True)
class Table:
    """Rows under headings. last: summary rows, kept at the end. sortable: by a click on a heading.
    meanings: tooltips of headings."""

    columns: Sequence[str]
    rows: Sequence[Row]
    last: Sequence[Row] = ()
    sortable: bool = False
    meanings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Bar:
    """One horizontal bar: value, text at its end, CSS class, and an interval and a mark on the same
    scale."""

    label: str
    value: float
    text: str
    css: str = "robot"
    interval: tuple[float, float] | None = None
    mark: float | None = None


@dataclass(frozen=True)
class Bars:
    """Horizontal bars; `full` is the value of the full width, drawn as a light track."""

    title: str
    bars: Sequence[Bar]
    full: float | None = None
    unit: str = ""

    def share(self, value: float) -> float | None:
        """A value in per cent of `full` or the longest bar; None if it is not finite."""
        if not math.isfinite(value):
            return None
        finite = [bar.value for bar in self.bars if math.isfinite(bar.value)]
        most = self.full if self.full is not None else max(finite, default=1.0)
        return round(100 * min(max(value / most if most > 0 else 0.0, 0.0), 1.0), 2)


@dataclass(frozen=True)
class Fold:
    """Parts that unfold under a summary. screen: not printed."""

    summary: str
    parts: Sequence[Any]
    detail: str = ""
    is_open: bool = False
    screen: bool = False


@dataclass(frozen=True)
class Definitions:
    """Names and values; `code`: names whose value is set as code."""

    entries: Sequence[tuple[str, str]]
    code: Sequence[str] = ()


@dataclass(frozen=True)
class BulletList:
    """A list of lines."""

    entries: Sequence[str]


@dataclass(frozen=True)
class Picture:
    """An image. source: a data: URL; text: its alternative text."""

    source: str
    text: str
    css: str = "plot"


@dataclass(frozen=True)
class ReplayPlayer:
    """The 3-D replay and its controls. data: of `replay.pack`; feet: their names; ghost, recording:
    whether clips have one; end: the badge after a clip's tracked frames."""

    data: Mapping[str, Any]
    feet: Sequence[str]
    ghost: bool = False
    recording: bool = False
    end: str = "lost"


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading and an entry in the navigation."""

    key: str
    title: str
    parts: Sequence[Any]


# ---- the page


def asset(name: str) -> Markup:
    """The content of a style sheet or script."""
    return Markup((HERE / "assets" / name).read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates, with escaping."""
    jinja_env = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    jinja_env.filters |= {"number": number, "kind": lambda part: type(part).__name__.lower()}
    jinja_env.globals |= {"asset": asset, "FOOT_CSS": FOOT_CSS, "FOOTER": FOOTER, "POLICY": POLICY}
    jinja_env.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return jinja_env


def assemble(
    out: Path,
    *,
    title: str,
    subtitle: str = "",
    notes: Sequence[str] = (),
    cards: Sequence[tuple[str, str, str]] = (),
    sections: Sequence[Section | None] = (),
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write a page atomically and return its path.

    cards: (label, value, caption) at the top. provenance: the last section, by default versions and
    machine; absolute paths are removed here and in the subtitle.
    """
    if provenance is None:
        provenance = {"versions": versions(), "machine": machine_summary()}
    every = (*sections, _provenance(provenance, out.parent))
    present = [section for section in every if section is not None]
    replay = any(isinstance(part, ReplayPlayer) for section in present for part in section.parts)
    # the charts must listen before the replay sends events
    scripts = ["page.js", "tables.js", *(["replay.js"] if replay else [])]
    template = environment().get_template("page.html")
    subtitle = scrub(subtitle, out.parent)
    text = template.render(
        title=title, subtitle=subtitle, notes=notes, cards=cards, sections=present, scripts=scripts
    )
    with atomic_path(out) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
    return out


def _provenance(provenance: Mapping[str, Any], folder: Path) -> Section | None:
    """Short values as definitions, long ones in folds."""
    terms: list[tuple[str, str]] = []
    blocks: list[Fold] = []
    for key, raw in provenance.items():
        value = scrubbed(raw, folder)
        name = str(key).replace("_", " ")
        nested = isinstance(value, dict | list)
        if isinstance(value, dict) and len(value) <= 16 and not _has_parts(value.values()):
            terms.append((name, " · ".join(f"{k} {v}" for k, v in value.items())))
        elif isinstance(value, list) and not _has_parts(value):
            terms.append((name, ", ".join(map(str, value))))
        elif nested or "\n" in str(value):
            text = json_text(value, indent=2, ensure_ascii=False) if nested else str(value)
            blocks.append(Fold(name, [Paragraph(text, "pre")], screen=nested))
        else:
            terms.append((name, str(value)))
    if not provenance:
        return None
    definitions = [Definitions(terms, code=("command",))] if terms else []
    return Section("provenance", "Provenance", [*definitions, *blocks])


def _has_parts(values: Iterable[Any]) -> bool:
    return any(isinstance(value, dict | list) for value in values)


def is_report(path: Path) -> bool:
    """Whether a file is a page written by `assemble`."""
    try:
        return FOOTER in path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def check_replaceable(path: Path, key: str) -> None:
    """Raise InputError for a folder, or another file than a report, which is not overwritten. key:
    the setting of the file."""
    if path.is_dir():
        raise InputError(f"{key}={path}: is a folder, expected a file name or null")
    if path.exists() and not is_report(path):
        raise InputError(
            f"{key}={path}: is no report of npmp and is not overwritten; set another file or null"
        )
    if not path.parent.is_dir():
        raise InputError(f"{key}={path}: no folder {path.parent}")
