"""Velocity commands as a part of a task: their random process, its sources, and fixed schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet
from npmp.core import geometry, ranges
from npmp.core.host_waits import constant
from npmp.envs.state import pose_from_qpos
from npmp.envs.task import Goals, StepResult
from npmp.tasks.velocity import COMMAND_NAMES, heading_velocity, in_heading

CommandRange = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]

SOURCES = ("uniform", "recorded")  # distributions of commands
# default without recordings
MODEST_RANGE: CommandRange = ((0.0, 0.8), (-0.2, 0.2), (-0.5, 0.5))


@dataclass(frozen=True)
class CommandConfig:
    """The command process of a task. Raises ValueError for values out of range."""

    # (low, high) of forward, lateral and yaw velocity; None: the range of 99 % of the motions'
    # velocities
    command_range: CommandRange | None = None
    # uniform: each component over its range; recorded: all three from the motions
    commands: str = "uniform"
    # standard deviation of noise added to recorded commands [m/s, m/s, rad/s]
    command_jitter: tuple[float, float, float] = (0.05, 0.05, 0.1)
    # time between changes of the command
    command_period_s: float = 3.0
    # w: probability that a component then changes
    command_change: float = 0.5
    # b: probability that a new component is not zero; the first one applies to recorded commands
    command_nonzero: tuple[float, float, float] = (0.9, 0.25, 0.5)
    # probability that a change in training is to command zero (Isaac Lab's `rel_standing_envs`)
    command_standing: float = 0.1

    def __post_init__(self) -> None:
        pairs = MODEST_RANGE if self.command_range is None else self.command_range
        finite = all(-math.inf < low <= high < math.inf for low, high in pairs)
        if len(pairs) != 3 or not finite:
            raise ValueError(
                f"command_range must be three pairs low <= high, for {COMMAND_NAMES}; got {pairs}"
            )
        for name in ("command_nonzero", "command_jitter"):
            if len(getattr(self, name)) != 3:
                raise ValueError(f"{name} must be three numbers, for {COMMAND_NAMES}")
        ranges.share(self, "command_change", "command_nonzero", "command_standing")
        ranges.not_negative(self, "command_jitter")
        ranges.above_zero(self, "command_period_s")
        ranges.one_of(self, "commands", SOURCES)

    @property
    def range(self) -> CommandRange:
        """The range of commands; `MODEST_RANGE` if it is not set."""
        return MODEST_RANGE if self.command_range is None else self.command_range


def with_range(
    config: CommandConfig, motions: MotionSet | None, training: Mapping[str, Any]
) -> CommandConfig:
    """The settings with a range of commands: the configured one, else the motions', else that of a
    training record.

    Raises:
      InputError: if none of them has a range.
    """
    if config.command_range is not None:
        return config
    if motions is not None:
        return replace(config, command_range=command_range_from_motions(motions))
    if "command_range" not in training:
        raise InputError(
            "command_range: missing in the module's training record; set data=FILE.h5 or"
            " task.command_range=[[low,high],[low,high],[low,high]]"
            " (forward m/s, lateral m/s, yaw rad/s)"
        )
    return replace(config, command_range=as_command_range(training["command_range"]))


def with_default_range(config: CommandConfig, motions: MotionSet | None) -> CommandConfig:
    """The settings with a range of commands: the configured one, else the motions', else
    `MODEST_RANGE`."""
    if config.command_range is not None:
        return config
    usual = MODEST_RANGE if motions is None else command_range_from_motions(motions)
    return replace(config, command_range=usual)


def as_command_range(values: Sequence[Sequence[float]]) -> CommandRange:
    """Convert ranges read from a file.

    Raises:
      InputError: unless they are three pairs of numbers.
    """
    try:
        (a, b), (c, d), (e, f) = values
        return (float(a), float(b)), (float(c), float(d)), (float(e), float(f))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"a command range is three pairs [low, high], for {', '.join(COMMAND_NAMES)};"
            f" got {values}"
        ) from error


class RecordedVelocities(NamedTuple):
    """Velocities of a motion set in the heading frame, averaged over about a stride, as a walking
    body sways within one."""

    velocity: Tensor  # (S, 3) forward, lateral [m/s], yaw rate [rad/s]
    weight: Tensor  # (S,) float64, cumulative sum of the clips' weights

    @staticmethod
    def of(motions: MotionSet, window_s: float = 0.5) -> RecordedVelocities:
        """Velocities averaged over windows of `window_s`. Raises InputError for a set without a
        clip of two frames."""
        moving = [motion for motion in motions.motions if motion.num_frames > 1]
        if not moving:
            raise InputError("no clip in the dataset has velocities: expected at least two frames")
        velocities = [mean_velocities(motion, window_s) for motion in moving]
        weight = torch.tensor([motion.weight for motion in moving], dtype=torch.float64)
        each = weight.repeat_interleave(torch.tensor([len(velocity) for velocity in velocities]))
        return RecordedVelocities(torch.cat(velocities), each.cumsum(0))

    def within(self, command_range: CommandRange) -> RecordedVelocities:
        """The velocities within a range; all if none is within it. Clipping the others would
        accumulate commands at the edges of the range."""
        low, high = torch.tensor(command_range).T
        each = torch.diff(self.weight, prepend=self.weight.new_zeros(1))
        inside = ((self.velocity >= low) & (self.velocity <= high)).all(-1) & (each > 0)
        if not inside.any():
            return self
        return RecordedVelocities(self.velocity[inside], each[inside].cumsum(0))

    def to(self, device: torch.device) -> RecordedVelocities:
        """A copy on a device."""
        return RecordedVelocities(*(part.to(device) for part in self))

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Sample n velocities in proportion to their clips' weights, (n, 3)."""
        at = torch.rand(n, generator=generator, device=self.weight.device, dtype=torch.float64)
        row = torch.searchsorted(self.weight, at * self.weight[-1], right=True)
        return self.velocity[row.clamp(max=len(self.velocity) - 1)]


