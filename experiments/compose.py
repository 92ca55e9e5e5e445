"""From a command line to a command's typed settings.

The dataclass beside a command's run function is the one place of its keys: their defaults, their
types and, as the comment above a field, their help. A field made by `group` holds one of several
dataclasses of the library, chosen by name: algo=vmpo algo.passes=2. conf/ holds what differs from
them: conf/GROUP/NAME.yaml names a preset of a group; experiment= and sweep= name presets of whole
commands; debug=tiny is a table of small sizes. Under `for:` a preset says what differs for a
robot, a verb or an algorithm. The command line is read by Hydra's grammar of overrides; text and
paths are taken as they stand.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException

from mocap_data.errors import InputError, check_available, unknown
from mocap_data.safe_yaml import MAX_NUMBER
from npmp.core.settings import (
    as_plain,
    default_of,
    from_value,
    help_of,
    hints_of,
    shown,
    unknown_setting,
)
from npmp.experiments import groups
from npmp.experiments.inferred import inferred
from npmp.experiments.setting_files import CONF, Values, load

MULTIRUN = ("-m", "--multirun")
PRESETS = ("experiment", "sweep")  # choices that set keys of the whole command
Given = list[tuple[str, str]]  # keys and values as the command line has them, in its order


def group(default: str | None) -> Any:
    """A field that holds one of several dataclasses, chosen by name; `groups.GROUPS` lists them."""
    return field(default=None, metadata={"group": default})


@dataclass(frozen=True)
class Job:
    """One job of a command line: the settings of a command."""

    verb: str
    keys: type  # the command's dataclass
    values: Values
    name: str = ""  # in a sweep, "" for a single run
    number: int = 0  # in a sweep
    overrides: tuple[str, ...] = ()  # in a sweep: what it has for its own
    given: frozenset[str] = frozenset()  # keys that the command line names, and groups

    @functools.cached_property
    def config(self) -> Any:
        """The settings as the command's dataclass. Raises InputError for wrong ones."""
        return typed(self.verb, self.keys, self.values)

    @property
    def chosen(self) -> dict[str, str | None]:
        """The name of the choice of each group."""
        return {
            key: (self.values.get(key) or {}).get("name")
            for key in _fields(self.keys)
            if _is_group(self.keys, key)
        }


def jobs(verb: str, keys: type, given: Sequence[str], positional: Sequence[str] = ()) -> list[Job]:
    """What a command line asks for: one job, with -m one for each combination of values.

    Args:
      positional: keys whose values may stand without them; "runs*" takes all that follow.

    Raises:
      InputError: for what is no setting, an unknown key or choice, or a value of another type.
    """
    multirun = any(argument in MULTIRUN for argument in given)
    settings = split([argument for argument in given if argument not in MULTIRUN], positional)
    preset = CONF / "sweep" / f"{dict(settings).get('sweep', 'null')}.yaml"
    content = load(preset) if multirun and preset.is_file() else {}
    # keys with all combinations of their values, and settings that are tried one by one
    swept = {key: str(text) for key, text in content.get("grid", {}).items()}
    variants = [tuple(str(entry).split()) for entry in content.get("variants", [""])]
    named = {key for key, _ in settings}
    choices = [(key, _values_swept(key, text) if multirun else [text]) for key, text in settings]
    choices += [(key, _values_swept(key, text)) for key, text in swept.items() if key not in named]
    for key, values in choices:
        if key == "task" and key in _fields(keys):
            for name in values:
                groups.run_named_task(verb, _unquoted(name))
    several = {key for key, values in choices if len(values) > 1} | (swept.keys() - named)
    result: list[Job] = []
    for variant in variants:
        for combination in itertools.product(*(values for _, values in choices)):
            pairs = list(zip((key for key, _ in choices), combination, strict=True))
            own = (*variant, *(f"{key}={text}" for key, text in pairs if key in several))
            job = compose(verb, keys, pairs, variant=split(variant))
            name = ",".join(sorted(own)).replace("/", "_").replace("'", "") or str(len(result))
            if multirun:
                job = dataclasses.replace(job, name=name, number=len(result), overrides=own)
            result.append(job)
    return result


