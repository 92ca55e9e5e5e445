"""The scenario suite: what a walking policy has to master in simulation before it runs on a robot.

A scenario is data: a command, and what differs from an ideal robot on flat ground. All of its
trials run side by side in one environment. Besides success, red flags are looked for: what goes
wrong on robots and shows in simulation first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocap_data.errors import InputError, check_available
from npmp.core import ranges
from npmp.core.settings import from_mapping
from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.envs.policy import Policy
from npmp.envs.sensing import SensorConfig
from npmp.envs.task import Trial
from npmp.evaluation import gait
from npmp.evaluation.handover import Handover, Recovery
from npmp.evaluation.policy import Pushed
from npmp.evaluation.terrains import progress
from npmp.evaluation.trial import run_trial
from npmp.robots import Robot
from npmp.sim.randomization import PhysicsConfig, PushConfig
from npmp.tasks.commands import CommandRange
from npmp.tasks.recover import IN_TIME_S
from npmp.tasks.walk import Walk, WalkConfig
from npmp.tasks.walk_on import WalkOn

FULL = 0.98  # a drive at this share of its torque limit is saturated


@dataclass(frozen=True)
class PushTrain:
    """Forces of exactly this size on the root, each from the left or the right at random."""

    force_n: float = 0.0
    duration_s: float = 0.5
    count: int = 1
    # after the start
    first_s: float = 2.0
    # from the beginning of one push to that of the next
    every_s: float = 1.0

    def __post_init__(self) -> None:
        ranges.not_negative(self, "force_n", "first_s")
        ranges.above_zero(self, "duration_s", "every_s")
        ranges.at_least_one(self, "count")


@dataclass(frozen=True)
class Scenario:
    """A command, and what differs from an ideal robot on flat ground."""

    # forward, lateral [m/s], yaw rate [rad/s]; clipped to the policy's range
    command: tuple[float, float, float]
    seconds: float = 8.0
    # share of trials that must succeed
    pass_mark: float = 0.85
    # what differs in `WalkConfig`
    task: Mapping[str, Any] = field(default_factory=dict)
    # what differs in `PhysicsConfig`
    physics: Mapping[str, Any] = field(default_factory=dict)
    # what differs in `SensorConfig`
    sensors: Mapping[str, Any] = field(default_factory=dict)
    push: PushTrain = field(default_factory=PushTrain)
    # starts lie after a drop, and falls do not count: for a policy that hands over to a recovery
    fallen: bool = False
    # what to train with where it fails
    cure: str = ""
    # P: practice, D: our own decision
    source: str = "D"

    def __post_init__(self) -> None:
        ranges.above_zero(self, "seconds")
        ranges.share(self, "pass_mark")

    @property
    def plain(self) -> bool:
        """Whether it is only a command."""
        return not (self.task or self.physics or self.sensors or self.push.force_n or self.fallen)


@dataclass(frozen=True)
class SuccessConfig:
    """A trial succeeds without a fall and with its last seconds' mean velocity near its command."""

    last_s: float = 3.0
    # norm of the difference, but at most half the commanded speed: standing still is no success
    velocity_mps: float = 0.25
    # likewise, at most half the commanded yaw rate
    yaw_rate_rps: float = 0.25

    def __post_init__(self) -> None:
        ranges.above_zero(self, "last_s", "velocity_mps", "yaw_rate_rps")


@dataclass(frozen=True)
class FlagConfig:
    """Where red flags begin [D]."""

    # share of trials that fall within the first second
    start_falls: float = 0.02
    # mean change of torques between control steps, in torque limits per second
    jerk: float = 10.0
    # mean speed of the worst foot near the ground while turning
    slip_mps: float = 0.1
    # RMS torque of the hottest joint, as a share of its limit
    heat: float = 0.5
    # share of the time that a joint is at its torque limit
    saturation: float = 0.05
    # 99.9th percentile of the fastest joint's speed, as a share of its velocity limit
    speed: float = 1.0
    # standard deviation between trials of the mean forward velocity
    spread_mps: float = 0.1

    def __post_init__(self) -> None:
        ranges.above_zero(self, *self.__dataclass_fields__)


