"""From a command line to a command's typed settings, through Hydra.

`store` fills Hydra's ConfigStore from the dataclass of a command's keys. `Loader` is Hydra's loader
of configs, which also reads defaults from the inputs (the robot of a module, the task of a policy,
the settings of a run to resume) and reports Hydra's errors in one line. `typed` then checks types
and ranges.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, ClassVar

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.defaults_list import DefaultsList
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.core.utils import setup_globals
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from mocap_data.errors import InputError, unknown
from mocap_data.input_files import read_text
from mocap_data.safe_yaml import MAX_NUMBER, MAX_YAML_BYTES
from mocap_data.store import robot_of
from npmp.core import plugins
from npmp.core.registry import Registry
from npmp.core.settings import (
    default_of,
    format_value,
    from_value,
    help_of,
    hints_of,
    read_run_settings,
    unknown_setting,
)
from npmp.deploy.policy_description import is_external
from npmp.experiments import store
from npmp.skills import modules, policies

Values = dict[str, Any]

version.setbase("1.3")
REGISTRIES: Mapping[str, Registry] = {"module": modules.REGISTRY, "policy": policies.REGISTRY}
# commands that try a policy under the pushes of its training
TRIES = ("evaluate", "render", "deploy export")
MISSING_TEXT = "???"


@dataclass(frozen=True)
class Job:
    """The settings of one run of a command."""

    verb: str
    # the command's dataclass
    keys: type
    values: Values
    # keys and groups that the command line sets
    overridden: frozenset[str] = frozenset()

    @functools.cached_property
    def config(self) -> Any:
        """The settings as the command's dataclass. Raises InputError for wrong ones."""
        return typed(self.verb, self.keys, self.values)

    @property
    def chosen(self) -> dict[str, str | None]:
        """The name of the choice of each group."""
        groups = store.groups_of(self.keys)
        names = {key: (self.values.get(key) or {}).get("name") for key in groups}
        if (task := names.get("task")) is not None:
            names["task"] = store.base_task(task)
        return names

    @classmethod
    def of(cls, verb: str, keys: type, config: DictConfig) -> Job:
        """From a composed config. Raises InputError for one that cannot be resolved."""
        with sentences(verb):
            own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
            values: Any = OmegaConf.to_container(own, resolve=True)
        if (owner := values.pop("verb", verb)) != verb:
            raise InputError(f"npmp {verb} takes no config of npmp {owner} (verb: {owner})")
        hints = hints_of(keys)
        for key, value in values.items():
            if (
                isinstance(value, float)
                and value.is_integer()
                and hints.get(key) in (int, int | None)
            ):
                values[key] = int(value)  # 1e6 for 1000000
        choices = config.hydra.runtime.choices
        for key in store.GLOBAL:
            if isinstance(values.get(key), dict):
                raise InputError(
                    f"{key}={choices[key]}: its file must begin with '# @package _global_'"
                )
        values |= {key: choices[key] for key in store.GLOBAL if choices.get(key) and key in values}
        overridden = [parsed(entry).key_or_group for entry in config.hydra.overrides.task]
        return cls(verb, keys, {str(k): v for k, v in values.items()}, frozenset(overridden))


def compose(verb: str, keys: type, overrides: Sequence[str] = ()) -> Job:
    """The job of a command line in Hydra's grammar. Raises InputError."""
    setup_globals()
    loader = Loader(verb, keys)
    config = loader.load_configuration(store.config_name(verb), list(overrides), RunMode.RUN)
    return Job.of(verb, keys, config)


