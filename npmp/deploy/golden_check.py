"""Check in a child process that a bundle reproduces its golden steps in time.

A graph may take any time and memory, even while onnxruntime loads it, without an exception. A child
process can be ended, so the robot's process loads no graph before a child has run it.
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
# time to start the child and load the graph [s]; several seconds on a busy machine [D]
START_S = 60.0
# share of a control period for the median step, and for the mean of all [D]
MAX_PERIOD_SHARE = 0.5
# address space of the child; onnxruntime and numpy take 1.5 GB [bytes] [D]
MAX_MEMORY = 4 << 30
# first steps, which are not timed
WARM_UP = 100


class GoldenCheck(NamedTuple):
    """Differences from torch as of `Parity`, and durations of a control step [s]."""

    difference: float
    times_rounding: float
    in_rollout: float
    median_s: float
    p99_s: float


def check_golden(bundle: Bundle) -> GoldenCheck:
    """Run all golden steps of a bundle in a child process.

    Raises:
      InputError: if the outputs differ from torch's, or the graph is too slow, too large or fails.
    """
    graph = str(bundle.folder / GRAPH)
    period_s = 1.0 / bundle.contract.control_rate_hz
    # `golden` bounds the number of steps
    limit_s = START_S + MAX_PERIOD_SHARE * period_s * len(bundle.golden().reset)
    path = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
    try:
        # -P: no imports from the current folder
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
            f"'{graph}': golden steps took more than {limit_s:.0f} s; export the policy again"
        ) from error

    try:
        output: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        last = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise InputError(
            f"'{graph}': the process that ran it ended with code {child.returncode}: {last:.200}"
        ) from error
    if "error" in output:
        raise InputError(output["error"])
    if output["files"] != bundle.contract.files:
        raise InputError(f"'{bundle.folder}': changed while it was read; try again")

    result = GoldenCheck(**{name: output[name] for name in GoldenCheck._fields})
    if not result.times_rounding <= TOLERANCE:
        raise InputError(
            f"'{bundle.folder}': differs from torch by {result.difference:.1e}, "
            f"{result.times_rounding:.1f} times rounding: must be at most {TOLERANCE:g} times; "
            "export the policy again"
        )
    if not result.in_rollout <= ROLLOUT_TOLERANCE:
        raise InputError(
            f"'{bundle.folder}': differs from torch by {result.in_rollout:.1e} in its rollout: "
            f"must be at most {ROLLOUT_TOLERANCE:g}; export the policy again"
        )
    if not result.median_s <= MAX_PERIOD_SHARE * period_s:
        raise InputError(
            f"'{graph}': {1e3 * result.median_s:.1f} ms per control step: must be at most "
            f"{1e3 * MAX_PERIOD_SHARE * period_s:.1f} ms for a period of {1e3 * period_s:g} ms"
        )
    return result


def _limit(seconds: int) -> None:
    """Limit memory and CPU time of this process, which may outlive its parent."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # not on every system
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))


def main() -> None:
    """The child process: prints a line of JSON."""
    folder, seconds = sys.argv[1:]
    _limit(int(seconds))
    try:
        bundle = Bundle.read(folder)
        golden = bundle.golden()
        parity = check_parity(bundle.policy(), golden)
    except InputError as error:
        result: dict[str, Any] = {"error": str(error)}
    except (MemoryError, RuntimeError, ValueError) as error:  # onnxruntime's are RuntimeErrors
        message = str(error).partition("\n")[0]
        result = {"error": f"'{Path(folder) / GOLDEN}': the graph fails: {message:.200}"}
    else:
        timed = parity.seconds[min(WARM_UP, len(golden.reset) // 2) :]
        median, p99 = np.quantile(timed, (0.5, 0.99))
        result = {
            "difference": parity.difference,
            "times_rounding": parity.times_rounding,
            "in_rollout": parity.in_rollout,
            "median_s": median,
            "p99_s": p99,
            "files": bundle.contract.files,
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
