"""Walking on flat ground by velocity command (robot-NPMP, reuse tasks, eq. 16): many robots, each with its own command.

A command is (forward velocity [m/s], lateral velocity [m/s, left positive], yaw rate [rad/s]) in the robot's heading
frame: its horizontal axes turned to where the root's x axis points. Velocity, reward, command process and tilt are pure
functions, for the simulated and for the imagined robot alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp import geometry
from npmp.envs.imitation import EnvStep
from npmp.envs.plant import Plant, PlantConfig, PlantEnv
from npmp.envs.reference import Reference
from npmp.envs.state import GRAVITY, RobotState, pose_from_qpos
from npmp.robots import Robot
from npmp.sim import flat_scene

COMMAND_NAMES = ("forward_mps", "lateral_mps", "yaw_rate_rps")

CommandRange = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]


@dataclass(frozen=True)
class WalkingConfig:
    """The walking task's settings. Raises: ValueError for values out of range."""

    phi: float = 0.5  # width of eq. 16 [m^2/s^2]; 0.5 for ANYmal, 0.05 for OP3
    velocity_filter: float = 0.0  # c of v_f <- c v_f + (1 - c) v per control step, which is judged; 0.95 for OP3
    # (low, high) of forward, lateral and yaw velocity; should cover 99 % of the imitation set
    # (`command_range_from_motions`)
    command_range: CommandRange = ((0.0, 0.8), (-0.2, 0.2), (-0.5, 0.5))
    command_period_s: float = 3.0  # between changes of the command
    command_change: float = 0.5  # w: chance of a component to change then
    command_nonzero: tuple[float, float, float] = (0.9, 0.25, 0.5)  # b: chance of a new component not to be zero
    tilt_limit_deg: float = 45.0  # an episode fails beyond
    episode_s: float = 20.0
    reference_starts: float = (
        0.5  # share of episodes that start on the reference, where there is one; else the home pose
    )
    plant: PlantConfig = field(default_factory=PlantConfig)
    num_threads: int = 0  # of the physics; 0: all cores

    def __post_init__(self) -> None:
        pairs = tuple((float(low), float(high)) for low, high in self.command_range)
        object.__setattr__(self, "command_range", pairs)  # lists as they come from a file become tuples
        object.__setattr__(self, "command_nonzero", tuple(float(b) for b in self.command_nonzero))
        if len(pairs) != 3 or not all(math.isfinite(low) and low <= high < math.inf for low, high in pairs):
            raise ValueError(
                f"command_range must be three pairs low <= high, for {COMMAND_NAMES}; got {self.command_range}"
            )
        shares = (self.command_change, *self.command_nonzero, self.reference_starts)
        if len(self.command_nonzero) != 3 or not all(0.0 <= share <= 1.0 for share in shares):
            raise ValueError(
                "command_change, command_nonzero (three numbers) and reference_starts must lie in [0, 1], "
                f"got {self.command_change}, {self.command_nonzero}, {self.reference_starts}"
            )
        if not 0.0 <= self.velocity_filter < 1.0:
            raise ValueError(f"velocity_filter must be at least 0 and below 1, got {self.velocity_filter}")
        if not (self.phi > 0 and self.command_period_s > 0 and self.episode_s > 0 and 0 < self.tilt_limit_deg < 180):
            raise ValueError("phi, command_period_s, episode_s and tilt_limit_deg must be positive, the tilt below 180")


# --- the task as pure functions
# -----------------------------------------------------------------------------------------------


def heading_velocity(state: RobotState) -> Tensor:
    """Forward, lateral [m/s] and yaw velocity [rad/s] over the last control step, in the heading frame. -> (..., 3)."""
    linear_w = geometry.to_world(state.root_rot, state.root_vel)
    return _in_heading(state.root_rot, linear_w, geometry.to_world(state.root_rot, state.root_ang))


def _in_heading(root_rot: Tensor, linear_w: Tensor, angular_w: Tensor) -> Tensor:
    yaw = geometry.yaw_of(root_rot)
    cos, sin = torch.cos(yaw), torch.sin(yaw)
    x, y = linear_w[..., 0], linear_w[..., 1]
    return torch.stack((cos * x + sin * y, cos * y - sin * x, angular_w[..., 2]), -1)


def filtered_velocity(before: Tensor, velocity: Tensor, constant: float) -> Tensor:
    """The exponential average c v_f + (1 - c) v, one control step on; c = 0 is v itself. (..., 3) twice -> (..., 3)."""
    return constant * before + (1.0 - constant) * velocity if constant else velocity


