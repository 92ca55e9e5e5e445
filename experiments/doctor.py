"""`npmp doctor`: what is installed, what works here, and what to do about the rest."""

from __future__ import annotations

import importlib.metadata as metadata
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.markup import escape

from mocap_data.files import write_json
from npmp import ranges
from npmp.devices import cpus
from npmp.experiments.command import Command, Keys, Run
from npmp.experiments.terminal import INTERNAL_ERROR, OK, console, say, table
from npmp.render import backend

Verdict = Literal["ok", "absent", "broken"]
SIGNS: Mapping[Verdict, str] = {
    "ok": "[green]ok[/]",
    "absent": "[yellow]absent[/]",
    "broken": "[red]broken[/]",
}

# What npmp can do with each extra and not without it.
EXTRAS = {
    "c3d": "reads C3D recordings",
    "menagerie": "robots whose models are not shipped: ANYmal C, Go1, Go2, A1",
    "warp": "sim=warp: physics on a GPU",
    "ppo": "npmp imitate algo=ppo",
    "wandb": "logger=wandb",
    "search": "hydra/sweeper=optuna: settings proposed by scores",
    "ray": "hydra/launcher=ray: sweeps on a cluster",
    "deploy": "npmp deploy: policies for robots",
    "render": "npmp render out=FILE.mp4",
    "drake": "npmp deploy trial simulator=drake",
    "play": "npmp play: a robot to steer in the browser",
    "docs": "make docs",
    "dev": "make test",
}


@dataclass(frozen=True, kw_only=True)
class Doctor(Keys):
    """Say what is installed and what works here (versions, devices, renderers, extras), and what to
    do about the rest."""

    # seconds to wait for each rendering backend
    timeout: float = 20.0
    # also write the findings to this JSON file
    out: Path | None = None

    def __post_init__(self) -> None:
        ranges.above_zero(self, "timeout")


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    section: str
    name: str
    verdict: Verdict
    detail: str
    advice: str = ""


def run(config: Doctor, run: Run) -> int:
    """Look at everything, print the table and a verdict."""
    findings = [
        check_python(),
        *check_packages(),
        check_torch(),
        check_batch(),
        *check_gl(config.timeout),
        *check_extras(),
        check_robots(),
    ]
    show(findings)
    if run.out is not None:
        write_json(run.out, [asdict(finding) for finding in findings])
    broken = [finding for finding in findings if finding.verdict == "broken"]
    if broken:
        say(f"npmp is broken here: {', '.join(finding.name for finding in broken)}")
        return INTERNAL_ERROR
    absent = [finding.name for finding in findings if finding.verdict == "absent"]
    say("npmp works here." + (f" Optional and absent: {', '.join(absent)}." if absent else ""))
    return OK


def show(findings: list[Finding]) -> None:
    """The findings as one table."""
    shown = table(("", "what", "state", "detail"), show_edge=False, pad_edge=False)
    section = ""
    for finding in findings:
        if section and finding.section != section:
            shown.add_section()
        advice = f"\n[dim]-> {escape(finding.advice)}[/]" if finding.advice else ""
        first = finding.section if finding.section != section else ""
        shown.add_row(first, finding.name, SIGNS[finding.verdict], escape(finding.detail) + advice)
        section = finding.section
    console().print(shown)


def check_python() -> Finding:
    right = (3, 11) <= sys.version_info[:2] <= (3, 13)
    detail = (
        f"{platform.python_version()} on {platform.system()} {platform.machine()}, {cpus()} CPUs"
    )
    return Finding(
        "core",
        "python",
        "ok" if right else "broken",
        detail,
        "" if right else "use Python 3.11 to 3.13",
    )


def requirements(extra: str | None = None) -> list[str]:
    """The requirement lines of npmp's own metadata, of the core or of one extra; empty where npmp
    is not installed."""
    try:
        lines = metadata.requires("npmp") or []
    except metadata.PackageNotFoundError:
        return []
    found = []
    for line in lines:
        requirement, _, marker = line.partition(";")
        if (
            (f"extra == '{extra}'" in marker.replace('"', "'"))
            if extra
            else ("extra ==" not in marker)
        ):
            found.append(requirement.strip())
    return found


def extras() -> list[str]:
    """The names of npmp's extras."""
    try:
        return metadata.metadata("npmp").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return []


def check_requirement(line: str) -> tuple[Verdict, str, str]:
    """(verdict, package, detail) of one requirement line."""
    from packaging.requirements import Requirement

    requirement = Requirement(line)
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return (
            "absent",
            requirement.name,
            f"not installed, needs {requirement.specifier or 'any version'}",
        )
    if not requirement.specifier.contains(version, prereleases=True):
        return "broken", requirement.name, f"{version} is installed, needs {requirement.specifier}"
    return "ok", requirement.name, version


