"""`npmp demo`: the whole pipeline on generated dog gaits, from recordings to an ANYmal that walks
on command."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mocap_data import MotionSet, write_motions
from mocap_data.files import write_json
from mocap_data.synthetic import demo_clips
from npmp import ranges, report, robots
from npmp.devices import seed_everything
from npmp.evaluation.module import evaluate_module
from npmp.evaluation.policy import (
    PolicyEvaluation,
    PolicyEvaluationConfig,
    evaluate_policy,
    task_for,
)
from npmp.experiments import evaluate, imitate, reuse
from npmp.experiments.command import Computing, Run, Verb, made_by, run_of, write_config
from npmp.experiments.compose import Given, Job, compose, split, stored_config
from npmp.experiments.terminal import console, say
from npmp.policy import HighLevelPolicy, PolicyActor
from npmp.settings import as_plain
from npmp.skill import SkillModule
from npmp.training.imitation import train_module
from npmp.training.reuse import train_policy
from retarget import retarget_many
from retarget.quality import overall_rms


@contextmanager
def timed(seconds: dict[str, float], name: str, what: str) -> Iterator[None]:
    """Announce a stage and keep its wall-clock time in `seconds`."""
    console(stderr=True).rule(f"{len(seconds) + 1}. {what}", align="left")
    start = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - start, 1)


@dataclass(frozen=True, kw_only=True)
class Demo(Computing):
    """The whole pipeline on generated dog gaits: retarget, imitate, reuse, evaluate; leaves
    report.html and summary.json.

    npmp demo
    npmp demo debug=tiny out=runs/tiny
    npmp demo 'imitate=["steps=100000"]' out=runs/shorter
    """

    # a robot: its name, or the folder of its robot.yaml (npmp robots list)
    robot: str = "anymal_b"
    # settings of the imitation stage, as on its command line
    imitate: list[str] = field(default_factory=lambda: ["steps=250000", "algo.overlap=true"])
    # of the reuse stage: 82 k steps to be cloned from the module, then 69 iterations [D]
    reuse: list[str] = field(default_factory=lambda: ["steps=152000"])
    # random start frames of the evaluation
    starts: int = 64
    # the demo's folder
    out: Path | None = Path("runs/demo")

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "starts")


def settings_of(command: Verb, run: Run, given: Given, more: Sequence[str]) -> Job:
    """The settings of another command, for one stage of the demo in its own folder. Raises
    InputError as that command would."""
    place = ("out", str(run.folder / command.name))
    threads = [("threads", str(run.threads)), ("torch_threads", str(torch.get_num_threads()))]
    seed = ("seed", str(run.seed))
    job = compose(command.name, command.keys, [*given, *split(more), seed, *threads, place])
    _ = job.config  # of the right types
    return job


def stage(run: Run, job: Job) -> tuple[Any, Run]:
    """Settings and run of one stage.

    A stage that an earlier demo began with the same settings goes on; any other leftover is cleared
    away.
    """
    out = run.folder / job.verb
    begun = (out / "config.yaml").is_file() and any((out / "checkpoints").glob("checkpoint_*.json"))
    if not begun or stored_config(out) != (job.verb, as_plain(job.values)):
        begun = False
        shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    # each stage alone gives the same numbers
    seed_everything(run.seed, threads=torch.get_num_threads())
    begin = partial(write_config, out, job.verb, job.values)
    resume = out if begun else None
    return job.config, run_of(job, out, run.threads, job.values, resume=resume, begin=begin)


def run(config: Demo, run: Run) -> None:
    """All stages; a demo that was interrupted goes on where it stopped when it is started again."""
    out, robot = run.folder, robots.load(config.robot)
    # All settings first, so that a mistake in them shows before any work.
    shared = [("debug", config.debug), ("robot", config.robot), ("data", str(out / "motions.h5"))]
    module = out / "imitate" / "module"
    imitation = settings_of(imitate.main, run, shared, config.imitate)
    walk = [*shared, ("task", "walk"), ("module", str(module))]
    walking = settings_of(reuse.main, run, walk, config.reuse)
    run.begin()
    if (out / "summary.json").exists():  # a finished demo is done anew, not continued
        for name in ("imitate", "reuse"):
            shutil.rmtree(out / name, ignore_errors=True)
        (out / "summary.json").unlink()
    seconds: dict[str, float] = {}
    began = time.perf_counter()
    with timed(seconds, "retarget", "retarget: generated dog gaits onto the robot"):
        motions = retarget_many(demo_clips(), robot)
        write_motions(out / "motions.h5", motions)
    with timed(seconds, "imitate", "imitate: a skill module, through a learned world model"):
        learned = train_module(**imitate.inputs(*stage(run, imitation)))
    with timed(seconds, "reuse", "reuse: walking on command through the frozen decoder"):
        walked = train_policy(**reuse.inputs(*stage(run, walking)))
    with timed(seconds, "evaluate", "evaluate and report"):
        skill = SkillModule.load(module)
        evaluation = {"module": "module", "data": "motions.h5"} | evaluate_module(
            skill, robot, motions, out, starts=config.starts, seed=run.seed, threads=run.threads
        )
        policy = HighLevelPolicy.load(out / "reuse" / "policy", module=module)
        judged = evaluate_policy(
            PolicyActor(policy, skill),
            task_for(policy, robot, "walk", walking.config.task, motions),
            PolicyEvaluationConfig(robots=config.starts, seconds=20.0),
            motions=motions,
            seed=run.seed,
            num_threads=run.threads,
        )
        evaluation["walking"] = judged.figures
        write_json(out / "evaluation.json", evaluation)
    seconds["total"] = round(time.perf_counter() - began, 1)
    summary = summarize(run, overall_rms(motions.motions), learned, walked, seconds)
    summary["tracked_fraction"]["from_first_frames"] = evaluation["mean"]["tracked_fraction"]
    write_json(out / "summary.json", summary)
    write_report(run, motions, evaluation, judged, summary)
    evaluate.print_table(evaluation)
    tracked, error = summary["tracked_s"], summary["velocity_error"]
    say(
        f"retargeting {100 * summary['retarget_rms_marker_m']:.1f} cm RMS; "
        f"tracked {tracked['before']:.2f} s before, {tracked['after']:.2f} s after training; "
        f"velocity error {error['random_latents']:.2f} with random latents and "
        f"{error['after']:.2f} after; {seconds['total'] / 60:.1f} minutes: "
        f"{out / 'report.html'}"
    )


def summarize(
    run: Run, rms_m: float, learned: dict[str, Any], walked: dict[str, Any], seconds: Any
) -> dict[str, Any]:
    """The demo's figures: what summary.json holds."""
    error = walked["velocity_error"]
    summary: dict[str, Any] = {"retarget_rms_marker_m": rms_m}
    for name in ("tracked_s", "tracked_fraction"):
        summary[name] = {when: learned[when][name] for when in ("before", "after")}
    summary["velocity_error"] = {
        "random_latents": error["random_latents"],
        "before": error["untrained"],
        "after": error["after"],
    }
    for name in ("env_steps", "steps_per_s"):
        summary[name] = {"imitate": learned[name], "reuse": walked[name]}
    return summary | {
        "seconds": seconds,
        "seed": run.seed,
        "threads": run.threads,
        "versions": report.versions(),
    }


