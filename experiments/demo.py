"""`npmp demo`: the whole pipeline on generated dog gaits, from recordings to an ANYmal that walks
on command."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import torch

from mocap_data import MotionSet, write_motions
from mocap_data.files import atomic_path, new_hdf5, write_json
from mocap_data.synthetic import demo_clips
from npmp import modules, ranges, report, robots
from npmp.devices import seed_everything
from npmp.evaluation.module import evaluate_module
from npmp.evaluation.policy import PolicyEvaluation, PolicyEvaluationConfig
from npmp.experiments import evaluate, imitate, reuse
from npmp.experiments.command import Computing, Run, Verb, made_by, write_config
from npmp.experiments.compose import Given, Job, compose, split, stored_config
from npmp.experiments.terminal import console, say
from npmp.policy import HighLevelPolicy
from npmp.robots import Robot
from npmp.settings import as_plain
from npmp.skill import SkillModule
from npmp.training.imitation import train_module
from npmp.training.reuse import train_policy
from retarget import retarget_many
from retarget.quality import overall_rms


class Stages:
    """Announces each stage and keeps its wall-clock time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._running: tuple[str, float] | None = None
        self._terminal = console(stderr=True)

    def begin(self, name: str, what: str) -> None:
        """Stage `name` starts; the one before ends."""
        self.end()
        self._running = name, time.perf_counter()
        self._terminal.rule(f"{len(self.seconds) + 1}. {what}", align="left")

    def end(self) -> None:
        """The current stage, if any, is over."""
        if self._running is not None:
            name, start = self._running
            self.seconds[name] = round(time.perf_counter() - start, 1)
            self._running = None


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
    # what the imitation stage is told besides, as on its command line
    imitate: list[str] = field(default_factory=lambda: ["steps=250000", "algo.overlap=true"])
    # and the reuse stage: 82 k of them to be cloned from the module, then 69 iterations [D]
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
    return job.config, replace(
        run,
        verb=job.verb,
        out=out,
        resume=out if begun else None,
        given=job.given,
        chosen=job.chosen,
        values=job.values,
        begin=lambda: write_config(out, job.verb, job.values),
    )


def shipped_modules(robot: Robot) -> list[tuple[str, SkillModule]]:
    """Modules that come with the package and can imitate with this robot, by name."""
    found = []
    for name in modules.names():
        skill = SkillModule.load(modules.find(name))
        if skill.robot == robot.name:
            skill.check_robot(robot)
            skill.check_encoder(robot)
            found.append((name, skill))
    return found


def evaluate_shipped(
    robot: Robot, motions: MotionSet, config: Demo, run: Run
) -> dict[str, dict[str, Any]]:
    """The same evaluation, of shipped modules that never saw the demo's gaits: "zero-shot"; each
    into a folder of its own."""
    found = {}
    for name, skill in shipped_modules(robot):
        out = run.folder / "shipped" / name
        out.mkdir(parents=True, exist_ok=True)
        found[name] = {"module": name, "data": "motions.h5"} | evaluate_module(
            skill, robot, motions, out, starts=config.starts, seed=run.seed, threads=run.threads
        )
        write_json(out / "evaluation.json", found[name])
    return found


def beside_each_other(
    out: Path, evaluation: dict[str, Any], shipped: dict[str, dict[str, Any]], to: Path
) -> dict[str, Any]:
    """The demo's own evaluation and the shipped modules', each clip named by its module, as one for
    the report.

    Writes the rollouts of all of them to `to`.
    """
    clips = list(evaluation["clips"])
    with new_hdf5(to, track_order=True) as merged:
        with h5py.File(out / "rollouts.h5") as own:
            merged.attrs.update(own.attrs)
            for clip in evaluation["clips"]:
                own.copy(clip["name"], merged)
        for name, found in shipped.items():
            with h5py.File(out / "shipped" / name / "rollouts.h5") as theirs:
                for clip in found["clips"]:
                    shown = f"{clip['name']}: {name}, zero-shot"
                    theirs.copy(clip["name"], merged, name=shown)
                    clips.append({**clip, "name": shown})
    return {**evaluation, "clips": clips}


def motions_of(robot: Robot, run: Run) -> MotionSet:
    """The generated gaits, retargeted."""
    motions = retarget_many(demo_clips(), robot)
    write_motions(run.folder / "motions.h5", motions)
    return motions


