"""Training of high-level policies over a skill module's frozen decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp import robots, tasks
from npmp.core import ranges
from npmp.core.artifact import sha256
from npmp.core.progress import phase
from npmp.core.seeding import seeded
from npmp.core.settings import changed, to_plain
from npmp.envs import Task, TaskEnv
from npmp.envs.task import Term
from npmp.evaluation.gait import worst_foot
from npmp.evaluation.trial import effort, run_trial
from npmp.learning import run
from npmp.learning.agents import BEHAVIOR_STEPS, DecodedAgent, LatentAgent
from npmp.learning.cloning import make_behavior
from npmp.learning.model_based import ModelBasedConfig, ModelBasedTrainer
from npmp.learning.on_policy import OnPolicyConfig, OnPolicyTrainer, PPOTraining, VMPOTraining
from npmp.learning.run import RunSettings
from npmp.learning.student import (
    ScriptedTeacher,
    StudentConfig,
    StudentTrainer,
    teacher_of,
    with_sensors_of_teacher,
)
from npmp.robots import Robot
from npmp.skills import modules
from npmp.skills.composition import Composition, over, wandering
from npmp.skills.high_level_policy import HighLevelPolicy, module_sha256
from npmp.skills.nets import JointDecoder
from npmp.skills.nets.high_level import HighLevelConfig
from npmp.skills.skill_module import SkillModule
from npmp.tasks.imitation import Imitation, ImitationConfig
from npmp.tasks.inputs import SETTINGS
from npmp.tasks.velocity import COMMAND_NAMES


@dataclass(frozen=True, kw_only=True)
class ReuseModelBasedConfig(ModelBasedConfig):
    """Settings of model-based reuse [D]."""

    # fewer updates of the policy than of the model: with equal numbers OP3 did not learn to stay up
    policy_updates: int = 2
    replay_steps: int = 192
    warmup_steps: int = 32
    # with 20 s, too few starts: robots fall at the start; with 4 s they fall later
    episode_s: float | None = 10.0
    policy_lr: tuple[float, float] = (5e-4, 1e-5)
    # 24 steps, half a second, are too short to imagine falls by trailing legs
    horizon: tuple[int, int] = (36, 36)
    ema: float = 0.998
    imagine_pushes: bool = True
    # share of imagined robots with a new goal at the start
    new_goals: float = 0.5
    action_noise: tuple[float, float] = (0.03, 0.03)
    beta: tuple[float, float] = (0.02, 0.02)
    # share of the KL that is to a behaviour prior, fitted to the module; the rest is to AR(1)
    behavior: float = 0.9
    # with 0 runs end in falls
    posture: float = 5.0
    # weight of the setpoints' distance from the joints, summed over joints [1/rad]
    effort: float = 0.02
    # weight of the setpoints' change per step, summed over joints [1/rad]; with 0 feet stamp
    smoothness: float = 0.02
    # shares of the run where the weight of the task's style loss rises from 0, and reaches 1; 1 for
    # a pretrained policy
    style_ramp: tuple[float, float] = (0.2, 0.5)
    # control steps per robot of the demonstration for cloning; 0: 128 with recordings, which start
    # at random frames, or 320 on the prior, which start standing
    clone_steps: int = 0
    # updates of cloning; the behaviour prior has twelve times as many, up to a limit; 0: the policy
    # starts as the AR(1) prior and is regularized towards it only
    clone_updates: int = 80

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.pairs(self, "style_ramp")
        ranges.share(self, "new_goals", "style_ramp", "behavior")
        ranges.not_negative(self, "effort", "smoothness", "clone_steps", "clone_updates")
        if not self.style_ramp[0] < self.style_ramp[1]:
            raise ValueError(
                f"style_ramp={list(self.style_ramp)}: expected [begin, full] with begin < full"
            )


@dataclass(frozen=True, kw_only=True)
class BehaviorShare:
    """Setting of model-free algorithms in latent space. Raises ValueError out of range."""

    # share of the KL that is to a behaviour prior; the rest is to AR(1)
    behavior: float = 0.0

    def __post_init__(self) -> None:
        ranges.share(self, "behavior")
        super().__post_init__()  # type: ignore[misc]  # of the algorithm


@dataclass(frozen=True, kw_only=True)
class ReuseVMPOConfig(BehaviorShare, VMPOTraining):
    """Settings of V-MPO in latent space; beta [robot-NPMP], else [D]."""

    unroll: int = 20
    passes: int = 4
    minibatches: int = 1
    gamma: float = 0.97
    target_period: int = 10
    beta: float = 0.01
    beta_ramp: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ReusePPOConfig(BehaviorShare, PPOTraining):
    """Settings of PPO in latent space [D]."""

    gamma: float = 0.97
    beta_ramp: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ReuseStudentConfig(BehaviorShare, StudentConfig):
    """Settings of a student in latent space."""


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
    """Settings of policy training; hold and accelerometer are the module's.

    Raises:
      ValueError: for values out of range.
    """

    algorithms = REUSE_ALGORITHMS
    default_num_envs = REUSE_ENVS

    algo: ReuseConfig = field(default_factory=ReuseModelBasedConfig)
    net: HighLevelConfig = field(default_factory=HighLevelConfig)
    # from scratch: no skills, the policy commands joints (`SkillModule.in_joint_space`)
    joint_space: bool = False
    # folder of a walking policy of the module; its commands replace the latents
    walker: Path | None = None
    steps: int = 300_000
    # with the same commands and first starts at every evaluation
    evaluation_robots: int = 64
    # duration of each evaluation
    evaluation_seconds: float = 10.0
    # iterations
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges.at_least_one(self, "evaluation_robots")
        if self.joint_space and self.walker is not None:
            raise InputError("joint_space=true and walker= are exclusive")
        # with a model only the learner needs the prior
        shared = isinstance(self.algo, ReuseModelBasedConfig)
        if self.collectors is not None and self.algo.behavior and not shared:
            raise ValueError("algo.behavior needs one process: use actors=null")
        ranges.above_zero(self, "evaluation_seconds")

    @property
    def replaces_module(self) -> bool:
        """Whether the policy is trained over a derived module."""
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
        """An environment of a task, with the module's hold and accelerometer."""
        robots = self.robots.like(skill)
        return TaskEnv(task, num_envs, robots=robots, seed=seed, episode_s=episode_s, **self.place)


