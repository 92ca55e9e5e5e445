"""`npmp evaluate`: a skill module against reference motions, or a policy at its task;
evaluation.json, report.html."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mocap_data import MotionSet
from mocap_data.errors import InputError, counted
from mocap_data.files import write_json
from npmp import robots
from npmp.core import ranges
from npmp.core.settings import to_plain
from npmp.evaluation.module import evaluate_module, feasibility_rows
from npmp.evaluation.policy import PolicyEvaluationConfig, at_task, evaluate_policy, task_factory
from npmp.experiments.backend import (
    Simulating,
    evaluation_record,
    module_of,
    motions_of,
    report_other_drives,
    simulated_policy_of,
)
from npmp.experiments.command import NOW, Run, Verb, provenance_of, refuse_idle
from npmp.experiments.store import group
from npmp.experiments.terminal import say, show_table, warn
from npmp.skills.composition import over
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.skill_module import SkillModule
from npmp.view import report
from npmp.view.report import policy_page
from npmp.view.report.gait_section import grid_line, transitions_line
from retarget.feasibility import FeasibilityMeter


@dataclass(frozen=True, kw_only=True)
class Evaluate(Simulating):
    """Evaluate a skill module on reference motions, or a policy at its task; write evaluation.json
    and report.html.

    npmp evaluate module=runs/walk/module data=motions.h5 out=runs/evaluation
    npmp evaluate policy=runs/reuse/policy randomization=paper evaluation.seconds=20 out=runs/walk
    npmp evaluate policy=runs/reuse/policy task.terrain=stairs evaluation.grounds=true
    out=runs/rough
    npmp evaluate policy=runs/reuse/policy task=path task.path=slalom task.speed_mps=1.0
    out=runs/slalom"""

    # a policy to evaluate: its folder, or a shipped one's name (npmp skill list); footsteps: a trot
    # planned over the ground, which module= tracks; null: evaluate a module
    policy: str | None = None
    # the task of a policy's evaluation; null: its own
    task: Any = group(None)
    # a skill module: its folder, or a shipped one's name; for a policy, null: found by its checksum
    module: str | None = None
    # the motion dataset (HDF5); for a policy: additional start poses; null: only the home pose
    data: Path | None = None
    # train or validation: only the clips of that split; null: all
    split: str | None = None
    # only clips with a root speed of at most this, averaged over half a second [m/s]; null: all
    max_speed: float | None = None
    # hold of setpoints, first_order or zero_order; null: as in the module's training
    hold: str | None = None
    # number of random start frames, in addition to each clip's first
    starts: int = 64
    # trials of a policy
    evaluation: PolicyEvaluationConfig = field(default_factory=PolicyEvaluationConfig)
    # the evaluation folder
    out: Path | None = Path(f"runs/evaluate/{NOW}")

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "starts")


def print_table(result: Mapping[str, Any]) -> None:
    """Print a line per clip, the mean, the median, and the means of the clips that the robot can
    do and cannot."""
    right = ("tracked", "of s", "base m", "max m", "last m", "joints rad")
    averages = [{"name": name, **result[name]} for name in ("mean", "median")]
    averages += [
        {"name": f"{name} ({result[name]['number']})", **result[name]}
        for name in feasibility_names(result)
    ]
    rows = []
    for row in [*result["clips"], *averages]:
        base = row["base_deviation_m"]
        seconds = f"{row['duration_s']:.1f}" if "duration_s" in row else ""
        figures = (base["mean"], base["max"], base["last"], row["joint_error_rad"])
        tracked, *others = (f"{value:.3f}" for value in (row["tracked_fraction"], *figures))
        rows.append((row["name"], tracked, seconds, *others, row.get("infeasible_by", "")))
    heading = "infeasible by" if feasibility_names(result) else ""
    show_table(("clip", *right, heading), rows, right=right, box=None)


def feasibility_names(result: Mapping[str, Any]) -> list[str]:
    """The names of the rows of clips that the robot can do and cannot; none if it can do all."""
    names = ("feasible", "infeasible")
    return [name for name in names if name in result and "infeasible" in result]


def run(config: Evaluate, run: Run) -> None:
    """Evaluate a policy, or without policy= a module; write the files, print the figures."""
    if config.policy is not None:
        refuse_idle(run, "needs a module's evaluation, without policy=", "starts")
        run_policy(config, run)
    else:
        refuse_idle(run, "needs policy=", "evaluation", "task")
        run_module(config, run)


def run_module(config: Evaluate, run: Run) -> None:
    """Evaluate a module on reference motions: evaluation.json, rollouts.h5, report.html and a
    table."""
    for key, meaning in (("module", "a skill module"), ("data", "the motion dataset, HDF5")):
        if getattr(config, key) is None:
            raise InputError(f"npmp evaluate needs {key}=... ({meaning}), or policy=...")
    robot = robots.load(config.robot)
    split = config.split
    module, skill, like = module_of(config, run, robot)
    skill.check_encoder(robot)
    if len(like.drives) > 1:
        raise InputError(f"actuator={config.actuator}: expected one kind of drives")
    motions = motions_of(config.data, robot, split=split, max_speed=config.max_speed)
    assert motions is not None and config.data is not None  # for the type checker
    meter = FeasibilityMeter(robot)
    run.begin()
    result: dict[str, Any] = {"module": module.name, "data": config.data.name, "split": split}
    if config.max_speed is not None:
        result["max_speed"] = config.max_speed
    result |= evaluate_module(
        skill,
        robot,
        motions,
        run.folder,
        like=like,
        starts=config.starts,
        seed=run.seed,
        device=run.device,
        threads=run.threads,
        engine=run.engine,
    )
    for clip, motion in zip(result["clips"], motions.motions, strict=True):
        feasibility = meter(motion)
        clip |= {"least_deviation_m": feasibility.deviation_m, "infeasible_by": feasibility.reason}
    result |= feasibility_rows(result["clips"])
    result |= {
        "versions": report.versions(),
        "randomization": run.chosen["randomization"],
        "actuator": config.actuator,
    }
    if (overlap := result["seen_in_training"]) and split == "validation":
        warn(
            f"warning: the module was trained on recordings of {overlap} of {len(motions.motions)} "
            "validation clips, so these are not held-out scores; train with npmp imitate "
            "split=train"
        )
    write_json(run.folder / "evaluation.json", result)
    write_page(run, skill, motions, result, module.parent / "metrics.csv")
    print_table(result)
    starts = result["random_starts"]
    for name in feasibility_names(result):
        clips = counted(result[name]["number"], f"{name} clip")
        say(f"{result[name]['time_share']:.3f} of the time of {clips} tracked")
    say(
        f"{result['mean']['time_share']:.3f} of the clips' time tracked; from {starts['starts']} "
        f"random starts: {starts['tracked_fraction']:.3f} of the remaining clip; "
        f"{run.folder / 'report.html'}"
    )


def run_policy(config: Evaluate, run: Run) -> None:
    """Evaluate a policy at a task: evaluation.json, report.html and a line."""
    robot = robots.load(config.robot)
    folder, policy, module, skill, like = simulated_policy_of(config, run, robot)
    motions = motions_of(config.data, robot, split=config.split, max_speed=config.max_speed)
    report_other_drives(policy.contract.training, config.actuator)
    name = str(run.chosen["task"])
    if isinstance(policy, HighLevelPolicy):
        policy = at_task(policy, robot, name, config.task)
    task = task_factory(policy, robot, name, config.task, motions)
    actor = over(policy, skill)
    options = {"seed": run.seed, **run.place}
    evaluation = evaluate_policy(actor, task, config.evaluation, like, motions=motions, **options)
    run.begin()
    result: dict[str, Any] = {
        **evaluation_record(config, run, folder, module, robot),
        "task": evaluation.task.name,
        "settings": to_plain(evaluation.task.config),
        **evaluation.figures,
    }
    write_json(run.folder / "evaluation.json", result)
    provenance = provenance_of(run) | {"training": policy.contract.training}
    policy_page.write(
        run.folder / "report.html", evaluation.task, result, evaluation.trial, provenance
    )
    trained_ranges = policy.contract.command_range
    for (name, (low, high)), (least, most) in zip(evaluation.task.inputs.items(), trained_ranges):
        if low < least or high > most:
            say(
                f"{name} from {low:g} to {high:g} exceeds the training range, {least:g} to {most:g}"
            )
    figures = ", ".join(
        f"{name} {result[name]:.3f}" for name in evaluation.task.logged_figures if name in result
    )
    say(f"{evaluation.task.name}: {figures}; {run.folder / 'report.html'}")
    if result.get("grounds"):
        show_table(*policy_page.ground_table(result["grounds"]), right=("size",), box=None)
    if "grid" in result:
        say(grid_line(result["grid"]))
    if result.get("transitions"):
        say(transitions_line(result["transitions"]))


def write_page(
    run: Run, skill: SkillModule, motions: MotionSet, result: dict[str, Any], metrics: Path
) -> None:
    """Write OUT/report.html. metrics: the learning curve of the module, if it exists."""
    overlap = result["seen_in_training"]
    report.build(
        run.folder / "report.html",
        title=f"Imitation by {skill.robot}",
        subtitle=f"{len(motions.motions)} clips, each once from its first frame, deterministic"
        + (f"; {overlap} of recordings that the module was trained on" if overlap else ""),
        motions=motions.motions,
        evaluation=result,
        rollouts=run.folder / "rollouts.h5",
        learning=[("Imitation", metrics)] if metrics.is_file() else [],
        provenance=provenance_of(run) | {"training": skill.contract.training},
    )


main = Verb("evaluate", Evaluate, run)