def mean_velocities(motion: ReferenceMotion, window_s: float) -> Tensor:
    """A motion's velocities in the heading frame, averaged over windows of `window_s`, (T', 3)."""
    pos, rot, _ = pose_from_qpos(torch.tensor(motion.qpos))
    turn = geometry.log_so3(rot[:-1].transpose(-1, -2) @ rot[1:])
    rate = motion.rate_hz
    angular = geometry.to_world(rot[:-1], turn) * rate
    velocity = in_heading(rot[1:], (pos[1:] - pos[:-1]) * rate, angular)
    return velocity.unfold(0, min(max(1, round(window_s * rate)), len(velocity)), 1).mean(-1)


def command_range_from_motions(motions: MotionSet, *, coverage: float = 0.99) -> CommandRange:
    """Ranges that cover a share of the velocities in a motion set: (3, 2) as nested tuples.

    Raises:
      InputError: for a set without a clip of two frames.
    """
    tail = (1.0 - coverage) / 2
    shares = torch.tensor([tail, 1.0 - tail], dtype=torch.float64)
    low, high = torch.quantile(RecordedVelocities.of(motions).velocity.double(), shares, dim=0)
    return as_command_range(torch.stack((low, high), -1).tolist())


def changed_command(
    command: Tensor, y: Tensor, w: Tensor, z: Tensor, command_range: CommandRange
) -> Tensor:
    """The command process, x <- x - w (x - y z), per component.

    For z = 0 the new component is the value of its range nearest to zero. Motions that only walk
    forward have no command to stand still.

    Args:
      command: (..., 3) x.
      y: (..., 3) uniform over the range. w, z: (..., 3) bool.
    """
    low, high = constant(command_range, command.device, command.dtype).T
    nearest_zero = torch.zeros_like(low).clamp(low, high)
    return torch.where(w, torch.where(z, y, nearest_zero), command)


def sample_command(
    command: Tensor,
    config: CommandConfig,
    generator: torch.Generator,
    *,
    change: float | None = None,
    recorded: RecordedVelocities | None = None,
) -> Tensor:
    """A step of the command process from commands (n, 3); change=1 resamples all, as at an
    episode's start.

    Where the forward component changes, `command_standing` is the probability that all components
    become zero.

    recorded: sampled instead of the range, and clipped to it. All three components then change
    together, as they are correlated: a robot does not turn on the spot at full speed.
    """
    change = config.command_change if change is None else change
    standing = change * config.command_standing
    low, high = constant(config.range, command.device).T
    if recorded is not None:
        noise = torch.randn(command.shape, generator=generator, device=command.device)
        jitter = constant(config.command_jitter, command.device)
        y = (recorded.sample(len(command), generator) + jitter * noise).clamp(low, high)
        chance = torch.rand((2, len(command), 1), generator=generator, device=command.device)
        w = chance[0] < change
        z = (chance[1] < config.command_nonzero[0]) & (chance[0] >= standing)
        return changed_command(command, y, w, z, config.range)
    uniform = torch.rand((3, *command.shape), generator=generator, device=command.device)
    y = low + uniform[0] * (high - low)
    # no further random numbers, so that trials have the commands of earlier versions
    stands = uniform[1, :, :1] < standing
    w = (uniform[1] < change) | stands
    z = (uniform[2] < constant(config.command_nonzero, command.device)) & ~stands
    return changed_command(command, y, w, z, config.range)


