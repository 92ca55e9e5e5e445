"""From a skill module to a high-level policy that acts through its frozen decoder, as one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp.core import ranges
from npmp.core.artifact import sha256
from npmp.core.progress import phase
from npmp.core.seeding import seeded
from npmp.envs import Task, TaskEnv
from npmp.evaluation.gait import worst_foot
from npmp.evaluation.trial import effort, run_trial
from npmp.learning import run
from npmp.learning.agents import BEHAVIOR_STEPS, DecodedAgent, LatentAgent
from npmp.learning.cloning import behavior_of
from npmp.learning.model_based import ModelBasedConfig, ModelBasedTrainer
from npmp.learning.on_policy import OnPolicyConfig, OnPolicyTrainer, PPOTraining, VMPOTraining
from npmp.learning.run import RunSettings
from npmp.learning.student import StudentConfig, StudentTrainer, teacher_of
from npmp.robots import Robot
from npmp.skills.composition import Composition, over, wandering
from npmp.skills.high_level_policy import HighLevelPolicy, module_sha256
from npmp.skills.nets import JointDecoder
from npmp.skills.nets.high_level import HighLevelConfig
from npmp.skills.skill_module import SkillModule
from npmp.tasks import TASKS
from npmp.tasks.imitation import Imitation, ImitationConfig
from npmp.tasks.velocity import COMMAND_NAMES


@dataclass(frozen=True, kw_only=True)
class ReuseModelBasedConfig(ModelBasedConfig):
    """What differs for a policy over a frozen decoder, and what it has besides [D]."""

    # fewer updates of the policy than of the model: with as many OP3 never learned to stay up
    model_updates: int = 8
    policy_updates: int = 2
    replay_steps: int = 192
    warmup_steps: int = 32
    # with 20 s there are so few starts that robots fall when started, with 4 s they fall later
    episode_s: float | None = 10.0
    policy_lr: tuple[float, float] = (5e-4, 1e-5)
    # with 24, half a second, legs that trail behind until the robot falls are not imagined
    horizon: tuple[int, int] = (36, 36)
    ema: float = 0.998
    imagine_pushes: bool = True
    # share of the imagined robots that get a new goal at the start
    new_goals: float = 0.5
    action_noise: tuple[float, float] = (0.03, 0.03)
    beta: tuple[float, float] = (0.02, 0.02)
    # share of that KL which is to a behaviour prior, what the module does itself; the rest to AR(1)
    behavior: float = 0.9
    # without it runs end in falls
    posture: float = 5.0
    # weight of the setpoints' distance from the joints, summed over them [1/rad]
    effort: float = 0.02
    # weight of the setpoints' change per step, summed over joints [1/rad]; without it feet stamp
    smoothness: float = 0.02
    # shares of the run where the task's style begins to count, and where it counts in full; of a
    # policy that has learned before it counts from the start
    style_ramp: tuple[float, float] = (0.2, 0.5)
    # control steps per robot of what a new policy is first fitted to; 0: 128 of tracking
    # recordings, which begin anywhere, or 320 of wandering, which begins standing
    clone_steps: int = 0
    # of that fit, and a fifth of those of the behaviour prior; 0: the policy starts as the AR(1)
    # prior, and is regularized towards that only
    clone_updates: int = 600

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.pairs(self, "style_ramp")
        ranges.share(self, "new_goals", "style_ramp", "behavior")
        ranges.not_negative(self, "effort", "smoothness", "clone_steps", "clone_updates")
        if not self.style_ramp[0] < self.style_ramp[1]:
            raise ValueError(f"style_ramp must be begin < full, got {list(self.style_ramp)}")


@dataclass(frozen=True, kw_only=True)
class BehaviorShare:
    """What an algorithm without a model has besides in latent space. Raises ValueError out of
    range."""

    # share of the KL that beta weighs which is to a behaviour prior; the rest to AR(1)
    behavior: float = 0.0

    def __post_init__(self) -> None:
        ranges.share(self, "behavior")
        super().__post_init__()  # type: ignore[misc]  # of the algorithm


@dataclass(frozen=True, kw_only=True)
class ReuseVMPOConfig(BehaviorShare, VMPOTraining):
    """What differs for V-MPO in latent space; beta [robot-NPMP], else [D]."""

    unroll: int = 20
    passes: int = 4
    minibatches: int = 1
    gamma: float = 0.97
    target_period: int = 10
    beta: float = 0.01
    beta_ramp: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ReusePPOConfig(BehaviorShare, PPOTraining):
    """What differs for PPO in latent space [D]."""

    gamma: float = 0.97
    beta_ramp: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ReuseStudentConfig(BehaviorShare, StudentConfig):
    """A student of latents."""


ReuseConfig = ReuseModelBasedConfig | ReuseVMPOConfig | ReusePPOConfig | ReuseStudentConfig
ReuseTrainer = ModelBasedTrainer | OnPolicyTrainer | StudentTrainer
REUSE_ALGORITHMS: dict[str, type[ReuseConfig]] = {
    "world_model": ReuseModelBasedConfig,
    "vmpo": ReuseVMPOConfig,
    "ppo": ReusePPOConfig,
    "clone": ReuseStudentConfig,
}
STEPS = ("swing_share", "foot_lift_m")  # of `worst_foot`, among the metrics of a run
REUSE_ENVS = {"world_model": 512, "vmpo": 128, "ppo": 256, "clone": 256}  # by default [D]


@dataclass(frozen=True, kw_only=True)
class ReuseSettings(RunSettings):
    """How a high-level policy is trained; robots are wired as the module's were.

    Raises:
      ValueError: for values out of range.
    """

    algorithms = REUSE_ALGORITHMS
    default_num_envs = REUSE_ENVS

    algo: ReuseConfig = field(default_factory=ReuseModelBasedConfig)
    net: HighLevelConfig = field(default_factory=HighLevelConfig)
    # from scratch: no skills, the policy commands the joints (`SkillModule.in_joint_space`)
    joint_space: bool = False
    # the folder of a walking policy of the module, commanded in place of latents
    walker: Path | None = None
    steps: int = 800_000
    # the same commands and first starts at every evaluation
    evaluation_robots: int = 64
    # of each evaluation
    evaluation_seconds: float = 10.0
    # iterations
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "evaluation_robots")
        if self.joint_space and self.walker is not None:
            raise InputError("joint_space=true and walker= stand in the module's place: give one")
        shared = isinstance(self.algo, ReuseModelBasedConfig)  # only its learner needs the prior
        if self.collectors is not None and self.algo.behavior and not shared:
            raise ValueError("algo.behavior is learned in one process: use actors=null")
        ranges.above_zero(self, "evaluation_seconds")

    @property
    def stands_in(self) -> bool:
        """Whether something else stands in the module's place."""
        return self.joint_space or self.walker is not None

    def env(
        self,
        task: Task,
        num_envs: int,
        skill: SkillModule,
        seed: int,
        *,
        episode_s: float | None = None,
    ) -> TaskEnv[Any]:
        """An environment of a task, its robots driven as the module's were in training."""
        robots = self.robots.like(skill)
        return TaskEnv(task, num_envs, robots=robots, seed=seed, episode_s=episode_s, **self.place)


