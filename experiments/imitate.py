"""`npmp imitate`: train a skill module to imitate a motion dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from experiments import training
from experiments.common import Run, at_least, console, verb
from experiments.typed import build
from mocap_data import MotionSet
from mocap_data.errors import InputError
from npmp import robots
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
    motions = load_motions(config.data, robot, config.get("split"))  # runs to resume may be older than the key
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


    def begin() -> tuple[dict[str, float], dict[str, float]]:
        figures = judge(trainer.average)
        trainer.warm_up()
        return figures, figures

    def summarize(before: dict[str, float], latest: dict[str, float]) -> dict[str, Any]:
        return {
            "data": Path(str(config.data)).name,
            "clips": [m.name for m in motions.motions],
            "command_range": command_range_from_motions(motions),
            "licences": sorted({m.licence for m in motions.motions}),
            "algorithm": config.algo.name,
        }

    plan = training.Plan(
        trainer=trainer,
        total=total,
        evaluate_every=config.evaluation.every,
        checkpoint_every=config.checkpoint_every,
        begin=begin,
        judge=lambda: judge(trainer.average),
        judged=JUDGED,
        summarize=summarize,
        save=lambda summary: trainer.module().save(run.place / "module", training=summary),
        finite=("model_loss", "tracking_loss", "kl"),
        rates="algo.policy_lr=, algo.model_lr=",
    )
    return training.train(plan, run)


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
