"""Whether a bundle answers its golden steps in time, tried in a child process.

A graph may take any time and memory, also while onnxruntime reads it, and no exception ends that. A
child process can be ended, so the robot's process loads no graph before a child has run it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mocap_data.errors import InputError
from npmp.deploy.bundle import GOLDEN, GRAPH, Bundle
from npmp.deploy.onnx_policy import ROLLOUT_TOLERANCE, TOLERANCE, check_parity

ROOT = str(Path(__file__).resolve().parents[2])
# to start the child and to load the graph [s]; a busy machine takes several seconds [D]
START_S = 60.0
# of a control period that a step may take, in the median, and all steps on average [D]
MOST_OF_PERIOD = 0.5
# of the child's addresses: onnxruntime and numpy take 1.5 GB of them [bytes] [D]
MOST_MEMORY = 4 << 30
# steps that are not timed: caches are cold
COLD = 100


class Rehearsal(NamedTuple):
    """How a bundle answered its golden steps."""

    # from torch, as of `Parity`
    difference: float
    times_rounding: float
    in_rollout: float
    median_s: float  # of a control step
    p99_s: float


def rehearse(bundle: Bundle) -> Rehearsal:
    """Run all golden steps of a bundle in a child process.

    Raises:
      InputError: where it answers otherwise than torch did, is too slow or too large, or fails.
    """
    graph = str(bundle.folder / GRAPH)
    period_s = 1.0 / bundle.contract.control_rate_hz
    # of a rollout that has been read here, so that its length is bounded
    limit_s = START_S + MOST_OF_PERIOD * period_s * len(bundle.golden().reset)
    path = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
    try:
        # -P: nothing of the current folder
        child = subprocess.run(
            [sys.executable, "-P", "-m", __name__, str(bundle.folder), f"{limit_s:.0f}"],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"'{graph}' did not answer its golden steps within {limit_s:.0f} s; export its policy "
            "again"
        ) from error

    try:
        answer: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        last = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise InputError(
            f"'{graph}' ended the process that tried it with code {child.returncode}: {last:.200}"
        ) from error
    if "error" in answer:
        raise InputError(answer["error"])
    if answer["files"] != bundle.contract.files:
        raise InputError(f"'{bundle.folder}' changed while it was read; try again")

    result = Rehearsal(**{name: answer[name] for name in Rehearsal._fields})
    if not result.times_rounding <= TOLERANCE:
        raise InputError(
            f"'{bundle.folder}' answers otherwise than torch, by {result.difference:.1e}, "
            f"{result.times_rounding:.1f} times rounding: must be at most {TOLERANCE:g} times; "
            "export its policy again"
        )
    if not result.in_rollout <= ROLLOUT_TOLERANCE:
        raise InputError(
            f"'{bundle.folder}' answers otherwise than torch, by {result.in_rollout:.1e} in its "
            f"rollout: must be at most {ROLLOUT_TOLERANCE:g}; export its policy again"
        )
    if not result.median_s <= MOST_OF_PERIOD * period_s:
        raise InputError(
            f"'{graph}' takes {1e3 * result.median_s:.1f} ms a control step: must be at most "
            f"{1e3 * MOST_OF_PERIOD * period_s:.1f} ms of a period of {1e3 * period_s:g}"
        )
    return result


def _limit(seconds: int) -> None:
    """Bound memory and CPU time of this process, which may outlive its parent."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # as far as the system has it
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))


def main() -> None:
    """The child: a line of JSON on stdout."""
    folder, seconds = sys.argv[1:]
    _limit(int(seconds))
    try:
        bundle = Bundle.read(folder)
        golden = bundle.golden()
        parity = check_parity(bundle.policy(), golden)
    except InputError as error:
        answer: dict[str, Any] = {"error": str(error)}
    except (MemoryError, RuntimeError, ValueError) as error:  # onnxruntime's are RuntimeErrors
        why = str(error).partition("\n")[0]
        answer = {"error": f"'{Path(folder) / GOLDEN}' cannot be answered: {why:.200}"}
    else:
        median, p99 = np.quantile(parity.seconds[min(COLD, len(golden.reset) // 2) :], (0.5, 0.99))
        answer = {
            "difference": parity.difference,
            "times_rounding": parity.times_rounding,
            "in_rollout": parity.in_rollout,
            "median_s": median,
            "p99_s": p99,
            "files": bundle.contract.files,
        }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