# flag -> what it shows on a robot, and what practice does about it
CURES = {
    "start_falls": (
        "falls when it is set down",
        "start states: task.start_tilt_deg=5 task.start_speed_mps=0.1, more",
    ),
    "jerk": (
        "jerky",
        "randomize the delay (sensors.delay_s), let the action rate cost (style weights)",
    ),
    "slip_mps": (
        "slips when it turns",
        "a wider range of friction (physics.friction), feet that pay for dragging",
    ),
    "heat": ("overheats", "let energy and the RMS of torques cost; slower commands"),
    "saturation": ("has no reserve, and overheats", "physics.torque wider; slower commands"),
    "speed": (
        "asks joints for speeds that the drives do not reach",
        "train on a model of the drives (actuator=), slower commands",
    ),
    "spread_mps": ("differs from run to run", "more sensor noise, more varied start states"),
}


class Setting(NamedTuple):
    """A scenario as it is simulated for one policy."""

    scenario: Scenario
    command: tuple[float, float, float]  # within the policy's range
    task: WalkConfig
    robots: RobotBatchConfig


class ScenarioResult(NamedTuple):
    """A scenario's figures, and the trial that they are of."""

    row: dict[str, Any]
    trial: Trial
    task: Walk


def setting_of(
    name: str, scenario: Scenario, base: WalkConfig, robots: RobotBatchConfig, within: CommandRange
) -> Setting:
    """The simulation that a scenario asks for: its settings over those of a task and robots,
    without random pushes.

    Raises:
      InputError: for settings that do not exist or are out of range.
    """
    x, y, yaw = (
        min(max(v, low), high) for v, (low, high) in zip(scenario.command, within, strict=True)
    )
    at = f"scenario.{name}"
    task = from_mapping(WalkConfig, {**asdict(base), **scenario.task}, at=f"{at}.task")
    physics = {**asdict(robots.physics), **scenario.physics}
    if robots.real_drives:  # their model has a rate of its own
        physics["physics_rate_hz"] = robots.physics.physics_rate_hz
    sensors = {**asdict(robots.sensors), **scenario.sensors}
    robots = replace(
        robots,
        pushes=PushConfig(),
        physics=from_mapping(PhysicsConfig, physics, at=f"{at}.physics"),
        sensors=from_mapping(SensorConfig, sensors, at=f"{at}.sensors"),
    )
    return Setting(scenario, (x, y, yaw), task, robots)


def chosen(
    scenarios: Mapping[str, Scenario], names: Sequence[str] | None, *, recovers: bool
) -> dict[str, Scenario]:
    """The scenarios of these names; None: all that can be tried.

    Args:
      recovers: whether there is a policy that gets up, for fallen starts.

    Raises:
      InputError: for one that there is not, none, or fallen starts that nothing gets up from.
    """
    selected = list(scenarios) if names is None else names
    if not selected:
        raise InputError(f"scenarios=[] names none; available: {', '.join(scenarios)}")
    check_available("scenario", selected, scenarios)
    fallen = [name for name in selected if scenarios[name].fallen]
    if recovers and not fallen:
        raise InputError("recovery= is for scenario fallen_start, which scenarios= does not name")
    if fallen and not recovers and names is not None:
        raise InputError(f"scenario {fallen[0]} takes a policy that gets up: recovery=NAME")
    return {name: scenarios[name] for name in selected if recovers or name not in fallen}


def run_scenario(
    policy: Policy,
    robot: Robot,
    setting: Setting,
    success: SuccessConfig,
    *,
    trials: int,
    seed: int = 0,
    recovery: Recovery | None = None,
    **place: Any,
) -> ScenarioResult:
    """All trials of a scenario, side by side.

    On slopes and stairs that are climbed all trials face up.

    Args:
      recovery: what the policy hands over to in a scenario whose starts have fallen.
      place: sim, device and num_threads, as `TaskEnv` takes them.

    Raises:
      InputError: for fallen starts without a recovery, or with one of another wiring.
    """
    scenario = setting.scenario
    if not scenario.fallen:
        task = Walk(robot, setting.task)
    elif recovery is None:
        raise InputError("a scenario with fallen starts takes a policy that gets up: recovery=NAME")
    else:
        task = WalkOn(robot, setting.task, recovery.task)
    env = TaskEnv(task, trials, robots=setting.robots, seed=seed, **place)
    acting = policy
    if recovery is not None and scenario.fallen:
        acting = Handover(policy, recovery.policy, env)
    if scenario.push.force_n > 0:
        force = pushes(scenario.push, trials, env.dt, torch.Generator().manual_seed(seed))
        acting = Pushed(acting, env, force.to(env.device), turned=True)
    command = torch.tensor(setting.command).expand(1, trials, 3)
    trial = run_trial(acting, env, seconds=scenario.seconds, seed=seed, commands=command)
    row = row_of(scenario, trial, setting.command, success)
    if scenario.plain:
        row["skating"] = skating(trial, robot, setting.command)
        row["passed"] &= not row["skating"]
    return ScenarioResult(row, trial, env.task)


