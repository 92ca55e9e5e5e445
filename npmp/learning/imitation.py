"""Training of skill modules by imitation of motions."""

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
    """Further settings of model-based imitation [D]."""

    # share of the collection on latents sampled from the prior
    prior_share: float = 0.15
    # mean duration of a phase on the prior [control steps]
    prior_steps: int = 25
    # rate at which a robot changes to another frame of the reference [1/s]
    rejoin_rate: float = 0.2
    # weight of the distance between distributions of states on the prior and of recordings
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
    """Setting of on-policy algorithms whose actions are joint targets. Raises ValueError out of
    range."""

    # initial standard deviation of joint targets [rad]
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

# figures of evaluations logged by a run: nominal physics, and the run's if it is randomized
NOMINAL = ("tracked_fraction", "tracked_s")
RANDOMIZED = tuple(f"{name}_randomized" for name in NOMINAL)


@dataclass(frozen=True, kw_only=True)
class ImitationSettings(RunSettings):
    """Settings of module training; hold and accelerometer are the task's.

    Raises:
      ValueError: for values out of range.
    """

    algorithms = ALGORITHMS
    default_num_envs = NUM_ENVS

    algo: AlgorithmConfig = field(default_factory=ImitationModelBasedConfig)
    net: NetConfig = field(default_factory=NetConfig)
    task: ImitationConfig = field(default_factory=ImitationConfig)
    steps: int = 1_500_000
    # number of random start frames, the same at every evaluation
    evaluation_starts: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "evaluation_starts")
        object.__setattr__(self, "robots", self.robots.like(self.task))


def make_trainer(
    settings: ImitationSettings, env: ImitationEnv, seed: int, module: Path | None = None
) -> ImitationTrainer:
    """Make the trainer, before its first iteration.

    module: the folder of a module to continue from.

    Raises:
      InputError: for a module that does not fit, or an algorithm that cannot continue from one.
    """
    algo = settings.algo
    net = settings.net
    if module is not None and isinstance(algo, OnPolicyConfig):
        raise InputError(
            f"algo={settings.algorithm} cannot continue from a module=; use algo=world_model"
        )
    if module is None:
        task = env.task
        with seeded(seed):
            features = task.tracking.features(task.config.future_frames)
            skill = SkillModule.for_reference(env.robot, net, task.tracking.reference, features)
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
    """Raise InputError for a module with other networks or another horizon than the run's."""
    skill.check_robot(env.robot)
    skill.check_encoder(env.robot)
    frames = env.task.config.future_frames
    for name, value, expected in (
        ("net", skill.net, net),
        ("context_horizon", skill.contract.context_horizon, frames),
    ):
        if value != expected:
            raise InputError(
                f"the module's {name} is {value}, this run's {expected}; both must be equal"
            )


def trained_module(trainer: ImitationTrainer) -> SkillModule:
    """The module that is evaluated and saved, with the range of recent latents."""
    if isinstance(trainer, ModelBasedTrainer):
        return trainer.module()
    # for the type checker
    assert isinstance(trainer.agent, ModuleAgent)
    return trainer.agent.module(trainer.range)


def train_module(
    motions: MotionSet,
    robot: Robot,
    out: Path | str,
    settings: ImitationSettings | None = None,
    *,
    trained_on: MotionSet | None = None,
    module: Path | str | None = None,
    summary_entries: Mapping[str, Any] | None = None,
    seed: int = 0,
    resume: Path | None = None,
    caller: run.Caller | None = None,
) -> dict[str, Any]:
    """Train a skill module to imitate motions. Writes OUT/module, logs and checkpoints.

    Args:
      motions: for evaluation, and for training without `trained_on`.
      trained_on: for training, e.g. with copies at other tempos.
      module: the folder of a skill module to continue from; None: a new one.
      summary_entries: further entries of the summary, e.g. {"data": "motions.h5"}.
      seed: the same seed and number of torch threads give the same bits on the CPU.
      resume: the folder of a run to resume, with the same settings but `steps`.

    Returns: the summary, also written to module.json and summary.json.

    Raises:
      InputError: for motions of another robot, a module that does not fit, or a run that cannot be
        resumed.
      Diverged: when metrics become NaN or infinite.
      Stopped: when a signal ended the run, with a checkpoint.
    """
    chosen = settings or ImitationSettings()
    module = None if module is None else Path(module).resolve()
    plan = _plan(
        motions,
        robot,
        Path(out),
        chosen,
        trained_on or motions,
        module,
        summary_entries or {},
        seed,
    )
    return run.train(plan, Path(out), resume=resume, seed=seed, caller=caller)


def _plan(
    motions: MotionSet,
    robot: Robot,
    folder: Path,
    chosen: ImitationSettings,
    learned_on: MotionSet,
    module: Path | None,
    summary_entries: Mapping[str, Any],
    seed: int,
) -> run.TrainingPlan:
    """The plan of a run: its trainer, evaluations and files."""

    def new_trainer(settings: ImitationSettings, robots: int, seed: int) -> ImitationTrainer:
        task = Imitation(robot, settings.task, learned_on).with_rewards(weights=settings.weights)
        # on policy: to a clip's end
        episode_s = getattr(settings.algo, "episode_s", None)
        env = TaskEnv(
            task, robots, robots=settings.robots, seed=seed, episode_s=episode_s, **settings.place
        )
        return make_trainer(settings, env, seed, module)

    trials = _trials(robot, motions, chosen, seed)

    def evaluate(trainer: ImitationTrainer) -> dict[str, float]:
        skill = trained_module(trainer)
        return {
            f"{name}{suffix}": value
            for suffix, trial in trials.items()
            for name, value in trial(skill).items()
        }

    def begin(trainer: ImitationTrainer) -> tuple[dict[str, float], dict[str, float]]:
        with phase("evaluating the untrained module"):
            figures = evaluate(trainer)
        # on-policy algorithms have no warm-up
        if isinstance(trainer, ModelBasedTrainer):
            trainer.warm_up(module)
        return figures, figures

    def save(trainer: ImitationTrainer, summary: dict[str, Any]) -> None:
        trained_module(trainer).save(folder / "module", training=summary)
        if isinstance(trainer, ModelBasedTrainer):
            trainer.fit.save(folder / "module")

    described = {
        **summary_entries,
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
        start=begin,
        evaluate=evaluate,
        evaluation_keys=NOMINAL + (RANDOMIZED if len(trials) > 1 else ()),
        summarize=lambda before, latest: described,
        save=save,
    )


def _trials(
    robot: Robot, motions: MotionSet, settings: ImitationSettings, seed: int
) -> dict[str, TrackingTrial]:
    """Evaluations by the suffix of their figures: nominal physics, and the run's if it differs."""
    configs = {"": RobotBatchConfig().like(settings.robots)}
    if settings.robots != configs[""]:
        configs["_randomized"] = settings.robots
    frames = settings.task.future_frames
    starts: dict[str, Any] = {"starts": settings.evaluation_starts, "seed": seed + 1000}
    return {
        suffix: TrackingTrial(robot, motions, config, frames, **starts, **settings.place)
        for suffix, config in configs.items()
    }
