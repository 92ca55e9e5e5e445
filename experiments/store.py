"""Hydra's ConfigStore of a command: its keys, and the choices of its groups, from the dataclasses.

conf/ is the primary config folder; conf/GROUP/NAME.yaml contains the differences from a choice in
the store. `npmp.core.settings` checks the types, as OmegaConf lacks some of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, Optional

from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import MISSING, OmegaConf

from mocap_data.errors import check_available
from mocap_data.safe_yaml import read_yaml
from npmp.core import plugins, settings
from npmp.core.settings import default_of, flat, hints_of, plain_fields, to_plain
from npmp.experiments.sweeping.sweep import KINDS, Launcher

CONF = Path(__file__).parent.parent / "conf"

# keys that hold one of several dataclasses
GROUPS = ("task", "algo", "net", "high_level", "randomization", "scenario")

# groups whose choices set keys of the whole command, in order of application
GLOBAL = ("experiment", "sweep", "debug")

# the choice that is the dataclass's own defaults
PLAIN = {"net": "small", "high_level": "small", "randomization": "none"}

# fields of a group's dataclass that the module or actuator= sets
HIDDEN = {"randomization": ("hold", "accelerometer", "actuator")}

# Hydra's name for `npmp.experiments.sweeping.launcher`
PLUGIN = "hydra_plugins.npmp"

# choices of `for/...` that files of conf/ interpolate: ${for/robot}
CONTEXT = ("robot", "stage", "verb")


def group(default: str | None) -> Any:
    """A field that holds one of several dataclasses, chosen by name; `GROUPS` lists them."""
    return field(default=None, metadata={"group": default})


def groups_of(keys: type) -> dict[str, str | None]:
    """The groups among a command's keys, with their default choice."""
    fields = dataclasses.fields(keys)
    return {entry.name: entry.metadata["group"] for entry in fields if "group" in entry.metadata}


def config_name(verb: str) -> str:
    """Name of a command's primary config, e.g. evaluate_suite."""
    return verb.replace(" ", "_")


# --- choices


def schemas(verb: str, group: str) -> dict[str, type]:
    """The dataclasses that a group chooses from, by name."""
    if group == "algo":
        return _algorithms(verb)
    if group == "task":
        from npmp import tasks

        if verb == "imitate":
            return {"imitation": tasks.find("imitation").config_type}
        ours = {kind.name: kind.config_type for kind in tasks.TASKS}
        users = {name: tasks.find(name).config_type for name in plugins.loaded_tasks()}
        if verb == "reuse":
            del ours["imitation"]
        return ours | users
    return {PLAIN[group]: _fixed(group)} if group in PLAIN else {}


def schema_of(verb: str, group: str, name: str) -> Any:
    """The type of a choice's settings. Raises InputError for an unknown task or algorithm."""
    if group == "task":
        from npmp import tasks

        return tasks.find(base_task(name), source="a file").config_type
    if group == "algo":
        check_available(group, [name], _algorithms(verb))
        return _algorithms(verb)[name]
    return _fixed(group)


def names(verb: str, group: str) -> list[str]:
    """The choices of a group: in the store, in conf/, and users' tasks."""
    of_store = list(schemas(verb, group)) if group in GROUPS else []
    of_store += ["none"] if group == "debug" else []
    files = sorted((CONF / group).glob("*.yaml"))
    if group == "task" and verb == "imitate":
        files = []
    if group in ("experiment", "sweep"):
        files = [path for path in files if read_yaml(path).get("verb") == verb]
    of_user = plugins.tasks() if group == "task" and verb != "imitate" else {}
    return list(dict.fromkeys([*of_store, *(path.stem for path in files), *of_user]))


def sizes(verb: str, debug: str) -> set[str]:
    """The keys that debug= sets in a command."""
    files = (CONF / "debug" / debug).glob(f"{config_name(verb)}*.yaml")
    algorithm = f"{config_name(verb)}_"
    return {
        key
        for file in files
        for key in flat(read_yaml(file), "algo" if file.name.startswith(algorithm) else "")
    }


def run_named_task(name: str) -> None:
    """Run the file of the user's task on the command line. Raises InputError."""
    if name in plugins.tasks() and name not in plugins.loaded_tasks():
        from npmp import tasks

        tasks.find(name)


