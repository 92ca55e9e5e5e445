"""Check the installation: packages, devices, rendering backends, robots."""

from __future__ import annotations

import importlib.metadata as metadata
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from npmp.core.devices import cpus
from npmp.view.render import backend

Verdict = Literal["ok", "absent", "broken"]

INSTALL = "make install (or: pip install -c constraints.txt -e .)"

# what each optional dependency adds
EXTRAS = {
    "menagerie": "robots whose models are not shipped: ANYmal C, Go1, Go2, A1",
    "wandb": "logger=wandb",
    "ray": "hydra/launcher=ray: sweeps on a cluster",
    "deploy": "npmp deploy: policies for robots",
    "render": "npmp render out=FILE.mp4",
    "rerun": "npmp render out=FILE.rrd",
    "lerobot": "npmp data export format=lerobot",
    "ros": "npmp deploy run record=FILE.mcap; ROS bags as logs of joints",
    "drake": "npmp deploy trial simulator=drake",
    "unitree": "npmp deploy run robot=unitree_go2: messages over DDS",
    "warp": "MuJoCo Warp: physics on a GPU",
    "hub": "npmp skill push and pull: artefacts on the Hugging Face Hub",
    "docs": "make docs",
    "dev": "make test",
}


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    section: str
    name: str
    verdict: Verdict
    detail: str
    advice: str = ""


def check_installation(timeout_s: float) -> list[Finding]:
    """All checks. timeout_s: of each rendering backend."""
    return [
        check_python(),
        *check_packages(),
        run_check("core", "devices", devices),
        run_check("core", "mujoco.batch", batch, f"needs mujoco >=3.17,<4: {INSTALL}"),
        *(
            Finding("rendering", name, "absent", reason, backend.ADVICE[name])
            if reason
            else Finding("rendering", name, "ok", "renders")
            for name, reason in backend.reasons(timeout_s).items()
        ),
        *check_extras(),
        run_check("robots", "models", models),
    ]


def check_python() -> Finding:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Finding("core", "python", "ok", f"{detail}, {cpus()} CPUs")
    return Finding("core", "python", "broken", detail, "use Python 3.11 to 3.13")


def requirements(extra: str | None = None) -> list[str]:
    """The requirement lines of npmp's metadata, of the core or of an extra; [] if npmp is not
    installed."""
    try:
        lines = [line.partition(";") for line in metadata.requires("npmp") or []]
    except metadata.PackageNotFoundError:
        return []
    plain = [(line.strip(), marker.replace("'", '"')) for line, _, marker in lines]
    if extra is None:
        return [line for line, marker in plain if "extra ==" not in marker]
    return [line for line, marker in plain if f'extra == "{extra}"' in marker]


def check_requirement(line: str) -> tuple[Verdict, str, str]:
    """Verdict, package and detail of one requirement line."""
    from packaging.requirements import Requirement

    requirement = Requirement(line)
    name = requirement.name
    specifier = requirement.specifier
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent", name, f"not installed, needs {specifier or 'any version'}"
    if not specifier.contains(version, prereleases=True):
        return "broken", name, f"{version} is installed, needs {specifier}"
    return "ok", name, version


def check_packages() -> list[Finding]:
    """Whether every core package is installed in a supported version."""
    results = [check_requirement(line) for line in requirements()]
    if not results:
        message = "npmp is not installed as a package, so versions cannot be checked"
        return [Finding("core", "npmp", "broken", message, INSTALL)]
    if wrong := [(name, detail) for verdict, name, detail in results if verdict != "ok"]:
        return [Finding("core", name, "broken", detail, INSTALL) for name, detail in wrong]
    listed = ", ".join(f"{name} {version}" for _, name, version in results)
    return [Finding("core", "packages", "ok", listed)]


def run_check(section: str, name: str, check: Callable[[], str], advice: str = INSTALL) -> Finding:
    """The result of a check, or its exception."""
    try:
        return Finding(section, name, "ok", check())
    except Exception as error:
        return Finding(section, name, "broken", f"{type(error).__name__}: {error}", advice)


def devices() -> str:
    """torch and its devices."""
    import torch

    threads = f"cpu ({torch.get_num_threads()} threads)"
    build = torch.version.cuda
    if torch.cuda.is_available():
        each = range(torch.cuda.device_count())
        return ", ".join([threads, *(f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in each)])
    state = f"built for CUDA {build}, no device" if build else "CPU build"
    return f"{threads}; torch {torch.__version__}: {state}"


def batch() -> str:
    """Compare a batch of simulations with a single one."""
    import mujoco
    import mujoco.batch
    import numpy as np

    body = "<body pos='0 0 1'><freejoint/><geom size='.1'/></body>"
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{body}</worldbody></mujoco>")
    simulations = mujoco.batch.Batch(model, 4, 0)
    data = mujoco.MjData(model)
    simulations.step(nstep=10)
    mujoco.mj_step(model, data, nstep=10)
    if not np.allclose(np.asarray(simulations.bind("qpos")), data.qpos):
        raise RuntimeError("the result differs from that of a single simulation")
    return f"mujoco {mujoco.__version__}: 4 simulations agree with a single one"


def models() -> str:
    """Load and compile every robot whose model is on this machine."""
    from npmp import robots

    described = []
    for name in robots.names():
        if not robots.is_local(name):
            described.append(f"{name} (not downloaded yet)")
            continue
        model = robots.load(name).model()
        described.append(f"{name} ({model.nu} joints, {model.body_mass.sum():.3f} kg)")
    return ", ".join(described)


def check_extras() -> list[Finding]:
    """Each extra with the command that installs it."""
    findings = []
    for extra, feature in EXTRAS.items():
        if not (results := [check_requirement(line) for line in requirements(extra)]):
            continue
        missing = [f"{name} ({detail})" for verdict, name, detail in results if verdict != "ok"]
        packages = missing or [f"{name} {version}" for _, name, version in results]
        install = f"make install EXTRAS={extra}   or: pip install 'npmp[{extra}]'"
        state: Verdict = "absent" if missing else "ok"
        detail = f"{', '.join(packages)} ({feature})".lstrip()
        findings.append(Finding("extras", extra, state, detail, install if missing else ""))
    return findings
