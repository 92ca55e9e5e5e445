"""The `randomization` group as the environments' `RobotBatchConfig`; `sim` and `device` as where
they run."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp import actuators, modules, policies
from npmp.envs import load_motions
from npmp.envs.robot_batch import RobotBatchConfig, Wired
from npmp.evaluation.module import within
from npmp.experiments.common import Run, at_least, one_of, refuse_idle, say
from npmp.experiments.typed import build
from npmp.reuse import HighLevelPolicy, find_module
from npmp.robots import Robot
from npmp.sim.action_space import ACTION_SPACES, PD
from npmp.skill import SkillModule
from npmp.training.collectors import KINDS, CollectorsConfig


def policy_of(config: DictConfig, device: str) -> tuple[Path, HighLevelPolicy, Path, SkillModule]:
    """The policy that `policy` names and the module that `module` does, else the one that its
    checksum does, each with its folder. Raises InputError where they do not fit or cannot be read.
    """
    folder = policies.find(str(config.policy))
    policy = HighLevelPolicy.load(folder, device=device)
    named = config.module is not None
    module = (
        modules.find(str(config.module))
        if named
        else find_module(folder, policy.contract.module_sha256)
    )
    policy.check_module(module)
    return folder, policy, module, SkillModule.load(module, device)


def motions_of(config: DictConfig, robot: Robot) -> MotionSet | None:
    """The clips of `data` that `split`, `max_speed` and `max_foot_height` leave, each where it is
    there; None without data. Raises InputError where they choose of nothing or leave none."""
    chosen = choices_of_clips(config)
    if config.data is None:
        return None
    motions = load_motions(str(config.data), robot, chosen.pop("split"))
    return within(motions, robot, **chosen)


def choices_of_clips(config: DictConfig) -> dict[str, Any]:
    """`split`, `max_speed` and `max_foot_height`, None where they are not there. Raises InputError
    without data."""
    chosen = {key: config.get(key) for key in ("split", "max_speed", "max_foot_height")}
    for key, value in chosen.items():
        if config.data is None and value is not None:
            raise InputError(f"{key}={value} chooses clips of data=..., which is not given")
    return chosen


def robots_config_of(config: DictConfig, like: Wired, *, adapts: bool = False) -> RobotBatchConfig:
    """What `randomization`, `actuator` and `hold` say, each where it is there.

    Args:
      like: what robots are wired as, a module say.
      adapts: for training, where adaptive ranges follow success; else they are drawn from whole.

    Raises InputError for values out of range, an unknown hold or a model of actuators that cannot
    be read.
    """
    drawn = config.get("randomization")
    values: Any = {} if drawn is None else OmegaConf.to_container(drawn, resolve=True)
    wiring = {"hold": config.get("hold") or like.hold, "accelerometer": like.accelerometer}
    actuator = str(config.get("actuator") or PD)
    if actuator not in ACTION_SPACES:
        actuators.load(actuator)  # not at the first step only
    made = build(RobotBatchConfig, values | wiring | {"actuator": actuator}, at="randomization")
    return made if adapts else made.whole()


def note_other_drives(trained: Mapping[str, Any], config: DictConfig) -> None:
    """Say so where what is judged was trained with other drives than it is judged with."""
    before, now = trained.get("actuator", {}).get("name", PD), str(config.get("actuator") or PD)
    if before != Path(now).name:
        say(f"trained with actuator={before}, judged with actuator={now}")


def collectors_of(config: DictConfig, given: Collection[str]) -> CollectorsConfig | None:
    """Who collects, and how many learn; None where the process that learns collects, too. given: as
    `Run.given`.

    Raises:
      InputError: for a kind that does not exist, numbers out of range, or settings of collectors
        where there are none.
    """
    if "learners" in config:  # a run to resume may be older
        at_least(config, learners=1)
    if config.get("actors") is None:
        if config.get("learners", 1) > 1:
            raise InputError(f"learners={config.learners} need collectors of their own: actors=ray")
        if "actors" not in given:
            why = "is for collectors of their own: actors=ray, or actors=inline"
            refuse_idle(config, given, why, "num_actors", "actors_sync", "most_behind")
        return None
    at_least(config, num_actors=1)
    if config.most_behind is not None:
        at_least(config, most_behind=1)
    if config.get("sim", "batch") != "batch":
        raise InputError(f"sim={config.sim}: actors= collect on the CPU; use sim=batch")
    one_of(config, "actors", *KINDS)
    return CollectorsConfig(
        str(config.actors),
        int(config.num_actors),
        sync=bool(config.actors_sync),
        learners=int(config.get("learners", 1)),
        most_behind=config.most_behind,
    )


def backend_of(config: DictConfig, run: Run) -> dict[str, str]:
    """`sim` and `device`, as environments take them; says so where the choice is a slow one.

    Raises:
      InputError: for an unknown sim.
    """
    from npmp.sim import SIMULATORS

    if config.get("sim") is None:  # of a run to resume that is older than the key
        return {"sim": "batch", "device": run.device}
    one_of(config, "sim", *SIMULATORS)
    if config.sim == "warp" and run.device == "cpu":
        print(
            "npmp: sim=warp without a GPU takes tens of times as long as sim=batch", file=sys.stderr
        )
    return {"sim": config.sim, "device": run.device}
