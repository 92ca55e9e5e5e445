"""`npmp demo`: the whole pipeline, from recordings or generated dog gaits to walking on command."""

from __future__ import annotations

import shlex
import shutil
import time
import timeit
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from mocap_data import MotionSet
from mocap_data.errors import InputError
from mocap_data.files import write_json
from npmp import robots
from npmp.core import ranges
from npmp.core.devices import seed_everything
from npmp.core.progress import phase
from npmp.core.settings import as_text, changes, format_value, read_run_settings
from npmp.core.signals import Stopped
from npmp.envs import load_motions
from npmp.evaluation.module import evaluate_module
from npmp.evaluation.policy import (
    PolicyEvaluation,
    PolicyEvaluationConfig,
    evaluate_policy,
    task_factory,
)
from npmp.experiments import evaluate, imitate, retarget, reuse
from npmp.experiments.command import Computing, Run, Verb, provenance_of, run_of
from npmp.experiments.compose import Job, compose, quoted
from npmp.experiments.recordings import SYNTHETIC
from npmp.experiments.run_folder import write_config
from npmp.experiments.store import sizes
from npmp.experiments.terminal import INTERRUPTED, console, say
from npmp.learning.imitation import train_module
from npmp.learning.live import LiveLine
from npmp.learning.reuse import train_policy
from npmp.robots import Robot
from npmp.skills.composition import over
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.skill_module import SkillModule
from npmp.tasks.commands import command_range_from_motions
from npmp.view import report
from retarget.quality import overall_rms

# Default settings of the stages: on generated gaits by size=, on recordings [D]
SHORT = {
    "full": {
        "retarget": ["clean=false"],
        "imitate": ["steps=140000"],
        # 82 k steps of cloning from the module, then 52 iterations
        "reuse": ["steps=136000"],
    },
    "small": {
        "retarget": ["clean=false"],
        "imitate": ["steps=80000"],
        # 41 k steps of cloning from the module, then 26 iterations
        "reuse": ["steps=54000", "num_envs=256"],
    },
}
RECIPE = {
    "retarget": ["mirrors=left_right", "validation=0.1"],
    "imitate": ["split=train"],
    "reuse": [*("steps=300000", "algo.beta=[0.02,0.02]", "algo.clone_steps=256", "threads=1")],
    "harden": [
        *("steps=1200000", "algo.beta=[0.02,0.02]", "algo.policy_lr=[3e-4,1e-5]"),
        "threads=1",
        *("randomization=paper", "randomization.pushes.least=0.5", "task.drag_weight=0.4"),
    ],
}
COMMANDED = 0.9  # share of the recorded velocities that commands cover [D]
PUSH_N_PER_KG = 5.0  # at most, of the robot: 150 N of ANYmal's 30 kg [D]
# a step of training as a share of `yardstick` [D]
COST = {"imitate": 0.02, "reuse": 0.026, "harden": 0.026}


class Measured(NamedTuple):
    """A demo on generated gaits."""

    minutes: float
    velocity_error: float
    # `yardstick` of that machine [s]
    yardstick_s: float
    basis: str


MEASURED = {
    "full": Measured(
        3.7, 0.08, 0.032, "3.7 minutes on two idle cores of an AMD EPYC with AVX-512, 2026-11-30"
    ),
    "small": Measured(
        2.3, 0.23, 0.032, "2.3 minutes on two idle cores of an AMD EPYC with AVX-512, 2026-11-30"
    ),
}


@contextmanager
def timed(seconds: dict[str, float], name: str, title: str) -> Iterator[None]:
    """Print a stage's title, and store its wall-clock time in `seconds`."""
    console(stderr=True).rule(f"{len(seconds) + 1}. {title}", align="left")
    start = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - start, 1)


@dataclass(frozen=True, kw_only=True)
class Demo(Computing):
    """The whole pipeline: retarget, imitate, reuse, evaluate; writes report.html and summary.json.

    On generated dog gaits it takes minutes. On recordings it takes hours, and a second run of reuse
    trains under pushes. Run the same command again to resume.

    npmp demo
    npmp demo size=small out=runs/small
    npmp demo robot=unitree_go2 source=recordings/dog out=runs/go2
    npmp demo robot=robots/mine source=gaits 'imitate=["steps=4000000"]' out=runs/mine
    """

    # a robot: its name, or the folder of its robot.yaml (npmp robots list)
    robot: str = "anymal_b"
    # recordings, as of npmp retarget; gaits: generated ones, to learn a module from
    source: str | list[str] = SYNTHETIC
    # small: of source=synthetic, in fewer steps: 2.3 minutes in place of 3.7, velocity error 0.23
    # in place of 0.08
    size: Literal["full", "small"] = "full"
    # further settings of the stage, as on its command line
    retarget: list[str] = field(default_factory=list)
    # likewise
    imitate: list[str] = field(default_factory=list)
    # further settings of the stage; all but steps= also apply to the second run, under
    # randomization
    reuse: list[str] = field(default_factory=list)
    # random start frames of the evaluation
    starts: int = 64
    # true: delete an existing demo in out=
    replace: bool = False
    # the demo's folder
    out: Path | None = Path("runs/demo")

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "starts")
        if self.size == "small" and self.source != SYNTHETIC:
            raise InputError(
                f"size=small: must be full, as source={as_text(self.source)} has one size; reduce "
                "steps= in imitate= and reuse= instead"
            )


