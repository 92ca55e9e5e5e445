"""Help texts, read from the comments of conf/*.yaml, so that a key is described where its value
stands.

The first comment lines of a file describe it; lines "# Example: ..." are examples; a key's own
comment follows its value. A choice that only some verbs can use says so in a line "# for: VERB,
VERB".
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CONF = Path(__file__).parent.parent / "conf"

OVERVIEW = Path(__file__).with_name("overview.txt")

# What may stand without its key, as the usage line of a verb shows it.
POSITIONAL = {
    "inspect": " FILE", "bench": " NAME", "retarget": " [FILE]", "robots": " [ACTION [TARGET]]",
    "data": " [ACTION [TARGET]]", "export": " [FILE]", "bundle": " check FOLDER",
    "compare": " RUN ...", "modules": " [ACTION [TARGET]]",
    "policies": " [ACTION [TARGET]]", "skill": " ACTION MODULE",
    "sweeps": " ACTION [SWEEP]", "deploy": " BUNDLE", "compare-logs": " FIRST SECOND", "new": " task|robot NAME",
}  # fmt: skip

_KEY = re.compile(r"^(?P<key>\w+):(?:\s+(?P<value>\S.*?))??(?:\s+#\s*(?P<comment>.*))?$")
_DEFAULT = re.compile(r"^\s+-\s+(?P<group>\w+):\s*(?P<choice>\w+)\s*$")

_NOW = re.compile(r"\$\{now:[^}]*\}")
_TAG = re.compile(r"\[(P\*?|R|D)[\],:;]")
SOURCES = (
    "[P] robot-NPMP (Bohez et al. 2022), [P*] that paper at second hand, [R] a related paper or code, [D] our own "
    "decision."
)


@dataclass(frozen=True)
class Key:
    """One configuration key as its file shows it."""

    name: str
    value: str
    comment: str


@dataclass(frozen=True)
class ConfigText:
    """What one configuration file says about itself."""

    description: str
    examples: tuple[str, ...]
    defaults: dict[str, str]  # group -> choice
    keys: tuple[Key, ...]
    verbs: tuple[str, ...] = ()  # that can use the choice; () for all


def parse(text: str) -> ConfigText:
    """Read a configuration file's comments, defaults list and keys (those of a section as
    "section.key")."""
    description: list[str] = []
    section = ""  # the key whose indented keys follow
    examples: list[str] = []
    defaults: dict[str, str] = {}
    keys: list[Key] = []
    verbs: tuple[str, ...] = ()
    for line in text.splitlines():
        if line.startswith("#"):
            comment = line.lstrip("# ").strip()
            if comment.startswith("@package") or keys:
                continue
            if comment.startswith("for:"):
                verbs = tuple(comment.removeprefix("for:").replace(",", " ").split())
            elif comment.startswith("Example:"):
                examples.append(comment.removeprefix("Example:").strip())
            elif not defaults:
                description.append(comment)
        elif entry := _DEFAULT.match(line):
            defaults[entry["group"]] = entry["choice"]
        elif key := _KEY.match(line.strip()):
            inner = line.startswith(" ")
            if not inner:
                section = "" if key["value"] else key["key"]
                if section == "defaults" or (section and not key["comment"]):
                    continue
            name = f"{section}.{key['key']}" if inner else key["key"]
            keys.append(Key(name, key["value"] or "", key["comment"] or ""))
        # an indented comment goes on with the last key's
        elif keys and (more := re.match(r"^\s+#\s*(.*)$", line)):
            last = keys[-1]
            keys[-1] = Key(last.name, last.value, f"{last.comment} {more[1]}".strip())
    return ConfigText(" ".join(description), tuple(examples), defaults, tuple(keys), verbs)


def module_of(verb: str) -> str:
    """The module of a verb: that of compare-logs is npmp.experiments.compare_logs."""
    return f"npmp.experiments.{verb.replace('-', '_')}"


def of_file(path: Path) -> ConfigText:
    return parse(path.read_text(encoding="utf-8"))


def choices(group: str, verb: str | None = None) -> list[str]:
    """The names of a group's files, with `verb` only of those that it can use."""
    paths = sorted((CONF / group).glob("*.yaml"))
    if verb is not None:
        paths = [path for path in paths if verb in (of_file(path).verbs or (verb,))]
    return [path.stem for path in paths]


