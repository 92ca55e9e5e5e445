"""What command lines ask for, without running it."""

from __future__ import annotations

from npmp.experiments.cli import command_of
from npmp.experiments.compose import Job


def job_of(name: str, *given: str) -> Job:
    """The one job of a command line."""
    job: Job
    (job,) = command_of(name).jobs(given)
    return job