def compose(verb: str, keys: type, given: Given, *, variant: Given = ()) -> Job:  # type: ignore[assignment]
    """A job from what the command line says; variant: settings of a sweep's preset, below it.

    Raises:
      InputError: as `jobs`.
    """
    given = [*inferred(verb, keys, [*variant, *given]), *given]
    last = dict(given)
    stored = _stored(verb, last)
    fields = _fields(keys)
    names = {name: fields[name].metadata["group"] for name in fields if _is_group(keys, name)}
    presets: list[Values] = []
    for kind in ("sweep", "experiment"):  # a sweep may build on an experiment
        preset_name = last.get(kind, names.pop(kind, None) or "null")
        if preset_name != "null":
            presets.insert(0, preset := _preset(kind, verb, preset_name))
            for entry in preset.pop("defaults", ()):
                names |= {str(key).removeprefix("override /"): name for key, name in entry.items()}
    names |= {key: value and value["name"] for key, value in stored.items() if key in names}
    names |= {
        key: None if text == "null" else text for key, text in [*variant, *given] if key in names
    }

    values = defaults(keys)
    robot = _unquoted(last.get("robot", str(stored.get("robot", values.get("robot", "")))))
    # policies are judged and filmed under the pushes of their training
    judges = verb in ("evaluate", "render", "deploy export")
    trained = {"reuse"} if judges and last.get("policy", "null") != "null" else set()
    words = {verb, *verb.split(), Path(robot).name, str(names.get("algo")), *trained}
    for name, choice in names.items():
        values[name] = None if choice is None else group_values(verb, name, choice, words)
    for preset in presets:
        merge(values, with_deltas(preset, words))
    for key, text in variant:
        if key not in names:
            _set(verb, keys, values, key, text)
    if last.get("debug", "none") != "none":
        merge(values, small(verb, last["debug"], words))
    for key, value in stored.items():  # a group that is chosen anew has its own settings
        if key not in names or (value and value["name"]) == names[key]:
            values[key] = merge(values[key], value) if key in names and value else value
    for key, text in given:
        if key not in names and not (stored and key == "debug"):
            _set(verb, keys, values, key, text)
    return Job(verb, keys, values, given=frozenset(key for key, _ in given))


def typed(verb: str, keys: type, values: Values) -> Any:
    """Settings as the command's dataclass.

    Raises:
      InputError: for an unknown or missing key, a value of another type or out of range.
    """
    hints = hints_of(keys)
    fields = _fields(keys)
    arguments = {}
    for key, value in values.items():
        if key not in fields:
            raise InputError(f"npmp {verb} {unknown_setting(key, fields)}")
        if not _is_group(keys, key):
            arguments[key] = from_value(hints[key], value, key)
        elif value is not None:
            if not isinstance(value, dict) or not isinstance(value.get("name"), str):
                raise InputError(f"{key} must be a mapping with a name, got {shown(value)}")
            inner = {name: entry for name, entry in value.items() if name != "name"}
            arguments[key] = from_value(groups.schema_of(verb, key, value["name"]), inner, key)
    for key, entry in fields.items():
        if key not in arguments and default_of(entry) is MISSING:
            help_text = help_of(keys).get(key, "")
            raise InputError(
                f"npmp {verb} needs {key}=..." + (f" ({help_text})" if help_text else "")
            )
    try:
        return keys(**arguments)
    except (TypeError, ValueError) as error:  # includes InputError
        raise InputError(error) from error


def defaults(keys: type) -> Values:
    """The defaults of a command's own keys; those of groups are their choices'."""
    own = {key: default_of(e) for key, e in _fields(keys).items() if not _is_group(keys, key)}
    return {key: as_plain(value) for key, value in own.items() if value is not MISSING}


def merge(values: Values, other: Mapping[str, Any]) -> Values:
    """Nested mappings changed in place; an empty one leaves what is there."""
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(values.get(key), dict):
            merge(values[key], value)
        else:
            values[key] = merge({}, value) if isinstance(value, Mapping) else value
    return values


def with_deltas(preset: Values, words: Iterable[str]) -> Values:
    """A preset with what it says under `for:` of these robots, verbs or algorithms, in its order;
    "op3 reuse" asks for both."""
    merged = merge({}, {key: value for key, value in preset.items() if key != "for"})
    for condition, delta in preset.get("for", {}).items():
        if set(str(condition).split()) <= set(words):
            merge(merged, delta)
    return merged


def group_values(verb: str, kind: str, name: str, words: Iterable[str]) -> Values:
    """The settings of a choice, with its name. Raises InputError for one that there is not."""
    if not groups.is_file(name):
        check_available(kind, [name], groups.names(verb, kind))
    schema = groups.schema_of(verb, kind, name)
    path = Path(name) if groups.is_file(name) else groups.preset_file(kind, name)
    preset = with_bases(path) if path is not None else {}
    usual = as_plain(schema()) if isinstance(schema, type) else {}
    values = {key: value for key, value in usual.items() if key not in groups.HIDDEN.get(kind, ())}
    called = name if not groups.is_file(name) else str(preset.pop("name", Path(name).stem))
    return merge(values, with_deltas(preset, words)) | {"name": called}


