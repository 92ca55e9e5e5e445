"""`npmp reuse`: train a high-level policy on a task, acting through the frozen decoder of a skill
module."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError
from npmp import robots, tasks
from npmp.core import plugins, ranges
from npmp.core.settings import to_plain
from npmp.experiments.backend import motions_of, robots_config_of
from npmp.experiments.command import NOW, Run, Verb
from npmp.experiments.store import group
from npmp.experiments.terminal import say
from npmp.experiments.training import Training, caller_of, shared_settings
from npmp.learning.reuse import ReuseSettings, check_task, train_policy
from npmp.learning.student import ScriptedTeacher
from npmp.skills import modules, policies
from npmp.skills.high_level_policy import HighLevelPolicy
from npmp.skills.nets.high_level import HighLevelConfig
from npmp.skills.skill_module import SkillModule
from npmp.tasks.inputs import SETTINGS


@dataclass(frozen=True)
class ReuseEvaluation:
    """Evaluations during training. Raises: ValueError for values out of range."""

    # iterations between evaluations
    every: int = 50
    # the same commands and first starts at every evaluation
    robots: int = 64
    # duration of each evaluation
    seconds: float = 10.0

    def __post_init__(self) -> None:
        ranges.at_least_one(self, "every", "robots")
        ranges.above_zero(self, "seconds")


@dataclass(frozen=True, kw_only=True)
class Reuse(Training):
    """Train a high-level policy on a task, acting through the frozen decoder of a skill module.

    npmp reuse task=walk module=runs/walk/module out=runs/reuse
    npmp reuse module=anymal_b_dog data=dog.h5 policy=runs/reuse/policy randomization=paper
    out=runs/robust
    npmp reuse algo=vmpo module=anymal_b_dog joint_space=true out=runs/scratch
    npmp reuse algo=clone module=anymal_b_dog teacher=anymal_b_walk high_level=tiny
    out=runs/tiny
    npmp reuse sweep=fig6 data=dog.h5 out=runs/fig6
    npmp reuse resume=runs/reuse steps=5000000
    """

    # task to learn
    task: Any = group("walk")
    # learning algorithm
    algo: Any = group("world_model")
    # sizes of the policy's network
    high_level: Any = group("small")
    # a skill module: its folder, or a shipped one's name (npmp skill list)
    module: str
    # a policy of this module to continue from: its folder or a shipped one's name; null: a new one
    policy: str | None = None
    # algo=clone: the teacher, a policy of this module (the student has its sensors, or those of
    # task.camera= or task.sees_ground=), or a script FILE.py:CLASS whose joint targets are compared
    # with the decoder's; null: the task's velocity commands
    teacher: str | None = None
    # settings of a scripted teacher
    teacher_settings: Mapping[str, Any] = field(default_factory=dict)
    # true: from scratch, for comparison: the policy commands the joints
    joint_space: bool = False
    # a walking policy of the module whose commands replace the latents; null: none
    walker: str | None = None
    # a motion dataset (HDF5) for additional start poses and for the range of commands; null: none
    data: Path | None = None
    # train or validation: only the clips of that split; null: all
    split: str | None = None
    # total number of environment steps; other algorithms than world_model need ten times as many
    steps: int = 300_000
    # evaluations during training
    evaluation: ReuseEvaluation = field(default_factory=ReuseEvaluation)
    # iterations between checkpoints
    checkpoint_every: int = 100
    # the run folder
    out: Path | None = Path(f"runs/reuse/{NOW}")


def inputs(config: Reuse, run: Run) -> dict[str, Any]:
    """The arguments of `train_policy` for a run's settings.

    Raises:
      InputError: for settings out of range, or a module or dataset that does not fit.
    """
    kind: Any = tasks.find(str(run.chosen["task"]))
    check_task(kind)
    robot = robots.load(config.robot)
    module = modules.find(config.module)
    skill = SkillModule.load(module)
    skill.check_robot(robot)
    motions = motions_of(config.data, robot, split=config.split)
    script = scripted_teacher(config, run)
    policy, teacher, walker = (
        None if name is None else policies.find(name)
        for name in (config.policy, None if script else config.teacher, config.walker)
    )
    inherited = dict(skill.contract.training)
    if (source := policy or teacher or walker) is not None:
        own = HighLevelPolicy.load(source).contract
        inputs = own.input_settings
        # a policy without sensors may have the task's added
        names = list(SETTINGS) if own.extra_inputs else []
        # the teacher's output is commands, for a walking policy
        if teacher is not None or policy is None:
            names = [*inputs] if teacher else ["command_range"]
        if teacher is not None and has_own_sensors(config.task):
            names = ["command_range", "clock_s"]
        inherited |= {name: inputs[name] for name in names}
        clock_s = to_plain(config.task).get("clock_s")
        if None not in (inputs["clock_s"], clock_s):
            inherited["clock_s"] = clock_s  # the clock may have another period
    task = kind.resolve(config.task, motions if teacher is None else None, inherited)
    if policy is not None:
        refuse_other_network(policy, config.high_level, run.overridden)
    settings = ReuseSettings(
        net=config.high_level,
        joint_space=config.joint_space,
        walker=walker,
        robots=robots_config_of(config, skill),
        evaluation_robots=config.evaluation.robots,
        evaluation_seconds=config.evaluation.seconds,
        **shared_settings(config, run),
    )
    settings.check_sizes()
    return {
        "module": module,
        "task": kind,
        "config": task,
        "robot": robot,
        "out": run.folder,
        "settings": settings,
        "motions": motions,
        "policy": policy,
        "teacher": script or teacher,
        "seed": run.seed,
        "resume": run.resume,
        "caller": caller_of(run),
    }


def has_own_sensors(task: Any) -> bool:
    """Whether a task's settings name a map or a camera, other than by default."""
    plain = to_plain(task)
    usual = to_plain(type(task)())
    names = ("sees_ground", "camera")
    return any(plain.get(name) != usual.get(name) for name in names)