def velocity_reward(velocity: Tensor, command: Tensor, phi: float) -> Tensor:
    """Eq. 16, exp(-|v - v_cmd|^2 / phi). velocity, command (..., 3) -> (...)."""
    return torch.exp(-(velocity - command).square().sum(-1) / phi)


def velocity_error(velocity: Tensor, command: Tensor) -> Tensor:
    """|v - v_cmd|, the norm over (m/s, m/s, rad/s) that eq. 16 has. (..., 3) twice -> (...)."""
    return torch.linalg.vector_norm(velocity - command, dim=-1)


def tilted(state: RobotState, limit_deg: float) -> Tensor:
    """Whether the root's vertical axis leans more than the limit from the world's. -> (...) bool."""
    return state.root_rot[..., 2, 2] < math.cos(math.radians(limit_deg))


def changed_command(command: Tensor, y: Tensor, w: Tensor, z: Tensor, command_range: CommandRange) -> Tensor:
    """The command process, x <- x - w (x - y z), per component.

    Where z is 0 the new component is zero, or what its range has nearest to zero: a set of motions that only walk
    forward has no standing still to ask for.

    Args:
      command: (..., 3) x.
      y: (..., 3) uniform over the range. w, z: (..., 3) bool.
    """
    bounds = torch.tensor(command_range, dtype=command.dtype, device=command.device)
    nearest_zero = torch.minimum(torch.maximum(torch.zeros_like(bounds[:, 0]), bounds[:, 0]), bounds[:, 1])
    return torch.where(w, torch.where(z, y, nearest_zero), command)


def draw_command(
    command: Tensor, config: WalkingConfig, generator: torch.Generator, *, change: float | None = None
) -> Tensor:
    """A step of the command process from commands (n, 3); change=1 forgets them, as at an episode's start."""
    bounds = torch.tensor(config.command_range, device=command.device)
    uniform = torch.rand((3, *command.shape), generator=generator, device=command.device)
    y = bounds[:, 0] + uniform[0] * (bounds[:, 1] - bounds[:, 0])
    w = uniform[1] < (config.command_change if change is None else change)
    z = uniform[2] < torch.tensor(config.command_nonzero, device=command.device)
    return changed_command(command, y, w, z, config.command_range)


def command_schedule(config: WalkingConfig, num_envs: int, steps: int, dt: float, generator: torch.Generator) -> Tensor:
    """Commands for whole trials, (steps, num_envs, 3): the process with all changes at whole periods from the start.

    They are on the generator's device.
    """
    period = max(1, round(config.command_period_s / dt))
    command = draw_command(torch.zeros(num_envs, 3, device=generator.device), config, generator, change=1.0)
    rows = []
    for t in range(steps):
        if t and t % period == 0:
            command = draw_command(command, config, generator)
        rows.append(command)
    return torch.stack(rows)


def command_range_from_motions(motions: MotionSet, *, coverage: float = 0.99, window_s: float = 0.5) -> CommandRange:
    """Ranges that cover a share of the velocities in a motion set, in the heading frame: (3, 2) as nested tuples.

    Velocities are averaged over `window_s`, about a stride: within a stride a walking body sways, and nobody can be
    asked to sway on command.

    Raises: InputError for an empty set.
    """
    if not motions.motions:
        raise InputError("the dataset holds no clips")
    found = []
    for m in motions.motions:
        pos, rot, _ = pose_from_qpos(torch.tensor(m.qpos))
        turn = geometry.log_so3(rot[:-1].transpose(-1, -2) @ rot[1:])
        velocity = _in_heading(rot[1:], (pos[1:] - pos[:-1]) * m.rate_hz, geometry.to_world(rot[:-1], turn) * m.rate_hz)
        window = min(max(1, round(window_s * m.rate_hz)), len(velocity))
        found.append(velocity.unfold(0, window, 1).mean(-1))
    tail = (1.0 - coverage) / 2
    low, high = torch.quantile(
        torch.cat(found).double(), torch.tensor([tail, 1 - tail], dtype=torch.float64), dim=0
    ).tolist()
    return (low[0], high[0]), (low[1], high[1]), (low[2], high[2])


# --- the environment
# ----------------------------------------------------------------------------------------------------------