class RepeatedTrial:
    """The same task from the same starts every time."""

    def __init__(self, task: Task, settings: ReuseSettings, skill: SkillModule, *, seed: int):
        self.env = settings.env(task, settings.evaluation_robots, skill, seed)
        self.skill = skill
        self.seconds = settings.evaluation_seconds
        self.seed = seed

    def __call__(self, policy: HighLevelPolicy | None) -> dict[str, Any]:
        """The task's figures of a trial, what moving cost and how it steps; None for random
        latents."""
        device = self.env.device
        if policy is None:
            tried = wandering(self.skill, torch.Generator(device).manual_seed(self.seed + 2))
        else:
            tried = over(policy, self.skill)
        trial = run_trial(tried, self.env, seconds=self.seconds, seed=self.seed)
        still = dict.fromkeys(STEPS, 0.0)  # a robot that does not move does not step
        return self.env.task.figures(trial) | still | effort(trial) | worst_foot(trial)


def train_policy(
    module: Path | str,
    make_task: Callable[[], Task],
    out: Path | str,
    settings: ReuseSettings | None = None,
    *,
    motions: MotionSet | None = None,
    policy: Path | str | None = None,
    teacher: Path | str | None = None,
    seed: int = 0,
    resume: Path | None = None,
    caller: run.Caller | None = None,
) -> dict[str, Any]:
    """Train a policy for a task in a module's latent space, into OUT/policy; logs and checkpoints
    beside it. What stands in the module's place (`settings.joint_space`, `settings.walker`) is
    OUT/module.

    Args:
      module: the skill module's folder.
      make_task: the task, e.g. `lambda: Walk(robot, config, motions)`; called twice, as what is
        trained and what is judged are two environments.
      motions: recordings that the module tracks, which a policy learned through a model is first
        cloned from.
      policy: the folder of one that learning starts from, of the same module and inputs, or a
        walking one to dribble with; its network is taken over.
      teacher: of algo=clone, the folder of a policy of the same module that shows how the task is
        done; None: the task's own teacher, by what the decoder makes of latents.
      seed, resume: as `npmp.learning.imitation.train_module` takes them.

    Returns: the summary, which is in policy.json and summary.json as well.

    Raises:
      InputError: for a task that no policy is trained for, a module of another robot, a policy or
        teacher of another module or task, a teacher of another algorithm, or a run to resume that
        is damaged or of another kind.
      Diverged: when the run's figures are no numbers any more.
      Stopped: when a signal ended the run, with a checkpoint.
    """
    chosen = settings or ReuseSettings()
    policy = None if policy is None else Path(policy).resolve()
    source = Path(module).resolve()
    folder = Path(out)
    plan = _plan(source, make_task, folder, chosen, motions, policy, teacher, seed)
    return run.train(plan, folder, resume=resume, seed=seed, caller=caller)


