"""What a GPU gives, in at most ten minutes: steps per second by number of robots, a skill module of
the dog and a walking policy over it, all with MuJoCo Warp.

    python -m npmp.experiments.benchmarks.gpu out=runs/gpu
    python -m npmp.experiments.benchmarks.gpu --size tiny out=runs/gpu_tiny device=cpu

Writes OUT/gpu.json, OUT/gpu.md, OUT/module and OUT/policy. Without a GPU it says so and exits with
2; `--size tiny` runs anywhere, to see that everything works.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mocap_data.files import write_json
from mocap_data.store import MotionSet, write_motions
from npmp import robots
from npmp.core.devices import check_device
from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.envs.physics_time import finished
from npmp.evaluation.module import TrackingTrial
from npmp.experiments import imitate, reuse
from npmp.experiments.benchmarks import NO_DATA, env, markdown_table, motions_of, parser, settings
from npmp.experiments.command import Run
from npmp.experiments.terminal import guarded, say
from npmp.learning.imitation import make_trainer, trained_module
from npmp.learning.reuse import RepeatedTrial, make_policy_trainer, trained_policy
from npmp.robots import Robot
from npmp.skills.high_level_policy import HighLevelPolicy, module_sha256
from npmp.skills.skill_module import SkillModule
from npmp.tasks.commands import command_range_from_motions
from npmp.tasks.imitation import Imitation, ImitationConfig
from npmp.view.report import machine_summary, versions


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    # in each measurement of speed
    robots: tuple[int, ...]
    seconds: float
    # of the whole script; learning gets what is left
    limit_s: float
    # of npmp imitate and npmp reuse: a GPU computes large batches as fast as small ones [D]
    keys: tuple[str, ...]


SIZES = {
    "full": Size(
        (1024, 4096, 16384),
        10.0,
        570.0,
        ("num_envs=4096", "algo.policy_batch=1024", "algo.model_batch=2048"),
    ),
    "tiny": Size((4, 8), 0.1, 0.0, ("debug=tiny",)),
}
# share of the remaining time for the module, and the time that the walker's evaluation takes
MODULE_SHARE = 0.5
EVALUATION_S = 20.0


def main(arguments: list[str] | None = None) -> int:
    """Measure, learn, and write the table. Returns the exit code."""
    options = parser(__doc__)
    options.add_argument("--size", choices=SIZES, default="full")
    args = options.parse_intermixed_args(arguments)
    with guarded() as outcome:
        measure(SIZES[args.size], ["engine=warp", "device=cuda", "out=runs/gpu", *args.keys])
    return outcome.code


def measure(size: Size, keys: list[str]) -> dict[str, Any]:
    """The figures, which it also writes. Raises InputError without a GPU, or without Warp."""
    begin = time.monotonic()
    config, run = settings(imitate.main, [*size.keys, *keys], [NO_DATA])
    check_device(run.device)
    out: Path = config.out
    out.mkdir(parents=True, exist_ok=True)
    robot = robots.load(config.robot)
    motions = motions_of(config, robot)
    file = out / "motions.h5"
    write_motions(file, motions)

    speeds = []
    for count in size.robots:
        say(f"{count:,} robots ...")
        args = Namespace(num_envs=count, seconds=size.seconds)
        speeds.append(env.measure(replace(config, data=file), run, args))

    say("learning a module ...")
    left = size.limit_s - (time.monotonic() - begin)
    module = learn_module(config, run, robot, motions, out / "module", MODULE_SHARE * left)

    say("learning to walk ...")
    walking = learn_walking([*size.keys, *keys], out, size.limit_s - EVALUATION_S, begin)
    figures = {
        "device": _device_name(run.device),
        "machine": machine_summary(),
        "versions": versions(),
        "speeds": speeds,
        "module": module,
        "walking": walking,
        "seconds": round(time.monotonic() - begin, 1),
    }
    write_json(out / "gpu.json", figures)
    (out / "gpu.md").write_text(markdown(figures), encoding="utf-8")
    say(f"{out / 'gpu.md'}: {figures['seconds']} s")
    return figures


def learn_module(
    config: imitate.ImitateKeys,
    run: Run,
    robot: Robot,
    motions: MotionSet,
    folder: Path,
    seconds: float,
) -> dict[str, Any]:
    """Learn a skill module for so many seconds, at least an iteration, into `folder`. Returns the
    share of the clips that it tracks, before and after, and the cost."""
    chosen = imitate.settings_of(config, run)
    place = chosen.place
    task = Imitation(robot, chosen.task, motions)
    many = chosen.robots_at_once
    trained_in = TaskEnv(task, many, robots=chosen.robots, seed=run.seed, **place)
    trainer = make_trainer(chosen, trained_in, run.seed)
    ideal = RobotBatchConfig().like(chosen.robots)
    trial = TrackingTrial(
        robot,
        motions,
        ideal,
        chosen.task.future_frames,
        starts=chosen.evaluation_starts,
        seed=run.seed + 1000,
        **place,
    )
    before = trial(trained_module(trainer))
    cost = _learn(trainer, time.monotonic() + seconds)
    skill = trained_module(trainer)
    after = trial(skill)
    skill.save(
        folder,
        training={
            "command_range": command_range_from_motions(motions),
            "hold": chosen.robots.hold,
            "accelerometer": chosen.robots.accelerometer,
        },
    )
    name = "tracked_fraction"
    return {f"{name}_before": before[name], f"{name}_after": after[name], **cost}


def learn_walking(keys: list[str], out: Path, limit_s: float, begin: float) -> dict[str, Any]:
    """Learn to walk over OUT/module until `limit_s` after `begin`, at least an iteration, into
    OUT/policy. Returns the velocity error, before and after, and the cost."""
    folder = out / "module"
    config, run = settings(
        reuse.main, [*keys, f"module={folder}", f"data={out / 'motions.h5'}"], []
    )
    inputs = reuse.inputs(config, replace(run, out=out))
    chosen = inputs["settings"]
    task, trial_task = (
        inputs["task"](inputs["robot"], inputs["config"], inputs["motions"]) for _ in range(2)
    )
    skill = SkillModule.load(folder, run.device).requires_grad_(False)
    policy = HighLevelPolicy.for_task(skill, task, net=chosen.net, module=module_sha256(folder))
    tracked = ImitationConfig(uniform_starts=1.0, future_frames=skill.contract.context_horizon)
    recordings = Imitation(task.robot, tracked, inputs["motions"])
    trainer = make_policy_trainer(
        chosen, task, skill, policy, chosen.robots_at_once, recordings=recordings, teacher=None,
        new=True, seed=run.seed,
    )  # fmt: skip
    trial = RepeatedTrial(trial_task, chosen, skill, seed=run.seed + 1000)
    before = trial(trained_policy(trainer))
    cost = _learn(trainer, begin + limit_s)
    after = trial(trained_policy(trainer))
    trained_policy(trainer).save(out / "policy", training={})
    name = task.main_figure
    return {f"{name}_before": before[name], f"{name}_after": after[name], **cost}


def _learn(trainer: Any, until: float) -> dict[str, Any]:
    """Iterations until this time of the clock `time.monotonic`, at least one. Returns the cost."""
    device = trainer.env.device
    begin = finished(device)
    if hasattr(trainer, "warm_up"):
        trainer.warm_up()
    warm = finished(device)
    seconds = until - time.monotonic()
    while True:
        spent = finished(device) - warm
        if trainer.iteration_count and spent >= seconds:
            break
        trainer.iteration(min(1.0, spent / max(seconds, 1e-9)))
    iterated = trainer.iteration_count * trainer.env_steps_per_iteration
    return {
        "iterations": trainer.iteration_count,
        "env_steps": trainer.env_steps,
        "num_envs": trainer.env.num_envs,
        "warm_up_s": round(warm - begin, 1),
        "seconds": round(finished(device) - begin, 1),
        "steps_per_s": round(iterated / (finished(device) - warm), 1),
    }


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device != "cpu" else "CPU"


def markdown(figures: dict[str, Any]) -> str:
    """The tables of `measure`'s figures."""
    speeds = markdown_table(
        ("robots", "steps/s", "steps/s of the physics", "share of the physics"),
        [
            (
                f"{row['num_envs']:,}",
                f"{row['steps_per_s']:,.0f}",
                f"{row['raw_control_steps_per_s']:,.0f}",
                f"{row['ratio']:.2f}",
            )
            for row in figures["speeds"]
        ],
    )
    learned = markdown_table(
        ("", "figure", "before", "after", "environment steps", "steps/s", "seconds"),
        [
            (
                name,
                figure,
                f"{part[f'{figure}_before']:.3f}",
                f"{part[f'{figure}_after']:.3f}",
                f"{part['env_steps']:,}",
                f"{part['steps_per_s']:,.0f}",
                f"{part['seconds']:.0f}",
            )
            for name, figure, part in (
                ("module", "tracked_fraction", figures["module"]),
                ("walking", "velocity_error", figures["walking"]),
            )
        ],
    )
    machine = figures["machine"]
    return (
        f"# MuJoCo Warp on {figures['device']}\n\n{machine['cores']} cores, {machine['system']}\n\n"
        f"{speeds}\n{learned}\n"
        f"{figures['seconds']} s in all.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
