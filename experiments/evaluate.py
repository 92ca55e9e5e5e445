"""`npmp evaluate`: a skill module against reference motions, or a policy at its task;
evaluation.json, report.html."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from mocap_data import MotionSet
from mocap_data.errors import InputError
from mocap_data.files import write_json
from npmp import modules, report, robots, tasks
from npmp.envs import RobotBatchConfig, Trial
from npmp.evaluation.module import evaluate_module
from npmp.evaluation.policy import (
    PolicyEvaluation,
    PolicyEvaluationConfig,
    evaluate_policy,
    teacher_of,
)
from npmp.experiments.backend import (
    backend_of,
    motions_of,
    note_other_drives,
    policy_of,
    robots_config_of,
)
from npmp.experiments.common import Run, at_least, console, made_by, refuse_idle, say, table, verb
from npmp.experiments.typed import build
from npmp.report import policy_page
from npmp.reuse import HighLevelPolicy, PolicyActor
from npmp.robots import Robot
from npmp.skill import SkillModule


def judged(
    policy: HighLevelPolicy,
    skill: SkillModule,
    robot: Robot,
    task: Mapping[str, Any] | DictConfig,
    config: PolicyEvaluationConfig,
    *,
    motions: MotionSet | None = None,
    like: RobotBatchConfig | None = None,
    seed: int,
    **place: Any,
) -> PolicyEvaluation:
    """A policy at a task of the group `task`, over the commands it was trained for where that names
    none."""
    kind: Any = tasks.find(task["name"])
    policy.check_task(kind)
    settings = kind.resolve(build(kind.config_type, task, at="task"), None, policy.contract.told)
    return evaluate_policy(
        PolicyActor(policy, skill),
        lambda: kind(robot, settings, motions),
        config,
        like,
        seed=seed,
        **place,
    )


def walking_of(trial: Trial) -> report.Walking:
    """The traces of a trial's first robot, for a report."""
    command, achieved = (trial.seen[name][:, 0].numpy() for name in ("command", "achieved"))
    return report.Walking(
        (np.arange(len(trial.fell)) + 1) * trial.dt, command, achieved, trial.qpos[1:].numpy()
    )


def print_table(result: Mapping[str, Any]) -> None:
    """A line per clip, their mean and their median."""
    right = ("tracked", "of s", "base m", "max m", "last m", "joints rad")
    rows = []
    for row in [
        *result["clips"],
        *({"name": average, **result[average]} for average in ("mean", "median")),
    ]:
        base = row["base_deviation_m"]
        duration = f"{row['duration_s']:.1f}" if "duration_s" in row else ""
        figures = [
            f"{value:.3f}"
            for value in (base["mean"], base["max"], base["last"], row["joint_error_rad"])
        ]
        rows.append((row["name"], f"{row['tracked_fraction']:.3f}", duration, *figures))
    console().print(table(("clip", *right), rows, right=right, box=None))


def run(config: DictConfig, run: Run) -> int:
    """Evaluate a policy where one is named, else a module; write the files, print the figures."""
    at_least(config, starts=1)
    robot = robots.load(config.robot.name)
    if config.policy is not None:
        refuse_idle(config, run.given, "is of a module's evaluation, not of a policy's", "starts")
        run_policy(config, run, robot)
        return 0
    refuse_idle(
        config, run.given, "is of a policy's evaluation: policy=... and task=...", "evaluation"
    )
    if config.get("task") is not None:
        raise InputError(
            f"task={config.task.name} is judged of a policy: give policy=NAME or its folder"
        )
    for key, what in (("module", "a skill module"), ("data", "the motion dataset, HDF5")):
        if config[key] is None:
            raise InputError(f"npmp evaluate needs {key}=... ({what}), or policy=... and task=...")
    motions = motions_of(config, robot)
    assert motions is not None  # data is there
    module = modules.find(str(config.module))
    skill = SkillModule.load(module, run.device)
    skill.check_robot(robot)
    skill.check_encoder(robot)
    like = robots_config_of(config, skill)
    place: dict[str, Any] = {**backend_of(config, run), "threads": run.threads}
    run.begin()
    result: dict[str, Any] = {
        "module": module.name,
        "data": Path(str(config.data)).name,
        "split": config.split,
    }
    result |= {
        key: config[key] for key in ("max_speed", "max_foot_height") if config[key] is not None
    }
    result |= evaluate_module(
        skill, robot, motions, run.folder, like=like, starts=config.starts, seed=run.seed, **place
    )
    result |= {
        "versions": report.versions(),
        "randomization": config.randomization.name,
        "actuator": config.actuator,
    }
    warn_of_seen(result, config.split, len(motions.motions))
    write_json(run.folder / "evaluation.json", result)
    write_page(config, run, skill, motions, result, module.parent / "metrics.csv")
    print_table(result)
    print_summary(result, run.folder)
    return 0


