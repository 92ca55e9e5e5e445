"""Who runs a sweep's jobs: processes on this machine's cores, or Ray's tasks on a cluster's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mocap_data.errors import InputError
from npmp.cluster import ROOT, connect


@dataclass(frozen=True)
class Ended:
    """How an attempt at a job ended."""

    # its exit code, below zero for a signal; None: nobody knows, its worker is gone
    code: int | None
    host: str
    reason: str = ""


class Workers(Protocol):
    """They run jobs of one sweep, by number."""

    @property
    def slots(self) -> int:
        """How many jobs to have begun at once, at most."""

    def start(self, number: int, log: Path) -> None:
        """Begin a job; what it prints goes to the end of the log."""

    def ended(self, number: int) -> Ended | None:
        """How a job that was started ended; None: it runs or waits for a place."""

    def stop(self, number: int) -> None:
        """Ask a job to stop at a checkpoint."""

    def close(self) -> None:
        """End whatever runs, at once."""


def begin(folder: Path, number: int, log: Path, cpus: str = "") -> subprocess.Popen[bytes]:
    """The process of one attempt at a job; its standard input is what it lives by."""
    job = [str(folder), str(number), *([cpus] if cpus else [])]
    command = [sys.executable, "-P", "-m", "npmp.experiments.sweeping.job", *job]
    path = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        # a session of its own: Ctrl-C is for the sweep, which tells its jobs
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip


@dataclass
class Local:
    """Processes, each on cores of its own."""

    folder: Path
    cores: int
    jobs: int | None
    running: dict[int, tuple[subprocess.Popen[bytes], str]] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """As `Workers.slots`."""
        return len(self.free) + len(self.running)

    def __post_init__(self) -> None:
        cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        count = len(cpus) or os.cpu_count() or 1
        slots = min(self.jobs or count, max(1, count // self.cores))
        each = [
            ",".join(map(str, cpus[i * self.cores : (i + 1) * self.cores])) for i in range(slots)
        ]
        # with cores to spare the system finds the free ones: another sweep may be pinned to the
        # first
        self.free = each if slots * self.cores == count else [""] * slots

    def start(self, number: int, log: Path) -> None:
        """As `Workers.start`."""
        cpus = self.free.pop(0)
        self.running[number] = begin(self.folder, number, log, cpus), cpus

    def ended(self, number: int) -> Ended | None:
        """As `Workers.ended`."""
        process, cpus = self.running[number]
        if (code := process.poll()) is None:
            return None
        if process.stdin:
            process.stdin.close()
        del self.running[number]
        self.free.append(cpus)
        return Ended(code, socket.gethostname())

    def stop(self, number: int) -> None:
        """As `Workers.stop`."""
        self.running[number][0].terminate()

    def close(self) -> None:
        """As `Workers.close`."""
        for process, _ in self.running.values():
            process.kill()
            process.wait()


def ray_task(folder: str, number: int, log: str) -> tuple[int, str]:
    """One attempt at a job, in a worker of Ray. Returns its exit code and the node's address."""
    import ray.util

    if not Path(folder).is_dir():
        raise FileNotFoundError(
            f"{folder} is not on this node: out= has to be on a disk that all nodes share"
        )
    process = begin(Path(folder), number, Path(log))
    try:
        while process.poll() is None:  # ray.cancel does not interrupt a wait for a process
            time.sleep(0.2)
    except KeyboardInterrupt:  # the run stops at a checkpoint
        process.send_signal(signal.SIGTERM)
        process.wait()
    return process.returncode, str(ray.util.get_node_ip_address())


class Ray:
    """Ray's tasks, on the cluster of RAY_ADDRESS or `address`, or on one that is made here for as
    long as the sweep."""

    def __init__(
        self,
        folder: Path,
        *,
        cores: int,
        gpus: float,
        jobs: int | None,
        address: str | None,
        resources: Mapping[str, float],
        runtime_env: Mapping[str, Any],
    ):
        """Raises InputError where Ray is not installed or no cluster answers."""
        self.folder = folder.resolve()
        self._ray = ray = connect("hydra/launcher=ray", address=address, runtime_env=runtime_env)
        self._cores, self._jobs = cores, jobs
        if not self.slots:
            self.close()
            raise InputError(
                f"no node of the Ray cluster has {cores} CPUs for a job (hydra.launcher.cores)"
            )
        options: dict[str, Any] = {
            "num_cpus": cores,
            "max_retries": 0,
            "resources": dict(resources) or None,
        }
        self._task = ray.remote(ray_task).options(**options, **({"num_gpus": gpus} if gpus else {}))
        self._running: dict[int, Any] = {}

    @property
    def slots(self) -> int:
        """As `Workers.slots`, of the nodes that there are now."""
        nodes = (node["Resources"].get("CPU", 0.0) for node in self._ray.nodes() if node["Alive"])
        fits = sum(int(cpus // self._cores) for cpus in nodes)
        return min(fits, self._jobs or fits)

    def start(self, number: int, log: Path) -> None:
        """As `Workers.start`."""
        self._running[number] = self._task.remote(str(self.folder), number, str(log.resolve()))

    def ended(self, number: int) -> Ended | None:
        """As `Workers.ended`."""
        done, _ = self._ray.wait([self._running[number]], timeout=0)
        if not done:
            return None
        del self._running[number]
        try:
            code, host = self._ray.get(done[0])
            return Ended(code, host)
        except self._ray.exceptions.TaskCancelledError:
            return Ended(-signal.SIGTERM, "")
        except self._ray.exceptions.RayTaskError as error:  # raised by the task itself
            return Ended(2, "", str(error.cause))
        except self._ray.exceptions.RayError as error:  # the worker or its node is gone
            return Ended(None, "", f"{type(error).__name__}")

    def stop(self, number: int) -> None:
        """As `Workers.stop`."""
        self._ray.cancel(self._running[number], force=False)

    def close(self) -> None:
        """As `Workers.close`: what a driver leaves behind, Ray ends."""
        self._ray.shutdown()
