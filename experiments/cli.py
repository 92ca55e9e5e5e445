"""`npmp VERB key=value ...`: one command that dispatches to the Hydra mains of this package.

Exit codes: 0 all well; 1 an internal error (with its traceback); 2 the user's error (one line that says what to do);
130 or 143 interrupted (SIGINT, SIGTERM). Imports are lazy: `npmp --help` loads neither Hydra nor torch.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence

from experiments import help as help_text
from mocap_data.errors import InputError

VERBS = (
    "retarget", "imitate", "reuse", "evaluate", "bench", "demo", "doctor", "inspect", "robots", "data", "export",
    "modules", "skill", "compare",
)  # fmt: skip


def dispatch(arguments: Sequence[str]) -> int:
    """Run what the arguments (without the program's name) ask for; returns the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(help_text.overview(VERBS))
        return 0
    first, rest = arguments[0], list(arguments[1:])
    if first == "--version":
        import npmp

        print(f"npmp {npmp.__version__}")
        return 0
    if first == "help":
        if not rest:
            print(help_text.overview(VERBS))
            return 0
        first, rest = rest[0], ["--help"]
    if first not in VERBS:
        close = difflib.get_close_matches(first, VERBS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"no verb {first!r}; {hint}there are: {', '.join(VERBS)}")
    if any(argument in ("-h", "--help") for argument in rest):
        print(help_text.of_verb(first))
        return 0
    if importlib.util.find_spec(f"experiments.{first}") is None:
        raise InputError(f"the verb {first!r} is not part of this installation")
    code: int = importlib.import_module(f"experiments.{first}").main(rest)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """The console script: dispatch and turn whatever happens into an exit code."""
    # dm_control and mujoco look for a GL library when imported; what renders sets its own backend.
    os.environ.setdefault("MUJOCO_GL", "disable")
    # torch's idle threads spin by default and take the CPUs from the simulator's threads, whose turn it is then: on two
    # cores with other work beside, this made environment steps up to six times slower. Read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from experiments.failures import guarded

    arguments = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: dispatch(arguments))


if __name__ == "__main__":
    sys.exit(main())