def skating(trial: Trial, robot: Robot, command: Sequence[float]) -> list[str]:
    """What of how robots step before falls is beyond the limits, in words."""
    counts = trial.fell.cumsum(0) == 0
    counts[: round(1.0 / trial.dt)] = False  # set out from standing
    seen = gait.stepping_of(trial, slice(None), counts)
    figures = gait.stepping_figures(seen, gait.opposite(robot))
    if not figures or not any(command):
        return []
    return gait.skating(figures, command, float(robot.home_qpos[2]))


def pushes(train: PushTrain, n: int, dt: float, generator: torch.Generator) -> Tensor:
    """Forces (T, n, 2) [N], forwards and to the left, in every control step until the last push is
    over."""
    starts = [round((train.first_s + i * train.every_s) / dt) for i in range(train.count)]
    lasts = max(1, round(train.duration_s / dt))
    force = torch.zeros(starts[-1] + lasts, n, 2)
    side = torch.randint(0, 2, (train.count, n), generator=generator) * 2.0 - 1.0
    for start, sign in zip(starts, side, strict=True):
        force[start : start + lasts, :, 1] = train.force_n * sign
    return force


# --- success ---


def bounds(command: Sequence[float], success: SuccessConfig) -> tuple[float, float]:
    """By how much the velocity [m/s] and the yaw rate [rad/s] may miss a command."""
    speed = math.hypot(*command[:2])
    turn = abs(command[2])
    return (
        min(success.velocity_mps, 0.5 * speed or math.inf),
        min(success.yaw_rate_rps, 0.5 * turn or math.inf),
    )


def errors(trial: Trial, command: Sequence[float], last_s: float) -> tuple[Tensor, Tensor]:
    """By how much the mean velocities over the last seconds miss a command: (n,) [m/s], (n,)
    [rad/s]."""
    steps = max(1, round(last_s / trial.dt))
    off = trial.seen["achieved"][-steps:].mean(0) - torch.tensor(command)
    return torch.linalg.vector_norm(off[:, :2], dim=-1), off[:, 2].abs()


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of the chance of success, from successes among trials."""
    from scipy import stats  # slow to import

    interval = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def row_of(
    scenario: Scenario, trial: Trial, command: Sequence[float], success: SuccessConfig
) -> dict[str, Any]:
    """A scenario's figures: how many succeeded, and why the others did not."""
    speed, turn = errors(trial, command, success.last_s)
    most = bounds(command, success)
    upright = ~trial.fell.any(0)
    near = (speed <= most[0]) & (turn <= most[1])
    if any(scenario.command) and not any(command):
        near &= False  # the policy's range has nothing of this command
    count = int((upright & near).sum())
    n = len(upright)
    low, high = wilson(count, n)
    row: dict[str, Any] = {
        "success": count / n,
        "pass_mark": scenario.pass_mark,
        "passed": count / n >= scenario.pass_mark,
        "low": low,
        "high": high,
        "trials": n,
        "fell": (~upright).float().mean().item(),
        "off_command": (upright & ~near).float().mean().item(),
        "progress": progress(trial),
        "command": list(command),
        "scaled": list(command) != list(scenario.command),
        "bound_mps": most[0],
        "bound_rps": most[1],
    }
    if "up" in trial.seen:
        steps = torch.arange(1, len(trial.fell) + 1).unsqueeze(-1)
        # past the end where never
        rise = torch.where(trial.seen["up"], steps, len(steps) + 1).amin(0) * trial.dt
        row |= {"risen": (rise <= IN_TIME_S).float().mean().item(), "rise_s": rise.median().item()}
    if upright.any():
        row |= {"error_mps": speed[upright].mean().item(), "error_rps": turn[upright].mean().item()}
    return row | {"cure": scenario.cure, "source": scenario.source, "settings": asdict(scenario)}


