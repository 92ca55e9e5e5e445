"""`npmp reuse`: train a high-level policy on a task, acting through the frozen decoder of a skill module."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from experiments.common import Run, above_zero, at_least, console, verb
from experiments.runlog import RunLog
from experiments.training import Trainer, iterate, starting_point
from experiments.typed import build
from mocap_data import MotionSet
from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp import checkpoint, robots
from npmp.envs import WalkingConfig, WalkingEnv, load_motions
from npmp.envs.walking import COMMAND_NAMES, CommandRange, as_command_range, command_range_from_motions
from npmp.nets.high_level import HighLevelConfig
from npmp.reuse import HighLevelPolicy, VMPOTrainer, VMPOTrainerConfig, evaluate_walking, module_sha256
from npmp.robots import Robot
from npmp.skill import SkillModule


@dataclass(frozen=True)
class Setting:
    """What every algorithm starts from."""

    config: DictConfig
    env: WalkingEnv
    skill: SkillModule
    policy: HighLevelPolicy
    motions: MotionSet | None
    seed: int


class Algorithm(NamedTuple):
    """A trainer at work."""

    trainer: Trainer
    kept: HighLevelPolicy  # what is evaluated and saved; the trainer changes it in place
    steps_per_iteration: int  # environment steps of all robots
    steps_before: int = 0  # environment steps before the first iteration


def _vmpo(setting: Setting) -> Algorithm:
    config = build(VMPOTrainerConfig, setting.config.algo, ignore=("name", "num_envs"), at="algo")
    trainer = VMPOTrainer(setting.env, setting.skill, setting.policy, config, seed=setting.seed)
    return Algorithm(trainer, trainer.policy, config.unroll * setting.env.num_envs)


# by the `name` of conf/algo/*.yaml
ALGORITHMS: dict[str, Callable[[Setting], Algorithm]] = {"vmpo": _vmpo}


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
    ):
        self.env = WalkingEnv(robot, num_robots, motions=motions, seed=seed, config=config)
        self.skill, self.seconds, self.seed = skill, seconds, seed

    def __call__(self, policy: HighLevelPolicy | None) -> dict[str, Any]:
        """`evaluate_walking`'s figures; None for random latents."""
        return evaluate_walking(policy, self.skill, self.env, seconds=self.seconds, seed=self.seed).summary()


# the judge's figures among the metrics of a run, beside the trainer's own of the robots it collects with
JUDGED = ("velocity_error", "velocity_error_1s", "falls_per_minute", "survived")


def train(config: DictConfig, run: Run) -> dict[str, Any]:
    """The whole run, into run.place. Returns the summary that goes into policy.json."""
    out = run.place
    if config.task.name != "walk":
        raise InputError(f"no reuse task '{config.task.name}'; there are: walk")
    if config.algo.name not in ALGORITHMS:
        raise InputError(f"reuse has no algorithm '{config.algo.name}'; there are: {', '.join(ALGORITHMS)}")
    at_least(config, steps=1, checkpoint_every=1, evaluation__every=1, evaluation__robots=1, algo__num_envs=1)
    above_zero(config, "evaluation.seconds")
    robot = robots.load(config.robot.name)
    skill = SkillModule.load(config.module).requires_grad_(False)
    skill.check_robot(robot)
    motions = None if config.data is None else load_motions(config.data, robot)
    task = {k: v for k, v in config.task.items() if k not in ("name", "command_range")}
    walking = build(
        WalkingConfig,
        OmegaConf.create({**task, "command_range": command_range(config, skill, motions), "num_threads": run.threads}),
        at="task",
    )
    env = WalkingEnv(robot, config.algo.num_envs, motions=motions, seed=run.seed, config=walking)
    trial = config.evaluation
    judge = Judge(
        robot, motions, walking, skill, num_robots=trial.robots, seconds=trial.seconds, seed=run.seed + 1000
    )
    policy = HighLevelPolicy.for_skill(
        skill,
        task=config.task.name,
        command=COMMAND_NAMES,
        command_range=walking.command_range,
        net=build(HighLevelConfig, config.high_level, at="high_level"),
        module=module_sha256(config.module),
    )
    algorithm = ALGORITHMS[config.algo.name](Setting(config, env, skill, policy, motions, run.seed))
    trainer, kept = algorithm.trainer, algorithm.kept
    total = max(1, math.ceil((config.steps - algorithm.steps_before) / algorithm.steps_per_iteration))

    folder, done = out / "checkpoints", None
    before: dict[str, Any]
    latest: dict[str, Any]
    if found := starting_point(run):
        done, tensors, values = found
        if values["module_sha256"] != policy.contract.module_sha256:
            raise InputError(f"the run in '{run.resume}' was trained with another module than '{config.module}'")
        trainer.load_state_dict(tensors)
        before, latest = values["before"], values["latest"]

    def values_to_keep() -> dict[str, Any]:
        """What a checkpoint holds beside the trainer's state."""
        return {"before": before, "latest": latest, "module_sha256": policy.contract.module_sha256}

    run.begin()
    log = RunLog(
        out, total, judged=JUDGED, resume_after=done, resume_from=run.resume, console=console(stderr=True)
    )
    if found is None:
        before = {"random_latents": judge(None), "untrained": judge(kept)}
        latest = before["untrained"]
        checkpoint.save(folder, 0, trainer.state_dict(), values_to_keep())
    began, steps_before = time.perf_counter(), trainer.env_steps

    def keep() -> dict[str, Any]:
        """Checkpoint, and the policy as it is now."""
        summary = {
            "task": config.task.name,
            "algorithm": config.algo.name,
            "module": Path(str(config.module)).name,
            "module_sha256": policy.contract.module_sha256,
            "command_range": policy.contract.command_range,
            "settings": {key: value for key, value in asdict(walking).items() if key != "num_threads"},
            "seed": run.seed,
            "env_steps": trainer.env_steps,
            "iterations": trainer.iteration_count,
            "velocity_error": {
                "random_latents": before["random_latents"]["velocity_error"],
                "untrained": before["untrained"]["velocity_error"],
                "after": latest["velocity_error"],
            },
            "before": before,
            "after": latest,
        }
        checkpoint.save(folder, trainer.iteration_count, trainer.state_dict(), values_to_keep())
        kept.save(out / "policy", training=summary)
        return summary

    while trainer.iteration_count < total:
        metrics = iterate(trainer, total, run, finite=("reward", "velocity_error", "kl"), rates="algo.learner.learning_rate=")
        count = trainer.iteration_count
        metrics = {f"collect_{k}" if k in JUDGED else k: v for k, v in metrics.items()}
        if count == 1 or count % trial.every == 0 or count == total:
            latest = judge(kept)
            metrics |= {k: latest[k] for k in JUDGED}
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
    error = summary["velocity_error"]
    console().print(
        f"velocity error |v - v_cmd|: {error['random_latents']:.3f} with random latents, {error['after']:.3f} after"
        f" {summary['env_steps']:,} environment steps ({summary['minutes_here']} minutes here):"
        f" {run.place / 'policy'}",
        highlight=False,
        soft_wrap=True,
    )
    return 0


main = verb("reuse", run, protect="checkpoints", devices=("cpu",))
