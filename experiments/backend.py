"""Shared keys of commands that simulate robots, and the library's objects for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp import actuators
from npmp.core import artifact
from npmp.deploy import external_policy
from npmp.deploy.external_policy import ExternalPolicy
from npmp.envs import load_motions
from npmp.envs.robot_batch import RobotBatchConfig
from npmp.evaluation.module import filter_motions
from npmp.experiments.command import Computing, Run, refuse_idle
from npmp.experiments.store import group
from npmp.experiments.terminal import say
from npmp.robots import Robot
from npmp.sim import check_engine
from npmp.sim.drives import IDEAL
from npmp.skills import modules, policies
from npmp.skills.footsteps import FOOTSTEPS, FootstepPolicy
from npmp.skills.high_level_policy import HighLevelPolicy, find_module
from npmp.skills.skill_module import SkillModule


@dataclass(frozen=True, kw_only=True)
class Simulating(Computing):
    """Keys of commands that simulate robots."""

    # a robot: its name, or the folder of its robot.yaml (npmp robots list)
    robot: str = "anymal_b"
    # the randomization of physics, pushes and sensors; --config-dir adds presets of npmp sysid
    randomization: Any = group("none")
    # the drives: pd (ideal), or the folder of a fitted model; several, as pd+FOLDER, are
    # distributed over the robots
    actuator: str = IDEAL
    # the physics engine: mujoco, mujoco_staged, warp or another registered one; null: the device's
    engine: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_engine(self.engine or "")


@dataclass(frozen=True, kw_only=True)
class WithExternalPolicy(Simulating):
    """Keys of commands whose policy= may be a file of another project."""

    # description of another project's policy, YAML; null: beside it
    description: Path | None = None
    # load TorchScript, which contains code
    trust: bool = False


def module_of(config: Any, run: Run, robot: Robot) -> tuple[Path, SkillModule, RobotBatchConfig]:
    """The skill module of module=, its folder, and the config of its robots. Raises InputError if
    they do not match."""
    folder = modules.find(str(config.module))
    skill = SkillModule.load(folder, run.device)
    skill.check_robot(robot)
    return folder, skill, robots_config_of(config, skill, hold=config.hold)


def policy_of(
    config: Any, run: Run, robot: Robot
) -> tuple[Path, HighLevelPolicy, Path, SkillModule, RobotBatchConfig]:
    """The policy of policy=, its module (by module= or by the checksum), their folders, and the
    config of their robots. Raises InputError if they do not match or cannot be read."""
    folder = policies.find(str(config.policy))
    policy = HighLevelPolicy.load(folder, device=run.device)
    own = policy.contract.module_sha256
    module = find_module(folder, own) if config.module is None else modules.find(config.module)
    policy.check_module(module)
    skill = SkillModule.load(module, run.device)
    skill.check_robot(robot)
    like = robots_config_of(config, skill, hold=getattr(config, "hold", None))
    return folder, policy, module, skill, like


def simulated_policy_of(
    config: Any, run: Run, robot: Robot
) -> tuple[Path, HighLevelPolicy | FootstepPolicy, Path, SkillModule, RobotBatchConfig]:
    """As `policy_of`, or for policy=footsteps the planner over module=. Raises: InputError as
    `policy_of` and `FootstepPolicy.over_module`."""
    if config.policy != FOOTSTEPS:
        return policy_of(config, run, robot)
    policy = FootstepPolicy.over_module(config.module, robot, run.device)
    like = robots_config_of(config, policy.skill, hold=getattr(config, "hold", None))
    return Path(FOOTSTEPS), policy, modules.find(config.module), policy.skill, like


def external_policy_of(
    config: Any, run: Run, robot: Robot
) -> tuple[ExternalPolicy, Robot, RobotBatchConfig]:
    """Another project's policy of policy=, the robot adapted to it, and the config of its robots.
    Raises InputError as `external_policy.load`, and for keys of npmp's policies."""
    refuse_idle(run, "needs a policy of npmp (policy=FOLDER)", "module", "recovery", "data")
    policy, robot = external_policy.load(
        Path(config.policy), robot, description=config.description, trust=config.trust
    )
    like = robots_config_of(config, RobotBatchConfig(), hold=config.hold)
    return policy, robot, external_policy.with_gains(like, policy.description)


def refuse_external_keys(run: Run) -> None:
    """Raise InputError for keys of another project's policy beside a policy of npmp."""
    why = "needs another project's policy (policy=FILE.onnx)"
    refuse_idle(run, why, "description", "trust")


def motions_of(
    data: Path | None, robot: Robot, *, split: str | None = None, max_speed: float | None = None
) -> MotionSet | None:
    """The clips of a dataset within these limits; None without data. Raises InputError for limits
    without data, or without clips."""
    chosen = {"split": split, "max_speed": max_speed}
    if data is None:
        for key, value in chosen.items():
            if value is not None:
                raise InputError(f"{key}={value}: needs data=, of which it selects clips")
        return None
    return filter_motions(load_motions(data, robot, split), max_speed)


def robots_config_of(config: Simulating, like: Any, *, hold: str | None = None) -> RobotBatchConfig:
    """The config of robots from `randomization`, `actuator` and hold=. like: settings of their
    sensors.

    Raises InputError for values out of range, an unknown hold or a model of actuators that cannot
    be read.
    """
    robots: RobotBatchConfig = replace(
        config.randomization,
        hold=hold or like.hold,
        accelerometer=like.accelerometer,
        actuator=config.actuator,
    )
    for folder in robots.real_drives:
        actuators.load(folder)  # checked before the first step
    return robots


def report_other_drives(training: Mapping[str, Any], actuator: str) -> None:
    """Print a line if a policy is evaluated with other drives than in training."""
    before = training.get("actuator", {}).get("name", IDEAL)
    if before != artifact.short(actuator):
        say(f"trained with actuator={before}, evaluated with actuator={actuator}")


def evaluation_record(
    config: Simulating, run: Run, policy: Path, module: Path | None, robot: Robot
) -> dict[str, Any]:
    """The policy and conditions of an evaluation, for a JSON file."""
    from npmp.view.report import versions

    return {
        "policy": policy.name,
        "module": module and module.name,
        "robot": robot.name,
        "seed": run.seed,
        "actuator": config.actuator,
        "randomization": run.chosen["randomization"],
        "versions": versions(),
    }
