"""`npmp skill info | wander MODULE`: a module's description, and rollouts of its prior."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mocap_data.files import write_json
from mocap_data.store import MotionSet
from npmp import robots
from npmp.core import ranges
from npmp.evaluation import analysis
from npmp.evaluation.analysis.latents import ACTIVE_NATS
from npmp.evaluation.analysis.wandering import write_motions
from npmp.experiments.backend import Simulating, module_of, motions_of
from npmp.experiments.command import Run, Verb, provenance_of
from npmp.experiments.inspect import show, show_records, text
from npmp.experiments.terminal import say
from npmp.skills.skill_module import SkillModule
from npmp.view.report import skill_page


@dataclass(frozen=True, kw_only=True)
class _OfModule(Simulating):
    """Keys of commands on a skill module."""

    # a skill module: its folder, or a shipped one's name (npmp skill list)
    module: str
    # train or validation: only the clips of that split; null: all
    split: str | None = None
    # robots at once
    envs: int = 64
    # hold of setpoints, first_order or zero_order; null: as in the module's training
    hold: str | None = None
    # the folder for the figures (JSON), rollouts.h5 and report.html; null: print only
    out: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "envs")


@dataclass(frozen=True, kw_only=True)
class ModuleInfo(_OfModule):
    """Describe a skill module, and with data= the use of its latents.

    npmp skill info anymal_b_dog
    npmp skill info anymal_b_dog data=dog.h5 split=validation out=runs/read
    """

    # the motion dataset (HDF5) to track
    data: Path | None = None
    # control steps of each robot
    steps: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "steps")


@dataclass(frozen=True, kw_only=True)
class WanderModule(_OfModule):
    """Roll out a module's prior without a task.

    npmp skill wander anymal_b_dog out=runs/wander
    npmp skill wander runs/imitation/module data=motions.h5 randomization=paper
    """

    # the motion dataset (HDF5) whose random frames robots start from; null: the home pose
    data: Path | None = None
    # upper limit [s], which also counts for robots that are still up
    seconds: float = 20.0
    # number of robots in rollouts.h5 and on the page
    shown: int = 8
    # a page with the replay; false: figures and rollouts.h5 only
    report: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "shown")
        ranges.above_zero(self, "seconds")


def _set_up(
    config: ModuleInfo | WanderModule, run: Run
) -> tuple[SkillModule, MotionSet | None, dict[str, Any]]:
    """The module, the motions of data=, and the shared arguments of both analyses."""
    robot = robots.load(config.robot)
    _, skill, like = module_of(config, run, robot)
    setup = {"robot": robot, "num_robots": config.envs, "seed": run.seed}
    motions = motions_of(config.data, robot, split=config.split)
    setup |= {"robots_config": like, "threads": run.threads, "engine": run.engine}
    return skill, motions, setup


def run_info(config: ModuleInfo, run: Run) -> None:
    """Print the module's description, and with data= the use of its latents."""
    _, motions, setup = _set_up(config, run)
    figures = {"module": Path(config.module).name} | analysis.describe(config.module)
    if config.data is not None and motions is not None:
        use = analysis.latent_use(config.module, motions, steps=config.steps, **setup)
        figures["latents"] = {
            "data": config.data.name,
            "split": config.split,
            "randomization": run.chosen["randomization"],
            "kl_nats_per_step": float(use.kl.sum()),
            "active_dimensions": use.active(),
            "active_above_nats": ACTIVE_NATS,
            "dimensions": use.rows(),
        }
    if run.out is not None:
        write_json(run.out / "info.json", figures)
    latents = figures.pop("latents", {})
    show(figures)
    if latents:
        rows = latents.pop("dimensions")
        say(f"latents: {text(latents)}")
        show_records("dimensions", rows)


def run_wander(config: WanderModule, run: Run) -> None:
    """Roll out robots on latents of the prior."""
    skill, motions, setup = _set_up(config, run)
    trial = analysis.wander(
        config.module, motions, seconds=config.seconds, kept=config.shown, **setup
    )
    robot = setup["robot"]
    figures = {
        "module": Path(config.module).name,
        "robot": robot.name,
        "starts": "home pose" if config.data is None else f"random frames of {config.data.name}",
        "split": config.split,
        "randomization": run.chosen["randomization"],
        "robots": config.envs,
        "seconds": trial.cap_s,
        "seed": run.seed,
        "latents": trial.summary(),
    }
    if run.out is not None:
        write_json(run.out / "wander.json", figures)
        licence = "; ".join(skill.contract.training.get("licences", [])) or "unknown"
        source = f"the prior of module {figures['module']}"
        write_motions(run.out / "rollouts.h5", robot, trial, source=source, licence=licence)
        if config.report:
            skill_page.write(run.out / "report.html", robot, figures, trial, provenance_of(run))
    show(figures)
    if run.out is None:
        say("out=FOLDER writes the figures, the motions and a page with a replay.")
    else:
        say(str(run.out / ("report.html" if config.report else "rollouts.h5")))


_common: Any = {"out": "optional_folder", "positional": ("module",), "devices": ("cpu",)}
info = Verb("skill info", ModuleInfo, run_info, **_common)
wander = Verb("skill wander", WanderModule, run_wander, **_common)
