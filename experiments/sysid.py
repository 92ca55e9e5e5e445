"""`npmp sysid fit | excite`: identify a robot's joint parameters from a log on a stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mocap_data.files import write_json
from npmp import robots
from npmp.actuators.actuator_log import read_stand_log, write_stand_log
from npmp.actuators.identification.estimation import IdentificationConfig, Identified, identify
from npmp.actuators.identification.excitation import (
    ExcitationConfig,
    excitation,
    random_parameters,
    simulate_log,
    write_commands,
)
from npmp.actuators.identification.preset import PresetConfig, preset, summary, write_preset
from npmp.actuators.identification.robot_log import match_robot
from npmp.actuators.identification.stand import KINDS, stand_of
from npmp.actuators.identification.truth import compare, read_truth, write_truth
from npmp.core import ranges
from npmp.experiments.command import NOW, Keys, Run, Verb, provenance_of
from npmp.experiments.store import group
from npmp.experiments.terminal import say, show_table
from npmp.view import report
from npmp.view.report import sysid_page


@dataclass(frozen=True, kw_only=True)
class _OnStand(Keys):
    """A robot on a stand that holds its trunk."""

    # a robot: its name, or the folder of its robot.yaml (npmp robots list)
    robot: str = "anymal_b"
    # the world's vertical in the trunk's frame, as the stand holds it
    up: tuple[float, float, float] = (0.0, 0.0, 1.0)
    # CPU threads of the simulator; results do not depend on them; null: all available ones
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class FitJoints(_OnStand):
    """Identify a robot's joints (armature, damping, friction, delay, encoder bias, gains) from a
    log on a stand. The results are estimates with uncertainty, and a randomization preset.

    npmp sysid fit data=runs/excite/log.npz truth=runs/excite/truth.json robot=anymal_b
    out=runs/sysid
    npmp sysid fit data=stand.npz robot=op3 up=[0,0,-1] out=runs/sysid
    """

    # the log, .npz: rate_hz, actuators (names of the joints) and of every recording R: R/command,
    # R/position, optionally R/velocity, R/torque; or a ROS bag or CSV (docs/actuators.md)
    data: Path
    # the truth.json of a simulated log, for the errors of the estimate; null: unknown
    truth: Path | None = None
    # the preset's randomization of everything but joints
    randomization: Any = group("paper")
    # the estimator
    identification: IdentificationConfig = field(default_factory=IdentificationConfig)
    # width of the preset around the estimate
    preset: PresetConfig = field(default_factory=PresetConfig)
    # the folder for sysid.json, the preset (randomization/) and report.html
    out: Path | None = Path(f"runs/sysid/{NOW}")


@dataclass(frozen=True, kw_only=True)
class ExciteJoints(_OnStand):
    """Write commands for such a log, and the log of a simulated robot with random parameters.

    npmp sysid excite robot=anymal_b out=runs/excite
    """

    # sums of sines, all joints at once, the joints of a limb at different frequencies [D]
    excitation: ExcitationConfig = field(default_factory=ExcitationConfig)
    # rate of commands and readings [Hz]; null: the robot's control rate
    rate_hz: float | None = None
    # true: the log has the drives' torques too, with 1 % of noise
    torque: bool = False
    # the folder for commands.csv, log.npz and truth.json
    out: Path | None = Path(f"runs/excite/{NOW}")

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.above_zero(self, "rate_hz")


def run_excite(config: ExciteJoints, run: Run) -> None:
    """Write OUT/commands.csv for a real robot, OUT/log.npz of a simulated one, and OUT/truth.json
    with its parameters."""
    robot = robots.load(config.robot)
    settings = config.excitation
    rate_hz = config.rate_hz or robot.control_rate_hz
    stand = stand_of(robot, rate_hz, up=list(config.up), threads=run.threads)
    rng = np.random.default_rng(run.seed)
    command = excitation(robot, stand, settings, rng)
    run.begin()
    hidden = random_parameters(stand, rng)
    log = simulate_log(stand, hidden, command, rng, torque=config.torque)
    write_commands(run.folder / "commands.csv", stand, command)
    write_stand_log(
        run.folder / "log.npz",
        log,
        licence="CC0-1.0",
        source=f"npmp sysid excite, {robot.name}, simulated",
    )
    write_truth(run.folder / "truth.json", robot, stand, hidden)
    widths = ", ".join(
        f"{name} {half:.2f}"
        for name, half in zip(stand.joints, np.ptp(command, axis=0) / 2, strict=True)
    )
    say(f"{log.seconds:g} s at {stand.rate_hz:g} Hz; rad to either side: {widths}")
    say(
        "commands.csv (for a robot on a stand), log.npz (of a simulated one) and truth.json "
        f"in {run.folder}"
    )


def run_fit(config: FitJoints, run: Run) -> None:
    """Fit; write OUT/sysid.json, randomization/NAME.yaml and report.html, and print a line per
    joint."""
    robot = robots.load(config.robot)
    log = match_robot(read_stand_log(config.data), robot)
    truth = None if config.truth is None else read_truth(config.truth, robot)
    settings = config.identification
    widths = config.preset
    stand = stand_of(robot, log.rate_hz, up=list(config.up), threads=run.threads)
    run.begin()
    identified = identify(stand, log, settings)
    result: dict[str, Any] = {"schema": "npmp.sysid", "robot": robot.name, "data": config.data.name}
    result |= {
        "rate_hz": log.rate_hz,
        "seconds": log.seconds,
        "versions": report.versions(),
        **summary(identified),
    }
    if truth is not None:
        off, result["coverage"] = compare(identified, truth)
        for name, errors in zip(identified.joints, off, strict=True):
            result["joints"][name]["off_by_errors"] = errors
    write_json(run.folder / "sysid.json", result)
    name = f"{robot.name}_identified"
    randomization = preset(identified, run.values["randomization"], name, widths)
    file = run.folder / "randomization" / f"{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    write_preset(file, randomization, config.data)
    sysid_page.write(run.folder / "report.html", stand, log, identified, result, provenance_of(run))
    show(identified, result)
    say(
        f"use it: npmp imitate --config-dir {run.folder} randomization={name} ...; "
        f"{run.folder / 'report.html'}"
    )


def show(identified: Identified, result: Mapping[str, Any]) -> None:
    """Print a line per joint, and the parameters that the motions do not determine."""
    kinds = [kind for k, kind in enumerate(KINDS) if (identified.error[:, k] > 0.0).any()]
    rows = []
    for j, name in enumerate(identified.joints):
        figures = [
            f"{identified.estimate[j, k]:.4g} ± {identified.error[j, k]:.2g}"
            for k in map(KINDS.index, kinds)
        ]
        rms = (f"{1e3 * of[j]:.2f}" for of in (identified.rms_before, identified.rms_after))
        rows.append((name, *figures, *rms))
    columns = (*kinds, "rms mrad", "after")
    show_table(("joint", *columns), rows, right=columns, box=None)
    for sentence in result["not_told_apart"]:
        say(f"not determined: {sentence}", wrap=True)
    if "coverage" in result:
        cover = result["coverage"]
        say(
            f"of {cover['parameters']} true values {cover['within_1']:.2f} lie within one standard "
            f"error, {cover['within_2']:.2f} within two (expected: 0.68 and 0.95)"
        )


_common: Any = {"torch": False, "devices": ("cpu",)}
fit = Verb("sysid fit", FitJoints, run_fit, **_common)
excite = Verb("sysid excite", ExciteJoints, run_excite, **_common)