# --- red flags ---


def red_flags(
    outcomes: Mapping[str, ScenarioResult],
    scenarios: Mapping[str, Scenario],
    robot: Robot,
    most: FlagConfig,
) -> list[dict[str, Any]]:
    """Each red flag that the scenarios tell about: its figure, where it begins, and the cure.

    Falls at the start and joint speeds are those of all scenarios, the rest is measured on those
    that are only a command.
    """
    of_plain = {name: measured for name, measured in outcomes.items() if scenarios[name].plain}
    plain = [measured.trial for measured in of_plain.values()]
    turning = [measured.trial for measured in of_plain.values() if measured.row["command"][2]]
    limit = torch.tensor(robot.torque_limit, dtype=torch.float32)
    trials = [outcome.trial for outcome in outcomes.values()]
    speeds = joint_speeds(trials, robot).values()
    starts = [trial.fell[: round(1.0 / trial.dt)].any(0) for trial in trials]
    measured = {
        "start_falls": torch.cat(starts).float().mean().item(),
        "speed": max(row["p999_rps"] / row["limit_rps"] for row in speeds),
    }
    if plain:
        measured |= {
            name: max(drives(trial, limit)[name] for trial in plain)
            for name in ("jerk", "heat", "saturation")
        }
        measured["spread_mps"] = max(spread(trial) for trial in plain)
    if turning:
        measured["slip_mps"] = max(slip(trial) for trial in turning)
    flags = []
    for name, (symptom, cure) in CURES.items():
        if name in measured:
            value = measured[name]
            begins = getattr(most, name)
            flag = {"name": name, "value": value, "from": begins, "raised": value > begins}
            flags.append(flag | {"symptom": symptom, "cure": cure})
    return flags


def drives(trial: Trial, limit: Tensor) -> dict[str, float]:
    """`jerk`, `heat` and `saturation` as `FlagConfig` has them, before falls; torque limits (nu,)
    [Nm]."""
    up = trial.fell.cumsum(0) == 0
    load = trial.seen["torque"] / limit  # (T, n, nu)
    change = (load[1:] - load[:-1]).abs()[up[1:]] / trial.dt
    kept = load[up]
    return {
        "jerk": change.mean().item() if len(change) else 0.0,
        "heat": kept.square().mean(0).sqrt().max().item() if len(kept) else 0.0,
        "saturation": (kept.abs() >= FULL).float().mean(0).max().item() if len(kept) else 0.0,
    }


def joint_speeds(trials: Sequence[Trial], robot: Robot) -> dict[str, dict[str, float]]:
    """Speeds of each joint before falls, beside its velocity limit [rad/s]: 99.9th percentile and
    maximum."""
    before_falls = [trial.seen["joint_vel"][trial.fell.cumsum(0) == 0] for trial in trials]
    speed = torch.cat(before_falls).abs()
    if not len(speed):
        speed = torch.zeros(1, len(robot.joint_names))
    # the k-th largest, as torch.quantile is limited in size
    rank = max(1, round(0.001 * len(speed)))
    most = speed.topk(rank, dim=0).values
    rows = zip(robot.joint_names, most[-1], most[0], robot.velocity_limit, strict=True)
    return {
        name: {"p999_rps": p999.item(), "max_rps": top.item(), "limit_rps": float(limit)}
        for name, p999, top, limit in rows
    }


def slip(trial: Trial) -> float:
    """The mean speed of the worst foot while it is lower than 5 mm, before falls [m/s]."""
    up = trial.fell.cumsum(0) == 0
    height, speed = trial.seen["feet"].unbind(-1)
    near = [speed[..., f][up & (height[..., f] < gait.NEAR)] for f in range(height.shape[-1])]
    return max((some.mean().item() for some in near if len(some)), default=0.0)


def spread(trial: Trial) -> float:
    """The deviation between trials without a fall of their mean forward velocity [m/s]."""
    means = trial.seen["achieved"][:, ~trial.fell.any(0), 0].mean(0)
    return means.std().item() if len(means) > 1 else 0.0