class RepeatedTrial:
    """An evaluation that is the same at every call: task, commands and starts."""

    def __init__(self, task: Task, settings: ReuseSettings, skill: SkillModule, *, seed: int):
        self.env = settings.env(task, settings.evaluation_robots, skill, seed)
        self.skill = skill
        self.seconds = settings.evaluation_seconds
        self.seed = seed

    def __call__(self, policy: HighLevelPolicy | None) -> dict[str, Any]:
        """Figures of a trial: the task's, effort and steps. policy: None: random latents."""
        device = self.env.device
        if policy is None:
            composition = wandering(self.skill, torch.Generator(device).manual_seed(self.seed + 2))
        else:
            composition = over(policy, self.skill)
        trial = run_trial(composition, self.env, seconds=self.seconds, seed=self.seed)
        still = dict.fromkeys(STEPS, 0.0)  # figures of a robot that does not move
        return self.env.task.figures(trial) | still | effort(trial) | worst_foot(trial)


def train_policy(
    module: Path | str,
    task: str | type[Task],
    out: Path | str,
    settings: ReuseSettings | None = None,
    *,
    config: Any = None,
    robot: Robot | None = None,
    rewards: Sequence[Term] = (),
    motions: MotionSet | None = None,
    policy: Path | str | None = None,
    teacher: Path | str | ScriptedTeacher | None = None,
    seed: int = 0,
    resume: Path | None = None,
    caller: run.Caller | None = None,
) -> dict[str, Any]:
    """Train a policy for a task in a module's latent space. Writes OUT/policy, logs and
    checkpoints; with `settings.joint_space` or `settings.walker` also OUT/module.

    Args:
      module: the skill module's folder, or a shipped one's name.
      task: a name, "walk", or a class of your own.
      config: the task's settings, e.g. `WalkConfig`; None: the defaults.
      robot: None: the module's.
      rewards: terms beside the task's own, whose weights are `settings.weights`.
      motions: recordings that the module tracks, to start from, for cloning and the range of
        postures.
      policy: the folder of a policy to start from, of the same module and commands, without
        sensors of its own or with the task's; or a walking policy for a task with a script, e.g.
        dribbling.
      teacher: with algo=clone, the folder of a policy of the same module and commands, which may
        have other sensors, e.g. a map where the student has a camera; or a script, by the
        decoder's joint targets; None: the task's velocity commands, for a policy over a walking
        policy.
      seed, resume: as `npmp.learning.imitation.train_module`.

    Returns: the summary, also written to policy.json and summary.json.

    Raises:
      InputError: for a task without policies, a module of another robot, a policy or teacher of
        another module or task, a teacher without algo=clone, or a run that cannot be resumed.
      Diverged: when metrics become NaN or infinite.
      Stopped: when a signal ended the run, with a checkpoint.
    """
    chosen = settings or ReuseSettings()
    policy = None if policy is None else Path(policy).resolve()
    source = modules.find(module).resolve()
    folder = Path(out)
    kind: Any = tasks.find(task) if isinstance(task, str) else task
    check_task(kind)
    robot = robot or robots.load(SkillModule.load(source).contract.robot)

    def make_task(**sensors: Any) -> Task:
        settings = changed(config or kind.config_type(), **sensors) if sensors else config
        plain: Task = kind(robot, settings, motions)
        return plain.with_rewards(rewards, chosen.weights)

    plan = _plan(source, make_task, folder, chosen, motions, policy, teacher, seed)
    return run.train(plan, folder, resume=resume, seed=seed, caller=caller)


