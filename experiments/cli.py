"""`npmp VERB [ACTION] key=value ...`: one program that dispatches to the commands of this package.

Exit codes: 0 success; 1 internal error, with its traceback; 2 invalid input, in one line with the
next step; 3 the result did not pass; 130, 143 or 129 interrupted (SIGINT, SIGTERM, SIGHUP). Imports
are lazy: `npmp --help` loads neither Hydra nor torch.
"""

from __future__ import annotations

import contextlib
import difflib
import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mocap_data.errors import InputError

# {verb: {action: MODULE:NAME of its command}}; the action "" is for a verb alone, NAME is by
# default main
VERBS: Mapping[str, Mapping[str, str]] = {
    "retarget": {"": "retarget"},
    "imitate": {"": "imitate"},
    "reuse": {"": "reuse"},
    "evaluate": {"": "evaluate", "suite": "suite", "compare": "compare"},
    "skill": {
        "list": "artefacts:list_all",
        "show": "artefacts:show",
        "info": "skill:info",
        "wander": "skill:wander",
        "pack": "artefacts:pack",
        "add": "artefacts:add",
        "push": "publish:push",
        "pull": "publish:pull",
    },
    "deploy": {
        "export": "export",
        "check": "bundle:check",
        "trial": "bundle:trial",
        "run": "deploy",
        "compare-logs": "compare_logs",
    },
    "robots": {
        "list": "robots:list_all",
        "check": "robots:check",
        "show": "robots:show",
        "add": "robots:add",
    },
    "data": {"list": "data:list_all", "fetch": "data:fetch", "export": "data_export"},
    "inspect": {"": "inspect"},
    "actuator": {
        "fit": "actuator:fit",
        "evaluate": "actuator:evaluate",
        "import": "actuator:import_log",
    },
    "sysid": {"fit": "sysid:fit", "excite": "sysid:excite"},
    "render": {"": "render"},
    "play": {"": "play"},
    "demo": {"": "demo"},
    "doctor": {"": "doctor"},
    "sweeps": {"show": "sweeps:show", "resume": "sweeps:resume"},
}

# MuJoCo's values of MUJOCO_GL
RENDERERS = (
    *("", "glfw", "glx", "wgl", "cgl", "egl", "osmesa"),
    *("disable", "disabled", "off", "0", "false", "enable", "enabled", "on", "1", "true"),
)


def commands(verb: str) -> list[str]:
    """The names of a verb's commands: "skill list", "skill show", ..."""
    return [f"{verb} {action}".strip() for action in VERBS[verb]]


def command_of(name: str) -> Any:
    """A `Verb` by its name, "evaluate suite". Raises InputError if it is not installed."""
    verb, _, action = name.partition(" ")
    module, _, attribute = VERBS[verb][action].partition(":")
    if importlib.util.find_spec(f"npmp.experiments.{module}") is None:
        raise InputError(f"npmp {name}: npmp.experiments.{module} is not installed; reinstall npmp")
    with _without_collector():
        return getattr(importlib.import_module(f"npmp.experiments.{module}"), attribute or "main")


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Imports of a command without the garbage collector, which would look through torch again and
    again; freeze() keeps it from doing so afterwards."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def named(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The command of the arguments, and the remaining ones.

    Raises:
      InputError: for an unknown verb or action.
    """
    verb = arguments[0]
    rest = list(arguments[1:])
    if verb not in VERBS:
        close = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"no verb {verb!r}; {hint}available: {', '.join(VERBS)}")
    actions = VERBS[verb]
    if rest and rest[0] in actions:
        return f"{verb} {rest[0]}", rest[1:]
    if "" in actions:
        return verb, rest
    fault = f"has no action {rest[0]!r}" if rest else "needs an action"
    raise InputError(f"npmp {verb} {fault}; available: {', '.join(actions)}")


def main(argv: Sequence[str] | None = None) -> int:
    """The console script: run a command and return its exit code."""
    renderer = os.environ.get("MUJOCO_GL", "").lower()
    if renderer not in RENDERERS:  # mujoco and dm_control raise for other values at import
        print(f"npmp: MUJOCO_GL={renderer!a} is ignored: not a renderer of MuJoCo", file=sys.stderr)
        del os.environ["MUJOCO_GL"]
    set_environment()
    from npmp.experiments.terminal import guarded

    arguments = list(sys.argv[1:] if argv is None else argv)
    with guarded() as outcome:
        if arguments == ["--version"]:
            import npmp

            print(f"npmp {npmp.__version__}")
        elif (help_text := help_text_of(arguments)) is not None:
            print(help_text)
        else:
            require_folder()
            name, rest = named(arguments)
            run: Callable[[Sequence[str]], int] = command_of(name)
            outcome.code = run(rest)
    return outcome.code


def require_folder() -> None:
    """Raises InputError if the current folder was deleted."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise InputError("the current folder was deleted; cd to one that exists") from error


def help_text_of(arguments: Sequence[str]) -> str | None:
    """The help text for arguments with --help or `help`; None for others."""
    from npmp.experiments import usage

    words = [argument for argument in arguments if argument not in ("-h", "--help")]
    if words[:1] == ["help"]:
        words = words[1:]
        arguments = []
    if not words:
        return usage.overview()
    if len(words) == len(arguments):
        return None
    if words[0] in VERBS and "" not in VERBS[words[0]] and words[1:2] == []:
        return usage.of_verb(words[0], {name: command_of(name) for name in commands(words[0])})
    name, rest = named(words)
    return usage.of_command(name, command_of(name), rest)


def set_environment() -> None:
    """Set variables that libraries read at import."""
    # dm_control and mujoco look for a GL library when imported; renderers set their own backend.
    os.environ.setdefault("MUJOCO_GL", "disable")
    # torch's idle threads spin by default and take the CPUs from the simulator's threads: on two
    # busy cores environment steps became up to six times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # The same for numpy's threads: with them retargeting people took three times the CPU time on
    # two cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


if __name__ == "__main__":
    sys.exit(main())
