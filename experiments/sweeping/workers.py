"""Workers of a sweep: processes on this machine's cores, or Ray's tasks on a cluster."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError
from npmp.core import plugins
from npmp.core.cluster import ROOT, connect
from npmp.experiments.sweeping.sweep import Launcher


@dataclass(frozen=True)
class Ended:
    """The end of an attempt at a job."""

    # its exit code, below zero for a signal; None: unknown, as its worker was lost
    code: int | None
    host: str
    reason: str = ""


def begin(
    folder: Path,
    number: int,
    log: Path,
    cpus: str = "",
    where: str | None = None,
    tasks: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """The process of one attempt at a job, which ends when its standard input does.

    Args:
      where: the folder that relative paths of its settings start from.
      tasks: users' tasks whose files the job may run.
    """
    command = [sys.executable, "-P", "-m", "npmp.experiments.sweeping.job"]
    command += [str(folder.resolve()), str(number), cpus, *tasks]
    path = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        # a new session, so that Ctrl-C only reaches the sweep, which stops its jobs
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=where,
            env={**os.environ, "PYTHONPATH": path},
        )


class Local:
    """Processes on separate cores that run jobs of one sweep, by number."""

    def __init__(self, folder: Path, launcher: Launcher):
        self.folder = folder
        cores = launcher.cores
        cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        count = len(cpus) or os.cpu_count() or 1
        slots = min(launcher.jobs or count, max(1, count // cores))
        each = [",".join(map(str, cpus[i * cores : (i + 1) * cores])) for i in range(slots)]
        # not pinned if cores are spare, as another sweep may be pinned to the first ones
        self.free = each if slots * cores == count else [""] * slots
        self.running: dict[int, tuple[subprocess.Popen[bytes], str]] = {}

    @property
    def slots(self) -> int:
        """The largest number of jobs at once."""
        return len(self.free) + len(self.running)

    def start(self, number: int, log: Path) -> None:
        """Start a job; its output is appended to the log."""
        cpus = self.free.pop(0)
        process = begin(self.folder, number, log, cpus, tasks=[*plugins.loaded_tasks()])
        self.running[number] = process, cpus

    def ended(self, number: int) -> Ended | None:
        """The end of a started job; None while it runs or waits."""
        process, cpus = self.running[number]
        if (code := process.poll()) is None:
            return None
        if process.stdin:
            process.stdin.close()
        del self.running[number]
        self.free.append(cpus)
        return Ended(code, socket.gethostname())

    def stop(self, number: int) -> None:
        """Request that a job stops at a checkpoint."""
        self.running[number][0].terminate()

    def close(self) -> None:
        """Kill all running jobs."""
        for process, _ in self.running.values():
            process.kill()
            process.wait()


def ray_task(
    folder: str, number: int, log: str, where: str, tasks: Sequence[str]
) -> tuple[int, str]:
    """One attempt at a job, in a worker of Ray. Returns its exit code and the node's address."""
    import ray.util

    for place, name in ((folder, "out="), (where, "the folder of the command")):
        if not Path(place).is_dir():
            raise FileNotFoundError(
                f"{place} is missing on this node: {name} must be on a disk that all nodes share"
            )
    process = begin(Path(folder), number, Path(log), where=where, tasks=tasks)
    try:
        while process.poll() is None:  # ray.cancel does not interrupt a wait for a process
            time.sleep(0.2)
    except KeyboardInterrupt:  # the run stops at a checkpoint
        process.send_signal(signal.SIGTERM)
        process.wait()
    return process.returncode, str(ray.util.get_node_ip_address())


class Ray:
    """As `Local`, of Ray's tasks, on the cluster of RAY_ADDRESS, or on a new one."""

    def __init__(self, folder: Path, launcher: Launcher):
        """Raises InputError if Ray is not installed or no cluster responds."""
        self.folder = folder.resolve()
        self.launcher = launcher
        self._ray = ray = connect("hydra/launcher=ray")
        if not self.slots:
            self.close()
            raise InputError(
                f"no node of the Ray cluster has {launcher.cores} CPUs for a job "
                "(hydra.launcher.cores)"
            )
        options: dict[str, Any] = {"num_cpus": launcher.cores, "max_retries": 0}
        options |= {"num_gpus": launcher.gpus} if launcher.gpus else {}
        options |= {"resources": launcher.resources} if launcher.resources else {}
        self._task = ray.remote(ray_task).options(**options)
        self._running: dict[int, Any] = {}

    @property
    def slots(self) -> int:
        """The slots of the nodes that are alive."""
        nodes = (node["Resources"].get("CPU", 0.0) for node in self._ray.nodes() if node["Alive"])
        fits = sum(int(cpus // self.launcher.cores) for cpus in nodes)
        return min(fits, self.launcher.jobs or fits)

    def start(self, number: int, log: Path) -> None:
        place = str(self.folder), number, str(log.resolve()), os.getcwd()
        self._running[number] = self._task.remote(*place, [*plugins.loaded_tasks()])

    def ended(self, number: int) -> Ended | None:
        done, _ = self._ray.wait([self._running[number]], timeout=0)
        if not done:
            return None
        del self._running[number]
        try:
            return Ended(*self._ray.get(done[0]))
        except self._ray.exceptions.TaskCancelledError:
            return Ended(-signal.SIGTERM, "")
        except self._ray.exceptions.RayTaskError as error:  # raised by the task itself
            return Ended(2, "", str(error.cause))
        except self._ray.exceptions.RayError as error:  # the worker or its node was lost
            return Ended(None, "", type(error).__name__)

    def stop(self, number: int) -> None:
        self._ray.cancel(self._running[number], force=False)

    def close(self) -> None:
        """Ray ends the tasks of a driver that has ended."""
        self._ray.shutdown()


Workers = Local | Ray
