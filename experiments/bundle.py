"""`npmp deploy check BUNDLE`: compare a bundle with torch and time its control step. `npmp deploy
trial BUNDLE`: run it in a simulator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mocap_data.errors import counted
from mocap_data.files import write_json
from npmp import robots
from npmp.core import ranges
from npmp.deploy import Bundle
from npmp.deploy.drake import DrakeRobot
from npmp.deploy.golden_check import check_golden
from npmp.deploy.log_comparison import QUANTILES, channels
from npmp.deploy.run_log import FILE, DeployLogger, fastest_joint
from npmp.deploy.simulated import SimulatedRobot, check_model
from npmp.deploy.trial import episodes, metrics, sample_commands
from npmp.experiments.command import NOW, Keys, Run, Verb
from npmp.experiments.terminal import progress_bar, say

SIMULATORS = {"mujoco": SimulatedRobot, "drake": DrakeRobot}


@dataclass(frozen=True, kw_only=True)
class CheckBundle(Keys):
    """Check that a bundle is complete and unchanged, that its graph equals torch on the golden
    steps up to rounding, and how long a control step takes.

    npmp deploy check bundle
    """

    # the folder that npmp deploy export wrote
    bundle: str


@dataclass(frozen=True, kw_only=True)
class TryBundle(CheckBundle):
    """Run a bundle on flat ground in a simulator, the training one or another.

    npmp deploy trial bundle out=runs/mujoco
    npmp deploy trial bundle simulator=drake out=runs/drake
    """

    # mujoco, or drake (needs the extra drake)
    simulator: Literal["mujoco", "drake"] = "mujoco"
    # episodes from the home pose, with random commands within the bundle's ranges every 3 s
    episodes: int = 50
    # largest number of control steps of an episode
    steps: int = 1000
    # the folder for trial.json and log.h5
    out: Path | None = Path(f"runs/trial/{NOW}")

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "episodes", "steps")


def run_check(config: CheckBundle, run: Run) -> None:
    """Run the golden steps; raise InputError for differences."""
    bundle = Bundle.read(config.bundle)
    golden = bundle.golden()
    contract = bundle.contract
    steps = len(golden.reset)
    resets = int(golden.reset.sum())
    period_us = 1e6 / contract.control_rate_hz
    joints = counted(len(contract.joints), "joint")
    say(f"{contract.task} by {contract.robot}: {joints} at {contract.control_rate_hz:g} Hz")
    say("commands:")
    for component in contract.commands:
        say(
            f"  {component.name} [{component.unit}] {component.range[0]:g} to "
            f"{component.range[1]:g}: {component.meaning}"
        )
    result = check_golden(bundle)
    off = f"{result.difference:.1e} ({result.times_rounding:.1f} times rounding)"
    say(f"largest difference from torch: {off}; in a rollout {result.in_rollout:.1e}")
    say(f"over {steps:,} steps, {resets} of them resets")
    median, slow = (1e6 * seconds for seconds in (result.median_s, result.p99_s))
    say(f"a control step: median {median:.0f} us, p99 {slow:.0f} us of {period_us:,.0f} us")


def run_trial(config: TryBundle, run: Run) -> None:
    """Walk with random commands; write trial.json and the log."""
    bundle = Bundle.read(config.bundle)
    contract = bundle.contract
    simulator = config.simulator
    folder = run.folder
    robot = robots.load(contract.robot)
    check_model(contract, robot)
    sample_commands(contract, 1, run.seed)  # raises for other commands before any work
    count = config.episodes
    steps = config.steps
    simulated = SIMULATORS[simulator](robot, accelerometer=contract.accelerometer, crouch=1.0)
    about: dict[str, Any] = {"policy_sha256": contract.policy_sha256}
    about |= {"episodes": count, "steps": steps, "seed": run.seed}
    check_golden(bundle)
    logger = DeployLogger(contract, simulator, about)
    policy = bundle.policy()
    run.begin()
    with progress_bar() as bar:
        walked = episodes(
            simulated,
            policy,
            contract,
            count=count,
            steps=steps,
            seed=run.seed,
            record=logger.record,
        )
        episode_results = list(bar.track(walked, total=count, description=simulator))
    log = logger.write(folder / FILE)
    sensed = {name: np.quantile(x, QUANTILES).tolist() for name, x in channels(log).items()}
    result = {
        "bundle": str(bundle.folder),
        "robot": robot.name,
        "task": contract.task,
        "simulator": simulator,
        **about,
        **metrics(episode_results, steps, contract.control_rate_hz),
        "fastest_joint": fastest_joint(log, contract),
        "quantiles": QUANTILES,
        "channels": sensed,
    }
    write_json(folder / "trial.json", result)
    times = f"{counted(count, 'episode')}, {counted(result['falls'], 'fall')}"
    survival = f"{100 * result['steps_survived']:.1f} % of the steps survived"
    say(f"{contract.task} by {robot.name} in {simulator}: {times}; {survival}")
    error = result["velocity_error_1s"]
    say(f"velocity error over 1 s: {'unknown' if error is None else format(error, '.3f')}")
    show_fastest(result["fastest_joint"])
    say(f"written: {folder / 'trial.json'}, {FILE}")


def show_fastest(fastest: dict[str, Any]) -> None:
    """Warn if joints exceed the velocity limits of their drives."""
    if fastest and fastest["steps_above"]:
        say(
            "warning: joints exceed the velocity limits of their drives in "
            f"{100 * fastest['steps_above']:.1f} % of the steps: "
            f"{fastest['name']} up to {fastest['max']:.1f} rad/s "
            f"(99 %: {fastest['p99']:.1f}), limit {fastest['limit']:g}"
        )


_common: Any = {"torch": False, "positional": ("bundle",), "devices": ("cpu",)}
check = Verb("deploy check", CheckBundle, run_check, out="optional_folder", **_common)
trial = Verb("deploy trial", TryBundle, run_trial, **_common)