def _plan(
    source: Path,
    make_task: Callable[[], Task],
    folder: Path,
    chosen: ReuseSettings,
    motions: MotionSet | None,
    policy: Path | None,
    teacher: Path | str | None,
    seed: int,
) -> run.TrainingPlan:
    """What is made, judged and saved of a run."""
    if teacher is not None and not isinstance(chosen.algo, StudentConfig):
        raise InputError("teacher= is of algo=clone; policy= is what other algorithms go on from")
    shows = None if teacher is None else HighLevelPolicy.load(teacher)
    taught_by: dict[str, str] = {}
    if teacher is not None:
        digest = sha256(Path(teacher) / "policy.safetensors")
        taught_by = {"teacher": Path(teacher).name, "teacher_sha256": digest}
    task = make_task()
    check_task(task)
    skill, learner = _networks(source, chosen, task, seed, policy)
    skill.check_robot(task.robot)
    trial = RepeatedTrial(make_task(), chosen, skill, seed=seed + 1000)

    def new_trainer(settings: ReuseSettings, robots: int, seed: int) -> ReuseTrainer:
        own = make_task()
        networks = _networks(source, settings, own, seed, policy)
        recordings = None
        if motions is not None:
            frames = networks[0].contract.context_horizon
            tracked = ImitationConfig(uniform_starts=1.0, future_frames=frames)
            recordings = Imitation(own.robot, tracked, motions)
        return make_policy_trainer(
            settings, own, *networks, robots, recordings=recordings, teacher=shows,
            new=policy is None, seed=seed,
        )  # fmt: skip

    def begin(trainer: ReuseTrainer) -> tuple[dict[str, Any], dict[str, Any]]:
        with phase("judging the untrained policy"):
            untrained = trial(trained_policy(trainer))
        learned = {"warm_up": _warmed_up(trainer, policy, seed)}
        with phase("judging random latents"):
            random = trial(None)
        return {"random_latents": random, "untrained": untrained, **learned}, untrained

    def save(trainer: ReuseTrainer, summary: dict[str, Any]) -> None:
        if chosen.stands_in:  # what stands in the module's place is in no other folder
            skill.save(folder / "module")
        trained_policy(trainer).save(folder / "policy", training=summary)
        if isinstance(trainer, ModelBasedTrainer):
            trainer.fit.save(folder / "policy")

    return run.TrainingPlan(
        settings=chosen,
        make=new_trainer,
        start=begin,
        evaluate=lambda trainer: trial(trained_policy(trainer)),
        evaluation_keys=(*task.judged, "energy_j_per_m", *STEPS),
        summarize=lambda before, latest: (
            _described(source.name, chosen, learner, task, before, latest) | taught_by
        ),
        save=save,
        inputs_sha256=learner.contract.module_sha256 + taught_by.get("teacher_sha256", ""),
    )


def _warmed_up(trainer: ReuseTrainer, policy: Path | None, seed: int) -> dict[str, float]:
    """What a trainer does before its first iteration; figures of it."""
    if isinstance(trainer, ModelBasedTrainer):
        return trainer.warm_up(policy)
    agent = trainer.agent
    if not isinstance(agent, LatentAgent) or agent.behavior is None:
        return {}
    figures = agent.learn_behavior(trainer.env, trainer.recordings, trainer.generator, seed=seed)
    trainer.env_steps += trainer.env_steps_before
    trainer.env.restart()
    return figures


def check_task(task: Task | type[Task]) -> None:
    """Refuse a task that no policy is trained for. Raises InputError, naming those there are."""
    if not task.reusable or task.policies_of:
        names = ", ".join(kind.name for kind in TASKS if kind.reusable and not kind.policies_of)
        how = ""
        if task.policies_of:
            how = f", which npmp evaluate judges a policy of {task.policies_of[0]} by"
        raise InputError(f"no reuse task '{task.name}'{how}; available: {names}")


