"""`npmp bundle check DIR`: whether a bundle is whole, answers as torch did, and how long a control step takes."""

from __future__ import annotations

import numpy as np
from omegaconf import DictConfig

from experiments.common import Run, one_of, say, verb
from mocap_data.errors import InputError
from npmp.deploy import Bundle
from npmp.deploy.bundle import GRAPH, TOLERANCE, replay, seconds_to_read

FIRST = 100  # steps that are not timed: caches are cold


def run(config: DictConfig, run: Run) -> int:
    """Replay the golden recording; refuse what differs."""
    one_of(config, "action", "check")
    if config.target is None:
        raise InputError("npmp bundle check needs a bundle's folder (npmp export policy=... out=FOLDER writes one)")
    bundle = Bundle.read(config.target)
    policy, golden, contract = bundle.policy(), bundle.golden(), bundle.contract
    result = replay(policy, golden)
    steps, resets = len(golden.reset), int(golden.reset.sum())
    say(f"{contract.task} by {contract.robot}: {len(contract.joint_names)} joints at {contract.control_rate_hz:g} Hz")
    say(f"largest difference from torch: {result.difference:.1e} rad over {steps:,} steps, {resets} of them resets")
    say(f"fed with its own setpoints, not the recording's: {result.on_its_own:.1e} rad")
    median, slow = np.quantile(1e6 * result.seconds[min(FIRST, steps - 1) :], (0.5, 0.99))
    least = 1e6 * seconds_to_read((bundle.folder / GRAPH).stat().st_size)
    say(f"a control step: median {median:.0f} us, p99 {slow:.0f} us; reading its weights once: {least:.0f} us")
    if not result.difference <= TOLERANCE:
        raise InputError(f"'{bundle.folder}' answers otherwise than torch: by {result.difference:.1e} rad")
    return 0


main = verb("bundle", run, out="optional_folder", torch=False, positional=("action", "target"), devices=("cpu",))
