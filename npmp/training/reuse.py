"""From a skill module to a high-level policy that acts through its frozen decoder, as one call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mocap_data import MotionSet
from npmp import ranges
from npmp.envs import WalkingConfig, WalkingEnv
from npmp.envs.walking import COMMAND_NAMES
from npmp.nets.high_level import HighLevelConfig
from npmp.nets.init import seeded
from npmp.reuse import HighLevelPolicy, VMPOTrainer, VMPOTrainerConfig, evaluate_walking, module_sha256
from npmp.robots import Robot
from npmp.skill import SkillModule
from npmp.training import boards, run

# the trial's figures among the metrics of a run, beside the trainer's own of the robots it collects with
JUDGED = ("velocity_error", "velocity_error_1s", "falls_per_minute", "survived")


@dataclass(frozen=True)
class ReuseSettings:
    """How a high-level policy is trained.

    Raises:
      ValueError: for values out of range.
    """

    algo: VMPOTrainerConfig = field(default_factory=VMPOTrainerConfig)
    num_envs: int = 128  # robots simulated at once
    net: HighLevelConfig = field(default_factory=HighLevelConfig)
    task: WalkingConfig = field(default_factory=WalkingConfig)
    steps: int = 2_000_000  # environment steps in all
    evaluate_every: int = 100  # iterations
    evaluation_robots: int = 64  # the same commands and first starts at every evaluation
    evaluation_seconds: float = 10.0  # of each evaluation
    checkpoint_every: int = 100  # iterations
    logger: str = "tensorboard"  # a name of `boards.LOGGERS`
    sim: str = "batch"  # as environments take it
    device: str = "cpu"  # of everything but the physics of sim="batch"

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "num_envs", "steps", "evaluate_every", "evaluation_robots", "checkpoint_every")
        ranges.above_zero(self, "evaluation_seconds")
        boards.check(self.logger)


class RepeatedTrial:
    """The same commands and starts every time."""

    def __init__(
        self, robot: Robot, motions: MotionSet | None, settings: ReuseSettings, skill: SkillModule, *, seed: int
    ):
        self.env = WalkingEnv(
            robot, settings.evaluation_robots, motions=motions, seed=seed, config=settings.task, sim=settings.sim,
            device=settings.device,
        )  # fmt: skip
        self.skill, self.seconds, self.seed = skill, settings.evaluation_seconds, seed

    def __call__(self, policy: HighLevelPolicy | None) -> dict[str, Any]:
        """`evaluate_walking`'s figures; None for random latents."""
        return evaluate_walking(policy, self.skill, self.env, seconds=self.seconds, seed=self.seed).summary()


def train_policy(
    module: Path | str,
    robot: Robot,
    out: Path | str,
    settings: ReuseSettings | None = None,
    *,
    motions: MotionSet | None = None,
    seed: int = 0,
    resume: Path | None = None,
    caller: run.Caller | None = None,
) -> dict[str, Any]:
    """Train a policy to walk on command in a module's latent space, into OUT/policy; logs and checkpoints beside it.

    Args:
      module: the skill module's folder.
      motions: whose poses episodes also start from.
      seed, resume: as `npmp.training.imitation.train_module` takes them.

    Returns: the summary, which is in policy.json and summary.json as well.

    Raises:
      InputError: for a module of another robot, or a run to resume that is damaged or of another kind.
      Diverged: when the run's figures are no numbers any more.
      Stopped: when a signal ended the run, with a checkpoint.
    """
    chosen, folder, source = settings or ReuseSettings(), Path(out), Path(module)
    skill, policy = _networks(source, chosen, seed)
    skill.check_robot(robot)
    place = {"sim": chosen.sim, "device": chosen.device}
    env = WalkingEnv(robot, chosen.num_envs, motions=motions, seed=seed, config=chosen.task, **place)
    trial = RepeatedTrial(robot, motions, chosen, skill, seed=seed + 1000)
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
        judged=JUDGED,
        summarize=lambda before, latest: _described(source.name, policy, chosen.task, before, latest),
        save=lambda summary: policy.save(folder / "policy", training=summary),
        finite=("reward", "velocity_error", "kl"),
        rates="algo.learner.learning_rate=",
        logger=chosen.logger,
        belongs_to=policy.contract.module_sha256,
    )
    return run.train(plan, folder, resume=resume, seed=seed, caller=caller)


def _networks(module: Path, settings: ReuseSettings, seed: int) -> tuple[SkillModule, HighLevelPolicy]:
    """The module, frozen, and a new policy for it."""
    with seeded(seed):
        skill = SkillModule.load(module, settings.device).requires_grad_(False)
        policy = HighLevelPolicy.for_skill(
            skill,
            task="walk",
            command=COMMAND_NAMES,
            command_range=settings.task.command_range,
            net=settings.net,
            module=module_sha256(module),
        )
    return skill, policy


def _described(
    module: str, policy: HighLevelPolicy, task: WalkingConfig, before: Mapping[str, Any], latest: Mapping[str, Any]
) -> dict[str, Any]:
    """What the summary says of the task and of what came of it."""
    return {
        "task": policy.contract.task,
        "algorithm": "vmpo",
        "module": module,
        "module_sha256": policy.contract.module_sha256,
        "command_range": policy.contract.command_range,
        "settings": {key: value for key, value in asdict(task).items() if key != "num_threads"},
        "velocity_error": {
            "random_latents": before["random_latents"]["velocity_error"],
            "untrained": before["untrained"]["velocity_error"],
            "after": latest["velocity_error"],
        },
    }
