"""From motions to a skill module, as one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mocap_data import MotionSet
from mocap_data.errors import InputError
from npmp import ranges
from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.evaluation.module import TrackingTrial
from npmp.imitation import (
    DistillConfig,
    DistillTrainer,
    MOVMPOConfig,
    MOVMPOTrainer,
    PPOConfig,
    PPOTrainer,
)
from npmp.nets import NetConfig
from npmp.reuse import module_sha256
from npmp.robots import Robot
from npmp.skill import SkillModule
from npmp.tasks.commands import command_range_from_motions
from npmp.tasks.imitation import Imitation, ImitationConfig, ImitationEnv
from npmp.training import run
from npmp.training.collectors import batches_per_update
from npmp.training.learners import distributed
from npmp.training.run import RunSettings, Schedule
from npmp.training.trainer import Trainer
from npmp.world_model.trainer import WorldModelConfig, WorldModelTrainer

AlgorithmConfig = WorldModelConfig | MOVMPOConfig | PPOConfig | DistillConfig
ImitationTrainer = WorldModelTrainer | MOVMPOTrainer | PPOTrainer | DistillTrainer
ALGORITHMS: dict[str, type[AlgorithmConfig]] = {
    "world_model": WorldModelConfig,
    "mo_vmpo": MOVMPOConfig,
    "ppo": PPOConfig,
    "distill": DistillConfig,
}

# by default [D; sources in conf/algo]
NUM_ENVS = {"world_model": 1024, "mo_vmpo": 128, "ppo": 256, "distill": 512}

# the judges' figures among the metrics of a run: nominal physics, and, where the run is randomized,
# that as well
NOMINAL = ("tracked_fraction", "tracked_s")
RANDOMIZED = tuple(f"{name}_randomized" for name in NOMINAL)


@dataclass(frozen=True, kw_only=True)
class ImitationSettings(RunSettings):
    """How a skill module is trained; robots are wired as the task says.

    Raises:
      ValueError: for values out of range.
    """

    algorithms, robots_of = ALGORITHMS, NUM_ENVS

    algo: AlgorithmConfig = field(default_factory=WorldModelConfig)
    net: NetConfig = field(default_factory=NetConfig)
    task: ImitationConfig = field(default_factory=ImitationConfig)
    steps: int = 1_500_000
    evaluation_starts: int = 64  # random start frames, the same at every evaluation

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "evaluation_starts")
        object.__setattr__(self, "robots", self.robots.like(self.task))
        if isinstance(self.algo, PPOConfig) and self.device != "cpu":
            raise InputError(
                f"device={self.device}: algo=ppo computes on the CPU only so far; use device=cpu"
            )
        if isinstance(self.algo, WorldModelConfig) and self.task.reward.current_weight:
            raise InputError(
                f"task.reward.current_weight={self.task.reward.current_weight:g}: algo=world_model learns from imagined"
                " joints, whose currents nobody tells; use algo=mo_vmpo or algo=ppo, or task.reward.current_weight=0"
            )


def make_trainer(
    settings: ImitationSettings, env: ImitationEnv, seed: int, module: Path | str | None = None
) -> tuple[ImitationTrainer, Schedule]:
    """The algorithm with its robots, before its first iteration; module: the folder of one to go on
    from, or, of `DistillConfig`, to learn from.

    Raises:
      InputError: for a module that does not fit, or that the algorithm cannot go on from.
    """
    algo, net, n = settings.algo, settings.net, env.num_envs
    if isinstance(algo, DistillConfig):
        if module is None:
            raise InputError("algo=distill learns from a module: module= says which")
        teacher = SkillModule.load(module)
        schedule = Schedule(0, n * algo.unroll, ("clone_error", "kl"), "algo.lr=")
        return DistillTrainer(env, net, algo, teacher=teacher, seed=seed), schedule
    if module is not None and not isinstance(algo, WorldModelConfig):
        raise InputError(
            f"algo={settings.algorithm} cannot go on from a module=; algo=world_model can"
        )
    if isinstance(algo, MOVMPOConfig):
        schedule = Schedule(
            0, n * algo.unroll, ("reward", "loss_value", "kl"), "algo.learner.learning_rate="
        )
        return MOVMPOTrainer(env, net, algo, seed=seed), schedule
    if isinstance(algo, PPOConfig):
        finite: tuple[str, ...] = ("reward", "loss_surrogate", "loss_value", "kl")
        schedule = Schedule(0, n * algo.unroll, finite, "algo.learning_rate=, algo.desired_kl=")
        return PPOTrainer(env, net, algo, seed=seed), schedule
    finite = ("model_loss", "tracking_loss", "kl")
    schedule = Schedule(
        n * algo.warmup_steps, n * algo.collect_steps, finite, "algo.policy_lr=, algo.model_lr="
    )
    skill = None if module is None else SkillModule.load(module)
    return WorldModelTrainer(env, net, algo, skill=skill, seed=seed), schedule


def train_module(
    motions: MotionSet,
    robot: Robot,
    out: Path | str,
    settings: ImitationSettings | None = None,
    *,
    trained_on: MotionSet | None = None,
    module: Path | str | None = None,
    about: Mapping[str, Any] | None = None,
    seed: int = 0,
    resume: Path | None = None,
    caller: run.Caller | None = None,
) -> dict[str, Any]:
    """Train a skill module to imitate motions, into OUT/module; logs and checkpoints beside it.

    Args:
      motions: what the module is judged on, and trained on.
      trained_on: what it is trained on instead, e.g. with copies at other tempos.
      module: the folder of a skill module to go on from, or to distill; None: a new one.
      about: what the summary says of the run besides, e.g. {"data": "motions.h5"}.
      seed: the same seed gives the same bits with sim="batch" on the CPU and as many threads of
        torch.
      resume: the folder of a run to go on from; it was made with these settings, `steps` may be
        more.

    Returns: the summary, which is in module.json and summary.json as well.

    Raises:
      InputError: for motions of another robot, a module that does not fit, or a run to resume that
        is damaged or of another kind.
      Diverged: when the run's figures are no numbers any more.
      Stopped: when a signal ended the run, with a checkpoint.
    """
    chosen, folder = settings or ImitationSettings(), Path(out)
    learned_on, module = trained_on or motions, None if module is None else Path(module).resolve()

    def new_trainer(
        settings: ImitationSettings, robots: int, seed: int
    ) -> tuple[ImitationTrainer, Schedule]:
        task = Imitation(robot, settings.task, learned_on)
        episode_s = getattr(settings.algo, "episode_s", None)  # of the others: to a clip's end
        env = TaskEnv(
            task, robots, robots=settings.robots, seed=seed, episode_s=episode_s, **settings.place
        )
        return make_trainer(settings, env, seed, module)

    judges = _judges(robot, motions, chosen, seed)
    trainer, schedule = new_trainer(chosen, chosen.robots_at_once, seed)

    def judge() -> dict[str, float]:
        skill = trainer.module()
        return {
            f"{name}{end}": value
            for end, one in judges.items()
            for name, value in one(skill).items()
        }

    def begin() -> tuple[dict[str, float], dict[str, float]]:
        figures = judge()
        # the others learn from whatever they collect first
        if isinstance(trainer, WorldModelTrainer):
            trainer.fit.go_on(module)
            trainer.warm_up()
        return figures, figures

    def save(summary: dict[str, Any]) -> None:
        trainer.module().save(folder / "module", training=summary)
        if isinstance(trainer, WorldModelTrainer):
            trainer.fit.save(folder / "module")

    described = _described(motions, chosen, about or {})

    def another(robots: int, seed: int, device: str | None) -> Trainer:
        return new_trainer(chosen.of_another(device), robots, seed)[0]

    plan = run.Plan(
        trainer=trainer,
        total=schedule.times(batches_per_update(trainer, chosen.collectors)).iterations(
            chosen.steps
        ),
        evaluate_every=chosen.evaluate_every,
        checkpoint_every=chosen.checkpoint_every,
        begin=begin,
        judge=judge,
        judged=NOMINAL + (RANDOMIZED if len(judges) > 1 else ()),
        summarize=lambda before, latest: described,
        save=save,
        finite=schedule.finite,
        belongs_to=""
        if module is None or not isinstance(chosen.algo, DistillConfig)
        else module_sha256(module),
        rates=schedule.rates,
        logger=chosen.logger,
    )
    with distributed(
        trainer, another, chosen.collectors, chosen.device, robots=chosen.robots_at_once, seed=seed
    ) as at_work:
        return run.train(
            replace(plan, trainer=at_work), folder, resume=resume, seed=seed, caller=caller
        )


def _judges(
    robot: Robot, motions: MotionSet, settings: ImitationSettings, seed: int
) -> dict[str, TrackingTrial]:
    """By what their figures' names end in: nominal physics, and those of the run where they are
    others."""
    endings = {"": RobotBatchConfig().like(settings.robots)}
    if settings.robots.whole() != endings[""]:
        endings["_randomized"] = settings.robots.whole()
    starts, seed = settings.evaluation_starts, seed + 1000
    return {
        ending: TrackingTrial(robot, motions, config, starts=starts, seed=seed, **settings.place)
        for ending, config in endings.items()
    }


def _described(
    motions: MotionSet, settings: ImitationSettings, about: Mapping[str, Any]
) -> dict[str, Any]:
    """What the summary says of what the module was trained on and how."""
    return {
        **about,
        "clips": [m.name for m in motions.motions],
        "command_range": command_range_from_motions(motions),
        "licences": sorted({m.licence for m in motions.motions}),
        "algorithm": settings.algorithm,
        "hold": settings.robots.hold,
        "accelerometer": settings.robots.accelerometer,
    }
