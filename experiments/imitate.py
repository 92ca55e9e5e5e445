"""`npmp imitate`: train a skill module to imitate a motion dataset."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from experiments.common import Run, at_least, console, verb
from experiments.runlog import RunLog
from experiments.training import iterate, starting_point
from experiments.typed import build
from mocap_data import MotionSet
from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp import checkpoint, robots
from npmp.envs import ImitationConfig, ImitationEnv, load_motions
from npmp.envs.walking import command_range_from_motions
from npmp.nets import NetConfig
from npmp.robots import Robot
from npmp.rollout import track
from npmp.skill import SkillModule
from npmp.world_model.trainer import WorldModelConfig, WorldModelTrainer


class Judge:
    """Deterministic evaluation from the same random starts every time: 64 by default, uniform over all clips."""

    def __init__(self, robot: Robot, motions: MotionSet, *, starts: int, seed: int, threads: int):
        self.env = ImitationEnv(
            robot, motions, starts, seed=seed, config=ImitationConfig(uniform_starts=1.0, num_threads=threads)
        )
        self.clip, self.frame = self.env.sampler.sample(starts, torch.Generator().manual_seed(seed))

    def __call__(self, skill: SkillModule) -> dict[str, float]:
        """Mean share of the remaining clip that is tracked, and mean tracked seconds."""
        result = track(skill, self.env, self.clip, self.frame)
        return {
            "tracked_fraction": result.fraction.mean().item(),
            "tracked_s": result.steps.float().mean().item() * self.env.dt,
        }


# the judge's figures among the metrics of a run
JUDGED = ("tracked_fraction", "tracked_s")


def train(config: DictConfig, run: Run) -> dict[str, Any]:
    """The whole run, into run.place. Returns the summary that goes into module.json."""
    if config.algo.name != "world_model":
        raise InputError(f"imitate has no algorithm '{config.algo.name}'; there are: world_model")
    if config.task.name != "imitation":
        raise InputError(f"no task '{config.task.name}' to imitate on; there are: imitation")
    at_least(
        config, steps=1, checkpoint_every=1, evaluation__every=1, evaluation__starts=1, algo__num_envs=1,
        task__future_frames=1,
    )  # fmt: skip
    robot = robots.load(config.robot.name)
    motions = load_motions(config.data, robot)
    task = {k: v for k, v in config.task.items() if k not in ("name", "future_frames")}
    env_config = build(ImitationConfig, {**task, "num_threads": run.threads}, at="task")
    env = ImitationEnv(robot, motions, config.algo.num_envs, seed=run.seed, config=env_config)
    judge = Judge(robot, motions, starts=config.evaluation.starts, seed=run.seed + 1000, threads=run.threads)
    settings = build(WorldModelConfig, config.algo, ignore=("name", "num_envs"), at="algo")
    trainer = WorldModelTrainer(
        env, build(NetConfig, config.net, at="net"), settings, seed=run.seed, horizon=config.task.future_frames
    )
    per_iteration = env.num_envs * settings.collect_steps
    total = max(1, round((config.steps - env.num_envs * settings.warmup_steps) / per_iteration))

    out, done = run.place, None
    folder = out / "checkpoints"
    before: dict[str, float]
    latest: dict[str, float]
    if found := starting_point(run):
        done, tensors, values = found
        trainer.load_state_dict(tensors)
        before, latest = values["before"], values.get("latest", values["before"])
    run.begin()
    log = RunLog(
        out, total, judged=JUDGED, resume_after=done, resume_from=run.resume, console=console(stderr=True)
    )
    if found is None:
        before = latest = judge(trainer.average)
        trainer.warm_up()
        checkpoint.save(folder, 0, trainer.state_dict(), {"before": before, "latest": latest})
    began, steps_before = time.perf_counter(), trainer.env_steps

    def keep() -> dict[str, Any]:
        """Checkpoint, and the module as it is now."""
        summary = {
            "data": Path(str(config.data)).name,
            "clips": [m.name for m in motions.motions],
            "command_range": command_range_from_motions(motions),
            "licences": sorted({m.licence for m in motions.motions}),
            "algorithm": config.algo.name,
            "seed": run.seed,
            "env_steps": trainer.env_steps,
            "iterations": trainer.iteration_count,
            "before": before,
            "after": latest,
        }
        checkpoint.save(folder, trainer.iteration_count, trainer.state_dict(), {"before": before, "latest": latest})
        trainer.module().save(out / "module", training=summary)
        return summary

    while trainer.iteration_count < total:
        metrics = iterate(
            trainer, total, run, finite=("model_loss", "tracking_loss", "kl"), rates="algo.policy_lr=, algo.model_lr="
        )
        count = trainer.iteration_count
        if count == 1 or count % config.evaluation.every == 0 or count == total:
            latest = judge(trainer.average)
            metrics |= latest
        log.write(count, trainer.env_steps, metrics, env_steps_done_here=trainer.env_steps - steps_before)
        if count % config.checkpoint_every == 0 and count < total:
            keep()
    summary = keep()
    log.close()
    summary["steps_per_s"] = round(trainer.env_steps / log.wall_s, 1)
    summary["minutes_here"] = round((time.perf_counter() - began) / 60, 2)
    with atomic_path(out / "summary.json") as path:
        path.write_text(json.dumps(summary, indent=2) + "\n")
    return summary


def run(config: DictConfig, run: Run) -> int:
    """Train, and say what came out."""
    summary = train(config, run)
    console().print(
        f"tracked share of the remaining clip: {summary['before']['tracked_fraction']:.3f} before, "
        f"{summary['after']['tracked_fraction']:.3f} after {summary['env_steps']:,} environment steps "
        f"({summary['minutes_here']} minutes here): {run.place / 'module'}",
        highlight=False,
        soft_wrap=True,
    )
    return 0


main = verb("imitate", run, protect="checkpoints", devices=("cpu",))
