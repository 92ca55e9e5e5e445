"""A robot in MuJoCo: physics, drives within the robot's own limits, and what it senses."""

from __future__ import annotations

from collections import deque

import mujoco
import numpy as np

from mocap_data.errors import InputError
from npmp.deploy.contract import GRAVITY, BundleContract
from npmp.deploy.robot import FloatArray, State
from npmp.robots import Robot
from npmp.robots.model import feet_in_world

MOST_GAIN = 2.0  # times the robot's own gains: more than that no drive takes [D]
LONGEST_S = 1.0  # of a target's duration [D]
SAME = 1e-3  # share, or rad, by which a bundle may differ from its robot's description [D]
# damping over kp of a joint that is damped, kd and the joint's own [s]; a Go2's is 0.05, OP3's 0.05
# (its own alone), ANYmal B's 0.02 [D]
LEAST_DAMPING_S = 1e-3
_BREAKDOWNS = tuple(
    getattr(mujoco.mjtWarning, f"mjWARN_BAD{what}") for what in ("QPOS", "QVEL", "QACC", "CTRL")
)


class SimulatedRobot:
    """One robot on flat ground. Its drives obey within the robot's own limits."""

    def __init__(self, robot: Robot, *, accelerometer: str = "imu", crouch: float = 2.5):
        """accelerometer: as in a bundle, where and how it is read."""
        self.robot = robot
        self.model = robot.on_floor().compile()
        self.data = mujoco.MjData(self.model)
        self.dt = float(self.model.opt.timestep)
        self.root_based = accelerometer == "root"
        self.place(crouch)
        # on four feet it lies down; on two its servos hold it
        limp = len(robot.foot_bodies) >= 4
        if limp:
            self.damp()
        for _ in range(round(2.0 / self.dt)):
            self.step()
        # limp drives go to their first target from where the joints have come to lie
        if limp:
            self.begun = self.wanted = self.data.qpos[7:].copy()
            self.damped = False

    def place(self, crouch: float = 1.0) -> None:
        """At rest, its servos on, the lowest foot on the ground; crouch 1 is the home pose."""
        robot = self.robot
        data = self.data
        mujoco.mj_resetData(self.model, data)
        data.qpos[:] = robot.home_qpos
        pose = np.clip(crouch * robot.home_joints, robot.joint_lower, robot.joint_upper)
        data.qpos[7:] = np.where(robot.is_leg_joint, pose, robot.home_joints)
        mujoco.mj_kinematics(self.model, data)
        feet = feet_in_world(data, robot.foot_bodies, robot.foot_points)
        data.qpos[2] -= feet[..., 2].min() - robot.foot_radius
        self.begun = self.wanted = data.qpos[7:].copy()
        self.left = self.steps = 0
        self._gains(robot.kp, robot.kd)
        mujoco.mj_forward(self.model, data)
        offset = data.site(robot.imu_site).xpos - data.xpos[1]
        self.imu_offset = data.xmat[1].reshape(3, 3).T @ offset
        self.past = deque([self._moment()] * (2 * robot.substeps + 1), 2 * robot.substeps + 1)
        self.damped = False

    def _gains(self, kp: FloatArray, kd: FloatArray) -> None:
        self.model.actuator_gainprm[:, 0] = kp
        self.model.actuator_biasprm[:, 1] = -kp
        self.model.actuator_biasprm[:, 2] = -kd

    def command(
        self, target: FloatArray, kp: FloatArray, kd: FloatArray, duration_s: float
    ) -> None:
        """As `RobotInterface.write`, within the robot's limits; nothing once it is damped."""
        if self.damped:
            return
        robot = self.robot
        most = MOST_GAIN
        self._gains(
            np.clip(kp, 0.0, most * robot.kp),
            np.clip(kd, 0.0, most * np.maximum(robot.kd, 0.01 * robot.kp)),
        )
        self.begun = self.setpoint()
        self.wanted = np.clip(target, robot.joint_lower, robot.joint_upper)
        self.left = self.steps = round(min(max(duration_s, 0.0), LONGEST_S) / self.dt)

    def setpoint(self) -> FloatArray:
        """Where the drives are now on their way to the target, (nu,) [rad]."""
        share = self.left / self.steps if self.steps else 0.0
        return np.asarray(self.wanted + share * (self.begun - self.wanted))

    def damp(self) -> None:
        """No stiffness: each joint brakes with the robot's own damping."""
        self.damped = True
        self._gains(np.zeros_like(self.robot.kp), self.robot.kd)

    def step(self) -> None:
        self.left = max(0, self.left - 1)
        self._advance(self.setpoint())
        self.past.append(self._moment())

    @property
    def broken(self) -> bool:
        """Whether the simulation has broken down since `place`: MuJoCo then goes on, from the
        model's default state."""
        return any(self.data.warning[int(kind)].number for kind in _BREAKDOWNS)

    def _advance(self, setpoint: FloatArray) -> None:
        """Physics itself; other simulators have their own and leave the state in `data`."""
        self.data.ctrl[:] = setpoint
        mujoco.mj_step(self.model, self.data)

    def _moment(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Root position, quaternion, and velocity of the IMU, in the world."""
        qpos = self.data.qpos
        qvel = self.data.qvel
        velocity = np.zeros(3)
        mujoco.mju_rotVecQuat(velocity, np.cross(qvel[3:6], self.imu_offset), qpos[3:7])
        return qpos[:3].copy(), qpos[3:7].copy(), velocity + qvel[:3]

    def sense(self, time_s: float) -> State:
        """What it measures; gyro and accelerometer are means over the last control period, as
        policies were trained."""
        substeps = self.robot.substeps
        period = self.robot.substeps * self.dt
        moments = [self.past[-1 - k * substeps] for k in (2, 1, 0)]
        (pos2, _, _), (pos1, quat1, vel1), (pos, quat, vel) = moments
        gyro = np.zeros(3)
        rotation = np.zeros(9)
        mujoco.mju_subQuat(gyro, quat, quat1)
        mujoco.mju_quat2Mat(rotation, quat)
        to_root = rotation.reshape(3, 3).T
        change = (pos - 2 * pos1 + pos2) / period if self.root_based else vel - vel1
        up = to_root[:, 2]
        accelerometer = to_root @ change / period + GRAVITY * up
        live = self.data.qpos[7:], self.data.qvel[6:], self.data.actuator_force
        qpos, qvel, torque = (values.copy() for values in live)
        return State(time_s, qpos, qvel, torque, gyro / period, accelerometer, up)


def refuse_other_model(contract: BundleContract, robot: Robot) -> None:
    """Raises InputError where a bundle is of another robot than this one, or was trained at other
    rates."""
    same = (
        contract.model_sha256 == robot.model_sha256
        and tuple(contract.joint_names) == robot.joint_names
        and contract.physics_rate_hz == robot.physics_rate_hz
        and contract.control_rate_hz == robot.control_rate_hz
    )
    if not same:
        raise InputError(
            f"the bundle is of another '{robot.name}' than this npmp has: model, joints or rates "
            "differ"
        )


def refuse_other_limits(contract: BundleContract, robot: Robot) -> None:
    """Refuse a bundle whose rates, gains or home pose are not its robot's, or whose limits are
    wider: what is sent follows the bundle's numbers. Refuse a robot that cannot be damped.

    Raises:
      InputError: naming what differs.
    """
    if set(contract.joint_names) != set(robot.joint_names):
        other = sorted(set(contract.joint_names) ^ set(robot.joint_names))[0]
        raise InputError(f"the bundle's joints are not those of '{robot.name}': {other!r:.40}")
    for name in ("control_rate_hz", "physics_rate_hz"):
        value = getattr(contract, name)
        own = getattr(robot, name)
        if not abs(value - own) <= SAME * own:
            raise InputError(
                f"the bundle's {name}={value:g}: must be {own:g}, as of '{robot.name}'"
            )

    at = [robot.joint_names.index(name) for name in contract.joint_names]
    low, high = contract.joint_range
    strongest, fastest = (contract.per_joint(name) for name in ("torque_limit", "velocity_limit"))
    least_kp, least_kd = SAME * robot.kp, SAME * np.maximum(robot.kd, SAME)
    # what the bundle says, and the least and the most that the robot takes
    none = np.full(len(at), -np.inf)
    bounds = {
        "home": (contract.home_pose, robot.home_joints - SAME, robot.home_joints + SAME),
        "kp": (contract.per_joint("kp"), robot.kp - least_kp, robot.kp + least_kp),
        "kd": (contract.per_joint("kd"), robot.kd - least_kd, robot.kd + least_kd),
        "torque_limit": (strongest, none, robot.torque_limit * (1.0 + SAME)),
        "velocity_limit": (fastest, none, robot.velocity_limit * (1.0 + SAME)),
        "lower range": (low, robot.joint_lower - SAME, -none),
        "upper range": (high, none, robot.joint_upper + SAME),
    }
    for name, (values, least, most) in bounds.items():
        wrong = ~((least[at] <= values) & (values <= most[at]))
        if wrong.any():
            k = int(wrong.argmax())
            allowed = " to ".join(
                f"{bound[at][k]:.4g}" for bound in (least, most) if np.isfinite(bound[at][k])
            )
            raise InputError(
                f"the bundle's {name} of {contract.joint_names[k]}={values[k]:g}: must be within "
                f"{allowed}, as '{robot.name}' is described; is it changed, or another's?"
            )

    own = robot.model(visuals=False).dof_damping[6:]
    limp = (robot.kd + own < LEAST_DAMPING_S * robot.kp).nonzero()[0]
    if len(limp):
        raise InputError(
            f"kd of {robot.joint_names[limp[0]]}, of '{robot.name}' as it is described or fitted: "
            f"must be at least {LEAST_DAMPING_S:g} s times kp, less the joint's own damping, as it "
            "damps the robot"
        )
