"""Legged odometry: a robot's pose and velocity from its IMU and joints, and the feet that stand.

A filter with fixed gains. Gyro and accelerometer predict; the vertical corrects roll and pitch, and
feet that stand correct position, velocity and heading (Bloesch et al. 2012 have covariances, too).
It begins in a given pose; from there position and heading drift.

Left out: the delay of the IMU, its distance from the root's origin, and the slope under a rolling
foot.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from npmp.core import geometry
from npmp.envs.feet import Feet
from npmp.envs.kinematics import Kinematics
from npmp.envs.sensing import SensorConfig
from npmp.envs.state import GRAVITY, RobotState
from npmp.robots import Robot

# gains per control step: roll and pitch by the vertical; heading by standing feet; of the places of
# standing feet, which slip [D]
TILT = 0.1
HEADING = 0.5
SLIP = 0.05
# standard deviations of what the filters do not predict: acceleration of joints relative to the
# expected ones [rad/s^2], of the root [rad/s^2, m/s^2] [D]
JOINT_ACCELERATION = 150.0
ANGULAR_ACCELERATION = 20.0
ACCELERATION = 2.0
# speed of joints, by which a delay's spread is noise [rad/s]; movement of a foot per angle of a
# joint [m/rad], and of feet that stand [m] [D]
JOINT_SPEED = 3.0
LEG = 0.25
SLIP_M = 0.003
# distance of a foot from its place at which its weight is halved, in standard deviations [D]
TRUSTED = 2.0
# share of gravity below which a robot is in free fall [D]
LEAST_WEIGHT = 0.3
# time after a touchdown in which feet do not correct the height: they sink into soft ground by half
# a centimetre and rise again [s] [D]
SETTLING_S = 0.1


class Odometry(NamedTuple):
    """What is estimated of n robots."""

    root_pos: Tensor  # (n, 3) [m]
    root_rot: Tensor  # (n, 3, 3)
    velocity: Tensor  # (n, 3) in the world [m/s]
    root_ang: Tensor  # (n, 3) in the root's frame [rad/s]
    # (n, nu) joint angles minus the expected ones [rad], and their rates [rad/s]
    deviation: Tensor
    deviation_rate: Tensor
    feet: Tensor  # (n, F, 3) where the centres of standing feet are [m]
    foot_rot: Tensor  # (n, F, 3, 3) rotations of the feet's bodies
    stood_s: Tensor  # (n, F) since they should stand [s]


class LegOdometry:
    """Estimates of a batch of robots at control steps of dt [s]."""

    def __init__(
        self, robot: Robot, kinematics: Kinematics, feet: Feet, dt: float, sensors: SensorConfig
    ):
        """kinematics, feet: of the robot. sensors: whose noise and delay determine the gains."""
        self.kinematics = kinematics
        self.feet = feet
        self.bodies = [robot.body_names.index(name) for name in robot.foot_bodies]
        device = next(feet.buffers()).device
        self.home = torch.tensor(robot.home_joints, dtype=torch.float32, device=device)
        self.dt = dt
        self.delay_s = 0.5 * sum(sensors.delay_s)
        jitter_s = (sensors.delay_s[1] - sensors.delay_s[0]) / math.sqrt(12.0)
        joint = math.hypot(sensors.joint_noise, jitter_s * JOINT_SPEED)
        self.angle_gain, self.rate_gain = tracking_gains(JOINT_ACCELERATION * dt**2, joint)
        gyro = self.home.new_tensor(sensors.gyro_noise)
        self.turn_gain = filter_gain(ANGULAR_ACCELERATION * dt, gyro)
        foot = math.hypot(SLIP_M, joint * LEG)
        self.trusted_m = TRUSTED * foot
        acceleration = math.hypot(ACCELERATION, sensors.accelerometer_noise)
        self.position_gain, self.velocity_gain = tracking_gains(acceleration * dt**2, foot)

    def begin(self, robots: RobotState) -> Odometry:
        """The odometry of robots in known poses at known velocities."""
        pose = robots.root_pos, robots.root_rot, robots.joint_pos
        feet = self._feet(*pose)
        none = torch.zeros_like(robots.joint_pos)
        return Odometry(
            root_pos=robots.root_pos,
            root_rot=robots.root_rot,
            velocity=geometry.to_world(robots.root_rot, robots.root_vel_end),
            root_ang=robots.root_ang,
            deviation=none,
            deviation_rate=none,
            feet=feet,
            foot_rot=self._rotations(*pose),
            stood_s=torch.zeros_like(feet[..., 0]),
        )

    def update(
        self, before: Odometry, sensors: Tensor, stands: Tensor, expected: Tensor, moves: Tensor
    ) -> tuple[Odometry, RobotState]:
        """The odometry one control step later, and the state that it estimates.

        Args:
          sensors: (n, 2 nu + 9) `proprioception`.
          stands: (n, F) bool, feet that should stand.
          expected: (n, nu) joint angles that the robots should have [rad]. moves: (n, nu) and their
            velocities [rad/s].
        """
        dt = self.dt
        nu = len(self.home)
        angles, setpoint, gyro, accel, up = sensors.split((nu, nu, 3, 3, 3), -1)
        accel = GRAVITY * accel
        predicted = before.deviation + before.deviation_rate * dt
        # the joints have moved on since they were measured
        off = angles + moves * self.delay_s + self.home - expected - predicted
        after = self._moved(before, gyro, accel, up)._replace(
            deviation=predicted + self.angle_gain * off,
            deviation_rate=before.deviation_rate + self.rate_gain / dt * off,
        )
        joints = expected + after.deviation
        stands = stands & ~in_free_fall(accel).unsqueeze(-1)
        after = self._standing(before, after, joints, stands)

        mean = 0.5 * (before.velocity + after.velocity)
        turning = after.root_ang, moves + after.deviation_rate
        return after, RobotState(
            after.root_pos,
            after.root_rot,
            joints,
            geometry.to_local(after.root_rot, mean),
            *turning,
            accel,
            setpoint + self.home,
            geometry.to_local(after.root_rot, after.velocity),
            *turning,
        )

    def _moved(self, before: Odometry, gyro: Tensor, accel: Tensor, up: Tensor) -> Odometry:
        """The odometry moved by the IMU's angular velocity (n, 3) [rad/s] and acceleration (n, 3)
        [m/s^2], and tilted towards its vertical (n, 3)."""
        dt = self.dt
        root_ang = before.root_ang + self.turn_gain * (gyro - before.root_ang)
        root_rot = before.root_rot @ geometry.exp_so3(root_ang * dt)
        tilt = torch.linalg.cross(up, root_rot[..., 2, :])
        root_rot = root_rot @ geometry.exp_so3(TILT * tilt)
        gravity = accel.new_tensor((0.0, 0.0, GRAVITY))
        velocity = before.velocity + (geometry.to_world(root_rot, accel) - gravity) * dt
        root_pos = before.root_pos + 0.5 * (before.velocity + velocity) * dt
        return before._replace(
            root_pos=root_pos, root_rot=root_rot, velocity=velocity, root_ang=root_ang
        )

    def _standing(
        self, before: Odometry, after: Odometry, joints: Tensor, stands: Tensor
    ) -> Odometry:
        """The odometry corrected by the feet that stood and stand (n, F) bool."""
        pose = after.root_pos, after.root_rot, joints
        feet = self._feet(*pose)
        # they roll: the centre of a sphere moves by its rotation times the vertical
        foot_rot = self._rotations(*pose)
        rolled = geometry.log_so3(foot_rot @ before.foot_rot.transpose(-1, -2))
        upwards = rolled.new_tensor((0.0, 0.0, self.feet.radius)).expand_as(rolled)
        place = before.feet + torch.linalg.cross(rolled, upwards)
        away = place - feet
        trust = 1.0 / (1.0 + (away / self.trusted_m).square().sum(-1, keepdim=True))
        stood = (stands & (before.stood_s > 0.0)).unsqueeze(-1)
        settled = stood & (before.stood_s > SETTLING_S).unsqueeze(-1)
        corrects = torch.cat((stood, stood, settled), -1)  # (n, F, 3), along each axis
        weight = corrects * trust
        total = weight.sum(1, keepdim=True).clamp(min=1e-6)
        # the shift, and turn about the vertical, that bring the feet to their places
        shift = (weight * away).sum(1, keepdim=True) / total
        center = (weight * feet).sum(1, keepdim=True) / total
        arm = feet - center
        rest = away - shift
        moment = arm[..., 0] * rest[..., 1] - arm[..., 1] * rest[..., 0]
        inertia = (weight[..., 0] * arm[..., :2].square().sum(-1)).sum(-1).clamp(min=1e-3)
        turn = geometry.yaw_matrix(HEADING * (weight[..., 0] * moment).sum(-1) / inertia)

        # where no foot is near its place none is trusted
        shift = weight.amax(1) * shift.squeeze(1)
        center = torch.where(corrects.any(1), center.squeeze(1), after.root_pos)
        root_rot = turn @ after.root_rot
        root_pos = center + geometry.to_world(turn, after.root_pos - center)
        root_pos = root_pos + self.position_gain * shift
        feet = self._feet(root_pos, root_rot, joints)
        return after._replace(
            root_pos=root_pos,
            root_rot=root_rot,
            velocity=after.velocity + self.velocity_gain / self.dt * shift,
            # the place of a foot that is not where it stood follows it
            feet=torch.where(corrects, feet.lerp(place, (1.0 - SLIP) * trust), feet),
            foot_rot=foot_rot,
            stood_s=torch.where(stands, before.stood_s + self.dt, 0.0),
        )

    def _rotations(self, root_pos: Tensor, root_rot: Tensor, joints: Tensor) -> Tensor:
        return self.kinematics(root_pos, root_rot, joints).rotation[:, self.bodies]

    def _feet(self, root_pos: Tensor, root_rot: Tensor, joints: Tensor) -> Tensor:
        return self.feet(root_pos, root_rot, joints)[:, :, 0]


def in_free_fall(accel: Tensor) -> Tensor:
    """Whether no foot carries a robot, (n,) bool. accel: (n, 3) of its IMU [m/s^2]."""
    return accel.norm(dim=-1) < LEAST_WEIGHT * GRAVITY


def tracking_gains(process: float, noise: float) -> tuple[float, float]:
    """Gains of position and of velocity times the period of a Kalman filter in its steady state
    (Kalata 1984); the second at most 1, that of a difference.

    process: standard deviation of the acceleration times the period squared. noise: of the
    measured position.
    """
    ratio = process / max(noise, 1e-6)
    rest = 0.25 * (4.0 + ratio - math.sqrt(8.0 * ratio + ratio**2))
    position = 1.0 - rest**2
    return position, min(2.0 * (2.0 - position) - 4.0 * rest, 1.0)


def filter_gain(process: float, noise: Tensor) -> Tensor:
    """Gain of a Kalman filter of a random walk in its steady state. process: standard deviation of
    its steps. noise: of the measurements."""
    return 2.0 / (1.0 + torch.sqrt(1.0 + 4.0 * (noise / process).square()))