def write_report(
    run: Run,
    motions: MotionSet,
    evaluation: dict[str, Any],
    walking: PolicyEvaluation,
    summary: Mapping[str, Any],
) -> None:
    """OUT/report.html."""
    out, error, tracked = run.folder, summary["velocity_error"], summary["tracked_s"]
    rms, minutes = 100 * summary["retarget_rms_marker_m"], summary["seconds"]["total"] / 60
    before = f"tracked from random starts; {tracked['before']:.1f} s before training"
    random = f"velocity error (m/s, m/s, rad/s); {error['random_latents']:.2f} with random latents"
    report.build(
        out / "report.html",
        title="From a dog's gait to an ANYmal that walks on command",
        subtitle="generated gaits, retargeted, imitated through a learned world model, "
        "reused for walking",
        cards=[
            ("Retargeting", f"{rms:.1f} cm", "RMS marker error"),
            ("Imitation", f"{tracked['after']:.1f} s", before),
            ("Walking on command", f"{error['after']:.2f}", random),
            ("Total", f"{minutes:.1f} min", "wall-clock, all stages"),
        ],
        motions=motions.motions,
        evaluation=evaluation,
        rollouts=out / "rollouts.h5",
        learning=[
            ("Imitation", out / "imitate" / "metrics.csv"),
            ("Walking", out / "reuse" / "metrics.csv"),
        ],
        walking=walking,
        provenance=made_by(run),
    )


main = Verb("demo", Demo, run, devices=("cpu",))