def _plan(
    source: Path,
    make_task: Callable[..., Task],
    folder: Path,
    chosen: ReuseSettings,
    motions: MotionSet | None,
    policy: Path | None,
    teacher: Path | str | ScriptedTeacher | None,
    seed: int,
) -> run.TrainingPlan:
    """The plan of a run: its trainer, evaluations and files.

    make_task: its keyword arguments are the task's settings of sensors; none: those configured.
    """
    if teacher is not None and not isinstance(chosen.algo, StudentConfig):
        raise InputError("teacher= needs algo=clone; other algorithms start from policy=")
    teacher_policy, taught_by = _load_teacher(teacher)
    task = make_task()
    skill, learner = _networks(source, chosen, task, seed, policy)
    skill.check_robot(task.robot)
    trial = RepeatedTrial(make_task(), chosen, skill, seed=seed + 1000)

    def new_trainer(settings: ReuseSettings, robots: int, seed: int) -> ReuseTrainer:
        trained_task = make_task()
        networks = _networks(source, settings, trained_task, seed, policy)
        recordings = None
        if motions is not None:
            frames = networks[0].contract.context_horizon
            tracked = ImitationConfig(uniform_starts=1.0, future_frames=frames)
            recordings = Imitation(trained_task.robot, tracked, motions)
        return make_policy_trainer(
            settings,
            trained_task,
            *networks,
            robots,
            recordings=recordings,
            teacher=teacher_policy,
            teacher_task=_teacher_task(teacher_policy, trained_task, make_task),
            new=policy is None,
            seed=seed,
        )

    def begin(trainer: ReuseTrainer) -> tuple[dict[str, Any], dict[str, Any]]:
        with phase("evaluating the untrained policy"):
            untrained = trial(trained_policy(trainer))
        learned = {"warm_up": _warm_up(trainer, policy or source, seed)}
        with phase("evaluating random latents"):
            random = trial(None)
        return {"random_latents": random, "untrained": untrained, **learned}, untrained

    def save(trainer: ReuseTrainer, summary: dict[str, Any]) -> None:
        if chosen.replaces_module:  # this module is in no other folder
            skill.save(folder / "module")
        trained_policy(trainer).save(folder / "policy", training=summary)
        if isinstance(trainer, ModelBasedTrainer):
            trainer.fit.save(folder / "policy")

    return run.TrainingPlan(
        settings=chosen,
        make=new_trainer,
        start=begin,
        evaluate=lambda trainer: trial(trained_policy(trainer)),
        evaluation_keys=(*task.logged_figures, "energy_j_per_m", *STEPS),
        summarize=lambda before, latest: (
            _summary(source.name, chosen, learner, task, before, latest) | taught_by
        ),
        save=save,
        inputs_sha256=learner.contract.module_sha256 + taught_by.get("teacher_sha256", ""),
    )


