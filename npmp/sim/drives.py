"""Drives moved by a model of real actuators, in place of ideal ones, at the physics rate."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import mujoco
import numpy as np
import torch
from torch import Tensor

from npmp.actuators.models import ActuatorModel, Memory

# what actuator= calls the model's own drives
IDEAL = "pd"
# in which a model with motors differs from one with ideal drives
MOTOR_FIELDS = (
    "dof_damping", "dof_frictionloss", "dof_armature", "actuator_gainprm", "actuator_biasprm",
)  # fmt: skip


def with_motors(model: mujoco.MjModel, armature: float = 0.0) -> mujoco.MjModel:
    """The same model, its drives plain motors: a control is a torque [Nm], within the drive's
    limits.

    What the joints have of damping and friction goes: it is in the torque that was measured behind
    it. Armature stays: no model of torques is told the acceleration that a rotor's inertia takes.
    Where the actuator's own armature is known [kg m^2], above 0, it takes the place of theirs.
    """
    model = copy(model)
    driven = model.jnt_dofadr[model.actuator_trnid[:, 0]]
    model.dof_damping[driven] = 0.0
    model.dof_frictionloss[driven] = 0.0
    if armature:
        model.dof_armature[driven] = armature
    model.actuator_gaintype[:] = mujoco.mjtGain.mjGAIN_FIXED
    model.actuator_biastype[:] = mujoco.mjtBias.mjBIAS_NONE
    model.actuator_gainprm[:] = 0.0
    model.actuator_biasprm[:] = 0.0
    model.actuator_gainprm[:, 0] = 1.0
    model.actuator_ctrllimited[:] = 0
    return model


class Drives:
    """What moves the joints of n simulations of a model where models of actuators do, of one kind
    or several: simulation i has the law i % K; None: the model's own drives, which are ideal."""

    def __init__(self, laws: Sequence[ActuatorModel | None], model: mujoco.MjModel, num_envs: int):
        """Raises: InputError where the physics runs at another rate than an actuators' model."""
        self._shape = (num_envs, model.nu)
        self._count = len(laws)
        real = {k: law for k, law in enumerate(laws) if law is not None}
        for law in real.values():
            law.check_rate(1.0 / model.opt.timestep)
        self._kinds = {  # those that there are robots for
            k: _Kind(law, model, len(range(k, num_envs, len(laws))))
            for k, law in real.items()
            if k < num_envs
        }
        # of ideal drives' targets
        limited = model.actuator_ctrllimited[:, None].astype(bool)
        limits = np.where(limited, model.actuator_ctrlrange, (-np.inf, np.inf))
        self._low, self._high = torch.from_numpy(limits).unbind(-1)

    @property
    def latent_dim(self) -> int:
        """Numbers that say which actuator a joint has, the most that a law takes."""
        return max((kind.latent.shape[-1] for kind in self._kinds.values()), default=0)

    def set_latent(self, ids: Tensor, latent: Tensor) -> None:
        """Which actuators simulations ids (k,) have from their next beginning on, (k, nu,
        latent_dim)."""
        for k, kind in self._kinds.items():
            mine = ids % self._count == k
            kind.latent[ids[mine] // self._count] = latent[mine][..., : kind.latent.shape[-1]]

    def begin(self, ids: Tensor) -> None:
        """Simulations ids (k,) have been placed anew."""
        for k, kind in self._kinds.items():
            kind.fresh[ids[ids % self._count == k] // self._count] = True

    def begin_step(self) -> None:
        for kind in self._kinds.values():
            kind.begin_step()

    @property
    def current_squares(self) -> Tensor | None:
        """The squares of the motors' currents (n, nu) [A^2], mean over the physics steps since the
        control step began; None where not all laws tell a current."""
        result = torch.zeros(self._shape)
        for k in range(min(self._shape[0], self._count)):
            squares = self._kinds[k].current_squares if k in self._kinds else None
            if squares is None:
                return None
            result[k :: self._count] = squares
        return result

    def controls(self, target: Tensor, qpos: Tensor, qvel: Tensor) -> Tensor:
        """What the drives are given at a physics step (n, nu): torques [Nm], ideal ones their
        targets [rad].

        Args:
          target: (n, nu) of the joints [rad]. qpos: (n, nq). qvel: (n, nv), at its start.
        """
        ctrl = target.clamp(self._low, self._high)
        for k, kind in self._kinds.items():
            rows = slice(k, None, self._count)
            ctrl[rows] = kind.torque(target[rows], qpos[rows], qvel[rows]).to(ctrl)
        return ctrl

    def snapshot(self) -> Tensor:
        """A copy of all that the next torques depend on, (n, size) float64."""
        kept = {k: kind.snapshot() for k, kind in self._kinds.items()}
        size = max((part.shape[-1] for part in kept.values()), default=0)
        state = torch.zeros(self._shape[0], size, dtype=torch.float64)
        for k, part in kept.items():
            state[k :: self._count, : part.shape[-1]] = part
        return state

    def restore(self, state: Tensor) -> None:
        """Continue from a `snapshot`."""
        for k, kind in self._kinds.items():
            kind.restore(state[k :: self._count])


class _Kind:
    """The actuators of one law in n simulations of a model, one for each drive, with what they
    remember.

    Where a simulation is placed anew, its actuators have long been as they are at its first physics
    step, with the torque that constant gains make of that. `latent` (n, nu, d) says which actuator
    each one is from then on, where the model knows many.
    """

    def __init__(self, law: ActuatorModel, model: mujoco.MjModel, num_envs: int):
        contract = law.contract
        joints = model.actuator_trnid[:, 0]
        self._law = law
        self._shape = (num_envs, model.nu)
        self._q = torch.from_numpy(model.jnt_qposadr[joints]).long()
        self._v = torch.from_numpy(model.jnt_dofadr[joints]).long()
        # what the drives put out at most: a model that goes on from its own torque goes on from
        # what arrived
        most = np.where(model.actuator_forcelimited, model.actuator_forcerange[:, 1], np.inf)
        within = torch.from_numpy(most / contract.torque_scale).float()
        self._most = within.repeat(num_envs).unsqueeze(-1)
        # voltage and the like stay as they were in the mean
        self._others = torch.tensor(contract.input_mean[2:])
        self.latent = torch.zeros(num_envs, model.nu, law.latent_dim)
        self.fresh = torch.ones(num_envs, dtype=torch.bool)
        begun = law.begin(torch.zeros(num_envs * model.nu, len(contract.input_scale)))
        self._memory = Memory(*(part.clone() for part in begun))  # its parts may share rows
        # [A^2], summed over so many physics steps; no state: a control step begins with nothing
        self._squares = torch.zeros(self._shape)
        self._steps = 0

    def begin_step(self) -> None:
        self._squares.zero_()
        self._steps = 0

    @property
    def current_squares(self) -> Tensor | None:
        """The squares of the motors' currents (n, nu) [A^2], mean over the physics steps since the
        control step began; None where the model tells no current."""
        return self._squares / max(1, self._steps) if self._law.contract.current_scale else None

    @torch.inference_mode()
    def torque(self, target: Tensor, qpos: Tensor, qvel: Tensor) -> Tensor:
        """The torques (n, nu) [Nm] of a physics step.

        Args:
          target: (n, nu) of the joints [rad]. qpos: (n, nq). qvel: (n, nv), at its start.
        """
        error = (target - qpos[:, self._q]).float().flatten()
        speed = qvel[:, self._v].float().flatten()
        moving = torch.stack((self._law.effort(error, speed), speed), -1)
        inputs = torch.cat((moving, self._others.expand(len(moving), -1)), -1)
        if self.fresh.any():
            self._start(inputs, error, speed)
        torque, current, self._memory = self._law.step_with_current(inputs, self._memory)
        if self._law.recursive:
            self._memory.kept[:, -1:].clamp_(-self._most, self._most)
        if current is not None:
            self._squares += current.view(self._shape).square()
            self._steps += 1
        return torque.view(self._shape)

    def _start(self, inputs: Tensor, error: Tensor, speed: Tensor) -> None:
        rows = self.fresh.repeat_interleave(self._shape[1])
        stiffness, damping, offset = self._law.contract.baseline
        torque = stiffness * error[rows] - damping * speed[rows] + offset
        first = self._law.begin(inputs[rows], torque)
        if self._law.recursive:
            first = first._replace(kept=first.kept.clamp(-self._most[rows], self._most[rows]))
        first = first._replace(latent=self.latent.flatten(0, 1)[rows])
        for kept, new in zip(self._memory, first, strict=True):
            kept[rows] = new
        self.fresh[:] = False

    def _state(self) -> list[Tensor]:
        """All that the next torques depend on, views (n, size) each."""
        n = self._shape[0]
        return [part.view(n, -1) for part in (*self._memory, self.latent, self.fresh)]

    def snapshot(self) -> Tensor:
        """A copy of all that the next torques depend on, (n, size) float64."""
        return torch.cat([part.double() for part in self._state()], -1)

    @torch.inference_mode()
    def restore(self, state: Tensor) -> None:
        """Continue from a `snapshot`."""
        parts = self._state()
        begins = 0
        for part in parts:
            part.copy_(state[:, begins : begins + part.shape[1]])
            begins += part.shape[1]
