"""The scenario suite: tests of a walking policy in simulation before it runs on a robot.

A scenario is a command, with changes of task, physics, sensors and pushes. Its trials run in
parallel in one environment. Red flags are metrics that predict problems on robots.
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
from npmp.core.settings import from_mapping, to_plain
from npmp.envs import RobotBatchConfig, TaskEnv
from npmp.envs.policy import Policy
from npmp.envs.sensing import SensorConfig
from npmp.envs.task import Trial
from npmp.evaluation import gait
from npmp.evaluation.handover import Handover, Recovery
from npmp.evaluation.policy import Pushed
from npmp.evaluation.terrains import progress
from npmp.evaluation.trial import effort, run_trial
from npmp.robots import Robot
from npmp.sim.randomization import PhysicsConfig, PushConfig
from npmp.tasks.commands import CommandRange
from npmp.tasks.recover import IN_TIME_S
from npmp.tasks.walk import Walk, WalkConfig
from npmp.tasks.walk_on import WalkOn

SATURATED = 0.98  # share of the torque limit from which a drive is saturated


@dataclass(frozen=True)
class PushTrain:
    """Pushes of the root, from the left or the right at random."""

    force_n: float = 0.0
    duration_s: float = 0.5
    count: int = 1
    # time of the first push
    first_s: float = 2.0
    # time between starts of pushes
    every_s: float = 1.0

    def __post_init__(self) -> None:
        ranges.not_negative(self, "force_n", "first_s")
        ranges.above_zero(self, "duration_s", "every_s")
        ranges.at_least_one(self, "count")


@dataclass(frozen=True)
class Scenario:
    """A command, and changes from an ideal robot on flat ground."""

    # forward, lateral [m/s], yaw rate [rad/s]; clamped to the policy's range
    command: tuple[float, float, float]
    seconds: float = 8.0
    # share of trials that must succeed
    pass_mark: float = 0.85
    # settings of `WalkConfig`
    task: Mapping[str, Any] = field(default_factory=dict)
    # settings of `PhysicsConfig`
    physics: Mapping[str, Any] = field(default_factory=dict)
    # settings of `SensorConfig`
    sensors: Mapping[str, Any] = field(default_factory=dict)
    push: PushTrain = field(default_factory=PushTrain)
    # start lying after a drop, and ignore falls: for a policy with a recovery policy
    fallen: bool = False
    # settings to train with if it fails
    cure: str = ""
    # P: practice, D: our own decision
    source: str = "D"

    def __post_init__(self) -> None:
        ranges.above_zero(self, "seconds")
        ranges.share(self, "pass_mark")

    @property
    def plain(self) -> bool:
        """Whether it only sets a command."""
        return not (self.task or self.physics or self.sensors or self.push.force_n or self.fallen)


@dataclass(frozen=True)
class SuccessConfig:
    """A trial succeeds without a fall, with a mean velocity near the command at its end."""

    # time over which the velocity is averaged
    last_s: float = 3.0
    # largest error of the speed, but at most half the commanded speed, so that standing still fails
    velocity_mps: float = 0.25
    # largest error of the yaw rate, but at most half the commanded one
    yaw_rate_rps: float = 0.25

    def __post_init__(self) -> None:
        ranges.above_zero(self, "last_s", "velocity_mps", "yaw_rate_rps")


@dataclass(frozen=True)
class FlagConfig:
    """Limits of red flags [D]."""

    # share of trials with a fall in the first second
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


# flag -> symptom on a robot, and remedies from practice
CURES = {
    "start_falls": (
        "falls when set down",
        "start states: task.start_tilt_deg=5 task.start_speed_mps=0.1, more",
    ),
    "jerk": (
        "jerky",
        "randomize the delay (sensors.delay_s), penalize the action rate (style weights)",
    ),
    "slip_mps": (
        "slips when it turns",
        "a wider range of friction (physics.friction), penalize dragging feet",
    ),
    "heat": ("overheats", "penalize energy and RMS torque; slower commands"),
    "saturation": ("drives saturate and overheat", "physics.torque wider; slower commands"),
    "speed": (
        "joint speeds exceed those of the drives",
        "train on a model of the drives (actuator=), slower commands",
    ),
    "spread_mps": ("differs from run to run", "more sensor noise, more varied start states"),
}


class ScenarioSetup(NamedTuple):
    """The simulation of a scenario for one policy."""

    scenario: Scenario
    command: tuple[float, float, float]  # clamped to the policy's range
    task: WalkConfig
    robots: RobotBatchConfig


class ScenarioResult(NamedTuple):
    """The metrics of a scenario, and its trial."""

    row: dict[str, Any]
    trial: Trial
    task: Walk


def setup_scenario(
    name: str,
    scenario: Scenario,
    base: WalkConfig,
    robots: RobotBatchConfig,
    command_range: CommandRange,
) -> ScenarioSetup:
    """Apply a scenario's settings to a task and robots, and remove random pushes.

    Raises:
      InputError: for unknown settings, or values out of range.
    """
    x, y, yaw = (
        min(max(value, low), high)
        for value, (low, high) in zip(scenario.command, command_range, strict=True)
    )
    at = f"scenario.{name}"
    task = from_mapping(WalkConfig, {**to_plain(base), **scenario.task}, at=f"{at}.task")
    physics = {**asdict(robots.physics), **scenario.physics}
    if robots.real_drives:  # their model fixes the rate
        physics["physics_rate_hz"] = robots.physics.physics_rate_hz
    sensors = {**asdict(robots.sensors), **scenario.sensors}
    robots = replace(
        robots,
        pushes=PushConfig(),
        physics=from_mapping(PhysicsConfig, physics, at=f"{at}.physics"),
        sensors=from_mapping(SensorConfig, sensors, at=f"{at}.sensors"),
    )
    return ScenarioSetup(scenario, (x, y, yaw), task, robots)


def select_scenarios(
    available: Mapping[str, Scenario], requested: Sequence[str] | None, *, has_recovery: bool
) -> dict[str, Scenario]:
    """The requested scenarios by name; None: all, with fallen starts only with a recovery policy.

    Raises:
      InputError: for unknown scenarios, none, or fallen starts without a recovery policy.
    """
    names = list(available) if requested is None else requested
    if not names:
        raise InputError(f"scenarios=[]: expected some of {', '.join(available)}")
    check_available("scenario", names, available)
    fallen = [name for name in names if available[name].fallen]
    if has_recovery and not fallen:
        raise InputError("recovery= needs a scenario with fallen starts in scenarios=")
    if fallen and not has_recovery and requested is not None:
        raise InputError(f"scenario '{fallen[0]}' needs a recovery policy: recovery=NAME")
    return {name: available[name] for name in names if has_recovery or name not in fallen}


def run_scenario(
    policy: Policy,
    robot: Robot,
    setup: ScenarioSetup,
    success: SuccessConfig,
    *,
    trials: int,
    seed: int = 0,
    recovery: Recovery | None = None,
    **device_options: Any,
) -> ScenarioResult:
    """Run all trials of a scenario. On slopes and stairs they start facing up.

    Args:
      recovery: the recovery policy, for fallen starts.
      device_options: engine, device and num_threads, as of `TaskEnv`.

    Raises:
      InputError: for fallen starts without a recovery policy, or one with other actuation.
    """
    scenario = setup.scenario
    if not scenario.fallen:
        task = Walk(robot, setup.task)
    elif recovery is None:
        raise InputError("a scenario with fallen starts needs a recovery policy: recovery=NAME")
    else:
        task = WalkOn(robot, setup.task, recovery.task)
    env = TaskEnv(task, trials, robots=setup.robots, seed=seed, **device_options)
    acting = policy
    if recovery is not None and scenario.fallen:
        acting = Handover(policy, recovery.policy, env)
    if scenario.push.force_n > 0:
        force = push_forces(scenario.push, trials, env.dt, torch.Generator().manual_seed(seed))
        acting = Pushed(acting, env, force.to(env.device), turned=True)
    command = torch.tensor(setup.command).expand(1, trials, 3)
    trial = run_trial(acting, env, seconds=scenario.seconds, seed=seed, commands=command)
    row = scenario_row(scenario, trial, setup.command, success)
    metrics = walking_metrics(trial)
    row |= {"gait": gait.of_worst_foot(metrics), "effort": effort(trial)}
    if scenario.plain:
        row["skating"] = skating(metrics, robot, setup.command)
        row["passed"] &= not row["skating"]
    return ScenarioResult(row, trial, env.task)


def walking_metrics(trial: Trial) -> dict[str, Any]:
    """`gait_metrics` after the first second, as robots start from standing, and before falls."""
    valid = trial.fell.cumsum(0) == 0
    valid[: round(1.0 / trial.dt)] = False
    return gait.gait_metrics(gait.foot_motion(trial, slice(None), valid), ())


def skating(metrics: Mapping[str, Any], robot: Robot, command: Sequence[float]) -> list[str]:
    """Messages for `walking_metrics` that exceed their limits."""
    if not metrics or not any(command):
        return []
    return gait.skating(metrics, command, float(robot.home_qpos[2]))


def push_forces(train: PushTrain, n: int, dt: float, generator: torch.Generator) -> Tensor:
    """Forces (T, n, 2) [N], forward and left, per control step until the end of the last push."""
    starts = [round((train.first_s + i * train.every_s) / dt) for i in range(train.count)]
    duration = max(1, round(train.duration_s / dt))
    force = torch.zeros(starts[-1] + duration, n, 2)
    side = torch.randint(0, 2, (train.count, n), generator=generator) * 2.0 - 1.0
    for start, sign in zip(starts, side, strict=True):
        force[start : start + duration, :, 1] = train.force_n * sign
    return force


# --- success ---


def tolerances(command: Sequence[float], success: SuccessConfig) -> tuple[float, float]:
    """Largest errors of the velocity [m/s] and of the yaw rate [rad/s]."""
    speed = math.hypot(*command[:2])
    turn = abs(command[2])
    return (
        min(success.velocity_mps, 0.5 * speed or math.inf),
        min(success.yaw_rate_rps, 0.5 * turn or math.inf),
    )


def command_errors(trial: Trial, command: Sequence[float], last_s: float) -> tuple[Tensor, Tensor]:
    """Errors of the mean velocity over the last seconds: (n,) [m/s], (n,) [rad/s]."""
    steps = max(1, round(last_s / trial.dt))
    error = trial.metrics["achieved"][-steps:].mean(0) - torch.tensor(command)
    return torch.linalg.vector_norm(error[:, :2], dim=-1), error[:, 2].abs()


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % confidence interval of the success rate."""
    from scipy import stats  # slow to import

    interval = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def scenario_row(
    scenario: Scenario, trial: Trial, command: Sequence[float], success: SuccessConfig
) -> dict[str, Any]:
    """The metrics of a scenario: success rate, and reasons of failures."""
    velocity_error, yaw_error = command_errors(trial, command, success.last_s)
    max_velocity_error, max_yaw_error = tolerances(command, success)
    upright = ~trial.fell.any(0)
    near = (velocity_error <= max_velocity_error) & (yaw_error <= max_yaw_error)
    if any(scenario.command) and not any(command):
        near &= False  # the command is outside the policy's range
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
        "bound_mps": max_velocity_error,
        "bound_rps": max_yaw_error,
    }
    if "up" in trial.metrics:
        steps = torch.arange(1, len(trial.fell) + 1).unsqueeze(-1)
        # beyond the end if never
        rise = torch.where(trial.metrics["up"], steps, len(steps) + 1).amin(0) * trial.dt
        row |= {"risen": (rise <= IN_TIME_S).float().mean().item(), "rise_s": rise.median().item()}
    if upright.any():
        row["error_mps"] = velocity_error[upright].mean().item()
        row["error_rps"] = yaw_error[upright].mean().item()
    return row | {"cure": scenario.cure, "source": scenario.source, "settings": asdict(scenario)}