def run_policy(config: DictConfig, run: Run, robot: Robot) -> None:
    """A policy at a task: evaluation.json, report.html and a line."""
    if config.get("task") is None:
        raise InputError("npmp evaluate policy=... needs task=..., e.g. task=walk")
    folder, policy, module, skill = policy_of(config, run.device)
    skill.check_robot(robot)
    motions = motions_of(config, robot)
    like = robots_config_of(config, skill)
    note_other_drives(policy.contract.training, config)
    settings = build(PolicyEvaluationConfig, config.evaluation, at="evaluation")
    place = {**backend_of(config, run), "num_threads": run.threads}
    found = judged(
        policy, skill, robot, config.task, settings, motions=motions, like=like, seed=run.seed, **place
    )  # fmt: skip
    run.begin()
    result: dict[str, Any] = {
        "policy": folder.name, "module": module.name, "robot": robot.name, "task": found.task.name, "seed": run.seed,
        "sim": config.sim, "actuator": config.actuator, "randomization": config.randomization.name,
        "teacher": teacher_of(policy.contract), "versions": report.versions(), "settings": asdict(found.task.config), **found.figures,
    }  # fmt: skip
    write_json(run.folder / "evaluation.json", result)
    made = made_by(config, run.seed) | {"training": policy.contract.training}
    policy_page.judged(run.folder / "report.html", found.task, result, found.trial, made)
    known = policy.contract.command_range
    for name, (low, high), (least, most) in zip(
        found.task.inputs, found.task.inputs.values(), known
    ):
        if low < least or high > most:
            say(f"{name} from {low:g} to {high:g}: the policy was trained in {least:g} to {most:g}")
    shown = ", ".join(f"{name} {result[name]:.3f}" for name in found.task.judged if name in result)
    say(f"{found.task.name}: {shown}; {run.folder / 'report.html'}")


def warn_of_seen(result: Mapping[str, Any], split: str | None, count: int) -> None:
    """Say so where scores of a validation split are no held-out scores."""
    if (seen := result["seen_in_training"]) and split == "validation":
        print(
            f"npmp: warning: the module was trained on recordings of {seen} of {count} validation clips,"
            " so these are no held-out scores; train with npmp imitate split=train",
            file=sys.stderr,
        )


def write_page(
    config: DictConfig,
    run: Run,
    skill: SkillModule,
    motions: MotionSet,
    result: dict[str, Any],
    metrics: Path,
) -> None:
    """OUT/report.html. metrics: the learning curve of the module, where it is there."""
    seen = result["seen_in_training"]
    report.build(
        run.folder / "report.html",
        report.ReportData(
            title=f"Imitation by {skill.robot}",
            subtitle=f"{len(motions.motions)} clips, each once from its first frame, deterministic"
            + (f"; {seen} of recordings that the module was trained on" if seen else ""),
            motions=motions.motions,
            evaluation=result,
            rollouts=run.folder / "rollouts.h5",
            learning=[("Imitation", metrics)] if metrics.is_file() else [],
            provenance=made_by(config, run.seed) | {"training": skill.contract.training},
        ),
    )


def print_summary(result: Mapping[str, Any], out: Path) -> None:
    """The line below the table."""
    starts = result["random_starts"]
    say(
        f"{result['mean']['time_share']:.3f} of the clips' time tracked; "
        f"from {starts['starts']} random starts: {starts['tracked_fraction']:.3f} of the remaining clip; "
        f"{out / 'report.html'}"
    )


main = verb("evaluate", run)