def check_packages() -> list[Finding]:
    """Every core package, installed and in range."""
    lines = requirements()
    if not lines:
        advice = "make install (or: pip install -e . -c constraints.txt)"
        return [
            Finding(
                "core",
                "npmp",
                "broken",
                "not installed as a package: versions cannot be checked",
                advice,
            )
        ]
    results = [check_requirement(line) for line in lines]
    wrong = [(name, detail) for verdict, name, detail in results if verdict != "ok"]
    if wrong:
        advice = "make install (or: pip install -c constraints.txt -e .)"
        return [Finding("core", name, "broken", detail, advice) for name, detail in wrong]
    return [
        Finding(
            "core", "packages", "ok", ", ".join(f"{name} {version}" for _, name, version in results)
        )
    ]


def check_torch() -> Finding:
    """torch and the devices it sees."""
    try:
        import torch
    except Exception as error:
        return Finding("core", "torch", "broken", f"cannot be imported: {error}", "make install")
    if torch.cuda.is_available():
        names = [
            f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())
        ]
        return Finding(
            "core", "devices", "ok", f"cpu ({torch.get_num_threads()} threads), {', '.join(names)}"
        )
    why = (
        f"built for CUDA {torch.version.cuda}, sees no device"
        if torch.version.cuda
        else "CPU build"
    )
    return Finding(
        "core",
        "devices",
        "ok",
        f"cpu ({torch.get_num_threads()} threads); torch {torch.__version__}: {why}",
    )


def check_batch() -> Finding:
    """mujoco.batch: step a few simulations and compare with one alone."""
    try:
        import mujoco
        import mujoco.batch
        import numpy as np

        xml = (
            "<mujoco><worldbody><body pos='0 0 1'><freejoint/><geom "
            "size='.1'/></body></worldbody></mujoco>"
        )
        model = mujoco.MjModel.from_xml_string(xml)
        batch = mujoco.batch.Batch(model, 4, 0)
        batch.step(nstep=10)
        data = mujoco.MjData(model)
        mujoco.mj_step(model, data, nstep=10)
        if not np.allclose(np.asarray(batch.bind("qpos")), data.qpos):
            return Finding(
                "core",
                "mujoco.batch",
                "broken",
                "its result differs from a single simulation's",
                "make install",
            )
        return Finding(
            "core",
            "mujoco.batch",
            "ok",
            f"mujoco {mujoco.__version__}: 4 simulations agree with one alone",
        )
    except Exception as error:
        advice = "needs mujoco >=3.17,<4: make install"
        return Finding("core", "mujoco.batch", "broken", f"{type(error).__name__}: {error}", advice)


def check_gl(timeout_s: float) -> list[Finding]:
    """Which backends render, and what a report will hold."""
    results = backend.reasons(timeout_s)
    findings = [
        Finding(
            "rendering",
            name,
            "absent" if reason else "ok",
            reason or "renders",
            backend.ADVICE[name] if reason else "",
        )
        for name, reason in results.items()
    ]
    if all(results.values()):
        words = (
            "no GL backend renders: no npmp render; reports have their interactive "
            "replay all the same"
        )
        findings.append(Finding("rendering", "video", "absent", words))
    return findings


def check_extras() -> list[Finding]:
    """Each extra, and the command that installs it."""
    findings = []
    for extra in extras():
        results = [check_requirement(line) for line in requirements(extra)]
        missing = {name: detail for verdict, name, detail in results if verdict != "ok"}
        listed = ", ".join(f"{name} ({detail})" for name, detail in missing.items())
        listed = listed or ", ".join(f"{name} {version}" for _, name, version in results)
        used = f" ({EXTRAS[extra]})" if extra in EXTRAS else ""
        install = f"make install EXTRAS={extra}   or: pip install 'npmp[{extra}]'"
        advice = install if missing else ""
        findings.append(
            Finding("extras", extra, "absent" if missing else "ok", listed + used, advice)
        )
    return findings


def check_robots() -> Finding:
    """Every robot whose model is here loads and compiles; nothing is downloaded."""
    try:
        from npmp import robots

        described = []
        for name in robots.names():
            if not robots.is_at_hand(name):
                described.append(f"{name} (not downloaded yet)")
                continue
            robot = robots.load(name)
            model = robot.model()
            described.append(f"{name} ({model.nu} joints, {model.body_mass.sum():.3f} kg)")
        return Finding("robots", "models", "ok", ", ".join(described))
    except Exception as error:
        return Finding(
            "robots", "models", "broken", f"{type(error).__name__}: {error}", "make install"
        )


main = Command("doctor", Doctor, run, out="optional_file", torch=False)