def typed(verb: str, keys: type, values: Mapping[str, Any]) -> Any:
    """Settings as the command's dataclass.

    Raises:
      InputError: for an unknown or missing key, a value of another type or out of range.
    """
    hints = hints_of(keys)
    fields = {entry.name: entry for entry in dataclasses.fields(keys) if entry.init}
    groups = store.groups_of(keys)
    arguments = {}
    for key, value in values.items():
        if key not in fields:
            raise InputError(f"npmp {verb} {unknown_setting(key, fields)}")
        if value == MISSING_TEXT:
            continue
        if key not in groups:
            arguments[key] = from_value(hints[key], value, key)
        elif value is not None:
            if not isinstance(value, dict) or not isinstance(value.get("name"), str):
                raise InputError(f"{key} must be a mapping with a name, got {format_value(value)}")
            inner = {name: entry for name, entry in value.items() if name != "name"}
            schema = store.schema_of(verb, key, value["name"])
            if key == "task" and store.has_terms(keys, schema):
                inner.pop("rewards", None)
            arguments[key] = from_value(schema, inner, key)
    for key, entry in fields.items():
        if key not in arguments and key not in groups and default_of(entry) is MISSING:
            raise InputError(needed(verb, keys, key))
    try:
        return keys(**arguments)
    except (TypeError, ValueError) as error:  # includes InputError
        raise InputError(error) from error


def needed(verb: str, keys: type, key: str) -> str:
    """The message for a key that is missing."""
    help_text = help_of(keys).get(key, "")
    return f"npmp {verb} needs {key}=..." + (f" ({help_text})" if help_text else "")


# --- overrides


@functools.cache
def parsed(override: str) -> Override:
    """An override in Hydra's grammar. Raises InputError."""
    if re.search(rf"\d{{{MAX_NUMBER},}}", override):
        raise InputError(f"{override.partition('=')[0]}: a number of more than {MAX_NUMBER} digits")
    with sentences():
        return OverridesParser.create().parse_overrides([override])[0]


def simple_values(overrides: Sequence[str]) -> Values:
    """The keys that overrides set to one value each."""
    result = Values()
    for override in map(parsed, overrides):
        if override.is_sweep_override() or override.is_delete():
            result.pop(override.key_or_group, None)
            continue
        value = override.value()
        result[override.key_or_group] = value.text if isinstance(value, QuotedString) else value
    return result


def quoted(text: str) -> str:
    """Text as one value of Hydra's grammar."""
    plain = re.fullmatch(r"[A-Za-z_./][\w./-]*", text, re.ASCII)
    if plain and text.lower() not in ("null", "true", "false", "nan", "inf"):
        return text
    text = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + match[2].replace("'", "\\'"), text)
    return f"'{text}'"


def with_keys(arguments: Sequence[str], positional: Sequence[str]) -> list[str]:
    """Arguments as overrides: those without a key are values of the positional keys, in order;
    "runs*" takes all that follow. Raises InputError for more of them."""
    overrides = []
    free = list(positional)
    several: list[str] = []
    for argument in arguments:
        key, equals, _ = argument.partition("=")
        # a path with "=" in the name of a folder
        is_path = "/" in key and Path(argument).exists()
        if not key.strip("+~"):
            raise InputError(f"{argument!r} is no setting; settings are key=value, e.g. seed=1")
        if argument.startswith(("~", "+")) or (equals and not is_path):
            overrides.append(argument)
            free = [name for name in free if name != key]
        elif free and free[0].endswith("*"):
            several.append(quoted(argument))
        elif free:
            overrides.append(f"{free.pop(0)}={quoted(argument)}")
        else:
            raise InputError(f"{argument!r} is no setting; settings are key=value, e.g. seed=1")
    if several:
        overrides.append(f"{free[0].rstrip('*')}=[{','.join(several)}]")
    return overrides


# --- defaults from the inputs