class _Starts(NamedTuple):
    """Moments an episode may start from; row 0 is the home pose at rest."""

    qpos: Tensor  # (S, nq) float64
    qvel: Tensor  # (S, nv)
    state: Tensor  # (S, ...) packed RobotState


class WalkingEnv(PlantEnv):
    """Robots on flat ground, each asked to move at a velocity.

    Actions are joint position targets centred on the home pose [rad], unfiltered and unclipped; setpoint = home +
    action. The caller resets finished robots: `step`, look at the result, then `reset(done)`. A step is judged by the
    command in force before it, `command` (n, 3); where a change is due it comes after, so that `state` and `command`
    are what the next decision sees.

    An episode fails by tilt or by contact of anything but the feet with the floor. robot-NPMP also ends it on
    self-collision, which is not seen here: the robot's geoms collide with the floor only.
    """

    objectives = ("velocity",)

    def __init__(
        self,
        robot: Robot,
        num_envs: int,
        *,
        motions: MotionSet | None = None,
        seed: int = 0,
        config: WalkingConfig | None = None,
        sim: str = "batch",
        device: torch.device | str = "cpu",
    ):
        """Build the simulations, each reset, at random moments of their episodes so that they do not end together.

        Args:
          motions: reference motions to start from; without them every episode starts from the home pose.
          sim: "batch" or "warp" (`npmp.sim.make_simulator`). The same seed gives the same bits with "batch" on the CPU
            only.
          device: where all tensors are, those that go in included.

        Raises: InputError for an empty dataset or one at another rate than the robot's control rate.
        """
        self.robot = robot
        self.config = config or WalkingConfig()
        model = flat_scene(robot, contact_sensors=True)
        self.plant = Plant(
            robot, model, num_envs, self.config.plant, num_threads=self.config.num_threads, sim=sim, device=device
        )
        self._contacts = [b for b in robot.body_names if b not in robot.foot_bodies]
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self._starts = _Starts(*(values.to(self.device) for values in _start_table(robot, motions)))
        self._episode_steps = max(1, round(self.config.episode_s / self.dt))
        self._command_steps = max(1, round(self.config.command_period_s / self.dt))
        self.command = torch.zeros(num_envs, 3, device=self.device)
        self.velocity = torch.zeros_like(self.command)  # heading_velocity as it is judged, which may be filtered
        self.age = torch.zeros(
            num_envs, dtype=torch.long, device=self.device
        )  # control steps since the episode's start
        self.command_left = torch.zeros_like(self.age)  # control steps to the next change of the command
        self.reset()
        self.age = torch.randint(self._episode_steps, (num_envs,), generator=self.generator, device=self.device)

    def reset(self, mask: Tensor | None = None) -> RobotState:
        """Start new episodes, from the home pose or on the reference, feet on the floor, with new commands.

        Args:
          mask: (n,) bool, which robots; all by default.

        Returns: the state of all robots.
        """
        device = self.device
        ids = torch.arange(self.num_envs, device=device) if mask is None else torch.nonzero(mask).squeeze(-1)
        if len(ids) == 0:
            return self.state
        row = torch.zeros_like(ids)
        if len(self._starts.qpos) > 1:
            drawn = torch.randint(1, len(self._starts.qpos), (len(ids),), generator=self.generator, device=device)
            on_reference = torch.rand(len(ids), generator=self.generator, device=device) < self.config.reference_starts
            row = torch.where(on_reference, drawn, row)
        fresh = RobotState.unpack(self._starts.state[row])
        self.plant.place(ids, self._starts.qpos[row], self._starts.qvel[row], fresh, self.generator)
        command = draw_command(torch.zeros(len(ids), 3, device=device), self.config, self.generator, change=1.0)
        left = torch.randint(1, self._command_steps + 1, (len(ids),), generator=self.generator, device=device)
        self.command = self.command.index_copy(0, ids, command)
        self.command_left = self.command_left.index_copy(0, ids, left)
        self.velocity = self.velocity.index_copy(0, ids, heading_velocity(fresh))
        self.age = self.age.index_fill(0, ids, 0)
        return self.state

    def step(self, action: Tensor) -> EnvStep:
        """One control step. action (n, nu): joint targets minus home pose [rad]."""
        self.plant.step(action, self.generator)
        self.plant.note_broken(self.whereabouts)
        state = self.state
        self.velocity = filtered_velocity(self.velocity, heading_velocity(state), self.config.velocity_filter)
        error = velocity_error(self.velocity, self.command)
        reward = velocity_reward(self.velocity, self.command, self.config.phi)
        # a diverged simulation is a failure, not a crash
        finite = torch.isfinite(state.pack()).all(-1) & ~self.plant.broken
        terminated = tilted(state, self.config.tilt_limit_deg) | self.touching() | ~finite
        self.age = self.age + 1
        truncated = (self.age >= self._episode_steps) & ~terminated
        self._advance_command()
        return EnvStep(state, reward.nan_to_num(0.0).unsqueeze(-1), terminated, truncated, error)

    def whereabouts(self, i: int) -> dict[str, Any]:
        """The command of robot i, and the control steps since its episode began."""
        return {"command": self.command[i].tolist(), "step": int(self.age[i])}

    def touching(self) -> Tensor:
        """Whether anything but a foot touches the floor, (n,) bool; as of the last physics step."""
        return torch.cat([self.sim.sensor(f"contact_{body}") for body in self._contacts], -1).any(-1)

    def _advance_command(self) -> None:
        left = self.command_left - 1
        due = left <= 0
        drawn = draw_command(self.command, self.config, self.generator)
        self.command = torch.where(due.unsqueeze(-1), drawn, self.command)
        self.command_left = torch.where(due, self._command_steps, left)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, for checkpoints."""
        return {
            **{f"plant.{k}": v for k, v in self.plant.state_dict().items()},
            "command": self.command,
            "command_left": self.command_left,
            "velocity": self.velocity,
            "age": self.age,
            "rng": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where `state_dict` was taken, to the bit."""
        self.plant.load_state_dict({k.removeprefix("plant."): v for k, v in state.items() if k.startswith("plant.")})
        self.command, self.command_left, self.age = (
            state[name].to(self.device, copy=True) for name in ("command", "command_left", "age")
        )
        kept = state.get("velocity", heading_velocity(self.state))  # not there in states of before 2026-11-22
        self.velocity = kept.to(self.device, copy=True)
        self.generator.set_state(state["rng"])