def with_bases(path: Path) -> Values:
    """A preset on the presets that it names: `defaults: [paper]`."""
    preset = load(path)
    merged = Values()
    for base in preset.pop("defaults", ()):
        merge(merged, with_bases(path.with_name(f"{base}.yaml")))
    return merge(merged, preset)


def small(verb: str, name: str, words: Iterable[str]) -> Values:
    """What debug=NAME sets in a command."""
    path = CONF / "debug" / f"{name}.yaml"
    if not path.is_file():
        raise unknown("debug", name, ["none", *groups.presets("debug")])
    return with_deltas(load(path).get(verb, {}), words)


def stored_config(folder: Path) -> tuple[str | None, Values]:
    """FOLDER/config.yaml: the verb (None where it does not say) and its settings.

    Raises:
      InputError: when it cannot be read.
    """
    values = load(folder / "config.yaml")
    verb = values.pop("verb", None)
    return (None if verb is None else str(verb)), values


# --- the command line


def split(given: Sequence[str], positional: Sequence[str] = ()) -> Given:
    """Arguments as keys and values. Raises InputError for one that is no setting."""
    settings: Given = []
    free = list(positional)
    for argument in given:
        key, equals, text = argument.partition("=")
        is_path = "/" in key and Path(argument).exists()
        if argument.startswith("-"):
            raise InputError(
                f"no option {argument!r}; settings are key=value, options are --help, -m "
                "(sweep), --cfg (show)"
            )
        if argument.startswith("~"):
            raise InputError(f"{argument!r}: a key cannot be removed; give it a value, e.g. null")
        if free and (not equals or is_path or (free[0].endswith("*") and "/" in key)):
            taken = {name for name, _ in settings}
            free = [name for name in free if name.endswith("*") or name not in taken]
            if free:
                settings.append((free[0] if free[0].endswith("*") else free.pop(0), argument))
                continue
        if not equals or not re.fullmatch(r"\+{0,2}\w[\w./@:\-]*", key):
            raise InputError(f"{argument!r} is no setting; settings are key=value, e.g. seed=1")
        settings.append((key.lstrip("+"), text))
    for name in {key for key, _ in settings if key.endswith("*")}:
        # each as one value of Hydra's grammar
        every = [t.replace("\\", "\\\\").replace("'", "\\'") for key, t in settings if key == name]
        settings = [pair for pair in settings if pair[0] != name]
        settings.append((name.rstrip("*"), "[" + ",".join(f"'{text}'" for text in every) + "]"))
    return settings


def _unquoted(text: str) -> str:
    return text[1:-1] if text[:1] in "'\"" and text[:1] == text[-1:] and len(text) > 1 else text


def _values_swept(key: str, text: str) -> list[str]:
    """The values of a key under -m: those of a,b, range(...) and choice(...), else the one."""
    if "," not in text and "(" not in text:
        return [text]
    override = parsed(f"{key}={text}")
    if override is None:  # paths
        return [text] if set(text) & set("[('\"") else text.split(",")
    if not override.is_sweep_override():
        return [text]
    if not override.is_discrete_sweep() or text.startswith("glob"):
        raise InputError(f"{key}={text}: a,b or range(a,b) is expected without a sweeper")
    return list(override.sweep_string_iterator())


def parsed(argument: str) -> Override | None:
    """An argument as Hydra reads it; None for one that it cannot read."""
    try:
        return OverridesParser.create().parse_override(argument)
    except HydraException:
        return None


def parse(key: str, text: str, hint: Any = Any) -> Any:
    """The value that a command line gives for a key of this type.

    Raises:
      InputError: for what Hydra's grammar does not have.
    """
    if re.search(rf"\d{{{MAX_NUMBER},}}", text):
        raise InputError(f"{key}: a number of more than {MAX_NUMBER} digits")
    if text == "null":
        return None
    if _takes_text(hint) and text[:1] not in ("[", "'", '"'):
        return os.path.expanduser(text)
    try:
        override = OverridesParser.create().parse_override(f"key={text}")
        if override.is_sweep_override():
            raise InputError(
                f"{key}={text} holds a comma: a list is {key}=[{text}], one run per value is "
                f"-m {key}={text}"
            )
        value = _plain(override.value())
        parts = _parts(hint)
        whole = isinstance(value, float) and value.is_integer() and parts & {int, float} == {int}
        return int(value) if whole else value
    except HydraException as error:
        if _takes_text(hint, only=False) and text[:1] != "[":
            return os.path.expanduser(text)
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{key}={text}: cannot be read ({reason}); special characters need quotes: "
            f"\"{key}='value'\""
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, QuotedString | str):
        return os.path.expanduser(value if isinstance(value, str) else value.text)
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {str(_plain(name)): _plain(entry) for name, entry in value.items()}
    return value


