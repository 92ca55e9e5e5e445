"""Joint drives with actuator models in place of ideal ones, at the physics rate."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import mujoco
import numpy as np
import torch
from torch import Tensor

from npmp.actuators.models import ActuatorModel, Memory

# name in actuator= of the MuJoCo model's ideal drives
IDEAL = "pd"
# fields in which a model with motors differs from one with ideal drives
MOTOR_FIELDS = (
    "dof_damping", "dof_frictionloss", "dof_armature", "actuator_gainprm", "actuator_biasprm",
)  # fmt: skip


def with_motors(model: mujoco.MjModel, armature: float = 0.0) -> mujoco.MjModel:
    """A copy of the model whose drives are motors: a control is a torque [Nm], within the drive's
    limits.

    Joint damping and friction are set to zero: the measured torque already includes them. Armature
    stays: actuator models do not observe accelerations.

    Args:
      armature: of the actuators [kg m^2]; 0: the model's.
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


def with_drives(
    model: mujoco.MjModel, actuators: Sequence[ActuatorModel | None]
) -> tuple[mujoco.MjModel, dict[str, list[np.ndarray]]]:
    """A copy of the model for simulations with K actuator models, and the fields in which their
    models differ, K values each: simulation i has value i % K."""
    models = [
        model if actuator is None else with_motors(model, actuator.armature)
        for actuator in actuators
    ]
    shared = copy(model) if None in actuators else models[0]
    # `Drives` clamps the targets
    if any(actuator is not None for actuator in actuators):
        shared.actuator_ctrllimited[:] = 0
    differing = {}
    for name in MOTOR_FIELDS:
        values = [getattr(one, name) for one in models]
        if not all((value == values[0]).all() for value in values):
            differing[name] = values
    return shared, differing


class Drives:
    """Actuator models of n simulations. Simulation i has model i % K; None: ideal drives."""

    def __init__(
        self,
        actuators: Sequence[ActuatorModel | None],
        model: mujoco.MjModel,
        num_envs: int,
        device: torch.device | str = "cpu",
    ):
        """Raises: InputError for an actuator model at another rate than the physics."""
        self._shape = (num_envs, model.nu)
        self.device = torch.device(device)
        self._count = len(actuators)
        real = {k: actuator for k, actuator in enumerate(actuators) if actuator is not None}
        for actuator in real.values():
            actuator.check_rate(1.0 / model.opt.timestep)
        self._groups = {
            k: _ActuatorGroup(actuator, model, len(range(k, num_envs, len(actuators))), self.device)
            for k, actuator in real.items()
            if k < num_envs
        }
        # range of the targets of ideal drives
        limited = model.actuator_ctrllimited[:, None].astype(bool)
        limits = np.where(limited, model.actuator_ctrlrange, (-np.inf, np.inf))
        self._low, self._high = torch.from_numpy(limits).to(self.device).unbind(-1)

    @property
    def latent_dim(self) -> int:
        """Width of an actuator's latent: the maximum over the models."""
        return max((group.latent.shape[-1] for group in self._groups.values()), default=0)

    def set_latent(self, ids: Tensor, latent: Tensor) -> None:
        """Set the actuators' latents (k, nu, latent_dim) of simulations ids (k,); they apply from
        the next reset."""
        chosen = self._mask(ids)
        values = latent.new_zeros(*self._shape, latent.shape[-1]).index_copy(0, ids, latent)
        for k, group in self._groups.items():
            rows = slice(k, None, self._count)
            own = values[rows, :, : group.latent.shape[-1]].to(group.latent)
            group.latent = torch.where(chosen[rows, None, None], own, group.latent)

    def _mask(self, ids: Tensor) -> Tensor:
        """Simulations ids (k,) as (n,) bool. Unlike an index by a mask, it waits for no GPU."""
        none = torch.zeros(self._shape[0], dtype=torch.bool, device=self.device)
        return none.index_fill(0, ids, True)

    def begin(self, ids: Tensor) -> None:
        """Reset the actuators of simulations ids (k,)."""
        chosen = self._mask(ids)
        for k, group in self._groups.items():
            group.begin(chosen[k :: self._count])

    def begin_step(self) -> None:
        for group in self._groups.values():
            group.begin_step()

    @property
    def current_squares(self) -> Tensor | None:
        """Squared motor currents (n, nu) [A^2], mean over the physics steps since the control step
        began; None where a model gives no current."""
        result = torch.zeros(self._shape, device=self.device)
        for k in range(min(self._shape[0], self._count)):
            squares = self._groups[k].current_squares if k in self._groups else None
            if squares is None:
                return None
            result[k :: self._count] = squares
        return result

    def controls(self, target: Tensor, qpos: Tensor, qvel: Tensor) -> Tensor:
        """Controls of a physics step (n, nu): torques [Nm], of ideal drives targets [rad].

        Args:
          target: (n, nu) of the joints [rad]. qpos: (n, nq). qvel: (n, nv), at its start.
        """
        ctrl = target.clamp(self._low, self._high)
        for k, group in self._groups.items():
            rows = slice(k, None, self._count)
            ctrl[rows] = group.torque(target[rows], qpos[rows], qvel[rows]).to(ctrl)
        return ctrl

    def snapshot(self) -> Tensor:
        """A copy of the actuators' state, (n, size) float64."""
        parts = {k: group.snapshot() for k, group in self._groups.items()}
        size = max((part.shape[-1] for part in parts.values()), default=0)
        state = torch.zeros(self._shape[0], size, dtype=torch.float64, device=self.device)
        for k, part in parts.items():
            state[k :: self._count, : part.shape[-1]] = part
        return state

    def restore(self, state: Tensor) -> None:
        """Continue from a `snapshot`."""
        for k, group in self._groups.items():
            group.restore(state[k :: self._count])