def summary(verb: str) -> str:
    """A verb's first sentence."""
    path = CONF / f"{verb}.yaml"
    return of_file(path).description if path.exists() else ""


def _rows(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Two columns, the second wrapped."""
    left = min(max((len(name) for name, _ in rows), default=0), 34)
    lines = []
    for name, text in rows:
        wrapped = textwrap.wrap(text, max(30, width - left - 4)) or [""]
        if len(name) > left:
            lines.append(f"  {name}")
            name = ""
        lines.append(f"  {name:<{left}}  {wrapped[0]}".rstrip())
        lines.extend(f"  {'':<{left}}  {line}" for line in wrapped[1:])
    return lines


def _setting(key: Key) -> str:
    """A key with its default; where that is a long expression, the comment says what it comes to."""
    value = _NOW.sub("DATE_TIME", key.value)
    return f"{key.name}={value}" if len(value) < 24 else f"{key.name}="


def _overlays(verb: str, group: str) -> list[str]:
    """Folders of files that say otherwise, or more, for this verb, of the same choice of a group."""
    text = (CONF / f"{verb}.yaml").read_text(encoding="utf-8")
    return re.findall(
        rf"^\s+- optional ({group}/\w+)@{group}: \$\{{{group}\}}$", text, re.MULTILINE
    )


def _width() -> int:
    return min(shutil.get_terminal_size((100, 24)).columns, 120)


def overview(verbs: Sequence[str]) -> str:
    """What `npmp --help` prints."""
    rows = _rows([(verb, summary(verb)) for verb in verbs], _width())
    return OVERVIEW.read_text(encoding="utf-8").rstrip().replace("VERBS", "\n".join(rows))


def of_verb(verb: str) -> str:
    """What `npmp VERB --help` prints."""
    width = _width()
    text = of_file(CONF / f"{verb}.yaml")
    positional = POSITIONAL.get(verb, "")
    described = textwrap.wrap(
        f"npmp {verb}: {text.description}", min(width, 100), break_long_words=False
    )
    lines = [*described, "", f"usage: npmp {verb}{positional} key=value ..."]
    if text.examples:
        lines += ["", "examples:", *(f"  {example}" for example in text.examples)]
    rows = [(_setting(key), key.comment) for key in text.keys]
    lines += ["", "keys (??? must be given):", *_rows(rows, width)]
    groups = {group: choice for group, choice in text.defaults.items() if (CONF / group).is_dir()}
    if groups:
        shown = []
        for group, choice in groups.items():
            names = choices(group, verb)
            each = [
                f"{name} ({of_file(CONF / group / f'{name}.yaml').description})" for name in names
            ]
            if names:
                shown.append((f"{group}={choice}", "one of: " + "; ".join(each)))
        lines += ["", "choices:", *_rows(shown, width)]
    for group, choice in groups.items():
        path = CONF / group / f"{choice}.yaml"
        if group in ("debug", "experiment", "sweep") or not path.exists():
            continue
        files = [path, *(CONF / place / f"{choice}.yaml" for place in _overlays(verb, group))]
        # the later file's hold
        keys = {key.name: key for file in files if file.exists() for key in of_file(file).keys}
        inner = [(f"{group}.{key.name}={key.value}", key.comment) for key in keys.values()]
        lines += ["", f"keys of {group}={choice}:", *_rows(inner, width)]
    if _TAG.search("\n".join(lines)):
        lines += ["", *textwrap.wrap(f"where a value comes from: {SOURCES}", width)]
    lines += [
        "",
        f"npmp {verb} --cfg job key=value ... prints the whole configuration instead of running it.",
    ]
    return "\n".join(lines)