def jobs_of(
    config: Demo, run: Run, commands: list[list[float]] | None = None, force: float = 0.0
) -> dict[str, Job]:
    """The settings of each stage. Raises InputError as the stage's command.

    Args:
      commands: the range of commands, if recordings determine one. force: the largest push [N].
    """
    out = run.folder
    is_long = config.source != SYNTHETIC
    shared = [f"debug={config.debug}", f"robot={quoted(config.robot)}", f"seed={run.seed}"]
    motions = quoted(str(out / "motions.h5"))
    learning = [*shared, f"torch_threads={torch.get_num_threads()}", f"data={motions}"]
    learning += [f"threads={config.threads}"] if config.threads else []
    walk = [*learning, "task=walk", f"module={quoted(str(out / 'imitate' / 'module'))}"]
    stages = {
        "retarget": (retarget.main, [*shared, f"out={motions}"]),
        "imitate": (imitate.main, learning + ["experiment=module"] * is_long),
        "reuse": (reuse.main, walk),
        "harden": (reuse.main, [*walk, f"policy={quoted(str(out / 'reuse' / 'policy'))}"]),
    }
    own = {"retarget": config.retarget, "imitate": config.imitate, "reuse": config.reuse}
    own["harden"] = [setting for setting in config.reuse if not setting.startswith("steps=")]
    recipe = {
        name: list(below) for name, below in (RECIPE if is_long else SHORT[config.size]).items()
    }
    if config.source == "gaits":  # mirrors of training gaits must not be held out
        recipe["retarget"].remove("mirrors=left_right")
    if commands is not None:
        for name in ("reuse", "harden"):
            recipe[name].append(f"task.command_range={commands}")
        recipe["harden"].append(f"randomization.pushes.force={force:.0f}")
    jobs = {}
    for name, below in recipe.items():
        verb, settings = stages[name]
        small = sizes(verb.name, config.debug)
        below = [setting for setting in below if setting.partition("=")[0] not in small]
        if any(
            setting.startswith("algo=") for setting in own[name]
        ):  # the second run has other keys
            settings = [setting for setting in settings if setting != "experiment=module"]
            below = [setting for setting in below if not setting.startswith("algo.")]
        place = [] if verb is retarget.main else [f"out={quoted(str(out / name))}"]
        jobs[name] = compose(verb.name, verb.keys, [*below, *settings, *own[name], *place])
    jobs["retarget"].values["source"] = config.source
    for job in jobs.values():
        _ = job.config  # checks types
    return jobs


def clear(config: Demo, run: Run) -> None:
    """With replace=true delete the demo in the folder.

    Raises:
      InputError: without replace=true for a finished demo or one with other settings, and for
        folders that are not part of a demo.
    """
    out = run.folder
    if not (out / "config.yaml").is_file():
        for name in ("summary.json", *COST):
            if (out / name).exists():
                raise InputError(f"{out / name} is not part of a demo; choose another out=")
        return
    if config.replace:
        for name in COST:
            shutil.rmtree(out / name, ignore_errors=True)
        (out / "summary.json").unlink(missing_ok=True)
        return
    if (out / "summary.json").exists():
        raise InputError(
            f"out={out} contains a finished demo ({out / 'report.html'}); replace=true deletes "
            "it, or "
            "choose another out="
        )
    stored = read_run_settings(out)[1]
    for key, (before, value) in changes(stored, run.values, ignore=["replace"]).items():
        raise InputError(
            f"out={out} contains a demo with {key}={format_value(before)}, this one has "
            f"{format_value(value)}; replace=true deletes it, or choose another out="
        )


def stage(run: Run, name: str, job: Job) -> tuple[Any, Run]:
    """Settings and run of one stage; an unfinished stage of this demo is resumed.

    Raises:
      InputError: if the folder contains anything else.
    """
    out = run.folder / name
    same = False
    if (out / "config.yaml").is_file():
        verb, stored = read_run_settings(out)
        same = verb == job.verb and not changes(stored, job.values)
    begun = same and any((out / "checkpoints").glob("checkpoint_*.json"))
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()) and not same:
        raise InputError(
            f"{out} is not from this demo; set replace=true to delete it, or choose another out="
        )
    # a stage gives the same numbers as its command
    seed_everything(run.seed, threads=torch.get_num_threads())
    begin = partial(write_config, out, job.verb, job.values)
    resume = out if begun else None
    threads = job.config.threads or run.threads
    return job.config, run_of(job, out, threads, job.values, resume=resume, begin=begin)


