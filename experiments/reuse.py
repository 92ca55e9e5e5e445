"""`npmp reuse`: train a high-level policy on a task, acting through the frozen decoder of a skill
module."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from mocap_data.errors import InputError
from npmp import modules, policies, robots, tasks
from npmp.experiments.backend import backend_of, collectors_of, motions_of, robots_config_of
from npmp.experiments.common import Run, above_zero, at_least, console, plain, verb
from npmp.experiments.live import caller_of
from npmp.experiments.typed import build
from npmp.nets.high_level import HighLevelConfig
from npmp.reuse import HighLevelPolicy
from npmp.skill import SkillModule
from npmp.tasks.inputs import SETTINGS as TOLD
from npmp.training import loggers
from npmp.training.reuse import REUSE_ALGORITHMS, ReuseSettings, check_task, train_policy


def inputs(config: DictConfig, run: Run) -> dict[str, Any]:
    """The arguments of `train_policy` that a run's configuration asks for.

    Raises:
      InputError: for an unknown task or algorithm, settings out of range, or a module or dataset
        that does not fit.
    """
    kind: Any = tasks.find(config.task.name)
    check_task(kind)
    if config.algo.name not in REUSE_ALGORITHMS:
        raise InputError(
            f"reuse has no algorithm '{config.algo.name}'; there are: {', '.join(REUSE_ALGORITHMS)}"
        )
    at_least(
        config,
        steps=1,
        checkpoint_every=1,
        evaluation__every=1,
        evaluation__robots=1,
        algo__num_envs=1,
    )
    above_zero(config, "evaluation.seconds")
    logger = loggers.check(config.get("logger", "tensorboard"))
    robot = robots.load(config.robot.name)
    module = modules.find(str(config.module))
    skill = SkillModule.load(module)
    skill.check_robot(robot)
    motions = motions_of(config, robot)
    policy, teacher = (
        None if config.get(key) is None else policies.find(str(config[key]))
        for key in ("policy", "teacher")
    )
    known = dict(skill.contract.training)
    if (knows := policy or teacher) is not None:
        told = HighLevelPolicy.load(knows).contract.told
        # a teacher shows its own commands
        known |= {name: told[name] for name in (TOLD if teacher is None else told)}
        if None not in (told["clock_s"], config.task.get("clock_s")):
            known["clock_s"] = config.task.clock_s  # it may learn to walk by another rhythm
    task = kind.resolve(
        build(kind.config_type, config.task, at="task"), motions if teacher is None else None, known
    )
    if policy is not None:
        refuse_other_network(policy, config.high_level, run.given)
    settings = ReuseSettings(
        algo=build(
            REUSE_ALGORITHMS[config.algo.name], config.algo, ignore=("name", "num_envs"), at="algo"
        ),
        num_envs=config.algo.num_envs,
        net=build(HighLevelConfig, config.high_level, at="high_level"),
        joint_space=bool(config.get("joint_space", False)),
        robots=robots_config_of(config, skill, adapts=True),
        num_threads=run.threads,
        steps=config.steps,
        evaluate_every=config.evaluation.every,
        evaluation_robots=config.evaluation.robots,
        evaluation_seconds=config.evaluation.seconds,
        checkpoint_every=config.checkpoint_every,
        collectors=collectors_of(config, run.given),
        logger=logger,
        **backend_of(config, run),
    )
    return {
        "module": module,
        "make_task": lambda: kind(robot, task, motions),
        "out": run.folder,
        "settings": settings,
        "motions": motions,
        "policy": policy,
        "teacher": teacher,
        "seed": run.seed,
        "resume": run.resume,
        "caller": caller_of(config, run),
    }


def refuse_other_network(policy: Path, asked: DictConfig, given: Collection[str]) -> None:
    """Raise InputError for settings of the network that are given, and that the policy that goes on
    has otherwise."""
    own = HighLevelPolicy.load(policy).contract
    for name, value in plain(asked).items():
        key, has = f"high_level.{name}", own.alpha if name == "alpha" else own.net.get(name)
        if not (key in given or "high_level" in given) or value in (None, has):
            continue
        raise InputError(f"{key}={value} does not change policy={policy}, whose network has {has}")


def run(config: DictConfig, run: Run) -> int:
    """Train, and say what came out."""
    summary = train_policy(**inputs(config, run))
    figure = tasks.find(config.task.name).main_figure
    error = summary[figure]
    console().print(
        f"{figure}: {error['random_latents']:.3f} with random latents, {error['after']:.3f} after"
        f" {summary['env_steps']:,} environment steps ({summary['minutes_here']} minutes here):"
        f" {run.folder / 'policy'}",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def check(config: DictConfig, run: Run) -> None:
    """Raise InputError for settings that `run` would refuse, as far as they tell without the data."""
    without = config.copy()
    if config.data is not None:
        without.data = without.split = None
    inputs(without, run)


main = verb("reuse", run, protect="checkpoints", check=check)