def run(config: Demo, run: Run) -> None:
    """All stages; a demo that was interrupted goes on where it stopped when it is started again."""
    out, stages, robot = run.folder, Stages(), robots.load(config.robot)
    # All settings first, so that a mistake in them shows before any work.
    shared = [("debug", config.debug), ("robot", config.robot), ("data", str(out / "motions.h5"))]
    module = out / "imitate" / "module"
    imitation = settings_of(imitate.main, run, shared, config.imitate)
    walk = [*shared, ("task", "walk"), ("module", str(module))]
    walking_settings = settings_of(reuse.main, run, walk, config.reuse)
    run.begin()
    if (out / "summary.json").exists():  # a finished demo is done anew, not continued
        for name in ("imitate", "reuse"):
            shutil.rmtree(out / name, ignore_errors=True)
        (out / "summary.json").unlink()
    began = time.perf_counter()

    stages.begin("retarget", "retarget: generated dog gaits onto the robot")
    motions = motions_of(robot, run)

    stages.begin("imitate", "imitate: a skill module, through a learned world model")
    learned = train_module(**imitate.inputs(*stage(run, imitation)))

    stages.begin(
        "reuse", "reuse: walking on command in the module's latent space, its decoder frozen"
    )
    walked = train_policy(**reuse.inputs(*stage(run, walking_settings)))

    stages.begin("evaluate", "evaluate and report")
    skill = SkillModule.load(module)
    evaluation = {"module": "module", "data": "motions.h5"} | evaluate_module(
        skill, robot, motions, out, starts=config.starts, seed=run.seed, threads=run.threads
    )
    judged = evaluate.judged(
        HighLevelPolicy.load(out / "reuse" / "policy", module=module),
        skill,
        robot,
        "walk",
        walking_settings.config.task,
        PolicyEvaluationConfig(robots=config.starts, seconds=20.0),
        motions=motions,
        seed=run.seed,
        num_threads=run.threads,
    )
    evaluation["walking"] = judged.figures
    write_json(out / "evaluation.json", evaluation)
    shipped = evaluate_shipped(robot, motions, config, run)
    stages.end()
    summary = summarize(motions, learned, walked, evaluation, run, stages.seconds)
    summary["zero_shot"] = {name: found["mean"] for name, found in shipped.items()}
    summary["seconds"]["total"] = round(time.perf_counter() - began, 1)
    write_json(out / "summary.json", summary)
    with atomic_path(out / "shipped" / "rollouts.h5") as merged:
        together = beside_each_other(out, evaluation, shipped, merged)
    write_report(out, motions, together, judged, summary, run)
    print_results(evaluation, shipped, summary, out)


def print_results(
    evaluation: dict[str, Any],
    shipped: dict[str, dict[str, Any]],
    summary: dict[str, Any],
    out: Path,
) -> None:
    """The tables, and the line below them."""
    evaluate.print_table(evaluation)
    for name, found in shipped.items():
        say(f"{name}, shipped, on the same clips, which it never saw:")
        evaluate.print_table(found)
    say(
        f"retargeting {100 * summary['retarget_rms_marker_m']:.1f} cm RMS; tracked "
        f"{summary['tracked_s']['before']:.2f} s before and "
        f"{summary['tracked_s']['after']:.2f} s after training; "
        f"velocity error {summary['velocity_error']['random_latents']:.2f} with random latents and "
        f"{summary['velocity_error']['after']:.2f} after; "
        f"{summary['seconds']['total'] / 60:.1f} minutes: "
        f"{out / 'report.html'}"
    )


def summarize(
    motions: MotionSet,
    learned: dict[str, Any],
    walked: dict[str, Any],
    evaluation: dict[str, Any],
    run: Run,
    seconds: dict[str, float],
) -> dict[str, Any]:
    """The demo's figures: what summary.json holds."""
    return {
        "retarget_rms_marker_m": overall_rms(motions.motions),
        "tracked_s": {
            "before": learned["before"]["tracked_s"],
            "after": learned["after"]["tracked_s"],
        },
        "tracked_fraction": {
            "before": learned["before"]["tracked_fraction"],
            "after": learned["after"]["tracked_fraction"],
            "from_first_frames": evaluation["mean"]["tracked_fraction"],
        },
        "velocity_error": {
            "random_latents": walked["velocity_error"]["random_latents"],
            "before": walked["velocity_error"]["untrained"],
            "after": walked["velocity_error"]["after"],
        },
        "env_steps": {"imitate": learned["env_steps"], "reuse": walked["env_steps"]},
        "steps_per_s": {"imitate": learned["steps_per_s"], "reuse": walked["steps_per_s"]},
        "seconds": seconds,
        "seed": run.seed,
        "threads": run.threads,
        "versions": report.versions(),
    }


def write_report(
    out: Path,
    motions: MotionSet,
    evaluation: dict[str, Any],
    walking: PolicyEvaluation,
    summary: dict[str, Any],
    run: Run,
) -> None:
    """runs/demo/report.html."""
    error, tracked = summary["velocity_error"], summary["tracked_s"]
    report.build(
        out / "report.html",
        title="From a dog's gait to an ANYmal that walks on command",
        subtitle="generated gaits, retargeted, imitated through a learned world model, "
        "reused for walking",
        cards=[
            ("Retargeting", f"{100 * summary['retarget_rms_marker_m']:.1f} cm", "RMS marker error"),
            (
                "Imitation",
                f"{tracked['after']:.1f} s",
                f"tracked from random starts; {tracked['before']:.1f} s before training",
            ),
            (
                "Walking on command",
                f"{error['after']:.2f}",
                f"velocity error (m/s, m/s, rad/s); {error['random_latents']:.2f} with "
                "random latents",
            ),
            (
                "Shipped modules",
                ", ".join(
                    f"{100 * mean['tracked_fraction']:.0f}"
                    for mean in summary["zero_shot"].values()
                )
                + " %",
                f"of these gaits tracked zero-shot: {', '.join(summary['zero_shot'])}",
            ),
            ("Total", f"{summary['seconds']['total'] / 60:.1f} min", "wall-clock, all stages"),
        ],
        motions=motions.motions,
        evaluation=evaluation,
        rollouts=out / "shipped" / "rollouts.h5",
        learning=[
            ("Imitation", out / "imitate" / "metrics.csv"),
            ("Walking", out / "reuse" / "metrics.csv"),
        ],
        walking=walking,
        provenance=made_by(run),
    )


main = Verb("demo", Demo, run, devices=("cpu",))