def yardstick() -> float:
    """CPU seconds of this machine for a fixed amount of learning, independent of its load."""
    lstm = torch.nn.LSTM(64, 128)
    inputs = torch.ones(16, 256, 64)
    learn = partial(_learn, lstm, inputs)
    return min(timeit.repeat(learn, number=1, repeat=9, timer=time.process_time))


def _learn(lstm: torch.nn.LSTM, inputs: torch.Tensor) -> None:
    lstm(inputs)[0].mean().backward()


def expected(config: Demo, jobs: Mapping[str, Job]) -> str:
    """The expected time and result of the demo, and their basis."""
    second = yardstick()
    if config.source != SYNTHETIC or config.imitate or config.reuse or config.debug != "none":
        learning = sum(COST[name] * jobs[name].config.steps for name in COST if name in jobs)
        return f"expected: {second * learning / 60:.1f} minutes of learning on two idle cores"
    there = MEASURED[config.size]
    return (
        f"expected: {there.minutes * second / there.yardstick_s:.1f} minutes on two idle cores, "
        f"velocity error {there.velocity_error:g} (random latents: 0.7); measured: {there.basis}; "
        f"this machine learns at {there.yardstick_s / second:.1f} times its speed"
    )


def again(run: Run) -> str:
    """The command that resumes a demo."""
    flags = []
    for key in sorted({*run.overridden} - {"replace"}):
        value = run.values[key]
        text = as_text(value) if value is None or isinstance(value, bool) else str(value)
        flags.append(shlex.quote(f"{key}={text}"))
    return " ".join(["npmp demo", *flags])


def run(config: Demo, run: Run) -> None:
    """Run all stages; an interrupted demo is resumed."""
    # All settings first, so that errors are raised before any work.
    jobs = jobs_of(config, run)
    clear(config, run)
    run.begin()
    say(expected(config, jobs))
    try:
        run_stages(config, run, jobs)
    except KeyboardInterrupt as error:
        command = again(run)
        message = str(error) or "interrupted"
        if command not in message:
            message = f"{message}; to resume: {command}"
        raise Stopped(message, getattr(error, "code", INTERRUPTED)) from error


def run_stages(config: Demo, run: Run, jobs: dict[str, Job]) -> None:
    """Retarget, train and evaluate; write the report and the figures."""
    out = run.folder
    robot = robots.load(config.robot)
    seconds: dict[str, float] = {}
    began = time.perf_counter()
    with timed(seconds, "retarget", "retarget: animal motion to the robot"):
        job = jobs["retarget"]
        retarget.run(job.config, run_of(job, out / "motions.h5", run.threads, job.values))
        motions = load_motions(out / "motions.h5", robot)
    if "harden" in jobs:
        recorded = command_range_from_motions(motions, coverage=COMMANDED)
        commands = [[min(low, 0.0), max(high, 0.0)] for low, high in recorded]
        force = PUSH_N_PER_KG * float(robot.model(visuals=False).body_mass.sum())
        force = min(force, jobs["harden"].config.randomization.pushes.force)
        jobs = jobs_of(config, run, commands, force)
    with timed(seconds, "imitate", "imitate: a skill module, through a learned world model"):
        learned = train_module(**inputs(imitate, run, "imitate", jobs))
    with timed(seconds, "reuse", "reuse: walking on command through the frozen decoder"):
        walks = [train_policy(**inputs(reuse, run, "reuse", jobs))]
    if "harden" in jobs:
        with timed(seconds, "harden", "reuse: walking under randomization and pushes"):
            walks += [train_policy(**inputs(reuse, run, "harden", jobs))]
    with timed(seconds, "evaluate", "evaluate and report"):
        held_out = any(motion.split == "validation" for motion in motions.motions)
        references = motions.select(split="validation") if held_out else motions
        with LiveLine():
            evaluation, walking_evaluation = evaluate_stages(
                config, run, [*jobs.values()][-1], references, motions
            )
    seconds["total"] = round(time.perf_counter() - began, 1)
    summary = summarize(run, overall_rms(motions.motions), learned, walks, seconds)
    summary["tracked_fraction"]["from_first_frames"] = evaluation["mean"]["tracked_fraction"]
    write_report(run, robot, references, evaluation, walking_evaluation, summary)
    write_json(out / "summary.json", summary)
    evaluate.print_table(evaluation)
    tracked = summary["tracked_s"]
    error = summary["velocity_error"]
    pushed = f", {error['hardened']:.2f} under pushes" if "hardened" in error else ""
    say(
        f"retargeting {100 * summary['retarget_rms_marker_m']:.1f} cm RMS; "
        f"tracked {tracked['before']:.2f} s before, {tracked['after']:.2f} s after training; "
        f"velocity error {error['random_latents']:.2f} with random latents and "
        f"{error['after']:.2f} after{pushed}; {seconds['total'] / 60:.1f} minutes: "
        f"{out / 'report.html'}"
    )


