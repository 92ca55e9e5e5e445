"""`npmp imitate`: train a skill module to imitate a motion dataset."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig

from experiments import boards, training
from experiments.common import Run, at_least, console, verb
from experiments.plant import place_of, plant_of
from experiments.typed import build
from mocap_data import MotionSet
from mocap_data.errors import InputError
from npmp import robots
from npmp.envs import ImitationConfig, ImitationEnv, load_motions
from npmp.envs.plant import PlantConfig
from npmp.envs.reference import MIN_FRAMES, Reference
from npmp.envs.sampling import StartSampler
from npmp.envs.walking import command_range_from_motions
from npmp.imitation import MOVMPOConfig, MOVMPOTrainer, PPOConfig, PPOTrainer
from npmp.nets import NetConfig
from npmp.robots import Robot
from npmp.rollout import track
from npmp.skill import SkillModule
from npmp.world_model.trainer import WorldModelConfig, WorldModelTrainer
from retarget.tempo import with_tempos


class Judge:
    """The policy without action noise, from the same random starts every time: 64 by default, uniform over all clips.

    Where the plant is randomized, every call draws the same physics, pushes and sensor noise.
    """

    def __init__(
        self,
        robot: Robot,
        motions: MotionSet,
        plant: PlantConfig,
        *,
        starts: int,
        seed: int,
        threads: int,
        sim: str = "batch",
        device: str = "cpu",
    ):
        config = ImitationConfig(plant=plant, uniform_starts=1.0, num_threads=threads)
        self.env = ImitationEnv(robot, motions, starts, seed=seed, config=config, sim=sim, device=device)
        # drawn on the CPU: the same starts on every device
        sampler = StartSampler(Reference(robot, motions), tail=config.start_tail, uniform_share=1.0)
        self.clip, self.frame = sampler.sample(starts, torch.Generator().manual_seed(seed))
        self.seed = seed

    def __call__(self, skill: SkillModule) -> dict[str, float]:
        """Mean share of the remaining clip that is tracked, and mean tracked seconds."""
        self.env.generator.manual_seed(self.seed)
        result = track(skill, self.env, self.clip, self.frame)
        return {
            "tracked_fraction": result.fraction.mean().item(),
            "tracked_s": result.steps.float().mean().item() * self.env.dt,
        }


# the judges' figures among the metrics of a run: nominal physics, and, where the run is randomized, that as well
NOMINAL = ("tracked_fraction", "tracked_s")
RANDOMIZED = tuple(f"{name}_randomized" for name in NOMINAL)


class Schedule(NamedTuple):
    """An algorithm as the training loop has to know it."""

    before: int  # environment steps before the first iteration
    each: int  # environment steps per iteration
    finite: tuple[str, ...]  # metrics that must be finite
    rates: str  # keys of the learning rates


def make_trainer(
    config: DictConfig, env: ImitationEnv, seed: int
) -> tuple[WorldModelTrainer | MOVMPOTrainer | PPOTrainer, Schedule]:
    """What algo= asks for. Raises InputError for settings out of range."""
    net, horizon = build(NetConfig, config.net, at="net"), config.task.future_frames
    if config.algo.name == "mo_vmpo":
        published = build(MOVMPOConfig, config.algo, ignore=("name", "num_envs"), at="algo")
        each = env.num_envs * published.unroll
        schedule = Schedule(0, each, ("reward", "loss_value", "kl"), "algo.learner.learning_rate=")
        return MOVMPOTrainer(env, net, published, seed=seed, horizon=horizon), schedule
    if config.algo.name == "ppo":
        yardstick = build(PPOConfig, config.algo, ignore=("name", "num_envs"), at="algo")
        finite = ("reward", "loss_surrogate", "loss_value", "kl")
        schedule = Schedule(0, env.num_envs * yardstick.unroll, finite, "algo.learning_rate=, algo.desired_kl=")
        return PPOTrainer(env, net, yardstick, seed=seed, horizon=horizon), schedule
    fast = build(WorldModelConfig, config.algo, ignore=("name", "num_envs"), at="algo")
    steps = (env.num_envs * fast.warmup_steps, env.num_envs * fast.collect_steps)
    schedule = Schedule(*steps, ("model_loss", "tracking_loss", "kl"), "algo.policy_lr=, algo.model_lr=")
    return WorldModelTrainer(env, net, fast, seed=seed, horizon=horizon), schedule


def train(config: DictConfig, run: Run) -> dict[str, Any]:
    """The whole run, into run.place. Returns the summary that goes into module.json."""
    if config.algo.name not in ("world_model", "mo_vmpo", "ppo"):
        raise InputError(f"imitate has no algorithm '{config.algo.name}'; there are: world_model, mo_vmpo, ppo")
    if config.task.name != "imitation":
        raise InputError(f"no task '{config.task.name}' to imitate on; there are: imitation")
    if config.algo.name == "ppo" and run.device != "cpu":
        raise InputError(f"device={run.device}: algo=ppo computes on the CPU only so far; use device=cpu")
    at_least(
        config, steps=1, checkpoint_every=1, evaluation__every=1, evaluation__starts=1, algo__num_envs=1,
        task__future_frames=1,
    )  # fmt: skip
    logger = boards.check(config.get("logger", "tensorboard"))
    robot = robots.load(config.robot.name)
    motions = load_motions(config.data, robot, config.get("split"))  # runs to resume may be older than a key
    plant = plant_of(config.get("randomization"), config.task.get("hold", "zero_order"))
    nominal = PlantConfig(hold=plant.hold)
    task = {k: v for k, v in config.task.items() if k not in ("name", "future_frames", "hold")}
    env_config = build(ImitationConfig, {**task, "num_threads": run.threads}, at="task")
    place = place_of(config, run)
    trained = with_tempos(motions, robot, tuple(config.get("tempos", ())), min_frames=MIN_FRAMES)
    env_config = dataclasses.replace(env_config, plant=plant)
    env = ImitationEnv(robot, trained, config.algo.num_envs, seed=run.seed, config=env_config, **place)
    of_run: dict[str, Any] = {
        "starts": config.evaluation.starts,
        "seed": run.seed + 1000,
        "threads": run.threads,
        **place,
    }
    judges = {"": Judge(robot, motions, nominal, **of_run)}
    if plant != nominal:
        judges["_randomized"] = Judge(robot, motions, plant, **of_run)

    def judge(skill: SkillModule) -> dict[str, float]:
        return {f"{name}{suffix}": value for suffix, one in judges.items() for name, value in one(skill).items()}

    trainer, schedule = make_trainer(config, env, run.seed)

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
            "hold": plant.hold,
            "randomization": config.randomization.name if "randomization" in config else "none",
        }

    plan = training.Plan(
        trainer=trainer,
        total=max(1, round((config.steps - schedule.before) / schedule.each)),
        evaluate_every=config.evaluation.every,
        checkpoint_every=config.checkpoint_every,
        begin=begin,
        judge=lambda: judge(trainer.average),
        judged=NOMINAL + (RANDOMIZED if plant != nominal else ()),
        summarize=summarize,
        save=lambda summary: trainer.module().save(run.place / "module", training=summary),
        finite=schedule.finite,
        rates=schedule.rates,
        logger=logger,
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


main = verb("imitate", run, protect="checkpoints")