def _teacher_task(
    teacher: HighLevelPolicy | ScriptedTeacher | None, task: Task, make_task: Callable[..., Task]
) -> Task | None:
    """A task with the inputs of a teacher that has other sensors than the student; None: it has
    the student's, or `teacher_of` refuses it."""
    if not isinstance(teacher, HighLevelPolicy):
        return None
    contract = teacher.contract
    settings = {name: contract.input_settings[name] for name in SETTINGS}
    same = contract.extra_inputs == list(task.extra_inputs)
    if same or not {*settings} <= {*to_plain(task.config)}:
        return None
    return make_task(**settings)


def _load_teacher(
    teacher: Path | str | ScriptedTeacher | None,
) -> tuple[HighLevelPolicy | ScriptedTeacher | None, dict[str, Any]]:
    """The teacher, and its entries of the summary."""
    if teacher is None:
        return None, {}
    if isinstance(teacher, ScriptedTeacher):
        return teacher, teacher.record()
    digest = sha256(Path(teacher) / "policy.safetensors")
    entries = {"teacher": Path(teacher).name, "teacher_sha256": digest}
    return HighLevelPolicy.load(teacher), entries


def _warm_up(trainer: ReuseTrainer, learned: Path, seed: int) -> dict[str, float]:
    """Warm up a trainer before its first iteration. Returns metrics.

    learned: the folder of a policy or module, from whose world model it continues.
    """
    if isinstance(trainer, ModelBasedTrainer):
        return trainer.warm_up(learned)
    agent = trainer.agent
    if not isinstance(agent, LatentAgent) or agent.behavior is None:
        return {}
    figures = agent.learn_behavior(trainer.env, trainer.recordings, trainer.generator, seed=seed)
    trainer.env_steps += trainer.env_steps_before
    trainer.env.restart()
    return figures


def check_task(task: type[Task]) -> None:
    """Raise InputError for a task that no policy is trained for, naming the available ones."""
    if not task.reusable or task.policies_of:
        names = ", ".join(
            kind.name for kind in tasks.TASKS if kind.reusable and not kind.policies_of
        )
        hint = ""
        if task.policies_of:
            hint = f" (npmp evaluate takes policies of {task.policies_of[0]} for it)"
        raise InputError(f"no reuse task '{task.name}'{hint}; available: {names}")


def _networks(
    module: Path, settings: ReuseSettings, task: Task, seed: int, policy: Path | str | None
) -> tuple[SkillModule, HighLevelPolicy]:
    """The frozen module, and a new or copied policy over it."""
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
            digest = module_sha256(skill if settings.replaces_module else module)
            bound = _reach(skill, task.robot) if settings.joint_space else None
            return skill, HighLevelPolicy.for_task(
                skill, task, net=settings.net, module=digest, bound=bound
            )
    if settings.replaces_module:
        raise InputError(
            "joint_space=true and walker= start a new policy; to continue from policy=RUN/policy "
            "set module=RUN/module"
        )
    start = HighLevelPolicy.load(policy, module=module, device=settings.device)
    return skill, start.with_sensors_of(task)


