"""Walking by velocity command on flat or rough ground (robot-NPMP, reuse tasks, eq. 16): each robot
has its command.

A command is (forward velocity [m/s], lateral velocity [m/s, left positive], yaw rate [rad/s]) in
the robot's heading frame: its horizontal axes turned to where the root's x axis points. Velocity,
reward, command process and tilt are pure functions, for the simulated and for the imagined robot
alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import mujoco
import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.motion import ReferenceMotion
from mocap_data.store import MotionSet
from npmp import actuators, geometry, ranges
from npmp.envs.feet import SteppingWeights, stepping
from npmp.envs.starts import Starts
from npmp.envs.state import RobotState, pose_from_qpos
from npmp.envs.task import DifferentiableTask, Judgement, Start, Traces, Trial
from npmp.envs.task_env import TaskEnv
from npmp.robots import Robot
from npmp.sim import add_contact_sensors
from npmp.sim.terrain import CLIMBED, Terrain, TerrainConfig, TerrainLimits, check_kind
from npmp.tasks.ground import SEEN, SEEN_RANGE, Ground, points_around, seen_names
from npmp.tasks.trotting import TrotActor, TrotConfig

TOLD = ("clock_s", "sees_ground")  # settings by which policies are told more than the command
COMMAND_NAMES = ("forward_mps", "lateral_mps", "yaw_rate_rps")
# in words
COMMAND_CHANNELS = (("Forward velocity", "m/s"), ("Lateral velocity", "m/s"), ("Yaw rate", "rad/s"))

CLOCK = ("clock_sin", "clock_cos")  # names of what tells the time within a stride

COMMANDS = ("uniform", "recorded")  # where commands are drawn from
# where on rough ground robots start: at its gentlest points; at the foot of a climb
STARTS = ("gentle", "uphill")

CommandRange = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]

# what a robot is given to follow a change of its command, where figures leave that out
SETTLING_S = 0.5

# where no recordings say what the robot can
MODEST_RANGE: CommandRange = ((0.0, 0.8), (-0.2, 0.2), (-0.5, 0.5))


@dataclass(frozen=True)
class WalkConfig:
    """The walking task's settings. Raises: ValueError for values out of range."""

    phi: float = 0.5  # width of eq. 16 [m^2/s^2]; 0.5 for ANYmal
    # c of v <- c v + (1 - c) v_new, by which steps are judged; 0.95 for OP3 [P]
    velocity_filter: float = 0.0
    # (low, high) of forward, lateral and yaw velocity; None: what covers 99 % of the motions'
    # (`command_range_from_motions`)
    command_range: CommandRange | None = None
    # a name of `COMMANDS`: each component over its range, or all three as motions have them
    commands: str = "uniform"
    # deviation added to recorded ones [m/s, m/s, rad/s]
    command_jitter: tuple[float, float, float] = (0.05, 0.05, 0.1)
    command_period_s: float = 3.0  # between changes of the command
    command_change: float = 0.5  # w: chance of a component to change then
    # b: chance of a new component not to be zero; of recorded commands, which change as one, the
    # first counts for all
    command_nonzero: tuple[float, float, float] = (0.9, 0.25, 0.5)
    tilt_limit_deg: float = 45.0  # an episode fails beyond
    episode_s: float = 20.0
    # share of episodes that start on the reference, where there is one; else at home
    reference_starts: float = 0.5
    start_tilt_deg: float = 0.0  # starts lean by up to this about either horizontal axis
    start_speed_mps: float = 0.0  # and are up to this faster along either
    may_touch: str = "feet"  # what may touch the ground: feet; legs, the links that carry them, too
    terrain: str = "flat"  # a name of `terrain.TERRAINS`, or several joined by "+"
    terrain_level: float = 1.0  # from flat at 0 to `terrain_height` and `terrain_limits` at 1
    terrain_height: float = 0.3  # of Perlin noise, from the lowest to the highest point [m]
    # robots rise over 8 levels, the highest of which is `terrain_level`
    terrain_curriculum: bool = False
    terrain_fields: int = 128  # that robots are spread over
    terrain_seed: int = 0
    terrain_starts: str = "gentle"  # a name of `STARTS`
    terrain_limits: TerrainLimits = field(default_factory=TerrainLimits)  # of the other kinds
    clock_s: float | None = None  # period of a clock that policies are told, too: a stride's
    sees_ground: bool = False  # and heights of the ground around
    ground_noise_m: float = 0.01  # deviation of each of these
    script: TrotConfig = field(default_factory=TrotConfig)  # who shows how it is walked
    # learned through a model, a robot pays for what it is off its command in single steps, and in
    # the mean of a stride
    step_weight: float = 0.5
    stride_weight: float = 2.0
    stride_s: float = 0.24
    # at which it is to follow [m/s^2, m/s^2, rad/s^2]
    acceleration: tuple[float, float, float] = (4.0, 4.0, 8.0)
    # and for feet that move near the ground, below the swing height [m], by their speed
    # (`dragging`)
    drag_weight: float = 0.3
    swing_height_m: float = 0.04
    # and for feet that they press into MuJoCo's soft ground, by the depth [1/m]: who stamps
    press_weight: float = 100.0
    # and, where they walk, for feet that stay below the swing height, by the part that is missing
    # (`unlifted`)
    lift_weight: float = 0.5

    def __post_init__(self) -> None:
        if self.command_range is not None:
            pairs = tuple((float(low), float(high)) for low, high in self.command_range)
            # lists as they come from a file become tuples
            object.__setattr__(self, "command_range", pairs)
            if len(pairs) != 3 or not all(
                math.isfinite(low) and low <= high < math.inf for low, high in pairs
            ):
                raise ValueError(
                    f"command_range must be three pairs low <= high, for {COMMAND_NAMES}; got {pairs}"
                )
        for name in ("command_nonzero", "command_jitter", "acceleration"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        if not 0.0 <= self.velocity_filter < 1.0:
            raise ValueError(f"velocity_filter must lie in [0, 1), got {self.velocity_filter}")
        shares = (self.command_change, *self.command_nonzero, self.reference_starts)
        if len(self.command_nonzero) != 3 or not all(0.0 <= share <= 1.0 for share in shares):
            raise ValueError(
                "command_change, command_nonzero (three numbers) and reference_starts must lie in [0, 1], "
                f"got {self.command_change}, {self.command_nonzero}, {self.reference_starts}"
            )
        if self.commands not in COMMANDS:
            raise ValueError(
                f"commands must be one of {', '.join(COMMANDS)}; got {self.commands!r}"
            )
        if len(self.command_jitter) != 3:
            raise ValueError(f"command_jitter must be three numbers, got {self.command_jitter}")
        ranges.above_zero(self, "stride_s", "swing_height_m", "acceleration")
        if len(self.acceleration) != 3:
            raise ValueError(f"acceleration must be three numbers, got {self.acceleration}")
        ranges.not_negative(
            self, "step_weight", "stride_weight", "drag_weight", "press_weight", "lift_weight", "command_jitter",
            "ground_noise_m",
        )  # fmt: skip
        if self.clock_s is not None:
            ranges.above_zero(self, "clock_s")
        if not (
            self.phi > 0
            and self.command_period_s > 0
            and self.episode_s > 0
            and 0 < self.tilt_limit_deg < 180
        ):
            raise ValueError(
                "phi, command_period_s, episode_s and tilt_limit_deg must be positive, the tilt below 180"
            )

        if self.may_touch not in ("feet", "legs"):
            raise ValueError(f"may_touch must be one of feet, legs; got {self.may_touch!r}")
        ranges.not_negative(self, "start_tilt_deg", "start_speed_mps")
        if self.start_tilt_deg > self.tilt_limit_deg:
            raise ValueError(
                f"start_tilt_deg must be at most tilt_limit_deg, got {self.start_tilt_deg}"
            )
        if self.terrain_starts not in STARTS:
            raise ValueError(
                f"terrain_starts must be one of {', '.join(STARTS)}; got {self.terrain_starts!r}"
            )
        check_kind(self.terrain)
        if self.terrain_starts == "uphill" and not {*CLIMBED, "mixed"} & set(
            self.terrain.split("+")
        ):
            raise ValueError(
                f"terrain_starts=uphill is for slopes and stairs, not for {self.terrain!r}"
            )
        self.rough()

    def rough(self) -> TerrainConfig | None:
        """The terrain's own settings, None for flat ground. Raises ValueError for values out of
        range."""
        rows = min(8, self.terrain_fields) if self.terrain_curriculum else 1
        try:
            found = TerrainConfig(
                "perlin" if self.terrain == "flat" else self.terrain, self.terrain_level, self.terrain_height,
                self.terrain_fields, rows, self.terrain_seed, self.terrain_limits,
            )  # fmt: skip
        except ValueError as error:
            raise ValueError(f"terrain_{error}") from error
        return None if self.terrain == "flat" else found

    @property
    def range(self) -> CommandRange:
        """The range of commands; a modest one where none was named."""
        return MODEST_RANGE if self.command_range is None else self.command_range


# --- the task as pure functions ---


def heading_velocity(state: RobotState) -> Tensor:
    """Forward, lateral [m/s] and yaw velocity [rad/s] over the last control step, in the heading
    frame. -> (..., 3)."""
    linear_w = geometry.to_world(state.root_rot, state.root_vel)
    return _in_heading(state.root_rot, linear_w, geometry.to_world(state.root_rot, state.root_ang))


def _in_heading(root_rot: Tensor, linear_w: Tensor, angular_w: Tensor) -> Tensor:
    yaw = geometry.yaw_of(root_rot)
    cos, sin = torch.cos(yaw), torch.sin(yaw)
    x, y = linear_w[..., 0], linear_w[..., 1]
    return torch.stack((cos * x + sin * y, cos * y - sin * x, angular_w[..., 2]), -1)


def velocity_reward(velocity: Tensor, command: Tensor, phi: float) -> Tensor:
    """Eq. 16, exp(-|v - v_cmd|^2 / phi). velocity, command (..., 3) -> (...)."""
    return torch.exp(-(velocity - command).square().sum(-1) / phi)


def velocity_error(velocity: Tensor, command: Tensor) -> Tensor:
    """|v - v_cmd|, the norm over (m/s, m/s, rad/s) that eq. 16 has. (..., 3) twice -> (...)."""
    return torch.linalg.vector_norm(velocity - command, dim=-1)


def filtered(before: Tensor, velocity: Tensor, constant: float) -> Tensor:
    """The exponentially filtered velocity, c v + (1 - c) v_new; (..., 3) -> (..., 3)."""
    return velocity if constant == 0.0 else constant * before + (1.0 - constant) * velocity


def tilted(state: RobotState, limit_deg: float) -> Tensor:
    """Whether the root's vertical axis leans more than the limit from the world's. -> (...) bool."""
    return state.root_rot[..., 2, 2] < math.cos(math.radians(limit_deg))


def changed_command(
    command: Tensor, y: Tensor, w: Tensor, z: Tensor, command_range: CommandRange
) -> Tensor:
    """The command process, x <- x - w (x - y z), per component.

    Where z is 0 the new component is zero, or what its range has nearest to zero: a set of motions
    that only walk forward has no standing still to ask for.

    Args:
      command: (..., 3) x.
      y: (..., 3) uniform over the range. w, z: (..., 3) bool.
    """
    bounds = torch.tensor(command_range, dtype=command.dtype, device=command.device)
    nearest_zero = torch.minimum(
        torch.maximum(torch.zeros_like(bounds[:, 0]), bounds[:, 0]), bounds[:, 1]
    )
    return torch.where(w, torch.where(z, y, nearest_zero), command)


def draw_command(
    command: Tensor,
    config: WalkConfig,
    generator: torch.Generator,
    *,
    change: float | None = None,
    recorded: RecordedVelocities | None = None,
) -> Tensor:
    """A step of the command process from commands (n, 3); change=1 forgets them, as at an episode's
    start.

    recorded: what commands are drawn from in place of their range, to which they are then clipped.
    All three components change at once, as some go together only: nobody turns on the spot at full
    speed.
    """
    change = config.command_change if change is None else change
    bounds = torch.tensor(config.range, device=command.device)
    if recorded is not None:
        noise = torch.randn(command.shape, generator=generator, device=command.device)
        y = (
            recorded.draw(len(command), generator)
            + torch.tensor(config.command_jitter, device=command.device) * noise
        )
        y = torch.minimum(torch.maximum(y, bounds[:, 0]), bounds[:, 1])
        chance = torch.rand((2, len(command), 1), generator=generator, device=command.device)
        return changed_command(
            command, y, chance[0] < change, chance[1] < config.command_nonzero[0], config.range
        )
    uniform = torch.rand((3, *command.shape), generator=generator, device=command.device)
    y = bounds[:, 0] + uniform[0] * (bounds[:, 1] - bounds[:, 0])
    w = uniform[1] < change
    z = uniform[2] < torch.tensor(config.command_nonzero, device=command.device)
    return changed_command(command, y, w, z, config.range)


def command_schedule(
    config: WalkConfig,
    num_envs: int,
    steps: int,
    dt: float,
    generator: torch.Generator,
    recorded: RecordedVelocities | None = None,
) -> Tensor:
    """Commands for whole trials, (steps, num_envs, 3): the process with all changes at whole
    periods from the start.

    They are on the generator's device.
    """
    period = max(1, round(config.command_period_s / dt))
    command = torch.zeros(num_envs, 3, device=generator.device)
    command = draw_command(command, config, generator, change=1.0, recorded=recorded)
    rows = []
    for t in range(steps):
        if t and t % period == 0:
            command = draw_command(command, config, generator, recorded=recorded)
        rows.append(command)
    return torch.stack(rows)


def settled(command: Tensor, steps: int) -> Tensor:
    """Where so many control steps have gone since the start and since the last change of a command
    (T, n, 3). -> (T, n)."""
    changed = torch.ones(command.shape[:2], dtype=torch.bool)
    changed[1:] = (command[1:] != command[:-1]).any(-1)
    time = torch.arange(len(command)).unsqueeze(-1)
    return time - torch.where(changed, time, 0).cummax(0).values >= steps


class RecordedVelocities(NamedTuple):
    """Velocities of a motion set in the heading frame, averaged over about a stride: within one a
    walking body sways, and nobody can be asked to sway on command."""

    velocity: Tensor  # (S, 3) forward, lateral [m/s], yaw rate [rad/s]
    weight: Tensor  # (S,) float64, of their clips, each added to those before

    @staticmethod
    def of(motions: MotionSet, window_s: float = 0.5) -> RecordedVelocities:
        """Those of every `window_s` of the motions. Raises InputError for a set without a clip of
        two frames."""
        moving = [motion for motion in motions.motions if motion.num_frames > 1]
        if not moving:
            raise InputError(
                "the dataset holds no clips of two frames or more: there are no velocities"
            )
        found = [_averaged(motion, window_s) for motion in moving]
        weights = [
            torch.full((len(v),), m.weight, dtype=torch.float64)
            for m, v in zip(moving, found, strict=True)
        ]
        return RecordedVelocities(torch.cat(found), torch.cat(weights).cumsum(0))

    def within(self, command_range: CommandRange) -> RecordedVelocities:
        """Those in a range; where there are none all of them, to be clipped. Clipping the others
        would heap up commands at the range's edges, and in corners of it."""
        low, high = torch.tensor(command_range).T
        each = torch.diff(self.weight, prepend=self.weight.new_zeros(1))
        inside = ((self.velocity >= low) & (self.velocity <= high)).all(-1) & (each > 0)
        return (
            RecordedVelocities(self.velocity[inside], each[inside].cumsum(0))
            if inside.any()
            else self
        )

    def to(self, device: torch.device) -> RecordedVelocities:
        """The same on a device."""
        return RecordedVelocities(*(part.to(device) for part in self))

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """n of them, in proportion to their clips' weights, (n, 3)."""
        at = (
            torch.rand(n, generator=generator, device=self.weight.device, dtype=torch.float64)
            * self.weight[-1]
        )
        return self.velocity[
            torch.searchsorted(self.weight, at, right=True).clamp(max=len(self.velocity) - 1)
        ]


def _averaged(motion: ReferenceMotion, window_s: float) -> Tensor:
    """A motion's velocities in the heading frame, averaged over every `window_s` of it: (T', 3)."""
    pos, rot, _ = pose_from_qpos(torch.tensor(motion.qpos))
    turn, rate = geometry.log_so3(rot[:-1].transpose(-1, -2) @ rot[1:]), motion.rate_hz
    velocity = _in_heading(
        rot[1:], (pos[1:] - pos[:-1]) * rate, geometry.to_world(rot[:-1], turn) * rate
    )
    return velocity.unfold(0, min(max(1, round(window_s * rate)), len(velocity)), 1).mean(-1)


def command_range_from_motions(motions: MotionSet, *, coverage: float = 0.99) -> CommandRange:
    """Ranges that cover a share of the velocities in a motion set: (3, 2) as nested tuples.

    Raises:
      InputError: for a set without a clip of two frames.
    """
    tail = (1.0 - coverage) / 2
    velocity = RecordedVelocities.of(motions).velocity.double()
    low, high = torch.quantile(
        velocity, torch.tensor([tail, 1 - tail], dtype=torch.float64), dim=0
    ).tolist()
    return (low[0], high[0]), (low[1], high[1]), (low[2], high[2])


class Walk(DifferentiableTask):
    """Robots, each asked to move at a velocity, on flat ground or each on a field of a terrain.

    A step is judged by the command in force before it; where a change is due it comes after, so
    that `command` (n, 3) is what the next decision sees.

    An episode fails by tilt or by contact of anything but the feet (`may_touch`) with the floor.
    robot-NPMP also ends it on self-collision, which is not seen here: the robot's geoms collide
    with the floor only.
    """

    name = "walk"
    config_type = WalkConfig
    objectives = ("velocity",)
    error_name = "velocity_error"
    observation_name = "command"
    inputs = COMMAND_NAMES
    judged = ("velocity_error", "velocity_error_1s", "falls_per_minute", "survived")
    main_figure = "velocity_error"

    def __init__(
        self, robot: Robot, config: WalkConfig | None = None, motions: MotionSet | None = None
    ):
        """motions: reference motions to start from, whose velocities are commands with
        `commands="recorded"`; without them every episode starts from the home pose.

        Where the config names no range of commands, it is that of the motions' velocities, or,
        without motions, a modest one.

        Raises:
          InputError: for an empty dataset, one at another rate than the robot's control rate, or
            none where commands are drawn from it.
        """
        config = config or WalkConfig()
        if config.commands == "recorded" and motions is None:
            raise InputError(
                "task.commands=recorded takes commands from recordings: give data=FILE.h5"
            )
        if config.command_range is None:
            found = MODEST_RANGE if motions is None else command_range_from_motions(motions)
            config = replace(config, command_range=found)
        self.recorded: RecordedVelocities | None = None
        if config.commands == "recorded" and motions is not None:
            self.recorded = RecordedVelocities.of(motions).within(config.range)
        self.robot, self.config, self.episode_s = robot, config, config.episode_s
        self.clock_s = config.clock_s
        # of the clock, whether or not policies are told
        self.period_s = config.clock_s or config.script.period_s
        clock = {} if self.clock_s is None else dict.fromkeys(CLOCK, (-1.0, 1.0))
        self.besides = clock | (
            dict.fromkeys(seen_names(robot), SEEN_RANGE) if config.sees_ground else {}
        )
        self.starts = Starts(
            robot, motions, share=config.reference_starts, tilt_deg=config.start_tilt_deg,
            speed_mps=config.start_speed_mps,
        )  # fmt: skip
        rough = config.rough()
        self.ground = (
            None
            if rough is None
            else Ground(Terrain(rough), uphill=config.terrain_starts == "uphill")
        )
        self._script: Tensor | None = None  # (T, n, 3)
        self._scripted = 0

    @classmethod
    def settle(
        cls, config: WalkConfig, motions: MotionSet | None, training: Mapping[str, Any]
    ) -> WalkConfig:
        """The task's own range of commands, else the motions', else what the module's training
        record says. Where that is a policy's (`PolicyContract.told`), it tells what the policy was
        told.

        Raises:
          InputError: where nothing says a range of commands, or the settings tell a policy
            something else.
        """
        known = {name: training[name] for name in TOLD if name in training}
        if known:
            for name, value in known.items():
                if (given := getattr(config, name)) not in (getattr(cls.config_type, name), value):
                    raise InputError(f"task.{name}={given}: the policy learned with {value}")
            config = replace(config, **known)
        if config.command_range is not None:
            return config
        if motions is not None:
            return replace(config, command_range=command_range_from_motions(motions))
        if "command_range" not in training:
            raise InputError(
                "the module does not say which velocities its motions cover; give data=FILE.h5 or"
                " task.command_range=[[low,high],[low,high],[low,high]] (forward m/s, lateral m/s, yaw rad/s)"
            )
        return replace(config, command_range=as_command_range(training["command_range"]))

    def add_to_scene(self, spec: mujoco.MjSpec) -> None:
        """Sensors of contacts with the floor, and the terrain in its place."""
        if self.ground is not None:
            self.ground.add_to_scene(spec)
        carriers = {spec.body(foot).parent.name for foot in self.robot.foot_bodies}
        spared = (
            {f"contact_{body}" for body in carriers} if self.config.may_touch == "legs" else set()
        )
        self._contacts = [
            name for name in add_contact_sensors(spec, self.robot) if name not in spared
        ]

    def bind(self, env: TaskEnv[Any]) -> None:
        """As `Task.bind`."""
        super().bind(env)
        # of a control step
        self._most_change = torch.tensor(self.config.acceleration, device=env.device) * env.dt
        self.starts = self.starts.to(env.device)
        self._seen = torch.tensor(SEEN, device=env.device)
        if self.recorded is not None:
            self.recorded = self.recorded.to(env.device)
        if self.ground is not None:
            self.ground.bind(env)
        self._command_steps = max(1, round(self.config.command_period_s / env.dt))
        self.command = torch.zeros(env.num_envs, 3, device=env.device)
        self.command_left = torch.zeros(
            env.num_envs, dtype=torch.long, device=env.device
        )  # control steps to its change
        # filtered, by which a step is judged
        self.velocity = torch.zeros(env.num_envs, 3, device=env.device)
        # in [0, 1): the share of a stride that is over
        self.clock = torch.zeros(env.num_envs, device=env.device)

    # --- episodes ---

    def draw_command(
        self, command: Tensor, generator: torch.Generator, *, change: float | None = None
    ) -> Tensor:
        """As the function of that name, from what the task's commands are drawn from."""
        return draw_command(command, self.config, generator, change=change, recorded=self.recorded)

    def start(self, ids: Tensor, generator: torch.Generator, **where: Tensor) -> Start:
        """From the home pose or on the reference, feet on the floor."""
        return self.starts.draw(len(ids), generator)

    def begin(self, ids: Tensor, generator: torch.Generator) -> None:
        """New commands, and a place on the terrain."""
        device = self.env.device
        if self.ground is not None:
            self.ground.settle(ids, generator, trial=self._script is not None)
        command = self.draw_command(torch.zeros(len(ids), 3, device=device), generator, change=1.0)
        if self._script is not None:
            command = self._script[min(self._scripted, len(self._script) - 1), ids]
        left = torch.randint(
            1, self._command_steps + 1, (len(ids),), generator=generator, device=device
        )
        self.command = self.command.index_copy(0, ids, command)
        self.command_left = self.command_left.index_copy(0, ids, left)
        self.velocity = self.velocity.index_copy(0, ids, heading_velocity(self.env.state)[ids])
        self.clock = self.clock.index_fill(0, ids, 0.0)

    def privileged(self) -> Tensor:
        """As `Task.privileged`; where steps are judged by a filtered velocity, that too, and on
        rough ground its heights."""
        known = [super().privileged()]
        if self.config.velocity_filter > 0.0:
            known.append(self.velocity)
        if self.ground is not None:
            known.append(self.ground.relief(self.env.state))
        return torch.cat(known, -1)

    def local_state(self, state: RobotState) -> RobotState:
        """As `Task.local_state`; on rough ground as `Ground.local`."""
        return state if self.ground is None else self.ground.local(state)

    def unmoved(self, state: RobotState) -> RobotState:
        """As `Task.unmoved`; on rough ground as `Ground.unmoved`."""
        return state if self.ground is None else self.ground.unmoved(state)

    def footing(self, state: RobotState) -> Tensor:
        """As `Task.footing`: the ground's mean height around robots, and their fields."""
        if self.ground is None:
            return super().footing(state)
        return torch.stack((self.ground.level(state), self.ground.field.to(state.root_pos)), -1)

    def ground_at(self, place: Tensor, robots: Tensor) -> Tensor | None:
        """As `Task.ground_at`."""
        return (
            None if self.ground is None else self.ground.height_at(place, self.ground.field[robots])
        )

    def logged(self) -> dict[str, float]:
        """As `Task.logged`: `terrain_level`, the mean level of the robots' fields, where they rise."""
        return (
            {"terrain_level": self.ground.mean_level()}
            if self.ground and self.config.terrain_curriculum
            else {}
        )

    def input_range(self) -> CommandRange:
        """The range that commands are drawn from."""
        return self.config.range

    def observe(self) -> Tensor:
        """The command (n, 3), and what is told besides: sine and cosine of the clock; heights at
        `SEEN`."""
        told = [self.command]
        if self.clock_s is not None:
            angle = 2.0 * math.pi * self.clock.unsqueeze(-1)
            told += [torch.sin(angle), torch.cos(angle)]
        if self.config.sees_ground:
            told.append(self.seen_ground())
        return torch.cat(told, -1)

    def seen_ground(self) -> Tensor:
        """Heights at `SEEN` from each foot, above where the floor is under a robot in its home
        pose, (n, F g) [m], as a map of the ground tells a robot that knows where it is in it; each
        call draws their noise anew."""
        env, state = self.env, self.env.state
        feet = env.feet(state.root_pos, state.root_rot, state.joint_pos).mean(-2)[..., :2]
        place, home = (
            points_around(state, self._seen, feet).flatten(1, 2),
            float(self.robot.home_qpos[2]),
        )
        height = (
            place.new_zeros(place.shape[:-1])
            if self.ground is None
            else self.ground.terrain.height_at(place)
        )
        noise = torch.randn(height.shape, generator=env.generator, device=height.device)
        seen = height - (state.root_pos[:, 2:] - home) + self.config.ground_noise_m * noise
        return seen.nan_to_num(0.0).clamp(*SEEN_RANGE)

    def teacher(self) -> TrotActor:
        """As `Task.teacher`: the script.

        Raises:
          InputError: for a robot that has none, and for a script that is told of other drives than
            the robot's.
        """
        robots, told = self.env.robots.config, self.config.script.drives
        if robots.real_drives is None and told is not None:
            raise InputError(
                f"task.script.drives={list(told)} is of drives that a model moves, actuator=FOLDER;"
                f" actuator={robots.actuator} has the robot's own gains"
            )
        if robots.real_drives is not None and told is None:
            stiffness, damping, _ = actuators.load(robots.real_drives).contract.baseline
            raise InputError(
                f"actuator={robots.real_drives}: the script needs gains that are like its drives', task.script.drives=;"
                f" the best constant ones of its log are [{stiffness:.3g},{damping:.3g}]"
            )
        return TrotActor(self.robot, self.config.script, self.env.device)

    def begin_anew(self, mask: Tensor) -> None:
        """As `Task.begin_anew`: their clocks."""
        self.clock = torch.where(mask, 0.0, self.clock)

    # --- judgement ---

    def _filtered(self) -> Tensor:
        """Velocities by which the step just made is judged, (n, 3)."""
        return filtered(
            self.velocity, heading_velocity(self.env.state), self.config.velocity_filter
        )

    def judge(self) -> Judgement:
        """Eq. 16, by the command in force. Seen: `command` and `achieved`, the velocity over the
        step, (n, 3) each."""
        env, c = self.env, self.config
        velocity = self._filtered()
        reward = velocity_reward(velocity, self.command, c.phi)
        # a diverged simulation is a failure, not a crash
        finite = torch.isfinite(env.state.pack()).all(-1) & ~env.robots.broken
        failed = tilted(env.state, c.tilt_limit_deg) | self.touching() | ~finite
        error = velocity_error(velocity, self.command)
        seen = {"command": self.command, "achieved": heading_velocity(env.state).nan_to_num(0.0)}
        return Judgement(
            reward.nan_to_num(0.0).unsqueeze(-1), failed, torch.zeros_like(failed), error, seen
        )

    def touching(self) -> Tensor:
        """Whether anything touches the floor that may not, (n,) bool; as of the last physics step."""
        return torch.cat([self.env.sim.sensor(name) for name in self._contacts], -1).any(-1)

    def advance(self, judgement: Judgement, generator: torch.Generator) -> None:
        """A new command where one is due, and a period back where one was left."""
        if self.ground is not None:
            self.ground.advance(judgement.failed, self.command, judgement.seen["achieved"])
        self.velocity = self._filtered()
        self.clock = (self.clock + self.env.dt / self.period_s) % 1.0
        left = self.command_left - 1
        due = left <= 0
        drawn = self.draw_command(self.command, generator)
        self.command = torch.where(due.unsqueeze(-1), drawn, self.command)
        self.command_left = torch.where(due, self._command_steps, left)
        if self._script is not None:
            self._scripted += 1
            self.command = self._script[min(self._scripted, len(self._script) - 1)]

    def whereabouts(self, i: int) -> dict[str, Any]:
        """The command of robot i, and the control steps that its episode had made."""
        field = {} if self.ground is None else {"field": int(self.ground.field[i])}
        return {"command": self.command[i].tolist(), "step": int(self.env.age[i]), **field}

    # --- trials ---

    def script(self, steps: int, generator: torch.Generator) -> None:
        """As `Task.script`: commands for everyone, changing at whole periods."""
        self.follow(
            command_schedule(
                self.config, self.env.num_envs, steps, self.env.dt, generator, self.recorded
            )
        )

    def follow(self, commands: Tensor) -> None:
        """Ask for these from the next step on: (T, n, 3); then for the last of them."""
        self._script, self._scripted = commands.to(self.env.device), 0
        self.command = self._script[0]

    def unscript(self) -> None:
        """As `Task.unscript`."""
        self._script = None

    def figures(self, trial: Trial) -> dict[str, Any]:
        """`velocity_error` (mean |v - v_cmd| of unfiltered velocities) and its mean absolute part
        per component, `error_forward_mps` and so on; all of them also

        - `_1s`: of velocities and commands averaged over a second: what is left when a stride's
          sway is taken out;
        - `_settled`: without the first half second after the start and after each change of the
          command. Of `_1s` those seconds count that have none of it.

        Figures of which a short trial has nothing are left out.
        """
        command = trial.seen["command"]
        difference = trial.seen["achieved"] - command
        window = max(1, min(len(difference), round(1.0 / trial.dt)))
        kept = settled(command, max(1, round(SETTLING_S / trial.dt)))
        smooth, whole = (
            difference.unfold(0, window, window).mean(-1),
            kept.unfold(0, window, window).all(-1),
        )
        chosen = {
            "": difference,
            "_1s": smooth,
            "_settled": difference[kept],
            "_1s_settled": smooth[whole],
        }
        figures = super().figures(trial)
        for suffix, errors in chosen.items():
            if errors.numel():
                figures[f"velocity_error{suffix}"] = (
                    torch.linalg.vector_norm(errors, dim=-1).mean().item()
                )
                parts = zip(COMMAND_NAMES, errors.flatten(0, -2).abs().mean(0), strict=True)
                figures |= {f"error_{name}{suffix}": part.item() for name, part in parts}
        return figures

    def traces(self, trial: Trial) -> Traces:
        """As `Task.traces`: commands and velocities."""
        return Traces(COMMAND_CHANNELS, trial.seen["command"][:, 0], trial.seen["achieved"][:, 0])

    # --- checkpoints ---

    _KEPT = ("command", "command_left", "velocity", "clock")

    def state_dict(self) -> dict[str, Tensor]:
        """As `Task.state_dict`."""
        ground = {} if self.ground is None else self.ground.state_dict()
        return {**{name: getattr(self, name) for name in self._KEPT}, **ground}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """As `Task.load_state_dict`."""
        if self.ground is not None:
            self.ground.load_state_dict(state)
        state = {"clock": torch.zeros_like(self.clock), **state}  # of before there was one
        for name in self._KEPT:
            setattr(self, name, state[name].to(self.env.device, copy=True))

    # --- through a model ---

    def goal(self) -> Tensor:
        """The command, (n, 3)."""
        return self.command

    def see(self, state: RobotState, goal: Tensor) -> Tensor:
        """The command, (B, 3)."""
        return goal

    def new_goals(self, goal: Tensor, generator: torch.Generator) -> Tensor:
        """New commands (B, 3), drawn as at an episode's start."""
        return self.draw_command(goal, generator, change=1.0)

    def achieved(self, state: RobotState) -> Tensor:
        """The velocity over the last control step, (..., 3)."""
        return heading_velocity(state)

    def imagined_loss(self, states: RobotState, goals: Tensor) -> Tensor:
        """As `DifferentiableTask.imagined_loss`: `course_loss` of the velocities."""
        c, dt, velocity = self.config, self.env.dt, heading_velocity(states)
        off = velocity - reachable(
            velocity[0].detach(), goals[-1], self._most_change, len(velocity)
        )
        return course_loss(off, max(1, round(c.stride_s / dt)), (c.step_weight, c.stride_weight))

    def under_feet(self, state: RobotState, footing: Tensor) -> Tensor:
        """As `DifferentiableTask.under_feet`: how much higher the ground is under each foot than
        around, (B, F) [m].

        The footing is that of the state's own moment where robots collect, that of the first moment
        where they imagine: after 36 steps these differ by some 2 cm on Perlin noise of 0.3 m.
        """
        if self.ground is None:
            return super().under_feet(state, footing)
        with torch.no_grad():
            place = self.env.feet(state.root_pos, state.root_rot, state.joint_pos).mean(-2)
            return self._above_footing(place, footing)

    def _above_footing(self, place: Tensor, footing: Tensor) -> Tensor:
        """The ground at places (B, ..., 3) above that of a footing (B, 2): (B, ...) [m]; without
        gradients, as a blind robot does not choose what its feet meet."""
        assert self.ground is not None  # for the type checker
        level, field = footing.unbind(-1)
        height = self.ground.height_at(place[..., :2].detach(), field.long())
        return height - level.view(-1, *([1] * (height.dim() - 1)))

    def imagined_style(self, states: RobotState, footing: Tensor) -> Tensor:
        """As `DifferentiableTask.imagined_style`: feet that are dragged along the ground, pressed
        into it or not lifted."""
        c, above = (
            self.config,
            None if self.ground is None else lambda place: self._above_footing(place, footing),
        )
        weights = SteppingWeights(c.drag_weight, c.press_weight, c.lift_weight)
        return stepping(self.env.feet, states, c.swing_height_m, weights, self.env.dt, above)


WalkEnv = TaskEnv[Walk]


def as_command_range(values: Sequence[Sequence[float]]) -> CommandRange:
    """Ranges read from a file, as the configuration wants them.

    Raises:
      InputError: unless they are three pairs of numbers.
    """
    try:
        (a, b), (c, d), (e, f) = values
        return (float(a), float(b)), (float(c), float(d)), (float(e), float(f))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"a command range is three pairs [low, high], for {', '.join(COMMAND_NAMES)}; got {values}"
        ) from error


