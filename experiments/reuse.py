"""`npmp reuse`: train a high-level policy on a task, acting through the frozen decoder of a skill module."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import asdict
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments import boards, training
from experiments.common import Run, above_zero, at_least, console, verb
from experiments.plant import hold_of, place_of, plant_of
from experiments.typed import build
from mocap_data import MotionSet
from mocap_data.errors import InputError
from npmp import modules, robots
from npmp.envs import WalkingConfig, WalkingEnv, load_motions
from npmp.envs.walking import COMMAND_NAMES, CommandRange, as_command_range, command_range_from_motions
from npmp.nets.high_level import HighLevelConfig
from npmp.reuse import HighLevelPolicy, VMPOTrainer, VMPOTrainerConfig, evaluate_walking, module_sha256
from npmp.robots import Robot
from npmp.skill import SkillModule


def command_range(config: DictConfig, skill: SkillModule, motions: MotionSet | None) -> CommandRange:
    """The task's own range, else the dataset's, else what the module's training summary says.

    Raises: InputError when none of them knows.
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


class Judge:
    """The same trial every time: the same commands and starts."""

    def __init__(
        self,
        robot: Robot,
        motions: MotionSet | None,
        config: WalkingConfig,
        skill: SkillModule,
        *,
        num_robots: int,
        seconds: float,
        seed: int,
        sim: str = "batch",
        device: str = "cpu",
    ):
        self.env = WalkingEnv(robot, num_robots, motions=motions, seed=seed, config=config, sim=sim, device=device)
        self.skill, self.seconds, self.seed = skill, seconds, seed

    def __call__(self, policy: HighLevelPolicy | None) -> dict[str, Any]:
        """`evaluate_walking`'s figures; None for random latents."""
        return evaluate_walking(policy, self.skill, self.env, seconds=self.seconds, seed=self.seed).summary()


# the judge's figures among the metrics of a run, beside the trainer's own of the robots it collects with
JUDGED = ("velocity_error", "velocity_error_1s", "falls_per_minute", "survived")


def train(config: DictConfig, run: Run) -> dict[str, Any]:
    """The whole run, into run.place. Returns the summary that goes into policy.json."""
    if config.task.name != "walk":
        raise InputError(f"no reuse task '{config.task.name}'; there are: walk")
    if config.algo.name != "vmpo":
        raise InputError(f"reuse has no algorithm '{config.algo.name}'; there are: vmpo")
    at_least(config, steps=1, checkpoint_every=1, evaluation__every=1, evaluation__robots=1, algo__num_envs=1)
    above_zero(config, "evaluation.seconds")
    logger = boards.check(config.get("logger", "tensorboard"))
    robot = robots.load(config.robot.name)
    folder = modules.find(str(config.module))
    skill = SkillModule.load(folder, run.device).requires_grad_(False)
    skill.check_robot(robot)
    motions = None if config.data is None else load_motions(config.data, robot)
    task = {k: v for k, v in config.task.items() if k not in ("name", "command_range")}
    walking = build(
        WalkingConfig,
        OmegaConf.create({**task, "command_range": command_range(config, skill, motions), "num_threads": run.threads}),
        at="task",
    )
    walking = dataclasses.replace(walking, plant=plant_of(config.get("randomization"), hold_of(skill)))
    place = place_of(config, run)
    env = WalkingEnv(robot, config.algo.num_envs, motions=motions, seed=run.seed, config=walking, **place)
    trial = config.evaluation
    judge = Judge(
        robot, motions, walking, skill, num_robots=trial.robots, seconds=trial.seconds, seed=run.seed + 1000, **place
    )
    policy = HighLevelPolicy.for_skill(
        skill,
        task=config.task.name,
        command=COMMAND_NAMES,
        command_range=walking.command_range,
        net=build(HighLevelConfig, config.high_level, at="high_level"),
        module=module_sha256(folder),
    )
    settings = build(VMPOTrainerConfig, config.algo, ignore=("name", "num_envs"), at="algo")
    trainer = VMPOTrainer(env, skill, policy, settings, seed=run.seed)

    def begin() -> tuple[dict[str, Any], dict[str, Any]]:
        untrained = judge(policy)
        return {"random_latents": judge(None), "untrained": untrained}, untrained

    def summarize(before: dict[str, Any], latest: dict[str, Any]) -> dict[str, Any]:
        return {
            "task": config.task.name,
            "algorithm": config.algo.name,
            "module": folder.name,
            "module_sha256": policy.contract.module_sha256,
            "command_range": policy.contract.command_range,
            "settings": {key: value for key, value in asdict(walking).items() if key != "num_threads"},
            "velocity_error": {
                "random_latents": before["random_latents"]["velocity_error"],
                "untrained": before["untrained"]["velocity_error"],
                "after": latest["velocity_error"],
            },
        }

    plan = training.Plan(
        trainer=trainer,
        total=max(1, math.ceil(config.steps / (settings.unroll * env.num_envs))),
        evaluate_every=trial.every,
        checkpoint_every=config.checkpoint_every,
        begin=begin,
        judge=lambda: judge(policy),
        judged=JUDGED,
        summarize=summarize,
        save=lambda summary: policy.save(run.place / "policy", training=summary),
        finite=("reward", "velocity_error", "kl"),
        rates="algo.learner.learning_rate=",
        logger=logger,
        belongs_to=policy.contract.module_sha256,
    )
    return training.train(plan, run)


def run(config: DictConfig, run: Run) -> int:
    """Train, and say what came out."""
    summary = train(config, run)
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
