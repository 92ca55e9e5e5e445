"""A robot in MuJoCo with drives within its own limits, and its sensors."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np

from mocap_data.errors import InputError
from npmp.deploy.contract import GRAVITY, BundleContract
from npmp.deploy.robot import FloatArray, State
from npmp.robots import Robot
from npmp.robots.model import feet_in_world

# largest kp and kd relative to the robot's own [D]
MAX_GAIN = 2.0
# longest duration of a target [s] [D]
MAX_DURATION_S = 1.0
# share, or rad, by which a bundle may differ from its robot's description [D]
SAME = 1e-3
# least ratio of damping, kd plus the joint's, to kp [s] [D]
# A Go2 has 0.05, an OP3 0.05 (of joints only), ANYmal B 0.02.
MIN_DAMPING_S = 1e-3
_DIVERGENCE = tuple(
    getattr(mujoco.mjtWarning, f"mjWARN_BAD{name}") for name in ("QPOS", "QVEL", "QACC", "CTRL")
)


class SimulatedRobot:
    """One robot on flat ground. Commands are clipped to the robot's own limits."""

    def __init__(self, robot: Robot, *, accelerometer: str = "imu", crouch: float = 2.5):
        """accelerometer: its definition, as in a bundle. crouch: as of `reset`."""
        self.robot = robot
        self.model = robot.on_floor().compile()
        self.data = mujoco.MjData(self.model)
        self.dt = float(self.model.opt.timestep)
        self.root_based = accelerometer == "root"
        self.reset(crouch)
        # a robot with four feet starts lying, one with two is held by its servos
        limp = len(robot.foot_bodies) >= 4
        if limp:
            self.damp()
        for _ in range(round(2.0 / self.dt)):
            self.step()
        # limp drives start from where the joints have settled
        if limp:
            self.start = self.data.qpos[7:].copy()
            self.target = self.start
            self.damped = False

    def reset(self, crouch: float = 1.0) -> None:
        """At rest with servos on and the lowest foot on the ground. crouch: factor of the home
        pose's joint angles."""
        robot = self.robot
        data = self.data
        mujoco.mj_resetData(self.model, data)
        data.qpos[:] = robot.home_qpos
        pose = np.clip(crouch * robot.home_joints, robot.joint_lower, robot.joint_upper)
        data.qpos[7:] = np.where(robot.is_leg_joint, pose, robot.home_joints)
        mujoco.mj_kinematics(self.model, data)
        feet = feet_in_world(data, robot.foot_bodies, robot.foot_points)
        data.qpos[2] -= feet[..., 2].min() - robot.foot_radius
        # the setpoint goes from start to target within `steps` physics steps
        self.start = data.qpos[7:].copy()
        self.target = self.start
        self.steps = 0
        self.steps_left = 0
        self._set_gains(robot.kp, robot.kd)
        mujoco.mj_forward(self.model, data)
        offset = data.site(robot.imu_site).xpos - data.xpos[1]
        self.imu_offset = data.xmat[1].reshape(3, 3).T @ offset
        length = 2 * robot.substeps + 1
        self.history = deque([self._root_motion()] * length, length)
        self.damped = False

    def _set_gains(self, kp: FloatArray, kd: FloatArray) -> None:
        self.model.actuator_gainprm[:, 0] = kp
        self.model.actuator_biasprm[:, 1] = -kp
        self.model.actuator_biasprm[:, 2] = -kd

    def command(
        self, target: FloatArray, kp: FloatArray, kd: FloatArray, duration_s: float
    ) -> None:
        """As `RobotInterface.write`, within the robot's limits; no effect once it is damped."""
        if self.damped:
            return
        robot = self.robot
        max_kd = MAX_GAIN * np.maximum(robot.kd, 0.01 * robot.kp)
        self._set_gains(np.clip(kp, 0.0, MAX_GAIN * robot.kp), np.clip(kd, 0.0, max_kd))
        self.start = self.setpoint()
        self.target = np.clip(target, robot.joint_lower, robot.joint_upper)
        self.steps = round(min(max(duration_s, 0.0), MAX_DURATION_S) / self.dt)
        self.steps_left = self.steps

    def setpoint(self) -> FloatArray:
        """The interpolated setpoint (nu,) [rad]."""
        share = self.steps_left / self.steps if self.steps else 0.0
        return np.asarray(self.target + share * (self.start - self.target))

    def damp(self) -> None:
        """No stiffness: each joint brakes with the robot's own damping."""
        self.damped = True
        self._set_gains(np.zeros_like(self.robot.kp), self.robot.kd)

    def step(self) -> None:
        self.steps_left = max(0, self.steps_left - 1)
        self._advance(self.setpoint())
        self.history.append(self._root_motion())

    @property
    def broken(self) -> bool:
        """Whether the simulation has diverged since `reset`; MuJoCo then resets its state."""
        return any(self.data.warning[int(kind)].number for kind in _DIVERGENCE)

    def _advance(self, setpoint: FloatArray) -> None:
        """One physics step. Other simulators override it and write the state to `data`."""
        self.data.ctrl[:] = setpoint
        mujoco.mj_step(self.model, self.data)

    def _root_motion(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Root position, quaternion, and velocity of the IMU, in the world."""
        qpos = self.data.qpos
        qvel = self.data.qvel
        velocity = np.zeros(3)
        mujoco.mju_rotVecQuat(velocity, np.cross(qvel[3:6], self.imu_offset), qpos[3:7])
        return qpos[:3].copy(), qpos[3:7].copy(), velocity + qvel[:3]

    def sense(self, time_s: float) -> State:
        """The sensor readings. Gyro and accelerometer are means over the last control period, as in
        training."""
        substeps = self.robot.substeps
        period = substeps * self.dt
        motions = [self.history[-1 - k * substeps] for k in (2, 1, 0)]
        (pos2, _, _), (pos1, quat1, vel1), (pos, quat, vel) = motions
        gyro = np.zeros(3)
        rotation = np.zeros(9)
        mujoco.mju_subQuat(gyro, quat, quat1)
        mujoco.mju_quat2Mat(rotation, quat)
        to_root = rotation.reshape(3, 3).T
        change = (pos - 2 * pos1 + pos2) / period if self.root_based else vel - vel1
        up = to_root[:, 2]
        return State(
            time_s,
            joint_pos=self.data.qpos[7:].copy(),
            joint_vel=self.data.qvel[6:].copy(),
            joint_torque=self.data.actuator_force.copy(),
            gyro=gyro / period,
            accelerometer=to_root @ change / period + GRAVITY * up,
            up=up,
        )


class FloorCamera:
    """A bundle's depth camera over the flat floor, without noise."""

    def __init__(self, camera: Mapping[str, Any]):
        """camera: of the contract."""
        self.place = np.array(camera["place_m"], np.float64)
        self.range_m = camera["range_m"]
        tangents = np.tan(np.radians(camera["fov_deg"]) / 2.0)
        left, up = (
            tangent * np.linspace(1.0 - 1.0 / count, 1.0 / count - 1.0, count)
            for count, tangent in zip(camera["size"], tangents)
        )
        up, left = (part.ravel() for part in np.meshgrid(up, left, indexing="ij"))
        pitch = math.radians(camera["pitch_deg"])
        cos = math.cos(pitch)
        sin = math.sin(pitch)
        # (pixels, 3) in the root frame, 1 along the optical axis
        self.rays = np.stack((cos + up * sin, left, up * cos - sin), -1)

    def depths(self, data: mujoco.MjData) -> FloatArray:
        """Depths (pixels,) along the optical axis [m], from the top left."""
        rotation = data.xmat[1].reshape(3, 3)
        height = data.xpos[1, 2] + rotation[2] @ self.place
        down = -self.rays @ rotation[2]
        depth = height / np.where(down > 0.0, down, math.nan)
        return np.clip(np.nan_to_num(depth, nan=math.inf), *self.range_m)


def check_model(contract: BundleContract, robot: Robot) -> None:
    """Raises InputError if model, joints or rates of a bundle are not the robot's."""
    same = (
        contract.model_sha256 == robot.model_sha256
        and tuple(contract.joint_names) == robot.joint_names
        and contract.physics_rate_hz == robot.physics_rate_hz
        and contract.control_rate_hz == robot.control_rate_hz
    )
    if not same:
        raise InputError(
            f"the bundle's '{robot.name}': model, joints or rates differ from those of this npmp"
        )


def check_limits(contract: BundleContract, robot: Robot) -> None:
    """Refuse a bundle whose rates, gains or home pose are not its robot's, or whose limits are
    wider, as they determine what is sent; also a robot that cannot be damped.

    Raises:
      InputError: naming the first difference.
    """
    if set(contract.joint_names) != set(robot.joint_names):
        other = sorted(set(contract.joint_names) ^ set(robot.joint_names))[0]
        raise InputError(
            f"joint_names: joint {other!r:.40} is only in the bundle or only in robot"
            f" '{robot.name}'; expected equal joints"
        )
    for name in ("control_rate_hz", "physics_rate_hz"):
        value = getattr(contract, name)
        expected = getattr(robot, name)
        if not abs(value - expected) <= SAME * expected:
            raise InputError(
                f"the bundle's {name}={value:g}: must be {expected:g}, as of '{robot.name}'"
            )

    order = [robot.joint_names.index(name) for name in contract.joint_names]
    low, high = contract.joint_range
    kp_margin = SAME * robot.kp
    kd_margin = SAME * np.maximum(robot.kd, SAME)
    unbounded = np.full(len(order), np.inf)
    # values of the bundle (its order), lower and upper bounds (the robot's order)
    bounds = {
        "home": (contract.home_pose, robot.home_joints - SAME, robot.home_joints + SAME),
        "kp": (contract.per_joint("kp"), robot.kp - kp_margin, robot.kp + kp_margin),
        "kd": (contract.per_joint("kd"), robot.kd - kd_margin, robot.kd + kd_margin),
        "torque_limit": (
            contract.per_joint("torque_limit"),
            -unbounded,
            robot.torque_limit * (1.0 + SAME),
        ),
        "velocity_limit": (
            contract.per_joint("velocity_limit"),
            -unbounded,
            robot.velocity_limit * (1.0 + SAME),
        ),
        "lower range": (low, robot.joint_lower - SAME, unbounded),
        "upper range": (high, -unbounded, robot.joint_upper + SAME),
    }
    for name, (values, lower, upper) in bounds.items():
        wrong = ~((lower[order] <= values) & (values <= upper[order]))
        if wrong.any():
            k = int(wrong.argmax())
            allowed = " to ".join(
                f"{bound[order][k]:.4g}" for bound in (lower, upper) if np.isfinite(bound[order][k])
            )
            raise InputError(
                f"the bundle's {name} of {contract.joint_names[k]}={values[k]:g}: must be within "
                f"{allowed}, as of '{robot.name}'; was it edited, or is it another robot's?"
            )

    joint_damping = robot.model(visuals=False).dof_damping[6:]
    limp = (robot.kd + joint_damping < MIN_DAMPING_S * robot.kp).nonzero()[0]
    if len(limp):
        raise InputError(
            f"kd of {robot.joint_names[limp[0]]} of '{robot.name}' does not damp the robot: with "
            f"the joint's own damping it must be at least {MIN_DAMPING_S:g} s times kp"
        )
