"""`npmp imitate`: train a skill module to imitate a motion dataset."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from mocap_data.errors import InputError
from npmp import modules, robots
from npmp.envs import load_motions
from npmp.envs.reference import MIN_FRAMES
from npmp.experiments.backend import backend_of, collectors_of, robots_config_of
from npmp.experiments.common import Run, at_least, say, verb
from npmp.experiments.live import caller_of
from npmp.experiments.typed import build
from npmp.nets import NetConfig
from npmp.tasks import ImitationConfig
from npmp.training import loggers
from npmp.training.imitation import ALGORITHMS, ImitationSettings, train_module
from retarget.tempo import with_tempos


def settings_of(
    config: DictConfig, *, threads: int, place: dict[str, str], given: Collection[str] = ()
) -> ImitationSettings:
    """What the library takes, from a configuration of this verb. given: as `Run.given`.

    Raises:
      InputError: for an unknown algorithm or task, or settings out of range.
    """
    if config.algo.name not in ALGORITHMS:
        raise InputError(
            f"imitate has no algorithm '{config.algo.name}'; there are: {', '.join(ALGORITHMS)}"
        )
    if config.task.name != "imitation":
        raise InputError(f"no task '{config.task.name}' to imitate on; there are: imitation")
    at_least(
        config,
        steps=1,
        checkpoint_every=1,
        evaluation__every=1,
        evaluation__starts=1,
        algo__num_envs=1,
    )
    task = build(ImitationConfig, config.task, at="task")
    return ImitationSettings(
        algo=build(
            ALGORITHMS[config.algo.name], config.algo, ignore=("name", "num_envs"), at="algo"
        ),
        num_envs=config.algo.num_envs,
        net=build(NetConfig, config.net, at="net"),
        task=task,
        robots=robots_config_of(config, task, adapts=True),
        num_threads=threads,
        steps=config.steps,
        evaluate_every=config.evaluation.every,
        evaluation_starts=config.evaluation.starts,
        checkpoint_every=config.checkpoint_every,
        collectors=collectors_of(config, given),
        # runs to resume may be older than a key
        logger=loggers.check(config.get("logger", "tensorboard")),
        **place,
    )


def inputs(config: DictConfig, run: Run) -> dict[str, Any]:
    """The arguments of `train_module` that a run's configuration asks for."""
    settings = settings_of(
        config, threads=run.threads, place=backend_of(config, run), given=run.given
    )
    robot = robots.load(config.robot.name)
    motions = load_motions(config.data, robot, config.get("split"))
    return {
        "motions": motions,
        "robot": robot,
        "out": run.folder,
        "settings": settings,
        "trained_on": with_tempos(
            motions, robot, tuple(config.get("tempos", ())), min_frames=MIN_FRAMES
        ),
        "module": modules.find(str(config.module)) if config.get("module") else None,
        "about": {
            "data": Path(str(config.data)).name,
            "randomization": config.randomization.name if "randomization" in config else "none",
        },
        "seed": run.seed,
        "resume": run.resume,
        "caller": caller_of(config, run),
    }


def run(config: DictConfig, run: Run) -> int:
    """Train, and say what came out."""
    summary = train_module(**inputs(config, run))
    say(
        f"tracked share of the remaining clip: {summary['before']['tracked_fraction']:.3f} before, "
        f"{summary['after']['tracked_fraction']:.3f} after {summary['env_steps']:,} environment steps "
        f"({summary['minutes_here']} minutes here): {run.folder / 'module'}"
    )
    return 0


def check(config: DictConfig, run: Run) -> None:
    """Raise InputError for settings that `run` would refuse, as far as they tell without the data."""
    settings_of(config, threads=run.threads, place=backend_of(config, run), given=run.given)
    robots.load(config.robot.name)


main = verb("imitate", run, protect="checkpoints", check=check)