def scripted_teacher(config: Reuse, run: Run) -> ScriptedTeacher | None:
    """The script of teacher=. Raises InputError if only a config file contains it, as its code
    would run."""
    if config.teacher is None or not plugins.is_class(config.teacher):
        return None
    if "teacher" not in run.overridden:
        raise InputError(
            f"teacher={config.teacher} is from a config file; to run its code, add "
            f"teacher={config.teacher}"
        )
    return ScriptedTeacher(config.teacher, config.teacher_settings)


def refuse_other_network(policy: Path, net: HighLevelConfig, overridden: Collection[str]) -> None:
    """Raise InputError for an override of the network that differs from the policy to continue."""
    own = HighLevelPolicy.load(policy).contract
    for name, value in to_plain(net).items():
        key = f"high_level.{name}"
        has = own.alpha if name == "alpha" else own.net.get(name)
        if (key in overridden or "high_level" in overridden) and value not in (None, has):
            does = f"cannot change policy={policy}, whose network has {has}"
            raise InputError(f"{key}={value} {does}")


def run(config: Reuse, run: Run) -> None:
    """Train, and print the result."""
    summary = train_policy(**inputs(config, run))
    figure = tasks.find(str(run.chosen["task"])).main_figure
    error = summary[figure]
    say(
        f"{figure}: {error['random_latents']:.3f} with random latents, {error['after']:.3f} after"
        f" {summary['env_steps']:,} environment steps ({summary['minutes_here']} minutes here):"
        f" {run.folder / 'policy'}"
    )


def check(config: Reuse, run: Run) -> None:
    """Raise InputError for invalid settings, as far as they can be checked without the data."""
    inputs(config if config.data is None else replace(config, data=None, split=None), run)


main = Verb("reuse", Reuse, run, protect="checkpoints", check=check)