def _reach(skill: SkillModule, robot: Robot) -> list[float]:
    """Bounds of latents that are joint targets: the joints' range, at least the module's range."""
    # for the type checker
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
    teacher: HighLevelPolicy | ScriptedTeacher | None,
    teacher_task: Task | None = None,
    new: bool,
    seed: int,
) -> ReuseTrainer:
    """Make the trainer, before its first iteration; arguments as `train_policy`.

    teacher_task: a task with the inputs of a teacher that has other sensors than the student.
    """
    algo = settings.algo
    sensors = None
    if teacher_task is not None:
        # for the type checker
        assert isinstance(teacher, HighLevelPolicy)
        task, sensors = with_sensors_of_teacher(task, teacher, teacher_task)
    env = settings.env(task, robots, skill, seed, episode_s=getattr(algo, "episode_s", None))
    if isinstance(algo, ModelBasedConfig):
        return ModelBasedTrainer(
            env, policy, skill, algo, recordings=recordings, new=new, seed=seed
        )
    behavior = None
    if algo.behavior and skill.contract.decoder == "lstm":
        behavior = make_behavior(skill, env, policy.prior.alpha, algo.behavior, seed=seed)
        if recordings is not None:
            skill.check_encoder(env.robot)
    by_joints = not isinstance(teacher, HighLevelPolicy) and isinstance(algo, StudentConfig)
    kind = DecodedAgent if by_joints and skill.contract.decoder == "lstm" else LatentAgent
    agent = kind(policy.to(env.device), skill.to(env.device), behavior)
    trainer: OnPolicyTrainer | StudentTrainer
    if isinstance(algo, OnPolicyConfig):
        trainer = OnPolicyTrainer(env, agent, algo, seed=seed)
    else:
        trainer = StudentTrainer(
            env, agent, teacher_of(env, agent, teacher, sensors), algo, seed=seed
        )
    if behavior is not None:
        trainer.recordings = recordings
        trainer.env_steps_before = BEHAVIOR_STEPS * robots
    return trainer


def trained_policy(trainer: ReuseTrainer) -> HighLevelPolicy:
    """The policy that is evaluated and saved, with averaged weights if the algorithm averages."""
    if isinstance(trainer, ModelBasedTrainer):
        return trainer.policy
    policy = trainer.average if isinstance(trainer, StudentTrainer) else trainer.agent.network
    policy = policy.upper if isinstance(policy, Composition) else policy
    # for the type checker
    assert isinstance(policy, HighLevelPolicy)
    return policy


def _summary(
    module: str,
    settings: ReuseSettings,
    policy: HighLevelPolicy,
    task: Task,
    before: Mapping[str, Any],
    latest: Mapping[str, Any],
) -> dict[str, Any]:
    """The summary's entries on the task and its main figure."""
    weights = {term.name: term.weight for term in task.parts.rewards}
    # a camera's settings rather than the path of their file
    camera = {} if policy.contract.camera is None else {"camera": policy.contract.camera}
    return {
        "task": policy.contract.task,
        "algorithm": settings.algorithm,
        "module": module,
        "joint_space": settings.joint_space,
        **({} if settings.walker is None else {"walker": settings.walker.name}),
        **({"rewards": weights} if task.added_rewards or settings.weights else {}),
        "module_sha256": policy.contract.module_sha256,
        "command_range": policy.contract.command_range,
        "settings": to_plain(task.config) | camera,
        task.main_figure: {
            "random_latents": before["random_latents"][task.main_figure],
            "untrained": before["untrained"][task.main_figure],
            "after": latest[task.main_figure],
        },
    }
