"""What a report is made of: the typed parts, and reading them from the files of a run.

Everything here is plain arrays and words; `page.py` turns it into HTML.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mocap_data.motion import ReferenceMotion
from npmp import __version__
from npmp.devices import cpus

FloatArray = npt.NDArray[np.float64]
VERSIONED_PACKAGES = ("numpy", "scipy", "mujoco", "dm_control", "torch", "h5py")


@dataclass(frozen=True)
class Walking:
    """One evaluation of the walking task. T control steps; velocity is (forward [m/s], lateral
    [m/s], yaw rate [rad/s]) in the robot's heading frame.

    Attributes:
        time_s: (T,) seconds.
        command, achieved: (T, 3) what was asked and what the policy did.
        errors: mean velocity error by name, in the order to show, for instance {"random latents":
          0.9, "policy": 0.3}; a caller's own definition, explained by `errors_caption`.
        qpos: (T, nq) for the replay.
    """

    time_s: npt.NDArray[Any]
    command: npt.NDArray[Any]
    achieved: npt.NDArray[Any]
    qpos: npt.NDArray[Any]
    errors: Mapping[str, float] = field(default_factory=dict)
    errors_caption: str = ""

    @property
    def rate_hz(self) -> float:
        """Steps per second, from the median step of `time_s` (50 for a single step)."""
        return float(1.0 / np.median(np.diff(self.time_s))) if len(self.time_s) > 1 else 50.0


@dataclass(frozen=True)
class ReportData:
    """The parts of a report. Each is optional: a part that is not there leaves no trace on the
    page.

    Attributes:
        title, subtitle: the heading.
        headline: (label, value, caption) figures at the top; from `evaluation` when empty.
        motions: whose figures of retargeting are shown.
        evaluation: the content of evaluation.json.
        rollouts: path of rollouts.h5.
        learning: (title, path of metrics.csv) per run.
        walking: one evaluation of the walking task.
        robot: the robot's name, for the replay; from the rollouts when None.
        provenance: command, config, seeds, versions, machine: shown as they are, absolute paths cut
            to what follows the report's own folder (or to their last part).
    """

    title: str = "Report"
    subtitle: str = ""
    headline: Sequence[tuple[str, str, str]] = ()
    motions: Sequence[ReferenceMotion] = ()
    evaluation: Mapping[str, Any] | None = None
    rollouts: Path | str | None = None
    learning: Sequence[tuple[str, Path | str]] = ()
    walking: Walking | None = None
    robot: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)


def versions() -> dict[str, str]:
    """Versions of the packages that decide the numbers, of those that are installed."""
    found = {"python": platform.python_version(), "npmp": __version__}
    for name in VERSIONED_PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def command_line() -> str:
    """This process's command, without Hydra's own settings."""
    return " ".join(a for a in sys.argv if not a.startswith("hydra"))


def machine_summary() -> dict[str, Any]:
    """What may be said of the machine: cores and system; no host name, user or path."""
    return {"cores": cpus(), "system": f"{platform.system()} {platform.machine()}"}


_ABSOLUTE = re.compile(r"(?<![\w.:/~-])(?:~?/|[A-Za-z]:\\)(?:[^\s/\\'\"=,;:<>|()\[\]{}]+[/\\])+")


def scrub(text: str, folder: Path | None = None) -> str:
    """Text without absolute paths: those inside `folder` become relative to it, the rest keep their
    last part.

    >>> scrub("module=/home/ada/runs/demo/module data=x.h5")
    'module=…/module data=x.h5'
    """
    if folder is not None:
        inside = str(folder.resolve())
        if inside != os.path.sep:
            text = text.replace(inside + os.path.sep, "").replace(inside, ".")
    return _ABSOLUTE.sub("…/", text)