# --- what an imagined course is worth ---


def reachable(velocity: Tensor, command: Tensor, limit: Tensor, steps: int) -> Tensor:
    """Velocities on the way from that after the first step (B, 3) to commands (B, 3), or those of
    each step (H, B, 3), changing by `limit` (3,) a step at most: (H, B, 3). A robot that is asked
    for all at once stamps."""
    step = torch.arange(steps, device=command.device).view(-1, 1, 1)
    return velocity + torch.clamp(command - velocity, -step * limit, step * limit)


def course_loss(difference: Tensor, stride: int, weights: tuple[float, float]) -> Tensor:
    """What robots owe that were off their commands by `difference` (H, B, 3) [m/s, m/s, rad/s]:
    (B,).

    The first weight is that of |v - v_cmd|_1 of every step, the second that of the norm of the
    difference averaged over every `stride` steps in a row: within a stride a body sways, and that
    is nobody's fault. Later steps count more, as nobody is at a new command at once: linearly, in
    the mean 1.
    """
    steps = len(difference)
    stride = min(stride, steps)
    weight = torch.arange(1, steps + 1, device=difference.device).to(difference)
    each = difference.abs().sum(-1)
    means = difference.unfold(0, stride, 1).mean(-1)
    strides = torch.sqrt(means.square().sum(-1) + 1e-8)  # the norm has no gradient at zero
    late = weight[stride - 1 :]
    by_step = (weight.unsqueeze(-1) * each).sum(0) / weight.sum()
    by_stride = (late.unsqueeze(-1) * strides).sum(0) / late.sum()
    return weights[0] * by_step + weights[1] * by_stride
