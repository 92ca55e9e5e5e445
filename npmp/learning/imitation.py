"""From motions to a skill module, as one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mocap_data import MotionSet
from mocap_data.errors import InputError
from npmp.core import ranges
from npmp.core.progress import phase
from npmp.core.seeding import seeded
from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.evaluation.module import TrackingTrial
from npmp.learning import run
from npmp.learning.agents import ModuleAgent
from npmp.learning.model_based import ModelBasedConfig, ModelBasedTrainer
from npmp.learning.on_policy import OnPolicyConfig, OnPolicyTrainer, PPOTraining, VMPOTraining
from npmp.learning.run import RunSettings
from npmp.robots import Robot
from npmp.skills.composition import TrackingPolicy
from npmp.skills.nets import NetConfig
from npmp.skills.skill_module import SkillModule
from npmp.tasks.commands import command_range_from_motions
from npmp.tasks.imitation import Imitation, ImitationConfig, ImitationEnv


@dataclass(frozen=True, kw_only=True)
class ImitationModelBasedConfig(ModelBasedConfig):
    """What a policy that tracks references has besides [D]."""

    # of the collection: stretches of latents sampled from the prior, then tracking again
    prior_share: float = 0.15
    # mean control steps of such a stretch
    prior_steps: int = 25
    # rate at which a robot is sent to track another frame from where it stands [1/s]
    rejoin_rate: float = 0.2
    # weight of how unlike the recordings robots move on the prior, as a crowd
    wasserstein: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "prior_steps")
        ranges.not_negative(self, "rejoin_rate", "wasserstein")
        ranges.share(self, "prior_share")
        if self.prior_share == 1.0:
            raise ValueError("prior_share must be below 1")


@dataclass(frozen=True, kw_only=True)
class JointNoise:
    """What an on-policy algorithm has besides where its actions are joint targets. Raises
    ValueError out of range."""

    # of joint targets at the start [rad]
    initial_std: float = 0.2

    def __post_init__(self) -> None:
        ranges.above_zero(self, "initial_std")
        super().__post_init__()  # type: ignore[misc]  # of the algorithm


@dataclass(frozen=True, kw_only=True)
class ImitationVMPOConfig(JointNoise, VMPOTraining):
    """MO-V-MPO of a whole module."""


@dataclass(frozen=True, kw_only=True)
class ImitationPPOConfig(JointNoise, PPOTraining):
    """PPO of a whole module."""


AlgorithmConfig = ImitationModelBasedConfig | ImitationVMPOConfig | ImitationPPOConfig
ImitationTrainer = ModelBasedTrainer | OnPolicyTrainer
ALGORITHMS: dict[str, type[AlgorithmConfig]] = {
    "world_model": ImitationModelBasedConfig,
    "mo_vmpo": ImitationVMPOConfig,
    "ppo": ImitationPPOConfig,
}
# by default [D]
NUM_ENVS = {"world_model": 1024, "mo_vmpo": 128, "ppo": 256}

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

    algorithms = ALGORITHMS
    robots_of = NUM_ENVS

    algo: AlgorithmConfig = field(default_factory=ImitationModelBasedConfig)
    net: NetConfig = field(default_factory=NetConfig)
    task: ImitationConfig = field(default_factory=ImitationConfig)
    steps: int = 1_500_000
    # random start frames, the same at every evaluation
    evaluation_starts: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "evaluation_starts")
        object.__setattr__(self, "robots", self.robots.like(self.task))


def make_trainer(
    settings: ImitationSettings, env: ImitationEnv, seed: int, module: Path | None = None
) -> ImitationTrainer:
    """The algorithm with its robots, before its first iteration.

    module: the folder of one to go on from.

    Raises:
      InputError: for a module that does not fit, or that the algorithm cannot go on from.
    """
    algo = settings.algo
    net = settings.net
    if module is not None and isinstance(algo, OnPolicyConfig):
        raise InputError(
            f"algo={settings.algorithm} cannot go on from a module=; algo=world_model can"
        )
    if module is None:
        task = env.task
        with seeded(seed):
            features = task.features(task.config.future_frames)
            skill = SkillModule.for_reference(env.robot, net, task.reference, features)
    else:
        skill = SkillModule.load(module)
        _check_fit(skill, net, env)
    skill.to(env.device).train()
    if isinstance(algo, OnPolicyConfig):
        agent = ModuleAgent(skill, algo.initial_std)
        agent.network.to(env.device)
        return OnPolicyTrainer(env, agent, algo, seed=seed)
    new = module is None
    return ModelBasedTrainer(env, TrackingPolicy(skill), skill, algo, new=new, seed=seed)


def _check_fit(skill: SkillModule, net: NetConfig, env: ImitationEnv) -> None:
    """Raise InputError for a module that a run with these networks and references cannot go on
    from."""
    skill.check_robot(env.robot)
    skill.check_encoder(env.robot)
    frames = env.task.config.future_frames
    for what, own, wanted in (
        ("net", skill.net, net),
        ("context_horizon", skill.contract.context_horizon, frames),
    ):
        if own != wanted:
            raise InputError(
                f"the module's {what} is {own}, this run's {wanted}; both must be the same"
            )


def trained_module(trainer: ImitationTrainer) -> SkillModule:
    """What is judged and saved, with the range of the latents that tracking has used lately."""
    if isinstance(trainer, ModelBasedTrainer):
        return trainer.module()
    assert isinstance(trainer.agent, ModuleAgent)  # of `make_trainer`
    return trainer.agent.module(trainer.range)


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
      module: the folder of a skill module to go on from; None: a new one.
      about: what the summary says of the run besides, e.g. {"data": "motions.h5"}.
      seed: the same seed gives the same bits with a CPU and as many threads of
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
    chosen = settings or ImitationSettings()
    module = None if module is None else Path(module).resolve()
    plan = _plan(
        motions, robot, Path(out), chosen, trained_on or motions, module, about or {}, seed
    )
    return run.train(plan, Path(out), resume=resume, seed=seed, caller=caller)


def _plan(
    motions: MotionSet,
    robot: Robot,
    folder: Path,
    chosen: ImitationSettings,
    learned_on: MotionSet,
    module: Path | None,
    about: Mapping[str, Any],
    seed: int,
) -> run.TrainingPlan:
    """What is made, judged and saved of a run."""

    def new_trainer(settings: ImitationSettings, robots: int, seed: int) -> ImitationTrainer:
        task = Imitation(robot, settings.task, learned_on)
        episode_s = getattr(settings.algo, "episode_s", None)  # of the others: to a clip's end
        env = TaskEnv(
            task, robots, robots=settings.robots, seed=seed, episode_s=episode_s, **settings.place
        )
        return make_trainer(settings, env, seed, module)

    judges = _judges(robot, motions, chosen, seed)

    def judge(trainer: ImitationTrainer) -> dict[str, float]:
        skill = trained_module(trainer)
        return {
            f"{name}{end}": value
            for end, one in judges.items()
            for name, value in one(skill).items()
        }

    def begin(trainer: ImitationTrainer) -> tuple[dict[str, float], dict[str, float]]:
        with phase("judging the untrained module"):
            figures = judge(trainer)
        # the others learn from whatever they collect first
        if isinstance(trainer, ModelBasedTrainer):
            trainer.warm_up(module)
        return figures, figures

    def save(trainer: ImitationTrainer, summary: dict[str, Any]) -> None:
        trained_module(trainer).save(folder / "module", training=summary)
        if isinstance(trainer, ModelBasedTrainer):
            trainer.fit.save(folder / "module")

    described = {
        **about,
        "clips": [m.name for m in motions.motions],
        "command_range": command_range_from_motions(motions),
        "licences": sorted({m.licence for m in motions.motions}),
        "algorithm": chosen.algorithm,
        "hold": chosen.robots.hold,
        "accelerometer": chosen.robots.accelerometer,
    }
    return run.TrainingPlan(
        settings=chosen,
        make=new_trainer,
        begin=begin,
        judge=judge,
        judged=NOMINAL + (RANDOMIZED if len(judges) > 1 else ()),
        summarize=lambda before, latest: described,
        save=save,
    )


def _judges(
    robot: Robot, motions: MotionSet, settings: ImitationSettings, seed: int
) -> dict[str, TrackingTrial]:
    """By what their figures' names end in: nominal physics, and those of the run where they are
    others."""
    endings = {"": RobotBatchConfig().like(settings.robots)}
    if settings.robots != endings[""]:
        endings["_randomized"] = settings.robots
    frames = settings.task.future_frames
    more: dict[str, Any] = {"starts": settings.evaluation_starts, "seed": seed + 1000}
    return {
        ending: TrackingTrial(robot, motions, config, frames, **more, **settings.place)
        for ending, config in endings.items()
    }
