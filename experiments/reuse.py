"""`npmp reuse`: train a high-level policy on a task, acting through the frozen decoder of a skill module."""

from __future__ import annotations

import dataclasses
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.common import Run, above_zero, at_least, console, verb
from experiments.live import caller_of
from experiments.plant import hold_of, place_of, plant_of
from experiments.typed import build
from mocap_data import MotionSet
from mocap_data.errors import InputError
from npmp import modules, robots
from npmp.envs import WalkingConfig, load_motions
from npmp.envs.walking import CommandRange, as_command_range, command_range_from_motions
from npmp.nets.high_level import HighLevelConfig
from npmp.reuse import VMPOTrainerConfig
from npmp.skill import SkillModule
from npmp.training import boards
from npmp.training.reuse import ReuseSettings, train_policy


def command_range(config: DictConfig, skill: SkillModule, motions: MotionSet | None) -> CommandRange:
    """The task's own range, else the dataset's, else what the module's training summary says.

    Raises:
      InputError: when none of them knows.
    """
    if config.task.command_range is not None:
        return as_command_range(OmegaConf.to_container(config.task.command_range))  # type: ignore[arg-type]
    if motions is not None:
        return command_range_from_motions(motions)
    known = skill.contract.training.get("command_range")
    if known is None:
        raise InputError(
            "the module does not say which velocities its motions cover; give data=FILE.h5 or"
            " task.command_range=[[low,high],[low,high],[low,high]] (forward m/s, lateral m/s, yaw rad/s)"
        )
    return as_command_range(known)


def task_of(config: DictConfig, skill: SkillModule, motions: MotionSet | None, threads: int) -> WalkingConfig:
    """The task's settings, with the module's hold and a range of commands that its motions cover."""
    values = {k: v for k, v in config.task.items() if k not in ("name", "command_range")}
    values |= {"command_range": command_range(config, skill, motions), "num_threads": threads}
    walking = build(WalkingConfig, OmegaConf.create(values), at="task")
    return dataclasses.replace(walking, plant=plant_of(config.get("randomization"), hold_of(skill)))


def inputs(config: DictConfig, run: Run) -> dict[str, Any]:
    """The arguments of `train_policy` that a run's configuration asks for.

    Raises:
      InputError: for an unknown task or algorithm, settings out of range, or a module or dataset that does not fit.
    """
    if config.task.name != "walk":
        raise InputError(f"no reuse task '{config.task.name}'; there are: walk")
    if config.algo.name != "vmpo":
        raise InputError(f"reuse has no algorithm '{config.algo.name}'; there are: vmpo")
    at_least(config, steps=1, checkpoint_every=1, evaluation__every=1, evaluation__robots=1, algo__num_envs=1)
    above_zero(config, "evaluation.seconds")
    logger = boards.check(config.get("logger", "tensorboard"))
    robot = robots.load(config.robot.name)
    module = modules.find(str(config.module))
    skill = SkillModule.load(module)
    skill.check_robot(robot)
    motions = None if config.data is None else load_motions(config.data, robot)
    settings = ReuseSettings(
        algo=build(VMPOTrainerConfig, config.algo, ignore=("name", "num_envs"), at="algo"),
        num_envs=config.algo.num_envs,
        net=build(HighLevelConfig, config.high_level, at="high_level"),
        task=task_of(config, skill, motions, run.threads),
        steps=config.steps,
        evaluate_every=config.evaluation.every,
        evaluation_robots=config.evaluation.robots,
        evaluation_seconds=config.evaluation.seconds,
        checkpoint_every=config.checkpoint_every,
        logger=logger,
        **place_of(config, run),
    )
    return {
        "module": module,
        "robot": robot,
        "out": run.place,
        "settings": settings,
        "motions": motions,
        "seed": run.seed,
        "resume": run.resume,
        "caller": caller_of(config, run),
    }


def run(config: DictConfig, run: Run) -> int:
    """Train, and say what came out."""
    summary = train_policy(**inputs(config, run))
    error = summary["velocity_error"]
    console().print(
        f"velocity error |v - v_cmd|: {error['random_latents']:.3f} with random latents, {error['after']:.3f} after"
        f" {summary['env_steps']:,} environment steps ({summary['minutes_here']} minutes here):"
        f" {run.place / 'policy'}",
        highlight=False,
        soft_wrap=True,
    )
    return 0


main = verb("reuse", run, protect="checkpoints")
