"""Help texts: of all verbs, of a verb's actions, and of a command's keys."""

from __future__ import annotations

import dataclasses
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npmp.core.settings import as_text, default_of, help_of, plain_fields

Row = tuple[str, str]

OVERVIEW = Path(__file__).with_name("overview.txt")
SOURCES = (
    "sources of values: [P] robot-NPMP (Bohez et al. 2022), [P*] the paper at second hand, [R] "
    "related work, [D] our decision."
)


def overview() -> str:
    """The text of `npmp --help`."""
    return OVERVIEW.read_text(encoding="utf-8").rstrip()


def of_verb(verb: str, commands: Mapping[str, Any]) -> str:
    """The text of `npmp VERB --help` for a verb with actions; commands: by full name."""
    rows = [(name.partition(" ")[2], _about(command.keys)) for name, command in commands.items()]
    more = f"npmp {verb} ACTION --help lists its keys."
    return "\n".join([f"usage: npmp {verb} ACTION key=value ...", "", *_rows(rows), "", more])


def of_command(name: str, command: Any, arguments: Sequence[str] = ()) -> str:
    """The text of `npmp VERB ACTION --help`: with a choice (algo=vmpo) its keys, with a key
    (algo.passes) this key only."""
    from npmp.experiments import store
    from npmp.experiments.application import composed
    from npmp.experiments.command import NOW

    keys = command.keys
    fields = dataclasses.fields(keys)
    groups = (*store.groups_of(keys), *store.GLOBAL)
    places = "".join(
        f" {key.upper()}" if key[-1] != "*" else f" {key[:-1].upper()} ..."
        for key in command.positional
    )
    usage = f"usage: npmp {name}{places} key=value ..."
    lines = [*_wrap(f"npmp {name}: {_about(keys)}"), "", usage]
    text = map(str.strip, (keys.__doc__ or "").splitlines())
    if examples := [line for line in text if line.startswith("npmp ")]:
        lines += ["", "examples:", *(f"  {example}" for example in examples)]
    help_texts = help_of(keys)
    key_names = tuple(word for word in arguments if word.partition(".")[0] in help_texts)
    job = composed(command, [word for word in arguments if word not in key_names])
    rows = []
    choices = []
    inner = []
    inner_rows = []
    for field in sorted(fields, key=lambda field: field.name in ("out", "seed", "device", "debug")):
        value = job.values[field.name]
        if field.name == "out" and "out" not in job.overridden:
            value = default_of(field) and str(default_of(field)).replace(NOW, "DATE_TIME")
        if field.name not in groups:
            rows += _settings(field.name, field, value, help_texts.get(field.name, ""))
            continue
        listed = store.names(name, field.name)
        preset = value["name"] if isinstance(value, dict) else value
        description = f"{help_texts.get(field.name, '')}; one of: {', '.join(listed)}".lstrip("; ")
        choices.append((f"{field.name}={_shown(preset)}", description))
        if isinstance(value, dict) and field.name != "scenario":
            schema = store.schema_of(name, field.name, value["name"])
            inner += ["", f"keys of {field.name}={preset}: {_about(schema)}"]
            in_group = _inner(field.name, schema, value)
            if field.name == "task" and store.has_terms(keys, schema):
                in_group.append(("task.rewards.NAME.weight", "weight of a reward term"))
            inner += _rows(in_group)
            inner_rows += in_group
    if key_names:
        every = [*rows, *choices, *inner_rows]
        return "\n".join(_rows([row for row in every if row[0].startswith(key_names)]))
    lines += ["", "keys (??? is required):", *_rows(rows)]
    if choices:
        lines += ["", "choices:", *_rows(choices), *inner]
    if any(tag in line for line in lines for tag in ("[P", "[R", "[D")):
        lines += ["", *_wrap(SOURCES)]
    lines += ["", f"npmp {name} --cfg job key=value ... prints all settings instead of running."]
    return "\n".join(lines)


def _settings(key: str, field: dataclasses.Field[Any], value: Any, help_text: str) -> list[Row]:
    """A key with its value and help; for a nested dataclass each of its keys."""
    default = default_of(field)
    if not dataclasses.is_dataclass(default) or not isinstance(value, dict):
        return [(f"{key}={_shown(value)}", help_text)]
    # below a choice it is a heading, even without help
    head = [(f"{key}.", help_text)] if help_text or "." in key else []
    return head + _inner(key, type(default), value)


def _inner(at: str, schema: type, values: Mapping[str, Any]) -> list[Row]:
    """The keys of a dataclass below a place."""
    help_texts = help_of(schema)
    rows = (
        _settings(f"{at}.{field.name}", field, values[field.name], help_texts.get(field.name, ""))
        for field in plain_fields(schema).values()
        if field.name in values
    )
    return [row for several in rows for row in several]


def _shown(value: Any) -> str:
    """A value as text, "..." for a long one."""
    text = as_text(value)
    return text if len(text) < 40 else "..."


def _about(schema: Any) -> str:
    """The first paragraph of a class's docstring."""
    text = (getattr(schema, "__doc__", None) or "").split("\n\n")[0].partition("Raises:")[0]
    return " ".join(text.split())


def _width() -> int:
    return min(shutil.get_terminal_size((100, 24)).columns, 120)


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, min(_width(), 100), break_long_words=False)


def _rows(rows: Sequence[Row]) -> list[str]:
    """Two columns, the second wrapped."""
    width = _width()
    lines = []
    left = min(max((len(name) for name, _ in rows), default=0), 34)
    for name, text in rows:
        wrapped = textwrap.wrap(text, max(30, width - left - 4)) or [""]
        if len(name) > left:
            lines.append(f"  {name}")
            name = ""
        lines.append(f"  {name:<{left}}  {wrapped[0]}".rstrip())
        lines.extend(f"  {'':<{left}}  {line}" for line in wrapped[1:])
    return lines
