"""`npmp imitate`: train a skill module to imitate a motion dataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npmp import robots
from npmp.core import ranges
from npmp.envs import load_motions
from npmp.envs.reference import MIN_FRAMES
from npmp.experiments.backend import robots_config_of
from npmp.experiments.command import NOW, Run, Verb
from npmp.experiments.store import group
from npmp.experiments.terminal import say
from npmp.experiments.training import Training, caller_of, shared_settings
from npmp.learning.imitation import ImitationSettings, train_module
from npmp.skills import modules
from retarget.time_scaling import with_tempos


@dataclass(frozen=True)
class ImitationEvaluation:
    """Evaluations during training. Raises: ValueError for values out of range."""

    # iterations between evaluations
    every: int = 50
    # random start frames, the same at every evaluation
    starts: int = 64

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "every", "starts")


@dataclass(frozen=True, kw_only=True)
class ImitateKeys(Training):
    """Train a policy to imitate reference motions; its decoder becomes a skill module.

    npmp imitate robot=anymal_b data=motions.h5 out=runs/walk
    npmp imitate module=anymal_b_dog data=more.h5 randomization=paper algo.policy_lr=[3e-4,5e-5]
    out=runs/more
    npmp imitate resume=runs/walk steps=5000000
    npmp imitate -m data=motions.h5 seed=0,1,2 out=runs/seeds
    npmp imitate sweep=fig7 data=motions.h5 out=runs/fig7
    """

    # the imitation task
    task: Any = group("imitation")
    # the algorithm
    algo: Any = group("world_model")
    # sizes of the module's networks
    net: Any = group("small")
    # the motion dataset (HDF5) of npmp retarget
    data: Path
    # train or validation: only the clips of that split; null: all, without held-out clips
    split: str | None = None
    # a skill module to continue from (algo=world_model): its folder or a shipped one's name
    module: str | None = None
    # speeds of additional copies of every clip, e.g. [0.87,1.15]; evaluation uses the originals [D]
    tempos: list[float] = field(default_factory=list)
    # total number of environment steps
    steps: int = 1_500_000
    # evaluations during training
    evaluation: ImitationEvaluation = field(default_factory=ImitationEvaluation)
    # the run folder
    out: Path | None = Path(f"runs/imitate/{NOW}")


def settings_of(config: ImitateKeys, run: Run) -> ImitationSettings:
    """The library's settings. Raises InputError for settings out of range."""
    settings = ImitationSettings(
        net=config.net,
        task=config.task,
        robots=robots_config_of(config, config.task),
        evaluation_starts=config.evaluation.starts,
        **shared_settings(config, run),
    )
    settings.check_sizes()
    return settings


def inputs(config: ImitateKeys, run: Run) -> dict[str, Any]:
    """The arguments of `train_module` for a run's settings."""
    settings = settings_of(config, run)
    robot = robots.load(config.robot)
    motions = load_motions(config.data, robot, config.split)
    return {
        "motions": motions,
        "robot": robot,
        "out": run.folder,
        "settings": settings,
        "trained_on": with_tempos(motions, robot, tuple(config.tempos), min_frames=MIN_FRAMES),
        "module": None if config.module is None else modules.find(config.module),
        "summary_entries": {"data": config.data.name, "randomization": run.chosen["randomization"]},
        "seed": run.seed,
        "resume": run.resume,
        "caller": caller_of(run),
    }


def run(config: ImitateKeys, run: Run) -> None:
    """Train, and print the result."""
    summary = train_module(**inputs(config, run))
    say(
        f"tracked share of the remaining clip: {summary['before']['tracked_fraction']:.3f} before, "
        f"{summary['after']['tracked_fraction']:.3f} after {summary['env_steps']:,} environment "
        f"steps ({summary['minutes_here']} minutes here): {run.folder / 'module'}"
    )


def check(config: ImitateKeys, run: Run) -> None:
    """Raise InputError for invalid settings, as far as they can be checked without the data."""
    settings_of(config, run)
    robots.load(config.robot)


main = Verb("imitate", ImitateKeys, run, protect="checkpoints", check=check)