def base_task(name: str) -> str:
    """The task of a preset in conf/task; configs of older runs have the preset's name."""
    path = CONF / "task" / f"{name}.yaml"
    return str(read_yaml(path)["defaults"][0]) if path.is_file() else name


def todays_task(verb: str, name: str | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A task's settings from an old run, under their current names."""
    from npmp import tasks

    if name is None or base_task(name) not in schemas(verb, "task"):
        return dict(settings)
    return tasks.todays_settings(tasks.find(base_task(name)), settings)


def _algorithms(verb: str) -> dict[str, type]:
    if verb == "imitate":
        from npmp.learning.imitation import ALGORITHMS

        return dict(ALGORITHMS)
    from npmp.learning.reuse import REUSE_ALGORITHMS

    return dict(REUSE_ALGORITHMS)


def _fixed(group: str) -> Any:
    from npmp.envs.robot_batch import RobotBatchConfig
    from npmp.evaluation.suite import Scenario
    from npmp.skills.nets import NetConfig
    from npmp.skills.nets.high_level import HighLevelConfig

    return {
        "net": NetConfig,
        "high_level": HighLevelConfig,
        "randomization": RobotBatchConfig,
        "scenario": dict[str, Scenario],
    }[group]


# --- the store


@dataclass(frozen=True)
class InputDefaults:
    """Defaults of a command's primary config that its inputs set."""

    # defaults of keys
    values: Mapping[str, Any] = field(default_factory=dict)
    # default choices of groups
    choices: Mapping[str, str | None] = field(default_factory=dict)
    # values of the keys in `CONTEXT`
    context: Mapping[str, str] = field(default_factory=dict)
    # settings of the run to resume
    stored: Mapping[str, Any] | None = None


def plain_key(verb: str, keys: type, key: str) -> str:
    """A key of a command without the names of parts, task.terrain for task.ground.terrain."""
    group, _, rest = key.partition(".")
    if not rest or group not in groups_of(keys):
        return key
    kinds = [kind for kind in schemas(verb, group).values() if dataclasses.is_dataclass(kind)]
    # a setting of this name, e.g. of a user's task
    if any(rest.partition(".")[0] in settings.plain_fields(kind) for kind in kinds):
        return key
    plain = (settings.plain_key(kind, rest) for kind in kinds)
    return f"{group}.{next((name for name in plain if name != rest), rest)}"


def has_terms(keys: type, schema: type) -> bool:
    """Whether a task's choice in a command also has `rewards`, keys of its reward terms by their
    names: in commands that train. A user's task may have another setting of this name."""
    return "resume" in hints_of(keys) and "rewards" not in plain_fields(schema)


def fill(verb: str, keys: type, inputs: InputDefaults) -> None:
    """Fill the store for a command."""
    instance = ConfigStore.instance()
    store = functools.partial(instance.store, provider="npmp")
    for group in GROUPS:
        instance.repo.pop(group, None)
    for group in groups_of(keys):
        # Hydra copies a node that it loads
        instance.repo[group] = {
            f"{name}.yaml": _choice(
                group, name, schema, terms=group == "task" and has_terms(keys, schema)
            )
            for name, schema in schemas(verb, group).items()
        }
    store(group="debug", name="none", node={}, package="_global_")
    for kind, name in inputs.context.items():
        store(group=f"for/{kind}", name=name, node={}, package="_global_")
    if inputs.stored is not None:
        store(name="stored", node=dict(inputs.stored))
    launchers = instance.repo.setdefault("hydra", {}).setdefault("launcher", {})
    launchers.update({f"{name}.yaml": _launcher(name) for name in KINDS})
    store(name=config_name(verb), node=_primary(verb, keys, inputs))


def _primary(verb: str, keys: type, inputs: InputDefaults) -> Any:
    """The primary config of a command."""
    command = config_name(verb)
    choices = groups_of(keys) | dict(inputs.choices)
    defaults: list[Any] = ["_self_", *({name: choice} for name, choice in choices.items())]
    for name in GLOBAL:
        if name in hints_of(keys):
            defaults.append({name: "none" if name == "debug" else None})
    defaults.append({"optional debug@_global_": f"${{debug}}/{command}"})
    if "algo" in choices:
        defaults.append({"optional debug@algo": f"${{debug}}/{command}_${{algo}}"})
    if inputs.stored is not None:
        defaults.append("stored@_global_")
    # last, as Hydra resolves defaults from the end
    defaults += [{f"for/{kind}": name} for kind, name in inputs.context.items()]
    defaults += [{f"override hydra/{kind}": name} for kind, name in HYDRA_CHOICES.items()]

    of_inputs: dict[str, Any] = {"defaults": defaults, **inputs.values}
    # `merge` copies its first argument, so the cached one does not change
    return OmegaConf.merge(_own_defaults(verb, keys), of_inputs)


@functools.cache
def _own_defaults(verb: str, keys: type) -> Any:
    """The defaults of a command's own keys, and Hydra's settings."""
    hydra = {"run": {"dir": "."}, "output_subdir": None, "sweep": SWEEP}
    values: dict[str, Any] = {"verb": verb, "hydra": hydra}
    for entry in dataclasses.fields(keys):
        if entry.init:
            value = default_of(entry)
            values[entry.name] = MISSING if value is dataclasses.MISSING else to_plain(value)
    return OmegaConf.merge(structured(keys, ("verb", "defaults", "hydra")), values)


HYDRA_CHOICES = {"launcher": "local", "job_logging": "none", "hydra_logging": "none"}

# Jobs are below out=, or beside it if it is a file.
SWEEP = {
    "dir": "${npmp.sweep_folder:${out},${now:%Y-%m-%d_%H-%M-%S}}",
    "subdir": "${npmp.job_name:${hydra.job.override_dirname},${hydra.job.num}}",
}


@functools.cache
def _launcher(name: str) -> ConfigNode:
    """Hydra's launcher of a kind of workers."""
    values = {"_target_": f"{PLUGIN}.SweepLauncher", **to_plain(Launcher(name))}
    node: Any = OmegaConf.merge(structured(Launcher, ("_target_",)), values)
    group = "hydra/launcher"
    return ConfigNode(f"{name}.yaml", node, group=group, package=None, provider="npmp")


@functools.cache
def _choice(group: str, name: str, schema: type, *, terms: bool) -> ConfigNode:
    """A choice of a group with its name and the matching files of conf/; a user's task has its
    values beside it. terms: whether it has reward terms."""
    values = to_plain(schema())
    if terms:
        # open: the names are known once the task is made
        values["rewards"] = OmegaConf.create({}, flags={"struct": False})
    for hidden in HIDDEN.get(group, ()):
        del values[hidden]
    more = ("name", "defaults", *(["rewards"] if terms else []))
    node: Any = structured(schema, more, HIDDEN.get(group, ()))
    own: list[Any] = ["_self_"]
    own += [{f"optional {name}/{kind}@_here_": f"${{for/{kind}}}"} for kind in CONTEXT]
    node = OmegaConf.merge(node, {"name": name, **values, "defaults": own})
    if group == "task" and name in plugins.loaded_tasks():
        beside = plugins.tasks()[name].with_suffix(".yaml")
        if beside.is_file():
            node = OmegaConf.merge(node, read_yaml(beside))
    return ConfigNode(f"{name}.yaml", node, group=group, package=None, provider="npmp")


def structured(cls: type, more: tuple[str, ...] = (), hidden: tuple[str, ...] = ()) -> Any:
    """A dataclass for OmegaConf. more: further fields, of any type."""
    return OmegaConf.structured(_type(cls, more, hidden))


@functools.cache
def _type(cls: type, more: tuple[str, ...] = (), hidden: tuple[str, ...] = ()) -> type:
    fields: list[Any] = [(name, Any, MISSING) for name in more]
    for name in plain_fields(cls):
        if name not in hidden:
            hint = hints_of(cls)[name]
            nested = isinstance(hint, type) and dataclasses.is_dataclass(hint)
            fields.append((name, Optional[_type(hint)] if nested else Any, MISSING))  # noqa: UP045
    return make_dataclass(cls.__name__, fields)