def inputs_of(verb: str, keys: type, overrides: Sequence[str]) -> store.InputDefaults:
    """Defaults from the files that overrides name: the robot of a module, a policy or a dataset,
    the task of a policy, the settings of a run to resume."""
    values = simple_values(overrides)
    names = {entry.name for entry in dataclasses.fields(keys)}
    paths = {
        key: Path(os.path.expanduser(value))
        for key, value in values.items()
        if isinstance(value, str)
    }
    stored = _stored(verb, values) if "resume" in names else None
    decided: Values = {}
    choices: dict[str, str | None] = {}
    if "robot" in names and stored is None:
        artefacts = [key for key in REGISTRIES if key in paths and key in names]
        robots = [REGISTRIES[key].contract_text(paths[key], "robot") for key in artefacts]
        if not any(robots) and "data" in paths and "data" in names:
            robots.append(robot_of(paths["data"]))
        decided = {"robot": next(filter(None, robots))} if any(robots) else {}
    if verb in ("evaluate", "render") and "policy" in paths:
        task: str | None = "walk"
        if not is_external(paths["policy"]):
            task = REGISTRIES["policy"].contract_text(paths["policy"], "task")
        choices |= {"task": task} if task else {}
    if stored is not None:
        for key in store.groups_of(keys).keys() & stored.keys():
            choice = (stored[key] or {}).get("name")
            choices[key] = choice if key in ("task", "algo") else store.PLAIN.get(key, choice)
        kept = {
            k: v
            for k, v in stored.items()
            if k not in choices or values.get(k, choices[k]) == choices[k]
        }
        for key in {"task", "algo"} & kept.keys():
            kept[key] = {name: value for name, value in kept[key].items() if name != "name"}
        if "task" in kept:
            kept["task"] = store.todays_task(verb, choices["task"], kept["task"])
        stored = kept
    default = {entry.name: default_of(entry) for entry in dataclasses.fields(keys)}.get("robot", "")
    robot = values.get("robot") or (stored or {}).get("robot") or decided.get("robot") or default
    tried = verb in TRIES and "policy" in paths
    context = {
        "robot": Path(str(robot)).name or "none",
        "stage": "reuse" if tried else verb.split()[0],
        "verb": store.config_name(verb),
    }
    return store.InputDefaults(decided, choices, context, stored)


def _stored(verb: str, values: Mapping[str, Any]) -> Values | None:
    """The settings of the run that resume= names; None without. Raises InputError for another
    command's, and for what a run that goes on cannot change."""
    if values.get("resume") in (None, ""):
        return None
    folder = Path(os.path.expanduser(str(values["resume"])))
    if not (folder / "config.yaml").is_file():
        raise InputError(f"resume={folder}: no run folder (it has no config.yaml)")
    if "${" in read_text(folder / "config.yaml", at_most=MAX_YAML_BYTES):
        raise InputError(f"{folder / 'config.yaml'}: refers to other values by ${{...}}")
    owner, stored = read_run_settings(folder)
    if owner not in (verb, None):
        raise InputError(
            f"resume={folder} is a run of npmp {owner}; npmp {verb} cannot continue it"
        )
    for key in ("experiment", "sweep"):
        if values.get(key) is not None:
            raise InputError(
                f"{key}={values[key]} does not change resume={folder}, which has its own settings; "
                "set the keys to change"
            )
    if values.get("seed", stored.get("seed")) != stored.get("seed"):
        raise InputError(
            f"seed={values['seed']} does not change resume={folder}, which goes on as seed "
            f"{stored['seed']} began"
        )
    return stored | {"out": str(folder), "debug": "none"}


# --- Hydra's loader