# --- red flags ---


def red_flags(
    results: Mapping[str, ScenarioResult],
    scenarios: Mapping[str, Scenario],
    robot: Robot,
    limits: FlagConfig,
) -> list[dict[str, Any]]:
    """The red flags that can be measured: value, limit, symptom and cure.

    `start_falls` and `speed` are over all scenarios, the others over those that only set a command.
    """
    plain_results = [result for name, result in results.items() if scenarios[name].plain]
    plain = [result.trial for result in plain_results]
    turning = [result.trial for result in plain_results if result.row["command"][2]]
    torque_limit = torch.tensor(robot.torque_limit, dtype=torch.float32)
    trials = [result.trial for result in results.values()]
    speeds = joint_speeds(trials, robot).values()
    starts = [trial.fell[: round(1.0 / trial.dt)].any(0) for trial in trials]
    measured = {
        "start_falls": torch.cat(starts).float().mean().item(),
        "speed": max(row["p999_rps"] / row["limit_rps"] for row in speeds),
    }
    if plain:
        measured |= {
            name: max(drive_load(trial, torque_limit)[name] for trial in plain)
            for name in ("jerk", "heat", "saturation")
        }
        measured["spread_mps"] = max(speed_spread(trial) for trial in plain)
    if turning:
        measured["slip_mps"] = max(foot_slip(trial) for trial in turning)
    flags = []
    for name, (symptom, cure) in CURES.items():
        if name in measured:
            value = measured[name]
            limit = getattr(limits, name)
            flag = {"name": name, "value": value, "from": limit, "raised": value > limit}
            flags.append(flag | {"symptom": symptom, "cure": cure})
    return flags


