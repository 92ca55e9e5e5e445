"""A scripted teacher for task=walk: a trot over any ground, for robots with four legs of three
joints.

    npmp reuse algo=clone joint_space=true module=anymal_b_dog task.clock_s=0.46 \
      teacher=experiments/examples/trotting.py:TrotTeacher

It observes true states and the ground. Diagonal legs swing alternately, by the task's clock or its
own. Raibert's rule gives the footholds (Raibert 1986). Feet in stance move the body to its target
pose and carry its weight. Its settings are from the cross-entropy method (docs/rough_ground.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocap_data.errors import InputError
from npmp import actuators
from npmp.core import geometry, ranges
from npmp.envs.ground import AROUND, points_around
from npmp.envs.legs import Legs
from npmp.envs.policy import Observation, PolicyOutput
from npmp.envs.state import GRAVITY, RobotState
from npmp.envs.task_env import TaskEnv
from npmp.tasks.inputs import Clock

_MIDDLE = 0.7  # phase from which legs in stance carry their full share
_SETTLED = 0.6  # share of the swing after which a foothold is fixed


@dataclass(frozen=True)
class TrotConfig:
    """Settings of the script, for ANYmal B [D: by the cross-entropy method in simulation]. Raises
    ValueError for values out of range."""

    # period of the gait without a clock of the task
    period_s: float = 0.46
    # share of the period that a leg swings
    swing: float = 0.398
    # height of the root above the mean of the surrounding ground
    height_m: float = 0.478
    # clearance of a swinging foot above the highest ground on its path
    clearance_m: float = 0.063
    # share of the swing until the foot is up
    rise: float = 0.228
    # width of the stance, relative to the home pose's
    width: float = 1.098
    # length of the stance, relative to the home pose's
    length: float = 0.774
    # forward shift of all footholds
    shift_m: float = 0.048
    # foothold shift per (velocity - command)
    raibert_s: float = 0.103
    # lead time of swinging feet, as drives lag
    lead_s: float = 0.043
    # forward shift of the body per command
    ahead_s: float = 0.073
    # forward shift of the body per (command - velocity)
    ahead_error_s: float = 0.068
    # turn of the body per yaw_cmd + (yaw_cmd - yaw), yaw rates
    turn_s: float = 0.11
    # gain of the height error
    up: float = 0.343
    # gain of the tilt
    level: float = 0.482
    # gain of the tilt rate
    damp_s: float = 0.057
    # share of the ground's slope in the body's target pitch
    slope: float = 0.818
    # share of the weight in the feedforward torques
    support: float = 0.814
    # acceleration between commands [m/s^2]; twice that value for yaw [rad/s^2]
    acceleration: float = 1.63
    # gains similar to those of an actuator model [Nm/rad, Nm s/rad]; null: the robot's
    drives: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        above_zero = "period_s height_m clearance_m rise width length acceleration"
        ranges.above_zero(self, *above_zero.split())
        not_negative = "raibert_s lead_s ahead_s ahead_error_s turn_s up level damp_s slope support"
        ranges.not_negative(self, *not_negative.split())
        ranges.share(self, "rise")
        if not 0.0 < self.swing < 0.5:
            raise ValueError(
                f"swing must lie between 0 and 0.5, as two legs always stand; got {self.swing}"
            )
        if self.drives is not None and not (self.drives[0] > 0.0 and self.drives[1] >= 0.0):
            raise ValueError(
                f"drives must be a stiffness above 0 and a damping of at least 0, got {self.drives}"
            )
        if not abs(self.shift_m) < 1.0:
            raise ValueError(f"shift_m must be less than 1 either way, got {self.shift_m}")


class TrotState(NamedTuple):
    """The state of the script."""

    phase: Tensor  # (n,) of the stride, in [0, 1), where the task has no clock
    velocity: Tensor  # (n, 3) on its way to the command
    lifted: Tensor  # (n, 4, 3) where feet that swing left the ground, in the world [m]
    foothold: Tensor  # (n, 4, 3) where they are put [m]
    swung: Tensor  # (n, 4) bool: legs that swung in the step before
    stands: Tensor  # (n,) bool: it is commanded to stand, and does


class TrotTeacher:
    """The script as a policy of task `walk`."""

    config_type = TrotConfig

    def __init__(self, env: TaskEnv[Any], config: TrotConfig | None = None):
        """Raises InputError for a robot without four legs of three joints or of another size, and
        for other drives than the robot's."""
        robot = env.robot
        device = env.device
        self.env = env
        self.config = config or TrotConfig()
        self.clock = env.task.part(Clock)
        self.legs = Legs(robot)
        _check_drives(self.config, env)
        if not 0.8 < self.config.height_m / float(robot.home_qpos[2]) < 1.2:
            raise InputError(
                f"no scripted trot for robot '{robot.name}': it stands at"
                f" {robot.home_qpos[2]:.2f} m, the script at"
                f" teacher_settings.height_m={self.config.height_m}"
            )
        parts = robot.home_joints, robot.kp, robot.kd, robot.joint_lower, robot.joint_upper
        self.home, self.kp, self.kd, self.low, self.high = (
            torch.tensor(part, dtype=torch.float32) for part in parts
        )
        self.weight = float(robot.model().body_mass.sum()) * GRAVITY
        self.stance = self.legs.at(self.home[None])[0][0, :, :2]
        left_fore, right_hind = (self.stance.sum(-1) * sign for sign in (1.0, -1.0))
        later = torch.full((4,), 0.5)
        later[[int(left_fore.argmax()), int(right_hind.argmax())]] = 0.0
        self.later = later  # delay of each leg's swing, as a share of the period
        self.under = AROUND
        for name, part in list(vars(self).items()):
            if isinstance(part, Tensor):
                setattr(self, name, part.to(device))
        self.legs = self.legs.to(device)
        self.feet = self.legs.feet

    def initial_state(self, n: int) -> TrotState:
        feet = self.home.new_zeros(n, 4, 3)
        none = self.home.new_zeros(n, 4, dtype=torch.bool)
        return TrotState(
            self.home.new_zeros(n),
            self.home.new_zeros(n, 3),
            feet,
            feet.clone(),
            none,
            none[:, 0].clone(),
        )

    def step(self, observation: Observation, state: TrotState) -> tuple[PolicyOutput, TrotState]:
        c = self.config
        env = self.env
        task = env.task
        is_first = observation.is_first
        dt = env.dt
        if self.clock is None:
            period_s = c.period_s
            phase = state.phase.masked_fill(is_first, 0.0)
        else:
            period_s = self.clock.period_s
            phase = self.clock.phase
        robot = env.ground.integrated(env.state)
        yaw = geometry.yaw_matrix(geometry.yaw_of(robot.root_rot))
        velocity = geometry.to_world(robot.root_rot, robot.root_vel_end)
        forward = geometry.to_local(yaw, velocity)[:, :2]
        most = c.acceleration * dt * state.velocity.new_tensor([1.0, 1.0, 2.0])
        command = state.velocity + (task.commands.current - state.velocity).clamp(-most, most)
        robots = torch.arange(env.num_envs, device=env.device)

        def ground(position: Tensor) -> Tensor:
            return env.ground.height_at(position, robots)

        # at phase 0 all feet are on the ground
        of_leg = (phase.unsqueeze(-1) + c.swing + self.later) % 1.0
        swings = of_leg < c.swing
        stands = self._stands(state.stands, swings, robot, forward, command)
        swings = swings & ~stands.unsqueeze(-1)
        share = (of_leg / c.swing).clamp(max=1.0)  # elapsed share of the swing
        foot = self.feet(robot.root_pos, robot.root_rot, robot.joint_pos)[:, :, 0]
        anew = (swings & ~state.swung) | is_first.unsqueeze(-1)
        lifted = torch.where(anew.unsqueeze(-1), foot, state.lifted)
        free = ~swings | (share < _SETTLED) | is_first.unsqueeze(-1)
        spot = self._footholds(robot, yaw, forward, command, share, period_s, ground)
        foothold = torch.where(free.unsqueeze(-1), spot, state.foothold)
        swinging = self._swinging(lifted, foothold, share, period_s, ground)
        # feet in the root's frame: in swing at its next pose, in stance at its target pose
        there = robot.root_pos + c.lead_s * velocity
        aim = torch.where(
            swings.unsqueeze(-1),
            (swinging - there.unsqueeze(1)) @ robot.root_rot,
            self._standing(robot, yaw, forward, command, foot, ground),
        )
        joints = self.legs.reach(aim, robot.joint_pos)
        of_leg = torch.where(stands.unsqueeze(-1), _MIDDLE, of_leg)
        torque = self._carrying(robot, joints, of_leg, swings)
        target = (joints + torque / self.kp).clamp(self.low, self.high)
        if c.drives is not None:
            kp, kd = c.drives
            wanted = self.kp * (target - robot.joint_pos) - self.kd * robot.joint_vel_end
            target = robot.joint_pos + (wanted + kd * robot.joint_vel_end) / kp
        phase = (phase + dt / period_s) % 1.0
        after = TrotState(phase, command, lifted, foothold, swings, stands)
        return PolicyOutput(target - self.home), after

    @staticmethod
    def _stands(
        before: Tensor, swings: Tensor, state: RobotState, forward: Tensor, command: Tensor
    ) -> Tensor:
        """Whether robots stand, (n,) bool: their command is zero and they are nearly still. The
        value changes only while no leg swings."""
        turning = torch.linalg.vector_norm(state.root_ang_end, dim=-1)
        calm = torch.linalg.vector_norm(forward, dim=-1) + 0.4 * turning
        still = (command.abs().sum(-1) < 0.05) & (calm < torch.where(before, 0.5, 0.3))
        return torch.where(swings.any(-1), before, still)

    # --- swing ---

    def _footholds(
        self,
        state: RobotState,
        yaw: Tensor,
        forward: Tensor,
        command: Tensor,
        share: Tensor,
        period_s: float,
        ground: Any,
    ) -> Tensor:
        """Footholds (n, 4, 3): points on the ground at the middle of the following stance."""
        c = self.config
        turn = yaw[:, :2, :2].transpose(-1, -2)
        # to the middle of the stance [s]
        until = ((1.0 - share) * c.swing + 0.5 * (1.0 - c.swing)) * period_s
        angle = command[:, 2:] * until
        cos, sin = torch.cos(angle), torch.sin(angle)
        x, y = (self.stance * self.stance.new_tensor([c.length, c.width])).unbind(-1)
        position = torch.stack((cos * x - sin * y + c.shift_m, sin * x + cos * y), -1)
        goes = 0.5 * (forward + command[:, :2])
        position = position + goes.unsqueeze(1) * until.unsqueeze(-1)
        position = position + c.raibert_s * (forward - command[:, :2]).unsqueeze(1)
        spot = state.root_pos[:, None, :2] + position @ turn
        return torch.cat((spot, (ground(spot) + self.feet.radius).unsqueeze(-1)), -1)

    def _swinging(
        self, lifted: Tensor, foothold: Tensor, share: Tensor, period_s: float, ground: Any
    ) -> Tensor:
        """Targets (n, 4, 3) of swinging feet: up, forward over the highest ground in between, and
        down."""
        c = self.config
        share = (share + c.lead_s / (c.swing * period_s)).clamp(max=1.0)
        along = _smooth((share - 0.5 * c.rise) / (0.9 - 0.5 * c.rise)).unsqueeze(-1)
        parts = share.new_tensor([0.0, 0.25, 0.5, 0.75, 1.0]).unsqueeze(-1)
        way = lifted.unsqueeze(-2) + (foothold - lifted).unsqueeze(-2) * parts
        below = ground(way[..., :2]).amax(-1) + self.feet.radius
        lift = torch.maximum(below, way[..., 2].amax(-1)) + c.clearance_m - lifted[..., 2]
        height = lifted[..., 2] + lift * _smooth(share / c.rise)
        # into the ground
        height = height + (foothold[..., 2] - 0.01 - height) * _smooth((share - 0.65) / 0.35)
        position = lifted[..., :2] + (foothold - lifted)[..., :2] * along
        return torch.cat((position, height.unsqueeze(-1)), -1)

    # --- stance ---

    def _standing(
        self,
        state: RobotState,
        yaw: Tensor,
        forward: Tensor,
        command: Tensor,
        foot: Tensor,
        ground: Any,
    ) -> Tensor:
        """Positions (n, 4, 3) of standing feet in the frame of the root's target pose."""
        c = self.config
        x, y = self.under.unbind(-1)
        under = ground(points_around(state, self.under))
        slope = (under * x).sum(-1) / x.square().sum(), (under * y).sum(-1) / y.square().sum()
        ahead = c.ahead_s * command[:, :2] + c.ahead_error_s * (command[:, :2] - forward)
        ahead = geometry.to_world(yaw[:, :2, :2], ahead)
        up = c.up * (under.mean(-1) + c.height_m - state.root_pos[:, 2])
        root = state.root_pos + torch.cat((ahead, up.unsqueeze(-1)), -1)
        zero = torch.zeros_like(up)
        pitch = torch.stack((zero, -c.slope * torch.atan(slope[0]), zero), -1)
        roll = torch.stack((c.slope * torch.atan(slope[1]), zero, zero), -1)
        wanted = yaw @ geometry.exp_so3(pitch) @ geometry.exp_so3(roll)
        lean = geometry.log_so3(state.root_rot.transpose(-1, -2) @ wanted)
        lean = c.level * lean - c.damp_s * state.root_ang_end
        turn = c.turn_s * (2.0 * command[:, 2:] - state.root_ang_end[:, 2:])
        rotation = state.root_rot @ geometry.exp_so3(torch.cat((lean[:, :2], turn), -1))
        return (foot - root.unsqueeze(1)) @ rotation

    def _carrying(
        self, state: RobotState, joints: Tensor, of_leg: Tensor, swings: Tensor
    ) -> Tensor:
        """Torques (n, nu) [Nm] of the legs in stance, which carry the weight. It is ramped over a
        tenth of the stance."""
        c = self.config
        soft = ((of_leg - c.swing) / 0.08).clamp(0.0, 1.0) * ((1.0 - of_leg) / 0.08).clamp(0.0, 1.0)
        load = (~swings) * (0.15 + 0.85 * soft)
        load = load / load.sum(-1, keepdim=True).clamp(min=1e-3)
        # in the root's frame
        up = state.root_rot[:, None, 2] * (c.support * self.weight * load).unsqueeze(-1)
        _, jacobian = self.legs.at(joints)
        torque = torch.zeros_like(joints)
        torque[:, self.legs.joints.flatten()] = (
            -(up.unsqueeze(-2) @ jacobian).squeeze(-2).flatten(1)
        )
        return torque


def _check_drives(config: TrotConfig, env: TaskEnv[Any]) -> None:
    """Raises InputError if the script's drives differ from the robot's."""
    robots = env.robots.config
    drives = config.drives
    if not robots.real_drives and drives is not None:
        raise InputError(
            f"teacher_settings.drives={list(drives)} is of drives that a model moves,"
            f" actuator=FOLDER; actuator={robots.actuator} has the robot's own gains"
        )
    if robots.real_drives and drives is None:
        stiffness, damping, _ = actuators.load(robots.real_drives[0]).contract.baseline
        raise InputError(
            f"actuator={robots.actuator}: the script needs gains that are like its drives',"
            f" teacher_settings.drives=; the best constant ones of its log are"
            f" [{stiffness:.3g},{damping:.3g}]"
        )


def _smooth(share: Tensor) -> Tensor:
    """A smooth step from 0 to 1."""
    share = share.clamp(0.0, 1.0)
    return share * share * (3.0 - 2.0 * share)
