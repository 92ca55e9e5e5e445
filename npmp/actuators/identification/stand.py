"""A robot on a stand: its trunk is fixed, its position drives have a delay and an encoder bias.

torque = clip(kp (command(t - delay) - reading) - kd speed), reading = true angle + bias. Armature,
damping and friction_loss are MuJoCo's, of the joint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mujoco
import mujoco.batch
import numpy as np
from numpy.typing import ArrayLike

from mocap_data.errors import InputError
from npmp.actuators.actuator_log import Floats, JointRecording
from npmp.robots import Robot

KINDS = ("armature", "damping", "friction_loss", "delay_s", "bias", "kp", "kd")
ARMATURE, DAMPING, FRICTION, DELAY, BIAS, KP, KD = range(len(KINDS))
UNITS = dict(zip(KINDS, ("kg m2", "Nm s/rad", "Nm", "s", "rad", "Nm/rad", "Nm s/rad"), strict=True))
GRAVITY = 9.81
# [s] before the start with the first command; longer than any delay
_BEFORE_S = 1.0


class Motion(NamedTuple):
    """m simulations at the samples of a log: true angles (m, T, n) [rad] and, if requested, the
    drives' torques [Nm]."""

    position: Floats
    torque: Floats | None


class Stand:
    """n joints on a fixed trunk, sampled at a log's rate, without contacts.

    `nominal` (n, 7): the model's parameters in the order of `KINDS`. `trees`: the joints (indices)
    of each limb; limbs do not affect each other.
    """

    def __init__(
        self, model: mujoco.MjModel, joints: Sequence[str], substeps: int, threads: int = 1
    ):
        """model: with a position actuator of each joint's name; `substeps` timesteps are the log's
        period."""
        self.model = model
        self.joints = tuple(joints)
        self.substeps = substeps
        self._threads = threads
        self.rate_hz = 1.0 / (substeps * model.opt.timestep)
        views = [model.joint(name) for name in joints]
        self._q = np.array([int(joint.qposadr[0]) for joint in views])
        self._v = np.array([int(joint.dofadr[0]) for joint in views])
        self._u = np.array([model.actuator(name).id for name in joints])
        limited = model.actuator_forcelimited[self._u]
        limit = model.actuator_forcerange[self._u, 1]
        self.torque_limit = np.where(limited, limit, np.inf)
        # [kg m2] with the armature, in the model's default pose
        self.inertia = model.dof_M0[self._v].copy()
        zero = np.zeros(len(views))
        nominal = (
            model.dof_armature[self._v],
            model.dof_damping[self._v],
            model.dof_frictionloss[self._v],
            zero,
            zero,
            model.actuator_gainprm[self._u, 0],
            -model.actuator_biasprm[self._u, 2],
        )
        self.nominal = np.stack(nominal, -1)
        limb = model.dof_treeid[self._v]
        self.trees = [np.flatnonzero(limb == tree) for tree in np.unique(limb)]
        self._batches: dict[int, mujoco.batch.Batch] = {}

    def run(
        self,
        parameters: ArrayLike,
        command: Floats,
        start: Floats,
        speed: Floats | None = None,
        *,
        torque: bool = False,
        every_step: bool = False,
    ) -> Motion:
        """Simulate m sets of parameters (m, n, 7) under the same commands (T, n) [rad], each held
        until the next.

        Args:
          start: (n,) first encoder readings [rad]. speed: (n,) [rad/s]; None: at rest.
          torque: whether to return the drives' torques.
          every_step: return every physics step, (T - 1) substeps + 1, not only the T samples.
        """
        values = np.asarray(parameters, dtype=np.float64)
        batch = self._batch(values)
        control = self._controls(values, command)
        batch.bind("qpos")[:, self._q] = start - values[..., BIAS]
        batch.bind("qvel")[:, self._v] = 0.0 if speed is None else speed
        qpos = batch.bind("qpos").copy()[:, None]
        qvel = batch.bind("qvel").copy()[:, None]
        record = ("qpos", "qvel") if torque else ("qpos",)
        trajectory = batch.rollout(control.shape[1], control, record=record)
        stride = 1 if every_step else self.substeps
        sampled = slice(stride - 1, None, stride)
        q = np.concatenate((qpos, trajectory["qpos"][:, sampled]), 1)[..., self._q]
        if not torque:
            return Motion(q, None)
        qd = np.concatenate((qvel, trajectory["qvel"][:, sampled]), 1)[..., self._v]
        target = np.concatenate((control[:, :1], control[:, sampled]), 1)[..., self._u]
        kp, kd = (values[:, None, :, kind] for kind in (KP, KD))
        drive = kp * (target - q) - kd * qd
        return Motion(q, np.clip(drive, -self.torque_limit, self.torque_limit))

    def replay(self, parameters: ArrayLike, recording: JointRecording, **options: bool) -> Motion:
        """`run` under a recording's commands from its first reading on; options: as of `run`."""
        speed = None if recording.velocity is None else recording.velocity[0]
        return self.run(parameters, recording.command, recording.position[0], speed, **options)

    def _batch(self, values: Floats) -> mujoco.batch.Batch:
        """Simulations with parameters (m, n, 7), in the model's default state."""
        size = len(values)
        if size not in self._batches:
            self._batches[size] = mujoco.batch.Batch(self.model, size, self._threads)
        batch = self._batches[size]
        batch.reset(stage=mujoco.mjtStage.mjSTAGE_NONE.value)
        armature, damping, friction, _, _, kp, kd = np.moveaxis(values, -1, 0)
        batch.expand("dof_armature")[:, self._v] = armature
        batch.expand("dof_damping")[:, self._v] = damping
        batch.expand("dof_frictionloss")[:, self._v] = friction
        batch.expand("actuator_gainprm")[:, self._u, 0] = kp
        batch.expand("actuator_biasprm")[:, self._u, 1] = -kp
        batch.expand("actuator_biasprm")[:, self._u, 2] = -kd
        batch.set_const()
        return batch

    def _controls(self, values: Floats, command: Floats) -> Floats:
        """True joint targets at every physics step, (m, (T - 1) substeps, nu): the mean of the
        delayed command over the step, which is smooth in the delay."""
        samples, number = command.shape
        steps = (samples - 1) * self.substeps
        h = self.model.opt.timestep
        edges = h * np.arange(steps + 1)
        knots = np.concatenate(([-_BEFORE_S], np.arange(samples) / self.rate_hz))
        # integral of the commands over time
        integral = np.zeros((len(knots), number))
        integral[1] = _BEFORE_S * command[0]
        integral[2:] = integral[1] + np.cumsum(command[:-1], 0) / self.rate_hz
        control = np.zeros((len(values), steps, self.model.nu))
        delay = values[..., DELAY]
        bias = values[..., BIAS]
        for j in range(number):
            delays, index = np.unique(delay[:, j], return_inverse=True)
            means = np.stack(
                [np.diff(np.interp(edges - d, knots, integral[:, j])) / h for d in delays]
            )
            control[:, :, self._u[j]] = means[index] - bias[:, j : j + 1]
        return control


def stand_of(
    robot: Robot, rate_hz: float, *, up: Sequence[float] = (0.0, 0.0, 1.0), threads: int = 1
) -> Stand:
    """The robot with its trunk fixed, sampled at a rate. up: the vertical in the trunk's frame.

    Raises:
      InputError: for a vertical that is not a direction.
    """
    vertical = np.asarray(up, dtype=np.float64)
    if vertical.shape != (3,) or not 0.0 < np.linalg.norm(vertical) < np.inf:
        raise InputError(f"up={list(up)}: must be the vertical in the trunk's frame, e.g. [0,0,1]")
    spec = robot.spec(visuals=False)
    spec.delete(spec.joints[0])
    substeps = max(1, round(robot.physics_rate_hz / rate_hz))
    spec.option.timestep = 1.0 / (rate_hz * substeps)
    spec.option.gravity = -GRAVITY * vertical / np.linalg.norm(vertical)
    spec.option.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
    for key in list(spec.keys):
        spec.delete(key)
    return Stand(spec.compile(), robot.joint_names, substeps, threads)