def inputs(verb: Any, run: Run, name: str, jobs: Mapping[str, Job]) -> dict[str, Any]:
    """The arguments of a stage's training, which the demo's command resumes. verb: the stage's
    module."""
    arguments: dict[str, Any] = verb.inputs(*stage(run, name, jobs[name]))
    return arguments | {"caller": replace(arguments["caller"], resume_command=again(run))}


def evaluate_stages(
    config: Demo, run: Run, walking: Job, tracked: MotionSet, motions: MotionSet
) -> tuple[dict[str, Any], PolicyEvaluation]:
    """Evaluate the module and the last policy; write evaluation.json. walking: the policy's stage.
    tracked: the motions to track."""
    out = run.folder
    robot = robots.load(config.robot)
    module = run.folder / "imitate" / "module"
    skill = SkillModule.load(module)
    with phase("judging the module"):
        evaluation = {"module": "module", "data": "motions.h5"} | evaluate_module(
            skill, robot, tracked, out, starts=config.starts, seed=run.seed, threads=run.threads
        )
    policy = HighLevelPolicy.load(walking.config.out / "policy", module=module)
    with phase("judging the policy"):
        walking_evaluation = evaluate_policy(
            over(policy, skill),
            task_factory(policy, robot, "walk", walking.config.task, motions),
            PolicyEvaluationConfig(robots=config.starts, seconds=20.0),
            motions=motions,
            seed=run.seed,
            num_threads=run.threads,
        )
    evaluation["walking"] = walking_evaluation.figures
    write_json(out / "evaluation.json", evaluation)
    return evaluation, walking_evaluation


def summarize(
    run: Run, rms_m: float, learned: dict[str, Any], walks: Sequence[dict[str, Any]], seconds: Any
) -> dict[str, Any]:
    """The demo's figures, the content of summary.json. walks: summaries of the runs of reuse."""
    error = walks[0]["velocity_error"]
    summary: dict[str, Any] = {"retarget_rms_marker_m": rms_m}
    for name in ("tracked_s", "tracked_fraction"):
        summary[name] = {when: learned[when][name] for when in ("before", "after")}
    summary["velocity_error"] = {
        "random_latents": error["random_latents"],
        "before": error["untrained"],
        "after": error["after"],
    }
    if len(walks) > 1:  # evaluation of the last policy under randomization and pushes
        summary["velocity_error"]["hardened"] = walks[-1]["velocity_error"]["after"]
    for name in ("env_steps", "steps_per_s"):
        runs = zip(COST, (learned, *walks), strict=False)
        summary[name] = {stage: figures[name] for stage, figures in runs}
    return summary | {
        "seconds": seconds,
        "seed": run.seed,
        "threads": run.threads,
        "versions": report.versions(),
    }


def write_report(
    run: Run,
    robot: Robot,
    motions: MotionSet,
    evaluation: dict[str, Any],
    walking: PolicyEvaluation,
    summary: Mapping[str, Any],
) -> None:
    """OUT/report.html."""
    out = run.folder
    error = summary["velocity_error"]
    tracked = summary["tracked_s"]
    rms = 100 * summary["retarget_rms_marker_m"]
    minutes = summary["seconds"]["total"] / 60
    before = f"tracked from random starts; {tracked['before']:.1f} s before training"
    random = f"velocity error (m/s, m/s, rad/s); {error['random_latents']:.2f} with random latents"
    report.build(
        out / "report.html",
        title=f"From animal motion to {robot.name} walking on command",
        subtitle="retargeted, imitated through a learned world model, reused for walking",
        cards=[
            ("Retargeting", f"{rms:.1f} cm", "RMS marker error"),
            ("Imitation", f"{tracked['after']:.1f} s", before),
            ("Walking on command", f"{error['after']:.2f}", random),
            ("Total", f"{minutes:.1f} min", "wall-clock, all stages"),
        ],
        motions=motions.motions,
        evaluation=evaluation,
        rollouts=out / "rollouts.h5",
        learning=[(stage, out / stage / "metrics.csv") for stage in summary["env_steps"]],
        walking=walking,
        provenance=provenance_of(run),
    )


main = Verb("demo", Demo, run, devices=("cpu",))