class Commands(Goals):
    """Velocity commands of all robots, `current` (n, 3), and control steps until they change,
    `left` (n,).

    In training each command changes periodically from a random time on; in a trial it follows a
    schedule.
    """

    saved: ClassVar[Mapping[str, str]] = {"commands.current": "current", "commands.left": "left"}
    achieved = staticmethod(heading_velocity)

    def __init__(self, config: CommandConfig, motions: MotionSet | None = None):
        """Raises InputError for commands="recorded" without motions."""
        self.config = config
        self._recorded: RecordedVelocities | None = None
        if config.commands == "recorded":
            if motions is None:
                raise InputError("task.commands=recorded: needs recordings; set data=FILE.h5")
            self._recorded = RecordedVelocities.of(motions).within(config.range)
        self.fixed: Tensor | None = None  # (T, n, 3) in a trial
        self._step = 0  # step of the schedule

    def bind(self, env: Any) -> None:
        """As `Part.bind`; commands are zero at first."""
        super().bind(env)
        n = env.num_envs
        if self._recorded is not None:
            self._recorded = self._recorded.to(env.device)
        self._period = max(1, round(self.config.command_period_s / env.dt))
        self.current = torch.zeros(n, 3, device=env.device)
        self.left = torch.zeros(n, dtype=torch.long, device=env.device)

    def sample(
        self, command: Tensor, generator: torch.Generator, *, change: float | None = None
    ) -> Tensor:
        """`sample_command` with the settings of this part, as in training."""
        return sample_command(
            command, self.config, generator, change=change, recorded=self._recorded
        )

    def sample_trial(
        self, command: Tensor, generator: torch.Generator, *, change: float | None = None
    ) -> Tensor:
        """As `sample`, without `command_standing`."""
        config = replace(self.config, command_standing=0.0)
        return sample_command(command, config, generator, change=change, recorded=self._recorded)

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """New commands of robots ids (k,)."""
        device = ids.device
        command = self.sample(torch.zeros(len(ids), 3, device=device), generator, change=1.0)
        if self.fixed is not None:
            command = self._scheduled(self.fixed)[ids]
        left = torch.randint(1, self._period + 1, (len(ids),), generator=generator, device=device)
        self.current = self.current.index_copy(0, ids, command)
        self.left = self.left.index_copy(0, ids, left)

    def goal(self) -> Tensor:
        """The commands, (n, 3)."""
        return self.current

    def new_goals(self, goal: Tensor, generator: torch.Generator) -> Tensor:
        """New commands (B, 3), sampled as at an episode's start."""
        return self.sample(goal, generator, change=1.0)

    def describe(self, i: int) -> dict[str, Any]:
        return {"command": self.current[i]}

    def advance(self, result: StepResult, generator: torch.Generator) -> None:
        """Resample commands whose period has ended."""
        left = self.left - 1
        due = left <= 0
        sampled = self.sample(self.current, generator)
        self.current = torch.where(due.unsqueeze(-1), sampled, self.current)
        self.left = torch.where(due, self._period, left)
        if self.fixed is not None:
            self._step += 1
            self.current = self._scheduled(self.fixed)

    def _scheduled(self, schedule: Tensor) -> Tensor:
        return schedule[min(self._step, len(schedule) - 1)]

    def schedule(self, steps: int, generator: torch.Generator | None) -> None:
        """Fix the commands of a trial: `sample_trial`, with all changes at whole periods from the
        start. generator: None: back to training."""
        if generator is None:
            self.fixed = None
            return
        command = torch.zeros(len(self.current), 3, device=generator.device)
        rows = [self.sample_trial(command, generator, change=1.0)]
        for t in range(1, steps):
            changes = t % self._period == 0
            rows.append(self.sample_trial(rows[-1], generator) if changes else rows[-1])
        self.fix(torch.stack(rows))

    def fix(self, commands: Tensor) -> None:
        """Set the commands (T, n, 3) of the next control steps; the last one is repeated."""
        self.fixed = commands.to(self.current.device)
        self._step = 0
        self.current = self.fixed[0]