def _parts(hint: Any) -> set[Any]:
    """The types of a union, or the one."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return set(typing.get_args(hint) if union else (hint,))


def _takes_text(hint: Any, *, only: bool = True) -> bool:
    """Whether a type takes text, and, with `only`, no numbers beside it."""
    if typing.get_origin(hint) is typing.Literal:
        return all(isinstance(entry, str) for entry in typing.get_args(hint))
    parts = _parts(hint)
    return bool(parts & {str, Path}) and not (only and parts & {int, float, bool})


def _set(verb: str, keys: type, values: Values, key: str, text: str) -> None:
    """Set a key, dotted below groups and dataclasses. Raises InputError for one that there is
    not."""
    parent, *rest = key.split(".")
    fields = _fields(keys)
    if parent not in fields:
        nested = [
            f"{name}.{parent}"
            for name in fields
            if isinstance(values.get(name), dict) and parent in values[name]
        ]
        raise InputError(
            f"npmp {verb} {unknown_setting(parent, fields, nested)}; npmp {verb} --help says more"
        )
    hint: Any = hints_of(keys)[parent]
    if _is_group(keys, parent):
        if not isinstance(values[parent], dict):
            raise InputError(
                f"{key}={text}: choose {parent}=NAME first; available: "
                f"{', '.join(groups.names(verb, parent))}"
            )
        hint = groups.schema_of(verb, parent, values[parent]["name"])
    place = values
    name = parent
    for part in rest:
        inner = _inner(hint)
        if inner is None:
            raise InputError(f"npmp {verb} has no key {key!r}: {name} holds no further keys")
        hidden = groups.HIDDEN.get(name, ()) if place is values else ()
        if part in hidden or (isinstance(inner, dict) and part not in inner):
            at = key.rpartition(".")[0]
            raise InputError(f"{at} {unknown_setting(part, [k for k in inner if k not in hidden])}")
        if not isinstance(place.get(name), dict):
            place[name] = {}
        place = place[name]
        name = part
        hint = inner[part] if isinstance(inner, dict) else inner
    value = parse(key, text, hint)
    if isinstance(value, dict) and isinstance(place.get(name), dict):
        merge(place[name], value)
    else:
        place[name] = value


def _inner(hint: Any) -> Any:
    """What a type holds: the types of a dataclass's fields, that of a mapping's values, or None."""
    for one in _parts(hint):
        if isinstance(one, type) and dataclasses.is_dataclass(one):
            return hints_of(one)
        if one is Any or (typing.get_origin(one) or one) in (dict, Mapping):
            return (typing.get_args(one) or (Any, Any))[1]
    return None


# --- presets, and runs to resume


def _preset(kind: str, verb: str, name: str) -> Values:
    """An experiment's or a sweep's settings, by its name or file. Raises InputError for none."""
    path = Path(_unquoted(name))
    if not groups.is_file(str(path)):
        check_available(kind, [name], groups.names(verb, kind))
        path = CONF / kind / f"{name}.yaml"
    aside = ("about", "verb", "variants", "grid")
    return {key: value for key, value in load(path).items() if key not in aside}


def _stored(verb: str, given: Mapping[str, str]) -> Values:
    """The settings of the run that resume= names; {} without. Raises InputError for another verb's,
    and for what a run that goes on cannot change."""
    if given.get("resume", "null") in ("null", ""):
        return {}
    folder = Path(os.path.expanduser(_unquoted(given["resume"])))
    if not (folder / "config.yaml").is_file():
        raise InputError(f"resume={folder}: no run folder (it has no config.yaml)")
    owner, stored = stored_config(folder)
    if owner not in (verb, None):
        raise InputError(
            f"resume={folder} is a run of npmp {owner}; npmp {verb} cannot continue it"
        )
    for key in PRESETS:
        if given.get(key, "null") != "null":
            raise InputError(
                f"{key}={given[key]} does not change resume={folder}, which has its own settings; "
                "give the keys to change"
            )
    if given.get("seed", str(stored.get("seed"))) != str(stored.get("seed")):
        raise InputError(
            f"seed={given['seed']} does not change resume={folder}, which goes on as seed "
            f"{stored['seed']} began"
        )
    return stored | {"out": str(folder), "debug": "none"}


# --- dataclasses


def _fields(keys: type) -> dict[str, dataclasses.Field[Any]]:
    return {entry.name: entry for entry in dataclasses.fields(keys) if entry.init}


def _is_group(keys: type, key: str) -> bool:
    return "group" in _fields(keys)[key].metadata
