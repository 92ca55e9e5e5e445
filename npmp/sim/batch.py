"""`mujoco.batch` as the environments use it: torch in and out, one control step a call."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import mujoco
import mujoco.batch
import numpy as np
import torch
from torch import Tensor

from npmp.actuators.models import ActuatorModel
from npmp.sim.drives import MOTOR_FIELDS, Drives, with_motors

_CTRL = int(mujoco.mjtState.mjSTATE_CTRL)


class BatchSim:
    """Many simulations of one model on the CPU's threads. The same steps give the same bits,
    whatever the number of threads.

    `qpos` (n, nq) and `qvel` (n, nv), in MuJoCo's order and units, are float64 views of the live
    state: to be read only, and overwritten by the next call. `drives` are the joints' actuators
    where a model of real ones moves them, else None.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        *,
        control_rate_hz: float,
        num_threads: int = 0,
        actuators: Sequence[ActuatorModel | None] = (None,),
    ):
        """All simulations are in the model's default state.

        Args:
          control_rate_hz: how often `step` is called, in simulated time [Hz]; it divides the
            model's physics rate.
          num_threads: 0 for all cores. The result does not depend on it, to the bit.
          actuators: move the joints, K kinds, in simulation i the kind i % K; None: the model's own
            drives, which are ideal.

        Raises:
          InputError: for an actuator at another rate than the physics.
        """
        self.substeps = round(1.0 / (control_rate_hz * model.opt.timestep))
        driven = any(law is not None for law in actuators)
        self.drives = Drives(actuators, model, num_envs) if driven else None
        kinds = [model if law is None else with_motors(model, law.armature) for law in actuators]
        self.model = model = copy(model) if None in actuators else kinds[0]
        if driven:  # `Drives` keeps targets within their ranges
            model.actuator_ctrllimited[:] = 0
        self.num_envs = num_envs
        self.batch = mujoco.batch.Batch(model, num_envs, num_threads)
        for name in MOTOR_FIELDS:  # simulations have the drives of the kinds in turn
            values = [getattr(kind, name) for kind in kinds]
            if all((value == values[0]).all() for value in values):
                continue
            own = self.batch.expand(name)
            for k, value in enumerate(values):
                own[k :: len(kinds)] = value
            if name == "dof_armature":
                self.batch.set_const(np.arange(num_envs))
        self.qpos = torch.from_numpy(self.batch.bind("qpos"))
        self.qvel = torch.from_numpy(self.batch.bind("qvel"))
        self._ctrl = torch.from_numpy(self.batch.bind("ctrl"))
        self._state = torch.from_numpy(self.batch.state)
        self._initial = self._state[:1].clone()
        # (n, nsensordata) live, read only
        none = np.zeros((num_envs, 0))
        self.sensordata = self.batch.bind("sensordata") if model.nsensordata else none
        # (n, nv) live, read only; from the next step on
        self._drive_forces = self.batch.bind("qfrc_actuator")
        self._warnings = self.batch.warning  # (n, kinds, 2): last info and count, live
        self._course = torch.zeros(num_envs, self.substeps, model.nu, dtype=torch.float64)
        # share of the way to the new controls at each physics step of a first-order hold
        steps = torch.arange(1, self.substeps + 1, dtype=torch.float64)
        self._share = (steps / self.substeps).view(1, -1, 1)

    def set_state(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Place simulations ids (k,) int64 at qpos (k, nq), qvel (k, nv), with every internal state
        (time, warm start of the solver, controls, wrenches) at rest."""
        # a simulation is its state row, so writing the row is all that a reset is; `Batch.reset`
        # would wake its threads for it
        self._state[ids] = self._initial
        self.qpos[ids] = qpos.to(self.qpos)
        self.qvel[ids] = qvel.to(self.qvel)
        if self.drives is not None:
            self.drives.begin(ids)

    def move(self, ids: Tensor, qpos: Tensor, qvel: Tensor) -> None:
        """Give simulations ids (k,) other positions and velocities, and leave all else as it
        is."""
        self.qpos[ids], self.qvel[ids] = qpos.to(self.qpos), qvel.to(self.qvel)

    def step(self, ctrl: Tensor, previous: Tensor | None = None) -> None:
        """One control step of every simulation.

        Args:
          ctrl: (n, nu) joint targets [rad] for position actuators.
          previous: (n, nu) the targets of the step before: the targets then move linearly from
            these to `ctrl`, which they reach with the last physics step (robot-NPMP's delayed
            first-order hold). None: `ctrl` holds for the whole step.
        """
        # MuJoCo sets a counter to one when it resets a simulation, so only counters that start at
        # zero can tell
        self._warnings[...] = 0
        if self.drives is not None:  # whose torque is another at every physics step
            ctrl = ctrl.to(self._ctrl)
            self.drives.begin_step()
            for share in self._share.flatten():
                target = ctrl if previous is None else torch.lerp(previous.to(ctrl), ctrl, share)
                self._ctrl.copy_(self.drives.controls(target, self.qpos, self.qvel))
                self.batch.step(nstep=1)
        elif previous is None:
            self._ctrl.copy_(ctrl)
            self.batch.step(nstep=self.substeps)
        else:
            start = previous.to(self._course).unsqueeze(1)
            torch.lerp(start, ctrl.to(self._course).unsqueeze(1), self._share, out=self._course)
            self.batch.rollout(self.substeps, self._course.numpy(), _CTRL, record=())

    def wrench(self, body: int) -> Tensor:
        """Force [N] and torque [Nm] on a body in the world frame, (n, 6), live: what is written
        acts until it is written anew."""
        return torch.from_numpy(self.batch.bind("xfrc_applied"))[:, body]

    def expand(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Give model fields a value per simulation, before the first step: the live values
        (n, ...) float64 by name."""
        return {name: torch.from_numpy(self.batch.expand(name)) for name in names}

    def set_const(self, ids: Tensor) -> None:
        """Derive MuJoCo's constants of models ids (k,) anew from their masses and inertias."""
        if len(ids):
            self.batch.set_const(ids.numpy())

    def broken(self) -> Tensor:
        """Simulations that MuJoCo warned of in the last step, (n,) bool.

        Most had numbers that are not finite or are huge; MuJoCo has put those back to the model's
        default state, which is finite.
        """
        return torch.from_numpy(self._warnings[:, :, 1].any(-1))

    def warnings(self, i: int) -> list[str]:
        """MuJoCo's names of what it warned of in simulation i's last step, e.g. "BADQACC"."""
        kinds = np.flatnonzero(self._warnings[i, :, 1])
        return [mujoco.mjtWarning(int(k)).name.removeprefix("mjWARN_") for k in kinds]

    def sensor(self, name: str) -> Tensor:
        """A copy of a sensor's readings, (n, dim); one physics step behind the state, as `mj_step`
        leaves it. Raises KeyError for a sensor that the model lacks."""
        return torch.tensor(self.sensordata[:, sensor_columns(self.model, name)])

    def drive_forces(self) -> Tensor:
        """A copy of the generalized forces of the drives [N, Nm], (n, nv), as of the last physics
        step."""
        return torch.tensor(self._drive_forces)

    def snapshot(self) -> Tensor:
        """A copy of the whole integration state, (n, size) float64, but for what `expand` gave."""
        state = torch.tensor(self.batch.state)
        return state if self.drives is None else torch.cat((state, self.drives.snapshot()), -1)

    def restore(self, state: Tensor) -> None:
        """Continue from a `snapshot` of as many simulations of the same model, to the bit."""
        size = self.batch.state.shape[1]
        self.batch.state[:] = state[:, :size].numpy()
        if self.drives is not None:
            self.drives.restore(state[:, size:])


def sensor_columns(model: mujoco.MjModel, name: str) -> slice:
    """Where a sensor's readings stand in `sensordata`. Raises: KeyError for one that the model has
    not."""
    sensor = model.sensor(name)
    return slice(int(sensor.adr[0]), int(sensor.adr[0] + sensor.dim[0]))