def _networks(
    module: Path, settings: ReuseSettings, task: Task, seed: int, policy: Path | str | None
) -> tuple[SkillModule, HighLevelPolicy]:
    """The module, frozen, and a policy for it: a new one, or one that goes on from what another has
    learned."""
    with seeded(seed):
        skill = SkillModule.load(module, settings.device).requires_grad_(False)
        if settings.joint_space:
            skill = skill.in_joint_space().requires_grad_(False)
        if settings.walker is not None:
            walker = HighLevelPolicy.load(settings.walker, module=module, device=settings.device)
            if tuple(walker.contract.command) != COMMAND_NAMES:
                commands = ", ".join(walker.contract.command)
                raise InputError(
                    f"walker={settings.walker}: its commands are {commands}, expected "
                    f"{', '.join(COMMAND_NAMES)}"
                )
            skill = over(walker, skill).as_module().requires_grad_(False)
        if policy is None:
            digest = module_sha256(skill if settings.stands_in else module)
            bound = _reach(skill, task.robot) if settings.joint_space else None
            return skill, HighLevelPolicy.for_task(
                skill, task, net=settings.net, module=digest, bound=bound
            )
    if settings.stands_in:
        raise InputError(
            "joint_space=true and walker= begin anew; to go on from a policy=RUN/policy of it give "
            "module=RUN/module"
        )
    return skill, HighLevelPolicy.load(
        policy, module=module, device=settings.device
    ).for_other_task(task)


def _reach(skill: SkillModule, robot: Robot) -> list[float]:
    """Bounds of latents that are joint targets: at least the module's, and as far as the joints
    turn."""
    # for the type checker: callers have made it one
    assert isinstance(skill.decoder, JointDecoder)
    home = robot.home_joints
    scale = skill.decoder.scale.cpu().numpy()
    far = np.maximum(robot.joint_upper - home, home - robot.joint_lower) / scale
    return np.maximum(far, skill.latent_range.cpu().numpy()).tolist()


def make_policy_trainer(
    settings: ReuseSettings,
    task: Task,
    skill: SkillModule,
    policy: HighLevelPolicy,
    robots: int,
    *,
    recordings: Imitation | None,
    teacher: HighLevelPolicy | None,
    new: bool,
    seed: int,
) -> ReuseTrainer:
    """The algorithm with its robots, before its first iteration; arguments as `train_policy`."""
    algo = settings.algo
    env = settings.env(task, robots, skill, seed, episode_s=getattr(algo, "episode_s", None))
    if isinstance(algo, ModelBasedConfig):
        return ModelBasedTrainer(
            env, policy, skill, algo, recordings=recordings, new=new, seed=seed
        )
    behavior = None
    if algo.behavior and skill.contract.decoder == "lstm":
        behavior = behavior_of(skill, env, policy.prior.alpha, algo.behavior, seed=seed)
        if recordings is not None:
            skill.check_encoder(env.robot)
    by_joints = teacher is None and isinstance(algo, StudentConfig)
    kind = DecodedAgent if by_joints and skill.contract.decoder == "lstm" else LatentAgent
    agent = kind(policy.to(env.device), skill.to(env.device), behavior)
    trainer: OnPolicyTrainer | StudentTrainer
    if isinstance(algo, OnPolicyConfig):
        trainer = OnPolicyTrainer(env, agent, algo, seed=seed)
    else:
        trainer = StudentTrainer(env, agent, teacher_of(env, agent, teacher), algo, seed=seed)
    if behavior is not None:
        trainer.recordings = recordings
        trainer.env_steps_before = BEHAVIOR_STEPS * robots
    return trainer


def trained_policy(trainer: ReuseTrainer) -> HighLevelPolicy:
    """What is judged and saved: averaged weights where the algorithm averages."""
    if isinstance(trainer, ModelBasedTrainer):
        return trainer.policy
    policy = trainer.average if isinstance(trainer, StudentTrainer) else trainer.agent.network
    policy = policy.upper if isinstance(policy, Composition) else policy
    assert isinstance(policy, HighLevelPolicy)  # of `make_policy_trainer`
    return policy


def _described(
    module: str,
    settings: ReuseSettings,
    policy: HighLevelPolicy,
    task: Task,
    before: Mapping[str, Any],
    latest: Mapping[str, Any],
) -> dict[str, Any]:
    """What the summary says of the task and of what came of it."""
    return {
        "task": policy.contract.task,
        "algorithm": settings.algorithm,
        "module": module,
        "joint_space": settings.joint_space,
        **({} if settings.walker is None else {"walker": settings.walker.name}),
        "module_sha256": policy.contract.module_sha256,
        "command_range": policy.contract.command_range,
        "settings": asdict(task.config),
        task.main_figure: {
            "random_latents": before["random_latents"][task.main_figure],
            "untrained": before["untrained"][task.main_figure],
            "after": latest[task.main_figure],
        },
    }