class _ActuatorGroup:
    """The actuators of one model in n simulations, one per drive, with their memory.

    After a reset the memory is that of a constant input: the one of the first physics step, with
    the torque of constant gains. `latent` (n, nu, d) identifies each actuator, where the model
    covers several.
    """

    def __init__(
        self, actuator: ActuatorModel, model: mujoco.MjModel, num_envs: int, device: torch.device
    ):
        contract = actuator.contract
        joints = model.actuator_trnid[:, 0]
        self._actuator = actuator.to(device)
        self._shape = (num_envs, model.nu)
        self._q = torch.from_numpy(model.jnt_qposadr[joints]).long().to(device)
        self._v = torch.from_numpy(model.jnt_dofadr[joints]).long().to(device)
        # scaled torque limit: a recursive model continues from the clamped torque
        limit = np.where(model.actuator_forcelimited, model.actuator_forcerange[:, 1], np.inf)
        scaled = torch.from_numpy(limit / contract.torque_scale).float().to(device)
        self._limit = scaled.repeat(num_envs).unsqueeze(-1)
        # other inputs, e.g. the voltage, stay at their mean
        self._others = torch.tensor(contract.input_mean[2:], device=device)
        self.latent = torch.zeros(num_envs, model.nu, actuator.latent_dim, device=device)
        self.fresh = torch.ones(num_envs, dtype=torch.bool, device=device)
        inputs = torch.zeros(num_envs * model.nu, len(contract.input_scale), device=device)
        begun = actuator.begin(inputs)
        # cloned, as parts may share rows
        self._memory = Memory(*(part.clone() for part in begun))
        # [A^2], summed over `_steps` physics steps; not in snapshots, as a control step clears it
        self._squares = torch.zeros(self._shape, device=device)
        self._steps = 0
        # whether `fresh` may have any; a flag of the host, as asking `fresh` would wait for a GPU
        self._began = True

    def begin(self, mask: Tensor) -> None:
        """Reset the actuators of simulations mask (n,) bool."""
        self.fresh |= mask
        self._began = True

    def begin_step(self) -> None:
        self._squares.zero_()
        self._steps = 0

    @property
    def current_squares(self) -> Tensor | None:
        """As `Drives.current_squares`."""
        if not self._actuator.contract.current_scale:
            return None
        return self._squares / max(1, self._steps)

    @torch.inference_mode()
    def torque(self, target: Tensor, qpos: Tensor, qvel: Tensor) -> Tensor:
        """The torques (n, nu) [Nm] of a physics step.

        Args:
          target: (n, nu) of the joints [rad]. qpos: (n, nq). qvel: (n, nv), at its start.
        """
        error = (target - qpos[:, self._q]).float().flatten()
        speed = qvel[:, self._v].float().flatten()
        moving = torch.stack((self._actuator.effort(error, speed), speed), -1)
        inputs = torch.cat((moving, self._others.expand(len(moving), -1)), -1)
        if self._began:
            self._start(inputs, error, speed)
        torque, current, self._memory = self._actuator.step_with_current(inputs, self._memory)
        if self._actuator.recursive:
            self._memory.kept[:, -1:].clamp_(-self._limit, self._limit)
        if current is not None:
            self._squares += current.view(self._shape).square()
            self._steps += 1
        return torque.view(self._shape)

    def _start(self, inputs: Tensor, error: Tensor, speed: Tensor) -> None:
        rows = self.fresh.repeat_interleave(self._shape[1])
        stiffness, damping, offset = self._actuator.contract.baseline
        torque = stiffness * error - damping * speed + offset
        first = self._actuator.begin(inputs, torque)
        if self._actuator.recursive:
            first = first._replace(kept=first.kept.clamp(-self._limit, self._limit))
        first = first._replace(latent=self.latent.flatten(0, 1))
        for kept, new in zip(self._memory, first, strict=True):
            mask = rows.view(-1, *[1] * (kept.dim() - 1))
            kept.copy_(torch.where(mask, new, kept))
        self.fresh.zero_()
        self._began = False

    def _state(self) -> list[Tensor]:
        """Views (n, size) of all that the next torques depend on."""
        n = self._shape[0]
        return [part.view(n, -1) for part in (*self._memory, self.latent, self.fresh)]

    def snapshot(self) -> Tensor:
        """A copy of the state, (n, size) float64."""
        return torch.cat([part.double() for part in self._state()], -1)

    @torch.inference_mode()
    def restore(self, state: Tensor) -> None:
        """Continue from a `snapshot`."""
        parts = self._state()
        begins = 0
        for part in parts:
            part.copy_(state[:, begins : begins + part.shape[1]])
            begins += part.shape[1]
        self._began = True
