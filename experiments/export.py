"""`npmp deploy export`: a policy and its module as a bundle for robots."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from npmp import robots, tasks
from npmp.core.artifact import sha256
from npmp.deploy import mjlab
from npmp.deploy.bundle import MAX_STEPS, MIN_STEPS
from npmp.deploy.export import export
from npmp.deploy.onnx_policy import check_parity
from npmp.envs import TaskEnv
from npmp.experiments.backend import Simulating, policy_of
from npmp.experiments.command import Run, Verb
from npmp.experiments.run_folder import CONFIG, HYDRA
from npmp.experiments.store import group
from npmp.experiments.terminal import say
from npmp.view import web

RECORDED = 4  # robots of a golden rollout, concatenated, so that it has at least as many resets


@dataclass(frozen=True, kw_only=True)
class ExportPolicy(Simulating):
    """Export a policy and its module as a bundle for a robot (bundle.json, policy.onnx,
    golden.npz), for mjlab and Unitree's deployment (policy.onnx, deploy.yaml), or as a static page
    that simulates the robot in any browser (index.html).

    npmp deploy export policy=anymal_b_walk out=bundle
    npmp deploy export policy=g1_walk format=mjlab out=g1_mjlab
    npmp deploy export policy=go2_gaits_walk format=web out=page
    """

    # the policy: its folder, or a shipped one's name (npmp skill list)
    policy: str
    # folder of the policy's skill module; null: found by its checksum
    module: str | None = None
    # the policy's task if it is your own, whose file is run; null: a task of this package
    task: str | None = None
    # bundle; mjlab: one obs with base_lin_vel instead of the accelerometer; web: a page steered by
    # keys (needs npm)
    format: Literal["bundle", "mjlab", "web"] = "bundle"
    # the randomization of the golden rollout
    randomization: Any = group("paper")
    # control steps of the golden rollout, 100 to 10,000
    steps: int = 1200
    # the output folder; existing files are overwritten
    out: Path | None = Path("exported")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not MIN_STEPS <= self.steps <= MAX_STEPS // 2:
            raise ValueError(f"steps={self.steps}: must be from {MIN_STEPS} to {MAX_STEPS // 2}")


def run(config: ExportPolicy, run: Run) -> None:
    """Write the bundle, with a rollout of the policy's task."""
    robot = robots.load(config.robot)
    folder, policy, module, skill, like = policy_of(config, run, robot)
    own = policy.contract
    kind: Any = tasks.find(own.task, source=folder)
    task = kind(
        robot, kind.resolve(tasks.trained_config(kind, own.training), None, own.input_settings)
    )
    env = TaskEnv(task, RECORDED, robots=like, seed=run.seed, **run.place)
    is_bundle = config.format == "bundle"
    if config.format == "web":
        web.npm()
    run.begin()
    place = run.folder if is_bundle else run.folder / "bundle"
    try:
        bundle = export(
            place,
            policy,
            skill,
            env,
            sha256=sha256(folder / "policy.safetensors"),
            steps=config.steps,
            about={"randomization": run.chosen["randomization"], "seed": run.seed},
        )
        golden = bundle.golden()
        off = check_parity(bundle.policy(), golden).difference
        if config.format == "mjlab":
            mjlab.write(run.folder, bundle)
        if config.format == "web":
            size = web.write(run.folder, bundle, robot, folder.name)
            say(f"{1e-6 * size:.0f} MB to host: python -m http.server --directory {run.folder}")
    finally:
        if not is_bundle:
            shutil.rmtree(place, ignore_errors=True)
        # a bundle is shared, but settings contain paths of this machine
        (run.folder / CONFIG).unlink(missing_ok=True)
        shutil.rmtree(run.folder / HYDRA, ignore_errors=True)
    names = f"{folder.name} through {module.name}"
    say(f"{names}: {run.folder}, {off:.1e} from torch over {len(golden.reset):,} steps")


main = Verb("deploy export", ExportPolicy, run, devices=("cpu",))
