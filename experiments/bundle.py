"""`npmp bundle check DIR`: whether a bundle is whole, answers as torch did, and how long a control
step takes. `npmp bundle trial DIR`: how it walks in a simulator, and what it senses there against
another one or a robot."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

from mocap_data.errors import InputError, counted
from mocap_data.files import write_json
from npmp import robots
from npmp.deploy import Bundle, BundleContract, Policy
from npmp.deploy.bundle import GRAPH, TOLERANCE, replay, seconds_to_read
from npmp.deploy.comparison import FEWEST, QUANTILES, channels, compare, in_words, refuse_unlike
from npmp.deploy.drake import DrakeRobot
from npmp.deploy.realtime import check_priority, prioritized
from npmp.deploy.recording import Recorder, Recording, read_recording, write_recording
from npmp.deploy.runtime import ONNXRUNTIME, RUNTIMES
from npmp.deploy.simulated import SimulatedRobot
from npmp.deploy.trial import drawn, episodes, figures, refuse_other_model
from npmp.deploy.warp import WarpRobot
from npmp.experiments.common import Run, at_least, one_of, progress_bar, refuse_idle, say, verb

FIRST = 100  # steps that are not timed: caches are cold
SIMULATORS = {"mujoco": SimulatedRobot, "drake": DrakeRobot, "warp": WarpRobot}


def run(config: DictConfig, run: Run) -> int:
    """Do what action= says."""
    one_of(config, "action", "check", "trial")
    if config.target is None:
        raise InputError(
            f"npmp bundle {config.action} needs a bundle's folder (npmp export policy=... out=FOLDER writes one)"
        )
    bundle = Bundle.read(config.target)
    if config.action == "check":
        return check(bundle, config.runtime, check_priority(config.priority))
    refuse_idle(config, run.given, "is of action=check", "priority", "runtime")
    return trial(bundle, config, run)


def check(bundle: Bundle, runtime: str | None, priority: int) -> int:
    """Replay the golden recording by a runtime, or by each that is here and knows the graph; refuse
    what differs."""
    golden, contract = bundle.golden(), bundle.contract
    steps, resets = len(golden.reset), int(golden.reset.sum())
    say(
        f"{contract.task} by {contract.robot}: {len(contract.joint_names)} joints at {contract.control_rate_hz:g} Hz"
    )
    policies = _policies(bundle, runtime)  # made before others have to wait
    with prioritized(priority) as granted:
        if not granted:
            say(f"priority={priority} is not granted by this system; other work may delay steps")
        for kind, policy in policies:
            result = replay(policy, golden)
            off = f"{result.difference:.1e} rad over {steps:,} steps, {resets} of them resets"
            say(f"runtime={kind}: largest difference from torch: {off}")
            say(f"  fed with its own setpoints, not the recording's: {result.on_its_own:.1e} rad")
            say(f"  a control step: {_times(result.seconds)}")
            if not result.difference <= TOLERANCE:
                raise InputError(
                    f"'{bundle.folder}' answers otherwise than torch: by {result.difference:.1e} rad"
                )
        size = (bundle.folder / GRAPH).stat().st_size
        say(
            f"reading its weights once, the least that a step can take: {_times(seconds_to_read(size))}"
        )
    return 0


def _policies(bundle: Bundle, runtime: str | None) -> list[tuple[str, Policy]]:
    """By the runtime that is named, or by each that is installed; what numba does not know is left
    to the other."""
    here = [kind for kind in RUNTIMES if importlib.util.find_spec(kind) is not None]
    found, kinds = [], (here or [ONNXRUNTIME]) if runtime is None else [runtime]
    for kind in kinds:
        try:
            found.append((kind, bundle.policy(kind)))
        except InputError as error:
            if kind == ONNXRUNTIME or len(kinds) == 1:
                raise
            say(f"runtime={kind} is left out: {error}")
    return found


def _times(seconds: NDArray[np.float64]) -> str:
    """The first are not counted."""
    median, slow = np.quantile(1e6 * seconds[min(FIRST, len(seconds) // 2) :], (0.5, 0.99))
    return f"median {median:.0f} us, p99 {slow:.0f} us"


def trial(bundle: Bundle, config: DictConfig, run: Run) -> int:
    """Walk by drawn commands, write trial.json and recording.h5."""
    at_least(config, episodes=1, steps=1)
    one_of(config, "simulator", *SIMULATORS)
    contract, simulator = bundle.contract, str(config.simulator)
    robot, other = robots.load(contract.robot), None
    refuse_other_model(contract, robot)
    drawn(contract, 1, run.seed)  # refuses who cannot be told to walk before any work
    if config.against is not None:
        other = read_recording(str(config.against))
        refuse_unlike((contract.robot, contract.joint_names), (other.robot, other.joint_names))
        if not channels(other):
            raise InputError(
                f"against={config.against}: it has fewer than {FEWEST} samples while the policy acts"
            )
    count, steps = int(config.episodes), int(config.steps)
    simulated = SIMULATORS[simulator].several(robot, count, accelerometer=contract.accelerometer)
    folder, recorder, policies = (
        run.folder,
        Recorder(contract, simulator),
        [bundle.policy() for _ in simulated],
    )
    run.begin()
    with progress_bar() as bar:
        each = episodes(
            simulated,
            policies,
            contract,
            count=count,
            steps=steps,
            seed=run.seed,
            note=recorder.note,
        )
        found = list(bar.track(each, total=count, description=simulator))
    about = {
        "policy_sha256": contract.policy_sha256,
        "episodes": count,
        "steps": steps,
        "seed": run.seed,
    }
    recording = recorder.recording(about)
    write_recording(folder / "recording.h5", recording)
    result = {
        "bundle": str(bundle.folder), "robot": robot.name, "task": contract.task, "simulator": simulator, **about,
        **figures(found, steps, contract.control_rate_hz), **sensed(recording, other),
    }  # fmt: skip
    write_json(folder / "trial.json", result)
    show(result, contract)
    say(f"written: {folder / 'trial.json'}, recording.h5")
    return 0


def sensed(recording: Recording, other: Recording | None) -> dict[str, Any]:
    """The quantiles of each channel, and how they differ from those of the other recording."""
    mine = channels(recording)
    told: dict[str, Any] = {
        "quantiles": QUANTILES, "channels": {name: np.quantile(x, QUANTILES).tolist() for name, x in mine.items()}
    }  # fmt: skip
    if other is not None:
        differ = compare(mine, channels(other))
        told["against"] = {
            "source": other.source, "about": dict(other.about), "worst": in_words(differ),
            "median_ks": float(np.median([one.ks for one in differ])),
            "most_ks": max((one.ks, one.channel) for one in differ), "channels": [asdict(one) for one in differ],
        }  # fmt: skip
    return told


def show(result: dict[str, Any], contract: BundleContract) -> None:
    """What came of it, in a few lines."""
    error = (
        "unknown" if result["velocity_error_1s"] is None else f"{result['velocity_error_1s']:.3f}"
    )
    times = f"{counted(result['episodes'], 'episode')}, {counted(result['falls'], 'fall')}"
    made = f"{100 * result['steps_survived']:.1f} % of the steps made"
    say(f"{contract.task} by {contract.robot} in {result['simulator']}: {times}; {made}")
    say(f"velocity error over 1 s: {error}")
    if (against := result.get("against")) is not None:
        most, where = against["most_ks"]
        ks = f"Kolmogorov-Smirnov {against['median_ks']:.2f} in the middle, {most:.2f} at most ({where})"
        say(f"against {against['source']}: {ks}; the most different channels:")
        say(*(f"  {line}" for line in against["worst"]))


main = verb(
    "bundle",
    run,
    out="optional_folder",
    torch=False,
    positional=("action", "target"),
    devices=("cpu",),
)
