"""From a skill module to a high-level policy that acts through its frozen decoder, as one call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from npmp import ranges
from npmp.actors import PriorActor
from npmp.envs import RobotBatchConfig, Task, TaskEnv
from npmp.nets.high_level import HighLevelConfig
from npmp.nets.init import seeded
from npmp.reuse import HighLevelPolicy, PolicyActor, VMPOTrainer, VMPOTrainerConfig, evaluate, module_sha256
from npmp.skill import SkillModule
from npmp.training import boards, run


@dataclass(frozen=True)
class ReuseSettings:
    """How a high-level policy is trained.

    Raises:
      ValueError: for values out of range.
    """

    algo: VMPOTrainerConfig = field(default_factory=VMPOTrainerConfig)
    num_envs: int = 128  # robots simulated at once
    net: HighLevelConfig = field(default_factory=HighLevelConfig)
    robots: RobotBatchConfig = field(default_factory=RobotBatchConfig)  # wired as the module's were
    steps: int = 2_000_000  # environment steps in all
    evaluate_every: int = 100  # iterations
    evaluation_robots: int = 64  # the same commands and first starts at every evaluation
    evaluation_seconds: float = 10.0  # of each evaluation
    checkpoint_every: int = 100  # iterations
    logger: str = "tensorboard"  # a name of `boards.LOGGERS`
    sim: str = "batch"  # as environments take it
    device: str = "cpu"  # of everything but the physics of sim="batch"
    num_threads: int = 0  # of the physics; 0: all cores

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "num_envs", "steps", "evaluate_every", "evaluation_robots", "checkpoint_every")
        ranges.above_zero(self, "evaluation_seconds")
        boards.check(self.logger)

    def env(self, task: Task, num_envs: int, skill: SkillModule, seed: int) -> TaskEnv[Any]:
        """An environment of a task, its robots driven as the module's were in training."""
        return TaskEnv(
            task,
            num_envs,
            robots=self.robots.like(skill),
            seed=seed,
            num_threads=self.num_threads,
            sim=self.sim,
            device=self.device,
        )


class RepeatedTrial:
    """The same task from the same starts every time."""

    def __init__(self, task: Task, settings: ReuseSettings, skill: SkillModule, *, seed: int):
        self.env = settings.env(task, settings.evaluation_robots, skill, seed)
        self.skill, self.seconds, self.seed = skill, settings.evaluation_seconds, seed

    def __call__(self, policy: HighLevelPolicy | None) -> dict[str, Any]:
        """The task's figures of a trial; None for random latents."""
        device = self.env.device
        actor: Any = PolicyActor(policy, self.skill) if policy is not None else None
        if actor is None:
            actor = PriorActor(self.skill, torch.Generator(device).manual_seed(self.seed + 2))
        return self.env.task.figures(evaluate(actor, self.env, seconds=self.seconds, seed=self.seed))


def train_policy(
    module: Path | str,
    make_task: Callable[[], Task],
    out: Path | str,
    settings: ReuseSettings | None = None,
    *,
    seed: int = 0,
    resume: Path | None = None,
    caller: run.Caller | None = None,
) -> dict[str, Any]:
    """Train a policy for a task in a module's latent space, into OUT/policy; logs and checkpoints beside it.

    Args:
      module: the skill module's folder.
      make_task: the task, e.g. `lambda: Walk(robot, config, motions)`; called twice, as what is trained and what is
        judged are two environments.
      seed, resume: as `npmp.training.imitation.train_module` takes them.

    Returns: the summary, which is in policy.json and summary.json as well.

    Raises:
      InputError: for a module of another robot, or a run to resume that is damaged or of another kind.
      Diverged: when the run's figures are no numbers any more.
      Stopped: when a signal ended the run, with a checkpoint.
    """
    chosen, folder, source = settings or ReuseSettings(), Path(out), Path(module)
    task = make_task()
    skill, policy = _networks(source, chosen, task, seed)
    skill.check_robot(task.robot)
    env = chosen.env(task, chosen.num_envs, skill, seed)
    trial = RepeatedTrial(make_task(), chosen, skill, seed=seed + 1000)
    trainer = VMPOTrainer(env, skill, policy, chosen.algo, seed=seed)

    def begin() -> tuple[dict[str, Any], dict[str, Any]]:
        untrained = trial(policy)
        return {"random_latents": trial(None), "untrained": untrained}, untrained

    plan = run.Plan(
        trainer=trainer,
        total=max(1, math.ceil(chosen.steps / (chosen.algo.unroll * env.num_envs))),
        evaluate_every=chosen.evaluate_every,
        checkpoint_every=chosen.checkpoint_every,
        begin=begin,
        judge=lambda: trial(policy),
        judged=task.judged,
        summarize=lambda before, latest: _described(source.name, policy, task, before, latest),
        save=lambda summary: policy.save(folder / "policy", training=summary),
        finite=("reward", task.error_name, "kl"),
        rates="algo.learner.learning_rate=",
        logger=chosen.logger,
        belongs_to=policy.contract.module_sha256,
    )
    return run.train(plan, folder, resume=resume, seed=seed, caller=caller)


def _networks(module: Path, settings: ReuseSettings, task: Task, seed: int) -> tuple[SkillModule, HighLevelPolicy]:
    """The module, frozen, and a new policy for it."""
    with seeded(seed):
        skill = SkillModule.load(module, settings.device).requires_grad_(False)
        policy = HighLevelPolicy.for_task(skill, task, net=settings.net, module=module_sha256(module))
    return skill, policy


def _described(
    module: str, policy: HighLevelPolicy, task: Task, before: Mapping[str, Any], latest: Mapping[str, Any]
) -> dict[str, Any]:
    """What the summary says of the task and of what came of it."""
    return {
        "task": policy.contract.task,
        "algorithm": "vmpo",
        "module": module,
        "module_sha256": policy.contract.module_sha256,
        "command_range": policy.contract.command_range,
        "settings": asdict(task.config),
        task.main_figure: {
            "random_latents": before["random_latents"][task.main_figure],
            "untrained": before["untrained"][task.main_figure],
            "after": latest[task.main_figure],
        },
    }