def drive_load(trial: Trial, limit: Tensor) -> dict[str, float]:
    """`jerk`, `heat` and `saturation` of `FlagConfig`, before falls; limit: (nu,) [Nm]."""
    up = trial.fell.cumsum(0) == 0
    load = trial.metrics["torque"] / limit  # (T, n, nu)
    change = (load[1:] - load[:-1]).abs()[up[1:]] / trial.dt
    load = load[up]
    return {
        "jerk": change.mean().item() if len(change) else 0.0,
        "heat": load.square().mean(0).sqrt().max().item() if len(load) else 0.0,
        "saturation": (load.abs() >= SATURATED).float().mean(0).max().item() if len(load) else 0.0,
    }


def joint_speeds(trials: Sequence[Trial], robot: Robot) -> dict[str, dict[str, float]]:
    """Joint speeds before falls [rad/s]: 99.9th percentile, maximum and limit per joint."""
    before_falls = [trial.metrics["joint_vel"][trial.fell.cumsum(0) == 0] for trial in trials]
    speed = torch.cat(before_falls).abs()
    if not len(speed):
        speed = torch.zeros(1, len(robot.joint_names))
    # topk, as torch.quantile is limited in size
    rank = max(1, round(0.001 * len(speed)))
    largest = speed.topk(rank, dim=0).values
    rows = zip(robot.joint_names, largest[-1], largest[0], robot.velocity_limit, strict=True)
    return {
        name: {"p999_rps": p999.item(), "max_rps": top.item(), "limit_rps": float(limit)}
        for name, p999, top, limit in rows
    }


def foot_slip(trial: Trial) -> float:
    """Mean speed in contact of the worst foot, before falls [m/s]."""
    up = trial.fell.cumsum(0) == 0
    height, speed = trial.metrics["feet"].unbind(-1)
    contact = up.unsqueeze(-1) & (height < gait.CONTACT_M)
    speeds = [speed[..., f][contact[..., f]] for f in range(height.shape[-1])]
    return max((s.mean().item() for s in speeds if len(s)), default=0.0)


def speed_spread(trial: Trial) -> float:
    """Standard deviation between robots without a fall of the mean forward velocity [m/s]."""
    means = trial.metrics["achieved"][:, ~trial.fell.any(0), 0].mean(0)
    return means.std().item() if len(means) > 1 else 0.0