def _start_table(robot: Robot, motions: MotionSet | None) -> _Starts:
    """The home pose at rest, then every frame of the motions set down so that its lowest foot touches the floor."""
    qpos = torch.tensor(robot.home_qpos, dtype=torch.float64).unsqueeze(0)
    pos, rot, joints = pose_from_qpos(qpos)
    still, gravity = torch.zeros_like(pos), torch.zeros_like(pos)
    gravity[:, 2] = GRAVITY
    home = RobotState(pos, rot, joints, still, still, torch.zeros_like(joints), geometry.to_local(rot, gravity), joints)
    qvel = torch.zeros(1, 6 + joints.shape[-1], dtype=torch.float64)
    if motions is None:
        return _Starts(qpos, qvel, home.pack())
    reference = Reference(robot, motions)
    frames = torch.arange(reference.num_frames)
    state, poses = reference.state(frames), reference.bodies(frames)
    feet = torch.tensor([robot.body_names.index(b) for b in robot.foot_bodies])
    points = torch.tensor(np.asarray(robot.foot_points), dtype=torch.float32)  # (feet, points, 3): a sole has several
    rotation = poses.rotation[:, feet].unsqueeze(2).expand(-1, -1, points.shape[1], 3, 3)
    centers = poses.position[:, feet].unsqueeze(2) + geometry.to_world(
        rotation, points.expand(len(frames), *points.shape)
    )
    height = centers[..., 2].amin((-1, -2)) - robot.foot_radius
    lowered = state.root_pos.clone()
    lowered[:, :2] = 0.0
    lowered[:, 2] -= height
    state = state._replace(root_pos=lowered)
    table = torch.from_numpy(np.concatenate([m.qpos for m in motions.motions])).clone()
    table[:, :3] = lowered.double()
    moving = torch.cat((reference.frames.root_vel_w, state.root_ang, state.joint_vel), -1)
    return _Starts(torch.cat((qpos, table)), torch.cat((qvel, moving.double())), torch.cat((home.pack(), state.pack())))


def as_command_range(values: Sequence[Sequence[float]]) -> CommandRange:
    """Ranges read from a file, as the configuration wants them.

    Raises: InputError unless they are three pairs of numbers.
    """
    try:
        (a, b), (c, d), (e, f) = values
        return (float(a), float(b)), (float(c), float(d)), (float(e), float(f))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"a command range is three pairs [low, high], for {', '.join(COMMAND_NAMES)}; got {values}"
        ) from error