class Repository(ConfigRepository):
    """Hydra's, whose copy for each composition shares the sources, and with them the store. It
    reads each file of conf/ and of Hydra once per process."""

    # loaded configs by the folder of their source and their path in it
    _files: ClassVar[dict[tuple[str, str], ConfigResult | None]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Repository:
        return copy.copy(self)

    def load_config(self, config_path: str) -> ConfigResult | None:
        """As Hydra's."""
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        # of conf/ and of Hydra, by the names of `create_config_search_path`
        if source is None or source.provider not in ("main", "hydra"):
            return super().load_config(config_path)
        key = (source.path, config_path)
        if key not in self._files:
            self._files[key] = super().load_config(config_path)
        # compositions change what they load
        return copy.deepcopy(self._files[key])


class Loader(ConfigLoaderImpl):
    """Composes the config of one command."""

    def __init__(
        self, verb: str, keys: type, *, config_dir: str | None = None, tasks: Sequence[str] = ()
    ):
        """config_dir: a folder of the user's own configs. tasks: the user's own that the command
        line names, whose files are run."""
        path = create_config_search_path(str(store.CONF))
        if config_dir is not None:
            folder = Path(config_dir).resolve()
            if not folder.is_dir():
                raise InputError(f"--config-dir {config_dir}: no folder")
            schemas = SearchPathQuery(provider="schema")
            path.prepend("command-line", f"file://{folder}", schemas)
        super().__init__(path)
        self.repository = Repository(path)
        self.verb = verb
        self.keys = keys
        self.tasks = tasks

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """As Hydra's. Raises InputError."""
        rest = (run_mode, from_shell, validate_sweep_overrides)
        with self._prepared(config_name, overrides) as plain:
            return super().load_configuration(config_name, plain, *rest)

    def compute_defaults_list(
        self, config_name: str | None, overrides: list[str], run_mode: RunMode
    ) -> DefaultsList:
        """As Hydra's. Raises InputError."""
        with self._prepared(config_name, overrides) as plain:
            return super().compute_defaults_list(config_name, plain, run_mode)

    @contextlib.contextmanager
    def _prepared(self, config_name: str | None, overrides: list[str]) -> Iterator[list[str]]:
        """Fill the store for the command, and report errors in one line. Yields the overrides, of
        keys without the names of parts."""
        groups = store.groups_of(self.keys)
        for override in map(parsed, overrides):
            key = override.key_or_group
            if override.is_delete() and groups.get(key) is not None:
                raise InputError(needed(self.verb, self.keys, key))
            if key in groups and override.value() is None and not override.is_delete():
                raise InputError(f"{override.input_line}: a choice of {key} is left out by ~{key}")
        for name in self.tasks:
            store.run_named_task(name)
        store.fill(self.verb, self.keys, inputs_of(self.verb, self.keys, overrides))
        plain = []
        for text in overrides:
            key = parsed(text).key_or_group
            plain.append(text.replace(key, store.plain_key(self.verb, self.keys, key), 1))
        with sentences(self.verb, lambda: self._choices(config_name, overrides)):
            yield plain

    def _choices(self, config_name: str | None, overrides: list[str]) -> DictConfig:
        """The config of the chosen groups, without other overrides."""
        store.fill(self.verb, self.keys, inputs_of(self.verb, self.keys, []))
        own = store.groups_of(self.keys)
        groups = [
            text
            for text in overrides
            if text.startswith("hydra/") or parsed(text).key_or_group in own
        ]
        return super().load_configuration(config_name, groups, RunMode.MULTIRUN)


# --- mistakes


@contextlib.contextmanager
def sentences(verb: str = "", choices: Callable[[], DictConfig] | None = None) -> Iterator[None]:
    """Raise Hydra's errors as InputError. choices: the config without overrides of keys."""
    try:
        yield
    except InputError:
        raise
    except OverrideParseException as error:
        raise InputError(_unreadable(error)) from error
    except MissingConfigException as error:
        raise _missing(verb, error) from error
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise InputError(_sentence(verb, error, choices)) from error


def _unreadable(error: OverrideParseException) -> str:
    key, equals, value = error.override.partition("=")
    if not equals or not key:
        return f"{error.override!r} is no setting; settings are key=value, e.g. seed=1"
    reason = str(error).splitlines()[0]
    return (
        f"{error.override}: cannot be read ({reason}); special characters need quotes: "
        f'"{key}={quoted(value)}"'
    )


def _missing(verb: str, error: MissingConfigException) -> InputError:
    """The error for a choice or a config that does not exist."""
    group, _, name = str(error.missing_cfg_file).rpartition("/")
    match = re.match("In '(.*?)': ", str(error))
    parent = match[1] if match and match[1] != store.config_name(verb) else ""
    if group == "task" and name in plugins.tasks():
        from npmp import tasks

        try:
            tasks.find(name, source=parent or "a config")
        except InputError as not_named:
            return not_named
    available = (
        error.options if error.options and group not in store.GLOBAL else store.names(verb, group)
    )
    fault = unknown(group or "config", name, available)
    return InputError(f"{parent}: {fault}") if parent else fault


def _sentence(verb: str, error: BaseException, choices: Callable[[], DictConfig] | None) -> str:
    """An error of Hydra's or OmegaConf's in one line."""
    text = " ".join(str(error).split())
    cause = " ".join(str(error.__cause__ or "").split())
    subclass = (
        r"(?:Merge error|Invalid type assigned): \w+ is not a subclass of (\w+)\. value: (\S+)"
    )
    text = re.sub(subclass, r"\1 must be a mapping, got \2", text)
    cause = re.sub(subclass, r"must be a mapping, got \2", cause)
    if match := re.match(r"Ambiguous value for argument '(.*?)' 1\.", text):
        key, _, value = match[1].partition("=")
        return (
            f"{match[1]} holds a comma: a list is {key}=[{value}], text is \"{key}='{value}'\", "
            f"one run per value is -m {match[1]}"
        )
    if match := re.match(
        r"Could not append to config\. An item is already at '(.*?)'.*'\+\+(.*?)'", text
    ):
        return f"+{match[2]}: {match[1]} exists; {match[2]} sets it"
    if match := re.match(r"Error merging override (\S+)", text):
        if "does not support deletion" in cause:
            return f"{match[1]}: this key cannot be removed; set a value"
        return f"{match[1]}: {cause.partition(' full_key')[0]}"
    file = ""
    if match := re.match(
        r"In '(.*?)': \w+ raised while composing config: (.*?) full_key: ?(.*?) ", text
    ):
        file = "" if match[1] == "stored" else f"{match[1]}: "
        text = file + f"{match[3]}: {match[2]}".lstrip(": ")
        match = re.match("(Key) '", match[2]) and match
        key = match and match[3]
    elif match := re.match(r"Could not (?:override|delete from config\.|delete) '(.*?)'", text):
        key = match[1].partition("=")[0]
    if match and choices is not None:
        with contextlib.suppress(HydraException):
            return file + _unknown(verb, key, choices())
    text = text if not cause or cause in text else f"{text} {cause}".strip()
    return re.sub(r"(.*) full_key: (\S+)( .*)?", r"\2: \1", text)


def _unknown(verb: str, key: str, config: DictConfig) -> str:
    """The error for a key that does not exist, with the nearest ones."""
    node: Any = config
    parts = key.split(".")
    for i, part in enumerate(parts):
        at = ".".join(parts[:i])
        if not isinstance(node, DictConfig):
            how = f"choose {at}=NAME first" if node is None else f"{at} holds no further keys"
            return f"npmp {verb} has no key {key!r}: {how}"
        inner: Any = {name: node._get_node(name) for name in node if name != "defaults"}
        if part not in inner:
            break
        node = inner[part] if isinstance(inner[part], DictConfig) else node.get(part)
    if at:
        added = "" if OmegaConf.get_type(node) is not dict else f"; +{key}=... adds it"
        return f"{at} {unknown_setting(part, map(str, inner))}{added}"
    groups = {str(name): inside for name, inside in inner.items() if isinstance(inside, DictConfig)}
    nested = [f"{name}.{part}" for name, group in groups.items() if part in group]
    names = [str(name) for name in inner if name not in ("verb", "hydra")]
    return f"npmp {verb} {unknown_setting(part, names, nested)}; npmp {verb} --help says more"
