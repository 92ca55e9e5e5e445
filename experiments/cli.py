"""`npmp VERB key=value ...`: one command that dispatches to the Hydra mains of this package.

Exit codes: 0 all well; 1 an internal error (with its traceback); 2 the user's error (one line that
says what to do); 3 the work was done and what was judged did not pass (npmp suite); 130, 143 or 129
interrupted (SIGINT, SIGTERM, SIGHUP). Imports are lazy: `npmp --help` loads neither Hydra nor
torch.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence

from mocap_data.errors import InputError
from npmp.experiments import help as help_text

Main = Callable[[Sequence[str] | None], int]

VERBS = (
    "retarget", "imitate", "reuse", "evaluate", "bench", "demo", "doctor", "inspect", "robots", "data", "export",
    "modules", "policies", "skill", "compare", "sweeps", "actuator", "sysid", "suite", "bundle", "deploy",
    "compare-logs", "new", "render", "play",
)  # fmt: skip


def verb_of(arguments: Sequence[str]) -> tuple[Main, list[str]] | None:
    """The main of the verb that the arguments (without the program's name) ask for, and what it is
    given.

    None where they ask for help or the version, which is printed.

    Raises:
      InputError: for no verb of ours.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(help_text.overview(VERBS))
        return None
    first, rest = arguments[0], list(arguments[1:])
    if first == "--version":
        import npmp

        print(f"npmp {npmp.__version__}")
        return None
    if first == "completion":
        from npmp.experiments import completion

        if rest[:1] == ["words"]:
            print("\n".join(completion.words(" ".join(rest[1:]), VERBS)))
        else:
            print(completion.script(rest[0] if rest else ""), end="")
        return None
    if first == "help":
        if not rest:
            print(help_text.overview(VERBS))
            return None
        first, rest = rest[0], ["--help"]
    if first not in VERBS:
        close = difflib.get_close_matches(first, VERBS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"no verb {first!r}; {hint}there are: {', '.join(VERBS)}")
    if any(argument in ("-h", "--help") for argument in rest):
        print(help_text.of_verb(first))
        return None
    if importlib.util.find_spec(help_text.module_of(first)) is None:
        raise InputError(f"the verb {first!r} is not part of this installation")
    return importlib.import_module(help_text.module_of(first)).main, rest


def set_environment() -> None:
    """What libraries read when they are loaded."""
    # dm_control and mujoco look for a GL library when imported; what renders sets its own backend.
    os.environ.setdefault("MUJOCO_GL", "disable")
    # torch's idle threads spin by default and take the CPUs from the simulator's threads, whose
    # turn it is then: on two cores with other work beside, this made environment steps up to six
    # times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # And numpy's: its matrices here are small, on two cores retargeting people took three times the
    # CPU time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main(argv: Sequence[str] | None = None) -> int:
    """The console script: run the verb and turn whatever happens into an exit code."""
    set_environment()
    from npmp.experiments.failures import guarded

    arguments = list(sys.argv[1:] if argv is None else argv)
    with guarded() as outcome:
        if (found := verb_of(arguments)) is not None:
            run, given = found
            outcome.code = run(given)
    return outcome.code


if __name__ == "__main__":
    sys.exit(main())
